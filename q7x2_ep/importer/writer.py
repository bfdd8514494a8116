"""IR -> onnx.ModelProto, for `SessionOptions.optimized_model_filepath`: a file that any ONNX tool
opens.

Only graphs of standard ops can be written: fused ops are ours alone. Sizes that the passes have
worked out are turned back into Shape, Gather and arithmetic on the model's inputs.
"""

from __future__ import annotations

import os
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.shape import Dim, Expr
from q7x2_ep.ops import find

OPSET = 23  # at least: the catalogue's ops have the newest semantics
IR_VERSION = 10
EXTERNAL_ABOVE = 1 << 30  # bytes; a protobuf ends at 2 GB
_ARITHMETIC = {"floordiv": "Div", "min": "Min", "max": "Max", "broadcast": "Max"}  # of two sizes


def write(graph: Graph) -> Any:
    """The graph as an onnx.ModelProto.

    Raises: ModelError for an op that is not of the standard domain.
    """
    from onnx import helper

    writer = _Writer(graph)
    for node in graph.nodes:
        writer.node(node)
    outputs = []
    for name, value in zip(graph.output_names, graph.outputs):
        produced = writer.name(value)
        if produced != name:
            writer.nodes.append(helper.make_node("Identity", [produced], [name]))
        outputs.append(_value_info(name, value))
    proto = helper.make_graph(
        writer.nodes,
        graph.metadata.get("graph_name") or "graph",
        [_value_info(value.name, value) for value in graph.inputs],
        outputs,
        initializer=list(writer.initializers.values()),
    )
    opsets = [helper.make_opsetid("", max(graph.opset, OPSET))]
    return helper.make_model(
        proto, opset_imports=opsets, ir_version=IR_VERSION, producer_name="q7x2_ep"
    )


def save(graph: Graph, path: str) -> None:
    """Write the graph to a file; weights go beside it as external data where they exceed 1 GB."""
    import onnx

    model = write(graph)
    external = sum(tensor.ByteSize() for tensor in model.graph.initializer) > EXTERNAL_ABOVE
    onnx.save(
        model, path, save_as_external_data=external, location=os.path.basename(path) + ".data"
    )


class _Writer:
    """Collects nodes and initialisers; every Value is named once."""

    def __init__(self, graph: Graph):
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self._known: dict[Value, str] = {}
        self._dims: dict[Any, str] = {}
        self._symbols: dict[str, tuple[str, int]] = {}
        for value in graph.inputs:
            for axis, dim in enumerate(value.shape):
                if isinstance(dim, Expr):
                    self._symbols.setdefault(repr(dim), (value.name, axis))

    def node(self, node: Node) -> None:
        from onnx import helper

        if "::" in node.op:
            raise ModelError(
                f"[{node.op} {node.name}] has no standard form and cannot be written as ONNX"
            )
        inputs = [self.name(value) if value is not None else "" for value in node.inputs]
        defaults = find(node.op).attributes  # those of newer versions too, which must stay away
        attrs = {
            name: _attribute(value)
            for name, value in node.attrs.items()
            if value is not None and not _equal(value, defaults.get(name))
        }
        outputs = [value.name for value in node.outputs]
        self.nodes.append(helper.make_node(node.op, inputs, outputs, name=node.name, **attrs))

    def name(self, value: Value) -> str:
        """The name under which a value can be used, made available first."""
        if value in self._known:
            return self._known[value]
        name = value.name
        if value.const is not None:
            self._initializer(name, value.const)
        elif value.producer is None and value.elements is not None:
            name = self._elements(value)
        self._known[value] = name
        return name

    def _elements(self, value: Value) -> str:
        parts = [self._dim(dim) for dim in value.elements]
        name = self._emit("Concat", *parts, axis=0) if len(parts) != 1 else parts[0]
        if value.dtype != dtypes.INT64:
            name = self._emit("Cast", name, to=value.dtype)
        return name if value.shape else self._emit("Squeeze", name, self._ints([0]))

    def _dim(self, dim: Dim) -> str:
        """A one-element int64 vector that holds the dim."""
        if isinstance(dim, int):
            return self._ints([int(dim)])
        if dim not in self._dims:
            total: Optional[str] = None
            for monomial, coefficient in dim.terms:
                term = self._ints([coefficient]) if coefficient != 1 or not monomial else None
                for atom in monomial:
                    factor = self._atom(atom)
                    term = factor if term is None else self._emit("Mul", term, factor)
                total = term if total is None else self._emit("Add", total, term)
            self._dims[dim] = total
        return self._dims[dim]

    def _atom(self, atom: tuple) -> str:
        if atom not in self._dims:
            kind, *rest = atom
            if kind == "sym":
                source, axis = self._symbols[rest[0]]
                self._dims[atom] = self._emit("Shape", source, start=axis, end=axis + 1)
            else:
                self._dims[atom] = self._emit(
                    _ARITHMETIC[kind], *(self._dim(operand) for operand in rest)
                )
        return self._dims[atom]

    def _emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        from onnx import helper

        name = f"q7_size_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def _ints(self, values: list[int]) -> str:
        name = "q7_ints_" + "_".join(map(str, values))
        self._initializer(name, np.array(values, np.int64))
        return name

    def _initializer(self, name: str, array: np.ndarray) -> None:
        from onnx import numpy_helper

        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(array.copy(order="C"), name)


def _equal(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


def _attribute(value: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def _value_info(name: str, value: Value) -> Any:
    from onnx import helper

    dims = [dim if isinstance(dim, int) else str(dim) for dim in value.shape]
    return helper.make_tensor_value_info(name, value.dtype, dims)
