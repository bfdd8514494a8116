"""A profile as a Chrome trace, with the names and fields of onnxruntime's profiles.

Nodes are the steps of the plan: op_name is the op type of the node that one computes, after fusion,
and step what our kernels call it. Source: the Trace Event Format, complete events.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Optional, Union

from q7x2_ep import dtypes
from q7x2_ep.api.device import PROVIDER
from q7x2_ep.backend.program import Program
from q7x2_ep.ir.core import Node, Value
from q7x2_ep.ir.shape import substitute

MAX_EVENTS = 1_000_000  # later ones are dropped, as onnxruntime does


class Trace:
    """Events since it was made. Units: times in nanoseconds of time.monotonic_ns()."""

    def __init__(self, prefix: str):
        self.start_ns = time.monotonic_ns()
        now = datetime.now()
        self.path = f"{prefix}_{now:%Y-%m-%d_%H-%M-%S}_{now.microsecond // 1000:03}.json"
        self._events: list[dict[str, Any]] = []

    now = staticmethod(time.monotonic_ns)

    def session(self, name: str, begin: int, end: int) -> None:
        """An event of the whole session or run."""
        self._add("Session", name, begin, end, {})

    def run(
        self,
        program: Program,
        step_ns: Sequence[int],
        sizes: Mapping[str, int],
        begin: int,
        end: int,
    ) -> None:
        """One run: its steps (or nodes, where Python runs them), one after the other, and around
        them the run. sizes: of the symbols in shapes.
        """
        at = end - sum(step_ns)
        first = at
        nodes = {node.name: node for node in program.graph.nodes}
        for index, (step, ns) in enumerate(zip(program.steps, step_ns)):
            node = nodes.get(step.name)
            args = {
                "node_index": str(index),
                "op_name": step.op if node is None else op_type(node),
                "step": step.op,
                "provider": PROVIDER,
                "kernel": getattr(getattr(step, "kernel", None), "name", ""),
                "nodes": list(step.sources),
                "input_type_shape": _shapes(node.inputs if node else (), sizes),
                "output_type_shape": _shapes(node.outputs if node else (), sizes),
            }
            self._add("Node", f"{step.name}_kernel_time", at, at + ns, args)
            at += ns
        self.session("SequentialExecutor::Execute", first, end)
        self.session("model_run", begin, end)

    def write(self) -> str:
        """Writes the file; its path."""
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(self._events, file)
        return self.path

    def _add(self, category: str, name: str, begin: int, end: int, args: Mapping[str, Any]) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(
                {
                    "cat": category,
                    "pid": os.getpid(),
                    "tid": threading.get_native_id(),
                    "ts": (begin - self.start_ns) // 1000,
                    "dur": (end - begin) // 1000,
                    "ph": "X",
                    "name": name,
                    "args": args,
                }
            )


def op_type(node: Node) -> str:
    """Like Conv, also of a version, domain or form of our own."""
    name = node.attrs["op"] if node.op == "q7::Python" else node.op
    return name.rpartition("::")[2].partition("@")[0]


def _shapes(
    values: Sequence[Optional[Value]], sizes: Mapping[str, int]
) -> list[dict[str, list[Union[int, str]]]]:
    """Like [{"float": [2, 3]}]; sizes that only data tells are named."""
    known = [
        v for v in values if v is not None and v.shape is not None and v.dtype in dtypes.DTYPES
    ]
    shapes = ([substitute(dim, sizes) for dim in v.shape] for v in known)
    return [
        {dtypes.DTYPES[v.dtype].onnx: [d if isinstance(d, int) else str(d) for d in shape]}
        for v, shape in zip(known, shapes)
    ]
