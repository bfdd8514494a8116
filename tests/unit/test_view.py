"""Views against numpy: the same elements in the same places, None exactly where numpy copies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import symbol
from q7x2_ep.ir.view import View, joined

STORAGE = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)


def whole(shape=STORAGE.shape) -> View:
    return View.whole(Value("x", dtypes.INT64, shape))


def elements(view: View) -> np.ndarray:
    """What a view of STORAGE shows."""
    strides = [stride * STORAGE.itemsize for stride in view.strides]
    start = STORAGE.ravel()[view.offset :]
    return np.lib.stride_tricks.as_strided(start, view.shape, strides)


def test_whole_is_contiguous():
    assert whole().is_contiguous()
    np.testing.assert_array_equal(elements(whole()), STORAGE)


@pytest.mark.parametrize("perm", list(itertools.permutations(range(4))))
def test_transpose_then_reshape_agrees_with_numpy(perm):
    view, array = whole().transpose(perm), STORAGE.transpose(perm)
    np.testing.assert_array_equal(elements(view), array)
    shapes = [
        (120,),
        (6, 20),
        (2, 60),
        (24, 5),
        (3, 8, 5),
        (2, 3, 20),
        (2, 2, 30),
        (4, 30),
        (1, 120, 1),
    ]
    for shape in shapes:
        result = view.reshape(shape)
        numpy_copies = not np.shares_memory(array.reshape(shape), STORAGE)
        assert (result is None) == numpy_copies, f"{array.shape} {perm} to {shape}"
        if result is not None:
            np.testing.assert_array_equal(elements(result), array.reshape(shape))


def test_slice_counts_from_zero_with_any_step():
    view = whole().slice(1, 2, 3, -1).slice(3, 1, 2, 2)
    np.testing.assert_array_equal(elements(view), STORAGE[:, ::-1, :, 1:4:2])


def test_expand_repeats_dims_of_one():
    view = whole().slice(1, 0, 1).expand((7, 2, 3, 4, 5))
    np.testing.assert_array_equal(elements(view), np.broadcast_to(STORAGE[:, :1], (7, 2, 3, 4, 5)))
    assert whole().expand((2, 3, 4, 6)) is None


def test_symbolic_heads_split_and_merge():
    b, s = symbol("b"), symbol("s")
    heads = whole((b, s, 768)).reshape((b, s, 12, 64)).transpose((0, 2, 1, 3))
    assert heads.strides == (768 * s, 64, 768, 1)
    merged = heads.transpose((0, 2, 1, 3)).reshape((b * s, 768))
    assert merged.is_contiguous()
    assert heads.reshape((b, 12 * s, 64)) is None


def test_joined_dims_are_walked_as_before():
    shape, strides = (1, 2, 3, 1, 4, 5), [(9, 21, 7, 0, 1, 0), (60, 60, 20, 20, 5, 1)]
    assert joined(shape, strides) == ((6, 4, 5), [(7, 1, 0), (20, 5, 1)])
    b = symbol("b")
    assert joined((b, 1, 3), [(3, 3, 1)]) == ((b * 3,), [(1,)])
    assert joined((b, 3), [(4, 1)]) == ((b, 3), [(4, 1)])
    assert joined((1, 1), [(7, 7), (1, 1)]) == ((1,), [(1,), (1,)])
