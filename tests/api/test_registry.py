"""What onnxruntime's native module tells of ops, devices and compiled models, held against it."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from q7x2_ep import errors
from q7x2_ep.api import enums, native_enums, registry
from tests.api.models import add

native = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
CPU = "CPUExecutionProvider"


@pytest.mark.parametrize(
    "name",
    ["ArenaExtendStrategy", "OrtCompiledModelCompatibility", "OrtDeviceEpIncompatibilityReason"],
)
def test_enums(name):
    ours, theirs = getattr(native_enums, name), getattr(native, name)
    for member, value in theirs.__members__.items():
        assert int(ours[member]) == int(value) and str(ours[member]) == str(value)
    assert len(ours.__members__) == len(theirs.__members__)


def test_schemas():
    """Those of the standard; onnxruntime has some more in its domain, which never were in it."""
    ours, theirs = (
        {(each.domain, each.name, each.since_version) for each in module.get_all_operator_schema()}
        for module in (registry, native)
    )
    more = {each for each in theirs if each[0] in ("", "ai.onnx.ml")} - ours
    assert len(theirs & ours) > 640 and all(version in (1, 10) for _, _, version in more)


def test_kernels():
    """Most of what onnxruntime has kernels for; what is not here is rewritten by other means."""
    ours, theirs = (
        {(each.domain, each.op_name) for each in module.get_all_opkernel_def()}
        for module in (registry, native)
    )
    assert len(ours & theirs) > 250 and not {domain for domain, _ in ours} & {"q7"}
    (relu,) = (each for each in registry.get_all_opkernel_def() if each.op_name == "Relu")
    assert (relu.domain, relu.version_range, relu.provider) == ("", (1, 2**31 - 1), CPU)
    assert "tensor(float)" in relu.type_constraints["N"]
    assert len(registry.get_registered_ep_kernel_defs(CPU)) == len(registry.get_all_opkernel_def())
    for module in (registry, native):
        with pytest.raises(RuntimeError, match="No devices found for EP 'Foo'"):
            module.get_registered_ep_kernel_defs("Foo")


def test_devices_and_options():
    (device,) = registry.get_hardware_devices()
    assert device.type == enums.OrtHardwareDeviceType.CPU
    assert type(registry.get_default_session_options()).__name__ == "SessionOptions"


@pytest.mark.parametrize("module", [registry, native], ids=["ours", "theirs"])
def test_compatibility(module: Any, tmp_path):
    made = onnx.load_from_string(add())
    made.metadata_props.add(key=f"ep_compatibility_info.{CPU}", value="of some kind")
    path, data = tmp_path / "m.onnx", made.SerializeToString()
    path.write_bytes(data)
    of_path = module.get_compatibility_info_from_model
    of_bytes = module.get_compatibility_info_from_model_bytes
    assert of_path(str(path), CPU) == of_bytes(memoryview(data), CPU) == "of some kind"
    assert of_path(str(path), "Foo") is None
    for call in (
        lambda: of_path(str(tmp_path / "none"), CPU),
        lambda: of_bytes(data, ""),
        lambda: of_bytes(b"", CPU),
        lambda: of_bytes(b"\xff\xff", CPU),
        lambda: module.get_model_compatibility_for_ep_devices([], "x"),
    ):
        with pytest.raises(RuntimeError) as raised:
            call()
        assert module is native or isinstance(raised.value, errors.BindingError)
    devices = (native.get_ep_devices() if module is native else [registry.CPU_DEVICE])[:1]
    assert int(module.get_model_compatibility_for_ep_devices(devices, "x")) == 0
