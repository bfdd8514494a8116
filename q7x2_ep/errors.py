"""Every exception that q7x2_ep raises on purpose. Message form: what was expected, what was given,
what to do.

Each is an instance of the onnxruntime class that the same mistake raises there, so that a client's
`except InvalidArgument` (or Fail, NoSuchFile, ..) works unchanged; its text begins as
onnxruntime's does, `[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : `, and `message` is without that.
"""

from __future__ import annotations

# onnxruntime's classes, flat as they are there. status: the code and name in their messages.


class Fail(Exception):
    """Anything that has no class of its own: a graph that contradicts itself, a step that fails."""

    status = "1 : FAIL"


class InvalidArgument(Exception):
    """A feed, a name or an option that does not fit the model."""

    status = "2 : INVALID_ARGUMENT"


class NoSuchFile(Exception):
    """There is no file at the given path."""

    status = "3 : NO_SUCHFILE"


class NoModel(Exception):
    """A session without a model was asked for something."""

    status = "4 : NO_MODEL"


class EngineError(Exception):
    """The engine failed."""

    status = "5 : ENGINE_ERROR"


class RuntimeException(Exception):
    """An invariant broke while running."""

    status = "6 : RUNTIME_EXCEPTION"


class InvalidProtobuf(Exception):
    """The bytes are no protobuf message, or are cut off."""

    status = "7 : INVALID_PROTOBUF"


class ModelLoaded(Exception):
    """A session has a model already."""

    status = "8 : MODEL_LOADED"


class NotImplemented(Exception):
    """The model uses what the engine does not have."""

    status = "9 : NOT_IMPLEMENTED"


class InvalidGraph(Exception):
    """A node that does not fit the schema of its op."""

    status = "10 : INVALID_GRAPH"


class EPFail(Exception):
    """An execution provider failed."""

    status = "11 : EP_FAIL"


class ModelLoadCanceled(Exception):
    """Loading was cancelled through SessionOptions.set_load_cancellation_flag."""

    status = "12 : MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(Exception):
    """The model has to be compiled first, and that is switched off."""

    status = "13 : MODEL_REQUIRES_COMPILATION"


class NotFound(Exception):
    """What was asked for does not exist."""

    status = "14 : NOT_FOUND"


class DeviceReset(Exception):
    """The device was reset under the session."""

    status = "15 : DEVICE_RESET"


# Ours. Which of onnxruntime's each one is, is its list of bases; the first gives the status.


class Q7Error(Exception):
    """Base class of all errors of q7x2_ep."""

    status = Fail.status

    @property
    def message(self) -> str:
        """The text without onnxruntime's preamble."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return f"[ONNXRuntimeError] : {self.status} : {self.message}"


class ModelError(Q7Error, Fail, InvalidGraph, InvalidArgument):
    """The model is not valid ONNX, or contradicts itself."""


class CorruptModel(ModelError, InvalidProtobuf):
    """What was given as a model is not one: no protobuf message, or cut off."""

    status = InvalidProtobuf.status


class ModelNotFound(ModelError, NoSuchFile, FileNotFoundError):
    """There is no file at the given path."""

    status = NoSuchFile.status


class UnsupportedOp(ModelError, NotImplemented):
    """The model uses operators, or dtypes of operators, that no backend can run. Lists all of
    them.
    """

    status = NotImplemented.status


class StaleModel(ModelError, ModelRequiresCompilation):
    """A compiled model file is of another version, build or CPU: compile the model again."""

    status = ModelRequiresCompilation.status


class LoadCanceled(Q7Error, ModelLoadCanceled):
    """Loading was cancelled through SessionOptions.set_load_cancellation_flag."""

    status = ModelLoadCanceled.status


class FeedError(Q7Error, InvalidArgument, ValueError):
    """The feed does not fit the model's inputs: an extra or mistyped input, an unknown output."""

    status = InvalidArgument.status


class MissingInput(FeedError, Fail):
    """A required input is not in the feed, or is None."""


class ShapeError(FeedError, Fail):
    """A dim or rank of a feed does not fit, or shapes that the feed implies are inconsistent."""


class IrregularFeed(ShapeError):
    """A feed breaks what Request.regular assumes: dims that have one name in the model differ, an
    input that is declared as a scalar is none, or the sign of a slice's bound is another.
    """


class DataError(FeedError, Fail):
    """The values of a feed are out of range for an op of the model, such as an index beyond its
    axis.
    """


class BindingError(Q7Error, InvalidArgument, Fail, RuntimeError):
    """A value, binding or option cannot do what it is asked for: another kind of value, an unknown
    name, a device that is not here.
    """

    status = InvalidArgument.status


class RunTerminated(Q7Error, Fail):
    """The run ended early because RunOptions.terminate was set."""


class PlanError(Q7Error, RuntimeException):
    """A valid model could not be planned; always a defect of q7x2_ep worth reporting."""

    status = RuntimeException.status


class BackendError(Q7Error, Fail):
    """A backend is missing, was built for something else, or refused a request."""


class InternalError(Q7Error, RuntimeException):
    """An invariant of q7x2_ep broke; always a defect worth reporting."""

    status = RuntimeException.status


def closed() -> BackendError:
    """Of a session that was closed."""
    return BackendError("[session] is closed; make a new one")


def cannot_write(path: str, error: OSError) -> str:
    """The message of a file that is asked for and cannot be written."""
    why = error.strerror or error
    return f"cannot write {path!r}: {why}; expected a file in a folder that is writable"
