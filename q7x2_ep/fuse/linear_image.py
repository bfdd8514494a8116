"""What is done with the image whose pixels a Linear makes -> its columns, its residual.

ConvNeXt computes its feed-forward on rows and turns them into an image, which the factors of
LayerScale multiply, and to which the image that it began with is added. The memory of both is the
same.
Source: Liu et al. 2022 (ConvNeXt); Touvron et al. 2021 (LayerScale).
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.fuse.linear import LINEAR, check_factors, with_factors
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.view import channels_first, channels_last
from q7x2_ep.ops.image import CONVS

FIRST, LAST = channels_first(4), channels_last(4)


def scaled(g: Any, linear: Any, scale: Any) -> Any:
    return g.Mul(g.Transpose(g.result(LINEAR, linear), perm=FIRST), g.constant(scale))


def with_residual(g: Any, linear: Any, residual: Any) -> Any:
    return g.Add(g.Transpose(g.result(LINEAR, linear), perm=FIRST), residual)


def _check_scaled(match: Match) -> Union[dict[str, Any], str]:
    node, scale = match["linear"].producer, match["scale"]
    if node.input(3) is not None:
        return ""
    column = (node.output.shape[-1], 1, 1)
    if scale.shape not in (column, (1, *column)):
        return f"the factor {scale!r} has shape {scale.shape}, wanted {column}"
    refusal = check_factors(node, scale)
    return {"node": node, "scale": scale} if refusal is None else refusal


def _build_scaled(g: Any, node: Node, scale: Value) -> Value:
    return g.Transpose(with_factors(g, node, scale), perm=FIRST)


def _check_residual(match: Match) -> Union[dict[str, Any], str]:
    node, residual = match["linear"].producer, match["residual"]
    if node.input(3) is not None or residual.const is not None:
        return ""
    if residual.shape != match.root.output.shape:
        return f"{residual!r} has shape {residual.shape}, wanted {match.root.output.shape}"
    made_by = residual.producer
    is_image = made_by is not None and (made_by.op in CONVS or _is_of_pixels(made_by))
    if not is_image and not any(user.op in CONVS for user in residual.users):
        return f"{residual!r} is no image of a convolution"
    return {"node": node, "residual": residual}


def _is_of_pixels(node: Node) -> bool:
    return node.op == "Transpose" and tuple(node.attrs["perm"]) == FIRST


def _build_residual(g: Any, node: Node, residual: Value) -> Value:
    made_by = residual.producer
    if made_by is not None and _is_of_pixels(made_by):
        rows = made_by.inputs[0]
    else:
        rows = g.Transpose(residual, perm=LAST)
    operands = (*node.inputs, None)[:3]
    return g.Transpose(g.call(LINEAR, *operands, rows, **node.attrs), perm=FIRST)


SCALED = Fusion("ImageColumns", (scaled,), _check_scaled, _build_scaled)
RESIDUAL = Fusion("ImageResidual", (with_residual,), _check_residual, _build_residual)
