"""q7x2_ep under onnxruntime's name, for code that imports onnxruntime.

The folder stand_in holds a package `onnxruntime` made of q7x2_ep, and its metadata. Being first in
sys.path is all there is to it: Python's own import system and importlib.metadata do the rest, no
file is written, and an installed onnxruntime is left as it is.
"""

from __future__ import annotations

import importlib
import os.path
import sys
from types import ModuleType
from typing import Optional

STAND_IN = os.path.join(os.path.dirname(os.path.realpath(__file__)), "stand_in")


def install() -> None:
    """From now on `import onnxruntime` gives q7x2_ep; so it does in processes that
    multiprocessing starts from here. Others need STAND_IN in PYTHONPATH (`run-as-ort` sees to that)
    or a call of their own.

    Raises: ImportError where onnxruntime itself was imported already.
    """
    loaded = sys.modules.get("onnxruntime") or sys.modules.get("onnxruntime.capi")
    if loaded is not None and not _ours(loaded):
        raise ImportError(
            "onnxruntime itself has been imported already, from "
            f"{loaded.__file__}: call q7x2_ep.install() before anything that imports onnxruntime"
        )
    if sys.path[:1] != [STAND_IN]:
        sys.path[:] = [STAND_IN, *(path for path in sys.path if path != STAND_IN)]
        importlib.invalidate_caches()


def uninstall() -> None:
    """From now on `import onnxruntime` gives onnxruntime. What was imported stays what it is."""
    sys.path[:] = [path for path in sys.path if path != STAND_IN]
    importlib.invalidate_caches()
    if installed():
        for name in [each for each in sys.modules if each.split(".")[0] == "onnxruntime"]:
            del sys.modules[name]


def installed() -> bool:
    """Whether what has been imported as onnxruntime is q7x2_ep."""
    return _ours(sys.modules.get("onnxruntime"))


def _ours(module: Optional[ModuleType]) -> bool:
    return (getattr(module, "__file__", None) or "").startswith(STAND_IN + os.sep)
