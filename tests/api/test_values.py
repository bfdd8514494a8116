"""Feeds of every kind, OrtValue, DLPack, IOBinding and sparse tensors."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

import q7x2_ep
from q7x2_ep import OrtValue, dtypes, errors
from q7x2_ep.api.value import OrtValueVector
from tests.api.models import FLOAT, ONES, add, info, model, node, one, scaled

X = np.arange(6, dtype=np.float32).reshape(2, 3)
CPU = q7x2_ep.OrtDevice.make("cpu", 0)
KINDS = {  # arrays of every dtype that ONNX shares with numpy
    np.dtype(kind): np.array([[0, 1, 1], [1, 0, 1]], kind)
    for kind in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
}


class Array:
    """What has __array__ and nothing else."""

    def __array__(self, dtype=None, copy=None):
        return X


class Tensor:
    """What has DLPack and nothing else."""

    def __dlpack__(self, **request):
        return X.__dlpack__(**request)

    def __dlpack_device__(self):
        return X.__dlpack_device__()


def read_only() -> np.ndarray:
    array = X.copy()
    array.flags.writeable = False
    return array


FEEDS = {
    "list": X.tolist(),
    "integers": [[0, 1, 2], [3, 4, 5]],
    "tuple": tuple(map(tuple, X.tolist())),
    "list of arrays": list(X),
    "transposed": np.ascontiguousarray(X.T).T,
    "strided": np.repeat(X, 2, 1)[:, ::2],
    "reversed": X[::-1, ::-1].copy()[::-1, ::-1],
    "big endian": X.astype(">f4"),
    "read only": read_only(),
    "broadcast": np.broadcast_to(X, (1, 2, 3))[0],
    "unaligned": np.frombuffer(b"\0" + X.tobytes(), np.float32, offset=1).reshape(2, 3),
    "subclass": np.ma.array(X),
    "OrtValue": OrtValue.ortvalue_from_numpy(X),
    "__array__": Array(),
    "DLPack": Tensor(),
    "memoryview": memoryview(X),
}


@pytest.fixture(scope="module")
def session():
    with q7x2_ep.InferenceSession(add()) as session:
        yield session


@pytest.mark.parametrize("given", FEEDS.values(), ids=FEEDS)
def test_feeds(session, given):
    (z,) = session.run(None, {"x": given, "y": ONES})
    np.testing.assert_array_equal(z, X + 1)
    assert z.dtype == np.float32 and z.flags.writeable and z.flags.c_contiguous


def test_scalars():
    with q7x2_ep.InferenceSession(one("Neg", info("x", []))) as session:
        for given in (2, 2.0, np.float32(2), np.array(2, np.float32), np.array(2, ">f4")):
            (z,) = session.run(None, {"x": given})
            assert isinstance(z, np.ndarray) and z.shape == () and z == -2


def test_numbers_that_do_not_fit():
    x = info("x", ["n"], TensorProto.UINT8)
    with q7x2_ep.InferenceSession(one("Identity", x, kind=TensorProto.UINT8)) as session:
        assert session.run(None, {"x": [0, 255]})[0].tolist() == [0, 255]
        for given in ([256], [-1], [0.5], ["a"], [[1], [1, 2]], object(), {1, 2}):
            with pytest.raises(errors.InvalidArgument, match="'x'"):
                session.run(None, {"x": given})


def test_text():
    x = info("x", ["n"], TensorProto.STRING)
    words = np.array(["a", "bcd", "ü"])
    with q7x2_ep.InferenceSession(one("Identity", x, kind=TensorProto.STRING)) as session:
        given = (words, words.astype(object), words.tolist(), np.char.encode(words, "utf-8"))
        for each in (*given, OrtValue.ortvalue_from_numpy(words)):
            (z,) = session.run(None, {"x": each})
            assert z.dtype == object and z.tolist() == words.tolist()
        zeros = np.array([[b"a\0", b"\0\0"]], np.void)  # of which bytes would lose those at the end
        assert session.run(None, {"x": zeros[0]})[0].tolist() == ["a\0", "\0\0"]


def test_results_are_the_callers(session):
    """Neither a feed nor a later run changes them."""
    with q7x2_ep.InferenceSession(one("Identity", info("x", [2, 3]))) as identity:
        given = X.copy()
        (z,) = identity.run(None, {"x": given})
        given[:] = 9
        np.testing.assert_array_equal(z, X)


def test_torch(session):
    torch = pytest.importorskip("torch")
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    for given in (x, x.clone().requires_grad_(), x.T.contiguous().T):
        np.testing.assert_array_equal(session.run(None, {"x": given, "y": ONES})[0], X + 1)
    value = OrtValue.from_dlpack(x)
    assert value.data_ptr() == x.data_ptr()
    x[0, 0] = 7
    assert value.numpy()[0, 0] == 7
    assert torch.from_dlpack(OrtValue.ortvalue_from_numpy(X.copy())).tolist() == X.tolist()
    assert OrtValue.from_dlpack(x.__dlpack__()).numpy()[0, 0] == 7
    half = OrtValue.from_dlpack(x.to(torch.bfloat16))
    assert half.data_type() == "tensor(bfloat16)" and half.numpy().tolist() == x.tolist()
    with pytest.raises(errors.BindingError, match="contiguous"):
        OrtValue.from_dlpack(x.T)


@pytest.mark.parametrize("array", KINDS.values(), ids=str)
def test_ort_values(array):
    value = OrtValue.ortvalue_from_numpy(array)
    code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    assert value.element_type() == code and value.shape() == [2, 3]
    assert value.data_type() == f"tensor({onnx.TensorProto.DataType.Name(code).lower()})"
    assert value.tensor_size_in_bytes() == array.nbytes
    assert value.data_ptr() == array.ctypes.data
    assert np.shares_memory(value.numpy(), array) and np.shares_memory(np.asarray(value), array)
    assert (value.is_tensor(), value.has_value(), value.device_name()) == (True, True, "cpu")
    assert not value.is_sparse_tensor() and not value.is_tensor_sequence()
    np.testing.assert_array_equal(np.from_dlpack(value), array)
    assert value.__dlpack_device__() == (1, 0)
    for made in (array.dtype, array.dtype.type, code):
        other = OrtValue.ortvalue_from_shape_and_type([2, 3], made)
        address = other.data_ptr()
        other.update_inplace(array.T.copy().T)
        np.testing.assert_array_equal(other.numpy(), array)
        other.update_inplace(value)
        assert other.data_ptr() == address and other.data_type() == value.data_type()


def test_values_that_numpy_does_not_have():
    bits = np.array([0x3F80, 0xC000], np.uint16)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    assert value.data_type() == "tensor(bfloat16)" and value.data_ptr() == bits.ctypes.data
    assert value.numpy().tolist() == [1.0, -2.0]
    again = OrtValue.ortvalue_from_shape_and_type([2], TensorProto.BFLOAT16)
    again.update_inplace(value)
    assert again.numpy().tolist() == [1.0, -2.0]
    eighths = OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.array([0x38, 0xC0], np.uint8), TensorProto.FLOAT8E4M3FN
    )
    assert eighths.data_type() == "tensor(float8e4m3fn)"
    assert eighths.numpy().dtype == np.uint8 and eighths.numpy().tolist() == [0x38, 0xC0]
    copy = OrtValue.ortvalue_from_shape_and_type([2], TensorProto.FLOAT8E4M3FN)
    copy.update_inplace(eighths)
    assert copy.numpy().tolist() == [0x38, 0xC0]
    with pytest.raises(errors.BindingError, match=r"1 specified by onnxtype: 2"):
        OrtValue.ortvalue_from_numpy_with_onnx_type(bits.view(np.uint8), TensorProto.BFLOAT16)


@pytest.mark.parametrize("engine", ["q7x2_ep", "onnxruntime"])
def test_eighths_are_given_as_bits(engine):
    """float8e4m3fn, of all the types that numpy has not itself."""
    api = pytest.importorskip(engine)
    kind = TensorProto.FLOAT8E4M3FN
    made = model([node("Cast", "x", to=kind)], [info("x", [2])], [info("z", [2], kind)], opset=19)
    session = api.InferenceSession(made, providers=["CPUExecutionProvider"])
    feed, given = {"x": np.array([1, -2], np.float32)}, []
    for _ in range(2):
        given += session.run(None, feed)
    (value,) = session.run_with_ort_values(None, {"x": api.OrtValue.ortvalue_from_numpy(feed["x"])})
    binding = session.io_binding()
    binding.bind_cpu_input("x", feed["x"])
    held = api.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint8), kind)
    for bind in (
        lambda: binding.bind_output("z"),
        lambda: binding.bind_ortvalue_output("z", held),
    ):
        bind()
        session.run_with_iobinding(binding)
        given += binding.copy_outputs_to_cpu()
        given.append(binding.get_outputs()[0].numpy())
        assert binding.get_outputs()[0].element_type() == kind
    for array in (*given, value.numpy(), held.numpy()):
        assert array.dtype == np.uint8 and array.tolist() == [0x38, 0xC0]
    assert value.data_type() == "tensor(float8e4m3fn)"


def test_bfloat16_in_and_out():
    x = info("x", ["n"], TensorProto.BFLOAT16)
    bits = np.array([0x3F80, 0xC000], np.uint16)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    with q7x2_ep.InferenceSession(one("Neg", x, kind=TensorProto.BFLOAT16)) as session:
        (z,) = session.run_with_ort_values(None, {"x": value})
        assert z.data_type() == "tensor(bfloat16)" and z.numpy().tolist() == [-1.0, 2.0]
        binding, out = session.io_binding(), np.zeros(2, np.uint16)
        binding.bind_input("x", "cpu", 0, TensorProto.BFLOAT16, [2], bits.ctypes.data)
        binding.bind_output("z", "cpu", 0, TensorProto.BFLOAT16, [2], out.ctypes.data)
        session.run_with_iobinding(binding)
        assert out.tolist() == [0xBF80, 0x4000]


def test_values_of_text():
    value = OrtValue.ortvalue_from_numpy(np.array(["a", "b"]))
    assert (value.data_type(), value.shape()) == ("tensor(string)", [2])
    for ask in (value.data_ptr, value.tensor_size_in_bytes, value.__dlpack__):
        with pytest.raises(RuntimeError, match="strings"):
            ask()


@pytest.mark.parametrize(
    "given",
    [
        np.array(["a", 3, None, b"b", 2.5, True, float("nan"), np.float32(2)], object),
        np.array([["é", 1], [np.str_("b"), "\0c"]], object),
        np.array(["ab", "c"], object)[::-1],
        np.array([[(1, 2)], [None]], object)[:, 0],
        np.array(3, object),
        np.array([], object),
        ["a", None],
    ],
)
def test_objects_are_fed_as_their_text(given):
    """As onnxruntime does: by str() of each."""
    x = info("x", [None] * np.ndim(given), TensorProto.STRING)
    data = one("Identity", x, kind=TensorProto.STRING)
    (theirs,) = onnxruntime.InferenceSession(data).run(None, {"x": given})
    (ours,) = q7x2_ep.InferenceSession(data).run(None, {"x": given})
    assert ours.shape == theirs.shape and ours.tolist() == theirs.tolist()
    assert all(isinstance(each, str) for each in ours.ravel())


@pytest.mark.parametrize(
    "given",
    [np.array(["a", "\ud800"], object), np.array(["\ud800"]), ["\ud800"], np.array([b"\xff"])],
)
def test_what_is_no_text(given):
    """Which UTF-8, in which models hold strings, cannot spell."""
    data = one("Identity", info("x", ["n"], TensorProto.STRING), kind=TensorProto.STRING)
    with pytest.raises(errors.FeedError, match=r"\[input 'x'\] expected text"):
        q7x2_ep.InferenceSession(data).run(None, {"x": given})


def test_sequences():
    kind = TensorProto.FLOAT
    items = onnx.helper.make_tensor_sequence_value_info("s", kind, None)
    pack = model([node("SequenceConstruct", "x x", "s")], [info("x", [2, 3])], [items])
    unpack = model(
        [node("SequenceAt", "s i")], [items, info("i", [], TensorProto.INT64)], [info("z", None)]
    )
    with q7x2_ep.InferenceSession(pack) as first, q7x2_ep.InferenceSession(unpack) as second:
        assert first.get_outputs()[0].type == second.get_inputs()[0].type == "seq(tensor(float))"
        (value,) = first.run_with_ort_values(None, {"x": OrtValue.ortvalue_from_numpy(X)})
        assert value.is_tensor_sequence() and value.data_type() == "seq(tensor(float))"
        assert value.element_type() == FLOAT
        with pytest.raises(RuntimeError, match=r"seq\(tensor\(float\)\)"):
            value.numpy()
        for given in (value, first.run(None, {"x": X})[0]):
            np.testing.assert_array_equal(second.run(None, {"s": given, "i": 1})[0], X)


def vectorizer(keys: int, values: int) -> bytes:
    """z of the words 1, 2 or a, b in the map x."""
    inner = onnx.helper.make_tensor_type_proto(values, [])
    x = onnx.helper.make_value_info("x", onnx.helper.make_map_type_proto(keys, inner))
    is_text = keys == TensorProto.STRING
    words = {"string_vocabulary": ["a", "b"]} if is_text else {"int64_vocabulary": [1, 2]}
    of_ml = onnx.helper.make_node("DictVectorizer", ["x"], ["z"], domain="ai.onnx.ml", **words)
    graph = onnx.helper.make_graph([of_ml], "g", [x], [info("z", None, values)])
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


REFUSED = (Fail, InvalidArgument, RuntimeError, ValueError)  # by onnxruntime
KEYS = {int: TensorProto.INT64, str: TensorProto.STRING}


@pytest.mark.parametrize(
    "given",
    [
        *({1: 1}, {1: True, 2: 2**70}, {np.int32(1): np.int64(3)}, {1: np.float64(0.1)}),
        *({True: 1e300}, {1: np.array(2.0)}, {"a": 1, "c": 2.5}, {np.str_("b"): 1}),
    ],
)
def test_maps_of_numbers_are_converted(given):
    data = vectorizer(KEYS[str if isinstance(next(iter(given)), str) else int], FLOAT)
    (theirs,) = onnxruntime.InferenceSession(data).run(None, {"x": given})
    (ours,) = q7x2_ep.InferenceSession(data).run(None, {"x": given})
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "keys, given",
    [
        *((int, each) for each in ({"a": 1.0}, {1.0: 1.0}, {2**63: 1.0}, {1: 1.0, "a": 2.0})),
        *((int, each) for each in ({1: "a"}, {1: None}, {1: b"2"}, {1: X}, {1: 10**400})),
        *((int, each) for each in ({}, [{1: 1.0}], [], 3, np.ones(1), None)),
        *((str, each) for each in ({1: 1.0}, {b"a": 1.0}, {"a": "1"}, {"\ud800": 1.0}, {})),
    ],
)
def test_maps_that_do_not_fit(keys, given):
    data = vectorizer(KEYS[keys], FLOAT)
    with pytest.raises(REFUSED):
        onnxruntime.InferenceSession(data).run(None, {"x": given})
    with pytest.raises(errors.FeedError) as caught:
        q7x2_ep.InferenceSession(data).run(None, {"x": given})
    name = "int64" if keys is int else "string"
    for word in ("[input 'x']", "expected", f"map({name},tensor(float))", "given"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "keys, values, right, wrong",
    [
        (str, TensorProto.INT64, {"a": np.int8(1)}, {"a": 1.5}),
        (int, TensorProto.DOUBLE, {1: 0.1}, {1: "0.1"}),
        (int, TensorProto.STRING, {1: "a"}, {1: 1}),
    ],
)
def test_maps_that_onnxruntime_does_not_take(keys, values, right, wrong):
    """It makes every map one of floats."""
    with q7x2_ep.InferenceSession(vectorizer(KEYS[keys], values)) as session:
        (z,) = session.run(None, {"x": right})
        assert z.dtype == dtypes.DTYPES[values].numpy and z[0, 0] == next(iter(right.values()))
        with pytest.raises(errors.FeedError, match="given the value of"):
            session.run(None, {"x": wrong})


@pytest.mark.parametrize("labels", [{"int64s": [1, 2]}, {"strings": ["a", "b"]}])
def test_type_of_maps_in_a_sequence(labels):
    names = {f"classlabels_{kind}": each for kind, each in labels.items()}
    of_ml = onnx.helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", **names)
    inner = onnx.helper.make_tensor_type_proto(FLOAT, [])
    key = TensorProto.INT64 if "int64s" in labels else TensorProto.STRING
    maps = onnx.helper.make_sequence_type_proto(onnx.helper.make_map_type_proto(key, inner))
    z = onnx.helper.make_value_info("z", maps)
    graph = onnx.helper.make_graph([of_ml], "g", [info("x", ["N", 2])], [z])
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    data = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    told = []
    for engine in (onnxruntime, q7x2_ep):
        feed = {"x": engine.OrtValue.ortvalue_from_numpy(X.reshape(3, 2))}
        (value,) = engine.InferenceSession(data).run_with_ort_values(None, feed)
        told.append((value.data_type(), value.is_tensor(), value.is_tensor_sequence()))
    assert told[0] == told[1] and told[0][0].startswith("seq(map(")


def unpacked(kind: int) -> bytes:
    """z = s[0] for a sequence s."""
    items = onnx.helper.make_tensor_sequence_value_info("s", kind, None)
    zero = onnx.numpy_helper.from_array(np.array(0), "i")
    graph = onnx.helper.make_graph(
        [node("SequenceAt", "s i")], "g", [items], [info("z", None, kind)], [zero]
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize(
    "kind, given",
    [
        *((FLOAT, each) for each in ([X], [X, X[0]], [X[:, ::2]])),
        (FLOAT, [np.array(1, np.float32)]),
        *((TensorProto.STRING, [each]) for each in (np.array(["a"]), np.array(["a", 3], object))),
    ],
)
def test_elements_of_sequences(kind, given):
    data = unpacked(kind)
    (theirs,) = onnxruntime.InferenceSession(data).run(None, {"s": given})
    (ours,) = q7x2_ep.InferenceSession(data).run(None, {"s": given})
    assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    "given, where, what",
    [
        ([X, X.astype(np.float64)], " element 1", "(tensor(double)) , expected: (tensor(float))"),
        ([X.astype(np.int64)], " element 0", "(tensor(int64)) , expected: (tensor(float))"),
        ([np.array(["a"])], " element 0", "(tensor(string)) , expected: (tensor(float))"),
        ([[X]], " element 0", "'list'"),
        ([1.0], " element 0", "'float'"),
        ([np.float32(1)], " element 0", "'numpy.float32'"),
        ([None], " element 0", "'NoneType'"),
        ([OrtValue.ortvalue_from_numpy(X)], " element 0", "OrtValue"),
        (X, "", "an array of float32"),
        ((X,), "", "'tuple'"),
        ({1: 1.0}, "", "'dict'"),
        (None, "", "None"),
    ],
)
def test_sequences_that_do_not_fit(given, where, what):
    data = unpacked(FLOAT)
    with pytest.raises(REFUSED):
        onnxruntime.InferenceSession(data).run(None, {"s": given})
    with pytest.raises(errors.FeedError) as caught:
        q7x2_ep.InferenceSession(data).run(None, {"s": given})
    assert f"[input 's'{where}]" in str(caught.value) and what in str(caught.value)
    assert "tensor(float)" in str(caught.value)


@pytest.mark.parametrize("wrong", [X.astype(np.float64), X.astype(str).tolist()])
def test_optional_tensors(wrong):
    """They are checked and converted as others."""
    inner = onnx.helper.make_tensor_type_proto(FLOAT, ["N", 3])
    x = onnx.helper.make_value_info("x", onnx.helper.make_optional_type_proto(inner))
    graph = [node("OptionalGetElement", "x")], "g", [x], [info("z", ["N", 3])]
    data = onnx.helper.make_model(
        onnx.helper.make_graph(*graph),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=8,
    ).SerializeToString()
    with q7x2_ep.InferenceSession(data) as session:
        theirs = onnxruntime.InferenceSession(data)
        for mine, other in zip(session.get_inputs(), theirs.get_inputs()):
            assert (mine.shape, mine.type) == (other.shape, other.type)
        for given in (X, X.tolist(), X.astype(">f4")):
            (z,) = session.run(None, {"x": given})
            assert z.dtype == np.float32 and z.tolist() == X.tolist()
        with pytest.raises(errors.FeedError, match=r"\[input 'x'\]"):
            session.run(None, {"x": wrong})


def test_wrong_values():
    for wrong in (
        lambda: OrtValue.ortvalue_from_numpy([1.0]),
        lambda: OrtValue.ortvalue_from_numpy(np.ones(2, "M8[s]")),
        lambda: OrtValue.ortvalue_from_numpy(X, "cuda", 0),
        lambda: OrtValue.ortvalue_from_shape_and_type([-1], np.float32),
        lambda: OrtValue.ortvalue_from_shape_and_type([1], 99),
        lambda: OrtValue.ortvalue_from_shape_and_type([1], "nothing"),
        lambda: OrtValue.ortvalue_from_numpy(X).update_inplace(X[0]),
        lambda: OrtValue.ortvalue_from_numpy(X).update_inplace(X.astype(np.float64)),
        lambda: OrtValue.ortvalue_from_numpy(X).as_sparse_tensor(),
        lambda: q7x2_ep.OrtDevice.make("junk", 0),
        lambda: q7x2_ep.copy_tensors([OrtValue.ortvalue_from_numpy(X)], []),
    ):
        with pytest.raises(RuntimeError):
            wrong()
    with pytest.raises(ValueError):
        OrtValue(X)
    with pytest.raises(TypeError):
        OrtValue.from_dlpack(3)
    with pytest.raises(TypeError):
        OrtValue.ortvalue_from_numpy(X).update_inplace([1])


def test_devices():
    """type, vendor and memory of onnxruntime's names."""
    table = {"cpu": (0, 0), "cuda": (1, 4318), "cann": (3, 6629), "dml": (1, 5140), "npu": (3, 0)}
    for name, (kind, vendor) in table.items():
        device = q7x2_ep.OrtDevice.make(name, 1 if kind else 0)
        found = (device.device_type(), device.device_vendor_id(), device.device_mem_type())
        assert found == (kind, vendor, 0)
    intel = q7x2_ep.OrtDevice.make("gpu", 0, q7x2_ep.OrtDeviceVendorId.INTEL)
    assert intel.device_vendor_id() == 0x8086


def test_copy():
    target = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    q7x2_ep.copy_tensors([OrtValue.ortvalue_from_numpy(X)], [target])
    np.testing.assert_array_equal(target.numpy(), X)


def test_vectors(session):
    feeds, fetches = OrtValueVector(), OrtValueVector()
    for array in (X, ONES):
        feeds.push_back(OrtValue.ortvalue_from_numpy(array))
    options = q7x2_ep.RunOptions()
    session.run_with_ortvaluevector(options, ["x", "y"], feeds, ["z"], fetches, [CPU])
    np.testing.assert_array_equal(fetches[0].numpy(), X + 1)
    address = fetches[0].data_ptr()
    feeds[0].numpy()[:] += 1
    session.run_with_ortvaluevector(None, ["x", "y"], feeds, ["z"], fetches, [CPU])
    np.testing.assert_array_equal(fetches[0].numpy(), X + 1)
    assert fetches[0].data_ptr() == address
    feeds[0].numpy()[:] -= 1
    assert [np.from_dlpack(v).sum() for v in feeds] == [15, 6]
    assert feeds.element_type_at(0) == FLOAT and feeds.bool_tensor_indices() == []
    feeds.push_back_batch([X], [X.ctypes.data], [np.float32], [[3, 2]], [CPU])
    assert feeds[2].shape() == [3, 2] and feeds[2].data_ptr() == X.ctypes.data


@pytest.mark.parametrize("code", [row.code for row in dtypes.DTYPES.values() if row.size])
@pytest.mark.parametrize("shape", [[], [2, 3]])
def test_addresses_of_every_dtype(code, shape):
    memory = np.zeros(shape, dtypes.DTYPES[code].numpy)
    values = OrtValueVector()
    values.push_back_batch([memory], [memory.ctypes.data], [code], [shape], [CPU])
    array = values[0].numpy()
    wanted = np.uint8 if code == TensorProto.FLOAT8E4M3FN else memory.dtype
    assert array.dtype == wanted and array.shape == memory.shape
    array[...] = np.ones(shape).astype(memory.dtype)
    assert array.any() and memory.tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [[2], [0]])
def test_addresses_of_strings(session, shape):
    memory = np.array(["a", "b"], object)
    values, binding = OrtValueVector(), session.io_binding()
    with pytest.raises(errors.BindingError, match="given an address of strings"):
        values.push_back_batch([memory], [memory.ctypes.data], [TensorProto.STRING], [shape], [CPU])
    with pytest.raises(errors.BindingError, match="given an address of strings"):
        binding.bind_output("z", "cpu", 0, TensorProto.STRING, shape, memory.ctypes.data)


@pytest.mark.parametrize("engine", ["q7x2_ep", "onnxruntime"])
def test_outputs_of_a_binding_without_a_run(engine):
    """One for each that is bound: the value that it is bound to, or none yet."""
    api = pytest.importorskip(engine)
    session = api.InferenceSession(scaled(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()

    def outputs() -> list:
        vector = binding.get_outputs_as_ortvaluevector()
        values = binding.get_outputs()
        assert len(values) == len(vector)
        return [value.numpy().tolist() if value.has_value() else None for value in values]

    for name in ("x", "y"):
        binding.bind_cpu_input(name, ONES)
    assert outputs() == []
    binding.bind_output("z")
    assert outputs() == [None]
    session.run_with_iobinding(binding)
    four = (ONES * 4).tolist()
    assert outputs() == [four]
    binding.bind_ortvalue_output("s", api.OrtValue.ortvalue_from_numpy(X))
    assert outputs() == [four, X.tolist()]
    binding.bind_output("z")
    assert outputs() == [None, X.tolist()]
    binding.clear_binding_outputs()
    assert outputs() == []


class TestBinding:
    @pytest.fixture
    def binding(self, session):
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_ortvalue_input("y", OrtValue.ortvalue_from_numpy(ONES))
        return binding

    def test_new_memory(self, session, binding):
        binding.bind_output("z")
        session.run_with_iobinding(binding)
        (value,) = binding.get_outputs()
        (copy,) = binding.copy_outputs_to_cpu()
        np.testing.assert_array_equal(value.numpy(), X + 1)
        np.testing.assert_array_equal(copy, X + 1)

    @pytest.mark.parametrize("element_type", [np.float32, FLOAT, "float32"])
    def test_addresses(self, session, binding, element_type):
        """Read and written in place, run after run."""
        x, z = X.copy(), np.zeros((2, 3), np.float32)
        binding.bind_input("x", "cpu", 0, element_type, (2, 3), x.ctypes.data)
        binding.bind_output("z", "cpu", 0, element_type, (2, 3), z.ctypes.data)
        for step in range(3):
            x += 1
            session.run_with_iobinding(binding, q7x2_ep.RunOptions())
            np.testing.assert_array_equal(z, X + 2 + step)
            assert binding.get_outputs()[0].data_ptr() == z.ctypes.data
        (copy,) = binding.copy_outputs_to_cpu()
        z[:] = 0
        np.testing.assert_array_equal(copy, X + 4)

    def test_ort_values(self, session, binding):
        z = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
        binding.bind_ortvalue_output("z", z)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(z.numpy(), X + 1)

    @pytest.mark.parametrize("place", ["same", "shifted"])
    def test_output_over_an_input(self, session, binding, place):
        memory = np.concatenate([X.reshape(-1), np.zeros(3, np.float32)])
        x, shift = memory[:6].reshape(2, 3), 0 if place == "same" else 3
        z = memory[shift : shift + 6].reshape(2, 3)
        binding.bind_cpu_input("x", x)
        binding.bind_output("z", "cpu", 0, np.float32, (2, 3), z.ctypes.data)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(z, X + 1)

    def test_outputs_that_do_not_fit(self, session, binding):
        z = np.zeros((5, 3), np.float64)
        for kind, shape, words in (
            (np.float32, (5, 3), "dimensions for output: z"),
            (np.float64, (2, 3), "data type"),
        ):
            binding.bind_output("z", "cpu", 0, kind, shape, z.ctypes.data)
            with pytest.raises(RuntimeError, match=words):
                session.run_with_iobinding(binding)
        assert not z.any()

    def test_names_in_the_middle(self):
        with q7x2_ep.InferenceSession(scaled()) as session:
            binding = q7x2_ep.IOBinding(session)
            z = np.zeros((2, 3), np.float32)
            for name, array in (("x", X), ("y", ONES), ("w", np.array([3], np.float32))):
                binding.bind_cpu_input(name, array)
            binding.bind_output("z", "cpu", 0, np.float32, z.shape, z.ctypes.data)
            binding.bind_output("s")
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(z, (X + 1) * 3)
            np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], X + 1)

    def test_clearing(self, session, binding):
        binding.bind_output("nope")
        with pytest.raises(RuntimeError, match="Invalid output name: nope"):
            session.run_with_iobinding(binding)
        binding.clear_binding_outputs()
        with pytest.raises(RuntimeError, match="At least one output"):
            session.run_with_iobinding(binding)
        binding.bind_output("z")
        session.run_with_iobinding(binding)
        binding.clear_binding_inputs()
        with pytest.raises(RuntimeError, match=r"\['x', 'y'\]"):
            session.run_with_iobinding(binding)

    def test_host_steps(self):
        """Outputs of Python steps are copied to where they are wanted."""
        options = q7x2_ep.SessionOptions()
        options.register_op("acme", "Twice", lambda x: 2 * x)
        made = model(
            [node("Twice", "x", domain="acme")],
            [info("x", [2, 3])],
            [info("z", [2, 3])],
            domains=["acme"],
        )
        with q7x2_ep.InferenceSession(made, options) as session:
            binding, z = session.io_binding(), np.zeros((2, 3), np.float32)
            binding.bind_cpu_input("x", X)
            binding.bind_output("z", "cpu", 0, np.float32, z.shape, z.ctypes.data)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(z, 2 * X)


class TestSparse:
    values = np.array([1, 2, 3], np.float32)

    def test_coordinates(self):
        for indices in ([1, 4, 8], [[0, 1], [1, 1], [2, 2]]):
            sparse = q7x2_ep.SparseTensor.sparse_coo_from_numpy(
                np.array([3, 3]), self.values, np.array(indices), CPU
            )
            assert sparse.format() == q7x2_ep.OrtSparseFormat.ORT_SPARSE_COO
            assert (sparse.data_type(), sparse.dense_shape()) == ("sparse_tensor(float)", [3, 3])
            assert sparse.as_coo_view().indices().tolist() == indices
            assert np.shares_memory(sparse.values(), self.values)
            for part in (sparse.values(), sparse.as_coo_view().indices()):
                assert not part.flags.writeable
            for wrong in (sparse.as_csrc_view, sparse.as_blocksparse_view):
                with pytest.raises(RuntimeError, match="does not contain"):
                    wrong()
            value = OrtValue.ort_value_from_sparse_tensor(sparse)
            assert value.is_sparse_tensor() and value.shape() == [3, 3]
            assert value.as_sparse_tensor().values().tolist() == [1, 2, 3]
            with pytest.raises(RuntimeError, match="sparse_tensor"):
                value.numpy()

    def test_rows(self):
        make = q7x2_ep.SparseTensor.sparse_csr_from_numpy
        sparse = make([3, 3], self.values, np.array([1, 1, 2]), np.array([0, 1, 2, 3]), CPU)
        view = sparse.as_csrc_view()
        assert (view.inner().tolist(), view.outer().tolist()) == ([1, 1, 2], [0, 1, 2, 3])
        for inner, outer in (([1, 1], [0, 1, 2, 3]), ([1, 1, 2], [0, 1, 3])):
            with pytest.raises(RuntimeError):
                make([3, 3], self.values, np.array(inner), np.array(outer), CPU)

    def test_lengths(self):
        make = q7x2_ep.SparseTensor.sparse_coo_from_numpy
        with pytest.raises(RuntimeError, match="Index size: 2"):
            make([3, 3], self.values, np.array([1, 4]), CPU)
        words = make([3], np.array(["a", "b"]), np.array([0, 1]), CPU)
        assert words.values().tolist() == ["a", "b"]
