"""ConvTranspose and Col2Im: windows that are added up where they overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, maximum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.activation import ACTIVATIONS
from q7x2_ep.ops.common import (
    F32,
    NO_ACTIVATION,
    Activation,
    Guard,
    Operand,
    check_known,
    dims,
    require_dtype,
    required_ints,
    size_guards,
    temporary,
    where_is,
)
from q7x2_ep.ops.conv import group_guards
from q7x2_ep.ops.image import pixels_of, room_of
from q7x2_ep.ops.matmul import gemm_step, matmul_step
from q7x2_ep.ops.window import (
    WINDOW_ATTRIBUTES,
    Axis,
    half_as_single,
    kernel_guards,
    window_attributes,
    window_fields,
)

MIN_DEPTHWISE = 8  # channels: fewer do not fill vectors
MIN_GROUPED = 16  # filters of a group that is a product of its own: a step for each takes time


def image_axes(node: Node, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[Axis]:
    """The windows, one for each element of x (`out`), over the image that they add up to (`size`).

    size = stride * (x - 1) + output_padding + reach - pads; output_shape says it instead, and pads
    follow; stride * x with auto_pad SAME_*.
    """
    if len(sizes) != len(kernel):
        raise ModelError(
            f"{where_is(node)} a kernel of {len(kernel)} dims for {len(sizes)} spatial dims"
        )
    strides, dilations, pads = window_attributes(node, kernel)
    attrs, n = node.attrs, len(sizes)
    more, wanted = attrs["output_padding"] or (0,) * n, attrs["output_shape"]
    if len(more) != n or (wanted and len(wanted) not in (n, n + 2)):
        raise ModelError(
            f"{where_is(node)} output_padding {more} and output_shape {wanted} are not for {n} dims"
        )
    found = []
    for i, (out, k, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations)):
        reach = dilation * (k - 1) + 1
        whole = stride * (out - 1) + more[i] + reach
        if wanted or attrs["auto_pad"].startswith("SAME"):
            size = wanted[i - n] if wanted else out * stride
            total = maximum(whole - size, 0)
            before = total // 2 if attrs["auto_pad"] == "SAME_UPPER" else ceildiv(total, 2)
            after = total - before
        else:
            before, after = pads[i], pads[n + i]
            size = whole - before - after
            if isinstance(size, int) and size < 0:
                raise ModelError(
                    f"{where_is(node)} pads {before} and {after} leave {size} elements"
                )
        found.append(Axis(size, k, stride, dilation, before, after, out))
    return found


def add_windows(columns: np.ndarray, spec: Sequence[Axis]) -> np.ndarray:
    """The image (N, M, ..) that columns (N, M, kernel.., windows..) add up to."""
    lead, n = columns.shape[:2], len(spec)
    image: np.ndarray = np.zeros((*lead, *(axis.size for axis in spec)), columns.dtype)
    for at in np.ndindex(*columns.shape[2 : 2 + n]):
        to, of = [], []
        for i, axis in zip(at, spec):
            first = i * axis.dilation - axis.before  # where window 0 meets the image
            low = max(0, -(first // axis.stride))
            high = max(low, min(axis.out, -((first - axis.size) // axis.stride)))
            of.append(slice(low, high))
            to.append(
                slice(first + low * axis.stride, max(first + high * axis.stride, 0), axis.stride)
            )
        every = (slice(None), slice(None))
        image[
            (*every, *(slice(s.start, min(s.stop, a.size), s.step) for s, a in zip(to, spec)))
        ] += columns[(*every, *at)][(*every, *of)]
    return image


@op("ConvTranspose")
class ConvTranspose:
    """The gradient of a convolution with w: y = sum over elements of x[n, c] * w[c], each at the
    place of its window; plus bias[m].

    Shapes: x (N, C, ..), w (C, M / group, kernel..), y (N, M, ..).
    """

    signature = "x: F, w: F, bias?: F -> y"
    attributes = {**WINDOW_ATTRIBUTES, "group": 1, "output_padding": None, "output_shape": None}

    def infer(node: Node) -> list[Type]:
        x, w = dims(node, 0), dims(node, 1)
        if len(x) < 3 or len(x) != len(w) or node.attrs["group"] < 1:
            raise ModelError(
                f"{where_is(node)} x {x} and w {w} are not (N, C, ..) and (C, M / group, ..) of "
                f"one rank, group {node.attrs['group']}"
            )
        check_known(ConvTranspose.guards(node), node)
        sizes = (axis.size for axis in image_axes(node, x[2:], w[2:]))
        return [Type(node.inputs[0].dtype, (x[0], w[1] * node.attrs["group"], *sizes))]

    def guards(node: Node) -> list[Guard]:
        x, w, groups = dims(node, 0), dims(node, 1), node.attrs["group"]
        spec = image_axes(node, x[2:], w[2:])
        return [
            *kernel_guards(node, spec),
            *group_guards(x[1], w[0], w[0], groups, "channels"),
            *size_guards((node.input(2),), w[1] * groups),
            *((maximum(-axis.size, 0), 0, f"the pads leave {axis.size} elements") for axis in spec),
        ]

    @half_as_single
    def reference(
        node: Node, x: np.ndarray, w: np.ndarray, bias: Optional[np.ndarray] = None
    ) -> np.ndarray:
        group, spec = node.attrs["group"], image_axes(node, x.shape[2:], w.shape[2:])
        channels, places = w.shape[0] // group, math.prod(x.shape[2:])
        grouped = x.reshape(x.shape[0], group, channels, places)
        weights = w.reshape(group, channels, w.shape[1], math.prod(w.shape[2:]))
        columns = np.einsum("ngcp,gcmt->ngmtp", grouped, weights)
        shape = (x.shape[0], group * w.shape[1], *w.shape[2:], *x.shape[2:])
        y = add_windows(columns.reshape(shape), spec)
        return y if bias is None else y + bias.reshape(-1, *[1] * len(spec))

    def lower(node: Node, b: Any) -> None:
        transpose_steps(node, b, NO_ACTIVATION)


@op("q7::ConvTranspose")
class FusedConvTranspose:
    """y = act(conv_transpose(x, w) + bias).

    activation, with act_alpha and act_beta where it has them: a member of ACTIVATIONS.
    Shapes: as ConvTranspose.
    Source: ONNX ConvTranspose.
    """

    signature = "x, w, bias? -> y"
    attributes = {
        **ConvTranspose.attributes,
        "activation": "none",
        "act_alpha": None,
        "act_beta": None,
    }
    infer = ConvTranspose.infer
    guards = ConvTranspose.guards

    def decompose(
        g: Any,
        x: Value,
        w: Value,
        bias: Optional[Value] = None,
        activation: str = "none",
        act_alpha: Optional[float] = None,
        act_beta: Optional[float] = None,
        **attrs: Any,
    ) -> Value:
        y = g.ConvTranspose(x, w, bias, **attrs)
        return ACTIVATIONS[activation](g, y, act_alpha or 0.0, act_beta or 0.0)

    def lower(node: Node, b: Any) -> None:
        transpose_steps(node, b, Activation.of(node.attrs))


def transpose_steps(node: Node, b: Any, act: Activation) -> None:
    """One product for each group, whose rows are pixels and the windows that they make, which are
    then added up; with a group to each channel windows are pixels times weights, as they are added
    up; with other groups of few filters, or weights that are not constant, windows are columns.
    """
    x, w, groups = node.inputs[0], node.inputs[1], node.attrs["group"]
    require_dtype(node, x.dtype, F32)
    spec = image_axes(node, x.shape[2:], w.shape[2:])
    fields = window_fields(node, spec, 3)
    batch, (channels, filters) = x.shape[0], w.shape[:2]
    taps, places = product(w.shape[2:]), product(x.shape[2:])
    if w.const is not None and (groups == 1 or filters >= MIN_GROUPED):
        k, n, bias = channels // groups, taps * filters, node.input(2)
        rows, pixels = pixels_of(b, x), room_of(b, node.output)
        parts = w.const.reshape(groups, k, filters, taps)
        for i, part in enumerate(np.ascontiguousarray(np.moveaxis(parts, 2, 3))):
            panels = b.graph.constant(part, Type(w.dtype, part.shape), w.name)
            columns = b.allocate(temporary(b, x.dtype, (batch * places, n)))
            packed = b.packed(k, n, n, 1, panels, matrices=1)
            gemm_step(b, rows.slice(1, i * k, k), packed, columns, n)
            some = bias and b.view(bias).slice(0, i * filters, filters)
            into = pixels.slice(1, i * filters, filters)
            col2im_step(b, columns, some, node.output, fields, act, into)
        return
    if groups == channels >= MIN_DEPTHWISE and filters == 1 and w.const is not None:
        turned = np.ascontiguousarray(w.const.reshape(channels, taps).T)
        weights = b.graph.constant(turned, Type(w.dtype, turned.shape), w.name)
        image = b.channels_last(x, dense=True).channels_last()
        pixels = room_of(b, node.output)
        col2im_step(b, image, node.input(2), node.output, fields, act, pixels, weights)
        return
    rows = filters * taps
    columns = b.allocate(temporary(b, x.dtype, (batch, groups, rows, places)))
    matmul_step(
        b,
        b.contiguous(w).reshape((groups, channels // groups, rows)).transpose((0, 2, 1)),
        b.contiguous(x).reshape((batch, groups, channels // groups, places)),
        columns,
    )
    col2im_step(b, columns, node.input(2), node.output, fields, act)


def col2im_step(
    b: Any,
    columns: Operand,
    bias: Optional[Value],
    y: Value,
    fields: dict,
    act: Activation,
    pixels: Optional[View] = None,
    weights: Optional[Value] = None,
) -> None:
    """y (N, M, ..) = act(the windows, added up, + bias). pixels: of y, (pixels, M), where columns
    have channels last, too. weights: (taps, M), by which such columns are still to be multiplied.
    """
    b.step(
        "col2im",
        kernel="unary",
        cols=columns,
        w=weights,
        bias=bias,
        y=y if pixels is None else pixels,
        N=y.shape[0],
        M=y.shape[1] if pixels is None else pixels.shape[1],
        act=act.name,
        act_alpha=act.alpha,
        act_beta=act.beta,
        last=int(pixels is not None),
        y_stride=1 if pixels is None else pixels.strides[0],
        **fields,
    )


@op("Col2Im")
class Col2Im:
    """The image whose blocks, added up where they overlap, are the columns of x.

    Shapes: x (N, M * block, places), y (N, M, image..).
    """

    signature = "x, image_shape: int64, block_shape: int64 -> y"
    attributes = {"dilations": None, "pads": None, "strides": None}

    def axes(node: Node) -> list[Axis]:
        image, block = required_ints(node, 1, "the image"), required_ints(node, 2, "the block")
        return Col2Im.windows(node, image, block)

    def windows(node: Node, image: Sequence[int], block: Sequence[int]) -> list[Axis]:
        attrs = {"auto_pad": "NOTSET", "kernel_shape": None, **node.attrs}
        strides, dilations, pads = window_attributes(Node(node.op, [], [], attrs, node.name), block)
        n = len(block)
        if len(image) != n:
            raise ModelError(f"{where_is(node)} blocks {block} do not cover an image {image}")
        found = []
        for i, (size, k, stride, dilation) in enumerate(zip(image, block, strides, dilations)):
            out = (size + pads[i] + pads[n + i] - dilation * (k - 1) - 1) // stride + 1
            found.append(Axis(size, k, stride, dilation, pads[i], pads[n + i], out))
        return found

    def infer(node: Node) -> list[Type]:
        x, spec = dims(node), Col2Im.axes(node)
        if len(x) != 3:
            raise ModelError(f"{where_is(node)} x {x} is not (N, channels * block, places)")
        check_known(Col2Im.guards(node), node)
        channels = x[1] // product(axis.kernel for axis in spec)
        return [Type(node.inputs[0].dtype, (x[0], channels, *(axis.size for axis in spec)))]

    def guards(node: Node) -> list[Guard]:
        x, spec = dims(node), Col2Im.axes(node)
        block = product(axis.kernel for axis in spec)
        places = product(maximum(axis.out, 0) for axis in spec)
        return [
            (x[1] // block * block, x[1], f"{x[1]} rows do not make blocks of {block}"),
            (x[2], places, f"{x[2]} columns for {places} places"),
        ]

    def reference(
        node: Node, x: np.ndarray, image_shape: np.ndarray, block_shape: np.ndarray
    ) -> np.ndarray:
        spec = Col2Im.windows(node, image_shape.tolist(), block_shape.tolist())
        outs = (axis.out for axis in spec)
        channels = x.shape[1] // int(block_shape.prod())
        return add_windows(x.reshape(len(x), channels, *block_shape, *outs), spec)

    def lower(node: Node, b: Any) -> None:
        x = node.inputs[0]
        require_dtype(node, x.dtype, F32)
        fields = window_fields(node, Col2Im.axes(node), 3)
        col2im_step(b, x, None, node.output, fields, NO_ACTIVATION)
