"""Updates of a tensor at places that index tensors name, with the index rules of gather.py.

Of equal indices the last wins; with a reduction all of them count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, maximum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    BINARY,
    Guard,
    dims,
    elem_bytes,
    infer_same,
    known,
    normal_axis,
    require_dtype,
    required,
    size_guards,
    where_is,
)
from q7x2_ep.ops.gather import INDICES, depth, elements_guards, wide_indices

REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
# a dtype of each size, to scatter anything as it is
BITS = {1: dtypes.UINT8, 2: dtypes.UINT16, 4: dtypes.UINT32, 8: dtypes.UINT64}


def scattered(node: Node, x: np.ndarray, at: tuple, updates: np.ndarray) -> np.ndarray:
    y = x.copy()
    if node.attrs["reduction"] == "none":
        y[at] = updates
    else:
        REDUCTIONS[node.attrs["reduction"]].at(y, at, updates)
    return y


def scatter_fields(node: Node) -> dict[str, Any]:
    """dtype and scatter of a step.

    Raises: UnsupportedOp where no kernel reduces in this dtype.
    """
    reduction, dtype = node.attrs["reduction"], node.inputs[0].dtype
    if reduction == "none":
        return {"dtype": BITS[elem_bytes(node)], "scatter": reduction}
    if reduction not in REDUCTIONS:
        raise ModelError(f"{where_is(node)} reduction is {reduction!r}")
    require_dtype(node, dtype, BINARY)
    if dtype == dtypes.BOOL:  # a sum of bools is whether one is true
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
    return {"dtype": dtype, "scatter": reduction}


def update_guards(
    updates: Sequence[Dim], wanted: Sequence[Dim], axes: Iterable[int], what: str
) -> list[Guard]:
    """Along these axes there are as many updates."""
    text = "dim {} of the updates differs from that of the {}"
    return [(updates[i], wanted[i], text.format(i, what)) for i in axes]


@op("ScatterElements")
class ScatterElements:
    """y = x, then y[i with i[axis] = indices[i]] = updates[i], or that reduced with what was."""

    signature = "x: T, indices: index, updates: T -> y"
    attributes = {"axis": 0, "reduction": "none"}
    infer = infer_same

    def guards(node: Node) -> list[Guard]:
        indices, updates = dims(node, 1), dims(node, 2)
        if len(indices) != len(updates):
            raise ModelError(f"{where_is(node)} updates of {updates} for indices of {indices}")
        same = update_guards(updates, indices, range(len(indices)), "indices")
        return [*elements_guards(node), *same]

    def reference(
        node: Node, x: np.ndarray, indices: np.ndarray, updates: np.ndarray
    ) -> np.ndarray:
        at: list = list(np.indices(indices.shape, sparse=True))
        at[node.attrs["axis"]] = indices
        return scattered(node, x, tuple(at), updates)

    def lower(node: Node, b: Any) -> None:
        x, indices, updates = node.inputs
        require_dtype(node, indices.dtype, INDICES)
        b.step(
            "scatter_elements",
            inplace="x",
            x=x,
            indices=indices,
            updates=updates,
            y=node.output,
            axis=normal_axis(node, node.attrs["axis"], len(x.shape)),
            ndim=len(x.shape),
            x_shape=x.shape,
            shape=indices.shape,
            index_dtype=indices.dtype,
            **scatter_fields(node),
        )


@op("ScatterND")
class ScatterND:
    """y = x, then y[indices[i]] = updates[i], or that reduced: indices end in positions in x."""

    signature = "x: T, indices: int64, updates: T -> y"
    attributes = {"reduction": "none"}
    infer = infer_same

    def guards(node: Node) -> list[Guard]:
        x, indices = dims(node), dims(node, 1)
        if depth(node, indices) > len(x):
            raise ModelError(f"{where_is(node)} indices of shape {indices} in a tensor of {x}")
        rest = x[depth(node, indices) :]
        return size_guards(node.inputs[2:], product((*indices[:-1], *rest)))

    def reference(
        node: Node, x: np.ndarray, indices: np.ndarray, updates: np.ndarray
    ) -> np.ndarray:
        at = np.zeros(indices.shape[:-1], np.int64)  # of all x, where indices have no elements
        return scattered(node, x[None], (at, *np.moveaxis(indices, -1, 0)), updates)[0]

    def lower(node: Node, b: Any) -> None:
        x, indices, updates = node.inputs
        levels = depth(node, indices.shape)
        b.step(
            "scatter_nd",
            inplace="x",
            x=x,
            indices=wide_indices(b, node, indices),
            updates=updates,
            y=node.output,
            n=product(indices.shape[:-1]),
            depth=levels,
            dims=x.shape[:levels],
            inner=product(x.shape[levels:]),
            **scatter_fields(node),
        )


@op("q7::SliceScatter")
class SliceScatter:
    """y = x, then y[start : start + n * step : step, ..] = updates over the first dims of x.

    Shapes: x (d0, d1, ..), updates (n0, n1, .., and the dims of x behind), starts one for each n;
    steps likewise.
    Source: torch.slice_scatter, for several dims at once.
    """

    signature = "x, updates, starts -> y"
    attributes: dict = {"steps": ()}
    strided = (1,)
    infer = infer_same

    def decompose(g: Any, x: Value, updates: Value, starts: Value, steps: tuple[int, ...]) -> Value:
        parts, counts = [], updates.shape[: len(steps)]
        for i, (start, step) in enumerate(zip(known(starts), steps)):
            count = [dim if i == j else 1 for j, dim in enumerate(counts)]
            each = g.Range(g.literal(0, dtypes.INT64), _scalar(g, counts[i]), 1)
            at = g.Add(g.Mul(each, step), g.literal([start]))
            parts.append(g.Expand(g.Reshape(at, [*count, 1]), [*counts, 1]))
        return g.ScatterND(x, g.Concat(*parts, axis=-1), updates)

    def lower(node: Node, b: Any) -> None:
        (x, updates, starts), y = node.inputs, node.output
        source, place = b.view(updates), View.whole(y)
        for axis, (start, step) in enumerate(zip(known(starts), node.attrs["steps"])):
            place = place.slice(axis, start, updates.shape[axis], step)
        b.step(
            "slice_scatter",
            kernel="copy",
            inplace="x",
            x=x,
            updates=source,
            y=y,
            bytes=product(x.shape) * elem_bytes(node),
            elem_bytes=elem_bytes(node),
            ndim=len(x.shape),
            shape=updates.shape,
            x_stride=source.strides,
            y_stride=place.strides,
            y_offset=place.offset,
        )


def _scalar(g: Any, number: Dim) -> Value:
    return g.Squeeze(g.literal([number]), [0])


@op("TensorScatter")
class TensorScatter:
    """y = x, then updates along an axis from write_indices[b] on, for each b of the first dim.

    mode=circular: positions are modulo the axis. A cache of keys or values, most often.
    """

    signature = "x: T, updates: T, write_indices?: int64 -> y"
    attributes = {"axis": -2, "mode": "linear"}
    choices = {"mode": ("linear", "circular")}
    infer = infer_same

    def guards(node: Node) -> list[Guard]:
        x, updates = dims(node), dims(node, 1)
        axis = normal_axis(node, node.attrs["axis"], len(x))
        if axis == 0 or len(x) != len(updates):
            raise ModelError(f"{where_is(node)} updates of {updates} along axis {axis} of {x}")
        longest = maximum(updates[axis], x[axis])
        return [
            *update_guards(updates, x, (i for i in range(len(x)) if i != axis), "cache"),
            (longest, x[axis], "the updates are longer than the cache"),
            *size_guards(node.inputs[2:], x[0]),
        ]

    def reference(
        node: Node, x: np.ndarray, updates: np.ndarray, first: Optional[np.ndarray] = None
    ) -> np.ndarray:
        axis = node.attrs["axis"] % x.ndim
        size, n = x.shape[axis], updates.shape[axis]
        y = np.moveaxis(x.copy(), axis, 1)
        for b, rows in enumerate(np.moveaxis(updates, axis, 1)):
            at = (0 if first is None else int(first[b])) + np.arange(n)
            if node.attrs["mode"] == "circular":
                at = at % max(size, 1)
            elif n and not 0 <= at[0] <= size - n:
                raise DataError(f"{where_is(node)} write index {at[0]} of {n} rows in {size}")
            y[b, at] = rows
        return np.moveaxis(y, 1, axis)

    def lower(node: Node, b: Any) -> None:
        axis = normal_axis(node, node.attrs["axis"], len(dims(node)))
        _scatter_step(node, b, axis, circular=node.attrs["mode"] == "circular")


@op("q7::TensorScatter")
class LongerTensorScatter:
    """y = x, then zeros up to `length` along dim 2, then updates from first[b] on, for each b of
    the first dim: TensorScatter, of a cache that grows.

    Shapes: x (B, H, C, D), updates (B, H, S, D), first (B,), y (B, H, length, D), length >= C.
    """

    signature = "x, updates, first?, length -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        batch, heads, _, depth = dims(node)
        return [Type(node.inputs[0].dtype, (batch, heads, *required(node, 3, "length"), depth))]

    def decompose(g: Any, x: Value, updates: Value, first: Optional[Value], length: Value) -> Value:
        batch, heads, rows, depth = x.shape
        (size,) = known(length)
        zeros = g.Expand(g.literal(0, x.dtype), [batch, heads, size - rows, depth])
        places = () if first is None else (first,)
        return g.TensorScatter(g.Concat(x, zeros, axis=2), updates, *places, axis=2)

    def guards(node: Node) -> list[Guard]:
        x, updates, y = dims(node), dims(node, 1), node.output.shape
        return [
            (maximum(x[2], y[2]), y[2], "the cache is longer than what it becomes"),
            (maximum(updates[2], y[2]), y[2], "the updates are longer than the cache"),
            *update_guards(updates, x, (0, 1, 3), "cache"),
            *size_guards((node.input(2),), x[0]),
        ]

    lower = lambda node, b: _scatter_step(node, b, 2)


def _scatter_step(node: Node, b: Any, axis: int, circular: bool = False) -> None:
    (x, updates), first = node.inputs[:2], node.input(2)
    b.step(
        "tensor_scatter",
        inplace="x",
        x=x,
        updates=updates,
        first=None if first is None else wide_indices(b, node, first),
        y=node.output,
        batch=x.shape[0],
        outer=product(x.shape[1:axis]),
        max=x.shape[axis],
        length=node.output.shape[axis],
        n=updates.shape[axis],
        inner_bytes=product(x.shape[axis + 1 :]) * elem_bytes(node),
        circular=int(circular),
    )
