"""The matcher on graphs written as text: operand orders, constants, alternatives, guards and
reasons.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest

from q7x2_ep.ir.pattern import Match, Matcher, count_ops, is_close, root_ops, trace
from q7x2_ep.ir.text import parse


def gelu(g: Any, x: Any) -> Any:
    return g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Div(x, sqrt(2))), 1.0))


def match(formula: Any, text: str, check: Any = lambda match: {}) -> tuple[Any, Matcher]:
    """The match at the last node of the graph, and the matcher that tells why there is none."""
    graph = parse(text)
    matcher = Matcher(graph, trace(formula), check)
    found = matcher.match(graph.nodes[-1])
    return found and found[0], matcher


GELU = """graph(%x: f32[S,8])
  %a = Div(%x, 1.4142135)
  %b = Erf(%a)
  %c = Add(%b, 1.0)
  %d = Mul(%x, 0.5)
  %e = Mul(%d, %c)
  return %e
"""


def test_finds_a_formula_and_binds_its_wildcard() -> None:
    found, _ = match(gelu, GELU)
    assert found["x"].name == "x"
    assert {node.op for node in found.nodes} == {"Div", "Erf", "Add", "Mul"}
    assert count_ops(trace(gelu)) == len(found.nodes) == 5


@pytest.mark.parametrize(
    "old, new",
    [
        ("Mul(%d, %c)", "Mul(%c, %d)"),
        ("Mul(%x, 0.5)", "Mul(0.5, %x)"),
        ("Add(%b, 1.0)", "Add(1.0, %b)"),
        ("Div(%x, 1.4142135)", "Mul(0.70710677, %x)"),
        ("Mul(%x, 0.5)", "Div(%x, 2.0)"),
    ],
)
def test_reads_the_same_in_another_order(old: str, new: str) -> None:
    assert old in GELU
    assert match(gelu, GELU.replace(old, new))[0] is not None


@pytest.mark.parametrize(
    "old, new, reason",
    [
        ("1.4142135", "2.0", "constant at Div.1 is 2, wanted 1.41421"),
        ("Erf(%a)", "Tanh(%a)", "%b is made by Tanh, wanted Erf"),
        ("%d = Mul(%x, 0.5)", "%y = Neg(%x)\n  %d = Mul(%y, 0.5)", "x is %x here, %y elsewhere"),
        ("return %e", "return %e, %b", "%b is used elsewhere too"),
        ("  %e", "  %f = Neg(%c)\n  %e", "%c is used elsewhere too"),
    ],
)
def test_says_why_not(old: str, new: str, reason: str) -> None:
    found, matcher = match(gelu, GELU.replace(old, new))
    assert found is None
    assert reason in matcher.reason


def test_backtracks_out_of_a_promising_operand() -> None:
    """The first Mul operand matches x * 0.5 as well; only the other order leads to the end."""
    text = """graph(%x: f32[8])
  %a = Mul(%x, 0.5)
  %b = Mul(%a, 0.5)
  %c = Exp(%b)
  %d = Mul(%a, %c)
  return %d
"""
    found, _ = match(lambda g, y: g.Mul(y, g.Exp(g.Mul(y, 0.5))), text)
    assert found["y"].name == "a"


def test_alternatives_bind_what_they_found() -> None:
    def formula(g: Any, x: Any, scale: Any) -> Any:
        return g.Exp(g.either(lambda: g.Mul(x, g.scalar(scale)), lambda: x))

    scaled, _ = match(
        formula, "graph(%x: f32[8])\n  %a = Mul(%x, 3.0)\n  %b = Exp(%a)\n  return %b\n"
    )
    assert scaled.scalar("scale", 1.0) == 3.0
    divided, _ = match(
        formula, "graph(%x: f32[8])\n  %a = Div(%x, 4.0)\n  %b = Exp(%a)\n  return %b\n"
    )
    assert divided["x"].name == "x" and divided.scalar("scale", 1.0) == 0.25
    plain, _ = match(
        formula, "graph(%x: f32[8])\n  %a = Mul(%x, %x)\n  %b = Exp(%a)\n  return %b\n"
    )
    assert plain["x"].name == "a" and plain.scalar("scale", 1.0) == 1.0


def test_check_is_part_of_the_search() -> None:
    """A refusal by check is no end: the other operand order is tried."""

    def refuse_a(found: Match) -> Any:
        return "not a" if found["x"].name == "a" else {}

    text = "graph(%a: f32[8], %b: f32[8])\n  %c = Add(%a, %b)\n  return %c\n"
    found, _ = match(lambda g, x, y: g.Add(x, y), text, refuse_a)
    assert found["x"].name == "b"


def test_exposed_value_may_be_used_outside() -> None:
    text = """graph(%x: f32[8], %y: f32[8])
  %a = Add(%x, %y)
  %b = Exp(%a)
  %c = Neg(%a)
  %d = Exp(%a)
  return %b, %c, %d
"""
    found, _ = match(lambda g, x, y: g.Exp(g.expose("sum", g.Add(x, y))), text)
    assert [value.name for value in found.outputs] == ["d", "a"]


def test_a_wildcard_is_never_inside_the_match() -> None:
    text = "graph(%x: f32[8])\n  %a = Relu(%x)\n  %b = Add(%a, %a)\n  return %b\n"
    found, matcher = match(lambda g, relu, other: g.Add(g.result("Relu", relu), other), text)
    assert found is None and "inside of the match" in matcher.reason


def test_axis_counts_from_either_end() -> None:
    text = "graph(%x: f32[2,8])\n  %a: f32[2,8] = Softmax(%x) {axis=1}\n  return %a\n"
    assert match(lambda g, x: g.Softmax(x, axis=-1), text)[0] is not None
    assert match(lambda g, x: g.Softmax(x, axis=0), text)[0] is None


def test_constants_are_compared_within_one_ulp() -> None:
    graph = parse(
        "graph(%x: f32[8])\n  %a = Mul(%x, 0.70710677)\n  %b = Mul(%a, 0.70711)\n  return %b\n"
    )
    near, far = (node.inputs[1] for node in graph.nodes)
    assert is_close(near, 1 / sqrt(2)) and not is_close(far, 1 / sqrt(2))


def test_roots_include_the_reciprocal_spelling() -> None:
    assert root_ops(trace(lambda g, x: g.Mul(x, 0.5))) == {"Mul", "Div"}
    assert root_ops(trace(lambda g, x, y: g.Mul(x, y))) == {"Mul"}
