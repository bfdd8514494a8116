"""Battery of feed-forwards with a depthwise convolution between two Linears, as SegFormer has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.fusion.battery import assert_fuses, assert_perturbed_stays, weight

C, HIDDEN = 6, 8
UP, DOWN = weight(C, HIDDEN), weight(HIDDEN, C)
UP_BIAS, DOWN_BIAS, BIAS = weight(HIDDEN), weight(C), weight(HIDDEN, seed=1)
SQUARE = weight(HIDDEN, HIDDEN)
KERNEL = weight(HIDDEN, 1, 3, 3)
ROWS, IMAGE = {"x": ("B", 20, C)}, {"x": ("B", 4, "S", C)}
HOW = {"pads": [1, 1, 1, 1], "group": HIDDEN}
FIRST, LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def up(g: Any, x: Any) -> Any:
    return g.Add(g.MatMul(x, UP), UP_BIAS)


def down(g: Any, rows: Any) -> Any:
    return g.Add(g.MatMul(rows, DOWN), DOWN_BIAS)


def depthwise(g: Any, image: Any) -> Any:
    return g.Conv(image, KERNEL, BIAS, **HOW)


def gelu(g: Any, x: Any) -> Any:
    return g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Div(x, 2**0.5)), 1.0))


def segformer(g: Any, x: Any) -> Any:
    turned = g.Transpose(up(g, x), perm=[0, 2, 1])
    y = depthwise(g, g.Reshape(turned, [0, HIDDEN, 4, 5]))
    rows = g.Transpose(g.Reshape(y, [0, HIDDEN, -1]), perm=[0, 2, 1])
    return g.Add(x, down(g, gelu(g, rows)))


def pixels_first(g: Any, x: Any) -> Any:
    image = g.Transpose(g.Reshape(up(g, x), [-1, 4, 5, HIDDEN]), perm=FIRST)
    y = g.Relu(depthwise(g, image))
    return down(g, g.Reshape(g.Transpose(y, perm=LAST), [0, 20, HIDDEN]))


def images(g: Any, x: Any) -> Any:
    """Whose pixels have no dim in common."""
    y = gelu(g, depthwise(g, g.Transpose(g.Relu(up(g, x)), perm=FIRST)))
    return g.Clip(down(g, g.Transpose(y, perm=LAST)), -0.5, 0.5)


def flat(g: Any, x: Any) -> Any:
    """Rows without a dim of the batch."""
    rows = g.Gemm(g.Reshape(x, [-1, C]), UP, UP_BIAS)
    image = g.Transpose(g.Reshape(rows, [-1, 4, 5, HIDDEN]), perm=FIRST)
    y = g.Transpose(gelu(g, depthwise(g, image)), perm=LAST)
    return g.Gemm(g.Reshape(y, [-1, HIDDEN]), DOWN, DOWN_BIAS)


SPELLINGS = {segformer: ROWS, pixels_first: ROWS, images: IMAGE, flat: ROWS}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_three_convolutions(spelling: Any) -> None:
    assert_fuses(spelling, SPELLINGS[spelling], {"q7::Conv": 3, "Transpose": 2}, steps=3)


def before(g: Any, x: Any) -> Any:
    return depthwise(g, g.Transpose(g.MatMul(x, SQUARE), perm=FIRST))


def behind(g: Any, x: Any) -> Any:
    return g.MatMul(g.Transpose(depthwise(g, x), perm=LAST), SQUARE)


CUBE = {"x": (HIDDEN, HIDDEN, HIDDEN, HIDDEN)}  # of which any axes fit


@pytest.mark.parametrize("spelling", [before, behind])
def test_what_others_need_stays(spelling: Any) -> None:
    assert_fuses(spelling, CUBE, {"q7::Conv": 1, "q7::Linear": 0})
    assert_perturbed_stays(spelling, CUBE, {"q7::Conv"}, ("axis", "output"))


@pytest.mark.parametrize("perm", [*itertools.permutations(range(4))])
def test_other_axes_stay(perm: tuple[int, ...]) -> None:
    def turned(g: Any, x: Any) -> Any:
        y = depthwise(g, g.Transpose(g.MatMul(x, SQUARE), perm=perm))
        return g.MatMul(g.Transpose(y, perm=perm), SQUARE)

    first, last = list(perm) == FIRST, list(perm) == LAST
    assert_fuses(turned, CUBE, {"q7::Conv": first + last})


def used(g: Any, x: Any) -> Any:
    rows = up(g, x)
    y = depthwise(g, g.Transpose(rows, perm=FIRST))
    return y, down(g, g.Transpose(y, perm=LAST)), rows


def several_channels(g: Any, x: Any) -> Any:
    image = g.Transpose(up(g, x), perm=FIRST)
    y = g.Conv(image, weight(HIDDEN, 2, 3, 3), pads=[1, 1, 1, 1], group=HIDDEN // 2)
    return down(g, g.Transpose(y, perm=LAST))


def joined(g: Any, x: Any) -> Any:
    """Channels that are no rows' channels."""
    image = g.Reshape(up(g, x), [0, HIDDEN, 4, -1])
    return down(g, g.Reshape(depthwise(g, image), [0, -1, HIDDEN]))


@pytest.mark.parametrize("spelling", [used, several_channels, joined])
def test_others_stay(spelling: Any) -> None:
    assert_fuses(spelling, IMAGE, {"q7::Conv": 0, "q7::Linear": 2})


def activated(g: Any, x: Any) -> Any:
    """Pixels of any convolution."""
    y = g.Conv(x, weight(HIDDEN, C, 2, 2), BIAS)
    return gelu(g, g.Transpose(g.Reshape(y, [0, HIDDEN, -1]), perm=[0, 2, 1]))


def test_an_activation_goes_to_the_image() -> None:
    given = {"x": ("B", C, "S", 7)}
    assert_fuses(activated, given, {"q7::Conv": 1, "Gelu": 0})
    assert_perturbed_stays(activated, given, {"q7::Conv"}, ("axis", "output"))
