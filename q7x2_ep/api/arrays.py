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
from q7x2_ep.errors import BindingError, FeedError, MissingInput

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
    try:
        if isinstance(value, (list, tuple, str, int, float)):
            return _from_python(name, value, code)
        return native(foreign(value))
    except UnicodeError as error:
        raise FeedError(
            f"[input {name!r}] expected text, given what UTF-8 cannot hold: {error}"
        ) from error
    except FeedError:
        raise
    except Exception as error:  # of another library's object
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
            bits = value.view(sys.modules["torch"].int16).numpy()
            return bits.view(dtypes.DTYPES[dtypes.BFLOAT16].numpy)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    else:
        array = np.asarray(value)
    is_wrapped = array is not value and array.dtype == object and not array.shape
    if is_wrapped and not isinstance(array[()], (str, bytes)):
        raise TypeError(f"it is no array and has neither __array__ nor __dlpack__: {value!r}")
    return array


def native(array: np.ndarray) -> np.ndarray:
    """The same values in this machine's byte order; text as Python strings, also that of bytes
    (void ones keep zeros at their ends, which numpy takes off others), and objects as their str().

    Raises: UnicodeError for what is no text: bytes, or half of a surrogate pair.
    """
    if array.dtype.type is np.void and array.dtype.names is None:
        texts = [each.tobytes().decode() for each in array.ravel()]
        return np.array(texts, object).reshape(array.shape)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8").astype(object)
    if array.dtype.kind in "UTO":
        return _texts(array.astype(object, copy=False))
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _texts(array: np.ndarray) -> np.ndarray:
    """Objects as strings, which most of them are."""
    values = array.ravel().tolist()
    try:
        dtypes.require_texts(values)
    except TypeError:
        values = list(map(str, values))
        dtypes.require_texts(values)
        array = np.array(values, object).reshape(array.shape)
    return array


def at_address(address: int, shape: Sequence[int], code: int) -> np.ndarray:
    """The tensor at an address, in place; the caller keeps the memory alive.

    Raises: BindingError for address 0, unless the tensor is empty; for strings, which are not in
    place; for dims below 0.
    """
    dtype = dtypes.DTYPES[code].numpy
    shape = tuple(int(dim) for dim in shape)
    if min(shape, default=0) < 0:
        raise BindingError(f"[buffer] expected a shape without dims below 0, given {shape}")
    if code == dtypes.STRING:
        raise BindingError(
            f"[buffer] expected a tensor of numbers, given an address of strings of shape {shape}"
        )
    if 0 in shape:
        return np.empty(shape, dtype)
    if not address:
        raise BindingError(f"[buffer] expected the address of a tensor of shape {shape}, given 0")
    interface = {
        "data": (address, False),
        "shape": shape,
        "typestr": f"|V{dtype.itemsize}",  # bytes that mean nothing yet: of any dtype
        "version": 3,
    }
    return np.asarray(_Memory(interface)).view(dtype)


class _Memory:
    """What numpy makes an array of in place."""

    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, Any]):
        self.__array_interface__ = interface


def as_given(value: Any) -> Any:
    """What a session made, as onnxruntime gives it: float8e4m3fn as its bits in uint8. Of the
    other types that numpy has not itself, it gives no arrays at all.
    """
    if isinstance(value, np.ndarray) and value.dtype.itemsize == 1:
        return value.view(np.uint8) if is_bits(dtypes.from_numpy(value.dtype)) else value
    return value


def is_bits(code: int) -> bool:
    """Whether arrays of this element type are given as bits."""
    return code == dtypes.FLOAT8E4M3FN


def _from_python(name: str, value: Any, code: int) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise FeedError(
            f"[input {name!r}] expected a list of equally long lists: {error}"
        ) from error
    array = native(array)
    wanted = dtypes.DTYPES[code].numpy
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
