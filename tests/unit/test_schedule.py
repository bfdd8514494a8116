"""The order of steps: hazards are kept, memory is saved where branches allow it."""

from __future__ import annotations

import random

from q7x2_ep.ir.shape import symbol
from q7x2_ep.plan.memory import Storage
from q7x2_ep.plan.schedule import (
    SAMPLE,
    Access,
    conflicts,
    dependencies,
    peak,
    reorder,
    storage_sizes,
    untouched_before,
)

N = symbol("N")


def storage(name: str, size: int = 64, space: str = "arena") -> Storage:
    return Storage(name, size, space, -1)


def reads(s: Storage, begin: int = 0, end: int = 64) -> Access:
    return Access(s, begin, end, False)


def writes(s: Storage, begin: int = 0, end: int = 64) -> Access:
    return Access(s, begin, end, True)


def test_conflicts_by_kind_and_range() -> None:
    a, b = storage("a"), storage("b")
    assert not conflicts(reads(a), reads(a))
    assert conflicts(writes(a), reads(a)) and conflicts(reads(a), writes(a))
    assert conflicts(writes(a), writes(a))
    assert not conflicts(writes(a), reads(b))
    assert not conflicts(writes(a, 0, 32), writes(a, 32, 64))
    assert not conflicts(writes(a, 32, 64), reads(a, 0, 32))
    assert conflicts(writes(a, 0, 33), writes(a, 32, 64))


def test_symbolic_ranges_conflict_unless_proven_apart() -> None:
    a = storage("a")
    assert not conflicts(writes(a, 0, 4 * N), writes(a, 4 * N, 8 * N))
    assert conflicts(writes(a, 0, 4 * N), writes(a, 64, 128))


def branches(width: int) -> list[list[Access]]:
    """Breadth first, as some exporters write it: all wide tensors, then what shrinks each."""
    source, wide = storage("source"), [storage(f"wide{i}", 1000) for i in range(width)]
    narrow = [storage(f"narrow{i}", 10) for i in range(width)]
    steps = [[writes(source)]]
    steps += [[reads(source), writes(w, 0, 1000)] for w in wide]
    steps += [[reads(w, 0, 1000), writes(n, 0, 10)] for w, n in zip(wide, narrow)]
    return [*steps, [*(reads(n, 0, 10) for n in narrow), writes(storage("sum", 10), 0, 10)]]


def test_wide_branches_are_run_one_after_the_other() -> None:
    steps = branches(8)
    sizes = storage_sizes(steps, {})
    order = reorder(steps)
    assert peak(steps, range(len(steps)), sizes) >= 8000
    assert peak(steps, order, sizes) <= 1000 + 8 * 10 + 64


def test_an_order_that_gains_nothing_is_left_alone() -> None:
    a, b, c = storage("a"), storage("b"), storage("c")
    steps = [[writes(a)], [reads(a), writes(b)], [reads(b), writes(c)]]
    assert reorder(steps) == [0, 1, 2]


def test_nothing_waits_beyond_the_window() -> None:
    steps = branches(200)
    place = {step: at for at, step in enumerate(reorder(steps))}
    assert all(place[step] <= step + 200 for step in range(201))


def random_steps(chance: random.Random) -> list[list[Access]]:
    storages = [storage(f"s{i}", chance.randrange(1, 50) * 4) for i in range(8)]
    steps = []
    for _ in range(chance.randrange(2, 40)):
        step = []
        for s in chance.sample(storages, chance.randrange(1, 4)):
            begin = chance.randrange(0, s.bytes, 4)
            step.append(
                Access(s, begin, chance.randrange(begin, s.bytes) + 1, chance.random() < 0.5)
            )
        steps.append(step)
    return steps


def run(steps: list[list[Access]], order: list[int]) -> dict[int, list[tuple]]:
    """What every step sees: (storage, byte) -> the step that wrote it last."""
    memory: dict[tuple[str, int], int] = {}
    seen = {}
    for step in order:
        places = [
            (a.storage.name, i) for a in steps[step] if not a.writes for i in range(a.begin, a.end)
        ]
        seen[step] = [(place, memory.get(place)) for place in places]
        for access in steps[step]:
            if access.writes:
                memory.update(
                    ((access.storage.name, i), step) for i in range(access.begin, access.end)
                )
    return {**seen, -1: sorted(memory.items())}


def test_every_step_sees_the_same_bytes_in_the_new_order() -> None:
    for seed in range(300):
        steps = random_steps(random.Random(seed))
        order = reorder(steps)
        assert sorted(order) == list(range(len(steps)))
        assert run(steps, order) == run(steps, list(range(len(steps)))), seed
        place = {step: at for at, step in enumerate(order)}
        assert all(
            place[other] < place[s] for s, b in enumerate(dependencies(steps)) for other in b
        )


def test_what_is_overwritten_later_is_not_produced_in_place() -> None:
    padded, x = storage("padded", 128), storage("x", 64)
    steps = [[writes(x)], [writes(padded, 0, 128)], [reads(x), writes(padded, 32, 96)]]
    assert untouched_before(steps, [(2, padded)]) == set()
    halves = [[writes(x)], [writes(padded, 0, 64)], [reads(x), writes(padded, 64, 128)]]
    assert untouched_before(halves, [(2, padded)]) == {2}


def test_sizes_are_evaluated() -> None:
    s = Storage("s", 4 * N, "arena", -1)
    assert storage_sizes([[Access(s, 0, 4 * N, True)]], {"N": SAMPLE}) == {s: 4 * SAMPLE}
