"""Strings in the domain com.microsoft, on the host.

Source: the operator schema of onnxruntime 1.32; where it leaves a choice, its CPU kernel.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims, fresh, reference_of, where_is
from q7x2_ep.ops.text import CLASSES

START, END = "\x02", "\x03"
NAMES = ("alnum", "alpha", "digit", "lower", "punct", "space", "upper", "word", "xdigit")
CHOICE = re.compile(r"[|?*{]")  # without these the first match that re finds is the longest


@op("com.microsoft::Tokenizer")
class Tokenizer:
    """The tokens of each string along a new last axis: what `tokenexp` matches, the longest match
    at each place, or what stays between the separators, of which each cuts what the ones before it
    have left. Shorter ones than mincharnum are left out, and pad_value fills the rest of a row.
    """

    signature = "x: object -> y"
    attributes = {
        "mark": 0,
        "mincharnum": 0,
        "pad_value": "",
        "separators": None,
        "tokenexp": "",
    }

    def infer(node: Node) -> list[Type]:
        _cutter(node)  # refuses what it cannot be
        return [Type(dtypes.STRING, (*dims(node), *fresh(node, 0, 1)))]

    def prepared(node: Node) -> Callable[[np.ndarray], np.ndarray]:
        cut, least = _cutter(node), node.attrs["mincharnum"]
        marks, pad_value = node.attrs["mark"], node.attrs["pad_value"]

        def tokens(x: np.ndarray) -> np.ndarray:
            rows = [[*filter(None, cut(text))] for text in x.ravel().tolist()]
            if least > 1:
                rows = [[token for token in row if len(token) >= least] for row in rows]
            most = max(map(len, rows), default=0)
            if marks and most:
                rows, most = [[START, *row, END] for row in rows], most + 2
            pad = [pad_value] * most
            y = np.array([row + pad[len(row) :] for row in rows], object)
            return y.reshape(*x.shape, most)

        return tokens

    reference = reference_of(prepared)


def _cutter(node: Node) -> Callable[[str], list[str]]:
    """What makes tokens of a string."""
    expression, separators = node.attrs["tokenexp"], node.attrs["separators"]
    if bool(expression) == bool(separators):
        raise ModelError(f"{where_is(node)} needs either tokenexp or separators")
    if expression == "." or separators == ("",):
        return list
    if expression:
        whole = _compiled(node, expression)
        if not CHOICE.search(expression) and not whole.groups:
            return whole.findall
        return lambda text: [text[start:end] for start, end in _matches(whole, text)]
    patterns = [_compiled(node, separator) for separator in separators]

    def between(text: str) -> list[str]:
        parts = [text]
        for pattern in patterns:
            parts = [piece for part in parts for piece in _split(pattern, part)]
        return parts

    return between


def _split(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """The parts of a text between what matches; a match of nothing takes a character with it."""
    at = 0
    for start, end in _matches(pattern, text):
        yield text[at:start]
        at = max(end, start + 1)
    yield text[at:]


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """The longest match at each place, first to last; behind an empty one, from the next place."""
    at, has_choice = 0, bool(CHOICE.search(pattern.pattern))
    while found := pattern.search(text, at):
        start, end = found.span()
        if has_choice:
            ends = range(len(text), end, -1)
            end = next((last for last in ends if pattern.fullmatch(text, start, last)), end)
        yield start, end
        at = max(end, start + 1)
        if at > len(text):
            return


def _compiled(node: Node, expression: str) -> re.Pattern[str]:
    """A regular expression of RE2, whose classes are of ASCII."""
    for name in NAMES:
        expression = expression.replace(f"[:{name}:]", CLASSES[name])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # a set that re does not know
            return re.compile(expression, re.ASCII)
    except (re.error, FutureWarning) as error:
        raise UnsupportedOp(f"{where_is(node)} has {expression!r}: {error}") from error
