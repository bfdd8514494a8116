"""Windows over the spatial dims of a tensor: where those of convolutions and pools lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node
from q7x2_ep.ir.shape import Dim, at_least, ceildiv, maximum, minimum
from q7x2_ep.ops.common import Guard, where_is

WINDOW_ATTRIBUTES = {
    "auto_pad": "NOTSET",
    "dilations": None,
    "kernel_shape": None,
    "pads": None,
    "strides": None,
}


class Axis(NamedTuple):
    """The windows along one spatial dim: `out` of them, of `kernel` elements each, over `size`
    elements with `before` and `after` around them.
    """

    size: Dim
    kernel: Dim
    stride: int
    dilation: int
    before: Dim
    after: Dim
    out: Dim

    @property
    def reach(self) -> Dim:
        """From the first element of a window to its last."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def is_flat(self) -> bool:
        """Whether windows leave the dim as it is."""
        return (self.kernel, self.stride, self.before, self.after) == (1, 1, 0, 0)


PADS = {"d": "pad_front", "h": "pad_top", "w": "pad_left"}  # the fields of `before`, by dim
WHOLE = Axis(1, 1, 1, 1, 0, 0, 1)  # a dim of size 1 that is not there


def window_attributes(node: Node, kernel: Sequence[Dim]) -> tuple[Any, Any, Any]:
    """(strides, dilations, pads) with their defaults; of auto_pad SAME_* the pads mean nothing.

    Raises: ModelError where they do not fit the kernel.
    """
    attrs, n = node.attrs, len(kernel)
    strides, dilations = attrs["strides"] or (1,) * n, attrs.get("dilations") or (1,) * n
    pads = attrs["pads"] or (0,) * 2 * n
    own = attrs["kernel_shape"] or kernel
    if (len(strides), len(dilations), len(pads), len(own)) != (n, n, 2 * n, n):
        raise ModelError(
            f"{where_is(node)} strides {strides}, dilations {dilations}, pads {pads} and kernel "
            f"{own} are not all for {n} spatial dims"
        )
    if own != kernel and any(isinstance(k, int) and k != own[i] for i, k in enumerate(kernel)):
        raise ModelError(f"{where_is(node)} kernel_shape {own}, but a kernel of {kernel}")
    if min((1, *strides, *dilations)) < 1 or 0 in kernel:
        raise ModelError(
            f"{where_is(node)} kernel {kernel}, strides {strides} and dilations {dilations} "
            "must be positive"
        )
    if attrs["auto_pad"] not in ("", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"{where_is(node)} auto_pad is {attrs['auto_pad']!r}")
    return strides, dilations, (0,) * 2 * n if attrs["auto_pad"] == "VALID" else pads


def geometry(node: Node, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[Axis]:
    """The windows over tensors of some spatial sizes.

    How many: (in + pads - reach) // stride + 1, rounded up with ceil_mode unless the last would
    start behind the input; ceil(in / stride) with auto_pad SAME_*.
    Raises: ModelError where attributes, or a kernel of known size, do not fit.
    """
    if len(sizes) != len(kernel):
        raise ModelError(
            f"{where_is(node)} a kernel of {len(kernel)} dims for {len(sizes)} spatial dims"
        )
    strides, dilations, pads = window_attributes(node, kernel)
    auto_pad, n = node.attrs["auto_pad"], len(sizes)
    ceil_mode = bool(node.attrs.get("ceil_mode")) and auto_pad != "VALID"
    spans = zip(sizes, kernel, strides, dilations, pads, pads[n:])
    found = [_axis(*span, auto_pad, ceil_mode) for span in spans]
    for axis in found:
        if at_least(-axis.out, 0) and not auto_pad.startswith("SAME"):
            raise ModelError(
                f"{where_is(node)} a kernel that reaches over {axis.reach} elements does not fit "
                f"into {axis.size} with pads {axis.before} and {axis.after}"
            )
    return found


def is_pointwise(node: Node) -> bool:
    """Whether the windows of a convolution are the pixels."""
    x, w = node.inputs[:2]
    return all(axis.is_flat for axis in geometry(node, x.shape[2:], w.shape[2:]))


@lru_cache(maxsize=1 << 10)
def _axis(
    size: Dim,
    kernel: Dim,
    stride: int,
    dilation: int,
    before: int,
    after: int,
    auto_pad: str,
    ceil_mode: bool,
) -> Axis:
    """A model has windows of a few kinds, and is asked for each some ten times."""
    reach = dilation * (kernel - 1) + 1
    if auto_pad.startswith("SAME"):
        out = ceildiv(size, stride)
        total = maximum((out - 1) * stride + reach - size, 0)
        before = total // 2 if auto_pad == "SAME_UPPER" else ceildiv(total, 2)
        return Axis(size, kernel, stride, dilation, before, total - before, out)
    room = size + before + after - reach
    out = room // stride + 1
    if ceil_mode:
        out = minimum(ceildiv(room, stride) + 1, ceildiv(size + before, stride))
    return Axis(size, kernel, stride, dilation, before, after, out)


def window_guards(node: Node, spec: Sequence[Axis]) -> list[Guard]:
    """Every kernel has an element, and there is a window: with ceil_mode one that may stick out by
    stride - 1.
    """
    found = kernel_guards(node, spec)
    if node.attrs["auto_pad"].startswith("SAME"):
        return found
    return found + [
        (
            maximum(1 - axis.out, 0),
            0,
            f"a kernel that reaches over {axis.reach} elements does not fit into {axis.size} "
            f"with pads {axis.before} and {axis.after}",
        )
        for axis in spec
        if not at_least(axis.out, 1)
    ]


def kernel_guards(node: Node, spec: Sequence[Axis]) -> list[Guard]:
    """Every kernel has an element, and the size that kernel_shape says."""
    told = node.attrs.get("kernel_shape") or [axis.kernel for axis in spec]
    return [
        *(
            (
                axis.kernel,
                size,
                f"a kernel of {axis.kernel} elements, where kernel_shape has {size}",
            )
            for axis, size in zip(spec, told)
            if axis.kernel != size
        ),
        *(
            (maximum(axis.kernel, 1), axis.kernel, f"a kernel of {axis.kernel} elements")
            for axis in spec
            if not at_least(axis.kernel, 1)
        ),
    ]


def taps(x: np.ndarray, spec: Sequence[Axis], fill: Any) -> Iterator[tuple[tuple, np.ndarray]]:
    """(position in the kernel, the elements of x that it meets, one for each window).

    The spatial dims are the last ones; around them is `fill`. Positions behind all of x are left
    out: 1280 x 1280 over 7 x 7 is 49.
    """
    leading = x.ndim - len(spec)
    behind = [max(1, ceildiv(axis.size + axis.before, axis.dilation)) for axis in spec]
    spec = [axis._replace(kernel=min(axis.kernel, end)) for axis, end in zip(spec, behind)]
    grow, cut = [(0, 0)] * leading, [slice(None)] * leading
    for axis in spec:
        end = (axis.out - 1) * axis.stride + axis.reach - axis.before
        grow.append((max(axis.before, 0), max(end - axis.size, 0)))
        cut.append(slice(max(-axis.before, 0), None))
    padded = np.pad(x, grow, constant_values=fill)[tuple(cut)]
    for at in np.ndindex(*(axis.kernel for axis in spec)):
        first = [i * axis.dilation for i, axis in zip(at, spec)]
        window = (
            slice(start, start + max((axis.out - 1) * axis.stride + 1, 0), axis.stride)
            for start, axis in zip(first, spec)
        )
        yield at, padded[(..., *window)]


def window_fields(node: Node, spec: Sequence[Axis], ndim: int) -> dict[str, Dim]:
    """The fields of a step that slides windows over `ndim` spatial dims.

    Raises: UnsupportedOp where there are more.
    """
    if len(spec) > ndim:
        raise UnsupportedOp(
            f"{where_is(node)} has kernels for {ndim} spatial dims, not {len(spec)}"
        )
    fields: dict[str, Dim] = {}
    padded = [*[WHOLE] * (ndim - len(spec)), *spec]
    for axis, name in zip(padded, list(PADS)[-ndim:]):
        large = name.upper()
        fields.update({large: axis.size, f"O{large}": axis.out, f"k{name}": axis.kernel})
        fields.update({f"stride_{name}": axis.stride, f"dilation_{name}": axis.dilation})
        fields[PADS[name]] = axis.before
    return fields


def axis_of(fields: Mapping[str, Any], name: str) -> Axis:
    """The windows along d, h or w, of a convolution's fields; `after` is not among them."""
    kernel, stride, dilation = (fields[key + name] for key in ("k", "stride_", "dilation_"))
    size, out = fields[name.upper()], fields[f"O{name.upper()}"]
    return Axis(size, kernel, stride, dilation, fields[PADS[name]], 0, out)


def meeting(axis: Axis) -> list[int]:
    """How many windows each element of the kernel meets x in, and not what is around it."""
    size, stride = axis.size, axis.stride
    first = (axis.before - tap * axis.dilation for tap in range(axis.kernel))
    return [
        max(0, min(axis.out, ceildiv(at + size, stride)) - max(0, ceildiv(at, stride)))
        for at in first
    ]


def half_as_single(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A reference that computes in float32 where it is given 16-bit floats; its first output has
    their dtype.
    """

    def run(node: Node, x: np.ndarray, *rest: Optional[np.ndarray]) -> Any:
        if x.dtype.itemsize != 2 or x.dtype.kind in "iu":
            return reference(node, x, *rest)
        wide = (
            y.astype(np.float32) if y is not None and y.dtype == x.dtype else y for y in (x, *rest)
        )
        result = reference(node, *wide)
        if isinstance(result, tuple):
            return (result[0].astype(x.dtype), *result[1:])
        return result.astype(x.dtype)

    return run
