"""Ops without an entry of their own: any version of an op of the ONNX standard, by onnx.reference,
and Python functions that a user has registered. Both run on the host, one node at a time.

`find` makes an entry of the first kind for a name like `Unique@11` or `ai.onnx.ml::Scaler@1`: op
and the version that it came with, since these are not rewritten to the newest form.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Optional
from weakref import WeakKeyDictionary

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import NO_TENSOR, UNKNOWN, Node, Type, Value
from q7x2_ep.ir.shape import Dim, Expr
from q7x2_ep.ops import op
from q7x2_ep.ops.common import fresh
from q7x2_ep.ops.signature import Formal, Signature

_NAME = re.compile(r"(?:(?P<domain>[\w.]+)::)?(?P<op>\w+)@(?P<version>\d+)$")
MAX_DATA = 1024  # contents of constants of up to this many elements are shown to onnx's inference


@functools.cache
def standard_entry(name: str) -> Optional[HostOp]:
    """The entry for `domain::Op@version`, or None where onnx has no such op."""
    import onnx

    found = _NAME.match(name)
    if not found:
        return None
    domain, kind, version = found["domain"] or "", found["op"], int(found["version"])
    try:
        return HostOp(onnx.defs.get_schema(kind, version, domain))
    except onnx.defs.SchemaError:
        return None


def standard_name(kind: str, version: int, domain: str) -> Optional[str]:
    """The name under which `find` knows an op of a model of that opset version, if it can run."""
    import onnx

    try:
        schema = onnx.defs.get_schema(kind, version, domain)
    except onnx.defs.SchemaError:
        return None
    name = f"{domain}::{kind}" if domain else kind
    return f"{name}@{schema.since_version}"


class HostOp:
    """The catalogue entry of an op, made from its schema in onnx."""

    def __init__(self, schema: Any):
        self.schema = schema
        self.signature = Signature(_formals(schema.inputs), _formals(schema.outputs))
        self.attributes = {name: _default(attr) for name, attr in schema.attributes.items()}
        self._evaluators: WeakKeyDictionary[Node, Any] = WeakKeyDictionary()

    def infer(self, node: Node) -> list[Type]:
        """As onnx infers it, with symbols of the node's own for dims that it cannot tell."""
        import onnx

        operands = [value for value in node.inputs if value is not None]
        if any(value.shape is None or value.dtype <= 0 for value in operands):
            return [UNKNOWN] * len(node.outputs)
        dims: dict[str, Dim] = {}
        named = dict(zip(_names(node.inputs, "x"), node.inputs))
        types = {name: _type_proto(value, dims) for name, value in named.items() if name}
        known = {name: _contents(value) for name, value in named.items() if name}
        try:
            found = onnx.shape_inference.infer_node_outputs(
                self.schema,
                self._proto(node),
                types,
                {name: data for name, data in known.items() if data is not None},
                opset_imports=[onnx.helper.make_opsetid(self.schema.domain, self._version)],
            )
        except Exception:  # what onnx cannot infer, a run will tell
            found = {}
        names = _names(node.outputs, "y")
        return [_type(found.get(name), node, i, dims) for i, name in enumerate(names)]

    def reference(self, node: Node, *arrays: Any) -> tuple:
        """By onnx's own evaluator; of 16-bit floats, which much of numpy lacks, in float32."""
        if node not in self._evaluators:
            self._evaluators[node] = self.evaluator(node)
        halves: dict[str, Any] = {}  # by type parameter
        feeds = {}
        for i, (name, array) in enumerate(zip(_names(node.inputs, "x"), arrays)):
            if isinstance(array, np.ndarray) and dtypes.from_numpy(array.dtype) in dtypes.HALVES:
                halves[self.signature.input(i).type] = array.dtype
                array = array.astype(np.float32)
            if name:
                feeds[name] = array
        results = self._evaluators[node].run(None, feeds)
        halves.pop("", None)
        if not halves:
            return tuple(results)
        formals = self.signature.outputs
        kinds = [formals[min(i, len(formals) - 1)].type for i in range(len(results))]
        given = next(iter(halves.values()))
        return tuple(
            [each.astype(given) for each in result]  # a list that was made of one tensor
            if isinstance(result, list)
            else np.asarray(result).astype(halves[kind])
            if kind in halves
            else result
            for kind, result in zip(kinds, results)
        )

    def evaluator(self, node: Node) -> Any:
        """onnx's evaluator of this one node.

        Raises: an error of onnx where it has no implementation.
        """
        import onnx
        from onnx.reference import ReferenceEvaluator

        def infos(names: list[str]) -> list:
            return [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names if name]

        proto = self._proto(node)
        graph = onnx.helper.make_graph(
            [proto], node.name or "node", infos(proto.input), infos(proto.output)
        )
        opset = onnx.helper.make_opsetid(self.schema.domain, self._version)
        return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[opset]))

    @property
    def _version(self) -> int:
        return self.schema.since_version

    def _proto(self, node: Node) -> Any:
        import onnx

        proto = onnx.helper.make_node(
            self.schema.name,
            _names(node.inputs, "x"),
            _names(node.outputs, "y"),
            node.name,
            domain=self.schema.domain,
        )
        for key, value in node.attrs.items():
            if value is not None:
                if isinstance(value, np.ndarray):
                    value = onnx.numpy_helper.from_array(value)
                kind = int(self.schema.attributes[key].type.value)
                proto.attribute.append(onnx.helper.make_attribute(key, value, attr_type=kind))
        return proto


@op("q7::Python")
class Python:
    """Whatever a Python function makes of the inputs: function(*arrays, **attributes).

    The function takes arrays (None for omitted inputs) and the attributes of the node, and returns
    an array, or a tuple of them where the node has several outputs. types: what is declared of the
    outputs.
    """

    signature = "inputs* -> outputs*"
    attributes = {"op": "", "function": None, "arguments": None, "types": ()}
    is_random = True  # nobody knows what else it depends on

    def infer(node: Node) -> list[Type]:
        types = [*node.attrs["types"], *[UNKNOWN] * len(node.outputs)]
        return [
            UNKNOWN if type.shape is None else Type(type.dtype, fresh(node, i, len(type.shape)))
            for i, type in enumerate(types[: len(node.outputs)])
        ]

    def reference(node: Node, *arrays: Any) -> Any:
        made = node.attrs["function"](*arrays, **(node.attrs["arguments"] or {}))
        results = made if isinstance(made, tuple) else (made,)
        # the function may write to its own arrays again
        own = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in results)
        return own if isinstance(made, tuple) else own[0]


def _names(values: Sequence[Optional[Value]], kind: str) -> list[str]:
    """By place: passes may replace an operand by another of any name."""
    return ["" if value is None else f"{kind}{i}" for i, value in enumerate(values)]


def _formals(formals: Any) -> tuple[Formal, ...]:
    marks = {"Single": "", "Optional": "?", "Variadic": "*"}
    codes = {dtypes.type_string(code): code for code in dtypes.DTYPES}
    return tuple(
        Formal(
            formal.name,
            marks[formal.option.name],
            formal.type_str if formal.is_homogeneous else "",
            frozenset(codes[type] for type in formal.types if type in codes),
        )
        for formal in formals
    )


def _default(attr: Any) -> Any:
    import onnx

    value = attr.default_value
    if not value.name:
        return None
    default = onnx.helper.get_attribute_value(value)
    if isinstance(default, bytes):
        return default.decode()
    if isinstance(default, (list, tuple)):
        return tuple(each.decode() if isinstance(each, bytes) else each for each in default)
    return default


def _type_proto(value: Value, dims: dict[str, Dim]) -> Any:
    """The type as onnx spells it; dims collects what its names for dims stand for."""
    import onnx

    shape = []
    for dim in value.shape:
        shape.append(dim if isinstance(dim, int) else repr(dim))
        dims[repr(dim)] = dim
    return onnx.helper.make_tensor_type_proto(value.dtype, shape)


def _contents(value: Value) -> Any:
    import onnx

    array = value.const
    if array is None and value.elements is not None:
        if any(isinstance(element, Expr) for element in value.elements):
            return None
        array = dtypes.make_array(value.elements, value.dtype, value.shape)
    if array is None or array.size > MAX_DATA:
        return None
    return onnx.numpy_helper.from_array(array, value.name)


def _type(found: Any, node: Node, i: int, dims: dict[str, Dim]) -> Type:
    if found is None or found.WhichOneof("value") is None:
        return UNKNOWN
    if not found.HasField("tensor_type"):
        return UNKNOWN if found.HasField("optional_type") else NO_TENSOR
    tensor = found.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return UNKNOWN
    shape: list[Dim] = list(fresh(node, i, len(tensor.shape.dim)))
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            shape[axis] = dim.dim_value
        elif dim.dim_param in dims:
            shape[axis] = dims[dim.dim_param]
    return Type(tensor.elem_type, tuple(shape))
