"""ai.onnx.ml against onnxruntime, whose results these ops are known by."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.importer import read
from q7x2_ep.passes import run_all

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((6, 4)).astype(np.float32)
WHOLE = RANDOM.integers(-3, 4, (6, 4))
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


def model(op: str, inputs: list[np.ndarray], outputs: int, attrs: dict, opset: int = 3) -> Any:
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(name, CODES[str(x.dtype)], x.shape)
        for name, x in zip(names, inputs)
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
    case("LabelEncoder", X, keys_floats=X[0].tolist(), values_int64s=[1, 2, 3, 4]),
    case("LabelEncoder", HOLES, opset=4, keys_floats=[float("nan")], values_strings=["hole"]),
    case("LabelEncoder", NAMES, opset=1, classes_strings=["c", "b"]),
    case("LabelEncoder", WHOLE, opset=1, classes_strings=["c", "b"], default_string="?"),
    case("CategoryMapper", NAMES, cats_strings=["a", "b"], cats_int64s=[7, 8]),
    case("CategoryMapper", WHOLE, cats_strings=["a", "b"], cats_int64s=[0, 1]),
    case("OneHotEncoder", NAMES, cats_strings=["b", "c"]),
    case("OneHotEncoder", WHOLE, cats_int64s=[-1, 1, 2]),
    case("OneHotEncoder", WHOLE.astype(np.float32), cats_int64s=[-1, 1, 2]),
]


@pytest.mark.parametrize("op, inputs, outputs, opset, attrs", CASES)
def test_as_onnxruntime(op, inputs, outputs, opset, attrs):
    check(model(op, list(inputs), outputs, attrs, opset), inputs)


def check(proto: Any, inputs: Any) -> None:
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    theirs = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    graph = read(proto)
    run_all(graph)
    ours = evaluate(graph, feeds)
    for a, b, value in zip(ours, theirs, graph.outputs):
        assert a.dtype == b.dtype
        assert value.dtype == helper.np_dtype_to_tensor_dtype(a.dtype)
        if a.dtype == object:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
