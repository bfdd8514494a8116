"""Products of rows rounded to int8 in blocks against the same in numpy."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest

from q7x2_ep.ops.blocks import packed, panels, words
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_threads

every_row = pytest.mark.parametrize("row", rows("block_qgemm"), ids=lambda row: row.name)
F = np.float32


def lines(size: int) -> int:
    return -(-size // 64) * 64


def block_qgemm(
    row: KernelRow,
    a: np.ndarray,
    n: int,
    bits: int,
    block: int,
    has_zeros: bool,
    bias: Optional[np.ndarray] = None,
    threads: tuple[int, ...] = (1,),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result, that of numpy in float64, and what its float sums may be off by."""
    m, k = a.shape
    blocks = -(-k // block)
    rng = np.random.default_rng([n, k, bits])
    q = rng.integers(0, 1 << bits, (k, n)).astype(np.uint8)
    scale = (rng.random((blocks, n)) + 0.5).astype(F)
    zero = rng.integers(0, 1 << bits, (blocks, n)).astype(np.uint8) if has_zeros else None
    (c,) = run_threads(
        "block_qgemm",
        row,
        threads=threads,
        a=a,
        q=words(packed(q, bits), bits, row.nr),
        scale=panels(scale, row.nr),
        zero=None if zero is None else panels(zero, row.nr),
        bias=bias,
        c=np.zeros((m, n), F),
        rows=m * (lines(k) + 3 * lines(blocks * 4)),
        room=max(threads) * row.nr * (512 + 512 // 16 * 4 + 224 * 4),
        m=m,
        n=n,
        k=k,
        a_stride=k,
        bits=bits,
        block=block,
    )
    real, reach = np.zeros((m, n)), np.zeros((m, n))
    for b in range(blocks):
        part = slice(b * block, min(k, (b + 1) * block))
        a_scale = np.maximum(np.abs(a[:, part]).max(1) / F(127), np.finfo(F).tiny).astype(F)
        bytes_of = np.rint(a[:, part] * (F(1) / a_scale)[:, None])
        w = q[part].astype(int) - (1 << bits - 1 if zero is None else zero[b].astype(int))
        term = bytes_of @ w * (a_scale[:, None].astype(float) * scale[b])
        real, reach = real + term, reach + np.abs(term)
    bias = np.zeros(n, F) if bias is None else bias
    return c, real + bias, reach + np.abs(bias)


def assert_near(c: np.ndarray, real: np.ndarray, reach: np.ndarray, blocks: int) -> None:
    assert (np.abs(c - real) <= (blocks + 3) * 2.0**-24 * reach + 1e-36).all()


SHAPES = [(1, 1, 1), (2, 40, 7), (3, 33, 130), (4, 64, 515), (5, 31, 2), (14, 32, 64)]
SHAPES += [(15, 70, 1030), (37, 5, 129), (230, 65, 96)]


@every_row
@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("bits, has_zeros", [(2, True), (4, True), (4, False), (8, False)])
def test_block_qgemm(row: KernelRow, m: int, n: int, k: int, bits: int, has_zeros: bool) -> None:
    if bits == 8 and row.dtypes == "u8x2":
        pytest.skip("products saturate")
    rng = np.random.default_rng([m, n, k])
    a = (rng.standard_normal((m, k)) * 10.0 ** rng.integers(-3, 3, (m, 1))).astype(F)
    bias = rng.standard_normal(n).astype(F) if n % 2 else None
    for block in (16, 32, 48, 128, 256, 512):
        found = block_qgemm(row, a, n, bits, block, has_zeros, bias, (1, 2, 3, 8))
        assert_near(*found, -(-k // block))


@every_row
def test_a_row_has_the_same_bits_among_any_others(row: KernelRow) -> None:
    a = np.random.default_rng(1).standard_normal((40, 300)).astype(F)
    for bits, has_zeros in ((4, True), (8, False))[: 1 if row.dtypes == "u8x2" else 2]:
        whole = block_qgemm(row, a, 50, bits, 32, has_zeros)[0]
        for m in (1, 2, 3, 4, 5, 13, 14, 15):
            part = block_qgemm(row, a[:m], 50, bits, 32, has_zeros)[0]
            assert part.tobytes() == whole[:m].tobytes()


@every_row
@pytest.mark.parametrize("m", [3, 20])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(row: KernelRow, m: int, odd: float) -> None:
    rng = np.random.default_rng(2)
    for at in (0, 15, 31, 40, 98):
        a = rng.standard_normal((m, 99)).astype(F)
        plain = block_qgemm(row, a, 33, 4, 32, True)[0]
        a[1, at] = odd
        with np.errstate(invalid="ignore"):
            c = block_qgemm(row, a, 33, 4, 32, True)[0]
        assert not np.isfinite(c[1]).any()
        assert np.delete(c, 1, 0).tobytes() == np.delete(plain, 1, 0).tobytes()


@every_row
@pytest.mark.parametrize("size", [0.0, 1e-40, 3e-38, 1e-30, 1e38])
def test_sizes_near_the_ends_of_the_range(row: KernelRow, size: float) -> None:
    a = (np.random.default_rng(3).random((6, 70)) * size / 70).astype(F)
    with np.errstate(over="ignore"):
        assert_near(*block_qgemm(row, a, 20, 4, 32, True), 3)
