"""A run after a pause, and beside what keeps cores busy: python bench beside [MODEL.onnx ..].

What a server sees, where the other benches measure runs one after the other on an idle machine: the
first run after some ms without one, a run right behind another engine's, whose threads still spin,
and runs while 1, or as many programs as there are threads, never let go of a core. Engines take
turns, each in a process of its own (behind another: in that one's), on feeds of batch 1; shown are
medians in ms and what nine of ten runs do not exceed. Models: files, by default the MobileNet-v2 of
the zoo. Rows go to bench/results/beside.jsonl.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Optional

import engines
import results
import turns

from q7x2_ep.progress import track

UNTIMED = 2


class Situation(NamedTuple):
    """pause_ms: without a run, before each. behind: another engine runs before each. busy: programs
    that never let go of a core.
    """

    title: str
    pause_ms: float = 0
    behind: bool = False
    busy: int = 0


def sample(
    engine: str, other: str, path: Path, threads: int, how: Situation, seconds: float
) -> list[float]:
    """Milliseconds of each run in so many seconds; in a process of the pool."""
    run, before = turns.loaded(engine, path, threads), None
    if how.behind:
        before = turns.loaded(other, path, threads)
    found: list[float] = []
    time.sleep(turns.REST)
    end = time.perf_counter() + seconds
    while len(found) <= UNTIMED or time.perf_counter() < end:
        if before:
            before()
        if how.pause_ms:
            time.sleep(how.pause_ms / 1000)
        start = time.perf_counter()
        run()
        found.append(1000 * (time.perf_counter() - start))
    return found[UNTIMED:]


@contextmanager
def busy(programs: int) -> Iterator[None]:
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)
    ]
    try:
        yield
    finally:
        for program in started:
            program.kill()
            program.wait()


def measure(path: Path, how: Situation, options: argparse.Namespace) -> results.Row:
    pair = (engines.OURS, options.peer)
    times: dict[str, list[float]] = {engine: [] for engine in pair}
    with turns.processes(pair) as pools, ExitStack() as stack:

        def turn(engine: str, other: str, seconds: float) -> list[float]:
            given = (engine, other, path, options.threads, how, seconds)
            return pools[engine].submit(sample, *given).result()

        for engine, other in (pair, pair[::-1]):
            turn(engine, other, 0)  # loads, before others keep the cores busy
        stack.enter_context(busy(how.busy))
        for _ in range(turns.TURNS):
            for engine, other in (pair, pair[::-1]):
                times[engine] += turn(engine, other, options.seconds / turns.TURNS)
    return turns.row(f"{path.stem} {how.title}", options.threads, times)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = _options(arguments)
    title = engines.ENGINES[options.peer].title
    situations = [
        Situation("at once"),
        *(Situation(f"after {ms} ms", pause_ms=ms) for ms in (5, 20, 60)),
        Situation(f"behind {title}", behind=True),
        *(Situation(f"beside {n}", busy=n) for n in sorted({1, options.threads})),
    ]
    print(
        f"{'model':<28}{'run':<14}{'q7x2_ep':>9}{'9 of 10':>9}{title:>10}{'9 of 10':>9}{'ratio':>7}"
    )
    for path, how in track([(p, s) for p in turns.models(options) for s in situations], "beside"):
        row = measure(path, how, options)
        results.write("beside", [row])
        cells = [
            f"{text:>{width}}"
            for engine, width in ((engines.OURS, 9), (options.peer, 10))
            for text, width in ((row["ms"][engine][1], width), (row["ninth"][engine], 9))
        ]
        ratio = row["ms"][engines.OURS][1] / row["ms"][options.peer][1]
        print(f"{path.stem[:27]:<28}{how.title:<14}{''.join(cells)}{ratio:>7.2f}", flush=True)
    return 0


def _options(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    return turns.parser("A run after a pause, and beside busy programs.").parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
