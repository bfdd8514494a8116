"""What all tests share. Without the C library, the tests that need it are left out."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from q7x2_ep.backend.cpu.library import Context, Plan, load
from q7x2_ep.errors import BackendError

FOLDER = Path(__file__).parent
NEED_LIBRARY = [
    FOLDER / name for name in ("abi", "api", "cli", "conformance", "fuzz", "kernels", "models")
]
NEED_LIBRARY += sorted((FOLDER / "fusion").glob("test_battery*.py"))
NEED_LIBRARY += sorted((FOLDER / "unit").glob("test_runtime_*.py"))
NEED_LIBRARY += [
    FOLDER / "unit" / f"test_{name}.py"
    for name in ("halves", "images", "ml", "signal", "target", "text")
]

# The same examples in every run; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile("fixed")

try:
    load()
    missing = ""
except BackendError as error:
    missing = str(error)

collect_ignore = [str(path) for path in NEED_LIBRARY] if missing else []


STATES: dict[tuple[str, str], Any] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A module's generator begins anew: what a test draws does not depend on those before it."""
    module = getattr(item, "module", None)
    for name, value in vars(module).items() if module else ():
        if isinstance(value, np.random.Generator):
            state = STATES.setdefault((module.__name__, name), value.bit_generator.state)
            value.bit_generator.state = state


def pytest_report_header() -> str:
    return f"left out {', '.join(path.stem for path in NEED_LIBRARY)}: {missing}" if missing else ""


def pytest_unconfigure() -> None:
    """What Python still holds at its exit (fixtures, caches, cycles, tracebacks) is no leak."""
    gc.collect()
    for kind in (Context, Plan):  # a plan outlives its contexts
        for handle in gc.get_objects():
            if type(handle) is kind:
                handle.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="rewrite golden files with what the code says now"
    )


@pytest.fixture
def session_class() -> Any:
    """q7x2_ep.session.Session, where there is a library for it."""
    if missing:
        pytest.skip(missing)
    from q7x2_ep.session import Session

    return Session


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text) compares text with tests/golden/<name>, which --accept rewrites."""

    def compare(name: str, text: str) -> None:
        path = FOLDER / "golden" / name
        if request.config.getoption("--accept"):
            path.write_text(text)
        assert text == path.read_text()

    return compare
