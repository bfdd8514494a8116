"""Runs one op of the library as a plan of one step, each operand in memory of its own.

It lies between guard pages: an access beyond its end is a crash. Bytes before its start, and the
inputs, are compared afterwards.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import pickle
import struct
from array import array
from collections.abc import Collection, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np

import q7x2_ep
from q7x2_ep import dtypes
from q7x2_ep.backend.cpu.library import Context, Library, Plan, load
from q7x2_ep.plan.encode import ABI, ALIGN, MAGIC, OPERATIONS, SPACES
from q7x2_ep.plan.target import KernelRow

CANARY = 0xA5
PAGE = mmap.PAGESIZE
NONE, READ_WRITE = 0, 3  # protections of mprotect
LIBC = ctypes.CDLL(None)


class Guarded:
    """A copy of an array between pages without access; it ends where the second begins."""

    def __init__(self, source: np.ndarray):
        pages = -(-source.nbytes // PAGE) * PAGE
        self.memory = mmap.mmap(-1, pages + 2 * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size = PAGE + pages
        self._protect(NONE)
        whole = np.frombuffer(self.memory, np.uint8)[PAGE : self.size]
        self.before = whole[: pages - source.nbytes]
        self.before[:] = CANARY
        data = whole[pages - source.nbytes :] if source.nbytes else whole[:0]
        self.array = data.view(source.dtype).reshape(source.shape)
        self.array[...] = source

    def _protect(self, protection: int) -> None:
        for page in (0, self.size):
            address = ctypes.c_void_p(self.address + page)
            assert LIBC.mprotect(address, ctypes.c_size_t(PAGE), protection) == 0

    def release(self) -> None:
        """Checks what lies before the array."""
        untouched = bool((self.before == CANARY).all())
        self._protect(READ_WRITE)
        assert untouched, "bytes before an operand were overwritten"


def rows(family: str, dtypes: Collection[str] = ()) -> list[KernelRow]:
    """The kernels of a family that this machine can run: tests are parametrised over them. dtypes:
    of some, all by default.
    """
    found = [row for row in load("").target.kernels if row.family == family and row.supported]
    return [row for row in found if not dtypes or row.dtypes in dtypes]


def run_op(
    op: str,
    kernel_row: Optional[KernelRow] = None,
    threads: int = 1,
    /,
    **given: Any,
) -> dict[str, np.ndarray]:
    """The outputs of an op of ops.def, by operand name.

    Every operand and field of the row by name. Operands: an array, None for an optional one, or the
    name of another operand that it shares memory with; outputs hold what is there before; scratch:
    bytes or None. Fields: an int, a float, a sequence, or the name of a member of a closed set.
    """
    library = load("")
    row = library.target.ops[op]
    image = bytearray(-(-row.struct_bytes // ALIGN) * ALIGN)
    memory: dict[str, Guarded] = {}
    places: dict[str, tuple[int, int]] = {}  # of each operand: space, index
    aliases: dict[str, str] = {}
    inputs, outputs = [], []
    for operand in row.operands:
        value = given.pop(operand.name)
        if isinstance(value, str):
            aliases[operand.name] = value
        elif value is not None:
            if operand.kind == "scratch":
                value = np.broadcast_to(np.uint8(CANARY), int(getattr(value, "nbytes", value)))
            guarded = memory[operand.name] = Guarded(value)
            is_written = operand.kind in ("out", "optout", "scratch")
            arrays = outputs if is_written else inputs
            places[operand.name] = SPACES["output" if is_written else "input"], len(arrays)
            arrays.append(guarded.array)
    places.update({name: places[other] for name, other in aliases.items()})
    pointers = [(o.offset, *places[o.name], 1) for o in row.operands if o.name in places]
    for f in row.fields:
        value = given.pop(f.name)
        members = library.target.sets.get(op if f.name == "op" else f.name, {})
        items = [
            members[item] if isinstance(item, str) else item
            for item in (value if f.count > 1 else [value])
        ]
        code = "d" if f.type == "f64" else "q"
        struct.pack_into(f"<{len(items)}{code}", image, f.offset, *items)
    assert not given, f"{op} has no {sorted(given)}"
    written = [o.name for o in row.operands if o.kind in ("out", "optout")]
    overwritten = {aliases[name] for name in written if name in aliases}
    kept = [
        o.name
        for o in row.operands
        if o.kind in ("in", "opt") and o.name in memory and o.name not in overwritten
    ]
    before = [memory[name].array.tobytes() for name in kept]
    if kernel_row is None and any(each.family == op for each in library.target.kernels):
        kernel_row = library.target.kernel(op)  # a plan names it for the dtypes without one, too
    _run(library, row.index, kernel_row, threads, bytes(image), pointers, inputs, outputs)
    for each in memory.values():
        each.release()
    for name, held in zip(kept, before):
        assert memory[name].array.tobytes() == held, f"{op} wrote to its input {name}"
    shown = {name: aliases.get(name, name) for name in written}
    return {name: memory[place].array.copy() for name, place in shown.items() if place in memory}


def run_threads(
    op: str,
    kernel_row: Optional[KernelRow] = None,
    /,
    threads: Sequence[int] = (1, 2, 3, 8),
    **given: Any,
) -> tuple[np.ndarray, ...]:
    """The outputs of `run_op` in order, after a check that threads do not change their bits."""
    results = [run_op(op, kernel_row, n, **given) for n in threads]
    for n, result in zip(threads, results):
        for name, found in result.items():
            same = found.tobytes() == results[0][name].tobytes()
            assert same, f"{op}: {name} has other bits with {n} threads than with {threads[0]}"
    return tuple(results[0].values())


def remembered(function: Callable[..., Any], most: int = 100) -> Callable[..., Any]:
    """A function of arrays that knows its latest results: the rows of a family, one after the
    other, are held against the same.
    """
    results: dict[bytes, Any] = {}

    def call(*args: Any) -> Any:
        key = hashlib.sha256(pickle.dumps(args)).digest()
        if key not in results:
            results[key] = function(*args)
            if len(results) > most:
                del results[next(iter(results))]
        return results[key]

    return call


def padded(items: Sequence[int], count: int = 8) -> list[int]:
    """The value of an array field of which only the first entries count."""
    return [*items, *[0] * (count - len(items))]


def _run(
    library: Library,
    op: int,
    kernel_row: Optional[KernelRow],
    threads: int,
    image: bytes,
    pointers: list[tuple[int, int, int, int]],
    inputs: list[np.ndarray],
    outputs: list[np.ndarray],
) -> None:
    zero = (OPERATIONS["const"], 0, 0)  # values[1]: the byte offset of all operands
    step = (op, kernel_row.index if kernel_row else -1, 0)
    words = [
        MAGIC,
        ABI,
        1,
        1,
        0,
        0,
        1,
        0,
        len(pointers),
        len(image),
        len(inputs),
        len(outputs),
        *zero,
        *step,
    ]
    for pointer in pointers:
        words.extend(pointer)
    with (
        Plan(library, array("q", words).tobytes() + image, []) as plan,
        Context(plan, threads) as context,
    ):
        context.bind([])
        context.run(0, 1, inputs, outputs)


def tolerance(reduction: int, scale: Union[float, np.ndarray] = 1.0) -> Union[float, np.ndarray]:
    """Largest error of a float32 sum of `reduction` products whose magnitudes sum to `scale`."""
    return (reduction + 4) * float(np.finfo(np.float32).eps) * scale


def rounded_to(dtype: int, x: np.ndarray) -> np.ndarray:
    """Float32 that float16 holds, or bfloat16, next to x or short of it."""
    if dtype == dtypes.FLOAT16:
        return x.astype(np.float16).astype(np.float32)
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def session_of(model: bytes, threads: int) -> q7x2_ep.InferenceSession:
    """Of a whole model, where what is tested takes several steps."""
    options = q7x2_ep.SessionOptions()
    options.intra_op_num_threads = threads
    return q7x2_ep.InferenceSession(model, options)
