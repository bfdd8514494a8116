"""Graph -> Plan: every node becomes a view or a few C steps.

The Builder walks the nodes in order. A movement op costs nothing while its result can be expressed
as a View; an op that needs dense data has the view copied first, once. What an op turns into is
written in its catalogue entry (`lower`), which talks to the Builder through its methods from `step`
to `guard` only, and reads `graph`, `target`, `constants` and `threads`. Lifetimes and sharing of
storage are settled afterwards (memory.py). Read ops/__init__.py first.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.dtypes import FLOAT
from q7x2_ep.errors import ModelError, PlanError, Q7Error, UnsupportedOp
from q7x2_ep.files import PACKED_ALIGN
from q7x2_ep.ir.core import Graph, Node, Type, Value, misfit, where_is
from q7x2_ep.ir.shape import Dim, at_least, ceildiv, product, symbol, symbols
from q7x2_ep.ir.view import View, channels_last_strides, contiguous_strides, joined
from q7x2_ep.ops import find
from q7x2_ep.ops.common import MAX_NDIM
from q7x2_ep.ops.lazy import Joined
from q7x2_ep.plan.halves import narrowest
from q7x2_ep.plan.memory import THREADS, Embedding, Sharing, Storage, settle
from q7x2_ep.plan.parts import Guard, Operand, Pack, Plan, Step, WinogradPack
from q7x2_ep.plan.schedule import (
    accesses_of,
    reorder,
    untouched_before,
)
from q7x2_ep.plan.target import KernelRow, Target

VALUES_PER_STEP = 8  # capacity of one `values` step


class NotNative(Exception):
    """Some nodes of a graph have no native form: why, by node."""

    def __init__(self, reasons: dict[Node, str]):
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons


def build(graph: Graph, target: Target, sizes: Collection[str] = ()) -> Plan:
    """Plan a verified graph for a target. sizes: symbols that are bound before the plan runs,
    beside those of the graph's inputs.

    Raises: NotNative with every node that has no native form, ModelError for one that contradicts
    itself.
    """
    builder = lowered(graph, target, sizes)
    builder.deliver_outputs()
    builder.arrange()
    return builder.plan


def lowered(graph: Graph, target: Target, sizes: Collection[str] = ()) -> Builder:
    """What build() makes a plan of: every node's steps, and how each value is stored."""
    builder = Builder(graph, target)
    known = set(sizes).union(*(symbols(dim) for v in graph.inputs for dim in v.shape or ()))
    for size, text in graph.guards:
        if symbols(size) <= known:  # else no size here rests on it
            builder.plan.guards.append(Guard(size, 0, text, "ge"))
    reasons = _refused(graph.nodes, known)
    for node in () if reasons else graph.nodes:  # to lower takes longer than all of that
        try:
            builder.lower_node(node)
        except UnsupportedOp as problem:
            reasons[node] = _reason(node, problem)
            for output in node.outputs:
                if output.shape is not None and output.dtype != dtypes.UNKNOWN:
                    builder.allocate(output)
        except (Q7Error, MemoryError):
            raise
        except Exception as error:  # a malformed model can break any assumption of lower
            raise ModelError(misfit(node, error)) from error
    if reasons:
        raise NotNative(reasons)
    return builder


def _refused(nodes: Iterable[Node], known: set[str]) -> dict[Node, str]:
    """The nodes that have nothing for C, and why; what tells sizes is behind them."""
    reasons: dict[Node, str] = {}
    for node in nodes:
        try:
            check_native(node, known)
        except UnsupportedOp as problem:
            reasons[node] = _reason(node, problem)
            for output in node.outputs:
                told = (*(output.shape or ()), *(output.elements or ()))
                known.update(*(symbols(dim) for dim in told))
    return reasons


def _reason(node: Node, problem: UnsupportedOp) -> str:
    return problem.message.removeprefix(where_is(node)).strip()


def check_native(node: Node, sizes: Collection[str]) -> None:
    """Raises: UnsupportedOp where the operands of a node, or its sizes, are nothing for C."""
    where = where_is(node)
    for value in (*node.inputs, *node.outputs):
        if value is not None and (value.shape is None or not dtypes.is_dense(value.dtype)):
            kind = "of unknown rank" if value.is_unknown else dtypes.type_string(value.dtype)
            raise UnsupportedOp(f"{where} has no kernel for {value.name!r}, which is {kind}")
    for value in node.outputs:
        for dim in (*value.shape, *(value.elements or ())):
            if not symbols(dim) <= sizes:
                raise UnsupportedOp(f"{where} the sizes of {value.name!r} depend on data")


class Builder:
    """The one interface between op entries and the plan."""

    def __init__(self, graph: Graph, target: Target):
        self.graph = graph
        self.target = target
        self.plan = Plan(graph)
        self.sharings: list[Sharing] = []
        self.embeddings: list[Embedding] = []
        self.threads = symbol(THREADS)
        self.constants = target.constants
        self._node: Optional[Node] = None
        self._views: dict[Value, View] = {}
        self._dense: dict[tuple[Value, tuple[Dim, ...]], View] = {}
        self._storages: dict[Value, Storage] = {}
        self._packed: dict[tuple, Operand] = {}
        self._guarded: set[Dim] = set()  # dims that bind holds above 0
        for i, value in enumerate(graph.inputs):
            if value.shape is not None and dtypes.is_dense(value.dtype):
                self._new_storage(value, "input", i)

    # What op entries use

    def step(
        self,
        op: str,
        /,
        kernel: Optional[str] = None,
        inplace: Optional[str] = None,
        tiles: bool = True,
        dtypes: Collection[str] = (),
        **args: Any,
    ) -> None:
        """Emit one step of ops.def row `op`; `args` gives every operand and field of the row by
        name.

        kernel: a family of kernels.def; tiles, dtypes: as of Target.kernel. inplace: the input
        whose memory the first output may take over.
        """
        row = self.target.ops[op]
        for f in row.fields:
            if f.count > 1 and len(args.get(f.name, ())) > f.count:
                raise UnsupportedOp(f"{op} takes up to {f.count} dims, given {args[f.name]}")
        operands: dict[str, Optional[Operand]] = {}
        writes: list[tuple[str, Any]] = []
        for operand in row.operands:
            given = args.pop(operand.name, None)
            if operand.kind in ("in", "opt"):
                operands[operand.name] = self._read(given)
            else:
                operands[operand.name] = None  # keeps the order of the row
                writes.append((operand.name, operand.kind, given))
        index = len(self.plan.steps)
        for name, kind, given in writes:
            operands[name] = self._scratch(given) if kind == "scratch" else self._write(given)
        for operand_at in operands.values():
            if operand_at is not None:
                operand_at.storage.touch(index)
        fields = {f.name: args.pop(f.name) for f in row.fields if f.name in args}
        missing = [f.name for f in row.fields if f.name not in fields]
        if missing or args:
            raise PlanError(
                f"[{op}] lower must give every field of ops.def: missing {missing}, "
                f"unknown {list(args)}"
            )
        row_kernel = self.target.kernel(kernel, dtypes, tiles) if kernel else None
        node = self._node
        name, sources = (node.name, node.sources) if node else (op, ())
        self.plan.steps.append(Step(op, row_kernel, operands, fields, name, sources))
        if inplace:
            self._offer_inplace(index, inplace, operands, writes[0][0])

    def kernel(self, family: str, tiles: bool = True, dtypes: Collection[str] = ()) -> KernelRow:
        """As Target.kernel: the row of kernels.def that serves a family on this target."""
        return self.target.kernel(family, dtypes, tiles)

    def view(self, value: Value) -> View:
        """How a value is stored; its strides may be anything."""
        if value not in self._views:
            if value.const is not None:
                self._constant(value)
            elif value.producer is None and value.elements is not None:
                self._write_elements(value)
            else:
                raise PlanError(f"{value} is used before it is produced")
        return self._views[value]

    def contiguous(self, value: Value) -> View:
        """A dense view of a value, copied into one if need be."""
        view = self.view(value)
        return (
            view if view.is_contiguous() else self._copied(value, contiguous_strides(value.shape))
        )

    def channels_last(self, value: Value, dense: bool = False) -> View:
        """A view of (N, C, ..) with the channels of a pixel side by side, copied if need be; dense:
        with nothing between the pixels.
        """
        view = self.view(value)
        if view.channels_last().is_contiguous() or (view.is_channels_last() and not dense):
            return view
        return self._copied(value, channels_last_strides(value.shape))

    def copy(self, source: View, target: View) -> None:
        """Emit a strided copy between views of one shape and dtype.

        Where both are dense and the source is all of its storage, the copy is dropped later if the
        source can be produced in its place in the target: that is how Concat along the outer axis
        comes for free.
        """
        if source.is_contiguous() and target.is_contiguous() and self._is_whole(source):
            at = self._operand(target)
            source_storage = self._storages[source.storage]
            self.embeddings.append(
                Embedding(len(self.plan.steps), source_storage, at.storage, at.offset)
            )
        shape, strides = source.shape or (1,), [view.strides or (1,) for view in (source, target)]
        if len(shape) > MAX_NDIM:
            shape, strides = joined(shape, strides)
        self.step(
            "copy",
            kernel="copy",
            x=source,
            y=target,
            elem_bytes=dtypes.size(source.storage.dtype),
            ndim=len(shape),
            shape=shape,
            x_stride=strides[0],
            y_stride=strides[1],
            x_offset=0,
            y_offset=0,
        )

    def allocate(self, value: Value, strides: Optional[tuple[Dim, ...]] = None) -> View:
        """Storage for a value in a given (dense) memory order; row major by default."""
        if value not in self._views:
            self._new_storage(value, "arena", -1)
            view = View(value, value.shape, strides or contiguous_strides(value.shape))
            self._views[value] = view
        return self._views[value]

    def is_placed(self, value: Value) -> bool:
        """Whether a value has a view by now: a Concat is placed by the first of its parts."""
        return value in self._views

    def alias(self, value: Value, view: View) -> None:
        """Declare that a value is a view of another's storage."""
        self._views[value] = view

    def packed(
        self,
        k: int,
        n: int,
        k_stride: int,
        n_stride: int,
        *weights: Value,
        matrices: Optional[int] = None,
        taps: int = 1,
        tap_stride: int = 0,
        narrow: bool = False,
        kernel: str = "gemm",
    ) -> Operand:
        """Constants packed at load into the panels that the target's kernel of a family reads; two
        share every panel half and half.

        b[i, j] is element i * k_stride + j * n_stride of each weight, so that strides select a
        transposition; with taps, b[(t, i), j] is t * tap_stride further on. Weights are
        `matrices` equal parts, by default those along the first of three dims, whose panels follow
        one another. narrow: in 16 bits where those hold them (plan/halves.py).
        """
        nr = self.kernel(kernel).nr
        key = (weights, nr, k, n, k_stride, n_stride, matrices, taps, tap_stride, narrow)
        if key not in self._packed:
            plan, width = self.plan, nr // len(weights)
            starts = self._starts(weights, n_stride)
            const = weights[0].const
            if matrices is None:
                matrices = const.shape[0] if const.ndim == 3 else 1
            dtype = narrowest(self._arrays(weights)) if narrow else FLOAT
            element = dtypes.size(dtype)
            size = int(ceildiv(n, width)) * nr * k * element
            for i, (begin, end) in enumerate(zip(starts, starts[1:])):
                strides = (end - begin, 1) if n_stride == 1 else (1, k)
                for first, last in _pieces(begin, end, nr):
                    at = plan.packed_bytes + first // nr * nr * k * element
                    fills = last % nr == 0 or last == n  # its last panel
                    lanes = nr - first % nr if fills else last - first
                    layout = (k, last - first, *strides, at, lanes, first % nr, taps, tap_stride)
                    plan.packs.append(Pack(weights[0], i, 1, nr, *layout, dtype, first - begin))
            whole = () if starts else itertools.product(range(matrices), enumerate(weights))
            for matrix, (i, weight) in whole:
                at = plan.packed_bytes + matrix * size
                layout = (k, n, k_stride, n_stride, at, width, i * width, taps, tap_stride, dtype)
                plan.packs.append(Pack(weight, matrix, matrices, nr, *layout))
            self._reserve(key, weights[0], matrices * size, dtype)
        return self._packed[key]

    def transformed(
        self, w: Value, groups: int, kernel: tuple[int, int, int], rows: int, stride: int
    ) -> Operand:
        """Kernels (M, C, planes, kh, kw) transformed at load for Winograd's algorithm, and packed:
        those of each group as `rows` rows of its filters.
        """
        nr = self.kernel("winograd").nr
        key = ("winograd", w, groups, kernel, stride)
        if key not in self._packed:
            plan, n = self.plan, w.shape[0] // groups
            size = ceildiv(n, nr) * nr * rows * dtypes.size(FLOAT)
            for group in range(groups):
                at = plan.packed_bytes + group * size
                parts = (nr, n, w.shape[1], *kernel, stride, at)
                plan.packs.append(WinogradPack(w, group, groups, *parts))
            self._reserve(key, w, groups * size)
        return self._packed[key]

    def guard(self, left: Dim, right: Dim, text: str, is_assumed: bool = False) -> None:
        """Have bind check that two dims are equal."""
        if left != right:
            text = f"{where_is(self._node)} {text}"
            self.plan.guards.append(Guard(left, right, text, is_assumed=is_assumed))

    # What build() uses

    def lower_node(self, node: Node) -> None:
        """Emit the steps of one node, or enter its outputs as views."""
        self._node = node
        if all(output.elements is not None for output in node.outputs):
            for output in node.outputs:
                self._write_elements(output)
            return
        entry = find(node.op)
        if not (hasattr(entry, "lower") or hasattr(entry, "view") or hasattr(entry, "views")):
            raise UnsupportedOp(f"{where_is(node)} has no kernel")
        for left, right, text in entry.guards(node) if hasattr(entry, "guards") else ():
            self.guard(left, right, text)
        for left, right, text in entry.assumptions(node) if hasattr(entry, "assumptions") else ():
            self.guard(left, right, text, is_assumed=True)
        self._guard_sizes(node)
        if hasattr(entry, "views"):
            for output, view in zip(node.outputs, entry.views(node, self.view(node.inputs[0]))):
                self.alias(output, view)
        elif hasattr(entry, "view"):
            self._lower_movement(node, entry)
        else:
            entry.lower(node, self)

    def _guard_sizes(self, node: Node) -> None:
        """Have bind check that no output has a negative dim: arithmetic on shapes may give one."""
        for dim in dict.fromkeys(dim for output in node.outputs for dim in output.shape):
            if not at_least(dim, 0) and dim not in self._guarded:
                self._guarded.add(dim)
                text = f"{where_is(node)} a dim of {dim} elements, which is negative"
                self.plan.guards.append(Guard(dim, 0, text, "ge"))

    def _lower_movement(self, node: Node, entry: Any) -> None:
        source = node.inputs[0]
        view = entry.view(node, self.view(source))
        if view is None:
            view = self._shuffled(self.view(source), node.output)
        if view is None and not self.view(source).is_contiguous():
            view = entry.view(node, self.contiguous(source))
        if view is not None:
            self.alias(node.output, view)
        elif hasattr(entry, "lower"):
            entry.lower(node, self)
        else:
            raise PlanError(f"{where_is(node)} no view of a dense input, and no lower")

    def _shuffled(self, x: View, y: Value) -> Optional[View]:
        """y, x with its groups of channels as one dim, as an image with its channels last, if x
        lies like one: ShuffleNet's shuffle is one copy of pixels then, not two through planes.
        """
        ndim = len(y.shape)
        if ndim < 3 or len(x.shape) <= ndim or x.strides[-1] == 1 or 1 not in x.strides[1:]:
            return None
        if x.shape[:1] + x.shape[2 - ndim :] != y.shape[:1] + y.shape[2:]:
            return None
        strides = channels_last_strides(y.shape)
        if View(y, y.shape, strides).reshape(x.shape) is None:
            return None
        image = self.allocate(y, strides)
        self.copy(x, image.reshape(x.shape))
        return image

    def deliver_outputs(self) -> None:
        """Place what is returned in the caller's buffers: written there at once, or copied at the
        end.

        Raises: NotNative with the movements that no copy follows.
        """
        self._node = None
        reasons: dict[Node, str] = {}
        for i, value in enumerate(self.graph.outputs):
            view = self.view(value)
            storage = self._storages[view.storage]
            if view.is_contiguous() and self._is_whole(view) and storage.space == "arena":
                storage.space, storage.index = "output", i
            else:
                copied = self.graph.new_value(Type(value.dtype, value.shape), f"{value.name}.out")
                self._new_storage(copied, "output", i)
                try:
                    self.copy(view, self._views[copied])
                except UnsupportedOp as problem:  # then the view is numpy's
                    reasons[value.producer] = problem.message
        if reasons:
            raise NotNative(reasons)

    def arrange(self) -> None:
        """Settle the order of the steps, then lifetimes and sharing of memory."""
        plan = self.plan
        accesses = accesses_of(plan.steps, self.target.ops)
        fresh = untouched_before(accesses, [(e.step, e.target) for e in self.embeddings])
        embeddings = [e for e in self.embeddings if e.step in fresh]
        plan.order = reorder(accesses)
        plan.accesses = accesses
        at = {step: new for new, step in enumerate(plan.order)}
        for storage in plan.storages:
            storage.first = storage.last = -1
        for new, step in enumerate(plan.order):
            for access in accesses[step]:
                access.storage.touch(new)
        plan.steps = settle(
            [plan.steps[step] for step in plan.order],
            plan.storages,
            sorted((e._replace(step=at[e.step]) for e in embeddings), key=lambda e: e.step),
            sorted((s._replace(step=at[s.step]) for s in self.sharings), key=lambda s: s.step),
        )

    # Private

    @staticmethod
    def _arrays(weights: tuple[Value, ...]) -> list[np.ndarray]:
        consts = [weight.const for weight in weights]
        return [part for c in consts for part in (c.parts if isinstance(c, Joined) else [c])]

    def _starts(self, weights: tuple[Value, ...], n_stride: int) -> list[int]:
        """The columns at which the parts of a Joined weight begin, and the end, if they are side by
        side in panels; else none, and weights are put together.
        """
        joined, axis = weights[0].const, 1 if n_stride == 1 else 0
        if len(weights) == 1 and isinstance(joined, Joined) and joined.axis == axis:
            sizes = (part.shape[axis] for part in joined.parts)
            return list(itertools.accumulate(sizes, initial=0))
        for weight in weights:
            if isinstance(weight.const, Joined):
                weight.const = weight.const.whole
        return []

    def _copied(self, value: Value, strides: tuple[Dim, ...]) -> View:
        """A copy in another memory order, one for all readers."""
        key = value, strides
        if key not in self._dense:
            dense = self.graph.new_value(Type(value.dtype, value.shape), f"{value.name}.dense")
            self._dense[key] = self.allocate(dense, strides)
            self.copy(self.view(value), self._dense[key])
        return self._dense[key]

    def _new_storage(self, value: Value, space: str, index: int) -> Storage:
        storage = Storage(value.name, product(value.shape) * dtypes.size(value.dtype), space, index)
        self._storages[value] = storage
        self.plan.storages.append(storage)
        if space != "arena":
            self._views[value] = View.whole(value)
        return storage

    def _reserve(self, key: tuple, weight: Value, size: int, dtype: int = FLOAT) -> None:
        """Enter so many bytes behind what is packed so far as the operand of a key."""
        storage = Storage(f"{weight.name}.packed", 0, "constant", 0)
        self._packed[key] = Operand(storage, self.plan.packed_bytes, dtype=dtype)
        self.plan.packed_bytes += int(ceildiv(size, PACKED_ALIGN)) * PACKED_ALIGN

    def _is_whole(self, view: View) -> bool:
        """Whether a view shows every element of its storage."""
        return view.offset == 0 and product(view.shape) == product(view.storage.shape)

    def _constant(self, value: Value) -> None:
        self._new_storage(value, "constant", len(self.plan.constants))
        self.plan.constants.append(value)

    def _write_elements(self, value: Value) -> None:
        """Materialise a tensor whose contents are known: dims, most often."""
        whole = self.allocate(value)
        elements = [int(e) if isinstance(e, bool) else e for e in value.elements]
        flat = View(value, (len(elements),), (1,))
        for start in range(0, len(elements), VALUES_PER_STEP):
            chunk = elements[start : start + VALUES_PER_STEP]
            y = flat.slice(0, start, len(chunk)) if len(elements) > VALUES_PER_STEP else whole
            self.step("values", y=y, dtype=value.dtype, n=len(chunk), values=chunk)

    def _read(self, given: Union[Value, View, Operand, None]) -> Optional[Operand]:
        if given is None or isinstance(given, Operand):
            return given
        view = given if isinstance(given, View) else self.contiguous(given)
        return self._operand(view)

    def _write(self, given: Union[Value, View, None]) -> Optional[Operand]:
        if given is None:
            return None
        return self._operand(given if isinstance(given, View) else self.allocate(given))

    def _operand(self, view: View) -> Operand:
        element = dtypes.size(view.storage.dtype)
        size = product(view.shape) * element if view.is_contiguous() else None
        return Operand(self._storages[view.storage], view.offset * element, size)

    def _scratch(self, size_bytes: Optional[Dim]) -> Optional[Operand]:
        if size_bytes is None or size_bytes == 0:
            return None
        storage = Storage("scratch", size_bytes, "arena", -1)
        self.plan.storages.append(storage)
        return Operand(storage)

    def _offer_inplace(
        self, step: int, name: str, operands: dict[str, Optional[Operand]], target: str
    ) -> None:
        source, into = operands[name], operands[target]
        others = [
            o.storage for n, o in operands.items() if o is not None and n not in (name, target)
        ]
        if source is not None and source.offset == 0 and into.offset == 0:
            sizes = source.size, into.size
            self.sharings.append(Sharing(step, source.storage, into.storage, others, *sizes))


def _pieces(begin: int, end: int, nr: int) -> list[tuple[int, int]]:
    """Columns [begin, end) cut where panels begin, but for whole ones side by side: no piece writes
    a panel's columns that are another's, in whatever order they are packed.
    """
    inner = (-(-begin // nr) * nr, end // nr * nr)
    cuts = sorted({begin, end, *(cut for cut in inner if begin < cut < end)})
    return list(zip(cuts, cuts[1:]))
