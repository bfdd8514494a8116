"""What follows a product, in the terms that Linear and Conv share: activations, residuals, rows."""

from __future__ import annotations

from math import nan
from typing import Any, Callable, Optional, Union

from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops.activation import ACTIVATION_OPS

Formula = Callable[..., Any]
FACTORS = 2.0**-64, 2.0**64  # of weights: none that matters leaves the range of float32


def activations(result: Formula) -> tuple[Formula, ...]:
    """The spellings (g, product, ..) of each activation of what result(g, product) asks for."""

    def activated(op: str) -> Formula:
        def formula(g: Any, product: Any) -> Any:
            return g.call(op, result(g, product))

        formula.__name__ = op.rpartition(":")[2].lower()
        return formula

    def clip(g: Any, product: Any, low: Any, high: Any) -> Any:
        y = result(g, product)
        return g.either(
            lambda: g.Clip(y, g.scalar(low), g.scalar(high)),
            lambda: g.Clip(y, g.scalar(low)),
            lambda: g.Clip(y, None, g.scalar(high)),
        )

    return (*map(activated, ACTIVATION_OPS), clip)


def residual_of(name: str, result: Formula, op: str) -> Fusion:
    """What is added to result(g, product) becomes the fourth operand of `op`, if of its shape."""

    def with_residual(g: Any, product: Any, residual: Any) -> Any:
        return g.Add(result(g, product), residual)

    def check(match: Match) -> Union[dict[str, Any], str]:
        y, residual = match["product"], match["residual"]
        fits = residual.shape == y.shape
        if y.producer.input(3) is not None or (residual.const is not None and not fits):
            return ""
        if not fits:
            return f"{residual!r} has shape {residual.shape}, wanted {y.shape} for a residual"
        return {"node": y.producer, "residual": residual}

    def build(g: Any, node: Node, residual: Value) -> Value:
        x, w, bias = (*node.inputs, None)[:3]
        return g.call(op, x, w, bias, residual, *node.inputs[4:], **node.attrs)

    return Fusion(name, (with_residual,), check, build)


def batch_normalized(g: Any, y: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    """A BatchNormalization by constants."""
    constants = [g.constant(value) for value in (scale, shift, mean, variance)]
    return g.BatchNormalization(y, *constants, training_mode=0)


def linear(
    g: Any,
    channels: Any,
    term: Optional[Value],
    scale: Optional[Value] = None,
    shift: Optional[Value] = None,
    mean: Optional[Value] = None,
    variance: Optional[Value] = None,
    epsilon: float = 0.0,
) -> tuple[Optional[Value], Optional[Value]]:
    """What is linear in each channel of y + term, as vectors: a factor of y, and another term."""
    factor = None
    if scale is not None:
        factor = flat(g, scale, channels)
        if variance is not None:
            deviation = g.folded("Sqrt", g.folded("Add", variance, epsilon))
            factor = g.folded("Div", factor, deviation)
        if mean is not None:
            term = g.folded("Neg", mean) if term is None else g.folded("Sub", term, mean)
        term = None if term is None else g.folded("Mul", term, factor)
    if shift is not None:
        shift = flat(g, shift, channels)
        term = shift if term is None else g.folded("Add", term, shift)
    return factor, term


def flat(g: Any, value: Value, channels: Any) -> Value:
    """Numbers per channel, or one for all, as a vector."""
    if all(dim == 1 for dim in value.shape):
        return g.folded("Expand", g.folded("Reshape", value, [1]), [channels])
    return value if value.shape == (channels,) else g.folded("Reshape", value, [channels])


def is_row(value: Value, row: tuple[Dim, ...], ndim: int) -> bool:
    """Whether a value of at most `ndim` dims holds one number per element of a row."""
    shape = value.shape
    if shape is None or not len(row) <= len(shape) <= ndim:
        return False
    return shape == (1,) * (len(shape) - len(row)) + row


def norm_factors(scale: Value, variance: Value, epsilon: float) -> Any:
    """scale / sqrt(variance + epsilon) of constants, in float64; None where a run divides by 0."""
    epsilon = variance.const.dtype.type(epsilon)
    if not (variance.const + epsilon).all():
        return None
    spread = variance.const.astype("float64") + epsilon
    spread[spread < 0] = nan  # as its root is, without a warning
    return scale.const.astype("float64") / spread**0.5


def is_finite(scale: Optional[Value], variance: Optional[Value], epsilon: float) -> bool:
    """Whether constants make factors, those of a norm or scale alone, of which none is infinite.
    One that is no number makes nothing else of what it is a factor of.
    """
    if scale is None or scale.const is None:
        return True
    if variance is None or variance.const is None:
        found = scale.const.astype("float64")
    else:
        found = norm_factors(scale, variance, epsilon)
    return found is not None and not (abs(found) >= 2.0**128).any()


def may_scale(factors: Any) -> bool:
    """Whether weights times these, numbers of numpy, stay in the range of float32."""
    sizes = abs(factors)
    return bool(((sizes == 0) | (sizes >= FACTORS[0]) & (sizes <= FACTORS[1])).all())
