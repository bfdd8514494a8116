"""Convolutions and pools of volumes (N, C, D, H, W), of which some are those of images: small
networks against float64, and with threads.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep import importer, passes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.session import Session

# kernel, stride, pad before and behind
FLAT = ((1, 3, 3), (1, 1, 1), (0, 1, 1))
STRIDED = ((1, 3, 3), (1, 2, 2), (0, 1, 1))
DEEP = ((3, 1, 1), (1, 1, 1), (1, 0, 0))
WHOLE = ((3, 3, 3), (2, 2, 2), (1, 1, 1))
POINT = ((1, 1, 1), (1, 1, 1), (0, 0, 0))
WINDOWS = {"flat": FLAT, "strided": STRIDED, "deep": DEEP, "whole": WHOLE, "point": POINT}


def attrs_of(window: tuple) -> dict[str, Any]:
    kernel, strides, pads = window
    return {"kernel_shape": kernel, "strides": strides, "pads": [*pads, *pads]}


def network(batch: int, first: tuple, pool: tuple, kind: str, symbolic: bool) -> tuple:
    """One with an activation and a residual beside one of pixels, and a pool of both."""
    rng, shape = np.random.default_rng(8), (batch, 3, 5, 8, 9)
    sizes = {
        "w0": (40, 3, *POINT[0]),
        "w1": (40, 40, *first[0]),
        "b1": (40,),
        "w2": (33, 40, 1, 1, 1),
    }
    constants = [
        numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), name)
        for name, size in sizes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Conv", ["a", "w1", "b1"], ["c"], **attrs_of(first)),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["p"]),
        helper.make_node("Add", ["r", "a" if first[1] == (1, 1, 1) else "r"], ["s"]),
        helper.make_node("Concat", ["p", "s"], ["j"], axis=1),
        helper.make_node(f"{kind}Pool", ["j"], ["y"], **attrs_of(pool)),
    ]
    dims = ["n", 3, "d", "h", "w"] if symbolic else shape
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "volumes", [x], [y], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return made.SerializeToString(), rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["Max", "Average"])
@pytest.mark.parametrize("first, pool", list(itertools.product(WINDOWS, repeat=2)))
def test_against_float64(first: str, pool: str, kind: str, batch: int, symbolic: bool) -> None:
    data, x = network(batch, WINDOWS[first], WINDOWS[pool], kind, symbolic)
    graph = importer.read(data)
    passes.run_all(graph)
    (wanted,) = evaluate(graph, {"x": x}, np.float64)
    results = [Session(data, threads=threads).run({"x": x})[0] for threads in (1, 3)]
    assert results[0].tobytes() == results[1].tobytes()
    products = 40 * np.prod(WINDOWS[first][0]) + 33  # of which rounding errors are added up
    slack = np.finfo(np.float32).eps * np.sqrt(products) * np.abs(wanted).max()
    np.testing.assert_allclose(results[0], wanted, rtol=0, atol=slack)


def assert_true(
    nodes: list, sizes: dict[str, tuple], shape: tuple, rng: np.random.Generator
) -> None:
    """What the nodes make y of x, by constants of these sizes, is that of float64."""
    constants = [
        numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), name)
        for name, size in sizes.items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "volumes", [x], [y], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data, feeds = made.SerializeToString(), {"x": rng.standard_normal(shape).astype(np.float32)}
    (wanted,) = evaluate(importer.read(data), feeds, np.float64)
    slack = 1e-5 * np.abs(wanted).max()
    np.testing.assert_allclose(Session(data).run(feeds)[0], wanted, rtol=0, atol=slack)


@pytest.mark.parametrize("size", [(1, 1, 1), (1, 1, 4), (1, 3, 1), (4, 1, 1)])
def test_flat_kernels_of_sizes_of_one(size: tuple) -> None:
    """Such volumes have their channels side by side wherever they lie: strides tell less."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], **attrs_of(FLAT))]
    assert_true(nodes, {"w": (40, 3, *FLAT[0])}, (2, 3, *size), np.random.default_rng(9))


@pytest.mark.parametrize("size", [(5, 6, 7), (4, 2, 2)])
@pytest.mark.parametrize("groups, filters", [(1, 3), (2, 2), (2, 4), (4, 4), (8, 8), (2, 8)])
def test_flat_kernels_of_few_filters_behind_an_image(
    groups: int, filters: int, size: tuple
) -> None:
    sizes = {"w0": (8, 3, *WHOLE[0]), "w1": (filters, 8 // groups, *FLAT[0]), "b1": (filters,)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], **attrs_of(WHOLE)),
        helper.make_node("Conv", ["a", "w1", "b1"], ["c"], group=groups, **attrs_of(FLAT)),
        helper.make_node("Concat", ["c", "a"], ["y"], axis=1),
    ]
    assert_true(nodes, sizes, (2, 3, *size), np.random.default_rng(10))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("filters", [1, 8, 16])
def test_images_of_one_pixel_in_a_concat_of_planes(dims: int, filters: int) -> None:
    """Which a shorter Concat has placed: only its strides between images say where pixels are."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["a"], axis=1),
        helper.make_node("Conv", ["a", "w"], ["c"]),
        helper.make_node("Concat", ["x", "x", "c"], ["j"], axis=1),
        helper.make_node("Relu", ["j"], ["y"]),
    ]
    sizes = {"w": (filters, 6, *[1] * dims)}
    assert_true(nodes, sizes, (4, 3, *[1] * dims), np.random.default_rng(11))
