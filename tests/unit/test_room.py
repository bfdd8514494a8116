"""Memory for packed weights: how much is expected, and whether it is what is used."""

from __future__ import annotations

import numpy as np
import pytest

from q7x2_ep import dtypes
from q7x2_ep.backend.cpu.pack import share
from q7x2_ep.backend.cpu.room import LEAST_BYTES, Room, expected_bytes
from q7x2_ep.files import PACKED_ALIGN
from q7x2_ep.ir.core import Graph, Node, Type, Value


def products(*weights: np.ndarray, op: str = "MatMul") -> Graph:
    """Of an input by each weight."""
    graph, x = Graph(), Value("x", dtypes.FLOAT, ("n", "k"))
    for array in weights:
        weight = graph.constant(array, Type(dtypes.FLOAT, array.shape))
        graph.nodes.append(Node(op, [x, weight], [graph.new_value(Type(dtypes.FLOAT, None))]))
    return graph


def test_weights_of_products_are_expected():
    one, half = np.full((4, 6), 0.1, np.float32), np.ones((4, 6), np.float16)
    assert expected_bytes(products(one, half)) == 96 + 48
    assert expected_bytes(products(half.astype(np.float32))) == 48  # bfloat16 holds it
    assert expected_bytes(products(half.astype(np.float32), op="Conv")) == 96
    kernels = np.zeros((32, 64, 3, 3), np.float32)  # transformed, but for those of few channels
    assert (
        expected_bytes(products(kernels, kernels[:, :3], op="Conv")) == (16 * 64 + 9 * 3) * 32 * 4
    )
    assert expected_bytes(products(one, op="Gather")) == 0  # tables stay where they are
    assert expected_bytes(products(one.astype(np.int8))) == 0
    shared = products(one)
    shared.nodes.append(
        Node("Gemm", list(shared.nodes[0].inputs), [shared.new_value(Type(dtypes.FLOAT, None))])
    )
    assert expected_bytes(shared) == 96


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("part", [0.01, 0.5, 1, 1.2, 3])
def test_any_size_may_be_taken(monkeypatch, threads, part):
    monkeypatch.setenv("Q7X2_THREADS", threads)
    weight = np.broadcast_to(np.float32(0.1), (LEAST_BYTES // 4, 1))
    room, size = Room(products(weight)), int(part * LEAST_BYTES)
    first, second = room.take(size), room.take(size)
    for taken in (first, second):
        assert taken.nbytes == size and taken.ctypes.data % PACKED_ALIGN == 0
        taken[:] = 1
    assert not np.shares_memory(first, second)


def test_work_is_shared(monkeypatch):
    monkeypatch.setenv("Q7X2_THREADS", "3")
    done: list[int] = []
    for count in (0, 1, 2, 100):
        done.clear()
        share(done.append, list(range(count)))
        assert sorted(done) == list(range(count))
    with pytest.raises(ZeroDivisionError):
        share(lambda each: each / 0, [1.0] * 9)
