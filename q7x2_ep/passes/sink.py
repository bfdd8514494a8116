"""Expand sinks: an op works on the small tensor, and its result is expanded, if at all.

Add(x, Expand(m)) is Add(x, m) where x has the full shape already, which is how a mask of (B,1,1,S)
reaches attention without ever being (B,1,S,S). What depends on positions alone, and was expanded
for each of a batch, is computed once, or is a constant. Only element counts change, no element
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

from q7x2_ep.ir.core import Graph, Node, Type, Value
from q7x2_ep.ir.shape import Dim, broadcast_shapes
from q7x2_ep.passes.fold import known_dims
from q7x2_ep.passes.infer import infer_node

ELEMENTWISE = {
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Neg", "Abs", "Cast", "Where"),
    *("And", "Or", "Xor", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
}
SINKING = {*ELEMENTWISE, "Transpose", "Softmax", "LogSoftmax", "MatMul"}


def run(graph: Graph) -> dict[str, int]:
    """Counts, per op, the nodes that read past an Expand now."""
    counts: dict[str, int] = {}
    order: list[Node] = []
    for node in graph.nodes:
        order.append(node)
        if node.op not in SINKING:
            continue
        inputs = _small_inputs(node)
        full = node.output.shape
        if inputs == node.inputs or full is None:
            continue
        small = _small_shape(node, inputs)
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


def _small_inputs(node: Node) -> list[Optional[Value]]:
    """The inputs that give the same result but for what Expand repeats."""
    if node.op in ELEMENTWISE:
        return [_unexpanded(value) for value in node.inputs]
    x, rest = node.inputs[0], node.inputs[1:]
    if node.op == "Transpose":
        return [_unexpanded(x, lambda small: len(small) == len(x.shape))]
    if node.op in ("Softmax", "LogSoftmax") and node.attrs["axis"] == -1:
        return [_unexpanded(x, lambda small: small[-1:] == x.shape[-1:])]
    if node.op == "MatMul" and rest[0].const is not None:
        batched = len(rest[0].shape) == 2
        return [_unexpanded(x, lambda small: batched and small[-2:] == x.shape[-2:]), *rest]
    return node.inputs


def _small_shape(node: Node, inputs: Sequence[Value]) -> tuple[Dim, ...]:
    if node.op == "Transpose":
        return tuple(inputs[0].shape[axis] for axis in node.attrs["perm"])
    if node.op == "MatMul":
        return (*inputs[0].shape[:-1], inputs[1].shape[-1])
    return broadcast_shapes(*(value.shape for value in inputs))


def _unexpanded(value: Value, fits: Callable[[Any], bool] = lambda small: True) -> Value:
    """What the value was before Expand, where all dims are known to be the same or 1."""
    node = value.producer
    while node is not None and node.op == "Expand" and node.inputs[0].shape is not None:
        small = node.inputs[0].shape
        if not _expands_to(small, value.shape) or not fits(small):
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
    inputs = [small, known_dims(graph, output.shape, output.name)]
    name = f"{node.name}/Expand"
    return Node("Expand", inputs, [output], {}, name, node.sources)
