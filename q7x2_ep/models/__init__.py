"""Small transformer models that ship with the package, for `bench` and first steps.

They have the graphs of BERT, GPT-2 and ViT as exporters write them, and seeded random weights.
Source: bench/ship_models.py.
"""

from __future__ import annotations

from pathlib import Path


def small_models() -> dict[str, str]:
    """Name -> path of every shipped model.

    >>> sorted(small_models())
    ['bert', 'gpt2', 'vit']
    """
    return {path.stem: str(path) for path in sorted(Path(__file__).parent.glob("*.onnx"))}
