"""AttnLSTM beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from q7x2_ep.errors import DataError, ModelError
from q7x2_ep.session import Session
from tests.models.beside import one_node, same

FLOAT = TensorProto.FLOAT
S, N, IN, H, A, M, L, C = 5, 3, 4, 6, 7, 2, 8, 5


def operands(count: int, given: tuple[bool, ...]) -> list:
    """given: the bias, lengths, states, peepholes, lengths of the memory, and weights of what is
    attended to.
    """
    random = np.random.default_rng([count, *given])

    def f(*shape: int) -> np.ndarray:
        return (0.5 * random.standard_normal(shape)).astype(np.float32)

    seen = C if given[5] else M
    return [
        *(f(S, N, IN), f(count, 4 * H, IN + seen), f(count, 4 * H, H)),
        f(count, 8 * H) if given[0] else None,
        np.array([5, 1, 3], np.int32) if given[1] else None,
        f(count, N, H) if given[2] else None,
        f(count, N, H) if given[2] else None,
        f(count, 3 * H) if given[3] else None,
        *(f(count, H, A), f(count, M, A), f(count, A), f(N, L, M)),
        np.array([2, 8, 5], np.int32) if given[4] else None,
        f(count, H + M, C) if given[5] else None,
    ]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bits", range(0, 64, 3))
def test_operands(direction: str, bits: int) -> None:
    given = tuple(bool(bits >> i & 1) for i in range(6))
    inputs = operands(2 if direction == "bidirectional" else 1, given)
    attrs: dict[str, Any] = {"direction": direction, "hidden_size": H}
    same("AttnLSTM", inputs, (FLOAT,) * 3, **attrs)
    same("AttnLSTM", inputs, (FLOAT,), symbols={S: "S", N: "N", L: "L"}, **attrs)


@pytest.mark.parametrize(
    "attrs",
    [
        {"clip": 0.2},
        {"input_forget": 1},
        {"activations": ["Relu", "Softsign", "Tanh"]},
        {"activations": ["HardSigmoid", "LeakyRelu", "Elu"], "activation_alpha": [0.3, 0.2, 0.7]},
    ],
    ids=str,
)
def test_attributes(attrs: dict) -> None:
    same("AttnLSTM", operands(1, (True,) * 6), (FLOAT,) * 3, hidden_size=H, **attrs)


def test_what_does_not_fit() -> None:
    inputs = operands(1, (True,) * 6)
    for i, wrong, words in (
        (1, inputs[1][..., 1:], r"W is \[1, 24, 8\]: expected \[1, 24, 9\]"),
        (4, np.array([0, 5, 5], np.int32), r"sequence_lens are \[0, 5, 5\]: expected 1 to 5"),
        (12, np.array([9, 5, 5], np.int32), "memory_seq_lens are .*: expected 1 to 8"),
    ):
        model, feeds = one_node(
            "AttnLSTM", [*inputs[:i], wrong, *inputs[i + 1 :]], (FLOAT,), hidden_size=H
        )
        with pytest.raises(DataError, match=words):
            Session(model).run(feeds)
    model = one_node("AttnLSTM", inputs, (FLOAT,), direction="sideways")[0]
    with pytest.raises(ModelError, match="no direction 'sideways'"):
        Session(model)
