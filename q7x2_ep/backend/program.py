"""A compiled graph: native phases, one C call each, and the host steps between them.

A model without host steps is one phase, and a run of it is a run of its Executor. Otherwise arrays
pass from phase to phase by value, and the sizes that only data tells are bound as they appear.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep import dtypes, errors
from q7x2_ep.backend.call import Call, check_output
from q7x2_ep.backend.cpu.executor import Executor, constants_of
from q7x2_ep.backend.cpu.library import Library
from q7x2_ep.backend.numpy import Evaluation
from q7x2_ep.ir.core import NO_TENSOR, Graph, Node, Type, Value, array_type
from q7x2_ep.ir.shape import Expr, evaluate, measured, symbols
from q7x2_ep.ops import find
from q7x2_ep.ops.control import actuals
from q7x2_ep.plan.build import Plan, Step
from q7x2_ep.plan.encode import Encoded, encode
from q7x2_ep.plan.partition import HostPhase, NativePhase, Phase, partition

Sizes = dict[str, int]


class _State(NamedTuple):
    """One run: what has been made so far, and the sizes of the symbols."""

    arrays: dict[Value, Any]
    sizes: Sizes

    def array(self, value: Value) -> Any:
        if value in self.arrays:
            return self.arrays[value]
        if value.const is not None:
            return value.const
        elements = [evaluate(element, self.sizes) for element in value.elements]
        return dtypes.make_array(elements, value.dtype, value.shape)


@dataclass(frozen=True)
class Code:
    """A native phase as it is run: what C reads, packed weights first among its constants."""

    encoded: Encoded
    constants: list[np.ndarray]


@dataclass(frozen=True)
class Parts:
    """All that running a graph needs; a compiled model file holds it. is_whole: one part takes the
    inputs of the graph and makes its outputs.
    """

    inputs: list[Value]
    outputs: list[Value]
    output_names: list[str]
    parts: list[Union[Code, HostPhase]]
    is_whole: bool


@dataclass(frozen=True)
class Origin:
    """What a program was made from, for those who explain it."""

    graph: Graph
    phases: list[Phase]


def compile_graph(graph: Graph, library: Library, threads: int) -> tuple[Parts, Origin]:
    """Plans a graph and packs its weights, which leave it."""
    phases = partition(graph, library.target)
    readers = Counter(value for phase in phases for value in _packed(phase))
    kept = {value for value, count in readers.items() if count > 1} | {*graph.outputs}
    kept.update(value for phase in phases for value in _constants(phase))
    parts: list[Union[Code, HostPhase]] = []
    for phase in phases:
        if isinstance(phase, NativePhase):
            encoded = encode(phase.plan, library.target, list(phase.sizes))
            parts.append(Code(encoded, constants_of(library, phase.plan, threads, kept)))
        else:
            parts.append(phase)
    first = phases[0] if phases else None
    is_whole = isinstance(first, NativePhase) and first.plan.graph is graph  # not a part of it
    made = Parts(graph.inputs, graph.outputs, graph.output_names, parts, is_whole)
    return made, Origin(graph, phases)


class Program:
    """A graph, ready to run.

    origin: what it was made from. compile makes a program of a body, whose inputs have types.
    Thread safe, as Executor is.
    """

    def __init__(
        self,
        parts: Parts,
        origin: Callable[[], Origin],
        library: Library,
        threads: int,
        compile: Callable[[Graph], Program],
    ):
        self.parts, self.origin = parts, origin
        self._runners: list[Any] = [
            _Native(part, library, threads) if isinstance(part, Code) else _Host(part, compile)
            for part in parts.parts
        ]
        self._native = [runner for runner in self._runners if isinstance(runner, _Native)]
        self._whole: Optional[Executor] = self._native[0].executor if parts.is_whole else None
        self._dead = self._last_uses()
        self._is_closed = False

    @property
    def graph(self) -> Graph:
        """The graph that it runs."""
        return self.origin().graph

    @property
    def phases(self) -> list[Phase]:
        """The phases that it runs, as they were planned."""
        return self.origin().phases

    @property
    def plans(self) -> list[Plan]:
        """Of the native phases, in order."""
        return [phase.plan for phase in self.phases if isinstance(phase, NativePhase)]

    @property
    def host_phases(self) -> list[HostPhase]:
        """The steps that Python runs, in order."""
        return [phase for phase in self.phases if isinstance(phase, HostPhase)]

    @property
    def steps(self) -> list[Union[Step, Node]]:
        """Of all phases, in order: what Call.step_ns and `profile` measure."""
        steps: list[Union[Step, Node]] = []
        for phase in self.phases:
            steps += phase.plan.steps if isinstance(phase, NativePhase) else [phase.node]
        return steps

    def run(
        self, arrays: Sequence[Any], sizes: Mapping[str, int], call: Optional[Call] = None
    ) -> list[Any]:
        """Outputs for dense inputs in order and the values of the symbols in their shapes.

        Raises: ShapeError and DataError for what does not fit.
        """
        if self._whole is not None:
            return self._whole.run(arrays, sizes, call)
        if self._is_closed:
            raise errors.BackendError("[session] is closed; make a new one")
        state = _State(dict(zip(self.parts.inputs, arrays)), dict(sizes))
        part = None if call is None else call.of_part()
        for runner, dead in zip(self._runners, self._dead):
            if part is not None:
                part.go_on()
            runner.run(state, part)
            for value in dead:
                state.arrays.pop(value, None)
        outputs = _owned([state.array(value) for value in self.parts.outputs], state, arrays)
        return outputs if call is None else _place(outputs, call, self.parts.output_names)

    def run_body(self, arrays: Sequence[Any], call: Optional[Call] = None) -> list[Any]:
        """As `run`, for inputs whose dims are all symbols of their own, or unknown."""
        sizes: Sizes = {}
        given = []
        for value, array in zip(self.parts.inputs, arrays):
            if isinstance(array, np.ndarray):
                array = _dense(array)
                _bind(value, array, sizes)
            given.append(array)
        return self.run(given, sizes, call)

    def profile(self, arrays: Sequence[Any], sizes: Mapping[str, int], runs: int) -> list[int]:
        """Nanoseconds per step, host steps too, summed over `runs` runs after one to warm up."""
        self.run(arrays, sizes)
        totals = [0] * len(self.steps)
        for _ in range(runs):
            call = Call(step_ns=[])
            self.run(arrays, sizes, call)
            totals = [a + b for a, b in zip(totals, call.step_ns)]
        return totals

    def statistics(self, sizes: Mapping[str, int]) -> list[dict[str, int]]:
        """Memory of the native phases whose sizes are known, see Executor.statistics."""
        return [runner.executor.statistics(sizes) for runner in self._bindable(sizes)]

    def placements(self, sizes: Mapping[str, int]) -> list[list[tuple[int, int]]]:
        """Of the same phases, see Executor.placements."""
        return [runner.executor.placements(sizes) for runner in self._bindable(sizes)]

    def _bindable(self, sizes: Mapping[str, int]) -> list[_Native]:
        """The phases until the first that needs a size which only data tells."""
        known = (set(runner.sizes) <= set(sizes) for runner in self._native)
        return [
            runner
            for runner, _ in itertools.takewhile(lambda pair: pair[1], zip(self._native, known))
        ]

    def programs(self) -> Iterator[Program]:
        """This and those of the bodies in it that have been compiled."""
        yield self
        for runner in self._runners:
            if isinstance(runner, _Host):
                for body in list(runner.bodies.values()):  # a run may be adding to them
                    yield from body.programs()

    @property
    def constants(self) -> list[list[np.ndarray]]:
        """Of the native phases, packed weights first."""
        return [part.constants for part in self.parts.parts if isinstance(part, Code)]

    @property
    def arenas(self) -> list[int]:
        """Bytes of each idle context, see Executor.arenas."""
        return [size for runner in self._native for size in runner.executor.arenas()]

    def trim(self) -> None:
        """Give back the memory that no run is using."""
        for program in self.programs():
            for runner in program._native:
                runner.executor.trim()

    def close(self) -> None:
        """Release all native memory; see Executor.close."""
        self._is_closed = True
        for runner in self._runners:
            runner.close()
        for part in self.parts.parts:
            if isinstance(part, Code):
                part.constants.clear()

    def _last_uses(self) -> list[list[Value]]:
        """For each phase the values that no later one needs."""
        last: dict[Value, int] = {}
        for i, runner in enumerate(self._runners):
            last.update(dict.fromkeys((*runner.inputs, *runner.outputs), i))
        for value in self.parts.outputs:
            last.pop(value, None)
        return [[value for value in last if last[value] == i] for i in range(len(self._runners))]


def _constants(phase: Phase) -> Iterable[Value]:
    """What a phase reads as it is, not packed."""
    if isinstance(phase, NativePhase):
        return phase.plan.constants
    return (value for value in phase.node.inputs if value is not None and value.const is not None)


def _packed(phase: Phase) -> set[Value]:
    """The weights that a phase packs."""
    return {p.weight for p in phase.plan.packs} if isinstance(phase, NativePhase) else set()


class _Native:
    def __init__(self, code: Code, library: Library, threads: int):
        self.inputs, self.outputs = code.encoded.inputs, code.encoded.outputs
        self.sizes = code.encoded.symbols
        self.executor = Executor(library, code.encoded, code.constants, threads)
        self.close = self.executor.close

    def run(self, state: _State, call: Optional[Call] = None) -> None:
        arrays, sizes = self._given(state)
        state.arrays.update(zip(self.outputs, self.executor.run(arrays, sizes, call)))

    def _given(self, state: _State) -> tuple[list[np.ndarray], Sizes]:
        arrays = [_dense(state.array(value)) for value in self.inputs]
        return arrays, {name: state.sizes[name] for name in self.sizes}


class _Host:
    def __init__(self, phase: HostPhase, compile: Callable[[Graph], Program]):
        self.node = phase.node
        self.inputs = [value for value in self.node.inputs if value is not None]
        self.outputs = self.node.outputs
        self._compile = compile
        self._captures = actuals(phase.node, phase.node.inputs)[1] if phase.node.bodies else []
        self._constants = {  # of the captures, by their place among them
            i: value.const for i, value in enumerate(self._captures) if value.const is not None
        }
        self.bodies: dict[tuple, Program] = {}

    def run(self, state: _State, call: Optional[Call] = None) -> None:
        if call is None or call.step_ns is None:
            self._run(state, call)
            return
        start = time.perf_counter_ns()
        self._run(state, Call(stopped=call.stopped))
        call.step_ns.append(time.perf_counter_ns() - start)

    def _run(self, state: _State, call: Optional[Call]) -> None:
        node, entry = self.node, find(self.node.op)
        inputs = [None if value is None else state.array(value) for value in node.inputs]
        try:
            with np.errstate(all="ignore"):
                if hasattr(entry, "control"):
                    results = entry.control(node, partial(self._run_body, call), *inputs)
                else:
                    results = Evaluation(None, state.sizes).evaluate(node, inputs)
        except errors.Q7Error:
            raise
        except Exception as error:
            given = ", ".join(map(_describe, inputs))
            raise errors.DataError(
                f"[{node.op} {node.name}] cannot be computed for ({given}): {error or repr(error)}"
            ) from error
        if len(results) < len(node.outputs):
            raise errors.InternalError(
                f"[{node.op} {node.name}] made {len(results)} of {len(node.outputs)} outputs"
            )
        for value, result in zip(node.outputs, results):
            state.arrays[value] = self._checked(value, result, state.sizes)

    def close(self) -> None:
        for program in list(self.bodies.values()):  # a run may be adding to them
            program.close()

    def _checked(self, value: Value, result: Any, sizes: Sizes) -> Any:
        """The result as an array of the type that the plan relies on."""
        if result is None or isinstance(result, (list, dict, tuple)):
            return result
        if dtypes.is_dense(value.dtype):
            result = np.asarray(result, dtypes.DTYPES[value.dtype].numpy)
        else:
            result = np.asarray(result)
        _bind(value, result, sizes, f"[{self.node.op} {self.node.name}] ")
        return result

    def _run_body(self, call: Optional[Call], body: Graph, arrays: Sequence[Any]) -> list[Any]:
        arrays = [np.asarray(a) if isinstance(a, np.generic) else a for a in arrays]
        types = tuple(map(_signature, arrays))
        key = (id(body), types)
        first = len(arrays) - len(self._captures)
        if key not in self.bodies:
            fixed = {first + i: array for i, array in self._constants.items()}
            self.bodies[key] = self._compile(_typed(body.clone(), types, fixed))
        rest = [a for i, a in enumerate(arrays) if i - first not in self._constants]
        return self.bodies[key].run_body(rest, call)


def _signature(given: Any) -> Optional[tuple[int, int]]:
    """dtype and rank of an array: what a body is compiled for."""
    if not isinstance(given, np.ndarray):
        return None
    return dtypes.from_numpy(given.dtype), given.ndim


def _typed(graph: Graph, types: Sequence[Any], fixed: Mapping[int, np.ndarray]) -> Graph:
    """A body for inputs of these signatures; some are constants."""
    rest = []
    for i, (value, type) in enumerate(zip(graph.inputs, types)):
        if i in fixed:
            value.const = fixed[i]
            value.set_type(array_type(fixed[i]))
            continue
        rest.append(value)
        if type is None:
            value.set_type(NO_TENSOR)
        else:
            dtype, ndim = type
            value.set_type(Type(dtype, tuple(measured(value.name, j) for j in range(ndim))))
    graph.inputs = rest
    return graph


def _bind(value: Value, array: np.ndarray, sizes: Sizes, where: str = "") -> None:
    """Enter the sizes that an array shows.

    Raises: ShapeError where they are not what other sizes imply.
    """
    if value.shape is None:
        return
    fits = len(value.shape) == array.ndim
    for dim, size in zip(value.shape, array.shape):
        if isinstance(dim, Expr):
            name, names = _names(dim)
            if name is not None:
                dim = sizes.setdefault(name, size)
            elif names <= sizes.keys():
                dim = evaluate(dim, sizes)
            else:
                dim = size
        fits = fits and dim == size
    if not fits:
        raise errors.ShapeError(
            f"{where}expected shape ({', '.join(map(str, value.shape))}) for {value.name!r}, "
            f"given {array.shape}"
        )


@lru_cache(maxsize=4096)
def _names(dim: Expr) -> tuple[Optional[str], frozenset[str]]:
    """The name of the symbol that dim is, or None; and of all symbols in it."""
    names = frozenset(symbols(dim))
    return (repr(dim) if names == {repr(dim)} else None), names


def _dense(array: np.ndarray) -> np.ndarray:
    """What kernels can read; numpy would make a scalar a vector."""
    return np.require(array, requirements=["C", "A"]) if array.ndim else np.array(array)


def _describe(given: Any) -> str:
    if isinstance(given, (np.ndarray, np.generic)):
        return f"{given.dtype}{list(given.shape)}"
    return "_" if given is None else type(given).__name__


def _place(outputs: list[Any], call: Call, names: Sequence[str]) -> list[Any]:
    """The outputs, in the arrays that the call gives for them."""
    for i, array in enumerate(call.outputs):
        if array is not None:
            check_output(names[i], array, outputs[i].shape, outputs[i].dtype)
            np.copyto(array, outputs[i])
            outputs[i] = array
    return outputs


def _owned(results: list[Any], state: _State, feeds: Sequence[Any]) -> list[Any]:
    """The results, copied where they may share memory with a feed, a constant or one another: the
    caller may change each.
    """
    made = {id(array) for array in state.arrays.values()} - set(map(id, feeds))
    owned = []
    for result in results:
        if isinstance(result, list):
            result = [item.copy() if isinstance(item, np.ndarray) else item for item in result]
        elif isinstance(result, np.ndarray) and (id(result) not in made or result.base is not None):
            result = result.copy()
        made.discard(id(result))
        owned.append(result)
    return owned
