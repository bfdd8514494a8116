"""Convolution over one or two spatial dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, maximum, minimum, product
from q7x2_ep.ops import op
from q7x2_ep.ops.activation import ACTIVATIONS
from q7x2_ep.ops.common import (
    F32,
    NO_ACTIVATION,
    Activation,
    Guard,
    dims,
    require_dtype,
    size_guards,
    where_is,
)
from q7x2_ep.ops.matmul import matmul_scratch


def geometry(
    node: Node, sizes: Sequence[Dim], kernel: Sequence[int]
) -> list[tuple[Dim, int, int, int, Dim, Dim]]:
    """(input size, kernel size, stride, dilation, padding before, output size) per spatial dim.

    Output size: (in + pads - dilation * (kernel - 1) - 1) // stride + 1, but ceil(in / stride)
    with auto_pad SAME_*.
    """
    attrs, n = node.attrs, len(sizes)
    strides, dilations = attrs["strides"] or [1] * n, attrs["dilations"] or [1] * n
    pads = attrs["pads"] or [0] * 2 * n
    found = []
    for i, (size, k, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations)):
        reach = dilation * (k - 1) + 1
        if attrs["auto_pad"].startswith("SAME"):
            out = ceildiv(size, stride)
            total = maximum((out - 1) * stride + reach - size, 0)
            before = total // 2 if attrs["auto_pad"] == "SAME_UPPER" else ceildiv(total, 2)
        else:
            before, after = (0, 0) if attrs["auto_pad"] == "VALID" else (pads[i], pads[n + i])
            out = (size + before + after - reach) // stride + 1
        found.append((size, k, stride, dilation, before, out))
    return found


def conv_shape(node: Node, x: tuple[Dim, ...], w: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape of a convolution of tensors of the shapes x and w."""
    return (x[0], w[0], *(out for *_, out in geometry(node, x[2:], w[2:])))


def windows(node: Node, x: Value, w: Value) -> dict[str, Dim]:
    """The fields of a step that says where the kernel of w meets x.

    Raises: UnsupportedOp for more than two spatial dims.
    """
    spec = geometry(node, x.shape[2:], w.shape[2:])
    if len(spec) == 1:  # one row of an image
        spec = [(1, 1, 1, 1, 0, 1), *spec]
    if len(spec) != 2:
        raise UnsupportedOp(
            f"{where_is(node)} has kernels for one and two spatial dims, not for {len(spec)}"
        )
    (H, kh, stride_h, dilation_h, pad_top, OH), (W, kw, stride_w, dilation_w, pad_left, OW) = spec
    sizes = {"N": x.shape[0], "C": x.shape[1], "H": H, "W": W, "OH": OH, "OW": OW}
    sizes.update(kh=kh, kw=kw, stride_h=stride_h, stride_w=stride_w)
    sizes.update(pad_top=pad_top, pad_left=pad_left, dilation_h=dilation_h, dilation_w=dilation_w)
    return sizes


@op("Conv")
class Conv:
    """y[n, m] = sum over channels and kernel positions of w[m] * x[n], shifted; plus bias[m].

    Shapes: x (N, C, ..), w (M, C / group, kernel..), y (N, M, ..).
    """

    signature = "x, w, bias? -> y"
    attributes = {
        "auto_pad": "NOTSET",
        "dilations": None,
        "group": 1,
        "kernel_shape": None,
        "pads": None,
        "strides": None,
    }

    def infer(node: Node) -> list[Type]:
        return [Type(node.inputs[0].dtype, conv_shape(node, dims(node, 0), dims(node, 1)))]

    def guards(node: Node) -> list[Guard]:
        groups = node.attrs["group"]
        channels, (filters, per_group) = dims(node, 0)[1], dims(node, 1)[:2]
        even = filters // max(groups, 1) * groups
        return [
            (channels, per_group * groups, "the weights are for another number of channels"),
            (even, filters, f"{filters} filters do not make {groups} groups"),
            *size_guards((node.input(2),), filters),
        ]

    def reference(
        node: Node, x: np.ndarray, w: np.ndarray, bias: Optional[np.ndarray] = None
    ) -> np.ndarray:
        """One product per kernel position, summed: any number of spatial dims."""
        group, n = node.attrs["group"], x.ndim - 2
        spec = geometry(node, x.shape[2:], w.shape[2:])
        outs = [out for *_, out in spec]
        grow = [(0, 0), (0, 0)]
        for size, k, stride, dilation, before, out in spec:
            grow.append(
                (before, max((out - 1) * stride + dilation * (k - 1) + 1 - size - before, 0))
            )
        padded = np.pad(x, grow).reshape(
            x.shape[0], group, -1, *(s + sum(p) for s, p in zip(x.shape[2:], grow[2:]))
        )
        weights = w.reshape(group, w.shape[0] // group, *w.shape[1:])
        y: np.ndarray = np.zeros(
            (x.shape[0], group, w.shape[0] // group, *outs), np.result_type(x, w)
        )
        for at in np.ndindex(*w.shape[2:]):
            window = [
                slice(i * dilation, i * dilation + (out - 1) * stride + 1, stride)
                for i, (_, _, stride, dilation, _, out) in zip(at, spec)
            ]
            part = padded[tuple([slice(None)] * 3 + window)]
            weight = weights[(slice(None),) * 3 + at]
            y += np.einsum("ngc...,gmc->ngm...", part, weight)
        y = y.reshape(x.shape[0], w.shape[0], *outs)
        return y if bias is None else y + bias.reshape(-1, *[1] * n)

    def lower(node: Node, b: Any) -> None:
        conv_step(node, b, None, NO_ACTIVATION)


@op("q7::Conv")
class FusedConv:
    """y = act(conv(x, w) + bias) + residual, or with residual_first act(conv(x, w) + bias +
    residual).

    activation, with act_alpha and act_beta where it has them: a member of ACTIVATIONS.
    Shapes: as Conv, residual as y.
    Source: ONNX Conv; the epilogue of csrc/kernels/gemm.h.
    """

    signature = "x, w, bias?, residual? -> y"
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
        activation: str = "none",
        act_alpha: Optional[float] = None,
        act_beta: Optional[float] = None,
        residual_first: int = 0,
        **attrs: Any,
    ) -> Value:
        y = g.Conv(x, w, bias, **attrs)
        if residual is not None and residual_first:
            y = g.Add(y, residual)
        y = ACTIVATIONS[activation](g, y, act_alpha or 0.0, act_beta or 0.0)
        return y if residual is None or residual_first else g.Add(y, residual)

    def lower(node: Node, b: Any) -> None:
        residual_first = node.attrs["residual_first"]
        conv_step(node, b, node.input(3), Activation.of(node.attrs), residual_first)


def conv_step(
    node: Node, b: Any, residual: Optional[Value], act: Activation, residual_first: int = 0
) -> None:
    """The step of a Conv, or of what else has its attributes and first three operands."""
    x, w, bias = node.inputs[0], node.inputs[1], node.input(2)
    require_dtype(node, x.dtype, F32)
    b.step(
        "conv",
        kernel="gemm",
        x=x,
        w=w,
        bias=bias,
        residual=residual,
        y=node.output,
        pack=matmul_scratch(b, minimum(product(w.shape[1:]), b.constants["CONV_K_BLOCK"])),
        **windows(node, x, w),
        M=w.shape[0],
        groups=node.attrs["group"],
        residual_first=residual_first,
        act=act.name,
        act_alpha=act.alpha,
        act_beta=act.beta,
    )
