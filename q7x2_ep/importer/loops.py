"""Loops as models write them: values that are carried and never changed (loops from TensorFlow
carry their weights so), and counts that are vectors.
"""

from __future__ import annotations

import numpy as np

from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Value, array_type


def as_declared(body: Graph) -> None:
    """The count and the condition are numbers; to a body that declares a vector of one, as old
    ones do, it is given as that.
    """
    for i, (_, shape, _) in enumerate(body.metadata["formals"][:2]):
        if shape is not None and len(shape) == 1:
            formal = body.inputs[i]
            body.inputs[i] = number = body.new_value(UNKNOWN, formal.name)
            axes = np.zeros(1, np.int64)
            axis = body.constant(axes, array_type(axes), "axes")
            body.nodes.insert(0, Node("Unsqueeze", [number, axis], [formal]))


def hoisted(loop: Node) -> list[Node]:
    """The nodes in place of a Loop in which carried values that the body hands on as they are
    become captures: those that are constants are constants in the body then, and packed once.
    """
    body, captures = loop.attrs["body"], loop.attrs["captures"]
    count = len(body.inputs) - 2 - captures
    whole = len(loop.inputs) == len(body.inputs) and len(loop.outputs) == len(body.outputs) - 1
    fixed = [
        i
        for i in range(count if whole else 0)
        if _source(body.outputs[1 + i]) is body.inputs[2 + i]
    ]
    if not fixed:
        return [loop]
    given = list(loop.inputs)
    loop.detach()
    same = [
        Node("Identity", [given[2 + i]], [loop.outputs[i]], {}, loop.name, loop.sources)
        for i in fixed
    ]
    inputs = _without(given, fixed, 2) + [given[2 + i] for i in fixed]
    body.inputs = _without(body.inputs, fixed, 2) + [body.inputs[2 + i] for i in fixed]
    body.outputs = _without(body.outputs, fixed, 1)
    body.output_names = _without(body.output_names, fixed, 1)
    attrs = {**loop.attrs, "captures": captures + len(fixed)}
    outputs = _without(loop.outputs, fixed, 0)
    return [*same, Node("Loop", inputs, outputs, attrs, loop.name, loop.sources)]


def _source(value: Value) -> Value:
    while value.producer is not None and value.producer.op == "Identity":
        value = value.producer.inputs[0]
    return value


def _without(values: list, places: list[int], first: int) -> list:
    return [value for i, value in enumerate(values) if i - first not in places]
