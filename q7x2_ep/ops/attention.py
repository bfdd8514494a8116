"""Attention of ONNX opset 23 and later: y = softmax(scale * q k^T + mask) v, per head.

Letters: B batch, H heads of the query, Hkv of keys and values (each serves H / Hkv query heads),
Sq and Skv sequence lengths, D and Dv head sizes. Operands of three dims (B, S, H * D) mean the same
as those of four (B, H, S, D).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, maximum, minimum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims, expand_view, known, where_is

MASK_NONE = 0  # the dtype of an operand of the op row that is not there
MANY, PAGE = 384, 1024  # queries, and floats from row to row: docs/decisions.md 79
TILED = 1 << 14  # floats of the keys of a head: docs/decisions.md 134
HEADS_OUTER = (0, 2, 1, 3)  # (B, S, H, D) <-> (B, H, S, D)


def kept_blocks(
    constants: Mapping[str, int], isa: str, Sq: Dim, Skv: Dim, D: Dim, v_stride: Dim
) -> Dim:
    """How many blocks of keys and values a thread has copies of. amx cuts all that it may, but few
    keys, which it leaves to avx512. Of values alone, dense copies take 0.99 of the time of values
    in place with avx2 and many queries, and 0.85 where rows are multiples of 4 KB apart, on one set
    of L1; avx512 reads whole rows of 64 channels at once and gains nothing.
    """
    most = minimum(ceildiv(Skv, constants["ATTENTION_KEYS"]), constants["ATTENTION_KEPT"])
    if isa in ("amx", "avx512"):
        return most * minimum(Skv * D // TILED, 1) if isa == "amx" else 0
    competing = 1 - minimum(v_stride % PAGE, 1)
    return most * minimum(Sq // MANY + competing, 1)


def work_floats(constants: Mapping[str, int], isa: str, sizes: Sequence[Dim], kept: Dim) -> Dim:
    """What a thread needs, for Sq, Skv, D and Dv: whose copies it has, and these; scores of a
    panel; Q and O. avx512 copies nothing. amx rounds sizes up to its steps, copies K too, and cuts
    a float of a copy and of Q into three halves.
    """
    is_amx, lanes = isa == "amx", constants["ATTENTION_LANES"]
    steps = [constants["ATTENTION_STEP"]] * 4 if is_amx else [lanes, lanes, 1, lanes]
    Sq, Skv, D, Dv = sizes
    most = (
        minimum(Sq, constants["ATTENTION_QUERIES"]),
        minimum(Skv, constants["ATTENTION_KEYS"]),
        D,
        Dv,
    )
    queries, keys, depth, width = (ceildiv(n, step) * step for n, step in zip(most, steps))
    parts = 3 if is_amx else 2
    copy = lanes + keys * (depth + width) * parts // 2 if is_amx else keys * width
    panel = keys * constants["ATTENTION_PANEL"]
    whole = 2 * constants["ATTENTION_KEPT"] + lanes + kept * copy + panel
    return whole + queries * (depth * parts // 2 + width)


def partial_floats(constants: Mapping[str, int], sizes: Sequence[Dim]) -> Dim:
    """What parts of the keys leave, for B, H, Sq, Skv and Dv: nothing of many queries."""
    B, H, Sq, Skv, Dv = sizes
    few = 1 - minimum((Sq - 1) // constants["ATTENTION_FEW"], 1)
    return few * B * H * Sq * ceildiv(Skv, constants["ATTENTION_PART"]) * (Dv + 2)


def attention_step(node: Node, b: Any, q: View, k: View, v: View, o: View) -> None:
    """The step of a q7::Attention whose operands and result are these views, (B, H, S, D), of which
    D is dense.

    Query i is at key i + offset[b] + a fixed number: without `offset` the one that puts the last
    query at the last key.
    """
    (B, H, Sq, D), (_, Hkv, Skv, Dv) = q.shape, v.shape
    strides = {"q": q.strides, "k": k.strides, "v": v.strides, "o": o.strides}
    fields = {f"{x}_{d}_stride": s for x, of in strides.items() for d, s in zip("bhs", of)}
    mask, bias, lengths, offset, sinks = (node.input(i) for i in range(3, 8))
    views: dict[str, Optional[View]] = {}
    for name, value in (("mask", mask), ("bias", bias)):
        view = None if value is None else expand_view(b.view(value), (B, H, Sq, Skv))
        steps = (0, 0, 0, 0) if view is None else view.strides
        views[name] = view
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
    attrs = node.attrs
    left, right = bounds(attrs["causal"], attrs["window"])
    how = (b.constants, b.kernel("attention").isa)
    kept = kept_blocks(*how, Sq, Skv, D, v.strides[2])
    floats = work_floats(*how, (Sq, Skv, D, Dv), kept)
    b.step(
        "attention",
        kernel="attention",
        q=q,
        k=k,
        v=v,
        **views,
        lengths=lengths,
        offsets=offset,
        sinks=sinks,
        o=o,
        work=b.threads * 4 * floats,
        partial=4 * partial_floats(b.constants, (B, H, Sq, Skv, Dv)),
        **{"B": B, "H": H, "Hkv": Hkv, "Sq": Sq, "Skv": Skv, "D": D, "Dv": Dv},
        mask_dtype=MASK_NONE if mask is None else mask.dtype,
        offset=fixed,
        left=left,
        right=right,
        kept=kept,
        work_floats=floats,
        **{name: int(attrs[name]) for name in ("zero_masked_rows", "zero_nan_rows")},
        **{name: attrs[name] for name in ("scale", "softcap", "fill")},
        **fields,
    )


# Formulas, for the meaning of ops in terms of others


def bounds(causal: int, window: tuple[int, int]) -> tuple[int, int]:
    """How many keys before and after its own a query sees; -1: all."""
    left, right = window
    return left, (0 if causal else right)


def score_stages(
    g: Any,
    q: Value,
    k: Value,
    mask: Optional[Value],
    bias: Optional[Value],
    lengths: Optional[Value],
    offset: Optional[Value],
    scale: float,
    fill: float,
    softcap: float,
    window: tuple[int, int],
) -> tuple[Value, Value, Value]:
    """The scores (B, H, Sq, Skv) of `attention_step`: scaled, then capped, then masked."""
    columns = g.Transpose(repeat_heads(g, q, k), perm=(0, 1, 3, 2))
    raw = g.Mul(g.MatMul(q, columns), scale)
    capped = g.Mul(g.Tanh(g.Div(raw, softcap)), softcap) if softcap else raw
    scores = capped if bias is None else g.Add(capped, bias)
    if mask is not None:
        scores = g.Where(mask, scores, fill) if mask.dtype == dtypes.BOOL else g.Add(scores, mask)
    for seen in _visible(g, q, k, lengths, offset, window):
        scores = g.Where(seen, scores, -math.inf)
    return raw, capped, scores


def weights(g: Any, scores: Value, sinks: Optional[Value] = None) -> Value:
    """softmax of the scores (B, H, Sq, Skv), beside one more of each head where there are sinks."""
    if sinks is None:
        return g.Softmax(scores, axis=-1)
    batch, heads, queries, keys = scores.shape
    more = g.Expand(g.Reshape(sinks, [1, heads, 1, 1]), [batch, heads, queries, 1])
    return g.Slice(g.Softmax(g.Concat(scores, more, axis=-1), axis=-1), [0], [keys], [3])


def repeat_heads(g: Any, q: Value, x: Value) -> Value:
    """x (B, Hkv, S, D) with every head repeated H / Hkv times: (B, H, S, D)."""
    batch, heads, length, depth = x.shape
    if heads == q.shape[1]:
        return x
    repeated = g.Expand(g.Unsqueeze(x, [2]), [batch, heads, q.shape[1] // heads, length, depth])
    return g.Reshape(repeated, [batch, q.shape[1], length, depth])


def _visible(
    g: Any,
    q: Value,
    k: Value,
    lengths: Optional[Value],
    offset: Optional[Value],
    window: tuple[int, int],
) -> list[Value]:
    """Conditions that broadcast to (B, H, Sq, Skv), all of which hold where a query sees a key."""
    queries, keys = q.shape[2], k.shape[2]
    seen = []
    if lengths is not None:
        lengths = g.Reshape(g.Cast(lengths, to=dtypes.INT64), [-1, 1, 1, 1])
        seen.append(g.Less(count(g, keys), lengths))
    if window == (-1, -1):
        return seen
    if offset is not None:
        offset = g.Reshape(g.Cast(offset, to=dtypes.INT64), [-1, 1, 1, 1])
    elif lengths is not None:
        offset = g.Sub(lengths, g.literal([queries]))
    else:
        offset = g.literal([keys - queries])
    key = count(g, keys)
    position = g.Add(g.Reshape(count(g, queries), [-1, 1]), offset)  # (Sq, 1) or (B, 1, Sq, 1)
    left, right = window
    if left >= 0:
        seen.append(g.LessOrEqual(g.Sub(position, g.literal([left])), key))
    if right >= 0:
        seen.append(g.LessOrEqual(key, g.Add(position, g.literal([right]))))
    return seen


def count(g: Any, n: Dim) -> Value:
    """0, 1, .. n - 1."""
    return g.Range(0, g.Squeeze(g.literal([n])), 1)


def split_heads(g: Any, x: Value, heads: int) -> Value:
    """(B, S, H * D) as (B, H, S, D)."""
    B, S, width = x.shape
    return g.Transpose(g.Reshape(x, [B, S, heads, width // heads]), perm=HEADS_OUTER)


def merge_heads(g: Any, x: Value) -> Value:
    """(B, H, S, D) as (B, S, H * D)."""
    B, H, S, D = x.shape
    return g.Reshape(g.Transpose(x, perm=HEADS_OUTER), [B, S, H * D])


def append(g: Any, past: Optional[Value], new: Value) -> Value:
    """Keys or values after those of the past."""
    return new if past is None else g.Concat(past, new, axis=2)


def scaled(g: Any, q: Value, scale: Optional[float]) -> tuple[Value, float]:
    """q (B, H, S, D) and the scale of the scores, by default 1 / sqrt(D); where only a run knows D,
    q is scaled.
    """
    depth = q.shape[3]
    if scale is not None:
        return q, scale
    if isinstance(depth, int):
        return q, 1 / math.sqrt(depth)
    return g.Div(q, g.Sqrt(g.Cast(g.literal([depth]), to=q.dtype))), 1.0


# ONNX


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


def split_array(x: np.ndarray, count: Optional[int]) -> np.ndarray:
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], count, -1).transpose(HEADS_OUTER)


@op("Attention")
class Attention:
    """y = softmax(softcap(scale * q k^T) + mask) v per head; present is past, then new.

    A row that sees no key is 0. Query i is at position i + the length of the past, or with
    nonpad_kv_seqlen the last query at the last key that is none of padding.
    Source: ONNX Attention, opset 25.
    """

    signature = (
        "q: F, k: F, v: F1, mask?, past_key?: F, past_value?: F1, nonpad_kv_seqlen?: int64 -> y, "
        "present_key?, present_value?, qk?"
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
        q = split_array(q, attrs["q_num_heads"])
        k, v = (split_array(x, attrs["kv_num_heads"]) for x in (k, v))
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

    def decompose(
        g: Any,
        q: Value,
        k: Value,
        v: Value,
        mask: Optional[Value] = None,
        past_key: Optional[Value] = None,
        past_value: Optional[Value] = None,
        nonpad: Optional[Value] = None,
        **attrs: Any,
    ) -> tuple[Value, ...]:
        flat = len(q.shape) == 3
        if flat:
            kv_heads = attrs["kv_num_heads"]
            q = split_heads(g, q, attrs["q_num_heads"])
            k, v = split_heads(g, k, kv_heads), split_heads(g, v, kv_heads)
        present = append(g, past_key, k), append(g, past_value, v)
        k, v = present
        queries, keys = q.shape[2], k.shape[2]
        if mask is not None and mask.dtype not in (dtypes.BOOL, q.dtype):
            mask = g.Cast(mask, to=q.dtype)
        if mask is not None and mask.shape[-1] != keys:
            mask = _fit_mask(g, mask, keys, nonpad is not None)
        q, scale = scaled(g, q, attrs["scale"])
        past = 0 if past_key is None else past_key.shape[2]
        window = bounds(attrs["is_causal"], (attrs["left_window_size"], attrs["right_window_size"]))
        is_placed = window != (-1, -1) and nonpad is None and past != keys - queries
        operands = (mask, None, nonpad, g.literal([past]) if is_placed else None)
        scoring = {
            "scale": scale,
            "softcap": attrs["softcap"],
            "window": window,
        }
        o = g.call("q7::Attention", q, k, v, *operands, zero_masked_rows=1, **scoring)
        y = merge_heads(g, o) if flat else o
        stages = score_stages(g, q, k, *operands, fill=-math.inf, **scoring)
        p = g.Softmax(stages[2], axis=-1)
        stages = (*stages, g.Where(g.IsNaN(p), 0.0, p))
        qk = stages[attrs["qk_matmul_output_mode"]]
        return y, g.Identity(k), g.Identity(v), g.Identity(qk)


def _fit_mask(g: Any, mask: Value, keys: Dim, may_be_shorter: bool) -> Value:
    """The mask for all keys: a shorter one hides those after its end."""
    *leading, length = mask.shape
    if may_be_shorter or (isinstance(length, int) and isinstance(keys, int)):
        hidden = g.literal(False if mask.dtype == dtypes.BOOL else -math.inf, mask.dtype)
        rest = g.Expand(hidden, [*leading, maximum(keys - length, 0)])
        mask = g.Concat(mask, rest, axis=-1)
    return g.reshape(mask, (*leading, keys))  # what only a run can tell is checked there


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
        added = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(scores.dtype)
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
