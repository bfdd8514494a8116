"""Images whose channels lie side by side, and where steps that write such find room for them."""

from __future__ import annotations

from typing import Any

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import product
from q7x2_ep.ir.view import View, channels_last
from q7x2_ep.ops.common import allocate_rows, image_of
from q7x2_ep.ops.movement import concat_axis, concat_places

CONVS = ("Conv", "q7::Conv")


def pixels_of(b: Any, image: Value) -> View:
    """An image as (pixels, C), with the channels of a pixel side by side."""
    shape = (product((image.shape[0], *image.shape[2:])), image.shape[1])
    view = b.channels_last(image).channels_last().reshape(shape)
    return view or b.channels_last(image, dense=True).channels_last().reshape(shape)


def room_of(b: Any, y: Value) -> View:
    """Room for an image as (pixels, C): see place_of."""
    place_of(b, y)
    return pixels_of(b, y)


def feeds_convolutions(graph: Any, value: Value) -> bool:
    """Whether convolutions alone read an image, as their own or as a residual."""
    if graph.is_output(value) or not value.users:
        return False
    return all(user.op in CONVS and value not in user.inputs[1:3] for user in value.users)


def place_of(b: Any, y: Value) -> View:
    """Room for an image, the channels of a pixel side by side: in the place where a Concat of
    channels that alone reads it wants it.
    """
    (user, *others) = y.users or (None,)
    if others or user is None or user.op != "Concat" or b.graph.is_output(y):
        order = channels_last(len(y.shape))
        return allocate_rows(b, y, order=order, gains=feeds_convolutions)
    if concat_axis(user) != 1 or user.output.dtype != y.dtype:
        return image_of(b, y)
    place_of(b, user.output)
    for part, place in zip(user.inputs, concat_places(user, b)):
        if part is y:
            b.alias(y, place)
    return b.view(y)
