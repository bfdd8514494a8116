"""The enums that onnxruntime's native module alone has: `import q7x2_ep` does without them."""

from __future__ import annotations

from q7x2_ep.api.enums import OrtEnum


class OrtCompiledModelCompatibility(OrtEnum):
    """Whether a provider can use what it compiled for another device or version."""

    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


class OrtDeviceEpIncompatibilityReason(OrtEnum):
    """Why a provider cannot use a device."""

    NONE = 0
    DRIVER_INCOMPATIBLE = 1
    DEVICE_INCOMPATIBLE = 2
    MISSING_DEPENDENCY = 4
    UNKNOWN = -(1 << 31)


class ArenaExtendStrategy(OrtEnum):
    """How an arena grows."""

    kNextPowerOfTwo = 0
    kSameAsRequested = 1
