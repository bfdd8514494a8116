"""Scaled dot-product attention, of primitives or as ONNX Attention -> q7::Attention.

softmax(softcap(scale * q @ k^T) + masks) @ v. How the scores are spelled is read by fuse/scores.py,
several masks become one in fuse/masks.py; heads may be a dim of their own, folded into the batch,
split into groups that share a key, or absent (fuse/heads.py). A factor or repeated heads behind q,
k and v are taken by the fusions that follow.
Source: Vaswani et al. 2017, section 3.2.1; ONNX Attention (opset 23).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, NamedTuple, Union

from q7x2_ep.dtypes import BOOL
from q7x2_ep.fuse import masks
from q7x2_ep.fuse.bands import Band
from q7x2_ep.fuse.heads import Grouping, Heads, find_heads, group, grouped
from q7x2_ep.fuse.scores import Mask, Scores, read
from q7x2_ep.fuse.views import keeps_matrices, swapped
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import Dim, broadcast_shapes
from q7x2_ep.ops import find


def attention(g: Any, scores: Any, flat_shape: Any, v: Any) -> Any:
    return g.MatMul(_weights(g, scores, flat_shape), v)


def attention_turned(g: Any, scores: Any, flat_shape: Any, v_columns: Any) -> Any:
    weights = _weights(g, scores, flat_shape)
    return g.MatMul(v_columns, g.named("turned", g.Transpose(weights, perm=(0, 1, 3, 2))))


def attention_turned_rank_3(g: Any, scores: Any, flat_shape: Any, v_columns: Any) -> Any:
    weights = _weights(g, scores, flat_shape)
    return g.MatMul(v_columns, g.named("turned", g.Transpose(weights, perm=(0, 2, 1))))


def _weights(g: Any, scores: Any, flat_shape: Any) -> Any:
    p = g.named("p", g.Softmax(scores, axis=-1))  # (.., Sq, Skv)
    guarded = g.either(lambda: g.Where(g.named("is_nan", g.IsNaN(p)), 0.0, p), lambda: p)
    return g.either(lambda: g.named("flat", g.Reshape(guarded, flat_shape)), lambda: guarded)


class Rows(NamedTuple):
    """q, k or v: a value (.., S, D), or (.., D, S) where it is given by columns, times factors."""

    value: Value
    by_columns: bool
    factors: tuple[Value, ...] = ()

    @property
    def shape(self) -> tuple[Dim, ...]:
        shape = self.value.shape
        return (*shape[:-2], shape[-1], shape[-2]) if self.by_columns else shape

    def build(self, g: Any, grouping: Grouping) -> Value:
        """As (B, H, S, D)."""
        x = swapped(g, self.value) if self.by_columns else self.value
        return grouped(g, functools.reduce(g.Mul, self.factors, x), grouping)


def _check(match: Match) -> Union[dict[str, Any], str]:
    found = read(match["scores"], Scores())
    if not isinstance(found, Scores):
        return found[1]
    for node in found.nodes:
        if not match.absorb(node):
            return f"{node.output!r} is used elsewhere too"
    weights, turned = match.get("flat") or match["p"], match.get("turned")
    if match.get("flat") is not None and not keeps_matrices(weights.producer):
        return f"{weights!r} has shape {weights.shape}: no longer queries by keys"
    left, right = found.product.inputs
    v = Rows(match["v"], False) if turned is None else Rows(match["v_columns"], True)
    if any(x.shape is None or len(x.shape) < 2 for x in (left, right, v.value)):
        return f"q, k, v have shapes {left.shape}, {right.shape}, {v.value.shape}, wanted matrices"
    q, k = Rows(left, False, found.factors), Rows(right, True)
    if found.turned:
        q, k = Rows(right, True, found.factors), Rows(left, False)
    return _arrange(match, found, q, k, v, weights.shape[:-2])


def _arrange(
    match: Match, found: Scores, q: Rows, k: Rows, v: Rows, lead: tuple
) -> Union[dict[str, Any], str]:
    """The operands as batch and heads. lead: the leading dims of what multiplies v."""
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return f"q, k, v have shapes {q.shape}, {k.shape}, {v.shape} that do not fit"
    product = broadcast_shapes(q.shape[:-2], k.shape[:-2])
    heads = find_heads((product, *found.leads, lead), k.shape[:-2], q.value, match.root.output)
    plan = masks.plan(found.masks, q.shape[-2], k.shape[-2])
    reason = masks.misfit(plan.masks, heads, q.shape[-2], q.value.dtype)
    if reason:
        return reason
    groupings = [group(q.shape[:-2], product, heads, "query")]
    for role in ("key", "query"):  # heads are shared by groups of one size, or not at all
        pairs = [(k, product), (v, lead)]
        groupings[1:] = [group(x.shape[:-2], whole, heads, role) for x, whole in pairs]
        if None in groupings:
            return f"q, k, v have shapes {q.shape}, {k.shape}, {v.shape} that do not fit"
        if groupings[1].merged == groupings[2].merged:
            break
    return {
        "rows": (q, k, v),
        "groupings": groupings,
        "plan": plan,
        "heads": heads,
        "lead": lead,
        "turned": match.get("turned") is not None,
        "scale": found.scale,
        "softcap": found.softcap,
        "zero_masked_rows": int(match.get("is_nan") is not None),
    }


def _build(
    g: Any,
    rows: tuple[Rows, ...],
    groupings: list[Grouping],
    plan: masks.Plan,
    heads: Heads,
    lead: tuple,
    turned: bool,
    scale: float,
    softcap: float,
    zero_masked_rows: int,
) -> Value:
    operands = [x.build(g, grouping) for x, grouping in zip(rows, groupings)]
    attrs = {
        "scale": scale * (softcap or 1.0),
        "softcap": softcap,
        "zero_masked_rows": zero_masked_rows,
    }
    o = _attention(g, operands, plan, heads, attrs)
    o = g.reshape(o, (*lead, *o.shape[-2:]))
    return swapped(g, o) if turned else o


def _attention(
    g: Any, operands: Sequence[Value], plan: masks.Plan, heads: Heads, attrs: dict[str, Any]
) -> Value:
    mask, bias, fill = masks.operands(g, plan.masks, heads)
    offset = None
    if plan.band is not None:
        attrs = {**attrs, "causal": int(plan.band.causal), "window": (plan.band.left, -1)}
        q, k = operands[:2]
        if plan.band.offset != k.shape[2] - q.shape[2]:
            offset = g.literal([plan.band.offset])
    return g.call("q7::Attention", *operands, mask, bias, None, offset, fill=fill, **attrs)


# Attributes of ONNX Attention that q7::Attention has a place for, or that rank 4 makes void.
HANDLED = ("scale", "softcap", "is_causal", "q_num_heads", "kv_num_heads")


def onnx_attention(g: Any, q: Any, k: Any, v: Any) -> Any:
    return g.Attention(q, k, v)


def onnx_attention_masked(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    return g.Attention(q, k, v, mask)


def _check_onnx(match: Match) -> Union[dict[str, Any], str]:
    q, k, v, mask = match["q"], match["k"], match["v"], match.get("mask")
    attrs = match.root.attrs
    special = [
        f"{name}={attrs[name]}"
        for name, default in find("Attention").attributes.items()
        if name not in HANDLED and attrs.get(name, default) != default
    ]
    if special:
        return f"no plain attention: {', '.join(special)}"
    if any(x.shape is None or len(x.shape) != 4 for x in (q, k, v)):
        return f"q, k, v have shapes {q.shape}, {k.shape}, {v.shape}, wanted rank 4"
    reason = _check_heads(q.shape, k.shape, v.shape)
    if reason:
        return reason
    heads, found = Heads(*q.shape[:2]), []
    if mask is not None:
        if not mask.shape or (isinstance(mask.shape[-1], int) and mask.shape[-1] != k.shape[2]):
            return f"the mask {mask!r} has shape {mask.shape}, wanted {k.shape[2]} keys"
        kind, number = ("keep", -inf) if mask.dtype == BOOL else ("add", 1.0)
        found.append(Mask(kind, mask, number, q.shape[:2]))
    plan = masks.plan(found, q.shape[2], k.shape[2])
    if attrs["is_causal"]:  # query i is at position i
        if plan.band is not None:
            plan = masks.Plan(tuple(found), None)
        plan = plan._replace(band=Band(0, -1, True))
    reason = masks.misfit(plan.masks, heads, q.shape[2], q.dtype)
    if reason:
        return reason
    scale, depth = attrs["scale"], q.shape[3]
    if scale is None and isinstance(depth, int):
        scale = 1.0 / sqrt(depth)
    if scale is None:
        return f"no scale is given and the depth {depth} is not known"
    return {
        "operands": (q, k, v),
        "plan": plan,
        "heads": heads,
        "attrs": {"scale": float(scale), "softcap": float(attrs["softcap"])},
    }


def _check_heads(q: tuple, k: tuple, v: tuple) -> str:
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        return f"q, k, v have shapes {q}, {k}, {v} that do not fit"
    heads, shared = q[1], k[1]
    whole = heads == shared or (
        isinstance(heads, int) and isinstance(shared, int) and heads % shared == 0
    )
    return "" if whole else f"{heads} heads of q are no multiple of {shared} of k"


def _build_onnx(g: Any, attrs: dict[str, Any], **arguments: Any) -> Value:
    """The op's own rule: a row without a key to attend to is zero."""
    return _attention(g, attrs={**attrs, "zero_masked_rows": 1}, **arguments)


ATTENTION = Fusion(
    "Attention", (attention, attention_turned, attention_turned_rank_3), _check, _build
)
ONNX_ATTENTION = Fusion(
    "Attention", (onnx_attention, onnx_attention_masked), _check_onnx, _build_onnx
)
