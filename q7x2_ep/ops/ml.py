"""Features and linear models of ai.onnx.ml, as converters of scikit-learn pipelines emit them.

What has a meaning in ONNX's own ops is written in these, and runs natively; labels, dictionaries
and strings run on the host. Where the standard leaves a choice, it is onnxruntime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isnan, pi
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Value
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import infer_meaning
from q7x2_ep.ops.common import NotInferable


def floats(g: Any, values: Optional[Sequence[float]], default: float = 0.0) -> Value:
    """An attribute as a constant; of one element, or what is left out, as a scalar."""
    array = np.array(values or [default], np.float32)
    return g.array(array.reshape(()) if array.size == 1 else array)


def as_float(g: Any, x: Value) -> Value:
    return x if x.dtype == dtypes.FLOAT else g.Cast(x, to=dtypes.FLOAT)


def rows_of(g: Any, x: Value) -> Value:
    """x as a matrix, one row for each sample; of one dim it is one sample."""
    if len(x.shape) == 2:
        return x
    return g.Unsqueeze(x, [0]) if len(x.shape) == 1 else g.Flatten(x, axis=1)


# Features


@op("ai.onnx.ml::ArrayFeatureExtractor")
class ArrayFeatureExtractor:
    """z = x[.., y], of at least two dims."""

    signature = "x, y: int64 -> z"
    attributes: dict = {}
    infer = infer_meaning

    def decompose(g: Any, x: Value, y: Value) -> Value:
        flat = g.Unsqueeze(x, [0]) if len(x.shape) == 1 else x
        return g.Gather(flat, g.Reshape(y, [-1]), axis=-1)


@op("ai.onnx.ml::Binarizer")
class Binarizer:
    """y = 1 where x > threshold, else 0."""

    signature = "x: N -> y"
    attributes = {"threshold": 0.0}
    infer = infer_meaning

    def decompose(g: Any, x: Value, threshold: float) -> Value:
        limit = threshold if dtypes.is_float(x.dtype) else floor(threshold)
        return g.Cast(g.Greater(x, g.literal(limit, x.dtype)), to=x.dtype)


@op("ai.onnx.ml::FeatureVectorizer")
class FeatureVectorizer:
    """The inputs side by side, each cut or filled with zeros to the size that is given for it."""

    signature = "x*: N -> y"
    attributes: dict = {"inputdimensions": ()}
    infer = infer_meaning

    def decompose(g: Any, *inputs: Value, inputdimensions: Sequence[int]) -> Value:
        parts = []
        for x, size in zip(inputs, inputdimensions):
            part = as_float(g, rows_of(g, x))
            given = part.shape[1]
            missing = size - given if isinstance(given, int) else size
            if missing > 0:
                part = g.Pad(part, [0, 0, 0, missing])
            parts.append(part if part.shape[1] == size else g.Slice(part, [0], [size], [1]))
        return g.Concat(*parts, axis=1)


@op("ai.onnx.ml::Imputer")
class Imputer:
    """y = x with one value, or NaN, replaced, in each column by its own."""

    signature = "x: N -> y"
    attributes = {
        "imputed_value_floats": None,
        "imputed_value_int64s": None,
        "replaced_value_float": 0.0,
        "replaced_value_int64": 0,
    }
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

    signature = "x: N -> y"
    attributes = {"norm": "MAX"}
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

    signature = "x: N -> y"
    attributes = {"offset": None, "scale": None}
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
        return g.Where(g.Equal(total, 0.0), 0.5, shares)
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
    """x @ coefficients.T + intercepts, (N, rows). What there is beyond that, or intercepts of
    another number, are not looked at, as in onnxruntime.
    """
    x, weights = as_float(g, rows_of(g, x)), np.array(coefficients, np.float32)
    if isinstance(x.shape[1], int):
        weights = weights[: rows * x.shape[1]]
    y = g.MatMul(x, g.array(np.ascontiguousarray(weights.reshape(rows, -1).T)))
    is_whole = len(intercepts or ()) == rows
    return g.Add(y, g.array(np.array(intercepts, np.float32))) if is_whole else y


@op("ai.onnx.ml::LinearRegressor")
class LinearRegressor:
    """y = post_transform(x @ coefficients.T + intercepts)."""

    signature = "x: N -> y"
    attributes = {
        "coefficients": None,
        "intercepts": None,
        "post_transform": "NONE",
        "targets": 1,
    }
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

    signature = "x: N -> label, scores"
    attributes = {
        "classlabels_ints": None,
        "classlabels_strings": None,
        "coefficients": None,
        "intercepts": None,
        "multi_class": 0,
        "post_transform": "NONE",
    }
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
        rows = len(intercepts or ()) or len(coefficients) // known_columns(x)
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
    return (
        np.array(strings, object) if strings else np.array(() if ints is None else ints, np.int64)
    )


def known_columns(x: Value) -> int:
    columns = x.shape[-1]
    if not isinstance(columns, int):
        raise NotInferable(f"the number of features of {x.name} is not known")
    return columns
