"""LayerNormalization and RMSNormalization made of primitives -> the ONNX ops.

d = x - mean(x); y = d / sqrt(mean(d^2) + epsilon) * weight + bias, and the same without mean and
bias.
Source: Ba et al. 2016; Zhang and Sennrich 2019; ONNX LayerNormalization (opset 17),
RMSNormalization (opset 23).
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def _mean_square(g: Any, x: Any, axes: Any, epsilon: Any) -> Any:
    """mean(x^2) + epsilon."""
    square = g.either(lambda: g.Pow(x, 2.0), lambda: g.Mul(x, x))
    return g.Add(g.ReduceMean(square, axes, keepdims=1), g.scalar(epsilon))


def _over_root(g: Any, x: Any, variance: Any) -> Any:
    """x / sqrt(variance)."""
    return g.either(
        lambda: g.Div(x, g.Sqrt(variance)),
        lambda: g.Mul(x, g.Reciprocal(g.Sqrt(variance))),
        lambda: g.Mul(x, g.Div(1.0, g.Sqrt(variance))),
        lambda: g.Mul(x, g.Pow(variance, -0.5)),
    )


def layer_norm(
    g: Any, x: Any, mean_axes: Any, axes: Any, epsilon: Any, weight: Any, bias: Any
) -> Any:
    centred = g.Sub(x, g.ReduceMean(x, mean_axes, keepdims=1))
    scaled = g.Mul(_over_root(g, centred, _mean_square(g, centred, axes, epsilon)), weight)
    return g.Add(scaled, bias)


def rms_norm(g: Any, x: Any, axes: Any, epsilon: Any, weight: Any) -> Any:
    return g.Mul(_over_root(g, x, _mean_square(g, x, axes, epsilon)), weight)


def _is_last_axis(axes: Value, x: Value) -> bool:
    return axes.elements is not None and axes.elements in ((-1,), (len(x.shape) - 1,))


def _check(match: Match) -> Union[dict[str, Any], str]:
    x, weight, bias = match["x"], match["weight"], match.get("bias")
    if x.shape is None or not x.shape:
        return f"the rank of {x!r} is not known"
    for axes in (match["axes"], match.get("mean_axes") or match["axes"]):
        if not _is_last_axis(axes, x):
            return f"the mean is over axes {axes.elements}, wanted the last"
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and value.shape != x.shape[-1:]:
            return f"{name} has shape {value.shape}, wanted {x.shape[-1:]}"
    operands = (x, weight) if bias is None else (x, weight, bias)
    return {"operands": operands, "epsilon": match.scalar("epsilon", 0.0)}


def _build_layer_norm(g: Any, operands: tuple[Value, ...], epsilon: float) -> Value:
    return g.LayerNormalization(*operands, axis=-1, epsilon=epsilon)


def _build_rms_norm(g: Any, operands: tuple[Value, ...], epsilon: float) -> Value:
    return g.RMSNormalization(*operands, axis=-1, epsilon=epsilon)


LAYER_NORM = Fusion("LayerNorm", (layer_norm,), _check, _build_layer_norm)
RMS_NORM = Fusion("RmsNorm", (rms_norm,), _check, _build_rms_norm)
