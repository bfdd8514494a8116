"""NaN, infinities, zeros of both signs, denormals and the greatest floats, through what fusions
make one step of: as onnxruntime has them, node by node.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

import q7x2_ep
from tests.fusion import battery

onnxruntime = pytest.importorskip("onnxruntime")

Formula = Callable[..., Any]
MOST = float(np.finfo(np.float32).max)
LOWEST = np.float32(-MOST)
LARGE = (88.0, 104.0, 1e20, MOST / 8)  # where e^x ends, in single and with denormals, and squares
USUAL = (0.0, 1e-45, 1e-40, 1.2e-38, 0.5, 1.0, 3.0, 6.0, 9.0)
SPECIAL = np.array(
    [np.nan, *(sign * x for x in (*USUAL, *LARGE, np.inf) for sign in (1, -1))], "f4"
)
BOUND = 64 * battery.EPS  # sums of up to 24 products, and functions of them
NOT_FINITE = (np.nan, np.inf, -np.inf)
FINITE_BELOW = {"gelu", "gelu_tanh"}  # of -inf we give the limit, -0, where 0 times infinity is NaN

ACTIVATIONS: dict[str, Formula] = {
    "relu": lambda g, x: g.Relu(x),
    "relu_of_max": lambda g, x: g.Max(x, 0.0),
    "relu_of_where": lambda g, x: g.Where(g.Greater(x, 0.0), x, 0.0),
    "leaky_of_where": lambda g, x: g.Where(g.GreaterOrEqual(x, 0.0), x, g.Mul(x, 0.1)),
    "leaky_of_max": lambda g, x: g.Max(x, g.Mul(x, 0.1)),
    "clip": lambda g, x: g.Clip(x, 0.0, 6.0),
    "clip_of_min": lambda g, x: g.Min(g.Max(x, 0.0), 6.0),
    "clip_of_clip": lambda g, x: g.Clip(g.Clip(x, -3.0, 3.0), 0.0, 6.0),
    "hard_sigmoid": lambda g, x: g.Div(g.Clip(g.Add(x, 3.0), 0.0, 6.0), 6.0),
    "hard_swish": lambda g, x: g.Mul(x, g.Div(g.Clip(g.Add(x, 3.0), 0.0, 6.0), 6.0)),
    "sigmoid": lambda g, x: g.Div(1.0, g.Add(1.0, g.Exp(g.Neg(x)))),
    "swish": lambda g, x: g.Mul(x, g.Sigmoid(x)),
    "swish_of_exp": lambda g, x: g.Div(x, g.Add(1.0, g.Exp(g.Neg(x)))),
    "quick_gelu": lambda g, x: g.Mul(x, g.Sigmoid(g.Mul(x, 1.702))),
    "gelu": lambda g, x: g.Mul(g.Mul(x, 0.5), g.Add(g.Erf(g.Div(x, 2**0.5)), 1.0)),
    "gelu_tanh": lambda g, x: g.Mul(
        g.Mul(x, 0.5),
        g.Add(g.Tanh(g.Mul(0.79788456, g.Add(x, g.Mul(0.044715, g.Pow(x, 3.0))))), 1.0),
    ),
    "mish": lambda g, x: g.Mul(x, g.Tanh(g.Softplus(x))),
    "elu": lambda g, x: g.Elu(x),
    "softcap": lambda g, x: g.Mul(g.Tanh(g.Div(x, 30.0)), 30.0),
    "squared_relu": lambda g, x: g.Pow(g.Relu(x), 2.0),
    "guarded": lambda g, x: g.Where(g.IsNaN(x), 0.0, x),
    "rsqrt": lambda g, x: g.Div(1.0, g.Sqrt(x)),
    "self": lambda g, x: g.Sub(x, x),
    "scaled_twice": lambda g, x: g.Mul(g.Mul(x, 0.0), 2.0),
}

W, B = battery.weight(24, 16), battery.weight(16)
CONV, CHANNELS = battery.weight(16, 8, 1, 1), battery.weight(16, seed=1)
ZEROS = np.where(np.arange(16) % 3, B, 0).astype(np.float32)
LAST = [-1]


def _softmax(g: Any, x: Any) -> Any:
    e = g.Exp(g.Sub(x, g.ReduceMax(x, LAST)))
    return g.Div(e, g.ReduceSum(e, LAST))


def _layer_norm(g: Any, x: Any) -> Any:
    d = g.Sub(x, g.ReduceMean(x, LAST))
    variance = g.ReduceMean(g.Pow(d, 2.0), LAST)
    return g.Add(g.Mul(g.Div(d, g.Sqrt(g.Add(variance, 1e-5))), B), B)


def _rms_norm(g: Any, x: Any) -> Any:
    square = g.ReduceMean(g.Pow(x, 2.0), LAST)
    return g.Mul(B, g.Mul(x, g.Div(1.0, g.Sqrt(g.Add(square, 1e-5)))))


def _norm_of_conv(g: Any, x: Any) -> Any:
    spread = np.abs(CHANNELS) + np.float32(0.1)
    return g.BatchNormalization(g.Conv(x, CONV, B), ZEROS, CHANNELS, B, spread)


ROWS, IMAGE = ("S", 24), ("S", 8, 5, 6)
MADE: dict[
    str, tuple[Formula, tuple, tuple]
] = {  # in front of activations; the shape of x, and of y
    "linear": (lambda g, x: g.Add(g.MatMul(x, W), B), ROWS, ("S", 16)),
    "gemm": (lambda g, x: g.Gemm(x, W, np.full(16, np.nan), beta=0.0), ROWS, ("S", 16)),
    "zeroed": (lambda g, x: g.Mul(g.Add(g.MatMul(x, W), B), ZEROS), ROWS, ("S", 16)),
    "gated": (
        lambda g, x: g.Mul(g.MatMul(x, W), g.Sigmoid(g.MatMul(x, -W))),
        ROWS,
        ("S", 16),
    ),
    "conv": (lambda g, x: g.Conv(x, CONV, B), IMAGE, ("S", 16, 5, 6)),
    "conv_norm": (_norm_of_conv, IMAGE, ("S", 16, 5, 6)),
    "softmax": (_softmax, ("S", 16), ("S", 16)),
    "layer_norm": (_layer_norm, ("S", 16), ("S", 16)),
    "rms_norm": (_rms_norm, ("S", 16), ("S", 16)),
}


def assert_as_onnxruntime(spelling: Formula, inputs: dict[str, Any], feeds: dict[str, Any]) -> None:
    model = battery.build(spelling, inputs, opset=23)[0].SerializeToString()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    wanted = onnxruntime.InferenceSession(model, options).run(None, feeds)[0]
    given = q7x2_ep.InferenceSession(model).run(None, feeds)[0]
    np.testing.assert_allclose(given, wanted, rtol=BOUND, atol=BOUND)


def spoiled(x: np.ndarray, *specials: float) -> np.ndarray:
    random = np.random.default_rng(x.size)
    chosen = random.choice(x.size, max(1, x.size // 40), replace=False)
    x.flat[chosen] = random.choice(np.array(specials, np.float32), chosen.size)
    return x


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = SPECIAL[~np.isneginf(SPECIAL)] if name in FINITE_BELOW else SPECIAL
    assert_as_onnxruntime(lambda g, x: ACTIVATIONS[name](g, x), {"x": ("S", 2)}, {"x": _pairs(x)})


def _pairs(x: np.ndarray) -> np.ndarray:
    return np.stack([x, x[::-1]], axis=1)


@pytest.mark.parametrize("residual", ["none", "before", "behind"])
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ["relu", "clip", "hard_swish", "swish", "mish", "relu_of_where"])
def test_activations_behind(made: str, residual: str, name: str) -> None:
    form, given, shape = MADE[made]

    def spelling(g: Any, x: Any, r: Any) -> Any:
        y = form(g, x)
        y = g.Add(y, r) if residual == "before" else y
        y = ACTIVATIONS[name](g, y)
        return g.Add(r, y) if residual == "behind" else y

    for special in NOT_FINITE:
        x, r = (battery.weight(5, *dims[1:], seed=2) * 8 for dims in (given, shape))
        feeds = {"x": spoiled(x, special), "r": spoiled(r, special)}
        assert_as_onnxruntime(spelling, {"x": given, "r": shape}, feeds)


MASKED: dict[str, Formula] = {  # scores under a mask of 0 and what hides
    "added": lambda g, s, m: g.Softmax(g.Add(s, m)),
    "chosen": lambda g, s, m: g.Softmax(g.Where(g.Less(m, 0.0), np.float32(-np.inf), s)),
    "lowest": lambda g, s, m: g.Softmax(g.Where(g.Less(m, 0.0), LOWEST, s)),
    "clamped": lambda g, s, m: g.Softmax(g.Max(g.Add(s, m), LOWEST)),
    "guarded": lambda g, s, m: (lambda p: g.Where(g.IsNaN(p), 0.0, p))(g.Softmax(g.Add(s, m))),
    "softcap": lambda g, s, m: g.Softmax(g.Add(ACTIVATIONS["softcap"](g, s), m)),
}


@pytest.mark.parametrize("hides", [-np.inf, LOWEST, -1e9, -1e4])
@pytest.mark.parametrize("name", MASKED)
def test_masks(name: str, hides: float) -> None:
    """Rows that see no key, and queries and values that are not finite."""

    def spelling(g: Any, q: Any, k: Any, v: Any, m: Any) -> Any:
        scores = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), 0.25)
        return g.MatMul(MASKED[name](g, scores, m), v)

    shapes = {"q": ("B", 2, "S", 8), "k": ("B", 2, "T", 8), "v": ("B", 2, "T", 8)}
    inputs = {**shapes, "m": ("B", 1, "S", "T")}
    mask = np.where(battery.weight(2, 1, 5, 7) < -0.1, np.float32(hides), np.float32(0))
    mask[..., 0] = 0
    mask[0, 0, 1] = hides
    for spoils, special in (("", 0.0), ("q", np.nan), ("q", -np.inf), ("v", np.nan), ("v", np.inf)):
        if name == "guarded" and spoils == "v":
            continue  # a row of zeros gives 0, not 0 times what is not finite
        feeds = {k: battery.weight(2, 2, 5 if k == "q" else 7, 8, seed=3) for k in shapes}
        if spoils:
            feeds[spoils][1, 1, 2, 3] = special
        assert_as_onnxruntime(spelling, inputs, {**feeds, "m": mask})
