"""GELU in its many spellings -> the ONNX op Gelu.

x * 0.5 * (1 + erf(x / sqrt 2)), and the tanh form x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715
x^3))).
Source: Hendrycks and Gimpel 2016; ONNX Gelu (opset 20).
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def _halved(g: Any, x: Any, one_plus: Any) -> Any:
    """x * 0.5 * one_plus, whichever product comes first."""
    return g.either(
        lambda: g.Mul(x, g.Mul(one_plus, 0.5)),
        lambda: g.Mul(g.Mul(x, 0.5), one_plus),
        lambda: g.Mul(g.Mul(x, one_plus), 0.5),
    )


def gelu_erf(g: Any, x: Any) -> Any:
    return _halved(g, x, g.Add(g.Erf(g.Div(x, sqrt(2))), 1.0))


def gelu_tanh(g: Any, x: Any) -> Any:
    cube = g.either(lambda: g.Pow(x, 3.0), lambda: g.Mul(x, g.Mul(x, x)))
    inner = g.Mul(g.Add(x, g.Mul(cube, 0.044715)), sqrt(2 / pi))
    return _halved(g, x, g.Add(g.Tanh(inner), 1.0))


def gelu_tanh_factored(g: Any, x: Any) -> Any:
    """As transformers' FastGELU has it: tanh(x * c * (1 + 0.044715 x * x))."""
    square = g.Mul(g.Mul(x, 0.044715), x)
    inner = g.Mul(g.Mul(x, sqrt(2 / pi)), g.Add(square, 1.0))
    return _halved(g, x, g.Add(g.Tanh(inner), 1.0))


def _fusion(name: str, approximate: str, *spellings: Any) -> Fusion:
    def check(match: Match) -> dict[str, Any]:
        return {"x": match["x"]}

    def build(g: Any, x: Any) -> Any:
        return g.Gelu(x, approximate=approximate)

    return Fusion(name, spellings, check, build)


GELU = _fusion("Gelu", "none", gelu_erf)
GELU_TANH = _fusion("GeluTanh", "tanh", gelu_tanh, gelu_tanh_factored)
