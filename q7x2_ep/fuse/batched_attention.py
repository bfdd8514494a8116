"""Attention whose heads were folded into the batch, (B*H, S, D) -> q7::Attention on (B, H, S, D).

How PyTorch code around `bmm` exports: q, k, v are reshaped to rank 3, and where there is a mask the
scores are brought to rank 4 for the Add and back. Read fuse/attention.py first.
"""

from __future__ import annotations

from typing import Any, Optional, Union

from q7x2_ep.fuse.attention import check_mask, scaled
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def batched_attention(
    g: Any,
    q: Any,
    k: Any,
    k_columns: Any,
    v: Any,
    q_scale: Any,
    scale: Any,
    heads_shape: Any,
    mask: Any,
    flat_shape: Any,
) -> Any:
    columns = g.either(lambda: g.Transpose(k, perm=(0, 2, 1)), lambda: k_columns)  # (B*H, D, Skv)
    scores = scaled(g, g.MatMul(scaled(g, q, q_scale), columns), scale)  # (B*H, Sq, Skv)

    def masked() -> Any:
        split = g.named("scores", g.Reshape(scores, heads_shape))  # (B, H, Sq, Skv)
        return g.Reshape(g.Add(split, mask), flat_shape)

    return g.MatMul(g.Softmax(g.either(masked, lambda: scores), axis=-1), v)


def _check(match: Match) -> Union[dict[str, Any], str]:
    q, k, columns, v = match["q"], match.get("k"), match.get("k_columns"), match["v"]
    if any(x is not None and (x.shape is None or len(x.shape) != 3) for x in (q, k, columns, v)):
        return ""  # of rank 4, most often
    flat, queries, depth = q.shape
    keys = v.shape[1]
    scores, mask = match.get("scores"), match.get("mask")
    heads = _heads_behind(q) if scores is None else scores.shape
    if heads is None or len(heads) != 4 or heads[0] * heads[1] != flat:
        return f"the heads of {q!r} are not known: its shape is {q.shape}"
    if k is not None and k.shape != (flat, keys, depth):
        return f"q, k, v have shapes {q.shape}, {k.shape}, {v.shape} that do not fit"
    if columns is not None and columns.shape != (flat, depth, keys):
        return f"q, k^T, v have shapes {q.shape}, {columns.shape}, {v.shape} that do not fit"
    if v.shape[0] != flat:
        return f"q and v have shapes {q.shape}, {v.shape} that do not fit"
    if mask is not None:
        full = (*heads[:2], queries, keys)
        reason = f"the scores have shape {heads}, wanted {full}" if heads != full else ""
        reason = reason or check_mask(mask, full, q.dtype)
        if reason:
            return reason
    number = match.scalar("q_scale", 1.0) * match.scalar("scale", 1.0)
    return {
        "q": q,
        "k": k,
        "columns": columns,
        "v": v,
        "mask": mask,
        "heads": heads[:2],
        "scale": number,
    }


def _heads_behind(q: Value) -> Optional[tuple]:
    """The shape (B, H, S, D) of what was reshaped to q, or None."""
    x = q
    while x.producer is not None and x.producer.op == "Reshape" and len(x.shape) != 4:
        x = x.producer.inputs[0]  # type: ignore[assignment]
    return x.shape if len(x.shape) == 4 and x.shape[2:] == q.shape[1:] else None


def _build(
    g: Any,
    q: Value,
    k: Optional[Value],
    columns: Optional[Value],
    v: Value,
    mask: Optional[Value],
    heads: tuple,
    scale: float,
) -> Value:
    if columns is None:
        keys = g.reshape(k, heads + k.shape[1:])
    else:
        keys = g.Transpose(g.reshape(columns, heads + columns.shape[1:]), perm=(0, 1, 3, 2))
    o = g.call(
        "q7::Attention",
        g.reshape(q, heads + q.shape[1:]),
        keys,
        g.reshape(v, heads + v.shape[1:]),
        mask,
        scale=scale,
    )
    return g.Reshape(o, [*q.shape[:2], v.shape[2]])


BATCHED_ATTENTION = Fusion("BatchedAttention", (batched_attention,), _check, _build)
