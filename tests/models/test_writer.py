"""The optimised model that a session writes is ONNX that onnxruntime opens, answers included."""

from __future__ import annotations

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep import importer, passes
from q7x2_ep.feeds import random_feeds
from tests.models.files import CORE, label, read, select

onnxruntime = pytest.importorskip("onnxruntime", reason="it opens what was written")


@pytest.mark.parametrize("file", select(*CORE), ids=label)
def test_onnxruntime_opens_the_optimized_model(file, tmp_path):
    model, path = read(file), tmp_path / "optimized.onnx"
    options = q7x2_ep.SessionOptions(optimized_model_filepath=str(path))
    session = q7x2_ep.InferenceSession(model, options)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    try:
        theirs = onnxruntime.InferenceSession(str(path), quiet)
    except Exception as error:
        if "opset" in str(error) and "ai.onnx" in str(error):
            pytest.skip("this onnxruntime is older than opset 23")
        raise
    graph = importer.read(model)
    passes.run_all(graph)
    for batch, length in ((1, 7), (3, 16)):
        feeds = random_feeds(graph, batch, length)
        for ours, other in zip(session.run(None, feeds), theirs.run(None, feeds)):
            scale = float(np.abs(other).max(initial=1e-6))
            # two float32 evaluations of some 30 layers of ops: a few dozen ulp of the largest value
            np.testing.assert_allclose(ours, other, rtol=0, atol=4e-6 * scale)
