"""The piecewise linear family -> Relu, Clip, LeakyRelu, HardSigmoid, HardSwish; and max(x, 0)^2.

Source: Howard et al. 2019 for x * relu6(x + 3) / 6; So et al. 2021 for the square.
"""

from __future__ import annotations

from math import isnan
from typing import Any, Union

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def relu(g: Any, x: Any) -> Any:
    return g.Max(x, 0.0)


def _check_x(match: Match) -> dict[str, Any]:
    return {"x": match["x"]}


def clip(g: Any, x: Any, low: Any, high: Any) -> Any:
    raised = g.either(lambda: g.Max(x, g.scalar(low)), lambda: g.Relu(x))
    return g.Min(raised, g.scalar(high))


def _check_clip(match: Match) -> Union[dict[str, Any], str]:
    low, high = match.scalar("low", 0.0), match.scalar("high", 0.0)
    if isnan(low) or isnan(high):
        return "a bound is NaN, which Max and Min pass on"
    return {"x": match["x"], "low": low, "high": high}


def _build_clip(g: Any, x: Value, low: float, high: float) -> Value:
    return g.Clip(x, low, high)


def leaky_max(g: Any, x: Any, alpha: Any) -> Any:
    return g.Max(x, g.Mul(x, g.scalar(alpha)))


def leaky_where(g: Any, x: Any, alpha: Any) -> Any:
    slope = g.Mul(x, g.scalar(alpha))
    return g.either(
        lambda: g.Where(g.Greater(x, 0.0), x, slope),
        lambda: g.Where(g.GreaterOrEqual(x, 0.0), x, slope),
        lambda: g.Where(g.Less(x, 0.0), slope, x),
        lambda: g.Where(g.LessOrEqual(x, 0.0), slope, x),
    )


def _check_leaky(match: Match) -> Union[dict[str, Any], str]:
    alpha = match.scalar("alpha", 0.0)
    if match.root.op == "Max" and not 0.0 <= alpha <= 1.0:
        return f"the slope is {alpha:.6g}, wanted one within [0, 1]"
    return {"x": match["x"], "alpha": alpha}


def _build_leaky(g: Any, x: Value, alpha: float) -> Value:
    return g.LeakyRelu(x, alpha=alpha)


def hard_sigmoid(g: Any, x: Any, alpha: Any, beta: Any) -> Any:
    return g.Clip(g.Add(g.Mul(x, g.scalar(alpha)), g.scalar(beta)), 0.0, 1.0)


def _relu6(g: Any, x: Any) -> Any:
    return g.Clip(g.Add(x, 3.0), 0.0, 6.0)


def hard_sigmoid_relu6(g: Any, x: Any) -> Any:
    return g.Div(_relu6(g, x), 6.0)


def _check_hard_sigmoid(match: Match) -> dict[str, Any]:
    alpha, beta = match.scalar("alpha", 1 / 6), match.scalar("beta", 0.5)
    return {"x": match["x"], "alpha": alpha, "beta": beta}


def _build_hard_sigmoid(g: Any, x: Value, alpha: float, beta: float) -> Value:
    return g.HardSigmoid(x, alpha=alpha, beta=beta)


def hard_swish(g: Any, x: Any) -> Any:
    return g.either(
        lambda: g.Div(g.Mul(x, _relu6(g, x)), 6.0),
        lambda: g.Mul(g.Div(x, 6.0), _relu6(g, x)),
        lambda: g.Mul(x, g.Div(_relu6(g, x), 6.0)),
    )


def hard_swish_gate(g: Any, x: Any) -> Any:
    return g.Mul(x, g.HardSigmoid(x, alpha=1 / 6, beta=0.5))


def squared_relu(g: Any, x: Any) -> Any:
    positive = g.Relu(x)
    return g.either(lambda: g.Mul(positive, positive), lambda: g.Pow(positive, 2.0))


RELU = Fusion("Relu", (relu,), _check_x, lambda g, x: g.Relu(x))
CLIP = Fusion("Clip", (clip,), _check_clip, _build_clip)
LEAKY_RELU = Fusion("LeakyRelu", (leaky_max, leaky_where), _check_leaky, _build_leaky)
HARD_SIGMOID = Fusion(
    "HardSigmoid", (hard_sigmoid, hard_sigmoid_relu6), _check_hard_sigmoid, _build_hard_sigmoid
)
HARD_SWISH = Fusion(
    "HardSwish", (hard_swish, hard_swish_gate), _check_x, lambda g, x: g.HardSwish(x)
)
SQUARED_RELU = Fusion(
    "SquaredRelu", (squared_relu,), _check_x, lambda g, x: g.call("q7::SquaredRelu", x)
)
