"""Printing by verbs: JSON, aligned columns, and times as people read them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TextIO

from hpcdist.base import files
from hpcdist.base.text import one_line


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    sys.stdout.write(files.to_json(value))


def print_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, file: TextIO | None = None
) -> None:
    """Print rows beneath their header, columns aligned; the last column has no limit. Nothing in a
    cell acts on the terminal."""
    lines = [header, *(list(map(one_line, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        print("  ".join([*cells, line[-1]]).rstrip(), file=file)


def note(*texts: str) -> None:
    """Print what the user should know, on stderr, each text on a line of its own."""
    for text in texts:
        print(f"note: {one_line(text)}", file=sys.stderr)


def say(text: str) -> None:
    """Print a line on stderr, even if the terminal has gone, which may be why the command was
    interrupted."""
    with suppress(OSError):
        print(one_line(text), file=sys.stderr, flush=True)


def progress_bar(
    what: str,
) -> Callable[[Sequence[int]], AbstractContextManager[Iterable[int]]]:
    """Return what shows, on a terminal and on stderr, how much of some work is done."""

    def show(items: Sequence[int]) -> AbstractContextManager[Iterable[int]]:
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or not items:
            return nullcontext(items)
        import click

        return click.progressbar(items, label=what, file=sys.stderr, show_pos=True)

    return show


def local_time(time_s: float | None) -> str:
    """Return a Unix time as this machine's date and time."""
    if time_s is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):  # a damaged file says 1e400
        return "-"
