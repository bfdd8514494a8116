"""Tensors out of nothing but a shape or a range."""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.ir.core import MAX_ELEMENTS, Node, Type
from q7x2_ep.ir.shape import Dim, ceildiv, is_content, is_measured, maximum, minimum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    NUMBERS,
    Guard,
    NotInferable,
    constant_scalar,
    dims,
    expand_view,
    fill_step,
    fresh,
    known,
    length,
    number,
    require_dtype,
    required,
    required_ints,
    typed,
    where_is,
)


@op("ConstantOfShape")
class ConstantOfShape:
    """A tensor of the given shape, full of one value (0.0 by default)."""

    signature = "shape: int64 -> y"
    attributes = {"value": None}

    def infer(node: Node) -> list[Type]:
        shape, value = known(node.inputs[0]), fill_value(node)
        if shape is None:
            return [Type(dtypes.from_numpy(value.dtype), fresh(node, 0, length(node, 0)))]
        n = product(shape)
        contents = (value.item(),) * n if isinstance(n, int) and n <= MAX_ELEMENTS else None
        return [typed(dtypes.from_numpy(value.dtype), shape, contents)]

    reference = lambda node, shape: np.full(tuple(shape.tolist()), fill_value(node)[()])

    def lower(node: Node, b: Any) -> None:
        required(node, 0, "the shape")
        fill_step(b, fill_value(node).item(), node.output)


def fill_value(node: Node) -> np.ndarray:
    """The value as a 0-d array."""
    value = node.attrs["value"]
    return np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())


EXACT_HALVES = 2**22  # floats up to here have all halves between them
EXACT = {  # up to where a dtype has all integers
    **dict.fromkeys((dtypes.FLOAT, dtypes.DOUBLE), EXACT_HALVES),
    **{dtypes.FLOAT16: 2**11, dtypes.BFLOAT16: 2**8},
}


@op("Range")
class Range:
    """start, start + delta, .. up to limit, which is left out.

    exact: true where a size as the limit of floats may be any, else it is one up to which the dtype
    has all integers. most: that of the dtype that the model has, where it is another one by now.
    """

    signature = "start: N, limit: N, delta: N -> y"
    attributes = {"stash_type": 1, "exact": None, "most": None}
    own = ("exact", "most")

    def infer(node: Node) -> list[Type]:
        dtype = node.inputs[0].dtype
        if dtypes.is_float(dtype):
            bounds = [constant_scalar(value) for value in node.inputs]
            if None not in bounds:
                return [Type(dtype, (steps_between(*bounds),))]
            size = size_as_limit(node)
            if size is None:
                return [Type(dtype, fresh(node, 0, 1))]
            start, _, delta = bounds
            return [Type(dtype, (maximum(ceildiv(size - math.floor(start), int(delta)), 0),))]
        given = [known(value) for value in node.inputs]
        if None in given or not isinstance(given[2][0], int):
            return [Type(dtype, fresh(node, 0, 1))]
        start, limit, delta = (bound[0] for bound in given)
        if delta == 0:
            raise ModelError(f"{where_is(node)} delta is 0")
        distance = limit - start if delta > 0 else start - limit
        n = maximum(ceildiv(distance, abs(delta)), 0)
        contents = None
        if isinstance(n, int) and n <= MAX_ELEMENTS:
            contents = tuple(start + i * delta for i in range(n))
        return [typed(dtype, (n,), contents)]

    def assumptions(node: Node) -> list[Guard]:
        size = size_as_limit(node)
        if size is None:
            return []
        return [(maximum(size - _most(node), 0), 0, f"a Range of floats up to {size}")]

    def reference(
        node: Node, start: np.ndarray, limit: np.ndarray, delta: np.ndarray
    ) -> np.ndarray:
        if delta == 0:
            raise DataError(f"{where_is(node)} delta is 0")
        n = steps_between(start.item(), limit.item(), delta.item())
        wide = start.dtype
        if start.dtype.kind in "iu":
            wide = np.dtype(np.int64)
        elif start.dtype.itemsize == 2 and node.attrs["stash_type"]:
            wide = np.dtype(np.float32)
        y = start.astype(wide) + np.arange(n).astype(wide) * delta.astype(wide)
        return y.astype(start.dtype)

    def lower(node: Node, b: Any) -> None:
        start, _, delta = node.inputs
        require_dtype(node, start.dtype, (*NUMBERS, dtypes.INT16))
        fields: dict[str, Any] = {"start": 0.0, "step": 0.0, "istart": 0, "istep": 0}
        if not dtypes.is_float(start.dtype):
            required(node, 1, "the limit")
            istart, istep = required(node, 0, "the start"), required_ints(node, 2, "delta")
            fields.update(istart=istart[0], istep=istep[0])
        elif None in (constant_scalar(value) for value in (start, delta)):
            raise NotInferable(f"{where_is(node)} the length of the range comes from data")
        else:
            fields.update(start=constant_scalar(start), step=constant_scalar(delta))
        b.step("arange", y=node.output, dtype=start.dtype, n=node.output.shape[0], **fields)


def size_as_limit(node: Node) -> Optional[Dim]:
    """The size that was cast to be the limit of floats, where a Range from a half, by a whole step,
    counts it without rounding.
    """
    start, delta = constant_scalar(node.inputs[0]), constant_scalar(node.inputs[2])
    cast = node.inputs[1].producer
    if node.attrs["exact"] or cast is None or cast.op != "Cast" or None in (start, delta):
        return None
    size = known(cast.inputs[0])
    is_exact = abs(start) <= EXACT_HALVES and start * 2 % 1 == 0 and 1 <= delta <= EXACT_HALVES
    if not (is_exact and delta % 1 == 0 and size) or node.inputs[1].dtype not in EXACT:
        return None
    is_rounded = isinstance(size[0], int) and size[0] > _most(node)
    return None if is_rounded or is_content(size[0]) or is_measured(size[0]) else size[0]


def _most(node: Node) -> int:
    return node.attrs["most"] or EXACT[node.inputs[1].dtype]


def steps_between(start: float, limit: float, delta: float) -> int:
    if isinstance(start, int):  # exact, however large
        return max(-((start - limit) // delta), 0)
    return max(math.ceil((limit - start) / delta), 0)


@op("EyeLike")
class EyeLike:
    """Ones on diagonal k of a matrix shaped like x, zeros elsewhere; k counts to the right."""

    signature = "x -> y"
    attributes = {"dtype": None, "k": 0}

    def infer(node: Node) -> list[Type]:
        if len(dims(node)) != 2:
            raise ModelError(f"{where_is(node)} shapes a matrix like {dims(node)}")
        return [Type(node.attrs["dtype"] or node.inputs[0].dtype, dims(node))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        code = node.attrs["dtype"]
        return np.eye(*x.shape, node.attrs["k"], dtypes.DTYPES[code].numpy if code else x.dtype)

    def lower(node: Node, b: Any) -> None:
        y, k = node.output, node.attrs["k"]
        rows, cols = y.shape
        fill_step(b, 0, y)
        down, right = max(-k, 0), max(k, 0)
        size = maximum(minimum(rows - down, cols - right), 0)
        one = b.view(number(b, 1, y.dtype))
        diagonal = View(b.allocate(y).storage, (size,), (cols + 1,), down * cols + right)
        b.copy(expand_view(one, (size,)), diagonal)
