"""Every exporter's spelling of a model fuses to the same few ops per layer, and means the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from q7x2_ep import importer, passes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.fuse import fuse
from q7x2_ep.ir.core import Graph
from tests.models.files import CORE, label, read, select

LAYERS = 2
LINEARS_PER_LAYER = 4  # q, k and v as one; attention output; up; down
OUTSIDE = {"bert": 1, "distilbert": 0, "gpt2": 1, "vit": 1}  # Linears: pooler, language model head
VIEWS = {"Reshape", "Transpose", "Split"}


def feeds_for(graph: Graph) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    ids = generator.integers(0, 64, (2, 7))
    mask = np.ones_like(ids)
    mask[1, 5:] = 0
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    for value in graph.inputs:
        if value.name == "pixel_values":
            shape = (2, *value.shape[1:])
            feeds[value.name] = generator.standard_normal(shape).astype(np.float32)
    return {value.name: feeds[value.name] for value in graph.inputs}


@pytest.mark.parametrize("path", select(*CORE), ids=label)
def test_layers_fuse_whole(path: Path) -> None:
    graph = importer.read(read(path))
    passes.run_all(graph)
    feeds = feeds_for(graph)
    before = evaluate(graph, feeds, np.float64)

    report = fuse(graph)
    passes.run_all(graph)
    assert not report.misses
    count = Counter(node.op for node in graph.nodes)
    family = path.name.split(".")[0]
    assert count["q7::Attention"] == LAYERS
    assert count["q7::Linear"] == LAYERS * LINEARS_PER_LAYER + OUTSIDE[family]
    assert count["LayerNormalization"] + count["q7::SkipLayerNorm"] == 2 * LAYERS + 1
    ops = [node.op for node in graph.nodes]
    last = len(ops) - ops[::-1].index("q7::Attention")
    between = set(ops[ops.index("q7::Attention") : last])
    assert between <= {"q7::Attention", "q7::Linear", "LayerNormalization"} | VIEWS

    for left, right in zip(before, evaluate(graph, feeds, np.float64)):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)
