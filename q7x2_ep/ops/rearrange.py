"""Blocks and sequences in another order: the same elements at other places."""

from __future__ import annotations

from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    Guard,
    dims,
    elem_bytes,
    infer_same,
    require_dtype,
    reshaped,
    size_guards,
    where_is,
)

# Per mode: dims of x between N and H, with c the channels of an image; the order of (N, .., H, W).
DEPTH_TO_SPACE = {
    "DCR": (("block", "block", "c"), (0, 3, 4, 1, 5, 2)),
    "CRD": (("c", "block", "block"), (0, 1, 4, 2, 5, 3)),
}
# The order of (N, c, H, block, W, block).
SPACE_TO_DEPTH = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}


def mode_of(node: Node, modes: dict[str, Any]) -> Any:
    if node.attrs["mode"] not in modes or len(dims(node)) != 4 or node.attrs["blocksize"] < 1:
        raise ModelError(f"{where_is(node)} mode {node.attrs['mode']!r} of a tensor {dims(node)}")
    return modes[node.attrs["mode"]]


@op("DepthToSpace")
class DepthToSpace:
    """Channels become blocks of pixels: x (N, c block^2, H, W) -> (N, c, H block, W block)."""

    signature = "x -> y"
    attributes = {"blocksize": None, "mode": "DCR"}

    def infer(node: Node) -> list[Type]:
        mode_of(node, DEPTH_TO_SPACE)
        (n, c, h, w), block = dims(node), node.attrs["blocksize"]
        return [Type(node.inputs[0].dtype, (n, c // block**2, h * block, w * block))]

    def guards(node: Node) -> list[Guard]:
        return size_guards(node.inputs, product(node.output.shape))

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        apart, order = unfolded(node, x.shape)
        n, c, h, w = x.shape
        block = node.attrs["blocksize"]
        return x.reshape(apart).transpose(order).reshape(n, c // block**2, h * block, w * block)

    def lower(node: Node, b: Any) -> None:
        apart, order = unfolded(node, node.inputs[0].shape)
        turned = reshaped(b, node.inputs[0], apart).transpose(order)
        b.copy(turned, b.allocate(node.output).reshape(turned.shape))


def unfolded(node: Node, shape: tuple[Dim, ...]) -> tuple[tuple[Dim, ...], tuple[int, ...]]:
    """x of DepthToSpace with its blocks apart, and the order in which they are read."""
    (n, c, h, w), block = shape, node.attrs["blocksize"]
    names, order = mode_of(node, DEPTH_TO_SPACE)
    sizes = {"block": block, "c": c // block**2}
    return (n, *(sizes[name] for name in names), h, w), order


@op("SpaceToDepth")
class SpaceToDepth:
    """Blocks of pixels become channels: x (N, c, H block, W block) -> (N, c block^2, H, W)."""

    signature = "x -> y"
    attributes = {"blocksize": None, "mode": "DCR"}

    def infer(node: Node) -> list[Type]:
        mode_of(node, SPACE_TO_DEPTH)
        (n, c, h, w), block = dims(node), node.attrs["blocksize"]
        return [Type(node.inputs[0].dtype, (n, c * block**2, h // block, w // block))]

    def guards(node: Node) -> list[Guard]:
        block = node.attrs["blocksize"]
        image = dims(node)[2:]
        return [(dim // block * block, dim, f"{dim} is no multiple of {block}") for dim in image]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        (n, c, h, w), block = x.shape, node.attrs["blocksize"]
        apart = x.reshape(n, c, h // block, block, w // block, block)
        turned = apart.transpose(mode_of(node, SPACE_TO_DEPTH))
        return turned.reshape(n, c * block**2, h // block, w // block)

    def lower(node: Node, b: Any) -> None:
        (n, c, h, w), block = node.inputs[0].shape, node.attrs["blocksize"]
        apart = reshaped(b, node.inputs[0], (n, c, h // block, block, w // block, block))
        turned = apart.transpose(mode_of(node, SPACE_TO_DEPTH))
        b.copy(turned, b.allocate(node.output).reshape(turned.shape))


@op("ReverseSequence")
class ReverseSequence:
    """Of each batch entry b the first lengths[b] steps of time in reverse order, the rest as is."""

    signature = "x, lengths: int64 -> y"
    attributes = {"batch_axis": 1, "time_axis": 0}
    infer = infer_same

    def guards(node: Node) -> list[Guard]:
        if {node.attrs["batch_axis"], node.attrs["time_axis"]} != {0, 1} or len(dims(node)) < 2:
            raise ModelError(f"{where_is(node)} batch and time must be the axes 0 and 1")
        return size_guards(node.inputs[1:], dims(node)[node.attrs["batch_axis"]])

    def reference(node: Node, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        y = x.copy()
        rows, from_rows = (np.moveaxis(a, node.attrs["batch_axis"], 0) for a in (y, x))
        for row, from_row, length in zip(rows, from_rows, lengths.tolist()):
            if not 0 <= length <= len(row):
                raise DataError(f"{where_is(node)} a sequence of {length} in {len(row)}")
            row[:length] = from_row[:length][::-1]
        return y

    def lower(node: Node, b: Any) -> None:
        x, lengths = node.inputs
        require_dtype(node, lengths.dtype, (dtypes.INT64,))
        b.step(
            "reverse_sequence",
            x=x,
            lengths=lengths,
            y=node.output,
            outer=x.shape[0],
            inner=x.shape[1],
            inner_bytes=product(x.shape[2:]) * elem_bytes(node),
            time_first=int(node.attrs["time_axis"] == 0),
        )
