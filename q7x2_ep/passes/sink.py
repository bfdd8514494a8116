"""Expand sinks: an elementwise op works on the small tensor, and its result is expanded, if at all.

Add(x, Expand(m)) is Add(x, m) where x has the full shape already, which is how a mask of (B,1,1,S)
reaches attention without ever being (B,1,S,S). Only element counts change, no element does.
"""

from __future__ import annotations

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Graph, Node, Type, Value
from q7x2_ep.ir.shape import broadcast_shapes
from q7x2_ep.passes.fold import known_elements
from q7x2_ep.passes.infer import infer_node

ELEMENTWISE = {
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Neg", "Abs", "Cast", "Where"),
    *("And", "Or", "Xor", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
}


def run(graph: Graph) -> dict[str, int]:
    """Counts, per op, the nodes that read past an Expand now."""
    counts: dict[str, int] = {}
    order: list[Node] = []
    for node in graph.nodes:
        order.append(node)
        if node.op not in ELEMENTWISE:
            continue
        inputs = [_unexpanded(value) for value in node.inputs]
        full = node.output.shape
        if inputs == node.inputs or full is None:
            continue
        small = broadcast_shapes(*(value.shape for value in inputs))
        if not _expands_to(small, full):
            continue
        for i, value in enumerate(inputs):
            node.set_input(i, value)
        if small != full:
            order.append(_expand_result(graph, node))
        infer_node(node)
        counts[node.op] = counts.get(node.op, 0) + 1
    graph.nodes = order
    return counts


def _unexpanded(value: Value) -> Value:
    """What the value was before Expand, where all dims are known to be the same or 1."""
    node = value.producer
    while node is not None and node.op == "Expand" and node.inputs[0].shape is not None:
        if not _expands_to(node.inputs[0].shape, value.shape):
            break
        value = node.inputs[0]
        node = value.producer
    return value


def _expands_to(small: tuple, full: tuple) -> bool:
    ends = zip(reversed(small), reversed(full))
    return len(small) <= len(full) and all(dim in (1, wanted) for dim, wanted in ends)


def _expand_result(graph: Graph, node: Node) -> Node:
    """An Expand that takes over the output of node, which gets another."""
    output = node.output
    small = graph.new_value(Type(output.dtype, None), output.name)
    node.outputs, small.producer = [small], node
    shape = Value(f"{output.name}/shape", dtypes.INT64, (len(output.shape),), output.shape)
    inputs = [small, known_elements(graph, shape)]
    name = f"{node.name}/Expand"
    return Node("Expand", inputs, [output], {}, name, node.sources)
