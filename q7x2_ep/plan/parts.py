"""What a plan is made of, and the phases of a graph; build.py and partition.py make them.

A compiled file holds these, so that opening one imports no more than this of what plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep.dtypes import FLOAT, from_numpy
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops.lazy import Joined, Scaled, Widened
from q7x2_ep.plan.memory import Storage
from q7x2_ep.plan.schedule import Access, peak, storage_sizes
from q7x2_ep.plan.target import KernelRow

CONTENTS = "q7::Contents"  # the op of a host step that tells the numbers in its input


def told_by(contents: Node) -> dict[str, int]:
    """The names of the sizes that it tells, and where in its input they are."""
    elements = enumerate(contents.output.elements or ())
    return {repr(each): i for i, each in elements if not isinstance(each, int)}


class Operand(NamedTuple):
    """Where a step finds one operand. Units: bytes. size: None where it may be anywhere in the
    storage. dtype: of a packed weight.
    """

    storage: Storage
    offset: Dim = 0
    size: Optional[Dim] = None
    dtype: int = FLOAT


class Step(NamedTuple):
    """One call of a C driver. fields: I64 and F64 args by name, symbolic where they depend on a
    shape.
    """

    op: str
    kernel: Optional[KernelRow]
    operands: dict[str, Optional[Operand]]
    fields: dict[str, Any]
    name: str
    sources: tuple[str, ...]


class Guard(NamedTuple):
    """A fact about shapes that only bind can check: left == right (or left >= right). text names
    the node. is_assumed: feeds may break it, see Request.regular.
    """

    left: Dim
    right: Dim
    text: str
    kind: str = "eq"
    is_assumed: bool = False


class Pack(NamedTuple):
    """A constant to be packed at load: b[(t, i), j] at t * tap_stride + i * k_stride + j *
    n_stride, into panels of nr columns at `offset` bytes, `width` columns to each from its column
    `first` on. matrix: which one, of a weight of `matrices` of them, or of parts. dtype: of the
    panels. column: of the matrix, which is column 0 of b.
    """

    weight: Value
    matrix: int
    matrices: int
    nr: int
    k: int
    n: int
    k_stride: int
    n_stride: int
    offset: int
    width: int
    first: int
    taps: int
    tap_stride: int
    dtype: int = FLOAT
    column: int = 0

    @property
    def array(self) -> Any:
        """The matrix to be packed, before it is scaled; one that panels hold in the 16 bits that it
        has lies there as it is.
        """
        const = _unscaled(self.weight)
        if isinstance(const, Joined):
            const = const.parts[self.matrix]
        if const.ndim == 2 and self.matrices == 1:
            is_same = isinstance(const, Widened) and from_numpy(const.halves.dtype) == self.dtype
            return const.halves if is_same else const
        if const.ndim == 3 and self.matrices == const.shape[0]:
            return const[self.matrix]
        return const.reshape(self.matrices, -1)[self.matrix]

    @property
    def factors(self) -> Optional[np.ndarray]:
        """Of the columns, if they are scaled."""
        return _factors(self)


class WinogradPack(NamedTuple):
    """Kernels (n, channels, planes, kh, kw) of a group, `matrix` of `matrices`, to be transformed
    as csrc/kernels/winograd.h has them, and packed at load into panels of nr columns at `offset`
    bytes.
    """

    weight: Value
    matrix: int
    matrices: int
    nr: int
    n: int
    channels: int
    planes: int
    kh: int
    kw: int
    stride: int
    offset: int

    @property
    def array(self) -> Any:
        """The kernels of the group, before they are scaled."""
        return _unscaled(self.weight).reshape(self.matrices, -1)[self.matrix]

    @property
    def factors(self) -> Optional[np.ndarray]:
        """Of the kernels, if they are scaled."""
        return _factors(self)


AnyPack = Union[Pack, WinogradPack]


def _unscaled(weight: Value) -> Any:
    return weight.const.kernels if isinstance(weight.const, Scaled) else weight.const


def _factors(pack: AnyPack) -> Optional[np.ndarray]:
    const = pack.weight.const
    if not isinstance(const, Scaled):
        return None
    return const.factors.reshape(pack.matrices, -1)[pack.matrix]


@dataclass(eq=False)
class Plan:
    """Everything that a run needs, without an address in it.

    constants[0] stands for the packed weights (packed_bytes); the others are constants of the
    graph, in place.
    """

    graph: Graph
    steps: list[Step] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    constants: list[Optional[Value]] = field(default_factory=lambda: [None])
    packs: list[AnyPack] = field(default_factory=list)
    packed_bytes: int = 0
    guards: list[Guard] = field(default_factory=list)
    accesses: list[list[Access]] = field(default_factory=list)  # of the model's order of steps
    order: list[int] = field(default_factory=list)  # the steps of `accesses` as they are run

    def arena(self) -> list[Storage]:
        """The storages that own memory in the arena."""
        return [
            s for s in self.storages if s.space == "arena" and s.parent is None and s.first >= 0
        ]

    def peaks(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Bytes alive at once in the model's order of steps, and in that of the plan, before
        anything shares memory. sizes: the values of all symbols, and of THREADS.
        """
        of = storage_sizes(self.accesses, sizes)
        given = range(len(self.accesses))
        return peak(self.accesses, given, of), peak(self.accesses, self.order, of)


class NativePhase(NamedTuple):
    """One C call: a plan whose graph has as inputs and outputs what passes between phases. sizes:
    the symbols that are bound by then.
    """

    plan: Plan
    sizes: tuple[str, ...]


class HostPhase(NamedTuple):
    """One node that Python runs, and why.

    within: a native form, where the op knows how large its output can be. It gives a vector with
    room for that, and how many elements the one size took that only data tells. The output is the
    front of the vector.
    """

    node: Node
    reason: str
    within: Optional[NativePhase] = None


Phase = Union[NativePhase, HostPhase]


def is_data(value: Value) -> bool:
    """Whether a value is made by a run: no constant, and nothing that sizes alone tell."""
    return value.const is None and (value.producer is not None or value.elements is None)
