"""Memory for packed weights, whose pages the system makes while Python compiles."""

from __future__ import annotations

import threading
from typing import Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.files import aligned
from q7x2_ep.ir.core import Graph
from q7x2_ep.plan.halves import SAMPLE, narrowest

LEAST_BYTES = 1 << 24  # less takes 2 ms, and a thread is not worth it
CHUNK = 1 << 26  # takes 8 ms; between two the thread waits up to 5 for Python
PAGE = 4096


class Room:
    """Where the weights of a graph will be packed. A new page is filled with zeros when it is
    touched first: a thread does that, if there is a core for it, while passes and fusion run.

    Of 326 MB that are touched two threads make 70 ms, of others 95 (BERT-base, external data).
    """

    def __init__(self, graph: Graph):
        self._expected = expected_bytes(graph)
        self._memory: Optional[np.ndarray] = None
        self._is_taken = False
        if self._expected >= LEAST_BYTES and default_threads() > 1:
            self._memory = aligned(self._expected + self._expected // 4)
            self._thread = threading.Thread(target=self._touch, args=(self._memory,))
            self._thread.start()

    def take(self, size: int) -> np.ndarray:
        """So many bytes, other ones where that is not about what was expected."""
        memory, self._memory, self._is_taken = self._memory, None, True
        if memory is not None:
            self._thread.join()
            if self._expected - self._expected // 8 <= size <= memory.size:
                return memory[:size]
            del memory  # before there is more
        return aligned(size)

    def _touch(self, memory: np.ndarray) -> None:
        """Where a machine has to find its pages first, packing may begin long before the end."""
        for start in range(0, self._expected, CHUNK):
            if not self._is_taken:
                memory[start : min(start + CHUNK, self._expected) : PAGE] = 0


def expected_bytes(graph: Graph) -> int:
    """Of the constants that products of a graph multiply by: most will be packed."""
    products = [node for node in graph.nodes if node.op in ("Conv", "Gemm", "MatMul")]
    weights = {node.input(1): node.op for node in products}
    return sum(
        _kernel_bytes(each.const) if op == "Conv" else each.const.size * _element_bytes(each.const)
        for each, op in weights.items()
        if each is not None and each.const is not None and each.const.dtype.kind == "f"
    )


def _kernel_bytes(weight: np.ndarray) -> int:
    """Kernels of 3x3 are transformed, most of them where there are channels enough."""
    from q7x2_ep.ops.winograd import MIN_WINOGRAD

    is_transformed = weight.shape[-2:] == (3, 3) and min(weight.shape[:2]) >= MIN_WINOGRAD
    return 4 * (weight.size * 16 // 9 if is_transformed else weight.size)


def _element_bytes(weight: np.ndarray) -> int:
    """By the first of its elements."""
    if weight.dtype != np.float32:
        return 2 if weight.dtype == np.float16 else 4
    return dtypes.size(narrowest([weight.flat[:SAMPLE]]))
