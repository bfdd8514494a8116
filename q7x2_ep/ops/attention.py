"""Attention of ONNX opset 23 and later: y = softmax(scale * q k^T + mask) v, per head.

Letters: B batch, H heads of the query, Hkv of keys and values (each serves H / Hkv query heads),
Sq and Skv sequence lengths, D and Dv head sizes. Operands of three dims (B, S, H * D) mean the same
as those of four (B, H, S, D).
"""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, maximum, minimum, product
from q7x2_ep.ir.view import View, contiguous_strides
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    Guard,
    dims,
    expand_view,
    is_used,
    known,
    require_dtype,
    reshaped,
    rows_dense,
    where_is,
)

MASK_NONE = 0  # the dtype of an operand of the op row that is not there
HEADS_OUTER = (0, 2, 1, 3)  # (B, S, H, D) <-> (B, H, S, D)


def attention_scratch(b: Any, Sq: Dim, Skv: Dim, D: Dim, Dv: Dim) -> Dim:
    """Source: q7_attention_work in csrc/kernels/attention.h. Units: bytes."""
    most, widest = b.constants["ATTENTION_QUERIES"], b.constants["ATTENTION_MAX_NR"]
    blocks = ceildiv(Sq, most)
    queries = ceildiv(ceildiv(Sq, maximum(blocks, 1)), widest) * widest
    keys = minimum(ceildiv(Skv, 4) * 4, b.constants["ATTENTION_KEYS"])
    return b.threads * 4 * ((queries + 8) * D + keys * (Dv + 4 * widest))


def attention_step(
    b: Any,
    q: View,
    k: View,
    v: View,
    o: View,
    scale: float,
    mask: Optional[View] = None,
    bias: Optional[View] = None,
    lengths: Optional[Value] = None,
    offset: Optional[Value] = None,
    softcap: float = 0.0,
    window: tuple[int, int] = (-1, -1),
    zero_masked_rows: bool = True,
    fill: float = -math.inf,
) -> None:
    """o = softmax(cap(scale * q k^T) + bias + mask) v, all as (B, H, S, D) views of which D is
    dense; cap(s) = softcap * tanh(s / softcap), where softcap is not 0.

    mask, bias: views that broadcast to (B, H, Sq, Skv): float to add; the mask may be bool, its
    False is `fill`. The query at position p sees keys p - window[0] .. p + window[1] (-1: no bound)
    among the first lengths[b] (default: all); query i is at position i + offset[b], by default such
    that the last query is at the last of these keys. lengths, offset: 1 or B integers.
    """
    (B, H, Sq, D), (_, Hkv, Skv, Dv) = q.shape, v.shape
    strides = {"q": q.strides, "k": k.strides, "v": v.strides, "o": o.strides}
    fields = {f"{x}_{d}_stride": s for x, of in strides.items() for d, s in zip("bhs", of)}
    views = {"mask": mask, "bias": bias}
    for name, view in views.items():
        views[name] = None if view is None else expand_view(view, (B, H, Sq, Skv))
        steps = (0, 0, 0, 0) if view is None else views[name].strides
        fields.update({f"{name}_{d}_stride": s for d, s in zip("bhqk", steps)})
    fixed: Dim = 0
    if offset is None:
        offset, fixed = lengths, (Skv if lengths is None else 0) - Sq
    elif len(known(offset) or ()) == 1:
        offset, fixed = None, known(offset)[0]
    for name, vector in (("lengths", lengths), ("offsets", offset)):
        step = 0 if vector is None else minimum(product(vector.shape) - 1, 1)
        fields[f"{name}_stride"] = step
        fields[f"{name}_dtype"] = MASK_NONE if vector is None else vector.dtype
    b.step(
        "attention",
        kernel="attention",
        q=q,
        k=k,
        v=v,
        **views,
        lengths=lengths,
        offsets=offset,
        o=o,
        work=attention_scratch(b, Sq, Skv, D, Dv),
        B=B,
        H=H,
        Hkv=Hkv,
        Sq=Sq,
        Skv=Skv,
        D=D,
        Dv=Dv,
        mask_dtype=MASK_NONE if mask is None else mask.storage.dtype,
        offset=fixed,
        left=window[0],
        right=window[1],
        zero_masked_rows=int(zero_masked_rows),
        scale=scale,
        softcap=softcap,
        fill=fill,
        **fields,
    )


def head_output(b: Any, node: Node) -> View:
    """Storage for a (B, H, S, D) output, in (B, S, H, D) order if that is what all users want."""
    y = node.output
    turned = [
        user.op == "Transpose" and tuple(user.attrs["perm"] or ()) == HEADS_OUTER
        for user in y.users
    ]
    if not turned or not all(turned) or b.graph.is_output(y):
        return b.allocate(y)
    B, H, S, D = y.shape
    inner = contiguous_strides((B, S, H, D))
    return b.allocate(y, tuple(inner[p] for p in HEADS_OUTER))


def heads(node: Node, i: int) -> Optional[int]:
    """The number of heads of input i (0 query, 1 key, 2 value) if its dims do not tell."""
    if len(dims(node, i)) == 4:
        return None
    count = node.attrs["q_num_heads" if i == 0 else "kv_num_heads"]
    if not count:
        raise ModelError(
            f"{where_is(node)} needs q_num_heads and kv_num_heads with three-dim inputs"
        )
    return count


def split_shape(node: Node, i: int) -> tuple[Dim, ...]:
    """Input i as (B, H, S, D)."""
    shape, count = dims(node, i), heads(node, i)
    return shape if count is None else (shape[0], count, shape[1], shape[2] // count)


def split_view(b: Any, node: Node, i: int) -> View:
    """Input i as a (B, H, S, D) view of which D is dense."""
    value = node.inputs[i]
    if heads(node, i) is None:
        return rows_dense(b, b.view(value))
    B, H, S, D = split_shape(node, i)
    return rows_dense(b, reshaped(b, value, (B, S, H, D)).transpose(HEADS_OUTER))


def split_array(node: Node, x: np.ndarray, count: Optional[int]) -> np.ndarray:
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], count, -1).transpose(HEADS_OUTER)


@op("Attention")
class Attention:
    """y = softmax(softcap(scale * q k^T) + mask) v per head; present is past, then new.

    A row that sees no key is 0. Native without softcap, windows, nonpad_kv_seqlen, qk output.
    Source: ONNX Attention, opset 25.
    """

    signature = (
        "q, k, v, mask?, past_key?, past_value?, nonpad_kv_seqlen? -> "
        "y, present_key?, present_value?, qk?"
    )
    attributes = {
        "is_causal": 0,
        "kv_num_heads": 0,
        "q_num_heads": 0,
        "qk_matmul_output_mode": 0,
        "scale": None,
        "softcap": 0.0,
        "softmax_precision": None,
        "left_window_size": -1,
        "right_window_size": -1,
    }

    def infer(node: Node) -> list[Type]:
        dtype = node.inputs[0].dtype
        B, H, Sq, _ = split_shape(node, 0)
        _, Hkv, Skv, D = split_shape(node, 1)
        Dv = split_shape(node, 2)[3]
        if node.input(4) is not None:
            Skv = dims(node, 4)[2] + Skv
        y = (B, H, Sq, Dv) if heads(node, 0) is None else (B, Sq, H * Dv)
        present = [Type(dtype, (B, Hkv, Skv, D)), Type(node.inputs[2].dtype, (B, Hkv, Skv, Dv))]
        return [Type(dtype, y), *present, Type(dtype, (B, H, Sq, Skv))]

    def guards(node: Node) -> list[Guard]:
        q, k, v = (split_shape(node, i) for i in range(3))
        pairs = [
            (q[0], k[0], "batch sizes of query and key differ"),
            (q[3], k[3], "head sizes of query and key differ"),
            (k[0], v[0], "batch sizes of key and value differ"),
            (k[1], v[1], "numbers of heads of key and value differ"),
            (k[2], v[2], "sequence lengths of key and value differ"),
        ]
        return [(left, right, text) for left, right, text in pairs if left != right]

    def reference(
        node: Node,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        mask: Optional[np.ndarray] = None,
        past_key: Optional[np.ndarray] = None,
        past_value: Optional[np.ndarray] = None,
        nonpad: Optional[np.ndarray] = None,
    ) -> tuple[np.ndarray, ...]:
        attrs, flat = node.attrs, q.ndim == 3
        q = split_array(node, q, attrs["q_num_heads"])
        k, v = (split_array(node, x, attrs["kv_num_heads"]) for x in (k, v))
        if past_key is not None:
            k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
        present = k, v
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
        scale = 1 / math.sqrt(q.shape[-1]) if attrs["scale"] is None else attrs["scale"]
        raw = q @ k.swapaxes(-1, -2) * scale
        capped = np.tanh(raw / attrs["softcap"]) * attrs["softcap"] if attrs["softcap"] else raw
        bias = attention_bias(node, capped, mask, past_key, nonpad)
        scores = capped + bias
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = weights.sum(-1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
        qk = (raw, capped, scores, weights)[attrs["qk_matmul_output_mode"]]
        y = weights @ v
        if flat:
            y = y.transpose(HEADS_OUTER).reshape(y.shape[0], y.shape[2], -1)
        return y, *present, qk

    def lower(node: Node, b: Any) -> None:
        require_dtype(node, node.inputs[0].dtype, F32)
        q, k, v = (split_view(b, node, i) for i in range(3))
        past = node.input(4)
        kept = [node.inputs[4], node.inputs[5]] if past is not None else [None, None]
        k, v = (keep_present(b, node, i, view, old) for i, view, old in zip((1, 2), (k, v), kept))
        require_native(b, node, q.shape[2], k.shape[2])
        mask = node.input(3)
        scale = node.attrs["scale"]
        if scale is None:
            scale = 1 / math.sqrt(
                next(view.shape[3] for view in (q, k) if isinstance(view.shape[3], int))
            )
        o = b.allocate(node.output) if heads(node, 0) is not None else head_output(b, node)
        if heads(node, 0) is not None:
            B, H, Sq, _ = q.shape
            o = o.reshape((B, Sq, H, v.shape[3])).transpose(HEADS_OUTER)
        attention_step(
            b,
            q,
            k,
            v,
            o,
            scale,
            None if mask is None else b.view(mask),
            window=(-1, 0 if node.attrs["is_causal"] else -1),
        )


def attention_bias(
    node: Node,
    scores: np.ndarray,
    mask: Optional[np.ndarray],
    past_key: Optional[np.ndarray],
    nonpad: Optional[np.ndarray],
) -> np.ndarray:
    """What is added to the scores: the mask, and -inf where a key is out of sight."""
    Sq, Skv = scores.shape[2:]
    bias = np.zeros((1, 1, Sq, Skv), scores.dtype)
    if mask is not None:
        added = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
        hidden = Skv - added.shape[-1]  # a shorter mask hides the keys after its end
        added = np.pad(added, [(0, 0)] * (added.ndim - 1) + [(0, hidden)], constant_values=-np.inf)
        bias = bias + added.astype(scores.dtype)
    if nonpad is not None:
        offset = nonpad.reshape(-1, 1, 1, 1) - Sq
        bias = np.where(np.arange(Skv) < nonpad.reshape(-1, 1, 1, 1), bias, -np.inf)
    else:
        offset = np.reshape(0 if past_key is None else past_key.shape[2], (1, 1, 1, 1))
    ahead = np.arange(Skv) - (
        np.arange(Sq)[:, None] + offset
    )  # (B or 1, 1, Sq, Skv): positions after the query's own
    right = 0 if node.attrs["is_causal"] else node.attrs["right_window_size"]
    if right >= 0:
        bias = np.where(ahead <= right, bias, -np.inf)
    if node.attrs["left_window_size"] >= 0:
        bias = np.where(-ahead <= node.attrs["left_window_size"], bias, -np.inf)
    return bias.astype(scores.dtype)


def keep_present(b: Any, node: Node, i: int, new: View, past: Optional[Value]) -> View:
    """Keys (i = 1) or values (i = 2) after the past ones; output i where that is wanted."""
    present = node.outputs[i] if i < len(node.outputs) else None
    if past is None:
        if is_used(b, node, i):
            b.alias(present, new)
        return new
    if present is None:
        B, H, S, D = new.shape
        present = b.graph.new_value(Type(past.dtype, (B, H, past.shape[2] + S, D)), "present")
    whole, length = b.allocate(present), past.shape[2]
    b.copy(b.view(past), whole.slice(2, 0, length))
    b.copy(new, whole.slice(2, length, new.shape[2]))
    return whole


def require_native(b: Any, node: Node, Sq: Dim, Skv: Dim) -> None:
    """What a run must fulfil, for bind to check.

    Raises: UnsupportedOp for what the C op does not do, naming it.
    """
    attrs, mask = node.attrs, node.input(3)
    past = 0 if node.input(4) is None else node.inputs[4].shape[2]
    sizes = (split_shape(node, 0)[3], split_shape(node, 1)[3])
    problems = {
        "no scale and an unknown head size": attrs["scale"] is None
        and not any(isinstance(D, int) for D in sizes),
        "softcap": bool(attrs["softcap"]),
        "window sizes": attrs["left_window_size"] >= 0 or attrs["right_window_size"] >= 0,
        "nonpad_kv_seqlen": node.input(6) is not None,
        "the qk output": is_used(b, node, 3),
        # C aligns the last query with the last key, ONNX the first with the first after the past
        "is_causal where there are other keys than past ones and one per query": bool(
            attrs["is_causal"]
        )
        and Skv - past != Sq,
        "a mask that is shorter than the keys": mask is not None
        and mask.shape[-1] != Skv
        and all(isinstance(dim, int) for dim in (mask.shape[-1], Skv)),
        "a mask that is neither float nor bool": mask is not None
        and mask.dtype not in (dtypes.FLOAT, dtypes.BOOL),
    }
    found = [what for what, present in problems.items() if present]
    if found:
        raise UnsupportedOp(f"{where_is(node)} has no native form with {', '.join(found)}")
    if mask is not None:
        b.guard(mask.shape[-1], Skv, "the mask has another length than the keys")
