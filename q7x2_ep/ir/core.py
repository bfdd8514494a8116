"""Value, Node, Graph: the whole intermediate representation.

A Value is produced by at most one Node and knows its users. A Graph keeps its nodes in execution
order. Mutate only through the methods here: they keep producer and user links true. Nothing here
knows what an op means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Optional

from q7x2_ep import dtypes
from q7x2_ep.ir.shape import Dim, substitute

ANY = object()  # an attribute in a formula that may have any value, see pattern.py
MAX_ELEMENTS = 64  # those of longer tensors are not tracked (see Type): shapes are short


class Type(NamedTuple):
    """What is known of a tensor before it exists.

    dtype: code in onnx.TensorProto; dtypes.UNKNOWN, or dtypes.NO_TENSOR of a sequence, optional or
    map. shape: dims, or None where even the rank is unknown.
    elements: the flat contents of a small integer or bool tensor of rank 0 or 1, where known (they
    may be symbolic).
    """

    dtype: int
    shape: Optional[tuple[Dim, ...]]
    elements: Optional[tuple[Dim, ...]] = None


UNKNOWN = Type(dtypes.UNKNOWN, None)
NO_TENSOR = Type(dtypes.NO_TENSOR, None)


def array_type(array: Any) -> Type:
    """The type of a constant."""
    dtype = dtypes.from_numpy(array.dtype)
    known = dtypes.DTYPES[dtype].kind in "iub" and array.ndim <= 1 and array.size <= MAX_ELEMENTS
    elements = tuple(map(int, array.reshape(-1).tolist())) if known else None
    return Type(dtype, tuple(array.shape), elements)


@dataclass(eq=False)
class Value:
    """One tensor. Exactly one of these holds: it has a producer, it has `const`, it is a graph
    input, or it has only `elements`: a shape operand (of Reshape, Expand, Slice, ..) that is
    computed at bind, never as data.
    """

    name: str
    dtype: int = 0
    shape: Optional[tuple[Dim, ...]] = None
    elements: Optional[tuple[Dim, ...]] = None  # see Type
    const: Any = None  # a numpy array, opaque to the IR; may be a view of a memory-mapped file
    rounded: int = 0  # the dtype that the elements of `const` were rounded to, if another
    producer: Optional[Node] = None
    users: list[Node] = field(default_factory=list)  # one entry per use

    @property
    def type(self) -> Type:
        return Type(self.dtype, self.shape, self.elements)

    @property
    def is_unknown(self) -> bool:
        """Whether this may be a tensor of any rank, which only a run tells."""
        return self.shape is None and self.dtype != dtypes.NO_TENSOR

    def set_type(self, type: Type) -> None:
        self.dtype, self.shape, self.elements = type

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(eq=False)
class Node:
    """One operation. op is the ONNX op type; other domains are spelled `domain::Type`, our own
    fused ops `q7::Type`.

    inputs may hold None for an omitted optional input; trailing ones are dropped. sources: the
    names of the nodes of the model that this node stands for.
    """

    op: str
    inputs: list[Optional[Value]]
    outputs: list[Value]
    attrs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    sources: tuple[str, ...] = ()
    inferred: Any = field(default=None, repr=False)  # what type inference last saw
    folded: Any = field(default=None, repr=False)  # the same, when folding left it for its inputs
    binds: bool = field(default=False, repr=False)  # a size that nothing before its run tells

    def __post_init__(self) -> None:
        while self.inputs and self.inputs[-1] is None:
            self.inputs.pop()
        for value in self.inputs:
            if value is not None:
                value.users.append(self)
        for value in self.outputs:
            value.producer = self

    def input(self, i: int) -> Optional[Value]:
        """Input i, or None where it is omitted."""
        return self.inputs[i] if i < len(self.inputs) else None

    @property
    def output(self) -> Value:
        return self.outputs[0]

    @property
    def bodies(self) -> list[Graph]:
        """The graphs among the attributes: branches and loop bodies."""
        return [value for value in self.attrs.values() if isinstance(value, Graph)]

    def operand_types(self) -> list[Optional[tuple]]:
        """What type inference looks at, for `inferred`."""
        return [v and (v, v.dtype, v.shape, v.elements) for v in self.inputs]

    def set_input(self, i: int, value: Optional[Value]) -> None:
        old = self.inputs[i]
        if old is not None:
            old.users.remove(self)
        self.inputs[i] = value
        if value is not None:
            value.users.append(self)

    def detach(self) -> None:
        """Forget the inputs; the caller removes the node from its graph."""
        for value in self.inputs:
            if value is not None:
                value.users.remove(self)
        self.inputs = []

    def __repr__(self) -> str:
        return (
            f"{', '.join(map(repr, self.outputs))} = {self.op}({', '.join(map(repr, self.inputs))})"
        )


def where_is(node: Node) -> str:
    """How messages name a node."""
    return f"[{node.op} {node.name}]"


def misfit(node: Node, error: Exception) -> str:
    """What to say of a malformed model that broke an assumption of an op's entry."""
    return f"{where_is(node)} its operands or attributes do not fit: {str(error) or repr(error)}"


@dataclass(eq=False)
class Graph:
    """A function from inputs to outputs.

    outputs may name inputs and constants, and the same value twice.
    """

    name: str = ""
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)  # the model's; passes keep them
    nodes: list[Node] = field(default_factory=list)
    opset: int = 0  # of the default domain, as imported
    metadata: dict[str, Any] = field(default_factory=dict)  # what get_modelmeta() shows
    is_fused: bool = False  # what fusions look for may be folded away
    external_weights: bool = False  # whether some came from a file beside the model
    guards: list[tuple[Dim, str]] = field(default_factory=list)  # never negative, or else what
    _names: int = 0

    def values(self) -> Iterator[Value]:
        """Inputs, then every constant and node output in order of first appearance."""
        seen: set[int] = set()
        for value in self._all_values():
            if id(value) not in seen:
                seen.add(id(value))
                yield value

    def _all_values(self) -> Iterator[Value]:
        yield from self.inputs
        for node in self.nodes:
            yield from (value for value in node.inputs if value is not None)
            yield from node.outputs
        yield from self.outputs

    def new_value(self, type: Type, hint: str = "t") -> Value:
        """A value with a name that no other value made here has."""
        self._names += 1
        return Value(f"{hint}.{self._names}", *type)

    def constant(self, array: Any, type: Type, hint: str = "c") -> Value:
        value = self.new_value(type, hint)
        value.const = array
        return value

    def clone(self) -> Graph:
        """A copy that may be changed, bodies of nodes too; constants share their arrays."""
        copies: dict[Value, Value] = {}

        def copied(value: Optional[Value]) -> Optional[Value]:
            if value is None:
                return None
            if value not in copies:
                copies[value] = Value(value.name, *value.type, value.const, value.rounded)
            return copies[value]

        same = replace(self, inputs=[], outputs=[], nodes=[], guards=list(self.guards))
        same.output_names, same.metadata = list(self.output_names), dict(self.metadata)
        same.inputs = [copied(value) for value in self.inputs]
        for node in self.nodes:
            operands, results = map(copied, node.inputs), map(copied, node.outputs)
            attrs = {
                name: attr.clone() if isinstance(attr, Graph) else attr
                for name, attr in node.attrs.items()
            }
            same.nodes.append(
                Node(
                    node.op,
                    list(operands),
                    list(results),
                    attrs,
                    node.name,
                    node.sources,
                    binds=node.binds,
                )
            )
        same.outputs = [copied(value) for value in self.outputs]
        return same

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every user of old, and the graph's outputs, use new instead."""
        for node in list(dict.fromkeys(old.users)):
            for i, value in enumerate(node.inputs):
                if value is old:
                    node.set_input(i, new)
        self.outputs = [new if value is old else value for value in self.outputs]

    def rename_sizes(self, sizes: Mapping[str, Dim]) -> None:
        """Replace symbols in elements without a node: they would outlive what binds them. And in
        what follows from them, of which a pass may make such before it is inferred again. Symbols
        that are bound stay: the new ones may be told by what waits for them.
        """
        if not sizes:
            return
        bound = {repr(dim) for value in self.inputs for dim in value.shape or ()}
        for node in self.nodes:
            if node.binds:
                given = {dim for value in node.inputs if value for dim in value.shape or ()}
                made = {dim for value in node.outputs for dim in value.shape or ()}
                bound.update(map(repr, made - given))
        gone: dict[str, Dim] = {}
        for name, size in sizes.items():  # in the order of nodes: of those before
            if name not in bound:
                gone[name] = substitute(size, gone)
        for value in self.values():
            is_made = value.producer is not None
            if is_made and value.producer.binds:
                continue
            if is_made and value.shape is not None:
                value.shape = tuple(substitute(each, gone) for each in value.shape)
            if value.elements is not None:
                value.elements = tuple(substitute(each, gone) for each in value.elements)

    def is_output(self, value: Value) -> bool:
        return value in self.outputs  # values are equal to themselves only

    def remove(self, dead: Iterable[Node]) -> None:
        """Remove nodes whose outputs nobody uses."""
        gone = {id(node) for node in dead}
        self.nodes = [node for node in self.nodes if id(node) not in gone or node.detach()]

    def sort(self) -> None:
        """Put nodes in dependency order, keeping the present order where it is free."""
        placed: set[int] = set()
        order: list[Node] = []
        for root in self.nodes:
            stack = [root]
            while stack:
                node = stack[-1]
                if id(node) in placed:
                    stack.pop()
                    continue
                missing = [
                    value.producer
                    for value in node.inputs
                    if value is not None
                    and value.producer is not None
                    and id(value.producer) not in placed
                ]
                if missing:
                    stack.extend(reversed(missing))
                else:
                    placed.add(id(node))
                    order.append(node)
                    stack.pop()
        self.nodes = order
