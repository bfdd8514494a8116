"""SessionOptions and RunOptions, with onnxruntime's names, fields, defaults and type checks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Union

from q7x2_ep.api import environment
from q7x2_ep.api.device import PROVIDER, OrtEpDevice
from q7x2_ep.api.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
)
from q7x2_ep.api.lora import LoraAdapter
from q7x2_ep.api.value import OrtValue
from q7x2_ep.errors import BindingError, ModelError

if TYPE_CHECKING:  # the engine is imported by the first session
    from q7x2_ep.request import Request

_ACCURACY_LEVEL = "session.qdq_matmulnbits_accuracy_level"
_FOLDER = "session.model_external_initializers_file_folder_path"
_LOAD_FORMAT, _SAVE_FORMAT = "session.load_model_format", "session.save_model_format"
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"  # devices: cpu:0;gpu:0
_MAX_KEY, _MAX_VALUE = 1024, 8192  # bytes of a configuration entry
OPTIONS_OF_MODEL = "ort_config"  # the metadata entry for read_config_from_model
# The fields that onnxruntime reads from it, and the integers that they may be there.
_FIELDS_OF_MODEL: dict[str, Sequence[int]] = {
    "intra_op_num_threads": range(2**31),
    "inter_op_num_threads": range(2**31),
    "execution_mode": tuple(ExecutionMode),
    "graph_optimization_level": tuple(GraphOptimizationLevel),
    "enable_profiling": range(2),
}


class _Checked:
    """Fields keep the type of their defaults, and there are no others: a misspelt option is an
    AttributeError, a value of another type a TypeError. Not a dataclass: making two of those is a
    tenth of importing the package.
    """

    _defaults: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        cls._defaults = {name: vars(cls)[name] for name in cls.__annotations__}

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        default = self._defaults.get(name)
        if default is None and not name.startswith("_"):
            known = ", ".join(self._defaults)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}; its fields are {known}"
            )
        object.__setattr__(self, name, _typed(name, value, default))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._defaults)
        return f"{type(self).__name__}({fields})"


def _typed(name: str, value: Any, default: Any) -> Any:
    """value as a field with this default holds it."""
    if default is None:
        return value
    try:
        if isinstance(default, bool) and hasattr(value, "__bool__"):
            return bool(value)
        if isinstance(default, int) and not isinstance(default, (bool, Enum)):
            return operator.index(value)
        if isinstance(value, type(default)):
            return value
    except TypeError:
        pass
    raise TypeError(f"{name}: expected {type(default).__name__}, given {value!r}")


def _text(function: str, **arguments: Any) -> None:
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise TypeError(f"{function}(): {name}: expected str, given {value!r}")


def _entry(function: str, key: str, value: str) -> None:
    """Checks a configuration entry."""
    _text(function, key=key, value=value)
    size = len(key.encode())
    if not 0 < size <= _MAX_KEY:
        raise BindingError(
            f"Config key is empty or longer than maximum length {_MAX_KEY}: given {size} bytes, "
            f"{key[:40]!r}"
        )
    if len(value.encode()) > _MAX_VALUE:
        raise BindingError(
            f"Config value is longer than maximum length: {_MAX_VALUE}: {key!r} is given "
            f"{len(value.encode())} bytes"
        )


def _level(level: int) -> None:
    if not -1 <= level <= 4:
        raise BindingError(
            "log_severity_level: Not a valid onnxruntime::logging::Severity value: expected 0 "
            f"verbose .. 4 fatal, or -1 for the default, given {level}"
        )


class SessionOptions(_Checked):
    """Options of an InferenceSession.

    intra_op_num_threads: threads of a run; 0 takes the cores that affinity and cgroup quota allow.
    graph_optimization_level: see GraphOptimizationLevel. log_severity_level: 0 verbose .. 4 fatal,
    of the Python logger "q7x2_ep". optimized_model_filepath: where to write the model after passes
    and fusions, as ONNX that any tool opens (see q7x2_ep.optimize). enable_profiling and
    profile_file_prefix: see InferenceSession.end_profiling. use_per_session_threads: False takes
    the number of threads from set_global_thread_pool_sizes. The other fields are accepted and have
    no effect: memory is always planned into one arena, there is one thread pool per process, and
    results never depend on the number of threads.
    """

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True

    def __init__(self, **fields: Any) -> None:
        self._config: dict[str, str] = {}
        self._dims_by_name: dict[str, int] = {}
        self._dims_by_denotation: dict[str, int] = {}
        self._initializers: dict[str, OrtValue] = {}
        self._files: dict[str, Union[memoryview, bytes]] = {}
        self._ops: dict[tuple[str, str], Callable] = {}
        self._providers: list[str] = []
        self._cancelled = False
        super().__init__(**fields)

    def register_op(self, domain: str, name: str, fn: Callable[..., Any]) -> None:
        """Runs fn for every node of the op `name` of `domain`: its inputs as arrays, its attributes
        by keyword; returns the output, or a tuple of them. It leaves its inputs as they are.
        """
        _text("register_op", domain=domain, name=name)
        if not callable(fn):
            raise TypeError(f"register_op(): fn: expected a function, given {fn!r}")
        self._ops[domain, name] = fn

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store an entry. These have an effect: session.record_ep_graph_assignment_info;
        session.model_external_initializers_file_folder_path, where external data is, in place of
        the model's folder; q7x2.cache_folder, where compiled models are kept from one session to
        the next; and session.qdq_matmulnbits_accuracy_level, which changes results: "4" lets
        products by weights that are dequantised by blocks round rows to int8.

        Raises: BindingError for a key or value of a length that onnxruntime does not take.
        """
        _entry("add_session_config_entry", key, value)
        self._config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """The stored entry.

        Raises: BindingError where it was never set.
        """
        if key not in self._config:
            raise BindingError(f"SessionOptions does not have configuration with key: {key}")
        return self._config[key]

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix the symbolic dim `name` of the inputs; a negative value leaves it free."""
        _text("add_free_dimension_override_by_name", name=name)
        self._dims_by_name[name] = operator.index(value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Fix every symbolic dim of the inputs with this denotation, such as DATA_BATCH."""
        _text("add_free_dimension_override_by_denotation", denotation=denotation)
        self._dims_by_denotation[denotation] = operator.index(value)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Use value in place of the model's initializer of this name, without a copy.

        Raises: BindingError where one was given already, or value is no OrtValue.
        """
        if not isinstance(value, OrtValue) or not value.is_tensor():
            raise BindingError(
                f"[initializer {name!r}] expected an OrtValue that holds a tensor, given {value!r}"
            )
        if name in self._initializers:
            raise BindingError(
                f"[initializer {name!r}] An OrtValue for this name has already been added."
            )
        self._initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """add_initializer for each pair; they take the place of external data.

        Raises: BindingError.
        """
        if len(names) != len(values):
            raise BindingError(
                f"[initializers] Expecting names and ort_values lists to have equal length, given "
                f"{len(names)} and {len(values)}"
            )
        for name, value in zip(names, values):
            self.add_initializer(name, value)

    def __getstate__(self) -> dict[str, Any]:
        files = {name: bytes(content) for name, content in self._files.items()}
        return {**self.__dict__, "_files": files}

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Contents of files of external data, by the names that the model gives them.

        Raises: BindingError.
        """
        if not len(names) == len(buffers) == len(lengths):
            raise BindingError(
                "[initializers] expected as many names as buffers and lengths, given "
                f"{len(names)}, {len(buffers)}, {len(lengths)}"
            )
        for name, buffer, length in zip(names, buffers, lengths):
            self._files[name] = memoryview(buffer).cast("B")[:length]

    def register_custom_ops_library(self, path: str) -> None:
        """Raises: BindingError, always: compiled kernels of onnxruntime need its own runtime."""
        raise BindingError(
            f"Failed to load library {path} with error: custom op libraries are built for "
            "onnxruntime's C API; register a Python function with register_op instead"
        )

    def add_provider(self, provider_name: str, provider_options: Mapping[str, str]) -> None:
        """Raises: BindingError for anything but the CPU."""
        if provider_name != PROVIDER:
            raise BindingError(
                f"Failed to add provider of type '{provider_name}' to SessionOptions. Provider "
                f"configuration is not supported; available is {PROVIDER}"
            )
        self._providers.append(provider_name)

    def add_provider_for_devices(
        self, ep_devices: Sequence[OrtEpDevice], provider_options: Mapping[str, str]
    ) -> None:
        """add_provider for the provider of these devices."""
        if not ep_devices:
            raise BindingError("[providers] expected at least one OrtEpDevice, given none")
        for device in ep_devices:
            self.add_provider(device.ep_name, provider_options)

    def has_providers(self) -> bool:
        """Whether a provider or a policy was set."""
        return bool(self._providers)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Accepted: there is one provider to select."""
        self._providers.append(
            _typed("policy", policy, OrtExecutionProviderDevicePolicy.DEFAULT).name
        )

    def set_provider_selection_policy_delegate(self, delegate: Callable[..., Any]) -> None:
        """Accepted, and not called: there is one provider to select."""
        self._providers.append("delegate")

    def set_load_cancellation_flag(self, cancel: bool) -> None:
        """True: making a session ends with LoadCanceled."""
        self._cancelled = bool(cancel)

    def set_ep_context_data_read_func(
        self, read_func: Callable[..., None], max_data_size: int
    ) -> None:
        """Accepted, and not called: models with EPContext nodes belong to other providers."""

    def clear_ep_context_data_read_func(self) -> None:
        """Nothing to clear, see set_ep_context_data_read_func."""


def check_session(options: SessionOptions) -> None:
    """Raises: BindingError for a level of logging that is none, and models in onnxruntime's own
    format.
    """
    _level(options.log_severity_level)
    config, path = options._config, options.optimized_model_filepath
    if config.get(_LOAD_FORMAT) == "ORT":
        raise BindingError(
            f"[{_LOAD_FORMAT}] expected ONNX, given ORT: onnxruntime's own format is not "
            "supported: open the ONNX model that it was made of"
        )
    given = config.get(_SAVE_FORMAT) or (path[-4:].lower() == ".ort" and "ORT")
    if path and given == "ORT":
        raise BindingError(
            f"[optimized_model_filepath] expected ONNX, given {path!r} in format ORT: "
            f"onnxruntime's own format is not supported: give a path that ends in .onnx, and "
            f"{_SAVE_FORMAT} ONNX; for a file that loads fast there is q7x2_ep.compile"
        )


def check_run(options: RunOptions) -> bool:
    """Whether memory is to be given back after the run.

    Raises: BindingError for a level of logging that is none, and devices that are not here.
    """
    _level(options.log_severity_level)
    text = options._config.get(_SHRINKAGE, "")
    for device in text.removesuffix(";").split(";") if text else ():
        name, _, rest = device.partition(":")
        number = rest.partition(":")[0]
        if name != "cpu" or number.strip("0"):
            raise BindingError(
                f"[{_SHRINKAGE}] Did not find an arena based allocator registered for device-id "
                f"combination in the memory arena shrink list: {device}: expected cpu:0, given "
                f"{text!r}"
            )
    return bool(text)


def asked(
    options: SessionOptions,
    outputs: Sequence[str] = (),
    live: Sequence[str] = (),
    regular: bool = True,
) -> Request:
    """What these options, and the other arguments (see Request), ask of a model."""
    from q7x2_ep.request import Request

    return Request(
        outputs=tuple(outputs),
        functions=options._ops,
        live=tuple(live),
        dims=options._dims_by_name,
        denotations=options._dims_by_denotation,
        initializers={
            name: value._array()
            for name, value in options._initializers.items()
            if name not in live
        },
        files=options._files,
        folder=options._config.get(_FOLDER) or None,
        seed=environment.global_seed(),
        regular=regular,
        rounds_rows=options._config.get(_ACCURACY_LEVEL) == "4",
    )


def options_of_model(text: str) -> dict[str, Any]:
    """The fields that the metadata entry OPTIONS_OF_MODEL asks for. Other names there are ignored,
    as onnxruntime does.

    Raises: ModelError for what is malformed, and values that a field cannot have.
    """
    import json

    where = f"[metadata {OPTIONS_OF_MODEL!r}]"
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where} expected JSON, given {text[:80]!r}: {error}") from error
    given = config.get("session_options", {}) if isinstance(config, dict) else None
    if not isinstance(given, dict):
        raise ModelError(
            f'{where} expected an object like {{"session_options": {{..}}}}, given {text[:80]!r}'
        )
    found = {}
    for name, values in _FIELDS_OF_MODEL.items():
        if name in given:
            value = given[name]
            if type(value) is not int or value not in values:
                few = ", ".join(str(int(each)) for each in values[:9])
                expected = few if len(values) < 9 else f"an integer of {values[0]} or more"
                raise ModelError(f"{where} {name}: expected {expected}, given {value!r}")
            found[name] = type(getattr(SessionOptions, name))(value)
    return found


class RunOptions(_Checked):
    """Options of one run.

    terminate: set it, from any thread, to end the runs that were given these options; they raise
    RunTerminated. The other fields are accepted and have no effect.
    """

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False

    def __init__(self, **fields: Any) -> None:
        self._config: dict[str, str] = {}
        self._adapters: list[LoraAdapter] = []
        super().__init__(**fields)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store an entry. memory.enable_memory_arena_shrinkage has an effect, see
        InferenceSession.trim.

        Raises: BindingError for a key or value of a length that onnxruntime does not take.
        """
        _entry("add_run_config_entry", key, value)
        self._config[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """The stored entry.

        Raises: BindingError where it was never set.
        """
        if key not in self._config:
            raise BindingError(f"RunOptions does not have configuration with key: {key}")
        return self._config[key]

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """Feed the adapter's tensors to the inputs or overridable initializers of their names."""
        if not isinstance(adapter, LoraAdapter):
            raise TypeError(f"adapter: expected a LoraAdapter, given {adapter!r}")
        self._adapters.append(adapter)
