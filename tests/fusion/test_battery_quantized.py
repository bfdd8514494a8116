"""Linear layers between DequantizeLinear and QuantizeLinear, and the integer ops themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import q7x2_ep
from q7x2_ep import importer
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.dtypes import UINT8
from q7x2_ep.ir.text import parse
from q7x2_ep.passes import infer
from q7x2_ep.plan.build import NotNative
from q7x2_ep.plan.build import build as build_plan
from q7x2_ep.session import Session
from tests.fusion.battery import build, feeds_for, fused_ops

RANDOM = np.random.default_rng(5)
K, N = 37, 50
X = {"x": ("B", "S", K)}
F32 = np.float32
LINEAR = "q7::QuantizedLinear"


def weights(dtype: Any) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, (K, N)).astype(dtype)


def row(n: int = N) -> np.ndarray:
    return (RANDOM.random(n) * 0.01 + 0.01).astype(F32)


def quantize(g: Any, x: Any, scale: float, zero: Any) -> Any:
    return g.QuantizeLinear(x, np.array(scale, F32), zero)


def dequantize(g: Any, x: Any, scale: Any, zero: Any, **attrs: Any) -> Any:
    return g.DequantizeLinear(x, np.array(scale, F32), zero, **attrs)


def layer(
    x_dtype: Any, w_dtype: Any, per_column: bool, bias: bool, requantize: bool, product: str
) -> Any:
    w, b = weights(w_dtype), row() * 50
    w_scale = row() if per_column else np.array(0.02, F32)
    w_zero = RANDOM.integers(-3, 4, w_scale.shape).astype(w_dtype) if w_dtype == np.int8 else None
    x_zero = np.array(7, x_dtype)

    def formula(g: Any, x: Any) -> Any:
        given = dequantize(g, quantize(g, x, 0.04, x_zero), 0.04, x_zero)
        y_w = g.DequantizeLinear(w, w_scale, w_zero, axis=1)
        if product == "turned Gemm":
            y_w = g.DequantizeLinear(np.ascontiguousarray(w.T), w_scale, w_zero, axis=0)
        if product != "MatMul":
            y = g.Gemm(given, y_w, *([b] if bias else []), transB=int(product == "turned Gemm"))
        else:
            y = g.MatMul(given, y_w)
            y = g.Add(y, b) if bias else y
        if not requantize:
            return y
        return dequantize(g, quantize(g, y, 0.3, np.array(-5, np.int8)), 0.3, np.array(-5, np.int8))

    return formula


def assert_close(model: onnx.ModelProto, step: float) -> None:
    """Against the float64 evaluation: equal but where it lies between two steps of the result."""
    data = model.SerializeToString()
    graph = importer.read(data)
    infer.run(graph)
    with q7x2_ep.InferenceSession(data) as session:
        for sizes in ({"B": 1, "S": 1}, {"B": 2, "S": 9}, {"B": 3, "S": 64}):
            feeds = feeds_for(model, sizes)
            given, true = session.run(None, feeds)[0], evaluate(graph, feeds, np.float64)[0]
            away = np.abs(given.astype(float) - true)
            assert away.max(initial=0.0) <= max(step * 1.001, 1e-5 * np.abs(true).max(initial=0.0))
            assert not step or (away > step / 2).mean() < 0.01


@pytest.mark.parametrize("x_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("w_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("requantize", [False, True])
def test_layers_become_integer_products(
    x_dtype: Any, w_dtype: Any, per_column: bool, bias: bool, requantize: bool
) -> None:
    for product in ("MatMul", "Gemm", "turned Gemm"):
        model = build(
            layer(x_dtype, w_dtype, per_column, bias, requantize, product),
            X if product == "MatMul" else {"x": ("B", K)},
        )[0]
        found, report = fused_ops(model)
        assert found[LINEAR] == 1, report
        assert not {"MatMul", "Gemm", "Add", "q7::Linear"} & set(found)
        assert_close(model, 0.3 if requantize else 0.0)


@pytest.mark.parametrize("x_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("w_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_two_that_are_computed(x_dtype: Any, w_dtype: Any, turned: bool) -> None:
    """As attention has them: scores by keys that are turned, and by values, which are not."""
    heads, size, q_zero, k_zero = 3, 4, np.array(7, x_dtype), np.array(-2 % 100, w_dtype)

    def real(g: Any, x: Any, scale: float, zero: Any) -> Any:
        return dequantize(g, quantize(g, x, scale, zero), scale, zero)

    def formula(g: Any, x: Any) -> Any:
        split = g.Reshape(x, np.array([0, 0, heads, size]))
        q = g.Transpose(split, perm=(0, 2, 1, 3) if turned else (0, 2, 3, 1))
        k = real(g, split, 0.03, k_zero)
        k = g.Transpose(k, perm=(0, 2, 3, 1) if turned else (0, 2, 1, 3))
        y = g.MatMul(real(g, q, 0.04, q_zero), real(g, k, 0.03, k_zero))
        return real(g, y, 0.1, np.array(3, np.int8))

    model = build(formula, {"x": ("B", "S", heads * size)})[0]
    found, report = fused_ops(model)
    assert found["QLinearMatMul"] == 1, report
    assert "MatMul" not in found
    assert_close(model, 0.1)


@pytest.mark.parametrize("case", ["two readers", "scales of columns", "no bytes"])
def test_other_products_of_two_that_are_computed_stay(case: str) -> None:
    zero = np.array(7, np.uint8)

    def formula(g: Any, x: Any) -> Any:
        def real(x: Any, scale: Any, zero: Any, **attrs: Any) -> Any:
            return g.DequantizeLinear(
                g.QuantizeLinear(x, scale, zero, **attrs), scale, zero, **attrs
            )

        left = real(x, F32(0.04), zero)
        if case == "scales of columns":
            scale = np.linspace(0.01, 0.02, 8).astype(F32)
            left = real(x, scale, np.full(8, 7, np.uint8), axis=2)
        elif case == "no bytes":
            left = real(x, F32(0.001), np.array(700, np.uint16))
        y = g.MatMul(left, real(g.Transpose(x, perm=(0, 2, 1)), F32(0.04), zero))
        z = real(y, F32(0.1), zero)
        return g.Add(z, y) if case == "two readers" else z

    model = build(formula, {"x": ("B", "S", 8)}, opset=21)[0]
    found, report = fused_ops(model)
    assert found["QLinearMatMul"] == 0, report
    assert_close(model, 0.1)


def test_one_quantized_input_may_feed_several_layers() -> None:
    wq, wk = weights(np.int8), weights(np.int8)

    def siblings(g: Any, x: Any) -> Any:
        given = dequantize(
            g, quantize(g, x, 0.04, np.array(7, np.uint8)), 0.04, np.array(7, np.uint8)
        )
        return tuple(g.MatMul(given, dequantize(g, w, 0.02, None)) for w in (wq, wk))

    found, _ = fused_ops(build(siblings, X)[0])
    assert (found[LINEAR], found["DequantizeLinear"]) == (2, 0)


def test_what_is_no_integer_product_stays_float() -> None:
    w = weights(np.int8)

    def along_k(g: Any, x: Any) -> Any:
        given = dequantize(
            g, quantize(g, x, 0.04, np.array(7, np.uint8)), 0.04, np.array(7, np.uint8)
        )
        return g.MatMul(given, g.DequantizeLinear(w, row(K), None, axis=0))

    def float_input(g: Any, x: Any) -> Any:
        return g.MatMul(x, dequantize(g, w, 0.02, None))

    def used(g: Any, x: Any) -> Any:
        given = dequantize(
            g, quantize(g, x, 0.04, np.array(7, np.uint8)), 0.04, np.array(7, np.uint8)
        )
        y = g.MatMul(given, dequantize(g, w, 0.02, None))
        return quantize(g, y, 0.3, np.array(1, np.int8)), y

    for formula in (along_k, float_input):
        model = build(formula, X)[0]
        found, _ = fused_ops(model)
        assert (found[LINEAR], found["q7::Linear"]) == (0, 1)
        assert_close(model, 0.0)
    found, _ = fused_ops(build(used, X)[0])
    assert (found[LINEAR], found["QuantizeLinear"]) == (1, 2)


def test_blocks_of_an_axis_of_one_have_many_scales() -> None:
    scale, zero = np.resize(row(), (3, 1, 8)), np.resize(weights(np.uint8), (3, 1, 8))

    def formula(g: Any, x: Any) -> Any:
        q = g.QuantizeLinear(g.Relu(x), scale, zero, axis=1, block_size=4)
        return g.Relu(g.DequantizeLinear(q, scale, zero, axis=1, block_size=4))

    assert_close(build(formula, {"x": (3, 1, 8)})[0], 0.02)


def products() -> dict[str, Any]:
    w, zero = weights(np.uint8), np.array(3, np.uint8)

    def integer(g: Any, x: Any) -> Any:
        return g.MatMulInteger(quantize(g, x, 0.04, zero), w, zero, np.array(9, np.uint8))

    def dynamic(g: Any, x: Any) -> Any:
        y, scale, zero = g.DynamicQuantizeLinear(x, outputs=3)
        return g.Mul(g.Cast(g.MatMulInteger(y, w, zero), to=1), scale)

    def linear(g: Any, x: Any) -> Any:
        a = quantize(g, x, 0.04, zero)
        given = (
            np.array(0.04, F32),
            zero,
            w,
            row(),
            np.zeros(N, np.uint8),
            np.array(0.9, F32),
            zero,
        )
        return g.QLinearMatMul(a, *given)

    return {"MatMulInteger": integer, "DynamicQuantizeLinear": dynamic, "QLinearMatMul": linear}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (N,), (1, N)])
def test_scales_of_a_dynamic_layer_have_any_shape_that_broadcasts(shape: tuple[int, ...]) -> None:
    w, w_scale = weights(np.int8), np.resize(row(), shape)

    def dynamic(g: Any, x: Any) -> Any:
        y, scale, zero = g.DynamicQuantizeLinear(x, outputs=3)
        return g.Mul(g.Cast(g.MatMulInteger(y, w, zero), to=1), g.Mul(scale, w_scale))

    model = build(dynamic, X)[0]
    assert fused_ops(model)[0][LINEAR] == 1
    assert_close(model, 0.0)


@pytest.mark.parametrize("name", ["MatMulInteger", "DynamicQuantizeLinear", "QLinearMatMul"])
def test_integer_ops_give_what_onnxruntime_gives(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = build(products()[name], X)[0].SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with q7x2_ep.InferenceSession(model) as ours:
        for shape in ((1, 1, K), (2, 130, K), (0, 3, K)):
            feed = {"x": RANDOM.standard_normal(shape).astype(F32)}
            a, b = ours.run(None, feed)[0], theirs.run(None, feed)[0]
            assert a.dtype == b.dtype and a.shape == b.shape
            limit = 1e-5 if a.dtype == F32 else 1 if name == "QLinearMatMul" else 0
            away = np.abs(a.astype(float) - b.astype(float))
            assert away.max(initial=0.0) <= limit * (
                np.abs(b).max(initial=0.0) if limit == 1e-5 else 1
            )
            assert a.dtype == F32 or np.count_nonzero(away) <= 0.01 * a.size


def image(bias: str, act: str, zero: int, **attrs: Any) -> Any:
    w = RANDOM.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8)
    w_scale, b = row(6), row(6) * 50
    x_zero, y_zero = np.array(7, np.uint8), np.array(zero, np.uint8)

    def formula(g: Any, x: Any) -> Any:
        given = dequantize(g, quantize(g, x, 0.04, x_zero), 0.04, x_zero)
        kernel = g.DequantizeLinear(w, w_scale, None, axis=0)
        real = {"none": [], "float": [b]}.get(bias)
        if real is None:
            steps = np.rint(b / (w_scale * F32(0.04))).astype(np.int32)
            real = [g.DequantizeLinear(steps, w_scale * F32(0.04), None, axis=0)]
        y = g.Conv(given, kernel, *real, **attrs)
        y = g.Relu(y) if act == "relu" else y
        return dequantize(g, quantize(g, y, 0.3, y_zero), 0.3, y_zero)

    return formula


@pytest.mark.parametrize("bias", ["none", "float", "int32"])
@pytest.mark.parametrize("act", ["none", "relu"])
def test_convolutions_become_integer_products(bias: str, act: str) -> None:
    given = {"x": ("B", 4, "S", 9)}
    for attrs in (
        {"pads": [1, 1, 1, 1]},
        {"strides": [2, 2], "dilations": [1, 2], "pads": [2, 0, 1, 3]},
    ):
        model = build(image(bias, act, 0, **attrs), given)[0]
        found, report = fused_ops(model)
        assert found["q7::QuantizedConv"] == 1, report
        assert not {"Conv", "q7::Conv", "Relu"} & set(found)
        assert_close(model, 0.3)


def test_a_relu_that_the_zero_point_does_not_do_stays() -> None:
    model = build(image("float", "relu", 9, pads=[1, 1, 1, 1]), {"x": ("B", 4, "S", 9)})[0]
    found, report = fused_ops(model)
    assert found["q7::QuantizedConv"] == found["q7::Chain"] == 1, report  # of Relu and what follows
    assert "leaves room below 0" in str(report)
    assert_close(model, 0.3)


@pytest.mark.parametrize(("groups", "filters"), [(2, 6), (4, 4), (4, 8)])
def test_convolutions_in_groups(groups: int, filters: int) -> None:
    w = RANDOM.integers(-128, 128, (filters, 4 // groups, 3, 3)).astype(np.int8)
    w_scale, bias = row(filters), row(filters) * 50
    x_zero, y_zero = np.array(7, np.uint8), np.array(0, np.uint8)

    def grouped(g: Any, x: Any) -> Any:
        given = dequantize(g, quantize(g, x, 0.04, x_zero), 0.04, x_zero)
        kernel = g.DequantizeLinear(w, w_scale, None, axis=0)
        y = g.Relu(g.Conv(given, kernel, bias, group=groups, pads=[1, 1, 1, 1], strides=[2, 1]))
        return dequantize(g, quantize(g, y, 0.3, y_zero), 0.3, y_zero)

    model = build(grouped, {"x": ("B", 4, "S", 9)})[0]
    found, report = fused_ops(model)
    assert found["q7::QuantizedConv"] == 1 and not {"Conv", "q7::Conv", "Relu"} & set(found), report
    assert_close(model, 0.3)


def test_three_spatial_dims_stay_float() -> None:
    w = RANDOM.integers(-128, 128, (4, 2, 1, 2, 2)).astype(np.int8)

    def volume(g: Any, x: Any) -> Any:
        zero = np.array(7, np.uint8)
        given = dequantize(g, quantize(g, x, 0.04, zero), 0.04, zero)
        return g.Conv(given, dequantize(g, w, 0.02, None))

    found, _ = fused_ops(build(volume, {"x": ("B", 2, 3, "S", 9)})[0])
    assert (found["q7::QuantizedConv"], found["Conv"]) == (0, 1)


@pytest.mark.parametrize("computed", ["x_scale", "w_scale", "bias", "y_scale"])
def test_convolutions_of_computed_numbers_are_no_integer_products(computed: str) -> None:
    given = {"x_scale": "0.04", "w_scale": "0.02", "bias": "_", "y_scale": "0.3"}
    x_scale, w_scale, bias, y_scale = {**given, computed: f"%{computed}"}.values()
    shape = "4" if computed == "bias" else ""
    graph = parse(f"""graph(%x: u8[1,2,5,5], %{computed}: f32[{shape}])
  %w = i8[4,2,3,3]
  %y = q7::QuantizedConv(%x, {x_scale}, _, %w, {w_scale}, _, {bias}, {y_scale})
  return %y
""")
    infer.run(graph)
    with pytest.raises(NotNative, match=f"a constant '{computed}' only"):
        build_plan(graph, load().target)


@pytest.mark.parametrize("other", [0.04, 0.0671], ids=["one scale", "two scales"])
def test_numbers_are_chosen_from_bytes(other: float) -> None:
    """What has another scale is rounded before it is chosen."""
    zero = np.array(7, np.uint8)

    def formula(g: Any, x: Any, y: Any) -> Any:
        a = dequantize(g, quantize(g, x, 0.04, zero), 0.04, zero)
        b = dequantize(g, quantize(g, y, other, zero), other, zero)
        both = g.Concat(a, g.MaxPool(b, kernel_shape=[3, 3], pads=[1] * 4), axis=1)
        flat = g.Reshape(g.Transpose(both, perm=(0, 2, 3, 1)), [-1, 10])
        return dequantize(g, quantize(g, flat, 0.04, zero), 0.04, zero)

    model, _ = build(formula, {"x": ("B", 4, "S", 9), "y": ("B", 6, "S", 9)})
    _, report = fused_ops(model)
    assert report.applied["QuantizedSelection"] == 1, report
    (pool,) = (step for step in Session(model).plan.steps if step.op == "pool")
    assert pool.fields["dtype"] == UINT8
    assert_close(model, 0.04)


@pytest.mark.parametrize("kind", ["sum", "read twice", "turned"])
def test_computed_numbers_are_not_chosen_from_bytes(kind: str) -> None:
    zero, scale = np.array(7, np.uint8), -0.04 if kind == "turned" else 0.04

    def formula(g: Any, x: Any) -> Any:
        a = dequantize(g, quantize(g, x, scale, zero), scale, zero)
        chosen = g.MaxPool(a, kernel_shape=[2, 2], pads=[1] * 4)
        chosen = g.Add(chosen, chosen) if kind == "sum" else chosen
        y = dequantize(g, quantize(g, chosen, 0.04, zero), 0.04, zero)
        return g.Add(y, chosen) if kind == "read twice" else y

    model, _ = build(formula, {"x": ("B", 4, "S", 9)})
    assert "QuantizedSelection" not in fused_ops(model)[1].applied
    assert_close(model, 0.04)


def hard_swish(g: Any, x: Any, zero: Any) -> Any:
    gate = g.HardSigmoid(x, alpha=1 / 6, beta=0.5)
    return g.Mul(x, dequantize(g, quantize(g, gate, 0.004, zero), 0.004, zero))


def gelu(g: Any, x: Any, zero: Any) -> Any:
    def stored(value: Any, scale: float) -> Any:
        return dequantize(g, quantize(g, value, scale, zero), scale, zero)

    def constant(value: int, scale: float) -> Any:
        return dequantize(g, np.array(value, zero.dtype), scale, np.array(0, zero.dtype))

    erf = stored(g.Erf(stored(g.Div(x, constant(100, 0.0141)), 0.03)), 0.008)
    product = stored(g.Mul(x, stored(g.Add(erf, constant(127, 1 / 127)), 0.0171)), 0.06)
    return g.Mul(product, constant(100, 0.005))


@pytest.mark.parametrize("activation", [hard_swish, gelu])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("is_image", [False, True])
def test_what_is_computed_of_one_byte_is_a_table(
    activation: Any, dtype: Any, is_image: bool
) -> None:
    zero = np.array(7, dtype)
    kernel = RANDOM.standard_normal((9, 6, 3, 3)).astype(F32)

    def formula(g: Any, x: Any) -> Any:
        x = g.Conv(x, kernel, pads=[1] * 4) if is_image else x
        given = dequantize(g, quantize(g, x, 0.04, zero), 0.04, zero)
        return dequantize(g, quantize(g, activation(g, given, zero), 0.05, zero), 0.05, zero)

    model, _ = build(formula, {"x": ("B", 6, "S", 9)})
    assert fused_ops(model)[1].applied["ByteTable"] == 1
    steps = [
        step.op for step in Session(model).plan.steps if step.op not in ("copy", "conv_direct")
    ]
    assert steps == ["quantize", "lookup", "dequantize"]
    assert_close(model, 0.05)


@pytest.mark.parametrize("kind", ["two", "row", "float", "sum"])
def test_what_is_computed_of_more_is_no_table(kind: str) -> None:
    zero = np.array(7, np.uint8)

    def formula(g: Any, x: Any, y: Any) -> Any:
        a = dequantize(g, quantize(g, x, 0.04, zero), 0.04, zero)
        b = dequantize(g, quantize(g, y, 0.04, zero), 0.04, zero)
        if kind == "float":
            return g.Tanh(a)
        other = {"two": b, "row": row(9), "sum": np.ones(1, F32)}[kind]
        result = g.Mul(a, other)
        result = g.ReduceSum(result, [-1]) if kind == "sum" else result
        return dequantize(g, quantize(g, result, 0.04, zero), 0.04, zero)

    shape = ("B", 6, "S", 9)
    model, _ = build(formula, {"x": shape, "y": shape})
    assert "ByteTable" not in fused_ops(model)[1].applied
    assert_close(model, 0.04)


def test_weights_quantised_when_the_model_loads() -> None:
    """As tools write them that see an Identity in front of shared weights."""
    w, zero = weights(np.int8), np.array(7, np.uint8)

    def formula(g: Any, x: Any) -> Any:
        again = quantize(g, g.Identity(dequantize(g, w, 0.02, None)), 0.02, np.array(0, np.int8))
        given = dequantize(g, quantize(g, x, 0.04, zero), 0.04, zero)
        y = g.MatMul(given, dequantize(g, again, 0.02, None))
        return dequantize(g, quantize(g, y, 0.3, zero), 0.3, zero)

    model, _ = build(formula, X)
    assert fused_ops(model)[1].applied["QuantizedLinear"] == 1
    assert_close(model, 0.3)
