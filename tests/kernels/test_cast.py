"""cast between all dtypes against numpy, and the values where C leaves the result open."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.kernels.harness import run_threads as run_op

CODES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
}


def cast(x: np.ndarray, to: str, threads=(1, 2, 3, 8)) -> np.ndarray:
    given = {"from": CODES[x.dtype.name], "to": CODES[to], "n": x.size}
    return run_op("cast", threads=threads, x=x, y=np.zeros(x.shape, to), **given)[0]


@pytest.mark.parametrize("source, to", list(itertools.product(CODES, CODES)))
def test_all_pairs(source, to):
    rng = np.random.default_rng(10)
    for n in (0, 1, 17, 70_000):
        low = 0 if source in ("uint8", "bool") or to == "uint8" else -128
        x = rng.integers(low, 128, n)
        values = x + (rng.integers(0, 4, n) / 4 if source.startswith("float") and low < 0 else 0)
        given = values.astype(source)
        np.testing.assert_array_equal(cast(given, to), given.astype(to))


def test_integers_wrap():
    x = np.array([2**31, -(2**31) - 1, 2**40 + 5, -1, 300, 128], np.int64)
    for to in ("int32", "int8", "uint8"):
        np.testing.assert_array_equal(cast(x, to), x.astype(to))


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_out_of_range(source):
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -2.9, 0.5], source)
    np.testing.assert_array_equal(cast(x, "int64"), [-(2**63)] * 5 + [-2, 0])
    np.testing.assert_array_equal(cast(x, "int32"), [-(2**31)] * 5 + [-2, 0])
    np.testing.assert_array_equal(cast(x, "bool"), [1, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(
        cast(np.array([300, -1, 2**31, -(2**31)], source), "int32")[:2], [300, -1]
    )
    np.testing.assert_array_equal(cast(np.array([300, 256, -1], source), "uint8"), [44, 0, 255])
    np.testing.assert_array_equal(
        cast(np.array([2147483520, -2147483648], source), "int32"), [2147483520, -(2**31)]
    )


def test_every_float16():
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    for to in ("float32", "float64"):
        np.testing.assert_array_equal(cast(x, to), x.astype(to))
        back = cast(x.astype(to), "float16")
        np.testing.assert_array_equal(back, x)
        assert (np.signbit(back) == np.signbit(x)).all()


@pytest.mark.parametrize("source", ["float32", "float64", "int64"])
def test_rounding_to_float16(source):
    rng = np.random.default_rng(11)
    half = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (half[1:] + half[:-1]) / 2
    near = np.concatenate(
        [
            ties,
            ties * (1 + 2**-20),
            ties * (1 - 2**-20),
            ties * (1 + 2**-40),
            rng.random(1000) * 1e-7,
        ]
    )
    x = np.concatenate([near, -near, [65504, 65519.996, 65520, 1e30, -1e30, 1e-300]])
    if source == "int64":
        x = x[np.abs(x) < 1e6]
    with np.errstate(over="ignore"):
        x = x.astype(source)
        np.testing.assert_array_equal(cast(x, "float16"), x.astype(np.float16))
