"""The embedding of BERT as one op of the domain com.microsoft.

Letters: V words, D their size. Source: the operator schemas of onnxruntime 1.31; where they leave a
choice, its CPU kernels.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Value
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import Given, infer_meaning


@op("com.microsoft::EmbedLayerNormalization")
class EmbedLayerNormalization:
    """y = layer_norm(words[ids] + positions[0 .. S) + segments[segment_ids]); mask_index counts the
    ones of each row of the mask, and is 0 without one.

    Shapes: ids, segment_ids, mask, position_ids (B, S), the tables (.., D), y, total (B, S, D).
    """

    signature = (
        "ids: int32, segment_ids?: int32, words: F, positions: F, segments?: F, weight: F, "
        "bias: F, mask?: int32, position_ids?: int32 -> y, mask_index?, total?"
    )
    attributes = {"epsilon": 1e-12, "mask_index_type": 0}
    infer = infer_meaning

    def decompose(
        g: Any,
        ids: Value,
        segment_ids: Given,
        words: Value,
        positions: Value,
        segments: Given,
        weight: Value,
        bias: Value,
        mask: Given = None,
        position_ids: Given = None,
        *,
        epsilon: float,
        mask_index_type: int,
    ) -> tuple[Value, ...]:
        rows = ((words, ids), (positions, position_ids), (segments, segment_ids))
        total = _summed(g, rows, lambda x, i: x)
        y = g.LayerNormalization(total, weight, bias, axis=-1, epsilon=epsilon)
        return y, _mask_index(g, ids, mask), g.Identity(total)


@op("com.microsoft::QEmbedLayerNormalization")
class QEmbedLayerNormalization:
    """EmbedLayerNormalization of tables and weights of bytes."""

    signature = (
        "ids: int32, segment_ids?: int32, words: B, positions: B, segments?: B, weight: B, "
        "bias: B, mask?: int32, words_scale: float32, positions_scale: float32, "
        "segments_scale?: float32, weight_scale: float32, bias_scale: float32, words_zero: B, "
        "positions_zero: B, segments_zero?: B, weight_zero: B, bias_zero: B -> y, mask_index?"
    )
    attributes = {"epsilon": 1e-12}
    infer = infer_meaning

    def decompose(
        g: Any,
        ids: Value,
        segment_ids: Given,
        words: Value,
        positions: Value,
        segments: Given,
        weight: Value,
        bias: Value,
        mask: Given,
        *numbers: Given,
        epsilon: float,
    ) -> tuple[Value, ...]:
        def real(x: Value, i: int) -> Value:
            scale, zero = (g.Reshape(numbers[at], []) for at in (i, i + 5))
            return g.DequantizeLinear(x, scale, zero)

        rows = ((words, ids), (positions, None), (segments, segment_ids))
        total = _summed(g, rows, real)
        weights = real(weight, 3), real(bias, 4)
        y = g.LayerNormalization(total, *weights, axis=-1, epsilon=epsilon)
        return y, _mask_index(g, ids, mask)


def _summed(
    g: Any, rows: tuple[tuple[Given, Given], ...], real: Callable[[Value, int], Value]
) -> Value:
    """The sum of real(rows of table i, i) for (table, indices), without indices the first S."""
    found: list[Value] = []
    length = rows[0][1].shape[1]
    for i, (table, indices) in enumerate(rows):
        if table is not None and indices is not None:
            found.append(real(g.Gather(table, indices, axis=0), i))
        elif table is not None:
            found.append(real(g.Slice(table, [0], [length], [0]), i))
    total = found[0]
    for part in found[1:]:
        total = g.Add(total, part)
    return total


def _mask_index(g: Any, ids: Value, mask: Given) -> Value:
    """(B,) int32."""
    if mask is None:
        return g.Expand(g.array(np.zeros(1, np.int32)), [ids.shape[0]])
    ones = g.Cast(g.Equal(mask, g.literal(1, mask.dtype)), to=dtypes.INT32)
    return g.ReduceSum(ones, [1], keepdims=0)
