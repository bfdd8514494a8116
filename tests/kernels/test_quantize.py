"""quantize and dequantize against the references of their ops, in every dtype and granularity."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from q7x2_ep import dtypes
from q7x2_ep.ops.quant import SMALL, integer_limits
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op, run_threads

ROWS = [dtypes.DTYPES[code] for code in SMALL]
PRECISIONS = {"float32": 1, "float16": 10, "bfloat16": 16}


def spread(values: np.ndarray, shape: tuple[int, int, int], block: int) -> np.ndarray:
    """Scales or zeros (outer, blocks, inner), (n,) or (1,) for every element."""
    _, n, _ = shape
    if block:
        return np.repeat(values, block, 1)[:, :n]
    return np.broadcast_to(values.reshape(1, -1, 1), shape)


def check(row: dtypes.DType, shape: tuple[int, int, int], kind: str, block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outer, n, inner = shape
    many = {"tensor": (1,), "axis": (n,), "block": (outer, -(-n // block), inner)}[kind]
    block = block if kind == "block" else 0
    limits = integer_limits(row.numpy)
    low, high = int(limits.min), int(limits.max)
    scale = (rng.random(many) + 0.5).astype(np.float32)
    zero = rng.integers(low, high + 1, many).astype(row.numpy)
    x = (rng.standard_normal(shape) * (high - low) / 4).astype(np.float32)
    x.flat[:4] = [np.inf, -np.inf, 0.5, np.nan][: x.size]
    if kind == "tensor":
        outer, n, inner = 1, 1, x.size
    fields = {"outer": outer, "n": n, "inner": inner, "scales": scale.size if not block else n}
    fields |= {"block": block, "threads": (1, 3)}
    s, z = (spread(values, shape, block) for values in (scale, zero.astype(np.float64)))
    whole = None
    for (name, precision), offset in itertools.product(PRECISIONS.items(), (None, zero)):
        (y,) = run_threads(
            "quantize",
            x=x,
            scale=scale,
            zero=offset,
            y=np.zeros(shape, row.numpy),
            y_dtype=row.code,
            precision=precision,
            **fields,
        )
        with np.errstate(over="ignore"):
            quotient = (x.astype(name) / s.astype(name)).astype(np.float64)
        wanted = np.clip(np.rint(quotient) + (0 if offset is None else z), low, high)
        whole = np.where(np.isnan(wanted), low, wanted)
        np.testing.assert_array_equal(y.astype(np.float64), whole)
    q = whole.astype(row.numpy)
    for offset, less in ((zero, z.astype(np.float32)), (None, 0)):
        (back,) = run_threads(
            "dequantize",
            x=q,
            scale=scale,
            zero=offset,
            y=np.zeros(shape, np.float32),
            x_dtype=row.code,
            **fields,
        )
        np.testing.assert_array_equal(back, (q.astype(np.float32) - less) * s)


SHAPES = [(1, 1, 5), (2, 3, 7), (1, 4, 100_000), (3, 1, 0), (40_000, 3, 1), (2, 37, 1), (2, 9, 4)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.onnx)
@pytest.mark.parametrize("kind", ["tensor", "axis", "block"])
@pytest.mark.parametrize("shape", SHAPES)
def test_quantize_and_back(shape: tuple[int, int, int], kind: str, row: dtypes.DType) -> None:
    check(row, shape, kind, 4, seed=shape[2])


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(ROWS),
    st.tuples(st.integers(0, 4), st.integers(1, 40), st.integers(0, 40)),
    st.sampled_from(["tensor", "axis", "block"]),
    st.integers(1, 50),
    st.integers(0, 99),
)
def test_any_shape_and_block(row, shape, kind, block, seed) -> None:
    check(row, shape, kind, block, seed)


@pytest.mark.parametrize("name", ["int4", "int2"])
def test_upper_bits_of_small_integers_mean_nothing(name: str) -> None:
    """Arrays of ml_dtypes hold a negative number with or without its sign in the upper bits."""
    row = dtypes.BY_NUMPY[name]
    bits = np.arange(256, dtype=np.uint8)
    fields = {"outer": 1, "n": 1, "inner": 256, "scales": 1, "block": 0}
    (y,) = run_threads(
        "dequantize",
        x=bits,
        scale=np.ones(1, np.float32),
        zero=None,
        y=np.zeros(256, np.float32),
        x_dtype=row.code,
        **fields,
    )
    np.testing.assert_array_equal(y, bits.view(getattr(ml_dtypes, name)).astype(np.float32))


@pytest.mark.parametrize("row", rows("quantize"), ids=lambda row: row.name)
@pytest.mark.parametrize("scale", [0.01, 1 / 3, 1.0, 2.0**-120, 2.0**-140, 2.0**110])
def test_integers_are_those_of_a_division(row: KernelRow, scale: float) -> None:
    rng, one = np.random.default_rng(7), np.float32(scale)
    halves = (np.arange(-600, 600) * np.float32(0.5)).astype(np.float32)
    with np.errstate(over="ignore"):
        ties = np.concatenate([np.nextafter(halves * one, end) for end in (-np.inf, np.inf)])
    anything = rng.integers(0, 2**32, 5001, np.uint32).view(np.float32)
    near, far = rng.random(5000) * 300, rng.standard_normal(5000) * 40_000 * scale
    more = [values.astype(one.dtype) for values in (near, far)]
    x = np.concatenate([halves * one, ties, anything, *more])
    fields = {"outer": 1, "n": 1, "inner": x.size, "scales": 1, "block": 0, "precision": 1}
    for dtype, code in (("uint8", 2), ("int8", 3), ("uint16", 4), ("int16", 5)):
        given = {"x": x, "scale": np.array([one]), "zero": np.array([5], dtype), "y_dtype": code}
        y = run_op("quantize", row, **given, y=np.zeros(x.size, dtype), **fields)["y"]
        with np.errstate(over="ignore", invalid="ignore"):
            real = np.rint((x / one).astype(np.float64)) + 5
        low = np.iinfo(dtype).min
        wanted = np.clip(np.where(np.isnan(real), low, real), low, np.iinfo(dtype).max)
        np.testing.assert_array_equal(y, wanted.astype(dtype))


@pytest.mark.parametrize("row", rows("quantize"), ids=lambda row: row.name)
@pytest.mark.parametrize("size, low, high", [(1, 2, 2), (37, -3, 1), (40001, -8, 9), (5, 0, 0)])
def test_dynamic_quantize(row: KernelRow, size: int, low: float, high: float) -> None:
    x = (np.random.default_rng(size).random(size) * (high - low) + low).astype(np.float32)
    given = {"x": x, "y": np.zeros(size, np.uint8), "scale": np.zeros((), np.float32)}
    given.update(zero=np.zeros((), np.uint8), n=size, ranges=8 * -(-size // 8192))
    y, scale, zero = (
        run_op("dynamic_quantize", row, 3, **given)[name] for name in ("y", "scale", "zero")
    )
    bottom, top = min(x.min(), 0), max(x.max(), 0)
    one = (top - bottom) / np.float32(255) if top > bottom else np.float32(1)
    assert scale == one and zero == np.clip(np.rint(-bottom / one), 0, 255)
    np.testing.assert_array_equal(y, np.clip(np.rint(x / one) + float(zero), 0, 255))
