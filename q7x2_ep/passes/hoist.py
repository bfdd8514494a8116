"""What each turn of a Loop would compute alike is computed once, in front of it.

Of loops that surely turn, so that nothing is computed, or refused, that would not have been: the
keys of an attention over the encoder's output, in decoders that are one graph. Views stay, unless
something else needs them, as does what is larger than what it is made of.
"""

from __future__ import annotations

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ops import find
from q7x2_ep.ops.common import is_host, is_movement

PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose"}


def run(graph: Graph) -> dict[str, int]:
    """Counts the nodes that left a body."""
    count = 0
    for loop in [node for node in graph.nodes if node.op == "Loop"]:
        nodes = _wanted(loop)
        if nodes:
            _move(graph, loop, nodes)
            count += len(nodes)
    return {"nodes": count}


def _wanted(loop: Node) -> list[Node]:
    """The nodes to move: those that compute something, and what these need."""
    from q7x2_ep.ops.control import surely_turns

    if not surely_turns(loop):
        return []
    body = loop.attrs["body"]
    fixed = set(body.inputs[len(body.inputs) - loop.attrs["captures"] :])
    same: list[Node] = []
    for node in body.nodes:
        given = [value for value in node.inputs if value is not None]
        if _is_pure(node) and all(value.const is not None or value in fixed for value in given):
            fixed.update(node.outputs)
            same.append(node)
    wanted: list[Node] = []
    needed: set[Value] = set()
    for node in reversed(same):
        if _computes(node) or not needed.isdisjoint(node.outputs):
            needed.update(value for value in node.inputs if value is not None)
            wanted.insert(0, node)
    return wanted


def _is_pure(node: Node) -> bool:
    if node.bodies or node.binds or is_host(node) or getattr(find(node.op), "is_random", False):
        return False
    return all(value.shape is not None and value.elements is None for value in node.outputs)


def _computes(node: Node) -> bool:
    if node.op in PRODUCTS:
        return True
    shapes = [value.shape for value in node.inputs if value is not None]
    return not is_movement(node) and node.output.shape in shapes


def _move(graph: Graph, loop: Node, nodes: list[Node]) -> None:
    """Puts nodes of the body in front of the loop, which captures what it reads of theirs."""
    body, captures = loop.attrs["body"], loop.attrs["captures"]
    given = list(loop.inputs)
    outside = dict(zip(body.inputs[len(body.inputs) - captures :], given[len(given) - captures :]))
    made = []
    for node in nodes:
        inputs = [value and _outside(graph, outside, value) for value in node.inputs]
        results = [graph.new_value(value.type, value.name) for value in node.outputs]
        outside.update(zip(node.outputs, results))
        made.append(Node(node.op, inputs, results, node.attrs, node.name, node.sources))
    body.remove(nodes)
    read = [
        value
        for node in nodes
        for value in node.outputs
        if value.users or any(value is output for output in body.outputs)
    ]
    for value in read:
        value.producer = None
    body.inputs += read
    loop.detach()
    inputs = given + [outside[value] for value in read]
    attrs = {**loop.attrs, "captures": captures + len(read)}
    made.append(Node("Loop", inputs, loop.outputs, attrs, loop.name, loop.sources))
    at = graph.nodes.index(loop)
    graph.nodes[at : at + 1] = made


def _outside(graph: Graph, outside: dict[Value, Value], value: Value) -> Value:
    if value.const is None:
        return outside[value]
    return graph.constant(value.const, value.type, value.name)
