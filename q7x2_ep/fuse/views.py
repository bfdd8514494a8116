"""What stands behind a value: the factor that it carries, the matrix that it is turned from.

Views (Transpose, Reshape, ..) only name elements anew, so a factor may pass them, and two exchanges
of the same dims cancel. Nothing here changes an element, but for the rounding of a factor that
moves.
"""

from __future__ import annotations

from typing import Any, Optional

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.pattern import has_reciprocal
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops import always_fits
from q7x2_ep.ops.common import RESHAPES

VIEWS = RESHAPES | {"Transpose", "Expand", "Slice"}


def scaled(node: Node) -> Optional[tuple[Value, float]]:
    """(x, c) where the node is x * c, a product or a quotient with one constant number."""
    if node.op not in ("Mul", "Div"):
        return None
    pairs = [node.inputs] if node.op == "Div" else [node.inputs, node.inputs[::-1]]
    for x, number in pairs:
        if number.const is None or number.const.size != 1 or x.shape != node.output.shape:
            continue
        c = float(number.const.item())
        if has_reciprocal(c):
            return x, c if node.op == "Mul" else 1.0 / c
    return None


def factor(graph: Graph, x: Value) -> float:
    """The number c in x = c * unscaled(x)."""
    found = _behind(graph, x)
    if found is None:
        return 1.0
    inner, c = found
    return c * factor(graph, inner)


def unscaled(g: Any, x: Value) -> Value:
    """x without the numbers that it is multiplied by, behind views or not."""
    found = _behind(g.graph, x)
    if found is None or factor(g.graph, x) == 1.0:
        return x
    inner, node = unscaled(g, found[0]), x.producer
    return inner if scaled(node) else g.call(node.op, inner, *node.inputs[1:], **node.attrs)


def _behind(graph: Graph, x: Value) -> Optional[tuple[Value, float]]:
    """(y, c) where x is c * y, or a view of y and c 1; if only one node needs x."""
    node = x.producer
    if node is None or not is_for_one(graph, x):
        return None
    return (node.inputs[0], 1.0) if node.op in VIEWS else scaled(node)


def is_for_one(graph: Graph, x: Value) -> bool:
    """Whether one node alone needs a value."""
    return len(x.users) == 1 and not graph.is_output(x)


def keeps_matrices(node: Node) -> bool:
    """Whether a view leaves the last two dims as they are. Of three counts two say it: a Reshape
    keeps their product.
    """
    before, after = node.inputs[0].shape, node.output.shape
    if (
        node.op not in RESHAPES
        or before is None
        or after is None
        or min(map(len, (before, after))) < 2
    ):
        return False
    return before[-2] == after[-2] and (
        before[-1] == after[-1] or product(before[:-2]) == product(after[:-2])
    )


def swapped(g: Any, x: Value) -> Value:
    """x with its last two dims exchanged; where x was made by that, what it was made from."""
    shape: tuple[Dim, ...] = (*x.shape[:-2], x.shape[-1], x.shape[-2])
    perm: tuple[int, ...] = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    node = x.producer
    while node is not None and node.op == "Transpose":
        perm = tuple(node.attrs["perm"][p] for p in perm)
        x, node = node.inputs[0], node.inputs[0].producer
        if perm == tuple(range(len(perm))):
            return x
    if perm[:-2] != tuple(range(len(perm) - 2)) or node is None:
        return g.Transpose(x, perm=perm)
    found = scaled(node)
    if found is not None:
        return g.Mul(swapped(g, found[0]), found[1])
    if keeps_matrices(node):
        return g.reshape(swapped(g, node.inputs[0]), shape)
    return g.Transpose(x, perm=perm)


def uniform(value: Value) -> Optional[float]:
    """The number that every element of a value is, whatever is fed, or None."""
    while (node := value.producer) is not None and node.op in (*RESHAPES, "Expand"):
        if not always_fits(node):
            return None
        value = node.inputs[0]
    if value.const is None or not value.const.size:
        return None
    first = value.const.flat[0]
    return float(first) if (value.const == first).all() else None
