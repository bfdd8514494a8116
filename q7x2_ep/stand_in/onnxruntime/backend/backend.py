"""OnnxRuntimeBackend: models by onnx.backend.base."""

from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np
import onnx.backend.base

from onnxruntime.backend.backend_rep import OnnxRuntimeBackendRep, with_fields
from q7x2_ep.api import InferenceSession, SessionOptions, get_device

Model = Union[str, bytes, onnx.ModelProto, InferenceSession, OnnxRuntimeBackendRep]
_FILES = {"enable_profiling", "optimized_model_filepath", "profile_file_prefix"}


class OnnxRuntimeBackend(onnx.backend.base.Backend):
    """Makes sessions of models and runs them."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == get_device()

    @classmethod
    def is_compatible(cls, model: Any, device: Optional[str] = None, **options: Any) -> bool:
        return device is None or cls.supports_device(device)

    @classmethod
    def prepare(
        cls, model: Model, device: Optional[str] = None, **options: Any
    ) -> OnnxRuntimeBackendRep:
        """A model that is ready to run. options: fields of SessionOptions; others are for run.

        Raises: RuntimeError for another device, and for options that would write files.
        """
        if not cls.is_compatible(model, device):
            raise RuntimeError(f"Incompatible device expected '{device}', got '{get_device()}'")
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if not isinstance(model, InferenceSession):
            model = InferenceSession(model, with_fields(SessionOptions(), options, _FILES))
        return OnnxRuntimeBackendRep(model)

    @classmethod
    def run_model(
        cls, model: Model, inputs: Any, device: Optional[str] = None, **options: Any
    ) -> list[np.ndarray]:
        return cls.prepare(model, device, **options).run(inputs, **options)

    @classmethod
    def run_node(cls, node: Any, inputs: Any, *rest: Any, **options: Any) -> None:
        raise NotImplementedError("make a model of the node and run that")


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = run_model = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
