"""What is computed of one byte, between DequantizeLinear and QuantizeLinear -> q7::ByteTable.

Quantised networks spell an activation as several ops, each with a rounding to bytes behind it: a
GELU is five. All of them are one function of the first byte.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.replace import rewrite
from q7x2_ep.ir.rewrite import is_unused
from q7x2_ep.ir.shape import product
from q7x2_ep.ops.chain import instructions_of
from q7x2_ep.ops.common import BYTES
from q7x2_ep.ops.lookup import table_of


class Tables:
    """Not a pattern: any elementwise ops in any arrangement."""

    name = "ByteTable"

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        sources = _sources(graph)
        known: dict[Value, Any] = {}
        applied: Counter = Counter()
        order: list[Node] = []
        for node in reversed(graph.nodes):
            if is_unused(graph, node):  # it was for a table
                node.detach()
                continue
            made: list[Node] = []
            source = sources.get(node.outputs[0]) if node.op == "QuantizeLinear" else None
            table = None if source is None else table_of(node.output, source, known)
            if table is not None:
                result = g.call("q7::ByteTable", source, g.array(table))
                made = rewrite(g, self.name, [node.output], [result], [node])
                applied.update([self.name] if made else [])
            order += made[::-1] or [node]
        graph.nodes = order[::-1]
        return applied, []


def _sources(graph: Graph) -> dict[Value, Value]:
    """Of each value that is computed of one element of some bytes and of constants: those bytes."""
    found: dict[Value, Value] = {}
    for node in graph.nodes:
        source = _source(node, found)
        if source is not None:
            found[node.outputs[0]] = source
    return found


def _source(node: Node, found: dict[Value, Value]) -> Optional[Value]:
    operands = [value for value in node.inputs if value is not None]
    varying = {value for value in operands if not _is_constant(value)}
    if len(varying) == 0 or len(node.outputs) > 1:
        return None
    if node.op == "DequantizeLinear" and node.inputs[0].dtype in BYTES:
        sources = {found.get(value, value) for value in varying}
    else:
        sources = {found.get(value) for value in varying}
    (source, *others) = sources
    if (
        source is None
        or others
        or any(product(value.shape) != 1 for value in operands if value not in varying)
        or node.output.shape != source.shape
        or (node.op == "QuantizeLinear" and node.output.dtype not in BYTES)
    ):
        return None
    instructions = instructions_of(node)
    return source if instructions and instructions[-1].step != "reduce" else None


def _is_constant(value: Value) -> bool:
    """Or dequantised from constants, which is folded later."""
    node = value.producer
    late = node is not None and node.op == "DequantizeLinear"
    return value.const is not None or (
        late and all(x is None or x.const is not None for x in node.inputs)
    )
