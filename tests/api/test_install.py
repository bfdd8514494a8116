"""q7x2_ep.install() and run-as-ort: each in a Python of its own, where onnxruntime is absent, and
where one is installed that must be neither run nor touched.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep.install import STAND_IN

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "onnxruntime.txt"
FACTS = [line.split(" ")[:2] for line in GOLDEN.read_text().splitlines()]
MODEL = REPOSITORY / "q7x2_ep" / "models" / "bert.onnx"
INSTALL = "import q7x2_ep; q7x2_ep.install()\n"


@pytest.fixture(params=["absent", "present"])
def site(request, tmp_path):
    """What is installed here, in a folder of links, with or without an onnxruntime."""
    folder = tmp_path / "site"
    folder.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith("onnxruntime"):
            (folder / entry.name).symlink_to(entry)
    if request.param == "present":
        files = {
            "onnxruntime/__init__.py": "name = 'theirs'",
            "onnxruntime/capi/__init__.py": "raise AssertionError('native')",
            "onnxruntime/quantization/__init__.py": "from onnxruntime import InferenceSession",
            "onnxruntime/transformers/__init__.py": "raise AssertionError('shadowed')",
            "onnxruntime/transformers/onnx_model.py": "import helper_of_theirs",
            "onnxruntime/transformers/helper_of_theirs.py": "",
            "onnxruntime/datasets/mul.onnx": "",
            "onnxruntime-0.1.dist-info/METADATA": "Name: onnxruntime\nVersion: 0.1\n",
        }
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


@pytest.fixture
def python(site, tmp_path):
    """python(arguments) runs Python on that folder and gives what it prints."""

    def run(*arguments: str, code: int = 0) -> str:
        path = os.pathsep.join([str(REPOSITORY), str(site)])
        done = subprocess.run(
            [sys.executable, "-S", "-B", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stderr
        return done.stdout.strip() if code == 0 else done.stderr

    before = sorted(site.glob("onnxruntime*/**/*"))
    yield run
    assert sorted(site.glob("onnxruntime*/**/*")) == before


def present(site: Path) -> bool:
    return (site / "onnxruntime").exists()


def test_all_names_are_there(python):
    names = [name for kind, name in FACTS if kind in ("class", "enum", "function", "value")]
    exceptions = [name for kind, name in FACTS if kind == "exception"]
    lines = [
        *(f"import onnxruntime; onnxruntime.{name}" for name in names),
        *(f"from onnxruntime.capi.onnxruntime_pybind11_state import {each}" for each in exceptions),
        "from onnxruntime.capi._pybind_state import OrtDevice, OrtValueVector, SparseCooView",
        "from onnxruntime.capi._pybind_state import quantize_matmul_4bits, quantize_matmul_bnb4",
        "assert OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0).device_id() == 0",
        "from onnxruntime.capi import onnxruntime_pybind11_state as state",
        "from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession, IOBinding",
        "assert InferenceSession is onnxruntime.InferenceSession is q7x2_ep.InferenceSession",
        "from onnxruntime.capi.onnxruntime_validation import get_package_name_and_version_info",
        "from onnxruntime.capi import build_and_package_info",
        "from onnxruntime.datasets import get_example",
        "from onnxruntime.capi.onnxruntime_collect_build_info import find_cudart_versions",
        "assert find_cudart_versions(build_cuda_version='12') == []",
        "assert state.kSameAsRequested is state.ArenaExtendStrategy.kSameAsRequested",
        "assert state.get_all_opkernel_def is q7x2_ep.api.registry.get_all_opkernel_def",
        "assert state.Fail is onnxruntime.capi._pybind_state.Fail is q7x2_ep.errors.Fail",
        "try: state.get_shape_inference_function",
        "except AttributeError as error: assert 'native' in str(error)",
        "print(onnxruntime.__version__)",
    ]
    assert python("-c", INSTALL + "\n".join(lines)) == q7x2_ep.version


def test_arrays_become_an_adapter(python, tmp_path):
    np.savez(tmp_path / "a.npz", w=np.array([3], np.float32))
    arguments = "--npz_file_path a.npz --output_file_path a.onnx_adapter --adapter_version 1"
    code = INSTALL + (
        "import sys, runpy, onnxruntime\n"
        f"sys.argv[1:] = '{arguments} --model_version 2'.split()\n"
        "try: runpy.run_module('onnxruntime.capi.convert_npz_to_onnx_adapter', None, '__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "made = onnxruntime.AdapterFormat.read_adapter('a.onnx_adapter')\n"
        "print(made.get_adapter_version(), made.get_model_version())\n"
        "print(made.get_parameters()['w'].numpy())"
    )
    assert python("-c", code).splitlines() == ["1 2", "[3.]"]


def test_ways_to_ask_for_it(python):
    code = INSTALL + (
        "import importlib, importlib.metadata, importlib.util\n"
        "print(importlib.util.find_spec('onnxruntime').origin)\n"
        "print(importlib.import_module('onnxruntime').__file__)\n"
        "print(importlib.metadata.version('onnxruntime'))\n"
        "known = getattr(importlib.metadata, 'packages_distributions', None)  # from 3.10 on\n"
        "print(not known or set(known()['onnxruntime']) == {'onnxruntime'})\n"
        "print(importlib.util.find_spec('onnxruntime.training'))"
    )
    origin = str(Path(STAND_IN, "onnxruntime", "__init__.py"))
    found = [origin, origin, q7x2_ep.version, "True", "None"]
    assert python("-c", code).splitlines() == found


def test_it_runs_models(python):
    code = INSTALL + (
        "import numpy as np, onnxruntime, onnxruntime.backend\n"
        "from onnxruntime.transformers.io_binding_helper import TypeHelper\n"
        f"session = onnxruntime.InferenceSession({str(MODEL)!r})\n"
        "types = TypeHelper.get_io_numpy_type_map(session)\n"
        "feeds = [np.ones((1, 3), types[each.name]) for each in session.get_inputs()]\n"
        "print(TypeHelper.get_input_type(session, 'input_ids'), feeds[0].dtype)\n"
        "hidden = onnxruntime.backend.prepare(session, 'CPU').run(feeds)[0]\n"
        f"again = onnxruntime.backend.run({str(MODEL)!r}, feeds, intra_op_num_threads=1)[0]\n"
        "print(hidden.shape[:2], (hidden == again).all())\n"
        "print(onnxruntime.backend.supports_device('GPU'))"
    )
    assert python("-c", code) == "tensor(int64) int64\n(1, 3) True\nFalse"


def test_plain_python_of_theirs_is_found(python, site):
    """Their tools work on us where they are installed; where not, the error says what to do."""
    code = INSTALL + (
        "import onnxruntime.quantization as tools\n"
        "from onnxruntime.transformers import onnx_model\n"
        "from onnxruntime.transformers.io_binding_helper import CudaSession\n"
        "from onnxruntime.datasets import get_example\n"
        "print(tools.__file__, tools.InferenceSession.__module__, sep='\\n')\n"
        "print(get_example('mul.onnx'))"
    )
    if not present(site):
        assert "onnxruntime's own package, which is not installed" in python("-c", code, code=1)
        assert "examples come with" in python(
            "-c", INSTALL + "from onnxruntime.datasets import get_example; get_example('x')", code=1
        )
        return
    helper = site / "onnxruntime" / "transformers" / "io_binding_helper.py"
    helper.write_text("class CudaSession: ...")
    file, module, example = python("-c", code).splitlines()
    helper.unlink()
    assert file == str(site / "onnxruntime" / "quantization" / "__init__.py")
    assert module.startswith("q7x2_ep.")
    assert example == str(site / "onnxruntime" / "datasets" / "mul.onnx")


def test_uninstall(python, site):
    code = (
        "import sys, q7x2_ep\n"
        "before = list(sys.path)\n"
        "for round in range(2):\n"
        "    q7x2_ep.install(); q7x2_ep.install()\n"
        "    import onnxruntime, onnxruntime.backend\n"
        "    assert onnxruntime.InferenceSession is q7x2_ep.InferenceSession\n"
        "    q7x2_ep.uninstall(); q7x2_ep.uninstall()\n"
        "    assert sys.path == before\n"
        "import onnxruntime; print(onnxruntime.name)"
    )
    if present(site):
        assert python("-c", code) == "theirs"
    else:
        assert "No module named 'onnxruntime'" in python("-c", code, code=1)


@pytest.mark.parametrize("site", ["present"], indirect=True)
def test_too_late(python):
    code = "import onnxruntime\n" + INSTALL
    assert "has been imported already, from" in python("-c", code, code=1)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_worker_processes(python, tmp_path, method):
    (tmp_path / "main.py").write_text(
        "import multiprocessing\n"
        "def worker(_):\n"
        "    import onnxruntime\n"
        "    return onnxruntime.InferenceSession.__module__\n"
        "if __name__ == '__main__':\n"
        "    import q7x2_ep\n"
        "    q7x2_ep.install()\n"
        f"    with multiprocessing.get_context({method!r}).Pool(1) as pool:\n"
        "        print(pool.map(worker, [0])[0])\n"
    )
    assert python("main.py") == q7x2_ep.InferenceSession.__module__


def test_run_as_ort(python, tmp_path):
    """Arguments, exit code and subprocesses; the script needs no q7x2_ep."""
    (tmp_path / "client.py").write_text(
        "import subprocess, sys, onnxruntime\n"
        "print(sys.argv[1:], onnxruntime.InferenceSession.__module__, flush=True)\n"
        "if sys.argv[-1] != 'inner':\n"
        "    subprocess.run([sys.executable, '-SB', __file__, 'inner'], check=True)\n"
        "    raise SystemExit(3 if '--fail' in sys.argv else 0)\n"
    )
    module = q7x2_ep.InferenceSession.__module__
    run = ("-m", "q7x2_ep", "run-as-ort")
    for program in (["client.py"], ["-m", "client"]):
        found = python(*run, *program, "-m", "a b", "--debug")
        assert found == f"['-m', 'a b', '--debug'] {module}\n['inner'] {module}"
    python(*run, "client.py", "--fail", code=3)


def test_one_version():
    (metadata,) = importlib.metadata.distributions(path=[STAND_IN])
    assert (metadata.metadata["Name"], metadata.version) == ("onnxruntime", q7x2_ep.version)


def test_we_are_not_compared_with_ourselves(python):
    code = INSTALL + f"import onnxruntime; q7x2_ep.compare({str(MODEL)!r})"
    assert "call q7x2_ep.uninstall() first" in python("-c", code, code=1)
