"""Models that are nearly what exporters write: a few random changes each, against the oracle.

A fusion is right about a model and wrong about its neighbours where a guard is missing: another
constant, axis or operand order, an inner value that somebody else reads. A change may well make a
model that is invalid, or that says nothing sensible; then it must be refused with an error of ours,
or mean the same fused, unfused and in float64.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Optional

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep import importer
from q7x2_ep.backend.numpy import Evaluation, rms, rms_error
from q7x2_ep.feeds import random_feeds
from q7x2_ep.ir.core import Graph
from q7x2_ep.passes import fold
from tests.models import files

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

MODELS = files.select(cache=True)
SIZES = ((1, 3), (2, 5), (3, 1))  # batch, length
MOST_CHANGES = 3
BOUND = 1e-3  # of the output's scale: a wrong formula is far beyond it, rounding far below,
FACTOR = 30.0  # but where the model is ill-conditioned: of numpy's own error in float32, then
SIBLINGS = (
    ("Add", "Mul", "Sub", "Div"),
    ("Erf", "Tanh", "Sigmoid", "Sin", "Cos"),
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    ("And", "Or"),
    ("Sqrt", "Reciprocal", "Neg", "Abs"),
)


class Mutant:
    """A model under change. types: of the values that have a known one, in order of making."""

    def __init__(self, model: Any, seed: int):
        self.random = random.Random(seed)
        self.model = model
        self.graph = model.graph
        typed = onnx.shape_inference.infer_shapes(model).graph
        self.types = {v.name: v.type for v in (*typed.input, *typed.value_info, *typed.output)}
        self.changes: list[str] = []

    def change(self) -> None:
        while not (done := self.random.choice(CHANGES)(self)):
            pass
        self.changes.append(done)

    def node(self, suits: Callable[[Any], bool] = lambda node: True) -> Optional[Any]:
        nodes = [node for node in self.graph.node if suits(node)]
        return self.random.choice(nodes) if nodes else None

    def made_before(self, node: Any) -> list[str]:
        """The values that a node may read."""
        names = [value.name for value in self.graph.input]
        for each in self.graph.node:
            if each is node:
                break
            names += [name for name in each.output if name]
        return names

    def key(self, name: str) -> Optional[bytes]:
        """What two values have in common that may stand for each other."""
        kind = self.types.get(name)
        return None if kind is None else kind.SerializeToString(deterministic=True)

    def add_output(self, name: str) -> bool:
        if name not in self.types or any(output.name == name for output in self.graph.output):
            return False
        self.graph.output.append(onnx.ValueInfoProto(name=name, type=self.types[name]))
        return True


def show_inner_value(m: Mutant) -> str:
    node = m.node()
    shown = m.add_output(m.random.choice(node.output))
    return f"output of {node.name} shown" if shown else ""


def change_number(m: Mutant) -> str:
    """An initializer or Constant of few elements."""
    few = [t for t in m.graph.initializer if 0 < np.prod(t.dims) <= 4 and t.dims != [0]]
    few += [
        a.t
        for node in m.graph.node
        if node.op_type == "Constant"
        for a in node.attribute
        if a.name == "value" and 0 < np.prod(a.t.dims) <= 4
    ]
    if not few:
        return ""
    tensor = m.random.choice(few)
    array = numpy_helper.to_array(tensor).copy()
    place = m.random.randrange(array.size)
    old = array.flat[place]
    if array.dtype.kind == "f":
        array.flat[place] = m.random.choice((old / 2 + 0.25, -old, 0.0, 1.0, 2.0, -np.inf))
    elif array.dtype.kind == "i":
        array.flat[place] = old + m.random.choice((-2, -1, 1, 2))
    else:
        array.flat[place] = not old
    if array.flat[place] == old:
        return ""
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{tensor.name or 'a Constant'} {old} -> {array.flat[place]}"


def change_attribute(m: Mutant) -> str:
    numeric = (onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT)
    node = m.node(lambda node: any(a.type in numeric and a.name != "to" for a in node.attribute))
    if node is None:
        return ""
    attribute = m.random.choice([a for a in node.attribute if a.type in numeric and a.name != "to"])
    old = helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i += m.random.choice((-1, 1))
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = m.random.choice((0.0, 1.0, 2.0, attribute.f * 1.5 + 0.25))
    else:
        values = list(attribute.ints)
        m.random.shuffle(values)
        attribute.ints[:] = values
    new = helper.get_attribute_value(attribute)
    return f"{node.name} {attribute.name} {old} -> {new}" if new != old else ""


def swap_operands(m: Mutant) -> str:
    node = m.node(lambda node: len(set(node.input)) > 1)
    if node is None:
        return ""
    i, j = m.random.sample(range(len(node.input)), 2)
    if node.input[i] == node.input[j] or not (node.input[i] and node.input[j]):
        return ""
    node.input[i], node.input[j] = node.input[j], node.input[i]
    return f"operands {i} and {j} of {node.op_type} {node.name} swapped"


def rewire(m: Mutant) -> str:
    """An operand becomes another value of its type and shape."""
    node = m.node(lambda node: any(m.key(name) for name in node.input))
    place = m.random.choice([i for i, name in enumerate(node.input) if m.key(name)])
    old, key = node.input[place], m.key(node.input[place])
    others = [name for name in m.made_before(node) if name != old and m.key(name) == key]
    if not others:
        return ""
    node.input[place] = m.random.choice(others)
    return f"operand {place} of {node.op_type} {node.name} is {node.input[place]}"


def insert(m: Mutant) -> str:
    """An op on one edge."""
    floats = [
        (node, i)
        for node in m.graph.node
        for i, name in enumerate(node.input)
        if name in m.types and m.types[name].tensor_type.elem_type == TensorProto.FLOAT
    ]
    if not floats:
        return ""
    node, place = m.random.choice(floats)
    name = f"mutant_{len(m.graph.node)}"
    op = m.random.choice(("Neg", "Relu", "Identity", "Tanh", "Exp"))
    made = helper.make_node(op, [node.input[place]], [name], name)
    at = next(i for i, each in enumerate(m.graph.node) if each is node)
    node.input[place] = name
    text = f"{op} in front of operand {place} of {node.op_type} {node.name}"
    m.graph.node.insert(at, made)
    return text


def duplicate(m: Mutant) -> str:
    """A node twice, the second for one of the readers."""
    node = m.node(lambda node: len(node.output) == 1 and node.op_type != "Constant")
    readers = [
        (each, i)
        for each in m.graph.node
        for i, name in enumerate(each.input)
        if name == node.output[0]
    ]
    if not readers:
        return ""
    reader, place = m.random.choice(readers)
    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    twin.name = twin.output[0] = f"mutant_{len(m.graph.node)}"
    reader.input[place] = twin.output[0]
    at = next(i for i, each in enumerate(m.graph.node) if each is node)
    m.graph.node.insert(at + 1, twin)
    return f"{node.op_type} {node.name} twice"


def replace_op(m: Mutant) -> str:
    kin = {op: ops for ops in SIBLINGS for op in ops}
    node = m.node(lambda node: node.op_type in kin)
    if node is None:
        return ""
    old = node.op_type
    node.op_type = m.random.choice([op for op in kin[old] if op != old])
    return f"{node.name} {old} -> {node.op_type}"


CHANGES = (
    show_inner_value,
    change_number,
    change_number,
    change_attribute,
    swap_operands,
    rewire,
    rewire,
    insert,
    duplicate,
    replace_op,
)


def mutant(seed: int) -> tuple[bytes, str]:
    """A changed model, and what was changed."""
    random_ = random.Random(seed)
    path = random_.choice(MODELS)
    m = Mutant(onnx.load_model_from_string(files.read(path)), seed)
    for _ in range(random_.randint(1, MOST_CHANGES)):
        m.change()
    return m.model.SerializeToString(), f"seed {seed}, {path.name}: {'; '.join(m.changes)}"


def check(seed: int) -> bool:
    """Whether a mutant could be run; asserts that, fused or not, it means what it says."""
    model, label = mutant(seed)
    try:
        graph = importer.read(model)
        fold.run(graph)
        unfused = _session(model, q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL)
    except q7x2_ep.errors.Q7Error:
        return False
    fused = _session(model, q7x2_ep.GraphOptimizationLevel.ORT_ENABLE_ALL)
    ran = False
    for batch, length in SIZES:
        feeds = random_feeds(graph, batch, length, seed=seed, padding=True)
        try:
            exact, rounded = (_evaluated(graph, feeds, dtype) for dtype in (np.float64, np.float32))
            results = {"unfused": unfused.run(None, feeds)}
        except (q7x2_ep.errors.Q7Error, ValueError, IndexError, ArithmeticError):
            continue  # no sense at these sizes, said so by the kernels or by numpy
        if exact is None or rounded is None:
            continue
        ran = True
        results["fused"] = fused.run(None, feeds)
        for name, given in results.items():
            for i, (true, near, ours) in enumerate(zip(exact, rounded, given)):
                where = f"{label}; {name} output {i}, batch {batch}, length {length}"
                assert ours.shape == true.shape, where
                if rms_error(near, true) <= BOUND * rms(true):  # else rounding decides it
                    allowed = max(BOUND * rms(true), FACTOR * rms_error(near, true))
                    assert rms_error(ours, true) <= allowed, where
    return ran


def _session(model: bytes, level: q7x2_ep.GraphOptimizationLevel) -> q7x2_ep.InferenceSession:
    options = q7x2_ep.SessionOptions(intra_op_num_threads=1, graph_optimization_level=level)
    return q7x2_ep.InferenceSession(model, options)


def _evaluated(
    graph: Graph, feeds: dict[str, np.ndarray], dtype: type
) -> Optional[list[np.ndarray]]:
    """The outputs, or None where products are of values that are not finite: a guarded Softmax
    hides those, attention does not."""
    evaluation = Evaluation(np.dtype(dtype))
    for value in graph.inputs:
        evaluation.feed(value, feeds[value.name])
    evaluation.run(graph.nodes)
    products = [node for node in graph.nodes if node.op in ("MatMul", "Attention")]
    operands = (evaluation.array(value) for node in products for value in node.inputs[:2])
    if not all(np.isfinite(array).all() for array in operands):
        return None
    return [evaluation.array(value) for value in graph.outputs]


@pytest.mark.parametrize("seed", range(40))
def test_mutated_model(seed):
    check(seed)


@pytest.mark.slow
def test_many_mutated_models():
    ran = [check(seed) for seed in range(1000, 4000)]
    assert np.mean(ran) > 0.3  # enough of them make sense
