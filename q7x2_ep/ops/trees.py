"""Tree ensembles of ai.onnx.ml: what the leaves that a row reaches vote for, all rows at once.

Letters: N rows, T trees, K targets or classes. Read ml.py first. Where the standard leaves a
choice, it is onnxruntime's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, minimum
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims, require_dtype, where_is
from q7x2_ep.ops.forest import (
    BALLOT,
    FEATURE,
    LEAF,
    MEMBER,
    MERGES,
    MODES,
    NODE_DTYPES,
    Trees,
    Votes,
    forest,
    within,
)
from q7x2_ep.ops.ml import labels, transformed

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
REDUCTIONS = {"SUM": "sum", "AVERAGE": "mean", "MIN": "min", "MAX": "max"}
MODE_OF = {**{mode: i for i, mode in enumerate(MODES)}, "LEAF": LEAF}
PARTS, MANY = 16, 512  # parts of the trees at most, if there are so MANY rows: csrc/ops/forest.c
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@op("q7::Forest")
class ForestOp:
    """What the leaves of trees that each row of x reaches vote for, together, and whether there was
    a vote: scores (N, K) of dtype, voted (N, K). The other operands are those of `Forest`.
    """

    signature = "x: F, nodes: int32, roots: int32, votes: int32 -> scores, voted"
    attributes = {
        **{"K": 1, "inner": 0, "features": 1, "binary": None},
        **{"aggregate": "SUM", "dtype": dtypes.FLOAT},
    }

    def infer(node: Node) -> list[Type]:
        shape = (dims(node)[0], node.attrs["K"])
        return [Type(node.attrs["dtype"], shape), Type(dtypes.BOOL, shape)]

    def reference(
        node: Node, x: np.ndarray, nodes: np.ndarray, roots: np.ndarray, votes: np.ndarray
    ) -> tuple:
        aggregate = node.attrs["aggregate"]
        merge = MERGES[aggregate]
        start = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
        shape = (len(x), node.attrs["K"])
        scores, voted = np.full(shape, start), np.zeros(shape, bool)
        table, at = votes.view(BALLOT)[:, 0], leaves_of(x, nodes, roots)
        rows = np.broadcast_to(np.arange(len(x))[:, None], at.shape)
        while at.size:
            at, rows = at[table["counts"][at] != 0], rows[table["counts"][at] != 0]
            merge.at(scores, (rows, table["target"][at]), table["weight"][at])
            voted[rows, table["target"][at]] = True
            more = table["more"][at] != 0
            at, rows = at[more] + 1, rows[more]
        if aggregate == "AVERAGE":
            scores /= max(len(roots), 1)
        dtype = dtypes.DTYPES[node.attrs["dtype"]].numpy
        return np.where(voted, scores, 0.0).astype(dtype), voted

    def lower(node: Node, b: Any) -> None:
        (x, *tables), (scores, voted), attrs = node.inputs, node.outputs, node.attrs
        require_dtype(node, x.dtype, (dtypes.FLOAT, dtypes.DOUBLE))
        (N, F), K = x.shape, attrs["K"]
        most = minimum(PARTS * N, N + PARTS * MANY) * K  # rows of all parts, of which many have one
        b.step(
            "forest",
            x=x,
            **dict(zip(("nodes", "roots", "votes"), tables)),
            scores=scores,
            voted=voted,
            work=most * 9,  # a double and a byte
            **{"N": N, "F": F, "K": K, "dtype": x.dtype, "y_dtype": attrs["dtype"]},
            trees=tables[1].shape[0],
            features=attrs["features"],
            inner=attrs["inner"],
            parts=PARTS,
            binary=attrs["binary"] or "equal",
            reduce=REDUCTIONS[attrs["aggregate"]],
        )


def leaves_of(x: np.ndarray, nodes: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """The first vote of the leaf of each tree that each row reaches: (N, F) -> (N, T)."""
    table = nodes.view(NODE_DTYPES["float32" if nodes.shape[1] == 4 else "float64"])[:, 0]
    at = np.tile(roots, (len(x), 1))
    while True:
        values = np.take_along_axis(x, table["test"][at] >> FEATURE, 1)
        less, greater = values < table["split"][at], values > table["split"][at]
        order = less + 2 * (values == table["split"][at]) + 4 * greater
        holds = table["test"][at] >> order & 1
        after = np.take_along_axis(table["next"][at], holds[..., None], 2)[..., 0]
        if (after == at).all():  # leaves, whose tests never hold
            return table["next"][at, 1]
        at = after


def rows_of(node: Node) -> Dim:
    """Of x (N, F), or (F,): a row."""
    shape = dims(node)
    if len(shape) not in (1, 2):
        raise ModelError(f"{where_is(node)} needs rows of features (N, F), given {list(shape)}")
    return shape[0] if len(shape) == 2 else 1


def votes_of(
    g: Any, x: Value, trees: Trees, votes: Votes, targets: int, aggregate: str = "SUM", **attrs: Any
) -> tuple[Value, Value]:
    """q7::Forest of x, which meets splits in a precision that holds both."""
    is_double = x.dtype not in (dtypes.FLOAT, *dtypes.HALVES) or trees.splits.dtype == np.float64
    dtype = dtypes.DOUBLE if is_double else dtypes.FLOAT
    splits = trees.splits.astype(dtypes.DTYPES[dtype].numpy)
    found = forest(trees._replace(splits=splits), votes, targets, aggregate)
    attrs.update(zip(("inner", "features", "binary"), found[3:]), K=targets, aggregate=aggregate)
    x = x if len(x.shape) == 2 else g.Unsqueeze(x, [0])
    x = x if x.dtype == dtype else g.Cast(x, to=dtype)
    return g.call("q7::Forest", x, *map(g.array, found[:3]), outputs=2, **attrs)


def tensor_or(attrs: dict, name: str) -> np.ndarray:
    """An attribute that is given as floats, or as a tensor of doubles."""
    tensor = attrs[f"{name}_as_tensor"]
    return numbers_of(attrs, name, np.float32) if tensor is None else np.asarray(tensor)


def numbers_of(attrs: dict, name: str, dtype: type = np.int64) -> np.ndarray:
    given = attrs[name]
    return np.asarray(() if given is None else given, dtype)


NODE_COLUMNS = ["treeids", "featureids", "values", "truenodeids", "falsenodeids", "modes"]
VOTE_COLUMNS = ["treeids", "ids", "weights"]
DENSE = 16  # times the nodes: a table by their numbers may be this large


def _several(numbers: np.ndarray) -> bool:
    return len(numbers) > 0 and bool(numbers.min() < numbers.max())


def numbered_trees(attrs: dict, votes: str) -> tuple[Trees, Votes]:
    """Trees whose nodes are named by the numbers of tree and node. votes: class or target."""
    numbers = partial(numbers_of, attrs)
    values, weights = tensor_or(attrs, "nodes_values"), tensor_or(attrs, f"{votes}_weights")
    names, voters = numbers("nodes_nodeids"), numbers(f"{votes}_nodeids")
    columns = {**attrs, "nodes_values": values, f"{votes}_weights": weights}
    for group, of, parts in (("nodes", names, NODE_COLUMNS), (votes, voters, VOTE_COLUMNS)):
        for column in (f"{group}_{part}" for part in parts):
            count = 0 if columns[column] is None else len(columns[column])
            if count != len(of):
                raise ModelError(f"{column} are {count}, {group}_nodeids {len(of)}")
    trees = numbers("nodes_treeids")
    place = _places(trees, names)
    strange = sorted({*attrs["nodes_modes"]} - MODE_OF.keys())
    if strange:
        raise ModelError(f"nodes_modes has {', '.join(strange)}, not only {', '.join(MODE_OF)}")
    modes = np.array([MODE_OF[mode] for mode in attrs["nodes_modes"]], np.int64)
    inner = np.flatnonzero(modes != LEAF)
    true, false = (np.zeros(len(modes), np.int64) for _ in range(2))
    true[inner] = place(trees[inner], numbers("nodes_truenodeids")[inner])
    false[inner] = place(trees[inner], numbers("nodes_falsenodeids")[inner])
    is_child = np.zeros(len(modes), bool)
    is_child[true[inner]] = is_child[false[inner]] = True
    return Trees(
        np.flatnonzero(~is_child),
        modes,
        numbers("nodes_featureids"),
        values,
        true,
        false,
        attrs["nodes_missing_value_tracks_true"],
    ), Votes(place(numbers(f"{votes}_treeids"), voters), numbers(f"{votes}_ids"), weights)


def _places(trees: np.ndarray, names: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Where nodes are, by the numbers of their trees and their own; of two of one name the last.

    Raises: ModelError for a node that is not there.
    """
    low = int(names.min(initial=0))
    span = int(names.max(initial=0)) - low + 1
    first, last = int(trees.min(initial=0)), int(trees.max(initial=-1))
    is_dense = (last - first + 1) * span <= DENSE * len(names)
    if is_dense:
        table = np.full((last - first + 1) * span, -1)
        table[(trees - first) * span + names - low] = np.arange(len(names))
    else:
        order = np.lexsort((names, trees))
        keys = (trees - first)[order] * span + (names - low)[order]

    def place(trees: np.ndarray, names: np.ndarray) -> np.ndarray:
        if within(names - low, span) and within(trees - first, last - first + 1):
            wanted = (trees - first) * span + names - low
            if is_dense:
                found = table[wanted]
            else:
                at = np.searchsorted(keys, wanted, "right") - 1
                found = np.where((at >= 0) & (keys[at] == wanted), order[at], -1)
            if found.min(initial=0) >= 0:
                return found
        raise ModelError("a tree names a node that is not there")

    return place


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
    choices = {"aggregate_function": AGGREGATES, "post_transform": TRANSFORMS}
    takes_arrays = True

    def infer(node: Node) -> list[Type]:
        return [Type(dtypes.FLOAT, (rows_of(node), node.attrs["n_targets"]))]

    def decompose(g: Any, x: Value, **attrs: Any) -> Value:
        found, aggregate = numbered_trees(attrs, "target"), attrs["aggregate_function"]
        scores, voted = votes_of(g, x, *found, attrs["n_targets"], aggregate)
        base = tensor_or(attrs, "base_values").astype(np.float32)
        if base.size:
            whole = g.Add(scores, g.array(base))  # of several targets, those that have a vote
            scores = g.Where(voted, whole, scores) if attrs["n_targets"] > 1 else whole
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
    choices = {"post_transform": TRANSFORMS}
    takes_arrays = True

    def infer(node: Node) -> list[Type]:
        texts, attrs = node.attrs["classlabels_strings"], node.attrs
        classes = len(labels(attrs["classlabels_int64s"], texts))
        is_single = classes < 2 and not _several(numbers_of(attrs, "class_ids"))
        label = Type(dtypes.STRING if texts else dtypes.INT64, (rows_of(node),))
        return [label, Type(dtypes.FLOAT, (rows_of(node), 1 if is_single else max(classes, 2)))]

    def decompose(g: Any, x: Value, **attrs: Any) -> tuple[Value, Value]:
        names = labels(attrs["classlabels_int64s"], attrs["classlabels_strings"])
        base = tensor_or(attrs, "base_values").astype(np.float32)
        kind, voted_for = attrs["post_transform"], numbers_of(attrs, "class_ids")
        trees, votes = numbered_trees(attrs, "class")
        scores, voted = votes_of(g, x, trees, votes, max(len(names), 2))
        if len(names) > 2 or _several(voted_for):
            scores = g.Add(scores, g.array(base)) if base.size else scores
            is_told = base.size or len(names) == 2  # a class without a vote has a score too
            most = scores if is_told else g.Where(voted, scores, -np.inf)
            best = g.ArgMax(most, axis=1, keepdims=0)
            return g.Gather(g.array(names), best), transformed(g, kind, scores)
        is_share = bool((votes.weights >= 0).all())
        only = int(voted_for.max(initial=0))
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
    takes_arrays = True

    def infer(node: Node) -> list[Type]:
        return [Type(node.inputs[0].dtype, (rows_of(node), node.attrs["n_targets"] or 1))]

    def decompose(g: Any, x: Value, **attrs: Any) -> Value:
        aggregate, targets = AGGREGATES[attrs["aggregate_function"]], attrs["n_targets"] or 1
        precision = {"dtype": dtypes.DOUBLE if x.dtype == dtypes.DOUBLE else dtypes.FLOAT}
        scores, _ = votes_of(g, x, *leafed_trees(attrs), targets, aggregate, **precision)
        y = transformed(g, TRANSFORMS[attrs["post_transform"]], scores)
        return y if y.dtype == x.dtype else g.Cast(y, to=x.dtype)


def leafed_trees(attrs: dict) -> tuple[Trees, Votes]:
    """Trees whose leaves have numbers of their own; here they come behind the inner nodes."""
    modes = np.asarray(attrs["nodes_modes"]).astype(np.int64)
    inner, leaves = len(modes), len(attrs["leaf_targetids"])

    def following(branch: str) -> np.ndarray:
        to_leaf = np.array(attrs[f"nodes_{branch}leafs"])
        nodes = np.array(attrs[f"nodes_{branch}nodeids"]) + np.where(to_leaf, inner, 0)
        return np.concatenate([nodes, np.full(leaves, inner)])

    members, rest = {}, attrs["membership_values"]
    for node in np.flatnonzero(modes == MEMBER):
        if rest is None or not np.isnan(rest).any():
            raise ModelError("TreeEnsemble: a node tests for members that are not given")
        end = int(np.flatnonzero(np.isnan(rest))[0])
        members[int(node)], rest = rest[:end], rest[end + 1 :]
    filled = np.zeros(leaves, np.int64)
    splits = np.asarray(attrs["nodes_splits"])
    return Trees(
        np.array(attrs["tree_roots"]),
        np.concatenate([modes, filled + LEAF]),
        np.concatenate([np.array(attrs["nodes_featureids"]), filled]),
        np.concatenate([splits, filled.astype(splits.dtype)]),
        following("true"),
        following("false"),
        attrs["nodes_missing_value_tracks_true"],
        members,
    ), Votes(
        inner + np.arange(leaves),
        np.array(attrs["leaf_targetids"]),
        np.asarray(attrs["leaf_weights"]),
    )
