"""A decoder with and without past as the branches of an If, wherever its weights are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import q7x2_ep
from tests.models import files

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

NAMES = ("gpt2.eager.legacy17", "t5-decoder.sdpa.dynamo20", "whisper-decoder.sdpa.dynamo18")
WITH_PAST = "with_past"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_both_branches_of_a_merged_decoder(name, shared, tmp_path):
    model = merged(name, shared)
    data = model.SerializeToString()
    theirs = ort.InferenceSession(data)
    sessions = [q7x2_ep.InferenceSession(data)]
    options = {"save_as_external_data": True, "location": "weights", "size_threshold": 1024}
    onnx.save_model(model, tmp_path / "model.onnx", **options)
    sessions.append(q7x2_ep.InferenceSession(tmp_path / "model.onnx"))
    for past, length in ((4, 1), (5, 1), (6, 3)):
        for with_past in (True, False):
            feeds = feeds_of(theirs, with_past, past if with_past else 0, length)
            (wanted,) = theirs.run(None, feeds)
            for session in sessions:
                (given,) = session.run(None, feeds)
                assert given.shape == wanted.shape
                np.testing.assert_allclose(given, wanted, 1e-4, 1e-4 * np.abs(wanted).max())


def merged(name: str, shared: bool) -> Any:
    """The logits of both. shared: whether a weight of both is an initializer of the whole."""
    paths = [files.FOLDER / f"{name}{kind}{files.SUFFIX}" for kind in (".cache", "")]
    models = [onnx.load_model_from_string(files.read(path)) for path in paths]
    first, second = ({w.name: w for w in model.graph.initializer} for model in models)
    both = [w for w in first.values() if w.name in second and w.dims == second[w.name].dims]
    outer = [w for w in both if shared and np.prod(w.dims) >= files.FEWEST_WEIGHTS]
    output = onnx.ValueInfoProto()
    output.CopyFrom(models[0].graph.output[0])
    bodies = [
        branch(model.graph, {w.name for w in outer}, f"{i}/") for i, model in enumerate(models)
    ]
    choice = helper.make_node("If", [WITH_PAST], [output.name])
    for key, body in zip(("then_branch", "else_branch"), bodies):
        choice.attribute.append(helper.make_attribute(key, body))
    inputs = {item.name: item for model in models[::-1] for item in model.graph.input}
    chosen = helper.make_tensor_value_info(WITH_PAST, TensorProto.BOOL, [1])
    graph = helper.make_graph([choice], name, [*inputs.values(), chosen], [output], outer)
    return helper.make_model(graph, opset_imports=models[0].opset_import, ir_version=9)


def branch(graph: Any, outside: set[str], prefix: str) -> Any:
    """A graph as a body, its names with a prefix but for inputs and weights that are outside."""
    weights = [w for w in graph.initializer if w.name not in outside]
    own = {w.name for w in weights}.union(*(node.output for node in graph.node)) - {""}
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [prefix + name if name in own else name for name in names]
    for weight in weights:
        weight.name = prefix + weight.name
    logits = helper.make_tensor_value_info(prefix + graph.output[0].name, TensorProto.FLOAT, None)
    return helper.make_graph(graph.node, prefix, [], [logits], weights)


def feeds_of(session: Any, with_past: bool, past: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(past)
    sizes = {"batch": 2, "sequence": length, "past_sequence": past, "encoder_sequence": 7}
    feeds = {WITH_PAST: np.array([with_past])}
    for item in session.get_inputs()[:-1]:
        shape = [
            sizes.get(dim, past + length) if isinstance(dim, str) else dim for dim in item.shape
        ]
        if item.type == "tensor(float)":
            feeds[item.name] = rng.standard_normal(shape, np.float32)
        else:
            is_mask = "mask" in item.name
            feeds[item.name] = np.ones(shape, np.int64) if is_mask else rng.integers(0, 50, shape)
    return feeds


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_has_the_steps_of_its_model(name):
    """It knows which sizes of what it captures are the same."""
    session = q7x2_ep.InferenceSession(merged(name, False).SerializeToString())
    theirs = ort.InferenceSession(merged(name, False).SerializeToString())
    session.run(None, feeds_of(theirs, True, 4, 1))
    alone = q7x2_ep.InferenceSession(files.read(files.FOLDER / f"{name}.cache{files.SUFFIX}"))
    (choice,) = (r for r in session._session.program.runners if r.node.op == "If")
    (branch,) = choice.programs()
    counts = [Counter(step.op for step in p.steps) for p in (branch, alone._session.program)]
    for each in counts:
        each.pop("copy")  # which of the caches that the model itself would return differs
    assert counts[0] == counts[1]
