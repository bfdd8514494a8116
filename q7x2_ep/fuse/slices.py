"""ScatterND at positions that count through a slice -> q7::SliceScatter, a copy.

PyTorch's exporters write y[:, 1:, ..] = updates so: a position for every element, made by Range,
Reshape, Expand and Concat, which take longer than all that is copied.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, Optional

from q7x2_ep.ir.core import Graph, Node
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.replace import rewrite
from q7x2_ep.ir.shape import Dim, at_least
from q7x2_ep.ops.affine import Known, coordinates
from q7x2_ep.ops.common import MAX_NDIM


class Cut(NamedTuple):
    """`count` of an axis: start, start + step, .."""

    start: Dim
    count: Dim
    step: int


class Slices:
    """Not a pattern: index arithmetic in any arrangement."""

    name = "SliceScatter"

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        known: Known = {}
        applied: Counter = Counter()
        order: list[Node] = []
        for node in graph.nodes:
            cuts = _cuts(node, known) if node.op == "ScatterND" else None
            made: list[Node] = []
            if cuts:
                x, _, updates = node.inputs
                shape = [*(cut.count for cut in cuts), *x.shape[len(cuts) :]]
                starts = g.literal([cut.start for cut in cuts])
                steps = tuple(cut.step for cut in cuts)
                result = g.call(
                    "q7::SliceScatter", x, g.reshape(updates, shape), starts, steps=steps
                )
                made = rewrite(g, self.name, [node.output], [result], [node])
                applied.update([self.name] if made else [])
            order += made or [node]
        graph.nodes = order
        return applied, []


def _cuts(node: Node, known: Known) -> Optional[list[Cut]]:
    """The slice of each axis that the indices of a ScatterND count through; None where they may be
    another set of positions, or one of them twice.
    """
    x, indices, updates = node.inputs
    if x.shape is None or indices.shape is None or updates.shape is None:
        return None
    grid, left = indices.shape[:-1], [i for i, dim in enumerate(indices.shape[:-1]) if dim != 1]
    found = coordinates(indices, known) if node.attrs["reduction"] == "none" else None
    if not found or len(x.shape) > MAX_NDIM or updates.shape != (*grid, *x.shape[len(found) :]):
        return None
    cuts = []
    for size, position in zip(x.shape, found):
        moving = [i for i, dim in enumerate(grid) if dim != 1 and position.steps[i] != 0]
        step = position.steps[moving[0]] if moving else 1
        if len(moving) > 1 or moving != left[: len(moving)] or not isinstance(step, int):
            return None
        del left[: len(moving)]
        start, count = position.offset, grid[moving[0]] if moving else 1
        if isinstance(start, int) and start < 0:
            start = size + start
        last = start + step * (count - 1)
        if step < 1 or not at_least(start, 0) or not at_least(size - 1 - last, 0):
            return None
        cuts.append(Cut(start, count, step))
    return None if left else cuts
