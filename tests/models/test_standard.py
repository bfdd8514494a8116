"""Ops of the standard that few models have, beside onnxruntime."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
from onnx import TensorProto

from tests.models.beside import same

RANDOM = np.random.default_rng(29)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [None, -1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("image", [(), (5,), (2, 3)], ids=str)
def test_log_likelihood(
    reduction: str, ignored: Optional[int], weighted: bool, image: tuple
) -> None:
    """The mean is over the weights of what counts, also where -1 is what does not."""
    x = RANDOM.standard_normal((7, 4, *image)).astype(np.float32)
    target = RANDOM.integers(0, 4, (7, *image))
    target[::3] = target[::3] if ignored is None else ignored
    inputs = [x, target, *([RANDOM.random(4).astype(np.float32)] if weighted else [])]
    more: dict[str, Any] = {} if ignored is None else {"ignore_index": ignored}
    how = {"domain": "", "reduction": reduction, **more}
    session = same("NegativeLogLikelihoodLoss", inputs, symbols={7: "batch"}, **how)
    assert not session.program.host_phases


def test_determinants_of_halves() -> None:
    """numpy has none."""
    x = RANDOM.standard_normal((3, 4, 4)).astype(np.float16)
    same("Det", [x], (TensorProto.FLOAT16,), 1e-2, 1e-2, domain="")
