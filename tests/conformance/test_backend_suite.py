"""The ONNX backend suite through onnx's own runner: see bench/conformance.py, which runs it too.

skip.txt names what cannot pass, with the reason. Such a case runs all the same, and if it passes
that is a failure.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import conformance  # bench is a folder of scripts, not a package

RANDOM = "random"  # where a reason begins so, the case may pass by chance
SUITE = conformance.Suite(conformance.Engine("q7x2_ep"))
SKIPPED = conformance.skipped()


def case(name: str) -> object:
    if name not in SKIPPED:
        return name
    strict = not SKIPPED[name].startswith(RANDOM)
    return pytest.param(name, marks=pytest.mark.xfail(reason=SKIPPED[name], strict=strict))


@pytest.mark.parametrize("name", list(map(case, SUITE.cases)))
def test_backend_suite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # its import fails
    SUITE.check(name)


def test_skipped_cases_have_reasons() -> None:
    assert all(SKIPPED.values())
    assert len(SKIPPED) <= 9
