"""Runs at once, as a server has them: python bench serve [MODEL.onnx ..] [--callers 1,2,4,8].

So many threads of a process call run() one after the other, all on one session, or each on one of
its own: runs a second of all together, and how long a run takes in the middle and for nine of ten.
Engines take turns, each in a process of its own, on feeds of batch 1. Models: files, by default the
MobileNet-v2 of the zoo. Rows go to bench/results/serve.jsonl.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import engines
import results
import turns

from q7x2_ep import usage
from q7x2_ep.progress import track


class Load(NamedTuple):
    """threads: of a run. alone: whether each caller has a session of its own."""

    path: Path
    sequence: int
    threads: int
    callers: int
    alone: bool

    @property
    def title(self) -> str:
        sessions = self.callers if self.alone else 1
        return f"{self.callers} in {sessions} session{'s' * (sessions > 1)}"


def sample(engine: str, load: Load, seconds: float) -> tuple[list[float], float]:
    """Milliseconds of each run in so many seconds, and how many runs a second there were."""
    runs = [
        turns.loaded(engine, load.path, load.threads, load.sequence, number if load.alone else 0)
        for number in range(load.callers)
    ]
    for run in runs:
        run()
    time.sleep(turns.REST)
    found: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds

    def call(run: Callable[[], Any], times: list[float]) -> None:
        now = time.perf_counter()
        while now < end:
            run()
            before, now = now, time.perf_counter()
            times.append(1000 * (now - before))

    callers = [threading.Thread(target=call, args=pair) for pair in zip(runs, found)]
    start = time.perf_counter()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    elapsed = time.perf_counter() - start
    times = [one for each in found for one in each]
    return times, len(times) / elapsed


def measure(load: Load, peer: str, seconds: float) -> results.Row:
    pair = (engines.OURS, peer)
    times: dict[str, list[float]] = {engine: [] for engine in pair}
    rates: dict[str, list[float]] = {engine: [] for engine in pair}
    with turns.processes(pair) as pools:
        for turn in range(turns.TURNS):
            for engine in pair if turn % 2 else pair[::-1]:
                given = (sample, engine, load, seconds / turns.TURNS)
                one, rate = pools[engine].submit(*given).result()
                times[engine] += one
                rates[engine].append(rate)
    row = turns.row(f"{load.path.stem} {load.sequence} {load.title}", load.threads, times)
    return {**row, "rate": {engine: results.percentile(rates[engine], 50) for engine in pair}}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = _options(arguments)
    title = engines.ENGINES[options.peer].title
    head = f"{'runs/s':>8}{'ms':>8}{'9 of 10':>9}"
    print(
        f"{'':<46}{'q7x2_ep':>25}{title:>25}\n{'model':<28}{'callers':<18}{head}{head}{'more':>6}"
    )
    loads = [
        Load(path, options.sequence, options.threads, callers, alone)
        for path in turns.models(options)
        for callers in options.callers
        for alone in ((False, True) if callers > 1 else (False,))
    ]
    for load in track(loads, "serve"):
        row = measure(load, options.peer, options.seconds)
        results.write("serve", [row])
        cells = [
            f"{row['rate'][engine]:>8}{row['ms'][engine][1]:>8}{row['ninth'][engine]:>9}"
            for engine in (engines.OURS, options.peer)
        ]
        ratio = row["rate"][engines.OURS] / row["rate"][options.peer]
        print(f"{load.path.stem[:27]:<28}{load.title:<18}{''.join(cells)}{ratio:>6.2f}", flush=True)
    return 0


def _options(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = turns.parser("Runs at once, as a server has them.")
    parser.add_argument("--callers", type=usage.counts, default=[1, 2, 4, 8], help="1,2,4,8")
    parser.add_argument(
        "--sequence", type=int, default=turns.SEQUENCE, help="tokens (default %(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
