"""The oracle: evaluates a graph op by op with the references of the catalogue. Obvious, not fast.

It is also the accuracy yardstick: with float_dtype=float64 every float tensor, fed, constant or
computed, is float64.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ShapeError, UnsupportedOp
from q7x2_ep.ir.core import Graph, Node, Value, where_is
from q7x2_ep.ir.shape import Expr, substitute
from q7x2_ep.ops import find
from q7x2_ep.ops.builder import Builder

Environment = dict[Value, np.ndarray]


def evaluate(graph: Graph, feeds: Mapping[str, Any], float_dtype: Any = None) -> list[np.ndarray]:
    """The outputs of a graph with inferred types, in order.

    Raises: ShapeError where a feed contradicts the dims of the inputs, UnsupportedOp for an op
    without a reference.
    """
    evaluation = Evaluation(None if float_dtype is None else np.dtype(float_dtype))
    for value in graph.inputs:
        evaluation.feed(value, np.asarray(feeds[value.name]))
    evaluation.run(graph.nodes)
    return [evaluation.array(value) for value in graph.outputs]


def rms_error(given: np.ndarray, true: np.ndarray) -> float:
    """RMS of given - true; infinite where shapes or non-finite elements differ."""
    if given.shape != true.shape:
        return float("inf")
    if given.dtype.kind != "c" and not dtypes.holds_floats(given):
        return 0.0 if np.array_equal(given, true) else float("inf")
    finite = np.isfinite(true)
    if (
        not np.array_equal(given[~finite], true[~finite], equal_nan=True)
        or not np.isfinite(given[finite]).all()
    ):
        return float("inf")
    return rms(dtypes.in_double(given[finite]) - true[finite])


def tensors(names: Iterable[str], results: Iterable[Any]) -> dict[str, np.ndarray]:
    """Results by name: of a sequence or map each tensor, as name[key]; none of no optional."""
    found: dict[str, np.ndarray] = {}
    for name, result in zip(names, results):
        if isinstance(result, dict):
            found.update(tensors((f"{name}[{key}]" for key in result), result.values()))
        elif isinstance(result, (list, tuple)):
            found.update(tensors((f"{name}[{i}]" for i in range(len(result))), result))
        elif result is not None:
            found[name] = np.asarray(result)
    return found


def rms(array: np.ndarray) -> float:
    if array.dtype.kind in "OSU":  # texts
        return 0.0
    sizes = np.abs(dtypes.in_double(array))
    finite = sizes[np.isfinite(sizes)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


class Evaluation:
    """One evaluation: what is computed so far, and the sizes of the symbols."""

    def __init__(self, float_dtype: Optional[np.dtype], sizes: Optional[Mapping[str, int]] = None):
        self.float_dtype = float_dtype
        self.arrays: Environment = {}
        self.sizes: dict[str, int] = dict(sizes or {})

    def feed(self, value: Value, array: np.ndarray) -> None:
        if value.shape is None:
            self.enter(value, array)
            return
        if len(array.shape) != len(value.shape):
            raise ShapeError(
                f"[input {value.name}] expected {len(value.shape)} dims, given shape {array.shape}"
            )
        for dim, size in zip(value.shape, array.shape):
            wanted = self.sizes.setdefault(repr(dim), size) if isinstance(dim, Expr) else dim
            if wanted != size:
                raise ShapeError(
                    f"[input {value.name}] expected {dim} = {wanted}, given shape {array.shape}"
                )
        self.arrays[value] = self.promoted(array)

    def run(self, nodes: list[Node]) -> None:
        for node in nodes:
            inputs = [None if value is None else self.array(value) for value in node.inputs]
            with np.errstate(all="ignore"):
                results = self.evaluate(node, inputs)
            for value, result in zip(node.outputs, results):
                self.enter(value, result)

    def enter(self, value: Value, result: Any) -> None:
        """Keep what a value turned out to be, and the sizes that it shows."""
        if result is None or isinstance(result, (list, dict)):
            self.arrays[value] = result
            return
        array = self.arrays[value] = self.promoted(dtypes.of_any_width(np.asarray(result)))
        for dim, size in zip(value.shape or (), array.shape):
            if isinstance(dim, Expr):
                self.sizes.setdefault(repr(dim), size)

    def run_body(self, body: Graph, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of a graph among the attributes of a node."""
        inner = Evaluation(self.float_dtype)
        for value, array in zip(body.inputs, arrays):
            inner.enter(value, array)
        inner.run(body.nodes)
        return [inner.array(value) for value in body.outputs]

    def evaluate(self, node: Node, inputs: list[Optional[np.ndarray]]) -> tuple:
        entry = find(node.op)
        if hasattr(entry, "control"):
            return tuple(entry.control(node, self.run_body, *inputs))
        if hasattr(entry, "reference"):
            result = entry.reference(self.promoted_node(node), *inputs)
            return result if isinstance(result, tuple) else (result,)
        if not hasattr(entry, "decompose"):
            raise UnsupportedOp(f"{where_is(node)} has neither a reference nor a decomposition")
        builder = Builder(Graph())
        made: list[Node] = []
        # of a host step they are known to the plan only
        self.arrays.update(
            (value, array) for value, array in zip(node.inputs, inputs) if value is not None
        )
        try:
            result = entry.decompose(builder, *node.inputs, **node.attrs)
            made = builder.take()
            self.run(made)
        finally:  # the graph's values must not count them as users
            for temporary in reversed(made or builder.take()):
                temporary.detach()
        return tuple(map(self.array, result if isinstance(result, tuple) else (result,)))

    def array(self, value: Value) -> np.ndarray:
        if value in self.arrays:
            return self.arrays[value]
        if value.const is not None:
            return self.promoted(value.const)
        elements = [substitute(element, self.sizes) for element in value.elements]
        return dtypes.make_array(elements, value.dtype, value.shape)

    def promoted(self, array: np.ndarray) -> np.ndarray:
        if self.float_dtype is None or not dtypes.holds_floats(array):
            return array
        return array.astype(self.float_dtype, copy=False)

    def promoted_node(self, node: Node) -> Node:
        """The node with float tensors and dtypes among its attributes promoted."""
        if self.float_dtype is None:
            return node
        attrs: dict[str, Any] = {}
        for key, value in node.attrs.items():
            if isinstance(value, np.ndarray):
                attrs[key] = self.promoted(value)
            elif key in ("to", "dtype") and value and dtypes.is_float(value):
                attrs[key] = dtypes.from_numpy(self.float_dtype)
        if not attrs:
            return node
        promoted = copy.copy(node)
        promoted.attrs = {**node.attrs, **attrs}
        return promoted
