"""Ops on strings and n-grams: what the standard says, which onnx's evaluator does not always."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import q7x2_ep
from q7x2_ep.errors import ModelError, UnsupportedOp
from q7x2_ep.session import Session
from tests.models.beside import optimised


def run(op: str, *inputs: np.ndarray, outputs: int = 1, fixed: bool = False, **attrs: Any) -> list:
    """The outputs of one node. fixed: its inputs are constants."""
    model, given = one_node(op, inputs, outputs, fixed, attrs)
    return Session(model).run(given)


def one_node(
    op: str, inputs: Sequence[np.ndarray], outputs: int, fixed: bool, attrs: dict
) -> tuple[bytes, dict[str, np.ndarray]]:
    names, results = (
        [f"{kind}{i}" for i in range(n)] for kind, n in (("x", len(inputs)), ("y", outputs))
    )
    given = dict(zip(names, inputs))
    types = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in given.items()}
    infos = [helper.make_tensor_value_info(n, types[n], [None] * x.ndim) for n, x in given.items()]
    node = helper.make_node(op, names, results, **attrs)
    empty = [helper.make_empty_tensor_value_info(name) for name in results]
    constants = [numpy_helper.from_array(x, name) for name, x in given.items()] if fixed else []
    graph = helper.make_graph([node], op, [] if fixed else infos, empty, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model.SerializeToString(), {} if fixed else given


def words(*values: Any) -> np.ndarray:
    return np.array(values, object)


POOL = {
    "pool_int64s": [5, 7, 5, 6, 7, 7],  # 5, 7; 5 6, 7 7
    "ngram_counts": [0, 2],
    "ngram_indexes": [3, 0, 1, 2],
    "min_gram_length": 1,
    "max_gram_length": 2,
}


@pytest.mark.parametrize("skips, grams", [(0, (2, 3, 1, 1)), (1, (2, 3, 1, 2)), (5, (2, 3, 1, 3))])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 3.0, 4.0)])
def test_grams(skips: int, grams: tuple, mode: str, weights: Any) -> None:
    """Weights are in the order of the pool, not in that of the result."""
    rows = np.array([[5, 6, 7, 7, 5, 7], [1] * 6])
    more = {} if weights is None else {"weights": weights}
    counts = np.minimum(grams, 1) if mode == "IDF" else np.array(grams)
    wanted = np.zeros((2, 4), np.float32)
    wanted[0, POOL["ngram_indexes"]] = counts * (1 if mode == "TF" or not weights else weights)
    for x, y in ((rows, wanted), (rows[0].astype(np.int32), wanted[0])):
        (found,) = run("TfIdfVectorizer", x, mode=mode, max_skip_count=skips, **POOL, **more)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, y)


def test_grams_of_strings() -> None:
    pool = {**POOL, "pool_strings": [*"ababbb"]}
    del pool["pool_int64s"]
    (y,) = run("TfIdfVectorizer", words(*"abb"), mode="TF", max_skip_count=0, **pool)
    assert y.tolist() == [2, 1, 1, 1]


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("kind", ["strings", "int64s"])
def test_grams_are_written_as_onnx(kind: str, mode: str) -> None:
    pool = {**POOL, "mode": mode, "max_skip_count": 1, "weights": [0.5, 2.0, 3.0, 4.0]}
    x = np.array([[5, 6, 7, 7, 5, 7], [1] * 6])
    if kind == "strings":
        x, pool["pool_strings"] = x.astype(str).astype(object), list(map(str, POOL["pool_int64s"]))
        del pool["pool_int64s"]
    model, feed = one_node("TfIdfVectorizer", [x], 1, False, pool)
    written = optimised(model)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, feed)
    for engine in (q7x2_ep, onnxruntime):
        np.testing.assert_array_equal(engine.InferenceSession(written).run(None, feed)[0], wanted)


@pytest.mark.parametrize(
    "attrs, parts",
    [
        ({}, [[], ["a"], ["a", "b"]]),
        ({"maxsplit": 1}, [[], ["a"], ["a", "b"]]),
        ({"delimiter": " "}, [[""], ["a"], ["", "a", "", "b", ""]]),
        ({"delimiter": " ", "maxsplit": 2}, [[""], ["a"], ["", "a", " b "]]),
    ],
)
def test_parts(attrs: dict, parts: list) -> None:
    texts = ("", "a", " a  b ")
    width = max(map(len, parts))
    whole = [[*each, *[""] * (width - len(each))] for each in parts]
    y, counts = run("StringSplit", words(*texts), outputs=2, **attrs)
    assert (y.tolist(), counts.tolist()) == (whole, [len(each) for each in parts])
    for text, each in zip(texts, parts):
        y, counts = run("StringSplit", np.array(text, object), outputs=2, **attrs)
        assert y.dtype == object and (y.tolist(), counts.shape, counts) == (each, (), len(each))
    y, counts = run("StringSplit", np.empty((2, 0), object), outputs=2, **attrs)
    assert (y.shape, counts.shape) == ((2, 0, 0), (2, 0))


@pytest.mark.parametrize(
    "attrs, wanted",
    [
        ({}, ["É", "", "The", "a"]),
        ({"stopwords": ["the"]}, ["É", "", "a"]),
        ({"stopwords": ["the", "a"], "is_case_sensitive": 1}, ["É", "", "The"]),
        ({"stopwords": ["é"], "case_change_action": "UPPER"}, ["", "THE", "A"]),
        ({"stopwords": ["é", "THE", "", "a"]}, [""]),
    ],
)
def test_stop_words(attrs: dict, wanted: list) -> None:
    x = words("É", "", "The", "a")
    assert run("StringNormalizer", x, **attrs)[0].tolist() == wanted
    assert run("StringNormalizer", x[None], **attrs)[0].tolist() == [wanted]
    with pytest.raises(ModelError, match="case_change_action"):
        run("StringNormalizer", x, case_change_action="Lower")


@pytest.mark.parametrize("fixed", [False, True])
def test_strings_are_objects_however_numpy_made_them(fixed: bool) -> None:
    """Without dims, and where numpy chooses among them."""
    a, b = np.array("a", object), np.array("bc", object)
    values = words("off", "on")
    for op, inputs in (
        ("StringConcat", [a, b]),
        ("OneHot", [np.array([1, 0]), np.array(2), values]),
        ("Where", [np.array(True), a, b]),
    ):
        (y,) = run(op, *inputs, fixed=fixed)
        assert y.dtype == object and isinstance(y.ravel()[0], str)


@pytest.mark.parametrize("sorted_", [0, 1])
def test_distinct_rows_of_strings(sorted_: int) -> None:
    x = words(["b", "a"], ["a", "b"], ["b", "a"])
    y, first, inverse, counts = run("Unique", x, outputs=4, axis=0, sorted=sorted_)
    order = [1, 0] if sorted_ else [0, 1]
    assert y.dtype == object and y.tolist() == x[order].tolist()
    assert first.tolist() == order
    assert inverse.tolist() == ([1, 0, 1] if sorted_ else [0, 1, 0])
    assert counts.tolist() == ([1, 2] if sorted_ else [2, 1])


@pytest.mark.parametrize("dtype", ["int4", "uint4", "bfloat16", "float8_e5m2"])
def test_numbers_of_few_bits_as_strings(dtype: str) -> None:
    x = np.array([1, 2]).astype(pytest.importorskip("ml_dtypes").__dict__[dtype])
    (y,) = run("Cast", x, to=TensorProto.STRING)
    assert [float(each) for each in y] == [1, 2]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bool", "int8", "uint64"])
@pytest.mark.parametrize("fixed", [False, True])
def test_numbers_as_onnxruntime_writes_them(dtype: str, fixed: bool) -> None:
    """Those of all sizes, down to the smallest, and those that are none."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 256, 8000, np.uint8)
    x = bits.view(dtype) if dtype != "bool" else bits > 99
    if np.dtype(dtype).kind == "f":
        special = [0.0, -0.0, 1, 0.5, 1e-45, 1e7, 1e8, 12345678.9, 65504, np.nan, np.inf, -np.inf]
        with np.errstate(over="ignore", invalid="ignore"):
            near = random.standard_normal(999) * 10.0 ** random.integers(-9, 12, 999)
            x = np.concatenate([special, x, near]).astype(dtype)
    x = x[: x.size // 3 * 3].reshape(-1, 3)
    (y,) = run("Cast", x, fixed=fixed, to=TensorProto.STRING)
    assert y.dtype == object and y.tolist() == theirs("Cast", x, to=TensorProto.STRING).tolist()


def theirs(op: str, x: np.ndarray, **attrs: Any) -> np.ndarray:
    """What onnxruntime makes of one input."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    info = helper.make_tensor_value_info("x", kind, [None] * x.ndim)
    node = helper.make_node(op, ["x"], ["y"], **attrs)
    graph = helper.make_graph([node], op, [info], [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


TEXTS = words(
    *("1", "a", "A", "é", "É", "٣", "_", " ", "\xa0", "\n", "\x0b", "\x1c", "\t", "ab", "ab\n"),
    *("ba", "k", "K", "\u212a", "\u017f", "S", "\u03c3", "ς", "ß", "ẞ", "µ", "aa", "aB", "aC", "c"),
    *("", "-", "]", "a-", "[:alpha:]", "a.b", "a+b", "é b", "a b", "{", "a{,2}", "aab", "abab"),
)
SAME = [
    *("[[:digit:]]+", r"\w+", r"\d+", r"\s", r"\S", r"\W+", r"\D", r"[\w-]+", r"[^\w]+", r"[\W\d]"),
    *("[[:^alpha:]]", "[^[:alpha:]]+", "[[:word:]-]+", "[[:space:]]", "[[:punct:]]+", "[:alpha:]"),
    *("[]a]+", "[^]a]", "[a&&b]", "[[a]]+", r"[\d\-x]", r"[a\]]+", "(?i)k", "(?i)s", "(?i)\u03c3"),
    *(
        "(?i)ß",
        "(?i)é",
        "(?i)µ",
        "a(?i)b",
        "(a(?i)b|c)",
        "a(?i)b|c",
        "(?i:A)a",
        "(?i-s:k)",
        "(?s).",
    ),
    *(".", r"(?m)ab$\n", r"ab$\n", r"ab\z", "ab$", r"\Aab", "^ab", "(?P<n>a)b", "(?<n>a)b"),
    *("(?P<1>a)b", "(?U)a+", r"\Qa.b\E", r"\Qa.b", r"a\.b", r"a\+b", r"\x{e9}", r"\xe9", r"\101"),
    *(r"[\x{41}-\x{5a}]", r"\-", r"\_", r"\[", "a|", "a{1,2}b?", "(?:ab){2}", "a{,2}", "{"),
    *(r"\bab\b", r"a\Bb", r"\w+\b.\w+", "[[:^digit:]_]+", "é"),
]
REFUSED = [
    *("a(?=b)b", "a(?!x)b", "(?<=a)b", "(?<!a)b", r"(a)\1", "(a)?(?(1)b|c)", "(?P<n>a)(?P=n)"),
    *(
        "(?>a)b",
        r"ab\Z",
        "a++",
        "a**",
        "a???",
        "a{2}{3}",
        "a{1001}",
        r"\u00e9",
        r"\é",
        r"\y",
        r"\8",
    ),
    *(r"[\b]", "(?#c)a", "(?x)a", r"(?a)\w", "(?L)a", r"(?u)\w", "(?R)", "*a", "[[:foo:]]", "[a"),
    *("(a", "a)", "[z-a]", r"[a-\d]", r"\N{COLON}"),
]


@pytest.mark.parametrize("pattern", SAME)
def test_patterns(pattern: str) -> None:
    """Those of RE2, which onnxruntime takes, and re reads otherwise."""
    (found,) = run("RegexFullMatch", TEXTS, pattern=pattern)
    wanted = theirs("RegexFullMatch", TEXTS, pattern=pattern)
    assert found.dtype == bool and TEXTS[found].tolist() == TEXTS[wanted].tolist()


@pytest.mark.parametrize("pattern", [*REFUSED, "a\\"])
def test_patterns_that_are_none(pattern: str) -> None:
    """When the session is made, as by onnxruntime."""
    with pytest.raises(Fail):
        theirs("RegexFullMatch", TEXTS, pattern=pattern)
    with pytest.raises(ModelError) as caught:
        run("RegexFullMatch", TEXTS, pattern=pattern)
    assert repr(pattern) in str(caught.value) and not isinstance(caught.value, UnsupportedOp)


@pytest.mark.parametrize("pattern", [r"\pL", r"\p{Greek}+", r"[\P{L}]", r"a\C"])
def test_patterns_that_re_cannot_tell(pattern: str) -> None:
    with pytest.raises(UnsupportedOp, match="has the pattern"):
        run("RegexFullMatch", TEXTS, pattern=pattern)
