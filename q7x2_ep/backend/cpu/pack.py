"""Plan -> Code: what C reads, with the weights packed for the kernels that were chosen."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Collection

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.backend.cpu import library as native
from q7x2_ep.backend.cpu.executor import PACKED_ALIGN, Code
from q7x2_ep.backend.memory import mapping
from q7x2_ep.ir.core import Graph, Value
from q7x2_ep.plan.encode import encode
from q7x2_ep.plan.memory import Storage
from q7x2_ep.plan.parts import Operand, Pack, Plan, Step

PACK_BYTES = 1 << 23  # of weights that are packed in one go: of 32 MB, 24 MB more at once


def compiled(
    library: native.Library,
    plan: Plan,
    symbols: list[str],
    threads: int,
    kept: Collection[Value] = (),
) -> Code:
    """Encodes a plan and packs its weights, which leave it. kept: constants that others read too.

    Raises: errors of errors.py only.
    """
    encoded = encode(plan, library.target, symbols)
    packed = pack(library, plan, threads, {*plan.constants, *kept})
    return Code(encoded, [packed, *_readable(plan)])


def pack(library: native.Library, plan: Plan, threads: int, kept: set[Value]) -> np.ndarray:
    """The packed weights of a plan, made a few at a time, so that few need be in memory twice.

    A weight leaves the graph as soon as it is packed, except for those kept.
    """
    total = plan.packed_bytes
    room = np.empty(total + PACKED_ALIGN, np.uint8)
    start = -room.ctypes.data % PACKED_ALIGN
    packed = room[start : start + total]
    group: list[Pack] = []
    uses = Counter(p.weight for p in plan.packs)
    for p in plan.packs:
        group.append(p)
        if p is plan.packs[-1] or sum(each.array.nbytes for each in group) >= PACK_BYTES:
            _pack_group(library, group, packed, threads)
            _drop_pages([each.array for each in group])
            uses.subtract(each.weight for each in group)
            for weight in {each.weight for each in group} - kept:
                weight.const = weight.const if uses[weight] else None
            group = []
    return packed


def _pack_group(
    library: native.Library, packs: list[Pack], packed: np.ndarray, threads: int
) -> None:
    """A small plan of pack_b steps, run once."""
    loading = Plan(Graph("load"))
    total = packed.nbytes
    into = Storage("packed", total, "output", 0)
    matrices = {(p.weight, p.matrix): p.array for p in packs}
    for number, (weight, _) in enumerate(matrices, 1):
        loading.constants.append(weight)
        loading.storages.append(Storage(weight.name, 0, "constant", number))
    places = dict(zip(matrices, loading.storages))
    loading.steps = [_pack_step(p, places[p.weight, p.matrix], into) for p in packs]
    loading.graph.outputs = [Value("packed", dtypes.UINT8, (total,))]
    dense = [w if _is_transposed(w) else np.ascontiguousarray(w) for w in matrices.values()]
    constants = [np.empty(0, np.uint8), *dense]
    encoded = encode(loading, library.target, [])
    with (
        native.Plan(library, encoded.blob, constants) as once,
        native.Context(once, threads) as context,
    ):
        context.bind([])
        context.run(0, len(loading.steps), [], [packed])


def _drop_pages(weights: list[np.ndarray]) -> None:
    """Give back the memory of mapped model files: what is packed is not read there again."""
    for weight in weights:
        owner = mapping(weight)
        if owner is not None and hasattr(mmap, "MADV_DONTNEED"):
            owner.madvise(mmap.MADV_DONTNEED)


def _pack_step(p: Pack, source: Storage, into: Storage) -> Step:
    """One pack_b step. A weight that is a transposed array (folded Transpose) is read through its
    strides.
    """
    operands = {"b": Operand(source), "packed": Operand(into, p.offset)}
    k_stride, n_stride = p.k_stride, p.n_stride
    array = p.array
    if _is_transposed(array):
        rows, columns = (stride // array.itemsize for stride in array.strides)
        k_stride, n_stride = (rows, columns) if p.n_stride == 1 else (columns, rows)
    fields = {"k": p.k, "n": p.n, "k_stride": k_stride, "n_stride": n_stride}
    fields.update(width=p.width, first=p.first, taps=p.taps, tap_stride=p.tap_stride)
    return Step("pack_b", p.kernel, operands, fields, p.weight.name, (p.weight.name,))


def _is_transposed(array: np.ndarray) -> bool:
    return array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous


def _readable(plan: Plan) -> list[np.ndarray]:
    """The constants as kernels can read them, dense and aligned, which a view of a model file may
    not be. A table of Gather, often the largest of all, stays where it is: its rows are bytes.
    """
    aligned = {
        at.storage.place()[0]
        for step in plan.steps
        for name, at in step.operands.items()
        if at is not None and (step.op, name) != ("gather", "x")
    }
    indices = {storage.index for storage in aligned if storage.space == "constant"}
    return [
        np.require(value.const, requirements=["C", "A"] if i in indices else ["C"])
        for i, value in enumerate(plan.constants[1:], 1)
    ]
