"""Ops that read x at places that other inputs name: MaxRoiPool, RoiAlign, DeformConv."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import F32, Guard, dims, is_image, require_dtype, size_guards, where_is
from q7x2_ep.ops.conv import channel_guards, conv_shape
from q7x2_ep.ops.window import WINDOW_ATTRIBUTES, Axis, geometry, half_as_single

MAX_TURNED = 64 * 64  # pixels whose channels are brought together: regions are many, most often


def image_at(x: np.ndarray, index: float) -> np.ndarray:
    """The image (C, H, W) that a region is of.

    Raises: IndexError where there is none.
    """
    if not 0 <= index < len(x):
        raise IndexError(f"region of image {int(index)}, of {len(x)}")
    return x[int(index)]


def image(node: Node) -> tuple[Dim, ...]:
    """The shape of x (N, C, H, W).

    Raises: ModelError where it is no image.
    """
    x = dims(node)
    if len(x) != 4:
        raise ModelError(f"{where_is(node)} reads images (N, C, H, W), not {x}")
    return x


@op("MaxRoiPool")
class MaxRoiPool:
    """The largest element of x in each cell of a grid laid over each region; 0 in an empty cell.

    Shapes: x (N, C, H, W), rois (regions, 5) of image, x1, y1, x2, y2; y (regions, C, grid..).
    """

    signature = "x: F, rois: F -> y"
    attributes = {"pooled_shape": None, "spatial_scale": 1.0}

    def infer(node: Node) -> list[Type]:
        x, grid = image(node), node.attrs["pooled_shape"] or ()
        if len(grid) != 2 or min(grid) < 1:
            raise ModelError(f"{where_is(node)} pooled_shape {grid} is not a height and a width")
        return [Type(node.inputs[0].dtype, (dims(node, 1)[0], x[1], *grid))]

    def guards(node: Node) -> list[Guard]:
        return size_guards((node.inputs[1],), dims(node, 1)[0] * 5)

    @half_as_single
    def reference(node: Node, x: np.ndarray, rois: np.ndarray) -> np.ndarray:
        grid = node.attrs["pooled_shape"]
        y: np.ndarray = np.zeros((len(rois), x.shape[1], *grid), x.dtype)
        corners = np.floor(rois[:, 1:] * node.attrs["spatial_scale"] + 0.5).astype(np.int64)
        for n, (x1, y1, x2, y2) in enumerate(corners.tolist()):
            cells = [
                [
                    slice(
                        *(
                            min(max(start + at, 0), size)
                            for at in (i * length // k, -(-(i + 1) * length // k))
                        )
                    )
                    for i in range(k)
                ]
                for start, length, k, size in (
                    (y1, max(y2 - y1 + 1, 1), grid[0], x.shape[2]),
                    (x1, max(x2 - x1 + 1, 1), grid[1], x.shape[3]),
                )
            ]
            for i, j in np.ndindex(*grid):
                cell = image_at(x, rois[n, 0])[:, cells[0][i], cells[1][j]]
                if cell.size:
                    y[n, :, i, j] = cell.max((1, 2))
        return y


def samples(start: float, length: float, cells: int, ratio: int, size: int) -> tuple:
    """Where RoiAlign samples one dim of a region, cell by cell: (samples in a cell, whether each
    is inside, the elements below and above, the weight of the one above).
    """
    n = ratio if ratio > 0 else max(int(np.ceil(length / cells)), 0)
    at = start + (np.arange(cells)[:, None] + (np.arange(n) + 0.5) / max(n, 1)) * (length / cells)
    at = at.reshape(-1)
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    return n, inside, low, np.minimum(low + 1, size - 1), at - low


@op("RoiAlign")
class RoiAlign:
    """The mean (or with mode max the largest weighted element) of bilinear samples of x in each
    cell of a grid laid over each region.

    Shapes: x (N, C, H, W), rois (regions, 4) of x1, y1, x2, y2, images (regions,);
    y (regions, C, output_height, output_width).
    """

    signature = "x: F, rois: F, images: int64 -> y"
    attributes = {
        "coordinate_transformation_mode": "half_pixel",
        "mode": "avg",
        "output_height": 1,
        "output_width": 1,
        "sampling_ratio": 0,
        "spatial_scale": 1.0,
    }

    def infer(node: Node) -> list[Type]:
        x, attrs = image(node), node.attrs
        grid = attrs["output_height"], attrs["output_width"]
        if min(grid) < 1 or attrs["mode"] not in ("avg", "max"):
            raise ModelError(f"{where_is(node)} a grid {grid} of mode {attrs['mode']!r}")
        return [Type(node.inputs[0].dtype, (dims(node, 1)[0], x[1], *grid))]

    def guards(node: Node) -> list[Guard]:
        regions = dims(node, 1)[0]
        return [
            *size_guards((node.inputs[1],), regions * 4),
            *size_guards((node.inputs[2],), regions),
        ]

    @half_as_single
    def reference(node: Node, x: np.ndarray, rois: np.ndarray, images: np.ndarray) -> np.ndarray:
        attrs = node.attrs
        grid, ratio = (attrs["output_height"], attrs["output_width"]), attrs["sampling_ratio"]
        half = attrs["coordinate_transformation_mode"] == "half_pixel"
        y: np.ndarray = np.zeros((len(rois), x.shape[1], *grid), x.dtype)
        corners = rois.astype(x.dtype) * x.dtype.type(attrs["spatial_scale"]) - (0.5 if half else 0)
        for n, (x1, y1, x2, y2) in enumerate(corners):
            height, width = (y2 - y1, x2 - x1) if half else (max(y2 - y1, 1), max(x2 - x1, 1))
            rows, row_in, top, bottom, v = samples(y1, height, grid[0], ratio, x.shape[2])
            columns, column_in, left, right, h = samples(x1, width, grid[1], ratio, x.shape[3])
            plane, v = image_at(x, images[n]), v[:, None]
            if rows * columns == 0:
                continue
            inside = row_in[:, None] & column_in
            parts = np.stack(
                [
                    plane[:, a][:, :, b] * np.where(inside, weight, 0)
                    for a, b, weight in (
                        (top, left, (1 - v) * (1 - h)),
                        (top, right, (1 - v) * h),
                        (bottom, left, v * (1 - h)),
                        (bottom, right, v * h),
                    )
                ]
            ).reshape(4, x.shape[1], grid[0], rows, grid[1], columns)
            y[n] = (
                parts.max((0, 3, 5))
                if attrs["mode"] == "max"
                else parts.sum((0, 3, 5)) / (rows * columns)
            )
        return y

    def lower(node: Node, b: Any) -> None:
        (x, rois, images), y, attrs = node.inputs, node.output, node.attrs
        require_dtype(node, x.dtype, F32)
        require_dtype(node, rois.dtype, F32)
        require_dtype(node, images.dtype, (dtypes.INT64,))
        sizes, plane = dict(zip(("N", "C", "H", "W"), x.shape)), product(x.shape[2:])
        last = is_image(b, x) or (isinstance(plane, int) and plane <= MAX_TURNED)
        b.step(
            "roi_align",
            x=b.channels_last(x, dense=True) if last else x,
            last=int(last),
            rois=rois,
            images=images,
            y=y,
            **sizes,
            regions=y.shape[0],
            OH=y.shape[2],
            OW=y.shape[3],
            ratio=attrs["sampling_ratio"],
            most=int(attrs["mode"] == "max"),
            scale=attrs["spatial_scale"],
            shift=0.5 if attrs["coordinate_transformation_mode"] == "half_pixel" else 0.0,
        )


def bilinear(x: np.ndarray, h: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x (N, groups, C, H, W) between its elements, 0 outside, at h and w (N, groups, places..)."""
    total: np.ndarray = np.zeros((*x.shape[:3], *h.shape[2:]), x.dtype)
    top, left = np.floor(h), np.floor(w)
    n, g = np.ogrid[: x.shape[0], : x.shape[1]]
    lead = (n[..., None, None], g[..., None, None])
    for i, j in np.ndindex(2, 2):
        row, column = top + i, left + j
        weight = (1 - np.abs(h - row)) * (1 - np.abs(w - column))
        inside = (row >= 0) & (row < x.shape[3]) & (column >= 0) & (column < x.shape[4])
        at = (np.where(inside, index, 0).astype(np.int64) for index in (row, column))
        found = x.transpose(0, 1, 3, 4, 2)[(*lead, *at)]  # (N, groups, places.., C)
        total += np.moveaxis(found * np.where(inside, weight, 0)[..., None], -1, 2)
    return total


@op("DeformConv")
class DeformConv:
    """A Conv whose every tap is moved by an offset, read between elements, and times a mask.

    Shapes: x (N, C, H, W), w (M, C / group, kh, kw), offset (N, offset_group kh kw 2, OH, OW),
    mask (N, offset_group kh kw, OH, OW), y (N, M, OH, OW).
    """

    signature = "x: F, w: F, offset: F, bias?: F, mask?: F -> y"
    attributes = {
        **{key: value for key, value in WINDOW_ATTRIBUTES.items() if key != "auto_pad"},
        "group": 1,
        "offset_group": 1,
    }

    def plain(node: Node) -> Node:
        """The convolution that it is without offsets, for its geometry."""
        attrs = {**node.attrs, "auto_pad": "NOTSET"}
        return Node("Conv", [], [], attrs, node.name)

    def axes(node: Node, x: tuple, w: tuple) -> list[Axis]:
        return geometry(DeformConv.plain(node), x[2:], w[2:])

    def infer(node: Node) -> list[Type]:
        x, w = image(node), dims(node, 1)
        if len(w) != 4:
            raise ModelError(f"{where_is(node)} w {w} is not (M, C / group, kh, kw)")
        return [Type(node.inputs[0].dtype, conv_shape(DeformConv.plain(node), x, w))]

    def guards(node: Node) -> list[Guard]:
        x, w = dims(node), dims(node, 1)
        places = x[0] * node.attrs["offset_group"] * product(w[2:]) * product(node.output.shape[2:])
        return [
            *channel_guards(node, 3),
            *size_guards((node.inputs[2],), places * 2),
            *size_guards((node.input(4),), places),
        ]

    @half_as_single
    def reference(
        node: Node,
        x: np.ndarray,
        w: np.ndarray,
        offset: np.ndarray,
        bias: Optional[np.ndarray] = None,
        mask: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        group, offsets = node.attrs["group"], node.attrs["offset_group"]
        rows, columns = DeformConv.axes(node, x.shape, w.shape)
        n, outs, taps = x.shape[0], (rows.out, columns.out), (rows.kernel, columns.kernel)
        moved = offset.reshape(n, offsets, *taps, 2, *outs)
        factors = None if mask is None else mask.reshape(n, offsets, *taps, *outs)
        weights = w.reshape(group, w.shape[0] // group, *w.shape[1:])
        y: np.ndarray = np.zeros((n, group, w.shape[0] // group, *outs), x.dtype)
        places = x.reshape(n, offsets, x.shape[1] // offsets, *x.shape[2:])
        down = np.arange(rows.out)[:, None] * rows.stride - rows.before
        right = np.arange(columns.out) * columns.stride - columns.before
        for i, j in np.ndindex(*taps):
            part = bilinear(
                places,
                down + i * rows.dilation + moved[:, :, i, j, 0],
                right + j * columns.dilation + moved[:, :, i, j, 1],
            )
            if factors is not None:
                part = part * factors[:, :, i, j][:, :, None]
            part = part.reshape(n, group, w.shape[1], *outs)
            y += np.einsum("ngchw,gmc->ngmhw", part, weights[..., i, j])
        y = y.reshape(n, w.shape[0], *outs)
        return y if bias is None else y + bias.reshape(-1, 1, 1)
