"""Q7X2_VERIFY: each application of a fusion is evaluated before and after."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from q7x2_ep import fuse
from q7x2_ep.backend.verify import verify
from q7x2_ep.errors import InternalError
from q7x2_ep.ir.rewrite import Fusion, sweep
from q7x2_ep.ir.text import parse
from q7x2_ep.passes import infer


def planted(check=lambda match: {"x": match["x"]}, build=lambda g, x: g.Sigmoid(x)) -> Fusion:
    """A fusion that takes Tanh for Sigmoid."""
    return Fusion("Planted", (lambda g, x: g.Tanh(x),), check, build)


def fused(text: str, monkeypatch, fusion: Fusion):
    graph = parse(text)
    infer.run(graph)
    walk = SimpleNamespace(apply=lambda graph, g: sweep(graph, (fusion,), g))
    monkeypatch.setattr(fuse, "FUSIONS", (walk,))
    return fuse.fuse(graph, verify)


def test_a_wrong_fusion_is_named(monkeypatch):
    text = "graph(%x: f32[S,8])\n  %h = Exp(%x)\n  %y = Tanh(%h)\n  return %y\n"
    with pytest.raises(InternalError, match=r"fusion Planted\] Sigmoid in place of \(Tanh"):
        fused(text, monkeypatch, planted())


def test_a_wrong_constant_is_seen(monkeypatch):
    nearly = planted(build=lambda g, x: g.Mul(g.Tanh(x), 1.0001))
    with pytest.raises(InternalError, match="changes %y: RMS error"):
        fused("graph(%x: f32[S,8])\n  %y = Tanh(%x)\n  return %y\n", monkeypatch, nearly)


def test_what_a_fusion_knows_of_its_operands_counts(monkeypatch):
    """|x| of an Exp is that Exp: true, but not for random operands."""
    known = Fusion(
        "KnownPositive",
        (lambda g, x, y: g.Mul(g.Abs(x), y),),
        lambda match: (
            {"x": match["x"], "y": match["y"]}
            if match["x"].producer is not None and match["x"].producer.op == "Exp"
            else "unknown sign"
        ),
        lambda g, x, y: g.Mul(x, y),
    )
    text = "graph(%x: f32[S,8])\n  %h = Exp(%x)\n  %a = Abs(%h)\n  %y = Mul(%a, %x)\n  return %y\n"
    assert fused(text, monkeypatch, known).applied == {"KnownPositive": 1}


def test_sizes_that_the_model_wants_equal(monkeypatch):
    """T and S are two symbols, of which only equal values fit."""
    text = (
        "graph(%x: f32[S,4], %m: f32[T,4])\n  %a = Add(%x, %m)\n  %y = Tanh(%a)\n"
        "  %z = Add(%y, %m)\n  return %z\n"
    )
    both = Fusion(
        "Both",
        (lambda g, x, m: g.Tanh(g.Add(x, m)),),
        lambda match: {"x": match["x"], "m": match["m"]},
        lambda g, x, m: g.Tanh(g.Sub(x, m)),
    )
    with pytest.raises(InternalError, match="fusion Both"):
        fused(text, monkeypatch, both)
