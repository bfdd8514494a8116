"""The limits of this machine: multiply-adds and bytes read per second, by threads and by bytes.

Run: python bench roofline [--threads 1,2] [--isa avx2]. The loops are those of
peak.c, in Python's threads; best rates of several tries. Without a C compiler our own GEMM and
numpy's maximum stand in for them, which is said: these are lower bounds. Rows are appended to
bench/results/roofline.jsonl, where the other benches look for them.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np
import results

from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.progress import track

VECTORS = {  # per ISA: bytes of a vector, compiler flags
    "avx512": (64, ["-mavx512f", "-mavx512bw", "-mprefer-vector-width=512"]),
    "avx2": (32, ["-mavx2", "-mfma"]),
    "neon": (16, []),
    "scalar": (16, []),
}
EXTENSIONS = {  # of avx512, by their names in /proc/cpuinfo
    "avx512_vnni": ["-mavx512vnni"],
    "amx_int8": ["-mamx-tile", "-mamx-int8", "-mamx-bf16"],
}
RATES = ("f32", "i16", "i8", "amx_bf16", "amx_i8")  # what is multiplied: functions of peak.c
KINDS = {"u8": "i8", "u8 amx": "amx_i8"}  # what kernels of other names multiply, by dtypes and ISA
SIZES = [1 << bits for bits in range(14, 31, 2)]  # bytes that a thread reads: 16 KB to 1 GB
TRIES, SECONDS = 5, 0.02  # of one measurement; the best counts


@dataclass(frozen=True)
class Roofline:
    """What `threads` threads can do together. Units: operations and bytes per second.

    products: rate of multiply-adds by what is multiplied. reads: rate by the bytes that are read
    over and over, by all of them together. exact: measured by peak.c, not by what is at hand
    without a compiler.
    """

    isa: str
    threads: int
    products: Mapping[str, float]
    reads: Mapping[int, float]
    exact: bool = True

    @property
    def flops(self) -> float:
        """In float32."""
        return self.products["f32"]

    def bandwidth(self, size: float) -> float:
        """The rate at which `size` bytes can be read, from whatever cache or memory holds them."""
        sizes = sorted(self.reads)
        rates = [self.reads[each] for each in sizes]
        at = [math.log(each) for each in sizes]
        return float(np.interp(math.log(max(size, 1)), at, rates))

    def seconds(self, flops: float, size: float, kind: str = "f32") -> float:
        """The least time for so many operations on so many bytes."""
        return max(flops / self.products.get(kind, self.flops), size / self.bandwidth(size))

    def row(self) -> dict[str, Any]:
        return {
            "name": self.isa,
            "threads": self.threads,
            "products": dict(self.products),
            "reads": {str(size): rate for size, rate in self.reads.items()},
            "exact": self.exact,
        }

    @staticmethod
    def of(row: Mapping[str, Any]) -> Roofline:
        reads = {int(size): rate for size, rate in row["reads"].items()}
        return Roofline(row["name"], row["threads"], row["products"], reads, row["exact"])


class Compiled:
    """The loops of peak.c for an ISA. Raises: OSError where there is no C compiler."""

    exact = True

    def __init__(self, isa: str):
        size, flags = VECTORS[isa]
        more = [f for name in extensions() for f in EXTENSIONS[name]] if isa == "avx512" else []
        build = [os.environ.get("CC", "cc"), "-O3", "-fPIC", "-shared", "-ffp-contract=fast"]
        build += [f"-DVECTOR_BYTES={size}", *flags, str(Path(__file__).with_name("peak.c"))]
        with tempfile.TemporaryDirectory() as folder:
            target = str(Path(folder, "peak.so"))
            for given in (more, []):  # a compiler may be older than the CPU
                done = subprocess.run(
                    [*build, *given, "-o", target], capture_output=True, text=True
                )
                if done.returncode == 0:
                    break
            else:
                raise OSError(done.stderr)
            self.library = ctypes.CDLL(target)
        self.kinds = [kind for kind in RATES if hasattr(self.library, f"rate_{kind}")]
        for kind in self.kinds:
            getattr(self.library, f"rate_{kind}").restype = ctypes.c_double
        self.seed = np.linspace(0.4, 0.5, 16, dtype=np.float32)

    def compute(self, rounds: int, kind: str = "f32") -> float:
        """Returns how many operations that was; 0 where the system does not allow them."""
        result = np.empty(16, np.float32)
        addresses = [ctypes.c_void_p(array.ctypes.data) for array in (self.seed, result)]
        rate = getattr(self.library, f"rate_{kind}")
        return float(rate(ctypes.c_int64(1000 * rounds), *addresses))

    def read(self, data: np.ndarray, times: int) -> None:
        address, count = ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(data.size)
        self.library.read_all(count, address, ctypes.c_int64(times))


class StandIn:
    """What there is without a C compiler: the kernels of the library, and numpy."""

    exact = False
    kinds = ("f32",)

    def __init__(self, isa: str):
        from q7x2_ep.ir.text import parse
        from q7x2_ep.passes import infer

        text = "graph(%a: f32[448,512])\n %w = f32[512,512]\n %c = MatMul(%a, %w)\n return %c\n"
        self.graph = parse(text)
        infer.run(self.graph)
        self.isa, self.local = isa, threading.local()
        self.a = np.ones((448, 512), np.float32)

    def compute(self, rounds: int, kind: str = "f32") -> float:
        from q7x2_ep.backend.program import Compiler

        if not hasattr(self.local, "run"):  # one thread each: contexts of one session share a pool
            compiler = Compiler(load(self.isa), 1, lambda graph: None)
            program = compiler.planned(self.graph.clone())
            self.local.run = lambda: program.run([self.a], {})
        for _ in range(rounds):
            self.local.run()
        return 2.0 * 448 * 512 * 512 * rounds

    def read(self, data: np.ndarray, times: int) -> None:
        for _ in range(times):
            data.max()


def vectors(isa: str) -> str:
    """The one of VECTORS whose registers an ISA has."""
    return next((name for name in VECTORS if isa.startswith(name)), "avx512")


def kind_of(kernel: Any) -> str:
    """What a kernel multiplies, as one of RATES."""
    return KINDS.get(f"{kernel.dtypes} {kernel.isa}") or KINDS.get(kernel.dtypes, kernel.dtypes)


@cache
def probe(isa: str) -> Any:
    """The best way to measure that this machine has."""
    isa = vectors(isa)
    try:
        return Compiled(isa)
    except OSError as error:
        print(f"no C compiler ({error}): limits are those of our own GEMM and of numpy.max")
        return StandIn(isa)


def flops(isa: str, threads: int = 1, kind: str = "f32", tries: int = TRIES) -> float:
    """Operations per second, in multiply-adds of a kind."""
    compute = probe(isa).compute
    rounds = _repeats(lambda n: compute(n, kind))
    done = compute(rounds, kind) * threads
    return max(done / _together(lambda i: compute(rounds, kind), threads) for _ in range(tries))


def bandwidth(isa: str, size: int, threads: int = 1) -> float:
    """Bytes per second when each thread reads `size` bytes of its own over and over."""
    read = probe(isa).read
    floats = max(size // 4 // 256, 1) * 256
    data = [_aligned(floats) for _ in range(threads)]
    times = _repeats(lambda n: read(data[0], n))
    moved = 4.0 * floats * times * threads
    return max(moved / _together(lambda i: read(data[i], times), threads) for _ in range(TRIES))


def measure(isa: str, threads: int = 1) -> Roofline:
    sizes = [size for size in SIZES if size * threads <= _memory() // 4]
    reads = {size * threads: bandwidth(isa, size, threads) for size in sizes}
    products = {kind: flops(isa, threads, kind) for kind in probe(isa).kinds}
    products = {kind: rate for kind, rate in products.items() if rate}
    return Roofline(isa, threads, products, reads, probe(isa).exact)


def known(isa: str, threads: int) -> Roofline:
    """The best rates that were ever measured on this machine, as others only slow it; else now."""
    isa = vectors(isa)
    rows = results.here("roofline", isa, threads)
    if not rows:
        rows = [measure(isa, threads).row()]
        results.write("roofline", rows)
    found = [Roofline.of(row) for row in rows]
    exact = [each for each in found if each.exact] or found
    return Roofline(
        isa,
        threads,
        {kind: max(e.products.get(kind, 0) for e in exact) for kind in exact[-1].products},
        {size: max(e.reads.get(size, 0) for e in exact) for size in exact[-1].reads},
        exact[-1].exact,
    )


def _aligned(floats: int) -> np.ndarray:
    room = np.ones(floats + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    return room[start : start + floats]


def _repeats(call: Callable[[int], Any]) -> int:
    """How often makes some SECONDS."""
    call(1)
    count = 1
    while True:
        start = time.perf_counter()
        call(count)
        seconds = time.perf_counter() - start
        if seconds >= SECONDS / 2:
            return max(1, round(count * SECONDS / seconds))
        count *= 2


def _together(call: Callable[[int], Any], threads: int) -> float:
    """Seconds from the start of all to the end of the last."""
    if threads == 1:
        start = time.perf_counter()
        call(0)
        return time.perf_counter() - start
    barrier, ends = threading.Barrier(threads + 1), [0.0] * threads

    def body(i: int) -> None:
        barrier.wait()
        call(i)
        ends[i] = time.perf_counter()

    workers = [threading.Thread(target=body, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return max(ends) - start


def _memory() -> int:
    """Bytes that can be had."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 << 30


def extensions() -> list[str]:
    """Those of EXTENSIONS that this CPU has, where Linux tells."""
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    return [name for name in EXTENSIONS if name in words]


def cache_bytes(level: int) -> Optional[int]:
    """Of one core, where Linux tells."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        kind, found = ((index / name).read_text().strip() for name in ("type", "level"))
        if found == str(level) and kind != "Instruction":
            return int((index / "size").read_text().strip().rstrip("K")) << 10
    return None


def table(rooflines: list[Roofline]) -> str:
    """A line each: rates of all threads, and how many operations a byte of memory pays for."""
    levels = [cache_bytes(1) or 32 << 10, cache_bytes(2) or 1 << 20]
    lines = [
        f"{'isa':<8}{'threads':>8}{'FMA GFLOP/s':>13}{'L1 GB/s':>10}{'L2':>8}{'16 MB':>8}"
        f"{'memory':>8}{'FLOP/byte':>11}  other products"
    ]
    for each in rooflines:
        at = [each.bandwidth(size / 2 * each.threads) for size in levels]
        at += [each.bandwidth(each.threads << 24), each.bandwidth(max(each.reads))]
        rates = "".join(f"{rate / 1e9:>{width}.1f}" for rate, width in zip(at, (10, 8, 8, 8)))
        lines.append(
            f"{each.isa:<8}{each.threads:>8}{each.flops / 1e9:>13.1f}{rates}"
            f"{each.flops / at[-1]:>11.1f}  "
            + " ".join(f"{k} {rate / 1e9:.0f}" for k, rate in each.products.items() if k != "f32")
            + ("" if each.exact else "lower bounds")
        )
    return "\n".join(lines)


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="FMA peak and read bandwidth per thread count.")
    parser.add_argument("--threads", type=results.numbers, default=[1, default_threads()])
    parser.add_argument("--isa", action="append", help="default: every one that this machine has")
    options = parser.parse_args(arguments)
    supported = {row.isa for row in load("").target.kernels if row.supported}
    isas = options.isa or [isa for isa in VECTORS if isa in supported]
    jobs = [(isa, threads) for isa in isas for threads in sorted({*options.threads})]
    rooflines = [measure(*job) for job in track(jobs, "roofline")]
    results.write("roofline", [each.row() for each in rooflines])
    print(table(rooflines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
