"""Common subexpression elimination: equal nodes become one, as do small equal constants."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.shape import Dim, renamed
from q7x2_ep.ops import find

MAX_CONSTANT_BYTES = (
    4096  # larger constants are compared by identity: hashing weights costs load time
)
PLAIN = (bool, int, float, complex, str, bytes)  # what they print is all that they are


def run(graph: Graph) -> dict[str, int]:
    """Counts nodes and constants merged into earlier ones."""
    seen: dict[Hashable, Any] = {}
    constants = 0
    operands = itertools.chain(*(node.inputs for node in graph.nodes), graph.outputs)
    for value in dict.fromkeys(v for v in operands if v is not None and v.producer is None):
        key = _content(value)
        if key is not None:
            first = seen.setdefault(key, value)
            if first is not value:
                graph.replace_uses(value, first)
                constants += 1
    dead = []
    alike: dict[Hashable, dict[Hashable, Node]] = {}  # nodes of one op and operands, by attributes
    alone: dict[Hashable, Node] = {}  # with operands that no other has: attributes take a while
    sizes: dict[str, Dim] = {}  # of merged nodes, by those of the nodes that stay
    for node in graph.nodes:
        key = (node.op, len(node.outputs), *map(id, node.inputs))
        first = alone.setdefault(key, node)
        if first is not node:
            if first.bodies or node.bodies or getattr(find(node.op), "is_random", False):
                continue
            same = alike.setdefault(key, {_attributes(first): first})
            first = same.setdefault(_attributes(node), node)
        if first is not node:
            for old, new in zip(node.outputs, first.outputs):
                graph.replace_uses(old, new)
                sizes.update(renamed(old.shape, new.shape))
                sizes.update(renamed(old.elements, new.elements))
            first.sources = tuple(dict.fromkeys(first.sources + node.sources))
            dead.append(node)
    graph.remove(dead)
    graph.rename_sizes(sizes)
    return {"nodes": len(dead), "constants": constants}


def _content(value: Value) -> Hashable:
    """What makes a constant equal to another, or None for one that is large, or an input."""
    if value.const is not None:
        if value.const.nbytes > MAX_CONSTANT_BYTES:
            return None
        return ("const", value.dtype, value.shape, _attribute(value.const))
    if value.elements is not None:
        return ("elements", value.dtype, value.shape, value.elements)
    return None


def _attributes(node: Node) -> Hashable:
    return tuple((name, _attribute(value)) for name, value in sorted(node.attrs.items()))


def _attribute(value: Any) -> Hashable:
    """repr keeps 0.0 and -0.0, 1 and 1.0 apart, and makes a NaN equal to itself. An object of
    another kind is equal to itself only: what it prints need not be all that it holds.
    """
    if hasattr(value, "tobytes"):
        data = repr(value.tolist()) if value.dtype.kind == "O" else value.tobytes()
        return (value.dtype, value.shape, data)
    if isinstance(value, (tuple, list)):
        return tuple(map(_attribute, value))
    return repr(value) if value is None or isinstance(value, PLAIN) else id(value)
