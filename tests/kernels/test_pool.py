"""pool against windows in float64, and the pools that onnx's evaluator does not know, or gets
wrong, against onnxruntime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node
from q7x2_ep.ops import find
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import load, rows, run_op, tolerance
from tests.kernels.windows import Window, window

POOL_BAND = load("").target.constants["POOL_BAND"]
every_row = pytest.mark.parametrize("row", rows("pool"), ids=lambda row: row.name)
SHAPES = {
    "3x3": ((2, 3, 9, 40), window((3, 3), pad=1)),
    "stride 2": ((2, 3, 10, 71), window((3, 3), stride=2, pad=1)),
    "stride 5": ((1, 2, 11, 23), window((2, 3), stride=5)),
    "dilated": ((1, 2, 13, 12), Window((3, 2), (2, 1), (2, 3), (1, 2), (0, 1))),
    "sticks out": ((1, 2, 6, 7), Window((3, 3), (2, 2), (1, 1), (0, 1), (1, 2))),
    "1-D": ((2, 3, 50), window((4,), stride=3, pad=2)),
    "3-D": ((2, 2, 5, 6, 7), window((2, 3, 2), stride=2, pad=1)),
    "channels last": (
        (2, 1, 7, 6, 150),
        Window((3, 2, 1), (2, 1, 1), (1, 2, 1), (1, 1, 0), (2, 1, 0)),
    ),
    "all of it": ((2, 3, 7, 7), window((7, 7))),
    "nothing": ((0, 3, 4, 4), window((2, 2))),
}
DTYPES = {"f4": 1, "f8": 11, "i1": 3, "u1": 2}
P = {"max": 0.0, "mean": 0.0, "lp": 2.0}


def pool(
    row: KernelRow, x: np.ndarray, at: Window, op: str, threads: int = 1, **more: Any
) -> dict[str, np.ndarray]:
    sizes, outs = x.shape[2:], at.outs(x.shape[2:])
    shape, by_line = (*x.shape[:2], *outs), x.dtype == np.float32 and "indices" not in more
    line = max(
        (outs[-1] - 1) * at.stride[-1] + at.dilation[-1] * (at.kernel[-1] - 1) + 1,
        sizes[-1] + at.before[-1],
    )
    after = [0, 0, *at.after][-3:]
    given: dict[str, Any] = {
        "indices": None,
        "count_pads": 0,
        "column_major": 0,
        "p": P[op],
        **more,
    }
    return run_op(
        "pool",
        row,
        threads,
        x=x,
        y=np.zeros(shape, x.dtype),
        work=(outs[-1] + threads * max(line, POOL_BAND)) * 4 if by_line else None,
        op=op,
        dtype=DTYPES[x.dtype.str[1:]],
        N=x.shape[0] * x.shape[1],
        **at.fields(sizes, outs, 3),
        pad_back=after[0],
        pad_bottom=after[1],
        pad_right=after[2],
        **given,
    )


def expected(x: np.ndarray, at: Window, op: str, count_pads: int = 0, p: float = 2.0) -> np.ndarray:
    """In float64; `x` may be of any dtype."""
    outs, wide = at.outs(x.shape[2:]), x.astype(np.float64)
    if op == "max":
        return np.max([part for _, part in at.taps(wide, outs, -np.inf)], 0)
    if op == "lp":
        return np.sum([np.abs(part) ** p for _, part in at.taps(wide, outs, 0)], 0) ** (1 / p)
    around = [(b, a) for b, a in zip(at.before, at.after)]
    ones = np.pad(np.ones(x.shape[2:]), around, constant_values=count_pads)
    inside = at._replace(before=(0,) * len(outs))
    count = np.sum([part for _, part in inside.taps(ones, outs, 0)], 0)
    return np.sum([part for _, part in at.taps(wide, outs, 0)], 0) / count


def values(shape: tuple, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(shape)
    return (rng.standard_normal(shape) * (1 if dtype[0] == "f" else 40)).astype(dtype)


@every_row
@pytest.mark.parametrize("name", SHAPES)
def test_against_windows(row: KernelRow, name: str) -> None:
    shape, at = SHAPES[name]
    x = values(shape, "f4")
    k = int(np.prod(at.kernel))
    np.testing.assert_array_equal(pool(row, x, at, "max")["y"], expected(x, at, "max"))
    scale = expected(np.abs(x), at, "mean") * k
    for count in (0, 1):
        y = pool(row, x, at, "mean", count_pads=count)["y"]
        assert (np.abs(y - expected(x, at, "mean", count)) <= tolerance(k, scale)).all()
    for p in (1.0, 2.0, 3.0):
        y, wanted = pool(row, x, at, "lp", p=p)["y"], expected(x, at, "lp", p=p)
        assert (np.abs(y - wanted) <= tolerance(k + 8, wanted + 1e-6)).all()


@every_row
@pytest.mark.parametrize("dtype", ["i1", "u1"])
@pytest.mark.parametrize("name", SHAPES)
def test_bytes(row: KernelRow, name: str, dtype: str) -> None:
    shape, at = SHAPES[name]
    x = np.random.default_rng(shape).integers(0, 256, shape).astype(np.uint8).view(dtype)
    np.testing.assert_array_equal(pool(row, x, at, "max")["y"], expected(x, at, "max"))


@every_row
def test_bits_do_not_depend_on_threads(row: KernelRow) -> None:
    last = Window((3, 2, 1), (2, 2, 1), (1, 1, 1), (1, 1, 0), (1, 1, 0))
    for shape, at in (
        ((3, 40, 19, 70), window((3, 2), stride=2, pad=1)),
        ((3, 1, 19, 70, 40), last),
    ):
        x = values(shape, "f4")
        for op in P:
            y = pool(row, x, at, op)["y"]
            for threads in (2, 3, 8):
                assert pool(row, x, at, op, threads)["y"].tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_other_dtypes_and_indices(name: str, dtype: str) -> None:
    shape, at = SHAPES[name]
    row, x = rows("pool")[0], values(shape, dtype)
    places = np.zeros((*shape[:2], *at.outs(shape[2:])), np.int64)
    found = pool(row, x, at, "max", indices=places)
    np.testing.assert_array_equal(found["y"], expected(x, at, "max"))
    np.testing.assert_array_equal(x.reshape(-1)[found["indices"]], found["y"])
    plane = found["indices"] // max(int(np.prod(shape[2:])), 1)
    lead = np.arange(shape[0] * shape[1]).reshape(*shape[:2], *[1] * len(shape[2:]))
    assert (plane == lead).all()
    if dtype == "f8":
        for op in ("mean", "lp"):
            np.testing.assert_allclose(pool(row, x, at, op)["y"], expected(x, at, op), 1e-12, 1e-14)


@every_row
def test_nan_and_infinity(row: KernelRow) -> None:
    x = values((1, 1, 6, 8), "f4")
    x[0, 0, 2, 3], x[0, 0, 4, 6], x[0, 0, 0, 0] = np.nan, np.inf, -np.inf
    at = window((2, 2))
    np.testing.assert_array_equal(pool(row, x, at, "max")["y"], expected(x, at, "max"))
    last, at_last = x.transpose(0, 2, 3, 1).copy()[:, None], window((2, 2, 1))
    found = pool(row, last, at_last, "max")
    np.testing.assert_array_equal(found["y"], expected(last, at_last, "max"))
    places = np.zeros((1, 1, 5, 7), np.int64)
    found = pool(row, x, at, "max", indices=places)
    np.testing.assert_array_equal(found["y"], expected(x, at, "max"))
    np.testing.assert_array_equal(x.reshape(-1)[found["indices"]], found["y"])


def single(op: str, feeds: dict[str, np.ndarray], outputs: int = 1, **attrs: Any) -> bytes:
    """A model of one node."""
    infos = [
        helper.make_tensor_value_info(name, dtypes.from_numpy(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    results = [
        helper.make_tensor_value_info(f"y{i}", (TensorProto.FLOAT, TensorProto.INT64)[i], None)
        for i in range(outputs)
    ]
    node = helper.make_node(op, list(feeds), [result.name for result in results], **attrs)
    graph = helper.make_graph([node], "single", infos, results)
    opset = helper.make_opsetid("", 20)  # onnxruntime has no newer GlobalLpPool and MaxRoiPool
    return helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()


@pytest.mark.parametrize(
    ("op", "outputs", "attrs"),
    [
        ("MaxPool", 2, {"kernel_shape": [2, 2], "storage_order": 1}),
        ("MaxPool", 2, {"kernel_shape": [3, 2], "strides": [3, 1], "auto_pad": "SAME_LOWER"}),
        ("LpPool", 1, {"kernel_shape": [3, 2], "pads": [1, 1, 2, 0], "strides": [2, 1], "p": 3}),
        ("GlobalLpPool", 1, {"p": 1}),
        ("GlobalLpPool", 1, {}),
        ("LRN", 1, {"size": 3, "alpha": 0.2}),
    ],
)
def test_as_onnxruntime(op: str, outputs: int, attrs: dict[str, Any]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    x = values((2, 5, 7, 8), "f4")
    model = single(op, {"x": x}, outputs, **attrs)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for actual, wanted in zip(
        q7x2_ep.InferenceSession(model).run(None, {"x": x}), theirs.run(None, {"x": x})
    ):
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual, wanted, 2e-6, 2e-6)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "pad"),
    [
        ((7, 7), 1280, 1280, 0),  # the last pool of EfficientNet exports
        ((7, 5), 9, 5, 0),
        ((1, 2), 5, 4, 1),
        ((7,), 12, 6, 1),
        ((3, 4, 5), 7, 6, 1),
        ((9, 4), 5, 3, 0),
    ],
)
def test_ceil_mode_takes_windows_beyond_the_image(
    sizes: tuple[int, ...], kernel: int, stride: int, pad: int, symbolic: bool
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    x, n = values((2, 3, *sizes), "f4"), len(sizes)
    window = {"kernel_shape": [kernel] * n, "strides": [stride] * n, "pads": [pad] * 2 * n}
    for op, more in [
        ("AveragePool", {}),
        ("AveragePool", {"count_include_pad": 1}),
        ("MaxPool", {}),
        ("LpPool", {}),
    ]:
        model = onnx.load_from_string(single(op, {"x": x}, ceil_mode=1, **window, **more))
        for i, dim in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
            if symbolic:
                dim.dim_param = f"d{i}"
        data = model.SerializeToString()
        theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        wanted = theirs.run(None, {"x": x})[0]
        actual = q7x2_ep.InferenceSession(data).run(None, {"x": x})[0]
        np.testing.assert_allclose(actual, wanted, 2e-6, 2e-6, strict=True)
        node = Node(op, [], [], {**find(op).attributes, "ceil_mode": 1, **window, **more})
        if op != "MaxPool":  # its reference wants values to put out
            np.testing.assert_allclose(find(op).reference(node, x), wanted, 2e-6, 2e-6, strict=True)


def test_a_kernel_that_no_window_fits_is_refused() -> None:
    x = values((1, 2, 7), "f4")
    for ceil_mode, kernel in ((0, 8), (1, 9)):
        model = single("MaxPool", {"x": x}, kernel_shape=[kernel], strides=[2], ceil_mode=ceil_mode)
        with pytest.raises(ModelError, match="does not fit into 7"):
            q7x2_ep.InferenceSession(model)


def test_max_roi_pool_as_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    x = values((2, 3, 12, 10), "f4")
    rois = np.array([[0, 1, 2, 8, 9], [1, 0, 0, 3, 1], [1, 5, 4, 4, 3], [0, 8, 9, 30, 40]], "f4")
    feeds = {"x": x, "rois": rois}
    attrs = {"pooled_shape": [3, 2], "spatial_scale": 0.7}
    model = single("MaxRoiPool", feeds, **attrs)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    node = Node("MaxRoiPool", [], [], attrs)
    np.testing.assert_array_equal(
        find("MaxRoiPool").reference(node, x, rois), theirs.run(None, feeds)[0]
    )
