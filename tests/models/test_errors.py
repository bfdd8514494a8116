"""What a user can get wrong: every mistake is a typed error that names the culprit."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from q7x2_ep.backend.cpu import library as native
from q7x2_ep.models import small_models
from q7x2_ep.ops import find


@pytest.fixture(scope="module")
def session():
    with q7x2_ep.InferenceSession(small_models()["bert"]) as session:
        yield session


def feeds(batch: int = 2, sequence: int = 5) -> dict:
    ids = np.zeros((batch, sequence), np.int64)
    return {"input_ids": ids, "attention_mask": ids + 1, "token_type_ids": ids}


def model_of(*nodes, inputs=(("x", (2, 3)),), outputs=(("y", None),)) -> bytes:
    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        list(nodes), "g", [info(*value) for value in inputs], [info(*value) for value in outputs]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def assert_feed_error(session, feed, error, *words):
    with pytest.raises(error) as caught:
        session.run(None, feed)
    for word in words:
        assert word in str(caught.value)


def test_missing_input(session):
    feed = feeds()
    del feed["attention_mask"]
    assert_feed_error(session, feed, q7x2_ep.FeedError, "attention_mask", "missing")


def test_unknown_input(session):
    feed = dict(feeds(), position_ids=np.zeros((2, 5), np.int64))
    assert_feed_error(session, feed, q7x2_ep.FeedError, "position_ids", "input_ids")


def test_wrong_dtype(session):
    feed = dict(feeds(), input_ids=np.zeros((2, 5), np.int32))
    assert_feed_error(session, feed, q7x2_ep.FeedError, "input_ids", "int64", "int32")


def test_wrong_rank(session):
    feed = dict(feeds(), input_ids=np.zeros(5, np.int64))
    assert_feed_error(session, feed, q7x2_ep.ShapeError, "input_ids", "rank 2", "rank 1")


def test_dims_that_disagree(session):
    feed = dict(feeds(), attention_mask=np.ones((2, 6), np.int64))
    assert_feed_error(session, feed, q7x2_ep.ShapeError, "attention_mask", "5", "6")


def test_wrong_fixed_dim():
    with q7x2_ep.InferenceSession(small_models()["vit"]) as session:
        feed = {"pixel_values": np.zeros((1, 4, 32, 32), np.float32)}
        assert_feed_error(session, feed, q7x2_ep.ShapeError, "pixel_values", "3", "4")


@pytest.mark.parametrize("index", [128, -129, 2**40])
def test_index_out_of_range(session, index):
    feed = feeds()
    feed["input_ids"][1, 3] = index
    assert_feed_error(session, feed, q7x2_ep.DataError, f"given {index}, expected -128 to 127")
    session.run(None, feeds())  # the session lives on


def test_sequence_beyond_the_position_table(session):
    with pytest.raises(q7x2_ep.Q7Error):
        session.run(None, feeds(1, 300))
    session.run(None, feeds())


def test_unknown_output(session):
    with pytest.raises(q7x2_ep.FeedError, match=r"logits.*last_hidden_state"):
        session.run(["logits"], feeds())


def test_close_under_a_run():
    """A run that is under way when another thread closes the session ends in peace."""
    session = q7x2_ep.InferenceSession(small_models()["bert"])
    ended, began = [], threading.Barrier(4)

    def runs():
        try:
            session.run(None, feeds(1, 64))
            began.wait(30)
            while True:
                session.run(None, feeds(1, 64))
        except q7x2_ep.BackendError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=runs) for _ in range(3)]
    for thread in threads:
        thread.start()
    began.wait(30)
    session.close()
    for thread in threads:
        thread.join()
    assert len(ended) == 3 and all("closed" in text for text in ended)


def test_closed_session():
    session = q7x2_ep.InferenceSession(small_models()["bert"])
    session.close()
    session.close()
    with pytest.raises(q7x2_ep.BackendError, match="closed"):
        session.run(None, feeds())


def test_missing_file(tmp_path):
    path = tmp_path / "absent.onnx"
    with pytest.raises(q7x2_ep.ModelNotFound, match=r"absent.onnx"):
        q7x2_ep.InferenceSession(path)


def test_missing_external_data(tmp_path):
    weight = onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = onnx.load_from_string(model_of(node))
    model.graph.initializer.append(weight)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    with q7x2_ep.InferenceSession(path) as session:
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.full((2, 4), 3.0))
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(q7x2_ep.ModelError, match=r"weights.bin"):
        q7x2_ep.InferenceSession(path)


@pytest.mark.parametrize("junk", [b"", b"not a model", b"\x08\x08", bytes(range(256)) * 4])
def test_not_a_model(junk, tmp_path):
    path = tmp_path / "junk.onnx"
    path.write_bytes(junk)
    for source in (junk, path):
        with pytest.raises(q7x2_ep.ModelError):
            q7x2_ep.InferenceSession(source)


def test_truncated_models():
    with open(small_models()["bert"], "rb") as file:
        model = file.read()
    for size in np.random.default_rng(0).integers(1, len(model), 20):
        with pytest.raises(q7x2_ep.ModelError):
            q7x2_ep.InferenceSession(model[:size])


def test_unsupported_ops_are_all_named():
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["t"], domain="acme", name="first"),
        helper.make_node("Defrobnicate", ["t"], ["y"], domain="acme", name="second"),
    ]
    with pytest.raises(q7x2_ep.UnsupportedOp) as caught:
        q7x2_ep.InferenceSession(model_of(*nodes))
    for word in ("acme::Frobnicate", "first", "acme::Defrobnicate", "second"):
        assert word in str(caught.value)


def test_broadcast_found_wrong_at_bind():
    node = helper.make_node("Add", ["x", "z"], ["y"], name="sum")
    model = model_of(node, inputs=(("x", ("a",)), ("z", ("b",))))
    with q7x2_ep.InferenceSession(model) as session:
        one, three = np.ones(1, np.float32), np.ones(3, np.float32)
        assert session.run(None, {"x": one, "z": three})[0].shape == (3,)
        assert session.run(None, {"x": three, "z": one})[0].shape == (3,)
        with pytest.raises(q7x2_ep.ShapeError):
            session.run(None, {"x": three, "z": np.ones(2, np.float32)})


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def constants(**arrays: np.ndarray) -> list:
    value = onnx.numpy_helper.from_array
    return [helper.make_node("Constant", [], [k], value=value(a)) for k, a in arrays.items()]


def misfit(op: str, inputs: str, domain: str = "", **attrs) -> onnx.NodeProto:
    names = [name.strip("_") for name in inputs.split()]
    return helper.make_node(op, names, ["y"], domain=domain, name="misfit", **attrs)


BYTE = np.uint8
ATTENTION = misfit("Attention", "q k v", scale=0.3)
LINEAR_ATTENTION = helper.make_node(
    "LinearAttention",
    ["q", "k", "v", "", "d", "b"],
    ["y", "present"],
    "misfit",
    domain="com.microsoft",
    **{"q_num_heads": 2, "kv_num_heads": 2, "scale": 0.5},
)
ROPE = {"cos": zeros(1, 3, 4), "sin": zeros(1, 3, 4)}
SCALES = {f"{x}_scale": zeros() + np.float32(1) for x in "aby"}
ZEROS = {f"{x}_zero": zeros(dtype=BYTE) for x in "aby"}
MISFITS = {  # nodes, and a feed: in a kernel each would read or write beyond its operands
    "heads": ([ATTENTION], {"q": (1, 4, 3, 8), "k": (1, 3, 3, 8), "v": (1, 3, 3, 8)}),
    "fewer heads": ([ATTENTION], {"q": (1, 2, 3, 8), "k": (1, 3, 3, 8), "v": (1, 3, 3, 8)}),
    "batch": ([ATTENTION], {"q": (9, 2, 3, 8), "k": (1, 2, 3, 8), "v": (1, 2, 3, 8)}),
    "depth": ([ATTENTION], {"q": (1, 2, 3, 8), "k": (1, 2, 3, 4), "v": (1, 2, 3, 8)}),
    "lengths": ([ATTENTION], {"q": (1, 2, 3, 8), "k": (1, 2, 9, 8), "v": (1, 2, 3, 8)}),
    "packed heads": (
        [misfit("MultiHeadAttention", "q k v", "com.microsoft", num_heads=2, scale=0.3)],
        {"q": (2, 3, 8), "k": (1, 3, 8), "v": (1, 3, 8)},
    ),
    "channels": (
        [misfit("RotaryEmbedding", "x cos sin", rotary_embedding_dim=8)],
        {"x": (1, 2, 3, 4), **ROPE},
    ),
    "flat channels": (
        [misfit("RotaryEmbedding", "x cos sin", rotary_embedding_dim=8, num_heads=3)],
        {"x": (1, 3, 16), **ROPE},
    ),
    "norm": ([misfit("LayerNormalization", "x w b")], {"x": (2, 9), "w": (4,), "b": (9,)}),
    "rms": ([misfit("RMSNormalization", "x w")], {"x": (2, 9), "w": (4,)}),
    "channel scale": (
        [misfit("InstanceNormalization", "x w b")],
        {"x": (2, 9, 4), "w": (4,), "b": (9,)},
    ),
    "filters": (
        [*constants(w=zeros(5, 1, 1)), misfit("Conv", "x w b")],
        {"x": (1, 1, 3), "b": (4,)},
    ),
    "groups": ([misfit("Conv", "x w", group=3)], {"x": (1, 3, 3), "w": (4, 1, 1)}),
    "no kernel": (
        [misfit("Conv", "x w", group=2, strides=[2, 3])],
        {"x": (1, 2, 9, 40), "w": (2, 1, 3, 0)},
    ),
    "no kernel at all": (
        [misfit("ConvTranspose", "x w", strides=[2])],
        {"x": (1, 2, 9), "w": (2, 1, 0)},
    ),
    "bytes under a kernel": (
        [*constants(w=zeros(2, 1, 3, dtype=BYTE)), misfit("ConvInteger", "x w")],
        {"x": zeros(1, 1, 2, dtype=BYTE)},
    ),
    "channel groups": (
        [misfit("GroupNormalization", "x w b", num_groups=3)],
        {"x": (1, 5, 33), "w": (5,), "b": (5,)},
    ),
    "decays": (
        [LINEAR_ATTENTION],
        {**dict.fromkeys("qkv", (1, 3, 8)), "d": (1, 3, 6), "b": (1, 3, 2)},
    ),
    "betas": (
        [LINEAR_ATTENTION],
        {**dict.fromkeys("qkv", (1, 3, 8)), "d": (1, 3, 2), "b": (1, 3, 3)},
    ),
    "bias of few bits": (
        [
            *constants(w=zeros(8, 2, 8, dtype=BYTE), s=zeros(16)),
            misfit("MatMulNBits", "x w s _ _ b", "com.microsoft", K=32, N=8, block_size=16),
        ],
        {"x": (2, 32), "b": (3,)},
    ),
    "negative": (
        [
            *constants(five=zeros(1, dtype=np.int64) + 5),
            helper.make_node("Shape", ["x"], ["n"], end=1),
            helper.make_node("Sub", ["n", "five"], ["k"]),
            helper.make_node("TopK", ["x", "k"], ["y", "places"], "misfit", axis=0),
        ],
        {"x": (3, 2)},
    ),
    "negative twice": (
        [
            *constants(five=zeros(2, dtype=np.int64) + 5),
            helper.make_node("Shape", ["x"], ["n"]),
            helper.make_node("Sub", ["n", "five"], ["k"]),
            helper.make_node("ConstantOfShape", ["k"], ["zeros"], name="misfit"),
            helper.make_node("ReduceSum", ["zeros"], ["y"]),
        ],
        {"x": (3, 3)},
    ),
    "addend": ([*constants(w=zeros(4, 9)), misfit("Gemm", "x w c")], {"x": (2, 4), "c": (4,)}),
    "integers": (
        [*constants(w=zeros(9, 4, dtype=BYTE)), misfit("MatMulInteger", "x w")],
        {"x": zeros(2, 4, dtype=BYTE)},
    ),
    "quantised": (
        [
            *constants(b=zeros(9, 4, dtype=BYTE), **SCALES, **ZEROS),
            misfit("QLinearMatMul", "a a_scale a_zero b b_scale b_zero y_scale y_zero"),
        ],
        {"a": zeros(2, 4, dtype=BYTE)},
    ),
    "elements": (
        [misfit("GatherElements", "x i", axis=1)],
        {"x": (2, 3), "i": zeros(9, 3, dtype=np.int64)},
    ),
    "picks": (
        [misfit("GatherND", "x i", batch_dims=1)],
        {"x": (2, 3), "i": zeros(9, 3, 1, dtype=np.int64)},
    ),
    "updates": (
        [misfit("ScatterND", "x i u")],
        {"x": (2, 9), "i": zeros(2, 1, dtype=np.int64), "u": (1, 9)},
    ),
    "two values": (
        [*constants(depth=zeros(dtype=np.int64) + 3), misfit("OneHot", "i depth x")],
        {"i": zeros(4, dtype=np.int64), "x": (1,)},
    ),
    "bounds": ([misfit("Clip", "x low")], {"x": (2, 9), "low": (4,)}),
    "scales": ([misfit("QuantizeLinear", "x s")], {"x": (2, 9), "s": (4,)}),
    "zeros": (
        [misfit("DequantizeLinear", "x s z")],
        {"x": zeros(2, 9, dtype=BYTE), "s": (9,), "z": zeros(1, dtype=BYTE)},
    ),
}


@pytest.mark.parametrize("nodes, feed", MISFITS.values(), ids=MISFITS)
def test_operands_that_do_not_fit(nodes, feed):
    """Only a run tells the dims, but for those of 1: it refuses before any kernel sees them."""
    feed = {k: x if isinstance(x, np.ndarray) else zeros(*x) for k, x in feed.items()}
    kinds = {k: helper.np_dtype_to_tensor_dtype(x.dtype) for k, x in feed.items()}
    inputs = [
        helper.make_tensor_value_info(
            k, kinds[k], [1 if dim == 1 else f"{k}{i}" for i, dim in enumerate(x.shape)]
        )
        for k, x in feed.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with q7x2_ep.InferenceSession(model.SerializeToString()) as session:
        assert_feed_error(session, feed, q7x2_ep.ShapeError, "misfit")


NORM = "BatchNormalization (z, scale, shift, mean, variance)"
FUSED = {  # (x, what is done with it, the operands that do not fit)
    "a norm of a Conv": ("[b, 4, s, s]", f"z = Conv (x, w) y = {NORM}", {"mean": (1,)}),
    "a norm of a Conv, for one": ("[b, 4, s, s]", f"z = Conv (x, w) y = {NORM}", {"scale": (1,)}),
    "a matrix for a norm": ("[b, 4, s, s]", f"z = Conv (x, w) y = {NORM}", {"scale": (4, 1)}),
    "a norm of a Linear": ("[b, 4]", f"z = MatMul (x, m) y = {NORM}", {"variance": (1,)}),
    "a norm alone": ("[b, 4, s, s]", f"z = Neg (x) y = {NORM}", {"shift": (1,)}),
    "a norm of any channels": (
        *("[b, c, s, s]", f"z = Concat <axis = 1> (x, x) y = {NORM}"),
        {"mean": (8,), "variance": (8,)},
    ),
    "a norm of groups": (
        "[b, 8, s, s]",
        """groups = Reshape (x, split) z = InstanceNormalization (groups, scale, shift)
        y = Reshape (z, joined)""",
        {"shift": (1,)},
    ),
    "reshapes in a row": (
        "[b, s, 4]",
        """n = Shape <start = 1, end = 2> (x) more = Concat <axis = 0> (zero, n, n, two)
        z = Reshape (x, more) same = Shape (x) y = Reshape (z, same)""",
        {},
    ),
    "a Linear of no rows": (
        "[b, s, 4]",
        """none = Concat <axis = 0> (zero, four) rows = Reshape <allowzero = 1> (x, none)
        z = MatMul (rows, m) same = Shape (x) y = Reshape (z, same)""",
        {},
    ),
    "heads repeated as often as there are rows": (
        "[b, 2, s, 4]",
        """n = Shape <start = 2, end = 3> (x) q = Concat <axis = 1> (x, x) z = Unsqueeze (x, two)
        times = Concat <axis = 0> (one, one, n, one, one) wide = Expand (z, times)
        heads = Concat <axis = 0> (zero, four, n, four) k = Reshape (wide, heads)
        columns = Transpose <perm = [0, 1, 3, 2]> (k) scores = MatMul (q, columns)
        p = Softmax (scores) y = MatMul (p, k)""",
        {},
    ),
    "bounds that repeat": ("[b, 4]", "z = Exp (x) c = Clip (z, x) y = Neg (c)", {}),
    "positions of three dims": (
        *("[b, 2, s, 4]", "y = RotaryEmbedding (x, w0, w0, ids)"),
        {"w0": (9, 2)},
    ),
}


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("shape, text, misfits", FUSED.values(), ids=FUSED)
def test_operands_that_do_not_fit_what_fusions_take(shape, text, misfits, level):
    """Fused or not: constants that a fusion computes with, operands that it would repeat, reshapes
    that it looks behind."""
    rows = dict.fromkeys(("scale", "shift", "mean", "variance"), (4,))
    held = {**rows, "w": (4, 4, 1, 1), "m": (4, 4), **misfits}
    shapes = {"split": [0, 4, -1], "joined": [0, 8, 5, 5], "ids": [[[0, 1, 2, 3, 4]]]}
    shapes.update(zero=[0], one=[1], two=[2], four=[4])
    text = f"g (float{shape} x) => (float y) {{ {text} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {text}')
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name)
        for name, array in [*((k, zeros(*v) + 1) for k, v in held.items()), *shapes.items()]
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    sizes = {"b": 2, "s": 5, "c": 2}
    x = zeros(*(sizes.get(dim) or int(dim) for dim in shape[1:-1].split(", ")))
    options = q7x2_ep.SessionOptions()
    options.graph_optimization_level = q7x2_ep.GraphOptimizationLevel[level]
    with pytest.raises((q7x2_ep.ShapeError, q7x2_ep.ModelError)):
        q7x2_ep.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})


@pytest.mark.parametrize("name", ["a_scale", "y_scale"])
def test_scales_of_rows(name):
    """Of a shape that scales of columns may have as well."""
    scales, two = {**SCALES, name: zeros(2) + 1}, {f"{name[0]}_zero": zeros(2, dtype=BYTE)}
    nodes = [
        *constants(b=zeros(4, 2, dtype=BYTE), **scales, **{**ZEROS, **two}),
        misfit("QLinearMatMul", "a a_scale a_zero b b_scale b_zero y_scale y_zero"),
    ]
    x, y = (
        helper.make_tensor_value_info(k, TensorProto.UINT8, (2, n)) for k, n in (("a", 4), ("y", 2))
    )
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = q7x2_ep.InferenceSession(model.SerializeToString())
    (step,) = q7x2_ep.explain(session).host_steps
    assert "one scale of all rows" in step.backend


MALFORMED = {
    "an output is missing": misfit("TopK", "x x"),
    "a norm of cubes": misfit("LpNormalization", "x", p=3),
    "a running sum of a scalar": misfit("CumSum", "scalar zero"),
    "no groups": misfit("GroupNormalization", "x x x", num_groups=0),
    "beyond 64 bits": misfit("Conv", "x x", pads=[-(2**63), 0, 0, 0], dilations=[2**62, 1]),
    "no such axis": misfit("Flatten", "x", axis=5),
    "another number of parts": misfit("Split", "x", num_outputs=2),
    "no such dtype": misfit("QuantizeLinear", "x one", output_dtype=99),
    "scales of another tensor": misfit("DequantizeLinear", "bytes three", axis=0),
    "blocks of nothing": misfit("MatMulNBits", "x bytes one", "com.microsoft", K=3, N=1),
    "weights of another size": misfit(
        "MatMulNBits", "x bytes one", "com.microsoft", K=3, N=2, block_size=16
    ),
    "columns of no block": misfit(
        *("MatMulNBits", "x bytes one _ five", "com.microsoft"),
        **{"K": 1, "N": 1, "block_size": 16},
    ),
}


@pytest.mark.parametrize("node", MALFORMED.values(), ids=MALFORMED)
def test_nodes_that_contradict_themselves(node):
    held = constants(
        one=zeros(1) + 1,
        three=zeros(3),
        scalar=zeros(),
        zero=zeros(dtype=np.int64),
        bytes=zeros(8, dtype=BYTE),
        five=zeros(1, dtype=np.int32) + 5,
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 3, 3])
    used = [each for each in held if each.output[0] in node.input]
    graph = helper.make_graph([*used, node], "g", [x], [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(q7x2_ep.ModelError, match="misfit"):
        q7x2_ep.InferenceSession(model.SerializeToString())


WRONG_TYPES = {
    "a scalar": "(float[2] x, double z) => (float[2] y) { y = Add(x, z) }",
    "a constant": "(float[2] x) => (float[2] y) <double z = {2}> { y = Add(x, z) }",
    "of a contrib op": """(float[2, 2] x, double[2, 2] z) => (float[2, 2] y) {
        y = com.microsoft.FusedMatMul(x, z) }""",
    "in a branch": """(float[2, 2] x, double[2, 2] z, bool c) => (float[2, 2] y) {
        y = If (c) <
            then_branch = g () => (a) { a = MatMul(x, z) },
            else_branch = g () => (b) { b = MatMul(x, x) }
        > }""",
    "in a loop": """(float[2, 2] x, double[2, 2] z, int64 n, bool c) => (float[2, 2] y) {
        y = Loop (n, c, x) <
            body = g (int64 i, bool on, float[2, 2] a) => (on, b) { b = MatMul(a, z) }
        > }""",
    "in a scan": """(float[2, 2] x, double[2] z) => (float[2] last, float[2, 2] y) {
        last, y = Scan <num_scan_inputs = 1, body = g (double[2] s, float[2] e) => (s, o) {
            o = Add(s, e) }> (z, x) }""",
}


@pytest.mark.parametrize("text", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_operands_of_two_types(text):
    """Refused where the session is made, as onnxruntime does; a kernel would misread one."""
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\ng '
    model = onnx.parser.parse_model(header + text).SerializeToString()
    with pytest.raises(q7x2_ep.ModelError, match="bound to different types") as caught:
        q7x2_ep.InferenceSession(model)
    assert "tensor(float)" in str(caught.value) and "tensor(double)" in str(caught.value)


WRONG_DATA = {
    "parts of less": ("(float[4] x, int64[2] s) => (y, z) { y, z = Split(x, s) }", [1, 1]),
    "a size below -1": ("(float[4] x, int64[2] s) => (y) { y = Reshape(x, s) }", [-2, 2]),
    "parts below 0": ("(float[4] x, int64[2] s) => (y, z) { y, z = Split(x, s) }", [5, -1]),
    "other batches": (
        "(float[4] x, int64[2, n] s) => (y) { y = GatherND<batch_dims = 1>(x, s) }",
        [[], []],
    ),
    "before the first": (
        """(float[4] x, int64[1, 1, 4] s) => (y) <int64[3] to = {1, 1, 4}> {
            image = Reshape(x, to)
            y = MaxUnpool<kernel_shape = [2], strides = [2]>(image, s) }""",
        [[[0, 2, 4, -1]]],
    ),
    "other maps": (
        """(float[6] x, int64[4] s) => (y) <int64[3] to = {1, 2, 3}> {
            theta = Reshape(x, to)
            y = AffineGrid(theta, s) }""",
        [2, 1, 4, 5],
    ),
}


@pytest.mark.parametrize("text, data", WRONG_DATA.values(), ids=WRONG_DATA)
def test_data_that_does_not_fit(text: str, data: list):
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 20]>\ng ' + text)
    x = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    feed = {"x": np.ones(x, np.float32), "s": np.array(data, np.int64)}
    with q7x2_ep.InferenceSession(model.SerializeToString()) as session:
        assert_feed_error(session, feed, q7x2_ep.DataError)


STRANGE = [
    misfit("Gelu", "x", approximate="foo"),
    misfit("BitShift", "bytes bytes", direction="foo"),
    misfit("BitShift", "bytes bytes"),
    misfit("Cast", "x", to=TensorProto.FLOAT16, round_mode="foo"),
    misfit("TensorScatter", "cache cache", mode="foo"),
    misfit(
        "TfIdfVectorizer",
        "ids",
        mode="foo",
        min_gram_length=1,
        max_gram_length=1,
        max_skip_count=0,
        ngram_counts=[0],
        ngram_indexes=[0],
        pool_int64s=[1],
    ),
]
STUMP = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [1.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
    "n_targets": 1,
}
for strange in (
    {"aggregate_function": "foo"},
    {"post_transform": "foo"},
    {"nodes_modes": ["foo", "LEAF", "LEAF"]},
    {"nodes_values": [1.0]},
    {"target_ids": [0]},
    {"target_ids": None},
):
    STRANGE.append(misfit("TreeEnsembleRegressor", "x", "ai.onnx.ml", **{**STUMP, **strange}))


@pytest.mark.parametrize("node", STRANGE, ids=lambda node: node.op_type)
def test_attributes_that_mean_nothing(node):
    given = constants(
        x=zeros(2, 3),
        bytes=zeros(2, dtype=BYTE),
        cache=zeros(1, 1, 4, 2),
        ids=zeros(3, dtype=np.int64),
    )
    graph = helper.make_graph(
        [*given, node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    opsets = [helper.make_opsetid("", 25), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    with pytest.raises(
        q7x2_ep.ModelError, match=r"foo|direction is None|nodes_values are 1|target_ids are"
    ):
        q7x2_ep.InferenceSession(model)


CONTRADICTIONS = {
    "g (float[n] x) => (float[n] y) { y, z = Relu(x) }": r"makes \(y\), was given 2 names",
    """g (float[n] x) => (y) <int64[1] o = {1}, int64[1] z = {0}> {
        y = Slice(x, z, o, z, z) }""": "steps",
    """g (bool c, float[n] x) => (float[n] y) { y = If(c)
        <then_branch = t () => (float[n] a) { a = Relu(x) },
         else_branch = e () => (int64[n] b) { b = Cast<to = 7>(x) }> }""": r"float.*int64",
    "g (float[n] x, float[n] x) => (float[n] y) { y = Relu(x) }": "2 inputs are called 'x'",
}


@pytest.mark.parametrize("text", CONTRADICTIONS)
def test_graphs_that_contradict_themselves(text):
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 20]>\n' + text)
    with pytest.raises(q7x2_ep.ModelError, match=CONTRADICTIONS[text]):
        q7x2_ep.InferenceSession(model.SerializeToString())


@pytest.mark.parametrize("is_fed", [False, True], ids=["constant", "fed"])
def test_slices_of_several_lengths(is_fed):
    given = {"starts": np.array([1]), "ends": np.array([3, 4])}
    model = helper.make_model(
        helper.make_graph(
            [*([] if is_fed else constants(**given)), misfit("Slice", "x starts ends")],
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
                *(
                    helper.make_tensor_value_info(k, TensorProto.INT64, [k])
                    for k in (given if is_fed else ())
                ),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k"])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    ).SerializeToString()
    with pytest.raises(q7x2_ep.Q7Error, match=r"misfit.*\[1\], \[3, 4\]"):
        session = q7x2_ep.InferenceSession(model)
        session.run(None, {"x": zeros(5), **(given if is_fed else {})})


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_kernel_of_another_size(op):
    node = misfit(op, "x w", kernel_shape=[2, 2])
    model = model_of(node, inputs=(("x", [*"abcd"]), ("w", [*"efgh"])))
    with q7x2_ep.InferenceSession(model) as session:
        session.run(None, {"x": zeros(1, 1, 4, 4), "w": zeros(1, 1, 2, 2)})
        feed = {"x": zeros(1, 1, 4, 4), "w": zeros(1, 1, 3, 3)}
        assert_feed_error(session, feed, q7x2_ep.ShapeError, "misfit", "kernel_shape has 2", "is 3")


OPERANDS = {
    "MatMul": "a b",
    "Gemm": "a b",
    "MatMulInteger": "bytes more",
    "QLinearMatMul": "bytes scale zero more scale zero scale zero",
}


@pytest.mark.parametrize("op", OPERANDS)
def test_inner_dims_that_contradict(op):
    given = constants(
        a=zeros(2, 3),
        b=zeros(4, 5),
        bytes=zeros(2, 3, dtype=BYTE),
        more=zeros(4, 5, dtype=BYTE),
        scale=zeros(),
        zero=zeros(dtype=BYTE),
    )
    model = model_of(*given, misfit(op, OPERANDS[op]), inputs=())
    match = rf"\[{op} misfit\] inner dims 3 and 4 of shapes \(2, 3\) and \(4, 5\) differ"
    with pytest.raises(q7x2_ep.ModelError, match=match):
        q7x2_ep.InferenceSession(model)


def test_outputs_that_do_not_fit_into_memory():
    nodes = [*constants(sizes=zeros(2, dtype=np.int64) + 2**40), misfit("Expand", "x sizes")]
    with (
        q7x2_ep.InferenceSession(model_of(*nodes, inputs=(("x", (1,)),))) as session,
        pytest.raises(q7x2_ep.BackendError, match="memory"),
    ):
        session.run(None, {"x": zeros(1)})


def test_no_memory_for_a_context(monkeypatch):
    def fail(plan, threads):
        raise native.StatusError(native._Error(message=b"no memory"), native.NO_MEMORY)

    monkeypatch.setattr(native, "Context", fail)
    options = q7x2_ep.SessionOptions(intra_op_num_threads=3)
    model = model_of(misfit("Abs", "x"), inputs=(("x", (1,)),))
    with (
        q7x2_ep.InferenceSession(model, options) as session,
        pytest.raises(q7x2_ep.BackendError, match="no memory, threads: 3"),
    ):
        session.run(None, {"x": zeros(1)})


@pytest.mark.parametrize("method", ["infer", "lower"])
def test_a_model_is_not_blamed_for_want_of_memory(method, monkeypatch):
    def fail(*given):
        raise MemoryError("Unable to allocate 40.0 GiB")

    monkeypatch.setattr(find("Abs"), method, fail)
    with pytest.raises(MemoryError, match="40"):
        q7x2_ep.InferenceSession(model_of(misfit("Abs", "x"), inputs=(("x", (1,)),)))


def test_wrong_session_options():
    with pytest.raises(TypeError, match="SessionOptions"):
        q7x2_ep.InferenceSession(small_models()["bert"], sess_options={"threads": 2})


@pytest.mark.parametrize("feed", [None, [("x", 1)], np.zeros(3)], ids=["none", "list", "array"])
def test_a_feed_without_names(session, feed):
    with pytest.raises(AttributeError, match="input_feed: expected arrays by the names of"):
        session.run(None, feed)


def test_a_feed_that_fails_to_be_an_array(session):
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise KeyError("gone")

    feed = {**feeds(), "input_ids": Broken()}
    assert_feed_error(session, feed, q7x2_ep.FeedError, "input_ids", "Broken", "gone")


def test_text_is_not_told_to_be_converted():
    session = q7x2_ep.InferenceSession(model_of(misfit("Abs", "x"), inputs=(("x", (1,)),)))
    with pytest.raises(q7x2_ep.FeedError, match=r"expected: \(tensor\(float\)\)$"):
        session.run(None, {"x": np.array(["a"])})


@pytest.mark.parametrize("text", ["a\0b", "\0"])
def test_a_path_that_no_file_can_have(text):
    with pytest.raises(q7x2_ep.ModelNotFound):
        q7x2_ep.InferenceSession(text)


RANKS = {
    "Expand": "Expand(x, s)",
    "Reshape": "Reshape(x, s)",
    "Unsqueeze": "Unsqueeze(x, s)",
    "ConstantOfShape": "ConstantOfShape(s)",
}


@pytest.mark.parametrize("call", RANKS.values(), ids=RANKS)
@pytest.mark.parametrize("rank", [65, 2**31 - 1])
def test_more_dims_than_numpy_has(call, rank):
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[n] x, int64[{rank}] s) => (y) {{ y = {call} }}"""
    with pytest.raises(q7x2_ep.ModelError, match=f"{call[:5]}.* the most are 64"):
        q7x2_ep.InferenceSession(onnx.parser.parse_model(text).SerializeToString())


@pytest.mark.parametrize(
    "call",
    [
        "Einsum<equation = 'ij->ji'>(s)".replace("'", '"'),
        "LRN<size = 3>(s)",
        "Clip(x, s)",
        "Unique(s)",
        "OneHot(i, i, s)",
        "LpNormalization(s)",
        "Compress(s, b)",
        "QuantizeLinear(x, x, s)",
        "Transpose(s)",
    ],
)
def test_lists_where_tensors_belong(call):
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[n, m] x, int64[1] i, bool[n] b, seq(float[a, c]) s) => (y) {{ y = {call} }}"""
    with pytest.raises(q7x2_ep.ModelError, match=rf"\[{call[:3]}.*(no tensor|s is none)"):
        q7x2_ep.InferenceSession(onnx.parser.parse_model(text).SerializeToString())


def test_functions_that_call_two_each():
    """Thirty levels: a file of 3 kB with 2^30 nodes."""
    functions = [
        helper.make_function(
            "own",
            f"f{i}",
            ["x"],
            ["y"],
            [
                helper.make_node(f"f{i + 1}", ["x"], ["t"], domain="own"),
                helper.make_node(f"f{i + 1}", ["t"], ["y"], domain="own"),
            ]
            if i < 30
            else [helper.make_node("Neg", ["x"], ["y"])],
            [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)],
        )
        for i in range(31)
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])] for name in "xy"]
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="own")], "g", *ends)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    data = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)
    with pytest.raises(q7x2_ep.ModelError, match="call one another more than"):
        q7x2_ep.InferenceSession(data.SerializeToString())


def test_undefined_input_of_a_node():
    node = helper.make_node("Add", ["x", "nowhere"], ["y"], name="sum")
    with pytest.raises(q7x2_ep.ModelError, match="nowhere"):
        q7x2_ep.InferenceSession(model_of(node))


def test_a_reshape_that_keeps_a_dim_too_many():
    """Of a shape that is data, as of one that the model holds."""
    text = "agraph (float[2,3] x, int64[3] s) => (float[] y) { y = Reshape(x, s) }"
    model = helper.make_model(
        onnx.parser.parse_graph(text), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with q7x2_ep.InferenceSession(model.SerializeToString()) as session:
        feed = {"x": np.zeros((2, 3), np.float32), "s": np.array([2, 3, 0])}
        words = "Reshape", "keeps dim 2 of a tensor with 2 dims"
        assert_feed_error(session, feed, q7x2_ep.DataError, *words)
