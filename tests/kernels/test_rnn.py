"""rnn: every kernel row, against the catalogue's references in float64."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
import pytest

from q7x2_ep import dtypes
from q7x2_ep.backend.cpu.library import DATA_FAULT, StatusError, load
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ops import find
from q7x2_ep.ops.rnn import FUNCTIONS, GATES, USUAL
from q7x2_ep.plan.target import KernelRow
from tests.kernels.harness import rows, run_threads, tolerance
from tests.kernels.test_gemm import K_BLOCK, pack

every_row = pytest.mark.parametrize("row", rows("rnn"), ids=lambda row: row.name)
ROWS = load().target.constants["RNN_ROWS"]
THREADS = (1, 2, 3, 8)
CELLS = [("RNN", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {})]
every_cell = pytest.mark.parametrize(("op", "attrs"), CELLS, ids=["rnn", "gru", "linear", "lstm"])


class Operands(NamedTuple):
    """x is the input's product already. Shapes: x (S, B, D, gates, H), the others as in ONNX."""

    x: np.ndarray
    r: np.ndarray
    bias: Optional[np.ndarray]
    lengths: Optional[np.ndarray]
    h0: Optional[np.ndarray]
    c0: Optional[np.ndarray]
    peephole: Optional[np.ndarray]


def operands(op: str, S: int, B: int, D: int, H: int, ragged: bool = False) -> Operands:
    generator, gates = np.random.default_rng([S, B, D, H]), GATES[op]

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (generator.standard_normal(shape) * scale).astype(np.float32)

    return Operands(
        normal(S, B, D, gates, H),
        normal(D, gates * H, H, scale=max(H, 1) ** -0.5),
        normal(D, 2 * gates * H),
        generator.integers(0, S + 1, B).astype(np.int32) if ragged else None,
        normal(D, B, H),
        normal(D, B, H) if op == "LSTM" else None,
        normal(D, 3 * H) if op == "LSTM" else None,
    )


def rnn(row: KernelRow, op: str, given: Operands, batchwise: bool = False, **attrs: Any) -> tuple:
    """y, y_h and y_c, which held NaN, as ONNX has them whatever their layout."""
    S, B, D, gates, H = given.x.shape
    gemm = next(each for each in rows("gemm") if each.isa == row.isa)
    matrices = given.r.reshape(D * gates, H, H)
    functions = [FUNCTIONS[f.lower()] for f in attrs.get("activations", USUAL[op] * D)]
    own = len(functions) // D
    table = [*functions[:own], *[functions[0]] * (3 - own)]
    table += [*functions[own:], *[functions[0]] * (3 - own)] if D == 2 else table
    order, state = (1, 0, 2, 3, 4) if batchwise else (0, 1, 2, 3, 4), (1, 0, 2)

    def placed(array: Optional[np.ndarray]) -> Optional[np.ndarray]:
        return array.transpose(state).copy() if batchwise and array is not None else array

    y = np.full((B, S, D, H) if batchwise else (S, D, B, H), np.nan, np.float32)
    last = np.full((B, D, H) if batchwise else (D, B, H), np.nan, np.float32)
    width = D * gates * H
    results = run_threads(
        "rnn",
        row,
        threads=THREADS,
        x=given.x.transpose(order).copy(),
        r=np.concatenate([pack(gemm, matrix.T.copy()) for matrix in matrices]),
        bias=given.bias,
        peephole=given.peephole,
        lengths=given.lengths,
        h0=placed(given.h0),
        c0=placed(given.c0),
        y=y,
        y_h=last,
        y_c=last if op == "LSTM" else None,
        work=D * B * H * (gates + 3) * 4,
        gates=gates,
        S=S,
        B=B,
        D=D,
        H=H,
        nr=gemm.nr,
        reverse=int(attrs.get("direction") == "reverse"),
        linear_before_reset=attrs.get("linear_before_reset", 0),
        input_forget=attrs.get("input_forget", 0),
        x_s_stride=width if batchwise else B * width,
        x_b_stride=S * width if batchwise else width,
        y_s_stride=D * H if batchwise else D * B * H,
        y_d_stride=H if batchwise else B * H,
        y_b_stride=S * D * H if batchwise else H,
        state_d_stride=H if batchwise else B * H,
        state_b_stride=D * H if batchwise else H,
        act=[f.act for f in table],
        act_alpha=[f.alpha or 0.0 for f in table],
        act_beta=[f.beta or 0.0 for f in table],
        clip=attrs.get("clip", np.inf),
    )
    if not batchwise:
        return results
    return (results[0].transpose(1, 2, 0, 3), *(each.transpose(1, 0, 2) for each in results[1:]))


def expected(op: str, given: Operands, **attrs: Any) -> tuple[np.ndarray, ...]:
    """The same in float64, by weights of the input that pick the product of their gate."""
    S, B, D, gates, H = given.x.shape
    width = D * gates * H
    arrays = [
        given.x.reshape(S, B, width),
        np.eye(width).reshape(D, gates * H, width),
        *given[1:5],
        *(given[5:] if op == "LSTM" else ()),
    ]
    wide = [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in arrays]
    values = [
        None if x is None else Value("x", dtypes.from_numpy(x.dtype), x.shape) for x in arrays
    ]
    attrs = {"direction": "bidirectional" if D == 2 else "forward", **attrs}
    node = Node(op, values, [], {**find(op).attributes, **attrs}, "node")
    return find(op).reference(node, *wide)


def assert_right(row: KernelRow, op: str, given: Operands, **attrs: Any) -> None:
    shown = {key: value for key, value in attrs.items() if key != "batchwise"}
    S, H = given.x.shape[0], given.x.shape[4]
    for actual, wanted in zip(rnn(row, op, given, **attrs), expected(op, given, **shown)):
        assert actual.shape == wanted.shape
        scale = 2 * max(S, 1) * (1 + np.abs(wanted).max(initial=0))
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance(H, scale))


@every_row
@every_cell
@pytest.mark.parametrize("batchwise", [False, True])
def test_shapes(row: KernelRow, op: str, attrs: dict, batchwise: bool) -> None:
    for S, B, D, H in [(1, 1, 1, 1), (3, 2, 2, 7), (4, 15, 1, 33), (3, 1, 2, 70), (2, 3, 1, 129)]:
        for ragged in (False, True):
            given = operands(op, S, B, D, H, ragged)
            assert_right(row, op, given, batchwise=batchwise, **attrs)
            assert_right(
                row, op, given._replace(bias=None, h0=None, c0=None, peephole=None), **attrs
            )


@every_row
@every_cell
def test_many_tasks(row: KernelRow, op: str, attrs: dict) -> None:
    """Steps cut by units, more than a block of k, and blocks of rows."""
    assert_right(row, op, operands(op, 2, 1, 2, K_BLOCK + 9), direction="bidirectional", **attrs)
    assert_right(row, op, operands(op, 2, 2 * ROWS + 3, 1, 40, True), direction="reverse", **attrs)


@every_row
@every_cell
def test_few_rows(row: KernelRow, op: str, attrs: dict) -> None:
    """So few that their products are the kernel's own, in whole panels and parts of one."""
    for B, H in [(1, 100), (2, 70), (3, 41), (4, 150), (5, 20)]:
        assert_right(row, op, operands(op, 3, B, 1, H), **attrs)


@every_row
@every_cell
@pytest.mark.parametrize("H", [50, 150])  # 150: the product of 17 rows is that of gemm
def test_bits_are_those_of_single_rows(row: KernelRow, op: str, attrs: dict, H: int) -> None:
    given = operands(op, 3, 17, 1, H, ragged=True)
    whole = rnn(row, op, given, **attrs)
    for i in (0, 8, 16):
        one = slice(i, i + 1)
        alone = given._replace(
            x=given.x[:, one],
            lengths=given.lengths[one],
            h0=given.h0[:, one],
            c0=None if given.c0 is None else given.c0[:, one],
        )
        for part, own in zip(whole, rnn(row, op, alone, **attrs)):
            np.testing.assert_array_equal(part[..., one, :], own)


@every_row
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(row: KernelRow, function: str) -> None:
    for op in GATES:
        given = operands(op, 2, 2, 2, 5)
        for i in range(2 * len(USUAL[op])):
            names = list(USUAL[op] * 2)
            names[i] = function
            assert_right(row, op, given, activations=names)


@every_row
@every_cell
def test_clip(row: KernelRow, op: str, attrs: dict) -> None:
    given = operands(op, 3, 2, 1, 9)
    assert_right(row, op, given, clip=0.5, **attrs)
    if op == "LSTM":
        assert_right(row, op, given, clip=0.5, input_forget=1)


@every_row
@every_cell
def test_nothing_to_do(row: KernelRow, op: str, attrs: dict) -> None:
    for S, B, H in [(0, 3, 4), (3, 0, 4), (2, 3, 0), (0, 0, 0)]:
        assert_right(row, op, operands(op, S, B, 2, H), **attrs)


@every_row
@every_cell
def test_special_values(row: KernelRow, op: str, attrs: dict) -> None:
    """A row's NaN stays in the row, and what stands behind a row's end is not seen."""
    given = operands(op, 4, 3, 1, 20)._replace(lengths=np.array([4, 2, 3], np.int32))
    clean = rnn(row, op, given, **attrs)
    given.x[2:, 1] = np.nan
    for a, b in zip(clean, rnn(row, op, given, **attrs)):
        np.testing.assert_array_equal(a, b)
    given.x[1, 1, 0, 0, 3] = np.nan
    for a, b in zip(clean, rnn(row, op, given, **attrs)):
        assert np.isnan(b[..., 1, :]).any()
        np.testing.assert_array_equal(np.delete(a, 1, axis=-2), np.delete(b, 1, axis=-2))


@every_row
def test_lengths_out_of_range(row: KernelRow) -> None:
    for bad in (-1, 4, 2**31 - 1):
        given = operands("GRU", 3, 2, 1, 4)._replace(lengths=np.array([3, bad], np.int32))
        with pytest.raises(StatusError) as error:
            rnn(row, "GRU", given)
        assert (error.value.code, error.value.value, error.value.limit) == (DATA_FAULT, bad, 4)
