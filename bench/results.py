"""Rows of measurements as JSON lines: bench/results/<bench>.jsonl, one format for all benches.

A row has a name and threads, which together say what was measured, and, where times were, `ms`: per
engine or kernel its quartiles [q1, median, q3]; `ours` is the one that is judged, `peers` are the
engines that are not ours. With it goes what it was measured on: CPU, ISA, versions, commit, date,
load.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, Optional

import numpy as np

from q7x2_ep.doctor import environment

CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}
FOLDER = Path(__file__).resolve().parent / "results"
Row = dict[str, Any]


@cache
def facts() -> Row:
    """What every row of this process shares."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return {**environment(), "commit": done.stdout.strip()}


def percentile(samples: Iterable[float], share: float) -> float:
    """Four digits."""
    return float(f"{np.percentile(list(samples), share):.4g}")


def quartiles(samples: Iterable[float]) -> list[float]:
    """25, 50 and 75 %."""
    found = list(samples)
    return [percentile(found, share) for share in (25, 50, 75)]


def of_pair(
    name: str, threads: int, ours: Iterable[float], theirs: Iterable[float], clock: str
) -> Row:
    """A row of us beside onnxruntime. Units: milliseconds."""
    return {
        "name": name,
        "threads": threads,
        "ours": "q7x2_ep",
        "peers": ["onnxruntime"],
        "clock": clock,
        "ms": {"q7x2_ep": quartiles(ours), "onnxruntime": quartiles(theirs)},
    }


def write(bench: str, rows: Iterable[Mapping[str, Any]], path: Optional[Path] = None) -> None:
    """Append rows to a file, by default that of the bench."""
    path = path or FOLDER / f"{bench}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    load = os.getloadavg()[0]  # of the last minute: above the threads of a row others ran as well
    common = {"bench": bench, "date": date, "load": round(load, 1)}
    with open(path, "a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({**common, **facts(), **row}) + "\n")


def read(path: Path) -> list[Row]:
    """All rows of a file; none where there is no file.

    Raises: SystemExit with the number of a line that is not a row.
    """
    rows = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            row["name"], row["threads"]
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}:{number}: no row of a bench: {error!r}") from None
        rows.append(row)
    return rows


def here(bench: str, name: str, threads: int) -> list[Row]:
    """The rows of that name that were measured on this CPU, in the file of the bench."""
    wanted = (name, threads, facts()["cpu"])
    rows = read(FOLDER / f"{bench}.jsonl")
    return [row for row in rows if (row["name"], row["threads"], row["cpu"]) == wanted]


def measured(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Those that were measured at this commit, on this machine, with these settings."""
    wanted = {**{key: facts().get(key) for key in ("commit", "cpu", "isa", "knobs")}, **wanted}
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
