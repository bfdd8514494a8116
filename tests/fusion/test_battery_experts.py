"""Battery of mixtures of experts: no spelling copies a weight for a row."""

from __future__ import annotations

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

E, K, N = 4, 24, 40  # indices of the battery are in [0, 4)
ROWS, CHOSEN, PAIRS = ("T", K), ("int64", ("T",)), ("int64", ("T", 2))
PRODUCT, GATED = "q7::ExpertLinear", "q7::GatedExpertLinear"
Parts = Callable[..., Any]


W, BIAS = weight(E, N, K), weight(E, N)


def gather(g: Any, w: Any, e: Any) -> Any:
    return g.Gather(w, e, axis=0)


def gather_nd(g: Any, w: Any, e: Any) -> Any:
    return g.GatherND(w, g.open(g.Unsqueeze(e, [-1])))


def column(g: Any, x: Any, w: np.ndarray, e: Any, chosen: Parts) -> Any:
    return g.Squeeze(g.MatMul(chosen(g, w, e), g.open(g.Unsqueeze(x, [-1]))), [-1])


def column_turned(g: Any, x: Any, w: np.ndarray, e: Any, chosen: Parts) -> Any:
    turned = g.Transpose(chosen(g, turn(w), e), perm=[0, 2, 1])
    return g.Squeeze(g.MatMul(turned, g.open(g.Unsqueeze(x, [2]))), [2])


def row(g: Any, x: Any, w: np.ndarray, e: Any, chosen: Parts) -> Any:
    return g.Squeeze(g.MatMul(g.open(g.Unsqueeze(x, [1])), chosen(g, turn(w), e)), [1])


def row_turned(g: Any, x: Any, w: np.ndarray, e: Any, chosen: Parts) -> Any:
    turned = g.Transpose(chosen(g, w, e), perm=[0, 2, 1])
    return g.Reshape(g.MatMul(g.open(g.Unsqueeze(x, [-2])), turned), [-1, len(w[0])])


def turn(w: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(w.swapaxes(1, 2))


FORMS = (column, column_turned, row, row_turned)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("chosen", [gather, gather_nd])
@pytest.mark.parametrize("form", FORMS)
def test_products(form: Parts, chosen: Parts, biased: bool) -> None:
    def experts(g: Any, x: Any, e: Any) -> Any:
        y = form(g, x, W, e, chosen)
        return g.Add(y, chosen(g, BIAS, e)) if biased else y

    given = {"x": ROWS, "e": CHOSEN}
    assert_fuses(experts, given, {PRODUCT: 1, "Gather": 0, "GatherND": 0}, steps=1)
    if not biased:
        assert_perturbed_stays(experts, given, {PRODUCT}, ("output",))


@pytest.mark.parametrize("shared", ["broadcast", "expand", "tile", "own"])
def test_two_experts_for_each_row(shared: str) -> None:
    """What repeats the rows is no copy."""

    def experts(g: Any, x: Any, e: Any) -> Any:
        rows = g.Unsqueeze(x, [1])
        if shared == "expand":
            rows = g.Expand(rows, [1, 2, 1])
        elif shared == "tile":
            rows = g.Tile(rows, [1, 2, 1])
        elif shared == "own":
            rows = x
        return g.Squeeze(g.MatMul(g.Unsqueeze(rows, [2]), g.Gather(turn(W), e, axis=0)), [2])

    x = ("T", 2, K) if shared == "own" else ROWS
    assert_fuses(experts, {"x": x, "e": PAIRS}, {PRODUCT: 1}, steps=1)


def split(g: Any, y: Any) -> Any:
    return g.Split(y, [N, N], axis=-1, outputs=2)


def slices(g: Any, y: Any) -> Any:
    return g.Slice(y, [0], [N], [1]), g.Slice(y, [-N], [2**62], [-1])


@pytest.mark.parametrize("first", ["gate", "up"])
@pytest.mark.parametrize("parts", [split, slices, interleaved])
@pytest.mark.parametrize("form", FORMS)
def test_halves(form: Parts, parts: Parts, first: str) -> None:
    def experts(g: Any, x: Any, e: Any) -> Any:
        both = form(g, x, weight(E, 2 * N, K), e, gather)
        gate, up = parts(g, g.Add(both, gather(g, weight(E, 2 * N), e)))
        if first == "up":
            gate, up = up, gate
        return g.Mul(g.Mul(gate, g.Sigmoid(gate)), up)

    given = {"x": ROWS, "e": CHOSEN}
    assert_fuses(experts, given, {GATED: 1, PRODUCT: 0}, steps=1)
    assert_perturbed_stays(experts, given, {GATED}, ("output",))


ACTIVATIONS: dict[str, Parts] = {
    "bilinear": lambda g, x: x,
    "sigmoid": lambda g, x: g.Sigmoid(x),
    "relu": lambda g, x: g.Relu(x),
    "gelu": lambda g, x: g.Gelu(x),
    "quick_gelu": lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(x, g.free(1.702)))),
}


@pytest.mark.parametrize("k", [K, 600])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gate_and_up_apart(act: str, k: int) -> None:
    """k spans one block of sums, or three."""
    gate, up = weight(E, N, k), weight(E, N, k, seed=1)

    def experts(g: Any, x: Any, e: Any) -> Any:
        opened = ACTIVATIONS[act](g, column(g, x, gate, e, gather))
        return g.Mul(opened, g.Add(column(g, x, up, e, gather), gather(g, BIAS, e)))

    assert_fuses(experts, {"x": ("T", k), "e": CHOSEN}, {GATED: 1}, steps=1, opset=20)


@pytest.mark.parametrize("flat", [False, True])
def test_weighted_sum(flat: bool) -> None:
    """Weights of rows times experts, or of both in one dim."""

    def experts(g: Any, x: Any, e: Any, w: Any) -> Any:
        if not flat:
            rows = g.Unsqueeze(x, [1, 2])
            y = g.Squeeze(g.MatMul(rows, g.Gather(turn(W), e, axis=0)), [2])
            return g.ReduceSum(g.Mul(y, g.Unsqueeze(w, [-1])), [1], keepdims=0)
        rows = g.Reshape(g.Expand(g.Unsqueeze(x, [1]), [1, 2, 1]), [-1, K])
        y = column(g, rows, W, g.Reshape(e, [-1]), gather)
        return g.ReduceSum(g.Reshape(g.Mul(y, g.Reshape(w, [-1, 1])), [-1, 2, N]), [1], keepdims=0)

    given = {"x": ROWS, "e": PAIRS, "w": ("T", 2)}
    assert_fuses(experts, given, {PRODUCT: 1, "Mul": 0, "ReduceSum": 0, "MatMul": 1}, steps=2)


def mlp(g: Any, x: Any) -> Any:
    """Mixtral: two of four experts for each row."""
    rows = g.Reshape(x, [-1, K])
    chances = g.Softmax(g.MatMul(rows, weight(K, E)), axis=-1)
    values, e = g.TopK(chances, [2], axis=-1, outputs=2)
    values = g.Div(values, g.ReduceSum(values, [-1], keepdims=1))
    repeated = g.Reshape(g.Expand(g.Unsqueeze(rows, [1]), [1, 2, 1]), [-1, K])
    e = g.Reshape(e, [-1])
    gate, up = split(g, column(g, repeated, weight(E, 2 * N, K), e, gather_nd))
    y = column(g, g.Mul(g.Mul(gate, g.Sigmoid(gate)), up), weight(E, K, N), e, gather_nd)
    y = g.Reshape(g.Mul(y, g.Reshape(values, [-1, 1])), [-1, 2, K])
    return g.Add(x, g.Reshape(g.ReduceSum(y, [1], keepdims=0), g.Shape(x)))


def test_mlp_of_mixtral() -> None:
    """Router, softmax, top k, normalisation (2), products (2), weighted sum, residual."""
    expected = {GATED: 1, PRODUCT: 1, "MatMul": 1, "Expand": 0}
    assert_fuses(mlp, {"x": ("B", "S", K)}, expected, steps=9)


def one_row_for_all(g: Any, x: Any, e: Any) -> Any:
    return g.Squeeze(g.MatMul(g.Gather(W, e, axis=0), weight(K, 1)), [-1])


def many_rows(g: Any, x: Any, e: Any) -> Any:
    return g.Reshape(g.MatMul(g.Unsqueeze(x, [0]), g.Gather(turn(W), e, axis=0)), [-1, N])


def computed_weights(g: Any, x: Any, e: Any) -> Any:
    w = g.Mul(W, g.ReduceMax(x, keepdims=0))
    return g.Squeeze(g.MatMul(g.Gather(w, e, axis=0), g.Unsqueeze(x, [-1])), [-1])


@pytest.mark.parametrize("spelling", [one_row_for_all, many_rows, computed_weights])
def test_what_is_no_product_of_experts(spelling: Parts) -> None:
    model, _ = build(spelling, {"x": ROWS, "e": CHOSEN})
    found, report = fused_ops(model)
    assert not found[PRODUCT], report
    assert_correct(model)
