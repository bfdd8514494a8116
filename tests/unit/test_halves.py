"""Weights that are numbers of 16 bits: which are, and that results are those of floats."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.dtypes import BFLOAT16, FLOAT, FLOAT16
from q7x2_ep.plan.halves import CHUNK, narrowest

TILES = load().target.kernel("gemm").multiplies_floats_in_tiles


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def rounded(x: np.ndarray, dtype: int) -> np.ndarray:
    if dtype == FLOAT16:
        return x.astype(np.float16).astype(np.float32)
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_what_16_bits_hold(dtype):
    x = rounded(normal(300, 3) * np.float32({FLOAT16: 1, BFLOAT16: 2.0**40}[dtype]), dtype)
    for array in (x, x.T, x[::2], np.asfortranarray(x), x.reshape(-1)):
        assert narrowest([array]) == dtype
    assert narrowest([x, normal(4)]) == FLOAT
    of_other = {FLOAT16: 2.0**100, BFLOAT16: 1 + 2.0**-10}[dtype]
    assert narrowest([x, np.array([of_other], np.float32)]) == FLOAT
    last = np.tile(x.reshape(-1), CHUNK // x.size + 2)
    last[-1] = np.float32(1 / 3)
    assert narrowest([last]) == FLOAT


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.0, -0.0, 1.0, np.inf, np.nan, 3e38 - 3e38], BFLOAT16),
        ([1.0, 1 + 2.0**-10], FLOAT16),
        ([1 + 2.0**-10, 65504.0, -(2.0**-24), 2.0**-14 - 2.0**-24], FLOAT16),
        ([1 + 2.0**-10, 65536.0], FLOAT),
        ([1 + 2.0**-10, np.inf], FLOAT),
        ([1 + 2.0**-10, np.nan], FLOAT),
        ([1 + 2.0**-10, 2.0**-25], FLOAT),
        ([1 + 2.0**-10, 3 * 2.0**-25], FLOAT),
        ([1 + 2.0**-11], FLOAT),
        ([], BFLOAT16),
    ],
)
def test_limits(values, dtype):
    assert narrowest([np.array(values, np.float32)]) == dtype


def model(w: np.ndarray, dtype: int = TensorProto.FLOAT) -> bytes:
    """y = Relu(x @ w)."""
    given = [helper.make_tensor_value_info("x", dtype, ["n", w.shape[0]])]
    made = [helper.make_tensor_value_info("y", dtype, ["n", w.shape[1]])]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    weights = [numpy_helper.from_array(w, "w")]
    graph = helper.make_graph(nodes, "g", given, made, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


@pytest.mark.skipif(TILES, reason="tiles of AMX multiply packed floats")
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("rows", [1, 3, 16, 130])
def test_bits_are_those_of_floats_in_half_the_memory(dtype, rows):
    w = rounded(normal(300, 200), dtype)
    other = w.copy()
    other[0, -1] = np.float32(1 / 3)
    x = normal(rows, 300)
    sessions = [q7x2_ep.InferenceSession(model(each)) for each in (w, other)]
    (narrow,), (wide,) = (session.run(None, {"x": x}) for session in sessions)
    np.testing.assert_array_equal(narrow[:, :-1].view(np.int32), wide[:, :-1].view(np.int32))
    packed = [session.memory_report().packed for session in sessions]
    assert packed[0] == packed[1] // 2


@pytest.mark.skipif(TILES, reason="tiles of AMX multiply packed floats")
def test_models_of_16_bits_keep_their_weights():
    w = normal(256, 128).astype(np.float16)
    session = q7x2_ep.InferenceSession(model(w, TensorProto.FLOAT16))
    assert session.memory_report().packed == w.nbytes
    x = normal(5, 256).astype(np.float16)
    wanted = np.maximum(x.astype(np.float64) @ w.astype(np.float64), 0)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=2**-10, atol=1e-3)


def test_a_large_table_is_not_widened():
    table = normal(4096, 64).astype(np.float16)
    given = [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["n", 64])]
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Mul", ["rows", "rows"], ["y"]),
    ]
    weights = [numpy_helper.from_array(table, "table")]
    graph = helper.make_graph(nodes, "g", given, made, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = q7x2_ep.InferenceSession(proto.SerializeToString())
    i = np.array([0, 4095, 7, 7])
    wanted = (table[i].astype(np.float64) ** 2).astype(np.float16)
    np.testing.assert_array_equal(session.run(None, {"i": i})[0], wanted)
    held = session.memory_report()
    assert held.weights + held.mapped_weights < 2 * table.nbytes
