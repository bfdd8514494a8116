"""Dead code elimination, from the graph's outputs backwards.

An initializer that loses its last user is gone with it: a graph has no list of constants. A node
stays as well where only its run tells the size of something that stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.shape import symbols
from q7x2_ep.ops import find
from q7x2_ep.ops.signature import parse


def run(graph: Graph) -> dict[str, int]:
    """Counts nodes removed, and optional outputs dropped from the nodes that stay."""
    wanted = {id(value) for value in graph.outputs}
    binding = any(node.binds for node in graph.nodes)
    sizes = _sizes(graph.outputs) if binding else set()
    dead = []
    outputs = 0
    for node in reversed(graph.nodes):
        is_wanted = not wanted.isdisjoint(map(id, node.outputs))
        if is_wanted or (node.binds and not sizes.isdisjoint(_sizes(node.outputs))):
            wanted.update(map(id, node.inputs))
            if binding:
                sizes |= _sizes(node.inputs)
            if len(node.outputs) > 1:
                outputs += _drop_optional(node, wanted)
        else:
            dead.append(node)
    graph.remove(dead)
    return {"nodes": len(dead), "outputs": outputs}


def _sizes(values: Iterable[Optional[Value]]) -> set[str]:
    """The symbols in shapes and known elements."""
    return {
        name
        for value in values
        if value is not None
        for dim in (*(value.shape or ()), *(value.elements or ()))
        for name in symbols(dim)
    }


def _drop_optional(node: Node, wanted: set[int]) -> int:
    """Forget trailing optional outputs that nobody reads, such as LayerNormalization's mean."""
    formals = parse(find(node.op).signature).outputs
    before = len(node.outputs)
    while 1 < len(node.outputs) <= len(formals) and id(node.outputs[-1]) not in wanted:
        if formals[len(node.outputs) - 1].mark != "?":
            break
        node.outputs.pop()
    return before - len(node.outputs)
