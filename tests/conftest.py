"""Options that all tests share. Without the C library, the folders that need it are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from q7x2_ep.backend.cpu.library import load
from q7x2_ep.errors import BackendError

NEED_LIBRARY = ("abi", "cli", "conformance", "fuzz", "kernels", "models")

try:
    load()
    missing = ""
except BackendError as error:
    missing = str(error)

collect_ignore = [str(Path(__file__).parent / folder) for folder in NEED_LIBRARY] if missing else []


def pytest_report_header() -> str:
    return f"left out {', '.join(NEED_LIBRARY)}: {missing}" if missing else ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="rewrite golden files with what the code says now"
    )
