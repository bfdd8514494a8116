"""q7x2_ep: an ONNX inference engine with onnxruntime's API.

>>> import q7x2_ep  # doctest: +SKIP
>>> session = q7x2_ep.InferenceSession("model.onnx")  # doctest: +SKIP
>>> outputs = session.run(None, {"input_ids": ids, "attention_mask": mask})  # doctest: +SKIP
"""

from q7x2_ep import api
from q7x2_ep.api import *  # noqa: F403  the names of onnxruntime's module
from q7x2_ep.api.compiled import Compilation, compile
from q7x2_ep.bisect import Bisection, bisect
from q7x2_ep.compare import Comparison, compare
from q7x2_ep.errors import (
    BackendError,
    BindingError,
    CorruptModel,
    DataError,
    FeedError,
    InternalError,
    LoadCanceled,
    MissingInput,
    ModelError,
    ModelNotFound,
    Q7Error,
    RunTerminated,
    ShapeError,
    StaleModel,
    UnsupportedOp,
)
from q7x2_ep.explain import Explanation, explain
from q7x2_ep.install import install, uninstall
from q7x2_ep.optimize import Optimization, optimize
from q7x2_ep.version import __version__ as __version__

__all__ = [
    "BackendError",
    "BindingError",
    "Bisection",
    "Comparison",
    "Compilation",
    "CorruptModel",
    "DataError",
    "Explanation",
    "FeedError",
    "InternalError",
    "LoadCanceled",
    "MissingInput",
    "ModelError",
    "ModelNotFound",
    "Optimization",
    "Q7Error",
    "RunTerminated",
    "ShapeError",
    "StaleModel",
    "UnsupportedOp",
    "bisect",
    "compare",
    "compile",
    "explain",
    "install",
    "optimize",
    "uninstall",
    *api.__all__,
]
