"""Lists that a Loop fills, one tensor in each iteration, to be stacked behind it, or concatenated
where each has one row: scripted models of PyTorch collect what they give so. They become scanned
outputs, which are no lists.

Before types are folded: a list hides what is in it from all that follows.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Value, array_type
from q7x2_ep.passes import infer


def run(graph: Graph) -> dict[str, int]:
    """Counts lists that are gone."""
    count = 0
    for loop in [node for node in graph.nodes if node.op == "Loop"]:
        while (k := _filled(graph, loop)) is not None:
            loop = _scanned(graph, loop, k)
            count += 1
    return {"lists": count}


def _filled(graph: Graph, loop: Node) -> Optional[int]:
    """Which state, if any, is an empty list at first, is only added to, and only stacked then."""
    from q7x2_ep.ops.control import loop_operands

    body = loop.attrs["body"]
    if len(loop.outputs) != len(body.outputs) - 1:
        return None
    for k, initial in enumerate(loop_operands(loop, loop.inputs)[0][2:]):
        formal, result, last = body.inputs[2 + k], body.outputs[1 + k], loop.outputs[k]
        insert = result.producer
        if (
            initial is not None
            and initial.producer is not None
            and initial.producer.op == "SequenceEmpty"
            and insert is not None
            and insert.op == "SequenceInsert"
            and insert.inputs[0] is formal
            and len(insert.inputs) == 2
            and formal.users == [insert]
            and formal not in body.outputs
            and not result.users
            and body.outputs.count(result) == 1
            and last.users
            and not graph.is_output(last)
            and (_are_stacks(last.users) or _are_rows(graph, insert.inputs[1], last.users))
        ):
            return k
    return None


def _are_stacks(users: list[Node]) -> bool:
    return all(_joins(user, 1) for user in users)


def _are_rows(graph: Graph, element: Value, users: list[Node]) -> bool:
    """Whether what is concatenated has one row, which its type tells."""
    if not all(_joins(user, 0) for user in users):
        return False
    infer.run(graph)
    return bool(element.shape) and element.shape[0] == 1


def _joins(node: Node, new_axis: int) -> bool:
    attrs = node.attrs
    return node.op == "ConcatFromSequence" and attrs["new_axis"] == new_axis and attrs["axis"] == 0


def _scanned(graph: Graph, loop: Node, k: int) -> Node:
    body = loop.attrs["body"]
    stacks = list(dict.fromkeys(loop.outputs[k].users))
    insert = body.outputs[1 + k].producer
    element = insert.inputs[1]
    name = body.output_names[1 + k]
    del body.inputs[2 + k], body.outputs[1 + k], body.output_names[1 + k]
    body.outputs.append(element)
    body.output_names.append(name)
    body.metadata = {**body.metadata, "declared": {**body.metadata["declared"], name: UNKNOWN}}
    body.remove([insert])
    inputs, outputs = list(loop.inputs), list(loop.outputs)
    del inputs[2 + k], outputs[k]
    outputs.append(graph.new_value(UNKNOWN, f"{name}.stacked"))
    at = graph.nodes.index(loop)
    loop.detach()
    graph.nodes[at] = Node("Loop", inputs, outputs, loop.attrs, loop.name, loop.sources)
    result = outputs[-1]
    if not stacks[0].attrs["new_axis"]:
        axes = np.array([1])
        axis = graph.constant(axes, array_type(axes), "axis")
        result = graph.new_value(UNKNOWN, f"{name}.rows")
        squeeze = Node("Squeeze", [outputs[-1], axis], [result], {}, loop.name, loop.sources)
        graph.nodes.insert(at + 1, squeeze)
    for stack in stacks:
        graph.replace_uses(stack.output, result)
    graph.remove(stacks)
    return graph.nodes[at]
