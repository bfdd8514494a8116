"""Products of the domain com.microsoft: what onnxruntime fuses into MatMul, Gemm and Conv.

Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from typing import Any, Optional

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Value
from q7x2_ep.ops import find, op
from q7x2_ep.ops.builder import Given, infer_meaning
from q7x2_ep.ops.common import known
from q7x2_ep.ops.conv import Conv
from q7x2_ep.ops.conv_transpose import ConvTranspose
from q7x2_ep.ops.matmul import Gemm

SCALED = {"ParametricSoftplus": "Softplus", "ScaledTanh": "Tanh"}  # y = alpha * f(beta * x)


def activated(g: Any, x: Value, name: str, *parameters: Optional[float]) -> Value:
    """An activation by the name of its op, with what is given of its alpha, beta and gamma.

    Raises: UnsupportedOp where there is no op of that name, ModelError where it lacks a number.
    """
    if not name:
        return x
    if name == "Clip":
        return g.Clip(x, *parameters)
    if name in SCALED:
        alpha, beta, *_ = (*parameters, None, None)
        if alpha is None or beta is None:
            raise ModelError(f"activation={name!r} needs alpha and beta")
        return g.Mul(g.call(SCALED[name], g.Mul(x, beta)), alpha)
    entry = find(name)
    if entry is None:
        raise UnsupportedOp(f"activation={name!r} is not supported")
    named = zip(("alpha", "beta", "gamma"), parameters)
    attrs = {k: v for k, v in named if k in entry.attributes and v is not None}
    return g.call(name, x, **attrs)


class FusedMatMul:
    """y = alpha * a' @ b': of either operand the last two dims are swapped if trans is 1, after its
    first dim was moved behind the batch dims if transBatch is 1.
    """

    signature = "a: F, b: F -> y"
    attributes = {"transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0, "alpha": 1.0}
    infer = infer_meaning

    def decompose(
        g: Any,
        a: Value,
        b: Value,
        transA: int,
        transB: int,
        transBatchA: int,
        transBatchB: int,
        alpha: float,
    ) -> Value:
        a, b = _turned(g, a, transA, transBatchA), _turned(g, b, transB, transBatchB)
        y = g.MatMul(a, b)
        return y if alpha == 1.0 else g.Mul(y, alpha)


op("com.microsoft::FusedMatMul")(FusedMatMul)
op("com.microsoft::TransposeMatMul")(FusedMatMul)


@op("com.microsoft::SparseToDenseMatMul")
class SparseToDenseMatMul:
    """y = alpha * a' @ b', of an `a` that is fed sparse; trans swaps the last two dims. Alpha is
    of float32 alone, as onnxruntime's kernels have it.
    """

    signature = "a, b: N -> y"
    attributes = {"alpha": 1.0, "transA": 0, "transB": 0}
    infer = infer_meaning

    def decompose(g: Any, a: Value, b: Value, alpha: float, transA: int, transB: int) -> Value:
        y = g.MatMul(_turned(g, a, transA, 0), _turned(g, b, transB, 0))
        return y if alpha == 1.0 or y.dtype != dtypes.FLOAT else g.Mul(y, alpha)


def _turned(g: Any, x: Value, swaps: int, moves_first: int) -> Value:
    order = list(range(len(x.shape)))
    if len(order) > 1 and moves_first:
        order.insert(len(order) - 2, order.pop(0))
    if len(order) > 1 and swaps:
        order[-2:] = order[:-3:-1]
    return x if order == sorted(order) else g.Transpose(x, perm=tuple(order))


@op("com.microsoft::FusedGemm")
class FusedGemm:
    """y = act(alpha * a @ b + beta * c); activation: the name of its op."""

    signature = Gemm.signature
    attributes = {
        **Gemm.attributes,
        "activation": "",
        "activation_alpha": None,
        "activation_beta": None,
        "activation_gamma": None,
    }
    infer = infer_meaning

    def decompose(
        g: Any,
        *operands: Given,
        activation: str,
        activation_alpha: Optional[float],
        activation_beta: Optional[float],
        activation_gamma: Optional[float],
        **attrs: Any,
    ) -> Value:
        parameters = activation_alpha, activation_beta, activation_gamma
        return activated(g, g.Gemm(*operands, **attrs), activation, *parameters)


@op("com.microsoft::FusedConv")
class FusedConv:
    """y = act(conv(x, w) + bias + addend); activation: the name of its op."""

    signature = "x: F, w: F, bias?: F, addend?: F -> y"
    attributes = {**Conv.attributes, "activation": "", "activation_params": None}
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        w: Value,
        bias: Given = None,
        addend: Given = None,
        *,
        activation: str,
        activation_params: Optional[tuple[float, ...]],
        **attrs: Any,
    ) -> Value:
        y = g.Conv(x, w, bias, **attrs)
        y = y if addend is None else g.Add(y, addend)
        return activated(g, y, activation, *(activation_params or ()))


@op("com.microsoft::ConvTransposeWithDynamicPads")
class ConvTransposeWithDynamicPads:
    """y = conv_transpose(x, w) + bias, whose pads may be data: they are cut off what none leave."""

    signature = "x: F, w: F, pads: int64, bias?: F -> y"
    attributes = {
        name: default
        for name, default in ConvTranspose.attributes.items()
        if name not in ("pads", "output_shape")
    }
    infer = infer_meaning

    def decompose(
        g: Any, x: Value, w: Value, pads: Value, bias: Given = None, **attrs: Any
    ) -> Value:
        if attrs["auto_pad"].startswith("SAME"):
            return g.ConvTranspose(x, w, bias, **attrs)
        attrs["auto_pad"], widths = "NOTSET", known(pads)
        if widths is not None and all(isinstance(width, int) for width in widths):
            return g.ConvTranspose(x, w, bias, pads=widths, **attrs)
        y = g.ConvTranspose(x, w, bias, **attrs)
        return g.Pad(y, g.Neg(pads), None, list(range(2, len(x.shape))))
