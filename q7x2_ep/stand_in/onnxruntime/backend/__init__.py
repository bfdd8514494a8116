"""onnx's backend interface: onnx.backend.test and other runners take this module."""

from onnxruntime.backend.backend import (  # noqa: F401
    is_compatible,
    prepare,
    run,
    run_model,
    supports_device,
)
