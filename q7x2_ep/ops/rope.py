"""Rotary position embedding: pairs of channels are rotated by an angle that grows with position."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    binary_step,
    infer_same,
    materialized,
    require_dtype,
    reshaped,
    temporary,
)

HEADS_INNER = (0, 2, 1, 3)  # (B, H, S, D) -> (B, S, H, D)


@op("RotaryEmbedding")
class RotaryEmbedding:
    """(cos * a - sin * b, sin * a + cos * b) for every pair (a, b) of the first R channels.

    R is rotary_embedding_dim; a pair is (i, i + R / 2), or (2 i, 2 i + 1) if interleaved.
    Shapes: x (B, H, S, D) or (B, S, H * D); cos and sin (B, S, R / 2), or (positions, R / 2) with
    position_ids (B, S).
    """

    signature = "x, cos, sin, position_ids? -> y"
    attributes = {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0}
    infer = infer_same

    def reference(
        node: Node,
        x: np.ndarray,
        cos: np.ndarray,
        sin: np.ndarray,
        position_ids: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        if position_ids is not None:
            cos, sin = cos[position_ids], sin[position_ids]
        cos, sin = cos[:, :, None], sin[:, :, None]  # (B, S, 1, R / 2)
        y = (
            x.transpose(HEADS_INNER)
            if x.ndim == 4
            else x.reshape(*x.shape[:2], node.attrs["num_heads"], -1)
        ).copy()
        first, second = pairs(node, y.shape[-1])
        a, b = y[..., first].copy(), y[..., second].copy()
        y[..., first], y[..., second] = cos * a - sin * b, sin * a + cos * b
        return y.transpose(HEADS_INNER) if x.ndim == 4 else y.reshape(x.shape)

    def lower(node: Node, b: Any) -> None:
        x, cos, sin = node.inputs[:3]
        require_dtype(node, x.dtype, F32)
        if len(x.shape) == 4:
            source, target = (
                b.view(x).transpose(HEADS_INNER),
                b.allocate(node.output).transpose(HEADS_INNER),
            )
        else:
            heads = node.attrs["num_heads"]
            shape = (*x.shape[:2], heads, x.shape[2] // heads)
            source, target = reshaped(b, x, shape), b.allocate(node.output).reshape(shape)
        angles = [angle_view(b, node, table) for table in (cos, sin)]
        first, second = pairs(node, source.shape[3])
        halves = [materialized(b, part(source, at)) for at in (first, second)]
        rotate(b, halves, angles, [part(target, at) for at in (first, second)])
        whole = source.shape[3]
        used = node.attrs["rotary_embedding_dim"] or whole
        if used != whole:
            b.copy(source.slice(3, used, whole - used), target.slice(3, used, whole - used))


def pairs(node: Node, head_size: Dim) -> tuple[slice, slice]:
    """Where the first and the second channels of all pairs are."""
    rotated = node.attrs["rotary_embedding_dim"] or head_size
    if node.attrs["interleaved"]:
        return slice(0, rotated, 2), slice(1, rotated, 2)
    return slice(0, rotated // 2, 1), slice(rotated // 2, rotated, 1)


def part(view: View, at: slice) -> View:
    """The channels `at` of a (B, S, H, D) view."""
    return view.slice(3, at.start, (at.stop - at.start + at.step - 1) // at.step, at.step)


def angle_view(b: Any, node: Node, table: Value) -> View:
    """cos or sin as (B, S, 1, R / 2), looked up by position where positions are given."""
    positions = node.input(3)
    if positions is not None:
        require_dtype(node, positions.dtype, (dtypes.INT64, dtypes.INT32))
        found = temporary(b, table.dtype, (*positions.shape, table.shape[-1]))
        b.step(
            "gather",
            x=table,
            indices=positions,
            y=found,
            outer=1,
            axis_dim=table.shape[0],
            inner_bytes=table.shape[1] * dtypes.size(table.dtype),
            n=product(positions.shape),
            index_dtype=positions.dtype,
        )
        table = found
    B, S, half = table.shape
    return reshaped(b, table, (B, S, 1, half))


def rotate(b: Any, halves: list[View], angles: list[View], targets: list[View]) -> None:
    """Multiply the pairs, as complex numbers, by cos + i sin; every product and sum is one step."""
    (a, other), (cos, sin) = halves, angles
    dtype, shape = a.storage.dtype, a.shape
    terms = [temporary(b, dtype, shape) for _ in range(4)]
    for term, half, angle in zip(terms, (a, other, a, other), (cos, sin, sin, cos)):
        binary_step(b, "mul", half, angle, term)
    for op_name, left, right, target in (
        ("sub", *terms[:2], targets[0]),
        ("add", *terms[2:], targets[1]),
    ):
        result = temporary(b, dtype, shape)
        binary_step(b, op_name, left, right, result)
        b.copy(b.view(result), target)
