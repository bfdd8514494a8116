"""Rotary position embedding: pairs of channels are rotated by an angle that grows with position.

Letters: B batch, H heads, S positions, D channels of a head, R <= D rotated channels, C columns of
cos and sin: R, or R / 2 where both channels of a pair share an entry (half tables).
"""

from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, minimum, product
from q7x2_ep.ir.view import View, contiguous_strides
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    Guard,
    binary_step,
    dims,
    expand_view,
    fit_guards,
    infer_same,
    require_dtype,
    reshaped,
    rows_dense,
    temporary,
    where_is,
)
from q7x2_ep.ops.movement import concat_places

HEADS_INNER = (0, 2, 1, 3)  # (B, H, S, D) <-> (B, S, H, D)


# The formulas, shared by `decompose` and by fuse/rope.py


def rotated(g: Any, x: Any, turned: Any, cos: Any, sin: Any) -> Any:
    """x * cos + turned * sin; turned holds each pair (a, b) of x as (-b, a)."""
    return g.Add(g.Mul(x, cos), g.Mul(turned, sin))


def rotated_pairs(g: Any, a: Any, b: Any, cos: Any, sin: Any, cos2: Any, sin2: Any) -> Any:
    """The first and the second channels of all pairs, rotated."""
    return g.Sub(g.Mul(a, cos), g.Mul(b, sin)), g.Add(g.Mul(b, cos2), g.Mul(a, sin2))


def pair_bounds(R: Dim, interleaved: int) -> tuple[tuple[Dim, Dim, int], ...]:
    """(start, end, step) of the first and of the second channels of all pairs."""
    return ((0, R, 2), (1, R, 2)) if interleaved else ((0, R // 2, 1), (R // 2, R, 1))


@op("q7::Rope")
class Rope:
    """The first R channels of q and k rotated by cos + i sin, the others as they are.

    A pair (a, b) of channels, (i, i + R / 2) or (2 i, 2 i + 1) if interleaved, becomes
    (a cos - b sin, b cos + a sin).
    Shapes: q (B, H, S, D), k (B, Hkv, S, D); cos and sin broadcast to (B, 1, S, C), C = R, or
    R / 2 if half; outputs as q and k.
    Source: Su et al. 2021; ONNX RotaryEmbedding (opset 23).
    """

    signature = "q, k?, cos, sin -> q_out, k_out?"
    attributes = {"half": 0, "interleaved": 0}
    strided = range(4)

    def infer(node: Node) -> list[Type]:
        return [Type(x.dtype, x.shape) for x in node.inputs[: len(node.outputs)]]

    def decompose(
        g: Any,
        q: Value,
        k: Optional[Value],
        cos: Value,
        sin: Value,
        half: int = 0,
        interleaved: int = 0,
    ) -> Union[Value, tuple[Value, Value]]:
        y = _decomposed(g, q, cos, sin, half, interleaved)
        return y if k is None else (y, _decomposed(g, k, cos, sin, half, interleaved))

    def guards(node: Node) -> list[Guard]:
        (q, k, cos, sin), half = node.inputs, node.attrs["half"]
        (B, _, S, D), C = q.shape, cos.shape[-1]
        found = fit_guards((cos, sin), (B, 1, S, C)) + rotated_guards(C * (1 + half), D)
        found.append((sin.shape[-1], C, "cos and sin differ in columns"))
        for axis, what in ((0, "batch sizes"), (2, "lengths"), (3, "head sizes")):
            if k is not None:
                found.append((k.shape[axis], q.shape[axis], f"{what} differ"))
        return found

    def lower(node: Node, b: Any) -> None:
        q, k, cos, sin = node.inputs
        require_dtype(node, q.dtype, F32)
        placed = [output_view(b, y) for y in node.outputs]
        rope_step(
            b,
            b.view(q),
            None if k is None else b.view(k),
            b.view(cos),
            b.view(sin),
            placed,
            **node.attrs,
        )


def rotated_guards(R: Dim, D: Dim) -> list[Guard]:
    """The R rotated channels are pairs, and no more than the D of a head."""
    return [
        (R // 2 * 2, R, f"{R} rotated channels are no pairs"),
        (minimum(R, D), R, f"{R} rotated channels are more than the {D} of a head"),
    ]


def _decomposed(g: Any, x: Value, cos: Value, sin: Value, half: int, interleaved: int) -> Value:
    def channels(start: Dim, end: Dim, step: int = 1) -> Value:
        return g.Slice(x, [start], [end], [3], [step])

    B, H, S, D = x.shape
    R = cos.shape[-1] * (1 + half)
    a, b = (channels(*bounds) for bounds in pair_bounds(R, interleaved))

    def joined(first: Value, second: Value) -> Value:
        if not interleaved:
            return g.Concat(first, second, axis=-1)
        pairs = g.Concat(g.Unsqueeze(first, [-1]), g.Unsqueeze(second, [-1]), axis=-1)
        return g.Reshape(pairs, [B, H, S, R])

    if half:
        y = joined(*rotated_pairs(g, a, b, cos, sin, cos, sin))
    else:
        part = x if R == D else channels(0, R)
        y = rotated(g, part, joined(g.Neg(b), a), cos, sin)
    return y if R == D else g.Concat(y, channels(R, D), axis=-1)


def rope_step(
    b: Any,
    q: View,
    k: Optional[View],
    cos: View,
    sin: View,
    outputs: list[View],
    half: int,
    interleaved: int,
) -> None:
    """One step for q (B, H, S, D), k (B, Hkv, S, D), and tables that broadcast to (B, 1, S, C)."""
    B, H, S, D = q.shape
    tables = [expand_view(rows_dense(b, t), (B, 1, S, t.shape[-1])) for t in (cos, sin)]
    cos, sin = tables
    # rows are turned in place where the memory order stays
    same = q.strides == outputs[0].strides
    q = rows_dense(b, q)
    k = None if k is None else rows_dense(b, k)
    k_out = outputs[1] if k is not None else None
    fields: dict[str, Dim] = {"Hkv": 0 if k is None else k.shape[1]}
    for name, view in (("q", q), ("k", k), ("q_out", outputs[0]), ("k_out", k_out)):
        strides = (0, 0, 0) if view is None else view.strides[:3]
        fields.update({f"{name}_{axis}_stride": s for axis, s in zip("bhs", strides)})
    for name, view in (("cos", cos), ("sin", sin)):
        fields.update({f"{name}_b_stride": view.strides[0], f"{name}_s_stride": view.strides[2]})
    b.step(
        "rope",
        kernel="rope",
        inplace="q" if same else None,
        q=q,
        k=k,
        cos=cos,
        sin=sin,
        q_out=outputs[0],
        k_out=k_out,
        B=B,
        H=H,
        S=S,
        D=D,
        R=cos.shape[-1] * (1 + half),
        half=half,
        interleaved=interleaved,
        **fields,
    )


def output_view(b: Any, y: Value) -> View:
    """Where a (B, H, S, D) output is wanted: inside of a Concat, say behind past keys; in
    (B, S, H, D) order if that is what all users want; else dense.
    """
    joined = next((user for user in y.users if user.op == "Concat"), None)
    if joined is not None and joined.inputs.count(y) == 1 and not b.graph.is_output(y):
        b.alias(y, concat_places(joined, b)[joined.inputs.index(y)])
        return b.view(y)
    turned = [
        user.op == "Transpose" and tuple(user.attrs["perm"] or ()) == HEADS_INNER
        for user in y.users
    ]
    if not turned or not all(turned) or b.graph.is_output(y):
        return b.allocate(y)
    B, H, S, D = y.shape
    inner = contiguous_strides((B, S, H, D))
    return b.allocate(y, tuple(inner[p] for p in HEADS_INNER))


@op("RotaryEmbedding")
class RotaryEmbedding:
    """(cos * a - sin * b, sin * a + cos * b) for every pair (a, b) of the first R channels.

    R is rotary_embedding_dim, D by default; a pair is (i, i + R / 2), or (2 i, 2 i + 1) if
    interleaved.
    Shapes: x (B, H, S, D) or (B, S, H * D); cos and sin (B, S, R / 2), or (positions, R / 2) with
    position_ids (B, S), or (1,) for the position of the first of S, as com.microsoft has it.
    """

    signature = "x: F, cos: F, sin: F, position_ids?: int64 -> y"
    attributes = {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0}

    def infer(node: Node) -> list[Type]:
        if len(dims(node)) not in (3, 4):
            raise ModelError(f"{where_is(node)} rotates heads, not shape {dims(node)}")
        if len(dims(node)) == 3 and node.inputs[1].shape and _heads(node) == 0:
            raise ModelError(f"{where_is(node)} has {dims(node)[2]} channels, which are no heads")
        return infer_same(node)

    def guards(node: Node) -> list[Guard]:
        B, H, S, D = split_heads(node)
        pairs = (node.attrs["rotary_embedding_dim"] or D) // 2
        tables, positions = node.inputs[1:3], node.input(3)
        found = rotated_guards(2 * pairs, D)
        found += [(t.shape[-1], pairs, f"{t.name} has not one column per pair") for t in tables]
        if len(node.inputs[0].shape) == 3:
            width = node.inputs[0].shape[2]
            found.append((H * D, width, f"{width} channels are no {H} heads"))
        if positions is None:
            return found + fit_guards(tables, (B, S, pairs))
        return found + fit_guards((positions,), (B, S) if len(positions.shape) == 2 else (1,))

    def reference(
        node: Node,
        x: np.ndarray,
        cos: np.ndarray,
        sin: np.ndarray,
        position_ids: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        if position_ids is not None:
            if position_ids.ndim == 1:
                position_ids = position_ids + np.arange(x.shape[-2])[None]
            cos, sin = cos[position_ids], sin[position_ids]
        cos, sin = cos[:, :, None], sin[:, :, None]  # (B, S, 1, R / 2)
        heads = node.attrs["num_heads"] or x.shape[-1] // (2 * cos.shape[-1])
        y = x.transpose(HEADS_INNER) if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1)
        y = y.copy()
        R = node.attrs["rotary_embedding_dim"] or y.shape[-1]
        first, second = (slice(*bounds) for bounds in pair_bounds(R, node.attrs["interleaved"]))
        a, b = y[..., first].copy(), y[..., second].copy()
        y[..., first], y[..., second] = cos * a - sin * b, sin * a + cos * b
        return y.transpose(HEADS_INNER) if x.ndim == 4 else y.reshape(x.shape)

    def lower(node: Node, b: Any) -> None:
        x, y = node.inputs[0], node.output
        require_dtype(node, x.dtype, F32)
        B, H, S, D = split_heads(node)
        if len(x.shape) == 4:
            source, target = b.view(x), output_view(b, y)
        else:
            source = reshaped(b, x, (B, S, H, D)).transpose(HEADS_INNER)
            target = b.allocate(y).reshape((B, S, H, D)).transpose(HEADS_INNER)
        cos, sin = (table_view(b, node, table) for table in node.inputs[1:3])
        interleaved = node.attrs["interleaved"]
        rope_step(b, source, None, cos, sin, [target], half=1, interleaved=interleaved)


def split_heads(node: Node) -> tuple[Dim, Dim, Dim, Dim]:
    """The shape of x as (B, H, S, D). Without num_heads, all channels of a head are rotated."""
    x = node.inputs[0]
    if len(x.shape) == 4:
        return x.shape
    heads = _heads(node)
    return x.shape[0], heads, x.shape[1], x.shape[2] // heads


def _heads(node: Node) -> Dim:
    x, cos = node.inputs[:2]
    rotated = 2 * cos.shape[-1]
    return node.attrs["num_heads"] or (x.shape[2] // rotated if rotated != 0 else 0)


def table_view(b: Any, node: Node, table: Value) -> View:
    """cos or sin as (B, 1, S, R / 2), looked up by position where positions are given."""
    positions = node.input(3)
    if positions is not None:
        require_dtype(node, positions.dtype, (dtypes.INT64, dtypes.INT32))
        if len(positions.shape) == 1:
            positions = counted(b, positions, split_heads(node)[2])
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
    return reshaped(b, table, (B, 1, S, half))


def counted(b: Any, first: Value, S: Dim) -> Value:
    """first, first + 1, .. as (1, S)."""
    steps = temporary(b, first.dtype, (S,))
    b.step("arange", y=steps, dtype=first.dtype, n=S, start=0.0, step=0.0, istart=0, istep=1)
    positions = temporary(b, first.dtype, (1, S))
    binary_step(b, "add", b.view(steps).reshape((1, S)), first, positions)
    return positions
