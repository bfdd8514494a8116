"""q7x2_ep.classes against dataclasses of the standard library, on the same classes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import pytest

from q7x2_ep import classes


def made(module: Any) -> SimpleNamespace:
    """Classes with what the package uses."""

    @module.dataclass(frozen=True)
    class Frozen:
        a: int
        b: tuple = (1, 2)
        c: list = module.field(default_factory=list, repr=False)

        @cached_property
        def twice(self) -> int:
            return 2 * self.a

    @module.dataclass
    class Open:
        a: int
        b: dict = module.field(default_factory=dict)

        def __post_init__(self) -> None:
            self.a += 1

    @module.dataclass(eq=False)
    class Same:
        a: str
        b: Any = module.field(default=None, repr=False)
        c: int = module.field(init=False)

        def __post_init__(self) -> None:
            self.c = len(self.a)

    return SimpleNamespace(Frozen=Frozen, Open=Open, Same=Same)


OURS, THEIRS = made(classes), made(dataclasses)


def told(result: Any) -> str:
    """What there is to see of a result, whichever of the two made it."""
    return f"{type(result).__name__}: {result}"


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.Frozen(1),
        lambda m: m.Frozen(b=3, a=1, c=[4]),
        lambda m: m.Frozen(1).c is m.Frozen(1).c,
        lambda m: m.Frozen(1, c=[5]).c,
        lambda m: m.Frozen(4).twice,
        lambda m: m.Frozen(1) == m.Frozen(1) != m.Frozen(2),
        lambda m: m.Frozen(1) == (1, (1, 2), []),
        lambda m: hash(m.Frozen(1, c=())) == hash(m.Frozen(1, c=())),
        lambda m: hash(m.Frozen(1)),  # a list has none
        lambda m: hash(m.Open(1)),
        lambda m: setattr(m.Frozen(1), "a", 2),
        lambda m: delattr(m.Frozen(1), "a"),
        lambda m: m.Frozen(),
        lambda m: m.Frozen(1, 2, 3, 4),
        lambda m: m.Frozen(1, d=2),
        lambda m: m.Frozen.b,
        lambda m: m.Frozen.c,
        lambda m: m.Open(1),
        lambda m: m.Open(1, {2: 3}) == m.Open(1, {2: 3}),
        lambda m: [m.Open(1).b is m.Open(1).b, m.Open(1) == m.Open(2)],
        lambda m: m.Same("abc", 5),
        lambda m: [m.Same("a") == m.Same("a"), m.Same("a").b, len({m.Same("a"), m.Same("a")})],
        lambda m: copy.copy(m.Frozen(1, c=[2])) == m.Frozen(1, c=[2]),
        lambda m: copy.deepcopy(m.Open(1)),
    ],
)
def test_like_the_standard_library(use):
    outcomes = []
    for module in (OURS, THEIRS):
        try:
            outcomes.append(told(use(module)).replace("made.<locals>.", ""))
        except Exception as error:
            is_refusal = isinstance(error, AttributeError)
            outcomes.append("AttributeError" if is_refusal else type(error).__name__)
    assert outcomes[0] == outcomes[1]


def test_replace_and_fields():
    for module, entries in ((OURS, classes), (THEIRS, dataclasses)):
        assert told(entries.replace(module.Frozen(1, c=[2]), b=7)).endswith("Frozen(a=1, b=7)")
        assert told(entries.replace(module.Same("ab"), a="abcd").c).endswith("4")
        assert [each.name for each in entries.fields(module.Frozen)] == ["a", "b", "c"]
        assert entries.fields(module.Frozen)[1].default == (1, 2)


def test_pickle():
    from q7x2_ep.plan.memory import Storage

    stored = Storage("a", 4, "arena", -1)
    assert vars(pickle.loads(pickle.dumps(stored))) == vars(stored)
