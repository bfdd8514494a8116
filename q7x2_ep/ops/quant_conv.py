"""Convolutions of integers that stand for real numbers. Read quant_product.py first.

Source: ONNX ConvInteger, QLinearConv; Jacob et al. 2018, section 2.2.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Node, Type, Value, array_type
from q7x2_ep.ir.shape import ceildiv, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import check_known, dims
from q7x2_ep.ops.conv import Conv, conv_shape, group_guards, windows
from q7x2_ep.ops.image import pixel_stride, place_of
from q7x2_ep.ops.quant import require_constants, saturated
from q7x2_ep.ops.quant_pack import (
    centred,
    fits_tiles,
    pack,
    pack_taps,
    qgemm_room,
    reads_windows,
    side_by_side,
)
from q7x2_ep.ops.quant_product import (
    Finish,
    Operands,
    QuantizedLinear,
    require_sizes,
    scaled_finish,
)
from q7x2_ep.ops.window import geometry, window_fields, window_guards


def lower_conv(
    node: Node, b: Any, x: Value, x_zero: Optional[Value], w: Value, zeros: Any, finish: Finish
) -> None:
    """node.output = conv(x - x_zero, w - zeros): channels last a product of its windows, or
    where groups are single channels a step of its own.

    Raises: UnsupportedOp where w is computed, or for more than two spatial dims.
    """
    groups, filters = node.attrs["group"], w.shape[0]
    require_sizes(node, filters, x, x_zero, w, zeros, finish)
    found = group_guards(x.shape[1], w.shape[1] * groups, filters, groups, "filters")
    check_known(found, node)
    for guard in [*found, *window_guards(node, geometry(node, x.shape[2:], w.shape[2:]))]:
        b.guard(*guard)
    fields = windows(node, x, w, 2)
    offsets = None if zeros is None else zeros.const
    if w.shape[:2] == (groups, 1):
        flat = centred(w.const.reshape(filters, -1).T, offsets).T
        qdepthwise_step(node, b, x, x_zero, flat.reshape(w.shape), finish)
        return
    tiles = groups > 1 or fits_tiles(product(w.shape[1:]), filters)
    kernel = b.kernel("qgemm", tiles)
    matrix, offsets, groups = side_by_side(
        w.const.reshape(*w.shape[:2], -1), offsets, groups, kernel
    )
    lines, room = room_of(b, fields, groups, kernel)
    packed, left = pack(matrix, offsets, kernel)
    image_step(
        *(node, b, "qconv_last", "qgemm", x, x_zero, packed),
        tiles=tiles,
        w_zero=None if left is None else b.graph.constant(left, array_type(left), "zeros"),
        rows=b.threads * room,
        M=filters,
        groups=groups,
        lines=lines,
        **finish.plain(),
        **fields,
    )


def room_of(b: Any, fields: dict[str, Any], groups: int, kernel: Any) -> tuple[int, Any]:
    """How many lines of y are a task, or 0, and bytes of a thread: csrc/ops/qconv_last.c."""
    channels, columns, (kh, kw) = fields["C"] // groups, fields["OW"], (fields["kh"], fields["kw"])
    least = b.constants["QCONV_ROWS"]
    if (
        reads_windows(kernel)
        and fields["OH"] != 1  # signals are one line, and so would be one task
        and isinstance(columns, int)
        and 0 < columns <= 8 * least
        and columns >= 5.5 * ceildiv(columns, kernel.mr)  # tiles of fewer rows read w more often
        and kh * kw > 1
        and kw * channels % 4 == 0
        and fields["dilation_w"] == 1
    ):
        lines = ceildiv(least, columns)
        pitch = ((columns - 1) * fields["stride_w"] + kw) * channels
        copied = (lines - 1) * fields["stride_h"] + (kh - 1) * fields["dilation_h"] + 1
        return lines, ceildiv(copied * pitch, 64) * 64 + ceildiv(lines * columns, 16) * 64
    k = kh * kw * channels
    rows = b.constants["QGEMM_TILES"] * kernel.mr
    return 0, rows * (ceildiv(k, 64) * 64 + qgemm_room(k))


def qdepthwise_step(
    node: Node, b: Any, x: Value, x_zero: Optional[Value], w: np.ndarray, finish: Finish
) -> None:
    """node.output = conv(x - x_zero, w), w (C, 1, ..) without zeros, channels last."""
    fields = window_fields(node, geometry(node, x.shape[2:], w.shape[2:]), 2)
    kernel, (kh, kw) = b.kernel("qdepthwise"), (fields["kh"], fields["kw"])
    packed, parts = pack_taps(
        w.reshape(-1, kh, kw),
        None if finish.scale is None else finish.scale.const,
        None if finish.bias is None else finish.bias.const,
        fields["stride_w"] if fields["dilation_w"] == 1 else None,
        kernel,
    )
    image_step(
        *(node, b, "qdepthwise", "qdepthwise", x, x_zero, packed),
        zero=finish.zero,
        work=-(-len(w) // 64) * 64 + b.threads * kh * (kw + 3) * 8,
        N=x.shape[0],
        C=len(w),
        parts=parts,
        **fields,
    )


def image_step(
    node: Node,
    b: Any,
    op: str,
    kernel: str,
    x: Value,
    x_zero: Optional[Value],
    packed: np.ndarray,
    **others: Any,
) -> None:
    """node.output from x, both channels last, and weights in panels."""
    y = place_of(b, node.output)
    b.step(
        op,
        kernel=kernel,
        x=b.channels_last(x, dense=True),
        x_zero=x_zero,
        w=b.graph.constant(packed, array_type(packed), "packed"),
        y=y,
        x_dtype=x.dtype,
        y_dtype=node.output.dtype,
        y_stride=pixel_stride(y),
        panel_bytes=packed.strides[0],
        **others,
    )


def _conv_reference(
    node: Node, x: np.ndarray, w: np.ndarray, x_zero: Any, w_zero: Any
) -> np.ndarray:
    """The sums of an integer convolution, exact in float64."""
    zeros = 0.0 if w_zero is None else w_zero.reshape(-1, *[1] * (w.ndim - 1)).astype(np.float64)
    centred = x.astype(np.float64) - (0.0 if x_zero is None else float(x_zero.item()))
    return Conv.reference(node, centred, w.astype(np.float64) - zeros)


@op("ConvInteger")
class ConvInteger:
    """y = conv(x - x_zero, w - w_zero) in int32."""

    signature = "x: B, w: B1, x_zero?: B, w_zero?: B1 -> y"
    attributes = Conv.attributes

    def infer(node: Node) -> list[Type]:
        return [Type(dtypes.INT32, conv_shape(node, dims(node, 0), dims(node, 1)))]

    def reference(
        node: Node, x: np.ndarray, w: np.ndarray, x_zero: Any = None, w_zero: Any = None
    ) -> np.ndarray:
        return _conv_reference(node, x, w, x_zero, w_zero).astype(np.int32)

    def lower(node: Node, b: Any) -> None:
        x, w = node.inputs[:2]
        lower_conv(node, b, x, node.input(2), w, node.input(3), Finish())


@op("QLinearConv")
class QLinearConv:
    """y = saturate(round((real conv(x, w) + real bias) / y_scale) + y_zero), bias int32 in units of
    x_scale * w_scale.
    """

    signature = (
        "x: B, x_scale: float32, x_zero: B, w: B1, w_scale: float32, w_zero: B1, y_scale: float32, "
        "y_zero: B2, bias?: int32 -> y"
    )
    attributes = Conv.attributes

    def infer(node: Node) -> list[Type]:
        return [Type(node.inputs[7].dtype, conv_shape(node, dims(node, 0), dims(node, 3)))]

    def reference(
        node: Node,
        x: np.ndarray,
        x_scale: np.ndarray,
        x_zero: np.ndarray,
        w: np.ndarray,
        w_scale: np.ndarray,
        w_zero: np.ndarray,
        y_scale: np.ndarray,
        y_zero: np.ndarray,
        bias: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        channels = (-1, *[1] * (w.ndim - 2))
        y = _conv_reference(node, x, w, x_zero, w_zero)
        if bias is not None:
            y = y + bias.reshape(channels)
        scale = (x_scale * w_scale / y_scale).reshape(channels)
        return saturated(np.rint(y * scale) + y_zero, y_zero.dtype)

    def lower(node: Node, b: Any) -> None:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
        bias = node.input(8)
        scales = [x_scale, w_scale]
        require_constants(node, bias, *scales)
        if bias is not None:
            real = np.ravel(bias.const * (x_scale.const * w_scale.const)).astype(np.float32)
            bias = b.graph.constant(real, Type(dtypes.FLOAT, real.shape), "bias")
        finish = scaled_finish(b, node, scales, bias, y_scale, y_zero)
        lower_conv(node, b, x, x_zero, w, w_zero, finish)


@op("q7::QuantizedConv")
class QuantizedConv:
    """y = conv(dequantize(x), dequantize(w)) + bias, quantised again where y_scale is given.

    Shapes: as Conv; x with one scale and zero, w with one or M of each, bias (M,).
    Types: x and w uint8 or int8, all constant but x; y of y_zero's dtype, else float.
    """

    signature = QuantizedLinear.signature
    attributes = Conv.attributes

    def infer(node: Node) -> list[Type]:
        shape = conv_shape(node, dims(node, 0), dims(node, 3))
        return [Type(Operands.of(node).dtype(), shape)]

    def decompose(g: Any, *operands: Any, **attrs: Any) -> Value:
        given = Operands(*operands)
        return given.stored(g, g.Conv(*given.real(g, axis=0), given.bias, **attrs))

    def lower(node: Node, b: Any) -> None:
        x, x_scale, x_zero, w, w_scale, w_zero, bias, y_scale, y_zero = Operands.of(node)
        finish = scaled_finish(b, node, [x_scale, w_scale], bias, y_scale, y_zero)
        lower_conv(node, b, x, x_zero, w, w_zero, finish)
