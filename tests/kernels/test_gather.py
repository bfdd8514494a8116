"""gather: every index dtype, negative indices, wide and narrow slices, faults."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import DATA_FAULT, StatusError
from tests.kernels.harness import run_threads as run_op

INDEX = {np.int32: 6, np.int64: 7}


def gather(x: np.ndarray, indices: np.ndarray, axis: int, threads=(1, 2, 3, 8)) -> np.ndarray:
    outer, inner = x.shape[:axis], x.shape[axis + 1 :]
    given = {"outer": int(np.prod(outer)), "axis_dim": x.shape[axis], "n": indices.size}
    given.update(
        inner_bytes=int(np.prod(inner)) * x.itemsize, index_dtype=INDEX[indices.dtype.type]
    )
    y = np.zeros((*outer, *indices.shape, *inner), x.dtype)
    return run_op("gather", threads=threads, x=x, indices=indices, y=y, **given)[0]


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_gather(dtype, index):
    rng = np.random.default_rng(13)
    x = rng.integers(0, 100, (6, 9, 5)).astype(dtype)
    for axis in range(3):
        for shape in ((), (1,), (4, 3), (0,)):
            indices = rng.integers(-x.shape[axis], x.shape[axis], shape).astype(index)
            np.testing.assert_array_equal(gather(x, indices, axis), np.take(x, indices, axis))


def test_embedding():
    x = np.arange(500 * 192, dtype=np.float32).reshape(500, 192)
    indices = np.random.default_rng(14).integers(0, 500, (3, 300))
    np.testing.assert_array_equal(gather(x, indices, 0), x[indices])


def test_out_of_range():
    x = np.zeros((4, 2), np.float32)
    for bad in (4, -5, 2**40):
        with pytest.raises(StatusError) as error:
            gather(x, np.array([0, bad, 1]), 0)
        assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, bad, 4)
