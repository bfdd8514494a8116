"""The short way (cpu/lane.py) for a program of one plan between host steps, as models of tables
are: texts that are looked up one by one come before it, what names classes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.backend.host import Host
from q7x2_ep.backend.program import Image, Native
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ops import find
from q7x2_ep.ops.common import RESHAPES

# After the plan: what computes next to nothing. Results are memory of their own, or views.
NAMING = {"Gather", "ai.onnx.ml::ZipMap", "q7::Encoded", *RESHAPES}


class Texts(NamedTuple):
    """A lookup of a fed tensor of texts, and what it makes, by their names."""

    fed: str
    made: str
    table: dict[str, Any]
    default: Any
    dtype: np.dtype

    def numbers(self, texts: Any) -> Optional[np.ndarray]:
        """None for what is no array of texts."""
        if type(texts) is not np.ndarray or texts.dtype.kind not in "OU":
            return None
        keys = texts.ravel().tolist()
        try:
            "".join(keys).encode()
        except (TypeError, UnicodeError):
            return None
        get, default = self.table.get, self.default
        return np.array([get(key, default) for key in keys], self.dtype).reshape(texts.shape)


class Naming(NamedTuple):
    """A step behind the plan: what its op's reference takes, each by its value or as a constant."""

    reference: Callable[..., Any]
    node: Node
    inputs: list[tuple[Value, Any]]
    made: Value

    def run(self, arrays: dict[Value, Any]) -> None:
        given = [arrays[value] if const is None else const for value, const in self.inputs]
        result = self.reference(self.node, *given)
        result = result[0] if isinstance(result, tuple) else result
        if not isinstance(result, list):
            result = dtypes.of_any_width(np.asarray(result))
            result = result if result.base is None else result.copy()
        arrays[self.made] = result


class Short:
    """The shapes of a feed are those that the plan has seen, see Executor.run_again."""

    def __init__(self, image: Image, texts: list[Texts], plan: Native, naming: list[Naming]):
        self._results, self._plan, self._naming = image.outputs, plan, naming
        self._texts, self._count = texts, len(image.inputs)
        self._plain = [value.name for value in image.inputs if value in plan.inputs]

    def run(self, feed: Mapping[str, Any]) -> Optional[list[Any]]:
        """The outputs, or None for a feed of other types or shapes, or that a step refuses."""
        if self._texts:
            if len(feed) != self._count:
                return None
            given = {name: feed.get(name) for name in self._plain}
            for each in self._texts:
                given[each.made] = each.numbers(feed.get(each.fed))
            feed = given
        outputs = self._plan.executor.run_again(feed)
        if outputs is None:
            return None
        arrays: dict[Value, Any] = dict(zip(self._plan.outputs, outputs))
        try:
            for step in self._naming:
                step.run(arrays)
        except Exception:  # the long way says what is wrong
            return None
        return [arrays[value] for value in self._results]


def short_way(image: Image, runners: Sequence[Any]) -> Optional[Short]:
    """That of a program with these parts, if there is one."""
    places = [i for i, runner in enumerate(runners) if isinstance(runner, Native)]
    if len(places) != 1:
        return None
    before, plan, after = runners[: places[0]], runners[places[0]], runners[places[0] + 1 :]
    texts = [_texts(runner, image) for runner in before]
    naming = [_naming(runner) for runner in after]
    if None in texts or None in naming or len(set(image.outputs)) < len(image.outputs):
        return None
    made = {value for runner in (plan, *after) for value in runner.outputs}
    read = {value for runner in after for value in runner.inputs if value.const is None}
    fed = {*plan.inputs, *(runner.inputs[0] for runner in before)}
    if not (made >= {*read, *image.outputs} and fed >= {*image.inputs}):
        return None
    return Short(image, [*filter(None, texts)], plan, [*filter(None, naming)])


def _naming(runner: Any) -> Optional[Naming]:
    """A host step as one of these, if it is."""
    if not isinstance(runner, Host) or runner.node.op not in NAMING or runner.within is not None:
        return None
    inputs = [(value, value.const) for value in runner.inputs]
    return Naming(find(runner.node.op).reference, runner.node, inputs, runner.node.output)


def _texts(runner: Any, image: Image) -> Optional[Texts]:
    """What a host step looks up, if it is that of texts that are fed."""
    node = runner.node if isinstance(runner, Host) else None
    if node is None or node.op != "q7::Encoded" or node.inputs[0] not in image.inputs:
        return None
    if node.inputs[0].dtype != dtypes.STRING or not dtypes.is_dense(node.attrs["dtype"]):
        return None
    table, default, code = (node.attrs[name] for name in ("table", "default", "dtype"))
    names = node.inputs[0].name, node.output.name
    return Texts(*names, table, default, np.dtype(dtypes.DTYPES[code].numpy))
