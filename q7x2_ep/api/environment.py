"""What onnxruntime's module offers beside its classes: versions, providers, logging, threads."""

from __future__ import annotations

import operator
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

from q7x2_ep.api.device import CPU_DEVICE, PROVIDER, OrtArenaCfg, OrtEpDevice, OrtMemoryInfo
from q7x2_ep.errors import BindingError

if TYPE_CHECKING:
    from logging import Logger

ORT_VERSION = "1.32.0"  # whose surface this is; clients compare it
PROVIDERS = (  # names that onnxruntime knows, in its order; code written for them runs on the CPU
    "NvTensorRTRTXExecutionProvider",
    "TensorrtExecutionProvider",
    "CUDAExecutionProvider",
    "MIGraphXExecutionProvider",
    "OpenVINOExecutionProvider",
    "DnnlExecutionProvider",
    "VitisAIExecutionProvider",
    "QNNExecutionProvider",
    "NnapiExecutionProvider",
    "VSINPUExecutionProvider",
    "JsExecutionProvider",
    "CoreMLExecutionProvider",
    "ACLExecutionProvider",
    "DmlExecutionProvider",
    "RknpuExecutionProvider",
    "WebNNExecutionProvider",
    "WebGpuExecutionProvider",
    "XnnpackExecutionProvider",
    "CANNExecutionProvider",
    "AzureExecutionProvider",
    PROVIDER,
)

package_name, version, cuda_version = "onnxruntime", ORT_VERSION, ""

_seed: Optional[int] = None
_threads = 0  # of sessions that do not have their own; set_global_thread_pool_sizes


def get_all_providers() -> list[str]:
    """The names that `providers` may hold without being a mistake."""
    return list(PROVIDERS)


def get_available_providers() -> list[str]:
    """The providers that a session can use here."""
    return [PROVIDER]


def get_ep_devices() -> list[OrtEpDevice]:
    """The providers with the processors that they use."""
    return [CPU_DEVICE]


def check_providers(
    providers: Optional[Sequence[Any]], provider_options: Optional[Sequence[Mapping[str, Any]]]
) -> list[str]:
    """The names of providers; warns of those that are not here.

    Raises: ValueError where the arguments are malformed.
    """
    if providers is None:
        return []
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        raise ValueError(f"'providers' should be a sequence, given {providers!r}")
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):
            raise ValueError(f"'provider_options' should be a sequence, given {provider_options!r}")
        if len(providers) != len(provider_options):
            raise ValueError(
                "'providers' and 'provider_options' should be the same length if both are given: "
                f"given {len(providers)} and {len(provider_options)}"
            )
        if not all(isinstance(options, Mapping) for options in provider_options):
            raise ValueError(f"'provider_options' values must be dicts, given {provider_options!r}")
        if not all(isinstance(provider, str) for provider in providers):
            raise ValueError(
                "Only string values for 'providers' are supported if 'provider_options' is given"
            )
    names = []
    for provider in providers:
        pair = isinstance(provider, tuple) and len(provider) == 2
        name, options = provider if pair else (provider, {})
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise ValueError(
                "'providers' values must be either strings or (string, dict) tuples, given "
                f"{provider!r}"
            )
        names.append(name)
        if name != PROVIDER:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names. Available "
                f"providers: '{PROVIDER}'; the model runs there",
                stacklevel=4,
            )
    return names


def get_device() -> str:
    """The device that models run on."""
    return "CPU"


def get_version_string() -> str:
    """The version of onnxruntime whose surface this is."""
    return ORT_VERSION


def get_build_info() -> str:
    """What runs behind that surface."""
    from q7x2_ep import __version__

    return f"ORT Build Info: q7x2_ep={__version__}, build type=Release"


def has_collective_ops() -> bool:
    """Whether models may be spread over machines."""
    return False


def set_default_logger_severity(severity: int) -> None:
    """The level of the logger "q7x2_ep": 0 verbose .. 4 fatal.

    Raises: BindingError for another number.
    """
    _check_severity(severity)
    set_level(severity)


def _check_severity(severity: int) -> None:
    if not 0 <= operator.index(severity) <= 4:
        raise BindingError(
            f"Invalid logging severity. severity >= 0 && severity <= 4 was false: given {severity}"
        )


def set_default_logger_callback(
    callback: Optional[Callable[[int, str, str, str, str], Any]], severity: int = 2
) -> None:
    """Hands what the logger "q7x2_ep" says to callback(severity, category, logid, place, message)
    instead of its handlers, from that severity on; None: to them again.

    An exception of callback goes to sys.unraisablehook. Raises: BindingError for another severity,
    or what cannot be called.
    """
    _check_severity(severity)
    if callback is not None and not callable(callback):
        raise BindingError(f"callback must be a callable, given {callback!r}")
    for handler in [each for each in logger().handlers if hasattr(each, "callback")]:
        logger().removeHandler(handler)
    logger().propagate = callback is None
    if callback is None:
        return
    from q7x2_ep.api.log_callback import CallbackHandler

    logger().addHandler(CallbackHandler(callback))
    set_level(severity)


def logger() -> Logger:
    """Ours; logging is imported here, which takes 3 ms."""
    import logging

    return logging.getLogger("q7x2_ep")


def set_level(severity: int) -> None:
    """As onnxruntime counts: 0 verbose, 1 info .. 4 fatal and more."""
    logger().setLevel(10 * (1 + min(severity, 4)))


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted: there is one verbose level."""
    operator.index(verbosity)


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Threads of the sessions whose options say use_per_session_threads = False."""
    global _threads
    operator.index(inter_op_num_threads)
    _threads = operator.index(intra_op_num_threads)


def set_seed(seed: int) -> None:
    """Seeds the random ops that have no seed of their own, in sessions made from now on."""
    global _seed
    _seed = operator.index(seed)


def global_seed() -> Optional[int]:
    """What set_seed said."""
    return _seed


def global_threads() -> int:
    """What set_global_thread_pool_sizes said; 0 for as many as there are cores."""
    return _threads


def enable_telemetry_events() -> None:
    """Accepted: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Accepted: there is no telemetry."""


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena: Optional[OrtArenaCfg]) -> None:
    """Accepted: every run has one arena, of the size that its shapes need."""
    _require(memory_info, OrtMemoryInfo)


def create_and_register_allocator_v2(
    provider: str,
    memory_info: OrtMemoryInfo,
    options: Mapping[str, str],
    arena: Optional[OrtArenaCfg],
) -> None:
    """Accepted, see create_and_register_allocator."""
    _require(memory_info, OrtMemoryInfo)


def register_execution_provider_library(name: str, path: str) -> None:
    """Raises: BindingError, always: provider libraries need onnxruntime's own runtime."""
    raise BindingError(
        f"Failed to load library {path} with error: {name} is built for onnxruntime's C API; every "
        f"model runs on {PROVIDER} here"
    )


def unregister_execution_provider_library(name: str) -> None:
    """Raises: BindingError, always: none can be registered."""
    raise BindingError(f"Execution provider library: {name} was not registered.")


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Optional[str] = None
) -> None:
    """Accepted: no libraries beyond the C library are used."""


def print_debug_info() -> None:
    """Prints versions and the platform."""
    from q7x2_ep import __version__

    print(f"onnxruntime version: {ORT_VERSION} (q7x2_ep {__version__})")
    print(f"platform: {platform.platform()}")
    print(f"python: {sys.version}")
    print(f"package: {__file__}")


def _require(value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, given {value!r}")
