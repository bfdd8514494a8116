"""What more threads gain: python bench scale [--model bert-base] [--threads 1,2,4,8,16].

The time of a run with the first number of threads over that with each other, ours and each peer's.
All take turns, in one process, on feeds that are bound by computing. The first line is the
machine's: multiply-adds a second of so many threads, which says what there is to gain. Rows go to
bench/results/scale.jsonl.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Callable, Optional

import engines
import models
import results
import roofline
import zoo

from q7x2_ep import importer, usage
from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.compare import interleave
from q7x2_ep.feeds import random_feeds
from q7x2_ep.passes import infer
from q7x2_ep.progress import track

FEEDS = {
    "bert-base": models.Feed(8, 128),
    "minilm": models.Feed(32, 128, True),
    "gpt2": models.Feed(1, 1024),
    "vit-b16": models.Feed(8),
    "resnet50": models.Feed(8),
    "mobilenet-v2": models.Feed(8),
}


def main(arguments: Optional[list[str]] = None) -> int:
    options = _options(arguments)
    names = options.model or list(FEEDS)
    paths = {n: options.cache / zoo.file_name(n, "legacy", 17, "sdpa") for n in names}
    if not any(path.exists() for path in paths.values()):
        print(f"{options.cache} holds none of {', '.join(names)}: python bench zoo exports them")
        return 2
    first, *more = options.threads
    print(f"{'model':<24}{'engine':<13}{f'{first} thr, ms':>10}"
          f"{''.join(f'{count:>8}' for count in more)}")  # fmt: skip
    isa = load().target.isa
    rates = [roofline.flops(isa, count, tries=25) for count in options.threads]
    print(f"{'multiply-adds':<24}{isa:<23}{''.join(f'{r / rates[0]:>7.2f}x' for r in rates[1:])}")
    for name, path in track(list(paths.items()), "scale"):
        if not path.exists():
            print(f"{path} does not exist: skipped")
            continue
        rows = measure(name, path, options)
        results.write("scale", rows)
        for engine in (engines.OURS, *options.peer):
            base, *others = (row["ms"][engine][1] for row in rows)
            title = rows[0]["name"] if engine == engines.OURS else ""
            gains = "".join(f"{base / ms:>7.2f}x" for ms in others)
            print(f"{title:<24}{engines.ENGINES[engine].title:<13}{base:>10.2f}{gains}", flush=True)
    return 0


def measure(name: str, path: Path, options: argparse.Namespace) -> Sequence[results.Row]:
    """A row for each number of threads."""
    graph = importer.read(str(path))
    infer.run(graph)
    feed = FEEDS[name]
    feeds = random_feeds(graph, feed.batch, feed.sequence, padding=feed.padded)
    names = (engines.OURS, *options.peer)
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    with ExitStack() as stack:
        for engine in names:
            for count in options.threads:
                made = engines.ENGINES[engine].load(name, path, count)
                calls[engine, count] = stack.enter_context(made)(feeds)
        times = dict(zip(calls, interleave(list(calls.values()), options.runs)))
    return [
        {
            "name": f"{name} {feed}",
            "threads": count,
            "ours": engines.OURS,
            "ms": {engine: results.quartiles(times[engine, count]) for engine in names},
            "peers": options.peer,
        }
        for count in options.threads
    ]


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    most = default_threads()
    usual = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= most]
    parser = argparse.ArgumentParser(description="What more threads gain.")
    parser.add_argument("--model", action="append", choices=FEEDS, help="may be repeated")
    parser.add_argument("--cache", type=Path, default=zoo.DEFAULT_CACHE, help="of the zoo")
    several = "one or several, like 1,8 (default %(default)s)"
    parser.add_argument("--threads", type=usage.counts, default=usual, help=several)
    parser.add_argument(
        "--peer",
        type=usage.names_of(engines.PEERS),
        default=["onnxruntime"],
        help="one or several engines, by comma (default onnxruntime)",
    )
    parser.add_argument("--runs", type=int, help="of each (default: what 1.5 s allow)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
