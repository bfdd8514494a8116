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


def measure(load: Callable[[], Any], work: Callable[[Any], dict[str, Any]]) -> None:
    """Pickles into RESULT: results, the value that work gave for each item; load and work, seconds;
    engine, the module that sessions came from.
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
    }
    Path(sys.argv[1]).write_bytes(pickle.dumps(found))
