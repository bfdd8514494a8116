"""ScatterND as exporters write the assignment to a slice, and what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from q7x2_ep.session import Session
from tests.fusion.battery import assert_correct, build, fused_ops

SHAPE = (2, 6, 5, 7)


def assigned(g: Any, x: Any, u: Any, *at: slice) -> Any:
    """x with u in place of a slice of its first dims, as torch's exporters write it."""
    sizes, counts = g.Shape(x), [len(range(dim)[cut]) for dim, cut in zip(SHAPE, at)]
    parts = []
    for i, cut in enumerate(at):
        positions = g.Range(np.array(0), g.Gather(sizes, np.array(i), axis=0), np.array(1))
        ends = ([n] for n in (cut.start or 0, cut.stop or 99, 0, cut.step or 1))
        line = g.Reshape(g.Slice(positions, *ends), [-1, *[1] * (len(at) - 1 - i)])
        parts.append(g.Unsqueeze(g.Expand(line, counts), [-1]))
    return g.ScatterND(x, g.Concat(*parts, axis=-1), u)


ALL = slice(None)
SLICES = {
    "two": (ALL, slice(1, None), ALL, slice(2, 5)),
    "steps": (ALL, slice(None, None, 2)),
    "from the end": (ALL, ALL, slice(-2, None)),
    "one row": (slice(1, 2), slice(1, 3)),
    "one column": (ALL, ALL, ALL, slice(6, 7)),
    "all": (ALL, ALL),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices(name: str) -> None:
    at = SLICES[name]
    counts = [len(range(dim)[cut]) for dim, cut in zip(SHAPE, at)]

    def formula(g: Any, x: Any, u: Any) -> tuple:
        y = g.Add(x, 0.5)
        first = assigned(g, y, u, *at)
        return g.Mul(assigned(g, first, g.Neg(u), *at), 2.0), g.Sub(first, y)

    model, _ = build(formula, {"x": SHAPE, "u": (*counts, *SHAPE[len(at) :])})
    assert_correct(model)
    steps = [step.op for step in Session(model).plan.steps]
    assert steps.count("slice_scatter") == 2
    assert not {"scatter_nd", "arange", "gather"} & {*steps}


def scatter(g: Any, x: Any, u: Any, *columns: np.ndarray, reduction: str = "none") -> Any:
    """x with the rows of u at positions, an array of them for each of the first dims."""
    at = np.stack(np.broadcast_arrays(*columns), -1).astype(np.int64)
    return g.Add(g.ScatterND(x, at, u, reduction=reduction), x)


A, B = np.arange(3)[:, None], np.arange(4)
POSITIONS = {  # of rows of 7 in (6, 8): taken or not
    "in order": (A + 1, 2 * B, True),
    "from the end": (A - 3, B - 4, True),
    "around the end": (A - 1, B, False),
    "backwards": (3 - A, B, False),
    "turned": (B, A, False),
    "twice": (A + 0 * B, 0 * B, False),
    "a diagonal": (A + B, B, False),
    "a diagonal of one row": (A, A + 1, False),
    "uneven": (A * A, B, False),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_that_count(name: str) -> None:
    first, second, taken = POSITIONS[name]
    shape = np.broadcast_shapes(first.shape, second.shape)
    formula = lambda g, x, u: scatter(g, x, u, first, second)  # noqa: E731
    model, _ = build(formula, {"x": (6, 8, 7), "u": (*shape, 7)})
    assert fused_ops(model)[1].applied.get("SliceScatter", 0) == int(taken)
    assert_correct(model)


def test_sums_are_no_slices() -> None:
    formula = lambda g, x, u: scatter(g, x, u, A, B, reduction="add")  # noqa: E731
    model, _ = build(formula, {"x": (6, 8, 7), "u": (3, 4, 7)})
    assert "SliceScatter" not in fused_ops(model)[1].applied
    assert_correct(model)


def test_positions_behind_the_end_are_no_slice() -> None:
    """A run refuses them."""
    model, _ = build(lambda g, x, u: scatter(g, x, u, A + 5, B), {"x": (6, 8, 7), "u": (3, 4, 7)})
    assert "SliceScatter" not in fused_ops(model)[1].applied


def test_a_slice_of_itself() -> None:
    """What is copied lies where it is copied to."""

    def formula(g: Any, x: Any) -> Any:
        y = g.Add(x, 0.5)
        return g.Mul(assigned(g, y, g.Slice(y, [0], [5], [1]), ALL, slice(1, None)), 2.0)

    model, _ = build(formula, {"x": SHAPE})
    assert_correct(model)
    assert "slice_scatter" in {step.op for step in Session(model).plan.steps}
