"""Fourier transforms. A number has one part, the real one, or two: the last dim."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep.errors import DataError, ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, at_least, maximum, minimum, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    Guard,
    dims,
    fresh,
    known,
    normal_axis,
    require_dtype,
    where_is,
)
from q7x2_ep.ops.window import half_as_single

MAX_LENGTH = 1 << 15  # of a native transform, which works in some MB then,
MAX_PRIME = 128  # and its largest factor: a number costs so many products
MAX_UNKNOWN = 1024  # numbers of one whose length a feed tells, and may be a prime


@op("DFT")
class DFT:
    """y[k] = the sum over j < n of x[j] exp(-2 pi i j k / n), along `axis`; inverse: of
    x[j] exp(2 pi i j k / n) / n. x is cut, or filled up with zeros, to n numbers.

    onesided: of real numbers y has the k up to n / 2. An inverse is given those and makes real
    numbers; imaginary parts that must be 0 are not read.
    exact: true where a length that feeds tell may be any, else it is up to MAX_UNKNOWN.
    Shapes: x (.., size, .., parts); y has n or n / 2 + 1 numbers for `size`.
    """

    signature = "x: F, n?: index, axis?: int64 -> y"
    attributes = {"inverse": 0, "onesided": 0, "exact": None}
    own = ("exact",)

    def infer(node: Node) -> list[Type]:
        dtype, shape = node.inputs[0].dtype, dims(node)
        form = form_of(node)
        if form is None:
            return [Type(dtype, fresh(node, 0, len(shape)))]
        numbers = (*shape[: form.axis], form.bins, *shape[form.axis + 1 : -1])
        return [Type(dtype, (*numbers, form.parts))]

    def guards(node: Node) -> list[Guard]:
        form = form_of(node)
        if form is None:
            return []
        return [(maximum(form.n, 1), form.n, "the length of a transform"), *part_guards(node)]

    def assumptions(node: Node) -> list[Guard]:
        form = form_of(node)
        return [] if form is None else length_assumptions(node, form.n)

    @half_as_single
    def reference(
        node: Node, x: np.ndarray, n: Optional[np.ndarray] = None, axis: Optional[np.ndarray] = None
    ) -> np.ndarray:
        at = checked_axis(node, -2 if axis is None else int(axis.item()), x.ndim)
        size = length_of(node, x.shape[at]) if n is None else int(n.item())
        if size < 1:
            raise DataError(f"{where_is(node)} the length of a transform is {size}")
        check_parts(node, x)
        values = as_complex(x)
        if joins(node):
            return np.fft.irfft(values, size, at)[..., None].astype(x.dtype)
        y = as_parts((np.fft.ifft if node.attrs["inverse"] else np.fft.fft)(values, size, at))
        if node.attrs["onesided"]:
            y = y[(slice(None),) * at + (slice(size // 2 + 1),)]
        return y.astype(x.dtype)

    def lower(node: Node, b: Any) -> None:
        form, shape = form_of(node), dims(node)
        if form is None:
            raise UnsupportedOp(f"{where_is(node)} its axis or its length is data")
        size, inner, parts = shape[form.axis], product(shape[form.axis + 1 : -1]), shape[-1]
        outer, read = product(shape[: form.axis]), form.n // 2 + 1 if form.parts == 1 else form.n
        fields: dict[str, Dim] = {}
        for name, numbers, width in (("x", size, parts), ("y", form.bins, form.parts)):
            fields[f"{name}_parts"] = width
            fields[f"{name}_batch_stride"] = numbers * inner * width
            fields[f"{name}_line_stride"] = width if inner != 1 else numbers * width
            fields[f"{name}_stride"] = inner * width
        transform_step(
            b,
            node,
            form.n,
            None,
            batch=1 if inner == 1 else outer,
            lines=outer if inner == 1 else inner,
            x_count=minimum(size, read),
            y_count=form.bins,
            inverse=node.attrs["inverse"],
            **fields,
        )


@op("STFT")
class STFT:
    """The DFT of each frame of a signal: n numbers from f * step on, times a window.

    Shapes: x (B, L, parts), step and n scalars, window (n,); y (B, F, n or n / 2 + 1, 2), F =
    (L - n) / step + 1. A signal (B, L) is real, as for onnxruntime. exact: as DFT.
    """

    signature = "x: F, step: index, window?: F, n?: index -> y"
    attributes = {"onesided": 1, "exact": None}
    own = ("exact",)

    def infer(node: Node) -> list[Type]:
        dtype, frames = node.inputs[0].dtype, frames_of(node)
        if frames is None:
            return [Type(dtype, fresh(node, 0, 4))]
        bins = frames.n // 2 + 1 if node.attrs["onesided"] else frames.n
        return [Type(dtype, (dims(node)[0], frames.count, bins, 2))]

    def guards(node: Node) -> list[Guard]:
        frames = frames_of(node)
        if frames is None:
            return []
        n, samples, window = frames.n, dims(node)[1], node.input(2)
        found = [(maximum(n, 1), n, "the length of a transform")]
        if not at_least(samples - n, 0):
            found.append((maximum(n - samples, 0), 0, f"{samples} samples, frames of {n}"))
        if window is not None:
            found.append((product(dims(node, 2)), n, "a window of another length than the frames"))
        return found if len(dims(node)) == 2 else [*found, *part_guards(node)]

    def assumptions(node: Node) -> list[Guard]:
        frames = frames_of(node)
        return [] if frames is None else length_assumptions(node, frames.n)

    @half_as_single
    def reference(
        node: Node,
        x: np.ndarray,
        step: np.ndarray,
        window: Optional[np.ndarray] = None,
        n: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        samples, hop = x.shape[1], int(step.item())
        size = int(n.item()) if n is not None else samples if window is None else window.size
        if hop < 1 or not 1 <= size <= samples or (window is not None and window.size != size):
            given = "no window" if window is None else f"a window of {window.size}"
            raise DataError(
                f"{where_is(node)} {samples} samples, frames of {size} and {given}, a step of {hop}"
            )
        signal = x if x.ndim == 3 else x[..., None]
        check_parts(node, signal)
        values = as_complex(signal)
        frames = np.lib.stride_tricks.sliding_window_view(values, size, 1)[:, ::hop]
        y = as_parts(np.fft.fft(frames if window is None else frames * window.reshape(-1)))
        return y[:, :, : size // 2 + 1 if node.attrs["onesided"] else size].astype(x.dtype)

    def lower(node: Node, b: Any) -> None:
        frames, shape = frames_of(node), dims(node)
        if frames is None:
            raise UnsupportedOp(f"{where_is(node)} its step or its length is data")
        parts, bins = shape[2] if len(shape) == 3 else 1, node.output.shape[2]
        transform_step(
            b,
            node,
            frames.n,
            node.input(2),
            batch=shape[0],
            lines=frames.count,
            x_count=frames.n,
            y_count=bins,
            x_parts=parts,
            y_parts=2,
            x_batch_stride=shape[1] * parts,
            x_line_stride=frames.step * parts,
            x_stride=parts,
            y_batch_stride=frames.count * bins * 2,
            y_line_stride=bins * 2,
            y_stride=2,
            inverse=0,
        )


class Form(NamedTuple):
    """A DFT to `bins` numbers of so many parts along `axis`."""

    axis: int
    n: Dim
    bins: Dim
    parts: int


def form_of(node: Node) -> Optional[Form]:
    """None where length or axis are data."""
    shape = dims(node)
    n, axis = (known(node.input(i)) for i in (1, 2))
    if any(value is not None and found is None for value, found in zip(node.inputs[1:], (n, axis))):
        return None
    at = -2 if axis is None else axis[0]
    if not isinstance(at, int):
        return None
    at = checked_axis(node, at, len(shape))
    size = length_of(node, shape[at]) if n is None else n[0]
    one_side = node.attrs["onesided"] and not node.attrs["inverse"]
    return Form(at, size, size // 2 + 1 if one_side else size, 1 if joins(node) else 2)


def checked_axis(node: Node, axis: int, ndim: int) -> int:
    """Raises: ModelError where there is no such axis, or it is the parts."""
    at = normal_axis(node, axis, ndim)
    if at == ndim - 1:
        raise ModelError(f"{where_is(node)} axis {axis} are the parts of numbers, not numbers")
    return at


def joins(node: Node) -> bool:
    """Whether a DFT makes real numbers of one side."""
    return bool(node.attrs["inverse"] and node.attrs["onesided"])


def length_of(node: Node, size: Dim) -> Dim:
    """Of a DFT whose length is not given: of one side an even one."""
    return 2 * (size - 1) if joins(node) else size


class Frames(NamedTuple):
    """`count` frames of n numbers, the first ones of each `step` apart."""

    n: Dim
    step: int
    count: Dim


def frames_of(node: Node) -> Optional[Frames]:
    """None where step or length are data."""
    if len(dims(node)) not in (2, 3):
        raise ModelError(f"{where_is(node)} a signal {dims(node)}, wanted (batch, samples, parts)")
    samples, window = dims(node)[1], node.input(2)
    step, n = known(node.input(1)), known(node.input(3))
    if step is None or not isinstance(step[0], int) or (node.input(3) is not None and n is None):
        return None
    if step[0] < 1:
        raise ModelError(f"{where_is(node)} a step of {step[0]}")
    size = n[0] if n is not None else samples if window is None else product(dims(node, 2))
    return Frames(size, step[0], (samples - size) // step[0] + 1)


def parts_of(node: Node) -> tuple[int, ...]:
    """How many parts the numbers of x may have."""
    if node.op == "STFT" or not node.attrs["onesided"]:
        return (1, 2)
    return (2,) if node.attrs["inverse"] else (1,)


def part_text(node: Node, parts: Dim) -> str:
    return f"numbers of {parts} parts, wanted {' or '.join(map(str, parts_of(node)))}"


def part_guards(node: Node) -> list[Guard]:
    """The last dim of x are the parts of a number."""
    parts = dims(node)[-1]
    return [(product([parts - n for n in parts_of(node)]), 0, part_text(node, parts))]


def length_assumptions(node: Node, n: Dim) -> list[Guard]:
    if isinstance(n, int) or node.attrs["exact"]:
        return []
    return [(maximum(n - MAX_UNKNOWN, 0), 0, f"a transform of more than {MAX_UNKNOWN} numbers")]


def check_parts(node: Node, x: np.ndarray) -> None:
    """Raises: DataError where the numbers of x have other parts."""
    if x.shape[-1] not in parts_of(node):
        raise DataError(f"{where_is(node)} {part_text(node, x.shape[-1])}")


def as_complex(x: np.ndarray) -> np.ndarray:
    """Numbers whose parts are the last dim, in the precision of x; real ones stay real."""
    if x.shape[-1] == 1:
        return x[..., 0]
    return np.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))[..., 0]


def as_parts(y: np.ndarray) -> np.ndarray:
    return np.stack([y.real, y.imag], -1)


def transform_step(b: Any, node: Node, n: Dim, window: Optional[Value], **fields: Dim) -> None:
    """y = the transforms of lines of x, the first input, of n numbers.

    Raises: UnsupportedOp for what is the host's: other dtypes, and lengths that are large, have
    large factors, or may be any.
    """
    x, y = node.inputs[0], node.output
    require_dtype(node, x.dtype, F32)
    if isinstance(n, int):
        is_hosts = n > MAX_LENGTH or largest_factor(n) > MAX_PRIME
    else:
        is_hosts = bool(node.attrs["exact"])
    if is_hosts:
        raise UnsupportedOp(f"{where_is(node)} has no kernel for {n} numbers")
    if fields["x_parts"] not in (1, 2):
        raise UnsupportedOp(f"{where_is(node)} may have numbers of one part or two")
    b.step(
        "dft",
        kernel="dft",
        x=b.contiguous(x),
        window=window,
        y=y,
        turns=8 * n,
        work=b.threads * 24 * n * b.kernel("dft").nr,
        n=n,
        **fields,
    )


def largest_factor(n: int) -> int:
    """The largest prime in n, or 1."""
    largest, r = 1, 2
    while r * r <= n:
        if n % r:
            r += 1
        else:
            largest, n = r, n // r
    return max(largest, n)
