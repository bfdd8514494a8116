"""chain: programs over every way in which an input can be walked, at the edges of blocks and tasks.

A program must have the bits of its instructions run one by one over whole tensors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.kernels.harness import padded, run_threads
from tests.kernels.harness import rows as kernels

CODES = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7, "bool": 9, "float64": 11}
FIRST = 12  # the number of the first result
SHAPES = [
    (),
    (1,),
    (17,),
    (1023,),
    (1024,),
    (1025,),
    (3, 1),
    (1, 5),
    (2, 3, 7),
    (40, 33),
    (3, 300),
    (3, 1500),
    (2, 1, 3, 1, 4),
    (4, 70, 17),
    (5, 90, 16),
    (70, 1000),
    (0, 4),
]


def operands(shape: tuple[int, ...]) -> list[tuple[np.ndarray, tuple[int, ...]]]:
    """Inputs as (memory, strides in elements): dense, one element, row, column, transposed, every
    second element, one that repeats in the middle."""
    rng = np.random.default_rng(3)
    ndim = max(len(shape), 1)
    full = (1,) * (ndim - len(shape)) + shape
    kept = [full, (1,) * ndim, (1,) * (ndim - 1) + full[-1:], (*full[:-1], 1)]
    kept.append(tuple(1 if i == ndim // 2 else size for i, size in enumerate(full)))
    found = []
    for small in kept:
        memory = rng.standard_normal(small).astype(np.float32)
        steps = np.broadcast_to(memory, full).strides
        found.append((memory, tuple(step // 4 for step in steps)))
    turned = rng.standard_normal(full[::-1]).astype(np.float32)
    found.append((turned, tuple(step // 4 for step in turned.T.strides)))
    wide = rng.standard_normal((*full[:-1], 2 * full[-1])).astype(np.float32)
    found.append((wide, tuple(step // 4 for step in wide[..., ::2].strides)))
    return found


def walked(memory: np.ndarray, strides: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    steps = tuple(memory.itemsize * stride for stride in strides)
    return np.lib.stride_tricks.as_strided(memory, shape or (1,), steps)


def run(
    shape: tuple[int, ...],
    inputs: list[tuple[np.ndarray, tuple[int, ...]]],
    program: list[tuple],
    kernel: Any,
    y: Any = None,
    threads: tuple[int, ...] = (1, 2, 3, 8),
    reduce: Any = -1,
) -> np.ndarray:
    """program: (op, dtype, to, values, alpha, beta) each; every value has a slot of its own."""
    shape = shape or (1,)
    stride = 0 if reduce == -1 else max(1024, shape[-1])
    memory = {f"x{i}": None for i in range(FIRST)}
    memory.update((f"x{i}", array) for i, (array, _) in enumerate(inputs))
    values = [(*p[3], p[3][0], p[3][0])[:3] for p in program]
    dtype = next(name for name, code in CODES.items() if code == program[-1][2])
    return run_threads(
        "chain",
        kernel,
        threads=threads,
        **memory,
        y=np.zeros(shape, dtype) if y is None else y,
        work=max(threads) * 28 * 8192,
        rows=max(threads) * 4 * stride or None,
        ndim=len(shape),
        shape=padded(shape),
        inputs=len(inputs),
        x_bytes=padded([array.itemsize for array, _ in inputs], FIRST),
        x_stride=padded([s for _, strides in inputs for s in strides], 8 * FIRST),
        length=len(program),
        op=padded([p[0] for p in program], 16),
        dtype=padded([p[1] for p in program], 16),
        to=padded([p[2] for p in program], 16),
        a=padded([v[0] for v in values], 16),
        b=padded([v[1] for v in values], 16),
        c=padded([v[2] for v in values], 16),
        alpha=padded([p[4] if len(p) > 4 else 0.0 for p in program], 16),
        beta=padded([p[5] if len(p) > 5 else 0.0 for p in program], 16),
        slot=list(range(28)),
        slots=28,
        slot_bytes=8192,
        reduce=reduce,
        rows_stride=stride,
    )[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_every_walk(kernel, shape):
    """Sums have one rounding per instruction, on every machine: numpy must agree in all bits."""
    inputs = operands(shape)
    program = [("add", 1, 1, (0, 1))]
    program += [("add", 1, 1, (FIRST + i, i + 2)) for i in range(len(inputs) - 2)]
    arrays = [walked(*each, shape) for each in inputs]
    expected = arrays[0]
    for array in arrays[1:]:
        expected = expected + array
    np.testing.assert_array_equal(run(shape, inputs, program, kernel), expected)


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_what_does_not_vary_is_computed_once(kernel, place):
    """Each way to walk is the only input, of a unary op first."""
    for shape in SHAPES:
        given = operands(shape)[place]
        program = [("neg", 1, 1, (0,)), ("abs", 1, 1, (FIRST,)), ("floor", 1, 1, (FIRST + 1,))]
        expected = np.floor(np.abs(walked(*given, shape)))
        np.testing.assert_array_equal(run(shape, [given], program, kernel), expected)


@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_dtypes_meet(kernel):
    """y = where(not (i < j), cast(i mod j), clip(x)), with i and j int64, x float32."""
    rng = np.random.default_rng(5)
    for shape in SHAPES:
        full = shape or (1,)
        i, j = rng.integers(0, 9, full), rng.integers(1, 9, (1,) * (len(full) - 1) + full[-1:])
        x = rng.standard_normal(full).astype(np.float32)
        inputs = [
            (each, tuple(s // each.itemsize for s in np.broadcast_to(each, full).strides))
            for each in (i, j, x)
        ]
        program = [
            ("less", 7, 9, (0, 1)),
            ("not", 9, 9, (FIRST,)),
            ("mod", 7, 7, (0, 1)),
            ("cast", 7, 1, (FIRST + 2,)),
            ("clip", 1, 1, (2,), -0.5, 0.75),
            ("where", 1, 1, (FIRST + 1, FIRST + 3, FIRST + 4)),
        ]
        expected = np.where(i < j, np.clip(x, -0.5, 0.75), (i % j).astype(np.float32))
        np.testing.assert_array_equal(run(shape, inputs, program, kernel), expected)
        bools = run(shape, inputs[:2], program[:2], kernel)
        np.testing.assert_array_equal(bools, ~(i < j))
        doubles = run(shape, inputs[:1], [("cast", 7, 11, (0,)), ("sqrt", 11, 11, (12,))], kernel)
        np.testing.assert_array_equal(doubles, np.sqrt(i.astype(np.float64)))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_bytes_of_one_scale(kernel, dtype):
    """y = quantize(dequantize(a) + dequantize(b)): every rounding is that of float32."""
    rng, code, limits = np.random.default_rng(8), CODES[dtype], np.iinfo(dtype)
    scales = [np.float32(s) for s in (0.02, 0.03, 0.045)]
    zeros = [limits.min + 3, limits.max, limits.min + 90]
    for shape, is_row in itertools.product(SHAPES, (True, False)):  # b
        full = shape or (1,)
        sizes = (full, full[-1:] if is_row else full)
        a, b = (rng.integers(0, 256, s).astype(np.uint8).view(dtype) for s in sizes)
        inputs = [(each, np.broadcast_to(each, full).strides) for each in (a, b)]
        program = [
            ("dequantize", code, 1, (0,), scales[0], zeros[0]),
            ("dequantize", code, 1, (1,), scales[1], zeros[1]),
            ("add", 1, 1, (FIRST, FIRST + 1)),
            ("quantize", 1, code, (FIRST + 2,), scales[2], zeros[2]),
        ]
        real = [(x.astype(np.float32) - z) * s for x, z, s in zip((a, b), zeros, scales)]
        quotient = ((real[0] + real[1]) / scales[2]).astype(np.float64)
        wanted = np.clip(np.rint(quotient) + zeros[2], limits.min, limits.max)
        np.testing.assert_array_equal(run(shape, inputs, program, kernel), wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_functions_of_a_byte(kernel, dtype):
    """y = quantize(abs(dequantize(a)) * b), long enough for a table or not: the same bytes."""
    code, b = CODES[dtype], np.array([1.5], np.float32)
    program = [
        ("dequantize", code, 1, (0,), np.float32(0.03), 90),
        ("abs", 1, 1, (FIRST,)),
        ("mul", 1, 1, (1, FIRST + 1)),
        ("quantize", 1, code, (FIRST + 2,), np.float32(0.02), 7),
    ]
    a = np.random.default_rng(9).integers(0, 256, 40_001).astype(np.uint8).view(dtype)
    parts = [
        run((len(part),), [(part, (1,)), (b, (0,))], program, kernel, threads=(1,))
        for part in np.split(a, range(0, len(a), 500))
    ]
    wanted = np.concatenate(parts)
    np.testing.assert_array_equal(run(a.shape, [(a, (1,)), (b, (0,))], program, kernel), wanted)
    y = run(a.shape, [(a, (1,)), (b, (0,))], program, kernel, y="x0", threads=(1,))
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "sumsq", "l1", "l2", "prod"])
@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_rows_are_reduced_as_reduce_does(kernel, op):
    (plain,) = (row for row in kernels("reduce") if row.isa == kernel.isa)
    for shape in [*SHAPES[1:], (7, 0), (900, 40), (3, 8192)]:
        inputs = operands(shape)[:4]
        program = [("add", 1, 1, (0, 2)), ("mul", 1, 1, (FIRST, 3)), ("sub", 1, 1, (FIRST + 1, 1))]
        x = run(shape, inputs, program, kernel, threads=(1,))
        y = np.zeros(shape[:-1], np.float32)
        sizes = {"outer": y.size, "n": shape[-1], "inner": 1}
        (wanted,) = run_threads("reduce", plain, threads=[1], x=x, y=y, op=op, dtype=1, **sizes)
        got = run(shape, inputs, program, kernel, y=y, reduce=op)
        assert got.tobytes() == wanted.tobytes(), shape


@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_in_place(kernel):
    x = np.random.default_rng(6).standard_normal((50, 300)).astype(np.float32)
    row = np.arange(300, dtype=np.float32)
    inputs = [(x, (300, 1)), (row, (0, 1))]
    program = [("add", 1, 1, (0, 1)), ("mul", 1, 1, (FIRST, 0))]
    y = run((50, 300), inputs, program, kernel, y="x0", threads=(1,))
    np.testing.assert_array_equal(y, (x + row) * x)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("reads_sum", [False, True])
@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_sums_of_bytes_within_a_chain(kernel, dtype, reads_sum):
    """(a + b) + c, quantised after each sum, where the floats of the first are read again or not:
    the bits of one instruction after the other.
    """
    rng, code, shape = np.random.default_rng(10), CODES[dtype], (3, 1500)
    strides, scales = (1500, 1), [np.float32(s) for s in (0.02, 0.03, 0.045, 0.025, 0.06)]
    a, b, c = (rng.integers(0, 256, shape).astype(np.uint8).view(dtype) for _ in range(3))
    zero = {"uint8": 100, "int8": -20}[dtype]
    program = [
        ("dequantize", code, 1, (0,), scales[0], zero),
        ("dequantize", code, 1, (1,), scales[1], zero),
        ("add", 1, 1, (FIRST, FIRST + 1)),
        ("quantize", 1, code, (FIRST + 2,), scales[2], zero),
        ("dequantize", code, 1, (FIRST + 3,), scales[2], zero),
        ("dequantize", code, 1, (2,), scales[3], zero),
        ("add", 1, 1, (FIRST + 5, FIRST + 4)),
        ("quantize", 1, code, (FIRST + 6,), scales[4], zero),
    ]
    if reads_sum:
        program[7:] = [
            ("add", 1, 1, (FIRST + 6, FIRST + 2)),
            ("quantize", 1, code, (FIRST + 7,), scales[4], zero),
        ]

    def real(x: np.ndarray, scale: np.float32) -> np.ndarray:
        return (x.astype(np.float32) - np.float32(zero)) * scale

    def rounded(x: np.ndarray, scale: np.float32) -> np.ndarray:
        whole = np.rint((x / scale).astype(np.float64)) + zero
        return np.clip(whole, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)

    first = real(a, scales[0]) + real(b, scales[1])
    second = real(c, scales[3]) + real(rounded(first, scales[2]), scales[2])
    wanted = rounded(second + first if reads_sum else second, scales[4])
    inputs = [(x, strides) for x in (a, b, c)]
    np.testing.assert_array_equal(run(shape, inputs, program, kernel), wanted)


PAIRED = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
WALKS = [w for w in itertools.product(range(4), repeat=3) if 0 in w] + [
    (1, 2, 3),
    (2, 1, 4),
    (4, 3, 0),
]


@pytest.mark.parametrize("second", PAIRED)
@pytest.mark.parametrize("first", PAIRED)
@pytest.mark.parametrize("kernel", kernels("chain"), ids=lambda k: k.name)
def test_two_in_one_loop(kernel, first, second):
    """Of every walk, a Relu behind it, and where another reads the first result, too."""
    one, two = PAIRED[first], PAIRED[second]
    for shape, clamps in itertools.product([(3, 40), (2, 3, 7), (5, 1100)], (False, True)):
        kinds = operands(shape)
        kinds[0][0].flat[:4] = np.nan, np.inf, -np.inf, -0.0
        for walks, left, turns in zip(WALKS, itertools.cycle((0, 1)), itertools.count()):
            inputs = [kinds[i] for i in walks]
            a, b, c = (walked(*each, shape) for each in inputs)
            operands_of_second = (FIRST, 2) if left else (2, FIRST)
            program = [(first, 1, 1, (0, 1)), (second, 1, 1, operands_of_second)]
            with np.errstate(all="ignore"):
                between = one(a, b)
                wanted = two(between, c) if left else two(c, between)
                if clamps:
                    program.append(("relu", 1, 1, (FIRST + 1,)))
                    wanted = np.maximum(wanted, np.float32(0))
                if turns % 5 == 0:  # the first result is read once more
                    program.append(("sub", 1, 1, (FIRST + len(program) - 1, FIRST)))
                    wanted = wanted - between
                if turns % 7 == 0:  # the second reads it twice
                    program, wanted = program[:1], two(between, between)
                    program.append((second, 1, 1, (FIRST, FIRST)))
            y = run(shape, inputs, program, kernel, threads=(1, 3))
            np.testing.assert_array_equal(y, wanted, err_msg=f"{shape} {walks} {program}")
