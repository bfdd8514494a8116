"""Models head to head with other engines: the table of shapes that releases are judged by.

Run: python bench models [--cache DIR] [--model bert-base] [--threads 1,2] [--matrix] [--plot FILE]
     [--peer onnxruntime,openvino,torch,compiled] [--seconds 55].
Engines take turns, in one process, with the same number of threads, in float32; each turn begins
with untimed runs. Shown are medians in ms, our time over each other's, and over the best other's:
quartiles of the rounds, what that would be if each of our steps took the least time that `python
bench roofline` allows, and the target. Exit code 1 where it is above 1. Models that the zoo has not
written are skipped, as is what has been measured at this commit already: what was interrupted, by
--seconds say, goes on where it was, and a peer that is asked for later is measured beside us alone.
Rows go to bench/results/models.jsonl, for `python bench compare`. With `--clock cpu` the time of
the process counts, which others on the machine disturb less: sound for one thread only, as waiting
ones spin.
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
import onnx
import results
import roofline
import work
import zoo

from q7x2_ep import importer, usage
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.compare import interleave
from q7x2_ep.feeds import random_feeds
from q7x2_ep.passes import infer
from q7x2_ep.plan.parts import Step
from q7x2_ep.progress import track


class Feed(NamedTuple):
    """Sizes of one feed. sequence: 0 where the model has none. padded: masks end in zeros."""

    batch: int
    sequence: int = 0
    padded: bool = False

    def __str__(self) -> str:
        length = f"x{self.sequence}" if self.sequence else ""
        return f"{self.batch}{length}{' padded' * self.padded}"


IMAGES = {Feed(1): 1.0, Feed(8): 1.0}
FEEDS = {  # model of the zoo: what releases are judged by, and our time over the best peer's
    "bert-base": {Feed(1, 16): 0.75, Feed(1, 128): 0.9, Feed(8, 128): 0.9, Feed(1, 512): 0.8},
    "distilbert": {Feed(1, 128): 1.0},
    "gpt2": {Feed(1, 128): 0.9, Feed(1, 1024): 0.75},
    "minilm": {Feed(1, 32): 0.6, Feed(32, 128, True): 0.85},
    "qwen3-4l": {Feed(1, 128): 1.0},
    "vit-b16": {Feed(1): 0.9, Feed(8): 0.9},
    "resnet50": {**IMAGES, Feed(1): 0.8},
    "mobilenet-v2": {**IMAGES, Feed(1): 0.75},
    "minilm.int8": {Feed(1, 128): 1.0},
    "minilm.int4": {Feed(1, 128): 1.0},
    "minilm.int4a4": {Feed(1, 128): 1.0},
    **{f"{name}.light": {Feed(1): 1.0} for name in zoo.light_models()},
    **{f"{name}-10.chain": {Feed(n): 1.0 for n in (16, 1600, 64000)} for name in zoo.CHAINS},
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
    def target(self) -> float:
        return FEEDS.get(self.model, {}).get(self.feed, 1.0)

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
    if not jobs:
        print("nothing to measure: python bench zoo exports the models, or give --model a file")
        return 2
    done = {} if options.again else measured(results.read(path), options.clock)
    rows = []
    start = time.monotonic()
    print(header(peers), flush=True)
    with Loaded(options.clock) as loaded:
        for job in track(jobs, "models"):
            key = job.name, job.threads
            before = done.get(key, {"peers": []})
            wanted = [name for name in peers if name not in before["peers"]]
            if wanted or "ms" not in before:
                if options.seconds and time.monotonic() - start > options.seconds:
                    print(f"{options.seconds} s are over: the same command goes on from here")
                    break
                row = loaded.measure(job, wanted, options.runs)
                if row is None:
                    continue
                results.write("models", [row], path)
                done[key] = merged(before, row)
            rows.append(done[key])
            print(line(rows[-1], peers), flush=True)
    print(summary(rows, peers))
    if options.plot and rows:
        import plots

        plots.bars(rows, options.plot)
    return 1 if any(best(row, peers)[1] > 1 for row in rows) else 0


def find(options: argparse.Namespace) -> Iterator[Job]:
    """Everything that is asked for and at hand, a model at a time."""
    for name, threads in itertools.product(options.model or FEEDS, options.threads):
        feeds = list(FEEDS.get(name, ()))
        if name not in FEEDS:
            path = Path(name)
        elif name in zoo.MODELS:
            path = options.cache / zoo.file_name(name, options.exporter, options.opset, "sdpa")
        else:
            path = options.cache / f"{name}.onnx"
        if not path.exists():
            print(f"{path} does not exist: skipped")
            continue
        feeds = feeds or [Feed(1, 128) if has_lengths(path) else Feed(1)]
        if options.matrix or options.batch or options.sequence:
            batches, lengths = options.batch or BATCHES, options.sequence or LENGTHS
            feeds = [
                Feed(batch, length)
                for batch in batches
                for length in (lengths if feeds[0].sequence else (0,))
            ]
        for feed in feeds:
            yield Job(name, path, feed, threads)


def has_lengths(path: Path) -> bool:
    """Whether a size other than the first of an input is left to feeds."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}
    return any(
        not dim.HasField("dim_value")
        for value in graph.input
        if value.name not in weights
        for dim in value.type.tensor_type.shape.dim[1:]
    )


def measured(rows: Sequence[results.Row], clock: str) -> dict[tuple, results.Row]:
    """What is known at this commit, on this machine, by name and threads."""
    found: dict[tuple, results.Row] = {}
    for row in results.measured(rows, clock=clock):
        key = row["name"], row["threads"]
        found[key] = merged(found.get(key, {}), row)
    return found


def merged(old: results.Row, new: results.Row) -> results.Row:
    """One row of what was measured beside some peers, then beside others."""
    parts = ("ms", "ratios", "distances")
    both = {part: {**old.get(part, {}), **new[part]} for part in parts}
    return {**new, **both, "peers": [*old.get("peers", []), *new["peers"]]}


class Loaded(ExitStack):
    """The engines of one model and number of threads at a time."""

    def __init__(self, clock: str):
        super().__init__()
        self.clock = clock
        self.key: Any = None
        self.runs: dict[str, engines.Loaded] = {}

    def load(self, job: Job, peers: Sequence[str]) -> None:
        key = (job.path, job.threads, *peers)
        if self.key == key:
            return
        self.runs = {}
        self.close()
        self.key = key
        self.graph = importer.read(str(job.path))
        infer.run(self.graph)
        for name in (engines.OURS, *peers):
            if engines.can_load(name, job.model):
                made = engines.ENGINES[name].load(job.model, job.path, job.threads)
                try:
                    self.runs[name] = self.enter_context(made)
                except Exception as error:  # their exceptions share no base class
                    leave_out(name, job, error)

    def measure(self, job: Job, peers: Sequence[str], runs: Optional[int]) -> Optional[results.Row]:
        """A row, or None where we do not take such a feed."""
        self.load(job, peers)
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
        times = interleave(list(calls.values()), runs, results.CLOCKS[self.clock])
        samples = {name: np.array(each) for name, each in zip(calls, times)}
        ours = outputs.pop(engines.OURS)
        return {
            "name": job.name,
            "threads": job.threads,
            "ours": engines.OURS,
            "ms": {name: results.quartiles(each) for name, each in samples.items()},
            "least": {name: float(f"{min(each):.4g}") for name, each in samples.items()},
            "ratios": {
                name: results.quartiles(samples[engines.OURS] / samples[name]) for name in outputs
            },
            "target": job.target,
            "bound": self.bound(job, feeds),
            "runs": len(times[0]),
            "peers": [*peers],
            "clock": self.clock,
            "distances": {name: distance(ours, each) for name, each in outputs.items()},
            "versions": {name: engines.version(name) for name in calls},
        }

    def bound(self, job: Job, feeds: engines.Arrays) -> float:
        """Milliseconds that our native steps take at least, one after the other, their weights
        being where all of them have place; steps whose sizes only data tells are left out.
        """
        session = self.runs[engines.OURS].session._session
        limits = roofline.known(load().target.isa, job.threads)
        sizes = work.sizes_of(session.inputs, feeds, job.threads)
        works = [
            (work.made(step, sizes), roofline.kind_of(step.kernel))
            for step in session.program.steps
            if isinstance(step, Step) and work.is_sized(step, sizes)
        ]
        constants = sum(each.constant for each, _ in works)
        seconds = sum(limits.seconds(each, kind, constants) for each, kind in works)
        return float(f"{1000 * seconds:.4g}")


def leave_out(name: str, job: Job, error: Exception) -> None:
    print(f"{job.name}: {name} is left out: {str(error).strip().splitlines()[0]}"[:100])


def distance(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """The largest difference between outputs, relative to the largest value of each; infinite
    where their shapes differ.
    """
    found = [
        float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)) if a.shape == b.shape else np.inf
        for a, b in zip(ours, theirs)
        if a.size
    ]
    return float(f"{max(found, default=0.0):.2g}")


def best(row: results.Row, peers: Sequence[str]) -> list[float]:
    """Our time over that of the peer that is fastest: quartiles; zeros without one."""
    found = [row["ratios"][name] for name in peers if name in row["ratios"]]
    return max(found, key=lambda ratio: ratio[1], default=[0.0, 0.0, 0.0])


def limit(row: results.Row, peers: Sequence[str]) -> float:
    """The least time of our steps over that of the peer that is fastest; 0 where none ran."""
    theirs = [row["ms"][name][1] for name in peers if name in row["ms"]]
    return row.get("bound", 0.0) / min(theirs) if theirs else 0.0


def header(peers: Sequence[str]) -> str:
    columns = "".join(f"{engines.ENGINES[name].title:>9}{'ratio':>6}" for name in peers)
    return f"{'model':<24}{'thr':>3}{'q7x2_ep':>8}{columns}  {'best  quartiles':<16}limit target"


def line(row: results.Row, peers: Sequence[str]) -> str:
    """Medians in ms, our time over theirs, and over the best one's."""
    cells = f"{_short(row['name']):<24}{row['threads']:>3}{_ms(row['ms'][row['ours']][1]):>8}"
    for name in peers:
        theirs = row["ms"].get(name)
        ratio = f"{_ms(theirs[1]):>9}{row['ratios'][name][1]:>6.2f}" if theirs else f"{'-':>15}"
        cells += ratio
    low, median, high = best(row, peers)
    verdict = "BEHIND" if median > 1 else "missed" if median > row["target"] else ""
    cells += f"  {median:.2f}  {low:.2f}-{high:.2f}  {limit(row, peers):>5.2f}"
    cells += f" {row['target']:>6.2f}  {verdict}"
    return cells.rstrip()


def summary(rows: Sequence[results.Row], peers: Sequence[str]) -> str:
    """Whose outputs are not ours, geometric means, and which targets are missed, worst first."""
    lines = [
        f"{row['name']}: outputs of {name} differ by {far}"
        for row in rows
        for name, far in row["distances"].items()
        if not far <= SAME
    ]
    for name in peers:
        ratios = [row["ratios"][name][1] for row in rows if name in row["ratios"]]
        if ratios:
            mean, ahead = float(np.exp(np.log(ratios).mean())), sum(r > 1 for r in ratios)
            lines.append(
                f"{name}: ratio {mean:.2f} on average, ahead {ahead} of {len(ratios)} times"
            )
    behind = sorted(rows, key=lambda row: -best(row, peers)[1] / row["target"])
    found = [
        f"{row['name']} at {row['threads']} ({best(row, peers)[1]:.2f}, {row['target']:.2f})"
        for row in behind
        if best(row, peers)[1] > row["target"]
    ]
    return "\n".join([*lines, f"{len(found)} of {len(rows)} targets missed", *found])


def _short(name: str, most: int = 23) -> str:
    """Cut in the middle: how a row begins is its model, how it ends its sizes."""
    end = name.rpartition(" ")[2][-most // 2 :]
    return name if len(name) <= most else f"{name[: most - len(end) - 2]}… {end}"


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Models head to head with other engines.")
    parser.add_argument("--cache", type=Path, default=zoo.DEFAULT_CACHE, help="of the zoo")
    parser.add_argument(
        "--model",
        type=lambda text: text if text in FEEDS else str(usage.source(text)),
        action="append",
        help=f"{', '.join(FEEDS)}, or a file; may be repeated",
    )
    several = "one or several, like 1,8"
    parser.add_argument(
        "--threads", type=usage.counts, default=[1, 2], help=f"{several} (default %(default)s)"
    )
    parser.add_argument(
        "--peer",
        type=usage.names_of(engines.PEERS),
        default=list(engines.FROM_FILE[1:]),
        help=f"of {', '.join(engines.PEERS)} (default those that run files)",
    )
    parser.add_argument("--batch", type=usage.counts, help=f"instead of the usual feeds; {several}")
    parser.add_argument("--sequence", type=usage.counts, help=f"likewise; {several}")
    parser.add_argument("--matrix", action="store_true", help="all batches and lengths")
    parser.add_argument("--exporter", choices=("legacy", "dynamo"), default="legacy")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--runs", type=int, help="of each engine (default: what 1.5 s allow)")
    parser.add_argument(
        "--clock", choices=results.CLOCKS, default="wall", help="cpu: for a busy machine"
    )
    parser.add_argument("--seconds", type=float, help="begin nothing new after so long")
    parser.add_argument("--again", action="store_true", help="what was measured already, too")
    parser.add_argument("--results", type=Path, help="(default bench/results/models.jsonl)")
    parser.add_argument("--plot", metavar="FILE", help="bars of the ratios (needs matplotlib)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
