"""Quantised ops of com.microsoft beside onnxruntime: dtypes, zero points, layouts, axes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from q7x2_ep.errors import ShapeError
from q7x2_ep.session import Session
from tests.models.beside import one_node, same, theirs, weights

RANDOM = np.random.default_rng(17)
CODES = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
FLOAT = TensorProto.FLOAT
each_dtype = pytest.mark.parametrize("dtype", CODES, ids=lambda dtype: dtype.__name__)


def f(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def q(dtype: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(dtype)


def w(dtype: Any, *shape: int) -> np.ndarray:
    return weights(RANDOM, dtype, *shape)


def positive(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.01, 0.04, shape).astype(np.float32)


@each_dtype
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shapes", [((2, 3, 16), (16,)), ((4, 1), (3, 1, 5)), ((0, 4), (1, 4))])
def test_binary(op: str, dtype: Any, shapes: tuple) -> None:
    a, b = (q(dtype, *shape) for shape in shapes)
    zeros = [np.array(q(dtype)) for _ in range(3)]
    inputs = [a, number(0.02), zeros[0], b, number(0.03), zeros[1], number(0.05), zeros[2]]
    same(op, inputs, (CODES[dtype],))
    same(op, inputs[:7], (CODES[dtype],))


@each_dtype
@pytest.mark.parametrize(
    "op, attrs", [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2})]
)
def test_unary(op: str, attrs: dict, dtype: Any) -> None:
    zeros = [np.array(q(dtype)) for _ in range(2)]
    inputs = [q(dtype, 2, 40), number(0.03), zeros[0], number(0.02), zeros[1]]
    same(op, inputs, (CODES[dtype],), fixed=(1, 2, 3, 4), **attrs)


@each_dtype
@pytest.mark.parametrize("axis, opset", [(-1, 13), (1, 13), (0, 13), (1, 11), (-1, 11)])
@pytest.mark.parametrize("scale", [0.03, 0.5])
def test_softmax(axis: int, opset: int, scale: float, dtype: Any) -> None:
    zero = np.array(np.iinfo(dtype).min, dtype)
    inputs = [q(dtype, 2, 6, 9), number(scale), np.array(q(dtype)), number(1 / 255), zero]
    for x in (inputs[0], inputs[0][:, :, :0]):
        inputs[0] = x
        same("QLinearSoftmax", inputs, (CODES[dtype],), fixed=(1, 2, 3, 4), axis=axis, opset=opset)


@each_dtype
def test_selections(dtype: Any) -> None:
    z = [np.array(q(dtype)) for _ in range(3)]
    parts = [q(dtype, 4, 5), number(0.02), z[0], q(dtype, 5), number(0.03), z[1]]
    inputs = [RANDOM.random((4, 5)) > 0.5, *parts, number(0.05), z[2]]
    same("QLinearWhere", inputs, (CODES[dtype],), fixed=(2, 3, 5, 6, 7, 8))
    parts[3] = q(dtype, 4, 3)
    inputs = [number(0.05), z[2], *parts]
    same("QLinearConcat", inputs, (CODES[dtype],), fixed=(0, 1, 3, 4, 6, 7), axis=1)


@each_dtype
@pytest.mark.parametrize("channels_last", [0, 1])
def test_windows(dtype: Any, channels_last: int) -> None:
    """Convolutions and pools, with channels as axis 1 or as the last."""
    x = q(dtype, 2, 4, 9, 8)
    x = x.transpose(0, 2, 3, 1).copy() if channels_last else x
    zeros = [np.array(q(dtype)) for _ in range(2)]
    ends = [number(0.9), zeros[1]]
    kernels = [w(np.int8, 6, 4, 3, 3), positive(6), np.zeros(6, np.int8)]
    inputs = [x, number(0.02), zeros[0], *kernels, *ends, q(np.int8, 6).astype(np.int32)]
    attrs: dict[str, Any] = {"channels_last": channels_last}
    strides = {"pads": [1, 0, 1, 2], "strides": [2, 1]}
    same("QLinearConv", inputs, (CODES[dtype],), fixed=range(1, 9), **attrs, **strides)
    inputs = [x, number(0.02), zeros[0], number(0.03), zeros[1]]
    same("QLinearGlobalAveragePool", inputs, (CODES[dtype],), fixed=range(1, 5), **attrs)
    for counted in (0, 1):
        attrs.update(kernel_shape=[3, 2], count_include_pad=counted)
        pads = {"pads": [1, 0, 1, 1]}
        same("QLinearAveragePool", inputs, (CODES[dtype],), fixed=range(1, 5), **attrs, **pads)


@each_dtype
def test_max_pool(dtype: Any) -> None:
    same(
        "NhwcMaxPool", [q(dtype, 2, 9, 8, 4)], (CODES[dtype],), kernel_shape=[3, 2], strides=[2, 1]
    )


@each_dtype
@pytest.mark.parametrize("turned", list(itertools.product((0, 1), (0, 1))), ids=str)
@pytest.mark.parametrize("alpha, scaled, biased", [(1, 1, 1), (1, 0, 1), (0.5, 0, 0), (0.5, 1, 1)])
def test_gemm(dtype: Any, turned: tuple, alpha: float, scaled: int, biased: int) -> None:
    a, b = q(dtype, 5, 7), w(np.int8, 7, 6)
    factors = [x.T.copy() if turns else x for x, turns in zip((a, b), turned)]
    inputs = [factors[0], number(0.02), np.array(q(dtype)), factors[1]]
    inputs += [positive(6), q(np.int8, 6), q(np.int8, 6).astype(np.int32) if biased else None]
    inputs += [number(0.5), np.array(q(dtype))] if scaled else []
    attrs = {"transA": turned[0], "transB": turned[1], "alpha": float(alpha)}
    fixed = [i for i in range(1, 7) if inputs[i] is not None]
    same("QGemm", inputs, (CODES[dtype] if scaled else FLOAT,), 1e-4, fixed=fixed, **attrs)


@each_dtype
@pytest.mark.parametrize("k", [7, 600])  # sums that float holds, or does not
def test_integer_products_of_zeros_for_each_row(dtype: Any, k: int) -> None:
    """Which onnxruntime and onnx's evaluator do not take."""
    a, b, a_zero, b_zero = q(dtype, 2, 5, k), q(np.int8, 2, k, 6), q(dtype, 5), q(np.int8, 6)
    inputs = [a, b, a_zero, b_zero]
    model, feeds = one_node("MatMulInteger", inputs, (TensorProto.INT32,), domain="")
    session = Session(model, threads=2)
    assert session.plan.steps  # no host step
    rows = a_zero[:, None].astype(np.int64)
    wanted = (a.astype(np.int64) - rows) @ (b.astype(np.int64) - b_zero.astype(np.int64))
    np.testing.assert_array_equal(session.run(feeds)[0], wanted)
    inputs[2] = a_zero[1:]
    given = {"symbols": {5: "rows"}, "domain": ""}
    model, feeds = one_node("MatMulInteger", inputs, (TensorProto.INT32,), **given)
    with pytest.raises(ShapeError, match="zero for each of axis 1"):
        Session(model).run(feeds)


@pytest.mark.parametrize("k", [1, 255, 256, 257, 700, 5000])
@pytest.mark.parametrize("left, right", [((3,), ()), ((2, 3), ()), ((2, 3), (2,)), ((), ())])
def test_integer_products_of_two_feeds(k: int, left: tuple, right: tuple) -> None:
    """The largest numbers without their zeros, too: no sum is rounded."""
    for extreme in (True, False):
        a, b = q(np.uint8, *left, k), q(np.int8, *right, k, *((4,) if left else ()))
        a_zero, b_zero = q(np.uint8), q(np.int8)
        if extreme:
            a[...], b[...], a_zero, b_zero = 255, -128, np.uint8(0), np.int8(127)
        inputs = [a, b, np.array(a_zero), np.array(b_zero)]
        wanted = (a.astype(np.int64) - int(a_zero)) @ (b.astype(np.int64) - int(b_zero))
        for symbols in ({}, {k: "k"}):  # of a length that only a feed tells, too
            given = {"symbols": symbols, "domain": ""}
            model, feeds = one_node("MatMulInteger", inputs, (TensorProto.INT32,), **given)
            session = Session(model, threads=2)
            assert session.plan.steps  # no host step
            np.testing.assert_array_equal(session.run(feeds)[0], wanted)


@each_dtype
def test_integer_products_with_a_constant_of_no_columns(dtype: Any) -> None:
    inputs = [q(dtype, 2, 7), q(np.int8, 7, 0)]
    model, feeds = one_node("MatMulInteger", inputs, (TensorProto.INT32,), fixed=[1], domain="")
    assert Session(model).run(feeds)[0].shape == (2, 0)


@each_dtype
def test_products(dtype: Any) -> None:
    """Of constant and of computed weights, of one scale and of one per column."""
    a, zero = q(dtype, 2, 5, 7), np.array(q(dtype))
    columns = [w(np.int8, 7, 6), number(0.02), positive(6), zero, q(np.int8, 6), f(6)]
    for fixed in ((1, 3, 5, 6), ()):
        same("MatMulIntegerToFloat", [a, *columns], atol=1e-4, fixed=fixed)
    one = [w(np.int8, 2, 7, 6), number(0.02), number(0.03), zero, np.array(q(np.int8)), f(6)]
    same("MatMulIntegerToFloat", [a, *one], atol=1e-4)
    x = f(2, 5, 7)
    columns = [w(dtype, 7, 6), positive(6), q(dtype, 6), f(6)]
    same("DynamicQuantizeMatMul", [x, *columns], atol=1e-4, fixed=(1, 2, 3, 4))
    same("DynamicQuantizeMatMul", [x, *columns], atol=1e-4)
    same("DynamicQuantizeMatMul", [x, columns[0], number(0.1)], atol=1e-4, fixed=(1, 2))


@each_dtype
@pytest.mark.parametrize("columns", [1, 6])
@pytest.mark.parametrize("fixed", [True, False])
def test_products_of_scales_for_each_matrix(dtype: Any, columns: int, fixed: bool) -> None:
    """Up to the roundings of a sum of 7 products and of what scales it, in float32."""
    weights, scales = w(np.int8, 2, 7, columns), positive(2, 1, columns)
    zeros, bias = q(np.int8, 2, 1, columns), f(columns)
    x, scale = f(2, 5, 7), number(0.02)
    unit = float(10 * 7 * np.finfo(np.float32).eps * 255 * scales.max())
    inputs = [q(dtype, 2, 5, 7), weights, scale, scales, np.array(q(dtype)), zeros, bias]
    atol = unit * 255 * float(scale)
    same("MatMulIntegerToFloat", inputs, atol=atol, fixed=(1, 3, 5, 6) if fixed else ())
    inputs = [x, weights, scales, zeros, bias]
    atol = unit * float(np.abs(x).max())
    same("DynamicQuantizeMatMul", inputs, atol=atol, fixed=range(1, 5) if fixed else ())


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(past: int, unidirectional: int) -> None:
    batch, length, heads, depth, width = 2, 5, 3, 8, 7
    columns = 3 * heads * depth
    x, zero = q(np.uint8, batch, length, width), np.array(128, np.uint8)
    mask = np.array([4, 5], np.int32)
    cache = f(2, batch, heads, past, depth) if past else None
    for dtype, scale in itertools.product(CODES, (number(0.01), positive(columns))):
        zeros = np.full(scale.shape, 3, dtype)
        inputs = [x, w(dtype, width, columns), f(columns), number(0.02), scale]
        inputs += [None if past else mask, zero, zeros, cache]
        attrs = {"num_heads": heads, "unidirectional": unidirectional}
        same("QAttention", inputs, (FLOAT, FLOAT), 1e-4, fixed=(1, 2, 4, 6, 7), **attrs)
        inputs[7] = np.array(3, dtype)
        same("QAttention", inputs, (FLOAT, FLOAT), 1e-4, fixed=(2, 4, 6, 7), **attrs)


@each_dtype
@pytest.mark.parametrize("has_segments", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_embedding(dtype: Any, has_segments: bool, has_mask: bool) -> None:
    ids = RANDOM.integers(0, 9, (2, 5)).astype(np.int32)
    tables = [q(dtype, 9, 8), q(dtype, 7, 8), q(dtype, 2, 8), q(dtype, 8), q(dtype, 8)]
    scales, zeros = positive(5), q(dtype, 5)
    numbers = [*map(np.array, scales), *map(np.array, zeros)]
    inputs = [ids, ids % 2, *tables, ids % 2 if has_mask else None, *numbers]
    if not has_segments:
        for i in (1, 4, 10, 15):
            inputs[i] = None
    same("QEmbedLayerNormalization", inputs, (FLOAT, TensorProto.INT32), 1e-4, epsilon=1e-5)


def test_linear_scales() -> None:
    """The ops of the standard under another domain."""
    x, scale, zero = f(4, 6), positive(6), q(np.uint8, 6)
    same("QuantizeLinear", [x, scale, zero], (TensorProto.UINT8,), axis=1)
    same("DequantizeLinear", [q(np.uint8, 4, 6), scale, zero], axis=1)


def test_computed_operands_of_a_quantised_product() -> None:
    """Both operands of QLinearMatMul in bytes that a run makes, as attention has them: to the bit,
    also where sums are halfway between two results, and more than one float32 holds.
    """
    zero, zeros = np.array(0, np.uint8), [np.array(120, np.uint8), np.array(128, np.uint8)]
    ties = [np.arange(1, 30, dtype=np.uint8)[:, None], np.arange(1, 17, dtype=np.uint8)[None]]
    for (a, b), scales, (b_zero, y_zero) in (
        (ties, (0.1, 0.3, 2 * 0.1 * 0.3), (zero, zero)),
        ((q(np.uint8, 2, 3, 5, 8), q(np.uint8, 2, 1, 8, 6)), (0.02, 0.02, 0.3), zeros),
        ((q(np.uint8, 5, 700), q(np.uint8, 2, 700, 6)), (0.02, 0.02, 3.0), zeros),
    ):
        a_scale, b_scale, y_scale = map(number, scales)
        inputs = [a, a_scale, b_zero, b, b_scale, b_zero, y_scale, y_zero]
        model, feeds = one_node("QLinearMatMul", inputs, (TensorProto.UINT8,), domain="")
        np.testing.assert_array_equal(Session(model).run(feeds)[0], theirs(model, feeds)[0])


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_as_many_scales_as_a_feed_has(op: str) -> None:
    """One or one per entry of the axis, in one session, where their number is a symbol."""
    is_back = op == "DequantizeLinear"
    to = FLOAT if is_back else TensorProto.UINT8

    def inputs(shape: tuple, count: int) -> list[np.ndarray]:
        return [q(np.uint8, *shape) if is_back else f(*shape), positive(count), q(np.uint8, count)]

    symbols = {6: "n", 1: "m"}
    model, feeds = one_node(op, inputs((4, 6), 1), (to,), symbols=symbols, domain="")
    session = Session(model)
    for count in (1, 6, 1):
        values = dict(zip(feeds, inputs((4, 6), count)))
        (actual,), (wanted,) = session.run(values), theirs(model, values)
        np.testing.assert_allclose(actual.astype(float), wanted, 1e-5, 1e-5)
    with pytest.raises(ShapeError, match="x1: m elements, wanted n, or 1"):
        session.run(dict(zip(feeds, inputs((4, 6), 3))))
    for shape in ((), (5,)):  # without the axis that is meant by default
        same(op, inputs(shape, 1), (to,), symbols=symbols, domain="")
