"""fastembed on all-MiniLM-L6-v2, from the folder that argv[2] names."""

import sys

from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from harness import SENTENCES, measure


def load() -> TextEmbedding:
    name = "q7x2_ep/all-MiniLM-L6-v2"
    TextEmbedding.add_custom_model(
        model=name,
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf=name),
        dim=384,
        model_file="onnx/model.onnx",
    )
    return TextEmbedding(name, specific_model_path=sys.argv[2])


def work(model: TextEmbedding) -> dict:
    found = model.embed(SENTENCES, batch_size=32)
    return {f"{i} {text}": vector for i, (text, vector) in enumerate(zip(SENTENCES, found))}


measure(load, work)
