"""IR -> onnx.ModelProto, for `optimize` and `SessionOptions.optimized_model_filepath`: a file that
any ONNX tool opens.

A fused op is written as the standard op that it equals, where its entry knows one (`standard`), and
otherwise as a call of a model-local function of the domain q7 whose body is its `decompose`: a
viewer shows one node, an engine inlines the body. Sizes that the passes have worked out are turned
back into Shape, Gather and arithmetic on the inputs of the model or the function.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.files import Track, replacing
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.shape import Dim, Expr, symbol
from q7x2_ep.ops import find
from q7x2_ep.ops.builder import Builder
from q7x2_ep.ops.signature import Formal, parse

OPSET = 23  # at least: the catalogue's ops have the newest semantics
IR_VERSION = 10  # the first with overloads of functions
DOMAIN = "q7"
EXTERNAL_ABOVE = 1 << 30  # bytes of weights; a protobuf ends at 2 GB
INLINE_BELOW = 1 << 10  # bytes of a tensor that stays in the model file in any case
ALIGNMENT = 1 << 12  # of a tensor in the file beside it, so that it can be mapped
_ARITHMETIC = {"floordiv": "Div", "min": "Min", "max": "Max", "broadcast": "Max"}  # of two sizes


def write(graph: Graph) -> Any:
    """The graph as an onnx.ModelProto that holds its weights.

    Raises: ModelError for an op that ONNX has no form of.
    """
    from onnx import numpy_helper

    model, weights = _model(graph)
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array.copy(order="C"), name))
    return model


def save(graph: Graph, path: str, track: Track = lambda items, label: items) -> None:
    """Write the graph to a file, at once or not at all.

    Weights go to a file beside it, PATH.data, where they came from such a file or exceed 1 GB.
    """
    model, weights = _model(graph)
    total = sum(array.nbytes for array in weights.values())
    external = graph.external_weights or total > EXTERNAL_ABOVE
    with contextlib.ExitStack() as files:
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise ModelError(f"cannot write {path}: there is no folder {folder}")
        model_file = files.enter_context(replacing(path))  # left last: it names the other
        data_file = files.enter_context(replacing(f"{path}.data")) if external else None
        for name, array in track(list(weights.items()), "weights"):
            model.graph.initializer.append(_tensor(name, array, data_file, f"{path}.data"))
        model_file.write(model.SerializeToString())


def _tensor(name: str, array: np.ndarray, data_file: Any, location: str) -> Any:
    """An onnx.TensorProto; its contents go to data_file where there is one and they are large."""
    from onnx import StringStringEntryProto, TensorProto, numpy_helper

    array = np.asarray(array, order="C")
    if data_file is None or array.nbytes < INLINE_BELOW or array.dtype.kind == "O":
        return numpy_helper.from_array(array, name)
    data_file.write(bytes(-data_file.tell() % ALIGNMENT))
    tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
    tensor.data_type = dtypes.from_numpy(array.dtype)
    entries = (
        ("location", os.path.basename(location)),
        ("offset", data_file.tell()),
        ("length", array.nbytes),
    )
    for key, value in entries:
        tensor.external_data.append(StringStringEntryProto(key=key, value=str(value)))
    data_file.write(array.reshape(-1).view(np.uint8))
    return tensor


def _model(graph: Graph) -> tuple[Any, dict[str, np.ndarray]]:
    """The model without weights, and the weights by name."""
    from onnx import StringStringEntryProto, helper

    functions = _Functions()
    writer = _Writer(graph.inputs, functions)
    for node in graph.nodes:
        writer.node(node)
    outputs = []
    for name, value in zip(graph.output_names, graph.outputs):
        produced = writer.name(value)
        if produced != name:
            writer.nodes.append(helper.make_node("Identity", [produced], [name]))
        outputs.append(_value_info(name, value))
    metadata = graph.metadata
    proto = helper.make_graph(
        writer.nodes,
        metadata.get("graph_name") or "graph",
        [_value_info(value.name, value) for value in graph.inputs],
        outputs,
        doc_string=metadata.get("graph_description", ""),
    )
    bodies = [function.node for function in functions.protos]
    opset = _opset(max(graph.opset, OPSET), [writer.nodes, *bodies])
    domains = {node.domain for nodes in (writer.nodes, *bodies) for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
    for function in functions.protos:
        function.opset_import.extend(imports)
    model = helper.make_model(
        proto,
        opset_imports=imports,
        functions=functions.protos,
        ir_version=IR_VERSION,
        producer_name="q7x2_ep",
        doc_string=metadata.get("description", ""),
        domain=metadata.get("domain", ""),
        model_version=metadata.get("version", 0),
    )
    for key, value in metadata.get("custom_metadata_map", {}).items():
        model.metadata_props.append(StringStringEntryProto(key=key, value=value))
    return model, writer.constants


def _opset(least: int, bodies: list[Any]) -> int:
    """The first version from `least` on that has every op, with the inputs that it is given."""
    import onnx

    uses: dict[str, int] = {}
    for node in (node for nodes in bodies for node in nodes if not node.domain):
        uses[node.op_type] = max(uses.get(node.op_type, 0), len(node.input))
    newest = onnx.defs.onnx_opset_version()
    for version in range(least, max(newest, least) + 1):
        with contextlib.suppress(onnx.defs.SchemaError):
            if all(onnx.defs.get_schema(op, version).max_input >= n for op, n in uses.items()):
                return version
    raise ModelError(
        f"no opset up to {newest} has all of {', '.join(sorted(uses))}; a newer onnx may know them"
    )


class _Functions:
    """The model-local functions: one for every body that a fused op has in this model."""

    def __init__(self) -> None:
        self.protos: list[Any] = []
        self._known: dict[bytes, str] = {}  # body -> overload

    def overload(self, node: Node, inputs: list[str], outputs: list[str]) -> str:
        """Which function of the op's name has this body; it is made where there is none yet."""
        from onnx import FunctionProto

        proto = FunctionProto(domain=DOMAIN, name=node.op.partition("::")[2])
        proto.input.extend(inputs)
        proto.output.extend(outputs)
        proto.attribute.extend(sorted(_given(node)))
        proto.doc_string = (find(node.op).__doc__ or "").strip()
        proto.node.extend(_body(node, inputs, outputs, self))
        body = proto.SerializeToString(deterministic=True)
        if body not in self._known:
            taken = sum(other.name == proto.name for other in self.protos)
            self._known[body] = proto.overload = str(taken) if taken else ""
            self.protos.append(proto)
        return self._known[body]


def _body(node: Node, inputs: list[str], outputs: list[str], functions: _Functions) -> list[Any]:
    """The nodes of a function that means what `node` means, for operands of its types.

    Its sizes are symbols of its own, so that equal bodies are equal whatever the model calls them.
    """
    from onnx import helper

    sizes: dict[Dim, Dim] = {}
    formals: list[Optional[Value]] = []
    for name, value in zip(inputs, node.inputs):
        formal = None
        if value is not None:
            shape = [
                dim if isinstance(dim, int) else sizes.setdefault(dim, symbol(f"d{len(sizes)}"))
                for dim in value.shape
            ]
            formal = Value(name, value.dtype, tuple(shape))
        formals.append(formal)
    g = Builder(Graph())
    result = find(node.op).decompose(g, *formals, **node.attrs)
    results = result if isinstance(result, tuple) else (result,)
    writer = _Writer([value for value in formals if value is not None], functions)
    for made in g.take():
        writer.node(made)
    ends = [
        helper.make_node("Identity", [writer.name(value)], [name])
        for name, value in zip(outputs, results)
    ]
    constants = [
        helper.make_node("Constant", [], [name], value=_attribute(array))
        for name, array in writer.constants.items()
    ]
    return [*constants, *writer.nodes, *ends]


class _Writer:
    """Collects the nodes and constants of a graph or a function; every Value is named once."""

    def __init__(self, inputs: Iterable[Value], functions: _Functions):
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._functions = functions
        self._names: Counter = Counter()  # of nodes: one fusion may leave several of one name
        self._known: dict[Value, str] = {}
        self._dims: dict[Any, str] = {}
        self._symbols: dict[str, tuple[str, int]] = {}
        for value in inputs:
            for axis, dim in enumerate(value.shape):
                if isinstance(dim, Expr):
                    self._symbols.setdefault(repr(dim), (value.name, axis))

    def node(self, node: Node) -> None:
        from onnx import helper

        entry = find(node.op)
        op, operands, given = node.op, node.inputs, _given(node)
        standard = entry.standard(node) if hasattr(entry, "standard") else None
        if standard is not None:
            op, operands, given = standard
        inputs = [self.name(value) if value is not None else "" for value in operands]
        outputs = [value.name for value in node.outputs]
        attrs = {name: _attribute(value) for name, value in given.items()}
        domain, _, op_type = op.rpartition("::")
        self._names[node.name] += 1
        name = f"{node.name}_{n}" if (n := self._names[node.name]) > 1 else node.name
        proto = helper.make_node(op_type, inputs, outputs, name, domain=domain, **attrs)
        if domain == DOMAIN:
            if not hasattr(entry, "decompose"):
                raise ModelError(f"[{op} {node.name}] has no form in ONNX")
            formals = map(_names, parse(entry.signature), (len(inputs), len(outputs)))
            proto.overload = self._functions.overload(node, *formals)
        self.nodes.append(proto)

    def name(self, value: Value) -> str:
        """The name under which a value can be used, made available first."""
        if value in self._known:
            return self._known[value]
        name = value.name
        if value.const is not None:
            self.constants.setdefault(name, value.const)
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
        self.constants.setdefault(name, np.array(values, np.int64))
        return name


def _names(formals: Sequence[Formal], count: int) -> list[str]:
    """The first names of one side of a signature; `x*` goes on as x1, x2, .."""
    names = [formal.name for formal in formals]
    return [*names, *(f"{names[-1]}{i}" for i in range(1, count))][:count]


def _given(node: Node) -> dict[str, Any]:
    """The attributes that say something; those of a newer version of an op must stay away."""
    defaults = find(node.op).attributes
    return {
        name: value
        for name, value in node.attrs.items()
        if value is not None and not _equal(value, defaults.get(name))
    }


def _equal(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


def _attribute(value: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def _value_info(name: str, value: Value) -> Any:
    from onnx import helper

    dims = [dim if isinstance(dim, int) else str(dim) for dim in value.shape]
    return helper.make_tensor_value_info(name, value.dtype, dims)
