"""Sizes that come as data become symbols: k of TopK, the limit of a Range, the bounds of a Slice.

A q7::Contents tells the numbers in a small vector of data when it has been made, and what reads it
is planned for any value of them, as for any sizes of feeds: it needs no host step. What follows
from one number, as i + 1 does from i, is computed of its symbol, so that the size of x[i:i + 1] is
known. Left alone are operands in which a number may mean something else, such as the -1 of a
Reshape.
"""

from __future__ import annotations

from typing import Optional

from q7x2_ep.dtypes import INT32, INT64
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Value
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops.common import known
from q7x2_ep.passes.infer import infer_again, infer_node

SIZES = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "TopK": 1}  # which input
FOLLOWED = frozenset(("Add", "Identity", "Reshape", "Squeeze", "Sub", "Unsqueeze"))
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
    if node is not None and node.op in FOLLOWED and len(unknown) == 1 and _is_small(unknown[0]):
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


def _sizes(node: Node) -> list[int]:
    """The inputs that are small integer vectors of data, where knowing them tells the sizes."""
    if node.op == "Slice":
        others = [known(value) for value in node.inputs[3:] if value is not None]
        are_told = all(known(value) is not None or _is_small(value) for value in node.inputs[1:3])
        places = [1, 2] if are_told and all(map(_are_numbers, others)) else []
    elif node.op == "Range":
        places = [0, 1] if _are_numbers(known(node.inputs[2])) else []
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
