"""Rotary position embedding, of primitives or as ONNX RotaryEmbedding -> q7::Rope, for q and k in
one.

Two formulas: x * cos + turned(x) * sin, and the rotated pairs joined. How the pairs were cut out of
x (Slice, Split, Reshape, Gather, ..) is not part of a pattern: the catalogue knows each cut as a
strided view, and the views of both cuts are compared with what they must be.
Source: Su et al. 2021; ONNX RotaryEmbedding (opset 23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Optional, Union

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.replace import rewrite
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import Dim, broadcast, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import always_fits, find
from q7x2_ep.ops.common import NotInferable
from q7x2_ep.ops.rope import HEADS_INNER, pair_bounds, rotated, rotated_pairs, split_heads
from q7x2_ep.passes import cse

ROPE = "q7::Rope"
Checked = Union[dict[str, Any], str]


# Formulas. a and b: the first and the second channels of all pairs


def negated(g: Any, x: Any) -> Any:
    return g.either(lambda: g.Neg(x), lambda: g.Mul(x, -1.0))


def column(g: Any, x: Any, axes: Any, shape: Any) -> Any:
    """(.., R / 2) as (.., R / 2, 1)."""
    return g.either(lambda: g.Unsqueeze(x, axes), lambda: g.Reshape(x, shape))


def concat(g: Any, *parts: Any) -> Any:
    return g.named("joined", g.Concat(*parts, axis=-1))


def halves(g: Any, x: Any, a: Any, b: Any, cos: Any, sin: Any) -> Any:
    return rotated(g, x, concat(g, negated(g, b), a), cos, sin)


def halves_back(g: Any, x: Any, a: Any, b: Any, cos: Any, sin: Any) -> Any:
    """x * cos - (b, -a) * sin."""
    return g.Sub(g.Mul(x, cos), g.Mul(concat(g, b, negated(g, a)), sin))


def interleaved(
    g: Any,
    x: Any,
    a_column: Any,
    b: Any,
    b_column: Any,
    cos: Any,
    sin: Any,
    axes: Any,
    column_shape: Any,
    shape: Any,
) -> Any:
    back = g.either(
        lambda: column(g, negated(g, b), axes, column_shape), lambda: negated(g, b_column)
    )
    return rotated(g, x, g.named("turned", g.Reshape(concat(g, back, a_column), shape)), cos, sin)


def pair_halves(g: Any, a: Any, b: Any, cos: Any, sin: Any, cos2: Any, sin2: Any, rest: Any) -> Any:
    first, second = rotated_pairs(g, a, b, cos, sin, cos2, sin2)
    return g.either(lambda: concat(g, first, second), lambda: concat(g, first, second, rest))


def pair_interleaved(
    g: Any,
    a: Any,
    b: Any,
    cos: Any,
    sin: Any,
    cos2: Any,
    sin2: Any,
    axes: Any,
    axes2: Any,
    column_shape: Any,
    column_shape2: Any,
    shape: Any,
) -> Any:
    first, second = rotated_pairs(g, a, b, cos, sin, cos2, sin2)
    columns = column(g, first, axes, column_shape), column(g, second, axes2, column_shape2)
    return g.Reshape(concat(g, *columns), shape)


def pair_columns(
    g: Any, a: Any, b: Any, cos: Any, sin: Any, cos2: Any, sin2: Any, shape: Any
) -> Any:
    """Products of complex numbers, whose real and imaginary parts are the last dim."""
    return g.Reshape(concat(g, *rotated_pairs(g, a, b, cos, sin, cos2, sin2)), shape)


def onnx_rope(g: Any, x: Any, cos: Any, sin: Any) -> Any:
    return g.RotaryEmbedding(x, cos, sin)


def onnx_rope_at(g: Any, x: Any, cos: Any, sin: Any, positions: Any) -> Any:
    return g.RotaryEmbedding(x, cos, sin, positions)


def partial(g: Any, q: Any, cos: Any, sin: Any, rest: Any) -> Any:
    return g.Concat(g.named("rope", g.call(ROPE, q, None, cos, sin)), rest, axis=-1)


def partial_turned(g: Any, q: Any, cos: Any, sin: Any, rest: Any) -> Any:
    """Heads inside: (B, S, H, D)."""
    rope = g.named("rope", g.call(ROPE, q, None, cos, sin))
    return g.Concat(g.named("turned", g.Transpose(rope, perm=HEADS_INNER)), rest, axis=-1)


# Where channels come from


def source(value: Value) -> View:
    """The value as a view of what movement ops have cut it from, as far as that is certain."""
    node = value.producer
    if node is None or not node.inputs or node.inputs[0].shape is None:
        return View.whole(value)
    try:
        found = _picked(node) if node.op == "Gather" else _viewed(node, value)
    except NotInferable:  # bounds that only a run knows
        found = None
    return View.whole(value) if found is None else found


def _viewed(node: Node, value: Value) -> Optional[View]:
    """An output of a movement op whose view needs no guard."""
    entry = find(node.op)
    if not always_fits(node):
        return None
    if hasattr(entry, "views"):
        return entry.views(node, source(node.inputs[0]))[node.outputs.index(value)]
    return entry.view(node, source(node.inputs[0])) if hasattr(entry, "view") else None


def _picked(node: Node) -> Optional[View]:
    """A Gather of one constant index."""
    data, index = node.inputs
    axis = node.attrs["axis"] % len(data.shape)
    n = data.shape[axis]
    if index.const is None or index.const.size != 1 or not isinstance(n, int):
        return None
    at = int(index.const.item())
    if not -n <= at < n:
        return None
    return source(data).slice(axis, at % n, 1).reshape(node.output.shape)


def _is_same(a: Optional[View], b: View) -> bool:
    """Whether two views show the same elements; strides of single elements say nothing."""
    return (
        a is not None
        and (a.storage, a.shape, a.offset) == (b.storage, b.shape, b.offset)
        and all(d == 1 or s == t for d, s, t in zip(a.shape, a.strides, b.strides))
    )


def _is_cut(part: Value, whole: View, start: Dim, end: Dim, step: int = 1) -> bool:
    """Whether part holds the channels start, start + step, .. of whole, before end."""
    wanted = whole.slice(len(whole.shape) - 1, start, (end - start + step - 1) // step, step)
    return _is_same(source(part).reshape(wanted.shape), wanted)


def _are_pairs(a: Value, b: Value, whole: View, R: int, interleaved: int) -> bool:
    return all(
        _is_cut(part, whole, *bounds) for part, bounds in zip((a, b), pair_bounds(R, interleaved))
    )


def _upstream(value: Value) -> Iterator[Value]:
    """What the value was cut from, step by step."""
    while value.producer is not None and source(value).storage is not value:
        value = value.producer.inputs[0]  # type: ignore[assignment]
        yield value


# Checks: each gives x, R, half, interleaved and tables with the rank of x


def _interleaving(joined: Value, lead: tuple, pairs: Dim) -> Union[int, str]:
    """How a Concat along the last axis arranges the first and the second channels of all pairs."""
    shapes = [value.shape for value in joined.producer.inputs[:2]]
    for arrangement, wanted in enumerate(((*lead, pairs), (*lead, pairs, 1))):
        if shapes == [wanted, wanted]:
            return arrangement
    return f"{shapes} are no halves of {(*lead, 2 * pairs)}, joined to {joined!r}"


def _check_turned(match: Match) -> Checked:
    x, joined, turned = match["x"], match["joined"], match.get("turned")
    if not x.shape or not isinstance(x.shape[-1], int) or x.shape[-1] % 2:
        return f"x is {x!r} of shape {x.shape}, wanted an even number of channels"
    R = x.shape[-1]
    arrangement = _interleaving(joined, x.shape[:-1], R // 2)
    if isinstance(arrangement, str):
        return arrangement
    if turned is not None and turned.shape != x.shape:
        return f"{turned!r} has shape {turned.shape}, wanted {x.shape}"
    a, b = (match.get(name) or match[f"{name}_column"] for name in "ab")
    if not _are_pairs(a, b, source(x), R, arrangement):
        return f"{joined!r} does not hold the pairs (a, b) of {x!r} as (-b, a)"
    tables = {name: match[name] for name in ("cos", "sin")}
    return _with_tables(match, x, x.shape, R, tables, half=0, interleaved=arrangement)


def _check_pairs(match: Match) -> Checked:
    shape, joined, a, rest = match.root.output.shape, match["joined"], match["a"], match.get("rest")
    if not shape or a.shape is None:
        return f"the shape of {match.root.output!r} is not known"
    if match.root.op == "Reshape" and len(joined.shape) > 2:  # whatever else it does is done behind
        shape = (*joined.shape[:-2], joined.shape[-2] * joined.shape[-1])
    lead, R = shape[:-1], shape[-1] - (0 if rest is None else rest.shape[-1])
    if not isinstance(R, int):
        return f"the number of channels of {match.root.output!r} is not known"
    arrangement = _interleaving(joined, lead, R // 2)
    if isinstance(arrangement, str):
        return arrangement
    candidates = ((x, _channels(x, match, lead, R, arrangement)) for x in _upstream(a))
    x, whole = next((found for found in candidates if found[1]), (None, ()))
    if x is None:
        return f"{a!r} and {match['b']!r} are not the pairs of a value with channels {shape}"
    tables = {name: match[name] for name in ("cos", "sin")}
    for name, table in tables.items():
        other = match[f"{name}2"]
        if other is not table and not _is_same(source(other), source(table)):
            return f"{name} is {table!r} for the first of a pair, {other!r} for the second"
    columns = len(a.shape) > len(lead) + 1
    kept = R if rest is None else whole[-1]
    return _with_tables(
        match, x, whole, R, tables, half=1, interleaved=arrangement, columns=columns, kept=kept
    )


def _channels(x: Value, match: Match, lead: tuple, R: int, interleaved: int) -> tuple:
    """The shape (*lead, D) under which the pairs, and the rest, are the channels of x, or ()."""
    if x.shape is None:
        return ()
    D = x.shape[-1] if x.shape[:-1] == lead else R
    shape, rest = (*lead, D), match.get("rest")
    if not isinstance(D, int) or D < R or product(x.shape) != product(shape):
        return ()
    view = source(x).reshape(shape)
    if view is None or not _are_pairs(match["a"], match["b"], view, R, interleaved):
        return ()
    return shape if rest is None or _is_cut(rest, view, R, D) else ()


def _with_tables(
    match: Match,
    x: Value,
    shape: tuple,
    R: int,
    tables: dict[str, Value],
    half: int,
    interleaved: int,
    columns: bool = False,
    kept: int = 0,
) -> Checked:
    """The arguments of _build for x under a shape. columns: the last dim of the tables is 1. kept:
    the channels that the result has, if not R."""
    lead, width = shape[:-1], R >> half
    if not 2 <= len(shape) <= 4:
        return f"{x!r} has shape {shape}, wanted rank 2 to 4"
    dims: dict[str, tuple] = {}
    for name, table in tables.items():
        rows = table.shape or ()
        if columns and rows[-1:] == (1,):
            rows = rows[:-1]
        if rows[-1:] != (width,) or len(rows) > len(shape):
            return f"{name} has shape {table.shape}, wanted {width} columns that fit {shape}"
        dims[name] = (1,) * (len(shape) - len(rows)) + rows[:-1]
        if any(broadcast(dim, want) != want for dim, want in zip(dims[name], lead)):
            return f"{name} has shape {table.shape}, wanted one that broadcasts to {shape}"
    heads = 1
    if len(shape) == 4:
        free = [i for i in (1, 2) if all(found[i] == 1 for found in dims.values())]
        if not free:
            return f"cos and sin, {dims['cos']} and {dims['sin']}, differ from head to head"
        heads = free[0]
    return {
        "x": x,
        "shape": shape,
        "kept": kept or R,
        "result": match.root.output.shape,
        "tables": [(tables[name], (*dims[name], width)) for name in ("cos", "sin")],
        "heads": heads,
        "half": half,
        "interleaved": interleaved,
    }


def _build(
    g: Any,
    x: Value,
    shape: tuple,
    kept: int,
    result: tuple,
    tables: list[tuple[Value, tuple]],
    heads: int,
    **attrs: int,
) -> Value:
    """Any layout as (B, H, S, D): x of lower rank has one head, x (B, S, H, D) is turned."""
    x = g.reshape(x, shape)
    if x.shape[-1] != kept:
        x = g.Slice(x, [0], [kept], [len(x.shape) - 1])
    q = g.reshape(x, _in_four(x.shape))
    shapes = [_in_four(shape) for _, shape in tables]
    if heads == 2:
        q = g.Transpose(q, perm=HEADS_INNER)
        shapes = [tuple(shape[p] for p in HEADS_INNER) for shape in shapes]
    cos, sin = (g.reshape(table, shape) for (table, _), shape in zip(tables, shapes))
    y = g.call(ROPE, q, None, cos, sin, **attrs)
    if heads == 2:
        y = g.Transpose(y, perm=HEADS_INNER)
    return g.reshape(y, result)


def _in_four(shape: tuple) -> tuple:
    """(S, D), (B, S, D) or four dims as (B, H, S, D)."""
    *batch, S, D = shape
    return shape if len(batch) == 2 else (*(batch or (1,)), 1, S, D)


def _check_onnx(match: Match) -> Checked:
    x, tables, positions = match["x"], [match["cos"], match["sin"]], match.get("positions")
    ndim = 3 if positions is None else 2
    if not x.shape or any(t.shape is None or len(t.shape) != ndim for t in tables):
        return f"cos and sin have shapes {[t.shape for t in tables]}, wanted rank {ndim}"
    if positions is not None and (positions.shape is None or len(positions.shape) not in (1, 2)):
        return f"the positions {positions!r} have shape {positions.shape}, wanted rank 1 or 2"
    shape = split_heads(match.root)
    pairs = (match.root.attrs["rotary_embedding_dim"] or shape[3]) // 2
    if any(t.shape[-1] != pairs for t in tables) or not isinstance(pairs, int):
        return f"cos and sin have shapes {[t.shape for t in tables]}, wanted {pairs} columns"
    interleaved = match.root.attrs["interleaved"]
    return {
        "x": x,
        "shape": shape,
        "tables": tables,
        "positions": positions,
        "interleaved": interleaved,
    }


def _build_onnx(
    g: Any,
    x: Value,
    shape: tuple,
    tables: list[Value],
    positions: Optional[Value],
    interleaved: int,
) -> Value:
    B, H, S, D = shape
    q, flat = x, len(x.shape) == 3
    if flat:
        q = g.Transpose(g.reshape(x, (B, S, H, D)), perm=HEADS_INNER)
    if positions is not None:
        if len(positions.shape) == 1:  # the first; the others follow
            zero, one = (g.literal(n, positions.dtype) for n in (0, 1))
            steps = g.Range(zero, g.Cast(g.Squeeze(g.literal([S])), to=positions.dtype), one)
            positions = g.Add(g.reshape(steps, (1, S)), positions)
        tables = [g.Gather(table, positions, axis=0) for table in tables]
    cos, sin = (g.reshape(table, _in_four(table.shape)) for table in tables)
    y = g.call(ROPE, q, None, cos, sin, half=1, interleaved=interleaved)
    return g.reshape(g.Transpose(y, perm=HEADS_INNER), x.shape) if flat else y


def _check_partial(match: Match) -> Checked:
    rope, rest, q = match["rope"].producer, match["rest"], match["q"]
    turned = match.get("turned") is not None
    if rest.shape is None or len(rest.shape) != 4:
        return f"{rest!r} has shape {rest.shape}, wanted rank 4"
    rotated_part = source(q).transpose(HEADS_INNER) if turned else source(q)
    R = q.shape[-1]
    for x in _upstream(rest):
        whole = source(x)
        if x.shape is None or x.shape[:-1] != rest.shape[:-1]:
            continue
        size, last = x.shape[-1], len(x.shape) - 1
        if _is_same(rotated_part, whole.slice(last, 0, R)) and _is_cut(rest, whole, R, size):
            return {"x": x, "tables": rope.inputs[2:4], "turned": turned, "attrs": rope.attrs}
    return f"{q!r} and {rest!r} are not the first and the last channels of one value"


def _build_partial(
    g: Any, x: Value, tables: list[Value], turned: bool, attrs: dict[str, int]
) -> Value:
    y = g.call(ROPE, g.Transpose(x, perm=HEADS_INNER) if turned else x, None, *tables, **attrs)
    return g.Transpose(y, perm=HEADS_INNER) if turned else y


ROPE_TURNED = Fusion("Rope", (halves, halves_back, interleaved), _check_turned, _build)
ROPE_PAIRS = Fusion(
    "RopePairs", (pair_halves, pair_interleaved, pair_columns), _check_pairs, _build
)
ONNX_ROPE = Fusion("OnnxRope", (onnx_rope, onnx_rope_at), _check_onnx, _build_onnx)
PARTIAL_ROPE = Fusion("PartialRope", (partial, partial_turned), _check_partial, _build_partial)


class MergeRopes:
    """Two values with the same cos and sin -> one q7::Rope: the tables are read once.

    Not a pattern with a root: siblings are found by the tables that they share.
    """

    name = "MergedRope"

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        if sum(node.op == ROPE for node in graph.nodes) > 1:
            cse.run(graph)  # equal tables become one value
        order: list[Node] = []
        waiting: dict[tuple, Node] = {}
        merged: Counter = Counter()
        for node in graph.nodes:
            order.append(node)
            if node.op != ROPE or node.input(1) is not None:
                continue
            q, _, cos, sin = node.inputs
            B, _, S, D = q.shape
            key = (id(cos), id(sin), node.attrs["half"], node.attrs["interleaved"], B, S, D)
            first = waiting.pop(key, None)
            if first is not None and _merge(g, order, first, node):
                merged[self.name] += 1
            else:
                waiting[key] = node
        graph.nodes = order
        return merged, []


def _merge(g: Any, order: list[Node], first: Node, second: Node) -> bool:
    """Replace two nodes by one, unless second, the end of order, depends on first, or g refuses."""
    at = next(i for i in reversed(range(len(order))) if order[i] is first)
    between = order[at + 1 : -1]
    late = {id(first): first}  # what depends on first has to move behind the merged node
    for node in [*between, second]:
        if any(value is not None and id(value.producer) in late for value in node.inputs):
            late[id(node)] = node
    if id(second) in late:
        return False
    q, _, cos, sin = first.inputs
    results = g.call(ROPE, q, second.inputs[0], cos, sin, outputs=2, **first.attrs)
    outputs = (first.output, second.output)
    made = rewrite(g, MergeRopes.name, outputs, results, [first, second])
    if not made:
        return False
    early = [node for node in between if id(node) not in late]
    order[at:] = [*early, *made, *(node for node in between if id(node) in late)]
    return True
