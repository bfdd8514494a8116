"""Convs of one image whose results are added -> one Conv; so are the image itself and its norm.

A kernel lies in zeros where the windows of the larger one hold its own: then both meet the same
elements, and the sum of products is that of one kernel, w1 + w2. The image is a kernel of one tap,
the identity, which scales and shifts as a Conv's result does. Sums of more are found one by one.
The image alone, beside a Conv of several channels per group, is left to ConvResidual.
Source: Ding et al. 2021 (RepVGG), Vasu et al. 2022 (MobileOne), as they are trained and exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

from q7x2_ep.fuse.conv import CONV, applied, fed_operand, is_one, per_channel
from q7x2_ep.fuse.epilogue import batch_normalized
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops.window import window_attributes


class Windows(NamedTuple):
    """Where the taps of a kernel lie; one number per spatial axis each."""

    kernel: Sequence[Any]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]


def added(g: Any, y: Any, z: Any) -> Any:
    return g.Add(g.result(CONV, y), g.result(CONV, z))


def subtracted(g: Any, y: Any, z: Any) -> Any:
    return g.Sub(g.result(CONV, y), g.result(CONV, z))


def _check(match: Match) -> Union[dict[str, Any], str]:
    y, z = match["y"], match["z"]
    nodes = y.producer, z.producer
    if y is z or nodes[0].inputs[0] is not nodes[1].inputs[0]:
        return ""
    why = next(filter(None, map(_refusal, nodes)), "")
    if why:
        return why
    groups = [node.attrs["group"] for node in nodes]
    if y.shape != z.shape or groups[0] != groups[1]:
        return f"{y!r} and {z!r} have shapes {y.shape} and {z.shape}, of groups {groups}"
    for host, guest in (nodes, nodes[::-1]):
        at = _place(_windows(host), _windows(guest))
        if at is not None:
            return {"op": match.root.op, "nodes": nodes, "host": host, "at": at}
    return f"neither window of {y!r} and {z!r} holds the other"


def _refusal(node: Node) -> str:
    """Why a Conv takes no other, if so."""
    fed = fed_operand(node)
    if fed is not None:
        return f"{fed!r}, the weights or the bias, is not constant"
    if node.output.shape is None:
        return f"the shape of {node.output!r} is not known"
    if node.attrs["auto_pad"].startswith("SAME"):
        return f"auto_pad is {node.attrs['auto_pad']}: pads follow from the size"
    return ""


def _windows(node: Node) -> Windows:
    kernel = node.inputs[1].shape[2:]
    strides, dilations, pads = window_attributes(node, kernel)
    return Windows(kernel, strides, dilations, pads[: len(kernel)])


def _place(host: Windows, guest: Windows) -> Optional[list[int]]:
    """The tap of the host's kernel that meets the elements of the guest's first, in windows that
    are as many; None where a tap of the guest meets what none of the host does.
    """
    if tuple(host.strides) != tuple(guest.strides):
        return None
    found = []
    for kernel, dilation, before, own_kernel, own_dilation, own_before in zip(
        host.kernel, host.dilations, host.before, guest.kernel, guest.dilations, guest.before
    ):
        at, between = divmod(before - own_before, dilation)
        if (
            between
            or at < 0
            or at + own_kernel > kernel
            or (own_kernel > 1 and own_dilation != dilation)
        ):
            return None
        found.append(at)
    return found


def _build(g: Any, op: str, nodes: Sequence[Node], host: Node, at: Sequence[int]) -> Value:
    kernel = host.inputs[1].shape[2:]
    weights = [
        node.inputs[1] if node is host else _embedded(g, node.inputs[1], kernel, at)
        for node in nodes
    ]
    return _sum(g, op, host, weights, [node.input(2) for node in nodes])


def _embedded(g: Any, weight: Value, kernel: Sequence[Any], at: Sequence[int]) -> Value:
    """A kernel within zeros: constants of that size, beside which folding finds no result large."""
    for axis, (size, start) in enumerate(zip(kernel, at), 2):
        shape = list(weight.shape)
        rest = size - start - shape[axis]
        parts = [_zeros(g, weight, axis, start), weight, _zeros(g, weight, axis, rest)]
        parts = [part for part in parts if part.shape[axis]]
        weight = g.Concat(*parts, axis=axis) if len(parts) > 1 else weight
    return weight


def _zeros(g: Any, like: Value, axis: int, size: Any) -> Value:
    shape = (*like.shape[:axis], size, *like.shape[axis + 1 :])
    return g.filled(g.literal(0.0, like.dtype), shape)


def _sum(
    g: Any, op: str, host: Node, weights: Sequence[Value], biases: Sequence[Optional[Value]]
) -> Value:
    """The arithmetic is on constants: it is folded after this."""
    bias, other = biases
    if bias is not None and other is not None:
        bias = g.call(op, bias, other)
    elif other is not None:
        bias = g.Neg(other) if op == "Sub" else other
    return g.Conv(host.inputs[0], g.call(op, *weights), bias, **host.attrs)


def _normalized(g: Any, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, term: Any) -> Any:
    norm = batch_normalized(g, x, scale, shift, mean, variance)
    return g.either(lambda: norm, lambda: g.Add(norm, g.constant(term)))


def _scaled(g: Any, x: Any, scale: Any, shift: Any) -> Any:
    return g.either(
        lambda: g.Mul(x, g.constant(scale)),
        lambda: g.Add(g.Mul(x, g.constant(scale)), g.constant(shift)),
        lambda: g.Add(x, g.constant(shift)),
        lambda: x,
    )


def norm_added(
    g: Any, y: Any, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, term: Any
) -> Any:
    return g.Add(g.result(CONV, y), _normalized(g, x, scale, shift, mean, variance, term))


def norm_subtracted(
    g: Any, y: Any, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, term: Any
) -> Any:
    return g.Sub(g.result(CONV, y), _normalized(g, x, scale, shift, mean, variance, term))


def image_added(g: Any, y: Any, x: Any, scale: Any, shift: Any) -> Any:
    return g.Add(g.result(CONV, y), _scaled(g, x, scale, shift))


def image_subtracted(g: Any, y: Any, x: Any, scale: Any, shift: Any) -> Any:
    return g.Sub(g.result(CONV, y), _scaled(g, x, scale, shift))


def _check_skip(match: Match) -> Union[dict[str, Any], str]:
    y, x, node, term = match["y"], match["x"], match["y"].producer, match.get("term")
    is_dense, is_plain = node.inputs[1].shape[1] != 1, len(match.nodes) == 2
    if node.inputs[0] is not x or (is_plain and is_dense):
        return ""  # a residual takes no longer, and 1 beside small weights rounds more
    why = _refusal(node)
    if why:
        return why
    if y.shape != x.shape:
        return f"{y!r} has shape {y.shape}, its image {x.shape}"
    own = _windows(node)
    one, zero = (1,) * len(own.kernel), (0,) * len(own.kernel)
    at = _place(own, Windows(one, one, one, zero))
    if at is None:
        return f"no tap of {y!r} meets the element in whose place the result is"
    stages = [per_channel(match, y)]
    if term is not None:
        if not is_one(term, y):
            return f"{term!r} has shape {term.shape}, wanted one number"
        stages.append({"shift": term})
    if isinstance(stages[0], str):
        return stages[0]
    return {"op": match.root.op, "node": node, "at": at, "stages": stages}


def _build_skip(
    g: Any, op: str, node: Node, at: Sequence[int], stages: Sequence[dict[str, Any]]
) -> Value:
    given, bias = node.inputs[1], None
    channels, of_group, *kernel = given.shape
    identity = g.identity(of_group, channels // of_group, given.dtype)
    weight = g.Reshape(identity, [channels, of_group, *(1 for _ in kernel)])
    for parts in stages:
        weight, bias = applied(g, node, weight, bias, **parts)
    weight = _embedded(g, weight, kernel, at)
    return _sum(g, op, node, [given, weight], [node.input(2), bias])


BRANCHES = Fusion("ConvBranches", (added, subtracted), _check, _build)
SKIP = Fusion(
    "ConvSkip",
    (norm_added, norm_subtracted, image_added, image_subtracted),
    _check_skip,
    _build_skip,
)
