"""Attention of the domain com.microsoft: what each op means in terms of ONNX and q7::Attention.

Letters as in attention.py; P is the length of the past, T = P + Skv of all keys. Masks of these ops
hold 1 for a key that counts; the score of another is not -inf but lower by `mask_filter_value`.
Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from typing import Any, Optional

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim, maximum
from q7x2_ep.ops import op
from q7x2_ep.ops.attention import (
    HEADS_OUTER,
    append,
    count,
    default_scale,
    merge_heads,
    split_heads,
)
from q7x2_ep.ops.builder import infer_meaning
from q7x2_ep.ops.common import known

Given = Optional[Value]


@op("com.microsoft::MultiHeadAttention")
class MultiHeadAttention:
    """y = softmax(scale * q k^T + attention_bias + mask) v per head, present is past, then new.

    Shapes: query (B, S, H * D), key and value (B, Skv, H * D), or all packed (B, S, H, 3, D), or
    these two (B, Skv, H, 2, D), or (B, H, Skv, D), which take no bias.
    """

    signature = (
        "query, key?, value?, bias?, key_padding_mask?, attention_bias?, past_key?, past_value?, "
        "past_sequence_length?, cache_indirection? -> y, present_key?, present_value?, qk?"
    )
    attributes = {
        "num_heads": 0,
        "scale": None,
        "mask_filter_value": -10000.0,
        "unidirectional": 0,
    }
    unsupported = ("past_sequence_length", "cache_indirection", "qk")
    infer = infer_meaning

    def decompose(
        g: Any,
        query: Value,
        key: Given = None,
        value: Given = None,
        bias: Given = None,
        key_padding_mask: Given = None,
        attention_bias: Given = None,
        past_key: Given = None,
        past_value: Given = None,
        *_: Given,
        num_heads: int,
        scale: Optional[float],
        mask_filter_value: float,
        unidirectional: int = 0,
    ) -> tuple[Value, ...]:
        q, k, v = _heads(g, query, key, value, bias, num_heads)
        mask = key_padding_mask, mask_filter_value
        past = past_key, past_value
        return _attend(g, q, k, v, past, mask, attention_bias, scale, unidirectional)


@op("com.microsoft::Attention")
class Attention:
    """Attention of q, k, v = x @ weights + bias; present stacks keys and values.

    Shapes: x (B, S, C), weights (C, 2 * H * D + H * Dv), past (2, B, H, P, D).
    """

    signature = (
        "x, weights, bias?, mask_index?, past?, attention_bias?, past_sequence_length? -> "
        "y, present?"
    )
    attributes = {
        "num_heads": 0,
        "scale": None,
        "mask_filter_value": -10000.0,
        "unidirectional": 0,
        "qkv_hidden_sizes": None,
        "do_rotary": 0,
        "rotary_embedding_dim": 0,
        "past_present_share_buffer": 0,
    }
    unsupported = ("past_sequence_length", "past_present_share_buffer", "do_rotary")
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        weights: Value,
        bias: Given = None,
        mask_index: Given = None,
        past: Given = None,
        attention_bias: Given = None,
        *_: Given,
        num_heads: int,
        scale: Optional[float],
        mask_filter_value: float,
        unidirectional: int,
        qkv_hidden_sizes: Optional[tuple[int, ...]],
        **_unsupported: Any,
    ) -> tuple[Value, ...]:
        product = g.MatMul(x, weights)
        product = product if bias is None else g.Add(product, bias)
        sizes = list(qkv_hidden_sizes or [product.shape[2] // 3] * 3)
        parts = g.Split(product, sizes, outputs=3, axis=2)
        q, k, v = (split_heads(g, part, num_heads) for part in parts)
        pasts: tuple[Given, ...] = (None, None)
        if past is not None:
            pasts = tuple(g.Squeeze(g.Slice(past, [i], [i + 1], [0]), [0]) for i in (0, 1))
        mask = mask_index, mask_filter_value
        y, *present = _attend(g, q, k, v, pasts, mask, attention_bias, scale, unidirectional)
        return y, g.Concat(*(g.Unsqueeze(x, [0]) for x in present), axis=0)


@op("com.microsoft::GroupQueryAttention")
class GroupQueryAttention:
    """Attention whose keys and values serve H / Hkv heads, with a cache and rotary embedding.

    Entry b of the batch has seqlens_k[b] + 1 keys; the last S of them are new, or in a first
    prompt, where S is the total length, the first. present is as long as past or total, whichever
    is longer.
    Shapes: query (B, S, H * D), key and value (B, S, Hkv * D), or a query that holds all three;
    past (B, Hkv, P, D); cos and sin (positions, R / 2).
    """

    signature = (
        "query, key?, value?, past_key?, past_value?, seqlens_k, total_sequence_length, cos?, "
        "sin?, position_ids?, attention_bias?, head_sink?, k_scale?, v_scale?, q_norm?, k_norm? -> "
        "y, present_key?, present_value?, qk?"
    )
    attributes = {
        "num_heads": 0,
        "kv_num_heads": 0,
        "scale": None,
        "softcap": 0.0,
        "local_window_size": -1,
        "causal": 1,
        "do_rotary": 0,
        "rotary_interleaved": 0,
        "smooth_softmax": -1,
        "qk_output": 0,
        "sliding_window_cache": 0,
        "kv_cache_bit_width": 0,
        "k_quant_type": "NONE",
        "v_quant_type": "NONE",
        "qk_norm_epsilon": 1e-6,
    }
    unsupported = (
        *("head_sink", "k_scale", "v_scale", "q_norm", "k_norm", "qk"),
        *("smooth_softmax", "sliding_window_cache", "k_quant_type", "v_quant_type"),
    )
    infer = infer_meaning

    def decompose(
        g: Any,
        query: Value,
        key: Given,
        value: Given,
        past_key: Given,
        past_value: Given,
        seqlens_k: Value,
        total_sequence_length: Value,
        cos: Given = None,
        sin: Given = None,
        position_ids: Given = None,
        attention_bias: Given = None,
        *_: Given,
        **attrs: Any,
    ) -> tuple[Value, ...]:
        heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
        if key is None:
            depth = query.shape[2] // (heads + 2 * kv_heads)
            sizes = [heads * depth, kv_heads * depth, kv_heads * depth]
            query, key, value = g.Split(query, sizes, outputs=3, axis=2)
        q, k, v = split_heads(g, query, heads), *(split_heads(g, x, kv_heads) for x in (key, value))
        queries = q.shape[2]
        seqlens = g.Reshape(g.Cast(seqlens_k, to=dtypes.INT64), [-1])
        lengths = g.Add(seqlens, g.literal([1]))  # (B,)
        total = _total(total_sequence_length, queries, past_key is not None)
        start = _start(g, lengths, queries, total)  # (1,) or (B,): where the new keys go
        if attrs["do_rotary"]:
            if position_ids is None:
                position_ids = g.Add(g.Reshape(start, [-1, 1]), count(g, queries))
                position_ids = g.Expand(position_ids, [q.shape[0], queries])
            interleaved = attrs["rotary_interleaved"]
            width = 2 * cos.shape[1]
            rotary = {"interleaved": interleaved, "rotary_embedding_dim": width}
            if width == q.shape[3]:
                rotary["rotary_embedding_dim"] = 0
            q, k = (g.RotaryEmbedding(x, cos, sin, position_ids, **rotary) for x in (q, k))
        if past_key is not None:
            rows = _cache_rows(g, start, past_key.shape[2], queries, total)  # (1 or B, length)
            k, v = (_store(g, past, new, rows) for past, new in ((past_key, k), (past_value, v)))
        present = g.Identity(k), g.Identity(v)
        if k.shape[2] != total:
            k, v = (g.Slice(x, [0], [total], [2]) for x in (k, v))
        window = attrs["local_window_size"]
        o = g.call(
            "q7::Attention",
            q,
            k,
            v,
            None,
            attention_bias,
            lengths,
            start,
            scale=attrs["scale"] or default_scale("GroupQueryAttention", q.shape[3]),
            softcap=attrs["softcap"],
            causal=attrs["causal"],
            window=(window - 1 if window > 0 else -1, -1),
            zero_masked_rows=1,
        )
        return merge_heads(g, o), *present


# Queries, keys and values


def _heads(
    g: Any, query: Value, key: Given, value: Given, bias: Given, heads: int
) -> tuple[Value, ...]:
    """Query, key and value with their biases as (B, H, S, D)."""
    if key is None:
        sources = [(query, i) for i in range(3)]
    elif value is None:
        sources = [(query, 0), (key, 0), (key, 1)]
    else:
        sources = [(query, 0), (key, 0), (value, 0)]
    found, start = [], 0
    for x, part in sources:
        rank = len(x.shape)
        width = x.shape[2] if rank == 3 else heads * x.shape[-1]
        own = None if bias is None else g.Slice(bias, [start], [start + width], [0])
        start += width
        if rank == 5:  # packed: (B, S, H, parts, D)
            x = g.Squeeze(g.Slice(x, [part], [part + 1], [3]), [3])
            x = x if own is None else g.Add(x, g.Reshape(own, [heads, x.shape[3]]))
            x = g.Transpose(x, perm=HEADS_OUTER)
        elif rank == 3:
            x = split_heads(g, x if own is None else g.Add(x, own), heads)
        found.append(x)  # of rank 4: from the cache of a cross attention, complete
    return tuple(found)


# Masks


def _attend(
    g: Any,
    q: Value,
    k: Value,
    v: Value,
    past: tuple[Given, ...],
    mask: tuple[Given, float],
    attention_bias: Given,
    scale: Optional[float],
    unidirectional: int,
) -> tuple[Value, ...]:
    """y (B, S, H * Dv), and keys and values with those of the past. mask: and its filter value."""
    k, v = append(g, past[0], k), append(g, past[1], v)
    added = None if mask[0] is None else _added(g, *mask, q.shape, k.shape[2])
    before = 0 if past[0] is None else past[0].shape[2]
    is_placed = unidirectional and before != k.shape[2] - q.shape[2]
    o = g.call(
        "q7::Attention",
        q,
        k,
        v,
        added,
        attention_bias,
        None,
        g.literal([before]) if is_placed else None,
        scale=scale or default_scale("attention of com.microsoft", q.shape[3]),
        causal=unidirectional,
    )
    return merge_heads(g, o), g.Identity(k), g.Identity(v)


def _added(g: Any, mask: Value, filter_value: float, queries: tuple, keys: Dim) -> Value:
    """What a mask in any of its forms adds to the scores; broadcasts to (B, H, S, T)."""
    batch, _, length, _ = queries
    rank = len(mask.shape)
    if rank == 1:
        kept = _kept_range(g, mask, batch, keys)
    elif rank == 4:  # (B, 1, M, M) for positions in all
        before = keys - length
        kept = g.Slice(mask, [before, 0], [keys, keys], [2, 3])
    else:  # (B, T) or (B, S, T)
        kept = g.Reshape(mask, [batch, 1, length if rank == 3 else 1, keys])
    if kept.dtype != dtypes.BOOL:
        kept = g.Greater(kept, g.literal(0, kept.dtype))
    return g.Where(kept, 0.0, float(filter_value))


def _kept_range(g: Any, ends: Value, batch: Dim, keys: Dim) -> Value:
    """The keys before an end; `ends` holds B of them first.

    In the form (2 * B,) the first keys that count follow; what follows in the form (3 * B + 2,),
    the sums of lengths, adds nothing.
    """
    key, (size,) = g.Cast(count(g, keys), to=ends.dtype), ends.shape
    has_start = size == 2 * batch
    is_longer = has_start or size == 3 * batch + 2

    def column(i: int) -> Value:
        part = g.Slice(ends, [i * batch], [(i + 1) * batch], [0]) if is_longer else ends
        return g.Reshape(part, [batch, 1, 1, 1])  # what only a run can tell is checked there

    kept = g.Less(key, column(0))
    return g.And(kept, g.GreaterOrEqual(key, column(1))) if has_start else kept


# The cache of GroupQueryAttention


def _total(length: Value, queries: Dim, has_past: bool) -> Dim:
    """The number of all keys.

    Raises: UnsupportedOp where that is data: the shape of the cache depends on it.
    """
    if not has_past:
        return queries
    elements = known(length)
    if elements is None:
        raise UnsupportedOp(
            "GroupQueryAttention is not supported where total_sequence_length does not follow from "
            f"shapes: {length}"
        )
    return elements[0]


def _start(g: Any, lengths: Value, queries: Dim, total: Dim) -> Value:
    """The position of the first query: 0 in a first prompt, else before the last keys; (1,) or
    (B,).
    """
    if queries == total:
        return g.literal([0])
    is_first = g.Equal(g.literal([queries]), g.literal([total]))
    return g.Where(is_first, g.literal([0]), g.Sub(lengths, g.literal([queries])))


def _cache_rows(g: Any, start: Value, past: Dim, new: Dim, total: Dim) -> Value:
    """Where the rows of the present cache are in past, then new: (1 or B, length of present)."""
    row = count(g, maximum(past, total))
    start = g.Reshape(start, [-1, 1])
    is_new = g.And(g.GreaterOrEqual(row, start), g.Less(row, g.Add(start, g.literal([new]))))
    moved = g.Add(g.Sub(row, start), g.literal([past]))
    return g.Where(is_new, moved, g.Min(row, g.literal([past + new - 1])))


def _store(g: Any, past: Value, new: Value, rows: Value) -> Value:
    """The present cache (B, H, length, D)."""
    batch, heads = past.shape[:2]
    indices = g.Reshape(rows, [-1, 1, rows.shape[1], 1])
    indices = g.Expand(indices, [batch, heads, rows.shape[1], 1])
    return g.GatherND(g.Concat(past, new, axis=2), indices, batch_dims=2)
