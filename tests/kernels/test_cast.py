"""cast between all dtypes against numpy, and the values where C leaves the result open."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from q7x2_ep import dtypes
from q7x2_ep.ops.common import CASTS
from tests.kernels.harness import rows
from tests.kernels.harness import run_threads as run_op

CODES = {row.name: row.code for row in dtypes.DTYPES.values() if row.code in CASTS}


HALVES = {"float16": 0x7C00, "bfloat16": 0x7F80}  # the bits of infinity
INTEGERS = [name for name in CODES if "int" in name]


def cast(x: np.ndarray, to: str, threads=(1, 2, 3, 8)) -> np.ndarray:
    """By every kernel, all of which have to agree."""
    given = {"from": CODES[x.dtype.name], "to": CODES[to], "n": x.size}
    given |= {"x": x, "y": np.zeros(x.shape, dtypes.DTYPES[CODES[to]].numpy)}
    first, *others = (run_op("cast", row, threads=threads, **given)[0] for row in rows("cast"))
    for other in others:
        assert other.tobytes() == first.tobytes()
    return first


@pytest.mark.parametrize("source, to", list(itertools.product(CODES, CODES)))
def test_all_pairs(source, to):
    rng = np.random.default_rng(10)
    for n in (0, 1, 17, 70_000):
        low = 0 if "u" in source + to or source == "bool" else -128
        x = rng.integers(low, 128, n)
        values = x + (rng.integers(0, 4, n) / 4 if "float" in source and low < 0 else 0)
        given = values.astype(dtypes.DTYPES[CODES[source]].numpy)
        np.testing.assert_array_equal(cast(given, to), given.astype(to))


def test_integers_wrap():
    x = np.array([2**31, -(2**31) - 1, 2**40 + 5, -1, 300, 128], np.int64)
    for source, to in itertools.product(INTEGERS, INTEGERS):
        given = x.astype(source)
        np.testing.assert_array_equal(cast(given, to), given.astype(to))


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_out_of_range(source):
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -2.9, 0.5], source)
    np.testing.assert_array_equal(cast(x, "int64"), [-(2**63)] * 5 + [-2, 0])
    np.testing.assert_array_equal(cast(x, "int32"), [-(2**31)] * 5 + [-2, 0])
    np.testing.assert_array_equal(cast(x, "bool"), [1, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(
        cast(np.array([300, -1, 2**31, -(2**31)], source), "int32")[:2], [300, -1]
    )
    np.testing.assert_array_equal(cast(np.array([300, 256, -1], source), "uint8"), [44, 0, 255])
    np.testing.assert_array_equal(cast(np.array([70000, 3e9, -3e9], source), "int16"), [4464, 0, 0])
    np.testing.assert_array_equal(
        cast(np.array([2147483520, -2147483648], source), "int32"), [2147483520, -(2**31)]
    )


def test_floats_beyond_int64():
    x = np.array([2.0**63, 2.0**64 - 2048, 2.0**64, -1.0, -(2.0**63), np.nan])
    wanted = [2**63, 2**64 - 2048, 0, 2**64 - 1, 2**63, 2**63]
    np.testing.assert_array_equal(cast(x, "uint64"), np.array(wanted, np.uint64))


def test_every_float16():
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    for to in ("float32", "float64"):
        np.testing.assert_array_equal(cast(x, to), x.astype(to))
        back = cast(x.astype(to), "float16")
        np.testing.assert_array_equal(back, x)
        assert (np.signbit(back) == np.signbit(x)).all()


def test_every_bfloat16():
    x = np.arange(65536, dtype=np.uint16).view("bfloat16")
    number = (x.view(np.uint16) & 0x7FFF) <= HALVES["bfloat16"]
    for to in ("float32", "float64"):
        wide = cast(x, to)
        with np.errstate(invalid="ignore"):  # signalling NaN
            np.testing.assert_array_equal(wide, x.astype(to))
        back = cast(wide, "bfloat16")
        assert np.isnan(back[~number]).all()
        np.testing.assert_array_equal(back[number].view(np.uint16), x[number].view(np.uint16))


@pytest.mark.parametrize("source", ["float32", "float64", "int64", "uint64"])
@pytest.mark.parametrize("half", HALVES)
def test_rounding_to_halves(half, source):
    """To nearest, and to even from halfway, once: of what is near to halfway too."""
    bits = np.arange(0, HALVES[half], dtype=np.uint16)
    numbers = bits.view(half).astype(np.float64)
    ties = (numbers[1:] + numbers[:-1]) / 2
    even = np.where(bits[:-1] % 2 == 0, numbers[:-1], numbers[1:])
    cases = [(ties, even)]
    for relative in (2**-20, 2**-40):
        cases += [(ties * (1 + relative), numbers[1:]), (ties * (1 - relative), numbers[:-1])]
    x, wanted = (np.concatenate(column) for column in zip(*cases))
    if source.endswith("int64"):
        whole = (x == np.rint(x)) & (x < 2**62)
        x, wanted = x[whole], wanted[whole]
    else:
        top = (numbers[-1] - numbers[-2]) / 2 + numbers[-1]  # halfway to what infinity stands for
        x = np.concatenate([x, [top * (1 - 2**-20), top, 2 * top, 0.0, 1e-300]])
        wanted = np.concatenate([wanted, [numbers[-1], np.inf, np.inf, 0.0, 0.0]])
    with np.errstate(over="ignore"):
        given = x.astype(source)
    same = given.astype(np.float64) == x  # float32 may not hold it
    for sign in (1, -1) if source != "uint64" else (1,):
        rounded = cast(np.ascontiguousarray(given[same] * given.dtype.type(sign)), half)
        np.testing.assert_array_equal(rounded.astype(np.float64), sign * wanted[same])


def test_large_integers_round_once():
    tie = 2**62 + 2**54  # halfway between two bfloat16, and 2^62 + 1 is no double
    x = np.array([tie, tie + 1, tie - 1, -tie, -tie - 1, -tie + 1], np.int64)
    step = float(2**55)
    wanted = np.array([0, step, 0, 0, step, 0]) + 2.0**62
    wanted[3:] *= -1
    np.testing.assert_array_equal(cast(x, "bfloat16").astype(np.float64), wanted)
