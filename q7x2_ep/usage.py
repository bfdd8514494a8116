"""Types of arguments, for argparse, of the command line and of bench/: each says what it wants."""

from __future__ import annotations

import contextlib
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Collection
from pathlib import Path
from typing import Callable

MOST = 2**31 - 1  # of a number: more elements than that no axis has


def number(text: str, least: int = 0) -> int:
    with contextlib.suppress(ValueError):
        if least <= int(text) <= MOST:
            return int(text)
    raise ArgumentTypeError(f"expected a whole number from {least} to {MOST}, given {text!r}")


def count(text: str) -> int:
    """Of what there has to be one at least."""
    return number(text, least=1)


def counts(text: str) -> list[int]:
    """One or several, like 1,8."""
    return [count(part) for part in text.split(",")]


def dim(text: str) -> tuple[str, int]:
    """NAME=SIZE."""
    name, _, size = text.rpartition("=")
    if not name:
        raise ArgumentTypeError(f"expected NAME=SIZE, given {text!r}")
    return name, number(size)


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ArgumentTypeError(f"expected a regular expression, given {text!r}: {error}") from None
    return text


def name_of(known: Collection[str]) -> Callable[[str], str]:
    """The type of one of these names."""

    def name(text: str) -> str:
        if text not in known:
            raise ArgumentTypeError(f"expected one of {', '.join(known)}, given {text!r}")
        return text

    return name


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of several of these names, with commas between them."""
    name = name_of(known)
    return lambda text: [name(part) for part in text.split(",")]


def source(text: str) -> Path:
    """A file that is there."""
    if not os.path.isfile(text):
        raise ArgumentTypeError(f"expected a file, there is none at {text!r}")
    return Path(text)


def target(text: str) -> str:
    """A file that is written once there are results, which should not be lost then."""
    folder = os.path.dirname(text) or "."
    problem = ""
    if not text or os.path.isdir(text):
        problem = "it is a folder" if text else "it is no name"
    elif text == "-":
        problem = "it cannot go to stdout (./- is a file)"
    elif not os.path.isdir(folder):
        problem = f"there is no folder {folder!r}"
    elif not os.access(text if os.path.exists(text) else folder, os.W_OK):
        problem = "writing is not permitted"
    if problem:
        raise ArgumentTypeError(f"expected a file to write, given {text!r}: {problem}")
    return text


def target_or_stdout(text: str) -> str:
    """As target; or -, which stands for stdout."""
    return text if text == "-" else target(text)
