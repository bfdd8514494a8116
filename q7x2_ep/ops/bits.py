"""Ops on the bits of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ops import op
from q7x2_ep.ops.common import INTEGERS, broadcast_guards, dims, where_is
from q7x2_ep.ops.elementwise import binary, infer_binary, infer_unary, unary


def shift(a: np.ndarray, count: np.ndarray, left: bool) -> np.ndarray:
    """a shifted by bits; by a negative count or by all of them, what the sign extends to."""
    bits = a.dtype.itemsize * 8
    within = (count >= 0) & (count < bits)
    count = np.where(within, count, 0).astype(a.dtype)
    sign = np.zeros_like(a) if left else np.where(a < 0, -1, 0).astype(a.dtype)
    return np.where(within, np.left_shift(a, count) if left else np.right_shift(a, count), sign)


@op("BitwiseNot")
class BitwiseNot:
    """Every bit of x turned."""

    signature = "x: I -> y"
    attributes: dict = {}
    infer = infer_unary(lambda a: -a - 1)
    reference = lambda node, x: np.bitwise_not(x)
    lower = unary("bitwise_not", INTEGERS)


@op("BitwiseAnd")
class BitwiseAnd:
    """y = the bits that a and b share, with broadcasting."""

    signature = "a: I, b: I -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: None)
    guards = broadcast_guards
    reference = lambda node, a, b: np.bitwise_and(a, b)
    lower = binary("and", INTEGERS)


@op("BitwiseOr")
class BitwiseOr:
    """y = the bits that a or b has, with broadcasting."""

    signature = "a: I, b: I -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: None)
    guards = broadcast_guards
    reference = lambda node, a, b: np.bitwise_or(a, b)
    lower = binary("or", INTEGERS)


@op("BitwiseXor")
class BitwiseXor:
    """y = the bits in which a and b differ, with broadcasting."""

    signature = "a: I, b: I -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: None)
    guards = broadcast_guards
    reference = lambda node, a, b: np.bitwise_xor(a, b)
    lower = binary("xor", INTEGERS)


@op("BitShift")
class BitShift:
    """y = a with its bits moved by b to the `direction`, with broadcasting; the sign extends."""

    signature = "a: I, b: I -> y"
    attributes = {"direction": None}
    choices = {"direction": ("LEFT", "RIGHT")}
    infer = infer_binary(lambda a, b: None)
    guards = broadcast_guards
    reference = lambda node, a, b: shift(a, b, node.attrs["direction"] == "LEFT")

    def lower(node: Node, b: Any) -> None:
        binary("shift_left" if node.attrs["direction"] == "LEFT" else "shift_right", INTEGERS)(
            node, b
        )


@op("BitCast")
class BitCast:
    """The bytes of x as elements of the dtype `to`, which has as many bits."""

    signature = "x -> y"
    attributes = {"to": None}

    def infer(node: Node) -> list[Type]:
        x, to = node.inputs[0], node.attrs["to"]
        if to not in dtypes.DTYPES or dtypes.size(to) != dtypes.size(x.dtype):
            raise ModelError(
                f"{where_is(node)} {dtypes.type_string(x.dtype)} has not as many bits as "
                f"{dtypes.type_string(to)}"
            )
        return [Type(to, dims(node))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        as_declared = x.astype(dtypes.DTYPES[node.inputs[0].dtype].numpy, copy=False)
        dtype = dtypes.DTYPES[node.attrs["to"]].numpy
        return np.frombuffer(as_declared.tobytes(), dtype).reshape(x.shape)

    def lower(node: Node, b: Any) -> None:
        y = b.allocate(node.output)
        b.copy(b.contiguous(node.inputs[0]), y)
