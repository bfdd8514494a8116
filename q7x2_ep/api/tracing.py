"""A profile as a Chrome trace, with the names and fields of onnxruntime's profiles.

Nodes are the steps of the plan. Source: the Trace Event Format, complete events.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from q7x2_ep.api.device import PROVIDER

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

    def run(self, steps: Sequence[Any], step_ns: Sequence[int], begin: int, end: int) -> None:
        """One run: its steps (or nodes, where Python runs them), one after the other, and around
        them the run.
        """
        at = end - sum(step_ns)
        first = at
        for index, (step, ns) in enumerate(zip(steps, step_ns)):
            args = {
                "node_index": str(index),
                "op_name": step.op,
                "provider": PROVIDER,
                "kernel": str(getattr(getattr(step, "kernel", None), "symbol", "")),
                "nodes": list(step.sources),
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
