"""Mixtures of experts: each row is multiplied by the matrix of the expert that it was sent to."""

from __future__ import annotations

from typing import Any, Optional

from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import product
from q7x2_ep.ops import op
from q7x2_ep.ops.activation import ACTIVATIONS
from q7x2_ep.ops.common import (
    F32,
    NO_ACTIVATION,
    Activation,
    Guard,
    require_dtype,
    reshaped,
    rows_dense,
)
from q7x2_ep.ops.gather import INDICES
from q7x2_ep.ops.matmul import gated_scratch
from q7x2_ep.ops.quant import require_constants


@op("q7::ExpertLinear")
class ExpertLinear:
    """y[t] = x[t // repeat] @ w[e] + bias[e], e = expert[t], for a constant w that is packed once.

    Shapes: x (.., K); w (E, K, N) or with trans_b (E, N, K); bias (E, N); y (*expert.shape, N),
    repeat times as many rows as x.
    Types: expert: int32 or int64; -1 is the last one.
    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2.
    """

    signature = "x, expert, w, bias? -> y"
    attributes = {"trans_b": 0, "repeat": 1}

    def infer(node: Node) -> list[Type]:
        x, expert, w = node.inputs[:3]
        return [Type(x.dtype, (*expert.shape, w.shape[1 if node.attrs["trans_b"] else 2]))]

    def decompose(
        g: Any,
        x: Value,
        expert: Value,
        w: Value,
        bias: Optional[Value] = None,
        trans_b: int = 0,
        repeat: int = 1,
    ) -> Value:
        rows, k = product(x.shape[:-1]), x.shape[-1]
        if repeat > 1:
            x = g.Expand(g.Reshape(x, [rows, 1, k]), [rows, repeat, k])
        lead, n = expert.shape, w.shape[1 if trans_b else 2]
        chosen = g.Gather(w, expert, axis=0)
        if trans_b:
            y = g.MatMul(chosen, g.Reshape(x, [*lead, k, 1]))
        else:
            y = g.MatMul(g.Reshape(x, [*lead, 1, k]), chosen)
        y = g.Reshape(y, [*lead, n])
        return y if bias is None else g.Add(y, g.Gather(bias, expert, axis=0))

    def guards(node: Node) -> list[Guard]:
        x, expert, w = node.inputs[:3]
        rows, k = product(x.shape[:-1]), w.shape[2 if node.attrs["trans_b"] else 1]
        return [
            (x.shape[-1], k, "inner dims differ"),
            (rows * node.attrs["repeat"], product(expert.shape), "not an expert for every row"),
        ]

    def lower(node: Node, b: Any) -> None:
        lower_experts(node, b, node.inputs[2:3], node.input(3))


@op("q7::GatedExpertLinear")
class GatedExpertLinear:
    """y = act(q7::ExpertLinear of gate) * (q7::ExpertLinear of up), for constants that are packed
    together.

    Shapes: gate, up as w of q7::ExpertLinear, their biases as its bias.
    """

    signature = "x, expert, gate, up, gate_bias?, up_bias? -> y"
    attributes = {
        "activation": "none",
        "act_alpha": None,
        "act_beta": None,
        "trans_b": 0,
        "repeat": 1,
    }
    infer = ExpertLinear.infer
    guards = ExpertLinear.guards

    def decompose(
        g: Any,
        x: Value,
        expert: Value,
        gate: Value,
        up: Value,
        gate_bias: Optional[Value] = None,
        up_bias: Optional[Value] = None,
        activation: str = "none",
        act_alpha: Optional[float] = None,
        act_beta: Optional[float] = None,
        trans_b: int = 0,
        repeat: int = 1,
    ) -> Value:
        opened = ExpertLinear.decompose(g, x, expert, gate, gate_bias, trans_b, repeat)
        opened = ACTIVATIONS[activation](g, opened, act_alpha or 0.0, act_beta or 0.0)
        return g.Mul(opened, ExpertLinear.decompose(g, x, expert, up, up_bias, trans_b, repeat))

    def lower(node: Node, b: Any) -> None:
        act = Activation.of(node.attrs)
        lower_experts(node, b, node.inputs[2:4], node.input(4), node.input(5), act)


def lower_experts(
    node: Node,
    b: Any,
    weights: list[Value],
    bias: Optional[Value],
    up_bias: Optional[Value] = None,
    act: Activation = NO_ACTIVATION,
) -> None:
    """One step over all rows; two weights are gate and up."""
    x, expert = node.inputs[:2]
    require_dtype(node, x.dtype, F32)
    require_dtype(node, expert.dtype, INDICES)
    require_constants(node, *weights)
    trans_b, gated = node.attrs["trans_b"], len(weights) == 2
    experts, *matrix = weights[0].shape
    k, n = matrix[::-1] if trans_b else matrix
    m, a = product(expert.shape), rows_dense(b, reshaped(b, x, (product(x.shape[:-1]), k)))
    b.step(
        "expert_gemm",
        kernel="gemm",
        a=a,
        expert=expert,
        b=b.packed(k, n, *((1, k) if trans_b else (n, 1)), *weights),
        bias=bias,
        up_bias=up_bias,
        c=node.output,
        sums=gated_scratch(b, m) if gated and k > b.constants["EXPERT_K_BLOCK"] else None,
        rows=m * (k + n) * 4,
        order=(m + 2 * (experts + 1)) * 8,
        m=m,
        n=n,
        k=k,
        experts=experts,
        repeat=node.attrs["repeat"],
        a_stride=a.strides[0],
        expert_dtype=expert.dtype,
        gated=int(gated),
        act=act.name,
        act_alpha=act.alpha,
        act_beta=act.beta,
    )
