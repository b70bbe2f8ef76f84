"""The view of `hpcdist watch` on a terminal: a screen of its own, drawn anew as runs and the
window change, and the keys that are pressed."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hpcdist.monitor.board import Board, make_frame

_REFRESH_S = 1.0
_RESIZE_S = 0.1
_MOST_LOAD = 0.1
"""Share of the time that looking may take: the ranks need the processors, and the file system,
more."""
_QUIT = "q"


def watch_live(board: Board, title: Callable[[], str]) -> bool:
    """Show the board until all its runs have ended, or, which is False, q is pressed; the terminal
    is left as it was, whatever happens."""
    # COLUMNS and LINES, where a shell exports them, do not follow the window.
    fixed = {"COLUMNS", "LINES"}
    console = Console(_environ={key: text for key, text in os.environ.items() if key not in fixed})
    live = Live(console=console, screen=True, auto_refresh=False)
    with keys() as pressed:
        try:
            live.start()
            return _show(board, title, live, pressed)
        finally:
            live.stop()


def _show(board: Board, title: Callable[[], str], live: Live, pressed: Keys) -> bool:
    while True:
        begun_s = time.monotonic()
        views = board.look()
        if board.is_over:
            return True
        taken_s = time.monotonic() - begun_s
        until_s = time.monotonic() + max(_REFRESH_S, taken_s / _MOST_LOAD)
        while time.monotonic() < until_s:
            size = live.console.size
            frame = make_frame(
                views,
                title=f"q leaves  {title()}",
                notes=board.unanswered,
                height=size.height,
                width=size.width,
            )
            drawing = Text("\n", no_wrap=True, overflow="ellipsis")
            live.update(drawing.join(Text.assemble(*line) for line in frame), refresh=True)
            while live.console.size == size and time.monotonic() < until_s:
                wait_s = min(_RESIZE_S, max(0.0, until_s - time.monotonic()))
                if _QUIT in pressed.wait(wait_s).lower():
                    return False


_READ_BYTES = 64


@contextmanager
def keys() -> Iterator[Keys]:
    """Give keys as they are pressed, unseen; afterwards the terminal is as it was. Ctrl-C and
    Ctrl-Z stay signals."""
    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or none from the begin
        fd = -1
    if not os.isatty(fd) or not _is_ours(fd):
        yield Keys(None)
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        yield Keys(fd)
    finally:
        if _is_ours(fd):
            # What was typed for the view is not for the shell.
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)


class Keys:
    """The keys that are pressed; none without a terminal to press them on."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def wait(self, wait_s: float) -> str:
        """Return the keys that were pressed, once there are some, or the time is over."""
        if self._fd is None or not _is_ours(self._fd):
            time.sleep(wait_s)
            return ""
        if not select.select([self._fd], [], [], wait_s)[0]:
            return ""
        pressed = b""
        with suppress(OSError):
            pressed = os.read(self._fd, _READ_BYTES)
        if not pressed:  # the terminal is gone
            self._fd = None
        return pressed.decode(errors="replace")


def _is_ours(fd: int) -> bool:
    """Return whether the terminal's keys go to this process; in the background, asking for one, or
    changing how they come, would stop the process."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
