"""The LSTM of the domain com.microsoft that attends to a memory: in numpy, as a host step.

Source: the operator schema of onnxruntime 1.32; where it leaves a choice, its CPU kernel.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims, require_shape, where_is
from q7x2_ep.ops.rnn import (
    ATTRIBUTES,
    applied_functions,
    clip_of,
    directions,
    functions,
    lstm_cell,
    times,
)

Array = Optional[np.ndarray]


@op("com.microsoft::AttnLSTM")
class AttnLSTM:
    """LSTM of x and what the last step attended to: the memory, weighted by the softmax over its
    steps of sum(v * tanh(memory @ memory_weight + h @ query_weight)), and times attention_weight
    behind h where that is given.

    Letters: D directions, H hidden, A depth of the attention, M of the memory, of L steps, C of
    what is attended to, M where there is no attention_weight.
    Shapes: x (S, N, I), w (D, 4 * H, I + C), r, b, p and states as LSTM, query_weight (D, H, A),
    memory_weight (D, M, A), v (D, A), memory (N, L, M), memory_lens (N,), attention_weight
    (D, H + M, C).
    Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and
    Translate".
    """

    signature = (
        "x: F, w: F, r: F, b?: F, sequence_lens?: int32, initial_h?: F, initial_c?: F, p?: F, "
        "query_weight: F, memory_weight: F, v: F, memory: F, memory_lens?: int32, "
        "attention_weight?: F -> y?, y_h?, y_c?"
    )
    attributes = {**{k: v for k, v in ATTRIBUTES.items() if k != "layout"}, "input_forget": 0}

    def infer(node: Node) -> list[Type]:
        x = dims(node)
        if len(x) != 3:
            raise ModelError(f"{where_is(node)} x has rank 3, not shape {x}")
        functions(node)
        clip_of(node)
        count, hidden = directions(node), node.attrs["hidden_size"] or dims(node, 2)[2]
        state = (count, x[1], hidden)
        shapes = ((x[0], *state), state, state)
        return [Type(node.inputs[0].dtype, shape) for shape in shapes][: len(node.outputs)]

    def reference(
        node: Node,
        x: np.ndarray,
        w: np.ndarray,
        r: np.ndarray,
        b: Array,
        lengths: Array,
        h: Array,
        c: Array,
        p: Array,
        query_weight: np.ndarray,
        memory_weight: np.ndarray,
        v: np.ndarray,
        memory: np.ndarray,
        memory_lens: Array = None,
        attention_weight: Array = None,
    ) -> tuple[np.ndarray, ...]:
        (steps, batch, width), count, hidden = x.shape, directions(node), r.shape[2]
        longest, depth = memory.shape[1:]
        seen = depth if attention_weight is None else attention_weight.shape[2]
        keys = query_weight.shape[2]
        state = (count, batch, hidden)
        expected = (
            ("W", w, (count, 4 * hidden, width + seen)),
            ("R", r, (count, 4 * hidden, hidden)),
            ("B", b, (count, 8 * hidden)),
            ("sequence_lens", lengths, (batch,)),
            ("initial_h", h, state),
            ("initial_c", c, state),
            ("P", p, (count, 3 * hidden)),
            ("QW", query_weight, (count, hidden, keys)),
            ("MW", memory_weight, (count, depth, keys)),
            ("V", v, (count, keys)),
            ("M", memory, (batch, longest, depth)),
            ("memory_seq_lens", memory_lens, (batch,)),
            ("AW", attention_weight, (count, hidden + depth, seen)),
        )
        for name, array, shape in expected:
            require_shape(node, name, array, *shape)
        lengths = _lengths(node, "sequence_lens", lengths, batch, steps)
        memory_lens = _lengths(node, "memory_seq_lens", memory_lens, batch, longest)
        bias = np.zeros((count, 8 * hidden), x.dtype) if b is None else b
        peephole = np.zeros((count, 3 * hidden), x.dtype) if p is None else p
        h, c = (np.zeros(state, x.dtype) if s is None else s.copy() for s in (h, c))
        y, cell = np.zeros((steps, *state), x.dtype), lstm_cell(node)
        is_hidden = np.arange(longest) >= memory_lens[:, None]
        for d, applied in enumerate(applied_functions(node, x.dtype)):
            key, attended = memory @ memory_weight[d], np.zeros((batch, seen), x.dtype)
            for t in times(node, d, steps):
                both = np.concatenate((x[t], attended), 1)
                new_h, new_c = cell(applied, both, h[d], c[d], w[d], r[d], bias[d], peephole[d])
                query = new_h @ query_weight[d]
                scores = np.tanh(key + query[:, None]) @ v[d]
                scores[is_hidden] = -np.inf
                weights = np.exp(scores - scores.max(1, keepdims=True))
                weights /= weights.sum(1, keepdims=True)
                new = np.einsum("nl,nlm->nm", weights, memory)
                if attention_weight is not None:
                    new = np.concatenate((new_h, new), 1) @ attention_weight[d]
                goes_on = (t < lengths)[:, None]
                attended = np.where(goes_on, new, attended)
                h[d], c[d] = np.where(goes_on, new_h, h[d]), np.where(goes_on, new_c, c[d])
                y[t, d] = np.where(goes_on, h[d], 0)
        return (y, h, c)[: len(node.outputs)]


def _lengths(node: Node, name: str, lengths: Array, batch: int, most: int) -> np.ndarray:
    """Raises: DataError for one that is not of 1 to `most` steps."""
    if lengths is None:
        return np.full(batch, most)
    if (lengths < 1).any() or (lengths > most).any():
        raise DataError(f"{where_is(node)} {name} are {lengths.tolist()}: expected 1 to {most}")
    return lengths
