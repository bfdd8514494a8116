"""Comparisons, their combinations, and the choice by them. Read elementwise.py first."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ir.shape import Dim, at_least
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    broadcast_guards,
    broadcast_inputs,
    fold,
    known,
    typed,
    where_step,
)
from q7x2_ep.ops.elementwise import binary, infer_binary, infer_unary, unary

# Contents


def equal(a: Dim, b: Dim) -> Optional[bool]:
    if a == b:
        return True
    return False if at_least(a - b, 1) or at_least(b - a, 1) else None


def less(a: Dim, b: Dim) -> Optional[bool]:
    if at_least(b - a, 1):
        return True
    return False if at_least(a - b, 0) else None


def less_equal(a: Dim, b: Dim) -> Optional[bool]:
    if at_least(b - a, 0):
        return True
    return False if at_least(a - b, 1) else None


def select(condition: Dim, a: Dim, b: Dim) -> Optional[Dim]:
    return a if a == b or condition is True or condition == 1 else b


# Ops


@op("Not")
class Not:
    """y = not x, for bool."""

    signature = "x: bool -> y"
    attributes: dict = {}
    infer = infer_unary(lambda a: not a)
    reference = lambda node, x: np.logical_not(x)
    lower = unary("not", (dtypes.BOOL,))


@op("Equal")
class Equal:
    """y = (a == b), with broadcasting."""

    signature = "a: T, b: T -> y"
    attributes: dict = {}
    infer = infer_binary(equal, dtypes.BOOL)
    guards = broadcast_guards
    reference = lambda node, a, b: np.equal(a, b)
    lower = binary("equal")


@op("Less")
class Less:
    """y = (a < b), with broadcasting."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}
    infer = infer_binary(less, dtypes.BOOL)
    guards = broadcast_guards
    reference = lambda node, a, b: np.less(a, b)
    lower = binary("less")


@op("LessOrEqual")
class LessOrEqual:
    """y = (a <= b), with broadcasting."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}
    infer = infer_binary(less_equal, dtypes.BOOL)
    guards = broadcast_guards
    reference = lambda node, a, b: np.less_equal(a, b)
    lower = binary("less_equal")


@op("Greater")
class Greater:
    """y = (a > b), with broadcasting."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: less(b, a), dtypes.BOOL)
    guards = broadcast_guards
    reference = lambda node, a, b: np.greater(a, b)
    lower = binary("greater")


@op("GreaterOrEqual")
class GreaterOrEqual:
    """y = (a >= b), with broadcasting."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: less_equal(b, a), dtypes.BOOL)
    guards = broadcast_guards
    reference = lambda node, a, b: np.greater_equal(a, b)
    lower = binary("greater_equal")


@op("And")
class And:
    """y = a and b, with broadcasting, for bool."""

    signature = "a: bool, b: bool -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: bool(a and b), dtypes.BOOL)
    guards = broadcast_guards
    reference = lambda node, a, b: np.logical_and(a, b)
    lower = binary("and", (dtypes.BOOL,))


@op("Or")
class Or:
    """y = a or b, with broadcasting, for bool."""

    signature = "a: bool, b: bool -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: bool(a or b), dtypes.BOOL)
    guards = broadcast_guards
    reference = lambda node, a, b: np.logical_or(a, b)
    lower = binary("or", (dtypes.BOOL,))


@op("Xor")
class Xor:
    """y = a differs from b, with broadcasting, for bool."""

    signature = "a: bool, b: bool -> y"
    attributes: dict = {}
    infer = infer_binary(lambda a, b: bool(a) != bool(b), dtypes.BOOL)
    guards = broadcast_guards
    reference = lambda node, a, b: np.logical_xor(a, b)
    lower = binary("xor", (dtypes.BOOL,))


@op("Where")
class Where:
    """y = a where the condition holds, else b, with broadcasting."""

    signature = "condition: bool, a: T, b: T -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        elements = fold(select, *(known(value) for value in node.inputs))
        return [typed(node.inputs[1].dtype, broadcast_inputs(node), elements)]

    guards = broadcast_guards
    reference = lambda node, condition, a, b: np.where(condition, a, b)

    def lower(node: Node, b: Any) -> None:
        where_step(b, *node.inputs, node.output)
