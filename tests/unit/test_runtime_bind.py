"""q7_plan_create and q7_bind: expressions, guards, placement, memory, and corrupt plans."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from q7x2_ep.backend.cpu import library as native
from q7x2_ep.backend.cpu.library import Context, Plan, StatusError, load
from tests.kernels.harness import tolerance
from tests.unit.plan_blobs import EXPRS, Blob, Value, run_alone

LEAST, MOST = -(1 << 63), (1 << 63) - 1
ALIGN = 128  # of buffers: csrc/arena.h

MEANING = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "min": min,
    "max": max,
    "broadcast": lambda a, b: b if a == 1 else a if b in (1, a) else -1,
}
INTERESTING = [0, 1, -1, 2, -2, 3, 7, -7, 128, 1 << 31, 1 << 32, 1 << 62, MOST, -MOST, LEAST]


def bind(blob: Blob, *symbols: int) -> list[int]:
    """The value table for these symbols."""
    with Plan(load(), blob.encode(), []) as plan, Context(plan, 1) as context:
        return list(context.bind(symbols))


def test_a_handle_that_a_signal_interrupts_is_destroyed_once():
    plan = Plan(load(), Blob().encode(), [])
    destroyed = []

    def destroy(pointer):
        destroyed.append(pointer)
        raise KeyboardInterrupt

    plan._destroy, own, pointer = destroy, plan._destroy, plan._pointer
    with pytest.raises(KeyboardInterrupt):
        plan.close()
    plan.close()
    del plan
    assert destroyed == [pointer]
    own(pointer)


# Expressions


def test_every_expression_has_a_meaning():
    assert set(EXPRS) == {"const", *MEANING}


@pytest.mark.parametrize("operation", MEANING)
def test_expression(operation):
    blob = Blob(symbols=2)
    result = blob.expr(operation, Value(1), Value(2))
    numbers = random.Random(operation)
    pairs = [(a, b) for a in INTERESTING for b in INTERESTING]
    pairs += [(numbers.randint(-99, 99), numbers.randint(-9, 9)) for _ in range(300)]
    with Plan(load(), blob.encode(), []) as plan, Context(plan, 1) as context:
        for a, b in pairs:
            try:
                expected = MEANING[operation](a, b)
                fits = LEAST <= expected <= MOST
            except ZeroDivisionError:
                fits = False
            if fits:
                assert context.bind([a, b])[result] == expected, (a, b)
            else:
                with pytest.raises(StatusError, match="overflow, or divide by zero") as caught:
                    context.bind([a, b])
                assert (caught.value.code, caught.value.index) == (native.BAD_ARG, -1)


def test_values_are_threads_symbols_expressions():
    blob = Blob(symbols=2)
    blob.expr("add", Value(1), Value(0))
    blob.expr("const", LEAST)
    with Plan(load(), blob.encode(), []) as plan, Context(plan, 3) as context:
        assert list(context.bind([20, 5])) == [3, 20, 5, 23, LEAST]
        assert list(context.bind([20, 5])) == [3, 20, 5, 23, LEAST]
        assert list(context.bind([5, 20])) == [3, 5, 20, 8, LEAST]


# Guards


@pytest.mark.parametrize("kind, holds", [("eq", [7]), ("ge", [7, 8, MOST])])
def test_guard(kind, holds):
    blob = Blob(symbols=1)
    blob.guard(Value(1), "ge", LEAST)  # always true, so that the index is not 0
    blob.guard(Value(1), kind, 7)
    with Plan(load(), blob.encode(), []) as plan, Context(plan, 1) as context:
        for value in (LEAST, -7, 6, 7, 8, MOST):
            if value in holds:
                assert context.bind([value])[1] == value
                continue
            with pytest.raises(StatusError, match="shapes do not fit") as caught:
                context.bind([value])
            error = caught.value
            assert (error.code, error.index) == (native.BAD_ARG, 1)
            assert (error.value, error.limit) == (value, 7)


def test_nothing_runs_after_a_failed_bind():
    blob = Blob(symbols=1)
    blob.guard(Value(1), "eq", 1)
    with Plan(load(), blob.encode(), []) as plan, Context(plan, 1) as context:
        for _ in range(2):
            context.bind([1])
            context.run(0, 0, [], [])
            with pytest.raises(StatusError, match="shapes do not fit"):
                context.bind([2])
            with pytest.raises(StatusError, match="run before bind"):
                context.run(0, 0, [], [])


def test_run_outside_of_the_plan():
    with Plan(load(), Blob().encode(), []) as plan, Context(plan, 1) as context:
        context.bind([])
        for first, last in [(-1, 0), (0, 1), (0, MOST)]:
            with pytest.raises(StatusError):
                context.run(first, last, [], [])


# The arena


def chain(lifetimes: list[tuple[int, int]]) -> Blob:
    """A plan whose buffers have these lifetimes, of sizes that are its symbols."""
    blob = Blob(symbols=len(lifetimes))
    for first, last in lifetimes:
        blob.buffer(Value(1 + len(blob.buffers)), first, last)
    for step in range(1 + max((last for _, last in lifetimes), default=0)):
        blob.fill(next((i for i, (a, b) in enumerate(lifetimes) if a <= step <= b), 0))
    return blob


def check_placement(context: Context, sizes: list[int], lifetimes: list[tuple[int, int]]) -> None:
    total = context.stat(native.STAT_ARENA_BYTES)
    assert total <= context.stat(native.STAT_RESERVED_BYTES)
    assert context.stat(native.STAT_ARENA) % ALIGN == 0
    starts = [context.stat(native.STAT_BUFFER_OFFSET, i) for i in range(len(sizes))]
    assert [context.stat(native.STAT_BUFFER_BYTES, i) for i in range(len(sizes))] == sizes
    assert all(start >= 0 and start % ALIGN == 0 for start in starts)
    assert all(start + size <= total for start, size in zip(starts, sizes))
    for i, (first, last) in enumerate(lifetimes):
        for j in range(i):
            if lifetimes[j][0] <= last and first <= lifetimes[j][1] and sizes[i] and sizes[j]:
                assert starts[i] + sizes[i] <= starts[j] or starts[j] + sizes[j] <= starts[i]
    alive = [
        sum(-(-size // ALIGN) * ALIGN for size, (a, b) in zip(sizes, lifetimes) if a <= step <= b)
        for step in range(1 + max((last for _, last in lifetimes), default=0))
    ]
    assert max(alive) <= total <= sum(-(-size // ALIGN) * ALIGN for size in sizes)


intervals = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 3000), st.integers(0, 3000)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(intervals)
def test_buffers_alive_together_do_not_overlap(drawn):
    lifetimes = [(first, first + length) for first, length, _, _ in drawn]
    with Plan(load(), chain(lifetimes).encode(), []) as plan, Context(plan, 1) as context:
        for sizes in ([d[2] for d in drawn], [d[3] for d in drawn], [0] * len(drawn)):
            context.bind(sizes)
            check_placement(context, sizes, lifetimes)


def test_placement_reaches_the_lower_bound_of_a_chain():
    """Each step reads what the last one wrote: two buffers' worth of memory, however long."""
    lifetimes = [(i, i + 1) for i in range(30)]
    with Plan(load(), chain(lifetimes).encode(), []) as plan, Context(plan, 1) as context:
        context.bind([1024] * 30)
        assert context.stat(native.STAT_ARENA_BYTES) == 2048


def test_allocations():
    """Only shapes that need more than any before allocate, and growing little by little allocates
    rarely.
    """
    lifetimes = [(0, 1), (1, 2), (0, 2)]
    with Plan(load(), chain(lifetimes).encode(), []) as plan, Context(plan, 1) as context:
        assert context.stat(native.STAT_ALLOCATIONS) == 0
        context.bind([4096, 8192, 128])
        assert context.stat(native.STAT_ALLOCATIONS) == 1
        assert context.stat(native.STAT_RESERVED_BYTES) == 4096 + 8192 + 128
        for sizes in ([4096, 8192, 128], [1, 1, 1], [0, 0, 0], [8192, 4096, 128], [12288, 0, 0]):
            context.bind(sizes)
        assert context.stat(native.STAT_ALLOCATIONS) == 1
        for token in range(1000):
            context.bind([4096 + 128 * token, 8192 + 128 * token, 128])
        assert context.stat(native.STAT_ALLOCATIONS) < 20


def test_sizes_that_no_memory_can_hold():
    run_alone("bind_too_much", __name__)


def bind_too_much() -> None:
    with Plan(load(), chain([(0, 1), (0, 1)]).encode(), []) as plan, Context(plan, 1) as context:
        for sizes in ([-1, 0], [MOST, 0], [MOST // 4, MOST // 4], [LEAST, 1]):
            with pytest.raises(StatusError) as caught:
                context.bind(sizes)
            assert caught.value.code in (native.BAD_ARG, native.NO_MEMORY)
        context.bind([128, 128])
        check_placement(context, [128, 128], [(0, 1), (0, 1)])


def test_steps_read_what_is_bound():
    """Args, offsets and addresses follow the shapes: y = x + x by way of the arena."""
    blob = Blob(symbols=1, inputs=1, outputs=1)
    n = Value(1)
    size = blob.expr("mul", n, 4)
    unused = blob.buffer(size, 0, 0)  # so that the one in use moves
    middle = blob.buffer(size, 0, 1)
    blob.copy(("input", 0), ("arena", middle), [n], [1], [1])
    blob.add(("arena", middle), ("input", 0), ("output", 0, 8), n)
    assert unused == 0
    with Plan(load(), blob.encode(), []) as plan, Context(plan, 2) as context:
        for count in (5, 100_000, 0, 33):
            context.bind([count])
            x = np.arange(count, dtype=np.float32)
            y = np.full(count + 2, 7, np.float32)
            context.run(0, 2, [x], [y])
            assert (y == np.concatenate([[7, 7], x + x])).all()


def rooms_blob(shapes: list[tuple[int, int, int]]) -> tuple[Blob, list[int]]:
    """A matmul of each (m, k, n), with room for its packed b, and the buffers of those. One more
    buffer is alive up to the last but one.
    """
    blob = Blob(inputs=2 * len(shapes), outputs=len(shapes))
    nr, constants = blob.target.kernel("gemm").nr, blob.target.constants
    blob.fill(blob.buffer(1 << 20, 0, len(shapes) - 1))
    buffers = []
    for i, (m, k, n) in enumerate(shapes):
        panels = min(-(-n // nr), constants["MATMUL_PANELS"])
        each = min(k, constants["GEMM_K_BLOCK"]) * panels * nr * 4
        buffers.append(blob.buffer(blob.expr("mul", Value(0), each), i + 1, i + 1))
        operands = {"a": ("input", 2 * i), "b": ("input", 2 * i + 1), "c": ("output", i)}
        strides = {"a_row_stride": k, "a_col_stride": 1, "b_row_stride": n, "b_col_stride": 1}
        sizes = {"m": m, "k": k, "n": n, "alpha": 1.0}
        blob.step("matmul", "gemm", **operands, pack=("arena", buffers[-1]), **sizes, **strides)
    return blob, buffers


def test_threads_have_one_room_for_all_steps():
    """So that no thread writes where another one has just written: docs/decisions.md 149."""
    shapes = [(40, 70, 50), (90, 300, 400), (33, 20, 90)]
    blob, buffers = rooms_blob(shapes)
    rng = np.random.default_rng(0)
    sizes = [size for m, k, n in shapes for size in ((m, k), (k, n))]
    feeds = [rng.normal(size=size).astype(np.float32) for size in sizes]
    with Plan(load(), blob.encode(), []) as plan:
        for threads in (1, 2, 3, 8):
            with Context(plan, threads) as context:
                context.bind([])
                places = {context.stat(native.STAT_BUFFER_OFFSET, i) for i in buffers}
                assert threads == 1 or len(places) == 1
                results = [np.empty((m, n), np.float32) for m, _, n in shapes]
                context.run(0, 1 + len(shapes), feeds, results)
            for a, b, c in zip(feeds[::2], feeds[1::2], results):
                expected, size = a.astype(np.float64) @ b, np.abs(a) @ np.abs(b)
                assert (np.abs(c - expected) <= tolerance(len(b), size)).all()


def test_data_fault_names_its_step():
    blob = Blob(inputs=2, outputs=1)
    blob.step("fill", y=("output", 0), elem_bytes=1, n=4)
    blob.step(
        "gather",
        x=("input", 0),
        indices=("input", 1),
        y=("output", 0),
        outer=1,
        axis_dim=3,
        inner_bytes=4,
        n=1,
        index_dtype=7,
    )
    table, y = np.arange(3, dtype=np.float32), np.empty(1, np.float32)
    with Plan(load(), blob.encode(), []) as plan, Context(plan, 1) as context:
        context.bind([])
        for index in (3, -4, MOST, LEAST):
            with pytest.raises(StatusError) as caught:
                context.run(0, 2, [table, np.array([index])], [y])
            error = caught.value
            assert (error.code, error.index) == (native.DATA_FAULT, 1)
            assert (error.value, error.limit) == (index, 3)
        context.run(0, 2, [table, np.array([-1])], [y])
        assert y == 2


def test_profile_adds_up():
    blob = Blob()
    buffer = blob.buffer(100_000, 0, 1)
    blob.fill(buffer, 100_000)
    blob.fill(buffer, 100_000)
    with Plan(load(), blob.encode(), []) as plan, Context(plan, 1) as context:
        context.bind([])
        times = array("q", [0, 0])
        context.profile(times)
        context.run(0, 2, [], [])
        once = list(times)
        context.run(1, 2, [], [])
        assert all(once) and times[0] == once[0] and times[1] > once[1]
        context.profile(None)
        context.run(0, 2, [], [])
        assert times[0] == once[0]


# What a plan may not be


@pytest.mark.parametrize("threads", [0, -1, LEAST])
def test_no_threads(threads):
    with Plan(load(), Blob().encode(), []) as plan, pytest.raises(StatusError):
        Context(plan, threads)


def test_a_kernel_that_is_not_here():
    rows = load().target.kernels
    missing = next((row for row in rows if not row.compiled and row.family == "unary"), None)
    if missing is None:
        pytest.skip("this build has every kernel")
    blob = Blob()
    blob.step("unary", "unary", x=("arena", 0), y=("arena", blob.buffer(1, 0, 0)))
    op, _, args = blob.steps[0]
    blob.steps[0] = (op, missing.index, args)
    with pytest.raises(StatusError, match=f"kernel {missing.name} is not available") as caught:
        Plan(load(), blob.encode(), [])
    assert (caught.value.code, caught.value.index) == (native.UNSUPPORTED, 0)


@pytest.mark.parametrize("op, kernel", [("unary", "binary"), ("unary", ""), ("fill", "unary")])
def test_a_kernel_that_the_op_does_not_call(op, kernel):
    blob = Blob()
    blob.step(op, kernel, y=("arena", blob.buffer(1, 0, 0)))
    with pytest.raises(StatusError, match="another family") as caught:
        Plan(load(), blob.encode(), [])
    assert caught.value.code == native.BAD_ARG


def sound_blob() -> Blob:
    """Some of everything that a plan has."""
    blob = Blob(symbols=2, inputs=1, outputs=1)
    n = blob.expr("mul", Value(1), blob.expr("max", Value(2), 1))
    size = blob.expr("mul", n, 4)
    blob.guard(Value(1), "ge", 0)
    blob.guard(Value(2), "eq", Value(2))
    first, second = blob.buffer(size, 0, 1), blob.buffer(size, 1, 2)
    blob.copy(("input", 0), ("arena", first), [n], [1], [1])
    blob.step("unary", "unary", x=("arena", first), y=("arena", second), op="exp", dtype=1, n=n)
    fields = {"dtype": 1, "outer": 1, "n": n, "inner": 1}
    blob.step("softmax", "softmax", x=("arena", second), y=("output", 0), **fields)
    blob.pointers.append((blob.pointers[-1][0], 1, 0, blob.value(0)))  # a constant, unused
    blob.pointers.append(blob.pointers[-2])
    return blob


def create(words: bytes, symbols: int) -> bool:
    """Whether this makes a plan; then a context of it takes any symbols without harm."""
    try:
        with Plan(load(), words, [np.zeros(4)]) as plan, Context(plan, 2) as context:
            for size in (3, 0, -1, 1 << 40, MOST):
                try:
                    context.bind([size] * symbols)
                except StatusError:
                    continue
            return True
    except StatusError as error:
        assert error.code in (native.BAD_ARG, native.UNSUPPORTED, native.NO_MEMORY)
        assert str(error)
        return False


def break_every_word() -> None:
    """The body of test_corrupt_plans, in a process that may crash."""
    sound = array("q", sound_blob().encode())
    n_bytes = 8 * len(sound)
    assert create(sound.tobytes(), 2)
    sizes_of_sections = range(3, 10)  # words of the header that must add up to n_bytes
    numbers = random.Random(1)
    for at, old in enumerate(sound):
        bad = [old + 1, old - 1, -old - 1, -1, 0, 7, 1 << 31, 1 << 40, 1 << 61, MOST, LEAST]
        bad += [numbers.randint(LEAST, MOST), old ^ (1 << numbers.randrange(63))]
        for value in bad:
            words = array("q", sound)
            words[at] = min(max(value, LEAST), MOST)
            n_symbols = words[2] - 1 if 1 <= words[2] <= n_bytes else 0
            made = create(words.tobytes(), n_symbols)
            if at in (0, 1, *sizes_of_sections):
                assert made == (value == old), f"header word {at}: {value}"
    for length in range(n_bytes):
        assert not create(sound.tobytes()[:length], 2), f"the first {length} bytes"
    assert not create(sound.tobytes() + bytes(8), 2)


def test_corrupt_plans():
    """Every word changed, every length cut: an error or another plan, never a crash."""
    run_alone("break_every_word", __name__)
