"""where for every element width and pattern of broadcasting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.kernels.harness import padded
from tests.kernels.harness import run_threads as run_op


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_where(dtype):
    rng = np.random.default_rng(9)
    shapes = [(3, 5, 33), (33,), (1,), (5, 1), (3, 1, 33)]
    triples = [
        *itertools.product(shapes, repeat=3),
        ((), (), ()),
        ((0, 4), (4,), (1,)),
        ((400, 300), (300,), (400, 300)),
    ]
    for triple in triples:
        c = rng.random(triple[0]) < 0.5
        a, b = (rng.integers(0, 100, s).astype(dtype) for s in triple[1:])
        expected = np.where(c, a, b)
        shape = expected.shape
        c_shape, a_shape, b_shape = (
            padded([1] * (len(shape) - v.ndim) + list(v.shape)) for v in (c, a, b)
        )
        given = {"elem_bytes": a.itemsize, "ndim": len(shape), "shape": padded(shape)}
        given.update(c_shape=c_shape, a_shape=a_shape, b_shape=b_shape)
        (y,) = run_op("where", c=c, a=a, b=b, y=np.zeros(shape, dtype), threads=(1, 3), **given)
        np.testing.assert_array_equal(y, expected)
