"""Normalisations: mean 0 and variance 1, or root mean square 1, over some dims; scale and shift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, floordiv, product, substitute, symbols
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    FLOATS,
    Guard,
    allocate_rows,
    binary_step,
    cast_to,
    dims,
    expand_view,
    fit_guards,
    infer_same,
    is_image,
    is_used,
    materialized,
    normal_axis,
    number,
    reduce_step,
    require_dtype,
    reshaped,
    size_guards,
    temporary,
    unary_step,
    where_is,
)
from q7x2_ep.ops.image import pixels_of, room_of

PART = 8192  # elements of a part of an image, of which L1 holds all until they are squared


def standardize(
    x: np.ndarray, axes: tuple[int, ...], epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x - mean) / sqrt(variance + epsilon) over axes; the mean; the reciprocal of the root."""
    x = widened(x)
    mean = x.mean(axes, keepdims=True)
    scale = 1 / np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + x.dtype.type(epsilon))
    return (x - mean) * scale, mean, scale


def widened(x: np.ndarray) -> np.ndarray:
    """x in float32, or wider where it is: statistics of halves would be coarse."""
    return x.astype(np.result_type(x.dtype, np.float32), copy=False)


def per_channel(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """values (C,) shaped to broadcast with x (N, C, ..)."""
    return values.reshape(-1, *(1 for _ in x.shape[2:]))


def normalized_rows(
    b: Any, x: View, epsilon: float, centred: bool
) -> tuple[Value, Optional[Value], Value]:
    """Steps that normalise the rows of x (rows, cols).

    Returns the result, the mean (if centred) and 1 / root, both (rows, 1).
    """
    dtype, (rows, cols) = x.storage.dtype, x.shape
    mean = None
    rest: Any = x
    if centred:
        mean, rest = temporary(b, dtype, (rows, 1)), temporary(b, dtype, x.shape)
        reduce_step(b, "mean", x, mean, rows, cols, 1)
        binary_step(b, "sub", x, mean, rest)
    square, power, shifted, root, scale = (
        temporary(b, dtype, shape)
        for shape in (x.shape, (rows, 1), (rows, 1), (rows, 1), (rows, 1))
    )
    binary_step(b, "mul", rest, rest, square)
    reduce_step(b, "mean", square, power, rows, cols, 1)
    binary_step(b, "add", power, number(b, epsilon, dtype), shifted)
    unary_step(b, "sqrt", shifted, root)
    unary_step(b, "reciprocal", root, scale)
    y = temporary(b, dtype, x.shape)
    binary_step(b, "mul", rest, scale, y)
    return y, mean, scale


def scale_and_shift(
    b: Any, x: View, scale: Optional[View], shift: Optional[View], y: Value
) -> None:
    """y = x * scale + shift, of views that broadcast to the shape of y."""
    if scale is None:
        b.copy(x, b.allocate(y))
    elif shift is None:
        binary_step(b, "mul", x, scale, y)
    else:
        scaled = temporary(b, y.dtype, y.shape)
        binary_step(b, "mul", x, scale, scaled)
        binary_step(b, "add", scaled, shift, y)


def channel_view(b: Any, values: Value, ndim: int) -> View:
    """values (C,) as (C, 1, ..), to broadcast with (N, C, ..)."""
    return b.view(values).reshape((*values.shape, *(1,) * (ndim - 2)))


def channel_guards(node: Node) -> list[Guard]:
    """One number per channel, in one dim."""
    rows = [value for value in node.inputs[1:] if value is not None]
    ranks = [(len(row.shape), 1, f"{row.name} has shape {row.shape}") for row in rows]
    return ranks + size_guards(rows, (*dims(node), 1)[1])


def lower_by_channel(node: Node, b: Any, groups: Dim) -> None:
    """Normalise groups of channels, each of one batch entry, then scale and shift every channel."""
    x, scale, bias = node.inputs
    (batch, channels, *inner), epsilon = x.shape, node.attrs["epsilon"]
    require_dtype(node, x.dtype, FLOATS)
    if x.dtype == dtypes.FLOAT and isinstance(channels, int) and is_image(b, x):
        pixels, y, part = pixels_of(b, x), room_of(b, node.output), max(PART // channels, 1)
        rows = 2 * ceildiv(product(inner), part) + 2
        b.step(
            "groupnorm",
            kernel="groupnorm",
            x=pixels,
            weight=scale,
            bias=bias,
            y=y,
            sums=batch * rows * channels * 4,
            N=batch,
            pixels=product(inner),
            C=channels,
            groups=groups,
            part=part,
            x_stride=pixels.strides[0],
            y_stride=y.strides[0],
            eps=epsilon,
        )
        return
    pixels = product(inner)
    flat_x = flat(b, x, batch * groups, floordiv(channels, groups) * pixels)
    if x.dtype == dtypes.FLOAT:
        rows, y = (temporary(b, dtypes.FLOAT, flat_x.shape) for _ in range(2))
        b.alias(rows, flat_x)
        affine = {"weight": scale, "bias": bias, "weight_rows": groups, "run": pixels}
        norm_step(b, "layernorm", rows, 1, y, epsilon, **affine)
        b.alias(node.output, b.view(y).reshape(x.shape))
        return
    normal = b.view(normalized_rows(b, flat_x, epsilon, True)[0]).reshape(x.shape)
    weights = (channel_view(b, each, len(x.shape)) for each in (scale, bias))
    scale_and_shift(b, normal, *weights, node.output)


@op("LayerNormalization")
class LayerNormalization:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias over the dims from `axis` on."""

    signature = "x: F, scale: F, bias?: F -> y, mean?, inv_std_dev?"
    attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    strided = (0,)

    def infer(node: Node) -> list[Type]:
        shape, dtype = dims(node), node.inputs[0].dtype
        require_rows(node)
        axis = normal_axis(node, node.attrs["axis"], len(shape))
        per_row = (*shape[:axis], *(1 for _ in shape[axis:]))
        return [
            Type(dtype, shape),
            Type(node.attrs["stash_type"], per_row),
            Type(node.attrs["stash_type"], per_row),
        ]

    def reference(
        node: Node, x: np.ndarray, scale: np.ndarray, bias: Optional[np.ndarray] = None
    ) -> tuple[np.ndarray, ...]:
        axes = tuple(range(node.attrs["axis"] % x.ndim, x.ndim))
        normal, *statistics = standardize(x, axes, node.attrs["epsilon"])
        y = normal.astype(x.dtype, copy=False) * scale
        if dtypes.from_numpy(x.dtype) == node.inputs[0].dtype:  # else all is wider than declared
            statistics = [
                each.astype(dtypes.DTYPES[node.attrs["stash_type"]].numpy) for each in statistics
            ]
        return (y if bias is None else y + bias, *statistics)

    def guards(node: Node) -> list[Guard]:
        return fit_guards(node.inputs[1:], dims(node))

    def lower(node: Node, b: Any) -> None:
        x, scale, bias = node.inputs[0], node.inputs[1], node.input(2)
        if is_used(b, node, 1) or is_used(b, node, 2):
            require_dtype(node, x.dtype, FLOATS)
            axis = normal_axis(node, node.attrs["axis"], len(x.shape))
            rows, cols = product(x.shape[:axis]), product(x.shape[axis:])
            _, mean, inv_std_dev = normalized_rows(
                b, flat(b, x, rows, cols), node.attrs["epsilon"], True
            )
            for output, found in zip(node.outputs[1:], (mean, inv_std_dev)):
                stashed = cast_to(b, found, output.dtype)
                b.alias(output, b.view(stashed).reshape(output.shape))
        lower_norm(node, b, "layernorm", scale, bias)


def require_rows(node: Node) -> None:
    """Raises: ModelError where a weight or bias is certain not to repeat to the shape of x."""
    shape = dims(node)
    for value in node.inputs[1:]:
        given = value.shape if value is not None and value.shape is not None else ()
        pairs = zip(reversed(given), reversed(shape))
        fits = all(a in (1, b) or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs)
        if not fits or len(given) > len(shape):
            raise ModelError(
                f"{where_is(node)} {value} of shape {given} does not repeat to {shape}"
            )


def lower_norm(node: Node, b: Any, op: str, weight: Value, bias: Optional[Value] = None) -> None:
    """A norm over the dims from `axis` on; weights or biases of many rows come behind it."""
    x, y, epsilon = node.inputs[0], node.output, node.attrs["epsilon"]
    inner = x.shape[normal_axis(node, node.attrs["axis"], len(x.shape)) :]
    if x.dtype == dtypes.DOUBLE:
        cols = product(inner)
        rows = flat(b, x, product(x.shape[: len(x.shape) - len(inner)]), cols)
        normal, _, _ = normalized_rows(b, rows, epsilon, op == "layernorm")
        shift = None if bias is None else b.view(bias)
        scale_and_shift(b, b.view(normal).reshape(x.shape), b.view(weight), shift, y)
        return
    require_dtype(node, x.dtype, F32)
    if _is_row(weight, inner) and (bias is None or _is_row(bias, inner)):
        rows = {} if is_ones(weight) else {"weight": spread(b, weight, inner)}
        if bias is not None:
            rows["bias"] = spread(b, bias, inner)
        norm_step(b, op, x, len(inner), y, epsilon, **rows)
        return
    normal = temporary(b, y.dtype, y.shape)
    norm_step(b, op, x, len(inner), normal, epsilon)
    shift = None if bias is None else b.view(bias)
    scale_and_shift(b, b.view(normal), b.view(weight), shift, y)


def is_ones(weight: Value) -> bool:
    return weight.const is not None and bool((weight.const == 1).all())


def _is_row(value: Value, inner: tuple[Dim, ...]) -> bool:
    """Whether a value that broadcasts to rows of shape `inner` holds but one."""
    return all(dim == 1 for dim in value.shape[: len(value.shape) - len(inner)])


def norm_step(
    b: Any, op: str, x: Value, ndim: int, y: Value, epsilon: float, **operands: Any
) -> None:
    """Normalise x over its last `ndim` dims; operands: the optional ones of the op's row, dense.

    Where x is all that is added up its rows may lie anywhere, and y gets the memory order of x:
    neither a transposed x nor a y that is transposed back costs a copy.
    """
    leading, cols = x.shape[:-ndim], product(x.shape[-ndim:])
    view = b.view(x)
    order, groups = _rows_in_memory(view)
    if ndim > 1 or view.strides[-1] != 1 or len(groups) > 2 or operands.get("skip") is not None:
        view, order, groups = b.contiguous(x), range(len(x.shape)), [(product(leading), cols)]
    *outer, (inner_rows, row_stride) = groups or [(1, cols)]
    rows = product(leading)
    y_rows = allocate_rows(b, y, ndim, order).transpose(tuple(order)).reshape((rows, cols))
    y_stride = y_rows.strides[0]
    b.step(
        op,
        kernel=op,
        inplace="x" if not outer and row_stride == y_stride == cols else None,
        x=view,
        y=y_rows,
        rows=rows,
        cols=cols,
        inner_rows=inner_rows,
        x_outer_stride=outer[0][1] if outer else 0,
        x_row_stride=row_stride,
        y_stride=y_stride,
        eps=epsilon,
        **{"skip_rows": 1, "weight_rows": 1, "run": 1, **operands},
    )


def _rows_in_memory(view: View) -> tuple[Sequence[int], list[tuple[Dim, Dim]]]:
    """The dims of a view, outermost in memory first, and its rows as nested (count, stride).

    A symbol counts as a large number in that order, which is a guess: any is right.
    """

    def guess(stride: Dim) -> int:
        try:
            return int(substitute(stride, dict.fromkeys(symbols(stride), 1 << 20)))
        except ValueError:  # dims that do not broadcast where they are of this size
            return 0

    last = len(view.shape) - 1
    order: Sequence[int] = range(last + 1)
    if not view.is_contiguous():
        order = (*sorted(range(last), key=lambda i: -guess(view.strides[i])), last)
    groups: list[tuple[Dim, Dim]] = []
    for i in order[:-1]:
        dim, stride = view.shape[i], view.strides[i]
        if groups and groups[-1][1] == dim * stride:
            groups[-1] = (groups[-1][0] * dim, stride)
        elif dim != 1:
            groups.append((dim, stride))
    return order, groups


def flat(b: Any, x: Value, rows: Dim, cols: Dim) -> View:
    return b.contiguous(x).reshape((rows, cols))


def spread(b: Any, value: Value, shape: tuple[Dim, ...]) -> View:
    """One row that broadcasts to `shape`, densely in that shape."""
    row = reshaped(b, value, value.shape[-len(shape) :] if shape else ())
    return materialized(b, expand_view(row, shape))


@op("RMSNormalization")
class RMSNormalization:
    """y = x / sqrt(mean(x^2) + epsilon) * scale over the dims from `axis` on."""

    signature = "x: F, scale: F1 -> y"
    attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    strided = (0,)
    guards = LayerNormalization.guards

    def infer(node: Node) -> list[Type]:
        require_rows(node)
        return infer_same(node)

    def reference(node: Node, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        axes = tuple(range(node.attrs["axis"] % x.ndim, x.ndim))
        wide = widened(x)
        power = np.square(wide).mean(axes, keepdims=True) + wide.dtype.type(node.attrs["epsilon"])
        return (wide / np.sqrt(power)).astype(x.dtype, copy=False) * scale

    def lower(node: Node, b: Any) -> None:
        lower_norm(node, b, "rmsnorm", node.inputs[1])


@op("InstanceNormalization")
class InstanceNormalization:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias per batch entry and channel.

    Shapes: x (N, C, ..), scale and bias (C,).
    """

    signature = "x: F, scale: F, bias: F -> y"
    attributes = {"epsilon": 1e-5}
    infer = infer_same
    guards = channel_guards

    def reference(node: Node, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        y, _, _ = standardize(x, tuple(range(2, x.ndim)), node.attrs["epsilon"])
        return (y * per_channel(x, scale) + per_channel(x, bias)).astype(x.dtype, copy=False)

    def lower(node: Node, b: Any) -> None:
        lower_by_channel(node, b, node.inputs[0].shape[1])


@op("GroupNormalization")
class GroupNormalization:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias per batch entry and channel group.

    Shapes: x (N, C, ..), scale and bias (C,).
    """

    signature = "x: F, scale: F, bias: F -> y"
    attributes = {"epsilon": 1e-5, "num_groups": None, "stash_type": 1}

    def infer(node: Node) -> list[Type]:
        groups = node.attrs["num_groups"]
        if len(dims(node)) < 2 or (groups or 0) < 1:
            raise ModelError(f"{where_is(node)} {groups} groups of the channels of {dims(node)}")
        return infer_same(node)

    def guards(node: Node) -> list[Guard]:
        channels, groups = dims(node)[1], node.attrs["num_groups"]
        whole = floordiv(channels, groups) * groups
        text = f"{channels} channels do not make {groups} groups"
        return [*channel_guards(node), (whole, channels, text)]

    def reference(node: Node, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        groups = x.reshape(x.shape[0], node.attrs["num_groups"], -1)
        y = standardize(groups, (2,), node.attrs["epsilon"])[0].reshape(x.shape)
        return (y * per_channel(x, scale) + per_channel(x, bias)).astype(x.dtype, copy=False)

    def lower(node: Node, b: Any) -> None:
        lower_by_channel(node, b, node.attrs["num_groups"])


@op("BatchNormalization")
class BatchNormalization:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias, mean and variance given; in
    training mode those of x, of which the other outputs are running averages.

    Shapes: x (N, C, ..), the others (C,).
    """

    signature = (
        "x: F, scale: F1, bias: F1, mean: F2, variance: F2 -> y, running_mean?, running_variance?"
    )
    attributes = {"epsilon": 1e-5, "momentum": 0.9, "training_mode": 0}
    infer = lambda node: [*infer_same(node), node.inputs[3].type, node.inputs[4].type]
    guards = channel_guards

    def reference(
        node: Node,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        given = mean, variance
        if node.attrs["training_mode"]:
            axes = tuple(axis for axis in range(x.ndim) if axis != 1)
            mean, variance = widened(x).mean(axes), widened(x).var(axes)
        factor = scale / np.sqrt(widened(variance) + node.attrs["epsilon"])
        y = (x - per_channel(x, mean)) * per_channel(x, factor) + per_channel(x, bias)
        old = node.attrs["momentum"]
        averages = (a * old + now * (1 - old) for a, now in zip(given, (mean, variance)))
        outputs = zip((y, *averages), (x, *given))
        return tuple(array.astype(like.dtype, copy=False) for array, like in outputs)

    def lower(node: Node, b: Any) -> None:
        x, scale, bias, mean, variance = node.inputs
        if node.attrs["training_mode"] or len({value.dtype for value in node.inputs}) > 1:
            raise UnsupportedOp(f"{where_is(node)} has no kernel for training or mixed dtypes")
        require_dtype(node, x.dtype, FLOATS)
        shifted, root, factor = (temporary(b, x.dtype, scale.shape) for _ in range(3))
        binary_step(b, "add", variance, number(b, node.attrs["epsilon"], x.dtype), shifted)
        unary_step(b, "sqrt", shifted, root)
        binary_step(b, "div", scale, root, factor)
        ndim = len(x.shape)
        centred = temporary(b, x.dtype, x.shape)
        binary_step(b, "sub", x, channel_view(b, mean, ndim), centred)
        scale_and_shift(
            b,
            b.view(centred),
            channel_view(b, factor, ndim),
            channel_view(b, bias, ndim),
            node.output,
        )


@op("MeanVarianceNormalization")
class MeanVarianceNormalization:
    """y = (x - mean) / (sqrt(variance) + 1e-9) over axes."""

    signature = "x: F -> y"
    attributes = {"axes": (0, 2, 3)}
    infer = infer_same

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        axes, wide = tuple(node.attrs["axes"]), widened(x)
        rest = wide - wide.mean(axes, keepdims=True)
        return (rest / (wide.std(axes, keepdims=True) + 1e-9)).astype(x.dtype, copy=False)

    def decompose(g: Any, x: Value, axes: Sequence[int]) -> Value:
        rest = g.Sub(x, g.ReduceMean(x, list(axes)))
        deviation = g.Sqrt(g.ReduceMean(g.Mul(rest, rest), list(axes)))
        return g.Div(rest, g.Add(deviation, 1e-9))


@op("LpNormalization")
class LpNormalization:
    """y = x / norm along an axis: the sum of |x| (p = 1), or the root of that of x^2; 0 for 0."""

    signature = "x: F -> y"
    attributes = {"axis": -1, "p": 2}

    def infer(node: Node) -> list[Type]:
        if node.attrs["p"] not in (1, 2):
            raise ModelError(f"{where_is(node)} p is {node.attrs['p']}, wanted 1 or 2")
        normal_axis(node, node.attrs["axis"], len(dims(node)))
        return infer_same(node)

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        wide = widened(x)
        norm = np.linalg.norm(wide, node.attrs["p"], node.attrs["axis"], keepdims=True)
        return (wide / np.where(norm == 0, 1, norm)).astype(x.dtype, copy=False)

    def decompose(g: Any, x: Value, axis: int, p: int) -> Value:
        norm = (g.ReduceL1 if p == 1 else g.ReduceL2)(x, [axis])
        return g.Div(x, g.Where(g.Equal(norm, 0.0), 1.0, norm))
