"""Values produced in the memory of others: only where nothing writes over them."""

from __future__ import annotations

from typing import Any

import numpy as np
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


RNG = np.random.default_rng(3)
IMAGE = {"x": ("N", 16, 7, 9)}
WEIGHTS = [RNG.standard_normal((filters, 16, 1, 1), np.float32) for filters in (32, 16, 8)]


def inner_first(g: Any, x: Any) -> Any:
    a, b, c = (g.Conv(x, w) for w in WEIGHTS)
    return g.Concat(g.Concat(a, b, axis=1), c, axis=1)


def inner_last(g: Any, x: Any) -> Any:
    a, b, c = (g.Conv(x, w) for w in WEIGHTS)
    return g.Concat(c, g.Concat(x, g.Concat(b, a, axis=1), axis=1), axis=1)


def along_lines(g: Any, x: Any) -> Any:
    a, b = (g.Conv(x, w) for w in WEIGHTS[:2])
    joined = g.Concat(a, b, axis=1)
    return g.Concat(joined, g.Neg(joined), axis=2)


@pytest.mark.parametrize("formula", [inner_first, inner_last, along_lines])
def test_images_in_concats_of_concats(formula: Any) -> None:
    assert_correct(build(formula, IMAGE)[0])


NARROW, WIDE, LAST = (
    RNG.standard_normal(shape, np.float32) / 16
    for shape in ((16, 512, 3, 3), (512, 16, 1, 1), (8, 512, 3, 3))
)


def lines_between_pixels(g: Any, x: Any) -> Any:
    """Images of 512 channels that convolutions read, as residuals, too; not the last."""
    first = g.Relu(g.Conv(x, WIDE))
    second = g.Relu(g.Add(g.Conv(g.Conv(first, NARROW, pads=[1] * 4), WIDE), first))
    third = g.Add(g.Conv(g.Conv(second, NARROW, pads=[1] * 4), WIDE), second)
    return g.Conv(second, LAST, strides=[2, 2]), g.GlobalAveragePool(third)


def test_lines_between_pixels() -> None:
    assert_correct(build(lines_between_pixels, IMAGE)[0])
