"""attention against float64: sizes around tiles and lanes, masks, layouts, which keys are seen."""

from __future__ import annotations

import itertools
from typing import NamedTuple, Optional

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.ops.attention import TILED, kept_blocks, partial_floats, work_floats
from tests.kernels.harness import remembered
from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads as run_op

EPS = np.finfo(np.float32).eps
LOWEST = np.finfo(np.float32).min
QUERIES, KEYS, KEPT = 512, 128, 32  # the blocks of csrc/kernels/attention.h
PAGE = 1024  # floats from row to row where it copies keys and values
ROWS = pytest.mark.parametrize("kernel", kernels("attention"), ids=lambda k: k.name)


class Scoring(NamedTuple):
    """How scores are made of products, beyond mask and visibility."""

    scale: float
    softcap: float = 0.0
    bias: Optional[np.ndarray] = None
    fill: float = -np.inf
    zero: int = 0  # 1: masked rows, 2: all rows that are NaN
    sinks: Optional[np.ndarray] = None  # (H,)


@remembered
def reference(q, k, v, mask, scoring, visible):
    """Output and the error bound, (B, H, Sq, Dv), in float64; inputs (B, H, S, D)."""
    scale, softcap, bias, fill, zero, sinks = scoring
    group = q.shape[1] // k.shape[1]
    q, k, v = (t.astype(np.float64) for t in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    s = scale * (q @ k.swapaxes(-1, -2))
    s = softcap * np.tanh(s / softcap) if softcap else s
    s = s if bias is None else s + bias
    if mask is not None and mask.dtype == np.bool_:
        s = np.where(mask, s, fill)
    elif mask is not None:
        s = np.where(mask == LOWEST, LOWEST, s + mask)  # in f32 the score drowns in such a mask
    s = np.where(visible[:, None], s, -np.inf)
    with np.errstate(all="ignore"):
        sink = np.reshape(-np.inf if sinks is None else sinks.astype(np.float64), (-1, 1, 1))
        top = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), sink)
        e = np.exp(s - top)
        p = e / (e.sum(-1, keepdims=True) + np.exp(sink - top))
    if zero:
        p = np.where(np.isneginf(s).all(-1, keepdims=True), 0, p)
    if zero > 1:
        p = np.where(np.isnan(p), 0, p)
    # a score is off by at most eps/2 per term of its dot product; p moves by as much of itself
    drift = (
        EPS
        * (q.shape[3] / 2 + 2)
        * np.abs(scale)
        * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max(initial=0)
    )
    added = sum(np.abs(x[np.abs(x) < 1e9]).max(initial=0) for x in (mask, bias) if x is not None)
    mask_drift = EPS * (added + 4 * abs(softcap))
    bound = (2 * (drift + mask_drift) + EPS * (16 + k.shape[2] / 4)) * np.abs(v).max(initial=0)
    return p @ v, bound


def between_kernels(v):
    """How far apart two sums of one mean of v may be: the roundings of its keys are independent."""
    return EPS * np.sqrt(v.shape[2]) * np.abs(v).max()


def sight(B, Sq, Skv, lengths, offsets, offset, window):
    """Which keys each query sees: (B, Sq, Skv)."""
    key, query = np.arange(Skv), np.arange(Sq)[:, None]
    vectors = [np.zeros(1, int) if x is None else x for x in (lengths, offsets)]
    many = [np.broadcast_to(x, B).clip(-(1 << 30), 1 << 30) for x in vectors]  # no overflow below
    seen = np.ones((B, Sq, Skv), np.bool_)
    ahead = key - (query + offset + many[1][:, None, None])
    if lengths is not None:
        seen &= key < many[0][:, None, None]
    for distance, bound in zip((-ahead, ahead), window):
        if bound >= 0:
            seen &= distance <= bound
    return seen


def attention(
    kernel,
    q,
    k,
    v,
    mask=None,
    scoring=None,
    lengths=None,
    offsets=None,
    offset=0,
    window=(-1, -1),
    layout="bhsd",
    threads=(1, 2, 3, 8),
):
    """Inputs (B, H, S, D), handed over in the memory order of `layout`. "paged" is bhsd with
    rows of keys and values 4 KB apart."""
    to, back = ((0, 2, 1, 3),) * 2 if layout == "bshd" else ((0, 1, 2, 3),) * 2
    (B, H, Sq, D), (_, Hkv, Skv, Dv) = q.shape, v.shape
    o = np.full((B, H, Sq, Dv), 7, np.float32)
    stored = {name: np.ascontiguousarray(t.transpose(to)) for name, t in zip("qkvo", (q, k, v, o))}
    if layout == "paged":
        for name in "kv":
            stored[name] = np.pad(stored[name], [(0, 0)] * 3 + [(0, PAGE - stored[name].shape[3])])
    given = {"B": B, "H": H, "Hkv": Hkv, "Sq": Sq, "Skv": Skv, "D": D, "Dv": Dv}
    for name, t in stored.items():
        for axis, step in zip("bhs", t.transpose(back).strides):
            given[f"{name}_{axis}_stride"] = step // 4
    for name, t in (("mask", mask), ("bias", scoring.bias)):
        steps = [0] * 4 if t is None else np.broadcast_to(t, (B, H, Sq, Skv)).strides
        for axis, step in zip("bhqk", steps):
            given[f"{name}_{axis}_stride"] = step // t.itemsize if t is not None else 0
    given.update(mask_dtype=0 if mask is None else 9 if mask.dtype == np.bool_ else 1)
    for name, t in (("lengths", lengths), ("offsets", offsets)):
        given[f"{name}_dtype"] = 0 if t is None else 7 if t.dtype == np.int64 else 6
        given[f"{name}_stride"] = int(t is not None and t.size > 1)
    given.update(mask=mask, bias=scoring.bias, lengths=lengths, offsets=offsets, offset=offset)
    given.update(sinks=scoring.sinks)
    given.update(left=window[0], right=window[1])
    given.update(zero_masked_rows=int(scoring.zero > 0), zero_nan_rows=int(scoring.zero > 1))
    given.update(scale=scoring.scale, softcap=scoring.softcap, fill=scoring.fill)
    how = (load("").target.constants, kernel.isa)
    kept = kept_blocks(*how, Sq, Skv, TILED, given["v_s_stride"])  # amx: of few keys, too
    floats = work_floats(*how, (Sq, Skv, D, Dv), kept)
    given.update(kept=kept, work_floats=floats)
    given.update(work=4 * max(threads) * floats)
    given.update(partial=4 * partial_floats(how[0], (B, H, Sq, Skv, Dv)))
    return run_op("attention", kernel, threads=threads, **stored, **given)[0].transpose(back)


def check(
    kernel,
    q,
    k,
    v,
    mask=None,
    scale=None,
    causal=0,
    fill=-np.inf,
    zero=0,
    softcap=0.0,
    bias=None,
    lengths=None,
    offsets=None,
    offset=None,
    window=(-1, -1),
    sinks=None,
    **how,
):
    (B, _, Sq, D), Skv = q.shape, k.shape[2]
    scoring = Scoring(D**-0.5 if scale is None else scale, softcap, bias, fill, zero, sinks)
    offset = Skv - Sq if offset is None else offset
    window = (window[0], 0) if causal else window
    seen = {"lengths": lengths, "offsets": offsets, "offset": offset, "window": window}
    y = attention(kernel, q, k, v, mask, scoring, **seen, **how)
    expected, bound = reference(q, k, v, mask, scoring, sight(B, Sq, Skv, **seen))
    if Skv == 0:
        expected = np.zeros_like(expected)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    assert (np.abs(y - expected)[~np.isnan(expected)] <= bound).all()
    return y


def operands(B=1, H=2, Hkv=None, Sq=5, Skv=7, D=16, Dv=None, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = ((B, H, Sq, D), (B, Hkv or H, Skv, D), (B, Hkv or H, Skv, Dv or D))
    return tuple(rng.standard_normal(s).astype(np.float32) for s in (q, k, v))


@ROWS
def test_sizes(kernel):
    for Sq, Skv in itertools.product((1, 4, 5, 12, 31, 33, 97, 130), (1, 2, 13, 127, 129, 300)):
        check(kernel, *operands(H=1, Sq=Sq, Skv=Skv, D=16), threads=(1, 3))
    # four blocks, as many as the largest needs, and one that leaves four queries
    for Sq, Skv in ((385, 130), (1540, 20), (484, 130)):
        check(kernel, *operands(H=1, Sq=Sq, Skv=Skv, D=8), causal=1, threads=(1, 3))
    for D, Dv in (
        (1, 1),
        (3, 17),
        (17, 3),
        (40, 40),
        (64, 64),
        (80, 80),
        (128, 128),
        (64, 33),
        (8, 32),
    ):
        for Sq, layout in itertools.product((3, 20, 65), ("bhsd", "bshd")):
            check(
                kernel,
                *operands(B=2, H=4, Sq=Sq, Skv=140, D=D, Dv=Dv),
                layout=layout,
                threads=(1, 3),
            )


@ROWS
def test_layouts_threads_groups(kernel):
    for layout, Hkv, causal in itertools.product(("bhsd", "bshd", "paged"), (1, 2, 6), (0, 1)):
        q, k, v = operands(B=2, H=6, Hkv=Hkv, Sq=150, Skv=170, D=32)
        check(kernel, q, k, v, layout=layout, causal=causal)


@ROWS
@pytest.mark.parametrize("Skv", [512, 513, 1024, 1700])
def test_few_queries_of_keys_in_parts(kernel, Skv):
    """Whatever a part does not see, and whatever it alone sees."""
    for Sq, Hkv, D in ((1, 1, 16), (1, 3, 40), (4, 2, 8), (3, 6, 64)):
        q, k, v = operands(B=2, H=6, Hkv=Hkv, Sq=Sq, Skv=Skv, D=D)
        check(kernel, q, k, v, causal=1)
        check(kernel, q, k, v, window=(90, 0), sinks=np.linspace(-3, 3, 6, dtype=np.float32))
        lengths = np.array([Skv - 3, 5])
        check(kernel, q, k, v, lengths=lengths, offsets=lengths - Sq, offset=0, zero=1)
        mask = np.ones((2, 1, Sq, Skv), bool)
        mask[0, ..., :600], mask[1, ..., 100:] = False, False
        for fill, zero in ((-np.inf, 0), (-1e30, 0), (-np.inf, 2)):
            check(kernel, q, k, v, mask, fill=fill, zero=zero)
        added = np.where(mask, 0, np.float32(np.finfo(np.float32).min))
        check(kernel, q, k, v, added, softcap=5.0)
        large = k.copy()
        large[:, :, Skv // 2] *= 1e20
        check(kernel, q, large, v, scale=-1.0)


@ROWS
def test_errors_of_positive_values_have_no_sign(kernel):
    """Else those of layers, one behind the other, would add up."""
    q, k, v = operands(H=1, Sq=64, Skv=8192, D=16, Dv=16)
    v = np.abs(v)
    y = check(kernel, q, k, v, threads=(1,))
    scoring = Scoring(16**-0.5)
    true, _ = reference(q, k, v, None, scoring, np.ones((1, 64, 8192), bool))
    assert abs(np.mean(y / true - 1)) < 2.0**-25


@ROWS
@pytest.mark.parametrize("causal", [0, 1])
def test_more_keys_than_are_kept(kernel, causal):
    q, k, v = operands(Hkv=1, Sq=QUERIES + 60, Skv=KEPT * KEYS + 300, D=8)
    check(kernel, q, k, v, causal=causal, threads=(1, 3), layout="paged")


@ROWS
@pytest.mark.parametrize("Sq, Skv", [(3, 150), (70, 150), (110, 20)])
def test_masks(kernel, Sq, Skv):
    rng = np.random.default_rng(19)
    q, k, v = operands(B=2, H=2, Sq=Sq, Skv=Skv, D=24)
    for sizes in itertools.product(*((1, n) for n in (2, 2, Sq, Skv))):
        masked = rng.random(sizes) < 0.5
        for causal in (0, 1):
            how = {"causal": causal, "threads": (1,)}
            check(kernel, q, k, v, rng.standard_normal(sizes).astype(np.float32), **how)
            check(kernel, q, k, v, np.where(masked, LOWEST, 0).astype(np.float32), **how)
            check(kernel, q, k, v, np.where(masked, -np.inf, 0).astype(np.float32), **how)
            check(kernel, q, k, v, masked, fill=-np.inf, **how)
            check(kernel, q, k, v, masked, fill=-4.0, **how)
            check(kernel, q, k, v, masked, fill=float(LOWEST), **how)


@ROWS
@pytest.mark.parametrize("Sq", [2, 70])
def test_masked_out_rows(kernel, Sq):
    q, k, v = operands(Sq=Sq, Skv=200)
    everywhere = np.ones((1, 1, Sq, 200), np.float32)
    for zero in (0, 1):
        for mask in (everywhere * -np.inf, everywhere * LOWEST):
            check(kernel, q, k, v, mask, zero=zero)
            mask[..., 1:, 150:] = 0  # one row of all; the others see nothing but the last keys
            check(kernel, q, k, v, mask, zero=zero)
        check(kernel, q, k, v, np.zeros((1, 1, Sq, 200), np.bool_), zero=zero)
        check(kernel, q, k[:, :, : Sq // 2], v[:, :, : Sq // 2], causal=1, zero=zero)


@ROWS
def test_masks_that_hide_blocks(kernel):
    """Causal masks as data, and one that hides the first block from some queries."""
    q, k, v = operands(Sq=300, Skv=400, D=8)
    later = np.arange(400) > np.arange(300)[:, None] + 20
    early = (np.arange(400) < 200) & (np.arange(300)[:, None] >= 150)
    for hidden in (later, early, later | early):
        for low in (-np.inf, LOWEST):
            check(kernel, q, k, v, np.where(hidden, low, 0).astype(np.float32)[None, None])
            check(kernel, q, k, v, ~hidden[None, None], fill=float(low), threads=(1, 3))
        check(kernel, q, k, v, np.where(hidden, -1e4, 0).astype(np.float32)[None, None])
        check(kernel, q, k, v, ~hidden[None, None], fill=-5.0, threads=(1, 3))


@ROWS
@pytest.mark.parametrize("Sq", [2, 70])
def test_nan_in_a_mask(kernel, Sq):
    """It is not lost in a block of keys that the mask hides otherwise."""
    mask = np.zeros((1, 1, Sq, 200), np.float32)
    mask[..., 120:] = -np.inf
    mask[..., 1, 150] = np.nan
    check(kernel, *operands(Sq=Sq, Skv=200), mask)


@ROWS
def test_scales_and_large_scores(kernel):
    for Sq, scale in itertools.product((2, 70), (1.0, -0.5, 0.0, 40.0)):
        check(kernel, *operands(Sq=Sq, Skv=300), scale=scale, threads=(1,))


@ROWS
@pytest.mark.parametrize("Sq", [2, 70])
@pytest.mark.parametrize("number", [1e10, 1e11, 1e12, 1e15, 1e20, 1e30, 3.4e38])
def test_finite_masks_of_any_size(kernel, Sq, number):
    """Scores drown in them: keys that the same number masks weigh all the same."""
    q, k, v = operands(H=1, Sq=Sq, Skv=300)
    added = np.zeros((1, 1, Sq, 300), np.float32)
    added[..., 0, :] = -number
    added[..., 1, 100:] = number
    for mask, bias in ((added, None), (None, added)):
        y = attention(kernel, q, k, v, mask, Scoring(0.25, bias=bias), threads=(1,))[0, 0]
        bound = between_kernels(v)
        assert (np.abs(y[0] - v[0, 0].mean(0, dtype=float)) <= bound).all()
        assert (np.abs(y[1] - v[0, 0, 100:].mean(0, dtype=float)) <= bound).all()
        assert np.isfinite(y).all()


@ROWS
@pytest.mark.parametrize("size", [1e6, 1e9, 1e10, 1e15, 1e25])
def test_scores_of_any_size(kernel, size):
    """The largest has all of the weight."""
    for Sq in (2, 70):
        q, k, v = operands(H=1, Sq=Sq, Skv=300)
        y = attention(kernel, q * np.float32(size), k, v, None, Scoring(0.25), threads=(1,))[0, 0]
        largest = (q[0, 0].astype(float) @ k[0, 0].T).argmax(-1)
        np.testing.assert_allclose(y, v[0, 0, largest], rtol=4 * EPS)


@ROWS
@pytest.mark.parametrize("Sq, Skv", [(1, 300), (3, 150), (40, 150), (200, 400), (150, 20)])
def test_windows(kernel, Sq, Skv):
    """Bounds inside a block of keys, across several, and beyond all of them."""
    q, k, v = operands(B=2, Sq=Sq, Skv=Skv, D=8)
    huge = np.iinfo(np.int64).max
    for window in ((-1, 0), (0, 0), (5, -1), (3, 7), (130, 2), (-1, 40), (huge, huge)):
        for offset in (0, -7, Skv + 3):
            check(kernel, q, k, v, window=window, offset=offset, zero=1, threads=(1,))
        check(kernel, q, k, v, window=window, threads=(1, 3))


@ROWS
@pytest.mark.parametrize("Sq", [1, 4, 30, 130])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lengths_and_offsets(kernel, Sq, dtype):
    q, k, v = operands(B=4, H=4, Hkv=2, Sq=Sq, Skv=300, D=8)
    lengths = np.array([0, 2, 200, 310], dtype)
    for window in ((-1, -1), (-1, 0), (20, 3)):
        for zero in (0, 1):
            how = {"window": window, "zero": zero, "threads": (1, 3)}
            check(kernel, q, k, v, lengths=lengths, offset=0, **how)
            check(kernel, q, k, v, lengths=lengths, offsets=lengths, offset=-Sq, **how)
            check(kernel, q, k, v, offsets=lengths[1:2], offset=5, **how)
            check(kernel, q, k, v, lengths=lengths[2:3], offset=50, **how)
    far = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, -1, 0], dtype)
    check(kernel, q, k, v, lengths=far, offsets=far, offset=0, window=(3, 3), zero=1, threads=(1,))


@ROWS
@pytest.mark.parametrize("Sq", [2, 70])
def test_softcap_and_bias(kernel, Sq):
    rng = np.random.default_rng(23)
    q, k, v = operands(B=2, H=2, Sq=Sq, Skv=150, D=24)
    for sizes in ((2, 1, 1, 150), (1, 2, Sq, 150), (1, 2, 1, 1), (2, 2, Sq, 1)):
        bias = rng.standard_normal(sizes).astype(np.float32)
        masked = rng.random((2, 1, Sq, 150)) < 0.5
        added = np.where(masked[:, :, :1], LOWEST, 0).astype(np.float32)
        for softcap, mask in itertools.product((0.0, 0.5, 30.0), (None, masked, added)):
            how = {"softcap": softcap, "scale": 1.0, "fill": -3.0, "threads": (1, 3)}
            check(kernel, q, k, v, mask, bias=bias, **how)
            check(kernel, q, k, v, mask, causal=1, **how)


@ROWS
def test_no_keys_and_nan(kernel):
    q, k, v = operands(Sq=40)
    for causal in (0, 1):
        assert (check(kernel, q, k[:, :, :0], v[:, :, :0], causal=causal) == 0).all()
    for Sq in (2, 40, 70):
        q, k, v = operands(Sq=Sq, Skv=140)
        q[0, 0, 1, 0] = np.nan
        y = attention(kernel, q, k, v, scoring=Scoring(0.25))
        assert (
            np.isnan(y[0, 0, 1]).all()
            and np.isfinite(np.delete(y[0, 0], 1, 0)).all()
            and np.isfinite(y[0, 1]).all()
        )


@ROWS
@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_rows_that_would_be_nan_are_zero_where_that_is_asked_for(kernel, spoiled):
    for Sq in (2, 40, 70):
        q, k, v = operands(Sq=Sq, Skv=140)
        clean = attention(kernel, q, k, v, scoring=Scoring(0.25))
        q[0, 0, 1, 0] = spoiled
        y = attention(kernel, q, k, v, scoring=Scoring(0.25, zero=2))
        assert (y[0, 0, 1] == 0).all()
        kept = np.delete(np.arange(Sq), 1)
        assert (y[0, 0, kept] == clean[0, 0, kept]).all() and (y[0, 1] == clean[0, 1]).all()


@ROWS
@pytest.mark.parametrize("causal", [0, 1])
def test_large_queries_and_keys(kernel, causal):
    """Powers of two that cancel in the score: of all, of a query, and of a key."""
    q, k, v = operands(Sq=70, Skv=200, D=40)
    many, few = np.float32(2.0**60), np.float32(2.0**-60)
    check(kernel, q * many, k * few, v, causal=causal, threads=(1, 3))
    check(kernel, q * few, k * many, v, causal=causal, threads=(1, 3))
    check(kernel, q * few, k * few, v, scale=2.0**118, causal=causal, threads=(1, 3))
    check(kernel, q * few, k * few, v, causal=causal, threads=(1, 3))
    clean = check(kernel, q, k * few, v, causal=causal, threads=(1, 3))
    q[0, 0, 33] *= many
    y = check(kernel, q, k * few, v, causal=causal, threads=(1, 3))
    assert np.delete(y[0], 33, 1).tobytes() == np.delete(clean[0], 33, 1).tobytes()
    q, k, v = operands(Sq=70, Skv=200, D=40)
    k[0, 1, 130] *= many
    check(kernel, q * few, k, v, causal=causal, threads=(1, 3))


@ROWS
@pytest.mark.parametrize("causal", [0, 1])
def test_values_of_any_magnitude(kernel, causal):
    q, k, v = operands(Sq=70, Skv=200, D=40)
    clean = check(kernel, q, k, v, causal=causal)
    close = {"rtol": 0, "atol": between_kernels(v)}
    for by in (2.0**-100, 2.0**-60, 2.0**120):
        y = check(kernel, q, k, v * np.float32(by), causal=causal, threads=(1, 3))
        np.testing.assert_allclose(y / by, clean, **close)
        one = v.copy()
        one[0, 0, :, 3] *= np.float32(by)
        y = check(kernel, q, k, one, causal=causal, threads=(1, 3))
        np.testing.assert_allclose(y[0, 0, :, 3] / by, clean[0, 0, :, 3], **close)
        y[0, 0, :, 3] = clean[0, 0, :, 3]
        np.testing.assert_allclose(y, clean, **close)


@ROWS
@pytest.mark.parametrize("spoiled", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite(kernel, spoiled):
    """It spoils its channel, where a query sees it, and no other."""
    q, k, v = operands(Sq=70, Skv=200, D=40)
    clean = check(kernel, q, k, v)
    limit = between_kernels(v)
    v[0, 1, 150, 3] = spoiled
    y = attention(kernel, q, k, v, scoring=Scoring(40**-0.5))
    np.testing.assert_array_equal(y[0, 1, :, 3], np.full(70, spoiled))
    y[0, 1, :, 3] = clean[0, 1, :, 3]
    np.testing.assert_allclose(y, clean, rtol=0, atol=limit)


@ROWS
@pytest.mark.parametrize("Sq, Hkv", [(2, 2), (300, 2)])
def test_queries_that_see_nothing_beside_others_that_do(kernel, Sq, Hkv):
    """A query has the same bits, and sums of keys in the same order, in whatever company."""
    q, k, v = operands(H=4, Hkv=Hkv, Sq=Sq, Skv=700, D=8)
    for seed in range(3):
        hidden = np.random.default_rng(seed).random((1, 4, Sq, 6)) < 0.5
        hidden[:, :, ::3] = True
        hidden[..., Sq // 4 : Sq // 2, 1:3] = True
        mask = np.where(np.repeat(hidden, 128, 3)[..., :700], LOWEST, 0).astype(np.float32)
        check(kernel, q, k, v, mask)


@ROWS
@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
@pytest.mark.parametrize("Sq, Skv", [(3, 600), (150, 170), (300, 400)])
def test_what_is_not_finite_reaches_whom_it_is_seen_by(kernel, Sq, Skv, spoiled):
    """Neither those beside them, nor others for another number of threads."""
    q, k, v = operands(H=6, Hkv=3, Sq=Sq, Skv=Skv, D=20)
    scoring, window = Scoring(0.25), {"offset": Skv - Sq, "window": (-1, 0)}
    clean = attention(kernel, q, k, v, scoring=scoring, **window)
    at = Skv - Sq // 2 - 1
    limit = between_kernels(v)  # values that its tiles cannot hold amx multiplies as floats
    seen = np.arange(Sq) + Skv - Sq >= at
    for spoils in ("v", "k"):
        x = {"k": k.copy(), "v": v.copy()}
        x[spoils][0, 1, at, 3] = spoiled
        for zero in (0, 2):
            y = attention(kernel, q, **x, scoring=scoring._replace(zero=zero), **window)
            np.testing.assert_allclose(y[0, :, ~seen], clean[0, :, ~seen], rtol=0, atol=limit)
            assert y[0, [0, 1, 4, 5]].tobytes() == clean[0, [0, 1, 4, 5]].tobytes()
            if spoils == "v":
                assert not np.isfinite(y[0, 2:4, seen, 3]).any()
        mask = np.zeros((1, 1, Sq, Skv), np.float32)
        mask[..., at - 9 : at + 9] = -np.inf
        mask[..., Sq // 3 :, :] = 0
        attention(kernel, q, **x, mask=mask, scoring=scoring, threads=(1, 2, 3, 5, 8))


@ROWS
@pytest.mark.parametrize("Sq, Skv", [(1, 7), (5, 33), (70, 300), (3, 0)])
def test_sinks(kernel, Sq, Skv):
    """Of more weight than all keys, of some, and of none; and where a mask hides a first block."""
    rng = np.random.default_rng(Sq)
    q, k, v = (rng.standard_normal((2, 4, s, 16)).astype(np.float32) for s in (Sq, Skv, Skv))
    sinks = np.array([40, 0, 1.5, -np.inf], np.float32)
    for causal, mask in ((0, None), (1, None), (0, np.arange(Skv) >= min(150, Skv - 2))):
        mask = None if mask is None else np.broadcast_to(mask, (2, 1, Sq, Skv)).copy()
        check(kernel, q, k, v, mask, causal=causal, sinks=sinks, zero=1)
