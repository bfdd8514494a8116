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

C, D = sqrt(2 / pi), 0.044715


def _halved(g: Any, x: Any, one_plus: Any) -> Any:
    """x * 0.5 * one_plus, whichever product comes first."""
    return g.either(
        lambda: g.Mul(x, g.Mul(one_plus, 0.5)),
        lambda: g.Mul(g.Mul(x, 0.5), one_plus),
        lambda: g.Mul(g.Mul(x, one_plus), 0.5),
    )


def gelu_erf(g: Any, x: Any) -> Any:
    one_plus = g.either(
        lambda: g.Add(g.Erf(g.Div(x, sqrt(2))), 1.0),
        lambda: g.Sub(1.0, g.Erf(g.Div(g.Neg(x), sqrt(2)))),  # as erfc
        lambda: g.Sub(1.0, g.Erf(g.Mul(x, -sqrt(0.5)))),
    )
    return _halved(g, x, one_plus)


def gelu_erf_distributed(g: Any, x: Any) -> Any:
    return g.Mul(x, g.Add(g.Mul(g.Erf(g.Div(x, sqrt(2))), 0.5), 0.5))


def _square(g: Any, x: Any) -> Any:
    return g.either(lambda: g.Mul(x, x), lambda: g.Pow(x, 2.0))


def _cubic(g: Any, x: Any) -> Any:
    """x + 0.044715 x^3."""
    scaled_cube = g.either(
        lambda: g.Mul(g.either(lambda: g.Pow(x, 3.0), lambda: g.Mul(x, _square(g, x))), D),
        lambda: g.Mul(g.Mul(g.Mul(x, D), x), x),
        lambda: g.Mul(x, g.Mul(_square(g, x), D)),
        lambda: g.Mul(g.Mul(x, D), _square(g, x)),
    )
    return g.Add(x, scaled_cube)


def gelu_tanh(g: Any, x: Any) -> Any:
    return _halved(g, x, g.Add(g.Tanh(g.Mul(_cubic(g, x), C)), 1.0))


def gelu_tanh_factored(g: Any, x: Any) -> Any:
    """tanh(c x (1 + 0.044715 x^2)), as transformers' FastGELU has it, with c inside or outside."""

    def polynomial() -> Any:
        scaled = g.either(lambda: g.Mul(g.Mul(x, D), x), lambda: g.Mul(_square(g, x), D))
        return g.Add(scaled, 1.0)

    inner = g.either(
        lambda: g.Mul(g.Mul(x, C), polynomial()),
        lambda: g.Mul(g.Mul(x, polynomial()), C),
        lambda: g.Mul(x, g.Mul(polynomial(), C)),
        lambda: g.Mul(x, g.Add(g.Mul(_square(g, x), C * D), C)),
    )
    return _halved(g, x, g.Add(g.Tanh(inner), 1.0))


def gelu_sigmoid(g: Any, x: Any) -> Any:
    """(1 + tanh u) / 2 is sigmoid(2 u)."""
    return g.Mul(x, g.Sigmoid(g.Mul(_cubic(g, x), 2 * C)))


def _fusion(name: str, approximate: str, *spellings: Any) -> Fusion:
    def check(match: Match) -> dict[str, Any]:
        return {"x": match["x"]}

    def build(g: Any, x: Any) -> Any:
        return g.Gelu(x, approximate=approximate)

    return Fusion(name, spellings, check, build)


GELU = _fusion("Gelu", "none", gelu_erf, gelu_erf_distributed)
GELU_TANH = _fusion("GeluTanh", "tanh", gelu_tanh, gelu_tanh_factored, gelu_sigmoid)
