"""A factor on the projected queries, before their split into heads -> the scale of q7::Attention.

q = Transpose(Reshape(x * scale)): BART, Whisper, CLIP and their kin. The scores are linear in q.
"""

from __future__ import annotations

from typing import Any

from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion

ATTENTION = "q7::Attention"


def scaled_query(g: Any, x: Any, scale: Any, shape: Any, k: Any, v: Any, mask: Any) -> Any:
    rows = g.Reshape(g.Mul(x, g.scalar(scale)), shape)  # (B, Sq, H, D)
    q = g.Transpose(rows, perm=(0, 2, 1, 3))
    return g.either(
        lambda: g.call(ATTENTION, q, k, v),
        lambda: g.call(ATTENTION, q, k, v, mask),
    )


def _check(match: Match) -> dict[str, Any]:
    scale = match.root.attrs["scale"] * match.scalar("scale", 1.0)
    return {"x": match["x"], "shape": match["shape"], "node": match.root, "scale": scale}


def _build(g: Any, x: Value, shape: Value, node: Node, scale: float) -> Value:
    q = g.Transpose(g.Reshape(x, shape), perm=(0, 2, 1, 3))
    return g.call(ATTENTION, q, *node.inputs[1:], **{**node.attrs, "scale": scale})


QUERY_SCALE = Fusion("QueryScale", (scaled_query,), _check, _build)
