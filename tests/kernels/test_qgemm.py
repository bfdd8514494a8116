"""Integer products and convolutions against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.ops.quant_pack import (
    pack,
    pack_taps,
    panel_bytes,
    qgemm_room,
    reads_windows,
    side_by_side,
)
from q7x2_ep.ops.quant_product import MADE_AT_RUN
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import padded, rows, run_op, run_threads, tolerance
from tests.kernels.windows import Window, convolve

CODES = {"uint8": 2, "int8": 3, "int32": 6, "float32": 1}
TILES = 4  # QGEMM_TILES
ONE = {"ndim": 0, "batch": padded([], 6)}  # product
ONE.update(a_batch_stride=ONE["batch"], b_batch_stride=ONE["batch"])
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
        a_stride=k,
        a_dtype=CODES[a_dtype],
        c_dtype=CODES[c_dtype],
        scales=n,
        panel_bytes=packed[0].nbytes,
        act="none",
        act_alpha=0.0,
        act_beta=0.0,
        **ONE,
    )["c"]
    sums = (a.astype(np.int64) - int(a_zero)) @ (b.astype(np.int64) - b_zero)
    real = sums * (scale / np.float32(max(k, 1)) / np.float32(200)).astype(np.float64) + bias
    return c, sums, real


SHAPES = [(1, 1, 1), (1, 40, 7), (14, 32, 2), (15, 33, 3), (60, 5, 64), (130, 70, 129), (3, 4, 0)]
SHAPES += [(2, 33, 130), (5, 40, 64), (32, 64, 128), (49, 31, 66)]
SHAPES += [(10, 17, 4096), (11, 40, 4096), (29, 33, 4096)]  # rows that compete for a set of L1


@every_row
@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("a_dtype", ["uint8", "int8"])
def test_qgemm(row: KernelRow, m: int, n: int, k: int, a_dtype: str) -> None:
    for c_dtype in CODES:
        assert_finished(*qgemm(row, m, n, k, a_dtype, c_dtype))


def assert_finished(c: np.ndarray, sums: np.ndarray, real: np.ndarray) -> None:
    """By its dtype c is the sums, or real; or real rounded and plus 2, but where float rounding may
    decide a tie.
    """
    if c.dtype == np.int32:
        np.testing.assert_array_equal(c, sums)
        return
    if c.dtype == np.float32:
        terms = np.abs(real) + 2 * 9  # the exact sums, scaled, and a bias below 9
        assert (np.abs(c - real) <= tolerance(0, terms)).all()
        return
    limits = np.iinfo(c.dtype)
    wanted = np.clip(np.rint(real) + 2, limits.min, limits.max)
    off = np.abs(c - wanted)
    near_half = np.abs(real - np.floor(real) - 0.5) < 1e-3
    assert (off[~near_half] == 0).all() and off.max(initial=0) <= 1


@every_row
@pytest.mark.parametrize("k", [1 + 2**31 // 255**2, 2**17 + 3])  # or sums of rows beyond 2^24
def test_sums_wrap(row: KernelRow, k: int) -> None:
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 1), 255, np.uint8)
    packed, left = pack(b, None, row)
    given = {"a": a, "a_zero": None, "a_scale": None, "b": packed, "b_zero": left, "scale": None}
    given.update(bias=None, zero=None, c=np.zeros((1, 1), np.int32))
    given.update(rows=TILES * row.mr * qgemm_room(k), panel_bytes=packed[0].nbytes)
    fields = {"m": 1, "n": 1, "k": k, "a_stride": k, "a_dtype": 2, "c_dtype": 6, "scales": 1, **ONE}
    fields.update(act="none", act_alpha=0.0, act_beta=0.0)
    assert run_op("qgemm", row, **given, **fields)["c"] == np.int64(k * 255**2).astype(np.int32)


def extreme(kind: str, k: int, n: int) -> np.ndarray:
    """int8 weights of which pairs, or fours, of products overflow int16."""
    rng = np.random.default_rng(k)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    fill = {
        "most": (127,),
        "least": (-128,),
        "by turns": (127, -128),
        "pairs": (127, 127, -128, -128),
    }
    if kind in fill:
        b[...] = np.resize(np.array(fill[kind], np.int8), k)[:, None]
    elif kind == "few":
        b[...] = np.where(rng.random((k, n)) < 0.05, b, b // 16)
    return b


@every_row
@pytest.mark.parametrize("kind", ["most", "least", "by turns", "pairs", "few", "any"])
@pytest.mark.parametrize(
    "m, n, k", [(1, 33, 64), (2, 16, 27), (3, 5, 1), (29, 70, 130), (6, 32, 17)]
)
def test_sums_do_not_saturate(row: KernelRow, m: int, n: int, k: int, kind: str) -> None:
    b = extreme(kind, k, n)
    for dtype, ends in (("uint8", (0, 255)), ("int8", (-128, 127))):
        for values in (ends, ends[:1], ends[1:], range(ends[0], ends[1] + 1)):
            a = np.random.default_rng(m).choice(values, (m, k)).astype(dtype)
            for weight, zeros in ((b, None), ((b.view(np.uint8) ^ 128), np.full(n, 128, np.uint8))):
                packed, left = pack(weight, zeros, row)
                given = {"a": a, "a_zero": None, "a_scale": None, "b": packed, "b_zero": left}
                given.update(scale=None, bias=None, zero=None, c=np.zeros((m, n), np.int32))
                given.update(rows=TILES * row.mr * qgemm_room(k), panel_bytes=packed[0].nbytes)
                fields = {
                    "m": m,
                    "n": n,
                    "k": k,
                    "a_stride": k,
                    "a_dtype": CODES[dtype],
                    "c_dtype": 6,
                    "scales": 1,
                    **ONE,
                }
                fields.update(act="none", act_alpha=0.0, act_beta=0.0)
                c = run_op("qgemm", row, **given, **fields)["c"]
                np.testing.assert_array_equal(c, a.astype(np.int64) @ b)


@every_row
def test_bits_do_not_depend_on_threads(row: KernelRow) -> None:
    one = qgemm(row, 130, 300, 64, "uint8", "int8")[0]
    for threads in (2, 3, 8):
        assert qgemm(row, 130, 300, 64, "uint8", "int8", threads)[0].tobytes() == one.tobytes()


@pytest.mark.parametrize("row", rows("qgemm", MADE_AT_RUN), ids=lambda row: row.name)
@pytest.mark.parametrize("c_dtype", ["int32", "uint8"])
def test_batches(row: KernelRow, c_dtype: str) -> None:
    """Rows apart from one another, and matrices that several of a share."""
    rng, (m, k, n) = np.random.default_rng(3), (17, 37, 70)
    a = rng.integers(0, 256, (2, 3, m, k + 5)).astype(np.uint8)
    b = rng.integers(-128, 128, (3, k, n)).astype(np.int8)
    packed = [pack(each, None, row)[0] for each in b]
    step = packed[0].nbytes
    scale = np.array([1e-3], np.float32)
    fields = {"ndim": 2, "batch": padded([2, 3], 6), "b_batch_stride": padded([0, step], 6)}
    fields["a_batch_stride"] = padded([3 * m * (k + 5), m * (k + 5)], 6)
    fields.update(m=m, n=n, k=k, a_stride=k + 5, a_dtype=2, c_dtype=CODES[c_dtype], scales=1)
    fields.update(panel_bytes=packed[0].strides[0], act="none", act_alpha=0.0, act_beta=0.0)
    given = {"a": a, "a_zero": np.array(7, np.uint8), "a_scale": None, "b": np.stack(packed)}
    given.update(b_zero=None, scale=None if c_dtype == "int32" else scale, bias=None)
    given.update(zero=None if c_dtype == "int32" else np.array(2, np.uint8))
    given.update(c=np.zeros((2, 3, m, n), c_dtype), rows=8 * TILES * row.mr * qgemm_room(k))
    (c,) = run_threads("qgemm", row, **given, **fields)
    sums = (a[..., :k].astype(np.int64) - 7) @ b
    assert_finished(c, sums, sums * np.float64(scale))


@pytest.mark.parametrize("row", rows("qpack"), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("turned", [False, True])
def test_qpack(row: KernelRow, dtype: str, turned: bool) -> None:
    """As weights are packed, which test_qgemm multiplies by; quads of uint8 are 128 less."""
    sizes = (1, 1), (2, 33), (3, 16), (5, 70), (64, 32), (67, 96), (130, 12), (128, 65), (0, 4)
    for k, n in sizes:
        rng, gap = np.random.default_rng([k, n]), 3
        whole = rng.integers(0, 256, (2, n, k + gap) if turned else (2, k, n + gap))
        whole = whole.astype(np.uint8).view(dtype)
        b = whole[..., :k].swapaxes(1, 2) if turned else whole[..., :n]
        for zero in (None, whole.dtype.type(-3 % 128), rng.integers(0, 127, n).astype(dtype)):
            low = 128 if row.dtypes == "u8" and dtype == "uint8" else 0
            taken = np.broadcast_to(0 if zero is None else zero, n)
            if row.dtypes == "u8":
                centred = [((each.astype(np.int16) - low).astype(np.int8), None) for each in b]
            else:
                centred = [(each, taken) for each in b]
            wanted = np.stack([pack(each, zeros, row)[0] for each, zeros in centred])
            panels = -(-n // row.nr)
            packed, zeros = run_threads(
                "qpack",
                row,
                b=whole,
                zero=None if zero is None else np.asarray(zero),
                packed=np.full_like(wanted, 9),
                zeros=np.zeros(panels * row.nr, np.int32),
                n=n,
                k=k,
                ndim=1,
                batch=padded([2], 6),
                batch_stride=padded([whole[0].size], 6),
                row_stride=1 if turned else n + gap,
                col_stride=k + gap if turned else 1,
                dtype=CODES[dtype],
                per_column=int(np.ndim(zero) == 1),
                panel_bytes=panel_bytes(row, k),
            )
            np.testing.assert_array_equal(packed, wanted)
            if row.dtypes == "u8":
                np.testing.assert_array_equal(zeros[:n], taken.astype(np.int32) - low)


IMAGES = [  # x (N, H, W, C), w (M, C / groups, kh, kw), stride, pads, dilation
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    ((2, 9, 7, 64), (40, 64, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    ((2, 9, 7, 5), (33, 5, 3, 3), (2, 1), (1, 0, 1, 2), (1, 1)),
    ((1, 13, 12, 3), (8, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
    ((1, 8, 9, 20), (4, 20, 2, 3), (1, 2), (0, 3, 2, 1), (2, 3)),
    ((0, 5, 5, 2), (3, 2, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
    ((2, 9, 7, 80), (68, 40, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),  # in groups from here on
    ((1, 6, 5, 36), (45, 4, 3, 2), (1, 2), (1, 0, 1, 2), (1, 1)),
    ((2, 5, 6, 6), (18, 1, 2, 3), (2, 1), (0, 2, 1, 1), (1, 2)),
    ((2, 7, 19, 48), (48, 24, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((1, 9, 20, 8), (72, 8, 3, 2), (2, 2), (2, 3, 2, 0), (2, 1)),
    ((1, 2, 40, 4), (5, 4, 5, 1), (1, 2), (3, -1, 2, -2), (1, 1)),
]


@every_row
@pytest.mark.parametrize("c_dtype", CODES)
@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
def test_qconv_last(row: KernelRow, x_dtype: str, c_dtype: str) -> None:
    for shape, w_shape, stride, pads, dilation in IMAGES:
        rng, limits = np.random.default_rng(shape), np.iinfo(x_dtype)
        x = rng.choice([limits.min, limits.max, 3], shape).astype(x_dtype)
        w = rng.choice([0, 255, 7], w_shape).astype(np.uint8)
        (N, H, W, C), (M, per_group, kh, kw), gap = shape, w_shape, 3
        w_zero = rng.choice([0, 128, 255], M).astype(np.uint8)
        x_zero, zero = np.array(limits.max - 1, x_dtype), np.array(2, c_dtype)
        centred = x.astype(np.int64).transpose(0, 3, 1, 2) - int(x_zero)
        wide = w.astype(np.int64) - w_zero[:, None, None, None]
        at = Window((kh, kw), stride, dilation, pads[:2], pads[2:])
        sums = convolve(centred, wide, at, C // per_group).transpose(0, 2, 3, 1)
        flat = w.reshape(M, per_group, -1)
        matrix, zeros, groups = side_by_side(flat, w_zero, C // per_group, row)
        packed, left = pack(matrix, zeros, row)
        k = len(matrix)
        scale = (rng.random(M) / (200 * k)).astype(np.float32)
        bias = (rng.random(M) * 9).astype(np.float32)
        is_sum, is_byte = c_dtype == "int32", c_dtype in ("uint8", "int8")
        given = {"x": x, "x_zero": x_zero, "w": packed, "w_zero": left}
        given.update(zero=zero if is_byte else None)
        given.update(scale=None if is_sum else scale, bias=None if is_sum else bias)
        room = np.full((*sums.shape[:3], M + gap), 9, c_dtype)
        given.update(at.fields((H, W), sums.shape[1:3], 2), y=room, y_stride=M + gap)
        given.update(N=N, C=C, M=M, groups=groups, scales=M, panel_bytes=packed[0].nbytes)
        given.update(x_dtype=CODES[x_dtype], y_dtype=CODES[c_dtype])
        fits = reads_windows(row) and kw * C // groups % 4 == 0 and dilation[1] == 1
        for lines in (0, 1, 2, 50) if fits else (0,):
            copied = ((lines + 2) * stride[0] + kh * dilation[0]) * (W + 8) * C + 64 * W * lines
            bytes_ = TILES * row.mr * (-(-k // 64) * 64 + qgemm_room(k)) + max(0, copied)
            (y,) = run_threads("qconv_last", row, rows=8 * bytes_, lines=lines, **given)
            assert (y[..., M:] == 9).all()
            assert_finished(y[..., :M], sums, sums * scale.astype(np.float64) + bias)


DEPTHWISE = [  # x (N, H, W, C), kernel, stride, pads, dilation
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    ((2, 6, 9, 64), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((1, 7, 8, 100), (3, 3), (2, 2), (0, 1, 1, 1), (1, 1)),
    ((2, 5, 12, 19), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1)),
    ((1, 3, 20, 145), (1, 7), (1, 2), (0, 3, 0, 5), (1, 1)),
    ((1, 8, 9, 24), (2, 3), (1, 2), (0, 3, 2, 1), (2, 3)),
    ((1, 9, 7, 16), (3, 2), (1, 1), (2, 0, 2, 0), (3, 1)),
    ((1, 5, 6, 33), (4, 4), (3, 1), (4, 5, 3, 6), (1, 1)),
    ((0, 5, 5, 2), (3, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
]


@pytest.mark.parametrize("row", rows("qdepthwise"), ids=lambda row: row.name)
@pytest.mark.parametrize("c_dtype", CODES)
@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("most", [127, 255])  # weights that are one int8, or several
def test_qdepthwise(row: KernelRow, most: int, x_dtype: str, c_dtype: str) -> None:
    for shape, (kh, kw), stride, pads, dilation in DEPTHWISE:
        rng, limits = np.random.default_rng(shape), np.iinfo(x_dtype)
        (N, H, W, C), gap = shape, 3
        x = rng.choice([limits.min, limits.max, 3], shape).astype(x_dtype)
        w = rng.integers(-most, most + 1, (C, kh, kw)).astype(np.int16)
        w[0, 0, 0] = most
        x_zero, zero = np.array(limits.max - 1, x_dtype), np.array(2, c_dtype)
        centred = x.astype(np.int64).transpose(0, 3, 1, 2) - int(x_zero)
        at = Window((kh, kw), stride, dilation, pads[:2], pads[2:])
        sums = convolve(centred, w.astype(np.int64)[:, None], at, C).transpose(0, 2, 3, 1)
        scale = (rng.random(C) / (200 * kh * kw)).astype(np.float32)
        bias = (rng.random(C) * 9).astype(np.float32)
        side_by_side = stride[1] if dilation[1] == 1 else None
        packed, parts = pack_taps(w, scale, bias, side_by_side, row)
        room = np.full((*sums.shape[:3], C + gap), 9, c_dtype)
        given = {"x": x, "x_zero": x_zero, "w": packed, "y": room, "y_stride": C + gap}
        given.update(zero=zero if c_dtype in ("uint8", "int8") else None)
        given.update(at.fields((H, W), sums.shape[1:3], 2), N=N, C=C, parts=parts)
        given.update(x_dtype=CODES[x_dtype], y_dtype=CODES[c_dtype], panel_bytes=packed[0].nbytes)
        work = -(-C // 64) * 64 + 8 * 8 * kh * (kw + 3)
        (y,) = run_threads("qdepthwise", row, work=work, **given)
        assert (y[..., C:] == 9).all()
        assert_finished(y[..., :C], sums, sums * scale.astype(np.float64) + bias)
