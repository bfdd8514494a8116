"""Memory for packed weights, whose pages the system makes while Python compiles."""

from __future__ import annotations

import threading
from typing import Optional

import numpy as np

from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.ir.core import Graph

PACKED_ALIGN = 128  # bytes
LEAST_BYTES = 1 << 24  # less takes 2 ms, and a thread is not worth it
MOST_BYTES = 1 << 29  # take some 70 ms, as long as a model of that size takes to compile
PAGE = 4096


class Room:
    """Where the weights of a graph will be packed. A new page is filled with zeros when it is
    touched first: a thread does that, if there is a core for it, while passes and fusion run.

    Of 326 MB that are touched two threads make 70 ms, of others 95 (BERT-base, external data).
    """

    def __init__(self, graph: Graph):
        self._expected = expected_bytes(graph)
        self._memory: Optional[np.ndarray] = None
        if self._expected >= LEAST_BYTES and default_threads() > 1:
            self._memory = aligned(self._expected + self._expected // 4)
            touched = self._memory[: min(self._expected, MOST_BYTES) : PAGE]
            self._thread = threading.Thread(target=touched.fill, args=(0,))
            self._thread.start()

    def take(self, size: int) -> np.ndarray:
        """So many bytes, other ones where that is not about what was expected."""
        memory, self._memory = self._memory, None
        if memory is not None:
            self._thread.join()
            if self._expected - self._expected // 8 <= size <= memory.size:
                return memory[:size]
            del memory  # before there is more
        return aligned(size)


def aligned(size: int) -> np.ndarray:
    """So many bytes, where kernels can read packed weights."""
    room = np.empty(size + PACKED_ALIGN, np.uint8)
    start = -room.ctypes.data % PACKED_ALIGN
    return room[start : start + size]


def expected_bytes(graph: Graph) -> int:
    """Of the constants that products of a graph multiply by, in float32: most will be packed."""
    products = (node for node in graph.nodes if node.op in ("Conv", "Gemm", "MatMul"))
    weights = {node.input(1) for node in products}
    arrays = (weight.const for weight in weights if weight is not None)
    return sum(4 * each.size for each in arrays if each is not None and each.dtype.kind == "f")
