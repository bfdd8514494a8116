"""Builder: makes nodes through the catalogue, with defaults, inferred types and literal operands.

The `g` of `decompose` and of every formula in fuse/: `g.Mul(x, 0.5)` is a node here and a pattern
under ir/pattern.py's Tracer, so that one function serves as meaning, as search and as test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import Q7Error, UnsupportedOp
from q7x2_ep.ir.core import ANY, Graph, Node, Type, Value, array_type
from q7x2_ep.ir.replace import Watch, replace
from q7x2_ep.ir.shape import Dim, at_least
from q7x2_ep.ops import find
from q7x2_ep.ops.common import Guard, check_known, keeps_count, typed, where_is
from q7x2_ep.ops.lazy import Joined, Scaled
from q7x2_ep.ops.signature import check_types, parse

Given = Optional[Value]  # an operand of `decompose` that may be left out


class Builder:
    """Any method name is an op type of the default domain; `call` takes any op type.

    Nodes are collected, not entered in the graph: `take` hands them over. choose(n) says which of n
    alternatives `either` builds. watch: see ir/replace.py.
    """

    def __init__(
        self,
        graph: Graph,
        choose: Callable[[int], int] = lambda n: 0,
        watch: Watch = lambda application: True,
    ):
        self.graph = graph
        self.watch = watch
        self._choose = choose
        self._made: list[Node] = []

    def __getattr__(self, op: str) -> Callable[..., Value]:
        if op.startswith("_"):
            raise AttributeError(op)
        return lambda *inputs, **attrs: self.call(op, *inputs, **attrs)

    def call(self, op: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Any:
        """The output of a new node, a tuple if outputs > 1. Numbers and lists become constants; a
        dim of 0 in the list of a Reshape, or that turns out to be 0, is one of no elements.
        """
        entry = find(op)
        if entry is None:
            raise KeyError(op)
        new = inputs[1] if op == "Reshape" and isinstance(inputs[1], list) else []
        if any(dim == 0 or not isinstance(dim, int) for dim in new):
            attrs.setdefault("allowzero", 1)
        operands = self._operands(inputs)
        results = [self.graph.new_value(Type(0, None)) for _ in range(outputs)]
        given = {key: value for key, value in attrs.items() if value is not ANY}
        node = Node(op, operands, results, {**entry.attributes, **given})
        check_types(node, entry.signature)
        for result, type in zip(results, entry.infer(node)):
            result.set_type(type)
        node.inferred = node.operand_types()
        self._made.append(node)
        return tuple(results) if outputs > 1 else results[0]

    def folded(self, op: str, x: Value, *others: Any, **attrs: Any) -> Value:
        """As `call`, of an op whose result has the dtype of x; of constants of that dtype alone,
        the constant that it is.
        """
        given = (x, *(each for each in others if isinstance(each, Value)))
        if any(each.const is None or each.dtype != x.dtype for each in given):
            return self.call(op, x, *others, **attrs)
        entry = find(op)
        node = Node(op, [], [], {**entry.attributes, **attrs})
        arrays = (
            each.const if isinstance(each, Value) else _array(each, x.dtype) for each in others
        )
        return self.array(_evaluate(node, x.dtype, x.const, *arrays))

    def _operands(self, inputs: Sequence[Any]) -> list[Optional[Value]]:
        values = [x for x in inputs if isinstance(x, Value)]
        like = next((x.dtype for x in values if x.dtype != dtypes.BOOL), dtypes.FLOAT)
        return [x if x is None or isinstance(x, Value) else self.literal(x, like) for x in inputs]

    def literal(self, x: Union[float, Sequence[Dim]], dtype: int = dtypes.FLOAT) -> Value:
        """A number as a scalar of dtype; a list of dims as an int64 vector, a shape operand."""
        if isinstance(x, (list, tuple)) and not all(isinstance(dim, int) for dim in x):
            return self.graph.new_value(Type(dtypes.INT64, (len(x),), tuple(x)), "shape")
        return self.array(_array(x, dtype))

    def array(self, array: np.ndarray) -> Value:
        """A constant."""
        return self.graph.constant(array, array_type(array))

    def ones(self, shape: Sequence[int], dtype: int) -> Value:
        return self.array(np.ones(shape, dtypes.DTYPES[dtype].numpy))

    def identity(self, size: int, times: int, dtype: int) -> Value:
        """The identity matrix, so many times, one below the other."""
        return self.array(np.tile(np.eye(size, dtype=dtypes.DTYPES[dtype].numpy), (times, 1)))

    def evaluated(self, node: Node) -> Value:
        """The result of a node of constants, as a constant."""
        arrays = (None if value is None else value.const for value in node.inputs)
        return self.array(_evaluate(node, node.output.dtype, *arrays))

    def concatenate(self, constants: Sequence[Value], axis: Optional[int]) -> Value:
        """A constant made of others; axis None flattens them. Matrices stay apart, see Joined."""
        parts = [value.const for value in constants]
        if axis is not None and all(part.ndim == 2 for part in parts):
            return self.array(Joined(parts, axis))
        return self.array(np.concatenate(parts, axis))

    def part(self, constant: Value, axis: int, part: slice) -> Value:
        """A slice of a constant along one axis; shares its memory."""
        at = (*(slice(None),) * (axis % constant.const.ndim), part)
        return self.array(constant.const[at])

    def filled(self, constant: Value, shape: Sequence[int]) -> Value:
        """A constant repeated to a shape, or without dims of 1 in front."""
        if constant.shape == tuple(shape):
            return constant
        like = constant.const.reshape(() if constant.const.size == 1 else shape)
        return self.array(np.broadcast_to(like, shape))

    def scaled_kernels(self, kernels: Value, factors: Value) -> Value:
        """Kernels (M, ..) times a factor (M,) each; of constants a constant, see Scaled."""
        if kernels.const is None or factors.const is None or kernels.dtype != factors.dtype:
            column = [kernels.shape[0], *(1 for _ in kernels.shape[1:])]
            return self.folded("Mul", kernels, self.folded("Reshape", factors, column))
        return self.array(Scaled(kernels.const, factors.const))

    def scaled(self, constant: Value, factor: float) -> Value:
        """A constant times a number."""
        return self.array(constant.const * constant.const.dtype.type(factor))

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """x under another shape; Reshapes that lead to x are looked through, where they fit."""
        while x.shape != tuple(shape) and x.producer is not None and keeps_count(x.producer):
            x = x.producer.inputs[0]  # type: ignore[assignment]
        if x.shape == tuple(shape):
            return x
        return self.Reshape(x, list(shape))

    def either(self, *options: Callable[[], Value]) -> Value:
        return options[self._choose(len(options))]()

    def scalar(self, value: Value) -> Value:
        return value

    def constant(self, value: Value) -> Value:
        return value

    def result(self, op: str, value: Value) -> Value:
        return value

    def named(self, name: str, value: Value) -> Value:
        return value

    def expose(self, name: str, value: Value) -> Value:
        return value

    @staticmethod
    def misfit(node: Node) -> str:
        """Why the operands of a node never fit each other, in any run; "" where they may."""
        try:
            check_known(_guards(node), node)
        except Q7Error as error:
            return error.message
        return ""

    @staticmethod
    def facts(node: Node) -> list[tuple[Dim, str]]:
        """What is at 0 or above in the runs whose operands fit a node, as Graph.guards has it."""
        try:
            guards = [guard for guard in _guards(node) if guard[0] != guard[1]]
        except Q7Error:  # sizes that only a run knows
            return []
        return [
            (excess, f"{where_is(node)} {text}")
            for left, right, text in guards
            for excess in (left - right, right - left)
            if not at_least(excess, 0)
        ]

    def take(self) -> list[Node]:
        """The nodes made since the last call."""
        made, self._made = self._made, []
        return made


def _guards(node: Node) -> list[Guard]:
    """What bind would check of a node, as far as its shapes are known."""
    guards = getattr(find(node.op), "guards", None)
    if guards is None or any(x is not None and x.shape is None for x in node.inputs):
        return []
    return guards(node)


def _array(x: Union[float, Sequence[int]], dtype: int) -> np.ndarray:
    """A number as an array of dtype, several as a shape operand."""
    is_shape = isinstance(x, (list, tuple))
    return np.array(x, np.int64 if is_shape else dtypes.DTYPES[dtype].numpy)


def _evaluate(node: Node, dtype: int, *arrays: Optional[np.ndarray]) -> np.ndarray:
    """The result of a node, of that dtype, for such inputs."""
    with np.errstate(all="ignore"):
        result = find(node.op).reference(node, *arrays)
    return np.asarray(result, dtypes.DTYPES[dtype].numpy)


def meaning(graph: Graph, node: Node) -> list[Node]:
    """The nodes that the entry's `decompose` puts in the place of one; they make its outputs."""
    g = Builder(graph)
    result = find(node.op).decompose(g, *node.inputs, **node.attrs)
    made = g.take()
    replace(node.outputs, listed(result), made, [node])
    return made


def infer_meaning(node: Node) -> list[Type]:
    """The types of what `decompose` makes of inputs of these types.

    Raises: UnsupportedOp for an operand, result or attribute that the entry names as unsupported.
    """
    entry = find(node.op)
    _require_supported(node, entry, getattr(entry, "unsupported", ()))
    inputs: list[Optional[Value]] = []
    for x in node.inputs:  # others than the node's own, whose users these nodes are not
        twin = None if x is None else Value(x.name, x.dtype, x.shape, x.elements)
        if twin is not None:
            twin.const = x.const
        inputs.append(twin)
    try:
        results = listed(entry.decompose(Builder(Graph()), *inputs, **node.attrs))
    except Q7Error as error:  # names what it is made of
        raise type(error)(f"{where_is(node)} {error.message}") from error
    missing = [x.name for x in node.outputs[len(results) :]]
    if missing:
        raise UnsupportedOp(f"{where_is(node)} does not give {', '.join(missing)} in this form")
    return [typed(y.dtype, y.shape, y.elements) for y in results]


def _require_supported(node: Node, entry: Any, unsupported: Sequence[str]) -> None:
    """Raises: UnsupportedOp where an operand, result or attribute of these is there."""
    operands, results = parse(entry.signature)
    named = (*zip(operands, node.inputs), *zip(results, node.outputs))
    wrong = [formal.name for formal, x in named if x is not None and formal.name in unsupported]
    wrong += [
        f"{name}={node.attrs[name]}"
        for name in unsupported
        if name in node.attrs and node.attrs[name] != entry.attributes[name]
    ]
    if wrong:
        raise UnsupportedOp(f"{where_is(node)} is not supported with {', '.join(wrong)}")


def listed(results: Any) -> tuple[Value, ...]:
    """What a `decompose` returns, one value or several."""
    return results if isinstance(results, tuple) else (results,)


def like(g: Any, x: Given, other: Value) -> Given:
    """x in the dtype of another operand, which may have a wider one."""
    return x if x is None or x.dtype == other.dtype else g.Cast(x, to=other.dtype)
