"""The names of onnxruntime's native module, its exception classes above all. Where onnxruntime has
a native class and one around it, they are mostly one here.
"""

from typing import Any

from q7x2_ep.api import *  # noqa: F403
from q7x2_ep.api.block_quantizers import (  # noqa: F401
    quantize_matmul_2bits,
    quantize_matmul_4bits,
    quantize_matmul_8bits,
    quantize_matmul_bnb4,
    quantize_qdq_matmul_4bits,
)
from q7x2_ep.api.compiler import *  # noqa: F403
from q7x2_ep.api.device import DeviceHandle as OrtDevice  # noqa: F401
from q7x2_ep.api.native_enums import (  # noqa: F401
    ArenaExtendStrategy,
    OrtCompiledModelCompatibility,
    OrtDeviceEpIncompatibilityReason,
)
from q7x2_ep.api.registry import (  # noqa: F401
    get_all_operator_schema,
    get_all_opkernel_def,
    get_compatibility_info_from_model,
    get_compatibility_info_from_model_bytes,
    get_default_session_options,
    get_hardware_devices,
    get_model_compatibility_for_ep_devices,
    get_registered_ep_kernel_defs,
)
from q7x2_ep.api.sparse import SparseBlockSparseView, SparseCooView, SparseCsrView  # noqa: F401
from q7x2_ep.api.value import OrtValueVector  # noqa: F401
from q7x2_ep.errors import (  # noqa: F401
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)

kNextPowerOfTwo, kSameAsRequested = ArenaExtendStrategy


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"{name} is of onnxruntime's native module only; q7x2_ep, which stands in for it, has none"
    )
