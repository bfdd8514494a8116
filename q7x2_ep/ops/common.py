"""What the op families share: types, known contents, broadcasting, short forms of frequent steps.

Read ops/__init__.py first. Nothing here is an op.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError, UnsupportedOp
from q7x2_ep.ir.core import MAX_ELEMENTS, Node, Type, Value, where_is
from q7x2_ep.ir.shape import Dim, at_least, broadcast_shapes, measured, minimum, product
from q7x2_ep.ir.view import View, channels_last_strides, contiguous_strides
from q7x2_ep.ops import find

MAX_NDIM = 8  # Q7_MAX_NDIM of csrc/ops.def
MAX_RANK = 64  # numpy's
BYTES = (dtypes.UINT8, dtypes.INT8)
LOWEST_BYTE = {dtypes.UINT8: 0, dtypes.INT8: -128}
F32 = (dtypes.FLOAT,)  # dtypes that groups of kernels compute in
FLOATS = (*F32, dtypes.DOUBLE)
NUMBERS = (*FLOATS, dtypes.INT32, dtypes.INT64)
EVERY_INPUT = range(sys.maxsize)  # `strided` of a variadic op
INTEGERS = (
    *(dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64),
    *(dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64),
)
NUMERIC = (*FLOATS, *INTEGERS)
BINARY = (*NUMERIC, dtypes.BOOL)
CASTS = tuple(  # between which `cast_step` converts
    row.code for row in dtypes.DTYPES.values() if row.code <= dtypes.BFLOAT16 and row.kind in "fiub"
)
FOLLOWED = (dtypes.INT64, dtypes.INT32, dtypes.BOOL)  # dtypes of shapes: they may hold symbols
RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})  # same elements, other shape
MOVES = RESHAPES | {"Transpose"}
PRODUCTS = ("q7::Linear", "q7::GatedLinear")  # whose rows may lie apart
LINE = 16  # floats of a line of cache
COMPETING = 512  # floats: rows a multiple of that apart share few sets of a first-level cache


class NotInferable(UnsupportedOp):
    """The shape of an output depends on something that only a run knows."""


Guard = tuple[Dim, Dim, str]  # two dims that must be equal, and what it means where they are not

# Types


def check_known(guards: list[Guard], node: Node) -> None:
    """Raises: ModelError for a guard that no feed can keep."""
    for left, right, text in guards:
        if isinstance(left, int) and isinstance(right, int) and left != right:
            raise ModelError(f"{where_is(node)} {text}: {left}, wanted {right}")


def keeps_count(node: Node) -> bool:
    """Whether a node is a reshape to as many elements whatever the sizes: one that only a run tells
    says, by its guard, where they differ.
    """
    before, after = node.inputs[0].shape if node.op in RESHAPES else None, node.output.shape
    return before is not None and after is not None and product(before) == product(after)


def dims(node: Node, i: int = 0) -> tuple[Dim, ...]:
    """The shape of input i.

    Raises: NotInferable where even the rank is unknown.
    """
    shape = node.inputs[i].shape
    if shape is None:
        raise NotInferable(
            f"{where_is(node)} the rank of input {node.inputs[i].name!r} is not known"
        )
    return shape


def known(value: Optional[Value]) -> Optional[tuple[Dim, ...]]:
    """The flat contents of a small integer or bool tensor, where they are known; maybe symbolic."""
    if value is None:
        return None
    if value.elements is not None:
        return value.elements
    array = value.const
    if array is None or array.size > MAX_ELEMENTS or array.dtype.kind not in "iub":
        return None
    return tuple(array.ravel().tolist())


def required(node: Node, i: int, what: str) -> tuple[Dim, ...]:
    """The contents of input i, on which the shape of the output depends.

    Raises: NotInferable where they are not known.
    """
    contents = known(node.input(i))
    if contents is None:
        raise NotInferable(
            f"{where_is(node)} {what} must follow from shapes, but comes from data: {node.input(i)}"
        )
    return contents


def required_ints(node: Node, i: int, what: str) -> tuple[int, ...]:
    """As `required`, for contents that may not be symbolic, such as axes."""
    contents = required(node, i, what)
    if not all(isinstance(dim, int) for dim in contents):
        raise NotInferable(f"{where_is(node)} {what} must be constant, not {contents}")
    return tuple(dim for dim in contents if isinstance(dim, int))


def reads_strides(node: Node, value: Value) -> bool:
    """Whether a node reads a value in place whatever its strides, wherever it uses it."""
    strided = getattr(find(node.op), "strided", ())
    return all(i in strided for i, used in enumerate(node.inputs) if used is value)


def is_host(node: Node) -> bool:
    """Whether a node runs on the host whatever its inputs are: it has no native form."""
    if not has_native_form(find(node.op)):
        return True
    return any(value is not None and value.dtype == dtypes.NO_TENSOR for value in node.inputs)


@cache
def has_native_form(entry: Any) -> bool:
    """Whether an entry of the catalogue has steps, or a meaning in other ops."""
    return any(hasattr(entry, part) for part in ("lower", "view", "views", "decompose"))


def reference_of(prepared: Callable[[Node], Callable]) -> Callable:
    """The `reference` of an entry whose `prepared` looks at the attributes of a node once."""
    return lambda node, *arrays: prepared(node)(*arrays)


def is_movement(node: Node) -> bool:
    """Whether the outputs of a node may be views of its input."""
    entry = find(node.op)
    return hasattr(entry, "view") or hasattr(entry, "views")


def fresh(node: Node, i: int, rank: int) -> tuple[Dim, ...]:
    """A shape for output i of which only a run tells the sizes: symbols of its own."""
    node.binds |= rank > 0
    return tuple(measured(node.outputs[i].name, axis) for axis in range(rank))


def length(node: Node, i: int) -> int:
    """How many elements the vector at input i has, which is a rank or part of one.

    Raises: NotInferable where that is not known; ModelError beyond MAX_RANK.
    """
    (n,) = dims(node, i)
    if not isinstance(n, int):
        raise NotInferable(f"{where_is(node)} the length of {node.input(i)} is not known")
    require_rank(node, n)
    return n


def require_rank(node: Node, ndim: int) -> None:
    """Raises: ModelError for a result of more dims than numpy has."""
    if ndim > MAX_RANK:
        raise ModelError(f"{where_is(node)} a result of {ndim} dims; the most are {MAX_RANK}")


def require_shape(node: Node, name: str, x: Optional[np.ndarray], *shape: int) -> None:
    """Raises: DataError for an operand that is fed in another shape, if it is."""
    if x is not None and x.shape != shape:
        raise DataError(f"{where_is(node)} {name} is {list(x.shape)}: expected {[*shape]}")


def constant_scalar(value: Optional[Value]) -> Optional[float]:
    """The number in a constant of one element, or None."""
    return (
        value.const.item()
        if value is not None and value.const is not None and value.const.size == 1
        else None
    )


def normal_axis(node: Node, axis: int, ndim: int) -> int:
    """The axis counted from the front.

    Raises: ModelError where the tensor has no such axis.
    """
    if not -ndim <= axis < max(ndim, 1):
        raise ModelError(f"{where_is(node)} axis {axis} is outside of a tensor with {ndim} dims")
    return axis % max(ndim, 1)


def named_axes(node: Node, ndim: int) -> list[int]:
    """The axes that a node names, by default all, counted from the front."""
    axes = node.attrs["axes"]
    return [normal_axis(node, axis, ndim) for axis in (range(ndim) if axes is None else axes)]


def typed(dtype: int, shape: tuple[Dim, ...], elements: Optional[tuple[Dim, ...]] = None) -> Type:
    """A Type; elements are kept only for the small integer and bool tensors that may have them."""
    wanted = (
        len(shape) <= 1
        and elements is not None
        and len(elements) <= MAX_ELEMENTS
        and (shape[0] if shape else 1) == len(elements)
        and all(_is_held(dtype, element) for element in elements)
    )
    return Type(dtype, tuple(shape), tuple(elements) if wanted else None)


def _is_held(dtype: int, element: Dim) -> bool:
    """Whether arithmetic on dims can be followed here: it must not wrap."""
    if dtype == dtypes.BOOL or not isinstance(element, int):
        return dtype in FOLLOWED
    if dtype not in INTEGERS:
        return False
    limits = np.iinfo(dtypes.DTYPES[dtype].numpy)
    return int(limits.min) <= element <= int(limits.max)


def fold(
    operation: Callable[..., Optional[Dim]], *operands: Optional[tuple[Dim, ...]]
) -> Optional[tuple[Dim, ...]]:
    """operation over known contents, repeating single ones; None where anything is unknown."""
    if None in operands:
        return None
    n = min(map(len, operands)) and max(map(len, operands))
    if any(len(operand) not in (1, n) for operand in operands):
        return None  # of two axes: too many dims to have known contents
    results = [
        operation(*(operand[i if len(operand) > 1 else 0] for operand in operands))
        for i in range(n)
    ]
    return None if any(result is None for result in results) else tuple(results)


def infer_same(node: Node) -> list[Type]:
    """One output like the first input, contents unknown."""
    return [Type(node.inputs[0].dtype, dims(node))]


def infer_copy(node: Node) -> list[Type]:
    """One output like the first input in contents too."""
    return [typed(node.inputs[0].dtype, dims(node), known(node.inputs[0]))]


def broadcast(node: Node, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The broadcast shape.

    Raises: ModelError where the shapes never fit.
    """
    try:
        return broadcast_shapes(*shapes)
    except ValueError as error:
        raise ModelError(f"{where_is(node)} {error}: shapes {shapes}") from None


def broadcast_inputs(node: Node) -> tuple[Dim, ...]:
    return broadcast(node, *(dims(node, i) for i in range(len(node.inputs))))


def broadcast_guards(node: Node) -> list[Guard]:
    """Every dim of every input is 1 or that of the output."""
    return fit_guards(node.inputs, node.output.shape)


def fit_guards(values: Iterable[Optional[Value]], shape: tuple[Dim, ...]) -> list[Guard]:
    """Every dim of every value is 1 or that of the shape."""
    others = [value for value in values if value is not None and value.shape != shape]
    return [
        guard
        for value in others
        for guard in repeat_guards(f"{value.name}: dim", value.shape, shape)
    ]


def repeat_guards(what: str, given: Sequence[Dim], shape: Sequence[Dim]) -> list[Guard]:
    """Every dim given is 1 or that of the shape: (dim - 1) * (dim - target) == 0."""
    return [
        ((dim - 1) * (dim - target), 0, f"{what} {dim} is neither 1 nor {target}")
        for dim, target in zip(reversed(given), reversed(shape))
        if dim not in (target, 1)  # the same one, most often
    ]


def size_guards(values: Iterable[Optional[Value]], size: Dim) -> list[Guard]:
    """Every value has that many elements."""
    sizes = [(value.name, product(value.shape)) for value in values if value is not None]
    return [(own, size, f"{name}: {own} elements, wanted {size}") for name, own in sizes]


def require_dtype(node: Node, dtype: int, supported: tuple[int, ...]) -> None:
    """Raises: UnsupportedOp where no kernel computes in this dtype."""
    if dtype not in supported:
        names = ", ".join(dtypes.DTYPES[code].onnx for code in supported)
        raise UnsupportedOp(
            f"{where_is(node)} has kernels for {names}, not for {dtypes.type_string(dtype)}"
        )


def elem_bytes(node: Node, i: int = 0) -> int:
    """The size of an element of input i, for steps that move elements whatever they mean.

    Raises: UnsupportedOp where elements have no size that C can move.
    """
    dtype = node.inputs[i].dtype
    size = dtypes.size(dtype)
    if size not in (1, 2, 4, 8):
        raise UnsupportedOp(f"{where_is(node)} has no kernel for {dtypes.type_string(dtype)}")
    return size


# Views


def expand_view(view: View, shape: tuple[Dim, ...]) -> View:
    """Repeat a view to a shape that it broadcasts to, though only a run may tell which dims are 1.

    A dim d of unknown size gets stride * min(d - 1, 1): 0 where d is 1, else the stride.
    """
    pad = len(shape) - len(view.shape)
    strides: list[Dim] = [0] * pad
    for dim, stride, target in zip(view.shape, view.strides, shape[pad:]):
        if dim == 1 or target == 1:
            strides.append(0)
        elif dim == target or at_least(dim, 2):
            strides.append(stride)
        else:
            strides.append(stride * minimum(dim - 1, 1))
    return view._replace(shape=tuple(shape), strides=tuple(strides))


def reshaped(b: Any, value: Value, shape: tuple[Dim, ...]) -> View:
    """The value as a view of another shape; copies it first where its strides do not allow that."""
    return b.view(value).reshape(shape) or b.contiguous(value).reshape(shape)


def materialized(b: Any, view: View) -> View:
    """A dense view with the same contents: this one, or a copy."""
    if view.is_contiguous():
        return view
    dense = b.allocate(temporary(b, view.storage.dtype, view.shape))
    b.copy(view, dense)
    return dense


def rows_dense(b: Any, view: View) -> View:
    """The view where its last dim has stride 1, else a dense copy."""
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else materialized(b, view)


# References


def each(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """A scalar function of math over an array."""
    vectorised = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(vectorised(x)).astype(x.dtype)


# Steps

Operand = Union[Value, View]


def temporary(b: Any, dtype: int, shape: tuple[Dim, ...]) -> Value:
    """A value that lives only inside one node."""
    return b.graph.new_value(Type(dtype, tuple(shape)), "part")


def feeds_products(graph: Any, value: Value) -> bool:
    """Whether products alone read a value, as rows."""
    if graph.is_output(value) or not value.users:
        return False
    return all(
        (user.op in PRODUCTS and value not in user.inputs[1:])
        or (user.op in MOVES and feeds_products(graph, user.output))
        for user in value.users
    )


def allocate_rows(
    b: Any,
    value: Value,
    ndim: int = 1,
    order: Optional[Sequence[int]] = None,
    gains: Callable[[Any, Value], bool] = feeds_products,
    competing: int = COMPETING,
) -> View:
    """Storage for a value whose dims lie in memory in this order (row major by default), the last
    `ndim` of them a row.

    Rows that would compete for the same sets of a cache, as those of a multiple of `competing`
    elements do, have a line of cache between them where what reads the value gains by it
    (docs/decisions.md 70).
    """
    if b.is_placed(value):
        return b.view(value)
    order = range(len(value.shape)) if order is None else order
    shape = tuple(value.shape[i] for i in order)
    split = len(shape) - ndim
    cols = product(shape[split:])
    apart = isinstance(cols, int) and cols % competing == 0 and gains(b.graph, value)
    row_stride = cols + LINE if apart else cols
    strides: list[Dim] = [1] * len(shape)
    outer = (stride * row_stride for stride in contiguous_strides(shape[:split]))
    for i, stride in zip(order, (*outer, *contiguous_strides(shape[split:]))):
        strides[i] = stride
    if not apart:
        return b.allocate(value, tuple(strides))
    whole = b.allocate(temporary(b, value.dtype, (product(shape[:split]), row_stride)))
    b.alias(value, View(whole.storage, value.shape, tuple(strides)))
    return b.view(value)


def is_used(b: Any, node: Node, i: int) -> bool:
    """Whether anybody reads output i."""
    return i < len(node.outputs) and (
        bool(node.outputs[i].users) or b.graph.is_output(node.outputs[i])
    )


def number(b: Any, value: float, dtype: int) -> Value:
    """A constant scalar."""
    return b.graph.constant(np.array(value, dtypes.DTYPES[dtype].numpy), Type(dtype, ()))


def dtype_of(operand: Operand) -> int:
    return operand.storage.dtype if isinstance(operand, View) else operand.dtype


class Activation(NamedTuple):
    """A member of the closed set `act` of csrc/ops.def, and what it is parametrised with."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def attributes(self) -> dict[str, Any]:
        """How a fused op holds it."""
        return {
            "activation": self.name,
            "act_alpha": self.alpha or None,
            "act_beta": self.beta or None,
        }

    @staticmethod
    def of(attrs: dict[str, Any]) -> Activation:
        """What `attributes` gave."""
        return Activation(attrs["activation"], attrs["act_alpha"] or 0.0, attrs["act_beta"] or 0.0)


NO_ACTIVATION = Activation("none")


def unary_step(
    b: Any, op: str, x: Operand, y: Operand, alpha: float = 0.0, beta: float = 0.0
) -> None:
    """y = op(x) for every element."""
    if isinstance(y, Value):
        (x,), y = in_order(b, [x], y)
    b.step(
        "unary",
        kernel="unary",
        inplace="x",
        x=x,
        y=y,
        op=op,
        dtype=dtype_of(x),
        n=product(x.shape),
        alpha=alpha,
        beta=beta,
    )


def binary_step(b: Any, op: str, left: Operand, right: Operand, y: Value) -> None:
    """y = op(left, right) with broadcasting.

    Raises: UnsupportedOp for operands of two dtypes.
    """
    if dtype_of(left) != dtype_of(right):
        types = " and ".join(dtypes.type_string(dtype_of(each)) for each in (left, right))
        raise UnsupportedOp(f"no kernel computes {op} of {types}")
    given = {"a": left, "b": right}
    operands, place = in_order(b, [left, right], y)
    views = {name: broadcast_operand(b, operand) for name, operand in zip(given, operands)}
    whole = [name for name, view in views.items() if view.shape == place.shape]
    # the memory of an operand with no other user is likely to be free; the plan decides
    whole.sort(key=lambda name: isinstance(given[name], Value) and len(given[name].users) > 1)
    b.step(
        "binary",
        kernel="binary",
        inplace=whole[0] if whole else None,
        y=place,
        op=op,
        dtype=dtype_of(left),
        **views,
        **broadcast_fields(place.shape, **views),
    )


def where_step(b: Any, condition: Operand, left: Operand, right: Operand, y: Value) -> None:
    """y = condition ? left : right with broadcasting.

    Raises: UnsupportedOp for elements without a fixed size of 1 to 8 bytes.
    """
    if dtypes.size(y.dtype) not in (1, 2, 4, 8):
        raise UnsupportedOp(f"no kernel chooses among {dtypes.type_string(y.dtype)}")
    operands, place = in_order(b, [condition, left, right], y)
    views = dict(zip("cab", (broadcast_operand(b, x) for x in operands)))
    fields = broadcast_fields(place.shape, **views)
    b.step("where", y=place, elem_bytes=dtypes.size(y.dtype), **views, **fields)


def in_order(
    b: Any, operands: list[Operand], y: Value, dense: bool = True
) -> tuple[list[Operand], Operand]:
    """The operands of an elementwise step, and y: as they are, or all seen as (N, .., C), where
    those of y's shape are stored so; then y is, too. dense: with nothing between the pixels.
    """
    whole = [operand for operand in operands if operand.shape == y.shape]
    if not whole or not all(is_image(b, operand) for operand in whole):
        return operands, y
    return [turned(b, operand, y, dense) for operand in operands], image_of(b, y).channels_last()


def is_image(b: Any, operand: Operand) -> bool:
    """Whether the channels of each pixel lie side by side."""
    return (operand if isinstance(operand, View) else b.view(operand)).is_channels_last()


def turned(b: Any, operand: Operand, y: Value, dense: bool) -> View:
    """An operand that broadcasts to y (N, C, ..), seen as (N, .., C)."""
    if operand.shape == y.shape and isinstance(operand, Value):
        return b.channels_last(operand, dense).channels_last()
    view = operand if isinstance(operand, View) else b.view(operand)
    missing = len(y.shape) - len(view.shape)
    shape, strides = (1,) * missing + tuple(view.shape), (0,) * missing + tuple(view.strides)
    return view._replace(shape=shape, strides=strides).channels_last()


def image_of(b: Any, y: Value) -> View:
    """Room for y (N, C, ..), the channels of a pixel side by side."""
    return b.allocate(y, channels_last_strides(y.shape))


def broadcast_operand(b: Any, operand: Operand) -> View:
    """An operand of a broadcasting step; dims that only repeat (stride 0) become 1."""
    view = operand if isinstance(operand, View) else b.view(operand)
    core = view._replace(
        shape=tuple(1 if stride == 0 else dim for dim, stride in zip(view.shape, view.strides)),
    )
    if core.is_contiguous():
        return core
    return materialized(b, core) if isinstance(operand, View) else b.contiguous(operand)


def broadcast_fields(shape: tuple[Dim, ...], **operands: View) -> dict[str, Any]:
    """ndim, shape and <name>_shape of a broadcasting step, right-aligned."""
    ndim = max(len(shape), 1)
    fields: dict[str, Any] = {"ndim": ndim, "shape": (1,) * (ndim - len(shape)) + tuple(shape)}
    for name, view in operands.items():
        fields[f"{name}_shape"] = (1,) * (ndim - len(view.shape)) + view.shape
    return fields


def reduce_step(b: Any, op: str, x: Operand, y: Operand, outer: Dim, n: Dim, inner: Dim) -> None:
    """y[o, i] = op over j of x[o, j, i]."""
    b.step(
        "reduce", kernel="reduce", x=x, y=y, op=op, dtype=dtype_of(x), outer=outer, n=n, inner=inner
    )


def cast_to(b: Any, x: Value, dtype: int) -> Value:
    """x in another dtype: itself, or the result of a step."""
    if x.dtype == dtype:
        return x
    y = temporary(b, dtype, x.shape)
    cast_step(b, x, y)
    return y


def cast_step(b: Any, x: Operand, y: Operand) -> None:
    fields = {"from": dtype_of(x), "to": dtype_of(y), "n": product(x.shape)}
    b.step("cast", kernel="cast", x=x, y=y, **fields)


def fill_step(b: Any, value: float, y: Value) -> None:
    """Every element of y becomes `value`."""
    size = dtypes.size(y.dtype)
    b.step("fill", y=y, elem_bytes=size, n=product(y.shape), bits=bits_of(value, y.dtype))


def bits_of(value: float, dtype: int) -> int:
    """The bytes of a number of a dtype, as an integer that args can have."""
    row = dtypes.DTYPES[dtype]
    return int.from_bytes(np.array(value, row.numpy).tobytes(), "little", signed=row.size == 8)


def chain(b: Any, op: str, operands: list[Value], y: Value) -> None:
    """y = op(op(operands[0], operands[1]), ..) with broadcasting, for two operands or more."""
    total: Value = operands[0]
    for i, operand in enumerate(operands[1:], 2):
        shape = broadcast_shapes(total.shape, operand.shape)
        into = y if i == len(operands) else temporary(b, y.dtype, shape)
        binary_step(b, op, total, operand, into)
        total = into
