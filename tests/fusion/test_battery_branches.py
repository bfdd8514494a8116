"""Convs of one image whose results are added: one Conv, wherever their windows allow that."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np
import pytest

from tests.fusion.battery import (
    assert_correct,
    assert_fuses,
    build,
    fused_ops,
    weight,
)

M, C = 6, 4
WIDE = 16  # channels, which fill any vector


def rows(m: int) -> dict[str, Any]:
    """What belongs to each of m filters."""
    return {
        "b": weight(m),
        "b1": weight(m, seed=1),
        "scale": weight(m, seed=2) + 1,
        "shift": weight(m, seed=3),
        "mean": weight(m, seed=4),
        "variance": weight(m, seed=5) ** 2 + 0.5,
        "factor": weight(m, 1, 1),
        "term": weight(1, m, 1, 1),
    }


GIVEN: dict[str, Any] = {
    "x": ("B", C, "S", "S"),
    "w3": weight(M, C, 3, 3),
    "w1": weight(M, C, 1, 1),
    **rows(M),
}
DEPTHWISE: dict[str, Any] = {
    "x": ("B", WIDE, "S", "S"),
    "w3": weight(WIDE, 1, 3, 3),
    "w1": weight(WIDE, 1, 1, 1),
    **rows(WIDE),
}
SQUARE = {**GIVEN, "x": ("B", M, "S", "S"), "w3": weight(M, M, 3, 3), "w1": weight(M, M, 1, 1)}
GROUPED = {**SQUARE, "w3": weight(M, 3, 3, 3)}
PADS = [1, 1, 1, 1]
ONE = {"Conv": 1, "Add": 0, "Sub": 0, "Mul": 0, "BatchNormalization": 0, "q7::Chain": 0}
ONE["q7::Conv"] = 0  # no residual either


def branches(g: Any, x: Any, w3: Any, b: Any, w1: Any, b1: Any) -> Any:
    return g.Add(g.Conv(x, w3, b, pads=PADS), g.Conv(x, w1, b1))


def test_two() -> None:
    def with_one_bias(g: Any, x: Any, w3: Any, w1: Any, b1: Any) -> Any:
        return g.Add(g.Conv(x, w3, pads=PADS), g.Conv(x, w1, b1))

    def without_bias(g: Any, x: Any, w3: Any, w1: Any) -> Any:
        return g.Add(g.Conv(x, w3, pads=PADS), g.Conv(x, w1))

    def with_strides(g: Any, x: Any, w3: Any, w1: Any) -> Any:
        return g.Add(g.Conv(x, w3, pads=PADS, strides=[2, 2]), g.Conv(x, w1, strides=[2, 2]))

    for spelling in (branches, with_one_bias, without_bias, with_strides):
        assert_fuses(spelling, GIVEN, ONE, steps=1)


def test_a_difference() -> None:
    def of_biased(g: Any, x: Any, w3: Any, b: Any, w1: Any, b1: Any) -> Any:
        return g.Sub(g.Conv(x, w1, b1), g.Conv(x, w3, b, pads=PADS))

    def of_one_without(g: Any, x: Any, w3: Any, b: Any, w1: Any) -> Any:
        return g.Sub(g.Conv(x, w1), g.Conv(x, w3, b, pads=PADS))

    for spelling in (of_biased, of_one_without):
        assert_fuses(spelling, GIVEN, ONE, steps=1)


def test_windows_that_lie_in_others() -> None:
    def cross(g: Any, x: Any, w3: Any) -> Any:
        wide = g.Conv(x, weight(M, C, 1, 3), pads=[0, 1, 0, 1])
        tall = g.Conv(x, weight(M, C, 3, 1), pads=[1, 0, 1, 0])
        return g.Add(g.Add(g.Conv(x, w3, pads=PADS), wide), tall)

    def even(g: Any, x: Any, w3: Any) -> Any:
        return g.Add(g.Conv(x, w3, pads=PADS), g.Conv(x, weight(M, C, 2, 2), pads=[1, 0, 0, 1]))

    def dilated(g: Any, x: Any, w3: Any) -> Any:
        y = g.Conv(x, w3, pads=[2, 2, 2, 2], dilations=[2, 2])
        z = g.Conv(x, weight(M, C, 1, 3), pads=[0, 2, 0, 2], dilations=[1, 2])
        return g.Add(y, z)

    def valid(g: Any, x: Any, w3: Any) -> Any:
        return g.Add(g.Conv(x, w3), g.Conv(x, weight(M, C, 3, 3, seed=1), auto_pad="VALID"))

    for spelling in (cross, even, dilated, valid):
        assert_fuses(spelling, GIVEN, ONE, steps=1)

    def one_dim(g: Any, x: Any) -> Any:
        return g.Add(
            g.Conv(x, weight(M, C, 5), pads=[2, 2]), g.Conv(x, weight(M, C, 3), pads=PADS[:2])
        )

    assert_fuses(one_dim, {"x": ("B", C, "S")}, ONE, steps=1)


@pytest.mark.parametrize("groups, given", [(1, SQUARE), (WIDE, DEPTHWISE)])
def test_many_with_norms_and_the_norm_of_the_image(groups: int, given: dict[str, Any]) -> None:
    def block(
        g: Any, x: Any, w3: Any, w1: Any, scale: Any, shift: Any, mean: Any, variance: Any
    ) -> Any:
        norm = scale, shift, mean, variance
        y = g.BatchNormalization(g.Conv(x, w3, pads=PADS, group=groups), *norm)
        z = g.BatchNormalization(g.Conv(x, w1, group=groups), *norm)
        total = g.Add(g.Add(y, 0.0), g.Add(z, g.Add(g.BatchNormalization(x, *norm), 0.0)))
        return g.Relu(total)

    assert_fuses(block, given, {**ONE, "q7::Conv": 1, "Conv": 0, "Relu": 0}, steps=1)


def test_a_large_kernel_is_folded() -> None:
    """Beyond what folding makes of smaller constants."""
    wide = 320

    def block(g: Any, x: Any) -> Any:
        y = g.Conv(x, weight(wide, wide, 3, 3) / 8, pads=PADS)
        total = g.Add(y, g.Conv(x, weight(wide, wide, 1, 1) / 8))
        return g.Relu(g.Add(total, g.Mul(x, 0.5)))

    assert_fuses(block, {"x": (1, wide, 5, 5)}, {"q7::Conv": 1, "Concat": 0, "Add": 0})


IMAGES: dict[str, Callable[..., Any]] = {
    "norm": lambda g, x, factor, term, norm: g.BatchNormalization(x, *norm),
    "norm and number": lambda g, x, factor, term, norm: g.Add(g.BatchNormalization(x, *norm), 0.5),
    "factor": lambda g, x, factor, term, norm: g.Mul(x, factor),
    "number": lambda g, x, factor, term, norm: g.Mul(x, 0.5),
    "factor and term": lambda g, x, factor, term, norm: g.Add(g.Mul(x, factor), term),
    "term": lambda g, x, factor, term, norm: g.Add(x, term),
}


@pytest.mark.parametrize("name", [*IMAGES, "alone"])
@pytest.mark.parametrize("op", ["Add", "Sub"])
@pytest.mark.parametrize("group, given", [(1, SQUARE), (2, GROUPED), (WIDE, DEPTHWISE)])
def test_the_image(name: str, op: str, group: int, given: dict[str, Any]) -> None:
    def skipped(
        g: Any,
        x: Any,
        w3: Any,
        b: Any,
        scale: Any,
        shift: Any,
        mean: Any,
        variance: Any,
        factor: Any,
        term: Any,
    ) -> Any:
        image = IMAGES.get(name, lambda g, x, *_: x)
        y = g.Conv(x, w3, b, pads=PADS, group=group)
        return g.call(op, y, image(g, x, factor, term, (scale, shift, mean, variance)))

    if name != "alone" or group == WIDE:
        assert_fuses(skipped, given, ONE)
    elif op == "Add":
        assert_fuses(skipped, given, {**ONE, "Conv": 0, "q7::Conv": 1})  # a residual


def test_a_factor_behind_a_difference_and_the_image() -> None:
    """FastViT's mixer: x + factor * (branches - norm of x)."""

    def mixer(
        g: Any,
        x: Any,
        w3: Any,
        w1: Any,
        factor: Any,
        scale: Any,
        shift: Any,
        mean: Any,
        variance: Any,
    ) -> Any:
        y = g.Add(g.Conv(x, w1, group=WIDE), g.Conv(x, w3, pads=PADS, group=WIDE))
        norm = g.BatchNormalization(x, scale, shift, mean, variance)
        return g.Add(x, g.Mul(g.Sub(y, norm), factor))

    assert_fuses(mixer, DEPTHWISE, ONE, steps=1)


def pair(attrs: dict[str, Any], other: dict[str, Any], kernel: Optional[tuple] = None) -> Any:
    """Two Convs of these attributes; the second has this kernel."""

    def spelling(g: Any, x: Any, w3: Any) -> Any:
        w = w3 if kernel is None else weight(M, C, *kernel)
        return g.Add(g.Conv(x, w3, **attrs), g.Conv(x, w, **other))

    return spelling


STAYS = {
    "windows side by side": pair({"pads": [0, 2, 2, 0]}, {"pads": [2, 0, 0, 2]}),
    "neither holds the other": pair({"pads": [1, 1, 1, 1]}, {"pads": [0, 2, 0, 2]}, (1, 5)),
    "a corner": pair({"pads": [2, 2, 0, 0]}, {"pads": [0, 0, 1, 1]}, (2, 2)),
    "strides": pair({"pads": PADS, "strides": [2, 2]}, {}, (3, 3)),  # 3 x 3 windows of 5 x 5
    "dilations": pair({"pads": PADS}, {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    "between taps": pair(
        {"pads": [2, 2, 2, 2], "dilations": [2, 2]}, {"pads": [1, 1, 1, 1]}, (3, 3)
    ),
    "pads that follow from the size": pair(
        {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, (2, 2)
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    size = 5 if name == "strides" else "S"
    model = build(STAYS[name], {**GIVEN, "x": ("B", C, size, size)})[0]
    report = fused_ops(model)[1]
    assert "ConvBranches" not in report.applied and "ConvBranches" in str(report)
    assert_correct(model)


def test_an_even_kernel_to_the_other_side() -> None:
    def spelling(g: Any, x: Any) -> Any:
        y = g.Conv(x, weight(M, C, 2, 2), pads=[1, 1, 0, 0])
        return g.Add(y, g.Conv(x, weight(M, C, 2, 2, seed=1), pads=[0, 0, 1, 1]))

    assert_fuses(spelling, GIVEN, {"Conv": 1, "q7::Conv": 1})


def test_other_images_groups_users_and_weights() -> None:
    def other_image(g: Any, x: Any, r: Any, w3: Any, w1: Any) -> Any:
        return g.Add(g.Conv(x, w3, pads=PADS), g.Conv(r, w1))

    def other_group(g: Any, x: Any, w3: Any) -> Any:
        return g.Add(g.Conv(x, w3, pads=PADS), g.Conv(x, weight(M, 2, 1, 1), group=2))

    def used_twice(g: Any, x: Any, w3: Any, w1: Any) -> Any:
        y, z = g.Conv(x, w3, pads=PADS), g.Conv(x, w1)
        return g.Mul(g.Add(y, z), g.Sin(g.Relu(z))), g.Sin(g.Relu(y))

    def fed(g: Any, x: Any, w3: Any, w: Any) -> Any:
        return g.Add(g.Conv(x, w3, pads=PADS), g.Conv(x, w))

    def doubled(g: Any, x: Any, w3: Any) -> Any:
        y = g.Conv(x, w3, pads=PADS)
        return g.Add(y, y)

    given = {**GIVEN, "r": GIVEN["x"], "w": (M, C, 1, 1)}
    for spelling in (other_image, other_group, used_twice, fed, doubled):
        model = build(spelling, given)[0]
        report = fused_ops(model)[1]
        assert "ConvBranches" not in report.applied, spelling
        assert_correct(model)


@pytest.mark.parametrize("place", [0, 1])
def test_a_result_that_is_an_output(place: int) -> None:
    def shown(g: Any, x: Any, w3: Any, w1: Any) -> Any:
        y = g.Conv(x, w3, pads=PADS), g.Conv(x, w1)
        return g.Add(*y), y[place]

    model = build(shown, GIVEN)[0]
    assert "ConvBranches" not in fused_ops(model)[1].applied
    assert_correct(model)


def test_images_that_stay() -> None:
    def strided(g: Any, x: Any, w3: Any) -> Any:
        return g.Add(g.Conv(x, w3, group=WIDE, pads=[1, 1, 1, 1], strides=[5, 5]), x)

    def between(g: Any, x: Any) -> Any:
        w = weight(WIDE, 1, 2, 2)
        return g.Add(g.Conv(x, w, group=WIDE, pads=[1, 1, 1, 1], dilations=[2, 2]), x)

    def more_channels(g: Any, x: Any) -> Any:
        return g.Add(g.Conv(x, weight(M, 1, 1, 1)), x)

    def along_columns(g: Any, x: Any, w3: Any) -> Any:
        return g.Add(g.Conv(x, w3, group=WIDE, pads=PADS), g.Mul(x, np.arange(5.0)))

    def normed_elsewhere(g: Any, x: Any, w3: Any) -> Any:
        y = g.Mul(x, 0.5)
        return g.Add(g.Conv(x, w3, group=WIDE, pads=PADS), y), g.Sin(y)

    sized = {**DEPTHWISE, "x": ("B", WIDE, 5, 5)}
    one = {"x": ("B", 1, "S", "S")}
    for spelling, given in (
        (strided, sized),
        (between, sized),
        (more_channels, one),
        (along_columns, sized),
        (normed_elsewhere, sized),
    ):
        model = build(spelling, given)[0]
        assert "ConvSkip" not in fused_ops(model)[1].applied, spelling
        assert_correct(model)
