"""InferenceSession as onnxruntime spells it, over q7x2_ep.session.Session."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep import dtypes, errors
from q7x2_ep.api.options import GraphOptimizationLevel, RunOptions, SessionOptions
from q7x2_ep.ir.shape import Dim
from q7x2_ep.session import Model, Session

PROVIDER = "CPUExecutionProvider"
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)

logger = logging.getLogger("q7x2_ep")


class NodeArg(NamedTuple):
    """One input or output. shape: ints for fixed dims, strings for symbolic ones. type: like
    tensor(float).
    """

    name: str
    shape: list[Union[int, str]]
    type: str


class ModelMetadata(NamedTuple):
    """What the model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """An ONNX model, compiled for this CPU.

    path_or_bytes: a path, the bytes of a model, or an onnx.ModelProto. providers: accepted names
    end in ExecutionProvider; every model runs on the CPU. A session is a context manager, can be
    pickled when it was made from a path or bytes, and serves any number of threads at once.

    Raises: ModelNotFound, ModelError, UnsupportedOp.
    """

    def __init__(
        self,
        path_or_bytes: Model,
        sess_options: Optional[SessionOptions] = None,
        providers: Optional[Sequence[Any]] = None,
        provider_options: Optional[Sequence[Mapping[str, Any]]] = None,
        **kwargs: Any,
    ):
        options = sess_options if sess_options is not None else SessionOptions()
        if not isinstance(options, SessionOptions):
            raise TypeError(
                f"sess_options must be a SessionOptions, given {type(options).__name__}"
            )
        _check_providers(providers)
        if options.log_severity_level >= 0:
            logger.setLevel(_LEVELS[min(options.log_severity_level, 4)])
        self._model, self._options = path_or_bytes, options
        self._model_path = (
            os.fspath(path_or_bytes) if isinstance(path_or_bytes, (str, os.PathLike)) else None
        )
        fusion = options.graph_optimization_level >= GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        self._session = Session(
            path_or_bytes, options.intra_op_num_threads, fusion, options.optimized_model_filepath
        )
        logger.info(
            "compiled %s: %d phases",
            self._model_path or "a model",
            len(self._session.program.phases),
        )

    def run(
        self,
        output_names: Optional[Sequence[str]],
        input_feed: Mapping[str, Any],
        run_options: Optional[RunOptions] = None,
    ) -> list[np.ndarray]:
        """The named outputs (all of them for None or an empty list) for one feed.

        Raises: FeedError, ShapeError and DataError for a feed that the model cannot take.
        """
        session = self._session
        chosen = [self._output_index(name) for name in output_names] if output_names else None
        outputs = session.run(input_feed)
        return outputs if chosen is None else [outputs[i] for i in chosen]

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs in order; initialisers are not among them."""
        return [_node_arg(spec.name, spec.dtype, spec.shape) for spec in self._session.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs in order."""
        session = self._session
        return [_node_arg(n, d, s) for n, (d, s) in zip(session.output_names, session.output_types)]

    def get_modelmeta(self) -> ModelMetadata:
        """Producer, names, version and custom metadata of the model."""
        known = self._session.metadata
        return ModelMetadata(
            producer_name=known.get("producer_name", ""),
            graph_name=known.get("graph_name", ""),
            domain=known.get("domain", ""),
            description=known.get("description", ""),
            graph_description=known.get("graph_description", ""),
            version=known.get("version", 0),
            custom_metadata_map=dict(known.get("custom_metadata_map", {})),
        )

    def get_providers(self) -> list[str]:
        """Where the model runs."""
        return [PROVIDER]

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    def close(self) -> None:
        """Give back memory now; the session cannot run afterwards."""
        self._session.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        model = (
            self._model.SerializeToString()
            if hasattr(self._model, "SerializeToString")
            else self._model
        )
        return InferenceSession, (model, self._options)

    def _output_index(self, name: str) -> int:
        names = self._session.output_names
        if name not in names:
            raise errors.FeedError(f"[output {name!r}] unknown; the model's outputs are {names}")
        return names.index(name)


def get_available_providers() -> list[str]:
    """The providers that a session can use here."""
    return [PROVIDER]


def get_device() -> str:
    """The device that models run on."""
    return "CPU"


def _node_arg(name: str, dtype: int, shape: Optional[tuple[Dim, ...]]) -> NodeArg:
    dims = [dim if isinstance(dim, int) else str(dim) for dim in shape or ()]
    return NodeArg(name, dims, dtypes.type_string(dtype))


def _check_providers(providers: Optional[Sequence[Any]]) -> None:
    for provider in providers or ():
        name = provider[0] if isinstance(provider, (tuple, list)) else provider
        if not isinstance(name, str) or not name.endswith("ExecutionProvider"):
            raise ValueError(f"providers: expected names like {PROVIDER!r}, given {provider!r}")
        if name != PROVIDER:
            logger.warning("provider %s is not available; the model runs on %s", name, PROVIDER)
