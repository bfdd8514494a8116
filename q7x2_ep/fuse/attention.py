"""Scaled dot-product attention, of primitives or as ONNX Attention -> q7::Attention.

softmax(scale * q @ k^T + mask) @ v. The scale may sit on the scores, on q, or as its root on both
sides; the mask is absent, added, or selects; k may arrive transposed in any of the exporters' ways.
Source: Vaswani et al. 2017, section 3.2.1; ONNX Attention (opset 23).
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any, Optional, Union

from q7x2_ep.dtypes import BOOL
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ops import find


def attention(
    g: Any,
    q: Any,
    k: Any,
    k_rows: Any,
    k_flat: Any,
    k_columns: Any,
    flat_shape: Any,
    v: Any,
    q_scale: Any,
    k_scale: Any,
    scale: Any,
    mask: Any,
    keep: Any,
    drop: Any,
    fill: Any,
) -> Any:
    columns = g.either(  # (B, H, D, Skv)
        lambda: g.Transpose(k, perm=(0, 1, 3, 2)),
        lambda: g.Transpose(k_rows, perm=(0, 2, 3, 1)),
        lambda: g.named("columns", g.Reshape(g.Transpose(k_flat, perm=(0, 2, 1)), flat_shape)),
        lambda: k_columns,
    )
    product = g.MatMul(scaled(g, q, q_scale), scaled(g, columns, k_scale))  # (B, H, Sq, Skv)
    scores = scaled(g, product, scale)
    masked = g.either(
        lambda: g.Add(scores, mask),
        lambda: g.Where(keep, scores, g.scalar(fill)),
        lambda: g.Where(drop, g.scalar(fill), scores),
        lambda: scores,
    )
    p = g.Softmax(masked, axis=-1)
    guarded = g.either(lambda: g.Where(g.named("is_nan", g.IsNaN(p)), 0.0, p), lambda: p)
    return g.MatMul(guarded, v)


def scaled(g: Any, x: Any, number: Any) -> Any:
    return g.either(lambda: g.Mul(x, g.scalar(number)), lambda: x)


def _check(match: Match) -> Union[dict[str, Any], str]:
    q, v = match["q"], match["v"]
    arguments: dict[str, Any] = {"q": q, "v": v, "columns": match.get("columns")}
    for name in ("k", "k_rows", "k_flat", "k_columns"):
        arguments[name] = match.get(name)
    keys = _key_shape(arguments)
    if any(shape is None or len(shape) != 4 for shape in (q.shape, v.shape, keys)):
        return f"q, k, v have shapes {q.shape}, {keys}, {v.shape}, wanted rank 4"
    reason = _check_heads(q.shape, keys, v.shape)
    masks = [
        (name, match[name]) for name in ("mask", "keep", "drop") if match.get(name) is not None
    ]
    for name, mask in masks:
        reason = reason or check_mask(
            mask, (*q.shape[:3], keys[2]), q.dtype if name == "mask" else BOOL
        )
    if reason:
        return reason
    arguments.update((name, mask) for name, mask in masks if name != "mask" or not _is_zero(mask))
    arguments["key_shape"] = keys
    arguments["scale"] = (
        match.scalar("q_scale", 1.0) * match.scalar("k_scale", 1.0) * match.scalar("scale", 1.0)
    )
    arguments["fill"] = match.scalar("fill", -inf)
    arguments["zero_masked_rows"] = int(match.get("is_nan") is not None)
    return arguments


def _key_shape(found: dict[str, Optional[Value]]) -> Optional[tuple]:
    """The shape (B, Hkv, Skv, D) of the keys, from the form in which they were found; None if that
    is no such form.
    """
    if found["k"] is not None:
        return found["k"].shape
    name, order = (
        ("k_rows", (0, 2, 1, 3)) if found["k_rows"] is not None else ("columns", (0, 1, 3, 2))
    )
    value = found[name] or found["k_columns"]
    if value.shape is None or len(value.shape) != 4:
        return None
    shape = tuple(value.shape[axis] for axis in order)
    flat = found["k_flat"]  # (B * Hkv, Skv, D): only the batch may have been split by the Reshape
    return shape if flat is None or flat.shape == (shape[0] * shape[1], *shape[2:]) else None


def _check_heads(q: tuple, k: tuple, v: tuple) -> str:
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        return f"q, k, v have shapes {q}, {k}, {v} that do not fit"
    heads, shared = q[1], k[1]
    whole = heads == shared or (
        isinstance(heads, int) and isinstance(shared, int) and heads % shared == 0
    )
    return "" if whole else f"{heads} heads of q are no multiple of {shared} of k"


def check_mask(mask: Value, full: tuple, dtype: int) -> str:
    """The last dim needs no proof: the product with v holds only where it is 1 or Skv, which bind
    checks.
    """
    if mask.dtype != dtype:
        return f"the mask {mask!r} has dtype {mask.dtype}, wanted {dtype}"
    if mask.shape is None or len(mask.shape) > 4:
        return f"the mask {mask!r} has shape {mask.shape}"
    for dim, want in list(zip(reversed(mask.shape), reversed(full)))[1:]:
        if dim not in (1, want):
            return f"the mask {mask!r} has dim {dim}, wanted 1 or {want}"
    return ""


def _is_zero(mask: Value) -> bool:
    """Whether an added mask is known to be 0 everywhere, as vision models have it: it is none."""
    if mask.const is not None:
        return not mask.const.any()
    node = mask.producer
    if node is None or node.op not in ("Expand", "Where"):
        return False
    if node.op == "Expand":
        return _is_zero(node.inputs[0])
    keep = node.inputs[0]
    while keep.producer is not None and keep.producer.op == "Expand":
        keep = keep.producer.inputs[0]
    return keep.const is not None and bool(keep.const.all()) and _is_zero(node.inputs[1])


def _build(
    g: Any,
    q: Value,
    v: Value,
    key_shape: tuple,
    k: Optional[Value] = None,
    k_rows: Optional[Value] = None,
    k_flat: Optional[Value] = None,
    k_columns: Optional[Value] = None,
    columns: Optional[Value] = None,
    mask: Optional[Value] = None,
    keep: Optional[Value] = None,
    drop: Optional[Value] = None,
    **attrs: Any,
) -> Value:
    if k_rows is not None:
        k = g.Transpose(k_rows, perm=(0, 2, 1, 3))
    elif k_flat is not None:
        k = g.reshape(k_flat, key_shape)
    elif k_columns is not None:
        k = g.Transpose(k_columns, perm=(0, 1, 3, 2))
    if drop is not None:
        keep = g.Not(drop)
    return g.call("q7::Attention", q, k, v, mask if keep is None else keep, **attrs)


# Attributes of ONNX Attention that q7::Attention has a place for, or that rank 4 makes void.
HANDLED = ("scale", "is_causal", "q_num_heads", "kv_num_heads")


def onnx_attention(g: Any, q: Any, k: Any, v: Any) -> Any:
    return g.Attention(q, k, v, softcap=0.0)


def onnx_attention_masked(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    return g.Attention(q, k, v, mask, softcap=0.0)


def _check_onnx(match: Match) -> Union[dict[str, Any], str]:
    q, k, v, mask = match["q"], match["k"], match["v"], match.get("mask")
    attrs = match.root.attrs
    special = [
        f"{name}={attrs[name]}"
        for name, default in find("Attention").attributes.items()
        if name not in HANDLED and attrs.get(name, default) != default
    ]
    if special:
        return f"no plain attention: {', '.join(special)}"
    if any(x.shape is None or len(x.shape) != 4 for x in (q, k, v)):
        return f"q, k, v have shapes {q.shape}, {k.shape}, {v.shape}, wanted rank 4"
    if attrs["is_causal"] and q.shape[2] != k.shape[2]:
        counts = f"{q.shape[2]} queries and {k.shape[2]} keys"
        return f"causal with {counts}: aligned at the first key, wanted the last"
    reason = _check_heads(q.shape, k.shape, v.shape)
    if mask is not None and not reason:
        dtype = BOOL if mask.dtype == BOOL else q.dtype
        reason = check_mask(mask, (*q.shape[:3], k.shape[2]), dtype)
    if reason:
        return reason
    scale, depth = attrs["scale"], q.shape[3]
    if scale is None and isinstance(depth, int):
        scale = 1.0 / sqrt(depth)
    if scale is None:
        return f"no scale is given and the depth {depth} is not known"
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    return {"operands": operands, "scale": float(scale), "causal": int(bool(attrs["is_causal"]))}


def _build_onnx(g: Any, operands: tuple[Value, ...], **attrs: Any) -> Value:
    """The op's own rule: a row without a key to attend to is zero."""
    return g.call("q7::Attention", *operands, zero_masked_rows=1, **attrs)


ATTENTION = Fusion("Attention", (attention,), _check, _build)
ONNX_ATTENTION = Fusion(
    "Attention", (onnx_attention, onnx_attention_masked), _check_onnx, _build_onnx
)
