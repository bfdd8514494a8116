"""layernorm and rmsnorm against float64: plain, with skip, with rows anywhere, and beside
onnxruntime for accuracy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads

EPS = np.finfo(np.float32).eps
NORMS = [
    pytest.param(kernel.family, kernel, id=kernel.name)
    for family in ("layernorm", "rmsnorm")
    for kernel in kernels(family)
]


def run_op(op: str, kernel, *, y, bias=None, **given):
    """The op on dense rows, where nothing else is given."""
    given = {"skip": None, "skip_bias": None, "weight": None, "sum": None, **given}
    given = {"skip_rows": 1, "weight_rows": 1, "run": 1, **given}
    dense = {"inner_rows": given["rows"], "x_outer_stride": 0, "x_row_stride": given["cols"]}
    dense["y_stride"] = given["cols"]
    if op == "layernorm":
        given["bias"] = bias
    return run_threads(op, kernel, y=y, **{**dense, **given})


def normalise(op: str, s: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    """Over the last axis in float64."""
    s = s.astype(np.float64)
    d = s - s.mean(-1, keepdims=True) if op == "layernorm" else s
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + epsilon)


def operands(rows: int, cols: int, seed: int):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, cols)) * 2 + 1).astype(np.float32)
    return (
        x,
        rng.standard_normal((3, cols)).astype(np.float32),
        rng.standard_normal((3, cols)).astype(np.float32),
    )


@pytest.mark.parametrize("op, kernel", NORMS)
def test_norms(op, kernel):
    sizes = [(6, n) for n in (1, 3, 15, 16, 17, 63, 64, 65, 100, 768)] + [(300, 128)]
    for (rows, cols), is_affine, has_skip, has_sum in itertools.product(
        sizes, *[(False, True)] * 3
    ):
        x, (weight, bias, skip_bias), skip = operands(rows, cols, cols)
        y, sums = run_op(
            op,
            kernel,
            x=x,
            skip=skip if has_skip else None,
            skip_bias=skip_bias if has_skip else None,
            weight=weight if is_affine else None,
            bias=bias if is_affine else None,
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
        gain = weight if is_affine else np.ones(cols)
        shift = bias if is_affine and op == "layernorm" else 0
        expected = normalise(op, s) * gain + shift
        # the mean's error moves every element; s is exact here: the kernel adds in the same order
        spread = s.astype(np.float64).var(-1, keepdims=True)
        scale = np.abs(s).max() / np.sqrt(spread + 1e-5) if op == "layernorm" else 1
        bound = (
            EPS * ((4 + cols / 64) * scale + 8) * np.abs(gain) + 8 * EPS * np.abs(expected) + EPS
        )
        assert (np.abs(y - expected) <= bound).all(), (rows, cols, is_affine, has_skip, has_sum)


@pytest.mark.parametrize("op, kernel", NORMS)
def test_rows_lie_anywhere(op, kernel):
    """The heads of one part of a merged projection, (B * S, 3, H, D), in and out of order."""
    x, (weight, bias, _), _ = operands(6 * 3 * 4, 24, 5)
    parts = x.reshape(6, 3, 4, 24)
    memory = x.ravel()[4 * 24 : -4 * 24]  # from the first row of the second part to its last
    for outer, inner, outer_stride, row_stride in ((6, 4, 288, 24), (4, 6, 24, 288)):
        rows = parts[:, 1] if outer == 6 else parts[:, 1].transpose(1, 0, 2)
        (y,) = run_op(
            op,
            kernel,
            x=memory,
            weight=weight,
            bias=bias,
            y=np.zeros((24, 24), np.float32),
            rows=outer * inner,
            cols=24,
            inner_rows=inner,
            x_outer_stride=outer_stride,
            x_row_stride=row_stride,
            eps=1e-5,
        )
        dense = np.ascontiguousarray(rows).reshape(24, 24)
        (same,) = run_op(
            op, kernel, x=dense, weight=weight, bias=bias, y=dense, rows=24, cols=24, eps=1e-5
        )
        assert y.tobytes() == same.tobytes()


@pytest.mark.parametrize("kernel", kernels("layernorm"), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("run", [1, 5, 16, 37])
def test_weights_of_channels(kernel, run):
    """Two images of three groups of two channels, by planes: as with a weight per element."""
    (x, *_), rng = operands(6, 2 * run, run), np.random.default_rng(run)
    weight, bias = rng.standard_normal((2, 3, 2)).astype(np.float32)
    given = {"x": x, "y": x, "rows": 6, "cols": 2 * run, "eps": 1e-5}
    for w, b in ((weight, bias), (weight, None), (None, bias), (None, None)):
        (y,) = run_op("layernorm", kernel, weight=w, bias=b, weight_rows=3, run=run, **given)
        wide = [None if each is None else np.repeat(each, run, 1) for each in (w, b)]
        (same,) = run_op("layernorm", kernel, weight=wide[0], bias=wide[1], weight_rows=3, **given)
        assert y.tobytes() == same.tobytes()
        for i in range(6):
            one = {**given, "x": x[i : i + 1], "y": x[i : i + 1], "rows": 1}
            w_row, b_row = (None if each is None else each[i % 3] for each in wide)
            (row,) = run_op("layernorm", kernel, weight=w_row, bias=b_row, **one)
            assert row.tobytes() == y[i].tobytes()


@pytest.mark.parametrize("op, kernel", NORMS)
def test_in_place_and_special_values(op, kernel):
    x, (weight, bias, _), skip = operands(3, 40, 7)
    given = {"weight": weight, "bias": bias, "rows": 3, "cols": 40, "skip_rows": 3, "eps": 1e-5}
    wanted, sums = run_op(op, kernel, x=x, skip=skip, y=x, sum=x, **given)
    for y, total in (("x", "skip"), ("skip", "x"), (x, "x")):
        got = run_op(op, kernel, x=x, skip=skip, y=y, sum=total, threads=[1], **given)
        assert (got[0].tobytes(), got[1].tobytes()) == (wanted.tobytes(), sums.tobytes())
    x[1, 5], x[2, 0] = np.nan, np.inf
    (y,) = run_op(op, kernel, x=x, y=x, **given)
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all() and np.isnan(y[2, 0])
    assert np.isnan(y[2]).all() if op == "layernorm" else (y[2, 1:] == 0).all()


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
def test_accuracy_beside_onnxruntime(op):
    ort = pytest.importorskip("onnxruntime")
    helper = pytest.importorskip("onnx.helper")
    rng = np.random.default_rng(3)
    name = {"layernorm": "LayerNormalization", "rmsnorm": "SimplifiedLayerNormalization"}[op]
    for cols, offset in ((128, 0.0), (768, 0.5), (768, 20.0)):
        x = (rng.standard_normal((200, cols)) + offset).astype(np.float32)
        weight = rng.standard_normal(cols).astype(np.float32)
        infos = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", x.shape), ("w", [cols]))]
        node = helper.make_node(name, ["x", "w"], ["y"], epsilon=1e-5)
        graph = helper.make_graph(
            [node], "g", infos, [helper.make_tensor_value_info("y", 1, x.shape)]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        theirs = session.run(None, {"x": x, "w": weight})[0]
        (ours,) = run_op(op, kernels(op)[0], x=x, weight=weight, y=x, rows=200, cols=cols, eps=1e-5)
        expected = normalise(op, x) * weight
        ours_rms, theirs_rms = (np.sqrt(np.mean((y - expected) ** 2)) for y in (ours, theirs))
        assert ours_rms <= 1.5 * theirs_rms, (cols, offset, ours_rms, theirs_rms)
