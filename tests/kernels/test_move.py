"""pad and reverse_sequence: elements of every size at other places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from q7x2_ep.backend.cpu.library import DATA_FAULT, StatusError
from tests.kernels.harness import padded
from tests.kernels.harness import run_threads as run_op

BORDERS = ("edge", "reflect", "wrap")


def source(i: int, n: int, border: str) -> int:
    """One step at a time towards the inside."""
    while not 0 <= i < n:
        if border == "edge":
            i += 1 if i < 0 else -1
        elif border == "wrap":
            i += n if i < 0 else -n
        elif n == 1:
            i = 0
        else:
            i = -i if i < 0 else 2 * (n - 1) - i
    return i


def pad(x: np.ndarray, before, after, border: str, number: int = 0) -> np.ndarray:
    shape = [b + n + a for b, n, a in zip(before, x.shape, after)]
    return run_op(
        "pad",
        x=np.ascontiguousarray(x),
        y=np.zeros(shape, x.dtype),
        elem_bytes=x.itemsize,
        ndim=x.ndim,
        x_shape=padded(x.shape),
        x_stride=padded([s // x.itemsize for s in np.ascontiguousarray(x).strides]),
        shape=padded(shape),
        before=padded(before),
        border=border,
        bits=int.from_bytes(np.array(number, x.dtype).tobytes(), "little"),
    )[0]


@pytest.mark.parametrize("border", BORDERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_pad(border, data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from(["uint8", "float16", "float32", "int64"]))
    before, after = ([data.draw(st.integers(0, 7)) for _ in shape] for _ in range(2))
    x = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    expected = x
    for axis, (start, end) in enumerate(zip(before, after)):
        n = x.shape[axis]
        at = [source(i, n, border) for i in range(-start, n + end)]
        expected = np.take(expected, at, axis)
    np.testing.assert_array_equal(pad(x, before, after, border), expected)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pad_with_a_number(data):
    """Of nothing, too, and with rows, elements and whole planes of the border."""
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from(["uint8", "float16", "float32", "int64"]))
    before, after = ([data.draw(st.integers(0, 7)) for _ in shape] for _ in range(2))
    x = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    expected = np.pad(x, list(zip(before, after)), constant_values=99)
    np.testing.assert_array_equal(pad(x, before, after, "zeros", 99), expected)


@pytest.mark.parametrize("border", ["reflect", "zeros"])
def test_pad_of_many_tasks(border):
    x = np.random.default_rng(2).standard_normal((3, 120, 130)).astype(np.float32)
    mode = {"zeros": "constant"}.get(border, border)
    expected = np.pad(x, ((0, 0), (5, 4), (3, 2)), mode)
    np.testing.assert_array_equal(pad(x, (0, 5, 3), (0, 4, 2), border), expected)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("time_first", [0, 1])
def test_reverse_sequence(dtype, time_first):
    x = np.arange(120).reshape(4, 5, 6).astype(dtype)
    lengths = np.array([0, 3, 1, 4, 2] if time_first else [5, 0, 3, 1])
    expected = x.copy()
    for b, n in enumerate(lengths):
        at = np.s_[:n, b] if time_first else np.s_[b, :n]
        expected[at] = x[at][::-1]
    fields = {"outer": 4, "inner": 5, "inner_bytes": 6 * x.itemsize, "time_first": time_first}
    (y,) = run_op("reverse_sequence", x=x, lengths=lengths, y=x, **fields)
    np.testing.assert_array_equal(y, expected)


def test_reverse_sequence_out_of_range():
    x = np.zeros((2, 3), np.float32)
    for length in (-1, 4):
        with pytest.raises(StatusError) as error:
            fields = {"outer": 2, "inner": 3, "inner_bytes": 4, "time_first": 0}
            run_op("reverse_sequence", x=x, lengths=np.array([1, length]), y=x, **fields)
        assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, length, 4)
