"""The attributes of a NodeProto as Python values."""

from __future__ import annotations

from typing import Any

import numpy as np

from q7x2_ep.errors import ModelError
from q7x2_ep.importer.scope import Scope
from q7x2_ep.importer.tensors import Tensors
from q7x2_ep.importer.wire import Message


def attributes(
    proto: Any, scope: Scope, tensors: Tensors, name: str, takes_arrays: bool
) -> tuple[dict, dict]:
    """Those of a node by name, and the graphs among them as they are. takes_arrays: for lists of
    numbers.
    """
    attrs, graphs, where = {}, {}, f"[{proto.op_type} {name}]"
    for attr in proto.attribute:
        resolved = resolve(attr, scope)
        if resolved is None:
            continue
        if resolved.type == resolved.GRAPH:
            graphs[attr.name] = resolved.g
        else:
            attrs[attr.name] = _value(resolved, tensors, where, takes_arrays)
    return attrs, graphs


def _value(attr: Any, tensors: Tensors, where: str, takes_arrays: bool) -> Any:
    """Numbers and text as Python values, lists as tuples, tensors as arrays."""
    if attr.type in (attr.FLOAT, attr.INT):
        return attr.f if attr.type == attr.FLOAT else attr.i
    if attr.type == attr.STRING:
        return attr.s.decode("utf-8", "replace")
    if attr.type in (attr.FLOATS, attr.INTS):
        is_float = attr.type == attr.FLOATS
        numbers = attr.floats if is_float else attr.ints
        if takes_arrays:
            return np.asarray(numbers, np.float32 if is_float else np.int64)
        return tuple(numbers.tolist() if isinstance(numbers, np.ndarray) else numbers)
    if attr.type == attr.STRINGS:
        texts = {text: text.decode("utf-8", "replace") for text in set(attr.strings)}
        return tuple(map(texts.__getitem__, attr.strings))  # of a forest a million, few distinct
    if attr.type == attr.TENSOR:
        return tensors.array(attr.t)
    if attr.type == attr.SPARSE_TENSOR:
        return tensors.dense(attr.sparse_tensor)
    if attr.type == attr.TYPE_PROTO:
        return as_onnx(attr.tp)
    raise ModelError(f"{where} attribute {attr.name} has type {attr.type}, which is not supported")


def resolve(attr: Any, scope: Scope) -> Any:
    """The attribute itself, or what it refers to in the call of the function around it, or None."""
    if not attr.ref_attr_name:
        return attr
    return scope.attrs.get(attr.ref_attr_name)


def as_onnx(message: Any) -> Any:
    """For onnx's own evaluator."""
    return message.as_onnx() if isinstance(message, Message) else message


def constant_array(attrs: dict[str, Any], name: str) -> np.ndarray:
    """The contents of a Constant node."""
    for key, dtype in (("int", np.int64), ("float", np.float32), ("string", object)):
        for name_of_value in (f"value_{key}", f"value_{key}s"):
            if name_of_value in attrs:
                return np.array(attrs[name_of_value], dtype)
    if attrs.get("value") is None:
        raise ModelError(f"[Constant {name}] has no value that is supported")
    return attrs["value"]
