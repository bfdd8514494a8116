"""unary in every dtype, special values included. Tight bounds on the functions: test_ulp.py."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads as run_op

erf = np.vectorize(__import__("math").erf)
erfc = np.vectorize(__import__("math").erfc)
ALPHA, BETA = 0.25, 0.75
REFERENCE = {
    "abs": np.abs,
    "neg": np.negative,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "reciprocal": lambda x: 1 / x,
    "erf": erf,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * erfc(-x / np.sqrt(2)),
    "gelu_tanh": lambda x: x / (1 + np.exp(-np.sqrt(8 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "swish": lambda x: x / (1 + np.exp(-ALPHA * x)),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "softcap": lambda x: ALPHA * np.tanh(x / ALPHA),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
    "affine": lambda x: ALPHA * x + BETA,
    "scaled_tanh": lambda x: ALPHA * np.tanh(BETA * x),
    "affine_hard_swish": lambda x: ALPHA * x * np.clip(x / 6 + 0.5, 0, 1) + BETA,
    "thresholded_relu": lambda x: np.where(x > ALPHA, x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "clip": lambda x: np.clip(x, ALPHA, BETA),
    "leaky_relu": lambda x: np.where(x < 0, ALPHA * x, x),
    "elu": lambda x: np.where(x < 0, ALPHA * np.expm1(x), x),
    "hard_sigmoid": lambda x: np.clip(ALPHA * x + BETA, 0, 1),
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "selu": lambda x: BETA * np.where(x < 0, ALPHA * np.expm1(x), x),
    "celu": lambda x: np.where(x < 0, ALPHA * np.expm1(x / ALPHA), x),
    "shrink": lambda x: np.where(x < -ALPHA, x + BETA, np.where(x > ALPHA, x - BETA, 0)),
}
EXACT = {
    "abs",
    "neg",
    "sign",
    "sqrt",
    "reciprocal",
    "relu",
    "floor",
    "ceil",
    "round",
    "clip",
    "leaky_relu",
    "thresholded_relu",
}
MASKS = {"isnan", "isinf"}
NEAR_ZERO = {  # absolute, not relative accuracy there
    *("gelu", "gelu_tanh", "elu", "selu", "celu", "sin", "cos", "hard_sigmoid", "shrink"),
}
INTEGERS = {
    **{np.int8: 3, np.int16: 5, np.int32: 6, np.int64: 7},
    **{np.uint8: 2, np.uint16: 4, np.uint32: 12, np.uint64: 13},
}


every_kernel = pytest.mark.parametrize("kernel", kernels("unary"), ids=lambda k: k.name)


def run(op: str, x: np.ndarray, dtype: int, kernel=None, threads=(1, 2, 3, 8)) -> np.ndarray:
    y = np.zeros(x.shape, np.uint8) if op in MASKS else x
    given = {"x": x, "y": y, "op": op, "dtype": dtype, "n": x.size, "alpha": ALPHA, "beta": BETA}
    return run_op("unary", kernel, threads=threads, **given)[0]


@pytest.mark.parametrize("op", REFERENCE)
@every_kernel
def test_f32(kernel, op):
    rng = np.random.default_rng(6)
    for n in (1, 3, 15, 16, 17, 33, 500, 70_000):
        x = (rng.standard_normal(n) * 4).astype(np.float32)
        if n == 500:
            x[:8] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-38, 2.5, -0.5]
        if op in ("log", "sqrt"):
            x = np.abs(x)
        if op in ("asin", "acos", "atanh"):
            x = x / 16  # most of them within [-1, 1]
        if op == "acosh":
            x = np.abs(x) + np.float32(0.5)
        with np.errstate(all="ignore"):
            expected = REFERENCE[op](x.astype(np.float64))
        y = run(op, x, 1, kernel, (1, 3) if n > 40_000 else (1,))
        if op in EXACT | MASKS:
            np.testing.assert_array_equal(y, expected.astype(y.dtype))
        else:  # gelu near -5 and elu near 0 lose relative, not absolute accuracy
            atol = 3e-7 if op in NEAR_ZERO else 1e-37
            finite = np.isfinite(x) | (
                op not in ("gelu", "gelu_tanh", "silu")
            )  # their limits: test_ulp.py
            np.testing.assert_allclose(y[finite], expected[finite], rtol=5e-7, atol=atol)


def test_each_op_is_held_against_something():
    """One that kernels leave out would be what they do by default."""
    assert {*REFERENCE, "bitwise_not", "not"} == set(load().target.sets["unary"])


@pytest.mark.parametrize("op", REFERENCE)
@every_kernel
def test_f64(kernel, op):
    x = np.array([np.nan, np.inf, -3.5, -0.5, 0.0, 0.3, 0.5, 1.5, 2.5, 40.0])
    if op in ("gelu", "gelu_tanh", "silu"):
        x = x[2:]
    with np.errstate(all="ignore"):
        expected = REFERENCE[op](x)
        y = run(op, x, 11, kernel)
    np.testing.assert_allclose(y, expected, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("dtype", INTEGERS)
@every_kernel
def test_integers(kernel, dtype):
    low, high, code = np.iinfo(dtype).min, np.iinfo(dtype).max, INTEGERS[dtype]
    x = np.array([max(low, -5), 0, 7, 100, low, high], dtype)
    functions = {**REFERENCE, "bitwise_not": np.bitwise_not}
    with np.errstate(over="ignore"):
        for op in ("abs", "neg", "sign", "relu", "bitwise_not"):
            np.testing.assert_array_equal(run(op, x, code, kernel), functions[op](x), err_msg=op)
    given = {"x": x, "y": x, "dtype": code, "n": x.size}
    (y,) = run_op("unary", kernel, op="clip", alpha=-2.9, beta=np.inf, **given)
    np.testing.assert_array_equal(y, np.maximum(x, dtype(max(low, -2))))
    (y,) = run_op("unary", kernel, op="clip", alpha=-np.inf, beta=6.5, **given)
    np.testing.assert_array_equal(y, np.minimum(x, dtype(6)))
    (y,) = run_op("unary", kernel, op="shrink", alpha=6.0, beta=-1e30, **given)
    kept = [low if v < -6 else high if v > 6 else 0 for v in x.tolist()]  # saturated
    np.testing.assert_array_equal(y, np.array(kept, dtype))


@every_kernel
def test_not_and_empty(kernel):
    x = np.array([0, 1, 1, 0, 0], np.uint8)
    np.testing.assert_array_equal(run("not", x, 9, kernel), 1 - x)
    run("exp", np.zeros(0, np.float32), 1, kernel)
