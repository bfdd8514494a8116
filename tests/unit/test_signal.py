"""DFT and STFT whose sizes are data, and what they refuse, with a message that tells why."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.errors import Q7Error

EPS = np.finfo(np.float32).eps
CASES: dict[str, tuple[str, tuple, tuple, dict[str, Any], str]] = {
    "two parts of one side": ("DFT", (3, 8, 2), (None, 1), {"onesided": 1}, "numbers of 2 parts"),
    "one part joined": (
        "DFT",
        (3, 8, 1),
        (None, 1),
        {"onesided": 1, "inverse": 1},
        "numbers of 1 parts",
    ),
    "three parts": ("DFT", (3, 8, 3), (None, 1), {}, "numbers of 3 parts"),
    "no numbers": ("DFT", (3, 8, 1), (0, 1), {}, "the length of a transform"),
    "parts as axis": ("DFT", (3, 8, 1), (None, 2), {}, "axis 2 are the parts"),
    "no such axis": ("DFT", (3, 8, 1), (None, 5), {}, "axis 5"),
    "short": ("STFT", (2, 8, 1), (4, np.ones(16, np.float32)), {}, "8 samples, frames of 16"),
    "no step": ("STFT", (2, 40, 1), (0, np.ones(16, np.float32)), {}, "a step of 0"),
    "another window": ("STFT", (2, 40, 1), (4, np.ones(16, np.float32), 8), {}, "a window of"),
}


def model(
    op: str,
    shape: Optional[tuple],
    rest: tuple,
    fed: bool,
    attrs: dict[str, Any],
    dtype: int = TensorProto.FLOAT,
) -> bytes:
    """x, and behind it constants, or inputs, of floats as x. None is left out."""
    arrays = {
        f"in{i}": (
            value.astype(helper.tensor_dtype_to_np_dtype(dtype))
            if isinstance(value, np.ndarray)
            else np.array(value, np.int64)
        )
        for i, value in enumerate(rest)
        if value is not None
    }
    names = [f"in{i}" if f"in{i}" in arrays else "" for i in range(len(rest))]
    info = helper.make_tensor_value_info
    inputs = [info("x", dtype, shape)]
    if fed:
        code = helper.np_dtype_to_tensor_dtype
        inputs += [info(name, code(a.dtype), a.shape) for name, a in arrays.items()]
    constants = [] if fed else [numpy_helper.from_array(a, name) for name, a in arrays.items()]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], "n", **attrs)],
        "g",
        inputs,
        [info("y", dtype, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def feeds(shape: tuple, rest: tuple, fed: bool) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    values = {f"in{i}": np.asarray(value) for i, value in enumerate(rest) if value is not None}
    return {"x": x, **(values if fed else {})}


def check(op: str, shape: tuple, rest: tuple, fed: bool, attrs: dict[str, Any], n: int) -> None:
    """Against onnxruntime in float64; a pass rounds by some eps of the norm of n numbers."""
    given, symbols = feeds(shape, rest, fed), (None,) * len(shape)
    wide = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in given.items()}
    judge = model(op, symbols, rest, fed, attrs, TensorProto.DOUBLE)
    (wanted,) = onnxruntime.InferenceSession(judge).run(None, wide)
    (y,) = q7x2_ep.InferenceSession(model(op, symbols, rest, fed, attrs)).run(None, given)
    assert y.shape == wanted.shape
    bound = (4 + np.log2(n + 1)) * EPS * np.sqrt(np.mean(wanted**2))
    np.testing.assert_allclose(y, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("fed", [False, True])
def test_refused(name: str, symbolic: bool, fed: bool) -> None:
    op, shape, rest, attrs, text = CASES[name]
    declared = tuple(f"d{i}" for i in range(len(shape))) if symbolic else shape
    made, given = model(op, declared, rest, fed, attrs), feeds(shape, rest, fed)
    with pytest.raises(Q7Error, match=text if not fed else "."):
        q7x2_ep.InferenceSession(made).run(None, given)


FED = {
    "length": ("DFT", (3, 8, 1), (10, 1), {}, 10),
    "axis": ("DFT", (3, 8, 2), (None, 0), {"inverse": 1}, 3),
    "one side": ("DFT", (3, 8, 1), (9, 1), {"onesided": 1}, 9),
    "joined": ("DFT", (3, 7, 2), (13, 1), {"onesided": 1, "inverse": 1}, 13),
    "frames": ("STFT", (2, 64, 1), (7, np.hanning(16).astype(np.float32), 16), {}, 16),
    "all numbers": ("STFT", (2, 64, 1), (7, None, 12), {"onesided": 0}, 12),
}


@pytest.mark.parametrize("name", FED)
@pytest.mark.parametrize("fed", [False, True])
def test_sizes_from_data(name: str, fed: bool) -> None:
    op, shape, rest, attrs, n = FED[name]
    check(op, shape, rest, fed, attrs, n)


@pytest.mark.parametrize("n", [1, 60, 127, 1024, 1031, 1500])
def test_any_length_of_a_symbol(n: int) -> None:
    """Lengths that are native, and those that only the host has, in one session."""
    made = model("DFT", ("batch", "n", 1), (None, 1), False, {})
    session = q7x2_ep.InferenceSession(made)
    for size in (n, 12, n):
        given = feeds((2, size, 1), (), False)
        (y,) = session.run(None, given)
        wanted = np.fft.fft(given["x"][..., 0].astype(np.float64))
        error = np.abs(y[..., 0] + 1j * y[..., 1] - wanted).max()
        assert error <= 1e-6 * np.sqrt(np.mean(np.abs(wanted) ** 2)) * np.log2(size + 2)


def test_signal_without_parts() -> None:
    check("STFT", (2, 64), (8, np.hanning(16).astype(np.float32)), False, {}, 16)
