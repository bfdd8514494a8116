"""View: a tensor as an offset and strides into the storage of another; what movement ops are made
of.

Transpose, Reshape, Slice, Split, Expand and their kin copy nothing: they are views. A step that
takes strides (attention, copy, matmul, a GEMM's rows) reads the view; any other step has it made
contiguous first (plan/build.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Optional

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim


class View(NamedTuple):
    """Element (i0, i1, ..) of the tensor is element offset + sum(i * strides) of `storage`. Units:
    elements.
    """

    storage: Value
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @staticmethod
    def whole(storage: Value) -> View:
        """All of a contiguous storage."""
        return View(storage, storage.shape, contiguous_strides(storage.shape))

    def is_contiguous(self) -> bool:
        """Dense, row major; the offset is free, and the strides of what has no elements are."""
        wanted = contiguous_strides(self.shape)
        return (
            self.strides == wanted
            or 0 in self.shape
            or all(d == 1 or s == w for d, s, w in zip(self.shape, self.strides, wanted))
        )

    def is_channels_last(self) -> bool:
        """Of a tensor (N, C, ..): whether the channels of a pixel lie side by side, and no line."""
        return len(self.shape) > 2 and self.strides[1] == 1 and not self.is_contiguous()

    def channels_last(self) -> View:
        """(N, C, ..) seen as (N, .., C)."""
        return self.transpose(channels_last(len(self.shape)))

    def transpose(self, perm: tuple[int, ...]) -> View:
        return self._replace(
            shape=tuple(self.shape[p] for p in perm),
            strides=tuple(self.strides[p] for p in perm),
        )

    def slice(self, axis: int, start: Dim, size: Dim, step: int = 1) -> View:
        """`size` elements along axis: start, start + step, .. (start counts from 0, step may be
        negative).
        """
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis]
        shape[axis], strides[axis] = size, strides[axis] * step
        return self._replace(shape=tuple(shape), strides=tuple(strides), offset=offset)

    def expand(self, shape: tuple[Dim, ...]) -> Optional[View]:
        """Broadcast to `shape`; None where only run time can tell whether a dim is repeated."""
        pad = len(shape) - len(self.shape)
        strides: list[Dim] = [0] * pad
        for dim, stride, target in zip(self.shape, self.strides, shape[pad:]):
            if dim == target:
                strides.append(stride)
            elif dim == 1:
                strides.append(0)
            else:
                return None
        return self._replace(shape=tuple(shape), strides=tuple(strides))

    def reshape(self, shape: tuple[Dim, ...]) -> Optional[View]:
        """The same elements under another shape, or None where that needs a copy.

        Source dims and target dims are walked in groups of equal product, as numpy does without
        copying; inside a group the source must be mergeable: stride[i] == stride[i + 1] * shape[i +
        1].
        """
        if self.is_contiguous():
            return self._replace(shape=tuple(shape), strides=contiguous_strides(tuple(shape)))
        source = [(d, s) for d, s in zip(self.shape, self.strides) if d != 1]
        strides: list[Dim] = []
        i = 0
        group: list[int] = []  # positions in `shape` of the open group
        have: Dim = 1
        want: Dim = 1
        for position, dim in enumerate(shape):
            strides.append(0)
            if dim == 1:
                continue
            group.append(position)
            want = want * dim
            if have == 1:
                if i == len(source):
                    return None
                have, i = source[i][0], i + 1
            while have != want and i < len(source) and _exact(have, want) is None:
                if source[i - 1][1] != source[i][1] * source[i][0]:
                    return None
                have, i = have * source[i][0], i + 1
            if have == want:
                stride = source[i - 1][1]
                for p in reversed(group):
                    strides[p] = stride
                    stride = stride * shape[p]
                group, have, want = [], 1, 1
            elif _exact(have, want) is None:
                return None
        if group or i < len(source):
            return None
        return self._replace(shape=tuple(shape), strides=tuple(strides))


@lru_cache(maxsize=1 << 12)
def contiguous_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Of a tensor in row major order."""
    strides: list[Dim] = []
    step: Dim = 1
    for dim in reversed(shape):
        strides.append(step)
        step = step * dim
    return tuple(reversed(strides))


def channels_last(ndim: int) -> tuple[int, ...]:
    """The permutation of (N, C, ..) to (N, .., C)."""
    return (0, *range(2, ndim), 1)


def channels_first(ndim: int) -> tuple[int, ...]:
    """The permutation of (N, .., C) to (N, C, ..)."""
    return (0, ndim - 1, *range(1, ndim - 1))


def channels_last_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Those of a tensor (N, C, ..) that is stored as (N, .., C)."""
    strides = contiguous_strides(tuple(shape[p] for p in channels_last(len(shape))))
    return (strides[0], strides[-1], *strides[1:-1])


def joined(
    shape: tuple[Dim, ...], strides: Sequence[tuple[Dim, ...]]
) -> tuple[tuple[Dim, ...], list[tuple[Dim, ...]]]:
    """The same elements in fewer dims: none of 1, and neighbours as one where all operands walk
    them as one.
    """
    dims: list[tuple[Dim, ...]] = []  # the size, then a stride of each operand
    for size, *steps in zip(shape, *strides):
        if size == 1:
            continue
        if dims and all(outer == step * size for outer, step in zip(dims[-1][1:], steps)):
            size = dims.pop()[0] * size
        dims.append((size, *steps))
    shape, *rest = zip(*dims or [(1,) * (1 + len(strides))])
    return shape, rest


def _exact(have: Dim, want: Dim) -> Optional[Dim]:
    """have / want where that is exact, else None: the open group of target dims still fits the
    source dim.
    """
    quotient = have // want if want != 0 else 0
    return quotient if quotient * want == have else None
