"""Battery of factors behind products of computed matrices."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from tests.fusion.battery import assert_fuses, assert_perturbed_stays

SCALED = "q7::ScaledMatMul"
AB = {"a": ("B", "S", 24), "b": ("B", 24, "T")}
HEADS = {"a": ("B", 3, "S", 24), "b": ("B", 3, 24, "T")}
MATRICES = {"a": ("S", 24), "b": (24, "T")}
VECTORS = {"a": (24,), "b": ("B", 24, "T")}

SPELLINGS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "mul": (lambda g, a, b: g.Mul(g.MatMul(a, b), 0.125), AB),
    "div": (lambda g, a, b: g.Div(g.MatMul(a, b), 5.0), HEADS),
    "of_one_element": (lambda g, a, b: g.Mul(g.MatMul(a, b), np.float32([0.3])), AB),
    "matrices": (lambda g, a, b: g.Mul(g.MatMul(a, b), -2.0), MATRICES),
    "vector": (lambda g, a, b: g.Mul(g.MatMul(a, b), 0.5), VECTORS),
    "constant_batch": (
        lambda g, a, b: g.Mul(g.MatMul(g.open(np.ones((2, 7, 24), np.float32)), b), 0.5),
        {"a": (1,), "b": (2, 24, "T")},
    ),
}


def named(formula: Callable[..., Any]) -> Callable[..., Any]:
    return lambda g, a, b: formula(g, a, b)


@pytest.mark.parametrize("name", SPELLINGS)
def test_one_step(name: str) -> None:
    formula, inputs = SPELLINGS[name]
    assert_fuses(named(formula), inputs, {SCALED: 1}, steps=1)


def weights_are_an_output(g: Any, q: Any, k: Any, v: Any) -> Any:
    weights = g.Softmax(g.Div(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), 8.0), axis=-1)
    return g.MatMul(weights, v), weights


def test_attention_whose_weights_are_an_output() -> None:
    shape = ("B", 3, "S", 24)
    given = {"q": shape, "k": shape, "v": shape}
    assert_fuses(weights_are_an_output, given, {SCALED: 1, "q7::Attention": 0}, steps=3)


def test_near_ones_stay() -> None:
    spelling = named(SPELLINGS["mul"][0])
    assert_perturbed_stays(spelling, AB, {SCALED}, kinds=("output",))
    rows = {**AB, "b": ("B", 24, "S")}
    assert_fuses(lambda g, a, b: g.Mul(g.MatMul(a, b), g.ReduceSum(a, [2])), rows, {SCALED: 0})
