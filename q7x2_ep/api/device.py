"""Where memory is: OrtDevice, OrtMemoryInfo, OrtEpDevice and their kin. Here it is always the CPU.

Other devices can be named, as portable code does; asking for their memory is a BindingError.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Optional, Union

from q7x2_ep.api.enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from q7x2_ep.errors import BindingError

PROVIDER = "CPUExecutionProvider"

# name: (device type, vendor) of onnxruntime's names for devices
_DEVICES = {
    "cpu": (0, OrtDeviceVendorId.NONE),
    "cuda": (1, OrtDeviceVendorId.NVIDIA),
    "dml": (1, OrtDeviceVendorId.MICROSOFT),
    "webgpu": (1, OrtDeviceVendorId.NONE),
    "gpu": (1, OrtDeviceVendorId.NONE),
    "cann": (3, OrtDeviceVendorId.HUAWEI),
    "npu": (3, OrtDeviceVendorId.NONE),
}


class DeviceHandle:
    """What OrtDevice holds: (type, memory, vendor, id) or (type, memory, id)."""

    def __init__(self, device_type: int, memory_type: int, *vendor_and_id: int):
        *vendor, self._id = vendor_and_id
        self._type, self._memory, self._vendor = device_type, memory_type, sum(vendor)

    cpu = staticmethod(lambda: 0)
    cuda = gpu = webgpu = staticmethod(lambda: 1)
    fpga = staticmethod(lambda: 2)
    cann = npu = staticmethod(lambda: 3)
    dml = staticmethod(lambda: 4)
    default_memory = staticmethod(lambda: 0)

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> int:
        return self._type

    def vendor_id(self) -> int:
        return self._vendor

    def mem_type(self) -> int:
        return self._memory


class OrtDevice:
    """A device by name and number.

    >>> OrtDevice.make("cpu", 0).device_type()
    0
    """

    def __init__(self, c_ort_device: DeviceHandle):
        if not isinstance(c_ort_device, DeviceHandle):
            raise ValueError(
                f"an OrtDevice is made by OrtDevice.make(name, id), given {c_ort_device!r}"
            )
        self._ort_device = c_ort_device

    @staticmethod
    def make(
        ort_device_name: str, device_id: int, vendor_id: Union[int, OrtDeviceVendorId] = -1
    ) -> OrtDevice:
        """The device of this name.

        Raises: BindingError for a name that onnxruntime does not have.
        """
        if ort_device_name not in _DEVICES:
            raise BindingError(
                f"Unsupported device type: {ort_device_name}; known are {', '.join(_DEVICES)}"
            )
        kind, vendor = _DEVICES[ort_device_name]
        return OrtDevice(DeviceHandle(kind, 0, vendor if vendor_id < 0 else vendor_id, device_id))

    def _get_c_device(self) -> DeviceHandle:
        return self._ort_device

    def device_id(self) -> int:
        return self._ort_device.device_id()

    def device_type(self) -> int:
        return self._ort_device.device_type()

    def device_vendor_id(self) -> int:
        return self._ort_device.vendor_id()

    def device_mem_type(self) -> int:
        return self._ort_device.mem_type()


def require_cpu(device: Union[str, OrtDevice, DeviceHandle], what: str) -> None:
    """Raises: BindingError where a device is not the CPU."""
    if isinstance(device, str):
        device = OrtDevice.make(device, 0)
    if device.device_type():
        raise BindingError(
            f"[{what}] Can't allocate memory on device type {device.device_type()}: every model "
            "runs on the CPU here; use device type 'cpu'"
        )


class OrtMemoryInfo:
    """Where an input or output lives."""

    def __init__(
        self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType
    ):
        if name != "Cpu":
            raise BindingError(
                f"[memory info] Specified device is not supported: given {name!r}, expected 'Cpu'"
            )
        self.name, self.allocator_type = name, allocator_type
        self.device_id, self.mem_type = device_id, mem_type
        self.device_mem_type, self.device_vendor_id = OrtDeviceMemoryType.DEFAULT, 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """Raises: BindingError for another device than the CPU."""
        kind = OrtMemoryInfoDeviceType(device_type)
        require_cpu(DeviceHandle(int(kind), 0, device_id), f"memory info {name!r}")
        info = OrtMemoryInfo("Cpu", allocator_type, device_id, OrtMemType.DEFAULT)
        info.name, info.device_mem_type = name, device_mem_type
        info.device_vendor_id = vendor_id
        return info


class OrtArenaCfg:
    """Sizes of an arena, as numbers in onnxruntime's order or as a dict. They have no effect: the
    arena of a run has exactly the bytes that its shapes need.
    """

    def __init__(self, max_mem: Union[int, Mapping[str, int]], *sizes: int):
        names = ("arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk")
        given = (
            dict(max_mem)
            if isinstance(max_mem, Mapping)
            else dict(zip(("max_mem", *names), (max_mem, *sizes)))
        )
        self.max_mem = given.pop("max_mem", 0)
        self.arena_extend_strategy = given.pop("arena_extend_strategy", -1)
        self.initial_chunk_size_bytes = given.pop("initial_chunk_size_bytes", -1)
        self.max_dead_bytes_per_chunk = given.pop("max_dead_bytes_per_chunk", -1)
        self.initial_growth_chunk_size_bytes = given.pop("initial_growth_chunk_size_bytes", -1)
        self.max_power_of_two_extend_bytes = given.pop("max_power_of_two_extend_bytes", -1)
        if given:
            raise BindingError(f"[arena] Invalid OrtArenaCfg option: {', '.join(map(str, given))}")


class OrtHardwareDevice:
    """A processor of this machine."""

    type = OrtHardwareDeviceType.CPU
    vendor_id = device_id = 0

    def __init__(self) -> None:
        self.metadata: Mapping[str, str] = {}

    @property
    def vendor(self) -> str:
        return platform.machine()


class OrtSyncStream:
    """A queue of a device; the CPU has none, so that there is no instance."""

    def get_handle(self) -> int:
        return 0


class OrtEpDevice:
    """A provider on a processor."""

    ep_name, ep_vendor = PROVIDER, "q7x2_ep"

    def __init__(self) -> None:
        self.ep_metadata: Mapping[str, str] = {}
        self.ep_options: Mapping[str, str] = {}
        self.device = OrtHardwareDevice()

    def memory_info(self, mem_type: OrtDeviceMemoryType) -> Optional[OrtMemoryInfo]:
        """None: memory of the CPU is numpy's."""
        return None

    def create_sync_stream(self) -> OrtSyncStream:
        raise BindingError("[stream] ep_device does not use DEFAULT memory of a non-CPU device.")


CPU_MEMORY = OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
CPU_DEVICE = OrtEpDevice()
