"""Sizes that come as data become symbols: k of TopK, widths of a Pad, bounds of a Range or Slice.

A q7::Contents tells the numbers in a small vector of data when it has been made, and what reads it
is planned for any value of them, as for any sizes of feeds: it needs no host step. What follows
from one number, as i + 1 does from i, is computed of its symbol, so that the size of x[i:i + 1] is
known, and of a vector that goes through other ranks, as widths of a Pad do, elements are gathered.
Left alone are operands in which a number may mean something else, such as the -1 of a Reshape.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from q7x2_ep.dtypes import INT32, INT64
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Value, array_type
from q7x2_ep.ir.shape import Dim, substitute
from q7x2_ep.ops import find
from q7x2_ep.ops.common import known
from q7x2_ep.passes.infer import infer_again, infer_node

SIZES = {"ConstantOfShape": 0, "Expand": 1, "Pad": 1, "Tile": 1, "TopK": 1}  # which input
MOVED = frozenset(("Cast", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"))
FOLLOWED = frozenset(
    ("Add", "Cast", "Concat", "Identity", "Mul", "Reshape", "Squeeze", "Sub", "Unsqueeze")
)
MAX_SIZES = 8


def run(graph: Graph) -> dict[str, int]:
    """Counts operands whose numbers have become symbols."""
    told: dict[Value, Value] = {}
    nodes: list[Node] = []
    sizes: dict[str, Dim] = {}
    count = 0
    for node in graph.nodes:
        places = _sizes(node)
        for i in places:
            node.set_input(i, _tell(graph, node.inputs[i], told, nodes))
        if places and node.op == "Slice" and not _is_window(node):
            node.attrs["exact"] = True  # of numbers that data tells nothing can be assumed
        if told:
            for value in node.inputs:
                if value is not None and value.producer is None and value.elements is not None:
                    value.elements = tuple(substitute(each, sizes) for each in value.elements)
            infer_again(node, sizes)
        nodes.append(node)
        count += len(places)
    graph.nodes = nodes
    graph.rename_sizes(sizes)
    return {"operands": count}


def _tell(graph: Graph, value: Value, told: dict[Value, Value], nodes: list[Node]) -> Value:
    """The value with numbers that are symbols; the nodes that make it are added to nodes."""
    if value in told:
        return told[value]
    node = value.producer
    unknown = [] if node is None else [v for v in node.inputs if v is not None and known(v) is None]
    source, places = _gathered(value)
    if source is not value:
        inside = source if known(source) is not None else _tell(graph, source, told, nodes)
        op, inputs, attrs = "Gather", [inside, graph.constant(places, array_type(places))], {}
    elif node is not None and node.op in FOLLOWED and len(unknown) == 1 and _is_small(unknown[0]):
        inside = _tell(graph, unknown[0], told, nodes)
        inputs = [inside if v is unknown[0] else v for v in node.inputs]
        op, attrs = node.op, dict(node.attrs)
    else:
        op, inputs, attrs = "q7::Contents", [value], {}
    told[value] = graph.new_value(UNKNOWN, value.name)
    sources = node.sources if node else ()
    nodes.append(Node(op, inputs, [told[value]], attrs, value.name, sources))
    infer_node(nodes[-1])
    return told[value]


def _gathered(value: Value) -> tuple[Value, np.ndarray]:
    """The small vector that a value is made of through other ranks, and where its elements are in
    that; of others the value itself.
    """
    moves: list[tuple[Node, list[np.ndarray]]] = []
    source = value
    while source.producer is not None and source.producer.op in MOVED:
        node = source.producer
        others = [known(other) for other in node.inputs[1:] if other is not None]
        if not all(map(_are_numbers, others)) or node.inputs[0].dtype != value.dtype:
            break
        moves.append((node, [np.array(other, np.int64) for other in others]))
        source = node.inputs[0]
        if _is_small(source):
            break
    is_moved = _is_small(source) and len(moves) > 1
    places = (
        np.arange(int(np.prod(source.shape))).reshape(source.shape) if is_moved else np.empty(0)
    )
    for node, others in reversed(moves) if is_moved else ():
        places = find(node.op).reference(node, places, *others)
    return (source if is_moved else value), places


def _sizes(node: Node) -> list[int]:
    """The inputs that are small integer vectors of data, where knowing them tells the sizes."""
    if node.op == "Slice":
        others = [known(value) for value in node.inputs[3:] if value is not None]
        are_told = all(known(value) is not None or _is_small(value) for value in node.inputs[1:3])
        places = [1, 2] if are_told and all(map(_are_numbers, others)) else []
    elif node.op == "Range":
        places = [0, 1] if _are_numbers(known(node.inputs[2])) else []
    elif node.op == "Pad" and node.input(3) is not None and known(node.inputs[3]) is None:
        places = []
    else:
        places = [SIZES[node.op]] if node.op in SIZES else []
    return [i for i in places if known(node.inputs[i]) is None and _is_small(node.inputs[i])]


def _are_numbers(elements: Optional[tuple[Dim, ...]]) -> bool:
    return elements is not None and all(isinstance(each, int) for each in elements)


def _is_window(node: Node) -> bool:
    """Whether a Slice takes as many elements wherever it starts."""
    bounds = (known(value) for value in node.inputs[1:3])
    sizes = [end - start for start, end in zip(*bounds)]
    return all(isinstance(size, int) and size > 0 for size in sizes)


def _is_small(value: Value) -> bool:
    if value.dtype not in (INT32, INT64) or value.shape is None or len(value.shape) > 1:
        return False
    return all(isinstance(dim, int) and dim <= MAX_SIZES for dim in value.shape)
