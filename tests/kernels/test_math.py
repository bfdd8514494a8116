"""The bounds that csrc/kernels/math.h states, through the unary op, against float64."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np
import pytest

from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op

every_row = pytest.mark.parametrize("row", rows("unary"), ids=lambda row: row.name)
FLOAT = 1  # dtype code

erf, erfc = np.vectorize(math.erf, otypes=[float]), np.vectorize(math.erfc, otypes=[float])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


# reference, interval, bound in ulp
BOUNDS: dict[str, tuple[Callable, float, float, float]] = {
    "exp": (np.exp, -103.9, 88.72, 1.2),
    "log": (np.log, 0.0, 3.4e38, 1.0),
    "erf": (erf, -6.0, 6.0, 1.3),
    "tanh": (np.tanh, -20.0, 20.0, 1.4),
    "sigmoid": (sigmoid, -80.0, 80.0, 2.4),
    "silu": (lambda x: x * sigmoid(x), -80.0, 80.0, 2.4),
    "gelu": (lambda x: x * erfc(-x / math.sqrt(2)) / 2, -1.0, 20.0, 3.5),
    "gelu_tanh": (
        lambda x: x * sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
        -1.0,
        20.0,
        3.0,
    ),
    "sin": (np.sin, -math.pi, math.pi, 1.6),
    "cos": (np.cos, -1.5, 1.5, 1.6),
}


def unary(row: KernelRow, op: str, x: np.ndarray) -> np.ndarray:
    given = {"op": op, "dtype": FLOAT, "n": x.size, "alpha": 0.0, "beta": 0.0}
    return run_op("unary", row, x=x, y=np.full(x.shape, np.nan, np.float32), **given)["y"]


def samples(low: float, high: float) -> np.ndarray:
    """Floats of [low, high]: evenly spread ones, and evenly spread bit patterns."""
    bits = np.arange(0, 2**32, 200003, dtype=np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        bits = bits[(bits >= low) & (bits <= high)]
    return np.concatenate([bits, np.linspace(low, high, 30001).astype(np.float32)])


def ulps(y: np.ndarray, expected: np.ndarray) -> np.ndarray:
    smallest = np.float32(2**-126)
    unit = np.spacing(np.maximum(np.abs(expected).astype(np.float32), smallest))
    return np.abs(y - expected) / unit


@every_row
@pytest.mark.parametrize("op", BOUNDS)
def test_bounds(row: KernelRow, op: str) -> None:
    reference, low, high, bound = BOUNDS[op]
    x = samples(low, high)
    with np.errstate(divide="ignore"):
        expected = reference(x.astype(np.float64))
    finite = np.isfinite(expected)
    assert ulps(unary(row, op, x)[finite], expected[finite]).max() <= bound


@every_row
def test_gelu_far_left(row: KernelRow) -> None:
    """x Phi(x) to 40 ulp down to -5, to 4 % below, and nothing is left of it at -inf."""
    reference = BOUNDS["gelu"][0]
    x = np.linspace(-5, -1, 10001, dtype=np.float32)
    assert ulps(unary(row, "gelu", x), reference(x.astype(np.float64))).max() < 40
    x = np.linspace(-13, -5, 1001, dtype=np.float32)
    np.testing.assert_allclose(unary(row, "gelu", x), reference(x.astype(np.float64)), rtol=0.04)
    assert unary(row, "gelu", np.array([-50, -np.inf], np.float32)).tolist() == [0, 0]


@every_row
@pytest.mark.parametrize("op", ["sin", "cos"])
def test_large_angles(row: KernelRow, op: str) -> None:
    x = np.concatenate([np.linspace(-8192, 8192, 40001), 10.0 ** np.arange(4, 30)])
    x = x.astype(np.float32)
    expected = BOUNDS[op][0](x.astype(np.float64))
    assert np.abs(unary(row, op, x) - expected).max() < 1.6 * 2**-24


INF, NAN = math.inf, math.nan


@every_row
@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        ("exp", [0.0, -0.0, INF, -INF, 89.0, -105.0, -104.5], [1, 1, INF, 0, INF, 0, 0]),
        ("log", [0.0, -0.0, 1.0, INF, -1.0, -INF], [-INF, -INF, 0, INF, NAN, NAN]),
        ("log", [2.0**-149, 2.0**-127], [-149 * math.log(2), -127 * math.log(2)]),
        ("erf", [0.0, -0.0, INF, -INF, 4.0, -1e30], [0.0, -0.0, 1, -1, 1, -1]),
        ("tanh", [0.0, -0.0, INF, -INF, 10.0, -1e30, 1e-40], [0.0, -0.0, 1, -1, 1, -1, 1e-40]),
        ("sigmoid", [0.0, INF, -INF, 100.0, -100.0], [0.5, 1, 0, 1, 0]),
        ("silu", [0.0, -0.0, INF, 100.0, -100.0], [0.0, -0.0, INF, 100, -0.0]),
        ("gelu", [0.0, -0.0, INF, 1e30, -1e30], [0.0, -0.0, INF, 1e30, 0.0]),
        ("gelu_tanh", [0.0, -0.0, INF, 1e30, -1e30], [0.0, -0.0, INF, 1e30, -0.0]),
        ("sin", [0.0, INF, -INF], [0, NAN, NAN]),
        ("cos", [0.0, INF, -INF], [1, NAN, NAN]),
        ("relu", [-1.0, INF, -INF], [0, INF, 0]),
    ],
)
def test_special_values(row: KernelRow, op: str, x: list[float], y: list[float]) -> None:
    given = np.array([*x, NAN], np.float32)
    found = unary(row, op, given)
    expected = np.array([*y, NAN], np.float32)
    np.testing.assert_array_equal(found, expected)
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))
