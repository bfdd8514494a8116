"""topk against a stable sort: order, ties, NaN, strides, threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import run_threads as run_op

CODES = {"float32": 1, "int32": 6, "int64": 7, "float64": 11}


def wanted(x: np.ndarray, k: int, largest: bool, last: bool) -> np.ndarray:
    """Indices (outer, k, inner) by sorting (unordered first, value, position)."""
    n = x.shape[1]
    place = np.arange(n).reshape(1, n, 1) + np.zeros_like(x, int)
    value = np.nan_to_num(x.astype(np.float64), nan=0.0)
    keys = (-place if last else place, -value if largest else value, ~np.isnan(x.astype(float)))
    return np.lexsort(keys, axis=1)[:, :k]


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize(
    "shape, k", [((3, 1, 1), 1), ((2, 9, 1), 4), ((5, 40, 3), 40), ((1, 700, 2), 1)]
)
@pytest.mark.parametrize("largest, last", [(1, 0), (0, 0), (1, 1)])
def test_topk(dtype, shape, k, largest, last):
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
        **args,
    )
    order = wanted(x, k, bool(largest), bool(last))
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
