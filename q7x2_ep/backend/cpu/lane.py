"""The short way for a run with the shapes of the run before: only that is left to be checked.

What is small is copied, feeds to where the steps read them and results from where they were
written: numpy copies 16 KB in the 0.2 us that an address takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy import ndarray

from q7x2_ep.backend.cpu.feeds import Feeds
from q7x2_ep.backend.cpu.library import Context, Launch, address
from q7x2_ep.backend.cpu.outputs import Outputs
from q7x2_ep.plan.encode import Encoded

COPIED_BYTES = 1 << 14  # and fewer; of one array


class Lane:
    """All steps of a bound context. arrays, outputs: those of a run; what they are, shapes and
    dtypes, holds for all runs through here.
    """

    def __init__(
        self,
        context: Context,
        encoded: Encoded,
        arrays: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        memory: Outputs,
    ):
        slots = [_slot(array) for array in arrays]
        self._results = [_slot(array) for array in outputs]
        self._launch = Launch(context, 0, len(encoded.steps), slots, self._results)
        feeds = [
            (value.name, array.dtype, array.shape, slot, i)
            for i, (value, array, slot) in enumerate(zip(encoded.inputs, arrays, slots))
        ]
        self._copied = [feed[:4] for feed in feeds if arrays[feed[4]].nbytes <= COPIED_BYTES]
        self._read = [feed for feed in feeds if arrays[feed[4]].nbytes > COPIED_BYTES]
        read = [feed[4] for feed in self._read]
        self._over = [read.index(i) if i in read else -1 for i in encoded.over]  # of those
        self._outputs = [(each.shape, each.dtype, each.nbytes > COPIED_BYTES) for each in outputs]
        self._made = [(i, *each) for i, (*each, is_large) in enumerate(self._outputs) if is_large]
        self._small = [(i, self._results[i]) for i, each in enumerate(self._outputs) if not each[2]]
        self._inputs = len(feeds)
        self._memory = memory

    def run(
        self, feed: Mapping[str, Any], into: Sequence[Optional[np.ndarray]]
    ) -> Optional[list[np.ndarray]]:
        """The outputs, or None for a feed that is not dense arrays of these dtypes and shapes.
        into: per output, if any, an array to write it to, or None.

        Raises: StatusError.
        """
        if len(feed) != self._inputs or (into and not self._fit(into)):
            return None
        launch, get = self._launch, feed.get  # a defaultdict makes no default of it
        for name, dtype, shape, slot in self._copied:
            array = get(name)
            if type(array) is not ndarray or array.dtype is not dtype or array.shape != shape:
                return None
            slot[...] = array
        for name, dtype, shape, _, i in self._read:
            array = get(name)
            if type(array) is not ndarray or array.dtype is not dtype:
                return None
            flags = array.flags
            if array.shape != shape or not (flags.c_contiguous and flags.aligned):
                return None
            launch.sources[i] = address(array)
        self._memory.next_run()
        if not self._made:
            launch.run()
            if into:
                return list(map(_result, self._results, into))
            return [slot.copy() for slot in self._results]
        outputs: list[Any] = [*into] if into else [None] * len(self._results)
        feeds = Feeds([feed[name] for name, *_ in self._read]) if into else None
        for i, shape, dtype in self._made:
            if outputs[i] is None:
                try:
                    outputs[i] = self._memory.array(shape, dtype)
                except MemoryError:
                    return None
            elif feeds and not feeds.allow(outputs[i], self._over[i]):
                return None
            launch.targets[i] = address(outputs[i])
        launch.run()
        for i, slot in self._small:
            outputs[i] = _result(slot, outputs[i])
        return outputs

    def _fit(self, into: Sequence[Optional[np.ndarray]]) -> bool:
        """Whether results can be written there, large ones by the steps themselves."""
        for array, (shape, dtype, is_large) in zip(into, self._outputs):
            if array is None:
                continue
            flags = array.flags
            if array.dtype is not dtype or array.shape != shape or not flags.writeable:
                return False
            if is_large and not (flags.c_contiguous and flags.aligned):
                return False
        return True


def _result(slot: np.ndarray, into: Optional[np.ndarray]) -> np.ndarray:
    """A copy of what is in a slot."""
    if into is None:
        return slot.copy()
    into[...] = slot
    return into


def _slot(array: np.ndarray) -> np.ndarray:
    """Room for a copy, where it is small."""
    if array.nbytes > COPIED_BYTES:
        return np.empty(0, array.dtype)
    return np.empty(array.shape, array.dtype)
