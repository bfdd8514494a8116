"""The steps that Python runs: an op's reference, or control flow over bodies that are programs.

Where the bodies that have been compiled allow it, C runs a sequence of them in one call (flow.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep import dtypes, errors
from q7x2_ep.backend.call import Call
from q7x2_ep.backend.cpu.executor import Executor
from q7x2_ep.backend.flow import Encoder, Form, Lane, NotFlowing
from q7x2_ep.backend.numpy import Evaluation
from q7x2_ep.backend.program import (
    Compiler,
    HostCode,
    Native,
    Program,
    Sizes,
    State,
    bind,
    dense,
    run_phases,
)
from q7x2_ep.ir.core import NO_TENSOR, Graph, Node, Type, Value, array_type, where_is
from q7x2_ep.ir.shape import Dim, measured, substitute, symbols
from q7x2_ep.ops import find
from q7x2_ep.ops.common import is_movement
from q7x2_ep.ops.control import actuals
from q7x2_ep.plan.parts import CONTENTS, is_data, told_by

MAX_EXACT = 4  # variants of a body for exact sizes
MAX_FAILURES = 8  # of a flow, before Python keeps its phases


class Host:
    """A host step."""

    form: Optional[Form] = None

    def __init__(self, code: HostCode, compiler: Compiler):
        self.node, self._entry = code.node, find(code.node.op)
        self.inputs = [value for value in self.node.inputs if value is not None]
        self.outputs = self.node.outputs
        self.within: Optional[Executor] = None
        if code.within is not None:
            self.within = Executor(compiler.library, code.within, compiler.threads)
        self._function = compute(code.node) if hasattr(self._entry, "reference") else None
        self._compiler = compiler
        self._captures = actuals(code.node, code.node.inputs)[1] if code.node.bodies else []
        self._constants = {  # of the captures, by their place among them
            i: value.const for i, value in enumerate(self._captures) if value.const is not None
        }
        self.bodies: dict[tuple, Program] = {}
        self._last: dict[tuple, Program] = {}  # what ran last, by body and signature

    def run(self, state: State, call: Optional[Call] = None) -> None:
        if call is None or call.step_ns is None:
            self._run(state, call)
            return
        start = time.perf_counter_ns()
        self._run(state, Call(stopped=call.stopped))
        call.step_ns.append(time.perf_counter_ns() - start)

    def _run(self, state: State, call: Optional[Call]) -> None:
        if self.within is not None:
            self._run_within(self.within, state)
            return
        node = self.node
        inputs = [None if value is None else state.array(value) for value in node.inputs]
        try:
            with np.errstate(all="ignore"):
                results = self._compute(inputs, state.sizes, call)
        except errors.Q7Error:
            raise
        except MemoryError as error:
            raise errors.BackendError(f"{where_is(node)} out of memory: {error}") from error
        except Exception as error:
            given = ", ".join(map(_describe, inputs))
            raise errors.DataError(
                f"{where_is(node)} cannot be computed for ({given}): {str(error) or repr(error)}"
            ) from error
        if len(results) < len(node.outputs):
            raise errors.InternalError(
                f"{where_is(node)} made {len(results)} of {len(node.outputs)} outputs"
            )
        for value, result in zip(node.outputs, results):
            state.arrays[value] = self._checked(value, result, state.sizes)

    def _compute(self, inputs: list, sizes: Sizes, call: Optional[Call]) -> tuple:
        node, entry = self.node, self._entry
        if hasattr(entry, "control"):
            return tuple(entry.control(node, partial(self._run_body, call), *inputs))
        if self._function is None:
            return Evaluation(None, sizes).evaluate(node, inputs)
        results = self._function(*inputs)
        return results if isinstance(results, tuple) else (results,)

    def _run_within(self, executor: Executor, state: State) -> None:
        arrays = [dense(state.array(value)) for value in executor.encoded.inputs]
        room, count = executor.run(arrays, {s: state.sizes[s] for s in executor.encoded.symbols})
        value = self.node.output
        shape = tuple(dim if isinstance(dim, int) else int(count[0]) for dim in value.shape)
        state.arrays[value] = room[: math.prod(shape)].reshape(shape)
        bind(value, shape, state.sizes)

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
            result = dtypes.of_any_width(np.asarray(result))
        bind(value, result.shape, sizes, f"{where_is(self.node)} ")
        if self.node.op == CONTENTS:
            numbers = result.ravel().tolist()
            sizes.update((name, numbers[i]) for name, i in told_by(self.node).items())
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
        program = self._last[key] = self._program(body, key, arrays)
        return program.run_body(rest, call)

    def _program(self, body: Graph, key: tuple, arrays: Sequence[Any]) -> Program:
        """A body for these dtypes and ranks; for the sizes of what it reads, if they decide a
        branch inside.
        """
        bodies = self.bodies
        if key not in bodies:
            bodies[key] = self._compile(body, self._types(body, key[1]))
        program = bodies[key]
        if not program.branches:
            return program
        reads = [bool(value.users) or body.is_output(value) for value in body.inputs]
        shapes = [getattr(a, "shape", None) if read else None for a, read in zip(arrays, reads)]
        exact = (*key, tuple(shapes))
        if exact not in bodies:
            if sum(known[:2] == key for known in list(bodies)) > MAX_EXACT:  # others may add
                return program
            bodies[exact] = self._compile(
                body,
                [  # a size of what is not read must not be told in those of another input
                    _exactly(array) if read else _sized({}, signature, None)
                    for array, signature, read in zip(arrays, key[1], reads)
                ],
            )
        return bodies[exact]

    def _types(self, body: Graph, signatures: Sequence[Any]) -> list[Callable[[str], Type]]:
        """The type of each input of a body, by its name, of any sizes."""
        first = len(signatures) - len(self._captures)
        outer = [None] * first + self._captures
        sizes = _sizes_within(body.inputs[first:], self._captures)
        return [*map(partial(_sized, sizes), signatures, outer)]

    def _compile(self, body: Graph, types: Sequence[Callable[[str], Type]]) -> Program:
        first = len(types) - len(self._captures)
        fixed = {first + i: array for i, array in self._constants.items()}
        return self._compiler.program(_typed(body.clone(), types, fixed))


def compute(node: Node) -> Callable[..., Any]:
    """What its op's reference makes of arrays."""
    entry = find(node.op)
    return entry.prepared(node) if hasattr(entry, "prepared") else partial(entry.reference, node)


def may_flow(runner: Any) -> bool:
    """Whether a phase may be a part of a flow: its bodies, which have run, all are plans."""
    if isinstance(runner, Native) or is_movement(runner.node) or runner.within is not None:
        return True
    if tells(runner):
        return True
    return any(all(map(may_flow, program.runners)) for program in runner.programs())


def tells(runner: Any) -> bool:
    """Whether a phase only makes the numbers in a value known."""
    return isinstance(runner, Host) and runner.node.op == CONTENTS


def is_simple(runner: Any) -> bool:
    """Whether a flow gains nothing by a phase: it is a plan, or only a view in numpy."""
    return isinstance(runner, Native) or is_movement(runner.node)


class Flow:
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
            if isinstance(runner, Host) and runner.node.binds and not tells(runner)
            for value in runner.outputs
            if value not in needed
        ]
        self._tellers = [  # what a flow does for them stays inside of it
            runner
            for runner, _ in phases
            if tells(runner) and runner.inputs[0] in (*self.inputs, *self.outputs)
        ]
        self.form: Optional[Form] = None
        self._failures = 0

    def run(self, state: State, call: Optional[Call] = None) -> None:
        is_plain = call is None or (call.stopped is None and call.step_ns is None)
        tries = is_plain and self._failures < MAX_FAILURES
        if tries and self._flow(state):
            return
        run_phases(self._phases, state, call)
        if tries:
            self._failures += 1
            self.form = None

    def _flow(self, state: State) -> bool:
        form = self.form
        if form is None:
            try:
                form = self.form = self._build(state)
            except NotFlowing:
                self._failures = MAX_FAILURES
                return False
        arrays = [state.array(value) for value in self.inputs]
        arrays = [dense(a) if isinstance(a, np.ndarray) else a for a in arrays]
        results = form.run(arrays, state.sizes)
        if results is None:
            return False
        for value, result in zip(self.outputs, results):
            state.arrays[value] = result
            bind(value, result.shape, state.sizes)
        for value, shape in zip(self._shown, results[len(self.outputs) :]):
            bind(value, shape, state.sizes)
        for runner in self._tellers:
            runner.run(state)
        return True

    def lane(
        self, feeds: Mapping[str, Any], results: Sequence[Value], sizes: Mapping[str, int]
    ) -> Optional[Lane]:
        """For these sizes, of a flow that is all of a program, if it has run."""
        form = self.form  # which another thread may take away
        if form is None:
            return None
        inputs = [value.name for value in self.inputs]
        return Lane(form, feeds, inputs, [self.outputs.index(v) for v in results], sizes)

    def _build(self, state: State) -> Form:
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


def _signature(given: Any) -> Optional[tuple[int, int]]:
    """dtype and rank of an array: what a body is compiled for."""
    if not isinstance(given, np.ndarray):
        return None
    return dtypes.from_numpy(given.dtype), given.ndim


def _sizes_within(inputs: Sequence[Value], captured: Sequence[Value]) -> dict[Dim, Dim]:
    """The sizes that the graph around a body knows of what it captures, in symbols of the body:
    what is one size there is one here.
    """
    dims = [
        (dim, measured(value.name, axis))
        for value, outer in zip(inputs, captured)
        for axis, dim in enumerate(outer.shape or ())
    ]
    own = {repr(dim): symbol for dim, symbol in dims if symbols(dim) == {repr(dim)}}
    return {
        dim: substitute(dim, own) if symbols(dim) <= own.keys() else symbol for dim, symbol in dims
    }


def _sized(
    sizes: Mapping[Dim, Dim], signature: Optional[tuple[int, int]], captured: Optional[Value]
) -> Callable[[str], Type]:
    """The type of an input of this signature, by its name: of any sizes, but for those that the
    graph around it knows of what it captures.
    """
    if signature is None:
        return lambda name: NO_TENSOR
    dtype, ndim = signature
    shape = captured.shape if captured is not None and captured.shape else (None,) * ndim
    return lambda name: Type(
        dtype,
        tuple(measured(name, j) if dim is None else sizes[dim] for j, dim in enumerate(shape)),
    )


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


def _describe(given: Any) -> str:
    if isinstance(given, (np.ndarray, np.generic)):
        return f"{given.dtype}{list(given.shape)}"
    return "_" if given is None else type(given).__name__
