"""Symbolic dims: canonical form, arithmetic against Python ints, broadcasting, bounds."""

from __future__ import annotations

import random

import pytest

from q7x2_ep.ir import shape
from q7x2_ep.ir.shape import (
    at_least,
    broadcast,
    broadcast_shapes,
    ceildiv,
    floordiv,
    lower_bound,
    maximum,
    minimum,
    product,
    substitute,
    symbol,
    symbols,
)

b, s, t = symbol("b"), symbol("s"), symbol("t")


def test_equal_sums_and_products_are_equal_objects():
    assert (b + s) * (b - s) == b * b - s * s
    assert hash(b * s + 3) == hash(3 + s * b)
    assert b - b == 0 and isinstance(b - b, int)
    assert 2 * b - b == b
    assert b != s and b != 1


def test_division_cancels_what_it_can():
    assert (b * s * 768) // (b * s) == 768
    assert (b * s * 768) // 64 == 12 * b * s
    assert (b * s + s) // s == b + 1
    assert str((b + 1) // 2) == "floordiv(b+1, 2)"
    assert (2 * b + s - 3) // 2 == b - 2 + (s + 1) // 2
    assert ceildiv(7, 2) == 4 and floordiv(-7, 2) == -4
    assert floordiv(b, 1) is b


def random_dim(rng: random.Random, depth: int):
    """A random expression, and what it should be worth for given symbol values."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.5:
            number = rng.randint(-3, 5)
            return number, lambda sizes: number
        name = rng.choice("bst")
        return symbol(name), lambda sizes: sizes[name]
    (x, x_value), (y, y_value) = random_dim(rng, depth - 1), random_dim(rng, depth - 1)
    kind = rng.choice(["+", "-", "*", "min", "max", "//", "%"])
    if kind == "+":
        return x + y, lambda sizes: x_value(sizes) + y_value(sizes)
    if kind == "-":
        return x - y, lambda sizes: x_value(sizes) - y_value(sizes)
    if kind == "*":
        return x * y, lambda sizes: x_value(sizes) * y_value(sizes)
    if kind == "min":
        return minimum(x, y), lambda sizes: min(x_value(sizes), y_value(sizes))
    if kind == "max":
        return maximum(x, y), lambda sizes: max(x_value(sizes), y_value(sizes))
    divisor = rng.randint(1, 4) * (symbol("b") if rng.random() < 0.3 else 1)
    if kind == "//":
        return x // divisor, lambda sizes: x_value(sizes) // substitute(divisor, sizes)
    return x % divisor, lambda sizes: x_value(sizes) % substitute(divisor, sizes)


@pytest.mark.parametrize("seed", range(200))
def test_expressions_are_worth_what_ints_are(seed):
    rng = random.Random(seed)
    dim, value = random_dim(rng, 4)
    sizes = {"b": rng.randint(1, 5), "s": rng.randint(0, 9), "t": rng.randint(0, 3)}
    assert substitute(dim, sizes) == value(sizes)
    low = lower_bound(dim)
    assert low is None or low <= value(sizes)
    assert symbols(dim) <= set(sizes)


def test_substitute_leaves_other_symbols():
    assert substitute(b * s + t, {"s": 4}) == 4 * b + t
    assert substitute(maximum(b, s), {"b": 3, "s": 2}) == 3


def test_bounds():
    assert at_least(b + 2, 2) and not at_least(b, 1) and not at_least(-b, -5)
    assert maximum(b, -1) is b and minimum(b + 1, 0) == 0
    assert lower_bound(maximum(b - s, 3)) == 3
    below = minimum(s - 5, 3)
    assert lower_bound(below) == -5
    assert lower_bound(below * b) is None and lower_bound(below * minimum(b - 5, 3)) is None


def test_broadcast():
    assert broadcast(1, s) is s and broadcast(s, s) is s
    assert broadcast(s, 5) == 5
    assert broadcast(b, s) == broadcast(s, b)
    assert substitute(broadcast(b, s), {"b": 1, "s": 4}) == 4
    with pytest.raises(ValueError, match="2 and 3 do not broadcast"):
        broadcast(2, 3)
    with pytest.raises(ValueError, match="do not broadcast"):
        substitute(broadcast(b, s), {"b": 2, "s": 4})
    assert broadcast_shapes((b, 1, 8), (s, 1), ()) == (b, s, 8)


def test_what_is_never_one_is_what_it_broadcasts_to():
    """As a ValueError is for numbers above 1, a guard of bind is for the other: 1 or the same."""
    assert broadcast(b, 2 * s) == broadcast(2 * s, b) == 2 * s
    assert broadcast(2 * s, 3 * t + 2) == broadcast(3 * t + 2, 2 * s) in (2 * s, 3 * t + 2)
    assert broadcast(b, s + 2) == s + 2
    for may_be_one in (2 * s + 1, 2 * s + 3 * t, s + 1):
        assert broadcast(b, may_be_one) not in (b, may_be_one)


def test_sizes_within_sizes_are_met_once():
    """Of branches that are joined again and again, each half the size: 2^80 of the first."""

    def joined(x, b):
        y = x
        for _ in range(80):
            x, y = broadcast((x + 1) // 2, y), broadcast(x, floordiv(y + b, 3))
        return x

    x, y = joined(s, b), joined(b, s)
    again = substitute(x, {"t": 5})
    assert again == x and len(str(x)) < 1000 and symbols(x) == {"b", "s"}
    assert str(x) != str(y)
    assert substitute(x, {"s": 1, "b": 1}) == joined(1, 1)
    assert substitute(x, {"s": 0, "b": 3}) == joined(0, 3)


def test_product():
    assert product([]) == 1
    assert product([b, 3, s]) == 3 * b * s


def test_every_operation_can_be_named_in_text():
    assert set(shape.OPERATIONS) == {"floordiv", "min", "max", "broadcast"}
