"""Compiled model files: what is opened is what was saved, and what is damaged is refused."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep import importer
from q7x2_ep.backend import saved
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.errors import BindingError, CorruptModel, FeedError, ModelError, StaleModel
from q7x2_ep.feeds import random_feeds
from q7x2_ep.session import Session
from tests.api.models import ONES, add, info, model, node, scaled
from tests.models.files import label, read, select
from tests.models.test_matrix import sizes_of
from tests.unit.plan_blobs import run_alone

# one exporter of every architecture; the whole matrix takes a minute
FILES = [path for path in select(cache=True, halves=True) if "sdpa.dynamo20" in path.name]
ADD_FEED = {"x": ONES, "y": ONES}


def same(one: list, other: list) -> bool:
    """Bit by bit, lists in them too."""
    return repr([type(x) for x in one]) == repr([type(x) for x in other]) and all(
        x.dtype == y.dtype
        and x.shape == y.shape
        and (x.tolist() == y.tolist() if x.dtype == object else x.tobytes() == y.tobytes())
        if isinstance(x, np.ndarray)
        else repr(x) == repr(y)
        for x, y in zip(one, other)
    )


def check_round_trip(data: bytes, feed: dict, path: Path) -> None:
    """Same outputs, and the same answers to every question."""
    with q7x2_ep.InferenceSession(data) as made:
        compiled = q7x2_ep.compile(data, path)
        assert compiled.bytes == path.stat().st_size
        with q7x2_ep.InferenceSession(str(path)) as opened:
            for _ in range(3):  # later runs take shorter ways
                assert same(made.run(None, feed), opened.run(None, feed))
            for name in ("inputs", "outputs", "overridable_initializers"):
                of_both = (getattr(session, f"get_{name}")() for session in (made, opened))
                one, other = ([vars(arg) for arg in args] for args in of_both)
                assert one == other
            assert vars(made.get_modelmeta()) == vars(opened.get_modelmeta())
            assert opened._session.text("plan") == made._session.text("plan")
            if not made._session.program.host_phases:
                sizes = sizes_of(2, 3, 5)
                assert str(q7x2_ep.explain(made, sizes)) == str(q7x2_ep.explain(opened, sizes))


@pytest.mark.parametrize("path", FILES, ids=label)
def test_exports(path, tmp_path):
    data = read(path)
    feed = random_feeds(importer.read(data), dims=sizes_of(2, 3, 5))
    check_round_trip(data, feed, tmp_path / "m.q7")


def weight(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def branches() -> tuple[bytes, dict]:
    """If, whose branches capture constants; Loop; NonZero; native steps between."""
    big = weight("big", np.arange(6, dtype=np.float32).reshape(2, 3))
    then = helper.make_graph([node("Add", "s big", "t")], "then", [], [info("t", None)])
    other = helper.make_graph([node("MatMul", "s wide", "e")], "else", [], [info("e", None)])
    body_nodes = [
        node("Add", "c big", "n"),
        node("Identity", "go", "on"),
        node("Identity", "n", "scan"),
    ]
    body = helper.make_graph(
        body_nodes,
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("c", [2, 3])],
        [info("on", [], TensorProto.BOOL), info("n", None), info("scan", None)],
    )
    nodes = [
        node("Mul", "x x", "s"),
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "cond"),
        node("If", "cond", "f", then_branch=then, else_branch=other),
        node("Loop", "three yes s", "l scanned", body=body),
        node("NonZero", "l", "where"),
        node("Relu", "scanned", "z"),
    ]
    wide = weight("wide", np.arange(9, dtype=np.float32).reshape(3, 3))
    given = [big, wide, weight("zero", np.float32(0)), weight("three", np.int64(3))]
    given.append(weight("yes", np.array(True)))
    outputs = [info("f", None), info("where", None, TensorProto.INT64), info("z", None)]
    return model(nodes, [info("x", ["N", 3])], outputs, given), {"x": ONES}


def texts() -> tuple[bytes, dict]:
    """Strings as constants, inputs and outputs."""
    words = weight("words", np.array(["a", "ä", ""], object))
    inputs = [info("x", ["N"], TensorProto.STRING)]
    nodes = [node("StringConcat", "x words")]
    made = model(nodes, inputs, [info("z", None, TensorProto.STRING)], [words], 20, 9)
    return made, {"x": np.array(["1", "2", "3"], object)}


def optionals() -> tuple[bytes, dict]:
    """A type as an attribute, a sequence as a value."""
    type = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    nodes = [
        node("Optional", "", "nothing", type=type),
        node("OptionalHasElement", "nothing", "has"),
        node("SequenceConstruct", "x x", "seq"),
        node("ConcatFromSequence", "seq", "z", axis=0),
    ]
    outputs = [info("has", None, TensorProto.BOOL), info("z", None)]
    return model(nodes, [info("x", [2, 3])], outputs, opset=18), {"x": ONES}


def trees() -> tuple[bytes, dict]:
    """A forest, which is an object of its own among the attributes."""
    regressor = node(
        "TreeEnsembleRegressor",
        "x",
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[3.0, 4.0],
    )
    inputs, outputs = [info("x", ["N", 3])], [info("z", None)]
    return model([regressor], inputs, outputs, domains=["ai.onnx.ml"]), {"x": ONES}


def shared() -> tuple[bytes, dict]:
    """A weight that is packed in two native phases, and one that is an output."""
    w = weight("w", np.arange(9, dtype=np.float32).reshape(3, 3))
    nodes = [
        node("MatMul", "x w", "a"),
        node("NonZero", "a", "where"),
        node("Cast", "where", "f", to=1),
        node("MatMul", "a w", "b"),
        node("ReduceSum", "f", "s"),
        node("Add", "b s", "z"),
    ]
    return model(nodes, [info("x", ["N", 3])], [info("z", None), info("w", [3, 3])], [w]), {
        "x": ONES
    }


@pytest.mark.parametrize("make", [branches, texts, optionals, trees, shared])
def test_host_steps(make, tmp_path):
    data, feed = make()
    check_round_trip(data, feed, tmp_path / "m.q7")


def test_empty_and_odd_tensors(tmp_path):
    """Weights without elements, scalars, dtypes that numpy does not have."""
    half = helper.make_tensor("h", TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0])
    given = [weight("none", np.ones((0, 3), np.float32)), weight("one", np.float32(1)), half]
    nodes = [
        node("Concat", "x none", "a", axis=0),
        node("Add", "a one", "b"),
        node("Cast", "h", "c", to=1),
        node("Mul", "b c", "z"),
    ]
    data = model(nodes, [info("x", ["N", 3])], [info("z", None), info("h", [3], 16)], given)
    check_round_trip(data, {"x": ONES}, tmp_path / "m.q7")


def test_bytes(tmp_path):
    q7x2_ep.compile(add(), tmp_path / "m.q7")
    data = (tmp_path / "m.q7").read_bytes()
    for given in (data, bytearray(data), memoryview(b"x" + data)[1:]):
        with q7x2_ep.InferenceSession(given) as session:
            np.testing.assert_array_equal(session.run(None, ADD_FEED)[0], 2 * ONES)


def test_saving_what_was_opened(tmp_path):
    data, feed = branches()
    q7x2_ep.compile(data, tmp_path / "a.q7")
    q7x2_ep.compile(tmp_path / "a.q7", tmp_path / "b.q7")
    sessions = q7x2_ep.InferenceSession(data), q7x2_ep.InferenceSession(tmp_path / "b.q7")
    assert same(*(session.run(None, feed) for session in sessions))


def test_opening_needs_no_onnx(tmp_path):
    data, _ = branches()
    q7x2_ep.compile(data, tmp_path / "m.q7")
    code = (
        "import sys, numpy, q7x2_ep\n"
        f"session = q7x2_ep.InferenceSession({str(tmp_path / 'm.q7')!r})\n"
        "session.run(None, {'x': numpy.ones((2, 3), numpy.float32)})\n"
        "assert 'onnx' not in sys.modules and 'google.protobuf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_opening_imports_nothing_that_compiles(tmp_path):
    q7x2_ep.compile(add(), tmp_path / "m.q7")
    code = (
        "import sys, numpy, q7x2_ep\n"
        f"session = q7x2_ep.InferenceSession({str(tmp_path / 'm.q7')!r})\n"
        "ones = numpy.ones((2, 3), numpy.float32)\n"
        "for _ in range(3): session.run(None, {'x': ones, 'y': ones})\n"
        "names = 'importer passes fuse plan.build plan.partition ops.common ir.rewrite'.split()\n"
        "found = [name for name in names if f'q7x2_ep.{name}' in sys.modules]\n"
        "assert 'q7x2_ep.session' in sys.modules and not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_small_model_imports_what_it_needs(tmp_path):
    """Neither protobuf nor fusions and families of ops that it has no use for."""
    (tmp_path / "m.onnx").write_bytes(add())
    code = (
        "import sys, numpy, q7x2_ep\n"
        f"session = q7x2_ep.InferenceSession({str(tmp_path / 'm.onnx')!r})\n"
        "ones = numpy.ones((2, 3), numpy.float32)\n"
        "for _ in range(3): session.run(None, {'x': ones, 'y': ones})\n"
        "names = 'onnx google.protobuf logging q7x2_ep.ir.pattern q7x2_ep.ir.text'.split()\n"
        "names += [f'q7x2_ep.fuse.{name}' for name in ('gelu', 'attention', 'linear')]\n"
        "names += [f'q7x2_ep.ops.{name}' for name in ('matmul', 'conv', 'quant', 'control')]\n"
        "found = [name for name in names if name in sys.modules]\n"
        "assert 'q7x2_ep.ops.elementwise' in sys.modules and not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_intermediate_values_need_the_model(tmp_path):
    q7x2_ep.compile(scaled(), tmp_path / "m.q7")
    with q7x2_ep.InferenceSession(tmp_path / "m.q7") as session:
        assert [arg.name for arg in session.get_overridable_initializers()] == ["w"]
        np.testing.assert_array_equal(session.run(None, ADD_FEED)[0], 4 * ONES)
        with pytest.raises(FeedError, match="open the ONNX model"):
            session.run(["s"], ADD_FEED)
        with pytest.raises(FeedError, match="open the ONNX model"):
            session.run(None, {**ADD_FEED, "w": np.ones(1, np.float32)})
        with pytest.raises(q7x2_ep.ShapeError):
            session.run(None, {"x": ONES, "y": ONES[:, :2]})
        with pytest.raises(q7x2_ep.BackendError, match="no stage ir"):
            session._session.text("ir")


def test_options_that_change_the_model_are_fixed(tmp_path):
    def options(size: int) -> q7x2_ep.SessionOptions:
        made = q7x2_ep.SessionOptions()
        made.add_free_dimension_override_by_name("N", size)
        return made

    q7x2_ep.compile(add(), tmp_path / "m.q7", options(2))
    for given in (None, options(2)):
        with q7x2_ep.InferenceSession(tmp_path / "m.q7", given) as session:
            assert session.get_inputs()[1].shape == [2, 3]
    with pytest.raises(BindingError, match="compiled with other options"):
        q7x2_ep.InferenceSession(tmp_path / "m.q7", options(1))


def test_functions_cannot_be_saved(tmp_path):
    options = q7x2_ep.SessionOptions()
    options.register_op("mine", "Twice", lambda x: 2 * x)
    data = model(
        [node("Twice", "x", name="n", domain="mine")],
        [info("x", [2, 3])],
        [info("z", [2, 3])],
        domains=["mine"],
    )
    with pytest.raises(q7x2_ep.UnsupportedOp, match=r"q7::Python n.*a function cannot be saved"):
        q7x2_ep.compile(data, tmp_path / "m.q7", options)
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(ModelError, match="cannot write"):
        q7x2_ep.compile(add(), tmp_path / "no" / "m.q7")


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "m.q7"
    q7x2_ep.compile(branches()[0], path)
    return path.read_bytes()


def signed(data: bytes, change) -> bytes:
    """The file with its head changed, and a checksum that fits."""
    fields = list(saved._PREAMBLE.unpack(data[: saved._PREAMBLE.size]))
    head = json.loads(data[fields[3] :])
    text = json.dumps(change(head) or head).encode()
    fields[2], fields[4] = fields[3] + len(text), len(text)
    preamble = saved._PREAMBLE.pack(*fields)
    start = preamble + hashlib.sha256(preamble + text).digest()
    return start + data[len(start) : fields[3]] + text


def test_a_signed_file_opens(whole):
    with q7x2_ep.InferenceSession(signed(whole, lambda head: None)) as session:
        session.run(None, {"x": ONES})


def test_every_cut_and_every_flip_of_the_head_is_found(whole):
    numbers = random.Random(1)
    head = struct.unpack_from("<Q", whole, 24)[0]
    for length in [*range(100), *(numbers.randrange(len(whole)) for _ in range(100))]:
        with pytest.raises(ModelError):  # a short one is taken for a broken ONNX model
            q7x2_ep.InferenceSession(whole[:length])
    with pytest.raises(CorruptModel):
        q7x2_ep.InferenceSession(whole + b"\0")
    places = [
        *range(len(saved.MAGIC), 72),
        *(numbers.randrange(head, len(whole)) for _ in range(200)),
    ]
    for at in places:
        broken = bytearray(whole)
        broken[at] ^= 1 << numbers.randrange(8)
        with pytest.raises((CorruptModel, StaleModel)):
            q7x2_ep.InferenceSession(broken)


def test_flips_of_weights_are_found_on_demand(whole, monkeypatch):
    broken = bytearray(whole)
    broken[saved.PAYLOAD] ^= 1
    with q7x2_ep.InferenceSession(broken) as session:
        session.run(None, {"x": ONES})
    monkeypatch.setenv("Q7X2_VERIFY", "1")
    q7x2_ep.InferenceSession(whole).close()
    with pytest.raises(CorruptModel, match="weights"):
        q7x2_ep.InferenceSession(broken)


def test_flips_of_indices_are_found(tmp_path):
    """As they lead through the trees of a forest, in which nothing looks where it goes."""
    q7x2_ep.compile(trees()[0], tmp_path / "m.q7")
    data = (tmp_path / "m.q7").read_bytes()
    end = struct.unpack_from("<Q", data, 24)[0]
    head = json.loads(data[end:])
    kinds = (TensorProto.INT32, TensorProto.INT64)
    places = [at for code, shape, at in head["arrays"] if code in kinds and np.prod(shape)]
    assert len(places) >= 3  # nodes, roots and votes
    for at in places:
        broken = bytearray(data)
        broken[at + 1] ^= 64
        with pytest.raises(CorruptModel, match="indices"):
            q7x2_ep.InferenceSession(broken)


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("abi", "0", "of abi 0"),
        ("package", "0.0", "of package 0.0"),
        ("isa", "avx9000", "Q7X2_ISA"),
    ],
)
def test_files_of_others_are_stale(whole, key, value, message):
    with pytest.raises(StaleModel, match=message):
        q7x2_ep.InferenceSession(signed(whole, lambda head: {**head, key: value}))


def test_files_of_another_version_are_stale(whole):
    with pytest.raises(StaleModel, match=f"version {saved.VERSION + 1}"):
        q7x2_ep.InferenceSession(whole[:8] + struct.pack("<Q", saved.VERSION + 1) + whole[16:])


def test_a_file_for_a_lesser_cpu_opens(tmp_path):
    isas = [row.isa for row in load().target.kernels if row.supported]
    code = (
        f"import q7x2_ep; q7x2_ep.compile({str(tmp_path / 'm.onnx')!r}, {str(tmp_path / 'm.q7')!r})"
    )
    (tmp_path / "m.onnx").write_bytes(add())
    environment = {**__import__("os").environ, "Q7X2_ISA": isas[-1]}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    with q7x2_ep.InferenceSession(tmp_path / "m.q7") as session:
        np.testing.assert_array_equal(session.run(None, ADD_FEED)[0], 2 * ONES)


def mutate(value, numbers: random.Random):
    """The JSON with one leaf, or one container, replaced or lost."""
    if isinstance(value, dict) and value and numbers.random() < 0.9:
        key = numbers.choice(list(value))
        return {**value, key: mutate(value[key], numbers)}
    if isinstance(value, list) and value and numbers.random() < 0.9:
        at = numbers.randrange(len(value))
        rest = [mutate(value[at], numbers)] if numbers.random() < 0.9 else []
        return [*value[:at], *rest, *value[at + 1 :]]
    if isinstance(value, int) and numbers.random() < 0.6:
        return value + numbers.choice([-1, 1, 1 << 20, -(1 << 40), 1 << 70])
    return numbers.choice([None, 0, -1, 2.5, "", "x", [], {}, {"r": 0}, {"a": 9}, {"zz": 1}, [[]]])


def open_mutated() -> None:
    """The body of test_heads_that_nobody_wrote, in a process that may crash."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        Session(branches()[0]).save(f"{folder}/m.q7")
        data = Path(f"{folder}/m.q7").read_bytes()
    numbers = random.Random(2)
    refused = 0
    for _ in range(600):
        broken = signed(data, lambda head: {**head, "content": mutate(head["content"], numbers)})
        try:
            q7x2_ep.InferenceSession(broken).close()
        except q7x2_ep.Q7Error:
            refused += 1
    assert refused > 100


def test_heads_that_nobody_wrote():
    run_alone("open_mutated", __name__)


# Processes


def first_output(model, feed: dict, queue, wait) -> None:
    with q7x2_ep.InferenceSession(model) as session:
        outputs = session.run(None, feed)
        queue.put((outputs[0], session.memory_report()))
        wait.wait(60)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_share_the_weights(method, tmp_path):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    data = read(select("bert")[0])
    q7x2_ep.compile(data, tmp_path / "m.q7")
    feed = random_feeds(importer.read(data), dims=sizes_of(2, 3, 5))
    context = multiprocessing.get_context(method)
    queue, done = context.Queue(), context.Event()
    path = str(tmp_path / "m.q7")
    with q7x2_ep.InferenceSession(path) as session:
        expected = session.run(None, feed)[0]
        children = [
            context.Process(target=first_output, args=(path, feed, queue, done)) for _ in range(2)
        ]
        for child in children:
            child.start()
        results = [queue.get(timeout=60) for _ in children]
        here = session.memory_report()
        done.set()
        for child in children:
            child.join()
    for output, report in results:
        assert output.tobytes() == expected.tobytes()
        assert report.packed == report.weights == 0 < report.mapped_packed
    if here.resident is not None:
        assert here.shared > 0.9 * here.resident > 0


def test_pickles(tmp_path):
    q7x2_ep.compile(add(), tmp_path / "m.q7")
    with q7x2_ep.InferenceSession(tmp_path / "m.q7") as session:
        text = pickle.dumps(session)
    assert len(text) < 4000  # a path and options
    np.testing.assert_array_equal(pickle.loads(text).run(None, ADD_FEED)[0], 2 * ONES)


# Memory


def test_memory_report_and_trim():
    data = read(select("bert")[0])
    feed = random_feeds(importer.read(data), dims=sizes_of(2, 3, 5))
    with q7x2_ep.InferenceSession(data) as session:
        expected = session.run(None, feed)
        before = session.memory_report()
        assert before.packed > 0 < before.weights
        assert (arena := before.arenas[0]) > 0 and len(before.arenas) == 1
        assert before.private == before.packed + before.weights + arena
        assert f"{before.packed:,}" in str(before)
        session.trim()
        assert session.memory_report().arenas == ()
        assert same(session.run(None, feed), expected)
        options = q7x2_ep.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "")
        session.run(None, feed, options)
        assert session.memory_report().arenas == (arena,)
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        assert same(session.run(None, feed, options), expected)
        assert session.memory_report().arenas == ()


def test_memory_of_bodies():
    """A body that was compiled in a run counts, and is trimmed."""
    data, feed = branches()
    with q7x2_ep.InferenceSession(data) as session:
        before = session.memory_report()
        session.run(None, feed)
        after = session.memory_report()
        assert len(after.arenas) > len(before.arenas) and after.private > before.private
        session.trim()
        assert session.memory_report().arenas == ()
