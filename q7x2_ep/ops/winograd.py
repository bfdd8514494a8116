"""Winograd's algorithm for kernels of 3x3, in any number of planes, and of lines: see
csrc/kernels/winograd.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from q7x2_ep.ir.core import Node
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops.window import PADS, Axis, axis_of, meeting

MIN_WINOGRAD = 32  # channels and filters
MIN_MATRIX = {1: 32 * 32, 2: 64 * 64}  # one times the other, by stride
MIN_OF_PLANES = {1: 5, 2: 24}  # channels of several planes, which conv_direct does not have
MIN_OF_LINES = {"h": 64, "w": 64, "d": 16}  # channels and filters: nor lines of planes
MIN_PIXELS = 36
FEW_BY_TWO = 64  # pixels, with stride 2, for tiles of more rows
WINOGRAD_SHARE = 0.9  # of the products of windows, what they cost beside theirs included
SMALL_DILATION = 8  # for images of unknown size
WINOGRAD_GAP = 16  # Q7_WINOGRAD_GAP
LARGE_BLOCK = 3 * 2**17  # floats, 1.5 MB, where L2 has 2 MB, for
LARGE_WEIGHTS = 2**19  # floats of a group, which come from beyond L2 for each block


def tiled_axes(spec: Mapping[str, Any]) -> str:
    """The axes that tiles are of: "hw", that of a line, or none."""
    plane = (spec["kh"], spec["kw"])
    if plane in ((3, 3), (1, 3), (3, 1)):
        return {(3, 3): "hw", (1, 3): "w", (3, 1): "h"}[plane]
    lines = [axis for axis in "dhw" if spec["k" + axis] != 1]
    return lines[0] if len(lines) == 1 and spec["k" + lines[0]] > 2 else ""


def parts_of(taps: int) -> int:
    """q7_winograd_parts of csrc/kernels/winograd.h, of the first matrix."""
    return taps // 3 + taps % 3


def products_of(taps: int) -> int:
    """Those that a tile of a line takes, for each channel and filter."""
    return taps // 3 * 4 + taps % 3 * 2


def is_winograd(node: Node, spec: dict[str, Dim]) -> bool:
    """Whether the algorithm of kernels/winograd.h applies, and wins."""
    axes = tiled_axes(spec)
    if not axes:
        return False
    stride, dilated = spec[f"stride_{axes[-1]}"], max(spec[f"dilation_{a}"] for a in axes) > 1
    filters, channels = node.inputs[1].shape[:2]
    each = filters // node.attrs["group"]
    least = min(each, channels)
    if axes != "hw":
        fits = spec["stride_h"] == spec["stride_w"] == stride == 1
        wide = least >= MIN_OF_LINES[axes]
    else:
        fits = spec["stride_h"] == stride and (stride == 1 or (stride == 2 and not dilated))
        wide = fits and least >= MIN_WINOGRAD and each * channels >= MIN_MATRIX[stride]
        if fits and spec["kd"] != 1:
            wide = channels >= MIN_OF_PLANES[stride]
    few = has_pixels(spec, MIN_PIXELS - 1)  # bound by reading the weights
    return fits and wide and not few and saves_products(spec, axes)


def has_pixels(spec: Mapping[str, Any], most: int) -> bool:
    """Whether y is known to have no more pixels, in one image where their number is unknown."""
    images = spec["N"] if isinstance(spec["N"], int) else 1
    pixels = images * spec["OD"] * spec["OH"] * spec["OW"]
    return isinstance(pixels, int) and pixels <= most


def reads_too_much(tall: bool, spec: Mapping[str, Any]) -> bool:
    """Whether its weights, 25/9 of those of windows with stride 2, are read for so few pixels that
    summing the windows takes less. tall: whether tiles have more rows than SHORT_TILE.
    """
    return tall and spec["stride_h"] == 2 and has_pixels(spec, FEW_BY_TWO)


def saves_products(spec: Mapping[str, Any], axes: str) -> bool:
    """Whether tiles take fewer products than windows have that do not lie in padding: lines and
    planes of a kernel that do conv_last leaves out.
    """
    made = met = 1
    for name in PADS:
        axis = axis_of(spec, name)
        if not all(isinstance(n, int) for n in (axis.size, axis.out, axis.before)):
            return max(spec[f"dilation_{tiled}"] for tiled in axes) <= SMALL_DILATION
        inside = meeting(axis)
        in_axis = sum(inside) if name != "w" else axis.out * sum(n > 0 for n in inside)
        met *= in_axis
        made *= products_along(axis) if name in axes else in_axis
    return made < WINOGRAD_SHARE * met


def products_along(axis: Axis) -> int:
    """Those of all tiles along an axis of known sizes, for each channel, filter and line across."""
    tiles = winograd_lines(axis.out, axis.dilation)
    alone = 2 * tiles - axis.out  # tiles of one line, which want no products for the other
    whole, other = (5, 2) if axis.stride == 2 else (products_of(axis.kernel), parts_of(axis.kernel))
    return whole * tiles - other * alone


def turned(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a step for which a line, of rows or of planes, is one of columns."""
    axes = tiled_axes(fields)
    if axes in ("hw", "w"):
        return fields
    names = ("{0}", "O{0}", "k{1}", "stride_{1}", "dilation_{1}", "x_{1}_stride", "y_{1}_pixels")
    found = dict(fields)
    for axis, other in zip("dhw", "dwh" if axes == "h" else "hwd"):
        found[PADS[axis]] = fields[PADS[other]]
        for name in names:
            found[name.format(axis.upper(), axis)] = fields[name.format(other.upper(), other)]
    return found


def winograd_lines(size: int, dilation: int) -> int:
    """q7_winograd_lines of csrc/kernels/winograd.h."""
    return size // (2 * dilation) * dilation + min(dilation, size % (2 * dilation))


def winograd_rows(channels: int, kd: int, kh: int, kw: int) -> int:
    """q7_winograd_rows of csrc/kernels/winograd.h, of all matrices."""
    return channels * kd * (16 if kh != 1 else products_of(kw))


def tiles_of_block(k: int, weights: int, constants: Mapping[str, int]) -> int:
    """How many tiles of stride 1, of k channels and so many weights, a task has at most where L2
    has 2 MB.
    """
    least, most = constants["WINOGRAD_TILES"], constants["WINOGRAD_MOST"]
    if weights < LARGE_WEIGHTS:
        return least
    return max(least, min(most, LARGE_BLOCK // (16 * (k + WINOGRAD_GAP))))


def winograd_room(axes: str, stride: int, k: int, nr: int, block: int) -> int:
    """q7_winograd_room of csrc/kernels/winograd.h, for k rows of the first matrix."""
    row = k + WINOGRAD_GAP
    rows, sums = (4, 4) if axes != "hw" else (16, 16) if stride == 1 else (25, 9)
    floats = row + block * (rows * row + sums * nr)
    return -(-floats // 16) * 16
