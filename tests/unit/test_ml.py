"""ai.onnx.ml against onnxruntime, whose results these ops are known by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.importer import read
from q7x2_ep.passes import run_all
from tests.models.beside import optimised

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((6, 4)).astype(np.float32)
WHOLE = RANDOM.integers(-3, 4, (6, 4))
WIDE = np.array([[-(2**63), -4, -3, -2], [3, 4, 5, 9], [10, 2**40, 2**63 - 1, 0]])
HOLES = np.where(X > 0.5, np.nan, X).astype(np.float32)
NAMES = np.array([["a", "b"], ["c", "zz"], ["b", "b"]], object)
WEIGHTS = RANDOM.standard_normal(12).tolist()
KINDS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

CODES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "object": TensorProto.STRING,
}


def model(
    op: str,
    inputs: list[np.ndarray],
    outputs: int,
    attrs: dict,
    opset: int = 3,
    symbolic: bool = False,
) -> Any:
    names = [f"x{i}" for i in range(len(inputs))]
    shapes = [
        [f"{name}_{axis}" if symbolic else dim for axis, dim in enumerate(x.shape)]
        for name, x in zip(names, inputs)
    ]
    infos = [
        helper.make_tensor_value_info(name, CODES[str(x.dtype)], shape)
        for name, x, shape in zip(names, inputs, shapes)
    ]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain="ai.onnx.ml", **attrs)
    declared = [helper.make_empty_tensor_value_info(name) for name in results]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", opset)]
    graph = helper.make_graph([node], "g", infos, declared)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def case(op: str, *inputs: np.ndarray, outputs: int = 1, opset: int = 3, **attrs: Any) -> Any:
    text = ",".join(f"{key}={value}" for key, value in attrs.items())[:60]
    shapes = ",".join(f"{x.dtype}{x.shape}" for x in inputs)
    return pytest.param(op, inputs, outputs, opset, attrs, id=f"{op}-{shapes}-{text}")


CASES = [
    *(case("ArrayFeatureExtractor", x, np.array([2, 0, 1])) for x in (X, WHOLE, X[0], X[None])),
    case("ArrayFeatureExtractor", NAMES, np.array([[1]])),
    *(
        case("Binarizer", x, threshold=threshold)
        for x in (X, X[0])
        for threshold in (0.0, 0.5, -1.5)
    ),
    case("FeatureVectorizer", X, X[:, :2], inputdimensions=[4, 2]),
    case("FeatureVectorizer", X.reshape(3, 2, 4), X[:3], inputdimensions=[8, 4]),
    case("FeatureVectorizer", WHOLE, WHOLE[:, :1], inputdimensions=[4, 1]),
    case("Imputer", HOLES, imputed_value_floats=[7.0], replaced_value_float=float("nan")),
    case("Imputer", HOLES, imputed_value_floats=[1.0, 2, 3, 4], replaced_value_float=float("nan")),
    case("Imputer", WHOLE, imputed_value_int64s=[9], replaced_value_int64=-1),
    *(
        case("Normalizer", x, norm=norm)
        for x in (X, WHOLE, np.abs(X), X[0], np.zeros((2, 3), np.float32))
        for norm in ("MAX", "L1", "L2")
    ),
    *(
        case("Scaler", x, offset=[1.0, 2, 3, 4], scale=[0.5, 1, 2, 3])
        for x in (X, X.astype(np.float64), WHOLE, WHOLE.astype(np.int32), X[0])
    ),
    case("Scaler", X, offset=[1.0], scale=[3.0]),
    *(
        case("LinearRegressor", X, coefficients=WEIGHTS, targets=3, post_transform=kind)
        for kind in KINDS
    ),
    case("LinearRegressor", X, coefficients=WEIGHTS[:4], intercepts=[0.3], targets=1),
    case("LinearRegressor", X[0], coefficients=WEIGHTS[:8], intercepts=[0.3, 0.1], targets=2),
    case("LinearRegressor", X, coefficients=WEIGHTS[:8], intercepts=[0.3], targets=2),
    *(
        case(
            "LinearClassifier",
            X,
            outputs=2,
            coefficients=WEIGHTS,
            intercepts=[0.1, 0.2, 0.3],
            classlabels_ints=[5, 6, 8],
            post_transform=kind,
        )
        for kind in KINDS
    ),
    *(
        case(
            "LinearClassifier",
            X,
            outputs=2,
            coefficients=WEIGHTS[:4],
            intercepts=[0.1],
            post_transform=kind,
            **names,
        )
        for kind in KINDS[:-1]  # onnxruntime reads PROBIT's two scores from where one is
        for names in ({"classlabels_strings": ["n", "y"]}, {"classlabels_ints": [4, 2]})
    ),
    case("LabelEncoder", NAMES, keys_strings=["a", "b"], values_int64s=[3, 4], default_int64=9),
    case("LabelEncoder", NAMES, keys_strings=["a", "b"], values_floats=[3.0, 4.5]),
    case("LabelEncoder", WHOLE, keys_int64s=[0, 1], values_strings=["no", "yes"]),
    case("LabelEncoder", WIDE, keys_int64s=[-3, 4, 9], values_floats=[1.5, 2.5, 3.5]),
    case("LabelEncoder", WIDE, keys_int64s=[4, 2**40], values_int64s=[1, 2], default_int64=7),
    case("LabelEncoder", WIDE, keys_int64s=[2**63 - 1, -(2**63)], values_int64s=[1, 2]),
    case("LabelEncoder", X, keys_floats=X[0].tolist(), values_int64s=[1, 2, 3, 4]),
    case("LabelEncoder", HOLES, opset=4, keys_floats=[float("nan")], values_strings=["hole"]),
    case("LabelEncoder", WHOLE, keys_int64s=[1, 2, 1], values_int64s=[4, 5, 6]),
    case(
        "LabelEncoder", WIDE, keys_int64s=[*range(0, 2**60, 2**52), 9, 4], values_int64s=[1] * 258
    ),
    case("LabelEncoder", X, opset=4, keys_floats=[X[1, 1], -0.0], values_floats=[1.5, 2.0]),
    case("LabelEncoder", NAMES, keys_strings=["b", "a", "b"], values_int64s=[4, 5, 6]),
    case("LabelEncoder", NAMES, opset=1, classes_strings=["c", "b"]),
    case("LabelEncoder", WHOLE, opset=1, classes_strings=["c", "b"], default_string="?"),
    case("CategoryMapper", NAMES, cats_strings=["a", "b"], cats_int64s=[7, 8]),
    case("CategoryMapper", WHOLE, cats_strings=["a", "b"], cats_int64s=[0, 1]),
    case("OneHotEncoder", NAMES, cats_strings=["b", "c"]),
    case("OneHotEncoder", NAMES, cats_strings=["b", "c", "b"]),
    case("OneHotEncoder", NAMES, cats_strings=["zz", "b", "c", "a"], zeros=0),
    case("OneHotEncoder", WHOLE, cats_int64s=[-1, 1, 2]),
    case("OneHotEncoder", WHOLE, cats_int64s=[1, 2, 1]),
    case("OneHotEncoder", WHOLE, cats_int64s=[*range(-3, 4)], zeros=0),
    case("OneHotEncoder", WHOLE.astype(np.float32), cats_int64s=[-1, 1, 2]),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("op, inputs, outputs, opset, attrs", CASES)
def test_as_onnxruntime(op, inputs, outputs, opset, attrs, symbolic):
    check(model(op, list(inputs), outputs, attrs, opset, symbolic), inputs)


LOOKUPS = ("LabelEncoder", "CategoryMapper", "OneHotEncoder")


@pytest.mark.parametrize(
    "op, inputs, outputs, opset, attrs", [each for each in CASES if each.values[0] in LOOKUPS]
)
def test_lookups_are_written_as_onnx(op, inputs, outputs, opset, attrs):
    proto = model(op, list(inputs), outputs, attrs, opset)
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    written = optimised(proto.SerializeToString())
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for engine in (onnxruntime, q7x2_ep):
        (y,) = engine.InferenceSession(written).run(None, feeds)
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y, wanted)


def test_coefficients_of_more_features():
    for op, attrs in (
        ("LinearRegressor", {"targets": 2}),
        ("LinearClassifier", {"intercepts": [0.1, 0.2], "classlabels_ints": [4, 2]}),
    ):
        x, attrs = X[:, :3], {"coefficients": WEIGHTS, **attrs}
        check(model(op, [x], 2 if op == "LinearClassifier" else 1, attrs), [x])


@pytest.mark.parametrize("form", ["DENSE", "SPARSE"])
@pytest.mark.parametrize("cast", ["TO_FLOAT", "TO_STRING", "TO_INT64"])
def test_values_of_a_dictionary(cast: str, form: str):
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    x = helper.make_value_info("x", helper.make_map_type_proto(TensorProto.INT64, inner))
    attrs = {"cast_to": cast, "map_form": form, "max_map": 4}
    node = helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    graph = helper.make_graph([node], "g", [x], [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    feed = {"x": {2: 3.0, 0: -1.5}}
    ours, theirs = (
        engine.InferenceSession(data).run(None, feed)[0] for engine in (q7x2_ep, onnxruntime)
    )
    assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()


def check(proto: Any, inputs: Any) -> None:
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    theirs = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    graph = read(proto)
    run_all(graph)
    session = q7x2_ep.InferenceSession(proto.SerializeToString())
    for ours in (evaluate(graph, feeds), session.run(None, feeds)):
        for a, b, value in zip(ours, theirs, graph.outputs):
            assert a.dtype == b.dtype
            assert value.dtype == helper.np_dtype_to_tensor_dtype(a.dtype)
            if a.dtype == object:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def forest(
    kind: str,
    targets: Sequence[int],
    trees: int = 5,
    depth: int = 3,
    sign: float = 0.0,
    **more: Any,
) -> dict:
    """The attributes of random trees whose leaves vote for all of targets."""
    random = np.random.default_rng(trees + depth)
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    nodes: dict[str, list] = {f"nodes_{name}": [] for name in names}
    nodes["nodes_missing_value_tracks_true"] = []
    votes: dict[str, list] = {f"{kind}_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        for i in range(2 ** (depth + 1) - 1):
            is_leaf = i >= 2**depth - 1
            mode = "LEAF" if is_leaf else f"BRANCH_{more.get('mode', 'LEQ')}"
            children = (0, 0) if is_leaf else (2 * i + 1, 2 * i + 2)
            split = float(np.float32(random.standard_normal()))
            row = (tree, i, int(random.integers(4)), mode, split, *children)
            for name, value in zip(names, row):
                nodes[f"nodes_{name}"].append(value)
            nodes["nodes_missing_value_tracks_true"].append(int(random.integers(2)))
            for target in targets if is_leaf else ():
                weight = random.standard_normal()
                row = (tree, i, target, float(abs(weight) / trees if sign else weight))
                for values, value in zip(votes.values(), row):
                    values.append(value)
    return {**nodes, **votes}


ROWS = np.random.default_rng(5).standard_normal((40, 4)).astype(np.float32)
ROWS[::7, 1] = np.nan
THREE = {"classlabels_int64s": [4, 2, 9]}
TWO = {"classlabels_strings": ["no", "yes"]}
FORESTS = [
    *(
        case("TreeEnsembleRegressor", x, n_targets=2, **forest("target", [0, 1], mode=mode), **more)
        for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
        for x, more in (
            (ROWS, {}),
            (ROWS, {"base_values": [0.5, -1.0]}),
            (ROWS.astype(np.float64), {"aggregate_function": "AVERAGE"}),
            (ROWS, {"aggregate_function": "MIN"}),
            (ROWS, {"aggregate_function": "MAX"}),
        )
    ),
    *(
        case("TreeEnsembleRegressor", ROWS, n_targets=2, post_transform=kind, **more)
        for kind in KINDS
        for more in (
            forest("target", [0, 1]),
            {**forest("target", [1]), "base_values": [0.5, -1.0]},  # none has a vote for 0
        )
    ),
    *(
        case("TreeEnsembleClassifier", ROWS, outputs=2, post_transform=kind, **given, **votes)
        for kind in KINDS[:-1]
        for given, votes in (
            (THREE, forest("class", [0, 1, 2])),
            (THREE, forest("class", [0, 2])),
            (TWO, forest("class", [1])),
            (TWO, forest("class", [1], sign=1.0)),
            (TWO, forest("class", [0])),
            (TWO, forest("class", [0], sign=1.0)),
            ({**TWO, "base_values": [0.25]}, forest("class", [0])),
            ({**THREE, "base_values": [0.25, 0.5, 0.1]}, forest("class", [0, 1, 2])),
            ({**THREE, "base_values": [0.25, 0.5, 0.1]}, forest("class", [0, 2])),
        )
    ),
]


@pytest.mark.parametrize("op, inputs, outputs, opset, attrs", FORESTS)
def test_trees_as_onnxruntime(op, inputs, outputs, opset, attrs):
    check(model(op, list(inputs), outputs, attrs, opset), inputs)


def test_forests_of_one_size_are_two():
    """As AdaBoost and bagging make them, of the same rows."""
    trees = {"n_targets": 1, **forest("target", [0])}
    other = {**trees, "target_weights": [2 * weight for weight in trees["target_weights"]]}
    proto = model("TreeEnsembleRegressor", [ROWS], 1, trees)
    more = helper.make_node("TreeEnsembleRegressor", ["x0"], ["y1"], domain="ai.onnx.ml", **other)
    proto.graph.node.append(more)
    proto.graph.output.append(helper.make_empty_tensor_value_info("y1"))
    check(proto, [ROWS])


def test_the_largest_score_of_two_classes_wins():  # onnxruntime's labels are 0 and 1 here
    attrs = {"classlabels_int64s": [4, 5], **forest("class", [0, 1])}
    graph = read(model("TreeEnsembleClassifier", [ROWS], 2, attrs))
    run_all(graph)
    label, scores = evaluate(graph, {"x0": ROWS})
    np.testing.assert_array_equal(label, np.where(scores[:, 1] > scores[:, 0], 5, 4))


def test_a_class_without_a_vote_may_win_of_two():  # onnxruntime's scores are others here
    attrs = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [0, 1],
        "class_weights": [0.5, -1.0],
        "classlabels_int64s": [4, 5],
    }
    rows = np.array([[-1.0], [1.0]], np.float32)
    graph = read(model("TreeEnsembleClassifier", [rows], 2, attrs))
    run_all(graph)
    label, scores = evaluate(graph, {"x0": rows})
    assert scores.tolist() == [[0.5, 0.0], [0.0, -1.0]] and label.tolist() == [4, 4]


def machine(sizes: Sequence[int], kind: str, **more: Any) -> dict:
    """The attributes of a classifier with that many random support vectors of each class."""
    random, count = np.random.default_rng(2), sum(sizes)
    pairs = len(sizes) * (len(sizes) - 1) // 2
    return {
        "coefficients": random.standard_normal((len(sizes) - 1) * count).tolist(),
        "support_vectors": random.standard_normal(count * 4).tolist(),
        "vectors_per_class": list(sizes),
        "rho": random.standard_normal(pairs).tolist(),
        "kernel_type": kind,
        "kernel_params": [0.4, 0.3, 2.0],
        **({"prob_a": [-1.5] * pairs, "prob_b": [0.1] * pairs} if more.get("proba") else {}),
    }


def regressor(kind: str, **more: Any) -> dict:
    given = machine([4, 5], kind)
    del given["vectors_per_class"]
    return {**given, "n_supports": 9, **more}


KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
PLAIN = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
MACHINES = [
    *(case("SVMRegressor", X, **regressor(kind)) for kind in KERNELS),
    case("SVMRegressor", X, **regressor("RBF", one_class=1)),
    case("SVMRegressor", X, coefficients=WEIGHTS[:4], rho=[0.5], **PLAIN),
    *(case("SVMRegressor", X[0], **regressor(kind)) for kind in KERNELS),  # one sample
    case("SVMRegressor", X[0], coefficients=WEIGHTS[:4], rho=[0.5], **PLAIN),
    case(
        "SVMClassifier",
        X[0],
        outputs=2,
        classlabels_ints=[4, 2, 9],
        **machine([4, 5, 3], "RBF", proba=True),
    ),
    *(
        case("SVMClassifier", X, outputs=2, **names, **machine(sizes, kind, proba=proba), **more)
        for kind in KERNELS
        for proba in (False, True)
        for sizes, names, more in (
            ([4, 5], {"classlabels_strings": ["no", "yes"]}, {}),
            ([4, 5, 3], {"classlabels_ints": [4, 2, 9]}, {}),
            ([4, 5, 3], {"classlabels_ints": [4, 2, 9]}, {"post_transform": "LOGISTIC"}),
            ([4, 5], {"classlabels_ints": [4, 2]}, {"post_transform": "LOGISTIC"}),
        )
    ),
    case(
        "SVMClassifier",
        X,
        outputs=2,
        coefficients=WEIGHTS,
        rho=[0.5],
        **PLAIN,
        classlabels_ints=[4, 2, 9],
    ),
]


@pytest.mark.parametrize("op, inputs, outputs, opset, attrs", MACHINES)
def test_support_vectors_as_onnxruntime(op, inputs, outputs, opset, attrs):
    check(model(op, list(inputs), outputs, attrs, opset), inputs)
