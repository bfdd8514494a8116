"""Weights of the domain com.microsoft in blocks of few bits, whose scales are among their bytes.

Letters: K elements of a column or row.
Source: the operator schemas of onnxruntime 1.32; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import infer_meaning
from q7x2_ep.ops.common import NotInferable, dims, known, where_is
from q7x2_ep.ops.contrib_blocks import scaled_blocks

Q4_BLOCK = 32  # elements


@op("com.microsoft::MatMulFpQ4")
class MatMulFpQ4:
    """y = a @ b, of columns of b in blocks of 32: a float, a zero unless blk_quant_type is 0, and
    16 bytes, whose low halves are the first 16 elements and whose high halves the others.

    Shapes: a (.., K), b the bytes of N columns, b_shape K and N.
    """

    signature = "a: float32, b: uint8, b_shape: int64 -> y"
    attributes = {"blk_quant_type": 1}
    infer = infer_meaning

    def decompose(g: Any, a: Value, b: Value, b_shape: Value, blk_quant_type: int) -> Value:
        sizes = known(b_shape)
        if sizes is None or not all(isinstance(n, int) for n in sizes):
            raise NotInferable(f"the sizes {b_shape.name} are not known")
        if len(sizes) != 2:
            raise ModelError(f"{b_shape.name} has {len(sizes)} sizes: expected K and N")
        K, N = sizes
        blocks, first = -(-K // Q4_BLOCK), 4 if blk_quant_type == 0 else 5
        size = N * blocks * (first + Q4_BLOCK // 2)
        if b.shape[0] != size:
            raise ModelError(
                f"{b.name} has {b.shape[0]} bytes: expected {size} for {K} x {N} weights"
            )
        rows = g.Reshape(b, [N, blocks, first + Q4_BLOCK // 2])
        words = g.Cast(g.Slice(rows, [0], [4], [2]), to=dtypes.UINT32)
        shifts = g.array(np.array([0, 8, 16, 24], np.uint32))
        bits = g.ReduceSum(g.BitShift(words, shifts, direction="LEFT"), [2], keepdims=0)
        scales = g.BitCast(bits, to=dtypes.FLOAT)
        zeros = g.Cast(g.Slice(rows, [4], [5], [2]), to=dtypes.INT32) if first == 5 else None
        halves = g.Cast(g.Slice(rows, [first], [first + Q4_BLOCK // 2], [2]), to=dtypes.INT32)
        codes = g.Concat(g.Mod(halves, 16), g.Div(halves, 16), axis=2)
        if zeros is not None:
            zeros = g.Reshape(zeros, [N, blocks])
        codes = g.Reshape(codes, [N, blocks * Q4_BLOCK])
        columns = g.Slice(codes, [0], [K], [1])
        w = scaled_blocks(g, columns, scales, zeros, 8, Q4_BLOCK, 1)
        return g.MatMul(a, g.Transpose(w, perm=(1, 0)))


def _float16(x: np.ndarray) -> np.ndarray:
    """Numbers of two bytes each."""
    return np.ascontiguousarray(x).view(np.float16).astype(np.float32)


def _halves(x: np.ndarray) -> np.ndarray:
    """The low halves of the bytes, then the high ones."""
    return np.concatenate((x & 15, x >> 4), -1)


def _bits(x: np.ndarray, width: int) -> np.ndarray:
    """(.., n) bytes as (.., 8 / width, n) numbers: all low bits first."""
    return x[..., None, :] >> np.arange(0, 8, width, dtype=np.uint8)[:, None] & (1 << width) - 1


def _q4_0(x: np.ndarray) -> np.ndarray:
    return _float16(x[:, :2]) * (_halves(x[:, 2:]).astype(np.float32) - 8)


def _q5_0(x: np.ndarray) -> np.ndarray:
    fifth = np.unpackbits(x[:, 2:6], axis=1, bitorder="little")
    return _float16(x[:, :2]) * ((_halves(x[:, 6:]) | fifth << 4).astype(np.float32) - 16)


def _q8_0(x: np.ndarray) -> np.ndarray:
    return _float16(x[:, :2]) * x[:, 2:].view(np.int8).astype(np.float32)


def _q5_k(x: np.ndarray) -> np.ndarray:
    """8 parts of 32 with a scale and a minimum of 6 bits each, of which the last four's are spread
    over three bytes.
    """
    low, middle, high = (x[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), 1)
    least = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), 1)
    codes = _bits(x[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32) | _bits(x[:, 16:48], 1) << 4
    wide = _float16(x[:, :2]) * scales, _float16(x[:, 2:4]) * least
    return wide[0][..., None] * codes.astype(np.float32) - wide[1][..., None]


def _q6_k(x: np.ndarray) -> np.ndarray:
    """16 parts of 16 with a scale of 8 bits each."""
    low = _bits(x[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 2, 4, 32)
    high = _bits(x[:, 128:192].reshape(-1, 2, 32), 2)
    codes = (low | high << 4).astype(np.float32) - 32
    scales = _float16(x[:, 208:]) * x[:, 192:208].view(np.int8)
    return scales[..., None] * codes.reshape(-1, 16, 16)


# What four bits of the next two formats stand for. Source: ggml, IQ4_NL.
IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def _iq4_nl(x: np.ndarray) -> np.ndarray:
    return _float16(x[:, :2]) * IQ4[_halves(x[:, 2:])]


def _iq4_xs(x: np.ndarray) -> np.ndarray:
    """8 parts of 32 with a scale of 6 bits each."""
    low = _bits(x[:, 4:8, None], 4).reshape(-1, 8)
    high = _bits(x[:, 2:4, None], 2).reshape(-1, 8)
    scales = _float16(x[:, :2]) * ((low | high << 4).astype(np.float32) - 32)
    return scales[..., None] * IQ4[_halves(x[:, 8:].reshape(-1, 8, 16))]


class Format(NamedTuple):
    """Blocks of so many elements and bytes, and their numbers, of rows of one block each."""

    elements: int
    bytes: int
    real: Callable[[np.ndarray], np.ndarray]


# By the number that ggml gives its types. Source: ggml, the layouts of its blocks.
FORMATS = {
    0: Format(1, 4, lambda x: x.view(np.float32)),
    1: Format(1, 2, _float16),
    2: Format(32, 18, _q4_0),
    6: Format(32, 22, _q5_0),
    8: Format(32, 34, _q8_0),
    13: Format(256, 176, _q5_k),
    14: Format(256, 210, _q6_k),
    20: Format(32, 18, _iq4_nl),
    23: Format(256, 136, _iq4_xs),
    30: Format(1, 2, lambda x: x.view(ml_dtypes.bfloat16).astype(np.float32)),
}


@op("com.microsoft::GatherPacked")
class GatherPacked:
    """Rows of a table of packed numbers, made floats; an index that is out of range is row 0.

    Shapes: data (rows, bytes), y (.., K).
    """

    signature = "data: uint8, indices: index -> y"
    attributes = {"K": None, "output_dtype": dtypes.BFLOAT16, "packed_type": None}

    def infer(node: Node) -> list[Type]:
        known_format, K, to = (node.attrs[key] for key in ("packed_type", "K", "output_dtype"))
        if known_format not in FORMATS:
            raise UnsupportedOp(
                f"{where_is(node)} packed_type={known_format} is not supported, but "
                f"{', '.join(map(str, FORMATS))}"
            )
        block = FORMATS[known_format]
        if K is None or K < 1 or K % block.elements:
            raise ModelError(f"{where_is(node)} K is {K}: expected a multiple of {block.elements}")
        if to not in (dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16):
            raise ModelError(
                f"{where_is(node)} output_dtype is {to}, which is no float of 16 or 32 bits"
            )
        return [Type(to, (*dims(node, 1), K))]

    def reference(node: Node, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        block, K = FORMATS[node.attrs["packed_type"]], node.attrs["K"]
        size = K // block.elements * block.bytes
        if data.ndim != 2 or data.shape[1] != size or (not len(data) and indices.size):
            raise DataError(
                f"{where_is(node)} data is {list(data.shape)}: expected rows of {size} bytes"
            )
        at = np.where((indices >= 0) & (indices < len(data)), indices, 0)
        rows = np.ascontiguousarray(data[at.ravel()]).reshape(-1, block.bytes)
        y = block.real(rows).reshape(*indices.shape, K)
        return y.astype(dtypes.DTYPES[node.attrs["output_dtype"]].numpy)
