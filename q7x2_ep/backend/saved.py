"""The compiled model file: plans and packed weights, mapped read-only and shared by processes.

    0      preamble: magic, version, and where the head is, with a sha256 of all that and the head
    4096   payload: arrays, each at a multiple of 128 bytes
           details: JSON (plan/record.py) with what explains it, read when somebody asks
           head: JSON with all that a run needs, and the table of the arrays

Numbers are little-endian. The preamble, the head and the file's length are checked whenever a file
is opened, as are arrays of int32 and int64, by which kernels may find their way, as in the trees of
a forest. The sha256 of the payload is checked on demand (Q7X2_VERIFY=1): to hash the 438 MB of
BERT-base takes 300 ms, opening it 2, and pages that are never touched take no memory. A file
appears under its name complete and synced to disk, or not at all; what is left are disks that lose
bits, and there wrong weights give wrong numbers, as in any model file, but no crash. Opening a file
runs nothing that is in it. A run does what its steps say, and no checksum tells who wrote them: as
with a shared library, run files of those whom you trust.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import CorruptModel, ModelNotFound, StaleModel
from q7x2_ep.files import MAGIC, PACKED_ALIGN, Track, aligned, map_file
from q7x2_ep.plan import record
from q7x2_ep.plan.target import Target

VERSION = 3
PAYLOAD = 4096  # bytes before it
_PREAMBLE = struct.Struct("<8sQQQQ")  # magic, version, bytes of the file, offset and bytes of head
_DIGEST = 32  # bytes of a sha256
_CHUNK = 1 << 24  # bytes written, or hashed, at a time


@dataclass(frozen=True)
class Opened:
    """A compiled model. content: what was saved. details: the rest of it."""

    content: Any
    details: Callable[[], Any]


def save(
    file: BinaryIO, target: Target, package: str, content: Any, details: Any, track: Track
) -> int:
    """Writes a file; its bytes.

    Raises: UnsupportedOp for what cannot be saved, OSError.
    """
    arrays = _Arrays()
    document = record.write(content, arrays.keep)
    digest = _sha256()
    file.write(bytes(PAYLOAD))
    for array in track(arrays.stored, "weights"):
        room = bytes(-file.tell() % PACKED_ALIGN)
        for chunk in (room, *_chunks(memoryview(array.reshape(-1).view(np.uint8)))):
            digest.update(chunk)
            file.write(chunk)
    payload_end = file.tell()
    rest = json.dumps(record.write(details, arrays.known), separators=(",", ":")).encode()
    file.write(rest)
    head = {
        "package": package,
        "abi": target.abi_hash,
        "isa": target.isa,
        "payload": [payload_end, digest.hexdigest()],
        "details": [payload_end, len(rest), _sha256(rest).hexdigest()],
        "arrays": arrays.table,
        "integers": _hash_of_integers(arrays.stored),
        "content": document,
    }
    encoded = json.dumps(head, separators=(",", ":")).encode()
    total = file.tell() + len(encoded)
    preamble = _PREAMBLE.pack(MAGIC, VERSION, total, file.tell(), len(encoded))
    file.write(encoded)
    file.seek(0)
    file.write(preamble + _sha256(preamble + encoded).digest())
    return total


class _Arrays:
    """What goes into the payload, once each. table: dtype, shape and offset of every array, the
    elements where they are texts.
    """

    def __init__(self) -> None:
        self.table: list[list[Any]] = []
        self.stored: list[np.ndarray] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[np.ndarray] = []  # so that an id stays theirs
        self._end = PAYLOAD

    def keep(self, array: np.ndarray) -> int:
        if id(array) not in self._numbers:
            self._numbers[id(array)] = len(self.table)
            self._alive.append(array)
            code, shape = dtypes.from_numpy(array.dtype), list(array.shape)
            if code == dtypes.STRING:
                texts = [t.decode() if isinstance(t, bytes) else str(t) for t in array.flat]
                self.table.append([code, shape, texts])
            else:
                self._end += -self._end % PACKED_ALIGN
                self.table.append([code, shape, self._end])
                self.stored.append(np.ascontiguousarray(array))
                self._end += array.nbytes
        return self._numbers[id(array)]

    def known(self, array: np.ndarray) -> Optional[int]:
        """Its number, if it is kept."""
        return self._numbers.get(id(array))


def open_saved(model: Any, target: Target, package: str, verify: bool = False) -> Opened:
    """Maps a compiled model file, or takes the bytes of one. verify: check the payload too.

    Raises: ModelNotFound, CorruptModel, StaleModel.
    """
    data, name = _load(model)
    head = _head(data, name)
    _check_fit(head, target, package, name)
    try:
        if verify:
            end, wanted = head["payload"]
            if _hash(memoryview(data)[PAYLOAD:end]) != wanted:
                raise CorruptModel(f"[{name}] its weights are not what was written")
        arrays = [_array(data, *row) for row in head["arrays"]]
        if _hash_of_integers(arrays) != head["integers"]:
            raise CorruptModel(f"[{name}] its indices are not what was written")
        offset, size, wanted = head["details"]
    except (CorruptModel, MemoryError):
        raise
    except Exception as error:
        raise CorruptModel(f"[{name}] its head is malformed: {error!r}") from error

    def details() -> Any:
        text = bytes(data[offset : offset + size])
        if _sha256(text).hexdigest() != wanted:
            raise CorruptModel(f"[{name}] what explains it is not what was written")
        return record.read(json.loads(text), arrays)

    return Opened(record.read(head["content"], arrays), details)


def _load(model: Any) -> tuple[Any, str]:
    """The bytes of a file, where kernels can read them, and what to call it."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        whole = np.frombuffer(model, np.uint8)
        copy = aligned(whole.size)
        copy[:] = whole
        return memoryview(copy).toreadonly(), "compiled model"
    name = os.fspath(model)
    try:
        return map_file(name), name
    except FileNotFoundError:
        raise ModelNotFound(f"Load model from {name} failed: File doesn't exist") from None
    except OSError as error:
        raise CorruptModel(f"Load model from {name} failed: {error.strerror}") from error


def _head(data: Any, name: str) -> dict[str, Any]:
    """The head of a file that is whole."""
    before = _PREAMBLE.size + _DIGEST
    if len(data) < PAYLOAD or bytes(data[: len(MAGIC)]) != MAGIC:
        raise CorruptModel(f"[{name}] is not a compiled model file, or is cut off")
    _, version, total, offset, size = _PREAMBLE.unpack(data[: _PREAMBLE.size])
    if version != VERSION:
        raise StaleModel(f"[{name}] has version {version}, expected {VERSION}: compile it again")
    if total != len(data) or offset + size != total or offset < PAYLOAD:
        raise CorruptModel(f"[{name}] expected {total} bytes, given {len(data)}")
    text = bytes(data[offset:])
    wanted = _sha256(bytes(data[: _PREAMBLE.size]) + text).digest()
    if bytes(data[_PREAMBLE.size : before]) != wanted:
        raise CorruptModel(f"[{name}] its head is not what was written")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptModel(f"[{name}] its head is malformed: {error}") from error


def _check_fit(head: Mapping[str, Any], target: Target, package: str, name: str) -> None:
    """Raises: StaleModel for a file of another q7x2_ep, or of a CPU that can do more."""
    wanted = {"package": package, "abi": target.abi_hash}
    for what, value in wanted.items():
        if head.get(what) != value:
            raise StaleModel(
                f"[{name}] was compiled by a q7x2_ep of {what} {head.get(what)}, this one has "
                f"{value}: compile it again"
            )
    isa = head.get("isa")
    if not any(row.isa == isa and row.supported for row in target.kernels):
        raise StaleModel(
            f"[{name}] was compiled for {isa}, given {target.isa}: compile it again here, or with "
            f"Q7X2_ISA={target.isa}"
        )


def _array(data: Any, code: int, shape: Sequence[int], at: Any) -> np.ndarray:
    if code == dtypes.STRING:
        texts = np.empty(len(at), object)
        texts[:] = at
        return texts.reshape(shape)
    dtype, count = dtypes.DTYPES[code].numpy, math.prod(shape)
    if at < PAYLOAD or at % PACKED_ALIGN or min(shape, default=0) < 0:
        raise CorruptModel("[compiled model] an array lies outside of the payload")
    if not count:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, count, at).reshape(shape)


def _sha256(data: bytes = b"") -> Any:
    import hashlib  # 3 ms, which a model from ONNX does not need

    return hashlib.sha256(data)


def _chunks(data: memoryview) -> Any:
    return (data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))


def _hash_of_integers(arrays: Sequence[np.ndarray]) -> str:
    """Of those of int32 and int64."""
    digest = _sha256()
    for array in arrays:
        if array.dtype.kind == "i" and array.itemsize >= 4:
            digest.update(array.reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _hash(data: memoryview) -> str:
    digest = _sha256()
    for chunk in _chunks(data):
        digest.update(chunk)
    return digest.hexdigest()
