"""The vision architectures of ONNX's backend suite, with random weights and any batch, against
onnxruntime. The suite has them without weights and for one image.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import q7x2_ep

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import zoo  # bench is a folder of scripts, not a package

onnxruntime = pytest.importorskip("onnxruntime")
LARGEST = ("vgg19", "zfnet512")  # plain stacks of what the others have too
FILES = [
    pytest.param(path, marks=[pytest.mark.slow] * (name in LARGEST), id=name)
    for name, path in zoo.light_models().items()
]


@pytest.mark.parametrize("path", FILES)
def test_as_onnxruntime(path: Path) -> None:
    model = zoo.light(path).SerializeToString()
    theirs: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with q7x2_ep.InferenceSession(model) as session:
        name = session.get_inputs()[0].name
        for batch in (1, 2, 3):
            image = np.random.default_rng(batch).standard_normal((batch, 3, 224, 224))
            feed = {name: image.astype(np.float32)}
            (y,), (wanted,) = session.run(None, feed), theirs.run(None, feed)
            assert y.shape == wanted.shape
            error = np.sqrt(np.mean(np.square(y - wanted)) / np.mean(np.square(wanted)))
            assert error < 2e-6, (batch, error)
        assert "host steps 0" in str(q7x2_ep.explain(session))
