"""Graphs that generate tokens, of random weights: a decoder with caches as GPT-2 has them, and an
encoder and a decoder as T5 or Whisper have them, with the inputs and outputs that onnxruntime's
tools give them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

HEADS, SIZE = 2, 4
WIDTH = HEADS * SIZE
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
WHOLE = {"ids", "mask", "length"}


class Writer:
    """The nodes and constants of one graph. Weights of one seed and name are the same ones."""

    def __init__(self, seed: int, dtype: int = FLOAT):
        self.seed, self.dtype = seed, dtype
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def __call__(self, op: str, *inputs: str, out: str = "", **attrs: Any) -> str:
        output = out or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attrs))
        return output

    def constant(self, array: Any, name: str) -> str:
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype(helper.tensor_dtype_to_np_dtype(self.dtype))
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str, *shape: int, scale: float = 1.0) -> str:
        random = np.random.default_rng([self.seed, *name.encode()])
        return self.constant(random.standard_normal(shape) * scale, name)

    def graph(self, name: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> GraphProto:
        """inputs, outputs: shapes by name; matrices with a word of WHOLE are of int32."""
        given, made = (
            [
                helper.make_tensor_value_info(
                    key,
                    INT32 if WHOLE & {*key.split("_")} and len(shape) < 3 else self.dtype,
                    shape,
                )
                for key, shape in each.items()
            ]
            for each in (inputs, outputs)
        )
        return helper.make_graph(self.nodes, name, given, made, [*self.constants.values()])

    def linear(self, x: str, name: str, n: int = WIDTH, k: int = WIDTH, scale: float = 1.0) -> str:
        return self("MatMul", x, self.weight(name, k, n, scale=scale * k**-0.5))

    def heads(self, x: str, name: str) -> str:
        """(rows, tokens, width) to (rows, heads, tokens, size)."""
        shape = self.constant([0, 0, HEADS, SIZE], "by_head")
        return self("Transpose", self("Reshape", self.linear(x, name), shape), perm=[0, 2, 1, 3])

    def attended(self, x: str, q: str, k: str, v: str, bias: str, name: str, out: str = "") -> str:
        """x + attention of its queries."""
        scores = self("MatMul", q, self("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self("Mul", scores, self.constant(SIZE**-0.5, "scale"))
        found = self("MatMul", self("Softmax", self("Add", scores, bias), axis=-1), v)
        shape = self.constant([0, 0, WIDTH], "joined")
        found = self("Reshape", self("Transpose", found, perm=[0, 2, 1, 3]), shape)
        return self("Add", x, self.linear(found, name), out=out)

    def perceptron(self, x: str, name: str) -> str:
        hidden = self("Tanh", self.linear(x, f"{name}_up", 2 * WIDTH))
        return self("Add", x, self.linear(hidden, f"{name}_down", WIDTH, 2 * WIDTH))

    def mask_bias(self, mask: str) -> str:
        """Of a mask (rows, keys), for scores (rows, heads, queries, keys)."""
        kept = self("Unsqueeze", mask, self.constant([1, 2], "axes_1_2"))
        hidden = self("Sub", self.constant(1.0, "one"), self("Cast", kept, to=self.dtype))
        return self("Mul", hidden, self.constant(-1e4, "low"))

    def causal_bias(self, q: str, k: str) -> str:
        """That hides keys which come later than the queries, the last of the tokens."""
        queries, keys = (
            self("Squeeze", self("Shape", x, start=2, end=3), self.constant([0], "axis_0"))
            for x in (q, k)
        )
        zero, one = self.constant(0, "int_0"), self.constant(1, "int_1")
        rows = self("Range", self("Sub", keys, queries), keys, one)
        later = self("Less", self("Unsqueeze", rows, self.constant([1], "axis_1")),
                     self("Range", zero, keys, one))  # fmt: skip
        return self("Where", later, self.constant(-1e4, "low"), self.constant(0.0, "none"))


def gpt(
    vocab: int = 12,
    layers: int = 2,
    seed: int = 0,
    dtype: int = FLOAT,
    scale: float = 3.0,
    shares: bool = False,
) -> GraphProto:
    """(input_ids, position_ids, attention_mask, past_0, ..) -> (logits, present_0, ..); shares:
    caches have room for all tokens, and past_sequence_length says how many they hold.
    """
    g = Writer(seed, dtype)
    words = g("Gather", g.weight("words", vocab, WIDTH), "input_ids")
    x = g("Add", words, g("Gather", g.weight("places", 64, WIDTH, scale=0.5), "position_ids"))
    bias = g.mask_bias("attention_mask")
    inputs: dict[str, Any] = {"input_ids": ["B", "S"], "position_ids": ["B", "S"]}
    inputs["attention_mask"] = ["B", "T"]
    outputs: dict[str, Any] = {"logits": ["B", "S", vocab]}
    first = g.constant([0], "axis_0")
    if shares:
        past = g("Cast", "past_sequence_length", to=TensorProto.INT64)
        tokens = g("Add", past, g("Shape", "input_ids", start=1))
        last, along = g.constant([2**31], "last"), g.constant([3], "axis_3")
    for i in range(layers):
        inputs[f"past_{i}"] = [2, "B", HEADS, "P", SIZE]
        outputs[f"present_{i}"] = [2, "B", HEADS, "T", SIZE]
        q, *kv = (g.heads(x, f"{kind}_{i}") for kind in "qkv")
        before = g("Slice", f"past_{i}", first, past, along) if shares else f"past_{i}"
        pasts = (g("Gather", before, g.constant(n, f"int_{n}")) for n in range(2))
        k, v = (g("Concat", held, new, axis=2) for held, new in zip(pasts, kv))
        whole = [g("Unsqueeze", each, first) for each in (k, v)]
        if shares:
            held = g("Concat", *whole, axis=0)
            room = g("Slice", f"past_{i}", tokens, last, along)
            g("Concat", held, room, axis=3, out=f"present_{i}")
        else:
            g("Concat", *whole, axis=0, out=f"present_{i}")
        x = g.attended(x, q, k, v, g("Add", bias, g.causal_bias(q, k)), f"o_{i}")
        x = g.perceptron(x, f"mlp_{i}")
    g("MatMul", x, g.weight("head", WIDTH, vocab, scale=scale * WIDTH**-0.5), out="logits")
    if shares:
        inputs["past_sequence_length"] = [1]
    return g.graph("decoder", inputs, outputs)


def t5(
    vocab: int = 12,
    layers: int = 2,
    seed: int = 0,
    dtype: int = FLOAT,
    starts: bool = False,
    takes_hidden: bool = False,
    takes_all: bool = False,
    scale: float = 3.0,
    features: int = 0,
) -> dict[str, GraphProto]:
    """The graphs `encoder` and `decoder`. starts: the encoder runs the decoder once; takes_hidden:
    the decoder takes what the encoder made; takes_all: it takes all tokens, and reads the last;
    features: as many take the place of tokens and masks, as in Whisper.
    """
    ids, mask, hidden = "encoder_input_ids", "encoder_attention_mask", "encoder_hidden_states"
    e = Writer(seed, dtype)
    inputs: dict[str, Any] = {ids: ["B", features, "E"]} if features else {ids: ["B", "E"]}
    masks: dict[str, Any] = {} if features else {mask: ["B", "E"]}
    if features:
        x = e("Transpose", ids, perm=[0, 2, 1])
        x = e.linear(x, "of_features", WIDTH, features)
    else:
        x = e("Gather", e.weight("words", vocab, WIDTH), ids)
    bias = e.constant(0.0, "none") if features else e.mask_bias(mask)
    q, k, v = (e.heads(x, f"encoder_{kind}") for kind in "qkv")
    x = e.perceptron(e.attended(x, q, k, v, bias, "encoder_o"), "encoder_mlp")
    if starts:
        e("Identity", x, out=hidden)
    cached: dict[str, Any] = {}
    for i in range(layers):
        for kind in ("key", "value"):
            e("Identity", e.heads(x, f"cross_{kind}_{i}"), out=f"present_{kind}_cross_{i}")
            cached[f"{kind}_cross_{i}"] = ["B", HEADS, "E", SIZE]
    inputs.update(masks)
    outputs = {f"present_{name}": shape for name, shape in cached.items()}
    if starts:
        inputs["decoder_input_ids"] = ["B", "S"]
        _decoder(e, "decoder_input_ids", bias, vocab, layers, "present", scale)
        own = {f"present_{name}": ["B", HEADS, "S", SIZE] for name in _own(layers)}
        made = {"logits": ["B", "S", vocab], hidden: ["B", "E", WIDTH]}
        outputs = {**made, **own, **outputs}
    encoder = e.graph("encoder", inputs, outputs)
    d = Writer(seed, dtype)
    last = "input_ids"
    if takes_all:
        ends = (d.constant([n], f"at_{n}") for n in (-1, 2**31, 1))
        last = d("Slice", "input_ids", *ends)
    bias = d.constant(0.0, "none") if features else d.mask_bias(mask)
    _decoder(d, last, bias, vocab, layers, "past", scale)
    inputs = {"input_ids": ["B", "all" if takes_all else 1], **masks}
    if takes_hidden:
        inputs[hidden] = ["B", "E", WIDTH]
    own = {name: ["B", HEADS, "P", SIZE] for name in _own(layers)}
    inputs.update({f"past_{name}": shape for name, shape in {**own, **cached}.items()})
    outputs = {"logits": ["B", 1, vocab]}
    outputs.update({f"present_{name}": ["B", HEADS, "T", SIZE] for name in own})
    return {"encoder": encoder, "decoder": d.graph("decoder", inputs, outputs)}


def _own(layers: int) -> list[str]:
    return [f"{kind}_self_{i}" for i in range(layers) for kind in ("key", "value")]


def _decoder(
    g: Writer, ids: str, bias: str, vocab: int, layers: int, cross: str, scale: float
) -> None:
    """What tokens behind those of caches add. cross: what the names of cross caches begin with;
    where these are made here, there is no other cache before.
    """
    x = g("Gather", g.weight("words", vocab, WIDTH), ids)
    for i in range(layers):
        q, *kv = (g.heads(x, f"{kind}_{i}") for kind in "qkv")
        for j, name in enumerate(("key", "value")):
            out = f"present_{name}_self_{i}"
            before = [f"past_{name}_self_{i}"] if cross == "past" else []
            kv[j] = g("Concat", *before, kv[j], axis=2, out=out)
        x = g.attended(x, q, *kv, g.causal_bias(q, kv[0]), f"o_{i}")
        across = (f"{cross}_{name}_cross_{i}" for name in ("key", "value"))
        x = g.attended(x, g.heads(x, f"across_{i}"), *across, bias, f"across_o_{i}")
        x = g.perceptron(x, f"mlp_{i}")
    g("MatMul", x, g.weight("head", WIDTH, vocab, scale=scale * WIDTH**-0.5), out="logits")
