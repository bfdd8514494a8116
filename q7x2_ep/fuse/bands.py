"""Masks that follow from positions alone: causal bounds and windows.

A condition on scores (.., Sq, Skv) is a conjunction of clauses. A clause that compares positions,
j - i <= at or j - i >= at for query i and key j, is a Bound; it is found in comparisons of tensors
that are affine in their indices, in Trilu, and in constants.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

from q7x2_ep.dtypes import BOOL
from q7x2_ep.fuse.views import uniform
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.shape import Dim, at_least, maximum, minimum, without_leading_ones
from q7x2_ep.ops.affine import COMPARISONS, band, combined, expanded
from q7x2_ep.ops.common import RESHAPES

Clause = tuple[Value, bool]  # a condition, and whether it must hold or must not


class Bound(NamedTuple):
    """j - i <= at, or, where it is the lower one, j - i >= at."""

    at: Dim
    lower: bool = False


class Band(NamedTuple):
    """Query i is at position i + offset; it sees keys from `left` positions before its own (-1:
    all) up to its own (causal) or all.
    """

    offset: Dim
    left: int
    causal: bool


def clauses(condition: Value, holds: bool = True) -> list[Clause]:
    """Bool values that all have to hold, or not to hold; they broadcast to the condition."""
    node = condition.producer
    if node is not None and node.op == ("And" if holds else "Or"):
        return [clause for operand in node.inputs for clause in clauses(operand, holds)]
    if node is not None and node.op == "Not":
        return clauses(node.inputs[0], not holds)
    if node is not None and (node.op == "Expand" or _only_leads(node)):
        return clauses(node.inputs[0], holds)
    return [(condition, holds)]


def _only_leads(node: Node) -> bool:
    """Whether a view adds or removes leading dims of 1 only."""
    if node.op not in RESHAPES or node.inputs[0].shape is None or node.output.shape is None:
        return False
    return _trimmed(node.inputs[0].shape) == _trimmed(node.output.shape)


def _trimmed(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape without leading dims of 1, but with two dims at least."""
    return (1,) * (2 - len(shape)) + without_leading_ones(shape, keep=2)


def bounds(clause: Clause, queries: Dim, keys: Dim) -> list[Bound]:
    """What the clause says about positions, if that is all that it says; else nothing."""
    value, holds = clause
    node = value.producer
    while node is not None:  # numbers count as true where they are not 0
        zero = [x for x in node.inputs if node.op == "Equal" and uniform(x) == 0.0]
        if zero:
            value, holds = next(x for x in node.inputs if x is not zero[0]), not holds
        elif (node.op == "Cast" and node.output.dtype == BOOL) or _only_leads(node):
            value = node.inputs[0]
        else:
            break
        node = value.producer
    if value.shape is None or _trimmed(value.shape) != (queries, keys):
        return []
    if value.const is not None:
        return _constant(value, holds)
    if node is not None and node.op == "Trilu":
        return _triangle(node, holds)
    return [] if node is None or node.op not in COMPARISONS else _comparison(node, holds)


def _constant(value: Value, holds: bool) -> list[Bound]:
    rows, cols = value.const.shape[-2:]
    found = band((value.const.reshape(rows, cols) != 0) == holds)
    if found is None:
        return []
    low, high = found
    upper = [Bound(high)] if high < cols - 1 else []
    return upper + ([Bound(low, lower=True)] if low > 1 - rows else [])


def _triangle(node: Node, holds: bool) -> list[Bound]:
    full, k = node.inputs[0], node.input(1)
    diagonal = (0,) if k is None else k.elements
    if not uniform(full) or diagonal is None:  # None: not uniform; 0: all zero
        return []
    (at,) = diagonal
    if node.attrs["upper"]:
        return [Bound(at, lower=True) if holds else Bound(at - 1)]
    return [Bound(at) if holds else Bound(at + 1, lower=True)]


def _comparison(node: Node, holds: bool) -> list[Bound]:
    """a >= b + margin, as a - b - margin >= 0."""
    shape = node.output.shape
    a, b = (expanded(value, shape, {}) for value in node.inputs)
    swapped, margin = COMPARISONS[node.op]
    if a is None or b is None:
        return []
    if swapped == holds:  # the other way round, or its opposite
        a, b = b, a
    ahead = combined("Sub", a, b)
    at = ahead.offset - (margin if holds else 1 - margin)
    if ahead.steps[-2:] == (1, -1):
        return [Bound(at)]
    return [Bound(-at, lower=True)] if ahead.steps[-2:] == (-1, 1) else []


def joined(found: Sequence[Bound], queries: Dim, keys: Dim) -> Optional[Band]:
    """The band between all bounds, where attention has attributes for it."""
    highs, lows = ([b.at for b in found if b.lower is lower] for lower in (False, True))
    high, low = _tightest(highs, minimum), _tightest(lows, maximum)
    if high not in (*highs, None) or low not in (*lows, None):
        return None  # which one is tighter depends on the sizes
    if low is None:
        return None if high is None else Band(high, -1, True)
    offset = keys - queries if high is None else high
    left = offset - low
    if high is None and not isinstance(left, int):
        offset, left = low, 0
    known = isinstance(left, int) and left >= 0
    return Band(offset, left, high is not None) if known else None


def _tightest(at: Sequence[Dim], choose: Callable[[Dim, Dim], Dim]) -> Optional[Dim]:
    return functools.reduce(choose, at) if at else None


def is_never_empty(band: Band, queries: Dim, keys: Dim) -> bool:
    """Whether every query sees a key, if there is any."""
    first_sees = not band.causal or at_least(band.offset, 0)
    last_position = queries - 1 + band.offset
    return first_sees and (band.left < 0 or at_least(keys - 1 - last_position + band.left, 0))
