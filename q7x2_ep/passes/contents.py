"""Sizes that come as data become symbols: k of TopK, the limit of a Range, the shape of an Expand.

A q7::Contents tells the numbers in a small vector of data when it has been made, and what reads it
is planned for any value of them, as for any sizes of feeds: it needs no host step. Left alone are
operands in which a number may mean something else, such as the -1 of a Reshape.
"""

from __future__ import annotations

from q7x2_ep.dtypes import INT32, INT64
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Value
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops.common import known
from q7x2_ep.passes.infer import infer_again, infer_node

SIZES = {"ConstantOfShape": 0, "Expand": 1, "Range": 1, "Tile": 1, "TopK": 1}  # which input
MAX_SIZES = 8


def run(graph: Graph) -> dict[str, int]:
    """Counts operands whose numbers have become symbols."""
    told: dict[Value, Value] = {}
    nodes: list[Node] = []
    sizes: dict[str, Dim] = {}
    count = 0
    for node in graph.nodes:
        for i in _sizes(node):
            value = node.inputs[i]
            if value not in told:
                told[value] = graph.new_value(UNKNOWN, value.name)
                teller = Node("q7::Contents", [value], [told[value]], {}, node.name, node.sources)
                infer_node(teller)
                nodes.append(teller)
            node.set_input(i, told[value])
            count += 1
        if told:
            infer_again(node, sizes)
        nodes.append(node)
    graph.nodes = nodes
    graph.rename_sizes(sizes)
    return {"operands": count}


def _sizes(node: Node) -> list[int]:
    """The inputs that are small integer vectors of data, where knowing them tells the sizes."""
    if node.op not in SIZES:
        return []
    places = [SIZES[node.op]]
    if node.op == "Range":
        delta = known(node.inputs[2])
        places = [0, 1] if delta is not None and isinstance(delta[0], int) else []
    return [i for i in places if known(node.inputs[i]) is None and _is_small(node.inputs[i])]


def _is_small(value: Value) -> bool:
    if value.dtype not in (INT32, INT64) or value.shape is None or len(value.shape) > 1:
        return False
    return all(isinstance(dim, int) and dim <= MAX_SIZES for dim in value.shape)
