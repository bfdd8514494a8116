"""Pools: a window, or all of each channel, becomes one element. MaxUnpool and LRN too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, maximum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    FLOATS,
    Guard,
    Operand,
    dims,
    image_of,
    is_used,
    require_dtype,
    required_ints,
    size_guards,
    temporary,
    where_is,
)
from q7x2_ep.ops.reduce import lowest, reduce_over
from q7x2_ep.ops.window import (
    WHOLE,
    WINDOW_ATTRIBUTES,
    Axis,
    geometry,
    half_as_single,
    taps,
    window_attributes,
    window_fields,
    window_guards,
)

FEW = range(1, 5)  # channels that waste most of a vector each: planes, copied twice, take less
NARROW, MANY = 14, 8  # lines up to this waste them too: so many channels are turned there and back
POOL_ATTRIBUTES = {**WINDOW_ATTRIBUTES, "ceil_mode": 0}


def pool_axes(node: Node, shape: Sequence[Dim]) -> list[Axis]:
    """The windows of a pool over x (N, C, ..).

    Raises: ModelError where there is nothing to pool, or pads cut.
    """
    kernel = node.attrs["kernel_shape"]
    if kernel is None or len(shape) < 3:
        raise ModelError(f"{where_is(node)} pools {shape} by a kernel {kernel}, wanted (N, C, ..)")
    if min(node.attrs["pads"] or (0,)) < 0:
        raise ModelError(f"{where_is(node)} pads {node.attrs['pads']} must not be negative")
    return geometry(node, shape[2:], kernel)


def infer_pool(node: Node) -> list[Type]:
    x = dims(node)
    shape = (*x[:2], *(axis.out for axis in pool_axes(node, x)))
    return [Type(node.inputs[0].dtype, shape), Type(dtypes.INT64, shape)][: len(node.outputs)]


def pool_guards(node: Node) -> list[Guard]:
    return window_guards(node, pool_axes(node, dims(node)))


def lower_pool(op_name: str, supported: tuple[int, ...]) -> Callable[[Node, Any], None]:
    def lower(node: Node, b: Any) -> None:
        x, y = b.view(node.inputs[0]), node.output
        require_dtype(node, y.dtype, supported)
        spec = pool_axes(node, x.shape)
        indices = node.outputs[1] if is_used(b, node, 1) else None
        is_byte = y.dtype in (dtypes.INT8, dtypes.UINT8)
        by_line = (is_byte or y.dtype == dtypes.FLOAT) and indices is None
        if y.dtype in FLOATS and op_name != "lp" and indices is None and covers(spec):
            lower_global(op_name)(node, b)
            return
        batch, channels = x.shape[:2]
        depth, *plane = spec if len(spec) == 3 else (WHOLE, *spec)
        # bytes have a kernel for images whose channels are last alone
        last = len(spec) < 3 if is_byte else prefers_last(x, spec[-1].size)
        by_plane = depth.is_flat or op_name == "max"  # maxima of planes are those of volumes
        if by_line and last and by_plane:
            x, y = b.channels_last(node.inputs[0], dense=True), image_of(b, y)
            pixels, planes = product(axis.out for axis in plane), batch * depth.size
            into: Operand = y
            if not depth.is_flat:
                into = temporary(b, x.storage.dtype, (planes, pixels, channels))
            pool_step(node, b, op_name, x, into, planes, [*plane, whole(channels)])
            if not depth.is_flat:
                pool_step(node, b, op_name, into, y, batch, [depth, whole(pixels * channels)])
        else:
            planes = batch * channels
            pool_step(node, b, op_name, node.inputs[0], y, planes, spec, indices)

    return lower


def prefers_last(x: View, width: Dim) -> bool:
    """Whether windows over floats are made with the channels of x last, where they may not be."""
    channels = x.shape[1]
    if x.is_channels_last():
        return channels not in FEW
    are_known = isinstance(width, int) and isinstance(channels, int)
    return are_known and width <= NARROW and channels >= MANY


def covers(axes: Sequence[Axis]) -> bool:
    """Whether there is one window, over all elements and nothing else."""
    one = (1, 1, 0, 0)
    return all(
        axis.kernel == axis.size and (axis.dilation, axis.out, axis.before, axis.after) == one
        for axis in axes
    )


def whole(size: Dim) -> Axis:
    """Elements of which each is a window of its own."""
    return WHOLE._replace(size=size, out=size)


def pool_step(
    node: Node,
    b: Any,
    op_name: str,
    x: Operand,
    y: Operand,
    planes: Dim,
    axes: Sequence[Axis],
    indices: Optional[Value] = None,
) -> None:
    """Windows over the axes of x, (planes, axes..) in memory; those of channels are one element."""
    fields, attrs, dtype = window_fields(node, axes, 3), node.attrs, node.output.dtype
    line = maximum(
        (fields["OW"] - 1) * fields["stride_w"] + axes[-1].reach,
        fields["pad_left"] + fields["W"],
    )
    room = maximum(line, b.constants["POOL_BAND"])
    after = [0, 0, *(axis.after for axis in axes)][-3:]
    by_line = dtype == dtypes.FLOAT and indices is None
    b.step(
        "pool",
        kernel="pool",
        x=x,
        y=y,
        indices=indices,
        work=(fields["OW"] + b.threads * room) * 4 if by_line else None,
        op=op_name,
        dtype=dtype,
        N=planes,
        **fields,
        pad_back=after[0],
        pad_bottom=after[1],
        pad_right=after[2],
        count_pads=attrs.get("count_include_pad", 0),
        column_major=attrs.get("storage_order", 0),
        p=attrs.get("p", 0),
    )


@op("MaxPool")
class MaxPool:
    """The largest element under each window, and where the first of it lies in all of x, counted
    in rows of the last dim (in columns of the first with storage_order 1).
    """

    signature = "x: N -> y, indices?"
    attributes = {**POOL_ATTRIBUTES, "storage_order": 0}
    infer = infer_pool
    guards = pool_guards

    @half_as_single
    def reference(node: Node, x: np.ndarray) -> Any:
        spec, sizes = pool_axes(node, x.shape), x.shape[2:]
        order = "F" if node.attrs["storage_order"] else "C"
        at = np.arange(np.prod(sizes)).reshape(sizes, order=order)
        at = at + np.prod(sizes, dtype=np.int64) * np.arange(x.shape[0] * x.shape[1]).reshape(
            *x.shape[:2], *[1] * len(sizes)
        )
        shape = (*x.shape[:2], *(axis.out for axis in spec))
        y, indices = np.full(shape, lowest(x.dtype), x.dtype), np.full(shape, -1, np.int64)
        for (_, part), (_, where) in zip(taps(x, spec, lowest(x.dtype)), taps(at, spec, -1)):
            larger = (where >= 0) & ((indices < 0) | (part > y) | ((part != part) & (y == y)))
            y, indices = np.where(larger, part, y), np.where(larger, where, indices)
        return (y, indices)[: len(node.outputs)]

    lower = lower_pool("max", (*FLOATS, dtypes.INT8, dtypes.UINT8))


@op("AveragePool")
class AveragePool:
    """The mean of what is under each window; with count_include_pad of the zeros around x too."""

    signature = "x: F -> y"
    attributes = {**POOL_ATTRIBUTES, "count_include_pad": 0}
    infer = infer_pool
    guards = pool_guards

    @half_as_single
    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        spec = pool_axes(node, x.shape)
        around = [(axis.before, axis.after) for axis in spec]
        counted = np.pad(
            np.ones(x.shape[2:]), around, constant_values=float(node.attrs["count_include_pad"])
        )
        inside = [
            axis._replace(size=axis.size + axis.before + axis.after, before=0) for axis in spec
        ]
        total = sum(part for _, part in taps(x, spec, 0))
        return (total / sum(part for _, part in taps(counted, inside, 0))).astype(x.dtype)

    lower = lower_pool("mean", FLOATS)


@op("LpPool")
class LpPool:
    """(sum |x|^p)^(1/p) of the elements under each window."""

    signature = "x: F -> y"
    attributes = {**POOL_ATTRIBUTES, "p": 2}
    infer = infer_pool
    guards = pool_guards

    @half_as_single
    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        p = node.attrs["p"]
        total = sum(np.abs(part) ** p for _, part in taps(x, pool_axes(node, x.shape), 0))
        return np.asarray(total ** (1 / p), x.dtype)

    lower = lower_pool("lp", FLOATS)


def infer_global(node: Node) -> list[Type]:
    x = dims(node)
    if len(x) < 2:
        raise ModelError(f"{where_is(node)} pools (N, C, ..), not {x}")
    return [Type(node.inputs[0].dtype, (*x[:2], *(1 for _ in x[2:])))]


def lower_global(op_name: str) -> Callable[[Node, Any], None]:
    def lower(node: Node, b: Any) -> None:
        x = node.inputs[0]
        require_dtype(node, x.dtype, FLOATS)
        reduce_over(b, op_name, x, tuple(range(2, len(x.shape))), node.output)

    return lower


def spatial(x: np.ndarray) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@op("GlobalAveragePool")
class GlobalAveragePool:
    """The mean of each channel."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_global
    reference = half_as_single(lambda node, x: x.mean(spatial(x), keepdims=True))
    lower = lower_global("mean")


@op("GlobalMaxPool")
class GlobalMaxPool:
    """The largest element of each channel."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_global
    reference = half_as_single(lambda node, x: x.max(spatial(x), keepdims=True))
    lower = lower_global("max")


@op("GlobalLpPool")
class GlobalLpPool:
    """(sum |x|^p)^(1/p) of each channel."""

    signature = "x: F -> y"
    attributes = {"p": 2}
    infer = infer_global

    @half_as_single
    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        p = node.attrs["p"]
        return np.asarray((np.abs(x) ** p).sum(spatial(x), keepdims=True) ** (1 / p), x.dtype)

    def lower(node: Node, b: Any) -> None:
        p = node.attrs["p"]
        if p not in (1, 2):
            raise UnsupportedOp(f"{where_is(node)} has kernels for p = 1 and 2, not for {p}")
        lower_global(f"l{int(p)}")(node, b)


@op("MaxUnpool")
class MaxUnpool:
    """Zeros, with each element of x where the indices of a MaxPool say.

    output_shape: a larger y than the MaxPool is sure to have read; indices are into a y without it.
    """

    signature = "x: F, indices: int64, output_shape?: int64 -> y"
    attributes = {"kernel_shape": None, "pads": None, "strides": None}

    def pooled(node: Node, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The smallest shape that a MaxPool makes of x."""
        kernel = node.attrs["kernel_shape"]
        if kernel is None or len(shape) != len(kernel) + 2:
            raise ModelError(f"{where_is(node)} a kernel {kernel} does not fit {shape}")
        attrs = {"auto_pad": "NOTSET", **node.attrs}
        strides, _, pads = window_attributes(Node(node.op, [], [], attrs, node.name), kernel)
        n = len(kernel)
        return (
            *shape[:2],
            *(
                (size - 1) * stride + k - pads[i] - pads[n + i]
                for i, (size, stride, k) in enumerate(zip(shape[2:], strides, kernel))
            ),
        )

    def infer(node: Node) -> list[Type]:
        shape = MaxUnpool.pooled(node, dims(node))
        if node.input(2) is not None:
            shape = required_ints(node, 2, "the shape of the output")
        return [Type(node.inputs[0].dtype, shape)]

    guards = lambda node: size_guards((node.inputs[1],), product(dims(node)))

    def reference(
        node: Node, x: np.ndarray, indices: np.ndarray, output_shape: Optional[np.ndarray] = None
    ) -> np.ndarray:
        inner = MaxUnpool.pooled(node, x.shape)
        if indices.min(initial=0) < 0:
            raise ValueError(f"index {indices.min()} is negative")
        y: np.ndarray = np.zeros(inner, x.dtype)
        y.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
        if output_shape is None:
            return y
        whole: np.ndarray = np.zeros(tuple(output_shape.tolist()), x.dtype)
        whole[tuple(slice(0, size) for size in inner)] = y
        return whole


@op("LRN")
class LRN:
    """y = x / (bias + alpha / size * the sum of x^2 over `size` channels around each)^beta."""

    signature = "x: F -> y"
    attributes = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0, "size": None}

    def infer(node: Node) -> list[Type]:
        x = dims(node)
        if len(x) < 2 or (node.attrs["size"] or 0) < 1:
            raise ModelError(f"{where_is(node)} size {node.attrs['size']} of the channels of {x}")
        return [Type(node.inputs[0].dtype, x)]

    @half_as_single
    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        size, channels = node.attrs["size"], x.shape[1]
        square: np.ndarray = np.zeros_like(x)
        for c in range(channels):
            first, end = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
            square[:, c] = np.square(x[:, first:end]).sum(1)
        scale = node.attrs["bias"] + node.attrs["alpha"] / size * square
        return np.asarray(x / scale ** node.attrs["beta"], x.dtype)

    def decompose(
        g: Any, x: Value, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 0
    ) -> Value:
        """A mean over windows of channels, as if they were the lines of an image."""
        if 0 in x.shape:  # which has no windows
            return g.Identity(x)
        batch, channels, *rest = x.shape
        lines = g.Reshape(g.Mul(x, x), [batch, 1, channels, product(rest)])
        mean = g.AveragePool(
            lines,
            kernel_shape=(size, 1),
            pads=((size - 1) // 2, 0, size // 2, 0),
            count_include_pad=1,
        )
        scale = g.Add(g.Mul(g.Reshape(mean, list(x.shape)), alpha), bias)
        return g.Div(x, g.Pow(scale, beta))
