"""One node of com.microsoft, run by us and by onnxruntime."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.session import Session

Inputs = Sequence[Optional[np.ndarray]]


def one_node(
    op: str,
    inputs: Inputs,
    outputs: Sequence[int],
    fixed: Collection[int] = (),
    symbols: Optional[Mapping[int, str]] = None,
    domain: str = "com.microsoft",
    standard: int = 20,
    **attrs: Any,
) -> tuple[bytes, dict[str, np.ndarray]]:
    """A model of one node, and feeds for it.

    inputs: None where left out; outputs: dtypes, 0 where left out; fixed: which inputs are
    constants; symbols: names of the dims of these sizes;
    standard: the version of the standard ops.
    """
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    given = {name: np.asarray(x) for name, x in zip(names, inputs) if x is not None}
    constants = [numpy_helper.from_array(given.pop(f"x{i}"), f"x{i}") for i in fixed]
    results = {f"y{i}": dtype for i, dtype in enumerate(outputs)}
    written = [name if dtype else "" for name, dtype in results.items()]
    node = helper.make_node(op, names, written, domain=domain, **attrs)
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(x.dtype),
            [(symbols or {}).get(dim, dim) for dim in x.shape],
        )
        for name, x in given.items()
    ]
    typed = [
        helper.make_tensor_value_info(name, dtype, None) for name, dtype in results.items() if dtype
    ]
    graph = helper.make_graph([node], op, infos, typed, constants)
    opsets = [helper.make_opsetid("", standard), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString(), given


def theirs(model: bytes, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime makes of the model as it is."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def optimised(model: bytes) -> bytes:
    """The model behind all passes and fusions, as ONNX."""
    level = q7x2_ep.GraphOptimizationLevel.ORT_ENABLE_ALL
    options = q7x2_ep.SessionOptions()
    compiler = q7x2_ep.ModelCompiler(options, model, graph_optimization_level=level)
    return compiler.compile_to_bytes()


@functools.cache
def weight_reach() -> int:
    """How far from the middle of their dtype weights of 8 bits may be, so that onnxruntime's
    products are exact. Without VNNI it sums two of them in 16 bits, which saturate beyond 7 bits;
    ours don't (tests/kernels/test_qgemm.py).
    """
    a, b = np.full((4, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    model, feeds = one_node("MatMulInteger", [a, b], (TensorProto.INT32,), domain="")
    return 128 if np.all(theirs(model, feeds)[0] == 64 * 255 * 127) else 64


def weights(random: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """Any that onnxruntime multiplies exactly."""
    middle, reach = np.iinfo(dtype).min + 128, weight_reach()
    return random.integers(middle - reach, middle + reach, shape).astype(dtype)


def same(
    op: str,
    inputs: Inputs,
    outputs: Sequence[int] = (TensorProto.FLOAT,),
    atol: float = 2e-5,
    rtol: float = 1e-4,
    **given: Any,
) -> Session:
    """Our session for one node, whose outputs are onnxruntime's: integers up to one unit."""
    model, feeds = one_node(op, inputs, outputs, **given)
    wanted = theirs(model, feeds)
    session = Session(model, threads=2)
    for actual, expected in zip(session.run(feeds), wanted):
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        if expected.dtype.itemsize == 1 and expected.dtype.kind in "iu":
            assert np.abs(actual.astype(int) - expected).max(initial=0) <= 1
        else:
            np.testing.assert_allclose(actual, expected, rtol, atol)
    return session
