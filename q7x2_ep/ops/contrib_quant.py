"""Quantised ops of the domain com.microsoft: dequantise, compute, quantise.

What the fusions make of a product between two of these computes in integers.
Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from typing import Any, Callable

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import product
from q7x2_ep.ir.view import channels_first, channels_last
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import Given, infer_meaning
from q7x2_ep.ops.pool import POOL_ATTRIBUTES, AveragePool
from q7x2_ep.ops.quant_conv import QLinearConv as StandardConv
from q7x2_ep.ops.rnn import LSTM


def real(g: Any, x: Value, scale: Value, zero: Given, axis: int = 1) -> Value:
    """The numbers that integers stand for; scales and zeros are one, or one per entry of axis."""
    scale, zero = _flat(g, scale), _flat(g, zero)
    if zero is not None and scale.shape and not zero.shape:
        zero = g.Expand(zero, list(scale.shape))
    return g.DequantizeLinear(x, scale, zero, axis=axis)


def quantized(g: Any, y: Value, scale: Value, zero: Given, dtype: int) -> Value:
    output = {"output_dtype": dtype} if zero is None else {}
    return g.QuantizeLinear(y, _flat(g, scale), _flat(g, zero), **output)


def _flat(g: Any, x: Given) -> Given:
    """One number without dims, or a vector."""
    if x is None or len(x.shape) == 0 or (len(x.shape) == 1 and product(x.shape) != 1):
        return x
    return g.Reshape(x, [] if product(x.shape) == 1 else [-1])


def channels_inner(g: Any, x: Value) -> Value:
    """(N, C, ..) as (N, .., C)."""
    return g.Transpose(x, perm=channels_last(len(x.shape)))


def channels_outer(g: Any, x: Value) -> Value:
    """(N, .., C) as (N, C, ..)."""
    return g.Transpose(x, perm=channels_first(len(x.shape)))


def _enter_binary(name: str, formula: Callable[..., Value]) -> None:
    @op(f"com.microsoft::QLinear{name}")
    class Binary:
        """y = quantize(formula(dequantize(a), dequantize(b)))."""

        signature = (
            "a: B, a_scale: float32, a_zero?: B, b: B, b_scale: float32, b_zero?: B, "
            "y_scale: float32, y_zero?: B -> y"
        )
        attributes: dict = {}
        infer = infer_meaning

        def decompose(
            g: Any,
            a: Value,
            a_scale: Value,
            a_zero: Given,
            b: Value,
            b_scale: Value,
            b_zero: Given,
            y_scale: Value,
            y_zero: Given = None,
        ) -> Value:
            y = formula(g, real(g, a, a_scale, a_zero), real(g, b, b_scale, b_zero))
            return quantized(g, y, y_scale, y_zero, a.dtype)


_enter_binary("Add", lambda g, a, b: g.Add(a, b))
_enter_binary("Mul", lambda g, a, b: g.Mul(a, b))


def _enter_unary(name: str, formula: Callable[..., Value], defaults: dict[str, Any]) -> None:
    @op(f"com.microsoft::QLinear{name}")
    class Unary:
        """y = quantize(formula(dequantize(x)))."""

        signature = "x: B, x_scale: float32, x_zero?: B, y_scale: float32, y_zero?: B -> y"
        attributes = defaults
        infer = infer_meaning

        def decompose(
            g: Any,
            x: Value,
            x_scale: Value,
            x_zero: Given,
            y_scale: Value,
            y_zero: Given = None,
            **attrs: Any,
        ) -> Value:
            y = formula(g, real(g, x, x_scale, x_zero), **attrs)
            return quantized(g, y, y_scale, y_zero, x.dtype)


def _softmax(g: Any, x: Value, axis: int, opset: int) -> Value:
    """Before opset 13 over all dims from `axis` on."""
    if opset >= 13:
        return g.Softmax(x, axis=axis)
    axis %= len(x.shape)
    outer, inner = product(x.shape[:axis]), product(x.shape[axis:])
    rows = g.Reshape(x, [outer, inner])
    return g.Reshape(g.Softmax(rows, axis=-1), list(x.shape))


def _pool(op: str) -> Callable[..., Value]:
    def formula(g: Any, x: Value, channels_last: int, **attrs: Any) -> Value:
        if not channels_last:
            return g.call(op, x, **attrs)
        return channels_inner(g, g.call(op, channels_outer(g, x), **attrs))

    return formula


_enter_unary("Sigmoid", lambda g, x: g.Sigmoid(x), {})
_enter_unary("LeakyRelu", lambda g, x, alpha: g.LeakyRelu(x, alpha=alpha), {"alpha": 0.01})
_enter_unary("Softmax", _softmax, {"axis": -1, "opset": 13})
_enter_unary("AveragePool", _pool("AveragePool"), {**AveragePool.attributes, "channels_last": 0})
_enter_unary("GlobalAveragePool", _pool("GlobalAveragePool"), {"channels_last": 0})


@op("com.microsoft::QLinearWhere")
class QLinearWhere:
    """z = quantize(condition ? dequantize(x) : dequantize(y))."""

    signature = (
        "condition: bool, x: B, x_scale: float32, x_zero: B, y: B, y_scale: float32, y_zero: B, "
        "z_scale: float32, z_zero: B -> z"
    )
    attributes: dict = {}
    infer = infer_meaning

    def decompose(
        g: Any,
        condition: Value,
        x: Value,
        x_scale: Value,
        x_zero: Value,
        y: Value,
        y_scale: Value,
        y_zero: Value,
        z_scale: Value,
        z_zero: Value,
    ) -> Value:
        z = g.Where(condition, real(g, x, x_scale, x_zero), real(g, y, y_scale, y_zero))
        return quantized(g, z, z_scale, z_zero, x.dtype)


@op("com.microsoft::QLinearConcat")
class QLinearConcat:
    """y = quantize(the dequantised operands, one behind the other); each is x, its scale, its
    zero.
    """

    signature = "y_scale: float32, y_zero: B, operands* -> y"
    attributes = {"axis": 0}
    infer = infer_meaning

    def decompose(g: Any, y_scale: Value, y_zero: Value, *operands: Value, axis: int) -> Value:
        triples = zip(operands[::3], operands[1::3], operands[2::3])
        y = g.Concat(*(real(g, *triple) for triple in triples), axis=axis)
        return quantized(g, y, y_scale, y_zero, operands[0].dtype)


@op("com.microsoft::QLinearConv")
class QLinearConv:
    """QLinearConv of ONNX, or with channels_last that of x and y (N, .., C)."""

    signature = StandardConv.signature
    attributes = {**StandardConv.attributes, "channels_last": 0}
    infer = infer_meaning

    def decompose(g: Any, x: Value, *operands: Given, channels_last: int, **attrs: Any) -> Value:
        if not channels_last:
            return g.QLinearConv(x, *operands, **attrs)
        return channels_inner(g, g.QLinearConv(channels_outer(g, x), *operands, **attrs))


@op("com.microsoft::NhwcMaxPool")
class NhwcMaxPool:
    """MaxPool of ONNX for x and y (N, .., C)."""

    signature = "x: B -> y"
    attributes = POOL_ATTRIBUTES
    infer = infer_meaning
    decompose = lambda g, x, **attrs: channels_inner(g, g.MaxPool(channels_outer(g, x), **attrs))


@op("com.microsoft::QGemm")
class QGemm:
    """y = alpha * a' @ b' + c, a' and b' dequantised, c integers in units of alpha * a_scale *
    b_scale; quantised where y_scale is given.
    """

    signature = (
        "a: B, a_scale: float32, a_zero: B, b: B1, b_scale: float32, b_zero: B1, c?: int32, "
        "y_scale?: float32, y_zero?: B2 -> y"
    )
    attributes = {"alpha": 1.0, "transA": 0, "transB": 0}
    infer = infer_meaning

    def decompose(
        g: Any,
        a: Value,
        a_scale: Value,
        a_zero: Value,
        b: Value,
        b_scale: Value,
        b_zero: Value,
        c: Given = None,
        y_scale: Given = None,
        y_zero: Given = None,
        *,
        alpha: float,
        transA: int,
        transB: int,
    ) -> Value:
        a = g.Transpose(a, perm=(1, 0)) if transA else a
        b = g.Transpose(b, perm=(1, 0)) if transB else b
        if alpha != 1.0:
            a_scale = g.Mul(a_scale, alpha)
        y = g.MatMul(real(g, a, a_scale, a_zero), real(g, b, b_scale, b_zero))
        if c is not None:
            unit = g.Mul(_flat(g, a_scale), _flat(g, b_scale))
            y = g.Add(y, g.Mul(g.Cast(c, to=unit.dtype), unit))
        return y if y_scale is None else quantized(g, y, y_scale, y_zero, a.dtype)


def integer_product(
    g: Any, a: Value, b: Value, a_scale: Value, b_scale: Value, a_zero: Given, b_zero: Given
) -> Value:
    """(a - a_zero) * a_scale @ (b - b_zero) * b_scale, summed in integers where b is constant.

    What is of b is one number, one per column, or one per column of each matrix (.., 1, N).
    """
    b_scale, b_zero = _by_column(g, b_scale), _by_column(g, b_zero)
    if b.const is None:
        return g.MatMul(real(g, a, a_scale, a_zero), _real_matrices(g, b, b_scale, b_zero))
    sums = g.MatMulInteger(a, b, _flat(g, a_zero), b_zero)
    unit = g.Mul(_flat(g, a_scale), b_scale)
    return g.Mul(g.Cast(sums, to=unit.dtype), unit)


def _by_column(g: Any, x: Given) -> Given:
    return x if x is not None and product(x.shape[:-1]) != 1 else _flat(g, x)


def _real_matrices(g: Any, b: Value, scale: Value, zero: Given) -> Value:
    if max(len(x.shape) for x in (scale, zero) if x is not None) < 2:
        return real(g, b, scale, zero, len(b.shape) - 1)
    whole = g.Cast(b, to=scale.dtype)
    centred = whole if zero is None else g.Sub(whole, g.Cast(zero, to=scale.dtype))
    return g.Mul(centred, scale)


@op("com.microsoft::MatMulIntegerToFloat")
class MatMulIntegerToFloat:
    """y = dequantize(a) @ dequantize(b) + bias, summed in integers."""

    signature = "a: B, b: B1, a_scale: F, b_scale: F, a_zero?: B, b_zero?: B1, bias?: F -> y"
    attributes: dict = {}
    infer = infer_meaning

    def decompose(
        g: Any,
        a: Value,
        b: Value,
        a_scale: Value,
        b_scale: Value,
        a_zero: Given = None,
        b_zero: Given = None,
        bias: Given = None,
    ) -> Value:
        y = integer_product(g, a, b, a_scale, b_scale, a_zero, b_zero)
        return y if bias is None else g.Add(y, bias)


@op("com.microsoft::DynamicQuantizeMatMul")
class DynamicQuantizeMatMul:
    """y = a @ dequantize(b) + bias; a as bytes, in the scale that its own range asks for."""

    signature = "a: float32, b: B, b_scale: float32, b_zero?: B, bias?: float32 -> y"
    attributes: dict = {}
    infer = infer_meaning

    def decompose(
        g: Any, a: Value, b: Value, b_scale: Value, b_zero: Given = None, bias: Given = None
    ) -> Value:
        bytes_, a_scale, a_zero = g.call("DynamicQuantizeLinear", a, outputs=3)
        y = integer_product(g, bytes_, b, a_scale, b_scale, a_zero, b_zero)
        return y if bias is None else g.Add(y, bias)


@op("com.microsoft::DynamicQuantizeLSTM")
class DynamicQuantizeLSTM:
    """LSTM of weights in bytes, whose last two axes are turned.

    Shapes: w (D, I, 4 H), r (D, H, 4 H), their scales and zeros (D,) or (D, 4 H).
    """

    signature = (
        "x: float32, w: B, r: B, b?: float32, sequence_lens?: int32, initial_h?: float32, "
        "initial_c?: float32, p?: float32, w_scale: float32, w_zero: B, r_scale: float32, "
        "r_zero: B -> y?, y_h?, y_c?"
    )
    attributes = LSTM.attributes
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        w: Value,
        r: Value,
        *rest: Given,
        **attrs: Any,
    ) -> tuple[Value, ...]:
        *states, w_scale, w_zero, r_scale, r_zero = rest
        weights = []
        for whole, scale, zero in ((w, w_scale, w_zero), (r, r_scale, r_zero)):
            columns = [scale.shape[0], 1, *(scale.shape[1:] or (1,))]
            zeros = g.Reshape(g.Cast(zero, to=scale.dtype), columns)
            centred = g.Sub(g.Cast(whole, to=scale.dtype), zeros)
            weights.append(g.Transpose(g.Mul(centred, g.Reshape(scale, columns)), perm=(0, 2, 1)))
        return g.LSTM(x, *weights, *states, outputs=3, **attrs)
