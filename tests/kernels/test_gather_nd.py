"""gather_nd and scatter_nd, which share their index tuples."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import DATA_FAULT, StatusError
from tests.kernels.harness import padded
from tests.kernels.harness import run_threads as run_op


def gather_nd(x: np.ndarray, indices: np.ndarray, batch_dims: int) -> np.ndarray:
    depth = indices.shape[-1]
    dims, inner = x.shape[batch_dims : batch_dims + depth], x.shape[batch_dims + depth :]
    given = {
        "batch": int(np.prod(x.shape[:batch_dims])),
        "n": int(np.prod(indices.shape[batch_dims:-1])),
    }
    given.update(depth=depth, dims=padded(dims), inner_bytes=int(np.prod(inner)) * x.itemsize)
    return run_op(
        "gather_nd",
        x=x,
        indices=indices,
        y=np.zeros((*indices.shape[:-1], *inner), x.dtype),
        **given,
    )[0]


def test_gather_nd():
    rng = np.random.default_rng(16)
    x = rng.standard_normal((3, 4, 5, 6)).astype(np.float32)
    for batch_dims in (0, 1, 2):
        for depth in range(1, 5 - batch_dims):
            dims = x.shape[batch_dims : batch_dims + depth]
            shape = (*x.shape[:batch_dims], 7)
            indices = np.stack([rng.integers(-d, d, shape) for d in dims], -1)
            expected = np.empty((*shape, *x.shape[batch_dims + depth :]), np.float32)
            for at in np.ndindex(*shape):
                expected[at] = x[(*at[:batch_dims], *indices[at])]
            np.testing.assert_array_equal(gather_nd(x, indices, batch_dims), expected)


def scatter_nd(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, y=None) -> np.ndarray:
    depth = indices.shape[-1]
    inner = int(np.prod(x.shape[depth:])) * x.itemsize
    given = {
        "n": int(np.prod(indices.shape[:-1])),
        "depth": depth,
        "dims": padded(x.shape[:depth]),
        "inner_bytes": inner,
    }
    threads = [1] if y else [1, 2, 3, 8]
    return run_op(
        "scatter_nd", threads=threads, x=x, indices=indices, updates=updates, y=y or x, **given
    )[0]


def test_scatter_nd():
    rng = np.random.default_rng(17)
    for shape, depth, n in (((5, 6), 1, 8), ((5, 6), 2, 9), ((3, 4, 5), 2, 0), ((700, 300), 1, 50)):
        x = rng.standard_normal(shape).astype(np.float32)
        indices = np.stack([rng.integers(-d, d, n) for d in shape[:depth]], -1)
        updates = rng.standard_normal((n, *shape[depth:])).astype(np.float32)
        expected = x.copy()
        for at, update in zip(indices, updates):
            expected[tuple(at)] = update
        np.testing.assert_array_equal(scatter_nd(x, indices, updates), expected)
        np.testing.assert_array_equal(scatter_nd(x, indices, updates, y="x"), expected)


def test_out_of_range():
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(StatusError) as error:
        gather_nd(x, np.array([[0, 0], [2, -5]]), 0)
    assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, -5, 4)
    with pytest.raises(StatusError) as error:
        scatter_nd(x, np.array([[0], [3]]), np.ones((2, 4), np.float32))
    assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, 3, 3)
