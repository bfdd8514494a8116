"""Battery of Softmax written out: every spelling is one step, along any axis; near ones stay."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fusion.battery import assert_fuses, assert_perturbed_stays

X = {"x": ("B", "S", 8)}
NEAR = ("axis", "output")  # doubles fuse as well, and there is no number to change


def reduced(g: Any, op: str, x: Any, axis: int, keepdims: bool) -> Any:
    reduce = getattr(g, op)
    if keepdims:
        return reduce(x, [axis], keepdims=1)
    return g.Unsqueeze(reduce(x, [axis], keepdims=0), [axis])


def divided(g: Any, weights: Any, total: Any) -> Any:
    return g.Div(weights, total)


def multiplied(g: Any, weights: Any, total: Any) -> Any:
    return g.Mul(weights, g.Reciprocal(total))


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("scaled", [divided, multiplied])
def test_softmax(scaled: Any, axis: int, keepdims: bool) -> None:
    def spelling(g: Any, x: Any) -> Any:
        weights = g.Exp(g.Sub(x, reduced(g, "ReduceMax", x, axis, keepdims)))
        return scaled(g, weights, reduced(g, "ReduceSum", weights, axis, keepdims))

    assert_fuses(spelling, X, {"Softmax": 1}, steps=1)
    assert_perturbed_stays(spelling, X, {"Softmax"}, NEAR)


@pytest.mark.parametrize("axis", [-1, 1])
def test_log_softmax(axis: int) -> None:
    def spelling(g: Any, x: Any) -> Any:
        rest = g.Sub(x, reduced(g, "ReduceMax", x, axis, True))
        return g.Sub(rest, g.Log(reduced(g, "ReduceSum", g.Exp(rest), axis, True)))

    assert_fuses(spelling, X, {"LogSoftmax": 1}, steps=1)
    assert_perturbed_stays(spelling, X, {"LogSoftmax"}, NEAR)
