"""Every architecture as every exporter writes it: what it becomes, and whether it is right.

tests/golden/matrix.txt, and matrix16.txt for exports in 16 bits, hold one line per file: how many
steps of each kind its plan has (act: in an epilogue or alone; cache: copies into outputs), how many
a layer (from one attention to the same one of the next layer, without `cache`), or the error that
says why there is no plan. `pytest --accept` rewrites it. What the exporters refuse to write:
unavailable.txt.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep import importer, passes
from q7x2_ep.backend.numpy import evaluate
from q7x2_ep.errors import Q7Error
from q7x2_ep.feeds import random_feeds
from q7x2_ep.ops.activation import ACTIVATIONS
from q7x2_ep.ops.common import NotInferable
from q7x2_ep.passes import infer
from q7x2_ep.plan.parts import Step
from tests.models.accuracy import Accuracy
from tests.models.files import label, read, select

TABLES = [Path(__file__).parents[1] / "golden" / f"{name}.txt" for name in ("matrix", "matrix16")]
LAYERS = 2
COLUMNS = ("attention", "norm", "act", "rope", "gemm", "copy", "cache", "other")
COLUMNS += ("steps", "layer", "host")
KINDS = {"layernorm": "norm", "rmsnorm": "norm", "attention": "attention", "rope": "rope"}
KINDS |= {
    "gemm": "gemm",
    "expert_gemm": "gemm",
    "conv": "gemm",
    "conv_last": "gemm",
    "conv_direct": "gemm",
    "matmul": "gemm",
    "copy": "copy",
}
FILES = select(cache=True, halves=True)


@pytest.mark.parametrize("path", FILES, ids=label)
def test_counts(path: Path, request: pytest.FixtureRequest) -> None:
    line = counts(read(path))
    rows = read_table()
    if request.config.getoption("--accept"):
        rows[label(path)] = line
        write_table(rows)
    assert line == rows.get(label(path))


def counts(model: bytes) -> tuple[str, ...]:
    """The cells of one file, or the error in a single one."""
    try:
        with q7x2_ep.InferenceSession(model) as session:
            steps = session._session.plan.steps
            host = q7x2_ep.explain(session, sizes_of(2, 16, 5)).host_steps
    except Exception as error:  # whatever it is, the table says so
        kind = "" if isinstance(error, Q7Error) else f"{type(error).__name__}: "
        return (kind + str(error).splitlines()[0][:100],)
    kinds = ["cache" if is_cached(step) else KINDS.get(step.op, "other") for step in steps]
    count = Counter(kinds)
    count["act"] = sum(map(is_activation, steps))
    # a model whose attention is not fused has a softmax where others have an attention
    heads = [i for i, step in enumerate(steps) if step.op in ("attention", "softmax")]
    period = len(heads) // LAYERS
    layer = "-"
    if heads and len(heads) == period * LAYERS:
        layer = sum(kind != "cache" for kind in kinds[heads[0] : heads[period]])
    cells = {**count, "steps": len(steps), "layer": layer, "host": len(host)}
    return tuple(str(cells.get(column, 0)) for column in COLUMNS)


def is_activation(step: Step) -> bool:
    op = step.fields.get("act", step.fields.get("op"))
    names = op if isinstance(op, (list, tuple)) else [op]  # a chain has several
    return any(name in ACTIVATIONS and name != "none" for name in names)


def is_cached(step: Step) -> bool:
    return step.op == "copy" and step.operands["y"].storage.place()[0].space == "output"


def read_table() -> dict[str, tuple[str, ...]]:
    rows = {}
    lines = [line for table in TABLES for line in table.read_text().splitlines()[1:]]
    for line in lines:
        name, _, rest = line.partition(" ")
        cells = rest.split()
        whole = len(cells) == len(COLUMNS) and all(c.isdigit() or c == "-" for c in cells)
        rows[name] = tuple(cells) if whole else (rest.strip(),)
    return rows


def write_table(rows: dict[str, tuple[str, ...]]) -> None:
    """Aligned text; files that are gone are dropped."""
    for table, is_half in zip(TABLES, (False, True)):
        names = [label(path) for path in FILES if label(path) in rows]
        names = [name for name in names if ("float16" in name) is is_half]
        width = max(map(len, names)) + 2
        lines = ["model".ljust(width) + "  ".join(COLUMNS)]
        for name in names:
            cells = rows[name]
            if len(cells) == len(COLUMNS):
                cells = tuple(cell.rjust(len(column)) for cell, column in zip(cells, COLUMNS))
            lines.append(name.ljust(width) + "  ".join(cells))
        table.write_text("\n".join(lines) + "\n")


def test_table_is_complete() -> None:
    assert set(read_table()) == {label(path) for path in FILES}


# batch, new tokens, tokens in the cache, padding
FEEDS = (
    (2, 16, 5, "row"),
    (1, 1, 16, "none"),
    (3, 7, 3, "left"),
    (2, 33, 1, "right"),
    (2, 9, 0, "left"),
)
MOST_FEEDS = 40


def sizes_of(batch: int, sequence: int, past: int) -> dict[str, int]:
    """What the symbols of all these models stand for."""
    return {
        "batch": batch,
        "sequence": sequence,
        "past_sequence": past,
        "total_sequence": past + sequence,
        "past_sequence + sequence": past + sequence,
        "encoder_sequence": 11,
    }


@pytest.mark.parametrize("path", FILES, ids=label)
def test_accuracy_rule(path: Path) -> None:
    row = read_table()[label(path)]
    if len(row) == 1:
        pytest.skip(row[0])
    model = read(path)
    graph = importer.read(model)
    try:
        infer.run(graph)
    except NotInferable:  # sizes that only folding turns into constants
        passes.run_all(graph)
    theirs = onnxruntime_session(model)
    level = q7x2_ep.GraphOptimizationLevel.ORT_DISABLE_ALL
    options = q7x2_ep.SessionOptions(graph_optimization_level=level)
    accuracy, unfused_accuracy = Accuracy(), Accuracy()
    fused = q7x2_ep.InferenceSession(model)
    with fused, q7x2_ep.InferenceSession(model, options) as unfused:
        todo, judged = list(FEEDS), []
        for seed, sizes in enumerate(todo):
            batch, sequence, past, padding = sizes
            feeds = random_feeds(graph, dims=sizes_of(batch, sequence, past), seed=seed)
            for name in feeds:
                if "mask" in name:
                    feeds[name] = padded(feeds[name], padding)
            true, reference = evaluate(graph, feeds, np.float64), run(theirs, feeds)
            accuracy.add(true, fused.run(None, feeds), reference)
            unfused_accuracy.add(true, unfused.run(None, feeds), reference)
            judged += [sizes] if reference is not None else []
            if seed + 1 == len(todo) < MOST_FEEDS and judged and accuracy.is_luck():
                todo.append(judged[seed % len(judged)])  # again, with other numbers
    accuracy.check()
    unfused_accuracy.check()


def padded(mask: np.ndarray, where: str) -> np.ndarray:
    """Of every second sample up to half of the places are masked, or all of the last sample."""
    mask = mask.copy()  # (batch, places)
    places = mask.shape[1] // 2
    if where == "left":
        mask[::2, :places] = 0
    elif where == "right":
        mask[::2, mask.shape[1] - places :] = 0
    elif where == "row":
        mask[-1] = 0
    return mask


def onnxruntime_session(model: bytes) -> Optional[Any]:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # its exceptions share no base class; older ones lack opset 23
        return None


def run(session: Optional[Any], feeds: dict[str, np.ndarray]) -> Optional[list[np.ndarray]]:
    """What onnxruntime gives, or None where it cannot run the model with this feed."""
    try:
        return session.run(None, feeds) if session else None
    except Exception:  # its exceptions share no base class
        return None
