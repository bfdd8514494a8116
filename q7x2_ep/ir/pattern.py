"""Patterns: formulas that are searched for in a graph, backwards from their root.

A pattern is made by calling a Python function of op calls with a Tracer, so a formula is written once and serves as
pattern, as decomposition and as test (ops/builder.py makes real nodes from the same function):

    def gelu(g, x):
        return g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Div(x, 2**0.5)), 1.0))

Parameters become wildcards, numbers become constants that match by value. `g.either` gives alternatives, `g.scalar`
and `g.constant` restrict a wildcard, `g.expose` lets an inner value be used outside of the match.
Commutative ops match in either operand order; Mul by c and Div by 1/c are one.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Optional, Union

from q7x2_ep.dtypes import BFLOAT16, DOUBLE, FLOAT16
from q7x2_ep.ir.core import Graph, Node, Value

COMMUTATIVE = frozenset({"Add", "Mul", "Min", "Max", "Equal", "And", "Or"})
ANY = object()  # an attribute in a pattern that may have any value
_RECIPROCAL = {"Mul": "Div", "Div": "Mul"}
_EPSILON = {FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7, DOUBLE: 2.0**-52}


@dataclass(eq=False)
class Wild:
    """Any value; every occurrence in one match is the same value. kind: any, scalar (one element) or constant."""

    name: str
    kind: str = "any"


@dataclass(eq=False)
class Const:
    """A constant of one element, equal to `value` within one ulp of its dtype."""

    value: float


@dataclass(eq=False)
class Op:
    """The first output of a node of this op type and, where given, with these attributes."""

    op: str
    inputs: tuple[Optional[Pattern], ...]
    attrs: dict[str, Any]
    exposed: str = ""  # its name in the match, if the value may be used outside


@dataclass(eq=False)
class Either:
    """The first of these that leads to a full match."""

    options: tuple[Pattern, ...]


Pattern = Union[Wild, Const, Op, Either]


class Tracer:
    """Turns op calls into a pattern: any method name is an op type of the default domain."""

    def __getattr__(self, op: str) -> Callable[..., Op]:
        if op.startswith("_"):
            raise AttributeError(op)
        return lambda *inputs, **attrs: self.call(op, *inputs, **attrs)

    def call(self, op: str, *inputs: Any, **attrs: Any) -> Op:
        return Op(op, tuple(Const(float(x)) if isinstance(x, (int, float)) else x for x in inputs), attrs)

    def either(self, *options: Callable[[], Pattern]) -> Either:
        return Either(tuple(option() for option in options))

    def scalar(self, wild: Wild) -> Wild:
        wild.kind = "scalar"
        return wild

    def constant(self, wild: Wild) -> Wild:
        wild.kind = "constant"
        return wild

    def expose(self, name: str, value: Op) -> Op:
        value.exposed = name
        return value


def trace(formula: Callable[..., Pattern]) -> Pattern:
    """The pattern of a formula(g, wildcard, ..)."""
    names = list(inspect.signature(formula).parameters)[1:]
    return formula(Tracer(), *(Wild(name) for name in names))


def root_ops(pattern: Pattern) -> set[str]:
    """The op types that a node must have to be worth a try."""
    if isinstance(pattern, Either):
        return set().union(*map(root_ops, pattern.options))
    if not isinstance(pattern, Op):
        raise TypeError("the root of a pattern must be an op")
    swapped = any(isinstance(operand, Const) for operand in pattern.inputs) and _RECIPROCAL.get(pattern.op)
    return {pattern.op, swapped} if swapped else {pattern.op}


def count_ops(pattern: Optional[Pattern]) -> int:
    """The number of nodes in the longest reading of a pattern."""

    def ops(part: Optional[Pattern]) -> frozenset:
        if isinstance(part, Either):
            return max(map(ops, part.options), key=len)
        if isinstance(part, Op):
            return frozenset([part]).union(*map(ops, part.inputs))
        return frozenset()

    return len(ops(pattern))


@dataclass
class Match:
    """Where a pattern was found. values: by wildcard or exposed name; nodes: root first, all to be replaced."""

    root: Node
    values: dict[str, Value]
    nodes: list[Node]

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def get(self, name: str) -> Optional[Value]:
        """The value of a wildcard, or None where the alternative that was found lacks it."""
        return self.values.get(name)

    def scalar(self, name: str, default: float) -> float:
        value = self.values.get(name)
        return default if value is None else float(value.const.item())


@dataclass
class Matcher:
    """Tries one pattern at one node after the other; remembers how far the last failure got and why it failed."""

    graph: Graph
    pattern: Pattern
    matched: int = 0
    reason: str = ""
    _ids: dict[int, Value] = field(default_factory=dict)

    def match(self, root: Node) -> Optional[Match]:
        """The match that ends in the first output of root, or None; then `matched` and `reason` say why."""
        self.matched, self.reason = -1, ""
        bound = self._solve((self.pattern, root.output, None), {})
        if bound is None:
            return None
        values: dict[str, Value] = {}
        nodes: dict[int, Node] = {}
        for part, value in bound.items():
            if isinstance(part, Wild):
                values[part.name] = value
            elif isinstance(part, Op):
                nodes[id(value.producer)] = value.producer
                if part.exposed:
                    values[part.exposed] = value
        return Match(root, values, list(nodes.values()))

    def _solve(self, goals: Optional[tuple], bound: dict) -> Optional[dict]:
        """Bind every goal (pattern, value, next goals), or None. Backtracks over operand orders and alternatives."""
        if goals is None:
            return bound if self._closed(bound) else None
        part, value, rest = goals
        if isinstance(part, Either):
            for option in part.options:
                found = self._solve((option, value, rest), bound)
                if found is not None:
                    return found
            return None
        if part in bound:
            if bound[part] is value:
                return self._solve(rest, bound)
            return self._miss(bound, lambda: f"{_text(part)} is {value!r} here and {bound[part]!r} elsewhere")
        if isinstance(part, Wild):
            if part.kind != "any" and (value.const is None or (part.kind == "scalar" and value.const.size != 1)):
                return self._miss(bound, lambda: f"{part.name} is {value!r}, wanted a constant {part.kind}")
            return self._solve(rest, {**bound, part: value})
        if isinstance(part, Const):
            if not is_close(value, part.value):
                return self._miss(bound, lambda: f"a value is {_shown(value)}, wanted {part.value:.6g}")
            return self._solve(rest, bound)
        return self._solve_op(part, value, rest, bound)

    def _solve_op(self, part: Op, value: Value, rest: Optional[tuple], bound: dict) -> Optional[dict]:
        node = value.producer
        if node is None or node.outputs[0] is not value:
            return self._miss(bound, lambda: f"{value!r} is no result of {part.op}")
        if len(node.inputs) != len(part.inputs) or node.op not in (part.op, _RECIPROCAL.get(part.op)):
            return self._miss(bound, lambda: f"{value!r} is made by {node.op}, wanted {part.op}")
        for name, wanted in part.attrs.items():
            if wanted is not ANY and not _same_attr(name, wanted, node):
                return self._miss(bound, lambda: f"{name} of {node.op} is {node.attrs.get(name)}, wanted {wanted}")
        for operands in _operand_orders(part, node):
            goals = rest
            wrong = None
            for i in reversed(range(len(operands))):
                pattern, operand, power = operands[i]
                if pattern is None or operand is None:
                    wrong = wrong or (pattern is not operand and f"operand {i} of {node.op} is in the way or missing")
                elif isinstance(pattern, Const):
                    if not is_close(operand, pattern.value**power):
                        wrong = f"constant at {node.op}.{i} is {_shown(operand)}, wanted {pattern.value**power:.6g}"
                else:
                    goals = (pattern, operand, goals)
            if wrong:
                self._miss(bound, lambda: wrong)  # noqa: B023: called at once
                continue
            found = self._solve(goals, {**bound, part: value})
            if found is not None:
                return found
        return None

    def _closed(self, bound: dict) -> bool:
        """Whether nothing inside the match is needed outside of it: fusion neither repeats work nor drops outputs."""
        inside = {id(value.producer) for part, value in bound.items() if isinstance(part, Op)}
        for i, (part, value) in enumerate((p, v) for p, v in bound.items() if isinstance(p, Op)):
            if i == 0 or part.exposed:  # the root comes first
                continue
            for output in value.producer.outputs:
                if self.graph.is_output(output):
                    self._miss(bound, lambda: f"{output!r} is an output of the graph")  # noqa: B023
                    return False
                if any(id(user) not in inside for user in output.users):
                    self._miss(bound, lambda: f"{output!r} is used elsewhere too")  # noqa: B023
                    return False
        return True

    def _miss(self, bound: dict, reason: Callable[[], str]) -> None:
        matched = sum(isinstance(part, Op) for part in bound)
        if matched > self.matched:
            self.matched, self.reason = matched, reason()


def _operand_orders(part: Op, node: Node) -> Iterator[list[tuple[Optional[Pattern], Optional[Value], int]]]:
    """The ways to pair operands: (pattern, value, power); power -1 reads Div by c as Mul by 1/c and back."""
    values = node.inputs
    if node.op == part.op:
        yield [(p, v, 1) for p, v in zip(part.inputs, values)]
        if node.op in COMMUTATIVE and len(values) == 2:
            yield [(p, v, 1) for p, v in zip(part.inputs, reversed(values))]
    elif node.op == "Div":  # the pattern is Mul: its constant is the reciprocal of the divisor
        for p, c in (part.inputs, part.inputs[::-1]):
            if isinstance(c, Const):
                yield [(p, values[0], 1), (c, values[1], -1)]
    elif isinstance(part.inputs[1], Const):  # the node is Mul, the pattern Div
        p, c = part.inputs
        yield [(p, values[0], 1), (c, values[1], -1)]
        yield [(c, values[0], -1), (p, values[1], 1)]


def is_close(value: Value, wanted: float) -> bool:
    """Whether a value is a constant of one element that equals wanted within one ulp."""
    if value.const is None or value.const.size != 1:
        return False
    got = float(value.const.item())
    return got == wanted or math.isclose(got, wanted, rel_tol=_EPSILON.get(value.dtype, 2.0**-23))


def _same_attr(name: str, wanted: Any, node: Node) -> bool:
    got = node.attrs.get(name)
    if name == "axis" and isinstance(got, int) and node.output.shape is not None:
        return (got - wanted) % max(len(node.output.shape), 1) == 0
    return list(got) == list(wanted) if isinstance(wanted, (list, tuple)) and got is not None else got == wanted


def _text(part: Pattern) -> str:
    return part.name if isinstance(part, Wild) else getattr(part, "op", "a value")


def _shown(value: Value) -> str:
    if value.const is None or value.const.size != 1:
        return repr(value)
    return f"{value.const.item():.6g}"
