"""Runs one op of the library as a plan of one step, every operand in memory of its own between guard pages.

An access beyond the end of an operand is a crash; bytes before its start, and the inputs, are compared afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from array import array
from typing import Any, Optional, Union

import numpy as np

from q7x2_ep.backend.cpu.library import Context, Library, Plan, load
from q7x2_ep.plan.encode import ABI, ALIGN, MAGIC, OPERATIONS, SPACES
from q7x2_ep.plan.target import KernelRow

CANARY = 0xA5
PAGE = mmap.PAGESIZE
NONE, READ_WRITE = 0, 3  # protections of mprotect


class Guarded:
    """A copy of an array that ends where a page without access begins; one such page precedes it, too."""

    def __init__(self, source: np.ndarray):
        pages = -(-source.nbytes // PAGE) * PAGE
        self.memory = mmap.mmap(-1, pages + 2 * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size = PAGE + pages
        self._protect(NONE)
        whole = np.frombuffer(self.memory, np.uint8)[PAGE : self.size]
        whole[:] = CANARY
        self.before = whole[: pages - source.nbytes]
        data = whole[pages - source.nbytes :] if source.nbytes else whole[:0]
        self.array = data.view(source.dtype).reshape(source.shape)
        self.array[...] = source

    def _protect(self, protection: int) -> None:
        mprotect = ctypes.CDLL(None).mprotect
        for page in (0, self.size):
            assert (
                mprotect(ctypes.c_void_p(self.address + page), ctypes.c_size_t(PAGE), protection)
                == 0
            )

    def release(self) -> np.ndarray:
        """A copy of the array, after the check of what lies before it."""
        result = self.array.copy()
        untouched = bool((self.before == CANARY).all())
        self._protect(READ_WRITE)
        assert untouched, "bytes before an operand were overwritten"
        return result


def rows(family: str) -> list[KernelRow]:
    """The kernels of a family that this machine can run: tests are parametrised over them."""
    return [row for row in load("").target.kernels if row.family == family and row.supported]


def run_op(
    op: str,
    kernel_row: Optional[KernelRow] = None,
    threads: int = 1,
    **given: Any,
) -> dict[str, np.ndarray]:
    """The outputs of an op of ops.def, by operand name.

    Every operand and field of the row by name. Operands: an array, None for an optional one, or the name of another
    operand that it shares memory with; outputs hold what is there before; scratch: bytes or None. Fields: an int, a
    float, a sequence, or the name of a member of a closed set.
    """
    library = load("")
    row = library.target.ops[op]
    image = bytearray(-(-row.struct_bytes // ALIGN) * ALIGN)
    memory: dict[str, Guarded] = {}
    pointers, inputs, outputs = [], [], []
    for operand in row.operands:
        value = given.pop(operand.name)
        if operand.kind == "scratch" and value is not None:
            value = np.full(int(value), CANARY, np.uint8)
        if value is None or isinstance(value, str):
            continue
        memory[operand.name] = Guarded(value)
        written = operand.kind in ("out", "optout", "scratch")
        arrays = outputs if written else inputs
        pointers.append((operand.offset, SPACES["output" if written else "input"], len(arrays), 1))
        arrays.append(memory[operand.name].array)
        given[operand.name] = memory[operand.name]
    shared = {o.name: o for o in row.operands}
    for operand in row.operands:
        alias = given.get(operand.name)
        if isinstance(alias, str):
            (at,) = [p for p in pointers if p[0] == shared[alias].offset]
            pointers.append((operand.offset, *at[1:]))
    for f in row.fields:
        value = given.pop(f.name)
        if isinstance(value, str):
            value = library.target.sets[op if f.name == "op" else f.name][value]
        items = list(value) if f.count > 1 else [value]
        struct.pack_into(f"<{len(items)}{'d' if f.type == 'f64' else 'q'}", image, f.offset, *items)
    unknown = set(given) - set(shared)
    assert not unknown, f"{op} has no {unknown}"
    before = {name: m.array.copy() for name, m in memory.items()}
    _run(library, row.index, kernel_row, threads, bytes(image), pointers, inputs, outputs)
    after = {name: m.release() for name, m in memory.items()}
    for operand in row.operands:
        if operand.kind in ("in", "opt") and operand.name in memory:
            assert after[operand.name].tobytes() == before[operand.name].tobytes(), (
                f"{op} wrote to its input {operand.name}"
            )
    return {
        o.name: after[o.name]
        for o in row.operands
        if o.kind in ("out", "optout") and o.name in after
    }


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
    """Bound of the error of a float32 sum of `reduction` products whose absolute values sum up to `scale`."""
    return (reduction + 4) * float(np.finfo(np.float32).eps) * scale
