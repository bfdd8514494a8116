"""Integers that stand for real numbers, real = (q - zero) * scale.

Source: ONNX QuantizeLinear and its kin; Jacob et al. 2018, section 2.1.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, product
from q7x2_ep.ops import op
from q7x2_ep.ops.cast import FLOAT8, converted
from q7x2_ep.ops.common import (
    BYTES,
    F32,
    Guard,
    check_known,
    dims,
    in_order,
    normal_axis,
    require_dtype,
    size_guards,
    where_is,
)

SMALL = (*BYTES, dtypes.UINT16, dtypes.INT16, dtypes.UINT4, dtypes.INT4, dtypes.UINT2, dtypes.INT2)
QUANTIZED = (*SMALL, dtypes.INT32)
PRECISIONS = (*F32, *sorted(dtypes.HALVES))


def is_blocked(node: Node) -> bool:
    """Whether each scale belongs to a block of an axis of x, of the rank of x then."""
    x, scale = node.inputs[:2]
    return node.attrs["block_size"] > 0 and len(scale.shape) == len(x.shape) > 0


def _has_axis(node: Node) -> bool:
    """Not so: that of a vector or of one number, which exporters leave at 1."""
    return node.attrs["axis"] < len(node.inputs[0].shape)


def along(node: Node, x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Scales or zeros of `node` shaped to broadcast with x: for all, per axis, or per block."""
    if values.size == 1:
        return values.reshape(())
    axis = node.attrs["axis"] % x.ndim
    if is_blocked(node):
        repeated = np.repeat(values, node.attrs["block_size"], axis)
        return np.take(repeated, np.arange(x.shape[axis]), axis)
    return values.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def saturated(x: np.ndarray, dtype: Any) -> np.ndarray:
    """x, integral or infinite, in an integer dtype."""
    limits = integer_limits(dtype)
    return np.clip(x, limits.min, limits.max).astype(dtype)


def integer_limits(dtype: Any) -> Any:
    """As np.iinfo, for integers of ml_dtypes too."""
    if np.dtype(dtype).kind in "iu":
        return np.iinfo(dtype)
    import ml_dtypes

    return ml_dtypes.iinfo(dtype)


def quantization(node: Node, scale: Value, x: Value) -> dict[str, Dim]:
    """Where the scales of a step belong that quantises x: to all, to an axis, or to blocks of it.

    Raises: UnsupportedOp for scales of another dtype than float32.
    """
    require_dtype(node, scale.dtype, F32)
    if product(scale.shape) == 1 or not _has_axis(node):
        return one_scale(x)
    axis = normal_axis(node, node.attrs["axis"], len(x.shape))
    outer, n, inner = product(x.shape[:axis]), x.shape[axis], product(x.shape[axis + 1 :])
    block = node.attrs["block_size"] if is_blocked(node) else 0
    scales = product(scale.shape)  # more than one: n, or by blocks, also where n is 1
    return {"outer": outer, "n": n, "inner": inner, "scales": scales, "block": block}


def one_scale(x: Value) -> dict[str, Dim]:
    """As `quantization`, of one scale for all elements."""
    return {"outer": 1, "n": 1, "inner": product(x.shape), "scales": 1, "block": 0}


def scale_guards(node: Node) -> list[Guard]:
    """One scale, or one for each entry or block of the axis; as many zeros."""
    x, scale = node.inputs[:2]
    count = product(scale.shape)
    found = size_guards((node.input(2),), count)
    if count == 1:
        return found
    if not _has_axis(node):
        return found + size_guards((scale,), 1)
    axis = normal_axis(node, node.attrs["axis"], len(x.shape))
    if not is_blocked(node):
        n = x.shape[axis]
        if isinstance(count, int):
            return found + size_guards((scale,), n)
        unlike = (count - 1) * (n - count)
        return [*found, (unlike, 0, f"{scale.name}: {count} elements, wanted {n}, or 1")]
    wanted = list(x.shape)
    wanted[axis] = ceildiv(x.shape[axis], node.attrs["block_size"])
    return found + [
        (own, dim, f"{scale.name}: dim {own}, wanted {dim}")
        for own, dim in zip(scale.shape, wanted)
    ]


def check_scales(node: Node) -> None:
    """Raises: ModelError for scales, or zeros, that fit no feed, and an unknown output dtype."""
    if node.attrs["output_dtype"] and node.attrs["output_dtype"] not in dtypes.DTYPES:
        raise ModelError(f"{where_is(node)} output_dtype is {node.attrs['output_dtype']}")
    if all(value is None or value.shape is not None for value in node.inputs):
        check_known(scale_guards(node), node)


def same_zero(node: Node, dtype: int) -> None:
    """Raises: UnsupportedOp where the zero points are of another dtype."""
    zero = node.input(2)
    require_dtype(node, dtype if zero is None else zero.dtype, (dtype,))


def require_constants(node: Node, *values: Optional[Value]) -> None:
    """Raises: UnsupportedOp where a weight, zero or scale is computed."""
    for value in values:
        if value is not None and value.const is None:
            raise UnsupportedOp(f"{where_is(node)} has a kernel for a constant {value.name!r} only")


@op("QuantizeLinear")
class QuantizeLinear:
    """y = saturate(round(x / scale) + zero), to even, per tensor, axis or block of an axis.

    They are divided in the dtype `precision`, that of the scale where it is 0. To floats of 8 bits
    the quotient is cast, `saturate` or not, and to floats of 4 and 6 bits with the zero added.
    """

    signature = "x: N, scale: N1, zero?: Q -> y"
    attributes = {"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1}
    takes_late = True  # exporters spell shared weights as Identity, behind which tools quantise

    def infer(node: Node) -> list[Type]:
        check_scales(node)
        zero = node.input(2)
        dtype = node.attrs["output_dtype"] or dtypes.UINT8
        return [Type(dtype if zero is None else zero.dtype, dims(node))]

    guards = scale_guards

    def reference(
        node: Node, x: np.ndarray, scale: np.ndarray, zero: Optional[np.ndarray] = None
    ) -> np.ndarray:
        to = node.attrs["output_dtype"] or dtypes.UINT8
        to = to if zero is None else dtypes.from_numpy(zero.dtype)
        dtype = dtypes.DTYPES[to].numpy
        exact = x.dtype == np.float64  # an oracle's
        precision = node.attrs["precision"] or dtypes.from_numpy(scale.dtype)
        own = np.dtype(np.float64) if exact else dtypes.DTYPES[precision].numpy
        quotient = x.astype(own) / along(node, x, scale).astype(own)
        if own.kind != "f":  # of ml_dtypes: exact in float32
            quotient = quotient.astype(np.float32)
        if to in FLOAT8:
            return converted(quotient, to, node.attrs["saturate"])
        if dtypes.is_float(to):
            zeros = 0 if zero is None else along(node, x, zero).astype(quotient.dtype)
            return (quotient + zeros).astype(dtype)
        y = np.rint(quotient.astype(np.float64))
        if zero is not None:
            y = y + along(node, x, zero).astype(np.float64)
        lowest = integer_limits(dtype).min
        return saturated(np.where(np.isnan(y), lowest, y), dtype)

    def lower(node: Node, b: Any) -> None:
        x, scale = node.inputs[:2]
        y, precision = node.output, node.attrs["precision"] or dtypes.FLOAT
        require_dtype(node, x.dtype, F32)
        require_dtype(node, y.dtype, SMALL)
        require_dtype(node, precision, PRECISIONS)
        fields = quantization(node, scale, x)
        (x,), place = in_order(b, [x], y) if fields["scales"] == 1 else ([x], y)
        given = {"x": x, "scale": scale, "zero": node.input(2), "precision": precision}
        b.step("quantize", kernel="quantize", y=place, y_dtype=y.dtype, **given, **fields)


@op("DequantizeLinear")
class DequantizeLinear:
    """y = (x - zero) * scale, per tensor, axis or block of an axis.

    Of constants it is folded only after fusion, which looks for it. in_bytes: set where products by
    what is dequantised in blocks may round rows to int8.
    """

    signature = "x: Q, scale: F, zero?: Q -> y"
    attributes = {"axis": 1, "block_size": 0, "output_dtype": 0, "in_bytes": None}
    own = ("in_bytes",)
    folds_late = True

    def infer(node: Node) -> list[Type]:
        check_scales(node)
        return [Type(node.attrs["output_dtype"] or node.inputs[1].dtype, dims(node))]

    guards = scale_guards

    def reference(
        node: Node, x: np.ndarray, scale: np.ndarray, zero: Optional[np.ndarray] = None
    ) -> np.ndarray:
        wide = np.float64 if scale.dtype == np.float64 else np.float32  # float64: an oracle's
        real = x.astype(np.float64)
        if zero is not None:
            real = real - along(node, x, zero).astype(np.float64)
        y = real.astype(wide) * along(node, x, scale).astype(wide)
        to = node.attrs["output_dtype"] or dtypes.from_numpy(scale.dtype)
        return y if wide is np.float64 else y.astype(dtypes.DTYPES[to].numpy)

    def lower(node: Node, b: Any) -> None:
        x, scale, zero = *node.inputs[:2], node.input(2)
        require_dtype(node, node.output.dtype, F32)
        require_dtype(node, x.dtype, QUANTIZED)
        same_zero(node, x.dtype)
        fields, dtype = quantization(node, scale, x), x.dtype
        (x,), y = in_order(b, [x], node.output) if fields["scales"] == 1 else ([x], node.output)
        given = {"x": x, "scale": scale, "zero": zero}
        b.step("dequantize", kernel="dequantize", y=y, x_dtype=dtype, **given, **fields)


@op("DynamicQuantizeLinear")
class DynamicQuantizeLinear:
    """x as uint8, with the scale and zero that its own range, 0 included, asks for; scale 1 where
    all are 0, as onnxruntime has it.
    """

    signature = "x: float32 -> y, scale, zero"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        x = node.inputs[0]
        return [Type(dtypes.UINT8, dims(node)), Type(x.dtype, ()), Type(dtypes.UINT8, ())]

    def decompose(g: Any, x: Value) -> tuple[Value, Value, Value]:
        low = g.Min(g.ReduceMin(x, keepdims=0), 0.0)
        high = g.Max(g.ReduceMax(x, keepdims=0), 0.0)
        scale = g.Where(g.Equal(high, low), 1.0, g.Div(g.Sub(high, low), 255.0))
        zero = g.Round(g.Div(g.Neg(low), scale))
        zero = g.Where(g.Less(zero, 255.0), zero, 255.0)  # NaN, where low is -inf, is 255
        zero = g.Cast(zero, to=dtypes.UINT8)
        return g.QuantizeLinear(x, scale, zero), scale, zero

    def lower(node: Node, b: Any) -> None:
        x, (y, scale, zero) = node.inputs[0], node.outputs
        require_dtype(node, x.dtype, F32)
        n = product(x.shape)
        given = {"x": x, "y": y, "scale": scale, "zero": zero}
        ranges = 8 * ceildiv(n, b.constants["QUANTIZE_GRAIN"])
        b.step("dynamic_quantize", kernel="quantize", ranges=ranges, n=n, **given)
