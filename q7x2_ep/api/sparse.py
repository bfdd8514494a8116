"""SparseTensor: coordinates or compressed rows, as onnxruntime's surface has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.api.arrays import native
from q7x2_ep.api.device import DeviceHandle, OrtDevice, require_cpu
from q7x2_ep.api.enums import OrtSparseFormat
from q7x2_ep.errors import BindingError


class SparseCooView:
    """Coordinates of the values: flat, (n,), or one row per value, (n, rank)."""

    def __init__(self, indices: np.ndarray):
        self._indices = indices

    def indices(self) -> np.ndarray:
        return self._indices


class SparseCsrView:
    """Columns of the values, (n,), and where each row begins among them, (rows + 1,)."""

    def __init__(self, inner: np.ndarray, outer: np.ndarray):
        self._inner, self._outer = inner, outer

    def inner(self) -> np.ndarray:
        return self._inner

    def outer(self) -> np.ndarray:
        return self._outer


class SparseBlockSparseView(SparseCooView):
    """Coordinates of the blocks, (2, n)."""


class _Parts(NamedTuple):
    """A sparse tensor's contents."""

    format: OrtSparseFormat
    dense_shape: list[int]
    values: np.ndarray
    view: Any


class SparseTensor:
    """A tensor of which only the values that are not zero are stored. The arrays are not copied."""

    def __init__(self, sparse_tensor: Any):
        if isinstance(sparse_tensor, SparseTensor):
            sparse_tensor = sparse_tensor._parts
        if not isinstance(sparse_tensor, _Parts):
            raise ValueError(
                f"a SparseTensor is made by sparse_coo_from_numpy or sparse_csr_from_numpy, given "
                f"{sparse_tensor!r}"
            )
        self._parts: _Parts = sparse_tensor

    def _get_c_tensor(self) -> SparseTensor:
        return self

    @classmethod
    def sparse_coo_from_numpy(
        cls,
        dense_shape: Sequence[int],
        values: np.ndarray,
        coo_indices: np.ndarray,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """values (n,) at flat indices (n,), or at coordinates (n, rank).

        Raises: BindingError where the lengths do not fit.
        """
        values, indices = _values(values, ort_device), _indices(coo_indices)
        if indices.size not in (values.size, len(dense_shape) * values.size):
            raise BindingError(
                f"[sparse] Index size: {indices.size} must be equal to or {len(dense_shape)} times "
                f"the values size: {values.size}"
            )
        return cls(
            _parts(OrtSparseFormat.ORT_SPARSE_COO, dense_shape, values, SparseCooView(indices))
        )

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Sequence[int],
        values: np.ndarray,
        inner_indices: np.ndarray,
        outer_indices: np.ndarray,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """values (n,) in columns inner_indices (n,); row r has those from outer_indices[r] to
        outer_indices[r + 1].

        Raises: BindingError where the lengths do not fit.
        """
        values = _values(values, ort_device)
        view = SparseCsrView(_indices(inner_indices), _indices(outer_indices))
        if len(dense_shape) != 2 or view.inner().size != values.size:
            raise BindingError(
                f"[sparse] expected 2 dims and an inner index for each of {values.size} values, "
                f"given {len(dense_shape)} dims and {view.inner().size} inner indices"
            )
        if view.outer().size != dense_shape[0] + 1:
            raise BindingError(
                f"[sparse] Outer count: {view.outer().size} must be rows + 1 of dense shape "
                f"{list(dense_shape)}"
            )
        return cls(_parts(OrtSparseFormat.ORT_SPARSE_CSRC, dense_shape, values, view))

    @classmethod
    def blocksparse_from_numpy(
        cls,
        dense_shape: Sequence[int],
        values: np.ndarray,
        block_indices: np.ndarray,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Blocks values (n, ..) at coordinates block_indices (2, n)."""
        view = SparseBlockSparseView(_fixed(np.ascontiguousarray(block_indices, np.int32)))
        array = _values(values, ort_device)
        return cls(_parts(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE, dense_shape, array, view))

    def values(self) -> np.ndarray:
        return self._parts.values

    def as_coo_view(self) -> SparseCooView:
        """Raises: BindingError for another format."""
        return self._view(OrtSparseFormat.ORT_SPARSE_COO, "COO")

    def as_csrc_view(self) -> SparseCsrView:
        """Raises: BindingError for another format."""
        return self._view(OrtSparseFormat.ORT_SPARSE_CSRC, "CSR(C)")

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        """Raises: BindingError for another format."""
        return self._view(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE, "BlockSparse")

    get_coo_data, get_csrc_data, get_blocksparse_data = (
        as_coo_view,
        as_csrc_view,
        as_blocksparse_view,
    )

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Raises: BindingError, always."""
        raise BindingError("[sparse] Cuda is not available in this build: tensors stay on the CPU")

    def format(self) -> OrtSparseFormat:
        return self._parts.format

    def dense_shape(self) -> list[int]:
        return self._parts.dense_shape

    def data_type(self) -> str:
        """Like sparse_tensor(float)."""
        return "sparse_" + dtypes.type_string(self.element_type())

    def element_type(self) -> int:
        """The code of the values' type in onnx.TensorProto."""
        return dtypes.from_numpy(self._parts.values.dtype)

    def device_name(self) -> str:
        return "cpu"

    def _view(self, format: OrtSparseFormat, name: str) -> Any:
        if self._parts.format != format:
            raise BindingError(
                f"[sparse] This sparse tensor does not contain {name} format: it is "
                f"{self._parts.format.name}"
            )
        return self._parts.view


def dense(tensor: SparseTensor) -> np.ndarray:
    """The whole tensor.

    Raises: BindingError for blocks, and indices that are not in it.
    """
    whole = np.zeros(tensor.dense_shape(), tensor.values().dtype)
    try:
        if tensor.format() == OrtSparseFormat.ORT_SPARSE_CSRC:
            rows = tensor.as_csrc_view()
            counts = np.diff(rows.outer())
            whole[np.repeat(np.arange(len(counts)), counts), rows.inner()] = tensor.values()
        else:
            at = tensor.as_coo_view().indices()
            count = tensor.values().size
            flat = (
                at.ravel()
                if at.size == count
                else np.ravel_multi_index(tuple(at.reshape(count, -1).T), whole.shape)
            )
            whole.reshape(-1)[flat] = tensor.values().ravel()
    except (IndexError, ValueError) as error:
        raise BindingError(
            f"[sparse] the indices do not fit a tensor of shape {tensor.dense_shape()}: {error}"
        ) from None
    return whole


def _parts(
    format: OrtSparseFormat, dense_shape: Sequence[int], values: np.ndarray, view: Any
) -> _Parts:
    return _Parts(format, [int(dim) for dim in dense_shape], values, view)


def _values(values: Any, device: Optional[OrtDevice]) -> np.ndarray:
    if isinstance(device, (OrtDevice, DeviceHandle)):
        require_cpu(device, "sparse tensor")
    return _fixed(np.ascontiguousarray(native(np.asarray(values))))


def _indices(indices: Any) -> np.ndarray:
    return _fixed(np.ascontiguousarray(indices, np.int64))


def _fixed(array: np.ndarray) -> np.ndarray:
    """For reading only, as onnxruntime hands parts of sparse tensors out."""
    view = array.view()
    view.flags.writeable = False
    return view
