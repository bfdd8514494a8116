"""Strings in the domain com.microsoft, on the host.

Source: the operator schema of onnxruntime 1.32; where it leaves a choice, its CPU kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims, fresh, reference_of, where_is
from q7x2_ep.ops.text import compiled

START, END = "\x02", "\x03"
CHOICE = re.compile(r"[|?*{]")  # without these the first match that re finds is the longest
# What matches one letter, as `compiled` writes it: a set, or a letter that means itself.
LETTER = re.compile(r"\[\^?(\\.|[^]\\])+\]|\\[afnrtv\W]|[^][\\^$.|?*+(){}]", re.DOTALL)


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
        whole = compiled(node, expression)
        if CHOICE.search(expression) or whole.groups:
            spans = _spans(expression, whole)
            return lambda text: [text[start:end] for start, end in spans(text)]
        if not (whole.pattern.endswith("+") and LETTER.fullmatch(whole.pattern[:-1])):
            return whole.findall
        one = re.compile(whole.pattern[:-1])
        return _by_table(lambda letter: not one.fullmatch(letter), whole.findall)
    patterns = [compiled(node, separator) for separator in separators]
    found = [*map(_spans, separators, patterns)]

    def between(text: str) -> list[str]:
        parts = [text]
        for spans in found:
            parts = [piece for part in parts for piece in _split(spans(part), part)]
        return parts

    if all(LETTER.fullmatch(pattern.pattern) for pattern in patterns):
        return _by_table(lambda letter: any(p.fullmatch(letter) for p in patterns), between)
    return between


def _by_table(
    separates: Callable[[str], bool], other: Callable[[str], list[str]]
) -> Callable[[str], list[str]]:
    """Cuts texts of ASCII at the letters that separate, which is three times as fast, and others as
    `other` does.
    """
    letters = [*map(chr, range(128))]
    marks = [*filter(separates, letters)]
    if not marks:
        return other
    is_spaced = all(letter in marks for letter in letters if letter.isspace())
    mark = " " if is_spaced else marks[0]
    table = "".join(mark if letter in marks else letter for letter in letters).encode().ljust(256)
    cuts_at = None if is_spaced else mark

    def cut(text: str) -> list[str]:
        if not text.isascii():
            return other(text)
        return text.encode().translate(table).decode().split(cuts_at)

    return cut


def _split(spans: Iterable[tuple[int, int]], text: str) -> Iterator[str]:
    """The parts of a text between spans; an empty one takes a character with it."""
    at = 0
    for start, end in spans:
        yield text[at:start]
        at = max(end, start + 1)
    yield text[at:]


def _spans(expression: str, pattern: re.Pattern[str]) -> Callable[[str], Iterator[tuple[int, int]]]:
    """The longest match at each place, first to last; behind an empty one, from the next place."""
    has_choice = bool(CHOICE.search(expression))

    def spans(text: str) -> Iterator[tuple[int, int]]:
        at = 0
        while found := pattern.search(text, at):
            start, end = found.span()
            if has_choice:
                ends = range(len(text), end, -1)
                end = next((last for last in ends if pattern.fullmatch(text, start, last)), end)
            yield start, end
            at = max(end, start + 1)
            if at > len(text):
                return

    return spans
