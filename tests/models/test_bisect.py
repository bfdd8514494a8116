"""bisect names a planted culprit: a fusion, a pass, or neither."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from q7x2_ep import fuse, passes
from q7x2_ep.__main__ import main
from q7x2_ep.backend.numpy import tensors
from q7x2_ep.compare import MISSING, OutputError, largest_difference
from q7x2_ep.ir.rewrite import Fusion, sweep
from q7x2_ep.models import small_models
from q7x2_ep.ops import find

NAMES = [f"tanh_{i}" for i in range(11)]


@pytest.fixture
def model() -> onnx.ModelProto:
    """x -> Tanh -> .. -> Tanh."""
    values = ["x", *(f"h{i}" for i in range(1, len(NAMES))), "y"]
    nodes = [
        helper.make_node("Tanh", [before], [after], name=name)
        for before, after, name in zip(values, values[1:], NAMES)
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy")
    graph = helper.make_graph(nodes, "tanhs", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def plant(monkeypatch, wrong: tuple[str, ...]) -> None:
    """A fusion that is harmless but at the nodes of these names."""

    def build(g, x, name):
        y = g.Tanh(x)
        return g.Mul(y, 1.001) if name in wrong else y

    fusion = Fusion(
        "Planted",
        (lambda g, x: g.Tanh(x),),
        lambda match: {"x": match["x"], "name": match.root.name},
        build,
    )
    walk = SimpleNamespace(apply=lambda graph, g: sweep(graph, (fusion,), g))
    monkeypatch.setattr(fuse, "FUSIONS", (walk,))


@pytest.mark.parametrize("culprit", range(len(NAMES)))
def test_the_first_wrong_application_is_named(model, monkeypatch, culprit):
    plant(monkeypatch, (NAMES[culprit],))
    found = q7x2_ep.bisect(model)
    assert (found.kind, found.name, found.nodes) == ("fusion", "Planted", (NAMES[culprit],))
    assert (found.position, found.applications) == (culprit + 1, len(NAMES))
    ((output, error, bound),) = found.outputs
    assert output == "y" and error > bound
    assert f"node {NAMES[culprit]}" in str(found)


def test_nothing_is_found_where_nothing_is_wrong(model, monkeypatch):
    plant(monkeypatch, ())
    found = q7x2_ep.bisect(model)
    assert not found and found.applications == len(NAMES)
    plant(monkeypatch, (NAMES[3],))
    assert not q7x2_ep.bisect(model, bound=0.1)


def test_numpy_stands_in_for_onnxruntime(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    plant(monkeypatch, (NAMES[5],))
    assert q7x2_ep.bisect(model).nodes == (NAMES[5],)


def test_a_pass_is_named(model, monkeypatch):
    class Wrong:
        """Takes the last Tanh for Sigmoid."""

        @staticmethod
        def run(graph):
            changed = graph.nodes[-1].op != "Sigmoid"
            graph.nodes[-1].op = "Sigmoid"
            return {"nodes": int(changed)}

    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, Wrong))
    monkeypatch.setattr(passes, "NAMES", (*passes.NAMES, "wrong"))
    found = q7x2_ep.bisect(model)
    assert (found.kind, found.name) == ("pass", "wrong")


def test_otherwise_it_is_the_engine(model, monkeypatch):
    monkeypatch.setattr(fuse, "FUSIONS", ())
    monkeypatch.setattr(find("Tanh"), "lower", find("Neg").lower)
    found = q7x2_ep.bisect(model)
    assert found.kind == "engine" and "kernel" in str(found)


def test_a_feed_that_does_not_fit_is_said_to_be_so():
    """gpt2 has 256 positions."""
    ids = np.zeros((1, 257), np.int64)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    with pytest.raises(q7x2_ep.FeedError, match="give a feed"):
        q7x2_ep.bisect(small_models()["gpt2"], feeds)


def test_command_line(model, monkeypatch, tmp_path, capsys):
    path, feed = tmp_path / "model.onnx", tmp_path / "feed.npz"
    onnx.save(model, path)
    np.savez(feed, x=np.full((2, 8), 0.5, np.float32))
    assert main(["bisect", str(path), "--feed", str(feed)]) == 0
    assert "nothing found" in capsys.readouterr().out
    plant(monkeypatch, (NAMES[7],))
    assert main(["bisect", str(path), "--feed", str(feed)]) == 1
    assert NAMES[7] in capsys.readouterr().out
    assert main(["bisect", str(path), "--feed", str(feed), "--bound", "0.1"]) == 0
    assert main(["bisect", str(path), "--feed", str(path)]) == 2


@pytest.mark.parametrize("name", small_models())
def test_shipped_models_are_right(name):
    found = q7x2_ep.bisect(small_models()[name])
    assert not found, found


@pytest.mark.parametrize("name", small_models())
def test_passes_that_others_need_are_no_culprits(name):
    """No float32 engine is within this bound: every pass is left out in turn."""
    found = q7x2_ep.bisect(small_models()[name], bound=1e-9)
    assert found.kind == "engine" and found.outputs


@pytest.mark.parametrize("bound", [np.nan, -1.0])
def test_a_bound_that_nothing_is_within_is_refused(bound):
    with pytest.raises(q7x2_ep.BindingError, match=r"expected a number of 0 or more, given"):
        q7x2_ep.bisect(small_models()["vit"], bound=bound)


LISTS = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[n, 4] x, string[m] t) =>
        (seq(float[n, 4]) both, optional(float[n, 4]) one, string[m] u) {
        twice = Add (x, x)
        both = SequenceConstruct (x, twice)
        one = Optional (twice)
        u = Identity (t) }"""


def test_sequences_optionals_and_texts_are_compared():
    """Each tensor of a sequence is an output of its own; bisect looks at them in the same way."""
    pytest.importorskip("onnxruntime", reason="it is the other engine")
    model = onnx.parser.parse_model(LISTS).SerializeToString()
    feeds = {"x": np.eye(3, 4, dtype=np.float32), "t": np.array(["a", "b"], object)}
    found = q7x2_ep.compare(model, feeds, runs=1)
    assert [output.name for output in found.outputs] == ["both[0]", "both[1]", "one", "u"]
    assert found.accurate and found.difference == 0.0
    assert not q7x2_ep.bisect(model, feeds)


def test_a_tensor_that_one_engine_lacks_is_a_difference():
    x = np.ones(3, np.float32)
    given = tensors(["a", "b"], [[x, None], {"k": x}])
    assert list(given) == ["a[0]", "b[k]"]
    lacks = OutputError.of("a[1]", MISSING, x, x)
    assert lacks.ours == np.inf and not lacks.accurate


def test_all_numbers_are_compared():
    turned = np.exp(1j * np.arange(1, 4))
    assert OutputError.of("y", turned, turned, turned).accurate
    assert not OutputError.of("y", turned.conj(), turned, turned).accurate
    assert largest_difference(turned, turned + 1j) == 1
    one = np.ones(2, ml_dtypes.bfloat16)
    assert largest_difference(one, (one.astype(np.float32) + 2.0**-7).astype(one.dtype)) == 2.0**-7
    texts = np.array(["a", "b"], object)
    assert largest_difference(texts, texts) == 0 and largest_difference(texts, texts[::-1]) > 0
