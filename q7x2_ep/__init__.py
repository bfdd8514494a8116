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
from q7x2_ep.compare import Comparison, compare
from q7x2_ep.errors import (
    BackendError,
    DataError,
    FeedError,
    ModelError,
    ModelNotFound,
    Q7Error,
    ShapeError,
    UnsupportedOp,
)
from q7x2_ep.explain import Explanation, explain

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "Comparison",
    "DataError",
    "ExecutionMode",
    "Explanation",
    "FeedError",
    "GraphOptimizationLevel",
    "InferenceSession",
    "ModelError",
    "ModelMetadata",
    "ModelNotFound",
    "NodeArg",
    "Q7Error",
    "RunOptions",
    "SessionOptions",
    "ShapeError",
    "UnsupportedOp",
    "compare",
    "explain",
    "get_available_providers",
    "get_device",
]
