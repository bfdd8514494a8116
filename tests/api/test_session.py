"""InferenceSession beyond a plain run: values in the middle, initializers that are fed, options."""

from __future__ import annotations

import collections
import gc
import json
import os
import pickle
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from q7x2_ep import errors
from tests.api.models import ONES, add, info, model, node, scaled

FEED = {"x": ONES, "y": ONES * 2}
W = np.array([5], np.float32)


@pytest.fixture
def session():
    with q7x2_ep.InferenceSession(scaled()) as session:
        yield session


def test_values_in_the_middle(session):
    z, s, again = session.run(["z", "s", "z"], FEED)
    np.testing.assert_array_equal(s, ONES * 3)
    np.testing.assert_array_equal(z, ONES * 6)
    np.testing.assert_array_equal(again, z)
    assert [arg.name for arg in session.get_outputs()] == ["z"]
    assert len(session.run(None, FEED)) == 1


def test_an_unknown_value_beside_a_known(session):
    with pytest.raises(errors.InvalidArgument, match="Invalid output name: nope"):
        session.run(["s", "nope"], FEED)


def test_overridable_initializers(session):
    (arg,) = session.get_overridable_initializers()
    assert str(arg) == "NodeArg(name='w', type='tensor(float)', shape=[1])"
    assert [arg.name for arg in session.get_inputs()] == ["x", "y"]
    for fed, factor in (({}, 2), ({"w": W}, 5), ({}, 2), ({"w": W + 1}, 6)):
        (z,) = session.run(None, {**FEED, **fed})
        np.testing.assert_array_equal(z, ONES * 3 * factor)
    z, s = session.run(["z", "s"], {**FEED, "w": W})
    np.testing.assert_array_equal(z, s * 5)
    with pytest.raises(errors.InvalidArgument, match="input: w"):
        session.run(None, {**FEED, "w": np.ones(2, np.float32)})
    with pytest.raises(ValueError, match=r"Required inputs \(\['y'\]\)"):
        session.run(None, {"x": ONES, "w": W})


def test_given_initializers():
    options = q7x2_ep.SessionOptions()
    weight = np.array([7], np.float32)
    options.add_initializer("w", q7x2_ep.OrtValue.ortvalue_from_numpy(weight))
    with q7x2_ep.InferenceSession(scaled(), options) as session:
        np.testing.assert_array_equal(session.run(None, FEED)[0], ONES * 21)
    options = q7x2_ep.SessionOptions()
    wrong = q7x2_ep.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))
    options.add_external_initializers(["w"], [wrong])
    with pytest.raises(q7x2_ep.ModelError, match=r"initializer w.*\(1,\).*\(2,\)"):
        q7x2_ep.InferenceSession(scaled(), options)


def test_external_data_in_memory():
    made = onnx.load_from_string(scaled())
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "4"), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    options = q7x2_ep.SessionOptions()
    content = np.array([1, 9], np.float32).tobytes()
    options.add_external_initializers_from_files_in_memory(["weights.bin"], [content], [8])
    with q7x2_ep.InferenceSession(made.SerializeToString(), options) as session:
        np.testing.assert_array_equal(session.run(None, FEED)[0], ONES * 27)


def test_free_dimensions():
    made = onnx.load_from_string(add())
    made.graph.input[1].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    for option in ("by_name", "by_denotation"):
        options = q7x2_ep.SessionOptions()
        key = "N" if option == "by_name" else "DATA_BATCH"
        getattr(options, f"add_free_dimension_override_{option}")(key, 2)
        with q7x2_ep.InferenceSession(made.SerializeToString(), options) as session:
            assert session.get_inputs()[1].shape == [2, 3]
            with pytest.raises(errors.InvalidArgument, match="the model fixes it to 2"):
                session.run(None, {"x": ONES, "y": ONES[:1]})


def test_adapters(tmp_path):
    adapter = q7x2_ep.AdapterFormat()
    adapter.set_adapter_version(3)
    adapter.set_model_version(4)
    value = q7x2_ep.OrtValue.ortvalue_from_numpy
    adapter.set_parameters({"w": value(W), "other": value(np.arange(6).reshape(2, 3))})
    adapter.export_adapter(tmp_path / "one.onnx_adapter")
    again = q7x2_ep.AdapterFormat.read_adapter(tmp_path / "one.onnx_adapter")
    versions = again.get_format_version(), again.get_adapter_version(), again.get_model_version()
    assert versions == (1, 3, 4)
    assert again.get_parameters()["other"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    adapter.set_parameters({"w": value(W)})
    adapter.export_adapter(tmp_path / "two.onnx_adapter")
    lora, options = q7x2_ep.LoraAdapter(), q7x2_ep.RunOptions()
    lora.Load(str(tmp_path / "two.onnx_adapter"))
    options.add_active_adapter(lora)
    with q7x2_ep.InferenceSession(scaled()) as session:
        np.testing.assert_array_equal(session.run(None, FEED, options)[0], ONES * 15)
        np.testing.assert_array_equal(session.run(None, FEED)[0], ONES * 6)
    data = (tmp_path / "one.onnx_adapter").read_bytes()
    for junk in (b"", b"junk", data[:40], data[: len(data) // 2]):
        (tmp_path / "junk").write_bytes(junk)
        with pytest.raises(q7x2_ep.BindingError, match="junk"):
            lora.Load(str(tmp_path / "junk"))


def test_adapters_of_onnxruntime(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", minversion="1.31")
    arrays = {"w": W, "b": np.arange(4).reshape(2, 2), "empty": np.zeros((0, 3), np.float16)}
    for one, other in ((q7x2_ep, onnxruntime), (onnxruntime, q7x2_ep)):
        adapter = one.AdapterFormat()
        values = {name: one.OrtValue.ortvalue_from_numpy(a) for name, a in arrays.items()}
        adapter.set_parameters(values)
        adapter.export_adapter(str(tmp_path / "adapter"))
        read = other.AdapterFormat.read_adapter(str(tmp_path / "adapter")).get_parameters()
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name].numpy(), array)
            assert read[name].numpy().dtype == array.dtype


def test_run_async(session):
    calls: list[tuple] = []
    done = threading.Event()

    def callback(outputs, user_data, problem):
        calls.append((outputs, user_data, problem, threading.current_thread()))
        done.set()

    for feed in (FEED, {**FEED, "y": np.ones((3, 3), np.float32)}):
        done.clear()
        session.run_async(None, feed, callback, {"key": 1})
        assert done.wait(10)
    (outputs, data, problem, thread), (none, _, why, _) = calls
    np.testing.assert_array_equal(outputs[0], ONES * 6)
    assert data == {"key": 1} and problem == "" and thread is not threading.current_thread()
    assert none == [] and "INVALID_ARGUMENT" in why
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_async(None, {"x": ONES}, callback, None)


ENDLESS = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[n] x) => (float[n] last) {
        going = Constant<value = bool {1}> ()
        last = Loop("", going, x) <
            body = body (int64 i, bool on, float[n] state) => (bool next, float[n] new) {
                next = Identity(on)
                new = Neg(state)
            }
        >
    }"""


def test_terminate_from_another_thread():
    options = q7x2_ep.RunOptions()
    made = onnx.parser.parse_model(ENDLESS).SerializeToString()
    with q7x2_ep.InferenceSession(made) as session:
        timer = threading.Timer(0.2, lambda: setattr(options, "terminate", True))
        timer.start()
        start = time.monotonic()
        with pytest.raises(errors.Fail, match="terminate flag being set to true"):
            session.run(None, {"x": ONES[0]}, options)
        assert time.monotonic() - start < 10


COUNTED = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[n] x, int64 times, bool going) => (float[n] last) {
        last = Loop(times, going, x) <
            body = body (int64 i, bool on, float[n] state) => (bool next, float[n] new) {
                next = Identity(on)
                new = Neg(state)
            }
        >
    }"""
HOSTED = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[n] x) => (float[m] y) {
        seen = Unique(x)
        y = Neg(seen)
    }"""


@pytest.mark.parametrize("form", ["whole", "loop", "host", "compiled"])
def test_memory_is_free_once_a_session_is_let_go(form, tmp_path):
    made = {"loop": COUNTED, "host": HOSTED}.get(form)
    given = add() if made is None else onnx.parser.parse_model(made).SerializeToString()
    feed = FEED if made is None else {"x": ONES[0]}
    if form == "loop":
        feed |= {"times": np.int64(3), "going": np.bool_(True)}
    gc.collect()
    gc.disable()  # which would find it in a cycle, some time later
    try:
        session = q7x2_ep.InferenceSession(given)
        if form == "compiled":
            session._session.save(str(tmp_path / "compiled"))
            session = q7x2_ep.InferenceSession(str(tmp_path / "compiled"))
        for _ in range(3):
            session.run(None, feed)
        parts = [weakref.ref(session._session.program)]
        parts += [weakref.ref(executor) for executor in session._session.program.executors]
        del session
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_python_ops():
    options = q7x2_ep.SessionOptions()
    options.register_op("acme", "Twice", lambda x, by=1.0: x * np.float32(2 * by))
    options.register_op("acme", "Both", lambda x, y: (x + y, x - y))
    nodes = [
        node("Twice", "x", "t", domain="acme", by=3.0),
        node("Both", "t y", "p m", domain="acme"),
        node("Mul", "p m", "z"),
    ]
    inputs = [info("x", [2, 3]), info("y", ["N", 3])]
    made = model(nodes, inputs, [info("z", [2, 3])], domains=["acme"])
    with q7x2_ep.InferenceSession(made, options) as session:
        np.testing.assert_array_equal(session.run(None, FEED)[0], ONES * (6 + 2) * (6 - 2))
        np.testing.assert_array_equal(session.run(["t"], FEED)[0], ONES * 6)
    with pytest.raises(errors.NotImplemented, match="acme"):
        q7x2_ep.InferenceSession(made)
    for wrong in (("acme", 3, len), ("acme", "Twice", 3)):
        with pytest.raises(TypeError):
            options.register_op(*wrong)


def test_profile(tmp_path, session):
    assert session.end_profiling() == "" and session.get_profiling_start_time_ns() == 0
    options = q7x2_ep.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "prof")
    options.graph_optimization_level = q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL
    before = time.monotonic_ns()
    with q7x2_ep.InferenceSession(scaled(), options) as session:
        start = session.get_profiling_start_time_ns()
        assert before <= start <= time.monotonic_ns()
        np.testing.assert_array_equal(session.run(None, FEED)[0], ONES * 6)
        session.run(["s"], FEED)
        path = session.end_profiling()
        assert session.end_profiling() == "" and session.get_profiling_start_time_ns() == start
    assert path.startswith(str(tmp_path / "prof_2"))
    with open(path) as file:
        events = json.load(file)
    names = [event["name"] for event in events]
    assert names[:2] == ["model_loading_array", "session_initialization"]
    assert names.count("model_run") == names.count("SequentialExecutor::Execute") == 2
    nodes = [event for event in events if event["cat"] == "Node"]
    assert nodes and all(event["name"].endswith("_kernel_time") for event in nodes)
    assert {"add0", "mul0"} == {name for event in nodes for name in event["args"]["nodes"]}
    (added, *_) = (event["args"] for event in nodes if event["name"] == "add0_kernel_time")
    assert added["input_type_shape"] == [{"float": [2, 3]}] * 2
    assert added["output_type_shape"] == [{"float": [2, 3]}]
    assert added["kernel"].startswith("binary_any_")
    assert (added["op_name"], added["step"]) == ("Add", "binary")
    assert {event["args"]["op_name"] for event in nodes} == {"Add", "Mul"}
    keys = {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"}
    assert all(event.keys() == keys and event["dur"] >= 0 for event in events)
    assert all(event["args"]["provider"] == "CPUExecutionProvider" for event in nodes)


def test_profile_of_host_steps(tmp_path):
    options = q7x2_ep.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "prof")
    options.register_op("acme", "Same", lambda x: x)
    nodes = [node("Same", "x", "s", "the_node", domain="acme"), node("Unique", "s")]
    made = model(nodes, [info("x", [2, 3])], [info("z", [2, 3])], domains=["acme"])
    with q7x2_ep.InferenceSession(made, options) as session:
        session.run(None, {"x": ONES})
        with open(session.end_profiling()) as file:
            events = [event for event in json.load(file) if event["cat"] == "Node"]
    assert events[0]["name"] == "the_node_kernel_time"
    assert [event["args"]["op_name"] for event in events] == ["Same", "Unique"]


def test_assignment(session):
    with pytest.raises(errors.Fail, match="record_ep_graph_assignment_info"):
        session.get_provider_graph_assignment_info()
    options = q7x2_ep.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.graph_optimization_level = q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL
    with q7x2_ep.InferenceSession(scaled(), options) as session:
        (part,) = session.get_provider_graph_assignment_info()
    assert part.ep_name == "CPUExecutionProvider"
    assert [(n.name, n.domain, n.op_type) for n in part.get_nodes()] == [
        ("add0", "", "Add"),
        ("mul0", "", "Mul"),
    ]


def test_options_travel(session):
    options = q7x2_ep.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_initializer("w", q7x2_ep.OrtValue.ortvalue_from_numpy(W))
    made = q7x2_ep.InferenceSession(scaled(), options)
    again = pickle.loads(pickle.dumps(made))
    assert again.get_session_options().intra_op_num_threads == 2
    np.testing.assert_array_equal(again.run(None, FEED)[0], ONES * 15)


def test_options_of_the_model():
    made = onnx.load_from_string(add())
    helper.set_model_props(made, {"ort_config": '{"session_options": {"intra_op_num_threads": 1}}'})
    data = made.SerializeToString()
    with q7x2_ep.InferenceSession(data, read_config_from_model=1) as session:
        assert session.get_session_options().intra_op_num_threads == 1
    with q7x2_ep.InferenceSession(data) as session:
        assert session.get_session_options().intra_op_num_threads == 0


def configured(text):
    made = onnx.load_from_string(add())
    helper.set_model_props(made, {"ort_config": text})
    return made.SerializeToString()


@pytest.mark.parametrize("engine", ["q7x2_ep", "onnxruntime"])
def test_options_of_the_model_are_no_callers(engine, tmp_path, monkeypatch):
    api = pytest.importorskip(engine)
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")  # onnxruntime wants both,
    monkeypatch.chdir(tmp_path)  # and takes none of the caller's options then
    asked = {"intra_op_num_threads": 3, "graph_optimization_level": 0, "execution_mode": 1}
    text = json.dumps({"session_options": {**asked, "enable_profiling": 1, "other": "x"}})
    options = api.SessionOptions()
    options.profile_file_prefix, options.intra_op_num_threads = str(tmp_path / "prof"), 2
    session = api.InferenceSession(configured(text), options, read_config_from_model=1)
    taken = session.get_session_options()
    assert {name: int(getattr(taken, name)) for name in asked} == asked
    assert taken.enable_profiling and not options.enable_profiling
    assert options.intra_op_num_threads == 2
    assert options.graph_optimization_level == api.GraphOptimizationLevel.ORT_ENABLE_ALL
    session.run(None, FEED)
    with open(session.end_profiling()) as file:
        events = [event["name"] for event in json.load(file)]
    assert {"session_initialization", "model_run"} <= {*events}


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{", "expected JSON, given '{'"),
        ("[" * 100000, "expected JSON"),
        ("[1]", r"expected an object like .*given '\[1\]'"),
        ('{"session_options": 1}', "expected an object like"),
        ('{"session_options": {"graph_optimization_level": 98}}', "0, 1, 2, 3, 99, given 98"),
        ('{"session_options": {"execution_mode": 2}}', "execution_mode: expected 0, 1, given 2"),
        ('{"session_options": {"enable_profiling": "1"}}', "expected 0, 1, given '1'"),
        ('{"session_options": {"enable_profiling": true}}', "expected 0, 1, given True"),
        ('{"session_options": {"intra_op_num_threads": -1}}', "of 0 or more, given -1"),
    ],
)
def test_malformed_options_of_the_model(text, reason):
    with pytest.raises(errors.ModelError, match=rf"\[metadata 'ort_config'\] .*{reason}"):
        q7x2_ep.InferenceSession(configured(text), read_config_from_model=1)


def test_names_of_dims():
    nodes = [node("Add", "x y", "s"), node("Concat", "s s", "z", axis=0)]
    inputs = [info("x", ["N", None]), info("y", ["N", None])]
    with q7x2_ep.InferenceSession(model(nodes, inputs, [info("z", ["M", None])])) as session:
        assert [arg.shape for arg in session.get_inputs()] == [["N", None]] * 2
        assert session.get_outputs()[0].shape[0] == "M"


@pytest.mark.parametrize("name", ["N", "?"])
def test_dims_of_one_name_with_other_sizes(name):
    """onnxruntime does not compare them; where the nodes do not fit either, the name is in the
    error.
    """
    inputs = [info("x", [name, name]), info("y", [name, name])]
    with q7x2_ep.InferenceSession(
        model([node("MatMul", "x y")], inputs, [info("z", [name, name])])
    ) as session:
        for m, k, n in ((2, 2, 2), (2, 3, 5), (1, 4, 1)):
            x, y = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
            np.testing.assert_array_equal(session.run(None, {"x": x, "y": y})[0], x @ y)
        with pytest.raises(errors.ShapeError, match=r"\(N, N\): N is 2|MatMul") as raised:
            session.run(None, {"x": ONES, "y": ONES})
        assert name == "?" or raised.type is errors.IrregularFeed


def described(api):
    session = api.InferenceSession(add(), providers=["CPUExecutionProvider"])
    (z,), meta = session.run(None, FEED), session.get_modelmeta()
    fields = "description domain graph_description graph_name producer_name version"
    args = [*session.get_inputs(), *session.get_outputs()]
    return {
        "args": [(arg.name, arg.type, arg.shape) for arg in args],
        "repr": str(args[1]),
        "overridable": session.get_overridable_initializers(),
        "metadata": [getattr(meta, field) for field in (*fields.split(), "custom_metadata_map")],
        "providers": (session.get_providers(), session.get_provider_options()),
        "options": type(session.get_session_options()) is api.SessionOptions,
        "result": (type(z), z.dtype, z.flags.writeable, z.flags.c_contiguous),
        "device": (api.get_device(), "CPUExecutionProvider" in api.get_all_providers()),
    }


def test_what_a_session_says_of_itself():
    onnxruntime = pytest.importorskip("onnxruntime")
    assert described(q7x2_ep) == described(onnxruntime)


def test_metadata():
    with q7x2_ep.InferenceSession(add()) as session:
        meta = session.get_modelmeta()
    assert (meta.graph_name, meta.version, meta.custom_metadata_map) == ("g", 2**63 - 1, {})


@pytest.mark.parametrize("engine", ["q7x2_ep", "onnxruntime"])
def test_descriptions_are_nobody_elses(engine):
    """What a caller does to a list or dict of them changes no other's."""
    api = pytest.importorskip(engine)
    made = onnx.load_from_string(add())
    made.metadata_props.add(key="k", value="v")
    data = made.SerializeToString()
    session = api.InferenceSession(data, providers=["CPUExecutionProvider"])
    for arg in (session.get_inputs()[1], session.get_outputs()[0]):
        before = [*arg.shape]
        arg.shape[0] = 7
        assert arg.shape == before
        for field in ("name", "type", "shape"):
            with pytest.raises(AttributeError, match=r"no setter|can't set"):
                setattr(arg, field, getattr(arg, field))
    session.get_modelmeta().custom_metadata_map["k"] = "w"
    assert session.get_modelmeta().custom_metadata_map == {"k": "v"}
    meta = session.get_modelmeta()
    meta.custom_metadata_map = {"a": "b"}
    meta.custom_metadata_map.clear()
    assert meta.custom_metadata_map == {"a": "b"}


@pytest.mark.parametrize("engine", ["q7x2_ep", "onnxruntime"])
def test_dims_that_are_declared_negative(engine):
    api = pytest.importorskip(engine)
    made = model([node("Relu", "x")], [info("x", [-1, "N", -7])], [info("z", [-1, "N", -7])])
    session = api.InferenceSession(made, providers=["CPUExecutionProvider"])
    for (arg,) in (session.get_inputs(), session.get_outputs()):
        assert arg.shape == [None, "N", None]


@pytest.mark.parametrize("path, given", [("m.ort", ""), ("M.ORT", ""), ("m.onnx", "ORT")])
def test_format_of_onnxruntime(tmp_path, path, given):
    """Which it would write, is refused instead of written as ONNX."""
    options = q7x2_ep.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / path)
    options.add_session_config_entry("session.save_model_format", given)
    with pytest.raises(errors.BindingError, match=rf"{path}' in format ORT.*ends in \.onnx"):
        q7x2_ep.InferenceSession(add(), options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "domain, op, opset, is_called",
    [
        ("", "Relu", 17, False),
        ("ai.onnx", "Relu", 17, False),
        ("", "HardSwish", 17, False),  # which the standard defines by other ops
        ("", "Gelu", 20, False),
        ("", "Swish", 24, False),
        ("com.microsoft", "Gelu", 17, False),
        ("com.microsoft", "QuickGelu", 17, False),
        ("com.microsoft", "FastGelu", 17, False),
        ("ai.onnx.ml", "Normalizer", 17, False),
        ("com.microsoft", "NotThere", 17, True),
        ("com.microsoft", "RMSNormalization", 17, True),  # of the standard's domain alone
        ("acme", "Relu", 17, True),
    ],
)
@pytest.mark.parametrize("engine", ["q7x2_ep", "onnxruntime"])
def test_functions_that_have_the_name_of_an_op(engine, domain, op, opset, is_called):
    """Are called where their domain has no such op."""
    api = pytest.importorskip(engine)
    domains = [domain] if domain not in ("", "ai.onnx") else []
    nodes = [node(op, "x", domain=domain)]
    made = onnx.load_from_string(
        model(nodes, [info("x", [1, 2])], [info("z", [1, 2])], opset=opset, domains=domains)
    )
    opsets = [helper.make_opsetid("", opset)]
    negated = [node("Neg", "x")]
    made.functions.append(helper.make_function(domain, op, ["x"], ["z"], negated, opsets))
    session = api.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([[1, -2]], np.float32)
    (z,) = session.run(None, {"x": x})
    assert np.array_equal(z, -x) == is_called


def test_global_threads():
    options = q7x2_ep.SessionOptions()
    options.use_per_session_threads = False
    q7x2_ep.set_global_thread_pool_sizes(1, 1)
    try:
        with q7x2_ep.InferenceSession(add(), options) as session:
            assert session._session.threads == 1
    finally:
        q7x2_ep.set_global_thread_pool_sizes(0)


def test_seed():
    nodes = [helper.make_node("RandomNormal", [], ["z"], shape=[64])]
    made = model(nodes, [], [info("z", [64])])

    def draw() -> np.ndarray:
        with q7x2_ep.InferenceSession(made) as session:
            return session.run(None, {})[0]

    assert not np.array_equal(draw(), draw())
    q7x2_ep.set_seed(3)
    try:
        np.testing.assert_array_equal(draw(), draw())
    finally:
        from q7x2_ep.api import environment

        environment._seed = None


def test_providers_that_are_set(session):
    with pytest.warns(UserWarning, match="CUDA"):
        session.set_providers(["CUDAExecutionProvider"])
    wrong = pytest.raises(RuntimeError, match="Unknown Provider Type: Bogus")
    with pytest.warns(UserWarning, match="Bogus"), wrong:
        session.set_providers(["CPUExecutionProvider", ("Bogus", {})])


def test_compiler(tmp_path):
    options = q7x2_ep.SessionOptions()
    levels = q7x2_ep.GraphOptimizationLevel
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
        compiler = q7x2_ep.ModelCompiler(options, scaled(), graph_optimization_level=level)
        parts: list[bytes] = []
        compiler.compile_to_stream(parts.append)
        with q7x2_ep.InferenceSession(b"".join(parts)) as session:
            np.testing.assert_array_equal(session.run(None, FEED)[0], ONES * 6)
        with pytest.raises(errors.Fail, match="division by zero"):
            compiler.compile_to_stream(lambda part: 1 / 0)
    path = tmp_path / "model.onnx"
    path.write_bytes(scaled())
    q7x2_ep.ModelCompiler(
        options,
        path,
        external_initializers_file_path="weights.bin",
        external_initializers_size_threshold=1,
    ).compile_to_file()
    with q7x2_ep.InferenceSession(tmp_path / "model_ctx.onnx") as session:
        np.testing.assert_array_equal(session.run(None, FEED)[0], ONES * 6)
    asked: list[str] = []
    q7x2_ep.ModelCompiler(
        options, path, get_initializer_location_func=lambda name, value, place: asked.append(name)
    ).compile_to_bytes()
    assert asked == ["w"]
    options.add_free_dimension_override_by_name("N", 2)
    options.add_initializer("w", q7x2_ep.OrtValue.ortvalue_from_numpy(W))
    fixed = onnx.load_from_string(q7x2_ep.ModelCompiler(options, path).compile_to_bytes())
    assert [dim.dim_value for dim in fixed.graph.input[1].type.tensor_type.shape.dim] == [2, 3]
    assert onnx.numpy_helper.to_array(fixed.graph.initializer[0]) == W
    flags = q7x2_ep.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
    with pytest.raises(errors.InvalidArgument, match="exists already"):
        q7x2_ep.ModelCompiler(options, path, flags=flags).compile_to_file()
    with pytest.raises(ValueError):
        q7x2_ep.ModelCompiler(options, b"")
    compiler = q7x2_ep.ModelCompiler(options, path, external_initializers_file_path="nowhere/w.bin")
    kept = tmp_path / "kept.onnx"
    kept.write_bytes(b"what was there")
    for target in (tmp_path / "nowhere" / "y.onnx", kept):
        with pytest.raises(errors.ModelError, match=r"cannot write '.*nowhere.*': No such file"):
            compiler.compile_to_file(target)
    assert kept.read_bytes() == b"what was there"


def test_threads_that_ask_for_one_form_at_once(monkeypatch):
    """All but one of the sessions that they compile are closed at once."""
    made, compiled = [], q7x2_ep.InferenceSession._compile
    together = threading.Barrier(3)

    def compile(self, *args, **options):
        session = compiled(self, *args, **options)
        made.append(session)
        together.wait(10)
        return session

    with q7x2_ep.InferenceSession(scaled()) as session:
        monkeypatch.setattr(q7x2_ep.InferenceSession, "_compile", compile)
        feed = {**FEED, "w": W}
        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(lambda _: session.run(None, feed)[0], range(3)))
        for result in results:
            np.testing.assert_array_equal(result, results[0])
        assert [each.program.is_closed for each in made].count(False) == 1
    assert all(each.program.is_closed for each in made)


def test_inputs_that_are_declared_as_scalars():
    """May have any shape: onnxscript so declares what has no shape, and onnxruntime lets them."""
    nodes = [node("Transpose", "x", "t"), node("Mul", "t y", "z")]
    wrong = model(nodes, [info("x", []), info("y", [])], [info("z", [])])
    theirs = pytest.importorskip("onnxruntime").InferenceSession(wrong)
    with q7x2_ep.InferenceSession(wrong) as session:
        for shape in ((2, 3), (), (4,), (2, 3)):
            x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
            feed = {"x": x, "y": np.array(2, np.float32)}
            (z,), (wanted,) = session.run(None, feed), theirs.run(None, feed)
            np.testing.assert_array_equal(z, wanted)
            assert z.shape == wanted.shape == x.T.shape
        with pytest.raises(errors.ShapeError, match="Invalid rank for input: x"):
            session.run(None, {"x": np.ones((2, 3), np.float32), "y": np.ones(7, np.float32)})


@pytest.mark.parametrize("rows", [None, "n"])
@pytest.mark.parametrize("declared", [None, [None, None], ["m", None]])
@pytest.mark.parametrize("op", ["Relu", "NonZero", "Concat", "Transpose"])
@pytest.mark.parametrize("engine", ["q7x2_ep", "onnxruntime"])
def test_dims_without_a_name(engine, rows, declared, op):
    """Are the model's own: what has none there has None, also where inference knows more."""
    api = pytest.importorskip(engine)
    how = {"axis": 0} if op == "Concat" else {}
    node = helper.make_node(op, ["x"] * (2 if how else 1), ["y"], **how)
    dtype = TensorProto.INT64 if op == "NonZero" else TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])],
        [helper.make_tensor_value_info("y", dtype, declared)],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    options = api.SessionOptions()
    options.log_severity_level = 4  # m is said of 2
    session = api.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given = "m" if declared and declared[0] else None
    wanted = {
        "Relu": [given or rows, 4],
        "NonZero": [2, None],
        "Concat": [given, 4],
        "Transpose": [4, rows],
    }
    assert session.get_inputs()[0].shape == [rows, 4]
    assert session.get_outputs()[0].shape == wanted[op]


def test_run_async_reads_the_dict_at_once(session):
    feed, results, done = dict(FEED), [], threading.Semaphore(0)

    def callback(outputs, user_data, problem):
        results.append((outputs, problem))
        done.release()

    for _ in range(50):
        session.run_async(None, feed, callback, None)
        feed["x"] = ONES * 100
        feed.clear()
        feed.update(FEED)
    for _ in range(50):
        assert done.acquire(timeout=10)
    for outputs, problem in results:
        assert problem == ""
        np.testing.assert_array_equal(outputs[0], ONES * 6)
    with pytest.raises(TypeError, match="callback"):
        session.run_async(None, FEED, None, None)


def test_a_defaultdict_gives_no_defaults():
    feed = collections.defaultdict(lambda: ONES, x=ONES, y=ONES)
    session = q7x2_ep.InferenceSession(add())
    for _ in range(3):
        session.run(None, feed)
    del feed["y"]
    feed["other"] = ONES
    with pytest.raises(ValueError, match=r"y"):
        session.run(None, feed)
    assert "y" not in feed


def test_options_that_ask_for_nothing():
    session, options = q7x2_ep.InferenceSession(add()), q7x2_ep.RunOptions()
    for names in (None, ["z"], ("z",)):
        (z,) = session.run(names, {"x": ONES, "y": ONES}, options)
        np.testing.assert_array_equal(z, ONES * 2)
    options.terminate = True
    with pytest.raises(errors.RunTerminated):
        session.run(None, {"x": ONES, "y": ONES}, options)
    options.terminate, options.log_severity_level = False, 9
    with pytest.raises(errors.BindingError):
        session.run(None, {"x": ONES, "y": ONES}, options)


def test_a_python_op_may_use_its_memory_again():
    memory = np.empty((2, 3), np.float32)

    def twice(x):
        return np.multiply(x, 2, out=memory)

    options = q7x2_ep.SessionOptions()
    options.register_op("mine", "Twice", twice)
    nodes = [node("Twice", "x", "u", domain="mine"), node("Twice", "u", "v", domain="mine")]
    data = model(
        [*nodes, node("Add", "u v")], [info("x", [2, 3])], [info("z", None)], domains=["mine"]
    )
    session = q7x2_ep.InferenceSession(data, options)
    (first,) = session.run(None, {"x": ONES})
    session.run(None, {"x": ONES * 5})
    np.testing.assert_array_equal(first, ONES * 6)


def test_memory_that_cannot_be_written(session):
    fixed = np.zeros((2, 3), np.float32)
    fixed.flags.writeable = False
    for _ in range(3):
        binding = session.io_binding()
        for name, array in FEED.items():
            binding.bind_cpu_input(name, array)
        value = q7x2_ep.OrtValue.ortvalue_from_numpy(fixed)
        value._data.flags.writeable = False
        binding.bind_ortvalue_output("z", value)
        with pytest.raises(errors.BindingError, match=r"'z'.*read-only"):
            session.run_with_iobinding(binding)
    with pytest.raises(errors.BindingError, match="below 0"):
        session.io_binding().bind_output("z", "cpu", 0, np.float32, (-1, 3), fixed.ctypes.data)
    with pytest.raises(errors.BindingError, match="no memory"):
        q7x2_ep.OrtValue.ortvalue_from_shape_and_type([1 << 40, 1 << 40], np.float32)


def test_closing_where_a_profile_cannot_be_written(tmp_path):
    options = q7x2_ep.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "missing" / "profile")
    session = q7x2_ep.InferenceSession(scaled(), options)
    with pytest.raises(FileNotFoundError):
        session.close()
    for names in (None, ["s"]):
        with pytest.raises(errors.BackendError, match="closed"):
            session.run(names, FEED)


def test_pickles_of_what_is_in_memory(tmp_path):
    options = q7x2_ep.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [b"abcd"], [4])
    again = pickle.loads(pickle.dumps(options))
    assert bytes(again._files["w.bin"]) == b"abcd"
    session = q7x2_ep.InferenceSession(memoryview(scaled()))
    (z,) = pickle.loads(pickle.dumps(session)).run(None, FEED)
    np.testing.assert_array_equal(z, ONES * 6)


def test_a_model_from_a_pipe():
    reads, writes = os.pipe()
    with open(writes, "wb") as file:
        file.write(add())
    (z,) = q7x2_ep.InferenceSession(f"/dev/fd/{reads}").run(None, {"x": ONES, "y": ONES})
    os.close(reads)
    np.testing.assert_array_equal(z, ONES * 2)


def test_more_threads_than_a_pool_has():
    options = q7x2_ep.SessionOptions()
    options.intra_op_num_threads = 100_000
    assert q7x2_ep.InferenceSession(add(), options)._session.threads == 256
