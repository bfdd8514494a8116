"""Attention on repeated heads -> attention that shares them, without copies of k and v.

k and v (B, Hkv, S, D) go through Unsqueeze, Expand, Reshape to (B, H, S, D); q7::Attention takes
them as they were.
Source: Ainslie et al. 2023 (grouped-query attention); `repeat_kv` of transformers.
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion

ATTENTION = "q7::Attention"


def _repeated(g: Any, name: str, x: Any, axes: Any, shape: Any, merged: Any) -> Any:
    heads = g.named(name, g.Expand(g.Unsqueeze(x, axes), shape))  # (B, Hkv, H / Hkv, S, D)
    return g.Reshape(heads, merged)


def shared(
    g: Any,
    q: Any,
    k: Any,
    k_axes: Any,
    k_shape: Any,
    k_merged: Any,
    v: Any,
    v_axes: Any,
    v_shape: Any,
    v_merged: Any,
    mask: Any,
) -> Any:
    keys = _repeated(g, "k_heads", k, k_axes, k_shape, k_merged)
    values = _repeated(g, "v_heads", v, v_axes, v_shape, v_merged)
    return g.either(
        lambda: g.call(ATTENTION, q, keys, values),
        lambda: g.call(ATTENTION, q, keys, values, mask),
    )


def _check(match: Match) -> Union[dict[str, Any], str]:
    q, mask = match["q"], match.get("mask")
    for name in ("k", "v"):
        x, axes, heads = match[name], match[f"{name}_axes"], match[f"{name}_heads"]
        if x.shape is None or len(x.shape) != 4 or heads.shape is None or len(heads.shape) != 5:
            return f"{x!r} has shape {x.shape}, wanted rank 4"
        if axes.elements not in ((2,), (-3,)):
            return f"the new axis of {x!r} is {axes.elements}, wanted 2: copies next to their head"
        batch, shared_heads, length, depth = x.shape
        groups = heads.shape[2]
        if (
            heads.shape != (batch, shared_heads, groups, length, depth)
            or q.shape[1] != shared_heads * groups
        ):
            return f"{heads!r} has shape {heads.shape}, wanted {x.shape} with each head repeated"
    operands = (q, match["k"], match["v"]) if mask is None else (q, match["k"], match["v"], mask)
    return {"operands": operands, "attrs": match.root.attrs}


def _build(g: Any, operands: tuple[Value, ...], attrs: dict[str, Any]) -> Value:
    return g.call(ATTENTION, *operands, **attrs)


GROUPED_HEADS = Fusion("GroupedHeads", (shared,), _check, _build)
