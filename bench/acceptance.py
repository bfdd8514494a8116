"""What releases are judged by, from what the other commands have measured.

Run: python bench acceptance [--any]. A line for each target: what it is, what was found at this
commit and on this machine (the worst of several, and of which), and whether it is met; or the
command that measures it. --any takes the latest of any commit. Exit code 1 where something was
found and is not met.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Optional

import results

OURS = "q7x2_ep"


class Found(NamedTuple):
    """value: as `limit` is meant, at least or at most."""

    what: str
    value: float


class Target(NamedTuple):
    """command: what measures it. found: everything that must keep the limit."""

    title: str
    limit: float
    at_least: bool
    unit: str
    command: str
    found: list[Found]

    @property
    def worst(self) -> Optional[Found]:
        pick = min if self.at_least else max
        return pick(self.found, key=lambda each: each.value, default=None)

    @property
    def is_met(self) -> bool:
        worst = self.worst
        sign = 1 if self.at_least else -1
        return worst is None or sign * worst.value >= sign * self.limit

    def __str__(self) -> str:
        limit = f"{'>=' if self.at_least else '<='} {_shown(self.limit, self.unit)}"
        if self.worst is None:
            return f"{self.title:<44}{limit:<11}{'-':>8}  bench {self.command}"
        value = _shown(self.worst.value, self.unit)
        verdict = "" if self.is_met else "MISSED, "
        return f"{self.title:<44}{limit:<11}{value:>8}  {verdict}{self.worst.what}"


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="What releases are judged by.")
    parser.add_argument("--any", action="store_true", help="the latest rows, of any commit")
    options = parser.parse_args(arguments)
    found = list(targets(options.any))
    for each in found:
        print(each)
    missed = sum(not each.is_met for each in found)
    print(f"{sum(bool(each.found) for each in found)} of {len(found)} measured, {missed} missed")
    return 1 if missed else 0


def targets(is_any: bool = False) -> Iterator[Target]:
    rows = {name: latest(name, is_any) for name in ("kernels", "attention", "models", "scale")}
    products = [row for row in rows["kernels"] if row.get("product")]
    large = [row for row in products if is_large(*row["product"]) and not is_cold(row)]
    yield Target("GEMM, M >= 128, K and N >= 512: of peak", 0.95, True, "%", "kernels Linear",
                 limits(large))  # fmt: skip
    single = [row for row in products if row["product"][0] == 1 and is_cold(row)]
    yield Target("GEMV beyond caches: of read bandwidth", 0.92, True, "%", "kernels 1x1x --cold",
                 limits(single))  # fmt: skip
    yield Target("attention alone, S 512 to 8192: of peak", 0.85, True, "%", "attention",
                 limits(rows["attention"]))  # fmt: skip
    by_target: dict[float, list[Found]] = {}
    for row in rows["models"]:
        ratio = max((each[1] for each in row["ratios"].values()), default=0.0)
        by_target.setdefault(row["target"], []).append(Found(label(row), ratio))
    for limit in sorted(by_target) or [1.0]:
        title = "models: time over the best peer's"
        yield Target(title, limit, False, "", "models", by_target.get(limit, []))
    yield Target("2 threads over 1", 1.9, True, "x", "scale --threads 1,2", gains(rows["scale"], 2))
    yield Target("16 threads over 1", 12.0, True, "x", "scale", gains(rows["scale"], 16))
    yield from of_overhead(latest("overhead", is_any))


def of_overhead(rows: Iterable[results.Row]) -> Iterator[Target]:
    """What is not computing; the large model is BERT-base."""
    named = {row["name"]: row for row in rows}

    def found(name: str, key: str = "ms", over: bool = False) -> list[Found]:
        models = [text for text in named if text.endswith(name)]
        ours = [named[text][key][OURS][1] for text in models]
        theirs = [named[text][key]["onnxruntime"][1] if over else 1.0 for text in models]
        return [Found(text, a / b) for text, a, b in zip(models, ours, theirs)]

    command = "overhead bert-base.onnx"
    large = "bert-base.sdpa.legacy17"
    yield Target("run() of a one-element Add", 0.003, False, "us", "overhead --only run",
                 found("Add of one element: run(None, feed)"))  # fmt: skip
    yield Target("run() of 100 Adds", 0.008, False, "us", "overhead --only run",
                 found("100 Adds of one element: run(None, feed)"))  # fmt: skip
    yield Target("session of BERT-base: over onnxruntime's", 0.4, False, "", command,
                 found(f"{large}: session", over=True))  # fmt: skip
    yield Target("session from its compiled file", 50.0, False, "ms", command,
                 found(f"{large}, compiled: session"))  # fmt: skip
    for when in ("load", "run"):
        yield Target(f"peak memory at {when}: over onnxruntime's", 0.7, False, "", command,
                     found(f"{large}: MB at {when}", "MB", over=True))  # fmt: skip
    yield Target("import, beyond numpy", 20.0, False, "ms", "overhead --only start",
                 found("Add: import"))  # fmt: skip


def latest(bench: str, is_any: bool) -> list[results.Row]:
    """The last row of every name and number of threads."""
    rows = results.read(results.FOLDER / f"{bench}.jsonl")
    rows = rows if is_any else results.measured(rows)
    return list({(row["name"], row["threads"]): row for row in rows}.values())


def limits(rows: Iterable[results.Row]) -> list[Found]:
    return [Found(label(row), row["limit"]) for row in rows]


def label(row: results.Row) -> str:
    return f"{row['name']} at {row['threads']}"


def is_cold(row: results.Row) -> bool:
    return row["name"].endswith(", cold")


def is_large(m: int, n: int, k: int) -> bool:
    return m >= 128 and min(n, k) >= 512


def gains(rows: Iterable[results.Row], threads: int) -> list[Found]:
    """The time with one thread over that with so many."""
    ms = {(row["name"], row["threads"]): row["ms"][OURS][1] for row in rows}
    return [
        Found(name, ms[name, 1] / time)
        for (name, count), time in ms.items()
        if count == threads and (name, 1) in ms
    ]


def _shown(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0%}"
    return f"{value * (1000 if unit == 'us' else 1):.3g}{unit and ' ' + unit}"


if __name__ == "__main__":
    raise SystemExit(main())
