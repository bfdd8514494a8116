"""Reading models: sources, tensors, functions, old opsets, and what is wrong with broken ones."""

from __future__ import annotations

import contextlib
import mmap
import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep import dtypes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.errors import CorruptModel, ModelError, ModelNotFound, UnsupportedOp
from q7x2_ep.importer import read
from q7x2_ep.ir.core import Type
from q7x2_ep.ir.shape import symbol
from q7x2_ep.ir.text import to_text
from q7x2_ep.passes import run_all

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def info(name, shape, dtype=F32):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs=(), outputs=(), initializers=(), opset=20, **options):
    """A model; inputs and outputs are names of float tensors, or value infos."""
    inputs = [info(item, ["b", 8]) if isinstance(item, str) else item for item in inputs]
    outputs = [info(item, None) if isinstance(item, str) else item for item in outputs]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    options.setdefault("opset_imports", [helper.make_opsetid("", opset)])
    return helper.make_model(graph, ir_version=8, **options)


ERF = [helper.make_node("Erf", ["x"], ["y"], name="erf")]


@pytest.fixture
def erf():
    return model(ERF, ["x"], ["y"])


# Sources


def test_reads_protos_bytes_and_paths(erf, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(erf, path)
    texts = {to_text(read(source)) for source in (erf, erf.SerializeToString(), path, str(path))}
    assert len(texts) == 1
    assert read(path).metadata["path"] == str(path)
    assert read(erf).metadata["path"] is None


def test_keeps_metadata(erf):
    erf.producer_name, erf.domain, erf.model_version, erf.doc_string = "p", "d", 7, "text"
    erf.graph.doc_string = "graph text"
    helper.set_model_props(erf, {"key": "value"})
    metadata = read(erf).metadata
    assert metadata == {
        "path": None,
        "files": [],
        "producer_name": "p",
        "graph_name": "g",
        "graph_description": "graph text",
        "description": "text",
        "domain": "d",
        "version": 7,
        "custom_metadata_map": {"key": "value"},
        "overridable": {},
        "optional": {},
        "types": {"x": "tensor(float)", "y": "tensor(float)"},
        "declared": {"y": Type(dtypes.FLOAT, None)},
    }


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ModelNotFound, match=r"nothing\.onnx") as error:
        read(tmp_path / "nothing.onnx")
    assert isinstance(error.value, FileNotFoundError)


def test_a_folder_is_not_a_model(tmp_path):
    with pytest.raises(ModelError, match="cannot read"):
        read(tmp_path)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x00" * 64, b"\x08\x08"])
def test_corrupt_bytes(data, tmp_path):
    with pytest.raises(ModelError, match="model bytes"):
        read(data)
    (tmp_path / "bad.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        read(tmp_path / "bad.onnx")


def test_every_truncation_is_an_error_or_a_smaller_model(erf):
    data = erf.SerializeToString()
    for size in range(len(data)):
        with contextlib.suppress(ModelError):
            read(data[:size])


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="not int"):
        read(3)


# Inputs, outputs, names


def test_dims_become_numbers_and_symbols():
    x = info("x", ["batch", 4, None])
    graph = read(model(ERF, [x], ["y"]))
    assert graph.inputs[0].shape == (symbol("batch"), 4, symbol("x_d2"))
    assert graph.inputs[0].dtype == dtypes.FLOAT
    assert graph.output_names == ["y"]


def test_inputs_with_initializers_are_constants():
    weight = numpy_helper.from_array(np.ones(8, np.float32), "w")
    add = [helper.make_node("Add", ["x", "w"], ["y"])]
    graph = read(model(add, ["x", "w"], ["y"], [weight]))
    assert [value.name for value in graph.inputs] == ["x"]
    assert list(graph.metadata["overridable"]) == ["w"]


def test_nodes_get_unique_names():
    nodes = [
        helper.make_node("Erf", ["x"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"], name="same"),
        helper.make_node("Erf", ["b"], ["y"], name="same"),
    ]
    graph = read(model(nodes, ["x"], ["y"]))
    assert [node.name for node in graph.nodes] == ["Erf_0", "same", "same_1"]
    assert [node.sources for node in graph.nodes] == [("Erf_0",), ("same",), ("same_1",)]


@pytest.mark.parametrize(
    "nodes, reason",
    [
        (
            [helper.make_node("Erf", ["z"], ["y"], name="n")],
            r"\[Erf n\]: nothing before it produces z",
        ),
        (
            [helper.make_node("Erf", ["x"], ["z"], name="n")],
            "outputs: nothing before it produces y",
        ),
        (ERF * 2, "y is defined twice"),
        ([helper.make_node("Erf", ["x", "x"], ["y"], name="n")], r"\[Erf n\] takes .* given 2"),
        (
            [helper.make_node("Erf", ["x"], ["y"], name="n", no=1)],
            r"\[Erf n\] Unrecognized attribute: no for operator Erf",
        ),
    ],
)
def test_broken_graphs(nodes, reason):
    with pytest.raises(ModelError, match=reason):
        read(model(nodes, ["x"], ["y"]))


def test_a_missing_attribute_of_an_old_form():
    node = helper.make_node("Slice", ["x"], ["y"], name="n")
    with pytest.raises(ModelError, match=r"\[Slice n\] is malformed: KeyError\('starts'\)"):
        read(model([node], ["x"], ["y"], opset=9))


def test_names_that_are_no_text(erf):
    data = erf.SerializeToString().replace(b"erf", b"\xff\xfe\xfd")
    with pytest.raises(ModelError, match="is not an ONNX model"):
        read(data)


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (b"\x28\x00\x00\x00ORTM" + bytes(40), "onnxruntime's own format"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ],
)
def test_files_that_are_taken_for_models(data, advice):
    with pytest.raises(CorruptModel, match=advice):
        read(data)


def test_an_input_without_a_shape_has_an_unknown_rank():
    (x,) = read(model(ERF, [info("x", None)], ["y"])).inputs
    assert (x.dtype, x.shape, x.is_unknown) == (1, None, True)


def test_all_unsupported_ops_are_listed():
    nodes = [
        helper.make_node("NoSuchOp", ["x"], ["a"], name="first"),
        helper.make_node("NoSuchOp", ["a"], ["b"], name="second"),
        helper.make_node("Strange", ["b"], ["y"], name="third", domain="my.domain"),
    ]
    with pytest.raises(UnsupportedOp) as error:
        read(model(nodes, ["x"], ["y"]))
    assert "2 unsupported ops: NoSuchOp (2 nodes: first, second)" in str(error.value)
    assert "my.domain::Strange (1 node: third)" in str(error.value)


def test_a_model_that_was_saved_for_one_cpu_is_told_how_to_be_saved():
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc")
    with pytest.raises(UnsupportedOp, match="save it at ORT_ENABLE_EXTENDED or below"):
        read(model([node], ["x"], ["y"]))


# Tensors


def constant_of(tensor):
    """What an initializer reads as."""
    tensor.name = "w"
    return read(model(ERF, ["x"], ["w"], [tensor])).outputs[0].const


NUMPY_DTYPES = "float32 float64 float16 int8 uint8 int16 uint16 int32 int64 uint32 uint64 bool"


@pytest.mark.parametrize("dtype", NUMPY_DTYPES.split())
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_of_every_dtype(dtype, raw):
    array = np.array([[0, 1, 2], [3, 1, 0]]).astype(dtype)
    data = array.tobytes() if raw else array.ravel()
    tensor = helper.make_tensor(
        "w", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, data, raw=raw
    )
    result = constant_of(tensor)
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array)


def test_string_tensors():
    tensor = helper.make_tensor("w", TensorProto.STRING, [2], ["a", "b"])
    assert constant_of(tensor).tolist() == ["a", "b"]


BEYOND_NUMPY = [row for row in dtypes.DTYPES.values() if row.code > dtypes.UINT64]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("row", BEYOND_NUMPY, ids=lambda row: row.onnx)
def test_tensors_of_dtypes_that_numpy_has_not(row, raw, count):
    values = [1.0, -2.0, 0.0, -1.0, 1.0, 0.5, -0.5, 1.0][:count]
    if row.code == dtypes.FLOAT8E8M0 or row.kind == "u":
        values = [max(1.0, value) for value in values]  # it has neither signs nor 0
    if row.kind in "iu":
        values = [float(int(value)) for value in values]
    array = np.array(values).astype(row.numpy)
    tensor = numpy_helper.from_array(array, "w")
    if not raw:
        given = array.tolist() if row.kind == "c" else values
        tensor = helper.make_tensor("w", row.code, [count], given)
        assert not tensor.HasField("raw_data")
    result = constant_of(tensor)
    assert result.dtype == row.numpy
    np.testing.assert_array_equal(result.astype(complex), array.astype(complex))


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"raw_data": b"12345"}, "5 bytes are no whole number of float32"),
        ({"raw_data": b"12345678"}, r"\[tensor w\] shape \[3\] does not fit its 2 elements"),
        ({"dims": [-1], "float_data": [1.0]}, "does not fit"),
        ({"data_type": 99}, "element type 99 is not supported"),
    ],
)
def test_broken_tensors(change, reason):
    fields = {"data_type": F32, "dims": [3], **change}
    with pytest.raises(ModelError, match=reason):
        constant_of(TensorProto(**fields))


@pytest.mark.parametrize(
    "attribute, value",
    [("value_int", 3), ("value_ints", [1, 2]), ("value_float", 0.5), ("value_floats", [1.0, 2.0])],
)
def test_constant_nodes(attribute, value):
    node = helper.make_node("Constant", [], ["c"], **{attribute: value})
    result = read(model([node], [], ["c"])).outputs[0].const
    assert result.tolist() == value
    assert result.dtype == (np.float32 if "float" in attribute else np.int64)


def external_model(folder, location="w.bin", write=True, **entries):
    """A model whose one initializer (3, 4) lies in another file, 64 bytes in."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    if write:
        (folder / "w.bin").write_bytes(b"\0" * 64 + array.tobytes())
    tensor = TensorProto(name="w", data_type=F32, dims=[3, 4], data_location=TensorProto.EXTERNAL)
    entries = {"location": location, "offset": 64, "length": array.nbytes, **entries}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(model(ERF, ["x"], ["w"], [tensor]).SerializeToString())
    return path, array


def test_external_data_is_a_view_of_the_file(tmp_path):
    path, array = external_model(tmp_path)
    result = read(path).outputs[0].const
    np.testing.assert_array_equal(result, array)
    assert not result.flags.owndata and not result.flags.writeable


def test_external_data_through_a_symbolic_link(tmp_path):
    _path, array = external_model(tmp_path)
    os.makedirs(tmp_path / "snapshot")
    for name in ("model.onnx", "w.bin"):
        os.symlink(tmp_path / name, tmp_path / "snapshot" / name)
    np.testing.assert_array_equal(
        read(tmp_path / "snapshot" / "model.onnx").outputs[0].const, array
    )


@pytest.mark.parametrize(
    "entries, reason",
    [
        ({"location": "../w.bin"}, "is not inside the model's folder"),
        ({"location": "a/../../w.bin"}, "is not inside the model's folder"),
        ({"location": "/etc/passwd"}, "is not inside the model's folder"),
        ({"location": ""}, "is not inside the model's folder"),
        ({"offset": 65}, "bytes 65 to 113 are outside of w.bin, which has 112"),
        ({"offset": -4}, "outside"),
        ({"length": 10**12}, "outside"),
        ({"length": 44}, "does not fit its 11 elements"),
        ({"offset": "x"}, "not a number"),
    ],
)
def test_broken_external_data(tmp_path, entries, reason):
    path, _ = external_model(tmp_path, **entries)
    with pytest.raises(ModelError, match=reason):
        read(path)


def test_missing_external_file_is_named(tmp_path):
    path, _ = external_model(tmp_path, write=False)
    with pytest.raises(ModelNotFound, match=r"w\.bin"):
        read(path)


def test_external_data_without_a_path_is_in_the_working_directory(tmp_path, monkeypatch):
    path, array = external_model(tmp_path)
    data = path.read_bytes()
    for source in (data, onnx.load_model_from_string(data)):
        monkeypatch.chdir(tmp_path)
        np.testing.assert_array_equal(read(source).outputs[0].const, array)
        monkeypatch.chdir(os.sep)
        with pytest.raises(ModelError, match="give the path"):
            read(source)


def large_model():
    """An initializer that wire.py takes out, behind one that it leaves."""
    arrays = [np.arange(3, dtype=np.int64), np.arange(1000, dtype=np.float32)]
    tensors = [numpy_helper.from_array(array, name) for array, name in zip(arrays, "ab")]
    return model(ERF, ["x"], ["b", "a"], tensors), arrays[::-1]


def memory_of(array):
    """What owns the elements of an array."""
    base = array.base
    return memory_of(base) if isinstance(base, np.ndarray) else memoryview(base).obj


def test_large_weights_are_views_of_the_model(tmp_path, monkeypatch):
    proto, arrays = large_model()
    for tensor in proto.graph.initializer:  # as onnx writes what it has loaded from other files
        tensor.data_location = TensorProto.DEFAULT
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    sources = [path.read_bytes(), path]
    for source in sources:
        found = [value.const for value in read(source).outputs]
        for result, array in zip(found, arrays):
            np.testing.assert_array_equal(result, array)
        one, *others = (memoryview(memory_of(array)).nbytes for array in found[:2])
        assert [one] == others and one == path.stat().st_size
    monkeypatch.setattr("q7x2_ep.importer.reader.MAP_BYTES", 1)
    mapped = read(path).outputs[0].const
    assert isinstance(memory_of(mapped), mmap.mmap)
    np.testing.assert_array_equal(mapped, arrays[0])


def branches():
    """An If whose branches read a weight from outside, an initializer and a Constant."""
    arrays = [np.arange(20_000, dtype=np.float32) + i for i in range(3)]
    outer, inner, constant = map(numpy_helper.from_array, arrays, "abc")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("Sum", ["a", "b", "c"], ["sum"]),
    ]
    body = helper.make_graph(nodes, "body", [], [info("sum", [20_000])], [inner])
    choice = helper.make_node("If", ["cond"], ["y"], then_branch=body, else_branch=body)
    cond = info("cond", [], TensorProto.BOOL)
    return model([choice], [cond], ["y"], [outer]), arrays


def test_large_weights_in_branches_are_views_of_the_model():
    proto, arrays = branches()
    data = proto.SerializeToString()
    (choice,) = read(data).nodes
    for body in choice.bodies:
        for value, array in zip(body.nodes[0].inputs, arrays):
            np.testing.assert_array_equal(value.const, array)
            assert memory_of(value.const) is data


@pytest.mark.parametrize("depth", [50, 5000])
def test_branches_nested_too_deep(depth):
    data = branches()[0].graph.SerializeToString()
    for _ in range(depth):
        for tag in (0x32, 0x2A, 0x0A):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            data = field_of(tag, data)
    with pytest.raises(ModelError, match="not an ONNX model"):
        read(field_of(0x3A, data))


def field_of(tag, payload):
    """A field of a protobuf message, of fewer than 2**28 bytes."""
    size = len(payload)
    parts = [size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]
    return bytes([tag, *parts]) + payload


def test_truncated_weights():
    data = large_model()[0].SerializeToString()
    for size in range(0, len(data), 97):
        with pytest.raises(ModelError):
            read(data[:size])


# Functions


def test_functions_are_inlined_with_their_attributes():
    scaled = helper.make_node("LeakyRelu", ["x"], ["t"], name="inner")
    scaled.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    opset = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
    inner = helper.make_function(
        "my",
        "Scaled",
        ["x"],
        ["t"],
        [scaled],
        opset[:1],
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )
    call = helper.make_node("Scaled", ["a"], ["b"], domain="my", name="call")
    call.attribute.add(name="slope", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    outer = helper.make_function("my", "Outer", ["a"], ["b"], [call], opset, attributes=["slope"])
    nodes = [
        helper.make_node("Outer", ["x"], ["u"], domain="my", name="given", slope=0.25),
        helper.make_node("Outer", ["u"], ["y"], domain="my", name="default"),
    ]
    graph = read(model(nodes, ["x"], ["y"], functions=[inner, outer], opset_imports=opset))
    assert [node.attrs["alpha"] for node in graph.nodes] == [0.25, 0.5]
    assert [node.name for node in graph.nodes] == ["given/call/inner", "default/call/inner"]
    assert [value.name for value in graph.outputs] == ["y"]


def test_a_function_that_calls_itself():
    opset = [helper.make_opsetid("my", 1)]
    call = helper.make_node("Loop", ["x"], ["y"], domain="my")
    function = helper.make_function("my", "Loop", ["x"], ["y"], [call], opset)
    with pytest.raises(ModelError, match="calls itself"):
        read(model([call], ["x"], ["y"], functions=[function], opset_imports=opset))


def test_ops_that_the_standard_defines_by_others():
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], name="mvn", axes=[1])
    graph = read(model([node], ["x"], ["y"]))
    run_all(graph)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    (y,) = evaluate(graph, {"x": x})
    np.testing.assert_allclose(
        y, (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), rtol=1e-5
    )


# Old opsets: op, opset, input shapes, attributes, meaning

OLD = [
    ("Squeeze", 11, [(2, 1, 3)], {"axes": [1]}, lambda x: x[:, 0]),
    ("Unsqueeze", 11, [(2, 3)], {"axes": [0, 3]}, lambda x: x[None, :, :, None]),
    ("ReduceSum", 11, [(2, 3)], {"axes": [1], "keepdims": 0}, lambda x: x.sum(1)),
    ("ReduceMean", 13, [(2, 3)], {"axes": [-1]}, lambda x: x.mean(1, keepdims=True)),
    ("ReduceMean", 13, [(2, 3)], {}, lambda x: x.mean(keepdims=True)),
    ("Slice", 9, [(4, 5)], {"starts": [1, 0], "ends": [3, -1]}, lambda x: x[1:3, :-1]),
    ("Slice", 9, [(4, 5)], {"starts": [2], "ends": [99], "axes": [1]}, lambda x: x[:, 2:]),
    ("Clip", 6, [(4, 5)], {"min": -0.5}, lambda x: np.maximum(x, -0.5)),
    ("Dropout", 7, [(2, 3)], {"ratio": 0.9}, lambda x: x),
    ("Softmax", 11, [(2, 3, 4)], {}, lambda x: softmax(x.reshape(2, 12)).reshape(2, 3, 4)),
    ("Softmax", 11, [(2, 3, 4)], {"axis": 2}, lambda x: softmax(x)),
    ("LogSoftmax", 11, [(2, 3, 4)], {"axis": -1}, lambda x: np.log(softmax(x))),
    ("Add", 6, [(2, 3, 4), (3,)], {"broadcast": 1, "axis": 1}, lambda a, b: a + b[:, None]),
    ("Mul", 6, [(2, 3, 4), (3,)], {"broadcast": 1, "axis": -2}, lambda a, b: a * b[:, None]),
    ("Sub", 6, [(2, 3, 4), (4,)], {"broadcast": 1}, lambda a, b: a - b),
    ("Reshape", 1, [(2, 6)], {"shape": [3, -1]}, lambda x: x.reshape(3, 4)),
    ("Cast", 5, [(2, 3)], {"to": "DOUBLE"}, lambda x: x.astype(np.float64)),
    ("Concat", 3, [(2, 3), (2, 4)], {}, lambda a, b: np.concatenate([a, b], 1)),
    ("Split", 11, [(2, 6)], {"axis": 1, "split": [2, 4]}, lambda x: x[:, :2]),
    ("Split", 13, [(2, 6)], {"axis": 1}, lambda x: x[:, :3]),
    ("Gemm", 6, [(2, 3), (3, 4), (4,)], {"broadcast": 1}, lambda a, b, c: a @ b + c),
    ("Clip", 5, [(4, 5)], {"max": 0.5}, lambda x: np.minimum(x, np.float32(0.5))),
    (
        "BatchNormalization",
        8,
        [(2, 3, 4), *[(3, 4)] * 4],
        {"spatial": 0, "epsilon": 9.0},
        lambda x, s, b, m, v: (x - m) / np.sqrt(v + 9) * s + b,
    ),
    (
        "BatchNormalization",
        6,
        [(2, 3, 4), *[(3,)] * 4],
        {"is_test": 1, "epsilon": 9.0},
        lambda x, s, b, m, v: ((x.swapaxes(1, 2) - m) / np.sqrt(v + 9) * s + b).swapaxes(1, 2),
    ),
    (
        "Pad",
        2,
        [(2, 3)],
        {"pads": [0, 1, 0, 2], "value": 0.5},
        lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=0.5),
    ),
    ("Pad", 1, [(2, 3)], {"paddings": [0, 1, 0, 2]}, lambda x: np.pad(x, ((0, 0), (1, 2)))),
    ("TopK", 9, [(2, 5)], {"k": 2}, lambda x: -np.sort(-x)[:, :2]),
]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("outputs", [["y", "m", "v", "sm", "sv"], ["y", "", "", "", "sv"]], ids=str)
def test_training_gave_saved_statistics_before_opset_14(outputs):
    names = ["x", "s", "b", "mean", "var"]
    node = helper.make_node("BatchNormalization", names, outputs, momentum=0.9)
    inputs = [info("x", [4, 3, 5]), *(info(name, [3]) for name in names[1:])]
    graph = read(model([node], inputs, [name for name in outputs if name], opset=9))
    run_all(graph)
    rng = np.random.default_rng(0)
    feeds = {name: rng.random((4, 3, 5) if name == "x" else 3, np.float32) for name in names}
    mean, var = feeds["x"].mean((0, 2)), feeds["x"].var((0, 2))
    y = (feeds["x"] - mean[:, None]) / np.sqrt(var + 1e-5)[:, None]
    wanted = {
        "y": y * feeds["s"][:, None] + feeds["b"][:, None],
        "m": 0.9 * feeds["mean"] + 0.1 * mean,
        "v": 0.9 * feeds["var"] + 0.1 * var,
        "sm": mean,
        "sv": var,
    }
    for name, given in zip(graph.output_names, evaluate(graph, feeds)):
        np.testing.assert_allclose(given, wanted[name], 1e-5, 1e-6, err_msg=name)


def test_tile_took_an_axis_before_opset_6():
    scalars = {"tiles": np.float32(2), "axis": np.float32(1)}
    initializers = [numpy_helper.from_array(np.array(v), k) for k, v in scalars.items()]
    node = helper.make_node("Tile", ["x", "tiles", "axis"], ["y"])
    graph = read(model([node], [info("x", ["a", "b"])], ["y"], initializers, opset=5))
    run_all(graph)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], np.tile(x, (1, 2)))


@pytest.mark.parametrize("indices", ([0, -1, 2, 3], [-3, 1]))
def test_one_hot_did_not_count_from_the_end_before_opset_11(indices):
    initializers = [
        numpy_helper.from_array(np.array([3], np.int64), "depth"),
        numpy_helper.from_array(np.array([0, 1], np.float32), "values"),
    ]
    node = helper.make_node("OneHot", ["x", "depth", "values"], ["y"])
    graph = read(model([node], [info("x", ["n"])], ["y"], initializers, opset=9))
    run_all(graph)
    x = np.array(indices, np.float32)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], x[:, None] == np.arange(3))


@pytest.mark.parametrize("op, opset, shapes, attrs, meaning", OLD, ids=lambda item: str(item)[:20])
def test_old_forms_mean_what_they_meant(op, opset, shapes, attrs, meaning):
    arrays = [
        np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)
    ]
    names = [f"x{i}" for i in range(len(shapes))]
    outputs = ["y", "z"] if op in ("Split", "TopK") else ["y"]
    inputs = [
        info(name, [f"{name}_{i}" for i in range(len(shape))]) for name, shape in zip(names, shapes)
    ]
    if op in ("Gemm", "BatchNormalization"):
        inputs = [info(name, shape) for name, shape in zip(names, shapes)]
    graph = read(model([helper.make_node(op, names, outputs, **attrs)], inputs, ["y"], opset=opset))
    run_all(graph)
    (y,) = evaluate(graph, dict(zip(names, arrays)))
    np.testing.assert_allclose(y, meaning(*arrays), rtol=1e-5, atol=1e-6)
    assert y.dtype == meaning(*arrays).dtype


def test_nodes_in_any_order():
    """As converters append them; onnxruntime takes them too."""
    ordered = [
        helper.make_node("Erf", ["x"], ["a"], "first"),
        helper.make_node("Neg", ["a"], ["b"], "second"),
        helper.make_node("Add", ["a", "b"], ["y"], "third"),
    ]
    names = [node.name for node in read(model(ordered, ["x"], ["y"])).nodes]
    assert names == ["first", "second", "third"]
    shuffled = [ordered[i] for i in (2, 1, 0)]
    assert [node.name for node in read(model(shuffled, ["x"], ["y"])).nodes] == names


def test_nodes_that_need_each_other():
    nodes = [helper.make_node("Neg", ["b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    with pytest.raises(ModelError, match="nothing before it produces"):
        read(model(nodes, ["x"], ["b"]))
