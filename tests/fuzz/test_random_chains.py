"""Random DAGs of elementwise ops: a chain has the bits of its ops, and means what they mean.

Values are of many shapes that broadcast, some of them views. Magnitudes stay small by construction
and only fed values are compared, so that a rounding error stays one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep import importer, passes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.session import Session

WIDTH = 8
SIZES = ({"B": 1, "S": 1}, {"B": 2, "S": 3}, {"B": 1, "S": 140}, {"B": 5, "S": 901})
FEEDS = {  # name: dtype, shape
    "x": (TensorProto.FLOAT, ("B", "S", WIDTH)),
    "y": (TensorProto.FLOAT, ("B", "S", WIDTH)),
    "row": (TensorProto.FLOAT, (WIDTH,)),
    "column": (TensorProto.FLOAT, ("B", "S", 1)),
    "table": (TensorProto.FLOAT, ("S", WIDTH)),
    "each": (TensorProto.FLOAT, ("B", 1, 1)),
    "turned": (TensorProto.FLOAT, ("B", WIDTH, "S")),
    "wide": (TensorProto.FLOAT, ("B", "S", 2 * WIDTH)),
    "i": (TensorProto.INT64, ("S", WIDTH)),
    "j": (TensorProto.INT64, ("B", "S", 1)),
}
UNARY = ("Tanh", "Sigmoid", "Neg", "Abs", "Relu", "Sin", "Cos", "Erf", "Softplus", "Swish", "Gelu")
KINDS = ("unary", "unary", "add", "add", "mul", "clip", "where", "where", "compare", "logic")
KINDS += ("integer", "cast", "reduce")


class Growth:
    """A model in the making: the values of each dtype that there are."""

    def __init__(self, draw: Any):
        self.draw = draw
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.floats = ["x", "y", "row", "column", "table", "each"]
        self.turned = {"turned"}  # and what is made of it: rows that some plans sum as columns
        self.floats += [self.emit("Transpose", "turned", perm=[0, 2, 1])]
        self.floats += [
            self.emit("Slice", "wide", *map(self.ints, ([k], [99], [2], [2]))) for k in (0, 1)
        ]
        self.bools: list[str] = []
        self.numbers = ["i", "j"]

    def emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attrs))
        if not self.turned.isdisjoint(inputs):
            self.turned.add(name)
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, values: list[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, x: float) -> str:
        return self.constant(np.array(x, np.float32))

    def any(self, values: list[str]) -> str:
        """Rather a late one: chains get long."""
        late = values[-4:]
        return self.draw(st.sampled_from(late + values))

    def grow(self) -> None:
        kind = self.draw(st.sampled_from(KINDS))
        if kind == "unary":
            op = self.draw(st.sampled_from(UNARY))
            self.floats.append(self.emit(op, self.any(self.floats)))
        elif kind == "add":
            op = self.draw(st.sampled_from(("Add", "Sub")))
            total = self.emit(op, self.any(self.floats), self.any(self.floats))
            self.floats.append(self.emit("Mul", total, self.number(0.5)))
        elif kind == "mul":
            small = self.emit("Tanh", self.any(self.floats))
            self.floats.append(self.emit("Mul", self.any(self.floats), small))
        elif kind == "clip":
            bounds = map(self.number, (-0.5, 0.75))
            self.floats.append(self.emit("Clip", self.any(self.floats), *bounds))
        elif kind == "compare":
            op = self.draw(st.sampled_from(("Less", "GreaterOrEqual", "Equal")))
            fed = self.draw(st.sampled_from((("x", "row"), ("column", "y"), ("i", "j"))))
            self.bools.append(self.emit(op, *fed))
        elif kind == "logic" and self.bools:
            op = self.draw(st.sampled_from(("And", "Or", "Xor")))
            both = self.any(self.bools), self.any(self.bools)
            self.bools.append(self.emit("Not", self.emit(op, *both)))
        elif kind == "where" and self.bools:
            both = self.any(self.floats), self.any(self.floats)
            self.floats.append(self.emit("Where", self.any(self.bools), *both))
        elif kind == "reduce":
            op = self.draw(st.sampled_from(("ReduceMean", "ReduceMax", "ReduceL2")))
            rows = [value for value in self.floats if value not in self.turned]
            tame = self.emit("Sigmoid", self.any(rows))
            self.floats.append(self.emit(op, tame, self.ints([-1]), keepdims=1))
        elif kind == "integer":
            op = self.draw(st.sampled_from(("Add", "Sub", "Max", "Mod")))
            self.numbers.append(self.emit(op, self.any(self.numbers), self.any(self.numbers)))
        elif kind == "cast" and self.bools:
            self.floats.append(self.emit("Cast", self.any(self.bools), to=TensorProto.FLOAT))
            self.numbers.append(self.emit("Cast", self.any(self.bools), to=TensorProto.INT64))
            self.bools.append(self.emit("Cast", self.any(self.numbers), to=TensorProto.BOOL))


@st.composite
def models(draw: Any) -> bytes:
    g = Growth(draw)
    for _ in range(draw(st.integers(2, 24))):
        g.grow()
    outputs = {g.floats[-1]: TensorProto.FLOAT, g.numbers[-1]: TensorProto.INT64}
    outputs.update(dict.fromkeys(g.bools[-1:], TensorProto.BOOL))
    if draw(st.booleans()):
        outputs[g.any(g.floats)] = TensorProto.FLOAT
    fed = [helper.make_tensor_value_info(name, *what) for name, what in FEEDS.items()]
    infos = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()]
    graph = helper.make_graph(g.nodes, "chains", fed, infos, g.initializers)
    opset = [helper.make_opsetid("", 24)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()


def feeds(sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    made = {}
    for name, (dtype, shape) in FEEDS.items():
        size = [sizes.get(dim, dim) for dim in shape]
        made[name] = (
            rng.integers(0, 6, size)
            if dtype == TensorProto.INT64
            else rng.integers(-8, 9, size).astype(np.float32) / 4
        )
    return made


@settings(max_examples=60, deadline=None)
@given(models())
def test_chains_have_the_bits_of_their_ops(model: bytes) -> None:
    graph = importer.read(model)
    passes.run_all(graph)
    plain = Session(model, threads=1, fusion=False)
    fused = [Session(model, threads=threads) for threads in (1, 2, 3, 8)]
    assert len(fused[0].plan.steps) <= len(plain.plan.steps)
    for sizes in SIZES:
        fed = feeds(sizes)
        wanted = plain.run(fed)
        for session in fused:
            for given_, expected in zip(session.run(fed), wanted):
                assert given_.tobytes() == expected.tobytes(), sizes
        for given_, true in zip(wanted, evaluate(graph, fed, np.float64)):
            np.testing.assert_allclose(given_, true, atol=1e-5)
    for session in (plain, *fused):
        session.close()
