"""linear_attention against float64: columns around vectors, heads, rules, strides, no steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.kernels.harness import rows as kernels
from tests.kernels.harness import run_threads

EPS = np.finfo(np.float32).eps
ROWS = pytest.mark.parametrize("kernel", kernels("linear_attention"), ids=lambda k: k.name)


def reference(q, k, v, past, decay, beta, scale):
    """o (B, T, heads, Dv), the last state and the largest sums met, in float64; operands
    (B, T, H, D)."""
    (B, T, Hq, _), (Hkv, Dk, Dv) = q.shape, (*k.shape[2:], v.shape[3])
    heads = max(Hq, Hkv)
    q = np.repeat(q, heads // Hq, 2).astype(np.float64)
    state = np.zeros((B, Hkv, Dk, Dv)) if past is None else past.astype(np.float64)
    o, most = np.empty((B, T, heads, Dv)), 1.0
    for t in range(T):
        state = state if decay is None else state * decay[:, t][..., None]
        d = v[:, t].astype(np.float64)
        if beta is not None:
            d = (d - np.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * d[:, :, None]
        each = np.repeat(state, heads // Hkv, 1)
        o[:, t] = np.einsum("bhkv,bhk->bhv", each, q[:, t]) * scale
        most = max(most, np.abs(state).max(initial=0), np.abs(o[:, t]).max(initial=0))
    return o, state, most


def check(kernel, B, T, Hq, Hkv, Dk, Dv, has_past=True, decays=1, betas=1, padding=0, threads=(1,)):
    rng = np.random.default_rng([B, T, Hq, Hkv, Dk, Dv])

    def rows(heads, depth):
        return rng.standard_normal((B, T, heads, depth + padding)).astype(np.float32)

    q, k, v = rows(Hq, Dk), rows(Hkv, Dk) / np.float32(Dk), rows(Hkv, Dv)
    past = rng.standard_normal((B, Hkv, Dk, Dv)).astype(np.float32) if has_past else None
    decay = rng.random((B, T, Hkv, decays)).astype(np.float32) if decays else None
    beta = rng.random((B, T, betas)).astype(np.float32) if betas else None
    given = {"B": B, "T": T, "Hq": Hq, "Hkv": Hkv, "Dk": Dk, "Dv": Dv, "scale": 0.5}
    for name, x in zip("qkv", (q, k, v)):
        given.update({f"{name}_{axis}_stride": s // 4 for axis, s in zip("bth", x.strides)})
    o, present = run_threads(
        "linear_attention",
        kernel,
        threads,
        q=q,
        k=k,
        v=v,
        past=past,
        decay=decay,
        beta=beta,
        o=np.full((B, T, max(Hq, Hkv), Dv), np.nan, np.float32),
        present=np.full((B, Hkv, Dk, Dv), np.nan, np.float32),
        decays=decays or 1,
        betas=betas or 1,
        **given,
    )
    q, k, v = q[..., :Dk], k[..., :Dk], v[..., :Dv]
    wanted, state, most = reference(q, k, v, past, decay, beta, 0.5)
    bound = EPS * (T + 1) * (Dk + 4) * most
    assert np.abs(o - wanted).max(initial=0) <= bound
    assert np.abs(present - state).max(initial=0) <= bound


@ROWS
def test_columns(kernel):
    for Dv in (1, 3, 8, 15, 16, 17, 33, 64, 65, 130):
        check(kernel, 1, 3, 2, 2, 5, Dv)


@ROWS
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (2, 4), (3, 1)], ids=str)
def test_heads_and_rules(kernel, heads):
    for has_past, decays, betas in itertools.product((False, True), (0, 1, 7), (0, 1, heads[1])):
        check(kernel, 2, 4, *heads, 7, 20, has_past, decays, betas, threads=(1, 2, 3))


@ROWS
def test_strides_and_no_steps(kernel):
    check(kernel, 2, 6, 4, 2, 16, 40, padding=3)
    check(kernel, 2, 0, 4, 2, 16, 40)
    check(kernel, 0, 2, 4, 2, 16, 40)
