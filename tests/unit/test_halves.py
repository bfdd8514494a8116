"""Weights that are numbers of 16 bits: which are, and that results are those of floats."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import q7x2_ep
from q7x2_ep import dtypes, importer, passes
from q7x2_ep.dtypes import BFLOAT16, DTYPES, FLOAT, FLOAT16, INT64
from q7x2_ep.ops.lazy import Widened
from q7x2_ep.plan.halves import CHUNK, narrowest
from tests.api.models import info, model, node
from tests.kernels.harness import rounded_to


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_what_16_bits_hold(dtype):
    x = rounded_to(dtype, normal(300, 3) * {FLOAT16: 1, BFLOAT16: 2.0**40}[dtype])
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


def product(w: np.ndarray, dtype: int = FLOAT) -> bytes:
    """y = Relu(x @ w)."""
    nodes = [node("MatMul", "x w", "p"), node("Relu", "p", "y")]
    x, y = info("x", ["n", w.shape[0]], dtype), info("y", ["n", w.shape[1]], dtype)
    return model(nodes, [x], [y], [numpy_helper.from_array(w, "w")])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("rows", [1, 3, 16, 130])
def test_bits_are_those_of_floats_in_half_the_memory(dtype, rows):
    w = rounded_to(dtype, normal(320, 200))
    other = w.copy()
    other[0, -1] = np.float32(1 / 3)
    x = normal(rows, 320)
    sessions = [q7x2_ep.InferenceSession(product(each)) for each in (w, other)]
    (narrow,), (wide,) = (each.run(None, {"x": x}) for each in sessions)
    np.testing.assert_array_equal(narrow[:, :-1].view(np.int32), wide[:, :-1].view(np.int32))
    packed = [each.memory_report().packed for each in sessions]
    assert packed[0] == packed[1] // 2


def test_models_of_16_bits_keep_their_weights():
    w = normal(256, 192).astype(np.float16)  # whole panels of any kernel
    made = q7x2_ep.InferenceSession(product(w, FLOAT16))
    assert made.memory_report().packed == w.nbytes
    x = normal(5, 256).astype(np.float16)
    wanted = np.maximum(x.astype(np.float64) @ w.astype(np.float64), 0)
    (y,) = made.run(None, {"x": x})
    assert (np.abs(y - wanted) <= 2**-11 * wanted + 1e-4).all()  # rounded once, to float16


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("turned", ["no", "by a node", "by the product"])
def test_weights_are_packed_as_they_lie(dtype, joined, turned, monkeypatch):
    """One by itself and three that are joined, none of which is ever in float32."""
    kind = DTYPES[dtype].numpy
    ws = [rounded_to(dtype, normal(64, 70 + i)) for i in range(3 if joined else 1)]
    nodes, weights = [], []
    for i, w in enumerate(ws):
        stored = (w if turned == "no" else w.T).astype(kind)
        weights.append(numpy_helper.from_array(stored, f"w{i}"))
        if turned == "by a node":
            nodes += [node("Transpose", f"w{i}", f"t{i}"), node("MatMul", f"x t{i}", f"y{i}")]
        elif turned == "by the product":
            nodes += [node("Gemm", f"x w{i}", f"y{i}", transB=1)]
        else:
            nodes += [node("MatMul", f"x w{i}", f"y{i}")]
    outputs = [info(f"y{i}", ["n", w.shape[1]], dtype) for i, w in enumerate(ws)]
    data = model(nodes, [info("x", ["n", 64], dtype)], outputs, weights)
    monkeypatch.setattr(Widened, "whole", property(lambda each: pytest.fail("made whole")))
    made = q7x2_ep.InferenceSession(data)
    x = rounded_to(dtype, normal(5, 64))
    for y, w in zip(made.run(None, {"x": x.astype(kind)}), ws):
        wanted = x.astype(np.float64) @ w
        size = np.abs(x).astype(np.float64) @ np.abs(w)
        bound = dtypes.epsilon(dtype) / 2 * np.abs(wanted) + 64 * 2.0**-24 * size
        assert (np.abs(y.astype(np.float64) - wanted) <= bound).all()


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_weights_that_are_not_finite(dtype, odd):
    kind = DTYPES[dtype].numpy
    w = rounded_to(dtype, normal(64, 40))
    w[3, 7] = odd
    x = np.abs(normal(2, 64)).astype(kind)
    (y,) = q7x2_ep.InferenceSession(product(w.astype(kind), dtype)).run(None, {"x": x})
    wide, narrow = y.astype(np.float32), w.astype(np.float64)
    assert not np.isfinite(wide[:, 7]).any()
    wanted = np.maximum(np.delete(x.astype(np.float64) @ narrow, 7, axis=1), 0)
    bound = dtypes.epsilon(dtype) / 2 * wanted + 64 * 2.0**-24 * 64 * 16
    assert (np.abs(np.delete(wide, 7, axis=1) - wanted) <= bound).all()


def test_a_large_table_is_not_widened():
    table = normal(4096, 64).astype(np.float16)
    nodes = [node("Gather", "table i", "rows"), node("Mul", "rows rows", "y")]
    i, y = info("i", ["n"], INT64), info("y", ["n", 64], FLOAT16)
    weights = [numpy_helper.from_array(table, "table")]
    made = q7x2_ep.InferenceSession(model(nodes, [i], [y], weights))
    i = np.array([0, 4095, 7, 7])
    wanted = (table[i].astype(np.float64) ** 2).astype(np.float16)
    np.testing.assert_array_equal(made.run(None, {"i": i})[0], wanted)
    held = made.memory_report()
    assert held.weights + held.mapped_weights < 2 * table.nbytes


def test_what_is_only_moved_is_not_widened():
    nodes = [
        node("Transpose", "x", "t"),
        node("Flatten", "t", "moved"),
        node("Transpose", "x", "u", perm=[0, 2, 1]),
        node("Mul", "u u", "made"),
        node("Flatten", "u", "seen"),
    ]
    outputs = [info(name, None, FLOAT16) for name in ("t", "moved", "made", "seen")]
    data = model(nodes, [info("x", [3, 5, "n"], FLOAT16)], outputs)
    graph = importer.read(data)
    passes.run_all(graph)
    users = {user.op for user in graph.inputs[0].users}
    assert users == {"Transpose", "Cast"}  # the one that is moved, and the other
    x = normal(3, 5, 70).astype(np.float16)
    t, u = x.T, x.transpose(0, 2, 1)
    wanted = t, t.reshape(70, 15), u * u, u.reshape(3, 350)
    for got, y in zip(q7x2_ep.InferenceSession(data).run(None, {"x": x}), wanted):
        np.testing.assert_array_equal(got, y, strict=True)
