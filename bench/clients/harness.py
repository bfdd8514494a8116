"""What the programs in this folder share: load a client, run its work, leave what came of it.

A program is run as `python <program>.py RESULT`, on whatever engine `import onnxruntime` gives.
"""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import Any, Callable

SECONDS = 3.0  # of repeated work
REPOSITORY = Path(__file__).resolve().parents[2]
SENTENCES = [  # 1 to 60 words
    line.strip()
    for line in (REPOSITORY / "docs" / "decisions.md").read_text(encoding="utf-8").splitlines()
    if len(line.split()) > 0
]


class Recorder:
    """A session in whose place it stands; calls: the feeds and outputs of each run."""

    def __init__(self, session: Any):
        self.session = session
        self.calls: list[tuple[dict[str, Any], list[Any]]] = []

    def run(self, names: Any, feeds: dict[str, Any]) -> list[Any]:
        outputs = self.session.run(names, feeds)
        self.calls.append((feeds, outputs))
        return outputs


def measure(
    load: Callable[[], Any],
    work: Callable[[Any], dict[str, Any]],
    record: Callable[[Any], Any] = lambda client: None,
) -> None:
    """Pickles into RESULT: results, the value that work gave for each item; load and work, seconds;
    engine, the module that sessions came from; model, what record gave: the path of a model and the
    calls of its Recorder.
    """
    begin = time.perf_counter()
    client = load()
    loaded = time.perf_counter()
    times: list[float] = []
    while sum(times) < SECONDS:
        start = time.perf_counter()
        results = work(client)
        times.append(time.perf_counter() - start)
    engine = sys.modules["onnxruntime"]
    found = {
        "results": results,
        "load": loaded - begin,
        "work": min(times),
        "engine": engine.InferenceSession.__module__.split(".")[0],
        "model": record(client),
    }
    Path(sys.argv[1]).write_bytes(pickle.dumps(found))
