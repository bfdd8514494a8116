"""Borders: around a tensor, or cut off it."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, at_least, maximum, minimum
from q7x2_ep.ir.view import View, channels_last
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    Guard,
    bits_of,
    constant_scalar,
    dims,
    elem_bytes,
    expand_view,
    fresh,
    image_of,
    is_image,
    known,
    named_axes,
    normal_axis,
    required,
    required_ints,
    typed,
    where_is,
)

Widths = list[tuple[Dim, Dim]]  # before and after, per dim


@op("Pad")
class Pad:
    """x with a border: pads are widths before each axis, then after each; negative ones cut off."""

    signature = "x: T, pads: int64, value?: T, axes?: index -> y"
    attributes = {"mode": "constant"}

    def infer(node: Node) -> list[Type]:
        shape = list(dims(node))
        axes, axes_are_given = range(len(shape)), node.input(3) is not None
        if known(node.inputs[1]) is None or (axes_are_given and known(node.inputs[3]) is None):
            if axes_are_given and known(node.inputs[3]) is not None:
                axes = pad_axes(node)
            for axis in axes:
                shape[axis] = fresh(node, 0, len(shape))[axis]
            return [Type(node.inputs[0].dtype, tuple(shape))]
        padded = tuple(before + dim + after for dim, (before, after) in zip(shape, widths(node)))
        return [typed(node.inputs[0].dtype, padded)]

    def guards(node: Node) -> list[Guard]:
        found: list[Guard] = []
        constant = node.attrs["mode"] == "constant"  # may cut off its own border
        for i, (dim, (before, after)) in enumerate(zip(dims(node), widths(node))):
            left = before + dim + after if constant else minimum_of(dim, before, after)
            if not at_least(left, 0):
                found.append((maximum(left, 0), left, f"more is cut off dim {i} than {dim}"))
            taken = 0 if constant else minimum(maximum(before, 0) + maximum(after, 0), 1)
            if taken != 0:
                text = f"dim {i} of {dim} has nothing to pad with"
                found.append((maximum(left, taken), left, text))
        return found

    def reference(
        node: Node,
        x: np.ndarray,
        pads: np.ndarray,
        value: Optional[np.ndarray] = None,
        axes: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        n, mode = len(pads) // 2, node.attrs["mode"]
        for i, axis in enumerate(range(x.ndim) if axes is None else axes.tolist()):
            before, after, dim = int(pads[i]), int(pads[n + i]), x.shape[axis]
            size = minimum_of(dim, before, after)
            if (before + dim + after if mode == "constant" else size) < 0:
                raise ValueError(f"more is cut off dim {axis} than {dim}")
            if mode == "constant":
                rim = np.full(1, 0 if value is None else value.item()).astype(x.dtype)
                shape = [1 if d == axis % x.ndim else size for d, size in enumerate(x.shape)]
                x = np.concatenate((x, np.broadcast_to(rim, shape)), axis)
                at = np.arange(-before, dim + after)
                at = np.where((at >= 0) & (at < dim), at, dim)
            else:
                x = np.take(x, np.arange(max(-before, 0), max(-before, 0) + size), axis)
                at = within(mode, np.arange(-max(before, 0), size + max(after, 0)), size)
            x = np.take(x, at, axis)
        return x

    def lower(node: Node, b: Any) -> None:
        mode, value = node.attrs["mode"], node.input(2)
        if mode not in MODES:
            raise ModelError(f"{where_is(node)} mode is {mode!r}")
        number = 0 if value is None else constant_scalar(value)
        if mode == "constant" and number is None:
            place(b, value, b.view(node.inputs[0]), node.output, widths(node))
        else:
            border_step(node, b, widths(node), MODES[mode], number or 0)


MODES = {"constant": "zeros", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def cut_source(source: View, around: Widths) -> tuple[View, list[Dim]]:
    """What negative widths leave, and how far it is from the beginning; a border may be cut too."""
    offsets = []
    for axis, (before, after) in enumerate(around):
        size = maximum(minimum_of(source.shape[axis], before, after), 0)
        source = source.slice(axis, maximum(-before, 0), size)
        offsets.append(maximum(before, 0))
    return source, offsets


def border_step(node: Node, b: Any, around: Widths, border: str, number: float = 0) -> None:
    """y = x within a border, filled from it or with a number; negative widths cut."""
    x, y = node.inputs[0], node.output
    source = b.view(x)
    if source.strides[-1:] != (1,) and not is_image(b, source):
        source = b.contiguous(x)
    source, before = cut_source(source, around)
    target = like_source(b, source, y)
    if is_image(b, target):
        before = [before[axis] for axis in channels_last(len(before))]
        source, target = source.channels_last(), target.channels_last()
    b.step(
        "pad",
        x=source,
        y=target,
        elem_bytes=elem_bytes(node),
        ndim=max(len(source.shape), 1),
        x_shape=source.shape or (1,),
        x_stride=source.strides or (1,),
        shape=target.shape or (1,),
        before=before or (0,),
        border=border,
        bits=bits_of(number, y.dtype),
    )


def within(mode: str, at: np.ndarray, size: int) -> np.ndarray:
    """Which of `size` elements is at each place of them and a border."""
    if mode == "edge":
        return np.clip(at, 0, size - 1)
    if mode == "wrap":
        return at % max(size, 1)
    return np.abs((at + size - 1) % max(2 * (size - 1), 1) - (size - 1))


def minimum_of(dim: Dim, before: Dim, after: Dim) -> Dim:
    """What is left of a dim once negative widths have cut it."""
    return dim - maximum(-before, 0) - maximum(-after, 0)


def pad_axes(node: Node) -> tuple[int, ...]:
    ndim = len(dims(node))
    if node.input(3) is None:
        return tuple(range(ndim))
    return tuple(normal_axis(node, axis, ndim) for axis in required_ints(node, 3, "axes"))


def widths(node: Node) -> Widths:
    pads, axes = required(node, 1, "pads"), pad_axes(node)
    if len(pads) != 2 * len(axes):
        raise ModelError(f"{where_is(node)} {len(pads)} pads for {len(axes)} axes")
    found: Widths = [(0, 0)] * len(dims(node))
    for i, axis in enumerate(axes):
        found[axis] = (pads[i], pads[len(axes) + i])
    return found


def like_source(b: Any, source: View, y: Value) -> View:
    """Room for y, in the order of the source: an image keeps its channels side by side."""
    return image_of(b, y) if is_image(b, source) else b.allocate(y)


def place(b: Any, value: Value, source: View, y: Value, around: Widths) -> None:
    """y = source within a border of a number that is computed; negative widths cut."""
    if value.dtype != y.dtype:
        raise UnsupportedOp(f"a border of {value}, which has another dtype")
    target = like_source(b, source, y)
    one = b.view(value).reshape(()) or b.contiguous(value).reshape(())
    b.copy(expand_view(one, y.shape), target)
    source, before = cut_source(source, around)
    for axis, offset in enumerate(before):
        target = target.slice(axis, offset, source.shape[axis])
    b.copy(source, target)


@op("CenterCropPad")
class CenterCropPad:
    """x cut, or padded with zeros, to the given dims, evenly on both sides."""

    signature = "x, shape: index -> y"
    attributes = {"axes": None}

    def infer(node: Node) -> list[Type]:
        shape, sizes = list(dims(node)), known(node.inputs[1])
        for i, axis in enumerate(named_axes(node, len(shape))):
            shape[axis] = fresh(node, 0, len(shape))[axis] if sizes is None else sizes[i]
        return [Type(node.inputs[0].dtype, tuple(shape))]

    def reference(node: Node, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
        y = x
        for axis, size in zip(named_axes(node, x.ndim), shape.tolist()):
            before, after = centred(y.shape[axis], size)
            y = np.take(y, np.arange(max(-before, 0), y.shape[axis] - max(-after, 0)), axis)
            grow = [(0, 0)] * y.ndim
            grow[axis] = (max(before, 0), max(after, 0))
            y = np.pad(y, grow)
        return y

    def lower(node: Node, b: Any) -> None:
        x, sizes = node.inputs[0], required(node, 1, "the dims")
        around: Widths = [(0, 0)] * len(x.shape)
        for axis, size in zip(named_axes(node, len(x.shape)), sizes):
            around[axis] = centred(x.shape[axis], size)
        border_step(node, b, around, "zeros")


def centred(dim: Dim, size: Dim) -> tuple[Dim, Dim]:
    """Widths that make `size` of a dim; of an odd number the larger half is at the end."""
    grown, cut = maximum(size - dim, 0), maximum(dim - size, 0)
    return grown // 2 - cut // 2, (grown - grown // 2) - (cut - cut // 2)
