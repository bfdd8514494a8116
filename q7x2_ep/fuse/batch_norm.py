"""BatchNormalization that no convolution took -> Mul and Add of constants: one chain.

x * factor + term, factor = scale / sqrt(variance + epsilon), term = shift - mean * factor, as
onnxruntime computes it; a factor and a term per channel that follow, as in models of Caffe, go into
both.
Source: ONNX BatchNormalization, inference form.
"""

from __future__ import annotations

from typing import Any, Optional, Union

from q7x2_ep.fuse.epilogue import batch_normalized, is_finite, is_row, linear
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def normalized(g: Any, x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    return batch_normalized(g, x, scale, shift, mean, variance)


def scaled(
    g: Any, x: Any, scale: Any, shift: Any, mean: Any, variance: Any, more: Any, term: Any
) -> Any:
    y = normalized(g, x, scale, shift, mean, variance)
    return g.Add(g.Mul(y, g.constant(more)), g.constant(term))


def _check(match: Match) -> Union[dict[str, Any], str]:
    names = ("x", "scale", "shift", "mean", "variance", "more", "term")
    values = {name: match[name] for name in names if match.get(name) is not None}
    if len({value.dtype for value in values.values()}) > 1 or values["x"].shape is None:
        return "operands of several dtypes, or of unknown rank"
    rows = [values[name].shape for name in ("scale", "shift", "mean", "variance")]
    if len(rows[0]) != 1 or len(set(rows)) > 1:
        return f"its operands have shapes {rows}, wanted one number per channel of each"
    column = _column(values["x"], values["scale"])
    for name in ("more", "term"):
        value = values.get(name)
        if value is not None and not is_row(value, tuple(column), len(values["x"].shape)):
            return f"{name} {value!r} has shape {value.shape}, wanted {column}"
    norm = next(node for node in match.nodes if node.op == "BatchNormalization")
    epsilon = norm.attrs["epsilon"]
    if not is_finite(values["scale"], values["variance"], epsilon):
        return "a factor is infinite: the term may be as well, and their sum no number"
    return {**values, "epsilon": epsilon}


def _build(
    g: Any,
    x: Value,
    scale: Value,
    shift: Value,
    mean: Value,
    variance: Value,
    epsilon: float,
    more: Optional[Value] = None,
    term: Optional[Value] = None,
) -> Value:
    (channels,) = scale.shape
    factor, shift = linear(g, channels, None, scale, shift, mean, variance, epsilon)
    if more is not None:
        more, shift = linear(g, channels, shift, more, term)
        factor = g.folded("Mul", factor, more)
    column = _column(x, scale)
    return g.Add(g.Mul(x, g.folded("Reshape", factor, column)), g.folded("Reshape", shift, column))


def _column(x: Value, scale: Value) -> list:
    """The shape that broadcasts to one number per channel of x (N, C, ..)."""
    return [*scale.shape, *(1 for _ in x.shape[2:])]


BATCH_NORM = Fusion("BatchNorm", (normalized,), _check, _build)
SCALED = Fusion("BatchNormScaled", (scaled,), _check, _build)
