"""IR -> onnx.ModelProto, for `optimize` and `SessionOptions.optimized_model_filepath`: a file that
any ONNX tool opens.

A fused op is written as the standard op that it equals, where its entry knows one (`standard`), and
otherwise as a call of a model-local function of the domain q7 whose body is its `decompose`: a
viewer shows one node, an engine inlines the body. Sizes that the passes have worked out are turned
back into Shape, Gather and arithmetic on the values that have or hold them. Bodies of control flow
name what they capture, as ONNX has it.
"""

from __future__ import annotations

import contextlib
import os
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, cannot_write
from q7x2_ep.files import Track, replacing
from q7x2_ep.importer.types import named_type
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Type, Value, where_is
from q7x2_ep.ir.shape import Dim, Expr, symbol
from q7x2_ep.ops import find
from q7x2_ep.ops.builder import Builder
from q7x2_ep.ops.control import local_name
from q7x2_ep.ops.signature import Formal, parse

OPSET = 23  # at least: the catalogue's ops have the newest semantics
IR_VERSION = 10  # the first with overloads of functions
DOMAIN = "q7"
EXTERNAL_ABOVE = 1 << 30  # bytes of weights; a protobuf ends at 2 GB
INLINE_BELOW = 1 << 10  # bytes of a tensor that stays in the model file in any case
ALIGNMENT = 1 << 12  # of a tensor in the file beside it, so that it can be mapped
_ARITHMETIC = {"min": "Min", "max": "Max", "broadcast": "Max"}  # of two sizes


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

    Raises: ModelError where it cannot be written.
    """
    model, weights = _model(graph)
    total = sum(array.nbytes for array in weights.values())
    external = graph.external_weights or total > EXTERNAL_ABOVE
    try:
        with contextlib.ExitStack() as files:
            model_file = files.enter_context(replacing(path))  # left last: it names the other
            data_file = files.enter_context(replacing(f"{path}.data")) if external else None
            for name, array in track(list(weights.items()), "weights"):
                model.graph.initializer.append(_tensor(name, array, data_file, f"{path}.data"))
            model_file.write(model.SerializeToString())
    except OSError as error:  # which may name a temporary file
        raise ModelError(cannot_write(path, error)) from error


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
    writer.write(graph.nodes, graph.output_names, graph.outputs)
    metadata = graph.metadata
    ends = zip(graph.output_names, graph.outputs)
    proto = helper.make_graph(
        writer.nodes,
        metadata.get("graph_name") or "graph",
        [_value_info(value.name, value, metadata) for value in graph.inputs],
        [_value_info(name, value, metadata) for name, value in ends],
        doc_string=metadata.get("graph_description", ""),
    )
    nodes = [*_all(writer.nodes), *_all(n for function in functions.protos for n in function.node)]
    opset = _opset(max(graph.opset, OPSET), nodes)
    domains = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, _newest(domain)) for domain in sorted(domains)]
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


def _all(nodes: Iterable[Any]) -> Iterator[Any]:
    """The nodes, and those in their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all(attribute.g.node)


def _newest(domain: str) -> int:
    """The version of a domain: the newest of those that are of onnx, 1 of others."""
    import onnx

    known = onnx.defs.get_all_schemas()
    return max((each.since_version for each in known if each.domain == domain), default=1)


def _opset(least: int, nodes: list[Any]) -> int:
    """The first version from `least` on that has every op, with the inputs that it is given."""
    import onnx

    uses: dict[str, int] = {}
    for node in (node for node in nodes if not node.domain):
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
    writer.write(g.take(), outputs, results)
    constants = [
        helper.make_node("Constant", [], [name], value=_attribute(array))
        for name, array in writer.constants.items()
    ]
    return [*constants, *writer.nodes]


class _Writer:
    """Collects the nodes and constants of a graph, body or function; every Value is named once.

    around: the writer of the graph that a body is in, whose values it may name. names: what the
    inputs of a body must be called, if anything.
    """

    def __init__(
        self,
        inputs: Sequence[Value],
        functions: _Functions,
        around: Optional[_Writer] = None,
        names: Optional[Sequence[str]] = None,
    ):
        self.nodes: list[Any] = []
        self._functions = functions
        self._results: dict[Value, str] = {}  # the names that values must have
        self._names: set[str] = set()  # of nodes: one fusion may leave several of one name
        self._known: MutableMapping[Value, str] = {}
        self._dims: MutableMapping[Any, str] = {}
        self._told: MutableMapping[str, tuple[str, int, bool]] = {}  # by symbols, see _tell
        if around is None:
            self.constants: dict[str, np.ndarray] = {}
            self._arrays: dict[int, str] = {}  # the names of constants, by their arrays
            self._taken: set[str] = set()
        else:
            self.constants, self._arrays = around.constants, around._arrays
            self._taken = around._taken
            self._known, self._dims, self._told = (
                ChainMap({}, each)  # type: ignore[arg-type]
                for each in (around._known, around._dims, around._told)
            )
        if names is None:
            fresh = around is not None
            names = [self._fresh(value.name) if fresh else value.name for value in inputs]
        for value, name in zip(inputs, names):
            self.enter(value, name)
            self._taken.update((value.name, name))

    def enter(self, value: Value, name: str) -> None:
        """The value has this name from here on."""
        self._known[value] = name
        self._tell(name, value.shape or (), is_shape=True)
        self._tell(name, value.elements or (), is_shape=False)

    def _tell(self, name: str, dims: Sequence[Dim], is_shape: bool) -> None:
        """What is called so tells these sizes: by its shape, or by its elements."""
        for place, dim in enumerate(dims):
            if isinstance(dim, Expr):
                self._told.setdefault(repr(dim), (name, place, is_shape))

    def _fresh(self, hint: str, taken: Optional[set[str]] = None) -> str:
        """Of values; or of what has the names `taken`."""
        taken = self._taken if taken is None else taken
        name, n = hint, 1
        while name in taken:
            name, n = f"{hint}_{n}", n + 1
        taken.add(name)
        return name

    def write(self, nodes: Iterable[Node], names: Sequence[str], results: Sequence[Value]) -> None:
        """The nodes, and the results under these names."""
        from onnx import helper

        self._results.update(zip(results, names))
        self._taken.update(names)
        for node in nodes:
            self.node(node)
        for name, value in zip(names, results):
            made = self.name(value)
            if made != name:
                self.nodes.append(helper.make_node("Identity", [made], [name]))

    def node(self, node: Node) -> None:
        from onnx import helper

        entry = find(node.op)
        op, operands, given = node.op, node.inputs, _given(node)
        standard = entry.standard(node) if hasattr(entry, "standard") else None
        if standard is not None:
            op, operands, given = standard
        if op == "q7::Deferred":
            self._inline(node)
            return
        if not node.outputs:  # a Loop that nobody reads, which ONNX does not know
            return
        if op.startswith(f"{DOMAIN}::") and not hasattr(entry, "decompose"):
            raise ModelError(f"[{op} {node.name}] has no form in ONNX")
        if node.bodies:
            operands, given = self._flow(node, given)
        inputs = [self.name(value) if value is not None else "" for value in operands]
        outputs = [self._results.get(value) or self._fresh(value.name) for value in node.outputs]
        attrs = {name: _attribute(value) for name, value in given.items()}
        domain, _, op_type = _written(op, node).rpartition("::")
        name = node.name and self._fresh(node.name, self._names)
        proto = helper.make_node(op_type, inputs, outputs, name, domain=domain, **attrs)
        if domain == DOMAIN:
            formals = map(_names, parse(entry.signature), (len(inputs), len(outputs)))
            proto.overload = self._functions.overload(node, *formals)
        self.nodes.append(proto)
        for value, output in zip(node.outputs, outputs):
            self.enter(value, output)

    def _inline(self, node: Node) -> None:
        """What waits for ranks, which ONNX need not be told."""
        body = node.attrs["body"]
        for formal, actual in zip(body.inputs, node.inputs):
            self.enter(formal, self.name(actual))
        results = list(zip(body.outputs, node.outputs))
        self._results.update((i, self._results[out]) for i, out in results if out in self._results)
        for inner in body.nodes:
            self.node(inner)
        for inner, out in results:
            self.enter(out, self.name(inner))

    def _flow(self, node: Node, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The operands and attributes of a node of control flow."""
        if node.attrs.get("batched"):
            raise ModelError(f"{where_is(node)} has batches, as before opset 9")
        count = len(node.inputs) - node.attrs["captures"]
        captures = [self.name(value) for value in node.inputs[count:]]
        attrs = {k: v for k, v in given.items() if k != "captures"}
        if node.op == "Scan":
            attrs["num_scan_inputs"] = node.attrs["num_scan_inputs"]
        for name, body in attrs.items():
            if isinstance(body, Graph):
                attrs[name] = self._graph(body, captures, hasattr(find(node.op), "named_graphs"))
        least = 2 if node.op == "Loop" else 0
        return [*node.inputs[:count], *[None] * (least - count)], attrs

    def _graph(self, body: Graph, captures: list[str], is_named: bool) -> Any:
        """is_named: the names and types of its inputs and outputs say what they are."""
        from onnx import helper

        inputs = body.inputs[: len(body.inputs) - len(captures)]
        if is_named:
            names: Optional[list[str]] = [local_name(value) for value in inputs]
            results, types = body.output_names, body.metadata["formals"]
        else:
            names, results = None, [self._fresh(name) for name in body.output_names]
            types = [value.type if value.shape == () else UNKNOWN for value in inputs]
        writer = _Writer(inputs, self._functions, around=self, names=names)
        for formal, name in zip(body.inputs[len(inputs) :], captures):
            writer.enter(formal, name)
        writer.write(body.nodes, results, body.outputs)
        given = [
            _inside_info(writer.name(value), value, type) for value, type in zip(inputs, types)
        ]
        declared = body.metadata.get("declared", {})
        types = [declared.get(name, UNKNOWN) for name in body.output_names]
        made = [_inside_info(*each) for each in zip(results, body.outputs, types)]
        return helper.make_graph(writer.nodes, body.name or "body", given, made)

    def name(self, value: Value) -> str:
        """The name under which a value can be used, made available first."""
        if value in self._known:
            return self._known[value]
        if value.const is not None:
            name = self._constant(value.const, value.name)
        elif value.producer is None and value.elements is not None:
            name = self._elements(value)
        else:
            raise ModelError(f"nothing before its use produces {value.name}")
        self._known[value] = name
        return name

    def _constant(self, array: np.ndarray, hint: str) -> str:
        name = self._arrays.get(id(array))
        if name is None:
            name = self._arrays[id(array)] = self._fresh(hint)
            self.constants[name] = array
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
                made = self._symbol(rest[0])
            else:
                a, *b = map(self._dim, rest)
                if kind == "floordiv":  # Div rounds towards zero, Mod has the sign of the divisor
                    rest_of_a = self._emit("Mod", a, *b)
                    made = self._emit("Div", self._emit("Sub", a, rest_of_a), *b)
                else:
                    made = self._emit(_ARITHMETIC[kind], a, *b)
            self._dims[atom] = made
        return self._dims[atom]

    def _symbol(self, name: str) -> str:
        if name not in self._told:
            raise ModelError(f"nothing before its use tells the size {name}")
        source, place, is_shape = self._told[name]
        if is_shape:
            return self._emit("Shape", source, start=place, end=place + 1)
        wide = self._emit("Cast", source, to=dtypes.INT64)
        flat = self._emit("Reshape", wide, self._ints([-1]))
        return self._emit("Slice", flat, self._ints([place]), self._ints([place + 1]))

    def _emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        from onnx import helper

        name = self._fresh("q7_size")
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def _ints(self, values: list[int]) -> str:
        key = ("ints", *values)
        if key not in self._dims:
            self._dims[key] = self._constant(
                np.array(values, np.int64), "_".join(map(str, ("q7_ints", *values)))
            )
        return self._dims[key]


def _written(op: str, node: Node) -> str:
    """The op as a model spells it. One that onnx itself evaluates, Op@version, has its version."""
    name, _, version = op.partition("@")
    if version:
        import onnx

        domain, _, kind = name.rpartition("::")
        newest = onnx.defs.get_schema(kind, onnx.defs.onnx_opset_version(), domain)
        if newest.since_version != int(version):
            raise ModelError(f"[{op} {node.name}] has another meaning in newer opsets")
    return name


def _names(formals: Sequence[Formal], count: int) -> list[str]:
    """The first names of one side of a signature; `x*` goes on as x1, x2, .."""
    names = [formal.name for formal in formals]
    return [*names, *(f"{names[-1]}{i}" for i in range(1, count))][:count]


def _given(node: Node) -> dict[str, Any]:
    """The attributes that say something; those of a newer version of an op must stay away."""
    entry = find(node.op)
    defaults, own = entry.attributes, getattr(entry, "own", ())
    return {
        name: value
        for name, value in node.attrs.items()
        if value is not None and name not in own and not _equal(value, defaults.get(name))
    }


def _equal(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


def _attribute(value: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def _value_info(name: str, value: Value, metadata: Mapping[str, Any]) -> Any:
    """Of an input or output of the model, whose metadata say what is no tensor here."""
    from onnx import helper

    text = metadata.get("types", {}).get(name, "")
    if text and not text.startswith("tensor("):
        return helper.make_value_info(name, named_type(text))
    dims = value.shape
    if dims is None and name in metadata.get("declared", {}):
        dims = metadata["declared"][name].shape
    if dims is not None:
        dims = [dim if dim is None or isinstance(dim, int) else str(dim) for dim in dims]
    if value.dtype not in dtypes.DTYPES:
        return helper.make_value_info(name, named_type(text, dims))
    return helper.make_tensor_value_info(name, value.dtype, dims)


def _inside_info(name: str, value: Value, declared: Type) -> Any:
    """Of an input or output of a body: engines infer what it is, but some ask for ranks."""
    from onnx import helper

    shape = declared.shape if value.shape is None else value.shape
    if shape is None or declared.dtype not in dtypes.DTYPES:
        return helper.make_empty_tensor_value_info(name)
    dims = [dim if isinstance(dim, int) else None for dim in shape]
    return helper.make_tensor_value_info(name, declared.dtype, dims)
