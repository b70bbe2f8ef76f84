"""Ranks' logs as a terminal shows them, whole or while they are written, and the screen for that.

Log lines go to stdout, all else to stderr. On a terminal the ranks' names have colours, and beneath
the log stay the lines that the ranks have not finished, such as progress bars, and a line of
progress; anywhere else there are plain lines only. NO_COLOR is honoured.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TextIO

from hpcdist.base.files import open_regular
from hpcdist.base.terminal_lines import TerminalLines
from hpcdist.base.text import one_line
from hpcdist.monitor.progress import Progress, show_clock
from hpcdist.runs.run import Run

_RANK_COLOURS = (36, 32, 35, 33, 34, 96, 95)  # ANSI: cyan, green, magenta, yellow, blue, ...
_BATCH_LINES = 500  # drawn at once: a chatty script must not cost the ranks their processors
_REFRESH_S = 0.25  # four times a second: drawing takes time from the ranks


class LogTail:
    """New lines of the logs of some ranks of a run, over all attempts."""

    def __init__(self, run: Run, ranks: Collection[int], *, first_attempt: int = 0) -> None:
        """Logs of attempts before `first_attempt` are left out."""
        self._run = run
        self._ranks = ranks
        self._first_attempt = first_attempt
        self._logs: dict[tuple[int, int], TerminalLines] = {}
        """By rank and attempt."""
        self._num_read: defaultdict[tuple[int, int], int] = defaultdict(int)
        """Bytes of each that were read."""

    def lines(self, *, finish: bool = False) -> Iterator[tuple[int, str]]:
        """Give (rank, line) of what was written since the last call; a rank's log is finished, too,
        once its next attempt has one."""
        attempts = {0}
        with suppress(OSError):  # the folder is damaged
            attempts.update(self._run.attempts())
        for attempt in sorted(each for each in attempts if each >= self._first_attempt):
            for rank in self._ranks:  # by their names: the folders of thousands are slow to list
                path = self._run.log_file(rank, attempt)
                if (rank, attempt) not in self._logs and path.exists():
                    self._logs[rank, attempt] = TerminalLines()
        newest = dict(sorted(self._logs))
        for (rank, attempt), terminal in self._logs.items():
            path = self._run.log_file(rank, attempt)
            for chunk in whole_bytes(path, self._num_read[rank, attempt]):
                self._num_read[rank, attempt] += len(chunk)
                yield from ((rank, line) for line in terminal.feed(chunk))
            if finish or attempt < newest[rank]:
                yield from ((rank, line) for line in terminal.feed(b"", is_last=True))

    def open_lines(self) -> list[tuple[int, str]]:
        """Return (rank, text) of the lines that are not finished, such as progress bars."""
        return [(rank, text) for (rank, _), log in self._logs.items() for text in log.open_lines()]


def whole_log(path: Path) -> Iterator[str]:
    """Give the lines of a log as they are now, the last one too if it is not finished."""
    terminal = TerminalLines()
    for chunk in whole_bytes(path):
        yield from terminal.feed(chunk)
    yield from terminal.feed(b"", is_last=True)


def whole_bytes(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Give a log's bytes from here on, and not those that are added meanwhile: whoever writes all
    the time must not keep the reader."""
    # Opened each time: a run on a thousand ranks must not need a thousand descriptors.
    try:
        with open_regular(path, most_bytes=math.inf) as file:
            end = os.fstat(file.fileno()).st_size
            file.seek(offset)
            while offset < end and (chunk := file.read(min(1 << 18, end - offset))):
                offset += len(chunk)
                yield chunk
    except OSError:
        return


class Screen:
    """Shows log lines and progress; `close` leaves the terminal as it was."""

    def __init__(self, *, log: TextIO | None = None, prefixed: bool = True) -> None:
        """`log` takes the ranks' lines (stdout if None); `prefixed` puts the rank before each."""
        self._log = sys.stdout if log is None else log
        self._prefixed = prefixed
        self._started_s = time.monotonic()
        self._drawn_s = 0.0
        self.is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.has_log = self.is_live and self._log.isatty()
        """The log is on the same terminal, so that its unfinished lines can be drawn."""
        if self.is_live:
            from rich.console import Console
            from rich.live import Live

            self._console = Console(stderr=True)
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._is_coloured = prefixed and not self._console.no_color

    def lines(self, lines: Iterable[tuple[int, str]]) -> None:
        """Show lines of the ranks' logs, each with its rank."""
        remaining = iter(lines)
        while batch := list(islice(remaining, _BATCH_LINES)):
            text = "".join(self._line(rank, line) for rank, line in batch)
            if self.has_log:
                from rich.segment import Segment, Segments

                self._drawn_s = 0.0  # they may have been drawn as unfinished ones before
                self._console.print(Segments([Segment(text)]), crop=False, end="")
            else:
                self._log.write(text)
        self._log.flush()

    def say(self, text: str) -> None:
        """Show a line that is not of a rank; nothing in it acts on the terminal."""
        text = one_line(text.expandtabs())
        if self.is_live:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def draw(self, unfinished: Sequence[tuple[int, str]], progress: Progress | None = None) -> None:
        """Draw beneath the log the lines that the ranks have not finished, and how far the run
        is."""
        now = time.monotonic()
        if not self.is_live or now - self._drawn_s < _REFRESH_S:
            return
        from rich.console import Group
        from rich.text import Text

        self._drawn_s = now
        lines = [self._line(*each) for each in unfinished[: max(1, self._console.height // 2)]]
        what = "starting" if progress is None else progress.sentence(with_pace=True) or "running"
        has_steps = progress is not None and progress.step is not None
        lines.append(what if has_steps else f"{what}, {show_clock(now - self._started_s)}")
        rows = [Text.from_ansi(line, no_wrap=True, overflow="ellipsis") for line in lines]
        self._live.start()
        self._live.update(Group(*rows), refresh=True)

    def close(self) -> None:
        """Take the progress off the screen."""
        if self.is_live:
            self._live.stop()

    def _line(self, rank: int, text: str) -> str:
        if not self._prefixed:
            return f"{text}\n"
        if not (self.has_log and self._is_coloured):
            return f"[rank {rank}] {text}\n"
        colour = _RANK_COLOURS[rank % len(_RANK_COLOURS)]
        return f"\x1b[{colour}m[rank {rank}]\x1b[0m {text}\x1b[0m\n"
