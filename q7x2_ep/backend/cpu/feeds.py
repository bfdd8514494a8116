"""Which arrays of a caller steps may write to while they read the feeds of a run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from q7x2_ep.backend.cpu.library import address


class Feeds:
    """The memory of dense arrays, by address: one look-up per output, whatever their number."""

    def __init__(self, arrays: Sequence[np.ndarray]):
        self._arrays = arrays
        places = sorted((address(array), i) for i, array in enumerate(arrays) if array.nbytes)
        self._begins = [begin for begin, _ in places]
        self._order = [i for _, i in places]
        self._ends = list(accumulate((at + arrays[i].nbytes for at, i in places), max))

    def allow(self, output: np.ndarray, over: int) -> bool:
        """Whether steps may write to a dense array: no feed lies in its memory, but for feed
        `over`, -1 for none, if that is the same array.
        """
        begin = address(output)
        first = bisect_left(self._begins, begin)
        last = bisect_left(self._begins, begin + output.nbytes)
        if first and self._ends[first - 1] > begin:
            return False
        if first == last:
            return True
        feed = self._arrays[self._order[first]]
        return (
            (last - first, self._order[first], self._begins[first]) == (1, over, begin)
            and feed.shape == output.shape
            and feed.dtype == output.dtype
        )
