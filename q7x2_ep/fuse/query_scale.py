"""A factor on q or k -> the scale of q7::Attention: the scores are linear in both.

It may sit behind views: q = Transpose(Reshape(x * scale)) in BART, Whisper, CLIP and their kin; its
root is on both sides where PyTorch decomposes attention. With a softcap too, which caps what is
scaled.
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.fuse.views import factor, unscaled
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion

ATTENTION = "q7::Attention"


def scaled_operands(g: Any, o: Any) -> Any:
    return g.result(ATTENTION, o)


def _check(match: Match) -> Union[dict[str, Any], str]:
    node = match.root
    scale = factor(match.graph, node.inputs[0]) * factor(match.graph, node.inputs[1])
    return {"node": node, "scale": node.attrs["scale"] * scale} if scale != 1.0 else ""


def _build(g: Any, node: Node, scale: float) -> Value:
    q, k = (unscaled(g, x) for x in node.inputs[:2])
    return g.call(ATTENTION, q, k, *node.inputs[2:], **{**node.attrs, "scale": scale})


QUERY_SCALE = Fusion("QueryScale", (scaled_operands,), _check, _build)
