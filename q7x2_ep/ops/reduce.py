"""Reductions over axes, and the running sum."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, maximum, minimum, product
from q7x2_ep.ir.view import channels_last
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    BINARY,
    FLOATS,
    NUMBERS,
    NUMERIC,
    Operand,
    binary_step,
    cast_step,
    cast_to,
    dims,
    image_of,
    infer_same,
    is_image,
    known,
    materialized,
    normal_axis,
    number,
    reduce_step,
    require_dtype,
    required_ints,
    temporary,
    typed,
    unary_step,
    where_is,
    where_step,
)

# What makes one of the results of parts, where that is another op.
AGAIN = {"l1": "sum", "sumsq": "sum"}


def reduced_axes(node: Node) -> tuple[int, ...]:
    """The axes, counted from the front and sorted; none given means all, or none at all (noop).
    A scalar has the axis of its one element, as onnxruntime takes it, and nothing to reduce."""
    ndim = len(dims(node))
    axes = () if node.input(1) is None else required_ints(node, 1, "axes")
    if not axes:
        return () if node.attrs["noop_with_empty_axes"] else tuple(range(ndim))
    named = {normal_axis(node, axis, max(ndim, 1)) for axis in axes}
    return tuple(sorted(named)) if ndim else ()


def infer_reduction(
    total: Optional[Callable[[tuple[Dim, ...]], Dim]] = None,
) -> Callable[[Node], list[Type]]:
    """infer of a reduction; `total` reduces known contents."""

    def infer(node: Node) -> list[Type]:
        shape, axes = dims(node), reduced_axes(node)
        if node.attrs["keepdims"]:
            left = tuple(1 if i in axes else dim for i, dim in enumerate(shape))
        else:
            left = tuple(dim for i, dim in enumerate(shape) if i not in axes)
        contents = known(node.inputs[0])
        if axes:
            whole = total and contents and len(axes) == len(shape)
            contents = (total(contents),) if whole else None
        return [typed(node.inputs[0].dtype, left, contents)]

    return infer


def reduction(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """reference from function(x, axes, keepdims). Of halves it is computed in float32."""

    def reference(node: Node, x: np.ndarray, axes: Optional[np.ndarray] = None) -> np.ndarray:
        keepdims, dtype = bool(node.attrs["keepdims"]), x.dtype
        if dtype.itemsize == 2 and dtype.kind not in "iu":
            x = x.astype(np.float32)
        if axes is None or axes.size == 0 or not x.ndim:
            if node.attrs["noop_with_empty_axes"]:
                return function(x[None], axis=(0,), keepdims=False).astype(dtype)
            y = function(x, axis=None, keepdims=keepdims)
        else:
            named = {axis + x.ndim if -x.ndim <= axis < 0 else axis for axis in axes.flat}
            y = function(x, axis=tuple(map(int, named)), keepdims=keepdims)
        return np.asarray(y).astype(dtype)

    return reference


def lowest(dtype: np.dtype) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def reduce_lower(op: str) -> Callable[[Node, Any], None]:
    def lower(node: Node, b: Any) -> None:
        x, axes = node.inputs[0], reduced_axes(node)
        require_dtype(node, x.dtype, BINARY)
        reduce_over(b, op, x, axes, node.output)

    return lower


def lower_real(
    steps: Callable[[Any, Value, tuple[int, ...], Value], None],
) -> Callable[[Node, Any], None]:
    """lower from steps(b, x, axes, y) in real numbers; integers go by way of double."""

    def lower(node: Node, b: Any) -> None:
        x, y, axes = node.inputs[0], node.output, reduced_axes(node)
        require_dtype(node, x.dtype, NUMERIC)
        dtype = x.dtype if x.dtype in FLOATS else dtypes.DOUBLE
        result = y if dtype == y.dtype else temporary(b, dtype, y.shape)
        steps(b, cast_to(b, x, dtype), axes, result)
        if result is not y:
            cast_step(b, result, y)

    return lower


def log_sum_steps(b: Any, x: Value, axes: tuple[int, ...], y: Value) -> None:
    total = temporary(b, y.dtype, y.shape)
    reduce_over(b, "sum", x, axes, total)
    unary_step(b, "log", total, y)


def log_sum_exp_steps(b: Any, x: Value, axes: tuple[int, ...], y: Value) -> None:
    """ln sum(e^(x - top)) + top, where top is the maximum, or 0 where that is infinite."""
    shape = tuple(1 if i in axes else dim for i, dim in enumerate(x.shape))
    top, finite, total, log = (temporary(b, y.dtype, shape) for _ in range(4))
    is_infinite = temporary(b, dtypes.BOOL, shape)
    rest, weights = (temporary(b, y.dtype, x.shape) for _ in range(2))
    reduce_over(b, "max", x, axes, top)
    unary_step(b, "isinf", top, is_infinite)
    where_step(b, is_infinite, number(b, 0, y.dtype), top, finite)
    binary_step(b, "sub", x, finite, rest)
    unary_step(b, "exp", rest, weights)
    reduce_over(b, "sum", weights, axes, total)
    unary_step(b, "log", total, log)
    binary_step(b, "add", b.view(log).reshape(y.shape), b.view(finite).reshape(y.shape), y)


def as_real(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind in "iu" else x


def log_sum_exp(x: np.ndarray, axis: Any, keepdims: bool) -> np.ndarray:
    x = as_real(x)
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), x.dtype.type(0), top)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=keepdims))
    return total + (top if keepdims else np.squeeze(top, axis))


def reduce_over(b: Any, op: str, x: Value, axes: tuple[int, ...], y: Value) -> None:
    """y = x reduced over axes. Where not all are neighbours in memory, the last that are go first;
    for means of integers, which are cut, all are copied to the end.
    """
    read, along, place = _in_memory(b, x, axes, y)
    shape = read.shape
    begins = [i for i in range(len(along)) if i == 0 or along[i - 1] < along[i] - 1]
    if not along:
        reduce_step(b, op, read, place, product(shape), 1, 1)
    elif len(begins) > 1 and op == "mean" and x.dtype not in FLOATS:
        kept = [i for i in range(len(x.shape)) if i not in axes]
        view = b.view(x).transpose((*kept, *axes))
        outer, n = product(x.shape[i] for i in kept), product(x.shape[i] for i in axes)
        reduce_step(b, op, materialized(b, view), y, outer, n, 1)
    else:
        rest, last = along[: begins[-1]], along[begins[-1] :]
        outer, n = product(shape[: last[0]]), product(shape[i] for i in last)
        inner = product(shape[last[-1] + 1 :])
        if not rest:
            reduce_step(b, op, read, place, outer, n, inner)
            return
        some = temporary(b, x.dtype, tuple(dim for i, dim in enumerate(shape) if i not in last))
        reduce_step(b, op, read, some, outer, n, inner)
        reduce_over(b, AGAIN.get(op, op), some, rest, y)


def _in_memory(
    b: Any, x: Value, axes: tuple[int, ...], y: Value
) -> tuple[Operand, tuple[int, ...], Operand]:
    """x, its axes and y as they are; or x (N, C, ..) seen as (N, .., C) where it is stored so and
    what is kept of it can be written in that order: lines with their channels only into an image.
    """
    if not axes or not is_image(b, x):
        return x, axes, y
    order = channels_last(len(x.shape))
    along = tuple(sorted(order.index(axis) for axis in axes))
    keeps_lines = 1 not in axes and not set(order[1:-1]) <= set(axes)
    if along[-1] - along[0] >= len(along) or (keeps_lines and len(y.shape) != len(x.shape)):
        return x, axes, y
    place = image_of(b, y).channels_last() if keeps_lines else y
    return b.channels_last(x, dense=True).channels_last(), along, place


@op("ReduceSum")
class ReduceSum:
    """The sum over axes."""

    signature = "x: N, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction(sum)
    reference = reduction(np.sum)
    lower = reduce_lower("sum")


@op("ReduceMean")
class ReduceMean:
    """The mean over axes."""

    signature = "x: N, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction()
    reference = reduction(np.mean)
    lower = reduce_lower("mean")


@op("ReduceMax")
class ReduceMax:
    """The maximum over axes; of nothing, the lowest number there is."""

    signature = "x, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction(lambda contents: functools.reduce(maximum, contents))
    reference = reduction(lambda x, **how: np.max(x, initial=lowest(x.dtype), **how))
    lower = reduce_lower("max")


@op("ReduceMin")
class ReduceMin:
    """The minimum over axes; of nothing, the highest number there is."""

    signature = "x, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction(lambda contents: functools.reduce(minimum, contents))
    reference = reduction(lambda x, **how: np.min(x, initial=highest(x.dtype), **how))
    lower = reduce_lower("min")


@op("ReduceProd")
class ReduceProd:
    """The product over axes."""

    signature = "x: N, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction(product)
    reference = reduction(np.prod)
    lower = reduce_lower("prod")


@op("ReduceSumSquare")
class ReduceSumSquare:
    """The sum of squares over axes."""

    signature = "x: N, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction()
    reference = reduction(lambda x, **how: np.sum(np.square(x), **how))
    lower = reduce_lower("sumsq")


@op("ReduceL1")
class ReduceL1:
    """The sum of absolute values over axes."""

    signature = "x: N, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction()
    reference = reduction(lambda x, **how: np.sum(np.abs(x), **how))
    lower = reduce_lower("l1")


@op("ReduceL2")
class ReduceL2:
    """The square root of the sum of squares over axes."""

    signature = "x: N, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction()
    reference = reduction(lambda x, **how: np.sqrt(np.sum(np.square(as_real(x)), **how)))
    lower = lower_real(lambda b, x, axes, y: reduce_over(b, "l2", x, axes, y))


@op("ReduceLogSum")
class ReduceLogSum:
    """The logarithm of the sum over axes."""

    signature = "x: N, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction()
    reference = reduction(lambda x, **how: np.log(np.sum(as_real(x), **how)))
    lower = lower_real(log_sum_steps)


@op("ReduceLogSumExp")
class ReduceLogSumExp:
    """The logarithm of the sum of e^x over axes."""

    signature = "x: N, axes?: int64 -> y"
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    infer = infer_reduction()
    reference = reduction(log_sum_exp)
    lower = lower_real(log_sum_exp_steps)


def infer_cumulated(node: Node) -> list[Type]:
    """As x, of which one axis is run along."""
    if not dims(node):
        raise ModelError(f"{where_is(node)} a scalar has no axis to run along")
    return infer_same(node)


def cumulated(accumulate: Any, neutral: int) -> Any:
    """reference of a running sum or product."""

    def reference(node: Node, x: np.ndarray, axis: np.ndarray) -> np.ndarray:
        at = int(axis.item())
        turned = np.flip(x, at) if node.attrs["reverse"] else x
        total = accumulate(turned, at, dtype=x.dtype)
        if node.attrs["exclusive"]:  # shifted by one, not total - x: that would cancel digits
            first = np.full_like(np.take(total, [0] * min(x.shape[at], 1), at), neutral)
            total = np.concatenate((first, np.delete(total, -1, at) if x.shape[at] else total), at)
        return np.flip(total, at) if node.attrs["reverse"] else total

    return reference


def cumulate_lower(product_of: bool) -> Any:
    def lower(node: Node, b: Any) -> None:
        x = node.inputs[0]
        require_dtype(node, x.dtype, (*NUMBERS, dtypes.UINT32, dtypes.UINT64))
        axis = normal_axis(node, required_ints(node, 1, "the axis")[0], len(x.shape))
        b.step(
            "cumulate",
            inplace="x",
            x=x,
            y=node.output,
            dtype=x.dtype,
            outer=product(x.shape[:axis]),
            n=x.shape[axis],
            inner=product(x.shape[axis + 1 :]),
            product=int(product_of),
            exclusive=node.attrs["exclusive"],
            reverse=node.attrs["reverse"],
        )

    return lower


@op("CumSum")
class CumSum:
    """The running sum along an axis, without the element itself (exclusive), or from the end."""

    signature = "x: N, axis: index -> y"
    attributes = {"exclusive": 0, "reverse": 0}
    infer = infer_cumulated
    reference = cumulated(np.cumsum, 0)
    lower = cumulate_lower(False)


@op("CumProd")
class CumProd:
    """The running product along an axis, without the element itself, or from the end."""

    signature = "x: N, axis: index -> y"
    attributes = {"exclusive": 0, "reverse": 0}
    infer = infer_cumulated
    reference = cumulated(np.cumprod, 1)
    lower = cumulate_lower(True)
