"""libq7 through ctypes: thirteen functions, three handles, one place that turns a status into an
exception.

Declares nothing of the ABI beyond csrc/q7.h: args structs come from the library's own description
(plan/target.py).
"""

from __future__ import annotations

import ctypes
import os.path
import sys
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, Optional

import numpy as np

from q7x2_ep import knobs
from q7x2_ep.backend.cpu.cores import available_cores
from q7x2_ep.errors import BackendError
from q7x2_ep.plan.target import Target

OK, BAD_ARG, UNSUPPORTED, NO_MEMORY, DATA_FAULT, INTERNAL = range(6)
(
    STAT_ARENA,
    STAT_ARENA_BYTES,
    STAT_RESERVED_BYTES,
    STAT_ALLOCATIONS,
    STAT_BUFFER_OFFSET,
    STAT_BUFFER_BYTES,
) = range(6)


class StatusError(Exception):
    """A status other than OK. index: the guard (bind) or step (run) that it is about, else -1.
    value: what is not in [low, limit).
    """

    def __init__(self, error: _Error, status: int):
        super().__init__(error.message.decode(errors="replace"))
        self.code, self.index = status, error.index
        self.value, self.low, self.limit = error.value, error.low, error.limit


class _Error(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("index", ctypes.c_int64),
        ("value", ctypes.c_int64),
        ("low", ctypes.c_int64),
        ("limit", ctypes.c_int64),
        ("message", ctypes.c_char * 240),
    ]


class _Job(ctypes.Structure):
    """q7_job: what one run is given."""

    _fields_ = [
        ("context", ctypes.c_void_p),
        ("first", ctypes.c_int64),
        ("last", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
    ]


class Library:
    """A loaded libq7.

    Raises: BackendError where it cannot be loaded.
    """

    def __init__(self, path: str, isa: str = ""):
        try:
            library = ctypes.CDLL(path)
            self._declare(library)
        except OSError as error:
            raise BackendError(
                f"[library] cannot load {path}: {error}; build it with `python setup.py build`, "
                "or install the package with pip on a machine that has a C compiler"
            ) from error
        except AttributeError as error:  # a function is not there
            raise BackendError(
                f"[library] expected libq7 of this version, given {path}: {error}; unset "
                "Q7X2_LIBRARY to load the one inside the package"
            ) from error
        library.q7_pool_cores(available_cores(os.getpid()))
        self.c = library
        self.path = path
        self.description = library.q7_describe().decode()
        self.target = Target.parse(self.description, isa, cpus=os.cpu_count() or 1)

    @staticmethod
    def _declare(library: ctypes.CDLL) -> None:
        """The types of its functions."""
        pointer, i64, error = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Error)
        library.q7_describe.restype = ctypes.c_char_p
        for name, arguments in {
            "q7_plan_create": [ctypes.c_char_p, i64, pointer, i64, ctypes.POINTER(pointer), error],
            "q7_context_create": [pointer, i64, ctypes.POINTER(pointer), error],
            "q7_bind": [pointer, pointer, pointer, error],
            "q7_flow_create": [pointer, i64, pointer, i64, pointer, i64, i64, pointer],
            "q7_flow_run": [pointer, pointer, pointer, pointer],
            "q7_run": [pointer],
        }.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int32
        for name, arguments in {
            "q7_plan_destroy": [pointer],
            "q7_context_destroy": [pointer],
            "q7_profile": [pointer, pointer],
            "q7_flow_destroy": [pointer],
            "q7_pool_cores": [i64],
        }.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        library.q7_stat.argtypes, library.q7_stat.restype = [pointer, ctypes.c_int32, i64], i64


@cache
def load(isa: Optional[str] = None) -> Library:
    """The library of this installation. isa: use nothing beyond it; by default as the knob says.

    Raises: BackendError.
    """
    name = "libq7.dylib" if sys.platform == "darwin" else "libq7.so"
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = str(knobs.get("LIBRARY")) or os.path.join(package, name)
    return Library(path, str(knobs.get("ISA")) if isa is None else isa)


class _Handle:
    """An opaque C object; a context manager."""

    _destroy: Any
    _pointer: Optional[int]

    def close(self) -> None:
        pointer, self._pointer = self._pointer, None  # a signal may come between any two calls
        if pointer is not None:
            self._destroy(pointer)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()


class Plan(_Handle):
    """A validated plan over constants, which it keeps alive. Raises: StatusError for a corrupt
    blob.
    """

    def __init__(self, library: Library, blob: bytes, constants: Sequence[np.ndarray]):
        self._destroy = library.c.q7_plan_destroy
        self._pointer = None
        self.library, self.constants = library, list(constants)
        addresses = array("Q", [constant.ctypes.data for constant in constants])
        made, error = ctypes.c_void_p(), _Error()
        status = library.c.q7_plan_create(
            blob,
            len(blob),
            addresses.buffer_info()[0],
            len(addresses),
            ctypes.byref(made),
            ctypes.byref(error),
        )
        _check(status, error)
        self._pointer = made.value
        header = memoryview(blob).cast("q")
        self.n_values = header[2] + header[3]  # symbols and expressions, see q7.h


class Context(_Handle):
    """An arena and patched args, for one run at a time. Raises: StatusError."""

    def __init__(self, plan: Plan, threads: int):
        self._destroy = plan.library.c.q7_context_destroy
        self._pointer = None
        self.plan = plan  # must outlive the context
        made = ctypes.c_void_p()
        self._error = _Error()
        status = plan.library.c.q7_context_create(
            plan._pointer, threads, ctypes.byref(made), self._error
        )
        _check(status, self._error)
        self._pointer = made.value
        self._values = array("q", bytes(8 * plan.n_values))
        self._bind, self._run = plan.library.c.q7_bind, plan.library.c.q7_run
        self._times: Optional[array] = None

    def bind(self, symbols: Sequence[int]) -> array:
        """Fit everything to these symbol values; returns the value table, valid until the next
        call.
        """
        given = array("q", symbols)
        values = self._values
        status = self._bind(
            self._pointer, given.buffer_info()[0], values.buffer_info()[0], self._error
        )
        if status:
            _check(status, self._error)
        return values

    def run(
        self, first: int, last: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        """Run steps [first, last) on dense arrays."""
        Launch(self, first, last, inputs, outputs).run()

    def profile(self, step_ns: Optional[array]) -> None:
        """Add each step's nanoseconds to step_ns from now on; None switches it off."""
        self._times = step_ns  # keeps the memory alive while C writes to it
        place = step_ns.buffer_info()[0] if step_ns is not None else None
        self.plan.library.c.q7_profile(self._pointer, place)

    def stat(self, what: int, index: int = 0) -> int:
        """One of STAT_*."""
        return int(self.plan.library.c.q7_stat(self._pointer, what, index))


TENSOR_WORDS = 9  # of a q7_tensor: address and shape


class Flow(_Handle):
    """Plans with control flow around them, for one run at a time; see q7.h.

    Raises: StatusError.
    """

    def __init__(
        self,
        library: Library,
        words: Sequence[int],
        plans: Sequence[Plan],
        constants: Sequence[np.ndarray],
        n_outputs: int,
        threads: int,
    ):
        self._destroy = library.c.q7_flow_destroy
        self._pointer = None
        self.plans, self.constants = list(plans), list(constants)  # must outlive the flow
        given = array("q", words)
        handles = array("Q", [plan._pointer for plan in plans])
        addresses = array("Q", [constant.ctypes.data for constant in constants])
        made = ctypes.c_void_p()
        status = library.c.q7_flow_create(
            given.buffer_info()[0],
            len(given),
            handles.buffer_info()[0],
            len(handles),
            addresses.buffer_info()[0],
            len(addresses),
            threads,
            ctypes.byref(made),
        )
        _check(status, _Error())
        self._pointer = made.value
        self._run = library.c.q7_flow_run
        self._outputs = array("q", bytes(8 * TENSOR_WORDS * n_outputs))

    def run(self, inputs: array, sizes: array) -> Optional[array]:
        """The outputs as q7_tensors, valid until the next run; None where this cannot be run so."""
        outputs = self._outputs
        status = self._run(
            self._pointer,
            inputs.buffer_info()[0],
            sizes.buffer_info()[0],
            outputs.buffer_info()[0],
        )
        return outputs if status == OK else None


class Launch:
    """Steps [first, last) of a bound context on dense arrays, which the caller keeps alive, as
    often as one likes. sources, targets: the addresses of inputs and outputs.
    """

    def __init__(
        self,
        context: Context,
        first: int,
        last: int,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ):
        self._context = context  # must outlive this
        self.sources = array("Q", map(address, inputs))
        self.targets = array("Q", map(address, outputs))
        self._error = context._error
        self._job = _Job(
            context._pointer,
            first,
            last,
            self.sources.buffer_info()[0],
            self.targets.buffer_info()[0],
            ctypes.addressof(self._error),
        )
        self._place = ctypes.addressof(self._job)
        self._run = context._run

    def run(self) -> None:
        """Raises: StatusError."""
        status = self._run(self._place)
        if status:
            _check(status, self._error)


def address(dense: np.ndarray) -> int:
    """Where the elements are. The buffer of an array tells it in 0.2 us, where it has elements and
    may be written to; its `ctypes` in 0.8.
    """
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(dense))
    except (TypeError, ValueError):
        return dense.ctypes.data


def fetch(place: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A copy of the dense array there."""
    copied = np.empty(shape, dtype)
    ctypes.memmove(address(copied), place, copied.nbytes)
    return copied


def _check(status: int, error: _Error) -> None:
    if status != OK:
        raise StatusError(error, status)
