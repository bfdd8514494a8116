"""The short way (cpu/lane.py) for a program of one plan between host steps that compute nothing, as
models of tables and texts are: what makes numbers of fed texts comes before it, what names classes
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.backend.host import Host, compute
from q7x2_ep.backend.program import Image, Native
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ops import find
from q7x2_ep.ops.common import RESHAPES

# Of these a result is memory of its own, or a view.
READING = {"com.microsoft::Tokenizer", "StringNormalizer", "q7::NGrams", "q7::Encoded", *RESHAPES}
NAMING = {"Gather", "ai.onnx.ml::ZipMap", "q7::Encoded", *RESHAPES}
Arrays = dict[Value, Any]


class Short:
    """The shapes of texts, and those of what the plan reads, are those of a run before (`saw`, and
    Executor.run_again), which tell all sizes in the plan.
    """

    def __init__(self, image: Image, before: list[_Step], plan: Native, after: list[_Step]):
        self._results, self._before, self._plan, self._after = image.outputs, before, plan, after
        self._inputs, self._shapes = image.inputs, ()
        self._texts = [value for value in image.inputs if value not in plan.inputs]
        self._plain = [value.name for value in image.inputs if value in plan.inputs]
        self._made = [value for value in plan.inputs if value not in image.inputs]
        self._views = [s.made for s in after if s.op in RESHAPES and s.made in image.outputs]

    def saw(self, arrays: Sequence[Any]) -> Short:
        """Itself, after a run with these inputs."""
        fed = dict(zip(self._inputs, arrays))
        self._shapes = tuple(fed[value].shape for value in self._texts)
        return self

    def run(self, feed: Mapping[str, Any]) -> Optional[list[Any]]:
        """The outputs, or None for a feed of other types or shapes, or that a step refuses: the
        long way says what is wrong.
        """
        if self._before:
            made = self._read(feed) if len(feed) == len(self._inputs) else None
            if made is None:
                return None
            feed = {name: feed.get(name) for name in self._plain}
            feed.update((value.name, made[value]) for value in self._made)
        outputs = self._plan.executor.run_again(feed)
        if outputs is None:
            return None
        arrays: Arrays = dict(zip(self._plan.outputs, outputs))
        if not _ran(self._after, arrays):
            return None
        for value in self._views:
            arrays[value] = arrays[value].copy()
        return [arrays[value] for value in self._results]

    def _read(self, feed: Mapping[str, Any]) -> Optional[Arrays]:
        arrays: Arrays = {}
        for value, shape in zip(self._texts, self._shapes):
            given = feed.get(value.name)
            if not _are_texts(given) or given.shape != shape:
                return None
            arrays[value] = given if given.dtype == object else given.astype(object)
        return arrays if _ran(self._before, arrays) else None


class _Step(NamedTuple):
    """A host step: a function of what its node takes, each by its value or as a constant."""

    function: Callable[..., Any]
    inputs: list[tuple[Value, Any]]
    made: Value
    op: str


def short_way(image: Image, runners: Sequence[Any]) -> Optional[Short]:
    """That of a program with these parts, if there is one."""
    places = [i for i, runner in enumerate(runners) if isinstance(runner, Native)]
    if len(places) != 1 or len(set(image.outputs)) < len(image.outputs):
        return None
    before, plan, after = runners[: places[0]], runners[places[0]], runners[places[0] + 1 :]
    texts = {value for value in image.inputs if value.dtype == dtypes.STRING}
    read, named = _steps(before, READING, texts), _steps(after, NAMING, plan.outputs)
    if read is None or named is None:
        return None
    made = texts.union(step.made for step in read)
    told = {repr(dim) for value in plan.inputs for dim in value.shape or ()}
    results = {*plan.outputs, *(step.made for step in named)}
    is_fed = {*image.inputs} == texts | {value for value in plan.inputs if value not in made}
    if not (is_fed and told.issuperset(plan.sizes) and results.issuperset(image.outputs)):
        return None
    return Short(image, read, plan, named)


def _steps(runners: Iterable[Any], ops: set[str], known: Iterable[Value]) -> Optional[list[_Step]]:
    """Host steps of these ops, if all are, and read nothing else than what is known by then."""
    steps: list[_Step] = []
    there = set(known)
    for runner in runners:
        node = runner.node if isinstance(runner, Host) else None
        if node is None or node.op not in ops or runner.within is not None:
            return None
        if not all(value in there or value.const is not None for value in runner.inputs):
            return None
        inputs = [(value, value.const) for value in runner.inputs]
        steps.append(_Step(_function(node), inputs, node.output, node.op))
        there.add(node.output)
    return steps


def _are_texts(array: Any) -> bool:
    """Whether this is an array of nothing but strings, which UTF-8 can hold."""
    if type(array) is not np.ndarray or array.dtype.kind not in "OU":
        return False
    try:
        dtypes.require_texts(array.ravel().tolist())
    except (TypeError, UnicodeError):
        return False
    return True


def _function(node: Node) -> Callable[..., Any]:
    """A host step's own, whose result is as the plan and the caller take it."""
    function = compute(node)
    if hasattr(find(node.op), "prepared"):
        return function

    def computed(*inputs: Any) -> Any:
        result = function(*inputs)
        if isinstance(result, tuple):  # of lists
            return result[0]
        return dtypes.of_any_width(np.asarray(result))

    return computed


def _ran(steps: Iterable[_Step], arrays: Arrays) -> bool:
    """Whether all steps have run. What one raises is not lost: the long way raises it again."""
    try:
        for function, inputs, made, _ in steps:
            given = [arrays[value] if const is None else const for value, const in inputs]
            arrays[made] = function(*given)
    except Exception:
        return False
    return True
