"""Convolutions with what vision models put around them: one step each."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from tests.fusion.battery import (
    assert_correct,
    assert_fuses,
    assert_perturbed_stays,
    build,
    fused_ops,
)

RANDOM = np.random.default_rng(3)
M, C = 6, 4


def weights(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * 0.3).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (RANDOM.random(shape) + 0.5).astype(np.float32)


GIVEN: dict[str, Any] = {
    "x": ("B", C, "S", "S"),
    "r": ("B", M, "S", "S"),
    "w": weights(M, C, 3, 3),
    "b": weights(M),
    "scale": positive(M),
    "shift": weights(M),
    "mean": weights(M),
    "variance": positive(M),
    "factor": positive(M, 1, 1),
    "term": weights(1, M, 1, 1),
}
PADS = [1, 1, 1, 1]
ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda g, y: g.Relu(y),
    "relu6": lambda g, y: g.Clip(y, 0.0, 6.0),
    "silu": lambda g, y: g.Mul(y, g.Sigmoid(y)),
    "hard_swish": lambda g, y: g.Mul(y, g.Div(g.Clip(g.Add(y, 3.0), 0.0, 6.0), 6.0)),
    "hard_swish_op": lambda g, y: g.HardSwish(y),
    "sigmoid": lambda g, y: g.Sigmoid(y),
    "leaky_relu": lambda g, y: g.LeakyRelu(y, alpha=0.1),
    "hard_sigmoid": lambda g, y: g.HardSigmoid(y, alpha=0.2, beta=0.5),
    "mish": lambda g, y: g.Mul(y, g.Tanh(g.Softplus(y))),
}
ONE = {"q7::Conv": 1, "Conv": 0, "BatchNormalization": 0}


def conv_bn(
    g: Any, x: Any, w: Any, b: Any, scale: Any, shift: Any, mean: Any, variance: Any
) -> Any:
    return g.BatchNormalization(g.Conv(x, w, b, pads=PADS), scale, shift, mean, variance)


def test_batch_norm() -> None:
    assert_fuses(conv_bn, GIVEN, {"Conv": 1, "BatchNormalization": 0}, steps=1)

    def without_bias(
        g: Any, x: Any, w: Any, scale: Any, shift: Any, mean: Any, variance: Any
    ) -> Any:
        y = g.Conv(x, w, strides=[2, 2], dilations=[1, 1])
        return g.BatchNormalization(y, scale, shift, mean, variance, epsilon=1e-3)

    assert_fuses(without_bias, GIVEN, {"Conv": 1, "BatchNormalization": 0}, steps=1)


@pytest.mark.parametrize("name, at", [("scale", -np.inf), ("variance", -1e-5)])
def test_infinite_factors_stay(name: str, at: float) -> None:
    """Of weights they make no numbers where these are 0, nor has inf * y - inf a sign."""

    def alone(g: Any, r: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
        return g.BatchNormalization(r, scale, shift, mean, variance, epsilon=1e-5)

    given = {**GIVEN, name: GIVEN[name].copy()}
    given[name][1] = at
    for spelling in (conv_bn, alone):
        assert fused_ops(build(spelling, given)[0])[0]["BatchNormalization"] == 1


def test_a_norm_in_front_of_an_activation() -> None:
    def before(g: Any, x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
        return g.Relu(g.BatchNormalization(x, scale, shift, mean, variance, epsilon=1e-3))

    given = {**GIVEN, "x": ("B", M, "S", "S")}
    assert_fuses(before, given, {"q7::Chain": 1, "BatchNormalization": 0}, steps=1)


def test_a_sum_of_two_is_a_residual() -> None:
    def total(g: Any, x: Any, w: Any, r: Any) -> Any:
        return g.Relu(g.Sum(g.Conv(x, w, pads=PADS), r))

    assert_fuses(total, GIVEN, ONE, steps=1)


def test_factors_and_terms_per_channel() -> None:
    def affine(g: Any, x: Any, w: Any, factor: Any, term: Any) -> Any:
        return g.Add(g.Mul(g.Conv(x, w), factor), term)

    assert_fuses(affine, GIVEN, {"Conv": 1, "Mul": 0, "Add": 0}, steps=1)

    def by_numbers(g: Any, x: Any, w: Any) -> Any:
        return g.Add(g.Mul(g.Conv(x, w), 0.5), np.full((1, 1), 0.25))

    assert_fuses(by_numbers, GIVEN, {"Conv": 1, "Mul": 0, "Add": 0}, steps=1)

    def along_columns(g: Any, x: Any, w: Any) -> Any:
        return g.Mul(g.Conv(x, w, pads=PADS), np.arange(1.0, 6.0))

    found, _ = fused_ops(build(along_columns, {**GIVEN, "x": ("B", C, 5, 5)})[0])
    assert found["Mul"] == 1


def test_depthwise_and_one_dim() -> None:
    wide = 16  # channels: fewer do not fill every vector, and are planes

    def depthwise(g: Any, x: Any, w: Any, factor: Any) -> Any:
        return g.Relu(g.Mul(g.Conv(x, w, group=wide, pads=PADS), factor))

    given = {**GIVEN, "x": ("B", wide, "S", "S"), "w": weights(wide, 1, 3, 3)}
    given["factor"] = positive(wide, 1, 1)
    assert_fuses(depthwise, given, ONE, steps=1)

    def one_dim(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Gelu(g.Conv(x, w, b, pads=[1, 1]))

    given = {**GIVEN, "x": ("B", C, "S"), "w": weights(M, C, 3)}
    assert_fuses(one_dim, given, ONE, steps=1, opset=20)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_residual(name: str) -> None:
    act, opset = ACTIVATIONS[name], 18

    def plain(g: Any, x: Any, w: Any, b: Any) -> Any:
        return act(g, g.Conv(x, w, b, pads=PADS))

    def behind_norm(
        g: Any, x: Any, w: Any, scale: Any, shift: Any, mean: Any, variance: Any
    ) -> Any:
        y = g.BatchNormalization(g.Conv(x, w, pads=PADS), scale, shift, mean, variance)
        return act(g, y)

    def residual_first(g: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
        return act(g, g.Add(g.Conv(x, w, b, pads=PADS), r))

    def residual_last(g: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
        return g.Add(act(g, g.Conv(x, w, b, pads=PADS)), r)

    for spelling in (plain, behind_norm, residual_first, residual_last):
        assert_fuses(spelling, GIVEN, ONE, steps=1, opset=opset)
    assert_perturbed_stays(plain, GIVEN, {"q7::Conv"}, ("output",))


AFFINE = {"q7::Conv": 1, "Conv": 0, "Mul": 0, "Add": 0, "q7::Chain": 0}


@pytest.mark.parametrize("name", ["relu", "relu6", "hard_swish", "hard_swish_op"])
@pytest.mark.parametrize("factor,term", [(1.7, 0.3), (-0.6, 0.2), (0.5, 0.0), (1.0, -0.4)])
def test_one_factor_and_term_behind_an_activation(name: str, factor: float, term: float) -> None:
    act, one = ACTIVATIONS[name], np.array([factor], np.float32)

    def learned(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Add(g.Mul(one, act(g, g.Conv(x, w, b, pads=PADS))), np.float32(term))

    def without_bias(g: Any, x: Any, w: Any) -> Any:
        return g.Add(np.float32(term), g.Div(act(g, g.Conv(x, w, pads=PADS)), 1 / factor))

    def twice(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(g.Add(learned(g, x, w, b), 0.25), 3.0)

    def with_residual(g: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
        return g.Add(learned(g, x, w, b), r)

    for spelling in (learned, without_bias, twice, with_residual):
        assert_fuses(spelling, GIVEN, AFFINE, steps=1)


def test_what_is_not_one_factor_behind_a_clamp_stays() -> None:
    def relu(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Relu(g.Conv(x, w, b, pads=PADS))

    def by_channel(g: Any, x: Any, w: Any, b: Any, factor: Any) -> Any:
        return g.Mul(relu(g, x, w, b), factor)

    def by_zero(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(relu(g, x, w, b), 0.0)

    def by_a_trifle(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(relu(g, x, w, b), np.float32(1e-30))

    def of_crossed_bounds(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(g.Clip(g.Conv(x, w, b, pads=PADS), 0.5, -0.5), 2.0)

    def of_silu(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(ACTIVATIONS["silu"](g, g.Conv(x, w, b, pads=PADS)), 2.0)

    def of_a_sum(g: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
        return g.Mul(g.Relu(g.Add(g.Conv(x, w, b, pads=PADS), r)), 2.0)

    def more_dims(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(relu(g, x, w, b), np.full((1, 1, 1, 1, 1), 2, np.float32))

    def fed(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(relu(g, x, g.Neg(w), b), 2.0)

    def read_twice(g: Any, x: Any, w: Any, b: Any) -> Any:
        y = relu(g, x, w, b)
        return g.Mul(y, 2.0), y

    stay = (by_channel, by_zero, by_a_trifle, of_crossed_bounds, of_silu, of_a_sum)
    for spelling in (*stay, more_dims, read_twice):
        model = build(spelling, GIVEN)[0]
        assert fused_ops(model)[0]["Mul"] == 1, spelling
        assert_correct(model)
    model = build(fed, {**GIVEN, "w": (M, C, 3, 3)})[0]
    assert fused_ops(model)[0]["Mul"] == 1
    assert_correct(model)


WIDE: dict[str, Any] = {  # filters enough for images whose channels lie side by side
    **GIVEN,
    "x": ("B", C, 25, 24),
    "r": ("B", 9, 25, 24),
    "w": weights(9, C, 3, 3),
    **{name: weights(9) for name in ("b", "scale", "shift", "mean")},
    "variance": positive(9),
    "factor": weights(9, 1, 1),
    "term": weights(1, 9, 1, 1),
}
FEW = {"q7::Conv": 1, "Conv": 0, "BatchNormalization": 0, "Mul": 0, "Add": 0, "q7::Chain": 0}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_linear_in_a_channel_behind_an_activation(name: str) -> None:
    def activated(g: Any, x: Any, w: Any, b: Any) -> Any:
        return ACTIVATIONS[name](g, g.Conv(x, w, b, pads=PADS))

    def normalized(
        g: Any, x: Any, w: Any, b: Any, scale: Any, shift: Any, mean: Any, variance: Any
    ) -> Any:
        y = activated(g, x, w, b)
        return g.BatchNormalization(y, scale, shift, mean, variance, epsilon=1e-3)

    def with_residual(
        g: Any, x: Any, w: Any, b: Any, r: Any, scale: Any, shift: Any, mean: Any, variance: Any
    ) -> Any:
        return g.Add(normalized(g, x, w, b, scale, shift, mean, variance), r)

    def of_a_sum(g: Any, x: Any, w: Any, b: Any, r: Any, factor: Any, term: Any) -> Any:
        y = ACTIVATIONS[name](g, g.Add(g.Conv(x, w, b, pads=PADS), r))
        return g.Add(g.Mul(y, factor), term)

    def scaled(g: Any, x: Any, w: Any, b: Any, factor: Any) -> Any:
        return g.Mul(factor, activated(g, x, w, b))

    def shifted(g: Any, x: Any, w: Any, b: Any, term: Any) -> Any:
        return g.Add(term, activated(g, x, w, b))

    def by_numbers(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Add(g.Mul(activated(g, x, w, b), 1.5), 0.25)

    def one_of_each(g: Any, x: Any, w: Any, b: Any, factor: Any) -> Any:
        return g.Add(g.Mul(activated(g, x, w, b), factor), 0.25)

    def twice(g: Any, x: Any, w: Any, b: Any, factor: Any, term: Any) -> Any:
        return g.Add(one_of_each(g, x, w, b, factor), term)

    by_vectors = (normalized, with_residual, of_a_sum, scaled, shifted, one_of_each, twice)
    for spelling in (*by_vectors, by_numbers):
        assert_fuses(spelling, WIDE, FEW)  # images are turned at the edges of the graph


@pytest.mark.parametrize(
    "x,w,group",
    [
        (("B", 12, "S", "S"), (12, 1, 3, 3), 12),  # a channel to a group
        (("B", 12, "S", "S"), (24, 1, 3, 3), 12),  # two filters to each
        (("B", 16, "S", "S"), (16, 4, 3, 3), 4),  # narrow groups
        (("B", 6, "S", "S"), (18, 3, 3, 3), 2),
        ((2, 40, 9, 8), (48, 40, 3, 3), 1),  # Winograd's
        ((1, 200, 9, 8), (200, 200, 1, 1), 1),  # a product
        (("B", 5, 30), (9, 5, 3), 1),
        ((1, 5, 4, 6, 7), (9, 5, 1, 3, 3), 1),  # of planes
        ((1, 5, 4, 6, 7), (9, 5, 3, 3, 3), 1),
    ],
)
@pytest.mark.parametrize("residual", [False, True])
def test_norms_behind_activations_of_all_kinds_of_steps(
    x: tuple, w: tuple, group: int, residual: bool
) -> None:
    def block(g: Any, x: Any, w: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
        image = g.Relu(x)
        y = g.Gelu(g.Conv(image, w, group=group, auto_pad="SAME_UPPER"))
        y = g.BatchNormalization(y, scale, shift, mean, variance)
        return g.Add(y, image) if residual else y

    filters = w[0]
    given = {name: weights(filters) for name in ("scale", "shift", "mean")}
    given.update(x=x, w=weights(*w), variance=positive(filters))
    if x[1] == filters or not residual:
        assert_fuses(block, given, FEW, opset=20)


@pytest.mark.parametrize("filters", [4, 8, 12, 16])
@pytest.mark.parametrize("channels", [3, 8])
def test_norms_behind_activations_of_few_filters_to_a_group(filters: int, channels: int) -> None:
    def block(g: Any, x: Any, w: Any, factor: Any, term: Any) -> Any:
        return g.Add(g.Mul(g.Relu(g.Conv(x, w, group=4, pads=PADS)), factor), term)

    given = {name: weights(filters, 1, 1) for name in ("factor", "term")}
    given.update(x=("B", 4 * channels, "S", "S"), w=weights(filters, channels, 3, 3))
    assert_correct(build(block, given)[0])


def test_norms_behind_activations_that_stay() -> None:
    def silu(g: Any, x: Any, w: Any, b: Any) -> Any:
        y = g.Conv(x, w, b, pads=PADS)
        return g.Mul(y, g.Sigmoid(y))

    def behind_a_residual(g: Any, x: Any, w: Any, b: Any, r: Any, factor: Any) -> Any:
        return g.Mul(g.Add(silu(g, x, w, b), r), factor)

    def factors_twice(g: Any, x: Any, w: Any, b: Any, factor: Any) -> Any:
        return g.Mul(g.Mul(silu(g, x, w, b), factor), 2.0)

    def along_columns(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(silu(g, x, w, b), np.arange(1.0, 6.0))

    def more_dims(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Mul(silu(g, x, w, b), np.full((1, 1, 1, 1, 1), 2, np.float32))

    def fed(g: Any, x: Any, w: Any, b: Any, factor: Any) -> Any:
        return g.Mul(silu(g, x, g.Neg(w), b), factor)

    def of_any_number_of_filters(g: Any, x: Any, w: Any) -> Any:
        return g.Mul(g.Sigmoid(g.Conv(x, w, pads=PADS)), 2.0)

    def scaled(g: Any, x: Any, w: Any, b: Any, factor: Any) -> Any:
        return g.Mul(silu(g, x, w, b), factor)

    def read_twice(g: Any, x: Any, w: Any, b: Any, factor: Any) -> Any:
        y = silu(g, x, w, b)
        return g.Mul(y, factor), y

    given = {**WIDE, "x": ("B", C, 25, 5), "r": ("B", 9, 25, 5)}
    for spelling in (behind_a_residual, factors_twice, along_columns, more_dims, read_twice):
        model = build(spelling, given)[0]
        assert fused_ops(model)[0]["Mul"] == 1, spelling
        assert_correct(model)
    few, free = {**GIVEN, "x": ("B", C, 25, 5)}, {**given, "w": ("M", C, 3, 3)}
    some = (fed, {**given, "w": (9, C, 3, 3)}), (of_any_number_of_filters, free), (scaled, few)
    for spelling, values in some:
        model = build(spelling, values)[0]
        assert fused_ops(model)[0]["Mul"] == 1
        assert_correct(model)


SIDES: dict[str, Any] = {  # Convs whose channels are joined: 6 + 4 of two images
    **GIVEN,
    "v": weights(4, C, 1, 1),
    "c": weights(4),
    **{name: weights(M + 4) for name in ("scale", "shift", "mean")},
    "variance": positive(M + 4),
    "factor": positive(M + 4, 1, 1),
    "term": weights(1, M + 4, 1, 1),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("axis", [1, -3])
def test_what_follows_joined_convs(name: str, axis: int) -> None:
    act = ACTIVATIONS[name]

    def joined(g: Any, x: Any, w: Any, b: Any, v: Any) -> Any:
        return g.Concat(g.Conv(x, w, b, pads=PADS), g.Conv(x, v), axis=axis)

    def normalized(
        g: Any, x: Any, w: Any, b: Any, v: Any, scale: Any, shift: Any, mean: Any, variance: Any
    ) -> Any:
        y = joined(g, x, w, b, v)
        return act(g, g.BatchNormalization(y, scale, shift, mean, variance, epsilon=1e-3))

    def affine(g: Any, x: Any, w: Any, b: Any, v: Any, factor: Any, term: Any) -> Any:
        return act(g, g.Add(g.Mul(joined(g, x, w, b, v), factor), term))

    def plain(g: Any, x: Any, w: Any, b: Any, v: Any) -> Any:
        return act(g, g.Mul(joined(g, x, w, b, v), 0.5))

    none = {"BatchNormalization": 0, "Mul": 0, "Add": 0, "q7::Chain": 0}
    for spelling in (normalized, affine, plain):
        assert_fuses(spelling, SIDES, {"q7::Conv": 2, "Concat": 1, **none})


def test_joined_convs_that_others_read_stay() -> None:
    def shared(g: Any, x: Any, w: Any, v: Any) -> Any:
        y = g.Conv(x, w, pads=PADS)
        return g.Relu(g.Concat(y, g.Conv(x, v), axis=1)), g.Neg(y)

    def twice(g: Any, x: Any, w: Any) -> Any:
        y = g.Conv(x, w, pads=PADS)
        return g.Relu(g.Concat(y, y, axis=1))

    def with_another(g: Any, x: Any, w: Any) -> Any:
        return g.Relu(g.Concat(g.Conv(x, w, pads=PADS), x, axis=1))

    def images(g: Any, x: Any, w: Any, b: Any) -> Any:
        y = g.Concat(g.Conv(x, w, pads=PADS), g.Conv(x, w, b, pads=PADS), axis=0)
        return g.Relu(y)

    def activated(g: Any, x: Any, w: Any, v: Any) -> Any:
        return g.Relu(g.Concat(g.Sigmoid(g.Conv(x, w, pads=PADS)), g.Conv(x, v), axis=1))

    def one_of_another(g: Any, x: Any, w: Any) -> Any:
        y = g.Conv(x, w, pads=PADS)
        return g.Relu(g.Concat(g.Conv(y, np.full((4, 6, 1, 1), 0.5, np.float32)), y, axis=1))

    for spelling in (shared, twice, with_another, images, activated, one_of_another):
        model = build(spelling, SIDES)[0]
        assert fused_ops(model)[0]["Relu"] == 1, spelling
        assert_correct(model)


GATED: dict[str, Any] = {  # 32 channels and more: two of a pixel side by side, or not
    "x": (1, 32, 12, 10),
    "gate": (1, 32, 1, 1),
    "r": (1, 16, 12, 10),
    "w": weights(16, 32, 1, 1),
    "b": weights(16),
}


@pytest.mark.parametrize("sizes", [(32, 16), (32, 24), (6, 20), (5, 9), (70, 40), (300, 100)])
@pytest.mark.parametrize("dims", [(600,), (20, 30), (3, 10, 20)])
def test_gates_of_channels(sizes: tuple[int, int], dims: tuple[int, ...]) -> None:
    channels, filters = sizes
    ones = (1,) * len(dims)

    def gated(g: Any, x: Any, gate: Any, w: Any, b: Any, r: Any) -> Any:
        return g.Add(g.Relu(g.Conv(g.Mul(g.Relu(x), g.Sigmoid(gate)), w, b)), r)

    given = {
        "x": (1, channels, *dims),
        "gate": (1, channels, *ones),
        "w": weights(filters, channels, *ones),
        "b": weights(filters),
        "r": (1, filters, *dims),
    }
    assert_fuses(gated, given, {"q7::Conv": 1, "Mul": 0, "q7::Chain": 0})


@pytest.mark.parametrize("sizes", [(32, 16), (32, 24), (5, 9), (70, 40), (256, 128)])
@pytest.mark.parametrize("images", ["B", 3])
def test_gates_of_several_images(images: Any, sizes: tuple[int, int]) -> None:
    channels, filters = sizes

    def gated(g: Any, x: Any, gate: Any, w: Any, b: Any, v: Any) -> Any:
        y = g.Relu(g.Conv(g.Mul(g.Relu(x), g.Sigmoid(gate)), w, b))
        return g.Conv(y, v, pads=PADS)

    given = {
        "x": (images, channels, 22, 30),
        "gate": (images, channels, 1, 1),
        "w": weights(filters, channels, 1, 1),
        "b": weights(filters),
        "v": weights(8, filters, 3, 3),
    }
    assert_fuses(gated, given, {"q7::Conv": 1, "Mul": 0, "q7::Chain": 0})


def test_gates_of_channels_with_a_stride() -> None:
    def gated(g: Any, x: Any, gate: Any, w: Any) -> Any:
        return g.Conv(g.Mul(x, gate), w, strides=[2, 1])

    given = {name: GATED[name] for name in ("x", "gate", "w")}
    assert_fuses(gated, given, {"q7::Conv": 1, "Mul": 0})
    given |= {"x": (3, 32, 12, 10), "gate": (3, 32, 1, 1)}
    assert_fuses(gated, given, {"q7::Conv": 1, "Mul": 0})


@pytest.mark.parametrize(
    "change",
    [
        {"x": ("B", 32, 12, 10)},
        {"x": (2, 32, 80, 90), "gate": (2, 32, 1, 1), "w": weights(1100, 32, 1, 1)},
        {"gate": (1, 1, 12, 10)},
        {"gate": (1, 32, 12, 1)},
        {"w": weights(16, 32, 3, 1)},
        {"w": weights(6, 32, 1, 1)},
        {"x": (1, 32, 4, 4)},
    ],
    ids=str,
)
def test_other_factors_stay(change: dict[str, Any]) -> None:
    def gated(g: Any, x: Any, gate: Any, w: Any) -> Any:
        return g.Conv(g.Mul(x, gate), w)

    given = {**{name: GATED[name] for name in ("x", "gate", "w")}, **change}
    assert_fuses(gated, given, {"q7::Conv": 0, "Conv": 1})


def test_a_gated_image_that_others_read_stays() -> None:
    def gated(g: Any, x: Any, gate: Any, w: Any) -> Any:
        product = g.Mul(x, gate)
        return g.Conv(product, w), g.Neg(product)

    given = {name: GATED[name] for name in ("x", "gate", "w")}
    assert_fuses(gated, given, {"q7::Conv": 0, "Conv": 1})


def test_a_used_sum_is_kept() -> None:
    def both(g: Any, x: Any, w: Any, r: Any) -> Any:
        total = g.Add(g.Conv(x, w, pads=PADS), r)
        return g.Relu(total), total

    found, _ = fused_ops(build(both, GIVEN)[0])
    assert (found["q7::Conv"], found["Relu"]) == (1, 1)


def test_a_residual_that_broadcasts_stays_outside() -> None:
    def smaller(g: Any, x: Any, w: Any, r: Any) -> Any:
        return g.Add(g.Conv(x, w, pads=PADS), r)

    found, report = fused_ops(build(smaller, {**GIVEN, "r": ("B", M, 1, 1)})[0])
    assert found["Add"] == 1 and "for a residual" in str(report)


def test_zeros_around_the_input_are_pads() -> None:
    def padded(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Conv(g.Pad(x, [0, 0, 0, 1, 0, 0, 1, 1]), w, b, pads=[1, 0, 0, 0])

    assert_fuses(padded, GIVEN, {"Conv": 1, "Pad": 0}, steps=1)

    def valid(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Conv(g.Pad(x, [0, 0, 0, 1, 0, 0, 1, 1]), w, b, auto_pad="VALID", strides=[2, 2])

    assert_fuses(valid, GIVEN, {"Conv": 1, "Pad": 0}, steps=1)

    def of_ones(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Conv(g.Pad(x, [0, 0, 0, 1, 0, 0, 1, 1], 1.0), w, b)

    def of_channels(g: Any, x: Any, w: Any, b: Any) -> Any:
        return g.Conv(g.Pad(x, [0, 1, 0, 0, 0, 0, 1, 1]), w, b)

    assert fused_ops(build(of_ones, GIVEN)[0])[0]["Pad"] == 1
    given = {**GIVEN, "x": ("B", C - 1, "S", "S")}
    assert fused_ops(build(of_channels, given)[0])[0]["Pad"] == 1


TRANSPOSED: dict[str, Any] = {**GIVEN, "w": weights(C, M // 2, 3, 2)}
BARE = {"ConvTranspose": 1, "BatchNormalization": 0, "Mul": 0, "Add": 0}


def transpose(g: Any, x: Any, w: Any, b: Any = None) -> Any:
    return g.ConvTranspose(x, w, b, group=2, strides=[2, 1], pads=[1, 0, 0, 1])


def test_transposed_with_a_norm_or_factors() -> None:
    def norm(
        g: Any, x: Any, w: Any, b: Any, scale: Any, shift: Any, mean: Any, variance: Any
    ) -> Any:
        return g.BatchNormalization(transpose(g, x, w, b), scale, shift, mean, variance)

    def affine(g: Any, x: Any, w: Any, factor: Any, term: Any) -> Any:
        return g.Add(g.Mul(transpose(g, x, w), factor), term)

    for spelling in (norm, affine):
        assert_fuses(spelling, TRANSPOSED, BARE, steps=2)

    def along_columns(g: Any, x: Any, w: Any) -> Any:
        return g.Mul(transpose(g, x, w), np.arange(1.0, 6.0))

    found, _ = fused_ops(build(along_columns, {**TRANSPOSED, "x": ("B", C, 5, 5)})[0])
    assert found["Mul"] == 1


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_transposed_with_an_activation(name: str) -> None:
    act = ACTIVATIONS[name]

    def plain(g: Any, x: Any, w: Any, b: Any) -> Any:
        return act(g, transpose(g, x, w, b))

    def behind_norm(
        g: Any, x: Any, w: Any, scale: Any, shift: Any, mean: Any, variance: Any
    ) -> Any:
        return act(g, g.BatchNormalization(transpose(g, x, w), scale, shift, mean, variance))

    for spelling in (plain, behind_norm):
        assert_fuses(spelling, TRANSPOSED, {"q7::ConvTranspose": 1, "ConvTranspose": 0}, steps=2)
    assert_perturbed_stays(plain, TRANSPOSED, {"q7::ConvTranspose"}, ("output",))


@pytest.mark.parametrize(
    "shape,group", [((20, C, 3, 3), 1), ((2, C, 3, 3), 1), ((8, 2, 1, 1), 2), ((C, 1, 3, 3), C)]
)
def test_weights_alone_may_tell_the_channels(shape: tuple[int, ...], group: int) -> None:
    w = weights(*shape)

    def first(g: Any, x: Any) -> Any:
        return g.Relu(g.Conv(x, w, group=group, pads=PADS))

    def last(g: Any, x: Any) -> Any:
        return first(g, g.Transpose(x, perm=[0, 3, 1, 2]))

    assert_correct(build(first, {"x": ("B", "channels", "S", "S")})[0])
    assert_correct(build(last, {"x": ("B", "S", "S", "channels")})[0])
