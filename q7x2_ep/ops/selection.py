"""What is picked by its value. Only a run knows how much that is (`bound` in ops/__init__.py)."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ir.shape import product
from q7x2_ep.ops import op
from q7x2_ep.ops.common import (
    BINARY,
    F32,
    Guard,
    dims,
    fresh,
    normal_axis,
    require_dtype,
    where_is,
)


@op("NonZero")
class NonZero:
    """Where x is not zero: a row of positions per dim of x, in row-major order."""

    signature = "x -> y"
    attributes: dict = {}
    infer = lambda node: [Type(dtypes.INT64, (len(dims(node)), fresh(node, 0, 2)[1]))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        found = np.nonzero(np.atleast_1d(x))
        return np.array(found[: x.ndim], np.int64).reshape(x.ndim, len(found[0]))

    bound = lambda node: len(dims(node)) * product(dims(node)) + 1

    def lower(node: Node, b: Any) -> None:
        x, (y, count) = node.inputs[0], node.outputs
        require_dtype(node, x.dtype, (*BINARY, *dtypes.HALVES))
        is_float = int(dtypes.is_float(x.dtype))
        layout = {"elem_bytes": dtypes.size(x.dtype), "ndim": len(x.shape), "shape": x.shape}
        b.step("nonzero", x=x, y=y, count=count, is_float=is_float, **layout)


@op("Compress")
class Compress:
    """What a condition selects along an axis, or of all elements where no axis is given; what it
    says behind their end is not read.
    """

    signature = "x, condition: bool -> y"
    attributes = {"axis": None}

    def infer(node: Node) -> list[Type]:
        shape = list(dims(node)) if node.attrs["axis"] is not None else [0]
        axis = normal_axis(node, node.attrs["axis"] or 0, len(shape))
        shape[axis] = fresh(node, 0, len(shape))[axis]
        return [Type(node.inputs[0].dtype, tuple(shape))]

    def reference(node: Node, x: np.ndarray, condition: np.ndarray) -> np.ndarray:
        axis = node.attrs["axis"]
        return np.compress(condition[: x.size if axis is None else x.shape[axis]], x, axis)

    def decompose(g: Any, x: Value, condition: Value, axis: Optional[int]) -> Value:
        whole = x if axis is not None else g.Reshape(x, [-1])
        size, (length,) = whole.shape[axis or 0], condition.shape
        fits = isinstance(length, int) and isinstance(size, int) and length <= size
        if not fits and length != size:
            condition = g.Slice(condition, [0], [size], [0])
        return g.Gather(whole, g.Reshape(g.NonZero(condition), [-1]), axis=axis or 0)


@op("Unique")
class Unique:
    """The distinct elements of x, or of its entries along an axis, in ascending order, or in that
    of their first occurrence; where each first occurs; which one each is; how often each occurs.
    """

    signature = "x -> y, indices?, inverse?, counts?"
    attributes = {"axis": None, "sorted": 1}

    def infer(node: Node) -> list[Type]:
        shape, axis = [0], 0
        if node.attrs["axis"] is not None:
            shape = list(dims(node))
            axis = normal_axis(node, node.attrs["axis"], len(shape))
        shape[axis] = found = fresh(node, 0, len(shape))[axis]
        all_of_it = fresh(node, 2, 1) if len(node.outputs) > 2 else (0,)
        if node.attrs["axis"] is not None:
            all_of_it = (dims(node)[axis],)
        vectors = [Type(dtypes.INT64, each) for each in ((found,), all_of_it, (found,))]
        return [Type(node.inputs[0].dtype, tuple(shape)), *vectors]

    def reference(node: Node, x: np.ndarray) -> tuple[np.ndarray, ...]:
        axis = node.attrs["axis"]
        alike = x.astype(str) if x.dtype == object else x  # objects have no order along an axis
        _, first, inverse, counts = np.unique(alike, True, True, True, axis=axis)
        inverse = inverse.ravel()
        if not node.attrs["sorted"]:
            order = np.argsort(first)
            first, counts = first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        y = np.take(x.ravel() if axis is None else x, first, axis or 0)
        return y, *(part.astype(np.int64) for part in (first, inverse, counts))


NMS_BINS, NMS_SPAN = 1024, 4  # BINS and SPAN of csrc/ops/nms.c


@op("NonMaxSuppression")
class NonMaxSuppression:
    """(batch, class, box) of the boxes that stay: the best first, none that overlaps a better one.

    boxes (batch, n, 4) are two corners y, x, or centre and size (center_point_box); scores (batch,
    classes, n). Two overlap where intersection over union exceeds the threshold.
    """

    signature = (
        "boxes: float32, scores: float32, most?: int64, overlap?: float32, least?: float32 -> y"
    )
    attributes = {"center_point_box": 0}
    infer = lambda node: [Type(dtypes.INT64, (fresh(node, 0, 2)[0], 3))]

    def reference(
        node: Node,
        boxes: np.ndarray,
        scores: np.ndarray,
        most: Optional[np.ndarray] = None,
        overlap: Optional[np.ndarray] = None,
        least: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        limit = 0 if most is None or most.size == 0 else int(most.item())
        threshold = 0.0 if overlap is None or overlap.size == 0 else overlap.item()
        kept: list[tuple[int, int, int]] = []
        low, high = corners(boxes, node.attrs["center_point_box"])
        for batch, of_class in np.ndindex(scores.shape[:2]):
            score = scores[batch, of_class]
            order = np.argsort(-score, kind="stable")
            if least is not None and least.size:
                order = order[score[order] > least.item()]
            chosen: list[int] = []
            while len(order) and len(chosen) < limit:
                best, order = int(order[0]), order[1:]
                chosen.append(best)
                shared = overlaps(low[batch], high[batch], best, order)
                order = order[~(shared > threshold)]
            kept += [(batch, of_class, box) for box in chosen]
        return np.array(kept, np.int64).reshape(-1, 3)

    def guards(node: Node) -> list[Guard]:
        boxes, scores = dims(node), dims(node, 1)
        if len(boxes) != 3 or len(scores) != 3:
            raise UnsupportedOp(f"{where_is(node)} boxes {boxes} and scores {scores}")
        return [
            (boxes[0], scores[0], "as many batches of boxes as of scores"),
            (boxes[1], scores[2], "as many boxes as scores"),
            (boxes[2], 4, "numbers of a box"),
        ]

    bound = lambda node: product(dims(node, 1)) * 3

    def lower(node: Node, b: Any) -> None:
        boxes, scores, *options = (*node.inputs, *[None] * (5 - len(node.inputs)))
        require_dtype(node, boxes.dtype, F32)
        for value, dtype in zip(options, (dtypes.INT64, dtypes.FLOAT, dtypes.FLOAT)):
            if value is not None and (value.dtype != dtype or product(value.shape) != 1):
                raise UnsupportedOp(f"{where_is(node)} {value.name!r} is not one number")
        batch, classes, n = scores.shape
        b.step(
            "nms",
            boxes=boxes,
            scores=scores,
            **dict(zip(("most", "overlap", "least"), options)),
            y=node.outputs[0],
            count=node.outputs[1],
            work=NMS_BINS * 16 + n * (8 + (10 + 5 * (NMS_SPAN + 1)) * 4),
            batch=batch,
            classes=classes,
            n=n,
            centred=int(bool(node.attrs["center_point_box"])),
        )


def corners(boxes: np.ndarray, centred: int) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper corner of each box, (.., 2) each."""
    one, other = boxes[..., :2], boxes[..., 2:]
    if centred:
        return one - other / 2, one + other / 2
    return np.minimum(one, other), np.maximum(one, other)


def overlaps(low: np.ndarray, high: np.ndarray, best: int, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box with others, 0 where either is empty."""
    sides = np.minimum(high[best], high[others]) - np.maximum(low[best], low[others])
    shared = np.prod(np.maximum(sides, 0), -1)
    own, theirs = np.prod(high[best] - low[best]), np.prod(high[others] - low[others], -1)
    union = own + theirs - shared
    valid = (shared > 0) & (own > 0) & (theirs > 0) & (union > 0)
    return np.divide(shared, union, out=np.zeros_like(shared), where=valid)
