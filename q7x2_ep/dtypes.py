"""The dtype table: one row per tensor element type, keyed by its code in onnx.TensorProto."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple, Union

import numpy as np


class DType(NamedTuple):
    """One element type. Units: size in bytes, as arrays hold it (0 where elements have no fixed
    size).
    """

    code: int
    onnx: str
    name: str  # numpy's
    size: int
    kind: str  # f float, c complex, i signed, u unsigned, b bool, s string
    bits: int = 0  # of an element in a model file where it is no whole byte; an array has one each

    @property
    def numpy(self) -> np.dtype:
        """The dtype of arrays. Types that numpy has not itself come with ml_dtypes, on which onnx
        depends; it is imported where a model has one.
        """
        if self.code >= BFLOAT16:
            import ml_dtypes  # noqa: F401  enters its names in numpy
        return np.dtype(self.name)


FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE = range(1, 12)
UNKNOWN, NO_TENSOR = 0, -1  # see ir.core.Type
UINT32, UINT64, COMPLEX64, COMPLEX128, BFLOAT16 = range(12, 17)
FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ = range(17, 21)
UINT4, INT4, FLOAT4E2M1, FLOAT8E8M0, UINT2, INT2, FLOAT6E2M3, FLOAT6E3M2 = range(21, 29)

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
        DType(COMPLEX64, "complex64", "complex64", 8, "c"),
        DType(COMPLEX128, "complex128", "complex128", 16, "c"),
        DType(BFLOAT16, "bfloat16", "bfloat16", 2, "f"),
        DType(FLOAT8E4M3FN, "float8e4m3fn", "float8_e4m3fn", 1, "f"),
        DType(FLOAT8E4M3FNUZ, "float8e4m3fnuz", "float8_e4m3fnuz", 1, "f"),
        DType(FLOAT8E5M2, "float8e5m2", "float8_e5m2", 1, "f"),
        DType(FLOAT8E5M2FNUZ, "float8e5m2fnuz", "float8_e5m2fnuz", 1, "f"),
        DType(UINT4, "uint4", "uint4", 1, "u", 4),
        DType(INT4, "int4", "int4", 1, "i", 4),
        DType(FLOAT4E2M1, "float4e2m1", "float4_e2m1fn", 1, "f", 4),
        DType(FLOAT8E8M0, "float8e8m0", "float8_e8m0fnu", 1, "f"),
        DType(UINT2, "uint2", "uint2", 1, "u", 2),
        DType(INT2, "int2", "int2", 1, "i", 2),
        DType(FLOAT6E2M3, "float6e2m3", "float6_e2m3fn", 1, "f", 6),
        DType(FLOAT6E3M2, "float6e3m2", "float6_e3m2fn", 1, "f", 6),
    )
}
BY_NUMPY = {row.name: row for row in DTYPES.values()}
HALVES = frozenset({FLOAT16, BFLOAT16})

_SIGNIFICANT_BITS = {  # of floats, the hidden one included
    **{FLOAT16: 11, BFLOAT16: 8, FLOAT: 24, DOUBLE: 53, FLOAT4E2M1: 2, FLOAT8E8M0: 1},
    **{FLOAT8E4M3FN: 4, FLOAT8E4M3FNUZ: 4, FLOAT8E5M2: 3, FLOAT8E5M2FNUZ: 3},
    **{FLOAT6E2M3: 4, FLOAT6E3M2: 3},
}


@functools.lru_cache(maxsize=256)
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


def holds_floats(array: np.ndarray) -> bool:
    """Whether an array has a float dtype, of numpy or of ml_dtypes, which numpy calls void."""
    return array.dtype.kind == "f" or (
        array.dtype.kind == "V" and is_float(from_numpy(array.dtype))
    )


def in_double(array: np.ndarray) -> np.ndarray:
    """Numbers as float64, complex ones as complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def require_texts(values: list) -> None:
    """Raises: TypeError where one is no string, UnicodeError where UTF-8 cannot hold one, half of a
    surrogate pair say. Joined, they tell so at the speed of C.
    """
    text = "".join(values)
    if not text.isascii():
        text.encode()


def of_any_width(array: np.ndarray) -> np.ndarray:
    """Strings as objects: numpy gives those without dims, and those it chooses from, one width."""
    return array.astype(object) if array.dtype.kind == "U" else array


def significant_bits(code: int) -> int:
    """Integers of up to so many bits are exact in a float dtype."""
    return _SIGNIFICANT_BITS[code]


def epsilon(code: int) -> float:
    """The step from 1 to the next number of a float dtype; of float32 for any other."""
    return 2.0 ** (1 - _SIGNIFICANT_BITS.get(code, 24))


def attribute(number: float) -> float:
    """A number as attributes of ONNX hold it: in float32."""
    return float(np.float32(number))


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
