"""Plan -> Code: what C reads, with the weights packed for the kernels that were chosen."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.backend.cpu import library as native
from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.backend.cpu.executor import Code
from q7x2_ep.dtypes import FLOAT
from q7x2_ep.files import aligned, can_be_given_back
from q7x2_ep.ir.core import Graph, Value
from q7x2_ep.plan.encode import encode
from q7x2_ep.plan.memory import Storage
from q7x2_ep.plan.parts import AnyPack, Operand, Pack, Plan, Step, WinogradPack

PACK_BYTES = 1 << 23  # of weights that are packed in one go: of 32 MB, 24 MB more at once
MOST_PACKERS = 8  # Python hands the weights out: 0.3 of the 3 ms that 8 MB take


def compiled(
    library: native.Library,
    plan: Plan,
    symbols: list[str],
    kept: Collection[Value] = (),
    room: Optional[np.ndarray] = None,
) -> Code:
    """Encodes a plan and packs its weights, which leave it. kept: constants that others read too.
    room: where they are packed, by default in memory of their own.

    Raises: errors of errors.py only.
    """
    encoded = encode(plan, library.target, symbols)
    packed = aligned(plan.packed_bytes) if room is None else room
    pack(library, plan, packed, {*plan.constants, *kept})
    return Code(encoded, [packed, *_readable(plan)])


def pack(library: native.Library, plan: Plan, packed: np.ndarray, kept: set[Value]) -> None:
    """Packs the weights of a plan, a few at a time, so that few need be in memory twice. Each of
    some threads packs others: two that share one weight wait for the same pages.

    A weight leaves the graph as soon as it is packed, except for those kept.
    """
    uses = Counter(p.weight for p in plan.packs)
    lock = threading.Lock()

    def pack_group(group: list[AnyPack]) -> None:
        _pack_group(library, group, packed)
        with lock:
            uses.subtract(each.weight for each in group)
            for weight in {each.weight for each in group} - kept:
                weight.const = weight.const if uses[weight] else None

    share(pack_group, _groups(plan.packs))


def share(work: Callable[[Any], None], items: list[Any]) -> None:
    """Works on every item; each goes to the next thread that is free, the caller's among them.

    Raises: what work has raised.
    """
    left = iter(items)
    errors: list[BaseException] = []

    def take() -> None:
        try:
            for item in left:
                work(item)
        except BaseException as error:
            errors.append(error)

    threads = min(len(items), MOST_PACKERS, default_threads()) if len(items) > 1 else 1
    helpers = [threading.Thread(target=take) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    take()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]


def _groups(packs: list[AnyPack]) -> list[list[AnyPack]]:
    """Of PACK_BYTES each, or little more."""
    groups: list[list[AnyPack]] = []
    size = PACK_BYTES
    for p in packs:
        if size >= PACK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(p)
        size += p.array.nbytes
    return groups


def _pack_group(library: native.Library, packs: list[AnyPack], packed: np.ndarray) -> None:
    """A small plan of steps that pack, run once."""
    loading = Plan(Graph("load"))
    total = packed.nbytes
    into = Storage("packed", total, "output", 0)
    arrays: dict[tuple, np.ndarray] = {}  # by what it is of: two packs may read one
    for p in packs:
        arrays[_source(p)] = _readable_matrix(p.array)
        if p.factors is not None:
            arrays[(*_source(p), "factors")] = np.require(p.factors, requirements=["C", "A"])
    for number, (weight, *_) in enumerate(arrays, 1):
        loading.constants.append(weight)
        loading.storages.append(Storage(weight.name, 0, "constant", number))
    places = {key: Operand(storage) for key, storage in zip(arrays, loading.storages)}
    for p in packs:
        source, factors = places[_source(p)], places.get((*_source(p), "factors"))
        loading.steps.append(_pack_step(p, arrays[_source(p)], source, factors, into))
    loading.graph.outputs = [Value("packed", dtypes.UINT8, (total,))]
    constants = [np.empty(0, np.uint8), *arrays.values()]
    encoded = encode(loading, library.target, [])
    with (
        native.Plan(library, encoded.blob, constants) as once,
        native.Context(once, 1) as context,
    ):
        context.bind([])
        context.run(0, len(loading.steps), [], [packed])


def _source(p: AnyPack) -> tuple:
    return (*p[:3], p.array.dtype)


def _pack_step(
    p: AnyPack,
    array: np.ndarray,
    source: Operand,
    factors: Optional[Operand],
    into: Storage,
) -> Step:
    """The step of one pack. Pages of mapped files that cannot be written leave memory: nobody reads
    them again.
    """
    written = {"factors": factors, "packed": Operand(into, p.offset)}
    if isinstance(p, WinogradPack):
        op, operands = "pack_winograd", {"w": source, **written}
        fields = {"C": p.channels, "planes": p.planes, "kh": p.kh, "kw": p.kw, "stride": p.stride}
    else:
        op, k_stride, n_stride = "pack_b", *_strides(p, array)
        start = p.column * n_stride * array.itemsize
        operands = {"b": source._replace(offset=start), **written}
        fields = {"k": p.k, "k_stride": k_stride, "n_stride": n_stride, "dtype": p.dtype}
        fields.update(width=p.width, first=p.first, taps=p.taps, tap_stride=p.tap_stride)
        fields["b_dtype"] = FLOAT if array.dtype == np.float32 else p.dtype
    fields.update(nr=p.nr, n=p.n, drops=int(can_be_given_back(array)))
    return Step(op, None, operands, fields, p.weight.name, (p.weight.name,))


def _strides(p: Pack, array: np.ndarray) -> tuple[int, int]:
    """Of k and n; of a weight that is a transposed array (folded Transpose) its own."""
    if not _is_transposed(array):
        return p.k_stride, p.n_stride
    rows, columns = (stride // array.itemsize for stride in array.strides)
    return (rows, columns) if p.n_stride == 1 else (columns, rows)


def _readable_matrix(matrix: Any) -> np.ndarray:
    array = np.asarray(matrix)
    return array if _is_transposed(array) else np.ascontiguousarray(array)


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
