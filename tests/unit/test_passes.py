"""Passes on whole models: shape arithmetic vanishes, values stay, a second run finds nothing."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep import passes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.errors import InternalError, ModelError, UnsupportedOp
from q7x2_ep.importer import read
from q7x2_ep.ir.text import parse, to_text
from q7x2_ep.passes import infer
from tests.models.files import CORE, label, select
from tests.models.files import read as read_file

# Operands that say what shape to make, by op: the first one, all after it too.
SHAPE_OPERANDS = {
    "Reshape": 1,
    "Expand": 1,
    "Slice": 1,
    "Tile": 1,
    "ConstantOfShape": 0,
    "Range": 0,
}


def feeds_of(graph, sizes):
    """Random feeds; every symbol that starts a shape is sizes[0], every other sizes[1]."""
    rng = np.random.default_rng(0)
    feeds = {}
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else sizes[i > 0] for i, d in enumerate(value.shape)]
        if "mask" in value.name:
            feeds[value.name] = (np.arange(shape[-1]) < shape[-1] - 1) | np.zeros(shape, bool)
            feeds[value.name] = feeds[value.name].astype(np.int64)
        elif value.dtype == 7:
            feeds[value.name] = rng.integers(0, 2, shape)  # fits token types too
        else:
            feeds[value.name] = rng.standard_normal(shape, np.float32)
    return feeds


@pytest.fixture(params=select(*CORE), ids=label)
def data(request):
    return read_file(request.param)


def test_shape_arithmetic_vanishes(data):
    graph = read(data)
    passes.run_all(graph)
    for node in graph.nodes:
        assert node.op not in ("Shape", "Size")
        for value in node.inputs[SHAPE_OPERANDS.get(node.op, len(node.inputs)) :]:
            assert value is None or value.producer is None, f"{node} computes {value}"


def test_values_stay(data):
    before, after = read(data), read(data)
    infer.run(before)
    passes.run_all(after)
    for sizes in ((1, 1), (2, 7)):
        feeds = feeds_of(before, sizes)
        for x, y in zip(evaluate(before, feeds), evaluate(after, feeds)):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_a_second_run_finds_nothing(data):
    graph = read(data)
    passes.run_all(graph)
    text = to_text(graph)
    assert not any(any(counts.values()) for counts in passes.run_all(graph).values())
    assert to_text(graph) == text


def test_axes_that_only_a_run_tells_are_left_alone():
    graph = parse("graph(%x: f32[a,b])\n  %1 = Shape(%x)\n  %2 = ReduceSum(%x, %1)\n  return %2\n")
    passes.run_all(graph)
    assert [node.op for node in graph.nodes] == ["ReduceSum"]


def test_sizes_that_a_pass_makes_known_reach_the_elements_made_of_them():
    graph = parse(
        "graph(%x: f32[a,2,h])\n"
        "  %1 = Cast(f16[3](1, 1, 2)) {to=1}\n"
        '  %2 = Resize(%x, _, %1) {mode="nearest"}\n'
        "  %3 = Relu(%2)\n"
        "  %4 = Reshape(%3, [-1])\n"
        "  %5 = Erf(%4)\n"
        "  %6 = Shape(%2)\n"
        "  %7 = Reshape(%5, %6)\n"
        "  return %7\n"
    )
    passes.run_all(graph)
    assert [str(dim) for dim in graph.outputs[0].shape] == ["a", "2", "2*h"]
    assert graph.outputs[0].producer.inputs[1].elements == graph.outputs[0].shape


def test_merged_nodes_keep_their_sources():
    graph = parse(
        "graph(%x: f32[a,b,c])\n"
        "  %1 = Transpose(%x) {perm=[1, 2, 0]}\n"
        "  %2 = Transpose(%1) {perm=[1, 2, 0]}\n"
        "  %3 = Erf(%2)\n"
        "  %4 = Erf(%2)\n"
        "  return %3, %4\n"
    )
    passes.run_all(graph)
    assert [node.sources for node in graph.nodes] == [
        ("Transpose.1", "Transpose.2"),
        ("Erf.3", "Erf.4"),
    ]


def test_inference_is_incremental():
    graph = parse("graph(%x: f32[S])\n  %1 = Erf(%x)\n  %2 = Erf(%1)\n  return %2\n")
    assert infer.run(graph) == {"nodes": 2}
    assert infer.run(graph) == {"nodes": 0}
    graph.inputs[0].shape = (4,)
    assert infer.run(graph) == {"nodes": 2}
    assert graph.outputs[0].shape == (4,)


def test_types_that_do_not_fit_are_an_error_with_node_and_shapes():
    graph = parse("graph(%x: f32[2,3], %y: f32[2,4])\n  %1 = Add(%x, %y)\n  return %1\n")
    with pytest.raises(ModelError, match=r"\[Add Add\.1\].*") as error:
        passes.run_all(graph)
    assert "3" in str(error.value) and "4" in str(error.value)


def test_an_op_outside_of_the_catalogue_is_an_error():
    with pytest.raises(UnsupportedOp, match=r"\[NoSuchOp NoSuchOp\.1\]"):
        passes.run_all(parse("graph(%x: f32[2])\n  %1 = NoSuchOp(%x)\n  return %1\n"))


def test_a_pass_that_breaks_the_graph_is_named(monkeypatch):
    def run(graph):
        graph.nodes.reverse()
        return {"nodes": 1}

    monkeypatch.setattr(passes.cse, "run", run)
    text = "graph(%x: f32[S])\n  %1 = Erf(%x)\n  %2 = Erf(%1)\n  return %2\n"
    for checked, name in (("1", "cse"), ("0", "the passes")):
        monkeypatch.setenv("Q7X2_VERIFY", checked)
        with pytest.raises(InternalError, match=f"after {name}"):
            passes.run_all(parse(text))


def test_float64_reaches_everything():
    graph = parse(
        "graph(%x: f32[S])\n"
        "  %1 = Mul(%x, 0.1)\n"
        "  %2 = Cast(%1) {to=1}\n"
        "  %3 = ConstantOfShape([S]) {value=f32[1](0.5)}\n"
        "  %4 = Add(%2, %3)\n"
        "  return %4\n"
    )
    infer.run(graph)
    x = np.array([1 / 3, 0.7])
    (y,) = evaluate(graph, {"x": x}, np.float64)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, x * np.float64(np.float32(0.1)) + 0.5, rtol=1e-15)


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_constants_of_integers_are_reduced_in_real_numbers(op):
    """As onnxruntime, where onnx's own evaluation of it lets squares wrap."""
    graph = parse(f"graph(%x: i32[2])\n  %y = {op}(%x) {{keepdims=0}}\n  return %y\n")
    exact = {"ReduceL2": 100000, "ReduceLogSum": int(np.log(140000)), "ReduceLogSumExp": 80000}
    infer.run(graph)
    assert evaluate(graph, {"x": np.array([60000, 80000], np.int32)}) == [exact[op]]
