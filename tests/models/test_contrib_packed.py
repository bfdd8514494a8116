"""Weights of com.microsoft in packed blocks beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from q7x2_ep.errors import DataError, ModelError, UnsupportedOp
from q7x2_ep.session import Session
from tests.models.beside import one_node, same

FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16


def blocks(random: np.random.Generator, count: int, has_zeros: bool) -> np.ndarray:
    """Of MatMulFpQ4, of scales around 1."""
    scales = random.uniform(0.5, 2, (count, 1)).astype(np.float32).view(np.uint8)
    parts = [scales, random.integers(0, 16, (count, int(has_zeros)))]
    parts.append(random.integers(0, 256, (count, 16)))
    return np.concatenate([part.astype(np.uint8) for part in parts], 1).ravel()


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("K, N", [(32, 1), (64, 5), (40, 7), (130, 16)])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3)])
def test_products(kind: int, K: int, N: int, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng([kind, K, N])
    a = random.standard_normal((*shape, K)).astype(np.float32)
    b = blocks(random, N * -(-K // 32), kind == 1)
    same(
        *("MatMulFpQ4", [a, b, np.array([K, N])]),
        fixed=(1, 2),
        symbols={3: "T"},
        blk_quant_type=kind,
    )


def test_product_of_too_few_bytes() -> None:
    inputs = [np.zeros((2, 32), np.float32), np.zeros(99, np.uint8), np.array([32, 4])]
    model = one_node("MatMulFpQ4", inputs, (FLOAT,), fixed=(1, 2))[0]
    with pytest.raises(ModelError, match="x1 has 99 bytes: expected 84"):
        Session(model)


# The number of a format, elements and bytes of its blocks, and where these have scales of 16 bits.
FORMATS = [
    *((0, 1, 4, ()), (1, 1, 2, ()), (30, 1, 2, ()), (2, 32, 18, (0,)), (6, 32, 22, (0,))),
    *((8, 32, 34, (0,)), (13, 256, 176, (0, 2)), (14, 256, 210, (208,)), (20, 32, 18, (0,))),
    (23, 256, 136, (0,)),
]


def table(random: np.random.Generator, rows: int, count: int, format: tuple) -> np.ndarray:
    number, _, size, scales = format
    if not scales:
        x = random.standard_normal((rows, count)).astype(np.float32)
        whole = {0: x, 1: x.astype(np.float16), 30: x.view(np.uint16)[:, 1::2].copy()}[number]
        return whole.view(np.uint8)
    x = random.integers(0, 256, (rows, count, size)).astype(np.uint8)
    for at in scales:
        scale = random.uniform(-1, 1, (rows, count, 1)).astype(np.float16)
        x[..., at : at + 2] = scale.view(np.uint8)
    return x.reshape(rows, -1)


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [1, 3])
def test_rows(format: tuple, dtype: Any, count: int) -> None:
    random = np.random.default_rng(format[0])
    data = table(random, 5, count, format)
    attrs: dict[str, Any] = {"packed_type": format[0], "K": count * format[1]}
    for shape in ((), (4,), (2, 0), (2, 3)):
        indices = random.integers(-2, 7, shape).astype(dtype)
        for to in (FLOAT, FLOAT16):
            inputs = [data, np.asarray(indices)]
            same("GatherPacked", inputs, (to,), atol=0, rtol=1e-6, output_dtype=to, **attrs)


def test_rows_that_do_not_fit() -> None:
    inputs = [np.zeros((2, 17), np.uint8), np.array([1])]
    attrs = {"K": 32, "output_dtype": FLOAT}
    model, feeds = one_node("GatherPacked", inputs, (FLOAT,), packed_type=2, **attrs)
    with pytest.raises(DataError, match="expected rows of 18 bytes"):
        Session(model).run(feeds)
    with pytest.raises(UnsupportedOp, match="packed_type=16"):
        Session(one_node("GatherPacked", inputs, (FLOAT,), packed_type=16, **attrs)[0])
    attrs["K"] = 33
    with pytest.raises(ModelError, match="K is 33"):
        Session(one_node("GatherPacked", inputs, (FLOAT,), packed_type=2, **attrs)[0])
