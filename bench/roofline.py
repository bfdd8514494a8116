"""The limits of this machine: multiply-adds and bytes per second, by threads and by bytes.

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
import work

from q7x2_ep import usage
from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.progress import track

VECTORS = {  # per ISA: bytes of a vector, compiler flags
    "avx512": (64, ["-mavx512f", "-mavx512bw", "-mprefer-vector-width=512"]),
    "avx2": (32, ["-mavx2", "-mfma"]),
    "neon": (16, []),
    "scalar": (16, []),
}
EXTENSIONS = {  # per ISA, by their names in /proc/cpuinfo; of -march the last counts
    "avx512": {
        "avx512_vnni": ["-mavx512vnni"],
        "amx_int8": ["-mamx-tile", "-mamx-int8", "-mamx-bf16"],
    },
    "neon": {
        "asimddp": ["-march=armv8.2-a+dotprod"],
        "i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
    },
}
RATES = ("f32", "i16", "i8", "amx_bf16", "amx_i8")  # what is multiplied: functions of peak.c
KINDS = {  # what kernels of other names multiply, by dtypes, or those and the ISA
    "any": "f32",
    "u8": "i8",
    "u8x2": "i8",
    "u8 amx": "amx_i8",
    "f32 amx": "amx_f32",
}
SIZES = [1 << bits for bits in range(14, 31, 2)]  # bytes that a thread reads: 16 KB to 1 GB
TRIES, SECONDS = 5, 0.02  # of one measurement; the best counts


@dataclass(frozen=True)
class Roofline:
    """What `threads` threads can do together. Units: operations and bytes per second.

    products: rate of multiply-adds by what is multiplied. reads: rate by the bytes that are read
    over and over, by all of them together; copies: rate of reading and writing as much, by the sum
    of both. exact: measured by peak.c, not by what is at hand without a
    compiler.
    """

    isa: str
    threads: int
    products: Mapping[str, float]
    reads: Mapping[int, float]
    copies: Mapping[int, float]
    exact: bool = True

    @property
    def flops(self) -> float:
        """In float32."""
        return self.products["f32"]

    def bandwidth(self, size: float, copying: bool = False) -> float:
        """The rate at which `size` bytes can be read, or half of them copied to the other half,
        from whatever cache or memory holds them.
        """
        found = self.copies if copying else self.reads
        sizes = sorted(found)
        rates = [found[each] for each in sizes]
        at = [math.log(each) for each in sizes]
        return float(np.interp(math.log(max(size, 1)), at, rates))

    def seconds(self, each: work.Work, kind: str = "f32", constants: float = 0.0) -> float:
        """The least time for it: what is written goes with as much that is read. constants: bytes
        of all that are read between two runs of it; by default it has its own in a cache.
        """
        apart = each.constant if constants else 0.0
        size = each.bytes - apart
        pairs = 2 * min(each.written, size - each.written)
        moving = pairs / self.bandwidth(size, copying=True)
        moving += (size - pairs) / self.bandwidth(size) + apart / self.bandwidth(constants)
        return max(each.flops / self.rate(kind), moving)

    def rate(self, kind: str) -> float:
        """Of multiply-adds; AMX makes six of its own for one of floats, where that is faster."""
        if kind == "amx_f32":
            return max(self.flops, self.products.get("amx_bf16", 0.0) / 6)
        if kind == "f64":  # half as many to a vector
            return self.flops / 2
        return self.products.get(kind, self.flops)

    def row(self) -> dict[str, Any]:
        return {
            "name": self.isa,
            "threads": self.threads,
            "products": dict(self.products),
            "reads": {str(size): rate for size, rate in self.reads.items()},
            "copies": {str(size): rate for size, rate in self.copies.items()},
            "exact": self.exact,
        }

    @staticmethod
    def of(row: Mapping[str, Any]) -> Roofline:
        reads, copies = (
            {int(size): rate for size, rate in row[what].items()} for what in ("reads", "copies")
        )
        return Roofline(row["name"], row["threads"], row["products"], reads, copies, row["exact"])


class Compiled:
    """The loops of peak.c for an ISA. Raises: OSError where there is no C compiler."""

    exact = True

    def __init__(self, isa: str):
        size, flags = VECTORS[isa]
        more = extensions(isa)
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

    def copy(self, data: np.ndarray, times: int) -> None:
        half = data.size // 2
        addresses = [ctypes.c_void_p(part.ctypes.data) for part in (data, data[half:])]
        self.library.copy_all(ctypes.c_int64(half), *addresses, ctypes.c_int64(times))


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

    def copy(self, data: np.ndarray, times: int) -> None:
        half = data.size // 2
        for _ in range(times):
            np.copyto(data[half : 2 * half], data[:half])


def vectors(isa: str) -> str:
    """The one of VECTORS whose registers an ISA has."""
    return next((name for name in VECTORS if isa.startswith(name)), "avx512")


def kind_of(kernel: Any) -> str:
    """What a kernel multiplies: of RATES, or amx_f32. Steps without a kernel do so in float32."""
    if kernel is None:
        return "f32"
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
    rounds, done = _calibrated(isa, kind)
    compute = probe(isa).compute
    seconds = [_together(lambda i: compute(rounds, kind), threads) for _ in range(tries)]
    return done * threads / min(seconds)


@cache
def _calibrated(isa: str, kind: str) -> tuple[int, float]:
    """Rounds that take some SECONDS, and the operations of so many."""
    compute = probe(isa).compute
    rounds = _repeats(lambda n: compute(n, kind))
    return rounds, compute(rounds, kind)


def bandwidth(
    isa: str, size: int, threads: int = 1, tries: int = TRIES, copying: bool = False
) -> float:
    """Bytes per second when each thread reads `size` bytes of its own over and over, or copies one
    half of them to the other.
    """
    go = probe(isa).copy if copying else probe(isa).read
    floats = max(size // 4 // 512, 1) * 512
    data = [_memory_of(i, floats) for i in range(threads)]
    times = _repeats(lambda n: go(data[0], n))
    seconds = [_together(lambda i: go(data[i], times), threads) for _ in range(tries)]
    return 4.0 * floats * times * threads / min(seconds)


def measure(isa: str, threads: int = 1) -> Roofline:
    sizes = [size for size in SIZES if size * threads <= _memory() // 4]
    reads, copies = (
        {size * threads: bandwidth(isa, size, threads, TRIES, copying) for size in sizes}
        for copying in (False, True)
    )
    products = {kind: flops(isa, threads, kind) for kind in probe(isa).kinds}
    products = {kind: rate for kind, rate in products.items() if rate}
    return Roofline(isa, threads, products, reads, copies, probe(isa).exact)


def known(isa: str, threads: int) -> Roofline:
    """The best rates that were ever measured on this machine, as others only slow it; else now."""
    isa = vectors(isa)
    rows = [row for row in results.here("roofline", isa, threads) if "copies" in row]
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
        {size: max(e.copies.get(size, 0) for e in exact) for size in exact[-1].copies},
        exact[-1].exact,
    )


_rooms: dict[int, np.ndarray] = {}


def _memory_of(thread: int, floats: int) -> np.ndarray:
    """What a thread reads: written once, and kept for later measurements."""
    if thread not in _rooms or _rooms[thread].size < floats:
        _rooms[thread] = aligned(floats * 4).view(np.float32)
    return _rooms[thread][:floats]


def aligned(size: int) -> np.ndarray:
    """So many zero bytes, from the beginning of a line of cache on, that are memory already."""
    room = np.empty(size + 64, np.uint8)
    room.fill(0)
    start = -room.ctypes.data % 64
    return room[start : start + size]


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


def extensions(isa: str) -> list[str]:
    """Compiler flags of those EXTENSIONS that this CPU has, where Linux tells."""
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    rows = EXTENSIONS.get(isa, {}).items()
    return [flag for name, flags in rows if name in words for flag in flags]


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
        f"{'memory':>8}{'copies: L1':>12}{'L2':>6}{'memory':>8}{'FLOP/byte':>11}  other products"
    ]
    for each in rooflines:
        memory = max(each.reads)
        half = [size / 2 * each.threads for size in levels]
        at = [each.bandwidth(size) for size in (*half, each.threads << 24, memory)]
        copied = [each.bandwidth(size, copying=True) for size in (*half, memory)]
        widths = (10, 8, 8, 8, 12, 6, 8)
        rates = "".join(f"{rate / 1e9:>{w}.1f}" for rate, w in zip([*at, *copied], widths))
        lines.append(
            f"{each.isa:<8}{each.threads:>8}{each.flops / 1e9:>13.1f}{rates}"
            f"{each.flops / at[3]:>11.1f}  "
            + " ".join(f"{k} {rate / 1e9:.0f}" for k, rate in each.products.items() if k != "f32")
            + ("" if each.exact else "lower bounds")
        )
    return "\n".join(lines)


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="FMA peak and read bandwidth per thread count.")
    several = "one or several, like 1,8 (default %(default)s)"
    usual = [1, default_threads()]
    parser.add_argument("--threads", type=usage.counts, default=usual, help=several)
    parser.add_argument(
        "--isa", action="append", help="may be repeated; default: every one that this machine has"
    )
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
