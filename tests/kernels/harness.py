"""Runs one op of the C library by itself, as a plan of one step, with its memory against guard pages.

`run_op("softmax", kernel, x=x, y=like_x, outer=2, n=5, inner=1, log=0)` hands over every operand and field of the op's row
in ops.def by name. Every operand is copied so that it ends where an unreadable page begins.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from array import array
from typing import Any, Optional, Sequence

import numpy as np

from q7x2_ep.backend.cpu.library import Context, Plan, load
from q7x2_ep.plan.encode import ABI, ALIGN, MAGIC, SPACES
from q7x2_ep.plan.target import KernelRow

THREADS = (1, 2, 3, 8)
PAGE = mmap.PAGESIZE
PROT_NONE = 0
_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def kernels(family: str) -> list[KernelRow]:
    """The rows of a family that this build and CPU can run; a parametrisation for tests."""
    return [row for row in load("").target.kernels if row.family == family and row.supported]


def guarded(like: np.ndarray) -> np.ndarray:
    """A copy of an array whose last byte lies just before a page that must not be touched."""
    pages = max(1, -(-like.nbytes // PAGE))
    memory = mmap.mmap(-1, (pages + 1) * PAGE)
    base = np.frombuffer(memory, np.uint8)
    assert _libc.mprotect(base.ctypes.data + pages * PAGE, PAGE, PROT_NONE) == 0
    end = pages * PAGE
    placed = base[end - like.nbytes : end].view(like.dtype).reshape(like.shape)
    placed[...] = like
    return placed


def run_op(
    op: str, kernel: Optional[KernelRow] = None, /, threads: Sequence[int] = THREADS, **given: Any
) -> tuple[np.ndarray, ...]:
    """The outputs of one run of an op, in the order of its row; they must not depend on the number of threads.

    given: an array per input, a dense array to copy the shape, dtype and initial content of each output and scratch
    from, or the name of an input for an output that shares its memory; None for an optional operand that is absent.
    Raises: StatusError, AssertionError where results differ between numbers of threads.
    """
    results = [_run_once(op, kernel, n, dict(given)) for n in threads]
    for n, result in zip(threads, results):
        for one, other in zip(results[0], result):
            assert one.tobytes() == other.tobytes(), f"{op}: {n} threads give other bits than {threads[0]}"
    return results[0]


def _run_once(op: str, kernel: Optional[KernelRow], threads: int, given: dict[str, Any]) -> tuple[np.ndarray, ...]:
    library = load("")
    row = library.target.ops[op]
    args = bytearray(-(-row.struct_bytes // ALIGN) * ALIGN)
    for f in row.fields:
        value = given.pop(f.name)
        if isinstance(value, str):
            value = library.target.sets[op if f.name == "op" else f.name][value]
        items = list(value) if f.count > 1 else [value]
        struct.pack_into(f"<{len(items)}{'d' if f.type == 'f64' else 'q'}", args, f.offset, *items)
    spaces: dict[str, list[np.ndarray]] = {"input": [], "output": []}
    placed: dict[str, tuple[str, int]] = {}
    patches, outputs = [], []
    for operand in row.operands:
        value = given.pop(operand.name)
        if isinstance(value, str):
            placed[operand.name] = placed[value]
        elif value is not None:
            space = "input" if operand.kind in ("in", "opt") else "output"
            placed[operand.name] = (space, len(spaces[space]))
            spaces[space].append(guarded(value))
        else:
            assert operand.kind in ("opt", "optout"), f"{op} needs {operand.name}"
            continue
        space, index = placed[operand.name]
        patches.append((operand.offset, SPACES[space], index, 1))  # values[1] is the 0 below
        if operand.kind in ("out", "optout"):
            outputs.append(spaces[space][index])
    assert not given, f"{op} has no {sorted(given)}"
    step = (row.index, kernel.index if kernel else -1, 0)
    header = (MAGIC, ABI, 1, 1, 0, 0, 1, 0, len(patches), len(args), len(spaces["input"]), len(spaces["output"]))
    words = array("q", [*header, 0, 0, 0, *step, *(word for patch in patches for word in patch)])
    with Plan(library, words.tobytes() + bytes(args), []) as plan, Context(plan, threads) as context:
        context.bind([])
        context.run(0, 1, spaces["input"], spaces["output"])
    return tuple(outputs)


def padded(items: Sequence[int], count: int = 8) -> list[int]:
    """The value of an array field of which only the first entries count."""
    return [*items, *[0] * (count - len(items))]
