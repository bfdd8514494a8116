"""Ops that move, select and rank, on random shapes, axes and dtypes, empty tensors included:
the same as onnxruntime, whether sizes and axes are constants of the model or come from data.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper, parser

from q7x2_ep.errors import ShapeError
from q7x2_ep.session import Session
from tests.kernels.harness import tolerance

onnxruntime = pytest.importorskip("onnxruntime")

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "int8", "bool")
Draw = Callable[[Any], Any]


class Made(NamedTuple):
    """Inputs, attributes, number of outputs. The inputs after `data` tell sizes or axes."""

    inputs: list[np.ndarray]
    attrs: dict[str, Any]
    outputs: int = 1
    data: int = 1


def dims(draw: Draw, least: int = 1, most: int = 4, low: int = 0) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(low, 4), min_size=least, max_size=most)))


def array(draw: Draw, shape: tuple[int, ...], dtypes: Any = DTYPES) -> np.ndarray:
    """Few different values, so that there are ties; some that overflow where they are added up."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    return rng.integers(-90, 120, shape).astype(draw(st.sampled_from(dtypes)))


def ints(values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def axis_of(draw: Draw, shape: tuple[int, ...]) -> int:
    return draw(st.integers(-len(shape), len(shape) - 1))


def slice_(draw: Draw) -> Made:
    shape = dims(draw, low=1)  # -1 of a symbolic dim that is 0 at run time is a ShapeError
    axes = draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))]
    steps = [draw(st.sampled_from([1, 2, -1, -3])) for _ in axes]
    starts = [draw(st.sampled_from([*range(-6, 7), 2**63 - 1])) for _ in axes]
    far = {True: 2**31 - 1, False: -(2**63)}  # the end of all, by direction
    ends = [draw(st.sampled_from([*range(-6, 7), far[step > 0]])) for step in steps]
    return Made([array(draw, shape), *map(ints, (starts, ends, axes, steps))], {})


def pad(draw: Draw) -> Made:
    mode = draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
    shape = dims(draw, low=int(mode != "constant"))
    low = -1 if mode == "constant" and min(shape) > 1 else 0
    most = min(shape) - 1 if mode in ("reflect", "wrap") else 3  # beyond, onnxruntime differs
    pads = [draw(st.integers(low, max(most, 0))) for _ in range(2 * len(shape))]
    x = array(draw, shape, ("float32", "float64", "int32", "int64", "uint8", "int8"))
    rim = [np.array(7).astype(x.dtype)] if mode == "constant" else []
    return Made([x, ints(pads), *rim], {"mode": mode})


def tile(draw: Draw) -> Made:
    shape = dims(draw)
    repeats = ints([draw(st.integers(0, 3)) for _ in shape])
    return Made([array(draw, shape, ("float32", "int32", "int64", "uint8", "bool")), repeats], {})


def expand(draw: Draw) -> Made:
    shape = dims(draw)
    target = [dim if draw(st.booleans()) else 1 for dim in shape]
    x = array(
        draw, tuple(target), ("float32", "float64", "int32", "int64", "uint8", "int8", "bool")
    )
    wanted = [dim if have == 1 else 1 for dim, have in zip(shape, target)]
    return Made([x, ints([draw(st.integers(1, 2)), *wanted])], {})


def split(draw: Draw) -> Made:
    shape = dims(draw)
    axis = axis_of(draw, shape)
    cut = draw(st.integers(0, shape[axis]))
    x = array(draw, shape, ("float32", "int32", "int64", "uint8"))
    return Made([x, ints([cut, shape[axis] - cut])], {"axis": axis}, outputs=2)


def concat(draw: Draw) -> Made:
    shape = list(dims(draw))
    axis = axis_of(draw, tuple(shape))
    first = array(draw, tuple(shape))
    shape[axis] = draw(st.integers(0, 3))
    return Made([first, np.ones(shape, first.dtype), first], {"axis": axis}, data=3)


def transpose(draw: Draw) -> Made:
    shape = dims(draw)
    return Made([array(draw, shape)], {"perm": draw(st.permutations(range(len(shape))))})


def gather(draw: Draw) -> Made:
    shape = dims(draw, low=1)
    axis = axis_of(draw, shape)
    n = shape[axis]
    at = np.random.default_rng(1).integers(-n, n, dims(draw, least=0, most=2))
    kind = draw(st.sampled_from(["int32", "int64"]))
    return Made([array(draw, shape), at.astype(kind)], {"axis": axis}, data=2)


def gather_elements(draw: Draw) -> Made:
    shape = dims(draw, low=1)
    axis = axis_of(draw, shape)
    within = [draw(st.integers(0, dim)) for dim in shape]
    at = np.random.default_rng(2).integers(-shape[axis], shape[axis], within)
    return Made([array(draw, shape), at], {"axis": axis}, data=2)


def scatter_elements(draw: Draw) -> Made:
    (x, at), attrs, *_ = gather_elements(draw)
    reduction = draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    if reduction == "none":  # of equal indices the order is open
        at = np.zeros([0 if d == attrs["axis"] % x.ndim else n for d, n in enumerate(x.shape)], int)
    x = x.astype(draw(st.sampled_from(["float32", "float64", "int32", "int64", "uint8", "int8"])))
    updates = np.random.default_rng(3).integers(-9, 9, at.shape).astype(x.dtype)
    return Made([x, at, updates], {**attrs, "reduction": reduction}, data=3)


def gather_nd(draw: Draw) -> Made:
    shape = dims(draw, low=1)
    batch = draw(st.integers(0, len(shape) - 1))
    depth = draw(st.integers(1, len(shape) - batch))
    lead = (*shape[:batch], draw(st.integers(0, 3)))
    rng = np.random.default_rng(4)
    at = np.stack([rng.integers(-n, n, lead) for n in shape[batch : batch + depth]], -1)
    return Made([array(draw, shape), at], {"batch_dims": batch}, data=2)


def scatter_nd(draw: Draw) -> Made:
    shape = dims(draw, low=1)
    depth = draw(st.integers(1, len(shape)))
    rng = np.random.default_rng(5)
    at = np.stack([rng.integers(-n, n, 3) for n in shape[:depth]], -1)
    x = array(draw, shape, ("float32", "float64", "int32", "int64", "uint8", "int8"))
    updates = rng.integers(-9, 9, (3, *shape[depth:])).astype(x.dtype)
    reduction = draw(st.sampled_from(["add", "mul", "max", "min"]))
    return Made([x, at, updates], {"reduction": reduction}, data=3)


def top_k(draw: Draw) -> Made:
    shape = dims(draw, low=1)
    axis = axis_of(draw, shape)
    x = array(draw, shape, ("float32", "float64", "int32", "int64"))
    k = draw(st.integers(1, shape[axis]))
    return Made([x, ints([k])], {"axis": axis, "largest": draw(st.integers(0, 1))}, outputs=2)


def arg(draw: Draw) -> Made:
    shape = dims(draw, low=1)
    x = array(draw, shape, ("float32", "float64", "int32", "uint8", "int8"))
    attrs = {"axis": axis_of(draw, shape), "keepdims": draw(st.integers(0, 1))}
    return Made([x], {**attrs, "select_last_index": draw(st.integers(0, 1))})


def cum_sum(draw: Draw) -> Made:
    shape = dims(draw)
    x = array(draw, shape, ("float32", "float64", "int32", "int64"))
    attrs = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
    return Made([x, np.array(axis_of(draw, shape))], attrs)


def trilu(draw: Draw) -> Made:
    x = array(draw, dims(draw, least=2), ("float32", "float64", "int64", "bool"))
    return Made([x, np.array(draw(st.integers(-5, 5)))], {"upper": draw(st.integers(0, 1))})


def one_hot(draw: Draw) -> Made:
    at = array(draw, dims(draw, most=3), ("int64",)) % 9 - 4
    values = np.array([3, 5]).astype(draw(st.sampled_from(["float32", "int64"])))
    axis = draw(st.integers(-at.ndim - 1, at.ndim))
    return Made([at, np.array([4]), values], {"axis": axis})


def reverse_sequence(draw: Draw) -> Made:
    x = array(draw, dims(draw, least=2, low=1))
    time = draw(st.integers(0, 1))
    lengths = [draw(st.integers(1, x.shape[time])) for _ in range(x.shape[1 - time])]
    return Made([x, ints(lengths)], {"time_axis": time, "batch_axis": 1 - time}, data=2)


def center_crop_pad(draw: Draw) -> Made:
    shape = dims(draw, low=1)
    sizes = ints([draw(st.integers(1, 6)) for _ in shape])
    return Made([array(draw, shape, ("float32", "int64")), sizes], {})


def non_zero(draw: Draw) -> Made:
    return Made([array(draw, dims(draw), ("float32", "int32", "int64", "uint8", "bool")) // 60], {})


def compress(draw: Draw) -> Made:
    shape = dims(draw)
    axis = axis_of(draw, shape)
    condition = [draw(st.booleans()) for _ in range(draw(st.integers(0, shape[axis])))]
    return Made([array(draw, shape), np.array(condition, bool)], {"axis": axis}, data=2)


def unique(draw: Draw) -> Made:
    x = array(draw, dims(draw, low=1), ("float32", "int64", "int8")) // 40
    attrs = {"sorted": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        attrs["axis"] = axis_of(draw, x.shape)
    return Made([x], attrs, outputs=4)


def reshape(draw: Draw) -> Made:
    x = array(draw, dims(draw, low=1))
    cut = draw(st.integers(0, x.ndim))
    return Made([x, ints([*x.shape[:cut], -1])], {})


def where(draw: Draw) -> Made:
    shape = dims(draw)
    condition = array(draw, tuple(d if draw(st.booleans()) else 1 for d in shape), ("bool",))
    x = array(draw, shape, ("float32", "float64", "int32", "int64", "uint8"))
    return Made([condition, x, x[:1]], {}, data=3)


def squeeze(draw: Draw) -> Made:
    shape = dims(draw)
    axes = draw(st.permutations(range(len(shape) + 1)))[:1]
    return Made([array(draw, (*shape[: axes[0]], 1, *shape[axes[0] :])), ints(axes)], {})


def unsqueeze(draw: Draw) -> Made:
    shape = dims(draw, most=2)
    axes = draw(st.permutations(range(-len(shape) - 2, 0)))[:2]
    return Made([array(draw, shape), ints(axes)], {})


OPS = {
    "Slice": slice_,
    "Pad": pad,
    "Tile": tile,
    "Expand": expand,
    "Split": split,
    "Concat": concat,
    "Transpose": transpose,
    "Gather": gather,
    "GatherElements": gather_elements,
    "ScatterElements": scatter_elements,
    "GatherND": gather_nd,
    "ScatterND": scatter_nd,
    "TopK": top_k,
    "ArgMax": arg,
    "ArgMin": arg,
    "CumSum": cum_sum,
    "Trilu": trilu,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "CenterCropPad": center_crop_pad,
    "NonZero": non_zero,
    "Compress": compress,
    "Unique": unique,
    "Reshape": reshape,
    "Where": where,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
}


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_same_as_onnxruntime(op: str, data: Any) -> None:
    made = OPS[op](data.draw)
    fixed = made.inputs[made.data :] if data.draw(st.booleans()) else []
    fed = made.inputs[: len(made.inputs) - len(fixed)]
    names = [f"x{n}" for n in range(len(made.inputs))]
    outputs = [f"y{n}" for n in range(made.outputs)]
    node = helper.make_node(op, names, outputs, **made.attrs)

    def info(name: str, x: np.ndarray) -> Any:
        dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
        sizes = x.shape if x.ndim == 1 else [f"{name}_{d}" for d in range(x.ndim)]
        return helper.make_tensor_value_info(name, dtype, sizes)

    kinds = made.inputs[2 if op == "OneHot" else 1 if op == "Where" else 0].dtype
    kind = helper.np_dtype_to_tensor_dtype(kinds)
    if op in ("NonZero", "ArgMax", "ArgMin"):
        kind = 7
    types = [kind, *[7] * (made.outputs - 1)] if op != "Split" else [kind] * 2
    results = [helper.make_tensor_value_info(n, t, None) for n, t in zip(outputs, types)]
    constants = [numpy_helper.from_array(x, n) for n, x in zip(names[len(fed) :], fixed)]
    inputs = [info(name, x) for name, x in zip(names, fed)]
    graph = helper.make_graph([node], "g", inputs, results, constants)
    opset = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    feeds = dict(zip(names, fed))
    providers = ["CPUExecutionProvider"]
    wanted = onnxruntime.InferenceSession(model, options, providers=providers).run(None, feeds)
    for actual, expected in zip(Session(model, threads=2).run(feeds), wanted):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)


COMPUTED = ("b, rest", "ab, rest", "ab, c", "b, a, c", "a, b, c", "aa, b, rest")


@pytest.mark.parametrize("wanted", COMPUTED)
def test_a_size_that_turns_out_to_be_0_is_as_in_onnxruntime_or_refused(wanted: str) -> None:
    """It keeps the dim of x, as a 0 does that is written down: sizes alone would say otherwise."""
    text = f"""<ir_version: 10, opset_import: ["": 18]> g (float[a, b, c] x) => (y) {{
        sizes = Shape(x)
        a, b, c = Split<axis=0, num_outputs=3>(sizes)
        rest = Constant<value=int64[1] {{-1}}>()
        ab = Mul(a, b)
        aa = Add(a, a)
        new = Concat<axis=0>({wanted})
        y = Reshape(x, new)
    }}"""
    model = parser.parse_model(text).SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ours = Session(model)
    for shape in itertools.product((0, 2, 3), repeat=3):
        feeds = {"x": np.zeros(shape, np.float32)}
        try:
            expected = theirs.run(None, feeds)[0].shape
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            continue
        try:
            found = ours.run(feeds)[0].shape
        except ShapeError:
            assert 0 in shape
            continue
        assert found == expected, shape


@pytest.mark.parametrize("op", ["Attention of one head", "RotaryEmbedding"])
def test_shapes_that_fusions_make_are_no_dims_to_keep(op: str) -> None:
    """An empty memory, no queries, no tokens: there is no Reshape in these models but ours."""
    text = """<ir_version: 10, opset_import: ["": 17]>
        g (float[b, t, 8] x, float[b, p, 8] k) => (float[b, t, 8] y) {
            turned = Transpose<perm=[0, 2, 1]>(k)
            scores = MatMul(x, turned)
            weights = Softmax<axis=-1>(scores)
            y = MatMul(weights, k)
        }"""
    shapes = [((2, 3, 8), (2, 0, 8)), ((2, 0, 8), (2, 5, 8)), ((0, 3, 8), (0, 5, 8))]
    if op == "RotaryEmbedding":
        text = """<ir_version: 11, opset_import: ["": 23]>
            g (float[b, t, 8] x, float[b, t, 2] k) => (float[b, t, 8] y) {
                y = RotaryEmbedding<num_heads=2>(x, k, k)
            }"""
        shapes = [((2, 0, 8), (2, 0, 2)), ((0, 3, 8), (0, 3, 2)), ((2, 3, 8), (2, 3, 2))]
    model = parser.parse_model(text).SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ours, rng = Session(model), np.random.default_rng(0)
    for x, k in shapes:
        feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", x), ("k", k))}
        (found,), (expected,) = ours.run(feeds), theirs.run(None, feeds)
        assert found.shape == expected.shape
        most = max(float(np.abs(each).max(initial=1)) for each in feeds.values())
        # Of each engine; weights are off by as much, relatively.
        scores = 2 * tolerance(8, 8 * most**2)
        np.testing.assert_allclose(found, expected, rtol=0, atol=most * scores)


def fed_node(op: str, feeds: dict[str, np.ndarray], **attrs: Any) -> np.ndarray:
    """What both make of one node whose operands are fed: the same, or this fails."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in feeds.items()}
    inputs = [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in feeds.items()]
    result = helper.make_tensor_value_info("y", next(iter(kinds.values())), None)
    graph = helper.make_graph(
        [helper.make_node(op, [*feeds], ["y"], **attrs)], "g", inputs, [result]
    )
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,), (expected,) = Session(model).run(feeds), theirs.run(None, feeds)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    return found


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceSumSquare", "ReduceL1", "ReduceMean"])
def test_halves_along_axes_that_are_fed_are_reduced_in_floats(op: str) -> None:
    x = np.array([[300, 400], [3, 4], [0.0003, 0.0004]], np.float16)
    fed_node(op, {"x": x, "axes": ints([1])})


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_an_empty_dim_that_is_not_padded_is_none_that_lacks_a_rim(mode: str) -> None:
    """Which of the widths are 0 only a run tells."""
    x = np.zeros((2, 0), np.float32)
    assert fed_node("Pad", {"x": x, "pads": ints([1, 0, 1, 0])}, mode=mode).shape == (4, 0)
