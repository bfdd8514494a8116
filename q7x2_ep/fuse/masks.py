"""The masks of one attention as operands and attributes of q7::Attention.

What follows from positions alone becomes a band (fuse/bands.py); the rest is a bias, that is added,
and a mask, that is added or selects. A selection replaces scores by a fill, `s + fill = fill` for a
fill of -1e30 or less and any score, so that a selection may be added and what adds may select. Rows
without a key in sight keep their meaning: a selection by a finite fill gives them equal weights, so
it becomes a band only where no row is like that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, Optional

from q7x2_ep.dtypes import BOOL
from q7x2_ep.fuse.bands import Band, Bound, Clause, bounds, clauses, is_never_empty, joined
from q7x2_ep.fuse.heads import Heads, group, grouped
from q7x2_ep.fuse.scores import Mask
from q7x2_ep.fuse.views import uniform
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim, broadcasts_to

SWALLOWING = -1e30  # and below: half an ulp is more than any score
HIDING = -65504.0  # the lowest float16, and below: no weight is left beside a key in sight


class Plan(NamedTuple):
    """masks: what is left of them without the band, innermost first; no zeros among them."""

    masks: tuple[Mask, ...]
    band: Optional[Band]


def misfit(masks: Sequence[Mask], heads: Heads, queries: Dim, dtype: int) -> str:
    """Why the masks are no operands of attention with `queries`; empty where they are.

    The last dim needs no proof: the product with v holds only where it is 1 or Skv, which bind
    checks.
    """
    for mask in masks:
        value, wanted = mask.value, dtype if mask.kind == "add" else BOOL
        if value.dtype != wanted:
            return f"the mask {value!r} has dtype {value.dtype}, wanted {wanted}"
        if value.shape is None:
            return f"the mask {value!r} has an unknown shape"
        if len(value.shape) > 1 and not broadcasts_to(value.shape[-2], queries):
            return f"the mask {value!r} has dim {value.shape[-2]}, wanted 1 or {queries}"
        if group(value.shape[:-2], mask.lead, heads, "mask") is None:
            full = (*mask.lead, queries)  # and keys
            return f"the mask {value!r} has shape {value.shape}, wanted {full} or 1 in each dim"
    if any(mask.number == inf and mask.kind != "add" for mask in masks):
        return "a selection by inf: it makes NaN, which a guard may look for"
    weak = [mask.number for mask in masks if mask.kind != "add" and mask.number > SWALLOWING]
    if weak and not _is_one_selection(masks):
        return f"a selection by {weak[0]:.6g} before other masks: they change what it selects"
    return ""


def plan(masks: Sequence[Mask], queries: Dim, keys: Dim) -> Plan:
    """Takes the band out of the masks. A later finite fill would replace it: then it stays."""
    masks = [mask for mask in masks if not _is_void(mask, queries, keys)]
    first = 1 + max((i for i, mask in enumerate(masks) if _is_finite(mask)), default=-1)
    left, found = list(masks[:first]), []
    for mask in masks[first:]:
        for part in _parts(mask, -inf, queries, keys):
            rest, said = _divided(part, queries, keys)
            left += rest
            found += said
    band = joined(found, queries, keys)
    if band is None and len(masks) == 1:
        (left, band) = _only_band(masks[0], queries, keys)
    return Plan(tuple(masks), None) if band is None else Plan(tuple(left), band)


def _is_finite(mask: Mask) -> bool:
    return mask.kind != "add" and mask.number != -inf


def _only_band(mask: Mask, queries: Dim, keys: Dim) -> tuple[list[Mask], Optional[Band]]:
    """A selection by a finite fill that is all of the mask, and nothing but a band."""
    selection, *others = _parts(mask, HIDING, queries, keys)
    if others or selection.kind == "add" or selection.number > HIDING:
        return [mask], None
    rest, found = _divided(selection, queries, keys)
    band = None if rest else joined(found, queries, keys)
    if band is None or not is_never_empty(band, queries, keys):
        return [mask], None
    return [], band


def _parts(mask: Mask, most: float, queries: Dim, keys: Dim) -> list[Mask]:
    """An added mask as selections by a fill of `most` or less, and what is added besides."""
    node = mask.value.producer
    if mask.kind != "add" or mask.number <= 0.0:
        return [mask]
    fill = _only_number(mask.value)
    hides = fill is not None and fill * mask.number <= most
    if hides and bounds((mask.value, False), queries, keys):  # so nobody asks for it as bool
        return [mask._replace(kind="drop", number=fill * mask.number)]
    if node is not None and node.op == "Where":
        condition, a, b = node.inputs
        for kind, fill, rest in (("keep", uniform(b), a), ("drop", uniform(a), b)):
            if fill is not None and fill * mask.number <= most:
                selection = Mask(kind, condition, fill * mask.number, mask.lead)
                others = _parts(mask._replace(value=rest), most, queries, keys)
                return [selection] if _is_zero(rest) else [*others, selection]
    if node is not None and node.op == "Add" and most == -inf:
        values = [mask._replace(value=x) for x in node.inputs]
        parts = [part for value in values for part in _parts(value, most, queries, keys)]
        return parts if any(part.kind != "add" for part in parts) else [mask]
    return [mask]


def _only_number(value: Value) -> Optional[float]:
    """The number that is found in a constant or a triangle besides 0."""
    node = value.producer
    if node is not None and node.op == "Trilu":
        return uniform(node.inputs[0])
    if value.const is None or not value.const.size:
        return None
    lowest = value.const.min()
    return float(lowest) if ((value.const == lowest) | (value.const == 0)).all() else None


def _divided(mask: Mask, queries: Dim, keys: Dim) -> tuple[list[Mask], list[Bound]]:
    """A selection as what is no bound, and its bounds."""
    if mask.kind == "add":
        return [mask], []
    rest: list[Clause] = []
    found: list[Bound] = []
    for clause in clauses(mask.value, mask.kind == "keep"):
        said = bounds(clause, queries, keys)
        found += said
        rest += [] if said else [clause]
    if not found:
        return [mask], []
    return [
        mask._replace(kind="keep" if holds else "drop", value=value) for value, holds in rest
    ], found


def _is_void(mask: Mask, queries: Dim, keys: Dim) -> bool:
    """Whether a mask is known to mask nothing, as vision models have it, and to fit: where it does
    not, the run is refused.
    """
    shape, full = mask.value.shape, (*mask.lead, queries, keys)
    if shape is None or len(shape) > len(full):
        return False
    if any(d not in (1, n) for d, n in zip(shape[::-1], full[::-1])):
        return False
    if mask.kind == "add":
        return _is_zero(mask.value)
    return uniform(mask.value) == float(mask.kind == "keep")


def _is_zero(value: Value) -> bool:
    node = value.producer
    if node is not None and node.op == "Expand":
        return _is_zero(node.inputs[0])
    if node is not None and node.op == "Where":
        return uniform(node.inputs[0]) == 1.0 and _is_zero(node.inputs[1])
    return uniform(value) == 0.0


def operands(
    g: Any, masks: Sequence[Mask], heads: Heads
) -> tuple[Optional[Value], Optional[Value], float]:
    """The mask, the bias, and the fill of a bool mask."""
    added: list[Any] = []
    keep: Any = None
    fill = -inf
    one = _is_one_selection(masks)
    for mask in masks:
        value = _operand(g, mask, heads)
        if mask.kind == "add":
            term = value if mask.number == 1.0 else g.Mul(value, mask.number)
            added.append(term)
        elif one:
            here = value if mask.kind == "keep" else g.Not(value)
            keep, fill = here if keep is None else g.And(keep, here), mask.number
        else:
            kept = 0.0 if not added else _sum(g, added)
            order = (kept, mask.number) if mask.kind == "keep" else (mask.number, kept)
            added = [g.Where(value, *order)]
    if keep is None and added:
        keep = added.pop()  # two that are added are not the same shape, most often: kept apart
    return keep, _sum(g, added) if added else None, fill


def _is_one_selection(masks: Sequence[Mask]) -> bool:
    """Whether a bool mask, behind all that is added, says what the selections do."""
    chosen = [i for i, mask in enumerate(masks) if mask.kind != "add"]
    fills = {masks[i].number for i in chosen}
    return len(fills) < 2 and (
        fills == {-inf} or all(mask.kind != "add" for mask in masks[min(chosen, default=0) :])
    )


def _sum(g: Any, terms: Sequence[Value]) -> Value:
    return functools.reduce(g.Add, terms)


def _operand(g: Any, mask: Mask, heads: Heads) -> Value:
    """The value with B and H, or 1, as its leading dims; as it is where it broadcasts to them."""
    value, lead = mask.value, mask.value.shape[:-2]
    if all(dim == 1 for dim in lead) and len(lead) <= 2:
        return value
    grouping = group(lead, mask.lead, heads, "mask")
    if grouping.merged == lead and grouping.expanded == lead:
        return value
    return grouped(g, value, grouping)
