"""Matrix products. A constant matrix is packed at load (kernels/gemm.h); others stay in place."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import Dim, ceildiv, minimum, product
from q7x2_ep.ir.view import View
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    NO_ACTIVATION,
    Activation,
    Guard,
    binary_step,
    broadcast,
    dims,
    expand_view,
    fit_guards,
    number,
    repeat_guards,
    require_dtype,
    reshaped,
    rows_dense,
    temporary,
    where_is,
)

MIN_TILED = 128, 1 << 15  # rows and columns of b; elements of it
MIN_TILED_HALVES = 96, 1 << 14  # of 16 bits, which have fewer parts
UNEVEN = range(33, 64)  # rows of a by floats: two groups of tiles that are not full
PLAIN = (dtypes.DOUBLE, dtypes.INT32, dtypes.INT64, dtypes.UINT32, dtypes.UINT64)  # never packed


def matmul_scratch(b: Any, k: Dim, n: Dim, most: str) -> Dim:
    """Up to `most` panels of n columns a thread. Source: csrc/ops/matmul.c. Units: bytes."""
    nr = b.kernel("gemm").nr
    panels = minimum(ceildiv(n, nr), b.constants[most])
    return b.threads * minimum(k, b.constants["GEMM_K_BLOCK"]) * panels * nr * 4


def gated_scratch(b: Any, m: Dim) -> Dim:
    """The sums of one task a thread. Source: csrc/ops/gemm.c. Units: bytes."""
    columns = b.constants["GEMM_PANELS"] * b.kernel("gemm").nr
    return b.threads * minimum(m, b.constants["GEMM_ROWS"]) * columns * 4


def fits_tiles(m: Dim, k: Dim, n: Dim, dtype: int = dtypes.FLOAT) -> bool:
    """Whether a product of a (m, k) by b (k, n) gains by tiles of AMX: what they take besides, as
    cutting rows and storing sums, is too much for few columns and for short sums. Sizes that a
    model leaves open are taken for large. dtype: of b. Source: docs/decisions.md 134 and 139.
    """
    if dtype == dtypes.FLOAT and isinstance(m, int) and m in UNEVEN:
        return False
    known = [size for size in (k, n) if isinstance(size, int)]
    least, elements = MIN_TILED if dtype == dtypes.FLOAT else MIN_TILED_HALVES
    return all(size >= least for size in known) and (len(known) < 2 or product(known) >= elements)


def gemm_step(
    b: Any,
    a: View,
    weight: Any,
    c: View,
    n: int,
    bias: Optional[Value] = None,
    residual: Optional[Value] = None,
    act: Activation = NO_ACTIVATION,
    alpha: float = 1.0,
    gated: bool = False,
    up_bias: Optional[Value] = None,
) -> None:
    """c = act(alpha * a @ weight + bias) + residual; weight is from b.packed, or a view of panels.

    gated: the weight holds gate and up, and c = act(a @ gate + bias) * (a @ up + up_bias).
    Shapes: a (m, k) and c (m, n), rows dense; bias, up_bias (n,); residual (m, n).
    """
    m, k = a.shape
    a = rows_dense(b, a)
    b_dtype = dtypes.FLOAT if isinstance(weight, View) else weight.dtype
    b.step(
        "gemm",
        kernel="gemm",
        tiles=fits_tiles(m, k, n * (1 + gated), b_dtype),
        a=a,
        b=weight,
        bias=bias,
        up_bias=up_bias,
        residual=residual,
        c=c,
        sums=gated_scratch(b, m) if gated and k > b.constants["GEMM_K_BLOCK"] else None,
        m=m,
        n=n,
        k=k,
        a_stride=a.strides[0],
        c_stride=c.strides[0],
        residual_stride=n if residual is not None else 0,
        b_dtype=b_dtype,
        gated=int(gated),
        act=act.name,
        alpha=alpha,
        act_alpha=act.alpha,
        act_beta=act.beta,
    )


def plain_matrix(b: Any, matrix: Value, turned: bool = False) -> View:
    """A matrix (k, n), or turned (n, k), as the step matmul_plain reads it: constant doubles of
    several columns in the panels of kernels/dgemm.h, a view of three dims.
    """
    shape = matrix.shape[::-1] if turned else matrix.shape
    if matrix.const is None or matrix.dtype != dtypes.DOUBLE or shape[1] < 2:
        return b.view(matrix).transpose((1, 0)) if turned else b.view(matrix)
    k, n = shape
    nr = b.kernel("dgemm").nr
    count = -(-n // nr)
    columns = np.zeros((k, count * nr))
    columns[:, :n] = matrix.const.T if turned else matrix.const
    panels = columns.reshape(k, count, nr).transpose(1, 0, 2).copy()
    return b.view(b.graph.constant(panels, Type(dtypes.DOUBLE, panels.shape)))


def plain_step(b: Any, a: View, right: View, c: View, bias: Optional[Value] = None) -> None:
    """c = a @ right + bias (n,) over the batch dims of c, of dtypes in PLAIN; a and right may have
    any strides, and right be of plain_matrix.
    """
    batch, in_panels = c.shape[:-2], len(right.shape) > len(c.shape)
    a = expand_view(a, (*batch, *a.shape[-2:]))
    if not in_panels:
        right = expand_view(right, (*batch, *right.shape[-2:]))
    b.step(
        "matmul_plain",
        kernel="dgemm",
        a=a,
        b=right,
        bias=bias,
        c=c,
        dtype=c.storage.dtype,
        **_sizes(a, right, c),
        b_panel_stride=right.strides[0] if in_panels else 0,
    )


def _sizes(a: View, right: View, c: View) -> dict[str, Any]:
    """What the steps of products by matrices in place are told of their operands."""
    batch = c.shape[:-2]
    return {
        "m": c.shape[-2],
        "n": c.shape[-1],
        "k": a.shape[-1],
        "ndim": len(batch),
        "batch": batch,
        "a_batch_stride": a.strides[:-2],
        "b_batch_stride": right.strides[:-2] if len(right.shape) == len(c.shape) else (),
        "a_row_stride": a.strides[-2],
        "a_col_stride": a.strides[-1],
        "b_row_stride": right.strides[-2],
        "b_col_stride": right.strides[-1],
    }


def matmul_step(b: Any, a: View, right: View, c: View, alpha: float = 1.0) -> None:
    """c = alpha * a @ right over the batch dims of c; a and right may have any strides.

    dtypes: float32; of those in PLAIN, products whose alpha is 1.
    """
    if c.storage.dtype != dtypes.FLOAT:
        plain_step(b, a, right, c)
        return
    batch = c.shape[:-2]
    a, right = (
        expand_view(a, (*batch, *a.shape[-2:])),
        expand_view(right, (*batch, *right.shape[-2:])),
    )
    b.step(
        "matmul",
        kernel="gemm",
        tiles=fits_tiles(c.shape[-2], a.shape[-1], c.shape[-1]),
        a=a,
        b=right,
        c=c,
        pack=matmul_scratch(b, a.shape[-1], c.shape[-1], "MATMUL_PANELS"),
        **_sizes(a, right, c),
        alpha=alpha,
    )


@op("MatMul")
class MatMul:
    """y = a @ b, batch dims broadcast; a vector is a row on the left and a column on the right."""

    signature = "a: N, b: N -> y"
    attributes: dict = {}

    infer = lambda node: [
        Type(node.inputs[0].dtype, product_shape(node, dims(node, 0), dims(node, 1)))
    ]
    guards = lambda node: product_guards(node, dims(node, 0), dims(node, 1))
    reference = lambda node, a, b: np.matmul(a, b)

    def lower(node: Node, b: Any) -> None:
        left, right = node.inputs
        require_dtype(node, left.dtype, (*F32, *PLAIN))
        multiply(b, left, right, node.output, node.attrs.get("alpha", 1.0))


def product_shape(node: Node, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape of a @ b, batch dims broadcast.

    Raises: ModelError for scalars, and for inner dims that no run fits.
    """
    if not a or not b:
        raise ModelError(f"{where_is(node)} multiplies tensors, not scalars")
    require_inner(node, a, b, a[-1], b[-2] if len(b) > 1 else b[-1])
    batch = broadcast(node, a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def require_inner(node: Node, a: tuple[Dim, ...], b: tuple[Dim, ...], k: Dim, other: Dim) -> None:
    """Raises: ModelError where k of a and the other of b, over which products are added up, are
    known and differ.
    """
    if isinstance(k, int) and isinstance(other, int) and k != other:
        raise ModelError(
            f"{where_is(node)} inner dims {k} and {other} of shapes {a} and {b} differ"
        )


def product_guards(node: Node, a: tuple[Dim, ...], b: tuple[Dim, ...]) -> list[Guard]:
    """Of a @ b."""
    k, other = a[-1], b[-2] if len(b) > 1 else b[-1]
    found: list[Guard] = [(k, other, "inner dims differ")] if k != other else []
    batches = a[:-2], b[:-2]
    if all(batches):  # else that of one is that of the result
        batch = broadcast(node, *batches)
        for shape in batches:
            found += repeat_guards("batch dim", shape, batch)
    return found


def multiply(b: Any, left: Value, right: Value, y: Value, alpha: float = 1.0) -> None:
    """y = alpha * left @ right, of what MatMul takes."""
    if len(right.shape) == 2:
        multiply_matrix(b, left, right, y, alpha)
        return
    a, other, batch = matrices(b, left, right, y)
    c = b.allocate(y).reshape((*batch, a.shape[-2], other.shape[-1]))
    matmul_step(b, a, other, c, alpha)


def matrices(b: Any, left: Value, right: Value, y: Value) -> tuple[View, View, tuple[Dim, ...]]:
    """The operands of a product as matrices, a vector as MatMul has it, and the batch dims of y."""
    a, other = b.view(left), b.view(right)
    if len(left.shape) == 1:
        a = View(a.storage, (1, *a.shape), (0, *a.strides), a.offset)
    if len(right.shape) == 1:
        other = View(other.storage, (*other.shape, 1), (*other.strides, 0), other.offset)
    batch = y.shape[: len(y.shape) - (len(left.shape) > 1) - (len(right.shape) > 1)]
    return a, other, batch


def multiply_matrix(b: Any, left: Value, matrix: Value, y: Value, alpha: float) -> None:
    """y = alpha * left @ matrix, with all leading dims of left as rows of one product."""
    k, n = matrix.shape
    m = product(left.shape[:-1])
    a, c = reshaped(b, left, (m, k)), b.allocate(y).reshape((m, n))
    if matrix.const is not None and matrix.dtype == dtypes.FLOAT:
        gemm_step(b, a, b.packed(k, n, n, 1, matrix, narrow=True), c, n, alpha=alpha)
    elif matrix.dtype in PLAIN:
        plain_step(b, a, plain_matrix(b, matrix), c)
    else:
        matmul_step(b, a, b.view(matrix), c, alpha)


@op("q7::ScaledMatMul")
class ScaledMatMul:
    """y = alpha * a @ b, for any a and b that MatMul takes."""

    signature = MatMul.signature
    attributes = {"alpha": 1.0}
    infer = MatMul.infer
    guards = MatMul.guards
    decompose = lambda g, a, b, alpha: g.Mul(g.MatMul(a, b), alpha)
    lower = MatMul.lower


@op("Gemm")
class Gemm:
    """y = alpha * a' @ b' + beta * c, a' and b' maybe transposed, c broadcast to (m, n); where beta
    is 0, c is nothing, whatever it holds.
    """

    signature = "a: N, b: N, c?: N -> y"
    attributes = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}

    def infer(node: Node) -> list[Type]:
        a, b = dims(node, 0), dims(node, 1)
        if (len(a), len(b)) != (2, 2):
            raise ModelError(f"{where_is(node)} multiplies matrices, not shapes {a} and {b}")
        (m, k), (other, n) = Gemm.sizes(node)
        require_inner(node, a, b, k, other)
        return [Type(node.inputs[0].dtype, (m, n))]

    def sizes(node: Node) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        """The shapes of a' and b'."""
        a, b = dims(node, 0), dims(node, 1)
        return (
            a[::-1] if node.attrs["transA"] else a,
            b[::-1] if node.attrs["transB"] else b,
        )

    def guards(node: Node) -> list[Guard]:
        (_, k), (other, _) = Gemm.sizes(node)
        found: list[Guard] = [(k, other, "inner dims differ")] if k != other else []
        return found + fit_guards((node.input(2),), node.output.shape)

    def reference(
        node: Node, a: np.ndarray, b: np.ndarray, c: Optional[np.ndarray] = None
    ) -> np.ndarray:
        product_ = (
            (a.T if node.attrs["transA"] else a)
            @ (b.T if node.attrs["transB"] else b)
            * node.attrs["alpha"]
        )
        beta = node.attrs["beta"]
        y = product_ if c is None or beta == 0.0 else product_ + c * beta
        return y.astype(a.dtype, copy=False)

    def lower(node: Node, b: Any) -> None:
        left, right, addend = node.inputs[0], node.inputs[1], _addend(node)
        if left.dtype in PLAIN:
            lower_plain(node, b)
            return
        require_dtype(node, left.dtype, F32)
        m, n = node.output.shape
        a = b.view(left).transpose((1, 0)) if node.attrs["transA"] else b.view(left)
        k = right.shape[1 if node.attrs["transB"] else 0]
        if addend is not None and node.attrs["beta"] != 1.0:
            scaled = temporary(b, addend.dtype, addend.shape)
            binary_step(b, "mul", addend, number(b, node.attrs["beta"], addend.dtype), scaled)
            addend = scaled
        shape = None if addend is None else addend.shape
        as_bias = shape in ((n,), (1, n))  # one value per column
        as_residual = shape == (m, n) and not as_bias
        fused = addend is None or as_bias or as_residual
        if right.const is None:
            fused = addend is None
        y = node.output if fused else temporary(b, left.dtype, (m, n))
        if right.const is not None:
            strides = (1, k) if node.attrs["transB"] else (n, 1)
            weight = b.packed(k, n, *strides, right, narrow=True)
            bias, residual = addend if as_bias else None, addend if as_residual else None
            gemm_step(b, a, weight, b.allocate(y), n, bias, residual, alpha=node.attrs["alpha"])
        else:
            other = b.view(right).transpose((1, 0)) if node.attrs["transB"] else b.view(right)
            matmul_step(b, a, other, b.allocate(y), node.attrs["alpha"])
        if not fused:
            binary_step(b, "add", y, addend, node.output)


def _addend(node: Node) -> Optional[Value]:
    return node.input(2) if node.attrs["beta"] else None


def lower_plain(node: Node, b: Any) -> None:
    """Gemm in the steps that it is made of.

    Raises: UnsupportedOp for integers times a fraction.
    """
    left, right, addend, y = *node.inputs[:2], _addend(node), node.output
    factors = node.attrs["alpha"], node.attrs["beta"] if addend is not None else 1.0
    if not dtypes.is_float(y.dtype) and any(factor % 1 for factor in factors):
        raise UnsupportedOp(
            f"{where_is(node)} multiplies {dtypes.type_string(y.dtype)} by fractions"
        )

    def scaled(x: Value, factor: float) -> Value:
        if factor == 1.0:
            return x
        result = temporary(b, x.dtype, x.shape)
        binary_step(b, "mul", x, number(b, factor, x.dtype), result)
        return result

    a = b.view(left).transpose((1, 0)) if node.attrs["transA"] else b.view(left)
    other = plain_matrix(b, right, bool(node.attrs["transB"]))
    if addend is not None:
        addend = scaled(addend, factors[1])
    as_bias = addend is not None and addend.shape in ((y.shape[1],), (1, y.shape[1]))
    if factors[0] == 1.0 and (addend is None or as_bias):
        plain_step(b, a, other, b.allocate(y), addend)
        return
    total = temporary(b, y.dtype, y.shape)
    plain_step(b, a, other, b.allocate(total))
    zero = number(b, 0, y.dtype)
    binary_step(b, "add", scaled(total, factors[0]), zero if addend is None else addend, y)
