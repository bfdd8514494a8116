"""What one run does besides computing: where it writes, when it gives up, what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np

from q7x2_ep import errors


class Call:
    """outputs: arrays to write to, None where one is to be made; stopped: asked every few steps
    whether to give up; step_ns: takes the nanoseconds of each step.
    """

    def __init__(
        self,
        outputs: Sequence[Optional[np.ndarray]] = (),
        stopped: Optional[Callable[[], bool]] = None,
        step_ns: Optional[list[int]] = None,
    ):
        self.outputs, self.stopped, self.step_ns = outputs, stopped, step_ns

    def go_on(self) -> None:
        """Raises: RunTerminated where the run is to end."""
        if self.stopped is not None and self.stopped():
            raise errors.RunTerminated("Exiting due to terminate flag being set to true.")

    def of_part(self) -> Call:
        """For a part of the run, which makes its own outputs."""
        return Call((), self.stopped, self.step_ns)


def check_output(name: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raises: FeedError, ShapeError where an array cannot take an output of this type."""
    if array.dtype != dtype:
        raise errors.FeedError(
            f"[output {name!r}] Unexpected output data type. Actual: ({array.dtype}) , expected: "
            f"({dtype})"
        )
    if array.shape != shape:
        raise errors.ShapeError(
            f"Got invalid dimensions for output: {name}: given a buffer of shape {array.shape}, "
            f"expected {shape} for this feed"
        )
    if not array.flags.writeable:
        raise errors.FeedError(f"[output {name!r}] expected memory to write to, given read-only")
