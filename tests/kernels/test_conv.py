"""conv and depthwise against a direct sum in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op, tolerance
from tests.kernels.windows import Window, convolve, window

CONSTANTS = load("").target.constants
every_row = pytest.mark.parametrize("row", rows("gemm"), ids=lambda row: row.name)
every_line_row = pytest.mark.parametrize("row", rows("depthwise"), ids=lambda row: row.name)


class Case(NamedTuple):
    """x (N, C, ..), w (M, C / groups, kernel..)."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    at: Window
    groups: int = 1


def pads(
    kernel: tuple, stride: tuple, before: tuple, after: tuple, dilation: tuple = (1, 1)
) -> Any:
    return Window(kernel, stride, dilation, before, after)


CASES = {
    "3x3": Case((2, 3, 9, 11), (5, 3, 3, 3), window((3, 3), pad=1)),
    "patches": Case((1, 3, 32, 48), (20, 3, 16, 16), window((16, 16), stride=16)),
    "1x1": Case((2, 7, 5, 9), (6, 7, 1, 1), window((1, 1))),
    "1x1 many rows": Case((2, 7, 5, 9), (70, 7, 1, 1), window((1, 1))),
    "1x1 strided": Case((1, 4, 6, 7), (3, 4, 1, 1), pads((1, 1), (2, 3), (0, 0), (0, 0))),
    "1x1 cropped": Case((1, 4, 6, 7), (3, 4, 1, 1), pads((1, 1), (1, 1), (0, 0), (-1, -2))),
    "1x1 padded": Case((1, 4, 3, 3), (3, 4, 1, 1), pads((1, 1), (1, 1), (1, 2), (0, 1))),
    "groups": Case((2, 6, 7, 8), (9, 2, 3, 2), pads((3, 2), (2, 1), (1, 0), (2, 1)), 3),
    "one channel each": Case((2, 5, 8, 8), (5, 1, 3, 3), window((3, 3), pad=1), 5),
    "dilated": Case((1, 2, 13, 12), (4, 2, 3, 3), pads((3, 3), (2, 3), (2, 3), (1, 0), (2, 3))),
    "1-D": Case((2, 4, 50), (30, 4, 5), window((5,), stride=2, pad=3)),
    "3-D": Case((2, 3, 4, 5, 6), (5, 3, 3, 2, 3), window((3, 2, 3), pad=1)),
    "3-D strided": Case((1, 4, 7, 6, 5), (4, 2, 2, 3, 1), window((2, 3, 1), stride=2), 2),
    "3-D 1x1": Case((2, 3, 4, 5, 6), (5, 3, 1, 1, 1), window((1, 1, 1))),
    "padding alone": Case((1, 1, 1, 1), (1, 1, 3, 3), window((3, 3), pad=4)),
    "narrow lines": Case((1, 3, 40, 1), (3, 3, 3, 1), pads((3, 1), (1, 1), (1, 0), (1, 0))),
    "long k": Case((1, 50, 6, 6), (3, 50, 3, 3), window((3, 3))),
    "many rows": Case((1, 8, 4, 4), (600, 8, 3, 3), window((3, 3), pad=1)),
    "many panels": Case((1, 2, 40, 41), (3, 2, 3, 3), window((3, 3), pad=1)),
}
DEPTHWISE = {
    "3x3": Case((2, 5, 8, 9), (5, 1, 3, 3), window((3, 3), pad=1), 5),
    "repeat": Case((2, 3, 21, 40), (9, 1, 3, 3), window((3, 3), pad=1), 3),
    "strides": Case((1, 3, 37, 19), (3, 1, 3, 4), pads((3, 4), (2, 3), (1, 2), (0, 1)), 3),
    "stride 2": Case((1, 3, 36, 70), (3, 1, 3, 3), window((3, 3), stride=2, pad=1), 3),
    "dilated": Case((1, 2, 30, 20), (2, 1, 3, 3), pads((3, 3), (1, 2), (2, 5), (2, 3), (2, 5)), 2),
    "cropped": Case((1, 2, 9, 9), (2, 1, 2, 2), pads((2, 2), (1, 1), (-1, -2), (0, -1)), 2),
    "padding alone": Case((1, 2, 1, 1), (2, 1, 2, 2), window((2, 2), pad=3), 2),
    "1-D": Case((2, 4, 50), (4, 1, 4), window((4,), pad=3), 4),
    "one plane": Case((3, 1, 17, 33), (1, 1, 5, 5), window((5, 5), pad=2)),
}
NOTHING = Case((0, 3, 4, 4), (3, 1, 3, 3), window((3, 3)), 3)


def run(
    row: KernelRow,
    case: Case,
    threads: int = 1,
    act: str = "none",
    residual_first: int = 0,
    **more: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result, the sum that is expected before bias and act, and that of magnitudes."""
    rng = np.random.default_rng([*case.x, *case.w])
    x = rng.standard_normal(case.x).astype(np.float32)
    w = rng.standard_normal(case.w).astype(np.float32)
    expected = convolve(x.astype(np.float64), w.astype(np.float64), case.at, case.groups)
    size = convolve(np.abs(x), np.abs(w), case.at, case.groups)
    y = np.full(expected.shape, np.nan, np.float32)
    common = {"x": x, "w": w, "y": y, "bias": None, "residual": None, **more}
    common.update(N=case.x[0], C=case.x[1], act=act, act_alpha=0.0, act_beta=0.0)
    common["residual_first"] = residual_first
    if row.family == "gemm":
        op, fields = "conv", conv_fields(row, case, threads, y.shape[2:])
    else:
        op, fields = "depthwise", line_fields(case, threads, y.shape[2:])
    return run_op(op, row, threads, **fields, **common)["y"], expected, size


def conv_fields(row: KernelRow, case: Case, threads: int, outs: tuple) -> dict[str, Any]:
    panels = -(-int(np.prod(outs)) // row.nr)
    k = min(int(np.prod(case.w[1:])), CONSTANTS["CONV_K_BLOCK"])
    fields = case.at.fields(case.x[2:], outs, 3)
    fields.update(M=case.w[0], groups=case.groups)
    fields["pack"] = threads * min(panels, CONSTANTS["CONV_PANELS"]) * k * row.nr * 4
    return fields


def line_fields(case: Case, threads: int, outs: tuple) -> dict[str, Any]:
    at = case.at.fields(case.x[2:], outs, 2)
    part = -(-at["OW"] // 16) * 16 + (at["kw"] - 1) * at["dilation_w"] // at["stride_w"]
    lines = (min(at["OH"], CONSTANTS["DEPTHWISE_LINES"]) - 1) * at["stride_h"]
    lines += (at["kh"] - 1) * at["dilation_h"] + 1
    size, taps = threads * lines * at["stride_w"] * part * 4, at["kh"] * at["kw"] * 8
    return {**at, "lines": size, "taps": taps, "repeat": case.w[0] // case.x[1]}


def check(row: KernelRow, case: Case) -> None:
    k = int(np.prod(case.w[1:]))
    y, expected, size = run(row, case)
    assert (np.abs(y - expected) <= tolerance(k, size)).all()
    bias = np.linspace(-1, 1, case.w[0], dtype=np.float32)
    y, expected, size = run(row, case, act="relu", bias=bias)
    expected = np.maximum(expected + bias.reshape(-1, *[1] * len(case.x[2:])), 0)
    assert (np.abs(y - expected) <= tolerance(k, size + 1)).all()


@every_row
@pytest.mark.parametrize("name", CASES)
def test_against_direct_sum(row: KernelRow, name: str) -> None:
    check(row, CASES[name])


@every_line_row
@pytest.mark.parametrize("name", DEPTHWISE)
def test_lines_against_direct_sum(row: KernelRow, name: str) -> None:
    check(row, DEPTHWISE[name])


def check_residual(row: KernelRow, case: Case) -> None:
    k = int(np.prod(case.w[1:]))
    plain, expected, size = run(row, case)
    residual = np.linspace(-3, 3, plain.size, dtype=np.float32).reshape(plain.shape)
    for first in (0, 1):
        y, _, _ = run(row, case, act="relu", residual=residual, residual_first=first)
        wanted = np.maximum(expected + residual * first, 0) + residual * (1 - first)
        assert (np.abs(y - wanted) <= tolerance(k, size + 6)).all()


@every_row
@pytest.mark.parametrize("name", ["3x3", "groups", "1x1", "long k", "patches", "many panels"])
def test_residual_before_and_after_the_activation(row: KernelRow, name: str) -> None:
    check_residual(row, CASES[name])


@every_line_row
@pytest.mark.parametrize("name", ["repeat", "stride 2"])
def test_residual_of_lines(row: KernelRow, name: str) -> None:
    check_residual(row, DEPTHWISE[name])


def check_threads(row: KernelRow, case: Case) -> None:
    y = run(row, case)[0]
    for threads in (2, 3, 8):
        assert run(row, case, threads)[0].tobytes() == y.tobytes()


@every_row
@pytest.mark.parametrize("name", ["many rows", "patches", "1x1", "many panels", "3-D"])
def test_bits_do_not_depend_on_threads(row: KernelRow, name: str) -> None:
    check_threads(row, CASES[name])


@every_line_row
def test_bits_of_lines_do_not_depend_on_threads(row: KernelRow) -> None:
    check_threads(row, DEPTHWISE["repeat"])


@pytest.mark.parametrize("family", ["gemm", "depthwise"])
def test_nothing_to_do(family: str) -> None:
    for row in rows(family):
        assert run(row, NOTHING)[0].shape == (0, 3, 2, 2)
