"""A Linear whose rows are the pixels of a depthwise Conv, before or behind it -> a Conv of 1x1.

Feed-forwards of transformers that see images (SegFormer, PVT v2) have a depthwise Conv between
their Linears, and turn rows into an image and back. The memory of both is the same; as convolutions
the three run in bands of lines. An activation of such rows goes to the image, where a Conv takes it
into its epilogue.
"""

from __future__ import annotations

from typing import Any, Union

from q7x2_ep import dtypes
from q7x2_ep.fuse.conv import CONV, FUSED
from q7x2_ep.fuse.epilogue import activations
from q7x2_ep.fuse.linear import LINEAR
from q7x2_ep.fuse.views import is_for_one
from q7x2_ep.ir.core import Graph, Node, Value
from q7x2_ep.ir.pattern import Match
from q7x2_ep.ir.rewrite import Fusion
from q7x2_ep.ir.view import channels_first, channels_last
from q7x2_ep.ops.activation import ACTIVATION_OPS
from q7x2_ep.ops.common import MOVES, Activation

DTYPES = (dtypes.FLOAT,)


def behind(graph: Graph, x: Value, last: bool) -> tuple[Value, bool]:
    """What a value is the pixels of, in their order, and where that has its channels: in its last
    dim, or else in its second. last: the same of x. Only x needs what lies between.
    """
    while x.producer is not None and x.producer.op in MOVES and is_for_one(graph, x):
        before = x.producer.inputs[0]
        if before.shape is None or x.shape is None or min(len(before.shape), len(x.shape)) < 2:
            break
        if x.producer.op == "Transpose":
            perm = tuple(x.producer.attrs["perm"])
            if len(perm) < 3 or perm != (channels_last if last else channels_first)(len(perm)):
                break
            last = not last
        elif before.shape[-1:] != x.shape[-1:] if last else before.shape[:2] != x.shape[:2]:
            break
        x = before
    return x, last


def _is_depthwise(node: Node) -> bool:
    w = node.inputs[1]
    return w.const is not None and w.shape[1] == 1 and w.shape[0] == node.attrs["group"]


def _is_pointwise(linear: Node) -> bool:
    """Whether a Conv of 1x1 can be what a Linear is."""
    weights = [x for x in linear.inputs[1:3] if x is not None]  # and the bias
    return all(x.const is not None for x in weights) and linear.attrs["alpha"] == 1.0


def _image(g: Any, rows: Value, shape: tuple) -> Value:
    """Rows as the image (N, C, H, W) that they are the pixels of, with as many channels as they
    have.
    """
    pixels = (shape[0], *shape[2:], rows.shape[-1])
    return g.Transpose(g.reshape(rows, pixels), perm=channels_first(4))


def _rows(g: Any, image: Value, shape: tuple) -> Value:
    return g.reshape(g.Transpose(image, perm=channels_last(len(image.shape))), shape)


def _pointwise(g: Any, linear: Node, x: Value) -> Value:
    """The Conv of an image that a Linear of its pixels is."""
    _, w, bias, residual = (*linear.inputs, None, None)[:4]
    if not linear.attrs["trans_b"]:
        w = g.folded("Transpose", w, perm=(1, 0))
    w = g.folded("Reshape", w, [*w.shape, 1, 1])
    residual = None if residual is None else _image(g, residual, x.shape)
    return g.call(FUSED, x, w, bias, residual, **Activation.of(linear.attrs).attributes())


def as_they_are(g: Any, rows: Any) -> Any:
    return rows


def _check_activated(match: Match) -> Union[dict[str, Any], str]:
    rows = match.root.inputs[0]
    if rows.shape is None or match.root.output.shape != rows.shape:
        return ""
    image, last = behind(match.graph, rows, True)
    made_by = image.producer
    if last or made_by is None or made_by.op != CONV or not is_for_one(match.graph, image):
        return ""
    return {"node": match.root, "image": image}


def _build_activated(g: Any, node: Node, image: Value) -> Value:
    y = g.call(node.op, image, *node.inputs[1:], **node.attrs)
    return _rows(g, y, node.output.shape)


def behind_image(g: Any, y: Any) -> Any:
    return g.result(LINEAR, y)


def _check_of_rows(match: Match) -> Union[dict[str, Any], str]:
    linear = match.root
    image, last = behind(match.graph, linear.inputs[0], True)
    if last or len(image.shape) != 4 or not is_for_one(match.graph, image):
        return ""
    made_by = image.producer
    if made_by is not None and made_by.op in (*ACTIVATION_OPS, "Clip"):
        made_by = made_by.inputs[0].producer
    if made_by is None or made_by.op != CONV or not _is_depthwise(made_by):
        return ""
    return {"linear": linear, "image": image} if _is_pointwise(linear) else ""


def _build_of_rows(g: Any, linear: Node, image: Value) -> Value:
    return _rows(g, _pointwise(g, linear, image), linear.output.shape)


def before_image(g: Any, y: Any) -> Any:
    return g.result(CONV, y)


def _check_of_image(match: Match) -> Union[dict[str, Any], str]:
    x = match.root.inputs[0]
    if not _is_depthwise(match.root) or len(x.shape) != 4:
        return ""
    rows, last = behind(match.graph, x, False)
    fits = last and is_for_one(match.graph, rows) and rows.producer is not None
    if not fits or rows.producer.op != LINEAR or not _is_pointwise(rows.producer):
        return ""
    return {"node": match.root, "linear": rows.producer}


def _build_of_image(g: Any, node: Node, linear: Node) -> Value:
    shape = node.inputs[0].shape
    x = _pointwise(g, linear, _image(g, linear.inputs[0], shape))
    return g.call(node.op, x, *node.inputs[1:], **node.attrs)


OF_IMAGE = Fusion("PixelsAhead", (before_image,), _check_of_image, _build_of_image, DTYPES)
ACTIVATION = Fusion(
    "PixelsActivation", activations(as_they_are), _check_activated, _build_activated
)
OF_ROWS = Fusion("PixelsBehind", (behind_image,), _check_of_rows, _build_of_rows, DTYPES)
