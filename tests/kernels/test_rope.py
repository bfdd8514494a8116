"""rope against float64: widths around lanes, full and half tables, layouts, in place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads as run_op

EPS = np.finfo(np.float32).eps
ROWS = pytest.mark.parametrize("kernel", kernels("rope"), ids=lambda k: k.name)


def pairs(R: int, interleaved: int) -> tuple[slice, slice]:
    return (slice(0, R, 2), slice(1, R, 2)) if interleaved else (slice(0, R // 2), slice(R // 2, R))


def reference(x, cos, sin, half, interleaved):
    """x (B, H, S, D), tables (B, 1, S, C); the result and its magnitude, in float64."""
    x, cos, sin = (t.astype(np.float64) for t in (x, cos, sin))
    R = cos.shape[-1] * (1 + half)
    first, second = pairs(R, interleaved)
    tables = [(t, t) if half else (t[..., first], t[..., second]) for t in (cos, sin)]
    (cos1, cos2), (sin1, sin2) = tables
    a, b = x[..., first], x[..., second]
    y, scale = x.copy(), np.zeros_like(x)
    y[..., first], y[..., second] = a * cos1 - b * sin1, b * cos2 + a * sin2
    scale[..., first] = np.abs(a * cos1) + np.abs(b * sin1)
    scale[..., second] = np.abs(b * cos2) + np.abs(a * sin2)
    return y, scale


def stored(x: np.ndarray, layout: str) -> tuple[np.ndarray, tuple[int, ...]]:
    """x (B, H, S, D) in the memory order of a layout, and its strides over b, h, s."""
    order = [0, 2, 1, 3] if layout == "bshd" else [0, 1, 2, 3]
    memory = np.ascontiguousarray(x.transpose(order))
    return memory, tuple(step // 4 for step in memory.transpose(order).strides[:3])


def rope(kernel, q, k, cos, sin, half=0, interleaved=0, layouts=("bhsd", "bhsd"), **how):
    """q', k' (B, H, S, D); layouts: of the inputs and of the outputs."""
    given = {"half": half, "interleaved": interleaved, "R": cos.shape[-1] * (1 + half)}
    given.update(zip(("B", "H", "S", "D"), q.shape), Hkv=0 if k is None else k.shape[1])
    for name, x, layout in zip(("q", "k", "q_out", "k_out"), (q, k, q, k), np.repeat(layouts, 2)):
        memory, strides = (None, (0, 0, 0)) if x is None else stored(x, layout)
        given[name] = memory
        given.update({f"{name}_{axis}_stride": step for axis, step in zip("bhs", strides)})
    for name, table in (("cos", cos), ("sin", sin)):
        steps = np.broadcast_to(table, (q.shape[0], 1, q.shape[2], cos.shape[-1])).strides
        given.update({name: table, f"{name}_b_stride": steps[0] // 4})
        given[f"{name}_s_stride"] = steps[2] // 4
    given.update(how.pop("place", {}))
    results = run_op("rope", kernel, **how, **given)
    back = [0, 2, 1, 3] if layouts[1] == "bshd" else [0, 1, 2, 3]
    return [y.transpose(back) for y in results]


def operands(B=2, H=3, Hkv=1, S=5, D=16, C=16, table_batch=1, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(B, H, S, D), (B, Hkv, S, D), *[(table_batch, 1, S, C)] * 2]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def check(kernel, q, k, cos, sin, half=0, interleaved=0, **how):
    results = rope(kernel, q, k, cos, sin, half, interleaved, **how)
    for y, x in zip(results, (q, k)):
        expected, scale = reference(x, cos, sin, half, interleaved)
        assert (np.abs(y - expected) <= EPS * scale).all(), (x.shape, cos.shape, half, interleaved)


@ROWS
def test_widths(kernel):
    for half, interleaved in itertools.product((0, 1), (0, 1)):
        for R in (2, 4, 6, 14, 16, 18, 30, 32, 34, 64, 66, 80, 128):
            for D in (R, R + 1, R + 17):
                given = operands(D=D, C=R // 2 if half else R)
                check(kernel, *given, half, interleaved, threads=(1, 2))


@ROWS
def test_layouts_batches_and_threads(kernel):
    for layouts in itertools.product(("bhsd", "bshd"), repeat=2):
        for table_batch, interleaved in itertools.product((1, 2), (0, 1)):
            given = operands(H=4, Hkv=2, S=200, D=64, C=32, table_batch=table_batch)
            check(kernel, *given, 1, interleaved, layouts=layouts)


@ROWS
def test_without_k_and_one_row_of_tables(kernel):
    q, _, cos, sin = operands(S=7)
    check(kernel, q, None, cos, sin)
    check(kernel, q, None, cos[:, :, :1], sin[:, :, :1])
    q, k, cos, sin = operands(S=0)
    assert rope(kernel, q, k, cos, sin)[0].size == 0


@ROWS
def test_in_place(kernel):
    for half, interleaved, D in itertools.product((0, 1), (0, 1), (34, 40)):
        q, k, cos, sin = operands(D=D, C=34 >> half)
        wanted = rope(kernel, q, k, cos, sin, half, interleaved)
        place = {"place": {"q_out": "q", "k_out": "k"}, "threads": [1]}
        for got, want in zip(rope(kernel, q, k, cos, sin, half, interleaved, **place), wanted):
            assert got.tobytes() == want.tobytes()


@ROWS
def test_special_values_stay_in_their_pair(kernel):
    for interleaved in (0, 1):
        q, k, cos, sin = operands(D=36, C=32)
        q[0, 0, 0, 3], q[0, 1, 2, 34] = np.nan, np.inf
        y = rope(kernel, q, k, cos, sin, 0, interleaved)[0]
        first, second = pairs(32, interleaved)
        at = [np.arange(32)[part] for part in (first, second)]
        pair = {int(c) for c in np.stack(at, 1)[np.isin(np.stack(at, 1), 3).any(1)].ravel()}
        assert {int(c) for c in np.flatnonzero(np.isnan(y[0, 0, 0]))} == pair
        assert np.isposinf(y[0, 1, 2, 34]) and np.isfinite(np.delete(y[0, 1, 2], 34)).all()
