"""Ops that make tensors or cut them: arange, fill, values, trilu; and cumulate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from q7x2_ep import dtypes
from tests.kernels.harness import padded
from tests.kernels.harness import run_threads as run_op

CODES = {"float32": 1, "int32": 6, "int64": 7, "float64": 11}


@pytest.mark.parametrize("dtype", [*CODES, "int16"])
def test_arange(dtype):
    for n, start, step in ((0, 0, 1), (1, 5, 2), (17, -3, 2), (70_000, 10, -3)):
        real = (
            {"start": start + 0.25, "step": step / 8}
            if dtype.startswith("f")
            else {"start": 0, "step": 0}
        )
        code = dtypes.from_numpy(dtype)
        given = {"dtype": code, "n": n, "istart": start, "istep": step, **real}
        (y,) = run_op("arange", y=np.zeros(n, dtype), **given)
        first, by = (real["start"], real["step"]) if dtype.startswith("f") else (start, step)
        np.testing.assert_array_equal(y, (first + np.arange(n) * by).astype(dtype))


def test_fill():
    for dtype, n in itertools.product(("int8", "int16", "int32", "int64"), (0, 1, 33, 70_000)):
        (y,) = run_op(
            "fill", y=np.zeros(n, dtype), elem_bytes=np.dtype(dtype).itemsize, n=n, bits=-3
        )
        np.testing.assert_array_equal(y, np.full(n, -3, dtype))


def test_values():
    for dtype in ("uint8", "int8", "int32", "int64", "bool"):
        code = dtypes.from_numpy(np.dtype(dtype))
        (y,) = run_op("values", y=np.zeros(3, dtype), dtype=code, n=3, values=padded([7, 0, 12]))
        np.testing.assert_array_equal(y, np.array([7, 0, 12]).astype(dtype))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_trilu(dtype):
    for (rows, cols), upper in itertools.product([(4, 4), (3, 6), (6, 3), (1, 1), (0, 3)], (0, 1)):
        x = np.arange(2 * rows * cols).reshape(2, rows, cols).astype(dtype) + 1
        for k in (-7, -2, -1, 0, 1, 2, 7):
            expected = np.triu(x, k) if upper else np.tril(x, k)
            given = {
                "elem_bytes": x.itemsize,
                "batch": 2,
                "rows": rows,
                "cols": cols,
                "k": k,
                "upper": upper,
            }
            np.testing.assert_array_equal(run_op("trilu", x=x, y=x, **given)[0], expected)
            np.testing.assert_array_equal(
                run_op("trilu", threads=[1], x=x, y="x", **given)[0], expected
            )


@pytest.mark.parametrize("dtype", [*CODES, "uint32", "uint64"])
@pytest.mark.parametrize("product", [0, 1])
@pytest.mark.parametrize("shape", [(3, 7, 5), (40, 7, 1), (2, 7, 300)])  # of columns: one to blocks
def test_cumulate(dtype, product, shape):
    x = np.random.default_rng(18).integers(-9, 10, shape).astype(dtype)
    along = np.cumprod if product else np.cumsum
    for exclusive, reverse in itertools.product((0, 1), repeat=2):
        flow = x[:, ::-1] if reverse else x
        totals = along(flow, 1, dtype=dtype)
        if exclusive:
            first = np.full_like(flow[:, :1], product)
            totals = np.concatenate((first, totals[:, :-1]), 1)
        expected = totals[:, ::-1] if reverse else totals
        given = {
            "dtype": dtypes.from_numpy(x.dtype),
            **dict(zip(("outer", "n", "inner"), shape)),
            "product": product,
            "exclusive": exclusive,
            "reverse": reverse,
        }
        np.testing.assert_array_equal(run_op("cumulate", x=x, y=x, **given)[0], expected)
        np.testing.assert_array_equal(
            run_op("cumulate", threads=[1], x=x, y="x", **given)[0], expected
        )
