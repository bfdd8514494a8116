"""Optional values: one is what it holds, a tensor or sequence, or None."""

from __future__ import annotations

from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError
from q7x2_ep.ir.core import UNKNOWN, Node, Type
from q7x2_ep.ops import op
from q7x2_ep.ops.common import where_is


def infer_held(node: Node) -> list[Type]:
    held = node.input(0)
    return [UNKNOWN if held is None else Type(held.dtype, held.shape)]


@op("Optional")
class Optional:
    """y = x, or None where there is no x. type: of what y could hold."""

    signature = "x? -> y"
    attributes = {"type": None}
    infer = infer_held
    reference = lambda node, x=None: (x,)


@op("OptionalHasElement")
class OptionalHasElement:
    """y = whether x holds anything."""

    signature = "x? -> y"
    attributes: dict = {}
    infer = lambda node: [Type(dtypes.BOOL, ())]
    reference = lambda node, x=None: np.array(x is not None)


@op("OptionalGetElement")
class OptionalGetElement:
    """y = what x holds."""

    signature = "x -> y"
    attributes: dict = {}
    infer = infer_held

    def reference(node: Node, x: Any) -> tuple:
        if x is None:
            raise DataError(f"{where_is(node)} the optional is empty")
        return (x,)
