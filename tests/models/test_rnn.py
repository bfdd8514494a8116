"""LSTM, GRU and RNN in models: any shape and attributes, as exporters write them, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep import importer
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.passes import infer
from tests.fusion.battery import assert_correct, build

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
NAMES = (
    *("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh"),
    *("HardSigmoid", "Elu", "Softsign", "softplus"),
)
RANDOM = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) / 2).astype(np.float32)


@st.composite
def nodes(draw: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and its feeds. All dims are symbols; weights are constants or fed."""
    op = draw(st.sampled_from(sorted(GATES)))
    S, B, size, H = (draw(st.integers(low, 6)) for low in (0, 0, 1, 1))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    D, gates, batchwise = 1 + (direction == "bidirectional"), GATES[op], draw(st.booleans())
    count = D * FUNCTIONS[op]
    state = (B, D, H) if batchwise else (D, B, H)
    arrays = {
        "x": normal(*((B, S, size) if batchwise else (S, B, size))),
        "w": normal(D, gates * H, size),
        "r": normal(D, gates * H, H),
        "b": normal(D, 2 * gates * H),
        "lengths": RANDOM.integers(0, S + 1, B).astype(np.int32),
        "h0": normal(*state),
        "c0": normal(*state),
        "p": normal(D, 3 * H),
    }
    inputs = list(arrays)[: 8 if op == "LSTM" else 6]
    used = [name if i < 3 or draw(st.booleans()) else "" for i, name in enumerate(inputs)]
    outputs = [name if draw(st.booleans()) else "" for name in ("y", "y_h", "y_c")]
    outputs = outputs[: 3 if op == "LSTM" else 2]
    outputs[-1] = outputs[-1] if any(outputs) else "last"
    attrs: dict[str, Any] = {"direction": direction, "layout": int(batchwise)}
    if draw(st.booleans()):
        attrs["activations"] = draw(
            st.lists(st.sampled_from(NAMES), min_size=count, max_size=count)
        )
        attrs["activation_alpha"] = [0.3, 0.2, 0.7][: draw(st.integers(0, 3))]
        attrs["activation_beta"] = [0.6, 0.4][: draw(st.integers(0, 2))]
        attrs = {name: value for name, value in attrs.items() if value}
    if draw(st.booleans()):
        attrs["clip"] = 0.75
    if op != "RNN" and draw(st.booleans()):
        attrs["linear_before_reset" if op == "GRU" else "input_forget"] = 1
    weights = ("w", "r", "b", "p") if draw(st.booleans()) else ()
    graph = helper.make_graph(
        [helper.make_node(op, used, outputs, hidden_size=H, **attrs)],
        "node",
        [
            helper.make_tensor_value_info(
                name,
                TensorProto.INT32 if name == "lengths" else TensorProto.FLOAT,
                [f"{name}{axis}" for axis in range(arrays[name].ndim)],
            )
            for name in used
            if name and name not in weights
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name],
        [numpy_helper.from_array(arrays[name], name) for name in weights if name in used],
    )
    opset = [helper.make_opsetid("", 22)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return model, {name: arrays[name] for name in used if name and name not in weights}


@settings(max_examples=150, deadline=None)
@given(nodes())
def test_any_node(case: tuple[onnx.ModelProto, dict[str, np.ndarray]]) -> None:
    model, feeds = case
    data = model.SerializeToString()
    graph = importer.read(data)
    infer.run(graph)
    with q7x2_ep.InferenceSession(data) as session:
        for actual, wanted in zip(session.run(None, feeds), evaluate(graph, feeds, np.float64)):
            assert actual.shape == wanted.shape and actual.dtype == np.float32
            np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5)


def stack(op: str, bidirectional: bool) -> Any:
    """Two layers over (batch, sequence, 8), as exporters write `batch_first`."""
    D, gates, H = 1 + bidirectional, GATES[op], 24
    attrs: dict[str, Any] = {"direction": "bidirectional" if bidirectional else "forward"}
    attrs.update({"hidden_size": H, **({"linear_before_reset": 1} if op == "GRU" else {})})

    def layer(g: Any, x: Any, width: int) -> Any:
        weights = normal(D, gates * H, width), normal(D, gates * H, H), normal(D, 2 * gates * H)
        y, *_ = g.call(op, x, *weights, outputs=2, **attrs)
        if bidirectional:
            return g.Reshape(g.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])
        return g.Squeeze(y, [1])

    def spelling(g: Any, x: Any) -> Any:
        first = layer(g, g.Transpose(x, perm=[1, 0, 2]), 8)
        return g.Relu(g.Transpose(layer(g, first, D * H), perm=[1, 0, 2]))

    return spelling


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_stacks(op: str, bidirectional: bool) -> None:
    """Two steps a layer and one for Relu: transposes and what joins directions cost nothing."""
    model, _ = build(stack(op, bidirectional), {"x": ("B", "S", 8)})
    assert assert_correct(model) == 5


def model_of(op: str = "LSTM", **changes: Any) -> bytes:
    shapes = {"x": ("s", "b", 3), "w": (1, 4 * 5, 3), "r": (1, 4 * 5, 5), "b": (1, 8 * 5)}
    shapes.update({"lengths": ("b",), "h0": (1, "b", 5)})
    shapes.update({name: changes.pop(name) for name in list(changes) if name in shapes})
    kinds = {"lengths": TensorProto.INT32, changes.pop("double", ""): TensorProto.DOUBLE}
    fed = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)
        for name, shape in shapes.items()
    ]
    node = helper.make_node(op, list(shapes), ["y"], **{"hidden_size": 5, **changes})
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "node", fed, [y])
    opset = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"direction": "sideways"}, "no direction"),
        ({"activations": ["Tanh"]}, "needs 3 activations"),
        ({"activations": ["Tanh", "Tanh", "Gelu"]}, "no activation 'Gelu'"),
        ({"clip": -1.0}, "above 0"),
        ({"double": "w"}, "bound to different types"),
        ({"x": ("s", 3)}, "rank 3"),
        ({"h0": ("b", 5)}, "wanted"),
        ({"w": (1, 15, 3)}, "15"),
        ({"direction": "bidirectional"}, "1"),
    ],
)
def test_refused_models(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        q7x2_ep.InferenceSession(model_of(**changes))


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_one_direction_of_two_activations(direction: str) -> None:
    """onnxruntime writes the default, which names two, into what it saves."""
    small = {"w": (1, 5, 3), "r": (1, 5, 5), "b": (1, 10), "direction": direction}
    feeds = {"x": normal(4, 2, 3), "w": normal(1, 5, 3), "r": normal(1, 5, 5), "b": normal(1, 10)}
    feeds.update({"lengths": np.array([4, 1], np.int32), "h0": normal(1, 2, 5)})
    wanted, given = (
        q7x2_ep.InferenceSession(model_of("RNN", activations=names, **small)).run(None, feeds)[0]
        for names in (["Relu"], ["Relu", "Tanh"])
    )
    np.testing.assert_array_equal(given, wanted)
    with pytest.raises(ModelError, match="needs 1 activations, not 3"):
        q7x2_ep.InferenceSession(model_of("RNN", activations=["Relu"] * 3, **small))


def test_refused_feeds() -> None:
    feeds = {"x": normal(4, 2, 3), "w": normal(1, 20, 3), "r": normal(1, 20, 5)}
    feeds.update({"b": normal(1, 40), "h0": normal(1, 2, 5)})
    with q7x2_ep.InferenceSession(model_of()) as session:
        for bad in (-1, 5):
            with pytest.raises(DataError, match="sequence length out of range"):
                session.run(None, {**feeds, "lengths": np.array([4, bad], np.int32)})
        lengths = np.array([4, 1], np.int32)
        assert np.isfinite(session.run(None, {**feeds, "lengths": lengths})[0]).all()
