"""LayerNormalization and RMSNormalization made of primitives -> the ONNX ops.

d = x - mean(x); y = d / sqrt(mean(d^2) + epsilon) * weight + bias, and the same without mean and
bias. The norm itself is found first, with a weight of ones; weight and bias join it at the
consumers, as an epilogue joins a Linear. A check that answers "" found a consumer that is no such
thing.
Source: Ba et al. 2016; Zhang and Sennrich 2019; ONNX LayerNormalization (opset 17),
RMSNormalization (opset 23).
"""

from __future__ import annotations

from math import isclose
from typing import Any, Optional, Union

from q7x2_ep.dtypes import FLOAT, type_string
from q7x2_ep.fuse.epilogue import is_row
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.shape import Dim, product
from q7x2_ep.ops.norm import is_ones

NORMS = ("LayerNormalization", "RMSNormalization")


def _mean(g: Any, x: Any, axes: Any, factor: Any) -> Any:
    """mean(x); factor is 1 / n."""
    return g.either(
        lambda: g.ReduceMean(x, axes, keepdims=1),
        lambda: g.Unsqueeze(g.ReduceMean(x, axes, keepdims=0), axes),
        lambda: g.Mul(g.ReduceSum(x, axes, keepdims=1), g.scalar(factor)),
    )


def _square(g: Any, x: Any) -> Any:
    return g.either(lambda: g.Pow(x, 2.0), lambda: g.Mul(x, x))


def _variance(g: Any, x: Any, axes: Any, factor: Any, epsilon: Any) -> Any:
    """mean(x^2) + epsilon."""
    mean = g.either(
        lambda: _mean(g, _square(g, x), axes, factor),
        lambda: g.Mul(g.ReduceSumSquare(x, axes, keepdims=1), g.scalar(factor)),
    )
    return g.Add(mean, g.scalar(epsilon))


def _root(g: Any, variance: Any) -> Any:
    return g.either(lambda: g.Sqrt(variance), lambda: g.Pow(variance, 0.5))


def _reciprocal_root(g: Any, variance: Any) -> Any:
    return g.either(
        lambda: g.Reciprocal(_root(g, variance)),
        lambda: g.Div(1.0, _root(g, variance)),
        lambda: g.Pow(variance, -0.5),
        lambda: g.Sqrt(g.Reciprocal(variance)),
    )


def _over_root(g: Any, x: Any, variance: Any) -> Any:
    """x / sqrt(variance)."""
    return g.either(
        lambda: g.Div(x, _root(g, variance)), lambda: g.Mul(x, _reciprocal_root(g, variance))
    )


def _weighted_over_root(g: Any, x: Any, variance: Any, weight: Any) -> Any:
    """x / sqrt(variance) * weight, the weight multiplied first."""
    return g.either(
        lambda: g.Mul(x, g.Mul(_reciprocal_root(g, variance), weight)),
        lambda: g.Mul(x, g.Div(weight, _root(g, variance))),
        lambda: g.Mul(g.Mul(x, weight), _reciprocal_root(g, variance)),
        lambda: g.Div(g.Mul(x, weight), _root(g, variance)),
    )


def _centred(g: Any, x: Any, axes: Any, factor: Any) -> Any:
    return g.Sub(x, _mean(g, x, axes, factor))


def layer_norm(
    g: Any, x: Any, mean_axes: Any, mean_factor: Any, axes: Any, factor: Any, epsilon: Any
) -> Any:
    d = _centred(g, x, mean_axes, mean_factor)
    return _over_root(g, d, _variance(g, d, axes, factor, epsilon))


def layer_norm_weighted(
    g: Any,
    x: Any,
    mean_axes: Any,
    mean_factor: Any,
    axes: Any,
    factor: Any,
    epsilon: Any,
    weight: Any,
) -> Any:
    d = _centred(g, x, mean_axes, mean_factor)
    return _weighted_over_root(g, d, _variance(g, d, axes, factor, epsilon), weight)


def layer_norm_shifted(
    g: Any,
    x: Any,
    mean_axes: Any,
    mean_factor: Any,
    axes: Any,
    factor: Any,
    epsilon: Any,
    weight: Any,
    bias: Any,
) -> Any:
    """As TensorFlow has it: x * scale + (bias - mean * scale). The fused norm rounds less."""
    mean = _mean(g, x, mean_axes, mean_factor)
    variance = _variance(g, g.Sub(x, mean), axes, factor, epsilon)
    scale = g.Mul(_reciprocal_root(g, variance), weight)
    return g.Add(g.Mul(x, scale), g.Sub(bias, g.Mul(mean, scale)))


def rms_norm(g: Any, x: Any, axes: Any, factor: Any, epsilon: Any) -> Any:
    return _over_root(g, x, _variance(g, x, axes, factor, epsilon))


def rms_norm_weighted(g: Any, x: Any, axes: Any, factor: Any, epsilon: Any, weight: Any) -> Any:
    return _weighted_over_root(g, x, _variance(g, x, axes, factor, epsilon), weight)


def _check(match: Match) -> Union[dict[str, Any], str]:
    x, weight, bias = match["x"], match.get("weight"), match.get("bias")
    if not x.shape:
        return f"the rank of {x!r} is not known"
    if x.dtype != FLOAT:
        return f"{x!r} is {type_string(x.dtype)}, wanted {type_string(FLOAT)}"
    ndim = len(match["axes"].elements or ())
    inner = x.shape[len(x.shape) - ndim :]
    for prefix in ("mean_", "") if match.get("mean_axes") else ("",):
        axes = match[prefix + "axes"].elements
        if not _are_last(axes, ndim, len(x.shape)):
            return f"the mean is over axes {axes}, wanted the last"
        factor = match.scalar(prefix + "factor", 0.0)
        if match.get(prefix + "factor") and not _is_reciprocal(factor, product(inner)):
            return f"the sum is multiplied by {factor:.6g}, wanted 1 / {product(inner)}"
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and not is_row(value, inner, len(x.shape)):
            return f"{name} has shape {value.shape}, wanted {inner}"
    return {
        "x": x,
        "axis": -ndim,
        "weight": weight,
        "bias": bias,
        "epsilon": match.scalar("epsilon", 0.0),
    }


def _are_last(axes: Optional[tuple[Dim, ...]], count: int, ndim: int) -> bool:
    return bool(axes) and sorted(axis % ndim for axis in axes) == list(range(ndim - count, ndim))


def _is_reciprocal(factor: float, n: Dim) -> bool:
    return isinstance(n, int) and isclose(factor * n, 1.0, rel_tol=2.0**-22)


def _build(
    g: Any,
    op: str,
    x: Value,
    axis: int,
    weight: Optional[Value],
    bias: Optional[Value],
    epsilon: float,
) -> Value:
    inner = x.shape[axis:]
    known = all(isinstance(dim, int) for dim in inner)
    rows = [
        g.ones(inner if known else (1,), x.dtype) if weight is None else g.reshape(weight, inner)
    ]
    if bias is not None:
        rows.append(g.reshape(bias, inner))
    return g.call(op, x, *rows, axis=axis, epsilon=epsilon)


def _norm(g: Any, norm: Any) -> Any:
    return g.either(*(lambda op=op: g.result(op, norm) for op in NORMS))


def weighted(g: Any, norm: Any, weight: Any) -> Any:
    return g.Mul(_norm(g, norm), weight)


def _check_weighted(match: Match) -> Union[dict[str, Any], str]:
    if not _is_plain(match["norm"].producer):
        return ""
    return _check_row(match, "weight")


def biased(g: Any, norm: Any, bias: Any) -> Any:
    return g.Add(g.result("LayerNormalization", norm), bias)


def _check_biased(match: Match) -> Union[dict[str, Any], str]:
    if match["norm"].producer.input(2) is not None:
        return ""
    return _check_row(match, "bias")


def _check_row(match: Match, name: str) -> Union[dict[str, Any], str]:
    y, row = match["norm"], match[name]
    node = y.producer
    inner = y.shape[node.attrs["axis"] :]
    if not is_row(row, inner, len(y.shape)):
        is_meant = row.const is not None and row.const.size > 1
        return f"{name} has shape {row.shape}, wanted {inner}" if is_meant else ""
    return {"node": node, name: row}


def _is_plain(node: Node) -> bool:
    return is_ones(node.inputs[1]) and node.input(2) is None


def _build_weighted(g: Any, node: Node, weight: Value) -> Value:
    x, _ = node.inputs
    return g.call(node.op, x, _row(g, weight, node), **node.attrs)


def _build_biased(g: Any, node: Node, bias: Value) -> Value:
    x, weight = node.inputs
    return g.call(node.op, x, weight, _row(g, bias, node), **node.attrs)


def _row(g: Any, row: Value, node: Node) -> Value:
    return g.reshape(row, node.output.shape[node.attrs["axis"] :])


def _fusion(name: str, op: str, *spellings: Any) -> Fusion:
    return Fusion(name, spellings, _check, lambda g, **found: _build(g, op, **found))


LAYER_NORM = _fusion(
    "LayerNorm", "LayerNormalization", layer_norm, layer_norm_weighted, layer_norm_shifted
)
RMS_NORM = _fusion("RmsNorm", "RMSNormalization", rms_norm, rms_norm_weighted)
WEIGHTED = Fusion("NormWeight", (weighted,), _check_weighted, _build_weighted)
BIASED = Fusion("NormBias", (biased,), _check_biased, _build_biased)
