"""Correctness over a matrix: every model, batch and length in one session, against float64 and ORT.

Run: python bench matrix MODEL.onnx|FOLDER.. [--batch 1,2,3] [--sequence 1,7,16,128,512]
[--threads 1,2,3,8]. Masks are padded, and once more have holes. What onnxruntime refuses is held
against onnx.reference, and the float64 evaluation too, where that runs. A length that the model
itself refuses (a position table that is too short) is reported as such, and must be refused by
onnxruntime too. Exit code 1 where anything does not hold.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import q7x2_ep
from q7x2_ep import importer, usage
from q7x2_ep.backend import numpy as oracle
from q7x2_ep.backend.numpy import rms, rms_error
from q7x2_ep.compare import OutputError, onnxruntime_session
from q7x2_ep.errors import BackendError
from q7x2_ep.feeds import random_feeds
from q7x2_ep.ir.shape import Expr
from q7x2_ep.passes import infer

SAME = 1e-3  # of an output's scale: what onnx.reference in float32 may be from our float64
CLOSE = 1e-5  # of an output's scale: what we may be, where onnxruntime sets no bound


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Correctness over models, batches and lengths.")
    several = "one or several, like 1,8 (default %(default)s)"
    parser.add_argument("models", nargs="+", type=files, help="files, or folders of them")
    parser.add_argument("--batch", type=usage.counts, default=[1, 2, 3], help=several)
    parser.add_argument("--sequence", type=usage.counts, default=[1, 7, 16, 128, 512], help=several)
    parser.add_argument("--threads", type=usage.counts, default=[1, 2, 3, 8], help=several)
    options = parser.parse_args(arguments)
    failures = 0
    models = list(itertools.chain(*options.models))
    for model in models:
        matrix = Matrix(str(model), options.threads)
        problems = list(matrix.check(options.batch, options.sequence))
        failures += bool(problems)
        print(f"{'FAIL' if problems else 'ok  '} {model} {dict(matrix.counts)}", flush=True)
        for problem in problems:
            print(f"     {problem}")
    print(f"{len(models) - failures} passed, {failures} failed")
    return 1 if failures else 0


def files(text: str) -> list[Path]:
    """Of an argument: a file, or those of a folder."""
    return sorted(Path(text).glob("*.onnx")) or [usage.source(text)]


class Matrix:
    """One model in sessions of ours, onnxruntime and onnx.reference; counts: feeds by judge."""

    def __init__(self, model: str, threads: list[int]):
        self.graph = importer.read(model)
        infer.run(self.graph)
        self.sessions = [session(model, threads=count) for count in threads]
        self.unfused = session(model, fused=False, threads=threads[0])
        self.reference = ReferenceEvaluator(onnx.load(model))
        try:
            self.theirs = onnxruntime_session(model, threads[0])
        except BackendError:
            self.theirs = None
        self.counts = Counter[str]()

    def check(self, batches: list[int], lengths: list[int]) -> Iterator[str]:
        """What does not hold."""
        symbolic = [[isinstance(d, Expr) for d in value.shape] for value in self.graph.inputs]
        if not any(any(dims[:1]) for dims in symbolic):
            batches = [0]
        if not any(any(dims[1:]) for dims in symbolic):
            lengths = [0]
        for batch, length in itertools.product(batches, lengths):
            padded = random_feeds(self.graph, batch, length, padding=True)
            for kind, feeds in (("padded", padded), ("holes", holes(padded))):
                if feeds is not None:
                    for problem in self.check_feed(feeds):
                        yield f"batch {batch} length {length} {kind}: {problem}"

    def check_feed(self, feeds: dict) -> Iterator[str]:
        theirs = attempt(self.theirs, feeds)
        try:
            ours = self.sessions[0].run(None, feeds)
        except q7x2_ep.FeedError as error:
            if theirs is not None:
                yield f"refused, but onnxruntime runs it: {error}"
            self.counts["refused"] += 1
            return
        reference = attempt(self.reference, feeds)
        true = oracle.evaluate(self.graph, feeds, np.float64)
        for name, a, b in zip(self.graph.output_names, reference or (), true):
            if not rms_error(a, b) <= SAME * max(rms(b), 1e-9):
                yield f"{name}: float64 is {rms_error(a, b):.2e} from onnx.reference"
        judge = "onnxruntime" if theirs else "onnx.reference" if reference else "float64 alone"
        self.counts[judge] += 1
        unfused = self.unfused.run(None, feeds)
        rows = zip(self.graph.output_names, ours, unfused, theirs or true, true)
        for name, fused, plain, b, c in rows:
            for kind, given in (("fused", fused), ("unfused", plain)):
                error = OutputError.of(name, given, b, c)
                if not (error.accurate or (theirs is None and error.ours <= CLOSE * error.scale)):
                    yield f"{kind} {name}: error {error.ours:.2e}, ORT's {error.theirs:.2e}"
        for other in self.sessions:
            again = other.run(None, feeds)
            if any(x.tobytes() != y.tobytes() for x, y in zip(ours, again)):
                yield "not bit-identical from run to run, or over threads"


def session(model: str, threads: int, fused: bool = True) -> Any:
    options = q7x2_ep.SessionOptions(intra_op_num_threads=threads)
    if not fused:
        options.graph_optimization_level = q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL
    return q7x2_ep.InferenceSession(model, options)


def attempt(engine: Any, feeds: dict) -> Optional[list]:
    """What it makes of the feeds; None where it refuses them."""
    try:
        with np.errstate(all="ignore"):
            return engine and engine.run(None, feeds)
    except Exception:  # the exceptions of these engines share no base class
        return None


def holes(feeds: dict) -> Optional[dict]:
    """The feeds with zeros anywhere in what is called a mask, the first position excepted."""
    random = np.random.default_rng(1)
    made = {}
    for name, array in feeds.items():
        if "mask" in name and array.dtype.kind != "f" and array.shape[-1] > 2:
            made[name] = (random.random(array.shape) < 0.6).astype(array.dtype)
            made[name][..., 0] = 1
    return {**feeds, **made} if made else None


if __name__ == "__main__":
    raise SystemExit(main())
