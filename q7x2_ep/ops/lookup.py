"""Functions of one byte: 256 numbers."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Node, Type, Value, array_type
from q7x2_ep.ir.shape import product
from q7x2_ep.ops import find, op
from q7x2_ep.ops.common import LOWEST_BYTE, in_order

BITS = 256


@op("q7::ByteTable")
class ByteTable:
    """y = table[x - the lowest that x may be].

    Types: x and y uint8 or int8, table 256 of y, constant.
    """

    signature = "x, table -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        x, table = node.inputs
        return [Type(table.dtype, x.shape)]

    def decompose(g: Any, x: Value, table: Value) -> Value:
        at = g.Sub(g.Cast(x, to=dtypes.INT32), g.array(np.array(LOWEST_BYTE[x.dtype], np.int32)))
        return g.Gather(table, at)

    def lower(node: Node, b: Any) -> None:
        x, table = node.inputs
        bits = np.roll(table.const, LOWEST_BYTE[x.dtype])
        (x,), y = in_order(b, [x], node.output)
        constant = b.graph.constant(bits, array_type(bits), "table")
        b.step("lookup", kernel="lookup", x=x, table=constant, y=y, n=product(node.output.shape))


def table_of(value: Value, source: Value, known: dict[Value, np.ndarray]) -> Optional[np.ndarray]:
    """What `value` is, which depends on one element of the bytes `source` and on constants, for all
    that this may be, lowest first; None where numpy cannot tell. known: what is told already.
    """
    if value is source:
        lowest = LOWEST_BYTE[source.dtype]
        return np.arange(lowest, lowest + BITS).astype(dtypes.DTYPES[source.dtype].numpy)
    if value not in known:
        node = value.producer
        assert node is not None, "a source is found among producers"
        operands: list[Optional[np.ndarray]] = []
        for operand in node.inputs:
            found = None
            if operand is not None and operand.const is not None:
                found = np.asarray(operand.const).reshape(())
            elif operand is not None:
                found = table_of(operand, source, known)
                if found is None:
                    return None
            operands.append(found)
        entry = find(node.op)
        if not hasattr(entry, "reference"):
            return None
        with np.errstate(all="ignore"):
            result = np.asarray(entry.reference(node, *operands))
        known[value] = np.broadcast_to(result, (BITS,))
    return known[value]
