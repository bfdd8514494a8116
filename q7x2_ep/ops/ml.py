"""ai.onnx.ml but for trees.py and svm.py: what a converter of scikit-learn pipelines emits.

What has a meaning in ONNX's own ops is written in these, and runs natively; labels, dictionaries
and strings run on the host. Where the standard leaves a choice, it is onnxruntime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isnan, pi
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.ir.core import NO_TENSOR, Node, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.common import NotInferable, dims, fresh, where_is
from q7x2_ep.ops.contrib import infer_meaning

F32 = np.float32


def floats(g: Any, values: Optional[Sequence[float]], default: float = 0.0) -> Value:
    """An attribute as a constant; of one element, or what is left out, as a scalar."""
    array = np.array(values or [default], F32)
    return g.array(array.reshape(()) if array.size == 1 else array)


def as_float(g: Any, x: Value) -> Value:
    return x if x.dtype == dtypes.FLOAT else g.Cast(x, to=dtypes.FLOAT)


# Features


@op("ai.onnx.ml::ArrayFeatureExtractor")
class ArrayFeatureExtractor:
    """z = x[.., y], of at least two dims."""

    signature = "x, y -> z"
    attributes: dict = {}
    unsupported = ()
    infer = infer_meaning

    def decompose(g: Any, x: Value, y: Value) -> Value:
        flat = g.Unsqueeze(x, [0]) if len(x.shape) == 1 else x
        return g.Gather(flat, g.Reshape(y, [-1]), axis=-1)


@op("ai.onnx.ml::Binarizer")
class Binarizer:
    """y = 1 where x > threshold, else 0."""

    signature = "x -> y"
    attributes = {"threshold": 0.0}
    unsupported = ()
    infer = infer_meaning

    def decompose(g: Any, x: Value, threshold: float) -> Value:
        limit = threshold if dtypes.is_float(x.dtype) else floor(threshold)
        return g.Cast(g.Greater(x, g.literal(limit, x.dtype)), to=x.dtype)


@op("ai.onnx.ml::FeatureVectorizer")
class FeatureVectorizer:
    """The inputs side by side, each cut or filled with zeros to the size that is given for it."""

    signature = "x* -> y"
    attributes: dict = {"inputdimensions": ()}
    unsupported = ()
    infer = infer_meaning

    def decompose(g: Any, *inputs: Value, inputdimensions: Sequence[int]) -> Value:
        parts = []
        for x, size in zip(inputs, inputdimensions):
            part = as_float(g, g.Unsqueeze(x, [0]) if len(x.shape) == 1 else x)
            given = part.shape[1]
            if not isinstance(given, int):
                raise NotInferable(f"FeatureVectorizer: the size of {x.name} is not known")
            if given < size:
                part = g.Pad(part, [0, 0, 0, size - given])
            parts.append(part if given <= size else g.Slice(part, [0], [size], [1]))
        return g.Concat(*parts, axis=1)


@op("ai.onnx.ml::Imputer")
class Imputer:
    """y = x with one value, or NaN, replaced, in each column by its own."""

    signature = "x -> y"
    attributes = {
        "imputed_value_floats": None,
        "imputed_value_int64s": None,
        "replaced_value_float": 0.0,
        "replaced_value_int64": 0,
    }
    unsupported = ()
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        imputed_value_floats: Optional[Sequence[float]],
        imputed_value_int64s: Optional[Sequence[int]],
        replaced_value_float: float,
        replaced_value_int64: int,
    ) -> Value:
        is_float = dtypes.is_float(x.dtype)
        values = imputed_value_floats if is_float else imputed_value_int64s
        old = replaced_value_float if is_float else replaced_value_int64
        if not values:
            raise ModelError(f"Imputer: no values for {dtypes.type_string(x.dtype)}")
        missing = g.IsNaN(x) if isnan(old) else g.Equal(x, g.literal(old, x.dtype))
        return g.Where(missing, g.array(np.array(values, dtypes.DTYPES[x.dtype].numpy)), x)


@op("ai.onnx.ml::Normalizer")
class Normalizer:
    """y = x / norm of its row: the largest element, the sum of magnitudes, or the length."""

    signature = "x -> y"
    attributes = {"norm": "MAX"}
    unsupported = ()
    infer = infer_meaning

    def decompose(g: Any, x: Value, norm: str) -> Value:
        reductions = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
        if norm not in reductions:
            raise ModelError(f"Normalizer: the norm is one of {', '.join(reductions)}, not {norm}")
        x = as_float(g, x)
        size = g.call(reductions[norm], x, [-1])
        return g.Div(x, g.Where(g.Equal(size, 0.0), g.literal(1.0), size))


@op("ai.onnx.ml::Scaler")
class Scaler:
    """y = (x - offset) * scale."""

    signature = "x -> y"
    attributes = {"offset": None, "scale": None}
    unsupported = ()
    infer = infer_meaning

    def decompose(g: Any, x: Value, offset: Any, scale: Any) -> Value:
        return g.Mul(g.Sub(as_float(g, x), floats(g, offset)), floats(g, scale, 1.0))


# Linear models


def transformed(g: Any, kind: str, scores: Value) -> Value:
    """What becomes of the scores (.., classes) of a model."""
    if kind == "SOFTMAX":
        return g.Softmax(scores, axis=-1)
    if kind == "LOGISTIC":
        return g.Sigmoid(scores)
    if kind == "SOFTMAX_ZERO":  # a score of 0 stays 0
        largest = g.ReduceMax(scores, [-1])
        is_zero = g.LessOrEqual(g.Abs(scores), 1e-7)
        powers = g.Exp(g.Sub(scores, largest))
        terms = g.Where(is_zero, g.Mul(scores, g.Exp(g.Neg(largest))), powers)
        total = g.ReduceSum(terms, [-1])
        shares = g.Div(terms, total)
        return g.Where(g.Equal(total, 0.0), g.literal(0.5), shares)
    if kind == "PROBIT":  # sqrt(2) times an approximation of the inverse of erf at 2 x - 1
        x = g.Sub(g.Mul(scores, 2.0), 1.0)
        logarithm = g.Log(g.Mul(g.Sub(1.0, x), g.Add(x, 1.0)))
        a = g.Add(g.Mul(logarithm, 0.5), 2 / (pi * 0.147))
        root = g.Sqrt(g.Sub(g.Mul(a, a), g.Mul(logarithm, 1 / 0.147)))
        return g.Mul(g.Mul(g.Sign(x), g.Sqrt(g.Sub(root, a))), 1.41421356)
    if kind != "NONE":
        raise ModelError(f"post_transform {kind} is not one of ONNX")
    return scores


def linear(g: Any, x: Value, rows: int, coefficients: Any, intercepts: Any) -> Value:
    """x @ coefficients.T + intercepts, (.., rows)."""
    weights = np.array(coefficients, F32).reshape(rows, -1)
    y = g.MatMul(as_float(g, x), g.array(np.ascontiguousarray(weights.T)))
    return g.Add(y, g.array(np.array(intercepts, F32))) if intercepts else y


@op("ai.onnx.ml::LinearRegressor")
class LinearRegressor:
    """y = post_transform(x @ coefficients.T + intercepts)."""

    signature = "x -> y"
    attributes = {
        "coefficients": None,
        "intercepts": None,
        "post_transform": "NONE",
        "targets": 1,
    }
    unsupported = ()
    infer = infer_meaning

    def decompose(
        g: Any, x: Value, coefficients: Any, intercepts: Any, post_transform: str, targets: int
    ) -> Value:
        return transformed(g, post_transform, linear(g, x, targets, coefficients, intercepts))


@op("ai.onnx.ml::LinearClassifier")
class LinearClassifier:
    """The best label of each row, and the scores of all: post_transform(x @ coefficients.T + b).

    One score s for two labels is that of the second: the first has 1 - s, or under LOGISTIC -s, and
    the other transforms than LOGISTIC and PROBIT leave the two as they are.
    """

    signature = "x -> label, scores"
    attributes = {
        "classlabels_ints": None,
        "classlabels_strings": None,
        "coefficients": None,
        "intercepts": None,
        "multi_class": 0,
        "post_transform": "NONE",
    }
    unsupported = ()
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        classlabels_ints: Optional[Sequence[int]],
        classlabels_strings: Optional[Sequence[str]],
        coefficients: Sequence[float],
        intercepts: Optional[Sequence[float]],
        multi_class: int,
        post_transform: str,
    ) -> tuple[Value, Value]:
        table = labels(classlabels_ints, classlabels_strings)
        rows = len(coefficients) // known_columns(x)
        scores = linear(g, x, rows, coefficients, intercepts)
        if rows > 1:
            best = g.ArgMax(scores, axis=1, keepdims=0)
        else:
            best = g.Cast(g.Greater(g.Reshape(scores, [-1]), 0.0), to=dtypes.INT64)
            if len(table) == 2:
                odds = post_transform == "LOGISTIC"
                opposite = g.Neg(scores) if odds else g.Sub(1.0, scores)
                scores = g.Concat(opposite, scores, axis=1)
                post_transform = post_transform if odds or post_transform == "PROBIT" else "NONE"
            else:
                table = np.array(["0", "1"], object) if classlabels_strings else np.arange(2)
        return g.Gather(g.array(table), best), transformed(g, post_transform, scores)


def labels(ints: Optional[Sequence[int]], strings: Optional[Sequence[str]]) -> np.ndarray:
    """What a model calls its classes."""
    return np.array(strings, object) if strings else np.array(ints or (), np.int64)


def known_columns(x: Value) -> int:
    columns = x.shape[-1]
    if not isinstance(columns, int):
        raise NotInferable(f"the number of features of {x.name} is not known")
    return columns


# Labels, dictionaries and strings


def infer_like(code: Any) -> Any:
    """infer of one output of the shape of the input; code(node) gives its dtype."""
    return lambda node: [Type(code(node), dims(node))]


def looked_up(x: np.ndarray, table: dict, default: Any, dtype: Any) -> np.ndarray:
    """table[x] element by element. NaN is a key like others."""
    found = np.empty(x.size, dtype)
    found[:] = [table.get(key if key == key else "nan", default) for key in x.ravel().tolist()]
    return found.reshape(x.shape)


def first_given(node: Node, kind: str) -> tuple[str, Any]:
    """Which of the attributes keys_*, values_* was given, and what it holds."""
    for suffix in ("tensor", "strings", "int64s", "floats"):
        values = node.attrs[f"{kind}_{suffix}"]
        if values is not None:
            return suffix, values
    raise ModelError(f"{where_is(node)} has no {kind}")


def encoded_dtype(node: Node) -> int:
    if node.attrs["classes_strings"] is not None:
        return dtypes.INT64 if node.inputs[0].dtype == dtypes.STRING else dtypes.STRING
    suffix, values = first_given(node, "values")
    if suffix == "tensor":
        return dtypes.from_numpy(values.dtype)
    codes = {"strings": dtypes.STRING, "int64s": dtypes.INT64, "floats": dtypes.FLOAT}
    return codes[suffix]


@op("ai.onnx.ml::LabelEncoder")
class LabelEncoder:
    """y = values[i] where x = keys[i], or the default. Of equal keys the last counts."""

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
    infer = infer_like(encoded_dtype)

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        code = encoded_dtype(node)
        classes = node.attrs["classes_strings"]
        if classes is not None:
            pairs = list(enumerate(classes))
            table = dict(pairs) if code == dtypes.STRING else {name: i for i, name in pairs}
        else:
            keys, values = (
                each.ravel().tolist() if isinstance(each, np.ndarray) else each
                for each in (first_given(node, "keys")[1], first_given(node, "values")[1])
            )
            table = {key if key == key else "nan": value for key, value in zip(keys, values)}
            table = {float(F32(key)): v for key, v in table.items()} if False else table
        default = node.attrs["default_tensor"]
        if default is not None:
            default = default.item()
        elif code == dtypes.STRING:
            default = node.attrs["default_string"]
        else:
            default = node.attrs["default_float" if dtypes.is_float(code) else "default_int64"]
        return looked_up(x, table, default, dtypes.DTYPES[code].numpy)


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

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        numbers, names = node.attrs["cats_int64s"], node.attrs["cats_strings"]
        if x.dtype.kind in "iu":
            return looked_up(x, dict(zip(numbers, names)), node.attrs["default_string"], object)
        return looked_up(x, dict(zip(names, numbers)), node.attrs["default_int64"], np.int64)


@op("ai.onnx.ml::OneHotEncoder")
class OneHotEncoder:
    """y[.., j] = 1 where x is category j, else 0. With zeros=0 every x must be a category."""

    signature = "x -> y"
    attributes: dict = {"cats_int64s": None, "cats_strings": None, "zeros": 1}

    def infer(node: Node) -> list[Type]:
        table = labels(node.attrs["cats_int64s"], node.attrs["cats_strings"])
        return [Type(dtypes.FLOAT, (*dims(node), len(table)))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        table = labels(node.attrs["cats_int64s"], node.attrs["cats_strings"])
        whole = x if node.attrs["cats_strings"] else x.astype(np.int64)
        y = np.equal(whole[..., None], table).astype(F32)
        if not node.attrs["zeros"] and not y.any(-1).all():
            unknown = x[~y.any(-1)].ravel()[0]
            raise DataError(f"{where_is(node)} {unknown!r} is not among the categories")
        return y


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
    return (np.int64 if isinstance(first, int) else F32), 0


@op("ai.onnx.ml::CastMap")
class CastMap:
    """One row of a dictionary's values: in order of the keys, or each at the place of its key."""

    signature = "x -> y"
    attributes: dict = {"cast_to": "TO_FLOAT", "map_form": "DENSE", "max_map": 1}
    infer = lambda node: [Type(CAST_TO[node.attrs["cast_to"]], (1, *fresh(node, 0, 2)[1:]))]

    def reference(node: Node, x: dict) -> np.ndarray:
        dtype = dtypes.DTYPES[CAST_TO[node.attrs["cast_to"]]].numpy
        items = sorted(x.items())
        if node.attrs["map_form"] == "DENSE":
            return np.array([[value for _, value in items]]).astype(dtype)
        size = node.attrs["max_map"]
        row = np.full((1, size), "0" if dtype == "object" else 0, dtype)
        for key, value in items:
            if not 0 <= key < size:
                raise DataError(f"{where_is(node)} key {key} is outside of [0, {size})")
            row[0, key] = np.array(value).astype(dtype)
        return row


CAST_TO = {"TO_FLOAT": dtypes.FLOAT, "TO_INT64": dtypes.INT64, "TO_STRING": dtypes.STRING}


@op("ai.onnx.ml::ZipMap")
class ZipMap:
    """A sequence of one dictionary per row, from label to score."""

    signature = "x -> z"
    attributes: dict = {"classlabels_int64s": None, "classlabels_strings": None}
    infer = lambda node: [NO_TENSOR]

    def reference(node: Node, x: np.ndarray) -> tuple:
        names = node.attrs["classlabels_strings"] or node.attrs["classlabels_int64s"] or ()
        if x.shape[-1] != len(names):
            raise DataError(f"{where_is(node)} {x.shape[-1]} scores for {len(names)} labels")
        rows = np.atleast_2d(x).tolist()
        return ([dict(zip(names, row)) for row in rows],)
