"""Nodes -> IR: ops of the catalogue alone, in their newest form (opset.py), with every attribute
filled in. Local functions are inlined, Constant nodes are constants, and what a body takes from the
graphs around it are inputs of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Callable

from q7x2_ep import ops
from q7x2_ep.errors import ModelError
from q7x2_ep.importer.attributes import as_onnx, attributes, constant_array, resolve
from q7x2_ep.importer.contrib import expand
from q7x2_ep.importer.loops import as_declared, hoisted
from q7x2_ep.importer.opset import NEWEST, Draft, modernise, opset_versions
from q7x2_ep.importer.order import in_order
from q7x2_ep.importer.scope import OMITTED, Definitions, Names, Scope
from q7x2_ep.importer.tensors import Tensors, fitting
from q7x2_ep.importer.types import declared, declared_outputs
from q7x2_ep.ir.core import UNKNOWN, Graph, Node, Type, Value
from q7x2_ep.ops.host import standard_name
from q7x2_ep.ops.signature import check_count, check_outputs
from q7x2_ep.request import Request

_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform")
_RANDOM += ("RandomNormalLike", "RandomUniformLike", "Dropout")

MOST_CALLS = 1 << 16  # of functions, that call others: 30 levels of two calls each are 2^30


class NodeReader:
    """Adds the nodes of a model to a graph: `graph`, or while a body is read its own. The first
    broken node raises ModelError; unsupported ops are collected.
    """

    def __init__(self, model: Any, graph: Graph, tensors: Tensors, request: Request):
        self.model = model
        self.graph = graph
        self.tensors = tensors
        self.request = request
        self.values = Definitions(_value_names(model.graph))
        self.node_names: set[str] = set()
        self.calls = 0  # of functions
        self.unsupported: list[tuple[str, str]] = []  # op, node name
        self.functions = {
            (f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions
        }

    def read_initializers(self, graph: Any, scope: Scope) -> None:
        for sparse in graph.sparse_initializer:
            self.values.define_constant(scope, sparse.values.name, self.tensors.dense(sparse))
        for tensor in graph.initializer:
            if tensor.name not in self.request.live:
                array = self.request.initializers.get(tensor.name)
                array = self.tensors.array(tensor) if array is None else fitting(tensor, array)
                self.values.define_constant(scope, tensor.name, array)

    def read_nodes(self, nodes: Sequence[Any], scope: Scope) -> None:
        for i in in_order(nodes):
            proto = nodes[i]
            name = scope.prefix + (proto.name or f"{proto.op_type}_{i}")
            name = self.values.unique(name, self.node_names)
            try:
                self.read_node(proto, scope, name)
            except (ModelError, MemoryError):
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
            formals = [item for item in body.input if item.name not in names]
            self.graph.inputs = [self.values.define(inner, item.name) for item in formals]
            self.graph.metadata["formals"] = [declared(item.type) for item in formals]
            self.read_nodes(body.node, inner)
            self.graph.outputs = [
                self.values.value(inner, output.name, f"the outputs of {name}")
                for output in body.output
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
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        op = f"{domain}::{proto.op_type}" if domain else proto.op_type
        takes_arrays = getattr(ops.find(op), "takes_arrays", False)
        attrs, graphs = attributes(proto, scope, self.tensors, name, takes_arrays)
        if self.request.seed is not None and proto.op_type in _RANDOM:
            attrs.setdefault("seed", float(self.request.seed + len(self.node_names)))
        captures: tuple[Value, ...] = ()
        if graphs:
            bodies, captures = self.read_bodies(graphs, scope, name)
            attrs = {**attrs, **bodies, "captures": len(captures)}
        function = self.function_of(proto)
        if function is not None and domain not in NEWEST:
            self.inline(function, proto, scope, name)
        elif proto.op_type == "Constant" and not domain:
            self.values.define_constant(scope, proto.output[0], constant_array(attrs, name))
        else:
            draft = Draft(op, list(proto.input), list(proto.output), attrs, name, captures)
            self.read_op(draft, proto, domain, scope)

    def function_of(self, proto: Any) -> Any:
        """The local function that a node calls, or None. In a domain that has ops of its own, an op
        goes before the function of its name, as in onnxruntime.
        """
        return self.functions.get((proto.domain, proto.op_type, getattr(proto, "overload", "")))

    def read_op(self, draft: Draft, proto: Any, domain: str, scope: Scope) -> None:
        op, name = draft.op, draft.name
        python = self.request.functions.get((domain, proto.op_type))
        if python is not None:
            self.add(self.python(draft, python), scope, name)
            return
        version = scope.versions.get(domain, 0)
        maker = self.values.maker(scope)
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
        function = self.function_of(proto)
        if function is not None:
            self.inline(function, proto, scope, name)
            return
        self.unsupported.append((op, name))
        for output in filter(None, proto.output):
            if output not in scope.values:
                self.values.define(scope, output)

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
            known, kind = ", ".join(entry.attributes) or "none", draft.op.rpartition("::")[2]
            raise ModelError(
                f"{where} Unrecognized attribute: {', '.join(unknown)} for operator {kind}; known: "
                f"{known}"
            )
        inputs = [self.values.value(scope, name, where) if name else None for name in draft.inputs]
        inputs += draft.captures
        check_count(inputs, entry.signature, where)
        check_outputs(draft.outputs, entry.signature, where)
        outputs = [
            self.values.define(scope, name) if name else self.unnamed(draft, i)
            for i, name in enumerate(draft.outputs)
        ]
        attrs = {**entry.attributes, **draft.attrs}
        for key, values in getattr(entry, "choices", {}).items():
            if attrs[key] not in values:
                raise ModelError(f"{where} {key} is {attrs[key]!r}, not one of {[*values]}")
        if "exact" in entry.attributes and not self.request.regular:
            attrs["exact"] = True
        if "in_bytes" in entry.attributes and self.request.rounds_rows:
            attrs["in_bytes"] = True
        node = Node(draft.op, inputs, outputs, attrs, draft.name, (source,))
        if draft.op == "Loop":
            as_declared(attrs["body"])
            self.graph.nodes += hoisted(node)
        else:
            self.graph.nodes.append(node)

    def unnamed(self, draft: Draft, i: int) -> Value:
        """An output that the model leaves out but later outputs follow."""
        return Value(self.values.unique(f"{draft.name}_output_{i}"))

    def inline(
        self, function: Any, call: Any, scope: Scope, name: str, defaults: Mapping = {}
    ) -> None:
        """The nodes of a function in place of its call, whose name goes before theirs."""
        key = (function.domain, function.name)
        if key in scope.functions:
            raise ModelError(f"[{function.name} {name}] the function calls itself")
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise ModelError(
                f"[{function.name} {name}] the functions of the model call one another more than "
                f"{MOST_CALLS:,} times"
            )
        own = {attr.name: attr for attr in function.attribute_proto}
        defaults = {key: attr for key, attr in {**defaults, **own}.items() if attr.name}
        given = {attr.name: resolve(attr, scope) for attr in call.attribute}
        given = {name: attr for name, attr in given.items() if attr is not None}
        versions = opset_versions(function.opset_import) or scope.versions
        inner = Scope({}, {**defaults, **given}, versions, f"{name}/", (*scope.functions, key))
        for formal, actual in zip(function.input, call.input):
            if actual:
                inner.values[formal] = (
                    self.values.value(scope, actual, f"[{function.name} {name}]") or OMITTED
                )
        for formal in function.input:
            inner.values.setdefault(formal, OMITTED)
        self.read_nodes(function.node, inner)
        for formal, actual in zip(function.output, call.output):
            if actual:
                value = self.values.value(inner, formal, f"[{function.name} {name}]")
                if value.producer is not None and value.name.startswith(inner.prefix):
                    value.name = self.values.local_name(scope, actual)
                scope.values[actual] = value


def _value_names(graph: Any) -> set[str]:
    names = {item.name for item in (*graph.input, *graph.initializer)}
    return names.union(*(node.output for node in graph.node))


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
