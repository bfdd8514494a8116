"""Ops of the standard that few models have, beside onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any, Optional

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.parser import parse_model

from q7x2_ep.errors import DataError, ModelError, ShapeError
from q7x2_ep.session import Session
from tests.models.beside import one_node, same, theirs

RANDOM = np.random.default_rng(29)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [None, -1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("image", [(), (5,), (2, 3)], ids=str)
def test_log_likelihood(
    reduction: str, ignored: Optional[int], weighted: bool, image: tuple
) -> None:
    """The mean is over the weights of what counts, also where -1 is what does not."""
    x = RANDOM.standard_normal((7, 4, *image)).astype(np.float32)
    target = RANDOM.integers(0, 4, (7, *image))
    target[::3] = target[::3] if ignored is None else ignored
    inputs = [x, target, *([RANDOM.random(4).astype(np.float32)] if weighted else [])]
    more: dict[str, Any] = {} if ignored is None else {"ignore_index": ignored}
    how = {"domain": "", "reduction": reduction, **more}
    session = same("NegativeLogLikelihoodLoss", inputs, symbols={7: "batch"}, **how)
    assert not session.program.host_phases


def test_determinants_of_halves() -> None:
    """numpy has none."""
    x = RANDOM.standard_normal((3, 4, 4)).astype(np.float16)
    same("Det", [x], (TensorProto.FLOAT16,), 1e-2, 1e-2, domain="")


@pytest.mark.parametrize("size", [0, 2, 3])
@pytest.mark.parametrize("pads", [(-1, 1), (1, -1), (-2, 2), (-4, 3), (4, -3), (5, -4), (4, -5)])
@pytest.mark.parametrize("symbols", [{}, {0: "n", 2: "n", 3: "n"}], ids=["fixed", "free"])
@pytest.mark.parametrize("fixed", [(1, 2), ()], ids=["constant", "fed"])
def test_borders_that_are_cut(size: int, pads: tuple, symbols: dict, fixed: tuple) -> None:
    """More may be cut off an end than there is of x: the border behind it is cut then."""
    if size + sum(pads) < 0:
        return
    x = RANDOM.standard_normal((size, 4)).astype(np.float32)
    inputs = [x, np.array([pads[0], 0, pads[1], 0]), np.array(7, np.float32)]
    same("Pad", inputs, fixed=fixed, symbols=symbols, domain="")


@pytest.mark.parametrize("shape", [(1, 0, 2, 2), (0, 3, 2, 2), (1, 3, 0, 2)], ids=str)
def test_response_of_nothing(shape: tuple) -> None:
    same("LRN", [np.zeros(shape, np.float32)], domain="", size=3)


def test_diagonals_beyond_all_matrices() -> None:
    x = RANDOM.standard_normal((3, 2)).astype(np.float32)
    for k, upper in itertools.product((-(2**63), 2**63 - 1), (0, 1)):
        same("Trilu", [x, np.array(k)], domain="", upper=upper)


@pytest.mark.parametrize("across", [0, 1])
@pytest.mark.parametrize("variance", [0, 1])
def test_means_and_variances_before_the_standard_had_them(across: int, variance: int) -> None:
    x = RANDOM.standard_normal((2, 3, 4, 5)).astype(np.float32)
    attrs = {"across_channels": across, "normalize_variance": variance}
    same("MeanVarianceNormalization", [x], domain="", standard=8, **attrs)


@pytest.mark.parametrize("equation", ["i,j->ij", "i,ij->i", "ijk,ikl->ijl"])
def test_sums_over_nothing(equation: str) -> None:
    terms = equation.split("->")[0].split(",")
    same(
        "Einsum",
        [np.zeros([0] * len(term), np.float32) for term in terms],
        domain="",
        equation=equation,
    )


def test_attributes_of_a_norm_before_it_was_standard() -> None:
    """onnxruntime's own LayerNormalization takes what it does not know."""
    inputs = [RANDOM.standard_normal(shape).astype(np.float32) for shape in ((3, 4), 4, 4)]
    same("LayerNormalization", inputs, domain="", standard=12, axis=-1, epsilon=0.1, epsion=0.5)
    model, _ = one_node("LayerNormalization", inputs, (TensorProto.FLOAT,), domain="", epsion=0.5)
    with pytest.raises(ModelError, match="Unrecognized attribute: epsion"):
        Session(model)


def test_constants_of_one_name() -> None:
    """The last is read, also by nodes before it."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value_float=2.0),
        helper.make_node("Mul", ["x", "c"], ["y"]),
        helper.make_node("Constant", [], ["c"], value_float=3.0),
        helper.make_node("Mul", ["y", "c"], ["z"]),
    ]
    x, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xz")
    graph = helper.make_graph(nodes, "g", [x], [z])
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    feeds = {"x": np.array([1, -1], np.float32)}
    (ours,), (wanted,) = Session(model).run(feeds), theirs(model, feeds)
    assert ours.tolist() == wanted.tolist() == [9, -9]


REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_scalars_are_reduced(reduction: str, axis: int, keepdims: int) -> None:
    """Over the axis of a single element, as torch takes it, told by data or not."""
    op, inputs = f"Reduce{reduction}", [np.float32(2.5), np.array([axis])]
    how = {"domain": "", "keepdims": keepdims}
    same(op, inputs, **how)
    model, feeds = one_node(op, inputs, (TensorProto.FLOAT,), fixed=(1,), **how)
    (wanted,) = theirs(*one_node(op, inputs[:1], (TensorProto.FLOAT,), **how))
    (actual,) = Session(model).run(feeds)
    assert actual.shape == () and actual == pytest.approx(wanted, rel=1e-6)


def test_softmax_of_a_scalar() -> None:
    """No fusion counts the axes of one that has none."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float x) => (float y) <int64[1] axes={-1}> {
        top = ReduceMax(x, axes)
        rest = Sub(x, top)
        weight = Exp(rest)
        total = ReduceSum(weight, axes)
        y = Div(weight, total)
    }"""
    (y,) = Session(parse_model(text).SerializeToString()).run({"x": np.float32(-3)})
    assert y.shape == () and y == 1


@pytest.mark.parametrize("fixed", [(), (1,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_products_of_no_columns(dtype: Any, fixed: tuple[int, ...]) -> None:
    """Sums of nothing, also by a weight without rows."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for shape in ((3, 0), (2, 3, 0), (0,)):
        for columns in (1, 4, 40):
            inputs = [np.zeros(shape, dtype), np.zeros((0, columns), dtype)]
            same("MatMul", inputs, (code,), domain="", fixed=fixed)


@pytest.mark.parametrize("filters", [4, 16, 64])
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolutions_of_no_channels(filters: int, kernel: int) -> None:
    """Sums of nothing, and the bias."""
    w = np.zeros((filters, 0, kernel, kernel), np.float32)
    bias = RANDOM.standard_normal(filters).astype(np.float32)
    for image in ((2, 0, 8, 9), (1, 0, 40, 40)):
        inputs = [np.zeros(image, np.float32), w, bias]
        model, feeds = one_node("Conv", inputs, (TensorProto.FLOAT,), fixed=(1, 2), domain="")
        (y,) = Session(model).run(feeds)
        size = image[2] - kernel + 1, image[3] - kernel + 1
        expected = np.broadcast_to(bias[:, None, None], (image[0], filters, *size))
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("batch, x, indices", [(0, (4, 3), (2, 0)), (1, (2, 3), (2, 5, 0))])
def test_indices_of_no_depth(batch: int, x: tuple, indices: tuple, symbolic: bool) -> None:
    """All of x for each of them, also where only a feed tells."""
    given = [RANDOM.standard_normal(x).astype(np.float32), np.zeros(indices, np.int64)]
    symbols = {size: f"d{size}" for size in {*x, *indices}} if symbolic else None
    same("GatherND", given, symbols=symbols, domain="", batch_dims=batch)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("symbols", [None, {0: "n"}])
def test_the_greatest_of_nothing(op: str, symbols: Any) -> None:
    """There is none, but where the result is as empty."""
    empty = np.zeros((0, 0, 3), np.float32)
    for keepdims in (0, 1):
        same(
            op, [empty], (TensorProto.INT64,), symbols=symbols, domain="", axis=1, keepdims=keepdims
        )
    model, feeds = one_node(
        op, [np.zeros((2, 0), np.float32)], (TensorProto.INT64,), domain="", axis=1
    )
    with pytest.raises((ModelError, ShapeError), match="the axis has no element"):
        Session(model).run(feeds)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "int64", "uint64"])
def test_texts_of_integers_that_are_too_large(dtype: str) -> None:
    """Their low bits, as onnxruntime has them; of more than 64 bits none."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    texts = np.array(["-2", "300", "4294967297", "-200", "18446744073709551615"], object)
    texts = texts[:-1] if dtype.startswith("i") else texts
    same("Cast", [texts], (code,), domain="", to=code)
    model, feeds = one_node(
        "Cast", [np.array(["1", "9" * 20], object)], (code,), domain="", to=code
    )
    with pytest.raises(DataError, match="is no integer of 64 bits"):
        Session(model).run(feeds)


@pytest.mark.parametrize("symbols", [None, {3: "n", 8: "m"}])
@pytest.mark.parametrize("fixed", [(), (1,)])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_conditions_of_any_length(symbols: Any, fixed: tuple, axis: Any, length: int) -> None:
    """What they say behind the axis is not read."""
    condition = np.arange(length) % 3 != 1
    x = RANDOM.standard_normal((3, 2)).astype(np.float32)
    attrs = {} if axis is None else {"axis": axis}
    same("Compress", [x, condition], symbols=symbols, fixed=fixed, domain="", **attrs)


@pytest.mark.parametrize("step", [2**63 - 1, -(2**63), 1 - 2**63, 2**62, -(2**62), 2**41])
@pytest.mark.parametrize("start, end", [(0, 9), (-1, -(2**63)), (4, -9), (-(2**63), 4), (2, 2)])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_steps_that_are_longer_than_any_axis(step: int, start: int, end: int, size: int) -> None:
    x = RANDOM.standard_normal((2, size)).astype(np.float32)
    bounds = [np.array([n], np.int64) for n in (start, end, 1, step)]
    for fixed in ((), (1, 2, 3), (1, 2, 3, 4)):
        for symbols in (None, {size: "n"}) if size > 2 else (None,):
            same("Slice", [x, *bounds], fixed=fixed, symbols=symbols, domain="")
