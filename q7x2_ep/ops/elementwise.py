"""Elementwise ops: one element of each operand, with broadcasting, gives one element of the output.

Most entries are a member of the closed sets `unary` and `binary` of csrc/ops.def. Contents of small
integer tensors are followed symbolically: exporters compute shapes with Add, Mul, Equal, Where.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Callable, Optional
from weakref import WeakKeyDictionary

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import NO_TENSOR, Node, Type
from q7x2_ep.ir.shape import Dim, at_least, floordiv, maximum, minimum
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    BINARY,
    CASTS,
    FLOATS,
    NUMERIC,
    binary_step,
    broadcast_guards,
    broadcast_inputs,
    cast_step,
    cast_to,
    chain,
    constant_scalar,
    dims,
    each,
    fill_step,
    fold,
    infer_copy,
    infer_same,
    is_used,
    known,
    number,
    require_dtype,
    temporary,
    typed,
    unary_step,
    where_is,
)

# What entries are made of


def infer_unary(operation: Callable[[Dim], Optional[Dim]]) -> Callable[[Node], list[Type]]:
    """infer of y = operation(x) that follows contents."""

    def infer(node: Node) -> list[Type]:
        return [typed(node.inputs[0].dtype, dims(node), fold(operation, known(node.inputs[0])))]

    return infer


def infer_bool(node: Node) -> list[Type]:
    return [Type(dtypes.BOOL, dims(node))]


def infer_binary(
    operation: Callable[..., Optional[Dim]], dtype: int = 0
) -> Callable[[Node], list[Type]]:
    """infer of a broadcasting op over any number of inputs; dtype 0: that of the first input."""

    def infer(node: Node) -> list[Type]:
        contents = [known(value) for value in node.inputs]
        elements = reduce(lambda a, b: fold(operation, a, b), contents[1:], contents[0])
        return [typed(dtype or node.inputs[0].dtype, broadcast_inputs(node), elements)]

    return infer


def unary(
    op: str, supported: tuple[int, ...] = FLOATS, alpha: str = "", beta: str = ""
) -> Callable[[Node, Any], None]:
    """lower of an op that is a member of `unary`; alpha and beta name its attributes."""

    def lower(node: Node, b: Any) -> None:
        x = node.inputs[0]
        require_dtype(node, x.dtype, supported)
        unary_step(b, op, x, node.output, node.attrs.get(alpha, 0.0), node.attrs.get(beta, 0.0))

    return lower


def binary(op: str, supported: tuple[int, ...] = BINARY) -> Callable[[Node, Any], None]:
    """lower of an op that is a member of `binary`; more than two inputs become a chain."""

    def lower(node: Node, b: Any) -> None:
        require_dtype(node, node.inputs[0].dtype, supported)
        if len(node.inputs) == 1:
            b.alias(node.output, b.view(node.inputs[0]))
        else:
            chain(b, op, node.inputs, node.output)

    return lower


def power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a^b in the dtype of a; of integers with a negative exponent the truncated power."""
    if a.dtype.kind not in "iu" or b.dtype.kind not in "iu":
        return np.power(a, b).astype(a.dtype)
    inverse = np.where(a == 1, 1, np.where(a + 1 == 0, 1 - b % 2 * 2, 0))
    return np.where(b < 0, inverse, np.power(a, np.where(b < 0, 0, b).astype(a.dtype))).astype(
        a.dtype
    )


def folded(function: Callable[..., Any]) -> Callable[..., Any]:
    """reference of a variadic op from a function of two arrays."""
    return lambda node, *arrays: reduce(function, arrays)


# Contents


def truncated_div(a: Dim, b: Dim) -> Optional[Dim]:
    """Integer division as ONNX has it, towards zero; unknown where b may be 0 or negative."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else None
    if not at_least(b, 0):
        return None
    if at_least(a, 0):
        return floordiv(a, b)
    return floordiv(maximum(a, 0), b) - floordiv(maximum(-a, 0), b)


def sign(a: Dim) -> Optional[Dim]:
    return 1 if at_least(a, 1) else -1 if at_least(-a, 1) else 0 if a == 0 else None


# Numpy functions that are exact to the last bits of whatever dtype they are given


erf = each(math.erf)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient, rest = np.floor_divide(a, b), np.remainder(a, b)
    return quotient + ((rest != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


# One input


@op("Abs")
class Abs:
    """y = |x|."""

    signature = "x: N -> y"
    attributes: dict = {}
    infer = infer_unary(lambda a: maximum(a, -a))
    reference = lambda node, x: np.abs(x)
    lower = unary("abs", NUMERIC)


@op("Neg")
class Neg:
    """y = -x."""

    signature = "x: N -> y"
    attributes: dict = {}
    infer = infer_unary(lambda a: -a)
    reference = lambda node, x: np.negative(x)
    lower = unary("neg", NUMERIC)


@op("Sign")
class Sign:
    """y = -1, 0 or 1."""

    signature = "x: N -> y"
    attributes: dict = {}
    infer = infer_unary(sign)
    reference = lambda node, x: np.sign(x)
    lower = unary("sign", NUMERIC)


@op("Exp")
class Exp:
    """y = e^x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.exp(x)
    lower = unary("exp")


@op("Log")
class Log:
    """y = ln x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.log(x)
    lower = unary("log")


@op("Sqrt")
class Sqrt:
    """y = sqrt x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.sqrt(x)
    lower = unary("sqrt")


@op("Reciprocal")
class Reciprocal:
    """y = 1 / x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.reciprocal(x)
    lower = unary("reciprocal")


@op("Erf")
class Erf:
    """y = 2 / sqrt(pi) * integral of exp(-t^2) for t in 0..x."""

    signature = "x: N -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: erf(x)
    lower = unary("erf")


@op("Floor")
class Floor:
    """The largest integer <= x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.floor(x)
    lower = unary("floor")


@op("Ceil")
class Ceil:
    """The smallest integer >= x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.ceil(x)
    lower = unary("ceil")


@op("Round")
class Round:
    """The nearest integer, halves to even."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.rint(x)
    lower = unary("round")


@op("IsNaN")
class IsNaN:
    """y = x is NaN."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_bool
    reference = lambda node, x: np.isnan(x)
    lower = unary("isnan")


@op("IsInf")
class IsInf:
    """y = x is infinite, of a sign that is to be detected."""

    signature = "x: F -> y"
    attributes = {"detect_negative": 1, "detect_positive": 1}
    infer = infer_bool

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        positive = np.isposinf(x) & bool(node.attrs["detect_positive"])
        return positive | (np.isneginf(x) & bool(node.attrs["detect_negative"]))

    def lower(node: Node, b: Any) -> None:
        x, y = node.inputs[0], node.output
        require_dtype(node, x.dtype, FLOATS)
        positive, negative = node.attrs["detect_positive"], node.attrs["detect_negative"]
        if positive and negative:
            unary_step(b, "isinf", x, y)
        elif positive or negative:
            binary_step(b, "equal", x, number(b, math.inf if positive else -math.inf, x.dtype), y)
        else:
            fill_step(b, False, y)


# Two inputs and more


@op("Add")
class Add:
    """y = a + b, with broadcasting."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: a + b)
    guards = broadcast_guards
    reference = lambda node, a, b: np.add(a, b)
    lower = binary("add")


@op("Sub")
class Sub:
    """y = a - b, with broadcasting."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: a - b)
    guards = broadcast_guards
    reference = lambda node, a, b: np.subtract(a, b)
    lower = binary("sub")


@op("Mul")
class Mul:
    """y = a * b, with broadcasting."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: a * b)
    guards = broadcast_guards
    reference = lambda node, a, b: np.multiply(a, b)
    lower = binary("mul")


@op("Div")
class Div:
    """y = a / b, with broadcasting; integers are divided towards zero."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}
    infer = infer_binary(truncated_div)
    guards = broadcast_guards
    reference = lambda node, a, b: divide(a, b)
    lower = binary("div")


@op("Pow")
class Pow:
    """y = a^b in the dtype of a, with broadcasting."""

    signature = "a: N, b: N1 -> y"
    attributes: dict = {}
    infer = infer_binary(
        lambda a, b: a**b if isinstance(a, int) and isinstance(b, int) and b >= 0 else None
    )
    guards = broadcast_guards
    reference = lambda node, a, b: power(a, b)

    def lower(node: Node, b: Any) -> None:
        base, exponent, y = *node.inputs, node.output
        require_dtype(node, base.dtype, NUMERIC)
        require_dtype(node, exponent.dtype, CASTS)
        number = constant_scalar(exponent)
        whole = not dtypes.is_float(exponent.dtype) or (number is not None and number % 1 == 0)
        # an integer to a fractional power, say: in the widest float, and back
        dtype = base.dtype if base.dtype == exponent.dtype or whole else dtypes.DOUBLE
        result = y if dtype == base.dtype else temporary(b, dtype, y.shape)
        binary_step(b, "pow", cast_to(b, base, dtype), cast_to(b, exponent, dtype), result)
        if result is not y:
            cast_step(b, result, y)


@op("Mod")
class Mod:
    """The rest of a / b: with the sign of b, or (fmod) with that of a."""

    signature = "a: N, b: N -> y"
    attributes = {"fmod": 0}

    def infer(node: Node) -> list[Type]:
        def rest(a: Dim, b: Dim) -> Optional[Dim]:
            floored = at_least(a, 0) or not node.attrs["fmod"]
            return (
                a - floordiv(a, b) * b
                if at_least(b, 0 if not isinstance(b, int) else 1) and floored
                else None
            )

        return infer_binary(rest)(node)

    guards = broadcast_guards
    reference = lambda node, a, b: np.fmod(a, b) if node.attrs["fmod"] else np.mod(a, b)
    lower = lambda node, b: binary("fmod" if node.attrs["fmod"] else "mod", NUMERIC)(node, b)


@op("Min")
class Min:
    """The least of all inputs, with broadcasting; NaN if any is."""

    signature = "x*: N -> y"
    attributes: dict = {}
    infer = infer_binary(minimum)
    guards = broadcast_guards
    reference = folded(np.minimum)
    lower = binary("min")


@op("Max")
class Max:
    """The greatest of all inputs, with broadcasting; NaN if any is."""

    signature = "x*: N -> y"
    attributes: dict = {}
    infer = infer_binary(maximum)
    guards = broadcast_guards
    reference = folded(np.maximum)
    lower = binary("max")


@op("Sum")
class Sum:
    """The sum of all inputs, with broadcasting."""

    signature = "x*: F -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: a + b)
    guards = broadcast_guards
    reference = folded(np.add)
    lower = binary("add")


@op("Mean")
class Mean:
    """The mean of all inputs, with broadcasting."""

    signature = "x*: F -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: None)
    guards = broadcast_guards
    reference = lambda node, *arrays: reduce(np.add, arrays) / len(arrays)

    def lower(node: Node, b: Any) -> None:
        if len(node.inputs) == 1:
            b.alias(node.output, b.view(node.inputs[0]))
            return
        dtype = node.output.dtype
        require_dtype(node, dtype, FLOATS)
        total = temporary(b, dtype, node.output.shape)
        chain(b, "add", node.inputs, total)
        binary_step(b, "div", total, number(b, len(node.inputs), dtype), node.output)


# No work at all


@op("Identity")
class Identity:
    """y = x, which need not be a tensor."""

    signature = "x -> y"
    attributes: dict = {}
    infer = lambda node: [NO_TENSOR] if node.inputs[0].type == NO_TENSOR else infer_copy(node)
    reference = lambda node, x: x
    view = lambda node, view: view


_MASKS: WeakKeyDictionary[Node, np.random.RandomState] = WeakKeyDictionary()


@op("Dropout")
class Dropout:
    """y = x, mask = true; in training mode y = 0 where mask is false, as often as `ratio` says, and
    x / (1 - ratio) elsewhere. A node has one generator, as in random_numbers.py.
    """

    signature = "x: F, ratio?: F1, training_mode?: bool -> y, mask?"
    attributes = {"seed": None}
    is_random = True

    def infer(node: Node) -> list[Type]:
        return [Type(node.inputs[0].dtype, dims(node)), Type(dtypes.BOOL, dims(node))]

    def reference(
        node: Node,
        x: np.ndarray,
        ratio: Optional[np.ndarray] = None,
        training_mode: Optional[np.ndarray] = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        dropped = 0.5 if ratio is None else float(ratio.item())
        if training_mode is None or not training_mode.item() or dropped == 0:
            return x, np.ones(x.shape, bool)
        if node not in _MASKS:  # numpy's older generator, whose masks ONNX's own tests have
            seed = node.attrs["seed"]
            _MASKS[node] = np.random.RandomState(None if seed is None else int(seed))
        kept = _MASKS[node].uniform(size=x.shape) >= dropped
        return (x * kept * (1 / (1 - dropped))).astype(x.dtype), kept

    def lower(node: Node, b: Any) -> None:
        if node.input(2) is not None and constant_scalar(node.input(2)) != 0:
            raise UnsupportedOp(f"{where_is(node)} draws random numbers in training mode")
        b.alias(node.output, b.view(node.inputs[0]))
        if is_used(b, node, 1):
            fill_step(b, True, node.outputs[1])
