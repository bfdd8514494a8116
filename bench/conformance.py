"""The ONNX backend suite of the installed onnx wheel, run by its own runner, on us and others.

Run: python bench conformance [--only PATTERN] [--engine q7x2_ep,onnxruntime] [--json FILE].
Cases, feeds, comparison and tolerances are those of onnx.backend.test.runner; an engine is given a
model and arrays only. Each engine has a process of its own, which is started again where a
case crashes or hangs it; in ours onnxruntime cannot be imported. A case that does not pass is
unsupported where no session was made (or ours says so later), an error where the run failed, or
else a mismatch. Exit code 1 where a case fails that tests/conformance/skip.txt does not name.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from q7x2_ep import usage  # noqa: E402  (bench is a folder of scripts, not a package)
from q7x2_ep.progress import track  # noqa: E402

ENGINES = ("q7x2_ep", "onnxruntime")
STATUSES = ("pass", "mismatch", "error", "unsupported")
SKIPPED = Path(__file__).resolve().parents[1] / "tests" / "conformance" / "skip.txt"
SECONDS = 300  # until a case counts as hanging


class Outcome(NamedTuple):
    """What became of a case. reason: of a failure. ops: of its model, most frequent first."""

    status: str
    reason: str
    ops: tuple[str, ...]


class Engine:
    """What onnx's runner takes for a backend: sessions of a module with onnxruntime's API."""

    def __init__(self, module: str):
        self.module = __import__(module)
        self.begin()

    def begin(self) -> None:
        self.phase = "unsupported"  # what a failure now would mean
        self.ops: tuple[str, ...] = ()

    @staticmethod
    def supports_device(device: str) -> bool:
        return device == "CPU"

    def prepare(self, model: Any, device: str, **options: Any) -> Engine:
        counts = Counter(node.op_type for node in model.graph.node)
        self.ops = tuple(op for op, _ in counts.most_common())
        self.session = self.module.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self.names = [item.name for item in self.session.get_inputs()]
        return self

    def run(self, inputs: list[Any]) -> list[Any]:
        self.phase = "error"
        arrays = [np.asarray(x) if isinstance(x, np.generic) else x for x in inputs]
        outputs = self.session.run(None, dict(zip(self.names, arrays)))
        self.phase = "mismatch"
        return [
            _numbers(array) if arg.type == "tensor(float8e4m3fn)" else array
            for array, arg in zip(outputs, self.session.get_outputs())
        ]


def _numbers(bits: np.ndarray) -> np.ndarray:
    """float8e4m3fn, which the API gives as uint8 and the suite compares as numbers."""
    import ml_dtypes

    return bits.view(ml_dtypes.float8_e4m3fn)


class Suite:
    """The cases for the CPU by name, kind/test_name, for one engine."""

    def __init__(self, engine: Any):
        # the light models' data is written to a folder of the user otherwise
        self.folder = tempfile.TemporaryDirectory()
        os.environ["ONNX_MODELS"] = self.folder.name
        with warnings.catch_warnings():  # cases divide by zero and overflow on purpose
            warnings.simplefilter("ignore")
            from onnx.backend.test.runner import Runner

            kinds = Runner(engine).test_cases
        self.engine = engine
        self.cases: dict[str, Callable] = {}
        for kind, cases in kinds.items():
            label = kind.replace("OnnxBackend", "").replace("ModelTest", "").lower()
            for name in sorted(name for name in vars(cases) if name.endswith("_cpu")):
                self.cases[f"{label}/{name[: -len('_cpu')]}"] = getattr(cases, name)

    def check(self, name: str) -> None:
        """Runs a case; raises what it raises."""
        self.engine.begin()
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                self.cases[name](None)
            finally:  # 500 MB of data for some of the light models
                for made in Path(self.folder.name).iterdir():
                    shutil.rmtree(made)

    def outcome(self, name: str) -> Outcome:
        try:
            self.check(name)
        except Exception as error:
            unsupported = type(error).__name__ == "UnsupportedOp"
            status = "unsupported" if unsupported else self.engine.phase
            lines = [line for line in str(error).splitlines() if line.strip()]
            text = " ".join(lines[:1] if status != "mismatch" else lines[:4])
            return Outcome(status, f"{type(error).__name__}: {text}", self.engine.ops)
        return Outcome("pass", "", self.engine.ops)


def skipped() -> dict[str, str]:
    """What cannot pass: the reason by the name of the case."""
    lines = (line.split(None, 1) for line in SKIPPED.read_text().splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2 and line[0] != "#"}


def serve(module: str, connection: Any) -> None:
    """The process of an engine: runs each case that it is sent the name of."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # onnxruntime logs what it raises
    if module != "onnxruntime":
        sys.modules["onnxruntime"] = None  # type: ignore[assignment]  # its import fails
    suite = Suite(Engine(module))
    with contextlib.suppress(EOFError):
        while True:
            connection.send(tuple(suite.outcome(connection.recv())))


def run(module: str, names: list[str]) -> Iterator[tuple[str, Outcome]]:
    """Every case with its outcome, in a process that may crash."""
    context = multiprocessing.get_context("spawn")
    worker: Any = None
    for name in track(names, module):
        if worker is None:
            connection, theirs = context.Pipe()
            worker = context.Process(target=serve, args=(module, theirs), daemon=True)
            worker.start()
            theirs.close()
        connection.send(name)
        try:
            hangs = not connection.poll(SECONDS)
            found = None if hangs else Outcome(*connection.recv())
        except EOFError:
            hangs, found = False, None
        if found is None:
            worker.kill()
            worker.join()
            reason = f"no answer in {SECONDS} s" if hangs else f"crash, exit code {worker.exitcode}"
            found, worker = Outcome("error", reason, ()), None
        yield name, found
    if worker is not None:
        connection.close()
        worker.join()


Results = dict[str, dict[str, Outcome]]  # by engine, then by case


def counts_table(results: Results) -> str:
    """Cases by kind and status."""
    lines = [f"{'engine':<13}{'kind':<19}{'cases':>7}" + "".join(f"{s:>13}" for s in STATUSES)]
    for module, outcomes in results.items():
        kinds = sorted({name.split("/")[0] for name in outcomes})
        for kind in [*kinds, ""] if len(kinds) > 1 else kinds:
            found = [o.status for name, o in outcomes.items() if name.startswith(kind)]
            cells = "".join(f"{found.count(status):>13}" for status in STATUSES)
            lines.append(f"{module:<13}{kind or 'all':<19}{len(found):>7}{cells}")
    return "\n".join(lines)


def failures_table(outcomes: dict[str, Outcome], width: int) -> str:
    """A line per case that did not pass; with many of them, a line per op of their models."""
    failed = [(name, found) for name, found in outcomes.items() if found.status != "pass"]
    if len(failed) <= 60:
        rows = [f"{found.status:<12}{name} {found.reason}" for name, found in failed]
    else:
        groups: dict[tuple[str, str], list[Outcome]] = {}
        for _, found in failed:
            label = ", ".join(found.ops[:3]) + ", .." * (len(found.ops) > 3)
            groups.setdefault((found.status, label), []).append(found)
        rows = [
            f"{len(found):>4} {status:<12}{ops}: {found[0].reason}"
            for (status, ops), found in sorted(groups.items(), key=lambda item: -len(item[1]))
        ]
    return "\n".join(row[:width] for row in rows)


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="The ONNX backend suite.")
    parser.add_argument(
        "--only",
        type=usage.pattern,
        default="",
        help="a regular expression over kind/test_name",
    )
    parser.add_argument(
        "--engine",
        type=usage.names_of(ENGINES),
        default=list(ENGINES[:1]),
        help=f"of {', '.join(ENGINES)}; by comma",
    )
    parser.add_argument(
        "--json", type=usage.target_or_stdout, help="write every outcome to a file, or - for stdout"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    names = [name for name in Suite(Engine("q7x2_ep")).cases if re.search(options.only, name)]
    if not names:
        parser.error(f"argument --only: no case matches {options.only!r}; one is node/test_relu")
    results = {module: dict(run(module, names)) for module in options.engine}
    if options.json:
        text = json.dumps(
            {
                module: {name: found._asdict() for name, found in outcomes.items()}
                for module, outcomes in results.items()
            },
            indent=1,
        )
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n")
    if options.json != "-":
        width = shutil.get_terminal_size((120, 24)).columns
        for module, outcomes in results.items():
            if any(found.status != "pass" for found in outcomes.values()):
                print(f"{module} does not pass\n{failures_table(outcomes, width)}\n")
        print(counts_table(results))
    known = skipped()
    ours = results.get(ENGINES[0], {})
    return int(any(found.status != "pass" and name not in known for name, found in ours.items()))


if __name__ == "__main__":
    raise SystemExit(main())
