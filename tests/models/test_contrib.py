"""Ops of com.microsoft beside onnxruntime: every combination of optional operands and outputs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import q7x2_ep

RANDOM = np.random.default_rng(5)
B, S, D, WORDS = 2, 5, 16, 11
EPSILON = 1e-5


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def indices(high: int) -> np.ndarray:
    return RANDOM.integers(0, high, (B, S)).astype(np.int32)


def model_of(op: str, given: Mapping[str, Any], outputs: Mapping[str, int], **attrs: Any) -> bytes:
    """One node. given: arrays by name in operand order, None where left out; outputs: dtypes by
    name, an empty name where left out."""
    feeds = {name: array for name, array in given.items() if array is not None}
    inputs = [name if array is not None else "" for name, array in given.items()]
    names = [name if dtype else "" for name, dtype in outputs.items()]
    domain = "" if op == "SimplifiedLayerNormalization" else "com.microsoft"
    node = helper.make_node(op, inputs, names, domain=domain, epsilon=EPSILON, **attrs)
    symbols = {B: "B", S: "S"}
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [symbols.get(dim, dim) for dim in array.shape],
        )
        for name, array in feeds.items()
    ]
    results = [
        helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items() if dtype
    ]
    graph = helper.make_graph([node], op, infos, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return made.SerializeToString()


def assert_same(model: bytes, given: Mapping[str, Any], steps: Mapping[str, int]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    feeds = {name: array for name, array in given.items() if array is not None}
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    wanted = theirs.run(None, feeds)
    with q7x2_ep.InferenceSession(model) as session:
        for ours, expected in zip(session.run(None, feeds), wanted):
            assert ours.dtype == expected.dtype and ours.shape == expected.shape
            np.testing.assert_allclose(ours, expected, rtol=0, atol=4e-6)
    found = Counter(step.op for step in q7x2_ep.explain(model).steps)
    assert {op: found[op] for op in steps} == steps, found


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_norms(op: str) -> None:
    for shape, has_bias, has_skip_bias, has_sum in itertools.product(
        ((B, S, D), (1, S, D), (S, D)), *[(False, True)] * 3
    ):
        given = {"x": floats(B, S, D), "skip": floats(*shape), "weight": floats(D)}
        if op == "SkipLayerNormalization":
            given["bias"] = floats(D) if has_bias else None
        given["skip_bias"] = floats(D) if has_skip_bias else None
        outputs = {"y": 1, "mean": 0, "inv_std": 0, "sum": 1} if has_sum else {"y": 1}
        step = "layernorm" if op == "SkipLayerNormalization" else "rmsnorm"
        assert_same(model_of(op, given, outputs), given, {step: 1, "binary": 0})


def test_simplified_layer_normalization() -> None:
    given = {"x": floats(B, S, D), "weight": floats(D)}
    model = model_of("SimplifiedLayerNormalization", given, {"y": 1}, axis=-1)
    assert_same(model, given, {"rmsnorm": 1, "binary": 0})


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("has_segments", [False, True])
@pytest.mark.parametrize("has_positions", [False, True])
def test_embed_layer_normalization(has_mask: bool, has_segments: bool, has_positions: bool) -> None:
    given = {
        "ids": indices(WORDS),
        "segments": indices(2) if has_segments else None,
        "words": floats(WORDS, D),
        "positions": floats(S + 3, D),
        "segment_words": floats(2, D) if has_segments else None,
        "weight": floats(D),
        "bias": floats(D),
        "mask": indices(2) if has_mask else None,
        "position_ids": indices(S + 3) if has_positions else None,
    }
    outputs = {"y": 1, "mask_index": TensorProto.INT32, "sum": 1}
    model = model_of("EmbedLayerNormalization", given, outputs)
    assert_same(model, given, {"layernorm": 1, "gather": 1 + has_segments + has_positions})
