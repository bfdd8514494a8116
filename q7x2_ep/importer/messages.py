"""onnx's protobuf messages, without the rest of onnx.

`import onnx` takes 45 ms of processor time, a session of a small model two: checkers, parsers and
the metadata of packages, which reading a model has no use for. The generated module alone takes 11;
a later `import onnx` finds the same classes, since protobuf keeps one for each message.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any


@cache
def messages() -> Any:
    """A module that has ModelProto, TensorProto, .."""
    package = PathFinder.find_spec("onnx") if "onnx" not in sys.modules else None
    if package is not None and package.submodule_search_locations is not None:
        spec = PathFinder.find_spec("onnx.onnx_ml_pb2", package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    import onnx

    return onnx
