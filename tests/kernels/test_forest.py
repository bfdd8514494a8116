"""TreeEnsemble in the kernel: random forests against trees that Python goes down node by node."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import q7x2_ep

FEATURES = 5
HOLDS: dict[str, Callable[[float, float], bool]] = {
    "BRANCH_LEQ": lambda x, split: x <= split,
    "BRANCH_LT": lambda x, split: x < split,
    "BRANCH_GTE": lambda x, split: x >= split,
    "BRANCH_GT": lambda x, split: x > split,
    "BRANCH_EQ": lambda x, split: x == split,
    "BRANCH_NEQ": lambda x, split: x != split,
}
SPLITS = np.array([-math.inf, -1.5, -0.0, 0.0, 0.25, 1e-42, 2.0, math.inf, math.nan], np.float32)


def grown(rng: np.random.Generator, modes: list[str], depth: int, targets: int) -> list[dict]:
    """The nodes of a tree: some branches end early, some leaves do not vote."""
    nodes: list[dict] = []

    def grow(left: int) -> int:
        node: dict[str, Any] = {"votes": [], "mode": "LEAF"}
        nodes.append(node)
        at = len(nodes) - 1
        if left and (left == depth or rng.random() < 0.8):
            split, feature = float(rng.choice(SPLITS)), int(rng.integers(FEATURES))
            node.update(mode=str(rng.choice(modes)), split=split, feature=feature)
            node.update(tracks=int(rng.integers(2)), true=grow(left - 1), false=grow(left - 1))
        else:
            for _ in range(int(rng.integers(4))):  # for a target twice, too
                vote = int(rng.integers(targets)), float(np.float32(rng.standard_normal()))
                node["votes"].append(vote)
        return at

    grow(depth)
    return nodes


def model(forest: list[list[dict]], dtype: int, targets: int, aggregate: str) -> bytes:
    rows = [(t, i, node) for t, tree in enumerate(forest) for i, node in enumerate(tree)]
    votes = [(t, i, *vote) for t, i, node in rows for vote in node["votes"]]
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=targets,
        aggregate_function=aggregate,
        nodes_treeids=[t for t, _, _ in rows],
        nodes_nodeids=[i for _, i, _ in rows],
        nodes_modes=[n["mode"] for *_, n in rows],
        nodes_featureids=[n.get("feature", 0) for *_, n in rows],
        nodes_values=[n.get("split", 0.0) for *_, n in rows],
        nodes_truenodeids=[n.get("true", 0) for *_, n in rows],
        nodes_falsenodeids=[n.get("false", 0) for *_, n in rows],
        nodes_missing_value_tracks_true=[n.get("tracks", 0) for *_, n in rows],
        target_treeids=[vote[0] for vote in votes],
        target_nodeids=[vote[1] for vote in votes],
        target_ids=[vote[2] for vote in votes],
        target_weights=[vote[3] for vote in votes],
    )
    x = helper.make_tensor_value_info("x", dtype, ["n", FEATURES])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", targets])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def scores(forest: list[list[dict]], x: np.ndarray, targets: int, aggregate: str) -> np.ndarray:
    y: np.ndarray = np.zeros((len(x), targets))
    for row, of in zip(x.tolist(), y):
        votes: list[list[float]] = [[] for _ in range(targets)]
        for tree in forest:
            node = tree[0]
            while node["mode"] != "LEAF":
                v = row[node["feature"]]
                holds = HOLDS[node["mode"]](v, node["split"]) or (math.isnan(v) and node["tracks"])
                node = tree[node["true" if holds else "false"]]
            for target, weight in node["votes"]:
                votes[target].append(weight)
        for target, found in enumerate(votes):
            if found:
                merge = {"MIN": min, "MAX": max}.get(aggregate, math.fsum)
                of[target] = merge(found) / (len(forest) if aggregate == "AVERAGE" else 1)
    return y


def assert_scores(
    y: np.ndarray, forest: list[list[dict]], x: np.ndarray, targets: int, aggregate: str
) -> None:
    """One rounding to float32 of what is summed in double, terms and result alike up to 40."""
    wanted = scores(forest, x, targets, aggregate)
    np.testing.assert_allclose(y, wanted, rtol=2**-24, atol=len(forest) * 2**-50)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64])
@pytest.mark.parametrize("modes", [*([mode] for mode in HOLDS), list(HOLDS)], ids="-".join)
def test_forest(modes: list[str], dtype: int, aggregate: str):
    """Rows that fill one part and several, with NaN and without; the same by any threads."""
    rng = np.random.default_rng(len(modes) + dtype)
    for trees, depth, targets in ((1, 0, 1), (3, 2, 2), (70, 6, 1), (40, 5, 3)):
        forest = [grown(rng, modes, depth, targets) for _ in range(trees)]
        data, sessions = model(forest, dtype, targets, aggregate), []
        for threads in (1, 3):
            options = q7x2_ep.SessionOptions()
            options.intra_op_num_threads = threads
            sessions.append(q7x2_ep.InferenceSession(data, options))
        for rows in (0, 1, 7, 65, 600) if aggregate == "SUM" else (1, 40):
            x = rng.standard_normal((rows, FEATURES))
            x = np.where(rng.random(x.shape) < 0.3, rng.choice(SPLITS, x.shape), x)
            if dtype == TensorProto.INT64 or rows % 2:
                x = np.nan_to_num(x, posinf=9, neginf=-9)
            x = x.astype(helper.tensor_dtype_to_np_dtype(dtype))
            one, more = (session.run(None, {"x": x})[0] for session in sessions)
            np.testing.assert_array_equal(one, more)
            assert_scores(one, forest, x, targets, aggregate)


def leafed(members: list[float], modes: list[int], **more: Any) -> bytes:
    """A TreeEnsemble of one node, or of two in a row."""
    inner = len(modes)
    splits = helper.make_tensor("s", TensorProto.DOUBLE, [inner], [0.0] * inner)
    weights = helper.make_tensor("w", TensorProto.DOUBLE, [3], [1.0, 2.0, 1 + 2.0**-40])
    found = helper.make_tensor("m", TensorProto.DOUBLE, [len(members)], members)
    attrs: dict[str, Any] = {
        **{"nodes_modes": helper.make_tensor("k", TensorProto.UINT8, [inner], modes)},
        **{"nodes_featureids": list(range(inner)), "nodes_splits": splits, "tree_roots": [0]},
        **{"nodes_trueleafs": [1] * inner, "nodes_truenodeids": list(range(inner))},
        **{"nodes_falseleafs": [0] * (inner - 1) + [1], "leaf_targetids": [0] * 3},
        **{"nodes_falsenodeids": [*range(1, inner), 2], "leaf_weights": weights, "n_targets": 1},
        **{"membership_values": found, "aggregate_function": 1, "post_transform": 0, **more},
    }
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", "f"])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", 1])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 5)]
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


@pytest.mark.parametrize("transform", [0, 3])
def test_transforms_of_doubles(transform: int):
    """Those of the same number in onnxruntime, which has LOGISTIC as 1 and SOFTMAX as 2."""
    onnxruntime = pytest.importorskip("onnxruntime")
    data = leafed([], [0], post_transform=transform, n_targets=2, leaf_targetids=[0, 1, 1])
    given = {"providers": ["CPUExecutionProvider"]}
    feed = {"x": np.array([[-1.0], [9.0], [0.5]])}
    (wanted,) = onnxruntime.InferenceSession(data, **given).run(None, feed)
    (y,) = q7x2_ep.InferenceSession(data).run(None, feed)
    assert y.dtype == np.float64
    # onnxruntime rounds to float32: a difference, its power, the sum of two, the quotient
    np.testing.assert_allclose(y, wanted, rtol=4 * 2**-24)


@pytest.mark.parametrize("tracks", [0, 1])
def test_members(tracks: int):
    """Sets of several members, of one and of none; votes in double."""
    nan = math.nan
    x = np.array([[3, 0], [7.5, 0], [nan, 4], [5, 4], [5, nan], [5, 9]])
    data = leafed([3, 7.5, -1, nan, 4, nan], [6, 6], nodes_missing_value_tracks_true=[tracks] * 2)
    (y,) = q7x2_ep.InferenceSession(data).run(None, {"x": x})
    last = 1 + 2.0**-40
    assert y[:, 0].tolist() == [1, 1, 1 if tracks else 2, 2, 2 if tracks else last, last]
    data = leafed([nan, 4, nan], [6, 6], nodes_missing_value_tracks_true=[tracks] * 2)
    (y,) = q7x2_ep.InferenceSession(data).run(None, {"x": x})
    assert y[:, 0].tolist() == [last, last, *y[2:3, 0], 2, 2 if tracks else last, last]
    assert y[2, 0] == (1 if tracks else 2)


def test_a_feature_that_rows_do_not_have():
    session = q7x2_ep.InferenceSession(leafed([], [0, 0]))
    with pytest.raises(q7x2_ep.Q7Error, match=r"feature that a tree tests.* 1"):
        session.run(None, {"x": np.zeros((3, 1))})
    assert session.run(None, {"x": np.zeros((3, 2))})[0].shape == (3, 1)


def test_trees_that_are_none():
    with pytest.raises(q7x2_ep.Q7Error, match=r"\[ai.onnx.ml::TreeEnsemble .*leads back"):
        more = {"nodes_falsenodeids": [1, 1], "nodes_falseleafs": [0, 0]}
        q7x2_ep.InferenceSession(leafed([], [0, 0], **more))
    with pytest.raises(q7x2_ep.Q7Error, match="names a node that is not there"):
        q7x2_ep.InferenceSession(leafed([], [0, 0], nodes_falsenodeids=[1, 3]))
    with pytest.raises(q7x2_ep.Q7Error, match="not one of 1"):
        q7x2_ep.InferenceSession(leafed([], [0, 0], leaf_targetids=[0, 1, 0]))


@pytest.mark.parametrize("name", [-1, 2, 7])
def test_nodes_that_are_named_but_not_there(name: int):
    """Also where another tree has a node that far from its own."""
    leaf = {"mode": "LEAF", "votes": [(0, 1.0)]}
    split = {"mode": "BRANCH_LT", "split": 0.0, "feature": 0, "true": name, "false": 1, "votes": []}
    data = model([[leaf, leaf, leaf, leaf], [split, leaf]], TensorProto.FLOAT, 1, "SUM")
    with pytest.raises(q7x2_ep.Q7Error, match="names a node that is not there"):
        q7x2_ep.InferenceSession(data)


@pytest.mark.parametrize("first", [-7, 3])
@pytest.mark.parametrize("apart", [1, 1000])
def test_names_that_are_far_apart(apart: int, first: int):
    rng = np.random.default_rng(apart)
    forest = [grown(rng, list(HOLDS), 5, 1) for _ in range(4)]
    proto = onnx.load_from_string(model(forest, TensorProto.FLOAT, 1, "SUM"))
    for attr in proto.graph.node[0].attribute:
        if attr.name.endswith("nodeids"):
            attr.ints[:] = [apart * name + first for name in attr.ints]
        elif attr.name.endswith("treeids"):
            attr.ints[:] = [5 - tree for tree in attr.ints]
    x = rng.standard_normal((20, FEATURES)).astype(np.float32)
    (y,) = q7x2_ep.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    assert_scores(y, forest, x, 1, "SUM")


def test_branches_that_meet_again():
    """As LightGBM's sets of categories are written: EQ nodes in a row, all of whose true branches
    are one node.
    """
    chain = [
        {"mode": "BRANCH_EQ", "split": 1.0, "feature": 0, "true": 3, "false": 1, "votes": []},
        {"mode": "BRANCH_EQ", "split": 4.0, "feature": 0, "true": 3, "false": 2, "votes": []},
        {"mode": "LEAF", "votes": [(0, -1.0)]},
        {"mode": "BRANCH_LEQ", "split": 0.5, "feature": 1, "true": 4, "false": 5, "votes": []},
        {"mode": "LEAF", "votes": [(0, 10.0)]},
        {"mode": "LEAF", "votes": [(0, 20.0)]},
    ]
    session = q7x2_ep.InferenceSession(model([chain], TensorProto.FLOAT, 1, "SUM"))
    x = np.zeros((4, FEATURES), np.float32)
    x[:, 0], x[:, 1] = [1, 4, 4, 2], [0, 1, 0, 0]
    assert session.run(None, {"x": x})[0][:, 0].tolist() == [10, 20, 10, -1]
