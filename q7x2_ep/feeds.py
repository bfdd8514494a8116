"""Random feeds that a model accepts: sizes for symbolic dims, indices inside their tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import FeedError
from q7x2_ep.ir.core import Graph, Value
from q7x2_ep.ir.shape import Expr, evaluate, symbols

_INDEX_PRESERVING = (
    "Cast",
    "Reshape",
    "Identity",
    "Unsqueeze",
    "Squeeze",
    "Flatten",
    "Transpose",
    "Expand",
)


def random_feeds(
    graph: Graph,
    batch: int = 1,
    sequence: int = 128,
    dims: Optional[Mapping[str, int]] = None,
    seed: int = 0,
    padding: bool = False,
    given: Optional[Mapping[str, np.ndarray]] = None,
) -> dict[str, np.ndarray]:
    """One feed for a graph as the importer reads it.

    Symbols of the first axis of an input are `batch`, all others `sequence`; `dims` overrides by
    name. Integers that index a constant table stay inside it. Those that are called *mask*
    are ones, or with `padding` ones and then zeros. given: inputs that are not made up.

    Raises: FeedError for an input of no known rank, that is no tensor, or of sizes that no array
    can have.
    """
    random = np.random.default_rng(seed)
    given = given or {}
    sizes: dict[str, int] = {}
    for value in graph.inputs:
        if value.shape is None and value.name not in given:
            raise FeedError(
                f"[input {value.name!r}] expected a feed, given none: the model "
                + (
                    "takes no tensor there, and only those can be made up; see InferenceSession.run"
                    if value.dtype == dtypes.NO_TENSOR
                    else "does not say how many dims it has, so that none can be made up; give "
                    f"--input {value.name}=FILE.npy"
                )
            )
        for axis, dim in enumerate(value.shape or ()):
            for name in symbols(dim) if isinstance(dim, Expr) else ():
                sizes.setdefault(name, sequence if axis else batch)
    sizes.update(dims or {})
    feeds = {}
    for value in graph.inputs:
        if value.shape is None or value.name in given:
            continue
        shape = tuple(evaluate(dim, sizes) for dim in value.shape)
        try:
            feeds[value.name] = _random_array(value, shape, random, padding)
        except ValueError as error:
            raise FeedError(
                f"[input {value.name!r}] expected sizes that an array can have, given {shape}: "
                f"{error}"
            ) from error
    return {**feeds, **given}


def _random_array(
    value: Value, shape: tuple[int, ...], random: np.random.Generator, padding: bool
) -> np.ndarray:
    row = dtypes.DTYPES[value.dtype]
    if row.kind == "f":
        return random.standard_normal(shape).astype(row.numpy)
    if "mask" in value.name:
        mask = np.ones(shape, row.numpy)
        if padding and shape and shape[-1]:
            keep = random.integers(1, shape[-1] + 1, shape[:-1])
            mask = (np.arange(shape[-1]) < keep[..., None]).astype(row.numpy)
        return mask
    limit = _table_rows(value) or 2
    if "position" in value.name and shape:
        return np.broadcast_to(np.arange(shape[-1]) % limit, shape).astype(row.numpy)
    return random.integers(0, limit, shape).astype(row.numpy)


def _table_rows(value: Value) -> Optional[int]:
    """The fewest rows of the constant tables that the value indexes, or None."""
    found = []
    for node in value.users:
        if node.op in _INDEX_PRESERVING and node.inputs[0] is value:
            found.append(_table_rows(node.output))
        elif node.op == "Gather" and node.inputs[1] is value and node.inputs[0].shape is not None:
            rows = node.inputs[0].shape[node.attrs.get("axis", 0)]
            found.append(rows if isinstance(rows, int) else None)
    return min((rows for rows in found if rows is not None), default=None)
