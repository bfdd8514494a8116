"""Products with weights of a few bits, which have a scale and a zero for each block of a column.

They stay packed: csrc/ops/block_gemm.c makes floats of them where they are used.
Source: ONNX DequantizeLinear with a block_size; com.microsoft MatMulNBits.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value, array_type
from q7x2_ep.ir.shape import ceildiv, product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    F32,
    Guard,
    dims,
    require_dtype,
    reshaped,
    rows_dense,
    size_guards,
    where_is,
)
from q7x2_ep.ops.matmul import gemm_step
from q7x2_ep.ops.quant import integer_limits, require_constants
from q7x2_ep.ops.quant_pack import in_groups

BITS = {
    **{dtypes.UINT8: 8, dtypes.INT8: 8, dtypes.UINT4: 4, dtypes.INT4: 4},
    **{dtypes.UINT2: 2, dtypes.INT2: 2},
}


class Blocks(NamedTuple):
    """w = (q - zero) * scale, repeated for `size` rows each.

    Shapes: w (k, N); q (ceil(k * bits / 8), N) of uint8, as `packed` makes it; scale and zero
    (ceil(k / size), N) of float32.
    """

    q: np.ndarray
    k: int
    scale: np.ndarray
    zero: np.ndarray
    bits: int
    size: int


def block_step(
    b: Any, x: Value, blocks: Blocks, bias: Optional[Value], y: Value, in_bytes: bool = False
) -> None:
    """y = x @ w + bias; in_bytes: x may be rounded to int8, in blocks as those of w.

    Shapes: x (.., K), bias N elements, y (.., N).
    """
    zero = _short(blocks)
    rounds = in_bytes and b.kernel("qgemm").dtypes != "i16" and _fits_bytes(b, blocks, zero)
    op_name = "block_qgemm" if rounds else "block_gemm"
    tiles = rounds or _fits_tiles(blocks, zero, b.constants["GEMM_TILE_K"])
    kernel = b.target.kernel(op_name, tiles=tiles)
    k, n = blocks.k, blocks.q.shape[1]

    def constant(array: np.ndarray, hint: str) -> Value:
        return b.graph.constant(array, array_type(array), hint)

    rows = rows_dense(b, reshaped(b, x, (product(x.shape[:-1]), k)))
    depth = b.constants["BLOCK_QGEMM_K" if rounds else "BLOCK_GEMM_K"]
    if rounds:  # q7_block_row_bytes and q7_block_room
        row_bytes = -(-k // 64) * 64 + 3 * (-(-len(blocks.scale) * 4 // 64) * 64)
        room = depth + depth // 16 * 4 + b.constants["GEMM_ROWS"] * 4
        more = {"rows": rows.shape[0] * row_bytes, "room": b.threads * kernel.nr * room}
    else:
        more = {
            "room": b.threads * depth * kernel.nr * 4,
            "zero_dtype": dtypes.FLOAT if zero is None else dtypes.from_numpy(zero.dtype),
        }
    b.step(
        op_name,
        kernel=op_name,
        tiles=tiles,
        a=rows,
        q=constant(
            words(blocks.q, blocks.bits, kernel.nr) if rounds else panels(blocks.q, kernel.nr), "q"
        ),
        scale=constant(panels(blocks.scale, kernel.nr), "scale"),
        zero=None if zero is None else constant(panels(zero, kernel.nr), "zero"),
        bias=bias,
        c=y,
        m=rows.shape[0],
        n=n,
        k=k,
        a_stride=rows.strides[0],
        bits=blocks.bits,
        block=blocks.size,
        **more,
    )


def _fits_bytes(b: Any, blocks: Blocks, zero: Optional[np.ndarray]) -> bool:
    """Whether csrc/kernels/block_qgemm.h applies, to weights for which onnxruntime rounds, too."""
    least, most = (32, 128) if blocks.bits == 2 else (16, b.constants["BLOCK_QGEMM_K"])
    is_size = blocks.size % 16 == 0 and least <= blocks.size <= most
    is_byte = zero is None or (zero.dtype == np.uint8 and blocks.bits < 8)
    if b.kernel("block_qgemm").dtypes == "u8x2":  # which saturates
        is_byte &= blocks.bits < 8
    return is_size and is_byte and bool((blocks.zero < 1 << blocks.bits).all())


def _fits_tiles(blocks: Blocks, zero: Optional[np.ndarray], tile_k: int) -> bool:
    """Whether AMX can multiply integers q - zero, as csrc/kernels/block_gemm.h says."""
    size = blocks.size
    is_size = tile_k % size == 0 or size % tile_k == 0 or len(blocks.scale) == 1
    is_byte = zero is None or (zero.dtype == np.uint8 and (blocks.bits == 8 or zero.max() < 16))
    return size % 32 == 0 and is_size and bool(is_byte)


def _short(blocks: Blocks) -> Optional[np.ndarray]:
    """The zeros in as few bytes as they need; none where all are the middle of the range."""
    zero = blocks.zero
    if (zero == 1 << blocks.bits - 1).all():
        return None
    whole = ((zero == np.rint(zero)) & (zero >= 0) & (zero <= 255)).all()
    return zero.astype(np.uint8) if whole else zero


def packed(q: np.ndarray, bits: int) -> np.ndarray:
    """Rows i * per to i * per + per - 1 of q (K, N), per = 8 / bits, in the bits of row i."""
    per = 8 // bits
    rows = -(-len(q) // per)
    padded = np.zeros((rows * per, q.shape[1]), np.uint8)
    padded[: len(q)] = q
    parts = padded.reshape(rows, per, -1)
    whole = parts[:, 0]
    for i in range(1, per):
        whole = whole | parts[:, i] << i * bits
    return whole


def panels(rows: np.ndarray, nr: int) -> np.ndarray:
    """rows (R, N) as panels (.., R, nr), zeros behind the last column."""
    whole, rest = divmod(rows.shape[1], nr)
    made = np.zeros((whole + bool(rest), len(rows), nr), rows.dtype)
    made[:whole] = rows[:, : whole * nr].reshape(len(rows), whole, nr).transpose(1, 0, 2)
    if rest:
        made[whole, :, :rest] = rows[:, whole * nr :]
    return made


def words(rows: np.ndarray, bits: int, nr: int) -> np.ndarray:
    """rows (R, N) of `packed` as panels (.., words, nr, 4) of four rows each, zeros behind the last
    one, as many as csrc/kernels/block_qgemm.h wants, and column.
    """
    return in_groups(rows, ceildiv(len(rows), 2 * bits) * bits // 2, 4, nr)


@op("q7::BlockLinear")
class BlockLinear:
    """y = x @ dequantize(w) + bias, for a constant w with a scale, and a zero, for each block of
    block_size rows of a column. in_bytes: as in block_step.

    Shapes: x (.., K), w (K, N) or with trans_b (N, K), scale and zero likewise with
    ceil(K / block_size) for K, bias N elements, y (.., N).
    Types: w and zero an integer of 8, 4 or 2 bits.
    """

    signature = "x, w, scale, zero?, bias? -> y"
    attributes = {"block_size": 0, "trans_b": 0, "in_bytes": 0}

    def infer(node: Node) -> list[Type]:
        x, w = node.inputs[:2]
        return [Type(x.dtype, (*x.shape[:-1], w.shape[0 if node.attrs["trans_b"] else 1]))]

    def decompose(
        g: Any,
        x: Value,
        w: Value,
        scale: Value,
        zero: Optional[Value] = None,
        bias: Optional[Value] = None,
        block_size: int = 0,
        trans_b: int = 0,
        in_bytes: int = 0,
    ) -> Value:
        real = g.DequantizeLinear(w, scale, zero, axis=trans_b, block_size=block_size)
        y = g.MatMul(x, g.Transpose(real, perm=(1, 0)) if trans_b else real)
        return y if bias is None else g.Add(y, bias)

    def guards(node: Node) -> list[Guard]:
        x, w = node.inputs[:2]
        n, k = w.shape if node.attrs["trans_b"] else w.shape[::-1]
        return [(x.shape[-1], k, "inner dims differ"), *size_guards((node.input(4),), n)]

    def lower(node: Node, b: Any) -> None:
        x, w, scale, zero = (node.input(i) for i in range(4))
        require_dtype(node, x.dtype, F32)
        require_dtype(node, w.dtype, tuple(BITS))
        require_constants(node, w, scale, zero)
        low = int(integer_limits(w.const.dtype).min)  # what 0 bits stand for
        zeros = np.zeros(scale.shape, np.float32) if zero is None else zero.const.astype(np.float32)
        q = (w.const.astype(np.int16) - low).astype(np.uint8)
        arrays = [q, scale.const.astype(np.float32), zeros - np.float32(low)]
        if node.attrs["trans_b"]:
            arrays = [array.T for array in arrays]
        bits, size = BITS[w.dtype], node.attrs["block_size"]
        blocks = Blocks(packed(arrays[0], bits), len(arrays[0]), *arrays[1:], bits, size)
        in_bytes = bool(node.attrs["in_bytes"])
        block_step(b, x, blocks, node.input(4), node.output, in_bytes)


@op("com.microsoft::MatMulNBits")
class MatMulNBits:
    """y = a @ w^T + bias, w (N, K) of `bits` bits, a scale and a zero for each block of a row.

    Shapes: a (.., K); b (N, blocks, block_size * bits / 8), packed from the lowest bits on; scales
    N * blocks; zero_points likewise, or rows of packed bits; g_idx (K,): the block of each column
    of w, if it is another; bias (N,). Without zero points they are 2^(bits - 1).
    """

    signature = "a: F, b: uint8, scales: F, zero_points?: N, g_idx?: int32, bias?: F -> y"
    attributes = {
        **{"K": None, "N": None, "bits": 4, "block_size": None, "accuracy_level": 0},
        "weight_prepacked": 0,
    }

    def infer(node: Node) -> list[Type]:
        a, _ = dims(node), block_count(node)
        return [Type(node.inputs[0].dtype, (*a[:-1], node.attrs["N"]))]

    def guards(node: Node) -> list[Guard]:
        inner = (node.inputs[0].shape[-1], node.attrs["K"], "inner dims differ")
        return [inner, *size_guards((node.input(5),), node.attrs["N"])]

    def reference(
        node: Node,
        a: np.ndarray,
        b: np.ndarray,
        scales: np.ndarray,
        zero_points: Optional[np.ndarray] = None,
        g_idx: Optional[np.ndarray] = None,
        bias: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        order = column_blocks(node, g_idx)
        weight = _dense(node, _operands(node, b, scales, zero_points), order)
        wide = np.result_type(a.dtype, np.float32) if a.dtype.kind == "f" else np.float32
        y = a.astype(wide) @ weight.astype(wide)
        return (y if bias is None else y + bias.astype(wide)).astype(a.dtype)

    def lower(node: Node, b: Any) -> None:
        a, y, bias = node.inputs[0], node.output, node.input(5)
        require_dtype(node, a.dtype, F32)
        bits, size = node.attrs["bits"], node.attrs["block_size"]
        if bits not in (2, 4, 8) or size * bits % 8 or node.attrs["weight_prepacked"]:
            raise UnsupportedOp(f"{where_is(node)} has kernels for plain 2, 4 and 8 bits")
        require_constants(node, *(node.input(i) for i in range(1, 5)))
        arrays = (value and value.const for value in (node.input(i) for i in range(1, 4)))
        operands = _operands(node, *arrays)
        order = column_blocks(node, node.input(4) and node.input(4).const)
        if order is None or np.array_equal(order, np.arange(len(order)) // size):
            blocks = _blocks(node, *operands)
            block_step(b, a, blocks, bias, y, in_bytes=node.attrs["accuracy_level"] == 4)
            return
        dense = np.ascontiguousarray(_dense(node, operands, order))
        k, n = dense.shape
        weight = b.packed(k, n, n, 1, b.graph.constant(dense, array_type(dense), "weight"))
        rows = product(a.shape[:-1])
        c = b.allocate(y).reshape((rows, n))
        gemm_step(b, reshaped(b, a, (rows, k)), weight, c, n, bias)


def block_count(node: Node) -> int:
    """How many blocks a row of MatMulNBits has.

    Raises: ModelError where its attributes are not sizes.
    """
    k, n, size = (node.attrs[key] or 0 for key in ("K", "N", "block_size"))
    if min(k, n, size) < 1:
        raise ModelError(f"{where_is(node)} K, N and block_size are {k}, {n} and {size}")
    return -(-k // size)


def column_blocks(node: Node, g_idx: Optional[np.ndarray]) -> Optional[np.ndarray]:
    """The block of each column; g_idx may go on to the end of the last block.

    Raises: ModelError where it does not name a block for each column.
    """
    if g_idx is None:
        return None
    count, columns = block_count(node), node.attrs["K"]
    sizes = (columns, count * node.attrs["block_size"])
    if g_idx.ndim != 1 or len(g_idx) not in sizes or g_idx.min() < 0 or g_idx.max() >= count:
        raise ModelError(f"{where_is(node)} g_idx names other blocks than the {count} of a row")
    return g_idx[:columns]


def _operands(
    node: Node, b: np.ndarray, scales: np.ndarray, zero_points: Optional[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of MatMulNBits: b as rows of bytes, and scale and zero (N, blocks) of float32.

    Raises: ModelError where they are not of the sizes that its attributes say.
    """
    n, bits, size = (node.attrs[key] for key in ("N", "bits", "block_size"))
    count = block_count(node)
    wanted = [(b, n * count * -(-size * bits // 8)), (scales, n * count)]
    if zero_points is not None:
        is_packed = not dtypes.holds_floats(zero_points)
        wanted.append((zero_points, n * -(-count * bits // 8) if is_packed else n * count))
    for array, elements in wanted:
        if array.size != elements:
            raise ModelError(
                f"{where_is(node)} {array.shape} are not {elements} elements, for {n} rows of "
                f"{count} blocks of {size}"
            )
    scale = scales.reshape(n, count).astype(np.float32)
    if zero_points is None:
        zero = np.full((n, count), 1 << bits - 1, np.float32)
    elif dtypes.holds_floats(zero_points):
        zero = zero_points.reshape(n, count).astype(np.float32)
    else:
        zero = _unpacked(zero_points.reshape(n, -1), bits)[:, :count].astype(np.float32)
    return np.asarray(b).view(np.uint8).reshape(n, -1), scale, zero


def _blocks(node: Node, rows: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> Blocks:
    """The operands of MatMulNBits, transposed: a row of w is a column of q as it is."""
    k, bits, size = (node.attrs[key] for key in ("K", "bits", "block_size"))
    q = rows[:, : -(-k * bits // 8)].T
    if k * bits % 8:  # zeros behind the last row
        q = q.copy()
        q[-1] &= (1 << k * bits % 8) - 1
    return Blocks(q, k, scale.T, zero.T, bits, size)


def _unpacked(rows: np.ndarray, bits: int) -> np.ndarray:
    """The elements of packed rows, from the lowest bit of each on."""
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return (rows[:, :, None] >> shifts & ((1 << bits) - 1)).reshape(len(rows), -1)
    stream = np.unpackbits(rows, axis=1, bitorder="little")
    whole = stream[:, : stream.shape[1] // bits * bits].reshape(len(rows), -1, bits)
    return np.packbits(whole, axis=2, bitorder="little")[:, :, 0]


def _dense(node: Node, operands: tuple, g_idx: Optional[np.ndarray]) -> np.ndarray:
    """w (K, N) of MatMulNBits."""
    (rows, scale, zero), k = operands, node.attrs["K"]
    block = np.arange(k) // node.attrs["block_size"] if g_idx is None else g_idx
    q = _unpacked(rows, node.attrs["bits"])[:, :k].astype(np.float32)
    return ((q - zero[:, block]) * scale[:, block]).T
