"""The screen of a followed run: log lines on stdout, all else on stderr.

On a terminal the ranks' names have colours, and beneath the log stay the lines that the ranks have
not finished, such as progress bars, and a line of progress; anywhere else there are plain lines
only. NO_COLOR is honoured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TextIO

from hpcdist.base.text import one_line
from hpcdist.monitor.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_RANK_COLOURS = (36, 32, 35, 33, 34, 96, 95)  # ANSI: cyan, green, magenta, yellow, blue, ...
_BATCH_LINES = 500  # drawn at once: a chatty script must not cost the ranks their processors
_REFRESH_S = 0.25  # four times a second: drawing takes time from the ranks
_BAR_WIDTH = 16


class Screen:
    """Shows log lines and progress; `close` leaves the terminal as it was."""

    def __init__(
        self, *, log: TextIO | None = None, prefixed: bool = True, with_progress: bool = True
    ) -> None:
        """`log` takes the ranks' lines (stdout if None); `prefixed` puts the rank before each;
        `with_progress` draws how far the run is."""
        self._log = sys.stdout if log is None else log
        self._prefixed = prefixed
        self._started_s = time.monotonic()
        self._is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.draws_progress = self._is_live and with_progress
        self.has_log = self._is_live and self._log.isatty()
        """The log is on the same terminal, so that its unfinished lines can be drawn."""
        self._console: Console | None = None
        self._live: Live | None = None
        self._drawn_s = 0.0
        self._is_stale = False
        """Lines have been shown that were drawn as unfinished ones before."""

    def lines(self, lines: Iterable[tuple[int, str]]) -> None:
        """Show lines of the ranks' logs, each with its rank."""
        remaining = iter(lines)
        while batch := list(islice(remaining, _BATCH_LINES)):
            self._is_stale = True
            if self.has_log:
                from rich.segment import Segment, Segments

                terminal = self._terminal()
                draw = self._coloured if self._prefixed and not terminal.no_color else self._plain
                text = "".join(draw(rank, line) for rank, line in batch)
                terminal.print(Segments([Segment(text)]), crop=False, end="")
            else:
                self._log.write("".join(self._plain(rank, text) for rank, text in batch))
        self._log.flush()

    def say(self, text: str) -> None:
        """Show a line that is not of a rank; nothing in it acts on the terminal."""
        text = one_line(text.expandtabs())
        if self._is_live:
            self._terminal().print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def draw(self, unfinished: Sequence[tuple[int, str]], progress: Progress | None = None) -> None:
        """Draw beneath the log the lines that the ranks have not finished, and how far the run
        is."""
        now = time.monotonic()
        if not self._is_live or (now - self._drawn_s < _REFRESH_S and not self._is_stale):
            return
        if self._live is None and not unfinished and not self.draws_progress:
            return
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        self._drawn_s, self._is_stale = now, False
        if self._live is None:
            self._live = Live(console=self._terminal(), auto_refresh=False, transient=True)
            self._live.start()
        rows: list[RenderableType] = []
        for rank, line in _chosen(unfinished, room=max(1, self._terminal().height // 2)):
            row = Text.from_ansi(self._coloured(rank, line) if self._prefixed else line)
            row.no_wrap, row.overflow = True, "ellipsis"
            rows.append(row)
        if self.draws_progress:
            rows.append(_drawing(progress, elapsed_s=now - self._started_s))
        self._live.update(Group(*rows), refresh=True)

    def close(self) -> None:
        """Take the progress off the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _plain(self, rank: int, text: str) -> str:
        return f"[rank {rank}] {text}\n" if self._prefixed else f"{text}\n"

    def _coloured(self, rank: int, text: str) -> str:
        colour = _RANK_COLOURS[rank % len(_RANK_COLOURS)]
        return f"\x1b[{colour}m[rank {rank}]\x1b[0m {text}\x1b[0m\n"

    def _terminal(self) -> Console:
        """Return the one console: what is printed and the progress below must fit together."""
        from rich.console import Console

        if self._console is None:
            self._console = Console(stderr=True)
        return self._console


def progress_place(progress: Progress) -> str:
    """Say where a run is: epoch 3, step 120/400."""
    epoch = "" if progress.epoch is None else f"epoch {progress.epoch + 1}, "
    total = "" if progress.total_steps is None else f"/{progress.total_steps}"
    restarted = f"attempt {progress.attempt}, " if progress.attempt else ""
    return f"{restarted}{epoch}step {progress.step}{total}"


def progress_figures(progress: Progress) -> str:
    """Say how fast a run is, and when it will be done."""
    parts = []
    if progress.samples_per_s is not None:
        parts.append(f"{progress.samples_per_s:,.0f} samples/s")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    if progress.remaining_s is not None:
        parts.append(f"{clock(progress.remaining_s)} left")
    return ", ".join(parts)


def _chosen(unfinished: Sequence[tuple[int, str]], *, room: int) -> list[tuple[int, str]]:
    """Return as many lines as there is room for, equally many of each rank: of nested bars the
    outer ones."""
    by_rank: dict[int, list[str]] = {}
    for rank, text in unfinished:
        by_rank.setdefault(rank, []).append(text)
    each = max(1, room // max(1, len(by_rank)))
    return [(rank, text) for rank, texts in sorted(by_rank.items()) for text in texts[:each]][:room]


def _drawing(progress: Progress | None, *, elapsed_s: float) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if progress is None or progress.step is None:
        what = "starting" if progress is None else "running"
        return Text(f"{what}, {clock(elapsed_s)}", no_wrap=True)
    row: list[RenderableType] = [Text(progress_place(progress))]
    if progress.total_steps:
        total = progress.total_steps
        row.append(ProgressBar(total=total, completed=progress.step, width=_BAR_WIDTH))
    row.append(Text(progress_figures(progress), overflow="ellipsis", no_wrap=True))
    grid = Table.grid(padding=(0, 1))
    grid.add_row(*row)
    return grid


def clock(seconds: float) -> str:
    """Return a length of time as text: 1:02, or with hours 1:00:02."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
