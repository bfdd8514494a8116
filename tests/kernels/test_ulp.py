"""The functions of csrc/kernels/math.h within the bounds that their comments state, on each ISA.

A `Bound:` line of math.h is the one place for a bound. Float32 inputs of the whole range are
compared with float64, of which samples are compared with mpmath. Float64 has loops of
its own, in csrc/kernels/unary_typed.c; 16-bit types run the float32 kernels (test_chain.py).
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Callable, NamedTuple

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op

FLOAT, DOUBLE = 1, 11  # dtype codes
ALPHA, BETA = 1.5, 0.75
INF, NAN = math.inf, math.nan
NEGATIVE = ("exp_nonpositive", "exp2", "power")  # inside of kernels, for x <= 0
BITS = 1800  # of mpmath: 1 + e^-1200 does not cancel
every_row = pytest.mark.parametrize("row", rows("unary"), ids=lambda row: row.name)


class Piece(NamedTuple):
    low: float
    high: float
    bound: float
    is_absolute: bool


def stated(source: str) -> dict[str, list[Piece]]:
    """Of each function: its `Bound: names [in [low, high]] number ulp | absolute`."""
    text = (Path(__file__).parents[2] / "csrc" / source).read_text()
    pattern = r"Bound: ((?:\w+ )+?)(?:in \[(\S+), (\S+)\] )?(\S+) (ulp|absolute)\b"
    pieces: dict[str, list[Piece]] = {}
    for names, low, high, bound, unit in re.findall(pattern, text):
        ends = (float(low), float(high)) if low else (-INF, INF)
        number = float.fromhex(bound) if unit == "absolute" else float(bound)
        for name in names.split():
            pieces.setdefault(name, []).append(Piece(*ends, number, unit == "absolute"))
    return {name: sorted(found) for name, found in pieces.items()}


BOUNDS, BOUNDS_F64 = stated("kernels/math.h"), stated("kernels/unary_typed.c")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def logistic(x: mpf) -> mpf:
    return 1 / (1 + mpmath.exp(-x))


erf, erfc = np.vectorize(math.erf, otypes=[float]), np.vectorize(math.erfc, otypes=[float])
# float64, accurate relative to the result; the definition in mpmath
REFERENCE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[mpf], mpf]]] = {
    "exp": (np.exp, mpmath.exp),
    "log": (np.log, mpmath.log),
    "erf": (erf, mpmath.erf),
    "tanh": (np.tanh, mpmath.tanh),
    "sigmoid": (sigmoid, logistic),
    "silu": (lambda x: x * sigmoid(x), lambda x: x * logistic(x)),
    "swish": (lambda x: x * sigmoid(ALPHA * x), lambda x: x * logistic(ALPHA * x)),
    "gelu": (
        lambda x: x * erfc(-x / math.sqrt(2)) / 2,
        lambda x: x * (1 + mpmath.erf(x / mpmath.sqrt(2))) / 2,
    ),
    "gelu_tanh": (
        lambda x: x * sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
        lambda x: x * logistic(mpmath.sqrt(8 / mpmath.pi) * (x + mpf("0.044715") * x**3)),
    ),
    "softplus": (lambda x: np.logaddexp(0, x), lambda x: mpmath.log(1 + mpmath.exp(x))),
    "mish": (
        lambda x: x * np.tanh(np.logaddexp(0, x)),
        lambda x: x * mpmath.tanh(mpmath.log(1 + mpmath.exp(x))),
    ),
    "elu": (
        lambda x: np.where(x < 0, ALPHA * np.expm1(x), x),
        lambda x: ALPHA * (mpmath.exp(x) - 1) if x < 0 else x,
    ),
    "selu": (
        lambda x: BETA * np.where(x < 0, ALPHA * np.expm1(x), x),
        lambda x: BETA * (ALPHA * (mpmath.exp(x) - 1) if x < 0 else x),
    ),
    "celu": (
        lambda x: np.where(x < 0, ALPHA * np.expm1(x / ALPHA), x),
        lambda x: ALPHA * (mpmath.exp(x / ALPHA) - 1) if x < 0 else x,
    ),
    "softcap": (lambda x: ALPHA * np.tanh(x / ALPHA), lambda x: ALPHA * mpmath.tanh(x / ALPHA)),
    "scaled_tanh": (lambda x: ALPHA * np.tanh(BETA * x), lambda x: ALPHA * mpmath.tanh(BETA * x)),
    "softsign": (lambda x: x / (1 + np.abs(x)), lambda x: x / (1 + abs(x))),
    "sin": (np.sin, mpmath.sin),
    "cos": (np.cos, mpmath.cos),
    "asin": (np.arcsin, lambda x: mpmath.asin(x) if abs(x) <= 1 else mpmath.nan),
    "acos": (np.arccos, lambda x: mpmath.acos(x) if abs(x) <= 1 else mpmath.nan),
    "atan": (np.arctan, mpmath.atan),
}


@functools.cache
def inputs() -> np.ndarray:
    """Finite float32: random bits, all subnormal and other magnitudes, dense lines, and the
    neighbours of zero, of every branch, of overflow and underflow, and of multiples of pi / 2."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 60_000, np.uint32).view(np.float32)
    size = np.exp2(rng.uniform(-149, 128, 20_000))
    lines = [np.linspace(-end, end, 40_001) for end in (1, 6, 20, 110)]
    quarters = np.concatenate([np.arange(1, 100), np.arange(5150, 5216)]) * (math.pi / 2)
    places = [0, 2.0**-126, 0.4**0.5, 1, 5, 9.02, 10, 13, 17.4, 20, 30, 8192, 86.64, 87, 87.34]
    places += [88.38, 88.73, 89, 92, 103.28, 103.98, 104, 2.0**64, 2.0**127]
    places += [*(np.arange(0.5, 6) * math.log(2)), *(0.5**0.5 * 2.0 ** np.arange(-3, 4)), *quarters]
    near = np.array(places, np.float32).view(np.int32)[:, None] + np.arange(-40, 41, dtype=np.int32)
    near = np.abs(near).ravel().view(np.float32)
    with np.errstate(over="ignore"):
        x = np.concatenate([bits, *[y.astype(np.float32) for y in (size, -size, *lines)]])
    x = np.concatenate([x, near, -near])
    return x[np.isfinite(x)]


@functools.cache
def expected(op: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return REFERENCE[op][0](inputs().astype(np.float64))


def unary(row: KernelRow, op: str, x: np.ndarray, alpha: float = ALPHA) -> np.ndarray:
    dtype = FLOAT if x.dtype == np.float32 else DOUBLE
    given = {"op": op, "dtype": dtype, "n": x.size, "alpha": alpha, "beta": BETA}
    return run_op("unary", row, x=x, y=np.full_like(x, np.nan), **given)["y"]


def clipped(y: np.ndarray) -> np.ndarray:
    """In float64, with 2^128 for infinity and whatever else overflows float32."""
    return np.clip(y.astype(np.float64), -(2.0**128), 2.0**128)


def check(pieces: list[Piece], x: np.ndarray, y: np.ndarray, exact: np.ndarray) -> None:
    """y is exact within its bounds; an ulp is the spacing of float32 at the exact result."""
    difference = np.abs(clipped(y) - clipped(exact))
    exponent = np.clip(np.frexp(np.abs(clipped(exact)))[1] - 1, -126, 127)
    ulps = np.ldexp(difference, 23 - exponent)
    for low, high, bound, is_absolute in pieces:
        error = np.where((low <= x) & (x <= high), difference if is_absolute else ulps, 0)
        worst = int(np.argmax(error))
        assert error[worst] <= bound, f"{error[worst]} > {bound} at {x[worst]!r}: {y[worst]!r}"


@every_row
@pytest.mark.parametrize("op", REFERENCE)
def test_bounds(row: KernelRow, op: str) -> None:
    x, exact = inputs(), expected(op)
    y, defined = unary(row, op, x), ~np.isnan(exact)
    np.testing.assert_array_equal(~np.isnan(y), defined)
    check(BOUNDS[op], x[defined], y[defined], exact[defined])


@pytest.mark.parametrize("row", rows("softmax"), ids=lambda row: row.name)
def test_exp_of_softmax(row: KernelRow) -> None:
    """Rows (0, x) whose sum rounds to 1 give e^x; nearer 0 it has the polynomial of exp."""
    x = inputs()[inputs() < -17.4]
    pairs = np.stack([np.zeros_like(x), x], 1)
    given = {"dtype": FLOAT, "outer": x.size, "n": 2, "inner": 1, "log": 0}
    y = run_op("softmax", row, x=pairs, y=np.full_like(pairs, np.nan), **given)["y"]
    assert (y[:, 0] == 1).all()
    check(BOUNDS["exp_nonpositive"], x, y[:, 1], np.exp(x.astype(np.float64)))


@pytest.mark.parametrize("queries, bound", [(1, "exp2"), (8, "power")])
@pytest.mark.parametrize("row", rows("attention"), ids=lambda row: row.name)
def test_exp2_of_attention(row: KernelRow, queries: int, bound: str) -> None:
    """Two keys of scores 0 and x, values 0 and 1: where the sum of both rounds to 1, the output is
    2^x, as float32(ln 2) * float32(log2 e) is 1. Few queries go another way than many.
    """
    x = inputs()[(inputs() < -25) & (inputs() > -1e30)]
    k = np.stack([np.zeros_like(x), x], 1)
    page = load("").target.ops["attention"]
    absent = {**{f.name: 0 for f in page.fields}, **{o.name: None for o in page.operands}}
    sizes = {**dict.fromkeys(("H", "Hkv", "D", "Dv"), 1), "Sq": queries}
    steps = {"k_b_stride": 2, "k_s_stride": 1, "v_s_stride": 1}
    steps |= {"o_b_stride": queries, "o_s_stride": 1}
    how = {"left": -1, "right": -1, "scale": float(np.float32(math.log(2)))}
    data = {"q": np.ones(1, np.float32), "k": k, "v": np.array([0, 1], np.float32)}
    work = np.full(4096, np.nan, np.float32)
    given = {**absent, **sizes, **steps, **how, **data, "B": x.size, "Skv": 2, "work": work}
    o = np.full((x.size, queries), np.nan, np.float32)
    y = run_op("attention", row, **{**given, "o": o})["o"]
    for i in range(queries):
        check(BOUNDS[bound], x, y[:, i], np.exp2(x.astype(np.float64)))


@every_row
def test_negative_alpha(row: KernelRow) -> None:
    """celu is the one that needs e^x - 1 for large x too, up to its overflow."""
    x = -np.abs(inputs())
    with np.errstate(over="ignore"):
        exact = -np.expm1(-x.astype(np.float64))
    check([Piece(-INF, INF, 2.5, False)], x, unary(row, "celu", x, alpha=-1.0), exact)


def test_statements() -> None:
    """Every bound is tested, and the bounds of a function cover all floats."""
    assert set(BOUNDS) == {*REFERENCE, *NEGATIVE}
    assert set(BOUNDS_F64) == set(REFERENCE)
    for name, pieces in [*BOUNDS.items(), *BOUNDS_F64.items()]:
        ends = [-INF, *(piece.high for piece in pieces)]
        assert [piece.low for piece in pieces] == ends[:-1], name
        assert ends[-1] == (0 if name in NEGATIVE else INF), name


def exactly(op: str, x: np.ndarray) -> list[mpf]:
    with mpmath.workprec(BITS):
        return [+REFERENCE[op][1](mpf(value)) for value in x.tolist()]


@pytest.mark.parametrize("op", REFERENCE)
def test_reference(op: str) -> None:
    """Float64 is right to 2^-20 of a float32 ulp."""
    chosen = np.random.default_rng(7).integers(0, inputs().size, 150)
    chosen = chosen[~np.isnan(expected(op)[chosen])]
    with mpmath.workprec(BITS):
        for x, exact in zip(inputs()[chosen], exactly(op, inputs()[chosen])):
            found = mpf(float(expected(op)[inputs() == x][0]))
            if abs(exact) >= mpf(2) ** 1023:
                assert abs(found) >= mpf(2) ** 1023, x
            else:
                assert abs(found - exact) <= abs(exact) / 2**44 + mpf(2) ** -160, x


@every_row
@pytest.mark.parametrize("op", REFERENCE)
def test_f64(op: str, row: KernelRow) -> None:
    rng = np.random.default_rng(8)
    x = np.concatenate([rng.uniform(-end, end, 50) for end in (1, 6, 20, 700)])
    x = np.concatenate([x, np.exp2(rng.uniform(-60, 0, 25)), -np.exp2(rng.uniform(-60, 0, 25))])
    x = np.abs(x) if op == "log" else np.sin(x) if op in ("asin", "acos") else x
    with np.errstate(all="ignore"):
        y = unary(row, op, x)
    with mpmath.workprec(BITS):
        for value, found, exact in zip(x, y, exactly(op, x)):
            unit = mpf(float(np.spacing(abs(float(exact)))))
            error = abs(mpf(float(found)) - exact)
            for low, high, bound, is_absolute in BOUNDS_F64[op]:
                if low <= value <= high:
                    assert error <= bound * (1 if is_absolute else unit), value


@every_row
@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        ("exp", [0.0, -0.0, INF, -INF, 89.0, -105.0, -104.5], [1, 1, INF, 0, INF, 0, 0]),
        ("log", [0.0, -0.0, 1.0, INF, -1.0, -INF], [-INF, -INF, 0, INF, NAN, NAN]),
        ("log", [2.0**-149, 2.0**-127], [-149 * math.log(2), -127 * math.log(2)]),
        ("exp", [-103.5, -88.0], [1.1e-45, 6.054602e-39]),
        ("softplus", [INF, -INF, -103.5, 200.0], [INF, 0, 1.1e-45, 200]),
        ("mish", [0.0, -0.0, INF, -1e30], [0.0, -0.0, INF, -0.0]),
        (
            "elu",
            [0.0, -0.0, -(2.0**-140), INF, -INF, -1e30],
            [0.0, -0.0, -1.5 * 2**-140, INF, -1.5, -1.5],
        ),
        ("celu", [0.0, -0.0, INF, -INF, -1e30], [0.0, -0.0, INF, -1.5, -1.5]),
        ("selu", [0.0, -0.0, INF, -INF], [0.0, -0.0, INF, -1.125]),
        ("softcap", [0.0, -0.0, INF, -INF, 3e38], [0.0, -0.0, 1.5, -1.5, 1.5]),
        ("scaled_tanh", [0.0, -0.0, INF, -INF], [0.0, -0.0, 1.5, -1.5]),
        ("swish", [0.0, -0.0, INF, -100.0], [0.0, -0.0, INF, -0.0]),
        ("erf", [0.0, -0.0, INF, -INF, 4.0, -1e30], [0.0, -0.0, 1, -1, 1, -1]),
        ("tanh", [0.0, -0.0, INF, -INF, 10.0, -1e30, 1e-40], [0.0, -0.0, 1, -1, 1, -1, 1e-40]),
        ("sigmoid", [0.0, INF, -INF, 100.0, -100.0], [0.5, 1, 0, 1, 0]),
        ("silu", [0.0, -0.0, INF, 100.0, -100.0], [0.0, -0.0, INF, 100, -0.0]),
        ("gelu", [0.0, -0.0, INF, 1e30], [0.0, -0.0, INF, 1e30]),
        ("gelu_tanh", [0.0, -0.0, INF, 1e30, -1e30], [0.0, -0.0, INF, 1e30, -0.0]),
        ("sin", [0.0, -0.0, INF, -INF], [0.0, -0.0, NAN, NAN]),
        ("cos", [0.0, INF, -INF], [1, NAN, NAN]),
        ("relu", [-1.0, INF, -INF], [0, INF, 0]),
    ],
)
def test_special_values(row: KernelRow, op: str, x: list[float], y: list[float]) -> None:
    given = np.array([*x, NAN], np.float32)
    found = unary(row, op, given)
    expected = np.array([*y, NAN], np.float32)
    np.testing.assert_array_equal(found, expected)
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))
