"""The C library against what it says of itself: header, symbols, kernel table, description."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from q7x2_ep.backend.cpu.library import load

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "abi.txt"
HEADER = ROOT / "csrc" / "q7.h"


def symbols() -> dict[str, str]:
    """Name -> kind (T exported, t local) of every function in the library that is ours."""
    if not shutil.which("nm"):
        pytest.skip("needs nm")
    done = subprocess.run(["nm", str(load().path)], capture_output=True, text=True, check=True)
    parts = (line.split() for line in done.stdout.splitlines())
    found = {p[2].lstrip("_"): p[1] for p in parts if len(p) == 3 and p[1] in "Tt"}
    return {name: kind for name, kind in found.items() if name.startswith("q7_")}


@pytest.mark.parametrize("compiler, standard", [("cc", "c11"), ("c++", "c++14")])
def test_header_stands_alone(compiler, standard, tmp_path):
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    source = tmp_path / ("x.c" if compiler == "cc" else "x.cpp")
    source.write_text(f'#include "{HEADER}"\n')
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    subprocess.run([compiler, *flags, str(source)], check=True)


def test_exports_are_those_of_the_header():
    declared = set(
        re.findall(r"\b(q7_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S))
    )
    assert {name for name, kind in symbols().items() if kind == "T"} == declared


def test_every_kernel_is_in_the_table_and_the_table_in_the_library():
    rows = load("").target.kernels
    isas = {row.isa for row in rows}
    kernels = {name for name in symbols() if re.fullmatch(rf"q7_\w+_f\d+_({'|'.join(isas)})", name)}
    assert kernels == {f"q7_{row.name}" for row in rows if row.compiled}


def test_description_is_the_one_in_review(request):
    """Ops, sets and constants; the kernels' flags depend on the machine."""
    lines = load("").description.splitlines()
    text = "\n".join(line for line in lines if line.split()[0] not in ("kernel", "cpu")) + "\n"
    if request.config.getoption("--accept"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
