"""Graph -> phases: native parts, one C call each, and the host steps between them.

A node is a host step where nothing native can run it (ops/__init__.py), or where the sizes of what
it makes depend on data. Phases are as large as the dependencies allow: all native nodes that are
ready go into one, then all host steps that are. A symbol is bound when the value that brings it has
been made, so a node waits for the symbols of its sizes as for its inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Optional

from q7x2_ep.dtypes import INT64, is_dense
from q7x2_ep.errors import PlanError
from q7x2_ep.ir.core import MAX_ELEMENTS, Graph, Node, Value
from q7x2_ep.ir.shape import product, symbols
from q7x2_ep.ops import find
from q7x2_ep.ops.common import is_movement
from q7x2_ep.plan.build import NotNative, build
from q7x2_ep.plan.parts import CONTENTS, HostPhase, NativePhase, Phase, is_data, told_by
from q7x2_ep.plan.target import Target


def partition(graph: Graph, target: Target) -> list[Phase]:
    """Plan a verified graph for a target: one native phase if possible."""
    reasons: dict[Node, str] = {}
    ends = (*graph.inputs, *graph.outputs)
    is_native = all(value.shape is not None and is_dense(value.dtype) for value in ends)
    while True:
        try:
            if is_native and not reasons:
                return [NativePhase(build(graph, target), tuple(bound_by(graph.inputs)))]
            return _phases(graph, target, reasons)
        except NotNative as found:
            reasons.update(found.reasons)


def bound_by(values: Iterable[Value]) -> dict[str, None]:
    """The symbols in the shapes of values, in order."""
    names: dict[str, None] = {}
    for value in values:
        for dim in value.shape or ():
            names.update(dict.fromkeys(sorted(symbols(dim))))
    return names


def _phases(graph: Graph, target: Target, reasons: dict[Node, str]) -> list[Phase]:
    """Nodes without a reason are native."""
    phases: list[Phase] = []
    ready, sizes = set(graph.inputs), bound_by(graph.inputs)
    rest = graph.nodes
    while rest:
        host = [node for node in rest if node in reasons and _is_ready(node, ready, sizes)]
        for node in host:
            phases.append(HostPhase(node, reasons[node], _within(node, target, tuple(sizes))))
            ready.update(node.outputs)
            sizes.update(bound_by(node.outputs))
            if node.op == CONTENTS:
                sizes.update(dict.fromkeys(told_by(node)))
        native = [node for node in rest if node not in reasons]
        first = [node for node in _telling(rest, ready) if node not in reasons]
        native = _take(first, ready, sizes) or _take(native, ready, sizes)
        if all(is_movement(node) and not _assumes(node) for node in native):  # numpy has views too
            phases += [HostPhase(node, "only moves what a host step made") for node in native]
            for node in native:  # a size that it tells, others wait for
                sizes.update(bound_by(node.outputs))
        else:
            part = _part(graph, native)
            phases.append(NativePhase(build(part, target, sizes), tuple(sizes)))
        if not native and not host:
            raise PlanError(f"{rest[0]} waits for a size that nothing before it tells")
        done = {*native, *host}
        rest = [node for node in rest if node not in done]
    return phases


def _telling(nodes: list[Node], ready: Collection[Value]) -> list[Node]:
    """Those that make numbers for a Contents out of a few others, as exporters compute widths of
    borders: they go first, and one phase has all that is planned for these.
    """
    light: set[Node] = set()
    for node in nodes:
        waits = [v for v in node.inputs if v is not None and v.producer and v not in ready]
        if all(v.producer in light for v in waits) and all(map(_is_small, node.outputs)):
            light.add(node)
    telling: set[Node] = set()
    for node in reversed(nodes):
        users = [user for value in node.outputs for user in value.users]
        if node in light and (node.op == CONTENTS or not telling.isdisjoint(users)):
            telling.add(node)
    return [node for node in nodes if node in telling]


def _is_small(value: Value) -> bool:
    size = None if value.shape is None else product(value.shape)
    return isinstance(size, int) and size <= MAX_ELEMENTS


def _assumes(node: Node) -> bool:
    """Whether the sizes of a node hold for regular feeds only, which a plan checks."""
    entry = find(node.op)
    if node.binds or any(output.shape is None for output in node.outputs):
        return False  # nothing is known of them
    return hasattr(entry, "assumptions") and bool(entry.assumptions(node))


def _take(nodes: list[Node], ready: set[Value], sizes: Collection[str]) -> list[Node]:
    """Those that can run now, or after others of them; their outputs are ready from then on."""
    taken = []
    for node in nodes:
        if _is_ready(node, ready, sizes):
            ready.update(node.outputs)
            taken.append(node)
    return taken


def _is_ready(node: Node, ready: set[Value], sizes: Collection[str]) -> bool:
    for value in node.inputs:
        if value is not None and value.const is None and value not in ready:
            if is_data(value):
                return False
            if any(not symbols(dim) <= set(sizes) for dim in value.elements):
                return False
    return node.binds or set(bound_by(node.outputs)) <= set(sizes)


def _within(node: Node, target: Target, sizes: tuple[str, ...]) -> Optional[NativePhase]:
    """See HostPhase."""
    entry = find(node.op)
    if not hasattr(entry, "bound") or any(v is not None and v.shape is None for v in node.inputs):
        return None
    room = Value(f"{node.output.name}.room", node.output.dtype, (entry.bound(node),))
    count = Value(f"{node.output.name}.count", INT64, (1,))
    inputs = dict.fromkeys(value for value in node.inputs if value is not None and is_data(value))
    twin = Node(node.op, list(node.inputs), [room, count], node.attrs, node.name, node.sources)
    graph = Graph(node.name, list(inputs), [room, count], [room.name, count.name], [twin])
    try:
        return NativePhase(build(graph, target, sizes), sizes)
    except NotNative:
        return None
    finally:
        twin.detach()


def _part(graph: Graph, nodes: list[Node]) -> Graph:
    """Some nodes of a graph as a graph of their own, of the same values."""
    made = {value for node in nodes for value in node.outputs}
    inside = set(nodes)
    taken = dict.fromkeys(
        value
        for node in nodes
        for value in node.inputs
        if value is not None and value not in made and is_data(value)
    )
    given = [
        value
        for node in nodes
        for value in node.outputs
        if graph.is_output(value) or any(user not in inside for user in value.users)
    ]
    names = dict(zip(graph.outputs, graph.output_names))
    given_names = [names.get(value, value.name) for value in given]
    return Graph(graph.name, list(taken), given, given_names, nodes, guards=graph.guards)
