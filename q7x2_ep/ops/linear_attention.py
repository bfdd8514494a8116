"""Linear attention: keys and values are summed up in a state of fixed size.

Letters: B batch, T steps, Hq heads of the query, Hk of the key, Hkv of values and states, D and Dv
head sizes.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    Guard,
    dims,
    expand_view,
    materialized,
    require_dtype,
    reshaped,
    rows_dense,
    size_guards,
    temporary,
    unary_step,
    where_is,
)

RULES = {  # does it decay, does it take the difference
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


@op("com.microsoft::LinearAttention")
class LinearAttention:
    """S = exp(decay[t]) * S, then S += k[t] d^T, then y[t] = scale * S^T q[t], per head; d is v[t],
    or by a delta rule beta[t] * (v[t] - S^T k[t]).

    Heads of the query, or of values where there are more of them, share what serves them in turn;
    those of values may share keys.
    Shapes: query (B, T, Hq * D), key (B, T, Hk * D), value (B, T, Hkv * Dv), states
    (B, Hkv, D, Dv), decay (B, T, Hkv) or (B, T, Hkv * D), beta (B, T, Hkv) or (B, T, 1), y
    (B, T, max(Hq, Hkv) * Dv).
    Source: Yang et al. 2024, "Gated Delta Networks"; the operator schema of onnxruntime 1.31.
    """

    signature = "query: F, key: F, value: F, past?: F1, decay?: F, beta?: F -> y, present"
    attributes = {
        "chunk_size": 64,
        "kv_num_heads": 0,
        "q_num_heads": 0,
        "scale": 0.0,
        "state_window": 0,
        "update_rule": "gated_delta",
    }

    def infer(node: Node) -> list[Type]:
        B, T, Hq, Hkv, D, Dv = sizes(node)
        dtype, past = node.inputs[0].dtype, node.input(3)
        state = dtype if past is None else past.dtype
        return [Type(dtype, (B, T, max(Hq, Hkv) * Dv)), Type(state, (B, Hkv, D, Dv))]

    def guards(node: Node) -> list[Guard]:
        B, T, Hq, Hkv, D, Dv = sizes(node)
        query, key, value, past, decay, beta = (node.input(i) for i in range(6))
        Hk = key_heads(node, D)
        found = size_guards((query,), B * T * Hq * D) + size_guards((key,), B * T * Hk * D)
        found += size_guards((value,), B * T * Hkv * Dv) + size_guards((past,), B * Hkv * D * Dv)
        if decay is not None:
            n = per_head(node, 4)
            found += size_guards((decay,), B * T * Hkv * n)
            found.append(((n - 1) * (n - D), 0, f"{n} decays for a head of size {D}"))
        if beta is not None:
            n = dims(node, 5)[2]
            found += size_guards((beta,), B * T * n)
            found.append(((n - 1) * (n - Hkv), 0, f"{n} numbers of beta for {Hkv} heads"))
        return found

    def reference(
        node: Node,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        past: Optional[np.ndarray] = None,
        decay: Optional[np.ndarray] = None,
        beta: Optional[np.ndarray] = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        decays, differs = rule(node)
        B, T, _ = query.shape
        Hq, Hkv = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
        heads, Hk = max(Hq, Hkv), key.shape[2] // (query.shape[2] // Hq)
        q, k, v = (
            x.reshape(B, T, h, x.shape[2] // h) for x, h in ((query, Hq), (key, Hk), (value, Hkv))
        )
        q, k = np.repeat(q, heads // Hq, 2), np.repeat(k, Hkv // Hk, 2)
        state = np.zeros((B, Hkv, k.shape[3], v.shape[3]), query.dtype) if past is None else past
        y = np.empty((B, T, heads, v.shape[3]), query.dtype)
        for t in range(T):
            if decays and decay is not None:
                state = state * np.exp(decay[:, t].reshape(B, Hkv, decay.shape[2] // Hkv, 1))
            d = v[:, t]
            if differs and beta is not None:
                d = (d - np.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t, :, None]
            state = state + k[:, t, :, :, None] * d[:, :, None, :]
            all_states = np.repeat(state, heads // Hkv, 1)
            y[:, t] = np.einsum("bhkv,bhk->bhv", all_states, q[:, t]) * scale(node, q.shape[3])
        return y.reshape(B, T, heads * v.shape[3]), state

    def lower(node: Node, b: Any) -> None:
        B, T, Hq, Hkv, D, Dv = sizes(node)
        for x in node.inputs:
            if x is not None:
                require_dtype(node, x.dtype, F32)
        decays, differs = rule(node)
        decay, beta = node.input(4) if decays else None, node.input(5) if differs else None
        factors = None
        if decay is not None:
            factors = temporary(b, decay.dtype, decay.shape)
            unary_step(b, "exp", decay, factors)
        fields: dict[str, Dim] = {}
        given = {}
        Hk = key_heads(node, D)
        for name, x, heads in zip("qkv", node.inputs, (Hq, Hk, Hkv)):
            view = rows_dense(b, reshaped(b, x, (B, T, heads, Dv if name == "v" else D)))
            if name == "k" and Hk != Hkv:
                each = expand_view(view.reshape((B, T, Hk, 1, D)), (B, T, Hk, Hkv // Hk, D))
                view = materialized(b, each).reshape((B, T, Hkv, D))
            given[name] = view
            fields.update({f"{name}_{d}_stride": s for d, s in zip("bth", view.strides)})
        b.step(
            "linear_attention",
            kernel="linear_attention",
            **given,
            past=node.input(3),
            decay=factors,
            beta=beta,
            o=node.outputs[0],
            present=node.outputs[1],
            B=B,
            T=T,
            Hq=Hq,
            Hkv=Hkv,
            Dk=D,
            Dv=Dv,
            decays=1 if decay is None else per_head(node, 4),
            betas=1 if beta is None else dims(node, 5)[2],
            scale=scale(node, D),
            **fields,
        )


def sizes(node: Node) -> tuple[Dim, Dim, int, int, Dim, Dim]:
    """B, T, Hq, Hkv, D and Dv.

    Raises: ModelError, UnsupportedOp for attributes that do not fit the op, or our kernel.
    """
    Hq, Hkv, differs = node.attrs["q_num_heads"], node.attrs["kv_num_heads"], rule(node)[1]
    if min(Hq, Hkv) < 1 or max(Hq, Hkv) % min(Hq, Hkv):
        raise ModelError(f"{where_is(node)} {Hq} heads of the query do not fit {Hkv} of the key")
    if node.attrs["state_window"]:
        raise UnsupportedOp(f"{where_is(node)} is not supported with state_window")
    if (differs and node.input(5) is None) or (rule(node)[0] and node.input(4) is None):
        raise ModelError(f"{where_is(node)} has no decay or beta, as its update_rule asks for")
    if differs and isinstance(dims(node, 5)[2], int) and dims(node, 5)[2] not in (1, Hkv):
        raise ModelError(f"{where_is(node)} beta of shape {dims(node, 5)} is not for {Hkv} heads")
    B, T, width = dims(node)
    return B, T, Hq, Hkv, width // Hq, dims(node, 2)[2] // Hkv


def key_heads(node: Node, D: Dim) -> int:
    """How many heads the key has: where its width tells that, those of the values may be more."""
    heads, width = node.attrs["kv_num_heads"], dims(node, 1)[2]
    if isinstance(width, int) and isinstance(D, int) and D > 0 and width % D == 0:
        own = width // D
        return own if own and heads % own == 0 else heads
    return heads


def rule(node: Node) -> tuple[bool, bool]:
    """Whether the state decays, and whether it takes differences.

    Raises: UnsupportedOp for another update rule.
    """
    name = node.attrs["update_rule"]
    if name not in RULES:
        raise UnsupportedOp(f"{where_is(node)} is not supported with update_rule={name!r}")
    return RULES[name]


def per_head(node: Node, i: int) -> Dim:
    """How many numbers of input i (B, T, Hkv * n) there are for a head."""
    return dims(node, i)[2] // node.attrs["kv_num_heads"]


def scale(node: Node, depth: Dim) -> float:
    """Of the results: 1 / sqrt(D) by default.

    Raises: UnsupportedOp where D is not known.
    """
    if node.attrs["scale"]:
        return float(node.attrs["scale"])
    if not isinstance(depth, int):
        raise UnsupportedOp(f"{where_is(node)} has no scale, and an unknown head size {depth}")
    return 1 / math.sqrt(depth)
