"""Plan -> bytes for C (the layout is documented in csrc/q7.h), and the tables that Python keeps.

Every symbolic field becomes an index into the value table that bind fills: [threads, symbols..,
expressions..].
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from q7x2_ep import errors
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.shape import Dim, Expr, expr
from q7x2_ep.plan.memory import THREADS
from q7x2_ep.plan.parts import Guard, Operand, Plan, Step
from q7x2_ep.plan.target import Target

MAGIC = 0x6E616C7032783771
ABI = 1
OPERATIONS = {
    "const": 0,
    "add": 1,
    "sub": 2,
    "mul": 3,
    "floordiv": 4,
    "min": 5,
    "max": 6,
    "broadcast": 7,
}
SPACES = {"arena": 0, "constant": 1, "input": 2, "output": 3}
GUARDS = {"eq": 0, "ge": 1}
ALIGN = 64  # of the args of a step


@dataclass(eq=False)
class Values:
    """The value table: threads, symbols, then one expression each. Equal dims share an entry. used:
    the symbols that have been asked for.
    """

    symbols: list[str]
    exprs: list[tuple[int, int, int]] = field(default_factory=list)
    broadcasts: list[tuple[int, Expr]] = field(default_factory=list)  # -1 where misfit
    used: set[str] = field(default_factory=set)
    _index: dict[Any, int] = field(default_factory=dict)

    def of(self, dim: Dim) -> int:
        """The index of a dim's value."""
        if dim not in self._index:
            self._index[dim] = self._add(dim)
        return self._index[dim]

    def _add(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return self._emit("const", int(dim), 0)
        total = -1
        for monomial, coefficient in dim.terms:
            term = self.of(coefficient) if coefficient not in (1, -1) or not monomial else -1
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term < 0 else self._emit("mul", term, factor)
            if total < 0:
                total = (
                    self._emit("sub", self.of(0), term) if coefficient == -1 and monomial else term
                )
            else:
                total = self._emit("sub" if coefficient == -1 and monomial else "add", total, term)
        return total

    def _atom(self, atom: tuple) -> int:
        if atom[0] == "sym" and atom[1] != THREADS:
            self.used.add(atom[1])
        if atom not in self._index:
            kind, *rest = atom
            if kind == "sym":
                raise errors.PlanError(f"the size {rest[0]!r} is not a dim of any input")
            self._index[atom] = self._emit(kind, *(self.of(operand) for operand in rest))
            if kind == "broadcast":
                self.broadcasts.append((self._index[atom], expr((((atom,), 1),))))
        return self._index[atom]

    def _emit(self, operation: str, a: int, b: int) -> int:
        self.exprs.append((OPERATIONS[operation], a, b))
        return len(self.symbols) + len(self.exprs)

    def __post_init__(self) -> None:
        for i, name in enumerate([THREADS, *self.symbols]):
            self._index[("sym", name)] = i


class Encoded(NamedTuple):
    """A blob for q7_plan_create and what Python needs to use it. A compiled model file holds
    these, so that nothing here is an address, or needs the plan.
    """

    blob: bytes
    symbols: list[str]
    guards: list[Guard]
    n_values: int
    input_dims: list[list[int]]  # per input: the value index of each dim
    output_dims: list[list[int]]
    n_buffers: int
    steps: list[str]  # op and sources of each, for messages
    inputs: list[Value]
    outputs: list[Value]
    output_names: list[str]
    over: list[int]  # per output: the feed in whose memory it may be written, or -1


def check(encoded: Encoded) -> None:
    """Raises: PlanError where the tables of Python are not those of the blob, which C has checked:
    a file may hold anything.
    """
    header = memoryview(encoded.blob).cast("q")[:12].tolist()
    _, _, n_symbols, n_exprs, n_guards, n_buffers, n_steps, _, _, _, n_inputs, n_outputs = header
    counts = (1 + len(encoded.symbols), len(encoded.guards), encoded.n_buffers)
    counts += (len(encoded.steps), len(encoded.inputs), len(encoded.outputs), encoded.n_values)
    n_values = n_symbols + n_exprs
    table = [*encoded.input_dims, *encoded.output_dims]
    indices = [index for dims in table for index in dims]
    if (
        counts != (n_symbols, n_guards, n_buffers, n_steps, n_inputs, n_outputs, n_values)
        or [len(v.shape) for v in (*encoded.inputs, *encoded.outputs)] != list(map(len, table))
        or not 0 <= min(indices, default=0) <= max(indices, default=0) < n_values
        or len(encoded.over) != n_outputs
    ):
        raise errors.PlanError("[plan] its tables do not fit it")


def encode(plan: Plan, target: Target, symbols: list[str]) -> Encoded:
    """Encode a plan whose sizes depend on some of `symbols`, which are those of the result.

    Raises: PlanError where a size depends on anything else, ModelError for numbers beyond 64 bits.
    """
    try:
        encoded, used = _encode(plan, target, symbols)
        if len(used) < len(symbols):
            encoded, used = _encode(plan, target, [name for name in symbols if name in used])
        return encoded
    except (OverflowError, struct.error) as error:
        raise errors.ModelError(
            f"[plan] a size or number takes more than 64 bits: {error}"
        ) from None


def _encode(plan: Plan, target: Target, symbols: list[str]) -> tuple[Encoded, set[str]]:
    """And the symbols that its sizes depend on."""
    values = Values(symbols)
    buffers = plan.arena()
    buffer_index = {id(storage): i for i, storage in enumerate(buffers)}
    buffer_rows = [(values.of(s.bytes), s.first, s.last) for s in buffers]
    image, steps, value_patches, pointer_patches = bytearray(), [], [], []
    for step in plan.steps:
        row = target.ops[step.op]
        base = len(image)
        args = array("q", bytes(-(-row.struct_bytes // ALIGN) * ALIGN))
        for operand in row.operands:
            at = step.operands[operand.name]
            if at is not None:
                pointer_patches.append((base + operand.offset, *_address(at, buffer_index, values)))
        for f in row.fields:
            given = step.fields[f.name]
            if type(given) is int and f.type == "i64":  # as most are
                args[f.offset // 8] = given
            else:
                _put_field(args, base, step, f, target, values, value_patches)
        image += args
        steps.append((row.index, step.kernel.index if step.kernel else -1, base))
    graph = plan.graph
    over = {s.index: s.over.index for s in plan.storages if s.over is not None}
    input_dims = [[values.of(d) for d in value.shape] for value in graph.inputs]
    output_dims = [[values.of(d) for d in value.shape] for value in graph.outputs]
    guards = [(values.of(g.left), GUARDS[g.kind], values.of(g.right)) for g in plan.guards]
    texts = list(plan.guards)
    for index, dim in values.broadcasts:
        guards.append((index, GUARDS["ge"], values.of(0)))
        texts.append(Guard(dim, 0, "dims do not broadcast", "ge"))
    header = [
        MAGIC,
        ABI,
        1 + len(symbols),
        len(values.exprs),
        len(guards),
        len(buffers),
        len(steps),
    ]
    header += [
        len(value_patches),
        len(pointer_patches),
        len(image),
        len(graph.inputs),
        len(graph.outputs),
    ]
    words = array("q", header)
    for section in (values.exprs, guards, buffer_rows, steps, value_patches, pointer_patches):
        for entry in section:
            words.extend(entry)
    encoded = Encoded(
        words.tobytes() + bytes(image),
        symbols,
        texts,
        1 + len(symbols) + len(values.exprs),
        input_dims,
        output_dims,
        len(buffers),
        [f"[{step.op} {', '.join(step.sources) or step.name}]" for step in plan.steps],
        graph.inputs,
        graph.outputs,
        graph.output_names,
        [over.get(i, -1) for i in range(len(graph.outputs))],
    )
    return encoded, values.used


def _address(at: Operand, buffer_index: dict[int, int], values: Values) -> tuple[int, int, int]:
    root, offset = at.storage.place()
    index = buffer_index[id(root)] if root.space == "arena" else root.index
    return SPACES[root.space], index, values.of(at.offset + offset)


def _put_field(
    args: array,
    base: int,
    step: Step,
    f: Any,
    target: Target,
    values: Values,
    patches: list,
) -> None:
    """Write one field: its constant into the image, or a patch for bind."""
    given = step.fields[f.name]
    items = list(given) if f.count > 1 else [given]
    if len(items) > f.count:
        raise errors.PlanError(
            f"[{step.op} {step.name}] {f.name} holds {f.count} entries, {len(items)} given"
        )
    for i, item in enumerate(items):
        offset = f.offset + 8 * i
        if f.type == "f64":
            struct.pack_into("<d", args, offset, float(item))
            continue
        if isinstance(item, str):
            item = target.sets[step.op if f.name == "op" else f.name][item]
        if isinstance(item, Expr):
            patches.append((base + offset, values.of(item)))
        else:
            struct.pack_into("<q", args, offset, int(item))
