"""OrtValue: a tensor, sequence, map, sparse tensor or nothing, as sessions take and give them.

A tensor is a numpy array that is shared, not copied. One class stands for both of onnxruntime's,
the Python one and the one beneath it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.api.arrays import as_given, at_address, foreign, native
from q7x2_ep.api.device import DeviceHandle, OrtDevice, OrtMemoryInfo, require_cpu
from q7x2_ep.api.sparse import SparseTensor
from q7x2_ep.errors import BindingError

Device = Union[str, OrtDevice, DeviceHandle]


class OrtValue:
    """A value that can be fed, fetched and bound.

    >>> value = OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32))
    >>> value.data_type(), value.shape()
    ('tensor(float)', [2, 3])
    """

    def __init__(
        self, ortvalue: OrtValue, numpy_obj: Optional[np.ndarray] = None, session: Any = None
    ):
        if not isinstance(ortvalue, OrtValue):
            raise ValueError(
                "an OrtValue is made by OrtValue.ortvalue_from_numpy and its kin, or of another "
                f"OrtValue, given {type(ortvalue).__name__}"
            )
        self._data: Any = ortvalue._data
        self._code: int = ortvalue._code

    @classmethod
    def _of(cls, data: Any, code: int = 0) -> OrtValue:
        """Of what sessions return: array, list, dict, SparseTensor or None."""
        value = cls.__new__(cls)
        value._data = data
        value._code = code or _element_type(data)
        return value

    # Construction

    @classmethod
    def ortvalue_from_numpy(
        cls,
        numpy_obj: np.ndarray,
        /,
        device_type: Device = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Of an array, whose memory it shares if it is dense and in this machine's byte order.

        Raises: BindingError for what is no array of a dtype that ONNX has.
        """
        require_cpu(device_type, "OrtValue")
        if not isinstance(numpy_obj, np.ndarray):
            raise BindingError(
                "[OrtValue] Creation of OrtValues is currently only supported from numpy arrays, "
                f"given {type(numpy_obj).__name__}: convert it with numpy.asarray"
            )
        array = native(numpy_obj)
        try:
            return cls._of(_dense(array), dtypes.from_numpy(array.dtype))
        except KeyError:
            raise BindingError(
                f"[OrtValue] expected a dtype that ONNX has, given {array.dtype}"
            ) from None

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(
        cls, data: np.ndarray, /, onnx_element_type: int
    ) -> OrtValue:
        """The bits of an array as another element type of the same size, such as bfloat16 in
        uint16. The memory is shared.

        Raises: TypeError for what is no array, BindingError where the sizes differ.
        """
        if not isinstance(data, np.ndarray):
            raise TypeError(f"data: expected a numpy.ndarray, given {type(data).__name__}")
        dtype = _known(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise BindingError(
                f"[OrtValue] Items size in the incoming array: {data.dtype.itemsize} specified by "
                f"onnxtype: {dtype.itemsize}, {dtypes.type_string(onnx_element_type)}"
            )
        return cls._of(_dense(data).view(dtype), int(onnx_element_type))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: Device = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Optional[OrtMemoryInfo] = None,
    ) -> OrtValue:
        """A tensor to be filled. element_type: a numpy dtype, or a code of onnx.TensorProto.

        Raises: BindingError.
        """
        require_cpu(device_type, "OrtValue")
        code = code_of(element_type)
        if any(dim < 0 for dim in shape):
            raise BindingError(
                f"[OrtValue] Tensor shape.Size() must be >= 0: expected sizes, given {list(shape)}"
            )
        try:
            return cls._of(np.empty(tuple(shape), _known(code)), code)
        except (MemoryError, ValueError) as error:
            raise BindingError(f"[OrtValue] no memory for {list(shape)}: {error}") from None

    ortvalue_from_shape_and_onnx_type = ortvalue_from_shape_and_type

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        """Of a sparse tensor, which is shared."""
        return cls._of(sparse_tensor)

    @classmethod
    def from_dlpack(cls, data: Any, /, is_bool_tensor: bool = False) -> OrtValue:
        """Of a tensor of another library, or of a DLPack capsule; the memory is shared.

        Raises: TypeError for what is neither, BindingError for a tensor that is not dense.
        """
        if type(data).__name__ == "PyCapsule":
            data = _Capsule(data)
        if not hasattr(data, "__dlpack__"):
            raise TypeError(
                "from_dlpack expected an object with __dlpack__ or a DLPack capsule, given "
                f"{data!r}"
            )
        array = native(foreign(data))
        if not array.flags.c_contiguous:
            raise BindingError(
                f"[OrtValue] ORT only supports contiguous tensor: given strides {array.strides} "
                f"of shape {array.shape}"
            )
        array = array.view(bool) if is_bool_tensor and array.dtype == np.uint8 else array
        return cls._of(array)

    # What it is

    def is_tensor(self) -> bool:
        return isinstance(self._data, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        return isinstance(self._data, SparseTensor)

    def is_tensor_sequence(self) -> bool:
        """False for a list of dicts."""
        return isinstance(self._data, list) and not isinstance(next(iter(self._data), None), dict)

    def has_value(self) -> bool:
        """False for an optional that is empty."""
        return self._data is not None

    def data_type(self) -> str:
        """Like tensor(int64), seq(tensor(float)) or sparse_tensor(float)."""
        if self.is_sparse_tensor():
            return self._data.data_type()
        is_list = isinstance(self._data, list)
        item = self._data[0] if is_list and self._data else self._data
        text = dtypes.type_string(self._code)
        if isinstance(item, dict):
            keys = "string" if any(isinstance(key, str) for key in item) else "int64"
            text = f"map({keys},{text})"
        return f"seq({text})" if is_list else text

    def element_type(self) -> int:
        """The code of the elements' type in onnx.TensorProto."""
        return self._code

    def shape(self) -> list[int]:
        """Raises: BindingError for what has no shape."""
        if self.is_sparse_tensor():
            return self._data.dense_shape()
        return list(self._tensor("a shape").shape)

    def tensor_size_in_bytes(self) -> int:
        """Raises: BindingError for what is no tensor of numbers."""
        return self._numbers("a size in bytes").nbytes

    def data_ptr(self) -> int:
        """The address of the first element.

        Raises: BindingError for what is no tensor of numbers.
        """
        return self._numbers("an address").__array_interface__["data"][0]

    def device_name(self) -> str:
        return "cpu"

    # Contents

    def numpy(self) -> np.ndarray:
        """The tensor as an array that shares its memory; float8e4m3fn as its bits in uint8.

        Raises: BindingError for what is no tensor.
        """
        return as_given(self._array())

    def _array(self) -> np.ndarray:
        """The tensor in a dtype of its own."""
        return self._tensor("an array")

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        array = self.numpy()
        if copy:
            return np.array(array, dtype)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, *, stream: Any = None, **request: Any) -> Any:
        """A DLPack capsule of the memory. Raises: BindingError for what DLPack cannot describe."""
        array = self._numbers("a DLPack capsule")
        try:
            return array.__dlpack__(**request)
        except BufferError as error:
            raise BindingError(f"[OrtValue] {self.data_type()}: {error}") from error

    def to_dlpack(self) -> Any:
        """__dlpack__() without arguments."""
        return self.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def as_sparse_tensor(self) -> SparseTensor:
        """Raises: BindingError for another kind of value."""
        if not self.is_sparse_tensor():
            raise BindingError(
                "[OrtValue] This OrtValue does not contain SparseTensor: it holds "
                f"{self.data_type()}"
            )
        return self._data

    def update_inplace(self, data: Union[np.ndarray, OrtValue]) -> None:
        """Copies elements into the tensor, whose address stays.

        Raises: TypeError for what is no array, BindingError where sizes or dtypes differ.
        """
        if not isinstance(data, (np.ndarray, OrtValue)):
            raise TypeError(
                f"data must be a numpy.ndarray or an OrtValue, given {type(data).__name__}"
            )
        target = self._tensor("new contents")
        source = data._array() if isinstance(data, OrtValue) else data
        if source.size != target.size or native(source).dtype != target.dtype:
            raise BindingError(
                "[OrtValue] The input size of numpy arrays does not match the size of the OrtValue:"
                f" expected {target.dtype} {target.shape}, given {source.dtype} {source.shape}"
            )
        np.copyto(target, source.reshape(target.shape))

    # onnxruntime's Python objects hold another object; here they are one.

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    def _tensor(self, what: str) -> np.ndarray:
        if not self.is_tensor():
            raise BindingError(
                f"[OrtValue] Only OrtValues that are Tensors have {what}: it holds "
                f"{self.data_type()}"
            )
        return self._data

    def _numbers(self, what: str) -> np.ndarray:
        if self._code == dtypes.STRING:
            raise BindingError(f"[OrtValue] a tensor of strings has no {what.split(' ', 1)[1]}")
        return self._tensor(what)


class OrtValueVector(list):
    """A list of OrtValues."""

    def push_back(self, value: Any, is_bool_tensor: bool = False) -> None:
        """Append an OrtValue, or a DLPack capsule."""
        if not isinstance(value, OrtValue):
            value = OrtValue.from_dlpack(value, is_bool_tensor)
        self.append(value)

    def push_back_batch(
        self,
        tensors: Sequence[Any],
        addresses: Sequence[int],
        element_types: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        devices: Sequence[Device],
    ) -> None:
        """Append tensors by address; the caller keeps them alive."""
        for address, kind, shape, device in zip(addresses, element_types, shapes, devices):
            require_cpu(device, "OrtValueVector")
            code = code_of(kind)
            self.append(OrtValue._of(at_address(address, shape, code), code))

    def reserve(self, count: int) -> None:
        """Accepted: a list grows by itself."""

    def shrink_to_fit(self) -> None:
        """Accepted: a list shrinks by itself."""

    def dlpack_at(self, index: int) -> Any:
        return self[index].__dlpack__()

    def element_type_at(self, idx: int) -> int:
        return self[idx].element_type()

    def bool_tensor_indices(self) -> list[int]:
        """Where its boolean tensors are."""
        return [i for i, value in enumerate(self) if value.element_type() == dtypes.BOOL]

    def to_dlpacks(self, to_tensor: Optional[Callable[[Any], Any]]) -> list[Any]:
        """A DLPack capsule of each, or what to_tensor makes of it."""
        capsules = [value.__dlpack__() for value in self]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]


class _Capsule:
    """A DLPack capsule as an object that numpy takes."""

    def __init__(self, capsule: Any):
        self._capsule = capsule

    def __dlpack__(self, **request: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copies each src into the dst at its place.

    Raises: BindingError where their numbers, sizes or dtypes differ.
    """
    if len(src) != len(dst):
        raise BindingError(
            f"[copy] Invalid arguments provided to CopyTensors: {len(src)} sources, {len(dst)} "
            "destinations"
        )
    for source, target in zip(src, dst):
        target.update_inplace(source)


def code_of(kind: Any) -> int:
    """The code of an element type given as a code, a numpy dtype, or its name.

    Raises: BindingError for what ONNX does not have.
    """
    if isinstance(kind, int):
        _known(kind)
        return kind
    try:
        return dtypes.from_numpy(np.dtype(kind))
    except (KeyError, TypeError):
        raise BindingError(
            f"[element type] expected a numpy dtype that ONNX has or a code of onnx.TensorProto, "
            f"given {kind!r}"
        ) from None


def _known(code: int) -> np.dtype:
    try:
        return dtypes.DTYPES[code].numpy
    except KeyError:
        raise BindingError(f"[element type] tensor type {code} is not supported") from None


def _dense(array: np.ndarray) -> np.ndarray:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _element_type(data: Any) -> int:
    """The element type of what a session returned."""
    if isinstance(data, (list, dict)):
        item = next(iter(data.values() if isinstance(data, dict) else data), 0.0)
        if isinstance(item, (dict, float)):  # maps of float32, whose items are numbers of Python
            return _element_type(item) if isinstance(item, dict) else dtypes.FLOAT
        return _element_type(np.asarray(item))
    if isinstance(data, SparseTensor):
        return data.element_type()
    return dtypes.FLOAT if data is None else dtypes.from_numpy(data.dtype)
