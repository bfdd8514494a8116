"""Rare ops of com.microsoft beside onnxruntime, over drawn contents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from q7x2_ep.errors import DataError, ModelError, UnsupportedOp
from q7x2_ep.session import Session
from tests.models.beside import one_node, same, theirs, weights

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
each_draw = pytest.mark.parametrize("seed", range(8))


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("seed", range(24))
def test_bifurcation(seed: int) -> None:
    """Few different tokens, so that n-grams come again."""
    random = np.random.default_rng(seed)
    source, current = (random.integers(0, 3, random.integers(1, 9)) for _ in range(2))
    previous = int(random.integers(0, len(source)))
    predicted = np.append(source[previous:], 1)
    predicted[random.random(len(predicted)) < 0.2] = 2
    least = int(random.integers(1, 3))
    attrs = {"min_ngram_size": least, "max_ngram_size": int(random.integers(least, 5))}
    for more in ([predicted], []):
        inputs = [source, current, np.array(previous), *more]
        same("BifurcationDetector", inputs, (INT64, INT64), **attrs)


@each_draw
def test_repeated_ngrams(seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 4, (3, 9))
    same("NGramRepeatBlock", [ids, floats(seed, 3, 5)], ngram_size=1 + seed % 4)


@each_draw
def test_time_warping(seed: int) -> None:
    """Whole costs, which meet each other, and others."""
    whole = np.random.default_rng(seed).integers(0, 4, (1, 5, 7)).astype(np.float32)
    for cost in (whole, floats(seed, 6, 4)):
        same("DynamicTimeWarping", [cost], (INT32,))


@each_draw
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crops(seed: int, mode: str) -> None:
    random = np.random.default_rng(seed)
    boxes = random.uniform(-0.3, 1.3, (4, 4)).astype(np.float32)
    images, size = (random.integers(0, high, n).astype(np.int32) for high, n in ((2, 4), (5, 2)))
    inputs = [floats(seed, 2, 3, 6, 7), boxes, images, size + 1]
    fixed = (3,) if seed % 2 else ()
    same("CropAndResize", inputs, fixed=fixed, mode=mode, extrapolation_value=0.5)


@each_draw
def test_words(seed: int) -> None:
    """Of three characters or more: what onnxruntime makes of shorter ones is not defined."""
    random = np.random.default_rng(seed)
    words = random.integers(1, 9, (6, 8)) * (np.arange(8) < random.integers(3, 8, (6, 1)))
    tables = [floats(seed, *shape) for shape in ((4, 1, 3, 5), (4,), (9, 5))]
    same("WordConvEmbedding", [words.astype(np.int32), *tables])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("positive", [0, 1])
def test_hashes(dtype: Any, positive: int) -> None:
    output = TensorProto.UINT32 if positive else INT32
    same("MurmurHash3", [np.arange(12, dtype=dtype)], (output,), positive=positive, seed=7)


def test_hashes_of_text() -> None:
    texts = np.array(["", "a", "abcde", "h\u00e4llo"], object)
    model, feeds = one_node("MurmurHash3", [texts], (TensorProto.UINT32,))
    np.testing.assert_array_equal(Session(model).run(feeds)[0], theirs(model, feeds)[0])


def test_others() -> None:
    for shape in ((2, 3, 3), (5, 5), (2, 1, 4, 4)):
        x, eps = floats(1, *shape), float(np.finfo(np.float32).eps)
        of_both = 2 * shape[-1] * eps * float(np.linalg.cond(x).max())
        same("Inverse", [x], rtol=of_both)
    for metric in ("euclidean", "sqeuclidean"):
        same("CDist", [floats(1, 3, 4), floats(2, 5, 4)], metric=metric)
    values = np.random.default_rng(1).integers(0, 4, 12).astype(np.float32)
    same("Unique", [values], (FLOAT, INT64, INT64))
    same("UnfoldTensor", [floats(1, 2, 9, 3)], dim=1, size=3, step=2)
    factors = [np.arange(-12, 12, dtype=np.int16).reshape(s) for s in ((2, 3, 4), (4, 6))]
    same("MatMulInteger16", factors, (INT32,))


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("directions", ["forward", "bidirectional"])
def test_lstm(per_column: bool, directions: str) -> None:
    """onnxruntime rounds the activations to 8 bits too; we do not."""
    random, count, hidden = np.random.default_rng(3), 1 + (directions == "bidirectional"), 6
    factors = [weights(random, np.int8, count, n, 4 * hidden) for n in (5, hidden)]
    shape = (count, 4 * hidden) if per_column else (count,)
    numbers = [random.uniform(0.001, 0.004, shape).astype(np.float32), np.zeros(shape, np.int8)] * 2
    inputs = [floats(1, 7, 2, 5), *factors, floats(2, count, 8 * hidden), *[None] * 4, *numbers]
    attrs = {"hidden_size": hidden, "direction": directions, "fixed": (1, 2, 3, 8, 9, 10, 11)}
    same("DynamicQuantizeLSTM", inputs, (FLOAT,) * 3, atol=0.02, rtol=0, **attrs)


def test_weights_of_an_lstm_are_made_once() -> None:
    """However large: as floats they are packed when a model is loaded."""
    hidden, random = 300, np.random.default_rng(3)
    factors = [weights(random, np.int8, 1, hidden, 4 * hidden) for _ in range(2)]
    numbers = [np.full(1, 0.01, np.float32), np.zeros(1, np.int8)] * 2
    inputs = [floats(1, 7, 2, hidden), *factors, *[None] * 5, *numbers]
    attrs = {"hidden_size": hidden, "fixed": (1, 2, 8, 9, 10, 11)}
    model, _ = one_node("DynamicQuantizeLSTM", inputs, (FLOAT,) * 3, **attrs)
    steps = [step.op for step in Session(model).program.steps]
    assert "rnn" in steps and not {"cast", "copy", "pack_b"} & set(steps)


@each_draw
@pytest.mark.parametrize(
    "sizes, attrs",
    [
        ((7,), {"kernel_shape": [3]}),
        ((7,), {"kernel_shape": [3], "strides": [2], "pads": [1, 2]}),
        ((5, 6), {"kernel_shape": [2, 3]}),
        ((5, 6), {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 0, 2]}),
        ((6, 6), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((4, 5, 3), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 1]}),
    ],
    ids=str,
)
def test_masked_pool(seed: int, sizes: tuple[int, ...], attrs: dict) -> None:
    random = np.random.default_rng(seed)
    mask = (random.random((1, 1, *sizes)) < 0.6).astype(np.int32)
    same("MaxpoolWithMask", [floats(seed, 2, 3, *sizes), mask], **attrs)
    same("MaxpoolWithMask", [floats(seed, 2, 3, *sizes), mask], symbols={5: "H", 7: "W"}, **attrs)


def test_masks_that_do_not_fit() -> None:
    x = floats(0, 2, 3, 5)
    for shape, error, words in (
        ((2, 3, 5), UnsupportedOp, "mask"),
        ((1, 5), ModelError, "as many dims"),
        ((1, 1, 4), DataError, r"expected \[1, 1, 5\]"),
    ):
        inputs = [x, np.ones(shape, np.int32)]
        model, feeds = one_node("MaxpoolWithMask", inputs, (FLOAT,), kernel_shape=[2])
        with pytest.raises(error, match=words):
            Session(model).run(feeds)


@pytest.mark.parametrize("op", ["MemcpyFromHost", "MemcpyToHost"])
def test_copies_between_devices(op: str) -> None:
    same(op, [floats(1, 2, 3)], domain="")
