"""Which fusion, or pass, changes an output: sessions with ever fewer of them, against float64.

The applications of fusions come in one order, so that a session may be held to the first n of them.
With n = 0 the outputs are right, with all of them they are wrong: in between there is one that
makes the difference, and a binary search finds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

import numpy as np

from q7x2_ep import importer, passes
from q7x2_ep.backend.numpy import evaluate, rms, rms_error, tensors
from q7x2_ep.compare import MISSING, OutputError, onnxruntime_session
from q7x2_ep.errors import BindingError, FeedError
from q7x2_ep.feeds import random_feeds
from q7x2_ep.ir import replace
from q7x2_ep.passes import infer
from q7x2_ep.progress import track
from q7x2_ep.session import Model, Session

LENGTH = 16  # of sequences in random feeds: enough to show a wrong formula
Outputs = tuple[tuple[str, float, float], ...]  # name, RMS error, bound


class Application(NamedTuple):
    """One use of a fusion. nodes: those of the model that it stands for."""

    fusion: str
    nodes: tuple[str, ...]


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
    outputs: Outputs = ()

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

    feeds: by default random ones, batch 1 and sequence 16. bound: of the RMS error against float64,
    relative to the RMS of the output; by default that of the accuracy rule (compare.py), with numpy
    in float32 in place of an onnxruntime that is missing or fails.

    Raises: ModelError and its kin for a model that cannot be read or run, FeedError for a feed that
    does not fit it, BindingError for a bound that no error can be within.
    """
    if bound is not None and not bound >= 0:
        raise BindingError(f"[bound] expected a number of 0 or more, given {bound}")
    search = _Search(model, feeds, bound, threads)
    applications, outputs = search.probe()
    total = len(applications)
    if not outputs:
        return Bisection("none", applications=total)
    _, unfused = search.probe(0)
    if unfused:
        return search.blame_pass(unfused)
    right, wrong = 0, total
    for _ in track(range((total - 1).bit_length()), "bisect"):
        middle = (right + wrong) // 2
        found = search.probe(middle)[1] if right < middle else ()
        if found:
            wrong, outputs = middle, found
        else:
            right = middle
    name, nodes = applications[wrong - 1]
    return Bisection("fusion", name, nodes, wrong, total, outputs)


class _Search:
    """What all probes of one search share: the feeds, the truth, and how far from it is too far."""

    def __init__(
        self,
        model: Model,
        feeds: Optional[Mapping[str, np.ndarray]],
        bound: Optional[float],
        threads: int,
    ):
        self.model, self.threads = model, threads
        graph = importer.read(model)
        infer.run(graph)
        self.feeds = random_feeds(graph, sequence=LENGTH) if feeds is None else feeds
        names = graph.output_names
        try:
            self.exact = tensors(names, evaluate(graph, self.feeds, np.float64))
        except (ValueError, IndexError) as error:
            shapes = {name: array.shape for name, array in self.feeds.items()}
            raise FeedError(
                f"[feed] expected values that fit the model, given {shapes}: {error}; give a feed, "
                "or sizes for the symbolic dims"
            ) from error
        if bound is not None:
            self.bounds = {name: bound * rms(true) for name, true in self.exact.items()}
            return
        try:
            others = onnxruntime_session(model, threads).run(None, self.feeds)
        except Exception:  # it is missing, or refuses the model or the feed in one of many ways
            others = evaluate(graph, self.feeds)
        found = tensors(names, others)
        self.bounds = {}
        for name, true in self.exact.items():
            other = found.get(name, MISSING)
            self.bounds[name] = OutputError.of(name, other, other, true).bound

    def probe(
        self, limit: Optional[int] = None, without: Sequence[str] = ()
    ) -> tuple[list[Application], Outputs]:
        """The first applications, up to `limit`, and the outputs that are wrong with them."""
        done: list[Application] = []

        def watch(application: replace.Application) -> bool:
            allowed = limit is None or len(done) < limit
            if allowed:
                sources = (source for node in application.gone for source in node.sources)
                done.append(Application(application.fusion, tuple(dict.fromkeys(sources))))
            return allowed

        session = Session(self.model, self.threads, watch=watch, without=without)
        try:
            given = tensors(session.output_names, session.run(self.feeds))
        finally:
            session.close()
        rows = []
        for name in {**self.exact, **given}:
            error = rms_error(given.get(name, MISSING), self.exact.get(name, MISSING))
            rows.append((name, error, self.bounds.get(name, 0.0)))
        return done, tuple(row for row in rows if row[1] > row[2])

    def blame_pass(self, outputs: Outputs) -> Bisection:
        for name in track(passes.NAMES, "bisect"):
            with contextlib.suppress(Exception):  # other passes may need it, and fail in many ways
                if not self.probe(0, without=(name,))[1]:
                    return Bisection("pass", name, outputs=outputs)
        return Bisection("engine", outputs=outputs)
