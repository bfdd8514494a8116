"""Linears of one input with strided readers -> one q7::Linear on joined weights, and a Split.

One wide product keeps more cores busy on short inputs and reads x once; see docs/decisions.md. Only
where every reader takes strides: the parts are views of one tensor, others would have to copy them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.replace import rewrite
from q7x2_ep.ops.common import is_movement, reads_strides


class MergeLinears:
    """Not a pattern with a root: siblings are found from the value that they share."""

    name = "MergedLinear"

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        groups: dict[tuple, list[Node]] = {}
        for node in graph.nodes:
            if (
                node.op == "q7::Linear"
                and node.attrs["activation"] == "none"
                and node.input(3) is None
            ):
                bias = node.input(2)
                constant = bias is None or bias.const is not None
                if constant and not graph.is_output(node.output) and _is_read_strided(node.output):
                    key = (id(node.inputs[0]), node.attrs["trans_b"], node.attrs["alpha"])
                    groups.setdefault(key, []).append(node)
        places: dict[int, list[Node]] = {}
        gone: set[int] = set()
        for nodes in groups.values():
            if len(nodes) > 1:
                made = _merge(g, nodes)
                if made:
                    places[id(nodes[0])] = made
                    gone.update(map(id, nodes))
        order: list[Node] = []
        for node in graph.nodes:
            order.extend(places.get(id(node), () if id(node) in gone else (node,)))
        graph.nodes = order
        return Counter({self.name: len(places)} if places else {}), []


def _is_read_strided(value: Value) -> bool:
    return bool(value.users) and all(
        reads_strides(user, value)
        or (is_movement(user) and all(map(_is_read_strided, user.outputs)))
        for user in value.users
    )


def _merge(g: Any, nodes: list[Node]) -> list[Node]:
    x, attrs = nodes[0].inputs[0], nodes[0].attrs
    weight = g.concatenate([node.inputs[1] for node in nodes], 0 if attrs["trans_b"] else 1)
    outputs = [node.output for node in nodes]
    sizes = [value.shape[-1] for value in outputs]
    biases = [node.input(2) for node in nodes]
    if any(bias is not None for bias in biases):
        rows = [
            bias if bias is not None else g.filled(g.literal(0.0, x.dtype), (n,))
            for bias, n in zip(biases, sizes)
        ]
        merged = g.call("q7::Linear", x, weight, g.concatenate(rows, None), **attrs)
    else:
        merged = g.call("q7::Linear", x, weight, **attrs)
    parts = g.call("Split", merged, sizes, outputs=len(nodes), axis=len(merged.shape) - 1)
    return rewrite(g, MergeLinears.name, outputs, parts, nodes)
