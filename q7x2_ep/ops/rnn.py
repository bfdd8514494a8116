"""Recurrent networks: LSTM, GRU, RNN. csrc/kernels/rnn.h has the equations.

The input's product for all steps is one GEMM; one step of the plan then goes through time.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.activation import sigmoid
from q7x2_ep.ops.common import (
    F32,
    Guard,
    dims,
    is_used,
    require_dtype,
    reshaped,
    temporary,
    where_is,
)
from q7x2_ep.ops.matmul import gemm_step


class Function(NamedTuple):
    """A function that a cell applies: in the closed set `act`, and in numpy."""

    act: str
    reference: Callable[[np.ndarray, float, float], np.ndarray]
    alpha: Optional[float] = None  # the defaults of what it takes
    beta: Optional[float] = None


FUNCTIONS = {
    "affine": Function("affine", lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "relu": Function("relu", lambda x, alpha, beta: np.maximum(x, 0)),
    "leakyrelu": Function(
        "leaky_relu", lambda x, alpha, beta: np.where(x < 0, alpha * x, x), dtypes.attribute(0.01)
    ),
    "thresholdedrelu": Function(
        "thresholded_relu", lambda x, alpha, beta: np.where(x > alpha, x, 0), 1.0
    ),
    "tanh": Function("tanh", lambda x, alpha, beta: np.tanh(x)),
    "scaledtanh": Function(
        "scaled_tanh", lambda x, alpha, beta: alpha * np.tanh(beta * x), 1.0, 1.0
    ),
    "sigmoid": Function("sigmoid", lambda x, alpha, beta: sigmoid(x)),
    "hardsigmoid": Function(
        "hard_sigmoid",
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        dtypes.attribute(0.2),
        0.5,
    ),
    "elu": Function("elu", lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(x), x), 1.0),
    "softsign": Function("softsign", lambda x, alpha, beta: x / (1 + np.abs(x))),
    "softplus": Function("softplus", lambda x, alpha, beta: np.logaddexp(x, x.dtype.type(0))),
}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
USUAL = {
    "RNN": ("Tanh",),
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "com.microsoft::AttnLSTM": ("Sigmoid", "Tanh", "Tanh"),
}
LENGTHS = 4  # the position of sequence_lens
STEP_FUNCTIONS = 3  # for each direction in the op row `rnn`
ATTRIBUTES = {
    "activation_alpha": (),
    "activation_beta": (),
    "activations": None,
    "clip": None,
    "direction": "forward",
    "hidden_size": None,
    "layout": 0,
}

# What a node says


def directions(node: Node) -> int:
    """1 or 2.

    Raises: ModelError where `direction` is none of the three.
    """
    direction = node.attrs["direction"]
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ModelError(f"{where_is(node)} knows no direction {direction!r}")
    return 2 if direction == "bidirectional" else 1


def functions(node: Node) -> list[tuple[Function, float, float]]:
    """The functions of all directions with their alpha and beta, which take theirs from the lists
    in turn.

    RNN may name two whatever the direction, as its default does, which onnxruntime writes out in
    models that it saves; one direction takes the first.
    Raises: ModelError where one is unknown, or their number is wrong.
    """
    usual = USUAL[node.op] * directions(node)
    names = node.attrs["activations"] or usual
    if node.op == "RNN" and len(names) == 2:
        names = names[: len(usual)]
    if len(names) != len(usual):
        raise ModelError(f"{where_is(node)} needs {len(usual)} activations, not {len(names)}")
    alphas, betas = iter(node.attrs["activation_alpha"]), iter(node.attrs["activation_beta"])
    found = []
    for name in names:
        function = FUNCTIONS.get(name.lower())
        if function is None:
            raise ModelError(f"{where_is(node)} knows no activation {name!r}")
        alpha = 0.0 if function.alpha is None else next(alphas, function.alpha)
        beta = 0.0 if function.beta is None else next(betas, function.beta)
        found.append((function, alpha, beta))
    return found


def hidden_size(node: Node) -> Dim:
    return node.attrs["hidden_size"] or dims(node, 2)[2]


def clip_of(node: Node) -> float:
    clip = node.attrs["clip"]
    if clip is not None and not clip > 0:
        raise ModelError(f"{where_is(node)} clips at {clip}, which is not above 0")
    return float("inf") if clip is None else clip


def infer_recurrent(node: Node) -> list[Type]:
    for i, name in enumerate(("x", "w", "r")):
        if len(dims(node, i)) != 3:
            raise ModelError(f"{where_is(node)} {name} has rank 3, not shape {dims(node, i)}")
    functions(node)
    clip_of(node)
    for a, b, text in recurrent_guards(node):
        if isinstance(a, int) and isinstance(b, int):
            raise ModelError(f"{where_is(node)} {text}")
    batchwise, count = node.attrs["layout"], directions(node)
    sequence, batch = dims(node)[:2][:: -1 if batchwise else 1]
    hidden = hidden_size(node)
    state = (batch, count, hidden) if batchwise else (count, batch, hidden)
    y = (batch, sequence, count, hidden) if batchwise else (sequence, count, batch, hidden)
    outputs = (y, state, state) if node.op == "LSTM" else (y, state)
    return [Type(node.inputs[0].dtype, shape) for shape in outputs]


def recurrent_guards(node: Node) -> list[Guard]:
    gates = GATES[node.op]
    x, hidden, count = dims(node), hidden_size(node), directions(node)
    batch = x[0 if node.attrs["layout"] else 1]
    state = (batch, count, hidden) if node.attrs["layout"] else (count, batch, hidden)
    wanted = (
        (count, gates * hidden, x[2]),
        (count, gates * hidden, hidden),
        (count, 2 * gates * hidden),
        (batch,),
        state,
        state,
        (count, 3 * hidden),
    )
    found: list[Guard] = []
    for value, shape in zip(node.inputs[1:], wanted):
        if value is None:
            continue
        if len(value.shape) != len(shape):
            raise ModelError(f"{where_is(node)} {value.name}: shape {value.shape}, wanted {shape}")
        pairs = zip(value.shape, shape)
        found += [(a, b, f"{value.name}: dim {a}, wanted {b}") for a, b in pairs if a != b]
    return found


# Numpy

Cell = Callable[..., tuple[np.ndarray, np.ndarray]]


def applied_functions(node: Node, dtype: Any) -> list[list[Callable]]:
    """Those of each direction, of one array each; the first two clip it."""
    clip, each = clip_of(node), len(USUAL[node.op])
    applied = [
        lambda v, f=f, alpha=alpha, beta=beta: f.reference(v, alpha, beta).astype(dtype)
        for f, alpha, beta in functions(node)
    ]
    found = []
    for first in range(0, len(applied), each):
        own = applied[first : first + each]
        clipped = [lambda v, f=f: f(np.clip(v, -clip, clip)) for f in own[:2]]
        found.append([*clipped, *own[2:]])
    return found


def times(node: Node, d: int, steps: int) -> range:
    """The steps of direction d, in its order."""
    is_backward = d == 1 or node.attrs["direction"] == "reverse"
    return range(steps)[:: -1 if is_backward else 1]


def run_recurrent(
    node: Node,
    cell: Cell,
    x: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    bias: Optional[np.ndarray] = None,
    lengths: Optional[np.ndarray] = None,
    h: Optional[np.ndarray] = None,
    c: Optional[np.ndarray] = None,
    peephole: Optional[np.ndarray] = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y, the last h and the last c, from cell(f, x, h, c, w, r, bias, peephole), which
    gives the next h and c of all rows.
    """
    batchwise, dtype, count = node.attrs["layout"], x.dtype, directions(node)
    if batchwise:
        x, h, c = (value if value is None else value.swapaxes(0, 1) for value in (x, h, c))
    (steps, batch, _), hidden = x.shape, r.shape[2]
    if lengths is None:
        lengths = np.full(batch, steps)
    if (lengths < 0).any() or (lengths > steps).any():
        raise ModelError(f"{where_is(node)} sequence lengths {lengths} of {steps} steps")
    bias = np.zeros((count, 2 * r.shape[1]), dtype) if bias is None else bias
    peephole = np.zeros((count, 3 * hidden), dtype) if peephole is None else peephole
    zeros = np.zeros((count, batch, hidden), dtype)
    h, c = (zeros.copy() if state is None else state.copy() for state in (h, c))
    y = np.zeros((steps, count, batch, hidden), dtype)
    for d, applied in enumerate(applied_functions(node, dtype)):
        for t in times(node, d, steps):
            new = cell(applied, x[t], h[d], c[d], w[d], r[d], bias[d], peephole[d])
            goes_on = (t < lengths)[:, None]
            h[d], c[d] = (np.where(goes_on, a, b) for a, b in zip(new, (h[d], c[d])))
            y[t, d] = np.where(goes_on, h[d], 0)
    for state in (h, c):  # as in onnxruntime; ONNX does not say
        state[:, lengths == 0] = 0
    if batchwise:
        return y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    return y, h, c


# Steps


def packed_matrices(b: Any, weight: Value, matrices: int, n: Dim) -> Any:
    """The transposes of a weight (matrices, n, k) as the GEMM reads them: packed at load if it is
    constant, else by steps.
    """
    k = weight.shape[2]
    if weight.const is not None:
        const = weight.const.reshape(matrices, n, k)
        return b.packed(k, n, 1, k, b.graph.constant(const, Type(weight.dtype, const.shape)))
    nr = b.kernel("gemm").nr
    source = b.contiguous(weight).reshape((matrices, n * k))
    panels = temporary(b, weight.dtype, (matrices, ceildiv(n, nr) * nr * k))
    packed = b.allocate(panels)
    for i in range(matrices):
        b.step(
            "pack_b",
            b=source.slice(0, i, 1),
            packed=packed.slice(0, i, 1),
            nr=nr,
            k=k,
            n=n,
            k_stride=1,
            n_stride=k,
            width=nr,
            first=0,
            taps=1,
            tap_stride=0,
            dtype=dtypes.FLOAT,
            b_dtype=dtypes.FLOAT,
            drops=0,
        )
    return packed


def input_product(node: Node, b: Any, width: Dim) -> tuple[View, Dim, Dim]:
    """x @ W for all steps and rows of the batch, and its strides between each of these. A
    transposed x is read as it lies.
    """
    x, w = node.inputs[:2]
    rows, columns = product(x.shape[:2]), x.shape[2]
    flat = b.view(x).reshape((rows, columns))
    swapped = b.view(x).transpose((1, 0, 2)).reshape((rows, columns)) if flat is None else None
    weight = packed_matrices(b, w, 1, product(w.shape[:2]))
    result = b.allocate(temporary(b, x.dtype, (rows, width)))
    gemm_step(b, flat or swapped or reshaped(b, x, (rows, columns)), weight, result, width)
    inner = x.shape[0 if swapped else 1]
    strides = (inner * width, width) if swapped is None else (width, inner * width)
    return (result, *(strides[:: -1 if node.attrs["layout"] else 1]))


def allocate_y(node: Node, b: Any) -> tuple[Dim, Dim, Dim]:
    """Strides of y between steps, directions and rows of the batch. In memory the directions stand
    side by side, as the next layer reads them, unless the caller gets them.
    """
    y = node.output
    if node.attrs["layout"]:
        batch, steps, count, hidden = y.shape
        b.allocate(y)
        return count * hidden, hidden, steps * count * hidden
    steps, count, batch, hidden = y.shape
    if b.graph.is_output(y):
        b.allocate(y)
        return count * batch * hidden, batch * hidden, hidden
    s, d, row = batch * count * hidden, hidden, count * hidden
    b.allocate(y, (s, d, row, 1))
    return s, d, row


def lower_recurrent(node: Node, b: Any) -> None:
    """The input's product, then one step through time."""
    x, _, r, bias, lengths, h0, c0, peephole = (node.input(i) for i in range(8))
    gates = GATES[node.op]
    require_dtype(node, x.dtype, F32)
    if lengths is not None:
        require_dtype(node, lengths.dtype, (dtypes.INT32,))
    count, layout = directions(node), node.attrs["layout"]
    hidden = hidden_size(node)
    steps, batch = x.shape[:2][:: -1 if layout else 1]
    product_, x_s_stride, x_b_stride = input_product(node, b, count * gates * hidden)
    used = [is_used(b, node, i) for i in range(3)]
    y_s_stride, y_d_stride, y_b_stride = allocate_y(node, b) if used[0] else (0, 0, 0)
    applied, own = functions(node), len(USUAL[node.op])
    table = [
        applied[d * own + i] if d < count and i < own else (FUNCTIONS["relu"], 0.0, 0.0)
        for d in range(2)
        for i in range(STEP_FUNCTIONS)
    ]
    b.step(
        "rnn",
        kernel="rnn",
        x=product_,
        r=packed_matrices(b, r, count * gates, r.shape[2]),
        bias=bias,
        peephole=peephole,
        lengths=lengths,
        h0=h0,
        c0=c0,
        y=node.output if used[0] else None,
        y_h=node.outputs[1] if used[1] else None,
        y_c=node.outputs[2] if used[2] else None,
        work=count * batch * hidden * (gates + 3) * 4,
        gates=gates,
        S=steps,
        B=batch,
        D=count,
        H=hidden,
        nr=b.kernel("gemm").nr,
        reverse=int(node.attrs["direction"] == "reverse"),
        linear_before_reset=int(node.attrs.get("linear_before_reset", 0)),
        input_forget=int(node.attrs.get("input_forget", 0)),
        x_s_stride=x_s_stride,
        x_b_stride=x_b_stride,
        y_s_stride=y_s_stride,
        y_d_stride=y_d_stride,
        y_b_stride=y_b_stride,
        state_d_stride=hidden if layout else batch * hidden,
        state_b_stride=count * hidden if layout else hidden,
        act=[function.act for function, _, _ in table],
        act_alpha=[alpha for _, alpha, _ in table],
        act_beta=[beta for _, _, beta in table],
        clip=clip_of(node),
    )


@op("RNN")
class RNN:
    """h = f(x W + h R + b) from step to step; y holds every h, y_h the last one.

    Shapes: x (S, B, I); w (D, H, I); r (D, H, H); b (D, 2H); initial_h and y_h (D, B, H);
    y (S, D, B, H); with layout 1 B comes first.
    """

    signature = "x: F, w: F, r: F, b?: F, sequence_lens?: int32, initial_h?: F -> y?, y_h?"
    attributes = ATTRIBUTES
    strided = (0,)
    infer = infer_recurrent

    def reference(node: Node, *inputs: Optional[np.ndarray]) -> tuple[np.ndarray, ...]:
        def cell(f: Any, x: Any, h: Any, c: Any, w: Any, r: Any, bias: Any, p: Any) -> Any:
            return f[0](x @ w.T + h @ r.T + sum(np.split(bias, 2))), c

        return run_recurrent(node, cell, *inputs)[:2]

    guards = recurrent_guards
    lower = lower_recurrent


@op("GRU")
class GRU:
    """h = (1 - z) g(..) + z h with gates z and r, as csrc/kernels/rnn.h has it.

    Shapes: as RNN, but 3 H in w and r for z r h, 6 H in b.
    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder".
    """

    signature = "x: F, w: F, r: F, b?: F, sequence_lens?: int32, initial_h?: F -> y?, y_h?"
    attributes = {**ATTRIBUTES, "linear_before_reset": 0}
    strided = (0,)
    infer = infer_recurrent

    def reference(node: Node, *inputs: Optional[np.ndarray]) -> tuple[np.ndarray, ...]:
        def cell(f: Any, x: Any, h: Any, c: Any, w: Any, r: Any, bias: Any, p: Any) -> Any:
            own, state = np.split(bias, 2)
            given, (r_z, r_r, r_h) = np.split(x @ w.T + own, 3, axis=-1), np.split(r, 3)
            b_z, b_r, b_h = np.split(state, 3)
            z, reset = f[0](given[0] + h @ r_z.T + b_z), f[0](given[1] + h @ r_r.T + b_r)
            if node.attrs["linear_before_reset"]:
                fresh = f[1](given[2] + reset * (h @ r_h.T + b_h))
            else:
                fresh = f[1](given[2] + (reset * h) @ r_h.T + b_h)
            return (1 - z) * fresh + z * h, c

        return run_recurrent(node, cell, *inputs)[:2]

    guards = recurrent_guards
    lower = lower_recurrent


def lstm_cell(node: Node) -> Cell:
    def cell(f: Any, x: Any, h: Any, c: Any, w: Any, r: Any, bias: Any, p: Any) -> Any:
        sums = x @ w.T + h @ r.T + sum(np.split(bias, 2))
        (i, o, forget, new), (p_i, p_o, p_f) = np.split(sums, 4, axis=-1), np.split(p, 3)
        i = f[0](i + p_i * c)
        forget = 1 - i if node.attrs["input_forget"] else f[0](forget + p_f * c)
        c = forget * c + i * f[1](new)
        return f[0](o + p_o * c) * f[2](c), c

    return cell


@op("LSTM")
class LSTM:
    """h = o h(c), c = f c + i g(..) with gates i, o and f, as csrc/kernels/rnn.h has it.

    Shapes: as RNN, but 4 H in w and r for i o f c, 8 H in b; p (D, 3H) for i o f; initial_c and
    y_c as y_h.
    Source: Gers and Schmidhuber 2000, "Recurrent Nets that Time and Count".
    """

    signature = (
        "x: F, w: F, r: F, b?: F, sequence_lens?: int32, initial_h?: F, initial_c?: F, "
        "p?: F -> y?, y_h?, y_c?"
    )
    attributes = {**ATTRIBUTES, "input_forget": 0}
    strided = (0,)
    infer = infer_recurrent

    def reference(node: Node, *inputs: Optional[np.ndarray]) -> tuple[np.ndarray, ...]:
        return run_recurrent(node, lstm_cell(node), *inputs)

    guards = recurrent_guards
    lower = lower_recurrent
