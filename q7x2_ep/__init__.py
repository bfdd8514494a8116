"""q7x2_ep: an ONNX inference engine with onnxruntime's API.

>>> import q7x2_ep  # doctest: +SKIP
>>> session = q7x2_ep.InferenceSession("model.onnx")  # doctest: +SKIP
>>> outputs = session.run(None, {"input_ids": ids, "attention_mask": mask})  # doctest: +SKIP
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from q7x2_ep import api
from q7x2_ep.api import *  # noqa: F403  the names of onnxruntime's module
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
from q7x2_ep.install import install, uninstall
from q7x2_ep.release import __version__ as __version__

if TYPE_CHECKING:
    from q7x2_ep.api.compiler import (
        ModelCompiler,
        OrtCompileApiFlags,
        OrtEpContextData,
        OrtEpContextDataBuffer,
        OrtExternalInitializerInfo,
    )
    from q7x2_ep.bisect import Bisection, bisect
    from q7x2_ep.compare import Comparison, compare
    from q7x2_ep.compile import Compilation, compile
    from q7x2_ep.explain import Explanation, explain
    from q7x2_ep.optimize import Optimization, optimize


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
    "ModelCompiler",
    "ModelError",
    "ModelNotFound",
    "Optimization",
    "OrtCompileApiFlags",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtExternalInitializerInfo",
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

# The tools, the engine behind them, and onnxruntime's compiler are imported when they are used: the
# tools take several times as long as the rest. By name, the module; that of a function is its own.
_LATER = {
    **{name: name for name in ("bisect", "compare", "compile", "explain", "optimize")},
    "Bisection": "bisect",
    "Comparison": "compare",
    "Compilation": "compile",
    "Explanation": "explain",
    "ModelCompiler": "api.compiler",
    "Optimization": "optimize",
    "OrtCompileApiFlags": "api.compiler",
    "OrtEpContextData": "api.compiler",
    "OrtEpContextDataBuffer": "api.compiler",
    "OrtExternalInitializerInfo": "api.compiler",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


class _Package(ModuleType):
    """Python binds a module that it has imported to its name in the package; of a tool, the name is
    the function's.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        is_tool = isinstance(value, ModuleType) and name in _LATER
        super().__setattr__(name, getattr(value, name) if is_tool else value)


sys.modules[__name__].__class__ = _Package
