"""What became of a model: fusions, near misses, steps, memory; as an object and as text."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional, Union

from q7x2_ep.api.inference_session import InferenceSession
from q7x2_ep.errors import ShapeError
from q7x2_ep.ir.near_miss import NearMiss
from q7x2_ep.ir.shape import Expr, evaluate, product, symbols
from q7x2_ep.plan.memory import THREADS
from q7x2_ep.plan.parts import HostPhase, Step
from q7x2_ep.session import Model, Session

MAP_ROWS, MAP_COLUMNS, MAP_LEGEND = 24, 84, 12  # of the map of the arena, in characters
_VALUE = re.compile(r"%[^\s,()\[\]]+")  # a value in the reason of a near miss

DEFAULT_BATCH = 1  # the size of symbols in the first dim of an input
DEFAULT_LENGTHS = (128, 64, 32, 16, 8, 4, 2, 1)  # of the others: the first that the model admits
MOST_FREE = 4  # symbols that are tried at two lengths each


@dataclass(frozen=True)
class ExplainedStep:
    """One step: C op, kernel, backend, and the nodes of the model that it stands for."""

    op: str
    kernel: Optional[str]
    backend: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Buffer:
    """A piece of the arena, alive from step first to step last. Units: bytes."""

    name: str
    offset: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Explanation:
    """The compiled form of a model. Units: bytes; memory is for the symbol values in `sizes`.

    near_misses: one line per place. transposes: Transpose nodes in the model. transposing_copies:
    steps that are left of them: copies that change the order of the axes.

    peak_before and peak_after: bytes of the arena alive at once in the model's order of steps, and
    in ours. unplanned_bytes and unplanned_allocations: what one allocation per node output of the
    unfused graph would take. allocations: of memory per run, once a shape has been seen.
    """

    fusions: dict[str, int]
    near_misses: list[NearMiss]
    passes: dict[str, dict[str, int]]
    steps: list[ExplainedStep]
    host_steps: list[ExplainedStep]
    calls_per_run: int
    sizes: dict[str, int]
    arena_bytes: int
    peak_before: int
    peak_after: int
    unplanned_bytes: int
    unplanned_allocations: int
    allocations: int
    packed_bytes: int
    transposes: int
    transposing_copies: int
    arena: list[Buffer]

    def __str__(self) -> str:
        ops = Counter(step.op for step in self.steps)
        lines = ["fusions"]
        lines += [f"  {name:<24}{count:>6}" for name, count in self.fusions.items() if count]
        if not any(self.fusions.values()):
            lines.append("  none")
        if self.near_misses:
            lines += ["near misses", *_grouped(self.near_misses)]
        lines.append(
            f"steps {len(self.steps)}, host steps {len(self.host_steps)}, "
            f"calls per run {self.calls_per_run}"
        )
        lines += [f"  {op:<24}{count:>6}" for op, count in ops.most_common()]
        hosts = Counter((step.op, step.backend) for step in self.host_steps)
        lines += [f"  {op:<24}{count:>6}  {why}" for (op, why), count in hosts.most_common()]
        lines.append(
            f"transposes {self.transposes} in the model, {self.transposing_copies} copied by a step"
        )
        saved = 1 - self.arena_bytes / self.unplanned_bytes if self.unplanned_bytes else 0.0
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        lines += [
            f"memory at {sizes or 'fixed shapes'}",
            f"  arena                {self.arena_bytes:>14,} bytes",
            f"  alive at once        {self.peak_after:>14,} bytes, "
            f"{self.peak_before:,} in the model's order",
            f"  unplanned            {self.unplanned_bytes:>14,} bytes in "
            f"{self.unplanned_allocations} allocations ({saved:.0%} saved)",
            f"  packed weights       {self.packed_bytes:>14,} bytes",
            f"  allocations per run  {self.allocations:>14,}",
        ]
        return "\n".join(lines)

    def arena_map(self) -> str:
        """The arena as text: addresses from top to bottom, steps from left to right.

        A letter is a buffer, a dot is free; the legend has the largest ones.
        """
        steps, total = max(len(self.steps), 1), max(self.arena_bytes, 1)
        rows = min(MAP_ROWS, max(len(self.arena), 1))
        columns = steps * (MAP_COLUMNS // steps) or MAP_COLUMNS
        grid = [["."] * columns for _ in range(rows)]
        buffers = sorted(self.arena, key=lambda buffer: buffer.first)
        lettered = list(zip(buffers, itertools.cycle(string.ascii_letters)))
        lettered.sort(key=lambda pair: -pair[0].bytes)  # the larger of two takes the cell
        for buffer, letter in lettered:
            top = buffer.offset * rows // total
            bottom = (buffer.offset + max(buffer.bytes, 1) - 1) * rows // total
            left = buffer.first * columns // steps
            right = max((buffer.last + 1) * columns // steps, left + 1)
            for row in grid[top : bottom + 1]:
                row[left:right] = [cell if cell != "." else letter for cell in row[left:right]]
        lines = [f"arena {self.arena_bytes:,} bytes, steps 0..{steps - 1}"]
        lines += [f"{i * total // rows:>13,} |{''.join(row)}|" for i, row in enumerate(grid)]
        lines += [
            f"  {letter} {buffer.bytes:>11,} bytes  steps {f'{buffer.first}..{buffer.last}':<11}"
            f"{shorten(buffer.name, 60)}"
            for buffer, letter in lettered[:MAP_LEGEND]
        ]
        if len(lettered) > MAP_LEGEND:
            lines.append(f"  and {len(lettered) - MAP_LEGEND} more")
        return "\n".join(lines)


def shorten(name: str, width: int) -> str:
    """The end of a name, which tells more than its beginning."""
    return name if len(name) <= width else ".." + name[2 - width :]


def _grouped(misses: Sequence[NearMiss]) -> list[str]:
    """One line per fusion and reason: how far it got, how often, why, and where first."""
    groups: dict[tuple, list[NearMiss]] = {}
    for miss in misses:
        reason = _VALUE.sub("%", miss.reason)
        groups.setdefault((miss.fusion, miss.matched, miss.total, reason), []).append(miss)
    lines = []
    for (fusion, matched, total, _), group in groups.items():
        first = group[0]
        reason = _VALUE.sub(lambda found: "%" + shorten(found.group()[1:], 14), first.reason)
        reason = reason if len(reason) <= 52 else reason[:50] + ".."
        head = f"  {shorten(fusion, 16):<16}{matched}/{total} x{len(group):<3} "
        lines.append(f"{head}{reason} at {shorten(first.node.name, 95 - len(head) - len(reason))}")
    return lines


def explain(
    model_or_session: Union[Model, InferenceSession], sizes: Optional[Mapping[str, int]] = None
) -> Explanation:
    """Say what a model was compiled to.

    sizes: values of the symbolic dims for the memory figures; symbols of an input's first dim
    default to 1, others to 128, or less where the model has a shorter limit.
    """
    if isinstance(model_or_session, InferenceSession):
        return _explain(model_or_session._session, sizes or {})
    with InferenceSession(model_or_session) as session:
        return _explain(session._session, sizes or {})


def _explain(session: Session, given: Mapping[str, int]) -> Explanation:
    sizes, statistics = _memory(session, given)
    everything = {**sizes, THREADS: session.threads}
    program = session.program
    plans = program.plans[: len(statistics)]  # of the others, sizes depend on data
    peaks = [plan.peaks(everything) for plan in plans]
    native = [step for plan in program.plans for step in plan.steps]
    steps = [
        ExplainedStep(s.op, s.kernel.name if s.kernel else None, "cpu", s.sources) for s in native
    ]
    host_steps = [
        ExplainedStep(phase.node.op, None, f"{_place(phase)}: {phase.reason}", phase.node.sources)
        for phase in program.host_phases
    ]
    unplanned = list(map(product, session.report.unplanned))
    firsts = itertools.accumulate((len(plan.steps) for plan in plans), initial=0)
    return Explanation(
        fusions=dict(session.report.fusions.applied),
        near_misses=list(session.report.fusions.misses),
        passes=session.report.passes,
        steps=steps,
        host_steps=host_steps,
        calls_per_run=len(program.plans),
        sizes=sizes,
        arena_bytes=sum(each["arena_bytes"] for each in statistics),
        peak_before=max((before for before, _ in peaks), default=0),
        peak_after=max((after for _, after in peaks), default=0),
        unplanned_bytes=sum(
            evaluate(size, sizes) for size in unplanned if symbols(size) <= sizes.keys()
        ),
        unplanned_allocations=len(unplanned),
        allocations=sum(each["allocations_per_run"] for each in statistics),
        packed_bytes=sum(plan.packed_bytes for plan in program.plans),
        transposes=session.report.model_ops["Transpose"],
        transposing_copies=sum(
            _changes_order(step, everything)
            for plan in plans
            for step in plan.steps
            if step.op == "copy"
        ),
        arena=[
            Buffer(storage.name, offset, size, first + storage.first, first + storage.last)
            for plan, first, places in zip(plans, firsts, program.placements(sizes))
            for storage, (offset, size) in zip(plan.arena(), places)
        ],
    )


def _place(phase: HostPhase) -> str:
    """Where a step between native phases runs."""
    return "C, on its own" if phase.within is not None else "host"


def _changes_order(copy: Step, sizes: Mapping[str, int]) -> bool:
    """Whether the axes of a copy lie in another order in its target."""

    def order(strides: str) -> list[int]:
        walks = [abs(evaluate(stride, sizes)) for stride in copy.fields[strides]]
        dims = [evaluate(dim, sizes) for dim in copy.fields["shape"]]
        moving = [axis for axis, dim in enumerate(dims) if dim != 1 and walks[axis]]
        return sorted(moving, key=lambda axis: -walks[axis])

    x, y = order("x_stride"), order("y_stride")
    return x != [axis for axis in y if axis in x]


def _memory(session: Session, given: Mapping[str, int]) -> tuple[dict[str, int], list]:
    """The sizes to report for, and the memory that the plans take of which they tell all sizes.

    A symbol that may stand for two others, past and present say, is tried at twice the length.
    """
    defaults: dict[str, int] = {}
    for spec in session.inputs:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, Expr):
                defaults.setdefault(repr(dim), int(axis > 0))
    lengths = [name for name, is_length in defaults.items() if is_length and name not in given]
    batches = {name: DEFAULT_BATCH for name, is_length in defaults.items() if not is_length}
    for length in DEFAULT_LENGTHS:
        for factors in itertools.product((1, 2), repeat=min(len(lengths), MOST_FREE)):
            sizes = {**batches, **dict.fromkeys(lengths, length)}
            sizes.update((name, length * times) for name, times in zip(lengths, factors))
            sizes.update(given)
            try:
                return sizes, session.program.statistics(sizes)
            except ShapeError as error:
                refusal = error
    raise refusal
