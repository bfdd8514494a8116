"""A product or Conv between DequantizeLinear and QuantizeLinear -> q7::QuantizedLinear,
q7::QuantizedConv and, of two computed operands, QLinearMatMul, in integers.

The integers are what both sides of the product stand for: their products are summed exactly, and
scaled once. Without a QuantizeLinear behind, the result stays float. Weights that no such product
took, since its rows are float, are dequantised once, at load.
Source: Jacob et al. 2018, section 2.2; ONNX QLinearMatMul.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional, Union

from q7x2_ep.dtypes import FLOAT
from q7x2_ep.fuse.epilogue import activations, is_row
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.replace import rewrite
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import product
from q7x2_ep.ops.activation import activation_of
from q7x2_ep.ops.common import BYTES, LOWEST_BYTE, Activation

LINEAR, CONV = "q7::QuantizedLinear", "q7::QuantizedConv"
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
SELECTIONS = ("Concat", "DepthToSpace", "MaxPool", "Reshape", "Slice", "SpaceToDepth", "Squeeze")
SELECTIONS += ("Transpose", "Unsqueeze")  # each number of theirs is one that they are given


def integer_matmul(g: Any, x: Any, w: Any) -> Any:
    return g.MatMul(x, w)


def integer_gemm(g: Any, x: Any, w: Any) -> Any:
    return g.either(
        lambda: g.Gemm(x, w, transA=0, transB=0, alpha=1.0),
        lambda: g.Gemm(x, w, transA=0, transB=1, alpha=1.0),
    )


def integer_gemm_bias(g: Any, x: Any, w: Any, bias: Any) -> Any:
    return g.either(
        lambda: g.Gemm(x, w, bias, transA=0, transB=0, alpha=1.0, beta=1.0),
        lambda: g.Gemm(x, w, bias, transA=0, transB=1, alpha=1.0, beta=1.0),
    )


def integer_conv(g: Any, x: Any, w: Any) -> Any:
    return g.Conv(x, w)


def integer_conv_bias(g: Any, x: Any, w: Any, bias: Any) -> Any:
    return g.Conv(x, w, bias)


def _check(match: Match) -> Union[dict[str, Any], str]:
    x, w = (_dequantized(match[name]) for name in ("x", "w"))
    if x is None or w is None:
        return ""
    is_conv = match.root.op == "Conv"
    (x_int, x_scale), (w_int, w_scale) = x.inputs[:2], w.inputs[:2]
    constants = [x_scale, x.input(2), w_int, w_scale, w.input(2)]
    if any(value is not None and value.const is None for value in constants):
        return f"{w_int!r}, its scale, or that of {x_int!r} is not constant"
    if x_int.dtype not in BYTES or w_int.dtype not in BYTES:
        return f"{x_int!r} and {w_int!r} are no bytes"
    if is_conv and len(w_int.shape) not in (3, 4):
        return f"{match.root.output!r} has more than two spatial dims"
    if not is_conv and len(w_int.shape) != 2:
        return f"{w_int!r} is no matrix"
    if product(x_scale.shape) != 1:
        return f"{x_int!r} has {product(x_scale.shape)} scales, wanted one"
    turns = bool(match.root.attrs.get("transB"))
    outer = 0 if is_conv or turns else 1  # the axis of w that the result keeps
    if product(w_scale.shape) != 1 and w.attrs["axis"] % len(w_int.shape) != outer:
        return f"{w_int!r} has scales along axis {w.attrs['axis']}, wanted {outer}"
    bias = match.get("bias")
    real = None if bias is None else _real(bias)
    if real is not None and (real.const is None or not is_row(real, (w_int.shape[outer],), 2)):
        return f"the bias {bias!r} is no constant row"
    operands = [x_int, x_scale, x.input(2), w_int, w_scale, w.input(2)]
    attrs = match.root.attrs if is_conv else {}
    found = {"op": CONV if is_conv else LINEAR, "operands": operands, "bias": bias, "attrs": attrs}
    return {**found, "turns": turns}


def _real(bias: Value) -> Value:
    """What is constant of a bias: itself, or the integers that it is dequantised from."""
    node = _dequantized(bias)
    fixed = node is not None and all(x is None or x.const is not None for x in node.inputs)
    return node.inputs[0] if fixed else bias


def _dequantized(value: Value) -> Optional[Node]:
    """What dequantises a value, in one scale or one per entry of an axis."""
    node = value.producer
    plain = node is not None and node.op == DEQUANTIZE and not node.attrs["block_size"]
    return node if plain else None


def _build(
    g: Any,
    op: str,
    operands: list[Optional[Value]],
    attrs: dict[str, Any],
    bias: Optional[Value] = None,
    turns: bool = False,
) -> Value:
    """turns: the weights are (N, K)."""
    if turns:
        w = operands[3]
        operands = [*operands[:3], g.array(w.const.T), *operands[4:]]
    if bias is not None:
        maker = bias.producer
        operands = [*operands, bias if maker is None else g.evaluated(maker)]
    return g.call(op, *operands, **attrs)


def integer_biased(g: Any, linear: Any, bias: Any) -> Any:
    return g.Add(g.result(LINEAR, linear), g.constant(bias))


def _check_bias(match: Match) -> Union[dict[str, Any], str]:
    y, bias = match["linear"], match["bias"]
    if not is_row(bias, y.shape[-1:], len(y.shape)):
        return f"{bias!r} has shape {bias.shape}, wanted a row of {y.shape[-1]}"
    node = y.producer
    if any(value is not None for value in node.inputs[6:]) or node.attrs["activation"] != "none":
        return ""
    operands = (*y.producer.inputs, None)[:6]
    return {"op": LINEAR, "operands": [*operands, bias], "attrs": {}}


def dynamic(g: Any, x: Any, w: Any, x_zero: Any, w_zero: Any, x_scale: Any, w_scale: Any) -> Any:
    sums = g.either(
        lambda: g.MatMulInteger(x, g.constant(w), x_zero, g.constant(w_zero)),
        lambda: g.MatMulInteger(x, g.constant(w), x_zero),
    )
    return g.Mul(g.Cast(sums, to=FLOAT), g.Mul(x_scale, g.constant(w_scale)))


def _check_dynamic(match: Match) -> Union[dict[str, Any], str]:
    x, w, x_scale, w_scale = (match[name] for name in ("x", "w", "x_scale", "w_scale"))
    if len(w.shape) != 2:
        return f"{w!r} is no matrix"
    if product(x_scale.shape) != 1:
        return f"{x!r} has {product(x_scale.shape)} scales, wanted one"
    columns = len(match.root.output.shape)
    if w_scale.const.size != 1 and not is_row(w_scale, w.shape[1:], columns):
        return f"{w!r} has scales {w_scale.shape}, wanted one or {w.shape[1]}"
    if product(match["x_zero"].shape) != 1:
        return f"{x!r} has {product(match['x_zero'].shape)} zeros, wanted one"
    w_zero = match.get("w_zero")
    if w_zero is not None and product(w_zero.shape) not in (1, w.shape[1]):
        return f"{w!r} has zeros {w_zero.shape}, wanted one or {w.shape[1]}"
    operands = [x, x_scale, match["x_zero"], w, w_scale, w_zero]
    return {"operands": operands}


def _build_dynamic(g: Any, operands: list[Optional[Value]]) -> Value:
    """Scales and zeros without dims of 1, as DequantizeLinear has them."""

    def flat(value: Optional[Value]) -> Optional[Value]:
        if value is None or (len(value.shape) < 2 and product(value.shape) != 1):
            return value
        return g.reshape(value, () if product(value.shape) == 1 else (product(value.shape),))

    x, x_scale, x_zero, w, w_scale, w_zero = operands
    w_scale = g.filled(w_scale, () if w_scale.const.size == 1 else w.shape[1:])
    if w_zero is not None:
        w_zero = g.filled(w_zero, () if w_zero.const.size == 1 else w.shape[1:])
    return g.call(LINEAR, x, flat(x_scale), flat(x_zero), w, w_scale, w_zero)


def _check_activation(match: Match) -> Union[dict[str, Any], str]:
    node = match["product"].producer
    if node.input(7) is not None or node.attrs["activation"] != "none":
        return ""
    return {"node": node, "activation": activation_of(match.root)}


def _build_activation(g: Any, node: Node, activation: Activation) -> Value:
    return g.call(LINEAR, *node.inputs, **activation.attributes())


def quantized(g: Any, product: Any, scale: Any, zero: Any) -> Any:
    y = g.either(lambda: g.result(LINEAR, product), lambda: g.result(CONV, product))
    x = g.either(lambda: g.named("relu", g.Relu(y)), lambda: y)
    return g.either(
        lambda: g.QuantizeLinear(x, g.constant(scale), g.constant(zero)),
        lambda: g.QuantizeLinear(x, g.constant(scale)),
    )


def _check_quantized(match: Match) -> Union[dict[str, Any], str]:
    scale, zero, root = match["scale"], match.get("zero"), match.root
    if product(scale.shape) != 1:
        return f"{root.output!r} has {product(scale.shape)} scales, wanted one"
    at = 0 if zero is None else int(zero.const.item())
    if match.get("relu") is not None and at != LOWEST_BYTE[root.output.dtype]:
        return f"the zero point {at} leaves room below 0, which Relu cuts off"
    node = match["product"].producer
    if node.input(7) is not None or node.attrs.get("activation", "none") != "none":
        return ""
    if node.inputs[1].const is None:
        return f"{node.inputs[1]!r}, the scale of the rows, is not constant"
    operands = (*node.inputs, None, None)[:7]
    return {"op": node.op, "operands": [*operands, scale, zero], "attrs": node.attrs}


def computed(g: Any, x: Any, w: Any, scale: Any, zero: Any) -> Any:
    y = g.MatMul(x, w)
    return g.either(
        lambda: g.QuantizeLinear(y, g.constant(scale), g.constant(zero)),
        lambda: g.QuantizeLinear(y, g.constant(scale)),
    )


def _check_computed(match: Match) -> Union[dict[str, Any], str]:
    operands: list[Optional[Value]] = []
    for name in ("x", "w"):
        node = match[name].producer
        if node is None or node.op != DEQUANTIZE:
            return ""
        if not _has_one_scale(node, DEQUANTIZE):
            return f"{match[name]!r} is not dequantised from bytes by one constant scale"
        operands += [*node.inputs, None][:3]
    w, scale = operands[3], match["scale"]
    if w.const is not None and len(w.shape) == 2:
        return ""  # QuantizedLinear's
    if not _has_one_scale(match.root, QUANTIZE):
        return f"{match.root.output!r} is not quantised to bytes by one constant scale"
    return {"operands": [*operands, scale, match.get("zero")], "dtype": match.root.output.dtype}


def _build_computed(g: Any, operands: list[Optional[Value]], dtype: int) -> Value:
    """A zero that is left out is one of its bytes."""
    kinds = [operands[0].dtype, operands[3].dtype, dtype]
    for i, kind in zip((2, 5, 7), kinds):
        if operands[i] is None:
            operands[i] = g.literal(0, kind)
    return g.QLinearMatMul(*operands)


class Selections:
    """Not a pattern: numbers that are chosen and then quantised are chosen from bytes, of which
    those in another scale are quantised first. Rounding after the choice gives the same.
    """

    name = "QuantizedSelection"

    def apply(self, graph: Graph, g: Any) -> tuple[Counter, list[NearMiss]]:
        applied: Counter = Counter()
        order: list[Node] = []
        gone: set[Node] = set()
        for node in graph.nodes:
            chosen = _selected(graph, node) if _has_one_scale(node, QUANTIZE) else None
            if chosen:
                result = _quantized_first(g, node.inputs[0], node)
                made = rewrite(g, self.name, [node.output], [result], [*chosen, node])
                if made:
                    applied[self.name] += 1
                    order += made
                    gone.update(chosen)
                    continue
            order.append(node)
        graph.nodes = [node for node in order if node not in gone]
        return applied, []


def _has_one_scale(node: Optional[Node], op: str) -> bool:
    """Whether a node quantises bytes, or dequantises them, by one constant scale."""
    if node is None or node.op != op:
        return False
    scale, zero = node.inputs[1], node.input(2)
    fixed = scale.const is not None and (zero is None or zero.const is not None)
    real, byte = node.inputs[0], node.output
    if op == DEQUANTIZE:
        real, byte = byte, real
    exact = real.dtype == scale.dtype == FLOAT and node.attrs.get("precision", 0) in (0, FLOAT)
    one = fixed and product(scale.shape) == 1 and scale.const.item() > 0
    return one and exact and byte.dtype in BYTES


def _selected(graph: Graph, node: Node) -> Optional[list[Node]]:
    """The selections between `node` and what is dequantised; None where there is something else."""
    found: list[Node] = []
    for value in node.inputs if node.op == "Concat" else node.inputs[:1]:
        maker = value.producer
        if _has_one_scale(maker, DEQUANTIZE):
            continue
        if maker is None or maker.op not in SELECTIONS or len(maker.outputs) > 1:
            return None
        if value.users != [node] or graph.is_output(value):
            return None
        if maker.op == "MaxPool" and len(value.shape) > 4:
            return None  # bytes have no kernel for volumes
        before = _selected(graph, maker)
        if before is None:
            return None
        found += [*before, maker]
    return found


def _quantized_first(g: Any, value: Value, root: Node) -> Value:
    """What `root` makes of a value, by the ops that make it, of bytes."""
    node = value.producer
    if node.op != DEQUANTIZE:
        count = len(node.inputs) if node.op == "Concat" else 1
        chosen = [_quantized_first(g, each, root) for each in node.inputs[:count]]
        return g.call(node.op, *chosen, *node.inputs[count:], **node.attrs)

    def parameters(of: Node, byte: Value) -> tuple:
        zero = of.input(2)
        return of.inputs[1].const.item(), 0 if zero is None else zero.const.item(), byte.dtype

    if parameters(node, node.inputs[0]) == parameters(root, root.output):
        return node.inputs[0]
    return g.call(QUANTIZE, value, *root.inputs[1:], **root.attrs)


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
CONVOLUTION = Fusion("QuantizedConv", (integer_conv, integer_conv_bias), _check, _build)
DYNAMIC = Fusion("DynamicLinear", (dynamic,), _check_dynamic, _build_dynamic)
BIAS = Fusion("QuantizedBias", (integer_biased,), _check_bias, _build)
ACTIVATION = Fusion(
    "QuantizedActivation",
    activations(lambda g, linear: g.result(LINEAR, linear)),
    _check_activation,
    _build_activation,
)
RESULT = Fusion("QuantizedResult", (quantized,), _check_quantized, _build, BYTES)
COMPUTED = Fusion("QuantizedMatMul", (computed,), _check_computed, _build_computed, BYTES)
