"""Searches for tokens beside onnxruntime, with small decoders of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

import q7x2_ep
from q7x2_ep.errors import DataError, ModelError, Q7Error, ShapeError, UnsupportedOp
from q7x2_ep.session import Session
from tests.models.beside import optimised, theirs
from tests.models.decoders import FLOAT, INT32, gpt, t5

PAD = 0
FLOATS = ("length_penalty", "repetition_penalty", "temperature")
BEFORE = {  # operands, up to those that all have
    "BeamSearch": "min_length num_beams num_return_sequences length_penalty repetition_penalty",
    "GreedySearch": "min_length repetition_penalty",
    "Sampling": "min_length repetition_penalty",
}
BEFORE["WhisperBeamSearch"] = BEFORE["BeamSearch"]
BEHIND = {
    "BeamSearch": "decoder_input_ids logits_processor",
    "GreedySearch": "",
    "Sampling": "presence_mask seed",
    "WhisperBeamSearch": "decoder_input_ids logits_processor cross_qk_layer_head "
    "extra_decoding_ids temperature",
}
MASKS = "vocab_mask prefix_vocab_mask attention_mask"
OUTPUTS = {
    "BeamSearch": {"sequences": INT32, "sequences_scores": FLOAT, "scores": FLOAT},
    "GreedySearch": {"sequences": INT32},
    "Sampling": {"sequences": INT32, "filtered_logits": FLOAT},
}
OUTPUTS["WhisperBeamSearch"] = {
    **OUTPUTS["BeamSearch"],
    "cross_qk": FLOAT,
    "non_speech_probs": FLOAT,
}
Feeds = dict[str, np.ndarray]


def fed(ids: Any, max_length: int, **more: Any) -> Feeds:
    """Feeds; numbers are vectors of one element, and what is None is left out."""
    given = {"input_ids": ids, "max_length": [max_length], **more}
    return {
        name: np.atleast_1d(np.asarray(x, np.float32 if name in FLOATS else np.int32))
        for name, x in given.items()
        if x is not None
    }


def searched(ids: Any, max_length: int, **more: Any) -> Feeds:
    """Feeds of BeamSearch; onnxruntime insists on these."""
    beams = {"min_length": 0, "num_beams": 3, "num_return_sequences": 2, "length_penalty": 1.0}
    return fed(ids, max_length, **{**beams, **more})


def model(
    op: str, feeds: Feeds, outputs: int = 1, around: Optional[GraphProto] = None, **attrs: Any
) -> bytes:
    """A model of one node that takes these feeds; around: nodes and constants in front of it."""
    order = f"input_ids max_length {BEFORE[op]} {MASKS} {BEHIND[op]}".split()
    names = [name if name in feeds else "" for name in order]
    while not names[-1]:
        names.pop()
    results = [*OUTPUTS[op].items()][:outputs]
    attrs = {"eos_token_id": 1, "pad_token_id": PAD, **attrs}
    node = helper.make_node(op, names, [r[0] for r in results], domain="com.microsoft", **attrs)
    infos = []
    for name, x in feeds.items():
        shape = [f"{name}_{i}" if size > 1 else size for i, size in enumerate(x.shape)]
        dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
        infos.append(helper.make_tensor_value_info(name, dtype, shape))
    nodes, constants = ([*around.node], [*around.initializer]) if around else ([], [])
    typed = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in results]
    graph = helper.make_graph([*nodes, node], op, infos, typed, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


class Draw:
    """What a case is made of."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.vocab = self.among(6, 12, 30, 300)
        self.batch, self.length = self.size(1, 4), self.size(1, 6)

    def among(self, *options: Any) -> Any:
        return options[self.random.integers(len(options))]

    def size(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high))

    def maybe(self, x: Any) -> Any:
        return x if self.random.random() < 0.3 else None

    def mask(self, *shape: int) -> np.ndarray:
        return (self.random.random(shape) < 0.8).astype(np.int32)

    def prompt(self) -> np.ndarray:
        """Some of them padded on the left."""
        ids = self.random.integers(2, self.vocab, (self.batch, self.length))
        padded = self.random.integers(0, self.length, self.batch) * self.among(0, 1)
        ids[np.arange(self.length) < padded[:, None]] = PAD
        return ids.astype(np.int32)

    def options(self, max_length: int) -> Feeds:
        return {
            "min_length": self.size(0, max_length),
            "repetition_penalty": self.maybe(self.among(1.0, 1.2, 2.0, 0.7)),
            "vocab_mask": self.maybe(self.mask(self.vocab)),
            "prefix_vocab_mask": self.maybe(self.mask(self.batch, self.vocab)),
            "attention_mask": self.maybe(self.mask(self.batch, self.length)),
        }

    def beams(self) -> Feeds:
        beams = self.size(1, 5)
        return {
            "num_beams": beams,
            "num_return_sequences": self.size(1, beams + 1),
            "length_penalty": self.among(1.0, 0.0, 2.0, -1.0, 0.6),
            "logits_processor": self.maybe(1),
        }

    def attributes(self) -> dict[str, Any]:
        sizes = {"no_repeat_ngram_size": self.among(0, 0, 1, 2, 3)}
        return {"eos_token_id": self.size(1, self.vocab), **sizes}


def same_until_end(actual: np.ndarray, expected: np.ndarray, length: int) -> None:
    """Where all rows have ended before max_length, onnxruntime leaves what was in memory."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    has_ended = np.logical_or.accumulate(actual[:, length:] == PAD, 1).all(0)
    end = length + int(has_ended.argmax()) + 1 if has_ended.any() else actual.shape[1]
    np.testing.assert_array_equal(actual[:, :end], expected[:, :end])


def same_beams(session: Session, given: bytes, feeds: Feeds) -> None:
    """Scores of steps beyond the end are 0 here; of elements that have ended before others they
    mean nothing.
    """
    sequences, totals, scores = session.run(feeds)
    wanted, wanted_totals, wanted_scores = theirs(given, feeds)
    np.testing.assert_array_equal(sequences, wanted)
    np.testing.assert_allclose(totals, wanted_totals, 1e-5, 1e-5)
    assert scores.shape == wanted_scores.shape and scores.dtype == np.float32
    steps = int(scores.any((1, 2, 3)).sum())
    if len(sequences) == 1:
        np.testing.assert_allclose(scores[:steps], wanted_scores[:steps], 1e-5, 3e-5)


@pytest.mark.parametrize("seed", range(30))
def test_greedy(seed: int) -> None:
    c = Draw(seed)
    max_length = c.length + c.size(1, 9)
    feeds = fed(c.prompt(), max_length, **c.options(max_length))
    decoder = gpt(c.vocab, seed=seed, scale=c.among(1.0, 4.0))
    given = model("GreedySearch", feeds, decoder=decoder, **c.attributes())
    same_until_end(Session(given).run(feeds)[0], theirs(given, feeds)[0], c.length)


@pytest.mark.parametrize("seed", range(60))
def test_beams(seed: int) -> None:
    c = Draw(seed)
    max_length = c.length + c.size(1, 9)
    feeds = fed(c.prompt(), max_length, **c.options(max_length), **c.beams())
    attrs = {**c.attributes(), "early_stopping": c.size(0, 2)}
    decoder = gpt(c.vocab, seed=seed, scale=c.among(1.0, 4.0))
    given = model("BeamSearch", feeds, 3, decoder=decoder, **attrs)
    same_beams(Session(given), given, feeds)


@pytest.mark.parametrize("seed", range(60))
def test_beams_behind_an_encoder(seed: int) -> None:
    """In the new form, and in the old one, in which the encoder runs the decoder once."""
    c = Draw(seed)
    max_length = c.size(3, 10)
    feeds = fed(c.prompt(), max_length, **c.options(max_length), **c.beams())
    if c.maybe(True):
        feeds["input_ids"][:, -1] = PAD  # the end of a text may be the same token
    attrs = {**c.attributes(), "early_stopping": c.size(0, 2), "model_type": 1}
    attrs["decoder_start_token_id"] = c.size(0, c.vocab)
    starts = c.among(False, True)
    form = {"starts": starts, "takes_hidden": starts and c.among(False, True)}
    form["takes_all"] = c.among(False, False, True)
    graphs = t5(c.vocab, seed=seed, scale=c.among(1.0, 4.0), **form)
    given = model("BeamSearch", feeds, 3, **graphs, **attrs)
    same_beams(Session(given), given, feeds)


def heard(c: Draw) -> tuple[Feeds, dict[str, Any]]:
    """Feeds and attributes of WhisperBeamSearch, whose last tokens are times."""
    max_length = c.length + c.size(2, 12)
    feeds = fed(c.prompt(), max_length, **c.options(max_length), **c.beams())
    prompt = feeds.pop("input_ids")
    feeds.pop("attention_mask", None)
    if c.length > 1 or c.maybe(True):
        feeds["decoder_input_ids"] = prompt
    features = c.random.standard_normal((c.batch, 5, c.size(1, 9))).astype(np.float32)
    if c.maybe(True):
        feeds["temperature"] = np.array([c.among(0.5, 2.0)], np.float32)
    first = c.vocab * 2 // 3
    tokens = c.random.permutation(np.arange(1, first))
    names = ["no_timestamps", "start_of_lm", "translate", "transcribe", "decoder_start", "eos"]
    attrs = {f"{name}_token_id": int(tokens[i % len(tokens)]) for i, name in enumerate(names)}
    attrs = {**attrs, "beginning_timestamp_token_id": first, "early_stopping": c.size(0, 2)}
    return {"input_ids": features, **feeds}, attrs


@pytest.mark.parametrize("seed", range(60))
def test_speech(seed: int) -> None:
    c = Draw(seed)
    feeds, attrs = heard(c)
    feeds["logits_processor"] = np.array([c.size(0, 2)], np.int32)
    form = {"takes_hidden": c.among(False, True), "scale": c.among(1.0, 4.0)}
    graphs = t5(c.vocab, seed=seed, starts=True, features=5, **form)
    given = model("WhisperBeamSearch", feeds, 3, **graphs, **attrs)
    same_beams(Session(given), given, feeds)


def test_chances_of_no_speech() -> None:
    """Which onnxruntime leaves as memory was: the scores of the first step tell them."""
    feeds = {**searched([[0]], 6), "input_ids": np.ones((1, 5, 7), np.float32)}
    graphs, attrs = t5(starts=True, features=5), {"decoder_start_token_id": 2}
    given = model("WhisperBeamSearch", feeds, 5, **graphs, **attrs, no_speech_token_id=4)
    _, _, scores, _, chances = Session(given).run(feeds)
    np.testing.assert_allclose(chances, np.exp(scores[0, :, 0, 4]), 1e-6)
    with pytest.raises(ModelError, match="no_speech_token_id from 0 to 11, given -1"):
        Session(model("WhisperBeamSearch", feeds, 5, **graphs, **attrs)).run(feeds)
    more = {**feeds, "decoder_input_ids": np.ones((2, 1), np.int32)}
    with pytest.raises(ShapeError, match=r"1 rows of decoder_input_ids, .* given 2"):
        Session(model("WhisperBeamSearch", more, **graphs, **attrs)).run(more)
    with pytest.raises(UnsupportedOp, match="cross_qk is not supported"):
        Session(model("WhisperBeamSearch", feeds, **graphs, **attrs, decoder_output_cross_qk=1))


def test_one_token_behind_an_encoder() -> None:
    """For which onnxruntime has no feeds."""
    feeds = searched([[3, 4]], 2)
    attrs = {"model_type": 1, "decoder_start_token_id": 5}
    both = [
        Session(model("BeamSearch", feeds, 2, **t5(starts=starts), **attrs)).run(feeds)
        for starts in (False, True)
    ]
    np.testing.assert_array_equal(both[0][0], both[1][0])
    np.testing.assert_allclose(both[0][1], both[1][1], 1e-5)


@pytest.mark.parametrize("op", ["GreedySearch", "BeamSearch"])
def test_another_graph_for_the_prompt(op: str) -> None:
    ids = [[PAD, 5, 6], [2, 3, 4]]
    feeds = fed(ids, 8) if op == "GreedySearch" else searched(ids, 8)
    graphs = {"decoder": gpt(), "init_decoder": gpt(seed=1)}
    given = model(op, feeds, **graphs, eos_token_id=7)
    (actual,), (wanted,) = Session(given).run(feeds), theirs(given, feeds)
    np.testing.assert_array_equal(actual, wanted)
    (other,) = Session(model(op, feeds, decoder=gpt(), eos_token_id=7)).run(feeds)
    assert not np.array_equal(actual, other)


@pytest.mark.parametrize("beams", [1, 3])
def test_caches_with_room_for_all_tokens(beams: int) -> None:
    """onnxruntime does not take the caches of other beams there: it is held to one beam."""
    feeds = searched([[PAD, 5, 6], [2, 3, 4]], 10, num_beams=beams, num_return_sequences=1)
    given, other = (
        model("BeamSearch", feeds, 2, decoder=gpt(shares=shares), eos_token_id=7)
        for shares in (True, False)
    )
    actual, wanted = Session(given).run(feeds), theirs(given if beams == 1 else other, feeds)
    np.testing.assert_array_equal(actual[0], wanted[0])
    np.testing.assert_allclose(actual[1], wanted[1], 1e-5, 1e-5)


@pytest.mark.parametrize("graphs", ["gpt", "t5"])
def test_half_logits(graphs: str) -> None:
    """Which onnxruntime has for GPUs: held to its float32."""
    feeds = searched([[PAD, 5, 6], [2, 3, 4]], 9)
    results = []
    for dtype in (TensorProto.FLOAT16, FLOAT):
        if graphs == "gpt":
            attrs: dict[str, Any] = {"decoder": gpt(dtype=dtype)}
        else:
            attrs = {**t5(dtype=dtype), "model_type": 1, "decoder_start_token_id": 2}
        given = model("BeamSearch", feeds, 3, **attrs, eos_token_id=5)
        results.append(theirs(given, feeds) if dtype == FLOAT else Session(given).run(feeds))
    half, single = results
    np.testing.assert_array_equal(half[0], single[0])
    np.testing.assert_allclose(half[1], single[1], 1e-2, 1e-2)
    assert [x.dtype for x in half] == [x.dtype for x in single]


def with_weights_around(decoder: GraphProto) -> GraphProto:
    """Moves some weights out of a decoder: constants, and one that nodes around it compute."""
    moved = {x.name: x for x in decoder.initializer if x.name in ("words", "q_0", "head")}
    for weight in moved.values():
        decoder.initializer.remove(weight)
    moved["head"].name = "half_of_head"
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    nodes = [
        helper.make_node("Size", ["input_ids"], ["count"]),
        helper.make_node("Cast", ["count"], ["floats"], to=FLOAT),
        helper.make_node("Div", ["floats", "floats"], ["one"]),
        helper.make_node("Mul", ["half_of_head", "two"], ["whole"]),
        helper.make_node("Mul", ["whole", "one"], ["head"]),
    ]
    return helper.make_graph(nodes, "around", [], [], [*moved.values(), two])


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_weights_around_the_graphs(kind: str) -> None:
    feeds = searched([[PAD, 5, 6], [2, 3, 4]], 9)
    attrs: dict[str, Any] = {"eos_token_id": 5}
    if kind == "gpt":
        attrs["decoder"] = decoder = gpt()
    else:
        attrs.update(t5(), model_type=1, decoder_start_token_id=2)
        decoder = attrs["decoder"]
    around = with_weights_around(decoder)
    given = model("BeamSearch", feeds, 3, around=around, **attrs)
    session = Session(given)
    for _ in range(2):
        same_beams(session, given, feeds)
    written = optimised(given)
    np.testing.assert_array_equal(theirs(written, feeds)[0], session.run(feeds)[0])


def test_graphs_are_compiled_once() -> None:
    feeds = searched([[PAD, 5, 6], [2, 3, 4]], 9)
    session = Session(model("BeamSearch", feeds, decoder=gpt()))
    (runner,) = session.program.runners
    for ids in ([[PAD, 5, 6], [2, 3, 4]], [[3]], [[4, 5]] * 3):
        session.run({**feeds, "input_ids": np.array(ids, np.int32)})
        assert len(runner.bodies) == 1


def test_compiled_and_optimised(tmp_path: Path) -> None:
    feeds = searched([[PAD, 5, 6], [2, 3, 4]], 9)
    given = model("BeamSearch", feeds, 2, decoder=gpt())
    wanted = theirs(given, feeds)
    path = str(tmp_path / "generation.q7")
    q7x2_ep.compile(given, path)
    compiled = q7x2_ep.InferenceSession(path).run(None, feeds)
    for actual in (compiled, theirs(optimised(given), feeds)):
        np.testing.assert_array_equal(actual[0], wanted[0])
        np.testing.assert_allclose(actual[1], wanted[1], 1e-5, 1e-5)


# Sampling


@pytest.mark.parametrize("custom", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_samples_of_one_token(custom: int, seed: int) -> None:
    """With a small top_p it is the most likely one."""
    c = Draw(seed)
    max_length = c.length + c.size(1, 9)
    feeds = fed(c.prompt(), max_length, **c.options(max_length), seed=c.maybe(3))
    attrs = {**c.attributes(), "top_p": 1e-4, "custom": custom, "temperature": c.among(0.5, 1.0)}
    decoder = gpt(c.vocab, seed=seed, scale=4.0)
    given = model("Sampling", feeds, decoder=decoder, min_tokens_to_keep=1, **attrs)
    same_until_end(Session(given).run(feeds)[0], theirs(given, feeds)[0], c.length)


@pytest.mark.parametrize("custom, keep", [(0, 0), (0, 5), (1, 0)])
@pytest.mark.parametrize("top_p", [0.6, 0.95])
def test_distribution_of_samples(custom: int, keep: int, top_p: float) -> None:
    """4000 draws of one distribution: the same tokens as onnxruntime, each about as often."""
    feeds = fed([[2, 3, 4]] * 4000, 4, seed=1)
    attrs = {"top_p": top_p, "temperature": 1.5, "custom": custom, "min_tokens_to_keep": keep}
    given = model("Sampling", feeds, 2, decoder=gpt(seed=4, scale=1.5), eos_token_id=11, **attrs)
    ours, logits = Session(given).run(feeds)
    shares = [np.bincount(x[:, 3], minlength=12) / 4000 for x in (ours, theirs(given, feeds)[0])]
    np.testing.assert_array_equal(shares[0] > 0, shares[1] > 0)
    np.testing.assert_allclose(*shares, atol=0.04)
    can_be = logits[0] > -1e19
    assert not shares[0][~can_be].any() and np.all(logits == logits[0])


def test_seeds() -> None:
    feeds = fed([[2, 3, 4]] * 5, 16, seed=1)
    session = Session(model("Sampling", feeds, decoder=gpt(scale=1.0), top_p=0.9, eos_token_id=11))
    first, again = session.run(feeds)[0], session.run(feeds)[0]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, session.run({**feeds, "seed": np.array([2], np.int32)})[0])


def test_presence_mask() -> None:
    """Tokens that are present lose the penalty; onnxruntime takes all from the first token's."""
    feeds = fed([[2, 3, 4]], 4, presence_mask=np.arange(12)[None] % 2)
    attrs = {"top_p": 1.0, "custom": 1, "decoder": gpt(scale=1.0), "eos_token_id": 11}
    with_penalty, without = (
        Session(model("Sampling", feeds, 2, presence_penalty=p, **attrs)).run(feeds)[1]
        for p in (2.5, 0.0)
    )
    np.testing.assert_allclose(without - with_penalty, 2.5 * feeds["presence_mask"], 1e-5, 1e-5)


# What does not fit


IDS = np.array([[2, 3, 4]], np.int32)
MASK = np.ones((1, 4), np.int32)


@pytest.mark.parametrize(
    "given, error, text",
    [
        ({"input_ids": IDS[0]}, ShapeError, r"expected input_ids of 2 dims .* given shape \(3,\)"),
        ({"max_length": 3}, DataError, "expected max_length from 4 to 4096, given 3"),
        ({"max_length": 5000}, DataError, "expected max_length from 4 to 4096, given 5000"),
        ({"max_length": [[5, 6]]}, ShapeError, "expected one number as max_length, given shape"),
        ({"num_beams": 0}, DataError, "expected num_beams from 1 to 128, given 0"),
        ({"num_return_sequences": 4}, DataError, "num_return_sequences from 1 to 3, given 4"),
        ({"repetition_penalty": 0}, DataError, r"expected repetition_penalty .* given 0\.0"),
        ({"attention_mask": MASK}, ShapeError, r"shape \(1, 3\) for attention_mask.* \(1, 4\)"),
        ({"vocab_mask": MASK[0]}, ShapeError, r"shape \(12,\) for vocab_mask, given \(4,\)"),
        ({"prefix_vocab_mask": MASK}, ShapeError, r"\(1, 12\) for prefix_vocab_mask, given"),
    ],
    ids=str,
)
def test_feeds_that_do_not_fit(given: dict, error: type[Q7Error], text: str) -> None:
    feeds = searched(**{"ids": IDS, "max_length": 8})
    feeds.update({k: np.asarray(x, np.float32 if k in FLOATS else "i4") for k, x in given.items()})
    session = Session(model("BeamSearch", feeds, decoder=gpt()))
    with pytest.raises(error, match=text):
        session.run(feeds)


def renamed(graph: GraphProto, old: str, new: str) -> GraphProto:
    text = graph.SerializeToString()
    assert len(old) == len(new)
    return GraphProto.FromString(text.replace(old.encode(), new.encode()))


@pytest.mark.parametrize(
    "attrs, error, text",
    [
        ({"model_type": 2}, ModelError, r"model_type is 2, not one of \[0, 1\]"),
        ({"pad_token_id": None}, ModelError, "Required attribute 'pad_token_id' is missing"),
        ({"decoder": None}, ModelError, "has no graph decoder"),
        ({"model_type": 1, "decoder_start_token_id": 0}, ModelError, "has no graph encoder"),
        ({"model_type": 1, **t5()}, ModelError, "expected decoder_start_token_id from 0 on"),
        ({"decoder": renamed(gpt(), "past_0", "last_0")}, ModelError, "past_0, .* given .*last_0"),
        (
            {"init_decoder": gpt(layers=1)},
            ModelError,
            "past_1 of the graph init_decoder",
        ),
        (
            {"model_type": 1, "decoder_start_token_id": 2, **t5(takes_hidden=True)},
            ModelError,
            "past_value_cross_1 of the graph decoder, given .*, encoder_hidden_states",
        ),
        ({"decoder": gpt(layers=0)}, ModelError, "expected .* past_0 of the graph decoder"),
    ],
    ids=str,
)
def test_models_that_do_not_fit(attrs: dict, error: type[Q7Error], text: str) -> None:
    feeds = searched(IDS, 8)
    wrong = model("BeamSearch", feeds, **{"decoder": gpt(), **attrs})
    with pytest.raises(error, match=text):
        Session(wrong)


def test_prompt_of_floats() -> None:
    """Which the schema allows, for models of speech."""
    feeds = {**searched(IDS, 8), "input_ids": IDS.astype(np.float32)}
    with pytest.raises(ModelError, match=r"input_ids of tensor\(int32\), given tensor\(float\)"):
        Session(model("BeamSearch", feeds, decoder=gpt()))


def test_caches_that_beams_share() -> None:
    decoder = gpt(shares=True)
    decoder.input.append(helper.make_tensor_value_info("beam_width", INT32, [1]))
    with pytest.raises(UnsupportedOp, match="the graph decoder takes beam_width"):
        Session(model("BeamSearch", searched(IDS, 8), decoder=decoder))
