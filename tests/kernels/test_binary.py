"""binary in every dtype, with broadcasting, special values and the corner cases of integers."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from tests.kernels.harness import padded
from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads as run_op

COMPARISONS = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
ARITHMETIC = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "mod": np.mod,
    "fmod": np.fmod,
    "prelu": lambda a, b: np.where(a < 0, a * b, a),
    "min": np.minimum,
    "max": np.maximum,
}
BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
CODES = {
    **{"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7},
    **{"bool": 9, "float64": 11, "uint32": 12, "uint64": 13},
}
INTEGERS = [name for name in CODES if "int" in name]
SHAPES = [
    ((), ()),
    ((7,), (7,)),
    ((33,), (1,)),
    ((1,), (33,)),
    ((2, 3, 17), (17,)),
    ((2, 3, 17), (3, 1)),
    ((4, 1, 5), (1, 6, 1)),
    ((2, 1, 3, 1, 4), (1, 5, 1, 2, 4)),
    ((300, 200), (300, 1)),
    ((1, 200), (300, 200)),
    ((0, 3), (1, 3)),
    ((40, 1, 1, 2), (1, 7, 7, 2)),  # runs that are short, in several blocks
    ((700, 3), (700, 1)),
]


def test_each_op_is_held_against_something():
    """One that kernels leave out would be what they do by default."""
    held = {*COMPARISONS, *ARITHMETIC, *BITS, "shift_left", "shift_right"}
    assert held == set(load().target.sets["binary"])


def run(op: str, a: np.ndarray, b: np.ndarray, kernel=None, threads=(1, 2, 3, 8)) -> np.ndarray:
    """By a kernel, or by every one, all of which have to agree."""
    if kernel is None:
        first, *others = (run(op, a, b, each, threads) for each in kernels("binary"))
        for other in others:
            np.testing.assert_array_equal(other, first)
        return first
    shape = np.broadcast_shapes(a.shape, b.shape)
    a_shape, b_shape = ([1] * (len(shape) - v.ndim) + list(v.shape) for v in (a, b))
    y = np.zeros(shape, np.bool_ if op in COMPARISONS else a.dtype)
    return run_op(
        "binary",
        kernel,
        threads=threads,
        a=a,
        b=b,
        y=y,
        op=op,
        dtype=CODES[a.dtype.name],
        ndim=len(shape),
        shape=padded(shape),
        a_shape=padded(a_shape),
        b_shape=padded(b_shape),
    )[0]


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS])
@pytest.mark.parametrize("kernel", kernels("binary"), ids=lambda k: k.name)
def test_f32(kernel, op):
    rng = np.random.default_rng(7)
    for a_shape, b_shape in SHAPES:
        a, b = (rng.integers(-8, 9, s).astype(np.float32) / 4 for s in (a_shape, b_shape))
        if op == "pow":
            a = np.abs(a)
        with np.errstate(all="ignore"):
            expected = {**ARITHMETIC, **COMPARISONS}[op](a, b)
        y = run(op, a, b, kernel)
        if op == "pow":
            np.testing.assert_allclose(y, expected, rtol=3e-7)
        else:
            np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("kernel", kernels("binary"), ids=lambda k: k.name)
def test_f32_special_values(kernel):
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0, 3.4e38, 1e-45], np.float32)
    a, b = np.meshgrid(values, values)
    for op, reference in {**ARITHMETIC, **COMPARISONS}.items():
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(
                run(op, a.copy(), b.copy(), kernel), reference(a, b), err_msg=op
            )
    random = 10 ** np.random.default_rng(3).uniform(-20, 20, 101).astype(np.float32)
    values = np.concatenate([values, random])
    quarters = (0.25, 0.5, 0.75, 1.25, 1.5, 1.75, -0.25, -0.5, -0.75, -1.5)
    for exponent in (*quarters, 2.0, 3.0, 0.375, 0.0, 1.0, -1.0, -3.0, 9.0, 64.0, 65.0):
        with np.errstate(all="ignore"):
            expected = np.power(values.astype(float), np.full(110, exponent)).astype(np.float32)
        power = run("pow", values, np.array([exponent], np.float32), kernel)
        np.testing.assert_allclose(power, expected, rtol=2.4e-7, atol=1e-45, err_msg=str(exponent))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rests_are_exact(dtype):
    """Of quotients that round up to a whole number, of too large ones, and of what is tiny."""
    rng = np.random.default_rng(9)
    b = rng.standard_normal(3000).astype(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    for a in (
        np.nextafter(b * rng.integers(-1000, 1000, b.size).astype(dtype), dtype(0)),
        b * (2.0 ** rng.uniform(40, 60, b.size)).astype(dtype),
        np.concatenate([10 * b[:2000], [np.inf, np.nan, -0.0, 1.0] * 250]).astype(dtype),
    ):
        for x, y in ((a, b), (np.trunc(a) * tiny, np.round(b * 100) * tiny)):
            for op in ("mod", "fmod"):
                with np.errstate(all="ignore"):
                    expected = ARITHMETIC[op](x, y)
                got = run(op, x, y, threads=(1, 3))
                np.testing.assert_array_equal(got, expected, err_msg=op)
                np.testing.assert_array_equal(np.signbit(got), np.signbit(expected), err_msg=op)


@pytest.mark.parametrize("dtype", ["float64", *INTEGERS])
def test_other_dtypes(dtype):
    rng = np.random.default_rng(8)
    for a_shape, b_shape in SHAPES:
        a, b = (
            rng.integers(0 if dtype.startswith("u") else -9, 10, s).astype(dtype)
            for s in (a_shape, b_shape)
        )
        functions = dict(
            ARITHMETIC if dtype == "float64" else {**ARITHMETIC, **BITS}, **COMPARISONS
        )
        if dtype != "float64":
            functions["div"] = lambda a, b: np.where(
                b == 0, 0, np.trunc(a / np.where(b == 0, 1, b))
            ).astype(dtype)
            for op in ("mod", "fmod"):
                rest = ARITHMETIC[op]
                functions[op] = lambda a, b, rest=rest: np.where(
                    b == 0, 0, rest(a, np.where(b == 0, np.ones_like(b), b))
                )
            functions["pow"] = lambda a, b: np.power(a, np.abs(b) % 3)
        for op, reference in functions.items():
            second = np.abs(b) % 3 if op == "pow" and dtype != "float64" else b
            with np.errstate(all="ignore"):
                expected = reference(a, b)
            np.testing.assert_allclose(
                run(op, a, second, threads=(1, 3)), expected, rtol=1e-15, err_msg=op
            )


@pytest.mark.parametrize("dtype", [name for name in INTEGERS if name.startswith("i")])
def test_integer_corners(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.array([low, low, 5, -5, 5, -5, high, 2, -1, 1, 3], dtype)
    b = np.array([-1, 0, 0, 3, -3, -3, high, -1, -3, -7, 40], dtype)
    assert run("div", a, b).tolist() == [low, 0, 0, -1, -1, 1, 1, -2, 0, 0, 0]
    assert run("mod", a, b).tolist() == [0, 0, 0, 1, -1, -2, 0, 0, -1, -6, 3]
    assert run("fmod", a, b).tolist() == [0, 0, 0, -2, 2, -2, 0, 0, -1, 1, 3]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run("add", a, b), a + b)
        np.testing.assert_array_equal(run("mul", a, b), a * b)
        np.testing.assert_array_equal(
            run("pow", a[7:], b[7:]), [0, -1, 1, np.array(3, dtype) ** np.array(40, dtype)]
        )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_whole_range(dtype):
    """Limits against limits: what wraps, and 64 bits without a sign."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = np.array([low, low + 1, high // 2, high // 2 + 1, high - 1, high, 0, 1, 3], dtype)
    a, b = (v.ravel() for v in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        for op in ("add", "sub", "mul", "min", "max", *COMPARISONS, *BITS, "prelu"):
            expected = {**ARITHMETIC, **COMPARISONS, **BITS}[op](a, b)
            np.testing.assert_array_equal(run(op, a, b), expected, err_msg=op)
        a, b = a[b != 0], b[b != 0]
        for op in ("mod", "fmod"):
            np.testing.assert_array_equal(run(op, a, b), ARITHMETIC[op](a, b), err_msg=op)
    signs = np.where((a < 0) == (b < 0), 1, -1).tolist()
    pairs = zip(a.tolist(), b.tolist(), signs)
    exact = [abs(x) // abs(y) * sign for x, y, sign in pairs]
    wrapped = [(q - int(low)) % 2 ** np.iinfo(dtype).bits + int(low) for q in exact]
    assert run("div", a, b).tolist() == wrapped


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    bits = np.iinfo(dtype).bits
    counts = [0, 1, bits - 1, bits, min(64, high), high, *([-1, low] if low else [])]
    for count in counts:
        for x in (low, -3 if low else 3, 5, high):
            a, b = np.array([x], dtype), np.array([count], dtype)
            within = 0 <= count < bits
            left = (x << count) & (2**bits - 1) if within else 0
            left -= 2**bits if left > high else 0
            right = x >> count if within else -1 if x < 0 else 0
            assert run("shift_left", a, b, threads=[1]).tolist() == [left]
            assert run("shift_right", a, b, threads=[1]).tolist() == [right]


def test_bool():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for op, reference in {**BITS, "equal": np.equal}.items():
        np.testing.assert_array_equal(run(op, a, b), reference(a, b))


def test_in_place():
    a = np.arange(100, dtype=np.float32)
    given = {
        "op": "mul",
        "dtype": 1,
        "ndim": 1,
        "shape": padded([100]),
        "a_shape": padded([100]),
        "b_shape": padded([1]),
    }
    for kernel in kernels("binary"):
        (y,) = run_op(
            "binary", kernel, threads=[1], a=a, b=np.full(1, 3, np.float32), y="a", **given
        )
        np.testing.assert_array_equal(y, a * 3)
