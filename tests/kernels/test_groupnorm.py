"""groupnorm against float64: groups of any size, pixels among those of others, and large means."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from q7x2_ep.plan.target import KernelRow
from q7x2_ep.session import Session
from tests.kernels.harness import rows, run_threads

EPS = np.finfo(np.float32).eps
# images, pixels, channels, groups, pixels of a part
CASES = {
    "one group": (2, 300, 24, 1, 64),
    "groups": (1, 777, 96, 8, 100),
    "of one channel": (2, 130, 37, 37, 32),
    "more groups than a task": (2, 90, 200, 100, 16),
    "few channels": (1, 5000, 3, 3, 1000),
    "one pixel": (2, 1, 64, 4, 8),
    "whole parts": (1, 128, 130, 2, 32),
    "no pixels": (1, 0, 8, 2, 8),
}
SHAPES = {"x": (2, 64, 16, 32), "scale": (64,), "bias": (64,), "y": (2, 64, 16, 32)}


def expected(x: np.ndarray, groups: int, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """GroupNorm of x (N, pixels, C) in float64."""
    s = x.astype(np.float64).reshape(*x.shape[:2], groups, x.shape[2] // groups)
    centred = s - s.mean((1, 3), keepdims=True)
    normal = centred / np.sqrt(np.square(centred).mean((1, 3), keepdims=True) + 1e-5)
    return normal.reshape(x.shape) * weight + bias


def bound(wanted: np.ndarray, mean: float, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return 8 * EPS * (1 + mean) * (np.abs(weight) + np.abs(wanted) + np.abs(bias))


@pytest.mark.parametrize("row", rows("groupnorm"), ids=lambda row: row.name)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(row: KernelRow, name: str) -> None:
    batch, pixels, channels, groups, part = CASES[name]
    rng = np.random.default_rng(CASES[name])
    weight, bias = rng.standard_normal((2, channels)).astype(np.float32)
    parts = -(-pixels // part)
    for mean, gap, given in ((0.0, 0, True), (100.0, 3, True), (0.0, 5, False)):
        wide = np.full((batch, pixels, channels + gap), np.nan, np.float32)
        x = wide[..., :channels]
        x[:] = rng.standard_normal(x.shape) + mean
        room = np.full((batch, pixels, channels + 1), 7.0, np.float32)
        (y,) = run_threads(
            "groupnorm",
            row,
            x=wide,
            weight=weight if given else None,
            bias=bias if given else None,
            y=room,
            sums=batch * (2 * parts + 2) * channels * 4,
            N=batch,
            pixels=pixels,
            C=channels,
            groups=groups,
            part=part,
            x_stride=channels + gap,
            y_stride=channels + 1,
            eps=1e-5,
        )
        np.testing.assert_array_equal(y[..., channels:], 7.0)
        if not pixels:
            continue
        rest = (weight, bias) if given else (np.ones(channels), np.zeros(channels))
        wanted = expected(x, groups, *rest)
        assert (np.abs(y[..., :channels] - wanted) <= bound(wanted, mean, *rest)).all()


def test_rows_of_whole_lines() -> None:
    """Planes first, and rows that a product would want apart."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 64, 16, 32)).astype(np.float32)
    scale, bias = rng.standard_normal((2, 64)).astype(np.float32)
    node = helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=8)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in SHAPES.items()]
    graph = helper.make_graph([node], "g", infos[:3], infos[3:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": x, "scale": scale, "bias": bias}
    (y,) = Session(made.SerializeToString()).run(feeds)
    pixels = [np.moveaxis(image, 1, -1).reshape(2, -1, 64) for image in (x, y)]
    wanted = expected(pixels[0], 8, scale, bias)
    assert (np.abs(pixels[1] - wanted) <= bound(wanted, 0.0, scale, bias)).all()
