"""exp(x - max(x)) / sum(exp(x - max(x))) -> Softmax, and its logarithm -> LogSoftmax.

Without the maximum it is left as it is: where e^x overflows the formula gives NaN, and Softmax
numbers.
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops.common import FLOATS


def _reduced(g: Any, op: str, x: Any, axes: Any) -> Any:
    reduce = getattr(g, op)
    return g.either(
        lambda: reduce(x, axes, keepdims=1),
        lambda: g.Unsqueeze(reduce(x, axes, keepdims=0), axes),
    )


def softmax(g: Any, x: Any, max_axes: Any, axes: Any) -> Any:
    weights = g.Exp(g.Sub(x, _reduced(g, "ReduceMax", x, max_axes)))
    total = _reduced(g, "ReduceSum", weights, axes)
    return g.either(
        lambda: g.Div(weights, total),
        lambda: g.Mul(weights, g.Reciprocal(total)),
        lambda: g.Mul(weights, g.Div(1.0, total)),
    )


def log_softmax(g: Any, x: Any, max_axes: Any, axes: Any) -> Any:
    rest = g.Sub(x, _reduced(g, "ReduceMax", x, max_axes))
    return g.Sub(rest, g.Log(_reduced(g, "ReduceSum", g.Exp(rest), axes)))


def _check(match: Match) -> Union[dict[str, Any], str]:
    x = match["x"]
    if x.dtype not in FLOATS:
        return "softmax is native for float and double"
    ndim = len(x.shape)
    found = {
        tuple(axis % ndim for axis in match[name].elements or ()) for name in ("max_axes", "axes")
    }
    if len(found) > 1 or len(min(found)) != 1:
        return f"maximum and sum are over axes {sorted(found)}, wanted one and the same"
    return {"x": x, "axis": min(found)[0]}


def _build(op: str) -> Any:
    def build(g: Any, x: Value, axis: int) -> Value:
        return g.call(op, x, axis=axis)

    return build


SOFTMAX = Fusion("Softmax", (softmax,), _check, _build("Softmax"))
LOG_SOFTMAX = Fusion("LogSoftmax", (log_softmax,), _check, _build("LogSoftmax"))
