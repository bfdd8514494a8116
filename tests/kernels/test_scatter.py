"""scatter_nd, scatter_elements and tensor_scatter against numpy, every dtype and reduction."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from q7x2_ep import dtypes
from q7x2_ep.backend.cpu.library import DATA_FAULT, StatusError
from tests.kernels.harness import padded
from tests.kernels.harness import run_threads as run_op

DTYPES = (
    *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"),
    "uint64",
)
REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scatter_numpy(x, at, updates, reduction):
    y = x.copy()
    if reduction == "none":
        y[at] = updates
    else:
        REDUCTIONS[reduction].at(y, at, updates)
    return y


def draw(rng, shape, dtype):
    """Numbers whose sums and products leave the narrow dtypes."""
    x = rng.integers(-150, 150, shape).astype(dtype)
    if x.dtype.kind == "f" and x.size:
        x += 0.3
        x.flat[0] = np.nan
    return x


def scatter_nd(x, indices, updates, reduction="none", y=None):
    depth = indices.shape[-1]
    given = {
        "n": int(np.prod(indices.shape[:-1])),
        "depth": depth,
        "dims": padded(x.shape[:depth]),
        "inner": int(np.prod(x.shape[depth:])),
        "dtype": dtypes.from_numpy(x.dtype),
        "scatter": reduction,
    }
    threads = [1] if y else [1, 2, 3, 8]
    return run_op(
        "scatter_nd", threads=threads, x=x, indices=indices, updates=updates, y=y or x, **given
    )[0]


@pytest.mark.parametrize("reduction", ["none", *REDUCTIONS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_nd(dtype, reduction):
    rng = np.random.default_rng(17)
    for shape, depth, n in (((5, 6), 1, 8), ((5, 6), 2, 9), ((3, 4, 5), 2, 0), ((700, 300), 1, 50)):
        x, updates = draw(rng, shape, dtype), draw(rng, (n, *shape[depth:]), dtype)
        indices = np.stack([rng.integers(-d, d, n) for d in shape[:depth]], -1)
        at = tuple(np.moveaxis(indices, -1, 0))
        with np.errstate(over="ignore", invalid="ignore"):
            expected = scatter_numpy(x, at, updates, reduction)
        np.testing.assert_array_equal(scatter_nd(x, indices, updates, reduction), expected)
        np.testing.assert_array_equal(scatter_nd(x, indices, updates, reduction, "x"), expected)


def scatter_elements(x, indices, updates, axis, reduction="none", y=None):
    given = {
        "axis": axis,
        "ndim": x.ndim,
        "x_shape": padded(x.shape),
        "shape": padded(indices.shape),
        "index_dtype": dtypes.from_numpy(indices.dtype),
        "dtype": dtypes.from_numpy(x.dtype),
        "scatter": reduction,
    }
    threads = [1] if y else [1, 2, 3, 8]
    operands = {"x": x, "indices": indices, "updates": updates, "y": y or x}
    return run_op("scatter_elements", threads=threads, **operands, **given)[0]


@pytest.mark.parametrize("reduction", ["none", *REDUCTIONS])
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_scatter_elements(dtype, reduction, data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    within = [data.draw(st.integers(0, 9 if d == axis else n)) for d, n in enumerate(shape)]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, updates = draw(rng, shape, dtype), draw(rng, within, dtype)
    indices = rng.integers(-shape[axis], shape[axis], within)
    indices = indices.astype(data.draw(st.sampled_from(["int32", "int64"])))
    at = list(np.indices(within, sparse=True))
    at[axis] = indices
    with np.errstate(over="ignore", invalid="ignore"):
        expected = scatter_numpy(x, tuple(at), updates, reduction)
    for y in (None, "x"):
        found = scatter_elements(x, indices, updates, axis, reduction, y)
        np.testing.assert_array_equal(found, expected)


def test_scatter_elements_of_many_tasks():
    rng = np.random.default_rng(5)
    for shape, axis in itertools.product(((300, 400), (40, 50, 60)), (0, 1)):
        x = rng.standard_normal(shape).astype(np.float32)
        indices = rng.integers(0, shape[axis], shape)
        at = list(np.indices(shape, sparse=True))
        at[axis] = indices
        expected = scatter_numpy(x, tuple(at), -x, "none")
        np.testing.assert_array_equal(scatter_elements(x, indices, -x, axis), expected)


@pytest.mark.parametrize("circular", [0, 1])
@pytest.mark.parametrize("first", [None, (0, 3), (5, 2)])
def test_tensor_scatter(first, circular):
    x, updates = np.zeros((2, 3, 7, 4), np.float32), np.arange(48.0).reshape(2, 3, 2, 4)
    updates = updates.astype(np.float32)
    expected = x.copy()
    for b, start in enumerate(first or (0, 0)):
        expected[b, :, (start + np.arange(2)) % 7] = updates[b].swapaxes(0, 1)
    fields = {"batch": 2, "outer": 3, "max": 7, "n": 2, "inner_bytes": 16, "circular": circular}
    fields["length"] = 7
    at = None if first is None else np.array(first)
    (y,) = run_op("tensor_scatter", x=x, updates=updates, first=at, y=x, **fields)
    np.testing.assert_array_equal(y, expected)
    fields["circular"] = 1
    at = np.array([6, -1])  # both wrap
    (y,) = run_op("tensor_scatter", x=x, updates=updates, first=at, y=x, **fields)
    np.testing.assert_array_equal(y[:, :, 6], updates[:, :, 0])
    np.testing.assert_array_equal(y[:, :, 0], updates[:, :, 1])


@pytest.mark.parametrize("starts", [None, (0, 9), (4, 7), (1, 3)])
@pytest.mark.parametrize("shape", [(2, 3, 7, 4), (2, 1, 9001, 16), (2, 2, 0, 8), (2, 0, 3, 4)])
@pytest.mark.parametrize("more", [0, 4, 5000])
def test_tensor_scatter_to_a_longer_output(starts, shape, more):
    """Zeros where neither x nor updates have rows."""
    rng = np.random.default_rng(more)
    batch, outer, rows, depth = shape
    length, n = rows + more, 2
    if length < max(starts or (0,)) + n:
        return
    x = rng.standard_normal(shape).astype(np.float32)
    updates = rng.standard_normal((batch, outer, n, depth)).astype(np.float32)
    expected = np.zeros((batch, outer, length, depth), np.float32)
    expected[:, :, :rows] = x
    for b, start in enumerate(starts or (0, 0)):
        expected[b, :, start : start + n] = updates[b]
    fields = {"batch": batch, "outer": outer, "max": rows, "n": n, "circular": 0, "length": length}
    fields["inner_bytes"] = 4 * depth
    first = None if starts is None else np.array(starts)
    outputs = [np.full(expected.shape, np.nan, np.float32)] + ["x"] * (more == 0)
    for y in outputs:
        (found,) = run_op("tensor_scatter", x=x, updates=updates, first=first, y=y, **fields)
        np.testing.assert_array_equal(found, expected)


def test_out_of_range():
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(StatusError) as error:
        scatter_nd(x, np.array([[0], [3]]), np.ones((2, 4), np.float32))
    assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, 3, 3)
    with pytest.raises(StatusError) as error:
        scatter_elements(x, np.array([[0, -5]]), np.ones((1, 2), np.float32), 1)
    assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, -5, 4)
    fields = {"batch": 3, "outer": 1, "max": 4, "n": 2, "inner_bytes": 4, "circular": 0}
    fields["length"] = 4
    for start in (-1, 3):
        with pytest.raises(StatusError) as error:
            at, updates = np.array([0, start, 1]), np.ones((3, 2), np.float32)
            run_op("tensor_scatter", x=x, updates=updates, first=at, y=x, **fields)
        assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, start, 3)
