"""The law of all fusions: what a formula says is found again, in every spelling and operand order,
and means the same.

Each spelling is built with every combination of its alternatives. Fused and unfused graphs are
evaluated in float64.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import pytest

from q7x2_ep import dtypes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.fuse import FUSIONS, Walk, fuse, unfuse
from q7x2_ep.ir.core import Graph, Value
from q7x2_ep.ir.pattern import COMMUTATIVE
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import substitute, symbol
from q7x2_ep.ops.builder import Builder
from q7x2_ep.ops.fused import ACTIVATIONS

B, S = symbol("B"), symbol("S")
SIZES = {"B": 2, "S": 3}
H, D, K, N = 2, 4, 6, 5

# What stands for a wildcard: the shape of a float input, a list (int64 constant), a number,
# ("const", shape), ("bool", shape), ("ids", shape), or a function (builder, values so far) -> value.
WEIGHT, ROW = ("const", (K, N)), ("const", (N,))
NORM_ROW = ("const", (K,))
EXAMPLES: dict[str, dict[str, Any]] = {
    "Gelu": {"x": (B, S, K)},
    "GeluTanh": {"x": (B, S, K)},
    "Swish": {"x": (B, S, K), "alpha": 1.702},
    "GroupedHeads": {
        "q": (B, 2 * H, S, D),
        "k": (B, H, S, D),
        "v": (B, H, S, D),
        "k_axes": [2],
        "v_axes": [-3],
        "k_shape": [B, H, 2, S, D],
        "v_shape": [B, H, 2, S, D],
        "k_merged": [B, 2 * H, S, D],
        "v_merged": [B, 2 * H, S, D],
        "mask": (B, 1, 1, S),
    },
    "LayerNorm": {
        "x": (B, S, K),
        "mean_axes": [-1],
        "axes": [2],
        "epsilon": 1e-5,
        "weight": NORM_ROW,
        "bias": NORM_ROW,
    },
    "RmsNorm": {"x": (B, S, K), "axes": [-1], "epsilon": 1e-6, "weight": NORM_ROW},
    "Attention": {
        "q": (B, H, S, D),
        "k": (B, H, S, D),
        "k_rows": (B, S, H, D),
        "k_flat": ("reshape", (B, H, S, D), (B * H, S, D)),
        "k_columns": (B, H, D, S),
        "flat_shape": [B, H, D, S],
        "v": (B, H, S, D),
        "q_scale": 0.5,
        "k_scale": 0.25,
        "scale": 2.0,
        "mask": (B, 1, 1, S),
        "keep": ("bool", (B, 1, 1, S)),
        "drop": ("bool", (S, S)),
        "fill": -1e4,
    },
    "QueryScale": {
        "x": (B, S, H * D),
        "scale": 0.5,
        "shape": [B, S, H, D],
        "k": (B, H, S, D),
        "v": (B, H, S, D),
        "mask": (B, 1, 1, S),
    },
    "BatchedAttention": {
        "q": ("reshape", (B, H, S, D), (B * H, S, D)),
        "k": ("reshape", (B, H, S, D), (B * H, S, D)),
        "k_columns": ("reshape", (B, H, D, S), (B * H, D, S)),
        "v": ("reshape", (B, H, S, D), (B * H, S, D)),
        "q_scale": 0.5,
        "scale": 2.0,
        "heads_shape": [B, H, S, S],
        "mask": (B, 1, 1, S),
        "flat_shape": [B * H, S, S],
    },
    "Rope": {
        "x": (B, H, S, D),
        "a": lambda g, v: cut(g, v["x"], 0, D // 2),
        "b": lambda g, v: cut(g, v["x"], D // 2, D),
        "cos": (B, 1, S, D),
        "sin": (B, 1, S, D),
    },
    "RopePairs": {
        "a": lambda g, v: cut(g, whole(g, v), 0, D, 2),
        "b": lambda g, v: cut(g, whole(g, v), 1, D, 2),
        "cos": (1, 1, S, D // 2),
        "sin": (1, 1, S, D // 2),
        "cos2": lambda g, v: v["cos"],
        "sin2": lambda g, v: v["sin"],
        "axes": [-1],
        "axes2": [4],
        "column_shape": [B, H, S, D // 2, 1],
        "column_shape2": [B, H, S, D // 2, 1],
        "shape": [B, H, S, D],
    },
    "OnnxRope": {
        "x": (B, H, S, D),
        "cos": (B, S, D // 2),
        "sin": (B, S, D // 2),
    },
    "PartialRope": {
        "q": lambda g, v: cut(g, whole(g, v), 0, D // 2),
        "cos": (B, 1, S, D // 2),
        "sin": (B, 1, S, D // 2),
        "rest": lambda g, v: cut(g, whole(g, v), D // 2, D),
    },
    "Linear": {"x": (B, S, K), "w": WEIGHT, "bias": ROW},
    "LinearReshape": {},
    "LinearScale": {"linear": "q7::Linear", "scale": 0.5},
    "LinearBias": {"linear": "q7::Linear", "bias": ROW},
    "LinearActivation": {"linear": "q7::Linear"},
    "LinearResidual": {"linear": "q7::Linear", "residual": (B, S, N)},
    "SkipLayerNorm": {
        "x": (B, S, K),
        "skip": (1, S, K),
        "skip_bias": NORM_ROW,
        "weight": NORM_ROW,
        "bias": NORM_ROW,
    },
}
OVERRIDES = {
    "reshaped": {"linear": "q7::Linear between Reshapes", "shape": [B, S, N]},
    "gemm": {"x": (S, K)},
    "gemm_bias": {"x": (S, K)},
    "interleaved": {
        "a_column": lambda g, v: column(g, cut(g, v["x"], 0, D, 2)),
        "b": lambda g, v: cut(g, v["x"], 1, D, 2),
        "b_column": lambda g, v: column(g, v["b"]),
        "axes": [4],
        "column_shape": [B, H, S, D // 2, 1],
        "shape": [B, H, S, D],
    },
    "pair_halves": {
        "a": lambda g, v: cut(g, whole(g, v), 0, 1),
        "b": lambda g, v: cut(g, whole(g, v), 1, 2),
        "cos": (B, 1, S, 1),
        "sin": (1, S, 1),
        "rest": lambda g, v: cut(g, whole(g, v), 2, D),
    },
    "pair_columns": {
        "a": lambda g, v: column(g, cut(g, whole(g, v), 0, D, 2)),
        "b": lambda g, v: column(g, cut(g, whole(g, v), 1, D, 2)),
        "cos": (S, D // 2, 1),
        "sin": (S, D // 2, 1),
    },
    "partial_turned": {
        "rest": lambda g, v: cut(g, g.Transpose(whole(g, v), perm=(0, 2, 1, 3)), D // 2, D)
    },
    "onnx_rope_at": {"cos": (S, D // 2), "sin": (S, D // 2), "positions": ("ids", (B, S))},
}
TARGETS = {
    "Gelu": "Gelu",
    "GeluTanh": "Gelu",
    "Swish": "Swish",
    "GroupedHeads": "q7::Attention",
    "BatchedAttention": "q7::Attention",
    "QueryScale": "q7::Attention",
    "LayerNorm": "LayerNormalization",
    "RmsNorm": "RMSNormalization",
    "Attention": "q7::Attention",
    "SkipLayerNorm": "q7::SkipLayerNorm",
    **dict.fromkeys(("Rope", "RopePairs", "OnnxRope", "PartialRope"), "q7::Rope"),
}
UNNAMED = {"Reshape", "Slice", "Unsqueeze", "q7::Attention", "q7::Rope"}  # may leave no trace
AROUND = {"Transpose", "Reshape", "Slice", "Gather", "Not"}  # what a fusion may put around its op
CASES = [
    pytest.param(fusion, spelling, id=f"{fusion.name}-{spelling.__name__}")
    for walk in FUSIONS
    if isinstance(walk, Walk)
    for fusion in walk.fusions
    for spelling in fusion.spellings
]


def random_array(generator: np.random.Generator, shape: tuple) -> np.ndarray:
    return generator.standard_normal(shape).astype(np.float32)


def whole(g: Builder, values: dict[str, Value]) -> Value:
    """What others are cut from."""
    if "whole" not in values:
        values["whole"] = make_value(g, "whole", (B, H, S, D))
    return values["whole"]


def cut(g: Builder, x: Value, start: int, end: int, step: int = 1) -> Value:
    return g.Slice(x, [start], [end], [3], [step])


def column(g: Builder, x: Value) -> Value:
    return g.Unsqueeze(x, [-1])


def make_value(g: Builder, name: str, spec: Any) -> Value:
    if isinstance(spec, str):
        x = make_value(g, "x", (B, S, K))
        rows = g.Reshape(x, [B * S, K]) if "between" in spec else x
        return g.call("q7::Linear", rows, make_value(g, "w", WEIGHT))
    if isinstance(spec, (list, float)):
        return g.literal(spec)
    if spec[0] == "const":
        return g.array(random_array(np.random.default_rng(len(name)), spec[1]))
    if spec[0] == "reshape":
        return g.Reshape(make_value(g, name, spec[1]), list(spec[2]))
    dtype, shape = {"bool": (dtypes.BOOL, spec[1]), "ids": (dtypes.INT64, spec[1])}.get(
        spec[0], (dtypes.FLOAT, spec)
    )
    value = Value(name, dtype, shape)
    g.graph.inputs.append(value)
    return value


class Script:
    """Answers `choose` from a list, then with 0; remembers (answer, n) of every question."""

    def __init__(self, answers: list[int]):
        self.answers = answers
        self.seen: list[tuple[int, int]] = []

    def choose(self, n: int) -> int:
        at = len(self.seen)
        self.seen.append((self.answers[at] if at < len(self.answers) else 0, n))
        return self.seen[-1][0]


def all_choices(make: Callable[[Callable[[int], int]], Any]) -> Iterator[Any]:
    """make(choose) for every sequence of answers that choose can give."""
    script = Script([])
    while True:
        yield make(script.choose)
        seen = script.seen
        while seen and seen[-1][0] + 1 == seen[-1][1]:
            seen.pop()
        if not seen:
            return
        script = Script([answer for answer, _ in seen[:-1]] + [seen[-1][0] + 1])


def build_graph(fusion: Fusion, spelling: Any, choose: Callable[[int], int]) -> Graph:
    graph = Graph()
    g = Builder(graph, choose)
    specs = {**EXAMPLES[fusion.name], **OVERRIDES.get(spelling.__name__, {})}
    values: dict[str, Value] = {}
    names = list(inspect.signature(spelling).parameters)[1:]
    for name in names:
        spec = specs[name]
        values[name] = spec(g, values) if callable(spec) else make_value(g, name, spec)
    graph.outputs = [spelling(g, *(values[name] for name in names))]
    graph.output_names = [graph.outputs[0].name]
    graph.nodes = g.take()
    for i, node in enumerate(graph.nodes):
        node.name = f"{node.op}.{i}"
        node.sources = (node.name,)
    graph.inputs = [value for value in graph.inputs if value.users]
    return graph


def commute(graph: Graph, chance: random.Random) -> None:
    for node in graph.nodes:
        if node.op in COMMUTATIVE and chance.random() < 0.5:
            node.inputs.reverse()


def feeds_for(graph: Graph) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    feeds = {}
    for value in graph.inputs:
        shape = tuple(substitute(dim, SIZES) for dim in value.shape)
        array = random_array(generator, shape)
        if value.dtype != dtypes.FLOAT:
            array = array > 0 if value.dtype == dtypes.BOOL else generator.integers(0, 3, shape)
        feeds[value.name] = array
    return feeds


@pytest.mark.parametrize("fusion, spelling", CASES)
def test_formula_is_found_and_means_the_same(fusion: Fusion, spelling: Any) -> None:
    chance = random.Random(0)
    for graph in all_choices(lambda choose: build_graph(fusion, spelling, choose)):
        commute(graph, chance)
        feeds = feeds_for(graph)
        before = evaluate(graph, feeds, np.float64)
        sources = {node.name for node in graph.nodes if node.op not in UNNAMED}
        report = fuse(graph)
        text = [node.op for node in graph.nodes]
        assert report.applied.get(fusion.name) == 1, (text, [str(miss) for miss in report.misses])
        target = TARGETS.get(fusion.name, "q7::Linear")
        assert text.count(target) == 1 and set(text) <= {target} | AROUND, text
        assert {name for node in graph.nodes for name in node.sources} >= sources
        for left, right in zip(before, evaluate(graph, feeds, np.float64)):
            np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


def fused_graph(op: str, specs: list[Any], outputs: int, attrs: dict[str, Any]) -> Graph:
    graph = Graph()
    g = Builder(graph)
    values = [
        None if spec is None else make_value(g, f"v{i}", spec) for i, spec in enumerate(specs)
    ]
    results = g.call(op, *values, outputs=outputs, **attrs)
    graph.outputs = list(results) if outputs > 1 else [results]
    graph.output_names = [value.name for value in graph.outputs]
    graph.nodes = g.take()
    return graph


X, RESIDUAL = (B, S, K), (B, S, N)
QUERIES = KEYS = (B, H, S, D)
LAW = [
    *(
        ("q7::Linear", [X, WEIGHT, bias, residual], 1, {"activation": activation, "alpha": alpha})
        for bias in (None, ROW)
        for residual in (None, RESIDUAL)
        for activation in ACTIVATIONS
        for alpha in (1.0, 0.5)
    ),
    *(
        (
            "q7::Attention",
            [QUERIES, keys, keys, mask],
            1,
            {"scale": 0.5, "zero_masked_rows": zero, "fill": fill},
        )
        for keys in (KEYS, (B, 1, S, D))
        for mask, fill in ((None, -np.inf), ((B, 1, S, S), -np.inf), (("bool", (S, S)), -1e4))
        for zero in (0, 1)
    ),
    *(
        ("q7::SkipLayerNorm", [X, skip, skip_bias, NORM_ROW, bias], outputs, {"epsilon": 1e-3})
        for skip in (X, (1, S, K), (S, K))
        for skip_bias in (None, NORM_ROW)
        for bias in (None, NORM_ROW)
        for outputs in (1, 2)
    ),
    *(
        (
            "q7::Rope",
            [QUERIES, k, *[(batch, 1, S, columns * (2 - half))] * 2],
            1 if k is None else 2,
            {"half": half, "interleaved": interleaved},
        )
        for k in (None, (B, 1, S, D))
        for batch in (B, 1)
        for columns in (D // 2, D // 4)
        for half in (0, 1)
        for interleaved in (0, 1)
    ),
]


@pytest.mark.parametrize("op, specs, outputs, attrs", LAW)
def test_fuse_undoes_decompose(
    op: str, specs: list[Any], outputs: int, attrs: dict[str, Any]
) -> None:
    graph = fused_graph(op, specs, outputs, attrs)
    wanted = graph.nodes[0]
    inputs, wanted_outputs = list(wanted.inputs), list(wanted.outputs)
    unfuse(graph)
    assert op not in {node.op for node in graph.nodes}
    report = fuse(graph)
    assert [node.op for node in graph.nodes] == [op], str(report)
    assert graph.nodes[0].inputs == inputs
    assert graph.nodes[0].attrs == pytest.approx(wanted.attrs)
    assert graph.nodes[0].outputs == wanted_outputs
