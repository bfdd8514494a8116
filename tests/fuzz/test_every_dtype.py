"""Elementwise ops, reductions and what runs along an axis, in every dtype of their schemas, over
random shapes with broadcasting, empty dims and special values: against onnx's own evaluator and
onnxruntime. Floats are held against onnx's evaluation in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from q7x2_ep import dtypes

session = pytest.importorskip("q7x2_ep.session")
OPSET = 22
NATIVE = frozenset(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)) | {
    np.dtype(name) for name in ("f4", "f8", "?", "float16", ml_dtypes.bfloat16)
}
HALVES = (np.float16, ml_dtypes.bfloat16)
UNARY = (
    *("Abs", "Neg", "Sign", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Tanh", "Sigmoid", "Relu"),
    *("Gelu", "Softplus", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh"),
    *("Acosh", "Atanh", "Floor", "Ceil", "Round", "LeakyRelu", "Elu", "Selu", "Celu", "Softsign"),
    *("ThresholdedRelu", "Shrink", "HardSigmoid", "HardSwish", "Mish", "Not", "BitwiseNot"),
    *("IsNaN", "IsInf"),
)
BINARY = (
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Equal", "Less", "LessOrEqual", "Greater"),
    *("GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"),
    *("PRelu", "Max", "Min", "Sum", "Mean"),
)
REDUCTIONS = tuple(
    f"Reduce{kind}"
    for kind in (
        "Sum",
        "Mean",
        "Max",
        "Min",
        "Prod",
        "L1",
        "L2",
        "LogSum",
        "LogSumExp",
        "SumSquare",
    )
)
ALONG_AXIS = ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
COARSE = {  # with float32 constants, or an erf of 1e-7, in double too
    *("Erf", "Gelu", "LeakyRelu", "HardSigmoid", "HardSwish", "Selu", "Softplus"),
}
SCALARS_FAIL = {"Softsign", "Mish"}  # in onnx's evaluator
ATTRIBUTES: dict[str, Any] = {
    "IsInf": st.fixed_dictionaries(
        {"detect_negative": st.booleans(), "detect_positive": st.booleans()}
    ),
    "BitShift": st.fixed_dictionaries({"direction": st.sampled_from(["LEFT", "RIGHT"])}),
    "Shrink": st.fixed_dictionaries({"bias": st.just(1.5), "lambd": st.just(0.75)}),
    "Celu": st.fixed_dictionaries({"alpha": st.just(0.5)}),
    "Gelu": st.fixed_dictionaries({"approximate": st.sampled_from(["none", "tanh"])}),
}


class Case(NamedTuple):
    """A model of one node; arrays: its inputs, the last `constants` of which the model holds."""

    op: str
    arrays: list[np.ndarray]
    attrs: dict[str, Any]
    constants: int = 0

    def run(self, engine: Any, widened: bool = False) -> np.ndarray:
        arrays = [_wide(x) if widened else x for x in self.arrays]
        names = [f"x{i}" for i in range(len(arrays))]
        fed = len(arrays) - self.constants
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in zip(names[:fed], arrays)
        ]
        held = [numpy_helper.from_array(x, n) for n, x in zip(names[fed:], arrays[fed:])]
        node = helper.make_node(self.op, names, ["y"], **self.attrs)
        output = helper.make_empty_tensor_value_info("y")
        graph = helper.make_graph([node], "case", inputs, [output], held)
        opset = [helper.make_opsetid("", OPSET)]
        return engine(
            helper.make_model(graph, opset_imports=opset, ir_version=10),
            dict(zip(names[:fed], arrays)),
        )


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if dtypes.holds_floats(x) else x


def ours(model: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return session.Session(model.SerializeToString(), threads=2).run(feeds)[0]


def onnx_evaluator(model: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


def dtypes_of(op: str) -> list[np.dtype]:
    """The dtypes of the first input of an op that kernels compute in."""
    schema = defs.get_schema(op, OPSET)
    kind = schema.inputs[0].type_str
    allowed = next(c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == kind)
    rows = [row for row in dtypes.DTYPES.values() if f"tensor({row.onnx})" in allowed]
    return [row.numpy for row in rows if row.numpy in NATIVE]


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 60.0, 1e-3]


def values(dtype: np.dtype, shape: tuple[int, ...], seed: int, special: bool) -> np.ndarray:
    """Small numbers for the most part, and what is special in the dtype."""
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return np.asarray(random.random(shape) < 0.5)
    if _is_float(dtype):
        x = (random.standard_normal(shape) * 2).astype(dtype)
        chosen = random.choice(np.array(SPECIAL, dtype), shape)
    else:
        limits = np.iinfo(dtype)
        x = random.integers(-4 if limits.min else 0, 5, shape).astype(dtype)
        chosen = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return np.asarray(np.where(random.random(shape) < 0.3, chosen, x) if special else x, dtype)


def assert_same(case: Case, actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    with np.errstate(all="ignore"):
        expected = expected.astype(actual.dtype)  # numpy sums small integers in larger ones
    if not _is_float(expected.dtype):
        np.testing.assert_array_equal(actual, expected)
        return
    if expected.dtype in HALVES:  # computed in float32, rounded once
        bound, actual, expected = _eps(expected.dtype), actual.astype("f4"), expected.astype("f4")
    else:
        bound = 64 * _eps(np.float32 if case.op in COARSE else actual.dtype)
    np.testing.assert_allclose(actual, expected, rtol=bound, atol=bound)


def _is_float(dtype: np.dtype) -> bool:
    return dtypes.is_float(dtypes.from_numpy(dtype))


def _eps(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def onnxruntime_session(model: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Skips what onnxruntime has no kernel for."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        engine = ort.InferenceSession(model.SerializeToString(), options)
    except Exception as error:
        assume("NOT_IMPLEMENTED" not in str(error) and "Type Error" not in str(error))
        raise
    return engine.run(None, feeds)[0]


@st.composite
def cases(draw: Any, op: str, special: bool) -> Case:
    seeds = st.integers(0, 2**32 - 1)
    dtype = draw(st.sampled_from(dtypes_of(op)))
    attrs = dict(draw(ATTRIBUTES.get(op, st.just({}))))
    if op == "Mod":
        attrs["fmod"] = 1 if _is_float(dtype) else draw(st.integers(0, 1))
    if op in BINARY:
        shapes = draw(
            mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=5)
        ).input_shapes
        if op == "PRelu":  # the slope repeats to x, never the other way round
            shapes = np.broadcast_shapes(*shapes), shapes[1]
        arrays = [values(dtype, shape, draw(seeds), special) for shape in shapes]
        if op in ("Div", "Mod", "Pow") and dtype.kind in "iu":
            arrays[1] = np.asarray(np.where(arrays[1] <= 0, np.array(3, dtype), arrays[1]))
        return Case(op, arrays, attrs)
    smallest = 0 if special else 1
    shape = draw(st.lists(st.integers(smallest, 5), min_size=smallest, max_size=4).map(tuple))
    if dtype.kind in "iub" and draw(st.booleans()):  # whose sums are exact
        shape = (*shape[:2], draw(st.sampled_from([257, 1000])))
    x = values(dtype, shape, draw(seeds), special)
    if op in UNARY:
        return Case(op, [x], attrs)
    assume(shape)
    axis = st.integers(-len(shape), len(shape) - 1)
    if op in REDUCTIONS:
        axes = draw(st.lists(axis, max_size=3, unique_by=lambda a: a % len(shape)))
        attrs |= {
            "keepdims": draw(st.integers(0, 1)),
            "noop_with_empty_axes": draw(st.integers(0, 1)),
        }
        return Case(op, [x, np.array(axes, np.int64)], attrs, constants=1)
    return Case(op, [x], {"axis": draw(axis)})


def is_defined(case: Case) -> bool:
    """Whether the result is more than a matter of rounding: integers of real numbers are not."""
    real = ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
    return _is_float(case.arrays[0].dtype) or case.op not in real


OPS = (*UNARY, *BINARY, *REDUCTIONS, *ALONG_AXIS)


@pytest.mark.parametrize("op", OPS)
def test_against_onnx(op: str) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
    @given(cases(op, special=True))
    def check(case: Case) -> None:
        assume(op != "Mean" or len({x.shape for x in case.arrays}) == 1)  # it does not broadcast
        assume(op not in SCALARS_FAIL or all(x.ndim for x in case.arrays))
        assume(not (op == "Gelu" and np.isneginf(case.arrays[0]).any()))  # we give the limit, 0
        assume(is_defined(case))
        assume(op != "PRelu" or np.isfinite(case.arrays[1]).all())  # it multiplies 0, too
        assume(op != "ReduceLogSumExp" or not np.isinf(case.arrays[0]).any())  # it gives NaN
        assert_same(case, case.run(ours), case.run(onnx_evaluator, widened=True))

    check()


@pytest.mark.parametrize("op", OPS)
def test_against_onnxruntime(op: str) -> None:
    @settings(max_examples=6, deadline=None)
    @given(cases(op, special=False))
    def check(case: Case) -> None:
        assume(is_defined(case))
        assume(case.arrays[0].dtype != ml_dtypes.bfloat16)  # its Python API takes none
        assume(op != "Shrink" or case.arrays[0].dtype != np.float64)  # it computes in float32
        expected = case.run(onnxruntime_session)
        actual = case.run(ours)
        assert actual.dtype == expected.dtype
        assert_same(case, actual, expected)

    check()


@pytest.mark.parametrize("op", ["Add", "Greater", "Exp"])
def test_more_dims_than_kernels_take(op: str) -> None:
    """Nine: on the host."""
    shapes = (2, 1, 2, 1, 2, 1, 2, 1, 3), (1, 2, 1, 2, 1, 2, 1, 2, 3)
    arrays = [values(np.dtype("f4"), shape, 1, False) for shape in shapes]
    case = Case(op, arrays[: 1 if op in UNARY else 2], {})
    assert_same(case, case.run(ours), case.run(onnx_evaluator))
