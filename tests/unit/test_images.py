"""Images whose channels lie side by side: what reads and writes them where they are."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep import InferenceSession, SessionOptions

RANDOM = np.random.default_rng(22)


class Net:
    """Nodes behind each other, each with one output; `net.Conv(x, w)` is the name of it."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def __getattr__(self, op: str) -> Callable[..., str]:
        def make(*inputs: str, **attrs: Any) -> str:
            name = f"{op}{len(self.nodes)}"
            self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
            return name

        return make

    def filters(self, x: str, *shape: int, **attrs: Any) -> str:
        """A convolution with weights of its own."""
        w = (RANDOM.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        self.weights.append(numpy_helper.from_array(w, f"w{len(self.weights)}"))
        return self.Conv(x, self.weights[-1].name, **attrs)

    def check(self, shape: tuple[int, ...], *outputs: str) -> Counter:
        """Its results are onnxruntime's. Returns how many steps of each op there are."""
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        text = onnx.shape_inference.infer_shapes(model).SerializeToString()
        feed = {"x": RANDOM.standard_normal(shape).astype(np.float32)}
        peer = onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"])
        for threads in (1, 3):
            options = SessionOptions()
            options.intra_op_num_threads = threads
            session = InferenceSession(text, options)
            for ours, theirs in zip(session.run(None, feed), peer.run(None, feed)):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        return Counter(step.op for step in session._session.program.steps)


IMAGES = {3: (2, 3, 20), 4: (2, 3, 5, 6), 5: (1, 3, 4, 5, 3)}
REDUCTIONS = [
    (ndim, axes, keepdims)
    for ndim in IMAGES
    for count in range(ndim + 1)
    for axes in itertools.combinations(range(ndim), count)
    for keepdims in (0, 1)
]


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceLogSumExp"])
def test_reductions_of_images(op: str) -> None:
    """Over any axes of what a convolution makes; those of all pixels take no copy."""
    for ndim, axes, keepdims in REDUCTIONS:
        net = Net()
        image = net.filters("x", 9, 3, *[1] * (ndim - 2))
        given = {"axes": axes} if axes else {}
        y = getattr(net, op)(image, keepdims=keepdims, **given)
        steps = net.check(IMAGES[ndim], net.Neg(y), image)
        if axes == tuple(range(2, ndim)) and op == "ReduceMean":
            assert steps["copy"] == 1  # of the image, which is an output: (N, C, ..)


def dense_block(net: Net, layers: int, act: bool = True) -> tuple[str, list[str]]:
    """Layers that read all that were made before; their Concats."""
    parts, joined = [net.filters("x", 16, 3, 3, 3, pads=[1] * 4)], []
    for _ in range(layers):
        whole = net.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
        joined.append(whole)
        channels = 16 + 8 * (len(parts) - 1)
        read = net.Relu(net.Neg(whole)) if act else whole
        parts.append(net.filters(read, 8, channels, 3, 3, pads=[1] * 4))
    return net.Concat(*parts, axis=1), joined


@pytest.mark.parametrize("act", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_dense_block_lies_in_its_last_concat(batch: int, act: bool) -> None:
    net = Net()
    whole, _ = dense_block(net, 5, act)
    steps = net.check((batch, 3, 9, 10), net.filters(whole, 8, 56, 1, 1))
    assert steps["copy"] <= 2  # of the first part, which others read as well, and of y


def test_concats_that_others_want_as_they_are() -> None:
    """Outputs, parts that are inputs, and Concats that begin alike and go on differently."""
    net = Net()
    whole, joined = dense_block(net, 3)
    net.check((2, 3, 6, 7), whole, joined[1], net.MaxPool(joined[2], kernel_shape=[2, 2]))
    net = Net()
    a, b, c = (net.filters("x", 8, 3, 1, 1) for _ in range(3))
    ab, abc, abx = (net.Concat(*parts, axis=1) for parts in ((a, b), (a, b, c), (a, b, "x")))
    outer = net.Concat(abc, ab, a, axis=1)
    net.check((1, 3, 6, 7), net.Sigmoid(ab), net.Neg(abx), net.filters(outer, 8, 48, 3, 3))
    net = Net()
    inputs = net.Concat("x", "x", axis=1), net.Concat("x", "x", "x", axis=1)
    net.check((1, 3, 6, 7), *(net.Neg(each) for each in inputs), net.Exp(inputs[1]))
    net = Net()
    planes = net.Concat("x", "x", axis=1)  # behind which there is no room for channels side by side
    part = net.filters("x", 8, 3, 3, 3, pads=[1] * 4)
    longer = net.Concat("x", "x", part, axis=1)
    outputs = net.Neg(planes), net.filters(part, 9, 8, 1, 1), net.Neg(longer)
    net.check((1, 3, 6, 7), *outputs)
    net = Net()
    rows = net.Flatten("x"), net.Tanh(net.Flatten("x"))
    two, three = net.Concat(*rows, axis=1), net.Concat(*rows, net.Neg(rows[0]), axis=1)
    net.check((2, 3, 6, 7), net.Exp(two), net.Abs(three), net.Softmax(two))


def test_layers_that_are_read_and_joined_at_once() -> None:
    """As VoVNet has them: each is written where the Concat wants it, and read there."""
    net = Net()
    parts = [net.filters("x", 8, 3, 3, 3, pads=[1] * 4)]
    for _ in range(3):
        parts.append(net.Relu(net.filters(parts[-1], 8, 8, 3, 3, pads=[1] * 4)))
    whole = net.Concat(*parts, axis=1)
    steps = net.check((2, 3, 9, 10), net.filters(whole, 12, 32, 1, 1))
    assert steps["copy"] <= 1  # of y


@pytest.mark.parametrize("width", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("filters", [1, 2])
def test_groups_of_few_channels(width: int, filters: int) -> None:
    """Of as many filters to a group, or twice as many."""
    channels = 6 * width
    net = Net()
    image = net.Relu(net.filters("x", channels, 3, 1, 1))
    shape = (filters * channels, width, 3, 3)
    y = net.Add(image, net.filters(image, *shape, pads=[1] * 4, group=6)) if filters == 1 else ""
    strided = net.filters(image, *shape, strides=[2, 2], pads=[1] * 4, group=6)
    net.check((2, 3, 17, 19), *filter(None, (net.Sigmoid(strided), y)))
