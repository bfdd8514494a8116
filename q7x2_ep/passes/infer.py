"""Type inference: dtype, shape and known elements of every value, by each op's `infer`.

Incremental: a node is asked again only where one of its inputs, or the type of one, is not what it
was last time. What cannot be inferred stays unknown until a run (see passes/fold.py).
"""

from __future__ import annotations

from typing import Any

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, Q7Error, UnsupportedOp
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Type, where_is
from q7x2_ep.ir.shape import Dim, renamed
from q7x2_ep.ops import find
from q7x2_ep.ops.common import NotInferable, is_host, require_rank
from q7x2_ep.ops.signature import check_types


def run(graph: Graph) -> dict[str, int]:
    """Infer the types of all values; counts the nodes that had to be asked.

    Raises: ModelError naming the node, its op and input types where they do not fit together.
    """
    return {"nodes": sum(infer_node(node) for node in graph.nodes)}


def infer_node(node: Node) -> bool:
    """Set the types of a node's outputs, and missing attributes; False if it was up to date."""
    seen = node.operand_types()
    if node.inferred == seen:
        return False
    entry = find(node.op)
    if entry is None:
        raise UnsupportedOp(f"{where_is(node)} the op is not in the catalogue")
    for key, default in entry.attributes.items():
        node.attrs.setdefault(key, default)
    check_types(node, entry.signature)
    node.binds = False
    try:
        types = _infer(node, entry)
    except NotInferable:
        _require_tensors(node)
        types = [UNKNOWN] * len(node.outputs)
    except (Q7Error, MemoryError):
        raise
    except Exception as error:  # a malformed model can break any assumption of infer
        from q7x2_ep.ir.text import type_text

        inputs = ", ".join("_" if value is None else type_text(value.type) for value in node.inputs)
        raise ModelError(
            f"{where_is(node)} inputs ({inputs}) do not fit: {str(error) or repr(error)}"
        ) from error
    for value, type in zip(node.outputs, types):
        if type.shape is not None:
            require_rank(node, len(type.shape))
            if type.dtype == dtypes.NO_TENSOR:
                _require_tensors(node)
        value.set_type(type)
    node.inferred = seen
    return True


def _require_tensors(node: Node) -> None:
    """Of an op that cannot do without what lists do not have."""
    for value in node.inputs:
        if value is not None and value.dtype == dtypes.NO_TENSOR:
            raise ModelError(f"{where_is(node)} takes tensors, and {value.name} is none")


def infer_again(node: Node, sizes: dict[str, Dim]) -> None:
    """As infer_node; enters the sizes of its outputs that only data told, and what they are now,
    but for those that are entered: what a size is where it is made comes first.
    """
    before = [(value.shape, value.elements) for value in node.outputs]
    if infer_node(node):
        found: dict[str, Dim] = {}
        for (shape, elements), value in zip(before, node.outputs):
            found.update(renamed(shape, value.shape))
            found.update(renamed(elements, value.elements))
        sizes.update({**found, **sizes})


def _infer(node: Node, entry: Any) -> list[Type]:
    if hasattr(entry, "formals"):
        from q7x2_ep.ops.control import actuals

        formals = entry.formals(node)
        captures = [value.type for value in actuals(node, node.inputs)[1]]
        for body in node.bodies:
            _infer_body(body, [*formals, *captures])
    elif any(v is not None and v.shape is None for v in node.inputs) and not is_host(node):
        return [UNKNOWN] * len(node.outputs)
    return entry.infer(node)


def _infer_body(body: Graph, types: list[Type]) -> None:
    for value, type in zip(body.inputs, types):
        value.set_type(type)
    for node in body.nodes:
        infer_node(node)


def waits(node: Node) -> bool:
    """Whether a node cannot be compiled before a run, which tells the ranks of its inputs."""
    unknown = [v for v in node.inputs if v is not None and v.shape is None and v.is_unknown]
    return bool(unknown) and not is_host(node)
