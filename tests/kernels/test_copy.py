"""copy: permutations, slices, expansion and writes into parts of a buffer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.kernels.harness import padded
from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads as run_op


def copy(
    x: np.ndarray, source: np.ndarray, y: np.ndarray, target: np.ndarray, threads=(1, 2, 3, 8)
) -> np.ndarray:
    """Copies view `source` of array x to view `target` of array y, by every kernel."""
    size = x.itemsize
    given = {"elem_bytes": size, "ndim": source.ndim, "shape": padded(source.shape)}
    for name, whole, part in (("x", x, source), ("y", y, target)):
        given[f"{name}_stride"] = padded([s // size for s in part.strides])
        given[f"{name}_offset"] = (part.ctypes.data - whole.ctypes.data) // size if part.size else 0
    first, *others = (
        run_op("copy", row, threads=threads, x=x, y=y, **given)[0] for row in kernels("copy")
    )
    for other in others:
        assert other.tobytes() == first.tobytes()
    return first


def check(x: np.ndarray, source: np.ndarray, threads=(1, 3)) -> None:
    y = np.zeros(source.shape, x.dtype)
    np.testing.assert_array_equal(copy(x, source, y, y, threads), source)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64", "complex128"])
def test_permutations(dtype):
    rng = np.random.default_rng(12)
    for shape in (
        (2, 3, 4, 5),
        (1, 17, 1, 9),
        (3, 16, 20),
        (2, 5, 4, 4, 3),
        (33, 35),
        (7, 9, 2, 2),
    ):
        x = rng.integers(0, 100, shape).astype(dtype)
        for order in itertools.permutations(range(len(shape))):
            check(x, x.transpose(order), threads=(1,))


def test_large_permutations():
    x = np.arange(200 * 12 * 66, dtype=np.float32).reshape(200, 12, 66)
    for order in itertools.permutations(range(3)):
        check(x, x.transpose(order), (1, 2, 3, 8))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "int64"])
@pytest.mark.parametrize("channels", [2, 3, 4, 5])
def test_images_between_planes_and_pixels(dtype, channels):
    """Few channels, and more pixels than a unit has: threads share them."""
    size = np.iinfo(dtype).max if dtype != "float32" else 1 << 24
    images = np.arange(2 * 20_003 * channels) % size
    pixels = images.reshape(2, 20_003, channels).astype(dtype)
    check(pixels, pixels.transpose(0, 2, 1), (1, 3))
    check(pixels, pixels[:, 5:-6].transpose(0, 2, 1), (1, 3))
    planes = images.reshape(2, channels, 20_003).astype(dtype)
    check(planes, planes.transpose(0, 2, 1), (1, 3))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_transposition_edges(dtype):
    rng = np.random.default_rng(9)
    for rows, cols in itertools.product((1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 70), repeat=2):
        x = rng.integers(0, 256, (2, rows, cols)).astype(dtype)
        check(x, x.transpose(0, 2, 1))
        y = np.zeros((2, cols, rows + 3), dtype)  # between what stays as it is
        expected = y.copy()
        expected[..., 1 : rows + 1] = x.transpose(0, 2, 1)
        target = y[..., 1 : rows + 1]
        np.testing.assert_array_equal(copy(x, x.transpose(0, 2, 1), y, target, (1,)), expected)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_short_runs(dtype):
    """Runs of 2 and 4 elements move as one, if what is around them is a multiple of them."""
    x = np.arange(6 * 5 * 9 * 4).reshape(6, 5, 9, 4).astype(dtype)
    for n in (2, 3, 4):
        for part in (x[..., :n], x[:, :, ::2, :n], x[:, ::-1, :, -n:]):
            check(x, part.transpose(1, 0, 2, 3))
            check(x, part.transpose(2, 1, 0, 3), threads=(1,))
    odd = np.arange(6 * 5 * 9, dtype=dtype if dtype != "uint8" else "int8").reshape(6, 5, 9)
    for n in (2, 4):
        check(odd, odd[..., :n].transpose(1, 0, 2))
        check(odd, np.broadcast_to(odd[:, :1, :n], (6, 70, n)))


def test_short_runs_end_where_they_end():
    """Columns of a Concat: what is left behind pieces is moved by its end, which overlaps them."""
    for width in (*range(1, 70), 255, 256, 257, 500, 511, 512, 513):
        x = np.arange(70 * width).reshape(70, width).astype(np.uint8)
        y = np.full((70, width + 5), 255, np.uint8)
        expected = y.copy()
        expected[:, 3 : 3 + width] = x
        np.testing.assert_array_equal(copy(x, x, y, y[:, 3 : 3 + width]), expected)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_slices_and_expansion(dtype):
    x = np.arange(4 * 9 * 10).reshape(4, 9, 10).astype(dtype)
    for part in (
        x[:, ::2],
        x[::-1, :, ::-1],
        x[1:3, 2:, 3:9:2],
        x[:, :, 4:5],
        x[:, ::-3, 7:1:-2],
        x[0:0],
        x[3, 5],
    ):
        check(x, part)
    check(x, np.broadcast_to(x[:, None, :, :1], (4, 3, 9, 10)))
    check(x, np.broadcast_to(x[0, 0, :1], (50,)))
    check(x, x.reshape(-1)[5:6].reshape(()))
    check(x, np.broadcast_to(x[:1, :, 3:4].transpose(0, 2, 1), (2, 70, 9)))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "complex128"])
@pytest.mark.parametrize("block", [(1, 2), (2, 3), (3, 1), (4, 5), (9, 70)])
def test_blocks_again_and_again(dtype, block):
    """Tile of both axes: a block of repeated rows, made once and then copied, of any length."""
    x = np.arange(block[0] * block[1]).reshape(block).astype(dtype)
    for rows, columns in ((2, 3), (7, 2), (501, 4), (3, 0), (0, 3)):
        tiled = np.broadcast_to(x[None, :, None], (rows, block[0], columns, block[1]))
        check(x, tiled, (1, 2, 3, 8))
        check(x, np.broadcast_to(tiled, (2, *tiled.shape)))
    y = np.full((5, 3, 2, 4), 77, dtype)
    expected = y.copy()
    expected[..., 1:3] = x[:1, :2] if block[1] > 1 else x[0, 0]
    part = np.broadcast_to(x[:1, : min(block[1], 2)], (5, 3, 2, 2))
    np.testing.assert_array_equal(copy(x, part, y, y[..., 1:3]), expected)


def test_writes_only_its_part():
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    y = np.full((3, 7, 5), -1, np.float32)
    expected = y.copy()
    expected[:, 2:6] = x
    np.testing.assert_array_equal(copy(x, x, y, y[:, 2:6]), expected)
    y = np.full((5, 4, 8), -1, np.float32)
    expected = y.copy()
    expected[:, :, 1:7:2] = x.transpose(2, 1, 0)
    np.testing.assert_array_equal(copy(x, x.transpose(2, 1, 0), y, y[:, :, 1:7:2]), expected)
