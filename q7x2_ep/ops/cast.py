"""Elements in another dtype."""

from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ir.shape import Dim
from q7x2_ep.ops import op
from q7x2_ep.ops.common import CASTS, cast_step, dims, fold, known, require_dtype, typed, where_is
from q7x2_ep.ops.logic import equal

FLOAT8 = frozenset(
    {dtypes.FLOAT8E4M3FN, dtypes.FLOAT8E4M3FNUZ, dtypes.FLOAT8E5M2, dtypes.FLOAT8E5M2FNUZ}
)

ROUND_MODES = ("up", "down", "nearest")


def lower_cast(node: Node, b: Any) -> None:
    x, y = node.inputs[0], node.output
    if x.dtype == y.dtype:
        b.alias(y, b.view(x))
        return
    require_dtype(node, x.dtype, CASTS)
    require_dtype(node, y.dtype, CASTS)
    cast_step(b, x, y)


def cast(node: Node, x: np.ndarray, code: int) -> np.ndarray:
    """x in the dtype `code`.

    Where the graph is evaluated wider than declared (x is float64, the input float32), a cast
    between floats keeps the width, so that the evaluation stays an oracle.
    """
    declared = node.inputs[0].dtype
    if (
        dtypes.is_float(code)
        and dtypes.is_float(declared)
        and x.dtype.itemsize > dtypes.size(declared)
    ):
        return x
    return converted(x, code, node.attrs["saturate"], node.attrs["round_mode"])


def converted(x: np.ndarray, code: int, saturate: int = 1, round_mode: str = "up") -> np.ndarray:
    """x in the dtype `code`. saturate, round_mode: of floats of 8 bits, whose range is small."""
    dtype = dtypes.DTYPES[code].numpy
    if x.dtype.isbuiltin == 2:  # of ml_dtypes, which casts few of its own dtypes into each other
        x = x.astype(np.float32 if dtypes.holds_floats(x) else np.int8)
    if code == dtypes.STRING:
        return _texts(x)
    if x.dtype.kind in "OUS":
        numbers = [_number(str(text)) for text in x.reshape(-1)]
        if dtypes.DTYPES[code].kind in "iu":
            numbers = [_wrapped(number) for number in numbers]
            return np.array(numbers, np.uint64).reshape(x.shape).astype(dtype)
        return np.array(numbers, object).reshape(x.shape).astype(dtype)
    if code == dtypes.FLOAT8E8M0:
        from onnx.numpy_helper import to_float8e8m0

        return to_float8e8m0(x.astype(np.float32), bool(saturate), round_mode).astype(dtype)
    if code in FLOAT8 and saturate:
        import ml_dtypes

        limits = ml_dtypes.finfo(dtype)
        x = np.clip(x.astype(np.float64), float(limits.min), float(limits.max))
    return x.astype(dtype)


def _texts(x: np.ndarray) -> np.ndarray:
    """Numbers as onnxruntime writes them: floats of any width to 8 digits without zeros at their
    ends, bools as integers.
    """
    if x.dtype.kind != "f":
        return (x.astype(np.int8) if x.dtype == bool else x).astype(str).astype(object)
    texts = [f"{number:.8g}" for number in x.ravel().tolist()]
    named = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
    return np.array([named.get(text, text) for text in texts], object).reshape(x.shape)


def _number(text: str) -> Union[int, float]:
    """A number as ONNX lets strings spell it; integers exactly, whatever their size."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _wrapped(number: Union[int, float]) -> int:
    """The low 64 bits of an integer of so many, or of what a float is towards zero: narrower
    dtypes have the low bits of these, as in onnxruntime.
    """
    whole = int(number)
    if not -(1 << 63) <= whole < 1 << 64:
        raise ValueError(f"{number} is no integer of 64 bits")
    return whole & ((1 << 64) - 1)


def cast_contents(dtype: int, contents: Optional[tuple[Dim, ...]]) -> Optional[tuple[Dim, ...]]:
    """Known contents in another integer or bool dtype."""
    if dtype == dtypes.BOOL:
        return fold(lambda a: None if equal(a, 0) is None else not equal(a, 0), contents)
    return fold(lambda a: int(a) if isinstance(a, bool) else a, contents)


@op("Cast")
class Cast:
    """y = x in the dtype `to`; floats go to integers towards zero."""

    signature = "x -> y"
    attributes = {"to": None, "saturate": 1, "round_mode": "up"}
    choices = {"round_mode": ROUND_MODES}

    def infer(node: Node) -> list[Type]:
        to = node.attrs["to"]
        if to not in dtypes.DTYPES:
            raise UnsupportedOp(f"{where_is(node)} casts to {dtypes.type_string(to)}")
        return [typed(to, dims(node), cast_contents(to, known(node.inputs[0])))]

    reference = lambda node, x: cast(node, x, node.attrs["to"])
    lower = lower_cast


@op("CastLike")
class CastLike:
    """y = x in the dtype of `like`."""

    signature = "x, like -> y"
    attributes = {"saturate": 1, "round_mode": "up"}
    choices = {"round_mode": ROUND_MODES}

    def infer(node: Node) -> list[Type]:
        to = node.inputs[1].dtype
        return [typed(to, dims(node), cast_contents(to, known(node.inputs[0])))]

    reference = lambda node, x, like: cast(node, x, node.inputs[1].dtype)
    lower = lower_cast
