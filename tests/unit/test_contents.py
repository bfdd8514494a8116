"""Symbolic sizes and contents: the chains by which exporters compute shapes, and their guards."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.shape import Expr, ceildiv, maximum, minimum, substitute, symbol
from q7x2_ep.ir.view import View
from q7x2_ep.ops import find
from q7x2_ep.ops.common import NotInferable, expand_view, known
from q7x2_ep.ops.movement import slices

B, S, P = symbol("b"), symbol("s"), symbol("p")


def value(shape: tuple, dtype: int = dtypes.FLOAT, elements: Optional[tuple] = None) -> Value:
    return Value("x", dtype, shape, elements)


def vector(*elements: Any, dtype: int = dtypes.INT64) -> Value:
    return value((len(elements),), dtype, elements)


def follow(op: str, *inputs: Optional[Value], outputs: int = 1, **attrs: Any) -> Value:
    """The first output of a node, typed."""
    node = Node(
        op,
        list(inputs),
        [Value(f"y{n}") for n in range(outputs)],
        {**find(op).attributes, **attrs},
        op,
    )
    for output, type in zip(node.outputs, find(op).infer(node)):
        output.set_type(type)
    return node.output


def constant(array: Any) -> Value:
    array = np.asarray(array)
    return Value("c", dtypes.from_numpy(array.dtype), array.shape, const=array)


def test_expand_shape_chain() -> None:
    """Where(shape == -1, ones, shape), as exporters guard an Expand."""
    shape = follow(
        "Concat", follow("Shape", value((B, S)), end=1), constant([-1]), vector(S), axis=0
    )
    ones = follow("ConstantOfShape", follow("Shape", shape), value=np.ones(1, np.int64))
    minus = follow("Mul", ones, constant(-1))
    chosen = follow("Where", follow("Equal", shape, minus), ones, shape)
    assert chosen.elements == (B, 1, S)
    assert follow("Expand", value((B, 1, 1)), chosen).shape == (B, 1, S)


def test_tile_by_one_hot() -> None:
    """How repeats are written where only their position is known beforehand."""
    hot = follow("OneHot", constant([-2]), constant(3), vector(1, S))
    repeats = follow("Reshape", hot, constant([-1]))
    assert repeats.elements == (1, S, 1)
    assert follow("Tile", value((B, 1, 4)), repeats).shape == (B, S, 4)


def test_contents_of_tables() -> None:
    """A row of a table is not one of its elements."""
    table = constant([[1, 2, 3], [4, 5, 6]])
    for some in (
        follow("Gather", table, constant(1)),
        follow("ReduceSum", table, constant([0]), keepdims=0),
    ):
        assert (some.shape, some.elements) == ((3,), None)
    assert follow("ReduceSum", table, constant([0, 1]), keepdims=0).elements == (21,)


def test_split_heads_chain() -> None:
    x = value((B, S, 768))
    shape = follow("Shape", x)
    batch = follow("Unsqueeze", follow("Gather", shape, constant(0)), constant([0]))
    heads = follow("Div", follow("Gather", shape, constant([2])), constant([64]))
    split = follow(
        "Reshape", x, follow("Concat", batch, constant([-1]), heads, constant([64]), axis=0)
    )
    assert split.shape == (B, S, 12, 64)
    merged = follow(
        "Reshape", follow("Transpose", split, perm=[0, 2, 1, 3]), vector(B * 12, -1, 64)
    )
    assert merged.shape == (12 * B, S, 64)


def test_reshape_cancels_sums() -> None:
    assert follow("Reshape", value((B, 12, B + S, 64)), vector(-1, B + S, 64)).shape == (
        12 * B,
        B + S,
        64,
    )


@pytest.mark.parametrize(
    ("start", "end", "size"),
    [
        (0, S, S),
        (0, 2**63 - 1, S),
        (-1, 2**63 - 1, 1),
        (0, -1, maximum(S - 1, 0)),
        (0, 4, minimum(S, 4)),
    ],
)
def test_slice_of_symbolic_dim(start: Any, end: Any, size: Any) -> None:
    assert follow("Slice", value((B, S)), vector(start), vector(end), constant([1])).shape == (
        B,
        size,
    )


def test_slice_to_symbol_broadcasts() -> None:
    """Position ids cut from a table: (1, min(s, 512)) stands beside (b, s)."""
    positions = follow(
        "Slice", value((1, 512), dtypes.INT64), constant([0]), vector(S), constant([1])
    )
    assert positions.shape == (1, minimum(S, 512))
    assert follow("Add", value((B, S), dtypes.INT64), positions).shape == (B, S)


def test_slice_of_moving_window() -> None:
    """GPT-2 with a cache cuts rows past:past + s and columns :past + s of its causal mask."""
    table = constant(np.ones((1, 1, 1024, 1024), bool))
    end, s = follow("Add", vector(P), vector(S)), vector(S)
    rows = follow("Slice", table, follow("Sub", end, s), end, constant([2]))
    mask = follow("Slice", rows, constant([0]), end, constant([3]))
    chosen = follow("Where", mask, value((B, 12, S, P + S)), constant(np.float32(-1e4)))
    assert chosen.shape == (B, 12, S, P + S)
    for past, broken in ((5, False), (1023, False), (1024, True)):
        pairs = find("Slice").assumptions(rows.producer)
        sizes = {"p": past, "s": 1}
        assert broken == any(substitute(a, sizes) != substitute(b, sizes) for a, b, _ in pairs)


def test_slice_of_a_tail() -> None:
    """The last s of a table, as ALiBi cuts its distances: inside of it, whatever s is."""
    minus = follow("Sub", constant([0]), vector(S))
    tail = follow("Slice", value((1, 64)), minus, constant([2**63 - 1]), constant([1]))
    assert tail.shape == (1, minimum(S, 64))
    assert follow("Add", value((B, S)), tail).shape == (B, S)
    ((_, start, size, _),) = slices(tail.producer)
    for s, broken in ((0, True), (1, False), (64, False), (99, False)):
        begin, count = substitute(start, {"s": s}), substitute(size, {"s": s})
        pairs = find("Slice").assumptions(tail.producer)
        assert broken == any(substitute(a, {"s": s}) != b for a, b, _ in pairs)
        assert broken or (begin, begin + count) == (max(64 - s, 0), 64)


def test_reshape_of_a_part_of_a_table() -> None:
    """What -1 stands for behind table[:s], of which there may be less than s."""
    rows = follow("Slice", value((64, 8)), constant([0]), vector(S), constant([0]))
    shape = follow("Concat", constant([1]), vector(S), constant([-1]), axis=0)
    whole = follow("Reshape", rows, shape)
    assert whole.shape == (1, S, 8)
    (left, right, _), *_ = find("Reshape").guards(whole.producer)
    assert [substitute(left, {"s": s}) == substitute(right, {"s": s}) for s in (64, 65)] == [1, 0]


def test_operands_that_never_fit() -> None:
    row, rows = value((8,)), value((B, 8))
    for op in ("LayerNormalization", "RMSNormalization"):
        with pytest.raises(ModelError, match="does not repeat"):
            follow(op, row, rows)
        with pytest.raises(ModelError, match="does not repeat"):
            follow(op, rows, value((4,)))
    with pytest.raises(ModelError, match="multiplies matrices"):
        follow("Gemm", rows, row)
    with pytest.raises(ModelError, match="rotates heads"):
        follow("RotaryEmbedding", rows, rows, rows)
    narrow = value((B, S, 4))
    with pytest.raises(ModelError, match="no heads"):
        follow("RotaryEmbedding", narrow, narrow, narrow)
    assert follow("Reshape", constant([1, 2, 3]), constant([1])).elements is None


def test_range_and_conditions() -> None:
    assert follow(
        "Range", value((), dtypes.INT64, (0,)), value((), dtypes.INT64, (S,)), constant(1)
    ).shape == (S,)
    assert follow("Equal", vector(S), constant([-1])).elements == (False,)
    assert follow("Equal", vector(S), constant([3])).elements is None
    assert follow("Greater", vector(S + 1), constant([0])).elements == (True,)
    assert follow("Cast", vector(S + 1), to=dtypes.BOOL).elements == (True,)
    assert follow("Max", vector(S), constant([0])).elements == (S,)
    assert follow("ReduceProd", vector(B, S, 2), constant([0])).elements == (2 * B * S,)
    assert follow("Split", value((S,)), outputs=2, num_outputs=2).shape == (ceildiv(S, 2),)


def test_not_inferable() -> None:
    with pytest.raises(NotInferable, match="length"):
        follow("Reshape", value((B, S)), value((S,), dtypes.INT64))
    with pytest.raises(NotInferable, match="which axes"):
        follow("Squeeze", value((1, S)))
    with pytest.raises(ModelError, match="do not broadcast"):
        follow("Add", value((2, 3)), value((2, 4)))
    with pytest.raises(ModelError, match="inner dims"):
        follow("MatMul", value((2, 3)), value((2, 4)))


def test_guards_hold_dims_together() -> None:
    def broken(op: str, *inputs: Value, sizes: dict[str, int], **attrs: Any) -> bool:
        node = follow(op, *inputs, **attrs).producer
        try:
            pairs = [[substitute(dim, sizes) for dim in pair] for *pair, _ in find(op).guards(node)]
        except ValueError:  # a broadcast that has no value: bind checks these too
            return True
        return any(left != right for left, right in pairs)

    add = (value((B, 4)), value((S, 4)))
    assert not broken("Add", *add, sizes={"b": 3, "s": 1})
    assert not broken("Add", *add, sizes={"b": 3, "s": 3})
    assert broken("Add", *add, sizes={"b": 3, "s": 2})
    assert broken("Add", value((B,)), value((4,)), sizes={"b": 3})
    assert broken("Concat", value((B, 2)), value((S, 2)), sizes={"b": 3, "s": 2}, axis=1)
    assert broken("MatMul", value((2, B)), value((S, 2)), sizes={"b": 3, "s": 2})
    assert broken("Squeeze", value((B, 2)), constant([0]), sizes={"b": 3})


@settings(max_examples=200, deadline=None)
@given(
    dim=st.integers(0, 9),
    start=st.integers(-12, 12),
    end=st.integers(-12, 12),
    step=st.sampled_from([1, 2, 3, -1, -2]),
)
def test_slice_is_python_slice(dim: int, start: int, end: int, step: int) -> None:
    if step < 0:  # from before the front is from the front
        start = max(start, -dim)
    wanted = np.arange(dim)[start:end:step]
    shape = follow("Slice", value((dim,)), *(constant([n]) for n in (start, end, 0, step))).shape
    if dim:  # a guard keeps -1 from an empty dim
        assert shape == wanted.shape
    symbolic = follow("Slice", value((S,)), *(constant([n]) for n in (start, end, 0, step))).shape
    if dim:
        assert substitute(symbolic[0], {"s": dim}) == len(wanted)


@settings(max_examples=200, deadline=None)
@given(a=st.integers(-50, 50), b=st.integers(1, 9), symbolic=st.booleans())
def test_division_truncates(a: int, b: int, symbolic: bool) -> None:
    dividend = vector(S - 20 if symbolic else a)
    (quotient,) = follow("Div", dividend, constant([b])).elements
    assert substitute(quotient, {"s": a + 20}) == int(a / b) or (symbolic and a < -20)


def test_expand_view_of_unknown_dim() -> None:
    """stride * min(d - 1, 1): the stride where d is more than 1, and 0 where it is 1."""
    view = expand_view(View.whole(value((S, 3))), (B, S, 3))
    assert view.strides == (0, 3, 1)
    (_, stride) = expand_view(View.whole(value((2, S))), (2, B)).strides
    assert isinstance(stride, Expr) and [substitute(stride, {"s": s}) for s in (1, 2, 9)] == [
        0,
        1,
        1,
    ]


def test_negative_pads_cut() -> None:
    """onnx's own evaluator cannot."""
    pads = constant([-1, 1, 0, -2])
    node = follow("Pad", value((3, 4)), pads).producer
    assert node.output.shape == (2, 3)
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(
        find("Pad").reference(node, x, pads.const), [[0, 4, 5], [0, 8, 9]]
    )


def test_known_contents() -> None:
    assert known(constant([1, 2])) == (1, 2)
    assert known(constant([1.5])) is None
    assert known(constant(np.zeros(65, np.int64))) is None
    assert known(None) is None
