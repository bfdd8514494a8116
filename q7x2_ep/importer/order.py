"""The order of nodes: ONNX wants producers first, but converters append what they insert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def in_order(nodes: Sequence[Any]) -> list[int]:
    """The positions of nodes, as they are given where nothing is used before it is produced; else
    each behind what it needs. Nodes that need each other stay somewhere among them.
    """
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    if all(makers.get(name, -1) < i for i, node in enumerate(nodes) for name in _used(node)):
        return list(range(len(nodes)))
    needs = [{makers[name] for name in _used(node) if name in makers} for node in nodes]
    order: list[int] = []
    begun: set[int] = set()
    for root in range(len(nodes)):
        stack = [] if root in begun else [(root, iter(sorted(needs[root])))]
        begun.add(root)
        while stack:
            at, missing = stack[-1]
            following = next((i for i in missing if i not in begun), None)
            if following is None:
                order.append(at)
                stack.pop()
            else:
                begun.add(following)
                stack.append((following, iter(sorted(needs[following]))))
    return order


def _used(node: Any) -> Iterator[str]:
    """The names that a node, or what is inside of it, reads."""
    yield from node.input
    for attr in node.attribute:
        for body in (attr.g, *attr.graphs) if attr.type in (attr.GRAPH, attr.GRAPHS) else ():
            own = {name for inner in body.node for name in inner.output}
            used = (name for inner in body.node for name in _used(inner))
            yield from (name for name in used if name not in own)
            yield from (output.name for output in body.output if output.name not in own)
