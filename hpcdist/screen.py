"""Where a followed run is shown: log lines on stdout, all else on stderr.

On a terminal the ranks' names have colours, and a line of progress stays beneath the log; anywhere
else there are plain lines only. NO_COLOR is honoured.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from hpcdist.live import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as ProgressBar

_RANK_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_magenta")
_REFRESH_S = 0.25  # four times a second: drawing takes time from the ranks


class Screen:
    """Shows log lines and progress; `close` leaves the terminal as it was."""

    def __init__(self, *, log: TextIO | None = None, prefixed: bool = True) -> None:
        """`log` takes the ranks' lines (stdout if None); `prefixed` puts the rank before each."""
        self._log = sys.stdout if log is None else log
        self._prefixed = prefixed
        self.is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        """Whether progress can be drawn."""
        self._console: Console | None = None
        self._bar: ProgressBar | None = None
        self._drawn_s = 0.0

    def line(self, rank: int, text: str) -> None:
        """One line of a rank's log."""
        if self._log.isatty() and self.is_live:
            self._print_coloured(rank, text)
        else:
            self._log.write(f"[rank {rank}] {text}\n" if self._prefixed else f"{text}\n")
            self._log.flush()

    def say(self, text: str) -> None:
        """One line that is not of a rank."""
        if self.is_live:
            self._live_console().print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def show_progress(self, progress: Progress | None) -> None:
        """Draw how far the run is, beneath the log."""
        now = time.monotonic()
        if now - self._drawn_s < _REFRESH_S:
            return
        self._drawn_s = now
        if self._bar is None:
            self._bar = _progress_bar(self._live_console())
            self._bar.start()
        bar = self._bar
        task = bar.tasks[0].id
        if progress is None or progress.step is None:
            bar.update(task, description="starting", figures="")
        else:
            bar.update(
                task,
                description=progress_place(progress),
                total=progress.total_steps,
                completed=progress.step,
                figures=progress_figures(progress),
            )
        bar.refresh()

    def close(self) -> None:
        """Take the progress off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print_coloured(self, rank: int, text: str) -> None:
        from rich.text import Text

        line = Text.from_ansi(text)
        if self._prefixed:
            colour = _RANK_COLOURS[rank % len(_RANK_COLOURS)]
            line = Text.assemble((f"[rank {rank}] ", colour), line)
        self._live_console().print(line, highlight=False, soft_wrap=True)

    def _live_console(self) -> Console:
        """The terminal: what is printed there and the progress beneath must know of each other."""
        from rich.console import Console

        if self._console is None:
            self._console = Console(stderr=True)
        return self._console


def _progress_bar(console: Console) -> ProgressBar:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        transient=True,
    )
    bar.add_task("starting", total=None, figures="")
    return bar


def progress_place(progress: Progress) -> str:
    epoch = "" if progress.epoch is None else f"epoch {progress.epoch}, "
    total = "" if progress.total_steps is None else f"/{progress.total_steps}"
    restarted = f"attempt {progress.attempt}, " if progress.attempt else ""
    return f"{restarted}{epoch}step {progress.step}{total}"


def progress_figures(progress: Progress) -> str:
    parts = []
    if progress.samples_per_s is not None:
        parts.append(f"{progress.samples_per_s:,.0f} samples/s")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    if progress.remaining_s is not None:
        parts.append(f"{_clock(progress.remaining_s)} left")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
