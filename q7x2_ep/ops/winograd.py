"""Winograd's algorithm for kernels of 3x3, in any number of planes: see csrc/kernels/winograd.h."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from q7x2_ep.ir.core import Node
from q7x2_ep.ir.shape import Dim, ceildiv

MIN_WINOGRAD = {1: 32, 2: 64}  # channels and filters, by stride
MIN_OF_PLANES = {1: 5, 2: 24}  # channels of several planes, which conv_direct does not have
MIN_PIXELS = 36
WINOGRAD_SHARE = 0.9  # of the products of windows, what they cost beside theirs included
SMALL_DILATION = 8  # for images of unknown size
WINOGRAD_GAP = 16  # Q7_WINOGRAD_GAP


def is_winograd(node: Node, spec: dict[str, Dim]) -> bool:
    """Whether the algorithm of kernels/winograd.h applies, and wins."""
    stride, dilated = spec["stride_h"], max(spec["dilation_h"], spec["dilation_w"]) > 1
    if spec["stride_w"] != stride or stride not in MIN_WINOGRAD or (dilated and stride != 1):
        return False
    filters, channels = node.inputs[1].shape[:2]
    small = (spec["kh"], spec["kw"]) == (3, 3)
    images = spec["N"] if isinstance(spec["N"], int) else 1
    pixels = images * spec["OD"] * spec["OH"] * spec["OW"]
    few = isinstance(pixels, int) and pixels < MIN_PIXELS  # bound by reading the weights
    wide = min(filters // node.attrs["group"], channels) >= MIN_WINOGRAD[stride]
    if spec["kd"] != 1:
        wide = channels >= MIN_OF_PLANES[stride]
    return small and wide and not few and saves_products(spec)


def saves_products(spec: Mapping[str, Any]) -> bool:
    """Whether tiles take fewer products than windows have that do not lie in padding: lines and
    planes of a kernel that do conv_last leaves out.
    """
    made = met = 1
    for side, pad in (("d", "pad_front"), ("h", "pad_top"), ("w", "pad_left")):
        names = (side.upper(), f"O{side.upper()}", f"k{side}", f"stride_{side}", f"dilation_{side}")
        size, out, kernel, stride, dilation = (spec[name] for name in names)
        if not all(isinstance(n, int) for n in (size, out, spec[pad])):
            return max(spec["dilation_h"], spec["dilation_w"]) <= SMALL_DILATION
        inside = [
            min(out, ceildiv(spec[pad] - tap + size, stride))
            - max(0, ceildiv(spec[pad] - tap, stride))
            for tap in range(0, kernel * dilation, dilation)
        ]
        met *= out * sum(n > 0 for n in inside) if side == "w" else sum(max(n, 0) for n in inside)
        if side == "d":
            made *= met
        else:
            made *= 4 * winograd_lines(out, dilation) if stride == 1 else out // 2 * 5 + out % 2 * 3
    return made < WINOGRAD_SHARE * met


def winograd_lines(size: int, dilation: int) -> int:
    """q7_winograd_lines of csrc/kernels/winograd.h."""
    return size // (2 * dilation) * dilation + min(dilation, size % (2 * dilation))


def transformed(w: np.ndarray, groups: int, stride: int = 1) -> np.ndarray:
    """G w G^T of every kernel (M, C, .., 3, 3), as matrices (groups * 16, M / groups, kd * C)."""
    g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    if stride == 2:
        g = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]])
    both = np.einsum("ai,bj->abij", g, g).reshape(16, 9)
    by_plane = w.reshape(*w.shape[:2], -1, 9).swapaxes(1, 2)
    result = both @ by_plane.reshape(-1, 9).T.astype(np.float64)
    matrices = result.astype(np.float32).reshape(16, groups, w.shape[0] // groups, -1)
    return matrices.swapaxes(0, 1).reshape(groups * 16, *matrices.shape[2:])


def winograd_room(stride: int, k: int, nr: int, constants: Mapping[str, int]) -> int:
    """q7_winograd_room of csrc/kernels/winograd.h."""
    row = k + WINOGRAD_GAP
    rows, sums = (16, 16) if stride == 1 else (25, 9)
    floats = row + constants["WINOGRAD_TILES"] * (rows * row + sums * nr)
    return -(-floats // 16) * 16
