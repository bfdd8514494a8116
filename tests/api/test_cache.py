"""The cache of compiled models: found again, rebuilt where it must be, never in the way."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import q7x2_ep
from q7x2_ep import cache, importer
from q7x2_ep.__main__ import main
from tests.api.models import ONES, add, info, model, node, scaled

FEED = {"x": ONES, "y": ONES}


def with_cache(folder: Path) -> q7x2_ep.SessionOptions:
    options = q7x2_ep.SessionOptions()
    options.add_session_config_entry("q7x2.cache_folder", str(folder))
    return options


@pytest.fixture
def compiled(monkeypatch) -> list:
    """What was read as ONNX from now on."""
    found: list = []
    read = importer.read

    def noted(given, *rest):
        found.append(given)
        return read(given, *rest)

    monkeypatch.setattr(importer, "read", noted)
    return found


def run(given, folder: Path, feed=FEED) -> np.ndarray:
    with q7x2_ep.InferenceSession(given, with_cache(folder)) as session:
        return session.run(None, feed)[0]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.q7"))


def aged(path: Path) -> Path:
    """A file that has not changed for a while, so that its hash is remembered."""
    past = time.time() - 60
    os.utime(path, (past, past))
    return path


def external(folder: Path, value: float) -> Path:
    """z = x * w, with w in a file beside the model."""
    w = numpy_helper.from_array(np.full((2, 300), value, np.float32), "w")
    made = onnx.load_from_string(
        model([node("Mul", "x w")], [info("x", [2, 300])], [info("z", None)], [w])
    )
    folder.mkdir(exist_ok=True)
    (folder / "w.bin").unlink(missing_ok=True)  # onnx would add to it
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(made, folder / "m.onnx", **options)
    return folder / "m.onnx"


def test_models_are_compiled_once(tmp_path, compiled):
    path = tmp_path / "m.onnx"
    path.write_bytes(add())
    for given in (str(path), path, path.read_bytes(), onnx.load(path), memoryview(add())):
        np.testing.assert_array_equal(run(given, tmp_path / "cache"), 2 * ONES)
    assert len(compiled) == 1 and len(files(tmp_path / "cache")) == 1
    assert cache.contents(str(tmp_path / "cache")).models == 1


def test_no_cache_unless_asked_for(tmp_path, compiled, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        q7x2_ep.InferenceSession(add()).close()
    assert len(compiled) == 2 and not list(tmp_path.iterdir())


def test_the_knob(tmp_path, compiled, monkeypatch):
    monkeypatch.setenv("Q7X2_CACHE", str(tmp_path / "knob"))
    for _ in range(2):
        q7x2_ep.InferenceSession(add()).close()
    assert len(compiled) == 1 and len(files(tmp_path / "knob")) == 1
    run(add(), tmp_path / "option")  # which goes before the knob
    assert len(files(tmp_path / "option")) == 1


def test_what_changes_the_model_changes_the_file(tmp_path, compiled):
    def made(change) -> None:
        options = with_cache(tmp_path)
        change(options)
        for _ in range(2):
            q7x2_ep.InferenceSession(scaled(), options).close()

    level = q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL
    weights = [np.full(1, value, np.float32) for value in (3, 4)]
    changes = [
        lambda options: None,
        lambda options: options.add_free_dimension_override_by_name("N", 2),
        lambda options: setattr(options, "graph_optimization_level", level),
        *(
            lambda options, w=w: options.add_initializer(
                "w", q7x2_ep.OrtValue.ortvalue_from_numpy(w)
            )
            for w in weights
        ),
    ]
    for i, change in enumerate(changes):
        made(change)
        assert len(files(tmp_path)) == len(compiled) == i + 1
    made(lambda options: setattr(options, "intra_op_num_threads", 2))  # changes nothing
    assert len(compiled) == len(changes)


def test_every_form_of_a_model_is_kept(tmp_path, compiled):
    for _ in range(2):
        with q7x2_ep.InferenceSession(scaled(), with_cache(tmp_path)) as session:
            np.testing.assert_array_equal(session.run(["s"], FEED)[0], 2 * ONES)
            fed = {**FEED, "w": np.array([5], np.float32)}
            np.testing.assert_array_equal(session.run(["z"], fed)[0], 10 * ONES)
    assert len(compiled) == len(files(tmp_path)) == 3


@pytest.mark.parametrize("is_aged", [True, False])
def test_a_model_that_changed(tmp_path, compiled, is_aged):
    path = tmp_path / "m.onnx"
    path.write_bytes(add())
    if is_aged:
        aged(path)
    np.testing.assert_array_equal(run(path, tmp_path / "cache"), 2 * ONES)
    times = path.stat()
    path.write_bytes(add().replace(b"Add", b"Mul"))  # as long, and as old
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    np.testing.assert_array_equal(run(path, tmp_path / "cache"), ONES)
    assert len(compiled) == 2


def test_hashes_are_remembered(tmp_path, monkeypatch):
    path = aged(external(tmp_path / "model", 2))
    folder = tmp_path / "cache"
    feed = {"x": np.ones((2, 300), np.float32)}
    monkeypatch.setattr(cache, "_SETTLED_NS", 0)  # nobody can set back the ctime
    for _ in range(2):
        run(path, folder, feed)
    assert len(list(folder.glob("*.sha256"))) == 2

    def refuse(*given):
        raise AssertionError("hashed again")

    monkeypatch.setattr(cache, "_hashed", refuse)
    np.testing.assert_array_equal(run(path, folder, feed), 2 * feed["x"])


@pytest.mark.parametrize("form", ["bytes", "proto", "path"])
@pytest.mark.parametrize("engine", ["q7x2_ep", "onnxruntime"])
def test_the_folder_of_external_data(engine, form, tmp_path, monkeypatch):
    """Takes the place of the model's own, with and without a cache, and is no part of its name."""
    api = pytest.importorskip(engine)
    if engine == "onnxruntime" and form == "proto":
        pytest.skip("onnxruntime takes none")
    monkeypatch.chdir(tmp_path)
    path = external(tmp_path / "2", 2)
    external(tmp_path / "3", 3)
    made = onnx.load(path, load_external_data=False)
    given = {"bytes": path.read_bytes(), "proto": made, "path": str(path)}[form]
    feed = {"x": np.ones((2, 300), np.float32)}
    key = "session.model_external_initializers_file_folder_path"

    def run(folder: str, cache: str = "") -> np.ndarray:
        options = api.SessionOptions()
        options.add_session_config_entry(key, folder)
        options.add_session_config_entry("q7x2.cache_folder", cache)
        session = api.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        return session.run(None, feed)[0]

    for cache_folder in ("", "cache", "cache"):
        for value in (2, 3):
            for folder in (str(value), str(tmp_path / str(value))):
                np.testing.assert_array_equal(run(folder, cache_folder), value * feed["x"])
    with pytest.raises(Exception, match=r"nope/w\.bin"):
        run("nope")
    if form == "path":
        np.testing.assert_array_equal(run(""), 2 * feed["x"])


def test_external_data_that_changed(tmp_path, compiled):
    feed = {"x": np.ones((2, 300), np.float32)}
    for value in (2, 3, 3):
        path = external(tmp_path / "model", value)
        np.testing.assert_array_equal(run(path, tmp_path / "cache", feed), value * feed["x"])
    assert len(compiled) == 2 and len(files(tmp_path / "cache")) == 1
    (tmp_path / "model" / "w.bin").unlink()
    with pytest.raises(q7x2_ep.ModelNotFound):
        run(path, tmp_path / "cache", feed)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_damaged_files_are_made_again(tmp_path, compiled, caplog, damage):
    run(add(), tmp_path)
    (name,) = files(tmp_path)
    data = bytearray((tmp_path / name).read_bytes())
    if damage == "flip":
        data[-9] ^= 4
    kept = {"cut": data[:-9], "flip": data, "empty": b"", "other": add()}[damage]
    (tmp_path / name).write_bytes(kept)
    with caplog.at_level(logging.WARNING, "q7x2_ep"):
        np.testing.assert_array_equal(run(add(), tmp_path), 2 * ONES)
    assert "compiling a model again" in caplog.text
    run(add(), tmp_path)
    assert len(compiled) == 2 and files(tmp_path) == [name]


def test_functions_are_not_kept(tmp_path):
    options = with_cache(tmp_path)
    options.register_op("mine", "Twice", lambda x: 2 * x)
    data = model(
        [node("Twice", "x", domain="mine")],
        [info("x", [2, 3])],
        [info("z", [2, 3])],
        domains=["mine"],
    )
    with q7x2_ep.InferenceSession(data, options) as session:
        np.testing.assert_array_equal(session.run(None, {"x": ONES})[0], 2 * ONES)
    assert not files(tmp_path)


def test_errors_of_models_stay(tmp_path):
    for given in (b"", b"no model", str(tmp_path / "none.onnx")):
        with pytest.raises(q7x2_ep.ModelError) as plain:
            q7x2_ep.InferenceSession(given)
        with pytest.raises(type(plain.value)) as cached:
            run(given, tmp_path)
        assert str(cached.value) == str(plain.value)


# Disks


@pytest.mark.parametrize("folder", ["file/cache", "\0"])
def test_a_folder_that_cannot_be_made(folder, tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "q7x2_ep"):
        np.testing.assert_array_equal(run(add(), tmp_path / folder), 2 * ONES)
    assert "[cache]" in caplog.text


LIMITED = """
import logging, resource, signal, sys
import numpy, q7x2_ep
from tests.api.models import ONES, add
from tests.api.test_cache import with_cache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
logging.basicConfig(stream=sys.stdout)
with q7x2_ep.InferenceSession(add(), with_cache(sys.argv[1])) as session:
    numpy.testing.assert_array_equal(session.run(None, {"x": ONES, "y": ONES})[0], 2 * ONES)
"""


def test_a_full_disk(tmp_path):
    """A limit on the length of files, which ends a write as a full disk does."""
    if sys.platform != "linux":
        pytest.skip("needs RLIMIT_FSIZE and its signal")
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cannot be kept" in done.stdout
    assert not list(tmp_path.iterdir())  # nothing half written stays


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.api.models import add
from tests.api.test_cache import run
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
run(add(), Path(sys.argv[1]))
"""


def test_a_process_that_is_killed_while_it_writes(tmp_path, compiled, caplog):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -9
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]  # which nobody opens
    with caplog.at_level(logging.WARNING, "q7x2_ep"):
        for _ in range(2):
            np.testing.assert_array_equal(run(add(), tmp_path), 2 * ONES)
    assert not caplog.text and len(compiled) == 1 and len(files(tmp_path)) == 1
    cache.clear(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_may_only_be_read(tmp_path, compiled, caplog, monkeypatch):
    run(add(), tmp_path)

    def refuse(path, *given):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("q7x2_ep.session.replacing", refuse)
    monkeypatch.setattr(cache, "replacing", refuse)
    with caplog.at_level(logging.WARNING, "q7x2_ep"):
        run(add(), tmp_path)
        assert not caplog.text and len(compiled) == 1  # what is there is used
        np.testing.assert_array_equal(run(scaled(), tmp_path), 4 * ONES)
    assert "Read-only" in caplog.text and len(files(tmp_path)) == 1


# Processes


def one_of_many(data: bytes, folder: Path, barrier, queue) -> None:
    barrier.wait(60)
    for _ in range(3):  # compiled, or what another has written; opened; opened by several
        queue.put(run(data, folder).tobytes())


def test_processes_that_compile_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(3), context.Queue()
    arguments = (add(), tmp_path, barrier, queue)
    children = [context.Process(target=one_of_many, args=arguments) for _ in range(3)]
    for child in children:
        child.start()
    assert {queue.get(timeout=60) for _ in range(3 * len(children))} == {(2 * ONES).tobytes()}
    for child in children:
        child.join()
    assert len(files(tmp_path)) == 1 and not list(tmp_path.glob("*.tmp"))


def test_pickles_open_the_cache(tmp_path, compiled):
    (tmp_path / "m.onnx").write_bytes(add())
    with q7x2_ep.InferenceSession(tmp_path / "m.onnx", with_cache(tmp_path)) as session:
        again = pickle.loads(pickle.dumps(session))
    np.testing.assert_array_equal(again.run(None, FEED)[0], 2 * ONES)
    assert len(compiled) == 1


def test_model_compiler(tmp_path):
    path = tmp_path / "m.q7"
    q7x2_ep.ModelCompiler(q7x2_ep.SessionOptions(), add()).compile_to_file(path)
    assert path.read_bytes().startswith(b"\x89q7model")
    with q7x2_ep.InferenceSession(path) as session:
        np.testing.assert_array_equal(session.run(None, FEED)[0], 2 * ONES)


# The command line


def test_compile_and_cache_commands(tmp_path, capsys, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(add())
    given = [str(tmp_path / "m.onnx"), str(tmp_path / "m.q7")]
    assert main(["compile", *given, "--dim", "N=2"]) == 0
    assert capsys.readouterr().out.startswith(f"{given[1]}: ")
    with q7x2_ep.InferenceSession(given[1]) as session:
        assert session.get_inputs()[1].shape == [2, 3]
    assert main(["run", given[1], "--random"]) == 0
    assert main(["explain", given[1]]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["compile", given[0], str(tmp_path / "no" / "m.q7")])
    monkeypatch.setenv("Q7X2_CACHE", str(tmp_path / "cache"))
    q7x2_ep.InferenceSession(given[0]).close()
    others = ["own.q7", "release.sha256", f"{'a' * 64}.txt", "report.tmp"]
    for name in others:
        (tmp_path / "cache" / name).write_bytes(b"")
    (tmp_path / "cache" / f"{'b' * 64}.q7").mkdir()
    capsys.readouterr()
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.startswith("1 compiled models, ")
    assert main(["cache", str(tmp_path / "cache"), "--clear"]) == 0
    assert capsys.readouterr().out.startswith("cleared: 1 compiled")
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert left == sorted([*others, f"{'b' * 64}.q7"])
    assert main(["cache", str(tmp_path / "never")]) == 0
    monkeypatch.setenv("Q7X2_CACHE", "")
    assert main(["cache"]) == 2


def test_entries_that_another_process_removes(tmp_path, monkeypatch):
    entries = cache._entries

    def stale(folder):
        found = entries(folder)
        for entry in found:
            os.unlink(entry.path)
        return found

    (tmp_path / ("0" * 64 + ".q7")).write_bytes(b"x")
    monkeypatch.setattr(cache, "_entries", stale)
    assert cache.contents(str(tmp_path)) == cache.Contents(0, 0)
    (tmp_path / ("0" * 64 + ".q7")).write_bytes(b"x")
    cache.clear(str(tmp_path))
    assert not os.listdir(tmp_path)
