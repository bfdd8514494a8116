"""What became of a model: fusions, near misses, steps, memory; as an object and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional, Union

from q7x2_ep.api.inference_session import InferenceSession
from q7x2_ep.errors import InternalError, ShapeError
from q7x2_ep.ir.shape import Expr, evaluate
from q7x2_ep.plan.memory import THREADS
from q7x2_ep.session import Model, Session

DEFAULT_BATCH = 1  # the size of symbols in the first dim of an input
DEFAULT_LENGTHS = (128, 64, 32, 16, 8, 4, 2, 1)  # of the others: the first that the model admits


@dataclass(frozen=True)
class ExplainedStep:
    """One step: C op, kernel, backend, and the nodes of the model that it stands for."""

    op: str
    kernel: Optional[str]
    backend: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The compiled form of a model. Units: bytes; memory is for the symbol values in `sizes`.

    peak_before and peak_after: bytes of the arena alive at once in the model's order of steps, and
    in ours. unplanned_bytes and unplanned_allocations: what one allocation per node output of the
    unfused graph would take. allocations: of memory per run, once a shape has been seen.
    """

    fusions: dict[str, int]
    near_misses: list[str]
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

    def __str__(self) -> str:
        ops = Counter(step.op for step in self.steps)
        lines = ["fusions"]
        lines += [f"  {name:<24}{count:>6}" for name, count in self.fusions.items() if count]
        if not any(self.fusions.values()):
            lines.append("  none")
        if self.near_misses:
            lines += ["near misses", *(f"  {line}" for line in self.near_misses)]
        lines.append(
            f"steps {len(self.steps)}, host steps {len(self.host_steps)}, "
            f"calls per run {self.calls_per_run}"
        )
        lines += [f"  {op:<24}{count:>6}" for op, count in ops.most_common()]
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
    peak_before, peak_after = session.plan.peaks({**sizes, THREADS: session.threads})
    steps = [
        ExplainedStep(s.op, s.kernel.name if s.kernel else None, "cpu", s.sources)
        for s in session.plan.steps
    ]
    return Explanation(
        fusions=dict(session.fusions.applied),
        near_misses=[f"{miss.node.name}: {miss}" for miss in session.fusions.misses],
        passes=session.statistics,
        steps=steps,
        host_steps=[],
        calls_per_run=1,
        sizes=sizes,
        arena_bytes=statistics["arena_bytes"],
        peak_before=peak_before,
        peak_after=peak_after,
        unplanned_bytes=sum(evaluate(dim, sizes) for dim in session.unplanned),
        unplanned_allocations=len(session.unplanned),
        allocations=statistics["allocations_per_run"],
        packed_bytes=session.plan.packed_bytes,
    )


def _memory(session: Session, given: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The sizes to report for, and the memory that they take."""
    for length in DEFAULT_LENGTHS:
        sizes: dict[str, int] = {}
        for spec in session.inputs:
            for axis, dim in enumerate(spec.shape):
                if isinstance(dim, Expr):
                    sizes.setdefault(repr(dim), length if axis else DEFAULT_BATCH)
        sizes.update(given)
        try:
            return sizes, session.statistics_for(sizes)
        except ShapeError:
            if length == DEFAULT_LENGTHS[-1] or set(given) >= set(sizes):
                raise
    raise InternalError("unreachable: the last length returns or raises")
