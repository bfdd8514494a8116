"""Norms, gates, rotary embeddings and recurrences of com.microsoft beside onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from q7x2_ep.session import Session
from tests.models.beside import one_node, same, theirs

RANDOM = np.random.default_rng(29)
FLOAT = TensorProto.FLOAT
B, S, C, H = 2, 5, 4, 8  # batch, steps, branches, size of one


def f(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("size", [H, C * H])
def test_gated_norm(activation: str, size: int) -> None:
    inputs = [f(B, S, C * H), f(size), f(B, S, C * H)]
    same("GatedRMSNorm", inputs, symbols={B: "B"}, activation=activation, epsilon=0.1)


@pytest.mark.parametrize("scale", [None, (H,), (C, H), (C * H,)], ids=str)
@pytest.mark.parametrize("flat", [False, True])
def test_branchwise_norm(scale: Any, flat: bool) -> None:
    inputs = [f(B, S, C * H) if flat else f(B, S, C, H)]
    inputs += [] if scale is None else [f(*scale)]
    attrs: dict[str, Any] = {"epsilon": 0.1, **({"num_branches": C} if flat else {})}
    same("BranchwiseRMSNorm", inputs, **attrs)
    if scale is None:
        same("BranchwiseRMSNorm", inputs, symbols={H: "H", C * H: "CH"}, **attrs)


@pytest.mark.parametrize(
    "op, inputs, outputs, attrs",
    [
        ("ScaledSiLU", [(B, S)], 1, {"alpha": 0.3}),
        ("ScaledSiLU", [(B, S), ()], 1, {}),
        ("GatedAdd", [(B, S, H), (B, S, H), (B, S, 1)], 1, {}),
        ("EngramGate", [(B, S, C, H), (B, S, C, H), (B, S, H), (C, H), (C, H)], 1, {}),
        ("EngramGate", [*[(B, S, C, H)] * 2, (B, S, H), *[(C, H)] * 3], 2, {"epsilon": 0.01}),
        ("LinearAttentionGate", [(B, S, H), (H,), (H,)], 1, {}),
        ("LinearAttentionGate", [(B, S, H), (H,), (H,), (B, S, H)], 2, {}),
    ],
)
def test_gates(op: str, inputs: list, outputs: int, attrs: dict) -> None:
    same(op, [np.asarray(f(*shape)) for shape in inputs], (FLOAT,) * outputs, **attrs)


@pytest.mark.parametrize("gate", [(C,), (C, 1), (C, H)], ids=str)
@pytest.mark.parametrize("flat", [False, True])
def test_hyper_connections(gate: tuple, flat: bool) -> None:
    x, attrs = (f(B, S, C * H), {"num_branches": C}) if flat else (f(B, S, C, H), {})
    same("HyperConnectionPreMix", [x, f(B, S, *gate)], reduction_scale=0.3, **attrs)
    same("HyperConnectionPostMix", [x, f(B, S, H), f(B, S, *gate)], **attrs)
    same("HyperConnectionPostMix", [x, f(B, S, H), f(B, S, *gate), f(B, S, C, C)], **attrs)


@pytest.mark.parametrize("op", ["HyperConnectionPreMix", "HyperConnectionPostMix"])
def test_gates_of_branches_whose_number_a_feed_tells(op: str) -> None:
    inputs = [f(B, S, C, H), f(B, S, H), f(B, S, C)]
    inputs = inputs if op.endswith("PostMix") else inputs[::2]
    model, feeds = one_node(op, inputs, (FLOAT,), symbols={C: "branches"})
    proto = onnx.load_from_string(model)
    proto.graph.input[-1].type.tensor_type.shape.dim[-1].dim_param = "gates"
    model = proto.SerializeToString()
    unit = float(np.finfo(np.float32).eps) * 2 * C  # C products and sums
    (wanted,) = theirs(model, feeds)
    scale = float(np.abs(wanted).max())
    np.testing.assert_allclose(Session(model).run(feeds)[0], wanted, rtol=0, atol=unit * scale)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("length", [1, 9])
def test_causal_conv(activation: str, dilation: int, past: bool, length: int) -> None:
    attrs = {"activation": activation, "dilation": dilation}
    weights = [f(6, 1, 4), f(6)]
    cache = [f(B, 6, 3 * dilation)] if past else []
    same("CausalConvWithState", [f(B, 6, length), *weights, *cache], (FLOAT, FLOAT), **attrs)
    cache = [f(B, 3 * dilation, 2, 3)] if past else []
    inputs = [f(B, length, 2, 3), *weights, *cache]
    same("CausalConvWithState", inputs, (FLOAT, FLOAT), channels_last=1, **attrs)


@pytest.mark.parametrize("symbols", [{6: "C", 4: "K"}, {6: "C"}, {4: "K", 9: "L"}], ids=str)
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_conv_of_fed_sizes(symbols: dict, past: bool, activation: str) -> None:
    attrs: dict[str, Any] = {"activation": activation, "dilation": 2, "symbols": symbols}
    for bias in (None, f(6)):
        inputs = [f(3, 6, 9), f(6, 1, 4), bias, *([f(3, 6, 6)] if past else [])]
        if not past:
            same("CausalConvWithState", inputs[: 2 if bias is None else 3], (FLOAT,) * 2, **attrs)
            continue
        attrs["symbols"] = {} if 6 in symbols else symbols  # a state of 6 rows of 6 channels
        same("CausalConvWithState", inputs, (FLOAT, FLOAT), **attrs)
    inputs = [f(3, 9, 6), f(6, 1, 4), None, *([f(3, 3, 6)] if past else [])]
    attrs |= {"dilation": 1, "symbols": symbols}
    same(
        "CausalConvWithState",
        inputs if past else inputs[:2],
        (FLOAT,) * 2,
        channels_last=1,
        **attrs,
    )


RULES = {"linear": (0, 0), "gated": (1, 0), "delta": (0, 1), "gated_delta": (1, 1)}


@pytest.mark.parametrize("update_rule", RULES)
@pytest.mark.parametrize("heads, shared", [(4, 4), (4, 2), (2, 4)])
@pytest.mark.parametrize("steps, past, per_key", [(1, True, False), (7, False, True)])
def test_linear_attention(
    update_rule: str, heads: int, shared: int, steps: int, past: bool, per_key: bool
) -> None:
    decays, differs = RULES[update_rule]
    for depth, depth_v in ((8, 70), (24, 5)):
        inputs = [f(B, steps, heads * depth), f(B, steps, shared * depth) / depth]
        inputs += [f(B, steps, shared * depth_v), f(B, shared, depth, depth_v) if past else None]
        width = shared * (depth if per_key else 1)
        inputs += [-np.abs(f(B, steps, width)) if decays else None]
        inputs += [np.abs(f(B, steps, 1 if per_key else shared)) if differs else None]
        while inputs[-1] is None:
            inputs.pop()
        attrs = {"q_num_heads": heads, "kv_num_heads": shared, "update_rule": update_rule}
        attrs.update({"scale": 0.5} if per_key else {})
        for symbols in ({steps: "T"}, {steps: "T", heads * depth: "width"}):
            same("LinearAttention", inputs, (FLOAT, FLOAT), symbols=symbols, **attrs)


@pytest.mark.parametrize("update_rule", RULES)
def test_linear_attention_of_halves(update_rule: str) -> None:
    """Beside a state of float32, which stays so."""
    decays, differs = RULES[update_rule]
    inputs: list[Any] = [f(B, 5, 8), f(B, 5, 8) / 4, f(B, 5, 6)]
    gates = [-np.abs(f(B, 5, 2)) if decays else None, np.abs(f(B, 5, 2)) if differs else None]
    for state in (f(B, 2, 4, 3), f(B, 2, 4, 3).astype(np.float16)):
        halves = [x if x is None else x.astype(np.float16) for x in (*inputs, *gates)]
        given = [*halves[:3], state, *halves[3:]]
        types = TensorProto.FLOAT16, helper.np_dtype_to_tensor_dtype(state.dtype)
        attrs = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": update_rule}
        same("LinearAttention", given, types, atol=2e-2, rtol=1e-2, **attrs)


@pytest.mark.parametrize("heads, values, keys", [(4, 4, 2), (2, 6, 3), (2, 4, 1), (4, 4, 1)])
def test_linear_attention_of_shared_keys(heads: int, values: int, keys: int) -> None:
    inputs = [f(B, 5, heads * 8), f(B, 5, keys * 8) / 8, f(B, 5, values * 6)]
    inputs += [f(B, values, 8, 6), -np.abs(f(B, 5, values)), np.abs(f(B, 5, values))]
    attrs = {"q_num_heads": heads, "kv_num_heads": values}
    for symbols in ({}, {5: "T"}):
        same("LinearAttention", inputs, (FLOAT, FLOAT), symbols=symbols, **attrs)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary(interleaved: int) -> None:
    tables, positions = [f(20, 8), f(20, 8)], RANDOM.integers(0, 20, (B, S))
    attrs = {"interleaved": interleaved}
    partly = {"num_heads": 4, "rotary_embedding_dim": 16}
    same("RotaryEmbedding", [f(B, S, 64), positions, *tables], **attrs)
    same("RotaryEmbedding", [f(B, 4, S, 16), positions, *tables], scale=2.0, **attrs)
    same("RotaryEmbedding", [f(B, S, 96), positions, *tables], **attrs, **partly)
    same("RotaryEmbedding", [f(B, S, 96), np.array([4]), *tables], **attrs, **partly)
    same("RotaryEmbedding", [f(B, S, 64), positions, *tables], is_packed_batching=1, **attrs)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    "layout, section",
    [(0, (3, 2, 3)), (0, (8, 0, 0)), (1, (3, 2, 3)), (1, (4, 2, 2)), (1, (3, 3, 2))],
)
def test_rotary_of_three_positions(layout: int, section: tuple, interleaved: int) -> None:
    rest = [RANDOM.integers(0, 20, (3, B, S)), f(20, 8), f(20, 8)]
    attrs = {"mrope_section": section, "mrope_layout": layout, "interleaved": interleaved}
    same("MRotaryEmbedding", [f(B, 4, S, 16), *rest], **attrs)
    partly = {"num_heads": 4, "rotary_embedding_dim": 16}
    same("MRotaryEmbedding", [f(B, S, 96), *rest], **attrs, **partly, scale=0.5)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_statistics(op: str) -> None:
    """Outputs that training looks at, beside the sum."""
    rows = [f(H), f(H)]
    for outputs in itertools.product((FLOAT,), *[(0, FLOAT)] * 3):
        kept = outputs[: max(i for i, dtype in enumerate(outputs) if dtype) + 1]
        same(op, [f(B, S, H), f(B, S, H), *rows], kept, symbols={S: "S"}, epsilon=1e-5)
    inputs = [f(B, S, H), f(H)]
    same("SimplifiedLayerNormalization", inputs, (FLOAT, FLOAT), domain="", epsilon=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [-1, -2, 0, 1])
def test_the_root_of_any_dtype_and_axis(dtype: Any, axis: int) -> None:
    """It is float32, which stash_type says, and is of the dims that are normalised. Two roundings
    of dtype, or sums of squares in float32.
    """
    shape = (B, S, H)
    inputs = [f(*shape).astype(dtype), f(*shape[axis:]).astype(dtype)]
    outputs = (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), FLOAT)
    unit = float(max(np.finfo(dtype).eps, B * S * H * np.finfo(np.float32).eps))
    for symbols in (None, {B: "B"}):
        given: dict[str, Any] = {"domain": "", "symbols": symbols, "rtol": unit, "atol": unit}
        same("SimplifiedLayerNormalization", inputs, outputs, axis=axis, **given)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_statistics_of_halves(op: str) -> None:
    """They are float32. Three roundings of float16, of the sum, the norm and the product."""
    half = TensorProto.FLOAT16
    inputs = [f(*shape).astype(np.float16) for shape in ((B, S, H), (B, S, H), (H,), (H,))]
    unit = 3 * float(np.finfo(np.float16).eps)
    same(op, inputs, (half, FLOAT, FLOAT, half), rtol=unit, atol=unit)


EXPERIMENTS = pytest.mark.parametrize(
    "op, inputs, attrs",
    [
        ("Affine", [f(2, 3)], {"alpha": 2.0, "beta": 0.5}),
        ("Crop", [f(1, 2, 6, 7)], {"border": [1, 2, 0, 1]}),
        ("Crop", [f(1, 2, 6, 7)], {"border": [1, 2, 0, 0], "scale": [3, 4]}),
        ("ImageScaler", [f(1, 2, 3, 4)], {"scale": 2.0, "bias": [0.5, -1.0]}),
        ("ParametricSoftplus", [f(2, 3)], {"alpha": 0.3, "beta": 2.0}),
        ("Scale", [f(2, 3)], {"scale": 3.0}),
        ("ScaledTanh", [f(2, 3)], {"alpha": 0.3, "beta": 2.0}),
        ("SimplifiedLayerNormalization", [f(2, 3), f(3)], {"epsilon": 0.1}),
    ],
)


@EXPERIMENTS
def test_experiments_of_the_standard_domain(op: str, inputs: list, attrs: dict) -> None:
    same(op, inputs, domain="", standard=9, **attrs)


@EXPERIMENTS
@pytest.mark.parametrize("dtype, tolerance", [(np.float16, 2e-3), (np.float64, 1e-6)])
def test_experiments_in_other_dtypes(
    op: str, inputs: list, attrs: dict, dtype: Any, tolerance: float
) -> None:
    """Their numbers have the dtype of x. onnxruntime has no kernels for these. Two or eight
    roundings of the dtype that is less precise, of float16 or of float32.
    """
    results = []
    for kind in (np.float32, dtype):
        given = [np.asarray(x, kind) for x in inputs]
        outputs = [helper.np_dtype_to_tensor_dtype(np.dtype(kind))]
        model, feeds = one_node(op, given, outputs, domain="", standard=9, **attrs)
        results.append(Session(model).run(feeds))
    for expected, actual in zip(*results):
        assert actual.dtype == dtype
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_other_names() -> None:
    for x, axis in itertools.product((f(2, 3), f()), (-1, 0)):
        for fixed in ((1,), ()):
            same("ExpandDims", [x, np.array(axis, np.int32)], fixed=fixed)
    same("Trilu", [f(2, 3, 3), np.array(1)], upper=1)
    for kind in (np.int32, np.int64):
        same("GatherND", [f(2, 3), np.array([[1, 2], [0, 1]], kind)])
    same("Pad", [f(2, 3), np.array([[1, 0, 2, 1]]), np.array(2.0, np.float32)], fixed=(1, 2))
    same("Range", [np.array(2.0, np.float32), np.array(9.0, np.float32)], fixed=(0, 1))
    same("SampleOp", [f(2, 3)])
    for mode in ("bilinear", "nearest", "bicubic"):
        same("GridSample", [f(1, 2, 5, 6), f(1, 3, 4, 2)], mode=mode)
