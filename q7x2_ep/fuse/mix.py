"""A Linear over an axis that is the second in memory -> q7::Mix, which needs no Transpose: an
attention whose heads talk mixes its scores, or its weights, so (Shazeer et al. 2020; CaiT).
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.fuse.linear import LINEAR
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.view import channels_first, channels_last
from q7x2_ep.ops.fused import MIX
from q7x2_ep.ops.window import is_pointwise

LAST, FIRST = channels_last(4), channels_first(4)
MOST = 32  # planes: what a group of them reads stays in L1
SCORES = ("MatMul", "q7::ScaledMatMul", "Softmax", MIX)  # what makes planes of an attention


def turned(g: Any, x: Any, w: Any, bias: Any) -> Any:
    rows, w = g.Transpose(x, perm=LAST), g.constant(w)
    y = g.either(lambda: g.call(LINEAR, rows, w, bias), lambda: g.call(LINEAR, rows, w))
    return g.Transpose(y, perm=FIRST)


def convolved(g: Any, x: Any, w: Any, bias: Any) -> Any:
    """Of planes that no convolution made, and so are not channels of pixels."""
    w = g.constant(w)
    return g.either(lambda: g.Conv(x, w, bias), lambda: g.Conv(x, w))


def _fits(w: Value) -> bool:
    return max(w.shape[:2]) <= MOST


def _check_turned(match: Match) -> Union[dict[str, Any], str]:
    node, w = match.root.inputs[0].producer, match["w"]
    if not _fits(w):
        return ""
    if node.attrs["activation"] != "none" or node.attrs["alpha"] != 1.0:
        return "more than a bias follows the product"
    turns = not node.attrs["trans_b"]
    return {"x": match["x"], "w": w, "bias": node.input(2), "turns": turns}


def _check_convolved(match: Match) -> Union[dict[str, Any], str]:
    root, x, w = match.root, match["x"], match["w"]
    if x.producer is None or x.producer.op not in SCORES or not _fits(w):
        return ""
    if not is_pointwise(root) or root.attrs["group"] != 1:
        return ""
    return {"x": x, "w": w, "bias": root.input(2), "turns": False}


def _build(g: Any, x: Value, w: Value, bias: Any, turns: bool) -> Value:
    if turns:
        w = g.folded("Transpose", w, perm=(1, 0))
    elif len(w.shape) > 2:
        w = g.folded("Reshape", w, list(w.shape[:2]))
    return g.call(MIX, x, w, bias)


TURNED = Fusion("MixTurned", (turned,), _check_turned, _build)
CONVOLVED = Fusion("MixConvolved", (convolved,), _check_convolved, _build)
