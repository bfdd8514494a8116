"""x * sigmoid(alpha * x) -> the ONNX op Swish: SiLU for alpha 1, "quick GELU" for 1.702.

Source: Ramachandran et al. 2017; ONNX Swish (opset 24).
"""

from __future__ import annotations

from typing import Any

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def swish(g: Any, x: Any, alpha: Any) -> Any:
    slope = g.either(lambda: g.Mul(x, g.scalar(alpha)), lambda: x)
    return g.Mul(x, g.Sigmoid(slope))


def swish_quotient(g: Any, x: Any) -> Any:
    return g.Div(x, g.Add(g.Exp(g.Neg(x)), 1.0))


def _check(match: Match) -> dict[str, Any]:
    return {"x": match["x"], "alpha": match.scalar("alpha", 1.0)}


def _build(g: Any, x: Value, alpha: float) -> Value:
    return g.Swish(x, alpha=alpha)


SWISH = Fusion("Swish", (swish, swish_quotient), _check, _build)
