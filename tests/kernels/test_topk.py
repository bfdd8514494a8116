"""topk against a stable sort: order, ties, NaN, strides, threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import run_threads as run_op

CODES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}


def wanted(x: np.ndarray, k: int, largest: bool, last: bool, nan_first: bool) -> np.ndarray:
    """Indices (outer, k, inner) by sorting (unordered first or last, value, position)."""
    n = x.shape[1]
    place = np.arange(n).reshape(1, n, 1) + np.zeros_like(x, int)
    order = np.unique(np.where(x == x, x, 0), return_inverse=True)[1]
    value = order.reshape(x.shape)  # ranks, which int64 holds
    keys = (
        -place if last else place,
        -value if largest else value,
        np.isnan(x.astype(float)) != nan_first,
    )
    return np.lexsort(keys, axis=1)[:, :k]


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize(
    "shape, k",
    [
        *(((3, 1, 1), 1), ((2, 9, 1), 4), ((5, 40, 3), 40), ((1, 700, 2), 1)),
        *(((300, 5, 1), 1), ((7, 99, 1), 1), ((2, 33, 130), 1), ((2, 700, 2), 5)),
    ],
)
@pytest.mark.parametrize("largest, last, nan_first", [(1, 0, 1), (0, 0, 0), (0, 0, 1), (1, 1, 1)])
def test_topk(dtype, shape, k, largest, last, nan_first):
    rng = np.random.default_rng(shape[1] + k)
    x = rng.integers(-6, 7, shape).astype(dtype)  # ties abound
    if x.dtype.kind == "f":
        x[rng.random(shape) < 0.05] = np.nan
    outer, n, inner = shape
    args = {"dtype": CODES[dtype], "outer": outer, "n": n, "inner": inner, "k": k}
    values, indices = run_op(
        "topk",
        x=x,
        values=np.zeros((outer, k, inner), dtype),
        indices=np.zeros((outer, k, inner), np.int64),
        threads=(1, 3),
        largest=largest,
        last=last,
        nan_first=nan_first,
        **args,
    )
    order = wanted(x, k, bool(largest), bool(last), bool(nan_first))
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def order(n: int, kind: str) -> np.ndarray:
    """Lines that sorting finds hard, or easy."""
    at = np.arange(n, dtype=np.float32)
    if kind == "organ pipe":
        return np.minimum(at, n - at)
    if kind == "saw":
        return at % 7
    return {"up": at, "down": -at, "same": 0 * at}[kind]


@pytest.mark.parametrize("kind", ["up", "down", "same", "saw", "organ pipe"])
@pytest.mark.parametrize("k", [5000, 4999, 900])
@pytest.mark.parametrize("largest", [0, 1])
def test_long_lines(kind, k, largest):
    check(order(5000, kind).reshape(1, -1, 1), k, largest)


@pytest.mark.parametrize("k", [9, 4])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "float64", "float32"])
def test_extremes(dtype, k, largest):
    if dtype.startswith("f"):
        x = np.array([0, -np.inf, -0.0, np.inf, np.nan, 1e-40, -1e-40, np.inf, 0], dtype)
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        x = np.array([high, low, 1, high - 1, 0, 2, low + 1, 0, high], dtype)
        check((x % x.dtype.type(9)).reshape(1, 9, 1), k, largest)
    check(x.reshape(1, 9, 1), k, largest)


def check(x: np.ndarray, k: int, largest: int) -> None:
    outer, n, inner = x.shape
    values, indices = run_op(
        "topk",
        x=x,
        values=np.zeros((outer, k, inner), x.dtype),
        indices=np.zeros((outer, k, inner), np.int64),
        dtype=CODES[x.dtype.name],
        outer=outer,
        n=n,
        inner=inner,
        k=k,
        largest=largest,
        last=0,
        nan_first=largest,
    )
    places = wanted(x, k, bool(largest), False, bool(largest))
    np.testing.assert_array_equal(indices, places)
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))
