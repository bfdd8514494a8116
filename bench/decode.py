"""A decoder, token by token, beside onnxruntime: each engine feeds its caches back to itself.

Run: python bench decode [MODEL.onnx ..] [--prompt 16,128,900] [--tokens 32] [--threads 1,2].
Models take input_ids and past_key_values.*, and give logits and present.* in that order, as
`python bench zoo --kind cache` exports them, whose files are the default. `prompt` and `token`
are milliseconds of the run that takes the prompt, and the mean of those that take one token each;
`limit`: what share of a token's time reading the weights and the caches once would take, at the
machine's rate of reading so many bytes. Both engines by turns, a whole text each; greedy, and both
have to find the same tokens. Rows go to bench/results/decode.jsonl.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Optional

import engines
import numpy as np
import results
import roofline
import zoo

from q7x2_ep import importer, usage
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.ir.core import Graph
from q7x2_ep.progress import track

PAST = "past_key_values"
PAUSE_S = 0.05  # for threads of the other engine to stop spinning
WHO = (engines.OURS, "onnxruntime")


class Text(NamedTuple):
    """What an engine made of a prompt. ms: the prompt's, then those of each token."""

    tokens: list[int]
    ms: list[float]


def main(arguments: Optional[list[str]] = None) -> int:
    options = _options(arguments)
    models = options.model or sorted(options.cache.glob("*.cache.onnx"))
    if not models:
        print(f"{options.cache} holds no decoder: python bench zoo --kind cache writes some")
        return 2
    jobs = [(path, t, n) for path in models for t in options.threads for n in options.prompt]
    title = f"{'model':<34}{'thr':>4}{'prompt':>9}{'ORT':>9}{'ratio':>6}"
    print(f"{title}{'token':>9}{'ORT':>9}{'ratio':>6}{'limit':>7}")
    slower = False
    for path, threads, prompt in track(jobs, "decode"):
        row = measure(path, threads, prompt, options.tokens, options.turns)
        results.write("decode", [row])
        print(line(row), flush=True)
        slower |= row["ratio"][1] > 1
    return 1 if slower else 0


def measure(path: Path, threads: int, prompt: int, tokens: int, turns: int) -> results.Row:
    """Raises: ValueError where the engines find different tokens."""
    graph = importer.read(str(path))
    texts: dict[str, list[Text]] = {name: [] for name in WHO}
    with ExitStack() as stack:
        runs = {
            name: stack.enter_context(engines.ENGINES[name].load("", path, threads)) for name in WHO
        }
        weights = runs[engines.OURS].session.memory_report().packed
        for turn in range(turns + 1):
            for name in WHO if turn % 2 else WHO[::-1]:
                time.sleep(PAUSE_S)
                texts[name].append(write(graph, runs[name], prompt, tokens))
    ours, theirs = (texts[name][1:] for name in WHO)  # the first one warms up
    if ours[0].tokens != theirs[0].tokens:
        raise ValueError(f"[{path}] expected {theirs[0].tokens}, given {ours[0].tokens}")
    means = [[float(np.mean(text.ms[1:])) for text in each] for each in (ours, theirs)]
    size = weights + caches(graph, prompt + tokens // 2)
    limit = size / roofline.known(load().target.isa, threads).bandwidth(size)
    return {
        **results.of_pair(f"{path.stem} {prompt}+{tokens}", threads, *means, "wall"),
        "prompt_ms": [float(np.median([text.ms[0] for text in each])) for each in (ours, theirs)],
        "ratio": results.quartiles(a / b for a, b in zip(*means)),
        "limit": round(1000 * limit / float(np.median(means[0])), 4),
    }


def write(graph: Graph, run: engines.Loaded, prompt: int, tokens: int) -> Text:
    """The tokens that follow a seeded prompt."""
    ids = np.random.default_rng(0).integers(0, 1000, (1, prompt))
    past = {
        value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        for value in graph.inputs
        if value.name.startswith(PAST)
    }
    text, total = Text([], []), 0
    for _ in range(tokens + 1):
        total += ids.shape[1]
        feed = {**dict(_front(graph, ids, total)), **past}
        call = run(feed)
        start = time.perf_counter()
        logits, *present = call()
        text.ms.append(1000 * (time.perf_counter() - start))
        past = dict(zip(past, present))
        ids = logits[:, -1:].argmax(-1)
        text.tokens.append(int(ids[0, 0]))
    return text


def _front(graph: Graph, ids: np.ndarray, total: int) -> Iterator[tuple[str, np.ndarray]]:
    """What is fed beside the caches."""
    for value in graph.inputs:
        if value.name == "input_ids":
            yield value.name, ids
        elif value.name == "position_ids":
            yield value.name, np.arange(total - ids.shape[1], total)[None]
        elif value.name == "attention_mask":
            yield value.name, np.ones((1, total), np.int64)


def caches(graph: Graph, rows: int) -> int:
    """Bytes of the caches with so many tokens."""
    shapes: list[Any] = [v.shape for v in graph.inputs if v.name.startswith(PAST)]
    return sum(4 * rows * heads * depth for _, heads, _, depth in shapes)


def line(row: results.Row) -> str:
    (ours, theirs), ms = row["prompt_ms"], row["ms"]
    cells = f"{row['name']:<34}{row['threads']:>4}{ours:>9.2f}{theirs:>9.2f}{ours / theirs:>6.2f}"
    tokens = [ms[name][1] for name in WHO]
    return f"{cells}{tokens[0]:>9.3f}{tokens[1]:>9.3f}{row['ratio'][1]:>6.2f}{row['limit']:>7.0%}"


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A decoder, token by token, beside onnxruntime.")
    several = "one or several, like 1,8 (default %(default)s)"
    parser.add_argument("model", nargs="*", type=usage.source, help="default: those of the zoo")
    parser.add_argument("--cache", type=Path, default=zoo.DEFAULT_CACHE, help="of the zoo")
    parser.add_argument("--prompt", type=usage.counts, default=[16, 128, 900], help=several)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=usage.counts, default=[1, 2], help=several)
    parser.add_argument("--turns", type=int, default=5, help="texts of each engine")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
