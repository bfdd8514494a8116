"""Reads a serialized model: protobuf's wire format, and those fields of onnx.proto that are used.

Messages look as protobuf's own do, so that reader.py takes an onnx.ModelProto as well, but bytes of
tensors are views of the file: protobuf copies them, and a model of 1 GB with its weights in the
branches of an If takes it 4.9 s and 3.0 GB. Nor is protobuf imported, which takes a third of the
first session of a small model; a node takes 4 us more than there.
Source: the protobuf encoding (tag = field << 3 | wire type) and onnx.proto.
"""

from __future__ import annotations

import re
import struct
from typing import Any, ClassVar, Optional, Union

import numpy as np

# By message: number and name of each field, * where it is repeated, and its kind.
_SCHEMA = """
AttributeProto: 1 name text, 2 f float, 3 i int, 4 s bytes, 5 t TensorProto, 6 g GraphProto,
    7 floats* float, 8 ints* int, 9 strings* bytes, 11 graphs* GraphProto, 14 tp TypeProto,
    20 type int, 21 ref_attr_name text, 22 sparse_tensor SparseTensorProto
Dimension: 1 dim_value int, 2 dim_param text, 3 denotation text
FunctionProto: 1 name text, 4 input* text, 5 output* text, 7 node* NodeProto,
    9 opset_import* OperatorSetIdProto, 10 domain text, 11 attribute_proto* AttributeProto,
    13 overload text
GraphProto: 1 node* NodeProto, 2 name text, 5 initializer* TensorProto, 10 doc_string text,
    11 input* ValueInfoProto, 12 output* ValueInfoProto, 15 sparse_initializer* SparseTensorProto
Inferred: 13 value_info* ValueInfoProto
Map: 1 key_type int, 2 value_type TypeProto
ModelProto: 1 ir_version int, 2 producer_name text, 4 domain text, 5 model_version int,
    6 doc_string text, 7 graph GraphProto, 8 opset_import* OperatorSetIdProto,
    14 metadata_props* StringStringEntryProto, 25 functions* FunctionProto
NodeProto: 1 input* text, 2 output* text, 3 name text, 4 op_type text, 5 attribute* AttributeProto,
    7 domain text, 8 overload text
Of: 1 elem_type TypeProto
OperatorSetIdProto: 1 domain text, 2 version int
SparseTensorProto: 1 values TensorProto, 2 indices TensorProto, 3 dims* int
StringStringEntryProto: 1 key text, 2 value text
Tensor: 1 elem_type int, 2 shape TensorShapeProto
TensorProto: 1 dims* int, 2 data_type int, 4 float_data* float, 5 int32_data* int,
    6 string_data* bytes, 7 int64_data* int, 8 name text, 9 raw_data view, 10 double_data* double,
    11 uint64_data* unsigned, 13 external_data* StringStringEntryProto, 14 data_location int
TensorShapeProto: 1 dim* Dimension
TypeProto: 1 tensor_type Tensor, 4 sequence_type Of, 5 map_type Map, 8 sparse_tensor_type Tensor,
    9 optional_type Of
ValueInfoProto: 1 name text, 2 type TypeProto
"""
_ATTRIBUTE_TYPES = """FLOAT INT STRING TENSOR GRAPH FLOATS INTS STRINGS TENSORS GRAPHS SPARSE_TENSOR
    SPARSE_TENSORS TYPE_PROTO TYPE_PROTOS"""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRES = {"int": _VARINT, "unsigned": _VARINT, "float": _FIXED32, "double": _FIXED64}
_FLOATS = {_FIXED32: "<f", _FIXED64: "<d"}
_DTYPES = {
    **{"float": np.dtype("<f4"), "double": np.dtype("<f8")},
    **{"int": np.dtype("<i8"), "unsigned": np.dtype("<u8")},
}
_EMPTY: dict[str, Any] = {"text": "", "bytes": b"", "view": b"", **dict.fromkeys(_WIRES, 0)}
_LARGEST = (1 << 64) - 1
_MANY = 64  # elements of a field, from which on they are read together


class Message:
    """The fields that are there; others have their defaults. span: a buffer, and where in it."""

    fields: ClassVar[dict[int, tuple[str, bool, str]]]  # by tag: name, whether repeated, kind
    span: tuple[Any, int, int]

    def HasField(self, name: str) -> bool:
        return name in self.__dict__

    def WhichOneof(self, group: str) -> Optional[str]:
        """Of the types that a TypeProto may be, the one that it is."""
        return next((name for name in self.__dict__ if name.endswith("_type")), None)

    @property
    def value_info(self) -> list[Any]:
        """Of a GraphProto. It is half of what dynamo exports, and few ask for it: not kept."""
        return _read(MESSAGES["Inferred"](), *self.span).__dict__.get("value_info", [])

    def as_onnx(self) -> Any:
        """The same as a message of onnx's own."""
        import onnx

        data, start, end = self.span
        return getattr(onnx, type(self).__name__).FromString(bytes(data[start:end]))


def parse(data: Any) -> Any:
    """The ModelProto in a buffer.

    Raises: ValueError where the bytes are none, or are cut off.
    """
    try:
        return _read(MESSAGES["ModelProto"](), data, 0, len(data))
    except (IndexError, RecursionError, struct.error) as error:
        raise ValueError(str(error)) from error


def _read(message: Message, data: Any, at: int, end: int) -> Message:
    """Enters what data[at:end] says of a message."""
    message.span = data, at, end
    values, fields = message.__dict__, message.fields
    while at < end:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _varint(data, at - 1)
        field = fields.get(tag)
        wire = tag & 7
        if wire == _BYTES:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _varint(data, at - 1)
            start, at = at, at + size
            if at > end:
                raise ValueError(f"the field at byte {start} is cut off")
            if field is None:
                continue
            name, is_repeated, kind = field
            if kind == "text":
                value: Any = str(data[start:at], "utf-8")
            elif kind in MESSAGES:
                known = None if is_repeated else values.get(name)
                value = _read(known or MESSAGES[kind](), data, start, at)
            elif kind == "bytes":
                value = bytes(data[start:at])
            elif kind == "view":
                value = memoryview(data)[start:at]
            else:
                more = _packed(data, start, at, kind)
                if name in values or len(more) < _MANY:
                    _as_list(values, name).extend(more.tolist())
                else:
                    values[name] = more
                continue
        elif wire == _VARINT:
            value = data[at]
            at += 1
            if value > 127:
                value, at = _varint(data, at - 1)
                if value >> 63 and field is not None and field[2] == "int":
                    value -= 1 << 64
        elif wire in _FLOATS:
            value = struct.unpack_from(_FLOATS[wire], data, at)[0]
            at += struct.calcsize(_FLOATS[wire])
        else:
            raise ValueError(f"wire type {wire} before byte {at}")
        if field is not None:
            name, is_repeated, kind = field
            if not is_repeated:
                values[name] = value
            else:
                known = _as_list(values, name)
                known.append(value)
                if len(known) == _MANY and tag < 128:
                    at, values[name] = _read_rest(known, data, at, end, tag, kind)
    if at > end:
        raise ValueError(f"the message that ends at byte {end} is cut off")
    return message


def _as_list(values: dict[str, Any], name: str) -> list:
    """A repeated field that goes on, which _read_rest may have left as an array."""
    known = values.setdefault(name, [])
    if isinstance(known, np.ndarray):
        known = values[name] = known.tolist()
    return known


def _read_rest(
    values: list, data: Any, at: int, end: int, tag: int, kind: str
) -> tuple[int, Union[list, np.ndarray]]:
    """Where the elements of a repeated field end that come next, each with its tag, which is a
    byte, and all of them, numbers as an array. A forest has millions of them.
    """
    if kind == "bytes":
        texts = {bytes([tag, len(text)]) + text: text for text in set(values) if len(text) < 128}
        found = re.findall(b"|".join(map(re.escape, texts)), data[at:end]) if texts else []
        known = b"".join(found)
        if data[at : at + len(known)] == known:  # none lies behind something else
            values.extend(map(texts.__getitem__, found))
            at += len(known)
        while at + 1 < end and data[at] == tag and data[at + 1] < 128:
            start, at = at + 2, at + 2 + data[at + 1]
            if at > end:
                raise ValueError(f"the field at byte {start} is cut off")
            values.append(bytes(data[start:at]))
        return at, values
    if kind not in _DTYPES:
        return at, values
    dtype = _DTYPES[kind]
    if _WIRES[kind] == _VARINT:
        septets = np.frombuffer(data, np.uint8, end - at, at)
        last = np.flatnonzero(septets < 128)  # a tag, the last septet of a number, a tag, ..
        tags, last = last[: len(last) // 2 * 2 : 2], last[1::2]
        is_own = septets[tags] == tag
        is_own[:1] &= tags[:1] == 0
        is_own[1:] &= tags[1:] == last[:-1] + 1
        count = _leading(is_own)
        more = _numbers(septets, tags[:count] + 1, last[:count], dtype)
        at += int(last[count - 1]) + 1 if count else 0
    else:
        size = 1 + dtype.itemsize
        rows = np.frombuffer(data, np.uint8, (end - at) // size * size, at).reshape(-1, size)
        count = _leading(rows[:, 0] == tag)
        more = rows[:count, 1:].copy().view(dtype)[:, 0]
        at += count * size
    return at, np.concatenate([np.array(values, dtype), more])


def _leading(holds: np.ndarray) -> int:
    """How many come before the first that does not hold."""
    return int(np.argmin(holds)) if not holds.all() else len(holds)


def _packed(data: Any, start: int, end: int, kind: str) -> np.ndarray:
    """Numbers one behind the other."""
    dtype = _DTYPES[kind]
    if _WIRES[kind] != _VARINT:
        return np.frombuffer(data, dtype, (end - start) // dtype.itemsize, start)
    septets = np.frombuffer(data, np.uint8, end - start, start)
    last = np.flatnonzero(septets < 128)
    first = np.concatenate(([0], last + 1))
    if first[-1] != septets.size:
        raise ValueError(f"the number at byte {end} does not end")
    return _numbers(septets, first[:-1], last, dtype)


def _numbers(
    septets: np.ndarray, first: np.ndarray, last: np.ndarray, dtype: np.dtype
) -> np.ndarray:
    """Those of septets[first] to septets[last], of which the lowest come first."""
    numbers = np.zeros(first.shape, np.uint64)
    longest = int((last - first).max(initial=-1)) + 1
    if longest > 10:
        raise ValueError(f"a number of {longest} bytes")
    for k in range(longest):
        terms = (septets[np.minimum(first + k, last)] & 127).astype(np.uint64) << np.uint64(7 * k)
        numbers += np.where(first + k <= last, terms, np.uint64(0))
    return numbers.view(dtype)


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _LARGEST, at
    raise ValueError(f"the number at byte {at} does not end")


def _messages() -> dict[str, Any]:
    """A class for each message: its fields by the tags that they may have, and their defaults."""
    rows = [row.split(":") for row in _SCHEMA.replace(",\n", ",").strip().splitlines()]
    classes: dict[str, Any] = {name: type(name, (Message,), {"fields": {}}) for name, _ in rows}
    for name, text in rows:
        for field in text.split(","):
            number, label, kind = field.split()
            label, is_repeated = label.rstrip("*"), label.endswith("*")
            default = _EMPTY[kind] if kind in _EMPTY else classes[kind]()
            setattr(classes[name], label, () if is_repeated else default)
            wires = {_WIRES.get(kind, _BYTES), _BYTES if is_repeated else _WIRES.get(kind, _BYTES)}
            for wire in wires:
                classes[name].fields[int(number) << 3 | wire] = label, is_repeated, kind
    for number, name in enumerate(_ATTRIBUTE_TYPES.split(), 1):
        setattr(classes["AttributeProto"], name, number)
    classes["TensorProto"].EXTERNAL = 1
    return classes


MESSAGES = _messages()
