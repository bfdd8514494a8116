"""onnxruntime_pybind11_state under the name by which onnxruntime's own Python imports it."""

from onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
from onnxruntime.capi.onnxruntime_pybind11_state import __getattr__  # noqa: F401
