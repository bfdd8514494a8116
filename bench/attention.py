"""Attention alone: how far from the FMA peak, how much memory, and what PyTorch takes.

Run: python bench attention [--sequence 512,1024,2048,4096,8192] [--threads 1,2] [--causal].
12 heads of 64 channels, q, k, v and y as a model's products take them, (1, S, 12, 64) each. The
peak is measured again in every turn; the engines take turns. `memory` is what a run holds beside
feeds and outputs: proportional to S, as scores are made a block at a time. Torch is
scaled_dot_product_attention on the same views. Rows go to bench/results/attention.jsonl.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from typing import Callable, Optional

import kernels
import numpy as np
import results
import roofline
import shapes

from q7x2_ep import usage
from q7x2_ep.backend.call import Call
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.backend.program import Compiler
from q7x2_ep.compare import interleave
from q7x2_ep.progress import track

TEXT = """graph(%q: f32[1,{s},12,64], %k: f32[1,{s},12,64], %v: f32[1,{s},12,64])
  %a = Transpose(%q) {{perm=[0, 2, 1, 3]}}
  %b = Transpose(%k) {{perm=[0, 2, 1, 3]}}
  %c = Transpose(%v) {{perm=[0, 2, 1, 3]}}
  %y = q7::Attention(%a, %b, %c) {{causal={causal}, fill=-inf, scale=0.125, softcap=0.0, \
window=[-1, -1], zero_masked_rows=1, zero_nan_rows=1}}
  %z = Transpose(%y) {{perm=[0, 2, 1, 3]}}
  return %z
"""


def main(arguments: Optional[list[str]] = None) -> int:
    options = _options(arguments)
    has_torch = importlib.util.find_spec("torch") is not None
    torch_title = f"{'torch':>10}{'ratio':>7}" * has_torch
    print(f"{'S':>6}{'thr':>4}{'ms':>10}{'+-%':>5}{'GFLOP/s':>9}{'peak':>6}{'memory KB':>11}"
          f"{torch_title}")  # fmt: skip
    jobs = [(s, threads) for threads in options.threads for s in options.sequence]
    for s, threads in track(jobs, "attention"):
        row = measure(s, threads, options.causal, options.runs, has_torch)
        results.write("attention", [row])
        low, median, high = row["ms"][row["ours"]]
        cells = f"{s:>6}{threads:>4}{median:>10.2f}{50 * (high - low) / median:>5.0f}"
        cells += f"{row['flops'] / median / 1e6:>9.1f}{row['limit']:>6.0%}{row['bytes'] >> 10:>11}"
        if has_torch:
            theirs = row["ms"]["torch"][1]
            cells += f"{theirs:>10.2f}{median / theirs:>7.2f}"
        print(cells, flush=True)
    return 0


def measure(
    s: int, threads: int, causal: bool, runs: Optional[int], has_torch: bool
) -> results.Row:
    shape = shapes.Shape("attention", TEXT.format(s=s, causal=int(causal)), ())
    feeds = kernels.feed(shape)
    plan, _ = shapes.planned(shape.graph)
    flops = shapes.work_of(plan, threads).flops
    library = load()
    program = Compiler(library, threads, lambda graph: None).planned(shape.graph)
    call = Call([kernels.like(output) for output in program.run(feeds, {})])
    peaks: list[float] = []
    calls: dict[str, Callable[[], object]] = {
        "q7x2_ep": lambda: program.run(feeds, {}, call),
        "peak": lambda: peaks.append(roofline.flops(library.target.isa, threads, "f32", 1)),
    }
    if has_torch:
        calls["torch"] = sdpa(feeds, threads, causal)
    times = dict(zip(calls, interleave(list(calls.values()), runs)))
    del times["peak"]
    median = float(np.median(times["q7x2_ep"]))
    return {
        "name": f"12 heads of 64, {s}{' causal' * causal}",
        "threads": threads,
        "ours": "q7x2_ep",
        "ms": {name: results.quartiles(each) for name, each in times.items()},
        "peers": ["torch"] * has_torch,
        "flops": flops,
        "limit": round(flops / (median / 1000) / max(peaks), 4),
        "bytes": sum(each["arena_bytes"] for each in program.statistics({})),
    }


def sdpa(feeds: Sequence[np.ndarray], threads: int, causal: bool) -> Callable[[], object]:
    import torch

    torch.set_num_threads(threads)
    q, k, v = (torch.from_numpy(array).transpose(1, 2) for array in feeds)

    def call() -> object:
        with torch.inference_mode():
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return y.transpose(1, 2).contiguous()

    return call


def _options(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Attention alone: peak, memory, PyTorch.")
    lengths = [512, 1024, 2048, 4096, 8192]
    several = "one or several, like 1,8 (default %(default)s)"
    parser.add_argument("--sequence", type=usage.counts, default=lengths, help=several)
    parser.add_argument("--threads", type=usage.counts, default=[1, 2], help=several)
    parser.add_argument("--causal", action="store_true", help="no query sees a later key")
    parser.add_argument("--runs", type=int, help="of each engine (default: what 1.5 s allow)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
