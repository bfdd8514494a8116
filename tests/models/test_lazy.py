"""Constants that are made where they are packed, to the same results."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.ops.lazy import Joined, Scaled
from q7x2_ep.passes.cse import MAX_CONSTANT_BYTES

ROWS, INNER, HEADS = 5, 40, 2


def attention(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """(rows, heads * depth), by the definition."""
    q, k, v = (
        (x @ w.astype(np.float64)).reshape(ROWS, HEADS, -1).transpose(1, 0, 2) for w in weights
    )
    scores = q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(ROWS, -1)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("depth", [1, 8, 12, 16, 21, 32, 64])
def test_q_k_and_v_are_one_product(depth, turned, monkeypatch):
    rng = np.random.default_rng(depth)
    weights = [rng.standard_normal((INNER, HEADS * depth), np.float32) / 4 for _ in "qkv"]
    given = [w.T.copy() if turned else w for w in weights]
    nodes = [
        node
        for name in "qkv"
        for node in (
            helper.make_node("Transpose", [f"w{name}"], [f"t{name}"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", f"{'t' if turned else 'w'}{name}"], [name]),
        )
        if turned or node.op_type == "MatMul"
    ]
    nodes.append(helper.make_node("Attention", list("qkv"), ["y"], q_num_heads=2, kv_num_heads=2))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "S", size])
        for name, size in (("x", INNER), ("y", HEADS * depth))
    ]
    tensors = [numpy_helper.from_array(w, f"w{name}") for name, w in zip("qkv", given)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    made: list[Joined] = []
    monkeypatch.setattr(Joined, "__init__", _watched(Joined.__init__, made))
    session = q7x2_ep.InferenceSession(model.SerializeToString())
    x = rng.standard_normal((1, ROWS, INNER), np.float32)
    wanted = attention(x[0].astype(np.float64), weights)
    error = INNER * np.finfo(np.float32).eps
    np.testing.assert_allclose(session.run(None, {"x": x})[0][0], wanted, rtol=0, atol=error)
    (joined,) = made
    assert ("whole" in vars(joined)) == (joined.nbytes <= MAX_CONSTANT_BYTES)  # is compared


def _watched(init, made):
    def watched(self, *arguments):
        made.append(self)
        init(self, *arguments)

    return watched


def rounding(y: np.ndarray, *kernels: tuple[int, ...]) -> float:
    """Of sums over kernels (M, C, ..) one behind the other, whose errors add up as random walks."""
    products = sum(int(np.prod(kernel[1:])) for kernel in kernels)
    return products**0.5 * np.finfo(np.float32).eps / 2 * float(np.abs(y).max())


def test_scaled_kernels_are_multiplied_where_they_are_packed(tmp_path, monkeypatch):
    """Of a norm and a factor behind convolutions by Winograd, of pixels, of two groups, and of each
    channel, whose few weights alone are multiplied before.
    """
    rng = np.random.default_rng(0)
    nodes, tensors = [], []
    shapes = [(96, 32, 3, 3), (96, 96, 1, 1), (96, 48, 3, 3), (96, 1, 3, 3)]
    for i, (shape, groups) in enumerate(zip(shapes, (1, 1, 2, 96))):
        arrays = [rng.standard_normal(shape, np.float32) / 8]
        arrays += [rng.uniform(0.5, 2, shape[0]).astype(np.float32) for _ in range(4)]
        names = [f"{name}{i}" for name in ("w", "scale", "shift", "mean", "variance")]
        tensors += map(numpy_helper.from_array, arrays, names)
        x, pad = (f"y{i - 1}" if i else "x"), shape[-1] // 2
        nodes.append(
            helper.make_node("Conv", [x, names[0]], [f"c{i}"], group=groups, pads=[pad] * 4)
        )
        nodes.append(helper.make_node("BatchNormalization", [f"c{i}", *names[1:]], [f"n{i}"]))
        tensors.append(numpy_helper.from_array(arrays[1].reshape(-1, 1, 1) / 2, f"more{i}"))
        nodes.append(helper.make_node("Mul", [f"n{i}", f"more{i}"], [f"y{i}"]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 10, 12])
        for name, channels in (("x", 32), (f"y{len(shapes) - 1}", 96))
    ]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = model.SerializeToString()
    x = rng.standard_normal((1, 32, 10, 12), np.float32)
    expected = onnxruntime.InferenceSession(data).run(None, {"x": x})[0]
    looked: list[tuple] = []
    whole = Scaled.whole.fget
    monkeypatch.setattr(
        Scaled, "whole", property(lambda self: looked.append(self.shape) or whole(self))
    )
    session = q7x2_ep.InferenceSession(data)
    y = session.run(None, {"x": x})[0]
    error = rounding(expected, *shapes)
    np.testing.assert_allclose(y, expected, rtol=0, atol=error)
    assert set(looked) == {shapes[-1]}
    (tmp_path / "model.onnx").write_bytes(data)
    q7x2_ep.compile(tmp_path / "model.onnx", tmp_path / "model.q7")
    again = q7x2_ep.InferenceSession(tmp_path / "model.q7")
    assert again.run(None, {"x": x})[0].tobytes() == y.tobytes()
    options = q7x2_ep.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    q7x2_ep.InferenceSession(data, options)
    written = q7x2_ep.InferenceSession(options.optimized_model_filepath)
    np.testing.assert_allclose(written.run(None, {"x": x})[0], y, rtol=0, atol=error)


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1), (96, 1, 1)], ids=str)
@pytest.mark.parametrize("kernel", [(96, 32, 3, 3), (96, 96, 1, 1), (96, 48, 3, 3), (96, 1, 3, 3)])
def test_factors_of_any_shape_and_place(kernel, shape):
    """One for all, which repeats in memory, and one to each, at an odd byte of the file."""
    rng = np.random.default_rng(0)
    groups = 1 if kernel[1] in (32, 96) else 96 // kernel[1]
    arrays = rng.standard_normal(kernel, np.float32) / 8, rng.uniform(0.5, 2, shape)
    w, factor = (np.asarray(array, np.float32) for array in arrays)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=groups, pads=[kernel[2] // 2] * 4),
        helper.make_node("Mul", ["c", "factor"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 9, 10])
        for name, channels in (("x", kernel[1] * groups), ("y", 96))
    ]
    x = rng.standard_normal((1, kernel[1] * groups, 9, 10), np.float32)
    for name in ("factor", "factors", "facto"):  # whose lengths move what lies behind them
        nodes[1].input[1] = name
        tensors = [numpy_helper.from_array(factor, name), numpy_helper.from_array(w, "w")]
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        data = model.SerializeToString()
        expected = onnxruntime.InferenceSession(data).run(None, {"x": x})[0]
        y = q7x2_ep.InferenceSession(data).run(None, {"x": x})[0]
        np.testing.assert_allclose(y, expected, rtol=0, atol=rounding(expected, kernel))
