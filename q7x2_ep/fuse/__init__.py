"""Fusion: chains of ops become one op with one kernel. One file per subject, in FUSIONS' order;
those that are not in it are what several share.

A file is imported with the first graph that has an op which its fusions need: all of them, and
their patterns, take longer than all else that the session of a small model does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from q7x2_ep.ir.core import Graph
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.replace import Watch
from q7x2_ep.ops.builder import Builder


class File(NamedTuple):
    """Fusions of one file, by their names in it. needs: a graph with none of these ops has no match
    for them, nor does what others in the same walk make of it; of several such groups, divided by
    &, it must have one op each. "*": any graph may have a match.
    """

    name: str
    names: str
    needs: str

    def fusions(self) -> list[Any]:
        module = import_module(f"{__name__}.{self.name}")
        return [getattr(module, name) for name in self.names.split()]

    def may_match(self, ops: set[str]) -> bool:
        groups = self.needs.split("&")
        return self.needs == "*" or not any(ops.isdisjoint(group.split()) for group in groups)


class Walk:
    """Files whose fusions share one walk over the graph."""

    def __init__(self, *files: File):
        self.files = files

    def fusions(self) -> list[Any]:
        return [fusion for file in self.files for fusion in file.fusions()]

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        ops = {node.op for node in graph.nodes}
        files = [file for file in self.files if file.may_match(ops)]
        if not files:
            return Counter(), []
        from q7x2_ep.ir.rewrite import sweep

        return sweep(graph, [fusion for file in files for fusion in file.fusions()], g)


class Alone(Walk):
    """A class that is no pattern, and walks by itself."""

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        if not self.files[0].may_match({node.op for node in graph.nodes}):
            return Counter(), []
        return self.fusions()[0]().apply(graph, g)


_BOUNDS = "Clip Greater GreaterOrEqual HardSigmoid Less LessOrEqual Max Min Relu"
_PRODUCTS = "Gemm MatMul q7::Linear"
_CONVOLUTIONS = "Conv ConvTranspose q7::Conv q7::ConvTranspose"
_EXPERTS = "MatMul q7::ExpertLinear & Gather GatherND q7::ExpertLinear"
_SCORES = "MatMul Softmax Transpose q7::ScaledMatMul"
_NORMS = "LayerNormalization RMSNormalization"
_GROUPS = "GroupNormalization InstanceNormalization"
_INTEGERS = "DequantizeLinear MatMulInteger q7::QuantizedConv q7::QuantizedLinear"

FUSIONS = (
    # Before chains take the index arithmetic.
    Alone(File("slices", "Slices", "ScatterND")),
    # Before all that would take a part: what is computed of one byte.
    Alone(File("tables", "Tables", "QuantizeLinear & DequantizeLinear")),
    # Activations and norms first: whole ops are what the walks below look for. Each may have been
    # made by those before it: Swish of Sigmoid, HardSwish of HardSigmoid of Clip. RmsNorm after
    # LayerNorm, whose centred half it would take; what follows a norm is found at the consumers.
    Walk(
        File("gelu", "GELU GELU_TANH", "Erf Exp Sigmoid Tanh"),
        File("swish", "SIGMOID SWISH", "Exp Sigmoid"),
        File("mish", "MISH", "Tanh"),
        File("relu", "RELU CLIP LEAKY_RELU SQUARED_RELU HARD_SIGMOID HARD_SWISH", _BOUNDS),
        File("layernorm", "LAYER_NORM RMS_NORM WEIGHTED BIASED", f"{_NORMS} Pow Sqrt"),
        File("groupnorm", "GROUP_NORM WEIGHTED BIASED", _GROUPS),
        File("softmax", "SOFTMAX LOG_SOFTMAX", "Exp"),
    ),
    # Anywhere before MergeLinears, which asks who reads q and k.
    Walk(File("rope", "ROPE_TURNED ROPE_PAIRS ONNX_ROPE PARTIAL_ROPE", "Concat RotaryEmbedding")),
    Alone(File("rope", "MergeRopes", "q7::Rope")),
    # Before Linear, which would otherwise take the scale of q, or a constant k or v, for its own.
    Walk(File("attention", "ATTENTION MASKED", "Softmax q7::Attention & MatMul q7::Attention")),
    # After Attention, whose operands they look behind; factors first, they may hide repeated heads.
    Walk(File("query_scale", "QUERY_SCALE", "q7::Attention")),
    Walk(File("grouped_heads", "GROUPED_HEADS", "q7::Attention")),
    # After Attention, which takes the softcap of its scores; Linear takes that of logits.
    Walk(File("softcap", "SOFTCAP", "Tanh")),
    # Before Linear and Conv: their weights are behind a DequantizeLinear.
    Walk(File("quantized", "PRODUCT CONVOLUTION DYNAMIC BIAS RESULT COMPUTED", _INTEGERS)),
    Alone(File("quantized", "Selections", "QuantizeLinear")),
    # After the results, which cut off a Relu for nothing.
    Walk(File("quantized", "ACTIVATION", "q7::QuantizedLinear")),
    Walk(File("blocks", "PRODUCT BIAS", "DequantizeLinear q7::BlockLinear")),
    Walk(File("blocks", "BITS_BIAS", "com.microsoft::MatMulNBits")),
    Alone(File("quantized", "DequantizeConstants", "DequantizeLinear")),
    # One walk: each step of the epilogue is found at the consumer of the one before.
    Walk(
        File(
            "linear",
            "PRODUCT RESHAPE SCALE COLUMNS NORMALIZED BIAS ACTIVATION RESIDUAL",
            _PRODUCTS,
        ),
        File("linear_rows", "ROWS", f"{_PRODUCTS} & Gather Slice"),
        File("linear_turned", "TURNED", _PRODUCTS),
        File("linear_image", "SCALED RESIDUAL", f"{_PRODUCTS} & Transpose"),
    ),
    # After Attention and Linear, which have the factors of their own products.
    Walk(File("scaled_matmul", "SCALED", "MatMul")),
    # After Linear, of which it takes those between two Transposes, and ScaledMatMul, which makes
    # scores.
    Walk(File("mix", "TURNED CONVOLVED", f"q7::Linear Conv & {_SCORES}")),
    # After Linear, whose epilogue holds the activation of the gate.
    Walk(File("gate", "TWO HALVES", "q7::Linear & Mul Div")),
    # After Linear, which takes no products by chosen weights.
    Walk(File("experts", "PRODUCT BIAS GATED SUM", _EXPERTS)),
    # After Linear: an Add in the epilogue of a GEMM is nearly free (the tile is in registers), so
    # a norm takes only the Adds that no Linear could: sums of embeddings, most often.
    Walk(File("skip_norm", "SKIP_LAYER_NORM SKIP_RMS_NORM", _NORMS)),
    # What is linear in a Conv's result first, in one walk with sums of Convs: either may be of the
    # other. The epilogue is found at the consumers.
    Walk(
        File("conv", "PADDED AFFINE TRANSPOSE_AFFINE", _CONVOLUTIONS),
        File("branches", "BRANCHES SKIP", "Conv"),
        File("joined_conv", "AFFINE", "Conv & Concat"),
    ),
    # Between what is linear in a Conv's result, and the activations that this brings to it.
    Walk(File("pixels", "OF_IMAGE ACTIVATION OF_ROWS", "Conv & Reshape Transpose")),
    Walk(
        File(
            "conv",
            "GATED ACTIVATION AFFINE_ACTIVATION SCALED_ACTIVATION RESIDUAL TRANSPOSE_ACTIVATION",
            _CONVOLUTIONS,
        ),
        File("joined_conv", "ACTIVATION", "Conv q7::Conv & Concat"),
    ),
    # After Conv, into which a norm disappears; with what follows before without.
    Walk(File("batch_norm", "SCALED", "BatchNormalization")),
    Walk(File("batch_norm", "BATCH_NORM", "BatchNormalization")),
    # Needs the final epilogues (only bare Linears merge) and the attention that reads them.
    Alone(File("qkv", "MergeLinears", "q7::Linear")),
    # Last: takes what is left.
    Alone(File("chain", "Chain", "*")),
)


@dataclass(eq=False)
class FusionReport:
    """What was fused, and what almost was. applied: how often, by name of fusion."""

    applied: dict[str, int] = field(default_factory=dict)
    misses: list[NearMiss] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{name} {count} applied" for name, count in self.applied.items()]
        lines += [f"no fusion at {miss.node.name}: {miss}" for miss in self.misses]
        return "\n".join(lines)


def fuse(graph: Graph, watch: Watch = lambda application: True, until: str = "") -> FusionReport:
    """Fuse a typed graph in place. watch: is asked before every application of a fusion. until:
    the fusion whose walk is the last; all are made by default.

    Raises: ValueError where there is no such fusion.
    """
    report = FusionReport()
    applied: Counter = Counter()
    for walk in FUSIONS:
        counts, misses = walk.apply(graph, Builder(graph, watch=watch))
        applied.update(counts)
        report.misses += misses
        if until and until in _names(walk):
            break
    else:
        if until:
            names = [name for walk in FUSIONS for name in _names(walk)]
            raise ValueError(f"there is no fusion {until!r}; there are {', '.join(names)}")
    report.applied = dict(applied)
    graph.is_fused = True
    return report


def _names(walk: Walk) -> list[str]:
    return [fusion.name for fusion in walk.fusions()]
