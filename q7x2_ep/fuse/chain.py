"""Elementwise ops that nothing else took -> q7::Chain: one loop, and no tensor in between.

A chain grows backwards from the node that nobody else in it reads, which may reduce rows. A
producer joins where all its users are in the chain and its result has the shape of the chain's: no
element is computed twice, and nothing that is asked for is lost. What makes a smaller tensor stays
a step of its own. One op alone is a chain where it reads a view, which it would else have copied.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, Optional

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.replace import rewrite
from q7x2_ep.ir.shape import product, without_leading_ones
from q7x2_ep.ops.chain import MAX_INPUTS, MAX_LENGTH, inputs_of, instructions_of, program_of
from q7x2_ep.ops.common import RESHAPES

_STRIDED = frozenset({"Transpose", "Slice", "Split"})


class Part(NamedTuple):
    """What a node adds to a chain. reduces: it must come last."""

    length: int
    inputs: frozenset[Value]
    reduces: bool


class Chain:
    """Not a pattern: any ops in any arrangement."""

    name = "Chain"

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        fixed = _fixed(graph)
        parts = {
            node: part
            for node in graph.nodes
            if node not in fixed and (part := _part(node)) is not None
        }
        position = {node: i for i, node in enumerate(graph.nodes)}
        places: dict[Node, list[Node]] = {}
        gone: set[Node] = set()
        for root in reversed(graph.nodes):
            if root in parts and root not in gone:
                nodes = sorted(_grow(graph, root, parts), key=position.__getitem__)
                if len(nodes) > 1 or (_reads_view(root) and not parts[root].reduces):
                    places[root] = nodes
                    gone.update(nodes)
        applied: Counter = Counter()
        order: list[Node] = []
        for node in graph.nodes:
            if node in places:
                made = _join(g, places[node])
                applied.update([self.name] if made else [])
                order += made or places[node]
            elif node not in gone:
                order.append(node)
        graph.nodes = order
        return applied, []


def _fixed(graph: Graph) -> set[Node]:
    """Nodes that depend on constants alone, as fusions before make them: they will be folded."""
    found: set[Node] = set()
    for node in graph.nodes:
        if all(x is None or x.const is not None or x.producer in found for x in node.inputs):
            found.add(node)
    return found


def _part(node: Node) -> Optional[Part]:
    """None where a node cannot be in a chain."""
    y = node.outputs[0]
    if len(node.outputs) > 1 or y.shape is None or y.elements is not None:
        return None
    if node.op == "Pow" and product(node.inputs[1].shape) != 1:
        return None  # its kernel treats an exponent that does not vary along a row in another way
    if node.op == "Clip" and any(x and product(x.shape) != 1 for x in node.inputs[1:]):
        return None  # bounds do not broadcast: that it has one of each is for the op to say
    instructions = instructions_of(node)
    if not instructions:
        return None
    inputs = frozenset(inputs_of(instructions))
    unread = [value for value in node.inputs if value is not None and value not in inputs]
    if any(value.const is None for value in unread):
        return None  # what is read for its dtype alone does not broadcast
    reduces = any(each.step == "reduce" for each in instructions)
    if reduces and len(instructions) > 1:
        return None
    return Part(len(instructions) - reduces, inputs, reduces)


def _reads_view(node: Node) -> bool:
    """Whether an input is likely to be strided."""
    for value in node.inputs:
        maker = None if value is None else value.producer
        while maker is not None and maker.op in RESHAPES:
            maker = maker.inputs[0].producer  # type: ignore[union-attr]
        if maker is not None and maker.op in _STRIDED:
            return True
    return False


def _grow(graph: Graph, root: Node, parts: dict[Node, Part]) -> set[Node]:
    """The largest chain that ends in root, as far as the limits of a step allow."""
    length, inputs, reduces = parts[root]
    walked = root.inputs[0] if reduces else root.output
    chain, shape = {root}, without_leading_ones(walked.shape)
    waiting = [value.producer for value in inputs]
    while waiting:
        node = waiting.pop()
        part = parts.get(node)
        if (
            part is None
            or part.reduces
            or node in chain
            or not all(user in chain for user in node.output.users)
            or graph.is_output(node.output)
            or without_leading_ones(node.output.shape) != shape
        ):
            continue
        joined = (inputs - {node.output}) | part.inputs
        if length + part.length <= MAX_LENGTH and len(joined) <= MAX_INPUTS:
            chain.add(node)
            length, inputs = length + part.length, joined
            waiting += [value.producer for value in part.inputs]
    return chain


def _join(g: Any, nodes: list[Node]) -> list[Node]:
    inputs, program = program_of(nodes)
    result = g.call("q7::Chain", *inputs, program=program)
    return rewrite(g, Chain.name, [nodes[-1].output], [result], nodes)
