"""Control flow and host steps: microseconds of a run, ours and onnxruntime's.

Each engine runs in turn, entry from Python included; medians. A model given by its path is run on
random feeds, `--feed name=value` for those that must have one value. Rows go to
bench/results/control.jsonl.

Usage: python bench control [CASE ...] [--threads N] [--runs N] [--clock cpu]
       python bench control --model vad.onnx --feed sr=16000 --shape input=1,576 state=2,1,128
"""

from __future__ import annotations

import argparse
import re
import statistics
from functools import partial
from typing import Any, NamedTuple, Optional

import numpy as np
import onnx.parser
import onnxruntime
import results

import q7x2_ep
from q7x2_ep import usage
from q7x2_ep.compare import interleave

RNG = np.random.default_rng(1)
HEADER = '<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>\n'


class Case(NamedTuple):
    """text: a model; feeds: what it is run on."""

    text: str
    feeds: dict[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def loop(trip: int, *feeds: np.ndarray, inputs: str, state: str, body: str) -> Case:
    """A Loop over one state s, of the type `state`, beside what is fed."""
    names = re.findall(r"(\w+)(?:,|$)", re.sub(r"\[.*?\]", "", inputs))
    text = f"""g (int64 trip, {inputs}) => ({state} y) {{
        y = Loop(trip, , {names[0]}) <body = b (int64 i, bool on, {state} s)
            => (bool next, {state} r) {{ next = Identity(on) {body} }}>
    }}"""
    return Case(text, {"trip": np.array(trip), **dict(zip(names, feeds))})


def boxes(n: int) -> np.ndarray:
    corner = RNG.uniform(0, 300, (n, 2))
    return np.hstack([corner, corner + RNG.uniform(10, 60, (n, 2))]).astype(np.float32)


IF = """g (bool cond, float[n, 64] x) => (float[n, 64] y) {
    y = If(cond) <then_branch = t () => (float[n, 64] a) { a = Relu(x) },
                  else_branch = e () => (float[n, 64] b) { b = Neg(x) }>
}"""
IF_SHAPE = """g (float[n, m, 64] x) => (float[k, l] y)
    <int64[1] one = {1}, int64 first = {0}> {
    shape = Shape(x)
    n0 = Gather(shape, first)
    is_one = Equal(n0, first)
    s = If(is_one) <then_branch = t () => (float[a, b] p) { p = Squeeze(x, one) },
                    else_branch = e () => (float[c, d, f] q) { q = Identity(x) }>
    r = Relu(s)
    y = Flatten(r)
}"""
IF_IN_LOOP = """new = Mul(s, x) sum = ReduceSum<keepdims = 0>(new) small = Less(sum, s0)
    r = If(small) <then_branch = t () => (float[64] a) { a = Add(new, x) },
                   else_branch = e () => (float[64] b) { b = Sub(new, x) }>"""
LOOP_IN_LOOP = """r = Loop(four, , s) <body = c (int64 j, bool go, float[64] u)
    => (bool more, float[64] v) { more = Identity(go) v = Add(u, x) }>"""
SCAN_OUT = """g (int64 trip, float[64] x) => (float[64] last, float[t, 64] all) {
    last, all = Loop(trip, , x) <body = b (int64 i, bool on, float[64] s)
        => (bool next, float[64] r, float[64] copy) {
            next = Identity(on) r = Add(s, x) copy = Tanh(r) }>
}"""
WHILE = """g (bool on, float[64] x, float limit) => (float[64] last, float[t] sums) {
    last, sums = Loop(, on, x) <body = b (int64 i, bool go, float[64] s)
        => (bool next, float[64] r, float total) {
            r = Add(s, x) total = ReduceSum<keepdims = 0>(r) next = Less(total, limit) }>
}"""
SCAN = """g (float[64] start, float[t, 64] x) => (float[64] last, float[t, 64] sums) {
    last, sums = Scan(start, x) <num_scan_inputs = 1, body = b (float[64] s, float[64] row)
        => (float[64] new, float[64] copy) { new = Add(s, row) copy = Identity(new) }>
}"""
LSTM = """g (float[n, 128] h0, float[n, 128] c0, float[t, n, 512] x, float[128, 512] w)
    => (float[n, 128] h, float[n, 128] c, float[t, n, 128] all) {
    h, c, all = Scan(h0, c0, x) <num_scan_inputs = 1,
        body = b (float[n, 128] hs, float[n, 128] cs, float[n, 512] row)
        => (float[n, 128] hn, float[n, 128] cn, float[n, 128] y) {
            p = MatMul(hs, w) g = Add(p, row) i, o, f, z = Split<axis = 1, num_outputs = 4>(g)
            is = Sigmoid(i) os = Sigmoid(o) fs = Sigmoid(f) zt = Tanh(z)
            a = Mul(fs, cs) b2 = Mul(is, zt) cn = Add(a, b2) t2 = Tanh(cn)
            hn = Mul(os, t2) y = Identity(hn) }>
}"""
LIST = """g (int64 trip, float[64] x) => (float[t, 64] y) {
    empty = SequenceEmpty()
    last, list = Loop(trip, , x, empty) <body = b (int64 i, bool on, float[64] s, seq(float[64]) l)
        => (bool next, float[64] r, seq(float[64]) m) {
            next = Identity(on) r = Add(s, x) m = SequenceInsert(l, r) }>
    y = ConcatFromSequence<axis = 0, new_axis = 1>(list)
}"""
HOST = {
    "nonzero": (
        "(float[n, m] x) => (int64[2, k] y) { y = NonZero(x) }",
        {"x": floats(200, 100) * (RNG.random((200, 100)) < 0.2).astype(np.float32)},
    ),
    "nonzero, small": (
        "(float[n] x) => (int64[1, k] y) { y = NonZero(x) }",
        {"x": np.array([0, 1, 0, 2], np.float32)},
    ),
    "compress": (
        "(float[n, 16] x, bool[n] keep) => (float[k, 16] y) { y = Compress<axis = 0>(x, keep) }",
        {"x": floats(500, 16), "keep": RNG.random(500) < 0.3},
    ),
    "unique": (
        "(int64[n] x) => (int64[k] y, int64[k] first, int64[n] back, int64[k] counts) "
        "{ y, first, back, counts = Unique<sorted = 1>(x) }",
        {"x": RNG.integers(0, 50, 500)},
    ),
    "topk": (
        "(float[n, 1000] x, int64[1] k) => (float[n, a] v, int64[n, a] i) { v, i = TopK(x, k) }",
        {"x": floats(4, 1000), "k": np.array([10])},
    ),
    "range": (
        "(int64 n) => (int64[k] y) <int64 zero = {0}, int64 one = {1}> { y = Range(zero, n, one) }",
        {"n": np.array(100)},
    ),
    "nms, 1000 boxes": (
        "(float[1, n, 4] b, float[1, 1, n] s, int64 most, float iou, float least) "
        "=> (int64[k, 3] y) { y = NonMaxSuppression(b, s, most, iou, least) }",
        {
            "b": boxes(1000)[None],
            "s": RNG.random((1, 1, 1000), np.float32),
            "most": np.array(100),
            "iou": np.array(0.5, np.float32),
            "least": np.array(0.1, np.float32),
        },
    ),
    "nms, 100 boxes, 20 classes": (
        "(float[1, n, 4] b, float[1, 20, n] s, int64 most, float iou, float least) "
        "=> (int64[k, 3] y) { y = NonMaxSuppression(b, s, most, iou, least) }",
        {
            "b": boxes(100)[None],
            "s": RNG.random((1, 20, 100), np.float32),
            "most": np.array(10),
            "iou": np.array(0.5, np.float32),
            "least": np.array(0.3, np.float32),
        },
    ),
    "roialign": (
        "(float[1, 32, 50, 50] x, float[n, 4] r, int64[n] at) => (float[n, 32, 7, 7] y) "
        "{ y = RoiAlign<output_height = 7, output_width = 7, spatial_scale = 0.125, "
        "sampling_ratio = 2>(x, r, at) }",
        {"x": floats(1, 32, 50, 50), "r": boxes(50), "at": np.zeros(50, np.int64)},
    ),
}
CASES = {
    "if, one op": Case(IF, {"cond": np.array(True), "x": floats(1, 64)}),
    "if, by shape, ranks differ": Case(IF_SHAPE, {"x": floats(2, 1, 64)}),
    "loop of 10, one op": loop(
        10, floats(64), inputs="float[64] x", state="float[64]", body="r = Add(s, x)"
    ),
    "loop of 1000, one op": loop(
        1000, floats(64), inputs="float[64] x", state="float[64]", body="r = Add(s, x)"
    ),
    "loop of 100, counting": loop(
        100, np.array(0), inputs="int64 x", state="int64", body="r = Add(s, i)"
    ),
    "loop of 100, scanned output": Case(SCAN_OUT, {"trip": np.array(100), "x": floats(64)}),
    "while of 100, scanned output": Case(
        WHILE,
        {
            "on": np.array(True),
            "x": np.full(64, 1 / 64, np.float32),
            "limit": np.array(100.5, np.float32),
        },
    ),
    "loop of 100, state grows": loop(
        100,
        floats(1, 64),
        inputs="float[1, 64] x",
        state="float[k, 64]",
        body="r = Concat<axis = 0>(s, x)",
    ),
    "loop of 100, if inside": loop(
        100,
        floats(64),
        np.array(0, np.float32),
        inputs="float[64] x, float s0",
        state="float[64]",
        body=IF_IN_LOOP,
    ),
    "loop of 100, loop of 4 inside": loop(
        100,
        floats(64),
        np.array(4),
        inputs="float[64] x, int64 four",
        state="float[64]",
        body=LOOP_IN_LOOP,
    ),
    "loop of 100, a list grows": Case(LIST, {"trip": np.array(100), "x": floats(64)}),
    "scan over 100": Case(SCAN, {"start": floats(64), "x": floats(100, 64)}),
    "lstm as scan over 50": Case(
        LSTM,
        {
            "h0": floats(1, 128),
            "c0": floats(1, 128),
            "x": floats(50, 1, 512),
            "w": floats(128, 512) * np.float32(0.1),
        },
    ),
    **{name: Case("g " + text, feeds) for name, (text, feeds) in HOST.items()},
}


def sessions(model: bytes, threads: int) -> list[Any]:
    made = []
    for engine in (q7x2_ep, onnxruntime):
        options: Any = engine.SessionOptions()
        options.intra_op_num_threads = threads
        made.append(engine.InferenceSession(model, options))
    return made


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return all(np.allclose(a, b, 1e-3, 1e-4, equal_nan=True) for a, b in zip(ours, theirs))


def random_feeds(session: Any, values: dict[str, str], shapes: dict[str, str]) -> dict[str, Any]:
    """Of every input its value as given, or normal numbers; its shape as given, symbols as 1."""
    feeds = {}
    for each in session.get_inputs():
        kind = each.type[len("tensor(") : -1]
        dtype = np.dtype({"float": "float32", "double": "float64"}.get(kind, kind))
        shape = [dim if isinstance(dim, int) else 1 for dim in each.shape]
        if each.name in shapes:
            shape = [int(n) for n in shapes[each.name].split(",")]
        if each.name in values:
            feeds[each.name] = np.full(shape, float(values[each.name])).astype(dtype)
        else:
            feeds[each.name] = RNG.standard_normal(shape).astype(dtype)
    return feeds


def part(text: str) -> str:
    """Of an argument: a part of the name of a case."""
    if not any(text in name for name in CASES):
        listed = "".join(f"\n  {name}" for name in CASES)
        raise argparse.ArgumentTypeError(f"no case has {text!r} in its name; there are:{listed}")
    return text


def main(arguments: Optional[list[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", nargs="*", type=part, help="cases whose names contain one of these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, help="of each engine (default: what 1.5 s allow)")
    parser.add_argument("--clock", choices=results.CLOCKS, default="wall")
    parser.add_argument("--model", type=usage.source, help="a file in place of the cases")
    parser.add_argument("--feed", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--shape", nargs="*", default=[], metavar="NAME=N,N")
    args = parser.parse_args(arguments)
    print(f"{'case':<32}{'ours, us':>10}{'theirs, us':>12}{'ratio':>8}")
    if args.model:
        engines = sessions(str(args.model), args.threads)
        values, shapes = (
            dict(pair.split("=") for pair in each) for each in (args.feed, args.shape)
        )
        work = [(str(args.model)[-30:], engines, random_feeds(engines[1], values, shapes))]
    else:
        names = [n for n in CASES if not args.case or any(part in n for part in args.case)]
        work = []
        for name in names:
            model = onnx.parser.parse_model(HEADER + CASES[name].text).SerializeToString()
            work.append((name, sessions(model, args.threads), CASES[name].feeds))
    for name, engines, feeds in work:
        outputs = [engine.run(None, feeds) for engine in engines]
        calls = [partial(engine.run, None, feeds) for engine in engines]
        samples = interleave(calls, args.runs, results.CLOCKS[args.clock])
        results.write("control", [results.of_pair(name, args.threads, *samples, args.clock)])
        ours, theirs = (1000 * statistics.median(each) for each in samples)
        note = "" if same(*outputs) else "   results differ"
        print(f"{name:<32}{ours:>10.1f}{theirs:>12.1f}{ours / theirs:>8.2f}{note}", flush=True)


if __name__ == "__main__":
    main()
