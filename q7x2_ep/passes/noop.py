"""Elimination of nodes that do nothing, and of detours through layout and dtype.

Only what keeps every bit of the value is done here: x + 0 stays, because it turns -0.0 into 0.0.
"""

from __future__ import annotations

from math import inf
from typing import Any, Callable, Optional, Union

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Graph, Node, Type, Value, array_type
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops.common import RESHAPES, keeps_count, known
from q7x2_ep.ops.creation import fill_value
from q7x2_ep.ops.movement import slices, unknown_slices
from q7x2_ep.passes.fold import known_dims
from q7x2_ep.passes.infer import infer_node

# A rule gives the value that the node's output equals, better nodes for that output, or None.
Found = Union[Value, Node, list[Node], None]
Rule = Callable[[Graph, Node], Found]


def run(graph: Graph) -> dict[str, int]:
    """Counts, per op, the nodes that were removed or replaced."""
    counts: dict[str, int] = {}
    order = []
    for node in graph.nodes:
        rule = RULES.get(node.op)
        found = rule(graph, node) if rule is not None else None
        if found is None:
            order.append(node)
            continue
        counts[node.op] = counts.get(node.op, 0) + 1
        node.detach()
        if isinstance(found, Value):
            graph.replace_uses(node.output, found)
            continue
        for made in found if isinstance(found, list) else [found]:
            infer_node(made)
            order.append(made)
    graph.nodes = order
    return counts


def _replacement(
    node: Node, op: str, inputs: list[Optional[Value]], attrs: dict[str, Any], *merged: Node
) -> Node:
    """A node that takes over the outputs of `node` and stands for the sources of `merged` too."""
    sources = [name for each in (*merged, node) for name in each.sources]
    return Node(op, inputs, node.outputs, attrs, node.name, tuple(dict.fromkeys(sources)))


def _same_shape(graph: Graph, node: Node) -> Optional[Value]:
    """For ops that, where they keep the shape, keep the elements."""
    x = node.inputs[0]
    return x if x.shape is not None and x.shape == node.output.shape else None


def _only_input(graph: Graph, node: Node) -> Optional[Value]:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _sum(graph: Graph, node: Node) -> Found:
    """A Sum of two is an Add, which fusions look for."""
    if len(node.inputs) == 2:
        return _replacement(node, "Add", list(node.inputs), {})
    return _only_input(graph, node)


def _split(graph: Graph, node: Node) -> Optional[Value]:
    return node.inputs[0] if len(node.outputs) == 1 else None


def _dropout(graph: Graph, node: Node) -> Optional[Value]:
    training = node.input(2)
    if len(node.outputs) > 1 or (
        training is not None and (training.const is None or training.const.any())
    ):
        return None
    return node.inputs[0]


def _slice(graph: Graph, node: Node) -> Optional[Value]:
    steps = node.input(4)
    if steps is not None and (steps.elements is None or any(step != 1 for step in steps.elements)):
        return None
    return _same_shape(graph, node) or _part_of_concat(node)


def _part_of_concat(node: Node) -> Optional[Value]:
    """What a Slice cuts out, where a Concat has just put it in."""
    concat = node.inputs[0].producer
    if concat is None or concat.op != "Concat" or node.output.shape is None:
        return None
    if unknown_slices(node) is not None:
        return None
    (axis, start, _, _), *others = slices(node)
    if others or concat.attrs["axis"] % len(node.output.shape) != axis:
        return None
    at: Dim = 0
    for part in concat.inputs:
        if at == start and part.shape == node.output.shape:
            return part
        at = at + part.shape[axis]
    return None


def _pad(graph: Graph, node: Node) -> Optional[Value]:
    pads = node.inputs[1].elements
    return node.inputs[0] if pads is not None and not any(pad != 0 for pad in pads) else None


def _neutral(graph: Graph, node: Node) -> Optional[Value]:
    """x * 1, x / 1, x - 0, x & true, x | false, where broadcasting the constant does not grow x."""
    wanted, commutes = NEUTRAL[node.op]
    pairs = [node.inputs, node.inputs[::-1]] if commutes else [node.inputs]
    for x, other in pairs:
        neutral = other.const is not None and (other.const == wanted).all()
        if neutral and x.shape is not None and x.shape == node.output.shape:
            return x
    return None


def _cast(graph: Graph, node: Node) -> Union[Value, Node, None]:
    """Cast to the dtype that the value has, or had before a Cast that lost nothing."""
    x = node.inputs[0]
    if x.dtype == node.output.dtype:
        return x
    inner = x.producer
    if inner is None or inner.op != "Cast" or not _is_lossless(inner.inputs[0].dtype, x.dtype):
        return None
    source = inner.inputs[0]
    if source.dtype == node.output.dtype:
        return source
    return _replacement(node, "Cast", [source], node.attrs, inner)


def _cast_like(graph: Graph, node: Node) -> Node:
    """A Cast, which can be done early where only the dtype of `like` is known."""
    attrs = {**node.attrs, "to": node.output.dtype}
    return _replacement(node, "Cast", [node.inputs[0]], attrs)


def _is_lossless(source: int, target: int) -> bool:
    """Whether every value of dtype source has an equal in dtype target."""
    a, b = dtypes.DTYPES[source], dtypes.DTYPES[target]
    if dtypes.FLOAT8E8M0 in (source, target):  # powers of two, of the range of float32; no 0
        return target in (dtypes.FLOAT, dtypes.DOUBLE)
    if a.kind == "b":
        return b.kind in "iuf"
    if a.kind == "f":
        return b.kind == "f" and b.size > a.size
    if b.kind == "f":
        return a.kind in "iu" and a.size * 8 <= dtypes.significant_bits(target)
    return (
        a.kind in "iu" and b.kind in "iu" and b.size > a.size and (a.kind == "u" or b.kind == "i")
    )


def _transpose(graph: Graph, node: Node) -> Union[Value, Node, None]:
    """Identity permutations go; two in a row become one."""
    x, perm = node.inputs[0], _permutation(node)
    if perm is None:
        return None
    if perm == tuple(range(len(perm))):
        return x
    inner = x.producer
    if inner is None or inner.op != "Transpose":
        return None
    first = _permutation(inner)
    return _replacement(
        node, "Transpose", [inner.inputs[0]], {"perm": tuple(first[p] for p in perm)}, inner
    )


def _permutation(node: Node) -> Optional[tuple[int, ...]]:
    if node.attrs.get("perm") is not None:
        return tuple(node.attrs["perm"])
    shape = node.inputs[0].shape
    return None if shape is None else tuple(range(len(shape)))[::-1]


def _reshape(graph: Graph, node: Node) -> Found:
    """A reshape to the shape that x has, or had before other reshapes; several in a row become one
    Reshape, but for those that only a run tells to keep all elements: they say so where they do
    not.
    """
    x, shape = node.inputs[0], node.output.shape
    if shape is None or x.shape is None or node.binds:
        return None
    if x.shape == shape:
        return x
    source = x
    merged: list[Node] = []
    while source.producer is not None and keeps_count(source.producer):
        merged.insert(0, source.producer)
        source = source.producer.inputs[0]
        if source.shape == shape:
            return source
    if merged:
        return _reshape_to_output(graph, node, source, merged)
    inner = x.producer
    if inner is None:
        return None
    if inner.op in ("Softmax", "LogSoftmax"):
        return _flattened_softmax(node, inner)
    if len(x.users) > 1 or graph.is_output(x):
        return None
    if inner.op.startswith("Reduce"):
        return _kept_dims(node, inner)
    return _split_before_transpose(graph, node, inner) if inner.op == "Transpose" else None


def _kept_dims(node: Node, reduce: Node) -> Optional[Node]:
    """Dims that a reduction drops and a Reshape puts back are kept."""
    axes, shape = known(reduce.input(1)), reduce.inputs[0].shape
    if reduce.attrs["keepdims"] or not axes or shape is None:
        return None
    reduced = {axis % len(shape) for axis in axes}
    if node.output.shape != tuple(1 if i in reduced else dim for i, dim in enumerate(shape)):
        return None
    attrs = {**reduce.attrs, "keepdims": 1}
    return _replacement(node, reduce.op, list(reduce.inputs), attrs, reduce)


def _split_before_transpose(graph: Graph, node: Node, transpose: Node) -> Optional[list[Node]]:
    """Reshape(Transpose(Reshape(x))) that splits one dim, in PyTorch's MultiheadAttention the one
    that the first Reshape has joined: split before it is moved, so that the two meet."""
    y, turned, wanted = transpose.inputs[0], transpose.output.shape, node.output.shape
    if y.producer is None or y.producer.op not in RESHAPES:
        return None
    more = len(wanted) - len(turned)
    at = next((i for i, (a, b) in enumerate(zip(turned, wanted)) if a != b), len(turned))
    parts = wanted[at : at + more + 1]
    if more < 1 or at == len(turned) or turned[at + 1 :] != wanted[at + more + 1 :]:
        return None
    perm = _permutation(transpose)
    if perm is None or product(parts) != turned[at]:
        return None
    split = perm[at]
    shape = (*y.shape[:split], *parts, *y.shape[split + 1 :])
    moved = [axis + more * (axis > split) for axis in perm]
    moved[at : at + 1] = range(split, split + more + 1)
    inner = graph.new_value(Type(y.dtype, None), f"{node.output.name}/split")
    reshape = Node(
        "Reshape", [y, known_dims(graph, shape, inner.name)], [inner], {"allowzero": 1}, node.name
    )
    return [reshape, _replacement(node, "Transpose", [inner], {"perm": tuple(moved)}, transpose)]


def _reduce(graph: Graph, node: Node) -> Optional[Node]:
    """Axes are counted from the end: then equal ones look equal, to cse. A scalar has none."""
    axes, shape = known(node.input(1)), node.inputs[0].shape
    if not axes or shape is None or not all(isinstance(axis, int) for axis in axes):
        return None
    if not shape:
        return _replacement(node, node.op, node.inputs[:1], node.attrs)
    if all(axis < 0 for axis in axes):
        return None
    counted = tuple(sorted(axis % len(shape) - len(shape) for axis in axes))
    inputs = [node.inputs[0], known_dims(graph, counted, node.output.name, "axes")]
    return _replacement(node, node.op, inputs, node.attrs)


def _softmax(graph: Graph, node: Node) -> Optional[Node]:
    """Softmax(x - max(x)) is Softmax(x), which subtracts the maximum itself, to the bit."""
    sub, axis = node.inputs[0].producer, node.attrs["axis"]
    if sub is None or sub.op != "Sub":
        return None
    x, most = sub.inputs[0], sub.inputs[1].producer
    if most is None or most.op != "ReduceMax" or most.inputs[0] is not x or x.shape is None:
        return None
    axes, ndim = known(most.input(1)), len(x.shape)
    if not most.attrs["keepdims"] or axes is None or [a % ndim for a in axes] != [axis % ndim]:
        return None
    return _replacement(node, node.op, [x], node.attrs, most, sub)


def _reshape_to_output(graph: Graph, node: Node, source: Value, merged: list[Node]) -> Node:
    target = known_dims(graph, node.output.shape, node.output.name)
    # allowzero: a dim that turns out to be zero is meant so, not copied from the input
    return _replacement(node, "Reshape", [source, target], {"allowzero": 1}, *merged)


def _flattened_softmax(node: Node, softmax: Node) -> Optional[Node]:
    """Reshape(Softmax(Flatten(x))) is Softmax(x) where the last dim is the same: how
    importer/opset.py reads opset < 13."""
    flatten = softmax.inputs[0].producer
    if flatten is None or not keeps_count(flatten):
        return None
    x, flat = flatten.inputs[0], flatten.output
    last = softmax.attrs["axis"] in (-1, len(flat.shape) - 1)
    if not (last and x.shape and x.shape == node.output.shape and x.shape[-1] == flat.shape[-1]):
        return None
    return _replacement(node, softmax.op, [x], {**softmax.attrs, "axis": -1}, flatten, softmax)


def _is_inf(graph: Graph, node: Node) -> Optional[Node]:
    """False of a result of Softmax and its kin: nan_to_num asks, where a NaN is all it may find."""
    shape = node.output.shape
    if shape is None or not _is_bounded(node.inputs[0]):
        return None
    array = dtypes.make_array([False], dtypes.BOOL, ())
    no = graph.constant(array, array_type(array), node.output.name)
    return _replacement(node, "Expand", [no, known_dims(graph, shape, node.output.name)], {})


def _is_bounded(x: Value) -> bool:
    """Whether x is finite or NaN, whatever it is made of."""
    node = x.producer
    if node is None:
        return x.const is not None and bool(abs(x.const).max(initial=0) < inf)
    if node.op == "Cast":
        source = node.inputs[0]
        return _is_lossless(source.dtype, x.dtype) and _is_bounded(source)
    if node.op == "Where":
        return all(map(_is_bounded, node.inputs[1:]))
    return node.op in BOUNDED


def _where(graph: Graph, node: Node) -> Optional[Value]:
    """Where(false, a, b) is b."""
    chosen = node.inputs[2]
    is_chosen = _is_false(node.inputs[0]) and chosen.shape is not None
    return chosen if is_chosen and chosen.shape == node.output.shape else None


def _and(graph: Graph, node: Node) -> Optional[Value]:
    """x & true is x, x & false is false."""
    for x in node.inputs:
        if _is_false(x) and x.shape is not None and x.shape == node.output.shape:
            return x
    return _neutral(graph, node)


def _is_false(x: Value) -> bool:
    while x.producer is not None and x.producer.op == "Expand":
        x = x.producer.inputs[0]
    return x.const is not None and not x.const.any()


def _constant_of_shape(graph: Graph, node: Node) -> Optional[Node]:
    """One element, expanded: then it can be seen that all are equal, and Expand sinks."""
    shape = node.inputs[0]
    if shape.elements is None or not shape.elements:
        return None
    array = fill_value(node)
    constant = graph.constant(array, array_type(array), node.output.name)
    return _replacement(node, "Expand", [constant, shape], {})


NEUTRAL: dict[
    str, tuple[Any, bool]
] = {  # the constant that changes nothing, and whether it may stand on the left
    "Mul": (1, True),
    "Div": (1, False),
    "Sub": (0, False),
    "And": (True, True),
    "Or": (False, True),
}


def _gather_nd(graph: Graph, node: Node) -> Optional[Node]:
    """Constant indices into the first axis alone are those of a Gather, which may be a view."""
    x, indices = node.inputs
    if indices.const is None or indices.shape[-1] != 1 or node.attrs["batch_dims"]:
        return None
    flat = indices.const.reshape(indices.shape[:-1])
    entries = graph.constant(flat, array_type(flat), indices.name)
    return _replacement(node, "Gather", [x, entries], {"axis": 0})


BOUNDED = frozenset({"Softmax", "Sigmoid", "Tanh", "Erf", "Sin", "Cos"})

RULES: dict[str, Rule] = {
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(("Expand", "Tile"), _same_shape),
    **dict.fromkeys(("Identity", "Concat", "Max", "Min", "Mean"), _only_input),
    "Sum": _sum,
    **dict.fromkeys(NEUTRAL, _neutral),
    "ConstantOfShape": _constant_of_shape,
    "Split": _split,
    "Dropout": _dropout,
    "GatherND": _gather_nd,
    "Slice": _slice,
    "Pad": _pad,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Transpose": _transpose,
    "Softmax": _softmax,
    "IsInf": _is_inf,
    "Where": _where,
    "And": _and,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _reduce),
}
