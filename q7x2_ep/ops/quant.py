"""Integers that stand for real numbers, real = (q - zero) * scale, and products of them.

Source: ONNX QuantizeLinear and its kin; Jacob et al. 2018, section 2.1.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    Guard,
    dims,
    normal_axis,
    require_dtype,
    size_guards,
    where_is,
)

BYTES = (dtypes.UINT8, dtypes.INT8)
QUANTIZED = (*BYTES, dtypes.INT32)


def along(node: Node, x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Scales or zeros of `node` shaped to broadcast with x: for all, per axis, or per block."""
    if values.size == 1:
        return values.reshape(())
    axis = node.attrs["axis"] % x.ndim
    if node.attrs["block_size"]:
        repeated = np.repeat(values, node.attrs["block_size"], axis)
        return np.take(repeated, np.arange(x.shape[axis]), axis)
    return values.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def saturated(x: np.ndarray, dtype: Any) -> np.ndarray:
    """x, integral or infinite, in an integer dtype."""
    limits = np.iinfo(dtype)
    return np.clip(x, limits.min, limits.max).astype(dtype)


def quantization(node: Node, scale: Value, x: Value) -> dict[str, Dim]:
    """outer, n, inner and scales of a step that quantises x along the node's axis, or as a whole.

    Raises: UnsupportedOp for blocks, and for scales of another dtype than float32.
    """
    require_dtype(node, scale.dtype, F32)
    if product(scale.shape) == 1:
        return {"outer": 1, "n": 1, "inner": product(x.shape), "scales": 1}
    if node.attrs["block_size"]:
        raise UnsupportedOp(f"{where_is(node)} has no kernel for scales of blocks")
    axis = normal_axis(node, node.attrs["axis"], len(x.shape))
    outer, inner = product(x.shape[:axis]), product(x.shape[axis + 1 :])
    return {"outer": outer, "n": x.shape[axis], "inner": inner, "scales": x.shape[axis]}


def scale_guards(node: Node) -> list[Guard]:
    """One scale, or one for each entry of the axis; as many zeros."""
    x, scale = node.inputs[:2]
    count = product(scale.shape)
    found = size_guards((node.input(2),), count)
    if count == 1 or node.attrs["block_size"]:
        return found
    n = x.shape[normal_axis(node, node.attrs["axis"], len(x.shape))]
    return found + size_guards((scale,), n)


@op("QuantizeLinear")
class QuantizeLinear:
    """y = saturate(round(x / scale) + zero), to even, per tensor, axis or block of an axis."""

    signature = "x, scale, zero? -> y"
    attributes = {"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1}

    def infer(node: Node) -> list[Type]:
        zero = node.input(2)
        dtype = node.attrs["output_dtype"] or dtypes.UINT8
        return [Type(dtype if zero is None else zero.dtype, dims(node))]

    guards = scale_guards

    def reference(
        node: Node, x: np.ndarray, scale: np.ndarray, zero: Optional[np.ndarray] = None
    ) -> np.ndarray:
        y = np.rint(x / along(node, x, scale))
        if zero is not None:
            return saturated(y + along(node, x, zero), zero.dtype)
        return saturated(y, dtypes.DTYPES[node.attrs["output_dtype"] or dtypes.UINT8].numpy)

    def lower(node: Node, b: Any) -> None:
        x, scale = node.inputs[:2]
        y = node.output
        require_dtype(node, x.dtype, F32)
        require_dtype(node, y.dtype, BYTES)
        given = {"x": x, "scale": scale, "zero": node.input(2)}
        b.step("quantize", y=y, y_dtype=y.dtype, **given, **quantization(node, scale, x))


@op("DequantizeLinear")
class DequantizeLinear:
    """y = (x - zero) * scale, per tensor, axis or block of an axis.

    Of constants it is folded only after fusion, which looks for it.
    """

    signature = "x, scale, zero? -> y"
    attributes = {"axis": 1, "block_size": 0, "output_dtype": 0}
    folds_late = True

    def infer(node: Node) -> list[Type]:
        return [Type(node.attrs["output_dtype"] or node.inputs[1].dtype, dims(node))]

    guards = scale_guards

    def reference(
        node: Node, x: np.ndarray, scale: np.ndarray, zero: Optional[np.ndarray] = None
    ) -> np.ndarray:
        whole = x.astype(np.int64)
        if zero is not None:
            whole = whole - along(node, x, zero).astype(np.int64)
        return whole.astype(scale.dtype) * along(node, x, scale)

    def lower(node: Node, b: Any) -> None:
        x, scale, zero = *node.inputs[:2], node.input(2)
        require_dtype(node, node.output.dtype, F32)
        require_dtype(node, x.dtype, QUANTIZED)
        require_dtype(node, x.dtype if zero is None else zero.dtype, (x.dtype,))
        given = {"x": x, "scale": scale, "zero": zero}
        fields = quantization(node, scale, x)
        b.step("dequantize", y=node.output, x_dtype=x.dtype, **given, **fields)


@op("DynamicQuantizeLinear")
class DynamicQuantizeLinear:
    """x as uint8, with the scale and zero that its own range, 0 included, asks for."""

    signature = "x -> y, scale, zero"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        x = node.inputs[0]
        return [Type(dtypes.UINT8, dims(node)), Type(x.dtype, ()), Type(dtypes.UINT8, ())]

    def decompose(g: Any, x: Value) -> tuple[Value, Value, Value]:
        low = g.Min(g.ReduceMin(x, keepdims=0), 0.0)
        high = g.Max(g.ReduceMax(x, keepdims=0), 0.0)
        scale = g.Div(g.Sub(high, low), 255.0)
        zero = g.Clip(g.Round(g.Div(g.Neg(low), scale)), 0.0, 255.0)
        zero = g.Cast(zero, to=dtypes.UINT8)
        return g.QuantizeLinear(x, scale, zero), scale, zero


def integer_product(
    a: np.ndarray,
    b: np.ndarray,
    a_zero: Union[np.ndarray, int, None],
    b_zero: Union[np.ndarray, int, None],
) -> np.ndarray:
    """(a - a_zero) @ (b - b_zero) in 64 bits. A zero per row of a is a column."""

    def centred(x: np.ndarray, zero: Any) -> np.ndarray:
        return x.astype(np.int64) - (0 if zero is None else np.asarray(zero).astype(np.int64))

    if a_zero is not None and np.ndim(a_zero) == 1 and np.size(a_zero) > 1:
        a_zero = np.asarray(a_zero)[:, None]
    return centred(a, a_zero) @ centred(b, b_zero)


def qgemm_step(
    b: Any,
    node: Node,
    a: Value,
    weight: Value,
    a_zero: Optional[Value],
    weight_zero: Optional[Value],
    scale: Optional[Value] = None,
    bias: Optional[Value] = None,
    zero: Optional[Value] = None,
) -> None:
    """node.output = (a - a_zero) @ (weight - weight_zero), scaled and rounded as its dtype asks.

    Shapes: a (.., K), weight (K, N) constant, weight_zero one number or (N,), scale one number or
    (N,), bias (N,).
    Raises: UnsupportedOp where weight is computed, or numbers differ between the rows of a.
    """
    if weight.const is None or (weight_zero is not None and weight_zero.const is None):
        raise UnsupportedOp(f"{where_is(node)} has a kernel for constant weights only")
    if len(weight.shape) != 2:
        raise UnsupportedOp(f"{where_is(node)} has a kernel for one matrix")
    y, (k, n) = node.output, weight.shape
    for value, sizes in ((a_zero, (1,)), (zero, (1,)), (weight_zero, (1, n)), (scale, (1, n))):
        if value is not None and product(value.shape) not in sizes:
            raise UnsupportedOp(f"{where_is(node)} has no kernel for {value} of {value.shape}")
    for value in (a, weight):
        require_dtype(node, value.dtype, BYTES)
    require_dtype(node, y.dtype, (*BYTES, dtypes.INT32, *F32))
    b.guard(a.shape[-1], k, "inner dims differ")
    zeros = 0 if weight_zero is None else weight_zero.const
    packed = pack(weight.const.astype(np.int16) - zeros, b.kernel("qgemm").nr)
    b.step(
        "qgemm",
        kernel="qgemm",
        a=a,
        a_zero=a_zero,
        b=b.graph.constant(packed, Type(dtypes.INT16, packed.shape), f"{weight.name}.packed"),
        scale=scale,
        bias=bias,
        zero=zero,
        c=y,
        rows=b.threads * b.constants["QGEMM_ROWS"] * ceildiv(k, 2) * 4,
        m=product(a.shape[:-1]),
        n=n,
        k=k,
        a_dtype=a.dtype,
        c_dtype=y.dtype,
        scales=1 if scale is None else product(scale.shape),
    )


def pack(weight: np.ndarray, nr: int) -> np.ndarray:
    """weight (K, N) as panels of nr columns with pairs of k side by side: csrc/kernels/qgemm.h."""
    k, n = weight.shape
    padded = np.zeros((-(-k // 2) * 2, -(-n // nr) * nr), np.int16)
    padded[:k, :n] = weight
    pairs = padded.reshape(-1, 2, padded.shape[1] // nr, nr)  # (pairs, 2, panels, nr)
    return np.ascontiguousarray(pairs.transpose(2, 0, 3, 1))


@op("MatMulInteger")
class MatMulInteger:
    """y = (a - a_zero) @ (b - b_zero) in int32."""

    signature = "a, b, a_zero?, b_zero? -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        a, b = dims(node, 0), dims(node, 1)
        return [Type(dtypes.INT32, (*a[:-1], b[-1]) if len(b) == 2 else (*a[:-2], a[-2], b[-1]))]

    def reference(
        node: Node,
        a: np.ndarray,
        b: np.ndarray,
        a_zero: Optional[np.ndarray] = None,
        b_zero: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        return integer_product(a, b, a_zero, b_zero).astype(np.int32)

    def lower(node: Node, b: Any) -> None:
        a, weight = node.inputs[:2]
        qgemm_step(b, node, a, weight, node.input(2), node.input(3))


@op("QLinearMatMul")
class QLinearMatMul:
    """y = saturate(round(real a @ real b / y_scale) + y_zero), real x = (x - x_zero) * x_scale."""

    signature = "a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        a, b = dims(node, 0), dims(node, 3)
        return [Type(node.inputs[7].dtype, (*a[:-1], b[-1]))]

    def reference(
        node: Node,
        a: np.ndarray,
        a_scale: np.ndarray,
        a_zero: np.ndarray,
        b: np.ndarray,
        b_scale: np.ndarray,
        b_zero: np.ndarray,
        y_scale: np.ndarray,
        y_zero: np.ndarray,
    ) -> np.ndarray:
        if a_scale.ndim == 1 and a_scale.size > 1:
            a_scale = a_scale[:, None]
        y = integer_product(a, b, a_zero, b_zero) * (a_scale * b_scale / y_scale)
        return saturated(np.rint(y) + y_zero, y_zero.dtype)

    def lower(node: Node, b: Any) -> None:
        a, a_scale, a_zero, weight, b_scale, b_zero, y_scale, y_zero = node.inputs
        qgemm_step(
            b,
            node,
            a,
            weight,
            a_zero,
            b_zero,
            scale=ratio(b, node, [a_scale, b_scale], y_scale),
            zero=y_zero,
        )


def ratio(b: Any, node: Node, over: list[Value], under: Optional[Value]) -> Value:
    """The product of the scales of rows and of columns, over that of the result.

    Raises: UnsupportedOp where they are computed, or differ between rows.
    """
    scales = [*over] if under is None else [*over, under]
    if any(scale.const is None for scale in scales):
        raise UnsupportedOp(f"{where_is(node)} has a kernel for constant scales only")
    if any(product(scale.shape) != 1 for scale in (over[0], under) if scale is not None):
        raise UnsupportedOp(f"{where_is(node)} has a kernel for one scale of all rows only")
    number = over[0].const * over[1].const
    number = np.ravel(number if under is None else number / under.const).astype(np.float32)
    return b.graph.constant(number, Type(dtypes.FLOAT, number.shape), "scale")


@op("q7::QuantizedLinear")
class QuantizedLinear:
    """y = dequantize(x) @ dequantize(w) + bias, quantised again where y_scale is given.

    Shapes: x (.., K) with one scale and zero, w (K, N) with one or N of each, bias (N,), y (.., N).
    Types: x and w uint8 or int8, all constant but x; y of y_zero's dtype, else float.
    """

    signature = "x, x_scale, x_zero?, w, w_scale, w_zero?, bias?, y_scale?, y_zero? -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        x, w, zero = node.inputs[0], node.inputs[3], node.input(8)
        dtype = dtypes.UINT8 if zero is None else zero.dtype
        quantized = node.input(7) is not None
        return [Type(dtype if quantized else dtypes.FLOAT, (*x.shape[:-1], w.shape[1]))]

    def decompose(
        g: Any,
        x: Value,
        x_scale: Value,
        x_zero: Optional[Value],
        w: Value,
        w_scale: Value,
        w_zero: Optional[Value] = None,
        bias: Optional[Value] = None,
        y_scale: Optional[Value] = None,
        y_zero: Optional[Value] = None,
    ) -> Value:
        y = g.MatMul(
            g.DequantizeLinear(x, x_scale, x_zero), g.DequantizeLinear(w, w_scale, w_zero, axis=1)
        )
        y = y if bias is None else g.Add(y, bias)
        return y if y_scale is None else g.QuantizeLinear(y, y_scale, y_zero)

    def lower(node: Node, b: Any) -> None:
        x, x_scale, x_zero, w, w_scale, w_zero, bias, y_scale, y_zero = (
            node.input(i) for i in range(9)
        )
        if bias is not None and y_scale is not None:  # it is added after the scale
            divided = np.ravel(bias.const / y_scale.const).astype(np.float32)
            bias = b.graph.constant(divided, Type(dtypes.FLOAT, divided.shape), "bias")
        scale = ratio(b, node, [x_scale, w_scale], y_scale)
        qgemm_step(b, node, x, w, x_zero, w_zero, scale, bias, y_zero)
