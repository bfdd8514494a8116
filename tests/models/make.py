"""Make the tiny models of this folder: architecture x exporter x attention, gzipped.

Run: python tests/models/make.py. It needs torch, transformers and onnxscript.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import zoo  # noqa: E402  (bench is a folder of scripts, not a package)

ARCHITECTURES = {"bert": "bert-base", "distilbert": "distilbert", "gpt2": "gpt2", "vit": "vit-b16"}


def main() -> None:
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        for short, name in ARCHITECTURES.items():
            for attention in zoo.ATTENTION:
                for exporter, opset in zoo.EXPORTS:
                    plain = Path(folder) / f"{short}.{attention}.{exporter}{opset}.onnx"
                    zoo.export(zoo.tiny(name), plain, exporter, opset, attention)
                    packed = Path(__file__).parent / (plain.name + ".gz")
                    packed.write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
                    total += packed.stat().st_size
                    print(f"{packed.name:40} {packed.stat().st_size >> 10:4} KiB", flush=True)
    print(f"total {total >> 10} KiB")


if __name__ == "__main__":
    main()
