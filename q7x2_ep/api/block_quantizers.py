"""The functions of onnxruntime's native module by which its tools quantize weights in blocks: for
MatMulNBits, for DequantizeLinear in blocks, and as bitsandbytes does. Each writes into arrays that
the caller has made, as the native ones do, and gives their bits.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from q7x2_ep.errors import RuntimeException

# Between which magnitudes FP4 changes its code, and between which numbers NF4 does.
FP4_STEPS = (0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333)
FP4_CODES = (0, 1, 6, 7, 4, 5, 2, 3)
NF4_STEPS = (
    *(-0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544),
    *(-0.23460740596055984, -0.13791173323988914, -0.045525018125772476, 0.03979014977812767),
    *(0.1202552504837513, 0.2035212516784668, 0.2920137718319893, 0.3893125355243683),
    *(0.5016634166240692, 0.6427869200706482, 0.8614784181118011),
)


def _columns(bits: int) -> Callable[..., None]:
    """The quantizer for MatMulNBits."""

    def quantize(
        y: np.ndarray,  # (n, blocks, block_size * bits / 8), bytes
        x: np.ndarray,  # (k, n)
        scales: np.ndarray,  # (n, blocks)
        zeros: np.ndarray,  # (n, blocks), packed
        block_size: int,
        n: int,
        k: int,
        is_symmetric: bool,
    ) -> None:
        _check_block_size(block_size)
        x = np.asarray(x).reshape(k, n)
        middle, most = 1 << (bits - 1), (1 << bits) - 1
        if is_symmetric:
            scale = _symmetric(x, block_size, middle)
            zero = np.full(scale.shape, middle)
        else:
            scale, zero = _asymmetric(x, block_size, most)
            bytes_each = -(-len(zero) * bits // 8)
            whole = np.full((n, bytes_each * 8 // bits), middle)
            whole[:, : len(zero)] = zero.T
            zeros[...] = _packed(whole, bits).reshape(zeros.shape)
        scales[...] = scale.T.reshape(scales.shape)
        part = _over(x, scale, block_size) + np.repeat(zero, block_size, 0)[:k].astype(np.float32)
        codes = np.zeros((n, len(scale) * block_size), np.int64)
        codes[:, :k] = np.clip(_rounded(part), 0, most).T
        y[...] = _packed(codes, bits).reshape(y.shape)

    return quantize


quantize_matmul_2bits, quantize_matmul_4bits, quantize_matmul_8bits = map(_columns, (2, 4, 8))


def quantize_qdq_matmul_4bits(
    y: np.ndarray,  # k * n numbers, packed
    x: np.ndarray,  # (k, n)
    scales: np.ndarray,  # (blocks, n)
    zeros: np.ndarray,  # blocks * n numbers, packed
    block_size: int,
    n: int,
    k: int,
    is_symmetric: bool,
) -> bool:
    """Whether the numbers are signed, as symmetric ones are."""
    x = np.asarray(x).reshape(k, n)
    if is_symmetric:
        scale, (least, most) = _symmetric(x, block_size, 8), (-8, 7)
        zero = np.zeros(scale.shape, np.int64)
    else:
        (scale, zero), (least, most) = _asymmetric(x, block_size, 15), (0, 15)
        zeros[...] = _packed(zero, 4).reshape(zeros.shape)
    scales[...] = scale.reshape(scales.shape)
    zero = np.repeat(zero, block_size, 0)[:k]
    codes = np.clip(_rounded(_over(x, scale, block_size)) + zero, least, most)
    y[...] = _packed(codes & 15, 4).reshape(y.shape)
    return bool(is_symmetric)


def quantize_matmul_bnb4(
    y: np.ndarray,  # n * k numbers, packed
    x: np.ndarray,  # (n, k)
    largest: np.ndarray,  # of each block of the flat array
    block_size: int,
    kind: int,
    n: int,
    k: int,
) -> None:
    """kind: 0 for FP4, 1 for NF4."""
    if kind not in (0, 1):
        raise RuntimeException("Invalid quant_type, only 0 (FP4) and 1 (NF4) are supported.")
    _check_block_size(block_size)
    flat = np.asarray(x).reshape(-1).astype(np.float32)
    most = np.maximum.reduceat(np.abs(flat), np.arange(0, flat.size, block_size))
    largest[...] = most.reshape(largest.shape)
    part = _over(flat, most, block_size)
    part = np.append(part, np.zeros(part.size % 2, np.float32))
    if kind == 1:
        codes = np.searchsorted(np.array(NF4_STEPS, np.float32), part)
    else:
        at = np.searchsorted(np.array(FP4_STEPS, np.float32), np.abs(part))
        codes = np.array(FP4_CODES)[at] + 8 * (part < 0)
    y[...] = (codes[::2] << 4 | codes[1::2]).reshape(y.shape)  # the first is in the upper half


def _check_block_size(block_size: int) -> None:
    if block_size not in (16, 32, 64, 128, 256):
        raise RuntimeException("only block size 16, 32, 64, 128, 256 are supported.")


def _symmetric(x: np.ndarray, block_size: int, half: int) -> np.ndarray:
    """The scales (blocks, n): what is furthest from 0 is -half, of which there is one more."""
    low, high = _range(x, block_size)
    return (-np.where(np.abs(high) > np.abs(low), high, low) / np.float32(half)).astype(x.dtype)


def _asymmetric(x: np.ndarray, block_size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points (blocks, n): of a range that has 0."""
    low, high = _range(x, block_size)
    low, high = np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0))
    scale = (high - low) / np.float32(most)
    with np.errstate(all="ignore"):
        zero = np.where(scale == 0, low, -low / scale)
    return scale.astype(x.dtype), _rounded(np.clip(zero, 0, most))


def _range(x: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    x, starts = x.astype(np.float32), np.arange(0, len(x), block_size)
    return np.minimum.reduceat(x, starts), np.maximum.reduceat(x, starts)


def _over(x: np.ndarray, scale: np.ndarray, block_size: int) -> np.ndarray:
    """x over the scales of its blocks; 0 where a scale is."""
    scale = scale.astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return x.astype(np.float32) * np.repeat(inverse, block_size, 0)[: len(x)]


def _rounded(x: np.ndarray) -> np.ndarray:
    """To the nearest integer, halves away from 0; in doubles, where adding a half is exact."""
    wide = x.astype(np.float64)
    return np.trunc(wide + np.copysign(0.5, wide)).astype(np.int64)


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """As bytes, the first of a byte in its lowest bits; rows in a row, without gaps."""
    from q7x2_ep.ops.blocks import packed  # which only a tool that quantizes needs

    return packed(codes.reshape(-1, 1), bits)
