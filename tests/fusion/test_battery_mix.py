"""Battery of talking heads: scores, or weights, of an attention that are mixed along the heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fusion.battery import assert_fuses, assert_perturbed_stays

RNG = np.random.default_rng(0)
QK = {"q": ("B", 4, "S", 8), "k": ("B", 4, "T", 8)}
LAST, SECOND = [0, 2, 3, 1], [0, 3, 1, 2]


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


W, SIX, BIAS = weights(4, 4), weights(4, 6), weights(4)
KERNEL, KERNEL_6 = weights(4, 4, 1, 1), weights(6, 4, 1, 1)


def scores(g: Any, q: Any, k: Any) -> Any:
    return g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))


def by_linear(g: Any, x: Any, w: np.ndarray = W, bias: Any = BIAS) -> Any:
    y = g.MatMul(g.Transpose(x, perm=LAST), w)
    return g.Transpose(y if bias is None else g.Add(y, bias), perm=SECOND)


def linear(g: Any, q: Any, k: Any) -> Any:
    return by_linear(g, g.Softmax(by_linear(g, g.open(scores(g, q, k))), axis=-1), bias=None)


def wider(g: Any, q: Any, k: Any) -> Any:
    return by_linear(g, scores(g, q, k), SIX, None)


def convolution(g: Any, q: Any, k: Any) -> Any:
    mixed = g.Conv(scores(g, q, k), KERNEL, BIAS)
    return g.Conv(g.Softmax(mixed, axis=-1), KERNEL_6)


def scaled(g: Any, q: Any, k: Any) -> Any:
    return g.Conv(g.Mul(scores(g, q, k), g.free(0.3)), KERNEL)


MIXES = {linear: 2, wider: 1, convolution: 2, scaled: 1}


@pytest.mark.parametrize("spelling", MIXES)
def test_mixed(spelling: Any) -> None:
    softmaxes = spelling in (linear, convolution)
    steps = 1 + MIXES[spelling] + softmaxes  # and the product
    assert_fuses(spelling, QK, {"q7::Mix": MIXES[spelling]}, steps=steps)


def one_mix(g: Any, q: Any) -> Any:
    return by_linear(g, q)


def test_near_ones_stay() -> None:
    assert_perturbed_stays(one_mix, {"q": ("B", 4, "S", 8)}, {"q7::Mix"}, kinds=("axis", "output"))


STAY = {
    "of more planes": lambda g, q: by_linear(g, q, weights(4, 40), None),
    "with an activation": lambda g, q: g.Transpose(
        g.Relu(g.MatMul(g.Transpose(q, perm=LAST), W)), perm=SECOND
    ),
    "of an image": lambda g, q: g.Conv(q, KERNEL),
    "of windows": lambda g, q: g.Conv(g.Softmax(q, axis=-1), weights(4, 4, 3, 3)),
    "with a stride": lambda g, q: g.Conv(g.Softmax(q, axis=-1), KERNEL, strides=[2, 2]),
    "in groups": lambda g, q: g.Conv(g.Softmax(q, axis=-1), weights(4, 2, 1, 1), group=2),
}


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name: str) -> None:
    assert_fuses(STAY[name], {"q": ("B", 4, 6, 8)}, {"q7::Mix": 0})
