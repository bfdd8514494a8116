"""The functions of onnxruntime's native module that tell which ops, devices and compiled models
there are. What they ask is imported by the first call: each import of onnxruntime has them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from q7x2_ep import dtypes
from q7x2_ep.api.device import CPU_DEVICE, PROVIDER, OrtEpDevice, OrtHardwareDevice
from q7x2_ep.api.native_enums import OrtCompiledModelCompatibility
from q7x2_ep.api.options import SessionOptions
from q7x2_ep.errors import BindingError, Q7Error

_ANY_LATER = 2**31 - 1
_COMPATIBILITY = "ep_compatibility_info."  # a metadata entry, by provider


@dataclass(frozen=True)
class KernelDef:
    """An op that runs. version_range: of its domain, first and last. type_constraints: the types
    that an operand may have, by the name of its type here; none are told of what is rewritten.
    """

    op_name: str
    domain: str
    version_range: tuple[int, int]
    type_constraints: dict[str, list[str]]
    provider: str = PROVIDER


def get_all_operator_schema() -> list[Any]:
    """Every version of every op of the ONNX standard, as onnx knows it. Of com.microsoft there are
    no schemas here.
    """
    import onnx

    return [*onnx.defs.get_all_schemas_with_history()]


def get_all_opkernel_def() -> list[KernelDef]:
    """One for each op that has an entry of its own, or is rewritten to some that have. There are
    more that run: what the standard itself defines by other ops, and on the host.
    """
    return [*_kernels()]


def _kernels() -> Iterator[KernelDef]:
    import onnx

    from q7x2_ep import ops
    from q7x2_ep.importer.contrib import CONTRIB

    first: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = schema.domain, schema.name
        first[key] = min(schema.since_version, first.get(key, _ANY_LATER))
    entries = ops.entries()
    for name in sorted({*entries, *CONTRIB}):
        domain, _, kind = name.rpartition("::")
        if domain != "q7":  # ours, which no model may ask for
            versions = (first.get((domain, kind), 1), _ANY_LATER)
            types = _types(entries[name]) if name in entries else {}
            yield KernelDef(kind, domain, versions, types)


def _types(entry: Any) -> dict[str, list[str]]:
    from q7x2_ep.ops.signature import parse

    signature = parse(entry.signature)
    return {
        formal.type: [dtypes.type_string(code) for code in sorted(formal.allowed or dtypes.DTYPES)]
        for formal in (*signature.inputs, *signature.outputs)
        if formal.type
    }


def get_registered_ep_kernel_defs(ep_name: str) -> list[KernelDef]:
    """get_all_opkernel_def, of the CPU.

    Raises: BindingError for another provider.
    """
    if ep_name != PROVIDER:
        raise BindingError(f"No devices found for EP '{ep_name}': available is {PROVIDER}")
    return get_all_opkernel_def()


def get_hardware_devices() -> list[OrtHardwareDevice]:
    """The processor."""
    return [CPU_DEVICE.device]


def get_default_session_options() -> SessionOptions:
    """New ones each time."""
    return SessionOptions()


def get_compatibility_info_from_model(
    model_path: Union[str, os.PathLike[str]], ep_type: str
) -> Union[str, None]:
    """What the metadata of a model says of a provider that compiled it, or None.

    Raises: BindingError where there is no model.
    """
    return _compatibility(os.fspath(model_path), ep_type)


def get_compatibility_info_from_model_bytes(model_data: Any, ep_type: str) -> Union[str, None]:
    """get_compatibility_info_from_model, for the bytes of one."""
    return _compatibility(bytes(model_data), ep_type)


def _compatibility(model: Union[str, bytes], ep_type: str) -> Union[str, None]:
    if not ep_type:
        raise BindingError("[ep_type] expected the name of a provider, given ''")
    from q7x2_ep.importer.reader import parsed

    try:
        entries = parsed(model).metadata_props
    except Q7Error as error:
        raise BindingError(error.message) from error
    return next((e.value for e in entries if e.key == _COMPATIBILITY + ep_type), None)


def get_model_compatibility_for_ep_devices(
    ep_devices: Sequence[OrtEpDevice], compatibility_info: str
) -> OrtCompiledModelCompatibility:
    """Not applicable: models that a provider compiled are for others than the CPU.

    Raises: BindingError for no devices.
    """
    if not ep_devices:
        raise BindingError("[ep_devices] expected at least one OrtEpDevice, given none")
    return OrtCompiledModelCompatibility.EP_NOT_APPLICABLE
