"""Softmax and its logarithm."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from q7x2_ep.ir.core import Node
from q7x2_ep.ir.shape import product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import F32, infer_same, normal_axis, require_dtype


def shifted(node: Node, x: np.ndarray) -> np.ndarray:
    """x less its maximum along the axis, so that exp cannot overflow."""
    return x - x.max(node.attrs["axis"], keepdims=True, initial=-np.inf)


def softmax(log: int) -> Callable[[Node, Any], None]:
    def lower(node: Node, b: Any) -> None:
        x = node.inputs[0]
        require_dtype(node, x.dtype, F32)
        axis = normal_axis(node, node.attrs["axis"], len(x.shape))
        outer, n, inner = product(x.shape[:axis]), x.shape[axis], product(x.shape[axis + 1 :])
        b.step(
            "softmax",
            kernel="softmax",
            inplace="x",
            x=x,
            y=node.output,
            outer=outer,
            n=n,
            inner=inner,
            log=log,
        )

    return lower


@op("Softmax")
class Softmax:
    """y = exp(x) / sum(exp(x)) along an axis."""

    signature = "x -> y"
    attributes = {"axis": -1}
    infer = infer_same

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        weights = np.exp(shifted(node, x))
        return weights / weights.sum(node.attrs["axis"], keepdims=True)

    lower = softmax(log=0)


@op("LogSoftmax")
class LogSoftmax:
    """y = x - ln(sum(exp(x))) along an axis."""

    signature = "x -> y"
    attributes = {"axis": -1}
    infer = infer_same

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        y = shifted(node, x)
        return y - np.log(np.exp(y).sum(node.attrs["axis"], keepdims=True))

    lower = softmax(log=1)
