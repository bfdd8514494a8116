"""qgemm and qconv against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.ops.quant_product import pack, qconv_work, qgemm_room
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op, run_threads

CODES = {"uint8": 2, "int8": 3, "int32": 6, "float32": 1}
TILES = 4  # QGEMM_TILES
every_row = pytest.mark.parametrize("row", rows("qgemm"), ids=lambda row: row.name)


def qgemm(row: KernelRow, m: int, n: int, k: int, a_dtype: str, c_dtype: str, threads: int = 1):
    """The result, and the exact sums; extreme bytes, a zero point, scales and bias per column."""
    rng = np.random.default_rng([m, n, k])
    limits = np.iinfo(a_dtype)
    a = rng.choice([limits.min, limits.max, 3], (m, k)).astype(a_dtype)
    b = rng.choice([0, 255, 7], (k, n)).astype(np.uint8)
    b_zero = rng.choice([0, 1, 128, 255], n).astype(np.uint8)
    packed, left = pack(b, b_zero, row)
    a_zero, zero = np.array(limits.max, a_dtype), np.array(2, c_dtype)
    scale, bias = rng.random(n).astype(np.float32), rng.random(n).astype(np.float32) * 9
    c = run_op(
        "qgemm",
        row,
        threads,
        a=a,
        a_zero=a_zero,
        a_scale=None,
        b=packed,
        b_zero=left,
        scale=None if c_dtype == "int32" else scale / max(k, 1) / 200,
        bias=None if c_dtype == "int32" else bias,
        zero=zero if c_dtype in ("uint8", "int8") else None,
        c=np.zeros((m, n), c_dtype),
        rows=threads * TILES * row.mr * qgemm_room(k),
        m=m,
        n=n,
        k=k,
        a_dtype=CODES[a_dtype],
        c_dtype=CODES[c_dtype],
        scales=n,
        panel_bytes=packed[0].nbytes,
        act="none",
        act_alpha=0.0,
        act_beta=0.0,
    )["c"]
    sums = (a.astype(np.int64) - int(a_zero)) @ (b.astype(np.int64) - b_zero)
    real = sums * (scale / np.float32(max(k, 1)) / np.float32(200)).astype(np.float64) + bias
    return c, sums, real


SHAPES = [(1, 1, 1), (1, 40, 7), (14, 32, 2), (15, 33, 3), (60, 5, 64), (130, 70, 129), (3, 4, 0)]
SHAPES += [(2, 33, 130), (5, 40, 64), (32, 64, 128), (49, 31, 66)]


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
        assert_rounded(c, real)


def assert_rounded(c: np.ndarray, real: np.ndarray) -> None:
    """c is real, rounded and plus 2, but where float rounding may decide a tie."""
    limits = np.iinfo(c.dtype)
    wanted = np.clip(np.rint(real) + 2, limits.min, limits.max)
    off = np.abs(c - wanted)
    near_half = np.abs(real - np.floor(real) - 0.5) < 1e-3
    assert (off[~near_half] == 0).all() and off.max(initial=0) <= 1


@every_row
def test_sums_wrap(row: KernelRow) -> None:
    k = 1 + 2**31 // (255 * 255)
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 1), 255, np.uint8)
    packed, left = pack(b, None, row)
    given = {"a": a, "a_zero": None, "a_scale": None, "b": packed, "b_zero": left, "scale": None}
    given.update(bias=None, zero=None, c=np.zeros((1, 1), np.int32))
    given.update(rows=TILES * row.mr * qgemm_room(k), panel_bytes=packed[0].nbytes)
    fields = {"m": 1, "n": 1, "k": k, "a_dtype": 2, "c_dtype": 6, "scales": 1}
    fields.update(act="none", act_alpha=0.0, act_beta=0.0)
    assert run_op("qgemm", row, **given, **fields)["c"] == k * 255 * 255 - 2**32


@every_row
def test_bits_do_not_depend_on_threads(row: KernelRow) -> None:
    one = qgemm(row, 130, 300, 64, "uint8", "int8")[0]
    for threads in (2, 3, 8):
        assert qgemm(row, 130, 300, 64, "uint8", "int8", threads)[0].tobytes() == one.tobytes()


def windows(
    x: np.ndarray, w: np.ndarray, stride: tuple, pads: tuple, dilation: tuple
) -> np.ndarray:
    """The sums of a convolution in groups, exact. pads: top, left, bottom, right."""
    (n, channels, *_), (filters, per_group, kh, kw) = x.shape, w.shape
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    reach = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilation)]
    out = [(size - r) // s + 1 for size, r, s in zip(x.shape[2:], reach, stride)]
    y = np.zeros((n, filters, *out), np.int64)
    for m in range(filters):
        first = m // (filters // (channels // per_group)) * per_group
        for c, i, j in np.ndindex(per_group, kh, kw):
            rows = slice(i * dilation[0], i * dilation[0] + (out[0] - 1) * stride[0] + 1, stride[0])
            columns = slice(
                j * dilation[1], j * dilation[1] + (out[1] - 1) * stride[1] + 1, stride[1]
            )
            y[:, m] += x[:, first + c, rows, columns] * int(w[m, c, i, j])
    return y


GROUPED = [  # x, w, stride, pads, dilation
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    ((2, 4, 9, 17), (4, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((1, 6, 8, 70), (9, 2, 3, 5), (2, 2), (0, 2, 1, 4), (1, 1)),
    ((1, 4, 5, 600), (4, 2, 1, 3), (1, 1), (0, 1, 0, 1), (1, 2)),
    ((3, 2, 11, 13), (2, 1, 2, 2), (3, 3), (4, 5, 3, 2), (2, 3)),
    ((0, 2, 5, 5), (2, 1, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
]


@pytest.mark.parametrize("row", rows("qconv"), ids=lambda row: row.name)
@pytest.mark.parametrize("c_dtype", CODES)
@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
def test_qconv(row: KernelRow, x_dtype: str, c_dtype: str) -> None:
    for shape, w_shape, stride, pads, dilation in GROUPED:
        rng, limits = np.random.default_rng(shape), np.iinfo(x_dtype)
        x = rng.choice([limits.min, limits.max, 3], shape).astype(x_dtype)
        w = rng.integers(-255, 256, w_shape).astype(np.int16)
        x_zero, zero = np.array(limits.max - 1, x_dtype), np.array(2, c_dtype)
        centred = x.astype(np.int64) - int(x_zero)
        sums = windows(centred, w, stride, pads, dilation)
        (N, C, H, W), (M, per_group, kh, kw) = shape, w_shape
        scale = (rng.random(M) / (200 * per_group * kh * kw)).astype(np.float32)
        bias = (rng.random(M) * 9).astype(np.float32)
        is_sum, is_byte = c_dtype == "int32", c_dtype in ("uint8", "int8")
        given = {"x": x, "x_zero": x_zero, "w": w, "zero": zero if is_byte else None}
        given.update(scale=None if is_sum else scale, bias=None if is_sum else bias)
        given.update({"y": np.zeros(sums.shape, c_dtype), "N": N, "C": C, "H": H, "W": W, "M": M})
        given.update(dict(zip(("OH", "OW"), sums.shape[2:])), kh=kh, kw=kw)
        for name, values in (("stride", stride), ("dilation", dilation)):
            given.update({f"{name}_h": values[0], f"{name}_w": values[1]})
        given.update(pad_top=pads[0], pad_left=pads[1], groups=C // per_group, scales=M)
        given.update(x_dtype=CODES[x_dtype], y_dtype=CODES[c_dtype])
        (y,) = run_threads("qconv", row, work=8 * qconv_work(given) * 4, **given)
        real = sums * scale.astype(np.float64)[:, None, None] + bias[:, None, None]
        if is_sum:
            np.testing.assert_array_equal(y, sums)
        elif c_dtype == "float32":
            np.testing.assert_allclose(y, real, rtol=1e-5, atol=1e-5)
        else:
            assert_rounded(y, real)
