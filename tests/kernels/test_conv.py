"""Every kernel of convolutions against a direct sum in float64."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.backend.cpu.pack import pack
from q7x2_ep.backend.cpu.room import aligned
from q7x2_ep.backend.memory import _pages
from q7x2_ep.dtypes import FLOAT
from q7x2_ep.files import map_file
from q7x2_ep.ir.core import Value
from q7x2_ep.ops.conv import paired_weights
from q7x2_ep.ops.winograd import parts_of, tiled_axes, turned, winograd_room, winograd_rows
from q7x2_ep.plan.parts import WinogradPack
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import remembered, rows, run_op, tolerance
from tests.kernels.windows import Window, convolve, window

CONSTANTS = load("").target.constants
every_op = pytest.mark.parametrize("op", ["conv", "conv_last"])
PRODUCTS = [row for row in rows("gemm") if not row.multiplies_floats_in_tiles]
every_row = pytest.mark.parametrize("row", PRODUCTS, ids=lambda row: row.name)
every_line_row = pytest.mark.parametrize("row", rows("depthwise"), ids=lambda row: row.name)
every_direct_row = pytest.mark.parametrize("row", rows("conv_direct"), ids=lambda row: row.name)
every_winograd_row = pytest.mark.parametrize("row", rows("winograd"), ids=lambda row: row.name)
every_plane_row = pytest.mark.parametrize("row", rows("conv_planes"), ids=lambda row: row.name)
every_order = pytest.mark.parametrize("order", ["channels last", "planes"])
GAP = 3  # floats between the pixels of the images of conv_last and depthwise


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
    "far": Case((2, 50, 9, 30), (9, 50, 3, 3), pads((3, 3), (1, 1), (6, 7), (6, 7), (6, 7))),
    "far lines": Case((2, 50, 9, 8), (9, 50, 3, 3), pads((3, 3), (1, 2), (7, 1), (7, 0), (7, 1))),
    "out of reach": Case((1, 40, 9, 7), (9, 40, 3, 3), window((3, 3), dilation=11, pad=11)),
}
DEPTHWISE = {
    "3x3": Case((2, 5, 8, 9), (5, 1, 3, 3), window((3, 3), pad=1), 5),
    "many channels": Case((1, 165, 5, 12), (165, 1, 3, 3), window((3, 3), pad=1), 165),
    "strides": Case((1, 3, 37, 19), (3, 1, 3, 4), pads((3, 4), (2, 3), (1, 2), (0, 1)), 3),
    "stride 2": Case((1, 33, 36, 70), (33, 1, 3, 3), window((3, 3), stride=2, pad=1), 33),
    "dilated": Case((1, 2, 30, 20), (2, 1, 3, 3), pads((3, 3), (1, 2), (2, 5), (2, 3), (2, 5)), 2),
    "cropped": Case((1, 2, 9, 9), (2, 1, 2, 2), pads((2, 2), (1, 1), (-1, -2), (0, -1)), 2),
    "padding alone": Case((1, 2, 1, 1), (2, 1, 2, 2), window((2, 2), pad=3), 2),
    "1-D": Case((2, 4, 50), (4, 1, 4), window((4,), pad=3), 4),
    "3-D": Case((2, 18, 4, 5, 6), (18, 1, 3, 2, 3), window((3, 2, 3), pad=1), 18),
    "5x5": Case((1, 18, 7, 31), (18, 1, 5, 5), window((5, 5), pad=2), 18),
    "5x5 of stride 2": Case((1, 5, 9, 32), (5, 1, 5, 5), window((5, 5), stride=2, pad=2), 5),
    "7x7": Case((2, 18, 9, 29), (18, 1, 7, 7), window((7, 7), pad=3), 18),
    "7x7 of stride 2": Case((1, 18, 7, 31), (18, 1, 7, 7), window((7, 7), stride=2, pad=3), 18),
    "7x7 of few pixels": Case((1, 33, 2, 3), (33, 1, 7, 7), window((7, 7), pad=3), 33),
    "7x7, large": Case((1, 72, 62, 60), (72, 1, 7, 7), window((7, 7), pad=3), 72),
    "9x9": Case((1, 18, 7, 23), (18, 1, 9, 9), window((9, 9), pad=4), 18),
    "long lines": Case((1, 18, 5, 59), (18, 1, 5, 5), window((5, 5), pad=2), 18),
    "long lines of stride 2": Case(
        (1, 18, 7, 61), (18, 1, 3, 3), window((3, 3), stride=2, pad=1), 18
    ),
    "1x11": Case((1, 18, 4, 27), (18, 1, 1, 11), pads((1, 11), (1, 1), (0, 5), (0, 5)), 18),
    "large": Case((1, 72, 62, 60), (72, 1, 3, 3), window((3, 3), pad=1), 72),
    "large, many channels": Case((1, 390, 30, 29), (390, 1, 3, 3), window((3, 3), pad=1), 390),
    "one plane": Case((3, 1, 17, 33), (1, 1, 5, 5), window((5, 5), pad=2)),
}
NARROW = {  # groups of several channels, and as many filters
    "pairs": Case((2, 22, 9, 31), (22, 2, 3, 3), window((3, 3), pad=1), 11),
    "fours": Case((1, 36, 13, 29), (36, 4, 3, 3), window((3, 3), pad=1), 9),
    "fours of stride 2": Case(
        (1, 132, 11, 60), (132, 4, 3, 3), window((3, 3), stride=2, pad=1), 33
    ),
    "eights": Case((2, 40, 7, 17), (40, 8, 3, 3), window((3, 3), pad=1), 5),
    "large": Case((1, 72, 62, 60), (72, 2, 3, 3), window((3, 3), pad=1), 36),
    "5x5": Case((1, 20, 9, 12), (20, 4, 5, 5), window((5, 5), pad=2), 5),
    "1x1": Case((2, 20, 5, 6), (20, 4, 1, 1), window((1, 1)), 5),
    "dilated": Case((1, 8, 13, 12), (8, 4, 3, 3), pads((3, 3), (2, 1), (2, 3), (1, 0), (2, 3)), 2),
    "3-D": Case((2, 18, 4, 5, 6), (18, 2, 3, 2, 3), window((3, 2, 3), pad=1), 9),
    "few": Case((1, 4, 5, 6), (4, 2, 3, 3), window((3, 3), pad=1), 2),
}
PLANES = {  # few channels and filters to a group
    "3x3": Case((2, 3, 9, 41), (3, 3, 3, 3), window((3, 3), pad=1)),
    "one plane": Case((3, 1, 17, 33), (1, 1, 5, 5), window((5, 5), pad=2)),
    "one channel each": Case((2, 5, 8, 150), (5, 1, 3, 3), window((3, 3), pad=1), 5),
    "groups": Case((2, 6, 7, 8), (9, 2, 3, 2), pads((3, 2), (2, 1), (1, 0), (2, 1)), 3),
    "many filters": Case((1, 2, 9, 23), (7, 2, 3, 3), window((3, 3), pad=1)),
    "a signal": Case((2, 1, 1700), (1, 1, 28), window((28,), stride=2, pad=14)),
    "a signal of three": Case((1, 3, 1100), (2, 3, 23), window((23,), stride=3, pad=11)),
    "a long kernel": Case((1, 1, 700), (1, 1, 401), window((401,), pad=200)),
    "dilated": Case((1, 2, 30, 40), (4, 2, 3, 3), pads((3, 3), (1, 2), (2, 5), (2, 3), (2, 5))),
    "strides": Case((1, 3, 37, 19), (3, 1, 3, 4), pads((3, 4), (2, 3), (1, 2), (0, 1)), 3),
    "cropped": Case((1, 2, 9, 9), (2, 1, 2, 2), pads((2, 2), (1, 1), (-1, -2), (0, -1)), 2),
    "padding alone": Case((1, 1, 1, 1), (1, 1, 3, 3), window((3, 3), pad=4)),
    "1x1": Case((2, 3, 5, 70), (2, 3, 1, 1), window((1, 1))),
    "1x1, many channels": Case((1, 64, 2000), (35, 64, 1), window((1,))),
    "out of reach": Case((1, 4, 9, 7), (4, 4, 3, 3), window((3, 3), dilation=11, pad=11)),
    "large": Case((1, 3, 120, 600), (3, 3, 5, 5), window((5, 5), pad=2)),
}
WINOGRAD = {
    "3x3": Case((2, 3, 9, 11), (5, 3, 3, 3), window((3, 3), pad=1)),
    "many channels": Case((1, 70, 6, 7), (40, 70, 3, 3), window((3, 3), pad=1)),
    "pads": Case((1, 9, 7, 4), (33, 9, 3, 3), pads((3, 3), (1, 1), (2, 0), (0, 3))),
    "many tiles": Case((2, 2, 21, 30), (3, 2, 3, 3), window((3, 3))),
    "padding alone": Case((1, 1, 1, 1), (1, 1, 3, 3), window((3, 3), pad=4)),
    "blocks": Case((1, 200, 17, 18), (33, 200, 3, 3), window((3, 3), pad=1)),
    "groups": Case((2, 99, 7, 9), (105, 33, 3, 3), window((3, 3), pad=1), 3),
    "stride 2": Case((2, 40, 12, 31), (35, 40, 3, 3), window((3, 3), stride=2, pad=1)),
    "stride 2, pads": Case((1, 9, 9, 14), (33, 9, 3, 3), pads((3, 3), (2, 2), (2, 0), (0, 3))),
    "stride 2, blocks": Case((1, 70, 41, 26), (33, 70, 3, 3), window((3, 3), stride=2)),
    "stride 2, groups": Case((2, 66, 5, 5), (70, 33, 3, 3), window((3, 3), stride=2, pad=1), 2),
    "stride 2, one pixel": Case((1, 3, 2, 2), (5, 3, 3, 3), window((3, 3), stride=2, pad=1)),
    "stride 2, a line": Case((1, 3, 1, 20), (5, 3, 3, 3), window((3, 3), stride=2, pad=1)),
    "dilated": Case((2, 33, 13, 20), (40, 33, 3, 3), pads((3, 3), (1, 1), (3, 2), (3, 1), (3, 2))),
    "dilated lines": Case(
        (1, 9, 4, 31), (33, 9, 3, 3), pads((3, 3), (1, 1), (1, 5), (1, 6), (1, 5))
    ),
    "far": Case((2, 33, 9, 30), (9, 33, 3, 3), pads((3, 3), (1, 1), (6, 7), (6, 7), (6, 7))),
    "3-D": Case((2, 35, 4, 7, 8), (40, 35, 3, 3, 3), window((3, 3, 3), pad=1)),
    "3-D of one plane": Case((1, 9, 1, 5, 6), (33, 9, 3, 3, 3), window((3, 3, 3), pad=1)),
    "a line": Case((2, 20, 5, 23), (40, 20, 1, 3), pads((1, 3), (1, 1), (0, 1), (0, 1))),
    "a signal": Case((2, 33, 301), (35, 33, 3), window((3,), pad=1)),
    "a signal, dilated": Case((1, 9, 61), (33, 9, 3), window((3,), dilation=5, pad=2)),
    "a signal, groups": Case((1, 66, 40), (70, 33, 3), window((3,)), 2),
    "a signal, four": Case((2, 20, 50), (40, 20, 4), window((4,), pad=2)),
    "a signal, five": Case((1, 35, 61), (33, 35, 5), window((5,), dilation=3, pad=7)),
    "a signal, seven": Case((2, 33, 301), (35, 33, 7), window((7,), pad=3)),
    "a signal, eleven": Case((2, 70, 40), (40, 35, 11), window((11,), pad=5), 2),
    "a signal in padding": Case((1, 9, 3), (33, 9, 12), window((12,), pad=11)),
    "a line of eight": Case((2, 20, 5, 23), (40, 20, 1, 8), pads((1, 8), (1, 1), (0, 1), (0, 7))),
    "a column of seven": Case((2, 20, 15, 6), (40, 20, 7, 1), pads((7, 1), (1, 1), (2, 0), (0, 1))),
    "a column": Case((2, 20, 15, 6), (40, 20, 3, 1), pads((3, 1), (1, 1), (2, 0), (0, 1))),
    "a column, dilated": Case(
        (1, 9, 15, 6), (33, 9, 3, 1), pads((3, 1), (1, 1), (2, 0), (2, 0), (3, 1))
    ),
    "3-D, a line": Case((1, 9, 4, 3, 8), (20, 9, 2, 1, 3), window((2, 1, 3), pad=1)),
    "3-D, through planes": Case(
        (2, 9, 9, 3, 4),
        (33, 9, 3, 1, 1),
        pads((3, 1, 1), (1, 1, 1), (1, 0, 0), (2, 0, 0), (1,) * 3),
    ),
    "3-D, through five planes": Case((1, 9, 9, 3, 4), (33, 9, 5, 1, 1), window((5, 1, 1))),
    "3-D, a line in five planes": Case((1, 9, 6, 3, 8), (20, 9, 5, 1, 3), window((5, 1, 3), pad=1)),
    "3-D, few filters": Case((1, 20, 3, 6, 7), (3, 20, 3, 3, 3), window((3, 3, 3), pad=1)),
    "3-D, flat": Case((2, 9, 5, 4, 5), (33, 9, 1, 3, 3), window((1, 3, 3))),
    "3-D strided": Case((1, 18, 9, 10, 11), (20, 18, 3, 3, 3), window((3, 3, 3), stride=2, pad=1)),
    "3-D groups": Case((2, 66, 5, 6, 5), (70, 33, 2, 3, 3), window((2, 3, 3), pad=1), 2),
    "3-D dilated": Case(
        (1, 20, 11, 8, 12),
        (20, 20, 5, 3, 3),
        Window((5, 3, 3), (2, 1, 1), (3, 1, 2), (7, 2, 3), (4, 1, 0)),
    ),
}
DIRECT = {
    **{name: case for name, case in CASES.items() if len(case.x) < 5 and case.w[0] < 100},
    "first layer": Case((2, 3, 33, 40), (24, 3, 3, 3), window((3, 3), stride=2, pad=1)),
    "no pads": Case((1, 3, 31, 30), (40, 3, 5, 3), pads((5, 3), (2, 3), (0, 0), (0, 0))),
    "filters of groups": Case((1, 12, 9, 10), (136, 3, 1, 1), window((1, 1)), 4),
    "pairs": Case((2, 8, 9, 31), (24, 8, 3, 3), window((3, 3), pad=1)),
    "pairs of groups": Case((1, 12, 30, 11), (20, 6, 1, 1), window((1, 1)), 2),
    "many lines": Case((2, 2, 50, 41), (33, 2, 3, 3), window((3, 3), pad=1)),
    "a signal": Case((1, 10, 1501), (33, 10, 7), pads((7,), (1,), (9,), (2,), (3,))),
    "a long line of stride 2": Case((1, 3, 3, 1203), (9, 3, 3, 5), window((3, 5), stride=2, pad=2)),
    "long lines, no pads": Case((1, 4, 3, 1000), (9, 4, 1, 4), window((1, 4))),
    "large": Case((1, 6, 62, 61), (71, 6, 3, 3), window((3, 3), pad=1)),
    "large 1x1": Case((2, 70, 45, 42), (71, 70, 1, 1), window((1, 1))),
    "whole vectors": Case((1, 20, 9, 43), (48, 20, 1, 1), window((1, 1))),
}
NOTHING = Case((0, 3, 4, 4), (3, 1, 3, 3), window((3, 3)), 3)


@remembered
def sums_of(x: np.ndarray, w: np.ndarray, at: Window, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """The sums that are expected, and those of magnitudes."""
    expected = convolve(x.astype(np.float64), w.astype(np.float64), at, groups)
    return expected, convolve(np.abs(x), np.abs(w), at, groups)


def run(
    op: str,
    row: KernelRow,
    case: Case,
    threads: int = 1,
    act: str = "none",
    residual_first: int = 0,
    order: str = "channels last",
    x: Optional[np.ndarray] = None,
    w: Optional[np.ndarray] = None,
    **more: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result, the sum that is expected before bias and act, and that of magnitudes."""
    rng = np.random.default_rng([*case.x, *case.w])
    drawn = (rng.standard_normal(shape).astype(np.float32) for shape in (case.x, case.w))
    x, w = (d if given is None else given for d, given in zip(drawn, (x, w)))
    expected, size = sums_of(x, w, case.at, case.groups)
    given = {"bias": None, "residual": None, "act_alpha": 0.0, "act_beta": 0.0, **more}
    given.update(N=case.x[0], C=case.x[1], act=act)
    given.update(case.at.fields(case.x[2:], expected.shape[2:], 3), residual_first=residual_first)
    if op == "conv":
        y = np.full(expected.shape, np.nan, np.float32)
        given.update(conv_fields(row, case, threads, y.shape[2:]), x=x, w=w, y=y)
        return run_op(op, row, threads, **given)["y"], expected, size
    if op == "conv_planes":
        y = np.full(expected.shape, np.nan, np.float32)
        given.update(planes_fields(case, threads, given, x, order), w=w, y=y)
        return run_op(op, row, threads, **given)["y"], expected, size
    y = last(expected, GAP)
    given = {"scale": None, "shift": None, **given}
    given.update(last_fields(x), y=y, y_stride=y.shape[-1])
    if given["residual"] is not None:
        given["residual"] = last(given["residual"], 2 * GAP)
    given["residual_stride"] = expected.shape[1] + 2 * GAP
    if op == "conv_direct":
        given = direct_fields(case, threads, given, x if order == "planes" else None)
        given.update(w=packed(row, case, w), together=1)
        if order == "pairs":
            matrices = paired_weights(w, case.groups, int(np.prod(case.w[2:]))).swapaxes(1, 2)
            columns = matrices.reshape(-1, matrices.shape[2], 1)
            whole = Case(case.x, columns.shape, case.at, case.groups)
            given.update(w=packed(row, whole, columns), together=2)
    elif op == "depthwise":
        given["w"] = np.ascontiguousarray(w.reshape(*case.w[:2], -1).T)
        given["width"] = case.w[1]
    elif op == "winograd":
        axes, outs = tiled_axes(given), [given[name] for name in ("OD", "OH", "OW")]
        steps = (outs[1] * outs[2], outs[2], 1)
        given = turned({**given, **{f"y_{a}_pixels": n for a, n in zip("dhw", steps)}})
        stride, kernel = given["stride_w"], (given["kd"], given["kh"], given["kw"])
        given["w"] = np.stack(
            [transformed(row, each, kernel, stride) for each in np.split(w, case.groups)]
        )
        given.update(M=case.w[0], groups=case.groups)
        names = ("stride_h", "stride_w")
        given = {name: value for name, value in given.items() if name not in names}
        k = case.w[1] * given["kd"] * parts_of(given["kw"])
        block = CONSTANTS["WINOGRAD_MOST" if row.isa == "avx512" else "WINOGRAD_TILES"]
        floats = winograd_room(axes, stride, k, row.nr, block)
        given.update(stride=stride, block=block, room=threads * floats * 4)
    else:
        k = int(np.prod(case.w[1:]))
        given.update(w=packed(row, case, w), M=case.w[0], groups=case.groups)
        pixels = min(y[..., 0].size, CONSTANTS["GEMM_ROWS"])
        given["windows"] = threads * pixels * min(k, CONSTANTS["CONV_K_BLOCK"]) * 4
    y = run_op(op, row, threads, **given)["y"]
    assert np.isnan(y[..., expected.shape[1] :]).all()
    return np.moveaxis(y[..., : expected.shape[1]], -1, 1), expected, size


def last(x: np.ndarray, gap: int) -> np.ndarray:
    """x (N, C, ..) as (N, .., C + gap), the gap filled with NaN."""
    turned = np.ascontiguousarray(np.moveaxis(x, 1, -1), np.float32)
    return np.pad(turned, [(0, 0)] * (x.ndim - 1) + [(0, gap)], constant_values=np.nan)


def last_fields(x: np.ndarray) -> dict[str, Any]:
    """x as an image between whose pixels there is a gap, and its strides."""
    image = last(x, GAP)
    whole = image.reshape(image.shape[0], *(1,) * (5 - x.ndim), *image.shape[1:])
    strides = (stride // 4 for stride in whole.strides[:4])
    return {"x": image, **{f"x_{n}_stride": s for n, s in zip("ndhw", strides)}}


def direct_fields(
    case: Case, threads: int, given: dict[str, Any], planes: Optional[np.ndarray]
) -> dict[str, Any]:
    """Those of conv_direct from those of conv_last; planes: x with its channels first."""
    names = ("D", "OD", "kd", "stride_d", "dilation_d", "pad_front", "x_d_stride")
    given = {name: value for name, value in given.items() if name not in names}
    given.update(x_c_stride=1, M=case.w[0], groups=case.groups)
    if planes is not None:
        whole = planes.reshape(*planes.shape[:2], -1, planes.shape[-1])
        strides = (stride // 4 for stride in whole.strides)
        given.update(
            zip(("x_n_stride", "x_c_stride", "x_h_stride", "x_w_stride"), strides), x=planes
        )
    k, channels = int(np.prod(case.w[1:])), case.w[1]
    columns = min(max(given["OW"], 1), CONSTANTS["CONV_PIXELS"])
    band = CONSTANTS["CONV_PIXELS"] // columns
    height, width = (
        (n - 1) * given[f"stride_{i}"] + (given[f"k{i}"] - 1) * given[f"dilation_{i}"] + 1
        for n, i in ((band, "h"), (columns, "w"))
    )
    given["w_n_stride"] = 0
    return {**given, "offsets": 8 * k, "lines": threads * channels * height * width * 4}


def planes_fields(
    case: Case, threads: int, given: dict[str, Any], x: np.ndarray, order: str
) -> dict[str, Any]:
    """Those that conv_planes has beside or instead of those of conv, which are removed."""
    for name in ("D", "OD", "kd", "stride_d", "dilation_d", "pad_front"):
        del given[name]
    whole = x if x.ndim == 4 else x[:, :, None]
    if order == "channels last":
        whole = np.ascontiguousarray(np.moveaxis(whole, 1, -1))
        whole = np.moveaxis(whole, -1, 1)
    strides = (stride // 4 for stride in whole.strides)
    fields = dict(zip(("x_n_stride", "x_c_stride", "x_h_stride", "x_w_stride"), strides))
    columns = min(given["OW"], CONSTANTS["PLANE_COLUMNS"])
    under = (given["kh"] - 1) * given["dilation_h"] + 1
    width = columns + -(-((given["kw"] - 1) * given["dilation_w"]) // given["stride_w"])
    room = max(case.w[1] * under * given["stride_w"] * width, CONSTANTS["PLANE_ROOM"])
    room += CONSTANTS["PLANE_SLACK"]
    x = whole if order == "planes" else np.moveaxis(whole, 1, -1)
    k = int(np.prod(case.w[1:]))
    fields.update(M=case.w[0], groups=case.groups, offsets=8 * k, lines=threads * 4 * room)
    return {**fields, "x": x}


def packed(row: KernelRow, case: Case, w: np.ndarray) -> np.ndarray:
    """The panels of every group: K in the order (tap, channel)."""
    filters, channels = case.w[0] // case.groups, case.w[1]
    taps = int(np.prod(case.w[2:]))
    k, n = channels * taps, filters
    given: dict[str, Any] = {"k": k, "n": n, "k_stride": taps, "n_stride": k, "taps": taps}
    given.update(nr=row.nr, tap_stride=1, width=row.nr, first=0, dtype=FLOAT, b_dtype=FLOAT)
    given.update(drops=0, factors=None)
    room = np.empty(-(-n // row.nr) * row.nr * k, np.float32)
    groups = np.split(w, case.groups)
    return np.stack([run_op("pack_b", b=each, packed=room, **given)["packed"] for each in groups])


def conv_fields(row: KernelRow, case: Case, threads: int, outs: tuple) -> dict[str, Any]:
    panels = -(-int(np.prod(outs)) // row.nr)
    k = min(int(np.prod(case.w[1:])), CONSTANTS["CONV_K_BLOCK"])
    pack = threads * min(panels, CONSTANTS["CONV_PANELS"]) * k * row.nr * 4
    return {"M": case.w[0], "groups": case.groups, "pack": pack}


def check(op: str, row: KernelRow, case: Case, **more: Any) -> None:
    k = int(np.prod(case.w[1:]))
    sums, expected, size = run(op, row, case, **more)
    assert (np.abs(sums - expected) <= tolerance(k, size)).all()
    bias = np.linspace(-100, 100, case.w[0], dtype=np.float32)
    y, _, _ = run(op, row, case, act="relu", bias=bias, **more)
    added = np.maximum(sums + bias.reshape(-1, *[1] * len(case.x[2:])), 0)
    np.testing.assert_array_equal(y, added)  # at the end: from it on, sums have its errors


@every_op
@every_row
@pytest.mark.parametrize("name", CASES)
def test_against_direct_sum(op: str, row: KernelRow, name: str) -> None:
    check(op, row, CASES[name])


@pytest.mark.parametrize(
    "op, row",
    [
        *((op, row) for op in ("conv", "conv_last") for row in PRODUCTS),
        *((op, row) for op in ("conv_direct", "winograd") for row in rows(op)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_errors_of_positive_sums_have_no_sign(op: str, row: KernelRow) -> None:
    """Else those of layers, one behind the other, would add up."""
    case = Case((1, 64, 14, 14), (96, 64, 3, 3), window((3, 3), pad=1))
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(0, 1, shape).astype(np.float32) for shape in (case.x, case.w))
    y, expected, _ = run(op, row, case, x=x, w=w)
    assert abs(np.mean(y / expected - 1)) < 2.0**-25


@every_direct_row
@every_order
@pytest.mark.parametrize("name", DIRECT)
def test_direct_against_direct_sum(row: KernelRow, name: str, order: str) -> None:
    check("conv_direct", row, DIRECT[name], order=order)


@every_direct_row
@pytest.mark.parametrize("name", [name for name, case in DIRECT.items() if case.w[1] % 2 == 0])
def test_direct_of_pairs_against_direct_sum(row: KernelRow, name: str) -> None:
    check("conv_direct", row, DIRECT[name], order="pairs")


@every_direct_row
def test_pairs_are_of_one_window(row: KernelRow) -> None:
    """Infinities reach their own windows alone, and as such."""
    case = Case((1, 6, 9, 20), (21, 6, 3, 3), window((3, 3), pad=1))
    x, w = np.ones(case.x, np.float32), np.ones(case.w, np.float32)
    x[0, 3, 4, 7] = np.inf
    y = run("conv_direct", row, case, order="pairs", x=x, w=w)[0]
    assert np.isposinf(y[0, :, 3:6, 6:9]).all() and np.isfinite(y).sum() == y.size - 21 * 9


@every_line_row
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_against_direct_sum(row: KernelRow, name: str) -> None:
    check("depthwise", row, DEPTHWISE[name])


@pytest.mark.parametrize(
    "row, name",
    [
        (row, name)
        for row, (name, case) in itertools.product(rows("depthwise"), NARROW.items())
        if row.nr % case.w[1] == 0  # a vector holds whole groups
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_narrow_groups_against_direct_sum(row: KernelRow, name: str) -> None:
    check("depthwise", row, NARROW[name])


def check_residual(op: str, row: KernelRow, case: Case, **more: Any) -> None:
    k = int(np.prod(case.w[1:]))
    plain, expected, size = run(op, row, case, **more)
    residual = np.linspace(-3, 3, plain.size, dtype=np.float32).reshape(plain.shape)
    for first in (0, 1):
        given = {**more, "residual": residual, "residual_first": first}
        y, _, _ = run(op, row, case, act="relu", **given)
        wanted = np.maximum(expected + residual * first, 0) + residual * (1 - first)
        assert (np.abs(y - wanted) <= tolerance(k, size + 6)).all()


@every_op
@every_row
@pytest.mark.parametrize(
    "name", ["3x3", "groups", "1x1", "long k", "patches", "many panels", "far", "far lines"]
)
def test_residual_before_and_after_the_activation(op: str, row: KernelRow, name: str) -> None:
    check_residual(op, row, CASES[name])


def check_scale(op: str, row: KernelRow, case: Case, **more: Any) -> None:
    """What is linear in a channel, between an activation and a residual, or behind both."""
    column = (-1, *[1] * len(case.x[2:]))
    scale, shift = (np.linspace(a, b, case.w[0], dtype=np.float32) for a, b in ((-2, 2), (3, 1)))
    size = run(op, row, case, **more)[2].shape
    residual = np.linspace(-3, 3, int(np.prod(size)), dtype=np.float32).reshape(size)
    for act, first in itertools.product(("none", "relu", "clip", "silu"), (0, 1)):
        given = {**more, "act": act, "residual_first": first}
        before = run(op, row, case, residual=residual if first else None, **given)[0]
        vectors = {"scale": scale, "shift": shift}
        y = run(op, row, case, residual=residual, **vectors, **given)[0]
        terms = [before * scale.reshape(column), shift.reshape(column), residual * (1 - first)]
        assert (np.abs(y - sum(terms)) <= tolerance(2, sum(map(np.abs, terms)))).all()


@every_row
@pytest.mark.parametrize("name", ["3x3", "groups", "1x1", "long k", "many panels", "far lines"])
def test_scale_behind_the_activation(row: KernelRow, name: str) -> None:
    check_scale("conv_last", row, CASES[name])


@every_line_row
@pytest.mark.parametrize("name", ["many channels", "stride 2", "large"])
def test_scale_of_depthwise(row: KernelRow, name: str) -> None:
    check_scale("depthwise", row, DEPTHWISE[name])


@every_direct_row
@pytest.mark.parametrize("name", ["3x3", "groups", "1x1", "many lines", "a signal"])
def test_scale_of_direct(row: KernelRow, name: str) -> None:
    check_scale("conv_direct", row, DIRECT[name])


@every_direct_row
@pytest.mark.parametrize("name", ["groups", "many lines"])
def test_scale_of_pairs(row: KernelRow, name: str) -> None:
    check_scale("conv_direct", row, DIRECT[name], order="pairs")


@every_line_row
@pytest.mark.parametrize("act", ["clip", "silu"])
def test_activations_of_depthwise(row: KernelRow, act: str) -> None:
    """One that the sums in registers have, and another."""
    y, expected, size = run("depthwise", row, DEPTHWISE["stride 2"], act=act)
    wanted = expected / (1 + np.exp(-expected)) if act == "silu" else expected * 0
    assert (np.abs(y - wanted) <= tolerance(9, 2 * size + 1)).all()


@every_line_row
@pytest.mark.parametrize("name", ["many channels", "stride 2", "large"])
def test_residual_of_depthwise(row: KernelRow, name: str) -> None:
    check_residual("depthwise", row, DEPTHWISE[name])


@every_direct_row
@pytest.mark.parametrize(
    "name", ["3x3", "groups", "1x1", "long k", "many lines", "a signal", "large 1x1"]
)
def test_residual_of_direct(row: KernelRow, name: str) -> None:
    check_residual("conv_direct", row, DIRECT[name])


@every_direct_row
@pytest.mark.parametrize("name", ["groups", "many lines", "large"])
def test_residual_of_pairs(row: KernelRow, name: str) -> None:
    check_residual("conv_direct", row, DIRECT[name], order="pairs")


@every_direct_row
@pytest.mark.parametrize("act", ["clip", "silu", "tanh"])
def test_activations_of_direct(row: KernelRow, act: str) -> None:
    """Those that the tile has in registers, and others."""
    y, expected, size = run("conv_direct", row, DIRECT["3x3"], act=act, residual_first=1)
    formulas = {"clip": lambda v: v * 0, "silu": lambda v: v / (1 + np.exp(-v)), "tanh": np.tanh}
    assert (np.abs(y - formulas[act](expected)) <= tolerance(27, 2 * size + 1)).all()


@every_direct_row
@pytest.mark.parametrize("name", ["whole vectors", "large 1x1", "first layer"])
@pytest.mark.parametrize(
    "act, low, high", [("none", -np.inf, np.inf), ("relu", 0, np.inf), ("clip", -0.5, 1.25)]
)
def test_what_becomes_of_direct_sums(
    row: KernelRow, name: str, act: str, low: float, high: float
) -> None:
    """Each of its operations rounds once, in their order, whichever way a tile ends."""
    case = DIRECT[name]
    sums = run("conv_direct", row, case)[0]
    bias = np.linspace(-2, 2, case.w[0], dtype=np.float32)
    residual = np.linspace(-3, 3, sums.size, dtype=np.float32).reshape(sums.shape)
    biased = sums + bias[:, None, None]
    for first, given in itertools.product((0, 1), (None, residual)):
        more = {"bias": bias, "residual": given, "residual_first": first}
        y = run("conv_direct", row, case, act=act, act_alpha=low, act_beta=high, **more)[0]
        wanted = biased if given is None or not first else biased + given
        wanted = np.clip(wanted, np.float32(low), np.float32(high))
        if given is not None and not first:
            wanted = wanted + given
        np.testing.assert_array_equal(y, wanted)


def check_threads(op: str, row: KernelRow, case: Case, **more: Any) -> None:
    y = run(op, row, case, **more)[0]
    for threads in (2, 3, 8):
        assert run(op, row, case, threads, **more)[0].tobytes() == y.tobytes()


@every_op
@every_row
@pytest.mark.parametrize("name", ["many rows", "patches", "1x1", "many panels", "3-D", "far"])
def test_bits_do_not_depend_on_threads(op: str, row: KernelRow, name: str) -> None:
    check_threads(op, row, CASES[name])


@every_direct_row
@pytest.mark.parametrize(
    "name",
    [
        *("many lines", "filters of groups", "1x1 many rows", "a signal", "long lines, no pads"),
        "large",
    ],
)
def test_bits_of_direct_do_not_depend_on_threads(row: KernelRow, name: str) -> None:
    check_threads("conv_direct", row, DIRECT[name])


@every_plane_row
@every_order
@pytest.mark.parametrize("name", PLANES)
def test_planes(row: KernelRow, name: str, order: str) -> None:
    check("conv_planes", row, PLANES[name], order=order)


@every_plane_row
@pytest.mark.parametrize("name", ["3x3", "many filters", "a signal"])
def test_residual_of_planes(row: KernelRow, name: str) -> None:
    check_residual("conv_planes", row, PLANES[name], order="planes")


@every_plane_row
@pytest.mark.parametrize("filters", [1, 2, 3, 4])
def test_tiles_of_planes(row: KernelRow, filters: int) -> None:
    for pixels in range(1, 300, 7):  # tiles of each width, at each place
        case = Case((1, 1, pixels), (filters, 1, 3), window((3,), pad=1))
        check("conv_planes", row, case, order="planes")


@every_plane_row
@pytest.mark.parametrize("name", ["large", "a signal", "groups", "1x1, many channels"])
def test_bits_of_planes_do_not_depend_on_threads(row: KernelRow, name: str) -> None:
    check_threads("conv_planes", row, PLANES[name], order="planes")


@every_line_row
def test_bits_of_depthwise_do_not_depend_on_threads(row: KernelRow) -> None:
    check_threads("depthwise", row, DEPTHWISE["many channels"])
    check_threads("depthwise", row, DEPTHWISE["large"])
    check_threads("depthwise", row, NARROW["fours of stride 2"])


@pytest.mark.parametrize("op", ["conv", "conv_planes", "conv_last", "depthwise"])
def test_nothing_to_do(op: str) -> None:
    for row in PRODUCTS if op in ("conv", "conv_last") else rows(op):
        assert run(op, row, NOTHING)[0].shape == (0, 3, 2, 2)


@every_winograd_row
@pytest.mark.parametrize("stride", [1, 2])
def test_pack_winograd_rounds_once(row: KernelRow, stride: int) -> None:
    """What is transformed is the float nearest to G w G^T, zeros behind the last filter."""
    filters, channels, planes = row.nr + 3, 5, 2
    w = np.random.default_rng(0).standard_normal((filters, channels, planes, 3, 3), np.float32)
    g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    if stride == 2:
        g = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]])
    wanted = np.zeros((16, planes, channels, 2 * row.nr), np.float32)
    wanted[..., :filters] = np.einsum("ai,bj,mcpij->abpcm", g, g, w).reshape(
        16, planes, channels, -1
    )
    panels = np.moveaxis(wanted.reshape(-1, 2, row.nr), 1, 0)
    for threads in (1, 3):
        made = transformed(row, w, (planes, 3, 3), stride, threads)
        np.testing.assert_array_equal(made.reshape(panels.shape), panels)


@every_winograd_row
@pytest.mark.parametrize("width", [3, 8])
def test_pack_winograd_scales_kernels(row: KernelRow, width: int) -> None:
    """As if they had been multiplied before."""
    w = np.random.default_rng(0).standard_normal((row.nr + 3, 9, width), np.float32)
    factors = np.random.default_rng(1).standard_normal(row.nr + 3, np.float32)
    before = transformed(row, w * factors[:, None, None], (1, 1, width), 1)
    made = transformed(row, w, (1, 1, width), 1, factors=factors)
    assert made.tobytes() == before.tobytes()


def test_pack_winograd_drops_what_it_has_read(tmp_path: Path) -> None:
    """Of a mapped file, in which kernels begin at any byte."""
    row, *_ = rows("winograd")
    w = np.random.default_rng(0).standard_normal((200, 300, 1, 3, 3), np.float32)
    path, around = tmp_path / "weights", 1001
    path.write_bytes(b"x" * around + w.tobytes() + b"y" * around)
    owner = map_file(str(path))
    weight = Value("w")
    weight.const = np.frombuffer(owner, np.float32, w.size, around).reshape(w.shape)
    wanted = transformed(row, w, (1, 3, 3), 1)
    each = WinogradPack(weight, 0, 1, row.nr, 200, 300, 1, 3, 3, 1, 0)
    room = aligned(wanted.nbytes)
    pack(load(), SimpleNamespace(packs=[each]), room, {weight})
    np.testing.assert_array_equal(room.view(np.float32), wanted.ravel())
    if sys.platform == "linux":
        resident, _ = _pages({np.frombuffer(owner, np.uint8).ctypes.data: owner})
        assert resident < w.nbytes // 8


@every_winograd_row
def test_infinities_reach_tiles_above_them_alone(row: KernelRow) -> None:
    case = Case((1, 32, 9, 18), (40, 32, 3, 3), window((3, 3), pad=1))
    x = np.random.default_rng(0).uniform(1, 2, case.x).astype(np.float32)
    before = run("winograd", row, case, x=x)[0]
    x[..., 0, 0] = np.inf
    y = run("winograd", row, case, x=x)[0]
    assert not np.isfinite(y[..., 0, 0]).any()
    assert y[..., 4:, :].tobytes() == before[..., 4:, :].tobytes()


@every_winograd_row
@pytest.mark.parametrize("name", WINOGRAD)
def test_winograd_against_direct_sum(row: KernelRow, name: str) -> None:
    check("winograd", row, WINOGRAD[name])
    check_residual("winograd", row, WINOGRAD[name])
    check_scale("winograd", row, WINOGRAD[name])
    check_threads("winograd", row, WINOGRAD[name])


@every_winograd_row
@pytest.mark.parametrize("scale", [2.0**-45, 2.0**-120, 2.0**123])
def test_winograd_of_any_magnitude(row: KernelRow, scale: float) -> None:
    """Of whole images, and of a corner beside others: it is of a tile what it is of all."""
    case = Case((1, 64, 20, 22), (40, 64, 3, 3), window((3, 3), pad=1))
    rng = np.random.default_rng(0)
    x = rng.standard_normal(case.x).astype(np.float32)
    w = (rng.standard_normal(case.w) * min(1, 2.0**100 / scale)).astype(np.float32)
    before = run("winograd", row, case, x=x, w=w)[0]
    whole = (x * scale).astype(np.float32)
    y, expected, size = run("winograd", row, case, x=whole, w=w)
    assert (np.abs(y - expected) <= tolerance(576, size)).all()
    x[..., :8, :8] *= np.float32(scale)
    mixed = run("winograd", row, case, x=x, w=w)[0]
    assert mixed[..., :6, :6].tobytes() == y[..., :6, :6].tobytes()
    assert mixed[..., 10:, :].tobytes() == before[..., 10:, :].tobytes()


def transformed(
    row: KernelRow,
    w: np.ndarray,
    kernel: tuple[int, int, int],
    stride: int,
    threads: int = 1,
    factors: Optional[np.ndarray] = None,
) -> np.ndarray:
    """The panels of kernels (filters, channels, ..) for Winograd's algorithm."""
    n, channels = w.shape[:2]
    depth, height, width = kernel
    rows = winograd_rows(channels, *kernel)
    room = np.full((-(-n // row.nr), rows, row.nr), np.nan, np.float32)
    given = {"nr": row.nr, "n": n, "C": channels, "planes": depth, "kh": height, "kw": width}
    given.update(stride=stride, drops=0, w=w, packed=room, factors=factors)
    return run_op("pack_winograd", None, threads, **given)["packed"]
