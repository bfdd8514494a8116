"""What names mean in a graph, a body or a call of a function, while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from q7x2_ep.ir.core import Value

OMITTED = Value("")  # stands for an optional input that the call of a function leaves out


class Names(dict):
    """What the names in a body mean: those of the graph around it, if they are not its own.

    captures: the values around it that it uses, and its own inputs for them.
    """

    def __init__(self, around: Mapping[str, Value]):
        super().__init__()
        self.around = around
        self.captures: dict[Value, Value] = {}

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:
            return self[name]
        value = self.around.get(name, default)
        if value is None or value is OMITTED:
            return value
        inner = self[name] = Value(value.name)
        if value.const is not None:
            inner.const = value.const
            inner.set_type(value.type)
        else:
            self.captures[value] = inner
        return inner


class Scope(NamedTuple):
    """What names mean inside one graph or one call of a function."""

    values: dict[str, Value]
    attrs: Mapping[str, Any]  # of the call, for the function's attribute references
    versions: Mapping[str, int]  # opset by domain
    prefix: str
    functions: tuple[Any, ...]  # the calls that this one is inside of
