"""Activations: ops of one element, which the epilogue of a product computes as well as a step.

An entry's `activation(node)` says which member of the closed set `act` of csrc/ops.def it is;
ACTIVATIONS is the way back.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ops import find, op
from q7x2_ep.ops.common import (
    FLOATS,
    NUMERIC,
    Activation,
    Guard,
    binary_step,
    constant_scalar,
    each,
    fit_guards,
    infer_same,
    require_dtype,
    size_guards,
    temporary,
    unary_step,
)
from q7x2_ep.ops.elementwise import unary

# The meaning of the members as formulas (g, x, alpha, beta).
ACTIVATIONS: dict[str, Callable[..., Value]] = {
    "none": lambda g, x, alpha, beta: x,
    "relu": lambda g, x, alpha, beta: g.Relu(x),
    "gelu": lambda g, x, alpha, beta: g.Gelu(x, approximate="none"),
    "gelu_tanh": lambda g, x, alpha, beta: g.Gelu(x, approximate="tanh"),
    "silu": lambda g, x, alpha, beta: g.Swish(x, alpha=1.0),
    "swish": lambda g, x, alpha, beta: g.Swish(x, alpha=alpha),
    "tanh": lambda g, x, alpha, beta: g.Tanh(x),
    "sigmoid": lambda g, x, alpha, beta: g.Sigmoid(x),
    "softplus": lambda g, x, alpha, beta: g.Softplus(x),
    "mish": lambda g, x, alpha, beta: g.Mish(x),
    "hard_sigmoid": lambda g, x, alpha, beta: g.HardSigmoid(x, alpha=alpha, beta=beta),
    "hard_swish": lambda g, x, alpha, beta: g.HardSwish(x),
    "affine_hard_swish": lambda g, x, alpha, beta: g.Add(g.Mul(g.HardSwish(x), alpha), beta),
    "clip": lambda g, x, alpha, beta: g.Clip(x, alpha, beta),
    "leaky_relu": lambda g, x, alpha, beta: g.LeakyRelu(x, alpha=alpha),
    "elu": lambda g, x, alpha, beta: g.Elu(x, alpha=alpha),
    "softcap": lambda g, x, alpha, beta: Softcap.decompose(g, x, alpha),
    "squared_relu": lambda g, x, alpha, beta: SquaredRelu.decompose(g, x),
}

# The op types of the ops with one input among them.
ACTIVATION_OPS = (
    *("Relu", "Gelu", "Swish", "Tanh", "Sigmoid", "Softplus", "Mish", "HardSigmoid", "HardSwish"),
    *("LeakyRelu", "Elu", "q7::Softcap", "q7::SquaredRelu"),
)


def activation_of(node: Node) -> Optional[Activation]:
    """What a node is in the closed set `act`, if anything."""
    entry = find(node.op)
    return entry.activation(node) if hasattr(entry, "activation") else None


def lower_activation(node: Node, b: Any) -> None:
    x, act = node.inputs[0], activation_of(node)
    require_dtype(node, x.dtype, FLOATS)
    unary_step(b, act.name, x, node.output, act.alpha, act.beta)


# Numpy functions that are exact to the last bits of whatever dtype they are given

erfc = each(math.erfc)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def gelu(x: np.ndarray) -> np.ndarray:
    """x * Phi(x); erfc keeps the digits that 1 + erf loses for negative x."""
    return x * (erfc(-x * math.sqrt(0.5)) * 0.5)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))


@op("Tanh")
class Tanh:
    """y = tanh x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.tanh(x)
    activation = lambda node: Activation("tanh")
    lower = lower_activation


@op("Sigmoid")
class Sigmoid:
    """y = 1 / (1 + exp(-x))."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: sigmoid(x)
    activation = lambda node: Activation("sigmoid")
    lower = lower_activation


@op("Relu")
class Relu:
    """y = max(x, 0)."""

    signature = "x: N -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.maximum(x, x.dtype.type(0))
    activation = lambda node: Activation("relu")

    def lower(node: Node, b: Any) -> None:
        require_dtype(node, node.inputs[0].dtype, NUMERIC)
        unary_step(b, "relu", node.inputs[0], node.output)


@op("Gelu")
class Gelu:
    """y = x * Phi(x), Phi by erf or (approximate = tanh) by tanh."""

    signature = "x: F -> y"
    attributes = {"approximate": "none"}
    choices = {"approximate": ("none", "tanh")}
    infer = infer_same

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        return gelu_tanh(x) if node.attrs["approximate"] == "tanh" else gelu(x)

    activation = lambda node: Activation(
        "gelu_tanh" if node.attrs["approximate"] == "tanh" else "gelu"
    )
    lower = lower_activation


@op("Softplus")
class Softplus:
    """y = ln(1 + e^x)."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.logaddexp(x, x.dtype.type(0))
    activation = lambda node: Activation("softplus")
    lower = lower_activation


@op("Clip")
class Clip:
    """y = min(max(x, low), high): high wins where they cross."""

    signature = "x: N, low?: N, high?: N -> y"
    attributes: dict = {}
    infer = infer_same
    guards = lambda node: size_guards(node.inputs[1:], 1)

    def reference(
        node: Node,
        x: np.ndarray,
        low: Optional[np.ndarray] = None,
        high: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        y = x if low is None else np.maximum(x, low)
        return y if high is None else np.minimum(y, high)

    def activation(node: Node) -> Optional[Activation]:
        bounds = node.input(1), node.input(2)
        if any(bound is not None and constant_scalar(bound) is None for bound in bounds):
            return None
        low, high = map(constant_scalar, bounds)
        if any(bound is not None and math.isnan(bound) for bound in (low, high)):
            return None  # whose result is NaN, as that of one that is fed
        return Activation(
            "clip", -math.inf if low is None else low, math.inf if high is None else high
        )

    def lower(node: Node, b: Any) -> None:
        x, low, high = node.inputs[0], node.input(1), node.input(2)
        if x.dtype in FLOATS and activation_of(node) is not None:
            lower_activation(node, b)
            return
        require_dtype(node, x.dtype, NUMERIC)
        if low is None and high is None:
            b.alias(node.output, b.view(x))
            return
        if low is not None:
            raised = node.output if high is None else temporary(b, x.dtype, x.shape)
            binary_step(b, "max", x, low, raised)
            x = raised
        if high is not None:
            binary_step(b, "min", x, high, node.output)


@op("LeakyRelu")
class LeakyRelu:
    """y = x where x >= 0, else alpha * x."""

    signature = "x: F -> y"
    attributes = {"alpha": 0.01}
    infer = infer_same
    reference = lambda node, x: np.where(x < 0, x * node.attrs["alpha"], x)
    activation = lambda node: Activation("leaky_relu", node.attrs["alpha"])
    lower = lower_activation


@op("Elu")
class Elu:
    """y = x where x >= 0, else alpha * (e^x - 1)."""

    signature = "x: F -> y"
    attributes = {"alpha": 1.0}
    infer = infer_same
    reference = lambda node, x: np.where(x < 0, np.expm1(x) * node.attrs["alpha"], x)
    activation = lambda node: Activation("elu", node.attrs["alpha"])
    lower = lower_activation


@op("HardSigmoid")
class HardSigmoid:
    """y = clip(alpha * x + beta, 0, 1)."""

    signature = "x: F -> y"
    attributes = {"alpha": 0.2, "beta": 0.5}
    infer = infer_same
    reference = lambda node, x: np.clip(x * node.attrs["alpha"] + node.attrs["beta"], 0, 1)
    activation = lambda node: Activation("hard_sigmoid", node.attrs["alpha"], node.attrs["beta"])
    lower = lower_activation


@op("HardSwish")
class HardSwish:
    """y = x * clip(x / 6 + 1 / 2, 0, 1)."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: x * np.clip(x / 6 + 0.5, 0, 1)
    activation = lambda node: Activation("hard_swish")
    lower = lower_activation


@op("Swish")
class Swish:
    """y = x * sigmoid(alpha * x); SiLU where alpha is 1."""

    signature = "x: F -> y"
    attributes = {"alpha": 1.0}
    infer = infer_same
    reference = lambda node, x: x * sigmoid(x * node.attrs["alpha"])

    def activation(node: Node) -> Activation:
        alpha = node.attrs["alpha"]
        return Activation("silu") if alpha == 1.0 else Activation("swish", alpha)

    lower = lower_activation


@op("Mish")
class Mish:
    """y = x * tanh(ln(1 + e^x))."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: x * np.tanh(np.logaddexp(x, x.dtype.type(0)))
    activation = lambda node: Activation("mish")
    lower = lower_activation


@op("Selu")
class Selu:
    """y = gamma * (x where x >= 0, else alpha * (e^x - 1)).

    Source: Klambauer et al. 2017, "Self-Normalizing Neural Networks".
    """

    signature = "x: F -> y"
    attributes = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}
    infer = infer_same

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, np.expm1(x) * node.attrs["alpha"], x) * node.attrs["gamma"]

    lower = unary("selu", FLOATS, "alpha", "gamma")


@op("Celu")
class Celu:
    """y = x where x >= 0, else alpha * (e^(x / alpha) - 1)."""

    signature = "x: F -> y"
    attributes = {"alpha": 1.0}
    infer = infer_same

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        alpha = node.attrs["alpha"]
        return np.where(x < 0, np.expm1(x / alpha) * alpha, x)

    lower = unary("celu", FLOATS, "alpha")


@op("Softsign")
class Softsign:
    """y = x / (1 + |x|)."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same

    reference = lambda node, x: x / (1 + np.abs(x))
    lower = unary("softsign")


@op("ThresholdedRelu")
class ThresholdedRelu:
    """y = x where x > alpha, else 0."""

    signature = "x: F -> y"
    attributes = {"alpha": 1.0}
    infer = infer_same
    reference = lambda node, x: np.where(x > node.attrs["alpha"], x, x.dtype.type(0))
    lower = unary("thresholded_relu", FLOATS, "alpha")


@op("Shrink")
class Shrink:
    """y = x + bias where x < -lambd, x - bias where x > lambd, else 0."""

    signature = "x: N -> y"
    attributes = {"bias": 0.0, "lambd": 0.5}
    infer = infer_same

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        bias, threshold = node.attrs["bias"], node.attrs["lambd"]
        low, high = x < -threshold, x > threshold
        return np.where(low, x + bias, np.where(high, x - bias, 0.0)).astype(x.dtype)

    lower = unary("shrink", NUMERIC, "lambd", "bias")


@op("PRelu")
class PRelu:
    """y = x where x >= 0, else slope * x; the slope repeats to the shape of x."""

    signature = "x: N, slope: N -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x, slope: np.where(x < 0, x * slope, x)

    def guards(node: Node) -> list[Guard]:
        return fit_guards(node.inputs[1:], node.inputs[0].shape)

    def lower(node: Node, b: Any) -> None:
        require_dtype(node, node.inputs[0].dtype, NUMERIC)
        binary_step(b, "prelu", *node.inputs, node.output)


@op("q7::Softcap")
class Softcap:
    """y = cap * tanh(x / cap): x, kept within (-cap, cap).

    Source: Gemma Team 2024, "Gemma 2", section 2.
    """

    signature = "x -> y"
    attributes = {"cap": 1.0}
    infer = infer_same

    def decompose(g: Any, x: Value, cap: float) -> Value:
        return g.Mul(g.Tanh(g.Div(x, cap)), cap)

    activation = lambda node: Activation("softcap", node.attrs["cap"])
    lower = lower_activation


@op("q7::SquaredRelu")
class SquaredRelu:
    """y = max(x, 0)^2.

    Source: So et al. 2021, "Primer".
    """

    signature = "x -> y"
    attributes: dict = {}
    infer = infer_same

    def decompose(g: Any, x: Value) -> Value:
        positive = g.Relu(x)
        return g.Mul(positive, positive)

    activation = lambda node: Activation("squared_relu")
    lower = lower_activation
