"""Whole transformers as exporters write them, head to head with float64 and with onnxruntime.

The models are tiny (files.py): their graphs are those of the full-size ones.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep import importer
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.compare import rms, rms_error
from q7x2_ep.feeds import random_feeds
from q7x2_ep.passes import infer
from tests.models.accuracy import OWN_BOUND, Accuracy
from tests.models.files import CORE, label, read, select

SHAPES = [(batch, sequence) for sequence in (16, 1, 128, 7) for batch in (2, 1, 3)]
pytestmark = pytest.mark.parametrize("file", select(*CORE), ids=label)


def graph_of(model: bytes):
    graph = importer.read(model)
    infer.run(graph)
    return graph


def session_of(model: bytes, threads: int = 2, fused: bool = True) -> q7x2_ep.InferenceSession:
    levels = q7x2_ep.GraphOptimizationLevel
    options = q7x2_ep.SessionOptions(
        intra_op_num_threads=threads,
        graph_optimization_level=levels.ORT_ENABLE_ALL if fused else levels.ORT_DISABLE_ALL,
    )
    return q7x2_ep.InferenceSession(model, options)


def all_feeds(graph):
    """One feed per distinct shape, every second one with padded masks."""
    seen = set()
    for i, (batch, sequence) in enumerate(SHAPES):
        feeds = random_feeds(graph, batch, sequence, seed=i, padding=bool(i % 2))
        shapes = tuple(array.shape for array in feeds.values())
        if shapes not in seen:
            seen.add(shapes)
            yield feeds


def test_all_native_in_one_call_and_in_less_memory(file):
    model = read(file)
    # the scratch of many threads, at batch 1 that of two, outweighs all else in models this tiny
    with session_of(model) as session:
        sizes = q7x2_ep.explain(session).sizes
        explanation = q7x2_ep.explain(session, {name: max(size, 8) for name, size in sizes.items()})
    assert explanation.host_steps == []
    assert explanation.calls_per_run == 1
    assert explanation.allocations == 0
    assert explanation.arena_bytes <= explanation.unplanned_bytes / 2
    assert str(explanation)


def test_two_layers_become_the_steps_that_they_should(file):
    ops = Counter(step.op for step in q7x2_ep.explain(read(file)).steps)
    assert ops["attention"] == 2
    assert (
        ops["layernorm"] == 5
    )  # two a layer; BERT's embeddings have one, GPT-2 and ViT a last one
    assert ops["softmax"] == ops["matmul"] == 0
    # a layer: q, k and v in one, the projection, two of the feed-forward; and the head or pooler
    assert ops["gemm"] <= 2 * 4 + 1


def test_close_to_float64_for_every_shape_in_one_session(file):
    model = read(file)
    graph = graph_of(model)
    with session_of(model) as session:
        for feeds in all_feeds(graph):
            for given, true in zip(session.run(None, feeds), evaluate(graph, feeds, np.float64)):
                assert rms_error(given, true) <= OWN_BOUND * rms(true), given.shape


def test_accuracy_rule(file):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = read(file)
    graph = graph_of(model)
    try:
        theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base class; older ones lack opset 23
        pytest.skip(f"onnxruntime {onnxruntime.__version__} cannot load it: {error}")
    fused_accuracy, unfused_accuracy = Accuracy(), Accuracy()
    with session_of(model) as fused, session_of(model, fused=False) as unfused:
        for feeds in all_feeds(graph):
            true, reference = evaluate(graph, feeds, np.float64), theirs.run(None, feeds)
            fused_accuracy.add(true, fused.run(None, feeds), reference)
            unfused_accuracy.add(true, unfused.run(None, feeds), reference)
    fused_accuracy.check()
    unfused_accuracy.check()


def test_same_bits_for_any_number_of_threads_and_every_run(file):
    model = read(file)
    feeds = list(all_feeds(graph_of(model)))
    expected = None
    for threads in (1, 2, 3, 8):
        with session_of(model, threads) as session:
            for _ in range(
                2
            ):  # the second round meets every shape again, after larger and smaller ones
                given = [array.tobytes() for feed in feeds for array in session.run(None, feed)]
                expected = expected or given
                assert given == expected, threads
