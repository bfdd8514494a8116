"""Operators of com.microsoft as data: each is rewritten to ops of the catalogue.

CONTRIB holds op: rewrite; rewrite(draft, maker) returns the nodes, in their newest form, that take
the draft's place, or the draft itself where it asks for what they cannot say: then it is reported
as unsupported. Formulas are spelled in standard ops where there are any, for the fusions to find.
"""

from __future__ import annotations

from dataclasses import replace
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
    y, inv_root = padded(draft.outputs, 2)
    drafts = _inverse_root(draft, maker, draft.inputs[0], inv_root)
    return [*drafts, Draft("RMSNormalization", draft.inputs, [y], draft.attrs, draft.name)]


def _inverse_root(draft: Draft, maker: Maker, x: str, output: str) -> list[Draft]:
    """1 / sqrt(mean(x^2) + epsilon) over the dims from `axis` on, where there is an output for it:
    in stash_type, which it is computed in.
    """
    drafts: list[Draft] = []
    if output:
        x = maker.node(drafts, draft, "Cast", [x], to=draft.attrs.get("stash_type", dtypes.FLOAT))
        axes = _axes_from(draft, maker, x, drafts)
        mean = maker.node(
            drafts, draft, "ReduceMean", [maker.node(drafts, draft, "Mul", [x, x]), axes]
        )
        shift = maker.like(drafts, draft, x, draft.attrs.get("epsilon", 1e-5), "epsilon")
        root = maker.node(drafts, draft, "Sqrt", [maker.node(drafts, draft, "Add", [mean, shift])])
        maker.node(drafts, draft, "Reciprocal", [root])
        drafts[-1].outputs = [output]
    return drafts


def _axes_from(draft: Draft, maker: Maker, x: str, drafts: list[Draft]) -> str:
    """Those of x from `axis` on, of which its shape tells how many there are."""
    axis = draft.attrs.get("axis", -1)
    if axis < 0:
        return maker.ints(range(axis, 0), f"{draft.name}/axes")
    rank = maker.node(drafts, draft, "Size", [maker.node(drafts, draft, "Shape", [x])])
    bounds = [maker.ints(n, f"{draft.name}/bound") for n in (axis, 1)]
    return maker.node(drafts, draft, "Range", [bounds[0], rank, bounds[1]])


def _skip_layer_norm(draft: Draft, maker: Maker) -> list[Draft]:
    x, skip, weight, bias, skip_bias = padded(draft.inputs, 5)
    y, mean, inv_std, total = padded(draft.outputs, 4)
    drafts = _sum(draft, maker, [x, skip, skip_bias], total)
    attrs = {"axis": -1, "epsilon": draft.attrs.get("epsilon", 1e-12)}
    inputs = [drafts[-1].outputs[0], weight, bias]
    return [*drafts, Draft("LayerNormalization", inputs, [y, mean, inv_std], attrs, draft.name)]


def _skip_rms_norm(draft: Draft, maker: Maker) -> list[Draft]:
    x, skip, weight, skip_bias = padded(draft.inputs, 4)
    y, mean, inv_root, total = padded(draft.outputs, 4)
    drafts = _sum(draft, maker, [x, skip, skip_bias], total)
    total = drafts[-1].outputs[0]
    drafts += _inverse_root(draft, maker, total, inv_root)
    if mean:  # which the norm does without
        rows = maker.node(drafts, draft, "Shape", [total], end=-1)
        one = maker.ints([1], f"{draft.name}/one")
        shape = maker.node(drafts, draft, "Concat", [rows, one], axis=0)
        maker.node(drafts, draft, "ConstantOfShape", [shape])
        drafts[-1].outputs = [mean]
    attrs = {"axis": -1, "epsilon": draft.attrs.get("epsilon", 1e-12)}
    return [*drafts, Draft("RMSNormalization", [total, weight], [y], attrs, draft.name)]


def _sum(draft: Draft, maker: Maker, terms: list[str], output: str) -> list[Draft]:
    """Adds of all terms that are given, two at least, from the left; `output` is the last one's."""
    drafts: list[Draft] = []
    total, *rest = filter(None, terms)
    for term in rest:
        total = maker.node(drafts, draft, "Add", [total, term])
    drafts[-1].outputs = [output or total]
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


def _product_gelu(draft: Draft, maker: Maker) -> list[Draft]:
    """FastGelu of x @ w + bias."""
    x, w, bias = padded(draft.inputs, 3)
    drafts: list[Draft] = []
    product = maker.node(drafts, draft, "MatMul", [x, w])
    return [*drafts, *_gelu(replace(draft, inputs=[product, bias]), maker)]


def _quick_gelu(draft: Draft, maker: Maker) -> list[Draft]:
    attrs = {"alpha": draft.attrs.get("alpha", 1.702)}
    return [Draft("Swish", draft.inputs, draft.outputs, attrs, draft.name)]


def _rotary_embedding(draft: Draft, maker: Maker) -> list[Draft]:
    x, positions, cos, sin = draft.inputs
    attrs = dict(draft.attrs)
    for hint in ("is_packed_batching", "scale"):  # which no kernel of onnxruntime applies
        attrs.pop(hint, None)
    return [Draft("RotaryEmbedding", [x, cos, sin, positions], draft.outputs, attrs, draft.name)]


def _group_query_attention(draft: Draft, maker: Maker) -> list[Draft]:
    """The total length as that of a range: shapes tell it, or a run does where it is data."""
    drafts: list[Draft] = []
    total = draft.inputs[6]
    bounds = [maker.constant(np.array(n, np.int32), f"{draft.name}/bound") for n in (0, 1)]
    counted = maker.node(drafts, draft, "Range", [bounds[0], total, bounds[1]])
    length = maker.node(drafts, draft, "Shape", [counted])
    return [*drafts, replace(draft, inputs=[*draft.inputs[:6], length, *draft.inputs[7:]])]


def _scores_of_filled_rows(past_length: int) -> Rewrite:
    """Attention over a cache, whose scores end with the rows that are filled: past_length is the
    operand that tells how many were.
    """

    def rewrite(draft: Draft, maker: Maker) -> list[Draft]:
        filled = padded(draft.inputs, past_length + 1)[past_length]
        y, present_key, present_value, scores = padded(draft.outputs, 4)
        if not filled or not scores:
            return [draft]
        whole = maker.fresh(f"{scores}/whole")
        drafts = [replace(draft, outputs=[y, present_key, present_value, whole])]
        new = maker.node(
            drafts, draft, "Shape", [draft.inputs[1] or draft.inputs[0]], start=1, end=2
        )
        row, axis = maker.ints([1], f"{draft.name}/row"), maker.ints([3], f"{draft.name}/axis")
        before = maker.node(drafts, draft, "Reshape", [maker.whole(drafts, draft, filled), row])
        end = maker.node(drafts, draft, "Add", [before, new])
        start = maker.ints([0], f"{draft.name}/start")
        return [*drafts, Draft("Slice", [whole, start, end, axis], [scores], {}, draft.name)]

    return rewrite


def _alias(op: str) -> Rewrite:
    """An op that the standard has too."""
    return lambda draft, maker: [replace(draft, op=op)]


def _whole(op: str) -> Rewrite:
    """An op that the standard has too, for a second operand in int64 alone."""

    def rewrite(draft: Draft, maker: Maker) -> list[Draft]:
        drafts: list[Draft] = []
        x, whole = draft.inputs
        whole = maker.whole(drafts, draft, whole)
        return [*drafts, replace(draft, op=op, inputs=[x, whole])]

    return rewrite


def _expand_dims(draft: Draft, maker: Maker) -> list[Draft]:
    """Unsqueeze with one axis, a number of int32."""
    drafts: list[Draft] = []
    x, axis = draft.inputs
    row = maker.ints([1], f"{draft.name}/row")
    axes = maker.node(drafts, draft, "Reshape", [maker.whole(drafts, draft, axis), row])
    return [*drafts, replace(draft, op="Unsqueeze", inputs=[x, axes])]


def _sample(draft: Draft, maker: Maker) -> list[Draft]:
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    attrs = dict(draft.attrs)
    mode = attrs.pop("mode", "bilinear")
    return [replace(draft, op="GridSample", attrs={**attrs, "mode": modes.get(mode, mode)})]


def _pad(draft: Draft, maker: Maker) -> list[Draft]:
    """The pads may be a row of a matrix."""
    drafts: list[Draft] = []
    flat = maker.node(
        drafts, draft, "Reshape", [draft.inputs[1], maker.ints([-1], f"{draft.name}/flat")]
    )
    inputs = [draft.inputs[0], flat, *draft.inputs[2:]]
    return [*drafts, replace(draft, op="Pad", inputs=inputs)]


def _range(draft: Draft, maker: Maker) -> list[Draft]:
    """The step is 1 by default."""
    start, limit, delta = padded(draft.inputs, 3)
    drafts: list[Draft] = []
    if not delta:
        one = maker.ints(1, f"{draft.name}/one")
        delta = maker.node(drafts, draft, "CastLike", [one, start])
    return [*drafts, replace(draft, op="Range", inputs=[start, limit, delta])]


def _scaled(draft: Draft, maker: Maker, inner: str, scale: str, inner_scale: str) -> list[Draft]:
    """scale * inner(inner_scale * x), of attributes of these names."""
    drafts: list[Draft] = []
    x = draft.inputs[0]
    for name, op in ((inner_scale, inner), (scale, "")):
        number = maker.like(drafts, draft, x, draft.attrs.get(name, 1.0), name)
        x = maker.node(drafts, draft, "Mul", [x, number])
        x = maker.node(drafts, draft, op, [x]) if op else x
    drafts[-1].outputs = draft.outputs
    return drafts


def _affine(draft: Draft, maker: Maker) -> list[Draft]:
    """alpha * x + beta; Scale calls its factor scale."""
    factor = draft.attrs.get("alpha", draft.attrs.get("scale", 1.0))
    drafts: list[Draft] = []
    x = draft.inputs[0]
    for op, number in (("Mul", factor), ("Add", draft.attrs.get("beta", 0.0))):
        x = maker.node(drafts, draft, op, [x, maker.like(drafts, draft, x, number, op)])
    drafts[-1].outputs = draft.outputs
    return drafts


def _image_scaler(draft: Draft, maker: Maker) -> list[Draft]:
    """x * scale + bias of each channel."""
    (x,) = draft.inputs
    drafts: list[Draft] = []
    shift = np.reshape(draft.attrs["bias"], (-1, 1, 1))
    bias = maker.like(drafts, draft, x, shift, "bias")
    factor = maker.like(drafts, draft, x, draft.attrs.get("scale", 1.0), "scale")
    scaled = maker.node(drafts, draft, "Mul", [x, factor])
    return [*drafts, Draft("Add", [scaled, bias], draft.outputs, {}, draft.name)]


def _crop(draft: Draft, maker: Maker) -> list[Draft]:
    """`border` is what is cut off left, top, right and bottom; `scale` is a size to keep instead of
    the last two.
    """
    left, top, right, bottom = draft.attrs["border"]
    height, width = draft.attrs.get("scale", (0, 0))
    most = np.iinfo(np.int64).max
    ends = [top + height, left + width] if height else [-bottom or most, -right or most]
    values = (("starts", [top, left]), ("ends", ends), ("axes", [2, 3]))
    operands = [maker.ints(value, f"{draft.name}/{name}") for name, value in values]
    return [replace(draft, op="Slice", inputs=[draft.inputs[0], *operands], attrs={})]


def _captures_behind(count: int) -> Rewrite:
    """What bodies capture comes behind all operands, also those that are left out."""
    return lambda draft, maker: [
        replace(draft, inputs=padded(draft.inputs, count if draft.captures else 0))
    ]


CONTRIB: dict[str, Rewrite] = {
    # onnxruntime has these in the standard domain
    "Affine": _affine,
    "Crop": _crop,
    "DynamicSlice": _alias("Slice"),
    "ImageScaler": _image_scaler,
    "MemcpyFromHost": _alias("Identity"),  # in models that it saved for devices of their own memory
    "MemcpyToHost": _alias("Identity"),
    "ParametricSoftplus": lambda d, m: _scaled(d, m, "Softplus", "alpha", "beta"),
    "Scale": _affine,
    "ScaledTanh": lambda d, m: _scaled(d, m, "Tanh", "alpha", "beta"),
    **{
        f"com.microsoft::{op}": _alias(op) for op in ("DequantizeLinear", "QuantizeLinear", "Trilu")
    },
    "com.microsoft::ExpandDims": _expand_dims,
    "com.microsoft::GatherND": _whole("GatherND"),
    "com.microsoft::GridSample": _sample,
    "com.microsoft::Pad": _pad,
    "com.microsoft::Range": _range,
    "com.microsoft::SampleOp": _alias("Identity"),
    "com.microsoft::BeamSearch": _captures_behind(12),
    "com.microsoft::GreedySearch": _captures_behind(7),
    "com.microsoft::Sampling": _captures_behind(9),
    "com.microsoft::WhisperBeamSearch": _captures_behind(15),
    "com.microsoft::DecoderMaskedMultiHeadAttention": _scores_of_filled_rows(7),
    "com.microsoft::GroupQueryAttention": _group_query_attention,
    "com.microsoft::MultiHeadAttention": _scores_of_filled_rows(8),
    "SimplifiedLayerNormalization": _rms_norm,
    "com.microsoft::SimplifiedLayerNormalization": _rms_norm,
    "com.microsoft::SkipLayerNormalization": _skip_layer_norm,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "com.microsoft::RotaryEmbedding": _rotary_embedding,
    "com.microsoft::Gelu": _gelu,
    "com.microsoft::BiasGelu": _gelu,
    "com.microsoft::FastGelu": _gelu,
    "com.microsoft::GemmFastGelu": _product_gelu,
    "com.microsoft::QuickGelu": _quick_gelu,
}
