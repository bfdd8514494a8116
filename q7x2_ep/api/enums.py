"""onnxruntime's enums: the same names and numbers, printed the same way.

They compare equal to their numbers, as onnxruntime's do.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class OrtEnum(IntEnum):
    """An IntEnum whose text is its name: GraphOptimizationLevel.ORT_ENABLE_ALL."""

    __str__ = Enum.__str__

    def __format__(self, specification: str) -> str:
        return format(str(self), specification)


class GraphOptimizationLevel(OrtEnum):
    """How much is rewritten: no fusions up to BASIC, all of them from EXTENDED on."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(OrtEnum):
    """Has no effect: steps always run in order, each spread over all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(OrtEnum):
    """Has no effect: the order that needs the least memory is always looked for."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(OrtEnum):
    """How memory is allocated."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtDeviceMemoryType(OrtEnum):
    """Whose memory a device's is."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtDeviceVendorId(IntEnum):
    """PCI ids of vendors."""

    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtExecutionProviderDevicePolicy(OrtEnum):
    """Which device is preferred; there is one here."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtHardwareDeviceType(OrtEnum):
    """Kinds of devices."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtMemType(OrtEnum):
    """What an allocation is for."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtMemoryInfoDeviceType(OrtEnum):
    """Kinds of devices that memory can be on."""

    CPU = 0
    GPU = 1
    NPU = 3
    FPGA = 2


class OrtSparseFormat(OrtEnum):
    """How a sparse tensor is stored."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4
