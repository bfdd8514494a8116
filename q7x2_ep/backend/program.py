"""A compiled graph: native phases, one C call each, and the host steps between them.

A model without host steps is one phase, and a run of it is a run of its Executor. Otherwise arrays
pass from phase to phase by value, and the sizes that only data tells are bound as they appear.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep import dtypes, errors
from q7x2_ep.backend.call import Call, check_output
from q7x2_ep.backend.cpu.executor import Code, Executor
from q7x2_ep.backend.cpu.library import Library
from q7x2_ep.files import aligned
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.shape import Expr, evaluate, symbols
from q7x2_ep.plan.parts import CONTENTS, HostPhase, NativePhase, Phase, Plan, Step

if TYPE_CHECKING:
    from q7x2_ep.backend.cpu.room import Room
    from q7x2_ep.backend.flow import Lane
    from q7x2_ep.backend.short import Short

Sizes = dict[str, int]


class State(NamedTuple):
    """One run: what has been made so far, and the sizes of the symbols. into: arrays that the last
    phase may write outputs to.
    """

    arrays: dict[Value, Any]
    sizes: Sizes
    into: Mapping[Value, np.ndarray] = MappingProxyType({})

    def array(self, value: Value) -> Any:
        """Raises: ShapeError where these sizes leave it without meaning."""
        if value in self.arrays:
            return self.arrays[value]
        if value.const is not None:
            return value.const
        try:
            elements = [evaluate(element, self.sizes) for element in value.elements]
        except ValueError as error:  # of shapes that no step has, for none reads their data
            raise errors.ShapeError(f"[{value.name}] {error}") from None
        return dtypes.make_array(elements, value.dtype, value.shape)


def run_phases(
    phases: Iterable[tuple[Any, list[Value]]], state: State, call: Optional[Call] = None
) -> None:
    """Runs each runner and drops what is dead after it."""
    for runner, dead in phases:
        if call is not None:
            call.go_on()
        runner.run(state, call)
        for value in dead:
            state.arrays.pop(value, None)


class HostCode(NamedTuple):
    """A node that Python runs, or the code of a native form of it; see HostPhase."""

    node: Node
    within: Optional[Code]


class Image(NamedTuple):
    """All that running a graph needs; a compiled model file holds it. is_whole: the one part takes
    the inputs of the graph and makes its outputs.
    """

    inputs: list[Value]
    outputs: list[Value]
    output_names: list[str]
    parts: list[Union[Code, HostCode]]
    is_whole: bool


class Origin(NamedTuple):
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

    def planned(self, graph: Graph, room: Optional[Room] = None) -> Program:
        """The program of a graph as it is; the weights that are packed leave it. room: for those
        of its phases.
        """
        from q7x2_ep.backend.cpu.pack import compiled
        from q7x2_ep.plan.partition import partition

        def code(phase: NativePhase, *where: Any) -> Code:
            return compiled(self.library, phase.plan, list(phase.sizes), *where)

        phases = partition(graph, self.library.target)
        readers = Counter(value for phase in phases for value in _packed(phase))
        kept = {value for value, count in readers.items() if count > 1} | {*graph.outputs}
        kept.update(value for phase in phases for value in _constants(phase))
        sizes = [p.plan.packed_bytes if isinstance(p, NativePhase) else 0 for p in phases]
        ends = list(itertools.accumulate(sizes))
        packed = (aligned if room is None else room.take)(sum(sizes))
        parts = [
            code(phase, kept, packed[end - size : end])
            if isinstance(phase, NativePhase)
            else HostCode(phase.node, phase.within and code(phase.within))
            for phase, size, end in zip(phases, sizes, ends)
        ]
        first = phases[0] if phases else None
        is_whole = isinstance(first, NativePhase) and first.plan.graph is graph  # not a part of it
        image = Image(graph.inputs, graph.outputs, graph.output_names, parts, is_whole)
        origin = Origin(graph, phases)
        return Program(image, lambda: origin, self)


class Program:
    """A graph, ready to run.

    origin: what it was made from. Thread safe, as Executor is.
    """

    def __init__(self, image: Image, origin: Callable[[], Origin], compiler: Compiler):
        self.image, self.origin = image, origin
        self.runners: list[Any] = [
            Native(part, compiler) if isinstance(part, Code) else _host().Host(part, compiler)
            for part in image.parts
        ]
        self._native = [runner for runner in self.runners if isinstance(runner, Native)]
        self._whole: Optional[Executor] = self._native[0].executor if image.is_whole else None
        self._lane: Optional[Union[Lane, Short]] = None
        self._short: Optional[Short] = None  # which is the lane once sizes are seen again
        self._sizes: Optional[Mapping[str, int]] = None  # of the run before
        self._phases = list(zip(self.runners, self._last_uses()))  # and what is dead then
        self._parts = self._phases
        self._compiler, self._seen = compiler, -1  # bodies when the parts were made
        self.is_closed = False

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
        if self.is_closed:
            raise errors.closed()
        state = State(dict(zip(self.image.inputs, arrays)), dict(sizes), self._into(call))
        parts = self._phases if state.into else self._parts  # a flow has outputs of its own
        run_phases(parts, state, None if call is None else call.of_part())
        if self._seen != self._compiler.made:
            self._join()
        if not state.into:
            if self._sizes == sizes:
                self._lane = self._lane_for(arrays, sizes)
            self._sizes = sizes
        outputs = [state.array(value) for value in self.image.outputs]
        if is_body:
            consts = [value.const is not None for value in self.image.outputs]
            return [a.copy() if is_const else a for a, is_const in zip(outputs, consts)]
        outputs = _owned(outputs, state, arrays, parts)
        return outputs if call is None else _place(outputs, call, self.image.output_names)

    def _into(self, call: Optional[Call]) -> Mapping[Value, np.ndarray]:
        """The arrays that a call gives for outputs, where the last phase makes all of them, and
        sizes are all that is told before: nothing reads a feed once they have been written to.
        """
        *before, last = self.image.parts or [None]
        if call is None or not isinstance(last, Code):
            return {}
        tell = all(isinstance(part, Code) or part.node.op == CONTENTS for part in before)
        outputs = self.image.outputs
        if not tell or not set(outputs) <= set(last.encoded.outputs):
            return {}
        given = zip(outputs, call.outputs)
        return {value: array for value, array in given if array is not None}

    @property
    def is_short(self) -> bool:
        """Whether it is one plan that is, see Executor.is_short."""
        return self._whole is not None and self._whole.is_short

    @property
    def run_again(self) -> Callable[..., Optional[list[np.ndarray]]]:
        """See Executor.run_again."""
        return self._again if self._whole is None else self._whole.run_again

    def _again(
        self, feed: Mapping[str, Any], into: Sequence[Optional[np.ndarray]] = ()
    ) -> Optional[list[np.ndarray]]:
        return None if self._lane is None or into else self._lane.run(feed)

    def _lane_for(
        self, arrays: Sequence[Any], sizes: Mapping[str, int]
    ) -> Optional[Union[Lane, Short]]:
        """Where all of the program is one flow, and its feeds and outputs are arrays; or one plan
        between steps of some kinds.
        """
        if self._short is not None:
            return self._short.saw(arrays)
        flow = self._parts[0][0] if len(self._parts) == 1 else None
        if flow is None or flow.form is None:  # a native part has none
            return None
        fed, results = self.image.inputs, self.image.outputs
        if not set(results) <= set(flow.outputs) or len(set(results)) < len(results):
            return None
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return None
        return flow.lane(dict(zip((v.name for v in fed), arrays)), results, sizes)

    def run_body(self, arrays: Sequence[Any], call: Optional[Call] = None) -> list[Any]:
        """As `run`, for inputs whose dims tell all sizes, or are unknown."""
        sizes: Sizes = {}
        given = []
        for value, array in zip(self.image.inputs, arrays):
            if isinstance(array, np.ndarray):
                array = dense(array)
                bind(value, array.shape, sizes)
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

    def _bindable(self, sizes: Mapping[str, int]) -> list[Native]:
        """The phases until the first that needs a size which only data tells."""
        known = itertools.takewhile(lambda each: sizes.keys() >= set(each.sizes), self._native)
        return list(known)

    def _join(self) -> None:
        """Make one part of every sequence of phases with control flow that C can take, as far as
        the bodies that have been compiled show.
        """
        self._seen, host = self._compiler.made, _host()
        groups = [
            list(g) for _, g in itertools.groupby(self._phases, lambda p: host.may_flow(p[0]))
        ]
        parts: list[Any] = []
        for i, group in enumerate(groups):
            if not host.may_flow(group[0][0]) or all(map(host.is_simple, (r for r, _ in group))):
                parts += group
                continue
            later = {value for g in groups[i + 1 :] for r, _ in g for value in r.inputs}
            # What comes later may be of sizes that these tell, or is made of them.
            if later or any(value.elements is not None for value in self.image.outputs):
                later.update(value for r, _ in group if host.tells(r) for value in r.inputs)
            flow = host.Flow(group, {*later, *self.image.outputs}, self._compiler)
            parts.append((flow, [value for _, dead in group for value in dead]))
        self._parts = parts
        if len(parts) > 1:
            from q7x2_ep.backend.short import short_way

            self._short = short_way(self.image, [runner for runner, _ in parts])

    def programs(self) -> Iterator[Program]:
        """This and those of the bodies in it that have been compiled."""
        yield self
        for runner in self.runners:
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
                if runner.form is not None:
                    runner.form.trim()

    def close(self) -> None:
        """Release all native memory; see Executor.close."""
        self.is_closed = True
        self._lane, self._short, self._parts = None, None, self._phases
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


def _host() -> ModuleType:
    """What runs host steps: it needs the op catalogue, which takes longer to import than a model
    without them to open.
    """
    from q7x2_ep.backend import host

    return host


def _constants(phase: Phase) -> Iterable[Value]:
    """What a phase reads as it is, not packed."""
    if isinstance(phase, NativePhase):
        return phase.plan.constants
    return (value for value in phase.node.inputs if value is not None and value.const is not None)


def _packed(phase: Phase) -> set[Value]:
    """The weights that a phase packs."""
    return {p.weight for p in phase.plan.packs} if isinstance(phase, NativePhase) else set()


class Native:
    """A native phase. form, bodies: what flows and host steps have."""

    form: Any = None
    bodies: Mapping[tuple, Program] = {}

    def __init__(self, code: Code, compiler: Compiler):
        self.inputs, self.outputs = code.encoded.inputs, code.encoded.outputs
        self.sizes = code.encoded.symbols
        self.executor = Executor(compiler.library, code, compiler.threads)
        self.close = self.executor.close

    def run(self, state: State, call: Optional[Call] = None) -> None:
        arrays, sizes = self._given(state)
        if call is not None and state.into:
            into = [state.into.get(value) for value in self.outputs]
            call = Call(into, call.stopped, call.step_ns)
        state.arrays.update(zip(self.outputs, self.executor.run(arrays, sizes, call)))

    def _given(self, state: State) -> tuple[list[np.ndarray], Sizes]:
        arrays = [dense(state.array(value)) for value in self.inputs]
        return arrays, {name: state.sizes[name] for name in self.sizes}


def bind(value: Value, given: tuple[int, ...], sizes: Sizes, where: str = "") -> None:
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


def dense(array: np.ndarray) -> np.ndarray:
    """What kernels can read."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])


def _place(outputs: list[Any], call: Call, names: Sequence[str]) -> list[Any]:
    """The outputs, in the arrays that the call gives for them."""
    for i, array in enumerate(call.outputs):
        if array is not None:
            check_output(names[i], array, outputs[i].shape, outputs[i].dtype)
            if array is not outputs[i]:
                np.copyto(array, outputs[i])
            outputs[i] = array
    return outputs


def _owned(
    results: list[Any], state: State, feeds: Sequence[Any], parts: Iterable[Any]
) -> list[Any]:
    """The results, copied where they may share memory with a feed, a constant or one another: the
    caller may change each. What it gave for them is as it wants it, and what a native part makes
    shares nothing, though it is a part of larger memory (cpu/outputs.py).
    """
    native = {value for part in parts if isinstance(part, Native) for value in part.outputs}
    made = {
        id(array)
        for value, array in state.arrays.items()
        if value in native or getattr(array, "base", None) is None
    }
    made = made - set(map(id, feeds)) | set(map(id, state.into.values()))
    owned = []
    for result in results:
        if isinstance(result, list):
            result = [item.copy() if isinstance(item, np.ndarray) else item for item in result]
        elif isinstance(result, np.ndarray) and id(result) not in made:
            try:
                result = result.copy()
            except MemoryError as error:
                raise errors.BackendError(f"[output] out of memory: {error}") from None
        made.discard(id(result))
        owned.append(result)
    return owned
