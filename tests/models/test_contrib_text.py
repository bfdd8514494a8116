"""Tokenizer beside onnxruntime, as skl2onnx writes it for CountVectorizer and TfidfVectorizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.session import Session
from tests.models.beside import one_node, theirs

TEXTS = [
    "Hello World",
    "I love \u00e91 x_y, (really) !",
    "",
    "abc ab\na  abab Hello",
    "a\tb\x0b\x1cl o!\r\n",
]
EXPRESSIONS = [
    *("[a-zA-Z0-9_]+", ".", "..", r"\w+", r"\bx", "^.", "a|ab|abc", "x*", "(l)(o)", "(ab)*(abc)*"),
    *("[[:alpha:]]+", "[^[:space:]]+", "(?i)HELLO", "l+?"),
    *("[^a-l]+", r"\S+", r"[a-z\s]+", "[a?]+", "(?i)[a-l]+", "[ab]l+", r"\b+"),
]
SEPARATORS = [
    *([" "], [""], ["."], ["l+"], ["l", "lo"], ["lo", "l"], ["x*"], ["a|ab"]),
    *(["\n"], [r"\s"], [r"\S"], ["[^a-z]"], [r"\b", " "], ["[^\u00e9]"], [r"[\t\n ]", "l"]),
    [" ", "[.]", "\\?", ",", ";", ":", "\\!", "\\(", "\\)"],
]
SPLITS = [{"tokenexp": text} for text in EXPRESSIONS] + [{"separators": x} for x in SEPARATORS]


def tokenizer(x: np.ndarray, **attrs: Any) -> tuple[bytes, dict[str, np.ndarray]]:
    attrs = {"mark": 0, "mincharnum": 1, "pad_value": "#", **attrs}
    return one_node("Tokenizer", [x], (TensorProto.STRING,), **attrs)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (5, 1)], ids=str)
def test_tokens(split: dict, mark: int, shape: tuple[int, ...]) -> None:
    is_by_character = split in ({"separators": [""]}, {"tokenexp": "."})
    x = np.array(TEXTS, object).reshape(shape)
    for least in (1,) if is_by_character else (1, 2):
        model, feeds = tokenizer(x, mark=mark, mincharnum=least, **split)
        (actual,), (wanted,) = Session(model).run(feeds), theirs(model, feeds)
        assert actual.shape == wanted.shape
        np.testing.assert_array_equal(actual, wanted)


def test_no_tokens() -> None:
    model, feeds = tokenizer(np.array(["", "b"], object), tokenexp="a", mark=1)
    assert Session(model).run(feeds)[0].shape == theirs(model, feeds)[0].shape == (2, 0)


def test_refused() -> None:
    x = np.array(TEXTS, object)
    with pytest.raises(ModelError, match="either tokenexp or separators"):
        Session(tokenizer(x)[0])
    with pytest.raises(UnsupportedOp, match="pL"):  # no class of re
        Session(tokenizer(x, tokenexp=r"\pL+")[0])
