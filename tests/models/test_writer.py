"""The optimised model that is written is ONNX that onnxruntime opens, answers included; read again,
it fuses to the same graph.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import q7x2_ep
from q7x2_ep import importer, passes
from q7x2_ep.__main__ import main
from q7x2_ep.errors import ModelError
from q7x2_ep.feeds import random_feeds
from q7x2_ep.importer import writer
from q7x2_ep.ir.core import Graph
from q7x2_ep.models import small_models
from tests.fusion.battery import fused_graph
from tests.fuzz import test_random_control as control
from tests.models.files import CORE, label, read, select

onnxruntime = pytest.importorskip("onnxruntime", reason="it opens what was written")

BERT = small_models()["bert"]


def open_session(model):
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    try:
        given = model if isinstance(model, bytes) else str(model)
        return onnxruntime.InferenceSession(given, quiet)
    except Exception as error:
        if "opset" in str(error) and "ai.onnx" in str(error):
            pytest.skip("this onnxruntime is older than opset 23")
        raise


def compiled(model) -> Graph:
    return fused_graph(model)[0]


def structure(graph: Graph) -> list[str]:
    """One line per node, in an order and with names that only depend on how they are connected.

    A transposed weight may be transposed in place, and an attention without a mask has no masked
    rows.
    """
    numbers: dict[int, int] = {}
    lines = []

    def operand(value):
        if value is None:
            return "_"
        if value.const is not None:
            return f"{value.const.dtype}{sorted(value.const.shape)}"
        if value.producer is None:
            return str(value.elements or value.name)
        if id(value) not in numbers:
            node = value.producer
            inputs = [operand(x) for x in node.inputs]
            attrs = {
                name: float(f"{attr:.6g}") if isinstance(attr, float) else attr  # ONNX has float32
                for name, attr in sorted(node.attrs.items())
                if name != "trans_b"
            }
            if len(inputs) < 4:
                attrs.pop("zero_masked_rows", None)
            for output in node.outputs:
                numbers[id(output)] = len(numbers)
            lines.append(f"{numbers[id(node.output)]} = {node.op}({', '.join(inputs)}) {attrs}")
        return f"%{numbers[id(value)]}"

    ends = [operand(value) for value in graph.outputs]
    return [*lines, *ends]


@pytest.mark.parametrize("file", select(*CORE), ids=label)
def test_onnxruntime_opens_the_optimized_model(file, tmp_path):
    model, path = read(file), tmp_path / "optimized.onnx"
    options = q7x2_ep.SessionOptions(optimized_model_filepath=str(path))
    session = q7x2_ep.InferenceSession(model, options)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    theirs = open_session(path)
    graph = importer.read(model)
    passes.run_all(graph)
    for batch, length in ((1, 7), (3, 16)):
        feeds = random_feeds(graph, batch, length)
        for ours, other in zip(session.run(None, feeds), theirs.run(None, feeds)):
            scale = float(np.abs(other).max(initial=1e-6))
            # two float32 evaluations of some 30 layers of ops: a few dozen ulp of the largest value
            np.testing.assert_allclose(ours, other, rtol=0, atol=4e-6 * scale)
    assert structure(compiled(path)) == structure(compiled(model))


def test_fused_ops_are_standard_ops_or_functions(tmp_path):
    path = tmp_path / "out.onnx"
    found = q7x2_ep.optimize(BERT, path)
    model = onnx.load(path)
    graph = compiled(BERT)
    assert sum(found.nodes.values()) == len(graph.nodes) < sum(found.nodes_before.values()) / 2
    assert found.fusions["Attention"] == found.nodes["q7::Attention"]
    functions = {(f.name, f.overload) for f in model.functions}
    calls = [node for node in model.graph.node if node.domain == "q7"]
    assert {(node.op_type, node.overload) for node in calls} == functions
    assert {node.op_type for node in calls} <= {"Attention", "Linear", "SkipLayerNorm"}
    assert all(function.doc_string for function in model.functions)
    assert {name for function in model.functions for name in function.input} >= {"x", "w", "q", "k"}


def test_without_fusion_all_ops_are_standard(tmp_path):
    path = tmp_path / "out.onnx"
    found = q7x2_ep.optimize(BERT, path, fusion=False)
    model = onnx.load(path)
    assert not model.functions and not found.fusions
    assert {node.domain for node in model.graph.node} == {""}


def small(text: str) -> bytes:
    """A model of opset 20: the text of its graph."""
    header = '<ir_version: 9, opset_import: ["" : 20]>'
    return onnx.parser.parse_model(f"{header} {text}").SerializeToString()


def assert_same_in_onnxruntime(model, path, feeds):
    """What is written means what it was made of, fused or not, to another engine and to us."""
    theirs = open_session(model)
    for fusion in (False, True):
        q7x2_ep.optimize(model, path, fusion=fusion)
        onnx.checker.check_model(onnx.load(path))
        written = open_session(path), q7x2_ep.InferenceSession(str(path))
        for feed in feeds:
            wanted = theirs.run(None, feed)
            for session in written:
                for made, expected in zip(session.run(None, feed), wanted):
                    control.assert_same(made, expected, str(fusion))


@pytest.mark.parametrize("seed", range(12))
def test_control_flow_is_written(seed, tmp_path):
    """Bodies with captures, of loops, branches and functions, sequences and optionals."""
    feeds = [control.feeds(seed + rows, rows) for rows in (1, 2, 5)]
    assert_same_in_onnxruntime(control.Growth(seed).model(), tmp_path / "out.onnx", feeds)


def test_what_is_behind_an_unknown_rank_is_written(tmp_path):
    model = small("""g (float[a, b] x, bool c) => (float[n] y) {
        z = If (c) <then_branch = t () => (float[m] t0) { t1 = Constant <value_ints = [-1]> ()
            t0 = Reshape (x, t1) }, else_branch = e () => (float[k, l] e0) { e0 = Neg (x) }>
        r = Exp (z)
        one = Constant <value_ints = [-1]> ()
        y = Reshape (r, one) }""")
    x = np.ones((2, 3), np.float32)
    feeds = [{"x": x, "c": np.array(c)} for c in (False, True)]
    assert_same_in_onnxruntime(model, tmp_path / "out.onnx", feeds)


def test_sizes_that_are_rounded_up(tmp_path):
    """ceil(n / 3) is -floor(-n / 3), and integers are divided towards zero."""
    model = small("""g (float[n] x) => (int64[m] y) {
        zero = Constant <value_ints = [0]> ()
        end = Constant <value_ints = [99]> ()
        step = Constant <value_ints = [3]> ()
        part = Slice (x, zero, end, zero, step)
        y = Shape (part) }""")
    feeds = [{"x": np.zeros(n, np.float32)} for n in range(1, 8)]
    assert_same_in_onnxruntime(model, tmp_path / "out.onnx", feeds)


def test_sizes_that_data_tells(tmp_path):
    model = small("""g (float[n] x, int64 k) => (float[m] y, int64[p] z) {
        found = NonZero (x)
        shape = Shape (found)
        one = Constant <value_ints = [1]> ()
        count = Gather (shape, one)
        wide = Reshape (k, one)
        both = Add (count, wide)
        y = ConstantOfShape (both)
        z = Shape (y) }""")
    x = np.array([0, 1, 0, 2, 3], np.float32)
    feeds = [{"x": x[:n], "k": np.array(k)} for n, k in ((5, 0), (3, 4))]
    assert_same_in_onnxruntime(model, tmp_path / "out.onnx", feeds)


def test_attributes_of_our_own_stay_here(tmp_path):
    model = small("""g (float[n] x, int64[1] starts, int64[1] ends) => (float[m] y, float[k] z) {
        y = Slice (x, starts, ends)
        shape = Shape (y)
        count = Squeeze (shape)
        end = Cast <to = 1> (count)
        zero = Constant <value_float = 0.0> ()
        one = Constant <value_float = 1.0> ()
        z = Range (zero, end, one) }""")
    x = np.arange(9, dtype=np.float32)
    bounds = [np.array(each) for each in ([2], [-1], [99])]
    feeds = [{"x": x, "starts": bounds[0], "ends": end} for end in bounds[1:]]
    assert_same_in_onnxruntime(model, tmp_path / "out.onnx", feeds)


def test_maps_and_ops_of_ai_onnx_ml(tmp_path):
    header = '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>'
    text = """g (float[n, 2] x) => (seq(map(int64, float)) y, int64[n] z) {
        scaled = ai.onnx.ml.Scaler <offset = [0.5, 0.25], scale = [2.0, 4.0]> (x)
        y = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 5]> (scaled)
        axis = Constant <value_ints = [1]> ()
        sums = ReduceSum <keepdims = 0> (scaled, axis)
        whole = Cast <to = 7> (sums)
        z = ai.onnx.ml.LabelEncoder <keys_int64s = [2], values_int64s = [9]> (whole) }"""
    path, x = tmp_path / "out.onnx", np.array([[0.5, 0.75], [3, 4]], np.float32)
    model = onnx.parser.parse_model(f"{header} {text}").SerializeToString()
    wanted = open_session(model).run(None, {"x": x})
    q7x2_ep.optimize(model, path)
    for session in (open_session(path), q7x2_ep.InferenceSession(str(path))):
        maps, labels = session.run(None, {"x": x})
        assert (maps, labels.tolist()) == (wanted[0], wanted[1].tolist())


def test_outputs_of_16_bits(tmp_path):
    """What is cast back at the end has the name of the output, which no inner value may have."""
    model = small("""g (float16[n, 8] x, float16[8] w) => (float16[n, 8] y) {
        y = LayerNormalization (x, w) }""")
    x = np.linspace(-2, 2, 24, dtype=np.float16).reshape(3, 8)
    feeds = [{"x": x, "w": x[1]}]
    assert_same_in_onnxruntime(model, tmp_path / "out.onnx", feeds)


def test_an_attention_with_a_scale_of_0(tmp_path):
    model = small("""g (float[b, h, s, 4] q, float[b, h, t, 4] k) => (float[b, h, s, 4] y) {
        zero = Constant <value_float = 0.0> ()
        turned = Transpose <perm = [0, 1, 3, 2]> (k)
        scores = MatMul (q, turned)
        scaled = Mul (scores, zero)
        p = Softmax <axis = -1> (scaled)
        y = MatMul (p, k) }""")
    x = np.linspace(-2, 2, 48, dtype=np.float32).reshape(1, 2, 6, 4)
    assert_same_in_onnxruntime(model, tmp_path / "out.onnx", [{"q": x[:, :, :2], "k": x}])


def test_scans_of_batches_have_no_form(tmp_path):
    scan = onnx.parser.parse_model("""<ir_version: 3, opset_import: ["" : 8]>
        g (float[b, s] h, float[b, t, s] x) => (float[b, s] y, float[b, t, s] z) {
        y, z = Scan <num_scan_inputs = 1, body = step (float[s] a, float[s] c) =>
            (float[s] d, float[s] e) { d = Add (a, c) e = Identity (d) }> ("", h, x) }""")
    with pytest.raises(ModelError, match=r"Scan.*batches"):
        q7x2_ep.optimize(scan.SerializeToString(), tmp_path / "out.onnx")


def test_metadata_stays(tmp_path):
    model = onnx.load(BERT)
    model.doc_string, model.model_version, model.domain = "what it is", 7, "org.example"
    onnx.helper.set_model_props(model, {"author": "us"})
    q7x2_ep.optimize(model, tmp_path / "out.onnx")
    with q7x2_ep.InferenceSession(str(tmp_path / "out.onnx")) as session:
        meta = session.get_modelmeta()
    assert (meta.description, meta.version, meta.domain) == ("what it is", 7, "org.example")
    assert meta.custom_metadata_map == {"author": "us"}


def test_external_weights_stay_external(tmp_path):
    given, written = tmp_path / "given.onnx", tmp_path / "written.onnx"
    onnx.save(onnx.load(BERT), given, save_as_external_data=True, location="given.bin")
    q7x2_ep.optimize(given, written)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "given.bin",
        "given.onnx",
        "written.onnx",
        "written.onnx.data",
    ]
    model = onnx.load(written, load_external_data=False)
    large = [t for t in model.graph.initializer if t.data_location == t.EXTERNAL]
    offsets = [int(e.value) for t in large for e in t.external_data if e.key == "offset"]
    assert large and all(offset % writer.ALIGNMENT == 0 for offset in offsets)
    feeds = random_feeds(importer.read(BERT), 2, 9)
    wanted = q7x2_ep.InferenceSession(BERT).run(None, feeds)
    for session in (open_session(written), q7x2_ep.InferenceSession(str(written))):
        for ours, true in zip(session.run(None, feeds), wanted):
            np.testing.assert_allclose(ours, true, rtol=0, atol=1e-5)


def test_large_weights_become_external(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "EXTERNAL_ABOVE", 1 << 10)
    q7x2_ep.optimize(BERT, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").stat().st_size > 1 << 10
    open_session(tmp_path / "out.onnx")


def test_a_model_may_be_optimized_in_place(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load(BERT), path, save_as_external_data=True, location="model.onnx.data")
    for _ in range(2):
        q7x2_ep.optimize(path, path)
    assert structure(compiled(path)) == structure(compiled(BERT))


def test_what_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.onnx"
    path.write_bytes(b"old")

    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(writer, "_tensor", fail)
    with pytest.raises(ModelError, match=r"cannot write .*/out\.onnx': disk full"):
        q7x2_ep.optimize(BERT, path)
    assert [file.name for file in tmp_path.iterdir()] == ["out.onnx"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("place", ["", "absent/out.onnx"])
def test_what_is_no_place_for_a_file_is_named_itself(place, tmp_path):
    """Not the temporary file that would have been renamed; through SessionOptions, too."""
    options = q7x2_ep.SessionOptions()
    path = options.optimized_model_filepath = str(tmp_path / place)
    for write in (q7x2_ep.optimize, lambda model, _: q7x2_ep.InferenceSession(model, options)):
        with pytest.raises(ModelError, match=f"cannot write {path!r}: "):
            write(BERT, path)
    assert not list(tmp_path.iterdir())


def test_command_line(tmp_path, capsys):
    path = tmp_path / "out.onnx"
    assert main(["optimize", BERT, str(path)]) == 0
    out = capsys.readouterr().out
    assert "q7::Attention" in out and all(len(line) <= 80 for line in out.splitlines())
    assert main(["optimize", str(tmp_path / "absent.onnx"), str(path)]) == 2
    assert main(["optimize", BERT, str(path), "--no-fusion"]) == 0
    assert "q7::" not in capsys.readouterr().out
