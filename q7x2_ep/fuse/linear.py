"""MatMul and Gemm by a constant -> q7::Linear, which takes what follows into its epilogue.

In this order: a Reshape of the rows, scale, bias, activation, residual. One walk does all, since it
meets producers before consumers. A check that answers "" found an epilogue that is past this step,
or a consumer that is none of its kind.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops.activation import ACTIVATION_OPS, activation_of
from q7x2_ep.ops.common import Activation

LINEAR = "q7::Linear"


def matmul(g: Any, x: Any, w: Any) -> Any:
    return g.MatMul(x, g.constant(w))


def gemm(g: Any, x: Any, w: Any) -> Any:
    return g.Gemm(x, g.constant(w), transA=0)


def gemm_bias(g: Any, x: Any, w: Any, bias: Any) -> Any:
    return g.Gemm(x, g.constant(w), bias, transA=0, beta=1.0)


def _check_product(match: Match) -> Union[dict[str, Any], str]:
    x, w, bias, attrs = match["x"], match["w"], match.get("bias"), match.root.attrs
    trans_b = int(attrs.get("transB", 0))
    if len(w.shape) != 2:
        return f"the weight {w!r} has shape {w.shape}, wanted rank 2"
    if x.const is not None or not x.shape:
        return f"{x!r} is constant or its shape is not known"
    k, n = w.shape[::-1] if trans_b else w.shape
    if x.shape[-1] != k:
        return f"{x!r} has rows of {x.shape[-1]}, the weight wants {k}"
    if bias is not None and not _is_row(bias, n, len(x.shape)):
        return f"the bias {bias!r} has shape {bias.shape}, wanted ({n},)"
    return {
        "x": x,
        "w": w,
        "bias": bias,
        "trans_b": trans_b,
        "alpha": float(attrs.get("alpha", 1.0)),
    }


def _build_product(g: Any, x: Value, w: Value, bias: Optional[Value], **attrs: Any) -> Value:
    return g.call(LINEAR, x, w, bias, **attrs)


def _is_row(bias: Value, n: int, ndim: int) -> bool:
    """Whether a value holds one number per column, so that it broadcasts over rows only."""
    return (
        bias.shape is not None
        and 0 < len(bias.shape) <= ndim
        and bias.shape == (1,) * (len(bias.shape) - 1) + (n,)
    )


def reshaped(g: Any, linear: Any, shape: Any) -> Any:
    return g.Reshape(g.result(LINEAR, linear), shape)


def _check_reshape(match: Match) -> Union[dict[str, Any], str]:
    node, shape = match["linear"].producer, match.root.output.shape
    if node.input(3) is not None:
        return "the residual has the shape before the Reshape"
    if not shape or shape[-1] != match["linear"].shape[-1]:
        return ""  # columns become heads
    in_front = node.inputs[0].producer
    meets = in_front is not None and in_front.op == "Reshape"
    if not meets and [user.op for user in match.root.output.users] != ["Add"]:
        return ""  # nothing to gain: no Reshape in front to meet, no Add behind to take
    return {"node": node, "shape": shape}


def _build_reshape(g: Any, node: Node, shape: tuple) -> Value:
    """Rows are independent: their Reshape moves in front, where it meets the one that undid it."""
    x = g.reshape(node.inputs[0], shape[:-1] + node.inputs[0].shape[-1:])
    return g.call(LINEAR, x, *node.inputs[1:], **node.attrs)


def scaled(g: Any, linear: Any, scale: Any) -> Any:
    return g.Mul(g.result(LINEAR, linear), g.scalar(scale))


def _check_scale(match: Match) -> Union[dict[str, Any], str]:
    node = match["linear"].producer
    if (
        any(operand is not None for operand in node.inputs[2:])
        or node.attrs["activation"] != "none"
    ):
        return ""
    return {"node": node, "alpha": node.attrs["alpha"] * match.scalar("scale", 1.0)}


def _build_scale(g: Any, node: Node, alpha: float) -> Value:
    return g.call(LINEAR, *node.inputs, **{**node.attrs, "alpha": alpha})


def biased(g: Any, linear: Any, bias: Any) -> Any:
    return g.Add(g.result(LINEAR, linear), bias)


def _check_bias(match: Match) -> Union[dict[str, Any], str]:
    y, bias = match["linear"], match["bias"]
    node = y.producer
    if not _is_row(bias, y.shape[-1], len(y.shape)):
        return ""  # a residual, then
    if (
        any(operand is not None for operand in node.inputs[2:])
        or node.attrs["activation"] != "none"
    ):
        return ""
    return {"node": node, "bias": bias}


def _build_bias(g: Any, node: Node, bias: Value) -> Value:
    return g.call(LINEAR, *node.inputs[:2], bias, **node.attrs)


def _activated(op: str) -> Callable[..., Any]:
    """The spelling of one activation behind a Linear."""

    def activated(g: Any, linear: Any) -> Any:
        return g.call(op, g.result(LINEAR, linear))

    activated.__name__ = op.rpartition(":")[2].lower()
    return activated


def clip(g: Any, linear: Any, low: Any, high: Any) -> Any:
    y = g.result(LINEAR, linear)
    return g.either(
        lambda: g.Clip(y, g.scalar(low), g.scalar(high)),
        lambda: g.Clip(y, g.scalar(low)),
        lambda: g.Clip(y, None, g.scalar(high)),
    )


def _check_activation(match: Match) -> Union[dict[str, Any], str]:
    node = match["linear"].producer
    if node.input(3) is not None or node.attrs["activation"] != "none":
        return ""
    return {"node": node, "activation": activation_of(match.root)}


def _build_activation(g: Any, node: Node, activation: Activation) -> Value:
    return g.call(LINEAR, *node.inputs, **{**node.attrs, **activation.attributes()})


def with_residual(g: Any, linear: Any, residual: Any) -> Any:
    return g.Add(g.result(LINEAR, linear), residual)


def _check_residual(match: Match) -> Union[dict[str, Any], str]:
    y, residual = match["linear"], match["residual"]
    if y.producer.input(3) is not None:
        return ""
    if residual.shape != y.shape:
        return f"{residual!r} has shape {residual.shape}, wanted {y.shape} for a residual"
    return {"node": y.producer, "residual": residual}


def _build_residual(g: Any, node: Node, residual: Value) -> Value:
    x, w, bias = (*node.inputs, None)[:3]
    return g.call(LINEAR, x, w, bias, residual, **node.attrs)


PRODUCT = Fusion("Linear", (matmul, gemm, gemm_bias), _check_product, _build_product)
RESHAPE = Fusion("LinearReshape", (reshaped,), _check_reshape, _build_reshape)
SCALE = Fusion("LinearScale", (scaled,), _check_scale, _build_scale)
BIAS = Fusion("LinearBias", (biased,), _check_bias, _build_bias)
ACTIVATION = Fusion(
    "LinearActivation",
    (*map(_activated, ACTIVATION_OPS), clip),
    _check_activation,
    _build_activation,
)
RESIDUAL = Fusion("LinearResidual", (with_residual,), _check_residual, _build_residual)
