"""Python's collector of cycles waits while models are compiled.

Compiling makes some 100,000 objects, nearly all of which stay. The collector runs again and again
meanwhile and finds nothing, and at times looks at every object of the process: 0.1 s where torch
and transformers are imported, more than MobileNet-v2 takes.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_compiling = 0  # how many threads are
_is_due = False  # whether the collector is to go on behind them


@contextmanager
def waiting() -> Iterator[None]:
    """The collector waits inside, for all threads, and is as it was once the last has left."""
    global _compiling, _is_due
    with _lock:
        if not _compiling:
            _is_due = gc.isenabled()
            gc.disable()
        _compiling += 1
    try:
        yield
    finally:
        with _lock:
            _compiling -= 1
            if not _compiling and _is_due:
                gc.enable()


def _forked() -> None:
    """In a child, where no other thread goes on."""
    global _lock, _compiling
    _lock = threading.Lock()
    if _compiling and _is_due:
        gc.enable()
    _compiling = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
