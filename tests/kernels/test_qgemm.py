"""qgemm against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.ops.quant import pack
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op

CODES = {"uint8": 2, "int8": 3, "int32": 6, "float32": 1}
ROWS = 56  # QGEMM_ROWS
every_row = pytest.mark.parametrize("row", rows("qgemm"), ids=lambda row: row.name)


def qgemm(row: KernelRow, m: int, n: int, k: int, a_dtype: str, c_dtype: str, threads: int = 1):
    """The result, and the exact sums; extreme bytes, a zero point, scales and bias per column."""
    rng = np.random.default_rng([m, n, k])
    limits = np.iinfo(a_dtype)
    a = rng.choice([limits.min, limits.max, 3], (m, k)).astype(a_dtype)
    b = rng.integers(-255, 256, (k, n)).astype(np.int16)
    a_zero, zero = np.array(limits.max, a_dtype), np.array(2, c_dtype)
    scale, bias = rng.random(n).astype(np.float32), rng.random(n).astype(np.float32) * 9
    c = run_op(
        "qgemm",
        row,
        threads,
        a=a,
        a_zero=a_zero,
        b=pack(b, row.nr),
        scale=None if c_dtype == "int32" else scale / max(k, 1) / 200,
        bias=None if c_dtype == "int32" else bias,
        zero=zero if c_dtype in ("uint8", "int8") else None,
        c=np.zeros((m, n), c_dtype),
        rows=threads * ROWS * -(-k // 2) * 4,
        m=m,
        n=n,
        k=k,
        a_dtype=CODES[a_dtype],
        c_dtype=CODES[c_dtype],
        scales=n,
    )["c"]
    sums = (a.astype(np.int64) - int(a_zero)) @ b.astype(np.int64)
    real = sums * (scale / np.float32(max(k, 1)) / np.float32(200)).astype(np.float64) + bias
    return c, sums, real


SHAPES = [(1, 1, 1), (1, 40, 7), (14, 32, 2), (15, 33, 3), (60, 5, 64), (130, 70, 129), (3, 4, 0)]


@every_row
@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("a_dtype", ["uint8", "int8"])
def test_qgemm(row: KernelRow, m: int, n: int, k: int, a_dtype: str) -> None:
    c, sums, _ = qgemm(row, m, n, k, a_dtype, "int32")
    np.testing.assert_array_equal(c, sums)
    c, _, real = qgemm(row, m, n, k, a_dtype, "float32")
    np.testing.assert_allclose(c, real, rtol=1e-5, atol=1e-5)
    for c_dtype in ("uint8", "int8"):
        c, _, real = qgemm(row, m, n, k, a_dtype, c_dtype)
        limits = np.iinfo(c_dtype)
        wanted = np.clip(np.rint(real) + 2, limits.min, limits.max)
        off = np.abs(c - wanted)
        near_half = np.abs(real - np.floor(real) - 0.5) < 1e-3
        assert (off[~near_half] == 0).all() and off.max(initial=0) <= 1


@every_row
def test_sums_wrap(row: KernelRow) -> None:
    k = 1 + 2**31 // (255 * 255)
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 1), 255, np.int16)
    given = {"a": a, "a_zero": None, "b": pack(b, row.nr), "scale": None, "bias": None}
    given.update(zero=None, c=np.zeros((1, 1), np.int32), rows=ROWS * -(-k // 2) * 4)
    fields = {"m": 1, "n": 1, "k": k, "a_dtype": 2, "c_dtype": 6, "scales": 1}
    assert run_op("qgemm", row, **given, **fields)["c"] == k * 255 * 255 - 2**32


@every_row
def test_bits_do_not_depend_on_threads(row: KernelRow) -> None:
    one = qgemm(row, 130, 300, 64, "uint8", "int8")[0]
    for threads in (2, 3, 8):
        assert qgemm(row, 130, 300, 64, "uint8", "int8", threads)[0].tobytes() == one.tobytes()
