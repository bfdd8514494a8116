"""Sessions that are made, run and closed over and over leave nothing behind: no memory, no handles.

A few cycles are run always, 10 000 of each with `-m slow`.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.backend.call import Call
from q7x2_ep.session import Session

SIDE = 256  # a leaked weight, arena or output is 256 KiB
SLACK = 6 << 20  # bytes: what allocators keep
STATUS = Path("/proc/self/statm")
HANDLES = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="counts memory as Linux does")


def model(*nodes: Any, outputs: tuple[str, ...]) -> bytes:
    weight = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["product"]), *nodes],
        "leaks",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", SIDE]),
            helper.make_tensor_value_info("i", TensorProto.INT64, ["picks"]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def branch(op: str) -> Any:
    node = helper.make_node(op, ["product"], [op])
    return helper.make_graph([node], op, [], [helper.make_empty_tensor_value_info(op)])


GATHER = helper.make_node("Gather", ["product", "i"], ["y"])
NATIVE = model(GATHER, outputs=("y",))
HOST = model(
    GATHER,
    helper.make_node("NonZero", ["y"], ["places"]),
    helper.make_node("Cast", ["places"], ["some"], to=TensorProto.BOOL),
    helper.make_node("ReduceMax", ["some"], ["any"], keepdims=0),
    helper.make_node("If", ["any"], ["z"], then_branch=branch("Relu"), else_branch=branch("Neg")),
    outputs=("places", "z"),
)
FEED = {"x": np.ones((SIDE, SIDE), np.float32), "i": np.arange(SIDE)}
BROKEN = {**FEED, "i": np.full(SIDE, SIDE)}


def run(source: bytes) -> None:
    with q7x2_ep.InferenceSession(source) as session:
        session.run(None, FEED)
        session.run(None, {**FEED, "x": FEED["x"][:-1], "i": FEED["i"][:7]})


def profile(source: bytes) -> None:
    session = Session(source, threads=2)
    session.profile(FEED, runs=1)
    session.run(FEED, Call(step_ns=[], stopped=lambda: False))
    session.close()


def fail(source: bytes) -> None:
    with q7x2_ep.InferenceSession(source) as session:
        for feed in (BROKEN, {"x": FEED["x"]}, {**FEED, "x": FEED["x"][:, :-1]}):
            with pytest.raises(q7x2_ep.Q7Error):
                session.run(None, feed)
    with pytest.raises(q7x2_ep.ModelError):
        q7x2_ep.InferenceSession(source[: len(source) // 2])


def abandon(source: bytes) -> None:
    """Nobody closes it."""
    q7x2_ep.InferenceSession(source).run(None, FEED)


def resident() -> int:
    gc.collect()
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


USES = {use.__name__: use for use in (run, profile, fail, abandon)}
SOURCES = {"native": NATIVE, "host": HOST}


def growth(use: str, source: str, cycles: int) -> list[int]:
    """Bytes, handles and threads that there are more after some cycles."""
    for _ in range(20):
        USES[use](SOURCES[source])
    before = [resident(), len([*HANDLES.iterdir()]), threading.active_count()]
    for _ in range(cycles):
        USES[use](SOURCES[source])
    after = [resident(), len([*HANDLES.iterdir()]), threading.active_count()]
    return [b - a for a, b in zip(before, after)]


@pytest.mark.parametrize(
    "cycles", [50, pytest.param(10_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("use", USES)
def test_nothing_is_left(use: str, source: str, cycles: int) -> None:
    """In a process of its own, where nothing else takes memory."""
    command = [sys.executable, __file__, use, source, str(cycles)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    memory, handles, threads = json.loads(done.stdout)
    assert memory < SLACK
    assert (handles, threads) == (0, 0)


if __name__ == "__main__":
    print(json.dumps(growth(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
