"""MatMul and Gemm by a constant that is dequantised by blocks -> q7::BlockLinear. It takes the bias
behind it, as MatMulNBits does.

The weights stay as few bits as they are. Blocks run along k, so that a column has several scales.
"""

from __future__ import annotations

from typing import Any, Optional, Union

from q7x2_ep.fuse.epilogue import is_row
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops.blocks import BITS
from q7x2_ep.ops.quant import is_blocked

LINEAR, DEQUANTIZE = "q7::BlockLinear", "DequantizeLinear"
BITS_LINEAR = "com.microsoft::MatMulNBits"
BIAS_OF = {LINEAR: 4, BITS_LINEAR: 5}  # which input


def matmul(g: Any, x: Any, w: Any) -> Any:
    return g.MatMul(x, g.result(DEQUANTIZE, w))


def matmul_turned(g: Any, x: Any, w: Any) -> Any:
    return g.MatMul(x, g.named("turned", g.Transpose(g.result(DEQUANTIZE, w), perm=(1, 0))))


def gemm(g: Any, x: Any, w: Any) -> Any:
    return g.Gemm(x, g.result(DEQUANTIZE, w), transA=0, alpha=1.0)


def gemm_bias(g: Any, x: Any, w: Any, bias: Any) -> Any:
    return g.Gemm(x, g.result(DEQUANTIZE, w), bias, transA=0, alpha=1.0, beta=1.0)


def _check(match: Match) -> Union[dict[str, Any], str]:
    x, node, bias = match["x"], match["w"].producer, match.get("bias")
    w, scale, zero = (node.input(i) for i in range(3))
    trans_b = int(match.root.attrs.get("transB", 0) or match.get("turned") is not None)
    size = node.attrs["block_size"]
    if any(value is not None and value.const is None for value in (w, scale, zero)):
        return f"{w!r}, its scale or its zero is not constant"
    if len(w.shape) != 2 or not is_blocked(node) or node.attrs["axis"] % 2 != trans_b:
        return f"{w!r} is not dequantised by blocks of rows that are multiplied"
    if w.dtype not in BITS or size * BITS[w.dtype] % 8:
        return f"{w!r} has blocks of {size}, which are no whole bytes"
    if not x.shape or x.shape[-1] != w.shape[trans_b]:
        return f"{x!r} has shape {x.shape}, wanted rows of {w.shape[trans_b]}"
    if bias is not None and not is_row(bias, (w.shape[1 - trans_b],), 2):
        return f"the bias {bias!r} has shape {bias.shape}, wanted a row"
    # What onnxruntime makes a MatMulNBits of: of others it rounds no rows, whatever was asked.
    has_row = bias is None or len(bias.shape) == 1
    is_usual = not trans_b and size >= 16 and size & size - 1 == 0 and has_row
    in_bytes = int(is_usual and bool(node.attrs["in_bytes"]))
    return {
        "operands": [x, w, scale, zero, bias],
        "attrs": {"block_size": size, "trans_b": trans_b, "in_bytes": in_bytes},
    }


def biased(g: Any, linear: Any, bias: Any) -> Any:
    return g.Add(g.result(LINEAR, linear), g.constant(bias))


def biased_bits(g: Any, linear: Any, bias: Any) -> Any:
    return g.Add(g.result(BITS_LINEAR, linear), g.constant(bias))


def _check_bias(match: Match) -> Union[dict[str, Any], str]:
    y, bias = match["linear"], match["bias"]
    node: Node = y.producer
    if not is_row(bias, y.shape[-1:], len(y.shape)):
        return f"{bias!r} has shape {bias.shape}, wanted a row of {y.shape[-1]}"
    last = BIAS_OF[node.op]
    if node.input(last) is not None:
        return ""
    inputs = [node.input(i) for i in range(last)]
    return {"operands": [*inputs, bias], "attrs": node.attrs, "op": node.op}


def _build(
    g: Any, operands: list[Optional[Value]], attrs: dict[str, Any], op: str = LINEAR
) -> Value:
    return g.call(op, *operands, **attrs)


PRODUCT = Fusion("BlockLinear", (matmul, matmul_turned, gemm, gemm_bias), _check, _build)
BIAS = Fusion("BlockBias", (biased,), _check_bias, _build)
BITS_BIAS = Fusion("BitsBias", (biased_bits,), _check_bias, _build)
