"""Models that are not one C call: host steps, sizes that data tells, bodies, sequences."""

from __future__ import annotations

import itertools

import numpy as np
import onnx.parser
import onnx.reference
import pytest

import q7x2_ep
from q7x2_ep.errors import DataError, ShapeError

ort = pytest.importorskip("onnxruntime")

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
RNG = np.random.default_rng(5)
WEIGHT = ", ".join(map(str, RNG.standard_normal(32).round(3)))


def model(text: str) -> bytes:
    return onnx.parser.parse_model(HEADER + text).SerializeToString()


def check(text: str, *feeds: dict) -> q7x2_ep.InferenceSession:
    """One session of ours on all feeds, against ORT's."""
    data = model(text)
    ours = q7x2_ep.InferenceSession(data)
    theirs = ort.InferenceSession(data)
    for feed in feeds:
        for a, b in zip(ours.run(None, feed), theirs.run(None, feed)):
            if isinstance(b, list):
                assert len(a) == len(b)
            for x, y in zip(a, b) if isinstance(b, list) else [(a, b)]:
                assert x.dtype == y.dtype and x.shape == y.shape
                np.testing.assert_allclose(x, y, 1e-5, 1e-6)
    return ours


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def host_ops(session: q7x2_ep.InferenceSession) -> list[str]:
    return [step.op for step in q7x2_ep.explain(session).host_steps]


def test_a_size_that_data_tells_is_bound_between_two_native_phases():
    session = check(
        """g (float[n, 8] x, float[8, 4] w) => (float[k, 4] y, int64[1] count) {
            rows = ReduceSum<keepdims=0>(x, axis)
            positive = Greater(rows, zero)
            where = NonZero(positive)
            indices = Squeeze(where, first)
            picked = Gather(x, indices)
            y = MatMul(picked, w)
            count = Shape<start=0, end=1>(y)
        }""".replace("{\n", "<int64[1] axis = {1}, int64[1] first = {0}, float zero = {0}> {\n", 1),
        {"x": floats(6, 8), "w": floats(8, 4)},
        {"x": np.abs(floats(3, 8)), "w": floats(8, 4)},
        {"x": -np.abs(floats(3, 8)), "w": floats(8, 4)},
        {"x": floats(0, 8), "w": floats(8, 4)},
    )
    assert host_ops(session)[0].startswith("NonZero")
    assert q7x2_ep.explain(session).calls_per_run == 2


def test_a_shape_that_is_fed():
    session = check(
        """g (float[n, m] x, int64[2] shape) => (float[a, b] y) {
            r = Relu(x)
            s = Reshape(r, shape)
            y = Softmax<axis=1>(s)
        }""",
        {"x": floats(4, 6), "shape": np.array([3, -1])},
        {"x": floats(4, 6), "shape": np.array([12, 2])},
    )
    with pytest.raises(DataError, match="Reshape"):
        session.run(None, {"x": floats(4, 6), "shape": np.array([5, 5])})


def test_a_shape_that_is_fed_tells_the_size_of_a_fused_product():
    """The Reshape behind the product moves in front of it, where only the one it meets tells k."""
    check(
        """g (float[n, m, 8] x, int64[2] shape) => (float[n, m, 4] y) {
            r = Relu(x)
            s = Reshape(r, shape)
            p = MatMul(s, w)
            sizes = Shape<start=0, end=2>(x)
            target = Concat<axis=0>(sizes, four)
            y = Reshape(p, target)
        }""".replace("{\n", f"<float[8, 4] w = {{{WEIGHT}}}, int64[1] four = {{4}}> {{\n", 1),
        {"x": floats(3, 5, 8), "shape": np.array([-1, 8])},
        {"x": floats(2, 3, 8), "shape": np.array([6, 8])},
    )


def test_a_squeeze_by_data_tells_its_own_size():
    check(
        """g (float[n, m] x, int64[2] shape, int64[1] axis) => (float[a] y) {
            s = Reshape(x, shape)
            q = Squeeze(s, axis)
            u = Unsqueeze(q, axis)
            z = Neg(u)
            y = Reshape(z, flat)
        }""".replace("{\n", "<int64[1] flat = {-1}> {\n", 1),
        {"x": floats(4, 6), "shape": np.array([24, 1]), "axis": np.array([1])},
        {"x": floats(3, 2), "shape": np.array([1, -1]), "axis": np.array([0])},
    )


def test_an_input_of_any_rank_is_compiled_for_each_rank_that_comes():
    proto = onnx.parser.parse_model(
        HEADER + "g (float[n] x, float[n] y) => (float[n] z) { a = Add(x, y) z = Relu(a) }"
    )
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.ClearField("shape")
    session = q7x2_ep.InferenceSession(proto)
    assert host_ops(session) == ["q7::Deferred"]
    for shape in ((3,), (2, 3), (), (2, 3), (0, 4)):
        x, y = floats(*shape), floats(*shape)
        (z,) = session.run(None, {"x": x, "y": y})
        np.testing.assert_array_equal(z, np.maximum(x + y, 0))


@pytest.mark.parametrize("cond", [True, False])
def test_if_takes_values_from_around_it(cond: bool):
    text = """g (bool cond, float[n, 4] x) => (float[n, 4] y) {
        r = Relu(x)
        t = If(cond) <
            then_branch = then () => (float[n, 4] a) { a = Mul(r, x) },
            else_branch = other () => (float[n, 4] b) { c = Neg(x) b = Add(c, r) }
        >
        y = Sigmoid(t)
    }"""
    session = check(text, {"cond": np.array(cond), "x": floats(3, 4)})
    assert host_ops(session) == ["If"]


def test_branches_of_different_ranks():
    text = """g (bool cond, float[1, n] x) => (float[] y) {
        t = If(cond) <
            then_branch = then () => (float[n] a) { a = Squeeze(x, zero) },
            else_branch = other () => (float[1, n] b) { b = Identity(x) }
        >
        y = Exp(t)
    }""".replace("{\n", "<int64[1] zero = {0}> {\n", 1).replace("float[] y", "float[m] y")
    x = floats(1, 5)
    session = q7x2_ep.InferenceSession(model(text))
    for cond, shape in ((True, (5,)), (False, (1, 5)), (True, (5,))):
        (y,) = session.run(None, {"cond": np.array(cond), "x": x})
        np.testing.assert_allclose(y, np.exp(x).reshape(shape), 1e-6)


def test_an_if_with_a_known_condition_costs_nothing():
    session = check(
        """g (float[n, 4] x) => (float[n, 4] y) {
            shape = Shape(x)
            width = Gather(shape, one)
            cond = Equal(width, four)
            t = If(cond) <
                then_branch = then () => (float[n, 4] a) { a = Relu(x) },
                else_branch = other () => (float[n, 4] b) { b = Neg(x) }
            >
            y = Exp(t)
        }""".replace("{\n", "<int64 one = {1}, int64 four = {4}> {\n", 1),
        {"x": floats(3, 4)},
    )
    assert host_ops(session) == []


def test_loop_carries_scans_and_stops():
    text = """g (int64 trip, bool going, float[n] x, float[n] step)
        => (float[n] last, float[t, n] all) {
        last, all = Loop(trip, going, x) <
            body = body (int64 i, bool on, float[n] state)
                => (bool next, float[n] new, float[n] copy) {
                new = Add(state, step)
                biggest = ReduceMax<keepdims=0>(new)
                next = Less(biggest, ten)
                copy = Identity(new)
            }
        >
    }""".replace("all) {\n", "all) <float ten = {10}> {\n", 1)
    x, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    feeds = [
        {"trip": np.array(trip), "going": np.array(going), "x": x, "step": one}
        for trip, going in ((5, True), (50, True), (0, True), (5, False))
    ]
    check(text, *feeds)


def test_a_loop_whose_count_is_a_vector():
    """As old models declare it: what is scanned of it has a dim more."""
    check(
        """g (int64[1] n, bool[1] go, float[2] x)
            => (float[2] y, int64[k, 1] turns, bool[k, 1] flags) {
            y, turns, flags = Loop(n, go, x) <body = b (int64[1] i, bool[1] on, float[2] a) =>
                (bool[1] more, float[2] c, int64[1] j, bool[1] was) {
                    at = Cast<to = 1>(i)
                    c = Add(a, at)
                    j = Identity(i)
                    was = Identity(on)
                    more = Identity(on)
                }>
        }""",
        *({"n": np.array([n]), "go": np.array([True]), "x": floats(2)} for n in (3, 3, 1)),
    )


def test_a_loop_whose_state_grows():
    check(
        """g (int64 trip, float[n, 2] x) => (float[m, 2] y) {
            y = Loop(trip, , x) <
                body = body (int64 i, bool on, float[k, 2] state) => (bool next, float[j, 2] new) {
                    next = Identity(on)
                    new = Concat<axis=0>(state, x)
                }
            >
        }""",
        {"trip": np.array(3), "x": floats(2, 2)},
        {"trip": np.array(0), "x": floats(2, 2)},
    )


@pytest.mark.parametrize("weight", ["exp", "fed"])
def test_a_loop_that_carries_what_it_never_changes(weight):
    """Carried values that are handed on: a constant or not, asked for outside or not."""
    session = check(
        """g (int64 trip, float[n, 2] x, float[2, 2] fed)
            => (float[n, 2] last, float[2, 2] w, float[t, n, 2] all) {
            exp = Exp(start)
            w, last, unused, all = Loop(trip, , WEIGHT, x, exp) <
                body = body (int64 i, bool on, float[2, 2] carried, float[k, 2] state,
                        float[2, 2] same) => (bool next, float[2, 2] again, float[k, 2] new,
                        float[2, 2] same, float[k, 2] shown) {
                    next = Identity(on)
                    copy = Identity(carried)
                    again = Identity(copy)
                    product = MatMul(state, carried)
                    new = Sub(product, same)
                    shown = Add(new, x)
                }
            >
        }""".replace("WEIGHT", weight).replace(
            "all) {\n", "all) <float[2, 2] start = {0, -1, 1, -2}> {\n", 1
        ),
        *({"trip": np.array(trip), "x": floats(2, 2), "fed": floats(2, 2)} for trip in (3, 0)),
    )
    (loop,) = host_ops(session)
    assert loop.startswith("Loop")


def test_nested_bodies_see_all_graphs_around_them():
    check(
        """g (int64 trip, float[n] x, bool cond) => (float[n] y) {
            w = Exp(x)
            y = Loop(trip, , x) <
                body = body (int64 i, bool on, float[n] state) => (bool next, float[n] new) {
                    next = Identity(on)
                    half = Mul(state, w)
                    new = If(cond) <
                        then_branch = then () => (float[n] a) { a = Add(half, w) },
                        else_branch = other () => (float[n] b) { b = Sub(half, x) }
                    >
                }
            >
        }""",
        *({"trip": np.array(3), "x": floats(4), "cond": np.array(c)} for c in (True, False)),
    )


@pytest.mark.parametrize(
    "attrs", ["", ", scan_input_directions = [1], scan_output_directions = [1]"]
)
def test_scan(attrs: str):
    check(
        """g (float[2] start, float[t, 2] x) => (float[2] last, float[t, 2] sums) {
            last, sums = Scan(start, x) <num_scan_inputs = 1ATTRS,
                body = body (float[2] sum, float[2] row) => (float[2] new, float[2] copy) {
                    new = Add(sum, row)
                    copy = Identity(new)
                }
            >
        }""".replace("ATTRS", attrs),
        {"start": floats(2), "x": floats(5, 2)},
    )


@pytest.mark.parametrize("lengths", [[1, 2], [3, 1], [2, 2]])
def test_scan_of_batches_of_several_lengths(lengths: list[int]):
    """Opset 8: all outputs are as long as the input, also if no sequence is."""
    text = """<ir_version: 4, opset_import: ["" : 8]>
        g (int64[2] n, float[2, 2] start, float[2, 3, 2] x)
            => (float[2, 2] last, float[2, 3, 2] sums) {
            last, sums = Scan(n, start, x) <num_scan_inputs = 1,
                body = body (float[2] sum, float[2] row) => (float[2] new, float[2] copy) {
                    new = Add(sum, row)
                    copy = Identity(new)
                }>
        }"""
    data = onnx.parser.parse_model(text).SerializeToString()
    feed = {"n": np.array(lengths), "start": floats(2, 2), "x": floats(2, 3, 2)}
    given = {"providers": ["CPUExecutionProvider"]}
    wanted = ort.InferenceSession(data, **given).run(None, feed)
    for got, y in zip(q7x2_ep.InferenceSession(data).run(None, feed), wanted):
        np.testing.assert_array_equal(got, y, strict=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sizes_of_what_a_scan_takes_apart(axis: int):
    check(
        f"""g (float[2] s, float[5, 3, 4] x) => (float[2] y, int64[t, 2] z) {{
            y, z = Scan<num_scan_inputs = 1, scan_input_axes = [{axis}], body = b
                (float[2] a, float[m, n] e) => (float[2] next, int64[2] shape) {{
                    next = Neg(a) shape = Shape(e) }}>(s, x)
        }}""",
        {"s": floats(2), "x": floats(5, 3, 4)},
    )


@pytest.mark.parametrize("declared", ["2, 4", "p, 4", "p, q"])
def test_what_no_iteration_made_has_the_declared_sizes(declared: str):
    check(
        """g (int64 trip, float[n, m] x) => (float[t, n, m] all) {
            all = Loop(trip, "") <
                body = body (int64 i, bool on) => (bool next, float[DECLARED] copy) {
                    next = Identity(on)
                    copy = Relu(x)
                }
            >
        }""".replace("DECLARED", declared),
        *({"trip": np.array(trip), "x": floats(2, 4)} for trip in (0, 2)),
    )


def test_a_scan_of_nothing():
    session = q7x2_ep.InferenceSession(
        model("""g (float[t, n] x) => (float[n, t] y) {
            y = Scan(x) <num_scan_inputs = 1, scan_output_axes = [-1],
                body = body (float[n] row) => (float[3] out) { out = Relu(row) }
            >
        }""")
    )
    for length in (0, 2):
        x = floats(length, 3)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.maximum(x, 0).T)


def test_a_branch_that_lists_a_value_twice():
    """onnxruntime gives the second as None."""
    session = q7x2_ep.InferenceSession(
        model("""g (bool cond, float[n] x) => (float[n] p, float[n] q) {
            p, q = If(cond) <
                then_branch = then () => (float[n] a, float[n] a) { a = Neg(x) },
                else_branch = other () => (float[n] b, float[n] c) { b = Abs(x) c = Exp(x) }
            >
        }""")
    )
    x = floats(3)
    for y in session.run(None, {"cond": np.array(True), "x": x}):
        np.testing.assert_array_equal(y, -x)


def test_sequences():
    check(
        """g (float[n, 6] x, int64 at) => (float[n, k] y, int64 length) {
            parts = SplitToSequence<axis=1, keepdims=1>(x, sizes)
            length = SequenceLength(parts)
            part = SequenceAt(parts, at)
            twice = Add(part, part)
            y = Relu(twice)
        }""".replace("{\n", "<int64[3] sizes = {1, 2, 3}> {\n", 1),
        *({"x": floats(2, 6), "at": np.array(i)} for i in range(3)),
    )


def test_strings_and_ops_without_an_entry():
    check(
        """g (float[n] x) => (float[k] values, int64[k] counts) {
            r = Round(x)
            values, , , counts = Unique<sorted=1>(r)
        }""",
        {"x": (floats(20) * 2)},
    )


def test_a_graph_output_that_is_an_input_is_a_copy():
    session = q7x2_ep.InferenceSession(
        model(
            "g (float[n] x) => (float[n] y, int64[k] z) { y = Identity(x) w = Round(x) "
            "v, z = Unique<sorted=1>(w) }"
        )
    )
    x = floats(4)
    (y, _) = session.run(None, {"x": x})
    assert not np.shares_memory(x, y)


def test_outputs_may_be_changed():
    session = q7x2_ep.InferenceSession(
        model("""g (float[n] x) => (float[2] c, float[k] u, float[k] v) <float[2] c = {1, 2}> {
            u = Unique<sorted=1>(x)
            v = Identity(u)
        }""")
    )
    x = floats(3)
    for array in session.run(None, {"x": x}):
        array[:] = 7
    c, u, v = session.run(None, {"x": x})
    np.testing.assert_array_equal(c, [1, 2])
    np.testing.assert_array_equal(u, np.unique(x))
    assert not np.shares_memory(u, v)


def test_constants_stay_what_they_are_whatever_the_caller_does_with_outputs():
    session = q7x2_ep.InferenceSession(
        model(
            """g (float[n] x) => (int64[1, k] places, float[3] y, seq(float[3]) list)
            <float[3] c = {1, 2, 3}> {
                places = NonZero(x) y = Add(c, c) list = SequenceConstruct(c, y)
            }"""
        )
    )
    for _ in range(2):
        _, y, items = session.run(None, {"x": floats(4)})
        np.testing.assert_array_equal(np.stack([y, *items]), [[2, 4, 6], [1, 2, 3], [2, 4, 6]])
        for array in (y, *items):
            array[...] = 0


def test_a_closed_session_of_host_steps():
    with q7x2_ep.InferenceSession(
        model("g (float[n] x) => (int64[1, k] y) { y = NonZero(x) }")
    ) as s:
        pass
    with pytest.raises(q7x2_ep.BackendError, match="closed"):
        s.run(None, {"x": floats(3)})


def test_a_body_that_does_not_fit_is_named():
    session = q7x2_ep.InferenceSession(
        model("""g (bool cond, float[n] x, float[m] z) => (float[n] y) {
            y = If(cond) <
                then_branch = then () => (float[n] a) { a = Add(x, z) },
                else_branch = other () => (float[n] b) { b = Neg(x) }
            >
        }""")
    )
    with pytest.raises(ShapeError, match="Add"):
        session.run(None, {"cond": np.array(True), "x": floats(3), "z": floats(4)})


def test_threads_share_a_session():
    from concurrent.futures import ThreadPoolExecutor

    session = q7x2_ep.InferenceSession(
        model("""g (int64 trip, float[n] x) => (float[n] y) {
            y = Loop(trip, , x) <
                body = body (int64 i, bool on, float[n] s) => (bool next, float[n] new) {
                    next = Identity(on)
                    new = Add(s, x)
                }
            >
        }""")
    )

    def run(trip: int) -> bool:
        x = np.full(trip + 1, 2, np.float32)
        return bool((session.run(None, {"trip": np.array(trip), "x": x})[0] == 2 * trip + 2).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, list(range(8)) * 4))


def test_a_size_without_a_reader_of_its_data_outlives_fusion():
    check(
        """g (float[n, 4] x, float[4, 4] w) => (int64[2] count, float[n, 4] y) {
            p = Greater(x, zero)
            where = NonZero(p)
            count = Shape(where)
            m = MatMul(x, w)
            y = Relu(m)
        }""".replace("{\n", "<float zero = {0}> {\n", 1),
        {"x": floats(5, 4), "w": floats(4, 4)},
    )


def test_an_output_that_is_a_constant_beside_a_phase_that_does_not_take_all_inputs():
    proto = onnx.parser.parse_model(
        HEADER
        + """g (float[1] any, float a) => (float[2] held, bool positive) {
            held = Identity(w)
            positive = Greater(a, zero)
        }""".replace("{\n", "<float[2] w = {1, 2}, float zero = {0}> {\n", 1)
    )
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    session = q7x2_ep.InferenceSession(proto)
    held, positive = session.run(None, {"any": floats(1), "a": np.array(-1, np.float32)})
    np.testing.assert_array_equal(held, [1, 2])
    assert not positive


def test_a_weight_that_phases_pack_and_a_host_step_reads():
    check(
        """g (float[n, 4] x) => (float[k, 4] y, float[j, 4] z, int64[2, m] where) {
            a = MatMul(x, w)
            positive = Greater(a, zero)
            where = NonZero(positive)
            rows = Gather<axis = 0>(where, zeroth)
            picked = Gather(a, rows)
            y = MatMul(picked, w)
            bits = Cast<to = 9>(w)
            column = NonZero(bits)
            z = Compress<axis = 0>(w, keep)
        }""".replace(
            "{\n",
            "<float[4, 4] w = {1,0,2,0,0,3,0,1,1,1,1,1,0,0,5,1}, float zero = {0}, "
            "int64 zeroth = {0}, bool[4] keep = {1, 0, 1, 1}> {\n",
            1,
        ),
        {"x": floats(3, 4)},
    )


def test_a_size_of_one_of_two_equal_nodes():
    check(
        """g (float[n, 4] x) => (int64[1] size, int64[2, a] y, int64[2, b] z) {
            where = NonZero(x)
            again = NonZero(x)
            size = Shape<start=1, end=2>(again)
            y = Neg(where)
            z = Abs(again)
        }""",
        {"x": floats(3, 4)},
    )


def test_a_size_of_branches_that_turn_out_to_be_equal():
    check(
        """g (float[n, 4] x, bool cond) => (int64[1] size, int64[2, a] y) {
            where = NonZero(x)
            again = NonZero(x)
            y = If(cond) <
                then_branch = then () => (int64[2, p] b) { b = Neg(where) },
                else_branch = other () => (int64[2, q] c) { c = Abs(again) }
            >
            size = Shape<start=1, end=2>(y)
        }""",
        *({"x": floats(3, 4), "cond": np.array(cond)} for cond in (True, False)),
    )


def test_slices_of_what_data_leaves():
    """Boxes that were kept, say, of which there may be none."""
    check(
        """g (float[n] x) => (int64[1, a] front, int64[1, b] back) {
            kept = NonZero(x)
            front = Slice(kept, zero, last, one)
            back = Slice(kept, last, end, one)
        }""".replace(
            "{\n",
            "<int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}, "
            "int64[1] end = {9223372036854775807}> {\n",
            1,
        ),
        {"x": np.zeros(3, np.float32)},
        {"x": np.ones(1, np.float32)},
        {"x": np.ones(4, np.float32)},
    )


@pytest.mark.parametrize("bounds", ("s, e, zero, one", "s, e, zero, st", "zero, e, zero, st"))
def test_slices_by_data_of_what_fusions_look_behind(bounds):
    """A Concat, and rows of a product."""
    check(
        """g (float[n, 2] a, float[m, 2] b, int64[1] s, int64[1] e, int64[1] st)
            => (float[k, 2] y, float[k, 2] z)
        <int64[1] zero = {0}, int64[1] one = {1}, float[2, 2] w = {1, 2, 3, 4}> {
            both = Concat<axis = 0>(a, b)
            y = Slice(both, BOUNDS)
            product = MatMul(both, w)
            z = Slice(product, BOUNDS)
        }""".replace("BOUNDS", bounds),
        *(
            {
                "a": floats(3, 2),
                "b": floats(2, 2),
                **{name: np.array([i]) for name, i in zip(("s", "e", "st"), numbers)},
            }
            for numbers in ((0, 3, 1), (3, 5, 1), (1, 5, 2), (0, 5, 3))
        ),
    )


def test_slices_to_and_from_the_last():
    check(
        """g (float[n, 2] x) => (float[a, 2] front, float[b, 2] back) {
            front = Slice(x, zero, last, zero)
            back = Slice(x, last, end, zero)
        }""".replace(
            "{\n",
            "<int64[1] zero = {0}, int64[1] last = {-1}, int64[1] end = {9223372036854775807}> {\n",
            1,
        ),
        {"x": floats(0, 2)},
        {"x": floats(1, 2)},
        {"x": floats(3, 2)},
        {"x": floats(0, 2)},
    )


@pytest.mark.parametrize(
    "bounds",
    (
        *("minus_s, end, zero, one", "minus_s, p, zero, two", "zero, minus_s, zero, one"),
        *("p_s, end, zero, one", "p, s, zero, back", "p, minus_s, zero, back"),
    ),
)
def test_slices_whose_bounds_have_the_signs_that_sizes_give_them(bounds):
    data = model(
        """g (float[n, 2] x, float[p] a, float[s] b) => (float[m, 2] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] back = {-1},
         int64[1] end = {2147483648}> {
            p = Shape(a)
            s = Shape(b)
            minus_s = Neg(s)
            p_s = Sub(p, s)
            y = Slice(x, BOUNDS)
        }""".replace("BOUNDS", bounds)
    )
    session = q7x2_ep.InferenceSession(data)
    reference = onnx.reference.ReferenceEvaluator(onnx.load_from_string(data))
    for n, p, s in itertools.product((4, 1, 0), (1, 0, 5), (2, 0, 4)):
        feed = {"x": floats(n, 2), "a": floats(p), "b": floats(s)}
        np.testing.assert_array_equal(session.run(None, feed)[0], reference.run(None, feed)[0])


def test_onnxs_evaluator_after_its_operands_were_replaced():
    session = q7x2_ep.InferenceSession(
        model(
            """g (float[n, 4] x, int64 times) => (float[k, 4] y) {
                copied = Identity(w)
                pair = SequenceConstruct(x, copied)
                grown = SequenceInsert(pair, copied)
                y = ConcatFromSequence<axis = 0>(grown)
            }""".replace("{\n", "<float[1, 4] w = {1, 2, 3, 4}> {\n", 1)
        )
    )
    (y,) = session.run(None, {"x": np.ones((2, 4), np.float32), "times": np.array(1)})
    np.testing.assert_array_equal(y[2:], [[1, 2, 3, 4]] * 2)


WAITING = {
    "a part of what is cut by data": (
        """g (float[n, m] x, int64[2] ends, int64[2] shape) => (float[a, b] y) <int64 i = {0}> {
            zero = Constant<value = int64[2] {0, 0}>() k = Constant<value = int64[1] {2}>()
            cut = Slice(x, zero, ends) top, at = TopK<axis = 0>(cut, k)
            list = SequenceConstruct(top, x) one = SequenceAt(list, i) y = Reshape(one, shape) }""",
        {"ends": np.array([3, 2]), "shape": np.array([1, 4])},
    ),
    "dims of one that data tells": (
        """g (float[n, m] x, int64[2] repeats) => (float[a] y) <int64[1] all = {-1}> {
            tiled = Tile(x, repeats) shape = Shape(tiled)
            one = Constant<value = int64 {1}>() none = Constant<value = int64 {0}>()
            first = Gather(shape, none) last = Gather(shape, one)
            axis = Constant<value = int64[1] {0}>()
            a = Unsqueeze(first, axis) b = Unsqueeze(last, axis)
            turned = Concat<axis = 0>(b, a) z = Reshape(tiled, turned) y = Reshape(z, all) }""",
        {"repeats": np.array([2, 3])},
    ),
    "the single part of a Split by data": (
        """g (float[n, m] x, int64[1] size, int64[1] more) => (float[a, b] y) {
            part = Split<axis = 1>(x, size) shape = Shape<start = 1>(part)
            target = Concat<axis = 0>(shape, more) one = Constant<value = float {1.0}>()
            z = Expand(one, target) y = Neg(z) }""",
        {"size": np.array([4]), "more": np.array([3])},
    ),
    "what data tells, twice over": (
        """g (float[n, 1] x, int64[2] a, int64[3] b, int64[1] c) => (float[k, m] y) {
            zero = Constant<value = int64[1] {0}>() two = Constant<value = int64[1] {2}>()
            wide = Expand(x, a) cut = Slice(wide, zero, two) more = Expand(cut, b)
            part = Shape<start = 2>(more) shape = Concat<axis = 0>(c, part)
            z = Reshape(more, shape) y = Neg(z) }""",
        {"x": floats(5, 1), "a": np.array([5, 4]), "b": np.array([2, 2, 1]), "c": np.array([4])},
    ),
    "a size of its own, repeated": (
        """g (float[n, m] x, int64[2] a) => (float[k, l] y) {
            wide = Tile(x, a) shape = Shape(wide) more = Expand(wide, shape) y = Neg(more) }""",
        {"a": np.array([2, 3])},
    ),
    "what is of any rank": (
        """g (float[n, m] x) => (float[a] y) <int64 i = {0}, int64 size = {1}> {
            parts = SplitToSequence<axis = 1>(x, size) part = SequenceAt(parts, i)
            y = Unique(part) }""",
        {},
    ),
    "a Slice by data of known numbers": (
        """g (float[n, m] x, int64[1] from) => (bool[k] y) <int64[1] end = {9}, int64 one = {1}> {
            shape = Shape(x) cut = Slice(shape, from, end) y = Greater(cut, one) }""",
        {"from": np.array([-2])},
    ),
    "a Slice along an axis that a size tells": (
        """g (float[n, m] x, int64[1] from, float[k] z) => (float[a, b] y) <int64[1] end = {9}> {
            axis = Shape(z) y = Slice(x, from, end, axis) }""",
        {"from": np.array([1]), "z": np.zeros(1, np.float32)},
    ),
    "a bound that is negative for some feeds, on the host": (
        """g (float[n, m] x) => (float[n, m] first, float[a, m] y) <int64 i = {0}> {
            size = Shape<end = 1>(x) one = Constant<value = int64[1] {1}>()
            zero = Constant<value = int64[1] {0}>() less = Sub(one, size)
            cut = Slice(x, zero, less) list = SequenceConstruct(x, cut)
            first = SequenceAt(list, i) last = Constant<value = int64 {1}>()
            y = SequenceAt(list, last) }""",
        {},
    ),
}


@pytest.mark.parametrize("name", WAITING)
def test_sizes_that_others_wait_for(name: str):
    text, feed = WAITING[name]
    check(text, *[{"x": floats(5, 4), **feed}] * 3)


EMPTY = {
    "known numbers of several dims": """g (float[n] x) => (int64[3, 1] y)
        <int64[6, 1] table = {0, 1, 2, 3, 4, 5}, int64[2] a = {-3, 0}, int64[2] b = {9, 9}> {
            y = Slice(table, a, b) }""",
    "turned": """g (float16[3, 2, 4, 0, 6] x) => (float16[3, 0, 4, 2] y)
        <int64[4] shape = {3, 0, 4, 2}> {
            t = Transpose<perm = [0, 3, 4, 2, 1]>(x) y = Reshape<allowzero = 1>(t, shape) }""",
    "an axis of one less": """g (int64[6, 3, 1, 1, 1] x) => (int64[3, 1, 3, 6] y)
        <int64[1] axis = {1}> {
            t = Transpose<perm = [3, 4, 2, 1, 0]>(x) s = Squeeze(t, axis)
            y = Concat<axis = 0>(s, s, s) }""",
    "a start that is negative": """g (float[n, m] x) => (float[a] y)
        <float[1] z = {0.5}, int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
            size = Shape<start = 1>(x) start = Sub(one, size) y = Slice(z, start, end) }""",
    "repeated": """g (int8[0, n, 2, n] x) => (int8[0, a, 4, b] y)
        <int64[4] times = {3, 1, 2, 2}, int8 three = {3}> {
            no = Constant<value = int8[0, 0, 2, 0] {}>() z = Concat<axis = 0>(x, no)
            w = Tile(z, times) y = Mod(w, three) }""",
}


@pytest.mark.parametrize(
    "name, x",
    [
        ("known numbers of several dims", floats(2)),
        ("turned", np.zeros((3, 2, 4, 0, 6), np.float16)),
        ("an axis of one less", np.arange(18).reshape(6, 3, 1, 1, 1)),
        ("a start that is negative", floats(2, 4)),
        ("repeated", np.zeros((0, 0, 2, 0), np.int8)),
    ],
)
def test_shapes_with_dims_of_one_and_none(name: str, x: np.ndarray):
    check(EMPTY[name], {"x": x})


def test_one_hot_of_sizes():
    check(
        """g (float[n, m] x) => (int64[1, 6] y) <int64 depth = {6}, int64[2] values = {-1, 1}> {
            size = Shape<start = 1>(x) y = OneHot(size, depth, values) }""",
        *({"x": floats(2, n)} for n in (4, 1, 5)),
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_only_a_scan_along_another_axis_tells_a_size(axis: int):
    check(
        """g (float[2, n] x) => (int64[2] size) {
            turned = Scan(x) <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [AXIS],
                body = b (float[2] column) => (float[2] copy) { copy = Neg(column) }>
            size = Shape(turned) }""".replace("AXIS", str(axis)),
        *({"x": floats(2, n)} for n in (3, 1)),
    )


def test_a_size_of_what_a_branch_does_not_read():
    """Only the other branch does; those that it follows from are read, and known exactly."""
    check(
        """g (bool on, float[n] x) => (float[k] y) <int64[1] first = {0}> {
            where = NonZero(x) indices = Squeeze(where, first) some = Gather(x, indices)
            less = Neg(x) where2 = NonZero(less) indices2 = Squeeze(where2, first)
            others = Gather(less, indices2) sum = Add(some, others)
            y = If(on) <
                then_branch = t () => (float[k] a) {
                    chosen = If(on) <
                        then_branch = t2 () => (float[k] b) { b = Mul(some, others) },
                        else_branch = e2 () => (float[k] c) { c = Neg(some) }>
                    a = Exp(chosen) },
                else_branch = e () => (float[k] d) { d = Neg(sum) }> }""",
        *({"on": np.array(on), "x": floats(3)} for on in (True, False, True)),
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_sizes_of_what_a_scan_makes_in_no_iteration(axis: int):
    """That a row has 3 elements is known without one."""
    check(
        """g (int64 trip, bool on, float[n, 3] x, float[3] z)
            => (float[t, a, b] all, float[t, c] states) {
            all, states = Loop(trip, on) <body = body (int64 i, bool go)
                => (bool next, float[a, b] y, float[c] state) {
                    next = Identity(go)
                    state, y = Scan(z, x) <num_scan_inputs = 1, scan_output_axes = [AXIS],
                        body = rows (float[k] s, float[k] row) => (float[k] new, float[k] copy) {
                            new = Add(s, row) copy = Neg(row) }> }> }""".replace("AXIS", str(axis)),
        *(
            {"trip": np.array(n), "on": np.array(True), "x": floats(2, 3), "z": floats(3)}
            for n in (0, 2, 0)
        ),
    )
