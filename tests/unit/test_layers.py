"""Who may import whom: the layers of the package, enforced by reading its imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "q7x2_ep"

# Each layer may import itself and those before it. The first part of a path names its layer.
LAYERS = (
    {"collector", "dtypes", "errors", "files", "knobs", "release", "request"},
    {"ir"},
    {"ops"},
    {"importer", "passes", "fuse"},
    {"plan"},
    {"backend"},
    {"session", "cache"},
    {
        "explain",
        "api",
        "compare",
        "feeds",
        "models",
        "progress",
        "__init__",
        "optimize",
        "bisect",
        "compile",
    }
    | {"install", "stand_in"},
    {"__main__", "doctor", "optable", "usage"},
)
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def layer(part: str) -> int:
    found = [i for i, names in enumerate(LAYERS) if part in names]
    assert found, f"{part} has no place in LAYERS"
    return found[0]


def imports(path: Path) -> list[str]:
    """The full names of everything that a file imports, inside functions too."""
    names = []
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_go_down_only(path):
    own = layer(path.parts[0].removesuffix(".py"))
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "q7x2_ep" and len(parts) > 1:
            part = parts[1] if any(parts[1] in names for names in LAYERS) else "__init__"
            assert layer(part) <= own, f"{path} imports {name}"


def test_the_map_names_every_file():
    """Of folders whose files are listed there one by one."""
    readme = (PACKAGE.parent / "README.md").read_text()
    map = readme.partition("## Map")[2].partition("## ")[0]
    passes = set(map.partition("  passes/")[2].partition(": one per")[0].replace(",", " ").split())
    listed = {"importer", "ir", "passes", "plan", "backend", "."}
    files = {path for path in FILES if (path.parts[0] if path.parent.name else ".") in listed}
    missing = [
        str(path)
        for path in files
        if path.stem != "__init__" and path.name not in map and path.stem not in passes
    ]
    assert not missing
    scripts = {path.stem for path in (PACKAGE.parent / "bench").glob("*.py")} - {"__main__"}
    assert not {name for name in scripts if name not in map}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_libraries_stay_in_their_place(path):
    top = {name.split(".")[0] for name in imports(path)}
    if not (path.parts[0] == "backend" and path.name in ("library.py", "objc.py")):
        assert "ctypes" not in top
    if path.parts[0] in ("ir", "fuse"):
        assert "numpy" not in top
    if path.name != "knobs.py":
        assert "os.environ" not in (PACKAGE / path).read_text()


def test_importing_the_package_leaves_onnx_alone():
    """onnx costs more than all the rest; only reading a model needs it."""
    for path in [path for path in FILES if path.parts[0] != "stand_in"]:
        tree = ast.parse((PACKAGE / path).read_text())
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = [
            node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in top
        ]
        assert not any(
            (name or "").split(".")[0] in ("onnx", "onnxruntime", "torch") for name in names
        ), path
