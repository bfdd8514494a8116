"""What this installation is: versions, library, CPU, kernels. For issue reports and result
files."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Callable

import q7x2_ep
from q7x2_ep import knobs
from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.errors import BackendError, BindingError
from q7x2_ep.plan.target import Target

PACKAGES = ("numpy", "onnx", "onnxruntime")


def environment() -> dict[str, Any]:
    """Facts by name, serialisable. A library that does not load is a fact like any other, and so is
    a variable that cannot be read.
    """
    facts: dict[str, Any] = {
        "q7x2_ep": q7x2_ep.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "threads": _or_wrong(default_threads),
        "compiler": _compiler(),
    }
    try:
        library = load()
    except BackendError as error:
        facts["library"] = str(error)
    else:
        target = library.target
        facts["library"] = str(library.path)
        facts["isa"] = target.isa
        facts["isas"] = sorted({row.isa for row in target.kernels if row.supported})
        facts["kernels"] = sum(row.supported for row in target.kernels)
        facts["abi"] = target.abi_hash[:16]
    given = {
        knob.variable: _or_wrong(partial(knobs.get, name)) for name, knob in knobs.KNOBS.items()
    }
    facts["knobs"] = {name: value for name, value in given.items() if value}
    return facts


def kernel_table(target: Target) -> str:
    """The rows of kernels.def: compiled in, supported by this CPU, and which one serves its
    family."""
    lines = [f"{'kernel':<28}{'tile':>8}{'compiled':>10}{'supported':>11}  chosen"]
    for row in target.kernels:
        tile = f"{row.mr}x{row.nr}" if row.mr else ""
        chosen = row.supported and target.kernel(row.family, row.dtypes) is row
        flags = f"{_yes(row.compiled):>10}{_yes(row.supported):>11}  {'*' if chosen else ''}"
        lines.append(f"{row.name:<28}{tile:>8}{flags}".rstrip())
    return "\n".join(lines)


def knob_table() -> str:
    """Every environment variable: name, value in force, meaning. Of one that cannot be read its
    text, and what is wrong with it.
    """
    rows = []
    for name, knob in knobs.KNOBS.items():
        try:
            rows.append((knob.variable, repr(knobs.get(name)), knob.meaning))
        except BindingError as error:
            meaning = f"{error.message}. {knob.meaning}"
            rows.append((knob.variable, repr(knobs.given(name)), meaning))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {meaning}" for a, b, meaning in rows)


def _or_wrong(fact: Callable[[], Any]) -> Any:
    """A fact, or what is wrong with the variable that it depends on."""
    try:
        return fact()
    except BindingError as error:
        return error.message


def _yes(flag: bool) -> str:
    return "yes" if flag else "-"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string")
    return platform.processor() or platform.machine()


def _compiler() -> str:
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return _output(name, "--version")
    return "none"


def _output(*command: str) -> str:
    """The first line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout.splitlines() or ["unknown"])[0]
