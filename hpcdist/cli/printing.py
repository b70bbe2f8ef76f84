"""Printing by verbs: JSON, aligned columns, and times as people read them."""

from __future__ import annotations

import functools
import io
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

from hpcdist.base import files, progress
from hpcdist.base.text import one_line

if TYPE_CHECKING:
    from rich.progress import Progress
    from typing_extensions import Self

_P = ParamSpec("_P")
_R = TypeVar("_R")

_GAP = 2
_LEAST_LAST = 24
"""Characters that the last column has beside the others; with fewer it follows below."""
_INDENT = "    "


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    sys.stdout.write(files.to_json(value))


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


def paged(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Show what a verb prints on stdout through the user's pager, as git does: on a terminal, where
    it is longer than the screen. JSON is for programs, and goes there as it is."""

    @functools.wraps(function)
    def with_pager(*args: _P.args, **options: _P.kwargs) -> _R:
        if options.get("as_json") or not _has_pager():
            return function(*args, **options)
        printed = _Printed()
        try:
            with redirect_stdout(printed):
                return function(*args, **options)
        finally:
            _page(printed.getvalue())

    return with_pager


class _Printed(io.StringIO):
    """Takes what is meant for a terminal."""

    def isatty(self) -> bool:
        return True


def _has_pager() -> bool:
    import click

    context = click.get_current_context(silent=True)
    is_off = context is not None and context.find_root().params.get("no_pager")
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    # An empty PAGER is none, as for git.
    return is_terminal and not is_off and os.environ.get("PAGER", "less") not in {"", "cat"}


def _page(text: str) -> None:
    import click

    columns, rows = shutil.get_terminal_size()
    lines = click.unstyle(text).splitlines()
    num_rows = sum(max(1, -(-len(line) // max(1, columns))) for line in lines)
    if num_rows < rows:
        sys.stdout.write(text)
        return
    is_interrupted = False

    def take(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        raise KeyboardInterrupt

    # click waits for the pager, which answers Ctrl-C in its own way, and forgets that it came.
    before = signal.signal(signal.SIGINT, take)
    try:
        click.echo_via_pager(text.rstrip("\n"))
    finally:
        signal.signal(signal.SIGINT, before)
    if is_interrupted:
        raise KeyboardInterrupt


def note(*texts: str) -> None:
    """Print what the user should know, on stderr, each text on a line of its own."""
    for text in texts:
        print(f"note: {one_line(text)}", file=sys.stderr)


def say(text: str) -> None:
    """Print a line on stderr, even if the terminal has gone, which may be why the command was
    interrupted."""
    with suppress(OSError):
        print(one_line(text), file=sys.stderr, flush=True)


_SHOWN_AFTER_S = 1.0
"""Work that is done sooner is not worth a bar."""
_SECONDS_BETWEEN = 0.1


def show_progress() -> None:
    """Have long work shown as a bar on stderr, where that is a terminal."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        progress.show_by(_bar, end=_end_bar)


@contextmanager
def _bar(what: str, total: int) -> Iterator[progress.Advance]:
    """Show a bar, from some time on, whose lines are gone in the end. It is drawn by who works:
    a thread would be in the way of forks."""
    begun_s = drawn_s = time.monotonic()
    bar: Progress | None = None
    num_done = 0

    def advance() -> None:
        nonlocal bar, num_done, drawn_s
        num_done += 1
        now_s = time.monotonic()
        if now_s - begun_s < _SHOWN_AFTER_S or now_s - drawn_s < _SECONDS_BETWEEN:
            return
        if bar is None:
            bar = _new_bar(what, total)
        drawn_s = now_s
        bar.update(bar.task_ids[0], completed=num_done, refresh=True)

    try:
        yield advance
    finally:
        if bar is not None:
            _end_bar()


_bars: list[Progress] = []
"""The bar that is drawn."""


def _end_bar() -> None:
    """Take the bar away, and bring the cursor back."""
    while _bars:
        _bars.pop().stop()


def _new_bar(what: str, total: int) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True, no_color="NO_COLOR" in os.environ or None),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task(what, total=total or None)
    bar.start()
    _bars.append(bar)
    return bar


class Waiting:
    """A line on the terminal that says for how long something is waited for."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def show(self, waited_s: float) -> None:
        text = f"waiting for {self._what}: {waited_s:.0f} s"
        if self._is_on and waited_s >= 1 and text != self._shown:
            self._shown = text
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print(f"\r{' ' * len(self._shown)}\r", end="", file=sys.stderr, flush=True)


def local_time(time_s: float | None) -> str:
    """Return a Unix time as this machine's date and time."""
    if time_s is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):  # a damaged file says 1e400
        return "-"
