"""What a fusion says of a place where it did not apply."""

from __future__ import annotations

from typing import NamedTuple

from q7x2_ep.ir.core import Node


class NearMiss(NamedTuple):
    """A place where a fusion almost applied. matched of total nodes were found before `reason`
    stopped it.
    """

    fusion: str
    node: Node
    matched: int
    total: int
    reason: str

    def __str__(self) -> str:
        return f"{self.fusion}: {self.reason} ({self.matched} of {self.total} nodes matched)"
