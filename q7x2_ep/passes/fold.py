"""Constant folding, and the folding of shape arithmetic.

Walks the nodes once, inferring types on the way, so that what folds early informs what comes later.
A value whose elements are all known becomes a constant, or, where they hold symbols, a value with
nothing but elements: the Shape/Gather/Concat chain behind it loses its last user. A node with
constant inputs is evaluated by its reference, and an If with a known condition gives way to the
branch that it takes.

A node that cannot be compiled before a run, because the rank of an input is unknown, moves into a
q7::Deferred, with all that depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.dtypes import INT32, INT64
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Value, array_type
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops import find
from q7x2_ep.ops.common import is_host, known
from q7x2_ep.ops.lazy import Lazy
from q7x2_ep.passes.infer import infer_again, waits

MAX_GROWTH_BYTES = 1 << 20  # a result may be this large where its inputs are smaller
MAX_PASSING_BYTES = 1 << 26  # and this large where it is computed for results that are kept
GATHERED = 4  # times its inputs: relative positions, an index of 8 bytes to each element of a head
PACKED = {  # inputs that are packed at load
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), (1,)),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (1, 2)),
}


def run(graph: Graph) -> dict[str, int]:
    """Counts the nodes replaced by constants and by symbolic elements, and sizes that became known.

    Raises: ModelError as infer does.
    """
    return _Folding(graph).run()


class _Folding:
    """One walk. sizes: what sizes that only data told are now; late: the nodes that wait for a run,
    and unknown, by id, what they make. passing: by the id of a value that is not kept, since it is
    too large, but that others may be made of, the bytes of constants behind it; late_ones: the same
    of results that are left to fusion.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.counts = dict.fromkeys(("constants", "shapes", "branches"), 0)
        self.dead: list[Node] = []
        self.late: list[Node] = []
        self.unknown: set[int] = set()
        self.passing: dict[int, int] = {}
        self.late_ones: dict[int, int] = {}
        self.sizes: dict[str, Dim] = {}

    def run(self) -> dict[str, int]:
        graph = self.graph
        rest, graph.nodes = graph.nodes[::-1], []
        while rest:
            node = rest.pop()
            cond = known(node.inputs[0]) if node.op == "If" else None
            if cond is not None and isinstance(cond[0], int):
                rest += _branch(graph, node, bool(cond[0]))[::-1]
                self.counts["branches"] += 1
                continue
            graph.nodes.append(node)
            if not self._is_settled(node):
                self._fold(node)
        graph.remove(self.dead)
        graph.rename_sizes(self.sizes)
        if self.late:
            _defer(graph, self.late)
        return {**self.counts, "deferred": len(self.late), "sizes": len(self.sizes)}

    def _is_settled(self, node: Node) -> bool:
        """Whether all is as the last walk saw it."""
        is_same = node.folded is node.inferred and node.folded == node.operand_types()
        return is_same and not (self.unknown or self.passing or self.late_ones)

    def _fold(self, node: Node) -> None:
        infer_again(node, self.sizes)
        while node.bodies and _settle(self.graph, node):
            infer_again(node, self.sizes)
        if waits(node) or (self.unknown and any(id(x) in self.unknown for x in node.inputs)):
            self.late.append(node)
            self.unknown.update(map(id, node.outputs))
        elif all(value.elements is not None for value in node.outputs):
            self._take_elements(node)
        elif any(_is_data(value, self.passing, self.late_ones) for value in node.inputs):
            node.folded = node.inferred
        elif self.graph.is_fused or not _is_for_fusion(node):
            self._take_arrays(node)
        elif all(value is None or value.const is not None for value in node.inputs):
            given = sum(value.const.nbytes for value in node.inputs if value is not None)
            self.late_ones[id(node.output)] = given

    def _take_elements(self, node: Node) -> None:
        """Its results without it, which are known."""
        if node.binds and not any(value.users for value in node.outputs):
            return  # it tells them, and nobody else reads it
        for value in node.outputs:
            self.graph.replace_uses(value, known_elements(self.graph, value))
        are_numbers = all(_is_numbers(value) for value in node.outputs)
        self.counts["constants" if are_numbers else "shapes"] += 1
        if not node.binds:
            self.dead.append(node)

    def _take_arrays(self, node: Node) -> None:
        """Constants in place of its results, where it can and should be evaluated now."""
        takes_late = getattr(find(node.op), "takes_late", False)
        passing = {**self.passing, **self.late_ones} if takes_late else self.passing
        arrays = _evaluate(node, passing)
        if arrays is None:
            return
        for value, array in zip(node.outputs, arrays):
            made = self.graph.constant(array, array_type(array), value.name)
            self.graph.replace_uses(value, made)
        self.counts["constants"] += 1
        self.dead.append(node)


def _settle(graph: Graph, node: Node) -> bool:
    from q7x2_ep.passes import carried

    return carried.settle(graph, node)


def _branch(graph: Graph, node: Node, cond: bool) -> list[Node]:
    """The nodes of the branch that an If takes, on the values that it captured."""
    branch = node.attrs["then_branch" if cond else "else_branch"].clone()
    captures = node.inputs[1:]
    node.detach()
    inside = Graph(nodes=branch.nodes, outputs=branch.outputs)
    for formal, actual in zip(branch.inputs, captures):
        inside.replace_uses(formal, actual)
    for old, new in zip(node.outputs, inside.outputs):
        graph.replace_uses(old, new)
    for made in inside.nodes:
        made.sources = tuple(dict.fromkeys((*node.sources, *made.sources)))
    return inside.nodes


def _defer(graph: Graph, late: list[Node]) -> None:
    """Put nodes, on which no others depend, into the body of one that takes their place. Sizes that
    they know the symbols of are told there once more.
    """
    read = dict.fromkeys(value for node in late for value in node.inputs if value is not None)
    for value in read:
        if value.const is None and value.elements is not None and value.dtype in (INT32, INT64):
            told = graph.new_value(UNKNOWN, value.name)
            for node in late:
                for i, operand in enumerate(node.inputs):
                    if operand is value:
                        node.set_input(i, told)
            numbers = tuple(dim if isinstance(dim, int) else None for dim in value.elements)
            attrs: dict = {"numbers": numbers}
            late.insert(0, Node("q7::Contents", [value], [told], attrs, value.name))
            graph.nodes.append(late[0])
    made = {id(value) for node in late for value in node.outputs}
    taken = dict.fromkeys(
        value
        for node in late
        for value in node.inputs
        if value is not None and value.const is None and id(value) not in made
    )
    results = list(dict.fromkeys(value for value in graph.outputs if id(value) in made))
    names = [value.name for value in results]
    whole = Graph(graph.name, list(taken), results, names, late)
    body = whole.clone()
    for value in body.inputs:
        value.set_type(UNKNOWN)
    graph.remove(late)
    sources = tuple(dict.fromkeys(name for node in late for name in node.sources))
    attrs = {"body": body, "captures": len(taken)}
    graph.nodes.append(Node("q7::Deferred", list(taken), results, attrs, "deferred", sources))


def known_elements(graph: Graph, value: Value) -> Value:
    """The elements of `value` without its producer: a constant where they are all numbers."""
    if not _is_numbers(value):
        return graph.new_value(value.type, value.name)
    shape = value.shape if value.shape is not None else (len(value.elements),)
    return graph.constant(
        dtypes.make_array(value.elements, value.dtype, shape), value.type, value.name
    )


def known_dims(graph: Graph, dims: tuple[Dim, ...], hint: str, what: str = "shape") -> Value:
    """A shape operand, or another of integers, that holds these."""
    return known_elements(graph, Value(f"{hint}/{what}", INT64, (len(dims),), dims))


def _is_data(value: Optional[Value], *made: dict[int, int]) -> bool:
    """Whether an input is neither a constant nor among those that are made of constants."""
    if value is None or value.const is not None:
        return False
    return not any(id(value) in some for some in made)


def _is_numbers(value: Value) -> bool:
    return all(isinstance(element, int) for element in value.elements)


def _is_for_fusion(node: Node) -> bool:
    return getattr(find(node.op), "folds_late", False)


def _evaluate(node: Node, passing: dict[int, int]) -> Optional[list[Any]]:
    """The outputs of a node as arrays, or None where it cannot or should not be evaluated now.

    passing: by the id of a value that is not kept, since it is too large, but that others may be
    made of, the bytes of constants behind it; those of this node are added.
    """
    given = 0
    for value in node.inputs:
        if _is_data(value, passing):
            return None
        if value is not None:
            given += passing[id(value)] if value.const is None else value.const.nbytes
    operands = (*node.inputs, *node.outputs)
    if any(value is not None and value.dtype in dtypes.HALVES for value in operands):
        return None  # in float32, behind widen
    entry = find(node.op)
    if not hasattr(entry, "reference") or getattr(entry, "is_random", False):
        return None
    if is_host(node):
        return _computed(node, {}) if node.inputs and given <= MAX_GROWTH_BYTES else None
    size = _bytes(node.outputs)
    if size is None:
        return None
    most = max(MAX_GROWTH_BYTES, given * (GATHERED if node.op == "Gather" else 1))
    if size <= most or all(map(_is_weight, node.outputs)):
        return _computed(node, {})
    if size <= MAX_PASSING_BYTES:
        passing.update((id(value), given) for value in node.outputs)
    return None


def _bytes(values: Iterable[Value]) -> Optional[int]:
    """What values take, None where that is not known."""
    size = 0
    for value in values:
        if value.shape is None or not all(isinstance(dim, int) for dim in value.shape):
            return None
        size += product(value.shape) * dtypes.size(value.dtype)
    return size


def _computed(node: Node, made: dict[int, Any]) -> Optional[list[Any]]:
    """The outputs of a node of constants, or of what such nodes make; None where one fails.

    made: by the id of a value, those that were computed on the way; those of this node are added.
    """
    operands: list[Any] = []
    for value in node.inputs:
        if value is not None and value.const is None:
            if id(value) not in made and _computed(value.producer, made) is None:
                return None
            operands.append(made[id(value)])
        else:
            operands.append(value if value is None else value.const)
    try:
        with np.errstate(all="ignore"):
            result = find(node.op).reference(node, *operands)
    except Exception:  # out of range data, say: the run reports it
        return None
    results = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(array, (np.ndarray, np.generic, Lazy)) for array in results):
        return None
    arrays = [
        array
        if isinstance(array, Lazy)
        else np.asarray(array, dtypes.DTYPES[value.dtype].numpy if value.dtype else None)
        for array, value in zip(results, node.outputs)
    ]
    made.update((id(value), array) for value, array in zip(node.outputs, arrays))
    return arrays


def _is_weight(value: Value) -> bool:
    """Whether all that reads a value packs it at load: then it takes its memory anyway."""
    packs = [user.inputs.index(value) in PACKED.get(user.op, ()) for user in value.users]
    return bool(packs) and all(packs)
