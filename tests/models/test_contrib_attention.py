"""The attention ops of com.microsoft against onnxruntime, sizes fixed and symbolic.

Left out are two cases in which onnxruntime does not do what it says: GroupQueryAttention with a
past but without its present outputs, and the last query of a unidirectional cross attention.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Optional

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, ShapeError, UnsupportedOp
from q7x2_ep.session import Session
from tests.kernels.harness import tolerance
from tests.models.beside import one_node, theirs

onnxruntime = pytest.importorskip("onnxruntime")

B, S, H, D, P = 2, 5, 3, 8, 4  # batch, queries, heads, head size, past
W = H * D
SYMBOLS = {B: "batch", S: "length", P: "past", P + S: "total", 11: "cache"}
RANDOM = np.random.default_rng(31)
HALF = dtypes.epsilon(dtypes.FLOAT16)  # of what is rounded to it once, at the end
Inputs = list[Optional[np.ndarray]]


def f(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def keep(*shape: int) -> np.ndarray:
    return (RANDOM.random(shape) > 0.3).astype(np.int32)


def make(
    op: str, inputs: Inputs, outputs: int, fixed: tuple[int, ...], symbolic: bool, attrs: dict
) -> tuple[bytes, dict[str, np.ndarray]]:
    """As one_node, of float outputs."""
    symbols = SYMBOLS if symbolic else None
    return one_node(op, inputs, (TensorProto.FLOAT,) * outputs, fixed, symbols, **attrs)


def compare(*case: Any) -> Session:
    """Our session for the model that `make` makes of this; its outputs are onnxruntime's."""
    model, feeds = make(*case)
    session = Session(model, threads=2)
    wanted = onnxruntime.InferenceSession(model).run(None, feeds)
    for actual, y in zip(session.run(feeds), wanted):
        np.testing.assert_allclose(actual, y, rtol=1e-4, atol=2e-5)
    return session


def check(
    op: str, inputs: Inputs, outputs: int = 1, fixed: tuple[int, ...] = (), **attrs: Any
) -> None:
    """Outputs are equal to those of onnxruntime, in one step of attention."""
    for symbolic in (False, True):
        session = compare(op, inputs, outputs, fixed, symbolic, attrs)
        assert [step.op for step in session.plan.steps].count("attention") == 1


def masks(total: int) -> list[Optional[np.ndarray]]:
    """In the forms that both ops take."""
    return [None, keep(B, total), keep(B, S, total), np.zeros((B, total), np.int32), ints(3, total)]


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("past", [0, P])
def test_multi_head_attention(past: int, unidirectional: int) -> None:
    cache = [f(B, H, P, D), f(B, H, P, D)] if past else [None, None]
    attrs = {"num_heads": H, "unidirectional": unidirectional}
    for mask, extra in itertools.product(masks(S + past), (False, True)):
        inputs = [f(B, S, W), f(B, S, W), f(B, S, W), f(3 * W) if extra else None, mask]
        bias = f(1, H, S, S + past) if extra else None
        check("MultiHeadAttention", [*inputs, bias, *cache], 3 if past else 1, **attrs)


@pytest.mark.parametrize(
    "inputs, attrs",
    [
        ([f(B, S, W), f(B, 6, W), f(B, 6, H * 10)], {}),
        ([f(B, S, W), f(B, H, 6, D), f(B, H, 6, D)], {}),
        ([f(B, S, W), f(B, H, 6, D), f(B, H, 6, D), f(3 * W)], {}),
        ([f(B, S, W), f(B, 6, W), f(B, 6, W), None, keep(B, 6)], {"mask_filter_value": -2.0}),
        ([f(B, S, W), f(B, 6, W), f(B, 6, W), None, ints(6, 2)], {"scale": 0.3}),
    ],
)
def test_multi_head_attention_forms(inputs: Inputs, attrs: dict) -> None:
    check("MultiHeadAttention", inputs, num_heads=H, **attrs)


@pytest.mark.parametrize("past", [0, P])
def test_rows_that_see_no_key(past: int) -> None:
    """The lowest number is also that of keys that follow: all weigh alike."""
    lowest = float(np.finfo(np.float32).min)
    attrs = {"num_heads": H, "unidirectional": 1, "mask_filter_value": lowest}
    cache = [f(B, H, P, D), f(B, H, P, D)] if past else [None, None]
    late = np.ones((B, past + S), np.int32)
    late[:, : past + 2] = 0
    for mask in (late, np.zeros((B, S, past + S), np.int32)):
        inputs = [f(B, S, W), f(B, S, W), f(B, S, W), None, mask, None, *cache]
        check("MultiHeadAttention", inputs, 3 if past else 1, **attrs)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("past", [0, P])
def test_attention(past: int, unidirectional: int) -> None:
    attrs = {"num_heads": H, "unidirectional": unidirectional}
    weights = [f(7, 3 * W), f(3 * W)]
    for mask in masks(S + past):
        inputs = [f(B, S, 7), *weights, mask, f(2, B, H, P, D) if past else None]
        check("Attention", inputs, 2, (1, 2), **attrs)
    bias = None if past else f(1, H, S, S)  # onnxruntime takes no past and bias together
    check("Attention", [*inputs, bias], 2, (1, 2), **attrs)


@pytest.mark.parametrize("keys", [1, S])
def test_a_mask_of_one_number_stands_for_none(keys: int) -> None:
    inputs = [f(B, keys, 7), f(7, 3 * W), f(3 * W)]
    for mask in (keep(B, 1), np.zeros((B, 1), np.int32)):
        compare("Attention", [*inputs, mask], 1, (1, 2), False, {"num_heads": H})


def test_masks_of_halves() -> None:
    """float16 and a mask, for which onnxruntime has no kernel: as in float32."""
    rows, weights = [f(B, S, W) for _ in range(3)], [f(7, 3 * W) / 3, f(3 * W)]
    for mask in masks(S)[1:]:
        for op, inputs in (
            ("MultiHeadAttention", [*rows, weights[1], mask, f(1, H, S, S)]),
            ("Attention", [f(B, S, 7), *weights, mask]),
        ):
            narrow = [x.astype(np.float16) if x.dtype == np.float32 else x for x in inputs]
            wide = [x.astype(np.float32) if x.dtype == np.float16 else x for x in narrow]
            model, feeds = make(op, wide, 1, (), False, {"num_heads": H})
            half, given = one_node(op, narrow, (TensorProto.FLOAT16,), num_heads=H)
            (wanted,), (actual,) = Session(model).run(feeds), Session(half).run(given)
            np.testing.assert_allclose(actual, wanted, HALF, tolerance(S))


def test_attention_forms() -> None:
    sizes = [W, W, H * 4]
    inputs = [f(B, S, 7), f(7, sum(sizes)), f(sum(sizes))]
    check("Attention", inputs, fixed=(1, 2), num_heads=H, qkv_hidden_sizes=sizes)
    inputs = [f(B, S, 7), f(7, 3 * W), f(3 * W), keep(B, 1, 16, 16)]
    model, feeds = make("Attention", inputs, 1, (1, 2), True, {"num_heads": H})
    inputs[3] = np.ascontiguousarray(inputs[3][:, 0, :S, :S])
    same, cut = make("Attention", inputs, 1, (1, 2), False, {"num_heads": H})
    wanted = onnxruntime.InferenceSession(same).run(None, cut)  # it has no kernel for the other
    np.testing.assert_allclose(Session(model).run(feeds)[0], wanted[0], 1e-4, 2e-5)
    for ends in (ints(5, 4, 1, 0), ints(5, 2, 0, 5, 10, 0, 5, 7)):  # of sizes 2 B and 3 B + 2
        compare("Attention", [*inputs[:3], ends], 1, (1, 2), False, {"num_heads": H})


@pytest.mark.parametrize("batch", [B, "batch"])
@pytest.mark.parametrize("ends", [(5, 4), (5, 4, 1, 0), (5, 2, 0, 5, 10, 0, 5, 7)], ids=str)
def test_forms_of_a_mask_that_only_a_run_tells(ends: tuple[int, ...], batch: Any) -> None:
    """B ends, B more starts, or sums of lengths, where their number is a symbol of its own."""
    rows, mask = [f(B, S, W) for _ in range(3)], ints(*ends)
    cases = [("Attention", [rows[0], f(W, 3 * W), f(3 * W), mask], 3)]
    if len(ends) != 2 * B:  # which it does not take
        cases.append(("MultiHeadAttention", [*rows, None, mask], 4))
    for op, inputs, at in cases:
        model = onnx.ModelProto()
        data, feeds = make(op, inputs, 1, (), False, {"num_heads": H})
        model.ParseFromString(data)
        shapes = {item.name: item.type.tensor_type.shape for item in model.graph.input}
        shapes[f"x{at}"].dim[0].dim_param = "ends"
        if isinstance(batch, str):
            shapes["x0"].dim[0].dim_param = batch
        (actual,) = Session(model.SerializeToString(), threads=2).run(feeds)
        np.testing.assert_allclose(actual, theirs(data, feeds)[0], 1e-4, 2e-5)


def test_packed() -> None:
    """Heads of query, key and value side by side, which onnxruntime has no CPU kernel for."""
    q, k, v = (f(B, S, H, D) for _ in range(3))
    separate = [x.reshape(B, S, W) for x in (q, k, v)]
    for bias in (None, f(3 * W)):
        attrs = {"num_heads": H}
        model, feeds = make("MultiHeadAttention", [*separate, bias], 1, (), False, attrs)
        wanted = onnxruntime.InferenceSession(model).run(None, feeds)
        for inputs in (
            [np.stack((q, k, v), 3), None, None],
            [separate[0], np.stack((k, v), 3), None],
        ):
            model, feeds = make("MultiHeadAttention", [*inputs, bias], 1, (), True, attrs)
            np.testing.assert_allclose(Session(model).run(feeds)[0], wanted[0], 1e-4, 2e-5)


ROTARY = [{"do_rotary": r, "rotary_interleaved": i} for r, i in ((0, 0), (1, 0), (1, 1))]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", ROTARY, ids=str)
@pytest.mark.parametrize("softcap, window, bias", [(0.0, -1, False), (1.5, 3, True)])
@pytest.mark.parametrize("fixed", [(6,), ()], ids=["total is known", "total is data"])
def test_group_query_attention(
    packed: bool, rotary: dict, softcap: float, window: int, bias: bool, fixed: tuple[int, ...]
) -> None:
    """A first prompt, one more token, several more, and entries of different length."""
    heads, shared, depth = 4, 2, 16
    attrs = {"num_heads": heads, "kv_num_heads": shared, "softcap": softcap, **rotary}
    attrs["local_window_size"] = window
    tables = [f(32, depth // 2), f(32, depth // 2)] if rotary["do_rotary"] else [None, None]

    def run(batch: int, new: int, cache: Optional[int], lengths: tuple[int, ...]) -> None:
        rows = [(heads + 2 * shared) * depth] if packed else [heads * depth, *[shared * depth] * 2]
        inputs: Inputs = [f(batch, new, width) for width in rows]
        inputs += [None] * (3 - len(inputs))
        total = max(lengths)
        for _ in range(2):
            inputs.append(None if cache is None else f(batch, shared, cache, depth))
        inputs += [ints(*(n - 1 for n in lengths)), ints(total), *tables]
        inputs += [None, f(1, heads, new, total)] if bias else []
        model, feeds = make("GroupQueryAttention", inputs, 3, fixed, cache == 11, attrs)
        wanted = onnxruntime.InferenceSession(model).run(None, feeds)
        results = Session(model, threads=2).run(feeds)
        for b, length in enumerate(lengths):
            kept = slice(0, length if new == total else None)  # queries that are no padding
            np.testing.assert_allclose(results[0][b, kept], wanted[0][b, kept], 1e-4, 2e-5)
            for y, w in zip(results[1:], wanted[1:]):
                assert y.shape == w.shape
                np.testing.assert_allclose(y[b, :, :length], w[b, :, :length], 1e-4, 2e-5)

    run(2, 6, None, (6, 6))
    run(2, 6, 0, (6, 6))
    run(2, 6, 0, (6, 4))
    run(2, 1, 6, (7, 7))
    run(2, 1, 6, (7, 4))
    run(2, 1, 11, (7, 4))
    run(1, 3, 6, (9,))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("total", ["input", "mask"])
def test_group_query_attention_in_one_buffer(total: str, dtype: type) -> None:
    """As decoders are run in place: past and present of all runs are one buffer of the greatest
    length, and total_sequence_length, which every layer reads, is an input, or the length of a
    mask. Bits are those of a run with buffers of its own.
    """
    heads, shared, depth, most = 4, 2, 16, 12
    width = heads * depth
    nodes, cache = [], [name for i in (0, 1) for name in (f"k{i}", f"v{i}")]
    if total == "mask":
        for op, given, result, attrs in (
            ("ReduceSum", ["mask", "one"], "sum", {"keepdims": 0}),
            ("Sub", ["sum", "one"], "last", {}),
            ("Cast", ["last"], "seqlens_k", {"to": TensorProto.INT32}),
            ("Shape", ["mask"], "size", {"start": 1}),
            ("Cast", ["size"], "total", {"to": TensorProto.INT32}),
        ):
            nodes.append(helper.make_node(op, given, [result], **attrs))
    for i, x in enumerate(("x", "y0")):
        past = cache[2 * i : 2 * i + 2]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [x, "key", "value", *past, "seqlens_k", "total", "cos", "sin"],
                [f"y{i}", *(f"new_{name}" for name in past)],
                domain="com.microsoft",
                num_heads=heads,
                kv_num_heads=shared,
                do_rotary=1,
            )
        )
    is_half = dtype == np.float16
    code = TensorProto.FLOAT16 if is_half else TensorProto.FLOAT
    info = functools.partial(helper.make_tensor_value_info, elem_type=code)
    number = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.INT32)
    rows = {"x": width, "key": shared * depth, "value": shared * depth}
    inputs = [info(name, shape=["batch", "new", size]) for name, size in rows.items()]
    inputs += [info(name, shape=["batch", shared, "past", depth]) for name in cache]
    if total == "mask":
        inputs.append(info("mask", elem_type=TensorProto.INT64, shape=["batch", "length"]))
    else:
        inputs += [number("seqlens_k", shape=["batch"]), number("total", shape=[])]
    present = [info(f"new_{name}", shape=["batch", shared, "total", depth]) for name in cache]
    angles = f(most, depth // 2).astype(dtype)
    tables = [numpy_helper.from_array(angles, name) for name in ("cos", "sin")]
    tables.append(numpy_helper.from_array(np.ones(1, np.int64), "one"))
    graph = helper.make_graph(
        nodes, "decoder", inputs, [info("y1", shape=["batch", "new", width]), *present], tables
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    runs = []
    for engine, is_shared in ((q7x2_ep, True), (q7x2_ep, False), (onnxruntime, True)):
        zeros = [np.zeros((2, shared, most, depth), dtype) for _ in cache]
        buffers = [engine.OrtValue.ortvalue_from_numpy(array) for array in zeros]
        runs.append((engine.InferenceSession(model), dict(zip(cache, buffers)), is_shared))
    for new, keys in ((5, 5), (1, 6), (1, 7), (1, 8), (1, 8)):
        feeds = {name: f(2, new, size).astype(dtype) for name, size in rows.items()}
        if total == "mask":
            feeds["mask"] = np.ones((2, keys), np.int64)
        else:
            feeds.update(seqlens_k=ints(keys - 1, keys - 1), total=np.array(keys, np.int32))
        results = []
        for session, buffers, is_shared in runs:
            binding = session.io_binding()
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            for name, value in buffers.items():
                binding.bind_ortvalue_input(name, value)
                if is_shared:
                    binding.bind_ortvalue_output(f"new_{name}", value)
                else:
                    binding.bind_output(f"new_{name}")
            binding.bind_output("y1")
            session.run_with_iobinding(binding)
            if not is_shared:
                buffers.update(zip(cache, binding.get_outputs()))
            kept = [value.numpy()[:, :, :keys] for value in buffers.values()]
            results.append([binding.copy_outputs_to_cpu()[-1], *kept])
        for ours, alone, wanted in zip(*results):
            np.testing.assert_array_equal(ours, alone)
            np.testing.assert_allclose(ours, wanted, *((5e-3, 5e-3) if is_half else (1e-4, 2e-5)))
    session = runs[0][0]
    assert session._session.program.codes[-1].encoded.over.count(-1) == 1  # not in place: y1
    hosts = [step.op for step in q7x2_ep.explain(session).host_steps]
    assert hosts == (["q7::Contents"] if total == "input" else [])


def test_unsupported() -> None:
    inputs = [f(B, S, 7), f(7, 3 * W), f(3 * W)]
    model, _ = make("Attention", inputs, 1, (), False, {"num_heads": H, "do_rotary": 1})
    with pytest.raises(UnsupportedOp, match="do_rotary=1"):
        Session(model)


# Caches and outputs beyond the usual


def alike(op: str, inputs: Inputs, outputs: int, rows: Optional[int] = None, **given: Any) -> None:
    """Outputs are equal to those of onnxruntime, of caches the first rows; bytes up to one unit."""
    past = inputs[3] if op == "GroupQueryAttention" else None
    codes = {np.int8: TensorProto.INT8, np.uint8: TensorProto.UINT8}
    cache = TensorProto.FLOAT if past is None else codes.get(past.dtype.type, TensorProto.FLOAT)
    types = [TensorProto.FLOAT, cache, cache, TensorProto.FLOAT][:outputs]
    model, feeds = one_node(op, inputs, types, **given)
    results = Session(model, threads=2).run(feeds)
    for i, (y, wanted) in enumerate(zip(results, theirs(model, feeds))):
        assert y.shape == wanted.shape and y.dtype == wanted.dtype
        if i in (1, 2):
            y, wanted = y[:, :, :rows], wanted[:, :, :rows]
        tolerance = 1 if y.dtype.kind in "iu" else 1e-4
        np.testing.assert_allclose(y.astype(float), wanted.astype(float), 0, tolerance)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention_scores(unidirectional: int) -> None:
    attrs = {"num_heads": H, "unidirectional": unidirectional}
    inputs = [f(B, S, W), f(B, S, W), f(B, S, W), f(3 * W), keep(B, S), f(1, H, S, S)]
    alike("MultiHeadAttention", inputs, 4, **attrs)
    cache = [None, None, None, f(B, H, 10, D), f(B, H, 10, D), ints(3)]
    for fixed in ((8,), ()):
        alike("MultiHeadAttention", [*inputs[:3], *cache], 4, 8, fixed=fixed, **attrs)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("symbols", [None, {10: "rows", S: "length", B: "batch"}], ids=str)
@pytest.mark.parametrize("filled", [0, 3])
def test_multi_head_attention_in_a_cache(
    unidirectional: int, symbols: Optional[dict], filled: int
) -> None:
    attrs = {"num_heads": H, "unidirectional": unidirectional, "symbols": symbols}
    total = filled + S
    for more in ([None] * 3, [f(3 * W), keep(B, total), f(1, H, S, total)]):
        inputs = [f(B, S, W), f(B, S, W), f(B, S, W), *more, f(B, H, 10, D), f(B, H, 10, D)]
        alike("MultiHeadAttention", [*inputs, ints(filled)], 3, total, **attrs)


def test_beams() -> None:
    """Rows of a cache that other beams have filled."""
    beams = RANDOM.integers(0, 2, (2, 2, 10)).astype(np.int32)
    new, cache = [f(4, 1, W), f(4, 1, W), f(4, 1, W)], [f(4, H, 10, D), f(4, H, 10, D)]
    inputs = [*new, None, None, None, *cache, ints(3), beams]
    alike("MultiHeadAttention", inputs, 3, 4, num_heads=H)
    inputs = [*new, None, None, *cache, ints(3), ints(2), beams]
    attrs = {"num_heads": H, "past_present_share_buffer": 1}
    alike("DecoderMaskedMultiHeadAttention", inputs, 3, 4, **attrs)


def test_decoder_masked() -> None:
    op, new = "DecoderMaskedMultiHeadAttention", [f(B, 1, W), f(B, 1, W), f(B, 1, W)]
    cache = [f(B, H, 10, D), f(B, H, 10, D), ints(3)]
    attrs = {"num_heads": H, "past_present_share_buffer": 1}
    for mask, bias in ((None, None), (keep(B, 4), f(1, H, 1, 4))):
        alike(op, [*new, mask, bias, *cache], 3, 4, **attrs)
        alike(op, [*new, mask, bias, *cache, None, None, f(3 * W)], 3, 4, **attrs)
    for fixed in ((7,), ()):
        alike(op, [*new, None, None, *cache], 4, 4, fixed=fixed, output_qk=1, **attrs)
    other = [f(B, 1, W), f(B, H, 7, D), f(B, H, 7, D)]
    for more in ([], [keep(B, 7)]):
        alike(op, [*other, *more], 1, num_heads=H, scale=0.3)


HEADS, SHARED, DEPTH = 4, 2, 16
STEPS = [(2, 1, 6), (2, 6, 0), (1, 3, 6)]  # batch, new, past


def grouped(batch: int, new: int, past: int) -> Inputs:
    """The first seven operands of GroupQueryAttention."""
    rows = [f(batch, new, heads * DEPTH) for heads in (HEADS, SHARED, SHARED)]
    cache = [f(batch, SHARED, past, DEPTH) for _ in range(2)]
    return [*rows, *cache, ints(*[past + new - 1] * batch), ints(past + new)]


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize(
    "extra", [{}, {"softcap": 1.5}, {"local_window_size": 3}, {"smooth_softmax": 1}], ids=str
)
def test_group_query_attention_scores(step: tuple[int, int, int], extra: dict) -> None:
    attrs = {"num_heads": HEADS, "kv_num_heads": SHARED, "fixed": (6,), **extra}
    for qk_output in (1, 2):
        alike("GroupQueryAttention", grouped(*step), 4, qk_output=qk_output, **attrs)


@pytest.mark.parametrize("extra", [{}, {"smooth_softmax": 1}], ids=str)
def test_group_query_attention_scores_of_halves(extra: dict) -> None:
    inputs = [x.astype(np.float16) if x.dtype == np.float32 else x for x in grouped(2, 6, 0)]
    attrs = {"num_heads": HEADS, "kv_num_heads": SHARED, "qk_output": 2, **extra}
    model, feeds = one_node("GroupQueryAttention", inputs, [TensorProto.FLOAT16] * 4, (6,), **attrs)
    for y, wanted in zip(Session(model, threads=2).run(feeds), theirs(model, feeds)):
        assert y.dtype == wanted.dtype
        np.testing.assert_allclose(y.astype(float), wanted.astype(float), 0, 4e-3)


@pytest.mark.parametrize(
    "epsilons, q_epsilon, k_epsilon",
    [
        ({}, 1e-6, 1e-6),
        ({"qk_norm_epsilon": 0.1}, 0.1, 0.1),
        ({"q_norm_epsilon": 0.1, "k_norm_epsilon": 1.0}, 0.1, 1.0),
        ({"qk_norm_epsilon": 0.1, "k_norm_epsilon": 1.0}, 0.1, 1.0),
    ],
    ids=str,
)
def test_group_query_attention_norms(epsilons: dict, q_epsilon: float, k_epsilon: float) -> None:
    """Of each head; onnxruntime has them for other processors only."""

    def norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
        heads = x.reshape(*x.shape[:2], -1, DEPTH)
        scale = 1 / np.sqrt(np.mean(heads**2, -1, keepdims=True) + epsilon)
        return (heads * scale * weight).reshape(x.shape).astype(np.float32)

    attrs = {"num_heads": HEADS, "kv_num_heads": SHARED, "fixed": (6,)}
    query, key, *rest = grouped(2, 6, 0)
    weights = [f(DEPTH), f(DEPTH)]
    outputs = [TensorProto.FLOAT] * 3
    given = [query, key, *rest, *[None] * 7, *weights]
    model, feeds = one_node("GroupQueryAttention", given, outputs, **attrs, **epsilons)
    plain = [norm(query, weights[0], q_epsilon), norm(key, weights[1], k_epsilon), *rest]
    wanted = theirs(*one_node("GroupQueryAttention", plain, outputs, **attrs))
    for y, other in zip(Session(model, threads=2).run(feeds), wanted):
        np.testing.assert_allclose(y, other, 1e-4, 2e-5)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_group_query_attention_forms(step: tuple[int, int, int]) -> None:
    """Sinks, all keys in sight, and positions that are given."""
    attrs: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": SHARED, "fixed": (6,)}
    batch, new, past = step
    alike("GroupQueryAttention", [*grouped(*step), *[None] * 4, f(HEADS)], 3, **attrs)
    alike("GroupQueryAttention", grouped(*step), 3, causal=0, **attrs)
    tables = [f(20, DEPTH // 2), f(20, DEPTH // 2)]
    for first in (past, 2):
        positions = np.tile(np.arange(first, first + new), (batch, 1))
        inputs = [*grouped(*step), *tables, positions]
        alike("GroupQueryAttention", inputs, 3, do_rotary=1, **attrs)


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("fixed", [(6,), ()], ids=["total is known", "total is data"])
def test_positions_in_no_order(step: tuple[int, int, int], fixed: tuple[int, ...]) -> None:
    """In a first prompt only the first of all counts."""
    attrs: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": SHARED, "fixed": fixed}
    positions = RANDOM.integers(0, 20 - step[1], step[:2])
    inputs = [*grouped(*step), f(20, DEPTH // 2), f(20, DEPTH // 2), positions]
    alike("GroupQueryAttention", inputs, 3, do_rotary=1, **attrs)


@pytest.mark.parametrize("fixed", [(6,), ()], ids=["total is known", "total is data"])
@pytest.mark.parametrize("extra", [{}, {"local_window_size": 3}, {"do_rotary": 1}], ids=str)
def test_group_query_attention_of_padded_chunks(fixed: tuple[int, ...], extra: dict) -> None:
    """Entries with a chunk in part and in full, with none, and with a first one."""
    room, length = 12, 4
    before, new = np.array([5, 0, 7, 0]), np.array([2, 3, 0, 4])
    total, batch = before + new, len(new)
    tables = [f(room, DEPTH // 2)] * 2 if extra.get("do_rotary") else [None, None]
    rows, cache = grouped(batch, length, room)[:3], [f(batch, SHARED, room, DEPTH) for _ in "kv"]
    counts = [np.array(x, np.int32) for x in (total - 1, room, new)]
    inputs = [*rows, *cache, *counts[:2], *tables, *[None] * 7, counts[2]]
    attrs = {"num_heads": HEADS, "kv_num_heads": SHARED, "fixed": fixed, **extra}
    model, feeds = one_node("GroupQueryAttention", inputs, [TensorProto.FLOAT] * 3, **attrs)
    results = Session(model, threads=2).run(feeds)
    for y, wanted, axis, used in zip(results, theirs(model, feeds), (0, 1, 1), (new, total, total)):
        assert y.shape == wanted.shape
        for b in range(batch):
            kept = np.arange(used[b])
            np.testing.assert_allclose(
                y[b].take(kept, axis), wanted[b].take(kept, axis), 1e-4, 2e-5
            )


def slide(
    capacity: int,
    before: list[int],
    new: list[int],
    fixed: tuple[int, ...] = (),
    bias: Optional[tuple[int, int]] = None,
    **more: Any,
) -> tuple[bytes, dict[str, np.ndarray]]:
    """A GroupQueryAttention with a window of 5 over caches of its last keys. bias: the first dims
    of one.
    """
    batch, length = len(before), max(new)
    total = np.add(before, new)
    inputs = [*grouped(batch, length, capacity)[:5], ints(*(total - 1)), ints(max(total))]
    inputs += [f(64, DEPTH // 2), f(64, DEPTH // 2)]
    has_padding = min(new) < length and max(before) > 0
    if bias is not None:
        inputs += [None, f(*bias, length, max(total))]
    if has_padding:
        inputs += [*[None] * (16 - len(inputs)), ints(*new)]
    attrs = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1, **more}
    attrs = {"local_window_size": 5, "sliding_window_cache": 1, **attrs}
    symbols = {capacity: "capacity", length: "length", batch: "batch"}
    outputs = [TensorProto.FLOAT] * 3
    return one_node("GroupQueryAttention", inputs, outputs, fixed, symbols, **attrs)


@pytest.mark.parametrize("fixed", [(6,), ()], ids=["total is known", "total is data"])
@pytest.mark.parametrize("capacity", [5, 7, 16])
@pytest.mark.parametrize(
    "before, new",
    [
        ([0, 0], [4, 4]),
        ([0, 0], [20, 20]),
        *(([n, n + 4], [1, 1]) for n in (0, 3, 4, 5, 6, 7, 20)),
        *(([n], [3]) for n in (0, 3, 4, 5, 6, 7, 20)),
        ([9, 0, 4], [2, 4, 3]),  # chunks with padding
    ],
    ids=str,
)
@pytest.mark.parametrize("biased", [None, (0, 0), (1, 0), (1, 1)], ids=str)
def test_group_query_attention_in_a_window(
    fixed: tuple[int, ...],
    capacity: int,
    before: list[int],
    new: list[int],
    biased: Optional[tuple[int, int]],
) -> None:
    """A cache holds the last keys, and whenever it is full drops all that are out of sight. A bias
    has a column for each key there ever was.
    """
    bias = None if biased is None else (len(before) if biased[0] else 1, HEADS if biased[1] else 1)
    model, feeds = slide(capacity, before, new, fixed, bias)
    y, *caches = Session(model, threads=2).run(feeds)
    wanted, *wanted_caches = theirs(model, feeds)
    for b, count in enumerate(new):
        np.testing.assert_allclose(y[b, :count], wanted[b, :count], 1e-4, 2e-5)
        total, dropped = before[b] + count, capacity - 5 + 1
        kept = total - -(-max(total - capacity, 0) // dropped) * dropped
        for cache, other in zip(caches, wanted_caches):
            assert cache.shape == other.shape
            np.testing.assert_allclose(cache[b, :, :kept], other[b, :, :kept], 1e-4, 2e-5)


def test_a_window_in_one_buffer() -> None:
    """Past and present of all steps are one buffer, as decoders are run in place."""
    capacity, before = 7, 0
    model, _ = slide(capacity, [0], [2])
    runs = []
    for engine in (q7x2_ep, onnxruntime):
        zeros = [np.zeros((1, SHARED, capacity, DEPTH), np.float32) for _ in "kv"]
        buffers = [engine.OrtValue.ortvalue_from_numpy(array) for array in zeros]
        runs.append((engine.InferenceSession(model), buffers))
    tables = {f"x{i}": f(64, DEPTH // 2) for i in (7, 8)}
    for new in (2, 1, 3, 1, 1, 1, 4, 1, 9, 1, 1):
        total = before = before + new
        rows = {f"x{i}": x for i, x in enumerate(grouped(1, new, 0)[:3])}
        feeds = {**rows, "x5": ints(total - 1), "x6": ints(total), **tables}
        kept = total - -(-max(total - capacity, 0) // 3) * 3
        results = []
        for session, buffers in runs:
            binding = session.io_binding()
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            binding.bind_output("y0")
            for i, value in enumerate(buffers):
                binding.bind_ortvalue_input(f"x{3 + i}", value)
                binding.bind_ortvalue_output(f"y{1 + i}", value)
            session.run_with_iobinding(binding)
            caches = [value.numpy()[:, :, :kept] for value in buffers]
            results.append([binding.get_outputs()[0].numpy(), *caches])
        for y, wanted in zip(*results):
            np.testing.assert_allclose(y, wanted, 1e-4, 2e-5)


def test_what_windows_want() -> None:
    model, feeds = slide(4, [3], [1])
    with pytest.raises(ShapeError, match="element counts differ"):
        Session(model).run(feeds)
    with pytest.raises(ModelError, match="without a window"):
        Session(slide(5, [3], [1], local_window_size=-1)[0])
    with pytest.raises(UnsupportedOp, match="with qk_output"):
        Session(slide(5, [3], [1], qk_output=1)[0])


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "kind, shape", [("PER_TENSOR", (1,)), ("PER_CHANNEL", (1, SHARED, 1, DEPTH))]
)
def test_caches_of_bytes(step: tuple[int, int, int], bits: int, kind: str, shape: tuple) -> None:
    dtype, most = (np.int8, 60) if bits == 8 else (np.uint8, 4)
    inputs = [*grouped(*step), *[None] * 5]
    limits, rows = np.iinfo(dtype), (step[0], SHARED, step[2], DEPTH * bits // 8)
    for i in (3, 4):
        inputs[i] = RANDOM.integers(limits.min, limits.max + 1, rows).astype(dtype)
        inputs.append((RANDOM.uniform(0.5, 2, shape) / most).astype(np.float32))
    attrs = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    attrs.update(num_heads=HEADS, kv_num_heads=SHARED, fixed=(6,))
    alike("GroupQueryAttention", inputs, 3, **attrs)
    model, _ = one_node("GroupQueryAttention", inputs[:-1], (1, 3, 3), **attrs)
    with pytest.raises(ModelError, match="v_scale"):
        Session(model)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind, shape", [("PER_TENSOR", (1,)), ("PER_CHANNEL", (SHARED * DEPTH,))])
def test_scales_without_a_shape(bits: int, kind: str, shape: tuple) -> None:
    """What a run tells of them comes after the total, a size, has become known."""
    dtype = np.int8 if bits == 8 else np.uint8
    inputs = [*grouped(*STEPS[0]), *[None] * 5]
    limits, rows = np.iinfo(dtype), (STEPS[0][0], SHARED, STEPS[0][2], DEPTH * bits // 8)
    for i in (3, 4):
        inputs[i] = RANDOM.integers(limits.min, limits.max + 1, rows).astype(dtype)
        inputs.append(RANDOM.uniform(0.01, 0.2, shape).astype(np.float32))
    attrs = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    attrs.update(num_heads=HEADS, kv_num_heads=SHARED)
    outputs = [TensorProto.FLOAT, *[helper.np_dtype_to_tensor_dtype(np.dtype(dtype))] * 2]
    model, feeds = one_node("GroupQueryAttention", inputs, outputs, **attrs)
    proto = onnx.load_from_string(model)
    for info in proto.graph.input[-2:]:
        info.type.tensor_type.ClearField("shape")
    session = Session(proto.SerializeToString(), threads=2)
    for y, wanted in zip(session.run(feeds), theirs(model, feeds)):
        assert y.dtype == wanted.dtype and y.shape == wanted.shape
        np.testing.assert_allclose(y.astype(np.float32), wanted.astype(np.float32), 1e-4, 2e-5)


def test_caches_of_bytes_beside_halves() -> None:
    """Scales are float32 whatever the queries are; onnxruntime has no kernel for these."""
    inputs = [*grouped(*STEPS[0]), *[None] * 5]
    rows = (STEPS[0][0], SHARED, STEPS[0][2], DEPTH)
    for i in (3, 4):
        inputs[i] = RANDOM.integers(-128, 128, rows).astype(np.int8)
        inputs.append(np.full(1, 0.02, np.float32))
    attrs = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    results = []
    for dtype in (np.float32, np.float16):
        given = [*(x.astype(np.float16).astype(dtype) for x in inputs[:3]), *inputs[3:]]
        outputs = (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), *[TensorProto.INT8] * 2)
        model, feeds = one_node(
            "GroupQueryAttention",
            given,
            outputs,
            (6,),
            num_heads=HEADS,
            kv_num_heads=SHARED,
            **attrs,
        )
        results.append(Session(model).run(feeds)[0])
    np.testing.assert_allclose(results[1], results[0], HALF, tolerance(rows[2] + STEPS[0][1]))


def sparse_layouts(random: np.random.Generator, layouts: int, rows: int) -> list[np.ndarray]:
    """Lower triangles of blocks, the diagonal among them, dense and as CSR."""
    dense = np.tril(random.random((layouts, rows, rows)) < 0.4) | np.eye(rows, dtype=bool)
    ends = np.concatenate([np.zeros((layouts, 1)), dense.sum(2).cumsum(1)], 1).astype(np.int32)
    columns = np.full((layouts, ends.max()), -1, np.int32)
    for layout, row in zip(dense, columns):
        found = np.nonzero(layout)[1]
        row[: len(found)] = found
    return [dense, ends, columns]


@pytest.mark.parametrize("do_rotary", [0, 1])
@pytest.mark.parametrize("fixed", [(5, 6), ()], ids=str)
@pytest.mark.parametrize("lengths, new", [((40, 33), 40), ((41, 34), 1)])
def test_sparse_attention(do_rotary: int, fixed: tuple, lengths: tuple, new: int) -> None:
    """By GroupQueryAttention and a bias: onnxruntime wants past and present to share memory."""
    rows, block = 4, 16
    dense, ends, columns = sparse_layouts(RANDOM, 2, rows)
    total, size = max(lengths), rows * block
    parts = [f(2, new, heads * DEPTH) for heads in (HEADS, SHARED, SHARED)]
    cache = [f(2, SHARED, size, DEPTH) for _ in range(2)]
    tables = [f(size, DEPTH // 2), f(size, DEPTH // 2)] if do_rotary else []
    inputs = [*parts, *cache, ends, columns, ints(total), ints(*lengths), *tables]
    attrs = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": do_rotary}
    types = [TensorProto.FLOAT] * 3
    sizes = {"sparse_block_size": block}
    model, feeds = one_node("SparseAttention", inputs, types, fixed=fixed, **attrs, **sizes)
    results = Session(model, threads=2).run(feeds)
    start = 0 if new == total else np.array(lengths) - new
    position = np.reshape(start, (-1, 1)) + np.arange(new)  # (1 or 2, new)
    shown = dense[:, position // block][..., np.arange(total) // block]  # (2, 1 or 2, new, total)
    bias = np.where(np.tile(shown.swapaxes(0, 1), (1, HEADS // 2, 1, 1)), 0, -1e30)
    bias = np.ascontiguousarray(np.broadcast_to(bias, (2, *bias.shape[1:])), np.float32)
    inputs = [*parts, *cache, ints(*(n - 1 for n in lengths)), ints(total)]
    inputs += [*(tables or [None, None]), None, bias]
    model, feeds = one_node("GroupQueryAttention", inputs, types, fixed=(6,), **attrs)
    wanted = theirs(model, feeds)
    for b, length in enumerate(lengths):
        kept = slice(0, length if new == total else None)
        np.testing.assert_allclose(results[0][b, kept], wanted[0][b, kept], 1e-4, 2e-5)
        for y, w in zip(results[1:], wanted[1:]):
            np.testing.assert_allclose(y[b, :, :length], w[b, :, :length], 1e-4, 2e-5)
