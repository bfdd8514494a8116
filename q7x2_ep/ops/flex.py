"""FlexAttention of ai.onnx.preview: attention whose scores and probabilities the model changes."""

from __future__ import annotations

from math import sqrt
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Graph, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims


@op("ai.onnx.preview::FlexAttention")
class FlexAttention:
    """y = prob_mod(softmax(score_mod(scale * q k^T))) v per head.

    Shapes: q (B, H, S, D), k (B, Hkv, Skv, D), v (B, Hkv, Skv, Dv); H is a multiple of Hkv, and
    a head of k and v serves H / Hkv heads of q in a row.
    Types: the scores are float32, or float64 for float64, unless softmax_precision says otherwise.
    """

    signature = "q: F, k: F, v: F, captures* -> y"
    attributes = {
        "captures": 0,
        "prob_mod": None,
        "scale": None,
        "score_mod": None,
        "softmax_precision": None,
    }
    infer = lambda node: [Type(node.inputs[0].dtype, (*dims(node)[:3], dims(node, 2)[3]))]

    def decompose(
        g: Any,
        q: Value,
        k: Value,
        v: Value,
        *outer: Value,
        captures: int,
        prob_mod: Optional[Graph],
        scale: Optional[float],
        score_mod: Optional[Graph],
        softmax_precision: Optional[int],
    ) -> Value:
        wide = dtypes.DOUBLE if q.dtype == dtypes.DOUBLE else dtypes.FLOAT
        precision = softmax_precision or wide
        factor = np.sqrt(np.float32(1 / sqrt(q.shape[3]) if scale is None else scale))
        k, v = (repeated(g, x, q.shape[1]) for x in (k, v))
        turned = g.Transpose(g.Mul(k, float(factor)), perm=(0, 1, 3, 2))
        scores = g.Cast(g.MatMul(g.Mul(q, float(factor)), turned), to=precision)
        scores = scores if score_mod is None else inlined(g, score_mod, scores, *outer)
        shares = g.Softmax(scores, axis=-1)
        shares = shares if prob_mod is None else inlined(g, prob_mod, shares, *outer)
        return g.Cast(g.MatMul(shares, g.Cast(v, to=precision)), to=q.dtype)


def repeated(g: Any, x: Value, heads: Any) -> Value:
    """(B, Hkv, S, D) -> (B, H, S, D)."""
    batch, own, length, size = x.shape
    if own == heads:
        return x
    spread = g.Expand(g.Unsqueeze(x, [2]), [batch, own, heads // own, length, size])
    return g.reshape(spread, (batch, heads, length, size))


def inlined(g: Any, body: Graph, *inputs: Value) -> Value:
    """The output of a graph for these inputs, by nodes of its ops."""
    made: dict[Value, Any] = dict(zip(body.inputs, inputs))

    def now(value: Optional[Value]) -> Optional[Value]:
        if value is not None and value.const is not None:
            return g.array(value.const)
        return None if value is None else made[value]

    for node in body.nodes:
        count = len(node.outputs)
        results = g.call(node.op, *map(now, node.inputs), outputs=count, **node.attrs)
        made.update(zip(node.outputs, results if count > 1 else (results,)))
    return now(body.outputs[0])
