"""Support vector machines of ai.onnx.ml. Read ml.py first.

Letters: N rows, F features, S support vectors, C classes, P = C (C - 1) / 2 pairs of them.
Source: libsvm, for the probabilities; where the standard leaves a choice, it is onnxruntime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import infer_meaning
from q7x2_ep.ops.common import F32, dims, require_dtype
from q7x2_ep.ops.ml import as_float, labels, rows_of, transformed

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def kernel(g: Any, x: Value, vectors: np.ndarray, kind: str, params: Sequence[float]) -> Value:
    """How alike each row is to each of vectors (S, F): (N, S)."""
    gamma, offset, degree = params or (0.0, 0.0, 0.0)
    if kind == "RBF":
        difference = g.Sub(g.Unsqueeze(x, [1]), g.array(vectors[None]))
        distance = g.ReduceSumSquare(difference, [2], keepdims=0)
        return g.Exp(g.Mul(distance, -gamma))
    product = g.MatMul(x, g.array(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    scaled = g.Add(g.Mul(product, gamma), offset)
    if kind == "SIGMOID":
        return g.Tanh(scaled)
    if kind != "POLY":
        raise ModelError(f"the kernel is one of {', '.join(KERNELS)}, not {kind}")
    return g.Pow(scaled, degree)


@op("ai.onnx.ml::SVMRegressor")
class SVMRegressor:
    """y = kernel(x, support_vectors) @ coefficients + rho; of one class its sign."""

    signature = "x: N -> y"
    attributes = {
        "coefficients": None,
        "kernel_params": None,
        "kernel_type": "LINEAR",
        "n_supports": 0,
        "one_class": 0,
        "post_transform": "NONE",
        "rho": None,
        "support_vectors": None,
    }
    infer = infer_meaning

    def decompose(
        g: Any,
        x: Value,
        coefficients: Sequence[float],
        kernel_params: Sequence[float],
        kernel_type: str,
        n_supports: int,
        one_class: int,
        post_transform: str,
        rho: Sequence[float],
        support_vectors: Sequence[float],
    ) -> Value:
        x, weights = as_float(g, rows_of(g, x)), np.array(coefficients, np.float32)[:, None]
        if n_supports:
            vectors = np.array(support_vectors, np.float32).reshape(n_supports, -1)
            x = kernel(g, x, vectors, kernel_type, kernel_params)
        y = g.Add(g.MatMul(x, g.array(weights)), float(rho[0]))
        if one_class:
            return g.Where(g.Greater(y, 0.0), g.literal(1.0), g.literal(-1.0))
        return transformed(g, post_transform, y)


@op("ai.onnx.ml::SVMClassifier")
class SVMClassifier:
    """The best label of each row, and the scores of all classes, or of all pairs of classes.

    With support vectors each pair decides by sign, and the class that wins most often is the best;
    prob_a and prob_b make probabilities of what the pairs say. Without, scores are linear.
    """

    signature = "x: N -> label, scores"
    attributes = {
        "classlabels_ints": None,
        "classlabels_strings": None,
        "coefficients": None,
        "kernel_params": None,
        "kernel_type": "LINEAR",
        "post_transform": "NONE",
        "prob_a": None,
        "prob_b": None,
        "rho": None,
        "support_vectors": None,
        "vectors_per_class": None,
    }
    infer = infer_meaning

    def decompose(g: Any, x: Value, **attrs: Any) -> tuple[Value, Value]:
        names = labels(attrs["classlabels_ints"], attrs["classlabels_strings"])
        kind, params = attrs["kernel_type"], attrs["kernel_params"]
        weights, rho = (np.array(attrs[name], np.float32) for name in ("coefficients", "rho"))
        x, sizes = as_float(g, rows_of(g, x)), attrs["vectors_per_class"] or ()
        if sum(sizes):
            vectors = np.array(attrs["support_vectors"], np.float32).reshape(sum(sizes), -1)
            pairs = pair_weights(weights.reshape(-1, len(vectors)), sizes)
            likeness = kernel(g, x, vectors, kind, params)
            # large terms of either sign, which onnxruntime adds up in double, too
            exact = g.MatMul(g.Cast(likeness, to=dtypes.DOUBLE), g.array(pairs.astype(np.float64)))
            scores = g.Cast(g.Add(exact, g.array(rho.astype(np.float64))), to=dtypes.FLOAT)
            votes = pair_votes(g, scores, len(sizes))
            if attrs["prob_a"]:
                a, b = (g.array(np.array(attrs[f"prob_{x}"], np.float32)) for x in "ab")
                scores = g.call("q7::PairProbabilities", scores, a, b, classes=len(sizes))
        else:
            vectors = weights.reshape(max(len(names), 1), -1)
            scores = votes = g.Add(kernel(g, x, vectors, kind, params), float(rho[0]))
        best = g.ArgMax(votes, axis=1, keepdims=0)
        if scores.shape[1] == 1 and len(names) == 2:
            scores = g.Concat(g.Neg(scores), scores, axis=1)
        label = best if not len(names) else g.Gather(g.array(names), best)
        return label, transformed(g, attrs["post_transform"], scores)


def pair_weights(weights: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """What each support vector contributes to each pair, from (C - 1, S): (S, P)."""
    ends = np.cumsum(sizes)
    owned = [slice(end - size, end) for end, size in zip(ends, sizes)]
    pairs = list(combinations(range(len(sizes)), 2))
    table = np.zeros((weights.shape[1], len(pairs)), np.float32)
    for column, (i, j) in enumerate(pairs):
        table[owned[i], column] = weights[j - 1, owned[i]]
        table[owned[j], column] = weights[i, owned[j]]
    return table


def pair_votes(g: Any, scores: Value, classes: int) -> Value:
    """How many pairs each class wins: the first of a pair where its score is positive."""
    pairs = list(combinations(range(classes), 2))
    first, second = (np.eye(classes, dtype=np.float32)[[p[i] for p in pairs]] for i in (0, 1))
    is_first = g.Cast(g.Greater(scores, 0.0), to=dtypes.FLOAT)
    return g.Add(g.MatMul(is_first, g.array(first - second)), g.array(second.sum(0)))


@op("q7::PairProbabilities")
class PairProbabilities:
    """The probabilities p (N, C) of the classes that fit r[i, j] = 1 / (1 + exp(a score + b)) best.

    r[i, j] is the probability of class i where it is i or j; p minimises the sum of
    (r[j, i] p[i] - r[i, j] p[j])^2. Source: Wu, Lin, Weng 2004, the second approach, as libsvm
    iterates it.
    """

    signature = "scores: F, a: F, b: F -> p"
    attributes: dict[str, Any] = {"classes": 0}
    infer = lambda node: [Type(node.inputs[0].dtype, (dims(node)[0], node.attrs["classes"]))]

    def reference(node: Node, scores: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        k = node.attrs["classes"]
        with np.errstate(over="ignore"):
            won = 1 / (1 + np.exp(scores * a + b))
        won = np.clip(won, 1e-7, 1 - 1e-7)
        p = np.full((len(scores), k), 1 / k, scores.dtype)
        for row in range(len(scores)):
            r = np.zeros((k, k), scores.dtype)
            r[np.triu_indices(k, 1)] = won[row]
            r += np.tril(1 - r.T, -1)
            fit(p[row], -r.T * r + np.diag((r * r).sum(0)))
        return p

    def lower(node: Node, b: Any) -> None:
        scores, of_a, of_b = node.inputs
        N, k = node.output.shape
        require_dtype(node, scores.dtype, F32)
        work = b.threads * (k * k + k) * 4
        b.step(
            "pair_probabilities", scores=scores, a=of_a, b=of_b, p=node.output, work=work, N=N, k=k
        )


def fit(p: np.ndarray, q: np.ndarray) -> None:
    """Minimises p q p under sum(p) = 1, in place, one coordinate after the other."""
    k = len(p)
    for _ in range(max(100, k)):
        qp = q @ p
        pqp = p @ qp
        if np.abs(qp - pqp).max() < 0.005 / k:
            break
        for t in range(k):
            step = (pqp - qp[t]) / q[t, t]
            p[t] += step
            pqp = (pqp + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
            qp = (qp + step * q[t]) / (1 + step)
            p /= 1 + step
