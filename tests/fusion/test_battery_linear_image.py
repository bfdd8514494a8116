"""Feed-forwards of ConvNeXt, on rows of the pixels of an image: two steps, LayerScale included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fusion.battery import assert_correct, assert_fuses, build, fused_ops

RANDOM = np.random.default_rng(5)
C, WIDE = 24, 40
FIRST = [0, 3, 1, 2]


def weights(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * 0.3).astype(np.float32)


GIVEN: dict[str, Any] = {
    "x": ("B", C, 9, "S"),
    "d": weights(C, 1, 3, 3),
    "up": weights(C, WIDE),
    "b": weights(WIDE),
    "down": weights(WIDE, C),
    "c": weights(C),
    "gamma": weights(C),
    "v": weights(8, C, 2, 2),
}
ONE = {"q7::Linear": 2, "MatMul": 0, "Mul": 0, "Add": 0, "q7::Chain": 0}


def feed_forward(g: Any, x: Any, d: Any, up: Any, b: Any, down: Any, c: Any) -> Any:
    """The rows behind a depthwise Conv."""
    y = g.Transpose(g.Conv(x, d, group=C, pads=[1, 1, 1, 1]), perm=[0, 2, 3, 1])
    y = g.LayerNormalization(y, c)
    return g.Add(g.MatMul(g.Relu(g.Add(g.MatMul(y, up), b)), down), c)


@pytest.mark.parametrize("shape", [(C, 1, 1), (1, C, 1, 1)])
def test_layer_scale_of_the_image(shape: tuple[int, ...]) -> None:
    """As in timm and torchvision."""

    def block(
        g: Any, x: Any, d: Any, up: Any, b: Any, down: Any, c: Any, gamma: Any, v: Any
    ) -> Any:
        y = g.Transpose(feed_forward(g, x, d, up, b, down, c), perm=FIRST)
        return g.Conv(g.Add(x, g.Mul(gamma, y)), v, strides=[2, 2])

    given = {**GIVEN, "gamma": GIVEN["gamma"].reshape(shape)}
    assert_fuses(block, given, ONE)


def test_layer_scale_of_rows() -> None:
    """As in transformers."""

    def block(
        g: Any, x: Any, d: Any, up: Any, b: Any, down: Any, c: Any, gamma: Any, v: Any
    ) -> Any:
        y = g.Mul(feed_forward(g, x, d, up, b, down, c), gamma)
        return g.Conv(g.Add(x, g.Transpose(y, perm=FIRST)), v, strides=[2, 2])

    assert_fuses(block, GIVEN, ONE)


def test_blocks_one_behind_the_other() -> None:
    def blocks(g: Any, x: Any, d: Any, up: Any, b: Any, down: Any, c: Any, gamma: Any) -> Any:
        for _ in range(3):
            y = g.Transpose(feed_forward(g, x, d, up, b, down, c), perm=FIRST)
            x = g.Add(g.Mul(y, gamma), x)
        return x

    given = {**GIVEN, "gamma": GIVEN["gamma"].reshape(C, 1, 1)}
    assert_fuses(blocks, given, {**ONE, "q7::Linear": 6})


def test_what_stays_an_image() -> None:
    def scaled(g: Any, x: Any, down: Any, gamma: Any) -> Any:
        return g.Mul(g.Transpose(g.MatMul(x, down), perm=FIRST), gamma)

    def otherwise(g: Any, x: Any, down: Any, gamma: Any) -> Any:
        return g.Mul(g.Transpose(g.MatMul(x, down), perm=[0, 3, 2, 1]), gamma)

    def activated(g: Any, x: Any, down: Any, gamma: Any) -> Any:
        return g.Mul(g.Transpose(g.Relu(g.MatMul(x, down)), perm=FIRST), gamma)

    def read_twice(g: Any, x: Any, down: Any, gamma: Any) -> Any:
        y = g.Transpose(g.MatMul(x, down), perm=FIRST)
        return g.Mul(y, gamma), y

    given = {**GIVEN, "x": ("B", 5, 7, WIDE), "gamma": GIVEN["gamma"].reshape(C, 1, 1)}
    assert_fuses(scaled, given, {"q7::Linear": 1, "Mul": 0})
    for gamma, spelling in (
        (given["gamma"], otherwise),
        (given["gamma"], activated),
        (given["gamma"], read_twice),
        (weights(7), scaled),
        (np.full((C, 1, 1), 1e-30, np.float32), scaled),
        (("B", C, 1, 1), scaled),
    ):
        model = build(spelling, {**given, "gamma": gamma})[0]
        found = fused_ops(model)[0]
        assert found["Mul"] + found["q7::Chain"] == 1, spelling
        assert_correct(model)


def test_residuals_that_stay_outside() -> None:
    def no_image(g: Any, x: Any, down: Any, r: Any) -> Any:
        return g.Add(g.Transpose(g.MatMul(x, down), perm=FIRST), r)

    def broadcast(g: Any, x: Any, down: Any, d: Any, r: Any) -> Any:
        y = g.Add(g.Transpose(g.MatMul(x, down), perm=FIRST), r)
        return y, g.Conv(r, d, group=C)

    def twice(g: Any, x: Any, down: Any, d: Any, r: Any) -> Any:
        image = g.Conv(r, d, group=C, pads=[1, 1, 1, 1])
        y = g.Add(g.MatMul(x, down), g.Transpose(g.Sigmoid(image), perm=[0, 2, 3, 1]))
        return g.Add(g.Transpose(y, perm=FIRST), image)

    given = {**GIVEN, "x": ("B", 5, 7, WIDE)}
    for spelling, shape in (
        (no_image, ("B", C, 5, 7)),
        (broadcast, (1, C, 5, 7)),
        (twice, ("B", C, 5, 7)),
    ):
        model = build(spelling, {**given, "r": shape})[0]
        found = fused_ops(model)[0]
        assert found["Add"] + found["q7::Chain"] == 1, spelling
        assert_correct(model)
