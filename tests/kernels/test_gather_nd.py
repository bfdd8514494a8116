"""gather_nd against numpy's indexing."""

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


def test_out_of_range():
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(StatusError) as error:
        gather_nd(x, np.array([[0, 0], [2, -5]]), 0)
    assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, -5, 4)
