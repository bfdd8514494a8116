"""Runs a plan on the C library: binds shapes, makes one call per run.

A context holds an arena and the patched args of one run at a time; idle ones wait in a list, so
that concurrent runs each take their own and the arena of the last run is used again.
"""

from __future__ import annotations

from array import array as array_of
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes, errors
from q7x2_ep.backend.call import Call, check_output
from q7x2_ep.backend.cpu import library as native
from q7x2_ep.backend.cpu.feeds import Feeds
from q7x2_ep.backend.cpu.lane import Lane
from q7x2_ep.backend.cpu.outputs import Outputs
from q7x2_ep.ir.shape import substitute
from q7x2_ep.plan.encode import Encoded

WATCHED_STEPS = 16  # run between two questions whether to go on


class _Bound:
    """A native context, which keeps its plan alive, and the shapes it is bound to."""

    def __init__(self, context: native.Context):
        self.context = context
        self.sizes: Optional[Mapping[str, int]] = None
        self.output_shapes: list[tuple[int, ...]] = []
        self.outputs = Outputs()
        self.lane: Optional[Lane] = None  # for these sizes, once they are seen again


class Code(NamedTuple):
    """A plan as it is run: what C reads, packed weights first among its constants."""

    encoded: Encoded
    constants: list[np.ndarray]


class Executor:
    """A plan on the CPU.

    threads: how many threads a run uses, fixed here. Raises: errors of errors.py only.
    """

    def __init__(self, library: native.Library, code: Code, threads: int):
        self.encoded, self._threads = code.encoded, threads
        try:
            self.native: Optional[native.Plan] = native.Plan(
                library, code.encoded.blob, code.constants
            )
        except native.StatusError as error:
            kind = errors.BackendError if error.code == native.NO_MEMORY else errors.PlanError
            raise kind(f"[plan] {error}") from None
        self._dtypes = [
            np.dtype(dtypes.DTYPES[value.dtype].numpy) for value in code.encoded.outputs
        ]
        self._idle: list[_Bound] = []

    def run(
        self, arrays: Sequence[np.ndarray], sizes: Mapping[str, int], call: Optional[Call] = None
    ) -> list[np.ndarray]:
        """Outputs for dense inputs in model order and the values of all symbols."""
        bound = self._take()
        try:
            is_again = bound.sizes == sizes
            self._bind(bound, sizes)
            bound.outputs.next_run()
            outputs = self._run(bound, arrays) if call is None else self._call(bound, arrays, call)
            if is_again and bound.lane is None:
                bound.lane = Lane(bound.context, self.encoded, arrays, outputs, bound.outputs)
            return outputs
        finally:
            self._give_back(bound)

    def run_again(
        self, feed: Mapping[str, Any], into: Sequence[Optional[np.ndarray]] = ()
    ) -> Optional[list[np.ndarray]]:
        """`run` for a feed by name, of the shapes of the run before; None for another. into: see
        Call.outputs.
        """
        try:
            bound = self._idle.pop()
        except IndexError:
            return None
        try:
            return None if bound.lane is None else bound.lane.run(feed, into)
        except native.StatusError as error:
            raise self._run_error(error) from None
        finally:
            self._give_back(bound)

    def statistics(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Memory for given sizes: arena_bytes, buffers, and allocations_per_run once the shape has
        been seen.
        """
        bound = self._take()
        try:
            self._bind(bound, sizes)
            before = bound.context.stat(native.STAT_ALLOCATIONS)
            bound.sizes = None
            self._bind(bound, sizes)
            return {
                "arena_bytes": bound.context.stat(native.STAT_ARENA_BYTES),
                "buffers": self.encoded.n_buffers,
                "allocations_per_run": bound.context.stat(native.STAT_ALLOCATIONS) - before,
            }
        finally:
            self._give_back(bound)

    def placements(self, sizes: Mapping[str, int]) -> list[tuple[int, int]]:
        """Offset and bytes of each buffer of the plan's arena, for given sizes."""
        bound = self._take()
        try:
            self._bind(bound, sizes)
            stat = bound.context.stat
            return [
                (stat(native.STAT_BUFFER_OFFSET, i), stat(native.STAT_BUFFER_BYTES, i))
                for i in range(self.encoded.n_buffers)
            ]
        finally:
            self._give_back(bound)

    def arenas(self) -> list[int]:
        """Bytes that every idle context holds, large outputs of its last runs included."""
        return [
            bound.context.stat(native.STAT_RESERVED_BYTES) + bound.outputs.kept_bytes
            for bound in [*self._idle]
        ]

    def trim(self) -> None:
        """Give back the memory of idle contexts; a later run takes what it needs again."""
        self._idle.clear()

    @property
    def is_short(self) -> bool:
        """Whether nobody asks in between whether to go on."""
        return len(self.encoded.steps) <= WATCHED_STEPS

    def close(self) -> None:
        """Release all native memory, as soon as the runs in progress have ended. Later runs raise
        BackendError.
        """
        self.native = None
        self._idle.clear()

    # No lock: appending to a list and popping from it are atomic, and a child that was forked
    # while another thread held a lock would wait for it forever.

    def _take(self) -> _Bound:
        plan = self.native
        if plan is None:
            raise errors.closed()
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return _Bound(native.Context(plan, self._threads))
        except native.StatusError as error:
            raise errors.BackendError(f"[session] {error}, threads: {self._threads}") from None

    def _give_back(self, bound: _Bound) -> None:
        self._idle.append(bound)
        if self.native is None:
            self._idle.clear()

    def _run(self, bound: _Bound, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        made = bound.outputs
        outputs = [_new(made, *each) for each in zip(bound.output_shapes, self._dtypes)]
        self._steps(bound, 0, len(self.encoded.steps), arrays, outputs)
        return outputs

    def _call(self, bound: _Bound, arrays: Sequence[np.ndarray], call: Call) -> list[np.ndarray]:
        given = [*call.outputs, *[None] * (len(self._dtypes) - len(call.outputs))]
        names, shapes = self.encoded.output_names, bound.output_shapes
        for name, array, shape, dtype in zip(names, given, shapes, self._dtypes):
            if array is not None:
                check_output(name, array, shape, dtype)
        made, feeds = bound.outputs, Feeds(arrays if call.outputs else ())
        outputs = [
            _new(made, shape, dtype) if array is None or not _is_free(array, feeds, over) else array
            for array, shape, dtype, over in zip(given, shapes, self._dtypes, self.encoded.over)
        ]
        total = len(self.encoded.steps)
        stride = WATCHED_STEPS if call.stopped is not None else max(total, 1)
        times = None if call.step_ns is None else array_of("q", bytes(8 * total))
        if times is not None:
            bound.context.profile(times)
        try:
            for first in range(0, total, stride):
                call.go_on()
                self._steps(bound, first, min(total, first + stride), arrays, outputs)
        finally:
            if times is not None:
                bound.context.profile(None)
        if call.step_ns is not None and times is not None:
            call.step_ns += times
        for array, output in zip(given, outputs):
            if array is not None and array is not output:
                np.copyto(array, output)
        return [output if array is None else array for array, output in zip(given, outputs)]

    def _steps(
        self,
        bound: _Bound,
        first: int,
        last: int,
        arrays: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> None:
        try:
            bound.context.run(first, last, arrays, outputs)
        except native.StatusError as error:
            raise self._run_error(error) from None

    def _bind(self, bound: _Bound, sizes: Mapping[str, int]) -> None:
        if bound.sizes == sizes:
            return
        bound.sizes = bound.lane = None
        try:
            values = bound.context.bind([sizes[name] for name in self.encoded.symbols])
        except native.StatusError as error:
            raise self._bind_error(error, sizes) from None
        bound.output_shapes = [tuple(values[i] for i in dims) for dims in self.encoded.output_dims]
        bound.sizes = dict(sizes)

    def _bind_error(self, error: native.StatusError, sizes: Mapping[str, int]) -> errors.Q7Error:
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        if 0 <= error.index < len(self.encoded.guards):
            guard = self.encoded.guards[error.index]
            if guard.kind == "eq" and guard.right != 0:
                left, right = substitute(guard.left, sizes), substitute(guard.right, sizes)
                fact = f"{guard.left} is {left}, {guard.right} is {right}"
                return errors.ShapeError(f"{guard.text}: {fact} (feed: {given})")
            kind = errors.IrregularFeed if guard.is_assumed else errors.ShapeError
            return kind(f"{guard.text} (feed: {given})")
        if error.code == native.NO_MEMORY:
            return errors.BackendError(f"[bind] out of memory: {error} (feed: {given})")
        return errors.ShapeError(f"[bind] {error} (feed: {given})")

    def _run_error(self, error: native.StatusError) -> errors.Q7Error:
        if not 0 <= error.index < len(self.encoded.steps):
            return errors.InternalError(f"[run] {error}")
        where = self.encoded.steps[error.index]
        if error.code == native.DATA_FAULT:
            return errors.DataError(
                f"{where} {error}: given {error.value}, expected {error.low} to {error.limit - 1}"
            )
        return errors.InternalError(f"{where} {error}")


def _new(outputs: Outputs, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Raises: BackendError where there is no memory for it."""
    try:
        return outputs.array(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise errors.BackendError(f"[output] out of memory: {error}") from None


def _is_free(array: np.ndarray, feeds: Feeds, over: int) -> bool:
    """Whether steps may write to the array: it is dense, and none that reads a feed minds."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned and flags.writeable and feeds.allow(array, over)
