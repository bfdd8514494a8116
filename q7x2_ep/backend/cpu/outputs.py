"""Memory of large outputs, which later runs write to again once their callers hold none of it: the
system would have to find and clear other pages (docs/decisions.md 73, 86).
"""

from __future__ import annotations

import sys
from math import prod

import numpy as np

KEPT_BYTES = 1 << 17  # and more; of one output
KEPT_RUNS = 3  # so long memory waits for an output that it fits


class Outputs:
    """Arrays for the outputs of one run at a time."""

    def __init__(self) -> None:
        self._memory: list[tuple[np.ndarray, int]] = []  # and its last run, the earliest first
        self._runs = 0

    @property
    def kept_bytes(self) -> int:
        """Which callers may hold as well."""
        return sum(memory.nbytes for memory, _ in self._memory)

    def next_run(self) -> None:
        """Lets go of what no output was written to for a while."""
        self._runs += 1
        while self._memory and self._runs - self._memory[0][1] > KEPT_RUNS:
            del self._memory[0]

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of any contents. Raises: MemoryError, ValueError."""
        size = prod(shape) * dtype.itemsize
        if size < KEPT_BYTES:
            return np.empty(shape, dtype)
        memory = self._free(size)
        self._memory.append((memory, self._runs))
        return np.ndarray(shape, dtype, memory)  # of which every view keeps the memory

    def _free(self, size: int) -> np.ndarray:
        """So many bytes, or up to twice as many, that nobody else holds."""
        memory = self._memory
        for i in range(len(memory)):
            if size <= memory[i][0].nbytes <= 2 * size and _holders(memory, i) == ALONE:
                return memory.pop(i)[0]
        step = (
            1 << size.bit_length() - 4
        )  # a cache that grows by a row finds room in it for a while
        return np.empty(-(-size // step) * step, np.uint8)


def _holders(memory: list, i: int) -> int:
    """How many references there are to the i-th: ALONE, if the list has the only one."""
    return sys.getrefcount(memory[i][0])


ALONE = _holders([(object(), 0)], 0)
