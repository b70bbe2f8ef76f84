"""Printing by verbs: JSON, aligned columns, and times as people read them."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.base.text import one_line

_GAP = 2
_LEAST_LAST = 24
"""Characters that the last column has beside the others; with fewer it follows below."""
_INDENT = "    "


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout: structs are objects, paths are text."""
    sys.stdout.write(files.to_json(msgspec.to_builtins(value, enc_hook=str)))


def print_fact(name: str, text: str) -> None:
    """Print what a name is, after it; on a terminal, further lines of the text are below it."""
    print_wrapped(one_line(text), first=name, indent=len(name))


@contextmanager
def writing(path: Path, *, hint: str) -> Iterator[None]:
    """Raise UserError with this hint where a file or a folder cannot be written in this block."""
    try:
        yield
    except OSError as error:
        message = f"{error.filename or path} cannot be written: {error.strerror or error}"
        raise UserError(message, hint=hint) from None


def print_columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: slice = slice(0),
    is_error: bool = False,
) -> None:
    """Print rows beneath their header, columns aligned, those of `right` at their right end. On a
    terminal no line is wider than that: the last column is wrapped, or stands below the others.
    Nothing in a cell acts on the terminal."""
    lines = [list(header), *(list(map(one_line, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    before = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    room = _room(sys.stderr if is_error else sys.stdout)
    is_beside = room is None or before + min(widths[-1], _LEAST_LAST) <= room
    for line in lines:
        line[right] = map(str.rjust, line[right], widths[right])
        cells = [cell.ljust(width) for cell, width in zip(line[:-1], widths, strict=False)]
        first = "".join(f"{cell}  " for cell in cells)
        if not is_beside:
            print_wrapped(first.rstrip(), indent=len(_INDENT), is_error=is_error)
            first = _INDENT
        print_wrapped(line[-1], first=first, indent=len(first), is_error=is_error)


def print_wrapped(text: str, *, first: str = "", indent: int = 0, is_error: bool = False) -> None:
    """Print a text after `first`; on a terminal, lines end between words, and those that follow are
    indented."""
    file = sys.stderr if is_error else sys.stdout
    room = _room(file)
    if room is None or len(first) + len(text) <= room:
        print(f"{first}{text}".rstrip(), file=file)
        return
    wrapped = textwrap.wrap(
        text,
        max(room, indent + _LEAST_LAST),
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(wrapped), file=file)


def _room(stream: TextIO) -> int | None:
    """Return the columns of the terminal; None where there is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def note(*texts: str) -> None:
    """Print what the user should know, on stderr, each text on lines of its own."""
    for text in texts:
        print_wrapped(one_line(text), first="note: ", indent=6, is_error=True)


def say(text: str) -> None:
    """Print a line on stderr, even if the terminal has gone, which may be why the command was
    interrupted."""
    with suppress(OSError):
        print(one_line(text), file=sys.stderr, flush=True)


def local_time(time_s: float | None) -> str:
    """Return a Unix time as this machine's date and time."""
    if time_s is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):  # a damaged file says 1e400
        return "-"
