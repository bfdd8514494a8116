"""Scaled dot-product attention, of primitives or as ONNX Attention -> q7::Attention.

softmax(softcap(scale * q @ k^T) + masks) @ v. How the scores are spelled is read by fuse/scores.py,
several masks become one in fuse/masks.py; heads may be a dim of their own, folded into the batch,
split into groups that share a key, or absent (fuse/heads.py). A factor or repeated heads behind q,
k and v are taken by the fusions that follow.
Source: Vaswani et al. 2017, section 3.2.1; ONNX Attention (opset 23).
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple, Union

from q7x2_ep.dtypes import BOOL
from q7x2_ep.fuse import masks
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
    """q, k or v: a value (.., S, D), or (.., D, S) where it is given by columns."""

    value: Value
    by_columns: bool

    @property
    def shape(self) -> tuple[Dim, ...]:
        shape = self.value.shape
        return (*shape[:-2], shape[-1], shape[-2]) if self.by_columns else shape

    def build(self, g: Any, grouping: Grouping) -> Value:
        """As (B, H, S, D)."""
        return grouped(g, swapped(g, self.value) if self.by_columns else self.value, grouping)


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
    q, k = Rows(left, False), Rows(right, True)
    if found.turned:
        q, k = Rows(right, True), Rows(left, False)
    return _arrange(match, found, q, k, v, weights.shape[:-2])


def _arrange(
    match: Match, found: Scores, q: Rows, k: Rows, v: Rows, lead: tuple
) -> Union[dict[str, Any], str]:
    """The operands as batch and heads. lead: the leading dims of what multiplies v."""
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return f"q, k, v have shapes {q.shape}, {k.shape}, {v.shape} that do not fit"
    product = broadcast_shapes(q.shape[:-2], k.shape[:-2])
    heads = find_heads((product, *found.leads, lead), k.shape[:-2], q.value, match.root.output)
    reason = masks.misfit(found.masks, heads, q.shape[-2], q.value.dtype)
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
        "found": found.masks,
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
    found: tuple[Mask, ...],
    heads: Heads,
    lead: tuple,
    turned: bool,
    scale: float,
    softcap: float,
    zero_masked_rows: int,
) -> Value:
    operands = [x.build(g, grouping) for x, grouping in zip(rows, groupings)]
    mask, fill = masks.combined(g, found, heads)
    attrs = {"scale": scale, "fill": fill, "zero_masked_rows": zero_masked_rows}
    if softcap:
        attrs.update(scale=scale * softcap, softcap=softcap)
    o = g.call("q7::Attention", *operands, mask, **attrs)
    o = g.reshape(o, (*lead, *o.shape[-2:]))
    return swapped(g, o) if turned else o


# Attributes of ONNX Attention that q7::Attention has a place for, or that rank 4 makes void.
HANDLED = ("scale", "is_causal", "q_num_heads", "kv_num_heads")


def onnx_attention(g: Any, q: Any, k: Any, v: Any) -> Any:
    return g.Attention(q, k, v, softcap=0.0)


def onnx_attention_masked(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    return g.Attention(q, k, v, mask, softcap=0.0)


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
    if attrs["is_causal"] and q.shape[2] != k.shape[2]:
        counts = f"{q.shape[2]} queries and {k.shape[2]} keys"
        return f"causal with {counts}: aligned at the first key, wanted the last"
    reason = _check_heads(q.shape, k.shape, v.shape)
    if mask is not None and not reason:
        reason = masks.misfit_of(mask, BOOL if mask.dtype == BOOL else q.dtype, q.shape[2])
        if not reason and group(mask.shape[:-2], q.shape[:2], Heads(*q.shape[:2]), "mask") is None:
            reason = f"the mask {mask!r} has shape {mask.shape}, q has shape {q.shape}"
    if reason:
        return reason
    scale, depth = attrs["scale"], q.shape[3]
    if scale is None and isinstance(depth, int):
        scale = 1.0 / sqrt(depth)
    if scale is None:
        return f"no scale is given and the depth {depth} is not known"
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    return {"operands": operands, "scale": float(scale), "causal": int(bool(attrs["is_causal"]))}


def _check_heads(q: tuple, k: tuple, v: tuple) -> str:
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        return f"q, k, v have shapes {q}, {k}, {v} that do not fit"
    heads, shared = q[1], k[1]
    whole = heads == shared or (
        isinstance(heads, int) and isinstance(shared, int) and heads % shared == 0
    )
    return "" if whole else f"{heads} heads of q are no multiple of {shared} of k"


def _build_onnx(g: Any, operands: tuple[Value, ...], **attrs: Any) -> Value:
    """The op's own rule: a row without a key to attend to is zero."""
    return g.call("q7::Attention", *operands, zero_masked_rows=1, **attrs)


ATTENTION = Fusion(
    "Attention", (attention, attention_turned, attention_turned_rank_3), _check, _build
)
ONNX_ATTENTION = Fusion(
    "Attention", (onnx_attention, onnx_attention_masked), _check_onnx, _build_onnx
)
