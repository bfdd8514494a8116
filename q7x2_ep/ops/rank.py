"""What ranks elements along an axis, and what compares indices with positions."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.ir.core import MAX_ELEMENTS, Node, Type, Value
from q7x2_ep.ir.shape import Dim, maximum, minimum, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    BINARY,
    NUMERIC,
    Guard,
    NotInferable,
    binary_step,
    cast_step,
    constant_scalar,
    dims,
    fresh,
    is_used,
    known,
    normal_axis,
    number,
    require_dtype,
    required,
    size_guards,
    temporary,
    where_is,
    where_step,
)


def topk_step(
    b: Any,
    x: Value,
    axis: int,
    values: Optional[Value],
    indices: Value,
    k: Dim,
    largest: bool,
    last: bool,
    nan_first: bool,
) -> None:
    """The k first of x along an axis; of equals the lowest index first, or the highest."""
    b.step(
        "topk",
        x=x,
        values=values,
        indices=indices,
        dtype=x.dtype,
        outer=product(x.shape[:axis]),
        n=x.shape[axis],
        inner=product(x.shape[axis + 1 :]),
        k=k,
        largest=int(largest),
        last=int(last),
        nan_first=int(nan_first),
    )


@op("TopK")
class TopK:
    """The k largest or smallest elements along an axis, in order, and their indices."""

    signature = "x: N, k: int64 -> values, indices"
    attributes = {"axis": -1, "largest": 1, "sorted": 1}

    def infer(node: Node) -> list[Type]:
        shape = list(dims(node))
        axis = normal_axis(node, node.attrs["axis"], len(shape))
        k, n = (known(node.inputs[1]) or fresh(node, 0, len(shape))[axis:])[0], shape[axis]
        if isinstance(k, int) and (k < 0 or (isinstance(n, int) and k > n)):
            raise ModelError(f"{where_is(node)} k is {k}, the axis has {n} elements")
        shape[axis] = k
        return [Type(node.inputs[0].dtype, tuple(shape)), Type(dtypes.INT64, tuple(shape))]

    def reference(node: Node, x: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        axis, count = node.attrs["axis"], int(k.item())
        if not 0 <= count <= x.shape[axis]:
            raise DataError(f"{where_is(node)} k is {count}, the axis has {x.shape[axis]} elements")
        if node.attrs["largest"]:  # a stable sort of the reversed line, read backwards
            order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, "stable"), axis)
        else:
            order = np.argsort(x, axis, "stable")
        indices = np.take(order, np.arange(count), axis)
        return np.take_along_axis(x, indices, axis), indices

    def guards(node: Node) -> list[Guard]:
        axis = node.attrs["axis"]
        required(node, 1, "k")
        k, n = node.output.shape[axis], dims(node)[axis]
        return [(minimum(k, n), k, f"k is {k}, more than the {n} elements of the axis")]

    def lower(node: Node, b: Any) -> None:
        x, (values, indices) = node.inputs[0], node.outputs
        require_dtype(node, x.dtype, NUMERIC)
        axis = normal_axis(node, node.attrs["axis"], len(x.shape))
        wanted, largest = values if is_used(b, node, 0) else None, bool(node.attrs["largest"])
        topk_step(b, x, axis, wanted, indices, values.shape[axis], largest, False, largest)


def _arg_infer(node: Node) -> list[Type]:
    shape = list(dims(node))
    axis = normal_axis(node, node.attrs["axis"], len(shape))
    shape[axis : axis + 1] = [1] if node.attrs["keepdims"] else []
    return [Type(dtypes.INT64, tuple(shape))]


def _arg_guards(node: Node) -> list[Guard]:
    shape = list(dims(node))
    n = shape.pop(node.attrs["axis"])
    return [((maximum(n, 1) - n) * product(shape), 0, "the axis has no element")]


def _arg_reference(find: Any) -> Any:
    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        axis, keepdims = node.attrs["axis"], bool(node.attrs["keepdims"])
        if not x.size and 0 in (shape := x.sum(axis, keepdims=keepdims).shape):
            return np.empty(shape, np.int64)  # where numpy refuses to look for nothing
        if not node.attrs["select_last_index"]:
            return find(x, axis, keepdims=keepdims)
        return x.shape[axis] - 1 - find(np.flip(x, axis), axis, keepdims=keepdims)

    return reference


def _arg_lower(largest: bool) -> Any:
    def lower(node: Node, b: Any) -> None:
        x = node.inputs[0]
        require_dtype(node, x.dtype, NUMERIC)
        axis = normal_axis(node, node.attrs["axis"], len(x.shape))
        last = bool(node.attrs["select_last_index"])
        topk_step(b, x, axis, None, node.output, 1, largest, last, True)

    return lower


@op("ArgMax")
class ArgMax:
    """The index of the largest element along an axis: the first, or the last such."""

    signature = "x: N -> y"
    attributes = {"axis": 0, "keepdims": 1, "select_last_index": 0}
    infer = _arg_infer
    guards = _arg_guards
    reference = _arg_reference(np.argmax)
    lower = _arg_lower(True)


@op("ArgMin")
class ArgMin:
    """The index of the smallest element along an axis: the first, or the last such."""

    signature = "x: N -> y"
    attributes = {"axis": 0, "keepdims": 1, "select_last_index": 0}
    infer = _arg_infer
    guards = _arg_guards
    reference = _arg_reference(np.argmin)
    lower = _arg_lower(False)


@op("OneHot")
class OneHot:
    """y[.., j, ..] = values[1] where j is the index there (negative: from the end), else values[0].

    Indices outside of [-depth, depth) give values[0] everywhere.
    """

    signature = "indices: N, depth: N1, values -> y"
    attributes = {"axis": -1}

    def infer(node: Node) -> list[Type]:
        shape = list(dims(node))
        axis = normal_axis(node, node.attrs["axis"], len(shape) + 1)
        depth = one_hot_depth(node)
        if depth is None:
            shape.insert(axis, fresh(node, 0, len(shape) + 1)[axis])
            return [Type(node.inputs[2].dtype, tuple(shape))]
        shape.insert(axis, depth)
        indices, values, elements = known(node.inputs[0]), known(node.inputs[2]), None
        size, is_last = product(shape), axis == len(shape) - 1
        are_numbers = indices and all(isinstance(i, int) for i in indices)
        if are_numbers and values and is_last and isinstance(size, int) and size <= MAX_ELEMENTS:
            places = [(i, j) for i in indices for j in range(depth)]
            elements = tuple(values[j in (i, i + depth)] for i, j in places)
        return [Type(node.inputs[2].dtype, tuple(shape), elements)]

    def guards(node: Node) -> list[Guard]:
        if one_hot_depth(node) is None:
            raise NotInferable(f"{where_is(node)} the depth comes from data")
        return size_guards(node.inputs[2:], 2)

    def reference(
        node: Node, indices: np.ndarray, depth: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        n, ndim = int(depth.item()), indices.ndim + 1
        axis = node.attrs["axis"] % ndim
        places = np.arange(n).reshape([-1 if i == axis else 1 for i in range(ndim)])
        at = np.expand_dims(indices.astype(np.int64), axis)
        return np.where((at == places) | (at == places - n), values[1], values[0])

    def lower(node: Node, b: Any) -> None:
        indices, _, values = node.inputs
        y, axis = node.output, normal_axis(node, node.attrs["axis"], len(node.output.shape))
        n = y.shape[axis]
        if indices.dtype != dtypes.INT64:
            require_dtype(node, indices.dtype, BINARY)
            wide = temporary(b, dtypes.INT64, indices.shape)
            cast_step(b, indices, wide)
            indices = wide
        at = b.contiguous(indices).reshape((*indices.shape[:axis], 1, *indices.shape[axis:]))
        places, more = (temporary(b, dtypes.INT64, (size,)) for size in (n, 1))
        for made, start in ((places, 0), (more, n)):
            arange = {"dtype": dtypes.INT64, "start": 0.0, "step": 0.0, "istep": 1}
            b.step("arange", y=made, n=made.shape[0], istart=start, **arange)
        shape = tuple(at.shape)
        is_negative = temporary(b, dtypes.BOOL, shape)
        behind, counted = (temporary(b, dtypes.INT64, shape) for _ in range(2))
        binary_step(b, "less", at, number(b, 0, dtypes.INT64), is_negative)
        binary_step(b, "add", at, more, behind)
        where_step(b, is_negative, behind, at, counted)
        column = b.view(places).reshape(tuple(n if i == axis else 1 for i in range(len(y.shape))))
        hit = temporary(b, dtypes.BOOL, y.shape)
        binary_step(b, "equal", counted, column, hit)
        off, on = (b.contiguous(values).slice(0, i, 1) for i in range(2))
        where_step(b, hit, on, off, y)


def one_hot_depth(node: Node) -> Optional[Dim]:
    """The depth, which may be a tensor of any dtype; None where it comes from data."""
    depth, scalar = known(node.inputs[1]), constant_scalar(node.inputs[1])
    return depth[0] if depth else None if scalar is None else int(scalar)
