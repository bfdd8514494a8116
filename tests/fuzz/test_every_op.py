"""Native ops whose operands hang together, on random shapes, attributes and dtypes, against onnx's
own evaluator or onnxruntime; and the list of where each native op is held against another engine.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from q7x2_ep.ops import entries
from q7x2_ep.session import Session
from tests.fuzz import test_every_dtype as elementwise
from tests.fuzz import test_random_windows as windows
from tests.kernels import test_against_ort as moving
from tests.models.beside import weights

onnxruntime = pytest.importorskip("onnxruntime")

WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
Arrays = list[Optional[np.ndarray]]


class Made(NamedTuple):
    """Operands, attributes, number of outputs. fixed: operands that may be constants. close: how
    far a quantised result may be off.
    """

    inputs: Arrays
    attrs: Optional[dict[str, Any]] = None
    outputs: int = 1
    fixed: tuple[int, ...] = ()
    close: int = 0


class Choice:
    """What a case is made of."""

    def __init__(self, draw: Any):
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def among(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def size(self, low: int = 1, high: int = 4) -> int:
        return self.draw(st.integers(low, high))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def maybe(self, x: Any) -> Any:
        return x if self.flag() else None

    def shape(self, least: int = 0, most: int = 4, low: int = 0) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(st.integers(low, 4), min_size=least, max_size=most)))

    def floats(self, *shape: int, dtype: Any = "float32") -> np.ndarray:
        """Eighths: no two are so close that a norm would magnify how they were rounded."""
        return np.asarray(self.random.integers(-24, 25, shape) / 8).astype(dtype)

    def whole(self, low: int, high: int, *shape: int, dtype: Any = "int64") -> np.ndarray:
        return np.asarray(self.random.integers(low, high, shape)).astype(dtype)

    def bytes(self, *shape: int, dtype: str) -> np.ndarray:
        limits = np.iinfo(dtype)
        return self.whole(limits.min, limits.max + 1, *shape, dtype=dtype)

    def weights(self, *shape: int, dtype: str) -> np.ndarray:
        """Bytes that onnxruntime multiplies exactly."""
        return weights(self.random, dtype, *shape)

    def scale(self, *shape: int) -> np.ndarray:
        return np.asarray(self.random.uniform(0.02, 0.3, shape)).astype("float32")


def attention(c: Choice) -> Made:
    batch, groups, per_group = c.size(1, 2), c.size(1, 2), c.size(1, 2)
    heads, queries, keys, past = groups * per_group, c.size(), c.size(), c.among(0, 0, 3)
    d, dv = c.among(4, 8), c.among(4, 8)
    q, k, v = (
        c.floats(batch, h, s, n)
        for h, s, n in ((heads, queries, d), (groups, keys, d), (groups, keys, dv))
    )
    attrs: dict[str, Any] = {"is_causal": c.size(0, 1), "softcap": c.among(0.0, 2.0)}
    if c.flag():
        attrs["scale"] = 0.3
    if c.flag():
        q, k, v = (np.moveaxis(x, 1, 2).reshape(batch, x.shape[2], -1) for x in (q, k, v))
        attrs.update(q_num_heads=heads, kv_num_heads=groups)
    mask = c.maybe(c.floats(*c.among((), (1,), (batch, heads)), queries, keys + past))
    if mask is not None and mask.ndim == 3:
        mask = mask[0]
    caches = [c.floats(batch, groups, past, n) for n in (d, dv)] if past else []
    return Made([q, k, v, mask, *caches], attrs, 3 if past else 1)


def batch_norm(c: Choice) -> Made:
    x = c.floats(*c.shape(1, 1), n := c.size(), *c.shape(0, 3), dtype=c.among("f4", "f8"))
    rows = [c.floats(n, dtype=x.dtype) for _ in range(3)]
    rows.append(np.abs(c.floats(n, dtype=x.dtype)) + 0.1)
    return Made([x, *rows], {"epsilon": c.among(1e-5, 0.1)}, fixed=(1, 2, 3, 4))


def bit_cast(c: Choice) -> Made:
    of, to = c.among(("float32", 6), ("int32", 1), ("float64", 7), ("uint64", 11), ("uint8", 3))
    return Made([c.floats(*c.shape()).astype(of)], {"to": to})


def cast(c: Choice) -> Made:
    of, to = (c.among(*WHOLE, "float32", "float64", "bool") for _ in range(2))
    x = c.whole(0, 100, *c.shape()).astype(of)
    return Made([x], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))})


def cast_like(c: Choice) -> Made:
    x = c.whole(0, 100, *c.shape()).astype(c.among(*WHOLE, "float32", "bool"))
    return Made([x, np.ones(c.size(), c.among(*WHOLE, "float32", "float64"))])


def clip(c: Choice) -> Made:
    x = c.whole(0, 9, *c.shape()).astype(c.among(*WHOLE, "float32", "float64"))
    low, high = c.maybe(np.array(2, x.dtype)), np.array(c.size(0, 6), x.dtype)
    return Made([x, low, high], fixed=(2,))


def columns(c: Choice) -> Made:
    n = c.size(1, 3)
    kernel, strides, dilations, begin, end = (
        [c.size(low, high) for _ in range(n)]
        for low, high in ((1, 3), (1, 2), (1, 2), (0, 1), (0, 1))
    )
    image = [(k - 1) * d + c.size() for k, d in zip(kernel, dilations)]
    places = 1
    for i in range(n):
        span = image[i] + begin[i] + end[i] - (kernel[i] - 1) * dilations[i] - 1
        places *= span // strides[i] + 1
    x = c.floats(c.size(1, 2), c.size(1, 2) * int(np.prod(kernel)), places)
    attrs = {"strides": strides, "dilations": dilations, "pads": begin + end}
    return Made([x, np.array(image), np.array(kernel)], attrs, fixed=(1, 2))


def constant_of_shape(c: Choice) -> Made:
    value = numpy_helper.from_array(np.array([3], c.among(*WHOLE, "float32", "bool")))
    return Made([np.array(c.shape(), np.int64)], {"value": value}, fixed=(0,))


def conv_integer(c: Choice) -> Made:
    groups, rows = c.size(1, 2), c.size(1, 3)
    x_type, w_type = c.among("uint8", "int8"), c.among("uint8", "int8")
    kernel = [c.size(1, 3), c.size(1, 3)]
    x = c.bytes(c.size(1, 2), groups * rows, *(k + c.size(0, 5) for k in kernel), dtype=x_type)
    w = c.bytes(groups * c.size(1, 3), rows, *kernel, dtype=w_type)
    zeros = [np.array(c.size(0, 99), x_type), np.array(c.size(0, 99), w_type)][: c.size(0, 2)]
    attrs = {"group": groups, "strides": [c.size(1, 2), 1], "pads": [0, 1, 1, 0]}
    return Made([x, w, *zeros], attrs, fixed=(1, 2, 3))


def cum_prod(c: Choice) -> Made:
    (x, axis), attrs, *_ = moving.cum_sum(c.draw)
    return Made([(x % 3 - 1).astype(x.dtype), axis], attrs, fixed=(1,))


def depth_to_space(c: Choice) -> Made:
    side = c.size(1, 3)
    x = c.floats(c.size(0, 2), c.size(1, 2) * side * side, *c.shape(2, 2))
    return Made([x], {"blocksize": side, "mode": c.among("DCR", "CRD")})


def space_to_depth(c: Choice) -> Made:
    side = c.size(1, 3)
    x = c.floats(c.size(0, 2), c.size(), *(n * side for n in c.shape(2, 2)))
    return Made([x], {"blocksize": side})


def _scales(c: Choice, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of the scales and zero points: one, one per index of an axis, or per block."""
    axis = c.size(-len(shape), len(shape) - 1)
    kind = c.among("tensor", "axis", "blocks")
    if kind == "tensor":
        return (), {}
    if kind == "axis":
        return (shape[axis],), {"axis": axis}
    block, blocks = c.size(1, 3), list(shape)
    blocks[axis] = -(-shape[axis] // block)
    return tuple(blocks), {"axis": axis, "block_size": block}


def dequantize(c: Choice) -> Made:
    dtype = c.among("uint8", "int8", "uint16", "int16")
    x = c.bytes(*c.shape(1, 4, low=1), dtype=dtype)
    shape, attrs = _scales(c, x.shape)
    zero = c.maybe(c.whole(0, 20, *shape, dtype=dtype))
    return Made([x, c.scale(*shape), zero], attrs, fixed=(1, 2) if zero is not None else (1,))


def dynamic_quantize(c: Choice) -> Made:
    x = c.floats(*c.shape(1, low=1))
    x.flat[0] = c.among(0.5, np.inf, -np.inf)
    return Made([x], {}, 3, (), 1)


def quantize(c: Choice) -> Made:
    x = c.floats(*c.shape(1, 4, low=1)) * c.among(1, 9)
    shape, attrs = _scales(c, x.shape)
    zero = c.whole(0, 20, *shape, dtype=c.among("uint8", "int8", "uint16", "int16"))
    return Made([x, c.scale(*shape), zero], attrs, fixed=(1, 2))


def einsum(c: Choice) -> Made:
    equation = c.among(
        *("ij,jk->ik", "bij,bjk->bik", "...ij,...jk->...ik", "ii->i", "ij->", "ij->ji", "i,j"),
        *("bhid,bhjd->bhij", "ijk,k->ij", "ij,ij->i", "i,i", "ab,cd->abcd", "ij,jk,kl->il"),
        *(" ij , jk -> i k ", "iij->j", "Ab,bA", "b...,b...->..."),
    )
    sizes = {letter: c.size() for letter in sorted(set(equation)) if letter.isalpha()}
    lead = c.shape(0, 2, low=1)
    inputs: Arrays = []
    for term in equation.split("->")[0].split(","):
        head, dots, tail = term.strip().partition("...")
        dims = [sizes[x] for x in head] + list(lead if dots else ()) + [sizes[x] for x in tail]
        inputs.append(c.floats(*dims))
    return Made(inputs, {"equation": equation})


def eye_like(c: Choice) -> Made:
    x = c.floats(*c.shape(2, 2)).astype(c.among("float32", "int64"))
    return Made([x], {"k": c.size(-4, 4), "dtype": c.among(TensorProto.FLOAT, TensorProto.INT64)})


def flatten(c: Choice) -> Made:
    x = c.floats(*c.shape(1))
    return Made([x], {"axis": c.size(-x.ndim, x.ndim)})


def gemm(c: Choice) -> Made:
    m, n, k = c.size(0, 9), c.size(0, 9), c.size(1, 20)
    dtype = c.among("float32", "float64", "int32", "uint64")
    attrs: dict[str, Any] = {"transA": c.size(0, 1), "transB": c.size(0, 1)}
    if dtype.startswith("f"):
        attrs.update(alpha=c.among(1.0, 0.5), beta=c.among(1.0, -2.0, 0.0))
    a = c.whole(0, 5, *((k, m) if attrs["transA"] else (m, k))).astype(dtype)
    b = c.whole(0, 5, *((n, k) if attrs["transB"] else (k, n))).astype(dtype)
    bias = c.maybe(c.whole(0, 5, *c.among((m, n), (n,), (m, 1), (1,), ())).astype(dtype))
    if bias is not None and attrs.get("beta") == 0.0:
        bias = bias + np.array(np.nan, dtype)
    return Made([a, b, bias], attrs, fixed=c.among((1,), (1, 2)))


def global_pool(c: Choice) -> Made:
    return Made([c.floats(c.size(), c.size(), *c.shape(1, 3, low=1))])


def grid_sample(c: Choice) -> Made:
    x = c.floats(c.size(1, 2), c.size(), c.size(), c.size())
    grid = c.random.uniform(-2, 2, (len(x), 3, 4, 2)).astype("float32")
    modes = c.among("linear", "nearest", "cubic"), c.among("zeros", "border", "reflection")
    attrs = {"mode": modes[0], "padding_mode": modes[1], "align_corners": c.size(0, 1)}
    return Made([x, grid], attrs)


def group_norm(c: Choice) -> Made:
    groups = c.size(1, 3)
    x = c.floats(c.size(), n := groups * c.size(1, 3), *c.shape(1, 3, low=1))
    return Made([x, c.floats(n), c.floats(n)], {"num_groups": groups}, fixed=(1, 2))


def instance_norm(c: Choice) -> Made:
    x = c.floats(c.size(0, 3), n := c.size(), *c.shape(1, 3, low=1), dtype=c.among("f4", "f8"))
    return Made([x, c.floats(n, dtype=x.dtype), c.floats(n, dtype=x.dtype)], fixed=(1, 2))


def last_axes_norm(c: Choice) -> Made:
    x = c.floats(*c.shape(1, low=1))
    axis = c.size(-x.ndim, x.ndim - 1)
    return Made([x, c.floats(*x.shape[axis:])], {"axis": axis}, fixed=(1,))


def log_loss(c: Choice) -> Made:
    batch, classes, *image = shape = c.shape(2, 4, low=1)
    x, ignored = c.floats(*shape, dtype=c.among("f4", "f8")), c.among(None, -1, -100, 0)
    target = c.whole(0, classes, batch, *image, dtype=c.among("int32", "int64"))
    target.flat[1 :: c.size(1, 3)] = ignored or 0
    if ignored is not None:
        np.moveaxis(x, 1, -1)[target == ignored] = c.among(0, -np.inf, np.nan)
    weights = c.maybe(np.abs(c.floats(classes, dtype=x.dtype)) + x.dtype.type(0.5))
    attrs: dict[str, Any] = {"reduction": c.among("none", "sum", "mean")}
    more = {} if ignored is None else {"ignore_index": ignored}
    return Made([x, target, weights], {**attrs, **more})


def local_norm(c: Choice) -> Made:
    x = c.floats(c.size(), n := c.size(2, 8), *c.shape(2, 2, low=1))
    return Made([x], {"size": c.among(*range(1, n, 2)), "alpha": 0.01, "bias": c.among(1.0, 2.0)})


def determinants(c: Choice) -> Made:
    return Made([c.floats(*c.shape(0, 2), n := c.size(), n, dtype=c.among("f4", "f8"))])


def mat_mul(c: Choice) -> Made:
    lead, (m, n, k) = c.shape(0, 2), (c.size(0, 9), c.size(0, 9), c.size(1, 33))
    dtype = c.among("float32", "float64", "int32", "uint32", "int64", "uint64")
    a, b = c.whole(-9, 9, *lead, m, k), c.whole(-9, 9, *c.among(lead, lead[1:], ()), k, n)
    return Made([a.astype(dtype), b.astype(dtype)], fixed=(1,))


def mat_mul_integer(c: Choice) -> Made:
    a_type, b_type = c.among("uint8", "int8"), c.among("uint8", "int8")
    k, n = c.size(1, 20) * c.among(1, 40), c.size(0, 9)
    a = c.bytes(*(batch := c.shape(0, 2)), c.size(), k, dtype=a_type)
    b = c.bytes(*c.among((), batch), k, n, dtype=b_type)
    zeros = [np.array(c.size(0, 99), a_type), c.bytes(*c.among((), (n,)), dtype=b_type)]
    return Made([a, b, *zeros[: c.size(0, 2)]], fixed=c.among((1, 2, 3), ()))


def mean_variance(c: Choice) -> Made:
    axes = c.draw(st.permutations(range(4)))[: c.size()]
    return Made([c.floats(*c.shape(4, 4, low=2))], {"axes": axes})


def q_linear(c: Choice, x: tuple[int, ...], w: tuple[int, ...], n: int, attrs: Any = None) -> Made:
    """x and w of bytes with scales, w's of each of its n columns or of all."""
    kind = c.among("uint8", "int8")
    per_column = c.among((), (n,))
    inputs = [c.bytes(*x, dtype=kind), c.scale(), np.array(c.size(0, 90), kind)]
    inputs += [c.weights(*w, dtype="int8"), c.scale(*per_column), np.zeros(per_column, np.int8)]
    inputs += [c.scale() * np.float32(50), np.array(c.size(0, 90), kind)]
    inputs = [np.asarray(x) for x in inputs]
    return Made(inputs, attrs or {}, fixed=tuple(range(1, 8)), close=1)


def q_linear_conv(c: Choice) -> Made:
    channels, kernel = c.size(), (c.size(1, 3), c.size(1, 3))
    x = c.size(1, 2), channels, *(k + c.size(0, 4) for k in kernel)
    return q_linear(c, x, (n := c.size(), channels, *kernel), n, {"strides": [1, c.size(1, 2)]})


def q_linear_mat_mul(c: Choice) -> Made:
    k, n = c.size(1, 20), c.size(1, 9)
    return q_linear(c, (*c.shape(0, 2, low=1), c.size(), k), (k, n), n)


def non_max_suppression(c: Choice) -> Made:
    batch, classes, n = c.size(1, 2), c.size(1, 3), c.size(1, 8)
    boxes = c.floats(batch, n, 4)
    scores = c.random.permutation(batch * classes * n).reshape(batch, classes, n)
    limits = [np.array(x, "float32") for x in (c.among(0, 0.3, 0.9), c.among(0.0, 5.0))]
    most = np.array([c.size(0, 5)])
    return Made(
        [boxes, scores.astype("float32"), most, limits[0], c.maybe(limits[1])],
        {"center_point_box": 0},
        fixed=(2, 3, 4),
    )


def ngrams(c: Choice) -> Made:
    ones, twos = c.among((0, 1, 2), (3,)), c.among((0, 1, 2, 2, 1, 0), (4, 4))
    count, least = len(ones) + len(twos) // 2, c.size(1, 2)
    x = c.whole(0, 5, *c.among((), (c.size(),)), c.size(1, 9), dtype=c.among("int32", "int64"))
    attrs = {
        "mode": c.among("TF", "IDF", "TFIDF"),
        "min_gram_length": least,
        "max_gram_length": c.size(least, 2),
        "max_skip_count": c.size(0, 2),
        "ngram_counts": [0, len(ones)],
        "ngram_indexes": c.random.permutation(count).tolist(),
        "pool_int64s": [*ones, *twos],
        "weights": c.floats(count).tolist(),
    }
    return Made([x], attrs)


def roi_align(c: Choice) -> Made:
    images, n = c.size(1, 3), c.size(0, 4)
    corner, size = c.floats(n, 2) * 2, c.whole(1, 30, n, 2) / np.float32(4)
    attrs = {
        "mode": c.among("avg", "max"),
        "coordinate_transformation_mode": c.among("half_pixel", "output_half_pixel"),
        **{"output_height": c.size(), "output_width": c.size()},
        **{"sampling_ratio": c.size(0, 3), "spatial_scale": c.among(1.0, 0.5)},
    }
    rois = np.hstack([corner, corner + size]).astype("float32")
    return Made([np.abs(c.floats(images, c.size(), 5, 7)), rois, c.whole(0, images, n)], attrs)


def range_(c: Choice) -> Made:
    dtype = c.among("int16", "int32", "int64", "float32", "float64")
    numbers = c.size(-5, 5), c.size(-9, 9), c.among(1, 2, -1, -3)
    return Made([np.array(n, dtype) for n in numbers], fixed=(0, 1, 2))


def recurrent(gates: int, states: int) -> Callable[[Choice], Made]:
    def make(c: Choice) -> Made:
        direction = c.among("forward", "reverse", "bidirectional")
        ways = 2 if direction == "bidirectional" else 1
        steps, batch, size, hidden = c.size(), c.size(1, 3), c.size(), c.size(1, 5)
        x, w = c.floats(steps, batch, size), c.floats(ways, gates * hidden, size)
        r, bias = c.floats(ways, gates * hidden, hidden), c.floats(ways, 2 * gates * hidden)
        lengths = c.maybe(c.whole(1, steps + 1, batch, dtype="int32"))
        initial = [c.maybe(c.floats(ways, batch, hidden)) for _ in range(states)]
        attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
        if gates == 3:
            attrs["linear_before_reset"] = c.size(0, 1)
        inputs = [x, w, r, c.maybe(bias), lengths, *initial]
        return Made(inputs, attrs, 1 + states, fixed=(1, 2))

    return make


def resize(c: Choice) -> Made:
    n = c.among(1, 2, 2, 3)
    x = c.floats(c.size(1, 2), c.size(1, 2), *(c.size(1, 6) for _ in range(n)))
    sizes = np.array([*x.shape[:2], *(c.size(1, 9) for _ in range(n))])
    modes = ("nearest", "linear", "cubic") if n == 2 else ("nearest", "linear")
    where = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attrs = {"mode": c.among(*modes), "coordinate_transformation_mode": c.among(*where)}
    if attrs == {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"}:
        sizes[2:] += 1  # one is at 0, which is no mean of neighbours, as onnx's evaluator has it
    return Made([x, None, None, sizes], attrs, fixed=(3,))


def rotary(c: Choice) -> Made:
    batch, heads, steps, size = c.size(1, 2), c.size(1, 3), c.size(), c.among(4, 8)
    partial = c.among(0, 4)
    half = (partial or size) // 2
    x = c.floats(batch, heads, steps, size)
    attrs = {"interleaved": c.size(0, 1), "rotary_embedding_dim": partial}
    if c.flag():
        x = np.moveaxis(x, 1, 2).reshape(batch, steps, -1)
        attrs["num_heads"] = heads
    if c.flag():
        tables = [c.floats(7, half), c.floats(7, half)]
        return Made([x, *tables, c.whole(0, 7, batch, steps)], attrs, fixed=(1, 2))
    return Made([x, c.floats(batch, steps, half), c.floats(batch, steps, half)], attrs)


def tensor_scatter(c: Choice) -> Made:
    batch, rows, new = c.size(1, 3), c.size(4, 6), c.size()
    past, update = c.floats(batch, 2, rows, 3), c.floats(batch, 2, new, 3)
    mode = c.among("linear", "circular")
    most = rows if mode == "circular" else rows - new + 1
    return Made([past, update, c.whole(0, most, batch)], {"mode": mode})


def transform(c: Choice) -> Made:
    """A length that is data, too; joined ones have no numbers of the other half."""
    kind = c.among("whole", "inverse", "one side", "joined")
    attrs = {
        "inverse": int(kind in ("inverse", "joined")),
        "onesided": int(kind in ("one side", "joined")),
    }
    shape = c.shape(1, 3, low=1)
    axis = c.size(0, len(shape) - 1)
    shape = (*shape[:axis], c.size(2, 12), *shape[axis + 1 :])
    parts = {"one side": 1, "joined": 2}.get(kind, c.size(1, 2))
    n = None if kind == "joined" else c.maybe(np.array(c.size(1, 15), "int64"))
    x = c.floats(*shape, parts, dtype=c.among("f4", "f8"))
    return Made([x, n, np.array(axis, "int64")], attrs, fixed=(1, 2))


def frames(c: Choice) -> Made:
    x = c.floats(c.size(1, 3), c.size(12, 40), c.size(1, 2), dtype=c.among("f4", "f8"))
    window = c.maybe(c.floats(n := c.size(1, 12), dtype=x.dtype))
    length = np.array(n, "int64") if window is None else c.maybe(np.array(n, "int64"))
    step = np.array(c.size(1, 7), "int64")
    return Made([x, step, window, length], {"onesided": c.size(0, 1)}, fixed=(1, 2, 3))


ONNX, ORT = "onnx's evaluator", "onnxruntime"  # what is right where the two differ
GENERATORS: dict[str, tuple[Callable[[Choice], Made], str]] = {
    "Attention": (attention, ONNX),
    "BatchNormalization": (batch_norm, ONNX),
    "BitCast": (bit_cast, ONNX),
    "Cast": (cast, ORT),
    "CastLike": (cast_like, ONNX),
    "Clip": (clip, ONNX),
    "Col2Im": (columns, ONNX),  # onnxruntime: but of two dims it is wrong
    "ConstantOfShape": (constant_of_shape, ONNX),
    "ConvInteger": (conv_integer, ONNX),  # onnxruntime is wrong at pads of int8 by uint8
    "CumProd": (cum_prod, ONNX),
    "DFT": (transform, ONNX),  # onnxruntime's errors reach 1e-3 where n is no power of 2
    "DepthToSpace": (depth_to_space, ORT),
    "Det": (determinants, ONNX),
    "DequantizeLinear": (dequantize, ONNX),
    "Dropout": (lambda c: Made([c.floats(*c.shape())]), ONNX),
    "DynamicQuantizeLinear": (dynamic_quantize, ONNX),
    "Einsum": (einsum, ONNX),
    "EyeLike": (eye_like, ONNX),
    "Flatten": (flatten, ORT),
    "GRU": (recurrent(3, 1), ORT),
    "Gemm": (gemm, ONNX),
    "GlobalAveragePool": (global_pool, ORT),
    "GlobalLpPool": (global_pool, ORT),
    "GlobalMaxPool": (global_pool, ORT),
    "GridSample": (grid_sample, ORT),  # onnx's evaluator: bicubic borders as nobody else has them
    "GroupNormalization": (group_norm, ONNX),
    "Identity": (lambda c: Made([c.floats(*c.shape())]), ONNX),
    "InstanceNormalization": (instance_norm, ONNX),
    "LRN": (local_norm, ORT),
    "LSTM": (recurrent(4, 2), ORT),
    "LayerNormalization": (last_axes_norm, ONNX),
    "MatMul": (mat_mul, ONNX),
    "MatMulInteger": (mat_mul_integer, ONNX),
    "MeanVarianceNormalization": (mean_variance, ONNX),
    "TfIdfVectorizer": (ngrams, ORT),
    "NegativeLogLikelihoodLoss": (log_loss, ORT),  # onnx's evaluator: -1 is no index to ignore
    "NonMaxSuppression": (non_max_suppression, ORT),
    "QLinearConv": (q_linear_conv, ORT),
    "QLinearMatMul": (q_linear_mat_mul, ORT),
    "QuantizeLinear": (quantize, ONNX),
    "RMSNormalization": (last_axes_norm, ONNX),
    "RNN": (recurrent(1, 1), ORT),
    "Range": (range_, ONNX),
    "Resize": (resize, ONNX),
    "RoiAlign": (roi_align, ORT),
    "RotaryEmbedding": (rotary, ONNX),
    "STFT": (frames, ONNX),
    "SpaceToDepth": (space_to_depth, ORT),
    "Swish": (lambda c: Made([c.floats(*c.shape())], {"alpha": c.among(1.0, 0.5)}), ONNX),
    "TensorScatter": (tensor_scatter, ONNX),
}
USUAL = 23
ROUNDINGS = 168  # of numbers about 1
OPSETS = {
    **{"BitCast": 26, "CumProd": 26, "GlobalLpPool": 21, "RoiAlign": 21},
    **{"Swish": 24, "TensorScatter": 24},
}
NATIVE_PARTS = ("lower", "view", "views", "decompose")


def test_every_native_op_is_held_against_another_engine() -> None:
    native = {
        name
        for name, entry in entries().items()
        if "::" not in name and any(hasattr(entry, part) for part in NATIVE_PARTS)
    }
    listed = [*GENERATORS, *elementwise.OPS, *moving.OPS, *windows.OPS]
    assert native <= set(listed)


@pytest.mark.parametrize("op", GENERATORS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_against_another_engine(op: str, data: Any) -> None:
    choice = Choice(data.draw)
    _check(op, choice, GENERATORS[op][0](choice))


NOT_SPECIAL = {  # ops whose judge is no judge of what is not finite
    **{"DFT": "sums in another order", "STFT": "sums in another order"},
    **dict.fromkeys(("GlobalMaxPool", "GRU", "LSTM", "RoiAlign"), "loses NaN"),
    **{"LRN": "sums go on to channels behind", "Resize": "nearest neighbours are sums"},
    **{"DynamicQuantizeLinear": "a scale of NaN", "QuantizeLinear": "infinity is the lowest int16"},
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), "floats are scales"),
    "Range": "floats are sizes",
    "MeanVarianceNormalization": "squares less a square",
}


@pytest.mark.parametrize("op", [op for op in GENERATORS if op not in NOT_SPECIAL])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_special_values(op: str, data: Any) -> None:
    """One element of the first operand of floats."""
    choice = Choice(data.draw)
    made = GENERATORS[op][0](choice)
    x = next((x for x in made.inputs if x is not None and x.dtype.kind == "f"), None)
    if x is not None and x.size:
        x.flat[choice.size(0, x.size - 1)] = choice.among(np.nan, np.inf, -np.inf, -0.0, 1e-40)
    _check(op, choice, made)


def _check(op: str, choice: Choice, made: Made) -> None:
    judge = GENERATORS[op][1]
    declared = choice.among("fixed", "symbolic", "any rank")
    model, feeds = _model(op, made, declared, choice.flag())
    with np.errstate(all="ignore"):
        if judge == ONNX:
            wanted = ReferenceEvaluator(model).run(None, feeds)
        else:
            wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    results = Session(model.SerializeToString(), threads=2).run(feeds)
    for actual, expected in zip(results, map(np.asarray, wanted)):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind == "f":
            bound = ROUNDINGS * np.finfo(expected.dtype).eps
            np.testing.assert_allclose(actual, expected, rtol=bound, atol=bound)
        else:
            off = np.abs(actual.astype(object) - expected.astype(object))
            assert not off.size or off.max() <= made.close


def _model(op: str, made: Made, declared: str, constant: bool) -> tuple[Any, dict[str, np.ndarray]]:
    inputs, held, feeds = [], [], {}
    names = ["" if x is None else f"x{i}" for i, x in enumerate(made.inputs)]
    for i, (name, x) in enumerate(zip(names, made.inputs)):
        if x is None:
            continue
        if constant and i in made.fixed:
            held.append(numpy_helper.from_array(x, name))
            continue
        symbols = [f"{name}_{axis}" for axis in range(x.ndim)]
        shape = {"fixed": x.shape, "symbolic": symbols, "any rank": None}[declared]
        dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
        inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        feeds[name] = x
    outputs = [f"y{i}" for i in range(made.outputs)]
    infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
    node = helper.make_node(op, names, outputs, **(made.attrs or {}))
    graph = helper.make_graph([node], "case", inputs, infos, held)
    opset = [helper.make_opsetid("", OPSETS.get(op, USUAL))]
    return helper.make_model(graph, opset_imports=opset, ir_version=10), feeds
