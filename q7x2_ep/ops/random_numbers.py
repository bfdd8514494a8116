"""Random numbers, by numpy's generator: the distributions of ONNX, not the numbers of any engine.

A node has one generator as long as it lives. With a seed it gives the same numbers in every
process, but others in each run, so that noise which a loop adds is not the same each time.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims

_generators: WeakKeyDictionary[Node, np.random.Generator] = WeakKeyDictionary()


def generator(node: Node) -> np.random.Generator:
    if node not in _generators:
        seed = node.attrs["seed"]
        bits = None if seed is None else int(np.float32(seed).view(np.uint32))
        _generators[node] = np.random.default_rng(bits)
    return _generators[node]


def dtype_of(node: Node) -> int:
    """What `dtype` says, or else that of x."""
    return node.attrs["dtype"] or node.inputs[0].dtype


def infer_shaped(node: Node) -> list[Type]:
    return [Type(node.attrs["dtype"], tuple(node.attrs["shape"]))]


def infer_like(node: Node) -> list[Type]:
    return [Type(dtype_of(node), dims(node))]


def normal(node: Node, shape: tuple[int, ...], dtype: int) -> np.ndarray:
    numbers = generator(node).normal(node.attrs["mean"], node.attrs["scale"], shape)
    return numbers.astype(dtypes.DTYPES[dtype].numpy)


def uniform(node: Node, shape: tuple[int, ...], dtype: int) -> np.ndarray:
    numbers = generator(node).uniform(node.attrs["low"], node.attrs["high"], shape)
    return numbers.astype(dtypes.DTYPES[dtype].numpy)


def drawn(random: np.random.Generator, x: np.ndarray, count: int) -> np.ndarray:
    """So many classes of each row of x, unnormalised log probabilities (batch, classes)."""
    weights = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    steps = np.cumsum(weights, -1)
    draws = random.random((len(x), count)) * steps[:, -1:]
    classes = [np.searchsorted(row, at, "right") for row, at in zip(steps, draws)]
    found = np.array(classes, np.int64).reshape(draws.shape)
    return np.minimum(found, x.shape[1] - 1)  # a draw may be rounded up to the sum


@op("RandomNormal")
class RandomNormal:
    """Numbers of a normal distribution with the given mean and deviation (scale)."""

    signature = " -> y"
    attributes: dict[str, Any] = {
        "shape": (),
        "dtype": dtypes.FLOAT,
        "mean": 0.0,
        "scale": 1.0,
        "seed": None,
    }
    is_random = True
    infer = infer_shaped
    reference = lambda node: normal(node, node.attrs["shape"], node.attrs["dtype"])


@op("RandomNormalLike")
class RandomNormalLike:
    """As RandomNormal, in the shape of x, and in its dtype unless another is given."""

    signature = "x -> y"
    attributes = {"dtype": None, "mean": 0.0, "scale": 1.0, "seed": None}
    is_random = True
    infer = infer_like
    reference = lambda node, x: normal(node, x.shape, dtype_of(node))


@op("RandomUniform")
class RandomUniform:
    """Numbers of a uniform distribution from low up to high."""

    signature = " -> y"
    attributes: dict[str, Any] = {
        "shape": (),
        "dtype": dtypes.FLOAT,
        "low": 0.0,
        "high": 1.0,
        "seed": None,
    }
    is_random = True
    infer = infer_shaped
    reference = lambda node: uniform(node, node.attrs["shape"], node.attrs["dtype"])


@op("RandomUniformLike")
class RandomUniformLike:
    """As RandomUniform, in the shape of x, and in its dtype unless another is given."""

    signature = "x -> y"
    attributes = {"dtype": None, "low": 0.0, "high": 1.0, "seed": None}
    is_random = True
    infer = infer_like
    reference = lambda node, x: uniform(node, x.shape, dtype_of(node))


@op("Bernoulli")
class Bernoulli:
    """1 with the probability x, else 0."""

    signature = "x: F -> y"
    attributes = {"dtype": None, "seed": None}
    is_random = True
    infer = infer_like

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        hits = generator(node).random(x.shape) < x
        return hits.astype(dtypes.DTYPES[dtype_of(node)].numpy)


@op("Multinomial")
class Multinomial:
    """sample_size classes per row, drawn by unnormalised log probabilities x (batch, classes)."""

    signature = "x: F -> y"
    attributes = {"dtype": dtypes.INT32, "sample_size": 1, "seed": None}
    is_random = True
    infer = lambda node: [Type(node.attrs["dtype"], (dims(node)[0], node.attrs["sample_size"]))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        classes = drawn(generator(node), x, node.attrs["sample_size"])
        return classes.astype(dtypes.DTYPES[node.attrs["dtype"]].numpy)
