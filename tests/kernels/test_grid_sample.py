"""grid_sample against onnxruntime: planes and pixels, odd sizes, places that are no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep.plan.target import KernelRow
from q7x2_ep.session import Session
from tests.kernels.harness import remembered, rows, run_threads

EPS = np.finfo(np.float32).eps
MODES = ("nearest", "linear", "cubic")
BORDERS = {"zeros": "zeros", "edge": "border", "reflect": "reflection"}
# images (N, C, ..), points of each
CASES = {
    "many small": ((50, 1, 7, 5), 49),
    "one point": ((3, 2, 4, 6), 1),
    "one of many": ((60, 1, 3, 4), 1),
    "odd": ((2, 3, 5, 9), 37),
    "side by side": ((2, 17, 6, 3), 33),
    "vectors": ((1, 32, 8, 8), 100),
    "and one more": ((1, 33, 3, 4), 20),
    "parts": ((2, 5, 11, 13), 3000),
    "one pixel": ((2, 33, 1, 1), 18),
    "a line": ((1, 2, 1, 30), 18),
    "volumes": ((2, 3, 4, 5, 6), 50),
    "many small volumes": ((9, 1, 2, 1, 3), 5),
    "volumes side by side": ((1, 20, 3, 1, 2), 19),
    "no images": ((0, 2, 3, 3), 4),
}
every_row = pytest.mark.parametrize("row", rows("grid_sample"), ids=lambda row: row.name)
every_mode = pytest.mark.parametrize("mode", MODES)
every_border = pytest.mark.parametrize("border", BORDERS)


@remembered
def expected(x: np.ndarray, grid: np.ndarray, mode: str, border: str, corners: int) -> np.ndarray:
    """In float64."""
    how = {"mode": mode, "padding_mode": BORDERS[border], "align_corners": corners}
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], **how)
    names = ("x", "grid", "y")
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in names]
    graph = helper.make_graph([node], "g", infos[:2], infos[2:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    places = grid.reshape(len(x), *[1] * (x.ndim - 3), *grid.shape[1:])
    (y,) = session.run(None, {"x": x.astype(np.float64), "grid": places.astype(np.float64)})
    return y.reshape(*x.shape[:2], grid.shape[1])


def sampled(
    row: KernelRow, x: np.ndarray, grid: np.ndarray, last: bool, y_last: bool, **how: Any
) -> np.ndarray:
    """y (N, C, points), from x and to y whose channels are planes, or side by side among others."""
    (batch, channels, *sizes), points = x.shape, grid.shape[1]
    gap = 3 if last else 0
    if last:
        held = np.full((batch, *sizes, channels + gap), np.nan, np.float32)
        held[..., :channels] = np.moveaxis(x, 1, -1)
        pixel = channels + gap
    else:
        held, pixel = x, 1
    room = (batch, points, channels + 2) if y_last else (batch, channels, points)
    steps = np.cumprod([pixel, *sizes[:0:-1]])[::-1].tolist()  # of each dim of sizes
    missing = 3 - len(sizes)
    (y,) = run_threads(
        "grid_sample",
        row,
        threads=(1, 3),
        x=held,
        grid=grid,
        y=np.full(room, 7.0, np.float32),
        N=batch,
        C=channels,
        **dict(zip("DHW", [1] * missing + sizes)),
        points=points,
        axes=len(sizes),
        x_n_stride=int(np.prod(held.shape[1:])),
        x_c_stride=1 if last else int(np.prod(sizes)),
        **{f"x_{d}_stride": n for d, n in zip("dhw", [0] * missing + steps)},
        y_n_stride=int(np.prod(room[1:])),
        y_c_stride=1 if y_last else points,
        y_stride=channels + 2 if y_last else 1,
        **how,
    )
    if not y_last:
        return y
    np.testing.assert_array_equal(y[..., channels:], 7.0)
    return np.moveaxis(y[..., :channels], -1, 1)


@every_row
@every_mode
@every_border
@pytest.mark.parametrize("corners", [0, 1])
def test_against_ort(row: KernelRow, mode: str, border: str, corners: int) -> None:
    for shape, points in CASES.values():
        axes = len(shape) - 2
        if (mode, axes) == ("cubic", 3):
            continue
        rng = np.random.default_rng(shape)
        x = rng.standard_normal(shape).astype(np.float32)
        grid = (rng.standard_normal((shape[0], points, axes)) * 1.2).astype(np.float32)
        how = {"interpolation": mode, "border": border, "align_corners": corners}
        wanted = expected(x, grid, mode, border, corners)
        found = {
            (last, y_last): sampled(row, x, grid, last, y_last, **how)
            for last in (False, True)
            for y_last in (False, True)
        }
        is_clear = np.ones((shape[0], 1, points), bool)
        if mode == "nearest":
            sizes = np.array(shape[:1:-1])
            places = (grid.astype(np.float64) + 1) / 2 * (sizes - 1)
            if not corners:
                places = ((grid.astype(np.float64) + 1) * sizes - 1) / 2
            is_clear = (np.abs(places % 1 - 0.5) > 1e-4).all(-1)[:, None]
        # a place is rounded by some eps of it, and its weights with it
        slack = 64 * EPS * max(shape[2:]) * np.abs(x).max(initial=0)
        for y in found.values():
            assert (np.abs(y - wanted) <= np.where(is_clear, slack, np.inf)).all()


@every_row
@every_mode
@every_border
@pytest.mark.parametrize("corners", [0, 1])
def test_no_numbers(row: KernelRow, mode: str, border: str, corners: int) -> None:
    """What is no number lies outside, and so do huge numbers; of x is read what is there."""
    places = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -3e7]
    for shape in ((1, 1, 3, 5), (2, 18, 1, 2), (1, 2, 2, 3, 1), (1, 3, 0, 2)):
        axes = len(shape) - 2
        if (mode, axes) == ("cubic", 3):
            continue
        x = np.full(shape, 3.0, np.float32)
        grid = np.zeros((shape[0], axes * len(places), axes), np.float32)
        for axis in range(axes):
            grid[:, axis::axes, axis] = places
        how = {"interpolation": mode, "border": border, "align_corners": corners}
        inside = 0.0 if border == "zeros" or 0 in shape else 3.0
        for last in (False, True):
            if min(shape[2:]) != 1 or not corners:  # else a pixel is everywhere, but for NaN
                y = sampled(row, x, grid, last, last, **how)
                np.testing.assert_allclose(y, inside, rtol=1e-5)


@every_row
def test_numbers_beside(row: KernelRow) -> None:
    """A pixel that is no number is seen where it counts: not by points that lie outside of x."""
    x = np.zeros((1, 16, 2, 3), np.float32)
    x[..., 0, 0] = np.inf
    grid = np.array([[[-2, -2], [-4, 0], [0.9, 0.9], [-1, -1]]], np.float32)
    how = {"interpolation": "linear", "border": "zeros", "align_corners": 0}
    for last in (False, True):
        y = sampled(row, x, grid, last, False, **how)
        np.testing.assert_array_equal(y, np.broadcast_to([0, 0, 0, np.inf], (1, 16, 4)))


def compared(
    nodes: list[Any], feeds: dict[str, np.ndarray], fixed: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """y of a session, and of onnxruntime's."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in feeds.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(x, name) for name, x in fixed.items()]
    graph = helper.make_graph(nodes, "g", infos, [result], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    model = made.SerializeToString()
    (wanted,) = onnxruntime.InferenceSession(model).run(None, feeds)
    results = [Session(model, threads=n).run(feeds)[0] for n in (1, 3)]
    assert results[0].tobytes() == results[1].tobytes()
    return results[0], wanted


@pytest.mark.parametrize(
    "after, axis", [("Identity", 1), ("Relu", 2), ("Unsqueeze", 3), ("Reshape", 1)]
)
@pytest.mark.parametrize("size", [4, 20])
def test_images(after: str, axis: int, size: int) -> None:
    """Channels side by side, as convolutions leave them, read by what wants them so and what does
    not; planes that are turned around first, or are not for their few points.
    """
    rng = np.random.default_rng(size)
    pixels = rng.standard_normal((2, size, size + 1, 9)).astype(np.float32)
    feeds = {"pixels": pixels, "planes": np.moveaxis(pixels, 3, 1).copy()}
    feeds["grid"] = (rng.standard_normal((2, 5, 6, 2)) * 0.8).astype(np.float32)
    nodes = [helper.make_node("Transpose", ["pixels"], ["image"], perm=[0, 3, 1, 2])]
    sizes = {"Unsqueeze": ["axes"], "Reshape": ["shape"]}.get(after, [])
    for name, x in (("a", "image"), ("b", "planes")):
        nodes.append(helper.make_node("GridSample", [x, "grid"], [f"{name}0"]))
        nodes.append(helper.make_node(after, [f"{name}0", *sizes], [name]))
    nodes.append(helper.make_node("Concat", ["a", "b"], ["y"], axis=axis))
    fixed = {"axes": np.array([-2]), "shape": np.array([2, 3, 3, 30])}
    found, wanted = compared(nodes, feeds, fixed)
    slack = 64 * EPS * size * np.abs(pixels).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=slack)


@pytest.mark.parametrize("channels", [1, 9])
def test_backwards(channels: int) -> None:
    """Images that are turned over by their strides."""
    rng = np.random.default_rng(channels)
    feeds = {
        "pixels": rng.standard_normal((2, 6, 7, channels)).astype(np.float32),
        "grid": (rng.standard_normal((2, 5, 6, 2)) * 0.8).astype(np.float32),
    }
    nodes = [
        helper.make_node("Slice", ["pixels", "starts", "ends", "axes", "steps"], ["turned"]),
        helper.make_node("Transpose", ["turned"], ["image"], perm=[0, 3, 1, 2]),
        helper.make_node("GridSample", ["image", "grid"], ["y"]),
    ]
    fixed = {"starts": [-1, -1, -1], "ends": [-99, -99, -99], "axes": [0, 1, 2]}
    fixed["steps"] = [-1, -1, -1]
    (found, wanted) = compared(nodes, feeds, {n: np.array(x) for n, x in fixed.items()})
    np.testing.assert_allclose(found, wanted, rtol=0, atol=64 * 7 * EPS * np.abs(wanted).max())
