"""Correctness over a matrix: every model, batch and length in one session, against float64 and ORT.

Run: python bench/matrix.py MODEL.onnx.. [--batch 1,2,3] [--sequence 1,7,16,128,512] [--threads
1,2,3,8] A length that the model itself refuses (a position table that is too short) is reported as
such, and must be refused by onnxruntime too. Exit code 1 where anything does not hold.
"""

from __future__ import annotations

import argparse
from typing import Any, Optional

import numpy as np

import q7x2_ep
from q7x2_ep.backend import numpy as oracle
from q7x2_ep.compare import Contest, OutputError
from q7x2_ep.feeds import random_feeds


def main(arguments: Optional[list[str]] = None) -> int:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description="Correctness over models, batches and lengths.")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--batch", type=numbers, default=[1, 2, 3])
    parser.add_argument("--sequence", type=numbers, default=[1, 7, 16, 128, 512])
    parser.add_argument("--threads", type=numbers, default=[1, 2, 3, 8])
    options = parser.parse_args(arguments)
    failures = 0
    for model in options.models:
        problems = check(model, options.batch, options.sequence, options.threads)
        failures += bool(problems)
        print(f"{'FAIL' if problems else 'ok  '} {model}", flush=True)
        for problem in problems:
            print(f"     {problem}")
    print(f"{len(options.models) - failures} passed, {failures} failed")
    return 1 if failures else 0


def check(model: str, batches: list[int], lengths: list[int], threads: list[int]) -> list[str]:
    """What does not hold for one model."""
    problems = []
    with Contest(model, threads[0], unfused=True) as contest:
        explanation = q7x2_ep.explain(contest.ours)
        if explanation.host_steps or explanation.calls_per_run != 1:
            problems.append(f"{len(explanation.host_steps)} host steps")
        others = []
        for count in threads[1:]:
            session_options = q7x2_ep.SessionOptions(intra_op_num_threads=count)
            others.append(q7x2_ep.InferenceSession(model, session_options))
        symbolic = any(isinstance(d, str) for i in contest.ours.get_inputs() for d in i.shape[1:])
        for batch in batches:
            for length in lengths if symbolic else [0]:
                feeds = random_feeds(contest.graph, batch, length, padding=True)
                where = f"batch {batch} length {length}: "
                problems += [where + text for text in check_feed(contest, others, feeds)]
        for session in others:
            session.close()
    return problems


def check_feed(contest: Contest, others: list[Any], feeds: dict) -> list[str]:
    """What does not hold for one feed."""
    try:
        ours = contest.ours.run(None, feeds)
    except q7x2_ep.FeedError as refusal:
        try:
            contest.theirs.run(None, feeds)
        except Exception:  # its exceptions share no base class
            return []
        return [f"refused, but onnxruntime runs it: {refusal}"]
    problems = []
    theirs, unfused = contest.theirs.run(None, feeds), contest.unfused.run(None, feeds)
    for name, a, b, c, true in zip(
        contest.graph.output_names,
        ours,
        theirs,
        unfused,
        oracle.evaluate(contest.graph, feeds, np.float64),
    ):
        for kind, given in (("fused", a), ("unfused", c)):
            error = OutputError.of(name, given, b, true)
            if not error.accurate:
                problems.append(f"{kind} {name}: error {error.ours:.2e}, ORT's {error.theirs:.2e}")
    for session in [contest.ours, *others]:
        again = session.run(None, feeds)
        if any(x.tobytes() != y.tobytes() for x, y in zip(ours, again)):
            problems.append("not bit-identical from run to run, or over threads")
    return problems


if __name__ == "__main__":
    raise SystemExit(main())
