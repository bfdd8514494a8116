"""Fused ops of the domain q7: what the fusions in fuse/ produce. Their meaning is `decompose`, in
standard ONNX ops.
"""

from __future__ import annotations

from math import inf
from typing import Any, Optional

from q7x2_ep.dtypes import BOOL, INT32, INT64
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import content, maximum, product
from q7x2_ep.ir.view import channels_first, channels_last
from q7x2_ep.ops import op
from q7x2_ep.ops.activation import ACTIVATIONS
from q7x2_ep.ops.attention import (
    HEADS_OUTER,
    attention_step,
    bounds,
    repeat_heads,
    score_stages,
    weights,
)
from q7x2_ep.ops.common import (
    F32,
    Activation,
    Guard,
    allocate_rows,
    fit_guards,
    known,
    require_dtype,
    reshaped,
    rows_dense,
    size_guards,
)
from q7x2_ep.ops.matmul import gemm_step
from q7x2_ep.ops.norm import is_ones, norm_step

MIX = "q7::Mix"
Standard = tuple[str, list[Optional[Value]], dict[str, Any]]  # op type, operands, attributes


@op("q7::Contents")
class Contents:
    """x, a small vector of integers: its numbers are sizes of what follows, which are bound when a
    run has made it (passes/contents.py). numbers: those that are known before, None for others; -1
    and 0 may mean something else than a size.
    """

    signature = "x -> y"
    attributes: dict = {"numbers": ()}

    def infer(node: Node) -> list[Type]:
        x, elements = node.inputs[0], known(node.inputs[0])
        if elements is None:
            node.binds = True
            numbers = node.attrs["numbers"] or (None,) * int(product(x.shape))
            elements = tuple(
                content(node.output.name, i) if number is None else number
                for i, number in enumerate(numbers)
            )
        return [Type(x.dtype, x.shape, elements)]

    reference = lambda node, x: x
    standard = lambda node: ("Identity", node.inputs, {})


@op("q7::Linear")
class Linear:
    """y = act(alpha * x @ w + bias) + residual, for a constant w that is packed once.

    activation, with act_alpha and act_beta where it has them: a member of ACTIVATIONS.
    Shapes: x (.., K), w (K, N) or with trans_b (N, K), bias N elements, residual and y (.., N).
    Source: ONNX MatMul, Gemm; the epilogue of csrc/kernels/gemm.h.
    """

    signature = "x, w, bias?, residual? -> y"
    attributes = {
        "activation": "none",
        "act_alpha": None,
        "act_beta": None,
        "trans_b": 0,
        "alpha": 1.0,
    }

    def infer(node: Node) -> list[Type]:
        x, w = node.inputs[:2]
        return [Type(x.dtype, (*x.shape[:-1], w.shape[0 if node.attrs["trans_b"] else 1]))]

    def decompose(
        g: Any,
        x: Value,
        w: Value,
        bias: Optional[Value] = None,
        residual: Optional[Value] = None,
        activation: str = "none",
        act_alpha: Optional[float] = None,
        act_beta: Optional[float] = None,
        trans_b: int = 0,
        alpha: float = 1.0,
    ) -> Value:
        y = g.MatMul(x, g.Transpose(w, perm=(1, 0)) if trans_b else w)
        if alpha != 1.0:
            y = g.Mul(y, alpha)
        if bias is not None:
            y = g.Add(y, bias)
        y = ACTIVATIONS[activation](g, y, act_alpha or 0.0, act_beta or 0.0)
        return y if residual is None else g.Add(y, residual)

    def standard(node: Node) -> Optional[Standard]:
        attrs, operands = node.attrs, node.inputs
        if node.input(3) is not None or attrs["activation"] != "none":
            return None
        if len(node.output.shape) == 2:
            return "Gemm", operands, {"alpha": attrs["alpha"], "transB": attrs["trans_b"]}
        plain = node.input(2) is None and attrs["alpha"] == 1.0 and not attrs["trans_b"]
        return ("MatMul", operands, {}) if plain else None

    def guards(node: Node) -> list[Guard]:
        x, w = node.inputs[:2]
        k = w.shape[1 if node.attrs["trans_b"] else 0]
        return [] if x.shape[-1] == k else [(x.shape[-1], k, "inner dims differ")]

    def lower(node: Node, b: Any) -> None:
        lower_product(
            node,
            b,
            (node.inputs[1],),
            bias=node.input(2),
            residual=node.input(3),
            alpha=node.attrs["alpha"],
        )


@op("q7::GatedLinear")
class GatedLinear:
    """y = act(x @ gate + gate_bias) * (x @ up + up_bias), for constants that are packed together.

    Shapes: x (.., K), gate, up (K, N) or with trans_b (N, K), biases N elements, y (.., N).
    Source: Shazeer 2020, "GLU Variants Improve Transformer".
    """

    signature = "x, gate, up, gate_bias?, up_bias? -> y"
    attributes = {"activation": "none", "act_alpha": None, "act_beta": None, "trans_b": 0}
    infer = Linear.infer
    guards = Linear.guards

    def decompose(
        g: Any,
        x: Value,
        gate: Value,
        up: Value,
        gate_bias: Optional[Value] = None,
        up_bias: Optional[Value] = None,
        activation: str = "none",
        act_alpha: Optional[float] = None,
        act_beta: Optional[float] = None,
        trans_b: int = 0,
    ) -> Value:
        act = {"activation": activation, "act_alpha": act_alpha, "act_beta": act_beta}
        opened = Linear.decompose(g, x, gate, gate_bias, trans_b=trans_b, **act)
        return g.Mul(opened, Linear.decompose(g, x, up, up_bias, trans_b=trans_b))

    def lower(node: Node, b: Any) -> None:
        gate_bias, up_bias = node.input(3), node.input(4)
        lower_product(node, b, tuple(node.inputs[1:3]), bias=gate_bias, gated=True, up_bias=up_bias)


def lower_product(node: Node, b: Any, weights: tuple[Value, ...], **given: Any) -> None:
    """One gemm step over all rows of x; given: what gemm_step takes beyond the attributes."""
    x, attrs = node.inputs[0], node.attrs
    require_dtype(node, x.dtype, F32)
    k, n = weights[0].shape[:: -1 if attrs["trans_b"] else 1]
    rows = product(x.shape[:-1])
    strides = (1, k) if attrs["trans_b"] else (n, 1)
    weight = b.packed(k, n, *strides, *weights, narrow=True)
    c = allocate_rows(b, node.output).reshape((rows, n))
    gemm_step(b, reshaped(b, x, (rows, k)), weight, c, n, act=Activation.of(attrs), **given)


@op("q7::Attention")
class Attention:
    """o = softmax(cap(scale * q @ k^T) + bias + mask) @ v per head; H may be a multiple of the
    heads of k and v.

    cap(s) = softcap * tanh(s / softcap), nothing where softcap is 0. bias is float; mask adds too
    if it is float; where it is bool, false replaces a score by `fill`. Only keys j < lengths[b]
    exist. Query i is at key p = i + offset[b] and sees keys p - window[0] <= j <= p + window[1],
    where -1 is no bound, and with causal only j <= p. Without an offset the last query stands at
    the last key: offset = lengths - Sq, or Skv - Sq. sinks[h] is the score of one more key, which
    every query sees and whose v is 0. zero_masked_rows: a row whose scores are all
    -inf gives 0 instead of NaN; zero_nan_rows: so does any row that would be NaN.
    Shapes: q (B, H, Sq, D), k (B, Hkv, Skv, D), v (B, Hkv, Skv, Dv), mask and bias broadcast to
    (B, H, Sq, Skv), lengths and offset (B,) or (1,), sinks (H,), o (B, H, Sq, Dv) stored as
    (B, Sq, H, Dv), so that merging the heads afterwards copies nothing.
    Types: lengths, offset: int32 or int64.
    Source: Vaswani et al. 2017, section 3.2.1; ONNX Attention (opset 25).
    """

    signature = "q, k, v, mask?, bias?, lengths?, offset?, sinks? -> o"
    strided = range(5)
    attributes = {
        "scale": 1.0,
        "causal": 0,
        "zero_masked_rows": 0,
        "zero_nan_rows": 0,
        "fill": -inf,
        "softcap": 0.0,
        "window": (-1, -1),
    }

    def infer(node: Node) -> list[Type]:
        q, _, v = node.inputs[:3]
        return [Type(q.dtype, q.shape[:3] + v.shape[3:])]

    def decompose(
        g: Any,
        q: Value,
        k: Value,
        v: Value,
        mask: Optional[Value] = None,
        bias: Optional[Value] = None,
        lengths: Optional[Value] = None,
        offset: Optional[Value] = None,
        sinks: Optional[Value] = None,
        scale: float = 1.0,
        causal: int = 0,
        zero_masked_rows: int = 0,
        zero_nan_rows: int = 0,
        fill: float = -inf,
        softcap: float = 0.0,
        window: tuple[int, int] = (-1, -1),
    ) -> Value:
        operands = (mask, bias, lengths, offset)
        window = bounds(causal, window)
        *_, scores = score_stages(g, q, k, *operands, scale, fill, softcap, window)
        p = weights(g, scores, sinks)
        if zero_nan_rows:
            p = g.Where(g.IsNaN(p), 0.0, p)
        elif zero_masked_rows:
            p = g.Where(g.Equal(g.ReduceMax(scores, [-1], keepdims=1), -inf), 0.0, p)
        return g.MatMul(p, repeat_heads(g, q, v))

    def standard(node: Node) -> Optional[Standard]:
        (q, k), mask, attrs = node.inputs[:2], node.input(3), node.attrs
        # others have no counterpart in opset 23
        named = ("scale", "causal", "zero_masked_rows", "softcap")
        defaults = Attention.attributes.items()
        usual = all(attrs[name] == default for name, default in defaults if name not in named)
        plain = all(node.input(i) is None for i in (4, 5, 7))
        lengths = (q.shape[2], k.shape[2])
        # ONNX counts the causal diagonal from the first key, and gives 0 for masked rows;
        # onnxruntime wants a mask that has every query, and a scale above 0.
        offset = (lengths[1] - lengths[0],) if node.input(6) is None else known(node.input(6))
        aligned = not attrs["causal"] or offset == (0,)
        fits = mask is None or (attrs["zero_masked_rows"] and mask.shape[-2:] == lengths)
        if not (usual and plain and aligned and fits and attrs["scale"] > 0.0):
            return None
        same = {name: attrs[name] for name in ("scale", "softcap")}
        return "Attention", node.inputs[:4], {**same, "is_causal": attrs["causal"]}

    def guards(node: Node) -> list[Guard]:
        q, k, v = (x.shape for x in node.inputs[:3])
        mask, bias, lengths, offset = (node.input(i) for i in range(3, 7))
        pairs: list[Guard] = [
            (k[0], q[0], "batch sizes of query and key differ"),
            (v[0], k[0], "batch sizes of key and value differ"),
            (k[1], v[1], "numbers of heads of key and value differ"),
            (
                q[1] // maximum(k[1], 1) * k[1],
                q[1],
                "heads of the query are no multiple of the key's",
            ),
            (k[3], q[3], "head sizes of query and key differ"),
            (k[2], v[2], "sequence lengths of key and value differ"),
        ]
        fits = fit_guards((mask, bias), (*q[:3], k[2])) + fit_guards((lengths, offset), q[:1])
        return pairs + fits + size_guards((node.input(7),), q[1])

    def lower(node: Node, b: Any) -> None:
        mask, bias, lengths, offset = (node.input(i) for i in range(3, 7))
        sinks = node.input(7)
        floats, masks, vectors = (*node.inputs[:3], bias, sinks), (mask,), (lengths, offset)
        for values, kinds in ((floats, F32), (masks, (*F32, BOOL)), (vectors, (INT32, INT64))):
            for value in values:
                if value is not None:
                    require_dtype(node, value.dtype, kinds)
        q, k, v = (rows_dense(b, b.view(value)) for value in node.inputs[:3])
        attention_step(node, b, q, k, v, allocate_rows(b, node.output, 2, HEADS_OUTER))


@op("q7::SkipLayerNorm")
class SkipLayerNorm:
    """sum = x + skip + skip_bias; y = layer_norm(sum) * weight + bias over the last axis.

    Shapes: x, y, sum (.., D); skip as x, or without some of its leading dims; skip_bias, weight,
    bias (D,).
    Source: ONNX LayerNormalization (opset 17) behind Add.
    """

    signature = "x, skip, skip_bias?, weight, bias? -> y, sum?"
    attributes = {"epsilon": 1e-5}

    def infer(node: Node) -> list[Type]:
        x = node.inputs[0]
        return [Type(x.dtype, x.shape)] * len(node.outputs)

    def decompose(
        g: Any,
        x: Value,
        skip: Value,
        skip_bias: Optional[Value],
        weight: Value,
        bias: Optional[Value] = None,
        epsilon: float = 1e-5,
    ) -> tuple[Value, Value]:
        total = _skip_sum(g, x, skip, skip_bias)
        scale_and_bias = (weight,) if bias is None else (weight, bias)
        return g.LayerNormalization(total, *scale_and_bias, axis=-1, epsilon=epsilon), total

    def guards(node: Node) -> list[Guard]:
        x, skip, *rows = node.inputs
        return fit_guards((skip,), x.shape) + size_guards(rows, x.shape[-1])

    def lower(node: Node, b: Any) -> None:
        _skip_norm_step(node, b, "layernorm", bias=node.input(4))


@op("q7::SkipRmsNorm")
class SkipRmsNorm:
    """sum = x + skip + skip_bias; y = rms_norm(sum) * weight over the last axis.

    Shapes: x, y, sum (.., D); skip as x, or without some of its leading dims; skip_bias, weight
    (D,).
    Source: ONNX RMSNormalization (opset 23) behind Add.
    """

    signature = "x, skip, skip_bias?, weight -> y, sum?"
    attributes = {"epsilon": 1e-5}
    infer = SkipLayerNorm.infer
    guards = SkipLayerNorm.guards

    def decompose(
        g: Any,
        x: Value,
        skip: Value,
        skip_bias: Optional[Value],
        weight: Value,
        epsilon: float = 1e-5,
    ) -> tuple[Value, Value]:
        total = _skip_sum(g, x, skip, skip_bias)
        return g.RMSNormalization(total, weight, axis=-1, epsilon=epsilon), total

    def lower(node: Node, b: Any) -> None:
        _skip_norm_step(node, b, "rmsnorm")


def _skip_sum(g: Any, x: Value, skip: Value, skip_bias: Optional[Value]) -> Value:
    total = g.Add(x, skip)
    if skip_bias is not None:
        total = g.Add(total, skip_bias)
    return g.expose("sum", total)


def _skip_norm_step(node: Node, b: Any, op: str, **bias: Optional[Value]) -> None:
    x, skip, skip_bias, weight = node.inputs[:4]
    require_dtype(node, x.dtype, F32)
    norm_step(
        b,
        op,
        x,
        1,
        node.outputs[0],
        node.attrs["epsilon"],
        skip=skip,
        skip_bias=skip_bias,
        skip_rows=product(skip.shape[:-1]),
        weight=None if is_ones(weight) else weight,
        sum=node.outputs[1] if len(node.outputs) > 1 else None,
        **bias,
    )


@op(MIX)
class Mix:
    """y[b, m] = the sum over c of w[m, c] x[b, c], plus bias[m]: planes as sums of others.

    Shapes: x (B, C, ..), w (M, C), bias M elements, y (B, M, ..).
    """

    signature = "x, w, bias? -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        x, w = node.inputs[:2]
        return [Type(x.dtype, (x.shape[0], w.shape[0], *x.shape[2:]))]

    def guards(node: Node) -> list[Guard]:
        x, w = node.inputs[:2]
        found = [(x.shape[1], w.shape[1], "the weights are for another number of planes")]
        return found + size_guards((node.input(2),), w.shape[0])

    def decompose(g: Any, x: Value, w: Value, bias: Optional[Value] = None) -> Value:
        rank = len(x.shape)
        y = g.MatMul(g.Transpose(x, perm=channels_last(rank)), g.Transpose(w, perm=(1, 0)))
        if bias is not None:
            y = g.Add(y, bias)
        return g.Transpose(y, perm=channels_first(rank))

    def lower(node: Node, b: Any) -> None:
        x, w, bias = node.inputs[0], node.inputs[1], node.input(2)
        require_dtype(node, x.dtype, F32)
        batch, planes, *inner = x.shape
        b.step(
            "mix",
            kernel="mix",
            x=b.contiguous(x),
            w=w,
            bias=bias,
            y=node.output,
            batch=batch,
            C=planes,
            M=w.shape[0],
            n=product(inner),
        )
