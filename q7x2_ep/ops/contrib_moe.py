"""Mixtures of experts of the domain com.microsoft.

Letters: T tokens, E experts, k of them per token, I their inner size.
Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple, Optional

from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops import op
from q7x2_ep.ops.attention import count
from q7x2_ep.ops.builder import Given, infer_meaning, like
from q7x2_ep.ops.common import NotInferable
from q7x2_ep.ops.contrib_blocks import scaled_blocks, unpacked

ACTS = {
    "relu": lambda g, x: g.Relu(x),
    "gelu": lambda g, x: g.Gelu(x, approximate="tanh"),
    "silu": lambda g, x: g.Swish(x, alpha=1.0),
    "identity": lambda g, x: x,
}
ROUTING = {
    "k": 1,
    "activation_type": "relu",
    "activation_alpha": 1.0,
    "activation_beta": 0.0,
    "normalize_routing_weights": 0,
    "swiglu_fusion": 0,
    "swiglu_limit": None,
    "swiglu_limit_after_activation": 0,
    "use_sparse_mixer": 0,
}


class _Layer(NamedTuple):
    """One linear layer of all experts: w (E, N, K), bias (E, N)."""

    w: Value
    bias: Given = None


@op("com.microsoft::MoE")
class MoE:
    """y[t] = sum over the k experts of the highest probability p of p * fc2(act(fc1(x[t]))).

    act is relu, gelu, silu or identity, times fc3(x[t]) if that is given; or swiglu, G *
    sigmoid(alpha * G) * (L + beta): G and L are fc1 and fc3, or the even and odd, or first and
    second results of fc1, and cut off at swiglu_limit, or by swiglu_limit_after_activation the
    product with the sigmoid is in place of G. With use_sparse_mixer p is as in _mixed.

    Weights (E, K, N) are those of (E, N, K) in another shape: their order in memory is the same.
    """

    signature = "x: F, router: F, w1: F, bias1?: F, w2: F, bias2?: F, w3?: F, bias3?: F -> y"
    attributes = ROUTING
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        router: Value,
        w1: Value,
        bias1: Given,
        w2: Value,
        bias2: Given = None,
        w3: Given = None,
        bias3: Given = None,
        **attrs: Any,
    ) -> Value:
        third = None if w3 is None else _Layer(w3, bias3)
        return _mixture(g, x, router, None, _Layer(w1, bias1), _Layer(w2, bias2), third, **attrs)


@op("com.microsoft::QMoE")
class QMoE:
    """MoE of weights of expert_weight_bits, one scale and zero per column, or per block of K.

    router_weights, where given, are what the chosen experts count.
    """

    signature = (
        "x: F, router: F, w1: B, scales1?: F1, bias1?: F, w2: B, scales2?: F1, bias2?: F, w3?: B, "
        "scales3?: F1, bias3?: F, zeros1?: B, zeros2?: B, zeros3?: B, router_weights?: F, "
        "global1?: float32, global2?: float32, act1?: float32, act2?: float32, act_block1?: F1, "
        "act_block2?: F1 -> y"
    )
    attributes = {
        **ROUTING,
        "accuracy_level": 0,
        "block_size": 0,
        "expert_weight_bits": 4,
        "fc1_expert_weight_bits": None,
        "fc2_expert_weight_bits": None,
        "fc3_expert_weight_bits": None,
        "quant_type": "int",
        "weights_prepacked": -1,
    }
    unsupported = (
        *("quant_type", "global1", "global2"),
        *("act1", "act2", "act_block1", "act_block2"),
    )
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        router: Value,
        *operands: Given,
        expert_weight_bits: int,
        block_size: int,
        **attrs: Any,
    ) -> Value:
        w1, s1, b1, w2, s2, b2, w3, s3, b3, z1, z2, z3, mixing = (*operands, *[None] * 13)[:13]
        given = ((w1, s1, z1, b1), (w2, s2, z2, b2), (w3, s3, z3, b3))
        layers: list[Optional[_Layer]] = []
        for i, (w, scales, zeros, bias) in enumerate(given, 1):
            bits = attrs.pop(f"fc{i}_expert_weight_bits") or expert_weight_bits
            real = None if w is None else _dequantized(g, w, scales, zeros, bits, block_size)
            layers.append(None if real is None else _Layer(real, bias))
        for name in ("accuracy_level", "quant_type", "weights_prepacked"):
            del attrs[name]
        return _mixture(g, x, router, mixing, *layers, **attrs)


@op("com.microsoft::MoEGroupRouter")
class MoEGroupRouter:
    """The logits of the top_k experts of each token, of which a normalising MoE makes weights.

    With s = sigmoid(x), x times a projection where that is given, y is log(s) of the top_k experts
    of highest s + bias in the topk_group groups whose group_topk highest sum to the most, and the
    sentinel of others. Or, of all, scores = s + bias and weights = s.
    Shapes: x (.., E), or (T, width) with a projection (E, width); bias (E,), results (T, E).
    """

    signature = "x: F, bias: float32, projection?: F -> y?, scores?, weights?"
    attributes = {
        "n_group": 1,
        "topk_group": 1,
        "group_topk": 2,
        "top_k": 1,
        "router_sentinel": -10000.0,
    }
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        bias: Value,
        projection: Given = None,
        *,
        n_group: int,
        topk_group: int,
        group_topk: int,
        top_k: int,
        router_sentinel: float,
    ) -> tuple[Value, ...]:
        (experts,), tokens = bias.shape, product(x.shape[:-1])
        wide = like(g, x, bias)
        if projection is not None:
            wide = g.MatMul(wide, g.Transpose(like(g, projection, bias), perm=(1, 0)))
        weights = g.Sigmoid(g.Reshape(wide, [tokens, experts]))
        scores = g.Add(weights, bias)
        shown = scores
        if n_group > 1:
            if not isinstance(experts, int):
                raise NotInferable(f"the size of {bias.name} is not known")
            size = experts // n_group
            each = g.Reshape(scores, [tokens, n_group, size])
            best, _ = g.TopK(each, [min(group_topk, size)], axis=-1, outputs=2)
            _, groups = g.TopK(g.ReduceSum(best, [-1], keepdims=0), [topk_group], outputs=2)
            is_open = _marked(g, groups, (tokens, n_group), 0.0, g.literal(1.0))
            shown = g.Where(g.Greater(g.Unsqueeze(is_open, [2]), 0.0), each, -inf)
            shown = g.Reshape(shown, [tokens, experts])
        _, chosen = g.TopK(shown, [top_k], axis=-1, outputs=2)
        logs = g.Log(g.Max(g.GatherElements(weights, chosen, axis=-1), 1e-20))
        if n_group > 1:  # fewer than top_k may be in groups that are open
            is_closed = g.Equal(g.GatherElements(shown, chosen, axis=-1), -inf)
            logs = g.Where(is_closed, router_sentinel, logs)
        y = _marked(g, chosen, (tokens, experts), router_sentinel, logs)
        return like(g, y, x), scores, weights


def _marked(g: Any, at: Value, shape: tuple[Dim, Dim], rest: float, marks: Value) -> Value:
    """A matrix of `rest` but for the columns `at` of each row, which have the marks."""
    marks = g.Expand(marks, list(at.shape))
    return g.ScatterElements(g.Expand(g.literal(rest), list(shape)), at, marks, axis=1)


def _dequantized(g: Any, w: Value, scales: Value, zeros: Given, bits: int, block: int) -> Value:
    """w (E, N, K * bits / 8) as float (E, N, K)."""
    codes = unpacked(g, w, bits)
    experts, columns, k = codes.shape
    if len(scales.shape) == 2:  # of whole columns, whose zeros are packed
        block, scales = k, g.Reshape(scales, [experts, columns, 1])
        if zeros is not None:
            zeros = g.Slice(unpacked(g, zeros, bits), [0], [columns], [1])
            zeros = g.Reshape(zeros, [experts, columns, 1])
    elif zeros is not None:
        zeros = g.Slice(unpacked(g, zeros, bits), [0], [scales.shape[2]], [2])
    return scaled_blocks(g, codes, scales, zeros, 1 << bits - 1, block, 2)


def _mixture(
    g: Any,
    x: Value,
    router: Value,
    mixing: Given,
    first: _Layer,
    second: _Layer,
    third: Optional[_Layer],
    *,
    k: int,
    activation_type: str,
    activation_alpha: float,
    activation_beta: float,
    normalize_routing_weights: int,
    swiglu_fusion: int,
    swiglu_limit: Optional[float],
    swiglu_limit_after_activation: int,
    use_sparse_mixer: int,
) -> Value:
    tokens, hidden = product(x.shape[:-1]), x.shape[-1]
    first, second = _by_columns(g, first, second, hidden)
    if use_sparse_mixer and k != 2:
        raise UnsupportedOp(f"use_sparse_mixer is not supported with k={k}, but with two experts")
    weights, chosen = _routed(g, router, mixing, k, normalize_routing_weights, use_sparse_mixer)
    rows = g.Reshape(x, [tokens, hidden])

    def linear(rows: Value, layer: _Layer, expert: Value, repeat: int) -> Value:
        return g.call("q7::ExpertLinear", rows, expert, *layer, trans_b=1, repeat=repeat)

    inner = linear(rows, first, chosen, k)  # (T, k, I or 2 * I)
    if activation_type == "swiglu":
        limit = swiglu_limit
        gate, up = _gate_and_up(g, inner, swiglu_fusion)
        if up is None:
            if third is None:
                raise UnsupportedOp("swiglu is not supported without a third layer if not fused")
            up = linear(rows, third, chosen, k)
        is_cut_after = bool(swiglu_limit_after_activation)
        if limit is not None:
            gate, up = gate if is_cut_after else g.Min(gate, limit), g.Clip(up, -limit, limit)
        gate = g.Swish(gate, alpha=activation_alpha)
        if limit is not None and is_cut_after:
            gate = g.Min(gate, limit)
        inner = g.Mul(gate, up if activation_beta == 0.0 else g.Add(up, activation_beta))
    elif activation_type in ACTS:
        inner = ACTS[activation_type](g, inner)
        if third is not None:
            inner = g.Mul(inner, linear(rows, third, chosen, k))
    else:
        raise UnsupportedOp(f"activation_type={activation_type!r} is not supported")
    flat = g.Reshape(inner, [tokens * k, inner.shape[2]])
    each = linear(flat, second, g.Reshape(chosen, [tokens * k]), 1)  # (T * k, hidden)
    shared = g.Mul(g.Reshape(each, [tokens, k, hidden]), g.Unsqueeze(weights, [2]))
    return g.Reshape(g.ReduceSum(shared, [1], keepdims=0), list(x.shape))


def _by_columns(g: Any, first: _Layer, second: _Layer, hidden: Dim) -> tuple[_Layer, _Layer]:
    """Both layers with w (E, N, K), where fixed sizes say that they are (E, K, N)."""
    (experts, a, b), (_, c, d) = first.w.shape, second.w.shape
    if not all(isinstance(n, int) for n in (hidden, a, b, c, d)):
        return first, second
    if (a, d) != (hidden, hidden) or hidden in (b, c):
        return first, second
    return (
        first._replace(w=g.Reshape(first.w, [experts, b, a])),
        second._replace(w=g.Reshape(second.w, [experts, d, c])),
    )


def _routed(
    g: Any, router: Value, mixing: Given, k: int, normalizes: int, is_sparse: int
) -> tuple[Value, Value]:
    """How much each chosen expert counts, and which they are, (T, k)."""
    if is_sparse and mixing is None:
        return _mixed(g, router)
    probabilities = g.Softmax(router, axis=-1)
    weights, chosen = g.TopK(probabilities, [k], axis=-1, outputs=2)
    if mixing is not None:
        weights = g.GatherElements(mixing, chosen, axis=-1)
    if normalizes:
        weights = g.Div(weights, g.ReduceSum(weights, [-1], keepdims=1))
    return weights, chosen


# How far below the highest logit, in parts of the greater of both, another still counts.
# Source: Liu et al. 2024, "GRIN: GRadient-INformed MoE", and the CUDA kernels of onnxruntime.
MIXER_REACH = 0.02


def _mixed(g: Any, router: Value) -> tuple[Value, Value]:
    """As _routed, for two experts: each counts as in a softmax over the logits within reach of its
    own, that of the second without the first.
    """
    highest, chosen = g.TopK(router, [2], axis=-1, outputs=2)
    weights = []
    for i in (0, 1):
        own = g.Slice(highest, [i], [i + 1], [1])
        reach = g.Mul(g.Max(g.Abs(router), own), MIXER_REACH)
        counts = g.LessOrEqual(g.Sub(own, router), reach)
        if i == 1:
            first = g.Slice(chosen, [0], [1], [1])
            counts = g.And(counts, g.Not(g.Equal(count(g, router.shape[1]), first)))
        powers = g.Where(counts, g.Exp(g.Sub(router, own)), 0.0)
        weights.append(g.Reciprocal(g.ReduceSum(powers, [-1], keepdims=1)))
    return g.Concat(*weights, axis=1), chosen


def _gate_and_up(g: Any, x: Value, fusion: int) -> tuple[Value, Given]:
    """The halves of the last axis: interleaved (1), one behind the other (2), or only one (0)."""
    if fusion == 0:
        return x, None
    size = x.shape[-1]
    bounds = (
        ((0, size, 2), (1, size, 2)) if fusion == 1 else ((0, size // 2, 1), (size // 2, size, 1))
    )
    gate, up = (g.Slice(x, [start], [end], [2], [step]) for start, end, step in bounds)
    return gate, up
