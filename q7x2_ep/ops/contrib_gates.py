"""Norms, gates and convolutions of the domain com.microsoft, as hybrid language models use them.

Source: the operator schemas of onnxruntime 1.31; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Value
from q7x2_ep.ops import op
from q7x2_ep.ops.attention import count
from q7x2_ep.ops.builder import Given, infer_meaning, like


@op("com.microsoft::GatedRMSNorm")
class GatedRMSNorm:
    """y = rms_norm(x) * scale * act(gate), over groups as long as the scale.

    Shapes: x, gate, y (.., G * C), scale (C,). activation: silu, swish or sigmoid.
    """

    signature = "x: F, scale: F, gate: F -> y"
    attributes = {"activation": "silu", "epsilon": 1e-5}
    infer = infer_meaning

    def decompose(
        g: Any, x: Value, scale: Value, gate: Value, activation: str, epsilon: float
    ) -> Value:
        *leading, width = x.shape
        size = scale.shape[0]
        rows = x if size == width else g.Reshape(x, [*leading, width // size, size])
        y = g.RMSNormalization(rows, scale, axis=-1, epsilon=epsilon)
        y = y if size == width else g.Reshape(y, [*leading, width])
        opened = g.Sigmoid(gate) if activation == "sigmoid" else g.Swish(gate, alpha=1.0)
        return g.Mul(y, opened)


@op("com.microsoft::BranchwiseRMSNorm")
class BranchwiseRMSNorm:
    """y = rms_norm(x) * scale of each of C branches.

    Shapes: x (.., C, H), or with num_branches (.., C * H); scale (C * H,), (C, H) or (H,).
    """

    signature = "x: F, scale?: F1 -> y"
    attributes = {"epsilon": 1e-5, "num_branches": 0}
    infer = infer_meaning

    def decompose(
        g: Any, x: Value, scale: Given = None, *, epsilon: float, num_branches: int
    ) -> Value:
        rows = _branches(g, x, num_branches)
        branches, size = rows.shape[-2:]
        scale = like(g, scale, x)
        if scale is None:
            scale = g.ones((1,), x.dtype)
        elif len(scale.shape) == 1 and scale.shape[0] != size:
            scale = g.Reshape(scale, [branches, size])
        y = g.RMSNormalization(rows, scale, axis=-1, epsilon=epsilon)
        return y if rows is x else g.Reshape(y, list(x.shape))


def _branches(g: Any, x: Value, count: int) -> Value:
    """x (.., C, H), which may be (.., C * H) where their count is given."""
    if not count:
        return x
    *leading, width = x.shape
    return g.Reshape(x, [*leading, count, width // count])


@op("com.microsoft::ScaledSiLU")
class ScaledSiLU:
    """y = z * sigmoid(z), z = scale * x, or alpha * x without a scale."""

    signature = "x: F, scale?: F1 -> y"
    attributes = {"alpha": 1.0}
    infer = infer_meaning

    def decompose(g: Any, x: Value, scale: Given = None, *, alpha: float) -> Value:
        return g.Swish(g.Mul(x, alpha if scale is None else like(g, scale, x)), alpha=1.0)


@op("com.microsoft::GatedAdd")
class GatedAdd:
    """z = x + y * gate, of a gate (.., 1)."""

    signature = "x: F, y: F, gate: F -> z"
    attributes: dict = {}
    infer = infer_meaning
    decompose = lambda g, x, y, gate: g.Add(x, g.Mul(y, gate))


@op("com.microsoft::HyperConnectionPreMix")
class HyperConnectionPreMix:
    """y = reduction_scale * sum over branches c of x[.., c, :] * gate[.., c, :].

    Shapes: x (.., C, H), or with num_branches (.., C * H); gate (.., C), (.., C, 1), or as x.
    """

    signature = "x: F, gate: F1 -> y"
    attributes = {"num_branches": 0, "reduction_scale": 1.0}
    infer = infer_meaning

    def decompose(
        g: Any, x: Value, gate: Value, num_branches: int, reduction_scale: float
    ) -> Value:
        rows = _branches(g, x, num_branches)
        mixed = g.ReduceSum(g.Mul(rows, _gates(g, gate, rows, x)), [-2], keepdims=0)
        return g.Mul(mixed, reduction_scale)


@op("com.microsoft::HyperConnectionPostMix")
class HyperConnectionPostMix:
    """y[.., k, :] = sum over c of mix[.., c, k] * x[.., c, :] + gate[.., k, :] * block.

    Shapes: x, y (.., C, H), or with num_branches (.., C * H); block (.., H); gate (.., C),
    (.., C, 1) or (.., C, H); mix (.., C, C), the identity by default.
    """

    signature = "x: F, block: F, gate: F1, mix?: F1 -> y"
    attributes = {"num_branches": 0}
    infer = infer_meaning

    def decompose(
        g: Any, x: Value, block: Value, gate: Value, mix: Given = None, *, num_branches: int
    ) -> Value:
        rows = _branches(g, x, num_branches)
        added = g.Mul(_gates(g, gate, rows, x), g.Unsqueeze(block, [-2]))
        mixed = rows
        if mix is not None:
            ndim = len(mix.shape)
            turned = g.Transpose(like(g, mix, x), perm=(*range(ndim - 2), ndim - 1, ndim - 2))
            mixed = g.MatMul(turned, rows)
        y = g.Add(mixed, added)
        return y if rows is x else g.Reshape(y, list(x.shape))


def _gates(g: Any, gate: Value, rows: Value, x: Value) -> Value:
    """A gate per branch or per element, to broadcast with rows (.., C, H)."""
    gate = like(g, gate, x)
    if len(gate.shape) == len(rows.shape):
        return gate
    if rows is x or gate.shape[-1] == rows.shape[-2]:
        return g.Unsqueeze(gate, [-1])
    return g.Reshape(gate, list(rows.shape))


@op("com.microsoft::EngramGate")
class EngramGate:
    """y = gate * value, gate = sigmoid(sign(d) * sqrt(max(abs(d), 1e-6))) of the mean product d =
    sum(rms_norm(key) * rms_norm(query)) / sqrt(H); normed is rms_norm(y).

    Shapes: key, query, y, normed (B, S, C, H), value (B, S, H), the scales (C, H).
    """

    signature = (
        "key: F, query: F, value: F, key_scale: F, query_scale: F, conv_scale?: F -> y, normed?"
    )
    attributes = {"epsilon": 1e-5}
    infer = infer_meaning

    def decompose(
        g: Any,
        key: Value,
        query: Value,
        value: Value,
        key_scale: Value,
        query_scale: Value,
        conv_scale: Given = None,
        *,
        epsilon: float,
    ) -> Any:
        def normed(x: Value, scale: Value) -> Value:
            return g.RMSNormalization(x, scale, axis=-1, epsilon=epsilon)

        size = g.Cast(g.Squeeze(g.literal([key.shape[-1]])), to=key.dtype)
        products = g.Mul(normed(key, key_scale), normed(query, query_scale))
        d = g.Div(g.ReduceSum(products, [-1], keepdims=1), g.Sqrt(size))
        gate = g.Sigmoid(g.Mul(g.Sign(d), g.Sqrt(g.Max(g.Abs(d), 1e-6))))
        y = g.Mul(gate, g.Unsqueeze(value, [2]))
        return y if conv_scale is None else (y, normed(y, conv_scale))


@op("com.microsoft::LinearAttentionGate")
class LinearAttentionGate:
    """decay = decay_scale * softplus(a + dt_bias), beta = sigmoid(b); of rows of H."""

    signature = "a: F, dt_bias: float32, decay_scale: float32, b?: F -> decay, beta?"
    attributes: dict = {}
    infer = infer_meaning

    def decompose(g: Any, a: Value, dt_bias: Value, decay_scale: Value, b: Given = None) -> Any:
        wide = like(g, a, dt_bias)
        decay = like(g, g.Mul(decay_scale, g.Softplus(g.Add(wide, dt_bias))), a)
        return decay if b is None else (decay, g.Sigmoid(b))


@op("com.microsoft::CausalConvWithState")
class CausalConvWithState:
    """y = act(conv(x) + bias) along positions, none of which sees a later one, each channel with a
    kernel of its own; present holds the last (k - 1) * dilation positions of past and x.

    Shapes: x, y (B, C, L), w (C, 1, k), past, present (B, C, (k - 1) * dilation); with
    channels_last x, y (B, L, C..), past, present (B, (k - 1) * dilation, C..).
    """

    signature = "x: F, w: F, bias?: F, past?: F -> y, present"
    attributes = {
        "activation": "none",
        "channels_last": 0,
        "dilation": 1,
        "ndim": 1,
        "state_window": 0,
    }
    unsupported = ("ndim", "state_window")
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        w: Value,
        bias: Given = None,
        past: Given = None,
        *,
        activation: str,
        channels_last: int,
        dilation: int,
        ndim: int,
        state_window: int,
    ) -> tuple[Value, Value]:
        channels, before = w.shape[0], (w.shape[2] - 1) * dilation
        if channels_last:
            shape = list(x.shape)
            x = _channels_first(g, x, channels)
            past = None if past is None else _channels_first(g, past, channels)
        if past is None:
            zero = g.array(np.zeros((), dtypes.DTYPES[x.dtype].numpy))
            past = g.Expand(zero, [*x.shape[:2], before])
        whole = g.Concat(past, x, axis=-1)
        if all(isinstance(dim, int) for dim in w.shape):
            y = g.Conv(whole, w, bias, group=channels, dilations=(dilation,))
        else:
            y = _depthwise(g, whole, w, bias, dilation)
        if activation in ("silu", "swish"):
            y = g.Swish(y, alpha=1.0)
        elif activation != "none":
            raise UnsupportedOp(f"activation={activation!r} is not supported")
        length = whole.shape[-1]
        present = g.Slice(whole, [length - before], [length], [2])
        if not channels_last:
            return y, present
        inner = (g.Transpose(part, perm=(0, 2, 1)) for part in (y, present))
        sizes = (shape, [shape[0], before, *shape[2:]])
        y, present = (g.Reshape(part, size) for part, size in zip(inner, sizes))
        return y, present


def _depthwise(g: Any, x: Value, w: Value, bias: Given, dilation: int) -> Value:
    """Conv of x (B, C, T) with as many groups as channels, by kernels whose sizes only a feed
    tells: that of windows times kernels.
    """
    channels, _, taps = w.shape
    steps = g.Mul(g.Unsqueeze(count(g, taps), [0]), g.literal(dilation, dtypes.INT64))
    starts = g.Unsqueeze(count(g, x.shape[2] - (taps - 1) * dilation), [1])
    windows = g.Gather(x, g.Add(starts, steps), axis=2)  # (B, C, L, taps)
    y = g.ReduceSum(g.Mul(windows, g.Reshape(w, [1, channels, 1, taps])), [3], keepdims=0)
    return y if bias is None else g.Add(y, g.Reshape(bias, [1, channels, 1]))


def _channels_first(g: Any, x: Value, channels: int) -> Value:
    """x (B, L, C..) as (B, C, L)."""
    return g.Transpose(g.Reshape(x, [x.shape[0], x.shape[1], channels]), perm=(0, 2, 1))


@op("com.microsoft::MRotaryEmbedding")
class MRotaryEmbedding:
    """RotaryEmbedding of three positions: each pair of channels is turned by the angle of one.

    With mrope_layout 0 the first mrope_section[0] pairs follow position 0, and so on; with 1 pair i
    follows position i % 3 if i < 3 * mrope_section[i % 3], and position 0 else.
    Shapes: x as RotaryEmbedding, position_ids (3, B, S), cos and sin (positions, R / 2).
    """

    signature = "x: F, position_ids: int64, cos: F, sin: F -> y"
    attributes = {
        "interleaved": 0,
        "is_packed_batching": 0,
        "mrope_layout": 0,
        "mrope_section": None,
        "num_heads": 0,
        "rotary_embedding_dim": 0,
        "scale": 1.0,  # of both cos and sin
    }
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        position_ids: Value,
        cos: Value,
        sin: Value,
        *,
        mrope_section: tuple[int, ...],
        mrope_layout: int,
        is_packed_batching: int,
        scale: float,
        **attrs: int,
    ) -> Value:
        pair = np.arange(sum(mrope_section))
        if mrope_layout:
            follows = np.where(pair < 3 * np.array(mrope_section)[pair % 3], pair % 3, 0)
        else:
            follows = np.repeat(np.arange(3), mrope_section)
        rows = [g.Squeeze(g.Slice(position_ids, [i], [i + 1], [0]), [0]) for i in range(3)]

        def looked_up(table: Value) -> Value:  # (B, S, R / 2)
            y = g.Gather(table, rows[0], axis=0)
            for i in (1, 2):
                y = g.Where(g.array(follows == i), g.Gather(table, rows[i], axis=0), y)
            return y if scale == 1 else g.Mul(y, scale)

        return g.RotaryEmbedding(x, looked_up(cos), looked_up(sin), **attrs)
