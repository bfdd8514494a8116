"""Battery: attention as modules of PyTorch and public model code write it, projections included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fusion.battery import assert_fuses

H, D = 4, 8
K = H * D
RANDOM = np.random.default_rng(5)
WQKV, W, BQKV, BIAS = (
    (RANDOM.standard_normal(shape) / 4).astype(np.float32)
    for shape in ((K, 3 * K), (K, K), (3 * K,), (K,))
)
SHARED = {"q": ("B", "S", H, D), "k": ("B", "T", H, D), "v": ("B", "T", H, D)}
GROUPED = {"q": ("B", "S", 2, 2, D), "k": ("B", "T", 2, D), "v": ("B", "T", 2, D)}
ONE = {"q": ("B", H, "S", D), "k": ("B", "T", D), "v": ("B", "T", D)}


@pytest.mark.parametrize(
    "scores, result, inputs",
    [
        ("bnhd,bmhd->bhnm", "bhnm,bmhd->bnhd", SHARED),
        ("bskgd,btkd->bkgst", "bkgst,btkd->bskgd", GROUPED),
        ("bhnd,bmd->bhnm", "bhnm,bmd->bhnd", ONE),
    ],
)
def test_einsum(scores: str, result: str, inputs: dict) -> None:
    def spelling(g: Any, q: Any, k: Any, v: Any) -> Any:
        p = g.Softmax(g.Mul(g.Einsum(q, k, equation=scores), D**-0.5), axis=-1)
        return g.Einsum(p, v, equation=result)

    assert_fuses(spelling, inputs, {"q7::Attention": 1, "Softmax": 0})


def test_multihead_attention() -> None:
    """That of PyTorch: batch first outside, sequence first inside, and nothing is copied."""

    def spelling(g: Any, x: Any, pad: Any) -> Any:
        batch, length = g.Shape(x, start=0, end=1), g.Shape(x, start=1, end=2)
        heads = g.Concat(batch, [H], length, [D], axis=0)
        qkv = g.Add(g.MatMul(g.Transpose(x, perm=(1, 0, 2)), WQKV), BQKV)
        parts = g.Transpose(g.Unsqueeze(g.Reshape(qkv, [0, 0, 3, K]), [0]), perm=(3, 1, 2, 0, 4))
        q, k, v = (
            g.Reshape(
                g.Transpose(
                    g.Reshape(g.Gather(g.Squeeze(parts, [3]), np.array(i), axis=0), [0, -1, D]),
                    perm=(1, 0, 2),
                ),
                heads,
            )
            for i in range(3)
        )
        mask = g.Where(g.Unsqueeze(pad, [1, 2]), -np.inf, 0.0)
        root = D**-0.25
        s = g.MatMul(g.Mul(q, root), g.Mul(g.Transpose(k, perm=(0, 1, 3, 2)), root))
        o = g.MatMul(g.Softmax(g.Add(s, mask), axis=-1), v)
        rows = g.Reshape(g.Transpose(o, perm=(2, 0, 1, 3)), [-1, K])
        y = g.Reshape(g.Gemm(rows, W, BIAS), g.Concat(length, batch, [K], axis=0))
        return g.Add(x, g.Transpose(y, perm=(1, 0, 2)))

    inputs = {"x": ("B", "S", K), "pad": ("bool", ("B", "S"))}
    assert_fuses(spelling, inputs, {"q7::Attention": 1, "q7::Linear": 2}, steps=4)


def test_stable_softmax() -> None:
    """With the maximum subtracted by hand, and NaN replaced by nan_to_num."""

    def spelling(g: Any, q: Any, k: Any, v: Any, keep: Any) -> Any:
        scores = g.Where(keep, g.MatMul(q, g.Transpose(k, perm=(0, 1, 3, 2))), -np.inf)
        p = g.Softmax(g.Sub(scores, g.ReduceMax(scores, [-1], keepdims=1)), axis=-1)
        guarded = g.Where(g.IsNaN(p), 0.0, p)
        most = g.And(g.IsInf(guarded), g.Greater(guarded, 0.0))
        return g.MatMul(g.Where(most, 3.4e38, guarded), v)

    whole = {name: ("B", H, length, D) for name, length in (("q", "S"), ("k", "T"), ("v", "T"))}
    inputs = {**whole, "keep": ("bool", ("B", 1, 1, "T"))}
    assert_fuses(spelling, inputs, {"q7::Attention": 1, "Softmax": 0})
