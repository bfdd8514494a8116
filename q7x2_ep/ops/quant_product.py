"""Products of integers that stand for real numbers: sums in int32, scaled and rounded as they are
stored. Read quant.py first.

Source: ONNX MatMulInteger, QLinearMatMul; Jacob et al. 2018, section 2.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value, array_type
from q7x2_ep.ir.shape import ceildiv, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.activation import ACTIVATIONS
from q7x2_ep.ops.common import (
    BYTES,
    F32,
    NO_ACTIVATION,
    Activation,
    binary_step,
    cast_step,
    dims,
    dtype_of,
    expand_view,
    materialized,
    require_dtype,
    reshaped,
    rows_dense,
    temporary,
    where_is,
)
from q7x2_ep.ops.matmul import matrices, multiply, product_guards, product_shape
from q7x2_ep.ops.quant import one_scale, require_constants, saturated
from q7x2_ep.ops.quant_pack import fits_tiles, pack, panel_bytes, qgemm_room

# The panels that a run makes: to find what u8x2 must be relieved of takes longer than a product.
MADE_AT_RUN = "u8", "i16"


def integer_product(
    a: np.ndarray,
    b: np.ndarray,
    a_zero: Union[np.ndarray, int, None],
    b_zero: Union[np.ndarray, int, None],
) -> np.ndarray:
    """(a - a_zero) @ (b - b_zero) in 64 bits. A zero per row of a is a column."""

    def centred(x: np.ndarray, zero: Any) -> np.ndarray:
        return x.astype(np.int64) - (0 if zero is None else np.asarray(zero).astype(np.int64))

    if a_zero is not None and np.ndim(a_zero) == 1 and np.size(a_zero) > 1:
        a_zero = np.asarray(a_zero)[:, None]
    return centred(a, a_zero) @ centred(b, b_zero)


class Finish(NamedTuple):
    """What becomes of the sums of an integer product: see the op row qgemm."""

    scale: Optional[Value] = None
    bias: Optional[Value] = None
    zero: Optional[Value] = None
    a_scale: Optional[Value] = None
    act: Activation = NO_ACTIVATION

    def plain(self) -> dict[str, Any]:
        """As operands and fields of a step without a scale of rows and an activation."""
        scales = 1 if self.scale is None else product(self.scale.shape)
        return {"scale": self.scale, "bias": self.bias, "zero": self.zero, "scales": scales}

    def operands(self) -> dict[str, Any]:
        """As operands and fields of a step."""
        act = {"act": self.act.name, "act_alpha": self.act.alpha, "act_beta": self.act.beta}
        return {**self.plain(), "a_scale": self.a_scale, **act}


def qgemm_step(
    b: Any,
    a: Union[Value, View],
    a_zero: Optional[Value],
    weight: np.ndarray,
    zeros: Optional[np.ndarray],
    y: Union[Value, View],
    finish: Finish,
) -> None:
    """y = (a - a_zero) @ (weight - zeros), scaled and rounded as its dtype asks.

    Shapes: a (.., K), a_zero one number, weight (K, N), zeros one or N, scale one number or (N,),
    bias (N,).
    """
    k, n = weight.shape
    tiles = fits_tiles(k, n)
    kernel = b.kernel("qgemm", tiles)
    packed, zeros = pack(weight, zeros, kernel)
    b.step(
        "qgemm",
        kernel="qgemm",
        tiles=tiles,
        a=a,
        a_zero=a_zero,
        b=b.graph.constant(packed, array_type(packed), "packed"),
        b_zero=None if zeros is None else b.graph.constant(zeros, array_type(zeros), "zeros"),
        c=y,
        rows=b.threads * b.constants["QGEMM_TILES"] * kernel.mr * qgemm_room(k),
        m=product(a.shape[:-1]),
        n=n,
        k=k,
        ndim=0,
        batch=(),
        a_batch_stride=(),
        b_batch_stride=(),
        a_stride=k,
        a_dtype=dtype_of(a),
        c_dtype=dtype_of(y),
        panel_bytes=packed.strides[0],
        **finish.operands(),
    )


def require_sizes(
    node: Node,
    n: int,
    a: Value,
    a_zero: Optional[Value],
    weight: Value,
    zeros: Optional[Value],
    finish: Finish,
) -> None:
    """Raises: UnsupportedOp unless all numbers are one, or one per column of n, the bias n, weights
    and their zeros constant, and the dtypes those of the kernel.
    """
    require_constants(node, weight, zeros)
    allowed = (
        *((a_zero, (1,)), (finish.zero, (1,)), (finish.bias, (n,))),
        *((zeros, (1, n)), (finish.scale, (1, n))),
    )
    for value, sizes in allowed:
        if value is not None and product(value.shape) not in sizes:
            raise UnsupportedOp(f"{where_is(node)} has no kernel for {value} of {value.shape}")
    for value in (a, weight):
        require_dtype(node, value.dtype, BYTES)
    require_dtype(node, node.output.dtype, (*BYTES, dtypes.INT32, *F32))


def lower_product(
    node: Node, b: Any, a: Value, a_zero: Optional[Value], weight: Value, zeros: Any, finish: Finish
) -> None:
    """node.output = (a - a_zero) @ (weight - zeros), as qgemm_step.

    Raises: UnsupportedOp where weight is computed or no matrix, or zeros differ between rows of a.
    """
    if len(weight.shape) != 2:
        raise UnsupportedOp(f"{where_is(node)} has a kernel for one matrix")
    require_sizes(node, weight.shape[1], a, a_zero, weight, zeros, finish)
    b.guard(a.shape[-1], weight.shape[0], "inner dims differ")
    qgemm_step(
        b, a, a_zero, weight.const, None if zeros is None else zeros.const, node.output, finish
    )


@op("MatMulInteger")
class MatMulInteger:
    """y = (a - a_zero) @ (b - b_zero) in int32."""

    signature = "a: B, b: B1, a_zero?: B, b_zero?: B1 -> y"
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        return [Type(dtypes.INT32, product_shape(node, dims(node, 0), dims(node, 1)))]

    def reference(
        node: Node,
        a: np.ndarray,
        b: np.ndarray,
        a_zero: Optional[np.ndarray] = None,
        b_zero: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        return integer_product(a, b, a_zero, b_zero).astype(np.int32)

    def lower(node: Node, b: Any) -> None:
        a, weight = node.inputs[:2]
        if weight.const is None or len(weight.shape) != 2:
            whole_product(node, b, (a, node.input(2)), (weight, node.input(3)), node.output)
            return
        lower_product(node, b, a, node.input(2), weight, node.input(3), Finish())


@op("QLinearMatMul")
class QLinearMatMul:
    """y = saturate(round(real a @ real b / y_scale) + y_zero), real x = (x - x_zero) * x_scale."""

    signature = (
        "a: B, a_scale: F, a_zero: B, b: B1, b_scale: F, b_zero: B1, y_scale: F, y_zero: B2 -> y"
    )
    attributes: dict = {}

    def infer(node: Node) -> list[Type]:
        return [Type(node.inputs[7].dtype, product_shape(node, dims(node, 0), dims(node, 3)))]

    def reference(
        node: Node,
        a: np.ndarray,
        a_scale: np.ndarray,
        a_zero: np.ndarray,
        b: np.ndarray,
        b_scale: np.ndarray,
        b_zero: np.ndarray,
        y_scale: np.ndarray,
        y_zero: np.ndarray,
    ) -> np.ndarray:
        a_scale, a_zero, y_scale, y_zero = (
            each[:, None] if each.ndim == 1 and each.size > 1 else each  # of rows
            for each in (a_scale, a_zero, y_scale, y_zero)
        )
        y = integer_product(a, b, a_zero, b_zero) * (a_scale * b_scale / y_scale)
        return saturated(np.rint(y) + y_zero, y_zero.dtype)

    def lower(node: Node, b: Any) -> None:
        a, a_scale, a_zero, weight, b_scale, b_zero, y_scale, y_zero = node.inputs
        if weight.const is None or len(weight.shape) != 2:
            lower_rescaled(node, b)
            return
        scale = ratio(b, node, [a_scale, b_scale], y_scale)
        lower_product(node, b, a, a_zero, weight, b_zero, Finish(scale, None, y_zero))


Bytes = tuple[Value, Optional[Value]]  # with their zeros


def computed_product(
    node: Node, b: Any, left_bytes: Bytes, right_bytes: Bytes, y: Value, finish: Finish
) -> None:
    """y = the product of two computed operands, as qgemm_step, whose zeros are one number, or of
    the right one per column.

    Raises: UnsupportedOp for other zeros.
    """
    (left, left_zero), (right, right_zero) = left_bytes, right_bytes
    for guard in product_guards(node, left.shape, right.shape):
        b.guard(*guard)
    require_dtype(node, left.dtype, BYTES)
    require_dtype(node, right.dtype, BYTES)
    if len(right.shape) == 2:  # all rows of left are of one product
        a, batch = reshaped(b, left, (product(left.shape[:-1]), left.shape[-1])), ()
        other = b.view(right)
    else:
        a, other, batch = matrices(b, left, right, y)
    a = rows_dense(b, expand_view(a, (*batch, *a.shape[-2:])))
    (m, k), n = a.shape[-2:], other.shape[-1]
    tiles = fits_tiles(k, n) if isinstance(k, int) and isinstance(n, int) else True
    kernel = b.kernel("qgemm", tiles, MADE_AT_RUN)
    if not has_one_zero(right_zero):
        _require_zeros(node, b, right_zero, right, -1)
    packed, zeros = _qpack_step(b, other, right, right_zero, kernel)
    b.step(
        "qgemm",
        kernel="qgemm",
        tiles=tiles,
        dtypes=MADE_AT_RUN,
        a=a,
        a_zero=left_zero,
        b=packed,
        b_zero=zeros,
        c=y,
        rows=b.threads * b.constants["QGEMM_TILES"] * kernel.mr * qgemm_room(k),
        m=m,
        n=n,
        k=k,
        ndim=len(batch),
        batch=batch,
        a_batch_stride=a.strides[:-2],
        b_batch_stride=expand_view(packed, (*batch, packed.shape[-1])).strides[:-1],
        a_stride=a.strides[-2],
        a_dtype=left.dtype,
        c_dtype=y.dtype,
        panel_bytes=panel_bytes(kernel, k),
        **finish.operands(),
    )


def _qpack_step(
    b: Any, view: View, right: Value, zero: Optional[Value], kernel: Any
) -> tuple[View, Optional[Value]]:
    """Matrices (.., K, N) of a computed value in panels of the kernel, (.., bytes), and what zeros
    it is to be told of.
    """
    if 1 not in view.strides[-2:]:
        view = materialized(b, view)
    *batch, k, n = view.shape
    *batch_stride, row_stride, col_stride = view.strides
    panels, size = ceildiv(n, kernel.nr), panel_bytes(kernel, k)
    packed = b.allocate(temporary(b, dtypes.INT8, (*batch, panels * size)))
    is_centred = right.dtype == dtypes.INT8 and (
        zero is None or (zero.const is not None and not zero.const.any())
    )
    is_told = kernel.dtypes == "u8" and not is_centred
    zeros = temporary(b, dtypes.INT32, (panels * kernel.nr,)) if is_told else None
    b.step(
        "qpack",
        kernel="qpack",
        b=view,
        zero=zero,
        packed=packed,
        zeros=zeros,
        n=n,
        k=k,
        ndim=len(batch),
        batch=batch,
        batch_stride=batch_stride,
        row_stride=row_stride,
        col_stride=col_stride,
        dtype=right.dtype,
        per_column=int(not has_one_zero(zero)),
        panel_bytes=size,
    )
    return packed, zeros


def _require_zeros(node: Node, b: Any, zero: Value, x: Value, axis: int) -> None:
    """Raises: UnsupportedOp unless zeros are a vector, for axis -2 or -1 of x, which a run may tell
    to be of another size.
    """
    if len(zero.shape) != 1 or len(x.shape) < 2 or not isinstance(zero.shape[0], int):
        raise UnsupportedOp(f"{where_is(node)} has no kernel for {zero} of {zero.shape}")
    place = len(x.shape) + axis
    b.guard(zero.shape[0], x.shape[axis], f"{zero} must have a zero for each of axis {place}")


def has_one_zero(zero: Optional[Value]) -> bool:
    """Whether an operand has one zero at most."""
    return zero is None or product(zero.shape) == 1


def whole_product(node: Node, b: Any, left_bytes: Bytes, right_bytes: Bytes, y: Value) -> None:
    """y = the product in int32 of two computed operands. Where rows of the left have zeros of their
    own it is one of doubles, which is exact.

    Raises: UnsupportedOp where zeros are not one number, or one per row of the left or column of
    the right.
    """
    if has_one_zero(left_bytes[1]):
        computed_product(node, b, left_bytes, right_bytes, y, Finish())
        return
    for guard in product_guards(node, left_bytes[0].shape, right_bytes[0].shape):
        b.guard(*guard)
    left, right = _centred(node, b, *left_bytes, -2), _centred(node, b, *right_bytes, -1)
    sums, wide = (temporary(b, dtype, y.shape) for dtype in (dtypes.DOUBLE, dtypes.INT64))
    multiply(b, left, right, sums)
    cast_step(b, sums, wide)
    cast_step(b, wide, y)  # which wraps


def _centred(node: Node, b: Any, x: Value, zero: Optional[Value], axis: int) -> Value:
    """x as doubles without its zeros, one or one for each of axis -2 or -1."""
    require_dtype(node, x.dtype, BYTES)
    wide = temporary(b, dtypes.DOUBLE, x.shape)
    cast_step(b, x, wide)
    if zero is None:
        return wide
    shift = temporary(b, dtypes.DOUBLE, zero.shape)
    cast_step(b, zero, shift)
    numbers = b.view(shift)
    if product(zero.shape) == 1:
        numbers = numbers.reshape((1,))
    else:
        _require_zeros(node, b, zero, x, axis)
        numbers = numbers.reshape((zero.shape[0], *(1,) * (-1 - axis)))
    centred = temporary(b, dtypes.DOUBLE, x.shape)
    binary_step(b, "sub", wide, numbers, centred)
    return centred


def lower_rescaled(node: Node, b: Any) -> None:
    """QLinearMatMul of two computed operands: sums as they are, rescaled and rounded once.

    Raises: UnsupportedOp where scales or the zero of the result are not one number, or scales no
    float32.
    """
    a, a_scale, a_zero, weight, b_scale, b_zero, y_scale, y_zero = node.inputs
    for value in (a_scale, b_scale, y_scale, y_zero):
        if product(value.shape) != 1:
            raise UnsupportedOp(f"{where_is(node)} has no kernel for {value} of {value.shape}")
    scales = a_scale, b_scale, y_scale
    for scale in scales:
        require_dtype(node, scale.dtype, F32)
    if all(scale.const is not None for scale in scales):
        factor = ratio(b, node, [a_scale, b_scale], y_scale)
    else:
        both, factor = (temporary(b, dtypes.FLOAT, (1,)) for _ in range(2))
        left, right, under = (b.view(scale).reshape((1,)) for scale in scales)
        binary_step(b, "mul", left, right, both)
        binary_step(b, "div", both, under, factor)
    y = node.output
    if has_one_zero(a_zero):
        finish = Finish(factor, None, y_zero)
        computed_product(node, b, (a, a_zero), (weight, b_zero), y, finish)
        return
    sums, real, rescaled = (
        temporary(b, dtype, y.shape) for dtype in (dtypes.INT32, dtypes.FLOAT, dtypes.FLOAT)
    )
    whole_product(node, b, (a, a_zero), (weight, b_zero), sums)
    cast_step(b, sums, real)
    binary_step(b, "mul", real, factor, rescaled)
    one = np.ones(1, np.float32)
    given = {"x": rescaled, "scale": b.graph.constant(one, array_type(one), "one"), "zero": y_zero}
    given["precision"] = dtypes.FLOAT
    b.step("quantize", kernel="quantize", y=y, y_dtype=y.dtype, **given, **one_scale(y))


def ratio(b: Any, node: Node, over: list[Value], under: Optional[Value]) -> Value:
    """The product of the scales of rows and of columns, over that of the result.

    Raises: UnsupportedOp where they are computed, or differ between rows.
    """
    require_constants(node, *over, under)
    if any(product(scale.shape) != 1 for scale in (over[0], under) if scale is not None):
        raise UnsupportedOp(f"{where_is(node)} has a kernel for one scale of all rows only")
    number = over[0].const * over[1].const
    number = np.ravel(number if under is None else number / under.const).astype(np.float32)
    return b.graph.constant(number, Type(dtypes.FLOAT, number.shape), "scale")


class Operands(NamedTuple):
    """Of q7::QuantizedLinear and q7::QuantizedConv."""

    x: Value
    x_scale: Value
    x_zero: Optional[Value]
    w: Value
    w_scale: Value
    w_zero: Optional[Value] = None
    bias: Optional[Value] = None
    y_scale: Optional[Value] = None
    y_zero: Optional[Value] = None

    @staticmethod
    def of(node: Node) -> Operands:
        return Operands(*(node.input(i) for i in range(len(Operands._fields))))

    def dtype(self) -> int:
        """Of y."""
        if self.y_scale is None:
            return dtypes.FLOAT
        return dtypes.UINT8 if self.y_zero is None else self.y_zero.dtype

    def real(self, g: Any, axis: int) -> tuple[Value, Value]:
        """x and w dequantised, w with a scale for each of axis."""
        x = g.DequantizeLinear(self.x, self.x_scale, self.x_zero)
        return x, g.DequantizeLinear(self.w, self.w_scale, self.w_zero, axis=axis)

    def stored(self, g: Any, y: Value) -> Value:
        """y, quantised again where y_scale is given."""
        return y if self.y_scale is None else g.QuantizeLinear(y, self.y_scale, self.y_zero)


@op("q7::QuantizedLinear")
class QuantizedLinear:
    """y = act(dequantize(x) @ dequantize(w) + bias), quantised again where y_scale is given.

    activation, act_alpha, act_beta: as those of q7::Linear.
    Shapes: x (.., K) with one scale and zero, w (K, N) with one or N of each, bias (N,), y (.., N).
    Types: x and w uint8 or int8, all constant but x and, without y_scale, its scale and zero; y of
    y_zero's dtype, else float.
    """

    signature = "x, x_scale, x_zero?, w, w_scale, w_zero?, bias?, y_scale?, y_zero? -> y"
    attributes = NO_ACTIVATION.attributes()

    def infer(node: Node) -> list[Type]:
        given = Operands.of(node)
        return [Type(given.dtype(), (*given.x.shape[:-1], given.w.shape[1]))]

    def decompose(
        g: Any,
        *operands: Any,
        activation: str = "none",
        act_alpha: Optional[float] = None,
        act_beta: Optional[float] = None,
    ) -> Value:
        given = Operands(*operands)
        y = g.MatMul(*given.real(g, axis=1))
        y = y if given.bias is None else g.Add(y, given.bias)
        y = ACTIVATIONS[activation](g, y, act_alpha or 0.0, act_beta or 0.0)
        return given.stored(g, y)

    def lower(node: Node, b: Any) -> None:
        x, x_scale, x_zero, w, w_scale, w_zero, bias, y_scale, y_zero = Operands.of(node)
        if x_scale.const is None and y_scale is None:
            require_constants(node, bias, w_scale)
            finish = Finish(w_scale, bias, a_scale=x_scale)
        else:
            finish = scaled_finish(b, node, [x_scale, w_scale], bias, y_scale, y_zero)
        finish = finish._replace(act=Activation.of(node.attrs))
        lower_product(node, b, x, x_zero, w, w_zero, finish)


def scaled_finish(
    b: Any,
    node: Node,
    scales: list[Value],
    bias: Optional[Value],
    y_scale: Optional[Value],
    y_zero: Optional[Value],
) -> Finish:
    """Sums times scales plus a float bias, quantised again where y_scale is given."""
    require_constants(node, bias, y_scale)
    if bias is not None and y_scale is not None:  # it is added after the scale
        divided = np.ravel(bias.const / y_scale.const).astype(np.float32)
        bias = b.graph.constant(divided, Type(dtypes.FLOAT, divided.shape), "bias")
    return Finish(ratio(b, node, scales, y_scale), bias, y_zero)
