"""Attention of the domain com.microsoft: what each op means in terms of ONNX and q7::Attention.

Letters as in attention.py; P is the length of the past, T = P + Skv of all keys. Masks of these ops
hold 1 for a key that counts; the score of another is not -inf but lower by `mask_filter_value`.
Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim, maximum
from q7x2_ep.ops import op
from q7x2_ep.ops.attention import (
    HEADS_OUTER,
    append,
    bounds,
    count,
    merge_heads,
    scaled,
    score_stages,
    split_heads,
)
from q7x2_ep.ops.builder import Given, infer_meaning, like
from q7x2_ep.ops.contrib_gqa import store
from q7x2_ep.ops.contrib_quant import integer_product

LOWEST = float(np.finfo(np.float32).min)


@op("com.microsoft::MultiHeadAttention")
class MultiHeadAttention:
    """y = softmax(scale * q k^T + attention_bias + mask) v per head, present is past, then new.

    With past_sequence_length the past is a cache of C rows, of which so many are filled; the new
    ones go behind them. cache_indirection[b, i, t] is the beam whose row t is that of beam i.
    Shapes: query (B, S, H * D), key and value (B, Skv, H * D), or all packed (B, S, H, 3, D), or
    these two (B, Skv, H, 2, D), or (B, H, Skv, D), which take no bias; qk (B, H, S, T), the
    scores, which are the lowest number for keys out of sight; T = C with a length, which may be
    data: the importer cuts them.
    """

    signature = (
        "query: F, key?: F, value?: F, bias?: F, key_padding_mask?: int32, attention_bias?: F, "
        "past_key?: F, past_value?: F, past_sequence_length?: int32, "
        "cache_indirection?: int32 -> y, present_key?, present_value?, qk?"
    )
    attributes = {
        "num_heads": 0,
        "scale": None,
        "mask_filter_value": -10000.0,
        "unidirectional": 0,
    }
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
        past_sequence_length: Given = None,
        cache_indirection: Given = None,
        *,
        num_heads: int,
        mask_filter_value: float,
        **scoring: Any,
    ) -> tuple[Value, ...]:
        q, k, v = _heads(g, query, key, value, bias, num_heads)
        cache = _Cache(past_key, past_value, past_sequence_length, cache_indirection)
        mask = key_padding_mask, mask_filter_value
        return _attend(g, q, k, v, cache, mask, attention_bias, **scoring)


@op("com.microsoft::DecoderMaskedMultiHeadAttention")
class DecoderMaskedMultiHeadAttention:
    """MultiHeadAttention of one query, in another order of operands.

    Of a key and value (B, H, Skv, D) there is nothing to keep. beam_width is that of
    cache_indirection.
    """

    signature = (
        "query: F, key?: F, value?: F, mask_index?: int32, attention_bias?: F, past_key?: F, "
        "past_value?: F, past_sequence_length?: int32, beam_width?: int32, "
        "cache_indirection?: int32, bias?: F -> y, present_key?, present_value?, qk?"
    )
    attributes = {
        "num_heads": 0,
        "scale": None,
        "mask_filter_value": -10000.0,
        "output_qk": 0,
        "past_present_share_buffer": 0,
    }
    infer = infer_meaning

    def decompose(
        g: Any,
        query: Value,
        key: Given = None,
        value: Given = None,
        mask_index: Given = None,
        attention_bias: Given = None,
        past_key: Given = None,
        past_value: Given = None,
        past_sequence_length: Given = None,
        beam_width: Given = None,
        cache_indirection: Given = None,
        bias: Given = None,
        *,
        num_heads: int,
        scale: Optional[float],
        mask_filter_value: float,
        **_: int,
    ) -> tuple[Value, ...]:
        if key is None:
            query, key, value = g.Split(query, num_outputs=3, outputs=3, axis=2)
        q, k, v = _heads(g, query, key, value, bias, num_heads)
        cache = _Cache(past_key, past_value, past_sequence_length, cache_indirection)
        mask = mask_index, mask_filter_value
        return _attend(g, q, k, v, cache, mask, attention_bias, scale)


@op("com.microsoft::Attention")
class Attention:
    """Attention of q, k, v = x @ weights + bias; present stacks keys and values.

    Shapes: x (B, S, C), weights (C, 2 * H * D + H * Dv), past (2, B, H, P, D).
    """

    signature = (
        "x: F, weights: F, bias?: F, mask_index?: int32, past?: F, attention_bias?: F, "
        "past_sequence_length?: int32 -> y, present?"
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
        **attrs: Any,
    ) -> tuple[Value, ...]:
        product = g.MatMul(x, weights)
        product = product if bias is None else g.Add(product, bias)
        return _self_attention(g, product, mask_index, past, attention_bias, **attrs)


@op("com.microsoft::QAttention")
class QAttention:
    """Attention of q, k, v = dequantize(x) @ dequantize(weights) + bias."""

    signature = (
        "x: B, weights: B1, bias: F, x_scale: F, weight_scale: F, mask_index?: int32, x_zero?: B, "
        "weight_zero?: B1, past?: F -> y, present?"
    )
    attributes = {
        "num_heads": 0,
        "scale": None,
        "mask_filter_value": -10000.0,
        "unidirectional": 0,
        "do_rotary": 0,
        "past_present_share_buffer": 0,
    }
    unsupported = ("past_present_share_buffer", "do_rotary")
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        weights: Value,
        bias: Value,
        x_scale: Value,
        weight_scale: Value,
        mask_index: Given = None,
        x_zero: Given = None,
        weight_zero: Given = None,
        past: Given = None,
        **attrs: Any,
    ) -> tuple[Value, ...]:
        product = integer_product(g, x, weights, x_scale, weight_scale, x_zero, weight_zero)
        return _self_attention(g, g.Add(product, bias), mask_index, past, None, **attrs)


# Queries, keys and values


def _self_attention(
    g: Any,
    product: Value,
    mask_index: Given,
    past: Given,
    attention_bias: Given,
    num_heads: int,
    scale: Optional[float],
    mask_filter_value: float,
    unidirectional: int,
    qkv_hidden_sizes: Optional[tuple[int, ...]] = None,
    **_unsupported: Any,
) -> tuple[Value, ...]:
    """y and present, of a product that holds q, k and v."""
    sizes = list(qkv_hidden_sizes or [product.shape[2] // 3] * 3)
    parts = g.Split(product, sizes, outputs=3, axis=2)
    q, k, v = (split_heads(g, part, num_heads) for part in parts)
    cache = _Cache()
    if past is not None:
        cache = _Cache(*(g.Squeeze(g.Slice(past, [i], [i + 1], [0]), [0]) for i in (0, 1)))
    if mask_index is not None and mask_index.shape[1:] == (1,):
        mask_index = None  # stands for none; where there is but one key, it gets all the weight
    mask = mask_index, mask_filter_value
    y, *present = _attend(g, q, k, v, cache, mask, attention_bias, scale, unidirectional)
    return y, g.Concat(*(g.Unsqueeze(x, [0]) for x in present[:2]), axis=0)


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
    found: list[Value] = []
    start: Dim = 0
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


# Scores and masks


class _Cache(NamedTuple):
    """Keys and values so far: all of the past, or with a length those of its first rows."""

    key: Given = None
    value: Given = None
    length: Given = None
    beams: Given = None


def _attend(
    g: Any,
    q: Value,
    k: Value,
    v: Value,
    cache: _Cache,
    mask: tuple[Given, float],
    attention_bias: Given,
    scale: Optional[float],
    unidirectional: int = 0,
) -> tuple[Value, ...]:
    """y (B, S, H * Dv), keys and values with those of the past, and the scores. mask: and its
    filter value.
    """
    queries, new = q.shape[2], k.shape[2]
    if cache.length is None:
        k, v = append(g, cache.key, k), append(g, cache.value, v)
        present, before = (k, v), 0 if cache.key is None else cache.key.shape[2]
        start, lengths = g.literal([before]), None
        is_placed = unidirectional and before != k.shape[2] - queries
    else:
        start = g.Reshape(g.Cast(cache.length, to=dtypes.INT64), [1])
        rows = cache.key.shape[2]
        k, v = (store(g, x, y, start, rows) for x, y in ((cache.key, k), (cache.value, v)))
        present, lengths, is_placed = (k, v), g.Add(start, g.literal([new])), True
        if cache.beams is not None:
            k, v = (_redirected(g, x, cache.beams, start) for x in (k, v))
    keys = k.shape[2]
    added = None
    if mask[0] is not None:
        length = keys if cache.length is None else mask[0].shape[-1]
        kept, filter_value = _kept(g, mask[0], q, length), mask[1]
        if unidirectional and filter_value == LOWEST:
            # Keys that follow get this number too: a row that sees no key weighs all alike.
            query = g.Reshape(g.Add(count(g, queries), start), [queries, 1])
            kept = g.And(kept, g.LessOrEqual(count(g, length), query))
            unidirectional = 0
        added = _longer(g, like(g, g.Where(kept, 0.0, filter_value), q), keys)
    operands = (
        added,
        None if attention_bias is None else _longer(g, attention_bias, keys),
        lengths,
        start if is_placed else None,
    )
    q, scale = scaled(g, q, scale or None)
    scoring = {"scale": scale}
    o = g.call("q7::Attention", q, k, v, *operands, causal=unidirectional, **scoring)
    window = bounds(unidirectional, (-1, -1))
    *_, scores = score_stages(g, q, k, *operands, fill=0.0, softcap=0.0, window=window, **scoring)
    scores = g.Max(scores, like(g, g.literal(LOWEST), scores))
    return merge_heads(g, o), *(g.Identity(x) for x in (*present, scores))


def _longer(g: Any, x: Value, keys: Dim) -> Value:
    """x (.., T or 1) with zeros for keys behind T, of which there are none but in a cache."""
    *leading, length = x.shape
    if length in (1, keys):
        return x
    rest = g.Expand(g.literal(0, x.dtype), [*leading, maximum(keys - length, 0)])
    return g.reshape(g.Concat(x, rest, axis=-1), (*leading, keys))


def _redirected(g: Any, x: Value, beams: Value, start: Value) -> Value:
    """The cache x (batch * beams, H, C, D), whose rows before `start` are those of the beams that
    beams (batch, beams, C or more) names.
    """
    all_beams, _, rows, _ = x.shape
    batch, width, _ = beams.shape
    chosen = g.Cast(g.Slice(beams, [0], [rows], [2]), to=dtypes.INT64)
    own = g.Reshape(count(g, width), [1, width, 1])
    chosen = g.Where(g.Less(count(g, rows), start), chosen, own)
    first = g.Mul(g.Reshape(count(g, batch), [batch, 1, 1]), g.literal([width]))
    entry = g.Reshape(g.Add(chosen, first), [all_beams, rows, 1])
    row = g.Expand(g.Reshape(count(g, rows), [1, rows, 1]), [all_beams, rows, 1])
    inner = g.Transpose(x, perm=HEADS_OUTER)  # (batch * beams, C, H, D)
    return g.Transpose(g.GatherND(inner, g.Concat(entry, row, axis=2)), perm=HEADS_OUTER)


def _kept(g: Any, mask: Value, q: Value, keys: Dim) -> Value:
    """Which scores a mask in any of its forms leaves; broadcasts to (B, H, S, T)."""
    batch, _, length, _ = q.shape
    rank = len(mask.shape)
    if rank == 1:
        kept = _kept_range(g, mask, batch, keys)
    elif rank == 4:  # (B, 1, M, M) for positions in all
        before = keys - length
        kept = g.Slice(mask, [before, 0], [keys, keys], [2, 3])
    else:  # (B, T) or (B, S, T)
        kept = g.Reshape(mask, [batch, 1, length if rank == 3 else 1, keys])
    return kept if kept.dtype == dtypes.BOOL else g.Greater(kept, g.literal(0, kept.dtype))


def _kept_range(g: Any, ends: Value, batch: Dim, keys: Dim) -> Value:
    """The keys before an end; `ends` holds B of them first.

    In the form (2 * B,) the first keys that count follow; what follows in the form (3 * B + 2,),
    the sums of lengths, adds nothing. Where sizes do not tell the form, a run does.
    """
    key, (size,) = g.Cast(count(g, keys), to=ends.dtype), ends.shape

    def column(x: Value, i: int) -> Value:
        part = x if x.shape == (batch,) else g.Slice(x, [i * batch], [(i + 1) * batch], [0])
        return g.Reshape(part, [batch, 1, 1, 1])

    kept = g.Less(key, column(ends, 0))
    if size in (batch, 3 * batch + 2):
        return kept
    if size == 2 * batch:
        return g.And(kept, g.GreaterOrEqual(key, column(ends, 1)))
    longer = g.Concat(ends, g.Expand(g.literal(0, ends.dtype), [batch]), axis=0)
    has_start = g.Equal(g.literal([size]), g.literal([2 * batch]))
    start = g.Where(has_start, column(longer, 1), g.literal(0, ends.dtype))
    return g.And(kept, g.GreaterOrEqual(key, start))
