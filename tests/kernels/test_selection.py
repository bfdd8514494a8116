"""nonzero, nms and roi_align on inputs that ONNX's own cases do not have: against numpy and
onnxruntime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import q7x2_ep

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)


def sessions(text: str) -> list[Any]:
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>\ng ' + text)
    data = model.SerializeToString()
    return [q7x2_ep.InferenceSession(data), ort.InferenceSession(data)]


@pytest.mark.parametrize(
    "dtype", ["float", "double", "float16", "bfloat16", "int8", "uint16", "int32", "int64", "bool"]
)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (1, 5), (4, 3, 2), (2, 1, 3, 2, 9)])
def test_nonzero(dtype: str, shape: tuple, session_class: Any):
    dims = ", ".join(f"n{i}" for i in range(len(shape)))
    text = f"({dtype}[{dims}] x) => (int64[{len(shape)}, k] y) {{ y = NonZero(x) }}"
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>\ng ' + text)
    session = session_class(model.SerializeToString())
    for share in (0.0, 0.4, 1.0):
        x = RNG.integers(-2, 3, shape) * (RNG.random(shape) < share)
        x = np.asarray(x).astype(session.inputs[0].array_dtype)
        if dtype in ("float", "double", "float16") and x.size:
            x.flat[0] = -0.0
            x.flat[-1] = np.nan
        (y,) = session.run({"x": x})
        wanted = np.array(np.nonzero(np.atleast_1d(x)))[: x.ndim]
        np.testing.assert_array_equal(y, wanted.reshape(x.ndim, -1) if x.ndim else y[:0])
        assert y.shape == (len(shape), int(np.count_nonzero(x))) and y.dtype == np.int64


NMS = """(float[b, n, 4] boxes, float[b, c, n] scores, int64[1] most, float[1] iou, float least)
    => (int64[k, 3] y) { y = NonMaxSuppression<center_point_box = CENTRE>(boxes, scores, most, iou,
    least) }"""


@pytest.mark.parametrize("centre", [0, 1])
@pytest.mark.parametrize(("batch", "classes", "n"), [(1, 1, 300), (2, 3, 40), (1, 2, 1), (1, 4, 0)])
def test_nms(centre: int, batch: int, classes: int, n: int):
    ours, theirs = sessions(NMS.replace("CENTRE", str(centre)))
    for most, iou, least in (
        (10, 0.5, 0.2),
        (1000, 0.3, 0.5),
        (0, 0.5, 0),
        (3, 0.0, -1),
        (9, 1, 0),
    ):
        boxes = RNG.uniform(0, 20, (batch, n, 4)).astype(np.float32)
        if not centre:  # either pair of corners; some are empty
            boxes[..., 2:] = boxes[..., :2] + RNG.integers(-3, 9, (batch, n, 2))
        scores = RNG.random((batch, classes, n), np.float32).round(2)  # with ties
        feed = {
            **{"boxes": boxes, "scores": scores, "most": np.array([most])},
            **{"iou": np.array([iou], np.float32), "least": np.array(least, np.float32)},
        }
        np.testing.assert_array_equal(*(engine.run(None, feed)[0] for engine in (ours, theirs)))


@pytest.mark.parametrize("centre", [0, 1])
@pytest.mark.parametrize("iou", [0.0, 0.3])
@pytest.mark.parametrize("axis", [0, 1])
def test_nms_of_many_small_boxes(centre: int, iou: float, axis: int):
    """Along one axis, with some that are large, of no size, or upside down."""
    ours, theirs = sessions(NMS.replace("CENTRE", str(centre)))
    for n in (257, 3000):
        boxes = RNG.uniform(0, 9, (1, n, 4)).astype(np.float32)
        boxes[..., axis] += RNG.uniform(-900, 900, (1, n)).astype(np.float32)
        if not centre:
            boxes[..., 2:] = boxes[..., :2] + RNG.uniform(-3, 9, (1, n, 2)).astype(np.float32)
        boxes[:, ::50, 2 + axis] = RNG.uniform(0, 500, boxes[:, ::50, 0].shape)
        boxes[:, ::70, 2:] = 0 if centre else boxes[:, ::70, :2]
        scores = RNG.random((1, 2, n), np.float32).round(2)
        feed = {
            **{"boxes": boxes, "scores": scores, "most": np.array([n])},
            **{"iou": np.array([iou], np.float32), "least": np.array(-1, np.float32)},
        }
        ours_kept, theirs_kept = (engine.run(None, feed)[0] for engine in (ours, theirs))
        np.testing.assert_array_equal(ours_kept, theirs_kept)
        assert n / 5 < len(ours_kept) < 2 * n


def test_nms_of_scores_that_are_no_numbers(session_class: Any):
    """The best of numbers first; NaN last, and never above a least score."""
    text = """(float[1, n, 4] boxes, float[1, 1, n] scores, int64 most) => (int64[k, 3] y)
        { y = NonMaxSuppression(boxes, scores, most) }"""
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>\ng ' + text)
    session = session_class(model.SerializeToString())
    boxes = np.arange(5, dtype=np.float32)[None, :, None] * 10 + np.array([0, 0, 1, 1], np.float32)
    scores = np.array([[[np.nan, -np.inf, 1, np.nan, np.inf]]], np.float32)
    (y,) = session.run({"boxes": boxes, "scores": scores, "most": np.array(9)})
    assert y[:, 2].tolist() == [4, 2, 1, 0, 3]


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 3, 9])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("channels", [3, 70])
@pytest.mark.parametrize("last", [False, True])
def test_roi_align(mode: str, ratio: int, coordinates: str, channels: int, last: bool):
    """Regions beyond the image, turned around, of no size, of 81 samples to a cell; none at all."""
    ours, theirs = sessions(
        f"""(float[b, s, t, u] x, float[n, 4] rois, int64[n] at) => (float[n, c, 2, 3] y) {{
        image = Transpose<perm = {[0, 3, 1, 2] if last else [0, 1, 2, 3]}>(x)
        y = RoiAlign<mode = "{mode}", sampling_ratio = {ratio}, output_height = 2, output_width = 3,
            spatial_scale = 0.5, coordinate_transformation_mode = "{coordinates}">(image, rois, at)
        }}"""
    )
    shape = (2, 11, 14, channels) if last else (2, channels, 11, 14)
    x = np.abs(RNG.standard_normal(shape)).astype(np.float32)
    rois = RNG.uniform(-6, 34, (12, 4)).astype(np.float32)
    rois[:8, 2:] = rois[:8, :2] + RNG.uniform(0, 15, (8, 2)).astype(np.float32)
    rois[0, 2:] = rois[0, :2]
    keep = slice(None) if ratio else slice(1, 8)  # onnxruntime has no sample for others
    for regions in (rois[keep], rois[:0]):
        feed = {"x": x, "rois": regions, "at": RNG.integers(0, 2, len(regions))}
        a, b = (engine.run(None, feed)[0] for engine in (ours, theirs))
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)
    with pytest.raises(q7x2_ep.errors.DataError, match="region of an image"):
        ours.run(None, {"x": x, "rois": rois, "at": np.full(len(rois), 2)})


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_of_regions_that_are_mostly_outside(mode: str):
    """Samples outside are not taken one by one: of the largest region there are 2^60 of them."""
    ours, theirs = sessions(
        f"""(float[b, c, t, u] x, float[n, 4] rois, int64[n] at) => (float[n, c, 2, 3] y) {{
        y = RoiAlign<mode = "{mode}", output_height = 2, output_width = 3>(x, rois, at) }}"""
    )
    x = RNG.standard_normal((1, 2, 4, 5)).astype(np.float32)
    rois = np.array([[-300, -200, 500, 400], [1, 2, 999, 3], [-400, -3, -390, 2]], np.float32)
    at = np.zeros(len(rois), np.int64)
    a, b = (engine.run(None, {"x": x, "rois": rois, "at": at})[0] for engine in (ours, theirs))
    np.testing.assert_allclose(a, b, 1e-5, 1e-5)
    far = np.array([[0, 0, 2.0**30 - 64, 2.0**30 - 64]], np.float32)
    (y,) = ours.run(None, {"x": x, "rois": far, "at": at[:1]})
    assert np.isfinite(y).all() and not y[..., 1:].any()
    for odd in (np.inf, -np.inf, np.nan, 2.0**30):
        with pytest.raises(q7x2_ep.errors.DataError, match="coordinate of a region"):
            ours.run(None, {"x": x, "rois": np.full((1, 4), odd, np.float32), "at": at[:1]})
