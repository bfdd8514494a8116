"""Storage sharing: what may be written over what, and what is produced in place."""

from __future__ import annotations

from q7x2_ep.plan.memory import Embedding, Sharing, Storage, settle


def storage(name: str, first: int, last: int, size: int = 64, space: str = "arena") -> Storage:
    return Storage(name, size, space, -1, first, last)


def test_output_takes_over_an_input_that_dies() -> None:
    x, y = storage("x", 0, 1), storage("y", 1, 2)
    settle(["s0", "s1", "s2"], [x, y], [], [Sharing(1, x, y, [])])
    assert y.place() == (x, 0)
    assert (x.first, x.last) == (0, 2)


def test_sharing_is_refused_where_it_is_not_safe() -> None:
    used_later = storage("x", 0, 2)
    y = storage("y", 1, 2)
    settle(["s"] * 3, [used_later, y], [], [Sharing(1, used_later, y, [])])
    assert y.parent is None

    x, y = storage("x", 0, 1), storage("y", 1, 2, size=32)
    settle(["s"] * 3, [x, y], [], [Sharing(1, x, y, [])])
    assert y.parent is None, "sizes differ"

    x, y = storage("x", 0, 1), storage("y", 1, 2)
    settle(["s"] * 3, [x, y], [], [Sharing(1, x, y, [x])])
    assert y.parent is None, "another operand of the step reads the same memory"

    x, y = storage("x", 0, 1), storage("y", 1, 2)
    settle(["s"] * 3, [x, y], [], [Sharing(1, x, y, [], 32, 64)])
    assert y.parent is None, "rows of another length"

    for space in ("input", "constant", "output"):
        x, y = storage("x", 0, 1, space=space), storage("y", 1, 2)
        settle(["s"] * 3, [x, y], [], [Sharing(1, x, y, [])])
        assert y.parent is None, f"{space} is not ours to overwrite"


def test_an_output_may_be_over_a_feed_that_nobody_reads_again() -> None:
    def over(last: int = 1, first: int = 1, others: bool = False, reads: int = 64) -> bool:
        x, y = storage("x", 0, last, space="input"), storage("y", first, 2, space="output")
        settle(["s"] * 3, [x, y], [], [Sharing(1, x, y, [x] if others else [], reads, 64)])
        assert y.place() == (y, 0)
        return y.over is x

    assert over()
    assert not (over(last=2) or over(first=0) or over(others=True) or over(reads=32))


def test_sharing_chains_through_one_memory() -> None:
    a, b, c = storage("a", 0, 1), storage("b", 1, 2), storage("c", 2, 3)
    settle(["s"] * 4, [a, b, c], [], [Sharing(1, a, b, []), Sharing(2, b, c, [])])
    assert c.place()[0] is b.place()[0] is a
    assert a.last == 3


def test_a_part_of_a_concat_is_produced_in_place() -> None:
    part, other, whole = (
        storage("part", 0, 2),
        storage("other", 1, 3),
        storage("whole", 2, 4, size=128),
    )
    steps = settle(
        ["make part", "make other", "copy part", "copy other", "use"],
        [part, other, whole],
        [Embedding(2, part, whole, 0), Embedding(3, other, whole, 64)],
        [],
    )
    assert steps == ["make part", "make other", "use"]
    assert part.place() == (whole, 0) and other.place() == (whole, 64)
    assert (whole.first, whole.last) == (0, 2)


def test_a_part_is_embedded_once_and_copied_the_second_time() -> None:
    part, whole = storage("part", 0, 2), storage("whole", 1, 3, size=128)
    steps = settle(
        ["make", "copy 1", "copy 2", "use"],
        [part, whole],
        [Embedding(1, part, whole, 0), Embedding(2, part, whole, 64)],
        [],
    )
    assert steps == ["make", "copy 2", "use"]
    assert part.place() == (whole, 0)


def test_feeds_and_constants_are_copied_into_a_concat() -> None:
    feed, whole = storage("feed", 0, 0, space="input"), storage("whole", 0, 1, size=128)
    steps = settle(["copy", "use"], [feed, whole], [Embedding(0, feed, whole, 0)], [])
    assert steps == ["copy", "use"]
