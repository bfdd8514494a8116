"""Two engines by turns, each in a process of its own: what `beside` and `serve` share."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Callable

import engines
import results
import zoo

from q7x2_ep import importer, usage
from q7x2_ep.feeds import random_feeds
from q7x2_ep.passes import infer

TURNS = 5
REST = 0.05  # seconds, in which threads of the engine whose turn it was go to sleep
SEQUENCE = 128
SESSIONS = ExitStack()  # of this process, open to its end


@functools.cache
def loaded(
    engine: str, path: Path, threads: int, sequence: int = SEQUENCE, number: int = 0
) -> Callable[[], Any]:
    """A run of one of the process's sessions of a model, which number tells apart, on a feed of
    batch 1.
    """
    graph = importer.read(str(path))
    infer.run(graph)
    session = SESSIONS.enter_context(engines.ENGINES[engine].load("", path, threads))
    return session(random_feeds(graph, 1, sequence))


@contextmanager
def processes(pair: Iterable[str]) -> Iterator[dict[str, ProcessPoolExecutor]]:
    """One for each engine, in which functions of a bench can be called."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        yield {e: stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for e in pair}


def row(name: str, threads: int, times: Mapping[str, list[float]]) -> results.Row:
    """Quartiles, and what nine of ten runs do not exceed, in ms by engine; ours comes first."""
    ours, *peers = times
    return {
        "name": name,
        "threads": threads,
        "ours": ours,
        "peers": peers,
        "ms": {engine: results.quartiles(found) for engine, found in times.items()},
        "ninth": {engine: results.percentile(found, 90) for engine, found in times.items()},
    }


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("model", type=usage.source, nargs="*", help="files")
    made.add_argument("--threads", type=int, default=2, help="of a run (default %(default)s)")
    made.add_argument("--peer", choices=engines.FROM_FILE[1:], default="onnxruntime")
    made.add_argument("--seconds", type=float, default=3, help="of each (default %(default)s)")
    return made


def models(options: argparse.Namespace) -> list[Path]:
    """Those that are asked for, or the usual one.

    Raises: SystemExit where the zoo has not exported it.
    """
    usual = zoo.DEFAULT_CACHE / zoo.file_name("mobilenet-v2", "dynamo", 20, "sdpa")
    if not options.model and not usual.exists():
        print(f"{usual} does not exist: name a file, or have python bench zoo export it")
        raise SystemExit(2)
    return options.model or [usual]
