"""IR and plan objects <-> JSON, for compiled model files.

A closed set of classes goes through, by the fields named here; anything else is refused when it is
written, and an unknown name when it is read. Nothing is looked up by a name that a file gives, so
that reading one calls no code but the constructors below. Objects are written once each, in a
table, and refer to one another by number: links may form cycles, and depth costs no recursion.

    {"exprs": [..], "records": [[class, field, ..], ..], "root": value}

A value is null, true, a number or a string; a list; or one tagged entry: {"t": [..]} a tuple,
{"d": [key, value, ..]} a dict, {"r": 3} record 3, {"e": 5} expression 5, {"a": 0} array 0 (which
the caller keeps), {"n": [class, field, ..]} a named tuple, {"b": hex} bytes, {"p": [type, hex]} a
protobuf message of onnx.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep.errors import CorruptModel, UnsupportedOp
from q7x2_ep.ir.core import Graph, Node, Type, Value, where_is
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.shape import Expr, expr
from q7x2_ep.ops.lazy import Lazy
from q7x2_ep.plan.encode import Encoded
from q7x2_ep.plan.memory import Storage
from q7x2_ep.plan.parts import (
    Guard,
    HostPhase,
    NativePhase,
    Operand,
    Pack,
    Plan,
    Step,
    WinogradPack,
)
from q7x2_ep.plan.schedule import Access
from q7x2_ep.plan.target import KernelRow

# Of a Value the links to nodes are left out: nodes bring them back. Of a Node what inference saw.
_FIELDS: dict[type, str] = {
    Value: "name dtype shape elements const rounded",
    Node: "op inputs outputs attrs name sources binds",
    Graph: "name inputs outputs output_names nodes opset metadata is_fused external_weights guards"
    " _names",
    Plan: "graph steps storages constants packs packed_bytes guards accesses order",
    Storage: "name bytes space index first last parent parent_offset over",
}
_CLASSES = {cls.__name__: (cls, fields.split()) for cls, fields in _FIELDS.items()}
_IN_PLACE: tuple[type, ...] = (Access, Encoded, Guard, HostPhase, KernelRow, NativePhase, NearMiss)
_IN_PLACE += (Operand, Pack, Step, Type, WinogradPack)
_TUPLES: dict[str, Any] = {cls.__name__: cls for cls in _IN_PLACE}  # all of their fields
_PROTOS = ("TypeProto", "GraphProto", "TensorProto", "SparseTensorProto")


def write(root: Any, keep: Callable[[np.ndarray], Optional[int]]) -> dict[str, Any]:
    """The JSON form of an object. keep: gives an array its number, or None where it is left out.

    Raises: UnsupportedOp naming the node for what cannot be written, such as a Python function.
    """
    return _Writer(keep).document(root)


def read(document: Any, arrays: Sequence[np.ndarray]) -> Any:
    """The object of a JSON form.

    Raises: CorruptModel for anything that `write` does not make.
    """
    try:
        return _Reader(arrays).root(document)
    except (CorruptModel, MemoryError):
        raise
    except Exception as error:  # what is not of the form breaks any assumption
        raise CorruptModel(f"[compiled model] is malformed: {error!r}") from error


class _Writer:
    def __init__(self, keep: Callable[[np.ndarray], Optional[int]]):
        self.keep = keep
        self.numbers: dict[int, int] = {}  # of records, by id
        self.queue: list[Any] = []  # keeps them alive, so that an id stays theirs
        self.exprs: dict[Expr, int] = {}
        self.rows: list[Any] = []  # of exprs

    def document(self, root: Any) -> dict[str, Any]:
        top = self.value(root)
        records = []
        for record in self.queue:  # which grows meanwhile
            name = type(record).__name__
            records.append([name, *(self.field(record, f) for f in _CLASSES[name][1])])
        return {"exprs": self.rows, "records": records, "root": top}

    def field(self, record: Any, field: str) -> Any:
        try:
            return self.value(getattr(record, field))
        except TypeError as error:
            where = f"{where_is(record)} " if isinstance(record, Node) else ""
            raise UnsupportedOp(
                f"{where}{type(record).__name__}.{field}: {error}; open the ONNX model instead"
            ) from None

    def value(self, given: Any) -> Any:
        if given is None or type(given) in (bool, int, float, str):
            return given
        kind = type(given)
        if kind is list:
            return [self.value(each) for each in given]
        if isinstance(given, Expr):
            return {"e": self.expr(given)}
        if kind in _FIELDS:
            if id(given) not in self.numbers:
                self.numbers[id(given)] = len(self.queue)
                self.queue.append(given)
            return {"r": self.numbers[id(given)]}
        if kind in _IN_PLACE:
            return {"n": [kind.__name__, *map(self.value, given)]}
        if kind is tuple:
            return {"t": [self.value(each) for each in given]}
        if isinstance(given, Mapping):
            return {"d": [self.value(each) for pair in given.items() for each in pair]}
        if isinstance(given, np.generic):
            return self.value(given.item())
        if isinstance(given, (np.ndarray, Lazy)):
            number = self.keep(given)
            return None if number is None else {"a": number}
        if isinstance(given, bytes):
            return {"b": given.hex()}
        if kind.__name__ in _PROTOS and hasattr(given, "SerializeToString"):
            return {"p": [kind.__name__, given.SerializeToString().hex()]}
        raise TypeError(f"a {kind.__name__} cannot be saved")

    def expr(self, given: Expr) -> int:
        if given not in self.exprs:
            row = [
                [[[kind, *map(self.value, rest)] for kind, *rest in monomial], coefficient]
                for monomial, coefficient in given.terms
            ]
            self.exprs[given] = len(self.rows)
            self.rows.append(row)
        return self.exprs[given]


class _Reader:
    def __init__(self, arrays: Sequence[np.ndarray]):
        self.arrays = arrays
        self.exprs: list[Expr] = []
        self.records: list[Any] = []

    def root(self, document: Any) -> Any:
        value = self.value
        for row in document["exprs"]:
            terms = tuple(
                (tuple((kind, *map(value, rest)) for kind, *rest in monomial), coefficient)
                for monomial, coefficient in row
            )
            self.exprs.append(expr(terms))
        rows = document["records"]
        self.records = [_CLASSES[name][0].__new__(_CLASSES[name][0]) for name, *_ in rows]
        for record, (name, *given) in zip(self.records, rows):
            fields = _CLASSES[name][1]
            if len(given) != len(fields):
                raise CorruptModel(f"[compiled model] a {name} of {len(given)} fields")
            record.__dict__.update(zip(fields, map(value, given)))
            if isinstance(record, Value):
                record.producer, record.users = None, []
            elif isinstance(record, Node):
                record.inferred = None
        for record in self.records:
            if isinstance(record, Node):
                record.__post_init__()  # enters it at its operands
        return value(document["root"])

    def value(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self.value(each) for each in given]
        if not isinstance(given, dict):
            return given
        ((tag, entry),) = given.items()
        if tag == "r":
            return self.records[_index(entry)]
        if tag == "e":
            return self.exprs[_index(entry)]
        if tag == "a":
            return self.arrays[_index(entry)]
        if tag == "t":
            return tuple(map(self.value, entry))
        if tag == "n":
            name, *rest = entry
            return _TUPLES[name](*map(self.value, rest))
        if tag == "d":
            items = list(map(self.value, entry))
            return dict(zip(items[::2], items[1::2]))
        if tag == "b":
            return bytes.fromhex(entry)
        if tag == "p":
            return _proto(*entry)
        raise CorruptModel(f"[compiled model] unknown tag {tag!r}")


def _index(entry: Any) -> int:
    if type(entry) is not int or entry < 0:
        raise CorruptModel(f"[compiled model] expected a number of an entry, given {entry!r}")
    return entry


def _proto(name: str, text: str) -> Any:
    import onnx

    if name not in _PROTOS:
        raise CorruptModel(f"[compiled model] unknown message {name!r}")
    message = getattr(onnx, name)()
    message.ParseFromString(bytes.fromhex(text))
    return message
