"""Patterns: formulas that are searched for in a graph, backwards from their root.

A pattern is made by calling a Python function of op calls with a Tracer, so a formula is written
once and serves as pattern, as decomposition and as test (ops/builder.py makes real nodes from the
same function):

    def gelu(g, x):
        return g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Div(x, 2**0.5)), 1.0))

Parameters become wildcards, numbers become constants that match by value. `g.either` gives
alternatives, `g.scalar` and `g.constant` restrict a wildcard, `g.result` asks for the result of an
op whatever its operands, `g.named` gives an inner value a name in the match, and `g.expose` also
lets it be used outside. Commutative ops match in either operand order; Mul by c and Div by 1/c are
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Callable, Optional, Union

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import ANY, Graph, Node, Value

COMMUTATIVE = frozenset({"Add", "Mul", "Min", "Max", "Equal", "And", "Or"})
_KINDS = {"scalar": "number", "constant": "constant"}
_RECIPROCAL = {"Mul": "Div", "Div": "Mul"}


@dataclass(eq=False)
class Wild:
    """Any value; every occurrence in one match is the same value. kind: any, scalar (one element)
    or constant.
    """

    name: str
    kind: str = "any"


@dataclass(eq=False)
class Const:
    """A constant of one element, equal to `value` within one ulp of its dtype."""

    value: float


@dataclass(eq=False)
class Op:
    """The first output of a node of this op type and, where given, with these operands and
    attributes.
    """

    op: str
    inputs: Optional[tuple[Optional[Pattern], ...]]
    attrs: dict[str, Any]
    name: str = ""  # of the value in the match
    exposed: bool = False  # the value may be used outside of the match


@dataclass(eq=False)
class Either:
    """The first of these that leads to a full match. ops: per option the op types of nodes that are
    worth a try, or None where any value is.
    """

    options: tuple[Pattern, ...]
    ops: list[Optional[set[str]]] = field(init=False)

    def __post_init__(self) -> None:
        self.ops = [None if _is_leaf(option) else root_ops(option) for option in self.options]

    @cached_property
    def wanted(self) -> str:
        return " or ".join(sorted(set().union(*filter(None, self.ops))))


Pattern = Union[Wild, Const, Op, Either]


class Tracer:
    """Turns op calls into a pattern: any method name is an op type of the default domain."""

    def __getattr__(self, op: str) -> Callable[..., Op]:
        if op.startswith("_"):
            raise AttributeError(op)
        return lambda *inputs, **attrs: self.call(op, *inputs, **attrs)

    def call(self, op: str, *inputs: Any, **attrs: Any) -> Op:
        return Op(
            op, tuple(Const(float(x)) if isinstance(x, (int, float)) else x for x in inputs), attrs
        )

    def either(self, *options: Callable[[], Pattern]) -> Either:
        return Either(tuple(option() for option in options))

    def scalar(self, wild: Wild) -> Wild:
        wild.kind = "scalar"
        return wild

    def constant(self, wild: Wild) -> Wild:
        wild.kind = "constant"
        return wild

    def result(self, op: str, wild: Wild) -> Op:
        return Op(op, None, {}, wild.name)

    def named(self, name: str, value: Op) -> Op:
        value.name = name
        return value

    def expose(self, name: str, value: Op) -> Op:
        value.exposed = True
        return self.named(name, value)


@cache
def trace(formula: Callable[..., Pattern]) -> Pattern:
    """The pattern of a formula(g, wildcard, ..)."""
    code = formula.__code__  # inspect.signature takes longer than all the rest
    names = code.co_varnames[1 : code.co_argcount]
    return formula(Tracer(), *(Wild(name) for name in names))


def _is_leaf(pattern: Pattern) -> bool:
    """Whether a pattern may match a value whatever made it."""
    if isinstance(pattern, Either):
        return any(ops is None for ops in pattern.ops)
    return not isinstance(pattern, Op)


@cache
def root_ops(pattern: Pattern) -> set[str]:
    """The op types that a node must have to be worth a try."""
    if isinstance(pattern, Either):
        return set().union(*map(root_ops, pattern.options))
    if not isinstance(pattern, Op):
        raise TypeError("the root of a pattern must be an op")
    swapped = any(map(_is_number, pattern.inputs or ())) and _RECIPROCAL.get(pattern.op)
    return {pattern.op, swapped} if swapped else {pattern.op}


@cache
def count_ops(pattern: Pattern) -> int:
    """The number of nodes in the shortest reading of a pattern."""
    known: dict[Optional[Pattern], frozenset] = {None: frozenset()}  # parts are shared

    def ops(part: Optional[Pattern]) -> frozenset:
        if part not in known:
            if isinstance(part, Either):
                known[part] = min(map(ops, part.options), key=len)
            elif isinstance(part, Op):
                known[part] = frozenset([part]).union(*map(ops, part.inputs or ()))
            else:
                known[part] = frozenset()
        return known[part]

    return len(ops(pattern))


@cache
def first_steps(pattern: Pattern) -> tuple[tuple[str, int, int, Optional[frozenset[str]]], ...]:
    """Of every reading of the root its op, its number of operands, and which operand is first asked
    who made it: one of these ops, or None for a reading that asks of none.
    """
    if isinstance(pattern, Either):
        return tuple(step for option in pattern.options for step in first_steps(option))
    assert isinstance(pattern, Op)
    for i, part in enumerate(pattern.inputs or ()):
        if part is not None and not _is_leaf(part):
            return ((pattern.op, len(pattern.inputs), i, frozenset(root_ops(part))),)
    return ((pattern.op, 0, 0, None),)


@dataclass(eq=False)
class Match:
    """Where a pattern was found. values: by name; nodes: root first, all to be replaced.

    outputs: what the replacement must compute: the root's first output, then the exposed values.
    """

    root: Node
    graph: Graph
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    reciprocal: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def get(self, name: str) -> Optional[Value]:
        """The value of a name, or None where the alternative that was found lacks it."""
        return self.values.get(name)

    def absorb(self, node: Node) -> bool:
        """Take a node that feeds the match into it, to be replaced too; false where others need its
        results.
        """
        inside = set(map(id, self.nodes))
        if any(is_used_outside(self.graph, output, inside) for output in node.outputs):
            return False
        if id(node) not in inside:
            self.nodes.append(node)
        return True

    def scalar(self, name: str, default: float) -> float:
        """The number that a scalar wildcard stands for; where Div was read as Mul, the reciprocal
        of the divisor.
        """
        value = self.values.get(name)
        if value is None:
            return default
        number = float(value.const.item())
        return 1.0 / number if name in self.reciprocal else number


@dataclass(eq=False)
class Matcher:
    """Tries one pattern at one node after the other; remembers how far the last failure got and why
    it failed.

    check(match): the last word on a match, a string is a refusal (an empty one says that the place
    was never meant). The search then goes on with other operand orders. near: the ops were right, a
    number, attribute, user or shape was wrong, which is seldom chance.
    """

    graph: Graph
    pattern: Pattern
    check: Callable[[Match], Any]
    matched: int = 0
    near: bool = False
    _why: tuple = ("",)  # a format and what belongs into it: few failures are ever told

    def __post_init__(self) -> None:
        self.total = count_ops(self.pattern)

    @property
    def reason(self) -> str:
        text, *parts = self._why
        return text.format(*parts)

    def may_match(self, root: Node) -> bool:
        """False where `match` would get no further than the root, as it mostly does."""
        for op, count, i, makers in first_steps(self.pattern):
            if makers is None or op != root.op:
                return True
            if len(root.inputs) != count:
                continue
            both = op in COMMUTATIVE and count == 2
            for value in root.inputs if both else root.inputs[i : i + 1]:
                if value is not None and value.producer and value.producer.op in makers:
                    return True
        return False

    def match(self, root: Node) -> Optional[tuple[Match, Any]]:
        """The match that ends in the first output of root with what check says, or None; see
        matched and reason.
        """
        self.matched, self.near, self._why = -1, False, ("",)
        self._root = root
        return self._solve((self.pattern, root.output, 1, None), {})

    def _solve(self, goals: Optional[tuple], bound: dict) -> Optional[tuple[Match, Any]]:
        """Bind every goal (pattern, value, power, next goals), or None. Backtracks over orders and
        alternatives.
        """
        if goals is None:
            return self._accept(bound)
        part, value, power, rest = goals
        if isinstance(part, Either):
            made_by = value.producer.op if value.producer is not None else ""
            tried = False
            for option, ops in zip(part.options, part.ops):
                if ops is None or made_by in ops:
                    tried = True
                    found = self._solve((option, value, power, rest), bound)
                    if found is not None:
                        return found
            if tried:
                return None
            found_here = f"made by {made_by}, wanted" if made_by else "no result of"
            return self._miss(bound, False, "{!r} is {} {}", value, found_here, part.wanted)
        if part in bound:
            if bound[part] == (value, power):
                return self._solve(rest, bound)
            text = "{} is {!r} here, {!r} elsewhere"
            return self._miss(bound, False, text, _text(part), value, bound[part][0])
        if isinstance(part, Wild):
            if not _is_of_kind(value, part.kind, power):
                text = "{} is {!r}, wanted a {}"
                return self._miss(bound, False, text, part.name, value, _KINDS[part.kind])
            return self._solve(rest, {**bound, part: (value, power)})
        if isinstance(part, Const):
            if not is_close(value, part.value):
                text = "a value is {}, wanted {:.6g}"
                return self._miss(bound, True, text, _shown(value), part.value)
            return self._solve(rest, bound)
        return self._solve_op(part, value, rest, bound)

    def _solve_op(
        self, part: Op, value: Value, rest: Optional[tuple], bound: dict
    ) -> Optional[tuple[Match, Any]]:
        node = value.producer
        if node is None or node.outputs[0] is not value:
            return self._miss(bound, False, "{!r} is no result of {}", value, part.op)
        if node.op not in (part.op, _RECIPROCAL.get(part.op)):
            text = "{!r} is made by {}, wanted {}"
            return self._miss(bound, False, text, value, node.op, part.op)
        for name, wanted in part.attrs.items():
            if wanted is not ANY and not _same_attr(name, wanted, node):
                got = node.attrs.get(name)
                near = not isinstance(got, (list, tuple))  # any view has some perm
                matched = {**bound, part: (value, 1)} if bound else {}  # a root alone is no sign
                text = "{} of {} is {}, wanted {}"
                return self._miss(matched, near, text, name, node.op, got, wanted)
        for operands in _operand_orders(part, node):
            goals, wrong, near = rest, (), False
            for i in reversed(range(len(operands))):
                pattern, operand, power = operands[i]
                if pattern is None or operand is None:
                    if pattern is not operand:
                        wrong = "operand {} of {} is {!r}", i, node.op, operand
                elif isinstance(pattern, Const):
                    wanted = pattern.value**power
                    if not is_close(operand, wanted):
                        text = "constant at {}.{} is {}, wanted {:.6g}"
                        wrong = text, node.op, i, _shown(operand), wanted
                        near = operand.const is not None
                else:
                    goals = (pattern, operand, power, goals)
            if wrong:
                self._miss(bound, near, *wrong)
                continue
            found = self._solve(goals, {**bound, part: (value, 1)})
            if found is not None:
                return found
        return None

    def _accept(self, bound: dict) -> Optional[tuple[Match, Any]]:
        """The match, if nothing inside it is needed elsewhere (no work is repeated, no output lost)
        and check agrees.
        """
        match = Match(self._root, self.graph, outputs=[self._root.output])
        used = ""
        inside = {id(value.producer) for part, (value, _) in bound.items() if isinstance(part, Op)}
        for part, (value, power) in bound.items():
            if isinstance(part, Wild):
                if id(value.producer) in inside:
                    text = "{} is {!r}, inside of the match"
                    return self._miss(bound, False, text, part.name, value)
                match.values[part.name] = value
                if power < 0:
                    match.reciprocal.add(part.name)
                continue
            node = value.producer
            match.nodes.append(node)
            if part.name:
                match.values[part.name] = value
            for output in node.outputs:
                if not is_used_outside(self.graph, output, inside):
                    continue
                if output is value and part.exposed:
                    match.outputs.append(value)
                elif output is not self._root.output:
                    used = f"{output!r} is used elsewhere too"
        try:
            arguments = self.check(match)  # first: what was never meant is no near miss
        except UnsupportedOp as unknown:  # a bound that only a run knows
            arguments = str(unknown)
        refusal = arguments if isinstance(arguments, str) else used
        if refusal or isinstance(arguments, str):
            return self._miss(bound, bool(refusal), "{}" if refusal else "", refusal)
        return match, arguments

    def _miss(self, bound: dict, near: bool, text: str, *parts: Any) -> Optional[tuple[Match, Any]]:
        """No match; keeps the deepest reason, and none where the place was never meant."""
        if len(bound) < self.matched:
            return None
        matched = sum(isinstance(part, Op) for part in bound)
        if (matched, near, not text) > (self.matched, self.near, not self._why[0]):
            self.matched, self.near, self._why = matched, near, (text, *parts)
        return None


def is_used_outside(graph: Graph, value: Value, inside: set[int]) -> bool:
    """Whether anybody but the nodes with these ids needs the value."""
    return graph.is_output(value) or not inside.issuperset(map(id, value.users))


def _is_of_kind(value: Value, kind: str, power: int) -> bool:
    if kind == "any" or value.const is None:
        return kind == "any"
    if kind == "constant":
        return True
    return value.const.size == 1 and (power > 0 or has_reciprocal(value.const.item()))


def has_reciprocal(number: float) -> bool:
    """Whether a number and its reciprocal are both normal in float32."""
    return 2.0**-126 <= abs(number) <= 2.0**126


def _is_number(part: Optional[Pattern]) -> bool:
    return isinstance(part, Const) or (isinstance(part, Wild) and part.kind == "scalar")


def _operand_orders(
    part: Op, node: Node
) -> Iterator[list[tuple[Optional[Pattern], Optional[Value], int]]]:
    """The ways to pair operands: (pattern, value, power); power -1 reads Div by c as Mul by 1/c and
    back.
    """
    values = node.inputs
    if part.inputs is None:
        yield []
    elif len(part.inputs) != len(values):
        return
    elif node.op == part.op:
        yield [(p, v, 1) for p, v in zip(part.inputs, values)]
        if node.op in COMMUTATIVE and len(values) == 2:
            yield [(p, v, 1) for p, v in zip(part.inputs, reversed(values))]
    elif node.op == "Div":  # the pattern is Mul: its number is the reciprocal of the divisor
        for p, number in (part.inputs, part.inputs[::-1]):
            if _is_number(number):
                yield [(p, values[0], 1), (number, values[1], -1)]
    elif _is_number(part.inputs[1]):  # the node is Mul, the pattern Div
        p, number = part.inputs
        yield [(p, values[0], 1), (number, values[1], -1)]
        yield [(p, values[1], 1), (number, values[0], -1)]


def is_close(value: Value, wanted: float) -> bool:
    """Whether a value is a constant of one element that equals wanted within one ulp of the dtype
    that it was rounded to.
    """
    if value.const is None or value.const.size != 1:
        return False
    got = float(value.const.item())
    return got == wanted or math.isclose(
        got, wanted, rel_tol=dtypes.epsilon(value.rounded or value.dtype)
    )


def _same_attr(name: str, wanted: Any, node: Node) -> bool:
    got = node.attrs.get(name)
    if name == "axis" and isinstance(got, int) and node.output.shape is not None:
        return (got - wanted) % max(len(node.output.shape), 1) == 0
    if isinstance(wanted, float) and isinstance(got, float):  # a float32 in the model
        return math.isclose(got, wanted, rel_tol=2.0**-23)
    return (
        list(got) == list(wanted)
        if isinstance(wanted, (list, tuple)) and got is not None
        else got == wanted
    )


def _text(part: Pattern) -> str:
    return part.name if isinstance(part, Wild) else getattr(part, "op", "a value")


def _shown(value: Value) -> str:
    if value.const is None or value.const.size != 1:
        return repr(value)
    return f"{value.const.item():.6g}"
