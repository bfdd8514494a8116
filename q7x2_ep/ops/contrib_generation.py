"""Text generation in the domain com.microsoft, on the host, with decoders that are graphs.

Shapes: B: batch, S: tokens of the prompt, V: tokens of the vocabulary. Logits may be of any float
dtype; they are compared, and their logarithms summed, in float32.

Source: the operator schemas of onnxruntime 1.32; where they leave a choice, its kernels for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import DataError, ModelError, ShapeError, UnsupportedOp
from q7x2_ep.ir.core import UNKNOWN, Node, Type, where_is
from q7x2_ep.ops import find, op
from q7x2_ep.ops.common import fresh, known
from q7x2_ep.ops.control import Run, actuals
from q7x2_ep.ops.generation import (
    Beams,
    DecoderOnly,
    EncoderDecoder,
    Nucleus,
    Scores,
    Search,
    SpeechDecoder,
    Timestamps,
    one_by_one,
)
from q7x2_ep.ops.random_numbers import drawn
from q7x2_ep.ops.signature import parse

LONGEST = 4096  # tokens of a sequence
MOST_BEAMS = 128
TOKEN_DIMS = ("batch", "sequence")
DECODERS: dict[int, Any] = {0: DecoderOnly, 1: EncoderDecoder, 2: SpeechDecoder}  # by model_type
GRAPHS = {"decoder": None, "encoder": None, "init_decoder": None, "captures": 0}
TOKENS = {
    "eos_token_id": None,
    "pad_token_id": None,
    "decoder_start_token_id": -1,
    "vocab_size": -1,
    "no_repeat_ngram_size": 0,
}


class _Feeds:
    """The operands of a node by name.

    Raises: DataError and ShapeError for those that do not fit.
    """

    def __init__(self, node: Node, inputs: Sequence[Any]):
        given, self.captures = actuals(node, inputs)
        names = [formal.name for formal in parse(find(node.op).signature).inputs]
        self._node, self._given = node, dict(zip(names, given))

    def array(self, name: str) -> Optional[np.ndarray]:
        return self._given.get(name)

    def number(self, name: str, default: Any, low: float, high: float = np.inf) -> Any:
        """The one number of an operand, of the type of its default."""
        array = self.array(name)
        if array is None:
            return default
        if array.size != 1:
            raise ShapeError(
                f"{where_is(self._node)} expected one number as {name}, given shape {array.shape}"
            )
        number = type(default)(array.item())
        if not low <= number <= high:
            raise DataError(
                f"{where_is(self._node)} expected {name} from {low} to {high}, given {number}"
            )
        return number

    def of_dims(self, name: str, *dims: str) -> np.ndarray:
        """An operand of as many dims, which these words say."""
        array = self._given[name]
        if array.ndim != len(dims):
            raise ShapeError(
                f"{where_is(self._node)} expected {name} of {len(dims)} dims ({', '.join(dims)}), "
                f"given shape {array.shape}"
            )
        return array

    def prompt(self) -> tuple[np.ndarray, Optional[np.ndarray]]:
        """input_ids (B, S), and attention_mask of the same shape, if any."""
        ids, mask = self.of_dims("input_ids", *TOKEN_DIMS), self.array("attention_mask")
        if mask is not None and mask.shape != ids.shape:
            raise ShapeError(
                f"{where_is(self._node)} expected shape {ids.shape} for attention_mask, as "
                f"input_ids has, given {mask.shape}"
            )
        return ids, mask

    def search(self, length: int, **more: Any) -> Search:
        """What they ask for, behind a prompt of so many tokens."""
        attrs = self._node.attrs
        smallest = np.finfo(np.float32).tiny
        return Search(
            max_length=self.number("max_length", LONGEST, length + 1, LONGEST),
            min_length=self.number("min_length", 0, -np.inf),
            eos=attrs["eos_token_id"],
            pad=attrs["pad_token_id"],
            repetition_penalty=self.number("repetition_penalty", 1.0, smallest),
            no_repeat_ngram_size=attrs["no_repeat_ngram_size"],
            vocab_size=attrs["vocab_size"],
            vocab_mask=self.array("vocab_mask"),
            prefix_vocab_mask=self.array("prefix_vocab_mask"),
            **more,
        )


def _check(node: Node) -> None:
    """Raises: ModelError for a node without an end or padding token, or with other graphs."""
    is_speech = node.attrs["model_type"] == 2
    taken = (dtypes.FLOAT, dtypes.FLOAT16) if is_speech else (dtypes.INT32,)
    ids = node.inputs[0].dtype
    if ids not in (dtypes.UNKNOWN, *taken):
        wanted = " or ".join(map(dtypes.type_string, taken))
        given = dtypes.type_string(ids)
        raise ModelError(f"{where_is(node)} expected input_ids of {wanted}, given {given}")
    for key in ("eos_token_id", "pad_token_id"):
        if node.attrs[key] is None:
            raise ModelError(f"{where_is(node)} Required attribute '{key}' is missing")
    DECODERS[node.attrs["model_type"]].check(node)


def _sizes(node: Node, *places: int) -> list[Any]:
    """The batch, and the numbers in operands, where they are known."""
    ids = node.inputs[0]
    found: list[Any] = [ids.shape[0] if ids.shape else None]
    for i in places:
        elements = known(node.input(i))
        found.append(elements[0] if elements and isinstance(elements[0], int) else None)
    return found


def _shaped(node: Node, i: int, dtype: int, *sizes: Any) -> Type:
    """The type of output i, of which a run tells the sizes that are None."""
    own = fresh(node, i, len(sizes))
    return Type(dtype, tuple(new if size is None else size for size, new in zip(sizes, own)))


def _one_by_one(node: Node, run: Run, feeds: _Feeds, choose: Any, **more: Any) -> np.ndarray:
    ids, mask = feeds.prompt()
    search = feeds.search(ids.shape[1], **more)
    decoder = DecoderOnly(node, run, feeds.captures, ids, mask, ids, search)
    return one_by_one(decoder, ids, search, Scores(node, search), choose)


@op("com.microsoft::GreedySearch")
class GreedySearch:
    """sequences (B, max_length): input_ids, and then the most likely token each time, up to
    eos_token_id, in whose place, and behind it, is pad_token_id.

    Shapes: input_ids, attention_mask (B, S); vocab_mask (V); prefix_vocab_mask (B, V); others are
    one number.
    """

    signature = (
        "input_ids: int32, max_length: int32, min_length?: int32, repetition_penalty?: float32, "
        "vocab_mask?: int32, prefix_vocab_mask?: int32, attention_mask?: int32, captures* -> "
        "sequences"
    )
    attributes = {**TOKENS, "model_type": 0, **GRAPHS}
    choices = {"model_type": (0,)}
    named_graphs = True

    def infer(node: Node) -> list[Type]:
        _check(node)
        return [_shaped(node, 0, dtypes.INT32, *_sizes(node, 1))]

    def control(node: Node, run: Run, *inputs: Any) -> list:
        choose = lambda scores: scores.argmax(1)
        return [_one_by_one(node, run, _Feeds(node, inputs), choose)]


@op("com.microsoft::Sampling")
class Sampling:
    """As GreedySearch, by tokens that are drawn of the likely ones: those that top_p leaves, by the
    softmax of their logits / temperature. filtered_logits (B, V) are those of the last step.

    Numbers are drawn by numpy's generator: the same ones for a seed (0 by default), of the same
    distribution as onnxruntime's, but not its numbers.
    Shapes: presence_mask (B, V), whose tokens lose presence_penalty; others as of GreedySearch.
    """

    signature = (
        "input_ids: int32, max_length: int32, min_length?: int32, repetition_penalty?: float32, "
        "vocab_mask?: int32, prefix_vocab_mask?: int32, attention_mask?: int32, "
        "presence_mask?: int32, seed?: int32, captures* -> sequences, filtered_logits?"
    )
    attributes = {
        **TOKENS,
        "model_type": 0,
        "custom": 0,
        "filter_value": -1e20,
        "min_tokens_to_keep": 0,
        "presence_penalty": 0.0,
        "temperature": 1.0,
        "top_p": 0.0,
        **GRAPHS,
    }
    choices = {"model_type": (0,)}
    named_graphs = True

    def infer(node: Node) -> list[Type]:
        _check(node)
        batch, max_length = _sizes(node, 1)
        sequences = _shaped(node, 0, dtypes.INT32, batch, max_length)
        more = node.outputs[1:]
        return [sequences, *(_shaped(node, 1, dtypes.FLOAT, batch, None) for _ in more)]

    def control(node: Node, run: Run, *inputs: Any) -> list:
        feeds, attrs = _Feeds(node, inputs), node.attrs
        random = np.random.default_rng(feeds.number("seed", 0, 0))
        keep = (attrs[key] for key in ("top_p", "filter_value", "min_tokens_to_keep", "custom"))
        nucleus = Nucleus(*keep)
        last = []

        def choose(scores: np.ndarray) -> np.ndarray:
            nucleus.keep(scores)
            last[:] = [scores]
            return drawn(random, scores, 1)[:, 0]

        present = feeds.array("presence_mask")
        penalties = None if present is None else present * np.float32(attrs["presence_penalty"])
        more = {"temperature": attrs["temperature"], "penalties": penalties}
        return [_one_by_one(node, run, feeds, choose, **more), *last]


@op("com.microsoft::BeamSearch")
class BeamSearch:
    """The num_return_sequences best of what num_beams beams of each element of the batch come to:
    sequences (B, num_return_sequences, max_length), padded; sequences_scores, the sums of their
    log probabilities / length^length_penalty; scores (max_length - S, B, num_beams, V), what each
    beam would have with each token, 0 for steps behind the last one.

    model_type 0: a decoder that continues input_ids; 1: one behind an encoder of input_ids, from
    decoder_start_token_id on (S is 1). logits_processor and decoder_input_ids say nothing of these.
    Shapes: as of GreedySearch.
    """

    signature = (
        "input_ids: N, max_length: int32, min_length?: int32, num_beams: int32, "
        "num_return_sequences: int32, length_penalty?: F, repetition_penalty?: F, "
        "vocab_mask?: int32, prefix_vocab_mask?: int32, attention_mask?: int32, "
        "decoder_input_ids?: int32, logits_processor?: int32, captures* -> "
        "sequences, sequences_scores?, scores?"
    )
    attributes = {**TOKENS, "early_stopping": 0, "model_type": 0, **GRAPHS}
    choices = {"model_type": (0, 1)}
    named_graphs = True

    def infer(node: Node) -> list[Type]:
        _check(node)
        return _found_types(node)

    def control(node: Node, run: Run, *inputs: Any) -> list:
        feeds = _Feeds(node, inputs)
        ids, mask = feeds.prompt()
        is_prompt = node.attrs["model_type"] == 0
        prompt = ids if is_prompt else _start(node, len(ids))
        return _beams(node, run, feeds, ids, mask, prompt)[0]


@op("com.microsoft::WhisperBeamSearch")
class WhisperBeamSearch:
    """As BeamSearch, behind an encoder of features, input_ids (B, features, frames), from
    decoder_input_ids (B, S) on, or from decoder_start_token_id. With logits_processor 1 tokens from
    beginning_timestamp_token_id on are times, see Timestamps. non_speech_probs (B): of
    no_speech_token_id, as the first of all tokens. Beams may be scored by a temperature.

    cross_qk, and with it cross_qk_layer_head and extra_decoding_ids, is not supported.
    """

    signature = (
        "input_ids: N, max_length: int32, min_length?: int32, num_beams: int32, "
        "num_return_sequences: int32, length_penalty?: F, repetition_penalty?: F, "
        "vocab_mask?: int32, prefix_vocab_mask?: int32, attention_mask?: int32, "
        "decoder_input_ids?: int32, logits_processor?: int32, cross_qk_layer_head?: int32, "
        "extra_decoding_ids?: int32, temperature?: F, captures* -> "
        "sequences, sequences_scores?, scores?, cross_qk?, non_speech_probs?"
    )
    attributes = {
        **TOKENS,
        "beginning_timestamp_token_id": -1,
        "decoder_output_cross_qk": 0,
        "early_stopping": 0,
        "model_type": 2,
        "no_speech_token_id": -1,
        "no_timestamps_token_id": -1,
        "start_of_lm_token_id": -1,
        "transcribe_token_id": -1,
        "translate_token_id": -1,
        **GRAPHS,
    }
    choices = {"model_type": (2,)}
    named_graphs = True

    def infer(node: Node) -> list[Type]:
        _check(node)
        if node.attrs["decoder_output_cross_qk"]:
            raise UnsupportedOp(f"{where_is(node)} the output cross_qk is not supported")
        batch, dtype = _sizes(node)[0], _score_dtype(node)
        more = [UNKNOWN, _shaped(node, 4, dtype, batch)] if len(node.outputs) > 4 else [UNKNOWN]
        return [*_found_types(node), *more][: len(node.outputs)]

    def control(node: Node, run: Run, *inputs: Any) -> list:
        feeds, attrs = _Feeds(node, inputs), node.attrs
        ids = feeds.of_dims("input_ids", "batch", "features", "frames")
        prompt = _start(node, len(ids))
        if feeds.array("decoder_input_ids") is not None:
            prompt = feeds.of_dims("decoder_input_ids", *TOKEN_DIMS)
            if len(prompt) != len(ids):
                raise ShapeError(
                    f"{where_is(node)} expected {len(ids)} rows of decoder_input_ids, as input_ids "
                    f"has, given {len(prompt)}"
                )
        timestamps = None
        if feeds.number("logits_processor", 0, 0) == 1:
            timestamps = _timestamps(node)
        temperature = feeds.number("temperature", 1.0, -np.inf)
        more = {"timestamps": timestamps, "temperature": temperature}
        results, chances = _beams(node, run, feeds, ids, None, prompt, **more)
        if len(node.outputs) < 5:
            return [*results, None]
        token = attrs["no_speech_token_id"]
        if not 0 <= token < chances.shape[1]:
            raise ModelError(
                f"{where_is(node)} expected no_speech_token_id from 0 to {chances.shape[1] - 1}, "
                f"given {token}"
            )
        return [*results, None, chances[:, token]]


def _timestamps(node: Node) -> Timestamps:
    attrs = node.attrs
    first = attrs["beginning_timestamp_token_id"]
    if first <= 0:
        raise ModelError(
            f"{where_is(node)} expected beginning_timestamp_token_id from 1 on, given {first}"
        )
    hidden = (attrs["no_timestamps_token_id"], attrs["start_of_lm_token_id"])
    tasks = ("decoder_start_token_id", "translate_token_id", "transcribe_token_id")
    return Timestamps(first, attrs["eos_token_id"], hidden, [attrs[key] for key in tasks])


def _start(node: Node, batch: int) -> np.ndarray:
    return np.full((batch, 1), node.attrs["decoder_start_token_id"], np.int32)


def _score_dtype(node: Node) -> int:
    """That of length_penalty, if it is given."""
    penalty = node.input(5)
    return dtypes.FLOAT if penalty is None else penalty.dtype


def _found_types(node: Node) -> list[Type]:
    batch, max_length, beams, returned = _sizes(node, 1, 3, 4)
    dtype = _score_dtype(node)
    shapes = [
        (dtypes.INT32, batch, returned, max_length),
        (dtype, batch, returned),
        (dtype, None, batch, beams, None),
    ]
    return [_shaped(node, i, *shape) for i, shape in enumerate(shapes[: len(node.outputs)])]


def _beams(
    node: Node,
    run: Run,
    feeds: _Feeds,
    ids: np.ndarray,
    mask: Optional[np.ndarray],
    prompt: np.ndarray,
    **more: Any,
) -> tuple[list, np.ndarray]:
    """The outputs of a search, and the chances of the first tokens, (B, V)."""
    beams = feeds.number("num_beams", 1, 1, MOST_BEAMS)
    search = feeds.search(
        prompt.shape[1],
        beams=beams,
        returned=feeds.number("num_return_sequences", 1, 1, beams),
        length_penalty=feeds.number("length_penalty", 1.0, -np.inf),
        early_stopping=node.attrs["early_stopping"] == 1,
        **more,
    )
    decoder = DECODERS[node.attrs["model_type"]]
    going = decoder(node, run, feeds.captures, ids, mask, prompt, search)
    found = Beams(going, prompt, search, Scores(node, search))
    return [*found.run(len(node.outputs) > 2)], found.first_chances
