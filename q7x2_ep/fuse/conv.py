"""What surrounds a Conv -> its weights, bias and pads; then its activation and residual.

BatchNormalization, and factors and terms per channel, are linear in y: they scale the weights and
shift the bias, once, at load. Zeros around x are pads. An activation and a residual, in either
order, make it a q7::Conv, whose epilogue has them, and what is linear in each channel behind the
activation as well. Where that is one factor and one term, as in learnable affine blocks, they go in
front of a clamp, into a hard swish. A ConvTranspose takes what scales and shifts it in the same
way, and an activation as q7::ConvTranspose. Gates of the channels of x, as of squeeze and excite,
scale the weights in each run.
Source: ONNX Conv, BatchNormalization (inference form), Pad; He et al. 2015 (residual first);
Trockman and Kolter 2022 (ConvMixer: a norm behind the activation).
"""

from __future__ import annotations

import math
from typing import Any, Optional, Union

from q7x2_ep.fuse.epilogue import (
    FACTORS,
    Formula,
    activations,
    batch_normalized,
    flat,
    is_finite,
    linear,
    residual_of,
)
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops.activation import activation_of
from q7x2_ep.ops.common import Activation
from q7x2_ep.ops.conv import takes_gate, takes_scale
from q7x2_ep.ops.window import window_attributes

CONV, FUSED = "Conv", "q7::Conv"
TRANSPOSE, FUSED_TRANSPOSE = "ConvTranspose", "q7::ConvTranspose"


def affine(op: str) -> tuple[Formula, ...]:
    """The spellings of what is linear in each channel of the result of `op`."""

    def normalized(g: Any, y: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
        return batch_normalized(g, g.result(op, y), scale, shift, mean, variance)

    def multiplied(g: Any, y: Any, scale: Any) -> Any:
        return g.Mul(g.result(op, y), g.constant(scale))

    def shifted(g: Any, y: Any, shift: Any) -> Any:
        return g.Add(g.result(op, y), g.constant(shift))

    return normalized, multiplied, shifted


def _check(match: Match) -> Union[dict[str, Any], str]:
    y, node = match["y"], match["y"].producer
    fed = fed_operand(node)
    if fed is not None:
        return f"{fed!r}, the weights or the bias, is not constant"
    parts = per_channel(match, y)
    return parts if isinstance(parts, str) else {"node": node, "parts": parts}


def fed_operand(node: Node) -> Optional[Value]:
    """The weights or the bias of a convolution, if not constant."""
    return next((x for x in node.inputs[1:] if x is not None and not _is_constant(x)), None)


def _is_constant(value: Value) -> bool:
    """Whether folding makes a constant of it: it is one, or what `_build` made of some."""
    made_by = value.producer
    if made_by is None:
        return value.const is not None or value.elements is not None
    return all(x is None or _is_constant(x) for x in made_by.inputs)


def per_channel(match: Match, y: Value) -> Union[dict[str, Any], str]:
    """What a match puts around y (N, C, ..), for `applied`, if it is one number per channel."""
    parts: dict[str, Any] = {}
    column = (y.shape[1], *(1 for _ in y.shape[2:]))
    for name in ("scale", "shift", "mean", "variance"):
        value = match.get(name)
        if value is not None:
            wanted = column[:1] if "mean" in match.values else column
            is_number = "mean" not in match.values and is_one(value, y)
            if value.shape not in (wanted, (1, *wanted)) and not is_number:
                return f"{name} {value!r} has shape {value.shape}, wanted {wanted}"
            parts[name] = value
    if "mean" in parts:
        norm = next(node for node in match.nodes if node.op == "BatchNormalization")
        parts["epsilon"] = norm.attrs["epsilon"]
    if not is_finite(parts.get("scale"), parts.get("variance"), parts.get("epsilon", 0.0)):
        return "a factor is infinite: times a weight of 0 it is no number"
    return parts


def is_one(value: Value, y: Value) -> bool:
    """Whether a value is one number, which keeps the shape of y."""
    return len(value.shape) <= len(y.shape) and all(dim == 1 for dim in value.shape)


def _build(g: Any, node: Node, parts: dict[str, Any]) -> Value:
    x, weight, bias = (*node.inputs, None)[:3]
    return g.call(node.op, x, *applied(g, node, weight, bias, **parts), **node.attrs)


def applied(
    g: Any, node: Node, weight: Value, bias: Optional[Value], **parts: Any
) -> tuple[Value, Optional[Value]]:
    """Weights and bias of a convolution like `node`, with those parts of `linear`."""
    factor, bias = linear(g, node.output.shape[1], bias, **parts)
    return weight if factor is None else _scaled(g, node, weight, factor), bias


def _scaled(g: Any, node: Node, weight: Value, factor: Value) -> Value:
    """The weights for a result times one factor per channel."""
    if node.op == CONV:  # (M, C / groups, ..)
        return g.scaled_kernels(weight, factor)
    shape, ones = list(weight.shape), [1 for _ in weight.shape[2:]]
    groups, (channels, filters, *kernel) = node.attrs["group"], shape  # (C, M / groups, ..)
    by_group = g.folded("Reshape", weight, [groups, channels // groups, filters, *kernel])
    factor = g.folded("Reshape", factor, [groups, 1, filters, *ones])
    return g.folded("Reshape", g.folded("Mul", by_group, factor), shape)


def padded(g: Any, x: Any, pads: Any, zero: Any, w: Any, bias: Any) -> Any:
    larger = g.either(
        lambda: g.Pad(x, g.constant(pads), mode="constant"),
        lambda: g.Pad(x, g.constant(pads), g.scalar(zero), mode="constant"),
    )
    return g.either(lambda: g.Conv(larger, w), lambda: g.Conv(larger, w, bias))


def _check_padded(match: Match) -> Union[dict[str, Any], str]:
    x, w, widths, attrs = match["x"], match["w"], match["pads"].elements, match.root.attrs
    if match.scalar("zero", 0.0) != 0.0:
        return f"the border is {match.scalar('zero', 0.0)}, wanted 0"
    if x.shape is None or w.shape is None:
        return f"the rank of {x!r} or {w!r} is not known"
    ndim = len(x.shape)
    if widths is None or len(widths) != 2 * ndim or ndim < 3:
        return f"the pads {widths} are not two per dim of {x!r}"
    before, after = widths[:ndim], widths[ndim:]
    if any((*before[:2], *after[:2])) or min(widths) < 0:
        return f"the pads {widths} reach beyond the spatial dims, or cut"
    if attrs["auto_pad"].startswith("SAME"):
        return f"auto_pad is {attrs['auto_pad']}: more pads would move the windows"
    _, _, own = window_attributes(match.root, w.shape[2:])
    pads = [pad + more for pad, more in zip(own, (*before[2:], *after[2:]))]
    operands = (x, w) if match.get("bias") is None else (x, w, match["bias"])
    return {"operands": operands, "attrs": {**attrs, "pads": pads, "auto_pad": "NOTSET"}}


def _build_padded(g: Any, operands: tuple[Value, ...], attrs: dict[str, Any]) -> Value:
    return g.Conv(*operands, **attrs)


def gated(g: Any, x: Any, gate: Any, w: Any, bias: Any) -> Any:
    product = g.Mul(x, gate)
    return g.either(lambda: g.Conv(product, w), lambda: g.Conv(product, w, bias))


def _check_gated(match: Match) -> Union[dict[str, Any], str]:
    if not takes_gate(match.root, match["x"], match["gate"]):
        return ""
    operands = (match["x"], match["w"], match.get("bias"), None, match["gate"])
    return {"operands": operands, "attrs": match.root.attrs}


def _build_gated(g: Any, operands: tuple[Optional[Value], ...], attrs: dict[str, Any]) -> Value:
    return g.call(FUSED, *operands, **attrs)


def _result(g: Any, y: Any) -> Any:
    return g.either(lambda: g.result(FUSED, y), lambda: g.result(CONV, y))


def _check_activation(match: Match) -> Union[dict[str, Any], str]:
    node = match["product"].producer
    if node.attrs.get("activation", "none") != "none":
        return ""
    return {"node": node, "activation": activation_of(match.root)}


def _build_activation(g: Any, node: Node, activation: Activation) -> Value:
    first = int(node.input(3) is not None)
    attrs = {**node.attrs, **activation.attributes(), "residual_first": first}
    return g.call(FUSED, *node.inputs, **attrs)


def affine_activation() -> tuple[Formula, ...]:
    """The spellings of one factor, or term, behind an activation."""

    def multiplied(g: Any, y: Any, scale: Any) -> Any:
        return g.Mul(g.result(FUSED, y), g.scalar(scale))

    def shifted(g: Any, y: Any, shift: Any) -> Any:
        return g.Add(g.result(FUSED, y), g.scalar(shift))

    return multiplied, shifted


def _check_affine_activation(match: Match) -> Union[dict[str, Any], str]:
    """s min(max(z, low), high) + t is s z + t between s low + t and s high + t."""
    y, node = match["y"], match["y"].producer
    before = Activation.of(node.attrs)
    scale, shift = match.scalar("scale", 1.0), match.scalar("shift", 0.0)
    if node.input(5) is not None:
        return ""
    if before.name not in ("relu", "clip", "hard_swish", "affine_hard_swish"):
        return ""
    if any(len(x.shape) > len(y.shape) for x in match.root.inputs):
        return f"{match.root.output!r} has more dims than {y!r}"
    if node.input(3) is not None:
        return f"{y!r} has a residual"
    if not FACTORS[0] <= abs(scale) <= FACTORS[1] or not math.isfinite(shift):
        return f"the factor is {scale}, the term {shift}"
    if before.name not in ("relu", "clip"):
        alpha, beta = (1.0, 0.0) if before.name == "hard_swish" else before[1:]
        after = Activation("affine_hard_swish", scale * alpha, scale * beta + shift)
        return {"node": node, "activation": after}
    fed = fed_operand(node)
    if fed is not None:
        return f"{fed!r}, in front of the activation, is not constant"
    bounds = (0.0, math.inf) if before.name == "relu" else before[1:]
    if not bounds[0] <= bounds[1]:
        return f"the bounds are {bounds}"
    low, high = sorted(scale * bound + shift for bound in bounds)
    after = Activation("clip", low, high) if (low, high) != (0.0, math.inf) else Activation("relu")
    return {"node": node, "activation": after, "scale": scale, "shift": match.get("shift")}


def _build_affine_activation(
    g: Any, node: Node, activation: Activation, scale: float = 1.0, shift: Optional[Value] = None
) -> Value:
    x, weight, bias, *others = (*node.inputs, None)[: max(3, len(node.inputs))]
    if scale != 1.0:
        weight = g.folded("Mul", weight, scale)
        bias = None if bias is None else g.folded("Mul", bias, scale)
    weight, bias = applied(g, node, weight, bias, shift=shift)
    return g.call(FUSED, x, weight, bias, *others, **{**node.attrs, **activation.attributes()})


def _check_scaled_activation(match: Match) -> Union[dict[str, Any], str]:
    y, node = match["y"], match["y"].producer
    if node.attrs["activation"] == "none":
        return ""
    if not _is_constant(node.inputs[1]):
        return f"{node.inputs[1]!r}, the weights, are not constant"
    if not takes_scale(node):
        return ""
    if node.input(5) is not None and match.get("scale") is not None:
        return f"{y!r} has a factor"
    if node.input(3) is not None and not node.attrs["residual_first"]:
        return f"{y!r} has a residual"
    parts = per_channel(match, y)
    return parts if isinstance(parts, str) else {"node": node, "parts": parts}


def _build_scaled_activation(g: Any, node: Node, parts: dict[str, Any]) -> Value:
    y, (*operands, scale, shift) = node.output, (*node.inputs, *[None] * 5)[:7]
    factor, term = linear(g, y.shape[1], shift, **parts)
    scale = scale or factor or flat(g, g.literal(1.0, y.dtype), y.shape[1])
    shift = term or flat(g, g.literal(0.0, y.dtype), y.shape[1])
    return g.call(FUSED, *operands, scale, shift, **node.attrs)


def _transposed(g: Any, y: Any) -> Any:
    return g.result(TRANSPOSE, y)


def _build_transposed(g: Any, node: Node, activation: Activation) -> Value:
    return g.call(FUSED_TRANSPOSE, *node.inputs, **{**node.attrs, **activation.attributes()})


AFFINE = Fusion("ConvAffine", affine(CONV), _check, _build)
PADDED = Fusion("PadConv", (padded,), _check_padded, _build_padded)
ACTIVATION = Fusion(
    "ConvActivation",
    activations(_result),
    _check_activation,
    _build_activation,
)
TRANSPOSE_AFFINE = Fusion("ConvTransposeAffine", affine(TRANSPOSE), _check, _build)
TRANSPOSE_ACTIVATION = Fusion(
    "ConvTransposeActivation", activations(_transposed), _check_activation, _build_transposed
)
AFFINE_ACTIVATION = Fusion(
    "ConvAffineActivation",
    affine_activation(),
    _check_affine_activation,
    _build_affine_activation,
)
SCALED_ACTIVATION = Fusion(
    "ConvScaledActivation", affine(FUSED), _check_scaled_activation, _build_scaled_activation
)
RESIDUAL = residual_of("ConvResidual", _result, FUSED)
GATED = Fusion("GatedConv", (gated,), _check_gated, _build_gated)
