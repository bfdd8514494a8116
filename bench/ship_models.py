"""Make the small models that ship inside the package (q7x2_ep/models), with seeded random weights.

Run: python bench ship_models
"""

from __future__ import annotations

import argparse
from pathlib import Path

import zoo

FOLDER = Path(__file__).resolve().parent.parent / "q7x2_ep" / "models"
SHIPPED = {  # file name: architecture of the zoo, exporter, opset; three ways to write a graph
    "bert": ("bert", "legacy", 17),
    "gpt2": ("gpt2", "dynamo", 18),
    "vit": ("vit", "dynamo", 20),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for name, (architecture, exporter, opset) in SHIPPED.items():
        path = FOLDER / f"{name}.onnx"
        tiny = zoo.tiny(architecture, hidden=96, heads=3, vocab=128, positions=256, ffn=384)
        zoo.export(tiny, path, exporter, opset)
        print(f"{path.name:12} {path.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
