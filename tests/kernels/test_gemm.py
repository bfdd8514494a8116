"""gemm and pack_b: every kernel row, shapes around the edges of its tile and of the blocks of k.

The gated form is held to the bits of two products, one with the activation, and their product.
"""

from __future__ import annotations

import math
import sys
from itertools import product
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.backend.cpu.pack import pack as pack_all
from q7x2_ep.backend.cpu.room import aligned
from q7x2_ep.backend.memory import _pages
from q7x2_ep.backend.numpy import rms_error
from q7x2_ep.dtypes import BFLOAT16, DTYPES, FLOAT, FLOAT16
from q7x2_ep.files import map_file
from q7x2_ep.ir.core import Value
from q7x2_ep.plan.parts import Pack
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rounded_to, rows, run_op, tolerance

K_BLOCK, ROWS, PANELS, FEW, TILE_ROWS, TILE_K = (
    load().target.constants[f"GEMM_{name}"]
    for name in ("K_BLOCK", "ROWS", "PANELS", "FEW", "TILE_ROWS", "TILE_K")
)
every_row = pytest.mark.parametrize("row", rows("gemm"), ids=lambda row: row.name)

ACTS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "swish": lambda x: x / (1 + np.exp(-ACT_ALPHA * x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "hard_sigmoid": lambda x: np.clip(ACT_ALPHA * x + ACT_BETA, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "clip": lambda x: np.clip(x, ACT_ALPHA, ACT_BETA),
    "leaky_relu": lambda x: np.where(x < 0, ACT_ALPHA * x, x),
    "elu": lambda x: np.where(x < 0, ACT_ALPHA * np.expm1(x), x),
    "softcap": lambda x: ACT_ALPHA * np.tanh(x / ACT_ALPHA),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
    "affine": lambda x: ACT_ALPHA * x + ACT_BETA,
    "scaled_tanh": lambda x: ACT_ALPHA * np.tanh(ACT_BETA * x),
    "affine_hard_swish": lambda x: ACT_ALPHA * x * np.clip(x / 6 + 0.5, 0, 1) + ACT_BETA,
    "thresholded_relu": lambda x: np.where(x > ACT_ALPHA, x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
}
ACT_ALPHA, ACT_BETA = 0.25, 0.75
# where the slope of an activation exceeds 1: how much an error of its operand may grow
SLOPES = {"gelu": 1.2, "gelu_tanh": 1.2, "silu": 1.2, "mish": 1.2, "hard_swish": 1.5}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def some_rows(row: KernelRow) -> tuple[int, ...]:
    """Numbers of rows whose bits are those that they have among more."""
    return (FEW + 1, 32, 39, 49, 64, 65, 97, 200) if row.isa == "amx" else (1, 2, 3, row.mr)


def pack(row: KernelRow, *matrices: np.ndarray, threads: int = 1, dtype: int = FLOAT) -> np.ndarray:
    """The panels of one matrix, or of two that share each half and half."""
    k, n = matrices[0].shape
    width = row.nr // len(matrices)
    size = -(-n // width) * row.nr * k
    packed = np.full(size, np.nan, np.float32 if dtype == FLOAT else np.float16)
    for i, b in enumerate(matrices):
        k_stride, n_stride = (stride // b.itemsize for stride in b.strides)
        source = b.T if b.flags.f_contiguous else b
        given: dict[str, Any] = {"k": k, "n": n, "k_stride": k_stride, "n_stride": n_stride}
        given.update(b=np.ascontiguousarray(source), packed=packed, width=width, first=i * width)
        given.update(nr=row.nr, taps=1, tap_stride=0, dtype=dtype, drops=0, factors=None)
        given["b_dtype"] = FLOAT if b.dtype == np.float32 else dtype
        packed = run_op("pack_b", None, threads, **given)["packed"]
    return packed


def gemm(
    row: KernelRow,
    a: np.ndarray,
    packed: np.ndarray,
    n: int,
    bias: Optional[np.ndarray] = None,
    residual: Any = None,
    act: str = "none",
    alpha: float = 1.0,
    threads: int = 1,
    c_stride: int = 0,
    c: Optional[np.ndarray] = None,
    k: Optional[int] = None,
    gated: bool = False,
    up_bias: Optional[np.ndarray] = None,
    dtype: int = FLOAT,
) -> np.ndarray:
    """c as (m, c_stride), which held NaN, or what is given; a may have more columns than k."""
    m, a_stride = a.shape
    k = a_stride if k is None else k
    c = np.full((m, c_stride or n), np.nan, np.float32) if c is None else c
    residual_stride = residual.shape[1] if isinstance(residual, np.ndarray) else c.shape[1]
    return run_op(
        "gemm",
        row,
        threads,
        a=a,
        b=packed,
        bias=bias,
        up_bias=up_bias,
        residual=residual,
        c=c,
        sums=threads * min(m, ROWS) * PANELS * row.nr * 4 if gated and k > K_BLOCK else None,
        m=m,
        n=n,
        k=k,
        a_stride=a_stride,
        c_stride=c.shape[1],
        residual_stride=residual_stride,
        b_dtype=dtype,
        gated=int(gated),
        act=act,
        alpha=alpha,
        act_alpha=ACT_ALPHA,
        act_beta=ACT_BETA,
    )["c"]


def no_column(b: np.ndarray) -> np.ndarray:
    """b, or if it is a column two: one by itself is summed in another order."""
    return np.repeat(b, 2, axis=-1) if b.shape[-1] == 1 else b


def check(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    assert c.shape == (len(a), b.shape[1])
    assert (np.abs(c - a64 @ b64) <= tolerance(a.shape[1], np.abs(a64) @ np.abs(b64))).all()


@every_row
@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 255, K_BLOCK, K_BLOCK + 1, 2 * K_BLOCK + 1])
def test_edges(row: KernelRow, k: int) -> None:
    mr, nr = row.mr, row.nr
    narrow = (nr + 8, nr + 16, 3 * nr - 5)  # vectors of the last panel
    for n in (1, 2, nr - 1, nr, nr + 1, 2 * nr + 3, 4 * nr, 5 * nr + 2, *narrow):
        b = normal(k, n)
        packed = pack(row, b)
        for m in (1, 2, 3, mr - 1, mr, mr + 1, 2 * mr + 1):
            a = normal(m, k)
            check(gemm(row, a, packed, n), a, b)


@every_row
@pytest.mark.parametrize("k", [0, 1, 15, 64, 2 * K_BLOCK + 70])
def test_one_column(row: KernelRow, k: int) -> None:
    """Rows have the bits that they have among any others; what follows sums is done once."""
    b = normal(k, 1)
    a, packed = normal(83, k), pack(row, b)
    plain = gemm(row, a, packed, 1, c_stride=2, threads=2)
    check(plain[:, :1], a, b)
    assert np.isnan(plain[:, 1:]).all()
    bias, residual = normal(1), normal(83, 1)
    sums = plain[:, :1].astype(np.float64) / 2 + bias
    bound = np.finfo(np.float32).eps * (np.abs(sums) + np.abs(residual))  # two roundings
    for m in (1, 3, 8, 33, 83):
        c = gemm(row, a[:m], packed, 1, bias, residual[:m], "relu", 0.5)
        assert (np.abs(c - np.maximum(sums, 0)[:m] - residual[:m]) <= bound[:m]).all()
        np.testing.assert_array_equal(gemm(row, a[:m], packed, 1), plain[:m, :1])


@every_row
def test_no_rows_or_columns(row: KernelRow) -> None:
    assert gemm(row, normal(0, 5), pack(row, normal(5, 3)), 3).shape == (0, 3)
    assert gemm(row, normal(3, 5), pack(row, normal(5, 0)), 0).shape == (3, 0)


@every_row
@pytest.mark.parametrize("act", ACTS)
def test_epilogue(row: KernelRow, act: str) -> None:
    mr, nr = row.mr, row.nr
    shapes = ((3, nr + 5, 7), (2 * mr + 1, 3, K_BLOCK + 9), (1, 4 * nr, 0), (mr + 1, nr + 16, 9))
    for m, n, k in shapes:
        a, b, bias, residual = normal(m, k), normal(k, n), normal(n), normal(m, n + 4)
        packed = pack(row, b)
        for with_bias, with_residual, alpha in product((False, True), (False, True), (1.0, 0.125)):
            given = bias if with_bias else None
            c = gemm(row, a, packed, n, given, residual if with_residual else None, act, alpha)
            before = alpha * (a.astype(np.float64) @ b) + (bias if with_bias else 0)
            expected = ACTS[act](before) + (residual[:, :n] if with_residual else 0)
            scale = alpha * (np.abs(a.astype(np.float64)) @ np.abs(b)) + 4
            slope = SLOPES.get(act, 2 * np.abs(before) + 1 if act == "squared_relu" else 1)
            assert (np.abs(c - expected) <= slope * tolerance(k, scale)).all()


@every_row
@pytest.mark.parametrize("k", [0, 5, K_BLOCK, K_BLOCK + 1, 2 * K_BLOCK + 3])
def test_gated_has_the_bits_of_its_parts(row: KernelRow, k: int) -> None:
    mr, half = row.mr, row.nr // 2
    for n in (1, half - 1, half, half + 1, row.nr, 4 * row.nr + 3, 8 * row.nr):
        gate, up = normal(k, n), normal(k, n)[:, ::-1].copy()
        packed, *parts = pack(row, gate, up), *(pack(row, no_column(b)) for b in (gate, up))
        for m, act, bias, up_bias in (
            (1, "silu", None, None),
            (2, "gelu", normal(n), None),
            (mr + 1, "none", None, normal(n)),
            (2 * mr + 3, "swish", normal(n), normal(n)[::-1].copy()),
        ):
            a = normal(m, k)
            given = {"act": act, "c_stride": n + 3, "gated": True, "up_bias": up_bias}
            c = gemm(row, a, packed, n, bias, **given)
            left, right = (
                gemm(row, a, part, max(n, 2), None if x is None else no_column(x), act=of)[:, :n]
                for part, x, of in zip(parts, (bias, up_bias), (act, "none"))
            )
            np.testing.assert_array_equal(c[:, :n], left * right)
            assert np.isnan(c[:, n:]).all()


@every_row
@pytest.mark.parametrize("act", ACTS)
def test_gated_activations(row: KernelRow, act: str) -> None:
    m, n, k = 3, row.nr + 1, 9
    a, gate, up = normal(m, k), normal(k, n), normal(k, n)[:, ::-1].copy()
    c = gemm(row, a, pack(row, gate, up), n, act=act, gated=True)
    left, right = gemm(row, a, pack(row, gate), n, act=act), gemm(row, a, pack(row, up), n)
    np.testing.assert_array_equal(c, left * right)


@every_row
def test_gated_bits_do_not_depend_on_threads(row: KernelRow) -> None:
    m, n, k = ROWS + 17, 13 * row.nr + 1, K_BLOCK + 70
    a, gate, up = normal(m, k), normal(k, n), normal(k, n)[:, ::-1].copy()
    packed = pack(row, gate, up)
    assert packed.tobytes() == pack(row, gate, up, threads=3).tobytes()
    c = gemm(row, a, packed, n, act="silu", gated=True)
    for threads in (2, 3, 8):
        again = gemm(row, a, packed, n, act="silu", gated=True, threads=threads)
        assert again.tobytes() == c.tobytes()
    for few in some_rows(row):
        assert gemm(row, a[:few], packed, n, act="silu", gated=True).tobytes() == c[:few].tobytes()


@every_row
def test_gaps_between_rows_stay(row: KernelRow) -> None:
    m, n, k = row.mr + 1, row.nr + 1, 2 * K_BLOCK
    a, b = normal(m, k + 3), normal(k, n)
    c = gemm(row, a, pack(row, b), n, c_stride=n + 5, k=k)
    check(c[:, :n], a[:, :k], b)
    assert np.isnan(c[:, n:]).all()


@every_row
def test_residual_in_place(row: KernelRow) -> None:
    m, n, k = 2 * row.mr + 3, 2 * row.nr + 1, K_BLOCK
    a, b, x = normal(m, k), normal(k, n), normal(m, n)
    packed = pack(row, b)
    apart = gemm(row, a, packed, n, residual=x)
    assert gemm(row, a, packed, n, residual="c", c=x).tobytes() == apart.tobytes()


@every_row
def test_bits_do_not_depend_on_threads_nor_on_other_rows(row: KernelRow) -> None:
    m, n, k = 17 * row.mr + 2, 13 * row.nr + 1, K_BLOCK + 70
    a, b, bias = normal(m, k), normal(k, n), normal(n)
    packed = pack(row, b)
    assert packed.tobytes() == pack(row, b, threads=3).tobytes()
    c = gemm(row, a, packed, n, bias, act="gelu")
    for threads in (2, 3, 8):
        assert gemm(row, a, packed, n, bias, act="gelu", threads=threads).tobytes() == c.tobytes()
    for few in some_rows(row):
        assert gemm(row, a[:few], packed, n, bias, act="gelu").tobytes() == c[:few].tobytes()


@every_row
def test_bits_do_not_depend_on_gaps_between_rows(row: KernelRow) -> None:
    """Rows 4096 bytes apart are in tiles of fewer, as they compete for a set of L1."""
    k, n = K_BLOCK + 70, 3 * row.nr + 5
    for dtype in (FLOAT, FLOAT16):
        packed = pack(row, normal(k, n), dtype=dtype)
        for m in (8, 9, 10, 11, 12, row.mr, row.mr + 1, 2 * row.mr + 3, 61):
            a = np.full((m, 1024), np.nan, np.float32)
            a[:, :k] = normal(m, k)
            given = {"act": "gelu", "k": k, "dtype": dtype}
            dense = gemm(row, a[:, :k].copy(), packed, n, **given)
            assert gemm(row, a, packed, n, **given).tobytes() == dense.tobytes()


@every_row
@pytest.mark.parametrize("k", [33, TILE_K + 70])
def test_bits_of_some_rows_depend_on_neither_threads_nor_others(row: KernelRow, k: int) -> None:
    n = 13 * row.nr + 1
    a, b, bias = normal(150, k), normal(k, n), normal(n)  # rows that L2 has, or has not, as a whole
    packed = pack(row, b)
    c = gemm(row, a, packed, n, bias, act="gelu")
    check(gemm(row, a, packed, n), a, b)
    for threads in (2, 3, 8):
        assert gemm(row, a, packed, n, bias, act="gelu", threads=threads).tobytes() == c.tobytes()
    for some in (26, 32, 39, 48, 52):
        assert gemm(row, a[:some], packed, n, bias, act="gelu").tobytes() == c[:some].tobytes()


@every_row
@pytest.mark.parametrize("k", [32, 2 * TILE_K - 31, 2 * TILE_K + 1])
def test_around_blocks_of_tiles(row: KernelRow, k: int) -> None:
    n = row.nr + 3
    b, residual = normal(k, n), normal(2 * TILE_ROWS + 33, n)
    packed = pack(row, b)
    for m in (FEW + 1, 47, TILE_ROWS - 15, TILE_ROWS, TILE_ROWS + 1, 2 * TILE_ROWS + 33):
        a = normal(m, k)
        c = gemm(row, a, packed, n, residual=residual[:m], c_stride=n + 1)
        check(c[:, :n] - residual[:m], a, b)
        assert np.isnan(c[:, n:]).all()


@every_row
@pytest.mark.parametrize("odd", [1e-20, np.inf])
def test_bits_beside_rows_that_do_not_fit_parts(row: KernelRow, odd: float) -> None:
    m, n, k = 13 * 16 - 4, 7 * row.nr, K_BLOCK
    a, b = normal(m, k), normal(k, n)
    a[[m // 7, m // 2]] *= np.float32(odd)
    packed = pack(row, b)
    c = gemm(row, a, packed, n)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(gemm(row, a, packed, n, threads=threads), c)


@every_row
@pytest.mark.parametrize("k", [K_BLOCK, TILE_K + 20, 2 * TILE_K + 40])
def test_bits_beside_columns_that_do_not_fit_parts(row: KernelRow, k: int) -> None:
    """A task goes on with the panel where the one before it ended, whichever threads have them."""
    m, n = 80, 14 * row.nr + 5
    a, b, bias, residual = normal(m, k), normal(k, n), normal(n), normal(m, n)
    b[:, [row.nr - 1, 5 * row.nr, 5 * row.nr + 2, 12 * row.nr + 3]] *= np.float32(1e-20)
    packed = pack(row, b)
    c = gemm(row, a, packed, n, bias, residual)
    check(gemm(row, a, packed, n), a, b)
    for threads in (2, 3, 4, 5, 8):
        again = gemm(row, a, packed, n, bias, residual, threads=threads)
        assert again.tobytes() == c.tobytes(), threads


@every_row
@pytest.mark.parametrize("m,k", [(16, 9), (30, 1100), (64, 40), (90, 70)])
def test_nan_and_inf_spread_to_their_row_and_column_only(row: KernelRow, m: int, k: int) -> None:
    n = 2 * row.nr + 3
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    a[1, 4], a[2, 0], b[3, 5] = np.nan, np.inf, -np.inf
    a[m - 1, 2] = np.uint32(0x7F800001).view(np.float32)  # a NaN whose upper half is that of inf
    c = gemm(row, a, pack(row, b), n)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(c, a @ b)


@every_row
@pytest.mark.parametrize("m", [46, 64, 100])
@pytest.mark.parametrize(
    "a_power,b_power", [(-130, 0), (0, -120), (-60, -60), (-38, -38), (110, -9)]
)
def test_tiny_and_huge(row: KernelRow, m: int, a_power: int, b_power: int) -> None:
    """Rows, or columns, of other magnitudes than the rest; and lone values of all magnitudes."""
    n, k = 3 * row.nr, K_BLOCK + 40
    a, b = np.clip(normal(m, k), -3, 3), np.clip(normal(k, n), -3, 3)
    a[40:75] = np.ldexp(a[40:75] / 4, a_power)
    b[:, row.nr + 1 :] = np.ldexp(b[:, row.nr + 1 :] / 4, b_power)
    a[::3, 7:20] = np.ldexp(np.float32(1), -np.arange(13) * 11)
    c = gemm(row, a, pack(row, b), n)
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    bound = tolerance(k, scale) + 2.0**-149  # of a result that is denormal
    assert (np.abs(c - a.astype(np.float64) @ b) <= bound).all()


@every_row
@pytest.mark.parametrize("m,k", [(96, 3 * K_BLOCK), (40, 9 * K_BLOCK)])
def test_error_is_that_of_short_sums(row: KernelRow, m: int, k: int) -> None:
    """At most that of blocks of K_BLOCK, whose floats are added one after the other, be products
    rounded before, as on scalar, or not.
    """
    n = row.nr
    a, b = normal(m, k), normal(k, n)
    true = a.astype(np.float64) @ b

    def error_of_blocks(dtype: type) -> float:
        by_blocks = np.zeros((m, n), np.float32)
        for block in range(0, k, K_BLOCK):
            total = np.zeros((m, n), np.float32)
            for i in range(block, block + K_BLOCK):
                total = (total + a[:, i : i + 1].astype(dtype) * b[i]).astype(np.float32)
            by_blocks += total
        return rms_error(by_blocks, true)

    wanted = max(error_of_blocks(np.float32), error_of_blocks(np.float64))
    assert rms_error(gemm(row, a, pack(row, b), n), true) <= wanted


@every_row
@pytest.mark.parametrize("m,k", [(96, 3 * K_BLOCK), (40, 300), (12, 500)])
def test_errors_of_positive_products_have_no_sign(row: KernelRow, m: int, k: int) -> None:
    """Else those of layers, one behind the other, would add up."""
    a, b = (np.abs(normal(*shape)) for shape in ((m, k), (k, 4 * row.nr)))
    true = a.astype(np.float64) @ b
    assert abs(np.mean(gemm(row, a, pack(row, b), 4 * row.nr) / true - 1)) < 2.0**-25


@every_row
def test_pack_b(row: KernelRow) -> None:
    for k, n, threads in (
        (1, 1, 1),
        (5, row.nr, 1),
        (33, 2 * row.nr + 3, 2),
        (35, 17 * row.nr + 1, 2),
    ):
        b = normal(k, n)
        padded = np.zeros((k, -(-n // row.nr) * row.nr), np.float32)
        padded[:, :n] = b
        panels = padded.reshape(k, -1, row.nr).transpose(1, 0, 2)
        for order in "CF":
            packed = pack(row, np.asarray(b, order=order), threads=threads)
            np.testing.assert_array_equal(packed, panels.ravel())


@pytest.mark.parametrize("order", "CF")
def test_pack_b_drops_what_it_has_read(tmp_path, order):
    """Of a mapped file, in which weights begin in the middle of a page and others follow."""
    row, *_ = rows("gemm")
    b, around = np.asarray(normal(700, 1201), order=order), 1000
    path = tmp_path / "weights"
    path.write_bytes(b"x" * around + b.tobytes(order) + b"y" * around)
    owner = map_file(str(path))
    weight = Value("w")
    weight.const = np.frombuffer(owner, np.float32, b.size, around).reshape(b.shape, order=order)
    k, n = b.shape
    each = Pack(weight, 0, 1, row.nr, k, n, n, 1, 0, row.nr, 0, 1, 0)
    wanted = pack(row, b)
    packed = aligned(wanted.nbytes)
    pack_all(load(), SimpleNamespace(packs=[each]), packed, {weight})
    np.testing.assert_array_equal(packed.view(np.float32), wanted)
    if sys.platform == "linux":
        resident, _ = _pages({np.frombuffer(owner, np.uint8).ctypes.data: owner})
        assert resident < b.nbytes // 8
    np.testing.assert_array_equal(weight.const, b)
    assert owner[:around] == b"x" * around and owner[-around:] == b"y" * around


@every_row
def test_pack_b_of_two(row: KernelRow) -> None:
    half = row.nr // 2
    for k, n in ((1, 1), (5, half), (33, 3 * half + 2)):
        padded = np.zeros((2, k, -(-n // half) * half), np.float32)
        padded[:, :, :n] = gate, up = normal(k, n), normal(k, n) + 1
        panels = padded.reshape(2, k, -1, half).transpose(2, 1, 0, 3)
        np.testing.assert_array_equal(pack(row, gate, up), panels.ravel())


def halves(dtype: int, *shape: int) -> np.ndarray:
    """Float32 that 16 bits hold, the extremes of the dtype and zeros of both signs among them."""
    b = normal(*shape) * 2.0 ** np.random.default_rng(1).integers(-12, 3, shape)
    odd = [0.0, -0.0, 1e-7, -6e-8, 6.1e-5, 65504.0, -2049.0, 1e-5]
    b.reshape(-1)[: len(odd)] = odd[: b.size]
    return rounded_to(dtype, b)


@every_row
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_half_panels_have_the_bits_of_floats(row: KernelRow, dtype: int) -> None:
    nr = row.nr
    for k in (1, 3, K_BLOCK - 1, 2 * K_BLOCK + 5):
        for n in (1, nr - 1, 4 * nr, 7 * nr + 3):
            b = halves(dtype, k, n)
            bias = normal(n)
            for order in "CF":
                panels, floats = (
                    pack(row, np.asarray(of, order=order), threads=2, dtype=d)
                    for of, d in ((b, dtype), (no_column(b), FLOAT))
                )
                assert panels.nbytes == floats.nbytes // 2
                narrow = np.asarray(b.astype(DTYPES[dtype].numpy), order=order)
                same = pack(row, narrow.view(np.uint16), threads=2, dtype=dtype)
                np.testing.assert_array_equal(same.view(np.uint16), panels.view(np.uint16))
                for m in (1, 2, 3, 6, 7, row.mr + 1, 3 * row.mr - 1):
                    a = normal(m, k)
                    given = {"bias": bias, "act": "gelu", "threads": 1 + m % 2}
                    several = gemm(row, a, floats, max(n, 2), **{**given, "bias": no_column(bias)})
                    wanted = np.ascontiguousarray(several[:, :n])
                    got = gemm(row, a, panels, n, dtype=dtype, **given)
                    np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32))


@every_row
def test_half_panels_beyond_what_fits_parts(row: KernelRow) -> None:
    """Columns of bfloat16 that are too large or too small for tiles, and infinite ones."""
    m, n, k = 40, 5 * row.nr, TILE_K + 40
    b, a = halves(BFLOAT16, k, n), normal(m, k)
    b[:, 1] *= 2.0**-60
    b[:, row.nr + 1] *= 2.0**-100
    b[3, 3 * row.nr + 2] = np.inf
    a[7] *= 2.0**-70
    panels, floats = (pack(row, b, dtype=d) for d in (BFLOAT16, FLOAT))
    wanted, got = gemm(row, a, floats, n), gemm(row, a, panels, n, dtype=BFLOAT16)
    np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32))


@every_row
def test_half_panels_of_two(row: KernelRow) -> None:
    for k, n in ((5, 3), (2 * K_BLOCK + 5, 3 * row.nr + 2)):
        gate, up = halves(BFLOAT16, k, n), halves(BFLOAT16, k, n)[::-1].copy()
        panels, floats = (pack(row, gate, up, dtype=d) for d in (BFLOAT16, FLOAT))
        for m in (1, 2, row.mr + 1):
            a = normal(m, k)
            wanted = gemm(row, a, floats, n, act="silu", gated=True, c_stride=n)
            got = gemm(row, a, panels, n, act="silu", gated=True, c_stride=n, dtype=BFLOAT16)
            np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32))
