"""Tree ensembles of ai.onnx.ml: what the leaves that a row reaches vote for, all rows at once.

Letters: N rows, T trees, K targets or classes. Read ml.py first. Where the standard leaves a
choice, it is onnxruntime's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.builder import infer_meaning
from q7x2_ep.ops.common import dims
from q7x2_ep.ops.forest import LEAF, MODES, Forest
from q7x2_ep.ops.ml import labels, transformed

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@op("q7::Forest")
class ForestOp:
    """What the trees of `forest` vote for x: (N, K) scores, and whether there was a vote."""

    signature = "x -> scores, voted"
    attributes: dict = {"forest": None, "aggregate": "SUM"}

    def infer(node: Node) -> list[Type]:
        shape = (dims(node)[0], node.attrs["forest"].targets)
        return [Type(dtypes.FLOAT, shape), Type(dtypes.BOOL, shape)]

    def reference(node: Node, x: np.ndarray) -> tuple:
        whole = x if x.dtype.kind == "f" else x.astype(np.float64)
        scores, voted = node.attrs["forest"].collect(whole, node.attrs["aggregate"])
        return scores.astype(np.float32), voted


def tensor_or(attrs: dict, name: str) -> np.ndarray:
    """An attribute that is given as floats, or as a tensor of doubles."""
    tensor = attrs[f"{name}_as_tensor"]
    return np.array(attrs[name] or (), np.float32) if tensor is None else np.asarray(tensor)


def numbered_forest(attrs: dict, votes: str, targets: int) -> Forest:
    """Trees whose nodes are named by the numbers of tree and node. votes: class or target."""
    pairs = list(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"]))
    place = {pair: i for i, pair in enumerate(pairs)}
    modes = np.array([LEAF if m == "LEAF" else MODES.index(m) for m in attrs["nodes_modes"]])

    def following(name: str) -> np.ndarray:
        nodes = zip(attrs["nodes_treeids"], attrs[name], modes)
        return np.array([-1 if mode == LEAF else place[tree, node] for tree, node, mode in nodes])

    true, false = following("nodes_truenodeids"), following("nodes_falsenodeids")
    inner = modes != LEAF
    is_child = np.zeros(len(modes), bool)
    is_child[true[inner]] = is_child[false[inner]] = True
    voters = zip(attrs[f"{votes}_treeids"], attrs[f"{votes}_nodeids"])
    return Forest(
        np.flatnonzero(~is_child),
        modes,
        np.array(attrs["nodes_featureids"]),
        tensor_or(attrs, "nodes_values"),
        true,
        false,
        attrs["nodes_missing_value_tracks_true"],
        (
            np.array([place[pair] for pair in voters], np.int64),
            np.array(attrs[f"{votes}_ids"], np.int64),
            tensor_or(attrs, f"{votes}_weights"),
        ),
        targets,
    )


INNER = (
    *("falsenodeids", "featureids", "hitrates", "hitrates_as_tensor", "missing_value_tracks_true"),
    *("modes", "nodeids", "treeids", "truenodeids", "values", "values_as_tensor"),
)
LEAFED = (
    *("falseleafs", "falsenodeids", "featureids", "hitrates", "missing_value_tracks_true"),
    *("modes", "splits", "trueleafs", "truenodeids"),
)
NODES = {
    **dict.fromkeys(f"nodes_{name}" for name in INNER),
    "base_values": None,
    "base_values_as_tensor": None,
    "post_transform": "NONE",
}


@op("ai.onnx.ml::TreeEnsembleRegressor")
class TreeEnsembleRegressor:
    """y = post_transform(what the leaves of each row vote for each target, together, + base)."""

    signature = "x: N -> y"
    attributes = {
        **NODES,
        **dict.fromkeys(f"target_{name}" for name in ("ids", "nodeids", "treeids", "weights")),
        "target_weights_as_tensor": None,
        "aggregate_function": "SUM",
        "n_targets": 1,
    }
    infer = infer_meaning

    def decompose(g: Any, x: Value, **attrs: Any) -> Value:
        forest = numbered_forest(attrs, "target", attrs["n_targets"])
        aggregate = attrs["aggregate_function"]
        scores, _ = g.call("q7::Forest", x, outputs=2, forest=forest, aggregate=aggregate)
        base = tensor_or(attrs, "base_values").astype(np.float32)
        scores = g.Add(scores, g.array(base)) if base.size else scores
        return transformed(g, attrs["post_transform"], scores)


@op("ai.onnx.ml::TreeEnsembleClassifier")
class TreeEnsembleClassifier:
    """The best label of each row, and the scores of all classes.

    Where all votes are for the first of two classes they are a score s of the second, and the first
    has 1 - s where no weight is negative, else -s. Then s > 0.5, or 0, decides, and not the larger.
    """

    signature = "x: N -> label, scores"
    attributes = {
        **NODES,
        **dict.fromkeys(f"class_{name}" for name in ("ids", "nodeids", "treeids", "weights")),
        "class_weights_as_tensor": None,
        "classlabels_int64s": None,
        "classlabels_strings": None,
    }
    infer = infer_meaning

    def decompose(g: Any, x: Value, **attrs: Any) -> tuple[Value, Value]:
        names = labels(attrs["classlabels_int64s"], attrs["classlabels_strings"])
        base = tensor_or(attrs, "base_values").astype(np.float32)
        kind, voted_for = attrs["post_transform"], set(attrs["class_ids"])
        forest = numbered_forest(attrs, "class", max(len(names), 2))
        scores, voted = g.call("q7::Forest", x, outputs=2, forest=forest)
        if len(names) > 2 or len(voted_for) > 1:
            scores = g.Add(scores, g.array(base)) if base.size else scores
            is_told = base.size or len(names) == 2  # a class without a vote has a score too
            most = scores if is_told else g.Where(voted, scores, -np.inf)
            best = g.ArgMax(most, axis=1, keepdims=0)
            return g.Gather(g.array(names), best), transformed(g, kind, scores)
        is_share = bool((forest.votes[2] >= 0).all())
        only = max(voted_for, default=0)
        score = g.Slice(scores, [only], [only + 1], [1])
        score = g.Add(score, float(base[0])) if base.size else score
        limit = 0.5 if is_share and len(names) == 2 else 0.0
        best = g.Cast(g.Greater(g.Reshape(score, [-1]), limit), to=dtypes.INT64)
        if len(names) < 2:
            table = np.array(["0", "1"], object) if attrs["classlabels_strings"] else np.arange(2)
            return g.Gather(g.array(table), best), score
        if only == 1:
            both = g.Concat(g.Mul(score, 0.0), score, axis=1)
        else:
            rest = g.Sub(1.0, score) if is_share and kind != "LOGISTIC" else g.Neg(score)
            both = g.Concat(rest, score, axis=1)
            kind = "NONE" if kind.startswith("SOFTMAX") else kind
        return g.Gather(g.array(names), best), transformed(g, kind, both)


@op("ai.onnx.ml::TreeEnsemble")
class TreeEnsemble:
    """As TreeEnsembleRegressor; leaves have numbers of their own, nodes may test for members."""

    signature = "x: F -> y"
    attributes = {
        **dict.fromkeys(("leaf_targetids", "leaf_weights", "membership_values", "tree_roots")),
        **dict.fromkeys(f"nodes_{name}" for name in LEAFED),
        "aggregate_function": 1,
        "n_targets": 1,
        "post_transform": 0,
    }
    infer = infer_meaning

    def decompose(g: Any, x: Value, **attrs: Any) -> Value:
        forest = leafed_forest(attrs)
        aggregate = AGGREGATES[attrs["aggregate_function"]]
        scores, _ = g.call("q7::Forest", x, outputs=2, forest=forest, aggregate=aggregate)
        if x.dtype == dtypes.DOUBLE:
            scores = g.Cast(scores, to=dtypes.DOUBLE)
        return transformed(g, TRANSFORMS[attrs["post_transform"]], scores)


def leafed_forest(attrs: dict) -> Forest:
    """Trees whose leaves have numbers of their own; here they come behind the inner nodes."""
    modes = np.asarray(attrs["nodes_modes"]).astype(np.int64)
    inner, leaves = len(modes), len(attrs["leaf_targetids"])

    def following(branch: str) -> np.ndarray:
        to_leaf = np.array(attrs[f"nodes_{branch}leafs"])
        nodes = np.array(attrs[f"nodes_{branch}nodeids"]) + np.where(to_leaf, inner, 0)
        return np.concatenate([nodes, np.full(leaves, inner)])

    members, rest = {}, attrs["membership_values"]
    for node in np.flatnonzero(modes == MODES.index("MEMBER")):
        if rest is None or not np.isnan(rest).any():
            raise ModelError("TreeEnsemble: a node tests for members that are not given")
        end = int(np.flatnonzero(np.isnan(rest))[0])
        members[int(node)], rest = rest[:end], rest[end + 1 :]
    filled = np.zeros(leaves, np.int64)
    splits = np.asarray(attrs["nodes_splits"])
    return Forest(
        np.array(attrs["tree_roots"]),
        np.concatenate([modes, filled + LEAF]),
        np.concatenate([np.array(attrs["nodes_featureids"]), filled]),
        np.concatenate([splits, filled.astype(splits.dtype)]),
        following("true"),
        following("false"),
        attrs["nodes_missing_value_tracks_true"],
        (
            inner + np.arange(leaves),
            np.array(attrs["leaf_targetids"]),
            np.asarray(attrs["leaf_weights"]),
        ),
        attrs["n_targets"] or 1,
        members,
    )
