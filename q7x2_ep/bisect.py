"""Which fusion, or pass, changes an output: sessions with ever fewer of them, against float64.

The applications of fusions come in one order, so that a session may be held to the first n of them.
With n = 0 the outputs are right, with all of them they are wrong: in between there is one that
makes the difference, and a binary search finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from q7x2_ep import importer, passes
from q7x2_ep.backend.numpy import evaluate, rms, rms_error
from q7x2_ep.compare import ERROR_FACTOR
from q7x2_ep.errors import Q7Error
from q7x2_ep.feeds import random_feeds
from q7x2_ep.ir.rewrite import Application
from q7x2_ep.passes import infer
from q7x2_ep.progress import track
from q7x2_ep.session import Model, Session


@dataclass(frozen=True)
class Bisection:
    """What was found. kind: fusion, pass, engine (wrong with nothing rewritten at all), or none.

    name: of the fusion or pass. nodes: of the model, that the application stands for. position: of
    it among `applications`, from 1. outputs: those beyond the bound, with RMS error and bound.
    """

    kind: str
    name: str = ""
    nodes: tuple[str, ...] = ()
    position: int = 0
    applications: int = 0
    outputs: tuple[tuple[str, float, float], ...] = ()

    def __bool__(self) -> bool:
        return self.kind != "none"

    def __str__(self) -> str:
        if not self:
            return f"nothing found: every output is within its bound ({self.applications} fusions)"
        first = {
            "fusion": f"fusion {self.name}, application {self.position} of {self.applications}, "
            "is the first that changes an output",
            "pass": f"without the pass {self.name} the outputs are right",
            "engine": "wrong without any fusion or pass that can be left out: a kernel, or the "
            "reading of the model",
        }[self.kind]
        lines = [first, *(f"  node {name}" for name in self.nodes)]
        lines += [
            f"  output {name}: RMS error {error:.3e}, bound {bound:.3e}"
            for name, error, bound in self.outputs
        ]
        return "\n".join(lines)


def bisect(
    model: Model,
    feeds: Optional[Mapping[str, np.ndarray]] = None,
    bound: Optional[float] = None,
    threads: int = 0,
) -> Bisection:
    """Name the first application of a fusion, or else the pass, that spoils an output.

    feeds: random ones by default. bound: of the RMS error against an evaluation in float64,
    relative to the RMS of the output; by default 1.5 times the error of the model without fusions,
    and a float32 epsilon at least.

    Raises: ModelError and its kin for a model that cannot be read or run.
    """
    search = _Search(model, feeds, bound, threads)
    applications, wrong = search.probe()
    if not wrong:
        return Bisection("none", applications=len(applications))
    search.bar = track(range(len(applications).bit_length() + 1), "bisect")
    _, unfused = search.probe(0)
    if unfused:
        return search.guilty_pass(unfused)
    right, wrong_at = 0, len(applications)
    while wrong_at - right > 1:
        middle = (right + wrong_at) // 2
        _, found = search.probe(middle)
        if found:
            wrong_at, wrong = middle, found
        else:
            right = middle
    name, nodes = applications[wrong_at - 1]
    return Bisection("fusion", name, nodes, wrong_at, len(applications), wrong)
