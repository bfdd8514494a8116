"""Products of com.microsoft beside onnxruntime: fused forms, weights of few bits, experts."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.plan.parts import CONTENTS
from q7x2_ep.session import Session
from tests.models.beside import one_node, same, theirs

RANDOM = np.random.default_rng(23)
E, K, N = 4, 32, 48  # experts, sizes of their layers


def f(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def codes(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def positive(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.005, 0.02, shape).astype(np.float32)


@pytest.mark.parametrize("flags", list(itertools.product((0, 1), repeat=4)), ids=str)
def test_matmul(flags: tuple) -> None:
    a, b = f(2, 3, 4, 5), f(2, 3, 5, 6)
    names = ("transA", "transB", "transBatchA", "transBatchB")
    factors = []
    for x, swaps, moves in zip((a, b), flags[:2], flags[2:]):
        x = x.swapaxes(-1, -2) if swaps else x
        factors.append(np.ascontiguousarray(np.moveaxis(x, -2, 0) if moves else x))
    for fixed in ((), (1,)):
        same("FusedMatMul", factors, fixed=fixed, alpha=0.3, **dict(zip(names, flags)))


@pytest.mark.parametrize(
    "a, b, attrs",
    [
        ((5,), (5, 6), {}),
        ((4, 5), (5,), {}),
        ((2, 4, 5), (6, 5), {"transB": 1}),
        ((5,), (6, 5), {"transB": 1}),
        ((5, 4), (5, 6), {"transA": 1, "alpha": -2.0}),
        ((5,), (5, 6), {"transA": 1}),
        ((2, 0, 5), (5, 6), {}),
    ],
)
def test_matmul_ranks(a: tuple, b: tuple, attrs: dict) -> None:
    same("FusedMatMul", [f(*a), f(*b)], symbols={4: "rows"}, **attrs)
    if len(a) > 1 and len(b) > 1:
        same("TransposeMatMul", [f(*a), f(*b)], **attrs)


@pytest.mark.parametrize(
    "name, numbers",
    [
        ("Relu", ()),
        ("Tanh", ()),
        ("Sigmoid", ()),
        ("LeakyRelu", (0.2,)),
        ("Elu", (0.3,)),
        ("HardSigmoid", (0.3, 0.4)),
        ("Softplus", ()),
        ("Softsign", ()),
        ("ThresholdedRelu", (0.3,)),
        ("ParametricSoftplus", (0.3, 0.4)),
        ("ScaledTanh", (0.3, 0.4)),
    ],
)
def test_gemm(name: str, numbers: tuple) -> None:
    attrs = dict(zip(("activation_alpha", "activation_beta"), numbers))
    attrs.update(activation=name, transB=1, alpha=0.7, beta=0.5)
    for inputs in ([f(4, 5), f(6, 5), f(6)], [f(4, 5), f(6, 5)]):
        same("FusedGemm", inputs, fixed=range(1, len(inputs)), **attrs)


@pytest.mark.parametrize(
    "name, numbers",
    [
        ("Relu", ()),
        ("Tanh", ()),
        ("Sigmoid", ()),
        ("LeakyRelu", (0.2,)),
        ("Clip", (-0.5, 0.6)),
        ("HardSigmoid", (0.3, 0.4)),
    ],
)
def test_conv(name: str, numbers: tuple) -> None:
    attrs: dict[str, Any] = {"activation": name, "strides": [1, 2]}
    if numbers:
        attrs["activation_params"] = numbers
    x = [f(1, 4, 8, 9), f(6, 4, 3, 3), f(6)]
    for addend in ([], [f(1, 6, 6, 4)]):
        same("FusedConv", [*x, *addend], fixed=(1, 2), **attrs)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "pads, attrs",
    [
        ((1, 0, 2, 1), {"strides": [2, 3], "output_padding": [1, 0]}),
        ((0, 0, 0, 0), {"dilations": [2, 1]}),
        ((1, 1, 1, 1), {"auto_pad": "VALID"}),
        ((1, 1, 1, 1), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ],
)
def test_conv_transpose_of_pads_that_are_data(pads: tuple, attrs: dict, known: bool) -> None:
    """They are cut off what no pads leave; nothing is on the host but what they tell."""
    for bias in ([], [f(4)]):
        inputs = [f(2, 6, 5, 4), f(6, 2, 3, 2), np.array(pads), *bias]
        fixed = [i for i in range(1, len(inputs)) if known or i != 2]
        session = same("ConvTransposeWithDynamicPads", inputs, fixed=fixed, group=2, **attrs)
        assert all(phase.node.op == CONTENTS for phase in session.program.host_phases)


def test_gelu() -> None:
    """GemmFastGelu, for which onnxruntime has no CPU kernel."""
    x, w, bias = f(2, 4, 5), f(5, 6), f(6)
    for more in ([bias], []):
        model, feeds = one_node("GemmFastGelu", [x, w, *more], (TensorProto.FLOAT,), fixed=(1,))
        second = one_node("FastGelu", [x @ w, *more], (TensorProto.FLOAT,))
        np.testing.assert_allclose(Session(model).run(feeds)[0], theirs(*second)[0], 1e-4, 2e-5)


def test_unknown_activation() -> None:
    attrs = {"activation": "Sinus"}
    model, _ = one_node("FusedGemm", [f(4, 5), f(5, 6)], (TensorProto.FLOAT,), **attrs)
    with pytest.raises(UnsupportedOp, match=r"FusedGemm.*activation='Sinus'"):
        Session(model)


@pytest.mark.parametrize("numbers", [{}, {"activation_alpha": 0.3}])
def test_activation_without_its_numbers(numbers: dict[str, float]) -> None:
    attrs = {"activation": "ScaledTanh"}
    gemm = one_node("FusedGemm", [f(4, 5), f(5, 6)], (TensorProto.FLOAT,), **attrs, **numbers)
    conv = one_node("FusedConv", [f(1, 2, 3, 3), f(2, 2, 1, 1)], (TensorProto.FLOAT,), **attrs)
    for model, _ in (gemm, conv):
        with pytest.raises(ModelError, match="'ScaledTanh' needs alpha and beta"):
            Session(model)


@pytest.mark.parametrize("quant_type", [0, 1])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("n, k", [(6, 32), (5, 40), (3, 17)])
def test_bnb4(quant_type: int, block: int, n: int, k: int) -> None:
    inputs = [f(2, 4, k), codes(-(-n * k // 2)), positive(-(-n * k // block))]
    attrs = {"N": n, "K": k, "block_size": block, "quant_type": quant_type}
    session = same("MatMulBnb4", inputs, fixed=(1, 2), **attrs)
    assert [step.op for step in session.plan.steps] == ["gemm"]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_gather(bits: int, has_zeros: bool) -> None:
    rows, blocks, share = 20, 3, 8 // bits
    for indices in (RANDOM.integers(-rows, rows, (2, 3)), np.array([1, rows, -rows - 5])):
        inputs = [codes(rows, 48 // share), indices, positive(rows, blocks)]
        inputs += [codes(rows, -(-blocks // share))] if has_zeros else []
        attrs = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
        same("GatherBlockQuantized", inputs, fixed=(0, *range(2, len(inputs))), **attrs)


@pytest.mark.parametrize("symbols", [{16: "rows"}, {24: "width"}, {16: "rows", 24: "width"}])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("indices", [-1, [3, -16, 40]], ids=str)
def test_gather_of_fed_sizes(symbols: dict, dtype: Any, indices: Any) -> None:
    """With zeros only where rows are fixed, as onnxruntime asks for."""
    attrs: dict[str, Any] = {"block_size": 16, "symbols": symbols}
    at = np.array(indices, dtype)
    for axes in ((0, 1), (1, 0)):
        attrs |= dict(zip(("gather_axis", "quantize_axis"), axes))
        if axes[1] == 1:
            for zeros in ([], [codes(16, 2)])[: 1 if 16 in symbols else 2]:
                inputs = [codes(16, 24), at, positive(16, 3), *zeros]
                same("GatherBlockQuantized", inputs, bits=4, **attrs)
        data = f(16, 24).astype(ml_dtypes.float8_e4m3fn)
        scales = positive(16, 2) if axes[1] else positive(1, 24)
        model, feeds = one_node("GatherBlockQuantized", [data, at, scales], (1,), (0,), **attrs)
        np.testing.assert_allclose(Session(model).run(feeds), theirs(model, feeds), rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_gather_from_one_row(shape: tuple) -> None:
    inputs = [codes(1, 24), np.zeros(shape, np.int64), positive(1, 3)]
    attrs = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    same("GatherBlockQuantized", inputs, fixed=(0, 2), **attrs)


@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("indices", [-1, [3, -16, 40], [[2, 1], [0, 5]], []], ids=str)
def test_gather_with_one_scale_for_all_rows(block: int, axis: int, indices: Any) -> None:
    """As floats of 8 bits may have."""
    data = f(16, 16).repeat(2, 1 - axis).astype(ml_dtypes.float8_e4m3fn)
    scales = positive(1, 2 if block else 1) if axis == 0 else positive(2 if block else 1, 1)
    attrs = {"block_size": block, "gather_axis": axis, "quantize_axis": 1 - axis}
    inputs = [data, np.array(indices, np.int64), scales]
    unit = float(np.finfo(np.float32).eps)  # one product
    same("GatherBlockQuantized", inputs, fixed=(0, 2), atol=0, rtol=unit, **attrs)


SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1}
CUT = {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.7}
ACTIVATIONS = [{"activation_type": name} for name in ("relu", "gelu", "silu", "identity")]


@pytest.mark.parametrize("attrs", [*ACTIVATIONS, SWIGLU, {**SWIGLU, **CUT}], ids=str)
@pytest.mark.parametrize("k, normalizes", [(1, 0), (2, 0), (2, 1)])
def test_experts(attrs: dict, k: int, normalizes: int) -> None:
    inner = 2 * N if "swiglu_fusion" in attrs else N
    inputs = [f(2, 5, K), f(10, E), f(E, inner, K) / 4, f(E, inner), f(E, K, N) / 4, f(E, K)]
    more = {"k": k, "normalize_routing_weights": normalizes}
    session = same("MoE", inputs, fixed=range(2, 6), symbols={10: "tokens"}, **attrs, **more)
    assert [step.op for step in session.plan.steps].count("expert_gemm") == 2
    inputs[3] = inputs[5] = None
    same("MoE", inputs[:5], fixed=(2, 4), **attrs, **more)
    same("MoE", inputs[:5], **attrs, **more)


@pytest.mark.parametrize("attrs", [*ACTIVATIONS, SWIGLU], ids=str)
def test_experts_of_another_shape(attrs: dict) -> None:
    """Weights (E, K, N) are read in their order in memory."""
    inner = 2 * N if "swiglu_fusion" in attrs else N
    inputs = [f(10, K), f(10, E), f(E, K, inner) / 4, f(E, inner), f(E, N, K) / 4, f(E, K)]
    for fixed in ((), (2, 4)):
        same("MoE", inputs, fixed=fixed, k=2, **attrs)


@pytest.mark.parametrize("fusion", [1, 2])
def test_cut_behind_the_gate(fusion: int) -> None:
    """By numpy, as onnxruntime's kernels for this processor refuse it; they take a 0."""
    inputs = [f(10, K), f(10, E), f(E, 2 * N, K), None, f(E, K, N)]
    attrs: dict[str, Any] = {**SWIGLU, **CUT, "k": E, "swiglu_fusion": fusion}
    if fusion == 1:
        same("MoE", inputs, swiglu_limit_after_activation=0, **attrs)
    model, feeds = one_node("MoE", inputs, (1,), swiglu_limit_after_activation=1, **attrs)
    x, logits, w1, w2 = (a.astype(np.float64) for a in inputs if a is not None)
    inner = np.einsum("tk,enk->ten", x, w1)
    gate, up = (inner[..., 0::2], inner[..., 1::2]) if fusion == 1 else np.split(inner, 2, -1)
    gate = np.minimum(gate / (1 + np.exp(-1.7 * gate)), 0.7)
    each = np.einsum("ten,ekn->tek", gate * (np.clip(up, -0.7, 0.7) + 1), w2)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wanted = np.einsum("te,tek->tk", shares, each)
    limit = np.finfo(np.float32).eps * (K + N) * np.abs(wanted).max()  # of sums of K, then of N
    np.testing.assert_allclose(Session(model).run(feeds)[0], wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("symbols", [{16: "a", 24: "b"}, {16: "a"}, {24: "b"}, {10: "T", 16: "a"}])
def test_quantised_experts_of_fed_sizes(block: int, symbols: dict) -> None:
    blocks = ((K // block,), (N // block,)) if block else ((), ())
    weights = [codes(E, N, K // 2), positive(E, N, *blocks[0]), None]
    weights += [codes(E, K, N // 2), positive(E, K, *blocks[1])]
    attrs = {"k": 2, "normalize_routing_weights": 1, **({"block_size": block} if block else {})}
    attrs |= {"activation_type": "silu", "symbols": symbols}
    same("QMoE", [f(10, K), f(10, E), *weights], **attrs)


@pytest.mark.parametrize("attrs", [{"activation_type": "silu"}, SWIGLU], ids=str)
@pytest.mark.parametrize("bits, block", [(2, 0), (2, 16), (4, 0), (4, 16), (8, 0)])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_quantised_experts(attrs: dict, bits: int, block: int, has_zeros: bool) -> None:
    """Those of 8 bits in blocks are left out: onnxruntime rounds their activations to 8 bits."""
    share, inner = 8 // bits, 2 * N if "swiglu_fusion" in attrs else N
    weights, scales, zeros = [], [], []
    for n, k in ((inner, K), (K, N)):
        weights.append(codes(E, n, k // share))
        blocks = (k // block,) if block else ()
        scales.append(positive(E, n, *blocks) * (16 / 2**bits))
        zeros.append(codes(E, n, -(-blocks[0] // share)) if block else codes(E, -(-n // share)))
    inputs = [f(2, 5, K), f(10, E), weights[0], scales[0], f(E, inner), weights[1], scales[1]]
    inputs += [f(E, K), None, None, None, *zeros] if has_zeros else [f(E, K)]
    attrs = {**attrs, "k": 2, "expert_weight_bits": bits, "normalize_routing_weights": 1}
    attrs.update({"block_size": block} if block else {})
    fixed = [i for i in range(2, len(inputs)) if inputs[i] is not None]
    same("QMoE", inputs, fixed=fixed, **attrs)


@pytest.mark.parametrize("normalizes", [0, 1])
def test_weights_beside_the_router(normalizes: int) -> None:
    weights = [codes(E, N, K // 2), positive(E, N), f(E, N), codes(E, K, N // 2), positive(E, K)]
    inputs = [f(10, K), f(10, E), *weights, *[None] * 7, RANDOM.random((10, E)).astype(np.float32)]
    attrs = {"activation_type": "silu", "k": 2, "normalize_routing_weights": normalizes}
    same("QMoE", inputs, fixed=range(2, 7), **attrs)


def mixed(logits: np.ndarray) -> np.ndarray:
    """The share of each expert for each token: a softmax over what is within 2 % of the highest
    logit, once of all and once without the highest.
    """
    shares = np.zeros_like(logits)
    for row, share in zip(logits, shares):
        left = row.copy()
        for _ in range(2):
            best = np.argmax(left)
            near = left[best] - row <= 0.02 * np.maximum(np.abs(row), left[best])
            share[best] = 1 / np.sum(np.exp(left[near] - left[best]))
            left[best] = -np.inf
    return shares


@pytest.mark.parametrize("spread", [1.0, 0.02])
@pytest.mark.parametrize("quantised", [False, True])
def test_sparse_mixer(spread: float, quantised: bool) -> None:
    """Which onnxruntime's kernels for this processor leave out. Up to the roundings of two sums of
    products in float32, and of those of k results.
    """
    x, logits = f(10, K), 3 + spread * f(10, E)
    weights, attrs = [f(E, N, K) / K, f(E, K, N) / N], {"k": 2, "use_sparse_mixer": 1}
    inputs = [x, logits, weights[0], None, weights[1]]
    if quantised:
        packed = [codes(E, N, K), codes(E, K, N)]
        scales = [positive(E, N), positive(E, K)]
        weights = [(w - 128.0) * each[..., None] for w, each in zip(packed, scales)]
        inputs = [x, logits, packed[0], scales[0], None, packed[1], scales[1]]
        attrs["expert_weight_bits"] = 8
    op = "QMoE" if quantised else "MoE"
    model, feeds = one_node(op, inputs, (TensorProto.FLOAT,), activation_type="relu", **attrs)
    first, second = (w.astype(np.float64) for w in weights)
    inner = np.maximum(np.einsum("tk,enk->ten", x, first), 0)
    each = np.einsum("ten,ekn->tek", inner, second)
    wanted = np.einsum("te,tek->tk", mixed(logits.astype(np.float64)), each)
    bound = np.einsum("tk,enk->ten", np.abs(x), np.abs(first))
    bound = np.einsum("ten,ekn->tek", bound, np.abs(second)).max()
    unit = float(np.finfo(np.float32).eps) * (K + N + 2)
    np.testing.assert_allclose(Session(model).run(feeds)[0], wanted, rtol=0, atol=unit * bound)


def test_sparse_mixer_of_more_than_two() -> None:
    inputs = [f(10, K), f(10, E), f(E, N, K), None, f(E, K, N)]
    model, _ = one_node("MoE", inputs, (TensorProto.FLOAT,), k=3, use_sparse_mixer=1)
    with pytest.raises(UnsupportedOp, match="k=3"):
        Session(model)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "groups, open_groups, summed, k",
    [(1, 1, 2, 2), (4, 2, 2, 3), (2, 2, 1, 4), (4, 1, 9, 2), (4, 1, 2, 5)],
)
def test_router_of_groups(dtype: Any, groups: int, open_groups: int, summed: int, k: int) -> None:
    """Up to a rounding of dtype and to two of a sigmoid in float32, as the logarithm shows them."""
    experts = 8
    x, bias = f(2, 5, experts).astype(dtype), f(experts)
    sigmoid = 1 / (1 + np.exp(-float(x.min())))
    units = [float(np.finfo(each).eps) for each in (dtype, np.float32)]
    atol = max(-np.log(sigmoid) * units[0], 2 * units[1] / sigmoid)
    output = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attrs = {"n_group": groups, "topk_group": open_groups, "group_topk": summed, "top_k": k}
    given: dict[str, Any] = {"atol": atol, "rtol": 0, "symbols": {2: "batch"}}
    same("MoEGroupRouter", [x, bias], (output,), **attrs, **given)
    same(
        "MoEGroupRouter", [x, bias], (output,), fixed=(1,), router_sentinel=-50.0, **attrs, **given
    )


@pytest.mark.parametrize("width", [0, 256])
def test_router_of_all_experts(width: int) -> None:
    """Scores and weights, of logits or of what a projection makes them."""
    inputs = [f(5, width), f(8), f(8, width) / width] if width else [f(5, 8), f(8)]
    unit = float(np.finfo(np.float32).eps)
    same(
        "MoEGroupRouter",
        inputs,
        (0, TensorProto.FLOAT, TensorProto.FLOAT),
        atol=max(width, 4) * unit,
        top_k=2,
    )
