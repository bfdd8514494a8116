"""q, k and v are one product of weights that stay where they are, if they share panels as well."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.ops.joined import Joined
from q7x2_ep.passes.cse import MAX_CONSTANT_BYTES

ROWS, INNER, HEADS = 5, 40, 2


def attention(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """(rows, heads * depth), by the definition."""
    q, k, v = (
        (x @ w.astype(np.float64)).reshape(ROWS, HEADS, -1).transpose(1, 0, 2) for w in weights
    )
    scores = q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(ROWS, -1)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("depth", [1, 8, 12, 16, 21, 32, 64])
def test_q_k_and_v_are_one_product(depth, turned, monkeypatch):
    rng = np.random.default_rng(depth)
    weights = [rng.standard_normal((INNER, HEADS * depth), np.float32) / 4 for _ in "qkv"]
    given = [w.T.copy() if turned else w for w in weights]
    nodes = [
        node
        for name in "qkv"
        for node in (
            helper.make_node("Transpose", [f"w{name}"], [f"t{name}"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", f"{'t' if turned else 'w'}{name}"], [name]),
        )
        if turned or node.op_type == "MatMul"
    ]
    nodes.append(helper.make_node("Attention", list("qkv"), ["y"], q_num_heads=2, kv_num_heads=2))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "S", size])
        for name, size in (("x", INNER), ("y", HEADS * depth))
    ]
    tensors = [numpy_helper.from_array(w, f"w{name}") for name, w in zip("qkv", given)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    made: list[Joined] = []
    monkeypatch.setattr(Joined, "__init__", _watched(Joined.__init__, made))
    session = q7x2_ep.InferenceSession(model.SerializeToString())
    x = rng.standard_normal((1, ROWS, INNER), np.float32)
    wanted = attention(x[0].astype(np.float64), weights)
    error = INNER * np.finfo(np.float32).eps
    np.testing.assert_allclose(session.run(None, {"x": x})[0][0], wanted, rtol=0, atol=error)
    (joined,) = made
    assert ("whole" in vars(joined)) == (joined.nbytes <= MAX_CONSTANT_BYTES)  # is compared


def _watched(init, made):
    def watched(self, *arguments):
        made.append(self)
        init(self, *arguments)

    return watched
