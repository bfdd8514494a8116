"""Linears of one input that attention reads -> one q7::Linear on joined weights, and a Split.

One wide product keeps more cores busy on short inputs and reads x once; see docs/decisions.md. Only
where every reader takes strides: the parts are views of one tensor, others would have to copy them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.rewrite import NearMiss, rewrite

_READERS = frozenset({"q7::Attention", "q7::Rope"})
_VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split"})


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
                if (bias is None or bias.const is not None) and _only_attention_reads(node.output):
                    key = (
                        id(node.inputs[0]),
                        node.attrs["trans_b"],
                        node.attrs["alpha"],
                        bias is None,
                    )
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


def _only_attention_reads(value: Value) -> bool:
    return bool(value.users) and all(
        user.op in _READERS or (user.op in _VIEWS and all(map(_only_attention_reads, user.outputs)))
        for user in value.users
    )


def _merge(g: Any, nodes: list[Node]) -> list[Node]:
    x, attrs = nodes[0].inputs[0], nodes[0].attrs
    weight = g.concatenate([node.inputs[1] for node in nodes], 0 if attrs["trans_b"] else 1)
    biases = [node.input(2) for node in nodes]
    bias = None if biases[0] is None else g.concatenate(biases, None)
    merged = g.call("q7::Linear", x, weight, bias, **attrs)
    outputs = [node.output for node in nodes]
    sizes = [value.shape[-1] for value in outputs]
    parts = g.call("Split", merged, sizes, outputs=len(nodes), axis=len(merged.shape) - 1)
    return rewrite(g, MergeLinears.name, outputs, parts, nodes)
