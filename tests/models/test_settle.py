"""Sizes that guards tell apart (passes/settle.py), against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import q7x2_ep
from q7x2_ep.importer import read
from q7x2_ep.ir.shape import Expr
from q7x2_ep.passes import run_all

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
LEFT = "n{j} = Sub(l{i}, reach) q{j} = Div(n{j}, two) l{j} = Add(q{j}, one)"  # towards zero


def model(body: str) -> bytes:
    return onnx.parser.parse_model(
        f"""{HEADER} g (float[n, 1, l] x) => (float[n, k, m] y)
        <float[1, 1, 3] w = {{1, 2, -3}}, int64[1] reach = {{3}}, int64[1] two = {{2}},
        int64[1] one = {{1}}, int64[2] head = {{0, 1}}, int64[2] ones = {{1, 1}}>
        {{ l0 = Shape<start = 2>(x) {body} }}"""
    ).SerializeToString()


def layers(count: int) -> str:
    parts = ["x0 = Identity(x)"]
    for i in range(count):
        parts += [f"x{i + 1} = Conv<strides = [2]>(x{i}, w)", LEFT.format(i=i, j=i + 1)]
    return " ".join(parts)


TWO = model(
    f"{layers(2)} s = Concat<axis = 0>(head, l2) r = Reshape(x2, s) e = Exp(r) y = Add(e, x2)"
)
UNREAD = model(  # by anything but Shape
    layers(1) + " s = Concat<axis = 0>(ones, l1) z = ConstantOfShape(s) "
    "t = Shape(x1) y = Expand(z, t)"
)


def run(session: Any, length: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((2, 1, length)).astype(np.float32)
    return session.run(None, {"x": x})[0]


def test_what_convolutions_leave_is_what_exporters_compute():
    graph = read(TWO)
    run_all(graph)
    assert [node.op for node in graph.nodes] == ["Conv", "Conv", "Exp", "Add"]
    length = graph.outputs[0].shape[2]
    assert isinstance(length, Expr) and "max" not in str(length)


def test_sizes_that_nothing_refuses_stay():
    graph = read(
        model(
            "n = Sub(l0, reach) q = Div(n, two) s = Concat<axis = 0>(head, q) "
            "z = ConstantOfShape(s) y = Exp(z)"
        )
    )
    run_all(graph)
    assert "max" in str(graph.outputs[0].shape[2]) and not graph.guards


def test_as_onnxruntime_does():
    """Also where a kernel does not fit, before and after runs that were good."""
    ours, theirs = q7x2_ep.InferenceSession(TWO), onnxruntime.InferenceSession(TWO)
    for length, fits in ((7, True), (2, False), (30, True), (1, False), (8, True)):
        if fits:
            expected = run(theirs, length)
            np.testing.assert_allclose(run(ours, length), expected, rtol=1e-5, atol=1e-5)
            continue
        with pytest.raises(InvalidArgument):
            run(theirs, length)
        with pytest.raises(q7x2_ep.Q7Error):
            run(ours, length)


def test_convolutions_of_which_only_sizes_are_read():
    """They go, and with them what they would refuse: no size rests on it."""
    ours, theirs = q7x2_ep.InferenceSession(UNREAD), onnxruntime.InferenceSession(UNREAD)
    for length in (7, 30, 8):
        np.testing.assert_array_equal(run(ours, length), run(theirs, length))


def test_ranges_of_floats_up_to_a_size():
    """As long as floats tell all sizes apart."""
    source = onnx.parser.parse_model(
        f"""{HEADER} g (float[n] x) => (float[a] y, float[b] z) <
            float half = {{0.5}}, float one = {{1}}, float less = {{-1.5}}, float three = {{3}}> {{
            all = Shape(x) at = Squeeze(all) end = Cast<to = 1>(at)
            y = Range(half, end, one) z = Range(less, end, three) }}"""
    ).SerializeToString()
    ours, theirs = q7x2_ep.InferenceSession(source), onnxruntime.InferenceSession(source)
    assert not ours._session.program.host_phases
    for length in (0, 1, 2, 3, 4, 5, 6, 7, 100, 2**22 + 3, 5):
        feed = {"x": np.zeros(length, np.float32)}
        for got, expected in zip(ours.run(None, feed), theirs.run(None, feed)):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype, code, most", [("float16", 10, 2**11), ("bfloat16", 16, 2**8)])
def test_ranges_of_16_bits_up_to_a_size(dtype, code, most):
    """A limit is rounded as its dtype says, whoever tells the size; up to where all integers are in
    that dtype the length is the size, which a Reshape may rest on."""
    given = onnx.helper.tensor_dtype_to_np_dtype(code).type

    def ranged(size):
        graph = onnx.parser.parse_graph(
            f"""g (float[{size}] x) => (float[a] y, float[b, c] z) {{
                all = Shape(x) at = Squeeze(all) end = Cast<to = {code}>(at)
                r = Range(zero, end, one) sizes = Shape(r) two = Concat<axis = 0>(sizes, last)
                column = Reshape(r, two) y = Cast<to = 1>(r) z = Cast<to = 1>(column) }}"""
        )
        numbers = {"zero": given(0), "one": given(1), "last": np.ones(1, np.int64)}
        for name, number in numbers.items():
            graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number), name))
        opsets = [onnx.helper.make_opsetid("", 23)]
        return onnx.helper.make_model(graph, ir_version=10, opset_imports=opsets)

    symbolic = q7x2_ep.InferenceSession(ranged("n"))
    assert not symbolic._session.program.host_phases
    evaluator = onnx.reference.ReferenceEvaluator(ranged("n"))
    for length in (7, most, most + 1, most + 3, 3, 2 * most + 2):
        feed = {"x": np.zeros(length, np.float32)}
        expected = evaluator.run(None, feed)
        assert expected[0].shape == (int(given(length)),)
        for session in (symbolic, q7x2_ep.InferenceSession(ranged(length))):
            for got, wanted in zip(session.run(None, feed), expected):
                np.testing.assert_array_equal(got.astype(given), wanted)  # decision 25
