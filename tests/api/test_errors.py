"""What clients get wrong, case by case, in onnxruntime and here: the class that is raised there, or
a subclass of it, and a message that names what is wrong.

`wanted` is onnxruntime's class, "" where it accepts the case. `more` marks what it refuses and we
do. Where onnxruntime is installed, the table is held against it too.
"""

from __future__ import annotations

import builtins
import copy
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import q7x2_ep
from q7x2_ep import errors
from tests.api.models import ONES, add, info, model, node, one

INT64, STRING = TensorProto.INT64, TensorProto.STRING
FEED = {"x": ONES, "y": ONES}


class Case(NamedTuple):
    run: Callable[[Any], Any]  # with the module that is tested
    wanted: str = ""
    words: tuple[str, ...] = ()  # of our message
    more: bool = False


def feed(wanted: str = "", *words: str, more: bool = False, **values: Any) -> Case:
    """A feed of add(); what is not given is right."""
    return Case(lambda api: run(api, add(), {**FEED, **values}), wanted, words, more)


def load(source: Any, wanted: str = "", *words: str, more: bool = False) -> Case:
    return Case(lambda api: session(api, source), wanted, words, more)


def session(api: Any, source: Any, *options: Any, **more: Any) -> Any:
    return api.InferenceSession(source, *options, **more)


def run(api: Any, source: Any, values: Any, names: Any = None, *options: Any) -> Any:
    return session(api, source).run(names, values, *options)


def outputs(names: Any, wanted: str = "", *words: str, more: bool = False) -> Case:
    return Case(lambda api: run(api, add(), FEED, names), wanted, words, more)


def file(content: Any, wanted: str, *words: str) -> Case:
    """A model file of this content; None for a folder."""

    def case(api: Any) -> Any:
        path = Path(api.folder) / ("folder" if content is None else "model.onnx")
        path.mkdir() if content is None else path.write_bytes(content)
        return session(api, str(path))

    return Case(case, wanted, words)


def options(case: Callable[[Any, Any], Any], wanted: str = "", *words: str, more=False) -> Case:
    return Case(lambda api: case(api, api.SessionOptions()), wanted, words, more)


def binding(case: Callable[[Any, Any, Any], Any], wanted: str = "", *words: str) -> Case:
    """case(api, session, its binding with x bound)."""

    def bound(api: Any) -> Any:
        made = session(api, add())
        made_binding = made.io_binding()
        made_binding.bind_cpu_input("x", ONES)
        return case(api, made, made_binding)

    return Case(bound, wanted, words)


def two_axes(op: str = "Add") -> bytes:
    inputs = [info("x", ["a", "b"]), info("y", ["c", "d"])]
    return model([node(op, "x y", name="the_node")], inputs, [info("z", None)])


def typed(**changes: Any) -> bytes:
    """add() with fields of the model changed."""
    made = onnx.load_from_string(add())
    for name, value in changes.items():
        setattr(made, name, value)
    return made.SerializeToString()


def opset(version: int, domain: str = "") -> bytes:
    made = onnx.load_from_string(add())
    if domain:
        made.opset_import.add(domain=domain, version=version)
    else:
        made.opset_import[0].version = version
    return made.SerializeToString()


def calling(version: int) -> bytes:
    """add() by a function of this opset."""
    made = onnx.load_from_string(add())
    body, opsets = [node("Add", "x y")], [onnx.helper.make_opsetid("", version)]
    made.functions.append(onnx.helper.make_function("acme", "F", ["x", "y"], ["z"], body, opsets))
    made.graph.node[0].domain, made.graph.node[0].op_type = "acme", "F"
    made.opset_import.add(domain="acme", version=1)
    return made.SerializeToString()


def no_opset() -> bytes:
    made = onnx.load_from_string(add())
    del made.opset_import[:]
    return made.SerializeToString()


def terminated(api: Any) -> Any:
    run_options = api.RunOptions()
    run_options.terminate = True
    return run(api, add(), FEED, None, run_options)


def torch_tensor(api: Any) -> Any:
    torch = pytest.importorskip("torch")
    return run(api, add(), {"x": torch.ones(2, 3), "y": ONES})


def set_field(name: str, value: Any) -> Callable[[Any, Any], None]:
    return lambda api, options: setattr(options, name, value)


def free_dim(api: Any, options: Any) -> Any:
    options.add_free_dimension_override_by_name("N", 2)
    assert session(api, add(), options).get_inputs()[1].shape == [2, 3]


def with_threads(api: Any, options: Any) -> Any:
    options.intra_op_num_threads = -1
    return session(api, add(), options)


def bind_all(api: Any, made: Any, made_binding: Any) -> None:
    made_binding.bind_cpu_input("y", ONES)
    made_binding.bind_output("z")
    made.run_with_iobinding(made_binding)
    assert made_binding.copy_outputs_to_cpu()[0].tolist() == [[2.0] * 3] * 2


def bind_too_little(api: Any, made: Any, made_binding: Any) -> None:
    made_binding.bind_output("z")
    made.run_with_iobinding(made_binding)


def configured(key: str, value: str, **fields: Any) -> Callable[[Any, Any], Any]:
    """A session whose options have an entry and fields."""

    def case(api: Any, options: Any) -> Any:
        options.add_session_config_entry(key, value)
        for name, content in fields.items():
            content = str(Path(api.folder) / content) if "path" in name else content
            setattr(options, name, content)
        return session(api, add(), options)

    return case


def run_options(
    wanted: str = "", *words: str, level: int = -1, more: bool = False, **entries: str
) -> Case:
    """A run with entries, whose keys have _ for dots, and a level of logging."""

    def case(api: Any) -> Any:
        made = api.RunOptions()
        made.log_severity_level = level
        for key, value in entries.items():
            made.add_run_config_entry(key.replace("__", "."), value)
        return run(api, add(), FEED, None, made)

    return Case(case, wanted, words, more)


def shrunk(devices: str, wanted: str = "", *words: str) -> Case:
    return run_options(wanted, *words, memory__enable_memory_arena_shrinkage=devices)


LOAD, SAVE = "session.load_model_format", "session.save_model_format"
X, Y = info("x", [2, 3]), info("y", ["N", 3])
Z = info("z", None)
INDEXED = one("Gather", info("data", [2, 3]), info("i", ["n"], INT64))
RESHAPED = one("Reshape", info("data", ["n", 3]), info("i", [2], INT64))

CASES = {
    "missing_input": Case(
        lambda api: run(api, add(), {"x": ONES}),
        "ValueError",
        ("Required inputs (['y']) are missing from input feed (['x'])",),
    ),
    "extra_input": feed("InvalidArgument", "Invalid input name: q", "x", "y", q=ONES),
    "wrong_input_name": Case(
        lambda api: run(api, add(), {"x": ONES, "yy": ONES}),
        "ValueError",
        ("Required inputs (['y']) are missing from input feed (['x', 'yy'])",),
    ),
    "empty_feed": Case(
        lambda api: run(api, add(), {}),
        "ValueError",
        ("Required inputs (['x', 'y']) are missing from input feed ([])",),
    ),
    "wrong_rank": feed(
        "InvalidArgument", "Invalid rank for input: x Got: 1 Expected: 2", x=ONES[0]
    ),
    "wrong_shape": feed(
        "InvalidArgument",
        "invalid dimensions for input: x",
        "Got: 3 Expected: 2",
        x=ONES[[0, 0, 0]],
    ),
    "wrong_two_dims": feed(
        "InvalidArgument", "input: x", "index: 0", "(5, 7)", x=np.ones((5, 7), np.float32)
    ),
    "wrong_dtype": feed(
        "InvalidArgument",
        "Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float))",
        "'x'",
        x=ONES.astype(np.float64),
    ),
    "wrong_dtype_int": feed(
        "InvalidArgument", "'x'", "tensor(int64)", "tensor(float)", x=ONES.astype(np.int64)
    ),
    "python_list": feed(x=ONES.tolist()),
    "python_scalar": Case(
        lambda api: run(api, one("Neg", info("x", [])), {"x": 2.0}), "RuntimeError", more=True
    ),
    "numpy_scalar": Case(
        lambda api: run(api, one("Neg", info("x", [])), {"x": np.float32(2)}),
        "RuntimeError",
        more=True,
    ),
    "None_value": feed("Fail", "Missing Input: x", "tensor(float)", "None", x=None),
    "feed_not_dict": Case(lambda api: run(api, add(), [ONES, ONES]), "AttributeError", ("list",)),
    "noncontig_ok": feed(x=np.ones((4, 6), np.float32)[::2, ::2]),
    "fortran_order_value": feed(x=np.asfortranarray(ONES)),
    "big_endian": feed(x=ONES.astype(">f4")),
    "unknown_output": outputs(["nope"], "InvalidArgument", "Invalid output name: nope", "'z'"),
    "output_str": outputs("z", "TypeError", "output_names", "'z'"),
    "empty_outputs": outputs([]),
    "dup_outputs": outputs(["z", "z"]),
    "dynamic_broadcast_fail": Case(
        lambda api: run(api, two_axes(), {"x": ONES, "y": ONES[:, :2]}),
        "Fail",
        ("the_node", "b", "d=2"),
    ),
    "matmul_dim_mismatch_runtime": Case(
        lambda api: run(api, two_axes("MatMul"), {"x": ONES, "y": ONES}),
        "Fail",
        ("the_node", "3", "2"),
    ),
    "missing_file": load("/nonexistent/model.onnx", "NoSuchFile", "/nonexistent/model.onnx"),
    "missing_file_Path": load(
        Path("/nonexistent/model.onnx"),
        "NoSuchFile",
        "Load model from /nonexistent/model.onnx failed",
        "File doesn't exist",
    ),
    "directory": file(None, "InvalidProtobuf", "folder", "directory"),
    "corrupt_file": file(b"\xff" * 99, "InvalidProtobuf", "model.onnx", "Protobuf parsing failed"),
    "empty_file": file(b"", "InvalidArgument", "No graph was found in the protobuf", "model.onnx"),
    "corrupt_bytes": load(b"\xff" * 99, "InvalidProtobuf", "Protobuf parsing failed"),
    "truncated_bytes": load(add()[:-9], "InvalidProtobuf", "cut off"),
    "empty_bytes": load(b"", "InvalidArgument", "No graph was found in the protobuf"),
    "bad_arg_type": load(3, "TypeError", "Unable to load from type '<class 'int'>'"),
    "ModelProto_direct": load(onnx.load_from_string(add()), "TypeError", more=True),
    "no_arg": Case(lambda api: api.InferenceSession(), "TypeError", ("path_or_bytes",)),
    "unknown_op": load(one("FooBar", X), "InvalidGraph", "FooBar", "the_node"),
    "unknown_domain_imported": load(
        model([node("Foo", "x", name="foo", domain="my.dom")], [X], [Z], domains=["my.dom"]),
        "Fail",
        "my.dom",
        "Foo",
    ),
    "unknown_domain_not_imported": load(
        model([node("Foo", "x", name="foo", domain="my.dom")], [X], [Z]),
        "InvalidGraph",
        "my.dom",
        "foo",
    ),
    "no_kernel_type": load(
        one("Acos", info("x", [2], TensorProto.DOUBLE), kind=TensorProto.DOUBLE),
        "NotImplemented",
        more=True,
    ),
    "no_kernel_op": load(
        model(
            [node("ImageDecoder", "x", name="the_node")],
            [info("x", ["n"], TensorProto.UINT8)],
            [info("z", None, TensorProto.UINT8)],
            opset=20,
            ir_version=9,
        ),
        "NotImplemented",
        more=True,
    ),
    "opset_too_new": load(opset(99), "Fail", "opset 99 of ai.onnx", "known is 28"),
    "opset_unreleased": load(opset(29), "Fail", "opset 29 of ai.onnx", "known is 28"),
    "opset_28": load(opset(28)),
    **{
        f"opset_{version}_of_{domain}": load(opset(version, domain))
        for domain, version in (("ai.onnx.ml", 5), ("com.microsoft", 1), ("acme", 99))
    },
    **{
        f"opset_{version}_of_{domain}": load(
            opset(version, domain), "Fail", f"opset {version} of {domain}", f"known is {known}"
        )
        for domain, version, known in (
            ("ai.onnx.ml", 6, 5),
            ("ai.onnx.training", 2, 1),
            ("com.microsoft", 2, 1),
        )
    },
    "opset_of_a_function": load(calling(29), "Fail", "opset 29 of ai.onnx", "known is 28"),
    "opset_28_of_a_function": load(calling(28)),
    "ir_too_new": load(typed(ir_version=99), "Fail", "IR version: 99", "version: 14"),
    "ir_14": load(typed(ir_version=14)),
    "ir_15": load(typed(ir_version=15), "Fail", "IR version: 15", "version: 14"),
    "opset_1": load(opset(1), "NotImplemented", more=True),
    "opset_6": load(opset(6), "NotImplemented", more=True),
    "no_opset_import": load(no_opset(), "Fail", "Missing opset in the model"),
    "type_mismatch_graph": load(
        model([node("Add", "x y", name="a")], [X, info("y", [2, 3], INT64)], [Z]),
        "Fail",
        "Add a",
        "tensor(float)",
        "tensor(int64)",
    ),
    "shape_inference_error": load(
        model([node("MatMul", "x x", name="a")], [X], [Z]), "Fail", "MatMul a", "3"
    ),
    "dangling_input": load(
        model([node("Add", "x nope", name="a")], [X], [Z]), "InvalidArgument", "nope", "a"
    ),
    "missing_graph_output": load(
        model([node("Relu", "x", "other")], [X], [Z]), "Fail", "graph's outputs", "z"
    ),
    "cycle": load(
        model(
            [node("Add", "x b", "a", "one"), node("Relu", "a", "b", "two")], [X], [info("b", None)]
        ),
        "Fail",
        "two",
        "produces a",
    ),
    "duplicate_output_name": load(
        model([node("Relu", "x"), node("Neg", "x")], [X], [Z]), "Fail", "z", "twice"
    ),
    "bad_attr": load(
        one("Relu", X, foo=1),
        "InvalidGraph",
        "Unrecognized attribute: foo for operator Relu",
        "the_node",
    ),
    "bad_operand_type": load(
        one("Relu", info("x", [2], TensorProto.BOOL), kind=TensorProto.BOOL),
        "InvalidGraph",
        "Type Error: Type 'tensor(bool)' of input parameter (x) of operator (Relu) in node",
    ),
    "missing_required_attr": load(one("Cast", X), "InvalidGraph", "the_node", "to"),
    "declared_out_shape_wrong": Case(
        lambda api: run(api, model([node("Relu", "x")], [X], [info("z", [7])]), {"x": ONES})
    ),
    "declared_out_type_wrong": load(
        model([node("Relu", "x", name="the_node")], [X], [info("z", [2, 3], INT64)]),
        "Fail",
        "tensor(int64)",
        "tensor(float)",
        "z",
    ),
    "gather_oob": Case(
        lambda api: run(api, INDEXED, {"data": ONES, "i": np.array([5])}),
        "InvalidArgument",
        ("the_node", "5", "2"),
    ),
    "reshape_bad": Case(
        lambda api: run(api, RESHAPED, {"data": ONES, "i": np.array([4, 4])}),
        "Fail",
        ("the_node", "4"),
    ),
    "provider_unknown": Case(lambda api: session(api, add(), providers=["FooExecutionProvider"])),
    "provider_CUDA_unavailable": Case(
        lambda api: session(
            api, add(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
        ).get_providers()
    ),
    "providers_none": Case(lambda api: session(api, add(), providers=None)),
    "provider_options_mismatch": Case(
        lambda api: session(
            api, add(), providers=["CPUExecutionProvider"], provider_options=[{}, {}]
        )
    ),
    "provider_options_strict": Case(
        lambda api: session(
            api, add(), None, ["CPUExecutionProvider"], [{}, {}], enable_fallback=0
        ),
        "ValueError",
        ("same length", "1", "2"),
    ),
    "pickle_session": Case(
        lambda api: pickle.loads(pickle.dumps(session(api, add()))), "TypeError", more=True
    ),
    "deepcopy_session": Case(
        lambda api: copy.deepcopy(session(api, add())), "TypeError", more=True
    ),
    "pickle_sessionoptions": options(
        lambda api, made: pickle.loads(pickle.dumps(made)), "TypeError", more=True
    ),
    "options_of_another_type": Case(
        lambda api: session(api, add(), {"threads": 1}), "TypeError", ("SessionOptions", "dict")
    ),
    "set_bad_opt_level": options(
        set_field("graph_optimization_level", 99),
        "TypeError",
        "graph_optimization_level",
        "GraphOptimizationLevel",
        "99",
    ),
    "set_float_threads": options(
        set_field("intra_op_num_threads", 1.0), "TypeError", "intra_op_num_threads", "int", "1.0"
    ),
    "set_number_logid": options(set_field("logid", 1), "TypeError", "logid", "str", "1"),
    "set_unknown_field": options(set_field("threads", 1), "AttributeError", "'threads'"),
    "intra_threads_neg": options(with_threads),
    "add_session_config_bad_type": options(
        lambda api, made: made.add_session_config_entry("a", 1), "TypeError", "value", "str", "1"
    ),
    "session_config_key_empty": options(configured("", "v"), "RuntimeError", "1024", "0 bytes"),
    "session_config_key_longest": options(configured("k" * 1024, "v" * 8192)),
    "session_config_key_long": options(configured("k" * 1025, "v"), "RuntimeError", "1024", "1025"),
    "session_config_value_long": options(
        configured("k", "v" * 8193), "RuntimeError", "8192", "8193", "'k'"
    ),
    "run_config_key_long": Case(
        lambda api: api.RunOptions().add_run_config_entry("k" * 1025, ""),
        "RuntimeError",
        ("1024", "1025"),
    ),
    "run_config_key_empty": Case(
        lambda api: api.RunOptions().add_run_config_entry("", "v"), "RuntimeError", ("1024",)
    ),
    **{f"shrink_{name}": shrunk(name) for name in ("cpu:0", "cpu", "", "cpu:0;cpu:0;", "cpu:00")},
    **{
        f"shrink_{name}": shrunk(name, "InvalidArgument", "expected cpu:0", repr(name))
        for name in ("gpu:0", "cpu:0;gpu:0", "cpu:1", "nope", "cpu:x", "CPU:0", ";cpu:0", "cpu:-1")
    },
    **{f"run_level_{level}": run_options(level=level) for level in (-1, 0, 4)},
    **{
        f"run_level_{level}": run_options("Fail", "0 verbose .. 4 fatal", str(level), level=level)
        for level in (-2, 5, 99)
    },
    **{
        f"session_level_{level}": options(
            configured("k", "v", log_severity_level=level),
            "RuntimeError",
            "0 verbose .. 4 fatal",
            str(level),
        )
        for level in (-2, 5, 99)
    },
    "load_format_ort": options(configured(LOAD, "ORT"), "Fail", LOAD, "given ORT"),
    "load_format_onnx": options(configured(LOAD, "ONNX")),
    "save_format_ort": options(configured(SAVE, "ORT")),
    "save_format_onnx": options(configured(SAVE, "ONNX", optimized_model_filepath="m.ort")),
    "get_session_config_missing": options(
        lambda api, made: made.get_session_config_entry("nope"), "RuntimeError", "nope"
    ),
    "register_custom_ops_missing": options(
        lambda api, made: made.register_custom_ops_library("/nope.so"),
        "Fail",
        "Failed to load library /nope.so",
    ),
    "free_dim_override_ok": options(free_dim),
    "ortvalue_wrong": Case(
        lambda api: session(api, add()).run_with_ort_values(
            None, {"x": api.OrtValue.ortvalue_from_numpy(ONES)}
        ),
        "ValueError",
        ("Required inputs (['y'])",),
    ),
    "run_with_ort_values_ok": Case(
        lambda api: session(api, add()).run_with_ort_values(
            None, {name: api.OrtValue.ortvalue_from_numpy(ONES) for name in "xy"}
        )
    ),
    "run_mixed_ortvalue": Case(
        lambda api: run(api, add(), {"x": api.OrtValue.ortvalue_from_numpy(ONES), "y": ONES})
    ),
    "torch_tensor": Case(torch_tensor, "RuntimeError", more=True),
    "terminate_flag": Case(
        terminated, "Fail", ("Exiting due to terminate flag being set to true",)
    ),
    "string_to_float": feed(
        "InvalidArgument", "'x'", "tensor(string)", "tensor(float)", x=np.array([["a"] * 3] * 2)
    ),
    "iobinding_ok": binding(bind_all),
    "iobinding_missing_input": binding(bind_too_little, "RuntimeError", "Error in execution", "y"),
    "iobinding_bad_name": binding(
        lambda api, made, bound: bound.bind_cpu_input("nope", ONES),
        "RuntimeError",
        "Failed to find NodeArg with name: nope",
        "x",
    ),
    "iobinding_bad_output": binding(lambda api, made, bound: bound.bind_output("nope")),
    "iobinding_other_session": binding(
        lambda api, made, bound: session(api, add()).run_with_iobinding(bound),
        "ValueError",
        "session that created it",
    ),
    "iobinding_address_without_type": binding(
        lambda api, made, bound: bound.bind_output("z", buffer_ptr=ONES.ctypes.data),
        "ValueError",
        "`element_type` and `shape` are to be provided",
        "z",
    ),
    "end_profiling_disabled": Case(lambda api: session(api, add()).end_profiling()),
}


def attempt(api: Any, case: Case) -> BaseException | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.run(api)
    except Exception as error:
        return error
    return None


def module(name: str, folder: Path) -> Any:
    """The module under test, with a folder of its own."""
    api = type(sys)(name)
    api.__dict__.update(vars(q7x2_ep if name == "q7x2_ep" else pytest.importorskip(name)))
    api.folder = folder
    return api


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ours(case: Case, tmp_path: Path) -> None:
    error = attempt(module("q7x2_ep", tmp_path), case)
    if case.more or not case.wanted:
        assert error is None
        return
    wanted = getattr(errors, case.wanted, None) or getattr(builtins, case.wanted)
    assert isinstance(error, wanted), f"{type(error).__name__}: {error}"
    for word in case.words:
        assert word in str(error)
    assert str(error).count("[ONNXRuntimeError]") == isinstance(error, q7x2_ep.Q7Error)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_theirs(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says what onnxruntime does."""
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    error = attempt(module("onnxruntime", tmp_path), case)
    assert (type(error).__name__ if error else "") == case.wanted


TEXT = one("Identity", info("x", ["n"], STRING), kind=STRING)


def kept(api: Any) -> Any:
    """Whether an output is the caller's: it can be written, and is not the feed."""
    given = ONES.copy()
    (z,) = run(api, one("Identity", X), {"x": given})
    return bool(z.flags.writeable), np.shares_memory(z, given)


def described(api: Any) -> Any:
    made = session(api, add())
    meta = made.get_modelmeta()
    return (
        [(arg.name, arg.type, arg.shape) for arg in (*made.get_inputs(), *made.get_outputs())],
        str(made.get_inputs()[1]),
        {name: getattr(meta, name) for name in dir(meta) if name[0] != "_"},
        made.get_provider_options()["CPUExecutionProvider"],
        type(made.get_session_options()).__name__,
        made.get_overridable_initializers(),
    )


SAME = {
    "string_identity_U": lambda api: run(api, TEXT, {"x": np.array(["a", "bc"])})[0].tolist(),
    "string_identity_obj": lambda api: run(api, TEXT, {"x": np.array(["a"], object)})[0].dtype,
    "scalar_output": lambda api: run(api, one("Neg", info("x", [])), {"x": ONES[0, 0:].sum()[...]}),
    "output_writable, identity_aliases_input": kept,
    "nodearg, modelmeta, get_.., overridable_initializers": described,
}


@pytest.mark.parametrize("fact", SAME.values(), ids=SAME)
def test_same(fact: Callable[[Any], Any], tmp_path: Path) -> None:
    ours, theirs = (fact(module(name, tmp_path)) for name in ("q7x2_ep", "onnxruntime"))
    assert repr(ours) == repr(theirs)


def test_division_by_zero() -> None:
    """onnxruntime dies of it."""
    numbers = np.array([1, -7], np.int64)
    divide = one("Div", info("x", [2], INT64), info("y", [2], INT64), kind=INT64)
    (quotients,) = run(q7x2_ep, divide, {"x": numbers, "y": np.zeros(2, np.int64)})
    assert quotients.shape == (2,) and quotients.dtype == np.int64
