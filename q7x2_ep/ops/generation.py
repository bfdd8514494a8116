"""Sequences from decoders that are graphs: how these are run, and what chooses the next tokens.

B: elements of a batch; K: beams of each; R = B * K rows, of which K in a row belong to one element;
V: tokens of the vocabulary. Of the first run of a decoder there are B rows: beams begin alike.

Source: the operator schemas of onnxruntime 1.32; where they leave a choice, its kernels for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from q7x2_ep import dtypes
from q7x2_ep.errors import ModelError, ShapeError, UnsupportedOp
from q7x2_ep.ir.core import Graph, Node, Type, where_is
from q7x2_ep.ops.control import Run, local_name

LOWEST = np.finfo(np.float32).min  # the score of a token that must not come next
CANNOT_BE = np.float32(-1e9)  # of beams that would repeat the first one of their element
SETS = 64  # elements of one, of which the largest is looked for first
LATEST_START = 50  # of times, in steps of 0.02 s
SHARED = "past_sequence_length"  # an input of decoders whose caches have room for all tokens
HIDDEN = "encoder_hidden_states"


class Timestamps(NamedTuple):
    """Tokens of a vocabulary that says when words are spoken: from `first` on they are times.

    hidden: tokens that never come next; tasks: those that come before the first time only.
    """

    first: int
    eos: int
    hidden: Sequence[int]
    tasks: Sequence[int]

    def change(self, scores: np.ndarray, sequences: np.ndarray) -> None:
        """In place: times come in pairs and do not decrease, the first one is an early one, and one
        comes where times together are more likely than any word.
        """
        first, length, size = self.first, sequences.shape[1], scores.shape[1]
        for row, words in zip(scores, sequences):
            is_time = words >= first
            begin = int(is_time.argmax()) + 1 if is_time.any() else length
            never = (*self.hidden, *(self.tasks if length > begin else ()))
            row[[token for token in never if 0 <= token < size]] = LOWEST
            in_pair = length <= begin or is_time[-2]
            if is_time[-1] and in_pair:
                row[first:] = LOWEST
            elif is_time[-1]:
                row[: self.eos] = LOWEST
            if is_time.any():
                last = words[is_time][-1]
                row[first : last + (in_pair or not is_time[-1])] = LOWEST
            if length == begin:
                row[first + LATEST_START + 1 :] = LOWEST
            times = row[first:]
            best = times.max()
            total = best + np.log(np.exp(times[times > LOWEST] - best).sum())
            if total > row[:first].max():
                row[:first] = LOWEST


class Search(NamedTuple):
    """What a node and its feeds ask for."""

    max_length: int
    eos: int
    pad: int
    min_length: int = 0
    beams: int = 1
    returned: int = 1  # sequences of each element of the batch
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    early_stopping: bool = False
    vocab_size: int = -1  # tokens that may be chosen; -1: as many as there are logits
    vocab_mask: Optional[np.ndarray] = None  # (V); 0: never
    prefix_vocab_mask: Optional[np.ndarray] = None  # (B, V); 0: not as the first one
    temperature: float = 1.0
    penalties: Optional[np.ndarray] = None  # (B, V)
    timestamps: Optional[Timestamps] = None


# Decoders: `start` gives the logits of what follows the prompt, `go_on` those of what follows
# `tokens` (R), each of which continues the row of `parents` (R) that it was chosen for.


def formals(node: Node, body: Graph) -> dict[str, Type]:
    """The inputs of a graph of a node by their names, and the types that the model declares."""
    own = body.inputs[: len(body.inputs) - node.attrs["captures"]]
    return dict(zip(map(local_name, own), body.metadata["formals"]))


def require_names(node: Node, key: str, given: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises: ModelError where inputs or outputs of a graph have other names."""
    if [*given] != [*wanted]:
        raise ModelError(
            f"{where_is(node)} expected {', '.join(wanted)} of the graph {key}, given "
            f"{', '.join(given)}"
        )


def _heads_and_size(node: Node, name: str, type: Type, ndim: int) -> tuple[int, int]:
    """Dims -3 and -1 of a cache, which the model has to declare: the first one is empty."""
    shape = type.shape or ()
    heads, size = (shape[-3], shape[-1]) if len(shape) == ndim else (None, None)
    if not isinstance(heads, int) or not isinstance(size, int):
        raise ModelError(
            f"{where_is(node)} expected {name} with {ndim} dims, of which heads and head size are "
            f"numbers, given {type.shape}"
        )
    return heads, size


def _rows(caches: list, rows: np.ndarray, axis: int) -> list:
    """These rows of caches, which are not copied where they are in place."""
    if np.array_equal(rows, np.arange(caches[0].shape[axis])):
        return caches
    return [np.take(cache, rows, axis) for cache in caches]


class DecoderOnly:
    """A graph (input_ids, position_ids, attention_mask, past_0, ..) -> (logits, present_0, ..) with
    caches (2, rows, heads, tokens, head size), as GPT-2 has them.

    Another one may be for the first run. Positions count what is not padding, which is masked where
    no mask is given.
    """

    def __init__(
        self,
        node: Node,
        run: Run,
        captures: list,
        ids: np.ndarray,
        mask: Optional[np.ndarray],
        prompt: np.ndarray,
        search: Search,
    ):
        self._decoder, self._run, self._captures = node.attrs["decoder"], run, captures
        self._first = node.attrs["init_decoder"] or self._decoder
        self._search, self._ids = search, ids
        is_word = ids != search.pad
        counted = np.cumsum(is_word, 1, dtype=np.int32)
        self._positions = np.where(is_word, counted - 1, 0).astype(np.int32)
        self._next = np.repeat(counted[:, -1:], search.beams, 0)  # positions, (R, 1)
        self._mask = np.ones((len(ids), search.max_length), np.int32)
        self._mask[:, : ids.shape[1]] = is_word if mask is None else mask
        self._length = ids.shape[1]
        types = formals(node, self._decoder)
        heads, size = _heads_and_size(node, "past_0", types["past_0"], 5)
        self._is_shared = SHARED in types
        room = search.max_length if self._is_shared else 0
        dtype = dtypes.DTYPES[types["past_0"].dtype].numpy
        past = np.zeros((2, len(ids), heads, room, size), dtype)
        self._caches = [past] * sum(name.startswith("past_") for name in types if name != SHARED)

    @staticmethod
    def check(node: Node) -> None:
        """Raises: ModelError or UnsupportedOp for graphs of another form."""
        decoder, first = node.attrs["decoder"], node.attrs["init_decoder"]
        if decoder is None:
            raise ModelError(f"{where_is(node)} has no graph decoder")
        types, layers = formals(node, decoder), len(decoder.output_names) - 1
        pasts = [f"past_{i}" for i in range(max(layers, 1))]
        fixed = ["input_ids", "position_ids", "attention_mask", *pasts]
        presents = [past.replace("past", "present") for past in pasts]
        require_names(node, "decoder", [*types][: len(fixed)], fixed)
        require_names(node, "decoder", decoder.output_names, ["logits", *presents])
        _refuse_others(node, "decoder", [*types][len(fixed) :])
        _heads_and_size(node, "past_0", types["past_0"], 5)
        if first is not None:
            require_names(node, "init_decoder", [*formals(node, first)], [*types])
            require_names(node, "init_decoder", first.output_names, decoder.output_names)

    def start(self) -> np.ndarray:
        return self._step(self._first, self._ids, self._positions, 0)

    def go_on(self, tokens: np.ndarray, parents: np.ndarray, _: np.ndarray) -> np.ndarray:
        rows = parents
        if len(self._mask) < len(tokens):  # behind the first run
            rows = parents // self._search.beams
            self._mask = np.repeat(self._mask, self._search.beams, 0)
        self._caches = _rows(self._caches, rows, 1)
        self._length += 1
        logits = self._step(self._decoder, tokens[:, None], self._next, self._length - 1)
        self._next = self._next + 1
        return logits

    def _step(self, body: Graph, ids: np.ndarray, positions: np.ndarray, past: int) -> np.ndarray:
        shared = [np.array([past], np.int32)] if self._is_shared else []
        mask = self._mask[:, : self._length]
        feeds = [ids, positions, mask, *self._caches, *shared, *self._captures]
        self._caches = []  # so that their memory is free for those to come
        logits, *self._caches = self._run(body, feeds)
        return logits


def _refuse_others(node: Node, key: str, names: Sequence[str]) -> None:
    """Raises: UnsupportedOp for inputs that only caches which beams share have."""
    others = [name for name in names if name != SHARED]
    if others:
        raise UnsupportedOp(
            f"{where_is(node)} the graph {key} takes {', '.join(others)}, which is not supported"
        )


class EncoderDecoder:
    """Graphs encoder (encoder_input_ids, encoder_attention_mask) -> (present_key_cross_0,
    present_value_cross_0, ..) and decoder (input_ids, encoder_attention_mask, past_key_self_0,
    past_value_self_0, .., past_key_cross_0, ..) -> (logits, present_key_self_0, ..), as T5 has
    them, with caches (rows, heads, tokens, head size).

    In an older form the encoder also takes decoder_input_ids and runs the decoder once: before the
    cross caches it gives logits, encoder_hidden_states and the caches of self attention.
    """

    mask_names: Sequence[str] = ("encoder_attention_mask",)

    def __init__(
        self,
        node: Node,
        run: Run,
        captures: list,
        ids: np.ndarray,
        mask: Optional[np.ndarray],
        prompt: np.ndarray,
        search: Search,
    ):
        self._run, self._captures, self._search = run, captures, search
        self._encoder, self._decoder = node.attrs["encoder"], node.attrs["decoder"]
        self._ids, self._prompt = ids, prompt
        self._starts = "logits" in self._encoder.output_names
        self._masks = self._masks_of(ids, mask)
        types = formals(node, self._decoder)
        self._is_shared, self._takes_hidden = SHARED in types, HIDDEN in types
        shape = types["input_ids"].shape
        self._takes_all = shape is not None and len(shape) == 2 and shape[1] != 1
        self._hidden: list = []
        self._own: list = []
        self._cross: list = []

    def _masks_of(self, ids: np.ndarray, mask: Optional[np.ndarray]) -> list:
        if mask is None:  # a last token may be the end of the text, and the same as padding
            mask = np.logical_or.accumulate(ids != self._search.pad, 1).astype(np.int32)
        return [mask]

    @classmethod
    def check(cls, node: Node) -> None:
        """Raises: ModelError or UnsupportedOp for graphs of another form."""
        for key in ("encoder", "decoder"):
            if node.attrs[key] is None:
                raise ModelError(f"{where_is(node)} has no graph {key}")
        if node.attrs["decoder_start_token_id"] < 0:
            raise ModelError(f"{where_is(node)} expected decoder_start_token_id from 0 on")
        encoder, decoder = node.attrs["encoder"], node.attrs["decoder"]
        layers = (len(decoder.output_names) - 1) // 2
        own, cross = (
            [f"{kind}_{which}_{i}" for i in range(layers) for kind in ("key", "value")]
            for which in ("self", "cross")
        )
        given = [*formals(node, encoder)]
        fixed = ["encoder_input_ids", *cls.mask_names]
        presents = [f"present_{name}" for name in cross]
        if len(given) > len(fixed):
            fixed.append("decoder_input_ids")
            presents = ["logits", HIDDEN, *(f"present_{name}" for name in own), *presents]
        require_names(node, "encoder", given, fixed)
        require_names(node, "encoder", encoder.output_names, presents)
        given = [*formals(node, decoder)]
        hidden = [HIDDEN] if HIDDEN in encoder.output_names and HIDDEN in given else []
        fixed = ["input_ids", *cls.mask_names, *hidden, *(f"past_{name}" for name in own + cross)]
        require_names(node, "decoder", given[: len(fixed)], fixed)
        presents = ["logits", *(f"present_{name}" for name in own)]
        require_names(node, "decoder", decoder.output_names, presents)
        _refuse_others(node, "decoder", given[len(fixed) :])

    def start(self) -> np.ndarray:
        given = [self._ids, *self._masks]
        if self._starts:
            results = self._run(self._encoder, [*given, self._prompt, *self._captures])
            logits, hidden, *caches = results
            count = len(self._decoder.output_names) - 1
            self._hidden = [hidden] if self._takes_hidden else []
            self._own, self._cross = [*map(self._with_room, caches[:count])], caches[count:]
            return logits
        self._cross = self._run(self._encoder, [*given, *self._captures])
        self._own = [self._with_room(cache[:, :, :0]) for cache in self._cross]
        return self._step(self._prompt, 0)

    def _with_room(self, cache: np.ndarray) -> np.ndarray:
        """A cache for all tokens, if that is what the decoder takes."""
        if not self._is_shared:
            return cache
        rows, heads, tokens, size = cache.shape
        whole = np.zeros((rows, heads, self._search.max_length, size), cache.dtype)
        whole[:, :, :tokens] = cache
        return whole

    def go_on(self, tokens: np.ndarray, parents: np.ndarray, sequences: np.ndarray) -> np.ndarray:
        rows, beams = parents, self._search.beams
        if len(self._cross[0]) < len(tokens):  # behind the first run
            rows = parents // beams
            self._masks, self._hidden, self._cross = (
                [np.repeat(array, beams, 0) for array in arrays]
                for arrays in (self._masks, self._hidden, self._cross)
            )
        self._own = _rows(self._own, rows, 0)
        past = sequences.shape[1] - 1
        return self._step(sequences if self._takes_all else tokens[:, None], past)

    def _step(self, ids: np.ndarray, past: int) -> np.ndarray:
        shared = [np.array([past], np.int32)] if self._is_shared else []
        caches = [*self._hidden, *self._own, *self._cross]
        feeds = [ids, *self._masks, *caches, *shared, *self._captures]
        self._own = []  # so that their memory is free for those to come
        logits, *self._own = self._run(self._decoder, feeds)
        return logits


class SpeechDecoder(EncoderDecoder):
    """The older form of it without masks, behind an encoder of features, as Whisper has them."""

    mask_names = ()

    def _masks_of(self, ids: np.ndarray, mask: Optional[np.ndarray]) -> list:
        return []

    @classmethod
    def check(cls, node: Node) -> None:
        super().check(node)
        wanted = ["encoder_input_ids", "decoder_input_ids"]
        require_names(node, "encoder", [*formals(node, node.attrs["encoder"])], wanted)


# Scores


class Scores:
    """The scores of all tokens to come next, by row, as the options of a search change them."""

    def __init__(self, node: Node, search: Search):
        self._node, self._search, self._step = node, search, 0

    def last(self, logits: np.ndarray) -> np.ndarray:
        """The logits of the last position, (rows, V), as floats that may be changed.

        Raises: ShapeError for masks that are not of the vocabulary.
        """
        search, where = self._search, where_is(self._node)
        if logits.ndim != 3:
            raise ModelError(
                f"{where} expected logits of 3 dims (batch, sequence, vocabulary), given shape "
                f"{logits.shape}"
            )
        size = search.vocab_size if search.vocab_size > 0 else logits.shape[2]
        if size > logits.shape[2]:
            raise ModelError(f"{where} vocab_size is {size}, of {logits.shape[2]} logits")
        if self._step == 0:
            self._check_masks(len(logits), size)
        return logits[:, -1, :size].astype(np.float32)

    def _check_masks(self, batch: int, size: int) -> None:
        wanted = {"vocab_mask": (size,), "prefix_vocab_mask": (batch, size)}
        for name, shape in {**wanted, "penalties": (batch, size)}.items():
            given = getattr(self._search, name)
            if given is not None and given.shape != shape:
                name = "presence_mask" if name == "penalties" else name
                raise ShapeError(
                    f"{where_is(self._node)} expected shape {shape} for {name}, given {given.shape}"
                )

    def change(self, scores: np.ndarray, sequences: np.ndarray) -> None:
        """In place: what the rows, `sequences` (rows, tokens), and masks say of them."""
        search, length = self._search, sequences.shape[1]
        self._step += 1
        if search.repetition_penalty != 1:
            penalty = np.float32(search.repetition_penalty)
            seen = np.take_along_axis(scores, sequences, 1)
            seen = np.where(seen < 0, seen * penalty, seen / penalty)
            np.put_along_axis(scores, sequences, seen, 1)
        n = search.no_repeat_ngram_size
        if 0 < n <= length:
            grams = np.lib.stride_tricks.sliding_window_view(sequences, n, 1)  # (rows, places, n)
            end = sequences[:, None, length - n + 1 :]
            rows, places = np.nonzero((grams[..., :-1] == end).all(-1))
            scores[rows, grams[rows, places, -1]] = LOWEST
        if search.vocab_mask is not None:
            scores[:, search.vocab_mask == 0] = LOWEST
        if search.prefix_vocab_mask is not None and self._step == 1:
            scores[np.repeat(search.prefix_vocab_mask == 0, search.beams, 0)] = LOWEST
        if length < search.min_length:
            scores[:, search.eos] = LOWEST
        if search.temperature not in (0, 1):
            scores /= np.float32(search.temperature)
        if search.penalties is not None:
            scores -= search.penalties
        if search.timestamps is not None:
            search.timestamps.change(scores, sequences)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    y = x - x.max(-1, keepdims=True)
    return y - np.log(np.exp(y).sum(-1, keepdims=True))


# Greedy search, and sampling


def one_by_one(
    decoder: Any,
    prompt: np.ndarray,
    search: Search,
    scores: Scores,
    choose: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Sequences (B, max_length), of which each continues its row of the prompt with what `choose`
    makes of scores (B, V), up to the end token; padding is in its place, and behind it.
    """
    batch, length = prompt.shape
    sequences = np.full((batch, search.max_length), search.pad, np.int32)
    sequences[:, :length] = prompt
    rows, is_done = np.arange(batch), np.zeros(batch, bool)
    logits = decoder.start()
    while True:
        last = scores.last(logits)
        scores.change(last, sequences[:, :length])
        tokens = choose(last).astype(np.int32)
        is_done |= tokens == search.eos
        tokens[is_done] = search.pad
        sequences[:, length] = tokens
        length += 1
        if length == search.max_length or is_done.all():
            return sequences
        logits = decoder.go_on(tokens, rows, sequences[:, :length])


class Nucleus(NamedTuple):
    """Which tokens a sample is drawn of: those of which the likely ones before have less than
    top_p. is_custom: counted from the most likely one, else from the least, of which
    min_tokens_to_keep at the other end stay.
    """

    top_p: float
    filter_value: float
    min_tokens_to_keep: int
    is_custom: bool

    def keep(self, scores: np.ndarray) -> None:
        """In place: the score of what cannot be drawn is filter_value."""
        order = np.argsort(-scores if self.is_custom else scores, 1, kind="stable")
        chances = np.exp(_log_softmax(np.take_along_axis(scores, order, 1)))
        summed = np.cumsum(chances, 1, dtype=np.float32)
        drop = np.zeros(scores.shape, bool)
        if self.is_custom:
            drop[:, 1:] = summed[:, :-1] > np.float32(self.top_p)
        else:
            count = max(scores.shape[1] - self.min_tokens_to_keep, 1)
            drop[:, :count] = summed[:, :count] <= np.float32(1) - np.float32(self.top_p)
        kept = np.take_along_axis(scores, order, 1)
        kept[drop] = self.filter_value
        np.put_along_axis(scores, order, kept, 1)


# Beam search


class Hypotheses:
    """The best sequences of one element of a batch that have ended, best first."""

    def __init__(self, search: Search):
        self._most, self._penalty = search.beams, np.float32(search.length_penalty)
        self.ended: list[tuple[np.float32, np.ndarray]] = []
        self.is_done = False

    def score(self, total: np.float32, length: int) -> np.float32:
        return total / np.float32(length) ** self._penalty

    @property
    def is_full(self) -> bool:
        return len(self.ended) == self._most

    def add(self, tokens: np.ndarray, total: np.float32) -> None:
        """One more, or nothing where as many as there are beams are at least as good."""
        score = self.score(total, len(tokens))
        at = sum(score <= other for other, _ in self.ended)
        if at < self._most:
            self.ended.insert(at, (score, tokens.copy()))
            del self.ended[self._most :]


class Found(NamedTuple):
    """sequences (B, returned, max_length), padded; sequences_scores (B, returned);
    scores (steps, B, K, V), 0 where the search ended before.
    """

    sequences: np.ndarray
    sequences_scores: np.ndarray
    scores: Optional[np.ndarray]


class Beams:
    """One search. keeps: the scores of all steps. first_chances (B, V): of the first tokens."""

    first_chances: np.ndarray

    def __init__(self, decoder: Any, prompt: np.ndarray, search: Search, scores: Scores):
        self._decoder, self._search, self._scores = decoder, search, scores
        self._batch, self._first = prompt.shape
        rows = self._batch * search.beams
        self._sequences = np.full((rows, search.max_length), search.pad, np.int32)
        self._sequences[:, : self._first] = np.repeat(prompt, search.beams, 0)
        self._totals = np.full((self._batch, search.beams), CANNOT_BE)
        self._totals[:, 0] = 0
        self._found = [Hypotheses(search) for _ in range(self._batch)]

    def run(self, keeps: bool) -> Found:
        search, length = self._search, self._first
        kept = []
        logits = self._decoder.start()
        while True:
            scores = self._next(logits, length)
            if keeps:
                kept.append(scores)
            tokens, parents = self._choose(scores, length)
            if search.beams > 1:
                self._sequences[:, :length] = self._sequences[parents, :length]
            self._sequences[:, length] = tokens
            length += 1
            if length == search.max_length or all(each.is_done for each in self._found):
                break
            logits = self._decoder.go_on(tokens, parents, self._sequences[:, :length])
        rest = search.max_length - self._first - len(kept)
        all_scores = np.stack(kept + [np.zeros_like(scores)] * rest) if keeps else None
        return Found(*self._best(length), all_scores)

    def _next(self, logits: np.ndarray, length: int) -> np.ndarray:
        """What the beams would score with each token, (B, K, V)."""
        rows = len(self._sequences)
        last = _log_softmax(self._scores.last(logits))
        if length == self._first:
            self.first_chances = np.exp(last)
        if len(last) < rows:
            last = np.repeat(last, self._search.beams, 0)
        self._scores.change(last, self._sequences[:, :length])
        return last.reshape(*self._totals.shape, -1) + self._totals[..., None]

    def _choose(self, scores: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The token of each row of the next step, and the row that it continues."""
        search, size = self._search, scores.shape[-1]
        beams = search.beams
        flat = scores.reshape(self._batch, -1)
        best = np.array([_largest(row, 2 * beams) for row in flat])  # (B, 2K)
        totals = np.take_along_axis(flat, best, 1)
        rows = best // size + np.arange(0, len(self._sequences), beams)[:, None]
        tokens = np.full((self._batch, beams), search.pad, np.int32)
        parents = np.arange(len(self._sequences)).reshape(self._batch, beams)
        words = best % size
        for i, (found, ordered) in enumerate(zip(self._found, words.tolist())):
            if found.is_done:
                self._totals[i] = 0
                continue
            going: list[int] = []  # places among the best
            for j, word in enumerate(ordered):
                if word != search.eos:
                    going.append(j)
                elif j < beams:
                    found.add(self._sequences[rows[i, j], :length], totals[i, j])
                if len(going) == beams:
                    break
            self._totals[i], tokens[i] = totals[i, going], words[i, going]
            parents[i] = rows[i, going]
            found.is_done = found.is_full and (
                search.early_stopping or not self._can_improve(found, totals, i, length)
            )
        return tokens.ravel(), parents.ravel()

    def _can_improve(self, found: Hypotheses, totals: np.ndarray, i: int, length: int) -> bool:
        # As onnxruntime, which looks at those from place i * K on, not i * 2K, of all elements.
        beams = self._search.beams
        best = totals.ravel()[i * beams : (i + 2) * beams].max()
        return bool(found.ended[-1][0] < found.score(best, length))

    def _best(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        search = self._search
        sequences = np.full((self._batch, search.returned, search.max_length), search.pad, np.int32)
        scores = np.zeros((self._batch, search.returned), np.float32)
        for i, found in enumerate(self._found):
            for beam in range(0 if found.is_done else search.beams):
                row = self._sequences[i * search.beams + beam, :length]
                found.add(row, self._totals[i, beam])
            for j, (score, tokens) in enumerate(found.ended[: search.returned]):
                scores[i, j], sequences[i, j, : len(tokens)] = score, tokens
        return sequences, scores


def _largest(x: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest elements of a vector, largest first, of equals the first first."""
    maxima, parts = x, len(x) // SETS
    if parts >= count:  # so many sets have an element that is no smaller than the last of these
        maxima = x[: parts * SETS].reshape(SETS, parts).max(0)
    least = np.partition(maxima, -count)[-count]
    places = np.flatnonzero(x >= least)
    return places[np.argsort(-x[places], kind="stable")][:count]
