"""The law of all fusions: what a formula says is found again, in every spelling and operand order,
and means the same.

Each spelling is built with every combination of its alternatives. Fused and unfused graphs are
evaluated in float64.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import onnx
import pytest

from q7x2_ep import dtypes, importer, passes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.fuse import FUSIONS, Alone, fuse
from q7x2_ep.importer.writer import write
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.pattern import COMMUTATIVE
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import substitute, symbol
from q7x2_ep.ops import find
from q7x2_ep.ops.activation import ACTIVATIONS
from q7x2_ep.ops.builder import Builder, meaning

B, S = symbol("B"), symbol("S")
SIZES = {"B": 2, "S": 3, "T": 5}
H, D, K, N = 2, 4, 6, 5


def scores(g: Builder, _: dict[str, Value]) -> Value:
    """Every part that may stand between the product and the Softmax, in some orders."""
    q, k = make_value(g, "q", (B, H, S, D)), make_value(g, "k", (B, H, S, D))
    flat = (B * H, S, D)
    product = g.either(
        lambda: g.MatMul(q, g.Transpose(k, perm=(0, 1, 3, 2))),
        lambda: g.Transpose(g.MatMul(k, g.Transpose(q, perm=(0, 1, 3, 2))), perm=(0, 1, 3, 2)),
        lambda: g.Reshape(
            g.MatMul(
                g.Reshape(q, list(flat)), g.Transpose(g.Reshape(k, list(flat)), perm=(0, 2, 1))
            ),
            [B, H, S, S],
        ),
    )
    x = g.either(lambda: g.Div(product, 2.0), lambda: product)
    mask, keep = make_value(g, "mask", (B, 1, 1, S)), make_value(g, "keep", ("bool", (S, S)))
    return g.either(
        lambda: x,
        lambda: g.Mul(g.Add(x, mask), 0.5),
        lambda: g.Sub(x, mask),
        lambda: g.Where(keep, x, -1e4),
        lambda: g.Where(keep, -math.inf, g.Add(x, mask)),
        lambda: g.Add(g.Add(x, mask), g.Where(keep, 0.0, -1e4)),
    )


def scores_rank_3(g: Builder, _: dict[str, Value]) -> Value:
    q, k = make_value(g, "q", (B, S, D)), make_value(g, "k", (B, D, S))
    return g.Mul(g.MatMul(q, k), 0.5)


def operands_of_product(g: Builder) -> tuple[Value, Value]:
    return make_value(g, "a", (B, S, K)), make_value(g, "b", (B, K, S))


def heads_of_product(g: Builder) -> tuple[Value, Value]:
    return make_value(g, "q", (B, H, S, D)), make_value(g, "k", (B, H, D, S))


def scaled_operands(g: Builder, _: dict[str, Value]) -> Value:
    """Factors right before attention, and behind views."""
    x, k = make_value(g, "x", (B, S, H * D)), make_value(g, "k", (B, H, S, D))
    rows = g.Reshape(g.Mul(x, 0.5), [B, S, H, D])
    q = g.Transpose(rows, perm=(0, 2, 1, 3))
    keys = g.either(lambda: g.Div(k, 4.0), lambda: k)
    return g.call("q7::Attention", q, keys, make_value(g, "v", (B, H, S, D)))


def repeated_heads(g: Builder, _: dict[str, Value]) -> Value:
    """Each of H heads twice, in the ways that exporters have for it."""

    def twice(name: str) -> Value:
        x, merged = make_value(g, name, (B, H, S, D)), [B, 2 * H, S, D]
        return g.either(
            lambda: g.Reshape(g.Expand(g.Unsqueeze(x, [2]), [B, H, 2, S, D]), merged),
            lambda: g.Reshape(g.Tile(g.Unsqueeze(x, [2]), [1, 1, 2, 1, 1]), merged),
            lambda: g.Reshape(g.Concat(*[g.Unsqueeze(x, [2])] * 2, axis=2), merged),
            lambda: g.Gather(x, [0, 0, 1, 1], axis=1),
        )

    q = make_value(g, "q", (B, 2 * H, S, D))
    return g.call("q7::Attention", q, twice("k"), twice("v"), make_value(g, "mask", (B, 1, 1, S)))


def expert_product(g: Builder, values: dict[str, Value], n: int = N, name: str = "w") -> Value:
    """Rows of x, two experts for each."""
    if "expert" not in values:
        values["expert"] = make_value(g, "ids", ("ids", (B, 2)))
        values["rows"] = make_value(g, "rows", (B, K))
    w = make_value(g, name, ("const", (3, K, n)))
    return g.call("q7::ExpertLinear", values["rows"], values["expert"], w, repeat=2)


def causal_mask(g: Builder, _: dict[str, Value]) -> Value:
    """A triangle that an attention op was given as data."""
    q, k, v = (make_value(g, name, (B, H, S, D)) for name in "qkv")
    column = g.Range(0, g.Squeeze(g.literal([S])), 1)
    mask = g.LessOrEqual(column, g.Unsqueeze(column, [1]))
    mask = g.either(lambda: g.Where(mask, 0.0, -np.inf), lambda: mask)
    return g.call("q7::Attention", q, k, v, mask, scale=0.5)


def scores_masked(g: Builder, values: dict[str, Value]) -> Value:
    """By the mask that the weights get too."""
    q, k = make_value(g, "q", (B, H, S, D)), make_value(g, "k", (B, H, S, D))
    x = g.Div(g.MatMul(q, g.Transpose(k, perm=(0, 1, 3, 2))), 2.0)
    fill = g.either(lambda: -math.inf, lambda: -3.4e38)
    return (
        g.Where(values["shown"], x, fill)
        if "shown" in values
        else (g.Where(values["hidden"], fill, x))
    )


def pixels_of(g: Builder, image: Value) -> Value:
    return g.Transpose(g.Reshape(image, [B, image.shape[1], S * S]), perm=(0, 2, 1))


def depthwise_of_linear(g: Builder, _: Any) -> Value:
    """Of pixels that a Linear made."""
    linear = make_value(g, "linear", "q7::Linear")
    image = g.Transpose(g.Reshape(linear, [B, S, 1, N]), perm=(0, 3, 1, 2))
    return g.Conv(
        image, make_value(g, "kernel", ("const", (N, 1, 3, 1))), group=N, pads=[1, 0, 1, 0]
    )


def linear_of_pixels(g: Builder, _: Any) -> Value:
    kernel = make_value(g, "kernel", ("const", (K, 1, 1, 1)))
    rows = pixels_of(g, g.Conv(make_value(g, "x", (B, K, S, S)), kernel, group=K))
    return g.call("q7::Linear", rows, make_value(g, "w", WEIGHT))


def linear_turned(g: Builder, _: dict[str, Value]) -> Value:
    """Rows in another order, of one value or of heads."""
    x = g.either(
        lambda: g.Transpose(make_value(g, "x", (B, S, K)), perm=(1, 0, 2)),
        lambda: g.Reshape(
            g.Transpose(make_value(g, "x", (B, 2, S, K // 2)), perm=(2, 0, 1, 3)), [S, B, K]
        ),
    )
    return g.call("q7::Linear", x, make_value(g, "w", WEIGHT), make_value(g, "bias", ROW))


def quantized(g: Builder, _: dict[str, Value]) -> Value:
    x, zero = make_value(g, "x", (S, K)), g.array(np.array(3, np.uint8))
    return g.QuantizeLinear(x, g.literal(0.05), zero)


def dequantized(g: Builder, _: dict[str, Value]) -> Value:
    return g.DequantizeLinear(quantized(g, _), g.literal(0.05), g.array(np.array(3, np.uint8)))


def dequantized_columns(g: Builder, _: dict[str, Value]) -> Value:
    columns = make_value(g, "columns", (K, S))
    return g.DequantizeLinear(g.QuantizeLinear(columns, g.literal(0.03)), g.literal(0.03))


def integers(g: Builder) -> Value:
    return g.array(np.random.default_rng(2).integers(-128, 128, (K, N)).astype(np.int8))


def dequantized_weight(g: Builder, _: dict[str, Value]) -> Value:
    return g.DequantizeLinear(integers(g), make_value(g, "scale", ("positive", (N,))), axis=1)


def square_weight(g: Builder, _: dict[str, Value]) -> Value:
    """Which may be turned, or not."""
    square = np.random.default_rng(2).integers(-128, 128, (K, K)).astype(np.int8)
    return g.DequantizeLinear(g.array(square), make_value(g, "scale", ("positive", ())))


def integer_product(g: Builder, _: dict[str, Value]) -> Value:
    zero = g.array(np.array(3, np.uint8))
    w = integers(g)
    return g.call("q7::QuantizedLinear", quantized(g, _), g.literal(0.05), zero, w, g.literal(0.1))


def blocked_weight(g: Builder, _: dict[str, Value]) -> Value:
    scale = g.array(np.full((2, N), 0.25, np.float32))
    return g.DequantizeLinear(integers(g), scale, axis=0, block_size=K // 2)


def blocked_weight_turned(g: Builder, _: dict[str, Value]) -> Value:
    return g.DequantizeLinear(
        g.array(np.arange(N * K).reshape(N, K).astype(np.int8)),
        g.array(np.full((N, 2), 0.25, np.float32)),
        axis=1,
        block_size=K // 2,
    )


def block_product(g: Builder, _: dict[str, Value]) -> Value:
    scale = g.array(np.full((2, N), 0.25, np.float32))
    x = make_value(g, "x", (S, K))
    return g.call("q7::BlockLinear", x, integers(g), scale, block_size=K // 2)


def bits_product(g: Builder, _: dict[str, Value]) -> Value:
    x = make_value(g, "x", (S, 32))
    q = g.array(np.random.default_rng(3).integers(0, 256, (N, 2, 8)).astype(np.uint8))
    scale = g.array(np.full((N, 2), 0.25, np.float32))
    return g.call("com.microsoft::MatMulNBits", x, q, scale, K=32, N=N, bits=4, block_size=16)


def dequantized_image(g: Builder, _: dict[str, Value]) -> Value:
    x, scale = make_value(g, "x", (B, D, S, S)), g.literal(0.05)
    return g.DequantizeLinear(g.QuantizeLinear(x, scale), scale)


def dequantized_kernel(g: Builder, _: dict[str, Value]) -> Value:
    kernel = np.random.default_rng(2).integers(-128, 128, (K, D, 2, 2)).astype(np.int8)
    return g.DequantizeLinear(g.array(kernel), make_value(g, "scale", ("positive", (K,))), axis=0)


def group_norm_result(g: Builder, values: dict[str, Value]) -> Value:
    rows = [make_value(g, name, NORM_ROW) for name in ("scale", "bias")]
    return g.GroupNormalization(make_value(g, "x", (B, K, S, D)), *rows, num_groups=2)


def conv_result(g: Builder, _: dict[str, Value]) -> Value:
    x, w = make_value(g, "x", (B, D, S, S)), make_value(g, "w", ("const", (K, D, 3, 3)))
    return g.Conv(x, w, pads=[1, 1, 1, 1])


def clamped_conv_result(g: Builder, _: dict[str, Value]) -> Value:
    x, w = make_value(g, "x", (B, D, S, S)), make_value(g, "w", ("const", (K, D, 3, 3)))
    return g.call("q7::Conv", x, w, activation="clip", act_alpha=-0.5, act_beta=0.75)


def activated_conv_result(g: Builder, _: dict[str, Value]) -> Value:
    x, w = make_value(g, "x", (B, K, S, S)), make_value(g, "w", ("const", (K, 1, 3, 3)))
    return g.call("q7::Conv", x, w, group=K, activation="silu")


def linear_of_rows(g: Builder, _: dict[str, Value]) -> Value:
    rows = make_value(g, "rows", (B, S, S, D))
    return g.call("q7::Linear", rows, make_value(g, "columns", ("const", (D, K))))


def joined_conv_results(g: Builder, _: dict[str, Value]) -> Value:
    x, w = make_value(g, "x", (B, D, S, S)), make_value(g, "w", ("const", (K - 2, D, 3, 3)))
    y = g.Conv(x, w, pads=[1, 1, 1, 1])
    return g.Concat(y, g.Conv(x, make_value(g, "w1", ("const", (2, D, 1, 1)))), axis=1)


def beside_conv_result(g: Builder, values: dict[str, Value]) -> Value:
    """Of the same image, with a smaller window."""
    x, w = values["y"].producer.inputs[0], make_value(g, "w1", ("const", (K, D, 1, 1)))
    return g.Conv(x, w, make_value(g, "b", ("const", (K,))))


def depthwise_result(g: Builder, _: dict[str, Value]) -> Value:
    x, w = make_value(g, "x", (B, K, S, S)), make_value(g, "w", ("const", (K, 1, 3, 3)))
    return g.Conv(x, w, group=K, pads=[1, 1, 1, 1])


def transposed_result(g: Builder, _: dict[str, Value]) -> Value:
    x, w = make_value(g, "x", (B, D, S, S)), make_value(g, "w", ("const", (D, K // 2, 3, 3)))
    return g.ConvTranspose(x, w, group=2, strides=[2, 1])


# What stands for a wildcard: the shape of a float input, a list (int64 constant), a number,
# ("const", shape), ("bool", shape), ("ids", shape), or a function (g, values so far) -> value.
WEIGHT, ROW = ("const", (K, N)), ("const", (N,))
NORM_ROW = ("const", (K,))
OF_CHANNELS = {
    "scale": ("const", (K, 1, 1)),
    "shift": ("const", (1, K, 1, 1)),
    "mean": NORM_ROW,
    "variance": ("positive", (K,)),
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "Gelu": {"x": (B, S, K)},
    "GeluTanh": {"x": (B, S, K)},
    "Sigmoid": {"x": (B, S, K)},
    "Swish": {"x": (B, S, K), "alpha": 1.702, "minus_alpha": -1.702},
    "Mish": {"x": (B, S, K)},
    "Relu": {"x": (B, S, K)},
    "Clip": {"x": (B, S, K), "low": -0.5, "high": 0.5},
    "LeakyRelu": {"x": (B, S, K), "alpha": 0.1},
    "SquaredRelu": {"x": (B, S, K)},
    "HardSigmoid": {"x": (B, S, K), "alpha": 0.2, "beta": 0.5},
    "HardSwish": {"x": (B, S, K)},
    "Softcap": {"x": (B, S, K), "divisor": 30.0, "cap": 30.0},
    "Softmax": {"x": (B, S, K), "max_axes": [1], "axes": [-2]},
    "LogSoftmax": {"x": (B, S, K), "max_axes": [-1], "axes": [2]},
    "GroupedHeads": {"o": repeated_heads},
    "AttentionMask": {"o": causal_mask},
    "LayerNorm": {
        "x": (B, S, K),
        "mean_axes": [-1],
        "mean_factor": 1 / K,
        "axes": [2],
        "factor": 1 / K,
        "epsilon": 1e-5,
        "weight": NORM_ROW,
        "bias": NORM_ROW,
    },
    "RmsNorm": {
        "x": (B, S, K),
        "axes": [-1],
        "factor": 1 / K,
        "epsilon": 1e-6,
        "weight": ("const", (1, 1, K)),
    },
    "NormWeight": {"norm": "LayerNormalization", "weight": NORM_ROW},
    "NormBias": {"norm": "LayerNormalization", "bias": (K,)},
    "Attention": {
        "scores": scores,
        "axes": [-1],
        "flat_shape": [B, H, S, S],
        "v": (B, H, S, D),
        "v_columns": (B, H, D, S),
    },
    "QueryScale": {"o": scaled_operands},
    "Rope": {
        "x": (B, H, S, D),
        "a": lambda g, v: cut(g, v["x"], 0, D // 2),
        "b": lambda g, v: cut(g, v["x"], D // 2, D),
        "cos": (B, 1, S, D),
        "sin": (B, 1, S, D),
    },
    "RopePairs": {
        "a": lambda g, v: cut(g, whole(g, v), 0, D, 2),
        "b": lambda g, v: cut(g, whole(g, v), 1, D, 2),
        "cos": (1, 1, S, D // 2),
        "sin": (1, 1, S, D // 2),
        "cos2": lambda g, v: v["cos"],
        "sin2": lambda g, v: v["sin"],
        "axes": [-1],
        "axes2": [4],
        "column_shape": [B, H, S, D // 2, 1],
        "column_shape2": [B, H, S, D // 2, 1],
        "shape": [B, H, S, D],
    },
    "OnnxRope": {
        "x": (B, H, S, D),
        "cos": (B, S, D // 2),
        "sin": (B, S, D // 2),
    },
    "PartialRope": {
        "q": lambda g, v: cut(g, whole(g, v), 0, D // 2),
        "cos": (B, 1, S, D // 2),
        "sin": (B, 1, S, D // 2),
        "rest": lambda g, v: cut(g, whole(g, v), D // 2, D),
    },
    "QuantizedLinear": {"x": dequantized, "w": dequantized_weight, "bias": ROW},
    "QuantizedBias": {"linear": integer_product, "bias": ROW},
    "QuantizedActivation": {"product": integer_product, "low": -0.5, "high": 6.0},
    "DynamicLinear": {
        "x": quantized,
        "x_zero": ("byte", 3),
        "x_scale": lambda g, _: g.Reshape(g.Slice(make_value(g, "x", (S, K)), [0, 0], [1, 1]), []),
        "w": lambda g, _: integers(g),
        "w_zero": lambda g, _: g.array(np.arange(N, dtype=np.int8)),
        "w_scale": ("positive", (N,)),
    },
    "BlockLinear": {"x": (S, K), "w": blocked_weight, "bias": ROW},
    "BlockBias": {"linear": block_product, "bias": ROW},
    "BitsBias": {"linear": bits_product, "bias": ROW},
    "QuantizedConv": {"x": dequantized_image, "w": dequantized_kernel, "bias": NORM_ROW},
    "QuantizedResult": {"product": integer_product, "scale": 0.7, "zero": ("byte", 0)},
    "QuantizedMatMul": {
        "x": dequantized,
        "w": dequantized_columns,
        "scale": 0.7,
        "zero": ("byte", 0),
    },
    "PadConv": {
        "x": (B, D, S, S),
        "pads": [0, 0, 1, 0, 0, 0, 2, 1],
        "zero": 0.0,
        "w": ("const", (K, D, 1, 1)),
        "bias": ("const", (K,)),
    },
    "ConvAffine": {"y": conv_result, **OF_CHANNELS},
    "ConvBranches": {"y": conv_result, "z": beside_conv_result},
    "ConvSkip": {
        "y": depthwise_result,
        "x": lambda g, v: v["y"].producer.inputs[0],
        **OF_CHANNELS,
        "term": 0.5,
    },
    "ConvActivation": {"product": conv_result, "low": -0.5, "high": 0.5},
    "ConvAffineActivation": {"y": clamped_conv_result, "scale": -0.5, "shift": 0.25},
    "ConvScaledActivation": {"y": activated_conv_result, **OF_CHANNELS},
    "JoinedConvAffine": {"y": joined_conv_results, **OF_CHANNELS},
    "JoinedConvActivation": {"product": joined_conv_results, "low": -0.5, "high": 0.5},
    "PixelsAhead": {"y": depthwise_of_linear},
    "PixelsActivation": {
        "product": lambda g, values: pixels_of(g, conv_result(g, values)),
        "low": -0.5,
        "high": 0.5,
    },
    "PixelsBehind": {"y": linear_of_pixels},
    "GroupNorm": {
        "x": (B, K, S, D),
        "split": [0, 2, -1],
        "scale": ("const", (2,)),
        "bias": ("const", (2,)),
        "shape": [B, K, S, D],
    },
    **{
        name: {"norm": group_norm_result, "more": ("const", (K, 1, 1))}
        for name in ("GroupNormWeight", "GroupNormBias")
    },
    "BatchNorm": {
        "x": (B, K, S),
        "scale": NORM_ROW,
        "shift": NORM_ROW,
        "mean": NORM_ROW,
        "variance": ("positive", (K,)),
    },
    "BatchNormScaled": {
        "x": (B, K, S),
        "scale": NORM_ROW,
        "shift": NORM_ROW,
        "mean": NORM_ROW,
        "variance": ("positive", (K,)),
        "more": ("const", (K, 1)),
        "term": ("const", (1, K, 1)),
    },
    "ConvTransposeAffine": {"y": transposed_result, **OF_CHANNELS},
    "ConvTransposeActivation": {"product": transposed_result, "low": -0.5, "high": 0.5},
    "ImageColumns": {"linear": linear_of_rows, "scale": ("const", (K, 1, 1))},
    "ImageResidual": {"linear": linear_of_rows, "residual": conv_result},
    "ConvResidual": {"product": conv_result, "residual": (B, K, S, S)},
    "GatedConv": {
        "x": (1, D, 8, 9),
        "gate": (1, D, 1, 1),
        "w": ("const", (10, D, 1, 1)),
        "bias": ("const", (10,)),
    },
    "Linear": {"x": (B, S, K), "w": WEIGHT, "bias": ROW},
    "LinearReshape": {},
    "ScaledMatMul": {"y": lambda g, _: g.MatMul(*operands_of_product(g)), "scale": 0.5},
    "LinearScale": {"linear": "q7::Linear", "scale": 0.5},
    "LinearColumns": {"linear": "q7::Linear", "scale": ROW},
    "LinearNorm": {
        "linear": "q7::Linear between",
        "scale": ROW,
        "shift": ROW,
        "mean": ROW,
        "variance": ("positive", (N,)),
    },
    "LinearBias": {"linear": "q7::Linear", "bias": ROW},
    "LinearActivation": {"product": "q7::Linear", "low": -0.5, "high": 0.5},
    "LinearResidual": {"product": "q7::Linear", "residual": (B, S, N)},
    "LinearTurned": {"linear": linear_turned, "shape": [S, B, N, 1], "axes": [0]},
    "MixTurned": {"x": (B, K, S, S), "w": WEIGHT, "bias": ROW},
    "MixConvolved": {
        "x": lambda g, _: g.Mul(g.MatMul(*heads_of_product(g)), 0.5),
        "w": ("const", (3, H, 1, 1)),
        "bias": ("const", (3,)),
    },
    "LinearRows": {
        "linear": "q7::Linear",
        "starts": [-1],
        "ends": [9],
        "axes": [1],
        "steps": [1],
        "indices": [0],
    },
    "ExpertLinear": {
        "w": ("const", (3, K, K)),
        "expert": ("ids", (B,)),
        "tuples": ("ids", (B, 1)),
        "x": (B, K, 1),
        "axes": [-1],
        "shape": [B, K],
    },
    "ExpertBias": {
        "y": expert_product,
        "bias": ("const", (3, N)),
        "expert": lambda g, v: v["expert"],
        "tuples": lambda g, v: g.Unsqueeze(v["expert"], [-1]),
    },
    "GatedExperts": {
        "opened": lambda g, v: g.Sigmoid(expert_product(g, v)),
        "up": lambda g, v: expert_product(g, v, name="up"),
    },
    "ExpertSum": {"y": expert_product, "weight": (B, 2, 1), "shape": [B, 2, N], "axes": [1]},
    "GatedLinear": {"gate": "q7::Linear", "up": "q7::Linear"},
    "GatedHalves": {"all": "halves of q7::Linear"},
    "SkipLayerNorm": {
        "x": (B, S, K),
        "skip": (1, S, K),
        "skip_bias": NORM_ROW,
        "weight": NORM_ROW,
        "bias": NORM_ROW,
    },
    "SkipRmsNorm": {
        "x": (B, S, K),
        "skip": (S, K),
        "skip_bias": NORM_ROW,
        "weight": NORM_ROW,
    },
}
HEADS = {**dict.fromkeys("qkv", (B, H, S, D)), "mask": (B, 1, 1, S)}
ROWS = {"x": (B, 1, K), "axes": [-2]}
NORM_ROWS = {"scale": NORM_ROW, "shift": NORM_ROW}
RANK_4 = {"expert": ("ids", (B, 2)), "tuples": ("ids", (B, 2, 1)), "shape": [B, 2, K]}


OVERRIDES = {
    "matmul_turned": {"w": blocked_weight_turned},
    "integer_gemm": {"w": square_weight},
    "integer_gemm_bias": {"w": square_weight, "bias": NORM_ROW},
    "column_rank_4": {**RANK_4, "x": (B, 1, K, 1)},
    "row": ROWS,
    "row_turned": ROWS,
    "row_rank_4": {**RANK_4, "x": (B, 2, 1, K), "axes": [2]},
    "reshaped": {"linear": "q7::Linear between Reshapes", "shape": [B, S, N]},
    "attention_turned_rank_3": {
        "scores": scores_rank_3,
        "flat_shape": [B, S, S],
        "v_columns": (B, D, S),
    },
    "attention_dropped": {"hidden": ("bool", (S, S)), "scores": scores_masked},
    "attention_kept": {"shown": ("bool", (S, S)), "scores": scores_masked},
    "normalized": NORM_ROWS,
    "norm_added": NORM_ROWS,
    "norm_subtracted": NORM_ROWS,
    "gemm": {"x": (S, K)},
    "gemm_bias": {"x": (S, K)},
    "interleaved": {
        "a_column": lambda g, v: column(g, cut(g, v["x"], 0, D, 2)),
        "b": lambda g, v: cut(g, v["x"], 1, D, 2),
        "b_column": lambda g, v: column(g, v["b"]),
        "axes": [4],
        "column_shape": [B, H, S, D // 2, 1],
        "shape": [B, H, S, D],
    },
    "pair_halves": {
        "a": lambda g, v: cut(g, whole(g, v), 0, 1),
        "b": lambda g, v: cut(g, whole(g, v), 1, 2),
        "cos": (B, 1, S, 1),
        "sin": (1, S, 1),
        "rest": lambda g, v: cut(g, whole(g, v), 2, D),
    },
    "pair_columns": {
        "a": lambda g, v: column(g, cut(g, whole(g, v), 0, D, 2)),
        "b": lambda g, v: column(g, cut(g, whole(g, v), 1, D, 2)),
        "cos": (S, D // 2, 1),
        "sin": (S, D // 2, 1),
    },
    "partial_turned": {
        "rest": lambda g, v: cut(g, g.Transpose(whole(g, v), perm=(0, 2, 1, 3)), D // 2, D)
    },
    "onnx_rope_at": {"cos": (S, D // 2), "sin": (S, D // 2), "positions": ("ids", (B, S))},
}
TARGETS = {
    "Gelu": "Gelu",
    "GeluTanh": "Gelu",
    "Sigmoid": "Sigmoid",
    "Swish": "Swish",
    "Mish": "Mish",
    "Relu": "Relu",
    "Clip": "Clip",
    "LeakyRelu": "LeakyRelu",
    "SquaredRelu": "q7::SquaredRelu",
    "HardSigmoid": "HardSigmoid",
    "HardSwish": "HardSwish",
    "Softcap": "q7::Softcap",
    "Softmax": "Softmax",
    "LogSoftmax": "LogSoftmax",
    "ScaledMatMul": "q7::ScaledMatMul",
    "MixTurned": "q7::Mix",
    "MixConvolved": "q7::Mix",
    "ExpertLinear": "q7::ExpertLinear",
    "ExpertBias": "q7::ExpertLinear",
    "GatedExperts": "q7::GatedExpertLinear",
    "ExpertSum": "MatMul",
    "GatedLinear": "q7::GatedLinear",
    "GatedHalves": "q7::GatedLinear",
    "GroupedHeads": "q7::Attention",
    "AttentionMask": "q7::Attention",
    "QueryScale": "q7::Attention",
    "LayerNorm": "LayerNormalization",
    "RmsNorm": "RMSNormalization",
    "NormWeight": "LayerNormalization",
    "NormBias": "LayerNormalization",
    **dict.fromkeys(("GroupNorm", "GroupNormWeight", "GroupNormBias"), "GroupNormalization"),
    "SkipRmsNorm": "q7::SkipRmsNorm",
    "Attention": "q7::Attention",
    **dict.fromkeys(("PadConv", "ConvAffine", "ConvBranches", "ConvSkip"), "Conv"),
    **dict.fromkeys(("BlockLinear", "BlockBias"), "q7::BlockLinear"),
    "BitsBias": "com.microsoft::MatMulNBits",
    **dict.fromkeys(("BatchNorm", "BatchNormScaled"), "q7::Chain"),
    "ConvTransposeAffine": "ConvTranspose",
    "ConvTransposeActivation": "q7::ConvTranspose",
    **dict.fromkeys(("QuantizedLinear", "QuantizedBias", "QuantizedResult"), "q7::QuantizedLinear"),
    **dict.fromkeys(("DynamicLinear", "QuantizedActivation"), "q7::QuantizedLinear"),
    "QuantizedConv": "q7::QuantizedConv",
    "QuantizedMatMul": "QLinearMatMul",
    **dict.fromkeys(("ImageColumns", "ImageResidual"), "q7::Linear"),
    **dict.fromkeys(("ConvActivation", "ConvResidual", "GatedConv"), "q7::Conv"),
    "ConvAffineActivation": "q7::Conv",
    "ConvScaledActivation": "q7::Conv",
    **dict.fromkeys(("JoinedConvAffine", "JoinedConvActivation"), "Concat"),
    **dict.fromkeys(("PixelsAhead", "PixelsActivation", "PixelsBehind"), "q7::Conv"),
    "SkipLayerNorm": "q7::SkipLayerNorm",
    **dict.fromkeys(("Rope", "RopePairs", "OnnxRope", "PartialRope"), "q7::Rope"),
}
UNNAMED = {
    "Reshape",
    "Slice",
    "Unsqueeze",
    "Cast",
    "q7::Attention",
    "q7::Rope",
}  # may leave no trace
# What may be left besides the target: views, and what makes several masks one.
ALLOWED = {"Transpose", "Reshape", "Not", "Unsqueeze", "Add", "Mul", "Where", "Slice", "Gather"}
ALLOWED |= {"q7::ExpertLinear", "q7::ScaledMatMul"}  # what a weighted sum, and a mix, is of
ALLOWED |= {"Conv"}  # whose pixels a Linear has
ALLOWED |= {"q7::Conv"}  # that a Concat joins
FOLDED = {"Sub", "Neg", "Div", "Sqrt", "Expand", "Concat"}  # of constants: the weights of a Conv
INTEGERS = {"QuantizeLinear"}  # what makes the operand of an integer product
CASES = [
    pytest.param(fusion, spelling, id=f"{fusion.name}-{spelling.__name__}")
    for walk in FUSIONS
    if not isinstance(walk, Alone)
    for fusion in walk.fusions()
    for spelling in fusion.spellings
]


def random_array(generator: np.random.Generator, shape: tuple) -> np.ndarray:
    return generator.standard_normal(shape).astype(np.float32)


def whole(g: Builder, values: dict[str, Value]) -> Value:
    """What others are cut from."""
    if "whole" not in values:
        values["whole"] = make_value(g, "whole", (B, H, S, D))
    return values["whole"]


def cut(g: Builder, x: Value, start: int, end: int, step: int = 1) -> Value:
    return g.Slice(x, [start], [end], [3], [step])


def column(g: Builder, x: Value) -> Value:
    return g.Unsqueeze(x, [-1])


def make_value(g: Builder, name: str, spec: Any) -> Value:
    if isinstance(spec, str) and spec.startswith("LayerNormalization"):
        x = make_value(g, "x", (B, S, K))
        return g.LayerNormalization(x, g.ones((K,), dtypes.FLOAT))
    if isinstance(spec, str):
        x = next((x for x in g.graph.inputs if x.name == "x"), None)
        x = make_value(g, "x", (B, S, K)) if x is None else x
        if "halves" in spec:
            linear = g.call("q7::Linear", x, make_value(g, "w", ("const", (K, 2 * N))))
            return g.Split(linear, [N, N], outputs=2, axis=-1)
        rows = g.Reshape(x, [B * S, K]) if "between" in spec else x
        return g.call("q7::Linear", rows, make_value(g, "w", WEIGHT))
    if isinstance(spec, (list, float)):
        return g.literal(spec)
    if spec[0] == "const":
        return g.array(random_array(np.random.default_rng(list(name.encode())), spec[1]))
    if spec[0] == "byte":
        return g.array(np.array(spec[1], np.uint8))
    if spec[0] == "positive":
        return g.array(np.abs(random_array(np.random.default_rng(1), spec[1])) + 0.5)
    if spec[0] == "reshape":
        return g.Reshape(make_value(g, name, spec[1]), list(spec[2]))
    dtype = {"bool": dtypes.BOOL, "ids": dtypes.INT64}.get(spec[0], dtypes.FLOAT)
    shape = spec if dtype == dtypes.FLOAT else spec[1]
    value = Value(name, dtype, shape)
    g.graph.inputs.append(value)
    return value


class Script:
    """Answers `choose` from a list, then with 0; remembers (answer, n) of every question."""

    def __init__(self, answers: list[int]):
        self.answers = answers
        self.seen: list[tuple[int, int]] = []

    def choose(self, n: int) -> int:
        at = len(self.seen)
        self.seen.append((self.answers[at] if at < len(self.answers) else 0, n))
        return self.seen[-1][0]


def all_choices(make: Callable[[Callable[[int], int]], Any]) -> Iterator[Any]:
    """make(choose) for every sequence of answers that choose can give."""
    script = Script([])
    while True:
        yield make(script.choose)
        seen = script.seen
        while seen and seen[-1][0] + 1 == seen[-1][1]:
            seen.pop()
        if not seen:
            return
        script = Script([answer for answer, _ in seen[:-1]] + [seen[-1][0] + 1])


def build_graph(fusion: Fusion, spelling: Any, choose: Callable[[int], int]) -> Graph:
    graph = Graph()
    g = Builder(graph, choose)
    specs = {**EXAMPLES[fusion.name], **OVERRIDES.get(spelling.__name__, {})}
    values: dict[str, Value] = {}
    names = list(inspect.signature(spelling).parameters)[1:]
    for name in [] if "all" in specs else names:
        spec = specs[name]
        values[name] = spec(g, values) if callable(spec) else make_value(g, name, spec)
    if "all" in specs:
        operands = make_value(g, "all", specs["all"])
    else:
        operands = [values[name] for name in names]
    graph.outputs = [spelling(g, *operands)]
    graph.output_names = [graph.outputs[0].name]
    graph.nodes = g.take()
    for i, node in enumerate(graph.nodes):
        node.name = f"{node.op}.{i}"
        node.sources = (node.name,)
    graph.inputs = [value for value in graph.inputs if value.users]
    return graph


def commute(graph: Graph, chance: random.Random) -> None:
    for node in graph.nodes:
        if node.op in COMMUTATIVE and chance.random() < 0.5:
            node.inputs.reverse()


def feeds_for(graph: Graph) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    feeds = {}
    for value in graph.inputs:
        shape = tuple(substitute(dim, SIZES) for dim in value.shape)
        array = random_array(generator, shape)
        if value.dtype != dtypes.FLOAT:
            array = array > 0 if value.dtype == dtypes.BOOL else generator.integers(0, 3, shape)
        feeds[value.name] = array
    return feeds


@pytest.mark.parametrize("fusion, spelling", CASES)
def test_formula_is_found_and_means_the_same(fusion: Fusion, spelling: Any) -> None:
    chance = random.Random(0)
    for graph in all_choices(lambda choose: build_graph(fusion, spelling, choose)):
        commute(graph, chance)
        feeds = feeds_for(graph)
        before = evaluate(graph, feeds, np.float64)
        sources = {node.name for node in graph.nodes if node.op not in UNNAMED}
        report = fuse(graph)
        text = [node.op for node in graph.nodes]
        assert report.applied.get(fusion.name) == 1, (text, [str(miss) for miss in report.misses])
        target = TARGETS.get(fusion.name, "q7::Linear")
        assert text.count(target) == 1 and set(text) <= ALLOWED | FOLDED | INTEGERS | {target}, text
        assert {name for node in graph.nodes for name in node.sources} >= sources
        for left, right in zip(before, evaluate(graph, feeds, np.float64)):
            np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


def fused_graph(op: str, specs: list[Any], outputs: int, attrs: dict[str, Any]) -> Graph:
    graph = Graph()
    g = Builder(graph)
    values = [
        None if spec is None else make_value(g, f"v{i}", spec) for i, spec in enumerate(specs)
    ]
    results = g.call(op, *values, outputs=outputs, **attrs)
    graph.outputs = list(results) if outputs > 1 else [results]
    graph.output_names = [value.name for value in graph.outputs]
    graph.nodes = g.take()
    return graph


X, RESIDUAL = (B, S, K), (B, S, N)
EXPERTS = ("const", (3, K, N))
OF_LINEAR = [name for name in ACTIVATIONS if name != "affine_hard_swish"]  # which Convs alone have
PARAMETRISED = {  # activations with act_alpha, and the act_beta that they have
    **dict.fromkeys(("swish", "leaky_relu", "elu", "softcap"), None),
    **dict.fromkeys(("clip", "hard_sigmoid"), 0.75),
}
QUERIES = KEYS = (B, H, S, D)
T = symbol("T")
PAST = (B, H, T, D)
LAW = [
    *(
        ("q7::Linear", [X, WEIGHT, bias, residual], 1, {"activation": activation, "alpha": alpha})
        for bias in (None, ROW)
        for residual in (None, RESIDUAL)
        for activation in OF_LINEAR
        if activation not in PARAMETRISED
        for alpha in (1.0, 0.5)
    ),
    *(
        (
            "q7::Linear",
            [X, WEIGHT, ROW],
            1,
            {"activation": activation, "act_alpha": 0.25, "act_beta": beta},
        )
        for activation, beta in PARAMETRISED.items()
    ),
    ("q7::ScaledMatMul", [(B, S, K), (B, K, S)], 1, {"alpha": 0.125}),
    *(
        ("q7::GatedLinear", [X, WEIGHT, WEIGHT, *biases], 1, {"activation": activation})
        for biases in ((None, None), (ROW, ROW), (ROW, None), (None, ROW))
        for activation in OF_LINEAR
        if activation not in PARAMETRISED
    ),
    *(
        ("q7::ExpertLinear", [x, ("ids", e), weight, *bias], 1, {"trans_b": t, "repeat": repeat})
        for x, e, repeat in (((B, K), (B,), 1), (X, (B, S), 1), (X, (B * S, 2), 2))
        for weight, t in ((EXPERTS, 0), (("const", (3, N, K)), 1))
        for bias in ((), (("const", (3, N)),))
    ),
    *(
        (
            "q7::GatedExpertLinear",
            [X, ("ids", (B, S, 2)), EXPERTS, EXPERTS, *biases],
            1,
            {"activation": activation, "repeat": 2},
        )
        for biases in ((None, None), (("const", (3, N)), None))
        for activation in OF_LINEAR
        if activation not in PARAMETRISED
    ),
    *(
        (
            "q7::Attention",
            [QUERIES, keys, keys, mask],
            1,
            {"scale": 0.5, "zero_masked_rows": masked, "zero_nan_rows": nan, "fill": fill},
        )
        for keys in (KEYS, (B, 1, S, D))
        for mask, fill in ((None, -np.inf), ((B, 1, S, S), -np.inf), (("bool", (S, S)), -1e4))
        for masked, nan in ((0, 0), (1, 0), (1, 1))
    ),
    *(
        (
            "q7::Attention",
            [QUERIES, PAST, PAST, mask, bias],
            1,
            {"scale": 0.5, "fill": fill, "softcap": cap, "causal": causal, "window": window},
        )
        for mask, bias, fill in (
            (None, None, -np.inf),
            ((B, 1, 1, T), None, -np.inf),
            ((B, 1, 1, T), (1, H, S, T), -np.inf),
            (("bool", (B, 1, 1, T)), None, -1e4),
            (("bool", (B, 1, 1, T)), (1, H, S, T), -np.inf),
        )
        for cap in (0.0, 30.0)
        for causal, window in ((0, (-1, -1)), (1, (-1, -1)), (1, (3, -1)), (0, (3, -1)))
    ),
    *(
        ("q7::SkipRmsNorm", [X, skip, skip_bias, NORM_ROW], outputs, {"epsilon": 1e-3})
        for skip in (X, (1, S, K), (S, K))
        for skip_bias in (None, NORM_ROW)
        for outputs in (1, 2)
    ),
    *(
        ("q7::SkipLayerNorm", [X, skip, skip_bias, NORM_ROW, bias], outputs, {"epsilon": 1e-3})
        for skip in (X, (1, S, K), (S, K))
        for skip_bias in (None, NORM_ROW)
        for bias in (None, NORM_ROW)
        for outputs in (1, 2)
    ),
    *(
        ("q7::Chain", specs, 1, {"program": program})
        for specs, program in (
            ([X, NORM_ROW], "%2 = Mul(%0, %1); %3 = Tanh(%2)"),
            ([X, (S, 1)], "%2 = Abs(%0); %3 = Elu(%2) {alpha=0.5}; %4 = Div(%3, %1)"),
            ([X, X], "%2 = Less(%0, %1); %3 = Sin(%0); %4 = Where(%2, %3, %1)"),
            ([X], "%1 = Mul(%0, %0); %2 = ReduceMean(%1, [-1]) {keepdims=0}"),
            ([X], "%1 = Mul(%0, 0.1); %2 = Pow(%1, 3.0); %3 = Add(%2, 0.1)"),
            ([X], '%1 = Gelu(%0) {approximate="tanh"}; %2 = Clip(%1); %3 = Mul(%1, %2)'),
        )
    ),
    *(
        (
            "q7::Rope",
            [QUERIES, k, *[(batch, 1, S, columns * (2 - half))] * 2],
            1 if k is None else 2,
            {"half": half, "interleaved": interleaved},
        )
        for k in (None, (B, 1, S, D))
        for batch in (B, 1)
        for columns in (D // 2, D // 4)
        for half in (0, 1)
        for interleaved in (0, 1)
    ),
]


def unfuse(graph: Graph) -> None:
    """Put the meaning of every fused op in its place: the inverse of fuse, up to spelling."""
    order: list[Node] = []
    for node in graph.nodes:
        order += meaning(graph, node) if hasattr(find(node.op), "decompose") else [node]
    graph.nodes = order


@pytest.mark.parametrize("op, specs, outputs, attrs", LAW)
def test_fuse_undoes_decompose(
    op: str, specs: list[Any], outputs: int, attrs: dict[str, Any]
) -> None:
    graph = fused_graph(op, specs, outputs, attrs)
    wanted = graph.nodes[0]
    inputs, wanted_outputs = list(wanted.inputs), list(wanted.outputs)
    unfuse(graph)
    assert op not in {node.op for node in graph.nodes}
    report = fuse(graph)
    assert [node.op for node in graph.nodes] == [op], str(report)
    assert graph.nodes[0].inputs == inputs
    attrs = {name: pytest.approx(value) for name, value in wanted.attrs.items()}
    assert graph.nodes[0].attrs == attrs
    assert graph.nodes[0].outputs == wanted_outputs


@pytest.mark.parametrize("op, specs, outputs, attrs", LAW)
def test_written_as_onnx_it_means_the_same_and_is_found_again(
    op: str, specs: list[Any], outputs: int, attrs: dict[str, Any]
) -> None:
    graph = fused_graph(op, specs, outputs, attrs)
    feeds = feeds_for(graph)
    model = write(graph)
    onnx.checker.check_model(model, full_check=True)
    again = importer.read(model)
    passes.run_all(again)
    exact = evaluate(graph, feeds, np.float64)
    for left, right in zip(exact, evaluate(again, feeds, np.float64)):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)
    fuse(again)
    assert [node.op for node in again.nodes if node.op != "Identity"] == [op]
