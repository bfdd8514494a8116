"""Weights of integer products, in the order in which their kernels read them.

Read csrc/kernels/qgemm.h and csrc/kernels/qdepthwise.h first.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep.files import aligned
from q7x2_ep.ir.shape import Dim, ceildiv

MIN_TILED = 48, 1 << 13  # rows of b, elements of it
LANE = 128  # what weights of one sign may add up to in a lane: 255 times that is an int16


def qgemm_room(k: Dim) -> Dim:
    """What a kernel needs for a row of k. Source: csrc/kernels/qgemm.h. Units: bytes."""
    return ceildiv(k, 64) * 128 + 64


def panel_bytes(kernel: Any, k: Dim) -> Dim:
    """Of a panel of a matrix (k, n), in pairs or in quads alone. Source: csrc/kernels/qgemm.h."""
    quads = 1 + ceildiv(k, 64) * 16
    return kernel.nr * 4 * (ceildiv(k, 2) if kernel.dtypes == "i16" else quads)


def pack_taps(
    w: np.ndarray,
    scale: Optional[np.ndarray],
    bias: Optional[np.ndarray],
    stride: Optional[int],
    kernel: Any,
) -> tuple[np.ndarray, int]:
    """Weights (C, kh, kw), int16, in blocks of channels with their scales and biases, and in how
    many parts: csrc/kernels/qdepthwise.h. stride: of neighbours that share a run, if any may.
    """
    (channels, kh, kw), nr = w.shape, kernel.nr
    size, limits = (2, np.iinfo(np.int16)) if kernel.dtypes == "i16" else (4, np.iinfo(np.int8))
    groups = -(-kw // size)
    outs = 1 if stride is None or groups * size - kw < stride else 2
    parts, left = [], w
    while not parts or left.any():
        parts.append(np.clip(left, limits.min, limits.max))
        left = left - parts[-1]
    blocks = -(-channels // nr)
    order = np.arange(nr).reshape(-1, 4, 4).transpose(1, 0, 2).reshape(-1)

    def turned(values: np.ndarray) -> np.ndarray:
        """Numbers by channel, (.., C), as (blocks, .., nr) in the order of zipped bytes."""
        padded = np.zeros((*values.shape[:-1], blocks * nr), values.dtype)
        padded[..., :channels] = values
        return np.moveaxis(padded.reshape(*values.shape[:-1], blocks, nr), -2, 0)[..., order]

    def row(values: Union[np.ndarray, float, None], default: float) -> np.ndarray:
        return np.broadcast_to(np.ravel(default if values is None else values), (channels,))

    runs = np.zeros((kh, groups * size, len(parts), outs, channels), limits.dtype)
    for part, out in np.ndindex(len(parts), outs):
        start = out * (stride or 0)
        runs[:, start : start + kw, part, out] = parts[part].transpose(1, 2, 0)
    runs = runs.reshape(kh, groups, size, len(parts), outs, channels).transpose(0, 1, 3, 4, 2, 5)
    rows = [
        turned(w.sum((1, 2), dtype=np.int32)),
        turned(row(scale, 1.0).astype(np.float32)),
        turned(row(bias, 0.0).astype(np.float32)),
        np.ascontiguousarray(np.moveaxis(turned(runs), -2, -1)),
    ]
    whole = [np.ascontiguousarray(each).reshape(blocks, -1).view(np.int8) for each in rows]
    packed = _room(blocks, sum(each.shape[1] for each in whole))
    packed[...] = np.concatenate(whole, 1)
    return packed, len(parts)


def fits_tiles(k: int, n: int) -> bool:
    """Whether a product of bytes by b (k, n) gains by tiles of AMX, whose steps are 64 long.
    Source: docs/decisions.md 134.
    """
    least, elements = MIN_TILED
    return k >= least and k * n >= elements


def reads_windows(kernel: Any) -> bool:
    """Whether a kernel of qgemm takes rows that are windows: csrc/kernels/qgemm.h."""
    return bool(kernel.dtypes == "u8" and kernel.isa != "amx")


def side_by_side(
    w: np.ndarray, zeros: Optional[np.ndarray], groups: int, kernel: Any
) -> tuple[np.ndarray, Optional[np.ndarray], int]:
    """Weights (M, C / groups, taps) as the matrices of the groups, (K, N) each, side by side, N in
    whole panels where there are several; with zeros for every column, and how many groups are left:
    small ones are one larger product whose other weights are zero, as many as fill its panels.
    """
    filters, channels, taps = w.shape
    if groups == 1:
        matrix = w.transpose(0, 2, 1).reshape(filters, -1).T
        return matrix, None if zeros is None else np.broadcast_to(zeros.reshape(-1), filters), 1
    each, step = filters // groups, 64 if kernel.isa == "amx" else 4
    halved = kernel.isa != "amx" and kernel.dtypes != "i16"  # a last panel of few columns

    def cost(together: int) -> int:
        """In quads of k by half panels; a row of sums takes as long as 16 of those to finish."""
        k, n = together * channels * taps, together * each
        half = ceildiv(n, kernel.nr // 2)
        halves = half if halved else ceildiv(half, 2) * 2
        return groups // together * (ceildiv(k, step) * step // 4 * halves + 16)

    together = min((n for n in range(1, groups + 1) if groups % n == 0), key=cost)
    groups //= together
    n = -(-together * each // kernel.nr) * kernel.nr
    columns = np.zeros((groups, n), w.dtype)
    columns[:, : together * each] = (
        0 if zeros is None else np.broadcast_to(zeros.reshape(-1), filters).reshape(groups, -1)
    )
    wide = np.empty((taps, together, channels, groups, n), w.dtype)
    wide[...] = columns
    parts = w.reshape(groups, together, each, channels, taps)
    for i in range(together):
        wide[:, i, :, :, i * each : (i + 1) * each] = parts[:, i].transpose(3, 2, 0, 1)
    matrix = wide.reshape(taps * together * channels, groups * n)
    return matrix, None if zeros is None else columns.reshape(-1), groups


def centred(weight: np.ndarray, zeros: Optional[np.ndarray]) -> np.ndarray:
    """weight (K, N) less its zeros, one or N."""
    return weight.astype(np.int16) - (0 if zeros is None else zeros.reshape(-1).astype(np.int16))


def pack(
    weight: np.ndarray, zeros: Optional[np.ndarray], kernel: Any
) -> tuple[np.ndarray, Optional[np.ndarray]]:
    """weight (K, N) of bytes in panels as the kernel wants them: csrc/kernels/qgemm.h; and what
    zeros are left.
    """
    (k, n), nr = weight.shape, kernel.nr
    quads, panels = -(-k // 64) * 16, -(-n // nr)
    if kernel.dtypes == "i16":
        return in_groups(centred(weight, zeros), -(-k // 2), 2, nr), None
    rest = None
    is_centred = weight.dtype == np.int8 and (zeros is None or not zeros.any())
    small = weight if is_centred else centred(weight, zeros)
    if not is_centred and small.size and (small.min() < -128 or small.max() > 127):
        low = np.int16(128 if weight.dtype == np.uint8 else 0)
        rest = np.zeros(panels * nr, np.int32)
        rest[:n] = -low if zeros is None else zeros.reshape(-1).astype(np.int16) - low
        small = weight.astype(np.int16) - low
    sums = np.zeros(panels * nr, np.int32)
    sums[:n] = small.sum(0, dtype=np.int32)
    end = nr * 4 * (1 + quads)
    extras = np.zeros((panels, 0), np.int8)
    if kernel.dtypes == "u8x2":
        small, extras = _relieved(small, quads // 4, nr)
    packed = _room(panels, end + extras.shape[1])
    packed[:, : nr * 4] = sums.reshape(panels, nr).view(np.int8)
    grouped = in_groups(small.astype(np.int8, copy=False), quads, 4, nr)
    packed[:, nr * 4 : end] = grouped.reshape(packed[:, nr * 4 : end].shape)
    packed[:, end:] = extras
    return packed, rest


def _relieved(weight: np.ndarray, chunks: int, nr: int) -> tuple[np.ndarray, np.ndarray]:
    """weight (K, N) less what could saturate, and that as the end of each panel, for two quads at a
    time or, where that takes less time, one: csrc/kernels/qgemm.h.
    """
    panels = -(-weight.shape[1] // nr)
    steps, least, found = 2 * chunks * panels, None, None  # of a vector: two are a panel
    for at_once, instructions in ((2, 10), (1, 12)):  # of a chunk, and 4 of an extra
        small, moved = _moved(weight, chunks, at_once)
        ends, extras = _ends(moved, panels, chunks, nr, at_once)
        cost = steps * instructions + 4 * extras
        if least is None or cost < least:
            least, found = cost, (small, ends)
        if 4 * extras <= 6 * steps:
            break
    return found


class Moved(NamedTuple):
    """Numbers that are taken out of weights (K, N), whose rows and columns these are."""

    row: np.ndarray
    column: np.ndarray
    number: np.ndarray


def _moved(weight: np.ndarray, chunks: int, at_once: int) -> tuple[np.ndarray, Moved]:
    """weight (K, N) in whose lanes neither sign adds up to more than LANE, and what that lacks."""
    k, n = weight.shape
    small = np.zeros((chunks * 16, n), np.int16)
    small[:k] = weight
    # Of int16, the weights of axes 1 and 3.
    lanes = small.reshape(chunks * 4 // at_once, at_once, 2, 2, n)
    total = abs(lanes.sum((1, 3), np.int16)) + np.abs(lanes).sum((1, 3), np.int16)
    step, lane, column = np.nonzero(total > 2 * LANE)
    rows = (step * at_once * 4 + lane * 2)[:, None] + np.array([0, 1, 4, 5])[: 2 * at_once]
    columns = np.broadcast_to(column[:, None], rows.shape)
    values = small[rows, columns]
    order = np.argsort(values, 1)
    rows, values = (np.take_along_axis(each, order, 1) for each in (rows, values))
    number = np.zeros_like(values)
    for sign, largest_first in ((-1, slice(None)), (1, slice(None, None, -1))):
        part = np.maximum(sign * values[:, largest_first], 0)
        left = part.sum(1, np.int16)[:, None] - LANE
        before = np.cumsum(part, 1, np.int16) - part
        number[:, largest_first] += sign * np.clip(left - before, 0, part)
    small[rows, columns] = values - number
    some = np.nonzero(number)
    return small[:k], Moved(rows[some], columns[some], number[some])


def _ends(moved: Moved, panels: int, chunks: int, nr: int, at_once: int) -> tuple[np.ndarray, int]:
    """Numbers as extras behind the panels, and how many extras that is."""
    width = nr // 2  # of a vector: each has its own
    layers, depth = [], np.zeros((panels, 2 * chunks), np.int64)  # extras of a chunk
    while moved.row.size:
        place = moved.row // 16 * (panels * nr) + moved.column
        order = np.lexsort((moved.number, place))
        row, column, number = moved = Moved(*(each[order] for each in moved))
        place, at = place[order], np.arange(row.size)
        first, last = np.searchsorted(place, place), np.searchsorted(place, place, "right") - 1
        # The lowest beside the highest, the second of either kind beside each other.
        choices = [at == first, at == last, at == first + 1, at == last - 1]
        slot = np.select(choices, range(4), -1)
        beside = number + number[np.minimum(first + slot // 2, last)]
        slot[(slot % 2 == 1) & (np.abs(beside) > LANE)] = -1
        now = slot >= 0
        panel, part = column // nr, column % nr // width * chunks + row // 16
        np.maximum.at(depth, (panel[now], part[now]), len(layers) + 1)
        layers.append([each[now] for each in (panel, part, row, column, number, slot)])
        moved = Moved(*(each[~now] for each in moved))
    counts, before = depth.sum(1), np.cumsum(depth, 1) - depth
    heads = -(-(3 + counts) * 4 // 64) * 64
    ends = np.zeros((panels, int((heads + counts * 8 * width).max(initial=0))), np.int8)
    for p in range(panels):
        head = ends[p, : heads[p]].view(np.int32)
        head[:3] = at_once, *depth[p].reshape(2, chunks).sum(1)
        head[3 : 3 + counts[p]] = np.repeat(np.arange(2 * chunks) % max(chunks, 1), depth[p])
        body = ends[p, heads[p] : heads[p] + counts[p] * 8 * width].reshape(-1, 2, 4 * width)
        body[:, 0] = -128  # chooses 0
    for layer, (panel, part, row, column, number, slot) in enumerate(layers):
        extra = before[panel, part] + layer
        at = heads[panel] + extra * 8 * width + column % width * 4 + slot
        ends[panel, at] = row % 16
        ends[panel, at + 4 * width] = number
    return ends, int(counts.sum())


def _room(rows: int, columns: int) -> np.ndarray:
    return aligned(rows * columns).view(np.int8).reshape(rows, columns)


def in_groups(weight: np.ndarray, groups: int, size: int, nr: int) -> np.ndarray:
    """weight (K, N) as (panels, groups, nr, size), k in groups of `size`, which are moved whole
    where they lie side by side. Else one k of each at a time, as numpy's loops are along n then.
    """
    k, n = weight.shape
    panels = -(-n // nr)
    if weight.flags.f_contiguous:
        columns = np.zeros((panels * nr, groups * size), weight.dtype)
        columns[:n, :k] = weight.T
        whole = columns.view(f"u{size * weight.itemsize}").reshape(panels, nr, groups)
        turned = np.ascontiguousarray(whole.transpose(0, 2, 1))
        return turned.view(weight.dtype).reshape(panels, groups, nr, size)
    padded = np.zeros((groups * size, panels * nr), weight.dtype)
    padded[:k, :n] = weight
    rows = padded.reshape(groups, size, panels, nr)
    grouped = np.empty((panels, groups, nr, size), weight.dtype)
    for i in range(size):
        grouped[..., i] = rows[:, i].transpose(1, 0, 2)
    return grouped
