"""Convolutions that follow one another, run band by band (csrc/bands.h): the same bits as one after
the other, which is how they are run where images between them are asked for, and what onnxruntime
gives.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.kernels.harness import session_of


class Layer(NamedTuple):
    """A convolution to `filters` channels; depthwise where that is 0. residual: adds x, if that has
    its shape.
    """

    filters: int
    kernel: int = 1
    stride: int = 1
    pads: Optional[tuple[int, int, int, int]] = None
    dilation: int = 1
    residual: bool = False


def expansion(stride: int, kernel: int, residual: bool = False) -> list[Layer]:
    """What MobileNet is made of."""
    return [Layer(48), Layer(0, kernel, stride), Layer(16, residual=residual)]


def wide(stride: int, kernel: int, channels: int = 96) -> list[Layer]:
    """The same where images are small: its products are conv_last."""
    return [Layer(channels), Layer(4 * channels), Layer(0, kernel, stride), Layer(channels)]


class Case(NamedTuple):
    size: tuple[int, int]  # of images
    layers: list[Layer]


CASES = {
    "stride 1": Case((64, 56), expansion(1, 3)),
    "stride 2": Case((57, 56), expansion(2, 3)),
    "residual": Case((64, 56), expansion(1, 3, residual=True)),
    "5x5": Case((65, 56), expansion(1, 5)),
    "5x5 of stride 2": Case((64, 57), expansion(2, 5)),
    "many steps": Case(
        (196, 64), [Layer(24, 3, 2), Layer(0, 3), *expansion(2, 3), *expansion(1, 3)]
    ),
    "cropped": Case((64, 56), [Layer(24), Layer(24, 3, 1, (5, 1, -2, 1))]),
    "dilated": Case((64, 56), [Layer(48), Layer(0, 3, 1, (3, 3, 3, 3), 3), Layer(16)]),
    "more outside than in": Case((64, 56), [Layer(48), Layer(0, 3, 1, (9, 2, 7, 2))]),
    "stride beyond the kernel": Case((90, 56), [Layer(24, 3), Layer(24, 2, 3, (0, 0, 0, 0))]),
    "products in one band": Case((14, 14), wide(1, 3)),
    "products, stride 2": Case((29, 14), wide(2, 5)),
    "products of few rows": Case((14, 9), wide(1, 3)),
    "products of few lines": Case((7, 7), wide(1, 3)),
    "products of few pixels": Case((7, 3), wide(1, 3)),
    "wider products": Case((14, 9), wide(1, 3, 128)),
    "pixels apart": Case(
        (41, 40), [Layer(128), Layer(0, 3, 2), Layer(128), Layer(0, 5), Layer(24)]
    ),
    "lines of nothing": Case((64, 1), [Layer(300), Layer(0, 3), Layer(16)]),
}


def model_of(case: Case) -> bytes:
    """Weights are drawn by their place; every image between layers has a name, y0, y1 .."""
    rng = np.random.default_rng(7)
    nodes, weights, channels, before = [], [], 16, "x"
    for i, layer in enumerate(case.layers):
        shape = (layer.filters or channels, channels if layer.filters else 1)
        shape += (layer.kernel, layer.kernel)
        w = rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
        bias = rng.normal(0, 1, shape[0]).astype(np.float32)
        weights += [numpy_helper.from_array(w, f"w{i}"), numpy_helper.from_array(bias, f"b{i}")]
        nodes.append(
            helper.make_node(
                "Conv",
                [before, f"w{i}", f"b{i}"],
                [f"c{i}"],
                group=1 if layer.filters else channels,
                kernel_shape=shape[2:],
                strides=[layer.stride] * 2,
                dilations=[layer.dilation] * 2,
                pads=layer.pads or [layer.kernel // 2] * 4,
            )
        )
        if layer.residual:
            nodes.append(helper.make_node("Add", [f"c{i}", "x"], [f"y{i}"]))
        else:
            nodes.append(helper.make_node("Relu", [f"c{i}"], [f"y{i}"]))
        before, channels = f"y{i}", shape[0]
    graph = helper.make_graph(
        nodes,
        "bands",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, *case.size])],
        [helper.make_tensor_value_info(before, TensorProto.FLOAT, ["n", channels, None, None])],
        weights,
    )
    return bytes_of(graph)


def bytes_of(graph: onnx.GraphProto) -> bytes:
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()


@pytest.mark.parametrize("odd", [1, np.inf])  # an infinity reaches its own windows alone
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_whole_images_with_any_threads(name, odd):
    case = CASES[name]
    model, steps = model_of(case), len(case.layers)
    x = np.random.default_rng(1).normal(0, 1, (3, 16, *case.size)).astype(np.float32)
    x[:, 3, 6, 0] *= np.float32(odd)
    for images in (1, 3):
        feed = {"x": x[:images]}
        whole = session_of(model, 1).run([f"y{i}" for i in range(steps)], feed)
        for threads in (1, 2, 5):
            banded = session_of(model, threads)
            for _ in range(8 if images == 1 else 1):  # its parts follow what threads were slowed by
                np.testing.assert_array_equal(banded.run(None, feed)[0], whole[-1])


@pytest.mark.parametrize("name", [name for name in CASES if name != "cropped"])  # refused there
def test_against_onnxruntime(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = model_of(CASES[name])
    feed = {"x": np.random.default_rng(2).normal(0, 1, (2, 16, *CASES[name].size))}
    feed["x"] = feed["x"].astype(np.float32)
    wanted = onnxruntime.InferenceSession(model).run(None, feed)[0]
    (got,) = session_of(model, 2).run(None, feed)
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("channels, apart", [(96, 0), (128, 16)])
def test_images_between_steps_are_never_whole(channels, apart):
    """The arena has no room for them, nor where a line of cache lies between their pixels."""
    case = Case((160, 160), [Layer(channels), Layer(0, 3), Layer(16)])
    session = session_of(model_of(case), 1)
    (deep,) = [step for step in session._session.program.steps if step.op == "depthwise"]
    assert deep.fields["x_w_stride"] == channels + apart
    (y,) = session.run(None, {"x": np.zeros((1, 16, *case.size), np.float32)})
    kept = y.nbytes * 9 / 8  # for the next run's
    assert sum(session.memory_report().arenas) < kept + 4 * channels * 160 * 160 / 2


def test_an_image_with_two_readers_is_whole():
    """What the next step does not read alone is kept for the others."""
    w = np.random.default_rng(3).normal(0, 1, (16, 16, 1, 1)).astype(np.float32)
    deep = np.random.default_rng(4).normal(0, 1, (16, 1, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Conv", ["a", "deep"], ["b"], group=16, pads=[1] * 4),
        helper.make_node("Conv", ["b", "w"], ["c"]),
        helper.make_node("Add", ["c", "a"], ["d"]),
        helper.make_node("Conv", ["d", "w"], ["y"]),
    ]
    image = ["n", 16, 40, 40]
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, image)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(deep, "deep")],
    )
    model = bytes_of(graph)
    x = np.random.default_rng(5).normal(0, 1, (2, 16, 40, 40)).astype(np.float32)
    wanted = session_of(model, 1).run(["a", "b", "c", "d", "y"], {"x": x})
    for threads in (1, 3):
        (got,) = session_of(model, threads).run(None, {"x": x})
        np.testing.assert_array_equal(got, wanted[-1])


@pytest.mark.parametrize("size", [(9, 8), (4, 5), (20, 14)])
def test_products_of_pixels_that_are_part_of_an_image(size):
    """Rows of x that do not lie one stride apart: those of a slice, of several images."""
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((512, 160, 1, 1)) / 16).astype(np.float32)
    ends = np.array([size[0] - 1, size[1] - 1])
    weights = {"w": w, "b": np.array([1, 1]), "e": ends, "a": np.array([2, 3])}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1]),  # leaves channels last
        helper.make_node("Slice", ["p", "b", "e", "a"], ["s"]),
        helper.make_node("Conv", ["s", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "slice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 160, *size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512, None, None])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = bytes_of(graph)
    x = rng.standard_normal((3, 160, *size)).astype(np.float32)
    part = x[:, :, 1 : size[0] - 1, 1 : size[1] - 1].astype(float)
    wanted = np.einsum("nchw,mc->nmhw", part, w[:, :, 0, 0].astype(float))
    (once,) = session_of(model, 1).run(None, {"x": x})
    np.testing.assert_allclose(once, wanted, atol=3e-6, rtol=0)
    for threads in (2, 5):
        np.testing.assert_array_equal(session_of(model, threads).run(None, {"x": x})[0], once)
