"""lookup against numpy's indexing."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_op

RANDOM = np.random.default_rng(6)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000, 100_001])
@pytest.mark.parametrize("row", rows("lookup"), ids=lambda row: row.name)
def test_lookup(row: KernelRow, n: int) -> None:
    table = RANDOM.permutation(256).astype(np.uint8)
    x = np.resize(RANDOM.permutation(256), n + 8).astype(np.uint8)
    y = np.full(n + 8, 77, np.uint8)
    for threads in (1, 3):
        run = run_op("lookup", row, threads, x=x, table=table, y=y.copy(), n=n)["y"]
        np.testing.assert_array_equal(run[:n], table[x[:n]])
        assert (run[n:] == 77).all()
