"""The tiny models of this folder: graphs as exporters wrote them, weights drawn when they are read.

A file is a gzipped ONNX model. Weights are left out: their tensors hold no data, and `normal MEAN
STD` as doc string. Names are
<architecture>.<attention>.<exporter><opset>[.cache][.<dtype>].onnx.gz.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
SUFFIX = ".onnx.gz"
CORE = ("bert", "distilbert", "gpt2", "vit")  # architectures that all tests of models run
FLOATS = (1, 10, 16)  # float, float16 and bfloat16 in onnx.TensorProto
FEWEST_WEIGHTS = 16  # smaller tensors are stored as they are


def select(*architectures: str, cache: bool = False, halves: bool = False) -> list[Path]:
    """The files of these architectures, or of all; with a key-value cache, and in 16 bits, only
    where asked for.
    """
    return [
        path
        for path in sorted(FOLDER.glob("*" + SUFFIX))
        if (not architectures or path.name.split(".")[0] in architectures)
        and (cache or ".cache." not in path.name)
        and (halves or "float16." not in path.name)
    ]


def label(path: Path) -> str:
    return path.name[: -len(SUFFIX)]


def read(path: Path) -> bytes:
    """The model with its weights: the same ones every time."""
    import onnx

    model = onnx.load_model_from_string(gzip.decompress(path.read_bytes()))
    for seed, tensor in enumerate(model.graph.initializer):
        law, _, moments = tensor.doc_string.partition(" ")
        if law == "normal":
            mean, std = map(float, moments.split())
            random = np.random.default_rng(seed)
            values = random.standard_normal(tuple(tensor.dims), np.float32) * std + mean
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.raw_data = values.astype(dtype).tobytes()
            tensor.ClearField("doc_string")
    return model.SerializeToString()


def write(path: Path, model: bytes, weights: Iterable[np.ndarray]) -> None:
    """Store a model without its weights: float tensors with the values of one, in any order."""
    import onnx

    known = {_values(w) for weight in weights for w in (weight, 1 + weight)}  # 1 + w: Gemma's norms
    proto = onnx.load_model_from_string(model)
    for tensor in proto.graph.initializer:
        if tensor.data_type in FLOATS:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            if values.size >= FEWEST_WEIGHTS and _values(values) in known:
                tensor.ClearField("raw_data")
                tensor.ClearField("float_data")
                tensor.doc_string = f"normal {values.mean():.2f} {values.std():.2f}"
    path.write_bytes(gzip.compress(proto.SerializeToString(), 9, mtime=0))


def _values(array: np.ndarray) -> bytes:
    return np.sort(array, axis=None).tobytes()
