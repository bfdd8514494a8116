"""The order of the steps: no step before what it waits for, and few bytes alive at once.

Two steps conflict where one writes bytes that the other reads or writes: reads share freely; read
after write, write after read and write after write keep their order. Ranges of bytes are symbolic;
what cannot be proven disjoint conflicts. Among the steps that wait for nothing, the one that leaves
the fewest bytes alive comes next, out of a window of the model's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from q7x2_ep.ir.shape import Dim, Expr, at_least, evaluate, symbols
from q7x2_ep.plan.memory import THREADS, Storage

WINDOW = 64  # steps of look-ahead: a mask at the top of a model must not wait for the last layer
SAMPLE = 96  # what every symbol counts as where the bytes of two orders are compared


class Access(NamedTuple):
    """Bytes [begin, end) of a storage that a step reads or writes."""

    storage: Storage
    begin: Dim
    end: Dim
    writes: bool


def conflicts(earlier: Access, later: Access) -> bool:
    """Whether two accesses must stay in their order."""
    if earlier.storage is not later.storage or not (earlier.writes or later.writes):
        return False
    return not (at_least(later.begin - earlier.end, 0) or at_least(earlier.begin - later.end, 0))


def dependencies(accesses: Sequence[Sequence[Access]]) -> list[set[int]]:
    """Per step the earlier steps that it must follow."""
    found: list[set[int]] = []
    seen: dict[Storage, list[tuple[int, Access]]] = {}
    for step, own in enumerate(accesses):
        before = {
            other
            for access in own
            for other, past in seen.get(access.storage, ())
            if other != step and conflicts(past, access)
        }
        found.append(before)
        for access in own:
            if access.storage.space not in ("constant", "input"):
                seen.setdefault(access.storage, []).append((step, access))
    return found


def reorder(accesses: Sequence[Sequence[Access]]) -> list[int]:
    """The steps in an order that needs less memory than the given one, or as they are."""
    sizes = _sample_sizes(accesses)
    order = _greedy(dependencies(accesses), accesses, sizes)
    plain = list(range(len(accesses)))
    return order if peak(accesses, order, sizes) < peak(accesses, plain, sizes) else plain


def peak(
    accesses: Sequence[Sequence[Access]], order: Sequence[int], sizes: Mapping[Storage, int]
) -> int:
    """The most bytes of the arena that are alive in one step of an order."""
    last = {access.storage: at for at, step in enumerate(order) for access in accesses[step]}
    alive: set[Storage] = set()
    now = most = 0
    for at, step in enumerate(order):
        touched = {access.storage for access in accesses[step]} & sizes.keys()
        now += sum(sizes[storage] for storage in touched - alive)
        alive |= touched
        most = max(most, now)
        for storage in touched:
            if last[storage] == at:
                now -= sizes[storage]
    return most


def storage_sizes(
    accesses: Sequence[Sequence[Access]], symbol_values: Mapping[str, int]
) -> dict[Storage, int]:
    """Bytes of every storage in the arena, for given values of the symbols."""
    storages = {access.storage for own in accesses for access in own}
    return {s: _size(s.bytes, symbol_values) for s in storages if s.space == "arena"}


def _size(dim: Dim, symbol_values: Mapping[str, int]) -> int:
    """A number of bytes; 0 where dims do not fit each other for these values."""
    try:
        return max(evaluate(dim, symbol_values), 0)
    except ValueError:
        return 0


def _sample_sizes(accesses: Sequence[Sequence[Access]]) -> dict[Storage, int]:
    names = {
        name
        for own in accesses
        for access in own
        if isinstance(access.storage.bytes, Expr)
        for name in symbols(access.storage.bytes)
    }
    return storage_sizes(accesses, {**dict.fromkeys(names, SAMPLE), THREADS: 1})


def _greedy(
    waits_for: Sequence[set[int]],
    accesses: Sequence[Sequence[Access]],
    sizes: Mapping[Storage, int],
) -> list[int]:
    n = len(waits_for)
    waiting = [len(before) for before in waits_for]
    followers: list[list[int]] = [[] for _ in range(n)]
    for step, before in enumerate(waits_for):
        for other in before:
            followers[other].append(step)
    touched = [{access.storage for access in own} & sizes.keys() for own in accesses]
    uses: dict[Storage, int] = dict.fromkeys(sizes, 0)
    for storages in touched:
        for storage in storages:
            uses[storage] += 1
    alive: set[Storage] = set()
    ready = [step for step in range(n) if not waiting[step]]
    done = [False] * n
    first = 0  # the oldest step that is not done
    order: list[int] = []

    def growth(step: int) -> tuple[int, int]:
        grown = sum(sizes[s] for s in touched[step] if s not in alive)
        return grown - sum(sizes[s] for s in touched[step] if uses[s] == 1), step

    while len(order) < n:
        chosen = min((step for step in ready if step < first + WINDOW), key=growth)
        ready.remove(chosen)
        order.append(chosen)
        done[chosen] = True
        alive.update(touched[chosen])
        for storage in touched[chosen]:
            uses[storage] -= 1
        for step in followers[chosen]:
            waiting[step] -= 1
            if not waiting[step]:
                ready.append(step)
        while first < n and done[first]:
            first += 1
    return order


def accesses_of(steps: Sequence[Any], rows: Mapping[str, Any]) -> list[list[Access]]:
    """What each step reads and writes, by the kinds of its operands in ops.def."""
    return [
        [
            _access(at, operand.kind not in ("in", "opt"))
            for operand in rows[step.op].operands
            for at in (step.operands[operand.name],)
            if at is not None
        ]
        for step in steps
    ]


def _access(at: Any, writes: bool) -> Access:
    if at.size is None:
        return Access(at.storage, 0, at.storage.bytes, writes)
    return Access(at.storage, at.offset, at.offset + at.size, writes)


def untouched_before(
    accesses: Sequence[Sequence[Access]], places: Sequence[tuple[int, Storage]]
) -> set[int]:
    """The steps, of the given (step, storage it writes to), before which no step touches those
    bytes.
    """
    history: dict[Storage, list[tuple[int, Access]]] = {storage: [] for _, storage in places}
    for step, own in enumerate(accesses):
        for access in own:
            if access.storage in history:
                history[access.storage].append((step, access))
    found = set()
    for step, storage in places:
        own_write = next(a for at, a in history[storage] if at == step and a.writes)
        if not any(at < step and conflicts(a, own_write) for at, a in history[storage]):
            found.add(step)
    return found
