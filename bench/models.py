"""Full-size models head to head with onnxruntime: the shapes that releases are judged by.

Run: python bench/models.py [--cache DIR] [--model bert-base] [--threads 1,2]. Models that the zoo
has not exported are skipped. Rows are appended to bench/results/models.jsonl, with commit and
machine, for bench/compare.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Optional

import zoo

from q7x2_ep.compare import Comparison, Contest, table
from q7x2_ep.doctor import environment
from q7x2_ep.feeds import random_feeds
from q7x2_ep.progress import track

RESULTS = Path(__file__).resolve().parent / "results" / "models.jsonl"
SHAPES = {  # model of the zoo: (batch, sequence)
    "bert-base": ((1, 16), (1, 128), (8, 128), (1, 512)),
    "distilbert": ((1, 128),),
    "gpt2": ((1, 16), (1, 128)),
    "minilm": ((1, 16), (1, 128), (32, 128)),
    "vit-b16": ((1, 0),),  # its image size is fixed
}


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Head to head on full-size models.")
    parser.add_argument("--cache", type=Path, default=zoo.DEFAULT_CACHE)
    parser.add_argument("--model", action="append", choices=SHAPES)
    parser.add_argument(
        "--threads", type=lambda text: [int(t) for t in text.split(",")], default=[1, 2]
    )
    parser.add_argument("--exporter", choices=("legacy", "dynamo"), default="legacy")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--runs", type=int)
    parser.add_argument(
        "--no-check", dest="check", action="store_false", help="skip the float64 evaluation"
    )
    options = parser.parse_args(arguments)
    jobs = []
    for name in options.model or SHAPES:
        path = options.cache / zoo.file_name(name, options.exporter, options.opset, "sdpa")
        if path.exists():
            jobs += [(path, threads, SHAPES[name]) for threads in options.threads]
        else:
            print(f"{path.name} is not in {options.cache}: skipped")
    results: list[Comparison] = []
    for path, threads, shapes in track(jobs, "bench"):
        with Contest(path, threads) as contest:
            for batch, sequence in shapes:
                feeds = random_feeds(contest.graph, batch, sequence)
                results.append(contest.measure(feeds, options.runs, options.check))
                print(table(results[-1:]).splitlines()[2], flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    facts = {**environment(), "commit": _commit()}
    with open(RESULTS, "a", encoding="utf-8") as file:
        for result in results:
            file.write(json.dumps({**facts, **result.row()}) + "\n")
    print(table(results))
    return 0 if all(result.accurate for result in results) else 1


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
