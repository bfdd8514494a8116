"""Time from ONNX bytes to a plan, by stage: python bench compile [MODEL.onnx ..] [--nodes N,M].

Times are CPU times, the best of several. `optimise` is all between reading and planning; the last
column shows whether it grows faster than the nodes. Without models, decoders of about N nodes are
made up of the ops that exporters write: RMSNorm, RoPE, a causal mask, SwiGLU, every size by Shape
and Gather.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from typing import Any, Optional

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep import fuse, importer, passes, usage
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.plan.build import build

HEADS, DEPTH = 2, 8
WIDTH, HIDDEN = HEADS * DEPTH, 24
RUNS = 5


def decoder(nodes: int) -> bytes:
    """A model of about so many nodes, in the spelling of an exporter at opset 17."""
    maker = _Maker()
    x, layer = "x", 0
    while len(maker.nodes) < nodes:
        x = maker.layer(x, f"/layer.{layer}/")
        layer += 1
    maker.nodes.append(helper.make_node("Identity", [x], ["y"]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", WIDTH])
        for name in "xy"
    ]
    graph = helper.make_graph(
        maker.nodes, "decoder", infos[:1], infos[1:], list(maker.constants.values())
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


class _Maker:
    """Nodes by op type, with constants made of numbers and arrays on the way."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.prefix = ""
        self.random = np.random.default_rng(0)

    def __getattr__(self, op: str) -> Any:
        def make(*inputs: Any, **attrs: Any) -> str:
            name = f"{self.prefix}{op}_{len(self.nodes)}"
            names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
            self.nodes.append(helper.make_node(op, names, [name], name, **attrs))
            return name

        return make

    def constant(self, x: Any) -> str:
        array = np.asarray(x, np.float32 if isinstance(x, float) else None)
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, *shape: int) -> np.ndarray:
        return (self.random.standard_normal(shape) / 8).astype(np.float32)

    def ints(self, *values: int) -> np.ndarray:
        return np.array(values, np.int64)

    def size(self, x: str, axis: int) -> str:
        """One dim as a vector: Shape, Gather, Unsqueeze."""
        dim = self.Gather(self.Shape(x), np.int64(axis), axis=0)
        return self.Unsqueeze(dim, self.ints(0))

    def norm(self, x: str) -> str:
        mean = self.ReduceMean(self.Pow(x, 2.0), axes=[-1])
        root = self.Sqrt(self.Add(mean, 1e-6))
        return self.Mul(self.weight(WIDTH), self.Mul(x, self.Div(1.0, root)))

    def heads(self, x: str) -> str:
        rows = self.MatMul(x, self.weight(WIDTH, WIDTH))
        dims = [self.size(x, 0), self.size(x, 1), self.ints(HEADS), self.ints(DEPTH)]
        return self.Transpose(self.Reshape(rows, self.Concat(*dims, axis=0)), perm=[0, 2, 1, 3])

    def rope(self, x: str, cosine: str, sine: str) -> str:
        half, end = self.ints(DEPTH // 2), self.ints(np.iinfo(np.int64).max)
        low = self.Slice(x, self.ints(0), half, self.ints(3), self.ints(1))
        high = self.Slice(x, half, end, self.ints(3), self.ints(1))
        rotated = self.Concat(self.Neg(high), low, axis=-1)
        return self.Add(self.Mul(x, cosine), self.Mul(rotated, sine))

    def layer(self, x: str, prefix: str) -> str:
        self.prefix = prefix
        normed = self.norm(x)
        q, k, v = (self.heads(normed) for _ in range(3))
        length = self.Squeeze(self.size(x, 1), self.ints(0))
        positions = self.Cast(self.Range(np.int64(0), length, np.int64(1)), to=TensorProto.FLOAT)
        angles = self.Mul(self.Unsqueeze(positions, self.ints(1)), self.weight(1, DEPTH // 2))
        table = self.Concat(angles, angles, axis=-1)
        q, k = (self.rope(x, self.Cos(table), self.Sin(table)) for x in (q, k))
        scores = self.MatMul(q, self.Transpose(k, perm=[0, 1, 3, 2]))
        square = self.Concat(self.size(x, 1), self.size(x, 1), axis=0)
        ones = self.ConstantOfShape(square, value=numpy_helper.from_array(np.ones(1, np.float32)))
        mask = self.Mul(self.Trilu(ones, np.int64(1), upper=1), float(np.finfo(np.float32).min))
        p = self.Softmax(self.Add(self.Div(scores, DEPTH**0.5), mask), axis=-1)
        rows = self.Transpose(self.MatMul(p, v), perm=[0, 2, 1, 3])
        dims = self.Concat(self.size(x, 0), self.size(x, 1), self.ints(WIDTH), axis=0)
        attended = self.MatMul(self.Reshape(rows, dims), self.weight(WIDTH, WIDTH))
        x = self.Add(x, attended)
        normed = self.norm(x)
        gate = self.MatMul(normed, self.weight(WIDTH, HIDDEN))
        up = self.MatMul(normed, self.weight(WIDTH, HIDDEN))
        hidden = self.Mul(self.Mul(gate, self.Sigmoid(gate)), up)
        return self.Add(x, self.MatMul(hidden, self.weight(HIDDEN, WIDTH)))


def stages(model: Any) -> tuple[list[float], int]:
    """Milliseconds of read, passes, fuse, passes again, plan; and the number of nodes read."""
    target = load().target
    times = [time.process_time()]
    graph = importer.read(model)
    nodes = len(graph.nodes)
    times.append(time.process_time())
    for step in (passes.run_all, fuse.fuse, passes.run_all, lambda graph: build(graph, target)):
        step(graph)
        times.append(time.process_time())
    return [1000 * (end - start) for start, end in zip(times, times[1:])], nodes


def main(arguments: Optional[list[str]] = None) -> None:
    parser = argparse.ArgumentParser(description="Time from ONNX to a plan.")
    parser.add_argument("models", nargs="*", type=usage.source)
    parser.add_argument("--nodes", default="2500,10000", help="of made-up models")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args(arguments)
    models = [(path.stem, path) for path in options.models]
    if not models:
        models = [(f"decoder {n}", decoder(int(n))) for n in options.nodes.split(",")]
    print(
        f"{'model':<28}{'nodes':>7}{'read':>8}{'passes':>8}{'fuse':>8}{'tidy':>8}{'plan':>8}"
        f"{'optimise':>10}{'us/node':>9}"
    )
    for name, model in models:
        stages(model)  # imports, and the library
        runs = [stages(model) for _ in range(RUNS)]
        columns = [min(column) for column in zip(*(times for times, _ in runs))]
        optimise, nodes = sum(columns[1:4]), runs[0][1]
        shown = "".join(f"{ms:>8.1f}" for ms in columns)
        print(f"{name:<28}{nodes:>7}{shown}{optimise:>10.1f}{1000 * optimise / nodes:>9.1f}")
        if options.profile:
            with cProfile.Profile() as profile:
                stages(model)
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
