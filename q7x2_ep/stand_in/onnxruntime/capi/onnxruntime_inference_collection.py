"""The classes around the native ones."""

from q7x2_ep.api import (  # noqa: F401
    AdapterFormat,
    InferenceSession,
    IOBinding,
    OrtDevice,
    OrtDeviceVendorId,
    OrtValue,
    SparseTensor,
    copy_tensors,
)
from q7x2_ep.api.compiler import ModelCompiler  # noqa: F401

Session = InferenceSession  # onnxruntime's base class of sessions
