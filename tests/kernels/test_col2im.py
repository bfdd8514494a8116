"""col2im against the sum of its windows in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_threads, tolerance
from tests.kernels.windows import Window, window

every_row = pytest.mark.parametrize("row", rows("unary"), ids=lambda row: row.name)
# image (N, M, ..), window
CASES = {
    "2-D": ((2, 3, 9, 12), window((3, 2), stride=2, pad=1)),
    "apart": ((1, 2, 12, 10), Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0))),
    "gaps": ((1, 2, 11, 13), Window((2, 1), (3, 4), (1, 1), (0, 1), (1, 0))),
    "dilated": ((2, 2, 9, 9), Window((2, 3), (1, 2), (3, 2), (2, 1), (0, 3))),
    "1-D": ((3, 2, 300), window((5,), pad=2)),
    "3-D": ((1, 2, 5, 6, 7), window((2, 3, 2), stride=2, pad=1)),
    "cropped": ((1, 1, 4, 4), window((3, 3), pad=-1)),
    "nothing": ((0, 2, 4, 4), window((2, 2))),
}


def image(columns: np.ndarray, shape: tuple, at: Window) -> np.ndarray:
    """columns (N, M, kernel.., windows..) added up."""
    outs = at.outs(shape[2:])
    y = np.zeros(shape)
    for tap in np.ndindex(*at.kernel):
        for place in np.ndindex(*outs):
            each = zip(place, tap, at.stride, at.dilation, at.before)
            pixel = [o * s - b + t * d for o, t, s, d, b in each]
            if all(0 <= p < size for p, size in zip(pixel, shape[2:])):
                y[(..., *pixel)] += columns[(slice(None), slice(None), *tap, *place)]
    return y


@every_row
@pytest.mark.parametrize("name", CASES)
def test_against_sum(row: KernelRow, name: str) -> None:
    shape, at = CASES[name]
    outs = at.outs(shape[2:])
    rng = np.random.default_rng(shape)
    columns = rng.standard_normal((*shape[:2], *at.kernel, *outs)).astype(np.float32)
    bias = np.linspace(-1, 1, shape[1], dtype=np.float32)
    for act, given in (("none", None), ("relu", bias)):
        fields: dict[str, Any] = {"act": act, "act_alpha": 0.0, "act_beta": 0.0}
        (y,) = run_threads(
            "col2im",
            row,
            cols=columns,
            w=None,
            bias=given,
            y=np.full(shape, np.nan, np.float32),
            N=shape[0],
            M=shape[1],
            last=0,
            y_stride=1,
            **at.fields(shape[2:], outs, 3),
            **fields,
        )
        wanted = image(columns, shape, at)
        if given is not None:
            wanted = np.maximum(wanted + bias.reshape(-1, *[1] * len(outs)), 0)
        k = int(np.prod(at.kernel))
        assert (np.abs(y - wanted) <= tolerance(k, image(np.abs(columns), shape, at) + 1)).all()


@every_row
@pytest.mark.parametrize("name", CASES)
def test_channels_last(row: KernelRow, name: str) -> None:
    """Pixels alone and among those of others. Bits are those of channels first, whose sums have
    the same order.
    """
    (batch, channels, *sizes), at = CASES[name]
    outs, n = at.outs(tuple(sizes)), len(at.kernel)
    rng = np.random.default_rng(sizes)
    columns = rng.standard_normal((batch, channels, *at.kernel, *outs)).astype(np.float32)
    last = np.moveaxis(columns, [*range(2 + n, 2 + 2 * n), *range(1, 2 + n)], range(1, 2 + 2 * n))
    last = np.ascontiguousarray(np.moveaxis(last, 1 + n, -1))
    bias = np.linspace(-1, 1, channels, dtype=np.float32)
    shared = {"act_alpha": 0.0, "act_beta": 0.0, "N": batch, "M": channels, "w": None}
    shared |= at.fields(tuple(sizes), outs, 3)
    for act, given, gap in (("none", None, 0), ("relu", bias, 0), ("relu", bias, 3)):
        fields = {**shared, "act": act, "bias": given}
        first = np.full((batch, channels, *sizes), np.nan, np.float32)
        (wanted,) = run_threads("col2im", row, cols=columns, y=first, last=0, y_stride=1, **fields)
        stride = channels + gap
        room = np.full((batch, *sizes, stride), 7.0, np.float32)
        (y,) = run_threads("col2im", row, cols=last, y=room, last=1, y_stride=stride, **fields)
        np.testing.assert_array_equal(y[..., channels:], 7.0)
        np.testing.assert_array_equal(np.moveaxis(y[..., :channels], -1, 1), wanted)


@every_row
@pytest.mark.parametrize("name", CASES)
def test_pixels_times_weights(row: KernelRow, name: str) -> None:
    """Bits are those of windows that were multiplied before."""
    (batch, channels, *sizes), at = CASES[name]
    outs = at.outs(tuple(sizes))
    rng = np.random.default_rng(sizes)
    x = rng.standard_normal((batch, *outs, channels)).astype(np.float32)
    w = rng.standard_normal((*at.kernel, channels)).astype(np.float32)
    columns = np.ascontiguousarray(
        x.reshape(batch, *outs, *[1] * len(at.kernel), channels)
        * w.reshape(*[1] * (1 + len(outs)), *w.shape)
    )
    fields: dict[str, Any] = {"act": "relu", "act_alpha": 0.0, "act_beta": 0.0, "last": 1}
    fields |= {"N": batch, "M": channels, "bias": np.linspace(-1, 1, channels, dtype=np.float32)}
    fields |= {"y_stride": channels, **at.fields(tuple(sizes), outs, 3)}
    room = np.full((batch, *sizes, channels), np.nan, np.float32)
    (wanted,) = run_threads("col2im", row, cols=columns, w=None, y=room.copy(), **fields)
    (y,) = run_threads("col2im", row, cols=x, w=w, y=room, **fields)
    np.testing.assert_array_equal(y, wanted)
