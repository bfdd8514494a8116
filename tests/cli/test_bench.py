"""The scripts of bench/: what they compute of measurements, not the measurements."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.compare import interleave
from q7x2_ep.importer.writer import save
from q7x2_ep.ir.text import parse
from q7x2_ep.passes import infer
from q7x2_ep.plan.memory import THREADS
from q7x2_ep.session import Session

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import acceptance  # bench is a folder of scripts, not a package
import attention
import beside
import compare
import decode
import kernels
import models
import plots
import results
import roofline
import scale
import serve
import shapes
import work
import zoo

PRODUCT = "graph(%x: f32[8,64])\n  %w = f32[64,32]\n  %y = MatMul(%x, %w)\n  return %y\n"
READS = {1 << 14: 1e11, 1 << 20: 5e10, 1 << 30: 1e10}
COPIES = {1 << 14: 8e10, 1 << 30: 8e9}
LIMITS = roofline.Roofline("avx2", 2, {"f32": 1e11, "i16": 2e11}, READS, COPIES)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)


def row(ours: list, other: list, name: str = "a", pick: str = "q7x2_ep") -> dict:
    return {
        "bench": "models",
        "name": name,
        "threads": 1,
        "ours": pick,
        "peers": ["onnxruntime", "openvino"],
        "ms": {pick: ours, "onnxruntime": other},
    }


def test_results_are_read_back_with_what_they_were_measured_on(tmp_path):
    results.write("models", [row([1, 2, 3], [2, 3, 4])])
    results.write("models", [row([1.5, 2, 3], [2, 3, 4])])
    (first, second) = results.read(tmp_path / "models.jsonl")
    assert first["ms"]["q7x2_ep"] == [1, 2, 3] and first["commit"] and first["cpu"]
    assert results.here("models", "a", 1) == [first, second]
    assert not results.here("models", "a", 2)
    (tmp_path / "models.jsonl").write_text('{"name": "a", "threads": 1}\n{"name": "a"}\n')
    with pytest.raises(SystemExit, match=r"models\.jsonl:2: no row"):
        results.read(tmp_path / "models.jsonl")


@pytest.mark.parametrize(
    "new, slower",
    [
        (row([0.9, 1.0, 1.1], [2, 2, 2]), False),
        (row([1.08, 1.1, 1.12], [2, 2, 2]), True),
        (row([1.0, 1.1, 1.2], [2, 2, 2]), False),  # within the spread
        (row([1.031, 1.04, 1.05], [2, 2, 2]), False),  # within the bound
        (row([1.08, 1.1, 1.12], [2.2, 2.2, 2.2]), False),  # the machine was slower
        (row([1.08, 1.1, 1.12], [2, 2, 2], "b"), False),  # something else
    ],
)
def test_slower_is_beyond_bound_spread_and_drift(new, slower, tmp_path, capsys):
    files = [tmp_path / "old.jsonl", tmp_path / "new.jsonl"]
    for path, given in zip(files, (row([0.98, 1.0, 1.02], [2, 2, 2]), new)):
        path.write_text(json.dumps(given) + "\n")
    assert compare.main([str(path) for path in files]) == int(slower)
    assert ("SLOWER" in capsys.readouterr().out) == slower


def test_limits_between_what_was_measured():
    assert roofline.Roofline.of(LIMITS.row()) == LIMITS
    slow = roofline.Roofline(
        "avx2", 2, {"f32": 5e10, "i16": 3e11}, {**READS, 1 << 14: 2e11}, COPIES
    )
    results.write("roofline", [LIMITS.row(), slow.row()])
    best = roofline.known("avx2", 2)
    assert best.products == {"f32": 1e11, "i16": 3e11} and best.reads == slow.reads
    assert LIMITS.bandwidth(1) == LIMITS.bandwidth(1 << 14) == pytest.approx(1e11)
    assert LIMITS.bandwidth(1 << 17) == pytest.approx(7.5e10)
    assert LIMITS.bandwidth(1 << 40) == pytest.approx(1e10)
    size = 1 << 30
    assert LIMITS.bandwidth(size, copying=True) == pytest.approx(8e9)
    assert LIMITS.seconds(work.Work(1e11, 1, 1)) == pytest.approx(1)
    assert LIMITS.seconds(work.Work(1e11, 1, 0), "i16") == pytest.approx(0.5)
    assert LIMITS.seconds(work.Work(1, size, 0)) == pytest.approx(size / 1e10)
    assert LIMITS.seconds(work.Work(1, size, size)) == pytest.approx(size / 1e10)
    partly = size / 2 / 8e9 + size / 2 / 1e10
    assert LIMITS.seconds(work.Work(1, size, size // 4)) == pytest.approx(partly)
    some = 1 << 17
    weights = work.Work(1, 2 * some, 0, some)
    assert LIMITS.seconds(weights) == pytest.approx(2 * some / LIMITS.bandwidth(2 * some))
    apart = some / LIMITS.bandwidth(some) + some / 1e10
    assert LIMITS.seconds(weights, constants=1 << 40) == pytest.approx(apart)


@pytest.mark.parametrize("kind", [roofline.Compiled, roofline.StandIn])
def test_both_ways_to_measure_do_what_they_count(kind):
    if kind is roofline.Compiled and shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")
    probe = kind(roofline.vectors(load().target.isa))
    for rate in probe.kinds:
        assert probe.compute(2, rate) == 2 * probe.compute(1, rate)
    assert probe.compute(1) > 0
    data = roofline.aligned(4096).view(np.float32)
    data[:512] = 2
    probe.read(data, 2)
    probe.copy(data, 2)
    assert (data == 2).all()


def test_work_counts_multiply_adds_and_every_operand_once():
    plan, family = shapes.planned(shapes.Shape("gemm", PRODUCT, ()).graph)
    assert family == "gemm"
    (each,) = (work.of(step, {THREADS: 1}) for step in plan.steps)
    weights = 4 * 64 * 32
    assert each == (2 * 8 * 64 * 32, 4 * (8 * 64 + 8 * 32) + weights, 4 * 8 * 32, weights)
    assert work.total([each, each]) == tuple(2 * part for part in each)


@pytest.mark.parametrize(
    "size, kernel, stride, met, made",
    [
        (56, (3, 3), 1, 166**2, 112**2),
        (7, (3, 3), 1, 19**2, 15**2),  # the last tile of a line has one pixel
        (56, (3, 3), 2, 83**2, 70**2),
        (7, (1, 7), 1, 7 * 37, 7 * (4 * 10 - 3)),
    ],
)
def test_work_of_winograd_is_what_it_makes(size, kernel, stride, met, made):
    pads = [each // 2 for each in kernel] * 2
    spec = f"kernel_shape={list(kernel)}, pads={pads}, strides={[stride] * 2}"
    weights = f"%w = f32[64,64,{kernel[0]},{kernel[1]}]"
    image = f"f32[1,64,{size},{size}]"
    graph = f"graph(%x: {image})\n  {weights}\n  %y = Conv(%x, %w) {{{spec}}}\n  return %y\n"
    plan, family = shapes.planned(shapes.Shape("winograd", graph, ()).graph)
    (step,) = (step for step in plan.steps if step.op == "winograd")
    assert family == "winograd"
    assert work.of(step, {THREADS: 1}).flops == 2 * 64 * 64 * met
    assert work.made(step, {THREADS: 1}).flops == 2 * 64 * 64 * made


@pytest.mark.parametrize(
    "left, right, offset, pairs",
    [(-1, -1, 0, 32), (-1, 0, 4, 26), (-1, 0, 0, 10), (1, 0, 4, 8), (0, 1, 6, 2 + 1)],
)
def test_work_of_an_attention_is_what_it_looks_at(left, right, offset, pairs):
    from types import SimpleNamespace

    f = SimpleNamespace(Sq=4, Skv=8, left=left, right=right, offset=offset)
    i, j = np.arange(4)[:, None] + offset, np.arange(8)
    seen = np.ones((4, 8), bool)
    seen &= (j >= i - left) if left >= 0 else True
    seen &= (j <= i + right) if right >= 0 else True
    assert work.visible(f) == seen.sum() == pairs


def test_shapes_of_the_file_are_what_the_kernels_of_their_families_serve():
    found = {shape.family: shape for shape in shapes.read()}  # one each: the weights take a while
    assert {"gemm", "attention", "layernorm", "depthwise", "pool"} <= found.keys()
    for shape in found.values():
        plan, family = shapes.planned(shape.graph)
        assert family == shape.family and shape.models
        assert work.total(work.of(step, {THREADS: 1}) for step in plan.steps).bytes > 0


def test_shapes_are_cut_from_a_model_with_the_strides_in_front(tmp_path):
    from q7x2_ep.models import small_models

    found = list(shapes.collect(Path(small_models()["bert"]), [(2, 7, 0)]))
    families = {family for family, _, _ in found}
    assert {"gemm", "attention", "layernorm"} <= families
    (attention,) = {text for family, text, _ in found if family == "attention"}
    assert "Transpose" in attention or "Split" in attention
    assert all(model == "bert 2x7" for _, _, model in found)
    kept = [shapes.Shape(family, text, (model,)) for family, text, model in found]
    shapes.write(kept, tmp_path / "shapes.txt")
    assert shapes.read(tmp_path / "shapes.txt") == kept


def test_shapes_are_fed_images_as_the_plan_of_their_model_stores_them(tmp_path):
    graph = parse("""graph(%x: f32[1,3,8,8])
  %w = f32[8,3,3,3]
  %first = MaxPool(%x) {kernel_shape=[2, 2]}
  %c = Conv(%first, %w)
  %second = MaxPool(%c) {kernel_shape=[2, 2]}
  return %second
""")
    infer.run(graph)
    save(graph, str(tmp_path / "model.onnx"))
    found = shapes.collect(tmp_path / "model.onnx", [(1, 0, 0)])
    first, second = (text for family, text, _ in found if family == "pool")
    assert "Transpose" not in first and "x0: f32[1,3,8,8]" in first
    assert "perm=[0, 3, 1, 2]" in second and "x0: f32[1,5,5,8]" in second
    plan, _ = shapes.planned(shapes.Shape("pool", second, ()).graph)
    assert [step.op for step in plan.steps] == ["pool"]  # no copy into it, nor out of it


def test_every_row_of_a_family_runs_a_shape():
    library = load()
    large = PRODUCT.replace("64", "256").replace("32]", "256]")  # else AMX's has no part in it
    shape = shapes.Shape("gemm", large, ())
    rows = [r for r in library.target.kernels if r.family == "gemm" and r.supported]
    calls = kernels.runners(shape, kernels.feed(shape), library, rows, 1, 3)
    assert len(calls) == len(rows) and all(run(4) > 0 for run in calls.values())


def test_a_faster_kernel_is_told_from_noise():
    times = {"pick": [9, 10, 11], "a": [9.3, 9.4, 9.45], "b": [7, 8.5, 8.9], "c": [8.9, 8.9, 8.9]}
    times["onnxruntime"] = [1, 1, 1]
    assert kernels.faster(times, "pick") == ["b"]
    reading_the_clock = {name: np.array(each) / 1e6 for name, each in times.items()}
    assert kernels.faster(reading_the_clock, "pick") == []


def test_kernels_are_measured_once_and_their_limit_is_the_roofline_of_the_run(tmp_path, capsys):
    assert kernels.main(["8,32,64", "--rounds", "3"]) in (0, 1)
    assert kernels.main(["8,32,64", "--seconds", "1e-9"]) in (0, 1)
    (found,) = results.read(tmp_path / "kernels.jsonl")
    assert found["limit"] > 0 and found["ours"] in found["ms"]
    assert found["product"] == [8, 32, 64]
    assert len(results.read(tmp_path / "roofline.jsonl")) == 1
    assert "are over" not in capsys.readouterr().out


def test_weights_are_what_is_rotated():
    shape = shapes.Shape("gemm", PRODUCT, ())
    assert kernels.weights(shape) == pytest.approx(64 * 32 / (64 * 32 + 8 * 64 + 8 * 32))


def test_products_can_be_asked_for():
    (shape,) = kernels.select(["8,32,64"])
    assert shape.graph.nodes[0].output.shape == (8, 32)


def test_profile_of_a_model_and_its_table():
    from q7x2_ep.models import small_models

    model = small_models()["bert"]
    dots = plots.profile(model, 1, 7, 1)
    assert len(dots) == len(Session(model, 1).plan.steps)
    assert all(dot.seconds > 0 and dot.work.bytes > 0 for dot in dots)
    lines = plots.by_op(dots, LIMITS).splitlines()
    assert max(map(len, lines)) <= 100 and lines[-1].startswith("all")


def test_models_measures_once_and_goes_on(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    from q7x2_ep.models import small_models

    file = tmp_path / "rows.jsonl"
    arguments = ["--model", small_models()["bert"], "--peer", "onnxruntime", "--runs", "2"]
    arguments += ["--threads", "1", "--results", str(file), "--batch", "1,2", "--sequence"]
    assert models.main([*arguments, "7"]) in (0, 1)  # which engine is ahead is no matter here
    assert models.main([*arguments, "7,9,1000"]) in (0, 1)  # of which it has positions for two
    rows = results.read(file)
    assert [row["name"] for row in rows] == ["bert 1x7", "bert 2x7", "bert 1x9", "bert 2x9"]
    assert all(row["ms"].keys() == {"q7x2_ep", "onnxruntime"} for row in rows)
    assert all(row["distances"]["onnxruntime"] < models.SAME for row in rows)
    out = capsys.readouterr().out
    assert "bert 1x1000: q7x2_ep is left out" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    models.main([*arguments, "7", "--seconds", "1e-9"])
    assert "are over" not in capsys.readouterr().out


def test_the_verdict_is_against_the_best_peer():
    ratios = {"onnxruntime": [0.5, 0.6, 0.7], "openvino": [0.7, 0.8, 0.9]}
    found = {**row([1, 2, 3], [2, 3, 4]), "ratios": ratios, "target": 0.75, "distances": {}}
    assert models.best(found, ["onnxruntime"])[1] == 0.6
    assert models.best(found, ["onnxruntime", "openvino"])[1] == 0.8
    both = models.merged(found, {**found, "ratios": {"torch": [1, 1.1, 1.2]}, "peers": ["torch"]})
    assert both["ratios"].keys() == {"onnxruntime", "openvino", "torch"}
    assert "0 of 1 targets missed" in models.summary([both], ["onnxruntime"])
    assert "a at 1 (0.80, 0.75)" in models.summary([both], ["onnxruntime", "openvino"])
    assert models.line(both, ["onnxruntime", "openvino"]).endswith("missed")
    assert models.line(both, ["onnxruntime", "torch"]).endswith("BEHIND")


def test_acceptance_takes_the_worst_of_what_was_measured(capsys):
    assert acceptance.main([]) == 0
    assert "0 of 13 measured, 0 missed" in capsys.readouterr().out
    plain = {"name": "a", "threads": 1, "limit": 0.96, "product": [128, 768, 512]}
    rows = [
        plain,
        {**plain, "name": "few rows", "limit": 0.5, "product": [16, 768, 512]},
        {**plain, "name": "a, cold", "product": [1, 768, 512]},
    ]
    results.write("kernels", rows)
    scaled = [("b", 1, 4.0), ("b", 2, 2.0)]
    results.write(
        "scale",
        [{"name": n, "threads": t, "ms": {"q7x2_ep": [ms] * 3}} for n, t, ms in scaled],
    )
    call = "Add of one element: run(None, feed)"
    results.write("overhead", [results.of_pair(call, 1, [0.0025], [0.01], "wall")])
    assert acceptance.main([]) == 0
    ratios = {"openvino": [0.7, 0.8, 0.9], "onnxruntime": [0.5, 0.6, 0.7]}
    model = {"name": "m", "threads": 1, "ratios": ratios, "target": 0.75}
    results.write("models", [model])
    results.write("kernels", [{**plain, "limit": 0.9}])
    assert acceptance.main([]) == 1
    assert "5 of 13 measured, 2 missed" in capsys.readouterr().out


def test_attention_alone_is_held_against_the_peak():
    row = attention.measure(64, 1, False, 2, False)
    assert row["flops"] == 2 * 12 * 64 * 64 * 128 and row["limit"] > 0
    longer = attention.measure(128, 1, False, 2, False)
    assert longer["bytes"] <= 2 * row["bytes"] + (1 << 20)


DECODER = """graph(%input_ids: i64[batch,sequence], %past_key_values.0.key: f32[batch,2,past,4])
  %table = f32[1000,8]
  %x = Gather(%table, %input_ids) {axis=0}
  %heads = Reshape(%x, [0, 0, 2, 4])
  %new = Transpose(%heads) {perm=[0, 2, 1, 3]}
  %present.0.key = Concat(%past_key_values.0.key, %new) {axis=2}
  %keys = Transpose(%present.0.key) {perm=[0, 1, 3, 2]}
  %scores = MatMul(%new, %keys)
  %weights = Softmax(%scores) {axis=-1}
  %mixed = MatMul(%weights, %present.0.key)
  %back = Transpose(%mixed) {perm=[0, 2, 1, 3]}
  %y = Reshape(%back, [0, 0, 8])
  %columns = Transpose(%table) {perm=[1, 0]}
  %logits = MatMul(%y, %columns)
  return %logits, %present.0.key
"""


def test_decode_feeds_caches_back_and_finds_the_tokens_of_onnxruntime(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(roofline, "known", lambda *_: LIMITS)
    path = tmp_path / "tiny.onnx"
    graph = parse(DECODER)
    infer.run(graph)
    save(graph, str(path))
    row = decode.measure(path, 1, 5, 3, 1)
    assert row["name"] == "tiny 5+3" and row["limit"] > 0 and len(row["ms"]) == 2
    assert decode.caches(graph, 7) == 4 * 7 * 8
    assert "tiny 5+3" in decode.line(row)


def test_beside_measures_both_engines_in_processes_of_their_own(tmp_path):
    path, graph = tmp_path / "model.onnx", parse(PRODUCT)
    infer.run(graph)
    save(graph, str(path))
    options = beside._options([str(path), "--seconds", "0.05"])
    how = beside.Situation("behind", pause_ms=1, behind=True, busy=1)
    found = beside.measure(path, how, options)
    assert found["name"] == "model behind"
    for engine in ("q7x2_ep", "onnxruntime"):
        assert 0 < found["ms"][engine][1] <= found["ninth"][engine]


ABSENT = "expected a file, there is none at 'absent.onnx'"


@pytest.mark.parametrize(
    "command, message",
    [
        ("compare absent.onnx absent.onnx", ABSENT),
        ("plots bars absent.onnx x.png", ABSENT),
        ("plots roofline absent.onnx", ABSENT),
        ("overhead absent.onnx", ABSENT),
        ("decode absent.onnx", ABSENT),
        ("compile absent.onnx", ABSENT),
        ("matrix absent.onnx", ABSENT),
        ("serve absent.onnx", ABSENT),
        ("beside absent.onnx", ABSENT),
        ("models --model absent.onnx", ABSENT),
        ("models --peer nosuch", "expected one of onnxruntime, "),
        ("clients nosuch", "expected one of magika, "),
        ("control nosuch", "no case has 'nosuch' in its name; there are:"),
        ("control --model absent.onnx", ABSENT),
        ("conformance --engine nosuch", "expected one of q7x2_ep, onnxruntime, given 'nosuch'"),
        ("conformance --only (", "expected a regular expression"),
        ("conformance --only nosuchcase", "no case matches 'nosuchcase'"),
        ("conformance --json absent/x", "there is no folder 'absent'"),
        ("shapes absent.onnx@1x2", ABSENT),
    ],
)
def test_what_cannot_be_measured_is_wrong_usage(command, message, capsys, monkeypatch):
    if command.startswith("control"):
        pytest.importorskip("onnxruntime")
    name, *arguments = command.split()
    monkeypatch.setenv("ONNX_MODELS", "")  # which conformance sets
    monkeypatch.setattr(sys, "argv", [f"bench {name}", *arguments])
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(name).main()
    assert caught.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("command", [kernels, models, scale, shapes, beside, serve, decode])
def test_where_nothing_is_measured_that_is_no_success(command, tmp_path, monkeypatch, capsys):
    """No pattern fits, or the zoo has exported nothing."""
    monkeypatch.setattr(shapes, "write", None)
    monkeypatch.setattr(zoo, "DEFAULT_CACHE", tmp_path)
    if command in (beside, serve):
        with pytest.raises(SystemExit) as caught:
            command.main([])
        assert caught.value.code == 2
    else:
        assert command.main(["nosuch"] if command is kernels else []) == 2
    assert capsys.readouterr().out


def test_a_file_without_rows_is_no_chart(tmp_path, capsys):
    (tmp_path / "empty.jsonl").touch()
    assert plots.main(["bars", str(tmp_path / "empty.jsonl"), str(tmp_path / "x.png")]) == 2
    assert "holds no rows" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ship_models", "fit_math"])
def test_help_runs_nothing(name, capsys, monkeypatch):
    pytest.importorskip("mpmath")
    monkeypatch.setattr(sys, "argv", [f"bench {name}", "--help"])
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(name).main()
    assert caught.value.code == 0 and capsys.readouterr().out.startswith("usage: ")


def test_interleave_gives_every_sample():
    calls = [lambda: None, lambda: sum(range(1000))]
    times = interleave(calls, 7)
    assert [len(each) for each in times] == [7, 7] and min(map(min, times)) >= 0
