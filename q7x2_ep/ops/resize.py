"""Resize: another number of samples along some axes, one axis after the other.

Only the samples of one axis are computed at a time, so that each is a matrix over that axis: where
output position j lies in the input (`places`), and which samples around it count (`weights`). Steps
that pick the nearest sample do so along two axes that lie next to each other.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, maximum, minimum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    FLOATS,
    Guard,
    NotInferable,
    Operand,
    cast_step,
    dims,
    dtype_of,
    elem_bytes,
    fresh,
    is_image,
    known,
    named_axes,
    require_dtype,
    temporary,
    unary_step,
    where_is,
)
from q7x2_ep.ops.image import pixels_of, room_of

CROP = "tf_crop_and_resize"
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    CROP,
)
TIE = 1e-6  # as far from a half a place is a tie, as onnxruntime has it: 19.5 / 1.3 in float32
NEAREST = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5 - TIE),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5 + TIE),
    "floor": np.floor,
    "ceil": np.ceil,
}
RADIUS = {"linear": 1, "cubic": 2}  # of the filter, in samples
# what integers are computed in: it holds them exactly
COMPUTED_IN = {
    dtypes.UINT8: dtypes.FLOAT,
    dtypes.INT8: dtypes.FLOAT,
    dtypes.UINT16: dtypes.FLOAT,
    dtypes.INT16: dtypes.FLOAT,
    dtypes.INT32: dtypes.DOUBLE,
    dtypes.UINT32: dtypes.DOUBLE,
}


class Axis(NamedTuple):
    """One axis to be resized from n to m samples. scale: 0.0 for m / n; roi: what tf crops."""

    axis: int
    n: Dim
    m: Dim
    scale: float
    roi: tuple[float, float]


@op("Resize")
class Resize:
    """x with other sizes along axes, given as sizes or as scales: samples or blends of samples."""

    signature = "x, roi?: F, scales?: float32, sizes?: int64 -> y"
    attributes = {
        "antialias": 0,
        "axes": None,
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": "stretch",
        "mode": "nearest",
        "nearest_mode": "round_prefer_floor",
    }

    def infer(node: Node) -> list[Type]:
        check_modes(node)
        shape = list(dims(node))
        try:
            for axis in resized_axes(node):
                shape[axis.axis] = axis.m
        except NotInferable:
            for i in named_axes(node, len(shape)):
                shape[i] = fresh(node, 0, len(shape))[i]
        return [Type(node.inputs[0].dtype, tuple(shape))]

    def guards(node: Node) -> list[Guard]:
        return [
            (minimum(axis.m, axis.n * axis.m), axis.m, f"axis {axis.axis} has no element")
            for axis in resized_axes(node)
        ]

    def reference(
        node: Node,
        x: np.ndarray,
        roi: Optional[np.ndarray] = None,
        scales: Optional[np.ndarray] = None,
        sizes: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        listed = [None if a is None else a.tolist() for a in (roi, scales, sizes)]
        y = x
        for axis in axes_between(node, x.shape, *listed):
            y = resize_axis(node, y, axis)
        if x.dtype.kind in "iub" and y.dtype != x.dtype:
            limits = np.iinfo(x.dtype)
            y = np.clip(np.round(y), limits.min, limits.max)
        return y.astype(x.dtype)

    def lower(node: Node, b: Any) -> None:
        x, y = node.inputs[0], node.output
        axes = resized_axes(node)
        if not axes:
            b.alias(y, b.view(x))
        elif node.attrs["mode"] == "nearest" or x.dtype in FLOATS:
            resize_steps(node, b, x, axes, y)
        else:  # blend wide, round, saturate, narrow
            require_dtype(node, x.dtype, tuple(COMPUTED_IN))
            wide = [temporary(b, COMPUTED_IN[x.dtype], v.shape) for v in (x, y, y, y)]
            limits = np.iinfo(dtypes.DTYPES[x.dtype].numpy)
            cast_step(b, x, wide[0])
            resize_steps(node, b, wide[0], axes, wide[1])
            unary_step(b, "round", wide[1], wide[2])
            unary_step(b, "clip", wide[2], wide[3], float(limits.min), float(limits.max))
            cast_step(b, wide[3], y)


def check_modes(node: Node) -> None:
    """Raises: ModelError where an attribute is none that ONNX knows."""
    attrs = node.attrs
    known_ones = {
        "mode": ("nearest", *RADIUS),
        "coordinate_transformation_mode": COORDINATES,
        "nearest_mode": NEAREST,
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    }
    for name, values in known_ones.items():
        if attrs[name] not in values:
            raise ModelError(f"{where_is(node)} {name} is {attrs[name]!r}, not one of {[*values]}")


# Sizes


def resized_axes(node: Node) -> list[Axis]:
    """What changes.

    Raises: NotInferable where that comes from data.
    """
    return axes_between(node, dims(node), numbers(node, 1), numbers(node, 2), numbers(node, 3))


def numbers(node: Node, i: int) -> Optional[list[Any]]:
    """The contents of an optional input, None where it is left out or empty."""
    value: Optional[Value] = node.input(i)
    if value is None or value.shape == (0,):
        return None
    contents = value.const.tolist() if value.const is not None else known(value)
    if contents is None:
        if i == 1 and node.attrs["coordinate_transformation_mode"] != CROP:
            return None  # of no meaning
        raise NotInferable(f"{where_is(node)} the new sizes come from data: {value}")
    return list(contents)


def axes_between(
    node: Node,
    shape: tuple[Dim, ...],
    roi: Optional[list[float]],
    scales: Optional[list[float]],
    sizes: Optional[list[Dim]],
) -> list[Axis]:
    axes, crops = named_axes(node, len(shape)), node.attrs["coordinate_transformation_mode"] == CROP
    given = sizes or scales
    if given is None or len(given) != len(axes) or (crops and len(roi or ()) != 2 * len(axes)):
        raise ModelError(
            f"{where_is(node)} sizes {sizes}, scales {scales}, roi {roi} for axes {axes}"
        )
    if not all(size > 0 for size in scales or ()):
        raise ModelError(f"{where_is(node)} scales {scales} must be above 0")
    policy, scale = node.attrs["keep_aspect_ratio_policy"], 0.0
    if sizes and policy != "stretch":
        ratios = [whole(size) / whole(shape[axis]) for axis, size in zip(axes, sizes)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        sizes = [int(scale * shape[axis] + 0.5) for axis in axes]
    found = []
    for i, axis in enumerate(axes):
        n = shape[axis]
        ratio = scales[i] if not sizes else scale
        part = (roi[i], roi[len(axes) + i]) if crops else (0.0, 1.0)
        m = sizes[i] if sizes else scaled(n, ratio)
        if (m, part) != (n, (0.0, 1.0)) or ratio not in (0.0, 1.0):
            found.append(Axis(axis, n, m, ratio, part))
    return found


def whole(dim: Dim) -> int:
    if not isinstance(dim, int):
        raise NotInferable(f"a ratio of the symbolic size {dim}")
    return max(dim, 1)


def scaled(n: Dim, scale: float) -> Dim:
    """floor(n * scale) in float32; for a symbol by the fraction that a scale stands for.

    Raises: NotInferable where it stands for none with small terms.
    """
    if isinstance(n, int):
        return int(np.float32(n) * np.float32(scale))
    from fractions import Fraction

    fraction = Fraction(scale).limit_denominator(64)
    if np.float32(float(fraction)) != np.float32(scale):
        raise NotInferable(f"{n} times {scale} depends on rounding")
    return n * fraction.numerator // fraction.denominator


# Values


def places(mode: str, axis: Axis, dtype: Any) -> np.ndarray:
    """Where each output position lies in the input (m,), computed in dtype."""
    n, m = axis.n, axis.m
    at, half = np.arange(m).astype(dtype), dtype(0.5)
    scale = dtype(axis.scale or dtype(m) / dtype(n))
    length, span = scale * dtype(n), dtype(n - 1)
    start, end = map(dtype, axis.roi)
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        return np.zeros_like(at) if length == 1 else at * span / (length - 1)
    if mode == "tf_half_pixel_for_nn":
        return (at + half) / scale
    if mode == "pytorch_half_pixel" and m == 1:
        return np.zeros_like(at)
    if mode == CROP:
        if length == 1:
            return np.full_like(at, half * (start + end) * span)
        return start * span + at * (end - start) * span / (length - 1)
    offset = dtype(0)
    if mode == "half_pixel_symmetric":
        offset = dtype(n) / 2 * (1 - dtype(m) / length)
    return offset + (at + half) / scale - half


def weights(node: Node, axis: Axis) -> np.ndarray:
    """How much of each sample is in each output position (m, n), linear and cubic."""
    attrs, n = node.attrs, axis.n
    at = places(attrs["coordinate_transformation_mode"], axis, np.float64)
    step = min(axis.scale or axis.m / n, 1.0) if attrs["antialias"] else 1.0
    radius = RADIUS[attrs["mode"]] / step
    taps = np.floor(at - radius)[:, None] + np.arange(math.ceil(2 * radius) + 2)  # (m, taps)
    part = kernel(attrs["mode"], attrs["cubic_coeff_a"], np.abs(taps - at[:, None]) * step)
    if attrs["exclude_outside"]:
        part = np.where((taps >= 0) & (taps < n), part, 0.0)
    if attrs["exclude_outside"] or attrs["antialias"]:
        total = part.sum(1, keepdims=True)
        part = part / np.where(total == 0, 1.0, total)
    matrix = np.zeros((axis.m, n))
    rows = np.broadcast_to(np.arange(axis.m)[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, n - 1).astype(np.int64)), part)
    return matrix


def kernel(mode: str, a: float, x: np.ndarray) -> np.ndarray:
    """The filter at a distance of x samples: a triangle, or Keys' cubic."""
    return np.maximum(1 - x, 0.0) if mode == "linear" else cubic(a, x)


def cubic(a: float, x: np.ndarray) -> np.ndarray:
    """Keys' cubic at a distance of x samples."""
    inner, outer = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))


def resize_axis(node: Node, x: np.ndarray, axis: Axis) -> np.ndarray:
    attrs, coordinates = node.attrs, node.attrs["coordinate_transformation_mode"]
    is_nearest = attrs["mode"] == "nearest"
    at = places(coordinates, axis, np.float32 if is_nearest else np.float64)
    if is_nearest:  # in float32, the dtype of scales: its rounding decides between neighbours
        chosen = NEAREST[attrs["nearest_mode"]](at.astype(np.float64))
        y = np.take(x, np.clip(chosen, 0, axis.n - 1).astype(np.int64), axis.axis)
    else:
        turned = np.tensordot(weights(node, axis), x.astype(np.float64), (1, axis.axis))
        y = np.moveaxis(turned, 0, axis.axis)
    if coordinates != CROP:
        return y
    inside = ((at >= 0) & (at <= axis.n - 1)).reshape(-1, *(1,) * (x.ndim - axis.axis - 1))
    return np.where(inside, y, np.asarray(attrs["extrapolation_value"]).astype(y.dtype))


# Steps


def resize_steps(node: Node, b: Any, x: Value, axes: list[Axis], y: Value) -> None:
    """Axes that shrink first, and the outer ones of them; of those that grow the inner ones. Images
    whose channels lie side by side stay so, unless they leave the model.
    """
    order = sorted(axes, key=lambda axis: (0, axis.axis) if shrinks(axis) else (1, -axis.axis))
    source: Operand = x
    into: Operand = y
    shape = x.shape
    ends = {axis.axis for axis in axes}  # that may be the second of two in a step
    if is_image(b, x) and min(ends) > 1 and not b.graph.is_output(y):
        order = [axis._replace(axis=axis.axis - 1) for axis in order]
        shape = (shape[0], *shape[2:], shape[1])
        source, into = pixels_of(b, x), room_of(b, y)
        ends = {len(shape) - 2}
    is_nearest = node.attrs["mode"] == "nearest"
    steps = in_pairs(order, ends) if is_nearest else [(axis,) for axis in order]
    for some in steps:
        sizes = {axis.axis: axis.m for axis in some}
        after = tuple(sizes.get(i, dim) for i, dim in enumerate(shape))
        place = into if some is steps[-1] else temporary(b, x.dtype, after)
        (nearest_step if is_nearest else blend_step)(node, b, source, some, shape, place)
        source, shape = place, after


def in_pairs(order: list[Axis], ends: set[int]) -> list[tuple[Axis, ...]]:
    """The two innermost axes together, if they are neighbours and the second is one of those given,
    behind others that shrink.
    """
    pair = tuple(sorted(order, key=lambda axis: axis.axis)[-2:])
    if len(pair) < 2 or pair[0].axis + 1 != pair[1].axis or pair[1].axis not in ends:
        return [(axis,) for axis in order]
    others = [(axis,) for axis in order if axis not in pair]
    small = sum(shrinks(axis) for (axis,) in others)
    return [*others[:small], pair, *others[small:]]


def shrinks(axis: Axis) -> bool:
    if axis.scale:
        return axis.scale < 1
    return isinstance(axis.n, int) and isinstance(axis.m, int) and axis.m < axis.n


def nearest_step(
    node: Node, b: Any, x: Operand, axes: tuple[Axis, ...], shape: tuple[Dim, ...], y: Operand
) -> None:
    """One axis of x, or two that are neighbours; as in blend_step."""
    attrs, dtype, size, at = node.attrs, dtype_of(x), elem_bytes(node), axes[-1].axis
    of_pixels = isinstance(x, View) or isinstance(y, View)
    end = len(shape) - 1 if of_pixels else at + 1
    between, run = shape[at + 1 : end], product(shape[end:])
    if between:
        rows, columns = axes[0], unchanged(product(between))
    else:
        rows, columns = axes if len(axes) == 2 else (unchanged(1), axes[0])
    rim = np.array(attrs["extrapolation_value"]).astype(dtypes.DTYPES[dtype].numpy)
    b.step(
        "resize_nearest",
        x=x,
        y=y,
        table=(rows.m + columns.m) * 8,
        outer=product(shape[: axes[0].axis]),
        H=rows.n,
        W=columns.n,
        OH=rows.m,
        OW=columns.m,
        run_bytes=run * size,
        x_stride=stride_of(x, run) * size,
        y_stride=stride_of(y, run) * size,
        elem_bytes=size,
        coordinate=attrs["coordinate_transformation_mode"],
        rounding=attrs["nearest_mode"],
        h_scale=rows.scale,
        h_start=rows.roi[0],
        h_end=rows.roi[1],
        w_scale=columns.scale,
        w_start=columns.roi[0],
        w_end=columns.roi[1],
        extrapolation=int.from_bytes(rim.tobytes(), "little", signed=size == 8),
    )


def unchanged(n: Dim) -> Axis:
    return Axis(-1, n, n, 1.0, (0.0, 1.0))


def stride_of(operand: Operand, run: Dim) -> Dim:
    """From a pixel to the next; what is no view is dense."""
    return operand.strides[0] if isinstance(operand, View) else run


def blend_step(
    node: Node, b: Any, x: Operand, axes: tuple[Axis, ...], shape: tuple[Dim, ...], y: Operand
) -> None:
    """One axis of x; axes and shape are those of memory. Views are pixels of an image."""
    (axis,) = axes
    attrs, at, dtype, taps = node.attrs, axis.axis, dtype_of(x), taps_of(node, axis)
    of_pixels = isinstance(x, View) or isinstance(y, View)
    run = shape[-1] if of_pixels else product(shape[at + 1 :])
    b.step(
        "resize",
        x=x,
        y=y,
        table=axis.m * 8 + axis.m * taps * dtypes.size(dtype),
        dtype=dtype,
        outer=product(shape[:at]),
        n=axis.n,
        m=axis.m,
        runs=product(shape[at + 1 : -1]) if of_pixels else 1,
        run=run,
        x_stride=stride_of(x, run),
        y_stride=stride_of(y, run),
        taps=taps,
        interpolation=attrs["mode"],
        coordinate=attrs["coordinate_transformation_mode"],
        antialias=attrs["antialias"],
        exclude_outside=attrs["exclude_outside"],
        scale=axis.scale,
        roi_start=axis.roi[0],
        roi_end=axis.roi[1],
        cubic_a=attrs["cubic_coeff_a"],
        extrapolation=attrs["extrapolation_value"],
    )


def taps_of(node: Node, axis: Axis) -> Dim:
    """No fewer than how many samples the filter meets."""
    width = 2 * RADIUS[node.attrs["mode"]]
    if not node.attrs["antialias"]:
        return width
    if axis.scale:
        return math.ceil(width / min(axis.scale, 1.0)) + 1
    return maximum(ceildiv(axis.n * width, maximum(axis.m, 1)), width) + 1
