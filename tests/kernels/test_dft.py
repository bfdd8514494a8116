"""dft against numpy in float64: lengths of all factors, lines and columns, one side, windows."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_threads

EPS = np.finfo(np.float32).eps
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 16, 22, 30, 49, 64, 127, 128, 200, 243, 254, 400, 1024)
SHAPES = ((1, 1), (1, 19), (2, 16), (3, 33))  # batch, lines
every_row = pytest.mark.parametrize("row", rows("dft"), ids=lambda row: row.name)


def transformed(
    row: KernelRow,
    x: np.ndarray,
    n: int,
    inverse: bool = False,
    onesided: bool = False,
    columns: bool = False,
    window: Optional[np.ndarray] = None,
) -> np.ndarray:
    """The transforms of lines of x (batch, lines, size), complex or not. columns: lines are side by
    side in memory.
    """
    joins = inverse and onesided
    bins = n // 2 + 1 if onesided and not inverse else n
    batch, lines, size = x.shape
    parts = np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x[..., None]
    shape = (batch, lines, bins, 1 if joins else 2)
    if columns:
        parts, shape = parts.swapaxes(1, 2), (batch, bins, lines, shape[3])
    given = np.ascontiguousarray(parts, np.float32)
    y = run(
        row,
        given,
        shape,
        window=window,
        batch=batch,
        lines=lines,
        n=n,
        x_count=min(size, n // 2 + 1 if joins else n),
        y_count=bins,
        x_parts=given.shape[3],
        y_parts=shape[3],
        inverse=int(inverse),
        **strides("x", given.shape, columns),
        **strides("y", shape, columns),
    )
    y = y.swapaxes(1, 2) if columns else y
    return y[..., 0] if joins else y[..., 0] + 1j * y[..., 1]


def run(row: KernelRow, x: np.ndarray, shape: tuple[int, ...], n: int, **fields: Any) -> np.ndarray:
    (y,) = run_threads(
        "dft",
        row,
        threads=(1, 3),
        x=x,
        y=np.full(shape, np.nan, np.float32),
        turns=8 * n,
        work=3 * 24 * n * row.nr,
        n=n,
        **fields,
    )
    return y


def strides(name: str, shape: tuple[int, ...], columns: bool) -> dict[str, int]:
    _, outer, inner, parts = shape
    step, line = (inner * parts, parts) if columns else (parts, inner * parts)
    return {
        f"{name}_batch_stride": outer * inner * parts,
        f"{name}_line_stride": line,
        f"{name}_stride": step,
    }


def lines(shape: tuple[int, int], size: int, is_complex: bool) -> np.ndarray:
    rng = np.random.default_rng((*shape, size))
    x = rng.standard_normal((*shape, size, 2)).astype(np.float32).astype(np.float64)
    return x[..., 0] + 1j * x[..., 1] if is_complex else x[..., 0]


def check(y: np.ndarray, wanted: np.ndarray) -> None:
    """A pass rounds by some eps of what it adds up: of the norm of a line, evenly."""
    scale = np.sqrt(np.mean(np.abs(wanted) ** 2, -1, keepdims=True))
    n = wanted.shape[-1]
    assert (np.abs(y - wanted) <= (4 + np.log2(n + 1)) * EPS * scale).all()


@every_row
@pytest.mark.parametrize("n", LENGTHS)
def test_against_numpy(row: KernelRow, n: int) -> None:
    for shape in SHAPES if n < 100 else SHAPES[1:2]:
        real, number = lines(shape, n, False), lines(shape, n, True)
        sides = np.fft.rfft(real)
        for columns in (False, True):
            for x in (real, number):
                check(transformed(row, x, n, columns=columns), np.fft.fft(x))
                check(transformed(row, x, n, inverse=True, columns=columns), np.fft.ifft(x))
            check(transformed(row, real, n, onesided=True, columns=columns), sides)
            y = transformed(row, sides, n, inverse=True, onesided=True, columns=columns)
            check(y, real)


@every_row
@pytest.mark.parametrize("n", [1, 2, 5, 8, 12])
@pytest.mark.parametrize("size", [1, 4, 7, 20])
def test_cut_and_filled(row: KernelRow, n: int, size: int) -> None:
    shape = (2, 18)
    real, number = lines(shape, size, False), lines(shape, size, True)
    for columns in (False, True):
        for x in (real, number):
            check(transformed(row, x, n, columns=columns), np.fft.fft(x, n))
        check(transformed(row, real, n, onesided=True, columns=columns), np.fft.rfft(real, n))
        y = transformed(row, number, n, inverse=True, onesided=True, columns=columns)
        check(y, np.fft.irfft(number, n))


@every_row
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("n", [1, 6, 15, 40])
def test_window(row: KernelRow, is_complex: bool, n: int) -> None:
    x = lines((2, 21), n, is_complex)
    window = np.hanning(n + 2)[1:-1].astype(np.float32)
    y = transformed(row, x, n, window=window)
    check(y, np.fft.fft(x * window.astype(np.float64)))


@every_row
def test_frames_overlap(row: KernelRow) -> None:
    """Lines that begin within others."""
    n, step, count = 16, 5, 20
    x = lines((1, 1), n + step * (count - 1), False)[0, 0]
    y = run(
        row,
        x.astype(np.float32),
        (count, 9, 2),
        window=None,
        batch=1,
        lines=count,
        n=n,
        x_count=n,
        y_count=9,
        x_parts=1,
        y_parts=2,
        x_batch_stride=x.size,
        x_line_stride=step,
        x_stride=1,
        y_batch_stride=count * 18,
        y_line_stride=18,
        y_stride=2,
        inverse=0,
    )
    frames = np.lib.stride_tricks.sliding_window_view(x, n)[::step]
    check(y[..., 0] + 1j * y[..., 1], np.fft.rfft(frames))
