"""float16 and bfloat16 models: what is rounded, what is not, and how converters spell them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import helper

import q7x2_ep
from q7x2_ep import dtypes, errors, importer
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.compare import OutputError
from q7x2_ep.feeds import random_feeds
from q7x2_ep.passes import infer
from tests.models.files import FOLDER, SUFFIX, read
from tests.models.test_matrix import onnxruntime_session, run, sizes_of

CODES = {"float32": 1, "int64": 7, "bool": 9, "float16": 10, "float64": 11, "bfloat16": 16}
HALVES = ["float16", "bfloat16"]
node = helper.make_node


def session_of(
    nodes: list[Any], inputs: dict[str, str], outputs: dict[str, str]
) -> q7x2_ep.InferenceSession:
    """A model of vectors; inputs and outputs: dtypes by name."""
    infos = [
        [helper.make_tensor_value_info(name, CODES[dtype], ["N"]) for name, dtype in each.items()]
        for each in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "halves", *infos)
    opsets = [helper.make_opsetid("", 23)]
    return q7x2_ep.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def cast(x: str, y: str, to: str) -> Any:
    return node("Cast", [x], [y], to=CODES[to])


def halves_of(x: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(dtypes.BY_NUMPY[dtype].numpy)


FLOATS = hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32))


@settings(deadline=None, max_examples=60)
@given(FLOATS, st.sampled_from(HALVES))
def test_a_cast_there_and_back_rounds(x: np.ndarray, dtype: str) -> None:
    with session_of(
        [cast("x", "h", dtype), cast("h", "y", "float32")], {"x": "float32"}, {"y": "float32"}
    ) as s:
        (y,) = s.run(None, {"x": x})
    np.testing.assert_array_equal(y, halves_of(x, dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_lost_by_rounding_can_be_computed(dtype: str) -> None:
    nodes = [cast("x", "h", dtype), cast("h", "w", "float32"), node("Sub", ["x", "w"], ["y"])]
    x = np.random.default_rng(0).standard_normal(999).astype(np.float32)
    with session_of(
        [*nodes, node("Mul", ["h", "h"], ["z"])], {"x": "float32"}, {"y": "float32", "z": dtype}
    ) as s:
        y, _ = s.run(None, {"x": x})
    np.testing.assert_array_equal(y, x - halves_of(x, dtype).astype(np.float32))
    assert y.any()


@settings(deadline=None, max_examples=60)
@given(FLOATS, st.sampled_from(HALVES))
def test_comparisons_see_what_the_dtype_holds(x: np.ndarray, dtype: str) -> None:
    """x * x is exact in float32 for these, so that it is rounded once in both."""
    x = halves_of(x, dtype)
    nodes = [
        node("Mul", ["x", "x"], ["a"]),
        node("Equal", ["a", "x"], ["same"]),
        node("IsInf", ["a"], ["inf"]),
        node("Floor", ["a"], ["floor"]),
        cast("a", "true", "bool"),
    ]
    outputs = {"same": "bool", "inf": "bool", "floor": dtype, "true": "bool"}
    with session_of(nodes, {"x": dtype}, outputs) as session:
        same, infinite, floor, true = session.run(None, {"x": x})
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32)
        a = halves_of(wide * wide, dtype).astype(np.float32)
        np.testing.assert_array_equal(same, a == wide)
        np.testing.assert_array_equal(infinite, np.isinf(a))
        np.testing.assert_array_equal(floor.astype(np.float32), np.floor(a))
        np.testing.assert_array_equal(true, a != 0)


@pytest.mark.parametrize("dtype", HALVES)
def test_thresholds_and_nearest_pixels_see_what_the_dtype_holds(dtype: str) -> None:
    """1 and a quarter of a step is 1 there, not above a threshold of 1; half of a bit less than 1
    is a half, in the middle of two pixels, of which the even one is taken.
    """
    step = 2.0 ** -{"float16": 10, "bfloat16": 7}[dtype]
    numbers = {"more": [step / 4], "less": [-step / 8], "half": [0.5], "level": [0.0]}
    nodes = [
        node("Constant", [], [name], value=helper.make_tensor(name, CODES[dtype], [1], number))
        for name, number in numbers.items()
    ]
    row = helper.make_tensor("image", CODES[dtype], [1, 1, 1, 3], [0.0, 1.0, 2.0])
    nodes += [
        node("Add", ["x", "more"], ["above"]),
        node("ThresholdedRelu", ["above"], ["relu"], alpha=1.0),
        node("Shrink", ["above"], ["shrunk"], lambd=1.0),
        node("Add", ["x", "less"], ["below"]),
        node("Mul", ["below", "half"], ["middle"]),
        node("Concat", ["middle", "level"], ["point"], axis=0),
        node("Constant", [], ["sizes"], value_ints=[1, 1, 1, 2]),
        node("Reshape", ["point", "sizes"], ["grid"]),
        node("Constant", [], ["image"], value=row),
        node("GridSample", ["image", "grid"], ["pixel"], mode="nearest", align_corners=1),
        node("Constant", [], ["flat"], value_ints=[-1]),
        node("Reshape", ["pixel", "flat"], ["nearest"]),
    ]
    with session_of(nodes, {"x": dtype}, dict.fromkeys(("relu", "shrunk", "nearest"), dtype)) as s:
        relu, shrunk, nearest = s.run(None, {"x": halves_of(np.ones(1), dtype)})
    assert (float(relu[0]), float(shrunk[0]), float(nearest[0])) == (0.0, 0.0, 2.0)


@pytest.mark.parametrize("dtype", HALVES)
def test_arithmetic_is_rounded_once(dtype: str) -> None:
    rng = np.random.default_rng(1)
    x, y = (halves_of(rng.standard_normal(4096), dtype) for _ in range(2))
    nodes = [
        node("Mul", ["x", "y"], ["a"]),
        node("Add", ["a", "x"], ["b"]),
        node("Exp", ["b"], ["c"]),
    ]
    with session_of(nodes, {"x": dtype, "y": dtype}, {"b": dtype, "c": dtype}) as session:
        b, c = session.run(None, {"x": x, "y": y})
        steps = [step.op for step in session._session.plan.steps]
    wide = x.astype(np.float64) * y.astype(np.float64) + x.astype(np.float64)
    np.testing.assert_array_equal(b, halves_of(wide.astype(np.float32), dtype))
    error = np.abs(c.astype(np.float64) - np.exp(wide))
    assert (error <= 0.51 * dtypes.epsilon(CODES[dtype]) * np.exp(wide)).all()
    assert steps.count("cast") <= 4


@pytest.mark.parametrize("dtype", HALVES)
def test_feeds(dtype: str) -> None:
    with session_of([node("Neg", ["x"], ["y"])], {"x": dtype}, {"y": dtype}) as session:
        assert [arg.type for arg in session.get_inputs()] == [f"tensor({dtype})"]
        assert [arg.type for arg in session.get_outputs()] == [f"tensor({dtype})"]
        x = halves_of(np.arange(5.0), dtype)
        (y,) = session.run(None, {"x": x})
        assert y.dtype == x.dtype and (y == -x).all()
        for wrong in (x.view(np.uint16), x.astype(np.float32)):
            with pytest.raises(errors.Q7Error, match=f"tensor\\({dtype}\\)"):
                session.run(None, {"x": wrong})


BLOCKED = {
    "none": None,
    "norms": ["LayerNormalization", "Softmax"],
    "parts": ["ReduceMean", "Pow", "Sqrt", "Div", "Sub", "Erf", "Softmax"],
}


@pytest.mark.parametrize("keep_io", [False, True])
@pytest.mark.parametrize("blocked", BLOCKED)
@pytest.mark.parametrize(
    "name", ["bert.eager.legacy17", "gpt2.sdpa.dynamo18", "llama.sdpa.dynamo20"]
)
def test_converted_models_have_the_steps_of_their_twins(
    name: str, blocked: str, keep_io: bool
) -> None:
    """onnxruntime's converter puts Casts around ops that stay in float32, behind all nodes."""
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    plain = read(FOLDER / (name + SUFFIX))
    converted = float16.convert_float_to_float16(
        onnx.load_model_from_string(plain), keep_io_types=keep_io, op_block_list=BLOCKED[blocked]
    )
    made = [output for each in converted.graph.node for output in each.output]
    if len(set(made)) < len(made):
        pytest.skip("the converter made a value twice")
    model = converted.SerializeToString()
    theirs = onnxruntime_session(model)
    graph = importer.read(model)
    infer.run(graph)
    with q7x2_ep.InferenceSession(model) as session, q7x2_ep.InferenceSession(plain) as twin:
        kinds = [Counter(step.op for step in each._session.plan.steps) for each in (session, twin)]
        feeds = random_feeds(graph, dims=sizes_of(2, 16, 5))
        true = evaluate(graph, feeds, np.float64)
        ours = session.run(None, feeds)
        edges = len(session.get_inputs()) + len(session.get_outputs())
    for mine, other, exact in zip(ours, run(theirs, feeds), true):
        assert OutputError.of(name, mine, other, exact).accurate
    extra, missing = kinds[0] - kinds[1], kinds[1] - kinds[0]
    assert not missing and set(extra) <= {"cast", "chain"} and sum(extra.values()) <= edges
