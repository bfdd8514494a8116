"""The pipeline in one screen: read -> passes -> fuse -> plan -> bind -> run.

`Session` compiles a model once and runs it for any sizes of its symbolic dims. The ORT-compatible
surface is a thin layer above (api/); all that touches C is below (backend/cpu).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from q7x2_ep import dtypes, errors, fuse, importer, knobs, passes
from q7x2_ep.backend.cpu.executor import Call, Executor
from q7x2_ep.backend.cpu.library import default_threads, load
from q7x2_ep.backend.verify import verify
from q7x2_ep.ir.core import Value
from q7x2_ep.ir.rewrite import Watch
from q7x2_ep.ir.shape import Dim, Expr, product, symbols
from q7x2_ep.ir.text import to_text
from q7x2_ep.plan.build import Plan, build
from q7x2_ep.plan.text import listing

Model = Union[str, bytes, "os.PathLike[str]", Any]  # or an onnx.ModelProto


@dataclass(frozen=True)
class InputSpec:
    """What one feed must look like. shape: ints and symbols."""

    name: str
    dtype: int
    shape: tuple[Dim, ...]

    @property
    def symbols(self) -> list[Optional[str]]:
        """Per dim the symbol that it binds, or None where it is fixed."""
        return [repr(dim) if isinstance(dim, Expr) else None for dim in self.shape]


class Session:
    """A compiled model.

    watch, without: what may be fused, and the names of passes left out, to look for a culprit
    (bisect.py). request: see importer.Request. Thread safe: concurrent runs each use a context of
    their own.

    Raises: ModelError and its kin for a model that cannot be read or run.
    """

    def __init__(
        self,
        model: Model,
        threads: int = 0,
        fusion: bool = True,
        optimized_path: str = "",
        watch: Watch = lambda application: True,
        without: Collection[str] = (),
        request: importer.Request = importer.PLAIN,
    ):
        self.threads = threads if threads > 0 else default_threads()
        self._model, self._request = model, request
        graph = importer.read(model, request)
        self.metadata = dict(graph.metadata)
        self.model_ops = Counter(node.op for node in graph.nodes)
        graph.is_fused = not fusion
        self.statistics = passes.run_all(graph, without)
        self.unplanned = [
            product(v.shape) * dtypes.size(v.dtype) for n in graph.nodes for v in n.outputs
        ]
        self.fusions = fuse.FusionReport()
        if fusion:
            checked = knobs.get("VERIFY")
            self.fusions = fuse.fuse(graph, lambda a: watch(a) and (not checked or verify(a)))
            passes.run_all(graph, without)
        if optimized_path:
            importer.save(graph, optimized_path)
        library = load()
        self.inputs = [InputSpec(v.name, v.dtype, v.shape) for v in graph.inputs]
        self.output_names = list(graph.output_names)
        self.output_types = [(v.dtype, v.shape) for v in graph.outputs]
        self._fusion = fusion
        self.plan: Plan = build(graph, library.target)
        self._executor = Executor(library, self.plan, _symbols(graph.inputs), self.threads)

    def run(self, feeds: Mapping[str, Any], call: Optional[Call] = None) -> list[np.ndarray]:
        """All outputs for one feed, in the order of the model.

        Raises: FeedError and ShapeError for a feed that does not fit, DataError for values out of
        range, RunTerminated where call ends the run.
        """
        arrays, sizes = self._check(feeds)
        return self._executor.run(arrays, sizes, call)

    def statistics_for(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Arena bytes, allocations and buffers for given symbol values."""
        return self._executor.statistics(sizes)

    def placements(self, sizes: Mapping[str, int]) -> list[tuple[int, int]]:
        """Offset and bytes of each buffer of `plan.arena()` for given symbol values."""
        return self._executor.placements(sizes)

    def profile(self, feeds: Mapping[str, Any], runs: int = 1) -> list[int]:
        """Nanoseconds that each step of the plan took, summed over `runs` runs."""
        arrays, sizes = self._check(feeds)
        return self._executor.profile(arrays, sizes, runs)

    def text(self, stage: str, after: str = "") -> str:
        """The model as text after `stage`: ir (passes done), fused, or plan; or else right after
        the first run of a pass, or the walk of a fusion, of the name `after`.

        Raises: ValueError for another stage or name.
        """
        if not after and stage == "plan":
            return listing(self.plan)
        if not after and stage not in ("ir", "fused"):
            raise ValueError(f"stage must be ir, fused or plan, got {stage!r}")
        # once more: the weights of the first are packed and gone
        graph = importer.read(self._model, self._request)
        if after in passes.NAMES:
            for name, module in zip(passes.NAMES, passes.PASSES):
                module.run(graph)
                if name == after:
                    return to_text(graph)
        passes.run_all(graph)
        if after:
            fuse.fuse(graph, until=after)
            return to_text(graph)
        if stage == "fused" and self._fusion:
            fuse.fuse(graph)
            passes.run_all(graph)
        return to_text(graph)

    def close(self) -> None:
        """Give back memory now; the session cannot run afterwards."""
        self._executor.close()

    def _check(self, feeds: Mapping[str, Any]) -> tuple[list[np.ndarray], dict[str, int]]:
        """The feeds as dense arrays in model order, and the value of every symbol."""
        if len(feeds) != len(self.inputs) or any(spec.name not in feeds for spec in self.inputs):
            raise self.wrong_names(feeds)
        arrays: list[np.ndarray] = []
        sizes: dict[str, int] = {}
        for spec in self.inputs:
            array = feeds[spec.name]
            if not isinstance(array, np.ndarray):
                array = np.asarray(array)
            if array.dtype != dtypes.DTYPES[spec.dtype].numpy:
                raise _wrong_dtype(spec, array)
            if array.ndim != len(spec.shape):
                raise errors.ShapeError(
                    f"Invalid rank for input: {spec.name} Got: {array.ndim} Expected: "
                    f"{len(spec.shape)}: expected rank {len(spec.shape)} "
                    f"{_shape_text(spec.shape)}, given rank {array.ndim} {array.shape}"
                )
            for axis, (dim, name) in enumerate(zip(spec.shape, spec.symbols)):
                wanted = dim if name is None else sizes.setdefault(name, array.shape[axis])
                if array.shape[axis] != wanted:
                    raise _wrong_dim(spec, array, axis, wanted)
            arrays.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        return arrays, sizes

    def wrong_names(self, feeds: Mapping[str, Any]) -> errors.FeedError:
        """What is wrong with the names of a feed."""
        names = [spec.name for spec in self.inputs]
        missing = [name for name in names if name not in feeds]
        extra = [name for name in feeds if name not in names]
        if missing:
            return errors.MissingInput(
                f"Required inputs ({missing}) are missing from input feed ({list(feeds)}); the "
                f"model's inputs are {names}"
            )
        return errors.FeedError(
            f"Invalid input name: {', '.join(map(str, extra))}; the model's inputs are {names}"
        )


def _wrong_dtype(spec: InputSpec, array: np.ndarray) -> errors.FeedError:
    wanted = dtypes.DTYPES[spec.dtype]
    known = dtypes.BY_NUMPY.get(str(array.dtype))
    given = dtypes.type_string(known.code) if known else array.dtype
    return errors.FeedError(
        f"[input {spec.name!r}] Unexpected input data type. Actual: ({given}) , expected: "
        f"({dtypes.type_string(spec.dtype)}); convert it with .astype({wanted.numpy!r})"
    )


def _wrong_dim(spec: InputSpec, array: np.ndarray, axis: int, wanted: Dim) -> errors.ShapeError:
    dim = spec.shape[axis]
    why = (
        f"{dim} is {wanted} in this feed"
        if isinstance(dim, Expr)
        else f"the model fixes it to {wanted}"
    )
    return errors.ShapeError(
        f"Got invalid dimensions for input: {spec.name} for the following indices index: {axis} "
        f"Got: {array.shape[axis]} Expected: {wanted}: dim {axis} of {_shape_text(spec.shape)}: "
        f"{why}, given {array.shape[axis]} in shape {array.shape}"
    )


def _shape_text(shape: Sequence[Dim]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def _symbols(inputs: Sequence[Value]) -> list[str]:
    found: dict[str, None] = {}
    for value in inputs:
        for dim in value.shape:
            found.update(dict.fromkeys(sorted(symbols(dim))))
    return list(found)
