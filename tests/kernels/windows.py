"""Convolutions and pools in the simplest form, for the tests of their kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np


class Window(NamedTuple):
    """Per spatial dim, all tuples of one length."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def outs(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit."""
        each = zip(sizes, *self)
        return tuple((n + b + a - d * (k - 1) - 1) // s + 1 for n, k, s, d, b, a in each)

    def fields(self, sizes: Sequence[int], outs: Sequence[int], ndim: int) -> dict[str, int]:
        """The fields of ops.def; dims that are not there have size 1."""
        missing = ndim - len(sizes)
        whole = zip(sizes, outs, self.kernel, self.stride, self.dilation, self.before)
        found = {}
        for axis, values in enumerate([(1, 1, 1, 1, 1, 0)] * missing + list(whole), 3 - ndim):
            small, pad = "dhw"[axis], ("front", "top", "left")[axis]
            names = (small.upper(), f"O{small.upper()}", f"k{small}", f"stride_{small}")
            found.update(zip((*names, f"dilation_{small}", f"pad_{pad}"), values))
        return found

    def taps(self, x: np.ndarray, outs: Sequence[int], fill: Any) -> Iterator[tuple]:
        """(tap, what of x it meets in every window); the spatial dims of x are its last."""
        n = len(outs)
        reach = [k * d + s for k, s, d, *_ in zip(*self)]  # enough for windows that stick out
        grow = [(max(b, 0), max(a, 0) + r) for b, a, r in zip(self.before, self.after, reach)]
        padded = np.pad(x, [(0, 0)] * (x.ndim - n) + grow, constant_values=fill)
        padded = padded[(..., *(slice(max(-b, 0), None) for b in self.before))]
        for tap in np.ndindex(*self.kernel):
            at = [
                slice(t * d, t * d + s * (out - 1) + 1, s)
                for t, d, s, out in zip(tap, self.dilation, self.stride, outs)
            ]
            yield tap, padded[(..., *at)]


def window(kernel: Sequence[int], stride: int = 1, dilation: int = 1, pad: int = 0) -> Window:
    """One of the same stride, dilation and pads in every dim."""
    values = (stride, dilation, pad, pad)
    return Window(tuple(kernel), *(tuple(value for _ in kernel) for value in values))


def convolve(x: np.ndarray, w: np.ndarray, at: Window, groups: int) -> np.ndarray:
    """x (N, C, ..) with w (M, C / groups, kernel..), in the dtype of x."""
    outs, M = at.outs(x.shape[2:]), w.shape[0]
    y = np.zeros((x.shape[0], M, *outs), x.dtype)
    for tap, part in at.taps(x, outs, 0):
        for m in range(M):
            first = m // (M // groups) * w.shape[1]
            channels = part[:, first : first + w.shape[1]]
            y[:, m] += np.einsum("nc...,c->n...", channels, w[(m, slice(None), *tap)])
    return y
