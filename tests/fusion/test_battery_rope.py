"""RoPE in every spelling, layout and cut: one q7::Rope, one step; with one thing wrong, none."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from tests.fusion.battery import (
    SIZES,
    assert_correct,
    assert_fuses,
    assert_perturbed_stays,
    build,
    feeds_for,
    fused_ops,
)

onnxruntime = pytest.importorskip("onnxruntime")

H, D = 3, 8
KINDS = ("constant", "output", "dtype")
Q, K, TABLE, HALF_TABLE = ("B", H, "S", D), ("B", 1, "S", D), ("B", 1, "S", D), (1, 1, "S", D // 2)


# How the first and the second channels of all pairs are cut out of x: functions (g, x, R) -> a, b


def by_slice(g: Any, x: Any, R: int) -> tuple:
    return g.open(g.Slice(x, [0], [R // 2], [3])), g.open(g.Slice(x, [R // 2], [2**63 - 1], [-1]))


def by_negative_bounds(g: Any, x: Any, R: int) -> tuple:
    return g.open(g.Slice(x, [-R], [-R // 2], [-1], [1])), g.open(
        g.Slice(x, [-R // 2], [R], [-1], [1])
    )


def by_split(g: Any, x: Any, R: int) -> tuple:
    parts = g.Split(x, outputs=2, axis=-1, num_outputs=2)
    g.open(parts[0]), g.open(parts[1])
    return parts


def by_split_sizes(g: Any, x: Any, R: int) -> tuple:
    parts = g.Split(x, [R // 2, R // 2], outputs=2, axis=3)
    g.open(parts[0]), g.open(parts[1])
    return parts


def by_unbinding_halves(g: Any, x: Any, R: int) -> tuple:
    parts = g.open(g.Reshape(x, [0, 0, 0, 2, R // 2]))
    return tuple(g.open(g.Gather(parts, np.array(i), axis=-2)) for i in (0, 1))


def by_steps(g: Any, x: Any, R: int) -> tuple:
    return tuple(g.open(g.Slice(x, [i], [2**63 - 1], [3], [2])) for i in (0, 1))


def by_unbinding_pairs(g: Any, x: Any, R: int) -> tuple:
    parts = g.open(g.Reshape(x, [0, 0, 0, R // 2, 2]))
    return tuple(g.open(g.Gather(parts, np.array(i), axis=-1)) for i in (0, 1))


def by_squeezed_split(g: Any, x: Any, R: int) -> tuple:
    parts = g.Split(g.open(g.Reshape(x, [0, 0, 0, -1, 2])), outputs=2, axis=4, num_outputs=2)
    g.open(parts[0]), g.open(parts[1])
    return tuple(g.open(g.Squeeze(part, [4])) for part in parts)


HALVES = (by_slice, by_negative_bounds, by_split, by_split_sizes, by_unbinding_halves)
PAIRS = (by_steps, by_unbinding_pairs, by_squeezed_split)


UNBINDING = (by_unbinding_halves, by_unbinding_pairs)


def kinds(cut: Callable) -> tuple[str, ...]:
    """What to perturb: a Gather along another axis gives shapes that fit no feed."""
    return KINDS if cut in UNBINDING else (*KINDS, "axis")


# The two formulas, for both arrangements


def negated(g: Any, x: Any, by: Any) -> Any:
    return g.Mul(x, -1.0) if by else g.Neg(x)


def turned(
    g: Any,
    x: Any,
    cos: Any,
    sin: Any,
    cut: Callable,
    R: int = D,
    by: Any = None,
    back: bool = False,
) -> Any:
    """x * cos + (-b, a) * sin, or with back x * cos - (b, -a) * sin."""
    a, b = cut(g, x, R)
    if cut in PAIRS:
        a = g.open(g.Unsqueeze(a, [-1]))
        b = g.Unsqueeze(negated(g, b, by), [-1])
        return g.Add(g.Mul(x, cos), g.Mul(g.Reshape(g.Concat(b, a, axis=-1), [0, 0, 0, R]), sin))
    if back:
        return g.Sub(g.Mul(x, cos), g.Mul(g.Concat(b, negated(g, a, by), axis=-1), sin))
    return g.Add(g.Mul(x, cos), g.Mul(g.Concat(negated(g, b, by), a, axis=-1), sin))


def multiplied(g: Any, x: Any, cos: Any, sin: Any, cut: Callable, R: int = D) -> Any:
    """(a cos - b sin, b cos + a sin), joined."""
    a, b = cut(g, x, R)
    first = g.Sub(g.Mul(a, cos), g.Mul(b, sin))
    second = g.Add(g.Mul(b, cos), g.Mul(a, sin))
    if cut not in PAIRS:
        return g.Concat(first, second, axis=-1)
    columns = g.Unsqueeze(first, [-1]), g.Unsqueeze(second, [-1])
    return g.Reshape(g.Concat(*columns, axis=-1), [0, 0, 0, R])


def complex_product(g: Any, x: Any, cos: Any, sin: Any) -> Any:
    """As torch exports view_as_complex(x) * polar(1, angle)."""
    pairs = g.open(g.Reshape(x, [0, 0, 0, -1, 2]))
    a, b = (g.open(g.Slice(pairs, [i], [i + 1], [-1])) for i in (0, 1))
    table = g.open(g.Concat(*(g.open(g.Unsqueeze(t, [-1])) for t in (cos, sin)), axis=-1))
    c, s = (g.open(g.Slice(table, [i], [i + 1], [-1])) for i in (0, 1))
    product = g.Sub(g.Mul(a, c), g.Mul(b, s)), g.Add(g.Mul(a, s), g.Mul(b, c))
    return g.Reshape(g.Concat(*product, axis=-1), [0, 0, 0, D])


X_TABLES = {"x": Q, "cos": TABLE, "sin": TABLE}
X_HALF_TABLES = {"x": Q, "cos": HALF_TABLE, "sin": HALF_TABLE}
TURNED = [
    *(
        pytest.param(cut, {"by": by, "back": back}, id=f"{cut.__name__}-{by or 'Neg'}-{back}")
        for cut in HALVES
        for by in (None, "Mul")
        for back in (False, True)
    ),
    *(pytest.param(cut, {"by": by}, id=f"{cut.__name__}-{by}") for cut in PAIRS for by in (0, 1)),
]
CUTS = pytest.mark.parametrize("cut", HALVES + PAIRS, ids=lambda cut: cut.__name__)


@pytest.mark.parametrize("cut, options", TURNED)
def test_turned(cut: Callable, options: dict) -> None:
    def rope(g: Any, x: Any, cos: Any, sin: Any) -> Any:
        return turned(g, x, cos, sin, cut, **options)

    assert_fuses(rope, X_TABLES, {"q7::Rope": 1, "Mul": 0}, steps=1)
    assert_perturbed_stays(rope, X_TABLES, {"q7::Rope"}, kinds(cut))


@CUTS
def test_multiplied(cut: Callable) -> None:
    def rope(g: Any, x: Any, cos: Any, sin: Any) -> Any:
        return multiplied(g, x, cos, sin, cut)

    assert_fuses(rope, X_HALF_TABLES, {"q7::Rope": 1, "Mul": 0}, steps=1)
    assert_perturbed_stays(rope, X_HALF_TABLES, {"q7::Rope"}, kinds(cut))


def test_complex() -> None:
    tables = {"x": Q, "cos": ("S", D // 2), "sin": ("S", D // 2)}
    assert_fuses(complex_product, tables, {"q7::Rope": 1, "Mul": 0, "Concat": 0}, steps=1)
    assert_perturbed_stays(complex_product, tables, {"q7::Rope"})


# Layouts, ranks, and where the tables come from


@pytest.mark.parametrize(
    "shape, table",
    [
        (("B", H, "S", D), ("S", D)),
        (("B", H, "S", D), (1, D)),
        (("B", "S", H, D), ("B", "S", 1, D)),
        (("B", "S", H, D), ("S", 1, D)),
        (("B", "S", D), ("S", D)),
        (("S", "B", D), ("S", 1, D)),
        (("S", D), ("S", D)),
    ],
)
def test_layouts(shape: tuple, table: tuple) -> None:
    def rope(g: Any, x: Any, cos: Any, sin: Any) -> Any:
        a, b = g.Slice(x, [0], [D // 2], [-1]), g.Slice(x, [D // 2], [D], [-1])
        return g.Add(g.Mul(x, cos), g.Mul(g.Concat(g.Neg(b), a, axis=-1), sin))

    assert_fuses(rope, {"x": shape, "cos": table, "sin": table}, {"q7::Rope": 1}, steps=1)


def pair_of(rope: Callable) -> Callable:
    """The same for q and k, as Transposes of (B, S, H * D), read by attention."""

    def spelling(g: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return rope(g, q, cos, sin), rope(g, k, cos, sin)

    return spelling


@CUTS
def test_q_and_k_are_one_step(cut: Callable) -> None:
    for formula, table in ((turned, TABLE), (multiplied, HALF_TABLE)):
        spelling = pair_of(lambda g, x, cos, sin, f=formula: f(g, x, cos, sin, cut))
        inputs = {"q": Q, "k": K, "cos": table, "sin": table}
        assert_fuses(spelling, inputs, {"q7::Rope": 1}, steps=1)


def test_heads_inside_become_outside() -> None:
    def spelling(g: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        tables = [g.Unsqueeze(t, [2]) for t in (cos, sin)]
        q, k = (turned(g, x, *tables, by_slice) for x in (q, k))
        return g.Transpose(q, perm=[0, 2, 1, 3]), g.Transpose(k, perm=[0, 2, 1, 3])

    inputs = {"q": ("B", "S", H, D), "k": ("B", "S", 1, D), "cos": ("B", "S", D)}
    assert_fuses(spelling, {**inputs, "sin": ("B", "S", D)}, {"q7::Rope": 1}, steps=1)


def test_no_copy_between_projection_and_attention() -> None:
    def spelling(g: Any, x: Any, w: Any, cos: Any, sin: Any) -> Any:
        parts = g.Split(g.MatMul(x, w), outputs=3, axis=-1, num_outputs=3)
        q, k, v = (g.Transpose(g.Reshape(part, [0, 0, H, D]), perm=[0, 2, 1, 3]) for part in parts)
        q, k = (turned(g, y, cos, sin, by_slice) for y in (q, k))
        scores = g.Softmax(g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), 0.25), axis=-1)
        y = g.Transpose(g.MatMul(scores, v), perm=[0, 2, 1, 3])
        return g.Reshape(y, [0, 0, H * D])

    weight = np.random.default_rng(0).standard_normal((16, 3 * H * D))
    inputs = {"x": ("B", "S", 16), "w": weight, "cos": TABLE, "sin": TABLE}
    assert_fuses(spelling, inputs, {"q7::Rope": 1, "q7::Attention": 1}, steps=3)


def test_tables_computed_once_for_two_layers() -> None:
    """cos and sin from inv_freq and positions, scaled, with a branch per layer that equals."""

    def spelling(g: Any, x: Any, positions: Any) -> Any:
        for _ in range(2):
            angles = g.MatMul(
                np.array([1.0, 0.1, 0.01, 0.001])[None, :, None],
                g.Cast(g.Unsqueeze(positions, [1]), to=1),
            )
            angles = g.Transpose(angles, perm=[0, 2, 1])
            angles = g.Concat(angles, angles, axis=-1)
            tables = [g.Unsqueeze(g.Mul(f(angles), g.free(1.2)), [1]) for f in (g.Cos, g.Sin)]
            x = turned(g, x, *tables, by_slice)
        return x

    inputs = {"x": Q, "positions": ("int64", ("B", "S"))}
    assert_fuses(spelling, inputs, {"q7::Rope": 2, "MatMul": 1})


def test_tables_by_position() -> None:
    def spelling(g: Any, q: Any, k: Any, cos: Any, sin: Any, positions: Any) -> Any:
        tables = [g.Unsqueeze(g.Gather(t, positions, axis=0), [1]) for t in (cos, sin)]
        return turned(g, q, *tables, by_slice), turned(g, k, *tables, by_slice)

    angles = np.random.default_rng(1).standard_normal((32, D))
    inputs = {"q": Q, "k": K, "cos": np.cos(angles), "sin": np.sin(angles)}
    inputs["positions"] = ("int64", ("B", "S"))
    assert_fuses(spelling, inputs, {"q7::Rope": 1, "Gather": 2}, steps=3)


def test_tables_cut_to_length() -> None:
    def spelling(g: Any, x: Any, cos: Any, sin: Any) -> Any:
        length = g.Shape(x, start=2, end=3)
        tables = [g.Slice(t, [0], length, [0]) for t in (cos, sin)]
        return turned(g, x, *tables, by_slice)

    angles = np.random.default_rng(1).standard_normal((32, D))
    inputs = {"x": Q, "cos": np.cos(angles), "sin": np.sin(angles)}
    assert_fuses(spelling, inputs, {"q7::Rope": 1}, steps=1)


# Partial rotation


def partly(rope: Callable, table: tuple, axis: int = -1) -> tuple[Callable, dict]:
    def spelling(g: Any, x: Any, cos: Any, sin: Any) -> Any:
        part, rest = g.open(g.Slice(x, [0], [4], [3])), g.open(g.Slice(x, [4], [D], [3]))
        return g.Concat(g.open(rope(g, part, cos, sin)), rest, axis=axis)

    return spelling, {"x": Q, "cos": (*table[:3], 4), "sin": (*table[:3], 4)}


@CUTS
def test_partial(cut: Callable) -> None:
    spelling, inputs = partly(lambda g, x, cos, sin: turned(g, x, cos, sin, cut, 4), TABLE)
    assert_fuses(spelling, inputs, {"q7::Rope": 1, "Concat": 0}, steps=1)


def test_partial_with_heads_inside() -> None:
    spelling, inputs = partly(lambda g, x, cos, sin: turned(g, x, cos, sin, by_slice, 4), TABLE)
    inputs = {"x": ("B", "S", H, D), "cos": ("B", "S", 1, 4), "sin": ("S", 1, 4)}
    assert_fuses(spelling, inputs, {"q7::Rope": 1, "Concat": 0}, steps=1)


def test_partial_in_one_concat() -> None:
    def spelling(g: Any, x: Any, cos: Any, sin: Any) -> Any:
        a, b, rest = (g.open(part) for part in g.Split(x, [2, 2, 4], outputs=3, axis=-1))
        first = g.Sub(g.Mul(a, cos), g.Mul(b, sin))
        second = g.Add(g.Mul(b, cos), g.Mul(a, sin))
        return g.Concat(first, second, rest, axis=-1)

    inputs = {"x": Q, "cos": (1, 1, "S", 2), "sin": (1, 1, "S", 2)}
    assert_fuses(spelling, inputs, {"q7::Rope": 1, "Concat": 0}, steps=1)


# ONNX RotaryEmbedding


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("R", [0, 4])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("ndim", [3, 4])
def test_onnx_op(interleaved: int, R: int, positions: bool, ndim: int) -> None:
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": R}

    def spelling(g: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any) -> Any:
        tables = (cos, sin, ids) if positions else (cos, sin)
        heads = ({}, {}) if ndim == 4 else ({"num_heads": H}, {"num_heads": 1})
        return tuple(g.RotaryEmbedding(x, *tables, **attrs, **n) for x, n in zip((q, k), heads))

    half = (R or D) // 2
    table = (32, half) if positions else ("B", "S", half)
    inputs: dict[str, Any] = {"q": Q, "k": K, "cos": table, "sin": table}
    if ndim == 3:
        inputs.update(q=("B", "S", H * D), k=("B", "S", D))
    inputs["ids"] = ("int64", ("B", "S"))
    expected = {"q7::Rope": 1, "RotaryEmbedding": 0}
    assert_fuses(spelling, inputs, expected, steps=3 if positions else 1, opset=23)


def contrib_model(shape: tuple, positions: tuple, columns: int, **attrs: int) -> onnx.ModelProto:
    """q and k through com.microsoft RotaryEmbedding, by the same tables and positions."""
    one_head = (*shape[:1], 1, *shape[2:]) if len(shape) == 4 else (*shape[:2], D)
    info = helper.make_tensor_value_info
    fed = [info(name, 1, s) for name, s in (("q", shape), ("k", one_head))]
    fed.append(info("ids", TensorProto.INT64, positions))
    angles = np.random.default_rng(1).standard_normal((32, columns))
    tables = [
        numpy_helper.from_array(f(angles).astype(np.float32), name)
        for name, f in (("cos", np.cos), ("sin", np.sin))
    ]
    heads = {"q": H, "k": 1} if attrs.pop("given_heads") else {"q": 0, "k": 0}
    nodes = [
        helper.make_node(
            "RotaryEmbedding",
            [x, "ids", "cos", "sin"],
            [f"{x}_out"],
            domain="com.microsoft",
            num_heads=heads[x],
            **attrs,
        )
        for x in "qk"
    ]
    outputs = [info("q_out", 1, shape), info("k_out", 1, one_head)]
    graph = helper.make_graph(nodes, "rope", fed, outputs, tables)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("R", [0, 4])
@pytest.mark.parametrize("ids", [("B", "S"), (1,)], ids=["ids", "first"])
@pytest.mark.parametrize("shape", [Q, ("B", "S", H * D)], ids=["4d", "3d"])
def test_contrib_op(interleaved: int, R: int, ids: tuple, shape: tuple) -> None:
    for given_heads in {bool(R), True}:
        model = contrib_model(
            shape,
            ids,
            (R or D) // 2,
            interleaved=interleaved,
            rotary_embedding_dim=R,
            given_heads=given_heads,
        )
        assert fused_ops(model)[0]["q7::Rope"] == 1
        assert_correct(model)
        data = model.SerializeToString()
        theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        with q7x2_ep.InferenceSession(data) as session:
            assert [step.op for step in session._session.plan.steps].count("rope") == 1
            for sizes in SIZES:
                feeds = feeds_for(model, sizes)
                for left, right in zip(session.run(None, feeds), theirs.run(None, feeds)):
                    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


# What is no rotation


def wrong(name: str) -> Callable:
    def spelling(g: Any, x: Any, y: Any, cos: Any, sin: Any) -> Any:
        a, b = by_slice(g, x, D)
        other = by_slice(g, y, D)
        odd, even = by_steps(g, x, D)[::-1]
        parts = {
            "halves in place": (g.Neg(a), b),
            "no sign": (b, a),
            "the sign on the other half": (b, g.Neg(a)),
            "both signs": (g.Neg(b), g.Neg(a)),
            "one half twice": (g.Neg(b), b),
            "another value": (g.Neg(other[1]), a),
            "interleaved cut, joined halves": (g.Neg(odd), even),
        }
        return g.Add(g.Mul(x, cos), g.Mul(g.Concat(*parts[name], axis=-1), sin))

    return spelling


@pytest.mark.parametrize(
    "name",
    [
        "halves in place",
        "no sign",
        "the sign on the other half",
        "both signs",
        "one half twice",
        "another value",
        "interleaved cut, joined halves",
    ],
)
def test_wrong_turn(name: str) -> None:
    model, _ = build(wrong(name), {**X_TABLES, "y": Q})
    assert "q7::Rope" not in fused_ops(model)[0]
    assert_correct(model)


def uneven(g: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = g.Slice(x, [0], [3], [3]), g.Slice(x, [3], [D], [3])
    return g.Add(g.Mul(x, cos), g.Mul(g.Concat(g.Neg(b), a, axis=-1), sin))


def subtracted(g: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = by_slice(g, x, D)
    return g.Sub(g.Mul(x, cos), g.Mul(g.Concat(g.Neg(b), a, axis=-1), sin))


def tables_swapped_for_second(g: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = by_slice(g, x, D)
    first = g.Sub(g.Mul(a, cos), g.Mul(b, sin))
    return g.Concat(first, g.Add(g.Mul(b, sin), g.Mul(a, cos)), axis=-1)


def sum_first(g: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = by_slice(g, x, D)
    first = g.Add(g.Mul(a, cos), g.Mul(b, sin))
    return g.Concat(first, g.Sub(g.Mul(b, cos), g.Mul(a, sin)), axis=-1)


def second_first(g: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = by_slice(g, x, D)
    second = g.Add(g.Mul(b, cos), g.Mul(a, sin))
    return g.Concat(second, g.Sub(g.Mul(a, cos), g.Mul(b, sin)), axis=-1)


def heads_cut(g: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Halves of another axis than the last."""
    a, b = g.Slice(x, [0], [D // 2], [2]), g.Slice(x, [D // 2], [D], [2])
    return g.Add(g.Mul(x, cos), g.Mul(g.Concat(g.Neg(b), a, axis=2), sin))


@pytest.mark.parametrize(
    "spelling, inputs",
    [
        (uneven, X_TABLES),
        (subtracted, X_TABLES),
        (tables_swapped_for_second, X_HALF_TABLES),
        (sum_first, X_HALF_TABLES),
        (second_first, X_HALF_TABLES),
        (heads_cut, {"x": ("B", H, D, D), "cos": (D, D), "sin": (D, D)}),
        (subtracted, {**X_TABLES, "cos": ("B", H, "S", D)}),
    ],
)
def test_no_rotation(spelling: Callable, inputs: dict) -> None:
    model, _ = build(spelling, inputs)
    assert "q7::Rope" not in fused_ops(model)[0]
    assert_correct(model)


def test_tables_that_differ_by_head_stay() -> None:
    def rope(g: Any, x: Any, cos: Any, sin: Any) -> Any:
        return turned(g, x, cos, sin, by_slice)

    model, _ = build(rope, {**X_TABLES, "cos": ("B", H, "S", D)})
    counts, report = fused_ops(model)
    assert "q7::Rope" not in counts and "differ from head to head" in str(report)
    assert_correct(model)


def test_rest_from_elsewhere_stays() -> None:
    def spelling(g: Any, x: Any, y: Any, cos: Any, sin: Any) -> Any:
        part, rest = g.Slice(x, [0], [4], [3]), g.Slice(y, [4], [D], [3])
        return g.Concat(turned(g, part, cos, sin, by_slice, 4), rest, axis=-1)

    inputs = {"x": Q, "y": Q, "cos": (1, 1, "S", 4), "sin": (1, 1, "S", 4)}
    assert_fuses(spelling, inputs, {"q7::Rope": 1, "Concat": 1})


def test_rest_by_steps_that_feeds_tell_stays() -> None:
    def spelling(g: Any, x: Any, cos: Any, sin: Any) -> Any:
        step = g.Slice(g.Shape(x), [0], [1])
        part, rest = g.Slice(x, [0], [4], [3]), g.Slice(x, [4], [D], [3], step)
        return g.Concat(turned(g, part, cos, sin, by_slice, 4), rest, axis=-1)

    model, _ = build(spelling, {"x": Q, "cos": (1, 1, "S", 4), "sin": (1, 1, "S", 4)})
    data, feeds = model.SerializeToString(), feeds_for(model, {"B": 2, "S": 5})
    sessions = q7x2_ep.InferenceSession(data), onnxruntime.InferenceSession(data)
    ours, theirs = (session.run(None, feeds)[0] for session in sessions)
    np.testing.assert_allclose(ours, theirs, 1e-5, 1e-6)


def test_k_that_depends_on_q_stays_apart() -> None:
    def spelling(g: Any, q: Any, cos: Any, sin: Any) -> Any:
        once = turned(g, q, cos, sin, by_slice)
        return turned(g, once, cos, sin, by_slice)

    assert_fuses(spelling, {"q": Q, "cos": TABLE, "sin": TABLE}, {"q7::Rope": 2}, steps=2)
