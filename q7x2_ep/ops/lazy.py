"""Constants that are made where they are packed, from what lies in the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Optional

import numpy as np

from q7x2_ep.files import give_back


class Lazy(ABC):
    """A constant that is an array to all who look at its elements."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype):
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)
        self.size = int(np.prod(shape))
        self.nbytes = self.size * dtype.itemsize

    @property
    @abstractmethod
    def whole(self) -> np.ndarray:
        """The array."""

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        return self.whole if dtype is None else self.whole.astype(dtype, copy=False)

    def __getitem__(self, index: Any) -> Any:
        return self.whole[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.whole, name)


class Joined(Lazy):
    """Matrices side by side. A plan packs the parts from where they are: to copy them first took a
    third of the time that BERT-base took to fuse, and 85 MB.
    """

    def __init__(self, parts: Sequence[np.ndarray], axis: int):
        self.parts, self.axis = parts, axis
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        super().__init__(tuple(shape), parts[0].dtype)

    @cached_property
    def whole(self) -> np.ndarray:
        return np.concatenate(self.parts, self.axis)


class Scaled(Lazy):
    """Kernels (M, ..) times a factor (M,) each. A plan multiplies what it packs: a copy of all took
    a quarter of the time that ResNet-50 with its norms took, and 100 MB.
    """

    def __init__(self, kernels: Any, factors: np.ndarray):
        """kernels: an array, or such a constant, whose factors are put together with these."""
        if isinstance(kernels, Scaled):
            with np.errstate(all="ignore"):
                kernels, factors = kernels.kernels, kernels.factors * factors
        self.kernels, self.factors = kernels, factors
        super().__init__(kernels.shape, kernels.dtype)

    @property
    def whole(self) -> np.ndarray:
        """Not kept, as nobody looks at it twice."""
        with np.errstate(all="ignore"):
            return self.kernels * self.factors.reshape(-1, *[1] * (self.ndim - 1))


class Widened(Lazy):
    """Matrices of 16 bits as float32. A plan packs them from where they are: to widen them first,
    and to find that they could be narrow, took half of the time that such models took to load, and
    twice their memory.
    """

    def __init__(self, halves: np.ndarray):
        self.halves = halves
        super().__init__(halves.shape, np.dtype(np.float32))

    @cached_property
    def whole(self) -> np.ndarray:
        wide = self.halves.astype(np.float32)
        give_back(self.halves)
        return wide

    def transpose(self, *axes: Any) -> Widened:
        return Widened(self.halves.transpose(*axes))
