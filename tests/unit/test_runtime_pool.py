"""The thread pool under real ops: the same bits for any number of threads; clients; fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from q7x2_ep.backend.cpu.cores import available_cores
from q7x2_ep.backend.cpu.library import Context, Plan, load
from q7x2_ep.models import small_models
from tests.unit.plan_blobs import Blob, Value, run_alone

COLUMNS = 512


def several_regions() -> Blob:
    """y (rows) = row sums of x + x, transposed twice; x (rows, COLUMNS) float32."""
    blob = Blob(symbols=1, inputs=1, outputs=1)
    rows = Value(1)
    n = blob.expr("mul", rows, COLUMNS)
    size = blob.expr("mul", n, 4)
    a, b, c = (blob.buffer(size, first, first + 1) for first in range(3))
    blob.add(("input", 0), ("input", 0), ("arena", a), n)
    blob.copy(("arena", a), ("arena", b), [COLUMNS, rows], [1, COLUMNS], [rows, 1])
    blob.copy(("arena", b), ("arena", c), [rows, COLUMNS], [1, rows], [COLUMNS, 1])
    blob.step(
        "reduce",
        "reduce",
        x=("arena", c),
        y=("output", 0),
        op="sum",
        dtype=1,
        outer=rows,
        n=COLUMNS,
        inner=1,
    )
    return blob


def run(context: Context, x: np.ndarray) -> bytes:
    y = np.empty(len(x), np.float32)
    context.bind([len(x)])
    context.run(0, 4, [x], [y])
    np.testing.assert_allclose(y, 2 * x.sum(1), rtol=1e-4, atol=1e-3)
    return y.tobytes()


@pytest.fixture(scope="module")
def plan():
    with Plan(load(), several_regions().encode(), []) as made:
        yield made


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).standard_normal((1500, COLUMNS), np.float32)


def test_bits_do_not_depend_on_threads(plan, x):
    seen = set()
    for threads in (1, 2, 3, 8):
        with Context(plan, threads) as context:
            seen |= {run(context, x) for _ in range(5)}
    assert len(seen) == 1


def test_regions_of_every_size(plan, x):
    """From one task to many, in quick succession: workers that come late find nothing to do."""
    with Context(plan, 4) as context, Context(plan, 1) as alone:
        for _ in range(20):
            for rows in (1, 70, 2, 300, 3, 40):
                assert run(context, x[:rows]) == run(alone, x[:rows])


def products() -> bytes:
    """Rows by 2000 columns, by themselves, and convolutions that read their pixels or copies."""
    rng = np.random.default_rng(2)
    weights = {
        "w": (96, 2000),
        "point": (400, 96, 1, 1),
        "line": (320, 96, 1, 2),
        "square": (320, 96, 3, 3),
    }
    floats = [
        helper.make_tensor(name, TensorProto.FLOAT, dims, rng.standard_normal(dims).ravel() / 16)
        for name, dims in weights.items()
    ]
    sizes = [
        helper.make_tensor("shape", TensorProto.INT64, [4], [1, 15, -1, 96]),
        helper.make_tensor("by", TensorProto.FLOAT, [], [0.25]),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["columns"]),
        helper.make_node("Reshape", ["x", "shape"], ["pixels"]),
        helper.make_node("Transpose", ["pixels"], ["image"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["image", "point"], ["points"]),
        helper.make_node("Conv", ["image", "line"], ["lines"], strides=[2, 1]),
        helper.make_node("Conv", ["image", "square"], ["squares"], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["all"]),
        helper.make_node("Mul", ["all", "by"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 96])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in ("columns", "points", "lines", "squares", "scores")
        ],
        floats + sizes,
    )
    return bytes(helper.make_model(graph, ir_version=9).SerializeToString())


def test_panels_are_shared_by_threads():
    """Parts of blocks and whole ones, by whoever has time: the same bits."""
    model = products()
    options = q7x2_ep.SessionOptions()
    found = {}
    for threads in (1, 2, 5, 16):
        options.intra_op_num_threads = threads
        session = q7x2_ep.InferenceSession(model, options)
        for rows in (30, 60, 300, 675):
            x = np.random.default_rng(rows).standard_normal((rows, 96), np.float32)
            for _ in range(6):
                bits = [y.tobytes() for y in session.run(None, {"x": x})]
                assert bits == found.setdefault(rows, bits), f"{rows} rows by {threads} threads"


@pytest.mark.parametrize("wanted", [[2, 3, 1, 8], [4] * 20], ids=["some", "more than have workers"])
@pytest.mark.parametrize("cores", [1, 3, 8])
def test_contexts_at_once(plan, x, cores, wanted):
    """They share the workers."""
    with Context(plan, 1) as context:
        expected = run(context, x[:400])

    def client(threads: int) -> set[bytes]:
        with Context(plan, threads) as context:
            return {run(context, x[:400]) for _ in range(10)}

    load().c.q7_pool_cores(cores)
    try:
        with ThreadPoolExecutor(len(wanted)) as clients:
            assert list(clients.map(client, wanted)) == [{expected}] * len(wanted)
    finally:
        load().c.q7_pool_cores(available_cores())


def test_one_session_from_several_threads():
    """Runs of one session at once, of different shapes."""
    session = q7x2_ep.InferenceSession(small_models()["bert"])
    rng = np.random.default_rng(1)
    feeds = []
    for length in (1, 7, 32, 64):
        ones = np.ones((2, length), np.int64)
        ids = rng.integers(0, 100, ones.shape)
        feeds.append({"input_ids": ids, "attention_mask": ones, "token_type_ids": 0 * ones})
    expected = [session.run(None, feed) for feed in feeds]

    def client(first: int) -> None:
        for i in range(24):
            which = (first + i) % len(feeds)
            for found, wanted in zip(session.run(None, feeds[which]), expected[which]):
                assert found.tobytes() == wanted.tobytes()

    with ThreadPoolExecutor(6) as clients:
        list(clients.map(client, range(6)))


def make_many_sessions() -> None:
    """The body of test_sessions_come_and_go, alone: threads of tests before may end meanwhile."""
    path = small_models()["bert"]
    options = q7x2_ep.SessionOptions()
    options.intra_op_num_threads = 3
    counts = []
    for _ in range(12):
        session = q7x2_ep.InferenceSession(path, options)
        ids = np.ones((2, 40), np.int64)
        session.run(None, {i.name: ids for i in session.get_inputs()})
        if os.path.isdir("/proc/self/task"):
            counts.append(len(os.listdir("/proc/self/task")))
    assert len(set(counts[1:])) <= 1


def test_sessions_come_and_go():
    """Many sessions share the one pool: threads do not add up."""
    run_alone("make_many_sessions", __name__)


def fork_while_running() -> None:
    """The body of test_fork: children use the pool, while a thread of the parent does."""
    x = np.random.default_rng(1).standard_normal((600, COLUMNS), np.float32)
    with Plan(load(), several_regions().encode(), []) as plan:
        with Context(plan, 1) as context:
            expected = run(context, x)
        stop, runs = threading.Event(), []

        def background() -> None:
            with Context(plan, 3) as context:
                while not stop.is_set():
                    runs.append(run(context, x))

        thread = threading.Thread(target=background)
        thread.start()
        with Context(plan, 3) as kept:
            assert run(kept, x) == expected
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    with Context(plan, 3) as fresh:
                        good = all(run(c, x) == expected for c in (fresh, kept, fresh, kept))
                    os._exit(0 if good else 1)
                assert run(kept, x) == expected
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        thread.join()
        assert runs and set(runs) == {expected}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork():
    run_alone("fork_while_running", __name__)


def use_more_threads_than_the_pool_has() -> None:
    x = np.random.default_rng(1).standard_normal((1500, COLUMNS), np.float32)
    plan = Plan(load(), several_regions().encode(), [])
    with Context(plan, 1) as alone, Context(plan, 300) as crowd:
        assert {run(crowd, x) for _ in range(10)} == {run(alone, x)}


def test_more_threads_than_the_pool_has():
    run_alone("use_more_threads_than_the_pool_has", __name__)


more_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="affinities of threads, and two cores, are what it is about",
)


def sleeps(thread: int) -> bool:
    stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


def idle_workers() -> dict[int, set[int]]:
    """The cores of each thread but this one, once all have gone to sleep."""
    others = {int(task) for task in os.listdir("/proc/self/task")} - {os.getpid()}
    end, quiet = time.monotonic() + 60, 0
    while quiet < 20:  # a thread that is on its way there may wait for a lock meanwhile
        assert time.monotonic() < end, "threads do not go to sleep"
        time.sleep(0.005)
        quiet = quiet + 1 if all(map(sleeps, others)) else 0
    return {task: os.sched_getaffinity(task) for task in others}


def run_and_sleep() -> None:
    """The body of test_where_workers_are_woken."""
    x = np.random.default_rng(1).standard_normal((400, COLUMNS), np.float32)
    cores = os.sched_getaffinity(0)
    with Plan(load(), several_regions().encode(), []) as plan, Context(plan, 3) as context:

        def cores_once(holds: Callable[[dict[int, set[int]]], bool]) -> dict[int, set[int]]:
            """Those of idle workers, of some runs the first where that holds, or the last: where
            a worker has been held up, the runs behind that one go without.
            """
            end = time.monotonic() + 60
            while True:
                run(context, x)
                found = idle_workers()
                if holds(found) or time.monotonic() > end:
                    return found

        found = cores_once(lambda found: sum(each != cores for each in found.values()) == 2)
        workers = [thread for thread in found if found[thread] != cores]  # sanitizers have one, too
        assert [len(cores - found[w]) for w in workers] == [1, 1]

        given = {w: cores - found[w] for w in workers}  # by others: not what they have in any case
        for worker in workers:
            os.sched_setaffinity(worker, given[worker])
        for _ in range(3):
            run(context, x)
            found = idle_workers()
            assert all(found[w] == given[w] for w in workers)
        for worker in workers:
            os.sched_setaffinity(worker, cores)
        for core in sorted(cores)[:4]:  # a caller that has one core, and whose workers have all
            os.sched_setaffinity(0, {core})
            wanted = [cores - {core}] * 2
            found = cores_once(lambda found, wanted=wanted: [found[w] for w in workers] == wanted)
            assert [found[w] for w in workers] == wanted


@more_cores
def test_where_workers_are_woken():
    run_alone("run_and_sleep", __name__)


def switches(thread: int) -> int:
    """How often it went to sleep."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def run_with_fewer_threads() -> None:
    """The body of test_unwanted_workers_sleep_on. A worker that sleeps is woken with all others, so
    that who is not wanted sleeps on but where the first worker slept, too.
    """
    x = np.random.default_rng(1).standard_normal((1500, COLUMNS), np.float32)
    y = np.empty(len(x), np.float32)
    before = set(idle_workers())
    with Plan(load(), several_regions().encode(), []) as plan:
        with Context(plan, 3) as context:
            run(context, x)
        *_, wanted, unwanted = sorted({*idle_workers()} - before)  # sanitizers start one, too
        with Context(plan, 2) as context:
            run(context, x)
            seen, runs = [switches(wanted), switches(unwanted)], 300
            for _ in range(runs):
                context.run(0, 4, [x], [y])
            assert switches(unwanted) - seen[1] < 3 * (switches(wanted) - seen[0]) + runs / 10


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux tells it there")
def test_unwanted_workers_sleep_on():
    run_alone("run_with_fewer_threads", __name__)


def run_beside_others() -> None:
    """The body of test_beside_others: workers are held up in the middle of their tasks."""
    x = np.random.default_rng(1).standard_normal((1500, COLUMNS), np.float32)
    cores = os.sched_getaffinity(0)
    before = set(idle_workers())
    with Plan(load(), several_regions().encode(), []) as plan, Context(plan, 1) as alone:
        expected = run(alone, x)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in cores]
        try:
            with Context(plan, 3) as context:
                end = time.monotonic() + 3
                while time.monotonic() < end:
                    assert run(context, x) == expected
        finally:
            for program in busy:
                program.kill()
        found = idle_workers()
        assert all(len(cores - found[w]) <= 1 for w in set(found) - before)


@more_cores
def test_beside_others():
    """Those that were fetched have their cores again."""
    run_alone("run_beside_others", __name__)


AFFINITIES = """
import os, threading, time
import numpy as np
import q7x2_ep
from q7x2_ep.models import small_models

def run():
    os.sched_setaffinity(0, {PINNED})
    options = q7x2_ep.SessionOptions()
    options.intra_op_num_threads = 2
    session = q7x2_ep.InferenceSession(small_models()["bert"], options)
    feed = {i.name: np.ones((2, 64), np.int64) for i in session.get_inputs()}
    session.run(None, feed)

before = set(os.listdir("/proc/self/task"))
thread = threading.Thread(target=run)
thread.start()
thread.join()
end = time.monotonic() + 20  # of a worker that has not begun, whose core another program has
while True:
    time.sleep(0.01)  # while a thread ends the list may lack another
    workers = set(os.listdir("/proc/self/task")) - before - {str(thread.native_id)}
    cores = [os.sched_getaffinity(int(worker)) for worker in workers]
    if cores and {PINNED} not in cores or time.monotonic() > end:
        break
for each in cores:
    print(sorted(each))
"""


@more_cores
def test_workers_have_the_cores_of_the_process():
    """Not those of the thread that starts them."""
    pinned = max(os.sched_getaffinity(0))
    code = AFFINITIES.replace("PINNED", str(pinned))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    masks = done.stdout.split("\n")[:-1]
    assert masks and f"[{pinned}]" not in masks
