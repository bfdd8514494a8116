"""Ops of com.microsoft over packed sequences beside onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any, Optional

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from q7x2_ep.errors import DataError, ModelError, UnsupportedOp
from q7x2_ep.session import Session
from tests.models.beside import one_node, same, theirs

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
ENDS = np.array([0, 1, 6, 9], np.int32)  # one of a single token
B, N = len(ENDS) - 1, int(ENDS[-1])
COUNT = np.array([3, 2, -1], np.int32)


def f(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("taps, dilation", [(3, 1), (2, 3), (1, 1)])
@pytest.mark.parametrize("activation, has_bias", [("none", True), ("silu", False), ("swish", True)])
def test_conv(dtype: Any, taps: int, dilation: int, activation: str, has_bias: bool) -> None:
    C, onnx_type = 4, TensorProto.DataType.Value(np.dtype(dtype).name.upper().replace("32", ""))
    inputs: list[Optional[np.ndarray]] = [f(1, N, C), f(2, C, 1, taps), None]
    inputs += [f(3, C) if has_bias else None, f(4, B, C, (taps - 1) * dilation)]
    inputs = [None if x is None else x.astype(dtype) for x in inputs]
    inputs[2] = ENDS
    attrs: dict[str, Any] = {"activation": activation, "dilation": dilation}
    tolerance = {"atol": 2e-2, "rtol": 1e-2} if dtype != np.float32 else {}
    types = (onnx_type,) * 3
    same("VarlenCausalConvWithState", inputs, types[:2], **attrs, **tolerance)
    attrs["state_update_capacity"] = 2
    same("VarlenCausalConvWithState", [*inputs, COUNT], types, symbols={N: "N"}, **attrs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("most", [2, 3, 4])
@pytest.mark.parametrize("resets", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_hashes(dtype: Any, most: int, resets: int, packed: bool) -> None:
    """Over every choice of optional inputs; few different tokens, so that eos comes often."""
    op, onnx_type = "VarlenNGramHashMapping" if packed else "NGramHashMapping", INT64
    onnx_type = INT32 if dtype == np.int32 else INT64
    for given in itertools.product((False, True), repeat=4):
        random = np.random.default_rng([most, resets, *given])
        shape, rows, width = ((N,), B, 2 * (most - 1)) if packed else ((2, 5), 2, 2 * (most - 1))
        ids = random.integers(0, 4, shape)
        numbers = [
            random.integers(2**28, 2**31 - 1, most + 1),
            random.integers(3, 99, width),
            random.integers(0, 4, (rows, most - 1)) if given[0] else None,
            random.integers(2**30, 2**31 - 1, width) if given[1] else None,
            np.array(2) if given[2] else None,
        ]
        inputs = [None if x is None else x.astype(dtype) for x in (ids, *numbers)]
        inputs.append(random.integers(0, 2, shape).astype(np.int32) if given[3] else None)
        outputs = [onnx_type, onnx_type]
        attrs = {"max_ngram_size": most, "n_head_per_ngram": 2, "pad_id": 7, "reset_on_eos": resets}
        if packed:
            inputs.insert(3, ENDS)
            if given[3]:
                inputs.append(random.integers(0, 2, (B, most - 1)).astype(np.int32))
                outputs.append(INT32)
                same(op, inputs[:-1], outputs, **attrs)
                inputs.append(COUNT)
                same(op, inputs, [*outputs, onnx_type], state_update_capacity=2, **attrs)
                inputs.pop()
        same(op, inputs, outputs, **attrs)
        same(op, inputs, outputs[:1], symbols={N: "N", 5: "S"}, **attrs)


def net(seed: int, per_key: bool = False, rule: str = "gated_delta") -> list:
    """query, key, value, ends, decay, beta and a state, with keys of the norm 1."""
    Hq, Hv, D, Dv = 2, 4, 5, 3
    key = f(seed + 1, N, Hq, D)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    decay = -np.abs(f(seed + 3, N, Hv, D) if per_key else f(seed + 3, N, Hv))
    return [
        *(f(seed, N, Hq, D), key, f(seed + 2, N, Hv, Dv), ENDS),
        decay if rule.startswith("gated") else None,
        np.abs(f(seed + 4, N, Hv)) % 1 if rule.endswith("delta") else None,
        f(seed + 5, B, Hv, Dv, D),
    ]


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_net(rule: str, per_key: bool, dtype: Any) -> None:
    inputs = net(7, per_key, rule)
    onnx_type = TensorProto.DataType.Value(np.dtype(dtype).name.upper().replace("32", ""))
    inputs[:3] = [x.astype(dtype) for x in inputs[:3] if x is not None]
    tolerance = {"atol": 3e-2, "rtol": 2e-2} if dtype != np.float32 else {}
    types = (onnx_type, FLOAT)
    for scale in (0.0, 0.7):
        same("GatedDeltaNet", inputs, types, update_rule=rule, scale=scale, **tolerance)
    inputs[4:6] = [x if x is None else x.astype(dtype) for x in inputs[4:6]]
    same("GatedDeltaNet", inputs, types[:1], symbols={N: "N"}, update_rule=rule, **tolerance)
    inputs[6] = None
    same("GatedDeltaNet", inputs, types, update_rule=rule, **tolerance)


@pytest.mark.parametrize("gate", ["none", "softplus", "qwen", "sigmoid", "kda"])
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("beta", ["none", "sigmoid"])
def test_gates(gate: str, per_key: bool, beta: str) -> None:
    inputs = net(3, per_key)
    attrs: dict[str, Any] = {"gate_activation": gate, "beta_activation": beta, "qk_l2_norm": 1}
    if gate == "none":
        same("GatedDeltaNet", inputs, (FLOAT, FLOAT), **attrs)
        return
    for shape in [(4, 5), (20,)] if per_key else [(4,)]:
        each = [*inputs, f(4, 4), f(5, *shape)]
        for ends in (ENDS, None):
            each[3] = ends
            same("GatedDeltaNet", each, (FLOAT, FLOAT), gate_lower_bound=-3.0, **attrs)


def test_small_keys() -> None:
    inputs = net(6)
    inputs[0], inputs[1] = inputs[0] * np.float32(1e-6), inputs[1] * np.float32(1e-5)
    same("GatedDeltaNet", inputs, (FLOAT, FLOAT), qk_l2_norm=1)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_net_of_equal_sequences(rule: str, per_key: bool, dtype: Any) -> None:
    """As one axis of tokens, and as two, which is no host step."""
    q, k, v, _, decay, beta, state = net(5, per_key, rule)
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    tolerance = {"atol": 3e-2, "rtol": 2e-2} if dtype != np.float32 else {}
    types = (FLOAT if dtype == np.float32 else TensorProto.FLOAT16, FLOAT)
    attrs: dict[str, Any] = {"update_rule": rule, "scale": 0.3, **tolerance}
    both = [x if x is None else x.reshape(B, N // B, *x.shape[1:]) for x in (q, k, v, decay, beta)]
    for x in ([q, k, v, None, decay, beta], [*both[:3], None, *both[3:]]):
        for symbols in ({}, {N: "N"}, {B: "B"}):
            session = same("GatedDeltaNet", [*x, state], types, symbols=symbols, **attrs)
            if not symbols:
                assert not session.program.host_phases


def test_net_of_one_operand() -> None:
    """Query, key and value behind one another."""
    q, k, v, _, decay, beta, state = net(5)
    packed = np.concatenate([x.reshape(N, -1) for x in (q, k, v)], 1)
    for ends in (None, ENDS):
        inputs = [packed, None, None, ends, decay, beta, state]
        same("GatedDeltaNet", inputs, (FLOAT, FLOAT))


@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_steps_of_net(per_key: bool, rule: str) -> None:
    """Those that were asked for: what is behind them is not defined."""
    inputs = [*net(9, per_key, rule), None, None, COUNT]
    types, attrs = (FLOAT,) * 3, {"state_update_capacity": 3, "update_rule": rule}
    model, feeds = one_node("GatedDeltaNet", inputs, types, **attrs)
    parts = []
    for results in (theirs(model, feeds), Session(model, threads=2).run(feeds)):
        update, rows = results[2], []
        widths = (20 if per_key and inputs[4] is not None else 4, 10, 12)
        for b, count in enumerate((1, 2, 0)):
            start = 0
            for n in widths:
                rows.append(update[b, start : start + 3 * n].reshape(3, n)[:count].ravel())
                start += 3 * n
        parts.append(np.concatenate(rows))
    np.testing.assert_allclose(parts[1], parts[0], 1e-4, 2e-5)
    same("GatedDeltaNet", [*inputs, np.zeros(1, np.int32)], types, **attrs)


def test_bfloat16() -> None:
    """Made of floats in the model and cast back, as onnxruntime takes no such array."""
    halves = TensorProto.BFLOAT16
    for op, inputs, cast in (
        ("GatedDeltaNet", net(3), (0, 1, 2, 4, 5)),
        ("GatedDeltaNet", [*net(3)[:3], None, *net(3)[4:]], (0, 1, 2)),
        (
            "VarlenCausalConvWithState",
            [f(1, N, 4), f(2, 4, 1, 3), ENDS, f(3, 4), f(4, B, 4, 2)],
            (0, 1, 3, 4),
        ),
    ):
        data, feeds = one_node(op, inputs, (halves, FLOAT if op == "GatedDeltaNet" else halves))
        model = onnx.load_from_string(data)
        graph, node = model.graph, model.graph.node[0]
        casts = [helper.make_node("Cast", [node.input[i]], [f"half{i}"], to=halves) for i in cast]
        for i in cast:
            node.input[i] = f"half{i}"
        back = [helper.make_node("Cast", [name], [f"{name}b"], to=FLOAT) for name in node.output]
        nodes = [*casts, node, *back]
        outputs = [helper.make_tensor_value_info(f"{name}b", FLOAT, None) for name in node.output]
        whole = helper.make_graph(nodes, "cast", graph.input, outputs)
        opsets = model.opset_import
        data = helper.make_model(whole, opset_imports=opsets, ir_version=10).SerializeToString()
        for y, wanted in zip(Session(data, threads=2).run(feeds), theirs(data, feeds)):
            np.testing.assert_allclose(y, wanted, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize(
    "ends, words", [([1, 4, 9], "expected 0 to 9"), ([0, 4, 4, 9], "empty"), ([0, 8], "to 9")]
)
def test_ends_that_do_not_fit(ends: list, words: str) -> None:
    state = f(1, len(ends) - 1, 4, 2)
    inputs = [f(2, N, 4), f(3, 4, 1, 3), np.array(ends, np.int32), None, state]
    model, feeds = one_node("VarlenCausalConvWithState", inputs, (FLOAT, FLOAT))
    with pytest.raises(DataError, match=words):
        Session(model).run(feeds)


def test_what_is_refused() -> None:
    inputs = [f(2, N, 4), f(3, 4, 1, 2), ENDS, None, f(1, B, 4, 1)]
    outputs = (FLOAT, FLOAT)
    op = "VarlenCausalConvWithState"
    with pytest.raises(UnsupportedOp, match="kernel_delta"):
        Session(one_node(op, [*inputs, None, f(1, N, 2, 4), f(1, N, 1)], outputs)[0])
    model, feeds = one_node(op, inputs, outputs, state_update_capacity=2)
    with pytest.raises(ModelError, match="no capture_count"):
        Session(model).run(feeds)
    for rule, words in (("linear", "takes no decay"), ("gated_delta", "needs beta")):
        inputs = net(1, rule="gated")
        with pytest.raises(ModelError, match=words):
            Session(one_node("GatedDeltaNet", inputs, outputs, update_rule=rule)[0])
    ids, small = np.arange(N), {"max_ngram_size": 2, "n_head_per_ngram": 1, "pad_id": 0}
    hashed = [ids.reshape(1, N), np.array([3, 5]), np.array([0])]
    model, feeds = one_node("NGramHashMapping", hashed, (INT64,), **small)
    with pytest.raises(DataError, match="vocab_sizes"):
        Session(model).run(feeds)
