"""A model compiled ahead of time: one file, mapped by every process that opens it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Union

from q7x2_ep.api.inference_session import InferenceSession
from q7x2_ep.api.options import SessionOptions
from q7x2_ep.errors import ModelError, cannot_write
from q7x2_ep.progress import track
from q7x2_ep.session import Model


@dataclass(frozen=True)
class Compilation:
    """What was written. bytes: of the file; steps, host_steps: of a run."""

    path: str
    bytes: int
    steps: int
    host_steps: int

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.bytes:,} bytes, {self.steps} steps, {self.host_steps} on the host"
        )


def compile(
    model: Model,
    path: Union[str, os.PathLike[str]],
    sess_options: Optional[SessionOptions] = None,
) -> Compilation:
    """Compile a model for this CPU, and write plan and packed weights to a file that
    InferenceSession opens in its place.

    sess_options: those that change the model (sizes of dims, initializers, level of optimisation)
    are fixed in the file. It holds the model's own inputs and outputs: intermediate values, and
    overriding initializers, need the ONNX model. A file of another build of q7x2_ep, or of a CPU
    that can do more, is refused when it is opened.

    Raises: ModelError for a model that cannot be read, or a file that cannot be written,
    UnsupportedOp for a model with Python functions in it.
    """
    with InferenceSession(model, sess_options) as session:
        try:
            size = session._session.save(path, track=track)
        except OSError as error:
            raise ModelError(cannot_write(os.fspath(path), error)) from error
        program = session._session.program
        hosts = len(program.host_phases)
        return Compilation(os.fspath(path), size, len(program.steps) - hosts, hosts)
