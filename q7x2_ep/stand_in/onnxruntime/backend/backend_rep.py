"""OnnxRuntimeBackendRep: a model that is ready to run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.backend.base

from q7x2_ep.api import InferenceSession, RunOptions


class OnnxRuntimeBackendRep(onnx.backend.base.BackendRep):
    """A session that takes its inputs by position."""

    def __init__(self, session: InferenceSession):
        self._session = session

    def run(self, inputs: Any, **options: Any) -> list[np.ndarray]:
        """inputs: a list, or the one input. options: fields of RunOptions; others are for prepare.

        Raises: RuntimeError where one input is given and the model has more.
        """
        names = [each.name for each in self._session.get_inputs()]
        if not isinstance(inputs, (list, tuple)):
            if len(names) != 1:
                raise RuntimeError(f"Model expect {len(names)} inputs")
            inputs = [inputs]
        run_options = with_fields(RunOptions(), options, {"terminate"})
        return self._session.run(None, dict(zip(names, inputs)), run_options)


def with_fields(options: Any, values: dict[str, Any], forbidden: set[str]) -> Any:
    """options with those values that are fields of it. Raises: RuntimeError for a forbidden one."""
    for name, value in values.items():
        if name in forbidden:
            raise RuntimeError(
                f"{type(options).__name__} attribute '{name}' is not permitted via the backend API"
            )
        if hasattr(options, name):
            setattr(options, name, value)
    return options
