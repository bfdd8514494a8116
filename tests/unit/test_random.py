"""Random numbers: their distributions, and that no two runs share them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.api import environment
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ops import entries, find


def draw(op: str, *inputs: np.ndarray, **attrs: Any) -> np.ndarray:
    values = [
        Value(f"x{n}", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in enumerate(inputs)
    ]
    node = Node(op, values, [Value("y")], {**find(op).attributes, **attrs}, "node")
    y = find(op).reference(node, *inputs)
    (type,) = find(op).infer(node)
    assert (helper.np_dtype_to_tensor_dtype(y.dtype), y.shape) == (type.dtype, type.shape)
    return y


def test_distributions() -> None:
    x = np.zeros((200, 300))
    y = draw("RandomNormal", shape=(200, 300), mean=3.0, scale=2.0)
    assert y.dtype == np.float32 and abs(y.mean() - 3) < 0.05 and abs(y.std() - 2) < 0.05
    y = draw("RandomNormalLike", x, mean=-1.0)
    assert y.dtype == np.float64 and abs(y.mean() + 1) < 0.05 and abs(y.std() - 1) < 0.05
    for y in (
        draw("RandomUniform", shape=(200, 300), low=1.0, high=3.0, dtype=TensorProto.DOUBLE),
        draw("RandomUniformLike", x, low=1.0, high=3.0),
    ):
        assert 1 <= y.min() < 1.01 and 2.99 < y.max() <= 3 and abs(y.mean() - 2) < 0.02
    y = draw("Bernoulli", x + 0.3, dtype=TensorProto.BOOL)
    assert y.dtype == bool and abs(y.mean() - 0.3) < 0.02
    logits = np.log(np.array([[0.2, 0.0001, 0.8], [5.0, 5.0, 0.0]], np.float32) + 1e-30)
    y = draw("Multinomial", logits, sample_size=20_000, dtype=TensorProto.INT64)
    counts = [np.bincount(row, minlength=3) / 20_000 for row in y]
    np.testing.assert_allclose(counts, [[0.2, 0, 0.8], [0.5, 0.5, 0]], atol=0.02)


def test_all_are_known() -> None:
    find("Add")
    mine = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"}
    mine |= {"Bernoulli", "Multinomial"}
    assert mine <= {name for name, entry in entries().items() if getattr(entry, "is_random", False)}


@pytest.mark.parametrize("seed", [None, 7.0])
def test_runs_differ_and_seeds_repeat(seed: Any, session_class: Any) -> None:
    """Two nodes with the same attributes are not one, and neither is a constant."""
    how = {} if seed is None else {"seed": seed}
    nodes = [helper.make_node("RandomNormal", [], [name], shape=[4], **how) for name in "ab"]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "ab"]
    graph = helper.make_graph(nodes, "g", [], outputs)
    opset = [helper.make_opsetid("", 22)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    sessions = [session_class(model, threads=1) for _ in range(2)]
    first, second = ([session.run({}) for _ in range(2)] for session in sessions)
    assert not np.array_equal(first[0][0], first[1][0])
    for one, other in zip(first, second):
        assert np.array_equal(one[0], other[0]) == (seed is not None)
    assert np.array_equal(first[0][0], first[0][1]) == (seed is not None)


def test_dropout_in_training(session_class: Any) -> None:
    """Of two nodes of one operand each drops its own, and of a constant another part every run."""
    operands = {"x": np.ones(1000, np.float32), "ratio": np.float32(0.5), "training": np.True_}
    names = list(operands)
    nodes = [helper.make_node("Dropout", names, [name, f"{name}_mask"]) for name in "ab"]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in "ab"]
    outputs += [helper.make_tensor_value_info(f"{n}_mask", TensorProto.BOOL, [1000]) for n in "ab"]
    constants = [numpy_helper.from_array(np.asarray(x), name) for name, x in operands.items()]
    graph = helper.make_graph(nodes, "g", [], outputs, constants)
    opset = [helper.make_opsetid("", 22)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    session = session_class(model, threads=1)
    runs = [session.run({}) for _ in range(2)]
    for a, b, *masks in runs:
        assert not np.array_equal(a, b)
        assert np.array_equal(a, 2 * masks[0]) and np.array_equal(b, 2 * masks[1])
        assert all(400 < mask.sum() < 600 for mask in masks)
    assert not np.array_equal(runs[0][0], runs[1][0])


def test_seeds_of_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model, or of all: the runs of a session are those of another, and differ."""
    constants = [
        helper.make_node("Constant", [], ["r"], value_float=0.5),
        helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(np.array(True))),
    ]
    x = np.ones(200, np.float32)
    for attrs in ({"seed": 3}, {}):
        nodes = [*constants, helper.make_node("Dropout", ["x", "r", "t"], ["y"], **attrs)]
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [200]) for name in "xy"]
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
        opsets = [helper.make_opsetid("", 22)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        runs = []
        for _ in range(2):
            monkeypatch.setattr(environment, "_seed", 7)
            session = q7x2_ep.InferenceSession(model)
            runs.append([session.run(None, {"x": x})[0] for _ in range(2)])
        (first, second), again = runs
        assert set(first) == {0, 2} and (first != second).any()
        np.testing.assert_array_equal(again, (first, second))
