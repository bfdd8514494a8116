"""Images whose channels lie side by side: what reads and writes them where they are."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Callable

import numpy as np
import pytest

from q7x2_ep import InferenceSession, SessionOptions
from tests.fusion.battery import assert_correct, build, feeds_for


def filters(g: Any, x: Any, *shape: int, **attrs: Any) -> Any:
    """A convolution with weights of its own."""
    random = np.random.default_rng([len(g.nodes), *shape])
    w = (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
    return g.Conv(x, w, **attrs)


def check(shape: tuple[int, ...], spelling: Callable[..., Any]) -> Counter:
    """The accuracy rule, and equal bits by one and three threads. Returns how many steps of each op
    there are.
    """
    model, _ = build(spelling, {"x": shape}, opset=13)
    assert_correct(model)
    feeds, results = feeds_for(model, {}), []
    for threads in (1, 3):
        options = SessionOptions()
        options.intra_op_num_threads = threads
        session = InferenceSession(model.SerializeToString(), options)
        results.append([y.tobytes() for y in session.run(None, feeds)])
    assert results[0] == results[1]
    return Counter(step.op for step in session._session.program.steps)


@pytest.mark.parametrize(
    ("image", "shape", "attrs"),
    [
        ((3, 256, 14, 13), (256, 256, 1, 1), {"strides": [2, 2]}),
        ((2, 256, 1, 1), (256, 256, 1, 1), {"strides": [2, 2]}),  # as many pixels as x has
        ((1, 512, 7, 7), (512, 512, 3, 3), {"pads": [1] * 4}),
        ((2, 160, 9, 8), (192, 160, 5, 5), {"dilations": [2, 1], "pads": [4, 2, 4, 2]}),
        ((1, 256, 300), (256, 256, 1), {"strides": [3]}),
    ],
)
def test_products_of_few_windows(
    image: tuple[int, ...], shape: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    """Convolutions that AMX multiplies as a whole, where there is AMX."""

    def net(g: Any, x: Any) -> Any:
        y = filters(g, x, *shape, **attrs)
        return g.Relu(y), filters(g, y, 128, shape[0], *[1] * (len(shape) - 2))

    check(image, net)


IMAGES = {3: (2, 3, 20), 4: (2, 3, 5, 6), 5: (1, 3, 4, 5, 3)}
REDUCTIONS = [
    (ndim, axes, keepdims)
    for ndim in IMAGES
    for count in range(ndim + 1)
    for axes in itertools.combinations(range(ndim), count)
    for keepdims in (0, 1)
]


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceLogSumExp"])
@pytest.mark.parametrize(("ndim", "axes", "keepdims"), REDUCTIONS)
def test_reductions_of_images(op: str, ndim: int, axes: tuple[int, ...], keepdims: int) -> None:
    """Over any axes of what a convolution makes; those of all pixels take no copy."""

    def net(g: Any, x: Any) -> Any:
        image = g.Relu(
            filters(g, x, 9, 3, *[1] * (ndim - 2))
        )  # errors of sums that cancel are luck
        given = {"axes": list(axes)} if axes else {}
        return g.Neg(g.call(op, image, keepdims=keepdims, **given)), image

    steps = check(IMAGES[ndim], net)
    if axes == tuple(range(2, ndim)) and op == "ReduceMean":
        assert steps["copy"] == 1  # of the image, which is an output: (N, C, ..)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [[0, 0, 1, 2, 0, 0, 2, 0], [0, 0, -1, 3, 0, 0, 0, -2]])
def test_borders_of_images(mode: str, pads: list[int]) -> None:
    """No copy for the border, nor does a pool or a convolution behind it want one."""

    def net(g: Any, x: Any) -> Any:
        y = g.Pad(filters(g, x, 24, 16, 3, 3), pads, mode=mode)
        pooled = g.MaxPool(y, kernel_shape=[2, 2])
        return filters(g, pooled, 8, 24, 1, 1), filters(g, y, 8, 24, 3, 3)

    steps = check((2, 16, 11, 13), net)
    assert steps["copy"] == 3  # x and the outputs are planes


def dense_block(g: Any, x: Any, layers: int, act: bool = True) -> tuple[Any, list[Any]]:
    """Layers that read all that were made before, and their Concats."""
    parts, joined = [filters(g, x, 16, 3, 3, 3, pads=[1] * 4)], []
    for _ in range(layers):
        whole = g.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
        joined.append(whole)
        channels = 16 + 8 * (len(parts) - 1)
        read = g.Relu(g.Neg(whole)) if act else whole
        parts.append(filters(g, read, 8, channels, 3, 3, pads=[1] * 4))
    return g.Concat(*parts, axis=1), joined


@pytest.mark.parametrize("act", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_dense_block_lies_in_its_last_concat(batch: int, act: bool) -> None:
    def net(g: Any, x: Any) -> Any:
        return filters(g, dense_block(g, x, 5, act)[0], 8, 56, 1, 1)

    steps = check((batch, 3, 9, 10), net)
    assert steps["copy"] <= 2  # of the first part, which others read as well, and of y


def test_outputs_of_a_dense_block() -> None:
    def net(g: Any, x: Any) -> Any:
        whole, joined = dense_block(g, x, 3)
        return whole, joined[1], g.MaxPool(joined[2], kernel_shape=[2, 2])

    check((2, 3, 6, 7), net)


def test_concats_that_begin_alike_and_go_on_differently() -> None:
    def net(g: Any, x: Any) -> Any:
        a, b, c = (filters(g, x, 8, 3, 1, 1) for _ in range(3))
        ab, abc, abx = (g.Concat(*parts, axis=1) for parts in ((a, b), (a, b, c), (a, b, x)))
        outer = g.Concat(abc, ab, a, axis=1)
        return g.Sigmoid(ab), g.Neg(abx), filters(g, outer, 8, 48, 3, 3)

    check((1, 3, 6, 7), net)


def test_concats_of_inputs() -> None:
    def net(g: Any, x: Any) -> Any:
        two, three = g.Concat(x, x, axis=1), g.Concat(x, x, x, axis=1)
        return g.Neg(two), g.Neg(three), g.Exp(three)

    check((1, 3, 6, 7), net)


def test_planes_in_front_of_an_image() -> None:
    """Behind them there is no room for channels that lie side by side."""

    def net(g: Any, x: Any) -> Any:
        planes, part = g.Concat(x, x, axis=1), filters(g, x, 8, 3, 3, 3, pads=[1] * 4)
        longer = g.Concat(x, x, part, axis=1)
        return g.Neg(planes), filters(g, part, 9, 8, 1, 1), g.Neg(longer)

    check((1, 3, 6, 7), net)


def test_concats_of_rows() -> None:
    def net(g: Any, x: Any) -> Any:
        rows = g.Flatten(x), g.Tanh(g.Flatten(x))
        two, three = g.Concat(*rows, axis=1), g.Concat(*rows, g.Neg(rows[0]), axis=1)
        return g.Exp(two), g.Abs(three), g.Softmax(two)

    check((2, 3, 6, 7), net)


def test_layers_that_are_read_and_joined_at_once() -> None:
    """As VoVNet has them: each is written where the Concat wants it, and read there."""

    def net(g: Any, x: Any) -> Any:
        parts = [filters(g, x, 8, 3, 3, 3, pads=[1] * 4)]
        for _ in range(3):
            parts.append(g.Relu(filters(g, parts[-1], 8, 8, 3, 3, pads=[1] * 4)))
        return filters(g, g.Concat(*parts, axis=1), 12, 32, 1, 1)

    assert check((2, 3, 9, 10), net)["copy"] <= 1  # of y


@pytest.mark.parametrize("width", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("times", [1, 2])
def test_groups_of_few_channels(width: int, times: int) -> None:
    """Of as many filters to a group, or twice as many."""
    channels = 6 * width
    shape = (times * channels, width, 3, 3)

    def net(g: Any, x: Any) -> Any:
        image = g.Relu(filters(g, x, channels, 3, 1, 1))
        strided = filters(g, image, *shape, strides=[2, 2], pads=[1] * 4, group=6)
        if times == 2:
            return g.Sigmoid(strided)
        y = g.Add(image, filters(g, image, *shape, pads=[1] * 4, group=6))
        return g.Sigmoid(strided), y

    check((2, 3, 17, 19), net)


@pytest.mark.parametrize("taps", [4, 5, 7, 11, 12])
@pytest.mark.parametrize("dilation", [1, 3])
def test_long_lines(taps: int, dilation: int) -> None:
    """Of signals, rows and planes; errors are held to those of onnxruntime."""
    reach = (taps - 1) * dilation
    pads = [reach // 2, reach - reach // 2]

    def signal(g: Any, x: Any) -> Any:
        y = filters(g, x, 70, 64, taps, pads=pads, dilations=[dilation])
        return g.Relu(filters(g, y, 64, 70, taps, pads=pads, dilations=[dilation]))

    check((2, 64, 90), signal)
    check(
        (1, 64, 9, 40), lambda g, x: filters(g, x, 64, 64, 1, taps, pads=[0, pads[0], 0, pads[1]])
    )
    check(
        (1, 64, 40, 9), lambda g, x: filters(g, x, 64, 64, taps, 1, pads=[pads[0], 0, pads[1], 0])
    )
    check((1, 64, 40, 3, 4), lambda g, x: filters(g, x, 64, 64, taps, 1, 1))


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize(("channels", "copies"), [(3, 2), (8, 0)])
def test_few_channels_are_pooled_as_planes(op: str, channels: int, copies: int) -> None:
    """Of an image as TensorFlow has it; vectors of few channels would be nearly empty."""

    def net(g: Any, x: Any) -> Any:
        pool = getattr(g, op)
        y = pool(g.Transpose(x, perm=[0, 3, 1, 2]), kernel_shape=[3, 3], pads=[1] * 4)
        return g.Transpose(y, perm=[0, 2, 3, 1])

    assert check((2, 9, 20, channels), net)["copy"] == copies


@pytest.mark.parametrize(
    ("image", "shape", "attrs"),
    [
        ((2, 1, 300), (70, 1, 10), {"strides": [5]}),
        ((2, 5, 31, 60), (5, 1, 3, 3), {"group": 5, "pads": [1] * 4}),
        ((1, 6, 20, 101), (6, 1, 3, 3), {"group": 6, "strides": [2, 2], "pads": [1, 0, 0, 1]}),
        ((2, 8, 30, 41), (16, 4, 3, 3), {"group": 2, "dilations": [1, 2]}),
        ((2, 70, 20, 27), (35, 70, 1, 1), {}),
    ],
)
def test_planes_that_leave(
    image: tuple[int, ...], shape: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    """Planes between which there is one convolution are not turned."""

    def counts(g: Any, x: Any) -> Any:
        y, axes = filters(g, x, *shape, **attrs), [len(image) - 1]
        share = g.ReduceMean(g.Cast(g.Greater(y, 0.0), to=1), axes=axes)
        return g.ReduceMax(y, axes=axes), share

    assert "copy" not in check(image, lambda g, x: g.Relu(filters(g, x, *shape, **attrs)))
    assert "copy" not in check(image, counts)


@pytest.mark.parametrize("each", [2, 17])
def test_transposed_by_groups(each: int) -> None:
    """Of many filters as images, of few as planes."""
    random = np.random.default_rng(3)
    w = random.standard_normal((24, each, 3, 2)).astype(np.float32)
    bias = random.standard_normal(3 * each).astype(np.float32)

    def net(g: Any, x: Any) -> Any:
        image = filters(g, x, 24, 16, 3, 3)
        y = g.Relu(g.ConvTranspose(image, w, bias, group=3, strides=[2, 1], pads=[1, 0, 0, 1]))
        return filters(g, y, 8, 3 * each, 3, 3)

    assert check((2, 16, 9, 10), net)["gemm"] == (3 if each == 17 else 0)
