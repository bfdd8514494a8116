"""A progress bar for slow loops: rich's where it is installed, a line of text otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def track(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Each of items in turn, with a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    try:
        from rich.console import Console
        from rich.progress import track as rich_track
    except ImportError:
        yield from _plain(items, label)
    else:
        # drawn between items only: a thread that redraws would disturb what is being timed
        console = Console(stderr=True)
        yield from rich_track(
            items, description=label, console=console, transient=True, auto_refresh=False
        )


def _plain(items: Sequence[Item], label: str) -> Iterator[Item]:
    for done, item in enumerate(items):
        bar = "#" * (20 * done // len(items))
        print(f"\r{label} [{bar:<20}] {done}/{len(items)}", end="", file=sys.stderr, flush=True)
        yield item
    print("\r" + " " * (len(label) + 40), end="\r", file=sys.stderr, flush=True)
