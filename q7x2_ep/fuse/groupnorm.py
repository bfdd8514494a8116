"""InstanceNormalization of groups of channels -> GroupNormalization, and its scale and bias.

Exporters write GroupNorm as x reshaped to (N, groups, ..), normalised, and reshaped back; then a
factor and a term for each channel. Alone, the first Reshape would cost a copy of an image whose
channels lie side by side.
Source: ONNX GroupNormalization-21, whose function body this is; Wu and He 2018.
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.fuse.epilogue import is_row
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import Dim

NORM = "GroupNormalization"


def grouped(g: Any, x: Any, split: Any, scale: Any, bias: Any, shape: Any) -> Any:
    groups = g.Reshape(x, split)
    normal = g.InstanceNormalization(groups, g.constant(scale), g.constant(bias))
    return g.Reshape(normal, shape)


def _check(match: Match) -> Union[dict[str, Any], str]:
    x, y, norm = match["x"], match.root.output, match.root.inputs[0].producer
    split, groups = norm.output.shape, match["scale"].shape[0]
    if y.shape is None or split is None or len(y.shape) < 3:
        return f"{y!r} has not three dims, or nobody knows how many"
    channels = y.shape[1]
    if split[:2] != (y.shape[0], groups) or not isinstance(channels, int) or channels % groups:
        return f"{norm.output!r} has shape {split}, wanted {groups} groups of the channels of {y!r}"
    return {
        "x": x,
        "shape": y.shape,
        "rows": (match["scale"], match["bias"]),
        "groups": groups,
        "epsilon": norm.attrs["epsilon"],
    }


def _build(
    g: Any, x: Value, shape: tuple[Dim, ...], rows: tuple[Value, Value], groups: int, epsilon: float
) -> Value:
    channels = shape[1]
    if x.shape != shape:  # the first Reshape was that of something else, too
        x = g.reshape(x, shape)

    def spread(row: Value) -> Value:
        column = g.folded("Reshape", row, [groups, 1])
        return g.folded("Reshape", g.folded("Expand", column, [1, channels // groups]), [channels])

    return g.call(NORM, x, *map(spread, rows), num_groups=groups, epsilon=epsilon)


def weighted(g: Any, norm: Any, more: Any) -> Any:
    return g.Mul(g.result(NORM, norm), g.constant(more))


def biased(g: Any, norm: Any, more: Any) -> Any:
    return g.Add(g.result(NORM, norm), g.constant(more))


def _check_channels(match: Match) -> Union[dict[str, Any], str]:
    norm, more = match["norm"], match["more"]
    column: tuple[Dim, ...] = (norm.shape[1], *(1 for _ in norm.shape[2:]))
    if not is_row(more, column, len(norm.shape)):
        return f"{more!r} has shape {more.shape}, wanted {column}"
    return {"node": norm.producer, "more": more}


def _build_weighted(g: Any, node: Node, more: Value) -> Value:
    x, scale, bias = node.inputs
    factor = g.folded("Reshape", more, list(scale.shape))
    scaled = [g.folded("Mul", row, factor) for row in (scale, bias)]
    return g.call(NORM, x, *scaled, **node.attrs)


def _build_biased(g: Any, node: Node, more: Value) -> Value:
    x, scale, bias = node.inputs
    term = g.folded("Reshape", more, list(scale.shape))
    return g.call(NORM, x, scale, g.folded("Add", bias, term), **node.attrs)


GROUP_NORM = Fusion("GroupNorm", (grouped,), _check, _build)
WEIGHTED = Fusion("GroupNormWeight", (weighted,), _check_channels, _build_weighted)
BIASED = Fusion("GroupNormBias", (biased,), _check_channels, _build_biased)
