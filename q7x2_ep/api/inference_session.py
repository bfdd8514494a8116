"""InferenceSession as onnxruntime spells it, over q7x2_ep.session.Session.

A session compiles its model once. Where a run asks for an intermediate value, or feeds an
initializer, another form of the model is compiled for that, at the first such run, and kept.
"""

from __future__ import annotations

import copy
import operator
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from q7x2_ep import collector, dtypes, errors, knobs
from q7x2_ep.api import environment
from q7x2_ep.api.arrays import as_given, is_bits, to_array
from q7x2_ep.api.binding import IOBinding, SessionIOBinding
from q7x2_ep.api.containers import parts, to_container
from q7x2_ep.api.device import CPU_DEVICE, CPU_MEMORY, PROVIDER, OrtEpDevice, OrtMemoryInfo
from q7x2_ep.api.enums import GraphOptimizationLevel
from q7x2_ep.api.metadata import (
    ModelMetadata,
    NodeArg,
    OrtEpAssignedSubgraph,
    assigned,
    node_arg,
    symbolic,
)
from q7x2_ep.api.options import (
    OPTIONS_OF_MODEL,
    RunOptions,
    SessionOptions,
    asked,
    check_run,
    check_session,
    options_of_model,
)
from q7x2_ep.api.sparse import SparseTensor, dense
from q7x2_ep.api.value import OrtValue, OrtValueVector
from q7x2_ep.backend.call import Call
from q7x2_ep.files import is_compiled

if TYPE_CHECKING:  # the engine is imported by the first session
    from q7x2_ep.api.tracing import Trace
    from q7x2_ep.backend.memory import MemoryReport
    from q7x2_ep.request import Request
    from q7x2_ep.session import Model, Session

_CACHE = "q7x2.cache_folder"
_ASSIGNMENT = "session.record_ep_graph_assignment_info"
# Arrays of these go through as they are.
_NATIVE = frozenset(np.dtype(code) for code in np.typecodes["AllInteger"] + "efd?")


class InferenceSession:
    """An ONNX model, compiled for this CPU.

    path_or_bytes: a path, the bytes of a model, or an onnx.ModelProto; or what q7x2_ep.compile made
    of one. providers: names, or (name, options); every model runs on the CPU, others are warned
    about. enable_fallback=0: providers that are malformed are an error, not a warning.
    read_config_from_model=1: what the model's metadata entry ort_config asks for of numbers of
    threads, execution_mode, graph_optimization_level and enable_profiling takes the place of what
    sess_options have, which stay as they are. disabled_optimizers: accepted. A session is a
    context manager, can be pickled, and serves any number of threads at once.

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
        is_path = isinstance(path_or_bytes, (str, os.PathLike))
        is_bytes = isinstance(path_or_bytes, (bytes, bytearray, memoryview))
        if not is_path and not is_bytes and not hasattr(path_or_bytes, "SerializeToString"):
            raise TypeError(
                f"Unable to load from type '{type(path_or_bytes)}': expected a path, bytes or an "
                "onnx.ModelProto"
            )
        options = sess_options if sess_options is not None else SessionOptions()
        if not isinstance(options, SessionOptions):
            raise TypeError(
                f"sess_options must be a SessionOptions, given {type(options).__name__}"
            )
        check_session(options)
        if options._cancelled:
            raise errors.LoadCanceled("Graph loading canceled due to user request.")
        self._fallback = int(kwargs.get("enable_fallback", 1)) == 1
        self._check_providers(providers, provider_options)
        if options.log_severity_level >= 0:
            environment.set_level(options.log_severity_level)
        self._model, self._options = path_or_bytes, options
        self._model_path = os.fspath(path_or_bytes) if is_path else None
        if is_path and "\0" in os.fsdecode(self._model_path):
            raise errors.ModelNotFound(
                f"Load model from {self._model_path!r} failed: no file has a NUL in its name"
            )
        self._is_compiled = is_compiled(path_or_bytes)
        self._variants: dict[tuple[frozenset, frozenset, bool], Session] = {}
        self._start()
        if int(kwargs.get("read_config_from_model", 0)) == 1:
            self._read_options()
        if "logging" in sys.modules:  # else nobody listens
            environment.logger().info(
                "compiled %s: %d phases",
                self._model_path or "a model",
                len(self._session.program.image.parts),
            )

    def _start(self) -> None:
        """Compiles the model, and begins a profile where the options ask for one."""
        options = self._options
        self._trace: Optional[Trace] = None
        self._profiling_start = 0
        if options.enable_profiling:
            from q7x2_ep.api.tracing import Trace

            self._trace = Trace(options.profile_file_prefix)
            self._profiling_start = self._trace.start_ns
        self._session = self._compile(path=options.optimized_model_filepath)
        if self._trace is not None:
            kind, start = "uri" if self._model_path else "array", self._trace.start_ns
            self._trace.session(f"model_loading_{kind}", start, start)
            self._trace.session("session_initialization", start, self._trace.now())
        try:
            self._describe()
        except Exception as error:
            if not self._is_compiled:
                raise
            raise errors.CorruptModel(f"[compiled model] is malformed: {error!r}") from error

    @collector.waiting()
    def _compile(
        self,
        outputs: Sequence[str] = (),
        live: Sequence[str] = (),
        path: str = "",
        regular: bool = True,
    ) -> Session:
        from q7x2_ep.session import Session

        options = self._options
        request = asked(options, outputs, live, regular)
        fusion = options.graph_optimization_level >= GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        threads = (
            options.intra_op_num_threads
            if options.use_per_session_threads
            else environment.global_threads()
        )
        if self._is_compiled:
            return self._open(request, fusion, threads, path)
        folder = options._config.get(_CACHE) or str(knobs.get("CACHE"))
        if folder and not path:
            from q7x2_ep.cache import cached

            return cached(folder, self._model, threads, fusion, request)
        return Session(self._model, threads, fusion, path, request=request)

    def _open(self, request: Request, fusion: bool, threads: int, path: str) -> Session:
        """The session of a compiled file, which has one form."""
        from q7x2_ep.session import Session

        name = str(self._model_path or "compiled model")
        if request.outputs or request.live or not request.regular or path:
            raise errors.FeedError(
                f"[{name}] holds the model's own inputs and outputs only; for any others, or an "
                "optimised model, open the ONNX model"
            )
        session = Session.open(self._model, threads)
        changes = request.dims or request.denotations or request.initializers or request.files
        if changes and session.fingerprint != request.fingerprint(fusion):
            raise errors.BindingError(
                f"[{name}] was compiled with other options: sizes of dims and initializers are "
                "fixed then; compile it with these, or open the ONNX model"
            )
        return session

    def _describe(self) -> None:
        """What the session tells of its inputs and outputs."""
        session = self._session
        overridable = session.metadata["overridable"]
        types, declared = session.metadata["types"], session.metadata["declared"]
        optional = session.metadata["optional"]
        self._inputs_meta = [
            node_arg(s.name, s.type, optional.get(s.name, s).shape) for s in session.inputs
        ]
        self._overridable_initializers = [
            node_arg(name, types[name], type.shape) for name, type in overridable.items()
        ]
        names = symbolic(self._inputs_meta)
        self._outputs_meta = [
            node_arg(
                name, types[name] or dtypes.type_string(dtype), shape, declared[name].shape, names
            )
            for name, (dtype, shape) in zip(session.output_names, session.output_types)
        ]
        self._codes = {spec.name: spec.dtype for spec in session.inputs}
        self._codes.update((name, type.dtype) for name, type in overridable.items())
        self._containers = {
            s.name: s.type for s in session.inputs if parts(s.type)[0] in ("seq", "map", "optional")
        }
        self._optional = [s.name for s in session.inputs if s.type.startswith("optional")]
        gives_bits = any(is_bits(dtype) for dtype, _ in session.output_types)
        plain = self._trace is None and not gives_bits
        self._run_again = session.program.run_again if plain else None
        self._places = {name: i for i, name in enumerate(session.output_names)}
        self._is_short = session.program.is_short

    def _read_options(self) -> None:
        """Takes what the model's metadata asks for, before the caller's options, which stay as they
        are, and compiles again.
        """
        given = self._session.metadata["custom_metadata_map"].get(OPTIONS_OF_MODEL)
        wanted = {} if given is None else options_of_model(given)
        if wanted:
            self._options = copy.copy(self._options)
            for name, value in wanted.items():
                setattr(self._options, name, value)
            self._session.close()
            self._start()

    # Running

    def run(
        self,
        output_names: Optional[Sequence[str]],
        input_feed: Mapping[str, Any],
        run_options: Optional[RunOptions] = None,
    ) -> list[Any]:
        """The named outputs (all of the model's for None or an empty list) for one feed. Any
        intermediate value of the model may be named too.

        Feeds may be arrays of numpy or any other library, numbers, lists and OrtValues.

        Raises: FeedError, ShapeError and DataError for a feed that the model cannot take,
        RunTerminated where run_options.terminate is set.
        """
        if type(input_feed) is not dict and not isinstance(input_feed, Mapping):
            raise AttributeError(  # as onnxruntime
                f"run(): input_feed: expected arrays by the names of inputs, given a "
                f"{type(input_feed).__name__}"
            )
        places: Optional[Sequence[Any]] = None
        if output_names is None:
            places = ()
        elif isinstance(output_names, (list, tuple)):
            places = [*map(self._places.get, output_names)]
        plain = run_options is None or self._is_plain(run_options)
        if plain and self._run_again is not None and places is not None and None not in places:
            outputs = self._run_again(input_feed)
            if outputs is not None:
                return [outputs[i] for i in places] if places else outputs
        return [*map(as_given, self._run(output_names, input_feed, run_options))]

    def run_async(
        self,
        output_names: Optional[Sequence[str]],
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Optional[RunOptions] = None,
    ) -> None:
        """run in a thread of its own, which calls callback(outputs, user_data, "") or, where the
        run fails, callback([], user_data, message). The dict may be filled anew at once, not so
        its arrays.

        Raises: MissingInput, TypeError at once.
        """
        if not callable(callback):
            raise TypeError(f"callback: expected a function, given {type(callback).__name__}")
        feed = dict(input_feed)
        names = [*output_names] if isinstance(output_names, (list, tuple)) else output_names
        if any(a.name not in {*feed, *self._optional} for a in self._inputs_meta):
            raise self._session.wrong_names(feed)

        def work() -> None:
            try:
                outputs, problem = self.run(names, feed, run_options), ""
            except Exception as error:
                outputs, problem = [], str(error)
            callback(outputs, user_data, problem)

        threading.Thread(target=work, name="q7x2_ep.run_async").start()

    def run_with_ort_values(
        self,
        output_names: Optional[Sequence[str]],
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Optional[RunOptions] = None,
    ) -> list[OrtValue]:
        """run, with OrtValues in and out."""
        outputs = self._run(output_names, input_dict_ort_values, run_options)
        return [OrtValue._of(output) for output in outputs]

    def run_with_ortvaluevector(
        self,
        run_options: Optional[RunOptions],
        feed_names: Sequence[str],
        feeds: OrtValueVector,
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """run, with vectors in and out: outputs are written to the OrtValues that are in fetches,
        and appended where it is shorter than fetch_names.
        """
        feed = dict(zip(feed_names, feeds))
        into = [value._array() for value in fetches]
        outputs = self._run(fetch_names, feed, run_options, into)
        fetches[:] = [OrtValue._of(output) for output in outputs]

    def io_binding(self) -> IOBinding:
        """A binding of arrays to the inputs and outputs of this session."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: Optional[RunOptions] = None
    ) -> None:
        """run, from and to what is bound.

        Raises: ValueError for a binding of another session, BindingError.
        """
        if iobinding._session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        bound: SessionIOBinding = iobinding._iobinding
        names, into, is_all = bound.wanted()
        if not names:
            raise errors.BindingError(
                "Error in execution: At least one output should be requested: use bind_output"
            )
        if is_all and run_options is None and self._run_again is not None:
            outputs = self._run_again(bound.inputs, into)
            if outputs is not None:
                bound.made = outputs
                return
        try:
            bound.made = self._run(names, bound.inputs, run_options, into)
        except errors.FeedError as error:
            raise errors.BindingError(f"Error in execution: {error.message}") from error

    def _run(
        self,
        output_names: Optional[Sequence[str]],
        feed: Mapping[str, Any],
        run_options: Optional[RunOptions],
        into: Sequence[Optional[np.ndarray]] = (),
    ) -> list[Any]:
        """into: for each named output an array to write it to, or None."""
        codes = self._codes
        if run_options is not None:
            if not isinstance(run_options, RunOptions):
                raise TypeError(f"run_options must be a RunOptions, given {run_options!r}")
            check_run(run_options)
            for adapter in run_options._adapters:
                feed = {**adapter.parameters, **feed}
        feeds = {
            name: value
            if type(value) is np.ndarray and value.dtype in _NATIVE
            else _given(name, value, codes.get(name, dtypes.UNKNOWN))
            for name, value in feed.items()
        }
        for name in self._optional:
            feeds.setdefault(name, None)
        for name, type_ in self._containers.items():
            if name in feeds:
                feeds[name] = to_container(name, feeds[name], type_)
        if isinstance(output_names, str):
            raise TypeError(
                f"run(): incompatible function arguments: output_names: expected a sequence of "
                f"names, given {output_names!r}"
            )
        names = list(output_names) if output_names else self._session.output_names
        session = self._session_for(names, feeds)
        try:
            outputs = self._outputs(session, names, feeds, run_options, into)
        except errors.IrregularFeed as error:  # exporters reuse names, and onnxruntime lets them
            try:
                session = self._session_for(names, feeds, regular=False)
                outputs = self._outputs(session, names, feeds, run_options, into)
            except errors.Q7Error:
                raise error from None
        if names == session.output_names:
            return outputs
        where = {name: i for i, name in enumerate(session.output_names)}
        return [outputs[where[name]] for name in names]

    def _is_plain(self, run_options: Any) -> bool:
        """Whether options ask for nothing, and the run is too short to be terminated later on."""
        return (
            type(run_options) is RunOptions
            and self._is_short
            and run_options.log_severity_level == RunOptions.log_severity_level
            and not (run_options.terminate or run_options._adapters or run_options._config)
        )

    def _outputs(
        self,
        session: Session,
        names: Sequence[str],
        feeds: Mapping[str, Any],
        run_options: Optional[RunOptions],
        into: Sequence[Optional[np.ndarray]],
    ) -> list[Any]:
        """All outputs of that form of the model."""
        call = None
        if run_options is not None or into or self._trace is not None:
            call = self._call(session, names, run_options, into)
        try:
            if self._trace is None:
                return session.run(feeds, call)
            return self._traced(self._trace, session, feeds, call)
        finally:
            if run_options is not None and check_run(run_options):
                session.program.trim()

    def _session_for(
        self, names: Sequence[str], feeds: Mapping[str, Any], regular: bool = True
    ) -> Session:
        """The form of the model that has these outputs and inputs. regular: see Request."""
        session = self._session
        known = session.output_names
        fitting = len(feeds) == len(session.inputs) and (names == known or set(names) <= set(known))
        if regular and fitting:
            return session
        extra = frozenset(names).difference(known)
        live = frozenset(feeds).intersection(session.metadata["overridable"])
        if regular and not extra and not live:
            return session
        if any(spec.name not in feeds for spec in session.inputs):
            raise session.wrong_names(feeds)
        form = extra, live, regular
        if form not in self._variants:
            if session.program.is_closed:
                raise errors.closed()
            made = self._compile(sorted(extra), sorted(live), regular=regular)
            if self._variants.setdefault(form, made) is not made:  # another thread was first
                made.close()
        return self._variants[form]

    def _call(
        self,
        session: Session,
        names: Sequence[str],
        run_options: Optional[RunOptions],
        into: Sequence[Optional[np.ndarray]],
    ) -> Call:
        stopped = None if run_options is None else lambda: run_options.terminate
        if not into or list(names) == session.output_names:
            return Call(into, stopped)
        places = dict(zip(names, into))
        return Call([places.get(name) for name in session.output_names], stopped)

    def _traced(
        self, trace: Trace, session: Session, feeds: Mapping[str, Any], call: Call
    ) -> list[Any]:
        call.step_ns = []
        start = trace.now()
        outputs = session.run(feeds, call)
        end = trace.now()
        sizes = {
            symbol: size
            for spec in session.inputs
            for symbol, size in zip(spec.symbols, getattr(feeds[spec.name], "shape", ()))
            if symbol is not None
        }
        trace.run(session.program, call.step_ns, sizes, start, end)
        return outputs

    # What the model is

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs in order; initializers are not among them."""
        return self._inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs in order."""
        return self._outputs_meta

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The initializers that are inputs too, so that a feed may replace them."""
        return self._overridable_initializers

    def get_modelmeta(self) -> ModelMetadata:
        """Producer, names, version and custom metadata of the model."""
        return ModelMetadata(self._session.metadata)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    # Where it runs

    def get_providers(self) -> list[str]:
        """Where the model runs."""
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options by provider; the CPU's has none."""
        return {PROVIDER: {}}

    def set_providers(
        self,
        providers: Optional[Sequence[Any]] = None,
        provider_options: Optional[Sequence[Mapping[str, Any]]] = None,
    ) -> None:
        """Checks providers as the constructor does; the model stays on the CPU.

        Raises: ValueError where they are malformed, and enable_fallback is off; BindingError for
        one that onnxruntime does not know, of which the constructor only warns.
        """
        for name in self._check_providers(providers, provider_options):
            if name not in environment.get_all_providers():
                raise errors.BindingError(f"Unknown Provider Type: {name}")

    def _check_providers(
        self,
        providers: Optional[Sequence[Any]],
        provider_options: Optional[Sequence[Mapping[str, Any]]],
    ) -> list[str]:
        """Their names."""
        try:
            return environment.check_providers(providers, provider_options)
        except ValueError as error:
            if not self._fallback:
                raise
            warnings.warn(f"{error}; falling back to {PROVIDER}", stacklevel=3)
            return []

    def enable_fallback(self) -> None:
        """Malformed providers are a warning."""
        self._fallback = True

    def disable_fallback(self) -> None:
        """Malformed providers are an error."""
        self._fallback = False

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where each input is expected."""
        return [CPU_MEMORY] * len(self._inputs_meta)

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where each output is."""
        return [CPU_MEMORY] * len(self._outputs_meta)

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """The device of each input."""
        return [CPU_DEVICE] * len(self._inputs_meta)

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """The nodes as they are run, after fusion.

        Raises: BindingError where session.record_ep_graph_assignment_info is not "1".
        """
        if self._options._config.get(_ASSIGNMENT) != "1":
            raise errors.BindingError(
                f"Session configuration entry '{_ASSIGNMENT}' must be set to \"1\" to retrieve EP "
                "graph assignment information."
            )
        return assigned(self._session.program.graph)

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A tensor to be filled and fed."""
        return OrtValue.ortvalue_from_shape_and_type(
            shape, element_type, device_type, device_id, vendor_id
        )

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accepted: the CPU has none."""
        if not isinstance(options, Mapping):
            raise TypeError(f"options: expected a dict, given {options!r}")

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """Nothing is tuned."""
        return []

    def set_tuning_results(
        self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False
    ) -> None:
        """Raises: BindingError for results that are to be valid: nothing is tuned here."""
        if error_on_invalid and results:
            raise errors.BindingError(f"[tuning] expected no results: {PROVIDER} is not tuned")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Accepted: runs on the CPU are not captured."""
        operator.index(graph_annotation_id)

    # Profiling

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by time.monotonic_ns(), also once it has ended; 0 where it never
        did.
        """
        return self._profiling_start

    def end_profiling(self) -> str:
        """Ends profiling and returns the path of the Chrome trace that was written (open it in
        chrome://tracing or ui.perfetto.dev), or "" where profiling is off.
        """
        trace, self._trace = self._trace, None
        return trace.write() if trace is not None else ""

    # Lifetime

    def memory_report(self) -> MemoryReport:
        """What the session holds in memory; print it."""
        from q7x2_ep.backend.memory import report

        each = [session.memory() for session in (self._session, *self._variants.values())]
        constants = [part for constants, _ in each for part in constants]
        return report(constants, [size for _, arenas in each for size in arenas])

    def trim(self) -> None:
        """Give back the memory that runs left for the next ones. RunOptions do so after a run that
        has their entry memory.enable_memory_arena_shrinkage set to cpu:0.
        """
        for session in (self._session, *self._variants.values()):
            session.program.trim()

    def close(self) -> None:
        """Give back memory now; the session cannot run afterwards."""
        try:
            self.end_profiling()
        finally:
            for session in (self._session, *self._variants.values()):
                session.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        model = self._model
        if hasattr(model, "SerializeToString"):
            model = model.SerializeToString()
        elif isinstance(model, memoryview):
            model = bytes(model)
        return InferenceSession, (model, self._options)


def _given(name: str, value: Any, code: int) -> Any:
    """A feed that is a tensor as the engine takes it, any other as it is: see containers.py."""
    value = value._data if isinstance(value, OrtValue) else value
    if code <= 0:
        return value
    return to_array(name, dense(value) if isinstance(value, SparseTensor) else value, code)
