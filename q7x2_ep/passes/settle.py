"""Sizes lose what guards refuse: where a window fits into its input, so much is left of that.

Exporters divide towards zero what may be negative, as a length less the reach of a kernel, and
slices stop at 0. In a run where that matters the convolution before them does not fit, and is
refused. Without, such sizes are those that convolutions have, and what has them has one shape. The
graph keeps the guards that it rests on, also of nodes that go.
"""

from __future__ import annotations

from q7x2_ep.ir.core import Graph
from q7x2_ep.ir.shape import (
    Dim,
    at_least,
    excess_over,
    has_sides,
    settled,
    undivided,
)
from q7x2_ep.ops import find
from q7x2_ep.ops.common import where_is


def run(graph: Graph) -> dict[str, int]:
    """Counts values whose sizes have become simpler."""
    loose = [
        value
        for value in graph.values()
        if any(map(has_sides, (*(value.shape or ()), *(value.elements or ()))))
    ]
    facts = _facts(graph) if loose else {}
    if not facts:
        return {"values": 0}

    def is_sure(size: Dim) -> bool:
        bare = undivided(size)
        for fact, text in facts.items():
            if at_least(bare - fact, 0):
                if (fact, text) not in graph.guards:
                    graph.guards.append((fact, text))
                return True
        return False

    known: dict[Dim, Dim] = {}
    count = 0
    for value in loose:
        before = value.shape, value.elements
        for name in ("shape", "elements"):
            sizes = getattr(value, name)
            if sizes is not None:
                setattr(value, name, tuple(settled(size, is_sure, known) for size in sizes))
        count += (value.shape, value.elements) != before
    return {"values": count}


def _facts(graph: Graph) -> dict[Dim, str]:
    """What guards of nodes have at 0 or above, and what it means below."""
    found: dict[Dim, str] = {}
    seen: set[Dim] = set()
    for node in graph.nodes:
        if any(value.shape is None for value in node.outputs):
            continue
        new = [dim for value in node.outputs for dim in value.shape if dim not in seen]
        seen.update(new)
        for dim in dict.fromkeys(new):
            if not at_least(dim, 0):
                text = f"{where_is(node)} a dim of {dim} elements, which is negative"
                found.setdefault(undivided(dim), text)
        entry = find(node.op)
        if node.binds or not hasattr(entry, "guards"):
            continue
        for left, right, text in entry.guards(node):
            excess = excess_over(left, 0) if right == 0 else 0
            if not isinstance(excess, int):
                found.setdefault(undivided(-excess), f"{where_is(node)} {text}")
    return found
