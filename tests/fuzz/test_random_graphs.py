"""Random graphs, fused and unfused, against onnxruntime: what views and shared memory must survive.

A graph grows from two inputs by random ops; each op takes any values made so far, so that values
are used many times, also as outputs. Batch and length are symbolic and vary within one session.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

import q7x2_ep

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="the reference of this test")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

WIDTH = 8  # of the last axis of every value: shapes are (batch, length, WIDTH)
SIZES = ((1, 1), (2, 3), (3, 5), (1, 17), (4, 2))
LEVELS = (
    q7x2_ep.GraphOptimizationLevel.ORT_ENABLE_ALL,
    q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL,
)


class Growth:
    """A model in the making; every value has shape (batch, length, WIDTH)."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.nodes: list = []
        self.initializers: list = []
        self.values = ["x", "y"]
        self.count = 0

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attrs: object) -> list[str]:
        names = [f"v{self.count + i}" for i in range(outputs)]
        self.count += outputs
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int) -> str:
        generator = np.random.default_rng(self.random.randrange(1 << 30))
        return self.constant((generator.standard_normal(shape) / 2).astype(np.float32))

    def any(self) -> str:
        return self.random.choice(self.values)

    def grow(self) -> None:
        self.values.append(self.random.choice(STEPS)(self))

    def model(self) -> bytes:
        outputs = [*self.random.sample(self.values, 3), self.values[-1]]
        infos = []
        for i, name in enumerate(outputs):  # an output may be an input, or the same value twice
            self.nodes.append(helper.make_node("Identity", [name], [f"out{i}"]))
            infos.append(helper.make_tensor_value_info(f"out{i}", TensorProto.FLOAT, None))
        shape = ["batch", "length", WIDTH]
        feeds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y")]
        graph = helper.make_graph(self.nodes, "random", feeds, infos, self.initializers)
        opset = [helper.make_opsetid("", 20)]
        return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def unary(g: Growth) -> str:
    op = g.random.choice(["Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Erf", "Identity", "Gelu"])
    return g.emit(op, g.any())[0]


def binary(g: Growth) -> str:
    op = g.random.choice(["Add", "Sub", "Mul", "Max", "Min"])
    other = g.random.choice([g.any(), g.any(), g.weight(WIDTH), g.weight(1), g.weight(1, 1, 1)])
    pair = [g.any(), other]
    g.random.shuffle(pair)
    return g.emit(op, *pair)[0]


def where(g: Growth) -> str:
    compared = [g.any(), g.weight(WIDTH)]  # two values may be equal but for rounding
    g.random.shuffle(compared)
    (condition,) = g.emit(g.random.choice(["Less", "GreaterOrEqual"]), *compared)
    return g.emit("Where", condition, g.any(), g.any())[0]


def linear(g: Growth) -> str:
    hidden = g.random.choice([WIDTH, 5, 24])
    (up,) = g.emit("MatMul", g.any(), g.weight(WIDTH, hidden))
    (up,) = g.emit("Add", up, g.weight(hidden))
    (up,) = g.emit(g.random.choice(["Relu", "Gelu", "Identity"]), up)
    return g.emit("MatMul", up, g.weight(hidden, WIDTH))[0]


def norm(g: Growth) -> str:
    return g.emit("LayerNormalization", g.any(), g.weight(WIDTH), g.weight(WIDTH), axis=-1)[0]


def softmax(g: Growth) -> str:
    return g.emit("Softmax", g.any(), axis=g.random.choice([1, 2]))[0]


def transposed(g: Growth) -> str:
    perm = [0, 2, 1]
    (value,) = g.emit("Transpose", g.any(), perm=perm)
    (value,) = g.emit(g.random.choice(["Relu", "Neg", "Identity", "Exp"]), value)
    if g.random.random() < 0.5:
        (value,) = g.emit("Tanh", value)
    return g.emit("Transpose", value, perm=perm)[0]


def split_and_join(g: Growth) -> str:
    parts = g.emit("Split", g.any(), outputs=2, axis=2, num_outputs=2)
    if g.random.random() < 0.5:
        parts[0] = g.emit("Neg", parts[0])[0]
    g.random.shuffle(parts)
    if g.random.random() < 0.3:
        parts[1] = parts[0]
    return g.emit("Concat", *parts, axis=2)[0]


def join_and_cut(g: Growth) -> str:
    axis = g.random.choice([0, 1])
    (joined,) = g.emit("Concat", g.any(), g.any(), axis=axis)
    (length,) = g.emit("Shape", "x", start=axis, end=axis + 1)
    (joined,) = g.emit(g.random.choice(["Relu", "Identity"]), joined)
    return g.emit("Slice", joined, g.ints(0), length, g.ints(axis))[0]


def reversed_(g: Growth) -> str:
    ends = (g.ints(-1), g.ints(-(1 << 31)), g.ints(g.random.choice([0, 1, 2])), g.ints(-1))
    return g.emit("Slice", g.any(), *ends)[0]


def broadcast_row(g: Growth) -> str:
    (row,) = g.emit("Slice", g.any(), g.ints(0), g.ints(1), g.ints(1))
    return g.emit("Add", g.any(), row)[0]


def reduced(g: Growth) -> str:
    op = g.random.choice(["ReduceMean", "ReduceMax", "ReduceSum"])
    axes = g.ints(g.random.choice([1, 2]))
    (mean,) = g.emit(op, g.any(), axes, keepdims=1)
    return g.emit("Sub", g.any(), mean)[0]


def reshaped(g: Growth) -> str:
    (shape,) = g.emit("Shape", g.any())
    (flat,) = g.emit("Reshape", g.any(), g.ints(-1, WIDTH // 2))
    (flat,) = g.emit(g.random.choice(["Neg", "Identity"]), flat)
    return g.emit("Reshape", flat, shape)[0]


def expanded(g: Growth) -> str:
    (shape,) = g.emit("Shape", g.any())
    (wide,) = g.emit("Expand", g.weight(1, 1, WIDTH), shape)
    return g.emit("Mul", wide, g.any())[0]


def attention(g: Growth) -> str:
    (scores,) = g.emit("MatMul", g.any(), g.emit("Transpose", g.any(), perm=[0, 2, 1])[0])
    (scores,) = g.emit("Mul", scores, g.weight(1))
    (p,) = g.emit("Softmax", scores, axis=-1)
    return g.emit("MatMul", p, g.any())[0]


STEPS: tuple[Callable[[Growth], str], ...] = (
    unary, binary, binary, where, linear, norm, softmax, transposed, split_and_join, join_and_cut,
    reversed_, broadcast_row, reduced, reshaped, expanded, attention,
)  # fmt: skip


def check(seed: int) -> None:
    growth = Growth(seed)
    for _ in range(growth.random.randrange(3, 14)):
        growth.grow()
    model = growth.model()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(model, options)
    generator = np.random.default_rng(seed)
    for level in LEVELS:
        ours = q7x2_ep.InferenceSession(
            model, q7x2_ep.SessionOptions(intra_op_num_threads=2, graph_optimization_level=level)
        )
        for batch, length in SIZES:
            shape = (batch, length, WIDTH)
            feeds = {n: generator.standard_normal(shape).astype(np.float32) for n in ("x", "y")}
            expected = theirs.run(None, feeds)
            for name, a, b in zip(
                (o.name for o in ours.get_outputs()), ours.run(None, feeds), expected
            ):
                scale = max(1.0, float(np.abs(b).max(initial=0)))
                # products and sums of a dozen ops: errors of some hundred ulp of the largest value
                np.testing.assert_allclose(
                    a,
                    b,
                    rtol=0,
                    atol=2e-5 * scale,
                    err_msg=f"seed {seed} {level.name} {name} {shape}",
                )


@pytest.mark.parametrize("seed", range(40))
def test_random_graph(seed):
    check(seed)


@pytest.mark.slow
def test_many_random_graphs():
    for seed in range(1000, 3000):
        check(seed)
