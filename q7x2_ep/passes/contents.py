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

SIZES = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "TopK": 1}  # which input
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
            if node.op == "Slice":
                node.attrs["exact"] = True  # they count from either end
            count += 1
        if told:
            infer_again(node, sizes)
        nodes.append(node)
    graph.nodes = nodes
    graph.rename_sizes(sizes)
    return {"operands": count}


def _sizes(node: Node) -> list[int]:
    """The inputs that are small integer vectors of data, where knowing them tells the sizes."""
    if node.op == "Range":
        places = [0, 1] if _is_fixed(node, 2) else []
    elif node.op == "Slice":
        places = [1, 2] if _is_fixed(node, 3) and _is_fixed(node, 4) else []
    elif node.op in SIZES:
        places = [SIZES[node.op]]
    else:
        return []
    return [i for i in places if known(node.inputs[i]) is None and _is_small(node.inputs[i])]


def _is_fixed(node: Node, i: int) -> bool:
    """Whether an input is left out, or consists of numbers that no run changes."""
    contents = known(node.input(i)) if node.input(i) is not None else ()
    return contents is not None and all(isinstance(each, int) for each in contents)


def _is_small(value: Value) -> bool:
    if value.dtype not in (INT32, INT64) or value.shape is None or len(value.shape) > 1:
        return False
    return all(isinstance(dim, int) and dim <= MAX_SIZES for dim in value.shape)
