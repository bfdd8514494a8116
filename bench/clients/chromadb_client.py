"""chromadb's default embedder, and a query, on all-MiniLM-L6-v2 from the folder that argv[2] names
instead of the one that it downloads.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import chromadb
import numpy as np
from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2
from harness import SENTENCES, measure

TEXTS = SENTENCES[:96]


def load() -> ONNXMiniLM_L6_V2:
    ONNXMiniLM_L6_V2.DOWNLOAD_PATH = Path(tempfile.mkdtemp(dir="."))
    target = ONNXMiniLM_L6_V2.DOWNLOAD_PATH / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    shutil.copytree(sys.argv[2], target)
    for file in (target / "onnx").iterdir():
        file.rename(target / file.name)
    return ONNXMiniLM_L6_V2()


def work(embed: ONNXMiniLM_L6_V2) -> dict:
    results = {
        f"{i} {text}": np.asarray(vector)
        for i, (text, vector) in enumerate(zip(TEXTS, embed(TEXTS)))
    }
    client = chromadb.EphemeralClient()
    shelf = client.get_or_create_collection("shelf", embedding_function=embed)
    shelf.upsert(ids=[str(i) for i in range(32)], documents=TEXTS[:32])
    for query in TEXTS[32:40]:
        results[f"near {query}"] = shelf.query(query_texts=[query], n_results=3)["ids"]
    return results


measure(load, work)
