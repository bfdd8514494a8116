"""conv against a direct sum in float64."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest

from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op, tolerance

K_BLOCK = 128  # of csrc/ops/conv.c
every_row = pytest.mark.parametrize("row", rows("gemm"), ids=lambda row: row.name)
# x (N, C, H, W), w (M, C / groups, kh, kw), stride, pads (top, left, bottom, right), dilation,
# groups
CASES = {
    "3x3": ((2, 3, 9, 11), (5, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "patches": ((1, 3, 32, 48), (20, 3, 16, 16), (16, 16), (0, 0, 0, 0), (1, 1), 1),
    "1x1": ((2, 7, 5, 9), (6, 7, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "1x1 strided": ((1, 4, 6, 7), (3, 4, 1, 1), (2, 3), (0, 0, 0, 0), (1, 1), 1),
    "1x1 cropped": ((1, 4, 6, 7), (3, 4, 1, 1), (1, 1), (0, 0, -1, -2), (1, 1), 1),
    "1x1 padded": ((1, 4, 3, 3), (3, 4, 1, 1), (1, 1), (1, 2, 0, 1), (1, 1), 1),
    "groups": ((2, 6, 7, 8), (9, 2, 3, 2), (2, 1), (1, 0, 2, 1), (1, 1), 3),
    "depthwise": ((2, 5, 8, 8), (5, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 5),
    "dilated": ((1, 2, 13, 12), (4, 2, 3, 3), (2, 3), (2, 3, 1, 0), (2, 3), 1),
    "1-D": ((2, 4, 1, 50), (30, 4, 1, 5), (1, 2), (0, 3, 0, 3), (1, 1), 1),
    "padding alone": ((1, 1, 1, 1), (1, 1, 3, 3), (1, 1), (4, 4, 4, 4), (1, 1), 1),
    "long k": ((1, 50, 6, 6), (3, 50, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "many rows": ((1, 8, 4, 4), (600, 8, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
}


def conv(
    row: KernelRow,
    case: tuple,
    bias: Optional[np.ndarray],
    act: str,
    threads: int = 1,
    residual: Optional[np.ndarray] = None,
    residual_first: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result, the sum that is expected before bias and act, and that of magnitudes."""
    x_shape, w_shape, stride, pads, dilation, groups = case
    rng = np.random.default_rng(list(x_shape) + list(w_shape))
    x = rng.standard_normal(x_shape).astype(np.float32)
    w = rng.standard_normal(w_shape).astype(np.float32)
    (N, C, H, W), (M, _, kh, kw) = x_shape, w_shape
    OH = (H + pads[0] + pads[2] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    OW = (W + pads[1] + pads[3] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = run_op(
        "conv",
        row,
        threads,
        x=x,
        w=w,
        bias=bias,
        residual=residual,
        y=np.full((N, M, OH, OW), np.nan, np.float32),
        pack=threads * min(C // groups * kh * kw, K_BLOCK) * row.nr * 4,
        **{"N": N, "C": C, "H": H, "W": W, "M": M, "OH": OH, "OW": OW, "kh": kh, "kw": kw},
        stride_h=stride[0],
        stride_w=stride[1],
        pad_top=pads[0],
        pad_left=pads[1],
        dilation_h=dilation[0],
        dilation_w=dilation[1],
        groups=groups,
        residual_first=residual_first,
        act=act,
        act_alpha=0.0,
        act_beta=0.0,
    )["y"]
    expected = direct(
        x.astype(np.float64), w.astype(np.float64), y.shape, stride, pads, dilation, groups
    )
    size = direct(np.abs(x), np.abs(w), y.shape, stride, pads, dilation, groups)
    return y, expected, size


def direct(
    x: np.ndarray,
    w: np.ndarray,
    shape: tuple,
    stride: tuple,
    pads: tuple,
    dilation: tuple,
    groups: int,
) -> np.ndarray:
    (M, Cg, kh, kw), (OH, OW) = w.shape, shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), *((max(p, 0), max(q, 0)) for p, q in zip(pads, pads[2:]))))
    y = np.zeros(shape)
    for m in range(M):
        first = m // (M // groups) * Cg
        for i in range(kh):
            for j in range(kw):
                top, left = i * dilation[0], j * dilation[1]
                part = padded[:, first : first + Cg, top:, left:][..., :: stride[0], :: stride[1]]
                y[:, m] += np.einsum("nchw,c->nhw", part[..., :OH, :OW], w[m, :, i, j])
    return y


@every_row
@pytest.mark.parametrize("name", CASES)
def test_against_direct_sum(row: KernelRow, name: str) -> None:
    case = CASES[name]
    k = int(np.prod(case[1][1:]))
    y, expected, size = conv(row, case, None, "none")
    assert (np.abs(y - expected) <= tolerance(k, size)).all()
    bias = np.linspace(-1, 1, case[1][0], dtype=np.float32)
    y, expected, size = conv(row, case, bias, "relu")
    expected = np.maximum(expected + bias[:, None, None], 0)
    assert (np.abs(y - expected) <= tolerance(k, size + 1)).all()


@every_row
@pytest.mark.parametrize("name", ["3x3", "groups", "1x1", "long k", "patches"])
def test_residual_before_and_after_the_activation(row: KernelRow, name: str) -> None:
    case = CASES[name]
    k = int(np.prod(case[1][1:]))
    plain, expected, size = conv(row, case, None, "none")
    residual = np.linspace(-3, 3, plain.size, dtype=np.float32).reshape(plain.shape)
    for first in (0, 1):
        y, _, _ = conv(row, case, None, "relu", residual=residual, residual_first=first)
        wanted = np.maximum(expected + residual * first, 0) + residual * (1 - first)
        assert (np.abs(y - wanted) <= tolerance(k, size + 6)).all()


@every_row
@pytest.mark.parametrize("name", ["many rows", "patches", "1x1"])
def test_bits_do_not_depend_on_threads(row: KernelRow, name: str) -> None:
    y = conv(row, CASES[name], None, "none")[0]
    for threads in (2, 3, 8):
        assert conv(row, CASES[name], None, "none", threads)[0].tobytes() == y.tobytes()


@every_row
def test_nothing_to_do(row: KernelRow) -> None:
    case = ((0, 3, 4, 4), (2, 3, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    assert conv(row, case, None, "none")[0].shape == (0, 2, 2, 2)
