"""The engines that bench/models.py holds against each other: one row of ENGINES each.

Each is loaded with a number of threads, for float32 throughout, and gives, for a feed, a call that
returns the outputs as arrays.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
import zoo

import q7x2_ep
from q7x2_ep.compare import onnxruntime_session

Arrays = Mapping[str, np.ndarray]
Loaded = Callable[[Arrays], Callable[[], list[np.ndarray]]]  # a feed -> what runs it


class Ours(NamedTuple):
    """What q7 loads, with the session, whose plan tells its limits."""

    session: q7x2_ep.InferenceSession

    def __call__(self, feeds: Arrays) -> Callable[[], list[np.ndarray]]:
        return lambda: self.session.run(None, feeds)


@contextlib.contextmanager
def q7(model: str, path: Path, threads: int) -> Iterator[Loaded]:
    options = q7x2_ep.SessionOptions(intra_op_num_threads=threads)
    with q7x2_ep.InferenceSession(str(path), options) as session:
        yield Ours(session)


@contextlib.contextmanager
def onnxruntime(model: str, path: Path, threads: int) -> Iterator[Loaded]:
    session = onnxruntime_session(str(path), threads)
    yield lambda feeds: lambda: session.run(None, dict(feeds))


@contextlib.contextmanager
def openvino(model: str, path: Path, threads: int) -> Iterator[Loaded]:
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # where there is AMX it would be bfloat16
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", options)
    request = compiled.create_infer_request()

    def run(feeds: Arrays) -> Callable[[], list[np.ndarray]]:
        given = dict(feeds)
        return lambda: list(request.infer(given, share_inputs=True, share_outputs=True).to_tuple())

    yield run


@contextlib.contextmanager
def torch(model: str, path: Path, threads: int, compiled: bool = False) -> Iterator[Loaded]:
    """The module that the zoo made the file of. Raises: KeyError for a file of another source."""
    import torch

    row = zoo.MODELS[model]
    torch.set_num_threads(threads)
    module = zoo.positional(row)
    if compiled:
        torch._dynamo.reset()
        module = torch.compile(module, dynamic=False)

    def run(feeds: Arrays) -> Callable[[], list[np.ndarray]]:
        given = [torch.from_numpy(array) for array in feeds.values()]

        def call() -> list[np.ndarray]:
            with torch.inference_mode():
                return [output.numpy() for output in module(*given)]

        return call

    yield run


class Engine(NamedTuple):
    """package: what must be installed, and whose version counts. title: of its column."""

    load: Callable[..., contextlib.AbstractContextManager[Loaded]]
    package: str
    title: str


OURS = "q7x2_ep"
ENGINES = {
    OURS: Engine(q7, "q7x2_ep", "q7x2_ep"),
    "onnxruntime": Engine(onnxruntime, "onnxruntime", "ORT"),
    "openvino": Engine(openvino, "openvino", "OpenVINO"),
    "torch": Engine(torch, "torch", "torch"),
    "compiled": Engine(
        lambda *given: torch(*given, compiled=True),
        "torch",
        "compiled",  # torch.compile
    ),
}
PEERS = tuple(ENGINES)[1:]
FROM_FILE = (OURS, "onnxruntime", "openvino")  # the others need the torch module


def missing(name: str) -> bool:
    """Whether an engine is not installed."""
    return importlib.util.find_spec(ENGINES[name].package) is None


def can_load(name: str, model: str) -> bool:
    return name in FROM_FILE or model in zoo.MODELS


def version(name: str) -> str:
    return q7x2_ep.__version__ if name == OURS else metadata.version(ENGINES[name].package)
