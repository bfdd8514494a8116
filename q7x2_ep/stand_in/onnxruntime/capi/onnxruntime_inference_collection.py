"""The classes around the native ones."""

from q7x2_ep.api import (  # noqa: F401
    AdapterFormat,
    InferenceSession,
    IOBinding,
    ModelCompiler,
    OrtDevice,
    OrtDeviceVendorId,
    OrtValue,
    SparseTensor,
    copy_tensors,
)

Session = InferenceSession  # onnxruntime's base class of sessions
