"""Rewriting: one fusion applied wherever its patterns match.

A Fusion is a formula in several spellings (ir/pattern.py), a `check` that proves what patterns
cannot say (shapes, constants), and a `build` that makes the replacement. A sweep visits the nodes
in order, so producers are fused before their consumers. The replacement takes over the old output
Values, with their names and types; where its own inferred type differs from theirs, nothing is
changed and the reason is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil
from typing import Any, Callable, NamedTuple, Optional, Union

from q7x2_ep.dtypes import BFLOAT16, FLOAT, FLOAT16
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.pattern import Match, Matcher, Pattern, is_used_outside, root_ops, trace
from q7x2_ep.ir.replace import discard, rewrite

# Results of other dtypes are not fused: no kernel computes a fused op in float64 or integers.
FUSED_DTYPES = (FLOAT, FLOAT16, BFLOAT16)


class Fusion(NamedTuple):
    """How one op is found in a graph. Without state: everything lives in the Match.

    spellings: formulas (g, *wildcards) -> pattern; the first is the op's own meaning. check(match):
    the keyword arguments for build, or why not. build(g, **arguments): the value that replaces the
    root's output, or a tuple with those of the exposed values behind it. dtypes: of that output.
    """

    name: str
    spellings: tuple[Callable[..., Any], ...]
    check: Callable[[Match], Union[dict[str, Any], str]]
    build: Callable[..., Union[Value, tuple[Value, ...]]]
    dtypes: tuple[int, ...] = FUSED_DTYPES


def sweep(graph: Graph, fusions: Sequence[Fusion], g: Any) -> tuple[Counter, list[NearMiss]]:
    """Apply fusions wherever they match, in one walk; how often by name, and the near misses.

    g makes nodes: a builder with `take()`, which hands over the nodes made since the last call,
    `watch`, which is asked before every application, and `misfit(node)`, why its operands never
    fit.
    """
    spellings = _by_root(tuple(fusions))
    tries = {
        op: [(fusion, Matcher(graph, pattern, fusion.check)) for fusion, pattern in spellings[op]]
        for op in {node.op for node in graph.nodes} & spellings.keys()
    }
    applied: Counter = Counter()
    misses: list[NearMiss] = []
    if not tries:
        return applied, misses
    order: list[Node] = []
    gone: dict[int, Node] = {}
    position = {id(node): i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        made: list[Node] = []
        nearest: Optional[NearMiss] = None
        for fusion, matcher in tries.get(node.op, ()):
            if node.output.dtype not in fusion.dtypes or not matcher.may_match(node):
                continue
            made, old, miss = _try(fusion, matcher, g, node, position)
            if miss is not None and (nearest is None or miss.matched > nearest.matched):
                nearest = miss
            if made:
                applied[fusion.name] += 1
                position.update((id(new), position[id(node)]) for new in made)
                gone.update((id(dead), dead) for dead in old)
                break
        if nearest is not None and not made:
            misses.append(nearest)
        order.extend(made or [node])
    graph.nodes = [node for node in order if id(node) not in gone]
    if applied:
        graph.sort()  # an exposed value may be used before the root's place
        drop_unused(graph)
    return applied, [miss for miss in misses if id(miss.node) not in gone]


@cache
def _by_root(fusions: tuple[Fusion, ...]) -> dict[str, list[tuple[Fusion, Pattern]]]:
    """Every spelling with its fusion, by the ops that its root may have."""
    found: dict[str, list[tuple[Fusion, Pattern]]] = {}
    for fusion in fusions:
        for pattern in map(trace, fusion.spellings):
            for op in root_ops(pattern):
                found.setdefault(op, []).append((fusion, pattern))
    return found


def _try(
    fusion: Fusion, matcher: Matcher, g: Any, node: Node, position: dict[int, int]
) -> tuple[list[Node], list[Node], Optional[NearMiss]]:
    """The new nodes, the nodes that they replace, and a near miss where the fusion came close
    instead.
    """
    found = matcher.match(node)
    if found is None:
        return [], [], _near_miss(fusion, matcher, node)
    match, arguments = found
    misfit = next(filter(None, map(g.misfit, match.nodes)), "")
    if misfit:  # what no run fits is refused by the op that says so
        size = len(match.nodes)
        return [], [], NearMiss(fusion.name, node, size, size, misfit)
    result = fusion.build(g, **arguments)
    results = result if isinstance(result, tuple) else (result,)
    differences = [_difference(old, new) for old, new in zip(match.outputs, results)]
    reason = next(filter(None, differences), "") or _needed(match)
    if reason:
        discard(g.take())
        size = len(match.nodes)
        return [], [], NearMiss(fusion.name, node, size, size, reason)
    gone = with_orphans(matcher.graph, match.nodes)
    gone.sort(key=lambda old: position[id(old)])
    made = rewrite(g, fusion.name, match.outputs, results, gone)
    return made, gone if made else [], None


def with_orphans(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """The nodes, and those before them that nothing else needs: what build looked behind. One that
    tells a size stays: what build has made may be of that size.
    """
    found, inside = list(nodes), set(map(id, nodes))
    for node in found:  # grows on the way
        for value in node.inputs:
            maker = None if value is None else value.producer
            if maker is None or maker.binds or id(maker) in inside:
                continue
            if not any(is_used_outside(graph, output, inside) for output in maker.outputs):
                found.append(maker)
                inside.add(id(maker))
    return found


def _near_miss(fusion: Fusion, matcher: Matcher, node: Node) -> Optional[NearMiss]:
    """What to report of the last failure, if anything: two ops, and a third of them, where one was
    refused, else three and more than two thirds, for a product of products is common.

    What refines an op that is fused already does not miss where there is nothing to refine.
    """
    if matcher.near:
        enough = max(min(2, matcher.total), ceil(matcher.total / 3))
    else:
        enough = max(3, matcher.total * 2 // 3 + 1)
    if matcher.matched < enough or not matcher.reason:
        return None
    if not matcher.near and node.op.startswith("q7::"):
        return None
    total = max(matcher.total, matcher.matched)
    return NearMiss(fusion.name, node, matcher.matched, total, matcher.reason)


def _needed(match: Match) -> str:
    """Why nodes of a match cannot go, now that build has made others: those may read what check has
    taken into the match.
    """
    inside, outputs = set(map(id, match.nodes)), set(map(id, match.outputs))
    for value in (output for node in match.nodes for output in node.outputs):
        if id(value) not in outputs and is_used_outside(match.graph, value, inside):
            return f"{value!r} is read by what would take its place"
    return ""


def _difference(old: Value, new: Value) -> str:
    if old.dtype != new.dtype:
        return f"{old!r} would change its dtype from {old.dtype} to {new.dtype}"
    if old.shape is not None and old.shape != new.shape:
        return f"{old!r} would change its shape from {_dims(old.shape)} to {_dims(new.shape)}"
    return ""


def _dims(shape: Optional[Iterable[Any]]) -> str:
    return "unknown" if shape is None else f"[{','.join(map(str, shape))}]"


def is_unused(graph: Graph, node: Node) -> bool:
    """Whether nothing needs a node; one that tells a size may be needed without being used."""
    return not node.binds and not any(y.users or graph.is_output(y) for y in node.outputs)


def drop_unused(graph: Graph) -> None:
    """Remove nodes that nothing needs any more: what a rewrite looked through would still count as
    a user.
    """
    for node in reversed(graph.nodes):
        if is_unused(graph, node):
            node.detach()
            node.outputs = []
    graph.nodes = [node for node in graph.nodes if node.outputs]
