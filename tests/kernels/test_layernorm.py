"""layernorm against float64: plain, with skip, and beside onnxruntime for accuracy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads as run_op

EPS = np.finfo(np.float32).eps


def layernorm(s: np.ndarray, weight: np.ndarray, bias, epsilon: float) -> np.ndarray:
    """Over the last axis in float64."""
    s = s.astype(np.float64)
    d = s - s.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + epsilon) * weight + (
        0 if bias is None else bias
    )


def operands(rows: int, cols: int, seed: int):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, cols)) * 2 + 1).astype(np.float32)
    return (
        x,
        rng.standard_normal((3, cols)).astype(np.float32),
        rng.standard_normal((3, cols)).astype(np.float32),
    )


@pytest.mark.parametrize("kernel", kernels("layernorm"), ids=lambda k: k.name)
def test_layernorm(kernel):
    sizes = [(6, n) for n in (1, 3, 15, 16, 17, 63, 64, 65, 100, 768)] + [(300, 128)]
    for (rows, cols), has_bias, has_skip, has_sum in itertools.product(sizes, *[(False, True)] * 3):
        x, (weight, bias, skip_bias), skip = operands(rows, cols, cols)
        y, sums = run_op(
            "layernorm",
            kernel,
            x=x,
            skip=skip if has_skip else None,
            skip_bias=skip_bias if has_skip else None,
            weight=weight,
            bias=bias if has_bias else None,
            y=x,
            sum=x if has_sum else None,
            rows=rows,
            cols=cols,
            skip_rows=3,
            eps=1e-5,
        ) + (() if has_sum else (None,))
        s = x
        if has_skip:
            s = x + np.tile(skip, (rows // 3, 1)) + skip_bias
            exact = x.astype(np.float64) + np.tile(skip, (rows // 3, 1)) + skip_bias
            assert sums is None or (np.abs(sums - exact) <= 2 * EPS * (np.abs(x) + 8)).all()
        expected = layernorm(s, weight, bias if has_bias else None, 1e-5)
        # the mean's error moves every element; s is exact here: the kernel adds in the same order
        scale = np.abs(s).max() / np.sqrt(s.astype(np.float64).var(-1, keepdims=True) + 1e-5)
        bound = (
            EPS * ((4 + cols / 64) * scale + 8) * np.abs(weight) + 8 * EPS * np.abs(expected) + EPS
        )
        assert (np.abs(y - expected) <= bound).all(), (rows, cols, has_bias, has_skip, has_sum)


@pytest.mark.parametrize("kernel", kernels("layernorm"), ids=lambda k: k.name)
def test_in_place_and_special_values(kernel):
    x, (weight, bias, _), skip = operands(3, 40, 7)
    given = {
        "weight": weight,
        "bias": bias,
        "rows": 3,
        "cols": 40,
        "skip_rows": 3,
        "eps": 1e-5,
        "skip_bias": None,
    }
    wanted, sums = run_op("layernorm", kernel, x=x, skip=skip, y=x, sum=x, **given)
    for y, total in (("x", "skip"), ("skip", "x"), (x, "x")):
        got = run_op("layernorm", kernel, x=x, skip=skip, y=y, sum=total, threads=[1], **given)
        assert (got[0].tobytes(), got[1].tobytes()) == (wanted.tobytes(), sums.tobytes())
    x[1, 5], x[2, 0] = np.nan, np.inf
    y = run_op("layernorm", kernel, x=x, skip=None, y=x, sum=None, **given)[0]
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all() and np.isnan(y[2, 0])


def test_accuracy_beside_onnxruntime():
    ort = pytest.importorskip("onnxruntime")
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(3)
    for cols, offset in ((128, 0.0), (768, 0.5), (768, 20.0)):
        x = (rng.standard_normal((200, cols)) + offset).astype(np.float32)
        weight, bias = rng.standard_normal((2, cols)).astype(np.float32)
        names = [
            helper.make_tensor_value_info(n, 1, s)
            for n, s in (("x", x.shape), ("w", [cols]), ("b", [cols]))
        ]
        node = helper.make_node("LayerNormalization", ["x", "w", "b"], ["y"], epsilon=1e-5)
        graph = helper.make_graph(
            [node], "g", names, [helper.make_tensor_value_info("y", 1, x.shape)]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        theirs = session.run(None, {"x": x, "w": weight, "b": bias})[0]
        ours = run_op(
            "layernorm",
            kernels("layernorm")[0],
            x=x,
            skip=None,
            skip_bias=None,
            weight=weight,
            bias=bias,
            y=x,
            sum=None,
            rows=200,
            cols=cols,
            skip_rows=1,
            eps=1e-5,
        )[0]
        expected = layernorm(x, weight, bias, 1e-5)
        ours_rms, theirs_rms = (np.sqrt(np.mean((y - expected) ** 2)) for y in (ours, theirs))
        assert ours_rms <= 1.5 * theirs_rms, (cols, offset, ours_rms, theirs_rms)
