"""Fused ops as the C library runs them, against their decomposition in float64: attributes,
strides, broadcasts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from q7x2_ep import dtypes
from q7x2_ep.backend.cpu.executor import Executor
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.backend.cpu.pack import compiled
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.ir.core import Graph, Value
from q7x2_ep.ir.shape import symbol
from q7x2_ep.ops.builder import Builder
from q7x2_ep.ops.fused import ACTIVATIONS
from q7x2_ep.plan.build import build

B, S, T = symbol("B"), symbol("S"), symbol("T")


class Case:
    """A graph under construction, and random data for it."""

    def __init__(self, seed: int):
        self.graph = Graph()
        self.g = Builder(self.graph)
        self.random = np.random.default_rng(seed)
        self.given: dict[Value, np.ndarray] = {}

    def input(self, *shape: Any, dtype: int = dtypes.FLOAT) -> Value:
        value = Value(f"x{len(self.graph.inputs)}", dtype, shape)
        self.graph.inputs.append(value)
        return value

    def integers(self, array: np.ndarray, shape: Any, dtype: int) -> Value:
        """An input that is fed these numbers."""
        value = self.input(*shape, dtype=dtype)
        self.given[value] = array.astype(dtypes.DTYPES[dtype].numpy)
        return value

    def constant(self, *shape: int) -> Value:
        return self.g.array(self.random.standard_normal(shape).astype(np.float32))

    def check(self, result: Any, sizes: dict[str, int], reduced: int) -> None:
        """Run natively for each symbol as given. reduced: length of the longest sum."""
        graph = self.graph
        graph.outputs = list(result) if isinstance(result, tuple) else [result]
        graph.output_names = [value.name for value in graph.outputs]
        graph.nodes = self.g.take()
        arrays = []
        for value in graph.inputs:
            shape = [dim if isinstance(dim, int) else sizes[repr(dim)] for dim in value.shape]
            array = self.random.standard_normal(shape).astype(np.float32)
            array = array > -0.5 if value.dtype == dtypes.BOOL else array
            arrays.append(self.given.get(value, array))
        feeds = {value.name: array for value, array in zip(graph.inputs, arrays)}
        wanted = evaluate(graph, feeds, np.float64)
        library = load()
        code = compiled(library, build(graph, library.target), list(sizes))
        executor = Executor(library, code, 2)
        got = executor.run(arrays, sizes)
        executor.close()
        for left, right in zip(got, wanted):
            scale = max(float(np.abs(right).max()), 1.0)
            bound = 4 * np.sqrt(reduced) * np.finfo(np.float32).eps * scale
            np.testing.assert_allclose(left, right, rtol=0, atol=bound)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(
    "bias, residual", [(False, False), (True, False), (False, True), (True, True)]
)
def test_linear(activation: str, trans_b: int, bias: bool, residual: bool) -> None:
    case = Case(trans_b)
    k, n = 19, 37
    y = case.g.call(
        "q7::Linear",
        case.input(B, S, k),
        case.constant(n, k) if trans_b else case.constant(k, n),
        case.constant(n) if bias else None,
        case.input(B, S, n) if residual else None,
        activation=activation,
        trans_b=trans_b,
        alpha=0.5,
    )
    case.check(y, {"B": 2, "S": 7}, k)


@pytest.mark.parametrize("perm", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)], ids=repr)
def test_linear_reads_strided_rows(perm: tuple[int, ...]) -> None:
    """Half of each row, and rows in another order, are read in place; columns are copied."""
    case = Case(3)
    half, _ = case.g.call("Split", case.input(B, 4, S, 16), [8, 8], outputs=2, axis=3)
    x = case.g.Transpose(half, perm=perm)
    if perm == (0, 1, 3, 2):
        x = case.g.Reshape(case.g.Transpose(x, perm=(0, 3, 1, 2)), [B, S, 32])
    y = case.g.call("q7::Linear", x, case.constant(x.shape[-1], 5))
    case.check(y, {"B": 3, "S": 6}, 32)


@pytest.mark.parametrize("heads, shared", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("queries, keys", [(1, 9), (5, 5), (40, 70)])
@pytest.mark.parametrize(
    "mask, dtype",
    [
        (None, 0),
        *(
            (shape, dtype)
            for shape in ((B, 1, 1, T), (1, 1, S, T), (S, T), (T,), (B, 1, S, 1))
            for dtype in (dtypes.FLOAT, dtypes.BOOL)
        ),
    ],
    ids=repr,
)
def test_attention(heads: int, shared: int, queries: int, keys: int, mask: Any, dtype: int) -> None:
    """q, k, v arrive as (B, S, H, D) and are read through the transposition."""
    case = Case(heads)
    depth, depth_v = 16, 24

    def turned(x: Value) -> Value:
        return case.g.Transpose(x, perm=(0, 2, 1, 3))

    o = case.g.call(
        "q7::Attention",
        turned(case.input(B, S, heads, depth)),
        turned(case.input(B, T, shared, depth)),
        turned(case.input(B, T, shared, depth_v)),
        None if mask is None else case.input(*mask, dtype=dtype),
        scale=0.25,
        fill=-1e4,
        zero_masked_rows=1,
        zero_nan_rows=0,
    )
    merged = case.g.Reshape(turned(o), [B, S, heads * depth_v])
    case.check(merged, {"B": 2, "S": queries, "T": keys}, keys)


@pytest.mark.parametrize("queries, keys", [(6, 6), (3, 10), (33, 65), (9, 4)])
@pytest.mark.parametrize("causal, window", [(1, (-1, -1)), (1, (2, -1)), (0, (0, 3)), (0, (-1, 1))])
@pytest.mark.parametrize("offset", ["none", "fixed", "symbolic", "batch"])
@pytest.mark.parametrize("lengths", [None, dtypes.INT32, dtypes.INT64])
def test_attention_visibility(
    queries: int, keys: int, causal: int, window: Any, offset: str, lengths: Any
) -> None:
    case = Case(5)
    q, k, v = case.input(B, 2, S, 8), case.input(B, 2, T, 8), case.input(B, 2, T, 8)
    offsets = {"none": None, "fixed": case.g.literal([2]), "symbolic": case.g.literal([T - S])}
    if offset == "batch":
        offsets["batch"] = case.integers(np.array([-2, 1]), (B,), dtypes.INT64)
    o = case.g.call(
        "q7::Attention",
        q,
        k,
        v,
        None,
        None,
        None if lengths is None else case.integers(np.array([keys + 1, 2]), (B,), lengths),
        offsets[offset],
        scale=0.3,
        causal=causal,
        window=window,
        zero_masked_rows=1,
        zero_nan_rows=0,
    )
    case.check(o, {"B": 2, "S": queries, "T": keys}, keys)


@pytest.mark.parametrize("queries, keys", [(3, 10), (33, 165)])
@pytest.mark.parametrize("mask", [None, dtypes.FLOAT, dtypes.BOOL])
@pytest.mark.parametrize("bias", [None, (1, 4, S, T), (B, 1, 1, T)], ids=repr)
def test_attention_scores(queries: int, keys: int, mask: Any, bias: Any) -> None:
    """The soft cap comes before the bias, the bias before the mask."""
    case = Case(6)
    q, k, v = case.input(B, 4, S, 8), case.input(B, 2, T, 8), case.input(B, 2, T, 8)
    operands = [
        None if mask is None else case.input(B, 1, S, T, dtype=mask),
        None if bias is None else case.input(*bias),
    ]
    for sinks in (None, case.input(4)):
        more = (*operands, None, None, sinks)
        o = case.g.call("q7::Attention", q, k, v, *more, scale=1.0, softcap=1.5, fill=-2.0)
    case.check(o, {"B": 2, "S": queries, "T": keys}, keys)


def test_mask_with_one_key_at_run_time() -> None:
    """A mask whose last dim has a symbol of its own may be 1 when it comes to bind."""
    for length in (1, 7):
        case = Case(length)
        q, k, v = (case.input(B, 2, S, 8) for _ in range(3))
        o = case.g.call("q7::Attention", q, k, v, case.input(B, 1, 1, T), scale=0.3)
        case.check(o, {"B": 2, "S": 7, "T": length}, 7)


@pytest.mark.parametrize("skip", [(B, S, 33), (1, S, 33), (S, 33), (T, 33)], ids=repr)
@pytest.mark.parametrize("skip_bias, bias", [(False, False), (True, True)])
@pytest.mark.parametrize("outputs", [1, 2])
def test_skip_layer_norm(skip: Any, skip_bias: bool, bias: bool, outputs: int) -> None:
    case = Case(outputs)
    results = case.g.call(
        "q7::SkipLayerNorm",
        case.input(B, S, 33),
        case.input(*skip),
        case.constant(33) if skip_bias else None,
        case.constant(33),
        case.constant(33) if bias else None,
        outputs=outputs,
        epsilon=1e-5,
    )
    case.check(results, {"B": 2, "S": 5, "T": 1}, 33)
