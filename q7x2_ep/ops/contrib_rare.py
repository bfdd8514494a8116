"""Ops of the domain com.microsoft that few models have: in numpy, as host steps.

Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import infer_meaning
from q7x2_ep.ops.common import dims, fresh, known, normal_axis, where_is
from q7x2_ep.ops.pool import pool_axes


@op("com.microsoft::BifurcationDetector")
class BifurcationDetector:
    """The tokens so far with the predicted ones up to the first that differs from the source, and
    the end of the only place of the source that has the longest of their last n-grams, or -1.
    """

    signature = (
        "source: int64, current: int64, previous: int64, predicted?: int64 -> tokens, suffix_match"
    )
    attributes = {"max_ngram_size": 3, "min_ngram_size": 1}

    def infer(node: Node) -> list[Type]:
        return [Type(dtypes.INT64, fresh(node, 0, 1)), Type(dtypes.INT64, dims(node, 2))]

    def reference(
        node: Node,
        source: np.ndarray,
        current: np.ndarray,
        previous: np.ndarray,
        predicted: Optional[np.ndarray] = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        tokens = current
        if predicted is not None:
            rest = source[previous.item() :]
            if len(predicted) != len(rest) + 1:
                raise DataError(
                    f"{where_is(node)} predicts {len(predicted)} tokens for {len(rest)}"
                )
            differs = [*np.flatnonzero(rest != predicted[:-1]), len(rest)]
            tokens = np.concatenate((current, predicted[: differs[0] + 1]))
        match = -1
        for n in range(node.attrs["min_ngram_size"], node.attrs["max_ngram_size"] + 1):
            if n > min(len(tokens), len(source)):
                break
            windows = np.lib.stride_tricks.sliding_window_view(source, n)
            found = np.flatnonzero((windows == tokens[len(tokens) - n :]).all(1))
            if not len(found):
                break
            if len(found) == 1:
                match = int(found[0]) + n
                break
        return tokens, np.full(previous.shape, match, np.int64)


@op("com.microsoft::NGramRepeatBlock")
class NGramRepeatBlock:
    """The scores, -inf for a token that would repeat an n-gram of its row."""

    signature = "ids: int64, scores: float32 -> y"
    attributes = {"ngram_size": 0}
    infer = lambda node: [Type(node.inputs[1].dtype, dims(node, 1))]

    def reference(node: Node, ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        n, y = node.attrs["ngram_size"], scores.copy()
        for row, banned in zip(ids, y):
            if len(row) >= n:
                windows = np.lib.stride_tricks.sliding_window_view(row, n)
                same = (windows[:, :-1] == row[len(row) - n + 1 :]).all(1)
                banned[windows[same, -1]] = -np.inf
        return y


@op("com.microsoft::CDist")
class CDist:
    """c[i, j] = |a[i] - b[j]|, of rows of two matrices; or its square."""

    signature = "a: F, b: F -> c"
    attributes = {"metric": "sqeuclidean"}
    infer = infer_meaning

    def decompose(g: Any, a: Value, b: Value, metric: str) -> Value:
        if metric not in ("euclidean", "sqeuclidean"):
            raise UnsupportedOp(f"metric={metric!r} is not supported")
        squares = [g.ReduceSum(g.Mul(x, x), [1], keepdims=1) for x in (a, b)]
        product = g.Mul(g.MatMul(a, g.Transpose(b, perm=(1, 0))), 2.0)
        both = g.Add(squares[0], g.Transpose(squares[1], perm=(1, 0)))
        c = g.Max(g.Sub(both, product), 0.0)
        return g.Sqrt(c) if metric == "euclidean" else c


@op("com.microsoft::Unique")
class Unique:
    """The values of x in the order in which they first come, where each is, and how often."""

    signature = "x -> y, idx, counts"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        (size,) = fresh(node, 0, 1)
        types = (node.inputs[0].dtype, size), (dtypes.INT64, dims(node)[0]), (dtypes.INT64, size)
        return [Type(dtype, (dim,)) for dtype, dim in types]

    def reference(node: Node, x: np.ndarray) -> tuple[np.ndarray, ...]:
        values, first, idx, counts = np.unique(x, True, True, True)
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return values[order], place[idx].astype(np.int64), counts[order].astype(np.int64)


@op("com.microsoft::UnfoldTensor")
class UnfoldTensor:
    """The windows of `size` along a dim, every `step` of them, as a last axis."""

    signature = "x -> y"
    attributes = {"dim": -1, "size": 1, "step": 1}

    def infer(node: Node) -> list[Type]:
        shape, size, step = dims(node), node.attrs["size"], node.attrs["step"]
        axis = normal_axis(node, node.attrs["dim"], len(shape))
        count = (shape[axis] - size) // step + 1
        found = (*shape[:axis], count, *shape[axis + 1 :], size)
        return [Type(node.inputs[0].dtype, found)]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        axis = node.attrs["dim"] % x.ndim
        windows = np.lib.stride_tricks.sliding_window_view(x, node.attrs["size"], axis)
        return np.take(windows, range(0, windows.shape[axis], node.attrs["step"]), axis)


@op("com.microsoft::MatMulInteger16")
class MatMulInteger16:
    """a @ b of int16, in int32."""

    signature = "a: I, b: I1 -> y"
    attributes: dict = {}
    infer = infer_meaning

    def decompose(g: Any, a: Value, b: Value) -> Value:
        return g.MatMul(*(g.Cast(x, to=dtypes.INT32) for x in (a, b)))


@op("com.microsoft::WordConvEmbedding")
class WordConvEmbedding:
    """y[w] = max over places of tanh(conv(characters of word w) + bias).

    Shapes: sequence (W, L), of which 0 ends a word, w (F, 1, width, C), bias (F,), the table of
    characters (chars, C), y (W, F).
    """

    signature = "sequence: int32, w: float32, bias: float32, table: float32 -> y"
    attributes = {"char_embedding_size": None, "conv_window_size": None, "embedding_size": None}
    infer = lambda node: [Type(node.inputs[1].dtype, (dims(node)[0], dims(node, 1)[0]))]

    def reference(
        node: Node, sequence: np.ndarray, w: np.ndarray, bias: np.ndarray, table: np.ndarray
    ) -> np.ndarray:
        filters, _, width, _ = w.shape
        y = np.zeros((len(sequence), filters), w.dtype)
        for word, row in zip(sequence, y):
            ends = np.flatnonzero(word <= 0)
            length = max(ends[0] if len(ends) else len(word), width if len(word) >= width else 0)
            if not len(ends) or ends[0] > 0:
                windows = np.lib.stride_tricks.sliding_window_view(table[word[:length]], width, 0)
                sums = np.einsum("pcw,fwc->pf", windows, w[:, 0])
                row[:] = np.tanh(sums + bias).max(0)
        return y


@op("com.microsoft::MurmurHash3")
class MurmurHash3:
    """The 32-bit hash of each element, MurmurHash3_x86_32; of int32 where positive is 0."""

    signature = "x -> y"
    attributes = {"positive": 1, "seed": 0}
    infer = lambda node: [
        Type(dtypes.UINT32 if node.attrs["positive"] else dtypes.INT32, dims(node))
    ]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        flat = [t.encode() if isinstance(t, str) else np.asarray(t).tobytes() for t in x.ravel()]
        found = np.array([murmur(t, node.attrs["seed"]) for t in flat], np.uint32).reshape(x.shape)
        return found if node.attrs["positive"] else found.view(np.int32)


def murmur(data: bytes, seed: int) -> int:
    """Source: Appleby, smhasher, MurmurHash3_x86_32."""
    mask = 0xFFFFFFFF

    def turned(x: int, by: int) -> int:
        return (x << by | x >> 32 - by) & mask

    def mixed(block: bytes) -> int:
        return turned(int.from_bytes(block, "little") * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask

    h, whole = seed & mask, len(data) // 4 * 4
    for i in range(0, whole, 4):
        h = (turned(h ^ mixed(data[i : i + 4]), 13) * 5 + 0xE6546B64) & mask
    if data[whole:]:
        h ^= mixed(data[whole:])
    h ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor & mask
    return h


@op("com.microsoft::DynamicTimeWarping")
class DynamicTimeWarping:
    """The path (2, steps) of the lowest cost from the first to the last place of a matrix, by steps
    down, right or both; a tie goes along the diagonal, then down.
    """

    signature = "cost: float32 -> path"
    attributes: dict = {}
    infer = lambda node: [Type(dtypes.INT32, (2, fresh(node, 0, 2)[1]))]

    def reference(node: Node, cost: np.ndarray) -> np.ndarray:
        cost = cost.reshape(cost.shape[-2:])
        rows, columns = cost.shape
        total = np.full((rows + 1, columns + 1), np.inf, cost.dtype)
        came = np.zeros((rows + 1, columns + 1), np.int8)
        total[0, 0] = 0
        for j in range(1, columns + 1):
            for i in range(1, rows + 1):
                before = (total[i - 1, j - 1], total[i - 1, j], total[i, j - 1])
                if before[0] < before[1] and before[0] < before[2]:
                    came[i, j] = 0
                elif before[1] < before[0] and before[1] < before[2]:
                    came[i, j] = 1
                else:
                    came[i, j] = 2
                total[i, j] = cost[i - 1, j - 1] + before[came[i, j]]
        came[0, :], came[:, 0] = 2, 1
        path, i, j = [], rows, columns
        while i > 0 or j > 0:
            path.append((i - 1, j - 1))
            step = came[i, j]
            i, j = i - (step != 2), j - (step != 1)
        return np.array(path[::-1], np.int32).T


@op("com.microsoft::CropAndResize")
class CropAndResize:
    """Boxes of images, each resized to one size; corners lie on corners.

    Shapes: x (N, C, H, W), boxes (R, 4) as y1, x1, y2, x2 in parts of the image, images (R,), y
    (R, C, height, width).
    """

    signature = "x: F, boxes: F, images: int32, size: int32 -> y"
    attributes = {"extrapolation_value": 0.0, "mode": "bilinear"}

    def infer(node: Node) -> list[Type]:
        size = known(node.inputs[3]) or fresh(node, 0, 4)[2:]
        return [Type(node.inputs[0].dtype, (dims(node, 1)[0], dims(node)[1], *size))]

    def reference(
        node: Node, x: np.ndarray, boxes: np.ndarray, images: np.ndarray, size: np.ndarray
    ) -> np.ndarray:
        height, width = size.tolist()
        y = np.full(
            (len(boxes), x.shape[1], height, width), node.attrs["extrapolation_value"], x.dtype
        )
        for box, image, crop in zip(boxes, images, y):
            places = [
                places_of(box[i], box[i + 2], n, count)
                for i, n, count in ((0, x.shape[2], height), (1, x.shape[3], width))
            ]
            inside = [(at >= 0) & (at <= n - 1) for at, n in zip(places, x.shape[2:])]
            rows, columns = (at[keep] for at, keep in zip(places, inside))
            crop[:, np.ix_(*inside)[0], np.ix_(*inside)[1]] = sampled(
                x[image], rows, columns, node.attrs["mode"]
            )
        return y


def places_of(first: float, last: float, n: int, count: int) -> np.ndarray:
    """Where `count` samples from first to last, in parts of n - 1, are; one lies in the middle."""
    if count == 1:
        return np.array([0.5 * (first + last) * (n - 1)])
    return first * (n - 1) + np.arange(count) * ((last - first) * (n - 1) / (count - 1))


def sampled(x: np.ndarray, rows: np.ndarray, columns: np.ndarray, mode: str) -> np.ndarray:
    """x (C, H, W) at every row and column."""
    if mode == "nearest":
        at = (np.floor(places + 0.5).astype(int) for places in (rows, columns))
        return x[:, (grid := np.ix_(*at))[0], grid[1]]
    for axis, places in ((1, rows), (2, columns)):
        low = np.floor(places).astype(int)
        share = (places - low).astype(x.dtype).reshape((-1, 1) if axis == 1 else (-1,))
        high = np.minimum(low + 1, x.shape[axis] - 1)
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


@op("com.microsoft::MaxpoolWithMask")
class MaxpoolWithMask:
    """MaxPool of what a mask leaves: of each row of a window, what is before its first 0; the
    lowest float where that is nothing. The first element of a plane or volume is always left.

    Shapes: x (N, C, ..), mask (1, 1, ..).
    """

    signature = "x: float32, mask: int32 -> y"
    attributes = {
        "auto_pad": "NOTSET",
        "kernel_shape": None,
        "pads": None,
        "storage_order": 0,
        "strides": None,
    }

    def infer(node: Node) -> list[Type]:
        x, mask = dims(node), dims(node, 1)
        if len(mask) != len(x):
            raise ModelError(
                f"{where_is(node)} mask is {mask}: expected as many dims as x has, {x}"
            )
        if mask[:2] != (1, 1):  # onnxruntime reads others from wrong places
            raise UnsupportedOp(f"{where_is(node)} is not supported with a mask {mask} of channels")
        axes = pool_axes(node, x)
        return [Type(node.inputs[0].dtype, (*x[:2], *(axis.out for axis in axes)))]

    def reference(node: Node, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if mask.shape[2:] != x.shape[2:]:
            raise DataError(
                f"{where_is(node)} mask is {list(mask.shape)}: expected [1, 1, "
                f"{', '.join(map(str, x.shape[2:]))}]"
            )
        axes, lowest = pool_axes(node, x.shape), np.finfo(x.dtype).min
        around = [(0, 0), (0, 0)]
        around += [(axis.before, max(0, axis.after)) for axis in axes]
        kept = mask != 0
        if len(axes) > 1 and kept.size:
            kept.reshape(-1)[0] = True
        kernel, inner = [axis.kernel for axis in axes], tuple(range(2, x.ndim))
        steps = (slice(None), slice(None), *(slice(None, None, axis.stride) for axis in axes))

        def windows(array: np.ndarray, fill: Any) -> np.ndarray:
            wide = np.pad(array, around, constant_values=fill)
            return np.lib.stride_tricks.sliding_window_view(wide, kernel, inner)[steps]

        left = np.logical_and.accumulate(windows(kept, True), -1)
        over = tuple(range(-len(axes), 0))
        return np.where(left, windows(x, lowest), lowest).max(over, initial=lowest)
