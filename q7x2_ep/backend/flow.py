"""Control flow in one C call: phases, and the bodies of their host steps, as csrc/flow.h has them.

What a program needs of a body is settled when it has run once in Python: its signature, and so its
ranks and dtypes. Read `Program.run` first, and the layout of the words in csrc/q7.h.
"""

from __future__ import annotations

from array import array as array_of
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.backend.cpu.executor import Executor
from q7x2_ep.backend.cpu.library import TENSOR_WORDS, Flow, Library, StatusError, address, fetch
from q7x2_ep.backend.cpu.pack import compiled
from q7x2_ep.errors import BackendError, closed
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.shape import Expr, symbols
from q7x2_ep.ops.common import is_movement
from q7x2_ep.ops.control import actuals, loop_operands, stacked
from q7x2_ep.plan.build import NotNative, build
from q7x2_ep.plan.parts import CONTENTS, is_data, told_by

PLAN, IF, LOOP, SCAN, FRONT = range(5)
MAX_NDIM = TENSOR_WORDS - 1
Signature = tuple[int, int]  # dtype and rank

BOOL, COUNT = (dtypes.BOOL, 0), (dtypes.INT64, 0)


class NotFlowing(Exception):
    """Something that only Python can run."""


class Encoder:
    """Words of programs, and the plans and constants that they name."""

    def __init__(self, library: Library, threads: int):
        self.library, self.threads = library, threads
        self.executors: list[Executor] = []
        self.constants: list[np.ndarray] = []
        self.sizes: list[str] = []  # that the whole flow is given

    def form(
        self,
        runners: Sequence[Any],
        inputs: Mapping[Value, np.ndarray],
        outputs: Sequence[Value],
        shown: Sequence[Value],
        sizes: Collection[str],
    ) -> Form:
        """Phases for inputs of these dtypes and ranks.

        Raises: NotFlowing.
        """
        signatures = {v: (dtypes.from_numpy(a.dtype), a.ndim) for v, a in inputs.items()}
        words, made = self.program(runners, signatures, [*outputs, *shown], sizes)
        return Form(self, words, [*signatures.values()], made, len(outputs))

    def body(self, program: Any) -> tuple[list[int], list[Signature]]:
        """The words of a compiled body, and what its outputs are.

        Raises: NotFlowing.
        """
        inputs = {value: _declared(value) for value in program.graph.inputs}
        return self.program(program.runners, inputs, program.graph.outputs, None)

    def program(
        self,
        runners: Sequence[Any],
        inputs: dict[Value, Signature],
        outputs: Sequence[Value],
        known: Optional[Collection[str]],
    ) -> tuple[list[int], list[Signature]]:
        """known: the names that it may take for sizes that no slot shows, None for a body."""
        made = _Program(self, known)
        for value, signature in inputs.items():
            made.enter(value, signature)
        if known is None:
            made.check(runners)
        for runner in runners:
            made.add(runner)
        results = [made.slot(value) for value in outputs]
        words = [len(made.types)]
        for dtype, ndim in made.types:
            words += (ndim, dtypes.size(dtype))
        words += (len(inputs), made.n_constants, *made.constants, made.n_phases, *made.phases)
        words += (len(results), *results)
        return words, [made.types[slot] for slot in results]


class Form:
    """A flow for inputs of certain dtypes and ranks. Thread safe: idle flows wait in a list, as in
    Executor.
    """

    def __init__(
        self,
        encoder: Encoder,
        words: list[int],
        inputs: list[Signature],
        outputs: list[Signature],
        n_arrays: int,
    ):
        self._words = [len(encoder.sizes), *words]
        self._encoder, self._n_arrays = encoder, n_arrays
        self._inputs = [(dtypes.DTYPES[d].numpy, n, [0] * (MAX_NDIM - n)) for d, n in inputs]
        self._outputs = [(dtypes.DTYPES[dtype].numpy, ndim) for dtype, ndim in outputs]
        self._idle: list[Flow] = []

    def run(self, arrays: Sequence[Any], sizes: Mapping[str, int]) -> Optional[list[Any]]:
        """Arrays, then the shapes of what is only shown; None where Python has to run this."""
        given = self.tensors(arrays)
        return None if given is None else self.call(given, self.sizes(sizes))

    def trim(self) -> None:
        """See Executor.trim."""
        self._idle.clear()

    def tensors(self, arrays: Sequence[Any]) -> Optional[array_of]:
        """The inputs as q7_tensors, if they are what this is for."""
        given = array_of("q")
        for array, (dtype, ndim, rest) in zip(arrays, self._inputs):
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
                return None
            if not (array.flags.c_contiguous and array.flags.aligned):
                return None
            given.append(address(array))
            given.extend(array.shape)
            given.extend(rest)
        return given

    def sizes(self, sizes: Mapping[str, int]) -> array_of:
        """Those that the flow is given."""
        return array_of("q", [sizes[name] for name in self._encoder.sizes])

    def call(self, given: array_of, sizes: array_of) -> Optional[list[Any]]:
        """See run."""
        flow = self._take()
        made = flow.run(given, sizes)
        results: Optional[list[Any]] = None
        if made is not None:
            results = []
            for i, (dtype, ndim) in enumerate(self._outputs):
                at = TENSOR_WORDS * i
                shape = tuple(made[at + 1 : at + 1 + ndim])
                results.append(fetch(made[at], shape, dtype) if i < self._n_arrays else shape)
        self._idle.append(flow)
        return results

    def _take(self) -> Flow:
        try:
            return self._idle.pop()
        except IndexError:
            encoder = self._encoder  # none is idle
        plans = [executor.native for executor in encoder.executors]
        if None in plans:
            raise closed()
        n_outputs = len(self._outputs)
        try:
            return Flow(
                encoder.library, self._words, plans, encoder.constants, n_outputs, encoder.threads
            )
        except StatusError as error:
            raise BackendError(f"[session] {error}, threads: {encoder.threads}") from None


class Lane:
    """The short way for a run of a whole model, with the shapes of the run before.

    arrays: what the model was fed then. inputs: of these, the ones that the flow reads; outputs:
    places of the model's among those of the flow.
    """

    def __init__(
        self,
        form: Form,
        arrays: Mapping[str, np.ndarray],
        inputs: Sequence[str],
        outputs: Sequence[int],
        sizes: Mapping[str, int],
    ):
        self._form, self._outputs = form, outputs
        self._given = form.tensors([arrays[name] for name in inputs])
        self._sizes = form.sizes(sizes)
        self._feeds = [
            (name, array.dtype, array.shape, inputs.index(name) if name in inputs else None)
            for name, array in arrays.items()
        ]

    def run(self, feed: Mapping[str, Any]) -> Optional[list[np.ndarray]]:
        """The outputs, or None for a feed that is not dense arrays of these dtypes and shapes."""
        if len(feed) != len(self._feeds) or self._given is None:
            return None
        given = self._given[:]
        for name, dtype, shape, i in self._feeds:
            array = feed.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                return None
            if i is not None:
                flags = array.flags
                if not (flags.c_contiguous and flags.aligned):
                    return None
                given[i * TENSOR_WORDS] = address(array)
        results = self._form.call(given, self._sizes)
        return None if results is None else [results[i] for i in self._outputs]


class _Program:
    """A program while it is written. known: see Encoder.program."""

    def __init__(self, encoder: Encoder, known: Optional[Collection[str]]):
        self.encoder, self.known = encoder, known
        self.slots: dict[Value, int] = {}
        self.types: list[Signature] = []
        self.constants: list[int] = []
        self.phases: list[int] = []
        self.n_constants = self.n_phases = 0
        self.places: dict[str, tuple[int, int]] = {}  # which slot shows a size, and where

    def enter(self, value: Value, signature: Signature) -> int:
        dtype, ndim = signature
        if not dtypes.is_dense(dtype) or ndim > MAX_NDIM:
            raise NotFlowing(value)
        slot = self.slots[value] = len(self.types)
        self.types.append(signature)
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, Expr) and symbols(dim) == {repr(dim)}:
                self.places.setdefault(repr(dim), (slot, axis))
        return slot

    def slot(self, value: Optional[Value]) -> int:
        """Where a value is; constants and sizes are put there."""
        if value is None:
            raise NotFlowing(value)
        if value in self.slots:
            return self.slots[value]
        if value.const is not None:
            array = np.require(value.const, requirements=["C", "A"]).reshape(value.const.shape)
            slot = self.enter(value, (dtypes.from_numpy(array.dtype), array.ndim))
            self.constants += (slot, len(self.encoder.constants), *array.shape)
            self.n_constants += 1
            self.encoder.constants.append(array)
            return slot
        if value.elements is None:
            raise NotFlowing(value)
        self._native(Graph("sizes", [], [value], [value.name], []))
        return self.slots[value]

    def check(self, runners: Sequence[Any]) -> None:
        """Have the run compare what a body for exact sizes is given with these, as plans compare
        what they read: it may have been compiled for others.
        """
        read = {value for r in runners if hasattr(r, "executor") for value in r.inputs}
        exact = [
            value
            for value in self.slots
            if value not in read and any(isinstance(dim, int) for dim in value.shape or ())
        ]
        if exact:
            self._native(Graph("exact", exact, [], [], []))

    def add(self, runner: Any) -> None:
        if hasattr(runner, "executor"):
            self._plan(runner.executor)
        elif runner.node.op == CONTENTS:
            slot = self.slot(runner.node.inputs[0])
            for name, i in told_by(runner.node).items():
                self.places[name] = slot, MAX_NDIM + i
        elif runner.within is not None:
            self._plan(runner.within)
            room, count = (self.slots[value] for value in runner.within.encoded.outputs)
            value = runner.node.output
            slot = self.enter(value, _declared(value))
            dims = (dim if isinstance(dim, int) else -1 for dim in value.shape)
            self._phase(FRONT, room, count, slot, *dims)
        elif runner.node.op in ("If", "q7::Deferred"):
            self._if(runner)
        elif runner.node.op == "Loop":
            self._loop(runner)
        elif runner.node.op == "Scan":
            self._scan(runner)
        elif is_movement(runner.node):
            node = runner.node
            given = dict.fromkeys(v for v in node.inputs if v is not None and is_data(v))
            names = [value.name for value in node.outputs]
            self._native(Graph(node.name, list(given), list(node.outputs), names, [node]))
        else:
            raise NotFlowing(runner.node)

    def _native(self, graph: Graph) -> None:
        """What is no phase of the program, but sizes that a body takes or a view."""
        encoder, names = self.encoder, [*self.places, *(self.known or ())]
        try:
            plan = build(graph, encoder.library.target, names)
        except NotNative as problem:
            raise NotFlowing(str(problem)) from None
        code = compiled(encoder.library, plan, names)
        self._plan(Executor(encoder.library, code, encoder.threads))

    def _phase(self, *words: int) -> None:
        self.n_phases += 1
        self.phases += words

    def _plan(self, executor: Executor) -> None:
        encoded = executor.encoded
        inputs = [self.slot(value) for value in encoded.inputs]
        for value, slot in zip(encoded.inputs, inputs):
            if self.types[slot] != _declared(value):
                raise NotFlowing(value)
        # Before outputs are entered: what a plan makes shows its sizes only when it has run.
        places = [self._place(name) for name in encoded.symbols]
        outputs = [self.enter(value, _declared(value)) for value in encoded.outputs]
        plan = len(self.encoder.executors)
        self.encoder.executors.append(executor)
        self._phase(PLAN, plan, encoded.n_values, len(encoded.steps), len(places))
        self.phases += (each for place in places for each in place)
        self.phases += (len(inputs), *inputs, len(outputs), *outputs)
        self.phases += (i for dims in (*encoded.input_dims, *encoded.output_dims) for i in dims)

    def _place(self, name: str) -> tuple[int, int]:
        if name in self.places:
            return self.places[name]
        if self.known is None or name not in self.known:
            raise NotFlowing(name)
        sizes = self.encoder.sizes
        if name not in sizes:
            sizes.append(name)
        return -1, sizes.index(name)

    def _if(self, runner: Any) -> None:
        node = runner.node
        front, captures = actuals(node, node.inputs)
        cond = self.slot(front[0]) if front else -1
        if front and self.types[cond][0] != dtypes.BOOL:
            raise NotFlowing(node)
        given, types = self._captured(captures)
        bodies: list[Optional[list[int]]] = []
        results: Optional[list[Signature]] = None
        for body in node.bodies:
            words, made = self._branch(runner, body, types)
            if made is not None and made != (results or made):
                words = None  # of another rank
            results = results or made
            bodies.append(words)
        if results is None:
            raise NotFlowing(node)
        outputs = self._outputs(node, results)
        self._phase(IF, cond, len(given), *given, len(outputs), *outputs)
        for words in [*bodies, None][:2]:
            self.phases += [0] if words is None else [1, *words]

    def _branch(
        self, runner: Any, body: Graph, types: list[Signature]
    ) -> tuple[Optional[list[int]], Optional[list[Signature]]]:
        """Nothing for one that has not run yet, or that Python has to run."""
        program = runner.compiled(body, types)
        mark = len(self.encoder.executors), len(self.encoder.constants)
        if program is not None:
            try:
                return self.encoder.body(program)
            except NotFlowing:
                del self.encoder.executors[mark[0] :], self.encoder.constants[mark[1] :]
        return None, None

    def _loop(self, runner: Any) -> None:
        node = runner.node
        (trip, cond, *carried), captures = loop_operands(node, node.inputs)
        starts = [-1 if value is None else self.slot(value) for value in (trip, cond)]
        wanted = (dtypes.INT64, dtypes.BOOL)
        if any(s >= 0 and self.types[s][0] != dtype for s, dtype in zip(starts, wanted)):
            raise NotFlowing(node)
        states = [self.slot(value) for value in carried]
        first = [COUNT, BOOL]
        words, made = self._body(runner, first + [self.types[s] for s in states], captures)
        given, _ = self._captured(captures)
        self._looped(LOOP, node, starts, states, [], given, words, made[1:])
        if made[0][0] != dtypes.BOOL:
            raise NotFlowing(node)

    def _scan(self, runner: Any) -> None:
        node, attrs = runner.node, runner.node.attrs
        axes = (*(attrs["scan_input_axes"] or ()), *(attrs["scan_output_axes"] or ()))
        if attrs["batched"] or any(axes):
            raise NotFlowing(node)
        front, captures = actuals(node, node.inputs)
        split = len(front) - attrs["num_scan_inputs"]
        states = [self.slot(value) for value in front[:split]]
        slices = [self.slot(value) for value in front[split:]]
        types = [self.types[s] for s in states]
        types += [(dtype, ndim - 1) for dtype, ndim in (self.types[s] for s in slices)]
        words, made = self._body(runner, types, captures)
        given, _ = self._captured(captures)
        self._looped(SCAN, node, [-1, -1], states, slices, given, words, made)

    def _body(
        self, runner: Any, types: list[Signature], captures: list[Value]
    ) -> tuple[list[int], list[Signature]]:
        body = runner.node.attrs["body"]
        program = runner.compiled(body, types + self._captured(captures)[1])
        if program is None:
            raise NotFlowing(runner.node)
        return self.encoder.body(program)

    def _looped(
        self,
        kind: int,
        node: Node,
        starts: list[int],
        states: list[int],
        slices: list[int],
        captures: list[int],
        words: list[int],
        made: list[Signature],
    ) -> None:
        """made: the states and the scanned values of an iteration."""
        n = len(states)
        if made[:n] != [self.types[s] for s in states]:
            raise NotFlowing(node)
        results = [*made[:n], *((dtype, ndim + 1) for dtype, ndim in made[n:])]
        outputs = self._outputs(node, results)
        scanned = len(made) - n
        backward = [*(node.attrs.get("scan_input_directions") or [0] * len(slices))]
        backward += node.attrs.get("scan_output_directions") or [0] * scanned
        given = [*states, *slices, *captures]
        self._phase(kind, *starts, n, len(slices), len(given), *given, len(outputs), *outputs)
        self.phases += backward
        body = node.attrs["body"]
        for i, (_, ndim) in enumerate(made[n:], len(body.outputs) - scanned):
            shape = stacked(body, i, []).shape
            if len(shape) != ndim + 1:
                raise NotFlowing(node)
            self.phases += shape
        self.phases += words

    def _captured(self, captures: list[Value]) -> tuple[list[int], list[Signature]]:
        """The slots of those that are no constants, which bodies hold themselves; the types of
        all.
        """
        given = [self.slot(value) for value in captures if value.const is None]
        slots = iter(given)
        types = [
            self.types[next(slots)]
            if value.const is None
            else (dtypes.from_numpy(value.const.dtype), value.const.ndim)
            for value in captures
        ]
        return given, types

    def _outputs(self, node: Node, made: list[Signature]) -> list[int]:
        for value, signature in zip(node.outputs, made):
            known = value.dtype > 0 and value.shape is not None
            if len(node.outputs) != len(made) or (known and _declared(value) != signature):
                raise NotFlowing(node)
        return [self.enter(value, signature) for value, signature in zip(node.outputs, made)]


def _declared(value: Value) -> Signature:
    """Raises: NotFlowing where only a run tells."""
    if value.shape is None:
        raise NotFlowing(value)
    return value.dtype, len(value.shape)
