"""cap * tanh(x / cap) -> q7::Softcap."""

from __future__ import annotations

from math import isclose
from typing import Any, Union

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def softcap(g: Any, x: Any, divisor: Any, cap: Any) -> Any:
    return g.Mul(g.Tanh(g.Div(x, g.scalar(divisor))), g.scalar(cap))


def _check(match: Match) -> Union[dict[str, Any], str]:
    divisor, cap = match.scalar("divisor", 1.0), match.scalar("cap", 1.0)
    if not isclose(divisor, cap, rel_tol=2.0**-22):  # one of them may be the reciprocal, rounded
        return f"x is divided by {divisor:.6g}, but its tanh multiplied by {cap:.6g}"
    return {"x": match["x"], "cap": cap}


def _build(g: Any, x: Value, cap: float) -> Value:
    return g.call("q7::Softcap", x, cap=cap)


SOFTCAP = Fusion("Softcap", (softcap,), _check, _build)
