"""A Transpose of rows moves from the front of a Linear behind it, where it meets the next one.

PyTorch's MultiheadAttention computes with the sequence in front, whatever its inputs: it transposes
before its projections and back behind them. Rows are independent, so their order is free.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

from q7x2_ep.fuse.linear import LINEAR
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import product
from q7x2_ep.ops.common import RESHAPES


def turned(g: Any, linear: Any) -> Any:
    return g.Transpose(g.result(LINEAR, linear))


def split(g: Any, linear: Any, shape: Any) -> Any:
    """Into heads, or into q, k and v; a Transpose follows."""
    return g.Reshape(g.result(LINEAR, linear), shape)


def unsqueezed(g: Any, linear: Any, axes: Any) -> Any:
    return g.Unsqueeze(g.result(LINEAR, linear), axes)


class Rows(NamedTuple):
    """Rows as y holds them: Reshape(Transpose(y, perm), shape). back: the perm that undoes it."""

    y: Value
    perm: tuple[int, ...]
    shape: tuple
    back: tuple[int, ...]


def _in_order(x: Value) -> Optional[Rows]:
    """Where x has rows in another order than memory; the last dims may be joined to columns."""
    n, node = len(x.shape) - 1, x.producer
    if node is not None and node.op in RESHAPES:
        node = node.inputs[0].producer
    if node is None or node.op != "Transpose":
        return None
    perm, dims = tuple(node.attrs["perm"]), node.output.shape
    if dims[:n] != x.shape[:n] or product(dims[n:]) != x.shape[n] or max(perm[:n]) > perm[-1]:
        return None
    lead = sorted(perm[:n])
    if list(perm[:n]) == lead:
        return None
    back = (*(lead.index(axis) for axis in perm[:n]), n)
    y = node.inputs[0]
    shape = (*(y.shape[axis] for axis in lead), x.shape[n])
    return Rows(y, (*lead, *perm[n:]), shape, back)


def _check(match: Match) -> Union[dict[str, Any], str]:
    node = match["linear"].producer
    if node.input(3) is not None or len(node.inputs[0].shape) < 3:
        return ""
    rows = _in_order(node.inputs[0])
    return {"node": node, "rows": rows, "root": match.root} if rows else ""


def _build(g: Any, node: Node, rows: Rows, root: Node) -> Value:
    x = g.reshape(_transposed(g, rows.y, rows.perm), rows.shape)
    y = g.call(LINEAR, x, *node.inputs[1:], **node.attrs)
    if root.op == "Transpose":
        return _transposed(g, y, tuple(rows.back[axis] for axis in root.attrs["perm"]))
    return g.call(root.op, _transposed(g, y, rows.back), *root.inputs[1:], **root.attrs)


def _transposed(g: Any, x: Value, perm: tuple[int, ...]) -> Value:
    return x if perm == tuple(range(len(perm))) else g.Transpose(x, perm=perm)


TURNED = Fusion("LinearTurned", (turned, split, unsqueezed), _check, _build)
