"""Tensors of more dims than a step of C takes, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import q7x2_ep

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
SHAPES = [(2, 1, 3, 1, 2, 2, 1, 3, 2), (2, 3, 2, 1, 2, 3, 2, 2, 2), (2,) * 11]

# of x, with perm and swap orders of its dims
CASES = {
    "a view is returned": "y = Transpose<perm = {perm}>(x)",
    "rows are repeated": "u = Unsqueeze(x, zero) e = Expand(u, two) y = Reshape(e, flat)",
    "dims of 1 are given back": "u = Unsqueeze(x, axes) y = Expand(u, two)",
    "a view is computed with": "t = Transpose<perm = {perm}>(x) y = Neg(t)",
    "a matrix product": "y = MatMul(x, w)",
    "matrix products": "t = Transpose<perm = {swap}>(x) y = MatMul(x, t)",
    "what broadcasts": "r = ReduceMax<keepdims = 1>(x, zero) y = Sub(x, r)",
    "joined and cut": "c = Concat<axis = -2>(x, x) y = Slice(c, zero, two, zero)",
}
JOINED = ("rows are repeated", "dims of 1 are given back")  # eight dims and fewer, as they lie


def model_of(body: str, shape: tuple[int, ...], dims: str) -> bytes:
    n = len(shape)
    perm, swap = [n - 1, *range(1, n - 1), 0], [*range(n - 2), n - 1, n - 2]
    nodes = body.format(perm=str(perm), swap=str(swap))
    width = shape[-1]
    weight = f"float[{width}, 1] w = {{{', '.join(map(str, range(width)))}}}"
    sizes = "int64[1] zero = {0}, int64[1] two = {2}, int64[1] flat = {-1}, int64[2] axes = {3, 6}"
    text = f"{HEADER} g (float[{dims}] x) => (float y) <{sizes}, {weight}> {{ {nodes} }}"
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model.SerializeToString()


def loop_of(model: bytes) -> bytes:
    """The same, twice, in the body of a Loop."""
    loaded = onnx.load_from_string(model)
    graph, make = loaded.graph, onnx.helper.make_node
    info = onnx.helper.make_tensor_value_info
    go, on = (info(name, onnx.TensorProto.BOOL, []) for name in ("go", "on"))
    body = onnx.helper.make_graph(
        [make("Identity", ["go"], ["on"]), *graph.node],
        "body",
        [info("i", onnx.TensorProto.INT64, []), go],
        [on, graph.output[0]],
    )
    del graph.node[:]
    graph.node.append(make("Loop", ["times", ""], ["ys"], body=body))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "times"))
    graph.output[0].name = "ys"
    return loaded.SerializeToString()


def both(model: bytes, x: np.ndarray) -> q7x2_ep.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    theirs: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session, (expected,) = q7x2_ep.InferenceSession(model), theirs.run(None, {"x": x})
    for _ in range(3):  # loops are C's from the second run on
        (y,) = session.run(None, {"x": x})
        assert y.shape == expected.shape
        np.testing.assert_array_equal(y, expected)  # of small integers
    return session


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{len(shape)}d")
@pytest.mark.parametrize("case", CASES)
def test_more_dims_than_a_step_takes(case, shape):
    body = CASES[case]
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    fixed = model_of(body, shape, ", ".join(map(str, shape)))
    session = both(fixed, x)
    if case in JOINED:
        assert "host steps 0" in str(q7x2_ep.explain(session))
    free = model_of(body, shape, ", ".join("abcdefghijk"[: len(shape)]))
    both(free, x)
    both(loop_of(free), x)
