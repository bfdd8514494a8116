"""Our reader of protobuf's wire format sees what protobuf sees."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from q7x2_ep.importer.wire import Message, parse
from tests.models.files import read, select


def assert_same(ours: Message, theirs: Any) -> None:
    """Every field of a message that ours knows, and whether it is there."""
    for name, is_repeated, kind in ours.fields.values():
        mine, wanted = getattr(ours, name), getattr(theirs, name)
        if not is_repeated:
            assert ours.HasField(name) == theirs.HasField(name), name
            mine, wanted = [mine], [wanted]
        assert len(mine) == len(wanted), name
        for each, other in zip(mine, wanted):
            if not isinstance(each, Message):
                assert bytes(each) == other if kind == "view" else each == other, name
            elif is_repeated or ours.HasField(name):
                assert_same(each, other)


def as_varint(value: int) -> bytes:
    septets = []
    while value > 127:
        septets.append(value & 127 | 128)
        value >>= 7
    return bytes([*septets, value])


@pytest.mark.parametrize("path", select(cache=True)[::6], ids=lambda path: path.name)
def test_exported_models(path):
    data = read(path)
    theirs = onnx.ModelProto.FromString(data)
    ours = parse(data)
    assert_same(ours, theirs)
    for mine, wanted in zip(ours.graph.value_info, theirs.graph.value_info):
        assert_same(mine, wanted)


def test_every_kind_of_field():
    tensors = [
        helper.make_tensor("f", TensorProto.FLOAT, [3], [1.5, -2.0, float("inf")]),
        helper.make_tensor("i", TensorProto.INT64, [4], [0, -1, 2**63 - 1, -(2**63)]),
        helper.make_tensor("n", TensorProto.INT32, [200], np.arange(-100, 100) << 20),
        helper.make_tensor("u", TensorProto.UINT64, [2], [2**64 - 1, 5]),
        helper.make_tensor("d", TensorProto.DOUBLE, [2], [1e300, -0.5]),
        helper.make_tensor("s", TensorProto.STRING, [2], [b"\xff", b""]),
        numpy_helper.from_array(np.zeros((0, 3), np.float32), "empty"),
    ]
    body = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "body", [], [], tensors)
    node = helper.make_node(
        "If", ["c"], ["d"], then_branch=body, numbers=[-1, 300], values=[0.5], text="ü", number=-7
    )
    node.attribute.append(helper.make_attribute("tp", helper.make_tensor_type_proto(1, [2, "n"])))
    types = [
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(1, None)),
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(7, [None])),
        helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [])),
        helper.make_sparse_tensor_type_proto(1, [3]),
    ]
    inputs = [helper.make_value_info(f"x{i}", type) for i, type in enumerate(types)]
    sparse = helper.make_sparse_tensor(tensors[0], tensors[1], [9])
    graph = helper.make_graph(
        [node], "graph", inputs, [], tensors, sparse_initializer=[sparse], doc_string="doc"
    )
    call = helper.make_function("own", "F", ["x"], ["y"], [], [helper.make_opsetid("", 17)])
    model = helper.make_model(graph, functions=[call])
    helper.set_model_props(model, {"key": "value"})
    ours = parse(model.SerializeToString())
    assert_same(ours, model)
    assert [each.type.WhichOneof("value") for each in ours.graph.input] == [
        each.type.WhichOneof("value") for each in model.graph.input
    ]
    (attr,) = (each for each in ours.graph.node[0].attribute if each.name == "then_branch")
    assert attr.g.as_onnx() == body


def test_numbers_packed_or_not_and_messages_in_parts():
    packed = b"".join(map(as_varint, [3, 300, 2**64 - 2]))
    apart = b"".join(b"\x08" + as_varint(dim) for dim in (1, 2))
    floats = b"\x25" + struct.pack("<f", 2.5)
    tensor = b"\x0a" + as_varint(len(packed)) + packed + apart + floats
    graph = b"\x2a" + as_varint(len(tensor)) + tensor
    data = b"".join(b"\x3a" + as_varint(len(part)) + part for part in (graph, b"\x12\x01n"))
    ours = parse(data)
    assert ours.graph.initializer[0].dims == [3, 300, -2, 1, 2]
    assert_same(ours, onnx.ModelProto.FromString(data))


def test_many_packed_numbers_in_parts():
    floats = np.random.default_rng(5).standard_normal(300).astype("<f4").tobytes()
    ints = b"".join(map(as_varint, range(200)))
    parts = [(0x3A, floats), (0x42, ints), (0x42, ints[:9]), (0x3A, floats[:8])]
    attribute = b"".join(bytes([tag]) + as_varint(len(part)) + part for tag, part in parts)
    for whole in (attribute, attribute[: 2 + len(floats) + 1]):
        data = within_a_model(whole)
        assert_same(parse(data), onnx.ModelProto.FromString(data))


def within_a_model(attribute: bytes) -> bytes:
    for tag in (b"\x2a", b"\x0a", b"\x3a"):  # of a node, of a graph, of a model
        attribute = tag + as_varint(len(attribute)) + attribute
    return attribute


def test_many_elements_with_a_tag_each():
    """Read together, until another field or the end comes."""
    random = np.random.default_rng(3)
    ints = (random.integers(-(2**62), 2**62, 500) >> random.integers(0, 63, 500)).tolist()
    floats = random.standard_normal(500).astype(np.float32).tolist()
    texts = [b"x" * int(n) for n in random.integers(0, 20, 500)]
    texts[300], texts[-1] = b"long" * 100, b"end"
    for given in (ints, floats, texts, ints[:65], floats[:65], texts[-65:], [-1] * 200):
        attribute = helper.make_attribute("a", given).SerializeToString()
        for part in (attribute, attribute * 2):  # two in a row are one
            data = within_a_model(part)
            assert_same(parse(data), onnx.ModelProto.FromString(data))
        cut = within_a_model(attribute[:-4])  # three bytes are the type's
        with pytest.raises(DecodeError):
            onnx.ModelProto.FromString(cut)
        with pytest.raises(ValueError, match=r"cut off|out of range|requires a buffer"):
            parse(cut)


@pytest.mark.parametrize(
    "data",
    [b"\x3a\x05\x12", b"\x3a", b"\x80", b"\x3a\x02\x12\x7f" + bytes(200), b"\x0b", b"\x28\x80"],
    ids=["cut off", "no length", "no tag", "longer than what holds it", "a group", "no number"],
)
def test_what_is_cut_off_is_refused(data):
    with pytest.raises(ValueError):
        parse(data)


def test_deep_nesting_is_refused():
    data = b""
    for tag in (0x32, 0x2A, 0x0A) * 2000:  # g of an attribute of a node of a graph
        data = bytes([tag]) + as_varint(len(data)) + data
    with pytest.raises(ValueError):
        parse(b"\x3a" + as_varint(len(data)) + data)
