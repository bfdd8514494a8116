"""Small models for the tests of the surface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
ONES = np.ones((2, 3), np.float32)


def info(name: str, shape: Any, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
    ir_version: int = 8,
    domains: Sequence[str] = (),
) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    return made.SerializeToString()


def node(op: str, inputs: str, outputs: str = "z", name: str = "", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=name, **attrs)


def one(op: str, *inputs: onnx.ValueInfoProto, kind: int = FLOAT, **attrs: Any) -> bytes:
    """A model of one node, whose output is z."""
    names = " ".join(item.name for item in inputs)
    return model([node(op, names, name="the_node", **attrs)], inputs, [info("z", None, kind)])


def add() -> bytes:
    """z = x + y for x (2, 3) and y (N, 3), by the node add0."""
    inputs = [info("x", [2, 3]), info("y", ["N", 3])]
    return model([node("Add", "x y", name="add0")], inputs, [info("z", [2, 3])])


def scaled() -> bytes:
    """s = x + y; z = s * w, where w is 2 unless it is fed."""
    nodes = [node("Add", "x y", "s", "add0"), node("Mul", "s w", "z", "mul0")]
    inputs = [info("x", [2, 3]), info("y", ["N", 3]), info("w", [1])]
    weight = onnx.numpy_helper.from_array(np.array([2], np.float32), "w")
    return model(nodes, inputs, [info("z", [2, 3])], [weight])
