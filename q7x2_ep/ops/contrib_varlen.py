"""Ops of the domain com.microsoft over sequences of their own lengths, packed one behind another:
in numpy, as host steps, but for a GatedDeltaNet of equal ones.

Letters: N tokens of all sequences, B sequences, which begin and end at ends (B + 1,); the state of
a sequence is what its next part begins with.
Source: the operator schemas of onnxruntime 1.32; where they leave a choice, its CPU kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops import op
from q7x2_ep.ops.activation import sigmoid
from q7x2_ep.ops.builder import Given
from q7x2_ep.ops.common import dims, require_shape, where_is
from q7x2_ep.ops.linear_attention import RULES

Array = Optional[np.ndarray]
MOST_CAPTURED = 8  # states of a sequence that an op may hand out
SMALLEST = 1e-12  # of the square of a norm that is divided by


def sequences(node: Node, ends: np.ndarray, count: int) -> Iterator[tuple[int, slice]]:
    """The tokens of each sequence.

    Raises: DataError for ends that do not part `count` tokens, one at least for each sequence.
    """
    if ends.ndim != 1 or len(ends) < 2 or ends[0] != 0 or ends[-1] != count:
        raise DataError(
            f"{where_is(node)} sequences end at {ends.tolist()}: expected 0 to {count}, the tokens"
        )
    if (np.diff(ends) < 1).any():
        raise DataError(f"{where_is(node)} sequences end at {ends.tolist()}: one is empty")
    return ((b, slice(*ends[b : b + 2].tolist())) for b in range(len(ends) - 1))


def captured(node: Node, count: Array, sequences: int) -> int:
    """How many states of each sequence are handed out.

    Raises: ModelError where `count`, of each, is given without room for them, or the reverse.
    """
    capacity: int = node.attrs["state_update_capacity"]
    if not 0 <= capacity <= MOST_CAPTURED:
        raise ModelError(
            f"{where_is(node)} state_update_capacity is {capacity}: expected 0 to {MOST_CAPTURED}"
        )
    if (count is not None) != (capacity > 0):
        given = "no" if count is None else "a"
        raise ModelError(
            f"{where_is(node)} has {given} capture_count with a state_update_capacity of {capacity}"
        )
    require_shape(node, "capture_count", count, sequences)
    return capacity


@op("com.microsoft::VarlenCausalConvWithState")
class VarlenCausalConvWithState:
    """CausalConvWithState of packed sequences, and the first tokens of each: as many as `count`
    asks for, zeros behind them.

    Shapes: x, y (N, C), w (C, 1, k), bias (C,), past, present (B, C, (k - 1) * dilation), update
    (B, capacity, C).
    """

    signature = (
        "x: F, w: F, ends: int32, bias?: F, past: F, count?: int32, delta?: F, mask?: F "
        "-> y, present, update?"
    )
    attributes = {
        "activation": "none",
        "delta_offset": 0,
        "dilation": 1,
        "group_size": 1,
        "state_update_capacity": 0,
    }
    choices = {"activation": ("none", "silu", "swish")}

    def infer(node: Node) -> list[Type]:
        if node.input(6) is not None or node.input(7) is not None:
            raise UnsupportedOp(f"{where_is(node)} is not supported with kernel_delta")
        dtype, past = node.inputs[0].dtype, dims(node, 4)
        update = (past[0], node.attrs["state_update_capacity"], past[1])
        return [Type(dtype, shape) for shape in (dims(node), past, update)][: len(node.outputs)]

    def reference(
        node: Node,
        x: np.ndarray,
        w: np.ndarray,
        ends: np.ndarray,
        bias: Array,
        past: np.ndarray,
        count: Array = None,
    ) -> tuple[np.ndarray, ...]:
        (tokens, channels), taps, gap = x.shape, w.shape[2], node.attrs["dilation"]
        before, batch = (taps - 1) * gap, len(ends) - 1
        require_shape(node, "weight", w, channels, 1, taps)
        require_shape(node, "bias", bias, channels)
        require_shape(node, "initial_state", past, batch, channels, before)
        capacity = captured(node, count, batch)
        y, present = np.empty_like(x), np.empty_like(past)
        update = np.zeros((batch, capacity, channels), x.dtype)
        wide = np.promote_types(x.dtype, np.float32)
        kernel = w[:, 0].astype(wide)
        for b, part in sequences(node, ends, tokens):
            whole = np.concatenate((past[b].T, x[part]))
            length = len(whole) - before
            total = np.zeros((length, channels), wide)
            for tap in range(taps):
                total += whole[tap * gap : tap * gap + length].astype(wide) * kernel[:, tap]
            if bias is not None:
                total += bias.astype(wide)
            if node.attrs["activation"] != "none":
                total = total * sigmoid(total)
            y[part] = total.astype(x.dtype)
            present[b] = whole[length:].T
            if count is not None:
                n = min(max(int(count[b]), 0), capacity, length)
                update[b, :n] = x[part][:n]
        return (y, present, update)[: len(node.outputs)]


NGRAMS = {"max_ngram_size": None, "n_head_per_ngram": None, "pad_id": None, "reset_on_eos": 0}


@op("com.microsoft::NGramHashMapping")
class NGramHashMapping:
    """Hashes of the n-grams that end at each token: y[.., (n - 2) * H + h] is the exclusive or of
    the last n tokens, each times its multiplier, modulo the size of head h of n, plus its offset.

    What is before the sequence is past, else eos, else pad_id; with reset_on_eos eos stands for all
    up to the last eos before the token, as it does for all of another segment.
    Letters: n from 2 to max_ngram_size = 1 + P, H heads of each.
    Shapes: ids, segments (B, S), multipliers (P + 1..), sizes, offsets (P * H,), past, present
    (B, P), y (B, S, P * H).
    """

    signature = (
        "ids: index, multipliers: index, sizes: index, past?: index, offsets?: index, eos?: index, "
        "segments?: int32 -> y, present?"
    )
    attributes = NGRAMS

    def infer(node: Node) -> list[Type]:
        length, width = _ngrams(node)
        dtype, (batch, steps) = node.inputs[0].dtype, dims(node)
        found = [Type(dtype, (batch, steps, width)), Type(dtype, (batch, length))]
        return found[: len(node.outputs)]

    def reference(
        node: Node,
        ids: np.ndarray,
        multipliers: np.ndarray,
        sizes: np.ndarray,
        past: Array = None,
        offsets: Array = None,
        eos: Array = None,
        segments: Array = None,
    ) -> tuple[np.ndarray, ...]:
        length, width = _ngrams(node)
        batch, steps = ids.shape
        hashes = _Hashes(node, multipliers, sizes, offsets, eos)
        require_shape(node, "past_ids", past, batch, length)
        require_shape(node, "segment_ids", segments, batch, steps)
        y = np.empty((batch, steps, width), ids.dtype)
        present = np.empty((batch, length), ids.dtype)
        for b in range(batch):
            whole = hashes.whole(ids[b], None if past is None else past[b])
            parts = None if segments is None or not steps else _led(segments[b], length)
            y[b], present[b] = hashes.of(whole, parts), whole[steps:]
        return (y, present)[: len(node.outputs)]


@op("com.microsoft::VarlenNGramHashMapping")
class VarlenNGramHashMapping:
    """NGramHashMapping of packed sequences, whose segments go on from those of the past; and the
    state after each of the first `count` tokens of each, pad_id behind them.

    Shapes: ids, segments (N,), y (N, P * H), past, present and those of segments (B, P), update
    (B, capacity, P).
    """

    signature = (
        "ids: index, multipliers: index, sizes: index, ends: int32, past?: index, offsets?: index, "
        "eos?: index, segments?: int32, past_segments?: int32, count?: int32 "
        "-> y, present?, present_segments?, update?"
    )
    attributes = {**NGRAMS, "state_update_capacity": 0}

    def infer(node: Node) -> list[Type]:
        (length, width), dtype = _ngrams(node), node.inputs[0].dtype
        batch = dims(node, 3)[0] - 1
        found = [
            Type(dtype, (dims(node)[0], width)),
            Type(dtype, (batch, length)),
            Type(dtypes.INT32, (batch, length)),
            Type(dtype, (batch, node.attrs["state_update_capacity"], length)),
        ]
        return found[: len(node.outputs)]

    def reference(
        node: Node,
        ids: np.ndarray,
        multipliers: np.ndarray,
        sizes: np.ndarray,
        ends: np.ndarray,
        past: Array = None,
        offsets: Array = None,
        eos: Array = None,
        segments: Array = None,
        past_segments: Array = None,
        count: Array = None,
    ) -> tuple[np.ndarray, ...]:
        (length, width), batch = _ngrams(node), len(ends) - 1
        hashes = _Hashes(node, multipliers, sizes, offsets, eos)
        capacity = captured(node, count, batch)
        require_shape(node, "past_ids", past, batch, length)
        require_shape(node, "segment_ids", segments, len(ids))
        require_shape(node, "past_segment_ids", past_segments, batch, length)
        if segments is None and past_segments is not None:
            raise ModelError(f"{where_is(node)} has past_segment_ids without segment_ids")
        y = np.empty((len(ids), width), ids.dtype)
        present = np.empty((batch, length), ids.dtype)
        present_segments = np.zeros((batch, length), np.int32)
        update = np.full((batch, capacity, length), node.attrs["pad_id"], ids.dtype)
        for b, part in sequences(node, ends, len(ids)):
            whole = hashes.whole(ids[part], None if past is None else past[b])
            steps, parts = len(whole) - length, None
            if segments is not None:
                before = None if past_segments is None else past_segments[b]
                parts = _led(segments[part], length, before)
                present_segments[b] = parts[steps:]
            y[part], present[b] = hashes.of(whole, parts), whole[steps:]
            if count is not None:
                for j in range(min(int(count[b]), capacity, steps)):
                    update[b, j] = whole[j + 1 : j + 1 + length]
        return (y, present, present_segments, update)[: len(node.outputs)]


def _ngrams(node: Node) -> tuple[int, int]:
    """P and P * H.

    Raises: ModelError for n-grams of fewer than two tokens, or no heads.
    """
    n, heads = node.attrs["max_ngram_size"], node.attrs["n_head_per_ngram"]
    if None in (n, heads, node.attrs["pad_id"]):
        raise ModelError(f"{where_is(node)} needs max_ngram_size, n_head_per_ngram and pad_id")
    if n < 2 or heads < 1:
        raise ModelError(
            f"{where_is(node)} max_ngram_size is {n}, n_head_per_ngram {heads}: expected 2 and 1 "
            "at least"
        )
    return n - 1, (n - 1) * heads


def _led(segments: np.ndarray, length: int, past: Array = None) -> np.ndarray:
    """Segments with those before them, which are the first one's where nothing tells them."""
    return np.concatenate((np.repeat(segments[:1], length) if past is None else past, segments))


class _Hashes:
    """The hashes of one sequence after another, in the dtype of its ids, whose products wrap."""

    def __init__(
        self, node: Node, multipliers: np.ndarray, sizes: np.ndarray, offsets: Array, eos: Array
    ):
        """Raises: DataError for operands of other shapes, and sizes that are not positive."""
        self.length, width = _ngrams(node)
        if multipliers.ndim != 1 or len(multipliers) <= self.length:
            raise DataError(
                f"{where_is(node)} multipliers is {list(multipliers.shape)}: expected "
                f"[{self.length + 1}] at least"
            )
        require_shape(node, "vocab_sizes", sizes, width)
        require_shape(node, "head_offsets", offsets, width)
        require_shape(node, "eos_token_id", eos)
        if (sizes <= 0).any():
            raise DataError(f"{where_is(node)} vocab_sizes are {sizes.tolist()}: one is not > 0")
        self.multipliers, self.offsets = multipliers, offsets
        self.sizes = sizes.reshape(self.length, -1)
        self.fill = node.attrs["pad_id"] if eos is None else eos.item()
        self.resets = bool(node.attrs["reset_on_eos"]) and eos is not None

    def whole(self, ids: np.ndarray, past: Array) -> np.ndarray:
        """The ids behind those of the past."""
        if past is None:
            past = np.full(self.length, self.fill, ids.dtype)
        return np.concatenate((past, ids))

    def of(self, whole: np.ndarray, segments: Array) -> np.ndarray:
        """(S, P * H) of P ids of the past and S others."""
        places = np.arange(len(whole))
        ends = whole == self.fill if self.resets else np.zeros(len(whole), bool)
        if segments is not None:
            ends[:-1] |= segments[1:] != segments[:-1]
        # the last place before each token that is of another text
        last = np.maximum.accumulate(np.where(ends, places, -1))[self.length - 1 : -1]
        now = places[self.length :]
        mix, found = whole[self.length :] * self.multipliers[0], []
        for k in range(1, self.length + 1):
            token = np.where(now - k <= last, self.fill, whole[now - k]).astype(whole.dtype)
            mix = mix ^ token * self.multipliers[k]
            found.append(mix[:, None] % self.sizes[k - 1])
        y = np.concatenate(found, 1)
        return y if self.offsets is None else y + self.offsets


def _infer_net(node: Node) -> list[Type]:
    tokens, batch, Hq, Hv, D, Dv = _net_sizes(node)
    capacity, decay = node.attrs["state_update_capacity"], node.input(4)
    per_head = D if decay is not None and len(decay.shape) == len(tokens) + 2 else 1
    found = [
        Type(node.inputs[0].dtype, (*tokens, Hv, Dv)),
        Type(dtypes.FLOAT, (batch, Hv, Dv, D)),
        Type(dtypes.FLOAT, (batch, capacity * (Hv * per_head + Hq * D + Hv * Dv))),
    ]
    return found[: len(node.outputs)]


@op("com.microsoft::GatedDeltaNet")
class GatedDeltaNet:
    """LinearAttention of packed sequences, with states as (values, keys) in float32, and what its
    gates are made of.

    gate_activation makes of decay g, softplus -exp(a_log) * softplus(g + dt_bias), sigmoid
    gate_lower_bound * sigmoid(exp(a_log) * (g + dt_bias)); beta_activation may be sigmoid, too;
    with qk_l2_norm each head of query and key has the norm 1. Update holds the first `count` steps
    of each sequence: the factors exp(g), the keys, and what was multiplied by them; zeros behind.
    Letters: Hq heads of query and key, Hv of values and states, D and Dv their sizes.
    Shapes: query, key (N, Hq, D), value, y (N, Hv, Dv), states (B, Hv, Dv, D), decay (N, Hv) or
    (N, Hv, D), beta (N, Hv), a_log (Hv,), dt_bias (Hv,) or (Hv * D,); or (B, T) for N, where ends
    are not given; or (N, 2 * Hq * D + Hv * Dv), query, key and value behind one another. Update
    (B, capacity * (decays + Hq * D + Hv * Dv)).
    """

    signature = (
        "query: F, key?: F, value?: F, ends?: int32, decay?: F1, beta?: F1, past?: float32, "
        "a_log?: float32, dt_bias?: float32, count?: int32, active?: int32 "
        "-> y, present?, update?"
    )
    attributes = {
        "beta_activation": "none",
        "chunk_size": 64,
        "gate_activation": "none",
        "gate_lower_bound": -5.0,
        "qk_l2_norm": 0,
        "scale": 0.0,
        "state_update_capacity": 0,
        "update_rule": "gated_delta",
    }
    choices = {
        "beta_activation": ("none", "sigmoid"),
        "gate_activation": ("none", "softplus", "qwen", "sigmoid", "kda"),
        "update_rule": tuple(RULES),
    }

    infer = _infer_net

    def decompose(
        g: Any,
        query: Value,
        key: Given = None,
        value: Given = None,
        ends: Given = None,
        decay: Given = None,
        beta: Given = None,
        past: Given = None,
        a_log: Given = None,
        dt_bias: Given = None,
        count: Given = None,
        active: Given = None,
        **attrs: Any,
    ) -> tuple[Value, ...]:
        operands = (query, key, value, ends, decay, beta, past, a_log, dt_bias, count, active)
        is_plain = key is not None and value is not None and past is not None
        heads = query.shape[-2], value.shape[-2] if value is not None else None
        if not is_plain or ends is not None or attrs["state_update_capacity"]:
            return g.call("q7::GatedDeltaNet", *operands, outputs=3, **attrs)
        if not all(isinstance(n, int) for n in (*heads, query.shape[-1])):
            return g.call("q7::GatedDeltaNet", *operands, outputs=3, **attrs)
        (Hq, Hv), D, batch = heads, query.shape[-1], past.shape[0]

        def rows(x: Value, width: Dim) -> Value:  # (B, T, width) in float32
            x = x if x.dtype == dtypes.FLOAT else g.Cast(x, to=dtypes.FLOAT)
            steps = x.shape[1] if len(query.shape) == 4 else -1
            return g.Reshape(x, [batch, steps, width])

        def normal(x: Value) -> Value:
            if not attrs["qk_l2_norm"]:
                return rows(x, Hq * D)
            wide = x if x.dtype == dtypes.FLOAT else g.Cast(x, to=dtypes.FLOAT)
            square = g.ReduceSum(g.Mul(wide, wide), [-1], keepdims=1)
            return rows(g.Div(wide, g.Sqrt(g.Add(square, SMALLEST))), Hq * D)

        if decay is not None:
            per_head = D if len(decay.shape) == len(query.shape) else 1
            decay = _gate(g, rows(decay, Hv * per_head), a_log, dt_bias, Hv, per_head, attrs)
        if beta is not None:
            beta = rows(beta, Hv)
            beta = g.Sigmoid(beta) if attrs["beta_activation"] == "sigmoid" else beta
        y, present = g.call(
            "com.microsoft::LinearAttention",
            *(normal(query), normal(key), rows(value, Hv * value.shape[-1])),
            *(g.Transpose(past, perm=(0, 1, 3, 2)), decay, beta),
            outputs=2,
            q_num_heads=Hq,
            kv_num_heads=Hv,
            **{name: attrs[name] for name in ("scale", "update_rule")},
        )
        y = g.Reshape(y, [*query.shape[:-2], Hv, value.shape[-1]])
        y = y if query.dtype == dtypes.FLOAT else g.Cast(y, to=query.dtype)
        return y, g.Transpose(present, perm=(0, 1, 3, 2))


def _gate(
    g: Any, x: Value, a_log: Given, dt_bias: Given, heads: int, per_head: int, attrs: dict
) -> Value:
    """The logarithm of what states are multiplied by, of x (B, T, heads * per_head)."""
    gate = attrs["gate_activation"]
    if gate == "none":
        return x
    speed = g.Reshape(g.Expand(g.Reshape(g.Exp(a_log), [heads, 1]), [heads, per_head]), [-1])
    x = g.Add(x, g.Reshape(dt_bias, [-1]))
    if gate in ("softplus", "qwen"):
        return g.Neg(g.Mul(speed, g.Softplus(x)))
    return g.Mul(g.Sigmoid(g.Mul(speed, x)), attrs["gate_lower_bound"])


@op("q7::GatedDeltaNet")
class PackedDeltaNet:
    """GatedDeltaNet of sequences of their own lengths, and with updates."""

    signature = GatedDeltaNet.signature
    attributes = GatedDeltaNet.attributes
    infer = _infer_net
    standard = lambda node: ("com.microsoft::GatedDeltaNet", node.inputs, node.attrs)

    def reference(
        node: Node,
        query: np.ndarray,
        key: Array = None,
        value: Array = None,
        ends: Array = None,
        decay: Array = None,
        beta: Array = None,
        past: Array = None,
        a_log: Array = None,
        dt_bias: Array = None,
        count: Array = None,
        active: Array = None,
    ) -> tuple[np.ndarray, ...]:
        dtype, wide = query.dtype, np.float32
        if key is None or value is None:
            Hv, Dv, D = past.shape[1:]
            parts = np.split(query, [(n := (query.shape[-1] - Hv * Dv) // 2), 2 * n], axis=-1)
            query, key, value = (x.reshape(len(x), -1, d) for x, d in zip(parts, (D, D, Dv)))
        tokens, (Hv, Dv), (Hq, D) = query.shape[:-2], value.shape[-2:], query.shape[-2:]
        N = int(np.prod(tokens))
        q, k, v = (x.reshape(N, *x.shape[-2:]).astype(wide) for x in (query, key, value))
        if ends is None:
            batch = len(past)
            if N % max(batch, 1):
                raise DataError(f"{where_is(node)} {N} tokens are not of {batch} equal sequences")
            ends = np.linspace(0, N, batch + 1).astype(np.int32)
        else:
            batch = len(ends) - 1
        require_shape(node, "initial_state", past, batch, Hv, Dv, D)
        is_captured = active is None or active.item() != 0
        capacity = captured(node, count, batch)
        if node.attrs["qk_l2_norm"]:
            q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + SMALLEST) for x in (q, k))
        differs = RULES[node.attrs["update_rule"]][1]
        factors = _factors(node, decay, a_log, dt_bias, N, Hv)
        rates = np.ones((N, Hv), wide)
        if beta is not None:
            rates = beta.reshape(N, Hv).astype(wide)
            rates = sigmoid(rates) if node.attrs["beta_activation"] == "sigmoid" else rates
        scale = node.attrs["scale"] or D**-0.5
        y = np.empty((N, Hv, Dv), wide)
        present = np.zeros((batch, Hv, Dv, D), wide) if past is None else past.copy()
        widths = (factors[:1].size, Hq * D, Hv * Dv)
        update = np.zeros((batch, capacity * sum(widths)), wide)
        for b, part in sequences(node, ends, N):
            state = present[b]
            rows = [np.zeros((capacity, n), wide) for n in widths]
            kept = min(max(int(count[b]), 0), capacity) if count is not None and is_captured else 0
            for i, t in enumerate(range(part.start, part.stop)):
                own = np.repeat(k[t], Hv // Hq, 0)
                state = state * factors[t][:, None]
                d = v[t]
                if differs:
                    d = (d - np.einsum("hvk,hk->hv", state, own)) * rates[t][:, None]
                state = state + d[:, :, None] * own[:, None]
                y[t] = np.einsum("hvk,hk->hv", state, np.repeat(q[t], Hv // Hq, 0)) * scale
                if i < kept:
                    for row, x in zip(rows, (factors[t], k[t], d)):
                        row[i] = x.ravel()
            present[b] = state
            update[b] = np.concatenate([row.ravel() for row in rows])
        results = (y.reshape(*tokens, Hv, Dv).astype(dtype), present, update)
        return results[: len(node.outputs)]


def _net_sizes(node: Node) -> tuple[tuple[Dim, ...], Dim, Dim, Dim, Dim, Dim]:
    """The dims of the tokens, B, Hq, Hv, D and Dv.

    Raises: ModelError where operands that tell them are not given, or do not fit.
    """
    shape, key, value, past = dims(node), node.input(1), node.input(2), node.input(6)
    if past is None and (key is None or node.input(3) is None):
        raise ModelError(f"{where_is(node)} has no initial_state, which tells its sizes")
    decays, differs = RULES[node.attrs["update_rule"]]
    gates = node.attrs["gate_activation"] != "none"
    needed = (
        (4, "decay", "update_rule", decays),
        (5, "beta", "update_rule", differs),
        (7, "a_log", "gate_activation", gates),
        (8, "dt_bias", "gate_activation", gates),
    )
    for i, name, attribute, is_needed in needed:
        if is_needed != (node.input(i) is not None):
            given = f"{attribute}={node.attrs[attribute]!r}"
            raise ModelError(
                f"{where_is(node)} {given} {'needs' if is_needed else 'takes no'} {name}"
            )
    batch = dims(node, 3)[0] - 1 if node.input(3) is not None else dims(node, 6)[0]
    if key is None or value is None:
        tokens, (_, Hv, Dv, D) = shape[:1], dims(node, 6)
        Hq: Any = (shape[1] - Hv * Dv) // (2 * D)
    else:
        tokens, (Hq, D), (Hv, Dv) = shape[:-2], shape[-2:], dims(node, 2)[-2:]
    if isinstance(Hq, int) and isinstance(Hv, int) and (Hq < 1 or Hv % Hq):
        raise ModelError(f"{where_is(node)} {Hq} heads of keys do not fit {Hv} of values")
    return tokens, batch, Hq, Hv, D, Dv


def _factors(node: Node, decay: Array, a_log: Any, dt_bias: Any, N: int, Hv: int) -> np.ndarray:
    """What states are multiplied by at each token, (N, Hv, 1 or D) in float32."""
    if decay is None:
        return np.ones((N, Hv, 1), np.float32)
    g = decay.reshape(N, Hv, -1).astype(np.float32)
    gate = node.attrs["gate_activation"]
    if gate != "none":
        g, speed = g + dt_bias.reshape(Hv, -1), np.exp(a_log)[:, None]
        if gate in ("softplus", "qwen"):
            g = -speed * np.logaddexp(g, np.float32(0))
        else:
            g = np.float32(node.attrs["gate_lower_bound"]) * sigmoid(speed * g)
    return np.exp(g)
