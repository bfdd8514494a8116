"""Images whose channels lie side by side, and where steps that write such find room for them."""

from __future__ import annotations

from typing import Any

from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ir.view import View, channels_last
from q7x2_ep.ops import find
from q7x2_ep.ops.common import COMPETING, allocate_rows, image_of
from q7x2_ep.ops.movement import concat_axis, concat_places, whole_of

CONVS = ("Conv", "q7::Conv")
COMPETING_DEPTHWISE = 128  # floats, as COMPETING


def pixels_of(b: Any, image: Value) -> View:
    """An image as (pixels, C), with the channels of a pixel side by side."""
    shape = (product((image.shape[0], *image.shape[2:])), image.shape[1])
    view = b.channels_last(image).channels_last().reshape(shape)
    return view or b.channels_last(image, dense=True).channels_last().reshape(shape)


def pixel_stride(image: View) -> Dim:
    """From a pixel of (N, C, ..) to the next. The stride of a dim of one element says nothing: a
    part of a dense (N, 8, 1, 1) has pixels 8 apart, and a stride of 1 along W.
    """
    order = (*range(len(image.shape) - 1, 1, -1), 0)
    strides = (image.strides[i] for i in order if image.shape[i] != 1)
    return next(strides, image.shape[1])


def room_of(b: Any, y: Value) -> View:
    """Room for an image as (pixels, C): see place_of. All pixels are as far apart, also where the
    arithmetic of sizes cannot tell: in a Concat, h rows of one part may be 2 (h // 2) of another.
    """
    place, pixels = place_of(b, y), product((y.shape[0], *y.shape[2:]))
    return place._replace(shape=(pixels, y.shape[1]), strides=(pixel_stride(place), 1))


def feeds_convolutions(graph: Any, value: Value) -> bool:
    """Whether convolutions alone read an image, as their own or as a residual."""
    if graph.is_output(value) or not value.users:
        return False
    return all(is_convolution_of(user, value) for user in value.users)


def leaves_as_planes(graph: Any, y: Value) -> bool:
    """Whether an image is wanted as planes: it leaves the model, or a chain reduces its lines."""
    if not y.users:
        return bool(graph.is_output(y))
    return any(user.op == "q7::Chain" and find(user.op).reduces(user) for user in y.users)


def competing_pixels(image: Value) -> int:
    """Channels whose multiples compete: fewer where a depthwise convolution reads several lines of
    pixels for each vector of channels (docs/decisions.md 156).
    """
    convs = [user for user in image.users if user.op in CONVS and user.inputs[0] is image]
    deep = any(conv.inputs[1].shape[1] == 1 for conv in convs)
    return COMPETING_DEPTHWISE if deep else COMPETING


def is_convolution_of(node: Node, image: Value) -> bool:
    """Whether a node reads an image as its own or as a residual."""
    return node.op in CONVS and image not in (*node.inputs[1:3], *node.inputs[4:])


def place_of(b: Any, y: Value) -> View:
    """Room for an image, the channels of a pixel side by side: in the place where a Concat of
    channels wants it, if nothing reads it but that, its beginnings, and convolutions.
    """
    joins = [user for user in y.users if user.op == "Concat"]
    wholes = {whole_of(b, user) for user in joins}
    if (
        len(wholes) != 1
        or b.graph.is_output(y)
        or not all(user in joins or is_convolution_of(user, y) for user in y.users)
    ):
        order = channels_last(len(y.shape))
        competing = competing_pixels(y)
        return allocate_rows(b, y, order=order, gains=feeds_convolutions, competing=competing)
    (whole,) = wholes
    if concat_axis(whole) != 1 or whole.output.dtype != y.dtype:
        return image_of(b, y)
    if place_of(b, whole.output).strides[1] != 1:  # a shorter Concat, of planes, has come before
        return image_of(b, y)
    for part, place in zip(whole.inputs, concat_places(whole, b)):
        if part is y:
            b.alias(y, place)
    return b.view(y)
