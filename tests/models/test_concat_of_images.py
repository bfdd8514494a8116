"""Parts of a Concat of images, written where they belong: their sizes are those of the other parts
in every run, which the arithmetic of symbols cannot tell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep import importer
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.session import Session

# How an image of half the size (N, 32, ..) becomes one of 16 channels and twice the size, or how
# one of the same size z (N, 16, ..) becomes another.
WAYS: dict[str, list[tuple[str, list[str], dict[str, Any]]]] = {
    "transposed": [("ConvTranspose", ["half", "kernels", "bias"], {"strides": [2, 2]})],
    "nearest": [("Resize", ["narrow", "", "scales"], {"mode": "nearest"})],
    "linear": [("Resize", ["narrow", "", "scales"], {"mode": "linear"})],
    "conv": [("Conv", ["z", "square"], {"pads": [1] * 4})],
    "few filters": [("Conv", ["z", "few"], {})],
    "depthwise": [("Conv", ["z", "lines"], {"pads": [1] * 4, "group": 16})],
    "norm": [("InstanceNormalization", ["wide", "bias", "bias"], {})],
}
SIZES = {
    "first": (16, 16, 3, 3),
    "half": (32, 16, 3, 3),
    "narrow": (16, 32, 1, 1),
    "kernels": (32, 16, 2, 2),
    "square": (16, 16, 3, 3),
    "few": (3, 16, 1, 1),
    "lines": (16, 1, 3, 3),
    "bias": (16,),
}


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_symbols_of_parts_differ(way: str, is_first: bool) -> None:
    rng = np.random.default_rng(7)
    images = [
        helper.make_node("Conv", ["x", "first"], ["skip"], pads=[1] * 4),
        helper.make_node("MaxPool", ["skip"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["pooled", "half_w"], ["half"], pads=[1] * 4),
        helper.make_node("Conv", ["half", "narrow_w"], ["narrow"]),
        helper.make_node("Conv", ["z", "square"], ["wide"], pads=[1] * 4),
        *(helper.make_node(op, inputs, ["part"], **attrs) for op, inputs, attrs in WAYS[way]),
        helper.make_node(
            "Concat", ["part", "skip"] if is_first else ["skip", "part"], ["y"], axis=1
        ),
    ]
    constants = [
        numpy_helper.from_array(
            np.float32(rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5),
            f"{name}_w" if name in ("half", "narrow") else name,
        )
        for name, shape in SIZES.items()
    ]
    constants.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"n{name}", 16, f"h{name}", None])
        for name in "xz"
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(images, "parts", inputs, [y], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    data = made.SerializeToString()
    session, read = Session(data), importer.read(data)
    for shape in ((1, 16, 8, 12), (2, 16, 4, 4), (3, 16, 2, 2)):
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name in "xz"}
        (wanted,) = evaluate(read, feeds, np.float64)
        slack = 1e-5 * np.abs(wanted).max()
        np.testing.assert_allclose(session.run(feeds)[0], wanted, rtol=0, atol=slack)
