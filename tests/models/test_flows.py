"""Control flow that C runs: that it does, that it is what Python and onnxruntime make of it, and
what happens where it cannot.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import onnx.parser
import pytest

import q7x2_ep
from q7x2_ep.backend.host import MAX_EXACT, MAX_FAILURES, Flow, Host
from q7x2_ep.errors import BackendError, DataError, ShapeError

ort = pytest.importorskip("onnxruntime")

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
RNG = np.random.default_rng(9)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def flows(session: q7x2_ep.InferenceSession) -> list[Flow]:
    return [part for part, _ in session._session.program._parts if isinstance(part, Flow)]


def is_flowing(session: q7x2_ep.InferenceSession) -> bool:
    """Whether C runs some phases, and has not given up on any."""
    parts = flows(session)
    return bool(parts) and all(part.form is not None for part in parts)


def check(text: str, *feeds: dict, flowing: bool = True) -> q7x2_ep.InferenceSession:
    """Often on each feed: in Python first, then in C, then the short way; against onnxruntime."""
    model = onnx.parser.parse_model(HEADER + text).SerializeToString()
    ours, theirs = q7x2_ep.InferenceSession(model), ort.InferenceSession(model)
    for feed in feeds:
        wanted = theirs.run(None, feed)
        for _ in range(4):
            for a, b in zip(ours.run(None, feed), wanted):
                assert a.dtype == b.dtype and a.shape == b.shape
                np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    assert is_flowing(ours) == flowing
    return ours


SWAP = """g (int64 trip, float[n] x, float[n] z) => (float[n] y, float[n] w, float[t, n] all) {
    y, w, all = Loop(trip, , x, z) <body = b (int64 i, bool on, float[n] a, float[n] c)
        => (bool next, float[n] p, float[n] q, float[n] shown) {
            next = Identity(on) EXTRA p = Identity(c) q = Identity(a) shown = Add(a, x) }>
}"""


@pytest.mark.parametrize("extra", ["", "where = NonZero(a)"], ids=["one plan", "phases"])
def test_states_that_change_places(extra: str):
    text = SWAP.replace("EXTRA", extra)
    feeds = [{"trip": np.array(n), "x": floats(5), "z": floats(5)} for n in (3, 4, 0, 1)]
    check(text, *feeds)


def test_a_result_that_a_branch_hands_on():
    check(
        """g (int64 trip, float[n] x) => (float[n] y) {
            y = Loop(trip, , x) <body = b (int64 i, bool on, float[n] s)
                => (bool next, float[n] r) {
                    next = Identity(on)
                    total = ReduceSum<keepdims = 0>(s)
                    up = Greater(total, zero)
                    r = If(up) <then_branch = t () => (float[n] a) { a = Identity(s) },
                                else_branch = e () => (float[n] c) { c = Add(s, x) }>
                }>
        }""".replace("{\n", "<float zero = {0}> {\n", 1),
        *({"trip": np.array(4), "x": x} for x in (np.full(3, -2, np.float32), floats(3))),
    )


def test_sizes_of_what_is_read_for_its_shape_alone():
    """The phase that makes y is given n, which y shows too, but not before it is made."""
    check(
        """g (float[n] x, float[m] z) => (float[n] y, int64[1, k] where) <float one = {1}> {
            size = Shape(x)
            y = Expand(one, size)
            where = NonZero(z)
        }""",
        *({"x": floats(n), "z": floats(m)} for n, m in ((3, 4), (5, 2), (0, 1))),
    )


def test_the_condition_that_an_iteration_was_given():
    """As a state and as what is collected, where the next condition is another."""
    check(
        """g (int64 trip, bool more, float[n] x) => (float[n] y, bool last, bool[t] all) {
            y, last, all = Loop(trip, , x, more) <body = b (int64 i, bool on, float[n] s, bool was)
                => (bool next, float[n] r, bool now, bool shown) {
                    next = Identity(more)
                    r = Add(s, x) now = Identity(on) shown = Identity(on)
                }>
        }""",
        *({"trip": np.array(3), "more": np.array(b), "x": floats(3)} for b in (False, True)),
    )


def test_sizes_that_iterations_find_out():
    """NonZero in a body, whose room is not what is read; an inner loop; a state that shrinks."""
    check(
        """g (int64 trip, float[n] x) => (float[m] y, int64[t] counts) {
            y, counts = Loop(trip, , x) <body = b (int64 i, bool on, float[k] s)
                => (bool next, float[j] r, int64 count) {
                    next = Identity(on)
                    shown = Relu(s)
                    where = NonZero(shown)
                    places = Reshape(where, flat)
                    kept = Gather(s, places)
                    times = Shape<start = 0, end = 0>(kept)
                    size = Size(kept)
                    lower = Loop(two, , kept) <body = c (int64 j2, bool go, float[k2] u)
                        => (bool more, float[k2] v) { more = Identity(go) v = Sub(u, step) }>
                    r = Identity(lower)
                    count = Identity(size)
                }>
        }""".replace("{\n", "<int64[1] flat = {-1}, int64 two = {2}, float step = {0.3}> {\n", 1),
        *({"trip": np.array(n), "x": floats(20)} for n in (3, 1, 5)),
    )


@pytest.mark.parametrize("attrs", ["", ", scan_input_directions = [1, 0]"])
@pytest.mark.parametrize("back", ["", ", scan_output_directions = [1]"])
def test_scans(attrs: str, back: str):
    text = """g (float[n] start, float[t, n] x, float[t, 2, n] z) => (float[n] y, float[t, n] all) {
        y, all = Scan(start, x, z) <num_scan_inputs = 2ATTRS, body = b (float[n] s, float[n] row,
            float[2, n] pair) => (float[n] new, float[n] copy) {
                both = ReduceSum<keepdims = 0>(pair, axis)
                sum = Add(both, row)
                new = Sub(sum, s)
                copy = Mul(new, row)
            }>
    }""".replace("{\n", "<int64[1] axis = {0}> {\n", 1).replace("ATTRS", attrs + back)
    check(
        text,
        *({"start": floats(3), "x": floats(t, 3), "z": floats(t, 2, 3)} for t in (4, 1, 6)),
    )


@pytest.mark.parametrize("axis", [1, -1, -2])
@pytest.mark.parametrize("back", ["", ", scan_output_directions = [1, 0]"])
def test_scans_along_other_axes(axis: int, back: str):
    """Frames of a signal, one by one, as front ends of speech cut them."""
    text = """g (float[n, 3] start, float[n, t, m] x, float[k, n, 2] z)
        => (float[n, 3] y, float[n, 3, a] all, float[b, n] sums) {
        y, all, sums = Scan(start, x, z) <num_scan_inputs = 2, scan_input_axes = [AXIS, 0],
            scan_output_axes = [2, 0]BACK, body = b (float[n, 3] s, float[n, 3] part, float[n, 2] q)
            => (float[n, 3] new, float[n, 3] copy, float[n] sum) {
                mixed = Sub(s, part)
                sum = ReduceSum<keepdims = 0>(q, last)
                new = Tanh(mixed)
                copy = Identity(mixed)
            }>
    }""".replace("{\n", "<int64[1] last = {-1}> {\n", 1)
    text = text.replace("AXIS", str(axis)).replace("BACK", back)
    feeds = []
    for n, t in ((2, 4), (3, 1)):
        x = np.moveaxis(floats(t, n, 3), 0, axis)
        feeds.append({"start": floats(n, 3), "x": x.copy(), "z": floats(t, n, 2)})
    check(text, *feeds)


def test_sizes_decide_a_branch():
    """For exact sizes a body with such branches is one plan; for too many of them it is not."""
    text = """g (bool on, float[n, m] x) => (float[k, m] y) {
        y = If(on) <
            then_branch = t () => (float[k, m] a) {
                shape = Shape<start = 0, end = 1>(x)
                size = Reshape(shape, none)
                is_one = Equal(size, one)
                row = If(is_one) <
                    then_branch = t2 () => (float[m] p) { p = Squeeze(x, first) },
                    else_branch = e2 () => (float[n, m] q) { q = Exp(x) }>
                flat = Add(row, x)
                a = Relu(flat)
            },
            else_branch = e () => (float[k, m] b) { b = Neg(x) }>
    }""".replace(
        "{\n", "<int64 one = {1}, int64[1] first = {0}, int64[0] none = {}> {\n", 1
    ).replace("int64[0] none = {}", "int64[0] none")
    text = text.replace("Reshape(shape, none)", "ReduceSum<keepdims = 0>(shape)").replace(
        ", int64[0] none", ""
    )
    feeds = [{"on": np.array(True), "x": floats(n, 4)} for n in (1, 3, 1, 2)]
    session = check(text, *feeds, {"on": np.array(False), "x": floats(2, 4)})
    host = [runner for runner in session._session.program.runners if isinstance(runner, Host)]
    model = onnx.parser.parse_model(HEADER + text).SerializeToString()
    theirs = ort.InferenceSession(model)
    for n in range(1, MAX_EXACT + 4):
        feed = {"on": np.array(True), "x": floats(n, 4)}
        (a,), (b,) = session.run(None, feed), theirs.run(None, feed)
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    assert len(host[0].bodies) <= 2 + MAX_EXACT


BAGS = {
    "scanned": """g (float[v, 4] w, int64[n] index, int64[b] start, int64 bags) => (float[c, 4] y)
    <int64[1] zero = {0}> {
        size = Shape(index) bounds = Concat<axis = 0>(start, size)
        y = Loop(bags, "") <body = b (int64 i, bool on) => (bool next, float[4] bag) {
            next = Identity(on) one = Constant<value = int64 {1}>() j = Add(i, one)
            from = Gather(bounds, i) to = Gather(bounds, j)
            a = Unsqueeze(from, zero) z = Unsqueeze(to, zero) some = Slice(index, a, z, zero)
            rows = Gather(w, some) bag = ReduceSum<keepdims = 0>(rows, zero) }> }""",
    "a list of rows, an If for the empty": """g
    (float[v, 4] w, int64[n] index, int64[b] start, int64 bags) => (float[c, 4] y)
    <int64[1] zero = {0}, int64[1] all = {-1}, int64 one = {1}, int64 two = {2}, int64 none = {0}> {
        size = Shape(index) bounds = Concat<axis = 0>(start, size) rows = Gather(w, index)
        list = SequenceEmpty() going = Less(none, bags)
        last, made = Loop(, going, none, list) <body = body
            (int64 t, bool on, int64 i, seq(float) so_far)
            => (bool goes, int64 next, seq(float) more) {
            at = Reshape(i, all) j = Add(at, one) k = Add(at, two)
            from = Slice(bounds, at, j) to = Slice(bounds, j, k) is_empty = Equal(from, to)
            bag = If(is_empty) <
                then_branch = t () => (float[1, 4] a) {
                    a = Constant<value = float[1, 4] {0, 0, 0, 0}>() },
                else_branch = e () => (float[1, 4] s) {
                    some = Slice(rows, from, to) s = ReduceSum(some, zero) }>
            more = SequenceInsert(so_far, bag) next = Add(i, one) goes = Less(next, bags) }>
        y = ConcatFromSequence<axis = 0>(made) }""",
}


@pytest.mark.parametrize("text", BAGS.values(), ids=BAGS)
def test_bags_of_rows(text: str):
    """As both exporters of PyTorch write nn.EmbeddingBag."""
    check(
        text,
        *(
            {
                "w": floats(9, 4),
                "index": RNG.integers(0, 9, n),
                "start": np.array(start),
                "bags": np.array(len(start)),
            }
            for n, start in ((6, (0, 2, 5)), (8, (0, 1)), (5, (0, 3, 3, 4)), (5, (0, 3, 3)))
        ),
    )


def test_exact_sizes_of_what_no_plan_reads():
    """x is read for its sizes only, which decide a branch."""
    text = """g (bool on, float[n, m] x, float[1] z, int64[1] more) => (float[a, b, c] y)
    <int64 one = {1}> {
        y = If(on) <
            then_branch = t () => (float[a, b, c] wide) {
                shape = Shape(x)
                size = Size(x)
                is_one = Equal(size, one)
                row = If(is_one) <
                    then_branch = t2 () => (float[k] p) { p = Neg(z) },
                    else_branch = e2 () => (float[k] q) { q = Exp(z) }>
                all = Concat<axis = 0>(shape, more)
                wide = Expand(row, all)
            },
            else_branch = e () => (float[a, b, c] same) {
                first = Unsqueeze(x, more)
                same = Neg(first)
            }>
    }"""
    model = onnx.parser.parse_model(HEADER + text).SerializeToString()
    ours, theirs = q7x2_ep.InferenceSession(model), ort.InferenceSession(model)
    for n, m in ((2, 3), (2, 3), (5, 1), (1, 1), (2, 3), (1, 4)):
        feed = {"on": np.array(True), "x": floats(n, m), "z": floats(1), "more": np.array([2])}
        (a,), (b,) = ours.run(None, feed), theirs.run(None, feed)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


LOOP = """g (int64 trip, float[n] x, int64[k] at) => (float[n] y) {
    y = Loop(trip, , x) <body = b (int64 i, bool on, float[n] s)
        => (bool next, float[n] r) { next = Identity(on) row = Gather(s, at) r = Add(s, row) }>
}"""


def test_faults_are_named_and_leave_the_flow_as_it_was():
    session = check(LOOP, {"trip": np.array(3), "x": floats(4), "at": np.arange(4)})
    good = {"trip": np.array(2), "x": floats(4), "at": np.arange(4)}
    for _ in range(MAX_FAILURES + 2):
        with pytest.raises(DataError, match="Gather"):
            session.run(None, {**good, "at": np.array([0, 9, 1, 2])})
        with pytest.raises(ShapeError):
            session.run(None, {**good, "at": np.arange(3)})
    (y,) = session.run(None, good)
    np.testing.assert_allclose(y, good["x"] * 4, 1e-6)
    assert is_flowing(session)


def test_outputs_are_the_callers():
    feed: dict[str, Any] = {"trip": np.array(2), "x": floats(4), "at": np.arange(4)}
    session = check(LOOP, feed)
    outputs = [session.run(None, feed)[0] for _ in range(3)]
    outputs[0][:] = 0
    np.testing.assert_allclose(outputs[1], feed["x"] * 4, 1e-6)
    np.testing.assert_array_equal(outputs[1], session.run(None, feed)[0])
    (y,) = session.run(None, {**feed, "trip": np.array(0)})
    assert not np.shares_memory(y, feed["x"])


def test_a_constant_that_a_branch_gives_stays_what_it_is():
    text = """g (bool on, seq(float[2]) l, float[2] x) => (float[2] y) {
        length = SequenceLength(l)
        y = If(on) <then_branch = t () => (float[2] a) { a = Identity(c) },
                    else_branch = e () => (float[2] b) { b = Neg(x) }>
    }""".replace("{\n", "<float[2] c = {1, 2}> {\n", 1)
    session = q7x2_ep.InferenceSession(onnx.parser.parse_model(HEADER + text).SerializeToString())
    for _ in range(4):
        feed = {"on": np.array(True), "l": [floats(2)], "x": floats(2)}
        (y,) = session.run(None, feed)
        np.testing.assert_array_equal(y, [1, 2])
        y[:] = 0


def test_profiles_and_terminated_runs_are_pythons():
    feed: dict[str, Any] = {"trip": np.array(2), "x": floats(4), "at": np.arange(4)}
    session = check(LOOP, feed)
    options = q7x2_ep.RunOptions()
    session.run(None, feed, options)
    options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        session.run(None, feed, options)
    assert len(session._session.profile(feed)) == len(session._session.program.steps)
    assert is_flowing(session)


def test_sizes_of_what_a_flow_makes_are_not_read_from_it_before():
    """x is read for its sizes only."""
    text = """g (float[a, b] x, float[n] z) => (float[b, a] y, float[t, n] w) <int64 two = {2}> {
        both = Shape(x)
        ones = ConstantOfShape<value = float[1] {1.0}>(both)
        y = Transpose(ones)
        last, w = Loop(two, , z) <body = k (int64 i, bool on, float[n] s)
            => (bool next, float[n] r, float[n] shown) {
                next = Identity(on) r = Neg(s) shown = Add(s, s) }>
    }"""
    check(text, *({"x": floats(*shape), "z": floats(3)} for shape in ((2, 5), (4, 1), (3, 3))))


def test_a_flow_without_a_plan():
    """Only sizes are told between the host steps."""
    text = """g (float[n, m] x, int64[4] pads, int64[2] repeats) => (float[a, b] y, float[c, 2] z)
    <int64[2] parts = {2, 1}> {
        tiled = Tile(x, repeats)
        z, rest = Split<axis = 1>(tiled, parts)
        y = Pad<mode = "edge">(x, pads)
    }"""
    feeds = [
        {"x": floats(n, 3), "pads": np.array([1, 0, 0, n]), "repeats": np.array([n, 1])}
        for n in (2, 3)
    ]
    session = q7x2_ep.InferenceSession(onnx.parser.parse_model(HEADER + text).SerializeToString())
    for feed in feeds * 2:
        y, z = session.run(None, feed)
        np.testing.assert_array_equal(y, np.pad(feed["x"], ((1, 0), (0, len(feed["x"]))), "edge"))
        np.testing.assert_array_equal(z, np.tile(feed["x"], (len(feed["x"]), 1))[:, :2])


def test_an_output_made_of_numbers_that_a_flow_is_told():
    text = """g (float[n, m] x, int64[1] a, int64[1] b) => (int64[k] y) <int64[1] from = {1}> {
        sizes = Concat<axis = 0>(a, b)
        wide = Expand(x, sizes)
        shape = Shape(wide)
        end = Shape(shape)
        y = Slice(shape, from, end)
    }"""
    feeds = [{"x": floats(2, n), "a": np.array([2]), "b": np.array([n])} for n in (5, 0, 3)]
    session = q7x2_ep.InferenceSession(onnx.parser.parse_model(HEADER + text).SerializeToString())
    for feed in feeds * 2:
        assert session.run(None, feed)[0].tolist() == feed["b"].tolist()
    with pytest.raises(q7x2_ep.errors.ShapeError, match="do not broadcast"):
        session.run(None, {**feeds[0], "b": np.array([2])})


def test_a_state_that_begins_as_anything():
    """The body makes a matrix of it, and never reads what it was."""
    check(
        """g (float[n] x) => (float[a, b] y, float[n] z) <int64 trip = {3}, float zero = {0}> {
            y, z = Loop(trip, , zero, x) <body = b (int64 i, bool on, float[a, b] old, float[n] v)
                => (bool next, float[a, b] new, float[n] w) <int64[1] axis = {0}> {
                    next = Identity(on) w = Neg(v) new = Unsqueeze(w, axis) }>
        }""",
        {"x": floats(4)},
        {"x": floats(2)},
    )


@pytest.mark.parametrize("trip", [0, 2])
def test_a_state_that_may_stay_what_it_was(trip: int):
    """Where the loop may not turn, its rank is known to a run only."""
    check(
        """g (float[n] x, int64 trip) => (float y) <float zero = {0}> {
            y = Loop(trip, , zero) <body = b (int64 i, bool on, float old)
                => (bool next, float[n] new) { next = Identity(on) new = Neg(x) }>
        }""",
        {"x": floats(4), "trip": np.array(trip)},
        flowing=False,
    )


def test_numbers_that_become_vectors_of_one():
    """As while loops of Paddle have them: a flag that one branch gives as a number."""
    check(
        """g (float[n] x, float limit) => (float[n] y, bool[1] f)
        <int64 most = {9}, bool no = {0}> {
            y, f = Loop(most, , x, no) <body = b (int64 i, bool on, float[n] v, bool done)
                => (bool next, float[n] w, bool[1] flag) <int64[1] none = {0}> {
                    w = Add(v, x) all = ReduceSum<keepdims = 0>(w) is_far = Greater(all, limit)
                    ended = If(is_far) <
                        then_branch = t () => (bool yes) {
                            is_zero = Constant<value = bool {0}>() yes = Not(is_zero) },
                        else_branch = e () => (bool[1] same) {
                            number = Cast<to = 7>(done) sum = Add(number, none)
                            same = Cast<to = 9>(sum) }>
                    next = Not(ended) count = Cast<to = 7>(ended) more = Add(count, none)
                    flag = Cast<to = 9>(more) }>
        }""",
        *({"x": np.abs(floats(3)), "limit": np.array(limit, "f4")} for limit in (0.5, 3, 99)),
    )


HOISTED = """g (float[n, k] x, int64 trip) => (float[n, m] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
    start = MatMul(x, w)
    y = Loop(TRIP, , start) <body = b (int64 i, bool on, float[n, m] v)
        => (bool next, float[n, m] u) {
            next = Identity(on) turned = Neg(x) same = MatMul(turned, w) more = Tanh(same)
            u = Add(v, more) }>
}"""


@pytest.mark.parametrize(("trip", "count"), [("five", 2), ("trip", 1)])
def test_what_each_turn_computes_alike(trip: str, count: int):
    """Is computed in front of a loop that is certain to turn."""
    text = HOISTED.replace("TRIP", trip).replace("<float", "<int64 five = {5}, float", 1)
    feeds = [{"x": floats(n, 2), "trip": np.array(trip)} for n, trip in ((4, 3), (1, 0))]
    session = check(text, *feeds)
    steps = session._session.program.steps
    assert [getattr(step, "op", "") for step in steps].count("gemm") == count


def test_arrays_that_are_not_dense_are_copied():
    feed = {"trip": np.array(3), "x": floats(4), "at": np.arange(4)}
    session = check(LOOP, feed)
    for _ in range(MAX_FAILURES + 2):
        x = floats(8)[::2]
        (y,) = session.run(None, {**feed, "x": x})
        np.testing.assert_array_equal(y, x * 8)
    assert is_flowing(session)


def test_a_flow_of_a_closed_session():
    feed = {"trip": np.array(3), "x": floats(4), "at": np.arange(4)}
    session = check(LOOP, feed)
    (flow,) = flows(session)
    form = flow.form
    flow.form = None  # as where another thread found that C cannot run it
    assert flow.lane({}, [], {}) is None
    form.trim()
    session.close()
    with pytest.raises(BackendError, match="closed"):
        form.call(array("q"), array("q"))
