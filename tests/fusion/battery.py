"""Batteries: formulas as ONNX models, in every operand order, each with one thing wrong.

A spelling is a function (g, *inputs) -> value or tuple of values, written as fusions are:

    def gelu(g, x):
        return g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Div(x, 2**0.5)), 1.0))

    def test_gelu():
        assert_fuses(gelu, {"x": ("B", "S", 8)}, {"Gelu": 1}, steps=1)
        assert_perturbed_stays(gelu, {"x": ("B", "S", 8)}, {"Gelu"})

Operands: numbers are float scalars, lists int64 vectors, arrays initializers. `inputs` says what
the parameters are: a shape of ints and symbols is a float input, ("bool", shape) and ("int64",
shape) are others, an array is an initializer. `g.free(1e-5)` is a number that any value may take
the place of, `g.open(value)` one that others may use: neither is perturbed.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep import fuse, importer, passes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.compare import ERROR_FACTOR, rms, rms_error
from q7x2_ep.ir.core import Graph
from q7x2_ep.ir.pattern import COMMUTATIVE
from q7x2_ep.passes import infer

OPSET = 18
SIZES = ({"B": 1, "S": 5, "T": 7}, {"B": 3, "S": 16, "T": 16})  # of symbols; 4 where not named
MOST_ORDERS = 16  # of a spelling with many commutative ops; seeded choices then
AXES = frozenset({"axis", "axes", "perm"})
KINDS = {"float": TensorProto.FLOAT, "bool": TensorProto.BOOL, "int64": TensorProto.INT64}
EPS = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Change:
    """What is wrong with a spelling: a number, axis or inner value at this place, or the dtype."""

    kind: str  # constant, axis, output, dtype
    place: int = 0


@dataclass(eq=False)
class Model:
    """A graph under construction, with the call style of fuse/. flips: per commutative op, whether
    its operands are swapped."""

    flips: Callable[[int], bool] = lambda place: False
    change: Optional[Change] = None
    opset: int = OPSET
    nodes: list[Any] = field(default_factory=list)
    initializers: list[Any] = field(default_factory=list)
    extra_outputs: list[str] = field(default_factory=list)
    places: Counter = field(default_factory=Counter)

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("_"):
            raise AttributeError(op)
        return lambda *inputs, **attrs: self.call(op, *inputs, **attrs)

    def call(self, op: str, *inputs: Any, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        operands = ["" if x is None else self._operand(x) for x in inputs]
        if op in COMMUTATIVE and self.flips(self._place("flip")):
            operands.reverse()
        for name, value in attrs.items():
            if name in AXES and self._is_here("axis"):
                attrs[name] = _moved(value)
        results = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(
                op, operands, results, f"{op}.{len(self.nodes)}", domain=domain, **attrs
            )
        )
        for result in results:
            if self._is_here("output"):
                self.extra_outputs.append(result)
        return tuple(results) if outputs > 1 else results[0]

    def free(self, number: float) -> str:
        return self._initializer(np.array(number, self._float()))

    def open(self, value: str) -> str:
        """Must be called on the newest value."""
        self.places["output"] -= 1
        self.extra_outputs = [name for name in self.extra_outputs if name != value]
        return value

    def _operand(self, x: Any) -> str:
        if isinstance(x, str):
            return x
        if isinstance(x, (int, float)):
            return self.free(x * 1.125 + 0.01 if self._is_here("constant") else x)
        array = np.array(x, np.int64) if isinstance(x, list) else x
        return self._initializer(array.astype(self._float()) if array.dtype.kind == "f" else array)

    def _initializer(self, array: np.ndarray) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def _float(self) -> Any:
        return np.float64 if self.change == Change("dtype") else np.float32

    def _place(self, kind: str) -> int:
        self.places[kind] += 1
        return self.places[kind] - 1

    def _is_here(self, kind: str) -> bool:
        return self.change == Change(kind, self._place(kind))


def _moved(axis: Any) -> Any:
    if isinstance(axis, int):
        return axis - 1 if axis < 0 else max(axis - 1, 0) if axis else 1
    moved = list(axis)
    return [moved[1], moved[0], *moved[2:]] if len(moved) > 1 else [_moved(moved[0])]


def build(
    spelling: Callable[..., Any], inputs: Mapping[str, Any], **options: Any
) -> tuple[onnx.ModelProto, Counter]:
    """The model of a spelling, and how many places of each kind it has.

    Raises: onnx.checker.ValidationError, onnx.shape_inference.InferenceError for no valid model.
    """
    g = Model(**options)
    fed = []
    operands = []
    for name in list(inspect.signature(spelling).parameters)[1:]:
        given = inputs[name]
        if isinstance(given, np.ndarray):
            operands.append(g._operand(given))
            continue
        kind, shape = given if given and given[0] in KINDS else ("float", given)
        dtype = TensorProto.DOUBLE if kind == "float" and g._float() == np.float64 else KINDS[kind]
        fed.append(helper.make_tensor_value_info(name, dtype, shape))
        operands.append(name)
    results = spelling(g, *operands)
    results = list(results) if isinstance(results, tuple) else [results]
    names = list(dict.fromkeys([*results, *g.extra_outputs]))
    graph = helper.make_graph(g.nodes, spelling.__name__, fed, [], g.initializers)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    opsets = [helper.make_opsetid("", g.opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    typed = onnx.shape_inference.infer_shapes(model)
    known = {info.name: info for info in [*typed.graph.value_info, *typed.graph.output]}
    for output in model.graph.output:
        output.CopyFrom(known[output.name])
    return model, g.places


def orders(
    spelling: Callable[..., Any], inputs: Mapping[str, Any], **options: Any
) -> Iterator[Any]:
    """The models of a spelling in the operand orders of its commutative ops."""
    n = build(spelling, inputs, **options)[1]["flip"]
    if 2**n <= MOST_ORDERS:
        choices = list(itertools.product((False, True), repeat=n))
    else:
        chance = random.Random(n)
        choices = [tuple(chance.random() < 0.5 for _ in range(n)) for _ in range(MOST_ORDERS)]
    for flips in choices:
        yield build(spelling, inputs, flips=flips.__getitem__, **options)[0]


def perturbed(
    spelling: Callable[..., Any], inputs: Mapping[str, Any], kinds: tuple[str, ...], **options: Any
) -> Iterator[tuple[Change, Any]]:
    """Valid models with one thing wrong. The root may be used by anybody: it is left alone."""
    places = build(spelling, inputs, **options)[1]
    changes = [
        Change(kind, i)
        for kind in kinds
        for i in range(1 if kind == "dtype" else places[kind] - (kind == "output"))
    ]
    for change in changes:
        try:
            model, _ = build(spelling, inputs, change=change, **options)
            onnx.checker.check_model(model, full_check=True)
        except Exception:  # the moved axis makes shapes that never fit: no model, no question
            if change.kind != "axis":
                raise
            continue
        yield change, model


def fused_graph(model: Any) -> tuple[Graph, fuse.FusionReport]:
    """The graph of a model as it is planned; the report of the fusions."""
    graph = importer.read(model)
    passes.run_all(graph)
    report = fuse.fuse(graph)
    passes.run_all(graph)
    return graph, report


def fused_ops(model: onnx.ModelProto) -> tuple[Counter, fuse.FusionReport]:
    """How many nodes of each op the fused graph has; the report of the fusions."""
    graph, report = fused_graph(model)
    return Counter(node.op for node in graph.nodes), report


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32) / 4


def interleaved(g: Any, y: Any) -> Any:
    """Every other column, from the first and from the second on."""
    return g.Slice(y, [0], [2**62], [-1], [2]), g.Slice(y, [1], [2**62], [-1], [2])


def feeds_for(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    feeds = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [d.dim_value or sizes.get(d.dim_param, 4) for d in tensor.shape.dim]
        array = generator.standard_normal(shape)
        if tensor.elem_type == TensorProto.BOOL:
            feeds[info.name] = array > -0.5
        elif tensor.elem_type == TensorProto.INT64:
            feeds[info.name] = generator.integers(0, 4, shape)
        else:
            feeds[info.name] = array.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return feeds


def assert_correct(model: onnx.ModelProto) -> int:
    """The accuracy rule for every output at several sizes; returns the number of steps."""
    data = model.SerializeToString()
    graph = importer.read(data)
    infer.run(graph)
    with q7x2_ep.InferenceSession(data) as session:
        for sizes in SIZES:
            feeds = feeds_for(model, sizes)
            given = session.run(None, feeds)
            for i, true in enumerate(evaluate(graph, feeds, np.float64)):
                assert given[i].shape == true.shape
                if true.dtype.kind != "f":
                    np.testing.assert_array_equal(given[i], true)
                    continue
                assert np.array_equal(np.isfinite(given[i]), np.isfinite(true)), sizes
                finite = np.isfinite(true)
                error = rms_error(given[i][finite], true[finite])
                if error > EPS * rms(true):
                    theirs = _onnxruntime(data, feeds)[i]
                    assert error <= ERROR_FACTOR * rms_error(theirs[finite], true[finite]), sizes
        return len(session._session.plan.steps)


def _onnxruntime(data: bytes, feeds: Mapping[str, Any]) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def assert_fuses(
    spelling: Callable[..., Any],
    inputs: Mapping[str, Any],
    expected: Mapping[str, int],
    steps: Optional[int] = None,
    **options: Any,
) -> None:
    """In every operand order the fused graph has so many nodes of each expected op (and, where
    given, the plan so many steps), and means the same."""
    for i, model in enumerate(orders(spelling, inputs, **options)):
        found, report = fused_ops(model)
        got = {op: found[op] for op in expected}
        assert got == dict(expected), f"order {i}: {dict(found)}\n{report}"
        count = assert_correct(model)
        assert steps is None or count == steps, f"order {i}: {dict(found)}, {count} steps"


def assert_perturbed_stays(
    spelling: Callable[..., Any],
    inputs: Mapping[str, Any],
    targets: set[str],
    kinds: tuple[str, ...] = ("constant", "axis", "output", "dtype"),
    **options: Any,
) -> None:
    """With one thing wrong, none of the target ops is made, and the result is right."""
    changed = 0
    for change, model in perturbed(spelling, inputs, kinds, **options):
        found, _ = fused_ops(model)
        made = targets & set(found)
        assert not made, f"{change}: {made}"
        assert_correct(model)
        changed += 1
    assert changed, "nothing could be perturbed"
