"""Slice and Gather of rows of a Linear move in front of it: logits of the last position only.

Where nothing else is asked, the rows that nobody reads are not computed.
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.fuse.linear import LINEAR
from q7x2_ep.ir.core import ANY, Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import at_least, product
from q7x2_ep.ops.movement import slices


def sliced(g: Any, linear: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    return g.either(
        lambda: g.Slice(linear, starts, ends, axes, steps),
        lambda: g.Slice(linear, starts, ends, axes),
        lambda: g.Slice(linear, starts, ends),
    )


def gathered(g: Any, linear: Any, indices: Any) -> Any:
    return g.Gather(linear, indices, axis=ANY)


def _check(match: Match) -> Union[dict[str, Any], str]:
    y, root = match["linear"], match.root
    node = y.producer
    if node is None or node.op != LINEAR:
        return ""
    if root.op == "Slice":
        axes = {axis for axis, *_ in slices(root)}
    else:
        (axis,) = axes = {root.attrs["axis"] % len(y.shape)}
        taken = product(match["indices"].shape)
        if taken != 1 and not at_least(y.shape[axis] - taken, 0):
            return ""  # rows may be repeated
    if len(y.shape) - 1 in axes:
        return ""  # columns
    if node.input(3) is not None:
        return "the residual has all rows"
    if not match.absorb(node):
        return f"{y!r} is used elsewhere too"
    return {"node": node, "root": root}


def _build(g: Any, node: Node, root: Node) -> Value:
    rows = g.call(root.op, node.inputs[0], *root.inputs[1:], **root.attrs)
    return g.call(LINEAR, rows, *node.inputs[1:], **node.attrs)


ROWS = Fusion("LinearRows", (sliced, gathered), _check, _build)
