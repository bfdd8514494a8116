"""The short way for a run with the shapes of the run before: only that is left to be checked.

What is small is copied, feeds to where the steps read them and results from where they were
written: numpy copies 16 KB in the 0.2 us that an address takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep.backend.cpu.library import Context, Launch, address
from q7x2_ep.ir.core import Value

COPIED_BYTES = 1 << 14  # and fewer; of one array


class Lane:
    """All steps of a bound context. arrays, outputs: those of a run; what they are, shapes and
    dtypes, holds for all runs through here.
    """

    def __init__(
        self,
        context: Context,
        steps: int,
        inputs: Sequence[Value],
        arrays: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ):
        slots = [_slot(array) for array in arrays]
        self._results = [_slot(array) for array in outputs]
        self._launch = Launch(context, 0, steps, slots, self._results)
        feeds = [
            (value.name, array.dtype, array.shape, slot, i)
            for i, (value, array, slot) in enumerate(zip(inputs, arrays, slots))
        ]
        self._copied = [feed[:4] for feed in feeds if arrays[feed[4]].nbytes <= COPIED_BYTES]
        self._read = [feed for feed in feeds if arrays[feed[4]].nbytes > COPIED_BYTES]
        self._made = [
            (i, array.shape, array.dtype)
            for i, array in enumerate(outputs)
            if array.nbytes > COPIED_BYTES
        ]
        self._inputs = len(feeds)

    def run(
        self, feed: Mapping[str, Any], into: Sequence[Optional[np.ndarray]]
    ) -> Optional[list[np.ndarray]]:
        """The outputs, or None for a feed that is not dense arrays of these dtypes and shapes.
        into: per output, if any, a small array to copy it to, or None.

        Raises: StatusError.
        """
        if len(feed) != self._inputs or (into and not all(map(_takes, into, self._results))):
            return None
        launch = self._launch
        try:
            for name, dtype, shape, slot in self._copied:
                array = feed[name]
                if type(array) is not np.ndarray or array.dtype is not dtype:
                    return None
                if array.shape != shape:
                    return None
                slot[...] = array
            for name, dtype, shape, _, i in self._read:
                array = feed[name]
                if type(array) is not np.ndarray or array.dtype is not dtype:
                    return None
                flags = array.flags
                if array.shape != shape or not (flags.c_contiguous and flags.aligned):
                    return None
                launch.sources[i] = address(array)
        except KeyError:
            return None
        if not self._made and not into:
            launch.run()
            return [slot.copy() for slot in self._results]
        outputs = self._results.copy()
        for i, shape, dtype in self._made:
            try:
                outputs[i] = np.empty(shape, dtype)
            except MemoryError:
                return None
            launch.targets[i] = address(outputs[i])
        launch.run()
        for i, slot in enumerate(self._results):
            given = into[i] if into else None
            if given is not None:
                given[...] = slot
                outputs[i] = given
            elif outputs[i] is slot:
                outputs[i] = slot.copy()
        return outputs


def _takes(given: Optional[np.ndarray], slot: np.ndarray) -> bool:
    """Whether a result can be copied there."""
    return given is None or (
        given.shape == slot.shape
        and given.dtype == slot.dtype
        and given.nbytes <= COPIED_BYTES
        and given.flags.writeable
    )


def _slot(array: np.ndarray) -> np.ndarray:
    """Room for a copy, where it is small."""
    if array.nbytes > COPIED_BYTES:
        return np.empty(0, array.dtype)
    return np.empty(array.shape, array.dtype)
