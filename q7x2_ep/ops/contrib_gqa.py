"""Attention of the domain com.microsoft over a cache of keys and values that is filled in place.

Letters as in attention.py; C is the length of a cache, T of all keys so far.
Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from math import inf
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim, maximum
from q7x2_ep.ops import op
from q7x2_ep.ops.attention import (
    count,
    merge_heads,
    scaled,
    score_stages,
    split_heads,
    weights,
)
from q7x2_ep.ops.builder import Given, infer_meaning, like
from q7x2_ep.ops.common import known


@op("com.microsoft::GroupQueryAttention")
class GroupQueryAttention:
    """Attention whose keys and values serve H / Hkv heads, with a cache and rotary embedding.

    Entry b of the batch has seqlens_k[b] + 1 keys; the last S of them are new, or in a first
    prompt, where S is the total length, the first. With query_seqlens so many are new, and the rows
    of padding behind them go where no key is yet; without it only the first of all position_ids
    counts in a first prompt. present is as long as past or total, whichever is longer. head_sink is
    one more score of each head, whose value is 0; with smooth_softmax all are 0. qk are the scores,
    0 for keys out of sight, or with qk_output 2 their softmax. A cache of bytes holds round(x /
    scale), of one scale or one per head and channel; with kv_cache_bit_width 4 two of them, the
    first in the low half, plus 8. With sliding_window_cache a cache holds the last keys alone, from
    row 0 on, at least as many as are in sight. The importer makes total_sequence_length a size: the
    shape of present depends on it.
    Shapes: query (B, S, H * D), key and value (B, S, Hkv * D), or a query that holds all three;
    past (B, Hkv, C, D); cos and sin (positions, R / 2); qk (B, H, S, T).
    """

    signature = (
        "query: F, key?: F, value?: F, past_key?: N, past_value?: N, seqlens_k: int32, "
        "total_sequence_length: index, cos?: F, sin?: F, position_ids?: int64, attention_bias?: F, "
        "head_sink?: F, k_scale?: float32, v_scale?: float32, q_norm?: F, k_norm?: F, "
        "query_seqlens?: int32 -> y, present_key?, present_value?, qk?"
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
        "q_norm_epsilon": None,
        "k_norm_epsilon": None,
    }
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
        head_sink: Given = None,
        k_scale: Given = None,
        v_scale: Given = None,
        q_norm: Given = None,
        k_norm: Given = None,
        query_seqlens: Given = None,
        **attrs: Any,
    ) -> tuple[Value, ...]:
        q, k, v = grouped_heads(g, query, key, value, attrs["num_heads"], attrs["kv_num_heads"])
        if q_norm is not None:
            both = attrs["qk_norm_epsilon"]
            q = g.RMSNormalization(q, q_norm, axis=-1, epsilon=attrs["q_norm_epsilon"] or both)
            k = g.RMSNormalization(k, k_norm, axis=-1, epsilon=attrs["k_norm_epsilon"] or both)
        queries = q.shape[2]
        seqlens = g.Reshape(g.Cast(seqlens_k, to=dtypes.INT64), [-1])
        lengths = g.Add(seqlens, g.literal([1]))  # (B,)
        (total,) = (queries,) if past_key is None else known(total_sequence_length) or ()
        start = _start(g, lengths, queries, total, query_seqlens)  # where the new keys go
        if attrs["do_rotary"]:
            if position_ids is not None and query_seqlens is None:
                position_ids = _positions(g, position_ids, total)
            interleaved = attrs["rotary_interleaved"]
            q, k = rotary(g, (q, k), cos, sin, start, position_ids, interleaved)
        bits = attrs["kv_cache_bit_width"] or 8
        for name, scale in (("k", k_scale), ("v", v_scale)):
            if scale is None and attrs[f"{name}_quant_type"] != "NONE":
                raise ModelError(f"a cache of {bits} bits has no {name}_scale")
        k_scale = _spread(g, k, like(g, k_scale, q), attrs["k_quant_type"])
        v_scale = _spread(g, v, like(g, v_scale, q), attrs["v_quant_type"])
        if k_scale is not None:
            k = _to_cache(g, k, k_scale, bits)
        if v_scale is not None:
            v = _to_cache(g, v, v_scale, bits)
        window = attrs["local_window_size"]
        slides = attrs["sliding_window_cache"]
        if slides and (window < 1 or past_key is None):
            raise ModelError("sliding_window_cache is without a window, or without a past")
        if slides and attrs["qk_output"]:
            raise UnsupportedOp("sliding_window_cache is not supported with qk_output")
        if past_key is not None:
            length = maximum(past_key.shape[2], total)
            if slides:
                capacity = past_key.shape[2]
                length = total = capacity + queries
                first, kept = (_resident(g, n, window, capacity) for n in (start, lengths))
                if attention_bias is not None:
                    before = g.Sub(start, first)
                    attention_bias = _columns(g, attention_bias, before, query.shape[0], length)
                start, lengths = first, g.Add(first, g.Sub(lengths, start))
            if k.dtype != past_key.dtype:  # a cache stays in 16 bits
                k, v = g.Cast(k, to=past_key.dtype), g.Cast(v, to=past_value.dtype)
            k = store(g, past_key, k, start, length)
            v = store(g, past_value, v, start, length)
        present = g.Identity(k), g.Identity(v)
        if slides:
            oldest = g.Sub(lengths, kept)
            present = tuple(_rows(g, x, oldest, window, capacity) for x in (k, v))
        if k.shape[2] != total:
            k, v = (g.Slice(x, [0], [total], [2]) for x in (k, v))
        if k_scale is not None:
            k = _from_cache(g, k, k_scale, bits)
        if v_scale is not None:
            v = _from_cache(g, v, v_scale, bits)
        if k.dtype != q.dtype:
            k, v = g.Cast(k, to=q.dtype), g.Cast(v, to=q.dtype)
        if head_sink is None and attrs["smooth_softmax"] == 1:
            head_sink = like(g, g.array(np.zeros(attrs["num_heads"], np.float32)), q)
        q, scale = scaled(g, q, attrs["scale"] or None)
        scoring = {
            "scale": scale,
            "softcap": attrs["softcap"],
            "window": (window - 1 if window > 0 else -1, 0 if attrs["causal"] else -1),
        }
        seen = (None, attention_bias, lengths, start)
        o = g.call("q7::Attention", q, k, v, *seen, head_sink, zero_masked_rows=1, **scoring)
        outputs = merge_heads(g, o), *present
        if not attrs["qk_output"]:
            return outputs
        *_, scores = score_stages(g, q, k, *seen, fill=0.0, **scoring)
        if attrs["qk_output"] == 2:
            return *outputs, g.Identity(weights(g, scores, head_sink))
        return *outputs, g.Where(g.Equal(scores, -inf), 0.0, scores)


def grouped_heads(
    g: Any, query: Value, key: Given, value: Given, heads: int, kv_heads: int
) -> tuple[Value, ...]:
    """q (B, H, S, D), k and v (B, Hkv, S, D), from three operands or from one that holds all."""
    if key is None:
        depth = query.shape[2] // (heads + 2 * kv_heads)
        sizes = [heads * depth, kv_heads * depth, kv_heads * depth]
        query, key, value = g.Split(query, sizes, outputs=3, axis=2)
    return tuple(
        split_heads(g, x, n) for x, n in ((query, heads), (key, kv_heads), (value, kv_heads))
    )


def rotary(
    g: Any,
    xs: tuple[Value, ...],
    cos: Value,
    sin: Value,
    start: Value,
    positions: Given,
    interleaved: int,
) -> tuple[Value, ...]:
    """Each x (B, .., S, D) rotated by its position: from `start` (1,) or (B,) on by default."""
    batch, _, queries, depth = xs[0].shape
    if positions is None:
        positions = g.Add(g.Reshape(start, [-1, 1]), count(g, queries))
        positions = g.Expand(positions, [batch, queries])
    width = 2 * cos.shape[1]
    attrs = {
        "interleaved": interleaved,
        "rotary_embedding_dim": 0 if width == depth else width,
    }
    return tuple(g.RotaryEmbedding(x, cos, sin, positions, **attrs) for x in xs)


# The cache


def _start(g: Any, lengths: Value, queries: Dim, total: Dim, counts: Given) -> Value:
    """The position of the first query: 0 in a first prompt, else before the last keys, of which
    `counts` may tell how many are new; (1,) or (B,).
    """
    if counts is not None:
        return g.Sub(lengths, g.Reshape(g.Cast(counts, to=dtypes.INT64), [-1]))
    if queries == total:
        return g.literal([0])
    before = g.Sub(lengths, g.literal([queries]))
    return g.Where(_is_first(g, queries, total), g.literal([0]), before)


def _is_first(g: Any, queries: Dim, total: Dim) -> Value:
    return g.Equal(g.literal([queries]), g.literal([total]))


def _positions(g: Any, ids: Value, total: Dim) -> Value:
    """Those of the queries (B, S): in a first prompt the first of all, and those that follow it."""
    batch, queries = ids.shape
    first = g.Slice(ids, [0, 0], [1, 1], [0, 1])
    row = g.Expand(g.Add(first, count(g, queries)), [batch, queries])
    return row if queries == total else g.Where(_is_first(g, queries, total), row, ids)


def store(g: Any, past: Value, new: Value, start: Value, length: Dim) -> Value:
    """The past (B, H, C, D) with the new rows from `start` (1,) or (B,) on: (B, H, length, D), 0
    where neither has rows.
    """
    first = None if known(start) == (0,) else g.Expand(start, [past.shape[0]])
    return g.call("q7::TensorScatter", past, new, first, g.literal([length]))


def _resident(g: Any, tokens: Value, window: int, capacity: Dim) -> Value:
    """How many of so many tokens (B,) are in a cache that drops all that no later query sees,
    whenever it is full.
    """
    slack, dropped = g.literal([capacity - window]), g.literal([capacity - window + 1])
    over = g.Max(g.Sub(tokens, g.literal([capacity])), g.literal([0]))
    return g.Sub(tokens, g.Mul(g.Div(g.Add(over, slack), dropped), dropped))


def _columns(g: Any, bias: Value, first: Value, batch: Dim, keys: Dim) -> Value:
    """The columns of a bias (B or 1, H or 1, S, T) from first (B or 1,) on: (B, H or 1, S, keys),
    anything where there are none, as for keys that are not there.
    """
    _, heads, queries, total = bias.shape
    at = g.Add(g.Reshape(first, [-1, 1, 1, 1]), count(g, keys))
    at = g.Min(at, g.literal([total - 1]))
    return g.GatherElements(
        g.Expand(bias, [batch, heads, queries, total]),
        g.Expand(at, [batch, heads, queries, keys]),
        axis=3,
    )


def _rows(g: Any, x: Value, first: Value, window: int, capacity: Dim) -> Value:
    """Rows of x (B, H, R, D) from first (B,) on, as far as there are any: (B, H, capacity, D)."""
    batch, heads, rows, depth = x.shape
    row = g.Add(g.Reshape(first, [-1, 1, 1]), count(g, capacity))
    row = g.Min(row, g.literal([rows - 1]))
    head = g.Mul(count(g, batch * heads), g.literal([rows]))
    rows += maximum(window, capacity) - capacity  # which fails where the window is longer
    flat = g.Reshape(x, [batch * heads * rows, depth])
    return g.Gather(flat, g.Add(g.Reshape(head, [batch, heads, 1]), row), axis=0)


def _to_cache(g: Any, x: Value, scale: Value, bits: int) -> Value:
    """x (B, H, S, D) as a cache of bytes holds it."""
    low = -(1 << bits - 1)
    whole = g.Clip(g.Round(g.Div(x, scale)), float(low), float(-low - 1))
    if bits == 8:
        return g.Cast(whole, to=dtypes.INT8)
    pairs = g.Reshape(g.Add(whole, 8.0), [*x.shape[:3], x.shape[3] // 2, 2])
    first, second = (g.Slice(pairs, [i], [i + 1], [4]) for i in (0, 1))
    packed = g.Add(first, g.Mul(second, 16.0))
    return g.Cast(g.Reshape(packed, [*x.shape[:3], x.shape[3] // 2]), to=dtypes.UINT8)


def _from_cache(g: Any, x: Value, scale: Value, bits: int) -> Value:
    """What a cache of bytes holds, as float."""
    real = g.Cast(x, to=scale.dtype)
    if bits == 4:
        high = g.Floor(g.Div(real, 16.0))
        halves = (g.Sub(real, g.Mul(high, 16.0)), high)
        pairs = g.Concat(*(g.Unsqueeze(half, [-1]) for half in halves), axis=-1)
        real = g.Sub(g.Reshape(pairs, [*x.shape[:3], 2 * x.shape[3]]), 8.0)
    return g.Mul(real, scale)


def _spread(g: Any, x: Value, scale: Given, kind: str) -> Given:
    """One scale, or one per head and channel of x (B, H, S, D): where the shape does not tell, the
    kind does.
    """
    if scale is None or len(scale.shape) == 4 or scale.shape in ((), (1,)):
        return scale
    return g.Reshape(scale, [1] if kind == "PER_TENSOR" else [1, x.shape[1], 1, x.shape[3]])


@op("com.microsoft::SparseAttention")
class SparseAttention:
    """Causal attention, to keys whose block of sparse_block_size is in the row of the query's block
    only, over a cache that is filled in place.

    Head h has layout h % L, a matrix of blocks as CSR: row r holds the columns
    block_col[l, block_row[l, r] .. block_row[l, r + 1]).
    Shapes: as GroupQueryAttention; block_row (L, rows + 1), block_col (L, most).
    """

    signature = (
        "query: F, key?: F, value?: F, past_key: F, past_value: F, block_row: int32, "
        "block_col: int32, total_sequence_length: int32, key_lengths: int32, cos?: F, "
        "sin?: F -> y, present_key, present_value"
    )
    attributes = {
        "num_heads": 0,
        "kv_num_heads": 0,
        "scale": None,
        "sparse_block_size": 0,
        "do_rotary": 0,
        "rotary_interleaved": 0,
    }
    infer = infer_meaning

    def decompose(
        g: Any,
        query: Value,
        key: Given,
        value: Given,
        past_key: Value,
        past_value: Value,
        block_row: Value,
        block_col: Value,
        total_sequence_length: Value,
        key_lengths: Value,
        cos: Given = None,
        sin: Given = None,
        *,
        num_heads: int,
        kv_num_heads: int,
        scale: Optional[float],
        sparse_block_size: int,
        do_rotary: int,
        rotary_interleaved: int,
    ) -> tuple[Value, ...]:
        q, k, v = grouped_heads(g, query, key, value, num_heads, kv_num_heads)
        queries, keys = q.shape[2], past_key.shape[2]
        total = g.Reshape(g.Cast(total_sequence_length, to=dtypes.INT64), [1])
        lengths = g.Reshape(g.Cast(key_lengths, to=dtypes.INT64), [-1])
        first = g.Equal(total, g.literal([queries]))  # a prompt, maybe padded on the right
        start = g.Where(first, g.literal([0]), g.Sub(lengths, g.literal([queries])))  # (B,)
        if do_rotary:
            q, k = rotary(g, (q, k), cos, sin, start, None, rotary_interleaved)
        k = store(g, past_key, k, start, keys)
        v = store(g, past_value, v, start, keys)
        blocks = _dense_blocks(g, block_row, block_col)  # (L, rows, columns)
        layouts, rows, columns = blocks.shape
        size = g.literal([sparse_block_size])
        position = g.Add(g.Reshape(start, [-1, 1]), count(g, queries))  # (B, S)
        row = g.Clip(g.Div(position, size), 0, rows - 1)
        column = g.Min(g.Div(count(g, keys), size), g.literal([columns - 1]))
        shown = g.Gather(g.Gather(blocks, column, axis=2), row, axis=1)  # (L, B, S, C)
        shown = g.Transpose(shown, perm=(1, 0, 2, 3))
        copies = num_heads // layouts
        mask = g.Concat(*[shown] * copies, axis=1) if copies > 1 else shown
        q, scale = scaled(g, q, scale or None)
        o = g.call(
            "q7::Attention",
            *(q, k, v, mask, None, lengths, start),
            scale=scale,
            causal=1,
            zero_masked_rows=1,
        )
        return merge_heads(g, o), g.Identity(k), g.Identity(v)


def _dense_blocks(g: Any, block_row: Value, block_col: Value) -> Value:
    """A layout in CSR form as bool (L, rows, columns)."""
    (_, ends), (_, most) = block_row.shape, block_col.shape
    rows = ends - 1
    entry = count(g, most)
    bounds = g.Unsqueeze(g.Cast(block_row, to=dtypes.INT64), [2])  # (L, rows + 1, 1)
    first, last = g.Slice(bounds, [0], [rows], [1]), g.Slice(bounds, [1], [ends], [1])
    inside = g.And(g.GreaterOrEqual(entry, first), g.Less(entry, last))  # (L, rows, most)
    column = g.Reshape(count(g, rows), [1, 1, rows])
    named = g.Equal(g.Unsqueeze(g.Cast(block_col, to=dtypes.INT64), [2]), column)
    parts = (g.Cast(x, to=dtypes.FLOAT) for x in (inside, named))
    return g.Greater(g.MatMul(*parts), 0.0)
