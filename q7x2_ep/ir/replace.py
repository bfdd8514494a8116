"""New nodes take the place of old ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

from q7x2_ep.ir.core import Node, Value


class Application(NamedTuple):
    """One use of a fusion, about to happen: nodes `made` compute `new`, which take the place of the
    values `old`; the nodes `gone` go, in their order.
    """

    fusion: str
    old: tuple[Value, ...]
    new: tuple[Value, ...]
    made: tuple[Node, ...]
    gone: tuple[Node, ...]


Watch = Callable[[Application], bool]  # whether it may happen; to look only, answer True


def rewrite(
    g: Any, fusion: str, old: Iterable[Value], new: Iterable[Value], gone: list[Node]
) -> list[Node]:
    """Let what g has made take the place of the nodes `gone`, as `replace` does, if g's watch lets
    it; the new nodes, or none. What `gone` refuse and they do not, the graph refuses: what is made
    may rest on it.
    """
    made = g.take()
    if any(node.binds for node in gone):  # nothing else tells the size, which others may need
        discard(made)
        return []
    if not g.watch(Application(fusion, tuple(old), tuple(new), tuple(made), tuple(gone))):
        discard(made)
        return []
    refused = [fact for node in gone for fact in g.facts(node)]
    replace(old, new, made, gone)
    if refused:
        known = {size for node in made for size, _ in g.facts(node)}
        known.update(size for size, _ in g.graph.guards)
        g.graph.guards += dict.fromkeys(fact for fact in refused if fact[0] not in known)
    return made


def discard(made: Iterable[Node]) -> None:
    """Forget nodes that were made for nothing."""
    for node in reversed(list(made)):
        node.detach()


def replace(old: Iterable[Value], new: Iterable[Value], made: list[Node], gone: list[Node]) -> None:
    """Let `made` nodes compute the values `old` in place of `new`; detach the nodes `gone`.

    The caller updates graph.nodes. Sources of the new nodes: all sources of the gone ones.
    """
    name = gone[-1].name
    sources = tuple(dict.fromkeys(source for node in gone for source in node.sources))
    for node in gone:
        node.detach()
    for kept, temporary in zip(old, new):
        maker = temporary.producer
        assert maker is not None, "a replacement is made by a node"
        if kept.type != temporary.type:
            maker.inferred = None
        maker.outputs[[output is temporary for output in maker.outputs].index(True)] = kept
        kept.producer = maker
        for user in list(dict.fromkeys(temporary.users)):
            for i, value in enumerate(user.inputs):
                if value is temporary:
                    user.set_input(i, kept)
        if kept.shape is None:
            kept.shape = temporary.shape
    for node in made:
        node.name, node.sources = name, sources
