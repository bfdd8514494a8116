"""python bench COMMAND ...: every script of this folder, as python bench/COMMAND.py runs it."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    commands = {path.stem: path for path in sorted(FOLDER.glob("[a-z]*.py"))}
    commands = {name: path for name, path in commands.items() if "def main(" in path.read_text()}
    name, *arguments = sys.argv[1:] or [""]
    if name not in commands:
        print("usage: python bench COMMAND ... (--help: its options)")
        for name, path in commands.items():
            print(f"  {name:<12} {ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]}")
        return 2
    sys.argv = [f"bench {name}", *arguments]
    sys.path.append(str(FOLDER.parent))  # the engine of this checkout, where none is installed
    return importlib.import_module(name).main() or 0


if __name__ == "__main__":
    raise SystemExit(main())
