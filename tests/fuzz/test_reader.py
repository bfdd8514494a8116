"""Broken models: whatever the bytes, reading them ends in a graph or in a typed error."""

from __future__ import annotations

import contextlib
import random

import pytest

from q7x2_ep import passes
from q7x2_ep.errors import Q7Error
from q7x2_ep.importer import read
from tests.models.files import read as read_file
from tests.models.files import select

MODELS = select(cache=True)
STRUCTURE_BYTES = 60_000  # nodes come first in these files: weights make dull mutations


@pytest.mark.parametrize("seed", range(200))
def test_mutated_bytes(seed):
    rng = random.Random(seed)
    data = bytearray(read_file(rng.choice(MODELS)))
    for _ in range(rng.choice([1, 2, 5])):
        data[rng.randrange(min(len(data), STRUCTURE_BYTES))] = rng.randrange(256)
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    with contextlib.suppress(Q7Error):
        passes.run_all(read(bytes(data)))
