"""Battery of gated products: SwiGLU, GeGLU, ReGLU, GLU and the bilinear form are one step."""

from __future__ import annotations

from math import sqrt
from typing import Any, Callable

import numpy as np
import pytest

from tests.fusion.battery import (
    assert_correct,
    assert_fuses,
    assert_perturbed_stays,
    build,
    fused_ops,
    interleaved,
    weight,
)

X = {"x": ("B", "S", 24)}
K, N = 24, 40
GATED = {"q7::GatedLinear"}


GATE, UP, GATE_BIAS, UP_BIAS = weight(K, N), weight(K, N, seed=1), weight(N), weight(N, seed=1)
BOTH, BOTH_BIAS = weight(K, 2 * N), weight(2 * N)

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "bilinear": lambda g, x: x,
    "sigmoid": lambda g, x: g.Sigmoid(x),
    "silu": lambda g, x: g.Mul(x, g.Sigmoid(x)),
    "relu": lambda g, x: g.Relu(x),
    "gelu": lambda g, x: g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Div(x, sqrt(2))), 1.0)),
    "gelu_tanh": lambda g, x: g.Gelu(x, approximate="tanh"),
    "quick_gelu": lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(x, g.free(1.702)))),
    "squared_relu": lambda g, x: g.Pow(g.Relu(x), 2.0),
}


def linear(g: Any, x: Any, w: np.ndarray, bias: Any = None) -> Any:
    y = g.MatMul(x, w)
    return y if bias is None else g.Add(y, bias)


def split(g: Any, y: Any) -> Any:
    return g.Split(y, [N, N], axis=-1, outputs=2)


def slices(g: Any, y: Any) -> Any:
    return g.Slice(y, [0], [N], [2]), g.Slice(y, [-N], [2**62], [-1])


@pytest.mark.parametrize("biases", ["none", "gate", "both"])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_two_linears(act: str, biases: str) -> None:
    def gated(g: Any, x: Any) -> Any:
        gate = linear(g, x, GATE, None if biases == "none" else GATE_BIAS)
        up = linear(g, x, UP, UP_BIAS if biases == "both" else None)
        return g.Mul(ACTIVATIONS[act](g, gate), up)

    assert_fuses(gated, X, {"q7::GatedLinear": 1, "Mul": 0}, steps=1, opset=20)
    assert_perturbed_stays(gated, X, GATED, ("output",), opset=20)


@pytest.mark.parametrize("first", ["gate", "up"])
@pytest.mark.parametrize("parts", [split, slices, interleaved])
@pytest.mark.parametrize("act", ["sigmoid", "silu", "gelu_tanh"])
def test_halves_of_one_linear(act: str, parts: Callable[..., Any], first: str) -> None:
    def gated(g: Any, x: Any) -> Any:
        gate, up = parts(g, linear(g, x, BOTH, BOTH_BIAS))
        if first == "up":
            gate, up = up, gate
        return g.Mul(ACTIVATIONS[act](g, gate), up)

    assert_fuses(gated, X, {"q7::GatedLinear": 1}, steps=1, opset=20)
    assert_perturbed_stays(gated, X, GATED, ("output",), opset=20)


def test_transposed_weights_of_rows() -> None:
    def gated(g: Any, x: Any) -> Any:
        gate = g.Gemm(x, np.ascontiguousarray(GATE.T), GATE_BIAS, transB=1)
        up = g.Gemm(x, np.ascontiguousarray(UP.T), UP_BIAS, transB=1)
        return g.Mul(g.Mul(gate, g.Sigmoid(gate)), up)

    def halves(g: Any, x: Any) -> Any:
        gate, up = split(g, g.Gemm(x, np.ascontiguousarray(BOTH.T), BOTH_BIAS, transB=1))
        return g.Mul(g.Mul(gate, g.Sigmoid(gate)), up)

    for spelling in (gated, halves):
        assert_fuses(spelling, {"x": ("B", K)}, {"q7::GatedLinear": 1}, steps=1)


def test_mlp_of_llama_is_two_steps() -> None:
    def mlp(g: Any, x: Any) -> Any:
        gate = g.MatMul(x, GATE)
        inner = g.Mul(g.Mul(gate, g.Sigmoid(gate)), g.MatMul(x, UP))
        return g.Add(g.MatMul(inner, weight(N, K)), x)

    assert_fuses(mlp, X, {"q7::GatedLinear": 1, "q7::Linear": 1, "Add": 0}, steps=2)


def test_deep_products() -> None:
    """k spans three blocks of sums, n ends within a panel."""
    gate, up = weight(600, 50), weight(600, 50, seed=1)

    def gated(g: Any, x: Any) -> Any:
        return g.Mul(g.Relu(g.MatMul(x, gate)), g.MatMul(x, up))

    assert_fuses(gated, {"x": ("B", "S", 600)}, {"q7::GatedLinear": 1}, steps=1)


def two_inputs(g: Any, x: Any, y: Any) -> Any:
    return g.Mul(g.Sigmoid(g.MatMul(x, GATE)), g.MatMul(y, UP))


def two_widths(g: Any, x: Any) -> Any:
    return g.Mul(g.Sigmoid(g.MatMul(x, weight(K, 1))), g.MatMul(x, UP))


def one_half_twice(g: Any, x: Any) -> Any:
    gate, _ = split(g, g.MatMul(x, BOTH))
    return g.Mul(g.Sigmoid(gate), gate)


def overlapping_is_not_halves(g: Any, x: Any) -> Any:
    y = g.MatMul(x, BOTH)
    return g.Mul(g.Sigmoid(g.Slice(y, [0], [N + 1], [-1])), g.Slice(y, [N - 1], [2 * N], [-1]))


def scaled(g: Any, x: Any) -> Any:
    return g.Mul(g.Sigmoid(g.MatMul(x, GATE)), g.Mul(g.MatMul(x, UP), 0.5))


def two_activations(g: Any, x: Any) -> Any:
    return g.Mul(g.Sigmoid(g.MatMul(x, GATE)), g.Tanh(g.MatMul(x, UP)))


@pytest.mark.parametrize(
    "spelling",
    [two_inputs, two_widths, one_half_twice, overlapping_is_not_halves, scaled, two_activations],
)
def test_what_is_no_gated_product(spelling: Callable[..., Any]) -> None:
    model, _ = build(spelling, {**X, "y": X["x"]})
    found, report = fused_ops(model)
    assert not found["q7::GatedLinear"], report
    assert_correct(model)
