"""Pipelines of ai.onnx.ml in sessions, dictionaries in and out, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import q7x2_ep

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
ELEMENT = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
SCORES = helper.make_map_type_proto(TensorProto.STRING, ELEMENT)


def run_both(nodes: list, inputs: list, outputs: list, feed: dict) -> tuple[list, list]:
    graph = helper.make_graph(nodes, "pipeline", inputs, outputs)
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=9).SerializeToString()
    with q7x2_ep.InferenceSession(model) as session:
        return session.run(None, feed), onnxruntime.InferenceSession(model).run(None, feed)


def node(op: str, inputs: list[str], outputs: list[str], **attrs: object) -> object:
    return helper.make_node(op, inputs, outputs, domain="ai.onnx.ml", **attrs)


def test_scaled_classified_and_zipped():
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    weights = np.random.default_rng(1).standard_normal(12).tolist()
    names = ["a", "b", "c"]
    fit = {"coefficients": weights, "intercepts": [0.1, 0.2, 0.3], "post_transform": "SOFTMAX"}
    nodes = [
        node("Scaler", ["x"], ["scaled"], offset=[0.0, 1, 2, 3], scale=[1.0, 2, 3, 4]),
        node("LinearClassifier", ["scaled"], ["label", "p"], classlabels_strings=names, **fit),
        node("ZipMap", ["p"], ["scores"], classlabels_strings=names),
    ]
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["N"]),
        helper.make_value_info("scores", helper.make_sequence_type_proto(SCORES)),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    (label, scores), (their_label, their_scores) = run_both(nodes, inputs, outputs, {"x": x})
    assert label.tolist() == their_label.tolist()
    for ours, theirs in zip(scores, their_scores):
        assert list(ours) == list(theirs)
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5)


def test_a_dictionary_is_fed():
    nodes = [node("DictVectorizer", ["d"], ["y"], string_vocabulary=["a", "c", "b"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])]
    feed = {"d": {"a": 1.5, "b": 2.0}}
    (y,), (theirs,) = run_both(nodes, [helper.make_value_info("d", SCORES)], outputs, feed)
    np.testing.assert_array_equal(y, theirs)
    assert y.dtype == theirs.dtype
