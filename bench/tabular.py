"""Models of tables, as scikit-learn fits them to random rows and skl2onnx writes them; for zoo.

Needs scikit-learn and skl2onnx. Inputs are rows of FEATURES numbers, targets sums of them with one
product, or three classes of such sums.
"""

from __future__ import annotations

from typing import Any

FEATURES, ROWS, SEED = 30, 2000, 0
# By name: module, class and what differs from its defaults.
ESTIMATORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "forest-classifier": ("ensemble", "RandomForestClassifier", {"max_depth": 12}),
    "forest-regressor": ("ensemble", "RandomForestRegressor", {}),
    "boosting": ("ensemble", "GradientBoostingRegressor", {"n_estimators": 300, "max_depth": 4}),
    "isolation-forest": ("ensemble", "IsolationForest", {"n_estimators": 50}),
    "tree": ("tree", "DecisionTreeClassifier", {}),
    "support-vectors": ("svm", "SVC", {"probability": True}),
    "support-vector-regressor": ("svm", "SVR", {}),
    "neighbours": ("neighbors", "KNeighborsClassifier", {}),
    "logistic": ("linear_model", "LogisticRegression", {}),
    "perceptron": ("neural_network", "MLPClassifier", {"max_iter": 20}),
    "bayes": ("naive_bayes", "GaussianNB", {}),
    "polynomial": ("preprocessing", "PolynomialFeatures", {}),
    "bins": ("preprocessing", "KBinsDiscretizer", {"encode": "onehot-dense"}),
}


def model(name: str) -> Any:
    """The ModelProto of an estimator, standardised rows in front of it."""
    import importlib

    import numpy as np
    import skl2onnx
    from sklearn.base import is_classifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    module, cls, parameters = ESTIMATORS[name]
    estimator = getattr(importlib.import_module(f"sklearn.{module}"), cls)(**parameters)
    if "random_state" in estimator.get_params():
        estimator.set_params(random_state=SEED)
    random = np.random.default_rng(SEED)
    x = random.standard_normal((ROWS, FEATURES)).astype(np.float32)
    y = x @ random.standard_normal(FEATURES) + 2 * x[:, 0] * x[:, 1]
    labels = np.digitize(y, (-4, 4))
    fitted = make_pipeline(StandardScaler(), estimator)
    fitted.fit(x, labels if is_classifier(estimator) else y)
    options = {"zipmap": False} if is_classifier(estimator) else None
    opsets = {"": 18, "ai.onnx.ml": 3}
    return skl2onnx.to_onnx(fitted, x[:1], target_opset=opsets, options=options)
