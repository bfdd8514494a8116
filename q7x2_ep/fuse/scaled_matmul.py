"""A factor behind a product of two computed matrices -> q7::ScaledMatMul, whose kernel scales its
sums anyway. The scores of an attention whose weights are an output, say.
"""

from __future__ import annotations

from typing import Any

from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def scaled_product(g: Any, y: Any, scale: Any) -> Any:
    return g.Mul(g.result("MatMul", y), g.scalar(scale))


def _check(match: Match) -> dict[str, Any]:
    return {"operands": match["y"].producer.inputs, "alpha": match.scalar("scale", 1.0)}


SCALED = Fusion(
    "ScaledMatMul",
    (scaled_product,),
    _check,
    lambda g, operands, alpha: g.call("q7::ScaledMatMul", *operands, alpha=alpha),
)
