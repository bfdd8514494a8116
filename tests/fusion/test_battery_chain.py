"""The battery of q7::Chain: what is left of models after all other fusions, as one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import q7x2_ep
from tests.fusion.battery import (
    Change,
    assert_correct,
    assert_fuses,
    build,
    fused_ops,
    perturbed,
)

ROW = np.linspace(-1, 1, 8)
X = {"x": ("B", "S", 8)}
XY = {"x": ("B", "S", 8), "y": ("B", "S", 8)}


def polynomial(g: Any, x: Any) -> Any:
    """Horner, as exporters write out special functions."""
    y = g.Add(g.Mul(x, 0.25), -0.5)
    for coefficient in (0.125, 2.0, -1.0):
        y = g.Add(g.Mul(y, x), coefficient)
    return y


def distance(g: Any, x: Any, y: Any) -> Any:
    difference = g.Sub(x, y)
    return g.Sqrt(g.Add(g.Mul(difference, difference), 1e-6))


def affine(g: Any, x: Any) -> Any:
    return g.Add(g.Mul(x, ROW), ROW[::-1].copy())


def smooth_l1(g: Any, x: Any, y: Any) -> Any:
    size = g.Abs(g.Sub(x, y))
    inner = g.Mul(g.Mul(size, size), 0.5)
    return g.Where(g.Less(size, 1.0), inner, g.Sub(size, 0.5))


def focal(g: Any, x: Any) -> Any:
    p = g.Sigmoid(x)
    return g.Neg(g.Mul(g.Pow(g.Sub(1.0, p), 2.0), g.Log(g.Max(p, 1e-7))))


def gated(g: Any, x: Any, y: Any) -> Any:
    return g.Mul(g.Tanh(x), g.Sigmoid(y))


def by_column(g: Any, x: Any, column: Any) -> Any:
    return g.Exp(g.Sub(g.Mul(x, column), g.Abs(x)))


def padding_mask(g: Any, keep: Any) -> Any:
    return g.Mul(g.Sub(1.0, g.Cast(keep, to=1)), -10000.0)


def window_mask(g: Any, q: Any, k: Any) -> Any:
    near = g.And(g.LessOrEqual(k, q), g.Less(g.Sub(q, k), np.array(3)))
    return g.Where(near, 0.0, -1e4)


def strided(g: Any, x: Any) -> Any:
    """The two halves of the last axis are views."""
    left, right = g.Split(x, outputs=2, axis=-1, num_outputs=2)
    return g.Mul(g.Add(left, right), g.Sub(left, right))


def transposed(g: Any, x: Any, y: Any) -> Any:
    return g.Tanh(g.Add(g.Transpose(x, perm=[0, 2, 1]), y))


def capped(g: Any, x: Any, y: Any) -> Any:
    """Other fusions find the cap and the gate."""
    cap = g.Mul(g.Tanh(g.Div(x, 30.0)), 30.0)
    return g.Add(g.Mul(cap, g.Sigmoid(cap)), y)


def squared_error(g: Any, x: Any, y: Any) -> Any:
    difference = g.Sub(x, y)
    return g.ReduceMean(g.Mul(difference, difference), [-1], keepdims=0)


COLUMN = {"x": ("B", "S", 8), "column": ("B", "S", 1)}
FAMILY = [
    (polynomial, X),
    (distance, XY),
    (affine, X),
    (smooth_l1, XY),
    (focal, X),
    (gated, XY),
    (by_column, COLUMN),
    (padding_mask, {"keep": ("int64", ("B", 1, 1, "S"))}),
    (window_mask, {"q": ("int64", ("S", 1)), "k": ("int64", (1, "S"))}),
    (capped, XY),
    (squared_error, XY),
    (strided, X),
    (lambda g, x: g.Neg(g.Slice(x, [4], [8], [2])), X),
    (transposed, {"x": ("B", 8, "S"), "y": ("B", "S", 8)}),
]


@pytest.mark.parametrize("spelling, inputs", FAMILY, ids=lambda x: getattr(x, "__name__", ""))
def test_is_one_step(spelling: Any, inputs: Any) -> None:
    steps = 2 if spelling is transposed else 1  # a copy first: its columns would waste cache lines
    assert_fuses(spelling, inputs, {"q7::Chain": 1}, steps=steps)


@pytest.mark.parametrize("spelling, inputs", FAMILY, ids=lambda x: getattr(x, "__name__", ""))
def test_an_inner_value_is_never_lost(spelling: Any, inputs: Any) -> None:
    """Each inner value in turn is an output as well: no chain goes past it."""
    for change, model in perturbed(spelling, inputs, ("output",)):
        assert_correct(model)
        found, _ = fused_ops(model)
        nodes = len(model.graph.node)
        assert sum(found.values()) > 1 or nodes == 1, change


def scores(g: Any, x: Any, w: Any) -> Any:
    """The bias and the activation belong to the product, the row of scales to nobody."""
    scale = g.Exp(g.Mul(w, 0.5))
    return g.Mul(g.Relu(g.Add(g.MatMul(x, np.ones((8, 4))), np.ones(4))), scale)


def test_others_come_first() -> None:
    inputs = {"x": ("B", "S", 8), "w": (4,)}
    assert_fuses(scores, inputs, {"q7::Linear": 1, "q7::Chain": 1, "Mul": 1}, steps=3)


def test_double_is_a_chain_too() -> None:
    model, _ = build(distance, XY, change=Change("dtype"))
    assert fused_ops(model)[0] == {"q7::Chain": 1}
    assert_correct(model)


def everything(g: Any, x: Any) -> Any:
    return g.ReduceSum(g.Mul(x, x), np.array([0, 1]), keepdims=0)


@pytest.mark.parametrize("shape", [(5, 0), (0, 0), (0, 5), (1, 5), (5, 1), (4, 5)])
def test_a_row_is_not_all_of_it(shape: tuple[int, ...]) -> None:
    """The last axis has as many elements as all axes where one of them is empty."""
    model, _ = build(everything, {"x": shape})
    x = np.ones(shape, np.float32)
    with q7x2_ep.InferenceSession(model.SerializeToString()) as session:
        found = session.run(None, {"x": x})[0]
    assert found.shape == () and found == x.size
