"""The view on a terminal: a screen of its own, drawn anew as runs and the window change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.text import Text

from hpcdist.watch.board import Board
from hpcdist.watch.frame import Line, make_frame

_REFRESH_S = 1.0
_RESIZE_S = 0.1
_MOST_LOAD = 0.1
"""Share of the time that looking may take: the ranks need the processors, and the file system,
more."""


def watch_live(board: Board, title: Callable[[], str]) -> None:
    """Show the board until all its runs have ended; the terminal is left as it was, whatever
    happens."""
    # COLUMNS and LINES, where a shell exports them, do not follow the window.
    fixed = {"COLUMNS", "LINES"}
    console = Console(_environ={key: text for key, text in os.environ.items() if key not in fixed})
    live = Live(console=console, screen=True, auto_refresh=False)
    try:
        live.start()
        while True:
            begun_s = time.monotonic()
            views = board.look()
            if board.is_over:
                return
            taken_s = time.monotonic() - begun_s
            until_s = time.monotonic() + max(_REFRESH_S, taken_s / _MOST_LOAD)
            while time.monotonic() < until_s:
                size = console.size
                frame = make_frame(
                    views,
                    title=f"Ctrl-C leaves  {title()}",
                    notes=board.unanswered,
                    height=size.height,
                    width=size.width,
                )
                live.update(_drawing(frame), refresh=True)
                _wait_for_resize(console, size, until_s)
    finally:
        live.stop()


def _wait_for_resize(console: Console, drawn: ConsoleDimensions, until_s: float) -> None:
    """Until the size is no longer that which was drawn for, or the time is over."""
    while console.size == drawn and time.monotonic() < until_s:
        time.sleep(min(_RESIZE_S, max(0.0, until_s - time.monotonic())))


def _drawing(frame: list[Line]) -> Text:
    lines = [Text.assemble(*line) for line in frame]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
