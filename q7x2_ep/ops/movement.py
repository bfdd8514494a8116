"""Movement ops: the same elements under another shape, order or selection; Shape and Size.

Most are views and cost nothing (ir/view.py); Concat and Tile copy. Shapes, and slices of them, are
known before a run, maybe as symbols; what is not is known to a run only, by way of `reference`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import MAX_ELEMENTS, Node, Type, Value
from q7x2_ep.ir.shape import (
    Dim,
    at_least,
    ceildiv,
    floordiv,
    is_content,
    is_cut_to,
    is_measured,
    maximum,
    minimum,
    product,
)
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    EVERY_INPUT,
    MAX_NDIM,
    Guard,
    NotInferable,
    broadcast,
    dims,
    elem_bytes,
    expand_view,
    fit_guards,
    fresh,
    image_of,
    infer_same,
    is_image,
    known,
    length,
    normal_axis,
    repeat_guards,
    required,
    required_ints,
    typed,
    where_is,
)

FAR = 2**40  # a step that is longer than any dim
OPEN_END = 2**31 - 1  # an end of a Slice from here on means "to the end": no dim is that long


def reshape_view(node: Node, view: View) -> Optional[View]:
    return view.reshape(node.output.shape)


# Shapes as data


@op("Shape")
class Shape:
    """The dims start..end of x as an int64 vector."""

    signature = "x -> y"
    attributes = {"start": 0, "end": None}

    def infer(node: Node) -> list[Type]:
        found = dims(node)[node.attrs["start"] : node.attrs["end"]]
        return [typed(dtypes.INT64, (len(found),), found)]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        return np.array(x.shape[node.attrs["start"] : node.attrs["end"]], np.int64)


@op("Size")
class Size:
    """The number of elements of x as an int64 scalar."""

    signature = "x -> y"
    attributes: dict = {}
    infer = lambda node: [typed(dtypes.INT64, (), (product(dims(node)),))]
    reference = lambda node, x: np.array(x.size, np.int64)


# Another shape


@op("Reshape")
class Reshape:
    """The elements of x under a new shape: 0 keeps a dim (unless allowzero), -1 is what is left."""

    signature = "x, shape: int64 -> y"
    attributes = {"allowzero": 0}

    def infer(node: Node) -> list[Type]:
        source = dims(node)
        if known(node.inputs[1]) is None:
            return [Type(node.inputs[0].dtype, fresh(node, 0, length(node, 1)))]
        wanted = list(known(node.inputs[1]))
        for i, dim in enumerate(wanted):
            if dim == 0 and isinstance(dim, int) and not node.attrs["allowzero"]:
                if i >= len(source):
                    raise ModelError(f"{where_is(node)} {Reshape.no_such_dim(source, i)}")
                wanted[i] = source[i]
        if -1 in wanted:
            wanted[wanted.index(-1)] = left_over(source, [dim for dim in wanted if dim != -1])
        return [typed(node.inputs[0].dtype, tuple(wanted), known(node.inputs[0]))]

    def no_such_dim(source: tuple[Dim, ...], i: int) -> str:
        return f"keeps dim {i} of a tensor with {len(source)} dims"

    def reference(node: Node, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
        wanted = shape.tolist()
        for i, dim in enumerate(wanted):
            if dim < -1:  # numpy takes it for -1
                raise ValueError(f"dim {i} of the new shape is {dim}")
            if dim == 0 and not node.attrs["allowzero"]:
                if i >= x.ndim:
                    raise ValueError(Reshape.no_such_dim(x.shape, i))
                wanted[i] = x.shape[i]
        return x.reshape(wanted)

    def guards(node: Node) -> list[Guard]:
        """A size that turns out to be 0 keeps a dim, too; where another shape than that of `infer`
        could hold as many elements then, such sizes are refused.
        """
        source = dims(node)
        count = product(node.output.shape)
        found: list[Guard] = [(product(source), count, "element counts differ")]
        wanted = required(node, 1, "the new shape")
        open_sizes = sum(dim == -1 or may_be_none(dim) for dim in wanted)
        if node.attrs["allowzero"] or open_sizes < 2:
            return found
        for i, (dim, kept) in enumerate(zip(wanted, source)):
            if may_be_none(dim) and not is_none_with(dim, kept):
                least = maximum(dim, 1 - minimum(kept, 1))
                found.append((maximum(least, 1), least, f"0 for dim {i} would keep that of x"))
        return found

    view = reshape_view


def may_be_none(dim: Dim) -> bool:
    """Whether a size that only a run tells may be 0."""
    return not isinstance(dim, int) and not at_least(dim, 1)


def is_none_with(dim: Dim, other: Dim) -> bool:
    """Whether a size is certainly 0 only where another is: it is a multiple of that."""
    if other == 0:
        return True
    times = floordiv(dim, other)
    return times * other == dim and at_least(times, 1)


def left_over(source: tuple[Dim, ...], taken: list[Dim]) -> Dim:
    """What -1 stands for. Dims on both sides cancel first: p + s, say, divides only itself.

    s of a table of 64 rows, min(s, 64), cancels s as well; that the counts agree is guarded.
    """
    remaining = list(source)
    for cancels in (operator.eq, is_cut_to):
        for size in tuple(taken):
            dim = next((dim for dim in remaining if cancels(dim, size)), None)
            if dim is not None:
                remaining.remove(dim)
                taken.remove(size)
    divisor = product(taken)
    return 0 if divisor == 0 else product(remaining) // divisor


@op("Flatten")
class Flatten:
    """x as a matrix: the dims before `axis` are the rows."""

    signature = "x -> y"
    attributes = {"axis": 1}

    def infer(node: Node) -> list[Type]:
        shape, axis = dims(node), node.attrs["axis"]
        if axis != len(shape):  # all of x as one column
            axis = normal_axis(node, axis, len(shape))
        return [typed(node.inputs[0].dtype, (product(shape[:axis]), product(shape[axis:])))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        axis = node.attrs["axis"] + (x.ndim if node.attrs["axis"] < 0 else 0)
        return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))

    view = reshape_view


@op("Squeeze")
class Squeeze:
    """x without the dims at `axes`, which are 1; without all dims of 1 where no axes are given."""

    signature = "x, axes?: int64 -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        shape = dims(node)
        if node.input(1) is not None and known(node.inputs[1]) is None:
            return [Type(node.inputs[0].dtype, fresh(node, 0, len(shape) - length(node, 1)))]
        axes = squeezed_axes(node)
        left = tuple(dim for i, dim in enumerate(shape) if i not in axes)
        return [typed(node.inputs[0].dtype, left, known(node.inputs[0]))]

    def guards(node: Node) -> list[Guard]:
        shape = node.inputs[0].shape
        return [
            (shape[i], 1, f"dim {i} is squeezed")
            for i in sorted(squeezed_axes(node))
            if shape[i] != 1
        ]

    def reference(node: Node, x: np.ndarray, axes: Optional[np.ndarray] = None) -> np.ndarray:
        return np.squeeze(x, None if axes is None else tuple(axes.tolist()))

    view = reshape_view


def squeezed_axes(node: Node) -> set[int]:
    shape = dims(node)
    if node.input(1) is not None:
        return {normal_axis(node, axis, len(shape)) for axis in required_ints(node, 1, "axes")}
    if any(not isinstance(dim, int) and not at_least(dim, 2) for dim in shape):
        raise NotInferable(
            f"{where_is(node)} must say which axes to drop: a dim of {shape} may or may not be 1"
        )
    return {i for i, dim in enumerate(shape) if dim == 1}


@op("Unsqueeze")
class Unsqueeze:
    """x with dims of 1 put in, so that they are at `axes` of the output."""

    signature = "x, axes: int64 -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        shape = dims(node)
        if known(node.inputs[1]) is None:
            return [Type(node.inputs[0].dtype, fresh(node, 0, len(shape) + length(node, 1)))]
        axes = required_ints(node, 1, "axes")
        ndim = len(shape) + len(axes)
        new = {normal_axis(node, axis, ndim) for axis in axes}
        if len(new) != len(axes):
            raise ModelError(f"{where_is(node)} axes {axes} name one twice")
        rest = iter(shape)
        wanted = tuple(1 if i in new else next(rest) for i in range(ndim))
        return [typed(node.inputs[0].dtype, wanted, known(node.inputs[0]))]

    def guards(node: Node) -> list[Guard]:
        required_ints(node, 1, "axes")
        return []

    reference = lambda node, x, axes: np.expand_dims(x, tuple(axes.ravel().tolist()))
    view = reshape_view


# Another order


@op("Transpose")
class Transpose:
    """y[i_perm[0], ..] = x[i_0, ..]: dim j of y is dim perm[j] of x; reversed by default."""

    signature = "x -> y"
    attributes = {"perm": None}

    def infer(node: Node) -> list[Type]:
        shape = dims(node)
        order = permutation(node, len(shape))
        if sorted(order) != list(range(len(shape))):
            raise ModelError(f"{where_is(node)} perm {order} of a tensor with {len(shape)} dims")
        node.attrs["perm"] = order  # from now on whoever asks is told
        return [typed(node.inputs[0].dtype, tuple(shape[p] for p in order), known(node.inputs[0]))]

    reference = lambda node, x: np.transpose(x, permutation(node, x.ndim))
    view = lambda node, view: view.transpose(permutation(node, len(view.shape)))


def permutation(node: Node, ndim: int) -> tuple[int, ...]:
    perm = node.attrs["perm"]
    return tuple(reversed(range(ndim))) if perm is None else tuple(perm)


# Repetition


@op("Expand")
class Expand:
    """x repeated to the shape that its own and `shape` broadcast to."""

    signature = "x, shape: int64 -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        if known(node.inputs[1]) is None:
            return [Type(node.inputs[0].dtype, expanded_unknown(node))]
        shape = broadcast(node, dims(node), required(node, 1, "the shape"))
        contents = known(node.inputs[0])
        n = shape[0] if len(shape) == 1 else 1
        if contents is not None and len(contents) == 1:
            contents = contents * n if isinstance(n, int) and n <= MAX_ELEMENTS else None
        return [typed(node.inputs[0].dtype, shape, contents)]

    def guards(node: Node) -> list[Guard]:
        wanted = required(node, 1, "the shape")
        found = repeat_guards("a wanted dim", wanted, node.output.shape)
        return fit_guards(node.inputs[:1], node.output.shape) + found

    def reference(node: Node, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))

    view = lambda node, view: expand_view(view, node.output.shape)


def expanded_unknown(node: Node) -> tuple[Dim, ...]:
    """The shape of an Expand by data: a dim of x above 1 stays, others are known to a run only."""
    shape = dims(node)
    ndim = max(len(shape), length(node, 1))
    padded = (1,) * (ndim - len(shape)) + shape
    return tuple(
        dim if at_least(dim, 2) else any_dim for dim, any_dim in zip(padded, fresh(node, 0, ndim))
    )


@op("Tile")
class Tile:
    """x repeated repeats[i] times along dim i."""

    signature = "x, repeats: int64 -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        shape, repeats = dims(node), known(node.inputs[1])
        if repeats is None:
            return [Type(node.inputs[0].dtype, fresh(node, 0, len(shape)))]
        if len(repeats) != len(shape):
            raise ModelError(f"{where_is(node)} repeats {repeats} of a tensor of {len(shape)} dims")
        return [typed(node.inputs[0].dtype, tuple(d * r for d, r in zip(shape, repeats)))]

    reference = lambda node, x, repeats: np.tile(x, repeats)

    def lower(node: Node, b: Any) -> None:
        """One copy from a view where every repeated dim is preceded by one of stride 0."""
        repeats = required(node, 1, "repeats")
        if len(repeats) + sum(times != 1 for times in repeats) > MAX_NDIM:
            raise UnsupportedOp(f"{where_is(node)} has a kernel for up to {MAX_NDIM} dims")
        source, shape, strides = b.view(node.inputs[0]), [], []
        for dim, stride, times in zip(source.shape, source.strides, repeats):
            shape += [dim] if times == 1 else [times, dim]
            strides += [stride] if times == 1 else [0, stride]
        target = b.allocate(node.output)
        repeated = View(source.storage, tuple(shape), tuple(strides), source.offset)
        b.copy(repeated, target.reshape(tuple(shape)))


# Selection


@op("Slice")
class Slice:
    """x[starts:ends:steps] along axes, with the clamping of Python slices, except that backwards
    from before the front is from the front.

    exact: true where bounds that feeds tell may be anywhere; else what `assumptions` says holds of
    them, for sizes that are simpler.
    """

    signature = "x, starts: index, ends: index, axes?: index, steps?: index -> y"
    attributes = {"exact": None}
    own = ("exact",)

    def infer(node: Node) -> list[Type]:
        shape = list(dims(node))
        cut = unknown_slices(node)
        if cut is not None:
            for axis in cut:
                shape[axis] = fresh(node, 0, len(shape))[axis]
            return [Type(node.inputs[0].dtype, tuple(shape))]
        contents = known(node.inputs[0]) if len(shape) == 1 else None
        for axis, start, size, step in slices(node):
            if contents is not None and isinstance(start, int) and isinstance(size, int):
                contents = tuple(contents[start + i * step] for i in range(size))
            else:
                contents = None
            shape[axis] = size
        return [typed(node.inputs[0].dtype, tuple(shape), contents)]

    def reference(
        node: Node,
        x: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        axes: Optional[np.ndarray] = None,
        steps: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        require_lengths(node, *(v.tolist() for v in (starts, ends, axes, steps) if v is not None))
        at = [slice(None)] * x.ndim
        for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist())):
            step = 1 if steps is None else int(steps[i])
            axis = i if axes is None else int(axes[i])
            if step < 0:
                start = max(start, -x.shape[axis])
                end = None if end < -x.shape[axis] else end
            at[axis] = slice(start, end, step)
        return x[tuple(at)]

    def assumptions(node: Node) -> list[Guard]:
        found: list[Guard] = []
        for axis, dim, start, end, step in () if node.attrs["exact"] else slice_bounds(node):
            if is_window(dim, start, end, step):
                text = f"the slice starts at {start}, beyond dim {dim}"
                found.append((maximum(start - dim + 1, 0), 0, text))
            for index in (start, end):
                if index == dim:
                    continue
                if index == -1:
                    if not isinstance(dim, int) and not at_least(dim, 1) and not is_measured(dim):
                        found.append((maximum(1 - dim, 0), 0, f"dim {axis} must not be empty"))
                elif at_least(index, 0) or at_least(-index, 1):
                    continue
                elif at_least(-index, 0):
                    text = f"the slice bound {index} counts from the front where it is 0"
                    found.append((maximum(index + 1, 0), 0, text))
                else:
                    text = f"the slice bound {index} must not be negative"
                    found.append((maximum(-index, 0), 0, text))
        return found

    def view(node: Node, view: View) -> View:
        for axis, start, size, step in slices(node):
            view = view.slice(axis, start, size, step)
        return view


def unknown_slices(node: Node) -> Optional[tuple[int, ...]]:
    """The axes of which only a run knows what is left; None where all bounds are known."""
    ndim = len(dims(node))
    given = [known(value) for value in node.inputs[1:] if value is not None]
    steps, axes = known(node.input(4)) or (), known(node.input(3))
    are_numbers = all(isinstance(each, int) for each in (*steps, *(axes or ())))
    if None not in given and are_numbers:
        return None
    if node.input(3) is None:
        count = dims(node, 1)[0]
        return tuple(range(count if isinstance(count, int) else ndim))
    if axes is None or not all(isinstance(axis, int) for axis in axes):
        return tuple(range(ndim))
    return tuple(normal_axis(node, axis, ndim) for axis in axes)


def slices(node: Node) -> list[tuple[int, Dim, Dim, int]]:
    """(axis, start, size, step) per sliced axis, start counted from the front."""
    found = []
    exact = node.attrs["exact"]
    for axis, dim, start, end, step in slice_bounds(node):
        if not exact and is_window(dim, start, end, step):
            rest = maximum(dim - start, 1)
            is_open = isinstance(end, int) and end >= OPEN_END  # end - start may overflow
            found.append((axis, start, rest if is_open else minimum(end - start, rest), step))
            continue
        if not exact and is_tail(start, end, step):
            found.append((axis, maximum(start + dim, 0), minimum(-start, dim), step))
            continue
        low, high = (0, dim) if step > 0 else (-1, dim - 1)
        start, end = (clamp(bound, dim, low, high, exact) for bound in (start, end))
        if step < 0:  # from before the front is from the front
            start = minimum(maximum(start, 0), high)
        size = maximum(ceildiv(end - start, step) if step > 0 else ceildiv(start - end, -step), 0)
        size = dim if (start, end, step) == (0, dim, 1) else size
        found.append((axis, start, size, step))
    return found


def slice_bounds(node: Node) -> list[tuple[int, Dim, Dim, Dim, int]]:
    """(axis, dim, start, end, step) as given."""
    shape = dims(node)
    starts, ends = required(node, 1, "starts"), required(node, 2, "ends")
    axes = (
        required_ints(node, 3, "axes") if node.input(3) is not None else tuple(range(len(starts)))
    )
    steps = required_ints(node, 4, "steps") if node.input(4) is not None else (1,) * len(starts)
    require_lengths(node, starts, ends, axes, steps)
    if 0 in steps:
        raise ModelError(f"{where_is(node)} steps {steps}: 0 leads nowhere")
    steps = tuple(max(-FAR, min(step, FAR)) for step in steps)  # sums with dims stay in 64 bits
    fronted = [normal_axis(node, axis, len(shape)) for axis in axes]
    return [(axis, shape[axis], *rest) for axis, *rest in zip(fronted, starts, ends, steps)]


def require_lengths(node: Node, *given: Sequence[Dim]) -> None:
    """Raises: ModelError where starts, ends, axes and steps are not as many."""
    if len({len(each) for each in given}) > 1:
        raise ModelError(
            f"{where_is(node)} starts, ends, axes and steps are not as many: {[*map(list, given)]}"
        )


def is_window(dim: Dim, start: Dim, end: Dim, step: int) -> bool:
    """Whether past:past + s is cut from a table, say a causal mask, or i:i + 1 where data tells
    i; the first element is assumed to be inside.
    """
    moving = not isinstance(start, int) and not at_least(-start, 0)
    moving = moving and (isinstance(dim, int) or is_content(start))
    return moving and step == 1 and at_least(end - start, 0)


def is_tail(start: Dim, end: Dim, step: int) -> bool:
    """Whether -s: is cut off, the last s of a table of positions, say; s is assumed above 0."""
    counted = not isinstance(start, int) and at_least(-start, 0)
    return counted and step == 1 and isinstance(end, int) and end >= OPEN_END


def clamp(index: Dim, dim: Dim, low: Dim, high: Dim, exact: bool) -> Dim:
    """A slice bound, counted from the end where it is negative, held in low..high.

    Where that is not asked for exactly, an index of unknown sign counts from the front, and -1
    exists in a dim that feeds tell.
    """
    if isinstance(index, int) and abs(index) >= OPEN_END:
        return high if index > 0 else low
    if index == dim or (index == low == 0):  # whatever data makes of the dim, it is a size
        return high if index == dim else 0
    if exact and not at_least(index, 0) and not at_least(-index, 1):
        index = index - dim * minimum(maximum(index, -1), 0)
    elif index == -1 and not exact and not isinstance(dim, int) and not is_measured(dim):
        return dim - 1
    elif not at_least(index, 0) and at_least(-index, 0):
        index = index + dim
    return maximum(minimum(index, high), low)


@op("Split")
class Split:
    """x cut along an axis into parts of given sizes, or equal ones (the last may be shorter)."""

    signature = "x, split?: int64 -> y*"
    attributes = {"axis": 0, "num_outputs": None}

    def infer(node: Node) -> list[Type]:
        shape = dims(node)
        axis = normal_axis(node, node.attrs["axis"], len(shape))
        sizes: list[Dim]
        if node.input(1) is None or known(node.inputs[1]) is not None:
            sizes = list(split_sizes(node))
        elif len(node.outputs) == 1:
            sizes = [shape[axis]]  # a single part is all of it, whatever data says
        else:
            sizes = [fresh(node, i, len(shape))[axis] for i in range(len(node.outputs))]
        wanted = node.attrs["num_outputs"] if node.input(1) is None else None
        parted = len(sizes) if wanted is None else wanted
        if parted != len(node.outputs):
            raise ModelError(f"{where_is(node)} {parted} parts for {len(node.outputs)} outputs")
        if any(isinstance(size, int) and size < 0 for size in sizes):
            raise ModelError(f"{where_is(node)} parts of {sizes}")
        contents = known(node.inputs[0])
        parts: list[Optional[tuple[Dim, ...]]] = [None] * len(sizes)
        if contents is not None and len(shape) == 1 and all(isinstance(n, int) for n in sizes):
            ends = np.cumsum(sizes).tolist()
            parts = [contents[end - size : end] for size, end in zip(sizes, ends)]
        return [
            typed(node.inputs[0].dtype, (*shape[:axis], size, *shape[axis + 1 :]), part)
            for size, part in zip(sizes, parts)
        ]

    def guards(node: Node) -> list[Guard]:
        axis = normal_axis(node, node.attrs["axis"], len(dims(node)))
        dim, total = dims(node)[axis], sum(split_sizes(node))
        return [] if dim == total else [(dim, total, "the parts do not add up to the dim")]

    def reference(
        node: Node, x: np.ndarray, split: Optional[np.ndarray] = None
    ) -> tuple[np.ndarray, ...]:
        axis = node.attrs["axis"]
        if split is None:
            each = -(-x.shape[axis] // len(node.outputs))
            cuts = [min(each * i, x.shape[axis]) for i in range(1, len(node.outputs))]
        else:
            if len(split) != len(node.outputs) or split.min() < 0 or split.sum() != x.shape[axis]:
                raise ValueError(f"parts of {split.tolist()} for {len(node.outputs)} outputs")
            cuts = np.cumsum(split)[:-1].tolist()
        return tuple(np.split(x, cuts, axis))

    def views(node: Node, view: View) -> list[View]:
        axis = normal_axis(node, node.attrs["axis"], len(view.shape))
        start: Dim = 0
        found = []
        for size in split_sizes(node):
            found.append(view.slice(axis, start, size))
            start = start + size
        return found


def split_sizes(node: Node) -> tuple[Dim, ...]:
    if node.input(1) is not None:
        return required(node, 1, "the sizes of the parts")
    dim = dims(node)[normal_axis(node, node.attrs["axis"], len(dims(node)))]
    n = len(node.outputs)
    each = ceildiv(dim, n)
    if isinstance(dim, int):
        return tuple(max(min(each, dim - each * i), 0) for i in range(n))
    return (each,) * (n - 1) + (dim - each * (n - 1),)


@op("Trilu")
class Trilu:
    """The upper (or lower) triangle of the last two dims, zero elsewhere; k shifts the diagonal."""

    signature = "x, k?: int64 -> y"
    attributes = {"upper": 1}
    infer = infer_same

    def reference(node: Node, x: np.ndarray, k: Optional[np.ndarray] = None) -> np.ndarray:
        function = np.triu if node.attrs["upper"] else np.tril
        rows, columns = x.shape[-2:]
        return function(x, 0 if k is None else max(-rows, min(int(k.item()), columns)))

    def lower(node: Node, b: Any) -> None:
        x = node.inputs[0]
        *batch, rows, cols = x.shape
        (k,) = (0,) if node.input(1) is None else required(node, 1, "k")
        b.step(
            "trilu",
            inplace="x",
            x=x,
            y=node.output,
            elem_bytes=elem_bytes(node),
            batch=product(batch),
            rows=rows,
            cols=cols,
            k=k,
            upper=node.attrs["upper"],
        )


# Joining


@op("Concat")
class Concat:
    """The inputs one after the other along an axis."""

    signature = "x*: T -> y"
    attributes = {"axis": None}
    strided = EVERY_INPUT

    def infer(node: Node) -> list[Type]:
        first = dims(node)
        axis = normal_axis(node, node.attrs["axis"], len(first))
        if any(len(dims(node, i)) != len(first) for i in range(len(node.inputs))):
            raise ModelError(f"{where_is(node)} joins tensors of different ranks")
        shape = list(first)
        shape[axis] = sum(dims(node, i)[axis] for i in range(len(node.inputs)))
        for i, _ in enumerate(shape):
            if (
                i != axis
            ):  # a number, where one of the inputs knows it; guards hold the others to it
                shape[i] = next(
                    (v.shape[i] for v in node.inputs if isinstance(v.shape[i], int)), first[i]
                )
        contents = [known(value) for value in node.inputs]
        joined = (
            None if any(c is None for c in contents) else tuple(dim for c in contents for dim in c)
        )
        return [typed(node.inputs[0].dtype, tuple(shape), joined)]

    def guards(node: Node) -> list[Guard]:
        axis = normal_axis(node, node.attrs["axis"], len(dims(node)))
        return [
            (dim, target, f"dim {i} of {value.name} differs from that of the others")
            for value in node.inputs
            for i, (dim, target) in enumerate(zip(value.shape, node.output.shape))
            if i != axis and dim != target
        ]

    reference = lambda node, *arrays: np.concatenate(arrays, node.attrs["axis"])

    def lower(node: Node, b: Any) -> None:
        """One copy per part; the plan drops those of parts that can be produced in place. What has
        been copied once is there for longer Concats.
        """
        if is_image(b, node.inputs[0]) and not b.is_placed(node.output):
            image_of(b, whole_of(b, node).output)
        for part, place in zip(node.inputs, concat_places(node, b)):
            if part.shape[concat_axis(node)] != 0 and b.view(part) != place:
                b.copy(b.view(part), place)
                if place.storage is not node.output and is_made(b, part):
                    b.alias(part, place)


def concat_axis(node: Node) -> int:
    return normal_axis(node, node.attrs["axis"], len(dims(node)))


def is_made(b: Any, value: Value) -> bool:
    """Whether a value is of this graph alone: no input, constant or output."""
    return value.producer is not None and not b.graph.is_output(value)


def whole_of(b: Any, node: Node) -> Node:
    """The longest Concat that begins with the parts of this one, as in dense blocks, where each
    layer reads all those before it: what this one makes lies in front there.
    """
    parts, axis = node.inputs, concat_axis(node)
    if not is_made(b, node.output):
        return node
    longer = [
        user
        for user in parts[0].users
        if user.op == "Concat" and len(user.inputs) > len(parts) and is_made(b, user.output)
    ]
    longer.sort(key=lambda user: len(user.inputs), reverse=True)
    for user in longer:
        is_same = concat_axis(user) == axis and user.output.dtype == node.output.dtype
        if is_same and user.inputs[: len(parts)] == parts:
            return user
    return node


def concat_places(node: Node, b: Any) -> list[View]:
    """Where each part is in the output. A step that takes strides may write there at once: then
    the part is to be declared an alias of its place.
    """
    axis, found = concat_axis(node), []
    start: Dim = 0
    longest = whole_of(b, node)
    if longest is not node and not b.is_placed(node.output):
        front = b.allocate(longest.output).slice(axis, 0, node.output.shape[axis])
        if front.is_channels_last() or front.is_contiguous():
            b.alias(node.output, front)
    whole = b.allocate(node.output)
    for part in node.inputs:
        found.append(whole.slice(axis, start, part.shape[axis]))
        start = start + part.shape[axis]
    return found
