"""Fits the polynomials of csrc/kernels/math.h and prints them as C.

Each is a minimax fit of a weighted error, |weight * (p - f)|, in float64: the largest error is
found on a dense grid and equalised by reweighting (Lawson's algorithm). Coefficients are then
rounded to float32 one at a time, from the constant term up, each followed by a refit of the rest.
Errors with float32 arithmetic are measured by tests/kernels/test_ulp.py.

Usage: python bench fit_math        (needs numpy and mpmath)
"""

from __future__ import annotations

import argparse
from typing import Callable

import mpmath
import numpy as np

GRID = 1200


def fit(
    f: Callable,
    weight: Callable,
    low: float,
    high: float,
    powers: list[int],
    exact: dict[int, float],
) -> np.ndarray:
    """Float32 coefficients of sum(c_i x^powers[i]) closest to f; those of `exact` are given."""
    x = (low + high) / 2 - (high - low) / 2 * np.cos(np.pi * (np.arange(GRID) + 0.5) / GRID)
    y = np.array([float(f(mpmath.mpf(v))) for v in x])
    w = np.array([float(weight(mpmath.mpf(v))) for v in x])
    known = {p: float(np.float32(c)) for p, c in exact.items()}
    for power in powers:
        if power in known:
            continue
        rest = [p for p in powers if p not in known]
        target = y - sum(c * x**p for p, c in known.items())
        known[power] = float(np.float32(lawson(x, target, w, rest)[0]))
    error = np.abs(w * (sum(c * x**p for p, c in known.items()) - y)).max()
    print(f"    largest weighted error {error:.2e}, in units of 2^-24: {error * 2**24:.3f}")
    return np.array([known[p] for p in powers])


def lawson(x: np.ndarray, y: np.ndarray, w: np.ndarray, powers: list[int]) -> np.ndarray:
    scale = np.abs(x).max()
    basis = (x[:, None] / scale) ** np.array(powers)
    importance = np.ones_like(x)
    best, best_error = np.zeros(len(powers)), np.inf
    for _ in range(200):
        root = np.sqrt(importance) * w
        c = np.linalg.lstsq(basis * root[:, None], y * root, rcond=None)[0]
        error = np.abs(w * (basis @ c - y))
        if error.max() < best_error:
            best, best_error = c, error.max()
        importance = importance * (error + 1e-300)
        importance /= importance.max()
        importance = np.maximum(importance, 1e-12)
    return best / scale ** np.array(powers, dtype=float)


def fit_ratio(
    f: Callable, weight: Callable, high: float, degree: int
) -> tuple[np.ndarray, np.ndarray]:
    """Float32 coefficients of p and q, both 1 at 0, with p(x) / q(x) closest to f in [0, high]: the
    linear fit of p - f q, divided by the last q (Sanathanan and Koerner), and reweighted as above.
    """
    x = high * np.sin(np.pi / 2 * (np.arange(GRID) + 0.5) / GRID) ** 2
    y = np.array([float(f(mpmath.mpf(v))) for v in x])
    w = np.array([float(weight(mpmath.mpf(v))) for v in x])
    basis = (x[:, None] / high) ** np.arange(degree + 1)
    columns = np.concatenate([basis, -y[:, None] * basis], 1)  # of p - f q
    places = [side + power for power in range(1, degree + 1) for side in (0, degree + 1)]
    scales = high ** np.tile(np.arange(degree + 1.0), 2)
    known = np.full(2 * (degree + 1), np.nan)
    known[[0, degree + 1]] = 1
    for place in places:
        given = ~np.isnan(known)
        target = -columns[:, given] @ known[given]
        last, importance = np.ones_like(x), np.ones_like(x)
        best, best_error = known, np.inf
        for _ in range(300):
            found, root = known.copy(), np.sqrt(importance) * w / last
            rows = columns[:, ~given] * root[:, None]
            found[~given] = np.linalg.lstsq(rows, target * root, rcond=None)[0]
            last = basis @ found[degree + 1 :]
            error = np.abs(w * (basis @ found[: degree + 1] / last - y))
            if error.max() < best_error and last.min() > 0:
                best, best_error = found, error.max()
            importance = np.maximum(importance * np.sqrt(error), 1e-10)
            importance /= importance.max()
        known[place] = float(np.float32(best[place] / scales[place])) * scales[place]
    p, q = np.split(known, 2)
    error = np.abs(w * (basis @ p / (basis @ q) - y)).max()
    print(f"    largest weighted error {error:.2e}, in units of 2^-24: {error * 2**24:.3f}")
    return tuple(np.split((known / scales).astype(np.float32), 2))


def pieces(f: Callable, width: float, degree: int) -> np.ndarray:
    """Coefficients (degree + 1, 16) of f(t) in t / width - i, for t around i * width; the last
    piece is 0.
    """
    found = np.zeros((degree + 1, 16))
    for i in range(15):

        def piece(u: mpmath.mpf, i: int = i) -> mpmath.mpf:
            return f((i + u) * width)

        def weight(u: mpmath.mpf, i: int = i) -> mpmath.mpf:
            return 1 / f((i + u) * width)

        low = -0.5 if i else 0.0
        found[:, i] = fit(piece, weight, low, 0.5, list(range(degree + 1)), {})
    return found


def literal(value: float) -> str:
    """The C literal of a float32."""
    mantissa, exponent = float(value).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}f"


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    mpmath.mp.dps = 30
    ln2 = mpmath.log(2)
    half = float(ln2) / 2 * 1.0001

    def erf_rest(s):  # erf(x) / x - 1 at x = sqrt(s)
        x = mpmath.sqrt(s)
        return mpmath.erf(x) / x - 1

    def log2_erfc(x):
        return mpmath.log(mpmath.erfc(x)) / ln2

    def erfc_weight(x):
        return ln2 * mpmath.erfc(x) / mpmath.erf(x)

    def tail(t):  # Phi(-t)
        return mpmath.erfc(t / mpmath.sqrt(2)) / 2

    def log_tail(t):  # log2(2 Phi(-t))
        return mpmath.log(2 * tail(t)) / ln2

    def tail_weight(t):  # full relative accuracy for gelu(t), a 12th of it for gelu(-t) up to 5
        beyond = 2.2 * max(0, min(t, 6.5) - 5) + max(0, t - 6.5)
        return (tail(t) / (1 - tail(t)) if t < 5 else 0) + 10**-beyond / 12

    def tanh_part(s):  # tanh(x) / x at x = sqrt(s)
        x = mpmath.sqrt(s)
        return mpmath.tanh(x) / x

    def log_rest(x):  # (log(1 + x) - x + x^2 / 2) / x^3
        return (mpmath.log1p(x) - x + x * x / 2) / x**3

    def sin_rest(s):  # (sin(x) / x - 1) / x^2 at x = sqrt(s)
        x = mpmath.sqrt(s)
        return (mpmath.sin(x) / x - 1) / s

    def cos_rest(s):  # (cos(x) - 1 + x^2 / 2) / x^4 at x = sqrt(s)
        return (mpmath.cos(mpmath.sqrt(s)) - 1 + s / 2) / s**2

    def asin_rest(s):  # (asin(x) / x - 1) / x^2 at x = sqrt(s)
        x = mpmath.sqrt(s)
        return (mpmath.asin(x) / x - 1) / s

    def atan_rest(s):  # (atan(x) / x - 1) / x^2 at x = sqrt(s)
        x = mpmath.sqrt(s)
        return (mpmath.atan(x) / x - 1) / s

    def tanh_tail(t):  # (1 - tanh(u)) / 2 of gelu_tanh
        u = mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf("0.044715") * t**3)
        return 1 / (1 + mpmath.exp(2 * u))

    quarter = float(mpmath.pi / 4) ** 2 * 1.001
    for name, f, weight, low, high, powers, exact in (
        (
            "exp",
            mpmath.exp,
            lambda x: mpmath.exp(-x),
            -half,
            half,
            list(range(7)),
            {0: 1.0, 1: 1.0},
        ),
        (
            "erf, |x| <= 1, in x^2",
            erf_rest,
            lambda s: 1 / (1 + erf_rest(s)),
            0.0,
            1.0,
            list(range(7)),
            {},
        ),
        ("erf, |x| > 1, in |x|", log2_erfc, erfc_weight, 1.0, 3.93, list(range(6)), {}),
        ("gelu, in |x|", log_tail, tail_weight, 0.0, 10.0, list(range(1, 11)), {}),
        (
            "half of 2^x",
            lambda x: 2 ** (x - 1),
            lambda x: 2**-x,
            -0.5,
            0.5,
            list(range(7)),
            {0: 0.5},
        ),
        ("log", log_rest, lambda x: x * x, 2**-0.5 - 1, 2**0.5 - 1, list(range(8)), {}),
        ("sin, in x^2", sin_rest, lambda s: s, 0.0, quarter, list(range(3)), {}),
        ("asin, in x^2", asin_rest, lambda s: s, 0.0, 0.25, list(range(5)), {}),
        ("atan, in x^2", atan_rest, lambda s: s, 0.0, (2**0.5 - 1) ** 2, list(range(5)), {}),
        ("cos, in x^2", cos_rest, lambda s: s * s, 0.0, quarter, list(range(3)), {}),
    ):
        print(name)
        print("    " + ", ".join(literal(v) for v in fit(f, weight, low, high, powers, exact)))
    print("tanh, in x^2, of p / q")
    for row in fit_ratio(tanh_part, lambda s: 1 / tanh_part(s), 8.7**2, 4):
        print("    " + ", ".join(map(literal, row)))
    for name, f, width in (("gelu", tail, 0.4375), ("gelu_tanh", tanh_tail, 0.4)):
        print(f"{name} in pieces of {width}, of |x|: 1, u, u^2 ..")
        for row in pieces(f, width, 6):
            print("    {" + ", ".join(map(literal, row)) + "},")


if __name__ == "__main__":
    main()
