"""Several masks of one attention as one operand of q7::Attention.

Where only selections are found, and their fills agree, the operand is bool; else it is what is
added to the scores. A selection by a fill that swallows every score, s + fill = fill, may be added.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Optional

from q7x2_ep.dtypes import BOOL
from q7x2_ep.fuse.heads import Heads, group, grouped
from q7x2_ep.fuse.scores import Mask, uniform
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim, broadcasts_to

SWALLOWING = -1e30  # and below: half an ulp is more than any score


def misfit(masks: Sequence[Mask], heads: Heads, queries: Dim, dtype: int) -> str:
    """Why the masks are no operand of attention with `queries`; empty where they are.

    The last dim needs no proof: the product with v holds only where it is 1 or Skv, which bind
    checks.
    """
    for mask in masks:
        reason = misfit_of(mask.value, dtype if mask.kind == "add" else BOOL, queries)
        if not reason and group(mask.value.shape[:-2], mask.lead, heads, "mask") is None:
            shape = (
                f"{mask.value.shape}, wanted {(*mask.lead, queries)} or 1 in each dim but the last"
            )
            reason = f"the mask {mask.value!r} has shape {shape}"
        if reason:
            return reason
    kept = significant(masks)
    if not is_selection(kept):
        weak = [mask.number for mask in kept if mask.kind != "add" and mask.number > SWALLOWING]
        if weak:
            return f"a selection by {weak[0]:.6g} among other masks: a score may be above it"
    return ""


def misfit_of(mask: Value, dtype: int, queries: Dim) -> str:
    if mask.dtype != dtype:
        return f"the mask {mask!r} has dtype {mask.dtype}, wanted {dtype}"
    if mask.shape is None:
        return f"the mask {mask!r} has an unknown shape"
    if len(mask.shape) > 1 and not broadcasts_to(mask.shape[-2], queries):
        return f"the mask {mask!r} has dim {mask.shape[-2]}, wanted 1 or {queries}"
    return ""


def significant(masks: Sequence[Mask]) -> list[Mask]:
    return [mask for mask in masks if not (mask.kind == "add" and is_zero(mask.value))]


def is_selection(masks: Sequence[Mask]) -> bool:
    """Whether one bool operand says all of it."""
    return all(mask.kind != "add" for mask in masks) and len({m.number for m in masks}) < 2


def is_zero(mask: Value) -> bool:
    """Whether an added mask is known to be 0 everywhere, as vision models have it: it is none."""
    if uniform(mask) == 0.0:
        return True
    node = mask.producer
    if node is None or node.op not in ("Expand", "Where"):
        return False
    if node.op == "Expand":
        return is_zero(node.inputs[0])
    return uniform(node.inputs[0]) == 1.0 and is_zero(node.inputs[1])


def combined(g: Any, masks: Sequence[Mask], heads: Heads) -> tuple[Optional[Value], float]:
    """The mask operand, and the fill of a bool one."""
    masks = significant(masks)
    values = [_operand(g, mask, heads) for mask in masks]
    if not masks:
        return None, -inf
    total: Any = None
    if is_selection(masks):
        for mask, value in zip(masks, values):
            keep = value if mask.kind == "keep" else g.Not(value)
            total = keep if total is None else g.And(total, keep)
        return total, masks[0].number
    for mask, value in zip(masks, values):
        if mask.kind == "add":
            term = value if mask.number == 1.0 else g.Mul(value, mask.number)
            total = term if total is None else g.Add(total, term)
        else:
            kept = 0.0 if total is None else total
            order = (kept, mask.number) if mask.kind == "keep" else (mask.number, kept)
            total = g.Where(value, *order)
    return total, -inf


def _operand(g: Any, mask: Mask, heads: Heads) -> Value:
    """The value with B and H, or 1, as its leading dims; as it is where it broadcasts to them."""
    value, lead = mask.value, mask.value.shape[:-2]
    if all(dim == 1 for dim in lead) and len(lead) <= 2:
        return value
    grouping = group(lead, mask.lead, heads, "mask")
    if grouping.merged == lead and grouping.expanded == lead:
        return value
    return grouped(g, value, grouping)
