"""Scaled dot-product attention -> q7::Attention, and what the mask of one says.

softmax(softcap(scale * q @ k^T) + masks) @ v. How the scores are spelled is read by fuse/scores.py,
several masks become one in fuse/masks.py; heads may be a dim of their own, folded into the batch,
split into groups that share a key, or absent (fuse/heads.py). A factor or repeated heads behind q,
k and v are taken by the fusions that follow.
Source: Vaswani et al. 2017, section 3.2.1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import inf
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

GUARDS = ("is_nan", "is_masked", "hidden", "shown")  # what makes masked rows zero


def attention(g: Any, scores: Any, axes: Any, flat_shape: Any, v: Any) -> Any:
    return g.MatMul(_weights(g, scores, axes, flat_shape), v)


def attention_turned(g: Any, scores: Any, axes: Any, flat_shape: Any, v_columns: Any) -> Any:
    weights = _weights(g, scores, axes, flat_shape)
    return g.MatMul(v_columns, g.named("turned", g.Transpose(weights, perm=(0, 1, 3, 2))))


def attention_turned_rank_3(g: Any, scores: Any, axes: Any, flat_shape: Any, v_columns: Any) -> Any:
    weights = _weights(g, scores, axes, flat_shape)
    return g.MatMul(v_columns, g.named("turned", g.Transpose(weights, perm=(0, 2, 1))))


def attention_dropped(g: Any, hidden: Any, scores: Any, v: Any) -> Any:
    """What the scores lost by a mask, the weights lose again: a row without a key is zero."""
    p = g.named("p", g.Softmax(scores, axis=-1))
    return g.MatMul(g.Where(hidden, 0.0, p), v)


def attention_kept(g: Any, shown: Any, scores: Any, v: Any) -> Any:
    p = g.named("p", g.Softmax(scores, axis=-1))
    return g.MatMul(g.Where(shown, p, 0.0), v)


def _weights(g: Any, scores: Any, axes: Any, flat_shape: Any) -> Any:
    p = g.named("p", g.Softmax(scores, axis=-1))  # (.., Sq, Skv)
    guarded = g.either(
        lambda: g.Where(g.named("is_nan", g.IsNaN(p)), 0.0, p),
        lambda: g.Where(
            g.named("is_masked", g.Equal(g.ReduceMax(scores, axes, keepdims=1), -inf)), 0.0, p
        ),
        lambda: p,
    )
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
    rank = len(match["p"].shape)
    if match.get("is_masked") is not None and match["axes"].elements not in ((-1,), (rank - 1,)):
        return f"rows are masked along axes {match['axes'].elements}, wanted the last"
    again = match.get("hidden") or match.get("shown")
    if again is not None:
        kind = "drop" if match.get("hidden") else "keep"
        if [(mask.kind, mask.value) for mask in found.masks] != [(kind, again)]:
            return f"weights are zero by {again!r}, which is not the one mask of the scores"
        if found.masks[0].number > masks.SWALLOWING:
            return f"a mask of {found.masks[0].number:.6g} leaves weights that are not zero"
        found = found._replace(masks=(found.masks[0]._replace(number=-inf),))
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
        "zero_masked_rows": int(any(match.get(x) is not None for x in GUARDS)),
        "zero_nan_rows": int(match.get("is_nan") is not None),
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
    zero_nan_rows: int,
) -> Value:
    operands = [x.build(g, grouping) for x, grouping in zip(rows, groupings)]
    attrs = {
        "scale": scale * (softcap or 1.0),
        "softcap": softcap,
        "zero_masked_rows": zero_masked_rows,
        "zero_nan_rows": zero_nan_rows,
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


def masked(g: Any, o: Any) -> Any:
    return g.result("q7::Attention", o)


def _check_masked(match: Match) -> Union[dict[str, Any], str]:
    """What an attention op was given as its only mask may say a band, or nothing."""
    node = match.root
    (q, k, _), attrs = node.inputs[:3], node.attrs
    mask, *others = (node.input(i) for i in range(3, 8))
    bounded = attrs["causal"] or tuple(attrs["window"]) != (-1, -1)
    if mask is None or bounded or any(x is not None for x in others):
        return ""
    kind, number = ("keep", attrs["fill"]) if mask.dtype == BOOL else ("add", 1.0)
    found = (Mask(kind, mask, number, q.shape[:2]),)
    plan, heads = masks.plan(found, q.shape[2], k.shape[2]), Heads(*q.shape[:2])
    if plan.masks == found or masks.misfit(plan.masks, heads, q.shape[2], q.dtype):
        return ""
    same = {name: attrs[name] for name in ("scale", "softcap", "zero_masked_rows", "zero_nan_rows")}
    return {"operands": tuple(node.inputs[:3]), "plan": plan, "heads": heads, "attrs": same}


ATTENTION = Fusion(
    "Attention",
    (
        *(attention, attention_turned, attention_turned_rank_3),
        *(attention_dropped, attention_kept),
    ),
    _check,
    _build,
)
MASKED = Fusion("AttentionMask", (masked,), _check_masked, _attention)
