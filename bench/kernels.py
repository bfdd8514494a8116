"""GEMM kernels, one thread: % of the FMA peak and of the read bandwidth, beside onnxruntime.

As in a model, the weights of a product are not those of the one before: there are several of
each shape, in one model, 256 MB or --cold MB of them (0: one, which caches keep).
Peaks are measured in this process (bench/peak.c, needs a C compiler): multiply-adds in turn with
what they are held against, reading over as many bytes as all b have. Best times of all rounds; the
ratio to onnxruntime is one of medians. Our times come from the executor's profile, those of
onnxruntime include its entry from Python, some 5 us.

Usage: python bench/kernels.py [--rounds N] [--isa avx2] [--model BERT-base] [--cold MB] [m,n,k ...]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.session import Session

WEIGHTS = {  # n, k of the layers of a model
    "BERT-base": ((2304, 768), (768, 768), (3072, 768), (768, 3072)),
    "MiniLM": ((1152, 384), (384, 384), (1536, 384), (384, 1536)),
    "Llama-3.2-1B": ((3072, 2048), (16384, 2048), (2048, 8192)),
    "Qwen3-0.6B": ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)),
}
ROWS = (1, 2, 4, 8, 14, 16, 128, 512)
COLD_MB = 256  # beyond the L2 of every core, and what is left of a shared L3
VECTORS = {  # per ISA: bytes of a vector, compiler flags
    "avx512": (64, ["-mavx512f", "-mprefer-vector-width=512"]),
    "avx2": (32, ["-mavx2", "-mfma"]),
    "neon": (16, []),
    "scalar": (16, []),
}


class Peak:
    """The yardsticks of an ISA."""

    def __init__(self, isa: str, folder: Path):
        size, flags = VECTORS[isa]
        target, source = folder / f"{isa}.so", Path(__file__).with_name("peak.c")
        build = ["-O3", "-fPIC", "-shared", "-ffp-contract=fast", f"-DVECTOR_BYTES={size}", *flags]
        subprocess.run(
            [os.environ.get("CC", "cc"), *build, str(source), "-o", str(target)], check=True
        )
        self.library = ctypes.CDLL(str(target))
        self.library.multiply_add.restype = ctypes.c_double
        self.seed = np.linspace(0.4, 0.5, 16, dtype=np.float32)
        self.result = np.empty(16, np.float32)

    def flops(self) -> float:
        """Operations per second, the best of three times some 0.2 ms."""
        addresses = [ctypes.c_void_p(a.ctypes.data) for a in (self.seed, self.result)]
        rates = []
        for _ in range(3):
            start = time.perf_counter()
            done = self.library.multiply_add(ctypes.c_int64(100000), *addresses)
            rates.append(done / (time.perf_counter() - start))
        return max(rates)

    def bandwidth(self, floats: int) -> float:
        """Bytes per second when as much memory is read over and over."""
        floats = -(-floats // 64) * 64
        data = np.ones(floats + 16, np.float32)
        address = ctypes.c_void_p((data.ctypes.data + 63) // 64 * 64)
        count = ctypes.c_int64(floats)
        return (
            4
            * floats
            / min(seconds_of(lambda: self.library.read_all(count, address)) for _ in range(20))
        )


def seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def model(m: int, n: int, k: int, count: int) -> bytes:
    """`count` products, each of an input of its own, so that they are not merged, and of which only
    the last column is an output: what is written stays in the arena.
    """
    weights, nodes, inputs, outputs = [], [], [], []
    rng = np.random.default_rng(0)
    for i in range(count):
        weights.append(numpy_helper.from_array(rng.random((k, n), np.float32) - 0.5, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Slice", [f"p{i}", "first", "last", "axis"], [f"y{i}"]))
        inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [m, k]))
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [m, 1]))
    for name, value in (("first", n - 1), ("last", n), ("axis", 1)):
        weights.append(numpy_helper.from_array(np.array([value]), name))
    graph = helper.make_graph(nodes, "gemm", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 17)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return made.SerializeToString()


def onnxruntime_call(source: bytes, x: np.ndarray) -> Callable[[], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for given in session.get_inputs():
        binding.bind_cpu_input(given.name, x)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def measure(isa: str, peak: Peak, shape: tuple[int, int, int], rounds: int, cold: int) -> str:
    m, n, k = shape
    count = max(1, min(cold // (4 * n * k), (1 << 31) // (8 * n * k)))
    source = model(m, n, k, count)
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    feeds = {f"x{i}": x for i in range(count)}
    os.environ["Q7X2_ISA"] = isa
    load.cache_clear()
    session = Session(source, threads=1)
    theirs = onnxruntime_call(source, x)
    ours_s, theirs_s, flops = [], [], []
    for _ in range(rounds):
        theirs_s.append(seconds_of(theirs) / count)
        steps = zip(session.plan.steps, session.profile(feeds))
        ours_s.append(sum(ns for step, ns in steps if step.op == "gemm") * 1e-9 / count)
        flops.append(peak.flops())
    session.close()
    best = min(ours_s)
    rate, read, readable = 2 * m * n * k / best, 4 * k * n / best, peak.bandwidth(k * n * count)
    ratio = statistics.median(ours_s) / statistics.median(theirs_s)
    return (
        f"{isa:<8}{m:>6}{n:>6}{k:>6}{best * 1e6:>10.1f}{rate / 1e9:>9.1f}{rate / max(flops):>8.1%}"
        f"{read / 1e9:>9.1f}{read / readable:>7.0%}{min(theirs_s) * 1e6:>10.1f}{ratio:>7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="GEMM kernels against peak and onnxruntime.")
    parser.add_argument("shapes", nargs="*", help="m,n,k")
    parser.add_argument("--isa", action="append", help="default: every one that this machine has")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--model", action="append", choices=WEIGHTS, help="default: all")
    parser.add_argument("--cold", type=int, default=COLD_MB, metavar="MB", help="of weights")
    options = parser.parse_args()
    layers = dict.fromkeys(nk for name in options.model or WEIGHTS for nk in WEIGHTS[name])
    zoo = [(m, *nk) for m in ROWS for nk in layers]
    given = [tuple(map(int, text.split(","))) for text in options.shapes]
    shapes = [(m, n, k) for m, n, k in given or zoo]
    supported = [r.isa for r in load("").target.kernels if r.family == "gemm" and r.supported]
    print(
        f"{'isa':<8}{'m':>6}{'n':>6}{'k':>6}{'us':>10}{'GFLOP/s':>9}{'peak':>8}"
        f"{'b GB/s':>9}{'read':>7}{'ORT us':>10}{'ratio':>7}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for isa in options.isa or supported:
            peak = Peak(isa, Path(folder))
            for shape in shapes:
                print(measure(isa, peak, shape, options.rounds, options.cold << 20), flush=True)


if __name__ == "__main__":
    main()
