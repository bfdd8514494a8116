"""The dtype table: one row per tensor element type, keyed by its code in onnx.TensorProto."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Union

import numpy as np


class DType(NamedTuple):
    """One element type. Units: size in bytes (0 where elements have no fixed size)."""

    code: int
    onnx: str
    numpy: str
    size: int
    kind: str  # f float, i signed, u unsigned, b bool, s string


FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE = range(1, 12)
UNKNOWN, NO_TENSOR = 0, -1  # see ir.core.Type
UINT32, UINT64 = 12, 13
BFLOAT16 = 16

DTYPES = {
    row.code: row
    for row in (
        DType(FLOAT, "float", "float32", 4, "f"),
        DType(UINT8, "uint8", "uint8", 1, "u"),
        DType(INT8, "int8", "int8", 1, "i"),
        DType(UINT16, "uint16", "uint16", 2, "u"),
        DType(INT16, "int16", "int16", 2, "i"),
        DType(INT32, "int32", "int32", 4, "i"),
        DType(INT64, "int64", "int64", 8, "i"),
        DType(STRING, "string", "object", 0, "s"),
        DType(BOOL, "bool", "bool", 1, "b"),
        DType(FLOAT16, "float16", "float16", 2, "f"),
        DType(DOUBLE, "double", "float64", 8, "f"),
        DType(UINT32, "uint32", "uint32", 4, "u"),
        DType(UINT64, "uint64", "uint64", 8, "u"),
        DType(BFLOAT16, "bfloat16", "bfloat16", 2, "f"),
    )
}
BY_NUMPY = {row.numpy: row for row in DTYPES.values()}


def from_numpy(dtype: object) -> int:
    """The onnx code of a numpy dtype.

    Raises: KeyError for a dtype that ONNX does not have.
    """
    name = str(dtype)
    return BY_NUMPY["object" if name.startswith(("<U", "|S", ">U")) else name].code


def size(code: int) -> int:
    """Bytes per element."""
    return DTYPES[code].size


def is_dense(code: int) -> bool:
    """Whether C knows elements of this dtype: numbers of whole bytes."""
    return code in DTYPES and DTYPES[code].size > 0


def is_float(code: int) -> bool:
    return DTYPES[code].kind == "f"


def epsilon(code: int) -> float:
    """The step from 1 to the next number of a float dtype."""
    return {FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7, DOUBLE: 2.0**-52}.get(code, 2.0**-23)


def type_string(code: int) -> str:
    """As onnxruntime's NodeArg.type spells it: tensor(float)."""
    if code == NO_TENSOR:
        return "no tensor"
    return f"tensor({DTYPES[code].onnx})" if code in DTYPES else f"tensor({code})"


def make_array(data: Union[bytes, Iterable[Any]], code: int, shape: tuple[Any, ...]) -> np.ndarray:
    """An array of the given elements: raw bytes, or numbers (for the modules that see arrays as
    opaque).
    """
    dtype = np.dtype(DTYPES[code].numpy)
    flat = np.frombuffer(data, dtype) if isinstance(data, bytes) else np.array(list(data), dtype)
    return flat.reshape(shape)
