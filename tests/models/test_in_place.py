"""Values produced in the memory of others: only where nothing writes over them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fusion.battery import assert_correct, build

X = {"x": ("B", "S"), "y": ("B", "S")}


def padded(g: Any, x: Any) -> Any:
    return g.Neg(g.Pad(g.Exp(g.Relu(x)), [1, 0, 2, 0]))


def concatenated(g: Any, x: Any, y: Any) -> Any:
    return g.Neg(g.Concat(g.Exp(x), g.Neg(y), g.Exp(y), axis=0))


def padded_parts(g: Any, x: Any, y: Any) -> Any:
    part = g.Exp(y)
    return g.Concat(g.Pad(g.Exp(x), [1, 0, 0, 0]), part, axis=0), g.Neg(part)


def twice(g: Any, x: Any) -> Any:
    part = g.Exp(x)
    return g.Relu(g.Concat(part, part, axis=0))


@pytest.mark.parametrize("formula", [padded, concatenated, padded_parts, twice])
def test_results_are_right(formula: Any) -> None:
    assert_correct(build(formula, X)[0])
