"""The accuracy rule for all outputs of a model over many feeds (see q7x2_ep/compare.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.compare import ERROR_FACTOR, rms, rms_error

EPS = dtypes.epsilon(dtypes.FLOAT)
FEW = 2048  # elements: of fewer the errors are luck, and are pooled over the feeds
OWN_BOUND = 16 * EPS  # relative to the output's scale, where onnxruntime does not run the model
# Of the scale: two evaluations that are further apart differ by more than rounding. Either one is
# right where onnxruntime is wrong, as for masked rows of Attention, or where float64 rounds to
# another integer on its way, as in T5's buckets of distances: 8 log(16 / 8) / log 16 = 2.
JUMP = 1e-4
HALF_JUMP = 8  # the same in eps of a 16-bit output: onnxruntime rounds between nodes


class Accuracy:
    """Collects outputs feed by feed; `check` asserts that the rule holds for every output."""

    def __init__(self) -> None:
        self._few: dict[tuple[int, bool], list[list[np.ndarray]]] = {}

    def add(
        self,
        true: Sequence[np.ndarray],
        given: Sequence[np.ndarray],
        reference: Optional[Sequence[np.ndarray]],
    ) -> None:
        """One feed: evaluated in float64, by us, and by onnxruntime where it runs the model."""
        for i, (exact, ours) in enumerate(zip(true, given)):
            assert ours.shape == exact.shape, (i, ours.shape, exact.shape)
            arrays = [exact, ours] + ([reference[i]] if reference else [])
            if exact.size < FEW:
                parts = self._few.setdefault((i, bool(reference)), [])
                parts.append([array.ravel() for array in arrays])
            else:
                _assert_accurate(i, *arrays)

    def is_luck(self) -> bool:
        """Whether some output has few elements in all feeds that onnxruntime ran."""
        pools = [parts for (_, has_reference), parts in self._few.items() if has_reference]
        return any(sum(part[0].size for part in parts) < FEW for parts in pools)

    def check(self) -> None:
        for (i, _), parts in self._few.items():
            _assert_accurate(i, *(np.concatenate(column) for column in zip(*parts)))
        self._few = {}


def _assert_accurate(
    output: int, true: np.ndarray, ours: np.ndarray, theirs: Optional[np.ndarray] = None
) -> None:
    scale = rms(true)
    allowed, eps, jump = OWN_BOUND * scale, EPS, JUMP
    dtype = dtypes.from_numpy(ours.dtype)
    if dtype in dtypes.HALVES:  # computed in float32, rounded once
        eps = dtypes.epsilon(dtype)
        allowed, jump = eps * scale, HALF_JUMP * eps
    theirs_error = np.inf if theirs is None else rms_error(theirs, true)
    error = rms_error(ours, true)
    if theirs_error <= jump * scale:
        allowed = max(ERROR_FACTOR * theirs_error, eps * scale)
    elif np.isfinite(theirs_error):
        error = min(error, rms_error(ours, theirs))
    assert error <= allowed, f"output {output} {true.shape}: {error} > {allowed}, scale {scale}"
