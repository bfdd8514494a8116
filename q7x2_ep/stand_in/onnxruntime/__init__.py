"""onnxruntime's module, q7x2_ep inside: what `import onnxruntime` finds once this folder's parent
comes before site-packages in sys.path, see q7x2_ep/install.py.

Modules that are plain Python in onnxruntime's own package (quantization, tools, ..) are taken from
there where it is installed, and then work on q7x2_ep; its native module (capi) never is.
"""

import pkgutil
import sys
from pathlib import Path

_STAND_IN = Path(__file__).resolve().parents[1]
try:
    import q7x2_ep
except ModuleNotFoundError:  # a process that was given nothing but the path of this folder
    sys.path.append(str(_STAND_IN.parents[1]))
    import q7x2_ep

__path__ = [*pkgutil.extend_path(__path__, __name__), str(_STAND_IN / "absent")]

from onnxruntime.capi import (  # noqa: E402, F401  importing onnxruntime imports these too
    _pybind_state,
    onnxruntime_inference_collection,
    onnxruntime_validation,
)
from q7x2_ep.api import *  # noqa: E402, F403
from q7x2_ep.api.compiler import *  # noqa: E402, F403

__version__ = q7x2_ep.api.version
__author__ = "q7x2_ep"
