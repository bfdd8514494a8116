"""Text: n-grams, stop words and parts of strings, on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims, fresh, where_is


@op("TfIdfVectorizer")
class TfIdfVectorizer:
    """y[ngram_indexes[i]] counts the i-th n-gram of the pool in each row of x, times weights[i].

    The parts of an n-gram stand next to one another, or all of them up to max_skip_count others
    apart. Mode TF has no weights, and IDF counts to 1.
    """

    signature = "x -> y"
    attributes = {
        **dict.fromkeys(("mode", "min_gram_length", "max_gram_length", "max_skip_count")),
        **dict.fromkeys(("ngram_counts", "ngram_indexes", "pool_int64s", "pool_strings")),
        "weights": None,
    }
    choices = {"mode": ("TF", "IDF", "TFIDF")}

    def infer(node: Node) -> list[Type]:
        width = max(node.attrs["ngram_indexes"], default=-1) + 1
        return [Type(dtypes.FLOAT, (*dims(node)[:-1], width))]

    def decompose(
        g: Any, x: Value, mode: str, weights: Any, ngram_indexes: Sequence[int], **attrs: Any
    ) -> Value:
        pools = [attrs.pop(f"pool_{kind}") or () for kind in ("int64s", "strings")]
        grams = _grams_of(pools[0] or pools[1], attrs.pop("ngram_counts"))
        places = {gram: i for i, gram in enumerate(grams)}
        return g.call(
            "q7::NGrams",
            x,
            places=places,
            indexes=np.array(ngram_indexes, np.int64),
            weights=None if mode == "TF" or weights is None else np.array(weights, np.float32),
            counts_once=int(mode == "IDF"),
            **attrs,
        )


def _grams_of(pool: Sequence, starts: Sequence[int]) -> Iterator[tuple]:
    """The n-grams of a pool, in which the short ones come first."""
    ends = [*starts[1:], len(pool)]
    for n, (start, end) in enumerate(zip(starts, ends), 1):
        for i in range(start, end, n):
            yield tuple(pool[i : i + n])


@op("q7::NGrams")
class NGrams:
    """A TfIdfVectorizer: places tells which n-gram of the pool one is."""

    signature = "x -> y"
    attributes = {
        **{"places": None, "indexes": None, "weights": None, "counts_once": 0},
        **dict.fromkeys(("min_gram_length", "max_gram_length", "max_skip_count")),
    }

    def infer(node: Node) -> list[Type]:
        width = int(node.attrs["indexes"].max(initial=-1)) + 1
        return [Type(dtypes.FLOAT, (*dims(node)[:-1], width))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        attrs = node.attrs
        places, indexes, weights = attrs["places"], attrs["indexes"], attrs["weights"]
        y = np.zeros((*x.shape[:-1], indexes.max(initial=-1) + 1), np.float32)
        rows = y.reshape(-1, y.shape[-1])
        for row, found in zip(x.reshape(len(rows), -1).tolist(), rows):
            counts = Counter(places[gram] for gram in _grams(row, attrs) if gram in places)
            at = np.fromiter(counts, np.int64, len(counts))
            times = np.fromiter(counts.values(), np.float32, len(counts))
            times = np.minimum(times, 1) if attrs["counts_once"] else times
            np.add.at(found, indexes[at], times if weights is None else times * weights[at])
        return y


def _grams(row: list, attrs: dict[str, Any]) -> Iterator[tuple]:
    for n in range(attrs["min_gram_length"], attrs["max_gram_length"] + 1):
        for step in range(1, 2 if n == 1 else attrs["max_skip_count"] + 2):
            for start in range(len(row) - (n - 1) * step):
                yield tuple(row[start : start + (n - 1) * step + 1 : step])


@op("StringNormalizer")
class StringNormalizer:
    """The strings of x but for stop words, in lower or upper case; an empty one if none is left."""

    signature = "x: object -> y"
    attributes = {
        "case_change_action": "NONE",
        "is_case_sensitive": 0,
        "stopwords": None,
        "locale": None,
    }

    def infer(node: Node) -> list[Type]:
        shape, action = dims(node), node.attrs["case_change_action"]
        if action not in ("NONE", "LOWER", "UPPER"):
            raise ModelError(f"{where_is(node)} case_change_action is {action!r}")
        return [Type(dtypes.STRING, (*shape[:-1], fresh(node, 0, len(shape))[-1]))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        seen = str if node.attrs["is_case_sensitive"] else str.lower
        stops = {seen(word) for word in node.attrs["stopwords"] or ()}
        change = {"LOWER": str.lower, "UPPER": str.upper}.get(node.attrs["case_change_action"], str)
        words = [change(word) for word in map(str, x.ravel()) if seen(word) not in stops]
        return np.array(words or [""], object).reshape(*x.shape[:-1], -1)


@op("StringSplit")
class StringSplit:
    """The parts of each string, filled up with empty ones, and how many there are.

    Without a delimiter white space is one, however much of it there is, and none at the ends.
    """

    signature = "x: object -> y, counts"
    attributes = {"delimiter": None, "maxsplit": None}

    def infer(node: Node) -> list[Type]:
        most = fresh(node, 0, len(dims(node)) + 1)[-1]
        return [Type(dtypes.STRING, (*dims(node), most)), Type(dtypes.INT64, dims(node))]

    def reference(node: Node, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        delimiter, most = node.attrs["delimiter"] or None, node.attrs["maxsplit"]
        texts = [text if delimiter else text.strip() for text in map(str, x.ravel())]
        parts = [text.split(delimiter, -1 if most is None else most) for text in texts]
        counts = np.array([len(each) for each in parts], np.int64)
        y = np.full((len(parts), counts.max(initial=0)), "", object)
        for row, each in zip(y, parts):
            row[: len(each)] = each
        return y.reshape(*x.shape, y.shape[1]), counts.reshape(x.shape)
