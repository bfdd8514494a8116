"""MatMul and Gemm by a constant -> q7::Linear, which takes what follows into its epilogue.

In this order: a Reshape of the rows, scale, factors of columns (LayerScale), a BatchNormalization
of columns, bias, activation, residual. One walk does all, since it meets producers before
consumers. A check that answers "" found an epilogue that is past this step, or a consumer that is
none of its kind.
"""

from __future__ import annotations

from typing import Any, Optional, Union

from q7x2_ep.fuse.epilogue import (
    activations,
    batch_normalized,
    is_row,
    may_scale,
    norm_factors,
    residual_of,
)
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops.activation import activation_of
from q7x2_ep.ops.common import Activation

LINEAR = "q7::Linear"


def matmul(g: Any, x: Any, w: Any) -> Any:
    return g.MatMul(x, g.constant(w))


def gemm(g: Any, x: Any, w: Any) -> Any:
    return g.Gemm(x, g.constant(w))


def gemm_bias(g: Any, x: Any, w: Any, bias: Any) -> Any:
    return g.Gemm(x, g.constant(w), bias)


def _check_product(match: Match) -> Union[dict[str, Any], str]:
    x, w, bias, attrs = match["x"], match["w"], match.get("bias"), match.root.attrs
    trans_b, beta = int(attrs.get("transB", 0)), float(attrs.get("beta", 1.0))
    if len(w.shape) < 2 or set(w.shape[:-2]) - {1}:
        return f"the weight {w!r} has shape {w.shape}, wanted rank 2"
    if x.const is not None or not x.shape:
        return f"{x!r} is constant or its shape is not known"
    k, n = w.shape[-2:][::-1] if trans_b else w.shape[-2:]
    trans_a = bool(attrs.get("transA", 0))
    rows_of = x.shape[0 if trans_a else -1]
    if isinstance(rows_of, int) and rows_of != k:
        return f"{x!r} has rows of {rows_of}, the weight wants {k}"
    is_residual = bias is not None and bias.shape == match.root.output.shape and beta == 1.0
    if bias is not None and not is_residual:
        if not _is_bias(bias, n, len(x.shape)):
            return f"the bias {bias!r} has shape {bias.shape}, wanted ({n},)"
        if beta != 1.0 and bias.const is None:
            return f"beta is {beta:.6g}, and {bias!r} is not constant"
    return {
        "x": x,
        "w": w,
        "bias": None if is_residual else bias,
        "residual": bias if is_residual else None,
        "beta": beta,
        "trans_a": trans_a,
        "attrs": {"trans_b": trans_b, "alpha": float(attrs.get("alpha", 1.0))},
    }


def _build_product(
    g: Any,
    x: Value,
    w: Value,
    bias: Optional[Value],
    residual: Optional[Value],
    beta: float,
    trans_a: bool,
    attrs: dict[str, Any],
) -> Value:
    if trans_a:
        x = g.Transpose(x, perm=(1, 0))
    if len(w.shape) > 2:
        w = g.filled(w, w.shape[-2:])
    if bias is not None:
        bias = _row(g, bias, w.shape[0 if attrs["trans_b"] else 1], beta) if beta else None
    return g.call(LINEAR, x, w, bias, residual, **attrs)


def _is_bias(bias: Value, n: int, ndim: int) -> bool:
    """Whether a value holds one number per column, or one constant for all, so that it broadcasts
    over rows only.
    """
    one = bias.const is not None and bias.const.size == 1 and len(bias.shape) <= ndim
    return one or is_row(bias, (n,), ndim)


def _row(g: Any, bias: Value, n: int, factor: float = 1.0) -> Value:
    """What _is_bias accepted as (n,), times a factor."""
    if factor != 1.0:
        bias = g.scaled(bias, factor)
    return g.reshape(bias, (n,)) if bias.const is None else g.filled(bias, (n,))


def reshaped(g: Any, linear: Any, shape: Any) -> Any:
    return g.Reshape(g.result(LINEAR, linear), shape)


def _check_reshape(match: Match) -> Union[dict[str, Any], str]:
    node, shape = match["linear"].producer, match.root.output.shape
    if not shape or shape[-1] != match["linear"].shape[-1]:
        return ""  # columns become heads
    in_front = node.inputs[0].producer
    meets = in_front is not None and in_front.op == "Reshape"
    users = [user.op for user in match.root.output.users]
    if not meets and users != ["Add"] and (users, len(shape)) != (["BatchNormalization"], 2):
        return ""  # nothing to gain: no Reshape in front to meet, no op behind to take
    return {"node": node, "shape": shape}


def _build_reshape(g: Any, node: Node, shape: tuple) -> Value:
    """Rows are independent: their Reshape moves in front, where it meets the one that undid it."""
    x, w, bias, residual = (*node.inputs, None, None)[:4]
    x = g.reshape(x, shape[:-1] + x.shape[-1:])
    residual = None if residual is None else g.reshape(residual, shape)
    return g.call(LINEAR, x, w, bias, residual, **node.attrs)


def scaled(g: Any, linear: Any, scale: Any) -> Any:
    return g.Mul(g.result(LINEAR, linear), g.scalar(scale))


def _check_scale(match: Match) -> Union[dict[str, Any], str]:
    node = match["linear"].producer
    bias = node.input(2)
    if node.input(3) is not None or node.attrs["activation"] != "none":
        return ""
    if bias is not None and bias.const is None:
        return f"the bias {bias!r} is not constant"
    return {"node": node, "scale": match.scalar("scale", 1.0)}


def _build_scale(g: Any, node: Node, scale: float) -> Value:
    x, w, bias = (*node.inputs, None)[:3]
    attrs = {**node.attrs, "alpha": node.attrs["alpha"] * scale}
    return g.call(LINEAR, x, w, None if bias is None else g.scaled(bias, scale), **attrs)


def scaled_columns(g: Any, linear: Any, scale: Any) -> Any:
    return g.Mul(g.result(LINEAR, linear), g.constant(scale))


def _check_columns(match: Match) -> Union[dict[str, Any], str]:
    y, scale = match["linear"], match["scale"]
    node = y.producer
    if node.input(3) is not None or scale.const.size == 1:
        return ""
    if not is_row(scale, y.shape[-1:], len(y.shape)):
        return f"the factor {scale!r} has shape {scale.shape}, wanted ({y.shape[-1]},)"
    refusal = check_factors(node, scale)
    return {"node": node, "scale": scale} if refusal is None else refusal


def check_factors(node: Node, scale: Value) -> Optional[str]:
    """Why the weight of a Linear can't take a constant factor of each column, if it can't."""
    bias = node.input(2)
    if node.attrs["activation"] != "none":
        return ""
    if bias is not None and bias.const is None:
        return f"the bias {bias!r} is not constant"
    if not may_scale(scale.const):
        return f"the factor {scale!r} has entries that are too small or too large for weights"
    return None


def _scaled(g: Any, node: Node, factors: Any) -> Value:
    """The weight times a factor for each column."""
    w = node.inputs[1].const
    column = factors[:, None] if node.attrs["trans_b"] else factors
    return g.array((w * column).astype(w.dtype))


def with_factors(g: Any, node: Node, scale: Value) -> Value:
    """The weight takes the factors: one rounding of each, as many as a product behind would do."""
    x, w, bias = (*node.inputs, None)[:3]
    row = scale.const.reshape(-1)
    w = _scaled(g, node, row)
    bias = None if bias is None else g.array(bias.const * row)
    return g.call(LINEAR, x, w, bias, **node.attrs)


def normalized_columns(
    g: Any, linear: Any, scale: Any, shift: Any, mean: Any, variance: Any
) -> Any:
    return batch_normalized(g, g.result(LINEAR, linear), scale, shift, mean, variance)


def _check_normalized(match: Match) -> Union[dict[str, Any], str]:
    y = match["linear"]
    node, bias = y.producer, y.producer.input(2)
    if len(y.shape) != 2 or node.input(3) is not None or node.attrs["activation"] != "none":
        return ""
    if bias is not None and bias.const is None:
        return f"the bias {bias!r} is not constant"
    scale, variance = match["scale"], match["variance"]
    factor = norm_factors(scale, variance, match.root.attrs["epsilon"])
    if factor is None or not may_scale(factor):
        return f"{scale!r} and {variance!r} are no factors for weights"
    shift, mean = (match[name].const.astype("float64") for name in ("shift", "mean"))
    return {"node": node, "factor": factor, "shift": shift, "mean": mean}


def _build_normalized(g: Any, node: Node, factor: Any, shift: Any, mean: Any) -> Value:
    """Computed in float64: one rounding of each weight and each entry of the bias."""
    x, w, bias = (*node.inputs, None)[:3]
    before = 0.0 if bias is None else bias.const
    row = (before - mean) * factor + shift
    bias = g.array(row.astype(w.const.dtype))
    return g.call(LINEAR, x, _scaled(g, node, factor), bias, **node.attrs)


def biased(g: Any, linear: Any, bias: Any) -> Any:
    return g.Add(g.result(LINEAR, linear), bias)


def reduced(g: Any, linear: Any, bias: Any) -> Any:
    return g.Sub(g.result(LINEAR, linear), g.constant(bias))


def _check_bias(match: Match) -> Union[dict[str, Any], str]:
    y, bias = match["linear"], match["bias"]
    node = y.producer
    if not _is_bias(bias, y.shape[-1], len(y.shape)):
        return ""  # a residual, then
    if (
        any(operand is not None for operand in node.inputs[2:])
        or node.attrs["activation"] != "none"
    ):
        return ""
    return {"node": node, "bias": bias, "factor": -1.0 if match.root.op == "Sub" else 1.0}


def _build_bias(g: Any, node: Node, bias: Value, factor: float) -> Value:
    row = _row(g, bias, node.output.shape[-1], factor)
    return g.call(LINEAR, *node.inputs[:2], row, **node.attrs)


def _check_activation(match: Match) -> Union[dict[str, Any], str]:
    node = match["product"].producer
    if node.input(3) is not None or node.attrs["activation"] != "none":
        return ""
    return {"node": node, "activation": activation_of(match.root)}


def _build_activation(g: Any, node: Node, activation: Activation) -> Value:
    return g.call(LINEAR, *node.inputs, **{**node.attrs, **activation.attributes()})


def _result(g: Any, linear: Any) -> Any:
    return g.result(LINEAR, linear)


PRODUCT = Fusion("Linear", (matmul, gemm, gemm_bias), _check_product, _build_product)
RESHAPE = Fusion("LinearReshape", (reshaped,), _check_reshape, _build_reshape)
SCALE = Fusion("LinearScale", (scaled,), _check_scale, _build_scale)
COLUMNS = Fusion("LinearColumns", (scaled_columns,), _check_columns, with_factors)
NORMALIZED = Fusion("LinearNorm", (normalized_columns,), _check_normalized, _build_normalized)
BIAS = Fusion("LinearBias", (biased, reduced), _check_bias, _build_bias)
ACTIVATION = Fusion("LinearActivation", activations(_result), _check_activation, _build_activation)
RESIDUAL = residual_of("LinearResidual", _result, LINEAR)
