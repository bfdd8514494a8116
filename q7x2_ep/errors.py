"""Every exception that q7x2_ep raises on purpose. Message form: what was expected, what was given,
what to do.
"""

from __future__ import annotations


class Q7Error(Exception):
    """Base class of all errors of q7x2_ep."""


class ModelError(Q7Error):
    """The model cannot be read: missing, corrupt or not valid ONNX."""


class ModelNotFound(ModelError, FileNotFoundError):
    """There is no file at the given path."""


class UnsupportedOp(ModelError):
    """The model uses operators, or dtypes of operators, that no backend can run. Lists all of
    them.
    """


class FeedError(Q7Error, ValueError):
    """The feed does not fit the model's inputs: a missing, extra or mistyped input."""


class ShapeError(FeedError):
    """A dim or rank of a feed does not fit, or shapes that the feed implies are inconsistent."""


class DataError(FeedError):
    """The values of a feed are out of range for an op of the model, such as an index beyond its
    axis.
    """


class PlanError(Q7Error):
    """A valid model could not be planned; always a defect of q7x2_ep worth reporting."""


class BackendError(Q7Error):
    """A backend is missing, was built for something else, or refused a request."""


class InternalError(Q7Error):
    """An invariant of q7x2_ep broke; always a defect worth reporting."""
