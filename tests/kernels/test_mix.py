"""mix against numpy in float64: parts of vectors, groups of planes, several tasks."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_threads, tolerance

SIZES = ((1, 1), (7, 2), (16, 1), (33, 3), (100, 2), (20000, 1), (0, 2))  # of a plane, of the batch


@pytest.mark.parametrize("row", rows("mix"), ids=lambda row: row.name)
@pytest.mark.parametrize("planes", [(1, 1), (4, 4), (3, 5), (8, 6), (17, 9)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_against_numpy(row: KernelRow, planes: tuple[int, int], has_bias: bool) -> None:
    C, M = planes
    for n, batch in SIZES:
        rng = np.random.default_rng((n, batch, C, M))
        x, w, bias = (
            rng.standard_normal(shape).astype(np.float32) for shape in ((batch, C, n), (M, C), (M,))
        )
        (y,) = run_threads(
            "mix",
            row,
            x=x,
            w=w,
            bias=bias if has_bias else None,
            y=np.full((batch, M, n), np.nan, np.float32),
            batch=batch,
            C=C,
            M=M,
            n=n,
        )
        added = bias[:, None] * float(has_bias)
        wanted = np.einsum("mc,bcn->bmn", w, x.astype(np.float64)) + added
        scale = np.einsum("mc,bcn->bmn", np.abs(w), np.abs(x)) + np.abs(added)
        assert (np.abs(y - wanted) <= tolerance(C, scale)).all()
