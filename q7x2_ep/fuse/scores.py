"""The scores of an attention, read backwards from its Softmax to the product of q and k^T.

Whatever stands between, in whatever order, is collected into one normal form:

    softcap(scale * factors * q @ k^T), then masks, innermost first

A factor outside of a mask scales the mask too; a tanh closes a softcap, f * tanh(g * x) =
softcap(f * g * x) with softcap f; views of the leading dims are looked through. What does not fit
ends the reading with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Callable, NamedTuple, Optional, Union

from q7x2_ep.fuse.views import keeps_matrices, scaled, uniform
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.shape import Dim, broadcasts_to
from q7x2_ep.ops.common import RESHAPES


class Mask(NamedTuple):
    """One operand that masks scores of the shape (*lead, Sq, Skv): `number` * value is added, or
    where value is true (kind keep) or false (kind drop) a score stays, else it becomes `number`.
    """

    kind: str  # add, keep or drop
    value: Value
    number: float
    lead: tuple[Dim, ...]


class Scores(NamedTuple):
    """What is known so far. product: the scores as MatMul makes them, transposed if `turned`."""

    product: Optional[Node] = None
    scale: float = 1.0  # outside of what is yet to be read
    softcap: float = 0.0  # 0: none
    turned: bool = False
    masks: tuple[Mask, ...] = ()
    factors: tuple[Value, ...] = ()  # that scale whole matrices, such as one number per head
    nodes: tuple[Node, ...] = ()  # the outermost first
    leads: tuple[tuple[Dim, ...], ...] = ()  # the leading dims of the scores, one per shape


Step = tuple[Value, Scores]  # the scores inside of a node, and what is known with it


def read(x: Value, known: Scores) -> Union[Scores, tuple[int, str]]:
    """The scores x in normal form, or how many nodes fitted and why the next did not."""
    node = x.producer
    if node is None or x.shape is None or len(x.shape) < 2:
        return len(known.nodes), f"the scores {x!r} are no result of MatMul"
    known = known._replace(nodes=(*known.nodes, node))
    if x.shape[:-2] not in known.leads:
        known = known._replace(leads=(*known.leads, x.shape[:-2]))
    if node.op == "MatMul":
        return known._replace(product=node, masks=known.masks[::-1])
    furthest = len(known.nodes) - 1, f"{x!r} is made by {node.op}, no part of attention's scores"
    for inner, then in RULES.get(node.op, _nothing)(node, known):
        found = read(inner, then)
        if isinstance(found, Scores):
            return found
        furthest = max(furthest, found, key=lambda miss: miss[0])
    return furthest


def _nothing(node: Node, known: Scores) -> Iterator[Step]:
    return iter(())


def _factor(node: Node, known: Scores) -> Iterator[Step]:
    found = scaled(node)
    if found is not None:
        yield found[0], known._replace(scale=known.scale * found[1])
        return
    for x, other in (node.inputs, node.inputs[::-1]) if node.op == "Mul" else ():
        alike = other.shape is not None and all(dim == 1 for dim in other.shape[-2:])
        finite = other.const is None or abs(other.const).max(initial=0) < inf  # q @ k^T mixes signs
        if alike and finite and x.shape == node.output.shape:
            yield x, known._replace(factors=(*known.factors, other))


def _tanh(node: Node, known: Scores) -> Iterator[Step]:
    if not known.softcap and not known.factors and known.scale > 0.0:
        yield node.inputs[0], known._replace(softcap=known.scale, scale=1.0)


def _added(node: Node, known: Scores) -> Iterator[Step]:
    pairs = [node.inputs] if node.op == "Sub" else [node.inputs, node.inputs[::-1]]
    for x, mask in pairs:
        number = known.scale if node.op == "Add" else -known.scale
        yield from _masked(x, "add", mask, number, known)


def _selected(node: Node, known: Scores) -> Iterator[Step]:
    condition, a, b = node.inputs
    for x, other, kind in ((a, b, "keep"), (b, a, "drop")):
        fill = uniform(other)
        if fill is not None and _fits(other.shape, x.shape):
            yield from _masked(x, kind, condition, fill * known.scale, known)


def _fits(shape: Optional[tuple[Dim, ...]], full: Optional[tuple[Dim, ...]]) -> bool:
    """Whether one broadcasts to the other; of the last dim bind makes sure."""
    if shape is None or full is None or len(shape) > len(full):
        return False
    return all(map(broadcasts_to, reversed(shape[:-1]), reversed(full[:-1])))


def _masked(x: Value, kind: str, mask: Value, number: float, known: Scores) -> Iterator[Step]:
    """A mask inside of a softcap, a factor or transposed scores is none of attention's."""
    inside = known.softcap or known.factors or known.turned
    if not inside and x.shape is not None:
        entry = Mask(kind, mask, number, x.shape[:-2])
        yield x, known._replace(masks=(*known.masks, entry))


def _view(node: Node, known: Scores) -> Iterator[Step]:
    if keeps_matrices(node) and not known.factors:
        yield node.inputs[0], known


def _turn(node: Node, known: Scores) -> Iterator[Step]:
    axes = list(range(len(node.output.shape)))
    if list(node.attrs["perm"]) == [*axes[:-2], axes[-1], axes[-2]]:
        yield node.inputs[0], known._replace(turned=not known.turned)


RULES: dict[str, Callable[[Node, Scores], Iterator[Step]]] = {
    "Mul": _factor,
    "Div": _factor,
    "Tanh": _tanh,
    "Add": _added,
    "Sub": _added,
    "Where": _selected,
    "Transpose": _turn,
    **dict.fromkeys(RESHAPES, _view),
}
