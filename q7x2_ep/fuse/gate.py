"""act(gate) * up -> q7::GatedLinear, for two Linears of one input, or two halves of one Linear.

SwiGLU, GeGLU, ReGLU, GLU and the bilinear form are one fusion: the activation is already in the
epilogue of the gate, or stands alone behind the Split. After fuse/linear.py.
"""

from __future__ import annotations

from typing import Any, Optional, Union

from q7x2_ep.fuse.linear import LINEAR
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops.activation import activation_of
from q7x2_ep.ops.common import NO_ACTIVATION, Activation
from q7x2_ep.ops.movement import slices

GATED = "q7::GatedLinear"


def two_linears(g: Any, gate: Any, up: Any) -> Any:
    return g.Mul(g.result(LINEAR, gate), g.result(LINEAR, up))


def _check_two(match: Match) -> Union[dict[str, Any], str]:
    gate, up = match["gate"].producer, match["up"].producer
    if gate is up:
        return "both factors are one Linear"
    if gate.attrs["activation"] == "none" != up.attrs["activation"]:
        return ""  # the other way round, then
    x, weight = gate.inputs[:2]
    if up.inputs[0] is not x:
        return f"gate reads {x!r}, up reads {up.inputs[0]!r}"
    if up.attrs["activation"] != "none":
        return "both factors have an activation"
    for node in (gate, up):
        if node.input(3) is not None or node.attrs["alpha"] != 1.0:
            return f"{node.output!r} has a residual or a scale"
    if weight.shape != up.inputs[1].shape or gate.attrs["trans_b"] != up.attrs["trans_b"]:
        return f"the weights {weight!r} and {up.inputs[1]!r} differ in layout or shape"
    return {
        "x": x,
        "weights": (weight, up.inputs[1]),
        "biases": (gate.input(2), up.input(2)),
        "trans_b": gate.attrs["trans_b"],
        "activation": Activation.of(gate.attrs),
    }


def _build_two(
    g: Any, x: Value, weights: tuple, biases: tuple, trans_b: int, activation: Activation
) -> Value:
    return g.call(GATED, x, *weights, *biases, trans_b=trans_b, **activation.attributes())


def two_halves(g: Any, opened: Any, up: Any) -> Any:
    return g.Mul(opened, up)


def columns(value: Value) -> Optional[tuple[Value, slice]]:
    """What a value takes half of the columns of, and which; None where it does not."""
    reader = value.producer
    if reader is None or reader.op not in ("Split", "Slice") or not value.shape:
        return None
    whole, last = reader.inputs[0], len(value.shape) - 1
    n = whole.shape[-1]
    if value.shape != (*whole.shape[:-1], n // 2) or n % 2:
        return None
    if reader.op == "Split":
        if reader.attrs["axis"] not in (-1, last) or len(reader.outputs) != 2:
            return None
        start, step = n // 2 if value is reader.outputs[1] else 0, 1
    else:
        (axis, start, _, step), *more = slices(reader)
        if axis != last or step not in (1, 2) or more:
            return None
    return whole, slice(start, start + n // 2 * step, step)


def _check_halves(match: Match) -> Union[dict[str, Any], str]:
    opened, up = match["opened"], match["up"]
    maker = opened.producer
    activation = None if maker is None else activation_of(maker)
    gate = opened if activation is None else maker.inputs[0]
    gate_columns, up_columns = columns(gate), columns(up)
    if gate_columns is None or up_columns is None or gate_columns[0] is not up_columns[0]:
        return ""
    whole = gate_columns[0]
    node = whole.producer
    if node is None or node.op != LINEAR:
        return ""
    if node.attrs["activation"] != "none" or node.input(3) is not None:
        return f"{whole!r} has an activation or a residual"
    if node.attrs["alpha"] != 1.0:
        return f"{whole!r} has a scale"
    bias = node.input(2)
    if bias is not None and bias.const is None:
        return f"the bias {bias!r} is not constant"
    parts = gate_columns[1], up_columns[1]
    if parts[0] == parts[1]:
        return "both factors are one half"
    for part in (maker, gate.producer, up.producer, node):  # users before what they use
        if not match.absorb(part):
            return f"what {part.op} makes is used elsewhere too"
    return {"node": node, "parts": parts, "activation": activation or NO_ACTIVATION}


def _build_halves(g: Any, node: Node, parts: tuple[slice, slice], activation: Activation) -> Value:
    x, weight, bias = (*node.inputs, None)[:3]
    trans_b = node.attrs["trans_b"]
    weights = [g.part(weight, 1 - trans_b, part) for part in parts]
    biases = [None if bias is None else g.part(bias, -1, part) for part in parts]
    return g.call(GATED, x, *weights, *biases, trans_b=trans_b, **activation.attributes())


TWO = Fusion("GatedLinear", (two_linears,), _check_two, _build_two)
HALVES = Fusion("GatedHalves", (two_halves,), _check_halves, _build_halves)
