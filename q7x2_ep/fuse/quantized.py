"""A product between DequantizeLinear and QuantizeLinear -> q7::QuantizedLinear, in integers.

The integers are what both sides of the product stand for: their products are summed exactly, and
scaled once. Without a QuantizeLinear behind, the result stays float. Weights that no such product
took, since its rows are float, are dequantised once, at load.
Source: Jacob et al. 2018, section 2.2; ONNX QLinearMatMul.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional, Union

from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion, NearMiss
from q7x2_ep.ir.shape import product
from q7x2_ep.ops.quant import BYTES

LINEAR, DEQUANTIZE = "q7::QuantizedLinear", "DequantizeLinear"


def integer_matmul(g: Any, x: Any, w: Any) -> Any:
    return g.MatMul(x, w)


def integer_gemm(g: Any, x: Any, w: Any) -> Any:
    return g.Gemm(x, w, transA=0, transB=0, alpha=1.0)


def integer_gemm_bias(g: Any, x: Any, w: Any, bias: Any) -> Any:
    return g.Gemm(x, w, bias, transA=0, transB=0, alpha=1.0, beta=1.0)


def _check(match: Match) -> Union[dict[str, Any], str]:
    x, w = (_dequantized(match[name]) for name in ("x", "w"))
    if x is None or w is None:
        return ""
    (x_int, x_scale), (w_int, w_scale) = x.inputs[:2], w.inputs[:2]
    constants = [x_scale, x.input(2), w_int, w_scale, w.input(2)]
    if any(value is not None and value.const is None for value in constants):
        return f"{w_int!r}, its scale, or that of {x_int!r} is not constant"
    if x_int.dtype not in BYTES or w_int.dtype not in BYTES or len(w_int.shape) != 2:
        return f"{x_int!r} and {w_int!r} are no bytes, or no matrix of them"
    if product(x_scale.shape) != 1:
        return f"{x_int!r} has {product(x_scale.shape)} scales, wanted one"
    if product(w_scale.shape) != 1 and w.attrs["axis"] not in (1, -1):
        return f"{w_int!r} has scales along k, wanted one per column"
    bias = match.get("bias")
    if bias is not None and not _is_row(bias, w_int.shape[1]):
        return f"the bias {bias!r} is no constant row"
    operands = [x_int, x_scale, x.input(2), w_int, w_scale, w.input(2)]
    return {"operands": operands if bias is None else [*operands, bias]}


def _dequantized(value: Value) -> Optional[Node]:
    """What dequantises a value, in one scale or one per entry of an axis."""
    node = value.producer
    plain = node is not None and node.op == DEQUANTIZE and not node.attrs["block_size"]
    return node if plain else None


def _is_row(bias: Value, n: int) -> bool:
    return bias.const is not None and bias.shape == (1,) * (len(bias.shape) - 1) + (n,)


def _build(g: Any, operands: list[Optional[Value]]) -> Value:
    return g.call(LINEAR, *operands)


def integer_biased(g: Any, linear: Any, bias: Any) -> Any:
    return g.Add(g.result(LINEAR, linear), g.constant(bias))


def _check_bias(match: Match) -> Union[dict[str, Any], str]:
    y, bias = match["linear"], match["bias"]
    if not _is_row(bias, y.shape[-1]) or len(bias.shape) > len(y.shape):
        return f"{bias!r} has shape {bias.shape}, wanted a row of {y.shape[-1]}"
    if any(value is not None for value in y.producer.inputs[6:]):
        return ""
    operands = (*y.producer.inputs, None)[:6]
    return {"operands": [*operands, bias]}


def quantized(g: Any, linear: Any, scale: Any, zero: Any) -> Any:
    y = g.result(LINEAR, linear)
    return g.either(
        lambda: g.QuantizeLinear(y, g.constant(scale), g.constant(zero)),
        lambda: g.QuantizeLinear(y, g.constant(scale)),
    )


def _check_quantized(match: Match) -> Union[dict[str, Any], str]:
    scale, zero, root = match["scale"], match.get("zero"), match.root
    if product(scale.shape) != 1:
        return f"{root.output!r} has {product(scale.shape)} scales, wanted one"
    operands = (*match["linear"].producer.inputs, None, None)[:7]
    return {"operands": [*operands, scale, zero]}


class DequantizeConstants:
    """Not a pattern: what is left of constant operands becomes float, for the fusions behind."""

    name = "DequantizedConstant"

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        found = [
            node
            for node in graph.nodes
            if node.op == DEQUANTIZE and all(x is None or x.const is not None for x in node.inputs)
        ]
        for node in found:
            graph.replace_uses(node.output, g.evaluated(node))
        graph.remove(found)
        return Counter({self.name: len(found)} if found else {}), []


PRODUCT = Fusion(
    "QuantizedLinear", (integer_matmul, integer_gemm, integer_gemm_bias), _check, _build
)
BIAS = Fusion("QuantizedBias", (integer_biased,), _check_bias, _build)
RESULT = Fusion("QuantizedResult", (quantized,), _check_quantized, _build, BYTES)
