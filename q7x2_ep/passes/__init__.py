"""Passes that need no patterns: what a graph is before fusion looks at it, and tidying up after.

A pass is a module with `run(graph) -> statistics`. PASSES is run again until nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection

from q7x2_ep import knobs
from q7x2_ep.ir.core import Graph
from q7x2_ep.ir.verify import verify
from q7x2_ep.ops import find
from q7x2_ep.passes import (
    contents,
    cse,
    dce,
    expand,
    fold,
    hoist,
    indices,
    lists,
    noop,
    scans,
    settle,
    sink,
    widen,
)

# lists needs no types, fold infers those that all others need, widen leaves no 16-bit floats to the
# others, contents makes sizes known, expand makes nodes to work on, indices makes Expands for
# sink, noop and sink make nodes equal for cse; dce tidies up last. scans and hoist need types only.
# settle makes sizes simpler for all of them; it asks every guard, and waits until they have nothing
# to do.
PASSES = (lists, fold, contents, widen, scans, hoist, expand, noop, indices, sink, cse, dce, settle)

NAMES = tuple(module.__name__.rpartition(".")[2] for module in PASSES)
MAX_ROUNDS = 10  # a bound, should two passes ever undo each other; models need three or four


def run_all(graph: Graph, without: Collection[str] = ()) -> dict[str, dict[str, int]]:
    """Run every pass, but for those named, to a fixed point; the statistics of each, by its name.

    Raises: ModelError where the model's types do not fit together, InternalError where one
    broke the graph; with the knob VERIFY it is named.
    """
    totals: dict[str, dict[str, int]] = {}
    checked = bool(knobs.get("VERIFY"))
    for _ in range(MAX_ROUNDS):
        changed = 0
        for name, module in zip(NAMES, PASSES):
            if name in without or (module is settle and changed):
                continue
            counts = module.run(graph)
            total = totals.setdefault(name, {})
            for key, count in counts.items():
                total[key] = total.get(key, 0) + count
            if checked and module is not lists:  # what fold refuses is the model's mistake
                verify(graph, name, find)
            changed += sum(counts.values())
        if not changed:
            break
    verify(graph, "the passes", find)
    return totals
