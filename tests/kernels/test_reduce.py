"""reduce in every dtype, along rows and along columns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads as run_op

OPS = ("sum", "mean", "max", "min", "prod", "sumsq", "l1", "l2")
CODES = {
    **{"float64": 11, "int8": 3, "int16": 5, "int32": 6, "int64": 7},
    **{"uint8": 2, "uint16": 4, "uint32": 12, "uint64": 13},
}


def reduce(op: str, x: np.ndarray) -> np.ndarray:
    """Over axis 1."""
    square, absolute = x * x, np.abs(x)
    return {
        "sum": lambda: x.sum(1),
        "mean": lambda: x.mean(1),
        "max": lambda: x.max(1),
        "min": lambda: x.min(1),
        "prod": lambda: x.prod(1),
        "sumsq": lambda: square.sum(1),
        "l1": lambda: absolute.sum(1),
        "l2": lambda: np.sqrt(square.sum(1)),
    }[op]()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kernel", kernels("reduce"), ids=lambda k: k.name)
def test_f32(kernel, op):
    rng = np.random.default_rng(4)
    eps = np.finfo(np.float32).eps
    shapes = [(3, n, 1) for n in (1, 3, 15, 16, 17, 64, 65, 129, 1000, 9000)]
    shapes += [(2, n, inner) for n in (1, 5, 65, 200) for inner in (2, 15, 16, 17, 70)] + [
        (600, 100, 1)
    ]
    for outer, n, inner in shapes:
        x = (rng.standard_normal((outer, n, inner)) + 0.5).astype(np.float32)
        y = np.zeros((outer, inner), np.float32)
        (y,) = run_op("reduce", kernel, x=x, y=y, op=op, dtype=1, outer=outer, n=n, inner=inner)
        exact = x.astype(np.float64)
        if op in ("max", "min"):
            np.testing.assert_array_equal(y, reduce(op, exact))
        elif op == "prod":
            np.testing.assert_allclose(y, reduce(op, exact), rtol=eps * (n + 2), atol=1e-37)
        else:  # blocks of 64 terms per lane, and their sums: terms of the absolute sum
            terms = reduce("sumsq" if op in ("sumsq", "l2") else "l1", exact)
            bound = (
                eps
                * (70 + n / 64)
                * (terms / n if op == "mean" else np.sqrt(terms) if op == "l2" else terms)
            )
            assert (np.abs(y - reduce(op, exact)) <= bound).all(), (outer, n, inner)


@pytest.mark.parametrize("kernel", kernels("reduce"), ids=lambda k: k.name)
@pytest.mark.parametrize("inner", [1, 20])
def test_special_values(kernel, inner):
    n = 200
    x = np.zeros((1, n, inner), np.float32)
    for at in (0, 70, n - 1):
        for value in (np.nan, np.inf, -np.inf):
            x[...] = 1
            x[0, at] = value
            for op in ("sum", "max", "min"):
                (y,) = run_op(
                    "reduce",
                    kernel,
                    x=x,
                    y=np.zeros(inner, np.float32),
                    op=op,
                    dtype=1,
                    outer=1,
                    n=n,
                    inner=inner,
                )
                np.testing.assert_array_equal(y, reduce(op, x)[0])
    for op, value in (("sum", 0), ("max", -np.inf), ("min", np.inf), ("prod", 1), ("mean", np.nan)):
        y = np.zeros(inner, np.float32)
        (y,) = run_op("reduce", kernel, x=x[:, :0], y=y, op=op, dtype=1, outer=1, n=0, inner=inner)
        np.testing.assert_array_equal(y, np.full(inner, value))


@pytest.mark.parametrize(
    "n, inner", [(7, 1), (40, 1), (256, 1), (1000, 1), (7, 5), (1000, 7), (7, 40), (9, 600)]
)
@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("kernel", kernels("reduce"), ids=lambda k: k.name)
def test_other_dtypes(kernel, dtype, n, inner):
    """Integers wrap; their means are cut towards zero."""
    rng = np.random.default_rng(5)
    integral = dtype != "float64"
    for op in OPS[: -1 if integral else None]:
        x = rng.integers(0 if dtype.startswith("u") else -9, 10, (3, n, inner)).astype(dtype)
        given = {"y": x[:, 0], "op": op, "dtype": CODES[dtype], "outer": 3, "inner": inner}
        (y,) = run_op("reduce", kernel, x=x, n=n, **given)
        expected = reduce(op, x.astype(np.int64) if integral else x)
        expected = np.trunc(expected).astype(np.int64).astype(dtype) if integral else expected
        np.testing.assert_allclose(y, expected, rtol=0 if integral else 2e-16 * n)
        (y,) = run_op("reduce", kernel, x=x[:, :0], n=0, **given)
        limits = np.iinfo(dtype) if integral else None
        nothing = {
            "max": limits.min if integral else -np.inf,
            "min": limits.max if integral else np.inf,
            "mean": 0 if integral else np.nan,
        }
        np.testing.assert_array_equal(y, nothing.get(op, op == "prod"))


@pytest.mark.parametrize("n, inner", [(7, 1), (40, 1), (200, 1), (7, 3)])
@pytest.mark.parametrize("kernel", kernels("reduce"), ids=lambda k: k.name)
def test_f64_special_values(kernel, n, inner):
    for at in (0, 3, n - 1):
        for value in (np.nan, np.inf, -np.inf):
            x = np.ones((1, n, inner))
            x[0, at] = value
            for op in OPS[:4]:
                given = {"y": x[:, 0], "op": op, "dtype": 11, "outer": 1, "n": n, "inner": inner}
                (y,) = run_op("reduce", kernel, x=x, **given)
                np.testing.assert_array_equal(y, reduce(op, x))


@pytest.mark.parametrize("inner", [1, 3])
@pytest.mark.parametrize("kernel", kernels("reduce"), ids=lambda k: k.name)
def test_long_sums_of_f64(kernel, inner):
    """Terms that are rounded the same way all along: added one by one they are 60,000 ulp off."""
    n = 1_000_000
    x, wanted = np.full((1, n, inner), 0.1), math.fsum([0.1] * n)
    given = {"y": x[:, 0], "op": "sum", "dtype": 11, "outer": 1, "n": n, "inner": inner}
    (y,) = run_op("reduce", kernel, x=x, **given)
    assert (np.abs(y - wanted) <= np.finfo(np.float64).eps * (64 + n / 64) * wanted).all()


@pytest.mark.parametrize("kernel", kernels("reduce"), ids=lambda k: k.name)
def test_bool(kernel):
    x = np.array([[0, 0], [0, 1], [1, 1]], bool)
    for op, expected in (("max", [0, 1, 1]), ("min", [0, 0, 1])):
        given = {"y": x[:, 0], "op": op, "dtype": 9, "outer": 3, "inner": 1}
        (y,) = run_op("reduce", kernel, x=x, n=2, **given)
        np.testing.assert_array_equal(y, expected)
        (y,) = run_op("reduce", kernel, x=x[:, :0], n=0, **given)
        np.testing.assert_array_equal(y, op == "min")
