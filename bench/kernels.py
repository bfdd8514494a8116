"""Every kernel row over the shapes of real models: how far from the limit, and which row is best.

Run: python bench kernels [PATTERN ..] [--threads N] [--isa avx2] [--cold] [--seconds 55] [--peer].
A pattern is a part of `family op shapes` as printed, or M,N,K of a product; the shapes are those of
bench/shapes.txt. Rows of a family take turns, on feeds and outputs that are memory already. Rates
are those of the best time; `+%` is how far the median is above. `limit` is the least time by
multiply-adds or by bytes, whichever takes longer, over that of a turn, the median of all turns:
what bounds a row is measured again in each. (Winograd's products count as those of a direct sum.)
The others are multiples of the pick's time. A row that seems faster than the dispatcher's pick, by
more than 5 % at its best and at its median, is measured three times more, on other feeds and
outputs each time, as addresses matter: exit code 1 where it is so every time.

With --cold every run takes other weights, of copies that are together twice as large as the last
cache: then the limit of few rows is the bandwidth of memory. Without, one set of weights stays in
whatever cache is large enough. --peer times onnxruntime on the same node. Rows go to
bench/results/kernels.jsonl; what is there of this commit is not measured again, so that a run that
--seconds ended goes on from there.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

import numpy as np
import results
import roofline
import shapes
import work

from q7x2_ep import dtypes
from q7x2_ep.backend.call import Call
from q7x2_ep.backend.cpu.library import Library, load
from q7x2_ep.backend.program import Compiler, Program
from q7x2_ep.compare import onnxruntime_session
from q7x2_ep.errors import BackendError
from q7x2_ep.importer.writer import save
from q7x2_ep.ir.core import Graph
from q7x2_ep.plan.target import KernelRow
from q7x2_ep.progress import track

FASTER = 0.95  # of the pick's time
CLOCK_MS = 5e-5  # what reading the clock around a step may add
AGAIN = 3  # times that a faster kernel has to be so, too
TURN_MS = 2.0  # of runs in a row
SHAPE_MS, FEWEST = 2000.0, 3  # for all rounds of a shape, of which there are so many at least
SLOW = 3.0  # times the pick's: not worth more than one run
PORTABLE_FLOPS = 1e8  # what the portable rows are not tried on is beyond
WEIGHTS = 0.5  # of the bytes: shapes whose weights are less are left out of --cold

Run = Callable[[int], float]  # milliseconds of `repeats` runs, one after the other, of one


def main(arguments: Optional[list[str]] = None) -> int:
    options = _options(arguments)
    library = load(options.isa)
    chosen = [s for s in select(options.patterns) if not options.cold or weights(s) > WEIGHTS]
    if not chosen:
        print("no shape fits: without a pattern all of bench/shapes.txt are measured")
        return 2
    path = results.FOLDER / "kernels.jsonl"
    settings = {"threads": options.threads, "row_isa": library.target.isa}
    found = [] if options.again else results.measured(results.read(path), **settings)
    done = {row["name"]: row for row in found}
    limits = None
    wrong = 0
    start = time.monotonic()
    print(
        f"{'family op shapes':<44}{'us':>9}{'+%':>4}{'GFLOP/s':>8}{'GB/s':>6}{'limit':>6}"
        f"  {'others' if not options.peer else 'ORT us  ratio  others'}"
    )
    for shape in track(chosen, "kernels"):
        row = done.get(title(shape, options.cold))
        if row is None or (options.peer and not row["peers"]):
            if options.seconds and time.monotonic() - start > options.seconds:
                print(f"{options.seconds} s are over: the same command goes on from here")
                return 1 if wrong else 0
            if limits is None:
                isa = roofline.vectors(library.target.isa)
                limits = roofline.measure(isa, options.threads)
                results.write("roofline", [limits.row()])
            row = {**settings, **measure(shape, library, limits, options)}
            results.write("kernels", [row])
        wrong += bool(row["faster"])
        print(line(row), flush=True)
    print(f"{len(chosen)} shapes, {wrong} where another kernel is more than 5 % faster")
    return 1 if wrong else 0


def title(shape: shapes.Shape, cold: bool) -> str:
    """Of a row; models tell apart what only attributes do."""
    model = f" of {shape.models[0]}" if shape.models else ""
    return f"{shape.family} {shape.name}{model}{', cold' * cold}"


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


def weights(shape: shapes.Shape) -> float:
    """The part of a shape's bytes that are constants."""
    plan, _ = shapes.planned(shape.graph)
    return _constant_bytes(shape.graph) / max(shapes.work_of(plan).bytes, 1)


def _constant_bytes(graph: Graph) -> int:
    values = {value for node in graph.nodes for value in node.inputs if value is not None}
    return sum(value.const.nbytes for value in values if value.const is not None)


def measure(
    shape: shapes.Shape, library: Library, limits: roofline.Roofline, options: argparse.Namespace
) -> results.Row:
    """One row of results: all kernels of the family on a shape."""
    plan, family = shapes.planned(shape.graph, library.target)
    each = shapes.work_of(plan, options.threads)
    chosen = (step.kernel for step in plan.steps if shapes.is_measured(step))
    pick = next(row for row in chosen if row.family == family)
    usable = library.target.kernels[pick.index :]  # the step may not have those before
    rows = [row for row in usable if row.family == family and row.supported]
    rows = [row for row in rows if row.isa != "scalar" or each.flops <= PORTABLE_FLOPS]
    copies = 1
    if options.cold:
        copies = math.ceil(2 * (roofline.cache_bytes(3) or 1 << 27) / _constant_bytes(shape.graph))
    moved = max(limits.reads) if options.cold else each.bytes
    bound = Bound(each, moved, limits, roofline.kind_of(pick))
    feeds = feed(shape)
    calls = runners(shape, feeds, library, rows, options.threads, copies)
    if options.peer:
        calls["onnxruntime"] = peer(shape, feeds, options.threads)
    samples, limit = turns(calls, pick.name, options.rounds, bound)
    suspects = faster(samples, pick.name)
    for _ in range(AGAIN if suspects else 0):
        these = [row for row in rows if row.name in (pick.name, *suspects)]
        calls = runners(shape, feed(shape), library, these, options.threads, copies)
        more, limit = turns(calls, pick.name, max(options.rounds, 9), bound)
        suspects = [name for name in faster(more, pick.name) if name in suspects]
        samples.update(more)
        if not suspects:
            break
    ms = {name: results.quartiles(times) for name, times in samples.items()}
    least = {name: float(f"{min(times):.4g}") for name, times in samples.items()}
    return {
        "name": title(shape, options.cold),
        "ours": pick.name,
        "ms": ms,
        "peers": ["onnxruntime"] if options.peer else [],
        "least": least,
        "faster": suspects,
        "product": next((work.sizes(step) for step in plan.steps if step.op == "gemm"), []),
        "flops": each.flops,
        "bytes": each.bytes,
        "limit": round(limit, 4),
        "models": shape.models,
    }


class Bound:
    """What limits a shape, of `size` bytes that are moved over and over: its operations or its
    bytes.
    """

    def __init__(self, each: work.Work, size: float, limits: roofline.Roofline, kind: str):
        self.work, self.size, self.limits = each, int(size), limits
        self.kind = kind if kind in limits.products else "f32"
        rates = (limits.products[self.kind], limits.bandwidth(size), limits.bandwidth(size, True))
        self.rates = dict(zip(("operations", "reads", "copies"), rates))
        copied = 2 * min(each.written, each.bytes - each.written)
        self.amounts = dict(zip(self.rates, (each.flops, each.bytes - copied, copied)))

    def times(self) -> dict[str, float]:
        return {what: self.amounts[what] / rate for what, rate in self.rates.items()}

    def seconds(self) -> float:
        """The least time for it, with the rate of what takes longest measured now."""
        times, isa, threads = self.times(), self.limits.isa, self.limits.threads
        slowest = max(times, key=lambda what: times[what])
        if slowest == "operations":
            rate = roofline.flops(isa, threads, self.kind, 1)
        else:
            rate = roofline.bandwidth(isa, self.size // threads, threads, 1, slowest == "copies")
        self.rates[slowest] = rate
        operations, *moving = self.times().values()
        return max(operations, sum(moving))


def turns(
    calls: Mapping[str, Run], pick: str, rounds: int, bound: Bound
) -> tuple[dict[str, list[float]], float]:
    """Milliseconds of each call, taken in turns, and the part of the pick's that is its limit."""
    first = {name: min(run(1), run(1)) for name, run in calls.items()}
    samples = {name: [first[name]] for name in calls}
    alive = [n for n in calls if n == pick or first[n] < SLOW * first[pick]]
    fitting = int(SHAPE_MS / sum(first[name] for name in alive))
    parts = []
    for _ in range(min(rounds, max(fitting, FEWEST))):
        for name in alive:
            samples[name].append(calls[name](max(1, int(TURN_MS / first[name]))))
        parts.append(1000 * bound.seconds() / samples[pick][-1])
    return samples, float(np.median(parts))


def runners(
    shape: shapes.Shape,
    feeds: Sequence[np.ndarray],
    library: Library,
    rows: Sequence[KernelRow],
    threads: int,
    copies: int = 1,
) -> dict[str, Run]:
    """By name, each row on a shape; copies: of the weights, which runs take in turn. All write to
    the same place: addresses alone make 5 % of some times, and 50 of others.
    """
    programs = {row.name: programs_of(shape, library, row, threads, copies) for row in rows}
    first = programs[rows[0].name][0]
    outputs = [like(output) for output in first.run(feeds, {})]
    return {name: runner(feeds, outputs, some) for name, some in programs.items()}


def programs_of(
    shape: shapes.Shape, library: Library, row: KernelRow, threads: int, copies: int
) -> list[Program]:
    """Of which each has weights of its own, on one row, be it one that is not taken."""
    only = copy.copy(library)
    kernels = tuple(
        each._replace(supported=each.supported and (each.family != row.family or each == row))
        for each in library.target.kernels
    )
    only.target = library.target._replace(kernels=kernels, has_many_cpus=False)
    compiler, graph = Compiler(only, threads, lambda graph: None), shape.graph
    return [compiler.planned(graph.clone()) for _ in range(copies)]


def runner(
    feeds: Sequence[np.ndarray], outputs: list[np.ndarray], programs: Sequence[Program]
) -> Run:
    """The time of the kernels alone, see shapes.work_of."""
    counted = [shapes.is_measured(step) for step in programs[0].steps]
    following = itertools.cycle(programs)

    def run(repeats: int) -> float:
        call = Call(outputs, step_ns=[])
        for program in itertools.islice(following, repeats):
            program.run(feeds, {}, call)
        return sum(itertools.compress(call.step_ns, itertools.cycle(counted))) / 1e6 / repeats

    return run


def peer(shape: shapes.Shape, feeds: Sequence[np.ndarray], threads: int) -> Callable[[int], float]:
    """onnxruntime on the node as ONNX, its entry from Python included."""
    graph = shape.graph
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "node.onnx"))
        save(graph, path)
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
        array = like(np.empty(value.shape, dtype.numpy))
        array[...] = random.standard_normal(value.shape) if dtype.kind == "f" else 1
        made.append(array)
    return made


def like(array: np.ndarray) -> np.ndarray:
    """An array where a model's would be: it begins a line of cache, and its pages are there."""
    return roofline.aligned(array.nbytes).view(array.dtype).reshape(array.shape)


def faster(samples: Mapping[str, Sequence[float]], pick: str) -> list[str]:
    """Kernels that beat the pick by more than 5 %, at their best too, and beyond the spread."""
    least = min(samples[pick])
    low, median, _ = results.quartiles(samples[pick])
    found = []
    for name, times in samples.items():
        _, other, high = results.quartiles(times)
        is_close = max(other / median, min(times) / least) >= FASTER or median - other < CLOCK_MS
        if name not in (pick, "onnxruntime") and not is_close and high < low:
            found.append(name)
    return found


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
    for name, other in least.items():
        if name not in (row["ours"], "onnxruntime"):
            mark = "!" if name in row["faster"] else ""
            cells += f"{name.split('_')[-1]} {other / best:.1f}{mark} "
    return cells.rstrip()


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kernel rows against the limit and each other.")
    parser.add_argument("patterns", nargs="*", help="as in 'gemm', 'Attention 1x12', '128,768,768'")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="", help="nothing beyond it")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cold", action="store_true", help="other weights in every run")
    parser.add_argument("--seconds", type=float, help="begin nothing new after so long")
    parser.add_argument("--again", action="store_true", help="what was measured already, too")
    parser.add_argument("--peer", action="store_true", help="onnxruntime on the same node")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
