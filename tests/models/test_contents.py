"""Sizes that come as data (passes/contents.py), against onnxruntime: fed, computed, in bodies, and
wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import q7x2_ep
from q7x2_ep.ops.common import is_movement
from q7x2_ep.plan.parts import CONTENTS

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def int64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


CASES = {
    "TopK, k fed": (
        "(float[n, m] x, int64[1] k) => (float[n, a] v, int64[n, a] i) { v, i = TopK(x, k) }",
        [{"x": X, "k": int64(k)} for k in (3, 6, 0, 1)],
    ),
    "TopK, k computed": (
        """(float[n, m] x, int64[k] all) => (float[n, a] v, int64[n, a] i) {
            k = ReduceMin<keepdims = 1>(all) v, i = TopK<largest = 0>(x, k) }""",
        [{"x": X, "all": int64(*k)} for k in ((3, 4), (9, 2, 5), (6,))],
    ),
    "Range of a limit": (
        "(int64 n) => (int64[k] y) <int64 a = {2}, int64 d = {3}> { y = Range(a, n, d) }",
        [{"n": np.array(n)} for n in (9, 2, -7, 3, 100)],
    ),
    "Range down, both ends": (
        "(int64 a, int64 b) => (int64[k] y) <int64 d = {-2}> { y = Range(a, b, d) }",
        [{"a": np.array(a), "b": np.array(b)} for a, b in ((5, -4), (-3, -4), (-9, 9), (3, 0))],
    ),
    "Range of int32": (
        "(int32 n) => (int32[k] y) <int32 a = {-2}, int32 d = {1}> { y = Range(a, n, d) }",
        [{"n": np.array(n, np.int32)} for n in (3, -2, -5)],
    ),
    "Expand": (
        "(float[n, m] x, int64[3] s) => (float[a, b, c] y) { y = Expand(x, s) }",
        [{"x": X, "s": int64(*s)} for s in ((2, 4, 6), (1, 1, 1), (0, 4, 1), (3, 1, 6))],
    ),
    "Expand of ones": (
        "(float[n, m] x, int64[2] s) => (float[b, c] y) { y = Expand(x, s) }",
        [{"x": X[:1], "s": int64(*s)} for s in ((5, 1), (2, 6))] + [{"x": X, "s": int64(1, 6)}],
    ),
    "Tile": (
        "(float[n, m] x, int64[2] s) => (float[b, c] y) { t = Tile(x, s) y = Neg(t) }",
        [{"x": X, "s": int64(*s)} for s in ((1, 2), (3, 1), (0, 2))],
    ),
    "ConstantOfShape, and its size goes on": (
        """(int64[2] s, float[k] w) => (float[a, k] y) {
            z = ConstantOfShape(s) one = Constant<value = float {1}>() o = Add(z, one)
            y = Mul(o, w) }""",
        [{"s": int64(2, 5), "w": X[0, :5]}, {"s": int64(0, 6), "w": X[0]}],
    ),
    "Slice from and to": (
        """(float[n, m] x, int64[2] s, int64[2] e) => (float[a, b] y) {
            z = Slice(x, s, e) y = Neg(z) }""",
        [
            {"x": X, "s": int64(*s), "e": int64(*e)}
            for s, e in (
                ((1, 2), (3, 5)),
                ((-3, -9), (-1, 9)),
                ((0, 5), (0, 2)),
                ((9, -(2**63)), (2**63 - 1, -(2**63))),
                ((-(2**63), 2), (2**63 - 1, -1)),
            )
        ],
    ),
    "Slice of every other, and back": (
        """(float[n, m] x, int64[1] s, int64[1] e) => (float[a, m] y, float[n, b] z) <
            int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] back = {-1}> {
            y = Slice(x, s, e, zero, two) z = Slice(x, e, s, one, back) }""",
        [
            {"x": X, "s": int64(s), "e": int64(e)}
            for s, e in ((0, 3), (1, -1), (-9, 9), (3, 1), (-(2**63), 4), (2, 2))
        ],
    ),
    "one vector for two": (
        """(float[n, m] x, int64[1] k) => (float[n, a] v, float[n, b] w) {
            v, i = TopK(x, k) w, j = TopK<largest = 0>(x, k) }""",
        [{"x": X, "k": int64(k)} for k in (2, 5)],
    ),
    "beside a host step": (
        """(string[n] names, float[n, m] x, int64[1] k) => (float[n, a] v, string[n] same) {
            same = Identity(names) v, i = TopK(x, k) }""",
        [{"names": np.array(["a"] * 4, object), "x": X, "k": int64(2)}],
    ),
    "Slice, both bounds": (
        "(float[n, m] x, int64[2] a, int64[2] b) => (float[k, l] y) { y = Slice(x, a, b) }",
        [
            {"x": X, "a": int64(*a), "b": int64(*b)}
            for a, b in (
                *(((0, 1), (2, 3)), ((1, -3), (9, -1)), ((-9, -9), (-2, 9)), ((2, 5), (1, 5))),
                *(((4, 0), (5, 1)), ((-(2**63), 7), (2**63 - 1, 8)), ((-4, -6), (-4, -5))),
            )
        ],
    ),
    "Slice to": (
        """(float[n, m] x, int64[1] b) => (float[k, m] y) <int64[1] a = {1}> {
            cut = Slice(x, a, b) y = Neg(cut) }""",
        [{"x": X, "b": int64(b)} for b in (3, 1, 0, -1, -9, 9)],
    ),
    "Slice by steps": (
        """(float[n, m] x, int64[2] a) => (float[n, k] y, float[k, m] z)
        <int64[1] end = {5}, int64[1] axis = {-1}, int64[1] two = {2}, int64[2] axes = {1, 0},
         int64[2] back = {-2, -1}, int64[2] first = {0, -9}> {
            one = Constant<value = int64[1] {0}>() a0 = Gather(a, one)
            y = Slice(x, a0, end, axis, two) z = Slice(x, a, first, axes, back) }""",
        [{"x": X, "a": int64(*a)} for a in ((0, 3), (4, 1), (-2, -2), (-7, 8), (9, -9))],
    ),
    "Slice of one, wherever it is": (
        """(float[n, m] x, int64 i) => (float[k, m] y) <int64[1] one = {1}, int64[1] zero = {0}> {
            at = Unsqueeze(i, zero) next = Add(at, one) row = Slice(x, at, next) y = Neg(row) }""",
        [{"x": X, "i": np.array(i)} for i in (0, 3, 2, 4, -1, -2, 9, 1)],
    ),
    "Pad, by widths that go through other ranks": (
        """(float[n, m] x, int64 width) => (float[k, l] y, float[k, i] z) <
            int64[1] zero = {0}, int64[1] one = {1}, int64[2] no = {0, 0}, int64[2] two = {-1, 2},
            int64[1] back = {-1}, int64[1] front = {-9}, int64[1] flat = {-1}> {
            after = Unsqueeze(width, zero) before = Mul(after, one)
            ends = Concat<axis = 0>(one, after, no) pairs = Reshape(ends, two)
            turned = Slice(pairs, back, front, zero, back) sides = Transpose(turned)
            widths = Reshape(sides, flat) y = Pad<mode = "reflect">(x, widths)
            shape = Shape(y) end = Gather(shape, one) all = Slice(y, zero, end, one)
            z = Neg(all) }""",
        [{"x": X, "width": np.array(n)} for n in (2, 0, -3, 5)],
    ),
    "Pad with axes": (
        """(float[n, m] x, int64[2] p) => (float[n, l] y) <int64[1] axes = {1}> {
            y = Pad(x, p, , axes) }""",
        [{"x": X, "p": int64(*p)} for p in ((1, 2), (0, -2), (-6, 0), (-2, 3))],
    ),
    "in a Loop": (
        """(int64 trip, float[n, m] x) => (float[n] y) {
            zero = Constant<value = int64 {0}>() start = ReduceSum<keepdims = 0>(x, one)
            y = Loop(trip, , start) <body = b (int64 i, bool on, float[n] s)
                => (bool next, float[n] r) {
                    next = Identity(on) more = Add(i, one) v, at = TopK(x, more)
                    t = ReduceSum<keepdims = 0>(v, one) r = Add(s, t) }>
        }""".replace("{\n            zero", "<int64[1] one = {1}> {\n            zero", 1),
        [{"trip": np.array(n), "x": X} for n in (3, 6, 0)],
    ),
}


def sessions(text: str) -> tuple[Any, Any]:
    model = onnx.parser.parse_model(HEADER + "g " + text).SerializeToString()
    return q7x2_ep.InferenceSession(model), onnxruntime.InferenceSession(model)


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime_does(name):
    """Each feed three times: planned, as a flow, and by its short way."""
    text, feeds = CASES[name]
    ours, theirs = sessions(text)
    for feed in feeds * 2:
        expected = theirs.run(None, feed)
        for _ in range(3):
            for ours_of, of in zip(ours.run(None, feed), expected):
                assert ours_of.dtype == of.dtype and ours_of.shape == of.shape
                close = np.allclose if of.dtype.kind == "f" else np.array_equal
                assert close(ours_of, of)


@pytest.mark.parametrize("name", [name for name in CASES if "Loop" not in name])
def test_nothing_else_is_on_the_host(name):
    phases = sessions(CASES[name][0])[0]._session.program.host_phases
    others = [phase.node.op for phase in phases if not is_movement(phase.node)]
    assert set(others) <= {CONTENTS, "Identity"} and CONTENTS in others


def test_what_widths_are_computed_of_comes_first():
    """One phase has all that is padded, however many widths tell each other's lengths."""
    layer = """n{i} = Shape<start = 2, end = 3>(x{i}) f{i} = Cast<to = 1>(n{i})
        h{i} = Mul(f{i}, half) c{i} = Ceil(h{i}) l{i} = Cast<to = 7>(c{i}) t{i} = Mul(l{i}, two)
        w{i} = Sub(t{i}, n{i}) p{i} = Concat<axis = 0>(no, w{i})
        q{i} = Pad<mode = "edge">(x{i}, p{i}) x{j} = Conv<strides = [2]>(q{i}, w)"""
    layers = " ".join(layer.format(i=i, j=i + 1) for i in range(3))
    ours, theirs = sessions(
        f"""(float[n, 2, l] x0) => (float[n, 2, k] x3) <int64[5] no = {{0, 0, 0, 0, 0}},
            int64[1] two = {{2}}, float[1] half = {{0.5}}, float[2, 2, 1] w = {{1, 2, 3, -4}}>
            {{ {layers} }}"""
    )
    program = ours._session.program
    assert [phase.node.op for phase in program.host_phases] == [CONTENTS] * 3
    ops = [
        [step.op for step in phase.plan.steps]
        for phase in program.phases
        if phase not in program.host_phases
    ]
    assert [any(op.startswith("conv") for op in each) for each in ops] == [False] * 3 + [True]
    for length in (9, 16, 1, 9):
        x = np.random.default_rng(0).standard_normal((2, 2, length)).astype(np.float32)
        for _ in range(3):
            assert np.allclose(ours.run(None, {"x0": x}), theirs.run(None, {"x0": x}), rtol=1e-5)


@pytest.mark.parametrize(
    "name, feed",
    [
        ("TopK, k fed", {"x": X, "k": int64(7)}),
        ("TopK, k fed", {"x": X, "k": int64(-1)}),
        ("Expand", {"x": X, "s": int64(2, 3, 6)}),
        ("Expand", {"x": X, "s": int64(2, 4, -6)}),
        ("Tile", {"x": X, "s": int64(-1, 1)}),
        ("Pad with axes", {"x": X, "p": int64(-4, -3)}),
        ("ConstantOfShape, and its size goes on", {"s": int64(-1, 5), "w": X[0, :5]}),
        ("ConstantOfShape, and its size goes on", {"s": int64(2**62, 2**62), "w": X[0, :5]}),
    ],
)
def test_refused_as_by_onnxruntime(name, feed):
    """Before and after runs that were good."""
    text, (good, *_) = CASES[name]
    ours, theirs = sessions(text)
    with pytest.raises(Exception, match=r"\w"):
        theirs.run(None, feed)
    for _ in range(3):
        with pytest.raises(q7x2_ep.Q7Error):
            ours.run(None, feed)
        ours.run(None, good)


def test_numbers_in_a_shape_behind_a_rank_that_a_run_tells():
    """-1 and 0 of Reshape are no sizes, wherever they are read."""
    ours, theirs = sessions(
        """(float[b, n, 8] x) => (float[p, q] y, float[r, s, t, u] z) {
            v = Squeeze(x) s = Shape(x) zero = Constant<value_ints = [0]>() b = Gather(s, zero)
            rest = Constant<value_ints = [-1]>() two = Constant<value_ints = [0, 2]>()
            first = Concat<axis = 0>(b, rest) y = Reshape(v, first)
            second = Concat<axis = 0>(two, rest, b) z = Reshape(v, second)
        }"""
    )
    for b in (2, 4, 2):
        feed = {"x": np.arange(8 * b, dtype=np.float32).reshape(b, 1, 8)}
        for one, other in zip(ours.run(None, feed), theirs.run(None, feed)):
            np.testing.assert_array_equal(one, other)
