"""Values that a Loop carries and never changes: loops from TensorFlow carry their weights so."""

from __future__ import annotations

from q7x2_ep.ir.core import Node, Value


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
