"""Models head to head with other engines: the shapes that releases are judged by.

Run: python bench models [--cache DIR] [--model bert-base] [--threads 1,2] [--matrix] [--plot FILE].
Engines take turns, in one process, with the same number of threads, in float32; each turn begins
with untimed runs. Shown are medians in ms, how far the quartiles are from ours, and our time over
each other's. Models that the zoo has not written are skipped, as is what has been measured at this
commit already: what was interrupted, by --seconds say, goes on where it was. Rows go to
bench/results/models.jsonl, for `python bench compare`. With `--clock cpu` the time of the process
counts, which others on the machine disturb less: sound for one thread only, as waiting ones spin.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Optional

import engines
import numpy as np
import results
import zoo

from q7x2_ep import importer
from q7x2_ep.compare import interleave
from q7x2_ep.feeds import random_feeds
from q7x2_ep.passes import infer
from q7x2_ep.progress import track


class Feed(NamedTuple):
    """Sizes of one feed. sequence: 0 where the model has none. padded: masks end in zeros."""

    batch: int
    sequence: int = 0
    padded: bool = False

    def __str__(self) -> str:
        length = f"x{self.sequence}" if self.sequence else ""
        return f"{self.batch}{length}{' padded' * self.padded}"


IMAGES = [Feed(1), Feed(8)]
FEEDS = {  # model of the zoo: what releases are judged by
    "bert-base": [Feed(1, 16), Feed(1, 128), Feed(8, 128), Feed(1, 512)],
    "distilbert": [Feed(1, 128)],
    "gpt2": [Feed(1, 128), Feed(1, 1024)],
    "minilm": [Feed(1, 32), Feed(32, 128, True)],
    "qwen3-4l": [Feed(1, 128)],
    "vit-b16": IMAGES,
    "resnet50": IMAGES,
    "mobilenet-v2": IMAGES,
    "minilm.int8": [Feed(1, 128)],
    "minilm.int4": [Feed(1, 128)],
    **{f"{name}.light": IMAGES[:1] for name in zoo.light_models()},
    **{f"{name}-10.chain": [Feed(16), Feed(1600), Feed(64000)] for name in zoo.CHAINS},
}
SAME = 1e-3  # of the largest value of an output: who is further off does not do the same work
BATCHES, LENGTHS = (1, 4, 8), (1, 16, 64, 128, 384, 512, 1024)  # of --matrix


class Job(NamedTuple):
    """model: its name in the zoo, or the file's."""

    model: str
    path: Path
    feed: Feed
    threads: int

    @property
    def name(self) -> str:
        plain = self.path.stem.replace(".sdpa.legacy17", "")  # what goes without saying
        return f"{plain} {self.feed}"


def main(arguments: Optional[list[str]] = None) -> int:
    options = _options(arguments)
    path = options.results or results.FOLDER / "models.jsonl"
    absent = [name for name in options.peer if engines.missing(name)]
    peers = [name for name in options.peer if name not in absent]
    if absent:
        print(f"not installed: {', '.join(absent)}")
    jobs = list(find(options))
    done = {} if options.again else measured(results.read(path), peers, options.clock)
    rows = []
    start = time.monotonic()
    print(header(peers), flush=True)
    with Loaded(peers, options.clock) as loaded:
        for job in track(jobs, "models"):
            row = done.get((job.name, job.threads))
            if row is None and options.seconds and time.monotonic() - start > options.seconds:
                print(f"{options.seconds} s are over: the same command goes on from here")
                break
            if row is None:
                row = loaded.measure(job, options.runs)
                results.write("models", [row] if row else [], path)
            if row is not None:
                rows.append(row)
                print(line(row, peers), flush=True)
    print(summary(rows, peers))
    if options.plot and rows:
        import plots

        plots.bars(rows, options.plot)
    return 0


def find(options: argparse.Namespace) -> Iterator[Job]:
    """Everything that is asked for and at hand, a model at a time."""
    for name, threads in itertools.product(options.model or FEEDS, options.threads):
        feeds = FEEDS.get(name, [Feed(1, 128)])
        if name not in FEEDS:
            path = Path(name)
        elif name in zoo.MODELS:
            path = options.cache / zoo.file_name(name, options.exporter, options.opset, "sdpa")
        else:
            path = options.cache / f"{name}.onnx"
        if not path.exists():
            print(f"{path} does not exist: skipped")
            continue
        if options.matrix or options.batch or options.sequence:
            batches, lengths = options.batch or BATCHES, options.sequence or LENGTHS
            feeds = [
                Feed(batch, length)
                for batch in batches
                for length in (lengths if feeds[0].sequence else (0,))
            ]
        for feed in feeds:
            yield Job(name, path, feed, threads)


def measured(
    rows: Sequence[results.Row], peers: Sequence[str], clock: str
) -> dict[tuple, results.Row]:
    """What was measured at this commit, on this machine, beside at least these peers."""
    here = {**results.facts(), "clock": clock}
    same = ("commit", "cpu", "isa", "knobs", "clock")
    return {
        (row["name"], row["threads"]): row
        for row in rows
        if all(row.get(key) == here.get(key) for key in same) and {*peers} <= {*row["peers"]}
    }


class Loaded(ExitStack):
    """The engines of one model and number of threads at a time."""

    def __init__(self, peers: Sequence[str], clock: str):
        super().__init__()
        self.peers, self.clock = peers, clock
        self.key: Any = None
        self.runs: dict[str, engines.Loaded] = {}

    def load(self, job: Job) -> None:
        if self.key == (job.path, job.threads):
            return
        self.runs = {}
        self.close()
        self.key = (job.path, job.threads)
        self.graph = importer.read(str(job.path))
        infer.run(self.graph)
        for name in (engines.OURS, *self.peers):
            if engines.can_load(name, job.model):
                made = engines.ENGINES[name].load(job.model, job.path, job.threads)
                try:
                    self.runs[name] = self.enter_context(made)
                except Exception as error:  # their exceptions share no base class
                    leave_out(name, job, error)

    def measure(self, job: Job, runs: Optional[int]) -> Optional[results.Row]:
        """A row, or None where we do not take such a feed."""
        self.load(job)
        feeds = random_feeds(self.graph, job.feed.batch, job.feed.sequence, padding=job.feed.padded)
        calls, outputs = {}, {}
        for name, run in self.runs.items():
            try:
                call = run(feeds)
                calls[name], outputs[name] = call, [np.array(array) for array in call()]
            except Exception as error:
                leave_out(name, job, error)
        if engines.OURS not in calls:
            return None
        samples = interleave(list(calls.values()), runs, results.CLOCKS[self.clock])
        ours = outputs.pop(engines.OURS)
        return {
            "name": job.name,
            "threads": job.threads,
            "ours": engines.OURS,
            "ms": {name: results.quartiles(each) for name, each in zip(calls, samples)},
            "least": {name: float(f"{min(each):.4g}") for name, each in zip(calls, samples)},
            "runs": len(samples[0]),
            "peers": self.peers,
            "clock": self.clock,
            "distances": {name: distance(ours, each) for name, each in outputs.items()},
            "versions": {name: engines.version(name) for name in calls},
        }


def leave_out(name: str, job: Job, error: Exception) -> None:
    print(f"{job.name}: {name} is left out: {str(error).strip().splitlines()[0]}"[:100])


def distance(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """The largest difference between outputs, relative to the largest value of each."""
    found = [
        float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))
        for a, b in zip(ours, theirs)
        if a.size
    ]
    return float(f"{max(found, default=0.0):.2g}")


def header(peers: Sequence[str]) -> str:
    columns = "".join(f"{engines.ENGINES[name].title:>9}{'ratio':>6}" for name in peers)
    return f"{'model':<24}{'thr':>3}{'q7x2_ep':>8}{'+-%':>4}{columns}"


def line(row: results.Row, peers: Sequence[str]) -> str:
    """Medians in ms, how far the quartiles are from ours, and our time over theirs."""
    low, median, high = row["ms"][row["ours"]]
    cells = f"{row['name'][:23]:<24}{row['threads']:>3}{_ms(median):>8}"
    cells += f"{50 * (high - low) / median:>4.0f}"
    for name in peers:
        theirs = row["ms"].get(name)
        cells += f"{_ms(theirs[1]):>9}{median / theirs[1]:>6.2f}" if theirs else f"{'-':>9}{'':>6}"
    return cells


def summary(rows: Sequence[results.Row], peers: Sequence[str]) -> str:
    """Geometric means, how often each peer is ahead, and whose outputs are not ours."""
    lines = [
        f"{row['name']}: outputs of {name} differ by {far}"
        for row in rows
        for name, far in row["distances"].items()
        if not far <= SAME
    ]
    for name in peers:
        ratios = [
            row["ms"][row["ours"]][1] / row["ms"][name][1] for row in rows if name in row["ms"]
        ]
        if ratios:
            mean, ahead = float(np.exp(np.log(ratios).mean())), sum(r > 1 for r in ratios)
            lines.append(
                f"{name}: ratio {mean:.2f} on average, ahead {ahead} of {len(ratios)} times"
            )
    return "\n".join(lines)


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Models head to head with other engines.")
    parser.add_argument("--cache", type=Path, default=zoo.DEFAULT_CACHE, help="of the zoo")
    parser.add_argument(
        "--model", action="append", help=f"{', '.join(FEEDS)}, or a file; may be repeated"
    )
    parser.add_argument("--threads", type=results.numbers, default=[1, 2])
    parser.add_argument(
        "--peer",
        type=lambda text: [name for name in text.split(",") if engines.ENGINES[name]],
        default=list(engines.FROM_FILE[1:]),
        help=f"of {', '.join(engines.PEERS)} (default those that run files)",
    )
    parser.add_argument("--batch", type=results.numbers, help="instead of the usual feeds")
    parser.add_argument("--sequence", type=results.numbers)
    parser.add_argument("--matrix", action="store_true", help="all batches and lengths")
    parser.add_argument("--exporter", choices=("legacy", "dynamo"), default="legacy")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--runs", type=int, help="of each engine (default: what 1.5 s allow)")
    parser.add_argument("--clock", choices=results.CLOCKS, default="wall")
    parser.add_argument("--seconds", type=float, help="begin nothing new after so long")
    parser.add_argument("--again", action="store_true", help="what was measured already, too")
    parser.add_argument("--results", type=Path, help="(default bench/results/models.jsonl)")
    parser.add_argument("--plot", metavar="FILE", help="bars of the ratios (needs matplotlib)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
