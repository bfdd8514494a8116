"""Integer tensors that are affine in their indices: what Range, Reshape, Expand and sums make.

Element (i0, i1, ..) of an Affine is offset + step0 * i0 + step1 * i1 + .., with symbolic offset and
steps: positions, and what is compared with them to build a mask.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops.common import RESHAPES
from q7x2_ep.ops.movement import slices, unknown_slices

COMPARISONS = {  # op: (whether a and b are swapped to say a >= b + margin, margin)
    "GreaterOrEqual": (False, 0),
    "Greater": (False, 1),
    "LessOrEqual": (True, 0),
    "Less": (True, 1),
}


class Affine(NamedTuple):
    """The element at (i0, i1, ..) is offset + sum(steps[d] * i_d)."""

    offset: Dim
    steps: tuple[Dim, ...]


Known = dict[Value, Optional[Affine]]


def affine(value: Value, known: Known) -> Optional[Affine]:
    """What the elements of an integer tensor are, or None. known: answers given before."""
    if value not in known:
        known[value] = _affine(value, known)
    return known[value]


def _affine(value: Value, known: Known) -> Optional[Affine]:
    if value.shape is None or value.dtype not in (dtypes.INT32, dtypes.INT64):
        return None  # others may wrap around
    if value.elements is not None and len(value.elements) == 1:
        return Affine(value.elements[0], (0,) * len(value.shape))
    if value.const is not None:
        return _counted(value.const)
    node = value.producer
    if node is None:
        return None
    if node.op == "Range":
        start, _, delta = node.inputs
        if start.elements is None or delta.elements is None:
            return None
        return Affine(start.elements[0], (delta.elements[0],))
    if node.op == "Cast":
        return affine(node.inputs[0], known)
    if node.op == "Slice":
        return _sliced(affine(node.inputs[0], known), node)
    if node.op in RESHAPES:
        return reshaped(affine(node.inputs[0], known), node.inputs[0].shape, value.shape)
    if node.op == "Expand":
        return expanded(node.inputs[0], value.shape, known)
    if node.op in ("Add", "Sub", "Mul"):
        a, b = (expanded(operand, value.shape, known) for operand in node.inputs)
        return None if a is None or b is None else combined(node.op, a, b)
    return None


def coordinates(indices: Value, known: Known) -> Optional[list[Affine]]:
    """What each entry of the last axis of some indices is, over the axes before it."""
    shape, node = indices.shape, indices.producer
    if not shape or not isinstance(shape[-1], int):
        return None
    found: list[Optional[Affine]] = []
    if indices.const is not None:
        found = [_counted(indices.const[..., i]) for i in range(shape[-1])]
    elif node is not None and node.op == "Concat" and node.attrs["axis"] in (-1, len(shape) - 1):
        parts = [part for part in node.inputs if part.shape == (*shape[:-1], 1)]
        if len(parts) == shape[-1]:
            found = [affine(part, known) for part in parts]
    whole = [Affine(each.offset, each.steps[: len(shape) - 1]) for each in found if each]
    return whole if len(whole) == shape[-1] else None


def _counted(array: np.ndarray) -> Optional[Affine]:
    """The elements of a constant, if they go up by the same step all along each axis."""
    if not array.size:
        return None
    first, steps = array[(0,) * array.ndim], []
    wanted = np.zeros(array.shape, np.int64) + int(first)
    for axis, dim in enumerate(array.shape):
        step = (
            int(array[tuple(int(i == axis) for i in range(array.ndim))] - first) if dim > 1 else 0
        )
        steps.append(step)
        wanted += np.arange(dim).reshape([-1 if i == axis else 1 for i in range(array.ndim)]) * step
    return Affine(int(first), tuple(steps)) if (array == wanted).all() else None


def _sliced(x: Optional[Affine], node: Node) -> Optional[Affine]:
    if x is None or unknown_slices(node) is not None:
        return None
    offset, steps = x.offset, list(x.steps)
    for axis, start, _, step in slices(node):
        offset = offset + start * steps[axis]
        steps[axis] = steps[axis] * step
    return Affine(offset, tuple(steps))


def reshaped(x: Optional[Affine], shape: tuple, target: tuple) -> Optional[Affine]:
    """Dims of 1 come and go; the others stay."""
    if x is None or [d for d in shape if d != 1] != [d for d in target if d != 1]:
        return None
    steps = iter([step for dim, step in zip(shape, x.steps) if dim != 1])
    return Affine(x.offset, tuple(0 if dim == 1 else next(steps) for dim in target))


def expanded(value: Value, target: tuple, known: Known) -> Optional[Affine]:
    x = affine(value, known)
    if x is None:
        return None
    steps: list[Dim] = [0] * (len(target) - len(value.shape))
    for dim, step, wanted in zip(value.shape, x.steps, target[len(steps) :]):
        if dim not in (1, wanted):
            return None
        steps.append(0 if dim == 1 else step)
    return Affine(x.offset, tuple(steps))


def combined(op: str, a: Affine, b: Affine) -> Optional[Affine]:
    if op == "Mul":
        if any(step != 0 for step in a.steps):
            a, b = b, a
        if any(step != 0 for step in a.steps):
            return None
        return Affine(a.offset * b.offset, tuple(a.offset * step for step in b.steps))
    sign = 1 if op == "Add" else -1
    steps = tuple(x + sign * y for x, y in zip(a.steps, b.steps))
    return Affine(a.offset + sign * b.offset, steps)


def band(array: np.ndarray) -> Optional[tuple[int, int]]:
    """(low, high) where a bool matrix is true just at low <= column - row <= high; None where it is
    no such band. A bound beyond the corners says that there is none on that side.
    """
    rows, cols = array.shape
    if not array[0].any() or not array[-1].any():
        return None
    high = int(np.flatnonzero(array[0])[-1])
    low = int(np.flatnonzero(array[-1])[0]) - (rows - 1)
    ahead = np.arange(cols) - np.arange(rows)[:, None]
    return (low, high) if (array == ((low <= ahead) & (ahead <= high))).all() else None
