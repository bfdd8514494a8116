"""Of onnxruntime's tools for transformers: all of its own package where that is installed, else
io_binding_helper.
"""

import pkgutil
import sys

_ours = list(__path__)
_theirs = [path for path in pkgutil.extend_path(__path__, __name__) if path not in _ours]
__path__ = [*_theirs, *_ours]
sys.path += _theirs  # they import each other by bare names
