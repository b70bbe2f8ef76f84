"""Reading files while others write them: whole lines, and events, as they come."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdist.base.files import open_regular
from hpcdist.base.terminal_lines import TerminalLines
from hpcdist.runs.events import LONGEST_LINE_BYTES, decode_event
from hpcdist.runs.run import Run

OVERDUE_S = 10.0
"""So long a line without its end is waited for where it cannot be drawn: a progress bar must not
flood a file, and a prompt not be held back."""

_LOG_CHUNK_BYTES = 1 << 18


class _Log:
    """The growing log of one rank in one attempt, as a terminal shows it."""

    def __init__(self, path: Path, *, rank: int, attempt: int) -> None:
        self.rank = rank
        self.attempt = attempt
        self.name = path.name
        self.terminal = TerminalLines()
        self._growth = _Growth(path)
        self._waiting_since_s: float | None = None

    def lines(self, *, finish: bool) -> Iterator[str]:
        """Give the lines that were finished since the last call; to finish, the open ones too."""
        for chunk in self._growth.chunks():
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


class LogTail:
    """New lines of the logs of some ranks of a run, over all attempts."""

    def __init__(
        self,
        run: Run,
        ranks: Collection[int] | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        shown: Mapping[str, int] | None = None,
    ) -> None:
        """Without `ranks`, the logs of all. `shown` has, by their names, how many lines of each are
        not to be given again."""
        self._run = run
        self._shown = shown or {}
        self.given: dict[str, int] = {}
        """Lines that each log has given so far, those that were shown before included."""
        self.num_given = 0
        """Lines that were given since the beginning, pieces of unfinished ones too."""
        self._ranks = ranks
        self._clock_s = clock_s
        self._logs: dict[Path, _Log] = {}

    def lines(self, *, finish: bool = False) -> Iterator[tuple[int, str]]:
        """Give (rank, line) of what was written since the last call; a rank's log is finished, too,
        once its next attempt has one."""
        self._find_new()
        newest = dict(sorted((log.rank, log.attempt) for log in self._logs.values()))
        for log in self._logs.values():
            for line in log.lines(finish=finish or log.attempt < newest[log.rank]):
                self.given[log.name] = self.given.get(log.name, 0) + 1
                if self.given[log.name] > self._shown.get(log.name, 0):
                    self.num_given += 1
                    yield log.rank, line

    def _find_new(self) -> None:
        """Find logs that have appeared; those of some ranks by their names, as the folders of
        thousands of ranks are slow to list."""
        known = {(log.rank, log.attempt) for log in self._logs.values()}
        if self._ranks is None:
            found = self._run.log_files()
        else:
            attempts = {0, *self._run.attempts()}
            new = sorted({*itertools.product(self._ranks, attempts)} - known)
            places = [(*place, self._run.find_log(*place)) for place in new]
            found = [(rank, attempt, path) for rank, attempt, path in places if path is not None]
        for rank, attempt, path in found:
            if (rank, attempt) not in known:
                self._logs[path] = _Log(path, rank=rank, attempt=attempt)

    def open_lines(self) -> list[tuple[int, str]]:
        """Return (rank, text) of the lines that are not finished, such as progress bars."""
        logs = self._logs.values()
        return [(log.rank, text) for log in logs for text in log.terminal.open_lines()]

    def overdue_lines(self) -> list[tuple[int, str]]:
        """Return those that have been waited for long enough, where none can be drawn."""
        logs, now_s = self._logs.values(), self._clock_s()
        lines = [(log.rank, text) for log in logs for text in log.overdue_lines(now_s)]
        self.num_given += len(lines)
        return lines


def whole_log(path: Path) -> Iterator[str]:
    """Give the lines of a log as they are now, the last one too if it is not finished."""
    terminal = TerminalLines()
    for chunk in _Growth(path).chunks():
        yield from terminal.feed(chunk)
    yield from terminal.finish()


def whole_bytes(path: Path) -> Iterator[bytes]:
    """Give the bytes of a log as they are now, piece by piece."""
    return _Growth(path).chunks()


class _Growth:
    """The bytes that are added to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def chunks(self) -> Iterator[bytes]:
        """Give the bytes that were added since the last call, and not those that are added
        meanwhile: whoever writes all the time must not keep the reader."""
        # Opened each time: a run on a thousand ranks must not need a thousand descriptors.
        try:
            with open_regular(self._path, most_bytes=math.inf) as file:
                end = os.fstat(file.fileno()).st_size
                file.seek(self._offset)
                while self._offset < end:
                    chunk = file.read(min(_LOG_CHUNK_BYTES, end - self._offset))
                    if not chunk:
                        return
                    self._offset += len(chunk)
                    yield chunk
        except OSError:
            return


_HEAD_BYTES = 1 << 12  # the first events: start, model, setup, resume
_TAIL_BYTES = 1 << 13  # some five windows of steps
_CHUNK_BYTES = 1 << 20


class EventTail:
    """Reads what is new in one growing file; of what was there at first, the beginning and the end.

    A line that is not finished yet waits for its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def events(self, size: int) -> Iterator[dict[str, Any]]:
        """Give the events since the last call, from a file that is `size` bytes long now.

        A file that is no longer is not opened: that costs more than all else, on a shared file
        system above all.
        """
        if size == self._offset:
            return
        if size < self._offset:  # replaced by another
            self._offset, self._rest = 0, b""
        is_first = self._offset == 0
        yield from self._read(_HEAD_BYTES if is_first else _CHUNK_BYTES)
        if is_first and size - _TAIL_BYTES > self._offset:
            # The line that is cut there is no event, and is left out like any torn one.
            self._offset, self._rest = size - _TAIL_BYTES, b""
        while self._offset < size:
            before = self._offset
            yield from self._read(_CHUNK_BYTES)
            if self._offset == before:  # gone, or not ours to read
                return

    def _read(self, most_bytes: int) -> Iterator[dict[str, Any]]:
        try:
            with open_regular(self._path, most_bytes=math.inf) as file:
                file.seek(self._offset)
                chunk = file.read(most_bytes) or b""
        except OSError:
            return
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._rest = self._rest[-LONGEST_LINE_BYTES:]
        for line in lines:
            if (event := decode_event(line)) is not None:
                yield event
