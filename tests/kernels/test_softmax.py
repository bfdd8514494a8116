"""softmax against float64, along rows and along columns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads as run_op

EPS = np.finfo(np.float32).eps
TINY = 2e-38  # results below are flushed to zero


def softmax(x: np.ndarray, log: bool) -> np.ndarray:
    """Over axis 1 in float64."""
    with np.errstate(all="ignore"):
        z = x.astype(np.float64)
        z = z - z.max(1, keepdims=True)
        e = np.exp(z)
        return z - np.log(e.sum(1, keepdims=True)) if log else e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("log", [0, 1])
@pytest.mark.parametrize("kernel", kernels("softmax"), ids=lambda k: k.name)
def test_softmax(kernel, log):
    rng = np.random.default_rng(1)
    shapes = [(3, n, 1) for n in (1, 3, 4, 7, 15, 16, 17, 31, 64, 65, 300)]
    shapes += [(2, n, inner) for n in (1, 6, 40) for inner in (2, 15, 16, 17, 70)] + [
        (700, 33, 1),
        (2, 300, 100),
        (40, 300, 7),  # few columns, made rows
        (2, 700, 7),  # and too many elements for that
    ]
    for outer, n, inner in shapes:
        x = (rng.standard_normal((outer, n, inner)) * 6).astype(np.float32)
        (y,) = run_op("softmax", kernel, x=x, y=x, dtype=1, outer=outer, n=n, inner=inner, log=log)
        expected, span = softmax(x, bool(log)), np.ptp(x)
        # x - max rounds to eps/2 of itself; e and 1/sum add a few eps, the partial sums n/64 more
        relative = EPS * (4 + span / 2 + n / 64)
        error = np.abs(y - expected)
        assert (error <= (relative + span * EPS if log else relative * expected + TINY)).all(), (
            outer,
            n,
            inner,
        )
        (in_place,) = run_op(
            "softmax",
            kernel,
            x=x,
            y="x",
            dtype=1,
            outer=outer,
            n=n,
            inner=inner,
            log=log,
            threads=[1],
        )
        assert in_place.tobytes() == y.tobytes()


@pytest.mark.parametrize("inner", [1, 3, 20])
@pytest.mark.parametrize("kernel", kernels("softmax"), ids=lambda k: k.name)
def test_special_values(kernel, inner):
    for column in (
        [-np.inf, 0, 1],
        [-np.inf] * 3,
        [np.inf, 0, 1],
        [np.nan, 0, 1],
        [1, np.nan, -np.inf],
        [-3e38, 3e38, 0],
    ):
        x = np.tile(np.array(column * 9, np.float32)[None, :, None], (2, 1, inner))
        for log in (0, 1):
            (y,) = run_op("softmax", kernel, x=x, y=x, dtype=1, outer=2, n=27, inner=inner, log=log)
            expected = softmax(x, bool(log))
            with np.errstate(over="ignore"):
                np.testing.assert_allclose(y, expected.astype(np.float32), rtol=8 * EPS, atol=TINY)


def test_empty():
    x = np.zeros((0, 4, 1), np.float32)
    run_op("softmax", kernels("softmax")[0], x=x, y=x, dtype=1, outer=0, n=4, inner=1, log=0)


@pytest.mark.parametrize("log", [0, 1])
def test_f64(log):
    rng = np.random.default_rng(2)
    for outer, n, inner in ((3, 7, 1), (2, 40, 5), (1, 1, 3), (2, 0, 3)):
        x = rng.standard_normal((outer, n, inner)) * 6
        if n > 30:
            x[0, :, 0] = -np.inf
            x[0, 3, 1], x[0, 4, 2] = np.nan, np.inf
        given = {"dtype": 11, "outer": outer, "n": n, "inner": inner, "log": log}
        (y,) = run_op("softmax", x=x, y=x, **given)
        if n:
            np.testing.assert_allclose(y, softmax(x, bool(log)), rtol=1e-13, atol=1e-300)
        (in_place,) = run_op("softmax", x=x, y="x", threads=[1], **given)
        assert in_place.tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype, code", [(np.float32, 1), (np.float64, 11)])
def test_hardmax(dtype, code):
    rng = np.random.default_rng(3)
    shapes = [(3, 7, 1), (2, 9, 5), (1, 1, 3), (2, 0, 3), (0, 4, 1), (300, 70, 1), (3, 40, 130)]
    for outer, n, inner in shapes:
        x = rng.integers(-2, 3, (outer, n, inner)).astype(dtype)
        x[..., :1][rng.random((outer, n, 1)) < 0.1] = np.nan
        (y,) = run_op("hardmax", x=x, y=x, dtype=code, outer=outer, n=n, inner=inner)
        expected = np.zeros_like(x)
        if n:
            np.put_along_axis(expected, x.argmax(1, keepdims=True), 1, 1)
        np.testing.assert_array_equal(y, expected)
