"""What the files of fusions need (fuse/__init__.py) follows from their patterns."""

from __future__ import annotations

from typing import Any

import pytest

from q7x2_ep.fuse import FUSIONS, Alone, File, Walk
from q7x2_ep.ir.pattern import Either, Op, trace
from q7x2_ep.ops import entries
from tests.fusion.test_law import TARGETS

# Of these the pattern is any product, sum or selection; `check` asks what made the operands.
CHECKED = {"QuantizedLinear", "QuantizedConv", "LinearRows", "GatedHalves", "GatedExperts"}
CHECKED |= {"ExpertSum", "MixConvolved", "PixelsAhead", "PixelsActivation", "PixelsBehind"}
CHECKED |= {"JoinedConvAffine", "JoinedConvActivation", "QuantizedMatMul"}
CASES = [
    pytest.param(walk, file, group, id=f"{file.name}-{file.names.split()[0]}-{i}")
    for walk in FUSIONS
    if not isinstance(walk, Alone)
    for file in walk.files
    for i, group in enumerate(file.needs.split("&"))
]


def can_match(pattern: Any, ops: set[str]) -> bool:
    """Whether a graph of such ops may hold the pattern; Mul and Div are one."""
    if isinstance(pattern, Either):
        return any(can_match(option, ops) for option in pattern.options)
    if not isinstance(pattern, Op):
        return True
    known = pattern.op in ops or (
        pattern.op in ("Mul", "Div") and not ops.isdisjoint(("Mul", "Div"))
    )
    return known and all(can_match(x, ops) for x in pattern.inputs or ())


@pytest.mark.parametrize(("walk", "file", "group"), CASES)
def test_without_what_a_file_needs_nothing_matches(walk: Walk, file: File, group: str) -> None:
    ops = {*entries(), *TARGETS.values()}
    assert set(group.split()) <= ops
    ops -= set(group.split())
    before = None
    while before != ops:  # what other files of the walk may make
        before = {*ops}
        for other in walk.files:
            for fusion in other.fusions():
                checked = other is file and fusion.name in CHECKED
                if not checked and any(can_match(trace(each), ops) for each in fusion.spellings):
                    assert other is not file, fusion.name
                    ops.add(TARGETS.get(fusion.name, fusion.name))
