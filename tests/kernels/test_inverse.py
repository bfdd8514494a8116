"""inverse: inverses and determinants against numpy in float64; singular matrices, empty ones."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import run_threads

CODES = {np.float32: 1, np.float64: 11}


def run(x: np.ndarray, is_det: bool) -> np.ndarray:
    outer, n, _ = x.shape
    return run_threads(
        "inverse",
        x=x,
        y=np.zeros(outer if is_det else x.shape, x.dtype),
        room=np.zeros(8 * n * max(n, 8)),  # of 8 threads
        threads=(1, 3, 8),
        dtype=CODES[x.dtype.type],
        outer=outer,
        n=n,
        is_det=int(is_det),
    )[0]


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("outer, n", [(1, 1), (300, 2), (7, 3), (50, 5), (9, 16), (2, 67)])
def test_random_matrices(dtype: type, outer: int, n: int) -> None:
    random = np.random.default_rng(n)
    x = (random.standard_normal((outer, n, n)) / np.sqrt(n)).astype(dtype)
    exact = x.astype(float)
    bound = n * np.finfo(dtype).eps * np.linalg.cond(exact)
    inverse = np.linalg.inv(exact)
    error = np.linalg.norm(run(x, False) - inverse, axis=(1, 2))
    assert (error <= bound * np.linalg.norm(inverse, axis=(1, 2))).all()
    determinant = np.linalg.det(exact)
    assert (np.abs(run(x, True) - determinant) <= bound * np.abs(determinant)).all()


@pytest.mark.parametrize("dtype", CODES)
def test_special_matrices(dtype: type) -> None:
    order = np.eye(4, dtype=dtype)[[2, 0, 3, 1]]  # rows have to be swapped
    singular, unknown = np.ones((4, 4), dtype), np.eye(4, dtype=dtype)
    unknown[2, 1] = np.nan
    x = np.stack([order, singular, unknown, np.zeros((4, 4), dtype), np.diag([2, -4, 0.5, 1])])
    inverses = run(x.astype(dtype), False)
    np.testing.assert_array_equal(inverses[0], order.T)
    np.testing.assert_array_equal(inverses[4], np.linalg.inv(x[4]))
    assert not any(np.isfinite(each).all() for each in inverses[1:4])
    determinants = run(x.astype(dtype), True)
    np.testing.assert_array_equal(determinants, [-1, 0, np.nan, 0, -4])
    np.testing.assert_array_equal(run(np.zeros((3, 0, 0), dtype), True), np.ones(3))
    for is_det, shape in ((False, (0, 3, 3)), (True, (0,))):
        assert run(np.zeros((0, 3, 3), dtype), is_det).shape == shape
