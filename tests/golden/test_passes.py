"""Passes, text in -> text out.

Each tests/golden/ir/*.txt holds cases of the form `=== title`, graph, `---`, expected. The name of
a file is that of the pass; `all` stands for run_all. `pytest --accept` rewrites what is expected.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from q7x2_ep import passes
from q7x2_ep.ir.text import parse, to_text
from q7x2_ep.ir.verify import verify
from q7x2_ep.ops import find
from q7x2_ep.passes import infer

FILES = sorted((Path(__file__).parent / "ir").glob("*.txt"))


def run_case(name: str, text: str) -> str:
    """The graph after the pass, with what the pass says that it did."""
    graph = parse(text)
    if name == "all":
        statistics = passes.run_all(graph)
    else:
        infer.run(graph)
        statistics = {name: getattr(passes, name).run(graph)}
        verify(graph, name, find)
    done = [
        f"# {each}: {', '.join(f'{key} {count}' for key, count in counts.items() if count)}\n"
        for each, counts in statistics.items()
        if any(counts.values())
    ]
    return "".join(done) + to_text(graph)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path: Path, request: pytest.FixtureRequest) -> None:
    accept = request.config.getoption("--accept")
    written = []
    for part in path.read_text().split("=== ")[1:]:
        title, _, body = part.partition("\n")
        text, _, expected = body.partition("---\n")
        got = run_case(path.stem, text)
        written.append(f"=== {title}\n{text}---\n{got}")
        assert accept or got.strip() == expected.strip(), title
    if accept:
        path.write_text("\n".join(written))
