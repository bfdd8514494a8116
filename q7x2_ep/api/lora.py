"""Adapter files: named tensors to feed in place of initializers, as onnxruntime stores them.

The file is a flatbuffer, read and written here by hand. Every table is a list of 4-byte fields,
found through its vtable:
    Adapter    format version, adapter version, model version, vector of Parameter
    Parameter  name, dims (int64), element type (a code of onnx.TensorProto), bytes
Source: the FlatBuffers encoding; the layout of files that onnxruntime writes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.api.value import OrtValue, code_of
from q7x2_ep.errors import BindingError, cannot_write
from q7x2_ep.files import replacing

_MAGIC = b"TORT"
_FORMAT_VERSION = 1


class AdapterFormat:
    """An adapter file's contents."""

    def __init__(self, adapter: Optional[AdapterFormat] = None):
        self._format_version: int = adapter._format_version if adapter else _FORMAT_VERSION
        self._adapter_version: int = adapter._adapter_version if adapter else 0
        self._model_version: int = adapter._model_version if adapter else 0
        self._parameters: dict[str, OrtValue] = dict(adapter._parameters) if adapter else {}

    @staticmethod
    def read_adapter(file_path: Union[str, os.PathLike[str]]) -> AdapterFormat:
        """The contents of a file.

        Raises: BindingError where it is missing or no adapter.
        """
        try:
            with open(file_path, "rb") as file:
                data = file.read()
            return _read(data)
        except (OSError, struct.error, ValueError, IndexError) as error:
            raise BindingError(f"[adapter] cannot read {os.fspath(file_path)}: {error}") from error

    def export_adapter(self, file_path: Union[str, os.PathLike[str]]) -> None:
        """Write the file.

        Raises: BindingError where it cannot be written.
        """
        path = os.fspath(file_path)
        try:
            with replacing(path) as file:
                file.write(_write(self))
        except OSError as error:
            raise BindingError(f"[adapter] {cannot_write(path, error)}") from error

    def get_format_version(self) -> int:
        return self._format_version

    def get_adapter_version(self) -> int:
        return self._adapter_version

    def set_adapter_version(self, adapter_version: int) -> None:
        self._adapter_version = adapter_version

    def get_model_version(self) -> int:
        return self._model_version

    def set_model_version(self, model_version: int) -> None:
        self._model_version = model_version

    def get_parameters(self) -> dict[str, OrtValue]:
        """The tensors by name."""
        return dict(self._parameters)

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """The tensors by name."""
        self._parameters = dict(params)


class LoraAdapter:
    """An adapter to run with: see RunOptions.add_active_adapter."""

    def __init__(self) -> None:
        self.parameters: dict[str, OrtValue] = {}

    def Load(self, file_path: Union[str, os.PathLike[str]]) -> None:
        """Read an adapter file. Raises: BindingError."""
        self.parameters = AdapterFormat.read_adapter(file_path).get_parameters()


def _read(data: bytes) -> AdapterFormat:
    if data[4:8] != _MAGIC:
        raise ValueError(f"expected an adapter file, given bytes that begin with {data[:8]!r}")

    def number(at: int, kind: str = "<I") -> int:
        return struct.unpack_from(kind, data, at)[0]

    def field(table: int, index: int) -> int:
        """Where the field is; 0 where it is left out."""
        vtable = table - number(table, "<i")
        present = 4 + 2 * index < number(vtable, "<H")
        offset = number(vtable + 4 + 2 * index, "<H") if present else 0
        return table + offset if offset else 0

    def integer(table: int, index: int) -> int:
        at = field(table, index)
        return number(at, "<i") if at else 0

    def vector(table: int, index: int, size: int) -> tuple[int, int]:
        """Start and length of a vector, whose elements have `size` bytes."""
        at = field(table, index)
        start = at + number(at) + 4 if at else 0
        count = number(start - 4) if at else 0
        if start + count * size > len(data):
            raise ValueError("it is cut off")
        return start, count

    adapter = AdapterFormat()
    root = number(0)
    adapter._format_version, adapter._adapter_version, adapter._model_version = (
        integer(root, i) for i in range(3)
    )
    first, count = vector(root, 3, 4)
    for at in range(first, first + 4 * count, 4):
        table = at + number(at)
        start, length = vector(table, 0, 1)
        name = data[start : start + length].decode("utf-8")
        start, rank = vector(table, 1, 8)
        shape = struct.unpack_from(f"<{rank}q", data, start)
        code = integer(table, 2)
        start, length = vector(table, 3, 1)
        bits = np.frombuffer(data, np.uint8, length, start).copy()
        value = OrtValue.ortvalue_from_shape_and_type((0,), code_of(code))
        array = bits.view(value._array().dtype).reshape(shape)
        adapter._parameters[name] = OrtValue._of(array, code)
    return adapter


def _write(adapter: AdapterFormat) -> bytes:
    data = bytearray(4) + _MAGIC

    def vector(payload: bytes, count: int, align: int) -> int:
        data.extend(bytes(-(len(data) + 4) % align))
        at = len(data)
        data.extend(struct.pack("<I", count) + payload)
        return at

    def string(text: str) -> int:
        encoded = text.encode("utf-8")
        return vector(encoded + b"\0", len(encoded), 4)

    def point(at: int, target: int) -> None:
        struct.pack_into("<I", data, at, target - at)

    def table(*fields: Union[int, Callable[[], int]]) -> int:
        """A table of numbers, and of what functions write behind it."""
        n = len(fields)
        data.extend(bytes(-(len(data) + 4 + 2 * n) % 4))
        vtable = len(data)
        data.extend(struct.pack(f"<{2 + n}H", 4 + 2 * n, 4 + 4 * n, *range(4, 4 + 4 * n, 4)))
        at = len(data)
        numbers = [each if isinstance(each, int) else 0 for each in fields]
        data.extend(struct.pack(f"<i{n}i", at - vtable, *numbers))
        for i, each in enumerate(fields):
            if not isinstance(each, int):
                point(at + 4 + 4 * i, each())
        return at

    def parameter(name: str, value: OrtValue) -> int:
        shape, array = value.shape(), np.ascontiguousarray(value._array())
        return table(
            lambda: string(name),
            lambda: vector(struct.pack(f"<{len(shape)}q", *shape), len(shape), 8),
            value.element_type(),
            lambda: vector(array.tobytes(), array.nbytes, 8),
        )

    def parameters() -> int:
        count = len(adapter._parameters)
        at = vector(bytes(4 * count), count, 4)
        for i, (name, value) in enumerate(adapter._parameters.items()):
            point(at + 4 + 4 * i, parameter(name, value))
        return at

    for name, value in adapter._parameters.items():
        if value.element_type() == dtypes.STRING:
            raise BindingError(f"[adapter] {name!r}: expected numbers, given strings")
    versions: list[Any] = [
        adapter._format_version,
        adapter._adapter_version,
        adapter._model_version,
    ]
    point(0, table(*versions, parameters))
    return bytes(data)
