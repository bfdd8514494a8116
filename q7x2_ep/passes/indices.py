"""Index arithmetic: tensors that say where an element is, and the gathers and tests they feed.

Exporters of transformers write an attention mask as mask[batch index, key index], with indices made
by Range, Reshape, Expand and Concat, and guard it by comparisons such as `index >= 0`. Where such
tensors are affine in their indices (ops/affine.py), a comparison may be decided for all elements,
and a gather whose indices count through an axis in order is a Slice and a Reshape, which copy
nothing.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from q7x2_ep.ir.core import Graph, Node, Type, array_type
from q7x2_ep.ir.shape import Dim, at_least, product
from q7x2_ep.ir.view import contiguous_strides
from q7x2_ep.ops.affine import COMPARISONS, Affine, Known, affine, combined, expanded, reshaped
from q7x2_ep.passes.fold import known_dims
from q7x2_ep.passes.infer import infer_again


def run(graph: Graph) -> dict[str, int]:
    """Counts comparisons decided, and gathers turned into views."""
    counts = {"comparisons": 0, "gathers": 0}
    order: list[Node] = []
    known: Known = {}
    sizes: dict[str, Dim] = {}  # noop has made operands constant
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
            infer_again(each, sizes)
            order.append(each)
    graph.nodes = order
    graph.rename_sizes(sizes)
    return counts


def _decide(graph: Graph, node: Node, known: Known) -> list[Node]:
    """A comparison that has one answer for all elements, as an Expand of that answer."""
    shape = node.output.shape
    if shape is None:
        return []
    a, b = (expanded(value, shape, known) for value in node.inputs)
    if a is None or b is None:
        return []
    swapped, margin = COMPARISONS[node.op]
    if swapped:
        a, b = b, a
    if _never_below(combined("Sub", a, b), shape, margin):
        return [_answer(graph, node, True)]
    if _never_below(combined("Sub", b, a), shape, 1 - margin):
        return [_answer(graph, node, False)]
    return []


def _never_below(x: Affine, shape: tuple[Dim, ...], bound: int) -> bool:
    low = x.offset
    for step, dim in zip(x.steps, shape):
        if at_least(-step, 0):  # then the last index gives the least, if there is any index
            low = low + step * (dim - 1)
        elif not at_least(step, 0):
            return False
    return at_least(low, bound)


def _answer(graph: Graph, node: Node, answer: bool) -> Node:
    array = np.array(answer)
    constant = graph.constant(array, array_type(array), node.output.name)
    target = known_dims(graph, node.output.shape, node.output.name)
    return Node("Expand", [constant, target], node.outputs, {}, node.name, node.sources)


def _counted_axes(node: Node, known: Known) -> Optional[tuple[int, tuple[Dim, ...]]]:
    """Where the indices count through axes of the data in order: the first axis, and how far."""
    data, indices = node.inputs
    if data.shape is None or not indices.shape:
        return None
    if node.op == "Gather":
        in_order = Affine(0, contiguous_strides(indices.shape))
        if affine(indices, known) != reshaped(in_order, indices.shape, indices.shape):
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
        zeros = known_dims(graph, (0,) * len(cut), output.name)
        ends = known_dims(graph, tuple(counts[k] for k in cut), output.name)
        axes = known_dims(graph, tuple(axis + k for k in cut), output.name)
        part = graph.new_value(Type(0, None), output.name)
        name = f"{node.name}/Slice"
        made.append(Node("Slice", [data, zeros, ends, axes], [part], {}, name, node.sources))
        data = part
    target = known_dims(graph, output.shape, output.name)
    attrs = {"allowzero": 1}
    made.append(Node("Reshape", [data, target], node.outputs, attrs, node.name, node.sources))
    return made
