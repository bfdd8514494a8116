"""A model with our passes and fusions applied, as an ONNX file that any tool opens."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Union

from q7x2_ep import fuse, importer, passes
from q7x2_ep.importer.writer import save
from q7x2_ep.progress import track
from q7x2_ep.session import Model


@dataclass(frozen=True)
class Optimization:
    """What was written. nodes_before, nodes: op types and their counts in the two models, local
    functions inlined in the first; fusions: how often each was applied.
    """

    nodes_before: dict[str, int]
    nodes: dict[str, int]
    fusions: dict[str, int]

    def __str__(self) -> str:
        before, after = sum(self.nodes_before.values()), sum(self.nodes.values())
        rows = sorted({**self.nodes_before, **self.nodes}, key=lambda op: -self.nodes.get(op, 0))
        lines = [f"{'op':<32}{'before':>8}{'after':>8}", "-" * 48]
        lines += [
            f"{op[:31]:<32}{self.nodes_before.get(op, 0):>8}{self.nodes.get(op, 0):>8}"
            for op in rows
        ]
        return "\n".join([*lines, f"{'all':<32}{before:>8}{after:>8}"])


def optimize(
    model: Model, path: Union[str, os.PathLike[str]], *, fusion: bool = True
) -> Optimization:
    """Write a model as q7x2_ep simplifies and fuses it, for onnxruntime, viewers and other tools.

    A fused op becomes the standard op that it equals, or else a local function of the domain q7
    that holds its meaning in standard ops. The opset is raised to 23 at least. Weights in a file of
    their own stay in one: PATH.data. path may be that of the model. fusion: False simplifies only.

    Raises: ModelError for a model that cannot be read, an op that ONNX has no form of, or a file
    that cannot be written.
    """
    graph = importer.read(model)
    before = Counter(node.op for node in graph.nodes)
    passes.run_all(graph)
    fusions = {}
    if fusion:
        fusions = fuse.fuse(graph).applied
        passes.run_all(graph)
    save(graph, os.fspath(path), track)
    return Optimization(dict(before), dict(Counter(node.op for node in graph.nodes)), fusions)
