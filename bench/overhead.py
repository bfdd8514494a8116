"""What is not computing: python bench overhead [MODEL.onnx ..] [--only run|start] [--clock cpu].

`run`: microseconds of one call on models that compute next to nothing. `start`: milliseconds from
an empty process (numpy is imported) to a session and its first outputs, and peak memory, from ONNX
and from a compiled file; every sample is a process of its own. Both engines by turns; medians, and
in brackets the fastest and the slowest; rows go to bench/results/overhead.jsonl. With --clock cpu
the processor's time of all threads instead of the clock's, for machines that are busy otherwise.

A guest of a hypervisor that takes back what is free pays for a page's first touch (2 ms for 1 MB
have been seen, 16 times a later one), and whoever allocates first pays for it: free memory is
touched before each process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import results

from q7x2_ep import usage

ENGINES = ("q7x2_ep", "onnxruntime")
ROUNDS, CALLS = 9, 1000

# A process of its own: engine, model, feed, threads, clock.
CHILD = """
import json, sys, time
import numpy as np

engine, model, feed, threads, clock = sys.argv[1:]
feed = dict(np.load(feed))
now = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}[clock]

def peak():  # MB since the last call
    status = open("/proc/self/status").read()
    open("/proc/self/clear_refs", "w").write("5")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

times = [now()]
module = __import__(engine)
times.append(now())
options = module.SessionOptions()
options.intra_op_num_threads = int(threads)
session = module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
times.append(now())
load = peak()
for _ in range(3):
    session.run(None, feed)
    times.append(now())
run = peak()
ms = [(b - a) / 1e6 for a, b in zip(times, times[1:])]
again = now()  # what is imported at the first session is there now
module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
row = dict(zip(("import", "session", "first run", "second run"), ms))
row |= {"all to first outputs": sum(ms[:3]), "session again": (now() - again) / 1e6}
print(json.dumps({**row, "MB at load": load, "MB at run": run}))
"""


class Compared(NamedTuple):
    """Samples of both engines. unit: us, ms or MB."""

    model: str
    what: str
    ours: list[float]
    theirs: list[float]
    unit: str

    def __str__(self) -> str:
        medians = [statistics.median(times) for times in (self.ours, self.theirs)]
        shown = [
            f"{median:>8.2f} {f'[{min(times):.2f} {max(times):.2f}]':<14}"
            for median, times in zip(medians, (self.ours, self.theirs))
        ]
        what = f"{self.what}, {self.unit}"
        return f"{self.model:<34}{what:<26}{''.join(shown)}{medians[0] / medians[1]:>6.2f}"


def adds(count: int) -> bytes:
    """A chain of Adds of one element."""
    from onnx import TensorProto, helper

    names = ["x", *(f"t{i}" for i in range(1, count)), "z"]
    nodes = [helper.make_node("Add", [a, "y"], [b]) for a, b in zip(names, names[1:])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xyz"]
    graph = helper.make_graph(nodes, "adds", infos[:2], infos[2:])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def sum_of(count: int) -> bytes:
    """A Sum of so many rows of 16."""
    from onnx import TensorProto, helper

    names = [f"x{i}" for i in range(count)]
    nodes = [helper.make_node("Sum", names, ["z"])]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 16]) for n in [*names, "z"]]
    graph = helper.make_graph(nodes, "sum", infos[:-1], infos[-1:])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def calls(module: Any, model: bytes, feed: dict, threads: int) -> dict[str, Callable[[], Any]]:
    """The ways to run a model, each as a function of nothing that runs it once."""
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    session = module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    for name in names:
        binding.bind_output(name)
    values = {k: module.OrtValue.ortvalue_from_numpy(v) for k, v in feed.items()}
    return {
        "run(None, feed)": lambda: session.run(None, feed),
        "run(names, feed)": lambda: session.run(names, feed),
        "run_with_iobinding": lambda: session.run_with_iobinding(binding),
        "run_with_ort_values": lambda: session.run_with_ort_values(names, values),
        "run, 2 callers": lambda: _from_threads(lambda: session.run(None, feed), 2),
    }


def _from_threads(call: Callable[[], Any], count: int) -> None:
    def work() -> None:
        for _ in range(200):
            call()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_rows(threads: int, clock: str) -> Iterator[Compared]:
    """One row per model and way to run it."""
    import onnxruntime

    import q7x2_ep

    now, one = results.CLOCKS[clock], np.ones(1, np.float32)
    rows = {f"x{i}": np.ones((4, 16), np.float32) for i in range(4)}
    models = {
        "Add of one element": (adds(1), {"x": one, "y": one}),
        "100 Adds of one element": (adds(100), {"x": one, "y": one}),
        "Sum of 4 feeds": (sum_of(4), rows),
    }
    for name, (model, feed) in models.items():
        ours, theirs = (calls(m, model, feed, threads) for m in (q7x2_ep, onnxruntime))
        for way in ours:
            found: list[list[float]] = [[], []]
            many = 400 if "callers" in way else 1
            for _ in range(ROUNDS):
                for times, call in zip(found, (ours[way], theirs[way])):
                    start = now()
                    for _ in range(CALLS // many):
                        call()
                    times.append((now() - start) / (CALLS // many) / many / 1000)
            yield Compared(name, way, *found, "us")


def start_rows(models: list[Path], threads: int, clock: str, samples: int) -> Iterator[Compared]:
    """One row per model and quantity."""
    import compile as compiling

    import q7x2_ep
    from q7x2_ep import importer
    from q7x2_ep.feeds import random_feeds
    from q7x2_ep.models import small_models

    with tempfile.TemporaryDirectory() as folder:
        made = {"Add": adds(1), "decoder, 2500 nodes": compiling.decoder(2500)}
        paths = {}
        for name, model in made.items():
            paths[name] = Path(folder) / f"{len(paths)}.onnx"
            paths[name].write_bytes(model)
        paths["small bert"] = Path(small_models()["bert"])
        paths.update((path.stem, path) for path in models)
        for name, path in paths.items():
            feed = Path(folder) / "feed.npz"
            np.savez(feed, **random_feeds(importer.read(path), 1, 16))
            compiled = Path(folder) / "compiled.q7"
            q7x2_ep.compile(path, compiled)
            ours, theirs = ENGINES
            size = sum(each.stat().st_size for each in path.parent.glob(path.name + "*"))
            ways = {"": (ours, path), ", compiled": (ours, compiled), "theirs": (theirs, path)}
            found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for _ in range(samples):
                for way, (engine, model) in ways.items():
                    np.ones(size * 5 // 2, np.uint8)  # two sessions and what they read
                    command = [sys.executable, "-c", CHILD, engine, model, feed, threads, clock]
                    done = subprocess.run(
                        list(map(str, command)), capture_output=True, text=True, check=True
                    )
                    found[way].append(json.loads(done.stdout))
            for way in list(ways)[:2]:
                for key in found[way][0]:
                    pair = [[sample[key] for sample in found[each]] for each in (way, "theirs")]
                    unit = "MB" if key.startswith("MB") else "ms"
                    yield Compared(name + way, key, *pair, unit)


def main(arguments: Optional[list[str]] = None) -> None:
    parser = argparse.ArgumentParser(description="What is not computing.")
    parser.add_argument("models", nargs="*", type=usage.source)
    parser.add_argument("--only", choices=("run", "start"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=results.CLOCKS, default="wall")
    parser.add_argument("--samples", type=int, default=5, help="processes per model and engine")
    options = parser.parse_args(arguments)
    print(f"{'model':<34}{'what':<26}{'q7x2_ep':>8}{'onnxruntime':>23}{'ratio':>21}")
    rows: list[Iterator[Compared]] = []
    if options.only != "start":
        rows.append(run_rows(options.threads, options.clock))
    if options.only != "run":
        rows.append(start_rows(options.models, options.threads, options.clock, options.samples))
    for row in itertools.chain(*rows):
        print(row, flush=True)
        scale = 1000 if row.unit == "us" else 1
        samples = ([each / scale for each in side] for side in (row.ours, row.theirs))
        name = f"{row.model}: {row.what}"
        made = results.of_pair(name, options.threads, *samples, options.clock)
        if row.unit == "MB":
            made["MB"] = made.pop("ms")
        results.write("overhead", [made])


if __name__ == "__main__":
    main()
