"""Tensors out of nothing but a shape or a range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ir.shape import ceildiv, maximum, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    MAX_ELEMENTS,
    NUMBERS,
    NotInferable,
    constant_scalar,
    fill_step,
    known,
    require_dtype,
    required,
    typed,
    where_is,
)


@op("ConstantOfShape")
class ConstantOfShape:
    """A tensor of the given shape, full of one value (0.0 by default)."""

    signature = "shape -> y"
    attributes = {"value": None}

    def infer(node: Node) -> list[Type]:
        shape = required(node, 0, "the shape")
        value = fill_value(node)
        n = product(shape)
        contents = (value.item(),) * n if isinstance(n, int) and n <= MAX_ELEMENTS else None
        return [typed(dtypes.from_numpy(value.dtype), shape, contents)]

    reference = lambda node, shape: np.full(tuple(shape.tolist()), fill_value(node)[()])
    lower = lambda node, b: fill_step(b, fill_value(node).item(), node.output)


def fill_value(node: Node) -> np.ndarray:
    """The value as a 0-d array."""
    value = node.attrs["value"]
    return np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())


@op("Range")
class Range:
    """start, start + delta, .. up to limit, which is left out."""

    signature = "start, limit, delta -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        dtype = node.inputs[0].dtype
        if dtypes.is_float(dtype):
            bounds = [constant_scalar(value) for value in node.inputs]
            if None in bounds:
                raise NotInferable(f"{where_is(node)} a range of floats must have constant bounds")
            return [Type(dtype, (steps_between(*bounds),))]
        start, limit, delta = (required(node, i, "the bounds")[0] for i in range(3))
        if not isinstance(delta, int) or delta == 0:
            raise NotInferable(
                f"{where_is(node)} delta must be a constant other than 0, not {delta}"
            )
        distance = limit - start if delta > 0 else start - limit
        n = maximum(ceildiv(distance, abs(delta)), 0)
        contents = None
        if isinstance(n, int) and n <= MAX_ELEMENTS:
            contents = tuple(start + i * delta for i in range(n))
        return [typed(dtype, (n,), contents)]

    def reference(
        node: Node, start: np.ndarray, limit: np.ndarray, delta: np.ndarray
    ) -> np.ndarray:
        n = steps_between(start.item(), limit.item(), delta.item())
        return start + np.arange(n).astype(start.dtype) * delta

    def lower(node: Node, b: Any) -> None:
        start, _, delta = node.inputs
        require_dtype(node, start.dtype, NUMBERS)
        fields: dict[str, Any] = {"start": 0.0, "step": 0.0, "istart": 0, "istep": 0}
        if dtypes.is_float(start.dtype):
            fields.update(start=constant_scalar(start), step=constant_scalar(delta))
        else:
            fields.update(istart=known(start)[0], istep=known(delta)[0])
        b.step("arange", y=node.output, dtype=start.dtype, n=node.output.shape[0], **fields)


def steps_between(start: float, limit: float, delta: float) -> int:
    return max(math.ceil((limit - start) / delta), 0)
