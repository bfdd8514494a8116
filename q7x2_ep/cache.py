"""Compiled models kept in a folder, so that a model is compiled once per machine.

A compiled model file is named by what it depends on: the contents of the model file, what was asked
of the compiler, the library's sources and the instruction set. The hashes of the files of external
data that it was made from are in it, and compared when it is opened. A file is hashed once and then
known by its place, inode, size and times, in `<hash>.sha256` beside it: hashing BERT-base takes
0.3 s, opening it compiled 2 ms.

Anything may go wrong here (a damaged file, a full disk, a folder that cannot be written): a warning
of the logger says so, and the model is compiled as if there were no cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from q7x2_ep import errors
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.files import replacing
from q7x2_ep.release import __version__
from q7x2_ep.request import Request
from q7x2_ep.session import Model, Session

_NAMES = re.compile(r"[0-9a-f]{64}\.(q7|sha256)(\.[0-9a-f]{32}\.tmp)?")  # which nobody else gives
_SETTLED_NS = 2_000_000_000  # a file that changed since may change again unseen: clocks tick
_CHUNK = 1 << 22

logger = logging.getLogger("q7x2_ep")


@dataclass(frozen=True)
class Contents:
    """What a cache folder holds. Units: bytes."""

    models: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.models} compiled models, {self.bytes:,} bytes"


def cached(folder: str, model: Model, threads: int, fusion: bool, request: Request) -> Session:
    """The session of a model, opened from the folder; compiled, and put there, where it is not.

    Raises: as Session does.
    """
    if request.functions:  # code has no hash
        return Session(model, threads, fusion, request=request)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # others could put their weights there
    except OSError as error:
        logger.warning("[cache] %s cannot be made: %s", folder, error.strerror)
    except ValueError as error:  # a NUL, which no path has in it
        logger.warning("[cache] %r cannot be made: %s", folder, error)
        return Session(model, threads, fusion, request=request)
    data = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    try:
        source = _digest(folder, data)
    except OSError:  # Session says what is wrong
        return Session(model, threads, fusion, request=request)
    target = load().target
    key = [source, request.fingerprint(fusion), target.abi_hash, target.isa, __version__]
    path = os.path.join(folder, hashlib.sha256(json.dumps(key).encode()).hexdigest() + ".q7")
    session = _opened(folder, path, data, threads, request)
    if session is not None:
        return session
    session = Session(model, threads, fusion, request=request)
    try:
        files = _digests(folder, _beside(data, request), session.metadata["files"])
        if source != _digest(folder, data):
            raise OSError(0, "the model changed while it was read")
        session.save(path, files)
        mapped = Session.open(path, threads)  # whose pages other processes share
    except errors.UnsupportedOp as problem:
        logger.info("[cache] %s", problem.message)
    except (OSError, errors.ModelError) as error:
        logger.warning("[cache] %s cannot be kept in %s: %s", _name(data), folder, error)
    else:
        session.close()
        return mapped
    return session


def contents(folder: str) -> Contents:
    """What is in a cache folder."""
    sizes = []
    for entry in _entries(folder):
        with contextlib.suppress(FileNotFoundError):  # another process may remove it
            if entry.name.endswith(".q7"):
                sizes.append(entry.stat().st_size)
    return Contents(len(sizes), sum(sizes))


def clear(folder: str) -> Contents:
    """Removes all that the cache has put into a folder; what that was. Sessions that are open keep
    their files until they close.
    """
    found = contents(folder)
    for entry in _entries(folder):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry.path)
    return found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [
                entry
                for entry in entries
                if _NAMES.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []


def _opened(
    folder: str, path: str, model: Any, threads: int, request: Request
) -> Optional[Session]:
    """The session of a file that is there, whole, and of these weights."""
    try:
        session = Session.open(path, threads)
        if session.files == _digests(folder, _beside(model, request), session.files):
            return session
        logger.info("[cache] external data of %s has changed", _name(model))
        session.close()
    except errors.ModelNotFound:
        pass
    except (errors.ModelError, OSError) as error:
        logger.warning("[cache] compiling %s again: %s", _name(model), error)
    return None


def _beside(model: Any, request: Request) -> str:
    """Where the files of external data are."""
    if request.folder is not None:
        return request.folder
    return "" if isinstance(model, (bytes, bytearray, memoryview)) else os.path.dirname(model)


def _digests(folder: str, beside: str, locations: Any) -> Mapping[str, str]:
    """Of the files of external data, by location."""
    return {each: _digest(folder, os.path.join(beside, each)) for each in locations}


def _digest(folder: str, file: Any) -> str:
    """sha256 of bytes or of a file, in hex.

    Raises: OSError where the file cannot be read.
    """
    if isinstance(file, (bytes, bytearray, memoryview)):
        return hashlib.sha256(file).hexdigest()
    stat = os.stat(file)
    place = (os.path.abspath(file), stat.st_dev, stat.st_ino, stat.st_size)
    known = repr((*place, stat.st_mtime_ns, stat.st_ctime_ns)).encode()
    memo = os.path.join(folder, hashlib.sha256(known).hexdigest() + ".sha256")
    try:
        with open(memo, encoding="ascii") as text:
            digest = text.read()
        if len(digest) == 64:
            return digest
    except (OSError, ValueError):
        pass
    digest = _hashed(file)
    if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > _SETTLED_NS:
        with contextlib.suppress(OSError), replacing(memo) as text:  # or it is hashed again
            text.write(digest.encode())
    return digest


def _hashed(file: str) -> str:
    hashed = hashlib.sha256()
    with open(file, "rb") as data:
        while chunk := data.read(_CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def _name(model: Any) -> str:
    return "a model" if isinstance(model, (bytes, bytearray, memoryview)) else os.fspath(model)
