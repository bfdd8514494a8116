"""Version differences of ONNX operators as data: every older form is rewritten to the newest one.

CHANGES holds (op, below, change): a node of `op` imported under an opset version less than `below`
goes through `change(draft, maker)`, which returns the nodes that take its place, in order. The rest
of q7x2_ep knows only the newest form of an op, with its attributes and inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable

import numpy as np

from q7x2_ep import dtypes


@dataclass
class Draft:
    """A node before it is in the graph: operands by name, "" for an omitted one."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    name: str


class Maker:
    """What a change may create: constants and names that nothing else has."""

    def __init__(self, constant: Callable[[np.ndarray, str], str], fresh: Callable[[str], str]):
        self.constant = constant
        self.fresh = fresh

    def ints(self, values: Any, hint: str) -> str:
        return self.constant(np.array(values, np.int64), hint)

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
    for op, below, change in CHANGES:
        if op == draft.op and version < below:
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
    if "split" in draft.attrs:
        draft.inputs.append(maker.ints(draft.attrs.pop("split"), f"{draft.name}/split"))
    return [draft]


def _split_num_outputs(draft: Draft, maker: Maker) -> list[Draft]:
    if len(draft.inputs) < 2:
        draft.attrs["num_outputs"] = len(draft.outputs)
    return [draft]


def _clip_to_inputs(draft: Draft, maker: Maker) -> list[Draft]:
    limit = float(np.finfo(np.float32).max)
    for key, default in (("min", -limit), ("max", limit)):
        bound = np.array(draft.attrs.pop(key, default), np.float32)
        draft.inputs.append(maker.constant(bound, f"{draft.name}/{key}"))
    return [draft]


def _dropout_inference(draft: Draft, maker: Maker) -> list[Draft]:
    """Inference is what `training_mode` absent means now; the ratio plays no part in it."""
    return [replace(draft, attrs={}, inputs=draft.inputs[:1])]


def _pad_to_inputs(draft: Draft, maker: Maker) -> list[Draft]:
    pads = draft.attrs.pop("paddings", None) or draft.attrs.pop("pads")
    value = np.array(draft.attrs.pop("value", 0.0), np.float32)
    draft.inputs += [
        maker.ints(pads, f"{draft.name}/pads"),
        maker.constant(value, f"{draft.name}/value"),
    ]
    return [draft]


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
    drafts.append(Draft("Reshape", [result, shape], [y], {}, maker.fresh(f"{draft.name}/Reshape")))
    return drafts


def _batch_norm_inference(draft: Draft, maker: Maker) -> list[Draft]:
    attrs = {key: value for key, value in draft.attrs.items() if key not in ("is_test", "spatial")}
    return [replace(draft, attrs=attrs, outputs=draft.outputs[:1])]


def _top_k_to_input(draft: Draft, maker: Maker) -> list[Draft]:
    draft.inputs.append(maker.ints([draft.attrs.pop("k")], f"{draft.name}/k"))
    return [draft]


def _reshape_to_input(draft: Draft, maker: Maker) -> list[Draft]:
    draft.inputs.append(maker.ints(draft.attrs.pop("shape"), f"{draft.name}/shape"))
    return [draft]


def _gemm_broadcast(draft: Draft, maker: Maker) -> list[Draft]:
    draft.attrs.pop("broadcast", None)
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


def _cast_by_name(draft: Draft, maker: Maker) -> list[Draft]:
    """`to` was a string such as "FLOAT"."""
    codes = {row.onnx: row.code for row in dtypes.DTYPES.values()}
    return [replace(draft, attrs={"to": codes[draft.attrs["to"].lower()]})]


def _concat_default_axis(draft: Draft, maker: Maker) -> list[Draft]:
    draft.attrs.setdefault("axis", 1)
    return [draft]


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


def _roi_align_corners(draft: Draft, maker: Maker) -> list[Draft]:
    """Regions were not moved by half a pixel."""
    attrs = {**draft.attrs, "coordinate_transformation_mode": "output_half_pixel"}
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
    ("Clip", 11, _clip_to_inputs),
    ("Dropout", 12, _dropout_inference),
    ("Pad", 11, _pad_to_inputs),
    ("Softmax", 13, _softmax_flattened),
    ("LogSoftmax", 13, _softmax_flattened),
    ("Hardmax", 13, _softmax_flattened),
    ("BatchNormalization", 14, _batch_norm_inference),
    ("TopK", 10, _top_k_to_input),
    ("Reshape", 5, _reshape_to_input),
    ("Gemm", 7, _gemm_broadcast),
    *((op, 7, _binary_broadcast) for op in _BROADCASTING),
    ("Cast", 6, _cast_by_name),
    ("Concat", 4, _concat_default_axis),
    ("Scatter", 11, _scatter_renamed),
    ("GroupNormalization", 21, _group_norm_per_channel),
    ("RoiAlign", 16, _roi_align_corners),
)
