"""The harness of the batteries can fail: wrong formula, wrong count and no change are noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fusion.battery import assert_fuses, assert_perturbed_stays, build, orders, perturbed

X = {"x": ("B", "S", 8)}


def gelu(g: Any, x: Any) -> Any:
    return g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Div(x, 2**0.5)), 1.0))


def test_orders_are_all_combinations() -> None:
    models = [model.SerializeToString() for model in orders(gelu, X)]
    assert len(set(models)) == 2**3


def test_every_place_is_perturbed_once() -> None:
    kinds = ("constant", "output", "dtype")
    changes = [change for change, _ in perturbed(gelu, X, kinds)]
    assert [sum(c.kind == kind for c in changes) for kind in kinds] == [3, 4, 1]
    plain = build(gelu, X)[0]
    models = [model.SerializeToString() for _, model in perturbed(gelu, X, kinds)]
    assert len({*models, plain.SerializeToString()}) == 3 + 4 + 1 + 1


def test_a_missing_fusion_is_noticed() -> None:
    with pytest.raises(AssertionError, match="order 0"):
        assert_fuses(lambda g, x: g.Add(x, 1.0), X, {"Gelu": 1})


def test_a_fusion_that_should_not_be_is_noticed() -> None:
    def loose(g: Any, x: Any) -> Any:
        return g.Mul(x, g.Sigmoid(g.Mul(x, g.free(1.5))))

    assert_perturbed_stays(loose, X, {"Swish"})
    with pytest.raises(AssertionError, match="constant"):
        assert_perturbed_stays(lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(x, 1.5))), X, {"Swish"})


def test_constants_are_of_the_graphs_dtype() -> None:
    model = build(lambda g, x: g.Add(x, np.arange(8.0)), X)[0]
    assert {tensor.data_type for tensor in model.graph.initializer} == {1}
