"""Selection by index tensors. Negative indices count from the end; C reports those out of range."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, maximum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    Guard,
    NotInferable,
    cast_step,
    dims,
    elem_bytes,
    known,
    normal_axis,
    require_dtype,
    temporary,
    typed,
    where_is,
)

INDICES = (dtypes.INT64, dtypes.INT32)


@op("Gather")
class Gather:
    """y = x taken at `indices` along an axis: an embedding lookup, most often."""

    signature = "x, indices: index -> y"
    attributes = {"axis": 0}

    def infer(node: Node) -> list[Type]:
        shape, indices = dims(node, 0), dims(node, 1)
        axis = normal_axis(node, node.attrs["axis"], len(shape))
        contents, at = known(node.inputs[0]), known(node.inputs[1])
        n = len(contents or ())
        if len(shape) == 1 and at and all(isinstance(i, int) and -n <= i < n for i in at):
            contents = tuple(contents[i] for i in at)
        else:
            contents = None
        return [
            typed(node.inputs[0].dtype, (*shape[:axis], *indices, *shape[axis + 1 :]), contents)
        ]

    def reference(node: Node, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        if node.attrs["axis"] == 0 and indices.ndim:  # as np.take, in a third of the time
            return x[indices]
        return np.take(x, indices, node.attrs["axis"])

    def lower(node: Node, b: Any) -> None:
        x, indices = node.inputs
        require_dtype(node, indices.dtype, INDICES)
        axis = normal_axis(node, node.attrs["axis"], len(x.shape))
        cut = evenly_spaced(indices, x.shape[axis])
        if cut is not None:  # q, k or v of a joint product, most often
            start, step = cut
            view = b.view(x).slice(axis, start, product(indices.shape), step)
            own = view.strides[axis : axis + len(indices.shape)]
            strides = (*view.strides[:axis], *own, *view.strides[axis + 1 :])
            b.alias(node.output, View(view.storage, node.output.shape, strides, view.offset))
            return
        b.step(
            "gather",
            x=x,
            indices=indices,
            y=node.output,
            outer=product(x.shape[:axis]),
            axis_dim=x.shape[axis],
            inner_bytes=product(x.shape[axis + 1 :]) * elem_bytes(node),
            n=product(indices.shape),
            index_dtype=indices.dtype,
        )


def evenly_spaced(indices: Value, dim: Dim) -> Optional[tuple[int, int]]:
    """(first, step) where known indices of rank 0 or 1 name entries that a slice could."""
    at = known(indices)
    if not at or len(indices.shape) > 1 or not all(isinstance(i, int) for i in (*at, dim)):
        return None
    if not all(-dim <= i < dim for i in at):
        return None  # the run reports it
    entries = [i % dim for i in at]
    step = entries[1] - entries[0] if len(entries) > 1 else 1
    even = entries == [entries[0] + i * step for i in range(len(entries))]
    return (entries[0], step) if even else None


@op("GatherElements")
class GatherElements:
    """y[i] = x[i with i[axis] = indices[i]]; y has the shape of indices."""

    signature = "x, indices: index -> y"
    attributes = {"axis": 0}
    strided = (0, 1)
    infer = lambda node: [Type(node.inputs[0].dtype, dims(node, 1))]
    guards = lambda node: elements_guards(node)

    def reference(node: Node, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        at: list = list(np.indices(indices.shape, sparse=True))
        at[node.attrs["axis"]] = indices
        return x[tuple(at)]

    def lower(node: Node, b: Any) -> None:
        x, indices = map(b.view, node.inputs)
        require_dtype(node, node.inputs[1].dtype, INDICES)
        axis = normal_axis(node, node.attrs["axis"], len(x.shape))
        b.step(
            "gather_elements",
            x=x,
            indices=indices,
            y=node.output,
            elem_bytes=elem_bytes(node),
            limit=x.shape[axis],
            axis_stride=x.strides[axis],
            ndim=len(x.shape),
            shape=indices.shape,
            x_stride=(*x.strides[:axis], 0, *x.strides[axis + 1 :]),
            index_stride=indices.strides,
            index_dtype=node.inputs[1].dtype,
        )


def elements_guards(node: Node) -> list[Guard]:
    """Indices of the rank of x, and no larger but for the axis.

    Raises: ModelError where the ranks differ.
    """
    x, indices = dims(node, 0), dims(node, 1)
    if len(x) != len(indices):
        raise ModelError(f"{where_is(node)} indices of shape {indices} in a tensor of {x}")
    axis = normal_axis(node, node.attrs["axis"], len(x))
    return [
        (maximum(dim, have), have, f"indices of {dim} along an axis of {have}")
        for i, (have, dim) in enumerate(zip(x, indices))
        if i != axis and dim != have
    ]


@op("GatherND")
class GatherND:
    """y[b, i] = x[b, indices[b, i, 0], .., indices[b, i, -1]]: indices end in positions in x."""

    signature = "x, indices: int64 -> y"
    attributes = {"batch_dims": 0}

    def infer(node: Node) -> list[Type]:
        x, indices = dims(node, 0), dims(node, 1)
        after = node.attrs["batch_dims"] + depth(node, indices)
        if after > len(x):
            raise ModelError(f"{where_is(node)} indices of shape {indices} in a tensor of {x}")
        return [Type(node.inputs[0].dtype, (*indices[:-1], *x[after:]))]

    def guards(node: Node) -> list[Guard]:
        pairs = zip(dims(node, 0), dims(node, 1)[: node.attrs["batch_dims"]])
        return [(left, right, "batch dims differ") for left, right in pairs]

    def reference(node: Node, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        batch = node.attrs["batch_dims"]
        if x.shape[:batch] != indices.shape[:batch]:
            raise ValueError("batch dims differ")
        grids: Any = np.indices(indices.shape[:batch], sparse=True)
        trailing = (1,) * (indices.ndim - 1 - batch)
        at = [grid.reshape(grid.shape + trailing) for grid in grids]
        at.extend(np.moveaxis(indices, -1, 0))
        if not indices.shape[-1]:  # all of x, for each of them
            whole = x.reshape(*x.shape[:batch], *trailing, *x.shape[batch:])
            return np.broadcast_to(whole, (*indices.shape[:-1], *x.shape[batch:])).copy()
        return x[tuple(at)]

    def lower(node: Node, b: Any) -> None:
        x, indices = node.inputs
        batch, levels = node.attrs["batch_dims"], depth(node, node.inputs[1].shape)
        b.step(
            "gather_nd",
            x=x,
            indices=wide_indices(b, node, indices),
            y=node.output,
            batch=product(x.shape[:batch]),
            n=product(indices.shape[batch:-1]),
            depth=levels,
            dims=x.shape[batch : batch + levels],
            inner_bytes=product(x.shape[batch + levels :]) * elem_bytes(node),
        )


def depth(node: Node, indices: tuple[Dim, ...]) -> int:
    """How many dims of x an index tuple selects.

    Raises: NotInferable where that is not fixed.
    """
    if not isinstance(indices[-1], int):
        raise NotInferable(
            f"{where_is(node)} the last dim of the indices must be fixed, not {indices[-1]}"
        )
    return indices[-1]


def wide_indices(b: Any, node: Node, indices: Value) -> Value:
    """Indices as int64, which is what gather_nd and scatter_nd read."""
    if indices.dtype == dtypes.INT64:
        return indices
    require_dtype(node, indices.dtype, INDICES)
    wide = temporary(b, dtypes.INT64, indices.shape)
    cast_step(b, indices, wide)
    return wide
