"""Labels, dictionaries and strings of ai.onnx.ml, most of them on the host. Read ml.py first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.ir.core import NO_TENSOR, Node, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.common import NUMERIC, dims, fresh, reference_of, where_is
from q7x2_ep.ops.ml import labels

if TYPE_CHECKING:
    from q7x2_ep.ops.fused import Standard

DENSE = 1 << 16  # keys that are so close together are places in an array
FAR = 1 << 62  # and are not at the ends of int64
COMPARED = 256  # keys at most: 2 ns each, where Python looks one number up in 600
SPELLED = 32  # values of a dictionary at most, as source
PARTS = ("keys", "values")  # of a LabelEncoder, and what lists of them are called
_LISTS = {dtypes.STRING: "strings", dtypes.INT64: "int64s", dtypes.FLOAT: "floats"}


def infer_like(code: Any) -> Any:
    """infer of one output of the shape of the input; code(node) gives its dtype."""
    return lambda node: [Type(code(node), dims(node))]


def lookup(table: dict, default: Any, dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    """table[x] element by element. NaN is a key like others."""
    get, dtype = table.get, np.dtype(dtype)

    def look_up(x: np.ndarray) -> np.ndarray:
        keys = x.ravel().tolist()
        if x.dtype.kind == "f":
            keys = [key if key == key else "nan" for key in keys]
        return np.array([get(key, default) for key in keys], dtype).reshape(x.shape)

    return look_up


class Dictionary(NamedTuple):
    """What keys stand for, NaN under "nan", what others do, and the dtype of either."""

    table: dict
    default: Any
    dtype: int


def encoded_dtype(source: int, attrs: Mapping[str, Any]) -> int:
    """What a LabelEncoder of elements of dtype `source` gives."""
    if attrs["classes_strings"] is not None:
        return dtypes.INT64 if source == dtypes.STRING else dtypes.STRING
    suffix, values = _given(attrs, "values")
    codes = {"strings": dtypes.STRING, "int64s": dtypes.INT64, "floats": dtypes.FLOAT}
    return dtypes.from_numpy(values.dtype) if suffix == "tensor" else codes[suffix]


def dictionary(source: int, attrs: Mapping[str, Any]) -> Dictionary:
    """That of a LabelEncoder of elements of dtype `source`."""
    dtype = encoded_dtype(source, attrs)
    if attrs["classes_strings"] is not None:
        names = list(enumerate(attrs["classes_strings"]))
        if source == dtypes.STRING:
            return Dictionary({n: i for i, n in names}, attrs["default_int64"], dtype)
        return Dictionary(dict(names), attrs["default_string"], dtype)
    keys, values = (
        each.ravel().tolist() if isinstance(each, np.ndarray) else each
        for each in (_given(attrs, part)[1] for part in ("keys", "values"))
    )
    if attrs["default_tensor"] is not None:
        default = attrs["default_tensor"].item()
    elif dtype == dtypes.STRING:
        default = attrs["default_string"]
    else:
        default = attrs["default_float" if dtypes.is_float(dtype) else "default_int64"]
    pairs = reversed([*zip(keys, values)])
    return Dictionary({k if k == k else "nan": v for k, v in pairs}, default, dtype)


def _tensor(code: int, numbers: list) -> np.ndarray:
    return np.array(numbers, dtypes.DTYPES[code].numpy)


def _given(attrs: Mapping[str, Any], part: str) -> tuple[str, Any]:
    """Which of the attributes keys_*, values_* was given, and what it holds."""
    for suffix in ("tensor", "strings", "int64s", "floats"):
        if attrs[f"{part}_{suffix}"] is not None:
            return suffix, attrs[f"{part}_{suffix}"]
    raise ModelError(f"LabelEncoder has no {part}")


@op("ai.onnx.ml::LabelEncoder")
class LabelEncoder:
    """y = values[i] where x = keys[i], or the default. Of equal keys the first counts."""

    signature = "x -> y"
    attributes = {
        "classes_strings": None,  # of opset 1: strings to their positions, or back
        **dict.fromkeys(
            f"{kind}_{suffix}"
            for kind in ("keys", "values")
            for suffix in ("floats", "int64s", "strings", "tensor")
        ),
        "default_float": -0.0,
        "default_int64": -1,
        "default_string": "_Unused",
        "default_tensor": None,
    }

    def infer(node: Node) -> list[Type]:
        return [Type(encoded_dtype(node.inputs[0].dtype, node.attrs), dims(node))]

    def decompose(g: Any, x: Value, **attrs: Any) -> Value:
        known = dictionary(x.dtype, attrs)
        keys = [key for key in known.table if isinstance(key, int) and abs(key) < FAR]
        low, high = min(keys, default=0), max(keys, default=0)
        is_dense = x.dtype == dtypes.INT64 and len(keys) == len(known.table)
        if not is_dense or high - low >= DENSE or known.dtype == dtypes.STRING:
            y = _compared(g, x, known)
            return g.call("q7::Encoded", x, **known._asdict()) if y is None else y
        values = np.full(high - low + 3, known.default, dtypes.DTYPES[known.dtype].numpy)
        values[[key - low + 1 for key in known.table]] = list(known.table.values())
        first, last = (g.array(np.array(end)) for end in (low - 1, high + 1))  # of other keys
        return g.Gather(g.array(values), g.Sub(g.Min(g.Max(x, first), last), first))


def _compared(g: Any, x: Value, known: Dictionary) -> Optional[Value]:
    """What each x stands for, held against all keys; None where those are many, or no numbers of
    its dtype, and equal to themselves.
    """
    keys = list(known.table)
    are_numbers = x.dtype in NUMERIC and known.dtype in NUMERIC and 0 < len(keys) <= COMPARED
    if not are_numbers or not all(isinstance(key, (int, float)) for key in keys):
        return None
    if dtypes.DTYPES[x.dtype].kind != "f" and not all(isinstance(key, int) for key in keys):
        return None
    try:
        held = _tensor(x.dtype, keys)
        values = _tensor(known.dtype, [known.default, *known.table.values()])
    except OverflowError:
        return None
    if held.tolist() != keys:
        return None
    places = g.array(np.arange(1, len(keys) + 1, dtype=np.int32))
    zero = g.array(np.zeros((), np.int32))
    place = g.Where(g.Equal(g.Unsqueeze(x, [-1]), g.array(held)), places, zero)
    return g.Gather(g.array(values), g.ReduceMax(place, [-1], keepdims=0))


@op("q7::Encoded")
class Encoded:
    """y = table[x], or the default."""

    signature = "x -> y"
    attributes: dict = {"table": None, "default": None, "dtype": dtypes.INT64}
    infer = infer_like(lambda node: node.attrs["dtype"])

    def prepared(node: Node) -> Callable[[np.ndarray], np.ndarray]:
        table, default, dtype = (node.attrs[name] for name in Encoded.attributes)
        return lookup(table, default, dtypes.DTYPES[dtype].numpy)

    reference = reference_of(prepared)

    def standard(node: Node) -> Standard:
        table, default, dtype = (node.attrs[name] for name in Encoded.attributes)
        source, keys = node.inputs[0].dtype, list(table)
        if source != dtypes.STRING:
            keys = [float("nan") if key == "nan" else key for key in keys]
        sides = (source, keys), (dtype, list(table.values()))
        kinds = [_LISTS.get(code) for code, _ in sides]
        if None in kinds:
            kinds = ["tensor", "tensor"]
            sides = tuple((code, _tensor(code, given)) for code, given in sides)
            default = _tensor(dtype, [default])
        attrs = {f"{part}_{kind}": v for part, kind, (_, v) in zip(PARTS, kinds, sides)}
        attrs[f"default_{kinds[1].removesuffix('s')}"] = default
        return "ai.onnx.ml::LabelEncoder", node.inputs, attrs


@op("ai.onnx.ml::CategoryMapper")
class CategoryMapper:
    """Strings to integers or back, by two lists side by side."""

    signature = "x -> y"
    attributes: dict = {
        "cats_int64s": (),
        "cats_strings": (),
        "default_int64": -1,
        "default_string": "_Unused",
    }
    infer = infer_like(
        lambda node: dtypes.INT64 if node.inputs[0].dtype == dtypes.STRING else dtypes.STRING
    )

    def decompose(
        g: Any,
        x: Value,
        cats_int64s: Any,
        cats_strings: Any,
        default_int64: int,
        default_string: str,
    ) -> Value:
        if x.dtype == dtypes.STRING:
            known = Dictionary(dict(zip(cats_strings, cats_int64s)), default_int64, dtypes.INT64)
        else:
            known = Dictionary(dict(zip(cats_int64s, cats_strings)), default_string, dtypes.STRING)
        return g.call("q7::Encoded", x, **known._asdict())


@op("ai.onnx.ml::OneHotEncoder")
class OneHotEncoder:
    """y[.., j] = 1 where x is category j, else 0. With zeros=0 every x must be a category."""

    signature = "x -> y"
    attributes: dict = {"cats_int64s": None, "cats_strings": None, "zeros": 1}

    def infer(node: Node) -> list[Type]:
        table = labels(node.attrs["cats_int64s"], node.attrs["cats_strings"])
        return [Type(dtypes.FLOAT, (*dims(node), len(table)))]

    def decompose(g: Any, x: Value, cats_int64s: Any, cats_strings: Any, zeros: int) -> Value:
        table = labels(cats_int64s, cats_strings)
        if not zeros:
            return g.call("q7::Categories", x, categories=table)
        places = {key: i for i, key in enumerate(table.tolist())}  # of equal ones the last
        whole = x if cats_strings or x.dtype == dtypes.INT64 else g.Cast(x, to=dtypes.INT64)
        if cats_strings or len(places) < len(table):
            whole = g.call("q7::Encoded", whole, table=places, default=-1)
            table = np.arange(len(table))
        flags = g.Equal(g.Unsqueeze(whole, [-1]), g.array(table))
        return g.Cast(flags, to=dtypes.FLOAT)


@op("q7::Categories")
class Categories:
    """A OneHotEncoder that every x must be known to."""

    signature = "x -> y"
    attributes: dict = {"categories": None}

    def infer(node: Node) -> list[Type]:
        return [Type(dtypes.FLOAT, (*dims(node), len(node.attrs["categories"])))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        table = node.attrs["categories"]
        places = {key: i for i, key in enumerate(table.tolist())}
        whole = x if table.dtype == object else x.astype(np.int64)
        found = lookup(places, -1, np.int64)(whole)
        if (found < 0).any():
            unknown = x[found < 0].ravel()[0]
            raise DataError(f"{where_is(node)} {unknown!r} is not among the categories")
        return np.equal(found[..., None], np.arange(len(table))).astype(np.float32)

    def standard(node: Node) -> Standard:
        table = node.attrs["categories"]
        kind = "cats_strings" if table.dtype == object else "cats_int64s"
        return "ai.onnx.ml::OneHotEncoder", node.inputs, {kind: table.tolist(), "zeros": 0}


@op("ai.onnx.ml::DictVectorizer")
class DictVectorizer:
    """One row: for each word of the vocabulary what the dictionary holds for it, or zero."""

    signature = "x -> y"
    attributes: dict = {"int64_vocabulary": None, "string_vocabulary": None}
    infer = lambda node: [Type(dtypes.UNKNOWN, None)]

    def reference(node: Node, x: Any) -> np.ndarray:
        words = node.attrs["string_vocabulary"] or node.attrs["int64_vocabulary"]
        rows = [x] if isinstance(x, dict) else list(x)
        values = [value for row in rows for value in row.values()]
        dtype, zero = map_dtype(values)
        return np.array([[row.get(word, zero) for word in words] for row in rows], dtype)


def map_dtype(values: list) -> tuple[Any, Any]:
    """The numpy dtype of a dictionary's values, float32 for Python's floats, and its zero."""
    first = values[0] if values else 0.0
    if isinstance(first, str):
        return object, ""
    if isinstance(first, np.generic):
        return first.dtype, 0
    return (np.int64 if isinstance(first, int) else np.float32), 0


@op("ai.onnx.ml::CastMap")
class CastMap:
    """One row of a dictionary's values: in order of the keys, or each at the place of its key."""

    signature = "x -> y"
    attributes: dict = {"cast_to": "TO_FLOAT", "map_form": "DENSE", "max_map": 1}
    infer = lambda node: [Type(CAST_TO[node.attrs["cast_to"]], (1, *fresh(node, 0, 2)[1:]))]

    def reference(node: Node, x: dict) -> np.ndarray:
        dtype = dtypes.DTYPES[CAST_TO[node.attrs["cast_to"]]].numpy
        items = sorted(x.items())
        if dtype == "object":
            items = [(k, v if isinstance(v, str) else f"{v:f}") for k, v in items]
        if node.attrs["map_form"] == "DENSE":
            return np.array([[value for _, value in items]]).astype(dtype)
        size = node.attrs["max_map"]
        row = np.full((1, size), "0.f" if dtype == "object" else 0, dtype)
        for key, value in items:
            if not 0 <= key < size:
                raise DataError(f"{where_is(node)} key {key} is outside of [0, {size})")
            row[0, key] = np.array(value).astype(dtype).item()
        return row


CAST_TO = {"TO_FLOAT": dtypes.FLOAT, "TO_INT64": dtypes.INT64, "TO_STRING": dtypes.STRING}


@cache
def _dictionaries(count: int) -> Callable[..., list[dict]]:
    """(rows, *keys): a dictionary of each row of so many values. Spelled out, as `zip` takes three
    times as long; by names that are made here alone.
    """
    if not 0 < count <= SPELLED:
        return lambda rows, *keys: [dict(zip(keys, row)) for row in rows]
    keys, values = ([f"{letter}{i}" for i in range(count)] for letter in "kv")
    pairs = ", ".join(f"{key}: {value}" for key, value in zip(keys, values))
    one = f"[{{{pairs}}} for [{', '.join(values)}] in rows]"
    return eval(f"lambda rows, {', '.join(keys)}: {one}")


@op("ai.onnx.ml::ZipMap")
class ZipMap:
    """A sequence of one dictionary per row, from label to score, in the order of labels."""

    signature = "x: float32 -> z"
    attributes: dict = {"classlabels_int64s": None, "classlabels_strings": None}
    infer = lambda node: [NO_TENSOR]

    def reference(node: Node, x: np.ndarray) -> tuple:
        names = [*(node.attrs["classlabels_strings"] or node.attrs["classlabels_int64s"] or ())]
        if x.shape[-1] != len(names):
            raise DataError(f"{where_is(node)} {x.shape[-1]} scores for {len(names)} labels")
        if names != sorted(names):
            x = x[..., sorted(range(len(names)), key=names.__getitem__)]
            names = sorted(names)
        rows = (x if x.ndim > 1 else x[None]).tolist()
        return (_dictionaries(len(names))(rows, *names),)
