"""Two result files of any bench side by side: python bench compare OLD.jsonl NEW.jsonl [--bound 5].

For everything that both measured (the last row of a name and number of threads counts): our median
then and now, their ratio, and how much slower the other engines got meanwhile, which tells the
machine's part. Exit code 1 where something is slower by more than the bound (%), the
machine's part aside, and by more than the spread: its quartiles do not meet those of before.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NamedTuple, Optional

import numpy as np
import results

from q7x2_ep import usage


class Change(NamedTuple):
    """One thing measured twice. Units: milliseconds. drift: median ratio of other engines."""

    name: str
    threads: int
    old: list[float]  # quartiles
    new: list[float]
    drift: float

    @property
    def ratio(self) -> float:
        return self.new[1] / self.old[1]

    @property
    def significant(self) -> bool:
        """Whether the quartiles, then and now, do not meet."""
        scale = max(self.drift, 1.0)
        return self.new[0] > self.old[2] * scale or self.new[2] < self.old[0]

    def is_slower(self, bound: float) -> bool:
        return self.significant and self.ratio > (1 + bound / 100) * max(self.drift, 1.0)


def changes(old: list[results.Row], new: list[results.Row]) -> list[Change]:
    """Of what both have, in the order of old."""

    def last(rows: list[results.Row]) -> Mapping[tuple, results.Row]:
        return {(row["bench"], row["name"], row["threads"]): row for row in rows if "ms" in row}

    before, after = last(old), last(new)
    found = []
    for key, a in before.items():
        b = after.get(key)
        if b is None:
            continue
        peers = {*a["peers"]} & a["ms"].keys() & b["ms"].keys()
        others = [b["ms"][name][1] / a["ms"][name][1] for name in peers]
        drift = float(np.median(others)) if others else 1.0
        found.append(Change(*key[1:], a["ms"][a["ours"]], b["ms"][b["ours"]], drift))
    return found


def table(found: list[Change], bound: float) -> str:
    lines = [f"{'what':<50}{'thr':>4}{'old ms':>10}{'new ms':>10}{'ratio':>7}{'others':>7}"]
    for each in found:
        mark = "SLOWER" if each.is_slower(bound) else "" if each.significant else "~"
        lines.append(
            f"{each.name[:49]:<50}{each.threads:>4}{each.old[1]:>10.3f}{each.new[1]:>10.3f}"
            f"{each.ratio:>7.2f}{each.drift:>7.2f}  {mark}".rstrip()
        )
    return "\n".join([*lines, "~: within the spread"])


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Two result files side by side.")
    parser.add_argument("old", type=usage.source)
    parser.add_argument("new", type=usage.source)
    parser.add_argument("--bound", type=float, default=5.0, help="%% that is slower (default 5)")
    options = parser.parse_args(arguments)
    found = changes(results.read(options.old), results.read(options.new))
    print(table(found, options.bound))
    return 1 if any(each.is_slower(options.bound) for each in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
