"""Fusion: chains of ops become one op with one kernel. One file per fusion, in FUSIONS' order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from q7x2_ep.fuse import (
    attention,
    batched_attention,
    gelu,
    grouped_heads,
    layernorm,
    linear,
    query_scale,
    skip_norm,
    swish,
)
from q7x2_ep.fuse.qkv import MergeLinears
from q7x2_ep.ir.core import Graph, Node
from q7x2_ep.ir.rewrite import Fusion, NearMiss, sweep
from q7x2_ep.ops import find
from q7x2_ep.ops.builder import Builder, meaning


@dataclass(frozen=True)
class Walk:
    """Fusions that share one walk over the graph."""

    fusions: tuple[Fusion, ...]

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        return sweep(graph, self.fusions, g)


FUSIONS = (
    # Activations and norms first: whole ops are what the walks below look for.
    Walk((gelu.GELU, gelu.GELU_TANH, swish.SWISH, layernorm.LAYER_NORM)),
    # After LayerNorm, whose centred half it would take.
    Walk((layernorm.RMS_NORM,)),
    # Before Linear, which would otherwise take the scale of q, or a constant k or v, for its own.
    Walk(
        (
            attention.ATTENTION,
            attention.ONNX_ATTENTION,
            batched_attention.BATCHED_ATTENTION,
        )
    ),
    # After Attention, whose operands they look behind.
    Walk((grouped_heads.GROUPED_HEADS,)),
    Walk((query_scale.QUERY_SCALE,)),
    # One walk: each step of the epilogue is found at the consumer of the one before.
    Walk(
        (
            linear.PRODUCT,
            linear.RESHAPE,
            linear.SCALE,
            linear.BIAS,
            linear.ACTIVATION,
            linear.RESIDUAL,
        )
    ),
    # After Linear: an Add in the epilogue of a GEMM is nearly free (the tile is in registers), so
    # a norm takes only the Adds that no Linear could: sums of embeddings, most often.
    Walk((skip_norm.SKIP_NORM,)),
    # Last: needs the final epilogues (only bare Linears merge) and the attention that reads them.
    MergeLinears(),
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


def fuse(graph: Graph) -> FusionReport:
    """Fuse a typed graph in place."""
    report = FusionReport()
    applied: Counter = Counter()
    for step in FUSIONS:
        counts, misses = step.apply(graph, Builder(graph))
        applied.update(counts)
        report.misses += misses
    report.applied = dict(applied)
    return report


def unfuse(graph: Graph) -> None:
    """Put the meaning of every fused op in its place: the inverse of fuse, up to spelling."""
    order: list[Node] = []
    for node in graph.nodes:
        order += meaning(graph, node) if hasattr(find(node.op), "decompose") else [node]
    graph.nodes = order
