"""Lists of tensors, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import q7x2_ep
from q7x2_ep.errors import DataError

ort = pytest.importorskip("onnxruntime")

MODEL = """<ir_version: 9, opset_import: ["" : 18]>
g (float[n] x, float[m] z, int64 at, int64 gone) => (seq(float[k]) list, float[k] found,
    int64 length, float[j] joined, float[2, i] rows) {
    one = SequenceConstruct(x, z)
    two = SequenceInsert(one, x, at)
    three = SequenceInsert(two, z)
    list = SequenceErase(three, gone)
    less = SequenceErase(three)
    found = SequenceAt(less, at)
    length = SequenceLength(less)
    joined = ConcatFromSequence<axis = 0>(list)
    none = SequenceEmpty()
    once = SequenceInsert(none, x)
    twice = SequenceInsert(once, x)
    rows = ConcatFromSequence<axis = -2, new_axis = 1>(twice)
}"""


@pytest.mark.parametrize(("at", "gone"), [(0, 0), (1, 3), (-1, -4), (2, -1), (-2, 1)])
def test_lists(at: int, gone: int):
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    x, z = np.arange(3, dtype=np.float32), np.ones(2, np.float32)
    feed = {"x": x, "z": z, "at": np.array(at), "gone": np.array(gone)}
    session = q7x2_ep.InferenceSession(model)
    wanted = ort.InferenceSession(model).run(None, feed)
    for _ in range(2):
        items, *others = session.run(None, feed)
        for a, b in zip([*items, *others], [*wanted[0], *wanted[1:]]):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype and not np.shares_memory(a, x)
            a[...] = -1  # is the caller's
        assert len(items) == len(wanted[0])


@pytest.mark.parametrize(("at", "gone"), [(3, 0), (-4, 0), (0, 4), (0, -5)])
def test_positions_outside(at: int, gone: int):
    session = q7x2_ep.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
    x = np.ones(2, np.float32)
    with pytest.raises(DataError, match="position"):
        session.run(None, {"x": x, "z": x, "at": np.array(at), "gone": np.array(gone)})


def test_a_list_that_a_loop_fills_is_a_scanned_output():
    """In a body that is compiled twice, beside a list that is not only stacked."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (int64 trip, float[n] x) => (float[t, n] y, float[m] flat) {
        none = SequenceEmpty()
        last, first, second = Loop(trip, , x, none, none) <
            body = b (int64 i, bool on, float[n] s, seq(float[n]) p, seq(float[n]) q)
                => (bool next, float[n] r, seq(float[n]) p2, seq(float[n]) q2) {
                next = Identity(on)
                r = Add(s, x)
                empty = SequenceEmpty()
                inner, all = Loop(two, , s, empty) <
                    body = c (int64 j, bool go, float[n] u, seq(float[n]) list)
                        => (bool more, float[n] v, seq(float[n]) grown) {
                        more = Identity(go) v = Mul(u, half) grown = SequenceInsert(list, v) }
                >
                halves = ConcatFromSequence<axis = 0, new_axis = 1>(all)
                sum = ReduceSum<keepdims = 0>(halves, axis)
                p2 = SequenceInsert(p, sum)
                q2 = SequenceInsert(q, r)
            }
        >
        y = ConcatFromSequence<axis = 0, new_axis = 1>(first)
        flat = ConcatFromSequence<axis = 0>(second)
    }""".replace("{\n", "<int64 two = {2}, float half = {0.5}, int64[1] axis = {0}> {\n", 1)
    model = onnx.parser.parse_model(text).SerializeToString()
    ours, theirs = q7x2_ep.InferenceSession(model), ort.InferenceSession(model)
    for trip, n in ((3, 2), (1, 4), (3, 2)):
        feed = {"trip": np.array(trip), "x": np.linspace(0, 1, n, dtype=np.float32)}
        for a, b in zip(ours.run(None, feed), theirs.run(None, feed)):
            np.testing.assert_allclose(a, b, 1e-6)
            assert a.shape == b.shape
    text = ours._session.text("ir")
    assert text.count("SequenceInsert") == 2  # of the second list, and of the body, as it was read


@pytest.mark.parametrize("kind", ["float", "double", "float16"])
@pytest.mark.parametrize("sizes", [1, 2, 3])
def test_parts_of_a_tensor(kind: str, sizes: int):
    """Are of its dtype, and the caller's."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g ({kind}[n] x, int64[m] sizes) => (seq({kind}[k]) parts, {kind}[j] first) {{
        doubled = Add(x, x)
        parts = SplitToSequence(x, sizes)
        twice = SplitToSequence(doubled)
        zero = Constant<value_int = 0>()
        first = SequenceAt(twice, zero)
    }}"""
    model = onnx.parser.parse_model(text).SerializeToString()
    x = np.arange(6).astype("float32" if kind == "float" else kind)
    feed = {"x": x, "sizes": np.full(sizes, 6 // sizes)}
    parts, first = q7x2_ep.InferenceSession(model).run(None, feed)
    assert first.tolist() == [0] and first.dtype == x.dtype
    for part, wanted in zip(parts, np.split(x, sizes)):
        np.testing.assert_array_equal(part, wanted)
        assert part.dtype == x.dtype and not np.shares_memory(part, x)


def same_parts(text: str, feed: dict[str, np.ndarray]) -> None:
    model = onnx.parser.parse_model(text).SerializeToString()
    (wanted,), (parts,) = (each.InferenceSession(model).run(None, feed) for each in (ort, q7x2_ep))
    assert len(parts) == len(wanted)
    for part, other in zip(parts, wanted):
        np.testing.assert_array_equal(part, other, strict=True)


SPLITS = [
    ("int64[K] split", [1, 4], 0),
    ("int64[K] split", [0, 5, 0], 0),
    ("int64 split", 2, 0),
    ("int64 split", 9, 1),
    ("int64 split", 1, -2),
]


@pytest.mark.parametrize(("split", "sizes", "axis"), SPLITS)
def test_parts(split: str, sizes: object, axis: int):
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, m] x, {split}) =>
        (seq(float[i, j]) parts) {{ parts = SplitToSequence<axis = {axis}>(x, split) }}"""
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    same_parts(text, {"x": x, "split": np.array(sizes)})


@pytest.mark.parametrize(("axis", "keepdims"), [(0, 1), (1, 0), (-1, 0)])
def test_parts_of_one(axis: int, keepdims: int):
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, m] x) => (seq(float[i]) parts)
        {{ parts = SplitToSequence<axis = {axis}, keepdims = {keepdims}>(x) }}"""
    same_parts(text, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})


@pytest.mark.parametrize("sizes", [[1, 1], [6, -1], [2, 4], 0, -1])
def test_parts_that_are_not_all(sizes: object):
    split = "int64 split" if np.ndim(sizes) == 0 else "int64[K] split"
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n] x, {split}) =>
        (seq(float[i]) parts) {{ parts = SplitToSequence(x, split) }}"""
    session = q7x2_ep.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(DataError, match="for a dim of 5"):
        session.run(None, {"x": np.zeros(5, np.float32), "split": np.array(sizes)})
