"""float16 and bfloat16 are computed in float32: casts at the edges of the graph, none inside.

A 16-bit value is held as the float32 that the ops in float32 make of it, unrounded, so that every
fusion and kernel applies. It is rounded where that can be seen:

- at outputs of the graph, and where an op runs on the host in the dtypes that it is declared with;
  a cache, that is handed on with what is new, stays in 16 bits, and so do a large table of rows and
  what is only moved from inputs to outputs;
- where a nearby operand may give quite another result (DISCRETE ops, Cast to integers or bool):
  what arithmetic made is rounded first. What is chosen or moved from exact values is exact;
- by a Cast to 16 bits that the model undoes without having computed with the result, if the result
  is an output, an operand of a DISCRETE op, or beside the unrounded value in use.

After this pass a 16-bit value is an input of the graph, such a table, or the output of a Cast, host
op, cache or Gather from a table, or moved, and is read by such ops only; a graph that is like that
already stays as it is. See docs/decisions.md, 25.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Callable, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.dtypes import BOOL, FLOAT, HALVES, INT8, UINT8
from q7x2_ep.ir.core import Graph, Node, Type, Value
from q7x2_ep.ops.common import is_host, is_movement
from q7x2_ep.ops.lazy import Widened
from q7x2_ep.passes.infer import infer_node

CASTS = frozenset({"Cast", "CastLike"})
DISCRETE = frozenset(
    {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Sign", "Floor", "Ceil", "Round"}
    | {"Mod", "IsInf", "ArgMax", "ArgMin", "TopK", "Hardmax", "NonZero", "OneHot", "Range"}
    | {"ThresholdedRelu", "Shrink"}
)
# Their results are among their operands, or differ in the sign.
CHOICES = frozenset(
    {"Abs", "Neg", "Max", "Min", "Relu", "Clip", "Where", "Concat", "Pad", "Tile", "Trilu"}
    | {"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "TopK", "Dropout"}
    | {"ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "Sign", "Floor", "Ceil", "Round"}
)
# Sums of numbers of a dtype are multiples of its smallest one: no rounding makes them 0.
ON_GRID = frozenset({"Add", "Sub", "Sum"})
# Ops that write rows to a cache: the first of its two inputs, and of its two outputs.
CACHED = {"com.microsoft::GroupQueryAttention": (3, 1)}
LARGE_TABLE = 1 << 18  # elements
MOVES = frozenset({"Gather", "GatherElements", "GatherND"})  # beside those that are views
DTYPES = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")  # attributes


def run(graph: Graph) -> dict[str, int]:
    """Counts the casts that are made at edges, and the roundings that are kept."""
    found = {v.dtype for node in graph.nodes for v in (*node.inputs, *node.outputs) if v}
    if found.isdisjoint(HALVES):
        return {}
    moved = _handed_on(graph)
    if not any(_is_narrow(graph, node) for node in graph.nodes if node not in moved):
        return {}
    return _Widening(graph, moved).run()


def _is_narrow(graph: Graph, node: Node) -> bool:
    """Whether a node computes in 16 bits, reads a constant of 16 bits, or rounds to 16 bits what
    may stay as it is.
    """
    halves = [value for value in (*node.inputs, *node.outputs) if _is_half(value)]
    if not halves or _stays(node):
        return False
    if node.op != "Cast":
        return node.op != "Concat" or not graph.is_output(node.output)
    is_idle = any(map(_is_undoing, node.output.users)) and not _is_seen(graph, node, _is_half)
    return (is_idle and _is_half(node.output)) or (
        _is_half(node.inputs[0]) and node.inputs[0].const is not None
    )


def is_declared(node: Node) -> bool:
    """Whether a node must see the dtypes that the model declares, for what it is or because nobody
    knows yet what it gives, or was made behind this pass.
    """
    is_known = all(value.dtype != dtypes.UNKNOWN for value in node.outputs)
    made_here = node.op.startswith("q7::")
    return is_host(node) or not is_known or made_here or node.op == "BitCast"


def _stays(node: Node) -> bool:
    """Whether a node is left with the operands of 16 bits that it has, wherever it is."""
    return is_declared(node) or _is_cut(node) or _is_lookup(node)


def _is_cut(node: Node) -> bool:
    """Whether a node takes the rows of a cache that are in use: they are widened, not all."""
    source = node.inputs[0].producer if node.op == "Slice" else None
    return source is not None and source.op == "q7::TensorScatter"


def _is_lookup(node: Node) -> bool:
    """Whether a node takes rows of a large table: they are widened, and it stays in its file."""
    table = node.inputs[0].const if node.op == "Gather" and _is_half(node.inputs[0]) else None
    return table is not None and table.size >= LARGE_TABLE


def _is_packed(value: Value) -> bool:
    """Whether all that reads a matrix, but for those that take its rows in 16 bits, multiplies by
    it, turned or not.
    """
    if value.shape is None or len(value.shape) != 2:
        return False
    for user in value.users:
        if user.op in ("Cast", "Transpose"):
            is_packed = _is_packed(user.output)
        else:
            is_product = user.op in ("Gemm", "MatMul") and user.inputs.index(value) == 1
            is_packed = is_product or _is_lookup(user)
        if not is_packed:
            return False
    return True


def _handed_on(graph: Graph) -> set[Node]:
    """Nodes that move what is given to outputs of the graph, where nothing computes with it."""
    found: set[Node] = set()
    for node in graph.nodes:
        source = node.inputs[0] if is_movement(node) or node.op in MOVES else None
        if source is not None and (source.producer in found or _is_given(source)):
            found.add(node)
    for node in reversed(graph.nodes):
        if node in found and not all(found.issuperset(value.users) for value in node.outputs):
            found.remove(node)
    for node in graph.nodes:  # and what else those would have moved
        if node in found and not (_is_given(node.inputs[0]) or node.inputs[0].producer in found):
            found.remove(node)
    return found


def _is_given(value: Value) -> bool:
    return value.producer is None and value.const is None


def _is_half(value: Optional[Value]) -> bool:
    return value is not None and value.dtype in HALVES


class _Widening:
    """declared: the dtype of every value that the model has in 16 bits. narrow: those of them that
    stay so. exact: those that hold nothing else. grid: those that are 0 only where they would be.
    moved: nodes whose values are among them.
    """

    def __init__(self, graph: Graph, moved: set[Node]):
        self.graph, self.moved = graph, moved
        self.declared = {
            value: value.dtype for value in (*graph.values(), *graph.outputs) if _is_half(value)
        }
        self.narrow = {value for value in self.declared if value.producer is None}
        self.exact = set(self.narrow)
        self.grid = set(self.narrow)
        self.order: list[Node] = []
        self.counts = {"edges": 0, "roundings": 0}
        self.casts: dict[tuple[Value, int], Value] = {}

    def run(self) -> dict[str, int]:
        for node in self.graph.nodes:
            if node in self.moved or _stays(node) or self.is_cache(node):
                for i, value in enumerate(node.inputs):
                    if value in self.declared:
                        node.set_input(i, self.narrowed(value))
                self.append(node)
                self.keep(node.outputs)
            elif node.op in CASTS:
                self.cast(node)
            else:
                self.widen(node)
        self.graph.outputs = [
            self.narrowed(value) if value in self.declared else value
            for value in self.graph.outputs
        ]
        self.graph.nodes = self.order
        return self.counts

    def cast(self, node: Node) -> None:
        x, y = node.inputs[0], node.output
        if y in self.declared:
            if len(node.inputs) > 1:
                node.set_input(1, None)
            node.inputs, node.op = node.inputs[:1], "Cast"
            node.attrs["to"] = self.declared[y]
            if _is_seen(self.graph, node, self.declared.__contains__):
                self.keep([y])
                self.counts["roundings"] += 1
            else:
                node.attrs["to"] = FLOAT
                if not dtypes.is_float(x.dtype):
                    self.grid.add(y)
                if x.dtype in (BOOL, INT8, UINT8) or self.declared.get(x) == self.declared[y]:
                    self.pass_on([x] if x in self.declared else [], y)
        if x in self.declared:
            is_float = dtypes.is_float(self.declared.get(y, y.dtype))
            harmless = is_float or (y.dtype == BOOL and x in self.grid)
            node.set_input(0, self.widened(x) if harmless else self.rounded(x))
        self.append(node)

    def widen(self, node: Node) -> None:
        halves = [value for value in node.inputs if value in self.declared]
        if node.op == "QuantizeLinear" and not node.attrs["precision"]:
            node.attrs["precision"] = self.declared.get(node.inputs[1], 0)  # it divides in that
        if node.op == "Range" and node.inputs[1] in self.declared:
            self.count(node)
        past, present = self.caches(node)
        for i, value in enumerate(node.inputs):
            if value in self.declared and i not in past:
                wants_zero = node.op == "Equal" and _is_zero(node.inputs[1 - i])
                harmless = not _is_discrete(node, i) or (wants_zero and value in self.grid)
                node.set_input(i, self.widened(value) if harmless else self.rounded(value))
        is_choice = node.op in CHOICES and node.attrs.get("reduction") not in ("add", "mul")
        for value in node.outputs:
            if value in self.declared and (is_choice or is_movement(node)):
                self.pass_on(halves, value)
            elif value in self.declared and node.op in ON_GRID and self.grid.issuperset(halves):
                self.grid.add(value)
        for key, value in node.attrs.items():
            if isinstance(value, np.ndarray) and dtypes.from_numpy(value.dtype) in HALVES:
                node.attrs[key] = value.astype(np.float32)
            elif key in DTYPES and value in HALVES:
                node.attrs[key] = FLOAT
        self.append(node)
        self.keep(node.outputs[i] for i in present)

    def count(self, node: Node) -> None:
        """A Range up to a size still has the length that the size tells: sizes that are rounded as
        the model has them are left to its exact form, so that none is rounded here.
        """
        from q7x2_ep.ops.creation import EXACT, size_as_limit

        limit = node.inputs[1]
        node.attrs["most"] = EXACT[self.declared[limit]]
        if limit.producer is not None and size_as_limit(node) is not None:
            node.set_input(1, self.made(limit.producer.inputs[0], FLOAT))

    def caches(self, node: Node) -> tuple[Sequence[int], Sequence[int]]:
        """Which inputs and outputs of a node are caches that stay in 16 bits."""
        past, present = CACHED.get(node.op, (0, 0))
        if not past or not self.narrow.issuperset(node.inputs[past : past + 2]):
            return (), ()
        return range(past, past + 2), range(present, present + 2)

    def pass_on(self, sources: Sequence[Value], result: Value) -> None:
        """The result holds numbers of the sources."""
        for known in (self.exact, self.grid):
            if known.issuperset(sources):
                known.add(result)

    def keep(self, values: Iterable[Value]) -> None:
        """Values that stay in 16 bits."""
        kept = [value for value in values if _is_half(value)]
        for known in (self.narrow, self.exact, self.grid):
            known.update(kept)

    def append(self, node: Node) -> None:
        self.order.append(node)
        node.inferred = None  # its inputs need not tell that its attributes have changed
        infer_node(node)

    # A value of 16 bits in other dtypes

    def widened(self, value: Value) -> Value:
        if value not in self.narrow:
            return value
        if value.const is None:
            return self.made(value, FLOAT)
        if (value, FLOAT) not in self.casts:
            lazy = Widened(value.const)
            array = lazy if _is_packed(value) else lazy.whole
            wide = self.graph.constant(array, Type(FLOAT, value.shape), value.name)
            wide.rounded = value.dtype
            self.casts[value, FLOAT] = wide
        return self.casts[value, FLOAT]

    def narrowed(self, value: Value) -> Value:
        return value if value in self.narrow else self.made(value, self.declared[value])

    def rounded(self, value: Value) -> Value:
        """In float32, but none that the dtype of the model does not have."""
        if value in self.exact:
            return self.widened(value)
        if (value, self.declared[value]) not in self.casts:
            self.counts["roundings"] += 1
        return self.made(self.made(value, self.declared[value]), FLOAT)

    def made(self, value: Value, dtype: int) -> Value:
        """What a new Cast makes of a value; the same one every time."""
        if (value, dtype) not in self.casts:
            result = self.graph.new_value(Type(dtype, value.shape), value.name)
            source = value.producer
            name, sources = (source.name, source.sources) if source else (value.name, ())
            cast = Node("Cast", [value], [result], {"to": dtype}, f"{name}/Cast", sources)
            self.append(cast)
            self.casts[value, dtype] = result
            self.counts["edges"] += 1
        return self.casts[value, dtype]

    def is_cache(self, node: Node) -> bool:
        """Whether a Concat puts what is given behind what is made, and hands it on: the old part,
        most of it, is neither widened nor narrowed for that.
        """
        is_mixed = any(value in self.narrow for value in node.inputs)
        return node.op == "Concat" and is_mixed and self.graph.is_output(node.output)


def _is_seen(graph: Graph, cast: Node, is_half: Callable[[Optional[Value]], bool]) -> bool:
    """Whether what a Cast to 16 bits gives is wide again without arithmetic, and the rounding then
    seen. What a fused op does with it nobody knows.
    """
    x, y = cast.inputs[0], cast.output
    beside = graph.is_output(x) or any(
        user.op not in CASTS or not is_half(user.output) for user in x.users
    )
    seen, stack = {y}, [y]
    while stack:
        value = stack.pop()
        is_wide = not is_half(value)
        if is_wide and graph.is_output(value):
            return True
        for user in value.users:
            if _is_undoing(user) or is_movement(user):
                fresh = user.output not in seen
                seen.add(user.output)
                stack += [user.output] if fresh else []
            elif is_wide and (beside or _tells(user, value)):
                return True
    return False


def _tells(user: Node, value: Value) -> bool:
    places = [i for i, operand in enumerate(user.inputs) if operand is value]
    is_discrete = any(_is_discrete(user, i) for i in places)
    return is_discrete or user.op in CASTS or user.op.startswith("q7::")


def _is_discrete(node: Node, i: int) -> bool:
    """Whether an operand that is almost the same may give quite another result: such points, too,
    choose pixels.
    """
    is_point = node.op == "GridSample" and i == 1 and node.attrs["mode"] == "nearest"
    return node.op in DISCRETE or is_point


def _is_undoing(node: Node) -> bool:
    return node.op in CASTS and dtypes.is_float(node.output.dtype)


def _is_zero(value: Optional[Value]) -> bool:
    return value is not None and value.const is not None and not value.const.any()
