"""The command line: what it prints, its files, and its exit codes."""

from __future__ import annotations

import csv
import ctypes
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import q7x2_ep
from q7x2_ep.__main__ import main
from q7x2_ep.models import small_models

BERT = small_models()["bert"]
WIDTH = 100
OTHER_LIBRARY = importlib.util.find_spec("numpy.random.mtrand").origin  # any but libq7


def run(capsys, *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    return captured.out if code != 2 else captured.err


def test_bench_without_models_uses_the_shipped_ones(capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("matplotlib")
    files = [str(tmp_path / name) for name in ("rows.json", "rows.csv", "chart.png")]
    options = ["--seq", "7,16", "--threads", "1,2", "--runs", "1", "--unfused", "--naive"]
    out = run(capsys, "bench", *options, "--json", files[0], "--csv", files[1], "--plot", files[2])
    assert all(len(line) <= WIDTH for line in out.splitlines())
    assert all(name in out for name in small_models())
    with open(files[0]) as file:
        written = json.load(file)
    assert written["environment"]["isa"]
    rows = written["rows"]
    assert len(rows) == 2 * (2 + 2 + 1)  # threads x feeds; the image model has one feed
    assert all(row["accurate"] for row in rows)
    assert all(row["ratio"] > 0 and row["unfused_ms"] and row["naive_ms"] for row in rows)
    with open(files[1], newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    with open(files[2], "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_bench_to_stdout_is_json_only(capsys):
    pytest.importorskip("onnxruntime")
    out = run(capsys, "bench", "bert", "--seq", "7", "--runs", "1", "--no-check", "--json", "-")
    (row,) = json.loads(out)["rows"]
    assert row["accurate"] is None and row["feed"] == "1x7"


def test_a_shipped_model_by_its_name(capsys):
    assert run(capsys, "explain", "bert") == run(capsys, "explain", BERT)


def test_compare_with_given_and_random_inputs(capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    np.save(tmp_path / "ids.npy", np.arange(8, dtype=np.int64)[None])
    given = f"input_ids={tmp_path / 'ids.npy'}"
    out = run(capsys, "compare", BERT, "--input", given, "--seq", "8", "--runs", "1", "--padding")
    assert "last_hidden_state" in out and "pooler_output" in out and "FAIL" not in out


def test_without_onnxruntime_the_remedy_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "q7x2_ep[bench]" in run(capsys, "compare", BERT, code=2)


def test_explain(capsys):
    out = run(capsys, "explain", BERT)
    for part in ("Attention", "arena", "host steps 0", "calls per run 1", "transposes 8 in the"):
        assert part in out
    assert all(len(line) <= WIDTH for line in out.splitlines())


def test_explain_maps_the_arena(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    chart = tmp_path / "arena.png"
    out = run(capsys, "explain", BERT, "--arena", "--plot", str(chart))
    assert all(len(line) <= WIDTH for line in out.splitlines())
    rows = [line.split("|")[1] for line in out.splitlines() if line.count("|") == 2]
    assert 1 < len(rows) <= 24 and len({len(row) for row in rows}) == 1
    assert any("a" in row for row in rows) and any("." in row for row in rows)
    with open(chart, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_buffers_alive_at_once_do_not_overlap():
    explanation = q7x2_ep.explain(BERT)
    for a, b in itertools.combinations(explanation.arena, 2):
        together = a.first <= b.last and b.first <= a.last
        overlap = a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
        assert not (together and overlap), (a, b)
    assert max(b.offset + b.bytes for b in explanation.arena) <= explanation.arena_bytes


def test_near_misses_are_one_line_for_one_reason(capsys, tmp_path):
    """Two GELUs with a wrong constant, and names that are too long for a line."""
    info = onnx.helper.make_tensor_value_info
    nodes, x = [], "x"
    half, one, wrong = (
        onnx.helper.make_tensor(name, 1, [], [value])
        for name, value in (("half", 0.5), ("one", 1.0), ("wrong", 2.5))
    )
    for layer in range(2):
        at = f"/encoder/{'very_' * 12}long/layer.{layer}/"
        for op, inputs in (
            ("Div", [x, "wrong"]),
            ("Erf", [at + "Div"]),
            ("Add", [at + "Erf", "one"]),
            ("Mul", [x, at + "Add"]),
            ("Half", [at + "Mul", "half"]),
            ("Tanh", [at + "Half"]),
        ):
            op_type = "Mul" if op == "Half" else op
            nodes.append(onnx.helper.make_node(op_type, inputs, [at + op], at + op))
        x = at + "Tanh"
    nodes.append(onnx.helper.make_node("Identity", [x], ["y"]))
    ends = [[info(name, 1, ["n", 8])] for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", *ends, [half, one, wrong])
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    out = run(capsys, "explain", str(path))
    lines = out[out.index("near misses") : out.index("steps ")].splitlines()[1:]
    assert any("x2" in line and "2.5" in line for line in lines), lines
    assert all(len(line) <= WIDTH for line in lines)


@pytest.mark.parametrize(
    "stage, part", [("ir", "Softmax"), ("fused", "q7::Attention"), ("plan", "attention_f32_")]
)
def test_dump(capsys, stage, part):
    assert part in run(capsys, "dump", BERT, "--stage", stage)


@pytest.mark.parametrize(
    "after, part, absent",
    [
        ("fold", "Transpose", "q7::"),
        ("GeluTanh", "Gelu(", "q7::"),
        ("LinearBias", "q7::Linear", ""),
    ],
)
def test_dump_in_between(capsys, after, part, absent):
    out = run(capsys, "dump", small_models()["gpt2"], "--after", after)
    assert part in out and (not absent or absent not in out)


def test_dump_after_nothing_known(capsys):
    assert "there are" in run(capsys, "dump", BERT, "--after", "Nonsense", code=2)


def test_run_saves_outputs(capsys, tmp_path):
    feeds = {
        name: np.ones((1, 6), np.int64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    inputs = []
    for name, array in feeds.items():
        np.save(tmp_path / f"{name}.npy", array)
        inputs += ["--input", f"{name}={tmp_path / name}.npy"]
    saved = tmp_path / "out.npz"
    out = run(capsys, "run", BERT, *inputs, "--output", str(saved))
    assert "last_hidden_state  float32 (1, 6, 96)" in out
    with q7x2_ep.InferenceSession(BERT) as session, np.load(saved) as outputs:
        for output, expected in zip(session.get_outputs(), session.run(None, feeds)):
            np.testing.assert_array_equal(outputs[output.name], expected)


def test_run_with_random_inputs(capsys):
    out = run(capsys, "run", small_models()["gpt2"], "--random", "--batch", "2", "--seq", "9")
    assert "logits  float32 (2, 9, 128)" in out


def saved(tmp_path, nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    path = str(tmp_path / "model.onnx")
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_inputs_that_cannot_be_made_up(capsys, tmp_path):
    """Of a rank that the model does not tell: they may be given. And sequences."""
    float32 = TensorProto.FLOAT
    info, z = helper.make_tensor_value_info, helper.make_tensor_value_info("z", float32, None)
    inputs = [info("x", float32, None), info("y", float32, ["n"])]
    path = saved(tmp_path, [helper.make_node("Add", ["x", "y"], ["z"])], inputs, [z])
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--batch", "3"]
    for command in (["run", path, "--random"], ["compare", path, "--runs", "1"], ["bisect", path]):
        message = run(capsys, *command, code=2)
        assert message.startswith("FeedError: [input 'x']") and "--input x=FILE.npy" in message
        if command[0] != "compare" or importlib.util.find_spec("onnxruntime"):
            assert run(capsys, *command, *given)
    inputs = [helper.make_tensor_sequence_value_info("x", float32, None)]
    joined = helper.make_node("ConcatFromSequence", ["x"], ["z"], axis=0)
    path = saved(tmp_path, [joined], inputs, [z])
    message = run(capsys, "run", path, "--random", code=2)
    assert "[input 'x']" in message and "takes no tensor there" in message


def test_run_shows_sequences_and_maps(capsys, tmp_path):
    """Each tensor of them; saved under the same names."""
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], axis=0),
        helper.make_node("ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[5, 7]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, number))
    s = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    path = saved(tmp_path, nodes, [x], [s, helper.make_value_info("m", maps)])
    np.save(tmp_path / "x.npy", np.array([[1, 2], [3, 4]], np.float32))
    file = str(tmp_path / "out.npz")
    out = run(capsys, "run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output", file)
    assert "s[1]  float32 (1, 2)  mean 3.5" in out and "m[1][7]  " in out
    with np.load(file) as outputs:
        assert sorted(outputs) == ["m[0][5]", "m[0][7]", "m[1][5]", "m[1][7]", "s[0]", "s[1]"]
        assert outputs["m[1][7]"] == 4 and outputs["s[0]"].tolist() == [[1, 2]]


def test_doctor_knobs_kernels(capsys):
    out = run(capsys, "doctor")
    for part in ("isa", "abi", "threads", "numpy"):
        assert part in out
    assert json.loads(run(capsys, "doctor", "--json"))["q7x2_ep"] == q7x2_ep.__version__
    assert "Q7X2_ISA" in run(capsys, "knobs")
    assert "gemm_f32_scalar" in run(capsys, "kernels")


def test_errors_are_one_message(capsys, tmp_path):
    corrupt = tmp_path / "corrupt.onnx"
    corrupt.write_bytes(b"junk")
    assert "absent.onnx" in run(capsys, "explain", "absent.onnx", code=2)
    assert "there is none at" in run(capsys, "explain", "x" * 300, code=2)  # no name of a file
    assert "CorruptModel" in run(capsys, "dump", str(corrupt), code=2)
    assert "missing" in run(capsys, "run", BERT, code=2)
    assert "NAME=FILE.npy" in run(capsys, "run", BERT, "--input", "input_ids", code=2)
    with pytest.raises(q7x2_ep.ModelNotFound):
        main(["--debug", "explain", "absent.onnx"])


def test_sizes_that_do_not_fit_name_the_option(capsys, tmp_path):
    text = "g (float[n, 6] x, float[3, 6] w) => (float[m, 6] y) { y = Add(x, w) }"
    path = tmp_path / "rows.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}'), path)
    assert "--dim NAME=SIZE" in run(capsys, "bench", str(path), "--batch", "2", code=2)


def test_wrong_usage_exits_with_2():
    with pytest.raises(SystemExit) as caught:
        main(["dump", BERT, "--stage", "nonsense"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", BERT, "--batch", "-3"], "--batch: expected a whole number from 0 to"),
        (["run", BERT, "--seed", "-1"], "--seed: expected a whole number"),
        (["run", BERT, "--dim", "foo"], "--dim: expected NAME=SIZE, given 'foo'"),
        (["run", BERT, "--dim", "=3"], "--dim: expected NAME=SIZE, given '=3'"),
        (["run", BERT, "--dim", "batch=-1"], "--dim: expected a whole number"),
        (["run", BERT, "--dim", f"batch={10**20}"], "--dim: expected a whole number"),
        (["bench", BERT, "--seq", "7,0"], "--seq: expected a whole number from 1 to"),
        (["bench", BERT, "--runs", "0"], "--runs: expected a whole number from 1 to"),
        (["bench", BERT, "--json", "nodir/x"], "there is no folder 'nodir'"),
        (["bench", BERT, "--csv", "nodir/x"], "there is no folder 'nodir'"),
        (["run", BERT, "--output", "nodir/x"], "there is no folder 'nodir'"),
        (["optimize", BERT, "."], "given '.': it is a folder"),
        (["compile", BERT, ""], "given '': it is no name"),
        (["optimize", BERT, "-"], "given '-': it cannot go to stdout"),
        (["ops", "("], "expected a regular expression, given '('"),
    ],
)
def test_arguments_say_what_is_expected_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_shipped_models_are_listed(capsys):
    assert "shipped models are bert, gpt2, vit" in run(capsys, "run", "brt", code=2)
    for command in ("run", "bench"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert ", ".join(small_models()) in " ".join(capsys.readouterr().out.split())


def test_dims_that_the_model_has_not_are_refused(capsys, tmp_path):
    compiled = str(tmp_path / "model.q7")
    run(capsys, "compile", BERT, compiled)
    for command in (["run", BERT], ["run", compiled], ["compile", BERT, compiled], ["bench"]):
        message = run(capsys, *command, "--dim", "btach=1", code=2)
        assert message.startswith("FeedError: [dim 'btach']")
        assert "batch" in message and "sequence" in message
    out = run(capsys, "run", compiled, "--random", "--seq", "5", "--dim", "batch=2")
    assert "(2, 5, 96)" in out


def test_sizes_that_no_array_has(capsys):
    for size, kind in ((2**31 - 1, "FeedError"), (2**24, "MemoryError")):
        sizes = ["--batch", str(size), "--seq", str(size)]
        assert run(capsys, "run", BERT, "--random", *sizes, code=2).startswith(kind)


def test_files_that_hold_no_feed(capsys, tmp_path):
    empty, array = str(tmp_path / "empty.npy"), str(tmp_path / "array.npy")
    Path(empty).touch()
    np.save(array, np.ones(3))
    assert "given" in run(capsys, "run", BERT, "--input", f"input_ids={empty}", code=2)
    for file in (empty, array):
        assert "expected FILE.npz" in run(capsys, "bisect", BERT, "--feed", file, code=2)


def test_a_file_is_no_cache(capsys, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for arguments in ([str(file)], ["--clear", str(file)]):
        assert "expected a folder" in run(capsys, "cache", *arguments, code=2)


def test_outputs_are_where_they_were_asked_for(capsys, tmp_path):
    run(capsys, "run", BERT, "--random", "--seq", "5", "--output", str(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    run(capsys, "run", BERT, "--random", "--seq", "5", "--output", os.devnull)


def test_charts_of_no_known_format_are_refused_first(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    for command in ("bench", "explain"):
        message = run(capsys, command, BERT, "--plot", str(tmp_path / "x.onnx"), code=2)
        assert f"[{command} --plot]" in message and "png" in message


def test_files_that_cannot_be_written(capsys, tmp_path):
    """What only trying shows: here the name of the temporary file is too long."""
    for command in (["optimize", BERT], ["compile", BERT]):
        path = tmp_path / ("x" * 255)
        message = run(capsys, *command, str(path), code=2)
        assert message.startswith(f"ModelError: cannot write {str(path)!r}: ")


def test_variables_that_cannot_be_read(capsys, monkeypatch):
    monkeypatch.setenv("Q7X2_VERIFY", "x")
    monkeypatch.setenv("Q7X2_THREADS", "abc")
    for command in (["run", BERT, "--random"], ["ops", "^Relu$"]):
        assert "expected int, given " in run(capsys, *command, code=2)
    for command in ("doctor", "knobs"):
        out = run(capsys, command)
        assert "[Q7X2_VERIFY] expected int, given 'x'" in out
        assert "[Q7X2_THREADS] expected int, given 'abc'" in out


@pytest.mark.parametrize(
    "variable, value, command, message",
    [
        ("Q7X2_ISA", "bogus", "ops", "[isa] expected one of"),
        ("Q7X2_LIBRARY", "/nonexistent", "ops", "[library] cannot load /nonexistent"),
        ("Q7X2_LIBRARY", ctypes.__file__, "kernels", "[library] cannot load"),
        ("Q7X2_LIBRARY", OTHER_LIBRARY, "kernels", "[library] expected libq7"),
    ],
)
def test_a_library_that_is_none(variable, value, command, message, monkeypatch):
    monkeypatch.setenv(variable, value)
    done = as_module(command)
    assert done.returncode == 2
    assert done.stderr.startswith(f"BackendError: {message}") and "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has this device")
def test_a_full_disk_is_told():
    with open("/dev/full", "w") as full:
        done = as_module("knobs", stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("OSError: the output: ") and done.stderr.count("\n") == 1


def as_module(*arguments: str, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "q7x2_ep", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_as_a_module():
    done = as_module("explain", "absent.onnx")
    assert done.returncode == 2
    assert "absent.onnx" in done.stderr and "Traceback" not in done.stderr


def test_ops_says_where_each_runs(capsys):
    out = run(capsys, "ops", "^(Relu|Equal|Unique|.*::Gradient|com.microsoft::FastGelu|Cast)$")
    lines = {line.split()[0]: line for line in out.splitlines() if not line.startswith(" ")}
    assert all(len(line) <= WIDTH for line in out.splitlines())
    assert lines["Relu"].split() == ["Relu", "1", "6", "13", "14", "native"]
    assert lines["Equal"].endswith("native; host: str")
    assert lines["Unique"].endswith("host")
    assert lines["com.microsoft::FastGelu"].endswith("native")
    assert lines["ai.onnx.preview.training::Gradient"].endswith("neither")
    assert lines["6"].startswith("6 ops: 4 native")
    (relu,) = json.loads(run(capsys, "ops", "^Relu$", "--json"))
    assert relu["domain"] == "" and "float" in relu["native"] and not relu["host"]
