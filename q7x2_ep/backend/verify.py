"""Debug mode: what a fusion replaces is evaluated before and after, in float64, on random inputs.

A rewritten region is small, so that each application is proven by itself, on small tensors. What
the new nodes read is random; what only the old ones read is computed, for a fusion may know where
it comes from (a causal mask, say). Where the sides differ, all that they read is computed from the
inputs of the model before the verdict: the fusion may have known more. Read ir/replace.py first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.backend.numpy import Evaluation, rms, rms_error
from q7x2_ep.errors import InternalError, Q7Error
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.replace import Application
from q7x2_ep.ir.shape import evaluate, symbols

# Of symbols, in order of appearance, over and over; the first that suit a region do. Different ones
# keep axes apart, and are batch, new, past and all where a cache makes two lengths add up; equal
# ones are for symbols that the model wants equal but does not say so; larger ones are for a region
# that cuts a symbol into pieces.
SIZES = ((2, 3, 5, 8), (2, 3, 8, 5), (4,), (16, 24, 40, 64), (32,))
INTEGERS = (16, 2)  # integers are below: many rows of a table tell more, but there may be only two
TOLERANCE = 16  # epsilons of the output's dtype, float32's at least: constants are held to one


class Region(NamedTuple):
    """nodes: in order, those that the fusion replaces last. border: what they read from outside."""

    nodes: list[Node]
    border: list[Value]


def verify(application: Application) -> bool:
    """True: a watch for `fuse`. A region that no sizes suit is passed over.

    Raises: InternalError naming fusion and nodes where the two sides differ.
    """
    near, whole = _region(application, False), None
    for positive in (False, True):
        if next(_problems(application, near, positive), ""):
            whole = whole or _region(application, True)
            for problem in filter(None, _problems(application, whole, positive)):
                raise InternalError(problem)
    return True


def _region(application: Application, whole: bool) -> Region:
    """All nodes behind the old values, up to what the new nodes read, or the model's inputs."""
    made = {id(output) for node in application.made for output in node.outputs}
    read = dict.fromkeys(
        value
        for node in application.made
        for value in node.inputs
        if value is not None and id(value) not in made
    )
    border: dict[Value, None] = {} if whole else dict(read)
    stack = [value.producer for value in (*(read if whole else ()), *application.old)]
    placed: dict[Node, None] = {}
    while stack:
        node = stack.pop()
        if node is None or node in placed:
            continue
        missing = []
        for value in node.inputs:
            if value is None or value in border:
                continue
            if value.producer is None:
                border[value] = None
            elif value.producer not in placed:
                missing.append(value.producer)
        if missing:
            stack += [node, *missing]
        else:
            placed[node] = None
    return Region(list(placed), list(border))


def _problems(application: Application, region: Region, positive: bool) -> Iterator[str]:
    """For all sizes that suit the region: how the sides differ, "" where they do not."""
    for sizes in SIZES:
        for below in INTEGERS:
            evaluation = _before(region, sizes, below, positive)
            if evaluation is not None:
                yield _compare(application, evaluation)
                break


def _before(
    region: Region, given: tuple[int, ...], below: int, positive: bool
) -> Optional[Evaluation]:
    """The region evaluated as it was, or None where these sizes do not suit it."""
    random = np.random.default_rng(0)
    names = _symbols((*region.border, *(v for node in region.nodes for v in node.outputs)))
    sizes = {name: given[i % len(given)] for i, name in enumerate(names)}
    evaluation = Evaluation(np.dtype(np.float64), sizes)
    try:
        for value in region.border:
            if value.const is None and value.elements is None:
                shape = tuple(evaluate(dim, sizes) for dim in value.shape)
                evaluation.arrays[value] = _random(random, value.dtype, shape, below, positive)
        evaluation.run(region.nodes)
    except (Q7Error, ValueError, IndexError, ArithmeticError):
        return None
    return evaluation


def _symbols(values: Iterable[Value]) -> list[str]:
    names: dict[str, None] = {}
    for value in values:
        for dim in (*(value.shape or ()), *(value.elements or ())):
            names.update(dict.fromkeys(sorted(symbols(dim))))
    return list(names)


def _random(
    random: np.random.Generator, dtype: int, shape: tuple[int, ...], below: int, positive: bool
) -> np.ndarray:
    """below: of integers, which may be indices. positive: of floats, for roots and logarithms."""
    row = dtypes.DTYPES[dtype]
    if row.kind != "f":
        return random.integers(0, below, shape).astype(row.numpy)
    array = random.standard_normal(shape)
    return np.abs(array) + 0.1 if positive else array


def _compare(application: Application, evaluation: Evaluation) -> str:
    evaluation.run(list(application.made))
    for old, new in zip(application.old, application.new):
        true = evaluation.array(old)
        error, scale = rms_error(evaluation.array(new), true), rms(true)
        bound = TOLERANCE * max(dtypes.epsilon(old.dtype), 2.0**-23) * scale
        if error > bound:
            gone = ", ".join(f"{node.op} {node.name}" for node in application.gone)
            made = ", ".join(node.op for node in application.made)
            return (
                f"[fusion {application.fusion}] {made} in place of ({gone}) changes {old!r}: "
                f"RMS error {error:.3g} on values of {scale:.3g}, wanted {bound:.3g} at most"
            )
    return ""
