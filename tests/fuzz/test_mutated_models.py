"""Models that are nearly what exporters write: a few random changes each, against the oracle.

They are exports in float32 and in 16 bits, small vision models, and random control flow, in whose
bodies changes are made as well. A fusion is right about a model and wrong about its neighbours
where a guard is missing: another constant, axis or operand order, an inner value that somebody else
reads. A change may well make a model that is invalid, or that says nothing sensible; then it must
be refused with an error of ours, or mean the same fused, unfused and in float64.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep import importer
from q7x2_ep.backend.numpy import Evaluation, rms, rms_error
from q7x2_ep.feeds import random_feeds
from q7x2_ep.ir.core import Graph
from q7x2_ep.passes import fold
from tests.fuzz import test_random_control as control
from tests.models import files

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SIZES = ((1, 3), (2, 5), (3, 1))  # batch, length
MOST_CHANGES = 3
NONSENSE = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)  # of numpy


class Source(NamedTuple):
    """Where models come from. bound: how far a result may be off, of the output's scale: a wrong
    formula is far beyond it, rounding far below, but where the model is ill-conditioned; factor: of
    numpy's own error, then.
    """

    models: list[tuple[str, Callable[[], bytes]]]
    bound: float = 1e-3
    factor: float = 30.0


SIBLINGS = (
    ("Add", "Mul", "Sub", "Div"),
    ("Erf", "Tanh", "Sigmoid", "Sin", "Cos"),
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    ("And", "Or"),
    ("Sqrt", "Reciprocal", "Neg", "Abs"),
)


class Mutant:
    """A model under change. graph: the one of its graphs that is being changed; types: of the
    values that have a known one.
    """

    def __init__(self, model: Any, seed: int):
        self.random = random.Random(seed)
        self.graph = model.graph
        self.graphs = list(graphs_of(model.graph))
        self.types = {
            value.name: value.type
            for graph in graphs_of(onnx.shape_inference.infer_shapes(model).graph)
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self.changes: list[str] = []

    def change(self) -> None:
        done = ""
        while not done:
            self.graph = self.random.choice(self.graphs)
            done = self.random.choice(CHANGES)(self)
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
        if self.graph is not self.graphs[0]:  # a body has as many as its node
            return False
        if name not in self.types or any(output.name == name for output in self.graph.output):
            return False
        self.graph.output.append(onnx.ValueInfoProto(name=name, type=self.types[name]))
        return True


def graphs_of(graph: Any) -> Iterator[Any]:
    """A graph and the bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs_of(attribute.g)


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
    few = [tensor for tensor in few if tensor.data_type != TensorProto.STRING]
    if not few:
        return ""
    tensor = m.random.choice(few)
    array = numpy_helper.to_array(tensor).copy()
    place = m.random.randrange(array.size)
    old = array.flat[place]
    if array.dtype.kind == "f":
        array.flat[place] = m.random.choice((old / 2 + 0.25, -old, 0.0, 1.0, 2.0, -np.inf))
    elif array.dtype.kind == "i":
        with np.errstate(over="ignore"):
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


def reshape_constant(m: Mutant) -> str:
    """An operand of one reader: another rank, or one element for all along an axis."""
    held = {tensor.name: tensor for tensor in m.graph.initializer}
    node = m.node(lambda node: any(name in held for name in node.input))
    if node is None:
        return ""
    place = m.random.choice([i for i, name in enumerate(node.input) if name in held])
    array = numpy_helper.to_array(held[node.input[place]])
    if not array.size:
        return ""
    axis = m.random.randrange(array.ndim) if array.ndim else None
    shapes = [array[None], array[..., None], array.reshape(-1), array.reshape(-1)[:1]]
    if axis is not None:
        shapes += [np.take(array, [0], axis), np.moveaxis(array, axis, 0)]
    changed = np.ascontiguousarray(m.random.choice(shapes))
    name = f"mutant_{len(m.graph.initializer)}"
    m.graph.initializer.append(numpy_helper.from_array(changed, name))
    node.input[place] = name
    return f"operand {place} of {node.op_type} {node.name} {array.shape} -> {changed.shape}"


def feed_constant(m: Mutant) -> str:
    """An initializer that a feed may take the place of."""
    taken = {value.name for value in m.graphs[0].input}
    held = [tensor for tensor in m.graphs[0].initializer if tensor.name not in taken]
    if not held:
        return ""
    tensor = m.random.choice(held)
    info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    m.graphs[0].input.append(info)
    return f"{tensor.name} has a default only"


def cut_operand(m: Mutant) -> str:
    """The first element along an axis, which is repeated where it was one of many."""
    ranks = {name: len(t.tensor_type.shape.dim) for name, t in m.types.items()}
    node = m.node(lambda node: any(ranks.get(name) for name in node.input))
    if node is None:
        return ""
    place = m.random.choice([i for i, name in enumerate(node.input) if ranks.get(name)])
    axis = m.random.randrange(ranks[node.input[place]])
    names = [f"mutant_{len(m.graph.initializer) + i}" for i in range(3)]
    for name, number in zip(names, (0, 1, axis)):
        m.graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    name = f"mutant_{len(m.graph.node)}_cut"
    at = next(i for i, each in enumerate(m.graph.node) if each is node)
    operands = [node.input[place], *names]
    node.input[place] = name
    m.graph.node.insert(at, helper.make_node("Slice", operands, [name], name))
    return f"operand {place} of {node.op_type} {node.name} cut along axis {axis}"


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
    reshape_constant,
    feed_constant,
    cut_operand,
    replace_op,
)


def vision(seed: int) -> bytes:
    """Convolutions with what surrounds them: norms, gates, pools, branches that meet again."""
    g, channels = control.Growth(seed), 4
    body = control.Body(g, {"x": ""}, 0)
    generator = np.random.default_rng(seed)

    def weight(*shape: int) -> str:
        return body.constant((generator.standard_normal(shape) / 2).astype(np.float32))

    def emit(op: str, *inputs: str, **attrs: Any) -> str:
        return body.emit("", op, *inputs, **attrs)[0]

    x = emit("Conv", "x", weight(channels, 3, 3, 3), weight(channels), pads=[1, 1, 1, 1])
    for _ in range(g.random.randint(2, 5)):
        groups = g.random.choice([1, 2, channels])
        y = emit("Conv", x, weight(channels, channels // groups, 3, 3), group=groups, pads=[1] * 4)
        if g.random.random() < 0.5:
            mean, bias = weight(channels), weight(channels)
            spread = body.constant(np.full(channels, 0.5, np.float32))
            y = emit("BatchNormalization", y, spread, bias, mean, spread)
        y = emit(g.random.choice(["Relu", "HardSwish", "Sigmoid", "LeakyRelu", "Identity"]), y)
        if g.random.random() < 0.3:
            y = emit("Mul", y, emit("Sigmoid", emit("GlobalAveragePool", y)))
        if g.random.random() < 0.3:
            scales = body.constant(np.array([1, 1, 2, 2], np.float32))
            y = emit(
                "AveragePool", emit("Resize", y, "", scales), kernel_shape=[2, 2], strides=[2, 2]
            )
        if g.random.random() < 0.3:
            joined = emit("Concat", x, y, axis=1)
            y = emit("Conv", joined, weight(channels, 2 * channels, 1, 1))
        x = emit("Add", x, y) if g.random.random() < 0.6 else y
        if g.random.random() < 0.2:
            x = emit("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    flat = emit("Flatten", emit("GlobalAveragePool", x))
    y = emit("Gemm", flat, weight(channels, 5), weight(5))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["batch", 3, 6, 7]), (y, ["batch", 5]))
    ]
    graph = helper.make_graph(body.nodes, "vision", infos[:1], infos[1:])
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def _exports(paths: list) -> list[tuple[str, Callable[[], bytes]]]:
    return [(path.name, partial(files.read, path)) for path in paths]


def _control(seed: int) -> bytes:
    return control.Growth(seed).model()


_HALVES = [path for path in files.select(cache=True, halves=True) if "float16." in path.name]
SOURCES = {
    "exports": Source(_exports(files.select(cache=True))),
    "halves": Source(_exports(_HALVES), bound=3e-2, factor=3.0),
    "vision": Source([(f"vision {i}", partial(vision, i)) for i in range(200)]),
    "control": Source([(f"control {i}", partial(_control, i)) for i in range(200)]),
}


def mutant(source: Source, seed: int) -> tuple[bytes, str]:
    """A changed model, and what was changed."""
    random_ = random.Random(seed)
    name, read = random_.choice(source.models)
    model = onnx.load_model_from_string(read())
    m = Mutant(model, seed)
    for _ in range(random_.randint(1, MOST_CHANGES)):
        m.change()
    return model.SerializeToString(), f"seed {seed}, {name}: {'; '.join(m.changes)}"


def check(source: Source, seed: int) -> bool:
    """Whether a mutant could be run; asserts that, fused or not, it means what it says."""
    model, label = mutant(source, seed)
    try:
        graph = importer.read(model)
        fold.run(graph)
        unfused = _session(model, q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL)
    except q7x2_ep.errors.Q7Error:
        return False
    try:
        fused = _session(model, q7x2_ep.GraphOptimizationLevel.ORT_ENABLE_ALL)
    except q7x2_ep.errors.Q7Error:
        fused = None  # sooner than unfused, in which every run must fail then
    ran = False
    for batch, length in SIZES:
        if source is SOURCES["control"]:
            feeds = control.feeds(seed, batch)
        else:
            feeds = random_feeds(graph, batch, length, seed=seed, padding=True)
        try:
            results = {"unfused": unfused.run(None, feeds)}
        except q7x2_ep.errors.Q7Error:  # no sense at these sizes, fused or not
            if fused is not None:
                with pytest.raises(q7x2_ep.errors.Q7Error):
                    fused.run(None, feeds)
                    pytest.fail(f"{label}: refused, but not fused")
            continue
        assert fused is not None, label
        results["fused"] = fused.run(None, feeds)
        try:
            exact, rounded = (_evaluated(graph, feeds, dtype) for dtype in (np.float64, None))
        except (q7x2_ep.errors.Q7Error, *NONSENSE):
            continue
        if exact is None or rounded is None:
            continue
        ran = True
        for name, given in results.items():
            for i, (true, near, ours) in enumerate(zip(exact, rounded, given)):
                where = f"{label}; {name} output {i}, batch {batch}, length {length}"
                _assert_close(source, true, near, ours, where)
    return ran


def _assert_close(source: Source, true: Any, near: Any, ours: Any, where: str) -> None:
    if isinstance(true, list):
        assert len(ours) == len(true), where
        for items in zip(true, near, ours):
            _assert_close(source, *items, where)
    elif true is None or true.dtype.kind in "OU":
        np.testing.assert_array_equal(ours, true, where)
    else:
        assert ours.shape == true.shape, where
        if rms_error(near, true) <= source.bound * rms(true):  # else rounding decides it
            allowed = max(source.bound * rms(true), source.factor * rms_error(near, true))
            assert rms_error(ours, true) <= allowed, where


def _session(model: bytes, level: q7x2_ep.GraphOptimizationLevel) -> q7x2_ep.InferenceSession:
    options = q7x2_ep.SessionOptions(intra_op_num_threads=1, graph_optimization_level=level)
    return q7x2_ep.InferenceSession(model, options)


def _evaluated(graph: Graph, feeds: dict[str, np.ndarray], dtype: Optional[type]) -> Optional[list]:
    """The outputs, or None where products are of values that are not finite: a guarded Softmax
    hides those, attention does not."""
    evaluation = Evaluation(None if dtype is None else np.dtype(dtype))
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
    check(SOURCES["exports"], seed)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("source", ["halves", "vision", "control"])
def test_mutated_model_of(source, seed):
    check(SOURCES[source], seed)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_not_finite(seed):
    """One element of each feed: what is infinite or NaN unfused is so fused."""
    model, label = mutant(SOURCES["vision"], seed)
    try:
        graph = importer.read(model)
        fold.run(graph)
        feeds = random_feeds(graph, 2, 5, seed=seed)
        for x in feeds.values():
            x.flat[seed % x.size] = (np.nan, np.inf, -np.inf)[seed % 3]
        wanted = _session(model, q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL).run(None, feeds)
    except q7x2_ep.errors.Q7Error:
        return
    given = _session(model, q7x2_ep.GraphOptimizationLevel.ORT_ENABLE_ALL).run(None, feeds)
    for i, (ours, unfused) in enumerate(zip(given, wanted)):
        assert rms_error(ours, unfused) <= SOURCES["vision"].bound * rms(unfused), f"{label}; {i}"


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_many_mutated_models(source):
    ran = [check(SOURCES[source], seed) for seed in range(1000, 4000)]
    assert np.mean(ran) > 0.3  # enough of them make sense
