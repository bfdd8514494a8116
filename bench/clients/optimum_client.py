"""optimum-onnx with IOBinding: a tiny GPT-2 and a tiny BERT with seeded random weights, exported by
optimum itself; greedy and beam generation, logits, with and without IOBinding.
"""

import tempfile
from pathlib import Path

import torch
from harness import measure
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSequenceClassification
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

TOKENS = torch.arange(24).reshape(2, 12) * 7 % 97
MASK = torch.ones_like(TOKENS)
MASK[1, 9:] = 0


def load() -> dict:
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "bos_token_id": 98, "eos_token_id": 99, "pad_token_id": 99}
    folder = Path(tempfile.mkdtemp(dir="."))
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=64, n_positions=128, **sizes))
    bert = BertForSequenceClassification(
        BertConfig(
            vocab_size=100,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=3,
        )
    )
    models = {}
    for name, model, kind in (
        ("gpt2", gpt2, ORTModelForCausalLM),
        ("bert", bert, ORTModelForSequenceClassification),
    ):
        model.eval().save_pretrained(folder / name)
        for binding in (False, True):
            models[name, binding] = kind.from_pretrained(
                folder / name, export=True, use_io_binding=binding
            )
    return models


def work(models: dict) -> dict:
    results = {}
    for binding in (False, True):
        suffix = " bound" if binding else ""
        gpt2, bert = models["gpt2", binding], models["bert", binding]
        options = {"max_new_tokens": 24, "do_sample": False}
        for beams in (1, 3):
            found = gpt2.generate(TOKENS, num_beams=beams, **options)
            results[f"gpt2 {beams} beams{suffix}"] = found.tolist()
        results["gpt2 logits" + suffix] = gpt2(input_ids=TOKENS, attention_mask=MASK).logits.numpy()
        results["bert logits" + suffix] = bert(input_ids=TOKENS, attention_mask=MASK).logits.numpy()
    return results


measure(load, work)
