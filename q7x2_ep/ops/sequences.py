"""Lists of tensors. Python holds them; what is in a list is never changed in place."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.ir.core import NO_TENSOR, UNKNOWN, Node, Type
from q7x2_ep.ops import op
from q7x2_ep.ops.common import normal_axis, where_is


def _of_list(type: Type) -> Callable[[Node], list[Type]]:
    """The result of an op whose first input is a list. Raises: ModelError where it is none."""

    def infer(node: Node) -> list[Type]:
        given = node.inputs[0]
        if given.dtype not in (dtypes.UNKNOWN, dtypes.NO_TENSOR):
            raise ModelError(f"{where_is(node)} {given!r} is a tensor, wanted a sequence")
        return [type]

    return infer


def _place(node: Node, at: np.ndarray, size: int) -> int:
    """A position counted from the front. Raises: DataError where there is none."""
    i = int(at.item())
    if not -size <= i < size:
        raise DataError(f"{where_is(node)} position {i} of a sequence of {size}")
    return i % size


@op("SequenceEmpty")
class SequenceEmpty:
    """A list of nothing."""

    signature = " -> sequence"
    attributes = {"dtype": None}
    infer = lambda node: [NO_TENSOR]
    reference = lambda node: ([],)


@op("SequenceConstruct")
class SequenceConstruct:
    """The inputs as a list."""

    signature = "inputs*: T -> sequence"
    attributes: dict = {}
    infer = lambda node: [NO_TENSOR]
    reference = lambda node, *inputs: ([*inputs],)


@op("SequenceInsert")
class SequenceInsert:
    """The list with a tensor before a position, or at the end."""

    signature = "sequence, tensor, position?: index -> sequence"
    attributes: dict = {}
    infer = _of_list(NO_TENSOR)

    def reference(
        node: Node, sequence: list, tensor: np.ndarray, position: Optional[np.ndarray] = None
    ) -> tuple[list]:
        size = len(sequence)
        if position is None or position.item() == size:
            return ([*sequence, tensor],)
        i = _place(node, position, size)
        return ([*sequence[:i], tensor, *sequence[i:]],)


@op("SequenceErase")
class SequenceErase:
    """The list without the tensor at a position, or the last."""

    signature = "sequence, position?: index -> sequence"
    attributes: dict = {}
    infer = _of_list(NO_TENSOR)

    def reference(node: Node, sequence: list, position: Optional[np.ndarray] = None) -> tuple[list]:
        i = _place(node, np.array(-1) if position is None else position, len(sequence))
        return ([*sequence[:i], *sequence[i + 1 :]],)


@op("SequenceAt")
class SequenceAt:
    """The tensor at a position: a view, since the list keeps its own."""

    signature = "sequence, position: index -> tensor"
    attributes: dict = {}
    infer = _of_list(UNKNOWN)

    def reference(node: Node, sequence: list, position: np.ndarray) -> np.ndarray:
        found: np.ndarray = sequence[_place(node, position, len(sequence))][...]
        return found


@op("SequenceLength")
class SequenceLength:
    """How many tensors are in the list."""

    signature = "sequence -> length"
    attributes: dict = {}
    infer = _of_list(Type(dtypes.INT64, ()))
    reference = lambda node, sequence: np.array(len(sequence), np.int64)


@op("ConcatFromSequence")
class ConcatFromSequence:
    """The tensors of a list along an axis, or with new_axis along one of their own."""

    signature = "sequence -> y"
    attributes: dict[str, Any] = {"axis": None, "new_axis": 0}
    infer = _of_list(UNKNOWN)

    def reference(node: Node, sequence: list) -> np.ndarray:
        join = np.stack if node.attrs["new_axis"] else np.concatenate
        return join(sequence, axis=node.attrs["axis"])


@op("SplitToSequence")
class SplitToSequence:
    """The parts of x along an axis, as a list: of `split` elements each, but for the last, or of as
    many as each of `split` says; without it of one, whose dim goes where keepdims is 0.
    """

    signature = "x, split?: index -> sequence"
    attributes = {"axis": 0, "keepdims": 1}
    infer = lambda node: [NO_TENSOR]

    def reference(
        node: Node, x: np.ndarray, split: Optional[np.ndarray] = None
    ) -> tuple[list[np.ndarray]]:
        axis = normal_axis(node, node.attrs["axis"], x.ndim)
        n, given = x.shape[axis], np.array(1) if split is None else split
        if given.ndim:
            sizes = given.tolist()
        else:
            size = max(int(given), 0)
            sizes = [min(size, n - first) for first in range(0, n, size or n + 1)]
        if sum(sizes) != n or min(sizes, default=0) < 0:
            raise DataError(f"{where_is(node)} parts of {given.tolist()} for a dim of {n}")
        parts = np.split(x, np.cumsum(sizes)[:-1], axis) if sizes else []
        if split is None and not node.attrs["keepdims"]:
            parts = [part.squeeze(axis) for part in parts]
        return (parts,)
