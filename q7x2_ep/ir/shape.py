"""Symbolic dims: integer expressions over the symbols of a graph, kept in one canonical form.

A dim is an int or an `Expr`. An Expr is a polynomial with integer coefficients; its atoms are
symbols and applications of operations that do not distribute (floordiv, mod, min, max, broadcast).
Equal forms compare equal, so shape equality is `==`. Symbols stand for sizes: they are never
negative, but for those of `content`.

>>> b, s = symbol("b"), symbol("s")
>>> (b * s + s) - s * b
s
>>> b * s * 64 // s
64*b
>>> broadcast(b, 1), broadcast(minimum(s, 64), s), maximum(s, s)
(b, s, s)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import gcd, prod
from typing import Any, Callable, Optional, Union
from zlib import crc32

LONGEST = 400  # characters
_MEASURED = re.compile(r"\.[dv]\d+$")
_CONTENT = re.compile(r"\.v\d+$")


class Expr:
    """A polynomial. terms: ((monomial, coefficient), ...) sorted; a monomial is a sorted tuple of
    atoms. Made by `expr`: sizes of networks that join their branches again and again are within
    each other many times, and what walks them must meet each once.
    """

    __slots__ = ("_hash", "_text", "terms")

    def __init__(self, terms: tuple):
        self.terms = terms
        self._hash = hash(terms)
        self._text = ""

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, int) and other == 0:
            return self
        return _sum(self, other)

    def __neg__(self) -> Dim:
        return _product(self, -1)

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int) and other == 1:
            return self
        return _product(self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - floordiv(self, other) * other

    def __rmod__(self, other: Dim) -> Dim:
        return other - floordiv(other, self) * self

    def __repr__(self) -> str:
        self._text = self._text or self._written()
        return self._text

    def _written(self) -> str:
        """What is too long to read is told apart by its end."""
        parts = []
        for monomial, coefficient in self.terms:
            factors = [_atom_text(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+" if parts else ""
            parts.append(sign + "*".join(factors))
        text = "".join(parts)
        if len(text) <= LONGEST:
            return text
        return f"{text[: LONGEST // 4]}..{crc32(text.encode()):08x}.{len(text)}"


Dim = Union[int, Expr]


def symbol(name: str) -> Expr:
    """The size called `name`."""
    return expr((((("sym", name),), 1),))


def measured(value: str, axis: int) -> Expr:
    """The symbol of a size of a value that no feed tells, but data."""
    return symbol(f"{value}.d{axis}")


def content(value: str, i: int) -> Expr:
    """The symbol of a number in a value that is data: alone among symbols it may be negative."""
    return symbol(f"{value}.v{i}")


def is_measured(a: Dim) -> bool:
    """Whether a size depends on data: it may well be 0 then."""
    return any(_MEASURED.search(name) for name in symbols(a))


def is_content(a: Dim) -> bool:
    """Whether a number in data decides it, which may be negative."""
    return any(_CONTENT.search(name) for name in symbols(a))


@lru_cache(maxsize=1 << 14)
def expr(terms: tuple) -> Expr:
    """The only one of its terms, mostly: those that are the same are equal without a look."""
    return Expr(terms)


def floordiv(a: Dim, b: Dim) -> Dim:
    """floor(a / b), to which terms of a that b divides add what they are over b.

    >>> floordiv(2 * symbol("s") - 1, 2)
    s-1
    >>> floordiv(12 * symbol("s") + 12, symbol("s") + 1)
    12
    >>> floordiv(floordiv(symbol("s"), 2) + 1, 3)
    floordiv(s+2, 6)
    """
    if isinstance(a, int) and isinstance(b, int) and b:
        return a // b
    if b == 1:
        return a
    quotient = _exact_quotient(a, b) if b != 0 else None
    if quotient is not None:
        return quotient
    if isinstance(b, int) and b > 0:
        whole = [(m, c // b) for m, c in _terms(a) if c % b == 0 or not m]
        rest = [(m, c % b if not m else c) for m, c in _terms(a) if c % b]
        if any(c for _, c in whole):
            return _polynomial(whole) + floordiv(_polynomial(rest), b)
        inner, more = _quotient(a)
        if isinstance(inner[1], int) and inner[1] > 0:
            return floordiv(inner[0] + more * inner[1], inner[1] * b)
    return _apply("floordiv", a, b)


def _quotient(a: Dim) -> tuple[tuple[Dim, Dim], int]:
    """((x, y), n) where a is floordiv(x, y) + n; y is 0 where it is no such."""
    terms = _terms(a)
    more = terms[-1][1] if terms and not terms[-1][0] else 0
    operands = _operands(a - more, "floordiv")
    return (operands or (a, 0)), more


def _exact_quotient(a: Dim, b: Dim) -> Optional[Dim]:
    """What times b is a, where dividing first terms finds it."""
    quotient: Dim = 0
    divisor, factor = _terms(b)[0]
    for _ in _terms(a):
        if a == 0:
            break
        monomial, coefficient = _terms(a)[0]
        rest = _without(monomial, divisor)
        if rest is None or coefficient % factor:
            return None
        term = expr(((rest, coefficient // factor),)) if rest else coefficient // factor
        quotient, a = quotient + term, a - term * b
    return quotient if a == 0 else None


def undivided(a: Dim) -> Dim:
    """What is below 0 where a is, without the divisions of a by numbers.

    >>> undivided(floordiv(symbol("s") - 1, 2) - 3)
    s-7
    """
    (inner, divisor), more = _quotient(a)
    if not isinstance(divisor, int) or divisor <= 0:
        return a
    return undivided(inner + more * divisor)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """ceil(a / b)."""
    return -floordiv(-a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    return b if at_least(a - b, 0) else a if at_least(b - a, 0) else _apply("min", *_ordered(a, b))


def maximum(a: Dim, b: Dim) -> Dim:
    return a if at_least(a - b, 0) else b if at_least(b - a, 0) else _apply("max", *_ordered(a, b))


def broadcast(a: Dim, b: Dim) -> Dim:
    """The dim of two right-aligned dims under multidirectional broadcasting.

    Raises: ValueError where both are known, differ, and neither is 1.
    Source: ONNX Broadcasting. Where a symbol may be 1, the answer stays an expression that bind
    checks.
    """
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ValueError(f"dims {a} and {b} do not broadcast")
    if isinstance(a, int) or isinstance(
        b, int
    ):  # a known dim above 1 wins: the other is 1 or equal
        known = a if isinstance(a, int) else b
        return known if known > 1 else _apply("broadcast", *_ordered(a, b))
    never_one = [dim for dim in (a, b) if _is_never_one(dim)]
    if never_one:
        return _ordered(*never_one)[0]
    for part, whole in ((a, b), (b, a)):
        operands = _operands(whole, "broadcast")
        if part in operands:
            return whole
        bounds = _operands(part, "min")
        if whole in bounds and all(at_least(bound, 1) for bound in bounds if bound != whole):
            return whole  # min(s, 64) with s: equal to s, or 1 and repeated
    return _apply("broadcast", *_ordered(a, b))


def _is_never_one(a: Expr) -> bool:
    """Whether a is 1 for no sizes: all it counts comes in twos, say."""
    step = gcd(*(coefficient for monomial, coefficient in a.terms if monomial))
    constant = sum(coefficient for monomial, coefficient in a.terms if not monomial)
    return (constant - 1) % step != 0 or at_least(a, 2)


def excess_over(a: Dim, bound: int) -> Dim:
    """What a is max(.., bound) of, or the bound: above it only where a is."""
    excess, *least = _operands(a, "max") or (bound, bound)
    return excess if least == [bound] else bound


def is_cut_to(a: Dim, size: Dim) -> bool:
    """Whether a dim is min(size, ..): that much of something that may be too short."""
    return size in _operands(a, "min")


def broadcast_shapes(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Right-aligned broadcast of whole shapes."""
    ndim = max(map(len, shapes))
    out: list[Dim] = [1] * ndim
    for shape in shapes:
        for i, dim in enumerate(shape, ndim - len(shape)):
            out[i] = broadcast(out[i], dim)
    return tuple(out)


def broadcasts_to(a: Dim, b: Dim) -> bool:
    """Whether a dim a is certain to repeat to b, or to be b: broadcasting the two gives b."""
    try:
        return broadcast(a, b) == b
    except ValueError:
        return False


def without_leading_ones(shape: tuple[Dim, ...], keep: int = 0) -> tuple[Dim, ...]:
    """The shape without leading dims of 1, but for its last `keep` dims."""
    while len(shape) > keep and shape[0] == 1:
        shape = shape[1:]
    return shape


def product(dims: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


@lru_cache(maxsize=1 << 12)
def lower_bound(a: Dim) -> int | None:
    """A number that a never goes below, or None."""
    total = 0
    for monomial, coefficient in _terms(a):
        if not monomial:
            total += coefficient
        else:
            lows = [_atom_lower(atom) for atom in monomial]
            if coefficient < 0 or None in lows:
                return None
            if len(lows) > 1 and min(lows) < 0:  # the others may be any size, or as negative
                return None
            total += prod(lows, start=coefficient)
    return total


def at_least(a: Dim, bound: int) -> bool:
    """Whether a >= bound is certain."""
    low = lower_bound(a)
    return low is not None and low >= bound


@lru_cache(maxsize=1 << 12)
def symbols(a: Dim) -> frozenset[str]:
    """The names of all symbols in a."""
    found: set[str] = set()
    for monomial, _ in _terms(a):
        for kind, *rest in monomial:
            if kind == "sym":
                found.add(rest[0])
            else:
                for operand in rest:
                    found |= symbols(operand)
    return frozenset(found)


def substitute(a: Dim, values: Mapping[str, Dim]) -> Dim:
    """a with symbols replaced; evaluates to an int when all are given as ints."""
    return _rebuilt(a, values, OPERATIONS, {})


def settled(a: Dim, is_sure: Callable[[Dim], bool], known: dict[Dim, Dim]) -> Dim:
    """a without each min and max of which is_sure tells one side: whether a size is never negative.
    known: what this has made of sizes so far.

    >>> settled(maximum(symbol("s") - 3, 0), lambda size: size == symbol("s") - 3, {})
    s-3
    """

    def highest(a: Dim, b: Dim) -> Dim:
        return a if is_sure(a - b) else b if is_sure(b - a) else maximum(a, b)

    def lowest(a: Dim, b: Dim) -> Dim:
        return b if is_sure(a - b) else a if is_sure(b - a) else minimum(a, b)

    return _rebuilt(a, {}, {**OPERATIONS, "min": lowest, "max": highest}, known)


def _rebuilt(
    a: Dim, values: Mapping[str, Dim], operations: Mapping[str, Any], known: dict[Dim, Dim]
) -> Dim:
    """known: of what is within a, perhaps many times."""

    def rebuilt(a: Dim) -> Dim:
        if isinstance(a, int):
            return a
        if a in known:
            return known[a]
        total: Dim = 0
        for monomial, coefficient in a.terms:
            term: Dim = coefficient
            for kind, *rest in monomial:
                if kind == "sym":
                    term = term * values.get(rest[0], symbol(rest[0]))
                else:
                    term = term * operations[kind](*map(rebuilt, rest))
            total = total + term
        known[a] = total
        return total

    return rebuilt(a)


@lru_cache(maxsize=1 << 12)
def has_sides(a: Dim) -> bool:
    """Whether there is a min or a max in a."""
    atoms = (atom for monomial, _ in _terms(a) for atom in monomial if atom[0] != "sym")
    return any(kind in ("min", "max") or any(map(has_sides, rest)) for kind, *rest in atoms)


def renamed(old: Optional[tuple[Dim, ...]], new: Optional[tuple[Dim, ...]]) -> dict[str, Dim]:
    """The sizes that data tells in one shape of a value, and what another has in their place.

    >>> renamed((symbol("a.d0"), 4), (symbol("b"), 4))
    {'a.d0': b}
    """
    pairs = zip(old or (), new or ())
    return {repr(a): b for a, b in pairs if a != b and is_measured(a) and symbols(a) == {repr(a)}}


def evaluate(a: Dim, values: Mapping[str, int]) -> int:
    """a as a number, for values of all its symbols."""
    number = substitute(a, values)
    assert isinstance(number, int), f"{number} has symbols without a value"
    return number


OPERATIONS = {"floordiv": floordiv, "min": minimum, "max": maximum, "broadcast": broadcast}


def _terms(a: Dim) -> tuple:
    return a.terms if isinstance(a, Expr) else (((), a),) if a else ()


@lru_cache(maxsize=1 << 12)
def _sum(a: Expr, b: Dim) -> Dim:
    return _polynomial([*a.terms, *_terms(b)])


@lru_cache(maxsize=1 << 12)
def _product(a: Expr, b: Dim) -> Dim:
    """A model multiplies the same few sizes some thousand times, which took 7 % of compiling it."""
    if isinstance(b, int):
        return expr(tuple((m, c * b) for m, c in a.terms)) if b else 0
    return _polynomial(
        [
            (tuple(sorted(m1 + m2, key=_atom_key)), c1 * c2)
            for m1, c1 in a.terms
            for m2, c2 in _terms(b)
        ]
    )


def _polynomial(terms: Iterable[tuple]) -> Dim:
    total: dict[tuple, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = sorted(
        ((m, c) for m, c in total.items() if c),
        key=lambda term: [_atom_key(atom) for atom in term[0]],
        reverse=True,
    )
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return expr(tuple(kept))


def _apply(operation: str, a: Dim, b: Dim) -> Expr:
    return expr(((((operation, a, b),), 1),))


def _ordered(*dims: Dim) -> list[Dim]:
    """The operands of a commutative operation in one canonical order, numbers last."""
    return sorted(dims, key=lambda dim: (isinstance(dim, int), repr(dim)))


def _operands(a: Dim, operation: str) -> tuple:
    """What `operation` is applied to, where a is nothing but its result."""
    if isinstance(a, Expr) and len(a.terms) == 1:
        monomial, coefficient = a.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][0] == operation:
            return monomial[0][1:]
    return ()


def _without(monomial: tuple, divisor: tuple) -> tuple | None:
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _atom_key(atom: tuple) -> str:
    return _atom_text(atom)


def _atom_text(atom: tuple) -> str:
    kind, *rest = atom
    return rest[0] if kind == "sym" else f"{kind}({', '.join(map(repr, rest))})"


def _atom_lower(atom: tuple) -> int | None:
    kind, *rest = atom
    if kind == "sym":
        return None if _CONTENT.search(rest[0]) else 0
    lows = [lower_bound(operand) for operand in rest]
    if kind == "max":
        known = [low for low in lows if low is not None]
        return max(known) if known else None
    if kind == "floordiv":
        return (
            0
            if lows[0] is not None and lows[0] >= 0 and lows[1] is not None and lows[1] >= 0
            else None
        )
    return None if None in lows else min(lows)
