"""Weights of a few bits: MatMulNBits beside onnxruntime, DequantizeLinear by blocks in front of
products, and both in 16-bit models."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep import dtypes
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.compare import OutputError, onnxruntime_session

DTYPES = {"float32": TensorProto.FLOAT, "float16": 10, "bfloat16": 16}
EPS = {name: dtypes.epsilon(code) for name, code in DTYPES.items()}


def packed(q: np.ndarray, bits: int) -> np.ndarray:
    """Rows of elements as rows of bytes, the first in the lowest bits."""
    stream = np.unpackbits(q.astype(np.uint8)[..., None], axis=-1, bitorder="little")[..., :bits]
    return np.packbits(stream.reshape(*q.shape[:-1], -1), axis=-1, bitorder="little")


def model_of(
    nodes: list[Any], x: str, y: str, shape: list[Any], dtype: str, weights: dict[str, np.ndarray]
) -> bytes:
    infos = [
        helper.make_tensor_value_info(name, DTYPES[dtype], dims)
        for name, dims in ((x, shape), (y, None))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "blocks", infos[:1], infos[1:], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def nbits(
    K: int,
    N: int,
    bits: int,
    block: int,
    zeros: str = "none",
    bias: bool = False,
    order: Optional[str] = None,
    dtype: str = "float32",
    level: int = 0,
) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A model of one MatMulNBits, its weight (K, N) and its bias in float64."""
    rng = np.random.default_rng(K * N + bits)
    blocks = -(-K // block)
    q = rng.integers(0, 1 << bits, (N, blocks * block))
    own = np.dtype(dtypes.BY_NUMPY[dtype].numpy)
    scales = (rng.random((N, blocks)) + 0.5).astype(np.float32).astype(own)
    zero = np.full((N, blocks), float(1 << bits - 1))
    weights = {"b": packed(q, bits).reshape(N, blocks, -1), "scales": scales.reshape(-1)}
    names = ["x", "b", "scales", "", "", ""]
    if zeros == "packed":
        zero = rng.integers(0, 1 << bits, (N, blocks)).astype(float)
        width = -(-blocks * bits // 8) * 8 // bits
        weights["zero"] = packed(np.pad(zero, ((0, 0), (0, width - blocks))), bits).reshape(-1)
    elif zeros == "float":
        zero = (rng.random((N, blocks)) * 9).astype(np.float32).astype(own).astype(float)
        weights["zero"] = zero.astype(own)
    names[3] = "zero" * (zeros != "none")
    groups = np.arange(blocks * block) // block
    if order is not None:
        groups = groups if order == "trivial" else rng.permutation(groups)
        weights["order"] = groups.astype(np.int32)[: None if order == "padded" else K]
        names[4] = "order"
    added = rng.standard_normal(N).astype(np.float32).astype(own)
    if bias:
        weights["bias"] = added
        names[5] = "bias"
    while not names[-1]:
        names.pop()
    attrs = {"K": K, "N": N, "bits": bits, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
    real = ((q - zero[:, groups]) * scales.astype(float)[:, groups])[:, :K]
    model = model_of([node], "x", "y", ["B", "S", K], dtype, weights)
    return model, real.T, added.astype(float) * bias


def check(
    model: bytes,
    weight: np.ndarray,
    bias: np.ndarray,
    dtype: str = "float32",
    rows: int = 3,
    batch: int = 2,
) -> np.ndarray:
    """Runs the model natively, within the rounding of sums of k products."""
    K = len(weight)
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((batch, rows, K)).astype(dtypes.BY_NUMPY[dtype].numpy)
    with q7x2_ep.InferenceSession(model) as session:
        ops = [step.op for step in session._session.plan.steps]  # one plan: nothing on the host
        (y,) = session.run(None, {"x": x})
    assert "block_gemm" in ops or "gemm" in ops
    wide = x.astype(float)
    true = wide @ weight + bias
    scale = np.abs(wide) @ np.abs(weight) + np.abs(bias)
    error = np.abs(y.astype(float) - true)
    assert (error <= 2.0**-23 * 4 * np.sqrt(K) * scale + EPS[dtype] / 2 * np.abs(true)).all()
    return x


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize("K, N, block", [(64, 48, 16), (96, 33, 32), (300, 7, 128), (512, 64, 64)])
def test_nbits(K: int, N: int, block: int, zeros: str, bits: int) -> None:
    for rows in (1, 40):
        check(*nbits(K, N, bits, block, zeros, bias=N % 2 == 1), rows=rows)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 400),
    st.integers(1, 90),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([16, 32, 64]),
    st.integers(0, 20),
)
def test_nbits_of_any_size(K: int, N: int, bits: int, block: int, rows: int) -> None:
    check(*nbits(K, N, bits, block, "packed"), rows=rows)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    "K, N, block",
    [(1056, 129, 32), (2100, 150, 64), (1500, 130, 512), (2000, 9, 1024), (160, 300, 2048)],
)
def test_nbits_of_many_blocks(K: int, N: int, block: int, bits: int) -> None:
    """AMX multiplies 16 rows by a block, and 1024 of k and 160 rows at a time."""
    for batch, rows in ((2, 4), (2, 12), (1, 33), (2, 33), (2, 100)):
        check(*nbits(K, N, bits, block, "packed", bias=True), rows=rows, batch=batch)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed"])
def test_a_row_of_nbits_depends_on_no_other_and_on_no_thread(bits: int, zeros: str) -> None:
    model, weight, bias = nbits(1120, 300, bits, 32, zeros, bias=True)
    x = np.random.default_rng(3).standard_normal((1, 90, 1120)).astype(np.float32)
    with q7x2_ep.InferenceSession(model) as session:
        (whole,) = session.run(None, {"x": x})
        (few,) = session.run(None, {"x": x[:, :70]})
        x[0, 7], x[0, 9, 1100], x[0, 11, 3] = x[0, 7] * 2.0**-90, np.inf, np.nan
        (odd,) = session.run(None, {"x": x})
    options = q7x2_ep.SessionOptions()
    options.intra_op_num_threads = 3
    with q7x2_ep.InferenceSession(model, options) as session:
        (shared,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(few, whole[:, :70])
    np.testing.assert_array_equal(shared, odd)
    same = np.ones(90, bool)
    same[[7, 9, 11]] = False
    np.testing.assert_array_equal(odd[0, same], whole[0, same])
    assert not np.isfinite(odd[0, [9, 11]]).any()
    small = odd[0, 7].astype(float) - bias
    assert np.abs(small - x[0, 7].astype(float) @ weight).max() <= 1e-6 * np.abs(bias).max()


@pytest.mark.parametrize("order", ["trivial", "permuted", "padded"])
@pytest.mark.parametrize("K", [96, 90])
def test_nbits_in_another_order(K: int, order: str) -> None:
    check(*nbits(K, 20, 4, 32, "packed", order=order, bias=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nbits_in_16_bits(dtype: str) -> None:
    check(*nbits(128, 40, 4, 32, "packed", bias=True, dtype=dtype), dtype)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed"])
def test_nbits_beside_onnxruntime(bits: int, zeros: str) -> None:
    pytest.importorskip("onnxruntime")
    model, weight, _ = nbits(256, 96, bits, 32, zeros)
    x = np.random.default_rng(3).standard_normal((2, 17, 256)).astype(np.float32)
    true = x.astype(float) @ weight
    (theirs,) = onnxruntime_session(model, 1).run(None, {"x": x})
    with q7x2_ep.InferenceSession(model) as session:
        (ours,) = session.run(None, {"x": x})
    assert OutputError.of("y", ours, theirs, true).accurate


def run(model: bytes, x: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The ops of the plan and y."""
    with q7x2_ep.InferenceSession(model) as session:
        (y,) = session.run(None, {"x": x})
        return [step.op for step in session._session.plan.steps], y


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed"])
def test_rows_of_int8_beside_onnxruntime(bits: int, zeros: str, block: int, rows: int) -> None:
    """Rows are rounded only where onnxruntime rounds them, too."""
    pytest.importorskip("onnxruntime")
    model, weight, bias = nbits(300, 33, bits, block, zeros, bias=True, level=4)
    x = np.random.default_rng(3).standard_normal((2, rows, 300)).astype(np.float32)
    true = x.astype(float) @ weight + bias
    (theirs,) = onnxruntime_session(model, 1).run(None, {"x": x})
    _, ours = run(model, x)
    assert OutputError.of("y", ours, theirs, true).accurate


@pytest.mark.parametrize("level", [1, 2, 3])
def test_other_levels_multiply_floats(level: int) -> None:
    x = np.random.default_rng(3).standard_normal((2, 9, 96)).astype(np.float32)
    ops, y = run(nbits(96, 33, 4, 32, "packed", level=level)[0], x)
    assert ops == ["block_gemm"]
    assert y.tobytes() == run(nbits(96, 33, 4, 32, "packed")[0], x)[1].tobytes()


def test_rows_of_int8_where_bytes_multiply() -> None:
    x = np.random.default_rng(3).standard_normal((2, 9, 96)).astype(np.float32)
    bytes_multiply = load().target.kernel("qgemm").dtypes != "i16"
    for zeros, is_byte in (("none", True), ("packed", True), ("float", False)):
        ops, _ = run(nbits(96, 33, 4, 32, zeros, level=4)[0], x)
        assert ops == ["block_qgemm" if is_byte and bytes_multiply else "block_gemm"]


WEIGHTS = ["uint8", "int8", "uint4", "int4", "uint2", "int2"]
LEVEL = "session.qdq_matmulnbits_accuracy_level"


def dequantised(
    name: str, dtype: str, form: str, block: int = 16, bias_shape: tuple[int, ...] = (24,)
) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A product by a weight that is dequantised by blocks, the weight (K, N) and the bias."""
    K, N = 96, 24
    rng = np.random.default_rng(5)
    row, own = dtypes.BY_NUMPY[name], dtypes.BY_NUMPY[dtype].numpy
    low, high = (-(2 ** (row.bits or 8)) // 2, 0) if row.kind == "i" else (0, 0)
    high = low + 2 ** (row.bits or 8)
    q, zero = rng.integers(low, high, (K, N)), rng.integers(low, high, (K // block, N))
    scale = (rng.random((K // block, N)) + 0.5).astype(own)
    bias = rng.standard_normal(bias_shape).astype(own)
    weight = (q - np.repeat(zero, block, 0)) * np.repeat(scale.astype(float), block, 0)
    arrays = {"w": q.astype(row.numpy), "scale": scale, "zero": zero.astype(row.numpy)}
    is_turned = form in ("turned", "gemm turned")
    if is_turned:
        arrays = {key: np.ascontiguousarray(array.T) for key, array in arrays.items()}
    arrays["bias"] = bias
    node = helper.make_node
    axis = int(is_turned)
    nodes = [node("DequantizeLinear", [*arrays][:3], ["d"], axis=axis, block_size=block)]
    if form.startswith("gemm"):
        nodes.append(node("Gemm", ["x", "d", "bias"], ["y"], transB=axis))
    else:
        if is_turned:
            nodes.append(node("Transpose", ["d"], ["t"], perm=[1, 0]))
        nodes.append(node("MatMul", ["x", "t" if is_turned else "d"], ["p"]))
        nodes.append(node("Add", ["p", "bias"], ["y"]))
    return model_of(nodes, "x", "y", ["S", K], dtype, arrays), weight, bias.astype(float)


@pytest.mark.parametrize("form", ["plain", "turned", "gemm", "gemm turned"])
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dequantised_by_blocks(dtype: str, name: str, form: str) -> None:
    model, weight, bias = dequantised(name, dtype, form)
    x = np.random.default_rng(6).standard_normal((9, 96)).astype(dtypes.BY_NUMPY[dtype].numpy)
    true = x.astype(float) @ weight + bias
    with q7x2_ep.InferenceSession(model) as session:
        ops = [step.op for step in session._session.plan.steps if step.op != "cast"]
        (y,) = session.run(None, {"x": x})
    assert ops == ["block_gemm"]
    error = np.sqrt(np.mean((y.astype(float) - true) ** 2))
    assert error <= max(EPS[dtype], 1e-6) * np.sqrt(np.mean(true**2))


@pytest.mark.parametrize(
    "form, block, bias, is_byte",
    [
        ("plain", 16, (24,), True),
        ("plain", 32, (24,), True),
        ("plain", 8, (24,), False),
        ("plain", 48, (24,), False),
        ("turned", 16, (24,), False),
        ("gemm", 16, (24,), True),
        ("gemm", 16, (1, 24), False),
        ("gemm turned", 16, (24,), False),
    ],
)
@pytest.mark.parametrize("name", ["uint4", "int4"])
def test_dequantised_rows_of_int8(
    name: str, form: str, block: int, bias: tuple[int, ...], is_byte: bool
) -> None:
    """Where it is asked for, and onnxruntime makes a MatMulNBits of what it is."""
    pytest.importorskip("onnxruntime")
    model, weight, added = dequantised(name, "float32", form, block, bias)
    x = np.random.default_rng(6).standard_normal((9, 96)).astype(np.float32)
    true = x.astype(float) @ weight + added
    (theirs,) = onnxruntime_session(model, 1).run(None, {"x": x})
    options = q7x2_ep.SessionOptions()
    options.add_session_config_entry(LEVEL, "4")
    with q7x2_ep.InferenceSession(model, options) as session:
        ops = [step.op for step in session._session.plan.steps]
        (ours,) = session.run(None, {"x": x})
    bytes_multiply = load().target.kernel("qgemm").dtypes != "i16"
    assert ops == ["block_qgemm" if is_byte and bytes_multiply else "block_gemm"]
    assert OutputError.of("y", ours, theirs, true).accurate


@pytest.mark.parametrize("level", list(q7x2_ep.GraphOptimizationLevel))
def test_what_rows_may_be_rounded_to_is_not_written(level: int) -> None:
    """DequantizeLinear has no attribute for it."""
    pytest.importorskip("onnxruntime")
    model, *_ = dequantised("uint4", "float32", "turned", block=8)
    options = q7x2_ep.SessionOptions()
    options.add_session_config_entry(LEVEL, "4")
    compiler = q7x2_ep.ModelCompiler(options, model, graph_optimization_level=level)
    assert onnxruntime_session(compiler.compile_to_bytes(), 1).get_outputs()


def test_weights_that_are_computed_run_on_the_host() -> None:
    """Only constants are packed."""
    model = onnx.load_model_from_string(nbits(64, 8, 4, 32)[0])
    weight = next(t for t in model.graph.initializer if t.name == "b")
    model.graph.input.append(
        helper.make_tensor_value_info("b", TensorProto.UINT8, list(weight.dims))
    )
    model.graph.initializer.remove(weight)
    b = numpy_helper.to_array(weight)
    x = np.random.default_rng(0).standard_normal((1, 3, 64)).astype(np.float32)
    with q7x2_ep.InferenceSession(model.SerializeToString()) as session:
        (y,) = session.run(None, {"x": x, "b": b})
    real = nbits(64, 8, 4, 32)[1]
    np.testing.assert_allclose(y, x @ real, rtol=1e-4, atol=1e-4)
