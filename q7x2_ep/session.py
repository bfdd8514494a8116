"""The pipeline in one screen: read -> passes -> fuse -> plan -> bind -> run.

`Session` compiles a model once and runs it for any sizes of its symbolic dims. The ORT-compatible
surface is a thin layer above (api/); all that touches C is below (backend/cpu).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

import numpy as np

from q7x2_ep import dtypes, errors, knobs
from q7x2_ep.backend.call import Call
from q7x2_ep.backend.cpu.cores import default_threads
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.backend.program import Code, Compiler, HostCode, Image, Origin, Program, dense
from q7x2_ep.files import Track, replacing
from q7x2_ep.ir.core import Graph, Node, Type
from q7x2_ep.ir.shape import Dim, Expr
from q7x2_ep.plan.encode import Encoded, check
from q7x2_ep.plan.parts import HostPhase, NativePhase, Plan
from q7x2_ep.release import __version__
from q7x2_ep.request import AS_IT_IS, Request

if TYPE_CHECKING:  # what compiles takes 80 ms to import, which a compiled file does not need
    from q7x2_ep.fuse import FusionReport
    from q7x2_ep.ir.replace import Watch

Model = Union[str, bytes, "os.PathLike[str]", Any]  # or an onnx.ModelProto


@dataclass(eq=False)
class InputSpec:
    """What one feed must look like. shape: ints and symbols, None where any rank will do. type:
    as in onnxruntime's NodeArg.
    """

    name: str
    dtype: int
    shape: Optional[tuple[Dim, ...]]
    type: str

    @cached_property
    def array_dtype(self) -> np.dtype:
        """The dtype of its arrays."""
        return dtypes.DTYPES[self.dtype].numpy

    @cached_property
    def symbols(self) -> list[Optional[str]]:
        """Per dim the symbol that it binds, or None where it is fixed."""
        return [repr(dim) if isinstance(dim, Expr) else None for dim in self.shape or ()]


class Report(NamedTuple):
    """What compiling did. passes: how often each changed what. model_ops: ops of the model as it
    was read. unplanned: dims and element size of every value, had nothing been fused.
    """

    fusions: FusionReport
    passes: dict[str, dict[str, int]]
    model_ops: Counter
    unplanned: list[tuple[Dim, ...]]


MOST_THREADS = 256  # the workers of csrc/pool.c and a caller; each has room for scratch


def _threads(wanted: int) -> int:
    return min(wanted if wanted > 0 else default_threads(), MOST_THREADS)


class Session:
    """A compiled model.

    request: see request.py. watch, without: what may be fused, and the names of passes left
    out, to look for a culprit (bisect.py). Thread safe: concurrent runs each use a context of their
    own.

    Raises: ModelError and its kin for a model that cannot be read or run.
    """

    def __init__(
        self,
        model: Model,
        threads: int = 0,
        fusion: bool = True,
        optimized_path: str = "",
        request: Request = AS_IT_IS,
        watch: Watch = lambda application: True,
        without: Collection[str] = (),
    ):
        from q7x2_ep import fuse, importer, passes
        from q7x2_ep.backend.cpu.room import Room

        self.threads = _threads(threads)
        self._model, self._request, self._fusion = model, request, fusion
        self.files: Mapping[str, str] = {}  # of a compiled file, see `save`
        self.fingerprint = ""  # likewise
        graph = importer.read(model, request)
        room = Room(graph)
        self.metadata = dict(graph.metadata)
        model_ops = Counter(node.op for node in graph.nodes)
        graph.is_fused = not fusion
        statistics = passes.run_all(graph, without)
        unplanned = [
            (*v.shape, dtypes.size(v.dtype))
            for n in graph.nodes
            for v in n.outputs
            if v.shape is not None and dtypes.is_dense(v.dtype)
        ]
        fusions = fuse.FusionReport()
        if fusion:
            fusions = fuse.fuse(graph, _verified(watch) if knobs.get("VERIFY") else watch)
            passes.run_all(graph, without)
        if optimized_path:
            from q7x2_ep.importer.writer import save

            save(graph, optimized_path)
        types = graph.metadata["types"]
        self.inputs = [InputSpec(v.name, v.dtype, v.shape, types[v.name]) for v in graph.inputs]
        self.output_names = list(graph.output_names)
        self.output_types = _output_types(graph)
        report = Report(fusions, statistics, model_ops, unplanned)
        compiler = Compiler(load(), self.threads, partial(_simplify, fusion))
        self.program = compiler.planned(graph, room)
        origin = self.program.origin()
        self._known: Callable[[], tuple[Origin, Report]] = lambda: (origin, report)

    @classmethod
    def open(cls, model: Union[str, os.PathLike[str], bytes], threads: int = 0) -> Session:
        """The session that `save` wrote, mapped from its file.

        Raises: ModelNotFound; CorruptModel, StaleModel for a file that is damaged, or another's.
        """
        from q7x2_ep.backend import saved

        verify = bool(knobs.get("VERIFY"))
        opened = saved.open_saved(model, load().target, __version__, verify)
        self = cls.__new__(cls)
        self.threads = _threads(threads)
        self._model, self._request = None, AS_IT_IS
        try:
            content = opened.content
            self.files, self.fingerprint = content["files"], content["fingerprint"]
            self._fusion, self.metadata = content["fusion"], content["metadata"]
            self.inputs = [InputSpec(*spec) for spec in content["inputs"]]
            self.output_names = content["output_names"]
            self.output_types = content["output_types"]
            known = self._known = cache(lambda: _known(opened.details()))
            inputs, outputs, names, given, is_whole = content["image"]
            image = Image(inputs, outputs, names, [_part(*each) for each in given], is_whole)
            compiler = Compiler(load(), self.threads, partial(_simplify, self._fusion))
            self.program = Program(image, lambda: known()[0], compiler)
        except (errors.Q7Error, MemoryError):
            raise
        except Exception as error:  # the file is whole, but nothing that `save` would write
            raise errors.CorruptModel(f"[compiled model] is malformed: {error!r}") from error
        return self

    def save(
        self,
        path: Union[str, os.PathLike[str]],
        files: Optional[Mapping[str, str]] = None,
        track: Track = lambda items, label: items,
    ) -> int:
        """Writes all that a run needs to a file that `open` maps; its bytes. files: hashes of the
        model's external data by location, to be kept with it.

        Raises: UnsupportedOp for a model with Python functions in it, OSError.
        """
        from q7x2_ep.backend import saved

        image, (origin, report) = self.program.image, self._known()
        content = {
            "files": files or self.files,
            "fingerprint": self.fingerprint or self._request.fingerprint(self._fusion),
            "fusion": self._fusion,
            "metadata": {k: v for k, v in self.metadata.items() if k not in ("path", "files")},
            "inputs": [[s.name, s.dtype, s.shape, s.type] for s in self.inputs],
            "output_names": self.output_names,
            "output_types": self.output_types,
            "image": [
                image.inputs,
                image.outputs,
                image.output_names,
                [[*_written(each)] for each in image.parts],
                image.is_whole,
            ],
        }
        fusions = report.fusions
        details = [
            [origin.graph, origin.phases],
            [fusions.applied, fusions.misses, report.passes, report.model_ops, report.unplanned],
        ]
        with replacing(os.fspath(path)) as file:
            return saved.save(file, load().target, __version__, content, details, track)

    @property
    def report(self) -> Report:
        """What compiling did."""
        return self._known()[1]

    def run(self, feeds: Mapping[str, Any], call: Optional[Call] = None) -> list[np.ndarray]:
        """All outputs for one feed, in the order of the model.

        Raises: FeedError and ShapeError for a feed that does not fit, DataError for values out of
        range, RunTerminated where call ends the run.
        """
        arrays, sizes = self._check(feeds)
        return self.program.run(arrays, sizes, call)

    @property
    def plan(self) -> Plan:
        """The plan of a model without host steps.

        Raises: BackendError for another, which has several (program.plans).
        """
        if len(self.program.phases) != 1 or not self.program.plans:
            raise errors.BackendError("[session] a model with host steps is not one plan")
        return self.program.plans[0]

    def profile(self, feeds: Mapping[str, Any], runs: int = 1) -> list[int]:
        """Nanoseconds that each step of the plan took, summed over `runs` runs."""
        arrays, sizes = self._check(feeds)
        return self.program.profile(arrays, sizes, runs)

    def text(self, stage: str, after: str = "") -> str:
        """The model as text after `stage`: ir (passes done), fused, or plan; or else right after
        the first run of a pass, or the walk of a fusion, of the name `after`.

        Raises: ValueError for another stage or name.
        """
        from q7x2_ep import fuse, importer, passes
        from q7x2_ep.ir.text import to_text

        if not after and stage not in ("ir", "fused", "plan"):
            raise ValueError(f"stage must be ir, fused or plan, got {stage!r}")
        if not after and stage == "plan":
            return "".join(map(_phase_text, self.program.phases))
        if self._model is None:
            raise errors.BackendError(f"[session] of a compiled file has no stage {after or stage}")
        # read once more: the weights of the first are packed and gone
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

    def memory(self) -> tuple[list[list[np.ndarray]], list[int]]:
        """The constants of every plan, and the bytes of every idle arena; see backend/memory.py."""
        programs = list(self.program.programs())
        constants = [code.constants for program in programs for code in program.codes]
        executors = [executor for program in programs for executor in program.executors]
        return constants, [size for executor in executors for size in executor.arenas()]

    def close(self) -> None:
        """Give back memory now; the session cannot run afterwards."""
        self.program.close()

    def _check(self, feeds: Mapping[str, Any]) -> tuple[list[Any], dict[str, int]]:
        """The feeds as dense arrays in model order, and the value of every symbol."""
        if len(feeds) != len(self.inputs) or any(spec.name not in feeds for spec in self.inputs):
            raise self.wrong_names(feeds)
        arrays: list[Any] = []
        sizes: dict[str, int] = {}
        for spec in self.inputs:
            array = feeds[spec.name]
            if spec.dtype in (dtypes.UNKNOWN, dtypes.NO_TENSOR):
                arrays.append(array)
                continue
            if not isinstance(array, np.ndarray):
                array = np.asarray(array)
            text = spec.dtype == dtypes.STRING and array.dtype.kind in "OUST"
            if array.dtype != spec.array_dtype and not text:
                raise wrong_dtype(repr(spec.name), spec.dtype, array)
            if spec.shape is None:
                arrays.append(array)
                continue
            if array.ndim != len(spec.shape):
                kind = errors.ShapeError if spec.shape else errors.IrregularFeed
                raise kind(
                    f"Invalid rank for input: {spec.name} Got: {array.ndim} Expected: "
                    f"{len(spec.shape)}: expected rank {len(spec.shape)} "
                    f"{_shape_text(spec.shape)}, given rank {array.ndim} {array.shape}"
                )
            for axis, (dim, name) in enumerate(zip(spec.shape, spec.symbols)):
                wanted = dim if name is None else sizes.setdefault(name, array.shape[axis])
                if array.shape[axis] != wanted:
                    raise _wrong_dim(spec, array, axis, wanted)
            arrays.append(dense(array))
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


def _verified(watch: Watch) -> Watch:
    """Also evaluates what every fusion replaces."""
    from q7x2_ep.backend.verify import verify

    return lambda application: watch(application) and verify(application)


def wrong_dtype(where: str, code: int, array: np.ndarray) -> errors.FeedError:
    """Of an input, or of what is at some place in it, whose element type is to be `code`."""
    wanted = dtypes.DTYPES[code]
    known = dtypes.BY_NUMPY.get(str(array.dtype))
    given = dtypes.type_string(known.code) if known else array.dtype
    is_number = known is not None and dtypes.STRING not in (known.code, code)
    remedy = f"; convert it with .astype({wanted.name!r})" if is_number else ""
    return errors.FeedError(
        f"[input {where}] Unexpected input data type. Actual: ({given}) , expected: "
        f"({dtypes.type_string(code)}){remedy}"
    )


def _wrong_dim(spec: InputSpec, array: np.ndarray, axis: int, wanted: Dim) -> errors.ShapeError:
    dim = spec.shape[axis]
    why = (
        f"{dim} is {wanted} in this feed"
        if isinstance(dim, Expr)
        else f"the model fixes it to {wanted}"
    )
    kind = errors.ShapeError if spec.symbols[axis] is None else errors.IrregularFeed
    return kind(
        f"Got invalid dimensions for input: {spec.name} for the following indices index: {axis} "
        f"Got: {array.shape[axis]} Expected: {wanted}: dim {axis} of {_shape_text(spec.shape)}: "
        f"{why}, given {array.shape[axis]} in shape {array.shape}"
    )


def _shape_text(shape: Sequence[Dim]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def _output_types(graph: Graph) -> list[tuple[int, Optional[tuple[Dim, ...]]]]:
    """Of the outputs of the model; of those that only a run tells, what the model says of them."""
    types = []
    for name, value in zip(graph.output_names, graph.outputs):
        declared: Type = graph.metadata["declared"].get(name, value.type)
        if min(declared.dtype, value.dtype) > dtypes.UNKNOWN and declared.dtype != value.dtype:
            raise errors.ModelError(
                f"[output {name!r}] Type ({dtypes.type_string(declared.dtype)}) of output arg "
                f"({name}) does not match expected type ({dtypes.type_string(value.dtype)})"
            )
        type = declared if value.shape is None else value.type
        types.append((type.dtype, type.shape))
    return types


def _written(part: Union[Code, HostCode]) -> tuple[Any, ...]:
    """A part of an image as a node, the code and its constants; see _part."""
    code = part if isinstance(part, Code) else part.within
    node = None if isinstance(part, Code) else part.node
    return (node, code.encoded, code.constants) if code is not None else (node,)


def _part(
    node: Optional[Node], encoded: Optional[Encoded] = None, constants: Any = None
) -> Union[Code, HostCode]:
    code = None
    if encoded is not None:
        check(encoded)
        code = Code(encoded, constants)
    return code if node is None and code is not None else HostCode(node, code)


def _simplify(fusion: bool, graph: Graph) -> None:
    """A branch, a loop body or a deferred part, for inputs of known types. Not of a session, which
    would be part of a cycle, and its memory kept until Python looks for such.
    """
    from q7x2_ep import fuse, passes

    passes.run_all(graph)
    if fusion:
        fuse.fuse(graph)
        passes.run_all(graph)


def _known(details: Any) -> tuple[Origin, Report]:
    """What `save` wrote of it."""
    from q7x2_ep import fuse

    origin, (applied, misses, statistics, model_ops, unplanned) = details
    fusions = fuse.FusionReport(applied, misses)
    return Origin(*origin), Report(fusions, statistics, Counter(model_ops), unplanned)


def _phase_text(phase: Union[NativePhase, HostPhase]) -> str:
    from q7x2_ep.ir.text import node_text
    from q7x2_ep.plan.text import listing

    if isinstance(phase, NativePhase):
        return listing(phase.plan)
    return f"host {node_text(phase.node)}  # {phase.reason}\n"
