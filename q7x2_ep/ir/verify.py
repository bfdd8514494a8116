"""The invariants of a graph, checked after every pass."""

from __future__ import annotations

from typing import Any, Callable

from q7x2_ep.errors import InternalError
from q7x2_ep.ir.core import Graph, Node


def verify(graph: Graph, after: str, find: Callable[[str], Any]) -> None:
    """Links agree, operands come first, values have types, `find` knows all ops.

    Raises: InternalError naming the pass that ran before, `after`.
    """
    for problem in _problems(graph, find):
        raise InternalError(f"after {after}: {problem}")


def _problems(graph: Graph, find: Callable[[str], Any]):
    ready = {id(value) for value in graph.inputs}
    uses: dict[int, int] = {}
    for node in graph.nodes:
        if find(node.op) is None:
            yield f"[{node.op} {node.name}] the op is not in the catalogue"
        for value in node.inputs:
            if value is None:
                continue
            uses[id(value)] = uses.get(id(value), 0) + 1
            if not (id(value) in ready or (value.producer is None and _has_contents(value))):
                yield f"[{node.op} {node.name}] {value} is used before anything produces it"
        for value in node.outputs:
            if value.producer is not node:
                yield f"[{node.op} {node.name}] {value} says that {value.producer} produces it"
            if not value.dtype or value.shape is None:
                yield f"[{node.op} {node.name}] {value} has no type"
            ready.add(id(value))
    yield from _wrong_users(graph, uses)
    for value in graph.outputs:
        if not (id(value) in ready or _has_contents(value)):
            yield f"output {value} is not produced"
    if len(graph.output_names) != len(graph.outputs):
        yield f"{len(graph.outputs)} outputs have {len(graph.output_names)} names"


def _has_contents(value: Any) -> bool:
    return value.const is not None or value.elements is not None


def _wrong_users(graph: Graph, uses: dict[int, int]):
    in_graph = {id(node) for node in graph.nodes}
    for value in graph.values():
        strangers: list[Node] = [user for user in value.users if id(user) not in in_graph]
        if strangers:
            yield f"{value} is used by {strangers[0]}, which is not in the graph"
        if len(value.users) != uses.get(id(value), 0):
            yield f"{value} lists {len(value.users)} users, but has {uses.get(id(value), 0)}"
