"""Of onnxruntime's tools for transformers: io_binding_helper, and all the rest from its own package
where that is installed.
"""

import pkgutil
import sys

_ours = set(__path__)
__path__ = pkgutil.extend_path(__path__, __name__)
sys.path += [path for path in __path__ if path not in _ours]  # they import each other by bare names
