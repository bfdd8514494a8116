"""TypeProtos: what a model says of its inputs, outputs and other values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import NO_TENSOR, UNKNOWN, Type
from q7x2_ep.ir.shape import measured, symbol
from q7x2_ep.request import Request


def type_name(type: Any) -> str:
    """As onnxruntime's NodeArg.type spells a TypeProto: tensor(float), seq(tensor(int64)), .."""
    kind = type.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        name = dtypes.type_string(getattr(type, kind).elem_type)
        return name if kind == "tensor_type" else f"sparse_{name}"
    if kind == "map_type":
        key = dtypes.DTYPES[type.map_type.key_type].onnx
        return f"map({key},{type_name(type.map_type.value_type)})"
    short = {"sequence_type": "seq", "optional_type": "optional"}
    return f"{short[kind]}({type_name(getattr(type, kind).elem_type)})" if kind in short else ""


def named_type(text: str, dims: Optional[Sequence[Any]] = None) -> Any:
    """The TypeProto of such a text, like seq(tensor(float)). dims: of a tensor."""
    from onnx import TypeProto, helper

    kind, _, inner = text.partition("(")
    if kind == "seq":
        return helper.make_sequence_type_proto(named_type(inner[:-1]))
    if kind == "optional":
        return helper.make_optional_type_proto(named_type(inner[:-1]))
    known = {dtype.onnx: code for code, dtype in dtypes.DTYPES.items()}
    if kind == "map":
        key, _, item = inner[:-1].partition(",")
        return helper.make_map_type_proto(known[key], named_type(item))
    is_tensor = kind == "tensor" and inner[:-1] in known
    return helper.make_tensor_type_proto(known[inner[:-1]], dims) if is_tensor else TypeProto()


def declared_outputs(graph: Any) -> dict[str, Type]:
    return {item.name: declared(item.type) for item in graph.output}


def optional_inputs(graph: Any) -> dict[str, Type]:
    """What the optional tensors are, where there is one."""
    types = {item.name: item.type.optional_type.elem_type for item in graph.input}
    return {name: declared(type) for name, type in types.items() if type.HasField("tensor_type")}


def declared(type: Any) -> Type:
    """What a TypeProto says, with dims that it does not name as None."""
    tensor = type.tensor_type
    if not type.HasField("tensor_type"):
        return NO_TENSOR if type.HasField("sequence_type") else UNKNOWN
    if not tensor.HasField("shape"):
        return Type(tensor.elem_type, None)
    return Type(tensor.elem_type, tuple(map(_declared_dim, tensor.shape.dim)))


def _declared_dim(dim: Any) -> Any:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def input_type(item: Any, request: Request) -> Type:
    kind = item.type.WhichOneof("value")
    is_sparse = kind == "sparse_tensor_type"  # which is fed whole
    tensor = item.type.sparse_tensor_type if is_sparse else item.type.tensor_type
    if not is_sparse and kind != "tensor_type":
        optional = item.type.HasField("optional_type")
        return UNKNOWN if optional else NO_TENSOR
    if tensor.elem_type not in dtypes.DTYPES:
        raise ModelError(f"input {item.name}: element type {tensor.elem_type} is not supported")
    dims = tensor.shape.dim
    if not tensor.HasField("shape") or not (dims or request.regular):
        return Type(tensor.elem_type, None)
    shape = tuple(_dim(dim, item.name, i, request) for i, dim in enumerate(dims))
    return Type(tensor.elem_type, shape)


def _dim(dim: Any, value: str, axis: int, request: Request) -> Any:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    fixed = request.denotations.get(dim.denotation, request.dims.get(dim.dim_param, -1))
    if fixed >= 0 and (dim.denotation or dim.dim_param):
        return fixed
    if not request.regular:
        return measured(value, axis)
    is_named = any(map(str.isalnum, dim.dim_param))  # "?" is no name
    return symbol(dim.dim_param if is_named else f"{value}_d{axis}")
