"""Add before LayerNormalization or RMSNormalization -> q7::SkipLayerNorm, q7::SkipRmsNorm.

Where the sum is used again (pre-LN transformers), the fused op returns it too.
"""

from __future__ import annotations

from typing import Any, Optional, Union

from q7x2_ep.dtypes import FLOAT, type_string
from q7x2_ep.ir.core import ANY, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import broadcast, without_leading_ones
from q7x2_ep.ops import find


def _layer_norm(g: Any, *operands: Any) -> Any:
    return find("q7::SkipLayerNorm").decompose(g, *operands, epsilon=ANY)[0]


def _rms_norm(g: Any, *operands: Any) -> Any:
    return find("q7::SkipRmsNorm").decompose(g, *operands, epsilon=ANY)[0]


def skip_norm_biased(g: Any, x: Any, skip: Any, skip_bias: Any, weight: Any, bias: Any) -> Any:
    return _layer_norm(g, x, skip, skip_bias, weight, bias)


def skip_norm_biased_plain(g: Any, x: Any, skip: Any, skip_bias: Any, weight: Any) -> Any:
    return _layer_norm(g, x, skip, skip_bias, weight)


def skip_norm(g: Any, x: Any, skip: Any, weight: Any, bias: Any) -> Any:
    return _layer_norm(g, x, skip, None, weight, bias)


def skip_norm_plain(g: Any, x: Any, skip: Any, weight: Any) -> Any:
    return _layer_norm(g, x, skip, None, weight)


def skip_rms_norm_biased(g: Any, x: Any, skip: Any, skip_bias: Any, weight: Any) -> Any:
    return _rms_norm(g, x, skip, skip_bias, weight)


def skip_rms_norm(g: Any, x: Any, skip: Any, weight: Any) -> Any:
    return _rms_norm(g, x, skip, None, weight)


def _check(match: Match) -> Union[dict[str, Any], str]:
    x, skip, weight = match["x"], match["skip"], match["weight"]
    skip_bias, bias = match.get("skip_bias"), match.get("bias")
    if x.dtype != FLOAT:
        return f"{x!r} is {type_string(x.dtype)}, wanted {type_string(FLOAT)}"
    if not x.shape or not skip.shape or match["sum"].shape != x.shape:
        return f"{x!r} has shape {x.shape}, wanted that of the sum {match['sum'].shape}"
    for value in (skip_bias, weight, bias):
        if value is not None and value.shape != x.shape[-1:]:
            return f"{value!r} has shape {value.shape}, wanted {x.shape[-1:]}"
    rows = without_leading_ones(skip.shape, keep=1)
    wanted = x.shape[len(x.shape) - len(rows) :]
    # The outermost dim of skip may be 1 at bind: then its one row repeats, which is right too.
    if len(rows) < 2 or rows[1:] != wanted[1:] or broadcast(rows[0], wanted[0]) != wanted[0]:
        return f"{skip!r} has shape {skip.shape}, wanted {x.shape} or its last dims"
    return {
        "operands": (x, skip, skip_bias, weight) + ((bias,) if bias is not None else ()),
        "epsilon": match.root.attrs["epsilon"],
        "outputs": len(match.outputs),
    }


def _fusion(op: str, *spellings: Any) -> Fusion:
    def build(
        g: Any, operands: tuple[Optional[Value], ...], **attrs: Any
    ) -> Union[Value, tuple[Value, ...]]:
        return g.call(f"q7::{op}", *operands, **attrs)

    return Fusion(op, spellings, _check, build)


SKIP_LAYER_NORM = _fusion(
    "SkipLayerNorm", skip_norm_biased, skip_norm_biased_plain, skip_norm, skip_norm_plain
)
SKIP_RMS_NORM = _fusion("SkipRmsNorm", skip_rms_norm_biased, skip_rms_norm)
