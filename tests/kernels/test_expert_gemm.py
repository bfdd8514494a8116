"""expert_gemm: every kernel row; its results are the bits of each row by itself."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import DATA_FAULT, StatusError, load
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import run_threads, tolerance
from tests.kernels.test_gemm import (
    ACT_ALPHA,
    ACT_BETA,
    ACTS,
    PANELS,
    ROWS,
    every_row,
    gemm,
    normal,
    pack,
)

K_BLOCK = load().target.constants["EXPERT_K_BLOCK"]
INDEX = {np.dtype(np.int32): 6, np.dtype(np.int64): 7}
THREADS = (1, 2, 3, 8)


def expert_gemm(
    row: KernelRow,
    a: np.ndarray,
    expert: np.ndarray,
    *weights: np.ndarray,
    bias: Optional[np.ndarray] = None,
    up_bias: Optional[np.ndarray] = None,
    act: str = "none",
) -> np.ndarray:
    """c, which held NaN; weights (experts, k, n), one or two; a may have more columns than k."""
    experts, k, n = weights[0].shape
    m, gated = len(expert), len(weights) == 2
    packed = [pack(row, *(w[e] for w in weights)) for e in range(experts)]
    (c,) = run_threads(
        "expert_gemm",
        row,
        threads=THREADS,
        a=a,
        expert=expert,
        b=np.concatenate(packed),
        bias=bias,
        up_bias=up_bias,
        c=np.full((m, n), np.nan, np.float32),
        sums=max(THREADS) * min(m, ROWS) * PANELS * row.nr * 4 if gated and k > K_BLOCK else None,
        rows=m * (k + n) * 4,
        order=(m + 2 * (experts + 1)) * 8,
        m=m,
        n=n,
        k=k,
        experts=experts,
        repeat=m // max(len(a), 1) or 1,
        a_stride=a.shape[1],
        expert_dtype=INDEX[expert.dtype],
        gated=int(gated),
        act=act,
        act_alpha=ACT_ALPHA,
        act_beta=ACT_BETA,
    )
    return c


def routes(m: int, experts: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng([m, experts])
    return {
        "random": generator.integers(0, experts, m),
        "skewed": np.minimum(generator.geometric(0.6, m) - 1, experts - 1).astype(np.int32),
        "one": np.full(m, experts - 1),
        "from the end": generator.integers(-experts, 0, m),
    }


@every_row
@pytest.mark.parametrize("k", [0, 1, 5, K_BLOCK, 2 * K_BLOCK + 3, 20 * K_BLOCK])
def test_products(row: KernelRow, k: int) -> None:
    experts = 3
    for n in (1, row.nr - 1, 2 * row.nr + 3):
        w, bias = normal(experts, k, n), normal(experts, n)
        for m in (1, 2, row.mr + 1, 3 * row.mr + 2):
            a = normal(m, k)
            a64, w64 = a.astype(np.float64), w.astype(np.float64)
            for expert in routes(m, experts).values():
                chosen = w64[expert]
                c = expert_gemm(row, a, expert, w, bias=bias)
                true = np.einsum("tk,tkn->tn", a64, chosen) + bias[expert]
                scale = np.einsum("tk,tkn->tn", np.abs(a64), np.abs(chosen)) + 4
                assert (np.abs(c - true) <= tolerance(k, scale)).all()


@every_row
@pytest.mark.parametrize("gated", [False, True])
def test_bits_are_those_of_single_rows(row: KernelRow, gated: bool) -> None:
    """Enough work for many tasks, and more rows of one expert than a block has. AMX multiplies few
    rows as AVX-512 does: there the bits are those of all rows of the expert.
    """
    experts, n, k = 4, 5 * row.nr + 1, 2 * K_BLOCK + 7
    weights = [normal(experts, k, n), normal(experts, k, n)[:, ::-1].copy()][: 1 + gated]
    given: dict[str, Any] = {"bias": normal(experts, n), "act": "silu" if gated else "none"}
    if gated:
        given["up_bias"] = normal(experts, n)[::-1].copy()
    for m, way in ((9, "random"), (ROWS + 40, "skewed"), (ROWS + 3, "one")):
        a, expert = normal(m, k), routes(m, experts)[way]
        c = expert_gemm(row, a, expert, *weights, **given)
        for t in (0, 1, m // 2, m - 1):
            same = expert == expert[t] if row.isa == "amx" else np.arange(m) == t
            alone = expert_gemm(row, a[same], expert[same], *weights, **given)
            assert alone.tobytes() == c[same].tobytes()


@every_row
@pytest.mark.parametrize("act", ACTS)
def test_gated_activations(row: KernelRow, act: str) -> None:
    experts, m, n, k = 3, 5, row.nr + 1, 9
    a, gate, up = normal(m, k), normal(experts, k, n), normal(experts, k, n)[:, ::-1].copy()
    expert = routes(m, experts)["random"]
    c = expert_gemm(row, a, expert, gate, up, act=act)
    for t, e in enumerate(expert):
        left, right = (
            gemm(row, a[t : t + 1], pack(row, w[e]), n, act=f)[0]
            for w, f in ((gate, act), (up, "none"))
        )
        np.testing.assert_array_equal(c[t], left * right)


@every_row
def test_rows_that_several_experts_share(row: KernelRow) -> None:
    """Row t // repeat of a, whose rows are further apart than k."""
    experts, rows, repeat, k, n = 4, row.mr + 2, 3, 7, 11
    wide, w = normal(rows, k + 5), normal(experts, k, n)
    expert = routes(rows * repeat, experts)["random"]
    c = expert_gemm(row, wide, expert, w)
    again = expert_gemm(row, np.repeat(wide[:, :k], repeat, axis=0), expert, w)
    assert c.tobytes() == again.tobytes()


@every_row
def test_nothing_to_do(row: KernelRow) -> None:
    none = np.zeros(0, np.int64)
    assert expert_gemm(row, normal(0, 5), none, normal(2, 5, 3)).shape == (0, 3)
    assert expert_gemm(row, normal(2, 5), np.array([1, 0]), normal(2, 5, 0)).shape == (2, 0)


@every_row
def test_out_of_range(row: KernelRow) -> None:
    for bad in (3, -4, 2**40):
        with pytest.raises(StatusError) as error:
            expert_gemm(row, normal(3, 4), np.array([0, bad, 2]), normal(3, 4, 5))
        assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, bad, 3)
