"""Every spelling of LayerNorm and RMSNorm is one step; with one thing wrong it stays as it was."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import q7x2_ep
from q7x2_ep import dtypes
from tests.fusion.battery import (
    assert_fuses,
    assert_perturbed_stays,
    build,
    feeds_for,
    fused_ops,
)

Spelling = Callable[..., Any]

D = 24
X = {"x": ("B", "S", D)}
RANDOM = np.random.default_rng(3)
W, BIAS = RANDOM.standard_normal((2, D))

SQUARES: dict[str, Spelling] = {
    "pow": lambda g, x: g.Pow(x, 2.0),
    "mul": lambda g, x: g.Mul(x, x),
}
# x / sqrt(v) as (x, v) -> value, and the factor alone
RECIPROCALS: dict[str, Spelling] = {
    "reciprocal": lambda g, v: g.Reciprocal(g.Sqrt(v)),
    "one over": lambda g, v: g.Div(1.0, g.Sqrt(v)),
    "power": lambda g, v: g.Pow(v, -0.5),
    "root of reciprocal": lambda g, v: g.Sqrt(g.Reciprocal(v)),
    "power of half": lambda g, v: g.Reciprocal(g.Pow(v, 0.5)),
}
ROOTS: dict[str, Spelling] = {
    "div": lambda g, x, v: g.Div(x, g.Sqrt(v)),
    **{name: lambda g, x, v, f=f: g.Mul(x, f(g, v)) for name, f in RECIPROCALS.items()},
}
EPSILON = 1e-5


def last_mean(g: Any, x: Any) -> Any:
    return g.ReduceMean(x, [-1], keepdims=1)


MEANS: dict[str, Spelling] = {
    "positive axis": lambda g, x: g.ReduceMean(x, [2], keepdims=1),
    "dim dropped and put back": lambda g, x: g.Unsqueeze(g.ReduceMean(x, [-1], keepdims=0), [-1]),
    "sum by factor": lambda g, x: g.Mul(g.ReduceSum(x, [-1], keepdims=1), g.free(1 / D)),
    "sum by count": lambda g, x: g.Div(g.ReduceSum(x, [-1], keepdims=1), g.free(float(D))),
}


def variance(g: Any, x: Any, square: str = "pow", mean: Spelling = last_mean) -> Any:
    return g.Add(mean(g, SQUARES[square](g, x)), g.free(EPSILON))


def layer_norm(
    g: Any, x: Any, square: str = "pow", root: str = "div", mean: Spelling = last_mean
) -> Any:
    d = g.Sub(x, mean(g, x))
    y = g.open(ROOTS[root](g, d, variance(g, d, square, mean)))
    return g.Add(g.open(g.Mul(y, W)), BIAS)


def rms_norm(
    g: Any, x: Any, square: str = "pow", root: str = "div", mean: Spelling = last_mean
) -> Any:
    return g.Mul(g.open(ROOTS[root](g, x, variance(g, x, square, mean))), W)


def with_names(norm: Spelling, **fixed: Any) -> Spelling:
    """The norm with some parameters fixed, as a function of g and x."""

    def spelling(g: Any, x: Any) -> Any:
        return norm(g, x, **fixed)

    return spelling


def check(spelling: Spelling, op: str, inputs: Any = None, **options: Any) -> None:
    inputs = inputs or X
    assert_fuses(spelling, inputs, {op: 1}, steps=1, **options)
    assert_perturbed_stays(spelling, inputs, {op}, **options)


@pytest.mark.parametrize("square, root", list(itertools.product(SQUARES, ROOTS)))
def test_layer_norm(square: str, root: str) -> None:
    check(with_names(layer_norm, square=square, root=root), "LayerNormalization")


@pytest.mark.parametrize("square, root", list(itertools.product(SQUARES, ROOTS)))
def test_rms_norm(square: str, root: str) -> None:
    check(with_names(rms_norm, square=square, root=root), "RMSNormalization")


@pytest.mark.parametrize("factor", RECIPROCALS)
def test_weight_joins_the_factor(factor: str) -> None:
    def rms(g: Any, x: Any) -> Any:
        return g.Mul(x, g.Mul(RECIPROCALS[factor](g, variance(g, x)), W))

    def layer(g: Any, x: Any) -> Any:
        d = g.Sub(x, last_mean(g, x))
        y = g.Mul(d, g.Mul(RECIPROCALS[factor](g, variance(g, d, "mul")), W))
        return g.Add(g.open(y), BIAS)

    check(rms, "RMSNormalization")
    check(layer, "LayerNormalization")


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.parametrize("mean", MEANS)
def test_means(norm: Spelling, mean: str) -> None:
    op = "LayerNormalization" if norm is layer_norm else "RMSNormalization"
    check(with_names(norm, mean=MEANS[mean]), op)


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_axes_as_attribute(norm: Spelling) -> None:
    def mean(g: Any, x: Any) -> Any:
        return g.ReduceMean(x, axes=[-1], keepdims=1)

    op = "LayerNormalization" if norm is layer_norm else "RMSNormalization"
    check(with_names(norm, mean=mean), op, opset=17)


def test_weight_multiplies_x() -> None:
    check(lambda g, x: g.Div(g.Mul(x, W), g.Sqrt(variance(g, x))), "RMSNormalization")
    check(lambda g, x: g.Mul(g.Mul(x, W), g.Reciprocal(g.Sqrt(variance(g, x)))), "RMSNormalization")
    check(lambda g, x: g.Mul(x, g.Div(W, g.Sqrt(variance(g, x)))), "RMSNormalization")


def test_shifted_as_in_tensorflow() -> None:
    def shifted(g: Any, x: Any) -> Any:
        mean = last_mean(g, x)
        scale = g.Mul(g.Reciprocal(g.Sqrt(variance(g, g.Sub(x, mean), "mul"))), W)
        return g.Add(g.Mul(x, scale), g.Sub(BIAS, g.Mul(mean, scale)))

    check(shifted, "LayerNormalization")


def test_no_weight() -> None:
    check(lambda g, x: ROOTS["reciprocal"](g, x, variance(g, x)), "RMSNormalization")

    def layer(g: Any, x: Any) -> Any:
        d = g.Sub(x, last_mean(g, x))
        return g.Div(d, g.Sqrt(variance(g, d)))

    check(layer, "LayerNormalization")
    check(lambda g, x: g.Add(g.open(layer(g, x)), BIAS), "LayerNormalization")


def test_one_plus_weight_as_in_gemma() -> None:
    def gemma(g: Any, x: Any, w: Any) -> Any:
        y = g.open(ROOTS["power"](g, x, variance(g, x)))
        return g.Mul(y, g.Add(w, g.free(1.0)))

    inputs = {**X, "w": W}
    assert_fuses(gemma, inputs, {"RMSNormalization": 1}, steps=1)
    assert_fuses(gemma, {**X, "w": (D,)}, {"RMSNormalization": 1}, steps=2)


def test_weight_is_fed_or_has_ones_in_front() -> None:
    def fed(g: Any, x: Any, w: Any) -> Any:
        return g.Mul(g.open(ROOTS["div"](g, x, variance(g, x))), w)

    check(fed, "RMSNormalization", {**X, "w": (D,)})
    check(fed, "RMSNormalization", {**X, "w": W.reshape(1, 1, D)})


def test_several_axes() -> None:
    w = RANDOM.standard_normal((3, 8))

    def layer(g: Any, x: Any) -> Any:
        d = g.Sub(x, g.ReduceMean(x, [-2, -1], keepdims=1))
        v = g.Add(g.ReduceMean(g.Mul(d, d), [2, 3], keepdims=1), g.free(EPSILON))
        return g.Mul(g.open(g.Div(d, g.Sqrt(v))), w)

    check(layer, "LayerNormalization", {"x": ("B", "S", 3, 8)})


def test_casts_of_exporters_change_nothing() -> None:
    def upcast(g: Any, x: Any) -> Any:
        single = g.Cast(x, to=dtypes.FLOAT)
        y = ROOTS["reciprocal"](g, single, variance(g, single))
        return g.Mul(W, g.Cast(y, to=dtypes.FLOAT))

    assert_fuses(upcast, X, {"RMSNormalization": 1}, steps=1)


# What is another formula, or no norm over the last dims


def sum_of_squares(g: Any, x: Any) -> Any:
    return g.ReduceSum(g.Mul(x, x), [-1], keepdims=1)


def two_products(g: Any, x: Any) -> Any:
    """E[x^2] - E[x]^2 rounds otherwise."""
    m = last_mean(g, x)
    v = g.Sub(last_mean(g, g.Mul(x, x)), g.Mul(m, m))
    return g.Div(g.Sub(x, m), g.Sqrt(g.Add(v, EPSILON)))


OTHERS: dict[str, Spelling] = {
    "two products": two_products,
    "norm 2": lambda g, x: g.Div(x, g.Sqrt(sum_of_squares(g, x))),
    "no mean": lambda g, x: g.Div(x, g.Sqrt(g.Add(sum_of_squares(g, x), EPSILON))),
    "epsilon outside": lambda g, x: g.Div(x, g.Add(g.Sqrt(last_mean(g, g.Mul(x, x))), EPSILON)),
    "another divisor": lambda g, x: g.Div(
        x, g.Sqrt(g.Add(g.Div(sum_of_squares(g, x), D - 1.0), EPSILON))
    ),
    "another axis": lambda g, x: g.Div(
        x, g.Sqrt(g.Add(g.ReduceMean(g.Mul(x, x), [1], keepdims=1), EPSILON))
    ),
    "all axes": lambda g, x: g.Div(
        x, g.Sqrt(g.Add(g.ReduceMean(g.Mul(x, x), [0, 2], keepdims=1), EPSILON))
    ),
    "another x": lambda g, x: g.Div(g.Abs(x), g.Sqrt(variance(g, x))),
    "another power": lambda g, x: g.Mul(x, g.Pow(variance(g, x), -0.25)),
    "epsilon per element": lambda g, x: g.Div(
        x, g.Sqrt(g.Add(last_mean(g, g.Mul(x, x)), np.full(D, EPSILON)))
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formulas_stay(name: str) -> None:
    inputs = {"x": ("B", 8, D)}
    assert_fuses(OTHERS[name], inputs, {"LayerNormalization": 0, "RMSNormalization": 0})


@pytest.mark.parametrize(
    "w", [RANDOM.standard_normal((8, D)), RANDOM.standard_normal((8, 1)), np.float32(3.0)]
)
def test_what_is_no_row_stays_behind_the_norm(w: Any) -> None:
    def scaled(g: Any, x: Any) -> Any:
        return g.Mul(ROOTS["div"](g, x, variance(g, x)), np.asarray(w))

    assert_fuses(scaled, {"x": ("B", 8, D)}, {"RMSNormalization": 1, "Mul": 1}, steps=2)


def test_two_weights() -> None:
    def twice(g: Any, x: Any) -> Any:
        return g.Mul(rms_norm(g, x), BIAS)

    assert_fuses(twice, X, {"RMSNormalization": 1, "Mul": 1}, steps=2)


# Skip


def skip(norm: Spelling, used_again: bool) -> Spelling:
    def spelling(g: Any, x: Any, y: Any) -> Any:
        total = g.open(g.Add(x, y))
        result = norm(g, total)
        return (result, g.Relu(total)) if used_again else result

    return spelling


@pytest.mark.parametrize("used_again", [False, True])
@pytest.mark.parametrize(
    "norm, op", [(layer_norm, "q7::SkipLayerNorm"), (rms_norm, "q7::SkipRmsNorm")]
)
@pytest.mark.parametrize("y", [("B", "S", D), (1, "S", D), ("S", D)], ids=str)
def test_skip(norm: Spelling, op: str, used_again: bool, y: tuple) -> None:
    inputs = {**X, "y": y}
    assert_fuses(skip(norm, used_again), inputs, {op: 1}, steps=1 + used_again)
    if not used_again:
        assert_perturbed_stays(skip(norm, used_again), inputs, {op}, ("constant", "axis", "dtype"))


@pytest.mark.parametrize(
    "norm, op", [(layer_norm, "q7::SkipLayerNorm"), (rms_norm, "q7::SkipRmsNorm")]
)
def test_skip_with_a_row(norm: Spelling, op: str) -> None:
    def spelling(g: Any, x: Any, y: Any) -> Any:
        return norm(g, g.open(g.Add(g.Add(x, y), BIAS)))

    assert_fuses(spelling, {**X, "y": ("B", "S", D)}, {op: 1}, steps=1)


def test_what_is_no_skip() -> None:
    def spelling(g: Any, x: Any, y: Any) -> Any:
        return rms_norm(g, g.Add(x, y))

    for y in (("B", "S", 1), ("B", 1, D)):
        expected = {"q7::SkipRmsNorm": 0, "RMSNormalization": 1}
        assert_fuses(spelling, {**X, "y": y}, expected, steps=2)


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_pre_norm_blocks(norm: Spelling) -> None:
    """The residual goes to the GEMM in front of the norm, whose sum is used again."""
    w = RANDOM.standard_normal((2, D, D)) / 4

    def block(g: Any, x: Any) -> Any:
        h = g.Add(x, g.MatMul(norm(g, x), w[0]))
        return g.Add(h, g.MatMul(norm(g, h), w[1]))

    op = "LayerNormalization" if norm is layer_norm else "RMSNormalization"
    assert_fuses(block, X, {op: 2, "q7::Linear": 2}, steps=4)


# Heads


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_per_head(norm: Spelling) -> None:
    """As Qwen3 has it: a part of a merged projection, normalised per head, heads in front, and
    all without a copy but the one that puts the result in the caller's order."""
    heads, part = 3, 3 * D

    def per_head(g: Any, x: Any) -> Any:
        q, k, _ = g.Split(x, [part, part, part], outputs=3, axis=-1)
        q = norm(g, g.Reshape(q, [0, 0, heads, D]))
        return g.Reshape(q, [0, 0, part]), k

    def transposed(g: Any, x: Any) -> Any:
        x = g.Transpose(g.Reshape(x, [0, 0, heads, D]), perm=[0, 2, 1, 3])
        y = g.Transpose(norm(g, x), perm=[0, 2, 1, 3])
        return g.Reshape(y, [0, 0, part])

    op = "LayerNormalization" if norm is layer_norm else "RMSNormalization"
    assert_fuses(per_head, {"x": ("B", "S", 3 * part)}, {op: 1}, steps=2)
    assert_fuses(transposed, {"x": ("B", "S", part)}, {op: 1}, steps=1)


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_per_head_of_a_sum(norm: Spelling) -> None:
    """Rows whose strides cannot be guessed: N + 4 = 2 * M is not so for any two sizes."""
    heads = 3
    more = RANDOM.standard_normal((4, heads * D)).astype(np.float32)

    def transposed(g: Any, x: Any, y: Any) -> Any:
        rows = g.Add(g.Concat(x, more, axis=0), g.Concat(y, y, axis=0))
        rows = g.Transpose(g.Reshape(rows, [1, -1, heads, D]), perm=[0, 2, 1, 3])
        return norm(g, rows)

    op = "LayerNormalization" if norm is layer_norm else "RMSNormalization"
    assert_fuses(transposed, {"x": ("N", heads * D), "y": ("M", heads * D)}, {op: 1})


# Halves: whether the weight is multiplied in front of the Cast or behind it, as stash_type 1 says


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("weighted_first", [False, True])
def test_halves(op: str, weighted_first: bool) -> None:
    def upcast(g: Any, x: Any) -> Any:
        x = g.Cast(g.Cast(x, to=dtypes.FLOAT16), to=dtypes.FLOAT)
        if op == "LayerNormalization":
            x = g.Sub(x, last_mean(g, x))
        y = ROOTS["power"](g, x, variance(g, x))
        if weighted_first:
            y = g.Cast(g.Mul(y, W), to=dtypes.FLOAT16)
        else:
            y = g.Mul(g.Cast(y, to=dtypes.FLOAT16), g.Cast(W, to=dtypes.FLOAT16))
        return g.Cast(y, to=dtypes.FLOAT)

    model, _ = build(upcast, X)
    found, _ = fused_ops(model)
    assert found[op] == 1
    feeds = feeds_for(model, {"B": 2, "S": 9})
    with q7x2_ep.InferenceSession(model.SerializeToString()) as session:
        (given,) = session.run(None, feeds)
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)  # rounds wherever the model does
    assert np.abs(given - wanted).max() <= 2.0**-9 * np.abs(wanted).max()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("feed", [(2, 4, 3, 2, 5), (2, 4, 30)], ids=str)
def test_groups_of_what_a_reshape_made(groups: int, feed: tuple[int, ...]) -> None:
    """GroupNorm of patches: exporters make one Reshape of the two in front."""
    ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    row = RANDOM.standard_normal((4, 1, 1)).astype(np.float32)

    def spelling(g: Any, x: Any) -> Any:
        y = g.InstanceNormalization(g.Reshape(x, [2, groups, -1]), ones, zeros)
        return g.Add(g.Mul(g.Reshape(y, [2, 4, 6, 5]), row), row)

    assert_fuses(spelling, {"x": feed}, {"GroupNormalization": 1, "Mul": 0, "Add": 0})


def test_groups_that_cut_channels_stay() -> None:
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)

    def spelling(g: Any, x: Any) -> Any:
        y = g.InstanceNormalization(g.Reshape(x, [2, 3, -1]), ones, zeros)
        return g.Reshape(y, [2, 4, 6, 5])

    assert_fuses(spelling, {"x": (2, 4, 30)}, {"GroupNormalization": 0})
