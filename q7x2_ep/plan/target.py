"""What the C library says of itself, as data: ops with their args, closed sets, kernels and the ISA
in use.

Parsed from the text of q7_describe, so that plans can be made without a library, and for an ISA
that this machine does not have.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Union

from q7x2_ep.errors import BackendError

ISAS = (  # weakest first within an architecture
    *("scalar", "neon", "neon_dot", "neon_i8mm"),
    *("avx2", "avx2_vnni", "avx512", "avx512_vnni", "amx"),
)
MANY_CPUS = 8  # of a machine: beyond, floats are not multiplied in tiles (docs/decisions.md 82)


class OperandRow(NamedTuple):
    """One operand pointer of an args struct. kind: in, opt, out, optout or scratch; offset in
    bytes.
    """

    kind: str
    name: str
    offset: int


class FieldRow(NamedTuple):
    """One scalar field of an args struct, or an array of `count`. type: i64 or f64; offset in
    bytes.
    """

    type: str
    name: str
    offset: int
    count: int


class OpRow(NamedTuple):
    """One row of ops.def. index: its opcode."""

    index: int
    name: str
    struct_bytes: int
    operands: tuple[OperandRow, ...]
    fields: tuple[FieldRow, ...]


class KernelRow(NamedTuple):
    """One row of kernels.def. mr, nr: the register tile of a GEMM kernel."""

    index: int
    family: str
    dtypes: str
    isa: str
    mr: int
    nr: int
    compiled: bool
    supported: bool

    @property
    def name(self) -> str:
        return f"{self.family}_{self.dtypes}_{self.isa}"

    @property
    def multiplies_floats_in_tiles(self) -> bool:
        return (self.isa, self.dtypes) == ("amx", "f32")


class Target(NamedTuple):
    """A library and a CPU to plan for."""

    ops: dict[str, OpRow]
    sets: dict[str, dict[str, int]]
    constants: dict[str, int]
    kernels: tuple[KernelRow, ...]
    isa: str
    abi: str  # the part of the text that describes structs and codes
    has_many_cpus: bool = False

    @property
    def abi_hash(self) -> str:
        import hashlib

        return hashlib.sha256(self.abi.encode()).hexdigest()

    @staticmethod
    def parse(text: str, cap: str = "", foreign: bool = False, cpus: int = 1) -> Target:
        """Read the text of q7_describe.

        cap: use no ISA beyond this one. foreign: plan for `cap` even where this CPU or build lacks
        it. cpus: of the machine, whatever a process may use of it; no matter where a cap is given.
        Raises: BackendError for a line that it does not understand, or an unknown ISA.
        """
        if cap and cap not in ISAS:
            raise BackendError(f"[isa] expected one of {', '.join(ISAS)}, given {cap!r}")
        allowed = ISAS[: ISAS.index(cap) + 1] if cap else ISAS
        ops: dict[str, OpRow] = {}
        sets: dict[str, dict[str, int]] = {}
        constants: dict[str, int] = {}
        kernels: list[KernelRow] = []
        cpu: list[str] = []
        abi = []
        for line in text.splitlines():
            word, _, rest = line.partition(" ")
            if word == "op":
                row = _op_row(len(ops), rest)
                ops[row.name] = row
            elif word == "set":
                name, *members = rest.split()
                sets[name] = {member: code for code, member in enumerate(members)}
            elif word == "constant":
                name, value = rest.split()
                constants[name] = int(value)
            elif word == "kernel":
                kernels.append(_kernel_row(len(kernels), rest, allowed, foreign))
            elif word == "cpu":
                cpu = [name for name in rest.split() if name in allowed]
            elif word not in ("abi", "source"):
                raise BackendError(
                    f"[library] does not describe itself as expected: {line!r}; build it again"
                )
            if word != "cpu":  # nor does it matter which kernels this CPU has
                abi.append(line.partition(" compiled=")[0])
        built = {row.isa for row in kernels if row.supported}  # a compiler may not know them all
        isa = cap if foreign else next((name for name in reversed(cpu) if name in built), "")
        many = not cap and cpus > MANY_CPUS
        return Target(ops, sets, constants, tuple(kernels), isa, "\n".join(abi), many)

    def kernel(
        self, family: str, dtypes: Union[str, Collection[str]] = (), tiles: bool = True
    ) -> KernelRow:
        """The first supported row of a family: order in kernels.def is priority.

        dtypes: those of the row, or some of which it may have one; any by default. tiles: whether
        those of AMX may be chosen; with many CPUs they never multiply floats.
        Raises: BackendError where this build and CPU have none.
        """
        wanted = (dtypes,) if isinstance(dtypes, str) else dtypes
        for row in self.kernels:
            is_of_family = row.family == family and (not wanted or row.dtypes in wanted)
            if not is_of_family or not row.supported or (row.isa == "amx" and not tiles):
                continue
            if not (self.has_many_cpus and row.multiplies_floats_in_tiles):
                return row
        raise BackendError(f"[library] has no {family} kernel for this CPU (isa {self.isa})")


def _op_row(index: int, text: str) -> OpRow:
    name, size, *parts = text.split()
    operands, fields = [], []
    for part in parts:
        kind, _, place = part.partition(":")
        what, _, offset = place.partition("@")
        if kind.startswith(("i64", "f64")):
            count = int(kind[4:-1]) if "[" in kind else 1
            fields.append(FieldRow(kind[:3], what, int(offset), count))
        else:
            operands.append(OperandRow(kind, what, int(offset)))
    return OpRow(index, name, int(size.partition("=")[2]), tuple(operands), tuple(fields))


def _kernel_row(index: int, text: str, allowed: tuple[str, ...], foreign: bool) -> KernelRow:
    family, dtypes, isa, mr, nr, compiled, supported = text.split()
    usable = isa in allowed and (foreign or supported == "supported=1")
    return KernelRow(index, family, dtypes, isa, int(mr), int(nr), compiled == "compiled=1", usable)
