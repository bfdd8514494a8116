"""Runs with the shapes of the run before take a short way (backend/cpu/lane.py): whatever changes
between two runs, each gives what a first run would.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from q7x2_ep import errors
from q7x2_ep.backend.cpu.lane import COPIED_BYTES
from q7x2_ep.backend.cpu.outputs import KEPT_BYTES
from tests.api.models import FLOAT, info, model, node

OTHER = "it is the other engine"
SUMS = 4 * float(np.finfo(np.float32).eps)  # of four products each, in an exponential
GREEN = "gr\u00fcn"
STRING, INT64 = TensorProto.STRING, TensorProto.INT64
SMALL, LARGE = 4, COPIED_BYTES // 4 + 1
OF = {"x": [SMALL], "big": ["n"]}


@pytest.fixture
def session():
    """sum = x + x, a small output, and scaled = big * big, one of any size."""
    nodes = [node("Add", "x x", "sum"), node("Mul", "big big", "square")]
    inputs = [info(name, shape) for name, shape in OF.items()]
    outputs = [info("sum", [SMALL], FLOAT), info("square", ["n"], FLOAT)]
    with q7x2_ep.InferenceSession(model(nodes, inputs, outputs)) as session:
        yield session


def feed(seed: int, n: int = LARGE) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.random(SMALL, np.float32), "big": rng.random(n, np.float32)}


def check(outputs: list, fed: dict) -> None:
    np.testing.assert_array_equal(outputs[0], fed["x"] + fed["x"])
    np.testing.assert_array_equal(outputs[1], fed["big"] * fed["big"])


@pytest.mark.parametrize("n", [0, 1, LARGE])
def test_values_change_and_results_stay(session, n):
    fed = [feed(seed, n) for seed in range(5)]
    made = [session.run(None, each) for each in fed]
    for outputs, each in zip(made, fed):
        check(outputs, each)
        assert all(output.flags.owndata and output.flags.writeable for output in outputs)


@pytest.mark.parametrize("names", [["square"], ("square", "sum"), ["sum", "sum"], [], ["sum"]])
def test_some_outputs_in_any_order(session, names, monkeypatch):
    """They go the short way, too."""
    fed = feed(1)
    for _ in range(3):
        session.run(None, fed)
    wanted = dict(zip(("sum", "square"), session.run(None, fed)))
    monkeypatch.setattr(session, "_run", None)
    made = session.run(names, fed)
    assert len(made) == len(names or wanted)
    for output, name in zip(made, names or wanted):
        np.testing.assert_array_equal(output, wanted[name])


def test_what_kernels_cannot_read_in_place_goes_the_long_way(session):
    fed = feed(1)
    for _ in range(3):
        session.run(None, fed)
    run_again = session._session.program.run_again
    assert run_again(fed) is not None
    data = fed["big"].tobytes()
    loose = np.frombuffer(b" " + data, np.float32, offset=1)
    strided = np.repeat(fed["big"], 2)[::2]
    for big in (loose, strided):
        assert run_again({**fed, "big": big}) is None
        check(session.run(None, {**fed, "big": big}), fed)


def test_shapes_strides_and_kinds_change(session):
    for n in (LARGE, LARGE, LARGE, 3, 3, 3, LARGE):
        check(session.run(None, feed(n, n)), feed(n, n))
    fed = feed(1)
    fed["big"].flags.writeable = False
    check(session.run([], fed), fed)
    turned = {"x": fed["x"][::-1], "big": fed["big"][::-1]}
    check(session.run(["sum", "square"], turned), turned)
    lists = {"x": fed["x"].tolist(), "big": fed["big"]}
    check(session.run(None, lists), fed)
    check(session.run(None, {**fed, "x": fed["x"].astype(">f4")}), fed)
    square, total = session.run(["square", "sum"], fed)
    check([total, square], fed)


def test_what_does_not_fit_is_refused_as_before(session):
    fed = feed(0)
    for _ in range(3):
        session.run(None, fed)
    wrong = [
        {"x": fed["x"]},
        {**fed, "y": fed["x"]},
        {"x": fed["x"], "y": fed["big"]},
        {**fed, "x": fed["x"].astype(np.float64)},
        {**fed, "x": fed["x"][:3]},
        {**fed, "x": fed["x"][:1]},
        {**fed, "x": fed["x"][None]},
    ]
    for each in wrong:
        with pytest.raises(errors.FeedError):
            session.run(None, each)
    check(session.run(None, fed), fed)
    session._session.close()
    with pytest.raises(errors.BackendError, match="closed"):
        session.run(None, fed)


@pytest.mark.parametrize("n", [5, LARGE])
def test_bound_outputs(session, n):
    """Given arrays are written to, and others are new each time."""
    for given in ((), ("sum",), ("square",), ("sum", "square")):
        binding = session.io_binding()
        arrays = {"sum": np.zeros(SMALL, np.float32), "square": np.zeros(n, np.float32)}
        for name in arrays:
            if name in given:
                value = q7x2_ep.OrtValue.ortvalue_from_numpy(arrays[name])
                binding.bind_ortvalue_output(name, value)
            else:
                binding.bind_output(name)
        for seed in range(4):
            fed = feed(seed, n)
            for name, array in fed.items():
                binding.bind_cpu_input(name, array)
            session.run_with_iobinding(binding)
            check(binding.copy_outputs_to_cpu(), fed)
            for i, name in enumerate(arrays):
                same = np.shares_memory(binding.get_outputs()[i].numpy(), arrays[name])
                assert same == (name in given)
        into = [arrays[name] if name in given else None for name in arrays] if given else ()
        outputs = session._session.program.run_again(fed, into)  # the short way, which is open
        check(outputs, fed)


def test_an_output_over_an_input(session):
    """Each result is of what the inputs held before the run."""
    x, big = feed(0, SMALL).values()
    binding = session.io_binding()
    for name, array in (("x", x), ("big", big)):
        binding.bind_cpu_input(name, array)
    for name, array in (("sum", big), ("square", x)):
        binding.bind_ortvalue_output(name, q7x2_ep.OrtValue.ortvalue_from_numpy(array))
    for _ in range(4):
        before = {"x": x.copy(), "big": big.copy()}
        session.run_with_iobinding(binding)
        check([big, x], before)


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_an_output_in_the_place_of_an_input(n):
    """It is written in place where nothing reads the input later, and through a copy elsewhere."""
    nodes = [node("Neg", "a", "x"), node("Neg", "b", "y"), node("Add", "x b", "z")]
    ins, outs = ([info(name, ["n"], FLOAT) for name in names] for names in ("abc", "xyzw"))
    with q7x2_ep.InferenceSession(model([*nodes, node("Exp", "c", "w")], ins, outs)) as session:
        (code,) = session._session.program.codes
        assert code.encoded.over[0] == 0 and code.encoded.over[3] == 2
        whole = np.zeros(n + 1, np.float32)
        data = dict(zip("abc", np.random.default_rng(0).random((3, n), np.float32)))
        at = {"a": whole[:-1], "b": data["b"].copy(), "c": np.zeros(n, np.float32)}
        same, near = dict(zip("xyw", at.values())), {**at, "x": whole[1:]}
        for outputs in (same, {"x": near["x"]}, {"x": at["c"], "w": at["a"]}, {"w": at["b"]}):
            for _ in range(4):
                for name, array in at.items():
                    array[...] = data[name]
                binding = session.io_binding()
                for name, array in at.items():
                    binding.bind_cpu_input(name, array)
                for name in "xyzw":
                    if name in outputs:
                        value = q7x2_ep.OrtValue.ortvalue_from_numpy(outputs[name])
                        binding.bind_ortvalue_output(name, value)
                    else:
                        binding.bind_output(name)
                session.run_with_iobinding(binding)
                wanted = [-data["a"], -data["b"], data["b"] - data["a"], np.exp(data["c"])]
                for found, each in zip(binding.get_outputs(), wanted):
                    np.testing.assert_allclose(found.numpy(), each, 1e-6)


def test_many_threads(session):
    def work(seed: int) -> None:
        for n in (2, 2, 2, LARGE, LARGE, LARGE):
            check(session.run(None, feed(seed, n)), feed(seed, n))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(64)))


def test_memory_of_a_large_output_is_taken_again_once_nobody_holds_it(session):
    fed = [feed(seed, KEPT_BYTES // 4) for seed in range(8)]

    def big(i: int) -> np.ndarray:
        return session.run(None, fed[i])[1]

    for i in range(2):  # a run, and one that is like it
        big(i)
    place = big(2).ctypes.data
    assert big(3).ctypes.data == place
    assert session.memory_report().arenas[0] >= KEPT_BYTES
    part = memoryview(big(4)[7:9])  # of which no array is left by name
    other = big(5)
    again = session.run(None, {**fed[6], "big": other})[1]
    for have, wanted in (
        (np.asarray(part), (fed[4]["big"] ** 2)[7:9]),
        (other, fed[5]["big"] ** 2),
        (again, (fed[5]["big"] ** 2) ** 2),
    ):
        np.testing.assert_array_equal(have, wanted)
    del part, other, again
    session.trim()
    assert sum(session.memory_report().arenas) == 0


def test_a_cache_that_grows_goes_to_the_memory_of_the_run_before_last(session):
    rows = KEPT_BYTES // 4
    places, before = [], session.run(None, feed(0, rows))[1]
    for step in range(1, 9):  # what the last run returned is held, as it is fed to the next
        fed = feed(step, rows + step)
        fed["big"][:-1] = before
        outputs = session.run(None, fed)
        check(outputs, fed)
        before = outputs[1]
        places.append(before.ctypes.data)
        del outputs
    assert len(set(places)) == 2
    held = [session.run(None, feed(seed, rows))[1] for seed in range(8)]
    for seed, output in enumerate(held):
        np.testing.assert_array_equal(output, feed(seed, rows)["big"] ** 2)
    for _ in range(8):
        session.run(None, feed(0, 1))
    assert sum(session.memory_report().arenas) < KEPT_BYTES  # nothing is kept for long


def table(labels: dict) -> bytes:
    """Two columns of texts and one of numbers, to a class, probabilities and dicts of them."""
    encoder = helper.make_node(
        "OneHotEncoder",
        ["colour"],
        ["flags"],
        domain="ai.onnx.ml",
        cats_strings=["red", GREEN],
    )
    size = helper.make_node(
        "LabelEncoder",
        ["size"],
        ["place"],
        domain="ai.onnx.ml",
        keys_strings=["S", "M", "5"],
        values_floats=[1.0, 2.0, 3.0],
        default_float=-1.0,
    )
    shape = helper.make_node("Constant", [], ["shape"], value_ints=[-1, 2])
    flat = helper.make_node("Reshape", ["flags", "shape"], ["row_of_flags"])
    joined = helper.make_node("Concat", ["row_of_flags", "place", "x"], ["row"], axis=1)
    classes = len(next(iter(labels.values())))
    classifier = helper.make_node(
        "LinearClassifier",
        ["row"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=np.linspace(-1, 1, 4 * classes).tolist(),
        intercepts=[0.1] * classes,
        post_transform="SOFTMAX",
        **{f"classlabels_{kind}": names for kind, names in labels.items()},
    )
    kinds = {f"classlabels_{'int64s' if k == 'ints' else k}": v for k, v in labels.items()}
    dicts = helper.make_node("ZipMap", ["scores"], ["dicts"], domain="ai.onnx.ml", **kinds)
    key = STRING if "strings" in labels else INT64
    inner = helper.make_map_type_proto(key, helper.make_tensor_type_proto(FLOAT, None))
    outputs = [
        info("label", ["n"], key),
        info("scores", ["n", classes]),
        helper.make_value_info("dicts", helper.make_sequence_type_proto(inner)),
    ]
    nodes = [encoder, shape, flat, size, joined, classifier, dicts]
    inputs = [info(name, ["n", 1], STRING) for name in ("colour", "size")] + [info("x", ["n", 1])]
    graph = helper.make_graph(nodes, "table", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("names", [["no", "yes"], [4, 2], ["a", "c", "b"], [7, 8, 9]])
def test_tables(names):
    """Texts that are looked up, and classes that are named, go the short way, too."""
    labels = {"strings" if isinstance(names[0], str) else "ints": names}
    theirs = pytest.importorskip("onnxruntime", reason=OTHER).InferenceSession(table(labels))
    random = np.random.default_rng(1)
    colours = np.array(["red", GREEN, "", "blue"], object)
    sizes = np.array(["S", "M", "L", "5"])
    with q7x2_ep.InferenceSession(table(labels)) as session:
        kept = []
        for turn in range(12):
            n = 1 if turn < 6 else 3
            fed = {
                "colour": random.choice(colours, (n, 1)),
                "size": random.choice(sizes, (n, 1)),
                "x": random.standard_normal((n, 1), np.float32),
            }
            fed["size"] = fed["size"] if turn % 2 else fed["size"].astype(object)
            wanted = theirs.run(None, {**fed, "size": fed["size"].astype(object)})
            assert (session._session.program.run_again(fed) is None) == (turn in (0, 1, 6, 7))
            kept.append((session.run(None, fed), wanted))
        for (label, scores, dicts), (their_label, their_scores, their_dicts) in kept:
            np.testing.assert_array_equal(label, their_label)
            np.testing.assert_allclose(scores, their_scores, rtol=SUMS)
            for row, their_row in zip(dicts, their_dicts):
                assert list(row) == list(their_row)
                assert list(row.values()) == pytest.approx(list(their_row.values()), rel=SUMS)
            assert len(dicts) == len(their_dicts) and label.dtype == their_label.dtype
        others = np.array([[b"M"], [5], [None]], object)
        (label, *_), (same, *_) = (
            session.run(None, {**fed, "size": given})
            for given in (others, np.array([["M"], ["5"], ["None"]], object))
        )
        np.testing.assert_array_equal(label, same)
        with pytest.raises(errors.FeedError, match="UTF-8"):
            session.run(None, {**fed, "size": np.array([["\ud800"]] * 3, object)})
        with pytest.raises(errors.ShapeError):
            session.run(None, {**fed, "size": fed["size"][:2]})
        with pytest.raises(errors.FeedError):
            session.run(None, {**fed, "x": fed["size"]})


def test_words_are_counted():
    """As skl2onnx writes a CountVectorizer, with a classifier behind it."""
    attrs = {"mark": 0, "mincharnum": 1, "pad_value": "#", "tokenexp": "[a-zA-Z0-9_]+"}
    tokens = helper.make_node("Tokenizer", ["s"], ["tokens"], domain="com.microsoft", **attrs)
    counts = helper.make_node(
        "TfIdfVectorizer",
        ["flat"],
        ["counts"],
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=0,
        ngram_counts=[0, 3],
        ngram_indexes=[0, 2, 1, 3],
        pool_strings=["a", "bb", "c", "a", "bb"],
    )
    nodes = [tokens, node("Flatten", "tokens", "flat"), counts, node("Mul", "counts w", "y")]
    inputs = [info("s", ["n", 1], STRING), info("w", [4])]
    graph = helper.make_graph(nodes, "words", inputs, [info("y", ["n", 4])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    theirs = pytest.importorskip("onnxruntime", reason=OTHER).InferenceSession(data)
    texts = [["a bb, bb!"], ["c"], ["a a bb a bb c c zz"], ["#"], ["bb c a"], ["a_b c"]]
    w = np.arange(1, 5, dtype=np.float32)
    with q7x2_ep.InferenceSession(data) as session:
        for turn in range(8):
            fed = {"s": np.roll(np.array(texts, object), turn, 0)[: 1 + turn // 4], "w": w}
            (y,) = session.run(None, fed)  # of as many texts as before, of other lengths
            assert (session._session.program.run_again(fed) is None) == (turn in (0, 4))
            np.testing.assert_array_equal(y, theirs.run(None, fed)[0])
        wide = {"s": np.concatenate([fed["s"], fed["s"]], 1), "w": w}  # as many counts of it
        with pytest.raises(errors.ShapeError, match="the model fixes it to 1"):
            session.run(None, wide)
