"""Fusions, text in -> text out. `# no fusion: <reason>` where nothing may fuse: then the reason is
compared.

Each tests/golden/fuse/*.txt holds cases of the form `=== title`, graph, `---`, expected. `pytest
--accept` rewrites the expected parts.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from q7x2_ep.fuse import FUSIONS, fuse
from q7x2_ep.ir.text import parse, to_text
from q7x2_ep.passes import infer

FILES = sorted((Path(__file__).parent / "fuse").glob("*.txt"))


def read_cases(path: Path) -> list[tuple[str, str, str]]:
    """(title, graph, expected) of a golden file."""
    cases = []
    for part in path.read_text().split("=== ")[1:]:
        title, _, body = part.partition("\n")
        graph, _, expected = body.partition("---\n")
        cases.append((title, graph, expected))
    return cases


def run_case(name: str, text: str) -> str:
    """The fused graph, or the reasons why there is none.

    Chains, which take whatever the others leave, are made in chain.txt only.
    """
    graph = parse(text)
    infer.run(graph)
    fusions = [each for each in FUSIONS if name == "chain" or each is not FUSIONS[-1]]
    with patch("q7x2_ep.fuse.FUSIONS", fusions):
        report = fuse(graph)
    if report.applied:
        names = ", ".join(f"{name} {count}" for name, count in report.applied.items())
        return f"# {names}\n{to_text(graph)}"
    return (
        "".join(f"# no fusion: {miss}\n" for miss in report.misses) or "# no fusion: no candidate\n"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path: Path, request: pytest.FixtureRequest) -> None:
    cases = [
        (title, text, expected, run_case(path.stem, text))
        for title, text, expected in read_cases(path)
    ]
    if request.config.getoption("--accept"):
        path.write_text(
            "\n".join(f"=== {title}\n{text}---\n{got}" for title, text, _, got in cases)
        )
    for title, _, expected, got in cases:
        assert got.strip() == expected.strip() or request.config.getoption("--accept"), title
