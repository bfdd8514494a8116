"""gather_elements against numpy's take_along_axis."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import DATA_FAULT, StatusError
from tests.kernels.harness import padded
from tests.kernels.harness import run_threads as run_op


def gather_elements(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    """Views of either are read as they lie."""
    strides = [stride // x.itemsize for stride in x.strides]
    index_strides = [stride // indices.itemsize for stride in indices.strides]
    given = {"elem_bytes": x.itemsize, "limit": x.shape[axis], "axis_stride": strides[axis]}
    strides[axis] = 0
    given.update(ndim=x.ndim, x_stride=padded(strides), index_stride=padded(index_strides))
    given.update(shape=padded(indices.shape), index_dtype=6 if indices.dtype == np.int32 else 7)
    return run_op(
        "gather_elements",
        x=x if x.base is None else x.base,
        indices=indices if indices.base is None else indices.base,
        y=np.zeros(indices.shape, x.dtype),
        **given,
    )[0]


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_gather_elements(dtype, index):
    rng = np.random.default_rng(15)
    for shape in ((7,), (3, 8), (4, 5, 6), (2, 1, 6), (3, 200, 100)):
        x = rng.integers(0, 100, shape).astype(dtype)
        for axis in range(len(shape)):
            wanted = [*shape]
            wanted[axis] = 3
            indices = rng.integers(-shape[axis], shape[axis], wanted).astype(index)
            np.testing.assert_array_equal(
                gather_elements(x, indices, axis), np.take_along_axis(x, indices, axis)
            )


def test_indices_of_fewer_rows():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    indices = np.array([[5, 0], [1, 2], [-1, 3]])
    np.testing.assert_array_equal(
        gather_elements(x, indices, 1), np.take_along_axis(x[:3], indices, 1)
    )
    indices = np.array([[3, 0, 1]])
    np.testing.assert_array_equal(
        gather_elements(x, indices, 0), np.take_along_axis(x[:, :3], indices, 0)
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("repeated", [0, 1, 2])
def test_views(order, axis, repeated):
    """Boxes are columns, most often, and each index is repeated for all of their coordinates."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 4, 6)).transpose(order)
    wanted = [*x.shape]
    wanted[axis] = 9
    few = [1 if i == repeated else dim for i, dim in enumerate(wanted)]
    indices = np.broadcast_to(rng.integers(-x.shape[axis], x.shape[axis], few), wanted)
    np.testing.assert_array_equal(
        gather_elements(x, indices, axis), np.take_along_axis(x, indices, axis)
    )


def test_out_of_range():
    with pytest.raises(StatusError) as error:
        gather_elements(np.zeros((3, 4), np.float32), np.array([[0], [4], [1]]), 1)
    assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, 4, 4)
