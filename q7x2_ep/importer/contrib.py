"""Operators of com.microsoft as data: each is rewritten to ops of the catalogue.

CONTRIB holds op: rewrite; rewrite(draft, maker) returns the nodes, in their newest form, that take
the draft's place, or the draft itself where it asks for what they cannot say: then it is reported
as unsupported. Formulas are spelled in standard ops where there are any, for the fusions to find.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.importer.opset import Draft, Maker

Rewrite = Callable[[Draft, Maker], list[Draft]]


def expand(draft: Draft, maker: Maker) -> list[Draft]:
    """The nodes that mean what `draft` means; an op that is not of CONTRIB stays."""
    rewrite = CONTRIB.get(draft.op)
    return [draft] if rewrite is None else rewrite(draft, maker)


def padded(names: list[str], count: int) -> list[str]:
    """Operand names with "" for those that were left out."""
    return names + [""] * (count - len(names))


def _rms_norm(draft: Draft, maker: Maker) -> list[Draft]:
    if len(draft.outputs) > 1:  # the reciprocal of the root, for training
        return [draft]
    return [Draft("RMSNormalization", draft.inputs, draft.outputs, draft.attrs, draft.name)]


def _skip_layer_norm(draft: Draft, maker: Maker) -> list[Draft]:
    x, skip, weight, bias, skip_bias = padded(draft.inputs, 5)
    return _skip_norm(draft, maker, "LayerNormalization", [x, skip, skip_bias], [weight, bias])


def _skip_rms_norm(draft: Draft, maker: Maker) -> list[Draft]:
    x, skip, weight, skip_bias = padded(draft.inputs, 4)
    return _skip_norm(draft, maker, "RMSNormalization", [x, skip, skip_bias], [weight])


def _skip_norm(
    draft: Draft, maker: Maker, norm: str, terms: list[str], weights: list[str]
) -> list[Draft]:
    y, mean, inv_std, total = padded(draft.outputs, 4)
    if mean or inv_std:  # for training
        return [draft]
    drafts = _sum(draft, maker, terms, total)
    attrs = {"axis": -1, "epsilon": draft.attrs.get("epsilon", 1e-12)}
    return [*drafts, Draft(norm, [drafts[-1].outputs[0], *weights], [y], attrs, draft.name)]


def _sum(draft: Draft, maker: Maker, terms: list[str], output: str) -> list[Draft]:
    """Adds of all terms that are given, two at least, from the left; `output` is the last one's."""
    drafts: list[Draft] = []
    total, *rest = filter(None, terms)
    for term in rest:
        total = maker.node(drafts, draft, "Add", [total, term])
    drafts[-1].outputs = [output or total]
    return drafts


def _embed_layer_norm(draft: Draft, maker: Maker) -> list[Draft]:
    (ids, segments, words, positions, segment_words, weight, bias, mask, position_ids) = padded(
        draft.inputs, 9
    )
    y, mask_index, total = padded(draft.outputs, 3)
    drafts: list[Draft] = []

    def node(op: str, *inputs: str, **attrs: object) -> str:
        return maker.node(drafts, draft, op, list(inputs), **attrs)

    zero = maker.ints([0], f"{draft.name}/zero")
    terms = [node("Gather", words, ids, axis=0)]
    if position_ids:
        terms.append(node("Gather", positions, position_ids, axis=0))
    else:  # one row of the table per column of ids
        terms.append(node("Slice", positions, zero, node("Shape", ids, start=1, end=2), zero))
    if segments:
        terms.append(node("Gather", segment_words, segments, axis=0))
    drafts += _sum(draft, maker, terms, total)
    attrs = {"axis": -1, "epsilon": draft.attrs.get("epsilon", 1e-12)}
    inputs = [drafts[-1].outputs[0], weight, bias]
    drafts.append(Draft("LayerNormalization", inputs, [y], attrs, draft.name))
    if mask_index:  # the number of ones in each row of the mask
        if mask:
            seen = node("Equal", mask, maker.constant(np.array(1, np.int32), f"{draft.name}/one"))
            ones = node("Cast", seen, to=dtypes.INT32)
            node("ReduceSum", ones, maker.ints([1], f"{draft.name}/axis"), keepdims=0)
        else:
            batch = node("Shape", ids, start=0, end=1)
            node("ConstantOfShape", batch, value=np.zeros(1, np.int32))
        drafts[-1].outputs = [mask_index]
    return drafts


def _gelu(draft: Draft, maker: Maker) -> list[Draft]:
    """FastGelu is the tanh form; BiasGelu and FastGelu add a bias before."""
    x, bias = padded(draft.inputs, 2)
    approximate = "tanh" if draft.op.endswith("FastGelu") else "none"
    drafts: list[Draft] = []
    if bias:
        x = maker.node(drafts, draft, "Add", [x, bias])
    attrs = {"approximate": approximate}
    return [*drafts, Draft("Gelu", [x], draft.outputs, attrs, draft.name)]


def _quick_gelu(draft: Draft, maker: Maker) -> list[Draft]:
    attrs = {"alpha": draft.attrs.get("alpha", 1.702)}
    return [Draft("Swish", draft.inputs, draft.outputs, attrs, draft.name)]


def _rotary_embedding(draft: Draft, maker: Maker) -> list[Draft]:
    x, positions, cos, sin = draft.inputs
    attrs = dict(draft.attrs)
    if attrs.pop("is_packed_batching", 0) or attrs.pop("scale", 1.0) != 1.0:
        return [draft]
    return [Draft("RotaryEmbedding", [x, cos, sin, positions], draft.outputs, attrs, draft.name)]


CONTRIB: dict[str, Rewrite] = {
    "SimplifiedLayerNormalization": _rms_norm,  # onnxruntime enters it in the standard domain
    "com.microsoft::SimplifiedLayerNormalization": _rms_norm,
    "com.microsoft::SkipLayerNormalization": _skip_layer_norm,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "com.microsoft::RotaryEmbedding": _rotary_embedding,
    "com.microsoft::EmbedLayerNormalization": _embed_layer_norm,
    "com.microsoft::Gelu": _gelu,
    "com.microsoft::BiasGelu": _gelu,
    "com.microsoft::FastGelu": _gelu,
    "com.microsoft::QuickGelu": _quick_gelu,
}
