"""Random networks of convolutions, pools and what stands between them, whose images are stored with
their channels side by side in places: against each op by itself in float64, and with threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep import importer, passes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.session import Session

UNARY = ("Relu", "Sigmoid", "HardSwish", "Neg")


class Network:
    """A graph that grows at its end: every value is (N, C, H, W)."""

    def __init__(self, draw: Any):
        self.draw, self.rng = draw, np.random.default_rng(draw(st.integers(0, 999)))
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        size = draw(st.sampled_from(((9, 11), (9, 11), (8, 12), (8, 12), (1, 1), (5, 1))))
        self.inputs(draw(st.integers(1, 2)), draw(st.sampled_from((3, 16, 20))), *size)

    def inputs(self, *shape: int) -> None:
        """Two of a shape, which symbols do not tell."""
        self.shapes = {"x": shape, "z": shape}

    def constant(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        array = self.rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5  # sums stay near 1
        array = np.asarray(array, np.float32)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        self.shapes[name] = shape
        return name

    def any(self) -> str:
        return self.draw(st.sampled_from(list(self.shapes)[-4:]))

    def conv(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        widths = [width for width in (2, 4, 8) if c % width == 0]
        group = self.draw(st.sampled_from((1, 1, c, 2 - c % 2, c // max([1, *widths]))))
        each = (1, 1, 2) if group == c else (1, 2, 4, 8, 17, 32, 40, c // group)
        filters = group * self.draw(st.sampled_from(each))
        k, stride = self.draw(st.sampled_from((1, 3, 3, 5))), self.draw(st.sampled_from((1, 1, 2)))
        dilation = self.draw(st.sampled_from((1, 1, 1, 2, 7)))
        inputs = [x, self.constant(filters, c // group, k, k)]
        inputs += [self.constant(filters)] if self.draw(st.booleans()) else []
        shape = (n, filters, (h - 1) // stride + 1, (w - 1) // stride + 1)
        pads = [k // 2 * dilation] * 4
        attrs = {"group": group, "strides": [stride] * 2, "pads": pads, "dilations": [dilation] * 2}
        return self.add("Conv", inputs, shape, **attrs)

    def block(self, x: str) -> str:
        """With what follows in networks that norm what they activated."""
        return self.scale(self.unary(self.conv(x)))

    def line(self, x: str) -> str:
        """Of a row or a column, enough channels for Winograd's."""
        n, c, h, w = self.shapes[x]
        wide = self.add("Conv", [x, self.constant(64, c, 1, 1)], (n, 64, h, w))
        k, dilation = self.draw(st.integers(3, 12)), self.draw(st.sampled_from((1, 1, 2)))
        shape = self.draw(st.sampled_from(((1, k), (k, 1))))
        reach = [(size - 1) * dilation for size in shape]
        pads = [size // 2 for size in reach] + [size - size // 2 for size in reach]
        inputs = [wide, self.constant(64, 64, *shape)]
        attrs = {"pads": pads, "dilations": [dilation] * 2}
        return self.add("Conv", inputs, self.shapes[wide], **attrs)

    def pool(self, x: str) -> str:
        op = self.draw(st.sampled_from(("MaxPool", "AveragePool")))
        return self.add(op, [x], self.shapes[x], kernel_shape=[3, 3], pads=[1] * 4)

    def excite(self, x: str) -> str:
        """Gates from means, mostly with a convolution of what they let through."""
        n, c, h, w = self.shapes[x]
        mean = self.mean(x, (2, 3), (n, c, 1, 1))
        factors = [x, self.add("Sigmoid", [mean], (n, c, 1, 1))]
        del self.shapes[mean], self.shapes[factors[1]]  # of another size
        product = self.add("Mul", self.draw(st.permutations(factors)), self.shapes[x])
        if self.draw(st.integers(0, 3)) == 0:
            return product
        filters = self.draw(st.sampled_from((8, 17)))
        return self.add("Conv", [product, self.constant(filters, c, 1, 1)], (n, filters, h, w))

    def mean(self, x: str, over: tuple[int, ...], shape: tuple[int, ...]) -> str:
        if over == (2, 3) and self.draw(st.booleans()):
            return self.add("GlobalAveragePool", [x], shape)
        axes = numpy_helper.from_array(np.array(over), f"a{len(self.nodes)}")
        self.constants.append(axes)
        op = self.draw(st.sampled_from(("ReduceMean", "ReduceMax")))
        return self.add(op, [x, axes.name], shape)

    def attend(self, x: str) -> str:
        """To places, by a mean or maximum of their channels."""
        n, _, h, w = self.shapes[x]
        mean = self.mean(x, (1,), (n, 1, h, w))
        return self.add("Mul", [x, mean], self.shapes[x])

    def unary(self, x: str) -> str:
        return self.add(self.draw(st.sampled_from(UNARY)), [x], self.shapes[x])

    def scale(self, x: str) -> str:
        """What is linear in each channel, or alike in all."""
        channels, op = self.shapes[x][1], self.draw(st.sampled_from(("Add", "Mul", "Sub", "Norm")))
        if op != "Norm":
            shapes = ((channels, 1, 1), (channels, 1, 1), (1, channels, 1, 1), (), (1, 1, 1, 1))
            constant = self.constant(*self.draw(st.sampled_from(shapes)))
            return self.add(op, [x, constant], self.shapes[x])
        variance = f"variance{len(self.nodes)}"
        array = self.rng.uniform(0.5, 1.5, channels).astype(np.float32)
        self.constants.append(numpy_helper.from_array(array, variance))
        rows = [self.constant(channels) for _ in range(3)]
        return self.add("BatchNormalization", [x, *rows, variance], self.shapes[x])

    def feed_forward(self, x: str) -> str:
        """On rows of pixels, with a factor of each channel of the image they become."""
        n, c, h, w = self.shapes[x]
        rows = self.add("Transpose", [x], (n, h, w, c), perm=[0, 2, 3, 1])
        up = self.add("MatMul", [rows, self.constant(c, 24)], (n, h, w, 24))
        hidden = self.unary(up)
        down = self.add("MatMul", [hidden, self.constant(24, c)], (n, h, w, c))
        for name in (rows, up, hidden, down):
            del self.shapes[name]  # not images
        image = self.add("Transpose", [down], (n, c, h, w), perm=[0, 3, 1, 2])
        scaled = self.add("Mul", [image, self.constant(c, 1, 1)], (n, c, h, w))
        return self.add("Add", [scaled, x], (n, c, h, w))

    def join(self, x: str) -> str:
        """With a value of the same shape, or of the same size behind it; or behind what one Concat
        has joined, as layers of a dense block are.
        """
        other = self.any()
        n, c, *size = self.shapes[x]
        if self.shapes[other] == self.shapes[x] and self.draw(st.booleans()):
            return self.add("Add", [x, other], self.shapes[x])
        joined = [node for node in self.nodes if node.op_type == "Concat"]
        if joined and self.draw(st.booleans()):
            whole = self.draw(st.sampled_from(joined))
            before, had, *its = self.shapes[whole.output[0]]
            if its == size and had + c < 400:
                return self.add("Concat", [*whole.input, x], (before, had + c, *size), axis=1)
        if self.shapes[other][2:] != tuple(size):
            return self.unary(x)
        return self.add("Concat", [x, other], (n, c + self.shapes[other][1], *size), axis=1)

    def cut(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        first = c // 2
        ends = [
            numpy_helper.from_array(np.array([i]), f"{len(self.nodes)}.{name}")
            for i, name in ((first, "start"), (c, "end"), (1, "axis"))
        ]
        self.constants += ends
        return self.add("Slice", [x, *(end.name for end in ends)], (n, c - first, h, w))

    def shuffle(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        groups = next(g for g in (4, 3, 2, 1) if c % g == 0)
        split = self.reshape(x, (n, groups, c // groups, h, w))
        turned = self.add("Transpose", [split], (), perm=[0, 2, 1, 3, 4])
        del self.shapes[split], self.shapes[turned]  # not images
        return self.reshape(turned, (n, c, h, w))

    def reshape(self, x: str, shape: tuple[int, ...]) -> str:
        name = f"{len(self.nodes)}.shape"
        self.constants.append(numpy_helper.from_array(np.array(shape), name))
        return self.add("Reshape", [x, name], shape)

    def group_norm(self, x: str) -> str:
        """As exporters write it."""
        n, c, h, w = self.shapes[x]
        groups = self.draw(st.sampled_from([g for g in (1, 2, c) if c % g == 0]))
        split = self.reshape(x, (n, groups, c // groups * h * w))
        rows = [self.constant(groups), self.constant(groups)]
        normal = self.add("InstanceNormalization", [split, *rows], ())
        del self.shapes[split], self.shapes[normal]
        y = self.reshape(normal, (n, c, h, w))
        factor = self.constant(c, 1, 1)
        return self.add("Add", [self.add("Mul", [y, factor], (n, c, h, w)), factor], (n, c, h, w))

    def upsample(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), f"s{len(self.nodes)}")
        self.constants.append(scales)
        attrs = {
            "mode": self.draw(st.sampled_from(("nearest", "linear", "cubic"))),
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        return self.add("Resize", [x, "", scales.name], (n, c, 2 * h, 2 * w), **attrs)

    def hourglass(self, x: str) -> str:
        """To half the size and back, beside what it comes from."""
        n, c, h, w = self.shapes[x]
        if h % 2 or w % 2:
            return self.unary(x)
        half = self.add("MaxPool", [x], (n, c, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2])
        deep = self.conv(half) if self.draw(st.booleans()) else half
        n, deep_c, *size = self.shapes[deep]
        if size != [h // 2, w // 2]:
            return deep
        if self.draw(st.booleans()):
            kernel = self.constant(deep_c, 8, 2, 2)
            back = self.add("ConvTranspose", [deep, kernel], (n, 8, h, w), strides=[2, 2])
        else:
            back = self.upsample(deep)
        del self.shapes[half]
        parts = self.draw(st.permutations((x, back)))
        return self.add("Concat", parts, (n, c + self.shapes[back][1], h, w), axis=1)

    def transposed(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        group = self.draw(st.sampled_from((1, 1, 2 if c % 2 == 0 else 1)))
        each, k, stride = (self.draw(st.sampled_from(s)) for s in ((3, 8, 33), (2, 3, 4), (1, 2)))
        inputs = [x, self.constant(c, each, k, k), self.constant(group * each)]
        size = ((h - 1) * stride + k - 1, (w - 1) * stride + k - 1)
        attrs = {"group": group, "strides": [stride] * 2, "pads": [0, 1, 1, 0]}
        return self.add("ConvTranspose", inputs, (n, group * each, *size), **attrs)

    def model(self) -> tuple[bytes, dict[str, np.ndarray]]:
        """With one to three of the last values as outputs, and feeds."""
        shape, draw = self.shapes["x"], self.draw
        is_free = draw(st.booleans())
        inputs = []
        for name in "xz":
            free = [f"n{name}", shape[1], *(f"{name}{i}" for i in range(len(shape) - 2))]
            dims = free if is_free else shape
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        outputs = list(self.shapes)[-draw(st.integers(1, 3)) :]
        named = [helper.make_tensor_value_info(v, TensorProto.FLOAT, None) for v in outputs]
        named = [value for value in named if value.name not in ("x", "z")]
        graph = helper.make_graph(self.nodes, "images", inputs, named, self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        feeds = {name: self.rng.standard_normal(shape).astype(np.float32) for name in "xz"}
        return made.SerializeToString(), feeds


class Volumes(Network):
    """The same of volumes (N, C, D, H, W), often of one plane or pixel, and of lines (N, C, W)."""

    def __init__(self, draw: Any):
        super().__init__(draw)
        n, c = self.shapes["x"][:2]
        sizes = ((3, 5, 7), (1, 1, 1), (1, 6, 2), (4, 1, 1), (9,), (1,))
        self.inputs(n, c, *draw(st.sampled_from(sizes)))

    def conv(self, x: str) -> str:
        n, c, *size = self.shapes[x]
        group = self.draw(st.sampled_from([g for g in (1, 1, 2, 4, c) if c % g == 0]))
        filters = group * self.draw(st.sampled_from((1, 2, 4, 8, 17)))
        kernel = [self.draw(st.sampled_from((1, 1, 3))) for _ in size]
        inputs = [x, self.constant(filters, c // group, *kernel)]
        inputs += [self.constant(filters)] if self.draw(st.booleans()) else []
        pads = [k // 2 for k in kernel] * 2
        return self.add("Conv", inputs, (n, filters, *size), group=group, pads=pads)

    def pool(self, x: str) -> str:
        op = self.draw(st.sampled_from(("MaxPool", "AveragePool")))
        dims = len(self.shapes[x]) - 2
        return self.add(op, [x], self.shapes[x], kernel_shape=[3] * dims, pads=[1] * 2 * dims)

    def scale(self, x: str) -> str:
        _, c, *size = self.shapes[x]
        constant = self.constant(c, *(1 for _ in size))
        return self.add(self.draw(st.sampled_from(("Add", "Mul"))), [x, constant], self.shapes[x])


@st.composite
def volumes(draw: Any) -> tuple[bytes, dict[str, np.ndarray]]:
    net = Volumes(draw)
    steps = (net.conv, net.conv, net.conv, net.block, net.pool, net.unary, net.scale, net.join)
    for _ in range(draw(st.integers(2, 9))):
        draw(st.sampled_from(steps))(net.any())
    return net.model()


@st.composite
def networks(draw: Any) -> tuple[bytes, dict[str, np.ndarray]]:
    net = Network(draw)
    steps = (
        net.conv,
        net.conv,
        net.block,
        net.line,
        net.pool,
        net.excite,
        net.attend,
        net.unary,
        net.scale,
        net.scale,
        net.feed_forward,
        net.join,
        net.join,
        net.cut,
        net.shuffle,
        net.group_norm,
        net.hourglass,
    )
    for _ in range(draw(st.integers(2, 9))):
        draw(st.sampled_from(steps))(net.any())
    if draw(st.booleans()):
        larger = draw(st.sampled_from((net.upsample, net.transposed)))(net.any())
        net.join(larger)
        net.conv(net.any())
    return net.model()


@settings(max_examples=150, deadline=None)
@given(networks())
def test_against_float64(case: tuple[bytes, dict[str, np.ndarray]]) -> None:
    check(*case)


@settings(max_examples=150, deadline=None)
@given(volumes())
def test_volumes_against_float64(case: tuple[bytes, dict[str, np.ndarray]]) -> None:
    check(*case)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(st.one_of(networks(), volumes()))
def test_many_against_float64(case: tuple[bytes, dict[str, np.ndarray]]) -> None:
    check(*case)


def check(data: bytes, feeds: dict[str, np.ndarray]) -> None:
    graph = importer.read(data)
    passes.run_all(graph)
    wanted = evaluate(graph, feeds, np.float64)
    results = [Session(data, threads=threads).run(feeds) for threads in (1, 3)]
    for y, other, exact in zip(*results, wanted):
        assert y.tobytes() == other.tobytes()
        scale = max(float(np.abs(exact).max(initial=0)), 1.0)
        np.testing.assert_allclose(y / scale, exact / scale, atol=2e-5)
