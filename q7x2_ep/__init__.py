"""q7x2_ep: an ONNX inference engine with onnxruntime's API.

>>> import q7x2_ep  # doctest: +SKIP
>>> session = q7x2_ep.InferenceSession("model.onnx")  # doctest: +SKIP
>>> outputs = session.run(None, {"input_ids": ids, "attention_mask": mask})  # doctest: +SKIP
"""

from q7x2_ep.api.inference_session import (
    InferenceSession,
    ModelMetadata,
    NodeArg,
    get_available_providers,
    get_device,
)
from q7x2_ep.api.options import ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions
from q7x2_ep.bisect import Bisection, bisect
from q7x2_ep.compare import Comparison, compare
from q7x2_ep.errors import (
    BackendError,
    DataError,
    FeedError,
    InternalError,
    ModelError,
    ModelNotFound,
    Q7Error,
    ShapeError,
    UnsupportedOp,
)
from q7x2_ep.explain import Explanation, explain
from q7x2_ep.optimize import Optimization, optimize

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "Bisection",
    "Comparison",
    "DataError",
    "ExecutionMode",
    "Explanation",
    "FeedError",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InternalError",
    "ModelError",
    "ModelMetadata",
    "ModelNotFound",
    "NodeArg",
    "Optimization",
    "Q7Error",
    "RunOptions",
    "SessionOptions",
    "ShapeError",
    "UnsupportedOp",
    "bisect",
    "compare",
    "explain",
    "get_available_providers",
    "get_device",
    "optimize",
]
