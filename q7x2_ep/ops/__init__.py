"""The op catalogue: what every op means, one entry per op, by family.

An entry is a class used as a namespace, registered by `@op("Name")` (ONNX), `@op("domain::Name")`,
our own as `@op("q7::Name")`. Its parts, in this order; functions take the node, never self:

    signature   "x, axes? -> y": operand names, `?` optional, `*` variadic (last)
    attributes  {name: default}; the importer fills in defaults, so node.attrs holds every key
    strided     positions of inputs that `lower` reads through any strides, if any
    folds_late  true: of constants it is evaluated after fusion only, which looks for it
    is_random   true: no two evaluations agree, so that it is neither folded nor merged with another
    infer(node) -> list[Type]                  shapes and dtypes of the outputs
    reference(node, *arrays) -> array | tuple  numpy, obvious not fast, in the dtype it is given
    decompose(g, *values) -> Value             the meaning in smaller ops; fused ops have only this
    standard(node) -> op, inputs, attrs | None fused ops: the ONNX op that this one equals, if any
    view(node, view) -> View | None            movement ops: the output as a view of the input
    bound(node) -> Dim                         ops whose output 0 has a size that only data tells:
                                               its elements at most, see plan/partition.py
    lower(node, b)                             emits the C steps through the plan builder b

A node whose entry has neither `lower` nor `view` gives way to its `decompose` before fusion
(passes/expand.py). Where it has none, or where `lower` raises UnsupportedOp, the node is a host
step: its `reference` runs between two native phases (plan/partition.py). Ops with bodies have
`control` in place of `reference` (control.py).
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from typing import Any, Callable, Optional

OPS: dict[str, Any] = {}  # of the families that were loaded so far
_USUAL = ("elementwise", "fused", "movement", "matmul", "norm", "activation", "reduce", "gather")
_unloaded: list[str] = []  # families, those first that most models need


def op(name: str) -> Callable[[type], type]:
    """Enter a class in the catalogue under an op type."""

    def register(entry: type) -> type:
        if name in OPS:
            raise ValueError(
                f"op {name} is entered twice: {OPS[name].__module__} and {entry.__module__}"
            )
        OPS[name] = entry
        return entry

    return register


def find(name: str) -> Optional[Any]:
    """The entry of an op type, or None. Loads one family after the other until it is found: all of
    them take 15 ms.
    """
    if "@" in name:  # see host.py
        from q7x2_ep.ops.host import standard_entry

        return standard_entry(name)
    if name not in OPS:
        for family in [*_unloaded]:
            importlib.import_module(f"{__name__}.{family}")
            with contextlib.suppress(ValueError):  # another thread was there at the same time
                _unloaded.remove(family)
            if name in OPS:
                break
    return OPS.get(name)


def entries() -> dict[str, Any]:
    """Every entry, by name."""
    find("")
    return OPS


_found = {each.name for each in pkgutil.iter_modules(__path__)} - {*_USUAL}
_unloaded += [*_USUAL, *sorted(_found, key=lambda name: (name.startswith("contrib_"), name))]
