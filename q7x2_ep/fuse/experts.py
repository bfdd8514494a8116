"""Products by weights that a Gather chose -> q7::ExpertLinear, which copies no weights.

Exporters write a mixture of experts as a matrix for each row: w[expert] (.., N, K) times x
(.., K, 1), or x (.., 1, K) times w[expert] (.., K, N). What repeats x for its experts becomes an
attribute. Then the bias, chosen by the same indices; gate and up; the weighted sum over the experts
of a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

from q7x2_ep.fuse.gate import columns
from q7x2_ep.ir.core import ANY, Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops.activation import activation_of
from q7x2_ep.ops.common import NO_ACTIVATION, RESHAPES, Activation
from q7x2_ep.ops.reduce import reduced_axes

EXPERT = "q7::ExpertLinear"
GATED_EXPERT = "q7::GatedExpertLinear"


def _chosen(g: Any, w: Any, expert: Any, tuples: Any) -> Any:
    return g.either(
        lambda: g.Gather(g.constant(w), expert, axis=0),
        lambda: g.GatherND(g.constant(w), tuples, batch_dims=0),
    )


def _turned(g: Any, w: Any, expert: Any, tuples: Any, perm: tuple[int, ...]) -> Any:
    return g.named("turned", g.Transpose(_chosen(g, w, expert, tuples), perm=perm))


def _flat(g: Any, left: Any, right: Any, axes: Any, shape: Any) -> Any:
    y = g.named("y", g.MatMul(left, right))
    return g.either(lambda: g.Squeeze(y, axes), lambda: g.Reshape(y, shape))


def column(g: Any, w: Any, expert: Any, tuples: Any, x: Any, axes: Any, shape: Any) -> Any:
    return _flat(g, _chosen(g, w, expert, tuples), x, axes, shape)


def column_turned(g: Any, w: Any, expert: Any, tuples: Any, x: Any, axes: Any, shape: Any) -> Any:
    return _flat(g, _turned(g, w, expert, tuples, (0, 2, 1)), x, axes, shape)


def column_rank_4(g: Any, w: Any, expert: Any, tuples: Any, x: Any, axes: Any, shape: Any) -> Any:
    return _flat(g, _turned(g, w, expert, tuples, (0, 1, 3, 2)), x, axes, shape)


def row(g: Any, x: Any, w: Any, expert: Any, tuples: Any, axes: Any, shape: Any) -> Any:
    return _flat(g, x, _chosen(g, w, expert, tuples), axes, shape)


def row_turned(g: Any, x: Any, w: Any, expert: Any, tuples: Any, axes: Any, shape: Any) -> Any:
    return _flat(g, x, _turned(g, w, expert, tuples, (0, 2, 1)), axes, shape)


def row_rank_4(g: Any, x: Any, w: Any, expert: Any, tuples: Any, axes: Any, shape: Any) -> Any:
    return _flat(g, x, _turned(g, w, expert, tuples, (0, 1, 3, 2)), axes, shape)


def _check_product(match: Match) -> Union[dict[str, Any], str]:
    x, y, w = match["x"], match["y"], match["w"]
    is_column = y.producer.inputs[1] is x
    expert, lead = _indices(match)
    if len(w.shape) != 3 or lead is None or x.shape is None or len(x.shape) < 2:
        return ""  # no matrix for each index
    if x.shape[-1 if is_column else -2] != 1:
        return f"{x!r} has shape {x.shape}, wanted a single row"
    trans_b = int(is_column is (match.get("turned") is None))
    k = w.shape[2 if trans_b else 1]
    if x.shape[-2 if is_column else -1] != k:
        return f"{x!r} has shape {x.shape}, the weights want {k}"
    repeat = _repeats(x.shape[:-2], lead)
    if repeat is None or y.shape[:-2] != lead:
        return f"{x!r} has shape {x.shape}, wanted a row for each of {lead}"
    rows, more = _rows(x, k)
    return {
        "x": rows,
        "expert": expert,
        "w": w,
        "shape": match.root.output.shape,
        "attrs": {"trans_b": trans_b, "repeat": repeat * more},
    }


def _indices(match: Match) -> tuple[Value, Optional[tuple[Dim, ...]]]:
    """The experts, and in what shape; None where one index does not choose one matrix."""
    tuples = match.get("tuples")
    if tuples is None:
        return match["expert"], match["expert"].shape
    shape = tuples.shape or ()
    return tuples, shape[:-1] if shape[-1:] == (1,) else None


def _repeats(own: tuple[Dim, ...], lead: tuple[Dim, ...]) -> Optional[int]:
    """How many products next to each other share a row: `own` is `lead` but for ones at the end."""
    own = (1,) * (len(lead) - len(own)) + own
    for at in range(len(lead), -1, -1):
        repeat = product(lead[at:])
        if own == lead[:at] + (1,) * (len(lead) - at):
            return repeat if isinstance(repeat, int) else None
    return None


def _rows(x: Value, k: Dim) -> tuple[Value, int]:
    """(rows, n): x is these rows of k, as they are behind Reshapes, each repeated n times."""
    found = x
    while True:
        node = x.producer
        if x.shape[-1:] == (k,):
            found = x
        if node is None or node.inputs[0].shape is None:
            return found, 1
        inner, outer = node.inputs[0].shape, x.shape
        if node.op in ("Expand", "Tile") and len(inner) == len(outer) > 1:
            n = outer[-2]
            once = (*outer[:-2], 1, outer[-1])
            if isinstance(n, int) and inner == once and outer[-1] == k:
                rows, more = _rows(node.inputs[0], k)
                return rows, n * more
        if node.op not in RESHAPES:
            return found, 1
        x = node.inputs[0]


def _build_product(
    g: Any, x: Value, expert: Value, w: Value, shape: tuple[Dim, ...], attrs: dict[str, int]
) -> Value:
    k, n = w.shape[1:][:: -1 if attrs["trans_b"] else 1]
    if x.shape[-1] != k:  # a column
        x = g.reshape(x, (product(x.shape[:-2]), k))
    rows = shape[:-1] if shape[-1] == n else None
    total = product(expert.shape)
    fits = rows is not None and product(rows) == total
    y = g.call(EXPERT, x, g.reshape(expert, rows if fits else (total,)), w, **attrs)
    return g.reshape(y, shape)


def biased(g: Any, y: Any, bias: Any, expert: Any, tuples: Any) -> Any:
    return g.Add(g.result(EXPERT, y), _chosen(g, bias, expert, tuples))


def _check_bias(match: Match) -> Union[dict[str, Any], str]:
    node, bias = match["y"].producer, match["bias"]
    expert, lead = _indices(match)
    if node.input(3) is not None or len(bias.shape) != 2 or lead is None:
        return ""
    if _source(expert) is not _source(node.inputs[1]):
        return f"{expert!r} chooses the bias, {node.inputs[1]!r} the weights"
    if match["y"].shape != (*lead, bias.shape[1]):
        return f"the bias has shape {(*lead, bias.shape[1])}, the product {match['y'].shape}"
    if bias.shape[0] != node.inputs[2].shape[0]:
        return f"{bias!r} is of {bias.shape[0]} experts, not of {node.inputs[2].shape[0]}"
    return {"node": node, "bias": bias}


def _source(value: Value) -> Value:
    """The value behind Reshapes."""
    while value.producer is not None and value.producer.op in RESHAPES:
        value = value.producer.inputs[0]
    return value


def _build_bias(g: Any, node: Node, bias: Value) -> Value:
    return g.call(EXPERT, *node.inputs[:3], bias, **node.attrs)


class Factor(NamedTuple):
    """One factor of a gated product: columns of an ExpertLinear, all of them where None."""

    node: Node
    columns: Optional[slice]


def gated(g: Any, opened: Any, up: Any) -> Any:
    return g.Mul(opened, up)


def _factor(value: Value) -> Optional[Factor]:
    part = columns(value)
    whole, taken = (value, None) if part is None else part
    node = whole.producer
    return None if node is None or node.op != EXPERT else Factor(node, taken)


def _check_gated(match: Match) -> Union[dict[str, Any], str]:
    opened, up = match["opened"], match["up"]
    maker = opened.producer
    activation = None if maker is None else activation_of(maker)
    gate = opened if activation is None else maker.inputs[0]
    factors = _factor(gate), _factor(up)
    if factors[0] is None or factors[1] is None:
        return ""
    nodes = [factor.node for factor in factors]
    if factors[0] == factors[1]:
        return "both factors are one"
    if nodes[0].inputs[:2] != nodes[1].inputs[:2] or nodes[0].attrs != nodes[1].attrs:
        return f"{gate!r} and {up!r} are products of other rows, experts or layouts"
    experts = [node.inputs[2].shape[0] for node in nodes]
    if gate.shape != up.shape:
        return f"{gate!r} has shape {gate.shape}, {up!r} has {up.shape}"
    if experts[0] != experts[1]:
        return f"{gate!r} is of {experts[0]} experts, {up!r} of {experts[1]}"
    if any(node.inputs[2].const is None for node in nodes):
        return "weights are not constant"
    biases = [node.input(3) for node in nodes]
    if any(bias is not None and bias.const is None for bias in biases):
        return "a bias is not constant"
    for part in (maker, gate.producer, up.producer, *nodes):  # users before what they use
        if not match.absorb(part):
            return f"what {part.op} makes is used elsewhere too"
    return {"factors": factors, "activation": activation or NO_ACTIVATION}


def _build_gated(g: Any, factors: tuple[Factor, Factor], activation: Activation) -> Value:
    node = factors[0].node
    axis = 1 if node.attrs["trans_b"] else 2
    weights = [_part(g, factor.node.inputs[2], axis, factor.columns) for factor in factors]
    biases = [_part(g, factor.node.input(3), 1, factor.columns) for factor in factors]
    attrs = {**node.attrs, **activation.attributes()}
    return g.call(GATED_EXPERT, *node.inputs[:2], *weights, *biases, **attrs)


def _part(g: Any, constant: Optional[Value], axis: int, part: Optional[slice]) -> Optional[Value]:
    return constant if constant is None or part is None else g.part(constant, axis, part)


def weighted_sum(g: Any, y: Any, weight: Any, shape: Any, axes: Any) -> Any:
    weighted = g.named("weighted", g.Mul(y, weight))
    terms = g.either(lambda: weighted, lambda: g.Reshape(weighted, shape))
    return g.ReduceSum(terms, axes, keepdims=ANY)


def _check_sum(match: Match) -> Union[dict[str, Any], str]:
    y, weight, weighted = match["y"], match["weight"], match["weighted"]
    maker, terms = _source(y).producer, match.root.inputs[0].shape
    if maker is None or maker.op != EXPERT or y.shape != weighted.shape:
        return ""
    if weight.shape != (*y.shape[:-1], 1):
        return f"the weights {weight!r} have shape {weight.shape}, wanted {(*y.shape[:-1], 1)}"
    if terms[-1] != y.shape[-1] or reduced_axes(match.root) != (len(terms) - 2,):
        return f"the sum is over axes {reduced_axes(match.root)} of {terms}, wanted experts"
    return {"y": y, "weight": weight, "terms": terms, "shape": match.root.output.shape}


def _build_sum(
    g: Any, y: Value, weight: Value, terms: tuple[Dim, ...], shape: tuple[Dim, ...]
) -> Value:
    weights = g.reshape(weight, (*terms[:-2], 1, terms[-2]))
    return g.reshape(g.MatMul(weights, g.reshape(y, terms)), shape)


PRODUCT = Fusion(
    "ExpertLinear",
    (column, column_turned, column_rank_4, row, row_turned, row_rank_4),
    _check_product,
    _build_product,
)
BIAS = Fusion("ExpertBias", (biased,), _check_bias, _build_bias)
GATED = Fusion("GatedExperts", (gated,), _check_gated, _build_gated)
SUM = Fusion("ExpertSum", (weighted_sum,), _check_sum, _build_sum)
