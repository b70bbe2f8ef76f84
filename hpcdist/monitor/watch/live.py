"""The view on a terminal: a screen of its own, drawn anew as runs and the window change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.text import Text

from hpcdist.monitor.watch.board import Board
from hpcdist.monitor.watch.frame import Line, make_frame
from hpcdist.monitor.watch.keys import Keys, keys

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
            live.update(_drawing(frame), refresh=True)
            if _is_quit(live.console, size, pressed, until_s):
                return False


def _is_quit(console: Console, drawn: ConsoleDimensions, pressed: Keys, until_s: float) -> bool:
    """Whether q is pressed until the size is no longer that which was drawn for, or the time is
    over."""
    while console.size == drawn and time.monotonic() < until_s:
        wait_s = min(_RESIZE_S, max(0.0, until_s - time.monotonic()))
        if _QUIT in pressed.wait(wait_s).lower():
            return True
    return False


def _drawing(frame: list[Line]) -> Text:
    lines = [Text.assemble(*line) for line in frame]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
