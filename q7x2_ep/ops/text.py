"""Text: n-grams, stop words and parts of strings, on the host."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.ir.core import Node, Type, Value
from q7x2_ep.ops import op
from q7x2_ep.ops.common import dims, fresh, reference_of, where_is

if TYPE_CHECKING:
    from q7x2_ep.ops.fused import Standard


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


def _grams_of(pool: Sequence, starts: Sequence[int]) -> Iterator[Any]:
    """The n-grams of a pool, in which the short ones come first: a tuple, but of one part that."""
    ends = [*starts[1:], len(pool)]
    for n, (start, end) in enumerate(zip(starts, ends), 1):
        parts = (pool[start + i : end : n] for i in range(n))
        yield from zip(*parts) if n > 1 else pool[start:end]


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

    def prepared(node: Node) -> Callable[[np.ndarray], np.ndarray]:
        attrs = node.attrs
        indexes, weights = attrs["indexes"], attrs["weights"]
        count = max(attrs["places"].values(), default=-1) + 1
        numbers, other, longer = _levels(attrs["places"], count)
        most = 1 if attrs["counts_once"] else None
        width, one = int(indexes.max(initial=-1)) + 1, np.float32(1)
        least, steps = attrs["min_gram_length"], range(1, attrs["max_skip_count"] + 2)
        longer = longer[: attrs["max_gram_length"] - 1]

        def places_in(parts: np.ndarray) -> Iterator[np.ndarray]:
            """Of all n-grams in each row, -1 where the pool has none."""
            if least <= 1:
                yield np.where(parts < count, parts, -1)
            for step in steps if longer else ():
                found = parts
                for n, level in enumerate(longer, 2):
                    next_ones = parts[:, (n - 1) * step :]
                    found = level.find(found[:, : next_ones.shape[1]] * level.base + next_ones)
                    if least <= n:
                        yield level.places[found]

        def vectors(x: np.ndarray) -> np.ndarray:
            y = np.zeros((*x.shape[:-1], width), np.float32)
            if not x.size:
                return y
            parts = map(numbers.get, x.ravel().tolist(), repeat(other))
            grid = _integers(parts).reshape(-1, x.shape[-1])
            places = np.concatenate([grid[:, :0], *places_in(grid)], 1)
            row, column = np.nonzero(places >= 0)
            place = places[row, column]
            times = one
            if weights is not None or most:
                pairs, counts = np.unique(row * count + place, return_counts=True)
                row, place = np.divmod(pairs, count)
                times = np.minimum(counts, most or counts).astype(np.float32)
                times = times if weights is None else times * weights[place]
            np.add.at(y.reshape(-1), row * width + indexes[place], times)
            return y

        return vectors

    reference = reference_of(prepared)

    def standard(node: Node) -> Optional[Standard]:
        attrs = node.attrs
        pool, counts, at = [], [], []
        for n in range(1, attrs["max_gram_length"] + 1):
            counts.append(len(pool))
            for gram, place in attrs["places"].items():
                parts = gram if isinstance(gram, tuple) else (gram,)
                if len(parts) == n:
                    pool += parts
                    at.append(place)
        indexes, weights = attrs["indexes"][at], attrs["weights"]
        if indexes.max(initial=-1) < attrs["indexes"].max(initial=-1):
            return None  # of a gram that is there twice, or too long
        given = {
            "mode": "IDF" if attrs["counts_once"] else "TF" if weights is None else "TFIDF",
            "pool_strings" if node.inputs[0].dtype == dtypes.STRING else "pool_int64s": pool,
            "ngram_counts": counts,
            "ngram_indexes": indexes.tolist(),
            **({} if weights is None else {"weights": weights[at].tolist()}),
        }
        same = ("min_gram_length", "max_gram_length", "max_skip_count")
        return "TfIdfVectorizer", node.inputs, {**given, **{name: attrs[name] for name in same}}


class _Level(NamedTuple):
    """What n-grams of a pool begin with, of one length. Its number is the place of its code, and
    that is the number of what it is without its last part, times base, and that part's. places: by
    number, of those that are n-grams of the pool, -1 of others and at the end.
    """

    codes: np.ndarray
    places: np.ndarray
    base: int

    def find(self, codes: np.ndarray) -> np.ndarray:
        """The numbers of these codes, -1 where nothing has one."""
        at = np.searchsorted(self.codes, codes)
        return np.where(self.codes[at] == codes, at, -1)


def _levels(pool: Mapping[Any, int], count: int) -> tuple[Mapping[Any, int], int, list[_Level]]:
    """Of a pool whose places, below count, are given: the numbers of all parts, which of n-grams
    are their places; that of any other part; and the longer ones.
    """
    longer = [gram for gram in pool if isinstance(gram, tuple)]
    within = [part for part in dict.fromkeys(chain.from_iterable(longer)) if part not in pool]
    numbers = {**pool, **dict(zip(within, range(count, count + len(within))))} if within else pool
    other, last = count + len(within), np.iinfo(np.int64).max  # nothing's: a search ends at a code
    flat = _integers(map(numbers.get, chain.from_iterable(longer)))
    lengths, place = _integers(map(len, longer)), _integers(map(pool.get, longer))
    first = np.cumsum(lengths) - lengths
    number, levels = flat[first], []
    for k in range(1, lengths.max(initial=1)):
        is_left = lengths > k
        first, lengths, place, number = (x[is_left] for x in (first, lengths, place, number))
        codes, number = np.unique(number * (other + 1) + flat[first + k], return_inverse=True)
        ends, places = lengths == k + 1, np.full(len(codes) + 1, -1)
        places[number[ends]] = place[ends]
        levels.append(_Level(np.append(codes, last), places, other + 1))
    return numbers, other, levels


def _integers(numbers: Iterable[Any]) -> np.ndarray:
    return np.array([*numbers], np.int64)


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


@op("RegexFullMatch")
class RegexFullMatch:
    """Which strings a regular expression of RE2 matches as a whole."""

    signature = "x: object -> y"
    attributes = {"pattern": None}

    def infer(node: Node) -> list[Type]:
        compiled(node, node.attrs["pattern"])  # refuses what it cannot be
        return [Type(dtypes.BOOL, dims(node))]

    def reference(node: Node, x: np.ndarray) -> np.ndarray:
        matches = compiled(node, node.attrs["pattern"]).fullmatch
        found = [matches(text) is not None for text in map(str, x.ravel().tolist())]
        return np.array(found, bool).reshape(x.shape)


CLASSES = {  # of RE2, all of ASCII; there is no \v in \s
    **{"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r ", "digit": "0-9", "word": "0-9A-Za-z_"},
    **{"alnum": "0-9A-Za-z", "alpha": "A-Za-z", "lower": "a-z", "upper": "A-Z"},
    **{"xdigit": "0-9A-Fa-f", "space": r"\t-\r ", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f"},
    **{"ascii": r"\x00-\x7f", "graph": "!-~", "print": " -~", "punct": r"!-/:-@\[-`{-~"},
}
WORD = f"[{CLASSES['w']}]"
PLACES = {  # what matches nothing, but at some places
    "A": r"\A",
    "z": r"\Z",
    "b": f"(?-i:(?<={WORD})(?!{WORD})|(?<!{WORD})(?={WORD}))",
    "B": f"(?-i:(?<={WORD})(?={WORD})|(?<!{WORD})(?!{WORD}))",
}
TOKEN = re.compile(
    r"""\\Q(?P<quoted>.*?)(?:\\E|\Z)
    | \\x(?:\{(?P<wide>[0-9A-Fa-f]+)\}|(?P<hex>[0-9A-Fa-f]{2}))
    | \\(?P<octal>0[0-7]{0,2}|[1-7][0-7]{1,2})
    | \\(?P<escaped>.|\Z)
    | \(\?(?:P?<\w+>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<ends>[:)]))
    | (?P<odd>\(\?)
    | (?P<repeat>(?:[*+?]|\{(?P<least>\d+)(?:,(?P<most>\d*))?\})\??)
      (?P<again>[*+?]|\{\d+(?:,\d*)?\})?
    | (?P<other>\[\^?\]?|.)
    """,
    re.DOTALL | re.VERBOSE,
)
MEMBER = re.compile(r"\[:(?P<inverse>\^?)(?P<name>\w+):\]|" + TOKEN.pattern, TOKEN.flags)


def compiled(node: Node, pattern: Optional[str]) -> re.Pattern[str]:
    """What matches a pattern of RE2 as Python's re can, but that (?i)i matches Turkish ones too.

    Raises: ModelError for what RE2 does not have, UnsupportedOp for what re has not.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # a set that re is to read otherwise
            return re.compile(_of_re(pattern or ""))
    except NotImplementedError as error:
        raise UnsupportedOp(f"{where_is(node)} has the pattern {pattern!r}: {error}") from error
    except (re.error, FutureWarning, ValueError, OverflowError) as error:
        raise ModelError(
            f"{where_is(node)} Invalid regex pattern: {pattern!r}: expected one of RE2: {error}"
        ) from error


@cache
def _of_re(pattern: str) -> str:
    """A pattern of RE2 as re writes it, for matches of a whole text: what a group is called, and
    which match is preferred, does not matter. Flags that are set within a group hold until its end.

    Raises: ValueError for what RE2 does not have, NotImplementedError for what re has not.
    """
    parts: list[str] = []
    groups: list[tuple[list[str], bool]] = [([], False)]  # flags set in each; whether $ ends lines
    at, in_set = 0, False
    while at < len(pattern):
        found = (MEMBER if in_set else TOKEN).match(pattern, at)
        at, token = found.end(), found.groupdict()
        opened, of_lines = groups[-1]
        code = token["wide"] or token["hex"]
        if token.get("name"):
            parts.append(_members(token["name"], bool(token["inverse"])))
        elif token["quoted"] is not None:
            parts.append(re.escape(token["quoted"]))
        elif code or token["octal"]:
            parts.append(re.escape(chr(int(code, 16) if code else int(token["octal"], 8))))
        elif token["escaped"] is not None:
            parts.append(_escaped(token["escaped"], in_set))
        elif in_set:
            in_set = found[0] != "]"
            at = found.start() + 1
            parts.append("\\" * (found[0][0] in "[&~|") + found[0][0])
        elif token["odd"] or token["again"]:
            raise ValueError(f"it has no {pattern[found.start() : at + 2]!r}")
        elif token["repeat"]:
            if max(int(token["least"] or 0), int(token["most"] or 0)) > 1000:
                raise ValueError(f"repeats {found[0]}")
            parts.append(found[0])
        elif token["ends"]:
            text = "(?" + token["flags"].replace("U", "").rstrip("-") + ":"
            on, _, off = token["flags"].partition("-")
            of_lines = (of_lines or "m" in on) and "m" not in off
            parts.append(text)
            if token["ends"] == ":":
                groups.append(([], of_lines))
            else:
                groups[-1] = [*opened, text], of_lines
        elif found[0][0] == "(":
            groups.append(([], of_lines))
            parts.append("(")
        elif found[0] == ")":
            if len(groups) == 1:
                raise ValueError("unexpected )")
            parts.append(")" * (len(groups.pop()[0]) + 1))
        elif found[0] == "|":
            parts.append(")" * len(opened) + "|" + "".join(opened))
        elif found[0][0] == "[":
            in_set = True
            parts.append(found[0].replace("]", r"\]"))
        else:
            parts.append({"$": "$" if of_lines else r"\Z", "{": r"\{"}.get(found[0], found[0]))
    return "".join(parts) + ")" * len(groups[0][0])


def _escaped(letter: str, in_set: bool) -> str:
    """What a backslash before a letter stands for."""
    if letter.lower() in ("d", "w", "s"):
        members = _members(letter.lower(), letter.isupper())
        return members if in_set else f"[{members}]"
    if letter in PLACES and not in_set:
        return PLACES[letter]
    if letter in ("p", "P", "C"):
        raise NotImplementedError(f"Python's re has no \\{letter}")
    is_mark = letter != "" and letter.isascii() and (letter == "_" or not letter.isalnum())
    if letter not in tuple("afnrtv") and not is_mark:
        raise ValueError(f"it has no \\{letter}")
    return re.escape(letter) if is_mark else "\\" + letter


def _members(name: str, inverse: bool) -> str:
    """What a class holds, or all else, to be put in a set."""
    if name not in CLASSES:
        raise ValueError(f"it has no [:{name}:]")
    members = CLASSES[name]
    if not inverse:
        return members
    has = re.compile(f"[{members}]").match
    return "".join(f"\\x{i:02x}" for i in range(128) if not has(chr(i))) + "\\x80-\\U0010ffff"
