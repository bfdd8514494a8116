"""Numbers of few bits of the domain com.microsoft: unpacked, and scaled block by block.

What is constant is made float once, at load.
Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import Given, infer_meaning

FOUR_BITS = ("int4", "uint4")


def unpacked(g: Any, x: Value, bits: int, step: int = 1) -> Value:
    """Bytes (.., n) as int32 (.., n * 8 / bits), low bits first, or with step -1 high bits."""
    whole = g.Cast(x, to=dtypes.INT32)
    if bits == 8:
        return whole
    places = range(0, 8, bits)[::step]
    parts = [g.Mod(g.Div(whole, 1 << place), 1 << bits) for place in places]
    together = g.Concat(*(g.Unsqueeze(part, [-1]) for part in parts), axis=-1)
    return g.Reshape(together, [*x.shape[:-1], x.shape[-1] * (8 // bits)])


def repeated(g: Any, x: Value, block: int, axis: int, size: Dim) -> Value:
    """One number per block along an axis as one per element, of which there are `size`."""
    shape = list(x.shape)
    wide = g.Expand(g.Unsqueeze(x, [axis + 1]), [*shape[: axis + 1], block, *shape[axis + 1 :]])
    whole = g.reshape(wide, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
    return whole if shape[axis] * block == size else g.Slice(whole, [0], [size], [axis])


def scaled_blocks(
    g: Any, x: Value, scales: Value, zeros: Given, default: int, block: int, axis: int
) -> Value:
    """(x - zero) * scale as float, of integers x and their scales and zeros per block."""
    centred = g.Cast(x, to=scales.dtype)
    size = x.shape[axis]
    if zeros is not None:
        real = g.Cast(zeros, to=scales.dtype)
        centred = g.Sub(centred, repeated(g, real, block, axis, size))
    elif default:
        centred = g.Sub(centred, float(default))
    return g.Mul(centred, repeated(g, scales, block, axis, size))


# What four bits of MatMulBnb4 stand for. Source: Dettmers et al. 2023, "QLoRA", appendix E, for
# NF4; FP4 has a sign, two bits of exponent and one of fraction, over its largest, 12.
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4 = tuple(
    sign * x / 12.0 for sign in (1, -1) for x in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
)


@op("com.microsoft::MatMulBnb4")
class MatMulBnb4:
    """y = a @ w^T, or a @ w without transB, for a w (N, K) of four bits per element.

    An element is one of 16 numbers times the absmax of its block; the first of two that share a
    byte is the high half. w is dequantised once, at load.
    """

    signature = "a: F, w: uint8, absmax: F -> y"
    attributes = {
        "K": 0,
        "N": 0,
        "block_size": 0,
        "quant_type": 0,
        "training_mode": 0,
        "transB": 1,
    }
    infer = infer_meaning

    def decompose(
        g: Any,
        a: Value,
        w: Value,
        absmax: Value,
        K: int,
        N: int,
        block_size: int,
        quant_type: int,
        training_mode: int,
        transB: int,
    ) -> Value:
        table = np.array(NF4 if quant_type else FP4, dtypes.DTYPES[absmax.dtype].numpy)
        codes = g.Slice(unpacked(g, g.Reshape(w, [-1]), 4, -1), [0], [N * K], [0])
        number = g.Gather(g.array(table), codes, axis=0)
        last = -(-N * K // block_size) * block_size - N * K
        padded = g.Reshape(g.Pad(number, [0, last]), [-1, block_size])
        real = g.Reshape(g.Mul(padded, g.Reshape(absmax, [-1, 1])), [-1])
        matrix = g.Reshape(g.Slice(real, [0], [N * K], [0]), [N, K])
        return g.MatMul(a, g.Transpose(matrix, perm=(1, 0)) if transB else matrix)


@op("com.microsoft::GatherBlockQuantized")
class GatherBlockQuantized:
    """y = dequantize(data)[.., indices, ..] along gather_axis, of data that is scaled per block of
    quantize_axis; 0 for an index that is out of range.

    Bytes hold `bits` of an element each, the first in the low bits; their zero is 2^(bits-1) by
    default, that of other types 0. block_size 0: the whole axis is one block. Of scales other axes
    may be 1.
    """

    signature = "data: Q, indices: index, scales: F, zeros?: Q -> y"
    attributes = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}

    infer = infer_meaning

    def decompose(
        g: Any,
        data: Value,
        indices: Value,
        scales: Value,
        zeros: Given = None,
        *,
        bits: int,
        block_size: int,
        gather_axis: int,
        quantize_axis: int,
    ) -> Value:
        axis, along = gather_axis % len(data.shape), quantize_axis % len(data.shape)
        is_bytes = data.dtype == dtypes.UINT8
        if dtypes.DTYPES[data.dtype].onnx in FOUR_BITS:
            data = g.Cast(data, to=dtypes.INT8)
            zeros = None if zeros is None else g.Cast(zeros, to=dtypes.INT8)
        rows = data.shape[axis]

        def number(n: Dim) -> Value:
            if isinstance(n, int):
                return g.literal(n, indices.dtype)
            return g.Reshape(g.Cast(g.literal([n]), to=indices.dtype), [])

        fits = g.And(g.GreaterOrEqual(indices, number(-rows)), g.Less(indices, number(rows)))
        at = g.Where(fits, indices, g.literal(0, indices.dtype))
        block = block_size or data.shape[along]

        def chosen(x: Given, positions: Value) -> Given:
            if x is None or x.shape[axis] != 1 or rows == 1:
                return None if x is None else g.Gather(x, positions, axis=axis)
            ones = [1] * len(indices.shape)  # one scale for all rows
            return g.Reshape(x, [*x.shape[:axis], *ones, *x.shape[axis + 1 :]])

        x = chosen(data, at)
        packed_zeros = zeros
        if is_bytes:
            x = unpacked(g, x, bits)
            packed_zeros = None if zeros is None else unpacked(g, zeros, bits)
        if axis == along:
            positive = g.Where(g.Less(at, number(0)), g.Add(at, number(rows)), at)
            where = g.Div(positive, number(block))
            y = g.Cast(x, to=scales.dtype)
            if packed_zeros is not None:
                y = g.Sub(y, g.Cast(chosen(packed_zeros, where), to=scales.dtype))
            y = g.Mul(y, chosen(scales, where))
        else:
            moved = along + (len(indices.shape) - 1 if along > axis else 0)
            default = 1 << bits - 1 if is_bytes else 0
            parts = chosen(scales, at), chosen(packed_zeros, at)
            y = scaled_blocks(g, x, *parts, default, block, moved)
        shown = g.Reshape(fits, [*indices.shape, *[1] * (len(y.shape) - axis - len(indices.shape))])
        return g.Where(shown, y, 0.0)
