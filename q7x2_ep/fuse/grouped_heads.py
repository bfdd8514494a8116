"""Attention on repeated heads -> attention that shares them, without copies of k and v.

Each head of k and v (B, Hkv, S, D) stands H / Hkv times next to itself in (B, H, S, D), by Expand,
Tile or Concat along a dim of their own that a Reshape merges, by Gather, or from a single head;
transposed before or after. q7::Attention takes them as they were.
Source: Ainslie et al. 2023 (grouped-query attention); `repeat_kv` of transformers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops import always_fits
from q7x2_ep.ops.common import RESHAPES, keeps_count

ATTENTION = "q7::Attention"


class Single(NamedTuple):
    """Heads before they were repeated: source under another shape, then transposed by each perm."""

    source: Value
    shape: tuple[Dim, ...]
    perms: tuple[tuple[int, ...], ...] = ()

    def build(self, g: Any) -> Value:
        x = g.reshape(self.source, self.shape)
        for perm in self.perms:
            x = g.Transpose(x, perm=perm)
        return x


def shared(g: Any, o: Any) -> Any:
    return g.result(ATTENTION, o)


def _check(match: Match) -> Union[dict[str, Any], str]:
    node = match.root
    k, v = (single(x, 1) for x in node.inputs[1:3])
    if k is None or v is None:
        tiled = [x for x in node.inputs[1:3] if is_tiled(x)]
        return f"{tiled[0]!r} repeats all heads in a row, not each next to itself" if tiled else ""
    counts = [_heads(x) for x in (k, v)]
    if counts[0] != counts[1]:
        return f"k has {counts[0]} heads before they are repeated, v has {counts[1]}"
    return {"node": node, "k": k, "v": v}


def _heads(x: Single) -> Dim:
    axis = 1
    for perm in reversed(x.perms):
        axis = perm[axis]
    return x.shape[axis]


def single(x: Value, axis: int) -> Optional[Single]:
    """What x repeats along axis, each entry next to its copies; None where it does not."""
    node = x.producer
    if node is None or x.shape is None:
        return None
    if node.op == "Transpose":
        perm = tuple(node.attrs["perm"])
        found = single(node.inputs[0], perm[axis])
        return found and found._replace(perms=(*found.perms, perm))
    if node.op in RESHAPES:
        split = node.inputs[0]  # (.., Hkv, H / Hkv, ..)
        at = axis + 1
        if not keeps_count(node) or len(split.shape) != len(x.shape) + 1:
            return None
        if split.shape[:axis] + split.shape[at + 1 :] != x.shape[:axis] + x.shape[at:]:
            return None
        source = copied(split, at)
        return Single(source, split.shape[:at] + split.shape[at + 1 :]) if source else None
    if node.op == "Gather" and node.attrs["axis"] % len(x.shape) == axis:
        source, indices = node.inputs
        count = source.shape[axis]
        if indices.elements is None or not isinstance(count, int) or len(indices.shape) != 1:
            return None
        size = len(indices.elements) // count
        if indices.elements != tuple(i // max(size, 1) for i in range(count * size)):
            return None
        return Single(source, source.shape) if size > 1 else None
    source = copied(x, axis)
    return Single(source, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if source else None


def is_tiled(x: Value) -> bool:
    """Whether x (B, H, S, D) merges copies (B, H / Hkv, Hkv, S, D): no heads that attention can
    share.
    """
    node = x.producer
    if node is None or node.op not in RESHAPES or node.inputs[0].shape is None:
        return False
    split = node.inputs[0]
    merges = len(split.shape) == 5 and split.shape[3:] == x.shape[2:]
    return merges and split.shape[2] != 1 and copied(split, 1) is not None


def copied(x: Value, axis: int) -> Optional[Value]:
    """The value of length 1 along axis that x repeats there, and nowhere else."""
    node = x.producer
    if node is None or not _copies(node, axis):
        return None
    source = node.inputs[0]
    wanted = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return source if source.shape == wanted and x.shape[axis] != 1 else None


def _copies(node: Node, axis: int) -> bool:
    if node.op == "Concat":
        alike = all(value is node.inputs[0] for value in node.inputs)
        return alike and node.attrs["axis"] % len(node.output.shape) == axis
    return node.op in ("Expand", "Tile") and always_fits(node)


def _build(g: Any, node: Node, k: Single, v: Single) -> Value:
    q, rest = node.inputs[0], node.inputs[3:]
    return g.call(ATTENTION, q, k.build(g), v.build(g), *rest, **node.attrs)


GROUPED_HEADS = Fusion("GroupedHeads", (shared,), _check, _build)
