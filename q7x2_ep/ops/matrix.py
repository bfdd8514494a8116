"""Determinants and inverses of matrices: the last two dims."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ir.shape import product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    FLOATS,
    Guard,
    dims,
    elem_bytes,
    infer_same,
    require_dtype,
    where_is,
)
from q7x2_ep.ops.norm import widened


def in_float(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """reference from a function that numpy does not have of halves."""
    return lambda node, x: function(widened(x)).astype(x.dtype)


def square_guards(node: Node) -> list[Guard]:
    shape = dims(node)
    if len(shape) < 2:
        raise ModelError(f"{where_is(node)} expects matrices, given rank {len(shape)}")
    return [(shape[-2], shape[-1], f"matrices ({shape[-2]}, {shape[-1]}) are not square")]


def matrix_step(node: Node, b: Any, is_det: bool) -> None:
    x = node.inputs[0]
    require_dtype(node, x.dtype, FLOATS)
    n = x.shape[-1]
    b.step(
        "inverse",
        x=x,
        y=node.output,
        room=b.threads * n * n * elem_bytes(node),
        dtype=x.dtype,
        outer=product(x.shape[:-2]),
        n=n,
        is_det=int(is_det),
    )


@op("Det")
class Det:
    """The determinant of each matrix (.., N, N)."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = lambda node: [Type(node.inputs[0].dtype, dims(node)[:-2])]
    guards = square_guards
    reference = in_float(np.linalg.det)
    lower = lambda node, b: matrix_step(node, b, is_det=True)


@op("com.microsoft::Inverse")
class Inverse:
    """The inverse of each matrix (.., N, N)."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    guards = square_guards
    reference = in_float(np.linalg.inv)
    lower = lambda node, b: matrix_step(node, b, is_det=False)
