"""matmul: batch broadcasting, any strides, zero sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op, tolerance

K_BLOCK, PANELS = (load().target.constants[name] for name in ("GEMM_K_BLOCK", "MATMUL_PANELS"))
every_row = pytest.mark.parametrize("row", rows("gemm"), ids=lambda row: row.name)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def base(view: np.ndarray) -> np.ndarray:
    """The dense array that a view without offset lies in."""
    return view if view.base is None else view.base


def matmul(
    row: KernelRow, a: np.ndarray, b: np.ndarray, alpha: float = 1.0, threads: int = 1
) -> np.ndarray:
    """alpha * a @ b for views a and b of dense arrays."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a_all, b_all = np.broadcast_to(a, (*batch, m, k)), np.broadcast_to(b, (*batch, k, n))
    a_strides, b_strides = ([s // 4 for s in x.strides] for x in (a_all, b_all))
    fill = [1] * (6 - len(batch))
    return run_op(
        "matmul",
        row,
        threads,
        a=base(a),
        b=base(b),
        c=np.full((*batch, m, n), np.nan, np.float32),
        pack=threads * min(k, K_BLOCK) * min(-(-n // row.nr), PANELS) * row.nr * 4,
        m=m,
        n=n,
        k=k,
        ndim=len(batch),
        batch=[*batch, *fill],
        a_batch_stride=[*a_strides[:-2], *fill],
        b_batch_stride=[*b_strides[:-2], *fill],
        a_row_stride=a_strides[-2],
        a_col_stride=a_strides[-1],
        b_row_stride=b_strides[-2],
        b_col_stride=b_strides[-1],
        alpha=alpha,
    )["c"]


def check(c: np.ndarray, a: np.ndarray, b: np.ndarray, alpha: float = 1.0) -> None:
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    bound = tolerance(a.shape[-1], abs(alpha) * (np.abs(a64) @ np.abs(b64)))
    assert (np.abs(c - alpha * (a64 @ b64)) <= bound).all()


@every_row
@pytest.mark.parametrize("k", [0, 1, 2, 255, K_BLOCK, K_BLOCK + 1])
def test_edges(row: KernelRow, k: int) -> None:
    for m in (1, 2, row.mr - 1, row.mr, row.mr + 1, 2 * row.mr + 1):
        for n in (1, row.nr - 1, row.nr, row.nr + 1):
            a, b, b_rows = normal(m, k), normal(k, n), normal(n, k)
            check(matmul(row, a, b), a, b)
            check(matmul(row, a, b_rows.T), a, b_rows.T)


@every_row
@pytest.mark.parametrize("k", [1, 7, 8, 2 * K_BLOCK + 21])
def test_a_row_has_the_bits_of_several(row: KernelRow, k: int) -> None:
    """One row reads b along its rows, 1024 columns at a time."""
    a, b = normal(2, k), normal(k, 1100)
    np.testing.assert_array_equal(matmul(row, a[:1], b, threads=2), matmul(row, a, b)[:1])


@every_row
@pytest.mark.parametrize("k", [0, 1, 7, 8, 2 * K_BLOCK + 21])
def test_one_column(row: KernelRow, k: int) -> None:
    """Whatever rows are beside a row, whatever threads, and however the column lies in memory."""
    a, b = normal(83, k), normal(k, 1)
    c = matmul(row, a, b, 0.5, threads=2)
    check(c, a, b, 0.5)
    for m in (1, 2, 5, 33):
        np.testing.assert_array_equal(matmul(row, a[:m], b, 0.5), c[:m])
    strided = np.repeat(b, 3, axis=1)[:, :1]
    np.testing.assert_array_equal(matmul(row, a, strided, 0.5), c)
    columns = normal(k, 83).T
    check(matmul(row, columns, b), columns, b)


@every_row
def test_a_row_by_contiguous_columns(row: KernelRow) -> None:
    """Which is a column of c transposed; batches of either operand are repeated."""
    for k in (1, 37, K_BLOCK + 5):
        for a_batch, b_batch in (((), ()), ((2, 3), (2, 3)), ((4, 1), (3,)), ((2,), (1,))):
            a, b = normal(*a_batch, 1, k), np.swapaxes(normal(*b_batch, 2 * row.nr + 3, k), -1, -2)
            check(matmul(row, a, b, 0.5), a, b, 0.5)
            apart = np.swapaxes(normal(*a_batch, k, 2), -1, -2)[..., :1, :]
            np.testing.assert_array_equal(
                matmul(row, apart, b, threads=3), matmul(row, apart.copy(), b)
            )


@every_row
def test_batches_broadcast(row: KernelRow) -> None:
    for a_batch, b_batch in (((2, 3), (2, 3)), ((4, 1), (3,)), ((), (2, 1, 3)), ((2, 2, 1, 2), ())):
        a, b = normal(*a_batch, row.mr + 1, 11), normal(*b_batch, 11, row.nr + 5)
        check(matmul(row, a, b, 0.5), a, b, 0.5)


@every_row
def test_strided_operands(row: KernelRow) -> None:
    m, n, k = row.mr + 3, row.nr + 2, 37
    a, b = normal(2, m, 3, k), normal(2, n, 3, k)  # (B, S, H, D), as attention has them
    left, right = a.transpose(0, 2, 1, 3), b.transpose(0, 2, 3, 1)
    check(matmul(row, left, right, 0.25), left, right, 0.25)
    left = normal(3, k, m).transpose(0, 2, 1)
    right = normal(3, k, 2 * n)[..., ::2]
    check(matmul(row, left, right), left, right)


@every_row
def test_b_whose_rows_share_cache_sets(row: KernelRow) -> None:
    a, b = normal(4 * row.mr, 20), normal(20, 1024)
    check(matmul(row, a, b), a, b)


@every_row
def test_zero_sizes(row: KernelRow) -> None:
    for a_shape, b_shape in (((0, 2, 3), (3, 4)), ((2, 0, 3), (3, 4)), ((2, 2, 3), (3, 0))):
        a, b = normal(*a_shape), normal(*b_shape)
        assert matmul(row, a, b).shape == (a @ b).shape


@every_row
@pytest.mark.parametrize("name", ["large", "rows for every thread", "not worth a thread"])
def test_bits_do_not_depend_on_threads(row: KernelRow, name: str) -> None:
    batch, m, k, n = {
        "large": (2, 5 * row.mr + 1, K_BLOCK + 9, 6 * row.nr + 1),
        "rows for every thread": (1, 5 * row.mr + 1, 3 * K_BLOCK, row.nr + 1),
        "not worth a thread": (1, 1, 3, 6 * row.nr + 1),
    }[name]
    a, b = normal(batch, m, k), normal(batch, n, k).transpose(0, 2, 1)
    c = matmul(row, a, b)
    for threads in (2, 3, 8):
        assert matmul(row, a, b, threads=threads).tobytes() == c.tobytes()


def plain(
    row: KernelRow, a: np.ndarray, b: np.ndarray, bias: Any = None, panels: bool = False
) -> np.ndarray:
    """a (2, 1, m, k) @ b (k, n) + bias for views of dense arrays, b maybe put into panels; batch
    dims (2, 3). Equal bits with any number of threads.
    """
    (m, k), n = a.shape[-2:], b.shape[-1]
    strides = [[s // a.itemsize for s in x.strides] for x in (a, b)]
    (a_batch, _, *a_strides), b_strides = strides
    given: dict[str, Any] = {"m": m, "n": n, "k": k, "ndim": 2, "batch": [2, 3, 1, 1, 1, 1]}
    given["dtype"] = {"f8": 11, "i4": 6, "i8": 7, "u4": 12, "u8": 13}[a.dtype.str[1:]]
    given.update(a_batch_stride=[a_batch, 0, 0, 0, 0, 0], b_batch_stride=[0] * 6)
    given.update(a_row_stride=a_strides[0], a_col_stride=a_strides[1])
    given.update(b_row_stride=b_strides[0], b_col_stride=b_strides[1], b_panel_stride=0)
    b = base(b)
    if panels:
        count = -(-n // row.nr)
        wide = np.zeros((k, count * row.nr))
        wide[:, :n] = b
        b = wide.reshape(k, count, row.nr).transpose(1, 0, 2).copy()
        given.update(b_row_stride=row.nr, b_col_stride=1, b_panel_stride=k * row.nr)
    found = [
        run_op(
            "matmul_plain",
            row,
            threads,
            a=base(a),
            b=b,
            bias=bias,
            c=np.zeros((2, 3, m, n), a.dtype),
            **given,
        )["c"]
        for threads in (1, 3)
    ]
    assert found[0].tobytes() == found[1].tobytes()
    return found[0]


@pytest.mark.parametrize("row", rows("dgemm"), ids=lambda row: row.name)
@pytest.mark.parametrize("k", [0, 1, 7, 128, 129, 300])
def test_doubles(row: KernelRow, k: int) -> None:
    rng = np.random.default_rng(k)
    for m in (1, 2, 3, row.mr, 2 * row.mr + 1, 4 * row.mr + 5, 150):
        for n in (1, 2, row.nr - 1, row.nr, row.nr + 1, 5 * row.nr + 3):
            a, bias = rng.standard_normal((2, 1, m, k)), rng.standard_normal(n)
            b, turned = rng.standard_normal((k, n)), rng.standard_normal((n, k)).T
            a_turned = rng.standard_normal((2, 1, k, m)).swapaxes(2, 3)
            for left, right, given, panels in (
                (a, b, None, False),
                (a, turned, bias, False),
                (a_turned, b, bias, False),
                (a, b, bias, True),
                (a_turned, b, None, True),
            ):
                c = plain(row, left, right, given, panels)
                expected = left @ right + (0 if given is None else given)
                terms = np.abs(left) @ np.abs(right) + (0 if given is None else np.abs(given))
                assert (np.abs(c - expected) <= (k + 1) * 2.0**-52 * terms).all()


@pytest.mark.parametrize("dtype", ["i4", "i8", "u4", "u8"])
def test_integers(dtype: str) -> None:
    rng, limits = np.random.default_rng(8), np.iinfo(dtype)  # products wrap

    def draw(*shape: int) -> np.ndarray:
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)

    row = rows("dgemm")[0]
    for m, k, n, turned in (
        (1, 1, 1, False),
        (5, 7, 3, True),
        (9, 0, 4, False),
        (4, 33, 17, True),
        (70, 300, 8, False),  # few columns, of which parts are copied
        (3, 600, 1, True),
    ):
        a, b = draw(2, 1, m, k), draw(n, k).T if turned else draw(k, n)
        for bias in (None, draw(n)):
            expected = np.matmul(a, b) + (0 if bias is None else bias)
            np.testing.assert_array_equal(
                plain(row, a, b, bias), np.broadcast_to(expected, (2, 3, m, n))
            )
