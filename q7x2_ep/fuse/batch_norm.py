"""BatchNormalization that no convolution took -> Sub, Mul and Add of constants: one chain.

(x - mean) * (scale / sqrt(variance + epsilon)) + shift, in the order in which the op rounds.
Source: ONNX BatchNormalization, inference form.
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion


def normalized(g: Any, x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    constants = [g.constant(value) for value in (scale, shift, mean, variance)]
    return g.BatchNormalization(x, *constants, training_mode=0)


def _check(match: Match) -> Union[dict[str, Any], str]:
    values = {name: match[name] for name in ("x", "scale", "shift", "mean", "variance")}
    if len({value.dtype for value in values.values()}) > 1 or values["x"].shape is None:
        return "operands of several dtypes, or of unknown rank"
    return {**values, "epsilon": match.root.attrs["epsilon"]}


def _build(
    g: Any, x: Value, scale: Value, shift: Value, mean: Value, variance: Value, epsilon: float
) -> Value:
    """The arithmetic on constants is folded after this."""
    factor = g.Div(scale, g.Sqrt(g.Add(variance, epsilon)))
    column = [*scale.shape, *(1 for _ in x.shape[2:])]
    mean, factor, shift = (g.Reshape(value, column) for value in (mean, factor, shift))
    return g.Add(g.Mul(g.Sub(x, mean), factor), shift)


BATCH_NORM = Fusion("BatchNorm", (normalized,), _check, _build)
