"""Ops of the standard that few models have, beside onnxruntime."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
from onnx import TensorProto
from onnx.parser import parse_model

from q7x2_ep.session import Session
from tests.models.beside import one_node, same, theirs

RANDOM = np.random.default_rng(29)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [None, -1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("image", [(), (5,), (2, 3)], ids=str)
def test_log_likelihood(
    reduction: str, ignored: Optional[int], weighted: bool, image: tuple
) -> None:
    """The mean is over the weights of what counts, also where -1 is what does not."""
    x = RANDOM.standard_normal((7, 4, *image)).astype(np.float32)
    target = RANDOM.integers(0, 4, (7, *image))
    target[::3] = target[::3] if ignored is None else ignored
    inputs = [x, target, *([RANDOM.random(4).astype(np.float32)] if weighted else [])]
    more: dict[str, Any] = {} if ignored is None else {"ignore_index": ignored}
    how = {"domain": "", "reduction": reduction, **more}
    session = same("NegativeLogLikelihoodLoss", inputs, symbols={7: "batch"}, **how)
    assert not session.program.host_phases


def test_determinants_of_halves() -> None:
    """numpy has none."""
    x = RANDOM.standard_normal((3, 4, 4)).astype(np.float16)
    same("Det", [x], (TensorProto.FLOAT16,), 1e-2, 1e-2, domain="")


REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_scalars_are_reduced(reduction: str, axis: int, keepdims: int) -> None:
    """Over the axis of a single element, as torch takes it, told by data or not."""
    op, inputs = f"Reduce{reduction}", [np.float32(2.5), np.array([axis])]
    how = {"domain": "", "keepdims": keepdims}
    same(op, inputs, **how)
    model, feeds = one_node(op, inputs, (TensorProto.FLOAT,), fixed=(1,), **how)
    (wanted,) = theirs(*one_node(op, inputs[:1], (TensorProto.FLOAT,), **how))
    (actual,) = Session(model).run(feeds)
    assert actual.shape == () and actual == pytest.approx(wanted, rel=1e-6)


def test_softmax_of_a_scalar() -> None:
    """No fusion counts the axes of one that has none."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float x) => (float y) <int64[1] axes={-1}> {
        top = ReduceMax(x, axes)
        rest = Sub(x, top)
        weight = Exp(rest)
        total = ReduceSum(weight, axes)
        y = Div(weight, total)
    }"""
    (y,) = Session(parse_model(text).SerializeToString()).run({"x": np.float32(-3)})
    assert y.shape == () and y == 1
