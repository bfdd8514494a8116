"""Convolutions that write over the residual they add (csrc/over.h): the bits are those of a
residual that stays where it is, and less memory is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from tests.kernels.harness import session_of


class Case(NamedTuple):
    channels: int
    filters: int
    kernel: int
    size: tuple[int, int]
    op: str  # that the convolution becomes
    act: str = "Relu"
    acts_last: bool = True  # act(conv + residual), else act(conv) + residual
    over: bool = True


CASES = {
    "few filters": Case(64, 128, 1, (24, 24), "conv_direct"),
    "filters that fill no panel": Case(32, 88, 1, (30, 31), "conv_direct"),
    "sums in two blocks": Case(26, 26, 3, (21, 20), "conv_direct"),
    "activation first": Case(64, 96, 1, (24, 24), "conv_direct", acts_last=False),
    "activation that follows stores": Case(64, 128, 1, (24, 24), "conv_direct", "Gelu", over=False),
    "products": Case(160, 264, 1, (15, 13), "conv_last"),
    "activation of products": Case(160, 264, 1, (15, 13), "conv_last", "Gelu"),
    "sums in two parts": Case(256, 320, 1, (15, 13), "conv_last", over=False),
    "squares": Case(96, 96, 3, (21, 20), "winograd"),
    "activation of squares": Case(96, 72, 3, (21, 20), "winograd", "Gelu", acts_last=False),
}


def model_of(case: Case, keeps: bool = False) -> bytes:
    """Two convolutions a and c of x, y = act(c + a), or act(c) + a, and its mean z. keeps: the mean
    of a as well, for which that stays in memory.
    """
    rng = np.random.default_rng(3)
    taps = case.channels * case.kernel**2
    shape = (case.filters, case.channels, case.kernel, case.kernel)
    wide = rng.normal(0, case.channels**-0.5, (*shape[:2], 1, 1)).astype(np.float32)
    w = rng.normal(0, taps**-0.5, shape).astype(np.float32)
    pads = [case.kernel // 2] * 4
    summed = ["c", "a"] if case.acts_last else ["f", "a"]
    end = ("s", "y") if case.acts_last else ("c", "f")
    add = helper.make_node("Add", summed, ["s" if case.acts_last else "y"])
    act = helper.make_node(case.act, [end[0]], [end[1]])
    nodes = [
        helper.make_node("Conv", ["x", "wide"], ["r"]),
        helper.make_node("Relu", ["r"], ["a"]),
        helper.make_node("Conv", ["x", "w"], ["c"], pads=pads),
        *([add, act] if case.acts_last else [act, add]),
        helper.make_node("GlobalAveragePool", ["y"], ["z"]),
        *([helper.make_node("GlobalAveragePool", ["a"], ["more"])] if keeps else []),
    ]
    image = [case.channels, *case.size]
    return bytes_of(nodes, image, {"wide": wide, "w": w}, ["z", *(["more"] if keeps else [])])


def bytes_of(nodes: list, image: list, weights: dict[str, np.ndarray], outputs: list[str]) -> bytes:
    """A model of any number of images x (channels, height, width)."""
    graph = helper.make_graph(
        nodes,
        "over",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *image])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()


def arena_of(session: q7x2_ep.InferenceSession) -> int:
    return sum(session.memory_report().arenas)


@pytest.mark.parametrize("name", CASES)
def test_bits_and_memory_with_any_threads(name):
    case = CASES[name]
    image = case.filters * case.size[0] * case.size[1] * 4
    x = np.random.default_rng(1).normal(0, 1, (3, case.channels, *case.size)).astype(np.float32)
    for images in (1, 3):
        feed = {"x": x[:images]}
        for threads in (1, 3):
            kept = session_of(model_of(case, keeps=True), threads)
            over = session_of(model_of(case), threads)
            for _ in range(2):  # what the first run left is the second one's as well
                assert case.op in [step.op for step in over._session.program.steps]
                (wanted, _), (got,) = kept.run(None, feed), over.run(None, feed)
                np.testing.assert_array_equal(got, wanted)
            saved = arena_of(kept) - arena_of(over)
            assert abs(saved - case.over * images * image) < image / 8


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name):
    onnxruntime = pytest.importorskip("onnxruntime")
    case = CASES[name]
    model = model_of(case)
    x = np.random.default_rng(2).normal(0, 1, (2, case.channels, *case.size)).astype(np.float32)
    wanted = onnxruntime.InferenceSession(model).run(None, {"x": x})[0]
    (got,) = session_of(model, 2).run(None, {"x": x})
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_chain_of_sums_is_one_image():
    """Blocks of a residual network, each over the sum before it."""
    rng = np.random.default_rng(4)
    w = rng.normal(0, 0.1, (64, 64, 1, 1)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y0"])]
    for i in range(4):
        nodes += [
            helper.make_node("MaxPool", [f"y{i}"], [f"p{i}"], kernel_shape=[3, 3], pads=[1] * 4),
            helper.make_node("Conv", [f"p{i}", "w"], [f"c{i}"]),
            helper.make_node("Add", [f"c{i}", f"y{i}"], [f"y{i + 1}"]),
        ]
    nodes.append(helper.make_node("GlobalAveragePool", ["y4"], ["z"]))
    model = bytes_of(nodes, [64, 40, 40], {"w": w}, ["z"])
    x = rng.normal(0, 1, (1, 64, 40, 40)).astype(np.float32)
    image = x.nbytes
    for threads in (1, 2):
        session = session_of(model, threads)
        (z,) = session.run(None, {"x": x})
        names = [f"y{i}" for i in range(5)]
        wanted = session_of(model, threads).run([*names, "z"], {"x": x})[-1]
        np.testing.assert_array_equal(z, wanted)
        assert arena_of(session) < 2.8 * image  # y, the pool of it, and rooms


def test_a_residual_that_is_convolved_as_well_stays():
    w = np.random.default_rng(5).normal(0, 0.1, (64, 64, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["p"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Conv", ["p", "w"], ["c"]),
        helper.make_node("Add", ["c", "p"], ["y"]),
        helper.make_node("GlobalAveragePool", ["y"], ["z"]),
    ]
    model = bytes_of(nodes, [64, 40, 40], {"w": w}, ["z"])
    x = np.random.default_rng(6).normal(0, 1, (2, 64, 40, 40)).astype(np.float32)
    session = session_of(model, 2)
    wanted = session_of(model, 2).run(["p", "y", "z"], {"x": x})[-1]
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)
