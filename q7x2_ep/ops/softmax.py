"""Softmax, its logarithm, and what it tends to."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from q7x2_ep.ir.core import Node
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import FLOATS, infer_same, normal_axis, require_dtype


def shifted(node: Node, x: np.ndarray) -> np.ndarray:
    """x less its maximum along the axis, so that exp cannot overflow."""
    return x - x.max(node.attrs["axis"], keepdims=True, initial=-np.inf)


def lines(node: Node) -> dict[str, Dim]:
    """The fields by which a step walks lines along the axis."""
    shape = node.inputs[0].shape or (1,)
    axis = normal_axis(node, node.attrs["axis"], len(shape))
    outer, inner = product(shape[:axis]), product(shape[axis + 1 :])
    return {"dtype": node.inputs[0].dtype, "outer": outer, "n": shape[axis], "inner": inner}


def along_axis(function: Callable[[Node, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """reference from a function of an array that has axes; a scalar is a line of one."""
    return lambda node, x: function(node, np.atleast_1d(x)).reshape(x.shape)


def softmax(log: int) -> Callable[[Node, Any], None]:
    def lower(node: Node, b: Any) -> None:
        x, y = node.inputs[0], node.output
        require_dtype(node, x.dtype, FLOATS)
        b.step("softmax", kernel="softmax", inplace="x", x=x, y=y, log=log, **lines(node))

    return lower


def weights_of(node: Node, x: np.ndarray) -> np.ndarray:
    weights = np.exp(shifted(node, x))
    return weights / weights.sum(node.attrs["axis"], keepdims=True)


def log_weights_of(node: Node, x: np.ndarray) -> np.ndarray:
    y = shifted(node, x)
    return y - np.log(np.exp(y).sum(node.attrs["axis"], keepdims=True))


def one_of(node: Node, x: np.ndarray) -> np.ndarray:
    y, axis = np.zeros_like(x), node.attrs["axis"]
    if x.size:
        np.put_along_axis(y, x.argmax(axis, keepdims=True), 1, axis)
    return y


@op("Softmax")
class Softmax:
    """y = exp(x) / sum(exp(x)) along an axis."""

    signature = "x: F -> y"
    attributes = {"axis": -1}
    infer = infer_same

    reference = along_axis(weights_of)

    lower = softmax(log=0)


@op("LogSoftmax")
class LogSoftmax:
    """y = x - ln(sum(exp(x))) along an axis."""

    signature = "x: F -> y"
    attributes = {"axis": -1}
    infer = infer_same

    reference = along_axis(log_weights_of)

    lower = softmax(log=1)


@op("Hardmax")
class Hardmax:
    """y = 1 at the first largest element along an axis, 0 elsewhere."""

    signature = "x: F -> y"
    attributes = {"axis": -1}
    infer = infer_same

    reference = along_axis(one_of)

    def lower(node: Node, b: Any) -> None:
        require_dtype(node, node.inputs[0].dtype, FLOATS)
        b.step("hardmax", x=node.inputs[0], y=node.output, **lines(node))
