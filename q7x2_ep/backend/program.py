"""A compiled graph: native phases, one C call each, and the host steps between them.

A model without host steps is one phase, and a run of it is a run of its Executor. Otherwise arrays
pass from phase to phase by value, and the sizes that only data tells are bound as they appear.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep import dtypes, errors
from q7x2_ep.backend.call import Call, check_output
from q7x2_ep.backend.cpu.executor import Code, Executor, compiled
from q7x2_ep.backend.cpu.library import Library
from q7x2_ep.backend.flow import Encoder, Form, Lane, NotFlowing
from q7x2_ep.backend.numpy import Evaluation
from q7x2_ep.ir.core import NO_TENSOR, Graph, Node, Type, Value, array_type
from q7x2_ep.ir.shape import Expr, evaluate, measured, symbols
from q7x2_ep.ops import find
from q7x2_ep.ops.common import is_movement
from q7x2_ep.ops.control import actuals
from q7x2_ep.plan.build import Plan, Step
from q7x2_ep.plan.partition import HostPhase, NativePhase, Phase, is_data, partition

Sizes = dict[str, int]
MAX_EXACT = 4  # variants of a body for exact sizes
MAX_FAILURES = 8  # of a flow, before Python keeps its phases


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
class HostCode:
    """A node that Python runs, or the code of a native form of it; see HostPhase."""

    node: Node
    within: Optional[Code]


@dataclass(frozen=True)
class Image:
    """All that running a graph needs; a compiled model file holds it. is_whole: the one part takes
    the inputs of the graph and makes its outputs.
    """

    inputs: list[Value]
    outputs: list[Value]
    output_names: list[str]
    parts: list[Union[Code, HostCode]]
    is_whole: bool


@dataclass(frozen=True)
class Origin:
    """What a program was made from, for those who explain it."""

    graph: Graph
    phases: list[Phase]


class Compiler:
    """Makes programs of bodies, whose inputs have types. simplify: passes and fusion."""

    def __init__(self, library: Library, threads: int, simplify: Callable[[Graph], None]):
        self.library, self.threads, self._simplify = library, threads, simplify
        self.made = 0

    def program(self, graph: Graph) -> Program:
        self._simplify(graph)
        program = self.planned(graph)
        self.made += 1
        return program

    def planned(self, graph: Graph) -> Program:
        """The program of a graph as it is; the weights that are packed leave it."""
        phases = partition(graph, self.library.target)
        readers = Counter(value for phase in phases for value in _packed(phase))
        kept = {value for value, count in readers.items() if count > 1} | {*graph.outputs}
        kept.update(value for phase in phases for value in _constants(phase))
        parts = [
            self._code(phase, kept)
            if isinstance(phase, NativePhase)
            else HostCode(phase.node, phase.within and self._code(phase.within))
            for phase in phases
        ]
        first = phases[0] if phases else None
        is_whole = isinstance(first, NativePhase) and first.plan.graph is graph  # not a part of it
        image = Image(graph.inputs, graph.outputs, graph.output_names, parts, is_whole)
        origin = Origin(graph, phases)
        return Program(image, lambda: origin, self)

    def _code(self, phase: NativePhase, kept: Collection[Value] = ()) -> Code:
        return compiled(self.library, phase.plan, list(phase.sizes), self.threads, kept)


class Program:
    """A graph, ready to run.

    origin: what it was made from. Thread safe, as Executor is.
    """

    def __init__(self, image: Image, origin: Callable[[], Origin], compiler: Compiler):
        self.image, self.origin = image, origin
        self.runners: list[Any] = [
            _Native(part, compiler) if isinstance(part, Code) else _Host(part, compiler)
            for part in image.parts
        ]
        self._native = [runner for runner in self.runners if isinstance(runner, _Native)]
        self._whole: Optional[Executor] = self._native[0].executor if image.is_whole else None
        self.run_again = self._again if self._whole is None else self._whole.run_again
        self._lane: Optional[Lane] = None
        self._sizes: Optional[Mapping[str, int]] = None  # of the run before
        self._phases = list(zip(self.runners, self._last_uses()))  # and what is dead then
        self._parts = self._phases
        self._compiler, self._seen = compiler, -1  # bodies when the parts were made
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
    def branches(self) -> bool:
        """Whether Python chooses branches, which exact sizes might decide."""
        return any(phase.node.op in ("If", "q7::Deferred") for phase in self.host_phases)

    @property
    def steps(self) -> list[Union[Step, Node]]:
        """Of all phases, in order: what Call.step_ns and `profile` measure."""
        steps: list[Union[Step, Node]] = []
        for phase in self.phases:
            steps += phase.plan.steps if isinstance(phase, NativePhase) else [phase.node]
        return steps

    def run(
        self,
        arrays: Sequence[Any],
        sizes: Mapping[str, int],
        call: Optional[Call] = None,
        is_body: bool = False,
    ) -> list[Any]:
        """Outputs for dense inputs in order and the values of the symbols in their shapes. is_body:
        they may share memory with inputs and one another.

        Raises: ShapeError and DataError for what does not fit.
        """
        if self._whole is not None:
            return self._whole.run(arrays, sizes, call)
        if self._is_closed:
            raise errors.BackendError("[session] is closed; make a new one")
        state = _State(dict(zip(self.image.inputs, arrays)), dict(sizes))
        part = None if call is None else call.of_part()
        for runner, dead in self._parts:
            if part is not None:
                part.go_on()
            runner.run(state, part)
            for value in dead:
                state.arrays.pop(value, None)
        if self._seen != self._compiler.made:
            self._join()
        if self._sizes == sizes:
            self._lane = self._lane_for(arrays, sizes)
        self._sizes = sizes
        outputs = [state.array(value) for value in self.image.outputs]
        if is_body:
            consts = [value.const is not None for value in self.image.outputs]
            return [a.copy() if is_const else a for a, is_const in zip(outputs, consts)]
        outputs = _owned(outputs, state, arrays)
        return outputs if call is None else _place(outputs, call, self.image.output_names)

    def _again(
        self, feed: Mapping[str, Any], into: Sequence[Optional[np.ndarray]] = ()
    ) -> Optional[list[np.ndarray]]:
        """See Executor.run_again."""
        return None if self._lane is None or into else self._lane.run(feed)

    def _lane_for(self, arrays: Sequence[Any], sizes: Mapping[str, int]) -> Optional[Lane]:
        """Where all of the program is one flow, and its feeds and outputs are arrays."""
        flow = self._parts[0][0] if len(self._parts) == 1 else None
        if not isinstance(flow, _Flow) or flow.form is None:
            return None
        fed, results = self.image.inputs, self.image.outputs
        if not set(results) <= set(flow.outputs) or len(set(results)) < len(results):
            return None
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return None
        named = {value.name: array for value, array in zip(fed, arrays)}
        inputs = [value.name for value in flow.inputs]
        return Lane(flow.form, named, inputs, [flow.outputs.index(v) for v in results], sizes)

    def run_body(self, arrays: Sequence[Any], call: Optional[Call] = None) -> list[Any]:
        """As `run`, for inputs whose dims are all symbols of their own, or unknown."""
        sizes: Sizes = {}
        given = []
        for value, array in zip(self.image.inputs, arrays):
            if isinstance(array, np.ndarray):
                array = _dense(array)
                _bind(value, array.shape, sizes)
            given.append(array)
        return self.run(given, sizes, call, is_body=True)

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

    def _join(self) -> None:
        """Make one part of every sequence of phases with control flow that C can take, as far as
        the bodies that have been compiled show.
        """
        self._seen = self._compiler.made
        groups = [list(g) for _, g in itertools.groupby(self._phases, lambda p: may_flow(p[0]))]
        parts: list[Any] = []
        for i, group in enumerate(groups):
            if not may_flow(group[0][0]) or all(map(_is_simple, (r for r, _ in group))):
                parts += group
                continue
            later = {value for g in groups[i + 1 :] for r, _ in g for value in r.inputs}
            flow = _Flow(group, {*later, *self.image.outputs}, self._compiler)
            parts.append((flow, [value for _, dead in group for value in dead]))
        self._parts = parts

    def programs(self) -> Iterator[Program]:
        """This and those of the bodies in it that have been compiled."""
        yield self
        for runner in self.runners:
            if isinstance(runner, _Host):
                for body in list(runner.bodies.values()):  # a run may be adding to them
                    yield from body.programs()

    @property
    def codes(self) -> list[Code]:
        """Of all parts that have one."""
        codes = (p if isinstance(p, Code) else p.within for p in self.image.parts)
        return [code for code in codes if code is not None]

    @property
    def executors(self) -> list[Executor]:
        """Of the same parts."""
        found = (getattr(runner, "executor", None) or runner.within for runner in self.runners)
        return [executor for executor in found if executor is not None]

    def trim(self) -> None:
        """Give back the memory that no run is using."""
        for program in self.programs():
            for executor in program.executors:
                executor.trim()
            for runner, _ in program._parts:
                if isinstance(runner, _Flow) and runner.form is not None:
                    runner.form.trim()

    def close(self) -> None:
        """Release all native memory; see Executor.close."""
        self._is_closed = True
        self._lane, self._parts = None, self._phases
        for runner in self.runners:
            runner.close()
        for code in self.codes:
            code.constants.clear()

    def _last_uses(self) -> list[list[Value]]:
        """For each phase the values that no later one needs."""
        last: dict[Value, int] = {}
        for i, runner in enumerate(self.runners):
            last.update(dict.fromkeys((*runner.inputs, *runner.outputs), i))
        for value in self.image.outputs:
            last.pop(value, None)
        return [[value for value in last if last[value] == i] for i in range(len(self.runners))]


def _constants(phase: Phase) -> Iterable[Value]:
    """What a phase reads as it is, not packed."""
    if isinstance(phase, NativePhase):
        return phase.plan.constants
    return (value for value in phase.node.inputs if value is not None and value.const is not None)


def _packed(phase: Phase) -> set[Value]:
    """The weights that a phase packs."""
    return {p.weight for p in phase.plan.packs} if isinstance(phase, NativePhase) else set()


class _Native:
    def __init__(self, code: Code, compiler: Compiler):
        self.inputs, self.outputs = code.encoded.inputs, code.encoded.outputs
        self.sizes = code.encoded.symbols
        self.executor = Executor(compiler.library, code, compiler.threads)
        self.close = self.executor.close

    def run(self, state: _State, call: Optional[Call] = None) -> None:
        arrays, sizes = self._given(state)
        state.arrays.update(zip(self.outputs, self.executor.run(arrays, sizes, call)))

    def _given(self, state: _State) -> tuple[list[np.ndarray], Sizes]:
        arrays = [_dense(state.array(value)) for value in self.inputs]
        return arrays, {name: state.sizes[name] for name in self.sizes}


def may_flow(runner: Any) -> bool:
    """Whether a phase may be a part of a flow: its bodies, which have run, all are plans."""
    if isinstance(runner, _Native) or is_movement(runner.node) or runner.within is not None:
        return True
    return any(all(map(may_flow, program.runners)) for program in runner.programs())


def _is_simple(runner: Any) -> bool:
    """Whether a flow gains nothing by a phase: it is a plan, or only a view in numpy."""
    return isinstance(runner, _Native) or is_movement(runner.node)


class _Flow:
    """Phases that C runs in one call. Where it cannot, whatever the reason, Python runs them."""

    def __init__(self, phases: list[Any], needed: Collection[Value], compiler: Compiler):
        self._phases, self._compiler = phases, compiler
        made = {value for runner, _ in phases for value in runner.outputs}
        self.inputs = list(
            dict.fromkeys(
                value
                for runner, _ in phases
                for value in runner.inputs
                if is_data(value) and value not in made
            )
        )
        self.outputs = [
            value
            for value in dict.fromkeys(value for runner, _ in phases for value in runner.outputs)
            if value in needed
        ]
        self._shown = [  # whose sizes may be needed later
            value
            for runner, _ in phases
            if isinstance(runner, _Host) and runner.node.binds
            for value in runner.outputs
            if value not in needed
        ]
        self.form: Optional[Form] = None
        self._failures = 0

    def run(self, state: _State, call: Optional[Call] = None) -> None:
        is_plain = call is None or (call.stopped is None and call.step_ns is None)
        tries = is_plain and self._failures < MAX_FAILURES
        if tries and self._flow(state):
            return
        for runner, dead in self._phases:
            if call is not None:
                call.go_on()
            runner.run(state, call)
            for value in dead:
                state.arrays.pop(value, None)
        if tries:
            self._failures += 1
            self.form = None

    def _flow(self, state: _State) -> bool:
        form = self.form
        if form is None:
            try:
                form = self.form = self._build(state)
            except NotFlowing:
                self._failures = MAX_FAILURES
                return False
        results = form.run([state.array(value) for value in self.inputs], state.sizes)
        if results is None:
            return False
        for value, result in zip(self.outputs, results):
            state.arrays[value] = result
            _bind(value, result.shape, state.sizes)
        for value, shape in zip(self._shown, results[len(self.outputs) :]):
            _bind(value, shape, state.sizes)
        return True

    def _build(self, state: _State) -> Form:
        encoder = Encoder(self._compiler.library, self._compiler.threads)
        arrays = [state.array(value) for value in self.inputs]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            raise NotFlowing
        return encoder.form(
            [runner for runner, _ in self._phases],
            dict(zip(self.inputs, arrays)),
            self.outputs,
            self._shown,
            state.sizes,
        )


class _Host:
    def __init__(self, code: HostCode, compiler: Compiler):
        self.node, self._entry = code.node, find(code.node.op)
        self.inputs = [value for value in self.node.inputs if value is not None]
        self.outputs = self.node.outputs
        self.within: Optional[Executor] = None
        if code.within is not None:
            self.within = Executor(compiler.library, code.within, compiler.threads)
        self._compiler = compiler
        self._captures = actuals(code.node, code.node.inputs)[1] if code.node.bodies else []
        self._constants = {  # of the captures, by their place among them
            i: value.const for i, value in enumerate(self._captures) if value.const is not None
        }
        self.bodies: dict[tuple, Program] = {}
        self._last: dict[tuple, Program] = {}  # what ran last, by body and signature

    def run(self, state: _State, call: Optional[Call] = None) -> None:
        if call is None or call.step_ns is None:
            self._run(state, call)
            return
        start = time.perf_counter_ns()
        self._run(state, Call(stopped=call.stopped))
        call.step_ns.append(time.perf_counter_ns() - start)

    def _run(self, state: _State, call: Optional[Call]) -> None:
        if self.within is not None:
            self._run_within(self.within, state)
            return
        node, entry = self.node, self._entry
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

    def _run_within(self, executor: Executor, state: _State) -> None:
        arrays = [_dense(state.array(value)) for value in executor.encoded.inputs]
        room, count = executor.run(arrays, {s: state.sizes[s] for s in executor.encoded.symbols})
        value = self.node.output
        shape = tuple(dim if isinstance(dim, int) else int(count[0]) for dim in value.shape)
        state.arrays[value] = room[: math.prod(shape)].reshape(shape)
        _bind(value, shape, state.sizes)

    def close(self) -> None:
        if self.within is not None:
            self.within.close()
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
        _bind(value, result.shape, sizes, f"[{self.node.op} {self.node.name}] ")
        return result

    def programs(self) -> Iterable[Program]:
        """The bodies that have been compiled."""
        return list(self._last.values())

    def compiled(self, body: Graph, types: Sequence[tuple[int, int]]) -> Optional[Program]:
        """What ran last as this body, for inputs of these dtypes and ranks."""
        return self._last.get((id(body), tuple(types)))

    def _run_body(self, call: Optional[Call], body: Graph, arrays: Sequence[Any]) -> list[Any]:
        arrays = [np.asarray(a) if isinstance(a, np.generic) else a for a in arrays]
        key = (id(body), tuple(map(_signature, arrays)))
        first = len(arrays) - len(self._captures)
        rest = [a for i, a in enumerate(arrays) if i - first not in self._constants]
        program = self._last[key] = self._program(body, key, arrays, rest)
        return program.run_body(rest, call)

    def _program(
        self, body: Graph, key: tuple, arrays: Sequence[Any], rest: Sequence[Any]
    ) -> Program:
        """A body for these dtypes and ranks; for these sizes, if they decide a branch inside."""
        bodies = self.bodies
        if key not in bodies:
            bodies[key] = self._compile(body, [*map(_sized, key[1])])
        program = bodies[key]
        if not program.branches:
            return program
        shapes = tuple(a.shape if isinstance(a, np.ndarray) else None for a in rest)
        exact = (*key, shapes)
        if exact not in bodies:
            if sum(known[:2] == key for known in bodies) > MAX_EXACT:
                return program
            bodies[exact] = self._compile(body, [*map(_exactly, arrays)])
        return bodies[exact]

    def _compile(self, body: Graph, types: Sequence[Callable[[str], Type]]) -> Program:
        first = len(types) - len(self._captures)
        fixed = {first + i: array for i, array in self._constants.items()}
        return self._compiler.program(_typed(body.clone(), types, fixed))


def _signature(given: Any) -> Optional[tuple[int, int]]:
    """dtype and rank of an array: what a body is compiled for."""
    if not isinstance(given, np.ndarray):
        return None
    return dtypes.from_numpy(given.dtype), given.ndim


def _sized(signature: Optional[tuple[int, int]]) -> Callable[[str], Type]:
    """The type of an input of this signature and any sizes, by its name."""
    if signature is None:
        return lambda name: NO_TENSOR
    dtype, ndim = signature
    return lambda name: Type(dtype, tuple(measured(name, j) for j in range(ndim)))


def _exactly(given: Any) -> Callable[[str], Type]:
    """The type of an input with the sizes of an array."""
    if not isinstance(given, np.ndarray):
        return lambda name: NO_TENSOR
    return lambda name: Type(dtypes.from_numpy(given.dtype), given.shape)


def _typed(
    graph: Graph, types: Sequence[Callable[[str], Type]], fixed: Mapping[int, np.ndarray]
) -> Graph:
    """A body for inputs of these types; some are constants."""
    rest = []
    for i, (value, type) in enumerate(zip(graph.inputs, types)):
        if i in fixed:
            value.const = fixed[i]
            value.set_type(array_type(fixed[i]))
        else:
            value.set_type(type(value.name))
            rest.append(value)
    graph.inputs = rest
    return graph


def _bind(value: Value, given: tuple[int, ...], sizes: Sizes, where: str = "") -> None:
    """Enter the sizes that a shape shows.

    Raises: ShapeError where they are not what other sizes imply.
    """
    if value.shape is None:
        return
    fits = len(value.shape) == len(given)
    for dim, size in zip(value.shape, given):
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
            f"given {given}"
        )


@lru_cache(maxsize=4096)
def _names(dim: Expr) -> tuple[Optional[str], frozenset[str]]:
    """The name of the symbol that dim is, or None; and of all symbols in it."""
    names = frozenset(symbols(dim))
    return (repr(dim) if names == {repr(dim)} else None), names


def _dense(array: np.ndarray) -> np.ndarray:
    """What kernels can read."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])


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
