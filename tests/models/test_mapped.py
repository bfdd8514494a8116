"""A model whose file is mapped gives the same bits as one that was read: unaligned weights, too."""

from __future__ import annotations

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep import importer
from q7x2_ep.feeds import random_feeds
from tests.models.files import FOLDER, SUFFIX
from tests.models.files import read as read_file

NAMES = ("bert.sdpa.dynamo18", "gpt2.eager.legacy17", "vit.eager.dynamo23")


@pytest.mark.parametrize("name", NAMES)
def test_mapped_is_the_same_as_read(name, tmp_path, monkeypatch):
    data = read_file(FOLDER / (name + SUFFIX))
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    monkeypatch.setattr("q7x2_ep.importer.reader.MAP_BYTES", 1)
    with q7x2_ep.InferenceSession(data) as read, q7x2_ep.InferenceSession(path) as mapped:
        feeds = random_feeds(importer.read(data), 2, 7)
        for x, y in zip(read.run(None, feeds), mapped.run(None, feeds)):
            np.testing.assert_array_equal(x, y)
