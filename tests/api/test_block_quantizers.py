"""Weights in blocks are quantized as onnxruntime's native module does it, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from q7x2_ep.api import block_quantizers
from q7x2_ep.errors import RuntimeException

native = pytest.importorskip("onnxruntime.capi._pybind_state")

RANDOM = np.random.default_rng(5)
SHAPES = [(64, 8, 16), (100, 3, 32), (16, 130, 16), (35, 1, 32), (48, 5, 64)]  # k, n, block
MAKE = {
    "normal": RANDOM.standard_normal,
    "positive": RANDOM.random,
    "halves": lambda shape: RANDOM.integers(-4, 5, shape) / 2,
    "zero": np.zeros,
}
every = [
    pytest.mark.parametrize("kind", MAKE),
    pytest.mark.parametrize("dtype", [np.float32, np.float16]),
    pytest.mark.parametrize(("k", "n", "block"), SHAPES),
]


def each(test: Any) -> Any:
    for mark in every:
        test = mark(test)
    return test


def same(name: str, x: np.ndarray, sizes: list, *how: Any) -> list[np.ndarray]:
    """What both write into (shape, dtype), and return, which is the same."""
    made = []
    for module in (native, block_quantizers):
        arrays = [np.zeros(shape, dtype) for shape, dtype in sizes]
        result = getattr(module, name)(arrays[0], x, *arrays[1:], *how)
        made.append([*arrays, result])
    for ours, theirs in zip(made[1][1:], made[0][1:]):
        np.testing.assert_array_equal(ours, theirs)
    return [made[0][0], made[1][0]]


@each
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_columns(bits, symmetric, kind, dtype, k, n, block):
    x = MAKE[kind]((k, n)).astype(dtype)
    blocks = -(-k // block)
    zeros = (n, -(-blocks * bits // 8))
    sizes = [((n, blocks, block * bits // 8), np.uint8), ((n, blocks), dtype), (zeros, np.uint8)]
    found = same(f"quantize_matmul_{bits}bits", x, sizes, block, n, k, symmetric)
    ours, theirs = (  # where a block is not full, theirs holds what was there before
        np.unpackbits(y.reshape(n, -1), 1, bitorder="little")[:, : k * bits] for y in found
    )
    np.testing.assert_array_equal(ours, theirs)


@each
@pytest.mark.parametrize("symmetric", [False, True])
def test_rows(symmetric, kind, dtype, k, n, block):
    x = MAKE[kind]((k, n)).astype(dtype)
    blocks = -(-k // block)
    sizes = [
        ((-(-k * n // 2),), np.uint8),
        ((blocks, n), dtype),
        ((-(-blocks * n // 2),), np.uint8),
    ]
    ours, theirs = same("quantize_qdq_matmul_4bits", x, sizes, block, n, k, symmetric)
    np.testing.assert_array_equal(ours, theirs)


@each
@pytest.mark.parametrize("quant_type", [0, 1])
def test_bitsandbytes(quant_type, kind, dtype, k, n, block):
    x = MAKE[kind]((n, k)).astype(dtype)
    sizes = [((-(-k * n // 2),), np.uint8), ((-(-k * n // block),), dtype)]
    ours, theirs = same("quantize_matmul_bnb4", x, sizes, block, quant_type, n, k)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("block", "quant_type"), [(24, 0), (32, 2)])
def test_what_there_is_not(block, quant_type):
    x, y, largest = np.ones((4, 32), np.float32), np.zeros(64, np.uint8), np.zeros(6, np.float32)
    with pytest.raises(RuntimeException):
        block_quantizers.quantize_matmul_bnb4(y, x, largest, block, quant_type, 4, 32)
