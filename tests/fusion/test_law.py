"""The law of all fusions: what a formula says is found again, in every spelling and operand order,
and means the same.

Each spelling is built with every combination of its alternatives. Fused and unfused graphs are
evaluated in float64.
"""

from __future__ import annotations

import inspect
import math
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


def scores(g: Builder) -> Value:
    """Every part that may stand between the product and the Softmax, in some orders."""
    q, k = make_value(g, "q", (B, H, S, D)), make_value(g, "k", (B, H, S, D))
    flat = (B * H, S, D)
    product = g.either(
        lambda: g.MatMul(q, g.Transpose(k, perm=(0, 1, 3, 2))),
        lambda: g.Transpose(g.MatMul(k, g.Transpose(q, perm=(0, 1, 3, 2))), perm=(0, 1, 3, 2)),
        lambda: g.Reshape(
            g.MatMul(
                g.Reshape(q, list(flat)), g.Transpose(g.Reshape(k, list(flat)), perm=(0, 2, 1))
            ),
            [B, H, S, S],
        ),
    )
    x = g.either(lambda: g.Div(product, 2.0), lambda: product)
    mask, keep = make_value(g, "mask", (B, 1, 1, S)), make_value(g, "keep", ("bool", (S, S)))
    return g.either(
        lambda: x,
        lambda: g.Mul(g.Add(x, mask), 0.5),
        lambda: g.Sub(x, mask),
        lambda: g.Where(keep, x, -1e4),
        lambda: g.Where(keep, -math.inf, g.Add(x, mask)),
        lambda: g.Add(g.Add(x, mask), g.Where(keep, 0.0, -1e4)),
    )


def scores_rank_3(g: Builder) -> Value:
    q, k = make_value(g, "q", (B, S, D)), make_value(g, "k", (B, D, S))
    return g.Mul(g.MatMul(q, k), 0.5)


def scaled_operands(g: Builder) -> Value:
    """Factors right before attention, and behind views."""
    x, k = make_value(g, "x", (B, S, H * D)), make_value(g, "k", (B, H, S, D))
    rows = g.Reshape(g.Mul(x, 0.5), [B, S, H, D])
    q = g.Transpose(rows, perm=(0, 2, 1, 3))
    keys = g.either(lambda: g.Div(k, 4.0), lambda: k)
    return g.call("q7::Attention", q, keys, make_value(g, "v", (B, H, S, D)))


def repeated_heads(g: Builder) -> Value:
    """Each of H heads twice, in the ways that exporters have for it."""

    def twice(name: str) -> Value:
        x, merged = make_value(g, name, (B, H, S, D)), [B, 2 * H, S, D]
        return g.either(
            lambda: g.Reshape(g.Expand(g.Unsqueeze(x, [2]), [B, H, 2, S, D]), merged),
            lambda: g.Reshape(g.Tile(g.Unsqueeze(x, [2]), [1, 1, 2, 1, 1]), merged),
            lambda: g.Reshape(g.Concat(*[g.Unsqueeze(x, [2])] * 2, axis=2), merged),
            lambda: g.Gather(x, [0, 0, 1, 1], axis=1),
        )

    q = make_value(g, "q", (B, 2 * H, S, D))
    return g.call("q7::Attention", q, twice("k"), twice("v"), make_value(g, "mask", (B, 1, 1, S)))


# What stands for a wildcard: the shape of a float input, a list (int64 constant), a number,
# ("const", shape), or a function that builds it.
WEIGHT, ROW = ("const", (K, N)), ("const", (N,))
NORM_ROW = ("const", (K,))
EXAMPLES: dict[str, dict[str, Any]] = {
    "Gelu": {"x": (B, S, K)},
    "GeluTanh": {"x": (B, S, K)},
    "Swish": {"x": (B, S, K), "alpha": 1.702},
    "GroupedHeads": {"o": repeated_heads},
    "LayerNorm": {
        "x": (B, S, K),
        "mean_axes": [-1],
        "mean_factor": 1 / K,
        "axes": [2],
        "factor": 1 / K,
        "epsilon": 1e-5,
        "weight": NORM_ROW,
        "bias": NORM_ROW,
    },
    "RmsNorm": {
        "x": (B, S, K),
        "axes": [-1],
        "factor": 1 / K,
        "epsilon": 1e-6,
        "weight": ("const", (1, 1, K)),
    },
    "NormCast": {"norm": "LayerNormalization of halves"},
    "NormWeight": {"norm": "LayerNormalization", "weight": NORM_ROW},
    "NormBias": {"norm": "LayerNormalization", "bias": (K,)},
    "Attention": {
        "scores": scores,
        "flat_shape": [B, H, S, S],
        "v": (B, H, S, D),
        "v_columns": (B, H, D, S),
    },
    "QueryScale": {"o": scaled_operands},
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
    "SkipRmsNorm": {
        "x": (B, S, K),
        "skip": (S, K),
        "skip_bias": NORM_ROW,
        "weight": NORM_ROW,
    },
}
HEADS = {**dict.fromkeys("qkv", (B, H, S, D)), "mask": (B, 1, 1, S)}
OVERRIDES = {
    "reshaped": {"linear": "q7::Linear between Reshapes", "shape": [B, S, N]},
    "onnx_attention": HEADS,
    "onnx_attention_masked": HEADS,
    "attention_turned_rank_3": {
        "scores": scores_rank_3,
        "flat_shape": [B, S, S],
        "v_columns": (B, D, S),
    },
    "gemm": {"x": (S, K)},
    "gemm_bias": {"x": (S, K)},
}
TARGETS = {
    "Gelu": "Gelu",
    "GeluTanh": "Gelu",
    "Swish": "Swish",
    "GroupedHeads": "q7::Attention",
    "QueryScale": "q7::Attention",
    "LayerNorm": "LayerNormalization",
    "RmsNorm": "RMSNormalization",
    "NormCast": "LayerNormalization",
    "NormWeight": "LayerNormalization",
    "NormBias": "LayerNormalization",
    "SkipRmsNorm": "q7::SkipRmsNorm",
    "Attention": "q7::Attention",
    "SkipLayerNorm": "q7::SkipLayerNorm",
}
LOOKED_THROUGH = ("Reshape", "Cast", "q7::Attention")
# What may be left besides the target: views, and what makes several masks one.
ALLOWED = {"Transpose", "Reshape", "Not", "Unsqueeze", "Add", "Mul", "Where"}
CASES = [
    pytest.param(fusion, spelling, id=f"{fusion.name}-{spelling.__name__}")
    for walk in FUSIONS
    if isinstance(walk, Walk)
    for fusion in walk.fusions
    for spelling in fusion.spellings
]


def random_array(generator: np.random.Generator, shape: tuple) -> np.ndarray:
    return generator.standard_normal(shape).astype(np.float32)


def make_value(g: Builder, name: str, spec: Any) -> Value:
    if isinstance(spec, str) and spec.startswith("LayerNormalization"):
        x = make_value(g, "x", (B, S, K))
        if "halves" in spec:
            x.dtype = dtypes.FLOAT16
            x = g.Cast(x, to=dtypes.FLOAT)
        return g.LayerNormalization(x, g.ones((K,), dtypes.FLOAT))
    if callable(spec):
        return spec(g)
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
    dtype, shape = (dtypes.BOOL, spec[1]) if spec[0] == "bool" else (dtypes.FLOAT, spec)
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
    values = [
        make_value(g, name, specs[name])
        for name in list(inspect.signature(spelling).parameters)[1:]
    ]
    graph.outputs = [spelling(g, *values)]
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
        feeds[value.name] = array > 0 if value.dtype == dtypes.BOOL else array
    return feeds


@pytest.mark.parametrize("fusion, spelling", CASES)
def test_formula_is_found_and_means_the_same(fusion: Fusion, spelling: Any) -> None:
    chance = random.Random(0)
    for graph in all_choices(lambda choose: build_graph(fusion, spelling, choose)):
        commute(graph, chance)
        feeds = feeds_for(graph)
        before = evaluate(graph, feeds, np.float64)
        sources = {node.name for node in graph.nodes if node.op not in LOOKED_THROUGH}
        report = fuse(graph)
        text = [node.op for node in graph.nodes]
        assert report.applied.get(fusion.name) == 1, (text, [str(miss) for miss in report.misses])
        target = TARGETS.get(fusion.name, "q7::Linear")
        assert text.count(target) == 1 and set(text) <= ALLOWED | {target}, text
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
        ("q7::SkipRmsNorm", [X, skip, skip_bias, NORM_ROW], outputs, {"epsilon": 1e-3})
        for skip in (X, (1, S, K), (S, K))
        for skip_bias in (None, NORM_ROW)
        for outputs in (1, 2)
    ),
    *(
        ("q7::SkipLayerNorm", [X, skip, skip_bias, NORM_ROW, bias], outputs, {"epsilon": 1e-3})
        for skip in (X, (1, S, K), (S, K))
        for skip_bias in (None, NORM_ROW)
        for bias in (None, NORM_ROW)
        for outputs in (1, 2)
    ),
    *(
        ("q7::Chain", specs, 1, {"program": program})
        for specs, program in (
            ([X, NORM_ROW], "%2 = Mul(%0, %1); %3 = Tanh(%2)"),
            ([X, (S, 1)], "%2 = Abs(%0); %3 = Elu(%2) {alpha=0.5}; %4 = Div(%3, %1)"),
            ([X, X], "%2 = Less(%0, %1); %3 = Sin(%0); %4 = Where(%2, %3, %1)"),
            ([X], '%1 = Gelu(%0) {approximate="tanh"}; %2 = Clip(%1); %3 = Mul(%1, %2)'),
        )
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
    attrs = {name: pytest.approx(value) for name, value in wanted.attrs.items()}
    assert graph.nodes[0].attrs == attrs
    assert graph.nodes[0].outputs == wanted_outputs
