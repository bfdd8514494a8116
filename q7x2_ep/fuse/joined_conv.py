"""What follows Convs whose channels are joined -> what follows each of them.

A BatchNormalization, factors and terms per channel, and an activation behind the Concat are those
of its parts, which then fold them as any Conv does and write them in place: without this, each is
a step over the whole image.
Source: Tan and Le 2019 (MixNet), Wang et al. 2020 (CSPNet, as YOLOv4 and YOLOv5 have it).
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.fuse.conv import CONV, FUSED, affine, applied, fed_operand, flat, per_channel
from q7x2_ep.fuse.epilogue import activations
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops.activation import activation_of
from q7x2_ep.ops.common import Activation

JOIN = "Concat"
Arguments = Union[dict[str, Any], str]


def _parts(match: Match, y: Value, *ops: str) -> Union[list[Node], str]:
    """The nodes whose channels y joins, if all are of these ops and nothing else reads them."""
    join = y.producer
    if y.shape is None or join.attrs["axis"] not in (1, 1 - len(y.shape)):
        return ""
    parts = [x.producer for x in join.inputs]
    if any(part is None or part.op not in ops for part in parts):
        return ""
    channels = [part.output.shape[1] for part in parts if part.output.shape is not None]
    if len(channels) < len(parts) or not all(isinstance(count, int) for count in channels):
        return f"the channels of the parts of {y!r} are not known"
    if len(set(map(id, parts))) < len(parts) or not all(map(match.absorb, parts)):
        return f"a part of {y!r} has other readers"
    return parts


def _check(match: Match) -> Arguments:
    parts = _parts(match, match["y"], CONV)
    if isinstance(parts, str):
        return parts
    for part in parts:
        fed = fed_operand(part)
        if fed is not None:
            return f"{fed!r}, the weights or the bias, is not constant"
    found = per_channel(match, match["y"])
    return found if isinstance(found, str) else {"parts": parts, "found": found}


def _build(g: Any, parts: list[Node], found: dict[str, Any]) -> Value:
    counts = [part.output.shape[1] for part in parts]
    numbers = {
        name: flat(g, value, sum(counts)) for name, value in found.items() if name != "epsilon"
    }
    made, first = [], 0
    for part, count in zip(parts, counts):
        own = {
            name: g.folded("Slice", value, [first], [first + count])
            for name, value in numbers.items()
        }
        x, weight, bias = (*part.inputs, None)[:3]
        operands = applied(g, part, weight, bias, **{**found, **own})
        made.append(g.call(CONV, x, *operands, **part.attrs))
        first += count
    return g.call(JOIN, *made, axis=1)


def _check_activation(match: Match) -> Arguments:
    parts = _parts(match, match["product"], CONV, FUSED)
    if isinstance(parts, str):
        return parts
    if any(part.input(3) or part.attrs.get("activation", "none") != "none" for part in parts):
        return ""
    return {"parts": parts, "activation": activation_of(match.root)}


def _build_activation(g: Any, parts: list[Node], activation: Activation) -> Value:
    made = [
        g.call(FUSED, *part.inputs, **{**part.attrs, **activation.attributes()}) for part in parts
    ]
    return g.call(JOIN, *made, axis=1)


AFFINE = Fusion("JoinedConvAffine", affine(JOIN), _check, _build)
ACTIVATION = Fusion(
    "JoinedConvActivation",
    activations(lambda g, product: g.result(JOIN, product)),
    _check_activation,
    _build_activation,
)
