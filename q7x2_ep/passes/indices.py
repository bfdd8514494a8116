"""Index arithmetic: tensors that say where an element is, and the gathers and tests they feed.

Exporters of transformers write an attention mask as mask[batch index, key index], with indices made
by Range, Reshape, Expand and Concat, and guard it by comparisons such as `index >= 0`. An integer
tensor whose element at (i0, i1, ..) is offset + step0 * i0 + step1 * i1 + .. is an Affine here:
comparisons of two such tensors may be decided for all elements, and a gather whose indices count
through an axis in order is a Slice and a Reshape, which copy nothing.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Graph, Node, Type, Value, array_type
from q7x2_ep.ir.shape import Dim, at_least, product
from q7x2_ep.ir.view import contiguous_strides
from q7x2_ep.passes.fold import known_elements
from q7x2_ep.passes.infer import infer_node

COMPARISONS = {  # op: (whether a and b are swapped to say a >= b + margin, margin)
    "GreaterOrEqual": (False, 0),
    "Greater": (False, 1),
    "LessOrEqual": (True, 0),
    "Less": (True, 1),
}


class Affine(NamedTuple):
    """The element at (i0, i1, ..) is offset + sum(steps[d] * i_d)."""

    offset: Dim
    steps: tuple[Dim, ...]


Known = dict[Value, Optional[Affine]]


def run(graph: Graph) -> dict[str, int]:
    """Counts comparisons decided, and gathers turned into views."""
    counts = {"comparisons": 0, "gathers": 0}
    order: list[Node] = []
    known: Known = {}
    for node in graph.nodes:
        made: list[Node] = []
        if node.op in COMPARISONS:
            made = _decide(graph, node, known)
            counts["comparisons"] += bool(made)
        elif node.op in ("Gather", "GatherND"):
            found = _counted_axes(node, known)
            made = [] if found is None else _view(graph, node, *found)
            counts["gathers"] += bool(made)
        if made:
            node.detach()
        for each in made or [node]:
            infer_node(each)
            order.append(each)
    graph.nodes = order
    return counts


def affine(value: Value, known: Known) -> Optional[Affine]:
    """What the elements of an integer tensor are, or None. known: answers given before."""
    if value not in known:
        known[value] = _affine(value, known)
    return known[value]


def _affine(value: Value, known: Known) -> Optional[Affine]:
    if value.shape is None or dtypes.DTYPES[value.dtype].kind not in "iu":
        return None
    if value.elements is not None and len(value.elements) == 1:
        return Affine(value.elements[0], (0,) * len(value.shape))
    node = value.producer
    if node is None:
        return None
    if node.op == "Range":
        start, _, delta = node.inputs
        if start.elements is None or delta.elements is None:
            return None
        return Affine(start.elements[0], (delta.elements[0],))
    if node.op == "Cast":
        return affine(node.inputs[0], known)
    if node.op in ("Reshape", "Unsqueeze", "Squeeze", "Flatten"):
        return _reshaped(affine(node.inputs[0], known), node.inputs[0].shape, value.shape)
    if node.op == "Expand":
        return _expanded(node.inputs[0], value.shape, known)
    if node.op in ("Add", "Sub", "Mul"):
        a, b = (_expanded(operand, value.shape, known) for operand in node.inputs)
        return None if a is None or b is None else _combined(node.op, a, b)
    return None


def _reshaped(x: Optional[Affine], shape: tuple, target: tuple) -> Optional[Affine]:
    """Dims of 1 come and go; the others stay."""
    if x is None or [d for d in shape if d != 1] != [d for d in target if d != 1]:
        return None
    steps = iter([step for dim, step in zip(shape, x.steps) if dim != 1])
    return Affine(x.offset, tuple(0 if dim == 1 else next(steps) for dim in target))


def _expanded(value: Value, target: tuple, known: Known) -> Optional[Affine]:
    x = affine(value, known)
    if x is None:
        return None
    steps: list[Dim] = [0] * (len(target) - len(value.shape))
    for dim, step, wanted in zip(value.shape, x.steps, target[len(steps) :]):
        if dim not in (1, wanted):
            return None
        steps.append(0 if dim == 1 else step)
    return Affine(x.offset, tuple(steps))


def _combined(op: str, a: Affine, b: Affine) -> Optional[Affine]:
    if op == "Mul":
        if any(step != 0 for step in a.steps):
            a, b = b, a
        if any(step != 0 for step in a.steps):
            return None
        return Affine(a.offset * b.offset, tuple(a.offset * step for step in b.steps))
    sign = 1 if op == "Add" else -1
    steps = tuple(x + sign * y for x, y in zip(a.steps, b.steps))
    return Affine(a.offset + sign * b.offset, steps)


def _decide(graph: Graph, node: Node, known: Known) -> list[Node]:
    """A comparison that has one answer for all elements, as an Expand of that answer."""
    shape = node.output.shape
    if shape is None:
        return []
    a, b = (_expanded(value, shape, known) for value in node.inputs)
    if a is None or b is None:
        return []
    swapped, margin = COMPARISONS[node.op]
    if swapped:
        a, b = b, a
    if _never_below(_combined("Sub", a, b), shape, margin):
        return [_answer(graph, node, True)]
    if _never_below(_combined("Sub", b, a), shape, 1 - margin):
        return [_answer(graph, node, False)]
    return []


def _never_below(x: Affine, shape: tuple[Dim, ...], bound: int) -> bool:
    low = x.offset
    for step, dim in zip(x.steps, shape):
        if not at_least(step, 0):  # then the last index gives the least, if there is any index
            low = low + step * (dim - 1)
    return at_least(low, bound)


def _answer(graph: Graph, node: Node, answer: bool) -> Node:
    array = np.array(answer)
    constant = graph.constant(array, array_type(array), node.output.name)
    target = _dims(graph, node.output.shape, node.output.name)
    return Node("Expand", [constant, target], node.outputs, {}, node.name, node.sources)


def _counted_axes(node: Node, known: Known) -> Optional[tuple[int, tuple[Dim, ...]]]:
    """Where the indices count through axes of the data in order: the first axis, and how far."""
    data, indices = node.inputs
    if data.shape is None or not indices.shape:
        return None
    if node.op == "Gather":
        in_order = Affine(0, contiguous_strides(indices.shape))
        if affine(indices, known) != _reshaped(in_order, indices.shape, indices.shape):
            return None
        return node.attrs["axis"] % len(data.shape), (product(indices.shape),)
    parts, last = indices.producer, len(indices.shape) - 1
    if parts is None or parts.op != "Concat" or node.attrs["batch_dims"]:
        return None
    moving = [i for i, dim in enumerate(indices.shape[:-1]) if dim != 1]
    if parts.attrs["axis"] not in (-1, last) or len(moving) != len(parts.inputs):
        return None
    for axis, part in zip(moving, parts.inputs):
        steps = tuple(int(i == axis) for i in range(last + 1))
        if part.shape != (*indices.shape[:-1], 1) or affine(part, known) != Affine(0, steps):
            return None
    return 0, tuple(indices.shape[axis] for axis in moving)


def _view(graph: Graph, node: Node, axis: int, counts: tuple[Dim, ...]) -> list[Node]:
    """Slice to the first `counts` of each axis, then Reshape, whose guard refuses larger ones."""
    data, output = node.inputs[0], node.output
    made = []
    cut = [k for k, count in enumerate(counts) if data.shape[axis + k] != count]
    if cut:
        zeros = _dims(graph, (0,) * len(cut), output.name)
        ends = _dims(graph, tuple(counts[k] for k in cut), output.name)
        axes = _dims(graph, tuple(axis + k for k in cut), output.name)
        part = graph.new_value(Type(0, None), output.name)
        name = f"{node.name}/Slice"
        made.append(Node("Slice", [data, zeros, ends, axes], [part], {}, name, node.sources))
        data = part
    target = _dims(graph, output.shape, output.name)
    attrs = {"allowzero": 1}
    made.append(Node("Reshape", [data, target], node.outputs, attrs, node.name, node.sources))
    return made


def _dims(graph: Graph, dims: tuple[Dim, ...], hint: str) -> Value:
    return known_elements(graph, Value(f"{hint}/shape", dtypes.INT64, (len(dims),), tuple(dims)))
