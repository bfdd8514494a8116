"""The invariants of a graph, checked after every pass."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable

from q7x2_ep.errors import InternalError
from q7x2_ep.ir.core import Graph, Value, where_is


def verify(graph: Graph, after: str, find: Callable[[str], Any]) -> None:
    """Links agree, operands come first, values have types, `find` knows all ops.

    Raises: InternalError naming the pass that ran before, `after`.
    """
    for problem in _problems(graph, find):
        raise InternalError(f"after {after}: {problem}")


def _problems(graph: Graph, find: Callable[[str], Any]):
    ready = {id(value) for value in graph.inputs}
    values = {id(value): value for value in graph.inputs}
    uses: Counter[int] = Counter()
    for node in graph.nodes:
        if find(node.op) is None:
            yield f"{where_is(node)} the op is not in the catalogue"
        for value in node.inputs:
            if value is None:
                continue
            key = id(value)
            values[key] = value
            uses[key] += 1
            if key not in ready and (value.producer is not None or not _has_contents(value)):
                yield f"{where_is(node)} {value} is used before anything produces it"
        for value in node.outputs:
            if value.producer is not node:
                yield f"{where_is(node)} {value} says that {value.producer} produces it"
            values[id(value)] = value
            ready.add(id(value))
    for value in graph.outputs:
        values[id(value)] = value
        if not (id(value) in ready or _has_contents(value)):
            yield f"output {value} is not produced"
    in_graph = set(map(id, graph.nodes))
    for key, value in values.items():
        for user in value.users:
            if id(user) not in in_graph:
                yield f"{value} is used by {user}, which is not in the graph"
        if len(value.users) != uses[key]:
            yield f"{value} lists {len(value.users)} users, but has {uses[key]}"
    if len(graph.output_names) != len(graph.outputs):
        yield f"{len(graph.outputs)} outputs have {len(graph.output_names)} names"


def _has_contents(value: Value) -> bool:
    return value.const is not None or value.elements is not None
