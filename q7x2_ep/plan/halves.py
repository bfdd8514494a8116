"""Which weights are numbers of 16 bits, whatever the dtype that a model gives them.

Many models are trained and published in bfloat16 or float16, and exported in float32; those in 16
bits are computed in float32 (passes/widen.py). Such weights are packed in 16 bits: the same
numbers, half the memory, and half of what a product of few rows reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.dtypes import BFLOAT16, FLOAT, FLOAT16
from q7x2_ep.files import give_back
from q7x2_ep.ops.lazy import Widened

SAMPLE = 256  # elements that show what nearly all other weights are
CHUNK = 1 << 16  # that are looked at in one go
MAGNITUDE = 0x7FFFFFFF
MOST_F16, LEAST_NORMAL_F16 = (
    int(np.float32(value).view(np.uint32)) for value in (65504.0, 2.0**-14)
)


def narrowest(arrays: Sequence[np.ndarray]) -> int:
    """BFLOAT16 or FLOAT16 where all elements of float32 arrays are exact in it, else FLOAT. Pages
    of mapped files that have been read to the end are given back.
    """
    declared = {each.halves.dtype if isinstance(each, Widened) else None for each in arrays}
    if len(declared) == 1 and None not in declared and all(map(_is_finite, arrays)):
        return dtypes.from_numpy(*declared)
    arrays = list(map(np.asarray, arrays))
    fits = {BFLOAT16: True, FLOAT16: True}
    for chunk in _chunks(arrays):
        bits = chunk.view(np.uint32)
        used = int(np.bitwise_or.reduce(bits))
        fits[BFLOAT16] = fits[BFLOAT16] and used & 0xFFFF == 0
        fits[FLOAT16] = fits[FLOAT16] and used & 0x1FFF == 0 and _in_range_of_f16(chunk)
        if not any(fits.values()):
            return FLOAT
    for array in arrays:
        give_back(array)
    return next(dtype for dtype, fit in fits.items() if fit)


def _is_finite(widened: Widened) -> bool:
    bits = widened.halves.ravel(order="K").view(np.uint16)
    infinity = widened.halves.dtype.type(np.inf).view(np.uint16)
    return all(
        int((bits[first : first + CHUNK] & 0x7FFF).max()) < infinity
        for first in range(0, bits.size, CHUNK)
    )


def _in_range_of_f16(chunk: np.ndarray) -> bool:
    """Of numbers of no more than 11 bits; infinities and NaN are not."""
    magnitude = chunk.view(np.uint32) & MAGNITUDE
    if int(magnitude.max(initial=0)) > MOST_F16:
        return False
    multiples = np.ldexp(chunk[magnitude < LEAST_NORMAL_F16], 24)
    return bool((multiples == np.rint(multiples)).all())


def _chunks(arrays: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    for array in arrays:
        yield array.flat[:SAMPLE]
        flat = array.ravel(order="K")
        for first in range(0, flat.size, CHUNK):
            yield flat[first : first + CHUNK]
