"""Version differences of ONNX operators as data: every older form is rewritten to the newest one.

CHANGES holds (op, below, change): a node of `op` imported under an opset version less than `below`
goes through `change(draft, maker)`, which returns the nodes that take its place, in order. The rest
of q7x2_ep knows only the newest form of an op, with its attributes and inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Value

# By domain: a later version may give an op another meaning. onnxruntime 1.32 refuses the same.
NEWEST = {
    "": 28,
    "ai.onnx.ml": 5,
    "ai.onnx.training": 1,
    "ai.onnx.preview.training": 1,
    "com.microsoft": 1,
    "com.microsoft.nchwc": 1,
}


def opset_versions(opset_import: Iterable[Any]) -> dict[str, int]:
    """The version of each domain.

    Raises: ModelError for one that is newer than what is known here.
    """
    found = {"" if item.domain == "ai.onnx" else item.domain: item.version for item in opset_import}
    for domain, version in found.items():
        if version > NEWEST.get(domain, version):
            raise ModelError(
                f"opset {version} of {domain or 'ai.onnx'} is not supported: the newest that is "
                f"known is {NEWEST[domain]}: export the model with that, or an older one"
            )
    return found


@dataclass
class Draft:
    """A node before it is in the graph: operands by name, "" for an omitted one."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    name: str
    captures: tuple[Value, ...] = ()  # what its bodies take from around them


class Maker:
    """What a change may create: constants and names that nothing else has."""

    def __init__(self, constant: Callable[[np.ndarray, str], str], fresh: Callable[[str], str]):
        self.constant = constant
        self.fresh = fresh

    def ints(self, values: Any, hint: str) -> str:
        return self.constant(np.array(values, np.int64), hint)

    def like(
        self, drafts: list[Draft], of: Draft, x: str, number: Union[float, np.ndarray], hint: str
    ) -> str:
        """A number of `of`, float32 as in its attributes, in the dtype of x."""
        held = self.constant(np.array(number, np.float32), f"{of.name}/{hint}")
        return self.node(drafts, of, "CastLike", [held, x])

    def whole(self, drafts: list[Draft], of: Draft, x: str) -> str:
        """x in int64, which the newest form of an op takes alone."""
        return self.node(drafts, of, "Cast", [x], to=dtypes.INT64)

    def node(self, drafts: list[Draft], of: Draft, op: str, inputs: list[str], **attrs: Any) -> str:
        """Append a helper node of `of` to drafts; returns the name of its output."""
        output = self.fresh(f"{of.outputs[0]}/{op}")
        drafts.append(Draft(op, inputs, [output], attrs, self.fresh(f"{of.name}/{op}")))
        return output


def modernise(draft: Draft, version: int, maker: Maker) -> list[Draft]:
    """The nodes in newest form that mean what `draft` meant under an opset version."""
    if version < 6:
        draft.attrs.pop(
            "consumed_inputs", None
        )  # a hint to share memory, which never had a meaning
    drafts = [draft]
    for below, change in _CHANGES_OF.get(draft.op, ()):
        if version < below:
            *helpers, last = drafts
            drafts = [*helpers, *change(last, maker)]
    return drafts


def _axes_to_input(draft: Draft, maker: Maker) -> list[Draft]:
    if "axes" in draft.attrs:
        draft.inputs.append(maker.ints(draft.attrs.pop("axes"), f"{draft.name}/axes"))
    return [draft]


def _slice_to_inputs(draft: Draft, maker: Maker) -> list[Draft]:
    starts, ends = draft.attrs.pop("starts"), draft.attrs.pop("ends")
    axes = draft.attrs.pop("axes", tuple(range(len(starts))))
    for key, values in (("starts", starts), ("ends", ends), ("axes", axes)):
        draft.inputs.append(maker.ints(values, f"{draft.name}/{key}"))
    return [draft]


def _split_to_input(draft: Draft, maker: Maker) -> list[Draft]:
    sizes = draft.attrs.pop("split", None)
    drafts: list[Draft] = []
    if len(draft.inputs) > 1:  # opset 1 took either; here in the dtype of x
        draft.inputs[1] = maker.whole(drafts, draft, draft.inputs[1])
    elif sizes is not None:
        draft.inputs.append(maker.ints(sizes, f"{draft.name}/split"))
    return [*drafts, draft]


def _split_num_outputs(draft: Draft, maker: Maker) -> list[Draft]:
    if len(draft.inputs) < 2:
        draft.attrs["num_outputs"] = len(draft.outputs)
    return [draft]


def _clip_to_inputs(draft: Draft, maker: Maker) -> list[Draft]:
    """The bounds were float32 attributes whatever the dtype of x; by default they were finite."""
    limit = float(np.finfo(np.float32).max)
    return _attrs_to_inputs(draft, maker, {"min": -limit, "max": limit})


def _attrs_to_inputs(
    draft: Draft, maker: Maker, defaults: dict[str, Optional[float]]
) -> list[Draft]:
    """Float attributes become operands, in the dtype of x; those without a value are left out."""
    drafts: list[Draft] = []
    for key, default in defaults.items():
        value = draft.attrs.pop(key, default)
        if value is None:
            draft.inputs.append("")
        else:
            draft.inputs.append(maker.like(drafts, draft, draft.inputs[0], value, key))
    return [*drafts, draft]


def _only(*names: str) -> Callable[[Draft, Maker], list[Draft]]:
    """Attributes of other names mean nothing."""

    def change(draft: Draft, maker: Maker) -> list[Draft]:
        return [replace(draft, attrs={k: v for k, v in draft.attrs.items() if k in names})]

    return change


def _dropout_inference(draft: Draft, maker: Maker) -> list[Draft]:
    """Inference is what `training_mode` absent means now; the ratio plays no part in it."""
    return [replace(draft, attrs={}, inputs=draft.inputs[:1])]


def _dropout_float_mask(draft: Draft, maker: Maker) -> list[Draft]:
    """Before opset 10 the mask had the dtype of x."""
    if not any(draft.outputs[1:]):
        return [draft]
    x, (y, mask) = draft.inputs[0], draft.outputs
    made = maker.fresh(f"{mask}/bool")
    cast = Draft("CastLike", [made, x], [mask], {}, maker.fresh(f"{draft.name}/CastLike"))
    return [replace(draft, outputs=[y, made]), cast]


def _pad_to_inputs(draft: Draft, maker: Maker) -> list[Draft]:
    pads = draft.attrs.pop("paddings", None) or draft.attrs.pop("pads")
    draft.inputs.append(maker.ints(pads, f"{draft.name}/pads"))
    return _attrs_to_inputs(draft, maker, {"value": None})


def _softmax_flattened(draft: Draft, maker: Maker) -> list[Draft]:
    """Before opset 13 x was flattened at `axis`, default 1, and normalised over the rest."""
    axis = draft.attrs.get("axis", 1)
    if axis == -1:
        return [draft]
    (x,), (y,) = draft.inputs, draft.outputs
    drafts: list[Draft] = []
    flat = maker.node(drafts, draft, "Flatten", [x], axis=axis)
    result = maker.fresh(f"{y}/{draft.op}")
    drafts.append(Draft(draft.op, [flat], [result], {"axis": -1}, draft.name))
    shape = maker.node(drafts, draft, "Shape", [x])
    name = maker.fresh(f"{draft.name}/Reshape")
    drafts.append(Draft("Reshape", [result, shape], [y], {"allowzero": 1}, name))
    return drafts


def _batch_norm_mode(draft: Draft, maker: Maker) -> list[Draft]:
    """Before opset 14 it was the number of outputs that asked for training. The last two are the
    statistics of x: running averages that forget what was before.
    """
    if not draft.attrs.get("spatial", 1):
        return _batch_norm_per_activation(draft, maker)
    attrs = {key: value for key, value in draft.attrs.items() if key not in ("is_test", "spatial")}
    if any(draft.outputs[1:]) and not draft.attrs.get("is_test"):
        attrs["training_mode"] = 1
        made = [replace(draft, attrs=attrs, outputs=draft.outputs[:3])]
        if any(draft.outputs[3:]):
            outputs = [maker.fresh(f"{draft.outputs[0]}/saved"), *draft.outputs[3:]]
            name = maker.fresh(f"{draft.name}/saved")
            attrs = {**attrs, "momentum": 0.0}
            made.append(replace(draft, attrs=attrs, outputs=outputs, name=name))
        return made
    return [replace(draft, attrs=attrs, outputs=draft.outputs[:1])]


def _batch_norm_per_activation(draft: Draft, maker: Maker) -> list[Draft]:
    """spatial=0, before opset 9: statistics for every element of a row, not for every channel."""
    x, scale, bias, mean, var = draft.inputs
    drafts: list[Draft] = []

    def node(op: str, *inputs: str) -> str:
        return maker.node(drafts, draft, op, list(inputs))

    number = maker.like(drafts, draft, x, draft.attrs.get("epsilon", 1e-5), "epsilon")
    normal = node("Div", node("Sub", x, mean), node("Sqrt", node("Add", var, number)))
    inputs = [node("Mul", normal, scale), bias]
    return [*drafts, Draft("Add", inputs, draft.outputs[:1], {}, draft.name)]


def _mean_variance_axes(draft: Draft, maker: Maker) -> list[Draft]:
    """Before the standard had it, in onnxruntime: over images, or over images and channels."""
    attrs = {"across_channels": 0, "normalize_variance": 1, **draft.attrs}
    axes = [0, 1, 2, 3] if attrs["across_channels"] else [0, 2, 3]
    if attrs["normalize_variance"]:
        return [replace(draft, attrs={"axes": axes})]
    drafts: list[Draft] = []
    (x,) = draft.inputs
    held = maker.ints(axes, f"{draft.name}/axes")
    mean = maker.node(drafts, draft, "ReduceMean", [x, held])
    return [*drafts, Draft("Sub", [x, mean], draft.outputs, {}, draft.name)]


def _top_k_to_input(draft: Draft, maker: Maker) -> list[Draft]:
    draft.inputs.append(maker.ints([draft.attrs.pop("k")], f"{draft.name}/k"))
    return [draft]


def _reshape_to_input(draft: Draft, maker: Maker) -> list[Draft]:
    draft.inputs.append(maker.ints(draft.attrs.pop("shape"), f"{draft.name}/shape"))
    return [draft]


def _binary_broadcast(draft: Draft, maker: Maker) -> list[Draft]:
    """Before opset 7 `axis` said which dim of a b starts at; ones go behind it."""
    draft.attrs.pop("broadcast", None)
    axis = draft.attrs.pop("axis", None)
    if axis is None:
        return [draft]
    a, b = draft.inputs
    drafts: list[Draft] = []
    b_shape = maker.node(drafts, draft, "Shape", [b])
    a_shape = maker.node(drafts, draft, "Shape", [a])
    b_ndim = maker.node(drafts, draft, "Shape", [b_shape])
    a_ndim = maker.node(drafts, draft, "Shape", [a_shape])
    after = maker.node(drafts, draft, "Sub", [a_ndim, b_ndim])
    if axis >= 0:
        after = maker.node(drafts, draft, "Sub", [after, maker.ints([axis], f"{draft.name}/axis")])
    else:  # counts from the end of a: -axis dims of a are left for b and the ones after it
        after = maker.node(
            drafts, draft, "Sub", [maker.ints([-axis], f"{draft.name}/axis"), b_ndim]
        )
    ones = maker.node(drafts, draft, "ConstantOfShape", [after], value=np.ones(1, np.int64))
    shape = maker.node(drafts, draft, "Concat", [b_shape, ones], axis=0)
    aligned = maker.node(drafts, draft, "Reshape", [b, shape])
    return [*drafts, replace(draft, inputs=[a, aligned])]


def _prelu_per_channel(draft: Draft, maker: Maker) -> list[Draft]:
    """Before opset 7 a slope of many elements was one per channel; ones go behind it."""
    x, slope = draft.inputs
    drafts: list[Draft] = []
    ndim = maker.node(drafts, draft, "Shape", [maker.node(drafts, draft, "Shape", [x])])
    after = maker.node(drafts, draft, "Sub", [ndim, maker.ints([2], f"{draft.name}/axes")])
    after = maker.node(drafts, draft, "Max", [after, maker.ints([0], f"{draft.name}/none")])
    ones = maker.node(drafts, draft, "ConstantOfShape", [after], value=np.ones(1, np.int64))
    rest = maker.ints([-1], f"{draft.name}/rest")
    shape = maker.node(drafts, draft, "Concat", [rest, ones], axis=0)
    aligned = maker.node(drafts, draft, "Reshape", [slope, shape])
    return [*drafts, replace(draft, inputs=[x, aligned])]


def _tile_along_axis(draft: Draft, maker: Maker) -> list[Draft]:
    """Tiled one axis; it and the number of copies were in the dtype of x."""
    x, tiles, axis = draft.inputs
    drafts: list[Draft] = []

    def node(op: str, *inputs: str) -> str:
        return maker.node(drafts, draft, op, list(inputs))

    zero, one = (maker.constant(np.array(i, np.int64), f"{draft.name}/{i}") for i in (0, 1))
    ndim = node("Squeeze", node("Shape", node("Shape", x)))
    chosen = node("Equal", node("Range", zero, ndim, one), maker.whole(drafts, draft, axis))
    repeats = node("Where", chosen, maker.whole(drafts, draft, tiles), one)
    return [*drafts, replace(draft, inputs=[x, repeats])]


def _one_hot_without_negative(draft: Draft, maker: Maker) -> list[Draft]:
    """Negative indices did not count from the end: they were out of range, as depth itself is."""
    indices, depth, values = draft.inputs
    drafts: list[Draft] = []
    whole = maker.whole(drafts, draft, indices)
    size = maker.whole(drafts, draft, depth)
    zero = maker.constant(np.array(0, np.int64), f"{draft.name}/zero")
    negative = maker.node(drafts, draft, "Less", [whole, zero])
    scalar = maker.node(drafts, draft, "Reshape", [size, maker.ints([], f"{draft.name}/scalar")])
    index = maker.node(drafts, draft, "Where", [negative, scalar, whole])
    return [*drafts, replace(draft, inputs=[index, depth, values])]


def _upsample_scales(draft: Draft, maker: Maker) -> list[Draft]:
    if "height_scale" in draft.attrs:  # of NCHW, before opset 7
        height, width = draft.attrs.pop("height_scale"), draft.attrs.pop("width_scale")
        draft.attrs["scales"] = (1.0, 1.0, height, width)
    scales = np.array(draft.attrs.pop("scales"), np.float32)
    draft.inputs.append(maker.constant(scales, f"{draft.name}/scales"))
    return [draft]


_RESIZE_MODES = {  # before opset 11, and what they are now
    "nearest": "nearest",
    "cubic": "cubic",
    **dict.fromkeys(("linear", "bilinear", "trilinear"), "linear"),
}


def _resize_asymmetric(draft: Draft, maker: Maker) -> list[Draft]:
    """Upsample, and Resize before opset 11: y[i] is around x[i / scale], and the nearest the one
    before that, or where an axis shrinks the one behind. Cubic is an extension of onnxruntime.
    """
    mode = draft.attrs.get("mode", "nearest")
    if mode not in _RESIZE_MODES:
        raise ModelError(
            f"[{draft.op} {draft.name}] mode is {mode!r}, not one of {[*_RESIZE_MODES]}"
        )
    x, scales = draft.inputs
    attrs = {
        "mode": _RESIZE_MODES[mode],
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    drafts: list[Draft] = []
    if mode == "nearest" and draft.op == "Resize":
        one = maker.constant(np.array(1, np.float32), f"{draft.name}/one")
        shrinks = maker.node(drafts, draft, "Min", [scales, one])
        small = maker.node(
            drafts, draft, "Resize", [x, "", shrinks], **{**attrs, "nearest_mode": "ceil"}
        )
        x, scales = small, maker.node(drafts, draft, "Max", [scales, one])
    return [*drafts, Draft("Resize", [x, "", scales], draft.outputs, attrs, draft.name)]


def _dft_axis_to_input(draft: Draft, maker: Maker) -> list[Draft]:
    axis = maker.constant(np.array(draft.attrs.pop("axis", 1), np.int64), f"{draft.name}/axis")
    length = draft.inputs[1:2] or [""]
    return [replace(draft, inputs=[draft.inputs[0], *length, axis])]


def _whole_power(draft: Draft, maker: Maker) -> list[Draft]:
    """p was a float."""
    draft.attrs["p"] = int(draft.attrs.get("p", 2.0))
    return [draft]


def _grid_sample_modes(draft: Draft, maker: Maker) -> list[Draft]:
    mode = draft.attrs.get("mode", "bilinear")
    draft.attrs["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return [draft]


def _set_defaults(**defaults: Any) -> Callable[[Draft, Maker], list[Draft]]:
    """Attributes that had other defaults, or none and this meaning."""
    held = {k: dtypes.attribute(v) if isinstance(v, float) else v for k, v in defaults.items()}
    return lambda draft, maker: [replace(draft, attrs={**held, **draft.attrs})]


def _drop(*names: str) -> Callable[[Draft, Maker], list[Draft]]:
    """Attributes that never had an effect on values."""
    return lambda draft, maker: [
        replace(draft, attrs={k: v for k, v in draft.attrs.items() if k not in names})
    ]


def _gru_forward(draft: Draft, maker: Maker) -> list[Draft]:
    """Opset 1 spelled the default direction without its r."""
    if draft.attrs.get("direction") == "foward":
        draft.attrs["direction"] = "forward"
    return [draft]


def _cast_by_name(draft: Draft, maker: Maker) -> list[Draft]:
    """`to` was a string such as "FLOAT"."""
    codes = {row.onnx: row.code for row in dtypes.DTYPES.values()}
    return [replace(draft, attrs={"to": codes[draft.attrs["to"].lower()]})]


def _scatter_renamed(draft: Draft, maker: Maker) -> list[Draft]:
    return [replace(draft, op="ScatterElements")]


def _group_norm_per_channel(draft: Draft, maker: Maker) -> list[Draft]:
    """Scale and bias were one number per group; now they are one per channel."""
    x, *per_group = draft.inputs
    groups = maker.ints([draft.attrs["num_groups"]], f"{draft.name}/groups")
    drafts: list[Draft] = []
    channels = maker.node(drafts, draft, "Shape", [x], start=1, end=2)
    size = maker.node(drafts, draft, "Div", [channels, groups])
    shape = maker.node(drafts, draft, "Concat", [groups, size], axis=0)
    inputs = [x]
    for operand in per_group:
        column = maker.node(
            drafts, draft, "Unsqueeze", [operand, maker.ints([1], f"{draft.name}/axis")]
        )
        rows = maker.node(drafts, draft, "Expand", [column, shape])
        inputs.append(maker.node(drafts, draft, "Reshape", [rows, channels]))
    return [*drafts, replace(draft, inputs=inputs)]


def _scan_batched(draft: Draft, maker: Maker) -> list[Draft]:
    """Before opset 9 sequence lengths came first, and all else had the batch in dim 0."""
    attrs = {**draft.attrs, "batched": 1}
    attrs["scan_input_directions"] = attrs.pop("directions", None)
    return [replace(draft, attrs=attrs)]


_REDUCTIONS = ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
_BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")

# In order of version for each op.
CHANGES: tuple[tuple[str, int, Callable[[Draft, Maker], list[Draft]]], ...] = (
    ("Squeeze", 13, _axes_to_input),
    ("Unsqueeze", 13, _axes_to_input),
    ("ReduceSum", 13, _axes_to_input),
    *((f"Reduce{kind}", 18, _axes_to_input) for kind in _REDUCTIONS),
    ("Slice", 10, _slice_to_inputs),
    ("Split", 13, _split_to_input),
    ("Split", 18, _split_num_outputs),
    ("Clip", 6, _set_defaults(min=-np.inf, max=np.inf)),
    ("Clip", 11, _clip_to_inputs),
    # onnxruntime's own before it was the standard's, which takes any attribute
    ("LayerNormalization", 17, _only("axis", "epsilon", "stash_type")),
    ("Dropout", 12, _dropout_inference),
    ("Dropout", 10, _dropout_float_mask),
    ("Pad", 11, _pad_to_inputs),
    ("Softmax", 13, _softmax_flattened),
    ("LogSoftmax", 13, _softmax_flattened),
    ("Hardmax", 13, _softmax_flattened),
    ("BatchNormalization", 14, _batch_norm_mode),
    ("MeanVarianceNormalization", 9, _mean_variance_axes),
    ("TopK", 10, _top_k_to_input),
    ("Reshape", 5, _reshape_to_input),
    ("Gemm", 7, _drop("broadcast")),
    *((op, 7, _binary_broadcast) for op in _BROADCASTING),
    ("PRelu", 7, _prelu_per_channel),
    ("Cast", 6, _cast_by_name),
    ("Concat", 4, _set_defaults(axis=1)),
    ("Selu", 6, _set_defaults(alpha=1.6732, gamma=1.0507)),
    ("Tile", 6, _tile_along_axis),
    ("OneHot", 11, _one_hot_without_negative),
    ("Scatter", 11, _scatter_renamed),
    ("Upsample", 9, _upsample_scales),
    ("Upsample", 10, _resize_asymmetric),
    ("Resize", 11, _resize_asymmetric),
    ("RoiAlign", 16, _set_defaults(coordinate_transformation_mode="output_half_pixel")),
    ("GridSample", 20, _grid_sample_modes),
    ("DFT", 20, _dft_axis_to_input),
    ("LpPool", 2, _whole_power),
    ("GlobalLpPool", 2, _whole_power),
    ("GRU", 3, _gru_forward),
    *((op, 7, _drop("output_sequence")) for op in ("RNN", "GRU", "LSTM")),
    ("GroupNormalization", 21, _group_norm_per_channel),
    ("Scan", 9, _scan_batched),
)
_CHANGES_OF: dict[str, list[tuple[int, Callable[[Draft, Maker], list[Draft]]]]] = {}
for _op, _below, _change in CHANGES:
    _CHANGES_OF.setdefault(_op, []).append((_below, _change))
