"""One type for what a Loop carries, and for what the branches of an If give.

Where exporters are loose about it a number becomes a vector of one element on the way, or a matrix
begins as a number that nobody reads. A value whose rank is not known before a run keeps all that
reads it on the host: fold asks for this wherever a node has bodies, once it has their types.
"""

from __future__ import annotations

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Type, Value, array_type
from q7x2_ep.ops.control import surely_turns
from q7x2_ep.passes.infer import infer_node
from q7x2_ep.passes.sink import ELEMENTWISE

ROW = (1,)


def settle(graph: Graph, node: Node, is_turn: bool = False) -> bool:
    """Changes what is loose in a node, or in the bodies that it has, which is to be inferred again
    then; False where nothing is. is_turn: whether `graph` is the body of a Loop.
    """
    changed = any(
        inner.bodies and settle(body, inner, node.op == "Loop")
        for body in node.bodies
        for inner in body.nodes
    )
    results = graph.outputs[is_turn:]  # a Loop takes any number for its condition
    if node.op == "If":
        changed = changed or any(_join(results, node, i) for i in range(len(node.outputs)))
    if node.op == "Loop":
        carried = range(len(node.inputs) - 2 - node.attrs["captures"])
        changed = changed or any(_carry(graph, results, node, i) for i in carried)
    if changed:
        node.inferred = None
    return changed


def _join(results: list[Value], node: Node, i: int) -> bool:
    """Where one branch has a number, and the other a vector of it, both have the vector."""
    types = {body.outputs[i].type[:2] for body in node.bodies}
    if not _is_loose(types) or not _ignores_rank(results, node.outputs[i]):
        return False
    for body in node.bodies:
        if body.outputs[i].shape == ():
            body.outputs[i] = _as_row(body, body.outputs[i], len(body.nodes))
    return True


def _carry(graph: Graph, results: list[Value], loop: Node, i: int) -> bool:
    """What becomes a vector is one from the start, and what nobody reads begins as what it becomes,
    where it is certain to become that, or nobody sees what it was.
    """
    body = loop.attrs["body"]
    initial, formal, made = loop.inputs[2 + i], body.inputs[2 + i], body.outputs[1 + i]
    if initial is None or made.shape is None or initial.type[:2] == made.type[:2]:
        return False
    turns = surely_turns(loop)
    if initial.shape == () and _is_loose({initial.type[:2], made.type[:2]}):
        is_passed = turns or _ignores_rank(results, loop.outputs[i])
        if is_passed and _ignores_rank(body.outputs[1:], formal):
            loop.set_input(2 + i, _as_row(graph, initial, graph.nodes.index(loop)))
            return True
    is_read = formal.users or any(formal is value for value in body.outputs)
    if is_read or not turns or (initial.shape is not None and _rank(initial) == _rank(made)):
        return False
    shape = [dim if isinstance(dim, int) else 0 for dim in made.shape]
    empty = np.zeros(shape, dtypes.DTYPES[made.dtype].numpy)
    loop.set_input(2 + i, graph.constant(empty, array_type(empty), formal.name))
    return True


def _is_loose(types: set[Type]) -> bool:
    return {shape for _, shape in types} == {(), ROW} and len({dtype for dtype, _ in types}) == 1


def _rank(value: Value) -> tuple[int, int]:
    return value.dtype, len(value.shape)


def _as_row(graph: Graph, value: Value, at: int) -> Value:
    axes = np.zeros(1, np.int64)
    axis = graph.constant(axes, array_type(axes), "axes")
    node = Node("Unsqueeze", [value, axis], [graph.new_value(UNKNOWN, value.name)])
    graph.nodes.insert(at, node)
    infer_node(node)
    return node.output


def _ignores_rank(results: list[Value], value: Value) -> bool:
    """Whether all that reads a number makes the same of a vector of it, but for leading ones that
    nothing reads either. results: what is read by others, of the graph of the value.
    """
    if any(value is result for result in results):
        return False
    return all(_reads(results, node, value) for node in value.users)


def _reads(results: list[Value], node: Node, value: Value) -> bool:
    if node.op in ELEMENTWISE or node.op == "Identity":
        others = [other for other in node.inputs if other is not None and other is not value]
        return any(other.shape for other in others) or _ignores_rank(results, node.output)
    if node.op != "If":
        return False
    first = len(node.inputs) - node.attrs["captures"]
    places = [i - first for i, operand in enumerate(node.inputs) if operand is value]
    formals = [(body, body.inputs[i]) for body in node.bodies for i in places if i >= 0]
    return all(_ignores_rank(body.outputs, formal) for body, formal in formals)
