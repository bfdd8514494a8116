"""SparseToDenseMatMul, of sparse tensors that are fed, beside onnxruntime."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
from onnx import helper

import q7x2_ep
from q7x2_ep.errors import BindingError

SIZE = 4  # of square matrices: onnxruntime's check of sizes knows nothing of transA and transB


def model(dtype: Any, shape: Optional[tuple] = (SIZE, SIZE), **attrs: Any) -> bytes:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], "", None, "com.microsoft")
    node.attribute.extend(helper.make_attribute(key, value) for key, value in attrs.items())
    inputs = [
        helper.make_sparse_tensor_value_info("a", code, shape),
        helper.make_tensor_value_info("b", code, shape and (shape[1], 3 if shape[1] > 4 else 4)),
    ]
    output = helper.make_tensor_value_info("y", code, None)
    graph = helper.make_graph([node], "sparse", inputs, [output])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def sparse(engine: Any, x: np.ndarray, form: str) -> Any:
    """An OrtValue of the elements of x that are not 0."""
    device = engine.OrtDevice.make("cpu", 0)
    rows, columns = map(np.ascontiguousarray, np.nonzero(x))
    values, shape = x[rows, columns], list(x.shape)
    if form == "rows":
        ends = np.append(0, np.cumsum(np.count_nonzero(x, 1)))
        tensor = engine.SparseTensor.sparse_csr_from_numpy(shape, values, columns, ends, device)
    else:
        at = np.stack((rows, columns), 1) if form == "places" else rows * x.shape[1] + columns
        tensor = engine.SparseTensor.sparse_coo_from_numpy(shape, values, at, device)
    return engine.OrtValue.ort_value_from_sparse_tensor(tensor)


def result(engine: Any, data: bytes, a: np.ndarray, b: np.ndarray, form: str) -> np.ndarray:
    session = engine.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].type.startswith("sparse_tensor")
    return session.run(None, {"a": sparse(engine, a, form), "b": b})[0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("form", ["rows", "places"])
@pytest.mark.parametrize("swaps", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("alpha", [1.0, 3.0, 2.5])
def test_products(dtype: str, form: str, swaps: tuple[int, int], alpha: float) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(len(dtype))
    a, b = (random.integers(1, 9, (SIZE, SIZE)).astype(dtype) for _ in range(2))
    a[random.random(a.shape) < 0.6] = 0
    data = model(dtype, transA=swaps[0], transB=swaps[1], alpha=alpha)
    wanted = result(onnxruntime, data, a, b, form)
    actual = result(q7x2_ep, data, a, b, form)
    assert actual.dtype == wanted.dtype
    np.testing.assert_allclose(actual, wanted, rtol=1e-6)


@pytest.mark.parametrize("form", ["rows", "places", "flat"])
@pytest.mark.parametrize("shape", [(2, 5), (1, 7), (3, 6)])
def test_sizes(form: str, shape: tuple[int, int]) -> None:
    """Flat places as well, which this op of onnxruntime does not take."""
    onnxruntime = pytest.importorskip("onnxruntime")
    a = np.eye(*shape, k=1, dtype=np.float32) * 3
    b = np.arange(shape[1] * 3, dtype=np.float32).reshape(-1, 3)
    actual = result(q7x2_ep, model(np.float32, shape), a, b, form)
    np.testing.assert_array_equal(actual, a @ b)
    np.testing.assert_array_equal(result(q7x2_ep, model(np.float32, None), a, b, form), a @ b)
    if form != "flat":
        wanted = result(onnxruntime, model(np.float32, shape), a, b, form)
        np.testing.assert_array_equal(actual, wanted)


def test_places_that_are_not_there() -> None:
    at = np.array([[0, 0], [9, 0]])
    device = q7x2_ep.OrtDevice.make("cpu", 0)
    values = np.ones(2, np.float32)
    tensor = q7x2_ep.SparseTensor.sparse_coo_from_numpy([SIZE, SIZE], values, at, device)
    feeds = {
        "a": q7x2_ep.OrtValue.ort_value_from_sparse_tensor(tensor),
        "b": np.ones((SIZE, 4), np.float32),
    }
    with pytest.raises(BindingError, match=r"do not fit a tensor of shape \[4, 4\]"):
        q7x2_ep.InferenceSession(model(np.float32)).run(None, feeds)
