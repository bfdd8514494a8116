"""The C library against what it says of itself: header, symbols, kernel table, description."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from q7x2_ep.backend.cpu import library
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.plan import encode
from tests.unit.plan_blobs import MAGIC, enum

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "csrc" / "q7.h"


def defined(*options: str) -> set[str]:
    """The names that `nm` finds defined in the library, those of the linker left out."""
    if not shutil.which("nm"):
        pytest.skip("needs nm")
    command = ["nm", *options, str(load().path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    parts = [line.split() for line in done.stdout.splitlines()]
    names = {name.lstrip("_") for *_, kind, name in parts if kind not in "Uuw" and len(kind) == 1}
    return names - {"init", "fini", "edata", "end", "bss_start"}


@pytest.mark.parametrize("compiler, standard", [("cc", "c11"), ("c++", "c++14")])
def test_header_stands_alone(compiler, standard, tmp_path):
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    source = tmp_path / ("x.c" if compiler == "cc" else "x.cpp")
    source.write_text(f'#include "{HEADER}"\n')
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run([compiler, *flags, str(source)], env=plain, check=True)  # cc may leak


def test_exports_are_those_of_the_header():
    if sys.platform != "linux":
        pytest.skip("needs the nm of Linux")
    code = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    assert defined("-D") == set(re.findall(r"\b(q7_\w+)\(", code))


def test_python_has_the_numbers_of_the_header():
    assert enum("Q7_SPACE_") == encode.SPACES
    assert enum("Q7_GUARD_") == encode.GUARDS
    assert encode.OPERATIONS.items() <= enum("Q7_EXPR_").items()
    assert encode.MAGIC == MAGIC
    numbers = enum("Q7_", "STAT_") | enum("Q7_", "OK")
    assert numbers == {name: getattr(library, name.upper()) for name in numbers}
    assert f"abi {encode.ABI}" in load("").description.splitlines()


def test_every_kernel_is_in_the_table_and_the_table_in_the_library():
    rows = load("").target.kernels
    isas = {row.isa for row in rows}
    symbol = re.compile(rf"q7_\w+_(any|[fiu]\d+(x\d)?)_({'|'.join(isas)})")
    kernels = {name for name in defined() if symbol.fullmatch(name)}
    assert kernels == {f"q7_{row.name}" for row in rows if row.compiled}


def test_description_is_the_one_in_review(golden):
    """Ops, sets and constants; the kernels' flags depend on the machine."""
    lines = load("").description.splitlines(keepends=True)
    left = ("source", "kernel", "cpu")
    golden("abi.txt", "".join(line for line in lines if line.split()[0] not in left))
