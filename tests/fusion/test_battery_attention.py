"""Every spelling of attention is one q7::Attention and one step; what is no attention stays as it
is."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep.ir.core import Node
from tests.fusion.battery import (
    Change,
    assert_correct,
    assert_fuses,
    assert_perturbed_stays,
    build,
    feeds_for,
    fused_graph,
    fused_ops,
    orders,
)

H, D = 2, 16
ROWS = ("B", "S", H * D)
KEYS = ("B", "T", H * D)
QKV = {"q": ROWS, "k": KEYS, "v": KEYS}
MIN = float(np.finfo(np.float32).min)
ONE = {"q7::Attention": 1, "Softmax": 0, "MatMul": 0}

Part = Callable[..., Any]


def split(g: Any, x: Any, count: int = H) -> Any:
    """(B, S, H * D) as (B, H, S, D)."""
    return g.Transpose(g.Reshape(x, [0, 0, count, D]), perm=[0, 2, 1, 3])


def merge(g: Any, o: Any, count: int = H) -> Any:
    return g.Reshape(g.Transpose(o, perm=[0, 2, 1, 3]), [0, 0, count * D])


def weighted(g: Any, scores: Any, v: Any) -> Any:
    return merge(g, g.MatMul(g.Softmax(scores, axis=-1), split(g, v)))


def columns(g: Any, k: Any) -> Any:
    return g.Transpose(split(g, k), perm=[0, 1, 3, 2])


def product(g: Any, q: Any, k: Any) -> Any:
    return g.MatMul(split(g, q), columns(g, k))


def computed_scale(g: Any, q: Any) -> Any:
    """sqrt(1 / sqrt(D)) from the shape, as legacy exporters write it."""
    depth = g.Cast(g.Slice(g.Shape(q), [-1], [2**63 - 1]), to=1)
    return g.Sqrt(g.Div(1.0, g.Sqrt(depth)))


# scale: (g, q, k, add mask) -> scores. The mask is added where the scale allows it first.
SCALES: dict[str, Part] = {
    "div": lambda g, q, k, m: g.Div(m(product(g, q, k)), math.sqrt(D)),
    "mul": lambda g, q, k, m: g.Mul(m(product(g, q, k)), D**-0.5),
    "q": lambda g, q, k, m: m(g.MatMul(g.Mul(split(g, q), D**-0.5), columns(g, k))),
    "k": lambda g, q, k, m: m(g.MatMul(split(g, q), g.Div(columns(g, k), math.sqrt(D)))),
    "both": lambda g, q, k, m: m(
        g.MatMul(g.Mul(split(g, q), D**-0.25), g.Mul(columns(g, k), D**-0.25))
    ),
    "computed": lambda g, q, k, m: m(
        g.MatMul(
            g.Mul(split(g, q), computed_scale(g, split(g, q))),
            g.Mul(columns(g, k), computed_scale(g, split(g, q))),
        )
    ),
}
MASK = {"mask": ("B", 1, "S", "T")}
KEEP = {"keep": ("bool", ("B", 1, "S", "T"))}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("place", ["none", "added", "where", "added first"])
def test_the_table(scale: str, place: str) -> None:
    """Scale and mask in each of their places: onnxruntime fuses none of the 24."""
    scaled = SCALES[scale]

    def none(g: Any, q: Any, k: Any, v: Any) -> Any:
        return weighted(g, scaled(g, q, k, lambda x: x), v)

    def added(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return weighted(g, g.Add(scaled(g, q, k, lambda x: x), mask), v)

    def where(g: Any, q: Any, k: Any, v: Any, keep: Any) -> Any:
        return weighted(g, g.Where(keep, scaled(g, q, k, lambda x: x), MIN), v)

    def added_first(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return weighted(g, scaled(g, q, k, lambda x: g.Add(x, mask)), v)

    spelling = {"none": none, "added": added, "where": where, "added first": added_first}[place]
    extra = 1 if place == "added first" and scale in ("div", "mul") else 0  # the mask is scaled
    assert_fuses(spelling, {**QKV, **MASK, **KEEP}, ONE, steps=1 + extra)


# masks: (g, scores, operands ..) -> masked scores, and what the operands are
def where_keep(g: Any, x: Any, keep: Any) -> Any:
    return g.Where(keep, x, -math.inf)


def where_drop(g: Any, x: Any, keep: Any) -> Any:
    return g.Where(g.Not(keep), -1e4, x)


def subtracted(g: Any, x: Any, keep: Any) -> Any:
    return g.Sub(x, g.Mul(g.Sub(1.0, g.Cast(keep, to=1)), 1e9))


def where_behind_bias(g: Any, x: Any, keep: Any, alibi: Any) -> Any:
    return g.Where(keep, g.Add(x, alibi), -1e4)


def bias_behind_where(g: Any, x: Any, keep: Any, alibi: Any) -> Any:
    return g.Add(g.Where(keep, x, -math.inf), alibi)


def finite_under_bias(g: Any, x: Any, keep: Any, alibi: Any) -> Any:
    return g.Add(g.Where(keep, x, MIN), alibi)


def two_added(g: Any, x: Any, mask: Any, alibi: Any) -> Any:
    return g.Add(g.Add(x, alibi), mask)


def three_added(g: Any, x: Any, mask: Any, alibi: Any, row: Any) -> Any:
    return g.Add(g.Add(g.Add(x, alibi), mask), row)


def two_selections(g: Any, x: Any, keep: Any, padding: Any) -> Any:
    return g.Where(padding, g.Where(keep, x, MIN), MIN)


def padding_in_graph(g: Any, x: Any, padding: Any) -> Any:
    seen = g.Cast(g.Unsqueeze(g.Cast(padding, to=7), [1, 2]), to=1)
    return g.Add(x, g.Mul(g.Sub(1.0, seen), MIN))


def padding_expanded(g: Any, x: Any, padding: Any) -> Any:
    seen = g.Expand(g.Unsqueeze(padding, [1, 2]), g.Shape(x))
    return g.Add(x, g.Where(seen, 0.0, -math.inf))


def capped(g: Any, x: Any) -> Any:
    return g.Mul(g.Tanh(g.Div(x, 30.0)), 30.0)


def capped_and_masked(g: Any, x: Any, mask: Any) -> Any:
    return g.Add(capped(g, x), mask)


def scaled_per_head(g: Any, x: Any, mask: Any) -> Any:
    return g.Add(g.Mul(x, np.linspace(0.5, 2.0, H).reshape(H, 1, 1)), mask)


def relative(g: Any, x: Any, table: Any) -> Any:
    return g.Add(x, table)


OPERANDS: dict[str, Any] = {
    **MASK,
    **KEEP,
    "alibi": (1, H, 1, "T"),
    "row": ("T",),
    "padding": ("bool", ("B", "T")),
    "table": (H, "S", "T"),
}
MASKS = {
    where_keep: 1,
    where_drop: 2,  # Not
    subtracted: 2,  # the mask itself
    where_behind_bias: 1,
    bias_behind_where: 1,
    finite_under_bias: None,
    two_added: 1,
    three_added: None,
    padding_in_graph: None,
    padding_expanded: None,
    capped: 1,
    capped_and_masked: 1,
    scaled_per_head: None,
    relative: 1,
}


def with_mask(mask: Part, guarded: bool = False) -> tuple[Part, dict[str, Any]]:
    """The spelling with such a mask, and its inputs."""
    names = mask.__code__.co_varnames[2 : mask.__code__.co_argcount]

    def spelling(g: Any, q: Any, k: Any, v: Any, *operands: Any) -> Any:
        p = g.Softmax(mask(g, g.Mul(product(g, q, k), D**-0.5), *operands), axis=-1)
        if guarded:
            p = g.Where(g.IsNaN(p), 0.0, p)
        return merge(g, g.MatMul(p, split(g, v)))

    return named(spelling, ("q", "k", "v", *names)), {**QKV, **OPERANDS}


def named(spelling: Part, names: tuple[str, ...]) -> Part:
    """The harness reads the operands' names off the signature."""
    import inspect

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("g", *names)]
    spelling.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return spelling


@pytest.mark.parametrize("guarded", [False, True], ids=["", "guarded"])
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__name__)
def test_masks(mask: Part, guarded: bool) -> None:
    spelling, inputs = with_mask(mask, guarded)
    assert_fuses(spelling, inputs, ONE, steps=MASKS[mask])


def test_selections_join() -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any, keep: Any, padding: Any) -> Any:
        scores = two_selections(g, product(g, q, k), keep, g.Unsqueeze(padding, [1, 2]))
        return weighted(g, scores, v)

    assert_fuses(spelling, {**QKV, **OPERANDS}, ONE, steps=2)


def attention_node(model: Any) -> Node:
    graph, _ = fused_graph(model.SerializeToString())
    (node,) = [node for node in graph.nodes if node.op == "q7::Attention"]
    return node


# causal masks built in the graph: (g, Sq, Skv as int64 scalars) -> bool (Sq, Skv)
def counted(g: Any, start: Any, n: Any) -> Any:
    return g.Range(g.Squeeze(start), g.Squeeze(g.Add(start, n)), np.array(1, np.int64))


def compared(g: Any, queries: Any, keys: Any) -> Any:
    rows = g.Unsqueeze(counted(g, g.Sub(keys, queries), queries), [1])
    return g.LessOrEqual(g.Unsqueeze(counted(g, [0], keys), [0]), rows)


def compared_the_other_way(g: Any, queries: Any, keys: Any) -> Any:
    rows = g.Unsqueeze(counted(g, g.Sub(keys, queries), queries), [1])
    return g.Not(g.Less(rows, g.Unsqueeze(counted(g, [0], keys), [0])))


def difference(g: Any, queries: Any, keys: Any) -> Any:
    rows = g.Unsqueeze(counted(g, g.Sub(keys, queries), queries), [1])
    return g.GreaterOrEqual(g.Sub(rows, g.Unsqueeze(counted(g, [0], keys), [0])), [0])


def triangle(g: Any, queries: Any, keys: Any) -> Any:
    ones = g.Expand(np.array([[1]], np.int64), g.Concat(queries, keys, axis=0))
    return g.Cast(g.Trilu(ones, g.Squeeze(g.Sub(keys, queries)), upper=0), to=9)


def upper_triangle(g: Any, queries: Any, keys: Any) -> Any:
    ones = g.ConstantOfShape(g.Concat(queries, keys, axis=0), value=one())
    after = g.Trilu(ones, g.Squeeze(g.Add(g.Sub(keys, queries), [1])), upper=1)
    return g.Equal(after, 0.0)


def one() -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ones(1, np.float32))


CAUSAL = (compared, compared_the_other_way, difference, triangle, upper_triangle)


def sizes(g: Any, q: Any, k: Any) -> tuple[Any, Any]:
    return tuple(g.Slice(g.Shape(x), [1], [2]) for x in (q, k))  # type: ignore[return-value]


@pytest.mark.parametrize("made", CAUSAL, ids=lambda made: made.__name__)
@pytest.mark.parametrize("way", ["where", "lowest", "added", "padded", "windowed"])
def test_causal_masks_become_attributes(made: Part, way: str) -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
        queries, keys = sizes(g, q, k)
        seen = made(g, queries, keys)
        scores = product(g, q, k)
        if way == "padded":
            seen = g.And(g.Unsqueeze(seen, [0, 1]), g.Unsqueeze(padding, [1, 2]))
        if way == "windowed":
            rows = g.Unsqueeze(counted(g, g.Sub(keys, queries), queries), [1])
            seen = g.And(seen, g.Less(g.Sub(rows, counted(g, [0], keys)), [3]))
        if way == "added":
            masked = g.Add(scores, g.Where(seen, 0.0, -math.inf))
        else:
            masked = g.Where(seen, scores, MIN if way == "lowest" else -math.inf)
        return weighted(g, masked, v)

    # as many keys as queries, for the lowest fill: no row is without a key then
    inputs = {"q": ROWS, "k": ROWS, "v": ROWS, "padding": ("bool", ("B", "S"))}
    if way != "lowest":
        inputs = {**QKV, "padding": ("bool", ("B", "T"))}
    for model in list(orders(spelling, inputs))[:4]:
        node = attention_node(model)
        assert node.attrs["causal"] == 1
        assert node.attrs["window"] == ((2, -1) if way == "windowed" else (-1, -1))
        mask = node.input(3)
        assert (mask is not None) == (way == "padded")
        assert mask is None or mask.shape[1:3] == (1, 1)
        assert_correct(model)


def test_a_finite_fill_and_padding_stay_a_mask() -> None:
    """A row that sees no key weights all keys alike, those after it too: no causal attention."""

    def spelling(g: Any, q: Any, k: Any, v: Any, padding: Any) -> Any:
        seen = g.And(compared(g, *sizes(g, q, k)), g.Unsqueeze(padding, [1, 2]))
        return weighted(g, g.Where(seen, product(g, q, k), MIN), v)

    inputs = {**QKV, "padding": ("bool", ("B", "T"))}
    assert attention_node(build(spelling, inputs)[0]).attrs["causal"] == 0
    assert_fuses(spelling, inputs, ONE)


def test_more_queries_than_keys_with_a_finite_fill_stay_a_mask() -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        return weighted(g, g.Where(compared(g, *sizes(g, q, k)), product(g, q, k), MIN), v)

    assert attention_node(build(spelling, QKV)[0]).attrs["causal"] == 0
    assert_fuses(spelling, QKV, ONE)


def test_constant_triangles() -> None:
    n = 6
    inputs = dict.fromkeys("qkv", ("B", n, H * D))

    def chosen(g: Any, q: Any, k: Any, v: Any) -> Any:
        return weighted(g, g.Where(np.tri(n, dtype=bool), product(g, q, k), MIN), v)

    def added(g: Any, q: Any, k: Any, v: Any) -> Any:
        mask = np.where(np.tri(n), 0, -np.inf)[None, None]
        return weighted(g, g.Add(product(g, q, k), mask), v)

    def local(g: Any, q: Any, k: Any, v: Any) -> Any:
        near = np.tri(n, dtype=bool) & ~np.tri(n, k=-3, dtype=bool)
        return weighted(g, g.Where(near, product(g, q, k), MIN), v)

    def ragged(g: Any, q: Any, k: Any, v: Any) -> Any:
        near = np.tri(n, dtype=bool)
        near[4, 1] = False
        return weighted(g, g.Where(near, product(g, q, k), MIN), v)

    wanted = {chosen: (1, -1), added: (1, -1), local: (1, 2), ragged: (0, -1)}
    for spelling, (causal, left) in wanted.items():
        attrs = attention_node(build(spelling, inputs)[0]).attrs
        assert (attrs["causal"], attrs["window"][0]) == (causal, left), spelling.__name__
        assert_fuses(spelling, inputs, ONE, steps=1)


# layouts


def rank_3(g: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (stacked(g, x) for x in (q, k, v))
    scores = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 2, 1])), g.free(0.3))
    return unstacked(g, g.MatMul(g.Softmax(scores, axis=-1), v))


def rank_3_masked(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The mask is added at rank 4."""
    q, k, v = (stacked(g, x) for x in (q, k, v))
    flat = g.MatMul(q, g.Transpose(k, perm=[0, 2, 1]))
    whole = g.Concat([-1, H], g.Slice(g.Shape(flat), [1], [3]), axis=0)
    scores = g.Add(g.Reshape(flat, whole), mask)
    return unstacked(g, g.MatMul(g.Softmax(g.Reshape(scores, g.Shape(flat)), axis=-1), v))


def rank_3_softmax_at_4(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    q, k, v = (stacked(g, x) for x in (q, k, v))
    flat = g.MatMul(q, g.Transpose(k, perm=[0, 2, 1]))
    whole = g.Concat([-1, H], g.Slice(g.Shape(flat), [1], [3]), axis=0)
    p = g.Softmax(g.Add(g.Reshape(flat, whole), mask), axis=-1)
    return unstacked(g, g.MatMul(g.Reshape(p, g.Shape(flat)), v))


def stacked(g: Any, x: Any) -> Any:
    """(B, S, H * D) as (B * H, S, D)."""
    shape = g.Concat([-1], g.Slice(g.Shape(x), [1], [2]), [D], axis=0)
    return g.Reshape(split(g, x), shape)


def unstacked(g: Any, o: Any) -> Any:
    shape = g.Concat([-1, H], g.Slice(g.Shape(o), [1], [3]), axis=0)
    return merge(g, g.Reshape(o, shape))


def keys_permuted_at_once(g: Any, q: Any, k: Any, v: Any) -> Any:
    keys = g.Transpose(g.Reshape(k, [0, 0, H, D]), perm=[0, 2, 3, 1])
    return weighted(g, g.MatMul(split(g, q), keys), v)


def keys_through_rank_3(g: Any, q: Any, k: Any, v: Any) -> Any:
    turned = g.Transpose(stacked(g, k), perm=[0, 2, 1])
    shape = g.Concat([-1, H, D], g.Slice(g.Shape(k), [1], [2]), axis=0)
    return weighted(g, g.MatMul(split(g, q), g.Reshape(turned, shape)), v)


def turned_scores(g: Any, q: Any, k: Any, v: Any) -> Any:
    """(K Q^T)^T."""
    scores = g.MatMul(split(g, k), g.Transpose(split(g, q), perm=[0, 1, 3, 2]))
    return weighted(g, g.Transpose(g.Mul(scores, g.free(0.3)), perm=[0, 1, 3, 2]), v)


def turned_weights(g: Any, q: Any, k: Any, v: Any) -> Any:
    """(V^T P^T)^T, as in convolutional attention."""
    p = g.Softmax(product(g, q, k), axis=-1)
    o = g.MatMul(columns(g, v), g.Transpose(p, perm=[0, 1, 3, 2]))  # (B, H, D, S)
    return g.Reshape(g.Transpose(o, perm=[0, 3, 1, 2]), [0, 0, H * D])


def one_head(g: Any, q: Any, k: Any, v: Any) -> Any:
    scores = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 2, 1])), g.free(0.25))
    return g.MatMul(g.Softmax(scores, axis=-1), v)


def fully_broadcast_queries(g: Any, q: Any, k: Any, v: Any) -> Any:
    """Learned queries, the same for each of the batch."""
    learned = np.random.default_rng(0).standard_normal((1, H, 5, D))
    scores = g.MatMul(learned, columns(g, k))
    return merge(g, g.MatMul(g.Softmax(scores, axis=-1), split(g, v)))


LAYOUTS = {
    rank_3: 1,
    rank_3_masked: 1,
    rank_3_softmax_at_4: 1,
    keys_permuted_at_once: 1,
    keys_through_rank_3: 1,
    turned_scores: 1,
    turned_weights: 1,
    one_head: 1,
    fully_broadcast_queries: 1,
}


@pytest.mark.parametrize("spelling", LAYOUTS, ids=lambda spelling: spelling.__name__)
def test_layouts(spelling: Part) -> None:
    assert_fuses(spelling, {**QKV, **MASK}, ONE, steps=LAYOUTS[spelling])


def test_matrices_alone() -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        scores = g.MatMul(q, g.Transpose(k, perm=[1, 0]))
        return g.MatMul(g.Softmax(scores, axis=-1), v)

    assert_fuses(spelling, {"q": ("S", D), "k": ("T", D), "v": ("T", D)}, ONE, steps=1)


# heads that share keys
SHARED = {"q": ("B", "S", 4 * D), "k": KEYS, "v": KEYS}


def repeated(g: Any, x: Any, way: str) -> Any:
    """(B, 2, T, D) as (B, 4, T, D)."""
    apart = g.Unsqueeze(x, [2])
    length = g.Slice(g.Shape(x), [2], [3])
    shape = g.Concat([0, 4], length, [D], axis=0)
    if way == "expand":
        batch = g.Slice(g.Shape(x), [0], [1])
        copies = g.Expand(apart, g.Concat(batch, [2, 2], length, [D], axis=0))
    elif way == "tile":
        copies = g.Tile(apart, [1, 1, 2, 1, 1])
    elif way == "concat":
        copies = g.Concat(apart, apart, axis=2)
    else:
        return g.Gather(x, [0, 0, 1, 1], axis=1)
    return g.Reshape(copies, shape)


@pytest.mark.parametrize("way", ["expand", "tile", "concat", "gather"])
def test_repeated_heads(way: str) -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        keys, values = (repeated(g, split(g, x), way) for x in (k, v))
        scores = g.MatMul(split(g, q, 4), g.Transpose(keys, perm=[0, 1, 3, 2]))
        return merge(g, g.MatMul(g.Softmax(scores, axis=-1), values), 4)

    assert_fuses(spelling, SHARED, ONE, steps=1)


def test_heads_repeated_before_the_split_dims_are_exchanged() -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        def four(x: Any) -> Any:
            apart = g.Unsqueeze(g.Reshape(x, [0, 0, H, D]), [3])
            return g.Transpose(
                g.Reshape(g.Tile(apart, [1, 1, 1, 2, 1]), [0, 0, 4, D]), perm=[0, 2, 1, 3]
            )

        scores = g.MatMul(split(g, q, 4), g.Transpose(four(k), perm=[0, 1, 3, 2]))
        return merge(g, g.MatMul(g.Softmax(scores, axis=-1), four(v)), 4)

    assert_fuses(spelling, SHARED, ONE, steps=1)


def test_groups_as_a_dim() -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        keys, values = (g.Unsqueeze(split(g, x), [2]) for x in (k, v))  # (B, 2, 1, T, D)
        shape = g.Concat([0, 2, 2], g.Slice(g.Shape(q), [1], [2]), [D], axis=0)
        queries = g.Reshape(split(g, q, 4), shape)  # (B, 2, 2, S, D)
        scores = g.MatMul(queries, g.Transpose(keys, perm=[0, 1, 2, 4, 3]))
        o = g.MatMul(g.Softmax(scores, axis=-1), values)
        whole = g.Concat([0, 4], g.Slice(g.Shape(q), [1], [2]), [D], axis=0)
        return merge(g, g.Reshape(o, whole), 4)

    assert_fuses(spelling, SHARED, ONE, steps=1)


def test_one_head_of_keys() -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        keys, values = (g.Unsqueeze(x, [1]) for x in (k, v))  # (B, 1, T, D)
        scores = g.MatMul(split(g, q, 4), g.Transpose(keys, perm=[0, 1, 3, 2]))
        return merge(g, g.MatMul(g.Softmax(scores, axis=-1), values), 4)

    inputs = {"q": ("B", "S", 4 * D), "k": ("B", "T", D), "v": ("B", "T", D)}
    assert_fuses(spelling, inputs, ONE, steps=1)


# packed projections and caches
def test_packed_qkv() -> None:
    packed = {"x": ("B", "S", 3 * H * D)}

    def by_split(g: Any, x: Any) -> Any:
        return self_attention(g, *g.Split(x, [H * D] * 3, axis=-1, outputs=3))

    def by_slice(g: Any, x: Any) -> Any:
        cuts = [g.Slice(x, [i * H * D], [(i + 1) * H * D], [-1]) for i in range(3)]
        return self_attention(g, *cuts)

    def self_attention(g: Any, q: Any, k: Any, v: Any) -> Any:
        return weighted(g, g.Mul(product(g, q, k), g.free(0.3)), v)

    def stacked_first(g: Any, x: Any) -> Any:
        parts = g.Transpose(g.Reshape(x, [0, 0, 3, H, D]), perm=[2, 0, 3, 1, 4])
        return chosen(g, *(g.Gather(parts, np.array(i), axis=0) for i in range(3)))

    def interleaved(g: Any, x: Any) -> Any:
        parts = g.Transpose(g.Reshape(x, [0, 0, H, 3 * D]), perm=[0, 2, 1, 3])
        return chosen(g, *g.Split(parts, [D] * 3, axis=-1, outputs=3))

    def chosen(g: Any, q: Any, k: Any, v: Any) -> Any:
        scores = g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))
        return merge(g, g.MatMul(g.Softmax(scores, axis=-1), v))

    for spelling in (by_split, by_slice, stacked_first, interleaved):
        assert_fuses(spelling, packed, ONE, steps=1)


def test_cache() -> None:
    """k and v are joined to the past and are results too."""

    def spelling(g: Any, q: Any, k: Any, v: Any, past_k: Any, past_v: Any) -> Any:
        keys = g.Concat(past_k, split(g, k), axis=2)
        values = g.Concat(past_v, split(g, v), axis=2)
        scores = g.Mul(g.MatMul(split(g, q), g.Transpose(keys, perm=[0, 1, 3, 2])), g.free(0.3))
        return merge(g, g.MatMul(g.Softmax(scores, axis=-1), values)), keys, values

    past = ("B", H, "T", D)
    inputs = {**dict.fromkeys("qkv", ROWS), "past_k": past, "past_v": past}
    assert_fuses(spelling, inputs, ONE, steps=5)  # two copies into each cache


# what is no attention
def core(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    turned = g.open(g.Transpose(k, perm=[0, 1, 3, 2]))
    scores = g.Add(g.Mul(g.MatMul(q, turned), g.free(0.3)), mask)
    return g.MatMul(g.Softmax(scores, axis=-1), v)


PLAIN = {"q": ("B", H, "S", D), "k": ("B", H, "T", D), "v": ("B", H, "T", D), **MASK}


def test_inner_values_that_others_use() -> None:
    assert_perturbed_stays(core, PLAIN, {"q7::Attention"}, kinds=("output",))


def test_other_dtypes() -> None:
    for spelling, change in ((core, Change("dtype")), (softmax_in_double, None)):
        assert not fused_ops(build(spelling, PLAIN, change=change)[0])[0]["q7::Attention"]


def softmax_over_queries(g: Any, q: Any, k: Any, v: Any) -> Any:
    scores = g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))
    return g.MatMul(g.Softmax(scores, axis=2), v)


def scale_per_key(g: Any, q: Any, k: Any, v: Any) -> Any:
    scores = g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))
    return g.MatMul(g.Softmax(g.Mul(scores, np.arange(1.0, 7.0)), axis=-1), v)


def softmax_in_double(g: Any, q: Any, k: Any, v: Any) -> Any:
    scores = g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))
    return g.MatMul(g.Cast(g.Softmax(g.Cast(scores, to=11), axis=-1), to=1), v)


def mask_inside_of_the_cap(g: Any, q: Any, k: Any, v: Any) -> Any:
    scores = g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))
    return g.MatMul(g.Softmax(g.Tanh(g.Add(scores, np.arange(6.0))), axis=-1), v)


def weak_fill_under_a_bias(g: Any, q: Any, k: Any, v: Any) -> Any:
    scores = g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))
    masked = g.Add(g.Where(np.tri(6, dtype=bool), scores, -2.0), np.arange(6.0))
    return g.MatMul(g.Softmax(masked, axis=-1), v)


def weights_scaled(g: Any, q: Any, k: Any, v: Any) -> Any:
    scores = g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2]))
    return g.MatMul(g.Add(g.Softmax(scores, axis=-1), 1e-3), v)


NOT_ATTENTION = (
    softmax_over_queries,
    scale_per_key,
    mask_inside_of_the_cap,
    weak_fill_under_a_bias,
    weights_scaled,
)


@pytest.mark.parametrize("spelling", NOT_ATTENTION, ids=lambda spelling: spelling.__name__)
def test_what_is_no_attention(spelling: Part) -> None:
    assert_fuses(spelling, dict.fromkeys("qkv", ("B", H, 6, D)), {"q7::Attention": 0})


def test_heads_repeated_in_a_row_are_not_shared() -> None:
    """Head 2 is head 0 again: q7::Attention would read head 1."""

    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        keys, values = (g.Concat(split(g, x), split(g, x), axis=1) for x in (k, v))
        scores = g.MatMul(split(g, q, 4), g.Transpose(keys, perm=[0, 1, 3, 2]))
        return merge(g, g.MatMul(g.Softmax(scores, axis=-1), values), 4)

    model = build(spelling, SHARED)[0]
    assert attention_node(model).inputs[1].shape[1] == 4
    assert_correct(model)


def heads_repeated_into_other_columns(g: Any, q: Any, k: Any, v: Any) -> Any:
    """Each head is to have T columns, where it has D."""

    def four(x: Any) -> Any:
        shape = g.Shape(x)
        batch, length = (g.Slice(shape, [i], [i + 1]) for i in range(2))
        copies = g.Concat(batch, [H, 2], length, length, axis=0)
        return g.Reshape(g.Expand(g.Unsqueeze(split(g, x), [2]), copies), [0, 4, -1, D])

    scores = g.MatMul(split(g, q, 4), g.Transpose(four(k), perm=[0, 1, 3, 2]))
    return merge(g, g.MatMul(g.Softmax(scores, axis=-1), four(v)), 4)


def zeros_for_twice_the_batch(g: Any, q: Any, k: Any, v: Any) -> Any:
    rows = g.Concat(g.Mul(g.Slice(g.Shape(q), [0], [1]), [2]), [1, 1, 1], axis=0)
    return merge(g, g.Attention(*(split(g, x) for x in (q, k, v)), g.Expand(0.0, rows)))


def zeros_in_another_shape(g: Any, q: Any, k: Any, v: Any) -> Any:
    """As many as there are batches, seen as one for each query."""
    zeros = g.Expand(0.0, g.Slice(g.Shape(q), [0], [1]))
    rows = g.Concat([1, 1], g.Slice(g.Shape(q), [1], [2]), [1], axis=0)
    return merge(g, g.Attention(*(split(g, x) for x in (q, k, v)), g.Reshape(zeros, rows)))


def scores_as_one_column(g: Any, q: Any, k: Any, v: Any) -> Any:
    """Which they have for one key; a mask makes several of it."""
    scores = g.MatMul(split(g, q), g.Transpose(split(g, k), perm=[0, 1, 3, 2]))
    mask = g.Unsqueeze(g.ReduceSum(k, [2], keepdims=0), [1, 2])
    p = g.Softmax(g.Add(g.Reshape(scores, [0, 0, 0, 1]), mask), axis=-1)
    return merge(g, g.MatMul(p, split(g, v)))


@pytest.mark.parametrize(
    ("spelling", "columns_of_q"),
    [
        (heads_repeated_into_other_columns, 4 * D),
        (zeros_for_twice_the_batch, H * D),
        (zeros_in_another_shape, H * D),
        (scores_as_one_column, H * D),
    ],
    ids=["heads", "zeros", "zeros in a view", "scores"],
)
def test_what_is_not_read_must_fit_too(spelling: Part, columns_of_q: int) -> None:
    """What attention repeats itself, a mask of zeros, and views of scores: the run is refused as it
    is unfused.
    """
    model = build(spelling, {**SHARED, "q": ("B", "S", columns_of_q)}, opset=23)[0]
    with q7x2_ep.InferenceSession(model.SerializeToString()) as session:
        for sizes in ({"B": 2, "S": 3, "T": 5}, {"B": 3, "S": 5, "T": 2}):
            with pytest.raises(q7x2_ep.errors.FeedError):
                session.run(None, feeds_for(model, sizes))


# whole idioms
def test_bloom() -> None:
    """baddbmm adds ALiBi at rank 3; mask and softmax are at rank 4; the product at rank 3 again."""

    def spelling(g: Any, q: Any, k: Any, v: Any, alibi: Any, keep: Any) -> Any:
        q, k, v = (stacked(g, x) for x in (q, k, v))
        product = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 2, 1])), g.free(0.25))
        flat = g.Add(g.Mul(alibi, g.free(1.0)), product)  # (B * H, S, T)
        whole = g.Concat([-1, H], g.Slice(g.Shape(flat), [1], [3]), axis=0)
        p = g.Softmax(g.Where(keep, g.Reshape(flat, whole), MIN), axis=-1)
        return unstacked(g, g.MatMul(g.Reshape(p, g.Shape(flat)), v))

    assert_fuses(spelling, {**QKV, "alibi": (1, 1, "T"), **KEEP}, ONE, steps=1)


def test_windows_of_an_image() -> None:
    """Swin: a bias per head, then a mask per window, for which the batch is split."""
    windows, n = 2, 6

    def spelling(g: Any, q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
        scores = g.Add(g.Mul(product(g, q, k), g.free(0.25)), g.Unsqueeze(bias, [0]))
        apart = g.Reshape(scores, [-1, windows, H, n, n])
        masked = g.Add(apart, g.Unsqueeze(mask, [0, 2]))
        return weighted(g, g.Reshape(masked, [-1, H, n, n]), v)

    batch = dict.fromkeys("qkv", (4, n, H * D))
    assert_fuses(spelling, {**batch, "bias": (H, n, n), "mask": (windows, n, n)}, ONE)


def test_sequence_first() -> None:
    """nn.MultiheadAttention of old: (S, B, E) as (S, B * H, D), exchanged; a mask per head."""

    def spelling(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        def heads(x: Any) -> Any:
            return g.Transpose(g.Reshape(x, [0, 2 * H, D]), perm=[1, 0, 2])

        scores = g.MatMul(g.Mul(heads(q), g.free(0.25)), g.Transpose(heads(k), perm=[0, 2, 1]))
        p = g.Softmax(g.Add(scores, mask), axis=-1)
        o = g.Transpose(g.MatMul(p, heads(v)), perm=[1, 0, 2])
        return g.Reshape(o, [0, 2, H * D])

    rows, keys = ("S", 2, H * D), ("T", 2, H * D)
    inputs = {"q": rows, "k": keys, "v": keys, "mask": (2 * H, "S", "T")}
    assert_fuses(spelling, inputs, ONE, steps=1)


def test_convolutional_attention() -> None:
    """q, k and v (B, C, HW), as in diffusion models."""

    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        scores = g.Mul(g.MatMul(g.Transpose(q, perm=[0, 2, 1]), k), g.free(0.25))
        return g.MatMul(v, g.Transpose(g.Softmax(scores, axis=2), perm=[0, 2, 1]))

    assert_fuses(spelling, dict.fromkeys("qkv", ("B", D, "S")), ONE)


def test_scores_that_mask_themselves_or_are_values_stay() -> None:
    def scores(g: Any, q: Any, k: Any) -> Any:
        return g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 2, 1])), 0.5)

    def mask(g: Any, q: Any, k: Any, v: Any) -> Any:
        s = scores(g, q, k)
        return g.MatMul(g.Softmax(g.Add(s, s), axis=-1), v)

    def values(g: Any, q: Any, k: Any) -> Any:
        s = scores(g, q, k)
        return g.MatMul(g.Softmax(s, axis=-1), s)

    given = dict.fromkeys("qkv", (2, 6, 8))
    for spelling in (mask, values):
        model = build(spelling, given)[0]
        assert "q7::Attention" not in fused_ops(model)[0], spelling
        assert_correct(model)
