"""Chains of elementwise ops: one step against a step per op, and against onnxruntime.

Columns: median microseconds of a run of each engine (in turn, entry from Python included), the best
time of our steps alone, fused and not, and the bytes of inputs and output over the former.

Usage: python bench/chains.py [--threads N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any, Callable

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep.session import Session

WIDTH = 64
ROUNDS = {1_000: 300, 100_000: 60, 4_000_000: 7}  # elements: rounds
LENGTHS = (4, 10)  # ops
ARITHMETIC = ("Mul", "Add", "Sub", "Max")
FUNCTIONS = ("Mul", "Tanh", "Add", "Sigmoid", "Mul", "Exp")
KINDS = {  # what the ops read beside the value before: another tensor, a row and a column, numbers
    "dense": (ARITHMETIC, ("y",)),
    "broadcast": (ARITHMETIC, ("column", "row")),
    "functions": (FUNCTIONS, ("number",)),
}
INPUTS = {"x": ("N", WIDTH), "y": ("N", WIDTH), "column": ("N", 1)}
CONSTANTS = {"row": np.linspace(1, 2, WIDTH, dtype=np.float32), "number": np.float32(0.3)}


def model(kind: str, length: int) -> bytes:
    ops, others = KINDS[kind]
    nodes: list[Any] = []
    for i in range(length):
        op = ops[i % len(ops)]
        operands = [nodes[-1].output[0] if nodes else "x"]
        operands += [others[i % len(others)]] if op in ARITHMETIC else []
        nodes.append(helper.make_node(op, operands, [f"v{i}"]))
    used = {name for node in nodes for name in node.input}
    fed = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in INPUTS.items()
        if name in used
    ]
    constants = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in CONSTANTS.items()
        if name in used
    ]
    y = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, kind, fed, [y], constants)
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def medians(runs: list[Callable[[], Any]], rounds: int) -> list[float]:
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 2):
        for run, into in zip(runs, times):
            start = time.perf_counter()
            run()
            into.append(time.perf_counter() - start)
    return [statistics.median(each[2:]) * 1e6 for each in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    print(f"{'chain':<12}{'elements':>9}{'fused':>10}{'unfused':>10}{'theirs':>10}", end="")
    print(f"{'steps':>10}{'unfused':>10}{'GB/s':>7}")
    for kind, length in ((kind, length) for kind in KINDS for length in LENGTHS):
        data = model(kind, length)
        fused, plain = Session(data, threads), Session(data, threads, fusion=False)
        theirs = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for size, rounds in ROUNDS.items():
            rng = np.random.default_rng(0)
            feeds = {
                spec.name: rng.standard_normal(
                    (size // WIDTH, WIDTH if spec.shape[1] == WIDTH else 1), dtype=np.float32
                )
                for spec in fused.inputs
            }
            runs = (partial(fused.run, feeds), partial(plain.run, feeds))
            row = medians([*runs, partial(theirs.run, None, feeds)], rounds)
            for session in (fused, plain):
                row.append(min(sum(session.profile(feeds)) for _ in range(rounds)) / 1e3)
            moved = sum(array.nbytes for array in feeds.values()) + feeds["x"].nbytes
            cells = "".join(f"{each:>10.1f}" for each in row)
            print(f"{kind} {length:<{11 - len(kind)}}{size:>9}{cells}{moved / row[3] / 1e3:>7.1f}")


if __name__ == "__main__":
    main()
