"""Leading dims as batch and heads: q, k, v and masks of any rank as operands of rank 4.

Scores of shape (*lead, Sq, Skv) are B * H matrices in order; how many of the leading dims make B
and how many H is what a split says. Where no dim ends between the two, (B * H,) is split itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim, broadcasts_to, product

Lead = tuple[Dim, ...]


class Heads(NamedTuple):
    """B and H."""

    batch: Dim
    heads: Dim


class Grouping(NamedTuple):
    """How an operand gets its two leading dims: expanded, then reshaped."""

    expanded: Lead
    merged: tuple[Dim, Dim]


def group(own: Lead, lead: Lead, heads: Heads, role: str) -> Optional[Grouping]:
    """How leading dims `own`, that broadcast to `lead`, become two; None where they do not fit.

    role: a query has all B and H; keys have all B, their heads may be shared by equal groups; a
    mask may lack either.
    """
    own = (1,) * (len(lead) - len(own)) + own
    if len(own) > len(lead) or not all(map(broadcasts_to, own, lead)):
        return None
    at = _split(lead, heads)
    if at is None:
        alike = role == "mask" and all(dim == 1 for dim in own)
        return Grouping(own, (1, 1)) if alike else Grouping(lead, heads)
    batch, shared = own[:at], own[at:]
    if role != "mask" or any(dim != 1 for dim in batch):
        batch = lead[:at]
    alike = role != "query" and all(dim == 1 for dim in shared)
    if not alike and not (role == "key" and _is_prefix(shared, lead[at:])):
        shared = lead[at:]
    return Grouping(batch + shared, (product(batch), product(shared)))


def _split(lead: Lead, heads: Heads) -> Optional[int]:
    """How many of the leading dims make the batch; the others make the heads."""
    for at in range(len(lead), -1, -1):
        if product(lead[:at]) == heads.batch and product(lead[at:]) == heads.heads:
            return at
    return None


def _is_prefix(own: Lead, lead: Lead) -> bool:
    """Whether own is lead with its last dims replaced by 1: copies next to each other."""
    n = max((i + 1 for i, dim in enumerate(own) if dim != 1), default=0)
    return own[:n] == lead[:n]


def grouped(g: Any, x: Value, grouping: Grouping) -> Value:
    """x (.., M, N) as (merged[0], merged[1], M, N)."""
    shape = (1,) * (2 - len(x.shape)) + x.shape
    own = (1,) * (len(grouping.expanded) + 2 - len(shape)) + shape
    full = grouping.expanded + shape[-2:]
    if own != full:
        x = g.Expand(x, list(full))
    return g.reshape(x, (*grouping.merged, *shape[-2:]))


def find_heads(leads: Sequence[Lead], keys: Lead, q: Value, root: Value) -> Heads:
    """B and H of an attention whose scores have these leading dims, the product's first.

    keys: the leading dims of k. Any answer with the right product is right; the best leaves views
    where others would copy.
    """
    for lead in leads:
        if len(lead) == 2:
            return Heads(*lead)
    lead = leads[0]
    if not lead:
        return Heads(1, 1)
    if len(lead) > 2:
        at = 1 if keys[-1:] == (1,) and lead[-1] != 1 else len(lead) - 1
        return Heads(product(lead[:at]), product(lead[at:]))
    split = _split_by_reshape(lead[0], q, root)
    if split is None and any(
        user.op == "Transpose" and list(user.attrs["perm"]) == [1, 0, 2] for user in root.users
    ):
        return Heads(1, lead[0])  # (S, B * H, D) is what is wanted: as heads, a view
    return split or Heads(lead[0], 1)


def _split_by_reshape(size: Dim, q: Value, root: Value) -> Optional[Heads]:
    """B and H from a shape (B, H, S, D) in front of q, or behind the result."""
    nearby: list[Value] = []
    x: Optional[Value] = q
    while x is not None and x.producer is not None and x.producer.op in ("Reshape", "Mul", "Div"):
        nearby += [value for value in x.producer.inputs if value.shape is not None]
        x = x.producer.inputs[0]
    nearby += [user.output for user in root.users if user.op == "Reshape"]
    for value in nearby:
        fits = len(value.shape) == 4 and value.shape[2:] in (q.shape[1:], root.shape[1:])
        if fits and value.shape[0] * value.shape[1] == size:
            return Heads(*value.shape[:2])
    return None
