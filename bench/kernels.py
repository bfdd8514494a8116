"""Every kernel row over the shapes of real models: how far from the limit, and which row is best.

Run: python bench kernels [PATTERN ..] [--threads N] [--isa avx2] [--peer]. A pattern is a part of
`family op shapes` as printed, or M,N,K of a product; the shapes are those of bench/shapes.txt. Rows
of a family take turns. Rates are those of the best time, as the peaks are best rates; `+%` is how
far the median is above. `limit` is the least time by multiply-adds or by bytes (bench/roofline.py,
whose peak is measured again in every turn) over the best. The others are multiples of the pick's
time. Exit code 1 where another row that this machine can run is more than 5 % faster than the
dispatcher's pick, by best and by median. --peer times onnxruntime on the same node. Rows go to
bench/results/kernels.jsonl.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import numpy as np
import results
import roofline
import shapes

from q7x2_ep import dtypes, importer
from q7x2_ep.backend.call import Call
from q7x2_ep.backend.cpu.library import Library, load
from q7x2_ep.backend.program import Compiler
from q7x2_ep.classes import replace
from q7x2_ep.compare import onnxruntime_session
from q7x2_ep.errors import BackendError
from q7x2_ep.plan.target import KernelRow
from q7x2_ep.progress import track

FASTER = 0.95  # of the pick's time
TURN_MS = 2.0  # of runs in a row
SHAPE_MS, FEWEST = 2000.0, 3  # for all rounds of a shape, of which there are so many at least
SLOW = 3.0  # times the pick's: not worth more than one run
PORTABLE_FLOPS = 1e8  # what the portable rows are not tried on is beyond


class Trial(NamedTuple):
    """A row on a shape. run: milliseconds of `repeats` runs, one after the other, of one."""

    row: KernelRow
    run: Callable[[int], float]


def main(arguments: Optional[list[str]] = None) -> int:
    options = _options(arguments)
    library = load(options.isa)
    limits = roofline.known(library.target.isa, options.threads)
    chosen = list(select(options.patterns))
    print(
        f"{'family op shapes':<44}{'us':>9}{'+%':>4}{'GFLOP/s':>8}{'GB/s':>6}{'limit':>6}"
        f"  {'others' if not options.peer else 'ORT us  ratio  others'}"
    )
    wrong = 0
    for shape in track(chosen, "kernels"):
        row = measure(shape, library, limits, options)
        results.write("kernels", [row])
        wrong += bool(faster(row))
        print(line(row), flush=True)
    print(f"{len(chosen)} shapes, {wrong} where another kernel is more than 5 % faster")
    return 1 if wrong else 0


def select(patterns: Sequence[str]) -> list[shapes.Shape]:
    """Of the file those that hold a pattern, all without one; and products M,N,K."""
    products = [p for p in patterns if re.fullmatch(r"\d+,\d+,\d+", p)]
    words = [p for p in patterns if p not in products]
    found = shapes.read() if words or not products else []
    found = [s for s in found if not words or any(w in f"{s.family} {s.name}" for w in words)]
    for m, n, k in (map(int, p.split(",")) for p in products):
        text = f"graph(%x: f32[{m},{k}])\n  %w = f32[{k},{n}]\n  %y = MatMul(%x, %w)\n  return %y\n"
        found.append(shapes.Shape("gemm", text, ()))
    return found


def measure(
    shape: shapes.Shape, library: Library, limits: roofline.Roofline, options: argparse.Namespace
) -> results.Row:
    """One row of results: all kernels of the family on a shape."""
    plan, _ = shapes.planned(shape.graph)
    each = shapes.work_of(plan, options.threads)
    pick = library.target.kernel(shape.family)
    rows = [row for row in library.target.kernels if row.family == shape.family and row.supported]
    rows = [row for row in rows if row.isa != "scalar" or each.flops <= PORTABLE_FLOPS]
    feeds = feed(shape)
    trials = [Trial(row, runner(shape, feeds, library, row, options.threads)) for row in rows]
    calls = {trial.row.name: trial.run for trial in trials}
    if options.peer:
        calls["onnxruntime"] = peer(shape, feeds, options.threads)
    first = {name: min(run(1), run(1)) for name, run in calls.items()}
    samples: dict[str, list[float]] = {name: [first[name]] for name in calls}
    alive = [n for n in calls if n == pick.name or first[n] < SLOW * first[pick.name]]
    kind = pick.dtypes
    rates = [limits.products.get(kind, limits.flops)]
    fitting = int(SHAPE_MS / sum(first[name] for name in alive))
    for _ in range(min(options.rounds, max(fitting, FEWEST))):
        for name in alive:
            samples[name].append(calls[name](max(1, int(TURN_MS / first[name]))))
        if kind in limits.products:
            rates.append(roofline.flops(library.target.isa, options.threads, kind, 1))
    limits = replace(limits, products={**limits.products, kind: max(rates)})
    ms = {name: results.quartiles(times) for name, times in samples.items()}
    least = {name: float(f"{min(times):.4g}") for name, times in samples.items()}
    return {
        "name": f"{shape.family} {shape.name}",
        "threads": options.threads,
        "ours": pick.name,
        "ms": ms,
        "peers": ["onnxruntime"] if options.peer else [],
        "least": least,
        "flops": each.flops,
        "bytes": each.bytes,
        "limit": round(1000 * limits.seconds(*each, kind) / least[pick.name], 4),
        "models": shape.models,
    }


def runner(
    shape: shapes.Shape,
    feeds: Sequence[np.ndarray],
    library: Library,
    row: KernelRow,
    threads: int,
) -> Callable[[int], float]:
    """A shape on one row of its family: the time of its kernels alone, see shapes.work_of."""
    only = copy.copy(library)
    kernels = tuple(
        each._replace(supported=each.supported and (each.family != row.family or each == row))
        for each in library.target.kernels
    )
    only.target = replace(library.target, kernels=kernels)
    program = Compiler(only, threads, lambda graph: None).planned(shape.graph)

    counted = [getattr(step, "kernel", None) is not None for step in program.steps]

    def run(repeats: int) -> float:
        call = Call(step_ns=[])
        for _ in range(repeats):
            program.run(feeds, {}, call)
        return sum(itertools.compress(call.step_ns, itertools.cycle(counted))) / 1e6 / repeats

    return run


def peer(shape: shapes.Shape, feeds: Sequence[np.ndarray], threads: int) -> Callable[[int], float]:
    """onnxruntime on the node as ONNX, its entry from Python included."""
    graph = shape.graph
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "node.onnx"))
        importer.save(graph, path)
        try:
            session = onnxruntime_session(path, threads)
        except BackendError:
            return lambda repeats: float("nan")
    given = {value.name: array for value, array in zip(graph.inputs, feeds)}

    def run(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            session.run(None, given)
        return (time.perf_counter() - start) * 1000 / repeats

    return run


def feed(shape: shapes.Shape) -> list[np.ndarray]:
    """Floats around 0, everything else 1: a true mask, a valid index of any but a tiny table."""
    random = np.random.default_rng(0)
    made = []
    for value in shape.graph.inputs:
        dtype = dtypes.DTYPES[value.dtype]
        if dtype.kind == "f":
            made.append(random.standard_normal(value.shape).astype(dtype.numpy))
        else:
            made.append(np.ones(value.shape, dtype.numpy))
    return made


def faster(row: results.Row) -> list[str]:
    """Kernels that beat the pick by more than 5 %, at their best too, and beyond the spread."""
    low, median, _ = row["ms"][row["ours"]]
    least = row["least"]
    return [
        name
        for name, (_, other, high) in row["ms"].items()
        if name != "onnxruntime"
        and max(other / median, least[name] / least[row["ours"]]) < FASTER
        and high < low
    ]


def line(row: results.Row) -> str:
    """One line of the table."""
    least, median = row["least"], row["ms"][row["ours"]][1]
    best = least[row["ours"]]
    cells = f"{row['name'][:43]:<44}{best * 1000:>9.1f}{100 * (median / best - 1):>4.0f}"
    cells += f"{row['flops'] / best / 1e6:>8.1f}{row['bytes'] / best / 1e6:>6.1f}"
    cells += f"{row['limit']:>6.0%}  "
    if "onnxruntime" in least:
        theirs = least["onnxruntime"]
        cells += f"{theirs * 1000:<8.1f}{best / theirs:<6.2f}"
    too_fast = faster(row)
    for name, other in least.items():
        if name not in (row["ours"], "onnxruntime"):
            mark = "!" if name in too_fast else ""
            cells += f"{name.split('_')[-1]} {other / best:.1f}{mark} "
    return cells.rstrip()


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kernel rows against the limit and each other.")
    parser.add_argument("patterns", nargs="*", help="as in 'gemm', 'Attention 1x12', '128,768,768'")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="", help="nothing beyond it")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peer", action="store_true", help="onnxruntime on the same node")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
