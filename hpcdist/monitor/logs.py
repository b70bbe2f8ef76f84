"""Ranks' logs as a terminal shows them, whole or while they are written."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from hpcdist.base.files import open_regular
from hpcdist.base.terminal_lines import TerminalLines
from hpcdist.runs.run import Run

OVERDUE_S = 10.0
"""So long a line without its end is waited for where it cannot be drawn: a progress bar must not
flood a file, and a prompt not be held back."""

_CHUNK_BYTES = 1 << 18
_MOST_NAMED = 100
"""Ranks whose logs are looked for by their names: the folders of thousands are slow to list."""


class LogTail:
    """New lines of the logs of some ranks of a run, over all attempts."""

    def __init__(
        self,
        run: Run,
        ranks: Collection[int],
        *,
        clock_s: Callable[[], float] = time.monotonic,
        first_attempt: int = 0,
    ) -> None:
        """Logs of attempts before `first_attempt` are left out."""
        self._run = run
        self._first_attempt = first_attempt
        self._ranks = ranks
        self._clock_s = clock_s
        self._logs: dict[tuple[int, int], _Log] = {}
        """By rank and attempt."""

    def lines(self, *, finish: bool = False) -> Iterator[tuple[int, str]]:
        """Give (rank, line) of what was written since the last call; a rank's log is finished, too,
        once its next attempt has one."""
        self._find_new()
        newest = dict(sorted(self._logs))
        for (rank, attempt), log in self._logs.items():
            for line in log.lines(finish=finish or attempt < newest[rank]):
                yield rank, line

    def _find_new(self) -> None:
        if len(self._ranks) > _MOST_NAMED:
            found = [one for one in self._run.log_files() if one[0] in self._ranks]
        else:
            attempts = {one for one in (0, *self._run.attempts()) if one >= self._first_attempt}
            new = sorted({*itertools.product(self._ranks, attempts)} - self._logs.keys())
            places = [(*place, self._run.find_log(*place)) for place in new]
            found = [(rank, attempt, path) for rank, attempt, path in places if path is not None]
        for rank, attempt, path in found:
            if attempt >= self._first_attempt:
                self._logs.setdefault((rank, attempt), _Log(path))

    def open_lines(self) -> list[tuple[int, str]]:
        """Return (rank, text) of the lines that are not finished, such as progress bars."""
        logs = self._logs.items()
        return [(rank, text) for (rank, _), log in logs for text in log.terminal.open_lines()]

    def overdue_lines(self) -> list[tuple[int, str]]:
        """Return those that have been waited for long enough, where none can be drawn."""
        logs, now_s = self._logs.items(), self._clock_s()
        return [(rank, text) for (rank, _), log in logs for text in log.overdue_lines(now_s)]


class _Log:
    """The growing log of one rank in one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.terminal = TerminalLines()
        self._offset = 0
        self._waiting_since_s: float | None = None

    def lines(self, *, finish: bool) -> Iterator[str]:
        """Give the lines that were finished since the last call; to finish, the open ones too."""
        for chunk in whole_bytes(self.path, self._offset):
            self._offset += len(chunk)
            yield from self.terminal.feed(chunk)
        if finish:
            yield from self.terminal.finish()

    def overdue_lines(self, now_s: float) -> list[str]:
        """Return the unfinished lines, each time they have been waited for long enough."""
        if not self.terminal.open_lines():
            self._waiting_since_s = None
        elif self._waiting_since_s is None:
            self._waiting_since_s = now_s
        elif now_s - self._waiting_since_s >= OVERDUE_S:
            self._waiting_since_s = None
            return self.terminal.give_open()
        return []


def whole_log(path: Path) -> Iterator[str]:
    """Give the lines of a log as they are now, the last one too if it is not finished."""
    terminal = TerminalLines()
    for chunk in whole_bytes(path):
        yield from terminal.feed(chunk)
    yield from terminal.finish()


def whole_bytes(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Give a log's bytes from here on, and not those that are added meanwhile: whoever writes all
    the time must not keep the reader."""
    # Opened each time: a run on a thousand ranks must not need a thousand descriptors.
    try:
        with open_regular(path, most_bytes=math.inf) as file:
            end = os.fstat(file.fileno()).st_size
            file.seek(offset)
            while offset < end and (chunk := file.read(min(_CHUNK_BYTES, end - offset))):
                offset += len(chunk)
                yield chunk
    except OSError:
        return
