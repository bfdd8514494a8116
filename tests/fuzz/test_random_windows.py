"""Random convolutions and pools of any geometry, with known and with symbolic sizes: against their
references in float64, and against onnxruntime where it takes them. What does not fit is an error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.errors import ModelError, ShapeError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ops import find

onnxruntime = pytest.importorskip("onnxruntime")
POOLS = ("MaxPool", "AveragePool", "LpPool")
OPS = ("Conv", "ConvTranspose", *POOLS)


class Case(NamedTuple):
    op: str
    attrs: dict[str, Any]
    x: np.ndarray
    rest: list[np.ndarray]  # weights and bias
    symbolic: bool  # all dims of x but its channels
    fed: bool  # weights are fed, not constants

    def __repr__(self) -> str:
        shapes = [x.shape for x in (self.x, *self.rest)]
        return f"{self.op}{shapes} {self.attrs} symbolic={self.symbolic} fed={self.fed}"


@st.composite
def cases(draw: Any) -> Case:
    op, n = draw(st.sampled_from(OPS)), draw(st.integers(1, 3))

    def each(low: int, high: int, count: int = n) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    group = draw(st.sampled_from((1, 1, 2, 3)))
    per_group = draw(st.integers(1, 3))
    sizes, kernel = each(0, 12 - 2 * n), each(1, 4)
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": each(1, 5)}
    if draw(st.booleans()):
        attrs["dilations"] = each(1, 3)
    attrs["auto_pad"] = draw(
        st.sampled_from(("NOTSET",) * 4 + ("SAME_UPPER", "SAME_LOWER", "VALID"))
    )
    if attrs["auto_pad"] == "NOTSET":
        attrs["pads"] = each(0, 4, 2 * n)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rest: list[np.ndarray] = []
    channels = group * per_group
    if op in POOLS:
        attrs["ceil_mode"] = draw(st.integers(0, 1))
        if op == "AveragePool":
            attrs["count_include_pad"] = draw(st.integers(0, 1))
        if op == "LpPool":
            attrs["p"] = draw(st.integers(1, 3))
    else:
        attrs["group"], filters = group, draw(st.sampled_from((1, 2, 3, 8, 35)))
        shape = (channels, filters) if op == "ConvTranspose" else (group * filters, per_group)
        rest = [rng.standard_normal((*shape, *kernel)), rng.standard_normal(group * filters)]
        rest = [x.astype(np.float32) for x in rest[: draw(st.integers(1, 2))]]
    if op == "ConvTranspose" and draw(st.booleans()):
        most = [max(s, d) - 1 for s, d in zip(attrs["strides"], attrs.get("dilations", (1,) * n))]
        attrs["output_padding"] = [draw(st.integers(0, m)) for m in most]
    x = rng.standard_normal((draw(st.integers(0, 3)), channels, *sizes)).astype(np.float32)
    return Case(op, attrs, x, rest, draw(st.booleans()), draw(st.booleans()))


def model(case: Case) -> tuple[bytes, dict[str, np.ndarray]]:
    dims: list[Any] = [
        f"d{i}" if case.symbolic and i != 1 else dim for i, dim in enumerate(case.x.shape)
    ]
    names = ["x", "w", "b"][: 1 + len(case.rest)]
    arrays = dict(zip(names, (case.x, *case.rest)))
    fed = names if case.fed else names[:1]
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, dims if name == "x" else arrays[name].shape
        )
        for name in fed
    ]
    constants = [numpy_helper.from_array(arrays[name], name) for name in names if name not in fed]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(case.op, names, ["y"], **case.attrs)
    graph = helper.make_graph([node], "case", inputs, [y], constants)
    opset = helper.make_opsetid("", 22)
    made = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    return made.SerializeToString(), {name: arrays[name] for name in fed}


def node_of(case: Case) -> Node:
    arrays = (case.x, *case.rest)
    values = [Value(f"x{i}", TensorProto.FLOAT, x.shape) for i, x in enumerate(arrays)]
    attrs = {**find(case.op).attributes, **case.attrs}
    return Node(case.op, list(values), [Value("y")], attrs, "node")


NOTHING = np.zeros((0, 1, 0, 0), np.float32)
STRIDED = {"kernel_shape": [1, 1], "strides": [1, 2], "auto_pad": "SAME_UPPER", "group": 1}


@settings(max_examples=400, deadline=None)
@given(cases())
@example(Case("Conv", STRIDED, NOTHING, [np.ones((8, 1, 1, 1), np.float32)], False, False))
def test_against_reference(case: Case) -> None:
    data, feeds = model(case)
    try:
        (type_,) = find(case.op).infer(node_of(case))
    except ModelError:
        with pytest.raises(ShapeError if case.symbolic else ModelError):
            q7x2_ep.InferenceSession(data).run(None, feeds)
        return
    (y,) = q7x2_ep.InferenceSession(data).run(None, feeds)
    wide = [x.astype(np.float64) for x in (case.x, *case.rest)]
    with np.errstate(all="ignore"):
        wanted = find(case.op).reference(node_of(case), *wide)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    assert y.shape == wanted.shape == type_.shape
    np.testing.assert_allclose(y, wanted, 2e-5, 2e-5)
    if is_comparable(case):
        for theirs in as_onnxruntime(data, feeds):
            assert theirs.shape == y.shape
            nothing = np.isneginf(wanted)  # of a window of padding: it has the least finite float
            np.testing.assert_allclose(y, np.where(nothing, wanted, theirs), 2e-5, 2e-5)


def is_comparable(case: Case) -> bool:
    """Whether onnxruntime follows the standard: not with SAME where windows leave gaps, its pools
    pad as if there were no dilations, and with VALID they heed ceil_mode.
    """
    attrs = case.attrs
    if attrs["auto_pad"] == "VALID" and attrs.get("ceil_mode"):
        return False
    gaps = any(stride > k for stride, k in zip(attrs["strides"], attrs["kernel_shape"]))
    dilated = case.op in POOLS and "dilations" in attrs
    return attrs["auto_pad"] == "NOTSET" or not (gaps or dilated)


def as_onnxruntime(data: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Its result, or nothing where it refuses: pads as wide as the kernel, say."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)
    except Exception:
        return []


def infer(op: str, *shapes: tuple, **attrs: Any) -> Type:
    values = [Value(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)]
    node = Node(op, list(values), [Value("y")], {**find(op).attributes, **attrs}, "node")
    (first, *_) = find(op).infer(node)
    return first


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("Conv", [(1, 3, 5, 5), (4, 2, 3, 3)], {}, "another number of channels"),
        ("Conv", [(1, 4, 5, 5), (3, 2, 3, 3)], {"group": 2}, "do not make 2 groups"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3), (5,)], {}, "wanted 4"),
        ("Conv", [(1, 3, 5), (4, 3, 3, 3)], {}, "of one rank"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 6, 3)], {}, "does not fit into 5"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3)], {"strides": (0, 1)}, "must be positive"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3)], {"strides": (1,)}, "not all for 2"),
        ("Conv", [(1, 3, 5), (4, 3, 3)], {"kernel_shape": (2,)}, "but a kernel"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3)], {"group": 0}, "group 0"),
        ("Conv", [(1, 3, 5, 5), (4, 3, 3, 3)], {"auto_pad": "SOME"}, "auto_pad"),
        ("ConvTranspose", [(1, 3, 5, 5), (4, 2, 3, 3)], {}, "another number of channels"),
        ("ConvTranspose", [(1, 3, 1), (3, 2, 2)], {"pads": (2, 2)}, "leave -2 elements"),
        ("ConvTranspose", [(1, 3, 1), (3, 2, 2)], {"output_shape": (3, 4, 5, 6)}, "not for 1 dims"),
        ("MaxPool", [(1, 3, 5, 5)], {"kernel_shape": (3,)}, "1 dims for 2"),
        ("MaxPool", [(1, 3, 5, 5)], {}, "by a kernel None"),
        ("MaxPool", [(1, 3, 5)], {"kernel_shape": (3,), "pads": (-1, 0)}, "not be negative"),
        ("LRN", [(1, 3, 5)], {}, "size None"),
        ("GlobalMaxPool", [(3,)], {}, "pools"),
    ],
)
def test_misfits(op: str, shapes: list[tuple], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        infer(op, *shapes, **attrs)
