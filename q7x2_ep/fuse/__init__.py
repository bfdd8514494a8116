"""Fusion: chains of ops become one op with one kernel. One file per fusion, in FUSIONS' order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from q7x2_ep.fuse import (
    attention,
    batch_norm,
    blocks,
    conv,
    experts,
    gate,
    gelu,
    grouped_heads,
    layernorm,
    linear,
    linear_rows,
    linear_turned,
    mish,
    quantized,
    query_scale,
    relu,
    rope,
    scaled_matmul,
    skip_norm,
    softcap,
    softmax,
    swish,
)
from q7x2_ep.fuse.chain import Chain
from q7x2_ep.fuse.qkv import MergeLinears
from q7x2_ep.ir.core import Graph, Node
from q7x2_ep.ir.rewrite import Fusion, NearMiss, Watch, sweep
from q7x2_ep.ops import find
from q7x2_ep.ops.builder import Builder, meaning


class Walk(NamedTuple):
    """Fusions that share one walk over the graph."""

    fusions: tuple[Fusion, ...]

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        return sweep(graph, self.fusions, g)


FUSIONS = (
    # Activations and norms first: whole ops are what the walks below look for. Each may have been
    # made by those before it: Swish of Sigmoid, HardSwish of HardSigmoid of Clip. RmsNorm after
    # LayerNorm, whose centred half it would take; what follows a norm is found at the consumers.
    Walk(
        (
            *(gelu.GELU, gelu.GELU_TANH, swish.SIGMOID, swish.SWISH, mish.MISH),
            *(relu.RELU, relu.CLIP, relu.LEAKY_RELU, relu.SQUARED_RELU),
            *(relu.HARD_SIGMOID, relu.HARD_SWISH),
            *(layernorm.LAYER_NORM, layernorm.RMS_NORM),
            *(layernorm.WEIGHTED, layernorm.BIASED),
            *(softmax.SOFTMAX, softmax.LOG_SOFTMAX),
        )
    ),
    # Anywhere before MergeLinears, which asks who reads q and k.
    Walk((rope.ROPE_TURNED, rope.ROPE_PAIRS, rope.ONNX_ROPE, rope.PARTIAL_ROPE)),
    rope.MergeRopes(),
    # Before Linear, which would otherwise take the scale of q, or a constant k or v, for its own.
    Walk((attention.ATTENTION, attention.MASKED)),
    # After Attention, whose operands they look behind; factors first, they may hide repeated heads.
    Walk((query_scale.QUERY_SCALE,)),
    Walk((grouped_heads.GROUPED_HEADS,)),
    # After Attention, which takes the softcap of its scores; Linear takes that of logits.
    Walk((softcap.SOFTCAP,)),
    # Before Linear and Conv: their weights are behind a DequantizeLinear.
    Walk(
        (
            *(quantized.PRODUCT, quantized.CONVOLUTION, quantized.DYNAMIC, quantized.BIAS),
            quantized.RESULT,
        )
    ),
    quantized.Selections(),
    # After the results, which cut off a Relu for nothing.
    Walk((quantized.ACTIVATION,)),
    Walk((blocks.PRODUCT, blocks.BIAS)),
    quantized.DequantizeConstants(),
    # One walk: each step of the epilogue is found at the consumer of the one before.
    Walk(
        (
            linear.PRODUCT,
            linear.RESHAPE,
            linear.SCALE,
            linear.COLUMNS,
            linear.BIAS,
            linear.ACTIVATION,
            linear.RESIDUAL,
            linear_rows.ROWS,
            linear_turned.TURNED,
        )
    ),
    # After Attention and Linear, which have the factors of their own products.
    Walk((scaled_matmul.SCALED,)),
    # After Linear, whose epilogue holds the activation of the gate.
    Walk((gate.TWO, gate.HALVES)),
    # After Linear, which takes no products by chosen weights.
    Walk((experts.PRODUCT, experts.BIAS, experts.GATED, experts.SUM)),
    # After Linear: an Add in the epilogue of a GEMM is nearly free (the tile is in registers), so
    # a norm takes only the Adds that no Linear could: sums of embeddings, most often.
    Walk((skip_norm.SKIP_LAYER_NORM, skip_norm.SKIP_RMS_NORM)),
    # What is linear in a Conv's result first; its epilogue is found at the consumers.
    Walk((conv.PADDED, conv.AFFINE, conv.TRANSPOSE_AFFINE)),
    Walk((conv.ACTIVATION, conv.RESIDUAL, conv.TRANSPOSE_ACTIVATION)),
    # After Conv, into which a norm disappears; with what follows before without.
    Walk((batch_norm.SCALED,)),
    Walk((batch_norm.BATCH_NORM,)),
    # Needs the final epilogues (only bare Linears merge) and the attention that reads them.
    MergeLinears(),
    # Last: takes what is left.
    Chain(),
)


@dataclass
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
    for step in FUSIONS:
        counts, misses = step.apply(graph, Builder(graph, watch=watch))
        applied.update(counts)
        report.misses += misses
        if until in _names(step):
            break
    else:
        if until:
            names = [name for step in FUSIONS for name in _names(step)]
            raise ValueError(f"there is no fusion {until!r}; there are {', '.join(names)}")
    report.applied = dict(applied)
    graph.is_fused = True
    return report


def _names(step: Any) -> list[str]:
    return [fusion.name for fusion in getattr(step, "fusions", (step,))]


def unfuse(graph: Graph) -> None:
    """Put the meaning of every fused op in its place: the inverse of fuse, up to spelling."""
    order: list[Node] = []
    for node in graph.nodes:
        order += meaning(graph, node) if hasattr(find(node.op), "decompose") else [node]
    graph.nodes = order
