"""What kernels are given in real models: bench/shapes.txt, which bench/kernels.py runs.

Run: python bench shapes [--cache DIR] [MODEL.onnx@BATCHxLENGTH ..]. Of every model of the zoo, as
passes and fusions leave it, the nodes whose steps use a kernel, for the feeds below, each as a
graph of its own: the node, and the movement in front of it that costs nothing but strides. Images
that the model's plan stores channels last are fed, and returned, so. Of a family the few are kept
that take most of its time in a model, by their operations and bytes.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import work
import zoo

from q7x2_ep import dtypes, fuse, importer, passes, usage
from q7x2_ep.backend.cpu.library import load
from q7x2_ep.feeds import random_feeds
from q7x2_ep.ir.core import Graph, Node, Type, Value, array_type
from q7x2_ep.ir.shape import evaluate, symbols
from q7x2_ep.ir.text import parse, to_text
from q7x2_ep.ir.view import channels_last
from q7x2_ep.ops.common import is_movement
from q7x2_ep.passes import infer
from q7x2_ep.plan.build import Builder, NotNative, build, lowered
from q7x2_ep.plan.memory import THREADS
from q7x2_ep.plan.parts import Plan
from q7x2_ep.plan.target import Target
from q7x2_ep.progress import track

FILE = Path(__file__).with_name("shapes.txt")
FEEDS: dict[str, list[tuple[int, int, int]]] = {  # file: batch, sequence, past
    "bert-base.sdpa.legacy17": [(1, 16, 0), (1, 128, 0), (8, 128, 0), (1, 512, 0)],
    "gpt2.sdpa.legacy17": [(1, 128, 0), (1, 1024, 0)],
    "gpt2.sdpa.legacy17.cache": [(1, 1, 511)],
    "minilm.sdpa.legacy17": [(1, 32, 0), (32, 128, 0)],
    "minilm.int8": [(1, 128, 0)],
    "minilm.int4": [(1, 128, 0), (1, 1, 0)],
    "minilm.int4a4": [(1, 128, 0), (1, 1, 0)],
    "vit-b16.sdpa.legacy17": [(1, 0, 0), (8, 0, 0)],
    "qwen3-4l.sdpa.legacy17": [(1, 128, 0)],
    "qwen3-4l.sdpa.legacy17.cache": [(1, 1, 511)],
    "resnet50.sdpa.legacy17": [(1, 0, 0), (8, 0, 0)],
    "mobilenet-v2.sdpa.legacy17": [(1, 0, 0), (8, 0, 0)],
    **{f"{name}.light": [(1, 0, 0)] for name in zoo.light_models()},
}
EXTRA = {  # of families that no model of the zoo uses
    "speech": """graph(%x: f32[100,1,80])
  %w = f32[2,1024,80]
  %r = f32[2,1024,256]
  %b = f32[2,2048]
  %y, %h, %c = LSTM(%x, %w, %r, %b) {direction="bidirectional", hidden_size=256}
  return %y
""",
    "logits": "graph(%x: f32[8,50257])\n  %y = Softmax(%x) {axis=-1}\n  return %y\n",
    "mobilenet-v2 in QLinearConv": """graph(%x: u8[1,96,112,112])
  %w = i8[96,1,3,3]
  %y = QLinearConv(%x, 0.02, u8[](128), %w, 0.01, i8[](0), 0.05, u8[](128)) \\
{group=96, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]}
  return %y
""".replace("\\\n", ""),
}
MOST, LEAST = 3, 0.05  # nodes of a family in one model and feed, and their part of its time
FLOPS, BYTES = 150e9, 20e9  # a second, of some machine


class Shape(NamedTuple):
    """family: of the kernel that does most of it. models: where it occurs, how often."""

    family: str
    text: str
    models: tuple[str, ...]

    @property
    def graph(self) -> Graph:
        graph = parse(self.text)
        for weight in {value for node in graph.nodes for value in node.inputs if value}:
            if weight.const is not None and weight.const.ndim > 1 and weight.dtype == dtypes.FLOAT:
                weight.const = weight.const * np.float32(1.1)  # 8 bits would be packed in 16
        infer.run(graph)
        return graph

    @property
    def name(self) -> str:
        """Short: the last op that computes, with the shapes of what is fed and of weights."""
        *_, op = re.findall(r"= (?!Transpose)([\w.:]+)\(", self.text)
        shapes = re.findall(r"%\w+(?:: | = )\w+\[([\d,]+)\]", self.text)
        return " ".join([op, *(each.replace(",", "x") for each in dict.fromkeys(shapes))])


def read(path: Path = FILE) -> list[Shape]:
    """The shapes of a file: `=== family: models` and a graph each."""
    found = []
    for part in re.split(r"^=== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        family, _, models = title.partition(": ")
        found.append(Shape(family, text.strip() + "\n", tuple(models.split(", "))))
    return found


def write(shapes: list[Shape], path: Path = FILE) -> None:
    parts = [f"=== {s.family}: {', '.join(s.models)}\n{s.text}" for s in shapes]
    path.write_text("\n".join(parts), encoding="utf-8")


def cut(node: Node, sizes: Mapping[str, int], model: Builder) -> Graph:
    """A node as a graph of its own, for the given values of symbols; what it reads is stored as in
    the plan of its model.
    """
    made = Graph("cut")
    copies: dict[Value, Value] = {}

    def operand(value: Optional[Value]) -> Optional[Value]:
        if value is None:
            return None
        if value not in copies:
            copies[value] = fresh(value)
        return copies[value]

    def fresh(value: Value) -> Value:
        type = Type(value.dtype, tuple(evaluate(dim, sizes) for dim in value.shape))
        producer = value.producer
        if value.const is not None:
            constant = made.constant(value.const, type)
            constant.name = f"w{len(copies)}"
            return constant
        if value.elements is not None:
            elements = [evaluate(element, sizes) for element in value.elements]
            array = dtypes.make_array(elements, value.dtype, type.shape)
            return made.constant(array, array_type(array))
        if producer is not None and is_movement(producer):
            add(producer)
            return copies[value]
        view = model.view(value)
        if not view.is_channels_last():
            return feed(type)
        perm = channels_last(len(type.shape))
        pixels = feed(type._replace(shape=tuple(type.shape[p] for p in perm)))
        image = Value(f"y{len(made.nodes)}.0")
        inverse = [perm.index(axis) for axis in range(len(perm))]
        made.nodes.append(Node("Transpose", [pixels], [image], {"perm": inverse}))
        return image

    def feed(type: Type) -> Value:
        made.inputs.append(Value(f"x{len(made.inputs)}", type.dtype, type.shape))
        return made.inputs[-1]

    def add(each: Node) -> None:
        inputs = [operand(value) for value in each.inputs]
        outputs = [Value(f"y{len(made.nodes)}.{i}") for i in range(len(each.outputs))]
        copies.update(zip(each.outputs, outputs))
        made.nodes.append(Node(each.op, inputs, outputs, dict(each.attrs)))

    def returned(value: Value) -> Value:
        """What the graph returns of one: its pixels, where the model stores these."""
        if value.shape is None or not model.view(value).is_channels_last():
            return copies[value]
        pixels = Value(f"y{len(made.nodes)}.0")
        attrs = {"perm": list(channels_last(len(value.shape)))}
        made.nodes.append(Node("Transpose", [copies[value]], [pixels], attrs))
        return pixels

    add(node)
    made.outputs = [returned(value) for value in node.outputs]
    made.output_names = [value.name for value in made.outputs]
    infer.run(made)
    return made


def sizes_of(graph: Graph, batch: int, sequence: int, past: int) -> dict[str, int]:
    """The value of every symbol of the inputs; those of a cache by their names."""
    names = {name for value in graph.inputs for dim in value.shape for name in symbols(dim)}
    given = {name: past + sequence if "+" in name else past for name in names if "past" in name}
    feeds = random_feeds(graph, batch, sequence, given)
    return {
        name: size
        for value in graph.inputs
        for dim, size in zip(value.shape, feeds[value.name].shape)
        for name in symbols(dim)
    }


def planned(graph: Graph, target: Optional[Target] = None) -> Optional[tuple[Plan, str]]:
    """The plan of a cut graph, and the family of the kernel that does most of it; None without."""
    try:
        plan = build(graph, target or load().target)
    except NotNative:
        return None
    families: dict[str, float] = defaultdict(float)
    for step in plan.steps:
        if is_measured(step):
            families[step.kernel.family] += seconds(work.of(step, {THREADS: 1}))
    return (plan, max(families, key=lambda name: families[name])) if families else None


def work_of(plan: Plan, threads: int = 1) -> work.Work:
    """Of the steps that are measured."""
    return work.total(work.of(s, {THREADS: threads}) for s in plan.steps if is_measured(s))


def is_measured(step: Any) -> bool:
    """Whether a step is a kernel's, and not a copy into or out of a layout, which a node alone has
    to have and a model does not.
    """
    kernel = getattr(step, "kernel", None)
    return kernel is not None and kernel.family != "copy"


def seconds(each: work.Work) -> float:
    return max(each.flops / FLOPS, each.bytes / BYTES)


def collect(path: Path, feeds: list[tuple[int, int, int]]) -> Iterator[tuple[str, str, str]]:
    """Family, graph as text, and model, for every node and feed that matters."""
    graph = importer.read(str(path))
    graph.is_fused = False
    passes.run_all(graph)
    fuse.fuse(graph)
    passes.run_all(graph)
    model = lowered(graph, load().target)
    for batch, sequence, past in feeds:
        sizes = sizes_of(graph, batch, sequence, past)
        name = f"{path.stem.replace('.sdpa.legacy17', '')} {batch}" + (
            f"x{sequence}" if sequence else ""
        )
        name += f"+{past}" if past else ""
        costs: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for node in graph.nodes:
            if node.bodies or is_movement(node):
                continue
            values = [value for value in (*node.inputs, *node.outputs) if value is not None]
            if any(value.shape is None for value in values):
                continue
            if any(symbols(dim) - sizes.keys() for value in values for dim in value.shape):
                continue
            small = cut(node, sizes, model)
            found = planned(small)
            if found is not None:
                plan, family = found
                text = re.sub(r" #[0-9a-f]{8}$", "", to_text(small), flags=re.MULTILINE)
                costs[family][text] += seconds(work_of(plan))
        for family, texts in costs.items():
            whole = sum(texts.values())
            for text in sorted(texts, key=lambda text: -texts[text])[:MOST]:
                if texts[text] >= LEAST * whole:
                    yield family, text, name


def job(text: str) -> tuple[Path, list[tuple[int, int, int]]]:
    """Of an argument: a file and its feed."""
    name, _, feed = text.partition("@")
    batch, _, length = feed.partition("x")
    sizes = usage.count(batch or "1"), usage.number(length or "0")
    return usage.source(name), [(*sizes, 0)]


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Derive bench/shapes.txt from the zoo.")
    parser.add_argument(
        "models", nargs="*", type=job, help="beside the zoo: MODEL.onnx@BATCHxLENGTH"
    )
    parser.add_argument("--cache", type=Path, default=zoo.DEFAULT_CACHE, help="of the zoo")
    options = parser.parse_args(arguments)
    jobs = [(options.cache / f"{name}.onnx", feeds) for name, feeds in FEEDS.items()]
    jobs += options.models
    models: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, feeds in track(jobs, "shapes"):
        if not path.exists():
            print(f"{path} does not exist: skipped")
            continue
        for family, text, model in collect(path, feeds):
            models[family, text].append(model)
    if not models:
        print("nothing to cut shapes from: python bench zoo exports the models")
        return 2
    for model, text in EXTRA.items():
        found = planned(Shape("", text, ()).graph)
        models[found[1], text].append(model)
    order = list(dict.fromkeys(row.family for row in load().target.kernels))
    shapes = [Shape(*key, tuple(names)) for key, names in models.items()]
    shapes.sort(key=lambda shape: order.index(shape.family))
    write(shapes)
    for family in order:
        print(f"{family:<20}{sum(shape.family == family for shape in shapes):>4}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
