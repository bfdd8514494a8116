"""Models that onnxruntime's own tools have optimised or quantised, run by us and by onnxruntime.

Of quantised models both are held against the model before: rounding to 8 bits turns last bits into
steps, so that two right evaluations need not be close to each other.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from q7x2_ep import importer
from q7x2_ep.feeds import random_feeds
from q7x2_ep.session import Session
from tests.models.beside import theirs
from tests.models.files import FOLDER, SUFFIX, read

onnxruntime = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")
optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")

KINDS = {  # the model type of onnxruntime's optimizer by file
    "bert.eager.legacy17": "bert",
    "bert.sdpa.dynamo20": "bert",
    "gpt2.eager.legacy17": "gpt2",
    "llama.sdpa.legacy17": "gpt2",
    "phi3.eager.dynamo18": "phi",
    "t5-decoder.eager.legacy17": "t5",
    "vit.eager.legacy17": "vit",
    "whisper-decoder.sdpa.dynamo20": "bart",
}
CLOSE = 1e-5  # relative difference of outputs, root mean square
FEWEST_BITS = 1e-3  # the same where a rounding to 8 bits may go the other way


def offline(level: str, source: Path, target: Path, kind: str) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def transformers(source: Path, target: Path, kind: str, opt_level: int = 0) -> None:
    made = optimizer.optimize_model(str(source), kind, opt_level=opt_level)
    made.save_model_to_file(str(target))


def dynamic(weights: str, source: Path, target: Path, kind: str) -> None:
    made = getattr(quantization.QuantType, weights)
    quantization.quantize_dynamic(str(source), str(target), weight_type=made)


class Batches(quantization.CalibrationDataReader):
    """Random feeds to calibrate with."""

    def __init__(self, source: Path):
        graph = importer.read(str(source))
        self.feeds = iter([random_feeds(graph, 2, 5, seed=seed) for seed in range(3)])

    def get_next(self) -> Any:
        return next(self.feeds, None)


def static(form: str, source: Path, target: Path, kind: str) -> None:
    made = getattr(quantization.QuantFormat, form)
    activations = quantization.QuantType.QUInt8
    quantization.quantize_static(
        str(source), str(target), Batches(source), made, activation_type=activations
    )


TOOLS: dict[str, tuple[Callable[..., None], ...]] = {
    "extended": (functools.partial(offline, "ORT_ENABLE_EXTENDED"),),
    "transformers": (transformers,),
    "transformers after level 2": (functools.partial(transformers, opt_level=2),),
    "dynamic": (functools.partial(dynamic, "QInt8"),),
    "dynamic, unsigned, extended": (
        functools.partial(dynamic, "QUInt8"),
        functools.partial(offline, "ORT_ENABLE_EXTENDED"),
    ),
    "QDQ": (functools.partial(static, "QDQ"),),
    "QDQ, extended": (
        functools.partial(static, "QDQ"),
        functools.partial(offline, "ORT_ENABLE_EXTENDED"),
    ),
    "QOperator": (functools.partial(static, "QOperator"),),
}


def difference(results: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest of all outputs, relative to their root mean square."""
    found = [0.0]
    for y, w in zip(results, wanted):
        assert y.shape == w.shape and y.dtype == w.dtype
        square = np.square(y.astype(np.float64) - w).mean() if w.size else 0.0
        found.append(float(np.sqrt(square / max(np.square(w.astype(np.float64)).mean(), 1e-30))))
    return max(found)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("model", KINDS)
def test_what_tools_make(model: str, tool: str, tmp_path: Path) -> None:
    before = tmp_path / "before.onnx"
    before.write_bytes(read(FOLDER / (model + SUFFIX)))
    source = before
    logging.disable(logging.CRITICAL)
    try:
        for i, step in enumerate(TOOLS[tool]):
            target = tmp_path / f"{i}.onnx"
            step(source, target, KINDS[model])
            source = target
    except Exception as error:
        pytest.skip(f"onnxruntime's tool failed: {type(error).__name__}: {error}"[:300])
    finally:
        logging.disable(logging.NOTSET)
    feeds = random_feeds(importer.read(str(before)), 2, 5, seed=3)
    wanted = theirs(source.read_bytes(), feeds)
    results = Session(str(source), threads=2).run(feeds)
    apart = difference(results, wanted)
    if tool.split(",")[0] not in ("dynamic", "QDQ", "QOperator"):
        assert apart <= CLOSE
    elif apart > FEWEST_BITS:
        exact = theirs(before.read_bytes(), feeds)
        assert difference(results, exact) <= 1.1 * difference(wanted, exact)
