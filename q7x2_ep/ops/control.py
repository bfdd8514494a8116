"""Control flow: ops with graphs among their attributes, which run on the host.

The reader turns what a body takes from the graphs around it into inputs, the last `captures` ones
of the node and of each body. An entry has two parts of its own: `formals(node)` gives the types of
the other inputs of a body, for inference, and `control(node, run, *inputs)` takes the place of
`reference`: run(body, arrays) evaluates a body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import NO_TENSOR, UNKNOWN, Graph, Node, Type, Value, where_is
from q7x2_ep.ir.shape import Dim, measured, symbols
from q7x2_ep.ops import op
from q7x2_ep.ops.common import fresh, known, normal_axis

Run = Callable[[Graph, Sequence[Any]], list]  # the outputs of a body


def actuals(node: Node, inputs: Sequence[Any]) -> tuple[list, list]:
    """The inputs of a node, or what was fed for them, without and with only the captures."""
    split = len(inputs) - node.attrs["captures"]
    return list(inputs[:split]), list(inputs[split:])


def local_name(formal: Value) -> str:
    """What the model calls an input of a body."""
    return formal.name.rpartition("/")[2]


def varying(formal: Value, type: Type) -> Type:
    """The type of an input of a body that may have other sizes each time."""
    if type.shape is None:
        return type
    return Type(type.dtype, tuple(measured(formal.name, i) for i in range(len(type.shape))))


def _outside(node: Node) -> set[str]:
    """The symbols that the inputs of a node bind."""
    shapes = [value.shape for value in node.inputs if value is not None and value.shape]
    return {name for shape in shapes for dim in shape for name in symbols(dim)}


def _lifted(node: Node, i: int, type: Type) -> Type:
    """The type of output i, computed in a body as `type`: its symbols mean nothing outside."""
    if type.shape is None:
        return type
    known, own = _outside(node), fresh(node, i, len(type.shape))
    shape = [dim if symbols(dim) <= known else own[j] for j, dim in enumerate(type.shape)]
    return Type(type.dtype, tuple(shape))


@op("If")
class If:
    """The outputs of then_branch where cond is true, else those of else_branch."""

    signature = "cond: bool, captures* -> outputs*"
    attributes = {"then_branch": None, "else_branch": None, "captures": 0}

    formals = lambda node: []

    def infer(node: Node) -> list[Type]:
        then, otherwise = (body.outputs for body in node.bodies)
        return [_common(node, i, a.type, b.type) for i, (a, b) in enumerate(zip(then, otherwise))]

    def control(node: Node, run: Run, cond: Any, *captures: Any) -> list:
        name = "then_branch" if np.asarray(cond).item() else "else_branch"
        return run(node.attrs[name], captures)


def _common(node: Node, i: int, a: Type, b: Type) -> Type:
    if a.dtype != b.dtype and dtypes.UNKNOWN not in (a.dtype, b.dtype):
        kinds = " and ".join(dtypes.type_string(each.dtype) for each in (a, b))
        raise ModelError(f"{where_is(node)} output {i} is of two types: {kinds}")
    if a.shape is None and b.shape is None and a.dtype == b.dtype:
        return a
    if a.shape is None or b.shape is None or (a.dtype, len(a.shape)) != (b.dtype, len(b.shape)):
        return UNKNOWN
    own = fresh(node, i, len(a.shape))
    shape = [x if x == y else own[j] for j, (x, y) in enumerate(zip(a.shape, b.shape))]
    return _lifted(node, i, Type(a.dtype, tuple(shape)))


@op("Loop")
class Loop:
    """body(i, cond, carried..) -> cond, carried.., scanned.. for i = 0, 1, .. while i < trip_count
    and cond; the carried values, then the scanned ones of all iterations, stacked.
    """

    signature = "trip_count?: int64, cond?: bool, carried*, captures* -> outputs*"
    attributes = {"body": None, "captures": 0}

    def formals(node: Node) -> list[Type]:
        _, _, *formals = node.attrs["body"].inputs
        _, _, *carried = loop_operands(node, node.inputs)[0]
        types = [Type(dtypes.INT64, ()), Type(dtypes.BOOL, ())]
        return types + [varying(formal, _type(v)) for formal, v in zip(formals, carried)]

    def infer(node: Node) -> list[Type]:
        body = node.attrs["body"]
        _, _, *carried = loop_operands(node, node.inputs)[0]
        types = []
        for i, result in enumerate(body.outputs[1:]):
            if i < len(carried):
                formal = body.inputs[2 + i]
                types.append(_carried(node, i, _type(carried[i]), formal.type, result.type))
            else:
                types.append(_joined(node, i, result.type))
        return types

    def control(node: Node, run: Run, *inputs: Any) -> list:
        (trip, cond, *carried), captures = loop_operands(node, inputs)
        body = node.attrs["body"]
        limit = None if trip is None else int(np.asarray(trip).item())
        going = True if cond is None else bool(np.asarray(cond).item())
        scanned: list[list] = [[] for _ in body.outputs[1 + len(carried) :]]
        i = 0
        while going and (limit is None or i < limit):
            now = [np.array(i, np.int64), np.array(going), *carried, *captures]
            cond, *results = run(body, now)
            going = bool(np.asarray(cond).item())
            carried, made = results[: len(carried)], results[len(carried) :]
            for collected, array in zip(scanned, made):
                collected.append(array)
            i += 1
        return carried + [
            stacked(body, len(body.outputs) - len(scanned) + i, arrays)
            for i, arrays in enumerate(scanned)
        ]


def loop_operands(node: Node, inputs: Sequence[Any]) -> tuple[list, list]:
    """The inputs of a Loop and its captures; trip count and condition may both be left out."""
    given, captures = actuals(node, inputs)
    return given + [None] * (2 - len(given)), captures


def surely_turns(loop: Node) -> bool:
    """Whether a Loop goes through its body once at least, whatever is fed."""
    trip_count_and_cond = actuals(loop, loop.inputs)[0][:2]
    return all(value is None or _is_positive(known(value)) for value in trip_count_and_cond)


def _is_positive(elements: Optional[tuple[Dim, ...]]) -> bool:
    return bool(elements) and isinstance(elements[0], int) and elements[0] > 0


def _joined(node: Node, i: int, result: Type, axis: int = 0, times: Any = None) -> Type:
    """The type of output i: `result` of all turns along a new axis, of the size `times` if that is
    a number. Of the sizes of a result, too, only numbers are those of every turn.
    """
    if result.shape is None:
        return UNKNOWN
    dims = [*result.shape]
    dims.insert(axis % (len(dims) + 1), times)
    return Type(result.dtype, _numbers_or(dims, fresh(node, i, len(dims))))


def _numbers_or(dims: Sequence[Any], own: Sequence[Dim]) -> tuple[Dim, ...]:
    """The dims that are numbers, and in place of others those of its own."""
    return tuple(dim if isinstance(dim, int) else new for dim, new in zip(dims, own))


def _type(value: Any) -> Type:
    return NO_TENSOR if value is None else value.type


def _carried(node: Node, i: int, initial: Type, formal: Type, result: Type) -> Type:
    """Sizes that the body hands on as they are stay those of the initial value."""
    if initial.shape is None or result.shape is None:
        return NO_TENSOR if initial == result == NO_TENSOR else UNKNOWN
    if (initial.dtype, len(initial.shape)) != (result.dtype, len(result.shape)):
        return UNKNOWN
    own = fresh(node, i, len(initial.shape))
    dims = zip(initial.shape, formal.shape, result.shape, own)
    return Type(initial.dtype, tuple(a if after in (a, at) else new for a, at, after, new in dims))


def stacked(body: Graph, i: int, arrays: list, axis: int = 0) -> np.ndarray:
    """Output i of all iterations along a new axis. Where there were none, an empty array of the
    type of the output, its sizes as the model declares them, or 0.
    """
    if arrays:
        return np.stack(arrays, axis)
    value, declared = body.outputs[i], body.metadata["declared"][body.output_names[i]]
    hints = declared.shape or ()
    shape = hints if value.shape is None else value.shape
    if len(hints) != len(shape):
        hints = shape
    known = [next((d for d in dims if isinstance(d, int)), 0) for dims in zip(shape, hints)]
    known.insert(axis % (len(known) + 1), 0)
    dtype = value.dtype or declared.dtype or dtypes.FLOAT
    return np.empty(known, dtypes.DTYPES[dtype].numpy)


@op("Scan")
class Scan:
    """body(state.., slice..) -> state.., scanned.. for every position along the scanned axes.

    batched: as before opset 9, sequence lengths come first, and all else has the batch in dim 0.
    """

    signature = "states_and_scanned*, captures* -> outputs*"
    attributes = {
        "body": None,
        "num_scan_inputs": 1,
        "scan_input_axes": None,
        "scan_input_directions": None,
        "scan_output_axes": None,
        "scan_output_directions": None,
        "batched": 0,
        "captures": 0,
    }

    def formals(node: Node) -> list[Type]:
        body, batched = node.attrs["body"], node.attrs["batched"]
        given = actuals(node, node.inputs)[0][batched:]
        states = len(given) - node.attrs["num_scan_inputs"]
        axes = _scanned_axes(node)
        types = []
        for i, (formal, value) in enumerate(zip(body.inputs, given)):
            type, gone = _type(value), batched + (i >= states)
            if type.shape is None:
                types.append(UNKNOWN)
            elif batched or i < states:
                types.append(varying(formal, Type(type.dtype, type.shape[gone:])))
            else:  # what is left is numbered from 0, as in the bodies that runs compile
                rest = list(type.shape)
                del rest[normal_axis(node, axes[i - states], len(rest))]
                own = varying(formal, Type(type.dtype, tuple(rest)))
                types.append(Type(type.dtype, _numbers_or(rest, own.shape)))
        return types

    def infer(node: Node) -> list[Type]:
        body, batched = node.attrs["body"], node.attrs["batched"]
        given = actuals(node, node.inputs)[0]
        states = len(given) - batched - node.attrs["num_scan_inputs"]
        results = body.outputs[: len(node.outputs)]
        if batched:
            return [
                UNKNOWN
                if result.shape is None
                else Type(result.dtype, fresh(node, i, len(result.shape) + 1 + (i >= states)))
                for i, result in enumerate(results)
            ]
        types = [
            _carried(node, i, _type(value), formal.type, result.type)
            for i, (value, formal, result) in enumerate(zip(given[:states], body.inputs, results))
        ]
        times, axes = _turns(node, given[states]), node.attrs["scan_output_axes"]
        for i, result in enumerate(results[states:]):
            axis = axes[i] if axes else 0
            types.append(_joined(node, states + i, result.type, axis, times))
        return types

    def control(node: Node, run: Run, *inputs: Any) -> list:
        given, captures = actuals(node, inputs)
        if not node.attrs["batched"]:
            return _scan(node, run, given, captures, None)
        lengths, *batches = given
        each = []
        for i in range(batches[0].shape[0]):
            length = None if lengths is None else int(lengths[i])
            each.append(_scan(node, run, [batch[i] for batch in batches], captures, length))
        states = len(batches) - node.attrs["num_scan_inputs"]
        longest = batches[states].shape[1]
        return [
            _padded(arrays, longest if i >= states else None) for i, arrays in enumerate(zip(*each))
        ]


def _turns(node: Node, scanned: Value) -> Optional[Dim]:
    """The length of the first value that a Scan takes apart, where its rank is known."""
    if scanned.shape is None:
        return None
    return scanned.shape[normal_axis(node, _scanned_axes(node)[0], len(scanned.shape))]


def _scanned_axes(node: Node) -> Sequence[int]:
    return node.attrs["scan_input_axes"] or (0,) * node.attrs["num_scan_inputs"]


def _scan(node: Node, run: Run, given: list, captures: list, length: Any) -> list:
    body, attrs = node.attrs["body"], node.attrs
    count = attrs["num_scan_inputs"]
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    axes = _scanned_axes(node)
    fronts = [
        np.moveaxis(array, normal_axis(node, axis, array.ndim), 0)
        for array, axis in zip(scanned, axes)
    ]
    steps = fronts[0].shape[0] if length is None else length
    backwards = attrs["scan_input_directions"] or (0,) * count
    made: list[list] = [[] for _ in body.outputs[len(states) :]]
    for i in range(steps):
        parts = [a[steps - 1 - i if back else i] for a, back in zip(fronts, backwards)]
        results = run(body, [*states, *parts, *captures])
        states = results[: len(states)]
        for collected, array in zip(made, results[len(states) :]):
            collected.append(array)
    out_axes = attrs["scan_output_axes"] or (0,) * len(made)
    reverse = attrs["scan_output_directions"] or (0,) * len(made)
    return [*states] + [
        stacked(body, len(states) + i, arrays[::-1] if back else arrays, axis)
        for i, (arrays, axis, back) in enumerate(zip(made, out_axes, reverse))
    ]


def _padded(arrays: Sequence[np.ndarray], steps: Optional[int]) -> np.ndarray:
    """The results of a batch stacked; sequences of fewer steps end in zeros."""
    shape = np.max([np.shape(array) for array in arrays], axis=0).astype(int)
    if steps is not None:
        shape[0] = steps
    padded = np.zeros((len(arrays), *shape), np.asarray(arrays[0]).dtype)
    for i, array in enumerate(arrays):
        padded[(i, *map(slice, np.shape(array)))] = array
    return padded


@op("SequenceMap")
class SequenceMap:
    """body(element, ..) for every element of a sequence, as sequences of its outputs. Of further
    inputs that are sequences each element goes with one of the first.
    """

    signature = "sequence, others*, captures* -> sequences*"
    attributes = {"body": None, "captures": 0}

    formals = lambda node: [UNKNOWN] * len(actuals(node, node.inputs)[0])
    infer = lambda node: [NO_TENSOR] * len(node.outputs)

    def control(node: Node, run: Run, *inputs: Any) -> list:
        (sequence, *others), captures = actuals(node, inputs)
        rows = []
        for i, element in enumerate(sequence):
            given = [other[i] if isinstance(other, list) else other for other in others]
            rows.append(run(node.attrs["body"], [element, *given, *captures]))
        return [[row[i] for row in rows] for i in range(len(node.outputs))]


@op("q7::Deferred")
class Deferred:
    """A part of the model that is compiled when it is run, once per rank and dtype of its inputs:
    before, not all of their ranks are known.
    """

    signature = "captures* -> outputs*"
    attributes = {"body": None, "captures": 0}

    infer = lambda node: [UNKNOWN] * len(node.outputs)
    control = lambda node, run, *inputs: run(node.attrs["body"], inputs)
