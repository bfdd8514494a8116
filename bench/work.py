"""What a step has to do at least: floating-point operations, and bytes that it reads and writes.

Multiply-adds count as two; of all that is no product, which is bound by bytes, an element of the
largest operand as one. Bytes are those of every operand once, as if nothing were in a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2, prod
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.shape import Expr, evaluate, symbols
from q7x2_ep.ops.window import PADS, axis_of, meeting
from q7x2_ep.ops.winograd import products_along, products_of, tiled_axes
from q7x2_ep.plan.memory import THREADS
from q7x2_ep.plan.parts import Step
from q7x2_ep.session import InputSpec


class Work(NamedTuple):
    """Of one step, or of several. written, constant: of the bytes, those that are written, and
    those of weights and other constants, which a model that is larger than a cache reads from
    beyond it.
    """

    flops: float
    bytes: float
    written: float
    constant: float = 0.0

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / max(self.bytes, 1)


def total(works: Iterable[Work]) -> Work:
    return Work(*map(sum, zip(*works, Work(0, 0, 0))))


def visible(f: Any) -> int:
    """Pairs of query and key that an attention looks at; lengths and offsets count as none."""
    i = np.arange(f.Sq) + f.offset
    begin = np.zeros(f.Sq, int) if f.left < 0 else np.maximum(i - f.left, 0)
    end = np.full(f.Sq, f.Skv) if f.right < 0 else np.minimum(i + f.right + 1, f.Skv)
    return int(np.maximum(end - begin, 0).sum())


def windows(f: Any, tiled: str = "") -> int:
    """Taps that meet x, of all windows of a convolution, for one channel of x and y; along the
    axes of `tiled` the products that Winograd makes instead.
    """
    fields = {"kd": 1, "kh": 3, "kw": 3, **vars(f)}  # what qdepthwise is without
    if hasattr(f, "stride"):
        fields.update(stride_h=f.stride, stride_w=f.stride)
    axes = {name: axis_of(fields, name) for name in PADS if name.upper() in fields}
    met = (
        products_along(axis) if name in tiled else sum(meeting(axis)) for name, axis in axes.items()
    )
    return int(f.N * prod(met))


def transformed(f: Any) -> int:
    """Weights that Winograd has of each filter and channel, in one plane: a line's are as many as
    products for two pixels.
    """
    return 16 if f.kh == 3 else products_of(f.kw)


TAPS = {"nearest": 1, "linear": 2, "cubic": 4}  # of interpolation, along each axis
PRODUCTS: dict[str, Callable[[Any], int]] = {  # op: multiply-adds
    "gemm": lambda f: f.m * f.n * f.k * (1 + f.gated),
    "expert_gemm": lambda f: f.m * f.n * f.k * (1 + f.gated),
    "qgemm": lambda f: prod(f.batch[: f.ndim]) * f.m * f.n * f.k,
    "block_gemm": lambda f: f.m * f.n * f.k,
    "block_qgemm": lambda f: f.m * f.n * f.k,
    "matmul": lambda f: prod(f.batch[: f.ndim]) * f.m * f.n * f.k,
    "matmul_plain": lambda f: prod(f.batch[: f.ndim]) * f.m * f.n * f.k,
    "conv": lambda f: windows(f) * f.M * f.C // f.groups,
    "conv_planes": lambda f: windows(f) * f.M * f.C // f.groups,
    "conv_last": lambda f: windows(f) * f.M * f.C // f.groups,
    "conv_direct": lambda f: windows(f) * f.M * f.C // f.groups,
    "winograd": lambda f: windows(f) * f.M * f.C // f.groups,  # of a direct sum
    "qconv_last": lambda f: windows(f) * f.M * f.C // f.groups,
    "qdepthwise": lambda f: windows(f) * f.C,
    "depthwise": lambda f: windows(f) * f.C * f.width,
    "attention": lambda f: f.B * f.H * visible(f) * (f.D + f.Dv),
    "linear_attention": lambda f: 3 * f.B * f.T * f.Hq * f.Dk * f.Dv,
    "rnn": lambda f: f.S * f.B * f.D * f.gates * f.H * f.H,
    "grid_sample": lambda f: f.N * f.C * f.points * TAPS[f.interpolation] ** f.axes,
    "mix": lambda f: f.batch * f.C * f.M * f.n,
    # as FFTW counts: 2.5 n log2 n where x and y have two parts, half of it where one has one
    "dft": lambda f: int(0.625 * f.batch * f.lines * f.n * log2(f.n) * f.x_parts * f.y_parts),
}
PACKED: dict[str, Callable[[Any], int]] = {  # op: weights that are packed, which have no size
    "gemm": lambda f: f.n * f.k * (1 + f.gated),
    "expert_gemm": lambda f: f.n * f.k * (1 + f.gated) * min(f.experts, f.m),
    "conv_last": lambda f: f.M * f.C // f.groups * f.kd * f.kh * f.kw,
    "conv_direct": lambda f: f.M * f.C // f.groups * f.kh * f.kw,
    "winograd": lambda f: transformed(f) * f.M * f.C * f.kd // f.groups,
    "rnn": lambda f: f.D * f.gates * f.H * f.H,
}
IMAGES = ("conv_last", "conv_direct", "winograd", "depthwise")  # may lie among other channels
SELECTING = ("copy", "gather", "gather_elements", "gather_nd")  # read no more than they write


def of(step: Step, sizes: Mapping[str, int]) -> Work:
    """sizes: the values of all symbols, and of THREADS."""
    f = _fields(step, sizes)
    read: dict[Any, int] = {}
    written: dict[Any, int] = {}
    outputs = _outputs(step)
    for name, operand in step.operands.items():
        if operand is None or operand.storage.name == "scratch":
            continue
        size = operand.storage.bytes if operand.size is None else operand.size
        if operand.size is None and step.op in IMAGES and name in ("x", "y", "residual"):
            size = 4 * _elements(f, name)
        into = written if name in outputs else read
        place = (operand.storage, repr(operand.offset) if operand.size is not None else "")
        into[place] = max(into.get(place, 0), _value(size, sizes))
    moved, constant = sum(written.values()), 0
    if step.op in SELECTING:
        moved += sum(min(size, sum(written.values())) for size in read.values())
    else:
        moved += sum(read.values())
        constant = sum(size for (storage, _), size in read.items() if storage.space == "constant")
    if step.op in PACKED:
        packed = dtypes.size(getattr(f, "b_dtype", dtypes.FLOAT)) * PACKED[step.op](f)
        moved, constant = moved + packed, constant + packed
    multiply_adds = PRODUCTS.get(step.op)
    flops = (
        2 * multiply_adds(f)
        if multiply_adds
        else max([*read.values(), *written.values()], default=0) / 4
    )
    return Work(float(flops), float(moved), float(sum(written.values())), float(constant))


def _fields(step: Step, sizes: Mapping[str, int]) -> Any:
    return SimpleNamespace(**{name: _value(field, sizes) for name, field in step.fields.items()})


def _elements(f: Any, name: str) -> int:
    """Those of an operand of a convolution: x, or y and what is added to it."""
    if name == "x":
        return int(f.N * f.C * getattr(f, "D", 1) * f.H * f.W)
    return int(f.N * getattr(f, "M", f.C) * getattr(f, "OD", 1) * f.OH * f.OW)


def made(step: Step, sizes: Mapping[str, int]) -> Work:
    """What a step does itself: Winograd makes fewer products."""
    each = of(step, sizes)
    if step.op != "winograd":
        return each
    f = _fields(step, sizes)
    products = windows(f, tiled_axes(vars(f))) * f.M * f.C // f.groups
    return each._replace(flops=2.0 * products)


def sizes_of(
    inputs: Iterable[InputSpec], feeds: Mapping[str, np.ndarray], threads: int
) -> dict[str, int]:
    """The symbols that a feed gives a value, and THREADS."""
    sizes = {THREADS: threads}
    for spec in inputs:
        for name, size in zip(spec.symbols, feeds[spec.name].shape):
            if name is not None:
                sizes[name.strip("'")] = size
    return sizes


def sizes(step: Step) -> list[int]:
    """m, n and k of a product without symbols."""
    return [_value(step.fields[name], {}) for name in "mnk"]


def is_sized(step: Step, sizes: Mapping[str, int]) -> bool:
    """Whether these are all sizes of a step; what only data tells is not among them."""
    operands = [operand for operand in step.operands.values() if operand is not None]
    stored = [number for operand in operands for number in (operand.storage.bytes, operand.size)]
    return _symbols([*step.fields.values(), *stored]) <= sizes.keys()


def _symbols(field: Any) -> set[str]:
    if isinstance(field, (list, tuple)):
        return set().union(*map(_symbols, field))
    return symbols(field) if isinstance(field, Expr) else set()


def _outputs(step: Step) -> set[str]:
    from q7x2_ep.backend.cpu.library import load

    row = load().target.ops[step.op]
    return {operand.name for operand in row.operands if operand.kind in ("out", "optout")}


def _value(field: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(field, (list, tuple)):
        return [_value(each, sizes) for each in field]
    return evaluate(field, sizes) if isinstance(field, Expr) else field
