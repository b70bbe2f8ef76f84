"""The one loop that waits, and a line on the terminal that says how much of some long work is done:
a command that wants it calls `show`, and the rooms that work call `track`."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")

_SHOWN_AFTER_S = 1.0
_BETWEEN_S = 0.1
_is_wanted = False


def show() -> None:
    """Have all long work of this process shown."""
    global _is_wanted  # noqa: PLW0603 - there is one terminal per process
    _is_wanted = True


class StatusLine(AbstractContextManager["StatusLine"]):
    """A line on the terminal that says how far some work is, once that takes more than a second. It
    is drawn by who works: a thread would be in the way of forks."""

    _shown = ""
    """The line that is on the terminal."""

    def __init__(self) -> None:
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._is_on = _is_wanted and is_terminal
        self._begun_s = self._drawn_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        now_s = time.monotonic()
        is_soon = now_s - self._begun_s < _SHOWN_AFTER_S or now_s - self._drawn_s < _BETWEEN_S
        if self._is_on and not is_soon:
            self.clear()
            self._drawn_s = now_s
            StatusLine._shown = text[: shutil.get_terminal_size().columns - 1]
            print(StatusLine._shown, end="", file=sys.stderr, flush=True)

    @staticmethod
    def clear() -> None:
        """Take away what is shown, also in the middle of work: an error is to be seen."""
        if StatusLine._shown:
            print(f"\r{' ' * len(StatusLine._shown)}\r", end="", file=sys.stderr, flush=True)
            StatusLine._shown = ""


def track(items: Iterable[T], what: str, *, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show how many of them are done; `total` where they have no length."""
    number = len(items) if total is None and isinstance(items, Collection) else total or 0
    with StatusLine() as line:
        for num_done, item in enumerate(items, start=1):
            yield item
            line.show(f"{what}: {num_done:,}" + (f" of {number:,}" if number else ""))


def poll(look: Callable[[], T | None], *, interval_s: float, limit_s: float | None) -> T | None:
    """Call `look` every `interval_s` seconds and return the first value that is not None.

    Returns None once `limit_s` seconds have passed; None: it goes on. What `look` raises
    ends the waiting.
    """
    deadline_s = math.inf if limit_s is None else time.monotonic() + limit_s
    while (value := look()) is None:
        if time.monotonic() >= deadline_s:
            return None
        time.sleep(interval_s)
    return value
