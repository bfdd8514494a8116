"""Graphs: links, the text form, the verifier."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep import dtypes
from q7x2_ep.errors import InternalError
from q7x2_ep.ir.core import Graph, Node, Type, Value, array_type
from q7x2_ep.ir.shape import symbol
from q7x2_ep.ir.text import parse, to_text
from q7x2_ep.ir.verify import verify

ATTENTION = """\
graph(%x: f32[b,s,768], %"a name": i64['n + 1',2*b], %any: f16)
  %w = f32[768,768] #a14678b9
  %0/MatMul = MatMul(%x, %w)
  %2 = Reshape(%0/MatMul, [b, s, 12, 64]) {allowzero=0, perm=[0, -1], s="a\\"b"}
  %onnx::Add_3 = Mul(%2, 0.125)
  %4 = Any(%onnx::Add_3, -inf, 1e-05, 3, true, [1, -2], f32[2](1.0, 2.5), _, i32[2](s, 3), s)
  %5, %6 = q7::Split(%4, [floordiv(s, 2), -2*s+max(s, 7)+1], i64[0]()) {empty=[], value=f32[1](0.0)}
  return scores=%onnx::Add_3, %"a name", %5
"""


def test_text_reads_back_as_itself():
    assert to_text(parse(ATTENTION)) == ATTENTION


def test_text_can_show_types_and_sources():
    graph = parse("graph(%x: f32[S,8])\n  %1: f32[S,8] = Erf(%x)  # a comment\n  return %1\n")
    assert "%1: f32[S,8] = Erf(%x)  # Erf.1\n" in to_text(graph, types=True, sources=True)


@pytest.mark.parametrize(
    "line, reason",
    [
        ("  %1 = Add(%x, %y)", "%y is not defined"),
        ("  %1 = Add(%x", "expected .,. at token 6"),
        ("  %1 = Add(", "missing at the end"),
        ("  %1 = Add(%x) }", "unexpected"),
        ("  %1: f33[2] = Add(%x)", "unknown dtype"),
    ],
)
def test_text_errors_quote_the_line(line, reason):
    with pytest.raises(ValueError, match=reason) as error:
        parse(f"graph(%x: f32[S])\n{line}\n  return %x\n")
    assert line.strip() in str(error.value)


def test_float_constants_read_back_exactly():
    array = np.array([0.1, 1 / 3, 1e-30, 16777217, np.inf], np.float32)
    graph = Graph(outputs=[Value("c", *array_type(array), const=array)])
    (value,) = parse(to_text(graph)).outputs
    np.testing.assert_array_equal(value.const, array)


def test_array_type_tracks_small_integers_only():
    assert array_type(np.array([1, 2])).elements == (1, 2)
    assert array_type(np.array(True)) == Type(dtypes.BOOL, (), (1,))
    assert array_type(np.array([[1]])).elements is None
    assert array_type(np.arange(65)).elements is None
    assert array_type(np.array([1.0])).elements is None


def test_replace_uses_moves_users_and_outputs():
    graph = parse("graph(%x: f32[S], %y: f32[S])\n  %1 = Add(%x, %x)\n  return %1, %x\n")
    x, y = graph.inputs
    graph.replace_uses(x, y)
    assert not x.users and len(y.users) == 2
    assert graph.outputs[1] is y and graph.output_names == ["1", "x"]


def test_clones_may_be_changed():
    graph = parse("graph(%x: f32[S])\n  %1 = Add(%x, 0.1)\n  return %1\n")
    graph.metadata["types"] = {}
    graph.nodes[0].inputs[1].rounded = dtypes.FLOAT16
    same = graph.clone()
    assert to_text(same) == to_text(graph)
    assert same.nodes[0].inputs[1].rounded == dtypes.FLOAT16
    same.metadata["declared"] = {}
    same.rename_sizes({"S": symbol("T")})
    assert list(graph.metadata) == ["types"] and graph.inputs[0].shape == (symbol("S"),)


def test_sort_restores_order():
    graph = parse(
        "graph(%x: f32[S])\n  %1 = Erf(%x)\n  %2 = Erf(%1)\n  %3 = Add(%1, %2)\n  return %3\n"
    )
    graph.nodes.reverse()
    graph.sort()
    assert [node.output.name for node in graph.nodes] == ["1", "2", "3"]


def typed(text: str) -> Graph:
    graph = parse(text)
    for node in graph.nodes:
        for value in node.outputs:
            value.set_type(Type(dtypes.FLOAT, (symbol("S"),)))
    return graph


TEXT = "graph(%x: f32[S])\n  %1 = Erf(%x)\n  %2 = Add(%1, 1.0)\n  return %2\n"


def break_order(graph):
    graph.nodes.reverse()


def break_producer(graph):
    graph.nodes[0].output.producer = graph.nodes[1]


def break_users(graph):
    graph.nodes[0].output.users.clear()


def break_type(graph):
    graph.nodes[0].output.shape = None


def add_stranger(graph):
    Node("Erf", [graph.nodes[0].output], [Value("stray")])


def lose_output(graph):
    graph.outputs = [Value("lost", dtypes.FLOAT, ())]


@pytest.mark.parametrize(
    "damage, reason",
    [
        (break_order, "before anything produces it"),
        (break_producer, "says that"),
        (break_users, "lists 0 users"),
        (add_stranger, "not in the graph"),
        (lose_output, "is not produced"),
    ],
)
def test_verify_names_the_pass_and_the_damage(damage, reason):
    graph = typed(TEXT)
    verify(graph, "nothing", lambda op: op)
    damage(graph)
    with pytest.raises(InternalError, match=f"after mypass: .*{reason}"):
        verify(graph, "mypass", lambda op: op)


def test_verify_wants_ops_of_the_catalogue():
    with pytest.raises(InternalError, match=r"\[Erf Erf\.1\] the op is not in the catalogue"):
        verify(typed(TEXT), "mypass", lambda op: None if op == "Erf" else op)
