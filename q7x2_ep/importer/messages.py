"""onnx's protobuf messages, without the rest of onnx.

`import onnx` takes 45 ms of processor time, a session of a small model two: checkers, parsers and
the metadata of packages, which reading a model has no use for. The generated module alone takes 5;
a later `import onnx` finds the same classes, since protobuf keeps one for each message.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

_PLAIN = "google.protobuf.internal.python_message"


@cache
def messages() -> Any:
    """A module that has ModelProto, TensorProto, .."""
    package = PathFinder.find_spec("onnx") if "onnx" not in sys.modules else None
    if package is not None and package.submodule_search_locations is not None:
        spec = PathFinder.find_spec("onnx.onnx_ml_pb2", package.submodule_search_locations)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            _import_builder()
            spec.loader.exec_module(module)
            return module
    import onnx

    return onnx


class _Later:
    """A module, imported when somebody needs a part of it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(_PLAIN), name)


def _import_builder() -> None:
    """What a generated module imports of protobuf. It imports messages in plain Python too, 8 ms
    that nobody needs where they are in C.
    """
    package: Any = importlib.import_module("google.protobuf.internal")
    if hasattr(package, "python_message"):
        return
    package.python_message = later = _Later()
    try:
        for name in ("descriptor_pool", "internal.builder"):
            importlib.import_module(f"google.protobuf.{name}")
    finally:
        if package.python_message is later:
            del package.python_message
