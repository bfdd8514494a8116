"""onnx.TensorProto -> numpy array, without copies where the bytes allow it.

External data is mapped, not read: an array is a view of the file, and a page is loaded when a
kernel packs it. Such a view starts wherever the file has it, so it may not be aligned.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, ModelNotFound
from q7x2_ep.files import map_file


class Tensors:
    """Reads the tensors of one model.

    folder: where its external data lies, None for a model without a path and a folder: then the
    working directory, as in onnxruntime. files: contents of external files, by location.
    """

    def __init__(self, folder: Optional[str], files: Mapping[str, Any]):
        self.folder = folder
        self.maps: dict[str, Any] = {**files}  # by location: one buffer per file

    def has_external(self) -> bool:
        """Whether any tensor that was read lies in another file."""
        return bool(self.maps)

    def files(self, given: Collection[str]) -> list[str]:
        """The locations of the files that were read, except for those given."""
        return [each for each in self.maps if each not in given]

    def array(self, tensor: Any) -> np.ndarray:
        """The elements of an onnx.TensorProto.

        Raises: ModelError naming the tensor where its data does not fit its type.
        """
        row = dtypes.DTYPES.get(tensor.data_type)
        if row is None:
            raise ModelError(
                f"[tensor {tensor.name}] element type {tensor.data_type} is not supported"
            )
        shape = tuple(tensor.dims)
        count = max(0, math.prod(shape))
        if row.code == dtypes.STRING:
            flat = np.array(
                [text.decode("utf-8", "replace") for text in tensor.string_data], object
            )
        elif tensor.data_location == tensor.EXTERNAL:
            flat = self._external(tensor, row, count)
        elif tensor.HasField("raw_data"):
            flat = _from_bytes(tensor, tensor.raw_data, row, count, 0, len(tensor.raw_data))
        else:
            flat = _from_fields(tensor, row, count)
        if min(shape, default=0) < 0 or flat.size != count:
            raise ModelError(
                f"[tensor {tensor.name}] shape {list(shape)} does not fit its {flat.size} elements"
            )
        return flat.reshape(shape)

    def dense(self, sparse: Any) -> np.ndarray:
        """The elements of an onnx.SparseTensorProto, zeros included.

        Raises: ModelError where indices do not fit the shape.
        """
        values, indices = self.array(sparse.values), self.array(sparse.indices)
        whole = np.zeros(tuple(sparse.dims), values.dtype)
        try:
            if indices.ndim == 1:
                whole.reshape(-1)[indices] = values
            else:
                whole[tuple(indices.T)] = values
        except (IndexError, ValueError) as error:
            name = sparse.values.name
            raise ModelError(f"[sparse tensor {name}] indices do not fit it: {error}") from None
        return whole

    def _external(self, tensor: Any, row: dtypes.DType, count: int) -> np.ndarray:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        data = self._map(tensor.name, entries.get("location", ""))
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", len(data) - offset))
        except ValueError:
            raise ModelError(
                f"[tensor {tensor.name}] offset or length of its external data is not a number"
            ) from None
        if offset < 0 or length < 0 or offset + length > len(data):
            raise ModelError(
                f"[tensor {tensor.name}] bytes {offset} to {offset + length} are outside of "
                f"{entries['location']}, which has {len(data)}"
            )
        return _from_bytes(tensor, data, row, count, offset, length)

    def _map(self, name: str, location: str) -> Any:
        if location in self.maps:
            return self.maps[location]
        # Only the spelling is judged: model caches put symbolic links to files elsewhere.
        path = os.path.normpath(location)
        outside = os.path.isabs(path) or path.split(os.sep)[0] in ("..", ".")
        if outside or not location or "\0" in location:
            raise ModelError(
                f"[tensor {name}] external data at {location!r} is not inside the model's folder"
            )
        path = os.path.join(self.folder or "", path)
        try:
            self.maps[location] = map_file(path)
        except FileNotFoundError:
            if self.folder is None:
                raise ModelError(
                    f"[tensor {name}] its data is in another file, {location}, which the working "
                    "directory does not have, and the model was given without a path: give the "
                    "path of the model, or the folder in the session's configuration entry "
                    "session.model_external_initializers_file_folder_path"
                ) from None
            raise ModelNotFound(f"[tensor {name}] there is no external data file {path}") from None
        except OSError as error:
            raise ModelError(f"[tensor {name}] cannot map {path}: {error.strerror}") from error
        return self.maps[location]


def fitting(tensor: Any, array: np.ndarray) -> np.ndarray:
    """The array that is given in place of an initializer."""
    given, wanted = dtypes.from_numpy(array.dtype), tensor.data_type
    if given != wanted or array.shape != tuple(tensor.dims):
        raise ModelError(
            f"[initializer {tensor.name}] expected {dtypes.type_string(wanted)} of shape "
            f"{tuple(tensor.dims)}, given {dtypes.type_string(given)} of shape {array.shape}"
        )
    return array


def _from_bytes(
    tensor: Any, data: Any, row: dtypes.DType, count: int, offset: int, length: int
) -> np.ndarray:
    if row.bits:
        return _unpacked(np.frombuffer(data, np.uint8, length, offset), row, count)
    if length % row.size:
        raise ModelError(
            f"[tensor {tensor.name}] {length} bytes are no whole number of {row.name} elements"
        )
    items = length // row.size
    return np.frombuffer(data, row.numpy, items, offset) if items else np.empty(0, row.numpy)


def _unpacked(packed: np.ndarray, row: dtypes.DType, count: int) -> np.ndarray:
    """Elements of a few bits, packed from the lowest bit of each byte on, as the lowest bits of a
    byte each. What is left of the last byte is padding.
    """
    low: np.ndarray
    if 8 % row.bits == 0:
        shifts = np.arange(0, 8, row.bits, dtype=np.uint8)
        low = (packed[:, None] >> shifts & ((1 << row.bits) - 1)).reshape(-1)
    else:
        stream = np.unpackbits(packed, bitorder="little")
        each = stream[: stream.size // row.bits * row.bits].reshape(-1, row.bits)
        low = np.packbits(each, axis=1, bitorder="little").reshape(-1)
    padded = len(packed) == -(-count * row.bits // 8)
    return (low[:count] if padded else low).view(row.numpy)


def _from_fields(tensor: Any, row: dtypes.DType, count: int) -> np.ndarray:
    """The typed fields. 16-bit and smaller floats travel as bit patterns in int32_data, elements of
    4 and 2 bits as the bytes of raw data, complex numbers as their parts.
    """
    if row.code in (dtypes.FLOAT, dtypes.COMPLEX64):
        return np.array(tensor.float_data, np.float32).view(row.numpy)
    if row.code in (dtypes.DOUBLE, dtypes.COMPLEX128):
        return np.array(tensor.double_data, np.float64).view(row.numpy)
    if row.code == dtypes.INT64:
        return np.array(tensor.int64_data, np.int64)
    if row.code in (dtypes.UINT32, dtypes.UINT64):
        return np.array(tensor.uint64_data, np.uint64).astype(row.numpy)
    integers = np.array(tensor.int32_data, np.int32)
    if row.bits in (2, 4):
        return _unpacked(integers.astype(np.uint8), row, count)
    if row.kind == "f":
        return integers.astype(f"uint{8 * row.size}").view(row.numpy)
    return integers.astype(row.numpy)
