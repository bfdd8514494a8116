"""Plans made by hand, word by word, for tests of the C executor. The layout is in csrc/q7.h."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Union

from q7x2_ep.backend.cpu.library import load

ROOT = Path(__file__).parents[2]
Q7_H = (ROOT / "csrc" / "q7.h").read_text()


def enum(prefix: str, first: str = "") -> dict[str, int]:
    """Codes of the enum of q7.h that starts with `prefix` and `first`, by names without prefix."""
    code = re.sub(r"/\*.*?\*/", "", Q7_H, flags=re.DOTALL)
    for body in re.findall(r"enum \{(.*?)\}", code, flags=re.DOTALL):
        names = re.findall(r"\w+", body)
        if names[0].startswith(prefix + first):
            return {name[len(prefix) :].lower(): code for code, name in enumerate(names)}
    raise AssertionError(f"q7.h has no enum of {prefix}")


EXPRS, GUARDS, SPACES = enum("Q7_EXPR_"), enum("Q7_GUARD_"), enum("Q7_SPACE_")
MAGIC = int(re.search(r"Q7_PLAN_MAGIC INT64_C\((\w+)\)", Q7_H)[1], 16)


class Value(int):
    """An index into the value table, where a plain int is a constant."""


class Blob:
    """A plan over `symbols` sizes (Values 1, 2, ..; Value(0) is the number of threads)."""

    def __init__(self, symbols: int = 0, inputs: int = 0, outputs: int = 0, library=None):
        self.target = (library or load()).target
        self.n_symbols, self.n_inputs, self.n_outputs = 1 + symbols, inputs, outputs
        self.exprs: list[tuple[int, int, int]] = []
        self.guards: list[tuple[int, int, int]] = []
        self.buffers: list[tuple[int, int, int]] = []
        self.steps: list[tuple[int, int, int]] = []
        self.value_patches: list[tuple[int, int]] = []
        self.pointers: list[tuple[int, int, int, int]] = []
        self.image = bytearray()

    def expr(self, operation: str, a: Union[Value, int], b: Union[Value, int] = 0) -> Value:
        if operation != "const":
            a, b = self.value(a), self.value(b)
        self.exprs.append((EXPRS[operation], int(a), int(b)))
        return Value(self.n_symbols + len(self.exprs) - 1)

    def value(self, given: Union[Value, int]) -> Value:
        return given if isinstance(given, Value) else self.expr("const", given)

    def guard(self, value: Union[Value, int], kind: str, limit: Union[Value, int]) -> None:
        self.guards.append((self.value(value), GUARDS[kind], self.value(limit)))

    def buffer(self, size: Union[Value, int], first: int, last: int) -> int:
        """The index of a new buffer of `size` bytes, alive in steps [first, last]."""
        self.buffers.append((self.value(size), first, last))
        return len(self.buffers) - 1

    def step(self, op: str, kernel: str = "", /, **given) -> None:
        """One step of a row of ops.def. Operands: (space, index) or (space, index, byte offset);
        fields: numbers, Values, names of closed sets, or sequences of them. What is left out is 0.
        """
        row, at = self.target.ops[op], len(self.image)
        self.image += bytes(-(-row.struct_bytes // 64) * 64)
        for operand in row.operands:
            if operand.name in given:
                space, index, *offset = given.pop(operand.name)
                place = (SPACES[space], index, self.value(*offset or [0]))
                self.pointers.append((at + operand.offset, *place))
        for f in row.fields:
            items = given.pop(f.name, [] if f.count > 1 else 0)
            for i, item in enumerate(items if f.count > 1 else [items]):
                where = at + f.offset + 8 * i
                if isinstance(item, str):
                    item = self.target.sets[op if f.name == "op" else f.name][item]
                if isinstance(item, Value):
                    self.value_patches.append((where, item))
                else:
                    struct.pack_into("<d" if f.type == "f64" else "<q", self.image, where, item)
        assert not given, f"{op} has no {sorted(given)}"
        number = self.target.kernel(kernel).index if kernel else -1
        self.steps.append((row.index, number, at))

    def copy(self, x: tuple, y: tuple, shape: list, x_stride: list, y_stride: list) -> None:
        """A step that copies float32."""
        strides = {"x_stride": x_stride, "y_stride": y_stride}
        self.step("copy", "copy", x=x, y=y, elem_bytes=4, ndim=len(shape), shape=shape, **strides)

    def add(self, a: tuple, b: tuple, y: tuple, n: Union[Value, int]) -> None:
        """A step that adds n float32."""
        shapes = {"shape": [n], "a_shape": [n], "b_shape": [n]}
        self.step("binary", "binary", a=a, b=b, y=y, op="add", dtype=1, ndim=1, **shapes)

    def fill(self, buffer: int, n: Union[Value, int] = 0) -> None:
        """A step that clears the first n bytes of a buffer: the least that a step can be."""
        self.step("fill", y=("arena", buffer), elem_bytes=1, n=n)

    def encode(self) -> bytes:
        sections = [self.exprs, self.guards, self.buffers, self.steps]
        sections += [self.value_patches, self.pointers]
        counts = [self.n_symbols, *map(len, sections), len(self.image)]
        words = [MAGIC, 1, *counts, self.n_inputs, self.n_outputs]
        for section in sections:
            for row in section:
                words += row
        return array("q", words).tobytes() + bytes(self.image)


def run_alone(function: str, module: str) -> None:
    """Run a function in a process of its own: it may crash, fork, or leave threads behind."""
    environment = dict(os.environ)
    for variable, options in {
        "ASAN_OPTIONS": "allocator_may_return_null=1:abort_on_error=1",
        # Python leaks too: leaks alone are no failure here, .ci/run looks for ours in the reports.
        # This also overrides the exit code of other findings, hence abort_on_error.
        "LSAN_OPTIONS": "exitcode=0",
        "TSAN_OPTIONS": "allocator_may_return_null=1:die_after_fork=0",
    }.items():
        environment[variable] = f"{environment.get(variable, '')}:{options}"
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import {function} as run; run()"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
