"""The memory of a session, by what it is for."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import NamedTuple, Optional

import numpy as np

from q7x2_ep.files import mapping


class MemoryReport(NamedTuple):
    """What a session holds. Units: bytes.

    weights, packed: constants as they are and packed for GEMM, in memory of this process;
    mapped_weights, mapped_packed: those that are pages of a file, which processes share and the
    system may take back; resident: how much of these files is in memory now, and shared: how much
    of that other processes map too, None where the system does not say. arenas: of every context
    that no run is using, one per run that went on at the same time as others, with the large
    outputs of its last run, whose memory the next one takes if nobody holds them.
    """

    weights: int
    packed: int
    mapped_weights: int
    mapped_packed: int
    resident: Optional[int]
    shared: Optional[int]
    arenas: tuple[int, ...]

    @property
    def private(self) -> int:
        """What this process alone holds."""
        return self.weights + self.packed + sum(self.arenas)

    def __str__(self) -> str:
        def line(name: str, amount: Optional[int]) -> str:
            return f"{name:<28}{'unknown' if amount is None else f'{amount:,}':>16}"

        lines = [f"{'memory':<28}{'bytes':>16}", "-" * 44]
        lines += [line("weights", self.weights), line("packed weights", self.packed)]
        lines += [line(f"arena {i}", size) for i, size in enumerate(self.arenas)]
        lines.append(line("of this process", self.private))
        lines += [
            line("mapped weights", self.mapped_weights),
            line("mapped packed weights", self.mapped_packed),
            line("of files, in memory", self.resident),
            line("shared with others", self.shared),
        ]
        return "\n".join(lines)


def report(plans: Iterable[list[np.ndarray]], arenas: Iterable[int]) -> MemoryReport:
    """plans: the constants of each, packed weights first."""
    sizes = {True: [0, 0], False: [0, 0]}  # by whether they are mapped: packed, others
    seen: set[int] = set()
    maps: dict[int, mmap.mmap] = {}
    for constants in plans:
        for i, array in enumerate(constants):
            if id(array) not in seen:
                seen.add(id(array))
                owner = mapping(array)
                sizes[owner is not None][i > 0] += array.nbytes
                if owner is not None:
                    maps[np.frombuffer(owner, np.uint8).ctypes.data] = owner
    pages = _pages(maps)
    return MemoryReport(
        weights=sizes[False][1],
        packed=sizes[False][0],
        mapped_weights=sizes[True][1],
        mapped_packed=sizes[True][0],
        resident=None if pages is None else pages[0],
        shared=None if pages is None else pages[1],
        arenas=tuple(arenas),
    )


def _pages(maps: dict[int, mmap.mmap]) -> Optional[tuple[int, int]]:
    """Bytes of these mappings, by address, that are in memory, and of them those that others map
    too. Source: proc(5), smaps.
    """
    resident = shared = 0
    inside = False
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(" ")
                if not key.endswith(":"):
                    inside = int(key.partition("-")[0], 16) in maps
                elif inside and key == "Rss:":
                    resident += int(value.split()[0]) << 10
                elif inside and key in ("Shared_Clean:", "Shared_Dirty:"):
                    shared += int(value.split()[0]) << 10
    except OSError:
        return None
    return resident, shared
