"""Constant folding, and the folding of shape arithmetic.

Walks the nodes once, inferring types on the way, so that what folds early informs what comes later.
A value whose elements are all known becomes a constant, or, where they hold symbols, a value with
nothing but elements: the Shape/Gather/Concat chain behind it loses its last user. A node with
constant inputs is evaluated by its reference.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Graph, Node, Value, array_type
from q7x2_ep.ir.shape import product
from q7x2_ep.ops import find
from q7x2_ep.passes.infer import infer_node

MAX_GROWTH_BYTES = 1 << 20  # a result may be this large where its inputs are smaller


def run(graph: Graph) -> dict[str, int]:
    """Counts the nodes replaced by constants and by symbolic elements.

    Raises: ModelError as infer does.
    """
    constants = shapes = 0
    dead = []
    for node in graph.nodes:
        infer_node(node)
        if all(value.elements is not None for value in node.outputs):
            for value in node.outputs:
                graph.replace_uses(value, known_elements(graph, value))
            constants += all(_is_numbers(value) for value in node.outputs)
            shapes += not all(_is_numbers(value) for value in node.outputs)
            dead.append(node)
            continue
        arrays = _evaluate(node) if graph.is_fused or not _is_for_fusion(node) else None
        if arrays is not None:
            for value, array in zip(node.outputs, arrays):
                graph.replace_uses(value, graph.constant(array, array_type(array), value.name))
            constants += 1
            dead.append(node)
    graph.remove(dead)
    return {"constants": constants, "shapes": shapes}


def known_elements(graph: Graph, value: Value) -> Value:
    """The elements of `value` without its producer: a constant where they are all numbers."""
    if not _is_numbers(value):
        return graph.new_value(value.type, value.name)
    shape = value.shape if value.shape is not None else (len(value.elements),)
    return graph.constant(
        dtypes.make_array(value.elements, value.dtype, shape), value.type, value.name
    )


def _is_numbers(value: Value) -> bool:
    return all(isinstance(element, int) for element in value.elements)


def _is_for_fusion(node: Node) -> bool:
    return getattr(find(node.op), "folds_late", False)


def _evaluate(node: Node) -> Optional[list[Any]]:
    """The outputs of a node as arrays, or None where it cannot or should not be evaluated now."""
    if any(value is not None and value.const is None for value in node.inputs):
        return None
    entry = find(node.op)
    is_random = getattr(entry, "random", False)
    if not hasattr(entry, "reference") or is_random or not _is_worth_it(node):
        return None
    try:
        with np.errstate(all="ignore"):
            result = entry.reference(
                node, *(value if value is None else value.const for value in node.inputs)
            )
    except (ValueError, IndexError):  # out of range data, say: the run reports it
        return None
    results = result if isinstance(result, tuple) else (result,)
    return [
        np.asarray(array, dtypes.DTYPES[value.dtype].numpy)
        for array, value in zip(results, node.outputs)
    ]


def _is_worth_it(node: Node) -> bool:
    """Whether the result is small, or no larger than what it is made of: Expand may not be."""
    size: Any = 0
    for value in node.outputs:
        if value.shape is None or not all(isinstance(dim, int) for dim in value.shape):
            return False
        size += product(value.shape) * dtypes.size(value.dtype)
    return size <= max(
        MAX_GROWTH_BYTES, sum(value.const.nbytes for value in node.inputs if value is not None)
    )
