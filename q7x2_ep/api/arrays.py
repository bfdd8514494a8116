"""Whatever a client hands over, as a numpy array: the one place that converts.

Arrays of the right dtype pass through untouched; what lies on the CPU in another library's tensor
is read in place. Nothing is converted that could change a value: an array of another dtype stays
as it is, for the session to refuse with the input's name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import FeedError, MissingInput

_WIDENS = {"b": "biuf", "i": "iuf", "u": "iuf", "f": "f"}  # numbers of Python, by numpy's kinds


def to_array(name: str, value: Any, code: int) -> np.ndarray:
    """The feed of an input of element type `code`.

    Raises: MissingInput for None, FeedError for what is no tensor.
    """
    if value is None:
        raise MissingInput(
            f"[input {name!r}] Missing Input: {name}: expected {dtypes.type_string(code)}, given "
            "None"
        )
    if isinstance(value, (list, tuple, str, int, float)):
        return _from_python(name, value, code)
    try:
        return native(foreign(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeedError(
            f"[input {name!r}] expected an array, given {type(value).__name__}: {error}"
        ) from error


def foreign(value: Any) -> np.ndarray:
    """The array of any object that numpy can read, or with DLPack; on the CPU without a copy.

    Raises: TypeError for what is no array.
    """
    if hasattr(value, "detach"):  # a torch.Tensor; numpy refuses one that records gradients
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":  # of which numpy has no notion
            return value.view(sys.modules["torch"].int16).numpy().view(_bfloat16())
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    else:
        array = np.asarray(value)
    if array.dtype == object and not array.shape and not isinstance(array[()], (str, bytes)):
        raise TypeError(f"it is no array and has neither __array__ nor __dlpack__: {value!r}")
    return array


def native(array: np.ndarray) -> np.ndarray:
    """The same values in this machine's byte order; text as Python strings."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8").astype(object)
    if array.dtype.kind in "UT":
        return array.astype(object)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def at_address(address: int, shape: Sequence[int], code: int) -> np.ndarray:
    """The tensor at an address, in place; the caller keeps the memory alive."""
    dtype = np_dtype(code)
    shape = tuple(int(dim) for dim in shape)
    if not address or 0 in shape:
        return np.empty(shape, dtype)
    interface = {
        "data": (address, False),
        "shape": shape,
        "typestr": f"|u{dtype.itemsize}" if dtype.itemsize == 1 else f"<u{dtype.itemsize}",
        "version": 3,
    }
    holder = type("Memory", (), {"__array_interface__": interface})()
    return np.asarray(holder).view(dtype)


def np_dtype(code: int) -> np.dtype:
    """The numpy dtype of an element type."""
    if code == dtypes.BFLOAT16:
        return _bfloat16()
    return np.dtype(dtypes.DTYPES[code].numpy)


def _bfloat16() -> np.dtype:
    import ml_dtypes  # comes with onnx

    return np.dtype(ml_dtypes.bfloat16)


def _from_python(name: str, value: Any, code: int) -> np.ndarray:
    try:
        array = native(np.asarray(value))
    except ValueError as error:
        raise FeedError(
            f"[input {name!r}] expected a list of equally long lists: {error}"
        ) from error
    wanted = np_dtype(code)
    kind = dtypes.DTYPES[code].kind
    if array.size and kind not in _WIDENS.get(array.dtype.kind, ""):
        return array
    converted = array.astype(wanted)
    if kind in "iu" and not np.array_equal(converted, array):
        raise FeedError(
            f"[input {name!r}] expected {dtypes.type_string(code)}, given numbers that it cannot "
            "hold"
        )
    return converted
