"""onnx bytes -> IR.

What comes out holds only ops of the catalogue, in their newest form (opset.py), with every
attribute filled in; local functions are inlined, Constant nodes and initialisers are constants, and
what a body takes from the graphs around it are inputs of its own. Types beyond inputs and constants
are not known yet: passes/infer.py finds them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Callable, Optional, Union

import numpy as np

from q7x2_ep import ops
from q7x2_ep.errors import CorruptModel, FeedError, ModelError, ModelNotFound, UnsupportedOp
from q7x2_ep.files import map_file
from q7x2_ep.importer.attributes import as_onnx, attributes, constant_array, resolve
from q7x2_ep.importer.contrib import expand
from q7x2_ep.importer.loops import hoisted
from q7x2_ep.importer.opset import Draft, Maker, modernise
from q7x2_ep.importer.order import in_order
from q7x2_ep.importer.scope import OMITTED, Names, Scope
from q7x2_ep.importer.signature import check_count, check_outputs
from q7x2_ep.importer.tensors import Tensors, fitting
from q7x2_ep.importer.types import declared, declared_outputs, input_type, type_name
from q7x2_ep.importer.wire import parse
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Type, Value, array_type
from q7x2_ep.ops.host import standard_name
from q7x2_ep.request import AS_IT_IS, Request

# A larger model file is mapped, a smaller one read: then it may be overwritten while it is in use.
MAP_BYTES = 1 << 26
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")
_RANDOM += ("RandomNormalLike", "RandomUniformLike")
_NO_VERSION = 2**63 - 1  # what onnxruntime says of a model without one


def read(model: Union[str, os.PathLike, bytes, Any], request: Request = AS_IT_IS) -> Graph:
    """The graph of an ONNX model given as a path, as bytes, or as an onnx.ModelProto.

    Raises: ModelNotFound, ModelError with the source and the reason, UnsupportedOp with all
    unsupported ops.
    """
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        folder = os.path.dirname(os.path.abspath(path))
        graph = _from_bytes(_load(path), path, folder, request)
        graph.metadata["path"] = path
        return graph
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(model), "model bytes", None, request)
    if hasattr(model, "graph") and hasattr(model, "opset_import"):
        return _Reader(model, "ModelProto", Tensors(None, request.files), request).graph
    raise TypeError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")


def _load(path: str) -> Any:
    try:
        if os.path.getsize(path) >= MAP_BYTES:
            return map_file(path)
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise ModelNotFound(
            f"Load model from {path} failed: there is no model file at {path}: File doesn't exist"
        ) from None
    except OSError as error:
        raise CorruptModel(
            f"Load model from {path} failed: cannot read it: {error.strerror}"
        ) from error


def _from_bytes(data: Any, source: str, folder: Optional[str], request: Request) -> Graph:
    if not data:
        raise ModelError(f"{source} is empty: No graph was found in the protobuf.")
    try:
        model = parse(data)
    except ValueError as error:
        raise CorruptModel(
            f"Protobuf parsing failed: {source} is not an ONNX model, or is cut off: {error}"
        ) from error
    return _Reader(model, source, Tensors(folder, request.files), request).graph


class _Reader:
    """Reads one model. The first broken thing raises ModelError; unsupported ops are collected."""

    def __init__(self, model: Any, source: str, tensors: Tensors, request: Request):
        self.tensors = tensors
        self.request = request
        self.model = model
        self.names = _value_names(model.graph)
        self.node_names: set[str] = set()
        self.unsupported: list[tuple[str, str]] = []  # op, node name
        self.functions = {
            (f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions
        }
        self.graph = Graph(name=model.graph.name)
        try:
            self.read_model(model)
        except (ModelNotFound, FeedError):
            raise
        except ModelError as error:
            raise type(error)(f"{source}: {error.message}") from error
        except (
            Exception
        ) as error:  # broken bytes can break any assumption, such as names being text
            raise ModelError(f"{source} is not a valid ONNX model: {error!r}") from error
        if self.unsupported:
            raise UnsupportedOp(f"{source}: {_unsupported_text(self.unsupported)}")

    def read_model(self, model: Any) -> None:
        versions = _versions(model.opset_import)
        if not model.graph.output or not versions:
            raise ModelError(
                "not an ONNX model: it has no graph outputs, or names no operator set: Missing "
                "opset in the model"
            )
        scope = Scope({}, {}, versions, "", ())
        self.graph.opset = versions.get("", 0)
        self.read_initializers(model.graph, scope)
        overridable = self.read_inputs(model.graph, scope)
        self.read_nodes(model.graph.node, scope)
        for output in model.graph.output:
            self.graph.outputs.append(self.value(scope, output.name, "the graph's outputs"))
            self.graph.output_names.append(output.name)
        for name in self.request.outputs:
            if scope.values.get(name) is None:
                raise FeedError(
                    f"Invalid output name: {name}: the model has no value of this name; its "
                    f"outputs are {[output.name for output in model.graph.output]}"
                )
            self.graph.outputs.append(scope.values[name])
            self.graph.output_names.append(name)
        self.graph.external_weights = self.tensors.has_external()
        self.graph.metadata = {
            "path": None,
            "files": self.tensors.files(self.request.files),
            "producer_name": model.producer_name,
            "graph_name": model.graph.name,
            "graph_description": model.graph.doc_string,
            "description": model.doc_string,
            "domain": model.domain,
            "version": model.model_version if model.HasField("model_version") else _NO_VERSION,
            "custom_metadata_map": {entry.key: entry.value for entry in model.metadata_props},
            "overridable": overridable,
            "types": {
                item.name: type_name(item.type)
                for item in (*model.graph.input, *model.graph.output)
            },
            "declared": declared_outputs(model.graph),
        }

    def read_initializers(self, graph: Any, scope: Scope) -> None:
        for sparse in graph.sparse_initializer:
            self.define_constant(scope, sparse.values.name, self.tensors.dense(sparse))
        for tensor in graph.initializer:
            if tensor.name not in self.request.live:
                array = self.request.initializers.get(tensor.name)
                array = self.tensors.array(tensor) if array is None else fitting(tensor, array)
                self.define_constant(scope, tensor.name, array)

    def read_inputs(self, graph: Any, scope: Scope) -> dict[str, Type]:
        """Adds the graph's inputs; returns those that an initializer fixes."""
        overridable = {}
        for item in graph.input:
            type = input_type(item, self.request)
            if item.name in scope.values:
                overridable[item.name] = type
                continue
            value = self.define(scope, item.name)
            value.set_type(type)
            self.graph.inputs.append(value)
        return overridable

    def read_nodes(self, nodes: Sequence[Any], scope: Scope) -> None:
        for i in in_order(nodes):
            proto = nodes[i]
            name = scope.prefix + (proto.name or f"{proto.op_type}_{i}")
            name = self.unique(name, self.node_names)
            try:
                self.read_node(proto, scope, name)
            except ModelError:
                raise
            except Exception as error:  # such as an attribute that the op cannot be without
                raise ModelError(f"[{proto.op_type} {name}] is malformed: {error!r}") from error

    def read_body(self, body: Any, scope: Scope, name: str) -> tuple[Graph, dict[Value, Value]]:
        """A graph among the attributes of a node, and its inputs for values around it."""
        names = Names(scope.values)
        inner = scope._replace(values=names, prefix=f"{name}/")
        around, self.graph = self.graph, Graph(body.name)
        try:
            self.read_initializers(body, inner)
            for item in body.input:
                if item.name not in names:
                    self.graph.inputs.append(self.define(inner, item.name))
            self.read_nodes(body.node, inner)
            self.graph.outputs = [
                self.value(inner, output.name, f"the outputs of {name}") for output in body.output
            ]
            self.graph.output_names = [output.name for output in body.output]
            self.graph.metadata["declared"] = declared_outputs(body)
            return self.graph, names.captures
        finally:
            self.graph = around

    def read_bodies(
        self, graphs: Mapping[str, Any], scope: Scope, name: str
    ) -> tuple[dict, tuple[Value, ...]]:
        """The graphs among the attributes of a node, each with an input for every value that one of
        them takes from around them.
        """
        read = {key: self.read_body(graph, scope, f"{name}/{key}") for key, graph in graphs.items()}
        captures = tuple(dict.fromkeys(value for _, taken in read.values() for value in taken))
        for body, taken in read.values():
            body.inputs += [taken.get(value) or Value(value.name) for value in captures]
        return {key: body for key, (body, _) in read.items()}, captures

    def read_node(self, proto: Any, scope: Scope, name: str) -> None:
        attrs, graphs = attributes(proto, scope, self.tensors, name)
        if self.request.seed is not None and proto.op_type in _RANDOM:
            attrs.setdefault("seed", float(self.request.seed + len(self.node_names)))
        captures: tuple[Value, ...] = ()
        if graphs:
            bodies, captures = self.read_bodies(graphs, scope, name)
            attrs = {**attrs, **bodies, "captures": len(captures)}
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        key = (proto.domain, proto.op_type, getattr(proto, "overload", ""))
        if key in self.functions:
            self.inline(self.functions[key], proto, scope, name)
        elif proto.op_type == "Constant" and not domain:
            self.define_constant(scope, proto.output[0], constant_array(attrs, name))
        else:
            op = f"{domain}::{proto.op_type}" if domain else proto.op_type
            draft = Draft(op, list(proto.input), list(proto.output), attrs, name, captures)
            self.read_op(draft, proto, domain, scope)

    def read_op(self, draft: Draft, proto: Any, domain: str, scope: Scope) -> None:
        op, name = draft.op, draft.name
        function = self.request.functions.get((domain, proto.op_type))
        if function is not None:
            self.add(self.python(draft, function), scope, name)
            return
        version = scope.versions.get(domain, 0)
        maker = self.maker(scope)
        given = Draft(op, [*draft.inputs], draft.outputs, {**draft.attrs}, name, draft.captures)
        drafts = expand(draft, maker)
        if not domain and drafts == [draft]:
            drafts = modernise(draft, version, maker)
        if all(ops.find(each.op) for each in drafts):
            for each in drafts:
                self.add(each, scope, name)
            return
        schema = _standard_function(proto.op_type, version, domain)
        if schema is not None:
            defaults = {key: attr.default_value for key, attr in schema.attributes.items()}
            self.inline(schema.function_body, proto, scope, name, defaults)
            return
        standard = standard_name(proto.op_type, version, domain)
        if standard is not None and not draft.captures:
            graphs = {a.name: as_onnx(a.g) for a in proto.attribute if a.type == a.GRAPH}
            if graphs:  # onnx evaluates them itself
                given.attrs = {
                    k: v for k, v in {**given.attrs, **graphs}.items() if k != "captures"
                }
            self.add(replace(given, op=standard), scope, name)
            node = self.graph.nodes[-1]
            try:
                ops.find(standard).evaluator(node)
            except Exception:  # onnx has no implementation
                self.graph.nodes.pop().detach()
            else:
                return
        self.unsupported.append((op, name))
        for output in filter(None, proto.output):
            if output not in scope.values:
                self.define(scope, output)

    @cached_property
    def declared(self) -> dict[str, Type]:
        """What the model says of its values, by name."""
        return {item.name: declared(item.type) for item in self.model.graph.value_info}

    def python(self, draft: Draft, function: Callable[..., Any]) -> Draft:
        """The call of a Python function in place of an op; the model may declare its outputs."""
        types = tuple(self.declared.get(name, UNKNOWN) for name in draft.outputs)
        attrs = {"op": draft.op, "function": function, "arguments": draft.attrs, "types": types}
        return replace(draft, op="q7::Python", attrs=attrs)

    def add(self, draft: Draft, scope: Scope, source: str) -> None:
        """A node of the catalogue, checked against its entry's signature and attributes."""
        entry = ops.find(draft.op)
        where = f"[{draft.op} {draft.name}]"
        unknown = sorted(draft.attrs.keys() - entry.attributes.keys())
        if unknown:
            known = ", ".join(entry.attributes) or "none"
            raise ModelError(f"{where} unknown attributes {', '.join(unknown)}; known: {known}")
        inputs = [self.value(scope, name, where) if name else None for name in draft.inputs]
        inputs += draft.captures
        check_count(inputs, entry.signature, where)
        check_outputs(draft.outputs, entry.signature, where)
        outputs = [
            self.define(scope, name) if name else self.unnamed(draft, i)
            for i, name in enumerate(draft.outputs)
        ]
        attrs = {**entry.attributes, **draft.attrs}
        if draft.op == "Slice" and not self.request.regular:
            attrs["exact"] = True
        node = Node(draft.op, inputs, outputs, attrs, draft.name, (source,))
        self.graph.nodes += hoisted(node) if draft.op == "Loop" else [node]

    def inline(
        self, function: Any, call: Any, scope: Scope, name: str, defaults: Mapping = {}
    ) -> None:
        """The nodes of a function in place of its call, whose name goes before theirs."""
        key = (function.domain, function.name)
        if key in scope.functions:
            raise ModelError(f"[{function.name} {name}] the function calls itself")
        own = {attr.name: attr for attr in function.attribute_proto}
        defaults = {key: attr for key, attr in {**defaults, **own}.items() if attr.name}
        given = {attr.name: resolve(attr, scope) for attr in call.attribute}
        given = {name: attr for name, attr in given.items() if attr is not None}
        versions = _versions(function.opset_import) or scope.versions
        inner = Scope({}, {**defaults, **given}, versions, f"{name}/", (*scope.functions, key))
        for formal, actual in zip(function.input, call.input):
            if actual:
                inner.values[formal] = (
                    self.value(scope, actual, f"[{function.name} {name}]") or OMITTED
                )
        for formal in function.input:
            inner.values.setdefault(formal, OMITTED)
        self.read_nodes(function.node, inner)
        for formal, actual in zip(function.output, call.output):
            if actual:
                value = self.value(inner, formal, f"[{function.name} {name}]")
                if value.producer is not None and value.name.startswith(inner.prefix):
                    value.name = self.local_name(scope, actual)
                scope.values[actual] = value

    def maker(self, scope: Scope) -> Maker:
        def constant(array: np.ndarray, hint: str) -> str:
            name = self.unique(hint)
            self.define_constant(scope, name, array)
            return name

        return Maker(constant, self.unique)

    def define_constant(self, scope: Scope, name: str, array: np.ndarray) -> None:
        value = self.define(scope, name)
        value.const = array
        value.set_type(array_type(array))

    def define(self, scope: Scope, name: str) -> Value:
        if name in scope.values:
            raise ModelError(f"value {scope.prefix}{name} is defined twice")
        value = scope.values[name] = Value(self.local_name(scope, name))
        return value

    def local_name(self, scope: Scope, name: str) -> str:
        """What a value of a scope is called in the graph; names of the model itself stay."""
        return self.unique(scope.prefix + name) if scope.prefix else name

    def unnamed(self, draft: Draft, i: int) -> Value:
        """An output that the model leaves out but later outputs follow."""
        return Value(self.unique(f"{draft.name}_output_{i}"))

    def value(self, scope: Scope, name: str, where: str) -> Optional[Value]:
        value = scope.values.get(name)
        if value is None:
            raise ModelError(f"{where}: nothing before it produces {scope.prefix}{name}")
        return None if value is OMITTED else value

    def unique(self, name: str, taken: Optional[set[str]] = None) -> str:
        """name, or name_1, name_2, .. if it is taken; takes it."""
        taken = self.names if taken is None else taken
        candidate, i = name, 0
        while candidate in taken:
            i += 1
            candidate = f"{name}_{i}"
        taken.add(candidate)
        return candidate


def _value_names(graph: Any) -> set[str]:
    names = {item.name for item in (*graph.input, *graph.initializer)}
    return names.union(*(node.output for node in graph.node))


def _versions(opset_import: Iterable[Any]) -> dict[str, int]:
    return {"" if item.domain == "ai.onnx" else item.domain: item.version for item in opset_import}


def _standard_function(op_type: str, version: int, domain: str) -> Any:
    """The schema of an op that the ONNX standard defines by ops of the catalogue, or None."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    if not schema.has_function:
        return None
    body = schema.function_body
    known = all(node.op_type == "Constant" or ops.find(node.op_type) for node in body.node)
    return schema if known else None


def _unsupported_text(found: list[tuple[str, str]]) -> str:
    counts = Counter(op for op, _ in found)
    lines = []
    for op, count in sorted(counts.items()):
        names = [name for each, name in found if each == op]
        more = f", and {count - 8} more" if count > 8 else ""
        lines.append(f"{op} ({count} node{'s' * (count > 1)}: {', '.join(names[:8])}{more})")
    text = f"{len(counts)} unsupported op{'s' * (len(counts) > 1)}: {'; '.join(lines)}"
    if any(op.startswith("com.microsoft.nchwc::") for op in counts):
        text += (
            "; onnxruntime saved this model for the CPU that it ran on, with weights in blocks of "
            "a size that the file does not tell: save it at ORT_ENABLE_EXTENDED or below"
        )
    return text
