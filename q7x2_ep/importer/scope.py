"""What names mean in a graph, a body or a call of a function, while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep.errors import ModelError
from q7x2_ep.importer.opset import Maker
from q7x2_ep.ir.core import Value, array_type

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


class Definitions:
    """The values of a model: each is defined once in its scope, and named once in the whole.

    names: those that the model itself gives, which stay.
    """

    def __init__(self, names: set[str]):
        self._names = names

    def define(self, scope: Scope, name: str) -> Value:
        if name in scope.values:
            raise ModelError(f"value {scope.prefix}{name} is defined twice")
        value = scope.values[name] = Value(self.local_name(scope, name))
        return value

    def define_constant(self, scope: Scope, name: str, array: np.ndarray) -> None:
        """Of constants of one name, which some tools write, all read the last: onnxruntime does."""
        if name in scope.values and scope.values[name].const is not None:
            value = scope.values[name]
        else:
            value = self.define(scope, name)
        value.const = array
        value.set_type(array_type(array))

    def value(self, scope: Scope, name: str, where: str) -> Optional[Value]:
        value = scope.values.get(name)
        if value is None:
            raise ModelError(f"{where}: nothing before it produces {scope.prefix}{name}")
        return None if value is OMITTED else value

    def local_name(self, scope: Scope, name: str) -> str:
        """What a value of a scope is called in the graph; names of the model itself stay."""
        return self.unique(scope.prefix + name) if scope.prefix else name

    def unique(self, name: str, taken: Optional[set[str]] = None) -> str:
        """name, or name_1, name_2, .. if it is taken; takes it."""
        taken = self._names if taken is None else taken
        candidate, i = name, 0
        while candidate in taken:
            i += 1
            candidate = f"{name}_{i}"
        taken.add(candidate)
        return candidate

    def maker(self, scope: Scope) -> Maker:
        """For what takes the place of a node of this scope."""

        def constant(array: np.ndarray, hint: str) -> str:
            name = self.unique(hint)
            self.define_constant(scope, name, array)
            return name

        return Maker(constant, self.unique)
