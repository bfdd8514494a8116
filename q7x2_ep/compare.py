"""Head to head with onnxruntime: errors against a float64 evaluation, and interleaved times.

Accuracy rule, per output: the root-mean-square error against the same graph evaluated in float64 is
at most 1.5 times that of onnxruntime on the same feed, or one epsilon of the output's dtype (of
float64: of float32) and scale where that is larger.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep import dtypes, importer
from q7x2_ep.api.inference_session import InferenceSession
from q7x2_ep.api.options import GraphOptimizationLevel, SessionOptions
from q7x2_ep.backend import numpy as oracle
from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.backend.numpy import rms, rms_error
from q7x2_ep.errors import BackendError
from q7x2_ep.feeds import random_feeds
from q7x2_ep.install import installed
from q7x2_ep.passes import infer
from q7x2_ep.session import Model

ERROR_FACTOR = 1.5  # of onnxruntime's own error
# An engine's turn begins with untimed runs: its weights come into cache, and the threads of the
# other engine stop spinning (those of onnxruntime after 20 ms), whose cores ours avoid for a while
# longer (csrc/pool.c). Long runs need none.
WARM_MS, WARM_BELOW_MS = 80.0, 500.0
TURN_MS = 50.0  # of timed runs in a row, so that short ones are not all warming
SECONDS_PER_ENGINE = 1.5  # default measuring time
FEWEST_RUNS, MOST_RUNS = 5, 200
MISSING = np.empty((0, 0))  # in place of a tensor that one engine has and another has not


@dataclass(frozen=True)
class OutputError:
    """Root-mean-square errors of one output against float64; scale: its own root mean square; eps:
    of its dtype.
    """

    name: str
    ours: float
    theirs: float
    scale: float
    eps: float = dtypes.epsilon(dtypes.FLOAT)

    @staticmethod
    def of(name: str, ours: np.ndarray, theirs: np.ndarray, true: np.ndarray) -> OutputError:
        eps = max(map(dtypes.epsilon, (dtypes.from_numpy(ours.dtype), dtypes.FLOAT)))
        return OutputError(name, rms_error(ours, true), rms_error(theirs, true), rms(true), eps)

    @property
    def bound(self) -> float:
        """What the accuracy rule allows."""
        return max(ERROR_FACTOR * self.theirs, self.eps * self.scale)

    @property
    def accurate(self) -> bool:
        """Whether the accuracy rule holds."""
        return self.ours <= self.bound


@dataclass(frozen=True)
class Comparison:
    """One model with one feed. Units: milliseconds, medians; None where it was not measured.

    unfused_ms: ours without fusions. naive_ms: the numpy evaluation in float32, one op at a time.
    difference: the largest absolute difference between the outputs of the two engines.
    """

    model: str
    feed: str
    threads: int
    runs: int
    ours_ms: float
    theirs_ms: float
    unfused_ms: Optional[float]
    naive_ms: Optional[float]
    difference: float
    outputs: tuple[OutputError, ...]

    @property
    def ratio(self) -> float:
        """Our time over onnxruntime's: below 1 we are faster."""
        return self.ours_ms / self.theirs_ms

    @property
    def accurate(self) -> bool:
        """Whether the accuracy rule holds for every output."""
        return all(output.accurate for output in self.outputs)

    def row(self) -> dict[str, Any]:
        """Flat and serialisable; errors are those of the worst output, relative to its scale."""
        worst = max(self.outputs, key=lambda o: o.ours / (o.scale or 1.0), default=None)
        scale = (worst.scale or 1.0) if worst else 1.0
        return {
            "model": self.model,
            "feed": self.feed,
            "threads": self.threads,
            "runs": self.runs,
            "ours_ms": round(self.ours_ms, 4),
            "onnxruntime_ms": round(self.theirs_ms, 4),
            "ratio": round(self.ratio, 4),
            "unfused_ms": None if self.unfused_ms is None else round(self.unfused_ms, 4),
            "naive_ms": None if self.naive_ms is None else round(self.naive_ms, 4),
            "ours_error": worst.ours / scale if worst else None,
            "onnxruntime_error": worst.theirs / scale if worst else None,
            "difference": self.difference,
            "accurate": self.accurate if worst else None,
        }

    def __str__(self) -> str:
        return table([self])


class Contest:
    """One model loaded by both engines with the same number of threads; close it after use.

    Raises: BackendError where onnxruntime is missing or cannot load the model.
    """

    def __init__(
        self, model: Model, threads: Optional[int] = None, name: str = "", unfused: bool = False
    ):
        self.threads = threads or default_threads()
        self.name = name or _name(model)
        self.graph = importer.read(model)
        infer.run(self.graph)
        self.ours = InferenceSession(model, SessionOptions(intra_op_num_threads=self.threads))
        self.theirs = onnxruntime_session(model, self.threads)
        self.unfused = None
        if unfused:
            level = GraphOptimizationLevel.ORT_DISABLE_ALL
            options = SessionOptions(
                intra_op_num_threads=self.threads, graph_optimization_level=level
            )
            self.unfused = InferenceSession(model, options)

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the memory of both engines."""
        self.ours.close()
        if self.unfused is not None:
            self.unfused.close()
        self.theirs = None

    def measure(
        self,
        feeds: Mapping[str, np.ndarray],
        runs: Optional[int] = None,
        check: bool = True,
        naive: bool = False,
    ) -> Comparison:
        """Run both on one feed.

        runs: timed runs of each. check: evaluate in float64 as well, slow for big models.
        """
        engines = [self.ours, self.theirs] + ([self.unfused] if self.unfused is not None else [])
        calls = [lambda engine=engine: engine.run(None, feeds) for engine in engines]
        names = [output.name for output in self.ours.get_outputs()]
        ours, theirs = (oracle.tensors(names, call()) for call in calls[:2])
        errors: tuple[OutputError, ...] = ()
        if check:
            exact = oracle.tensors(names, oracle.evaluate(self.graph, feeds, np.float64))
            errors = tuple(
                OutputError.of(name, *(each.get(name, MISSING) for each in (ours, theirs, exact)))
                for name in {**ours, **exact}
            )
        naive_ms = None
        if naive:
            alone = interleave([lambda: oracle.evaluate(self.graph, feeds, np.float32)], 3)
            naive_ms = float(np.median(alone))
        samples = interleave(calls, runs)
        times = [float(np.median(each)) for each in samples]
        return Comparison(
            model=self.name,
            feed="x".join(map(str, next(iter(feeds.values())).shape)) if feeds else "none",
            threads=self.threads,
            runs=len(samples[0]),
            ours_ms=times[0],
            theirs_ms=times[1],
            unfused_ms=times[2] if self.unfused is not None else None,
            naive_ms=naive_ms,
            difference=max(
                (
                    largest_difference(ours.get(name, MISSING), theirs.get(name, MISSING))
                    for name in {**ours, **theirs}
                ),
                default=0.0,
            ),
            outputs=errors,
        )


def compare(
    model: Model,
    feeds: Optional[Mapping[str, np.ndarray]] = None,
    threads: Optional[int] = None,
    runs: Optional[int] = None,
    *,
    batch: int = 1,
    sequence: int = 128,
    dims: Optional[Mapping[str, int]] = None,
    padding: bool = False,
    unfused: bool = False,
    naive: bool = False,
) -> Comparison:
    """Run a model in q7x2_ep and in onnxruntime: who is closer to the truth, who is faster.

    feeds: random ones of the given batch and sequence by default (see feeds.random_feeds). threads:
    of both engines, by default the cores that this process may use. runs: timed runs of each, by
    default as many as fit in 1.5 s. unfused, naive: time our engine without fusions, and numpy one
    op at a time, as well.

    Raises: BackendError where onnxruntime is not installed.
    """
    with Contest(model, threads, unfused=unfused) as contest:
        if feeds is None:
            feeds = random_feeds(contest.graph, batch, sequence, dims, padding=padding)
        return contest.measure(feeds, runs, naive=naive)


def interleave(
    calls: Sequence[Callable[[], Any]],
    runs: Optional[int] = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[list[float]]:
    """Milliseconds of the runs of each call.

    Measured in turns, A B A B, so that drift hits all alike. The order changes every round, so that
    none always follows the same other. clock: in nanoseconds.
    """
    first = [_milliseconds(call, clock) for call in calls]
    if runs is None:
        runs = int(min(max(1000 * SECONDS_PER_ENGINE / max(first), FEWEST_RUNS), MOST_RUNS))
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    turn = max(min(int(TURN_MS / max(first)), runs // FEWEST_RUNS), 1)
    for done in range(0, runs, turn):
        for i in order:
            warm = 0.0
            while first[i] < WARM_BELOW_MS and warm < WARM_MS:
                warm += _milliseconds(calls[i], clock)
            times[i] += [_milliseconds(calls[i], clock) for _ in range(min(turn, runs - done))]
        order = order[1:] + order[:1]
    return times


def table(comparisons: Sequence[Comparison]) -> str:
    """The comparisons as text, at most 100 columns wide."""
    rows = [comparison.row() for comparison in comparisons]
    columns = [
        ("model", "model"),
        ("feed", "feed"),
        ("thr", "threads"),
        ("q7x2_ep", "ours_ms"),
        ("ORT", "onnxruntime_ms"),
        ("ratio", "ratio"),
    ]
    columns += [
        (title, key)
        for title, key in (("unfused", "unfused_ms"), ("naive", "naive_ms"))
        if any(r[key] for r in rows)
    ]
    columns += [("error", "ours_error"), ("ORT's", "onnxruntime_error"), ("rule", "accurate")]
    cells = [[title for title, _ in columns]]
    cells += [[_cell(key, row[key]) for _, key in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    widths[0] = min(widths[0], 100 - sum(widths[1:]) - 2 * (len(widths) - 1))
    lines = []
    for line in cells:
        parts = [_shorten(line[0], widths[0]).ljust(widths[0]), line[1].ljust(widths[1])]
        parts += [text.rjust(width) for text, width in zip(line[2:], widths[2:])]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    lines.append(
        "times: median ms; ratio: q7x2_ep / ORT; error: RMS against float64 / RMS of the output"
    )
    return "\n".join(lines)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key == "accurate":
        return "ok" if value else "FAIL"
    if key.endswith("_ms"):
        return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 1000 else f"{value:.0f}"
    if key.endswith("_error"):
        return f"{value:.1e}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 2] + ".."


def onnxruntime_session(model: Model, threads: int) -> Any:
    """The model in onnxruntime.

    Raises: BackendError where it is not installed or cannot load the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendError(
            "[compare] expected onnxruntime to compare with, none is installed; "
            "pip install 'q7x2_ep[bench]'"
        ) from error
    if installed():
        raise BackendError(
            "[compare] expected onnxruntime to compare with, but q7x2_ep goes by its name here: "
            "call q7x2_ep.uninstall() first"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    source = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    source = os.fspath(source) if isinstance(source, os.PathLike) else source
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base class
        raise BackendError(f"[compare] onnxruntime cannot load {_name(model)}: {error}") from error


def _name(model: Model) -> str:
    if isinstance(model, (str, os.PathLike)):
        return os.path.splitext(os.path.basename(os.fspath(model)))[0]
    return "model"


def _milliseconds(call: Callable[[], Any], clock: Callable[[], int]) -> float:
    start = clock()
    call()
    return (clock() - start) / 1e6


def largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Of numbers, NaN aside; infinite where shapes, or what is no number, differ."""
    are_numbers = a.dtype.kind in "iuc" or dtypes.holds_floats(a)
    if a.shape != b.shape or not are_numbers:
        return 0.0 if np.array_equal(a, b) else float("inf")
    with np.errstate(invalid="ignore"):
        return float(np.nanmax(np.abs(dtypes.in_double(a) - dtypes.in_double(b)), initial=0.0))
