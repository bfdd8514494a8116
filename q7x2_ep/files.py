"""Files as they are read and written: mapped, replaced whole, known by their first bytes; and
memory that is laid out like them.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

import numpy as np

MAGIC = b"\x89q7model"  # of compiled models: no text, and no protobuf message, begins like this
PACKED_ALIGN = 128  # bytes, Q7_ARENA_ALIGN of csrc/arena.h
Track = Callable[[list, str], Iterable]  # progress.track, or nothing: the items, a label


def is_compiled(data: Any) -> bool:
    """Whether this is a path, or the bytes, of a compiled model file (backend/saved.py)."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data[: len(MAGIC)]) == MAGIC
    try:
        if not os.path.isfile(data):  # of a pipe this would take the first bytes
            return False
        with open(data, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, TypeError, ValueError):
        return False


def map_file(path: str) -> Any:
    """A file as a read-only buffer: pages are read when they are used.

    Raises: OSError.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""  # which mmap refuses
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def aligned(size: int) -> np.ndarray:
    """So many bytes, where kernels can read packed weights: in whole lines of the cache. AMX takes
    2.5 times as long where rows of both operands cross them.
    """
    room = np.empty(size + PACKED_ALIGN, np.uint8)
    start = -room.ctypes.data % PACKED_ALIGN
    return room[start : start + size]


def mapping(array: Any) -> Optional[mmap.mmap]:
    """The file mapping that an array is a view of, or None."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    owner = None if base is None else memoryview(base).obj
    return owner if isinstance(owner, mmap.mmap) else None


def can_be_given_back(array: np.ndarray) -> bool:
    """Whether its pages are those of a mapped file that cannot be written: they may leave memory,
    and come back where they are read again.
    """
    owner = mapping(array)
    return owner is not None and memoryview(owner).readonly


def give_back(array: np.ndarray) -> None:
    """Has the pages of a dense array leave memory, if they can be given back."""
    owner: Any = mapping(array)
    if not array.nbytes or not can_be_given_back(array) or not hasattr(owner, "madvise"):
        return
    start = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, first, start - first + array.nbytes)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[Any]:
    """A new binary file that takes the place of `path` once it is complete, and on the disk, with
    the mode of the one that was there. A link still leads to it; a device is written to.

    Raises: OSError.
    """
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    place = os.path.realpath(path)
    try:
        mode = os.stat(place).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with open(place, "wb") as device:  # or a folder, which cannot be opened
            yield device
        return
    temporary = f"{place}.{os.urandom(16).hex()}.tmp"  # writers of one path do not meet
    try:
        with open(temporary, "xb") as file:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
