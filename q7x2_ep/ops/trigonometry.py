"""The trigonometric and hyperbolic functions, and their inverses."""

from __future__ import annotations

import numpy as np

from q7x2_ep.ops import op
from q7x2_ep.ops.common import infer_same
from q7x2_ep.ops.elementwise import unary


@op("Sin")
class Sin:
    """y = sin x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.sin(x)
    lower = unary("sin")


@op("Cos")
class Cos:
    """y = cos x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.cos(x)
    lower = unary("cos")


@op("Tan")
class Tan:
    """y = tan x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.tan(x)
    lower = unary("tan")


@op("Asin")
class Asin:
    """y = the angle in [-pi / 2, pi / 2] whose sine is x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.arcsin(x)
    lower = unary("asin")


@op("Acos")
class Acos:
    """y = the angle in [0, pi] whose cosine is x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.arccos(x)
    lower = unary("acos")


@op("Atan")
class Atan:
    """y = the angle in (-pi / 2, pi / 2) whose tangent is x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.arctan(x)
    lower = unary("atan")


@op("Sinh")
class Sinh:
    """y = (e^x - e^-x) / 2."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.sinh(x)
    lower = unary("sinh")


@op("Cosh")
class Cosh:
    """y = (e^x + e^-x) / 2."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.cosh(x)
    lower = unary("cosh")


@op("Asinh")
class Asinh:
    """y = the number whose sinh is x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.arcsinh(x)
    lower = unary("asinh")


@op("Acosh")
class Acosh:
    """y = the number >= 0 whose cosh is x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.arccosh(x)
    lower = unary("acosh")


@op("Atanh")
class Atanh:
    """y = the number whose tanh is x."""

    signature = "x: F -> y"
    attributes: dict = {}
    infer = infer_same
    reference = lambda node, x: np.arctanh(x)
    lower = unary("atanh")
