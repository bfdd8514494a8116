"""Feeds of inputs that are no tensors: lists, dictionaries, and what may be nothing.

What is in them is checked against the type that the model declares, as tensors are: no op does so,
and each gives on what it finds.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.api.arrays import native, to_array
from q7x2_ep.errors import FeedError, MissingInput

_CODES = {row.onnx: code for code, row in dtypes.DTYPES.items()}


def to_container(name: str, value: Any, type: str) -> Any:
    """The feed of an input of such a type, like seq(tensor(float)), map(int64,tensor(float)) or
    optional(..) of either or of a tensor; of any other as it is.

    Raises: MissingInput for None, where the type is not optional; FeedError.
    """
    kind, inner = parts(type)
    if kind == "optional":
        if value is None:
            return None
        type, (kind, inner) = inner, parts(inner)
        if kind == "tensor":
            return _checked(repr(name), to_array(name, value, _CODES[inner]), _CODES[inner])
    if kind not in ("seq", "map"):
        return value
    if value is None:
        raise MissingInput(f"[input {name!r}] Missing Input: {name}: expected {type}, given None")
    return _contained(repr(name), value, type)


@cache
def parts(type: str) -> tuple[str, str]:
    """seq and tensor(float) of seq(tensor(float))."""
    kind, _, inner = type.partition("(")
    return kind, inner[:-1]


def _contained(where: str, value: Any, type: str) -> Any:
    kind, inner = parts(type)
    if kind == "tensor":
        if not isinstance(value, np.ndarray):
            raise _unexpected(where, type, value)
        try:
            array = native(value)
        except UnicodeError as error:
            raise FeedError(
                f"[input {where}] expected text, given what UTF-8 cannot hold: {error}"
            ) from error
        return _checked(where, array, _CODES[inner])
    if kind == "seq":
        if not isinstance(value, list):
            raise _unexpected(where, type, value)
        return [_contained(f"{where} element {i}", each, inner) for i, each in enumerate(value)]
    keys, _, values = inner.partition(",")
    if kind != "map" or parts(values)[0] != "tensor":
        return value
    if not isinstance(value, dict):
        raise _unexpected(where, type, value)
    if not value:
        raise FeedError(
            f"[input {where}] Size of dictionary is empty, unable to run the prediction: expected "
            f"{type}, given {{}}"
        )
    of_keys, of_values = (dtypes.DTYPES[_CODES[name]] for name in (keys, parts(values)[1]))
    result = {}
    for key, each in value.items():
        for what, given, dtype in (("key", key, of_keys), (f"value of {key!r}", each, of_values)):
            try:
                converted = _scalar(given, dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise FeedError(
                    f"[input {where}] Unexpected input data type: expected {type}, given the "
                    f"{what}: {given!r}: {error}"
                ) from error
        result[key] = converted
    return result


def _scalar(value: Any, dtype: dtypes.DType) -> Any:
    """What numpy calls the number, or a string.

    Raises: TypeError for one of another kind, OverflowError, UnicodeError.
    """
    if isinstance(value, (str, bytes)) != (dtype.kind == "s") or isinstance(value, bytes):
        raise TypeError(f"it is no {dtype.onnx} but {type(value).__name__}")
    if dtype.kind == "s":
        value.encode()
        return value
    number = operator.index(value) if dtype.kind in "iub" else float(value)
    with np.errstate(over="ignore"):
        return dtype.numpy.type(number)


def _checked(where: str, array: np.ndarray, code: int) -> np.ndarray:
    if array.dtype != dtypes.DTYPES[code].numpy:
        from q7x2_ep.session import wrong_dtype

        raise wrong_dtype(where, code, array)
    return array


def _unexpected(where: str, type: str, value: Any) -> FeedError:
    kinds = {"tensor": "a numpy array", "seq": "a list", "map": "a dict"}
    given = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else repr(value.__class__)
    return FeedError(f"[input {where}] expected {kinds[parts(type)[0]]} for {type}, given {given}")
