"""Pictures: a model's steps under the roofline, and bars of engines.

Run: python bench plots roofline MODEL.onnx FILE.png [--batch 1] [--sequence 128] [--threads 1]
     python bench plots bars RESULTS.jsonl FILE.png
The first prints its table as well: where the time goes, and how far each op is from its limit.
Needs matplotlib.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import engines
import numpy as np
import results
import roofline
import work

from q7x2_ep import importer, usage
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.feeds import random_feeds
from q7x2_ep.passes import infer
from q7x2_ep.plan.parts import Step
from q7x2_ep.session import Session

RUNS = 5


class Dot(NamedTuple):
    """One step of a run."""

    op: str
    work: work.Work
    seconds: float


def profile(model: str, batch: int, sequence: int, threads: int) -> list[Dot]:
    """The native steps of a model whose sizes the feed tells, the best of several times each."""
    graph = importer.read(model)
    infer.run(graph)
    session = Session(model, threads)
    feeds = random_feeds(graph, batch, sequence)
    sizes = work.sizes_of(session.inputs, feeds, threads)
    times = np.min([session.profile(feeds) for _ in range(RUNS)], axis=0)
    dots = []
    for step, nanoseconds in zip(session.program.steps, times):
        if isinstance(step, Step) and work.is_sized(step, sizes):
            dots.append(Dot(step.op, work.of(step, sizes), max(int(nanoseconds), 1) / 1e9))
    return dots


def by_op(dots: Sequence[Dot], limits: roofline.Roofline) -> str:
    """Where the time goes, op by op."""
    groups: dict[str, list[Dot]] = defaultdict(list)
    for dot in dots:
        groups[dot.op].append(dot)
    whole = sum(dot.seconds for dot in dots)
    lines = [f"{'op':<20}{'steps':>6}{'ms':>10}{'share':>7}{'GFLOP/s':>9}{'GB/s':>7}{'limit':>7}"]
    for op, group in sorted(groups.items(), key=lambda pair: -sum(d.seconds for d in pair[1])):
        seconds, each = sum(d.seconds for d in group), work.total(d.work for d in group)
        least = sum(limits.seconds(d.work) for d in group)
        lines.append(
            f"{op:<20}{len(group):>6}{1000 * seconds:>10.3f}{seconds / whole:>7.1%}"
            f"{each.flops / seconds / 1e9:>9.1f}{each.bytes / seconds / 1e9:>7.1f}"
            f"{least / seconds:>7.0%}"
        )
    least = sum(limits.seconds(dot.work) for dot in dots)
    lines.append(f"{'all':<20}{len(dots):>6}{1000 * whole:>10.3f}{'':>23}{least / whole:>7.0%}")
    return "\n".join(lines)


def under_roofline(dots: Sequence[Dot], limits: roofline.Roofline, title: str, path: str) -> None:
    """Log-log: operations a byte against operations a second; the area of a dot is its time."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 6))
    x = np.logspace(-1, 3, 200)
    levels = {"16 KB": 1 << 14, "1 MB": 1 << 20, "memory": max(limits.reads)}
    for (name, size), style in zip(levels.items(), (":", "-.", "-")):
        rate = limits.bandwidth(size)
        y = np.minimum(x * rate, limits.flops) / 1e9
        label = f"{name}, {rate / 1e9:.0f} GB/s"
        axes.plot(x, y, linewidth=1.2, label=label, color="black", linestyle=style)
    whole = sum(dot.seconds for dot in dots)
    for i, op in enumerate(dict.fromkeys(dot.op for dot in dots)):
        group = [dot for dot in dots if dot.op == op and dot.work.flops and dot.work.bytes]
        axes.scatter(
            [max(dot.work.intensity, x[0]) for dot in group],
            [dot.work.flops / dot.seconds / 1e9 for dot in group],
            s=[10 + 2000 * dot.seconds / whole for dot in group],
            color=f"C{i % 10}",
            alpha=0.6,
            label=op,
        )
    axes.set(xscale="log", yscale="log", xlabel="FLOP / byte", ylabel="GFLOP / s", title=title)
    axes.legend(fontsize=8, loc="lower right", markerscale=0.5)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def bars(rows: Sequence[results.Row], path: str) -> None:
    """Of rows of bench/models.py: the time of each engine over ours, quartiles as whiskers."""
    pyplot = _pyplot()
    names = [name for name in engines.ENGINES if any(name in row["ms"] for row in rows)]
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.1 * len(rows) + 2), 4.5))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        at = [(x, row) for x, row in enumerate(rows) if name in row["ms"]]
        ours = np.array([row["ms"][row["ours"]][1] for _, row in at])
        low, median, high = np.array([row["ms"][name] for _, row in at]).T / ours
        axes.bar(
            [x + (i - (len(names) - 1) / 2) * width for x, _ in at],
            median,
            width * 0.92,
            yerr=[median - low, high - median],
            error_kw={"linewidth": 0.8},
            label=engines.ENGINES[name].title,
        )
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(rows)))
    labels = [f"{row['name'].replace(' ', chr(10))}\n{row['threads']} thr" for row in rows]
    axes.set_xticklabels(labels, fontsize=7)
    axes.set_ylabel("time / q7x2_ep's")
    axes.legend(fontsize=8, ncol=len(names), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Pictures of measurements.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kind = kinds.add_parser("roofline", help="a model's steps under the roofline")
    kind.add_argument("model", type=usage.source)
    kind.add_argument("file", nargs="?", type=usage.target, help="(default: the table alone)")
    kind.add_argument("--batch", type=int, default=1)
    kind.add_argument("--sequence", type=int, default=128)
    kind.add_argument("--threads", type=int, default=1)
    kind = kinds.add_parser("bars", help="engines beside each other")
    kind.add_argument("results", type=usage.source)
    kind.add_argument("file", type=usage.target)
    options = parser.parse_args(arguments)
    if options.kind == "bars":
        latest = {(row["name"], row["threads"]): row for row in results.read(options.results)}
        if not latest:
            print(
                f"{options.results} holds no rows: python bench models --results FILE writes some"
            )
            return 2
        bars(list(latest.values()), options.file)
        return 0
    limits = roofline.known(load().target.isa, options.threads)
    dots = profile(str(options.model), options.batch, options.sequence, options.threads)
    print(by_op(dots, limits))
    if options.file:
        title = f"{options.model.stem} {options.batch}x{options.sequence}"
        under_roofline(dots, limits, f"{title}, {options.threads} threads", options.file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
