"""Convolution over any number of spatial dims, and which step computes it."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, maximum, minimum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.activation import ACTIVATIONS
from q7x2_ep.ops.common import (
    F32,
    NO_ACTIVATION,
    Activation,
    Guard,
    check_known,
    dims,
    fill_step,
    is_image,
    materialized,
    require_dtype,
    reshaped,
    size_guards,
    temporary,
    where_is,
)
from q7x2_ep.ops.image import leaves_as_planes, pixel_stride, pixels_of, place_of
from q7x2_ep.ops.matmul import matmul_scratch
from q7x2_ep.ops.window import (
    WINDOW_ATTRIBUTES,
    geometry,
    half_as_single,
    is_pointwise,
    taps,
    window_attributes,
    window_fields,
    window_guards,
)
from q7x2_ep.ops.winograd import (
    is_winograd,
    parts_of,
    reads_too_much,
    tiled_axes,
    tiles_of_block,
    turned,
    winograd_room,
    winograd_rows,
)

MIN_FILTERS, MIN_GROUPED = 8, 4  # of the only group; of one of several
MAX_DIRECT = 1 << 15  # weights of a group: 128 KB of L2
MAX_PLANES = 4
PLANAR = 8  # channels of a group whose vectors are better of pixels, at most
MIN_VECTORS = 6  # of the pixels of a line, times up to MIN_GROUPED filters
MIN_GATED = 5  # pixels to a filter where its weights take the gates


def conv_shape(node: Node, x: tuple[Dim, ...], w: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape of a convolution of tensors of the shapes x and w."""
    return (x[0], w[0], *(axis.out for axis in geometry(node, x[2:], w[2:])))


def windows(node: Node, x: Value, w: Value, ndim: int) -> dict[str, Dim]:
    """The fields of a step that says where the kernel of w meets x.

    Raises: UnsupportedOp for more than `ndim` spatial dims.
    """
    spec = geometry(node, x.shape[2:], w.shape[2:])
    return {"N": x.shape[0], "C": x.shape[1], **window_fields(node, spec, ndim)}


@op("Conv")
class Conv:
    """y[n, m] = sum over channels and kernel positions of w[m] * x[n], shifted; plus bias[m].

    Shapes: x (N, C, ..), w (M, C / group, kernel..), y (N, M, ..).
    """

    signature = "x: F, w: F, bias?: F -> y"
    attributes = {**WINDOW_ATTRIBUTES, "group": 1}

    def infer(node: Node) -> list[Type]:
        x, w = dims(node, 0), dims(node, 1)
        if len(x) < 3 or len(x) != len(w) or node.attrs["group"] < 1:
            raise ModelError(
                f"{where_is(node)} x {x} and w {w} are not (N, C, ..) and (M, C / group, ..) of "
                f"one rank, group {node.attrs['group']}"
            )
        check_known(channel_guards(node), node)
        return [Type(node.inputs[0].dtype, conv_shape(node, x, w))]

    def guards(node: Node) -> list[Guard]:
        spec = geometry(node, dims(node, 0)[2:], dims(node, 1)[2:])
        return [*channel_guards(node), *window_guards(node, spec)]

    @half_as_single
    def reference(
        node: Node, x: np.ndarray, w: np.ndarray, bias: Optional[np.ndarray] = None
    ) -> np.ndarray:
        """One product per kernel position, summed."""
        group, spec = node.attrs["group"], geometry(node, x.shape[2:], w.shape[2:])
        outs = [axis.out for axis in spec]
        grouped = x.reshape(x.shape[0], group, w.shape[1], *x.shape[2:])
        weights = w.reshape(group, w.shape[0] // group, *w.shape[1:])
        y: np.ndarray = np.zeros(
            (x.shape[0], group, w.shape[0] // group, *outs), np.result_type(x, w)
        )
        for at, part in taps(grouped, spec, 0):
            y += np.einsum("ngc...,gmc->ngm...", part, weights[(slice(None),) * 3 + at])
        y = y.reshape(x.shape[0], w.shape[0], *outs)
        return y if bias is None else y + bias.reshape(-1, *[1] * len(spec))

    def lower(node: Node, b: Any) -> None:
        conv_step(node, b, None, NO_ACTIVATION)


@op("q7::Conv")
class FusedConv:
    """y = act(conv(x, w) + bias) * scale + shift + residual, or with residual_first act(conv(x, w)
    + bias + residual) * scale + shift.

    activation, with act_alpha and act_beta where it has them: a member of ACTIVATIONS.
    gate: x is gate * x; kernels of one pixel in one group, see `takes_gate`.
    scale and shift: both or none, and see `takes_scale`.
    Shapes: as Conv, residual as y, gate (N, C, 1, ..), scale and shift (M,).
    Source: ONNX Conv; the epilogue of csrc/kernels/gemm.h; gates of Hu et al. 2018
    (squeeze and excite).
    """

    signature = "x, w, bias?, residual?, gate?, scale?, shift? -> y"
    attributes = {
        **Conv.attributes,
        "activation": "none",
        "act_alpha": None,
        "act_beta": None,
        "residual_first": 0,
    }
    infer = Conv.infer
    guards = Conv.guards

    def decompose(
        g: Any,
        x: Value,
        w: Value,
        bias: Optional[Value] = None,
        residual: Optional[Value] = None,
        gate: Optional[Value] = None,
        scale: Optional[Value] = None,
        shift: Optional[Value] = None,
        activation: str = "none",
        act_alpha: Optional[float] = None,
        act_beta: Optional[float] = None,
        residual_first: int = 0,
        **attrs: Any,
    ) -> Value:
        y = g.Conv(x if gate is None else g.Mul(x, gate), w, bias, **attrs)
        if residual is not None and residual_first:
            y = g.Add(y, residual)
        y = ACTIVATIONS[activation](g, y, act_alpha or 0.0, act_beta or 0.0)
        if scale is not None and shift is not None:
            column = [-1, *(1 for _ in y.shape[2:])]
            y = g.Add(g.Mul(y, g.Reshape(scale, column)), g.Reshape(shift, column))
        return y if residual is None or residual_first else g.Add(y, residual)

    def lower(node: Node, b: Any) -> None:
        residual_first = node.attrs["residual_first"]
        conv_step(node, b, node.input(3), Activation.of(node.attrs), residual_first)


def takes_gate(node: Node, x: Value, gate: Value) -> bool:
    """Whether a convolution can multiply its weights by the gate of each channel in place of x
    (N, C, ..), and they are fewer.
    """
    w = node.inputs[1]
    if x.shape is None or w.const is None or node.attrs["group"] != 1:
        return False
    pixels, ones = product(x.shape[2:]), (1,) * (len(x.shape) - 2)
    fits = (
        gate.shape == (*x.shape[:2], *ones)
        and x.dtype == dtypes.FLOAT
        and tuple(w.shape[2:]) == ones
        and w.shape[0] >= MIN_FILTERS
        and isinstance(pixels, int)
        and pixels >= MIN_GATED * w.shape[0]
    )
    if not fits or x.shape[0] == 1:
        return fits
    return len(x.shape) < 5 and is_direct(node, windows(node, x, w, 3))  # has weights for each


def takes_scale(node: Node) -> bool:
    """Whether the step of a convolution by constant weights has what scales and shifts each channel
    behind its activation: not that of few filters to a group, whose channels are rows.
    """
    (filters, channels), groups = node.inputs[1].shape[:2], node.attrs["group"]
    if groups == 1:
        return filters >= MIN_FILTERS
    return channels == 1 or filters // groups >= MIN_GROUPED


def channel_guards(node: Node, bias: int = 2) -> list[Guard]:
    """The weights and the bias, input `bias`, are for the channels of x, in whole groups."""
    groups = node.attrs["group"]
    channels, (filters, per_group) = dims(node, 0)[1], dims(node, 1)[:2]
    found = group_guards(channels, per_group * groups, filters, groups, "filters")
    return found + size_guards((node.input(bias),), filters)


def group_guards(channels: Dim, wanted: Dim, parted: Dim, groups: int, what: str) -> list[Guard]:
    """The weights are for the channels of x; what is parted into groups makes whole ones."""
    return [
        (channels, wanted, "the weights are for another number of channels"),
        (parted // groups * groups, parted, f"{parted} {what} do not make {groups} groups"),
    ]


def conv_step(
    node: Node, b: Any, residual: Optional[Value], act: Activation, residual_first: int = 0
) -> None:
    """The step of a Conv, or of what else has its attributes and first three operands.

    It reads and writes images whose channels lie side by side. Where there are few filters to a
    group, most of a panel would be empty: then it works on planes, and rows of filters, unless x
    has no planes.
    """
    require_dtype(node, node.inputs[0].dtype, F32)
    if is_flat(node, b):
        node, residual = of_planes(node, b, residual)
    x, w, groups = node.inputs[0], node.inputs[1], node.attrs["group"]
    spec = windows(node, x, w, 3)
    fields: dict[str, Any] = {
        **spec,
        "bias": node.input(2),
        "residual_first": residual_first,
        "act": act.name,
        "act_alpha": act.alpha,
        "act_beta": act.beta,
    }
    each, unknown = w.shape[0] // groups, w.const is None or w.shape[1] == 0
    few = unknown or each < (MIN_FILTERS if groups == 1 else MIN_GROUPED)
    if few and not unknown and groups == 1:  # planes of an image are a copy, which takes longer
        few = not (is_image(b, x) and (is_direct(node, spec) or is_winograd(node, spec)))
    several = not unknown and groups > 1 and each < MIN_FILTERS
    tall = b.kernel("winograd").mr > b.constants["SHORT_TILE"]
    if is_planar(node, b):
        planes_step(node, b, fields, residual)
    elif (w.shape[1] == 1 and (w.shape[0] == groups or several)) or is_narrow(node, b):
        depthwise_step(node, b, fields, residual)
    elif few:
        if any(node.input(i) is not None for i in (4, 5, 6)):  # takes_gate and takes_scale know
            raise UnsupportedOp(f"{where_is(node)} has gates or factors, which `conv` has not")
        k = minimum(product(w.shape[1:]), b.constants["CONV_K_BLOCK"])
        pack = matmul_scratch(b, k, spec["OD"] * spec["OH"] * spec["OW"], "CONV_PANELS")
        fields.update(x=x, w=w, residual=residual, pack=pack, M=w.shape[0], groups=groups)
        step_of_planes(node, b, "conv", "gemm", fields, tiles=False)
    elif is_direct(node, spec):
        direct_step(node, b, fields, residual)
    elif is_winograd(node, spec) and not reads_too_much(tall, spec):
        winograd_step(node, b, fields, residual)
    else:
        filters, channels, taps = w.shape[0], w.shape[1], product(w.shape[2:])
        pixels = spec["N"] * spec["OD"] * spec["OH"] * spec["OW"]
        fields["w"] = packed_filters(b, w, taps, groups, node.input(4), "gemm")
        rows = minimum(pixels, b.constants["GEMM_ROWS"])
        columns = min(channels * taps, b.constants["CONV_K_BLOCK"])
        fields["windows"] = b.threads * rows * columns * 4
        fields.update(last_fields(node, b, residual), M=filters, groups=groups)
        b.step("conv_last", kernel="gemm", tiles=False, **fields)


def is_planar(node: Node, b: Any) -> bool:
    """Whether vectors of pixels win: those of channels, or of filters, would be half empty, or
    planes are there and wanted, and lines fill vectors.
    """
    x, w, groups = node.inputs[0], node.inputs[1], node.attrs["group"]
    if w.const is None or len(w.shape) > 4 or any(node.input(i) is not None for i in (4, 5, 6)):
        return False
    lanes = b.kernel("depthwise").nr
    narrow = 0 < w.shape[1] <= min(PLANAR, lanes // 2)
    if is_image(b, x) and x.shape[1] != 1:  # planes of an image are a copy, which takes longer
        return narrow and w.shape[0] < MIN_GROUPED
    if narrow and w.shape[0] < (MIN_FILTERS if groups == 1 else lanes):
        return True
    if not leaves_as_planes(b.graph, node.output) or not (narrow or is_pointwise(node)):
        return False
    if not 0 < product(w.shape[1:]) <= b.constants["CONV_K_BLOCK"]:
        return False
    pixels, least = product(node.output.shape[2:]), b.constants["PLANE_COLUMNS"]
    if narrow:
        filters = min(w.shape[0] // groups, MIN_GROUPED)
        pixels, least = node.output.shape[-1] * filters, MIN_VECTORS * lanes
    return not isinstance(pixels, int) or pixels >= least


def planes_step(node: Node, b: Any, fields: dict[str, Any], residual: Optional[Value]) -> None:
    """A convolution of few channels and filters to a group, whose vectors are of pixels."""
    x, w, groups = node.inputs[0], node.inputs[1], node.attrs["group"]
    view, channels, k = b.view(x), w.shape[1], product(w.shape[1:])
    if is_pointwise(node) and view.is_contiguous():  # all lines are one
        pixels = fields["OH"] * fields["OW"]
        view = view.reshape((*view.shape[:2], pixels))
        fields.update(H=1, OH=1, W=pixels, OW=pixels)
    columns = minimum(fields["OW"], b.constants["PLANE_COLUMNS"])
    under = (fields["kh"] - 1) * fields["dilation_h"] + 1
    beyond = ceildiv((fields["kw"] - 1) * fields["dilation_w"], fields["stride_w"])
    least = channels * under * fields["stride_w"] * (columns + beyond)
    room = maximum(least, b.constants["PLANE_ROOM"]) + b.constants["PLANE_SLACK"]
    make_flat(fields, view)
    fields.update(x=view, w=w, residual=residual, M=w.shape[0], groups=groups)
    fields.update(offsets=8 * k, lines=b.threads * 4 * room)
    step_of_planes(node, b, "conv_planes", "conv_planes", fields)


def make_flat(fields: dict[str, Any], x: View) -> None:
    """Makes the fields of a step on volumes those of one on images, of which x has any strides."""
    for name in ("D", "OD", "kd", "stride_d", "dilation_d", "pad_front", "x_d_stride"):
        fields.pop(name, None)
    h_stride = x.strides[-2] if len(x.shape) > 3 else 0
    fields.update(x_n_stride=x.strides[0], x_c_stride=x.strides[1])
    fields.update(x_h_stride=h_stride, x_w_stride=x.strides[-1])


def step_of_planes(
    node: Node, b: Any, op: str, kernel: str, fields: dict[str, Any], **how: Any
) -> None:
    """A step whose output is dense planes."""
    y = planes = node.output
    if b.is_placed(y) and not b.view(y).is_contiguous():  # an image that is part of a volume
        planes = temporary(b, y.dtype, y.shape)
    b.step(op, kernel=kernel, y=planes, **how, **fields)
    if planes is not y:
        b.copy(b.view(planes), b.view(y))


def packed_filters(
    b: Any, w: Value, taps: int, groups: int, gate: Optional[Value], kernel: str
) -> Any:
    """The panels of each group for a kernel, K in the order (tap, the rest), times a gate."""
    filters, k = w.shape[0], product(w.shape[1:])
    parts = {"matrices": groups, "taps": taps, "tap_stride": 1}
    packed = b.packed(k, filters // groups, taps, k, w, kernel=kernel, **parts)
    return gated(b, packed, gate, filters, b.kernel(kernel).nr)


def gated(
    b: Any, packed: Any, gate: Optional[Value], lanes: int, nr: int, together: int = 1
) -> Any:
    """Panels of so many lanes, nr to each, the rows of each channel times its gate, if there is
    one, for each image; together: channels to a row.
    """
    if gate is None:
        return packed
    images, rows = gate.shape[0], gate.shape[1] // together
    panels = (int(ceildiv(lanes, nr)), rows, nr)
    gates = b.contiguous(gate).reshape((images, 1, rows, together))
    if together > 1:  # as long as a panel: runs of two take longer than all else
        wide = gates._replace(
            shape=(images, 1, rows, nr // together, together),
            strides=(*gates.strides[:3], 0, gates.strides[3]),
        )
        gates = materialized(b, wide).reshape((images, 1, rows, nr))
    y = temporary(b, gate.dtype, (images, *panels))
    fields = {"op": "mul", "dtype": y.dtype, "ndim": 4, "shape": y.shape, "a_shape": (1, *panels)}
    b.step("binary", kernel="binary", a=packed, b=gates, y=y, b_shape=gates.shape, **fields)
    return b.view(y)


def is_flat(node: Node, b: Any) -> bool:
    """Whether a convolution of volumes has a kernel of one plane, so that each plane is an image,
    and reads images as they lie: where it has filters enough, or they lie so.
    """
    x, w = node.inputs[:2]
    if len(x.shape) != 5 or w.const is None:
        return False
    if w.shape[0] < MIN_FILTERS * node.attrs["group"] and not is_image(b, x):
        return False
    return geometry(node, x.shape[2:], w.shape[2:])[0].is_flat


def of_planes(node: Node, b: Any, residual: Optional[Value]) -> tuple[Node, Optional[Value]]:
    """The same convolution of images (N D, C, H, W), and its residual."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    given = [None if v is None else planes_of(b, v, evenly_placed(b, v)) for v in (x, residual)]
    images = [*given, planes_of(b, y, place_of(b, y))]
    flat = np.asarray(w.const).reshape(*w.shape[:2], *w.shape[3:])
    weights = b.graph.constant(flat, Type(w.dtype, flat.shape), w.name)
    strides, dilations, pads = window_attributes(node, w.shape[2:])
    attrs = {
        **node.attrs,
        "kernel_shape": flat.shape[2:],
        "strides": strides[1:],
        "dilations": dilations[1:],
        "pads": [*pads[1:3], *pads[4:]],
    }
    shared = [node.input(2), None, *(node.input(i) for i in (4, 5, 6))]  # all but the residual
    image_node = Node(node.op, [images[0], weights, *shared], [images[2]], attrs, node.name)
    for value in filter(None, shared):
        value.users.remove(image_node)  # the graph does not have it
    return image_node, images[1]


def evenly_placed(b: Any, volume: Value) -> View:
    """A volume (N, C, D, H, W) whose planes are as far apart in all of a batch."""
    (batch, _, depth, *_), view = volume.shape, b.view(volume)
    if batch == 1 or depth == 1 or view.strides[0] == depth * view.strides[2]:
        return view
    return b.channels_last(volume, dense=True)


def planes_of(b: Any, volume: Value, view: View) -> Value:
    """A volume that is evenly placed, seen as its planes."""
    batch, channels, depth, *plane = volume.shape
    images = temporary(b, volume.dtype, (batch * depth, channels, *plane))
    apart = view.strides[0 if depth == 1 else 2]  # the stride of an only plane means nothing
    strides = (apart, view.strides[1], *view.strides[3:])
    b.alias(images, view._replace(shape=images.shape, strides=strides))
    return images


def winograd_step(node: Node, b: Any, fields: dict[str, Any], residual: Optional[Value]) -> None:
    """A convolution whose weights are transformed at load."""
    w, groups, axes = node.inputs[1], node.attrs["group"], tiled_axes(fields)
    fields.update(last_fields(node, b, residual), M=w.shape[0], groups=groups)
    fields.update(y_d_pixels=fields["OH"] * fields["OW"], y_h_pixels=fields["OW"], y_w_pixels=1)
    fields = turned(fields)
    stride, kernel = fields.pop("stride_w"), (fields["kd"], fields["kh"], fields["kw"])
    rows = winograd_rows(w.shape[1], *kernel)
    k = w.shape[1] * fields["kd"] * parts_of(fields["kw"])
    block = b.constants["WINOGRAD_TILES"]
    if b.target.isa == "amx" and axes == "hw" and stride == 1:
        block = tiles_of_block(k, w.shape[0] // groups * rows, b.constants)
    floats = winograd_room(axes, stride, k, b.kernel("winograd").nr, block)
    fields.update(w=b.transformed(w, groups, kernel, rows, stride), block=block)
    fields.update(room=b.threads * floats * 4, stride=stride)
    del fields["stride_h"]
    b.step("winograd", kernel="winograd", **fields)


def is_narrow(node: Node, b: Any) -> bool:
    """Whether a vector holds several groups, each of as many filters as channels."""
    w, groups = node.inputs[1], node.attrs["group"]
    if w.const is None or groups == 1:
        return False
    width, lanes = w.shape[1], b.kernel("depthwise").nr
    return width == w.shape[0] // groups and width > 1 and lanes % (2 * width) == 0


def depthwise_step(node: Node, b: Any, fields: dict[str, Any], residual: Optional[Value]) -> None:
    """A convolution of one channel to a group, of which several filters get one each, or of few."""
    x, w, image = node.inputs[0], node.inputs[1], None
    flat = (w.shape[0], w.shape[1], product(w.shape[2:]))
    fields["width"] = w.shape[1]
    if w.const is None:
        fields["w"] = materialized(b, reshaped(b, w, flat).transpose((2, 1, 0)))
    else:
        turned = np.ascontiguousarray(w.const.reshape(flat).T)
        fields["w"] = b.graph.constant(turned, Type(w.dtype, turned.shape), w.name)
    groups = node.attrs["group"]
    if w.shape[1] == 1 and w.shape[0] != groups:
        image, fields["C"] = repeated(b, x, w.shape[0] // groups), w.shape[0]
    b.step("depthwise", kernel="depthwise", **fields, **last_fields(node, b, residual, image))


def repeated(b: Any, x: Value, times: int) -> View:
    """A copy of an image with each channel so many times: a filter has one of its own then."""
    last = b.channels_last(x).channels_last()
    shape, strides = (*last.shape, times), (*last.strides, 0)
    dense = materialized(b, last._replace(shape=shape, strides=strides))
    image = dense.reshape((*last.shape[:-1], last.shape[-1] * times))
    return image.transpose((0, len(last.shape) - 1, *range(1, len(last.shape) - 1)))


def is_direct(node: Node, spec: dict[str, Dim]) -> bool:
    """Whether csrc/kernels/conv_direct.h applies, and wins: all weights of a group stay in L2, and
    copies of windows would cost too much for what is done with them.
    """
    channels, groups = node.inputs[1].shape[1], node.attrs["group"]
    plane = len(node.output.shape) < 5 or channels * groups <= MAX_PLANES
    floats = product(node.inputs[1].shape) // groups
    return plane and floats <= MAX_DIRECT and not is_winograd(node, spec)


def direct_step(node: Node, b: Any, fields: dict[str, Any], residual: Optional[Value]) -> None:
    """A convolution that reads x where it lies: images of few channels may have them first."""
    x, w, groups = node.inputs[0], node.inputs[1], node.attrs["group"]
    view = b.view(x) if len(x.shape) < 5 else depths_as_channels(node, b)
    planes = view.strides[-1] == 1 and w.shape[1] * groups <= MAX_PLANES
    if not planes:
        view = b.channels_last(x)
    fields.update(N=view.shape[0], C=view.shape[1])
    filters, k, taps = w.shape[0], product(w.shape[1:]), product(w.shape[2:][-2:])
    channels = k // taps
    columns = minimum(maximum(fields["OW"], 1), b.constants["CONV_PIXELS"])
    band = b.constants["CONV_PIXELS"] // columns
    height, width = (
        (n - 1) * fields[f"stride_{i}"] + (fields[f"k{i}"] - 1) * fields[f"dilation_{i}"] + 1
        for n, i in ((band, "h"), (columns, "w"))
    )
    fields.update(last_fields(node, b, residual, view), M=filters, groups=groups)
    make_flat(fields, view)
    kernel, gate = b.kernel("conv_direct"), node.input(4)
    paired = not planes and are_paired(kernel, filters // groups, channels, taps)
    fields["together"] = 2 if paired else 1
    if paired:
        matrices = paired_weights(w.const, groups, taps)
        whole = b.graph.constant(matrices, Type(w.dtype, matrices.shape), w.name)
        lanes = matrices.shape[2]
        packed = b.packed(k // 2, lanes, lanes, 1, whole, kernel="conv_direct")
        fields["w"] = gated(b, packed, gate, lanes, kernel.nr, 2)
    else:
        fields["w"] = packed_filters(b, w, taps, groups, gate, "conv_direct")
    many = gate is not None and gate.shape[0] != 1
    fields["w_n_stride"] = product(fields["w"].shape[1:]) if many else 0
    fields.update(offsets=b.threads * 8 * k, lines=b.threads * channels * height * width * 4)
    b.step("conv_direct", kernel="conv_direct", **fields)


def are_paired(kernel: Any, filters: int, channels: int, taps: int) -> bool:
    """Whether conv_direct is faster with two channels of a pixel in a vector: where the filters of
    a group fill few vectors, or the last one by half, and k is long enough for sums of lanes.
    """
    k, panels = channels * taps, ceildiv(2 * filters, kernel.nr)
    paired = step_cost(kernel, 2 * filters) * k / 2 + 3 * kernel.mr * panels
    return channels % 2 == 0 and paired < step_cost(kernel, filters) * k


def step_cost(kernel: Any, lanes: int) -> int:
    """Of a row of panels in a tile: products, or loads where a panel is half full."""
    whole, rest = divmod(lanes, kernel.nr)
    if 0 < rest <= kernel.nr // 2:
        return whole * 2 * kernel.mr + kernel.mr + 2
    return ceildiv(lanes, kernel.nr) * 2 * kernel.mr


def paired_weights(w: np.ndarray, groups: int, taps: int) -> np.ndarray:
    """w (M, C, ..) as matrices (groups, taps * C / 2, M / groups * 2): of each filter, those of two
    channels side by side.
    """
    filters = w.shape[0] // groups
    split = w.reshape(groups, filters, -1, 2, taps).transpose(0, 1, 4, 2, 3)
    pairs = np.ascontiguousarray(split).view(np.float64)[..., 0]  # of floats: copied as one
    turned = np.ascontiguousarray(pairs.transpose(0, 2, 3, 1))
    return turned.view(np.float32).reshape(groups, -1, filters * 2)


def depths_as_channels(node: Node, b: Any) -> View:
    """A volume of few channels as images (N OD, C kd, H, W), channels in the order of w: the
    planes under windows are less to copy than the windows.
    """
    x, w = node.inputs[:2]
    axis = geometry(node, x.shape[2:], w.shape[2:])[0]
    volume = b.view(x)
    if axis.before != 0 or axis.after != 0:
        batch, channels, depth, *plane = x.shape
        shape = (batch, channels, depth + axis.before + axis.after, *plane)
        whole = temporary(b, x.dtype, shape)
        fill_step(b, 0.0, whole)
        b.copy(volume, b.view(whole).slice(2, axis.before, depth))
        volume = b.view(whole)
    batch, channels, _, *plane = volume.shape
    n_stride, c_stride, d_stride, *strides = volume.strides
    windows = volume._replace(
        shape=(batch, axis.out, channels, axis.kernel, *plane),
        strides=(n_stride, d_stride * axis.stride, c_stride, d_stride * axis.dilation, *strides),
    )
    dense = materialized(b, windows)
    return dense.reshape((batch * axis.out, channels * axis.kernel, *plane))


def last_fields(
    node: Node, b: Any, residual: Optional[Value], x: Optional[View] = None
) -> dict[str, Any]:
    """The operands of a step on images whose channels lie side by side, but for weights and bias;
    x: where not so.
    """
    x, y = x or b.channels_last(node.inputs[0]), place_of(b, node.output)
    added = None if residual is None else pixels_of(b, residual)
    channels = x.shape[1]
    strides = {"d": 0, "h": 0, "w": channels}
    for name, dim, stride in zip(("w", "h", "d"), x.shape[:1:-1], x.strides[:1:-1]):
        strides[name] = stride if dim != 1 else strides[name]
    return {
        "x": x,
        "y": y,
        "residual": added,
        "scale": node.input(5),
        "shift": node.input(6),
        "x_n_stride": x.strides[0],
        **{f"x_{name}_stride": stride for name, stride in strides.items()},
        "y_stride": pixel_stride(y),
        "residual_stride": y.shape[1] if added is None else added.strides[0],
    }
