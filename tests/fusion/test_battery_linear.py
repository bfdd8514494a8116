"""Battery of products by a constant: what stands around them goes into the epilogue of one step."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep.errors import ShapeError
from tests.fusion.battery import (
    assert_correct,
    assert_fuses,
    build,
    feeds_for,
    fused_graph,
)

K, N = 24, 40
X, ROWS = {"x": ("B", "S", K)}, {"x": ("S", K)}
WITH_R = {**X, "r": ("B", "S", N)}


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32) / 4


W, WT, BIAS = weight(K, N), weight(N, K), weight(N)
GAMMA = weight(1, N)[0]
NORM = weight(2, N)[0], weight(3, N)[0], weight(4, N)[0], np.abs(weight(5, N))[0] + 0.1


def norm(g: Any, x: Any) -> Any:
    return g.BatchNormalization(x, *NORM, epsilon=1e-3)


SPELLINGS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plain": (lambda g, x: g.MatMul(x, W), X),
    "vector": (lambda g, x: g.Add(g.MatMul(x, W), BIAS), {"x": (K,)}),
    "2d": (lambda g, x: g.Add(g.MatMul(x, W), BIAS), ROWS),
    "4d": (lambda g, x: g.Add(g.MatMul(x, W), BIAS), {"x": ("B", 2, "S", K)}),
    "weight_with_a_leading_1": (lambda g, x: g.Add(g.MatMul(x, W[None]), BIAS), X),
    "transposed_weight": (lambda g, x: g.MatMul(x, g.open(g.Transpose(WT, perm=[1, 0]))), X),
    "bias_with_leading_1s": (lambda g, x: g.Add(g.MatMul(x, W), BIAS[None, None]), X),
    "bias_of_one": (lambda g, x: g.Add(g.MatMul(x, W), 0.5), X),
    "bias_subtracted": (lambda g, x: g.Sub(g.MatMul(x, W), BIAS), X),
    "scale_then_bias": (lambda g, x: g.Add(g.Mul(g.MatMul(x, W), 0.5), BIAS), X),
    "scale_by_div": (lambda g, x: g.Div(g.MatMul(x, W), 3.0), X),
    "bias_then_scale": (lambda g, x: g.Mul(g.Add(g.MatMul(x, W), BIAS), 0.5), X),
    "relu": (lambda g, x: g.Relu(g.Add(g.MatMul(x, W), BIAS)), X),
    "clip": (lambda g, x: g.Clip(g.Add(g.MatMul(x, W), BIAS), -0.5, 0.5), X),
    "clip_above": (lambda g, x: g.Clip(g.MatMul(x, W), None, 0.5), X),
    "leaky_relu": (lambda g, x: g.LeakyRelu(g.MatMul(x, W), alpha=0.1), X),
    "elu": (lambda g, x: g.Elu(g.MatMul(x, W), alpha=0.7), X),
    "tanh": (lambda g, x: g.Tanh(g.Add(g.MatMul(x, W), BIAS)), X),
    "sigmoid": (lambda g, x: g.Sigmoid(g.Add(g.MatMul(x, W), BIAS)), X),
    "softplus": (lambda g, x: g.Softplus(g.Add(g.MatMul(x, W), BIAS)), X),
    "hard_sigmoid": (lambda g, x: g.HardSigmoid(g.MatMul(x, W), alpha=0.3, beta=0.4), X),
    "hard_swish": (lambda g, x: g.HardSwish(g.MatMul(x, W)), X),
    "mish": (lambda g, x: g.Mish(g.MatMul(x, W)), X),
    "softcap": (lambda g, x: g.Mul(g.Tanh(g.Div(g.MatMul(x, W), 30.0)), 30.0), X),
    "residual": (lambda g, x, r: g.Add(g.MatMul(x, W), r), WITH_R),
    "bias_relu_residual": (
        lambda g, x, r: g.Add(g.Relu(g.Add(g.MatMul(x, W), BIAS)), r),
        WITH_R,
    ),
    "scaled_residual": (
        lambda g, x, r: g.Add(g.Mul(g.Add(g.MatMul(x, W), BIAS), 0.22), r),
        WITH_R,
    ),
    "layer_scale": (
        lambda g, x, r: g.Add(r, g.Mul(g.Add(g.MatMul(x, W), BIAS), GAMMA)),
        WITH_R,
    ),
    "layer_scale_of_rank_3": (lambda g, x: g.Mul(g.MatMul(x, W), GAMMA[None, None]), X),
    "layer_scale_then_bias": (lambda g, x: g.Add(g.Mul(g.MatMul(x, W), GAMMA), BIAS), X),
    "layer_scale_of_gemm": (lambda g, x: g.Mul(g.Gemm(x, WT, BIAS, transB=1), GAMMA), ROWS),
    "layer_scale_with_zeros": (lambda g, x: g.Mul(g.MatMul(x, W), np.maximum(GAMMA, 0)), X),
    "norm": (lambda g, x: norm(g, g.MatMul(x, W)), ROWS),
    "norm_of_gemm": (lambda g, x: g.Relu(norm(g, g.Gemm(x, WT, BIAS, transB=1))), ROWS),
    "norm_and_residual": (
        lambda g, x, r: g.Add(norm(g, g.Add(g.MatMul(x, W), BIAS)), r),
        {**ROWS, "r": ("S", N)},
    ),
    "norm_between_reshapes": (
        lambda g, x: g.HardSwish(
            g.Reshape(norm(g, g.Reshape(g.MatMul(x, W), [-1, N])), [2, -1, N])
        ),
        {"x": (2, "S", K)},
    ),
    "gemm": (lambda g, x: g.Gemm(x, W, BIAS), ROWS),
    "gemm_trans_b": (lambda g, x: g.Gemm(x, WT, BIAS, transB=1), ROWS),
    "gemm_alpha_beta": (lambda g, x: g.Gemm(x, W, BIAS, alpha=0.5, beta=0.25), ROWS),
    "gemm_bias_of_one": (lambda g, x: g.Gemm(x, W, 0.5, beta=0.5), ROWS),
    "gemm_trans_a_of_transpose": (
        lambda g, x: g.Gemm(g.Transpose(x, perm=[1, 0]), W, BIAS, transA=1),
        ROWS,
    ),
    "gemm_residual": (lambda g, x, r: g.Gemm(x, W, r), {**ROWS, "r": ("S", N)}),
    "gemm_between_reshapes": (
        lambda g, x: g.Relu(g.Reshape(g.Gemm(g.Reshape(x, [-1, K]), W, BIAS), [2, -1, N])),
        {"x": (2, "S", K)},
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_one_step(name: str) -> None:
    formula, inputs = SPELLINGS[name]
    assert_fuses(named(formula, inputs), inputs, {"q7::Linear": 1}, steps=1, opset=18)


def named(formula: Callable[..., Any], inputs: dict[str, Any]) -> Callable[..., Any]:
    """The formula as a spelling with a parameter per input."""
    if len(inputs) == 2:
        return lambda g, x, r: formula(g, x, r)
    return lambda g, x: formula(g, x)


# A product whose result has another reader takes nothing behind it


def watched_bias(g: Any, x: Any) -> Any:
    y = g.MatMul(x, W)
    return g.Add(y, BIAS), y


def watched_scale(g: Any, x: Any) -> Any:
    y = g.Add(g.MatMul(x, W), BIAS)
    return g.Mul(y, 0.5), y


def watched_activation(g: Any, x: Any) -> Any:
    y = g.Add(g.MatMul(x, W), BIAS)
    return g.Relu(y), y


def watched_residual(g: Any, x: Any, r: Any) -> Any:
    y = g.MatMul(x, W)
    return g.Add(y, r), y


@pytest.mark.parametrize(
    "spelling", [watched_bias, watched_scale, watched_activation, watched_residual]
)
def test_what_is_read_elsewhere_too_stays(spelling: Callable[..., Any]) -> None:
    assert_fuses(spelling, WITH_R, {"q7::Linear": 1}, steps=2)


def bias_of_rows(g: Any, x: Any) -> Any:
    return g.Gemm(x, W, weight(5, 1))


def bias_of_data(g: Any, x: Any, r: Any) -> Any:
    return g.Gemm(x, W, r, beta=0.5)


def factors_of_rows(g: Any, x: Any) -> Any:
    return g.Mul(g.MatMul(x, W), weight(5, 1))


def factors_of_data(g: Any, x: Any, r: Any) -> Any:
    return g.Mul(g.MatMul(x, W), r)


def factors_out_of_range(g: Any, x: Any) -> Any:
    return g.Mul(g.MatMul(x, W), GAMMA * np.float32(1e-30))


def factors_behind_an_activation(g: Any, x: Any) -> Any:
    return g.Mul(g.Relu(g.MatMul(x, W)), GAMMA)


def norm_of_channels(g: Any, x: Any) -> Any:
    return norm(g, g.MatMul(x, W))


def norm_behind_an_activation(g: Any, x: Any) -> Any:
    return norm(g, g.Relu(g.MatMul(x, W)))


def norm_out_of_range(g: Any, x: Any) -> Any:
    tiny = np.float32(1e-30)
    return g.BatchNormalization(g.MatMul(x, W), NORM[0] * tiny, *NORM[1:])


def norm_of_data(g: Any, x: Any, r: Any) -> Any:
    return g.BatchNormalization(g.MatMul(x, W), r, *NORM[1:])


def residual_that_broadcasts(g: Any, x: Any, r: Any) -> Any:
    return g.Add(g.MatMul(x, W), r)


@pytest.mark.parametrize(
    "spelling, inputs, expected",
    [
        (bias_of_rows, {"x": (5, K)}, {"q7::Linear": 0, "Gemm": 1}),
        (bias_of_data, {**ROWS, "r": (N,)}, {"q7::Linear": 0, "Gemm": 1}),
        (factors_of_rows, {"x": (5, K)}, {"q7::Linear": 1, "Mul": 1}),
        (factors_of_data, {**X, "r": (N,)}, {"q7::Linear": 1, "Mul": 1}),
        (factors_out_of_range, X, {"q7::Linear": 1, "Mul": 1}),
        (factors_behind_an_activation, X, {"q7::Linear": 1, "Mul": 1}),
        (norm_of_channels, {"x": (2, N, K)}, {"q7::Linear": 1, "q7::Chain": 1}),
        (norm_behind_an_activation, ROWS, {"q7::Linear": 1, "q7::Chain": 1}),
        (norm_out_of_range, ROWS, {"q7::Linear": 1, "q7::Chain": 1}),
        (norm_of_data, {**ROWS, "r": (N,)}, {"q7::Linear": 1, "BatchNormalization": 1}),
        (residual_that_broadcasts, {**X, "r": (1, "S", N)}, {"q7::Linear": 1, "Add": 1}),
    ],
)
def test_what_does_not_fit_stays(spelling: Any, inputs: Any, expected: Any) -> None:
    assert_fuses(spelling, inputs, expected)


@pytest.mark.parametrize("shape", [("T", N), (1, "T"), ("T",), (5, N)])
def test_an_addend_that_does_not_fit_the_feed_is_refused(shape: tuple) -> None:
    model, _ = build(lambda g, x, r: g.Gemm(x, W, r), {**ROWS, "r": shape})
    session = q7x2_ep.InferenceSession(model.SerializeToString())
    with session, pytest.raises(ShapeError, match="is neither 1 nor"):
        session.run(None, feeds_for(model, {"S": 3, "T": 7}))


# Rows of the result that nobody reads


def last_by_slice(g: Any, x: Any) -> Any:
    return g.Slice(g.Add(g.MatMul(x, W), BIAS), [-1], [2**62], [1])


def last_by_gather(g: Any, x: Any) -> Any:
    return g.Gather(g.Add(g.MatMul(x, W), BIAS), np.array(-1), axis=1)


def last_by_one_number(g: Any, x: Any) -> Any:
    return g.Gather(g.Add(g.MatMul(x, W), BIAS[None, None]), np.array(-1), axis=1)


def last_with_softcap(g: Any, x: Any) -> Any:
    logits = g.Mul(g.Tanh(g.Div(g.MatMul(x, W), 30.0)), 30.0)
    return g.Squeeze(g.Slice(logits, [-1], [2**62], [1]), [1])


@pytest.mark.parametrize(
    "spelling", [last_by_slice, last_by_gather, last_by_one_number, last_with_softcap]
)
def test_only_rows_that_are_read_are_computed(spelling: Callable[..., Any]) -> None:
    assert_fuses(spelling, X, {"q7::Linear": 1})
    model, _ = build(spelling, X)
    graph, _ = fused_graph(model)
    (node,) = [node for node in graph.nodes if node.op == "q7::Linear"]
    assert node.inputs[0].shape != graph.inputs[0].shape


def all_and_last(g: Any, x: Any) -> Any:
    logits = g.MatMul(x, W)
    return g.Slice(logits, [-1], [2**62], [1]), logits


def columns(g: Any, x: Any) -> Any:
    return g.Slice(g.MatMul(x, W), [-1], [2**62], [2])


def repeated_rows(g: Any, x: Any) -> Any:
    return g.Gather(g.MatMul(x, W), np.array([0, 0, 0]), axis=1)


@pytest.mark.parametrize("spelling", [all_and_last, columns, repeated_rows])
def test_all_rows_are_computed(spelling: Callable[..., Any]) -> None:
    model, _ = build(spelling, X)
    graph, _ = fused_graph(model)
    (node,) = [node for node in graph.nodes if node.op == "q7::Linear"]
    assert node.inputs[0] is graph.inputs[0]
    assert_correct(model)
