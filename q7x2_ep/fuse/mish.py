"""x * tanh(softplus(x)) -> the ONNX op Mish.

Source: Misra 2019; ONNX Mish (opset 18).
"""

from __future__ import annotations

from typing import Any

from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def mish(g: Any, x: Any) -> Any:
    softplus = g.either(lambda: g.Softplus(x), lambda: g.Log(g.Add(g.Exp(x), 1.0)))
    return g.Mul(x, g.Tanh(softplus))


def _check(match: Match) -> dict[str, Any]:
    return {"x": match["x"]}


MISH = Fusion("Mish", (mish,), _check, lambda g, x: g.Mish(x))
