"""Every catalogue entry against onnx's own evaluator: types, values, float64, and the C steps.

CASES is the one list: what is in `Fixed` is a constant of the model, the other inputs are fed.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Graph, Node, Type, Value
from q7x2_ep.ir.shape import Expr, substitute, symbol
from q7x2_ep.ops import entries, find
from q7x2_ep.ops.builder import Builder
from q7x2_ep.ops.signature import KINDS, parse
from q7x2_ep.passes.infer import infer_node

OPSET = 25


class Fixed(NamedTuple):
    """A constant of the model."""

    array: np.ndarray


class Case(NamedTuple):
    op: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any]
    outputs: int
    native: bool
    opset: int
    symbolic: Any  # whether all works too where dims above 1 are symbols; or which dims

    def __str__(self) -> str:
        shapes = [
            "_" if x is None else "x".join(map(str, np.shape(getattr(x, "array", x)))) or "()"
            for x in self.inputs
        ]
        return "-".join(
            [self.op, *shapes, *(f"{k}={v}" for k, v in self.attrs.items() if k != "value")]
        )


def case(
    op: str,
    *inputs: Any,
    outputs: int = 1,
    native: bool = True,
    opset: int = OPSET,
    symbolic: Any = True,
    **attrs: Any,
) -> Case:
    return Case(op, inputs, attrs, outputs, native, opset, symbolic)


def ints(*values: int) -> Fixed:
    return Fixed(np.array(values, np.int64))


def scalar(value: Any, dtype: Any = np.float32) -> Fixed:
    return Fixed(np.array(value, dtype))


def number(value: int) -> Fixed:
    return scalar(value, np.int64)


def attention(q: tuple, kv: tuple, *rest: Any, **attrs: Any) -> Case:
    """Symbols are the batch and the lengths, 2 to 7; heads and their size, 4 and 8, are fixed."""
    return case("Attention", f(*q), f(*kv), f(*kv), *rest, symbolic=(2, 3, 5, 6, 7), **attrs)


def ints_of(shape: tuple, *values: int) -> Fixed:
    return Fixed(np.array(values, np.int64).reshape(shape))


WINDOWS: tuple[dict[str, Any], ...] = (
    {"strides": [2, 3]},
    {"pads": [1, 1, 2, 0], "strides": [3, 2]},
    {"pads": [1, 0, 1, 1], "strides": [2, 2], "ceil_mode": 1},
    {"dilations": [2, 3], "pads": [1, 1, 1, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
)
UNPOOL: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
RANDOM = np.random.default_rng(7)


def f(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * 2).astype(np.float32)


def i(*shape: int, low: int = -5, high: int = 6) -> np.ndarray:
    return RANDOM.integers(low, high, shape)


def byte(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def row(n: int) -> Fixed:
    return Fixed(positive(n))


def b(*shape: int) -> np.ndarray:
    return RANDOM.random(shape) > 0.4


def positive(*shape: int) -> np.ndarray:
    return np.abs(f(*shape)) + np.float32(0.1)


def steps(*shape: int) -> np.ndarray:
    """Numbers that no draw brings near a tie of roundings."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * np.float32(1.7)


def whole(dtype: str, *shape: int) -> np.ndarray:
    """Integers from all of the range, small ones and the limits among them."""
    limits = np.iinfo(dtype)
    x = RANDOM.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    small = RANDOM.integers(-3 if limits.min else 0, 4, shape).astype(dtype)
    x = np.where(RANDOM.random(shape) < 0.5, small, x)
    x.flat[:2] = limits.min, limits.max
    return x


def divisor(dtype: str, *shape: int) -> np.ndarray:
    x = whole(dtype, *shape)
    return np.where(x == 0, np.array(3, dtype), x)


def double(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape) * 2


def doubles(*shapes: tuple) -> list[np.ndarray]:
    return [double(*shape) for shape in shapes]


def unit(*shape: int) -> np.ndarray:
    return RANDOM.uniform(-0.99, 0.99, shape).astype(np.float32)


COMPARISONS = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
SIGNED = INTEGERS[:4]
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 2.5], np.float32)
SIMPLE_UNARY = [
    "Abs",
    "Neg",
    "Sign",
    "Exp",
    "Erf",
    "Mish",
    "Tanh",
    "Sigmoid",
    "Relu",
    "Gelu",
    "Softplus",
    "Sin",
    "Cos",
    "Floor",
    "Ceil",
    "Round",
    "LeakyRelu",
    "Elu",
    "HardSigmoid",
    "HardSwish",
    "Swish",
    "Identity",
    "Reciprocal",
    "Tan",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Selu",
    "Celu",
    "Softsign",
    "ThresholdedRelu",
    "Shrink",
]

CASES = [
    *(case(op, f(3, 5)) for op in SIMPLE_UNARY),
    *(case(op, f(0, 4)) for op in ("Abs", "Tanh")),
    *(case(op, i(7)) for op in ("Abs", "Neg", "Sign", "Relu")),
    *(case(op, positive(4, 3)) for op in ("Log", "Sqrt")),
    *(case(op, unit(7)) for op in ("Asin", "Acos", "Atanh")),
    case("Acosh", positive(7) + 1),
    *(case(op, double(2, 3)) for op in SIMPLE_UNARY),
    *(case(op, unit(7).astype(np.float64)) for op in ("Asin", "Acos", "Atanh")),
    case("Acosh", double(7) ** 2 + 1),
    *(case("Abs", whole(dtype, 9)) for dtype in INTEGERS),
    *(case("Sign", whole(dtype, 9)) for dtype in INTEGERS),
    *(case("BitwiseNot", whole(dtype, 9)) for dtype in INTEGERS),
    *(case(op, whole(dtype, 9)) for op in ("Neg", "Relu") for dtype in SIGNED),
    *(case("Shrink", i(9).astype(dtype), bias=1.5, lambd=2.0) for dtype in SIGNED),
    case("Shrink", SPECIAL[1:], bias=-0.5, lambd=1.0),
    case("Shrink", byte(9), lambd=9.0),
    case("Selu", f(9), alpha=2.0, gamma=0.5),
    case("Celu", f(9), alpha=0.5),
    case("ThresholdedRelu", f(9), alpha=0.3),
    *(case("PRelu", x(2, 3, 4), x(3, 1)) for x in (f, double)),
    case("PRelu", f(2, 3, 4), f(1)),
    *(case("PRelu", whole(dtype, 2, 5), whole(dtype, 5)) for dtype in ("int32", "uint64", "int64")),
    case("Gelu", f(40), approximate="tanh"),
    case("Elu", f(9), alpha=0.5),
    case("LeakyRelu", f(9), alpha=0.2),
    case("Swish", f(9), alpha=1.7),
    case("HardSigmoid", f(9), alpha=0.3, beta=0.1),
    case("Not", b(4)),
    case("IsNaN", SPECIAL),
    case("IsInf", SPECIAL),
    case("IsInf", SPECIAL, detect_negative=0),
    case("IsInf", SPECIAL, detect_positive=0),
    case("Clip", f(10), scalar(-1.0), scalar(1.5)),
    case("Clip", f(10), None, scalar(0.5)),
    case("Clip", f(10), scalar(-1.0), scalar(np.nan)),
    case("Clip", f(10), np.float32(-0.5).reshape(()), np.float32(0.25).reshape(())),
    case("Clip", i(10), scalar(-2, np.int64), scalar(2, np.int64)),
    *(case("Clip", whole(t, 9), scalar(1, t), scalar(2, t)) for t in INTEGERS),
    case("Clip", double(9), scalar(-0.5, np.float64), None),
    case("Dropout", f(3, 4)),
    case("Dropout", f(3, 4), scalar(0.3), scalar(True, bool), outputs=2, seed=4, native=False),
    *(case(op, f(2, 3, 4), f(3, 1)) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max")),
    *(case(op, f(1, 4), f(5, 1)) for op in ("Add", "Max")),
    *(case(op, i(2, 3), i(3, low=1)) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")),
    *(case(op, i(2, 1, 3), i(4, 1), symbolic=op != "") for op in COMPARISONS),
    *(case(op, f(2, 3), f(3)) for op in COMPARISONS[1:]),
    *(
        case(op, whole(dtype, 3, 1, 4), whole(dtype, 5, 1))
        for op in ("Add", "Sub", "Mul", "Min", "Max", *COMPARISONS)
        for dtype in INTEGERS
    ),
    *(case("Div", whole(dtype, 3, 20), divisor(dtype, 3, 20)) for dtype in INTEGERS),
    *(
        case("Mod", whole(dtype, 3, 20), divisor(dtype, 20), fmod=fmod)
        for dtype in INTEGERS
        for fmod in (0, 1)
    ),
    *(case("Mod", x(9, 30), x(30), fmod=fmod) for x in (f, double) for fmod in (0, 1)),
    *(
        case(f"Bitwise{op}", whole(dtype, 4, 5), whole(dtype, 5))
        for op in ("And", "Or", "Xor")
        for dtype in INTEGERS
    ),
    *(
        case("BitShift", whole(dtype, 8, 9), whole(dtype, 9), direction=direction, opset=28)
        for dtype in INTEGERS
        for direction in ("LEFT", "RIGHT")
    ),
    *(case(op, double(2, 3), double(3)) for op in ("Add", "Mul", "Div", "Min", *COMPARISONS)),
    case("Equal", b(3, 4), b(4)),
    case("Pow", whole("int32", 9), scalar(3, np.int64)),
    case("Pow", i(9).astype(np.int32), i(9, low=0).astype(np.uint8)),
    case("Pow", i(9, low=1), f(9)),
    case("Pow", positive(9), double(9)),
    case("Pow", double(9) ** 2, f(9)),
    case("Pow", double(3, 1), i(4)),
    case("Pow", positive(2, 3), f(3)),
    case("Pow", f(2, 3), scalar(3.0)),
    case("Pow", f(2, 3), scalar(2, np.int64)),
    *(case(op, b(3, 4), b(4)) for op in ("And", "Or", "Xor")),
    *(case(op, f(2, 3), f(3), f(2, 1)) for op in ("Sum", "Mean", "Max", "Min")),
    case("Sum", f(4)),
    case("Mean", f(4)),
    case("Where", b(3, 1), f(3, 4), f(4)),
    *(case("Where", b(2), i(2).astype(t), i(2).astype(t)) for t in (*INTEGERS, bool, np.float16)),
    case("BitCast", f(2, 3), to=TensorProto.INT32, opset=26),
    case("BitCast", whole("uint64", 5), to=TensorProto.DOUBLE, opset=26),
    case("BitCast", whole("int8", 5), to=TensorProto.UINT8, opset=26),
    case("Cast", f(6), to=TensorProto.INT64),
    case("Cast", f(6), to=TensorProto.DOUBLE),
    case("Cast", i(6), to=TensorProto.FLOAT),
    case("Cast", i(6), to=TensorProto.BOOL),
    case("Cast", b(6), to=TensorProto.FLOAT),
    case("Cast", f(6), to=TensorProto.FLOAT),
    case("CastLike", f(6), scalar(0, np.int32)),
    # movement
    case("Reshape", f(2, 3, 4), ints(0, -1)),
    case("Reshape", f(2, 6), ints(-1, 3), symbolic=False),
    case("Reshape", f(2, 0, 3), ints(3, 0, 2), allowzero=1, symbolic=False),
    case("Flatten", f(2, 3, 4), axis=2),
    case("Flatten", f(2, 3, 4), axis=-1),
    case("Flatten", f(2, 3), axis=0),
    case("Squeeze", f(1, 3, 1), ints(0, -1)),
    case("Squeeze", f(1, 3, 1), symbolic=False),
    case("Unsqueeze", f(3, 4), ints(0, -1)),
    case("Transpose", f(2, 3, 4)),
    case("Transpose", f(2, 3, 4), perm=[1, 0, 2]),
    case("Expand", f(3, 1), ints(2, 1, 5)),
    case("Expand", f(1, 4), ints(3, 1)),
    case("Tile", f(2, 3), ints(2, 1)),
    case("Tile", f(2, 3), ints(1, 3)),
    case("Slice", f(5, 6), ints(1), ints(4)),
    case("Slice", f(5, 6), ints(0, -4), ints(9223372036854775807, -1), ints(0, 1), ints(2, 1)),
    case("Slice", f(5, 6), ints(-1), ints(-9223372036854775807), ints(-1), ints(-2)),
    case("Slice", f(5, 6), ints(-1), ints(9223372036854775807), ints(1)),
    case("Slice", f(5), ints(4), ints(2)),
    case("Slice", f(0, 3), ints(-1), ints(9), ints(0)),
    case("Slice", f(4), ints(-1), ints(-9), ints(0), ints(-1)),
    case("Slice", f(5, 6), np.array([1]), np.array([4]), ints(1), native=False, symbolic=False),
    case("Reshape", f(2, 6), np.array([3, -1]), native=False, symbolic=False),
    case("Squeeze", f(1, 3, 1), np.array([0]), native=False, symbolic=False),
    case("Unsqueeze", f(3, 4), np.array([0, -1]), native=False, symbolic=False),
    case("Expand", f(3, 1), np.array([2, 1, 5]), native=False, symbolic=False),
    case("Tile", f(2, 3), np.array([2, 2]), native=False, symbolic=False),
    case("Tile", f(2, 1, 3, 1, 2), ints(2, 2, 2, 2, 1), symbolic=False, native=False),
    case("Tile", i(2, 3), ints(0, 2)),
    case("Split", f(6, 4), ints(1, 5), outputs=2, axis=0, symbolic=False),
    case("Split", f(2, 7), outputs=3, axis=-1, num_outputs=3),
    case("Split", f(6), outputs=2, num_outputs=2),
    case("Split", f(6, 4), np.array([1, 5]), outputs=2, native=False, symbolic=False),
    *(
        case(op, x, blocksize=2, mode=mode)
        for op in ("DepthToSpace", "SpaceToDepth")
        for x, mode in ((f(2, 8, 4, 6), "DCR"), (byte(1, 4, 2, 2), "CRD"))
        if (op, mode) != ("SpaceToDepth", "CRD")  # of opset 28
    ),
    case("ReverseSequence", f(4, 3, 2), np.array([0, 4, 2]), symbolic=False),
    case("ReverseSequence", i(3, 4), np.array([1, 4, 3]), batch_axis=0, time_axis=1),
    case("CenterCropPad", f(5, 4, 3), ints(2, 7, 3)),
    case("CenterCropPad", byte(6, 3), ints(4), axes=[-1]),
    case("CenterCropPad", f(5, 4), np.array([2, 7]), native=False, symbolic=False),
    case("EyeLike", f(3, 5), k=1),
    case("EyeLike", i(5, 3), k=-2, dtype=TensorProto.FLOAT),
    case("EyeLike", f(2, 2), k=7, dtype=TensorProto.UINT8),
    case("Concat", f(2, 3), f(2, 1), f(2, 4), axis=-1),
    case("Concat", f(2, 3), f(0, 3), axis=0),
    case("Pad", f(2, 3), ints(1, 0, 2, 3)),
    case("Pad", f(4, 3), ints(1, 2), scalar(7.0), ints(1)),
    case("Pad", i(2, 3), ints(0, 1, 1, 0), scalar(-1, np.int64)),
    *(
        case("Pad", f(4, 3), ints(2, 1), None, ints(axis), mode=mode)
        for mode, axis in (("edge", -1), ("reflect", 0), ("wrap", 1))
    ),
    case("Pad", b(2, 3), ints(1, 0, 0, 1)),
    case("Pad", f(2, 3), ints(1, 0, 0, 1), positive(1).reshape(())),
    case("Pad", f(0, 3), ints(1, 0, 2, 0)),
    case("Pad", f(4, 3), np.array([1, 0, 0, 2]), mode="reflect", native=False, symbolic=False),
    case("Trilu", f(2, 4, 5)),
    case("Trilu", f(4, 4), scalar(-1, np.int64), upper=0),
    case("Trilu", i(3, 4), scalar(2, np.int64)),
    case("Shape", f(2, 3, 4), start=1),
    case("Shape", f(2, 3, 4), start=-2, end=-1),
    case("Size", f(2, 3)),
    case("ConstantOfShape", ints(2, 3)),
    case("ConstantOfShape", np.array([2, 3]), native=False, symbolic=False),
    case("Range", *(np.array(n) for n in (2, 11, 3)), native=False, symbolic=False),
    case("Range", *(np.float32(n).reshape(()) for n in (1, 4, 0.5)), native=False),
    case("Range", *(scalar(n, np.int16) for n in (9, -7, -3))),
    case("ConstantOfShape", ints(4), value=np.array([7], np.int64)),
    case("Range", scalar(2, np.int64), scalar(11, np.int64), scalar(3, np.int64)),
    case("Range", scalar(5, np.int64), scalar(-2, np.int64), scalar(-2, np.int64)),
    case("Range", scalar(0.5), scalar(2.0), scalar(0.25)),
    # selection
    case("Gather", f(5, 3), i(2, 4, low=-5, high=5)),
    case("Gather", f(2, 5, 3), i(2, low=-5, high=5), axis=1),
    case("Gather", f(4, 5), np.array(-2), axis=-1),
    case("Gather", f(5, 3), i(0), axis=1),
    case("GatherElements", f(4, 3), i(2, 3, low=-4, high=4)),
    case("Gather", f(3, 5), ints(3, 1), axis=1),
    case("Gather", f(3, 5), ints(-1, -2, -3), axis=0),
    case("Gather", f(3, 5), ints(2, 2), axis=1),
    case("GatherElements", f(2, 5), i(2, 7, low=0, high=5), axis=1),
    case("GatherND", f(3, 4, 5), i(2, 6, 2, low=-3, high=3), symbolic=False),
    case("GatherND", f(2, 4, 5), i(2, 3, 1, low=0, high=4), batch_dims=1, symbolic=False),
    case("ScatterND", f(2), np.zeros((3, 0), np.int64), f(3, 2), reduction="add"),
    case("ScatterND", f(5, 3), np.array([[4], [0], [-2]]), f(3, 3), symbolic=False),
    case("ScatterND", f(4, 3), np.array([[1, 2], [3, 0]]), f(2), symbolic=False),
    *(
        case("ScatterND", x, np.array([[1], [-1], [1]]), y, reduction=reduction, symbolic=False)
        for reduction in ("add", "mul", "max", "min")
        for x, y in ((f(4, 2), f(3, 2)), (i(4), i(3)))
    ),
    *(
        case("ScatterElements", x, at, y, axis=axis, reduction=reduction, symbolic=False)
        for reduction in ("none", "add", "mul", "max", "min")
        for x, at, y, axis in (
            (f(4, 3), np.array([[0, 3, -1], [1, 2, 2]]), f(2, 3), 0),
            (byte(3, 5), np.array([[4, -5]], np.int32), byte(1, 2), -1),
        )
    ),
    case("TensorScatter", f(2, 3, 6, 4), f(2, 3, 2, 4), np.array([4, 1]), symbolic=(2, 3, 4, 6)),
    case("TensorScatter", f(2, 6, 4), f(2, 3, 4), np.array([5, 1]), mode="circular"),
    case("TensorScatter", f(2, 6), f(2, 3), axis=-1),
    # selection by value
    case("NonZero", i(3, 4, low=0, high=2), native=False),
    case("NonZero", b(5), native=False),
    case("Compress", f(4, 3), np.array([True, False, True]), axis=0, native=False),
    case("Compress", f(2, 3), np.array([False, True, True, False, True]), native=False),
    *(
        case("Unique", i(*shape, low=0, high=3), outputs=4, native=False, **how)
        for shape, how in (((3, 5), {}), ((9,), {"sorted": 0}), ((3, 5), {"axis": 1}))
    ),
    case(
        "NonMaxSuppression",
        positive(2, 9, 4),
        f(2, 3, 9),
        scalar([4], np.int64),
        scalar([0.2]),
        scalar([-1.0]),
        native=False,
    ),
    # images
    *(
        case("Resize", x, None, None, ints(2, 3, 5, 9), mode=mode, symbolic=False)
        for mode, x in (("nearest", byte(2, 3, 4, 6)), ("linear", f(2, 3, 4, 6)))
    ),
    case("Resize", f(2, 3, 4, 6), None, Fixed(np.array([1, 1, 2, 1.5], np.float32)), mode="linear"),
    case(
        "Resize",
        f(2, 7, 8),
        None,
        None,
        ints(3, 9),
        mode="cubic",
        axes=[1, 2],
        antialias=1,
    ),
    case("Resize", f(4, 6), None, None, np.array([2, 9]), native=False, symbolic=False),
    case("GridSample", f(2, 3, 4, 5), f(2, 6, 7, 2), symbolic=(3, 4, 5, 6, 7)),
    case("GridSample", f(1, 2, 3, 4, 5), f(1, 2, 3, 4, 3)),
    case("GridSample", f(1, 2, 4, 4, 5), f(1, 2, 3, 4, 3), mode="cubic", native=False),
    case("AffineGrid", f(2, 2, 3), ints(2, 3, 4, 5), native=False, symbolic=False),
    # transforms, whose parts are fixed
    case("DFT", f(5, 12, 1)),
    case("DFT", f(5, 12, 1), None, number(1), onesided=1),
    case("DFT", f(3, 7, 2), number(9), number(-2), symbolic=(3, 7)),
    case("DFT", f(3, 7, 5, 2), number(6), number(1), inverse=1, symbolic=(3, 5)),
    case("DFT", f(8, 3, 1), None, number(0)),
    case("DFT", f(5, 7, 2), None, number(1), inverse=1, onesided=1, symbolic=(5, 7)),
    case("DFT", f(5, 7, 2), number(11), number(1), inverse=1, onesided=1, symbolic=(5,)),
    case("DFT", f(2, 262, 1), native=False, symbolic=False),
    case("DFT", f(2, 6, 1).astype(np.float64), native=False, symbolic=False),
    case("STFT", f(2, 40, 1), number(3), Fixed(f(12)), number(12)),
    case("STFT", f(2, 40, 1), number(8), Fixed(f(9)), onesided=0),
    case("STFT", f(2, 40, 2), number(7), None, number(10), onesided=0, symbolic=(40,)),
    # reductions
    *(
        case(f"Reduce{kind}", f(2, 3, 4), ints(*axes), keepdims=keep)
        for kind in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2")
        for axes, keep in (((-1,), 1), ((0, 2), 0), ((1,), 0))
    ),
    *(
        case(f"Reduce{kind}", x(2, 3, 4), ints(*axes), keepdims=keep)
        for kind in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSumExp")
        for x in (double, i)
        for axes, keep in (((-1,), 1), ((0, 2), 0))
        if kind != "LogSumExp" or x is not i
    ),
    *(
        case(f"Reduce{kind}", x(2, 3, 2, 3, 2), ints(*axes), keepdims=0)
        for kind in ("Sum", "Mean", "Max", "Prod", "SumSquare", "L1", "L2")
        for x in (f, double)
        for axes in ((0, 2, 4), (0, 1, 3, 4), (1, 3))
    ),
    *(case("ReduceLogSum", x(2, 3, 4) ** 2, ints(1)) for x in (f, double)),
    *(
        case("ReduceLogSumExp", x(2, 3, 4) * 40, ints(*axes), keepdims=keep)
        for x in (f, double)
        for axes, keep in (((-1,), 1), ((0, 2), 0), ((1,), 0))
    ),
    *(
        case(f"Reduce{kind}", whole(dtype, 3, 40, 5), ints(1))
        for kind in ("Max", "Min")
        for dtype in INTEGERS
        if not dtype.endswith("16")
    ),
    *(case(f"Reduce{kind}", b(3, 5), ints(1), opset=20) for kind in ("Max", "Min")),
    *(
        case(f"Reduce{kind}", whole(t, 9, 5), ints(0))
        for kind in ("Sum", "Prod")
        for t in INTEGERS[2:4]
    ),
    case("ReduceSum", f(2, 3), keepdims=0),
    case("ReduceSum", f(2, 3), noop_with_empty_axes=1),
    case("ReduceSum", i(2, 3), ints(1)),
    case("ReduceMax", i(2, 3), ints(0)),
    case("ReduceSum", f(2, 0), ints(1)),
    case("GlobalAveragePool", f(2, 3, 4, 5)),
    case("CumSum", f(3, 4), scalar(1, np.int64)),
    case("CumSum", i(3, 4), scalar(-2, np.int64), exclusive=1),
    case("CumSum", i(5), scalar(0, np.int64), reverse=1),
    case("CumSum", f(2, 5), scalar(1, np.int64), exclusive=1, reverse=1),
    case("CumSum", f(2, 5), np.array(1), native=False),
    case("CumProd", f(2, 5), scalar(-1, np.int64), exclusive=1, reverse=1, opset=26),
    case("CumProd", i(5).astype(np.uint32), scalar(0, np.int64), opset=26),
    case("TopK", f(3, 9), ints(4), outputs=2),
    case("TopK", f(7, 3), ints(7), outputs=2, axis=0, largest=0),
    case("TopK", i(4, 9, low=0, high=3), ints(5), outputs=2),
    case("TopK", f(2, 5), ints(0), outputs=2),
    case("TopK", byte(3, 9), ints(4), outputs=2, largest=0),
    case("TopK", i(3, 9).astype(np.uint16), np.array([4]), outputs=2, native=False, symbolic=False),
    *(
        case(op, x, axis=axis, keepdims=keep, select_last_index=last)
        for op in ("ArgMax", "ArgMin")
        for x in (f(3, 5), i(3, 5, low=0, high=2))
        for axis, keep, last in ((0, 1, 0), (-1, 0, 1))
    ),
    case(
        "OneHot",
        i(2, 3, low=-5, high=6),
        scalar(4, np.int64),
        Fixed(np.array([0.5, 2.0], np.float32)),
    ),
    case("OneHot", i(2, 3, low=-4, high=3), scalar(4, np.int64), ints(7, 9), axis=1),
    case("OneHot", byte(3), scalar(4.0), Fixed(np.array([3, 5], np.int8))),
    case("OneHot", i(3), np.array(4), ints(7, 9), native=False, symbolic=False),
    case(
        "OneHot",
        f(3).round(),
        scalar(3, np.int64),
        Fixed(np.array([-1.0, 1.0], np.float32)),
        axis=0,
    ),
    case("Softmax", f(3, 5)),
    case("Softmax", f(2, 3, 5), axis=1),
    case("Softmax", f(0, 5)),
    *(
        case(op, double(2, 3, 5), axis=axis)
        for op in ("Softmax", "LogSoftmax")
        for axis in (0, 1, 2)
    ),
    *(case("Hardmax", x(2, 3, 5), axis=axis) for x in (f, double) for axis in (0, 1, -1)),
    case("Hardmax", f(3, 4).round(), axis=1),
    case("Hardmax", f(0, 4)),
    case("LogSoftmax", f(2, 3, 5), axis=0),
    # products
    case("Det", f(3, 3)),
    case("Det", double(2, 3, 4, 4)),
    case("Det", f(0, 2, 2)),
    case("MatMul", f(2, 3, 4), Fixed(f(4, 5))),
    case("MatMul", f(2, 3, 4), f(4, 5)),
    case("MatMul", f(2, 3, 4), f(2, 4, 5)),
    case("MatMul", f(2, 1, 3, 4), f(5, 4, 6)),
    case("MatMul", f(4), f(4, 5)),
    case("MatMul", f(2, 3, 4), f(4)),
    case("MatMul", f(4), f(4)),
    case("MatMul", double(2, 1, 3, 4), double(5, 4, 6)),
    case("MatMul", double(3, 4), Fixed(double(4, 5))),
    *(case("MatMul", whole(t, 9, 4), whole(t, 2, 4, 5)) for t in ("int32", "int64", "uint64")),
    case("MatMul", i(4), i(2, 4, 5)),
    case("Gemm", double(4, 3), double(5, 4), double(1, 5), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", double(3, 4), Fixed(double(4, 5)), alpha=0.5),
    *(
        case("Gemm", double(7, 4), Fixed(double(*shape)), double(n), transB=turned)
        for turned, shape, n in ((0, (4, 19), 19), (1, (19, 4), 19), (1, (1, 4), 1))
    ),
    *(case("Pow", double(3, 40), Fixed(np.array(e))) for e in (2.0, 3.0, 1.5)),
    case("Gemm", i(3, 4), i(4, 5), i(5), alpha=2.0, beta=3.0),
    case("Gemm", f(3, 4), f(4, 5), np.full(5, np.nan, np.float32), beta=0.0),
    case("Gemm", double(3, 4), double(4, 5), np.full(5, np.inf), beta=0.0),
    case("Einsum", double(2, 3, 4), double(2, 5, 4), equation="bid,bjd->bij"),
    case("Einsum", f(2, 3, 4), f(2, 5, 4), equation="bid,bjd->bij"),
    case("Einsum", f(2, 3, 4), Fixed(f(4, 2, 5)), equation="...d,dhk->...hk"),
    case("Einsum", f(2, 5, 5), equation="...ii->...i"),
    case("Einsum", f(5, 3, 5), f(3, 5), equation="iji,jk->ik"),
    case("Einsum", i(4, 4), equation="ii"),
    case("Einsum", f(3, 3, 3), equation="iii->i"),
    case("Einsum", np.array(2.5, np.float32), equation="->"),
    case("Gemm", f(3, 4), Fixed(f(4, 5)), Fixed(f(5))),
    case("Gemm", f(3, 4), Fixed(f(5, 4)), f(3, 5), alpha=0.5, beta=2.0, transB=1),
    case("Gemm", f(4, 3), Fixed(f(4, 5)), f(3, 1), transA=1),
    case("Gemm", f(4, 3), f(5, 4), f(1, 5), transA=1, transB=1),
    case("Gemm", f(3, 4), Fixed(f(4, 5))),
    case("MatMul", f(0, 4), Fixed(f(4, 5))),
    case("MatMul", f(3, 0), f(0, 5)),
    # integers for real numbers
    case("QuantizeLinear", f(3, 4) * 9, scalar(0.25)),
    case("QuantizeLinear", f(2, 3, 5) * 9, row(3), Fixed(np.array([3, 0, -7], np.int8)), axis=1),
    case("QuantizeLinear", f(4) * 9, scalar(0.5), scalar(200, np.uint8)),
    case("QuantizeLinear", f(2, 6) * 9, Fixed(positive(2, 3)), block_size=2),
    case("QuantizeLinear", f(2, 5, 3) * 9, positive(2, 2, 3), byte(2, 2, 3), block_size=3),
    case("QuantizeLinear", f(3, 4) * 999, scalar(0.25), scalar(9, np.int16)),
    case("QuantizeLinear", f(3, 4), scalar(0.25), output_dtype=TensorProto.UINT4),
    case(
        "QuantizeLinear", f(3, 4), scalar(0.25), output_dtype=TensorProto.FLOAT8E5M2, native=False
    ),
    case("QuantizeLinear", steps(3, 4), scalar(0.3), precision=TensorProto.FLOAT16),
    case("DequantizeLinear", byte(3, 4), scalar(0.25), scalar(9, np.uint8)),
    case("DequantizeLinear", byte(2, 3, 5), row(3), axis=-2),
    case("DequantizeLinear", i(7).astype(np.int32), scalar(0.5)),
    case("DequantizeLinear", byte(5, 3), positive(2, 3), byte(2, 3), block_size=3, axis=0),
    case("DequantizeLinear", byte(2, 6), positive(2, 3), block_size=2, axis=-1),
    case("MatMulInteger", byte(3, 4), Fixed(byte(4, 5))),
    case(
        "MatMulInteger",
        byte(2, 3, 7),
        Fixed(byte(7, 5).astype(np.int8)),
        scalar(3, np.uint8),
        Fixed(np.array([1, -2, 0, 3, 4], np.int8)),
    ),
    case("MatMulInteger", byte(3, 4), byte(4, 5)),
    case(
        "QLinearMatMul",
        byte(3, 4),
        scalar(0.5),
        scalar(100, np.uint8),
        Fixed(byte(4, 5)),
        row(5),
        Fixed(byte(5)),
        scalar(90.0),
        scalar(7, np.int8),
    ),
    case(
        "ConvInteger",
        byte(2, 3, 6, 5),
        Fixed(byte(4, 3, 3, 2)),
        scalar(9, np.uint8),
        pads=[1, 0, 1, 1],
    ),
    case("ConvInteger", byte(1, 2, 7), Fixed(byte(3, 2, 3)), strides=[2], symbolic=False),
    case("ConvInteger", byte(2, 4, 6, 5), Fixed(byte(4, 1, 3, 3)), group=4, pads=[1, 1, 1, 1]),
    case("ConvInteger", byte(2, 4, 6), Fixed(byte(6, 2, 3)), scalar(9, np.uint8), group=2),
    case(
        "QLinearConv",
        byte(2, 3, 6, 5),
        scalar(0.5),
        scalar(100, np.uint8),
        Fixed(byte(4, 3, 3, 3)),
        row(4),
        Fixed(byte(4)),
        scalar(300.0),
        scalar(7, np.uint8),
        Fixed(np.array([100, -2000, 5, 0], np.int32)),
        dilations=[1, 2],
        symbolic=False,
    ),
    # normalisation
    case("LayerNormalization", f(0, 8), f(8)),
    case("LayerNormalization", f(2, 3, 8), f(8), f(8)),
    case("LayerNormalization", f(2, 3, 8), f(3, 8), axis=1, epsilon=0.1),
    case("LayerNormalization", f(2, 3, 8), f(8), f(8), outputs=3),
    case("LayerNormalization", f(2, 3, 8), f(1, 1, 8), f(1)),
    case("LayerNormalization", f(2, 3, 8), f(3, 8), f(2, 1, 8)),
    case("LayerNormalization", f(2, 3, 8), Fixed(np.ones(8, np.float32)), f(3, 1)),
    case("RMSNormalization", f(2, 3, 8), f(8)),
    case("RMSNormalization", f(2, 3, 8), f(2, 1, 8)),
    case("RMSNormalization", f(2, 3, 8), Fixed(np.ones(1, np.float32))),
    case("RMSNormalization", f(2, 3, 8), f(3, 8), axis=-2),
    case("BatchNormalization", f(2, 3, 4), f(3), f(3), f(3), positive(3)),
    case("InstanceNormalization", f(2, 3, 4, 2), f(3), f(3)),
    case("GroupNormalization", f(2, 6, 5), f(6), f(6), num_groups=3),
    case("GroupNormalization", double(2, 6, 5), double(6), double(6), num_groups=3),
    case("InstanceNormalization", double(2, 3, 4), double(3), double(3)),
    case("BatchNormalization", double(2, 3, 4), double(3), double(3), double(3), double(3) ** 2),
    case("BatchNormalization", f(4, 3), f(3), f(3), f(3), positive(3)),
    case(
        "BatchNormalization",
        *(f(2, 3, 4), f(3), f(3), f(3), positive(3)),
        outputs=3,
        training_mode=1,
        momentum=0.7,
        native=False,
    ),
    case("LayerNormalization", double(2, 3, 8), double(3, 8), double(8), axis=1),
    case("RMSNormalization", double(2, 3, 8), double(8)),
    case("MeanVarianceNormalization", f(2, 3, 4, 5)),
    case("MeanVarianceNormalization", f(2, 3, 4), axes=[1, -1]),
    *(case("LpNormalization", x(2, 3, 4), axis=1) for x in (f, double)),
    case("LpNormalization", positive(2, 3, 4), p=1),
    case("LpNormalization", np.zeros((2, 3), np.float32)),
    # attention
    attention((2, 4, 5, 8), (2, 4, 5, 8)),
    attention((2, 4, 5, 8), (2, 2, 7, 8), scale=0.3),
    attention((2, 3, 32), (2, 5, 16), q_num_heads=4, kv_num_heads=2),
    attention((2, 4, 5, 8), (2, 4, 5, 8), is_causal=1),
    attention((2, 4, 3, 8), (2, 4, 5, 8), is_causal=1),
    attention((2, 4, 5, 8), (2, 4, 6, 8), f(5, 6)),
    attention((2, 4, 5, 8), (2, 4, 6, 8), b(2, 1, 5, 6)),
    attention((2, 4, 5, 8), (2, 4, 6, 8), i(5, 6)),
    attention((2, 4, 5, 8), (2, 4, 6, 8), f(5, 6).astype(np.float16)),
    attention((1, 2, 3, 8), (1, 2, 3, 8), Fixed(np.array([[1, 0, 0], [0, 0, 0], [1, 1, 1]]) > 0)),
    attention(
        (2, 4, 3, 8), (2, 4, 3, 8), None, f(2, 4, 2, 8), f(2, 4, 2, 8), outputs=3, is_causal=1
    ),
    attention((1, 2, 3, 8), (1, 2, 3, 8), softcap=2.0),
    attention((1, 2, 3, 8), (1, 2, 4, 8), left_window_size=1),
    attention((1, 2, 3, 8), (1, 2, 4, 8), b(3, 4), outputs=4, qk_matmul_output_mode=3),
    case("Attention", *doubles((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)), native=False),
    case(
        "Attention",
        *doubles((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8), (3, 7), (2, 2, 2, 8), (2, 2, 2, 8)),
        outputs=3,
        native=False,
    ),
    case("RotaryEmbedding", f(2, 4, 3, 8), f(9, 4), f(9, 4), i(2, 3, low=0, high=9)),
    case("RotaryEmbedding", f(2, 3, 32), f(2, 3, 4), f(2, 3, 4), num_heads=4, interleaved=1),
    case("RotaryEmbedding", f(2, 4, 3, 8), f(2, 3, 2), f(2, 3, 2), rotary_embedding_dim=4),
    # convolution
    case("Conv", f(2, 3, 6, 7), Fixed(f(4, 3, 3, 3)), Fixed(f(4)), pads=[1, 1, 1, 1]),
    case("Conv", f(1, 4, 8, 8), Fixed(f(6, 2, 2, 2)), group=2, strides=[2, 2]),
    case("Conv", f(2, 3, 9), Fixed(f(4, 3, 3)), Fixed(f(4)), dilations=[2], pads=[2, 1]),
    case("Conv", f(1, 2, 5, 5), Fixed(f(3, 2, 2, 3)), auto_pad="SAME_UPPER"),
    case("RNN", f(3, 2, 4), f(1, 5, 4), f(1, 5, 5), outputs=2, hidden_size=5),
    case("RNN", f(3, 2, 4), f(2, 5, 4), f(2, 5, 5), f(2, 10), direction="bidirectional"),
    case("RNN", f(2, 3, 4), f(1, 5, 4), f(1, 5, 5), None, None, f(2, 1, 5), outputs=2, layout=1),
    case("GRU", f(3, 2, 4), f(1, 15, 4), f(1, 15, 5), outputs=2, hidden_size=5),
    case("GRU", f(3, 2, 4), Fixed(f(1, 15, 4)), Fixed(f(1, 15, 5)), Fixed(f(1, 30)), outputs=2),
    case("GRU", f(3, 2, 4), f(2, 15, 4), f(2, 15, 5), f(2, 30), direction="bidirectional"),
    case("GRU", f(2, 3, 4), f(1, 15, 4), f(1, 15, 5), outputs=2, layout=1),
    case(
        *("GRU", f(3, 2, 4), f(1, 15, 4), f(1, 15, 5), f(1, 30), None, f(1, 2, 5)),
        outputs=2,
        linear_before_reset=1,
    ),
    case("LSTM", f(3, 2, 4), f(1, 20, 4), f(1, 20, 5), outputs=3, hidden_size=5),
    case(
        "LSTM", f(3, 2, 4), Fixed(f(1, 20, 4)), Fixed(f(1, 20, 5)), outputs=3, direction="reverse"
    ),
    case("LSTM", f(2, 3, 4), f(1, 20, 4), f(1, 20, 5), outputs=3, layout=1),
    case(
        *("LSTM", f(3, 2, 4), f(2, 20, 4), f(2, 20, 5), f(2, 40), None, f(2, 2, 5), f(2, 2, 5)),
        f(2, 15),
        outputs=3,
        direction="bidirectional",
    ),
    case("Conv", f(1, 2, 4, 4, 4), Fixed(f(3, 2, 2, 2, 2)), pads=[1, 0, 0, 0, 1, 1]),
    case(
        *("Conv", f(2, 3, 5, 6, 7), Fixed(f(8, 3, 3, 2, 3)), Fixed(f(8))),
        **{"pads": [1, 0, 2, 2, 1, 0], "strides": [2, 1, 2], "dilations": [1, 2, 1]},
    ),
    case("Conv", f(1, 4, 6, 5, 5), Fixed(f(16, 2, 2, 3, 3)), group=2, dilations=[2, 1, 1]),
    case("Conv", f(2, 1, 5, 4, 4), Fixed(f(9, 1, 3, 3, 3)), auto_pad="SAME_UPPER", strides=[2] * 3),
    case("Conv", f(2, 6, 5, 7), Fixed(f(12, 1, 3, 3)), Fixed(f(12)), group=6, strides=[1, 2]),
    case("Conv", f(2, 6, 4, 5, 7), Fixed(f(18, 1, 3, 2, 3)), group=6, pads=[1, 0, 1, 1, 1, 0]),
    case("Conv", f(1, 3, 6, 7), f(9, 1, 3, 3), f(9), group=3),
    case("Conv", f(2, 33, 13, 12), Fixed(f(40, 33, 3, 3)), dilations=[2, 3], pads=[2, 3, 2, 3]),
    case("Conv", f(0, 3, 6, 7), Fixed(f(4, 3, 3, 3))),
    case("ConvTranspose", f(2, 4, 5, 3), Fixed(f(4, 3, 3, 2)), Fixed(f(3)), strides=[2, 3]),
    case("ConvTranspose", f(2, 4, 6), f(4, 3, 3), dilations=[2], pads=[1, 2]),
    case(
        *("ConvTranspose", f(1, 2, 3, 3), Fixed(f(2, 2, 3, 3))),
        **{"strides": [3, 2], "output_padding": [1, 1], "pads": [1, 0, 0, 1]},
    ),
    case(
        "ConvTranspose", f(1, 2, 3, 3), Fixed(f(2, 2, 3, 3)), auto_pad="SAME_UPPER", strides=[2, 2]
    ),
    case("ConvTranspose", f(1, 2, 2, 3, 2), Fixed(f(2, 2, 2, 2, 3)), strides=[2, 1, 1]),
    case("Col2Im", f(2, 12, 16), ints(5, 4), ints(3, 2), symbolic=(2,), pads=[1, 0, 0, 1]),
    case("Col2Im", f(1, 5, 6), ints(2, 5), ints(1, 5), symbolic=False, pads=[0, 1, 0, 1]),
    # onnx's evaluator has other corners for SAME_LOWER: tests/kernels/test_pool.py
    *(case("MaxPool", f(2, 3, 7, 8), kernel_shape=[3, 2], **at) for at in WINDOWS[:-1]),
    *(case("MaxPool", byte(2, 3, 7, 8), kernel_shape=[3, 2], **at) for at in WINDOWS[:-1]),
    case("MaxPool", f(2, 3, 7, 8), outputs=2, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    case("MaxPool", i(1, 3, 9).astype(np.int8), kernel_shape=[2]),
    case("MaxPool", f(1, 2, 4, 5, 6), kernel_shape=[2, 3, 2], strides=[1, 2, 2]),
    *(case("AveragePool", f(2, 3, 7, 8), kernel_shape=[3, 2], **at) for at in WINDOWS),
    *(
        case("AveragePool", f(2, 3, 7, 8), kernel_shape=[3, 2], count_include_pad=1, **at)
        for at in WINDOWS
    ),
    case("AveragePool", f(1, 2, 4, 5, 6), kernel_shape=[2, 3, 2], strides=[1, 2, 2]),
    case("LpPool", f(2, 3, 7, 8), kernel_shape=[3, 2], strides=[2, 1], p=3),
    case("LpPool", f(2, 3, 9), kernel_shape=[3], p=1),
    case("GlobalMaxPool", f(2, 3, 4, 5)),
    case("MaxUnpool", f(1, 1, 2, 2), ints_of((1, 1, 2, 2), 5, 7, 13, 15), native=False, **UNPOOL),
    case(
        *("MaxUnpool", f(1, 1, 2, 2), ints_of((1, 1, 2, 2), 5, 7, 13, 15), ints(1, 1, 5, 5)),
        **{"native": False, **UNPOOL},
    ),
    case("LRN", f(6, 6, 2, 3), size=5, alpha=0.3, beta=0.6, bias=2.0),
    case("LRN", f(4, 4, 3, 3), size=4),
    case("LRN", f(1, 3, 0, 2), size=3),
    *(
        case(
            *("RoiAlign", f(2, 3, 9, 8), f(4, 4) * 2 + 3, ints(0, 1, 1, 0)),
            **{"output_height": 3, "output_width": 2, "mode": mode},
            **{"sampling_ratio": ratio, "spatial_scale": 0.8, "opset": opset},
        )
        for mode, ratio, opset in (("avg", 2, 22), ("max", 2, 16), ("avg", 0, 22))
    ),
    case(
        *("DeformConv", f(2, 4, 5, 6), f(6, 2, 3, 2), f(2, 24, 3, 5), f(6), f(2, 12, 3, 5)),
        **{"native": False, "group": 2, "offset_group": 2},
    ),
    case(
        *("DeformConv", f(1, 2, 4, 4), f(3, 2, 2, 2), f(1, 8, 2, 3)),
        **{"native": False, "pads": [1, 0, 0, 1], "strides": [2, 1], "dilations": [1, 2]},
    ),
]
every_case = pytest.mark.parametrize("index", range(len(CASES)), ids=lambda n: str(CASES[n]))


def array_of(item: Any) -> Optional[np.ndarray]:
    return item.array if isinstance(item, Fixed) else item


def varies(item: Case, dim: int) -> bool:
    return dim > 1 if item.symbolic is True else dim in (item.symbolic or ())


def make_model(item: Case, symbolic: bool = False) -> Any:
    """The case as an ONNX model of one node; fed inputs are x0, x1, .."""
    names = ["" if x is None else f"x{n}" for n, x in enumerate(item.inputs)]
    attrs = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in item.attrs.items()
    }
    outputs = [f"y{n}" for n in range(item.outputs)]
    node = helper.make_node(item.op, names, outputs, name="node", **attrs)
    fed, fixed = [], []
    for name, x in zip(names, item.inputs):
        if isinstance(x, Fixed):
            fixed.append(numpy_helper.from_array(x.array, name))
        elif x is not None:
            shape = [f"n{d}" if symbolic and varies(item, d) else d for d in x.shape]
            fed.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shape)
            )
    results = [helper.make_tensor_value_info(name, dtypes.FLOAT, None) for name in outputs]
    for result, type in zip(results, infer(item)):
        result.type.tensor_type.elem_type = type.dtype
    graph = helper.make_graph([node], "case", fed, results, fixed)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", item.opset)], ir_version=10
    )


@cache
def expected(index: int) -> list[np.ndarray]:
    """What onnx makes of CASES[index]."""
    item = CASES[index]
    with np.errstate(all="ignore"):
        return [
            np.asarray(y) for y in ReferenceEvaluator(make_model(item)).run(None, feeds_of(item))
        ]


def feeds_of(item: Case) -> dict[str, np.ndarray]:
    return {
        f"x{n}": x for n, x in enumerate(item.inputs) if x is not None and not isinstance(x, Fixed)
    }


def make_node(item: Case, symbolic: bool = False) -> Node:
    """The case as a node of our own; symbolic: the dim 5 of a fed input is the symbol n5."""
    values: list[Optional[Value]] = []
    for n, x in enumerate(item.inputs):
        array = array_of(x)
        if array is None:
            values.append(None)
            continue
        shape = tuple(
            symbol(f"n{d}") if symbolic and varies(item, d) and not isinstance(x, Fixed) else d
            for d in array.shape
        )
        values.append(Value(f"x{n}", dtypes.from_numpy(array.dtype), shape))
        if isinstance(x, Fixed):
            values[-1].const = array
    outputs = [Value(f"y{n}") for n in range(item.outputs)]
    return Node(item.op, values, outputs, {**find(item.op).attributes, **item.attrs}, "node")


def infer(item: Case, symbolic: bool = False) -> list[Type]:
    return find(item.op).infer(make_node(item, symbolic))[: item.outputs]


def evaluate(item: Case, float_dtype: Any = None) -> list[np.ndarray]:
    arrays = [array_of(x) for x in item.inputs]
    if float_dtype is not None:
        arrays = [
            x.astype(float_dtype) if x is not None and x.dtype.kind == "f" else x for x in arrays
        ]
    with np.errstate(all="ignore"):
        result = find(item.op).reference(make_node(item), *arrays)
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(y) for y in results[: item.outputs]]


def assert_close(actual: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    assert actual.shape == wanted.shape
    if wanted.dtype.kind == "f":
        scale = max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)))
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(actual, wanted)


@every_case
def test_reference(index: int) -> None:
    item = CASES[index]
    for actual, y, type in zip(evaluate(item), expected(index), infer(item)):
        assert actual.dtype == y.dtype == dtypes.DTYPES[type.dtype].numpy
        assert_close(actual, y, 4e-6)


@every_case
def test_reference_stays_wide(index: int) -> None:
    item = CASES[index]
    fed_floats = any(x.dtype.kind == "f" for x in feeds_of(item).values())
    for actual, y, type in zip(evaluate(item, np.float64), expected(index), infer(item)):
        if fed_floats and type.dtype == dtypes.FLOAT:
            assert actual.dtype == np.float64
        assert_close(actual, y.astype(actual.dtype), 4e-6)


@every_case
def test_infer(index: int) -> None:
    for type, y in zip(infer(CASES[index]), expected(index)):
        assert type.dtype == dtypes.from_numpy(y.dtype)
        assert_fits(type, y, {})
        if type.elements is not None:
            assert list(type.elements) == y.ravel().tolist()


@every_case
def test_infer_symbolic(index: int) -> None:
    if not CASES[index].symbolic:
        pytest.skip("needs fixed dims")
    sizes = {f"n{d}": d for d in range(100)}
    for type, y in zip(infer(CASES[index], symbolic=True), expected(index)):
        assert_fits(type, y, sizes)


def assert_fits(type: Type, y: np.ndarray, sizes: dict[str, int]) -> None:
    """The shape is that of y, where a symbol of the node's own stands for any size."""
    assert len(type.shape) == y.ndim
    for dim, size in zip(type.shape, y.shape):
        found = substitute(dim, sizes)
        if isinstance(found, Expr):
            assert repr(found).startswith("y")
            sizes[repr(found)] = size
        else:
            assert found == size


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@every_case
def test_native(index: int, symbolic: bool, session_class: Any) -> None:
    """The C steps, also where every dim above 1 is a symbol; host steps where there are none."""
    item = CASES[index]
    if symbolic and not item.symbolic:
        pytest.skip("needs fixed dims")
    model = make_model(item, symbolic).SerializeToString()
    session = session_class(model, threads=2, fusion=False)
    assert bool(session.program.host_phases) != item.native
    for actual, y in zip(session.run(feeds_of(item)), expected(index)):
        assert actual.dtype == y.dtype
        assert_close(actual, y, 2e-5)


OPTIONAL = {"Optional", "OptionalGetElement", "OptionalHasElement"}  # see tests/conformance
LISTS = {  # tests/models/test_sequences.py
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
    *("SequenceLength", "ConcatFromSequence", "SplitToSequence"),
}
TEXT = {"StringNormalizer", "StringSplit", "RegexFullMatch"}  # tests/unit/test_text.py


def test_every_op_has_a_case() -> None:
    standard = {
        name
        for name, entry in entries().items()
        if "::" not in name and hasattr(entry, "reference")
        if not getattr(entry, "is_random", False)  # tests/unit/test_random.py
    }
    unknown = {"GlobalLpPool", "MaxRoiPool"}  # to onnx's evaluator: tests/kernels/test_pool.py
    assert standard - {item.op for item in CASES} == unknown | OPTIONAL | LISTS | TEXT


def test_catalogue_form() -> None:
    """Every entry has all its parts, and is able to run somewhere."""
    for name, entry in entries().items():
        assert entry.__doc__ and parse(entry.signature).outputs, name
        assert isinstance(entry.attributes, dict) and callable(entry.infer), name
        assert any(hasattr(entry, part) for part in ("reference", "decompose", "control")), name


def standard_schemas() -> dict[str, list[Any]]:
    """onnx's schemas of each entry that has some, the newest first."""
    found: dict[str, list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        name = f"{schema.domain}::{schema.name}" if schema.domain else schema.name
        if name in entries():
            found.setdefault(name, []).append(schema)
    for schemas in found.values():
        schemas.sort(key=lambda schema: -schema.since_version)
    return found


def test_signatures_are_those_of_the_standard() -> None:
    """As many operands and results are required, and allowed, as the newest schema says."""
    for name, (schema, *_) in standard_schemas().items():
        bounds = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
        for formals, (least, most) in zip(parse(find(name).signature), bounds):
            assert sum(not formal.mark for formal in formals) <= least, (name, formals)
            assert len(formals) >= most or formals[-1].mark == "*", (name, formals)


def test_defaults_are_those_of_the_standard() -> None:
    """Numbers to the bit: attributes are float32, which shows where doubles are computed."""
    seen = 0
    for name, (schema, *_) in standard_schemas().items():
        for key, attr in schema.attributes.items():
            if attr.default_value.type in (AttributeProto.FLOAT, AttributeProto.INT):
                wanted = helper.get_attribute_value(attr.default_value)
                assert find(name).attributes.get(key, wanted) == wanted, (name, key)
                seen += key in find(name).attributes
    assert seen > 100


CODES = {dtypes.type_string(code): code for code in dtypes.DTYPES}
REWRITTEN = {("Split", 1), ("Tile", 1)}  # their sizes had the dtype of x


def parameter(formal: Any) -> str:
    """The schemas of onnxruntime have the names that those of onnx had."""
    return str(getattr(formal, "type_str", None) or formal.typeStr)


def types_of(schema: Any, *older: Any) -> list[str]:
    """As a signature spells those of a schema's inputs: the narrowest of KINDS that holds all that
    are allowed, here or before, with a number where another type parameter is of that kind; "" for
    what says nothing.
    """
    of_kind: dict[str, list[str]] = {}
    types = []
    for i, each in enumerate(schema.inputs):
        versions = [each, *(other.inputs[i] for other in older if i < len(other.inputs))]
        allowed = {CODES[type] for one in versions for type in one.types if type in CODES}
        kind = next(k for k in reversed(KINDS) if KINDS[k] is None or allowed <= KINDS[k])
        same = [other for other in schema.inputs if parameter(other) == parameter(each)]
        if each.option.name == "Variadic":
            is_one = getattr(each, "is_homogeneous", None) or getattr(each, "isHomogeneous", None)
        else:
            is_one = kind != "T" or len(same) > 1
        if not allowed or not is_one:
            types.append("")
            continue
        of_kind.setdefault(kind, []).append(parameter(each))
        place = list(dict.fromkeys(of_kind[kind])).index(parameter(each))
        types.append(f"{kind}{place or ''}" if len(kind) == 1 else kind)
    return types


def assert_types(name: str, schema: Any, *older: Any) -> None:
    formals = parse(find(name).signature).inputs
    wanted = types_of(schema, *older)
    wanted += [""] * (len(formals) - len(wanted))  # captures
    assert [formal.type for formal in formals] == wanted[: len(formals)], name


def test_types_are_those_of_the_standard() -> None:
    """Operands of one type parameter have one type, of the kind that all versions allow."""
    for name, schemas in standard_schemas().items():
        kept = [each for each in schemas if (name, each.since_version) not in REWRITTEN]
        assert_types(name, *kept)
        for older in kept[1:]:
            bound: dict[str, str] = {}
            for formal, each in zip(parse(find(name).signature).inputs, older.inputs):
                if formal.type and (formal.allowed is None or len(formal.allowed) > 1):
                    first = bound.setdefault(formal.type, parameter(each))
                    assert first == parameter(each), (name, older.since_version)


def test_types_are_those_of_onnxruntime() -> None:
    """Those of its own ops."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {f"{each.domain}::{each.name}": each for each in state.get_all_operator_schema()}
    own = {name for name in entries() if name.startswith("com.microsoft::")}
    assert own <= schemas.keys()
    own.remove("com.microsoft::GroupQueryAttention")  # with a total length that the importer made
    for name in own:
        assert_types(name, schemas[name])


def test_signatures() -> None:
    """The parts of a signature, and what does not fit them."""
    given = parse("a: F, low?: F1, axes?: index, rest* -> y, indices?")
    assert [(each.name, each.mark, each.type) for each in given.inputs] == [
        *(("a", "", "F"), ("low", "?", "F1"), ("axes", "?", "index"), ("rest", "*", "")),
    ]
    assert [str(each) for each in given.outputs] == ["y", "indices?"]
    assert parse(given) is given and given.input(9) is given.inputs[3]
    assert parse(" -> y").inputs == ()
    with pytest.raises(KeyError):
        parse("x: G -> y")


@pytest.mark.parametrize(
    "op, kinds, words",
    [
        ("MatMul", "float32 float64", "(N) (MatMul) bound tensor(float) tensor(double) a b x0 x1"),
        ("Concat", "int64 int64 int32", "(T) bound tensor(int64) tensor(int32) x0 x2"),
        ("Gather", "float32 float32", "(x1) (Gather) 'tensor(float)' int32 or int64 as indices"),
        ("Where", "float32 int64 int64", "(x0) 'tensor(float)' bool as condition"),
        ("Attention", "int64 int64 int64", "(x0) 'tensor(int64)' float as q"),
        ("LSTM", "float32 float32 float64", "(F) bound x and r tensor(double) x2"),
        ("Det@22", "int64", "(x0) (Det) 'tensor(int64)' float as X"),
        ("RegexFullMatch@20", "float32", "(x0) (RegexFullMatch) 'tensor(float)' string as X"),
    ],
)
def test_operands_of_types_that_an_op_does_not_take(op: str, kinds: str, words: str) -> None:
    """Whatever their ranks: they need not be known."""
    codes = [dtypes.from_numpy(kind) for kind in kinds.split()]
    inputs = [Value(f"x{i}", code) for i, code in enumerate(codes)]
    node = Node(op, list(inputs), [Value("y")], name="odd")
    with pytest.raises(ModelError) as caught:
        infer_node(node)
    for word in (f"[{op} odd]", *words.split()):
        assert word in str(caught.value)


def test_operands_of_unknown_types_pass() -> None:
    unknown, x = Value("unknown"), Value("x", dtypes.DOUBLE)
    for inputs in ([unknown, x], [x, unknown], [unknown, unknown]):
        infer_node(Node("MatMul", list(inputs), [Value("y")]))


def test_folded() -> None:
    """Of constants a Builder makes the constant, no node; of two dtypes it refuses, as a node."""
    g = Builder(Graph())
    x = g.array(np.array([1.0, -4.0], np.float32))
    root = g.folded("Sqrt", x)
    assert (
        root.type == Type(dtypes.FLOAT, (2,)) and root.const[0] == 1.0 and np.isnan(root.const[1])
    )
    assert not x.users and not g.take()
    with pytest.raises(ModelError, match="bound to different types"):
        g.folded("Mul", x, g.array(np.ones(2, np.float64)))
    given = Value("x", dtypes.FLOAT, (2,))
    assert g.folded("Add", given, x).producer is g.take()[0]
