"""Builds csrc/ into one plain shared library inside the package: q7x2_ep/libq7.so (.dylib on
macOS), and compiles the package's Python.

No Python.h, no file list: globs, and each kernel file once per instruction set. The wheel is
py3-none-<platform>: one serves every Python. `python setup.py build [--debug] [--isa=avx2]
[--sanitize=address,undefined|thread]` builds in the source tree.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
# prefetchw, without which what is about to be written is prefetched as if to be read; CPUs that do
# not know it do nothing.
AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mprfchw")
AVX512 = (
    *("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", *AVX2),
    "-mprefer-vector-width=512",
)
AMX = (*AVX512, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16")
# gcc moves loads up before it gives out registers, until tiles of sums do not fit into 32 of them
# (docs/decisions.md 188). clang neither does that nor knows the flag.
NEON = ("-fno-schedule-insns", "-Wno-ignored-optimization-argument")
DOT = ("-march=armv8.2-a+dotprod", *NEON)
I8MM = ("-march=armv8.2-a+dotprod+i8mm", *NEON)
X86, ARM = ("x86_64",), ("aarch64",)
# name: (machines, flags, the set whose verbs it has, folders of its kernels); kernels.def says what
# is used first. A set that the compiler does not know is left out.
ISAS = {
    "scalar": ((*X86, *ARM), (), "scalar", (".", "pairs")),
    "neon": (ARM, NEON, "neon", (".", "pairs")),
    "neon_dot": (ARM, DOT, "neon", ("quads", "dot", "taps")),
    "neon_i8mm": (ARM, I8MM, "neon", ("quads", "dot")),
    "avx2": (X86, AVX2, "avx2", (".", "pairs", "quads", "two_quads")),
    "avx2_vnni": (X86, (*AVX2, "-mavxvnni"), "avx2", ("quads", "dot", "taps")),
    "avx512": (X86, AVX512, "avx512", (".", "pairs", "quads", "two_quads")),
    "avx512_vnni": (X86, (*AVX512, "-mavx512vnni"), "avx512", ("quads", "dot", "taps")),
    "amx": (X86, AMX, "avx512", ("amx",)),
}
ALONE = ("scalar", "avx2", "neon")  # sets that hand nothing over to others, as avx512 does
# Math flags: results may not depend on errno or traps; contraction to FMA is wanted; no
# -ffast-math: NaN and inf matter.
CFLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-Wno-pass-failed",  # clang says where it does not unroll a loop as it is asked to
)
DARWIN = sys.platform == "darwin"
LIBRARY = "libq7.dylib" if DARWIN else "libq7.so"


def compiler() -> list[str]:
    """The C compiler from $CC, else cc, gcc or clang. Exits with the remedy where there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    for name in [given] if given else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(name[0]):
            return name
    remedy = "xcode-select --install" if DARWIN else "apt install gcc (or dnf install gcc)"
    raise SystemExit(
        f"q7x2_ep needs a C compiler and found none (tried {' '.join(given) or 'cc, gcc, clang'}). "
        f"Install one with: {remedy}; or name one in $CC."
    )


def machine(cc: list[str]) -> str:
    """What the compiler builds for: x86_64, aarch64, or another 64-bit machine (which gets scalar
    kernels).
    """
    made = subprocess.run(
        [*cc, "-dumpmachine"], capture_output=True, text=True, check=False
    ).stdout.partition("-")[0]
    name = made or platform.machine()
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name.lower(), name)


def takes(cc: list[str], flags: tuple[str, ...]) -> bool:
    """Whether the compiler knows all of these flags."""
    command = [*cc, *flags, "-fsyntax-only", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compile_library(
    target: Path, work: Path, extra: tuple[str, ...] = (), only: str | None = None
) -> None:
    """Compile what has changed since the last build in `work` and link it to `target`. Of the
    instruction sets, those with the verbs of `only`, or all.
    """
    cc = compiler()
    here = machine(cc)
    isas = [isa for isa, row in ISAS.items() if here in row[0] and takes(cc, row[1])] or ["scalar"]
    if only:
        isas = [isa for isa in isas if only == ISAS[isa][2]]
        if only not in ALONE or not isas:
            raise SystemExit(f"q7x2_ep: expected --isa={'|'.join(ALONE)}, given {only} for {here}.")
    have = tuple(f"-DQ7_HAVE_{isa}=1" for isa in isas)
    csrc = ROOT / "csrc"
    source = hashlib.sha256()  # what a compiled model file was made for
    for file in sorted(f for f in csrc.rglob("*") if f.suffix in (".c", ".h", ".def")):
        source.update(file.read_bytes())
    told = (*have, f"-DQ7_SOURCE={source.hexdigest()[:16]}")
    jobs = [
        (c, work / f"{c.stem}.o", told if c.stem == "describe" else have)
        for c in sorted(csrc.glob("*.c"))
    ]
    jobs += [(c, work / f"op_{c.stem}.o", have) for c in sorted((csrc / "ops").glob("*.c"))]
    for isa in isas:
        _, flags, base, folders = ISAS[isa]
        flags = (*flags, f"-DQ7_ISA={isa}", f"-DQ7_ISA_{base}=1")
        flags += () if isa == base else ("-DQ7_EXTENSION=1",)
        sources = [c for f in folders for c in sorted((csrc / "kernels" / f).glob("*.c"))]
        jobs += [(c, work / f"{c.parent.name}_{c.stem}_{isa}.o", flags) for c in sources]
    work.mkdir(parents=True, exist_ok=True)
    newest = max(f.stat().st_mtime for pattern in ("*.h", "*.def") for f in csrc.rglob(pattern))
    commands = [
        (
            source,
            made,
            [*cc, *CFLAGS, *flags, *extra, f"-I{csrc}", "-c", str(source), "-o", str(made)],
        )
        for source, made, flags in jobs
    ]

    def run(source: Path, made: Path, command: list[str]) -> bool:
        record = made.with_suffix(".cmd")
        text = shlex.join(command)
        fresh = made.exists() and record.exists() and record.read_text() == text
        if fresh and made.stat().st_mtime >= max(newest, source.stat().st_mtime):
            return False
        subprocess.run(command, check=True)
        record.write_text(text)
        return True

    try:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            changed = list(pool.map(lambda job: run(*job), commands))
        shared = (
            ["-dynamiclib", "-install_name", f"@rpath/{LIBRARY}"]
            if DARWIN
            else ["-shared", "-Wl,-z,defs"]
        )
        objects = [str(made) for _, made, _ in commands]
        link = [*cc, *shared, *extra, *objects, "-o", str(target), "-lpthread", "-lm"]
        linked = ROOT / "build" / "linked.cmd"  # of the library in place: flavours take turns there
        newest_object = max(made.stat().st_mtime for _, made, _ in commands)
        stale = not target.exists() or target.stat().st_mtime < newest_object
        if any(changed) or stale or not linked.exists() or linked.read_text() != shlex.join(link):
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(link, check=True)
            linked.write_text(shlex.join(link))
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"q7x2_ep: {shlex.join(error.cmd)} failed with exit status {error.returncode}"
        ) from None


OPTIONS = (
    ("sanitize=", None, "address,undefined or thread"),
    ("isa=", None, f"{', '.join(ALONE)}: only the kernels of this set and its extensions"),
)


class BuildLibrary(Command):
    """build_libq7: the shared library, in the source tree or for a wheel."""

    description = "compile csrc/ into one shared library"
    user_options: ClassVar = [
        ("debug", None, "no optimisation; each step is checked to keep to its operands"),
        *OPTIONS,
    ]

    def initialize_options(self) -> None:
        self.debug = self.build_lib = self.sanitize = self.isa = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))
        self.set_undefined_options(
            "build", ("debug", "debug"), ("sanitize", "sanitize"), ("isa", "isa")
        )

    def run(self) -> None:
        extra: tuple[str, ...] = ()
        if self.sanitize:
            extra += (f"-fsanitize={self.sanitize}", "-fno-omit-frame-pointer", "-g1", "-O1")
        if self.debug:
            extra += ("-g", "-O0")
        if extra:
            extra += ("-DQ7_DEBUG",)
        flavour = [*(self.sanitize or "").split(","), "debug" if self.debug else ""]
        work = ROOT / "build" / "_".join(["libq7", *filter(None, flavour)])
        compile_library(ROOT / "q7x2_ep" / LIBRARY, work, extra, self.isa)
        # pip does this for what it copies. Where Python may not (PYTHONDONTWRITEBYTECODE, a folder
        # of somebody else's), each process would compile its modules again, 100 ms for an Add.
        compileall.compile_dir(ROOT / "q7x2_ep", rx=re.compile("stand_in"), quiet=1)
        if not self.editable_mode and self.build_lib:
            made = Path(self.build_lib) / "q7x2_ep" / LIBRARY
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / "q7x2_ep" / LIBRARY, made)

    def get_source_files(self) -> list[str]:
        return [str(f.relative_to(ROOT)) for f in (ROOT / "csrc").rglob("*") if f.is_file()]

    def get_outputs(self) -> list[str]:
        return [str(Path(self.build_lib) / "q7x2_ep" / LIBRARY)] if self.build_lib else []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    """build, with our options handed on to build_libq7."""

    user_options: ClassVar = [*build.user_options, *OPTIONS]
    sub_commands: ClassVar = [*build.sub_commands, ("build_libq7", None)]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.sanitize = self.isa = None


class Wheel(bdist_wheel):
    """py3-none-<platform>: the library has nothing of Python in it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=PlatformDistribution,
    cmdclass={
        "build": Build,
        "build_libq7": BuildLibrary,
        "bdist_wheel": Wheel,
    },
)
