"""Images read at the places of a grid, and the grid of an affine map."""

from __future__ import annotations

from itertools import product as combinations
from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    Guard,
    dims,
    fresh,
    is_image,
    known,
    length,
    require_dtype,
    where_is,
)
from q7x2_ep.ops.image import room_of
from q7x2_ep.ops.movement import concat_axis
from q7x2_ep.ops.resize import cubic

BORDERS = {"zeros": "zeros", "border": "edge", "reflection": "reflect"}  # ours, by ONNX's name
MODES = ("nearest", "linear", "cubic")
A = -0.75  # of the cubic


@op("GridSample")
class GridSample:
    """y[n, c, i..] = x[n, c] at grid[n, i..], whose last dim counts the dims of x backwards.

    -1 and 1 are the outermost pixels' centres (align_corners) or outer borders.
    """

    signature = "x, grid: F -> y"
    attributes = {"align_corners": 0, "mode": "linear", "padding_mode": "zeros"}

    def infer(node: Node) -> list[Type]:
        x, grid, attrs = dims(node), dims(node, 1), node.attrs
        fits = len(x) == len(grid) > 2 and (grid[-1] == len(x) - 2 or not isinstance(grid[-1], int))
        if not fits or attrs["mode"] not in MODES or attrs["padding_mode"] not in BORDERS:
            raise ModelError(f"{where_is(node)} a grid {grid} for x {x}: {attrs}")
        return [Type(node.inputs[0].dtype, (*x[:2], *grid[1:-1]))]

    def guards(node: Node) -> list[Guard]:
        x, grid = dims(node), dims(node, 1)
        return [
            (x[0], grid[0], "x and grid have other batches"),
            (grid[-1], len(x) - 2, "the grid has a coordinate per dim of the image"),
        ]

    def reference(node: Node, x: np.ndarray, grid: np.ndarray) -> np.ndarray:
        sizes, attrs = x.shape[2:], node.attrs
        taps = [
            axis_taps(attrs, grid[..., -1 - d], size) for d, size in enumerate(sizes)
        ]  # per dim: (position, weight) of each, (N, i..)
        y = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:-1]), x.dtype)
        if y.size == 0 or 0 in sizes:
            return y
        batch = np.arange(len(x)).reshape(-1, *(1,) * (grid.ndim - 2))
        for chosen in combinations(*taps):
            weight = np.prod([w for _, w in chosen], axis=0)  # (N, i..)
            inside = np.all([(i >= 0) & (i < n) for (i, _), n in zip(chosen, sizes)], axis=0)
            at = tuple(np.clip(i, 0, n - 1) for (i, _), n in zip(chosen, sizes))
            pixels = np.moveaxis(x, 1, -1)[(batch, *at)]  # (N, i.., C)
            part = np.where(inside[..., None], pixels * weight[..., None], 0)
            y += np.moveaxis(part, -1, 1).astype(x.dtype)
        return y

    def lower(node: Node, b: Any) -> None:
        x, grid = node.inputs
        for value in (x, grid):
            require_dtype(node, value.dtype, (dtypes.FLOAT,))
        axes = len(x.shape) - 2
        if axes not in (2, 3) or (axes, node.attrs["mode"]) == (3, "cubic"):
            raise UnsupportedOp(f"{where_is(node)} has no kernel for {axes} dims, {node.attrs}")
        by_pixel = is_image(b, x) or gains_from_pixels(x, grid)
        given = b.channels_last(x) if by_pixel else b.contiguous(x)
        sizes = (1,) * (3 - axes) + tuple(x.shape[2:])
        strides = (0,) * (3 - axes) + tuple(given.strides[2:])
        points = product(grid.shape[1:-1])
        if by_pixel and reads_pixels(b.graph, node.output):
            y = room_of(b, node.output)
            y_strides = (points * y.strides[0], 1, y.strides[0])
        else:
            y = b.allocate(node.output)
            y_strides = (*y.strides[:2], 1)
        b.step(
            "grid_sample",
            kernel="grid_sample",
            x=given,
            grid=grid,
            y=y,
            N=x.shape[0],
            C=x.shape[1],
            **dict(zip("DHW", sizes)),
            points=points,
            axes=axes,
            x_n_stride=given.strides[0],
            x_c_stride=given.strides[1],
            **{f"x_{name}_stride": stride for name, stride in zip("dhw", strides)},
            **dict(zip(("y_n_stride", "y_c_stride", "y_stride"), y_strides)),
            interpolation=node.attrs["mode"],
            border=BORDERS[node.attrs["padding_mode"]],
            align_corners=node.attrs["align_corners"],
        )


def gains_from_pixels(x: Value, grid: Value) -> bool:
    """Whether a copy whose channels lie side by side costs less than gathering every channel."""
    channels, points, pixels = x.shape[1], product(grid.shape[1:-1]), product(x.shape[2:])
    if not all(isinstance(n, int) for n in (channels, points, pixels)):
        return False
    return channels >= 8 and 2 * points >= pixels


def reads_pixels(graph: Any, y: Value) -> bool:
    """Whether what reads an image may want the channels of a pixel side by side: not what stacks
    images, as attention to several of them does.
    """
    return not graph.is_output(y) and not any(
        user.op in ("Unsqueeze", "Reshape") or (user.op == "Concat" and concat_axis(user) != 1)
        for user in y.users
    )


def axis_taps(attrs: dict[str, Any], at: np.ndarray, n: int) -> list[tuple[Any, Any]]:
    """The pixels along one axis that a place is made of: positions, below 0 or from n on for what
    lies outside, and weights.
    """
    mode, border = attrs["mode"], attrs["padding_mode"]
    low = 0.0 if attrs["align_corners"] else -0.5
    high = n - 1 - low
    x = (at + 1) / 2 * (n - 1) if attrs["align_corners"] else ((at + 1) * n - 1) / 2
    if mode == "nearest":
        x = np.rint(x)
    outer = (x < low) | (x > high)
    if border == "border":
        x = np.clip(x, -2, n + 1)  # from 2 pixels outside on, all taps are the edge
    elif border == "reflection":
        x = np.where(outer, reflected(x, low, high), x)
    x = np.where(np.abs(x) < 1e9, x, -1e9)  # NaN lies outside
    first = np.floor(x)
    part = x - first
    if mode == "nearest":
        found = [(first, np.ones_like(x))]
    elif mode == "linear":
        found = [(first, 1 - part), (first + 1, part)]
    else:
        found = [(first + i, cubic(A, np.abs(part - i))) for i in range(-1, 3)]
    return [(pixel_at(i, n, border, low, high).astype(np.int64), weight) for i, weight in found]


def pixel_at(i: np.ndarray, n: int, border: str, low: float, high: float) -> np.ndarray:
    """The pixel that stands at i: itself, unless the border says what lies outside."""
    if border == "border":
        return np.clip(i, 0, n - 1)
    if border == "reflection":
        mirrored = np.where((i < 0) | (i >= n), np.trunc(reflected(i, low, high)), i)
        return np.clip(mirrored, 0, n - 1)
    return i


def reflected(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """x mirrored at low and high until it lies between them."""
    if high <= low:
        return np.full_like(x, low)
    span = high - low
    distance = np.mod(np.abs(x - low), 2 * span)
    return np.where(distance <= span, low + distance, high - (distance - span))


@op("AffineGrid")
class AffineGrid:
    """grid[n, i..] = theta[n] @ (.., y, x, 1) reversed: where GridSample is to read for an affine
    map. theta (N, d, d + 1), size (N, C, ..) of the image.
    """

    signature = "theta: F, size: int64 -> grid"
    attributes = {"align_corners": 0}

    def infer(node: Node) -> list[Type]:
        theta, size = dims(node), known(node.inputs[1])
        d = theta[1] if isinstance(theta[1], int) else length(node, 1) - 2
        image = fresh(node, 0, d + 2)[1:-1] if size is None else size[2:]
        return [Type(node.inputs[0].dtype, (theta[0], *image, d))]

    def reference(node: Node, theta: np.ndarray, size: np.ndarray) -> np.ndarray:
        if len(theta) != size[0]:
            raise ValueError(f"{len(theta)} maps for {size[0]} images")
        lines = []
        for n in size[2:].tolist():
            margin = 0.0 if node.attrs["align_corners"] else 1 / max(n, 1)
            lines.append(np.linspace(margin - 1, 1 - margin, n))
        axes = np.meshgrid(*lines, indexing="ij")[::-1]  # x first
        points = np.stack([*axes, np.ones(size[2:])], -1)  # (i.., d + 1)
        return np.einsum("nij,...j->n...i", theta.astype(np.float64), points).astype(theta.dtype)
