"""Numbers of 16, 8 and 4 bits: what moves them, from and to which they are cast and quantised, and
what they go through in bodies. Moves are held against the same move of wider numbers, casts and
quantisation against onnx's own evaluator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import defs, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from q7x2_ep import dtypes
from q7x2_ep.session import Session
from tests.kernels import test_against_ort as moving

OPSET = 25
HALVES = [dtypes.FLOAT16, dtypes.BFLOAT16]
EIGHTHS = [dtypes.FLOAT8E4M3FN, dtypes.FLOAT8E4M3FNUZ, dtypes.FLOAT8E5M2, dtypes.FLOAT8E5M2FNUZ]
FOURTHS = [dtypes.INT4, dtypes.UINT4, dtypes.FLOAT4E2M1]
NARROW = {dtypes.DTYPES[code].name: code for code in (*HALVES, *EIGHTHS, *FOURTHS)}
# the data among their operands; they choose, they do not compute
MOVES = {
    **dict.fromkeys(("Slice", "Tile", "Expand", "Split", "Transpose", "Gather", "Reshape"), (0,)),
    **dict.fromkeys(("GatherElements", "GatherND", "Squeeze", "Unsqueeze", "Compress"), (0,)),
    **dict.fromkeys(("Trilu", "CenterCropPad", "ReverseSequence"), (0,)),
    "Pad": (0, 2),
    "Concat": (0, 1, 2),
    "Where": (1, 2),
}


def takes(op: str, code: int) -> bool:
    schema = defs.get_schema(op, OPSET)
    kind = schema.inputs[MOVES[op][0]].type_str if op in MOVES else "T"
    allowed = next(c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == kind)
    return dtypes.type_string(code) in allowed


def built(nodes: list, arrays: list, outputs: int, constant: bool) -> tuple[bytes, dict]:
    """A model of nodes, its inputs arrays of which the first may be a constant."""
    names = [f"x{i}" for i in range(len(arrays))]
    held = [numpy_helper.from_array(arrays[0], names[0])] if constant else []
    inputs = [
        helper.make_tensor_value_info(
            name, dtypes.from_numpy(x.dtype), [f"{name}_{d}" for d in range(x.ndim)]
        )
        for name, x in list(zip(names, arrays))[len(held) :]
    ]
    infos = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    graph = helper.make_graph(nodes, "narrow", inputs, infos, held)
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opset, ir_version=11).SerializeToString(), dict(
        list(zip(names, arrays))[len(held) :]
    )


@pytest.mark.parametrize("code", NARROW.values(), ids=NARROW)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_moves(code: int, data: Any) -> None:
    op = data.draw(st.sampled_from([op for op in MOVES if takes(op, code)]))
    made = moving.OPS[op](data.draw)
    dtype = dtypes.DTYPES[code].numpy
    narrow = list(made.inputs)
    for i in MOVES[op]:
        if i < len(narrow):
            narrow[i] = (narrow[i].astype(np.int64) % 4).astype(dtype)
    wide = [x.astype(np.float32) if x.dtype == dtype else x for x in narrow]
    names = [f"x{i}" for i in range(len(narrow))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(made.outputs)], **made.attrs)
    constant = data.draw(st.booleans())
    results = [
        Session(m).run(feeds)
        for m, feeds in (built([node], x, made.outputs, constant) for x in (narrow, wide))
    ]
    for actual, expected in zip(*results):
        if expected.dtype == np.float32:
            assert actual.dtype == dtype
            actual = actual.astype(np.float32)
        np.testing.assert_array_equal(actual, expected)


CASTS = [*NARROW.values(), dtypes.FLOAT, dtypes.DOUBLE, dtypes.INT8, dtypes.INT64, dtypes.BOOL]


@pytest.mark.parametrize("code", NARROW.values(), ids=NARROW)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_casts(code: int, data: Any) -> None:
    other = data.draw(st.sampled_from(CASTS))
    of, to = data.draw(st.permutations([code, other]))
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    x = (rng.integers(-40, 40, shape) / 8).astype(np.float32)
    if not dtypes.is_float(of):
        x = np.abs(np.round(x))
    if not dtypes.is_float(to):  # of numbers beyond its range the result is open
        x = np.clip(np.abs(x), 0, 7)
    x = x.astype(dtypes.DTYPES[of].numpy)
    attrs = {"to": to}
    if dtypes.DTYPES[to].name.startswith("float8_e"):
        attrs["saturate"] = data.draw(st.integers(0, 1))
    model, feeds = built([helper.make_node("Cast", ["x0"], ["y0"], **attrs)], [x], 1, False)
    (actual,) = Session(model).run(feeds)
    assert (actual.dtype, actual.shape) == (dtypes.DTYPES[to].numpy, shape)
    if {of, to} == {dtypes.INT4, dtypes.UINT4}:  # onnx's evaluator does not know how
        np.testing.assert_array_equal(actual.astype(np.int8) % 16, x.astype(np.int8) % 16)
        return
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(actual.astype(np.float64), np.asarray(expected, np.float64))


@pytest.mark.parametrize("code", [*EIGHTHS, *FOURTHS], ids=list(NARROW)[len(HALVES) :])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_quantised(code: int, data: Any) -> None:
    """To a narrow dtype and back, with a scale for all or for each index of an axis."""
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    scales = data.draw(st.sampled_from([(), shape[axis : axis + 1]]))
    x = (rng.integers(-40, 40, shape) / 8).astype(data.draw(st.sampled_from(["f4", "f2"])))
    scale = np.asarray(2.0 ** rng.integers(-2, 2, scales), x.dtype)
    zero = np.zeros(scales, np.int8)
    if not dtypes.is_float(code):
        zero = np.asarray(rng.integers(0, 4, scales), np.int8)
    arrays = [x, scale, zero.astype(dtypes.DTYPES[code].numpy)]
    nodes = [
        helper.make_node("QuantizeLinear", ["x0", "x1", "x2"], ["y0"], axis=axis),
        helper.make_node("DequantizeLinear", ["y0", "x1", "x2"], ["y1"], axis=axis),
    ]
    model, feeds = built(nodes, arrays, 2, False)
    results = Session(model).run(feeds), ReferenceEvaluator(model).run(None, feeds)
    for actual, expected in zip(*results):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual.astype("f8"), expected.astype("f8"))


@pytest.mark.parametrize("precision", HALVES)
def test_quantised_in_a_precision(precision: int) -> None:
    """In which x and the scale are divided: they are rounded to it, not only their quotient."""
    x = np.linspace(-900, 900, 1001, dtype=np.float32)
    arrays = [x, np.array(0.59848297, np.float32), np.array(3, np.int16)]
    names = [f"x{i}" for i in range(3)]
    node = helper.make_node("QuantizeLinear", names, ["y0"], precision=precision)
    model, feeds = built([node], arrays, 1, False)
    for actual, expected in zip(
        Session(model).run(feeds), ReferenceEvaluator(model).run(None, feeds)
    ):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("code", NARROW.values(), ids=NARROW)
def test_in_bodies(code: int) -> None:
    """Captured, carried, scanned, in sequences and optionals."""
    name = dtypes.DTYPES[code].onnx
    text = """<ir_version: 11, opset_import: ["" : 23]>
    g (int64 trip, bool flag, TYPE[n] x) => (TYPE[n] last, TYPE[t, n] all, TYPE[n] chosen) {
        last, all = Loop(trip, , x) <
            body = body (int64 i, bool on, TYPE[n] state)
                => (bool next, TYPE[n] new, TYPE[n] shown) {
                next = Identity(on)
                shown = Identity(state)
                wide = Cast<to = 1>(state)
                other = Cast<to = 1>(x)
                sum = Sub(wide, other)
                new = Cast<to = CODE>(sum)
            }
        >
        chosen = If(flag) <
            then_branch = then () => (TYPE[n] a) { a = Identity(last) },
            else_branch = other () => (TYPE[n] b) { b = Identity(x) }
        >
    }""".replace("TYPE", name).replace("CODE", str(code))
    session = Session(parser.parse_model(text).SerializeToString())
    dtype = dtypes.DTYPES[code].numpy
    for trip, size, flag in ((2, 3, True), (0, 3, False), (1, 0, True)):
        x = np.arange(1, size + 1).astype(np.float32)
        feeds = {"trip": np.array(trip), "flag": np.array(flag), "x": x.astype(dtype)}
        states = [x.astype(dtype)]
        for _ in range(trip):
            states.append((states[-1].astype("f4") - x).astype(dtype))
        last, every, chosen = session.run(feeds)
        for actual, expected in (
            (last, states[-1]),
            (every, np.array(states[:-1], dtype).reshape(trip, size)),
            (chosen, states[-1] if flag else states[0]),
        ):
            assert actual.dtype == dtype
            if trip or actual.ndim == 1:  # sizes that no iteration showed
                np.testing.assert_array_equal(actual.astype("f4"), expected.astype("f4"))
