"""1 / (1 + exp(-x)) -> Sigmoid; x * sigmoid(alpha * x) -> the ONNX op Swish: SiLU for alpha 1,
"quick GELU" for 1.702.

Source: Ramachandran et al. 2017; ONNX Swish (opset 24).
"""

from __future__ import annotations

from typing import Any

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def _one_plus_exp(g: Any, x: Any) -> Any:
    """1 + exp(-x)."""
    return g.Add(g.Exp(g.either(lambda: g.Neg(x), lambda: g.Mul(x, -1.0))), 1.0)


def sigmoid(g: Any, x: Any) -> Any:
    return g.either(
        lambda: g.Div(1.0, _one_plus_exp(g, x)), lambda: g.Reciprocal(_one_plus_exp(g, x))
    )


def _check_sigmoid(match: Match) -> dict[str, Any]:
    return {"x": match["x"]}


def _build_sigmoid(g: Any, x: Value) -> Value:
    return g.Sigmoid(x)


def _slope(g: Any, x: Any, alpha: Any) -> Any:
    return g.either(lambda: g.Mul(x, g.scalar(alpha)), lambda: x)


def swish(g: Any, x: Any, alpha: Any) -> Any:
    return g.Mul(x, g.Sigmoid(_slope(g, x, alpha)))


def swish_quotient(g: Any, x: Any, alpha: Any) -> Any:
    return g.Div(x, _one_plus_exp(g, _slope(g, x, alpha)))


def swish_negated(g: Any, x: Any, minus_alpha: Any) -> Any:
    return g.Div(x, g.Add(g.Exp(g.Mul(x, g.scalar(minus_alpha))), 1.0))


def _check(match: Match) -> dict[str, Any]:
    alpha = match.scalar("alpha", 1.0)
    if "minus_alpha" in match.values:
        alpha = -match.scalar("minus_alpha", -1.0)
    return {"x": match["x"], "alpha": alpha}


def _build(g: Any, x: Value, alpha: float) -> Value:
    return g.Swish(x, alpha=alpha)


SIGMOID = Fusion("Sigmoid", (sigmoid,), _check_sigmoid, _build_sigmoid)
SWISH = Fusion("Swish", (swish, swish_quotient, swish_negated), _check, _build)
