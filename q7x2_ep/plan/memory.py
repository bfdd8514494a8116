"""Lifetimes and sharing: which storage may live in which memory, and from which step to which.

Offsets in the arena are C's business, at bind, when sizes are known (csrc/exec.c); here it is
settled who needs memory at all. A storage is alive from its first write to its last read. It may be
produced inside another one (a part of a Concat), or written over an input that dies in the same
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from q7x2_ep.ir.shape import Dim

THREADS = "$threads"  # the symbol that C binds to the number of threads


@dataclass(eq=False)
class Storage:
    """A piece of memory: in the arena, or a constant, a feed or an output. Units: bytes, step
    indices.
    """

    name: str
    bytes: Dim
    space: str  # arena | constant | input | output
    index: int  # of the constant, feed or output
    first: int = -1  # -1: never touched
    last: int = -1
    parent: Optional[Storage] = None  # in whose memory this storage lives
    parent_offset: Dim = 0
    over: Optional[Storage] = None  # of an output: the feed that a caller may have it written over

    def touch(self, step: int) -> None:
        self.first = step if self.first < 0 else min(self.first, step)
        self.last = max(self.last, step)

    def place(self) -> tuple[Storage, Dim]:
        """The storage that owns the memory, and the offset in it."""
        if self.parent is None:
            return self, 0
        root, offset = self.parent.place()
        return root, offset + self.parent_offset

    def move_into(self, parent: Storage, offset: Dim = 0) -> None:
        self.parent, self.parent_offset = parent, offset
        root, _ = parent.place()
        root.touch(self.first)
        root.touch(self.last)


class Embedding(NamedTuple):
    """An offer: `source` may be produced at `offset` bytes of `target`, which makes the copy at
    `step` needless.
    """

    step: int
    source: Storage
    target: Storage
    offset: Dim


class Sharing(NamedTuple):
    """An offer: at `step`, `into` may be written over `source`. others: further operands of the
    step. reads, writes: bytes of both from the front, None where they may be anywhere.
    """

    step: int
    source: Storage
    into: Storage
    others: list[Storage]
    reads: Optional[Dim] = None
    writes: Optional[Dim] = None


def settle(
    steps: list[Any], storages: list[Storage], embeddings: list[Embedding], sharings: list[Sharing]
) -> list[Any]:
    """Accept every offer that is safe; returns the steps that are left, with lifetimes renumbered
    to them.
    """
    dropped = set()
    for step, source, target, offset in embeddings:
        if source.space == "arena" and source.parent is None and target.place()[0] is not source:
            source.move_into(target, offset)
            dropped.add(step)
    for step, source, into, others, reads, writes in sharings:
        root, _ = source.place()
        if (
            root.last == step
            and into.first == step
            and into.parent is None
            and all(other.place()[0] is not root for other in others)
        ):
            spaces = root.space, into.space
            if spaces == ("arena", "arena") and root.bytes == into.bytes and reads == writes:
                into.move_into(root)
            elif spaces == ("input", "output") and reads == root.bytes:
                into.over = root
    left = [i for i in range(len(steps)) if i not in dropped]
    renumbered = {old: new for new, old in enumerate(left)}
    for storage in storages:
        if storage.first >= 0:
            # a dropped copy may be its first or last step, and its only one where nothing is in it
            alive = [i for i in range(storage.first, storage.last + 1) if i in renumbered] or [-1]
            storage.first, storage.last = (renumbered.get(alive[i], -1) for i in (0, -1))
    return [steps[i] for i in left]
