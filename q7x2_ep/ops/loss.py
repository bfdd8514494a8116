"""Losses, of which models that are evaluated keep some."""

from __future__ import annotations

from typing import Any, Optional

from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Value
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import Given, infer_meaning


@op("NegativeLogLikelihoodLoss")
class NegativeLogLikelihoodLoss:
    """-x[n, target[n, ..], ..] * weight[target[n, ..]], as it is, or its sum, or its mean over the
    weights. Where the target is ignore_index, the weight is 0, and so is y, whatever x holds.
    """

    signature = "x: F, target: index, weight?: F -> y"
    attributes = {"ignore_index": None, "reduction": "mean"}
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        target: Value,
        weight: Given = None,
        *,
        ignore_index: Optional[int],
        reduction: str,
    ) -> Value:
        if reduction not in ("none", "sum", "mean"):
            raise UnsupportedOp(f"reduction={reduction!r} is not supported")
        counts, of = None, target
        if ignore_index is not None:
            counts = g.Not(g.Equal(target, g.literal(ignore_index, target.dtype)))
            of = g.Where(counts, target, g.literal(0, target.dtype))
        weights = None if weight is None else g.Gather(weight, of, axis=0)
        y = g.Neg(g.Squeeze(g.GatherElements(x, g.Unsqueeze(of, [1]), axis=1), [1]))
        y = y if weights is None else g.Mul(y, weights)
        if counts is not None:
            y = g.Where(counts, y, 0.0)
            weights = g.Where(counts, g.ones((1,), x.dtype) if weights is None else weights, 0.0)
        if reduction == "none":
            return y
        if reduction == "mean" and weights is None:
            return g.ReduceMean(y, keepdims=0)
        total = g.ReduceSum(y, keepdims=0)
        return total if reduction == "sum" else g.Div(total, g.ReduceSum(weights, keepdims=0))
